"""Programs for the Triton code generator, and their plans. `python triton_cases.py` compares each with eager under
Triton's interpreter and prints a line per case; `python triton_cases.py compile` compiles each for an sm_90 GPU."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from kernel_harness import lowered
from torch import Tensor
from torch.utils import _pytree as pytree

from pycompiler import graphs
from pycompiler.codegen import triton as codegen
from pycompiler.ir.kernel import Schedule
from pycompiler.ir.plan import Launch, Plan
from pycompiler.ir.target import H200
from pycompiler.runtime import triton_build
from pycompiler.runtime.plan_builder import make_plan
from pycompiler.runtime.plan_python import PythonPlan
from pycompiler.runtime.rules import check_plan
from pycompiler.scheduling import schedule
from tests import symbolic_sizes
from tests.harness.compare import assert_same

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 2e-2}

# Bytes of stack that a kernel may use: the compiler of Triton 3.6 (torch 2.11) spills a little where the newest does
# not.
SPILL = 0 if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9) else 32

torch.manual_seed(0)
r = torch.randn


def b(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def integers(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape)


def layer_norm_gradients(x: Tensor, w: Tensor, c: Tensor, g: Tensor) -> Any:
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (x, w, c)]
        return torch.autograd.grad(F.layer_norm(F.gelu(leaves[0]), (x.shape[-1],), *leaves[1:]), leaves, g)


def layer_norm_backward(x: Tensor, w: Tensor, c: Tensor, g: Tensor) -> Any:
    mean, scale = x.mean(-1, keepdim=True), torch.rsqrt(x.var(-1, correction=0, keepdim=True) + 1e-5)
    found = torch.ops.aten.native_layer_norm_backward(g, x, [65], mean, scale, w, c, [True, True, True])
    return found[0], found[1], found[2]


def cross_entropy_gradients(x: Tensor, t: Tensor) -> Any:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        loss = F.cross_entropy(x, t)
        return loss, *torch.autograd.grad(loss, x)


def sums_and_casts(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """Small nests after column sums: casts, a value of two sums, one that reads other points, one of another shape."""
    total, scaled = g.float().sum(0), (g.float() * x.float()).sum(0)
    other = (w * 2).exp()
    both = total * other - scaled
    return (
        total.bfloat16(),
        scaled.bfloat16(),
        both,
        both.flip(0) + total,
        total.view(10, 13).sum(1),
        g.float().sum() / 3,
    )


def batch_norm_gradients(x: Tensor, g: Tensor, w: Tensor) -> Any:
    """Two kernels read a float32 value that is computed from bfloat16."""
    mean = x.float().mean((0, 1))
    scaled = (x.float() - mean) * torch.rsqrt((x.float() - mean).square().mean((0, 1)) + 1e-5)
    of_w, of_b = (g.float() * scaled).sum((0, 1)), g.float().sum((0, 1))
    n = x.shape[0] * x.shape[1]
    return ((g.float() - (of_b + scaled * of_w) / n) * w).bfloat16(), of_w, of_b


def rms_norm(x: Tensor, residual: Tensor, w: Tensor) -> Any:
    y = x + residual
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * w, y


def extreme_of_a_difference(x: Tensor, y: Tensor) -> Any:
    """The stored value is the one searched for the extreme: all its uses are contracted, or none."""
    z = x * x.abs().sqrt() - y
    return z.argmax(0), z


# Triton 3.9 itself crashes while it compiles these (Triton 3.6 does not).
CRASHES = ("extremes_long",)
NAN = float("nan")
Case = tuple[Callable[..., Any], list[Tensor]]
CASES: dict[str, Case] = {
    "softmax": (lambda x: torch.softmax(x, -1), [r(33, 65)]),
    "softmax_bf16": (lambda x: torch.softmax(x, -1), [b(33, 128)]),
    "softmax_columns": (lambda x: torch.softmax(x, 1), [r(3, 7, 19)]),
    "softmax_odd": (lambda x: (torch.softmax(x, -1), x.sum(-1), x + 1), [r(2, 20001)]),
    "cross_entropy_odd": (cross_entropy_gradients, [r(3, 20001), integers(65, 3)]),
    "softmax_long": (lambda x: torch.softmax(x, -1), [r(2, 20000)]),
    "layer_norm": (lambda x, w, c: F.layer_norm(x, (65,), w, c), [r(33, 65), r(65), r(65)]),
    "layer_norm_long": (lambda x, w: F.layer_norm(x, (20000,), w), [r(2, 20000), r(20000)]),
    "gelu_layer_norm": (lambda x, w, c: F.layer_norm(F.gelu(x), (128,), w, c), [b(33, 128), b(128), b(128)]),
    "layer_norm_gradients": (layer_norm_gradients, [r(33, 65), r(65), r(65), r(33, 65)]),
    "swiglu": (lambda x, y: F.silu(x) * y, [r(33, 65), r(33, 65)]),
    "residual_rms_norm": (rms_norm, [r(8, 65), r(8, 65), r(65)]),
    "cross_entropy": (cross_entropy_gradients, [r(33, 65), integers(65, 33)]),
    "cross_entropy_long": (cross_entropy_gradients, [r(3, 20000), integers(65, 3)]),
    "extremes": (lambda x: (x.argmax(-1), x.amax(-1), x.argmin(0), x.amin()), [r(9, 33)]),
    "extremes_long": (lambda x: (x.argmax(-1), x.prod(-1)), [r(2, 20000)]),
    "extremes_nan": (lambda x: (x.argmax(), x.argmin(), x.amax(0)), [torch.tensor([[1, NAN, 3], [NAN, 5.0, -2]])]),
    "extremes_tied": (lambda x: (x.argmax(-1), x.argmax(), x.argmin(0)), [integers(3, 9, 33)]),
    "extreme_of_a_difference": (extreme_of_a_difference, [r(2, 17, 17).double(), r(17).double()]),
    "sums": (lambda x: (x.sum(), x.sum(0), x.sum(-1), x.prod(-1), x.mean(0)), [r(9, 33)]),
    "sums_of_integers": (lambda x: (x.sum(0), x.sum(), x.amin(1), (x > 3).sum()), [integers(99, 9, 33)]),
    "column_sums": (lambda x: x.sum(0), [r(1000, 130)]),
    "sums_and_casts": (sums_and_casts, [b(700, 130), b(700, 130), r(130)]),
    "batch_norm_gradients": (batch_norm_gradients, [b(40, 30, 64), b(40, 30, 64), r(64)]),
    "middle_sums": (lambda x: (x.sum(1), x.mean((0, 2)), x.relu().sum(1) / 3), [r(4, 50, 70)]),
    "any_all": (lambda x: ((x > 0).any(-1), (x > 0).all(0), (x > 9).any()), [r(9, 33)]),
    "variance": (lambda x: (*torch.var_mean(x, (0, 2, 3)), *torch.var_mean(x)), [r(4, 5, 6, 7)]),
    "casts": (lambda x: (x.bfloat16(), x.half(), x.double(), (x * 9).int(), x > 0), [r(9, 33)]),
    "masks": (
        lambda x, m: (torch.where(m, x, 0.5), x.masked_fill(m, -float("inf")), m.logical_not() & (x > 0)),
        [r(9, 33), r(9, 33) > 0],
    ),
    "triangles": (lambda x: torch.tril(x) + torch.ones_like(x).triu(1), [r(17, 17)]),
    "transposes": (lambda x, y: (x.t() + y, x.t().contiguous()), [r(9, 33), r(33, 9)]),
    "permuted": (lambda x: x.view(2, 3, 4, 5).permute(0, 2, 1, 3).reshape(2, 4, 15) + 1, [r(2, 60)]),
    "embedding": (lambda w, i: F.embedding(i, w) * 2, [r(50, 16), integers(50, 3, 7)]),
    "embedding_gradient": (
        lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 50, -1, False),
        [r(21, 16), integers(50, 21)],
    ),
    "gather": (lambda x, i: x.gather(1, i), [r(5, 16), integers(16, 5, 3)]),
    "negative_indices": (lambda x, i: x[i - 5] + 1, [r(5, 16), integers(5, 4)]),
    "rotated": (lambda x: (torch.rot90(x.repeat(3, 3), 1, (0, 1)), x.roll(4, 1).flip(1).repeat(2, 1)), [r(3, 9)]),
    "cat": (lambda x, y: torch.cat([x, y], 1) * 2, [r(5, 3), r(5, 4)]),
    "masked_of_the_same_kernel": (
        lambda x: torch.cat([x.softmax(-1)[:, :1], x.softmax(-1)[:, 1:]], 1) * x.softmax(-1),
        [r(5, 4)],
    ),
    "repeated_slices": (lambda y: torch.cat([y[:1] * 2, y[1:] * 2]) * (y * 2), [r(5)]),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 0)) * 2, [r(5, 3)]),
    "pad_circular": (lambda x: F.pad(x, (1, 1), mode="circular"), [r(2, 2, 4).double()]),
    "functions": (
        lambda x: (x.tanh(), x.sigmoid(), x.erf(), x.abs().sqrt(), x.sin(), x.floor(), x.round(), x.sign(), x.exp()),
        [r(9, 33)],
    ),
    "double": (
        lambda x, y: (x.tanh(), x.sigmoid(), x / 3 + 0.1, F.gelu(x), x // y),
        [r(9, 33).double(), r(9, 33).double()],
    ),
    "division": (lambda x, y: (torch.remainder(x, y), x / y, torch.floor_divide(x, y)), [r(9, 33), r(9, 33)]),
    "integers": (
        lambda x, y: (x // y, x % y, x & y, x | y, ~x, x << 1, x.abs(), -x, x * y, torch.maximum(x, y)),
        [integers(99, 9, 33) - 50, integers(8, 9, 33) + 1],
    ),
    "moved_halves": (
        lambda x, y, m: (
            torch.where(m, x, 0.5),
            x.masked_fill(m, -0.0),
            F.pad(x, (1, 2)),
            torch.full_like(x, float("nan")),
            torch.cat([x, x], 1),
            torch.where(m, x, y.t()),
            x.masked_fill(m, float("-inf")) * 2,
            torch.where(x < 0, 1.0, -0.0),
            torch.zeros_like(x),
        ),
        [b(9, 33), b(33, 9), r(9, 33) > 0],
    ),
    "bits_of_halves": (
        lambda x, n: (
            x.view(torch.int16) + 1,
            (x * 2).view(torch.int16),
            (n * 3).view(torch.bfloat16) * 2,
            n.view(torch.bfloat16).flip(0),
        ),
        [b(9, 33), integers(9999, 9, 33).to(torch.int16)],
    ),
    "booleans": (lambda x: (x & True, x.float() * 2, torch.ones_like(x), x.int() + 1), [r(9, 33) > 0]),
    "scalar": (lambda x, s: x * s + 1, [r(9), torch.tensor(3.0)]),
    "empty": (lambda x: x + 1, [r(0, 5)]),
    "folds_of_nothing": (
        lambda x: (
            x[:0].sum(),
            x[:0].sum(0),
            x[:, :0].prod(1),
            x[:0].any(),
            x[:, :0].sum(0),
            x[:0].mean(),
            x[:0, :0].sum(1),
        ),
        [r(5, 3)],
    ),
    "one_element": (lambda x: x + 1, [r(1)]),
}


def compiled(name: str, function: Callable[..., Any], arguments: list[Tensor]) -> Plan:
    return plan_of(schedule(lowered(function, arguments, name), H200))


def plan_of(made: Schedule) -> Plan:
    made = dataclasses.replace(made, target=H200)
    return make_plan(made, None, codegen.generate(made))


def check(name: str) -> None:
    """Values equal eager's, and only kernels ran."""
    function, arguments = CASES[name]
    plan = compiled(name, function, arguments)
    operators = [s for s in plan.steps if type(s).__name__ == "Aten"]
    assert not operators, f"{operators} were not compiled"
    with torch.no_grad():
        expected = pytree.tree_leaves(function(*arguments))
    for got, want in zip(PythonPlan(plan)(*arguments), expected, strict=True):
        assert_same(got, want, tolerance=TOLERANCE.get(want.dtype, 0.0), history=False)


def out_of_range() -> None:
    """A bad index accesses no memory outside (it is clamped), and the kernel asserts on the device that the index is
    good."""
    plan = compiled("bad_index", lambda w, i: F.embedding(i, w) * 2, [r(50, 16), integers(50, 3)])
    assert "tl.device_assert" in plan.module
    assert "@triton.jit(debug=True)" in plan.module
    w = r(50, 16)
    got = PythonPlan(plan)(w, torch.tensor([1, 5000000, -3]))[0]  # the interpreter runs no device assertions
    torch.testing.assert_close(got, w[[1, 49, 0]] * 2)


def by_zero() -> None:
    """Integer division by zero as on a GPU, in numbers of the dtype: LLVM leaves the result undefined."""

    def divisions(a: Tensor, b: Tensor) -> Any:
        return torch.div(a, b, rounding_mode="trunc"), torch.fmod(a, b), a // b, a % b

    known = [(torch.uint8, 255), (torch.int32, -1)]
    if triton.knobs.runtime.interpret and triton.__version__ < "3.7":  # its interpreter has no `~` of unsigned integers
        known = known[1:]
    for dtype, ones in known:
        a, b = torch.tensor([5, 100, 7], dtype=dtype), torch.tensor([0, 7, 0], dtype=dtype)
        plan = compiled("by_zero", divisions, [a, b])
        whole, rest = torch.tensor([ones, 14, ones], dtype=dtype), torch.tensor([5, 2, 7], dtype=dtype)
        for got, want in zip(PythonPlan(plan)(a, b), (whole, rest, whole, rest), strict=True):
            torch.testing.assert_close(got, want)


def as_triton(gm: Any, _: Any) -> PythonPlan:
    graphs.TARGETS["cpu"] = lambda made, name: plan_of(made)
    _, plan = graphs.planned(gm, "sizes")
    check_plan(plan)
    assert all(type(s).__name__ != "Aten" for s in plan.steps), "not all was compiled"
    return PythonPlan(plan)


# name -> function, its arguments' shapes (a string is a symbol's), values of the symbols: first the compile's, then
# others.
SYMBOLIC: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]], list[tuple[int, ...]]]] = {
    "rows": (lambda x, y: F.silu(x) * y + 1, [("s0", 65), ("s0", 65)], [(33,), (2,), (400,)]),
    "softmax": (lambda x: torch.softmax(x, -1), [("s0", 65)], [(33,), (2,), (100,)]),
    "softmax_inner": (lambda x: torch.softmax(x, -1), [("s0", "s1")], [(9, 65), (3, 400), (60, 3)]),
    "softmax_columns": (lambda x: torch.softmax(x, 0), [("s0", "s1")], [(9, 65), (40, 5), (3, 80)]),
    "layer_norm": (lambda x, w, c: F.layer_norm(x, (65,), w, c), [("s0", 65), (65,), (65,)], [(33,), (2,), (70,)]),
    "gradients": (layer_norm_backward, [("s0", 65), (65,), (65,), ("s0", 65)], [(33,), (2,), (100,)]),
    "sums": (
        lambda x: (x.sum(), x.sum(0), x.sum(-1), x.amax(0), x.argmax(-1)),
        [("s0", "s1")],
        [(9, 33), (2, 90), (100, 3)],
    ),
    "argmax": (lambda x: (x.argmax(), x.argmin(0)), [("s0", "s1")], [(9, 33), (2, 90), (60, 3)]),
    "variance": (lambda x: (torch.var(x, (0, 2)), x.mean((0, 2))), [("s0", 3, "s1")], [(9, 33), (2, 70), (50, 3)]),
    "slices": (lambda x: (x[2:] * 2, x[:, 1:-1].sum(-1), x[2:].sum()), [("s0", "s1")], [(9, 33), (20, 70), (60, 5)]),
    "joined": (lambda x, y: torch.cat([x, y * 2], 1), [("s0", "s1"), ("s0", 4)], [(9, 33), (2, 70), (60, 3)]),
    "views": (lambda x: x.transpose(1, 2).reshape(x.shape[0], -1) + x.flatten(1), [("s0", "s1", 6)], [(9, 5), (2, 70)]),
    "numbers": (lambda x: x * x.shape[0] + torch.arange(x.shape[1]), [("s0", "s1")], [(9, 33), (2, 70), (60, 3)]),
    "triangles": (lambda x: torch.tril(x).softmax(-1), [("s0", "s0")], [(9,), (70,), (2,)]),
}


def check_sizes(name: str) -> None:
    """Compiled at one size, values equal eager's at others."""
    function, shapes, values = SYMBOLIC[name]
    dims = {(k, d): n for k, shape in enumerate(shapes) for d, n in enumerate(shape) if isinstance(n, str)}
    names = sorted(set(dims.values()))

    def arguments(now: tuple[int, ...]) -> list[Tensor]:
        sizes = dict(zip(names, now, strict=True))
        return [r(*(sizes.get(n, n) for n in shape)) for shape in shapes]

    run = symbolic_sizes.compiled(function, arguments(values[0]), dims, as_triton)
    if not triton.knobs.runtime.interpret:
        for step in (s for s in run.run.plan.steps if isinstance(s, Launch)):
            made = triton_build.binary_of(triton_build.compiled(run.run.plan.module, step, 90))
            assert made.parameters == ("u64",) * (len(step.arguments) + 2)
        return
    called = 0
    for now in values:
        given = arguments(now)
        if run.fits(*given):
            called += 1
            with torch.no_grad():
                got, want = run(*given), pytree.tree_leaves(function(*given))
            assert_same(pytree.tree_leaves(got), want, tolerance=1e-4, history=False)
    assert called > 1, "made for one size"


def assertions() -> None:
    """A kernel with an index assertion must not assert anything about numbers that wrap around: in eager they do."""
    rows = torch.arange(256, dtype=torch.uint8).reshape(64, 4)
    for _, binary in binaries("wraps", lambda w, i: w[i] * w[i] + w[i], [rows, integers(64, 3)]):
        assert "index out of range" in binary.asm["ttir"]
        assert "overflow" not in binary.asm["ttir"], binary.asm["ttir"]


def resources(name: str) -> list[tuple[str, int, int]]:
    """Compiles for sm_90; (kernel, registers, bytes of stack) of each."""
    import triton

    found = []
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    for kernel, binary in binaries(name, *CASES[name]):
        read = triton_build.binary_of(binary)
        assert "s16x2" not in binary.asm["ptx"], "a sum of pairs"
        if name == "extreme_of_a_difference":
            assert "fma" not in binary.asm["ptx"], "a difference is contracted"
        assert (read.entry, read.threads) == (kernel, 32 * binary.metadata.num_warps)
        assert len(read.parameters) == binary.src.fn.arg_names.index("XBLOCK") + 2, read
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(binary.asm["cubin"])
            file.flush()
            shown = subprocess.run(
                [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
            )
        registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", shown.stdout).groups()  # type: ignore[union-attr]
        found.append((kernel, int(registers), int(stack)))
    return found


def binaries(name: str, function: Callable[..., Any], arguments: list[Tensor]) -> list[tuple[str, Any]]:
    """(kernel, Triton's binary of it for sm_90) of each."""
    plan = compiled(name, function, arguments)
    launches = [s for s in plan.steps if isinstance(s, Launch)]
    return [(s.kernel, triton_build.compiled(plan.module, s, 90)) for s in launches]


def main(mode: str) -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    bad = 0
    cases = SYMBOLIC if mode == "sizes" else [n for n in CASES if mode != "compile" or n not in CRASHES]
    for name in cases if len(sys.argv) < 3 else sys.argv[2:]:
        try:
            if mode == "sizes":
                check_sizes(name)
            elif mode == "compile":
                for kernel, registers, stack in resources(name):
                    assert registers > 0, f"{kernel}: no registers"
                    assert stack <= SPILL, f"{kernel} spills {stack} bytes"
            else:
                check(name)
            print("ok", name)
        except Exception as error:
            bad += 1
            print("FAILED", name, type(error).__name__, error)
    for more in {"compile": (assertions,), "check": (out_of_range, by_zero), "sizes": ()}[mode]:
        more()
        print("ok", more.__name__)
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "check"))
