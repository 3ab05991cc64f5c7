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
from pycompiler.ir.source import Source, namespace_of

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


def weak_source(source: Source) -> Source:
    """The source, its root held weakly where that is a class that may end."""
    root = source.root
    return (
        source if root.kind != "const" or not may_end(root.arg) else _on(source, Source("class", None, held(root.arg)))
    )


def _on(source: Source, root: Source) -> Source:
    return root if source.base is None else Source(source.kind, _on(source.base, root), source.arg)


def weak_guards(guards: Iterable[Guard], named: Iterable[Any] = ()) -> list[Guard]:
    """Guards that hold no class that may end.  Before anything else is asked of such a class, and where generated code takes
    one (`named`: references to what it takes), it is alive."""
    found: list[Guard] = []
    alive: dict[Source, Guard] = {Source("class", None, r): _alive(r) for r in named if issubclass(type(r()), type)}
    for guard in guards:
        source, others = weak_source(guard.source), tuple(map(weak_source, guard.others))
        for s in (source, *others):
            if (root := s.root).kind == "class" and root not in alive:
                alive[root] = _alive(root.arg)
        same = source is guard.source and all(map(lambda a, b: a is b, others, guard.others))
        found += _parts(guard if same else replace(guard, source=source, others=others))
    return [*found, *alive.values()]


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
    elif (
        guard.kind == "id_is"
        and type(arg) is types.BuiltinFunctionType
        or guard.kind in ("type_is", "id_is")
        and may_end(arg)
    ):
        yield replace(guard, arg=reference(arg))
    else:
        yield guard


def _is(guard: Guard, source: Source, value: Any) -> Guard:
    return replace(guard, source=source, arg=reference(value))


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
