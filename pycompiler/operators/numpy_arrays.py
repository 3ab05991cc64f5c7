"""NumPy arrays as tensors: the graph's calls of NumPy functions, and conversions between arrays and tensors.

In a graph, an array is a tensor.  A call of NumPy is one node, `function("linalg.norm", x, axis=0)` or `method("sum",
x, 0)`.  It runs `torch._numpy`, which does with tensors what NumPy does with arrays.
The program imports NumPy if it uses it; `torch._numpy` is imported at the first NumPy call.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from pycompiler.operators.numpy_functions import FUNCTIONS, OF_UFUNCS, THEIRS_ELSE
from pycompiler.operators.numpy_promotion import IN_PLACE, NARROW, check_fits, dtype_of, numpy, promoted

T = TypeVar("T")
# Names that mean something else in `torch._numpy`, or whose results differ from NumPy's.
LEFT_OUT = frozenset(
    {"dtype", "finfo", "iinfo", "generic", "ndarray", "random", "e", "pi", "inf", "nan", "newaxis", "s_", "index_exp",
     "can_cast", "result_type", "min_scalar_type", "common_type", "issubdtype", "isscalar", "typecodes", "sctypes",
     "set_default_dtype", "from_dlpack", "broadcast_shapes", "AxisError", "UFuncTypeError", "DType", "True_", "False_",
     "resize", "diag_indices", "diag_indices_from", "tril_indices", "triu_indices", "tril_indices_from",
     "triu_indices_from", "empty", "empty_like", "cbrt", "fix", "modf", "choose", "tri",
     "identity", "bincount", "histogram", "histogram2d", "histogramdd", "linalg.lstsq", "i0",
     "fill_diagonal", "unique", "searchsorted", "angle",
     "flip", "fliplr", "flipud", "rot90", "broadcast_to", "broadcast_arrays", "diagonal",
     "nonzero", "argwhere", "flatnonzero", "eye", "copyto", "put", "put_along_axis",
     "row_stack"}
)  # fmt: skip
# Functions that NumPy itself evaluates for constant arguments, without side effects.
FOLDED = frozenset(
    {"eye", "identity", "tri", "diagonal", "flip", "fliplr", "flipud", "rot90", "unique", "searchsorted", "bincount",
     "cbrt", "nonzero", "argwhere", "flatnonzero",
     "diag_indices", "tril_indices", "triu_indices", "broadcast_shapes", "isscalar", "unravel_index", "ravel_multi_index",
     "digitize", "interp", "union1d", "intersect1d", "setdiff1d", "isin", "delete", "insert", "append", "lexsort", "ldexp",
     "linalg.matrix_power"}
)  # fmt: skip
_REMAINDERS = frozenset({"remainder", "mod", "divmod"})
# Functions whose result is always a new array.
MAKES = frozenset(
    {"array", "asarray", "zeros", "ones", "full", "arange", "linspace", "logspace", "geomspace", "indices", "hamming",
     "hanning", "bartlett", "blackman", "kaiser", "copy"}
)  # fmt: skip
OWN_METHODS = frozenset(
    {"astype", "copy", "sort", "reshape", "transpose"}
)  # their signatures differ from the functions'
# Functions whose results may share memory with their arguments; results of all other functions are new.
VIEWS = frozenset(
    {"asarray", "reshape", "ravel", "transpose", "squeeze", "swapaxes", "moveaxis", "rollaxis", "expand_dims", "atleast_1d",
     "atleast_2d", "atleast_3d", "split", "array_split", "hsplit", "vsplit", "dsplit", "__getitem__", "T", "real", "imag",
     "real_if_close", "matrix_transpose"}
)  # fmt: skip
# Functions among VIEWS that return the argument itself if there is nothing to do; the others return another array.
SAME = frozenset({"asarray", "atleast_1d", "atleast_2d", "atleast_3d", "squeeze", "real", "real_if_close"})
# Functions that return an array for a 0-d array, and a number for a number.
EITHER = frozenset({"real", "imag", "squeeze", "transpose"})
LISTS = frozenset({"split", "array_split", "hsplit", "vsplit", "dsplit"})
NAMED = {"linalg.svd": "SVDResult", "linalg.qr": "QRResult", "linalg.eig": "EigResult", "linalg.eigh": "EighResult",
         "linalg.slogdet": "SlogdetResult"}  # fmt: skip
PLAIN_DTYPES = {int: "int64", float: "float64", bool: "bool", complex: "complex128"}
# Functions whose 0-d results are arrays; 0-d results of all other functions are numbers.
ARRAYS = MAKES | {
    "cov", "diff", "expand_dims", "pad", "full_like", "imag", "linalg.tensorsolve", "moveaxis", "ones_like", "real",
    "real_if_close", "reshape", "roll", "rollaxis", "sort", "squeeze", "swapaxes", "tensordot", "tile", "transpose", "where",
    "zeros_like",
}  # fmt: skip
LIKES = frozenset({"zeros_like", "ones_like", "full_like", "empty_like"})  # they treat their first argument as an array
# Argument positions (the name counts as position 0) that are sizes and may be symbols.
SIZED: dict[str, range] = {**dict.fromkeys(("ones", "zeros", "full"), range(1, 2)), "reshape": range(2, 66)}
# Functions with undefined contents: zeros are valid contents.
ALIKE = {"empty": "zeros", "empty_like": "zeros_like"}
SPACES = ("", "linalg", "fft")
UNKNOWN_DTYPES = frozenset({"uint16", "uint32", "uint64", "float128", "longdouble", "complex256"})


@functools.cache
def _tensors() -> types.ModuleType:
    import torch._numpy

    return torch._numpy


@functools.cache
def _names() -> dict[int, tuple[Any, str]]:
    """id -> (function, name), for the NumPy functions that graphs may call."""
    found: dict[int, tuple[Any, str]] = {}
    module = numpy()
    assert module is not None
    for space in SPACES:
        theirs, ours = (getattr(m, space) if space else m for m in (module, _tensors()))
        for name in sorted(dir(ours)):
            fn = getattr(theirs, name, None)
            if name.startswith("_") or name in LEFT_OUT or not callable(fn) or isinstance(fn, (type, types.ModuleType)):
                continue
            if callable(getattr(ours, name)):
                whole = f"{space}.{name}".lstrip(".")
                if whole not in LEFT_OUT:
                    found.setdefault(id(fn), (fn, whole))
    for name in FUNCTIONS:
        rule: Any = module
        for part in name.split("."):
            rule = getattr(rule, part, None)
        if rule is not None:
            found[id(rule)] = rule, name
    for name, like in ALIKE.items():
        found[id(getattr(module, name))] = getattr(module, name), like
    return found


def of_ufunc(method: Any, ufunc: Any) -> tuple[Any, str] | None:
    """The function, and its name, that is equivalent to a method of a ufunc; None without one."""
    name = OF_UFUNCS.get((name_of(ufunc) or "", getattr(method, "__name__", "")))
    return None if name is None else (getattr(numpy(), name), name)


def name_of(fn: Any) -> str | None:
    """The name under which a graph calls a NumPy function; None for a function that graphs do not call."""
    if isinstance(fn, type) or not is_of_numpy(fn):
        return None
    known = _names().get(id(fn))
    return known[1] if known is not None else None


def folded_name(fn: Any) -> str | None:
    """NumPy's name of a function that is only called with constants; None for other functions."""
    return None if isinstance(fn, type) or not is_of_numpy(fn) else _folded().get(id(fn))


@functools.cache
def _folded() -> dict[int, str]:
    module = numpy()
    found = {name: functools.reduce(lambda m, part: getattr(m, part, None), name.split("."), module) for name in FOLDED}
    return {id(fn): name for name, fn in found.items() if fn is not None and name_of(fn) is None}


def is_of_numpy(fn: Any) -> bool:
    """Whether a function, a ufunc or a class belongs to NumPy."""
    of = fn if isinstance(fn, (types.FunctionType, types.BuiltinFunctionType, type)) else type(fn)
    return numpy() is not None and str(getattr(of, "__module__", "")).partition(".")[0] == "numpy"


def _lookup(name: str) -> Callable[..., Any]:
    found: Any = _tensors()
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)
    return found  # type: ignore[no-any-return]


def has_method(name: str) -> bool:
    return callable(getattr(_tensors().ndarray, name, None))


def _arrays(value: Any) -> Any:
    """`value` with an array of `torch._numpy` in place of each tensor."""
    if isinstance(value, torch.Tensor):
        return _tensors().ndarray(value)
    if type(value) in (tuple, list):
        return type(value)(map(_arrays, value))
    return value


def _plain(value: Any) -> Any:
    """The inverse of `_arrays`."""
    if isinstance(value, _tensors().ndarray):
        return value.tensor
    if isinstance(value, (tuple, list)):
        return tuple(map(_plain, value)) if isinstance(value, tuple) else list(map(_plain, value))
    return value


def function(name: str, *args: Any, **kwargs: Any) -> Any:
    """`numpy.<name>(*args, **kwargs)` for tensors; an elementwise function gets the result dtype that NumPy gives."""
    made, named, dtype = promoted(name, args, kwargs)
    own = OWN.get(name)
    result = own(*made, **named) if own is not None and _takes(name, made, named) else NotImplemented
    if result is NotImplemented and name in FUNCTIONS and name not in THEIRS_ELSE:
        raise NotImplementedError(f"numpy.{name} with these arguments")
    if result is NotImplemented:
        result = _plain(_lookup(name)(*map(_arrays, made), **{k: _arrays(v) for k, v in named.items()}))
    if name in _REMAINDERS:
        *quotient, rest = result if isinstance(result, tuple) else (result,)
        result = (*quotient, _signed(rest, made[1])) if quotient else _signed(rest, made[1])
    return result.to(dtype) if dtype is not None and isinstance(result, torch.Tensor) else result


def _takes(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a rule of `FUNCTIONS` accepts such arguments; uncompiled graphs check this in each call."""
    if name not in FUNCTIONS:
        return True
    try:
        _of_rule(name).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


@functools.cache
def _of_rule(name: str) -> inspect.Signature:
    return inspect.signature(FUNCTIONS[name])


def _signed(rest: torch.Tensor, divisor: Any) -> torch.Tensor:
    """A remainder with the sign of its divisor, also for zero; torch's zero has the sign of the dividend."""
    if not rest.is_floating_point() or rest.requires_grad:
        return rest
    return torch.copysign(rest, divisor)


@functools.cache
def _tie(name: str, dtype: torch.dtype) -> int | None:
    """Which of two zeros with different signs NumPy's `maximum` or `minimum` returns: 0 for the first, 1 for the second.

    None if this depends on the position.
    """
    module = numpy()
    assert module is not None
    left, right = (module.full(19, zero, dtype_of(dtype)) for zero in (-0.0, 0.0))
    found = [module.signbit(getattr(module, name)(a, b)) for a, b in ((left, right), (right, left))]
    if not all((f == f[0]).all() for f in found) or found[0][0] == found[1][0]:
        return None
    return 0 if found[0][0] else 1


def _extreme(name: str, a: Any, b: Any) -> Any:
    """NumPy's `maximum` or `minimum` of floating-point numbers; with gradients, torch's own."""
    tensors = [v for v in (a, b) if isinstance(v, torch.Tensor)]
    dtype = tensors[0].dtype
    if not dtype.is_floating_point or any(t.requires_grad for t in tensors) or (tie := _tie(name, dtype)) is None:
        return NotImplemented
    if isinstance(b, torch.Tensor) and not isinstance(a, torch.Tensor):
        a = torch.full((), a, dtype=dtype, device=b.device)
    beyond = (torch.ge, torch.gt) if name == "maximum" else (torch.le, torch.lt)
    return torch.where(beyond[tie](a, b) | torch.isnan(a), a, b)


def _power(base: Any, exponent: Any) -> Any:
    """The power of an array.  NumPy uses a square and a square root, but no inverse root, which differs for infinities
    and zeros."""
    is_number = not isinstance(exponent, torch.Tensor)
    if is_number and isinstance(base, torch.Tensor) and exponent in (2, 0.5):
        return base * base if exponent == 2 else torch.sqrt(base)
    if any(isinstance(v, complex) or isinstance(v, torch.Tensor) and v.is_complex() for v in (base, exponent)):
        raise TypeError("numpy.power of complex numbers, which differs from torch's for infinities and zeros")
    return _by_power(base, exponent) if is_number and exponent == -0.5 else NotImplemented


def _by_power(base: torch.Tensor, exponent: float) -> torch.Tensor:
    """The power 0.5 or -0.5, exact also for infinity and for negative zero."""
    base = base if base.is_floating_point() else base.to(torch.float64)
    root, of_infinity = (torch.sqrt, torch.inf) if exponent > 0 else (torch.rsqrt, 0.0)
    return torch.where(base == -torch.inf, of_infinity, root(base + 0.0))


def _full(shape: Any, fill: Any, dtype: str | None = None) -> Any:
    """`full` with the fill value in a tensor."""
    if not isinstance(fill, torch.Tensor) or fill.dim():
        return NotImplemented
    fill = fill if dtype is None else fill.to(getattr(torch, dtype))
    return fill.expand(shape if isinstance(shape, (tuple, list)) else (shape,)).clone()


def _linspace(start: Any, stop: Any, num: Any = 50, endpoint: Any = True, *, dtype: Any = None) -> Any:
    """`linspace` with NumPy's own steps, which differ from torch's for infinities; the last element is `stop` itself."""
    known = next((v.dtype for v in (start, stop) if isinstance(v, torch.Tensor)), torch.float64)
    start, stop = (torch.full((), v, dtype=known) if type(v) in (int, float) else v for v in (start, stop))
    kinds = {v.dtype if isinstance(v, torch.Tensor) and not v.dim() else torch.bool for v in (start, stop)}
    wanted = next(iter(kinds)) if dtype is None else getattr(torch, str(dtype), torch.bool)
    if len(kinds) > 1 or not all(d.is_floating_point for d in (*kinds, wanted)):
        return NotImplemented
    if type(num) is not int or num < 1:
        return NotImplemented
    steps, whole, parts = torch.arange(num, dtype=start.dtype, device=start.device), stop - start, num - bool(endpoint)
    if parts == 0:
        return (steps * whole + start).to(wanted)
    step = whole / parts
    made = torch.where(step == 0, steps / parts * whole, steps * step) + start
    return (torch.cat([made[:-1], stop[None]]) if endpoint else made).to(wanted)


MOST_SLID = 256  # elements of the shorter operand: its products with the ends of the other operand form a matrix


def _convolve(a: torch.Tensor, v: torch.Tensor, mode: str = "full") -> torch.Tensor:
    a, v = (a, v) if a.shape[0] >= v.shape[0] else (v, a)
    return _slid(a, torch.flip(v, (0,)), mode)


def _correlate(a: torch.Tensor, v: torch.Tensor, mode: str = "valid") -> torch.Tensor:
    if a.shape[0] >= v.shape[0]:
        return _slid(a, torch.conj_physical(v), mode)
    return torch.flip(_slid(torch.conj_physical(v), a, mode), (0,))


def _slid(a: torch.Tensor, v: torch.Tensor, mode: str) -> torch.Tensor:
    """Sums of products of `a` and `v` at each offset; `v` is not longer than `a`.

    Where they overlap only in part, nothing is multiplied by padding zeros, since infinities and NaN would give NaN.
    """
    within = torch.nn.functional.conv1d(a[None, None], v[None, None])[0, 0]
    size, n = a.shape[0], v.shape[0]
    if mode == "valid" or n == 1:
        return within
    if n > MOST_SLID or mode not in ("full", "same") or mode == "same" and n % 2 == 0:
        raise NotImplementedError(f"numpy.convolve of {n} elements by mode={mode!r}")
    places = torch.arange(n - 1, device=a.device)[:, None] + torch.arange(n, device=a.device)
    ends = []
    for at in (places - (n - 1), places + (size - n + 1)):
        inside = (at >= 0) & (at < size)
        ends.append(torch.where(inside, a[at.clamp(0, size - 1)] * v, torch.zeros_like(v[0])).sum(-1, dtype=a.dtype))
    full = torch.cat([ends[0], within, ends[1]])
    return full if mode == "full" else full[n // 2 : n // 2 + size]


# Functions for which the result of `torch._numpy` is missing or differs.
OWN: dict[str, Callable[..., Any]] = {
    "maximum": functools.partial(_extreme, "maximum"), "minimum": functools.partial(_extreme, "minimum"), "power": _power,
    "full": _full, "linspace": _linspace, "convolve": _convolve, "correlate": _correlate,
    "square": lambda x: x * x, "power of a number": _by_power, **FUNCTIONS,
}  # fmt: skip


def method(name: str, array: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """`array.<name>(*args, **kwargs)`."""
    if name in IN_PLACE:
        made = function(IN_PLACE[name], array, *args)
        check_fits(made, array)
        return array.copy_(made)
    if hasattr(numpy(), name) and name not in OWN_METHODS:  # the function with this name
        return function(name, array, *args, **kwargs)
    found = getattr(_tensors().ndarray(array), name)
    return _plain(found(*map(_arrays, args), **{k: _arrays(v) for k, v in kwargs.items()}))


@functools.cache
def _signature(name: str, of_method: bool) -> inspect.Signature | None:
    """NumPy's signature if it is a Python function, else the signature of `torch._numpy`, or None."""
    theirs = functools.reduce(lambda found, part: getattr(found, part, None), name.split("."), numpy())
    ours = getattr(_tensors().ndarray, name, None) if of_method else None if name in FUNCTIONS else _lookup(name)
    for fn in (theirs, ours):
        with contextlib.suppress(TypeError, ValueError):
            signature = inspect.signature(fn)  # type: ignore[arg-type]
            if not all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in signature.parameters.values()):
                return signature
    return None


def options(name: str, of_method: bool, args: Sequence[T], kwargs: dict[str, T]) -> dict[str, T]:
    """The arguments of a NumPy call by name, as far as the names are known."""
    signature = _signature(name, of_method)
    try:
        return kwargs if signature is None else {**signature.bind_partial(*args, **kwargs).arguments, **kwargs}
    except TypeError:
        return kwargs


def attribute(name: str, array: torch.Tensor) -> Any:
    """`array.<name>`."""
    return _plain(getattr(_tensors().ndarray(array), name))


def scalar(dtype: str, value: Any) -> torch.Tensor:
    """`numpy.<dtype>(value)`, a 0-d array."""
    made = _tensors().asarray(_arrays(value)).astype(dtype)
    assert isinstance(made.tensor, torch.Tensor)
    return made.tensor


def copy_in_order(array: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A copy of `array` whose dimensions have this order in memory, the last one innermost."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return array.permute(tuple(order)).clone(memory_format=torch.contiguous_format).permute(tuple(back))


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last element of a tensor in memory."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def stand_in(tensor: torch.Tensor, most: int | None = None) -> Any:
    """An array with the layout of a tensor, with values that functions accept: identity matrices, valid indices, bools.

    `most`: limit of the sizes; the order of dimensions in memory stays.
    """
    module = numpy()
    assert module is not None
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if most is not None:
        shape = tuple(min(n, most) for n in shape)
        ranks = sorted(set(strides) - {0})
        strides = tuple(s and (most + 1) ** ranks.index(s) for s in strides)
    dtype = dtype_of(tensor.dtype)
    memory = module.zeros(span(shape, strides), dtype)
    made = module.lib.stride_tricks.as_strided(memory, shape, [s * dtype.itemsize for s in strides])
    if memory.size <= 1 << 16 and dtype.kind in "bfc":
        made[...] = module.eye(*shape[-2:], dtype=dtype) if len(shape) > 1 and dtype.kind != "b" else 1
    return made


def layout_and_sharing(array: Any, others: Iterable[Any]) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """The shape of an array, its strides in elements, and whether it shares memory with one of the others."""
    return array.shape, tuple(s // array.itemsize for s in array.strides), shares(array, others)


def is_array(value: object) -> bool:
    module = numpy()
    return module is not None and type(value) is module.ndarray


def no_places(shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """A mask that selects nothing, or an array of indices that are all 0."""
    return numpy().zeros(shape, dtype_of(dtype))  # type: ignore[union-attr]


def fits(shape: tuple[int, ...], key: tuple[Any, ...], stored: tuple[int, ...]) -> bool:
    """Whether an array of this shape has these indices, and whether a value of shape `stored` can be stored there."""
    module = numpy()
    assert module is not None
    try:
        found = module.broadcast_to(module.zeros((), bool), shape)[key].shape
        more = len(stored) - len(found)
        return (
            all(n == 1 for n in stored[: max(more, 0)])
            and module.broadcast_shapes(found, stored[max(more, 0) :]) == found
        )
    except (IndexError, ValueError):
        return False


def shares(array: Any, others: Iterable[Any]) -> bool:
    """Whether an array may share memory with one of the others."""
    module = numpy()
    return module is not None and any(module.may_share_memory(array, other) for other in others if is_array(other))


def result_class(name: str) -> type:
    """The class that contains the results of a function with several results."""
    if name in NAMED:
        return getattr(numpy().linalg._linalg, NAMED[name], tuple)  # type: ignore[union-attr, no-any-return]
    return list if name in LISTS else tuple


def raises_errors() -> bool:
    """Whether NumPy raises or calls a handler for an invalid floating-point operation."""
    return numpy() is not None and may_raise(errors())


def may_raise(state: Iterable[tuple[str, str]]) -> bool:
    return any(how in ("raise", "call", "log") for _, how in state)


def errors() -> tuple[tuple[str, str], ...]:
    """NumPy's reaction to each kind of floating-point error."""
    return tuple(numpy().geterr().items())  # type: ignore[union-attr]


def errors_within(around: Iterable[tuple[str, str]], wanted: dict[str, str | None]) -> tuple[tuple[str, str], ...]:
    """The reactions inside of `numpy.errstate(**wanted)`."""
    module = numpy()
    assert module is not None
    with module.errstate(**dict(around)), module.errstate(**wanted):
        return errors()


def errors_variable() -> Any:
    """The context variable with this state; None for an older NumPy, which stores it elsewhere."""
    return getattr(sys.modules.get("numpy._core._ufunc_config"), "_extobj_contextvar", None)


def is_dtype(value: object) -> bool:
    module = numpy()
    return module is not None and issubclass(type(value), module.dtype)


def is_number(value: object) -> bool:
    module = numpy()
    return module is not None and issubclass(type(value), module.generic)


def is_taken(cls: type) -> bool:
    """Whether torch converts numbers of this NumPy class to ints or floats (it converts bools and complex numbers to floats)."""
    module = numpy()
    if module is None or not issubclass(cls, (module.integer, module.floating)):
        return False
    return bool(module.dtype(cls).itemsize <= 8)


def ufunc_class() -> type | None:
    return getattr(numpy(), "ufunc", None)


def is_ufunc(fn: object) -> bool:
    """Whether the function is an elementwise ufunc with one result."""
    module = numpy()
    return module is not None and type(fn) is module.ufunc and fn.nout == 1  # type: ignore[attr-defined]


def is_method_of_number(fn: object) -> bool:
    """Whether the function is a C method of NumPy's numbers, which are immutable."""
    module = numpy()
    return (
        module is not None
        and isinstance(fn, types.MethodDescriptorType)
        and issubclass(fn.__objclass__, module.generic)
    )


def is_function(value: object) -> bool:
    """Whether the value is one of NumPy's functions that are C objects."""
    return (
        not isinstance(value, type)
        and type(value).__name__ in ("ufunc", "_ArrayFunctionDispatcher")
        and is_of_numpy(value)
    )


def is_constant(value: object) -> bool:
    """Whether the value is an immutable NumPy object: a dtype, its limits, or a number."""
    module = numpy()
    kinds = () if module is None else (module.dtype, module.generic, module.finfo, module.iinfo)
    return issubclass(type(value), kinds)


_OF_DTYPES = ("dtype", "finfo", "iinfo", "issubdtype", "promote_types")


def is_pure(fn: object) -> bool:
    """Whether `fn` only queries dtypes passed to it."""
    module = numpy()
    return module is not None and any(getattr(module, name) is fn for name in _OF_DTYPES)


def names_dtype(value: object) -> bool:
    """Whether `value` itself names a dtype.  NumPy would call methods of other objects, or of a class of the program."""
    return type(value) is str or is_dtype(value) or _is_kind(value) or any(value is kind for kind in PLAIN_DTYPES)


_KNOWN_DTYPES = NARROW | {"int64", "float64", "complex128"}


@functools.cache
def _known() -> tuple[Any, frozenset[Any], frozenset[str]]:
    """The class of arrays, and the dtypes known to `torch._numpy` that tensors can have, also by their characters.

    The characters matter: `longlong` equals `int64` and is a different dtype.
    """
    module = numpy()
    assert module is not None
    dtypes = frozenset(module.dtype(name) for name in _KNOWN_DTYPES)
    return module.ndarray, dtypes, frozenset(dtype.char for dtype in dtypes)


def tensor_of(array: Any) -> torch.Tensor:
    """A tensor in the memory of an array.  Raises TypeError for a read-only array, and for an array that cannot become
    a tensor."""
    cls, dtypes, characters = _known()
    known = (is_number(array) or type(array) is cls) and array.dtype in dtypes and array.dtype.char in characters
    if is_number(array) and known:
        return torch.as_tensor(array)
    if type(array) is not cls:
        raise TypeError(f"expected a numpy.ndarray, not {type(array).__name__}")
    if not array.flags.writeable:
        raise TypeError("a read-only NumPy array")
    if not known or any(s < 0 or (s == 0 and n > 1) for s, n in zip(array.strides, array.shape)):
        raise TypeError(f"a NumPy array of {array.dtype} with strides {array.strides}")
    return torch.from_numpy(array)


def array_of(tensor: torch.Tensor) -> Any:
    """The array of a graph's tensor; it shares the tensor's memory on the host."""
    return tensor.numpy(force=True)


def read_only_array_of(tensor: torch.Tensor) -> Any:
    made = array_of(tensor)
    made.flags.writeable = False
    return made


def number_of(tensor: torch.Tensor) -> Any:
    """The NumPy number of a 0-d tensor."""
    return tensor.numpy(force=True)[()]


def of_tensor(tensor: torch.Tensor, *, force: bool = False) -> Any:
    """`tensor.numpy(force=force)`: capture has a row for it."""
    return tensor.numpy(force=force)


def dtype_name(value: Any) -> str | None:
    """The name of a NumPy dtype or number class in `torch._numpy`; None for other values.

    For a dtype that `torch._numpy` does not know (`longlong`, another byte order), the str is not a valid name.
    """
    module = numpy()
    if module is None:
        return None
    if not is_dtype(value) and (not _is_kind(value) or value in _abstract()):
        return None
    dtype = module.dtype(value)
    try:
        plain = module.dtype(dtype.name) is dtype
    except TypeError:
        plain = False
    return str(dtype.name) if plain else f"dtype({dtype.str!r}, {dtype.char!r})"


def is_unknown(name: str) -> bool:
    return name in UNKNOWN_DTYPES or not name.isidentifier()


@functools.cache
def names_unknown(text: str) -> bool:
    """Whether a str names a dtype that `torch._numpy` confuses with another one."""
    module = numpy()
    assert module is not None
    try:
        dtype = module.dtype(text)
    except (TypeError, ValueError, SyntaxError):
        return False
    return dtype.kind in "biufc" and is_unknown(str(dtype_name(dtype)))


@contextlib.contextmanager
def as_errors() -> Iterator[None]:
    """Context manager for computations with numbers: NumPy's warnings become `FloatingPointError`."""
    module = numpy()
    with module.errstate(all="raise") if module else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Context manager for computations with numbers: NumPy does not warn."""
    module = numpy()
    with module.errstate(all="ignore") if module else contextlib.nullcontext():
        yield


_mro_of = type.__dict__["__mro__"].__get__  # independent of the metaclass


def _is_kind(value: Any) -> bool:
    """Whether the value is a class of NumPy's numbers, or an abstract number class."""
    module = numpy()
    return module is not None and issubclass(type(value), type) and any(c is module.generic for c in _mro_of(value))


@functools.cache
def _abstract() -> frozenset[Any]:
    """The abstract number classes, which are not dtypes."""
    names = ("generic", "number", "integer", "signedinteger", "unsignedinteger", "inexact", "floating", "complexfloating",
             "flexible", "character")  # fmt: skip
    return frozenset(getattr(numpy(), name) for name in names)


def mark(value: Any) -> Any:
    """Arguments of the function wrapped by `wrap_numpy`: arrays in place of tensors."""
    return pytree.tree_map_only(torch.Tensor, array_of, value)


def unmark(value: Any) -> Any:
    """The inverse of `mark`: tensors in place of arrays."""
    module = numpy()
    assert module is not None
    return pytree.tree_map_only((module.ndarray, module.generic), torch.as_tensor, value)


def wrap_numpy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a function of arrays into a function of tensors.

    `fn` gets arrays in place of tensors, and its arrays become tensors.  In compiled code nothing is copied, tensors stay on
    their device, and gradients flow.

    Args:
        fn: A function of NumPy arrays.

    Returns:
        Callable: A function of tensors.

    Raises:
        TypeError: `fn` is not callable.

    Example:
        ```python
        import numpy

        @pycompiler.compile(fullgraph=True)
        @pycompiler.wrap_numpy
        def product(x, y):
            return numpy.sum(x * y)

        x = torch.ones(3, requires_grad=True)
        product(x, torch.ones(3)).backward()
        assert x.grad is not None
        ```
    """
    import numpy  # noqa: F401

    if not callable(fn):
        raise TypeError(f"wrap_numpy() takes a function of arrays, got {fn!r} of type {type(fn).__name__}")

    @functools.wraps(fn)
    def wrap(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = mark((args, kwargs))
        return unmark(fn(*args, **kwargs))

    return wrap
