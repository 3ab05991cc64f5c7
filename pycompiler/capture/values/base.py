"""`Value`: the base class of all symbolic values, with Python's data model as its methods.

In: values.  Out: values.  The defaults of the data model's methods break the graph; each kind of value overrides some
of them.  A user's class, dataclass or module needs no kind of its own (see objects.py).
"""

from __future__ import annotations

import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.interface import NEEDED, Capture
from pycompiler.ir.source import Source, mro_of, namespace_of

TracebackEntry = tuple[types.CodeType, dict[str, Any], int, int]
"""An entry of a traceback: code object, globals, instruction offset (as `tb_lasti`) and line."""


next_age: Callable[[], int] = itertools.count().__next__


class Value:
    """A value of the captured program.  `source` says how to load the object if it existed before the frame."""

    source: Source | None = None
    _within: weakref.ref[Value] | None = None
    passed: Sequence[TracebackEntry] = ()  # frames that an exception passed, innermost first
    age: int  # creation order: grows with each value
    stores: type = object  # the class whose methods generated code uses to store attributes
    passes_on = False  # whether a call only passes its arguments on, so that lazy arguments may stay lazy
    known_id: Callable[[], Value | None] | None = None  # a weak reference to the value of its id
    referred = False  # whether an object created during capture refers to it weakly
    # Whether its destruction may run code (`iterators.runs_code_at_end`); None: not computed yet.
    ends: bool | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made.age = next_age()
        return made

    def namespace_source(self) -> Source:
        """The source of the dict that holds its attributes."""
        assert self.source is not None
        return self.source.then("instance_dict")

    @property
    def within(self) -> Value | None:
        """The instance of a container subclass whose contents this value is, or None.

        The instance owns the contents.  A holder of the contents alone must hold the instance too (see `DictView`).
        The reference is weak: a cycle would keep the instance's values alive and the generators among them open.
        """
        return None if self._within is None else self._within()

    @within.setter
    def within(self, instance: Value) -> None:
        self._within = weakref.ref(instance)

    def python_type(self) -> type:
        """The class that type() returns; a graph break if it is not known."""
        raise Break("unsupported-type", type(self).__name__)

    def describe(self) -> str:
        """A short name for the reasons of graph breaks."""
        try:
            return f"{self.python_type().__qualname__} object"
        except Break:
            return type(self).__name__

    __repr__ = describe

    # The object's identity for `is`: two values are the same object iff their keys are equal.
    def identity(self) -> object:
        return ("value", id(self))

    # Whether `const()` gives the real object: exactly known, and immutable or existing before the frame.
    def is_const(self) -> bool:
        return False

    def const(self, why: str = NEEDED) -> Any:
        """The object.  A symbolic number is a constant from now on; `why` is recorded with the assumption."""
        raise Break("unsupported-operation", f"{self.describe()} {NEEDED}")

    def settle(self, why: str) -> Value:
        """Make the symbolic numbers in a value constants (`Capture.realize` with a reason calls it).  Returns the value,
        or the constant of a number.
        """
        return self

    def among(self, cx: Capture, container: Any) -> bool | None:
        """Whether a range, a frozenset or a list of constants contains this symbolic number; None: not decided here."""
        return None

    def plain_number(self) -> Value:
        """A NumPy scalar as a Python number, if its value is known and torch accepts the scalar as a number; else the
        value itself.
        """
        return self

    def as_index(self) -> Value:
        """The value as an index of a tensor: a NumPy scalar becomes a Python number, an array a tensor, others stay."""
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
        """The elements in order, as a lazy Python iterator of values."""
        raise Break(iteration_break_kind(self), f"iteration over {self.describe()}")

    def length(self, cx: Capture) -> Value:
        """`len(self)`: a symbolic number if the length changes between calls and is not guarded yet."""
        raise Break("unsupported-operation", f"len({self.describe()})")

    def truth(self, cx: Capture) -> bool:
        raise Break("unsupported-operation", f"bool({self.describe()})")

    def contains(self, cx: Capture, item: Value) -> bool:
        raise Break("unsupported-operation", f"in {self.describe()}")

    def has_method(self, cx: Capture, name: str) -> bool:
        return hasattr(self.python_type(), name)


class StandIn:
    """A class attribute that stands for a value which this capture created or wrote."""

    def __init__(self, value: Value) -> None:
        self.value = value


class Null(Value):
    """CPython's NULL on the value stack."""

    def describe(self) -> str:
        return "NULL"

    __repr__ = describe


NULL = Null()


class LazyObject(Value):
    """An object that the program has not used yet.  The first use wraps and guards it; later uses share that value."""

    def __init__(self, real: Any, source: Source) -> None:
        self.real = real
        self.source = source
        self.seen: Value | None = None
        self.is_text = False  # whether the type is guarded to be str

    def look(self, cx: Capture) -> Value:
        """The value of the first use."""
        assert self.source is not None
        return cx.wrap(self.real, self.source)

    def guard_class(self, cx: Capture) -> None:
        """Guard only the type of a lazy `str` or number until the program uses its value."""
        assert self.source is not None
        cx.guard("type_is", self.source, type(self.real))
        self.is_text = type(self.real) is str

    def python_type(self) -> type:
        return str if self.is_text else super().python_type()

    def describe(self) -> str:
        return str(self.source)

    __repr__ = describe


class Cell(Value):
    """A cell variable.  `contents` is None for an empty cell.  `frame_name` names a cell slot of the root frame."""

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
    """The name of a class in CPython's error messages.

    A class from C carries its module in `tp_name`.  Python does not expose `tp_name`, so an error message is parsed.
    """
    try:
        type.__getattribute__(cls, "\0")
    except AttributeError as error:
        return f"{cls.__module__}.{cls.__name__}" if f"'{cls.__module__}." in str(error) else cls.__name__
    return cls.__name__


def full_name(cls: type) -> str:
    """The name of a class in the error for an empty slot: since 3.13 module and qualified name."""
    if sys.version_info < (3, 13):
        return class_name(cls)
    space: Any = type.__dict__["__module__"].__get__(cls)  # a program may set it to any object
    return (
        f"{space}.{cls.__qualname__}"
        if isinstance(space, str) and space not in ("builtins", "__main__")
        else cls.__qualname__
    )


def iteration_break_kind(value: Value) -> str:
    """The kind of a graph break for iteration over `value`."""
    try:
        classes = mro_of(value.python_type())
    except Break:
        return "unsupported-operation"
    return "running-iterator" if any("__next__" in namespace_of(c) for c in classes) else "unsupported-operation"
