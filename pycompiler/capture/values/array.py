"""NumPy arrays: graph tensors that the program sees as `numpy.ndarray`.

Arrays without dimensions stand for NumPy's scalars.  Calls are in `capture/arrays/numpy_calls.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import NEEDED, Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir.computed_sources import number_of
from pycompiler.ir.source import Source
from pycompiler.operators import numpy_arrays

METADATA: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda t: tuple(t.shape),
    "ndim": lambda t: t.dim(),
    "size": lambda t: t.numel(),
    "itemsize": lambda t: t.itemsize,
    "nbytes": lambda t: t.numel() * t.itemsize,
    "strides": lambda t: tuple(s * t.itemsize for s in t.stride()),
    "dtype": lambda t: numpy_arrays.dtype_of(t.dtype),
}
PARTS = frozenset({"T", "real", "imag"})
WRITES = frozenset({"fill", "sort", "__setitem__", "resize", "put", "partition", "itemset", "setflags", "byteswap"})
LEFT_OUT = frozenset({"tolist", "item", "tobytes", "tofile", "dump", "dumps", "view", "setflags", "resize", "to_device",
                      "newbyteorder", "byteswap", "getfield", "setfield", "is_integer", "partition"})  # fmt: skip
READS = ("item", "tolist")  # methods that return Python numbers
WRAPPER = "wrap_numpy.<locals>.wrap"


READ_ONLY = "a read-only array"
"""The reason why an array may not be written, neither in the graph nor after it."""


class Array(Value):
    """An array.

    - `tensor`: holds its data.
    - `fixed`: the reason why it may not be written, or "".
    - `scalar`: whether it is a NumPy scalar, which has an array's methods and is immutable.
    """

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
        tensor.shown = True
        self._number = self._known = None

    @staticmethod
    def number_of(cls: type, make: Callable[[], Tensor], known: Callable[[], Value | None]) -> Array:
        """A NumPy scalar of class `cls`.  `make` creates the tensor on demand; `known` returns the equal Python number."""
        array = Array.__new__(Array)
        array._tensor, array._make, array._cls, array.fixed, array.scalar = None, make, cls, "", True
        array._number, array._known = None, known
        return array

    @property
    def tensor(self) -> Tensor:
        if self._tensor is None:
            self._tensor = self._make()
            self._version = self._tensor.counted
        return self._tensor

    @staticmethod
    def later(make: Callable[[], Tensor], evaluate: Callable[[], Any]) -> Array:
        """An array of known contents.  `make` creates the tensor on demand."""
        made = Array.__new__(Array)
        made._tensor, made._make, made.fixed, made.scalar = None, make, "", False
        made._number = made._known = None
        made._evaluate = evaluate
        return made

    def knows(self, evaluate: Callable[[], Any]) -> None:
        """Record a function that evaluates the contents with NumPy, valid until the next write."""
        self._evaluate, self._version = evaluate, self.tensor.counted

    def known(self) -> Any:
        """A NumPy array with the current contents; None if they are not known."""
        made = self._tensor
        if self._evaluate is None or made is not None and (self._version is None or made.counted != self._version):
            return None
        if self._contents is None:
            try:
                self._contents = self._evaluate()
            except Exception:  # the graph will raise it, or NumPy warned
                self._evaluate = None
        return self._contents

    @property
    def may_be_known(self) -> bool:
        """Whether `number` may return a value."""
        return self._known is not None or self._number is not None

    def number(self) -> Value | None:
        """The Python number or bool that equals a NumPy scalar; None if it is not known."""
        if self._known is not None:
            self._number, self._known = self._known(), None
        return self._number

    @property
    def exists(self) -> bool:
        return self.source is not None

    def plain_number(self) -> Value:
        taken = self.scalar and numpy_arrays.is_taken(self.python_type())
        return (self.number() or self) if taken else self

    def as_index(self) -> Value:
        if not self.scalar:
            return self.tensor if self.tensor.dtype in (torch.int64, torch.bool) else self
        number = self.plain_number()
        return number if number.python_type() is int else self

    def const(self, why: str = NEEDED) -> Any:
        number = self.number()
        if number is None:
            raise Break("data-dependent-value", f"the number in {self.describe()}")
        return self.python_type()(number.const(why))

    def describe(self) -> str:
        if self._tensor is None:
            return f"numpy.{self.python_type().__name__}"
        return f"ndarray({list(self.tensor.shape)}, {self.tensor.dtype})"

    __repr__ = describe

    def python_type(self) -> type:
        if self._tensor is None and self.scalar:
            return self._cls
        module = numpy_arrays.numpy()
        assert module is not None
        return numpy_arrays.dtype_of(self.tensor.dtype).type if self.scalar else module.ndarray  # type: ignore[no-any-return]

    def getattr(self, cx: Capture, name: str) -> Value:
        if name in METADATA:
            return cx.make(METADATA[name](self.tensor.fake))
        if name in PARTS:
            return cx.call_builtin(numpy_arrays.attribute, [Const(name), self], {})
        if name == "mT" and hasattr(self.python_type(), name) and self.tensor.rank > 1:
            return cx.call_builtin(numpy_arrays.method, [Const("swapaxes"), self, Const(-2), Const(-1)], {})
        if not hasattr(self.python_type(), name):
            cx.throw(
                AttributeError,
                f"'numpy.{self.python_type().__name__}' object has no attribute {name!r}",
            )
        if name not in READS and (name in LEFT_OUT or not numpy_arrays.has_method(name)):
            raise Break("unsupported-attribute", f"numpy.ndarray.{name}")
        return ArrayMethod(self, name)

    def getitem(self, cx: Capture, key: Value) -> Value:
        return cx.call_builtin(numpy_arrays.method, [Const("__getitem__"), self, key], {})

    def setitem(self, cx: Capture, key: Value, value: Value) -> None:
        cx.call_builtin(numpy_arrays.method, [Const("__setitem__"), self, key, value], {})

    def length(self, cx: Capture) -> Value:
        if self.tensor.rank == 0:
            cx.throw(TypeError, "len() of unsized object")
        return cx.make(self.tensor.shape[0])

    def iterate(self, cx: Capture) -> Iterator[Value]:
        if self.tensor.rank == 0:
            cx.throw(TypeError, "iteration over a 0-d array")
        return (self.getitem(cx, Const(i)) for i in range(self.length(cx).const("as a number of elements")))

    def truth(self, cx: Capture) -> bool:
        number = self.number()
        if number is not None:
            return cx.truth(number)
        if not self.scalar and (known := self.known()) is not None:
            return bool(cx.evaluate_raw(bool, known))
        raise Break("data-dependent-jump", self.describe())

    def contains(self, cx: Capture, item: Value) -> bool:
        raise Break("data-dependent-value", "the operator `in` on an array")


class ArrayMethod(Value):
    """A bound method of an array."""

    def __init__(self, array: Array, name: str) -> None:
        self.array = array
        self.name = name

    def python_type(self) -> type:
        return type(len)

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.call_builtin(numpy_arrays.method, [Const(self.name), self.array, *args], kwargs)


def is_truth(value: Value) -> bool:
    """Whether it is a NumPy bool.  Each of the two is a single object."""
    if isinstance(value, Array):
        return value.scalar and numpy_arrays.dtype_name(value.python_type()) == "bool"
    return isinstance(value, Const) and numpy_arrays.is_number(value.value) and value.value.dtype.kind == "b"


def is_number(value: Any) -> bool:
    module = numpy_arrays.numpy()
    return isinstance(value, (int, float, complex, bool)) or (module is not None and isinstance(value, module.generic))


def is_wrapped(cx: Capture) -> bool:
    """Whether the program is inside of torch's or pycompiler's `wrap_numpy`.

    All numbers are arrays there, since `wrap_numpy` returns tensors.
    """
    return any(f.code.co_qualname.startswith(WRAPPER) for f in cx.frames)


# tensors and arrays -------------------------------------------------------------------------------------------
def of_tensor(cx: Capture, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`tensor.numpy()`."""
    forced = cx.realize(kwargs.get("force", Const(False)), "as an option of Tensor.numpy()")
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
        numpy_arrays.dtype_of(dtype)
    except TypeError:
        return True
    return False


def _scalar_type(dtype: torch.dtype) -> str:
    return {"torch.bfloat16": "BFloat16"}.get(str(dtype), str(dtype).removeprefix("torch.").capitalize())


def to_tensor(cx: Capture, array: Array) -> Tensor:
    """A tensor that shares the array's memory: `torch.from_numpy(array)`."""
    made = cx.graph.call_function(torch.ops.aten.alias.default, [array.tensor], {})
    assert isinstance(made, Tensor)
    return made


def _existing(cx: Capture, real: Any, source: Source) -> Value | None:
    """The Python number equal to an existing NumPy scalar.

    It is read when a call begins, or a constant whose guard compares the value.
    """
    number, place = real.item(), cx.computed(number_of, source)
    makers: dict[type, Callable[[Any, Source], Any]] = {int: cx.sizes.integer, float: cx.sizes.floating}
    symbols = makers.get(type(number))
    if not (numpy_arrays.is_taken(type(real)) or type(number) is bool):
        return None
    if symbols is not None and symbols(number, place) is not None:
        return cx.wrap(number, place)
    cx.guard("equals", source, real)
    return Const(number)


def wrap_array(cx: Capture, real: Any, source: Source) -> Value | None:
    """An existing array; None if torch cannot convert it to a tensor."""
    try:
        tensor = numpy_arrays.tensor_of(real)
    except (TypeError, ValueError):
        return None
    cx.guard("type_is", source, type(real))
    device = cx.device or torch.get_default_device()

    def make() -> Tensor:
        inner = cx.wrap(tensor, source.then("as_tensor"))
        made = inner if device.type == "cpu" else cx.graph.call_method("to", [inner, Const(device)], {})
        assert isinstance(made, Tensor)
        return made

    if numpy_arrays.is_number(real):
        return Array.number_of(type(real), make, lambda: _existing(cx, real, source))
    return Array(make(), fixed="" if device.type == "cpu" else f"an array that has been moved to {device}")
