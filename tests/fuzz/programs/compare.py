"""Comparison of one program run by eager and compiled: all that a caller can observe must agree.

In: a `Program`, a device, a backend. Out: a `Verdict`: `same`, `differs` (what, and how), `unsteady` (eager's own
result moves as much when its operators round a little differently), or `raises` (both raise, the same class).
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import pycompiler

from .program import Program, prelude

# Relative tolerance by the least exact dtype in the program.
TOLERANCE = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float32: 2e-4, torch.complex64: 2e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}  # fmt: skip
UNIT = {torch.float64: 2.0**-52, torch.complex128: 2.0**-52, torch.float32: 2.0**-22, torch.complex64: 2.0**-22, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}  # fmt: skip
NOISE = (4.0, 1.0, 0.25)  # units in the last place
NOISY_RUNS = 60
# Errors that are bugs of eager: the gradient of a real `sgn` is a zero tensor without memory, which `std`'s gradient
# writes to.
EAGERS_OWN = ("ZeroTensors are immutable",)
ALLOWED = 20.0  # times the movement of eager's own result


# Bug of eager: a view of memory is no leaf once another view of it was written with a value that has a gradient.  Eager
# still treats the view as a leaf until its `grad_fn` is read.
UNSEEN = "a leaf Variable that requires grad is being used"


class Looking(TorchFunctionMode):
    """Reads the `grad_fn` of each argument of each call."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for a in args:
            if isinstance(a, torch.Tensor) and func is not torch.Tensor.grad_fn.__get__:
                a.grad_fn  # noqa: B018
        return func(*args, **(kwargs or {}))


# Bug of eager: `kron` saves a view with a version counter of its own for its gradient, so that a write to it goes
# unnoticed.
WRITTEN = "has been modified by an inplace operation"


def unseen_nothing(program: Program, error: str) -> bool:
    """The same error for a view without elements: no gradient can depend on it."""
    return "kron(" in program.body() and re.search(r"Tensor \[(\d+, )*0[,\]]", error) is not None


def reads_written(fn: Callable[..., Any], make: Callable[[], Any], program: Program, expected: Seen) -> bool:
    """Whether eager's gradients change when its nodes save copies: then eager read a saved tensor after a write."""
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda kept: kept):
        kept = observe(fn, make, program)
    return kept.error is None and difference(kept, expected, loosest(program)) is not None


@dataclass
class Seen:
    """The observations of one run: `values` by name, `facts` that must be equal, or the error."""

    values: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None
    phase: str = "call"


@dataclass(frozen=True)
class Verdict:
    kind: str  # same | differs | unsteady | raises
    what: str = ""  # one word: values, strides, aliasing, ...
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} ({self.what}): {self.detail}" if self.what else self.kind


def compare(program: Program, device: str = "cpu", backend: str = "native", calls: int = 2,
            compiler: Callable[..., Any] = pycompiler.compile) -> Verdict:  # fmt: skip
    """The verdict on a program.  The compiled function is called `calls` times with fresh arguments."""
    make, fn = program.load(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = observe(fn, make, program)
        if expected.error is not None and UNSEEN in str(expected.error):
            with Looking():
                looked = observe(fn, make, program)
            if looked.error is None or UNSEEN not in str(looked.error):
                return Verdict("raises", "a bug of eager's own")
        if expected.error is not None and any(text in str(expected.error) for text in EAGERS_OWN):
            return Verdict("raises", "a bug of eager's own")
        for place, _, _ in program.consumers():
            expected.values.pop(f"result {place} (Tensor)", None)  # `inexact` compares it
        compiled = compiler(fn, backend=backend)
        for call in range(calls):
            got = observe(compiled, make, program)
            found = difference(got, expected, loosest(program)) or inexact(program, device, got)
            if found is not None:
                name, what, detail = found
                raised = expected.error is None and WRITTEN in str(got.error)
                if raised and (unseen_nothing(program, str(got.error)) or reads_written(fn, make, program, expected)):
                    return Verdict("raises", "a bug of eager's own")
                if what == "values" and unsteady(program, device, name, got, expected):
                    return Verdict("unsteady", what, f"{name}: {detail}")
                again = f" (call {call + 1})" if call else ""
                return Verdict("differs", what, f"{name}{again}: {detail}")
    if expected.error is not None:
        return Verdict("raises", expected.phase)
    return Verdict("same")


# ---- observations --------------------------------------------------------------------------------------------------
def observe(fn: Callable[..., Any], make: Callable[[], Any], program: Program) -> Seen:
    """Runs `fn` and differentiates its results."""
    leaves, args = make()
    seen = Seen()
    torch.manual_seed(program.seed)
    given, versions = list(args), [a._version if isinstance(a, torch.Tensor) else 0 for a in args]
    try:
        results = list(fn(*args))
        seen.phase = "backward"
        see_results(seen, results, given, versions)
        gradients(seen, program, results, leaves)
    except Exception as e:
        seen.error = e
    return seen


def see_results(seen: Seen, results: list[Any], args: list[Any], versions: list[int]) -> None:
    """Values, metadata and aliasing of results and arguments."""
    for k, r in enumerate(results):
        name = f"result {k} ({type(r).__name__})"
        if not isinstance(r, torch.Tensor):
            seen.values[name] = r
            continue
        seen.values[name] = r.detach().clone()
        seen.facts[f"{name} strides"] = (tuple(r.shape), r.stride())
        seen.facts[f"{name} requires_grad"] = (r.requires_grad, r.is_leaf)
        seen.facts[f"{name} flags"] = (r.is_conj(), r.is_neg(), r.is_inference())
    for k, a in enumerate(args):
        if isinstance(a, torch.Tensor):
            seen.values[f"argument {k}"] = a.detach().clone()
            seen.facts[f"argument {k} version"] = a._version > versions[k]  # one write or three: only the change counts
            seen.facts[f"argument {k} requires_grad"] = (a.requires_grad, a.is_leaf)
            seen.facts[f"argument {k} strides"] = (tuple(a.shape), a.stride())
    tensors = [(f"result {k}", r) for k, r in enumerate(results) if isinstance(r, torch.Tensor)]
    tensors += [(f"argument {k}", a) for k, a in enumerate(args) if isinstance(a, torch.Tensor)]
    for k, (name, r) in enumerate(tensors[: len(results)]):
        shared = []
        for other, t in tensors[k + 1 :]:
            if r is t:
                shared.append((other, "is"))
            elif r.numel() and t.numel() and r.untyped_storage().data_ptr() == t.untyped_storage().data_ptr():
                shared.append(
                    (other, str(r.storage_offset() * r.element_size() - t.storage_offset() * t.element_size()))
                )
        seen.facts[f"{name} aliasing"] = shared
        inputs = [t for other, t in tensors if other.startswith("argument")]
        if any(r.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for t in inputs) and r.numel():
            seen.facts[f"{name} view"] = r._is_view()


def gradients(seen: Seen, program: Program, results: list[Any], leaves: list[Any]) -> None:
    """The gradients of the leaves, from the results that require one."""
    wanted = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if wanted:
            GRADIENTS[program.gradients](wanted, program.seed)
    for k, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_leaf:
            seen.values[f"gradient {k}"] = None if leaf.grad is None else leaf.grad.clone()


def _random(wanted: list[torch.Tensor], seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    ups = [torch.randn(r.shape, generator=g, dtype=torch.float64).to(r.device, r.dtype) for r in wanted]
    torch.autograd.backward(wanted, ups)


def _ones(wanted: list[torch.Tensor], seed: int) -> None:
    torch.autograd.backward([r.abs().sum() if r.is_complex() else r.sum() for r in wanted])


def _loss(wanted: list[torch.Tensor], seed: int) -> None:
    """A loss of transposed and summed gradients, over a part of the results only."""
    chosen = [r for k, r in enumerate(wanted) if random.Random(seed + k).random() < 0.7] or wanted[:1]
    torch.autograd.backward([(r.transpose(0, -1) if r.dim() else r).abs().square().sum() for r in chosen])


# The ways to differentiate the results of a program.
GRADIENTS: dict[str, Callable[[list[torch.Tensor], int], None]] = {"random": _random, "ones": _ones, "loss": _loss}


# ---- the difference ------------------------------------------------------------------------------------------------
def inexact(program: Program, device: str, got: Seen) -> tuple[str, str, str] | None:
    """(where, what, how) of the first exact result that is not eager's function of the returned value that it reads.

    Rounding of inexact operators may move the value, and with it the exact result: eager's own pair is no measure. Every
    compiled pair must agree, since an operator rounds alike for all its readers.
    """
    for place, operand, text in program.consumers():
        name, value = (f"result {k} (Tensor)" for k in (place, operand))
        if name not in got.values or value not in got.values:
            continue
        how = values_differ(got.values[name], eval(text, dict(prelude(device)))(got.values[value]), 0.0)
        if how:
            return name, "consumer", f"{how}, of {text.partition(': ')[2]}"
    return None


def difference(got: Seen, expected: Seen, tolerance: float) -> tuple[str, str, str] | None:
    """(where, what, how) of the first difference, values first."""
    if (got.error is None) != (expected.error is None) or (
        got.error is not None and (type(got.error), got.phase) != (type(expected.error), expected.phase)
    ):
        return "error", "error", f"{describe(got)} where eager {describe(expected)}"
    if got.error is not None and got.phase == "call":
        return None
    gradients = {name for name in expected.values if name.startswith("gradient")}
    flags = {name for name in expected.facts if name.endswith("requires_grad")}
    return (
        first_value(got, expected, expected.values.keys() - gradients, tolerance)
        or first_fact(got, expected, flags)
        or first_value(got, expected, gradients, tolerance)
        or first_fact(got, expected, expected.facts.keys())
    )


def first_value(got: Seen, expected: Seen, chosen: Set[str], tolerance: float) -> tuple[str, str, str] | None:
    for name, value in expected.values.items():
        if name in chosen:
            how = values_differ(got.values[name], value, tolerance) if name in got.values else "is missing"
            if how:
                return name, "undefined" if value is None or got.values.get(name) is None else "values", how
    return None


def first_fact(got: Seen, expected: Seen, chosen: Set[str]) -> tuple[str, str, str] | None:
    for name, fact in expected.facts.items():
        if name in chosen and got.facts.get(name) != fact:
            return name, name.split()[-1], f"{got.facts.get(name)} where eager has {fact}"
    return None


def describe(seen: Seen) -> str:
    if seen.error is None:
        return "does not raise"
    text = str(seen.error).strip().split("\n")[0][:300]
    return f"raises {type(seen.error).__name__} in the {seen.phase}: {text}"


def loosest(program: Program) -> float:
    """The tolerance of the least exact dtype that the program mentions."""
    text = program.body()
    found = [t for d, t in TOLERANCE.items() if str(d).removeprefix("torch.") in text]
    return max([TOLERANCE[torch.float32] if ".float()" in text else 0.0, 1e-9, *found])


def values_differ(got: Any, expected: Any, tolerance: float) -> str:
    """A description of the difference, or an empty string."""
    if not isinstance(expected, torch.Tensor) or not isinstance(got, torch.Tensor):
        same = type(got) is type(expected) and (
            got == expected or abs(got - expected) <= tolerance * max(1.0, abs(expected))
        )
        return "" if same else f"{got!r} where eager has {expected!r}"
    if (got.dtype, got.shape, got.device) != (expected.dtype, expected.shape, expected.device):
        return f"{got.dtype} {tuple(got.shape)} {got.device} where eager has {expected.dtype} {tuple(expected.shape)} {expected.device}"
    bad = apart(got, expected, tolerance)
    if not bad.any():
        return ""
    at = tuple(bad.nonzero()[0].tolist())
    return f"{int(bad.sum())} of {bad.numel()} elements, at {list(at)} {got[at].item()!r} where eager has {expected[at].item()!r}"


def apart(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> torch.Tensor:
    """The places where the two differ by more than `tolerance` of the scale of `expected`."""
    if not (expected.is_floating_point() or expected.is_complex()):
        return got != expected
    if expected.is_complex():
        return apart(
            torch.view_as_real(got.resolve_conj()), torch.view_as_real(expected.resolve_conj()), tolerance
        ).any(-1)
    a, b = got.double(), expected.double()
    finite = b[b.isfinite()].abs()
    scale = float(finite.mean()) + 1.0 if finite.numel() else 1.0
    close = (a - b).abs() <= tolerance * (b.abs() + scale)
    return ~(close | (a == b) | (a.isnan() & b.isnan()))


# ---- is the program itself steady? ---------------------------------------------------------------------------------
CASTS = frozenset(["_to_copy", "copy_"])
# Operators whose results are elements of their operands, or exact functions of one: their results cannot round
# differently. An in-place operator is looked up without its last underscore. `abs` and `sgn` of complex numbers round
# (`is_quiet` checks).
EXACT = frozenset(["abs", "neg", "sign", "sgn", "floor", "ceil", "trunc", "round", "copysign", "nan_to_num", "clamp", "clamp_min", "clamp_max", "hardtanh",
                   "relu6", "maximum", "minimum", "fmax", "fmin", "max", "min", "amax", "amin", "aminmax", "median", "nanmedian", "mode", "kthvalue",
                   "cummax", "cummin", "_cummax_helper", "_cummin_helper", "sort", "argsort", "topk", "msort", "unique_consecutive", "_unique2", "unique_dim", "masked_select",
                   "take", "nonzero", "max_pool1d", "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d",
                   "adaptive_max_pool3d", "fractional_max_pool2d", "hardtanh_backward", "masked_scatter",
                   "diagonal_scatter", "as_strided_scatter", "linalg_diagonal", "diag_embed", "tril_indices", "triu_indices", "reflection_pad1d",
                   "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d", "heaviside",
                   "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"])  # fmt: skip
QUIET = CASTS | EXACT | frozenset(["clone", "cat", "stack", "index", "gather", "where", "zeros_like", "ones_like", "full", "zero_", "fill_", "empty",
                   "constant_pad_nd", "flip", "roll", "slice_backward", "select_backward", "index_select", "masked_fill", "detach", "repeat", "relu",
                   "threshold_backward", "new_zeros", "zeros", "ones", "full_like", "arange", "eye", "scatter", "tril", "triu", "embedding",
                   "lift_fresh", "_local_scalar_dense", "uniform_", "normal_", "select_scatter", "slice_scatter", "empty_like", "new_empty"])  # fmt: skip


def narrows(result: Any, args: Any) -> bool:
    """Whether a copy rounds."""
    source = next((a for a in reversed(args) if isinstance(a, torch.Tensor)), result)
    return isinstance(result, torch.Tensor) and UNIT.get(result.dtype, 0.0) > UNIT.get(source.dtype, 1.0)


def is_quiet(packet: str, result: Any, args: Any) -> bool:
    """Whether an operator computes without rounding."""
    name = packet if packet in QUIET else packet.removesuffix("_")
    if name in CASTS:
        return not narrows(result, args)
    if name in ("abs", "sgn"):
        return not (isinstance(args[0], torch.Tensor) and args[0].is_complex())
    return name in QUIET


class Noise(TorchDispatchMode):
    """Disturbs the result of each operator that rounds: by `units` in the last place, of its result and of its
    operands. `snaps`: a result as small as the rounding error of a difference becomes zero."""

    def __init__(self, seed: int, units: float, snaps: bool) -> None:
        super().__init__()
        self.random = torch.Generator().manual_seed(seed)
        self.units, self.snaps = units, snaps

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = func.overloadpacket.__name__
        views = any(a.alias_info is not None and not a.alias_info.is_write for a in func._schema.arguments)
        if views or is_quiet(packet, result, args):
            return result
        operands = max(
            (
                float(a.detach().abs().nan_to_num(0, 0, 0).max())
                for a in args
                if isinstance(a, torch.Tensor) and a.numel() and a.is_floating_point()
            ),
            default=0.0,
        )
        if packet.endswith("_norm") and isinstance(result, tuple) and len(result) > 2 and result[2].numel():
            operands *= max(1.0, float(result[2].detach().abs().nan_to_num(0, 0, 0).max()))  # 1 / deviation
        for t in result if isinstance(result, tuple | list) else (result,):
            if not isinstance(t, torch.Tensor) or t._is_zerotensor():  # a zero tensor has no memory to write to
                continue
            if t.dtype in UNIT and t.numel() and 0 not in t.stride():
                self.disturb(
                    t,
                    operands
                    if packet in ("add", "sub", "sum", "rsub", "add_", "sub_", "mean")
                    or "norm" in packet
                    or "backward" in packet
                    else 0.0,
                )
        return result

    def disturb(self, t: torch.Tensor, operands: float) -> None:
        noise = (torch.rand(t.shape, generator=self.random, dtype=torch.float64) * 2 - 1).to(t.device)
        unit = UNIT[t.dtype] * self.units
        wide = t.detach().to(torch.complex128 if t.is_complex() else torch.float64)
        moved = wide + noise * unit * (wide.abs().nan_to_num(0, 0, 0) + operands)
        if self.snaps:
            moved = torch.where(moved.abs() <= 16 * unit * operands, 0.0, moved)
        t.detach().data.copy_(moved)


def unsteady(program: Program, device: str, name: str, got: Seen, expected: Seen) -> bool:
    """Whether eager's own value of `name` moves as far as `got` is away, when operators round differently.

    Numbers may move less far (`ALLOWED`). Counts, results of comparisons and numbers of values must reach the value
    of `got` in some run, element by element.
    """
    value, ours = expected.values[name], got.values.get(name)
    if not isinstance(value, torch.Tensor) or not isinstance(ours, torch.Tensor) or value.dtype != ours.dtype:
        return False
    if value.shape != ours.shape:
        return any(isinstance(v, torch.Tensor) and v.shape == ours.shape for v in moved(program, device, name))
    left = apart(ours, value, loosest(program))
    for other in moved(program, device, name):
        if isinstance(other, torch.Tensor) and other.shape == value.shape:
            left &= distance(ours, value) > ALLOWED * distance(other, value)
        if not left.any():
            return True
    return False


def moved(program: Program, device: str, name: str) -> Iterator[Any]:
    """Eager's value of `name` in runs whose operators round differently: first by much, then by little, so that
    numbers of few digits become equal, or cease to be equal."""
    for seed in range(NOISY_RUNS):
        make, fn = program.load(device)
        with Noise(seed, NOISE[seed * len(NOISE) // NOISY_RUNS], snaps=seed % 2 == 1):
            yield observe(fn, make, program).values.get(name)


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The distance element by element; infinite where only one is NaN or the infinities differ."""
    wide = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.to(wide), b.to(wide)
    d = torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, (x - y).abs().double())
    return d.nan_to_num(torch.inf, torch.inf, torch.inf)
