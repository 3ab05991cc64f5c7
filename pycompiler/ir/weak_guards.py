"""Weak guards: guards, sources and generated code hold classes weakly that may be freed before them.

In: guards and sources from capture, with strong references.  Out: equivalent guards whose roots and arguments hold such
classes by weak references.  A freed class is found at none of its former places, so no guard that names it holds again.
A new class at the same address is a different class.

A class that a module reaches by its name lives as long as the module.  It is held strongly, and is not checked a second
time.  Objects that a class owns and that have no weak references (a property, its `__mro__`) are compared by their parts.

Example: `<A>.__mro__['x']` has the root `Source("const", None, A)`; held weakly it is `Source("class", None, weakref.ref(A))`.
"""

from __future__ import annotations

import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from pycompiler.ir.guards import Guard, TensorSpec
from pycompiler.ir.source import ClassKey, Computed, Source, namespace_of

HEAP_TYPE, IMMUTABLE = 1 << 9, 1 << 8  # Py_TPFLAGS_HEAPTYPE, Py_TPFLAGS_IMMUTABLETYPE

_flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__
_space_of: Callable[[types.ModuleType], dict[str, Any]] = vars(types.ModuleType)["__dict__"].__get__
_path_of: Callable[[type], str] = type.__dict__["__qualname__"].__get__


def may_be_freed(value: Any) -> bool:
    """Whether `value` is a Python class that no module reaches by its name."""
    if not issubclass(type(value), type) or _flags_of(value) & (HEAP_TYPE | IMMUTABLE) != HEAP_TYPE:
        return False
    name = namespace_of(value).get("__module__")
    module = sys.modules.get(name) if type(name) is str else None
    if not isinstance(module, types.ModuleType) or is_typed_in(module):
        return True
    space: Any = _space_of(module)
    for part in _path_of(value).split("."):
        found = space.get(part)
        if not issubclass(type(found), type):
            return True
        space = namespace_of(found)
    return found is not value


def is_typed_in(module: types.ModuleType) -> bool:
    """Whether the module is an interactive session or a notebook, which defines its classes again and again."""
    if module is not sys.modules.get("__main__"):
        return False
    file = _space_of(module).get("__file__")
    return type(file) is not str or not os.path.isfile(file)


LASTING = (type, types.ModuleType, types.CodeType, type(None), bool)


def _stays(value: Any) -> bool:
    """Whether `value` is a C function that its module reaches, or a C function of a class."""
    owner = value.__self__ if type(value) is types.BuiltinFunctionType else value
    space = _space_of(owner) if isinstance(owner, types.ModuleType) else {}
    return owner is not value and (owner is None or isinstance(owner, type) or space.get(value.__name__) is value)


def reference(real: Any) -> Any:
    """The form in which a guard holds an object compared by identity: a weak reference where possible and useful."""
    if issubclass(type(real), LASTING) or _stays(real):
        return weakly_held(real)
    try:
        return weakref.ref(real)
    except TypeError:
        return real


def weakly_held(value: Any) -> Any:
    """A weak reference to a class that may be freed; any other value unchanged."""
    return weakref.ref(value) if may_be_freed(value) else value


def strongly(value: Any) -> Any:
    """The inverse of `weakly_held`: the referent of a weak reference."""
    return value() if type(value) is weakref.ref else value


class _WeakRecipe:
    """Sources, keys and guards of one recipe, held weakly.  `named`: the references to all classes among them."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[Source, Source]] = {}
        self.verdicts: dict[int, bool] = {}
        self.named: dict[int, Any] = {}

    def ends(self, value: Any) -> bool:
        if not issubclass(type(value), type):
            return False
        found = self.verdicts.get(id(value))
        if found is None:
            found = self.verdicts[id(value)] = may_be_freed(value)
        return found

    def source(self, source: Source) -> Source:
        known = self.known
        if (found := known.get(id(source))) is not None:
            return found[1]
        chain: list[Source] = []
        at: Source | None = source
        while at is not None and (found := known.get(id(at))) is None:
            chain.append(at)
            at = at.base
        base = None if found is None else found[1]
        for link in reversed(chain):
            kind, arg = link.kind, link.arg
            if kind == "const" and self.ends(arg):
                kind, arg = "class", self.name(weakref.ref(arg))
            elif kind == "dict_item" and type(arg) is not str:
                arg = self.key(arg)
            elif type(arg) is Computed:
                places = tuple(map(self.source, arg.places))
                arg = arg if places == arg.places else replace(arg, places=places)
            base = link if base is link.base and arg is link.arg else Source(kind, base, arg)
            known[id(link)] = link, base
        assert base is not None
        return base

    def name(self, reference: Any) -> Any:
        return self.named.setdefault(id(reference), reference)

    def key(self, key: Any) -> Any:
        """A dict key.  A class whose metaclass defines `__eq__` or `__hash__` stays a strong reference."""
        meta: Any = type(key)
        if not self.ends(key) or meta.__hash__ is not type.__hash__ or meta.__eq__ is not type.__eq__:
            return key
        self.name(weakref.ref(key))
        return ClassKey(key)

    def guards(self, guard: Guard) -> Iterable[Guard]:
        """The guard, or equivalent guards that hold no class that may be freed."""
        source, others, kind, arg = self.source(guard.source), guard.others, guard.kind, guard.arg
        if others:
            others = tuple(map(self.source, others))
        if source is not guard.source or others != guard.others:
            guard = replace(guard, source=source, others=others)
        if kind == "id_is" and source.root.kind == "class" and (parts := PARTS.get(type(arg))) is not None:
            return parts(guard)
        if kind in ("type_is", "id_is"):
            held = reference(arg) if type(arg) is types.BuiltinFunctionType or self.ends(arg) else arg
            return (guard if held is arg else replace(guard, arg=held),)
        if kind in ("dict_contains", "dict_absent") and type(arg) is not str:
            return (guard if (key := self.key(arg)) is arg else replace(guard, arg=key),)
        if kind == "set_equals" and any(map(self.ends, arg)):
            return (replace(guard, arg=frozenset(map(self.key, arg))),)
        if kind == "dict_keys" and any(map(self.ends, arg)):
            return _of_keys(guard)
        if kind == "tensor" and self.ends(arg.cls):
            return _of_tensor(guard)
        return (guard,)


def weak_source(source: Source) -> Source:
    """The source without strong references to classes that may be freed."""
    return _WeakRecipe().source(source)


def weak_guards(guards: Iterable[Guard], taken: Iterable[Any] = ()) -> list[Guard]:
    """Guards without strong references to classes that may be freed.

    Further guards check that each class named by a guard, or used by generated code (`taken`, references), is alive.
    """
    weakly = _WeakRecipe()
    found = [made for guard in guards for made in weakly.guards(guard)]
    for reference in taken:
        if issubclass(type(reference()), type):
            weakly.name(reference)
    return [*found, *map(_alive, weakly.named.values())]


def _alive(reference: Any) -> Guard:
    return Guard("id_is", Source("class", None, reference), reference)


def _of_tensor(guard: Guard) -> Iterator[Guard]:
    weak: TensorSpec = replace(guard.arg, cls=weakly_held(guard.arg.cls))
    yield replace(guard, kind="type_is", arg=weak.cls)
    yield replace(guard, arg=weak)


def _of_keys(guard: Guard) -> Iterator[Guard]:
    """The same keys, each at its place."""
    yield replace(guard, kind="length", arg=len(guard.arg))
    for i, key in enumerate(guard.arg):
        place = guard.source.then("dict_key_at", i)
        plain = type(key) in (str, int, float, bool, bytes, type(None))
        yield replace(guard, kind="equals", source=place, arg=key) if plain else _is(guard, place, key)


def _is(guard: Guard, source: Source, value: Any) -> Guard:
    return replace(guard, kind="id_is", source=source, arg=reference(value))


def _of_attributes(*names: str) -> Callable[[Guard], Iterator[Guard]]:
    def parts(guard: Guard) -> Iterator[Guard]:
        yield replace(guard, kind="type_is", arg=type(guard.arg))
        for name in names:
            yield _is(guard, guard.source.attr(name), getattr(guard.arg, name))

    return parts


def _of_descriptor(guard: Guard) -> Iterator[Guard]:
    """A member or getset descriptor, identified by its name and class."""
    yield replace(guard, kind="type_is", arg=type(guard.arg))
    yield replace(guard, kind="equals", source=guard.source.attr("__name__"), arg=guard.arg.__name__)
    yield _is(guard, guard.source.attr("__objclass__"), guard.arg.__objclass__)


def _of_tuple(guard: Guard) -> Iterator[Guard]:
    """`__mro__` and similar: the same classes in the same order."""
    if not any(map(may_be_freed, guard.arg)):
        yield guard
        return
    yield replace(guard, kind="type_is", arg=tuple)
    yield replace(guard, kind="length", arg=len(guard.arg))
    for i, item in enumerate(guard.arg):
        yield _is(guard, guard.source.item(i), item)


PARTS: dict[type, Callable[[Guard], Iterator[Guard]]] = {
    property: _of_attributes("fget", "fset", "fdel"),
    staticmethod: _of_attributes("__func__"),
    classmethod: _of_attributes("__func__"),
    types.MemberDescriptorType: _of_descriptor,
    types.GetSetDescriptorType: _of_descriptor,
    tuple: _of_tuple,
}
"""Type -> parts: guards that replace the identity of a class's own object without weak references."""
