"""Comparison of results: equal up to rounding, or a description of the difference.

In: results of the compiled graph and of eager, and possibly of the same graph in float64, which decides.  A result
about as near to float64 as eager's is no difference.  If eager itself is off (a comparison that depends on a
rounding), no difference is reported.
Out: `Difference` or None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

# dtype → (tolerance if float64 decides in the end, tolerance if it cannot), relative to value and size of the tensor.
TOLERANCES = {
    torch.float64: (1e-10, 1e-7),
    torch.float32: (3e-5, 1e-3),
    torch.float16: (3e-3, 1e-2),
    torch.bfloat16: (2e-2, 8e-2),
}
# Tolerance for cancellation, relative to the size of a graph's largest results.  For float64 no more exact result can
# decide.
CANCELLED = {torch.float64: 1e-13}
CANCELLED_TWICE = 1e-12  # for other dtypes, for squares of cancelled values
WORSE = 8  # times eager's error: the effect that rounding in another order may have


@dataclass(frozen=True)
class Difference:
    """A difference. `what`: an output, an input after the call, or a gradient."""

    what: str
    text: str

    def __str__(self) -> str:
        return f"{self.what}: {self.text}"


def first_difference(
    names: Sequence[str],
    seen: Sequence[Any],
    want: Sequence[Any],
    exact: Sequence[Any] | None = None,
    *,
    strict: bool = False,
    tolerance: float = 0.0,
    roundings: Sequence[float] | None = None,
) -> Difference | None:
    """The first of several results that differs; `strict`: also a result that may differ, which `exact` would decide.

    roundings: how far rounding alone may move each result, if known.
    """
    plain = [
        _plain(t) for t in want if isinstance(t, torch.Tensor) and t.layout is torch.strided and not t.is_quantized
    ]
    noise = max((float(_size(t.double())) for t in plain if t.dtype.is_floating_point), default=0.0)
    for k, name in enumerate(names):
        judge = None if exact is None else exact[k]
        moved = 0.0 if roundings is None else roundings[k]
        text = difference(seen[k], want[k], judge, strict=strict, tolerance=tolerance, noise=noise, moved=moved)
        if text:
            return Difference(name, text)
    return None


def difference(
    seen: Any,
    want: Any,
    exact: Any = None,
    *,
    strict: bool = False,
    tolerance: float = 0.0,
    noise: float = 0.0,
    moved: float = 0.0,
) -> str:
    """How a result differs from eager's, "" if it does not.  Only plain tensors are compared.

    noise: the size of the largest results of the graph.  moved: the most that rounding moves this result.
    """
    if not isinstance(want, torch.Tensor) or not isinstance(seen, torch.Tensor):
        both = isinstance(want, torch.Tensor) == isinstance(seen, torch.Tensor)
        return "" if both and (want is None) == (seen is None) else f"{seen!r}, eager {want!r}"
    for what in ("shape", "dtype", "device"):
        if getattr(seen, what) != getattr(want, what):
            return f"{what} {getattr(seen, what)}, eager {getattr(want, what)}"
    if want.layout is not torch.strided or want.is_quantized:
        return ""
    seen, want = _plain(seen), _plain(want)
    exact = _plain(exact) if isinstance(exact, torch.Tensor) and exact.shape == want.shape else None
    wrong = _wrong(seen, want, exact, strict, tolerance)
    if (noise or moved) and want.dtype.is_floating_point:
        wrong &= ~((seen - want).abs() <= max(noise * CANCELLED.get(want.dtype, CANCELLED_TWICE), moved))
    if not bool(wrong.any()):
        return ""
    at = [int(i) for i in wrong.nonzero()[0]]
    values = [t[tuple(at)].item() for t in (seen, want)]
    judged = f" (in float64 {exact[tuple(at)].item()})" if exact is not None and exact.dtype is torch.float64 else ""
    return f"{int(wrong.sum())} of {wrong.numel()} elements, the first at {at}: {values[0]}, eager {values[1]}{judged}"


def near(dtype: torch.dtype) -> float:
    """The tolerance of a dtype if a more exact result decides in the end."""
    return TOLERANCES.get(dtype, (8e-2, 2e-1))[0]


def _plain(t: torch.Tensor) -> torch.Tensor:
    t = t.detach().resolve_conj().resolve_neg()
    return torch.view_as_real(t) if t.is_complex() else t


def _wrong(
    seen: torch.Tensor, want: torch.Tensor, exact: torch.Tensor | None, strict: bool, tolerance: float
) -> torch.Tensor:
    """A mask of the elements that differ."""
    if not want.dtype.is_floating_point:
        differ = seen != want
        return differ if exact is None or exact.dtype != want.dtype else differ & (want == exact)
    near, far = (max(tolerance, known) for known in TOLERANCES.get(want.dtype, (8e-2, 2e-1)))
    judge = exact if exact is not None and exact.dtype is torch.float64 else None
    a, b = seen.double(), want.double()
    size = _size(b)
    error = (a - b).abs()
    fits = (
        (error <= (near if strict or judge is not None else far) * (b.abs() + size))
        | (a == b)
        | (a.isnan() & b.isnan())
    )
    if judge is None:
        return ~fits
    errors = (b - judge).abs()
    off = errors[errors.isfinite()].max() if bool(errors.isfinite().any()) else errors.new_zeros(())
    as_near = (a - judge).abs() <= WORSE * off + near * 0.1 * (judge.abs() + size)
    unsteady = b.isfinite() != judge.isfinite()  # eager overflows where float64 does not
    return ~(fits | as_near | unsteady)


def _size(t: torch.Tensor) -> torch.Tensor:
    """The root of the mean square of the finite elements."""
    finite = t[t.isfinite()]
    return finite.square().mean().sqrt() if finite.numel() else t.new_zeros(())
