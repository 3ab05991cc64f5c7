"""One program at every seam of the compiler, on the same inputs; the first seam that differs from eager is named.

    from seams import first_difference  # with tests/ on sys.path, as pytest has it
    first_difference(fn, args)          # None, or a Difference: .seam, .what, .details

In: a function of tensors (and constants), and its arguments. They are copied for each run; gradients of tensors
that require grad are compared. Each seam is a backend of `pycompiler.compile`, which runs forward and backward; in
order:

    captured   the captured fx graph, as it is
    aten       functional ATen graphs, forward and backward
    program    the loop IR (`ir/interpret.py`), verified
    schedule   the nests (`ir/interpret_schedule.py`), each buffer in memory of its own, rules checked
    memory     the same, with memory shared and freed by the memory plan
    plan       C++ kernels, called by the plan's oracle (`runtime/plan_python.py`), rules checked
    native     the same plan in the engine
    triton     Triton kernels under Triton's interpreter (only if TRITON_INTERPRET=1 was set before Triton's import)

Compared: values, dtypes, shapes, strides, gradients, the arguments after the call, shared memory of outputs, the
exception's type. By command, for a Python file that defines `fn` and `args` (a list, or a function that makes it):

    python -m tests.seams program.py [--triton]
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

import pycompiler
from pycompiler import _native, config, lowering, scheduling
from pycompiler.codegen import cpp
from pycompiler.ir.interpret import interpret
from pycompiler.ir.interpret_schedule import interpret_schedule
from pycompiler.ir.kernel import Schedule
from pycompiler.ir.target import H200, of_program
from pycompiler.ir.verify import verify
from pycompiler.pipeline import own_backends
from pycompiler.runtime import build
from pycompiler.runtime.plan_builder import make_plan
from pycompiler.runtime.plan_python import PythonPlan
from pycompiler.runtime.rules import check_plan
from pycompiler.scheduling.rules import check_schedule

Runner = Callable[..., Sequence[Any]]

# dtype -> (relative, absolute) tolerance
TOLERANCE = {
    torch.float64: (1e-9, 1e-9), torch.complex128: (1e-9, 1e-9), torch.float32: (2e-4, 2e-5),
    torch.complex64: (2e-4, 2e-5), torch.bfloat16: (4e-2, 4e-2), torch.float16: (1e-2, 1e-2),
}  # fmt: skip


# ---- backends of the seams -----------------------------------------------------------------------------------------


def scheduled(gm: fx.GraphModule) -> Schedule:
    program = lowering.lower(gm)
    verify(program)
    schedule = scheduling.schedule(program, of_program(program))
    check_schedule(schedule)
    return schedule


def unlisted(run: Callable[[Sequence[Any]], Sequence[Any]]) -> Runner:
    """The callable that runtime wrappers expect: of the inputs, or of one list of them, which it empties."""

    def call(*inputs: Any) -> Sequence[Any]:
        if len(inputs) == 1 and type(inputs[0]) is list:
            given = inputs[0]
            inputs = tuple(given)
            given.clear()
        return tuple(plain(o) if isinstance(o, Tensor) and not any(o is i for i in inputs) else o for o in run(inputs))

    return call


def plain(t: Tensor) -> Tensor:
    """The same memory as a tensor that is no view for autograd, like a kernel's result."""
    return torch.empty(0, dtype=t.dtype).set_(t.untyped_storage(), t.storage_offset(), t.size(), t.stride())


def as_aten(gm: fx.GraphModule, _: Any) -> Runner:
    return gm.forward


def as_program(gm: fx.GraphModule, _: Any) -> Runner:
    program = lowering.lower(gm)
    verify(program)
    return unlisted(lambda inputs: interpret(program, inputs))


def as_schedule(gm: fx.GraphModule, _: Any) -> Runner:
    schedule = scheduled(gm)
    return unlisted(lambda inputs: interpret_schedule(schedule, inputs))


def as_memory(gm: fx.GraphModule, _: Any) -> Runner:
    schedule = scheduled(gm)
    return unlisted(lambda inputs: interpret_schedule(schedule, inputs, share=True))


def plan_of(gm: fx.GraphModule) -> Any:
    schedule = scheduled(gm)
    source = cpp.generate(schedule)
    library = build.build(source.text, source.symbols) if source.symbols else None
    plan = make_plan(schedule, library)
    check_plan(plan)
    return plan


def as_plan(gm: fx.GraphModule, _: Any) -> Runner:
    return PythonPlan(plan_of(gm))


def as_native(gm: fx.GraphModule, _: Any) -> Runner:
    return _native.Plan(plan_of(gm))  # type: ignore[no-any-return]


def as_triton(gm: fx.GraphModule, _: Any) -> Runner:
    from pycompiler.codegen import triton

    schedule = replace(scheduled(gm), target=H200)
    plan = make_plan(schedule, None, triton.generate(schedule))
    check_plan(plan)
    return PythonPlan(plan)


SEAMS: dict[str, Callable[[fx.GraphModule, Any], Runner] | None] = {
    "captured": None, "aten": as_aten, "program": as_program, "schedule": as_schedule, "memory": as_memory,
    "plan": as_plan, "native": as_native, "triton": as_triton,
}  # fmt: skip


def interprets_triton() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def backend_of(seam: str) -> Any:
    """The backend that stops at a seam."""
    compiler = SEAMS[seam]
    if compiler is None:
        return "eager"
    return lambda gm, inputs, **_: own_backends.joint(gm, inputs, compiler)


# ---- one run ------------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """The outcome of a call. `tensors`: name -> tensor (outputs, gradients, arguments afterwards); `rest`: other
    results."""

    tensors: dict[str, Tensor | None] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None
    shared: list[tuple[str, str]] = field(default_factory=list)


def copied(args: Sequence[Any]) -> list[Any]:
    """Arguments of the same layout; shared memory stays shared."""
    memory: dict[int, Any] = {}

    def one(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        storage = t.untyped_storage()
        if storage.data_ptr() not in memory or not storage.nbytes():
            memory[storage.data_ptr()] = storage.clone()
        new = torch.empty(0, dtype=t.dtype).set_(memory[storage.data_ptr()], t.storage_offset(), t.size(), t.stride())
        return new.requires_grad_(t.requires_grad)

    return [pytree.tree_map(one, a) for a in args]


def run(fn: Callable[..., Any], args: Sequence[Any], seed: int = 0) -> Outcome:
    """Run forward, and backward from outputs that require grad, with weights that distinguish the elements."""
    given, found = copied(args), Outcome()
    leaves = [t for t in pytree.tree_leaves(given) if isinstance(t, Tensor)]
    torch.manual_seed(seed)
    try:
        results = pytree.tree_leaves(fn(*given))
        outputs = [t for t in results if isinstance(t, Tensor)]
        wanted = [t for t in outputs if t.requires_grad and (t.is_floating_point() or t.is_complex())]
        if wanted:
            weights = [torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).reshape(t.shape) for t in wanted]
            starts = [t for t in leaves if t.requires_grad and t.is_leaf]
            gradients = torch.autograd.grad(wanted, starts, weights, allow_unused=True) if starts else []
            found.tensors |= {f"gradient {k}": g for k, g in enumerate(gradients)}
    except Exception as error:
        found.error = error
        return found
    for k, value in enumerate(results):
        if isinstance(value, Tensor):
            found.tensors[f"output {k}"] = value.detach()
            found.rest[f"output {k} requires grad"] = value.requires_grad
        else:
            found.rest[f"output {k}"] = value
    found.tensors |= {f"argument {k}": t.detach() for k, t in enumerate(leaves)}
    found.rest |= {f"version of argument {k}": t._version for k, t in enumerate(leaves)}
    where: dict[int, str] = {}
    for name, t in found.tensors.items():
        if t is not None and not name.startswith("gradient") and t.untyped_storage().nbytes():
            first = where.setdefault(t.untyped_storage().data_ptr(), name)
            found.shared += [(first, name)] if first != name else []
    return found


# ---- comparison ---------------------------------------------------------------------------------------------------------


@dataclass
class Difference:
    """`seam`: the first that differs; `what`: an output, a gradient, an argument, "error"; `details`: a description."""

    seam: str
    what: str
    details: str
    error: BaseException | None = None

    def __str__(self) -> str:
        return f"{self.seam}: {self.what}: {self.details}"


def compare(seam: str, got: Outcome, want: Outcome, strides: bool = True) -> Difference | None:
    if got.error is not None or want.error is not None:
        if type(got.error) is type(want.error):
            return None
        return Difference(seam, "error", f"{got.error!r}, eager {want.error!r}", got.error)
    for name, expected in want.tensors.items():
        why = differs(got.tensors.get(name), expected, strides and not name.startswith("gradient"))
        if why:
            return Difference(seam, name, why)
    for name, value in want.rest.items():
        if got.rest.get(name) != value and not name.startswith("version"):
            return Difference(seam, name, f"{got.rest.get(name)!r}, eager {value!r}")
        if name.startswith("version") and bool(got.rest.get(name)) != bool(value):
            return Difference(seam, name, f"{got.rest.get(name)!r}, eager {value!r}")
    if got.shared != want.shared:
        return Difference(seam, "shared memory", f"{got.shared}, eager {want.shared}")
    return None


def differs(got: Tensor | None, want: Tensor | None, strides: bool) -> str | None:
    """The reason why two tensors differ, or None."""
    if got is None or want is None:
        return None if got is want else f"{got}, eager {want}"
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype}{list(got.shape)}, eager {want.dtype}{list(want.shape)}"
    if strides and got.stride() != want.stride():
        return f"strides {got.stride()}, eager {want.stride()}"
    if got.dtype not in TOLERANCE:
        return None if torch.equal(got, want) else f"{got}, eager {want}"
    rtol, atol = TOLERANCE[got.dtype]
    near = torch.isclose(got, want, rtol=rtol, atol=atol * scale(want), equal_nan=True)
    if bool(near.all()):
        return None
    at = tuple(int(i) for i in (~near).nonzero()[0])
    return (
        f"{int((~near).sum())} of {got.numel()} elements, at {list(at)} {got[at].item()!r}, eager {want[at].item()!r}"
    )


def scale(t: Tensor) -> float:
    """The magnitude of a tensor's numbers, at least 1: a sum of large numbers may cancel."""
    whole = t[torch.isfinite(t)]
    return max(1.0, float(whole.abs().max())) if whole.numel() else 1.0


def first_difference(
    fn: Callable[..., Any], args: Sequence[Any], *, seams: Sequence[str] | None = None, strides: bool = True
) -> Difference | None:
    """None if every seam computes eager's result. `seams`: the seams to try, in order (default: all that can run)."""
    want = run(fn, args)
    for seam in seams or [s for s in SEAMS if s != "triton" or interprets_triton()]:
        pycompiler.reset()
        with config.patch(raise_internal_errors=True):
            got = run(pycompiler.compile(fn, backend=backend_of(seam)), args)
        found = compare(seam, got, want, strides)
        if found is not None:
            return found
    return None
