"""NumPy's dtype promotion (NEP 50): conversion of a graph call's operands before the computation.

In: a function's name and its arguments.  Out: converted arguments, and the dtype of the result.

Python numbers are weak: they take the dtype of the other operands, which must be able to hold them.  Arrays and NumPy
numbers are strong, and so is every element of a list.  Elementwise functions (ufuncs) report the dtypes in which they
compute.  For other functions, `JOINED` says which operands share one dtype.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def numpy() -> types.ModuleType | None:
    """NumPy, if the program has imported it."""
    return sys.modules.get("numpy")


@functools.cache
def dtype_of(dtype: torch.dtype) -> Any:
    """The NumPy dtype that corresponds to a torch dtype."""
    return _numpy().dtype(str(dtype).removeprefix("torch."))


def _numpy() -> types.ModuleType:
    module = numpy()
    assert module is not None
    return module


@dataclass(frozen=True)
class Joined:
    """Operands that share one dtype, by position or by name.

    `items`: the elements of the sequence at the first position.  `weak`: Python numbers are weak; else they have a
    dtype of their own.  `inexact`: the dtype is not an integer dtype.  `doubles`: if the first operand is an integer,
    the dtype is float64.
    """

    places: tuple[int, ...] = (0,)
    names: tuple[str, ...] = ()
    items: bool = False
    weak: bool = False
    inexact: bool = False
    doubles: bool = False


JOINED: dict[str, Joined] = {
    **dict.fromkeys(
        ("concatenate", "stack", "hstack", "vstack", "dstack", "column_stack", "linalg.multi_dot"),
        Joined(items=True),
    ),
    **dict.fromkeys(
        ("append", "cross", "convolve", "correlate", "dot", "inner", "kron", "outer", "tensordot", "vdot"), Joined((0, 1))
    ),
    **dict.fromkeys(("linspace", "logspace", "geomspace"), Joined((0, 1), ("start", "stop"), weak=True, inexact=True)),
    "where": Joined((1, 2), weak=True),
    "clip": Joined((0, 1, 2), ("a_min", "a_max", "min", "max"), weak=True),
    "diff": Joined((0, 3, 4), ("prepend", "append")),
    "average": Joined((0, 2), ("weights",), doubles=True),
}  # fmt: skip

# Functions whose second argument is the fill value.
FILLED = frozenset({"full", "full_like"})
CHAINED = frozenset({"concatenate", "hstack", "append"})
# Functions whose first argument is a sequence of arrays, or not an array.
SEQUENCES = frozenset({"meshgrid", "einsum", "reshape", "transpose"})

_NARROW_INTEGERS = frozenset({"uint8", "int8", "int16", "int32"})
NARROW = _NARROW_INTEGERS | {"bool", "float16", "float32", "complex64"}
# Function -> dtypes for which `torch._numpy` returns another dtype than NumPy, or computes in another one.
OTHERWISE: dict[str, frozenset[str]] = {
    **dict.fromkeys(("sum", "prod", "trace"), frozenset({"uint8"})),
    **dict.fromkeys(("cumsum", "cumprod"), _NARROW_INTEGERS | {"bool", "float16"}),
    **dict.fromkeys(("around", "round"), frozenset({"bool", "float16"})),
    **dict.fromkeys(("all", "any"), frozenset({"uint8"})),
    **dict.fromkeys(("corrcoef", "cov"), NARROW | {"int64"}),
    **dict.fromkeys(("linalg.solve", "take"), NARROW),
    **dict.fromkeys(("std", "var", "linspace", "logspace", "geomspace"), frozenset({"float16"})),
    "sinc": _NARROW_INTEGERS | {"bool", "int64"},
    **dict.fromkeys(("einsum", "tensordot"), _NARROW_INTEGERS | {"bool", "float16"}),
    **dict.fromkeys(("power", "float_power", "square", "ldexp"), frozenset({"bool"})),
}
# Functions for which NumPy checks each element of an integer second operand: it raises, or returns 0 with a warning.
BY_ELEMENT = frozenset(
    {"power", "float_power", "floor_divide", "remainder", "mod", "fmod", "divmod", "left_shift", "right_shift"}
)
# Functions for which NumPy computes some exponents in a special way.
POWERS = frozenset({"power", "float_power", "power of a number"})


def promoted(name: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs, torch.dtype | None]:
    """The converted arguments of `numpy.<name>`, and the dtype of its result (None: unchanged).

    Raises TypeError if `torch._numpy` is known to differ from NumPy, OverflowError if a dtype cannot hold a number.
    """
    _check(name, args)
    if name == "tensordot":
        _check_sums(*args, **kwargs)
    if name in CHAINED:
        _check_ranks(name, args, kwargs)
    rule = JOINED.get(name)
    first = 1 if name in SEQUENCES or (rule is not None and rule.items) else 0
    args = (*args[:first], *(_array(a) if _has_tensors(a) else a for a in args[first:]))
    kwargs = {k: _array(v) if _has_tensors(v) else v for k, v in kwargs.items()}
    ufunc = getattr(_numpy(), name, None)
    if isinstance(ufunc, _numpy().ufunc):
        if len(args) != ufunc.nin or kwargs:
            raise TypeError(f"numpy.{name} with more than its {ufunc.nin} operands")
        return _for_ufunc(ufunc, args)
    if name in FILLED and len(args) > 1:
        _check_filled(args, kwargs)
    joined = rule is not None and "dtype" not in kwargs
    return (*_joined(rule, args, kwargs), None) if rule is not None and joined else (args, kwargs, None)


def _check(name: str, args: Args) -> None:
    names = {str(a.dtype).removeprefix("torch.") for a in pytree.tree_leaves(args) if isinstance(a, torch.Tensor)}
    other = names & OTHERWISE.get(name, frozenset())
    if name.startswith("fft.") and not name.endswith("shift"):  # the shift functions compute nothing
        other = names - {"float64", "complex128"}
    if name in BY_ELEMENT and not any(n.startswith(("float", "complex")) for n in names):
        by = args[1] if len(args) > 1 else None
        if isinstance(by, (torch.Tensor, list, tuple)) or (isinstance(by, int) and not _harmless(name, by)):
            other = names
    if other:
        raise TypeError(f"numpy.{name} of {', '.join(sorted(names))}")
    ranks = [a.dim() if isinstance(a, torch.Tensor) else 0 for a in args]
    if name == "dot" and len(ranks) == 2 and min(ranks) > 1 and max(ranks) > 2:
        raise TypeError("numpy.dot of arrays with more than two dimensions")


def _check_ranks(name: str, args: Args, kwargs: Kwargs) -> None:
    """torch skips arrays without elements, whatever their rank."""
    if name == "append" and kwargs.get("axis", args[2] if len(args) > 2 else None) is None:
        return
    items = args[0] if args and isinstance(args[0], (list, tuple)) else args[:2]
    if len({max(a.dim(), int(name == "hstack")) for a in items if isinstance(a, torch.Tensor)}) > 1:
        raise TypeError(f"numpy.{name} of arrays of several ranks")


def _check_sums(a: Any, b: Any, axes: Any = 2) -> None:
    """torch broadcasts a dimension of size 1 against longer ones."""
    if type(axes) is int:
        axes = range(-axes, 0), range(axes)
    pairs = zip(*([d] if type(d) is int else d for d in axes), strict=True)
    if any(a.shape[i] != b.shape[j] for i, j in pairs):
        raise TypeError("numpy.tensordot over dimensions of different sizes")


def _check_filled(args: Args, kwargs: Kwargs) -> None:
    """Check that the named dtype, or the dtype of the imitated array, can hold a Python number."""
    dtype = kwargs.get("dtype", args[2] if len(args) > 2 else None) or getattr(args[0], "dtype", None)
    torchs = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    if torchs is not None and not isinstance(args[1], (torch.Tensor, list, tuple)):
        holds(torchs, args[1])


def _harmless(name: str, by: int) -> bool:
    """Whether NumPy and torch agree for every integer combined with this one."""
    if name == "power":
        return by >= 0
    return 0 <= by < 8 if name.endswith("shift") else by not in (0, -1)


def _for_ufunc(ufunc: Any, args: Args) -> tuple[Args, Kwargs, torch.dtype | None]:
    """The arguments converted to the dtypes of the ufunc's loop."""
    made = tuple(_array(a) if isinstance(a, (list, tuple)) else a for a in args)
    if not all(isinstance(a, (torch.Tensor, int, float, complex)) for a in made):
        return made, {}, None
    kinds = [_kind(a, weak=True) for a in made]
    loop = [_torchs(d) for d in ufunc.resolve_dtypes((*kinds, *[None] * ufunc.nout))]
    for number, dtype in zip(made, loop, strict=False):
        if type(number) is int and dtype is not None:
            holds(dtype, number)
    cast = (a.to(d) if isinstance(a, torch.Tensor) and d is not None else a for a, d in zip(made, loop, strict=False))
    return tuple(cast), {}, loop[ufunc.nin] if ufunc.nout == 1 else None


def taken_as(name: str, operands: Sequence[Any]) -> tuple[torch.dtype | None, ...] | None:
    """The dtype in which `numpy.<name>` takes each operand (an array or Python number), then the dtype of its result.

    None if this, or the computation, depends on more than the operands' dtypes.
    """
    ufunc, rule = getattr(_numpy(), name, None), JOINED.get(name)
    if not all(isinstance(v, (torch.Tensor, int, float, complex)) for v in operands) or name in POWERS:
        return None
    kinds = [_kind(v, weak=True) for v in operands]
    if rule is not None and rule.weak and not rule.inexact:
        joined = _torchs(_numpy().result_type(*(_example(kinds[i]) for i in rule.places if i < len(kinds))))
        return (*(joined if i in rule.places else None for i in range(len(kinds))), joined)
    if not isinstance(ufunc, _numpy().ufunc) or len(kinds) != ufunc.nin or ufunc.nout != 1:
        return None
    try:
        loop = tuple(_torchs(d) for d in ufunc.resolve_dtypes((*kinds, None)))
    except TypeError:
        return None
    inexact = all(d is not None and (d.is_floating_point or d.is_complex) for d in loop)
    return None if name in BY_ELEMENT and not inexact else loop


def _joined(rule: Joined, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The operands named by a rule, converted to their common dtype."""
    if rule.items:
        items = [_array(a) for a in args[0]] if args and isinstance(args[0], (list, tuple)) else []
        return ([*_as_one(items, rule)], *args[1:]) if items else args, kwargs
    places: list[Any] = [i for i in rule.places if i < len(args) and args[i] is not None]
    names = [n for n in rule.names if kwargs.get(n) is not None]
    given = [args[i] for i in places] + [kwargs[n] for n in names]
    if not all(isinstance(v, (torch.Tensor, int, float, complex, list, tuple)) for v in given):
        return args, kwargs
    if rule.inexact and not any(isinstance(v, torch.Tensor) for v in given):
        return args, kwargs
    made: dict[Any, Any] = dict(zip([*places, *names], _as_one(given, rule), strict=True))
    if rule.inexact:  # `torch._numpy` returns the requested dtype, or float64
        kwargs = {**kwargs, "dtype": str(dtype_of(made[places[0]].dtype).name)}
    return tuple(made.get(i, a) for i, a in enumerate(args)), {k: made.get(k, v) for k, v in kwargs.items()}


def _as_one(values: list[Any], rule: Joined) -> Iterator[Any]:
    values = [_array(v) if isinstance(v, (list, tuple)) else v for v in values]
    kinds = [_kind(v, weak=rule.weak) for v in values]
    more: list[Any] = [1.0] if rule.inexact else []
    if rule.doubles and kinds[0].kind in "biu":
        more = [_numpy().dtype(float)]
    dtype = _torchs(_numpy().result_type(*(_example(k) for k in kinds), *more))
    if dtype is None:
        raise TypeError("numbers whose NumPy dtype is not a dtype of tensors")
    device = _device_of(values)
    for value in values:
        yield value.to(dtype) if isinstance(value, torch.Tensor) else _stored(dtype, value, device)


def _kind(value: Any, *, weak: bool) -> Any:
    """The dtype of an operand; the class `int`, `float` or `complex` for a weak number."""
    if isinstance(value, torch.Tensor):
        return dtype_of(value.dtype)
    return type(value) if weak and type(value) is not bool else _numpy().asarray(value).dtype


def _example(kind: Any) -> Any:
    return kind(1) if isinstance(kind, type) else kind


def _torchs(dtype: Any) -> torch.dtype | None:
    return getattr(torch, dtype.name, None)


def _stored(dtype: torch.dtype, number: Any, device: torch.device | None) -> torch.Tensor:
    holds(dtype, number)
    return torch.full((), number, dtype=dtype, device=device)


def _device_of(values: list[Any]) -> torch.device | None:
    return next((v.device for v in values if isinstance(v, torch.Tensor)), None)


def holds(dtype: torch.dtype, number: Any) -> None:
    """Raises NumPy's exception if a number cannot be stored into an array of this dtype."""
    _numpy().empty((), dtype_of(dtype))[()] = number


# lists --------------------------------------------------------------------------------------------------------
def _has_tensors(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) or _has_tensors(v) for v in value)


def _array(value: Any) -> torch.Tensor:
    """`numpy.array` of nested lists: every element is strong."""
    leaves = pytree.tree_leaves(value)
    dtype = _torchs(_numpy().result_type(*(_kind(v, weak=False) for v in leaves))) if leaves else None
    if dtype is None:
        raise TypeError("a list that cannot become a tensor")
    return _stacked(value, dtype, _device_of(leaves))


def _stacked(value: Any, dtype: torch.dtype, device: torch.device | None) -> torch.Tensor:
    if isinstance(value, (list, tuple)):
        return torch.stack([_stacked(v, dtype, device) for v in value])
    return value.to(dtype) if isinstance(value, torch.Tensor) else _stored(dtype, value, device)


# in place -----------------------------------------------------------------------------------------------------
IN_PLACE = {"__iadd__": "add", "__isub__": "subtract", "__imul__": "multiply", "__itruediv__": "divide",
            "__ifloordiv__": "floor_divide", "__imod__": "remainder", "__ipow__": "power", "__iand__": "bitwise_and",
            "__ior__": "bitwise_or", "__ixor__": "bitwise_xor", "__ilshift__": "left_shift",
            "__irshift__": "right_shift"}  # fmt: skip


def check_fits(made: torch.Tensor, array: torch.Tensor) -> None:
    """Raises TypeError if NumPy refuses to write a result into an array."""
    if made.shape != array.shape or not _numpy().can_cast(dtype_of(made.dtype), dtype_of(array.dtype), "same_kind"):
        raise TypeError(
            f"a write of {made.dtype} {list(made.shape)} into an array of {array.dtype} {list(array.shape)}"
        )
