"""NumPy's arrays: tensors of the graph that the program sees as `numpy.ndarray`.

Calls of NumPy's functions, methods and operators are nodes (`ir/arrays.py`).  Arrays without dimensions stand for NumPy's
scalars.  What is computed of numbers alone is computed by NumPy, at once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.dicts import Dict
from pycompiler.capture.values.sequences import List, Slice, Tuple
from pycompiler.capture.values.symbolic import PLAIN_VALUES, Symbolic
from pycompiler.capture.values.tensor import Tensor, item
from pycompiler.ir import arrays
from pycompiler.ir.computed import element_of, number_of
from pycompiler.ir.source import Source
from pycompiler.ir.source import const as const_source

METADATA: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda t: tuple(t.shape),
    "ndim": lambda t: t.dim(),
    "size": lambda t: t.numel(),
    "itemsize": lambda t: t.itemsize,
    "nbytes": lambda t: t.numel() * t.itemsize,
    "strides": lambda t: tuple(s * t.itemsize for s in t.stride()),
    "dtype": lambda t: arrays.dtype_of(t.dtype),
}
PARTS = frozenset({"T", "real", "imag"})
WRITES = frozenset({"fill", "sort", "__setitem__", "resize", "put", "partition", "itemset", "setflags", "byteswap"})
LEFT_OUT = frozenset({"tolist", "item", "tobytes", "tofile", "dump", "dumps", "view", "setflags", "resize", "to_device",
                      "newbyteorder", "byteswap", "getfield", "setfield", "is_integer", "partition"})  # fmt: skip
READS = ("item", "tolist")  # what gives Python's numbers
WRAPPER = "wrap_numpy.<locals>.wrap"


class Array(Value):
    """An array: `tensor` has its data.  `fixed`: why it may not be written.  `scalar`: it is a
    number of NumPy's, which has an array's methods and never changes."""

    _tensor: Tensor | None
    _make: Callable[[], Tensor]
    _cls: type
    _number: Value | None
    _known: Callable[[], Value | None] | None
    _evaluate: Callable[[], Any] | None = None
    _contents: Any = None
    _version: int | None = None

    def __init__(self, tensor: Tensor, *, fixed: str = "", scalar: bool = False) -> None:
        self._tensor, self.fixed, self.scalar = tensor, fixed, scalar
        self._number = self._known = None

    @staticmethod
    def number_of(cls: type, make: Callable[[], Tensor], known: Callable[[], Value | None]) -> Array:
        """A number of this class of NumPy's: a tensor is made where it is wanted; what is `known` is Python's number."""
        array = Array.__new__(Array)
        array._tensor, array._make, array._cls, array.fixed, array.scalar = None, make, cls, "", True
        array._number, array._known = None, known
        return array

    @property
    def tensor(self) -> Tensor:
        if self._tensor is None:
            self._tensor = self._make()
            self._version = _version_of(self._tensor)
        return self._tensor

    @staticmethod
    def later(make: Callable[[], Tensor], evaluate: Callable[[], Any]) -> Array:
        """An array of known contents; a tensor is made where it is wanted."""
        made = Array.__new__(Array)
        made._tensor, made._make, made.fixed, made.scalar = None, make, "", False
        made._number = made._known = None
        made._evaluate = evaluate
        return made

    def knows(self, evaluate: Callable[[], Any]) -> None:
        """What NumPy says is in it, while nobody writes it."""
        self._evaluate, self._version = evaluate, _version_of(self.tensor)

    def known(self) -> Any:
        """An array of NumPy's with the contents that it has now; None where these are not known."""
        made = self._tensor
        if self._evaluate is None or made is not None and (self._version is None or _version_of(made) != self._version):
            return None
        if self._contents is None:
            try:
                self._contents = self._evaluate()
            except Exception:  # which the graph raises, or NumPy warns of
                self._evaluate = None
        return self._contents

    @property
    def may_be_known(self) -> bool:
        """Whether `number` may give one."""
        return self._known is not None or self._number is not None

    def number(self) -> Value | None:
        """The number, or truth, of Python's that a number of NumPy's is equal to; None where no call knows it."""
        if self._known is not None:
            self._number, self._known = self._known(), None
        return self._number

    @property
    def exists(self) -> bool:
        return self.source is not None

    def plain_number(self) -> Value:
        taken = self.scalar and arrays.is_taken(self.python_type())
        return (self.number() or self) if taken else self

    def as_index(self) -> Value:
        if not self.scalar:
            return self.tensor if self.tensor.fake.dtype in (torch.int64, torch.bool) else self
        number = self.plain_number()
        return number if number.python_type() is int else self

    def const(self) -> Any:
        number = self.number()
        if number is None:
            raise Break("data-dependent-value", f"the number in {self.describe()}")
        return self.python_type()(number.settle("where only a constant will do").const())

    def describe(self) -> str:
        if self._tensor is None:
            return f"numpy.{self.python_type().__name__}"
        return f"ndarray({list(self.tensor.fake.shape)}, {self.tensor.fake.dtype})"

    __repr__ = describe

    def python_type(self) -> type:
        if self._tensor is None and self.scalar:
            return self._cls
        module = arrays.numpy()
        assert module is not None
        return arrays.dtype_of(self.tensor.fake.dtype).type if self.scalar else module.ndarray  # type: ignore[no-any-return]

    def getattr(self, cx: Capture, name: str) -> Value:
        if name in METADATA:
            return cx.make(METADATA[name](self.tensor.fake))
        if name in PARTS:
            return record(cx, arrays.attribute, [Const(name), self], {}, scalar=self.scalar)
        if not hasattr(self.python_type(), name):
            cx.throw(
                AttributeError,
                f"'numpy.{self.python_type().__name__}' object has no attribute {name!r}",
            )
        if name not in READS and (name in LEFT_OUT or not arrays.has_method(name)):
            raise Break("unsupported-attribute", f"numpy.ndarray.{name}")
        return ArrayMethod(self, name)

    def getitem(self, cx: Capture, key: Value) -> Value:
        return cx.call_builtin(arrays.method, [Const("__getitem__"), self, key], {})

    def setitem(self, cx: Capture, key: Value, value: Value) -> None:
        call_method(cx, "__setitem__", [self, key, value], {})

    def length(self, cx: Capture) -> int:
        if self.tensor.fake.dim() == 0:
            cx.throw(TypeError, "len() of unsized object")
        return int(self.tensor.fake.shape[0])

    def iterate(self, cx: Capture) -> Iterator[Value]:
        if self.tensor.fake.dim() == 0:
            cx.throw(TypeError, "iteration over a 0-d array")
        return (self.getitem(cx, Const(i)) for i in range(self.length(cx)))

    def truth(self, cx: Capture) -> bool:
        number = self.number()
        if number is not None:
            return cx.truth(number)
        if not self.scalar and (known := self.known()) is not None:
            return bool(cx.evaluate_raw(bool, known))
        raise Break("data-dependent-jump", self.describe())

    def contains(self, cx: Capture, item: Value) -> bool:
        raise Break("data-dependent-value", "in an array")


def _version_of(tensor: Tensor) -> int | None:
    """How often it was written; None where nobody counts."""
    return None if tensor.fake.is_inference() else tensor.fake._version


class ArrayMethod(Value):
    """A bound method of an array."""

    def __init__(self, array: Array, name: str) -> None:
        self.array = array
        self.name = name

    def python_type(self) -> type:
        return type(len)

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.call_builtin(arrays.method, [Const(self.name), self.array, *args], kwargs)


# calls --------------------------------------------------------------------------------------------------------
def call_method(cx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`args[0].<name>(*args[1:])` of an array."""
    array = args[0]
    assert isinstance(array, Array)
    if name in READS and len(args) == 1 and not kwargs and (number := array.number()) is not None:
        return number
    if name in READS and len(args) == 1 and not kwargs and cx.graph.takes_items():
        return item(cx, array.tensor, name)
    if name in ("conj", "conjugate") and len(args) == 1 and not kwargs and "complex" not in (_type_of(array) or ""):
        return array  # NumPy gives the very array
    if name in LEFT_OUT or name in arrays.LEFT_OUT:
        raise Break("data-dependent-value", f"numpy.ndarray.{name}()")
    if name in ("__getitem__", "__setitem__") and _steps_back(args[1]):
        raise Break("unsupported-operation", "an array by a slice that steps backwards: a view, which no tensor can be")
    if name in ("__getitem__", "__setitem__") and _ellipses(args[1]) > 1:
        raise Break("unsupported-operation", "an array by several ellipses")
    _check_squeezed(cx, name, args, kwargs)
    _check_options(cx, name, args, kwargs, of_method=True)
    if name == "copy" and len(args) == 1 and not kwargs and not array.scalar:  # in order, however the array lies
        made = cx.graph.call_method("clone", [array.tensor], {"memory_format": Const(torch.contiguous_format)})
        assert isinstance(made, Tensor)
        return Array(made)
    if name in ("__getitem__", "__setitem__"):
        args = [array, _plain_key(args[1]), *args[2:]]
    writes = name in WRITES
    if writes and array.scalar:
        raise Break("unsupported-operation", f"numpy.{array.python_type().__name__}.{name}()")
    if writes:
        _check_write(cx, array, args[1:])
        args = [*args[:-1], _apart(cx, args[-1])] if len(args) > 1 else args
    scalar = (
        not _ellipses(args[1]) if name == "__getitem__" else name not in arrays.ARRAYS | {"astype", "flatten", "ravel"}
    )
    made = record(cx, arrays.method, [Const(name), *args], kwargs, writes, scalar=scalar or array.scalar)
    return _element(cx, array, args[1], made) if name == "__getitem__" else made


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


def _steps_back(key: Value) -> bool:
    if isinstance(key, Tuple):
        return any(_steps_back(k) for k in key.items)
    if isinstance(key, Const) and isinstance(key.value, slice):
        return key.value.step is not None and key.value.step < 0
    step = key.parts[2].settle("as a step in an array") if isinstance(key, Slice) and len(key.parts) > 2 else None
    return step is not None and not (isinstance(step, Const) and (step.value is None or step.value > 0))


def _plain_key(key: Value) -> Value:
    """NumPy's integers that are known index as Python's do."""
    if isinstance(key, Tuple):
        return Tuple([_plain_key(k) for k in key.items])
    if isinstance(key, Slice):
        return Slice([_plain_key(part) for part in key.parts])
    if isinstance(key, Const) and arrays.is_number(key.value) and key.value.dtype.kind in "iu":
        return Const(operator.index(key.value))
    return key


def _ellipses(key: Value) -> int:
    if isinstance(key, Tuple):
        return sum(map(_ellipses, key.items))
    return int(isinstance(key, Const) and key.value is Ellipsis)


def _check_options(cx: Capture, name: str, args: list[Value], kwargs: dict[str, Value], *, of_method: bool) -> None:
    """Break where a call says in what memory its result lies, or in what order."""
    given = {k: cx.realize(v) for k, v in arrays.options(name, of_method, args, kwargs).items() if isinstance(v, Value)}
    in_order = all(v.tensor.fake.is_contiguous() for v in _flat(cx, args) if isinstance(v, Array))
    out, order, copy = (given.get(option, Const(None)) for option in ("out", "order", "copy"))
    wrong = {
        "out": isinstance(out, Array) or ("out" in kwargs and not cx.is_none(out)),
        "order": isinstance(order, Const) and isinstance(order.value, str) and not (order.value in "CK" and in_order),
        "copy": "copy" in given and not (isinstance(copy, Const) and copy.value is True),
    }
    for option in (k for k, v in wrong.items() if v):
        raise Break("unsupported-operation", f"numpy.{name}({option}=...)")


def _check_squeezed(cx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> None:
    """NumPy refuses to squeeze a dimension that is no single one; torch leaves it."""
    array = cx.realize(args[0]) if args else None
    axis = cx.realize(kwargs["axis"] if "axis" in kwargs else args[1] if len(args) > 1 else Const(None))
    if name != "squeeze" or cx.is_none(axis):
        return
    axes = axis.items if isinstance(axis, (Tuple, List)) else [axis]
    if not isinstance(array, Array) or not all(v.is_const() and type(v.const()) is int for v in map(cx.realize, axes)):
        raise Break("unsupported-operation", "numpy.squeeze of what is no array, or by what is no number")
    shape, places = array.tensor.fake.shape, [cx.realize(v).const() for v in axes]
    if any(not -len(shape) <= d < len(shape) or int(shape[d]) != 1 for d in places):
        raise Break("unsupported-operation", "numpy.squeeze of a dimension that is no single one")
    if len(places) > 1 and min(places) < 0:
        raise Break("unsupported-operation", "numpy.squeeze of several dimensions, counted from the end")


def call_function(cx: Capture, fn: Any, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function of NumPy's."""
    if not any(_concerns(cx, v) for v in (*args, *kwargs.values())) and name.split(".")[-1] not in arrays.MAKES:
        return _of_numbers(cx, fn, args, kwargs)
    _check_options(cx, name, args, kwargs, of_method=False)
    _check_squeezed(cx, name, args, kwargs)
    _check_types(cx, name, args, kwargs)
    if name == "square" and len(args) == 1 and not kwargs and _is_integer(args[0]):  # torch._numpy's is of floats
        return binary(cx, "*", "", args[0], args[0])
    dtype = kwargs.get("dtype", args[3] if len(args) > 3 else Const(None))
    if name == "arange" and not cx.is_none(dtype) and argument(cx, dtype).const() == "bool":
        raise Break("unsupported-operation", "numpy.arange of bool")
    if name in arrays.LIKES and args and isinstance(first := cx.realize(args[0]), Tensor):
        args = [of_tensor(cx, first, [], {}), *args[1:]]
    return record(cx, arrays.function, [Const(name), *args], kwargs, scalar=name not in arrays.ARRAYS)


_PYTHONS = ("float64", "int64", "bool", "complex128")  # dtypes of Python's numbers


def _check_types(cx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> None:
    """Break where dtypes of NumPy's numbers count, which the graph's functions take for weak ones, or, in lists, for Python's."""
    values = [cx.realize(v) for v in (*args, *kwargs.values())]
    if name in ("where", "clip", "diff"):
        known = {t: v for v in values[name == "where" :] if (t := _type_of(v)) is not None}
        if len(known) > 1 and any(not isinstance(v, Array) or v.scalar for v in known.values()):
            raise Break("unsupported-operation", f"numpy.{name} of numbers of other dtypes")
    if name == "clip" and isinstance(values[0], Array) and values[0].scalar and _type_of(values[0]) not in _PYTHONS:
        raise Break("unsupported-operation", "numpy.clip of a number that is neither int64 nor float64")
    for items in (v.items for v in values if isinstance(v, (List, Tuple))):
        found = [cx.realize(item) for item in items]
        odd = [i for i in found if isinstance(i, Array) and (i.scalar or name in ("array", "asarray"))]
        if any(_type_of(i) not in _PYTHONS for i in odd):
            raise Break(
                "unsupported-operation", f"numpy.{name} of a list of numbers that are neither int64 nor float64"
            )


def _type_of(value: Value) -> str | None:
    """The name of the dtype of an array, or of a number of NumPy's."""
    if isinstance(value, Array):
        known = arrays.dtype_name(value.python_type()) if value.scalar else None
        return known or str(arrays.dtype_of(value.tensor.fake.dtype).name)
    return str(value.value.dtype.name) if isinstance(value, Const) and arrays.is_number(value.value) else None


def _is_integer(value: Value) -> bool:
    return isinstance(value, Array) and (_type_of(value) or "").startswith(("int", "uint"))


def _beyond(left: Value, right: Value) -> bool:
    """Whether an array of integers is compared with an integer that its dtype does not hold: NumPy does not convert it."""
    if not _is_integer(left) or not isinstance(right, Const) or type(right.value) is not int:
        return False
    info = torch.iinfo(getattr(torch, _type_of(left) or ""))
    return not info.min <= right.value <= info.max


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
    return to_tensor(cx, made) if isinstance(made, Array) else made


def _check_write(cx: Capture, array: Array, args: list[Value]) -> None:
    """Break, or raise, where NumPy does not simply write."""
    if array.fixed:
        raise Break("unsupported-operation", f"a write into {array.fixed}")
    value = cx.realize(args[-1]).settle("to store it in an array") if args else Const(0)
    if isinstance(value, Array) and value.scalar and (_is_integer(array) and _type_of(value) != _type_of(array)):
        raise Break("unsupported-operation", f"{value.describe()} stored into integers of another dtype")
    if isinstance(value, Const) and is_number(value.value):
        cx.evaluate_raw(arrays.store, array.tensor.fake.dtype, value.value)
    elif len(args) == 2:
        keys = args[0].items if isinstance(args[0], Tuple) else [args[0]]
        one = len(keys) == array.tensor.fake.dim() and all(
            isinstance(k, PLAIN_VALUES) and k.python_type() is int for k in keys
        )
        if not isinstance(value, Array) or (one and value.tensor.fake.dim() > 0):
            raise Break("unsupported-operation", f"{value.describe()} stored into an array")


def _apart(cx: Capture, value: Value) -> Value:
    """A copy of an array that is read by what may write into its memory: NumPy reads before it writes."""
    value = cx.realize(value)
    if not isinstance(value, Array) or value.scalar:
        return value
    made = cx.graph.call_method("clone", [value.tensor], {})
    assert isinstance(made, Tensor)
    return Array(made)


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
UNARY = {"-": "negative", "+": "positive", "~": "invert"}


def binary(cx: Capture, op: str, special: str, left: Value, right: Value) -> Value:
    """`left <op> right`, a comparison, or in place `left <op>= right` by the method `special`."""
    left, right = (v.settle("beside an array") for v in (left, right))
    for value in (left, right):
        if not isinstance(value, (Array, Const)) or isinstance(value, Const) and not is_number(value.value):
            raise Break("unsupported-operation", f"{left.describe()} {op} {right.describe()}")
    if op in COMPARED and (_beyond(left, right) or _beyond(right, left)):
        raise Break(
            "unsupported-operation", f"{left.describe()} {op} {right.describe()}, which its dtype does not hold"
        )
    if op in OPERATORS or not isinstance(left, Array) or left.scalar:
        name = OPERATORS[op if op in OPERATORS else op[:-1]]
        return record(cx, arrays.function, [Const(name), left, right], {}, scalar=True)
    dtype = left.tensor.fake.dtype
    given = right.tensor.fake.dtype if isinstance(right, Array) else dtype
    other = given != dtype
    if left.fixed or op in ("@=", "**=") or (other and not arrays.takes_in(special, dtype, given)):
        raise Break("unsupported-operation", f"{left.describe()} {op} {right.describe()}, {left.fixed}")
    if other:  # now in memory of its own
        right = call_method(cx, "astype", [right, Const(arrays.dtype_of(dtype).name)], {})
    return record(cx, arrays.method, [Const(special), left, right if right is left else _apart(cx, right)], {}, True)


def unary(cx: Capture, op: str, value: Array) -> Value:
    return record(cx, arrays.function, [Const(UNARY[op]), value], {}, scalar=True)


def is_truth(value: Value) -> bool:
    """Whether it is one of NumPy's two truths, of which there is one object each."""
    if isinstance(value, Array):
        return value.scalar and arrays.dtype_name(value.python_type()) == "bool"
    return isinstance(value, Const) and arrays.is_number(value.value) and value.value.dtype.kind == "b"


def is_number(value: Any) -> bool:
    module = arrays.numpy()
    return isinstance(value, (int, float, complex, bool)) or (module is not None and isinstance(value, module.generic))


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
    sizes = arrays.SIZED.get(name, range(0))
    plain = [argument(cx, v, size=i in sizes) for i, v in enumerate(args)]
    named = {k: argument(cx, v, size=k == "shape" and bool(sizes)) for k, v in kwargs.items()}
    value = cx.graph.call_function(target, plain, named, always=writes)
    return _result(cx, value, [v for v in _flat(cx, given) if isinstance(v, Array)], name, scalar)


def _flat(cx: Capture, values: list[Value]) -> Iterator[Value]:
    for value in map(cx.realize, values):
        if isinstance(value, (Tuple, List)):
            yield from _flat(cx, value.items)
        else:
            yield value


def is_wrapped(cx: Capture) -> bool:
    """Whether the program is inside of `wrap_numpy`, ours or torch's: all numbers are arrays there, since tensors come back."""
    return any(f.code.co_qualname.startswith(WRAPPER) for f in cx.frames)


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
    if known is not None and known.scalar and name == "asarray":  # a new array of a number
        copied = cx.graph.call_method("clone", [value], {})
        assert isinstance(copied, Tensor)
        return Array(copied)
    if known is not None and (name in arrays.VIEWS or name in WRITES or name.startswith("__i")):
        return known
    shares = [v for v in given if _memory(v.tensor) == _memory(value)]
    if shares and (scalar or name not in arrays.VIEWS):
        copy = cx.graph.call_method("clone", [value], {})
        assert isinstance(copy, Tensor)
        return Array(copy, scalar=scalar)
    return Array(value, scalar=scalar, fixed=next((v.fixed for v in shares), ""))


def _memory(tensor: Tensor) -> int:
    return int(tensor.fake.untyped_storage()._cdata)


# tensors and arrays -------------------------------------------------------------------------------------------
def of_tensor(cx: Capture, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`tensor.numpy()`."""
    forced = kwargs.get("force", Const(False)).settle("as an option of numpy()")
    if args or kwargs.keys() - {"force"} or not forced.is_const() or tensor.is_special or cx.graph.levels:
        raise Break("unsupported-operation", "Tensor.numpy()")
    fake = tensor.fake
    if fake.dtype in (torch.bfloat16,) or arrays_lack(fake.dtype):
        cx.throw(TypeError, f"Got unsupported ScalarType {_scalar_type(fake.dtype)}")
    if forced.const():
        made = tensor
        for name in ("detach", "cpu", "resolve_conj", "resolve_neg"):
            found = cx.graph.call_method(name, [made], {})
            assert isinstance(found, Tensor)
            made = found
        return Array(made)
    if not is_wrapped(cx):
        if fake.requires_grad:
            if torch.is_grad_enabled():
                cx.throw(
                    RuntimeError,
                    "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.",
                )
            tensor = cx.graph.call_method("detach", [tensor], {})  # type: ignore[assignment]  # a tensor of a tensor
        if fake.device.type != "cpu":
            cx.throw(TypeError, f"can't convert {fake.device} device type tensor to numpy. Use Tensor.cpu() to copy the "
                                "tensor to host memory first.")  # fmt: skip
        if fake.is_conj() or fake.is_neg():
            raise Break("unsupported-operation", "Tensor.numpy() of a conjugate or negative view")
    return Array(tensor)


def arrays_lack(dtype: torch.dtype) -> bool:
    try:
        arrays.dtype_of(dtype)
    except TypeError:
        return True
    return False


def _scalar_type(dtype: torch.dtype) -> str:
    return {"torch.bfloat16": "BFloat16"}.get(str(dtype), str(dtype).removeprefix("torch.").capitalize())


def to_tensor(cx: Capture, array: Array) -> Tensor:
    """A tensor in the array's memory: `torch.from_numpy(array)`."""
    made = cx.graph.call_function(torch.ops.aten.alias.default, [array.tensor], {})
    assert isinstance(made, Tensor)
    return made


def _existing(cx: Capture, real: Any, source: Source) -> Value | None:
    """The number of Python's that an existing one is equal to, read when a call begins."""
    known = arrays.is_taken(type(real)) or type(real.item()) is bool
    return cx.wrap(real.item(), cx.computed(number_of, source)) if known else None


def wrap_array(cx: Capture, real: Any, source: Source) -> Value | None:
    """An existing array; None for one that no tensor can be made of."""
    try:
        tensor = arrays.tensor_of(real)
    except (TypeError, ValueError):
        return None
    cx.guard("type_is", source, type(real))
    device = cx.device or torch.get_default_device()

    def make() -> Tensor:
        inner = cx.wrap(tensor, source.then("as_tensor"))
        made = inner if device.type == "cpu" else cx.graph.call_method("to", [inner, Const(device)], {})
        assert isinstance(made, Tensor)
        return made

    if arrays.is_number(real):
        return Array.number_of(type(real), make, lambda: _existing(cx, real, source))
    return Array(make(), fixed="" if device.type == "cpu" else f"an array that has been moved to {device}")
