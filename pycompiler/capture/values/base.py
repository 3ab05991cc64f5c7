"""What the symbolic interpreter computes with: `Value` and Python's data model on it.

In: values.  Out: values, through the protocol methods below, whose defaults break the graph.  A kind of value is
a subclass in this folder; a user's class, dataclass or module needs no kind of its own (see objects.py).
"""

from __future__ import annotations

import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.interface import Capture
from pycompiler.ir.source import Source, mro_of, namespace_of

Place = tuple[types.CodeType, dict[str, Any], int, int]
"""A frame's code, its globals, the instruction there (as `tb_lasti`) and the line: an entry of a traceback."""


next_age: Callable[[], int] = itertools.count().__next__


class Value:
    """A value of the captured program.  `source` says where it can be loaded from, if it existed before the frame."""

    source: Source | None = None
    _within: weakref.ref[Value] | None = None
    passed: Sequence[Place] = ()  # where an exception passed, the innermost place first
    age: int  # grows from value to value
    stores: type = object  # the class by whose methods generated code stores attributes
    passes_on = False  # whether a call of it only hands its arguments on, looked at or not
    known_id: Callable[[], Value | None] | None = None  # a weak reference to the value of its id
    referred = False  # weakly, by what was made while the frame is captured
    ends: bool | None = None  # whether its end may run code (`iterators.ends_others`), where it was asked

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made.age = next_age()
        return made

    def namespace_source(self) -> Source:
        """Where the dict is that it has its attributes in."""
        assert self.source is not None
        return self.source.then("instance_dict")

    @property
    def within(self) -> Value | None:
        """Of what is in an instance of a subclass of a container: that instance.  It holds its contents; who holds only these
        holds it too (a circle here would keep alive what the instance shows, and open the generators in it)."""
        return None if self._within is None else self._within()

    @within.setter
    def within(self, instance: Value) -> None:
        self._within = weakref.ref(instance)

    def python_type(self) -> type:
        """The class that type() gives; breaks when it is not known."""
        raise Break("unsupported-type", type(self).__name__)

    def describe(self) -> str:
        """As people write or know it: reasons of breaks show it."""
        try:
            return f"{self.python_type().__qualname__} object"
        except Break:
            return type(self).__name__

    __repr__ = describe

    # identity of the object for `is`: two values are the same object iff the keys are equal
    def identity(self) -> object:
        return ("value", id(self))

    # The real object, when it is known exactly and immutable or existing (not for values made during capture).
    def is_const(self) -> bool:
        return False

    def const(self) -> Any:
        raise Break("unsupported-operation", f"a constant was needed, {self.describe()} was seen")

    def settle(self, why: str) -> Value:
        """A number over symbols (`symbolic.py`) as the constant that it is today; any other value as it is."""
        return self

    def among(self, cx: Capture, container: Any) -> bool | None:
        """Whether a range, a set of constants or their list has it: of a number over symbols, which is compared with them."""
        return None

    def plain_number(self) -> Value:
        """A number of NumPy's as Python's, where a call knows it and torch takes it for that; any other value as it is."""
        return self

    def as_index(self) -> Value:
        """What a tensor is indexed by: a number of NumPy's is one of Python's, an array a tensor; any other value as it is."""
        return self

    # data model -----------------------------------------------------------------------------------------------
    def getattr(self, cx: Capture, name: str) -> Value:
        return cx.class_attribute(self, name)

    def setattr(self, cx: Capture, name: str, value: Value) -> None:
        raise Break("mutation-unsupported", f"{self.describe()}.{name} = ...")

    def delattr(self, cx: Capture, name: str) -> None:
        raise Break("mutation-unsupported", f"del {self.describe()}.{name}")

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise Break("builtin-call", self.describe())

    def getitem(self, cx: Capture, key: Value) -> Value:
        raise Break("unsupported-operation", f"{self.describe()}[...]")

    def setitem(self, cx: Capture, key: Value, value: Value) -> None:
        raise Break("mutation-unsupported", f"{self.describe()}[...] = ...")

    def delitem(self, cx: Capture, key: Value) -> None:
        raise Break("mutation-unsupported", f"del {self.describe()}[...]")

    def iterate(self, cx: Capture) -> Iterator[Value]:
        """The elements, in order, as a (lazy) Python iterator of values."""
        raise Break(iterating(self), f"iteration over {self.describe()}")

    def length(self, cx: Capture) -> int:
        raise Break("unsupported-operation", f"len({self.describe()})")

    def truth(self, cx: Capture) -> bool:
        raise Break("unsupported-operation", f"bool({self.describe()})")

    def contains(self, cx: Capture, item: Value) -> bool:
        raise Break("unsupported-operation", f"in {self.describe()}")

    def has_method(self, cx: Capture, name: str) -> bool:
        return hasattr(self.python_type(), name)


class StandIn:
    """What a class has for a value of the frame: one that is made while the frame is captured, or written by it."""

    def __init__(self, value: Value) -> None:
        self.value = value


class Null(Value):
    """CPython's NULL on the value stack."""

    def describe(self) -> str:
        return "NULL"

    __repr__ = describe


NULL = Null()


class Lazy(Value):
    """An element not looked at yet: wrapped, and guarded, when it is first used, then the same value wherever it went."""

    def __init__(self, real: Any, source: Source) -> None:
        self.real = real
        self.source = source
        self.seen: Value | None = None
        self.is_text = False  # which is guarded

    def look(self, cx: Capture) -> Value:
        """The value, when it is first used."""
        assert self.source is not None
        return cx.wrap(self.real, self.source)

    def guard_class(self, cx: Capture) -> None:
        """Of a text or number that nobody has asked for: that it is one."""
        assert self.source is not None
        cx.guard("type_is", self.source, type(self.real))
        self.is_text = type(self.real) is str

    def python_type(self) -> type:
        return str if self.is_text else super().python_type()

    def describe(self) -> str:
        return str(self.source)

    __repr__ = describe


class Cell(Value):
    """A cell variable.  `contents` None is the empty cell.  `frame_name`: a cell slot of the root frame."""

    def __init__(self, contents: Value | None, *, source: Source | None = None, frame_name: str | None = None) -> None:
        self.contents = contents
        self.source = source
        self.frame_name = frame_name
        self.changed = False

    def describe(self) -> str:
        return f"cell {self.frame_name}" if self.frame_name else "cell object"

    __repr__ = describe

    def python_type(self) -> type:
        import types

        return types.CellType


def class_name(cls: type) -> str:
    """What CPython's errors call a class: one that C made has its module in its name (`tp_name`), and says so itself."""
    try:
        type.__getattribute__(cls, "\0")
    except AttributeError as error:
        return f"{cls.__module__}.{cls.__name__}" if f"'{cls.__module__}." in str(error) else cls.__name__
    return cls.__name__


def full_name(cls: type) -> str:
    """What the error of an empty slot calls a class: from 3.13 on by module and qualified name."""
    if sys.version_info < (3, 13):
        return class_name(cls)
    space: Any = type.__dict__["__module__"].__get__(cls)  # a program may set it to anything
    return (
        f"{space}.{cls.__qualname__}"
        if isinstance(space, str) and space not in ("builtins", "__main__")
        else cls.__qualname__
    )


def iterating(value: Value) -> str:
    """The kind of a break where `value` would have to give elements."""
    try:
        classes = mro_of(value.python_type())
    except Break:
        return "unsupported-operation"
    return "running-iterator" if any("__next__" in namespace_of(c) for c in classes) else "unsupported-operation"
