"""Classes that may end before what names them does: guards, sources and generated code hold these weakly.

In: guards and sources as capture makes them, which hold what they name.  Out: the same, whose roots and arguments hold such
classes by weak references.  One that is gone is found at none of its places any more, so no guard that names it holds again: a
new class at its address is another one.

A class that a module leads to by its name stays as long as the module does, and is held as it is: nothing is asked of it twice.
What a class owns and what cannot be referred to weakly (a property, its `__mro__`) is compared by its parts.

Example: `<A>.__mro__['x']` has the root `Source("const", None, A)`; held weakly it is `Source("class", None, weakref.ref(A))`.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from pycompiler.ir.guards import Guard, TensorSpec
from pycompiler.ir.source import ClassKey, Source, namespace_of

HEAP_TYPE, IMMUTABLE = 1 << 9, 1 << 8  # Py_TPFLAGS_HEAPTYPE, Py_TPFLAGS_IMMUTABLETYPE

_flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__
_space_of: Callable[[types.ModuleType], dict[str, Any]] = vars(types.ModuleType)["__dict__"].__get__
_path_of: Callable[[type], str] = type.__dict__["__qualname__"].__get__


def may_end(value: Any) -> bool:
    """Whether it is a class of Python's that no module leads to by its name."""
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
    """A session's, or a notebook's: it defines its classes again and again."""
    return module is sys.modules.get("__main__") and "__file__" not in _space_of(module)


LASTING = (type, types.ModuleType, types.CodeType, type(None), bool)


def _stays(value: Any) -> bool:
    """Whether it is a function written in C of a module that leads to it, or of a class."""
    owner = value.__self__ if type(value) is types.BuiltinFunctionType else value
    space = _space_of(owner) if isinstance(owner, types.ModuleType) else {}
    return owner is not value and (owner is None or isinstance(owner, type) or space.get(value.__name__) is value)


def reference(real: Any) -> Any:
    """How a guard holds an object that it compares by identity: weakly where that is possible and matters."""
    if issubclass(type(real), LASTING) or _stays(real):
        return held(real)
    try:
        return weakref.ref(real)
    except TypeError:
        return real


def held(value: Any) -> Any:
    """A weak reference to a class that may end; others as they are."""
    return weakref.ref(value) if may_end(value) else value


def strongly(value: Any) -> Any:
    """What `held` gave a reference to."""
    return value() if type(value) is weakref.ref else value


class _Weakly:
    """Sources and keys of one recipe, held weakly; `named` are the references to the classes that were among them."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[Source, Source]] = {}
        self.named: dict[int, Any] = {}

    def source(self, source: Source) -> Source:
        chain: list[Source] = []
        at: Source | None = source
        while at is not None and id(at) not in self.known:
            chain.append(at)
            at = at.base
        base = None if at is None else self.known[id(at)][1]
        for link in reversed(chain):
            kind, arg = link.kind, link.arg
            if kind == "const" and may_end(arg):
                kind, arg = "class", self.name(weakref.ref(arg))
            elif kind == "dict_item":
                arg = self.key(arg)
            base = link if base is link.base and arg is link.arg else Source(kind, base, arg)
            self.known[id(link)] = link, base
        return self.known[id(source)][1]

    def name(self, reference: Any) -> Any:
        return self.named.setdefault(id(reference), reference)

    def key(self, key: Any) -> Any:
        """What a dict is asked for; a class whose metaclass says what equals it is held as it is."""
        meta: Any = type(key)
        if not may_end(key) or meta.__hash__ is not type.__hash__ or meta.__eq__ is not type.__eq__:
            return key
        self.name(weakref.ref(key))
        return ClassKey(key)

    def guard(self, guard: Guard) -> Iterator[Guard]:
        source, others = self.source(guard.source), tuple(map(self.source, guard.others))
        same = source is guard.source and all(map(lambda a, b: a is b, others, guard.others))
        made, arg = guard if same else replace(guard, source=source, others=others), guard.arg
        if guard.kind in ("dict_contains", "dict_absent"):
            yield made if (key := self.key(arg)) is arg else replace(made, arg=key)
        elif guard.kind == "set_equals" and any(map(may_end, arg)):
            yield replace(made, arg=frozenset(map(self.key, arg)))
        else:
            yield from _parts(made)


def weak_source(source: Source) -> Source:
    """The source, holding no class that may end."""
    return _Weakly().source(source)


def weak_guards(guards: Iterable[Guard], taken: Iterable[Any] = ()) -> list[Guard]:
    """Guards that hold no class that may end.  Those that they name, and that generated code takes (by references), are alive."""
    weakly = _Weakly()
    found = [made for guard in guards for made in weakly.guard(guard)]
    for reference in taken:
        if issubclass(type(reference()), type):
            weakly.name(reference)
    return [*found, *map(_alive, weakly.named.values())]


def _alive(reference: Any) -> Guard:
    return Guard("id_is", Source("class", None, reference), reference)


def _parts(guard: Guard) -> Iterator[Guard]:
    """The guard, or guards that say as much and hold nothing of a class that may end."""
    arg = guard.arg
    if guard.kind == "tensor" and may_end(arg.cls):
        weak: TensorSpec = replace(arg, cls=held(arg.cls))
        yield from (replace(guard, kind="type_is", arg=weak.cls), replace(guard, arg=weak))
    elif guard.kind == "id_is" and guard.source.root.kind == "class" and (parts := PARTS.get(type(arg))) is not None:
        yield from parts(guard)
    elif guard.kind == "dict_keys" and any(map(may_end, arg)):
        yield replace(guard, kind="length", arg=len(arg))
        for i, key in enumerate(arg):
            place = guard.source.then("dict_key_at", i)
            plain = type(key) in (str, int, float, bool, bytes, type(None))
            yield replace(guard, kind="equals", source=place, arg=key) if plain else _is(guard, place, key)
    elif guard.kind in ("type_is", "id_is") and (may_end(arg) or type(arg) is types.BuiltinFunctionType):
        yield guard if (weak := reference(arg)) is arg else replace(guard, arg=weak)
    else:
        yield guard


def _is(guard: Guard, source: Source, value: Any) -> Guard:
    return replace(guard, kind="id_is", source=source, arg=reference(value))


def _of_attributes(*names: str) -> Callable[[Guard], Iterator[Guard]]:
    def parts(guard: Guard) -> Iterator[Guard]:
        yield replace(guard, kind="type_is", arg=type(guard.arg))
        for name in names:
            yield _is(guard, guard.source.attr(name), getattr(guard.arg, name))

    return parts


def _of_descriptor(guard: Guard) -> Iterator[Guard]:
    """A place of instances of one class, by its name."""
    yield replace(guard, kind="type_is", arg=type(guard.arg))
    yield replace(guard, kind="equals", source=guard.source.attr("__name__"), arg=guard.arg.__name__)
    yield _is(guard, guard.source.attr("__objclass__"), guard.arg.__objclass__)


def _of_tuple(guard: Guard) -> Iterator[Guard]:
    """`__mro__` and its like: the same classes in the same order."""
    if not any(map(may_end, guard.arg)):
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
"""What cannot be referred to weakly, and is a class's own: the guards that stand for the identity of one."""
