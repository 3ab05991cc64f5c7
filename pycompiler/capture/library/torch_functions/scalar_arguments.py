"""Operators with a number argument, called with a tensor that holds the number.  Eager reads it; a graph computes with
the tensor.

In: the call.
Out: the same values by operators on tensors, if the dtypes guarantee equal results.  Otherwise the call is recorded
as written, which breaks the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, TypeGuard

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.semantics import polyfills
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.symbolic_numbers import Symbolic
from pycompiler.capture.values.tensor import METHODS, Tensor

WIDE = frozenset({torch.float32, torch.float64})  # kernels compute in them, and round a number to them
SMALL = frozenset({torch.float16, torch.bfloat16})


def _number(value: Value | None) -> torch.Tensor | None:
    """The fake of a zero-dimensional tensor that needs no gradient: eager's number has none."""
    fake = value.fake if isinstance(value, Tensor) else None
    return fake if fake is not None and fake.dim() == 0 and not fake.requires_grad else None


def _is_list(value: Value) -> TypeGuard[List | Tuple]:
    return isinstance(value, (List, Tuple))


def _alike(cx: Capture, number: Value, *lists: Value) -> bool:
    """Whether all these are lists of floating-point tensors of the number's dtype and device."""
    one = _number(number)
    if one is None or not one.dtype.is_floating_point or not all(_is_list(v) for v in lists):
        return False
    tensors = [cx.realize(item) for v in lists for item in v.iterate(cx)]
    return all(isinstance(t, Tensor) and (t.dtype, t.device) == (one.dtype, one.device) for t in tensors)


@builtin(torch._foreach_pow)
def foreach_pow(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 2 or kwargs or not _alike(cx, args[0], args[1]):
        return cx.graph.call_function(torch._foreach_pow, args, kwargs)
    made = [cx.graph.call_function(torch.pow, [args[0], e], {}) for e in args[1].iterate(cx)]
    return cx.sequence(made, tuple)


def _lerp(fn: Any, single: Callable[[Capture, list[Value]], Value], *, in_place: bool) -> None:
    @builtin(fn)
    def call(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if len(args) != 3 or kwargs or (weights := _weights(cx, args)) is None:
            return cx.graph.call_function(fn, args, kwargs)
        starts, ends = ([*v.iterate(cx)] for v in args[:2])
        if not len(starts) == len(ends) == len(weights):
            return cx.graph.call_function(fn, args, kwargs)
        made = [single(cx, [*row]) for row in zip(starts, ends, weights, strict=True)]
        return args[0] if in_place else cx.sequence(made, tuple)


def _weights(cx: Capture, args: Args) -> list[Value] | None:
    """A weight for each tensor of a list: one weight for all, or a list of numbers, in the tensors' dtype."""
    if _alike(cx, args[2], args[0], args[1]):
        return [args[2] for _ in args[0].iterate(cx)]
    if not all(_is_list(v) for v in args):
        return None
    starts, ends, weights = ([cx.realize(item) for item in v.iterate(cx)] for v in args)
    if not weights or not all(map(cx.items.is_number, weights)) or not _are_of_one_dtype(cx, (starts, ends), WIDE):
        return None
    dtype = next(t.dtype for t in starts if isinstance(t, Tensor))
    return [cx.graph.call_method("to", [w, Const(dtype)], {}) for w in weights]


_lerp(torch._foreach_lerp, lambda cx, given: cx.graph.call_function(torch.lerp, given, {}), in_place=False)
_lerp(torch._foreach_lerp_, lambda cx, given: cx.graph.call_method("lerp_", given, {}), in_place=True)


def _scaled(fn: Any, single: Callable[..., Any]) -> None:
    """`x += number * y / z` (or `* z`) for lists, one tensor at a time, with the number as a tensor."""

    @builtin(fn)
    def call(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        plain = len(args) == 4 and not kwargs and all(_is_list(v) for v in args[:3])
        if not plain or (numbers := _numbers(cx, args[3])) is None:
            return cx.graph.call_function(fn, args, kwargs)
        lists = [[*v.iterate(cx)] for v in args[:3]]
        if any(len(v) != len(numbers) for v in lists) or not _are_of_one_dtype(cx, lists, WIDE | SMALL):
            return cx.graph.call_function(fn, args, kwargs)
        for x, y, z, number in zip(*lists, numbers, strict=True):
            cx.call(cx.make(single), [x, y, z], {"value": number})
        return args[0]


def _numbers(cx: Capture, given: Value) -> list[Value] | None:
    """One tensor per number: from a list of them, or from one tensor that has all."""
    if _is_list(given):
        found = [cx.realize(item) for item in given.iterate(cx)]
    elif isinstance(given, Tensor) and given.rank == 1 and not given.requires_grad:
        count = given.shape[0]
        found = [cx.graph.call_method("select", [given, Const(0), Const(i)], {}) for i in range(count)]
    else:
        return None
    known = [_number(n) for n in found]
    return found if known and all(n is not None and n.dtype.is_floating_point for n in known) else None


def _are_of_one_dtype(cx: Capture, lists: Sequence[list[Value]], dtypes: Set[torch.dtype]) -> bool:
    """Whether all are tensors of one dtype, one of `dtypes`."""
    tensors = [cx.realize(item) for items in lists for item in items]
    found = {t.dtype if isinstance(t, Tensor) else None for t in tensors}
    return len(found) == 1 and found <= dtypes


_scaled(torch._foreach_addcdiv_, polyfills.addcdiv_)
_scaled(torch._foreach_addcmul_, polyfills.addcmul_)


@builtin(torch._foreach_mul_)
def foreach_mul_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Kernels of small dtypes on the CPU round the number to the dtype here, but not in `_foreach_mul`."""
    if len(args) == 2 and not kwargs and _is_list(args[0]):
        tensors = [cx.realize(item) for item in args[0].iterate(cx)]
        listed = _is_list(args[1])
        numbers = [cx.realize(n) for n in args[1].iterate(cx)] if listed else [args[1]] * len(tensors)
        if (
            tensors
            and len(numbers) == len(tensors)
            and all(_is_rounded(cx, x, n) for x, n in zip(tensors, numbers, strict=True))
        ):
            for x, number in zip(tensors, numbers, strict=True):
                kind: dict[str, Value] = {"dtype": Const(torch.float64), "device": Const(torch.device("cpu"))}
                made = cx.graph.call_function(torch.full, [Tuple([]), number], kind)  # no number overflows
                rounded = cx.graph.call_method("to", [made, Const(x.dtype)], {})  # type: ignore[attr-defined]
                cx.graph.call_method("mul_", [x, rounded], {})
            return args[0]
    return cx.graph.call_function(torch._foreach_mul_, args, kwargs)


def _is_rounded(cx: Capture, x: Value, number: Value) -> bool:
    """Whether `x` has a small dtype on the CPU, and the number is a float.

    The derivative takes the number as it is, so a product that records a gradient is left out.
    """
    if not _are_small(cx, [x, x]) or x.device.type != "cpu" or (torch.is_grad_enabled() and x.requires_grad):  # type: ignore[attr-defined]
        return False
    return type(getattr(number, "value", None)) is float or type(getattr(number, "sym", None)) is torch.SymFloat


def _method(
    name: str,
    taken: Callable[[Capture, Args, Kwargs], Value | None],
    how: Callable[[Capture, Tensor, Value, Value], Value],
    *,
    rounds: bool,
) -> None:
    """Register a tensor method, called with a number that stays a tensor: `how` builds it from other operators.

    Kernels compute small dtypes in single precision.  They take the number in single precision, or first rounded to
    the dtype itself if the kernel `rounds`.
    """

    def method(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        number = taken(cx, args, kwargs)
        if number is None or not cx.items.is_number(number) or not isinstance(args[0], Tensor):
            return cx.graph.call_method(name, args, kwargs)
        if _computes_wide(cx, args):
            return how(cx, args[0], args[1], number)
        if not _are_small(cx, args):
            raise Break(
                "data-dependent-value",
                f"Tensor.{name}() with a number read from a tensor, for dtypes that are not captured",
            )
        wide = [cx.graph.call_method("to", [t, Const(torch.float32)], {}) for t in args[:2]]
        if rounds and args[0].device.type == "cpu":
            number = cx.graph.call_method("to", [number, Const(args[0].dtype)], {})
        number = cx.graph.call_method("to", [number, Const(torch.float32)], {})
        made = how(cx, wide[0], wide[1], number)  # type: ignore[arg-type]
        return cx.graph.call_method("copy_", [args[0], made], {})

    METHODS[name] = method


def _computes_wide(cx: Capture, args: Args) -> bool:
    """Whether an operator that writes the first of two tensors computes in its dtype, and rounds numbers to it."""
    start, other = (cx.realize(v) for v in args[:2])
    if not isinstance(start, Tensor) or not isinstance(other, Tensor) or not _are_of_one_dtype(cx, ([start],), WIDE):
        return False
    dtype, given = start.dtype, other.dtype
    return given.is_floating_point and torch.promote_types(dtype, given) == dtype


def _are_small(cx: Capture, args: Args) -> bool:
    """Whether both tensors have a dtype that kernels compute in single precision."""
    dtypes = [t.dtype if isinstance(t, Tensor) else None for t in map(cx.realize, args[:2])]
    return dtypes[0] == dtypes[1] and dtypes[0] in SMALL


def _weight(cx: Capture, args: Args, kwargs: Kwargs) -> Value | None:
    return args[2] if len(args) == 3 and not kwargs else None


def _alpha(cx: Capture, args: Args, kwargs: Kwargs) -> Value | None:
    """The `alpha` of `add_`. A number in a tensor of the program is taken as a Python number."""
    alpha = kwargs.get("alpha") if len(args) == 2 and len(kwargs) == 1 else None
    if isinstance(alpha, Tensor) and alpha.dtype is torch.bool:  # eager refuses it
        return None
    if not isinstance(alpha, Tensor) or cx.items.is_number(alpha) or _number(alpha) is None:
        return alpha
    return cx.items.take(alpha) if _computes_wide(cx, args) else alpha


def _lerped(cx: Capture, start: Tensor, end: Value, number: Value) -> Value:
    weight = cx.graph.call_method("to", [number, Const(start.dtype)], {})
    return cx.graph.call_method("lerp_", [start, end, weight], {})


def _added(cx: Capture, start: Tensor, other: Value, number: Value) -> Value:
    wide = cx.graph.call_method("to", [other, Const(start.dtype)], {})
    return cx.graph.call_method("add_", [start, cx.graph.call_function(torch.mul, [wide, number], {})], {})


_method("lerp_", _weight, _lerped, rounds=False)
_method("add_", _alpha, _added, rounds=True)


@builtin(torch.nn.functional.batch_norm)
def batch_norm(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`batch_norm` with a momentum that changes from call to call (``BatchNorm2d(momentum=None)``): kernels take a
    number."""
    given = dict(
        zip(("input", "running_mean", "running_var", "weight", "bias", "training", "momentum"), args, strict=False)
    )
    given |= kwargs
    if not isinstance(cx.realize(given.get("momentum", Const(None))), Symbolic):
        return cx.graph.call_function(torch.nn.functional.batch_norm, args, kwargs)
    if (found := cx.functions.ask(torch.nn.functional.batch_norm, args, kwargs)) is not None:
        return found
    return cx.call(cx.make(polyfills.batch_norm), args, kwargs)


# The dtype of `full` for a number of each dtype; for floating-point numbers it is the default dtype.
_KINDS: dict[torch.dtype, torch.dtype] = {torch.bool: torch.bool} | dict.fromkeys(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), torch.int64
)


def _expect_held(cx: Capture, number: Value, dtype: torch.dtype) -> None:
    """Assume that a dtype can hold the number: eager refuses a number that overflows."""
    fake = _number(number)
    assert fake is not None
    given, dtype = fake.dtype, dtype.to_real()
    if dtype is torch.bool or given is torch.bool or given == dtype:
        return
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if given.is_floating_point and dtype.is_floating_point and torch.finfo(given).max <= limits.max:
        return
    if not given.is_floating_point and limits.min <= torch.iinfo(given).min and torch.iinfo(given).max <= limits.max:
        return
    wide = cx.graph.call_method("to", [number, Const(torch.float64)], {})
    size = cx.graph.call_function(torch.abs, [wide], {})
    held = cx.graph.call_function(torch.lt, [size, Const(float(limits.max))], {})
    if dtype.is_floating_point:  # a floating-point dtype has NaN and infinities
        edge = cx.graph.call_function(torch.le, [size, Const(float(limits.max))], {})
        finite = cx.graph.call_function(torch.isfinite, [wide], {})
        held = cx.graph.call_function(
            torch.logical_or, [edge, cx.graph.call_function(torch.logical_not, [finite], {})], {}
        )
    if not isinstance(held, Tensor) or not cx.graph.expect(held, True):
        raise Break("data-dependent-value", f"a number read from a tensor that may be out of the range of {dtype}")


@builtin(torch.full)
def full(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`full` with a tensor on the CPU: its value, spread over the size."""
    given = dict(zip(("size", "fill_value"), args, strict=False)) | kwargs
    number = _number(given.get("fill_value"))
    if (found := cx.functions.ask(torch.full, args, kwargs)) is not None:
        return found
    plain = given.keys() <= {"size", "fill_value", "dtype"} and len(args) <= 2
    if (
        number is None
        or not plain
        or cx.device
        or number.dtype.is_complex
        or torch.get_default_device() != number.device
    ):
        return cx.graph.call_function(torch.full, args, kwargs)
    dtype = given.get("dtype", Const(None))
    if cx.is_none(dtype):
        dtype = Const(_KINDS.get(number.dtype, torch.get_default_dtype()))
    _expect_held(cx, given["fill_value"], dtype.const())
    made = cx.graph.call_function(torch.empty, [given["size"]], {"dtype": dtype})
    return cx.graph.call_method("fill_", [made, given["fill_value"]], {})


@builtin(torch.full_like)
def full_like(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`full_like` with a tensor of one number, like `full`."""
    number = _number(args[1]) if len(args) == 2 and not kwargs else None
    if (
        number is None
        or not number.dtype.is_floating_point
        or cx.functions.concerns(args, {})
        or not _are_of_one_dtype(cx, (args[:1],), WIDE)
    ):
        return cx.graph.call_function(torch.full_like, args, kwargs)
    _expect_held(cx, args[1], args[0].dtype)  # type: ignore[attr-defined]
    return cx.graph.call_method("fill_", [cx.graph.call_function(torch.empty_like, args[:1], {}), args[1]], {})
