"""NumPy functions on tensors that `torch._numpy` lacks, or computes differently.

In: tensors in place of arrays, and numbers.  Out: a tensor with NumPy's values and dtype.
Each function returns `NotImplemented` for arguments that it does not support.  Then the graph breaks, or `torch._numpy`
is called (`THEIRS_ELSE`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

FLOATS = (torch.float32, torch.float64)


def pad(array: Any, pad_width: Any, mode: Any = "constant", *, constant_values: Any = 0) -> Any:
    """Padding with one number and known widths."""
    widths = _widths(pad_width, array.dim()) if isinstance(array, torch.Tensor) else None
    plain = type(constant_values) is int and (constant_values == 0 or array.dtype in (*FLOATS, torch.int64))
    if widths is None or mode != "constant" or not plain:
        return NotImplemented
    return torch.constant_pad_nd(array, [n for pair in reversed(widths) for n in pair], constant_values)


def _widths(given: Any, dims: int) -> list[tuple[int, int]] | None:
    """The widths before and after each dimension, or None."""
    if type(given) is int:
        given = [(given, given)] * dims
    elif isinstance(given, (tuple, list)) and len(given) == 2 and all(type(n) is int for n in given):
        given = [tuple(given)] * dims
    known = isinstance(given, (tuple, list)) and all(isinstance(p, (tuple, list)) and len(p) == 2 for p in given)
    if not known or len(given) not in (1, dims) or any(type(n) is not int or n < 0 for p in given for n in p):
        return None
    return [tuple(p) for p in given] * (dims if len(given) < dims else 1)


def cov(m: Any, *, rowvar: Any = True, bias: Any = False, ddof: Any = None) -> Any:
    """The covariance of one real matrix."""
    if not isinstance(m, torch.Tensor) or m.dim() != 2 or m.dtype not in (*FLOATS, torch.int64):
        return NotImplemented
    if not rowvar and m.shape[0] == 1 or type(ddof) not in (int, type(None)):
        return NotImplemented
    rows = m.to(torch.float64)
    rows = rows if rowvar else rows.T
    count = rows.shape[1] - (ddof if ddof is not None else int(not bias))
    if count <= 0:  # NumPy warns
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
    """The outer product over all elements."""
    if (
        not isinstance(a, torch.Tensor)
        or not isinstance(b, torch.Tensor)
        or a.dtype != b.dtype
        or a.dtype is torch.bool
    ):
        return NotImplemented
    return a.reshape(-1)[:, None] * b.reshape(-1)


def matrix_power(a: Any, n: Any) -> Any:
    """A matrix power with NumPy's order of products."""
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


def sign(x: Any) -> Any:
    """The sign; NaN for NaN."""
    if not isinstance(x, torch.Tensor) or x.is_complex() or x.dtype is torch.bool:
        return NotImplemented
    return torch.where(torch.isnan(x), x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)


def reciprocal(x: Any) -> Any:
    return 1 / x if isinstance(x, torch.Tensor) and x.dtype in FLOATS else NotImplemented


def heaviside(x1: Any, x2: Any) -> Any:
    if not isinstance(x1, torch.Tensor) or x1.dtype not in FLOATS:
        return NotImplemented
    made = torch.where(x1 == 0, x2, torch.where(x1 > 0, 1.0, 0.0).to(x1.dtype))
    return torch.where(torch.isnan(x1), x1, made)


def _sorted(a: Any, axis: Any) -> tuple[torch.Tensor, int] | None:
    """The elements of real numbers, sorted along a dimension (None: all elements), and that dimension."""
    if not isinstance(a, torch.Tensor) or a.dtype not in (*FLOATS, torch.int64) or type(axis) not in (int, type(None)):
        return None
    if not a.dim():
        return None
    a, axis = (a.reshape(-1), 0) if axis is None else (a, axis)
    if not -a.dim() <= axis < a.dim() or type(a.shape[axis]) is not int or a.shape[axis] == 0:
        return None
    a = a if a.is_floating_point() else a.to(torch.float64)
    return a.sort(axis).values, axis % a.dim()


def _kept(made: torch.Tensor, a: torch.Tensor, axis: Any, keepdims: Any) -> torch.Tensor:
    if not keepdims:
        return made
    return made.reshape((1,) * a.dim()) if axis is None else made.unsqueeze(axis)


def median(a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    """The mean of the two middle elements; NaN if there is a NaN."""
    ordered = _sorted(a, axis)
    if ordered is None:
        return NotImplemented
    values, along = ordered
    n = values.shape[along]
    middle = values.narrow(along, (n - 1) // 2, 2 - n % 2).mean(along)
    last = values.select(along, n - 1)
    return _kept(torch.where(torch.isnan(last), last, middle), a, axis, keepdims)


def quantile(a: Any, q: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    """One quantile between 0 and 1, with NumPy's interpolation, which starts at the nearer element."""
    if type(q) is not float or not 0 <= q <= 1 or isinstance(a, torch.Tensor) and a.dtype is torch.float32:
        return NotImplemented  # the result dtype for float32 depends on the version of NumPy
    ordered = _sorted(a, axis)
    if ordered is None:
        return NotImplemented
    values, along = ordered
    n = values.shape[along]
    at = int(q * (n - 1))
    part = q * (n - 1) - at
    low, high, last = (values.select(along, i) for i in (at, min(at + 1, n - 1), n - 1))
    made = low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)
    return _kept(torch.where(torch.isnan(last), last, made), a, axis, keepdims)


def percentile(a: Any, q: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    return quantile(a, q / 100, axis, keepdims=keepdims) if type(q) in (int, float) else NotImplemented


def gradient(f: Any, *steps: Any, axis: Any = None) -> Any:
    """The gradient along one dimension with constant steps."""
    step, *more = steps or (1.0,)
    if not isinstance(f, torch.Tensor) or f.dtype not in FLOATS or type(step) not in (int, float) or step == 0 or more:
        return NotImplemented
    axis = 0 if axis is None and f.dim() == 1 else axis
    if type(axis) is not int or not -f.dim() <= axis < f.dim() or type(n := f.shape[axis]) is not int or n < 2:
        return NotImplemented
    ahead, behind = f.narrow(axis, 1, n - 1), f.narrow(axis, 0, n - 1)
    ends = (ahead - behind) / step
    within = (f.narrow(axis, 2, n - 2) - f.narrow(axis, 0, n - 2)) / (2.0 * step)
    return torch.cat([ends.narrow(axis, 0, 1), within, ends.narrow(axis, n - 2, 1)], axis)


def vander(x: Any, N: Any = None, *, increasing: Any = False) -> Any:
    """The Vandermonde matrix, with NumPy's products and dtype."""
    if not isinstance(x, torch.Tensor) or x.dtype not in FLOATS or x.dim() != 1:
        return NotImplemented
    columns = x.shape[0] if N is None else N
    if type(columns) is not int or columns < 1 or type(increasing) is not bool:
        return NotImplemented
    x = x.to(torch.float64)
    powers = torch.cat([torch.ones_like(x)[:, None], x[:, None].expand(-1, columns - 1)], 1).cumprod(1)
    return powers if increasing else powers.flip(1)


def diag(v: Any, k: Any = 0) -> Any:
    """The matrix with a vector on its diagonal; for a matrix NumPy returns a view, which is not supported."""
    return torch.diag(v, k) if isinstance(v, torch.Tensor) and v.dim() == 1 and type(k) is int else NotImplemented


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "pad": pad, "cov": cov, "corrcoef": corrcoef, "outer": outer, "linalg.matrix_power": matrix_power, "nansum": nansum,
    "trapezoid": trapezoid, "matrix_transpose": matrix_transpose, "sign": sign, "reciprocal": reciprocal, "heaviside": heaviside,
    "median": median, "quantile": quantile, "percentile": percentile, "gradient": gradient, "vander": vander, "diag": diag,
}  # fmt: skip
"""Functions by their NumPy names."""
THEIRS_ELSE = frozenset({"outer"})  # for other arguments, `torch._numpy` is used
# Methods of ufuncs, and the equivalent functions along the first dimension.
OF_UFUNCS = {
    ("add", "reduce"): "sum", ("multiply", "reduce"): "prod", ("maximum", "reduce"): "max", ("minimum", "reduce"): "min",
    ("logical_or", "reduce"): "any", ("logical_and", "reduce"): "all", ("add", "accumulate"): "cumsum",
    ("multiply", "accumulate"): "cumprod",
}  # fmt: skip
