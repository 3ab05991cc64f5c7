"""Functions of NumPy's that `torch._numpy` has not, or not as NumPy computes them, of tensors.

Each gives `NotImplemented` where its arguments are others than it knows: the graph breaks, or `torch._numpy` is called
(`THEIRS_ELSE`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

FLOATS = (torch.float32, torch.float64)


def pad(array: Any, pad_width: Any, mode: Any = "constant", *, constant_values: Any = 0) -> Any:
    """With one number, of widths that are known."""
    widths = _widths(pad_width, array.dim()) if isinstance(array, torch.Tensor) else None
    plain = type(constant_values) is int and (constant_values == 0 or array.dtype in (*FLOATS, torch.int64))
    if widths is None or mode != "constant" or not plain:
        return NotImplemented
    return torch.constant_pad_nd(array, [n for pair in reversed(widths) for n in pair], constant_values)


def _widths(given: Any, dims: int) -> list[tuple[int, int]] | None:
    """Before and behind each dimension."""
    if type(given) is int:
        given = [(given, given)] * dims
    elif isinstance(given, (tuple, list)) and len(given) == 2 and all(type(n) is int for n in given):
        given = [tuple(given)] * dims
    known = isinstance(given, (tuple, list)) and all(isinstance(p, (tuple, list)) and len(p) == 2 for p in given)
    if not known or len(given) not in (1, dims) or any(type(n) is not int or n < 0 for p in given for n in p):
        return None
    return [tuple(p) for p in given] * (dims if len(given) < dims else 1)


def cov(m: Any, *, rowvar: Any = True, bias: Any = False, ddof: Any = None) -> Any:
    """Of one matrix of real numbers."""
    if not isinstance(m, torch.Tensor) or m.dim() != 2 or m.dtype not in (*FLOATS, torch.int64):
        return NotImplemented
    if not rowvar and m.shape[0] == 1 or type(ddof) not in (int, type(None)):
        return NotImplemented
    rows = m.to(torch.float64)
    rows = rows if rowvar else rows.T
    count = rows.shape[1] - (ddof if ddof is not None else int(not bias))
    if count <= 0:  # of which NumPy warns
        return NotImplemented
    rows = rows - rows.mean(1, keepdim=True)
    return (rows @ rows.T * (1 / count)).squeeze()


def corrcoef(x: Any, *, rowvar: Any = True) -> Any:
    made = cov(x, rowvar=rowvar)
    if made is NotImplemented or made.dim() != 2:
        return NotImplemented
    spread = torch.sqrt(made.diagonal())
    return (made / spread[:, None] / spread[None, :]).clamp(-1, 1)


def outer(a: Any, b: Any) -> Any:
    """Of all elements."""
    if (
        not isinstance(a, torch.Tensor)
        or not isinstance(b, torch.Tensor)
        or a.dtype != b.dtype
        or a.dtype is torch.bool
    ):
        return NotImplemented
    return a.reshape(-1)[:, None] * b.reshape(-1)


def matrix_power(a: Any, n: Any) -> Any:
    """By NumPy's own products."""
    if not isinstance(a, torch.Tensor) or a.dtype not in FLOATS or type(n) is not int or n < 2:
        return NotImplemented
    if n < 4:
        return a @ a if n == 2 else a @ a @ a
    square, made = a, None
    while n:
        n, bit = divmod(n, 2)
        if bit:
            made = square if made is None else made @ square
        square = square @ square if n else square
    return made


def nansum(a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    if not isinstance(a, torch.Tensor) or a.dtype not in FLOATS:
        return NotImplemented
    known = torch.where(torch.isnan(a), 0.0, a)
    return known.sum() if axis is None and not keepdims else known.sum(axis, keepdim=bool(keepdims))


def trapezoid(y: Any, *, dx: Any = 1.0, axis: Any = -1) -> Any:
    if not isinstance(y, torch.Tensor) or y.dtype not in FLOATS or type(dx) is not float or type(axis) is not int:
        return NotImplemented
    before, behind = y.narrow(axis, 0, y.shape[axis] - 1), y.narrow(axis, 1, y.shape[axis] - 1)
    return (dx * (behind + before) / 2.0).sum(axis)


def matrix_transpose(x: Any) -> Any:
    return x.swapaxes(-2, -1) if isinstance(x, torch.Tensor) and x.dim() > 1 else NotImplemented


MORE: dict[str, Callable[..., Any]] = {
    "pad": pad, "cov": cov, "corrcoef": corrcoef, "outer": outer, "linalg.matrix_power": matrix_power, "nansum": nansum,
    "trapezoid": trapezoid, "matrix_transpose": matrix_transpose,
}  # fmt: skip
"""By the names that NumPy has for them."""
THEIRS_ELSE = frozenset({"outer"})  # of these `torch._numpy` knows what is left
# Methods of ufuncs, and the functions that are the same along the first dimension.
OF_UFUNCS = {
    ("add", "reduce"): "sum", ("multiply", "reduce"): "prod", ("maximum", "reduce"): "max", ("minimum", "reduce"): "min",
    ("logical_or", "reduce"): "any", ("logical_and", "reduce"): "all", ("add", "accumulate"): "cumsum",
    ("multiply", "accumulate"): "cumprod",
}  # fmt: skip
