"""Calls of NumPy's functions, methods and operators: nodes of the graph (`ir/arrays.py`).

In: the call, and what it is given.  Out: an array of the node's tensor, or the number of it.  What is computed of
numbers alone is computed by NumPy, at once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture import converted
from pycompiler.capture.breaks import Break
from pycompiler.capture.numpy_checks import (
    check_key,
    check_options,
    check_squeezed,
    check_vectors,
    check_weights,
    check_write,
    ellipses,
    flat,
    part,
    steps_back,
    type_of,
)
from pycompiler.capture.numpy_layouts import as_numpy
from pycompiler.capture.values.array import LEFT_OUT, READS, WRITES, Array, is_number, is_wrapped, of_tensor, to_tensor
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.dicts import Dict
from pycompiler.capture.values.sequences import List, Slice, Tuple
from pycompiler.capture.values.symbolic import Symbolic
from pycompiler.capture.values.tensor import Tensor, item
from pycompiler.ir import arrays, promotion
from pycompiler.ir.computed import element_of
from pycompiler.ir.source import const as const_source


def call_method(cx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`args[0].<name>(*args[1:])` of an array."""
    array = args[0]
    assert isinstance(array, Array)
    if name in READS and len(args) == 1 and not kwargs and (number := array.number()) is not None:
        return number
    if name in READS and len(args) == 1 and not kwargs and cx.graph.takes_items():
        return item(cx, array.tensor, name)
    if name in ("conj", "conjugate") and len(args) == 1 and not kwargs and "complex" not in (type_of(array) or ""):
        return array  # NumPy gives the very array
    if name in LEFT_OUT or name in arrays.LEFT_OUT:
        raise Break("data-dependent-value", f"numpy.ndarray.{name}()")
    if name in ("__getitem__", "__setitem__") and steps_back(args[1]):
        raise Break("unsupported-operation", "an array by a slice that steps backwards: a view, which no tensor can be")
    if name in ("__getitem__", "__setitem__"):
        check_key(array, _plain_key(args[1]), cx.realize(args[2]) if len(args) > 2 else None)
    if name in ("__getitem__", "__setitem__") and ellipses(args[1]) > 1:
        raise Break("unsupported-operation", "an array by several ellipses")
    check_squeezed(cx, name, args, kwargs)
    check_options(cx, name, args, kwargs, of_method=True)
    if name == "copy" and len(args) == 1 and not kwargs and not array.scalar:  # in order, however the array lies
        made = cx.graph.call_method("clone", [array.tensor], {"memory_format": Const(torch.contiguous_format)})
        assert isinstance(made, Tensor)
        return Array(made)
    if name in ("__getitem__", "__setitem__"):
        args = [array, _plain_key(args[1]), *args[2:]]
    writes = name in WRITES
    if writes and array.scalar:
        raise Break("unsupported-operation", f"numpy.{array.python_type().__name__}.{name}()")
    if name in ("__setitem__", "fill") and len(args) > 1:
        args = [*args[:-1], _of_number(cx, cx.realize(args[-1]), array.tensor.fake.dtype, array)]
    if writes:
        check_write(cx, array, args[1:])
        args = [*args[:-1], _apart(cx, args[-1])] if len(args) > 1 else args
    if name == "__getitem__":
        scalar = not ellipses(args[1])
    else:
        scalar = array.scalar or name not in arrays.ARRAYS | {"astype", "flatten", "ravel"}
    made = record(cx, arrays.method, [Const(name), *args], kwargs, writes, scalar=scalar)
    return _element(cx, array, args[1], made) if name == "__getitem__" else made


def attribute(cx: Capture, name: str, array: Value) -> Value:
    """`array.<name>`: another array in its memory."""
    assert isinstance(array, Array)
    return part(array, name, record(cx, arrays.attribute, [Const(name), array], {}, scalar=array.scalar))


def _element(cx: Capture, array: Array, key: Value, made: Value) -> Value:
    """An element of an existing array, while nothing has been written, is read as a number when the call begins, where somebody
    wants it."""
    places = key.items if isinstance(key, Tuple) and key.cls is tuple else [key]
    plain = all(isinstance(k, Const) and type(k.value) is int for k in places)
    source, real = array.source, None if array.scalar else array.tensor.real
    quiet = not (cx.graph.written or cx.graph.happened or cx.effects)
    if not (plain and quiet and isinstance(made, Array) and made.scalar) or source is None or real is None:
        return made
    if not arrays.is_taken(made.python_type()):
        return made
    at = [k.const() for k in places]

    def known() -> Value:
        return cx.wrap(element_of(real, *at), cx.computed(element_of, source, *map(const_source, at)))

    return Array.number_of(made.python_type(), lambda: made.tensor, known)


def _plain_key(key: Value) -> Value:
    """NumPy's integers that are known index as Python's do."""
    if isinstance(key, Tuple):
        return Tuple([_plain_key(k) for k in key.items])
    if isinstance(key, Slice):
        return Slice([_plain_key(part) for part in key.parts])
    if isinstance(key, Const) and arrays.is_number(key.value) and key.value.dtype.kind in "iu":
        return Const(operator.index(key.value))
    return key


def call_function(cx: Capture, fn: Any, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function of NumPy's."""
    if not any(_concerns(cx, v) for v in (*args, *kwargs.values())) and name.split(".")[-1] not in arrays.MAKES:
        return _of_numbers(cx, fn, args, kwargs)
    if name == "ascontiguousarray":
        return _in_order(cx, args, kwargs)
    check_options(cx, name, args, kwargs, of_method=False)
    check_vectors(name, args)
    check_squeezed(cx, name, args, kwargs)
    if name == "average":
        weights = cx.realize(kwargs["weights"] if "weights" in kwargs else args[2] if len(args) > 2 else Const(None))
        if isinstance(weights, (Tuple, List)):
            weights = record(cx, arrays.function, [Const("array"), weights], {})
        check_weights(cx, weights)
        args = [*args[:2], weights, *args[3:]] if len(args) > 2 else args
        kwargs = {**kwargs, "weights": weights} if "weights" in kwargs else kwargs
    dtype = kwargs.get("dtype", args[3] if len(args) > 3 else Const(None))
    if name == "arange" and not cx.is_none(dtype) and argument(cx, dtype).const() == "bool":
        raise Break("unsupported-operation", "numpy.arange of bool")
    if name in arrays.LIKES and args and isinstance(first := cx.realize(args[0]), Tensor):
        args = [of_tensor(cx, first, [], {}), *args[1:]]
    of_number = name in arrays.EITHER and isinstance(first := cx.realize(args[0]), Array) and first.scalar
    made = record(cx, arrays.function, [Const(name), *args], kwargs, scalar=of_number or name not in arrays.ARRAYS)
    return part(cx.realize(args[0]) if args else None, name, made)


def beside(cx: Capture, op: str, left: Value, right: Value) -> tuple[Value, Value]:
    """The operands of an operator, of which a number of NumPy's is one of Python's beside a tensor."""
    if not (isinstance(left, Tensor) or isinstance(right, Tensor)):
        return left, right
    for value in (left, right):
        if isinstance(value, Const) and arrays.is_number(value.value) and not arrays.is_taken(type(value.value)):
            raise Break("unsupported-operation", f"{value.describe()}, which torch takes for a float, beside a tensor")
    return _operand(op, left, right), _operand(op, right, left)


def _operand(op: str, value: Value, other: Value) -> Value:
    """A float that is computed of data is a tensor without dimensions where that does as a number does: it leaves the dtype of a
    tensor of floats as it is."""
    number = value.plain_number()
    if not isinstance(number, Array) or not number.scalar or not isinstance(other, Tensor) or other.is_special:
        return number
    floats = number.tensor.fake.dtype.is_floating_point and other.fake.dtype.is_floating_point
    return number.tensor if floats and other.fake.dim() and op.rstrip("=") != "**" else number


def tensor_of_both(cx: Capture, op: str, left: Tensor, right: Value) -> Value:
    """A tensor and an array: torch leaves it to the array, which takes the tensor for one; the result is a tensor."""
    if (
        op not in ("+", "-", "*", "/", "@")
        or not isinstance(right, Array)
        or not right.tensor.fake.dim()
        or left.is_special
    ):
        raise Break("unsupported-operation", f"{left.describe()} {op} {right.describe()}")
    made = binary(cx, op, "", of_tensor(cx, left, [], {}), right)
    if not isinstance(made, Array):
        return made
    if made.tensor.fake.dtype is torch.bool:  # by `Tensor.__array_wrap__`
        return cx.graph.call_method("to", [made.tensor, Const(torch.uint8)], {})
    return to_tensor(cx, made)


def _apart(cx: Capture, value: Value) -> Value:
    """A copy of an array that is read by what may write into its memory: NumPy reads before it writes."""
    value = cx.realize(value)
    if not isinstance(value, Array) or value.scalar:
        return value
    made = cx.graph.call_method("clone", [value.tensor], {})
    assert isinstance(made, Tensor)
    return Array(made)


def _in_order(cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`numpy.ascontiguousarray(a)`: the very array where it lies in order, else a copy."""
    array = cx.realize(args[0]) if len(args) == 1 and not kwargs else None
    if not isinstance(array, Array) or array.scalar or array.tensor.fake.dim() == 0:
        raise Break("unsupported-operation", "numpy.ascontiguousarray of what is no array, or to another dtype")
    return array if array.tensor.fake.is_contiguous() else call_method(cx, "copy", [array], {})


def make_scalar(cx: Capture, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`numpy.float32(x)` and its like."""
    if len(args) != 1 or kwargs or not _concerns(cx, args[0]):
        return _of_numbers(cx, cls, args, kwargs)
    return record(cx, arrays.scalar, [argument(cx, cx.make(cls)), *args], kwargs, scalar=True)


def of_dtypes(cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What NumPy says of dtypes."""
    known = [v.const() for v in map(cx.realize, args) if v.is_const()]
    if kwargs or len(known) < len(args) or not all(map(arrays.says_dtype, known)):
        raise Break("builtin-call", f"numpy.{fn.__name__}({', '.join(v.describe() for v in args)})")
    return cx.evaluate(fn, *known)


def _of_numbers(cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What NumPy computes of constants: a number, or a constant of another kind."""
    made = cx.evaluate_raw(fn, *(cx.snapshot(v) for v in args), **{k: cx.snapshot(v) for k, v in kwargs.items()})
    if _has_array(made):
        raise Break("builtin-call", f"{getattr(fn, '__name__', fn)} of what is no array gives one")
    return cx.make(made)


def _has_array(value: Any) -> bool:
    return arrays.is_array(value) or (isinstance(value, (tuple, list, dict)) and any(map(_has_array, value)))


def _concerns(cx: Capture, value: Value) -> bool:
    """Whether an array is among the values."""
    value = cx.realize(value)
    if isinstance(value, (Tuple, List)):
        return any(_concerns(cx, v) for v in value.items)
    return isinstance(value, (Array, Tensor, Symbolic))


OPERATORS = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "//": "floor_divide", "%": "remainder", "**": "power",
    "@": "matmul", "&": "bitwise_and", "|": "bitwise_or", "^": "bitwise_xor", "<<": "left_shift", ">>": "right_shift",
    "<": "less", "<=": "less_equal", "==": "equal", "!=": "not_equal", ">": "greater", ">=": "greater_equal",
}  # fmt: skip


COMPARED = frozenset(("<", "<=", "==", "!=", ">", ">="))


PYTHONS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "power": operator.pow, "matmul": operator.matmul,
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor, "left_shift": operator.lshift,
    "right_shift": operator.rshift, "less": operator.lt, "less_equal": operator.le, "equal": operator.eq,
    "not_equal": operator.ne, "greater": operator.gt, "greater_equal": operator.ge, "negative": operator.neg,
    "positive": operator.pos, "invert": operator.invert,
}  # fmt: skip
"""Operators by the names of NumPy's functions, which may give another dtype: a power of truths."""
UNARY = {"-": "negative", "+": "positive", "~": "invert"}


def binary(cx: Capture, op: str, special: str, left: Value, right: Value) -> Value:
    """`left <op> right`, a comparison, or in place `left <op>= right` by the method `special`."""
    if "**" in op:
        left, right = (v.settle("beside an array") for v in (left, right))
    for value in (left, right):
        if not isinstance(value, (Array, Const, Symbolic)) or isinstance(value, Const) and not is_number(value.value):
            raise Break("unsupported-operation", f"{left.describe()} {op} {right.describe()}")
    if op in OPERATORS or not isinstance(left, Array) or left.scalar:
        name = OPERATORS[op if op in OPERATORS else op[:-1]]
        name = power_of(left, right) if name == "power" else name
        return record(cx, arrays.function, [Const(name), left, right], {}, scalar=True)
    if left.fixed or op == "@=":
        raise Break("unsupported-operation", f"{left.describe()} {op} {right.describe()}, {left.fixed}")
    return record(cx, arrays.method, [Const(special), left, right], {}, True)


def power_of(base: Value, exponent: Value) -> str:
    """By what name a power is computed: NumPy takes a root of an array, and none of a number."""
    half = isinstance(exponent, Const) and type(exponent.value) is float and abs(exponent.value) == 0.5
    real = half and isinstance(base, Array) and base.scalar and not base.tensor.fake.is_complex()
    return "power of a number" if real else "power"


def unary(cx: Capture, op: str, value: Array) -> Value:
    return record(cx, arrays.function, [Const(UNARY[op]), value], {}, scalar=True)


def record(
    cx: Capture, target: Callable[..., Any], args: list[Value], kwargs: dict[str, Value], writes: bool = False, *,
    scalar: bool = False,
) -> Value:  # fmt: skip
    """A node of the graph; its tensors are arrays again, or numbers where they have no dimensions and `scalar` says so."""
    if cx.call_builtin(arrays.raises_errors, [], {}).const():
        raise Break("unsupported-operation", "a call of NumPy's under numpy.errstate, which may raise")
    scalar = scalar and not is_wrapped(cx)
    given = [*args, *kwargs.values()]
    name = str(args[0].const()) if target is not arrays.scalar else ""
    if name and not kwargs:
        args = [args[0], *_taken(cx, name, [cx.realize(v) for v in args[1:]])]
    sizes = arrays.SIZED.get(name, range(0))
    plain = [argument(cx, v, size=i in sizes) for i, v in enumerate(args)]
    named = {k: argument(cx, v, size=k == "shape" and bool(sizes)) for k, v in kwargs.items()}
    value = cx.graph.call_function(target, plain, named, always=writes)
    value = value if writes else as_numpy(cx, target, plain, named, value)
    return _result(cx, value, [v for v in flat(cx, given) if isinstance(v, Array)], name, scalar)


def _taken(cx: Capture, name: str, values: list[Value]) -> list[Value]:
    """The operands of a call, of which numbers that change from call to call are arrays of what NumPy makes of them."""
    array = next((v for v in values if isinstance(v, Array)), None)
    if array is None or not any(isinstance(v, Symbolic) for v in values):
        return values
    operands = [_like(v) for v in values]
    dtypes = promotion.taken_as(promotion.IN_PLACE.get(name, name), operands)
    if dtypes is None or name in promotion.IN_PLACE and dtypes[-1] != array.tensor.fake.dtype:
        return values
    return [_of_number(cx, v, dtype, array) for v, dtype in zip(values, dtypes)]


def _of_number(cx: Capture, value: Value, dtype: torch.dtype | None, array: Array) -> Value:
    """A number that changes from call to call as an array of a dtype beside another one; any other value as it is."""
    device = array.tensor.fake.device
    made = converted.array_of(cx, value, dtype, device) if isinstance(value, Symbolic) else None
    return value if made is None else Array(made)


def _like(value: Value) -> Any:
    """What stands for an operand: a fake, or a number of its class."""
    if isinstance(value, Array):
        return value.tensor.fake
    return value.python_type()(1) if isinstance(value, Symbolic) else value.const() if value.is_const() else None


def argument(cx: Capture, value: Value, *, size: bool = False) -> Value:
    """What goes into the graph: tensors for arrays, names for dtypes; numbers that change from call to call only as a size."""
    value = cx.realize(value)
    if size and isinstance(value, Symbolic) and value.python_type() is int:
        return value
    value = value.settle("as an argument of a function of NumPy's")
    if isinstance(value, Array):
        return value.tensor
    if isinstance(value, Tensor):
        raise Break("unsupported-operation", "a tensor among the arguments of a function of NumPy's")
    if isinstance(value, (Const, Class)):
        real = value.const() if isinstance(value, Const) else value.cls
        name = arrays.dtype_name(real) or (arrays.PLAIN_DTYPES.get(real) if isinstance(real, type) else None)
        if name is not None:
            if arrays.is_unknown(name):
                raise Break("unsupported-type", f"numpy.{name}")
            return Const(name)
        if isinstance(real, slice) and any(map(arrays.is_number, (real.start, real.stop, real.step))):
            numbers = (n if n is None else operator.index(n) for n in (real.start, real.stop, real.step))
            return Const(slice(*numbers))
        if isinstance(real, str) and real == "mergesort":  # which `torch._numpy` takes for any kind
            return Const("stable")
        if isinstance(real, str) and arrays.names_unknown(real):
            raise Break("unsupported-type", f"numpy.dtype({real!r})")
        module = arrays.numpy()
        if module is not None and isinstance(real, module.generic):
            dtype = argument(cx, cx.make(real.dtype))
            return cx.graph.call_function(arrays.scalar, [dtype, Const(real.item())], {})
        return value
    if type(value) is Tuple:
        return Tuple([argument(cx, v, size=size) for v in value.items])
    if type(value) is List:
        return List([argument(cx, v, size=size) for v in value.items])
    if isinstance(value, Slice):
        return Slice([argument(cx, p) for p in value.parts])
    if isinstance(value, Dict):
        return value
    raise Break("unsupported-operation", f"{value.describe()} among the arguments of a function of NumPy's")


def _result(cx: Capture, value: Value, given: list[Array], name: str, scalar: bool) -> Value:
    """Arrays for tensors; what is one of the arguments stays that, what NumPy gives as new does not share their memory."""
    if isinstance(value, (Tuple, List)):
        items = [_result(cx, v, given, name, scalar) for v in value.items]
        return cx.sequence(items, arrays.result_class(name))
    if not isinstance(value, Tensor):
        return value
    scalar = scalar and value.fake.dim() == 0
    known = next((v for v in given if v.tensor is value), None)
    if known is None and name in arrays.SAME:
        known = next((v for v in given if not v.scalar and _is_same(v.tensor.fake, value.fake)), None)
    if known is not None and known.scalar and name == "asarray":  # a new array of a number
        copied = cx.graph.call_method("clone", [value], {})
        assert isinstance(copied, Tensor)
        return Array(copied)
    if known is not None and (name in arrays.SAME or name in WRITES or name.startswith("__i")):
        return known
    if known is not None and name in arrays.VIEWS and not known.scalar:
        value = to_tensor(cx, known)
    shares = [v for v in given if _memory(v.tensor) == _memory(value)]
    if shares and (scalar or name not in arrays.VIEWS or any(v.scalar for v in shares)):
        copy = cx.graph.call_method("clone", [value], {})
        assert isinstance(copy, Tensor)
        return Array(copy, scalar=scalar)
    return Array(value, scalar=scalar, fixed=next((v.fixed for v in shares), ""))


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a view is all of what it views."""
    same = a.untyped_storage()._cdata == b.untyped_storage()._cdata and a.dtype == b.dtype
    return same and a.shape == b.shape and a.stride() == b.stride()


def _memory(tensor: Tensor) -> int:
    return int(tensor.fake.untyped_storage()._cdata)
