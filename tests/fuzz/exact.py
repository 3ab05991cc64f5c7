"""The fuzzer of exact programs: `python -m tests.fuzz.exact --count 50000 --seed 1 --jobs 2` (from the repository's
root).

A program applies IEEE operators (`+ - * / sqrt`, comparisons, selections, roundings, casts, extremes, indices) to
floats of one dtype, with special values among them. Exact operators consume the results. Half of the programs run on
two threads. Compiled values must have eager's bits; gradients must be NaN and infinite exactly where eager's are.
`--twins` compares each compiled program with itself instead: under other settings (`SETTINGS`) every bit must be the same, also in elementary functions,
sums and norms. With `--rewritten` the same holds after rewrites that are exact (`rewritings.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from . import rewritings

ROOT = Path(__file__).resolve().parents[2]
TOGETHER = 6  # programs per compile
CHUNK = 600  # programs per process; loaded libraries stay in memory
PATIENCE = 240.0  # seconds without an output line
ORDERS = 12  # orders of statements that may explain a gradient
NAMES = re.compile(r"\b(?:p\d+_)?[xt]\d+\b")
EXCUSED_SHARE = 0.002  # of the programs; a larger share fails the run
TEAM = {"parallel_work": 1}  # facts of the target: threads share every loop, however small
TILES = {
    "vector": 16, "edge": 8, "tiles": 2, "few_columns": 2, "many_columns": 64, "scratch": 4096, "small_nest": 64,
    "bundle": 1024, "body": 40, "stages": 8, "operations": 100,
}  # fmt: skip

DTYPES = {"float32": 6, "bfloat16": 3, "float16": 2, "float64": 2}  # weights
SPECIAL = "0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -1.5, inf, -inf, nan, {tiny}, -{tiny}, {denormal}, 41.0, 1e4, 3.0, {largest}"

# Arguments of remainders. Quirk of ATen: for denormal divisors and large quotients its vector code gives NaN, its
# scalar code does not; CUDA's library treats denormal numbers as zeros.
SMALL = "({a} * 8).round().clamp(-72, 72) / 8, {b}.abs().clamp(0.3, 9)"
# Templates of floats over {a}, {b}, {c}; {m}: a boolean; {i}: an integer. The weight follows. Of two zeros with
# different signs eager's vector and scalar code choose different ones: `+ 0.0` makes the zeros equal.
FLOATS: tuple[tuple[str, int], ...] = (
    ("-{a}", 1), ("{a}.abs()", 2), ("root({a}.abs())", 2), ("root({a})", 1), ("{a}.square()", 2),
    ("{a}.reciprocal()", 1), ("{a}.floor()", 1), ("{a}.ceil()", 1), ("{a}.round()", 1), ("{a}.trunc()", 1),
    ("{a}.sign()", 1), ("{a}.relu()", 2), ("{a} ** 3", 1), ("{a} ** 2", 1), ("{a}.clamp(-1, 2)", 1),
    ("{a}.clamp_min(0.3)", 1), ("{a} * 0.1", 2), ("{a} / 3", 2), ("{a} + 1e-3", 1), ("1 - {a}", 1), ("1 / {a}", 1),
    ("{a} * 3 - {b} * 0.7", 1), ("{a} + {b}", 5), ("{a} - {b}", 5), ("{a} * {b}", 6), ("{a} / {b}", 4),
    ("{a} * {b} + {c}", 4), ("{a} * {b} - {c} * {a}", 3), ("{c} - {a} * {b}", 2), ("torch.maximum({a} + 0.0, {b} + 0.0)", 1),
    ("torch.minimum({a} + 0.0, {b} + 0.0)", 1), ("torch.fmax({a} + 0.0, {b} + 0.0)", 1), ("torch.copysign({a}, {b}.nan_to_num())", 1),
    (f"torch.remainder({SMALL})", 1), (f"torch.fmod({SMALL})", 1), (f"torch.div({SMALL}, rounding_mode='floor')", 1),
    ("torch.div({a}, {b}, rounding_mode='trunc')", 1), ("torch.add({a}.float(), {a}.float() * 3, alpha=0.3)", 1),
    ("torch.sub({a}.float(), {a}.float() * 3, alpha=0.7)", 1), ("torch.rsub({a}.float(), {a}.float() * 7, alpha=0.3)", 1), ("{a} ** -2", 1), ("torch.lerp({a}, {b}, 0.8)", 1), ("torch.lerp({a}, {b}, {c}.clamp(0.1, 0.9))", 1),
    ("torch.nn.functional.huber_loss({a}, {b}.expand_as({a}).to({a}.dtype), reduction='none')", 1), ("torch.nn.functional.hardswish({a}.nan_to_num())", 1),
    ("torch.nn.functional.smooth_l1_loss({a}, {b}.expand_as({a}).to({a}.dtype), reduction='none')", 1), ("torch.nn.functional.softsign({a})", 1),
    ("{a} + torch.linspace(0.1, 3.7, {a}.shape[-1], dtype={a}.dtype)", 1), ("{a} + torch.arange({a}.shape[-1]) * 0.3", 1), ("torch.addcmul({c}, {a}, {b})", 1),
    ("torch.addcmul({c}, {a}, {b}, value=0.5)", 1), ("torch.addcdiv({c}, {a}, {b}, value=0.5)", 1),
    ("torch.lerp({a}, {b}, 0.3)", 1), ("torch.where({m}, {a}, {b})", 3), ("{a}.masked_fill({m}, 0.25)", 1),
    ("{a}.masked_fill({m}, float('nan'))", 1), ("{m}.to({a}.dtype)", 1), ("{i}.to({a}.dtype)", 1), ("{a} * {m}", 1),
    ("({a} + 0.0).amax(-1, keepdim=True)", 2), ("({a} + 0.0).amin(0, keepdim=True)", 1), ("({a} + 0.0).amax(0)", 1), ("({a} + 0.0).amax()", 1),
    ("{a} / ({a} + 0.0).amax(-1, keepdim=True)", 2), ("{a} - ({a} + 0.0).amax(-1, keepdim=True)", 1), ("({a} + 0.0).max(-1).values", 1),
    ("{a}.nan_to_num(9.0, 9.0, -9.0).sort(-1).values", 1), ("{a}.t()", 1), ("{a}.flip(0)", 1), ("{a}[..., ::2]", 1), ("{a}[:1]", 1),
    ("{a}.unsqueeze(-1)", 1), ("torch.cat([{a}, {a}], -1)", 1), ("{a}.gather(-1, {i}.long().clamp(0, {a}.shape[-1] - 1))", 1),
    ("{a}.gather(-1, {m}.long())", 1), ("{a}.index_select(0, {i}.flatten().long().clamp(0, {a}.shape[0] - 1))", 1),
    ("{a}.float()", 1), ("{a}.to(torch.bfloat16)", 1), ("{a}.float().to({a}.dtype)", 1), ("torch.nn.functional.relu6({a}.nan_to_num())", 1),
    ("torch.nn.functional.leaky_relu({a}, 0.01)", 1), ("torch.nn.functional.hardtanh({a}.nan_to_num())", 1), ("{a}.nan_to_num()", 1),
    ("torch.nn.functional.threshold({a}, 0.1, 20.0)", 1), ("{a}.cummax(-1).values", 1), ("{a}.tril()", 1),
)  # fmt: skip
TRUTHS: tuple[tuple[str, int], ...] = (
    ("{a} == {b}", 3), ("{a} > {b}", 2), ("{a} <= {b}", 2), ("{a} != {b}", 1), ("{a} > 0", 1), ("{a} == 1", 1),
    ("{a} == {a}.amax(-1, keepdim=True)", 2), ("{a}.isnan()", 1), ("{a}.isinf()", 1), ("{a}.nan_to_num().signbit()", 1),
    ("~{m}", 1), ("{m} & ({a} < {b})", 1), ("{i} > 1", 1), ("{a}.bool()", 1), ("{m}.any(-1, keepdim=True)", 1),
    ("{a} * {b} == {c}", 1), ("{a} / {b} == 1", 1),
)  # fmt: skip
INTEGERS: tuple[tuple[str, int], ...] = (
    ("{a}.int()", 3), ("{a}.long()", 2), ("({a} / 41).int()", 1), ("({a} * 8).floor().long()", 1), ("{m}.sum(-1)", 1),
    ("{m}.cumsum(-1)", 1), ("{a}.argmax(-1)", 2), ("{a}.argmin(0)", 1), ("{a}.argsort(-1, stable=True)", 1),
    ("{a}.max(-1).indices", 1), ("{i} * 3 + 1", 1), ("{i} // 2", 1), ("{i} % 5", 1), ("{a}.floor().int() & 7", 1),
    ("({a} * 4).round().long() << 1", 1),
)  # fmt: skip
# Added for twins, whose bits are compared with their own.
INEXACT: tuple[tuple[str, int], ...] = (
    ("{a}.exp()", 3), ("{a}.abs().log()", 2), ("{a}.sin()", 3), ("{a}.cos()", 2), ("{a}.tanh()", 2), ("{a}.sigmoid()", 2),
    ("torch.nn.functional.gelu({a})", 3), ("torch.nn.functional.silu({a})", 2), ("{a}.erf()", 1), ("{a}.expm1()", 1),
    ("{a}.abs().log1p()", 1), ("{a}.abs() ** 0.3", 1), ("{a}.softmax(-1)", 4), ("{a}.log_softmax(-1)", 2),
    ("{a}.sum(-1, keepdim=True)", 3), ("{a}.sum(0)", 3), ("{a}.mean(-1, keepdim=True)", 2), ("{a}.sum()", 2),
    ("{a}.float().var(-1, keepdim=True)", 2), ("torch.nn.functional.layer_norm({a}, {a}.shape[-1:])", 3),
    ("torch.nn.functional.normalize({a}, dim=-1)", 2), ("{a}.logsumexp(-1)", 1), ("torch.nn.functional.softplus({a})", 1),
    ("{a}.abs().rsqrt()", 1), ("{a}.prod(-1)", 1),
)  # fmt: skip


class Root(torch.autograd.Function):
    """The IEEE square root; ATen's on the CPU is MKL's, whose last bit may differ."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        with np.errstate(invalid="ignore"):
            y = torch.from_numpy(np.sqrt(np.atleast_1d(wide.detach().numpy()))).reshape(x.shape).to(x.dtype)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g / (2 * ctx.saved_tensors[0])


Make = Callable[[], list[torch.Tensor]]
Function = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Program:
    """`inputs`: lines that create the arguments; `body`: statements of `fn`; `results`: the names that it returns."""

    seed: int
    dtype: str
    inputs: tuple[str, ...]
    body: tuple[str, ...]
    results: tuple[str, ...]
    training: bool

    def text(self) -> str:
        given = ", ".join(line.split(" = ")[0] for line in self.inputs)
        return "\n".join([
            "def make():", *(f"    {line}" for line in self.inputs), f"    return [{given}]", "", "",
            f"def fn({given}):", *(f"    {line}" for line in self.body), f"    return ({', '.join(self.results)},)", ""])  # fmt: skip

    def load(self, device: str, eager: bool = False) -> tuple[Make, Function]:
        root = Root.apply if eager and device == "cpu" else torch.sqrt
        space: dict[str, Any] = {"torch": torch, "data": lambda *a, **k: data(*a, **k).to(device), "root": root}
        exec(compile(self.text(), f"<exact {self.seed}>", "exec"), space)
        return space["make"], space["fn"]


def together(programs: Sequence[Program]) -> Program:
    """One program with the inputs, statements and results of all given ones: it pays start and compiler once."""

    def renamed(lines: Iterable[str], k: int) -> tuple[str, ...]:
        return tuple(re.sub(r"\b([xt]\d+)\b", rf"p{k}_\1", line) for line in lines)

    inputs, body, results = (
        tuple(itertools.chain.from_iterable(renamed(getattr(p, part), k) for k, p in enumerate(programs)))
        for part in ("inputs", "body", "results")
    )
    return Program(programs[0].seed, "several", inputs, body, results, any(p.training for p in programs))


def data(seed: int, *shape: int, dtype: torch.dtype, special: bool = False, largest: bool = True) -> torch.Tensor:
    """Normal numbers, halves and whole numbers, with special numbers at random places.

    `largest`: include the dtype's largest number and its smallest normal one, whose inverse is nearly the largest.
    """
    g = torch.Generator().manual_seed(seed)
    t = torch.randn(shape, generator=g, dtype=torch.float64)
    t = torch.where(torch.rand(shape, generator=g) < 0.25, (t * 4).round() / 2, t).to(dtype)
    if special and t.numel():
        info = torch.finfo(dtype)
        text = SPECIAL.format(tiny=info.tiny if largest else 2.0, denormal=info.smallest_normal / 8, largest=info.max)
        values = torch.tensor(eval(f"[{text}]", {"inf": float("inf"), "nan": float("nan")}), dtype=torch.float64).to(
            dtype
        )
        chosen = torch.randint(0, len(values) - (not largest), shape, generator=g)
        t = torch.where(torch.rand(shape, generator=g) < 0.2, values[chosen], t)
    return t


def generate(seed: int, twins: bool = False) -> Program:
    """The program of a seed; each statement ran in eager when it was drawn."""
    r = random.Random(seed)
    dtype = r.choices(list(DTYPES), list(DTYPES.values()))[0]
    dtype = (
        "float32" if twins and dtype == "float64" else dtype
    )  # the last bit of a sum of doubles depends on the order
    training = r.random() < 0.4
    columns = r.choice((1, 2, 3, 7, 8, 16, 17, 31, 33, 64, 70, r.randint(1, 70), r.randint(1, 70), 300))
    rows = r.choice((1, 1, 2, 3, 5, 16, r.randint(1, 40)))
    shapes = [(rows, columns), (rows, columns), (rows, 1), (1, columns), (columns,)]
    inputs = []
    for k in range(r.randint(2, 4)):
        shape = shapes[0] if k == 0 else r.choice(shapes)
        # The order of a gradient's summands decides whether sums of nearly the largest numbers overflow: eager adds
        # them in float32, a kernel in double (`docs/arithmetic.md`).
        special = (", special=True" + ", largest=False" * training) if r.random() < 0.3 else ""
        grad = ".requires_grad_()" if training and (k == 0 or r.random() < 0.6) else ""
        inputs.append(
            f"x{k} = data({r.randrange(10**6)}, {', '.join(map(str, shape))}, dtype=torch.{dtype}{special}){grad}"
        )
    equal = r.random() < 0.2
    if equal:
        inputs.append("x9 = x0.detach().clone()" + (".requires_grad_()" if training else ""))
    draft = Program(seed, dtype, tuple(inputs), (), ("x0",), training)
    make, _ = draft.load("cpu")
    live: dict[str, torch.Tensor] = dict(zip([line.split(" = ")[0] for line in inputs], make(), strict=True))
    body: list[str] = []
    table = [*FLOATS, *FLOATS, *TRUTHS, *INTEGERS, *(INEXACT * 2 if twins else ())]
    templates, weights = [t for t, _ in table], [w for _, w in table]
    for _ in range(60):
        if len(body) >= 4 + seed % 9:
            break
        text = fill(r.choices(templates, weights)[0], live, r)
        if training:  # the largest numbers of `nan_to_num` are what `largest=False` leaves out
            text = text.replace(".nan_to_num()", ".nan_to_num(0.0, 9.0, -9.0)")
        name = f"t{len(body)}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = eval(text, {"torch": torch, "root": torch.sqrt}, live) if text else None
        except (RuntimeError, IndexError, TypeError, NotImplementedError):
            continue
        if value is None or value.numel() > 40_000 or value.numel() == 0:
            continue
        live[name] = value
        body.append(f"{name} = {text}")
    used = set(re.findall(r"\bt\d+\b", " ".join(line.split(" = ", 1)[1] for line in body)))
    made = [line.split(" = ")[0] for line in body]
    results = [n for n in made if n not in used or r.random() < 0.25] or ["x0 * 1"]
    needed = set(re.findall(r"\bx\d+\b", " ".join([*body, *results])))
    needed |= {"x0"} if "x9" in needed else set()
    kept = [line for line in inputs if line.split(" = ")[0] in needed | {"x0"}]
    return Program(seed, dtype, tuple(kept), tuple(body), tuple(results), training)


def fill(template: str, live: dict[str, torch.Tensor], r: random.Random) -> str:
    """The template filled with names of fitting values, recent ones more often; empty if none fits."""
    kinds = {"a": "f", "b": "f", "c": "f", "m": "b", "i": "i"}
    found: dict[str, str] = {}
    for slot in dict.fromkeys(re.findall(r"\{(\w)\}", template)):
        fitting = [n for n, t in live.items() if kind(t) == kinds[slot]]
        if not fitting:
            return ""
        found[slot] = r.choices(fitting, [1 + k for k in range(len(fitting))])[0]
    return template.format(**found)


def kind(t: torch.Tensor) -> str:
    return "f" if t.is_floating_point() else "b" if t.dtype == torch.bool else "i"


# ---- one program -----------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    values: list[torch.Tensor]
    gradients: list[torch.Tensor | None]


def run(fn: Callable[..., tuple[torch.Tensor, ...]], make: Callable[[], list[torch.Tensor]], training: bool) -> Seen:
    args = make()
    values = fn(*args)
    if training:
        wanted = [v for v in values if v.requires_grad]
        if wanted:
            torch.autograd.backward(wanted, [torch.ones_like(v) for v in wanted])
    return Seen([v.detach().cpu() for v in values], [None if a.grad is None else a.grad.cpu() for a in args])


BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def unequal(a: torch.Tensor, b: torch.Tensor) -> str:
    """The places where two tensors have different bits; any NaN equals any other."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype} {tuple(a.shape)} for {b.dtype} {tuple(b.shape)}"
    bits = BITS[a.element_size()]
    differ = a.contiguous().view(bits) != b.contiguous().view(bits)
    if a.is_floating_point():
        differ &= ~(a.isnan() & b.isnan())
    if not differ.any():
        return ""
    at = tuple(differ.nonzero()[0].tolist())
    return f"{int(differ.sum())} of {differ.numel()}, at {list(at)} {a[at].item()!r} for {b[at].item()!r}"


def pattern(a: torch.Tensor | None, b: torch.Tensor | None) -> str:
    """The places where one gradient is NaN, infinite or missing, and the other is not."""
    if a is None or b is None:
        return "" if a is b else f"{'none' if a is None else 'one'} where there is {'none' if b is None else 'one'}"
    differ = unlike(a, b)
    if not differ.any():
        return ""
    at = tuple(differ.nonzero()[0].tolist())
    return f"{int(differ.sum())} of {differ.numel()}, at {list(at)} {a[at].item()!r} for {b[at].item()!r}"


def difference(got: Seen, want: Seen, results: tuple[str, ...], bits_of_gradients: bool = False) -> str:
    for name, a, b in zip(results, got.values, want.values, strict=True):
        if found := unequal(a, b):
            return f"{name}: {found}"
    for k, (a, b) in enumerate(zip(got.gradients, want.gradients, strict=True)):
        found = unequal(a, b) if bits_of_gradients and a is not None and b is not None else pattern(a, b)
        if found:
            return f"gradient {k}: {found}"
    return ""


def compare(program: Program, device: str = "cpu") -> str:
    """The difference between a compiled program and eager; empty if there is none."""
    import pycompiler

    make, fn = program.load(device)
    compiled = pycompiler.compile(fn)
    try:
        want = run(program.load(device, eager=True)[1], make, program.training)
    except (RuntimeError, NotImplementedError):
        return raises(lambda: run(compiled, make, program.training))
    for _ in range(2):
        got = run(compiled, make, program.training)
        if found := difference(got, want, program.results):
            if found.startswith("gradient") and is_order_of_summands(program, device, got, want):
                return EXCUSED
            return found
    counted = pycompiler.counters(compiled)
    if counted["compiles"] < 1 or counted["hits"] < 1:
        return f"nothing was compiled and run: {counted}"
    return ""


EXCUSED = "excused: the order of a gradient's summands"


def is_order_of_summands(program: Program, device: str, got: Seen, want: Seen) -> bool:
    """Whether the order of a gradient's summands explains a difference.

    It does if at each place where the compiled gradient differs from eager's (NaN, infinite) eager's own gradient also
    changes: with the statements in another order to the compiled one, or as a sum of the gradients of single results.
    """
    others = [run(p.load(device, eager=True)[1], p.load(device)[0], True).gradients for p in other_orders(program)]
    for k, (ours, eager, apart) in enumerate(
        zip(got.gradients, want.gradients, gradients_apart(program, device), strict=True)
    ):
        if ours is None or eager is None or apart is None:
            if not (ours is eager is apart):
                return False
            continue
        unexplained = unlike(ours, eager) & ~unlike(apart, eager)
        for gradients in others:
            if (other := gradients[k]) is not None:
                unexplained &= unlike(ours, other)
        if unexplained.any():
            return False
    return True


def unlike(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The places where one of two tensors is NaN or infinite, and the other is not."""
    return (a.isnan() != b.isnan()) | (a.isinf() != b.isinf())


def gradients_apart(program: Program, device: str) -> list[torch.Tensor | None]:
    """For each argument the sum of eager's gradients of each single result."""
    make, fn = program.load(device, eager=True)
    args = make()
    values = [v for v in fn(*args) if v.requires_grad]
    leaves = [a for a in args if a.requires_grad]
    total: list[torch.Tensor | None] = [None] * len(leaves)
    for v in values:
        found = torch.autograd.grad(v, leaves, torch.ones_like(v), allow_unused=True, retain_graph=True)
        total = [a if b is None else b if a is None else a + b for a, b in zip(total, found, strict=True)]
    apart = dict(zip(map(id, leaves), total, strict=True))
    return [None if (t := apart.get(id(a))) is None else t.cpu() for a in args]


def other_orders(program: Program) -> Iterator[Program]:
    """The same program with its statements in other orders, in which autograd adds gradients in other orders."""
    r = random.Random(program.seed)
    for _ in range(ORDERS):
        waiting, known, body = list(program.body), {line.split(" = ")[0] for line in program.inputs}, list[str]()
        while waiting:
            ready = [line for line in waiting if set(NAMES.findall(line.split(" = ", 1)[1])) <= known]
            body.append(r.choice(ready))
            waiting.remove(body[-1])
            known.add(body[-1].split(" = ")[0])
        yield replace(program, body=tuple(body))


def raises(call: Callable[[], Any]) -> str:
    try:
        call()
    except (RuntimeError, NotImplementedError):
        return ""
    return "no error where eager raises one"


@contextlib.contextmanager
def machine(threads: int = 1, **facts: int) -> Iterator[None]:
    """The CPU has these facts of a target (`ir/target.py`) while programs are compiled, and they run on `threads` threads."""
    from pycompiler import config
    from pycompiler.ir import target

    def changed(device: torch.device, threads: int) -> target.Target:
        return replace(target.cpu(device, threads), **facts)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        # A plan of an equal graph for the other target would be shared.
        with mock.patch.dict(target.MAKERS, {"cpu": changed}), config.patch(share_regions=False):
            yield
    finally:
        torch.set_num_threads(before)


def _knobs(**knobs: Any) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    def patched() -> contextlib.AbstractContextManager[Any]:
        from pycompiler import config

        return config.patch(**knobs)

    return patched


# name -> (a context in which the program is compiled and run, options of `compile`)
SETTINGS: dict[str, tuple[Callable[[], contextlib.AbstractContextManager[Any]], dict[str, Any]]] = {
    "no fusion": (_knobs(max_fusion_size=1), {}),
    "small groups": (_knobs(max_fusion_size=3), {}),
    "two threads": (lambda: machine(2, **TEAM), {}),
    "other tiles": (lambda: machine(1, **TILES), {}),
    "dynamic": (contextlib.nullcontext, {"dynamic": True}),
    "nothing computed again": (_knobs(partition="save_all"), {}),
    "all computed again": (_knobs(activation_memory_budget=0.0), {}),
    "no shared regions": (_knobs(share_regions=False), {}),
    "background": (contextlib.nullcontext, {"background": True}),
    "from a file": (contextlib.nullcontext, {}),
}
DRAWN = 3  # settings tried per program


def twins(program: Program, device: str = "cpu", settings: Iterable[str] = ()) -> str:
    """The first of these settings, or of three drawn ones, under which a compiled program differs from itself; or empty."""
    import pycompiler

    make, fn = program.load(device)
    base = pycompiler.compile(fn)
    try:
        want = run(base, make, program.training)
    except (RuntimeError, NotImplementedError):
        return raises(lambda: run(fn, make, program.training))
    if pycompiler.counters(base)["compiles"] < 1:
        return "nothing was compiled"
    for name in settings or random.Random(program.seed).sample(list(SETTINGS), DRAWN):
        context, options = SETTINGS[name]
        with context():
            if name == "from a file":
                compiled = loaded(base, program.load(device)[1])
            else:
                compiled = pycompiler.compile(fn, **options)
            got = run(compiled, make, program.training)
            if options.get("background"):
                pycompiler.wait_for_compiles()
                got = run(compiled, make, program.training)
        if found := difference(got, want, program.results, bits_of_gradients=True):
            return f"{name}: {found}"
        counted = pycompiler.counters(compiled)
        if name in ("background", "from a file") and not counted["hits"]:
            return f"{name}: no entry was used: {counted}"
    return ""


def loaded(compiled: Any, fn: Function) -> Any:
    """An equal function that loads the entries of `compiled` from an artefact."""
    import pycompiler

    with tempfile.TemporaryDirectory(prefix="pycompiler-exact-") as folder:
        path = Path(folder) / "program.pyc1"
        pycompiler.save(compiled, path)
        return pycompiler.load(path, fn)


def rewritten(program: Program, device: str = "cpu") -> str:
    """The difference between a compiled program and its rewritten form (`rewritings.py`); empty if there is none."""
    import pycompiler

    make, fn = program.load(device)
    try:
        want = run(pycompiler.compile(fn), make, program.training)
    except (RuntimeError, NotImplementedError):
        return raises(lambda: run(fn, make, program.training))
    body = rewritings.rewritten(program.body, program.results, random.Random(program.seed), program.training)
    other = replace(program, body=tuple(body))
    got = run(pycompiler.compile(other.load(device)[1]), make, program.training)
    found = difference(got, want, program.results, bits_of_gradients=True)
    return f"{found}, written as\n{other.text()}" if found else ""


MODES: dict[str, Callable[..., str]] = {"": compare, "--twins": twins, "--rewritten": rewritten}


# ---- many programs ---------------------------------------------------------------------------------------------------


def prepare() -> None:
    """Configure a process that judges programs: a failure inside the compiler raises and is no eager call."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import logging

    import pycompiler

    pycompiler.config.raise_internal_errors = True
    pycompiler.config.progress = False
    logging.getLogger("pycompiler").setLevel(logging.ERROR)


def runs(program: Program, device: str) -> bool:
    """Whether eager runs the program without an error."""
    make, fn = program.load(device, eager=True)
    try:
        run(fn, make, program.training)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def worker(first: int, last: int, device: str, mode: str) -> None:
    """Judges the programs of seeds and prints the verdicts as lines of JSON."""
    prepare()
    size = 1 if mode == "--rewritten" else TOGETHER
    for begin in range(first, last, size):
        seeds = range(begin, min(begin + size, last))
        print(json.dumps({"start": begin}), flush=True)
        programs = [generate(seed, bool(mode)) for seed in seeds]
        # A program that raises would hide the results of the other programs in its compile.
        joined = len(programs) > 1 and all(runs(p, device) for p in programs)
        with team(begin // size if not mode else 0):
            found = judge(mode, together(programs), device) if joined else ""
            alone = [judge(mode, p, device) for p in programs] if found or not joined else [""] * len(programs)
        if found not in ("", EXCUSED) and not any(alone):
            alone[0] = f"together with the {len(programs) - 1} behind it: {found}"
        for seed, text in zip(seeds, alone, strict=True):
            print(json.dumps({"seed": seed, "found": text}), flush=True)


def team(number: int) -> contextlib.AbstractContextManager[None]:
    """Every other number: programs run on two threads."""
    return machine(2, **TEAM) if number % 2 else contextlib.nullcontext()


def judge(mode: str, program: Program, device: str) -> str:
    try:
        return MODES[mode](program, device)
    except Exception as e:
        return f"error: {type(e).__name__}: {str(e)[:300]}"


def campaign(seed: int, count: int, jobs: int, device: str, mode: str, seconds: float) -> int:
    """Prints each difference; the exit status is 1 if there is one."""
    begin, lock, done, found = time.monotonic(), threading.Lock(), Counter[str](), dict[int, str]()
    ranges = iter([range(k, min(k + CHUNK, seed + count)) for k in range(seed, seed + count, CHUNK)])

    def note(at: int, text: str) -> None:
        with lock:
            done["excused" if text == EXCUSED else "differs" if text else "same"] += 1
            if text and text != EXCUSED:
                found[at] = text
                print(f"seed {at}: {text}", flush=True)

    def walk() -> None:
        while time.monotonic() - begin < seconds:
            with lock:
                chosen = next(ranges, None)
            if chosen is None:
                return
            at = chosen.start
            while at < chosen.stop:
                at = judged(at, chosen.stop, device, mode, note)

    workers = [threading.Thread(target=walk) for _ in range(jobs)]
    for t in workers:
        t.start()
    for t in workers:
        t.join()
    total = sum(done.values())
    excused = f", {done['excused']} {EXCUSED}" if done["excused"] else ""
    print(f"{total} programs in {time.monotonic() - begin:.0f} s: {done['differs']} differ{excused}", flush=True)
    for k in list(found)[:12]:
        print(f"\n#### seed {k}: {found[k]}\n{generate(k, bool(mode)).text()}")
    return int(bool(found) or not total or done["excused"] > max(1, total * EXCUSED_SHARE))


def judged(first: int, last: int, device: str, mode: str, note: Callable[[int, str], None]) -> int:
    """Has a process judge seeds; returns the seed from which the next process continues."""
    with tempfile.TemporaryDirectory(prefix="pycompiler-exact-") as cache:
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYCOMPILER_CACHE_DIR": cache}
        code = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); from fuzz.exact import main; main()"
        command = [sys.executable, "-c", code, "--worker", str(first), str(last), "--device", device]
        child = subprocess.Popen([*command, *filter(None, [mode])], stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, text=True, env=environment)  # fmt: skip
        said = [time.monotonic()]

        def watch() -> None:
            while child.poll() is None:
                time.sleep(1)
                if time.monotonic() - said[0] > PATIENCE:
                    child.kill()

        threading.Thread(target=watch, daemon=True).start()
        at, open_seed = first, None
        assert child.stdout is not None
        for line in child.stdout:
            said[0] = time.monotonic()
            told = json.loads(line)
            if "start" in told:
                open_seed = told["start"]
            else:
                note(told["seed"], told["found"])
                at, open_seed = told["seed"] + 1, None
        status = child.wait()
        if status or open_seed is not None:
            at = first if open_seed is None else open_seed
            note(at, f"the process ended with {status}")
            at += 1
        return at


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.exact", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="programs")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first program; each program has the next seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--twins", action="store_true", help="compare compiled programs with themselves under other settings"
    )
    parser.add_argument(
        "--rewritten", action="store_true", help="compare compiled programs with rewritten forms of themselves"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="no new processes after this time")
    parser.add_argument("--show", type=int, help="print the program of a seed, and judge it on one thread and on two")
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    mode = "--twins" if chosen.twins else "--rewritten" if chosen.rewritten else ""
    if chosen.worker:
        worker(*chosen.worker, chosen.device, mode)
        return 0
    if chosen.show is not None:
        prepare()
        program = generate(chosen.show, bool(mode))
        print(program.text())
        for number in range(2):
            with team(number):
                print(f"threads: {1 + number}: {judge(mode, program, chosen.device) or 'same'}")
        return 0
    if any((ROOT / "pycompiler").glob("_native*.so")):  # otherwise the installed wheel
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return campaign(chosen.seed, chosen.count, chosen.jobs, chosen.device, mode, chosen.seconds)


if __name__ == "__main__":
    sys.exit(main())
