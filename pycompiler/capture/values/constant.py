"""Constants: immutable values known exactly, folded at capture time.

In: a Python literal, dtype, device, Size, ...  Out: the same, with every operation evaluated at once.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.torch_version import TorchVersion

from pycompiler.capture.breaks import Break, RestartCapture
from pycompiler.capture.values.base import NEEDED, Capture, Value, class_name
from pycompiler.capture.values.finalizers import ARGUMENT
from pycompiler.ir.weak_guards import reference
from pycompiler.operators import numpy_arrays

LITERALS = (int, float, bool, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
LITERAL_IDS = frozenset(map(id, LITERALS))  # compared by id, since `in` would call the `__eq__` of a metaclass
TORCH_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo, TorchVersion)
MOST_PRINTED = 80  # characters of a constant in the reason of a graph break
ONLY_ITS_ID = 2 + ARGUMENT  # references to a value that an `Identity`, a variable and an argument hold


class Const(Value):
    """A constant.  Two constants are the same object iff the real objects are."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def describe(self) -> str:
        shown = repr(self.value)
        return shown if len(shown) <= MOST_PRINTED else f"{shown[: MOST_PRINTED - 3]}..."

    __repr__ = describe

    def python_type(self) -> type:
        return type(self.value)

    def identity(self) -> object:
        if isinstance(self.value, LITERALS):
            return ("const", type(self.value), self.value)
        return ("object", id(self.value))

    def is_const(self) -> bool:
        return True

    def const(self, why: str = NEEDED) -> Any:
        return self.value

    def plain_number(self) -> Value:
        taken = numpy_arrays.is_number(self.value) and numpy_arrays.is_taken(type(self.value))
        return Const(self.value.item()) if taken else self

    def truth(self, cx: Capture) -> bool:
        return bool(cx.evaluate(bool, self.value).const()) if self.value is NotImplemented else bool(self.value)

    def length(self, cx: Capture) -> Value:
        return cx.evaluate(len, self.value)

    def getattr(self, cx: Capture, name: str) -> Value:
        got = cx.evaluate(getattr, self.value, name)
        return got

    def getitem(self, cx: Capture, key: Value) -> Value:
        return cx.evaluate(operator.getitem, self.value, key)

    def iterate(self, cx: Capture) -> Iterator[Value]:
        if not hasattr(type(self.value), "__iter__"):
            cx.throw(TypeError, f"{class_name(type(self.value))!r} object is not iterable")
        if type(self.value) is frozenset and len(self.value) > 1:
            cx.looks_at_hashes(self.value)
        return (cx.make(v) for v in self.value)

    def contains(self, cx: Capture, item: Value) -> bool:
        if (known := item.among(cx, self.value)) is not None:
            return known
        item = cx.realize(item, "as a value searched in a constant")
        if not item.is_const():
            raise Break("unsupported-operation", f"{item.describe()} in a constant")
        return bool(cx.evaluate(operator.contains, self.value, item).const())

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        cx.throw(TypeError, f"{class_name(type(self.value))!r} object is not callable")
        raise AssertionError


class UnknownStr(Value):
    """A str that contains tensor data, such as the message of an error that is not raised.  Only its letters are
    unknown.
    """

    def __init__(self, broke: Break) -> None:
        self._broke = broke  # the graph break to raise if the program uses the letters

    @property
    def broke(self) -> Break:
        return self._broke.anew()

    def python_type(self) -> type:
        return str

    def const(self, why: str = NEEDED) -> Any:
        raise self.broke


class UnknownObject(Value):
    """An object known only to exist.  Any use breaks the graph at the instruction that created it."""

    def __init__(self, broke: Break) -> None:
        self._broke = broke

    @property
    def broke(self) -> Break:
        return self._broke.anew()

    def describe(self) -> str:
        return "an unknown object"

    __repr__ = describe

    def python_type(self) -> type:
        raise self.broke

    def identity(self) -> object:
        return ("withheld", id(self))

    def truth(self, cx: Capture) -> bool:
        raise self.broke

    def getattr(self, cx: Capture, name: str) -> Value:
        raise self.broke

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise self.broke

    def getitem(self, cx: Capture, key: Value) -> Value:
        raise self.broke

    def iterate(self, cx: Capture) -> Iterator[Value]:
        raise self.broke

    def length(self, cx: Capture) -> Value:
        raise self.broke


class PendingState(UnknownObject):
    """An object whose state depends on a call that waits for the graph.

    A use restarts the capture of the frame (`RestartCapture`), with `tried[name]` set so that the call does not wait.
    """

    def __init__(self, tried: dict[tuple[Any, ...], Any], name: tuple[str, ...]) -> None:
        self.tried = tried
        self.name = name

    @property
    def broke(self) -> Any:  # type: ignore[override]
        self.tried[self.name] = True
        return RestartCapture()


class AddressStr(UnknownStr):
    """A str with addresses of objects.  Generated code computes `make(*parts)` where the real objects exist."""

    def __init__(self, broke: Break, make: Callable[..., str], parts: list[Value]) -> None:
        super().__init__(broke)
        self.make, self.parts = make, parts


class Identity(Value):
    """id(value): only its equality with other ids is known, not the number."""

    def __init__(self, value: Value) -> None:
        self.value = value

    @classmethod
    def of(cls, value: Value) -> Identity:
        """One `Identity` per object, so that `is_gone` can count the other references to the object."""
        found = None if value.known_id is None else value.known_id()
        if found is None:
            found = cls(value)
            value.known_id = weakref.ref(found)
        assert isinstance(found, Identity)
        return found

    def python_type(self) -> type:
        return int

    def identity(self) -> object:
        return ("id of", self.value.identity())

    def is_gone(self) -> bool:
        """Whether the program has dropped its last reference to an object of this capture: a later object may reuse the
        id.
        """
        value = self.value
        made = value.source is None and value.identity() == ("value", id(value))
        return made and sys.getrefcount(value) <= ONLY_ITS_ID

    def settled(self, cx: Capture) -> Value:
        """The number itself, for an existing object, guarded by "id_is"."""
        if self.value.is_const() and issubclass(type(cls := self.value.const()), type):
            if getattr(self.value, "made", None) is None:  # else each call creates the class
                return Const(id(cls))
        real, source = getattr(self.value, "real", None), self.value.source
        if source is None or real is None:
            raise Break("unsupported-operation", f"id of {self.value.describe()} as a number")
        cx.guard("id_is", source, reference(real))
        return Const(id(real))


NUMBERS = (int, float, bool, complex)


def check_ids_alive(keys: Iterable[Value]) -> None:
    """Break if ids are keys side by side and the object of one of them is gone."""
    ids = [v for v in keys if isinstance(v, Identity)]
    if len(ids) > 1 and any(v.is_gone() for v in ids):
        raise Break("unsupported-operation", "the id of an object that no longer exists, among keys")


def lookup_key(cx: Capture, value: Value, others: Iterable[Value]) -> Value:
    """The key to search for among `others`: an id becomes a number if `others` contains numbers."""
    if isinstance(value, Identity):
        cx.ids_are_keys = True
        found = list(others)
        check_ids_alive([value, *(v for v in found if v is not value)])
        return value.settled(cx) if any(isinstance(v, Const) and v.python_type() in NUMBERS for v in found) else value
    if cx.ids_are_keys and isinstance(value, Const) and value.python_type() in NUMBERS:
        if any(isinstance(v, Identity) for v in others):
            raise Break("unsupported-operation", "a number among ids of objects")
    return value
