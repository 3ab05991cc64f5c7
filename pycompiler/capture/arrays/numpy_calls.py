"""Calls of NumPy's functions, methods and operators: graph nodes (`operators/numpy_arrays.py`).

In: a call with its arguments.  Out: an array of the node's tensor, or its number.  NumPy computes calls on numbers
alone at once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture.arrays.numpy_checks import (
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
from pycompiler.capture.arrays.numpy_layouts import with_numpy_layout
from pycompiler.capture.breaks import Break
from pycompiler.capture.recording import conversion_checks
from pycompiler.capture.values.array import LEFT_OUT, READS, WRITES, Array, is_number, is_wrapped, of_tensor, to_tensor
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.sequences import List, Slice, Tuple
from pycompiler.capture.values.symbolic_numbers import Symbolic
from pycompiler.capture.values.tensor import Tensor, item
from pycompiler.ir.computed_sources import element_of
from pycompiler.ir.source import const_source
from pycompiler.operators import numpy_arrays, numpy_promotion


def call_method(cx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`args[0].<name>(*args[1:])` of an array."""
    array = args[0]
    assert isinstance(array, Array)
    if name in READS and len(args) == 1 and not kwargs and (number := array.number()) is not None:
        return number
    if name in READS and len(args) == 1 and not kwargs and cx.graph.takes_items():
        return item(cx, array.tensor, name)
    if name in ("conj", "conjugate") and len(args) == 1 and not kwargs and "complex" not in (type_of(array) or ""):
        return array  # NumPy returns the array itself
    if name in LEFT_OUT or name in numpy_arrays.LEFT_OUT:
        raise Break("data-dependent-value", f"numpy.ndarray.{name}()")
    if name in ("__getitem__", "__setitem__") and steps_back(args[1]):
        raise Break("unsupported-operation", "an array indexed with a negative step, which no tensor view can have")
    if name in ("__getitem__", "__setitem__"):
        check_key(array, _plain_key(args[1]), cx.realize(args[2]) if len(args) > 2 else None)
    if name in ("__getitem__", "__setitem__") and ellipses(args[1]) > 1:
        raise Break("unsupported-operation", "an array indexed with several ellipses")
    check_squeezed(cx, name, args, kwargs)
    check_options(cx, name, args, kwargs, of_method=True)
    if name == "copy" and len(args) == 1 and not kwargs and not array.scalar:  # contiguous, whatever the array's layout
        made = cx.graph.call_method("clone", [array.tensor], {"memory_format": Const(torch.contiguous_format)})
        assert isinstance(made, Tensor)
        return Array(made)
    if name in ("__getitem__", "__setitem__"):
        args = [array, _plain_key(args[1]), *args[2:]]
    writes = name in WRITES
    if writes and array.scalar:
        raise Break("unsupported-operation", f"numpy.{array.python_type().__name__}.{name}()")
    if name in ("__setitem__", "fill") and len(args) > 1:
        args = [*args[:-1], _of_number(cx, cx.realize(args[-1]), array.tensor.dtype, array)]
    if writes:
        check_write(cx, array, args[1:])
        args = [*args[:-1], _copied(cx, args[-1])] if len(args) > 1 else args
    if name == "__getitem__":
        scalar = not ellipses(args[1])
    else:
        scalar = array.scalar or name not in numpy_arrays.ARRAYS | {"astype", "flatten", "ravel"}
    made = record(cx, numpy_arrays.method, [Const(name), *args], kwargs, writes, scalar=scalar)
    return _element(cx, array, args[1], made) if name == "__getitem__" else made


def attribute(cx: Capture, name: str, array: Value) -> Value:
    """`array.<name>`: another array in its memory."""
    assert isinstance(array, Array)
    return part(array, name, record(cx, numpy_arrays.attribute, [Const(name), array], {}, scalar=array.scalar))


def _element(cx: Capture, array: Array, key: Value, made: Value) -> Value:
    """An element of an existing array.  If nothing was written, its number is read when a call begins, on demand."""
    places = key.items if isinstance(key, Tuple) and key.cls is tuple else [key]
    plain = all(isinstance(k, Const) and type(k.value) is int for k in places)
    source, real = array.source, None if array.scalar else array.tensor.real
    quiet = not (cx.facts.writes or cx.graph.happened or cx.effects)
    if not (plain and quiet and isinstance(made, Array) and made.scalar) or source is None or real is None:
        return made
    if not numpy_arrays.is_taken(made.python_type()):
        return made
    at = [k.const() for k in places]

    def known() -> Value:
        return cx.wrap(element_of(real, *at), cx.computed(element_of, source, *map(const_source, at)))

    return Array.number_of(made.python_type(), lambda: made.tensor, known)


def _plain_key(key: Value) -> Value:
    """A key with known NumPy integers replaced by Python's."""
    if isinstance(key, Tuple):
        return Tuple([_plain_key(k) for k in key.items])
    if isinstance(key, Slice):
        return Slice([_plain_key(part) for part in key.parts])
    if isinstance(key, Const) and numpy_arrays.is_number(key.value) and key.value.dtype.kind in "iu":
        return Const(operator.index(key.value))
    return key


def call_function(cx: Capture, fn: Any, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function of NumPy."""
    if not any(_concerns(cx, v) for v in (*args, *kwargs.values())) and name.split(".")[-1] not in numpy_arrays.MAKES:
        return _fold(cx, fn, args, kwargs)
    if name == "ascontiguousarray":
        return _contiguous(cx, args, kwargs)
    check_options(cx, name, args, kwargs, of_method=False)
    check_vectors(name, args)
    check_squeezed(cx, name, args, kwargs)
    if name == "average":
        weights = cx.realize(kwargs["weights"] if "weights" in kwargs else args[2] if len(args) > 2 else Const(None))
        if isinstance(weights, (Tuple, List)):
            weights = record(cx, numpy_arrays.function, [Const("array"), weights], {})
        check_weights(cx, weights)
        args = [*args[:2], weights, *args[3:]] if len(args) > 2 else args
        kwargs = {**kwargs, "weights": weights} if "weights" in kwargs else kwargs
    dtype = kwargs.get("dtype", args[3] if len(args) > 3 else Const(None))
    if name == "arange" and not cx.is_none(dtype) and argument(cx, dtype).const() == "bool":
        raise Break("unsupported-operation", "numpy.arange of bool")
    if name in numpy_arrays.LIKES and args and isinstance(first := cx.realize(args[0]), Tensor):
        args = [of_tensor(cx, first, [], {}), *args[1:]]
    of_number = name in numpy_arrays.EITHER and isinstance(first := cx.realize(args[0]), Array) and first.scalar
    made = record(
        cx, numpy_arrays.function, [Const(name), *args], kwargs, scalar=of_number or name not in numpy_arrays.ARRAYS
    )
    return part(cx.realize(args[0]) if args else None, name, made)


def tensor_operands(cx: Capture, op: str, left: Value, right: Value) -> tuple[Value, Value]:
    """The operands of an operator.  Beside a tensor, a NumPy scalar becomes a Python number."""
    if not (isinstance(left, Tensor) or isinstance(right, Tensor)):
        return left, right
    for value in (left, right):
        if (
            isinstance(value, Const)
            and numpy_arrays.is_number(value.value)
            and not numpy_arrays.is_taken(type(value.value))
        ):
            raise Break(
                "unsupported-operation",
                f"{value.describe()} beside a tensor: torch treats this NumPy number as a float",
            )
    return _operand(op, left, right), _operand(op, right, left)


def _operand(op: str, value: Value, other: Value) -> Value:
    """An operand beside a tensor.  A float computed from data stays a 0-dim tensor if it promotes like a number.

    That is so beside a float tensor, whose dtype it does not change.
    """
    number = value.plain_number()
    if not isinstance(number, Array) or not number.scalar or not isinstance(other, Tensor) or other.is_special:
        return number
    floats = number.tensor.dtype.is_floating_point and other.dtype.is_floating_point
    return number.tensor if floats and other.rank and op.rstrip("=") != "**" else number


def tensor_and_array(cx: Capture, op: str, left: Tensor, right: Value) -> Value:
    """A tensor and an array: torch leaves the operator to the array, which accepts the tensor.  The result is a tensor."""
    if op not in ("+", "-", "*", "/", "@") or not isinstance(right, Array) or not right.tensor.rank or left.is_special:
        raise Break("unsupported-operation", f"{left.describe()} {op} {right.describe()}")
    made = binary(cx, op, "", of_tensor(cx, left, [], {}), right)
    if not isinstance(made, Array):
        return made
    if made.tensor.dtype is torch.bool:  # by `Tensor.__array_wrap__`
        return cx.graph.call_method("to", [made.tensor, Const(torch.uint8)], {})
    return to_tensor(cx, made)


def _copied(cx: Capture, value: Value) -> Value:
    """A copy of an array that an operation reads and may overwrite: NumPy reads before it writes."""
    value = cx.realize(value)
    if not isinstance(value, Array) or value.scalar:
        return value
    made = cx.graph.call_method("clone", [value.tensor], {})
    assert isinstance(made, Tensor)
    return Array(made)


def _contiguous(cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`numpy.ascontiguousarray(a)`: the array itself if it is contiguous, else a copy."""
    array = cx.realize(args[0]) if len(args) == 1 and not kwargs else None
    if not isinstance(array, Array) or array.scalar or array.tensor.rank == 0:
        raise Break(
            "unsupported-operation",
            "numpy.ascontiguousarray with a dtype, or of an argument that is not an array with dimensions",
        )
    return array if array.tensor.is_contiguous else call_method(cx, "copy", [array], {})


def make_scalar(cx: Capture, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`numpy.float32(x)` and the like."""
    if len(args) != 1 or kwargs or not _concerns(cx, args[0]):
        return _fold(cx, cls, args, kwargs)
    return record(cx, numpy_arrays.scalar, [argument(cx, cx.make(cls)), *args], kwargs, scalar=True)


def query_dtypes(cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """NumPy's answer to a query on dtypes."""
    known = [v.const() for v in map(cx.realize, args) if v.is_const()]
    if kwargs or len(known) < len(args) or not all(map(numpy_arrays.names_dtype, known)):
        raise Break("builtin-call", f"numpy.{fn.__name__}({', '.join(v.describe() for v in args)})")
    return cx.evaluate(fn, *known)


def _fold(cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """NumPy's result for constants: a number, or a constant of another kind."""
    made = cx.evaluate_raw(fn, *(cx.snapshot(v) for v in args), **{k: cx.snapshot(v) for k, v in kwargs.items()})
    if _has_array(made):
        raise Break("builtin-call", f"{getattr(fn, '__name__', fn)} of arguments without an array returns an array")
    return cx.make(made)


def _has_array(value: Any) -> bool:
    return numpy_arrays.is_array(value) or (isinstance(value, (tuple, list, dict)) and any(map(_has_array, value)))


def _concerns(cx: Capture, value: Value) -> bool:
    """Whether an array, tensor or symbolic number is among the values."""
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
"""Python operators by NumPy's names.  NumPy's functions may return another dtype: a power of bools."""
UNARY = {"-": "negative", "+": "positive", "~": "invert"}


def binary(cx: Capture, op: str, special: str, left: Value, right: Value) -> Value:
    """`left <op> right`, a comparison, or in place `left <op>= right` by the method `special`."""
    if "**" in op:
        left, right = (cx.realize(v, "beside an array") for v in (left, right))
    for value in (left, right):
        if not isinstance(value, (Array, Const, Symbolic)) or isinstance(value, Const) and not is_number(value.value):
            raise Break("unsupported-operation", f"{left.describe()} {op} {right.describe()}")
    if op in OPERATORS or not isinstance(left, Array) or left.scalar:
        name = OPERATORS[op if op in OPERATORS else op[:-1]]
        name = power_of(left, right) if name == "power" else name
        return record(cx, numpy_arrays.function, [Const(name), left, right], {}, scalar=True)
    if left.fixed or op == "@=":
        raise Break(
            "unsupported-operation", ", ".join(filter(None, (f"{left.describe()} {op} {right.describe()}", left.fixed)))
        )
    return record(cx, numpy_arrays.method, [Const(special), left, right], {}, True)


def power_of(base: Value, exponent: Value) -> str:
    """The name under which a power is computed: NumPy uses a square root for arrays, but not for numbers."""
    half = isinstance(exponent, Const) and type(exponent.value) is float and abs(exponent.value) == 0.5
    real = half and isinstance(base, Array) and base.scalar and not base.tensor.dtype.is_complex
    return "power of a number" if real else "power"


def unary(cx: Capture, op: str, value: Array) -> Value:
    return record(cx, numpy_arrays.function, [Const(UNARY[op]), value], {}, scalar=True)


def record(
    cx: Capture, target: Callable[..., Any], args: list[Value], kwargs: dict[str, Value], writes: bool = False, *,
    scalar: bool = False,
) -> Value:  # fmt: skip
    """Record a graph node.  Its tensors become arrays; 0-dim tensors become scalars if `scalar` is set."""
    if cx.call_builtin(numpy_arrays.raises_errors, [], {}).const():
        raise Break("unsupported-operation", "a NumPy call that may raise under numpy.errstate")
    scalar = scalar and not is_wrapped(cx)
    given = [*args, *kwargs.values()]
    name = str(args[0].const()) if target is not numpy_arrays.scalar else ""
    if name and not kwargs:
        args = [args[0], *_converted_numbers(cx, name, [cx.realize(v) for v in args[1:]])]
    sizes = numpy_arrays.SIZED.get(name, range(0))
    plain = [argument(cx, v, size=i in sizes) for i, v in enumerate(args)]
    named = {k: argument(cx, v, size=k == "shape" and bool(sizes)) for k, v in kwargs.items()}
    value = cx.graph.call_function(target, plain, named, always=writes)
    value = value if writes else with_numpy_layout(cx, target, plain, named, value)
    return _result(cx, value, [v for v in flat(cx, given) if isinstance(v, Array)], name, scalar)


def _converted_numbers(cx: Capture, name: str, values: list[Value]) -> list[Value]:
    """The operands of a call.  Numbers that differ between calls become arrays of the dtype that NumPy converts them to."""
    array = next((v for v in values if isinstance(v, Array)), None)
    if array is None or not any(isinstance(v, Symbolic) for v in values):
        return values
    operands = [_like(v) for v in values]
    dtypes = numpy_promotion.taken_as(numpy_promotion.IN_PLACE.get(name, name), operands)
    if dtypes is None or name in numpy_promotion.IN_PLACE and dtypes[-1] != array.tensor.dtype:
        return values
    return [_of_number(cx, v, dtype, array) for v, dtype in zip(values, dtypes)]


def _of_number(cx: Capture, value: Value, dtype: torch.dtype | None, array: Array) -> Value:
    """A number that differs between calls as an array of `dtype` beside another array; other values unchanged."""
    device = array.tensor.device
    made = conversion_checks.array_of(cx, value, dtype, device) if isinstance(value, Symbolic) else None
    return value if made is None else Array(made)


def _like(value: Value) -> Any:
    """A stand-in for an operand: a fake, or a number of its class."""
    if isinstance(value, Array):
        return value.tensor.fake
    return value.python_type()(1) if isinstance(value, Symbolic) else value.const() if value.is_const() else None


def argument(cx: Capture, value: Value, *, size: bool = False) -> Value:
    """The argument in the graph: tensors for arrays, names for dtypes.  A symbolic number is allowed only as a size."""
    value = cx.realize(value)
    if size and isinstance(value, Symbolic) and value.python_type() is int:
        return value
    value = cx.realize(value, "as an argument of a NumPy function")
    if isinstance(value, Array):
        return value.tensor
    if isinstance(value, Tensor):
        raise Break("unsupported-operation", "a tensor among the arguments of a NumPy function")
    if isinstance(value, (Const, Class)):
        real = value.const() if isinstance(value, Const) else value.cls
        name = numpy_arrays.dtype_name(real) or (
            numpy_arrays.PLAIN_DTYPES.get(real) if isinstance(real, type) else None
        )
        if name is not None:
            if numpy_arrays.is_unknown(name):
                raise Break("unsupported-type", f"numpy.{name}")
            return Const(name)
        if isinstance(real, slice) and any(map(numpy_arrays.is_number, (real.start, real.stop, real.step))):
            numbers = (n if n is None else operator.index(n) for n in (real.start, real.stop, real.step))
            return Const(slice(*numbers))
        if isinstance(real, str) and real == "mergesort":  # `torch._numpy` accepts it as any kind
            return Const("stable")
        if isinstance(real, str) and numpy_arrays.names_unknown(real):
            raise Break("unsupported-type", f"numpy.dtype({real!r})")
        module = numpy_arrays.numpy()
        if module is not None and isinstance(real, module.generic):
            dtype = argument(cx, cx.make(real.dtype))
            return cx.graph.call_function(numpy_arrays.scalar, [dtype, Const(real.item())], {})
        return value
    if type(value) is Tuple:
        return Tuple([argument(cx, v, size=size) for v in value.items])
    if type(value) is List:
        return List([argument(cx, v, size=size) for v in value.items])
    if isinstance(value, Slice):
        return Slice([argument(cx, p) for p in value.parts])
    if isinstance(value, Dict):
        return value
    raise Break("unsupported-operation", f"{value.describe()} among the arguments of a NumPy function")


def _result(cx: Capture, value: Value, given: list[Array], name: str, scalar: bool) -> Value:
    """Arrays for tensors.  An argument that is returned stays the same array; a new array shares no memory with the
    arguments."""
    if isinstance(value, (Tuple, List)):
        items = [_result(cx, v, given, name, scalar) for v in value.items]
        return cx.sequence(items, numpy_arrays.result_class(name))
    if not isinstance(value, Tensor):
        return value
    scalar = scalar and value.rank == 0
    known = next((v for v in given if v.tensor is value), None)
    if known is None and name in numpy_arrays.SAME:
        known = next((v for v in given if not v.scalar and _is_same(v.tensor.fake, value.fake)), None)
    if known is not None and known.scalar and name == "asarray":  # a new array of a number
        copied = cx.graph.call_method("clone", [value], {})
        assert isinstance(copied, Tensor)
        return Array(copied)
    if known is not None and (name in numpy_arrays.SAME or name in WRITES or name.startswith("__i")):
        return known
    if known is not None and name in numpy_arrays.VIEWS and not known.scalar:
        value = to_tensor(cx, known)
    shares = [v for v in given if _memory(v.tensor) == _memory(value)]
    if shares and (scalar or name not in numpy_arrays.VIEWS or any(v.scalar for v in shares)):
        copy = cx.graph.call_method("clone", [value], {})
        assert isinstance(copy, Tensor)
        return Array(copy, scalar=scalar)
    return Array(value, scalar=scalar, fixed=next((v.fixed for v in shares), ""))


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a view covers all of its base."""
    same = a.untyped_storage()._cdata == b.untyped_storage()._cdata and a.dtype == b.dtype
    return same and a.shape == b.shape and a.stride() == b.stride()


def _memory(tensor: Tensor) -> int:
    return tensor.memory
