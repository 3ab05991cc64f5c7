"""Sources: where a captured value came from.

In: nothing.  Out: `Source`, an immutable chain from a root to a value, and `ACCESSORS`, the table of links.
A row says how to read a link in Python and how to print it.  The native engine has one accessor per row
(`guards-rs/src/guard/source.rs`), the frame code generator has one reload rule per row.

Example: `x.w[0]` where `x` is a local is `local('x') .attr('w') .item(0)`.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pycompiler.ir import iterator_state
from pycompiler.operators.numpy_arrays import tensor_of


@dataclass(frozen=True)
class Accessor:
    """One way to get from a value to another: `read(base, arg)`; `show(base_text, arg)`."""

    read: Callable[[Any, Any], Any]
    show: Callable[[str, Any], str]


ELEMENTS = ("item", "dict_item", "dict_value_at")  # accessors of containers' elements


class ClassKey:
    """A dict key that stands for a class that may be freed.

    The key is equal to the class and has its hash, but holds it weakly.
    """

    __slots__ = ("_hash", "reference")

    def __init__(self, cls: type) -> None:
        self.reference, self._hash = weakref.ref(cls), hash(cls)

    def __eq__(self, other: object) -> bool:
        if type(other) is ClassKey:
            return self.reference is other.reference
        return other is not None and other is self.reference()

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return repr(self.reference())


@dataclass(frozen=True)
class Computed:
    """Argument of the accessor "computed": a `function` over the value at a source and the values at `places`.

    The function runs none of the program's code, has no side effect, and raises if it cannot decide (`computed_sources.py`).
    """

    function: Callable[..., Any]
    places: tuple[Source, ...]


# args compared by value; all others, and args of subclasses, are compared by identity
BY_VALUE = (str, int, bytes, float, ClassKey, Computed)


@dataclass(frozen=True, eq=False)
class Source:
    """One link of a chain.  `kind` is a row of `ROOTS` or `ACCESSORS`; roots have no `base`.

    Equality is structural; an `arg` that is an arbitrary object compares by identity.
    """

    kind: str
    base: Source | None
    arg: Any

    def _key(self) -> tuple[Any, ...]:
        arg = self.arg
        if type(arg) not in BY_VALUE:
            return (self.kind, id(arg), self.base)
        return (self.kind, type(arg), arg, self.base)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Source) or self.kind != other.kind:
            return False
        a, b = self.arg, other.arg
        same = a is b or (type(a) is type(b) and type(a) in BY_VALUE and a == b)
        return same and self.base == other.base

    def __hash__(self) -> int:
        cached = self.__dict__.get("_hash")
        if cached is None:
            cached = hash(self._key())
            object.__setattr__(self, "_hash", cached)
        return int(cached)

    def __repr__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """Readable Python-like form of the chain."""
        if self.base is None:
            return ROOTS[self.kind](self.arg)
        return ACCESSORS[self.kind].show(self.base.name, self.arg)

    def then(self, kind: str, arg: Any = None) -> Source:
        """The source reached from this one through accessor `kind`."""
        if kind not in ACCESSORS:
            raise KeyError(f"unknown accessor {kind!r}; known: {', '.join(sorted(ACCESSORS))}")
        return Source(kind, self, arg)

    def attr(self, name: str) -> Source:
        return self.then("attr", name)

    def item(self, index: int) -> Source:
        return self.then("item", index)

    def dict_item(self, key: Any) -> Source:
        return self.then("dict_item", key)

    def computed(self, function: Callable[..., Any], *places: Source) -> Source:
        return self.then("computed", Computed(function, places))

    def reads(self) -> Iterator[Source]:
        """All sources that a read of this source reads, itself last."""
        if self.base is not None:
            yield from self.base.reads()
        for place in self.arg.places if type(self.arg) is Computed else ():
            yield from place.reads()
        yield self

    @property
    def root(self) -> Source:
        node = self
        while node.base is not None:
            node = node.base
        return node


# Roots.  `local`: arg is the local's name (a parameter of the frame, or a cell or free variable: the *cell object*).
# `globals`: the globals dict of the frame.  `const`: any object that the compiler knows and the cache entry may hold
# (a module, a class, another function's globals dict, the builtins dict).  `class`: a weak reference to a class that
# may be
# freed before the entry (`weak_guards.py`).
ROOTS: dict[str, Callable[[Any], str]] = {
    "local": lambda arg: f"L[{arg!r}]",
    "globals": lambda arg: "G",
    "const": lambda arg: (
        repr(arg) if type(arg) in (str, int, float) else f"<{getattr(arg, '__name__', type(arg).__name__)}>"
    ),
    "class": lambda arg: f"<{getattr(arg(), '__name__', 'a class that is gone')}>",
}


OWNED_PREFIX = "__box_"
"""Prefix of resume function parameters that are lists of one object.  The code that takes the object out is its only holder."""


def local(name: str) -> Source:
    return Source("local", None, name)


GLOBALS = Source("globals", None, None)


def const_source(value: Any) -> Source:
    return Source("const", None, value)


# Accessors of a class that ignore its metaclass: `cls.__mro__` and `cls.__dict__` would look up names in the metaclass first.
mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
namespace_of: Callable[[type], types.MappingProxyType[str, Any]] = type.__dict__["__dict__"].__get__
flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__
base_of: Callable[[type], type | None] = type.__dict__["__base__"].__get__
room_for_dict: Callable[[type], int] = type.__dict__["__dictoffset__"].__get__
module_of: Callable[[type], Any] = type.__dict__["__module__"].__get__
name_of: Callable[[type], str] = type.__dict__["__name__"].__get__
qualname_of: Callable[[type], str] = type.__dict__["__qualname__"].__get__


def _instance_dict(obj: Any, _: Any) -> Any:
    return object.__getattribute__(obj, "__dict__")


def _mro_lookup(cls: type, name: str) -> Any:
    for base in mro_of(cls):
        if name in (own := namespace_of(base)):
            return own[name]
    raise AttributeError(name)


def _item(sequence: Any, index: int) -> Any:
    """An element of a list or tuple; a subclass's `__getitem__` is not called."""
    base = next((b for b in (list, tuple) if isinstance(sequence, b)), None)
    return sequence[index] if base is None else base.__getitem__(sequence, index)


def _dict_item(mapping: dict[Any, Any], key: Any) -> Any:
    """dict.__getitem__ without the `__missing__` of a subclass such as defaultdict."""
    found = dict.get(mapping, key, _MISSING)
    if found is _MISSING:
        raise KeyError(key)
    return found


_MISSING = object()


def _dict_key_at(mapping: dict[Any, Any], index: int) -> Any:
    return list(mapping)[index]


def _dict_value_at(mapping: dict[Any, Any], index: int) -> Any:
    return list(dict.values(mapping))[index]


def _function(value: Any) -> types.FunctionType:
    if type(value) is not types.FunctionType:
        raise TypeError(f"a Python function is expected, not {type(value).__name__}")
    return value


def referent(value: Any) -> Any:
    """The referent of a weak reference, None if it is gone.  Raises for a subclass, whose call may run other code."""
    if type(value) is not weakref.ref:
        raise TypeError(f"a weak reference is expected, not {type(value).__name__}")
    return value()


def _computed(value: Any, arg: Computed) -> Any:
    raise LookupError(
        "a computed source needs the other sources of its frame"
    )  # only `read` knows the frame's other sources


def _show_computed(base: str, arg: Computed) -> str:
    return f"{arg.function.__name__}({', '.join([base, *(p.name for p in arg.places)])})"


def minus(value: Any) -> int:
    """The negated int; raises if either has more than 64 bits."""
    if type(value) is not int or not -(2**63) < value < 2**63:
        raise TypeError(f"an int of 64 bits is expected, not {value!r}")
    return -value


# Accessors.  Reading must have no side effect.
# The exception is `attr`, which runs the type's own attribute protocol.  It is used only where that is known to be harmless
# (tensors, slots, C getset descriptors).
ACCESSORS: dict[str, Accessor] = {
    "attr": Accessor(getattr, lambda b, a: f"{b}.{a}"),
    "instance_dict": Accessor(_instance_dict, lambda b, a: f"vars({b})"),  # the object's own __dict__
    "type": Accessor(lambda v, _: type(v), lambda b, a: f"type({b})"),
    "mro_lookup": Accessor(_mro_lookup, lambda b, a: f"{b}.__mro__[{a!r}]"),  # raw class attribute, no descriptor call
    "item": Accessor(_item, lambda b, a: f"{b}[{a}]"),  # list/tuple (or subclass) storage at an index
    "dict_item": Accessor(_dict_item, lambda b, a: f"{b}[{a!r}]"),
    "dict_key_at": Accessor(_dict_key_at, lambda b, a: f"list({b})[{a}]"),
    "dict_value_at": Accessor(
        _dict_value_at, lambda b, a: f"list({b}.values())[{a}]"
    ),  # for keys whose lookup would run code
    "cell": Accessor(lambda v, _: v.cell_contents, lambda b, a: f"{b}.cell_contents"),
    # parts of a Python function only: a method has the attributes of its function
    "code": Accessor(lambda v, _: _function(v).__code__, lambda b, a: f"{b}.__code__"),
    "defaults": Accessor(lambda v, _: _function(v).__defaults__, lambda b, a: f"{b}.__defaults__"),
    "kwdefaults": Accessor(lambda v, _: _function(v).__kwdefaults__, lambda b, a: f"{b}.__kwdefaults__"),
    "closure": Accessor(lambda v, _: _function(v).__closure__, lambda b, a: f"{b}.__closure__"),
    "func_globals": Accessor(lambda v, _: _function(v).__globals__, lambda b, a: f"{b}.__globals__"),
    "method_self": Accessor(lambda v, _: v.__self__, lambda b, a: f"{b}.__self__"),
    "method_func": Accessor(lambda v, _: v.__func__, lambda b, a: f"{b}.__func__"),
    "referent": Accessor(lambda v, _: referent(v), lambda b, a: f"{b}()"),
    "grad": Accessor(lambda v, _: v.grad, lambda b, a: f"{b}.grad"),
    "size": Accessor(lambda v, d: v.size(d), lambda b, a: f"{b}.size({a})"),
    "stride": Accessor(lambda v, d: v.stride(d), lambda b, a: f"{b}.stride({a})"),
    "minus": Accessor(lambda v, _: minus(v), lambda b, a: f"-{b}"),  # an int of 64 bits
    "as_tensor": Accessor(
        lambda v, _: tensor_of(v), lambda b, a: f"as_tensor({b})"
    ),  # shares the memory of a NumPy array
    # state of an iterator, or another query (`iterator_state.read`)
    "begun": Accessor(iterator_state.read, lambda b, a: f"{a}({b})"),
    "computed": Accessor(_computed, _show_computed),
}


@dataclass(frozen=True)
class Scope:
    """Values of the roots: the frame's locals by name (cells as cells) and its globals."""

    locals: dict[str, Any]
    globals: dict[str, Any]


def read_root(source: Source, scope: Scope) -> Any:
    if source.kind == "local":
        return scope.locals[source.arg]
    if source.kind == "class":
        return source.arg()
    return scope.globals if source.kind == "globals" else source.arg


def read(source: Source, scope: Scope) -> Any:
    """The value at `source`; raises the accessor's exception if the path is gone."""
    if source.base is None:
        return read_root(source, scope)
    return step(source, read(source.base, scope), scope)


def step(source: Source, base: Any, scope: Scope) -> Any:
    """The value at `source`, given the value at its base."""
    if type(source.arg) is Computed:
        return source.arg.function(base, *(read(place, scope) for place in source.arg.places))
    return ACCESSORS[source.kind].read(base, source.arg)
