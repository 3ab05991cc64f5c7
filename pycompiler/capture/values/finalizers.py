"""Code that runs when the last reference to an object goes: finalizers, weak reference callbacks, ends of generators.

In: an existing object.  Out: `runs_code`: whether dropping it may run code of the program, or allow a bytearray to be
resized.

The capture breaks the graph where such an object is dropped, so that the code after it sees the effects.  Generated
code that drops an object checks the object first (`runtime_helpers.only_quiet`), since a later call may drop another one.  If
its end would run code, the frame runs eagerly.
"""

from __future__ import annotations

import collections
import gc
import math
import sys
import types
import weakref
from typing import Any

import torch

from pycompiler import _native
from pycompiler.ir import iterator_state
from pycompiler.ir.source import flags_of, mro_of, namespace_of

QUIET: frozenset[type] = frozenset({
    type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.nn.Parameter, torch.dtype, torch.device, torch.Size,
    type, types.ModuleType, types.CodeType, types.BuiltinFunctionType,
})  # fmt: skip
"""Classes whose instances end without running code, or that have further holders."""
MOST = 300  # objects to inspect
NAMED = 50  # functions to inspect


def _argument() -> int:
    probe = object()
    return sys.getrefcount(probe) - 1


ARGUMENT = _argument()  # references that argument passing adds; CPython 3.14 borrows the variable's reference
HELD_ONCE = 3 + ARGUMENT  # reference count in `_held_by` of an object with one holder
HELD_BY_ITERATOR = 2 + ARGUMENT  # reference count in `ends_quietly` of an object that only an iterator holds
HEAP_TYPE = 1 << 9
CONTAINERS: tuple[Any, ...] = (dict, list, tuple, set, frozenset, collections.deque)
"""Classes whose own methods list the contents: a subclass may override them."""


_QUIET = frozenset(map(id, QUIET))


def is_quiet(real: Any) -> bool:
    """Whether an object is of a quiet class.  Compared by id, since a metaclass may define `__eq__`."""
    return id(type(real)) in _QUIET


def runs_code(real: Any) -> bool:
    """Whether code may run when `real` has no holder any more: its own, or code of objects that it alone holds.

    Objects that only a torch module holds are not inspected.
    """
    if is_quiet(real):
        return False
    todo, seen = [real], 0
    while todo and seen < MOST:
        value = todo.pop()
        seen += 1
        if _has_end(value):
            return True
        if not issubclass(type(value), torch.nn.Module):
            todo += _held_by(value)
    return False


def ends_quietly(iterator: Any) -> bool:
    """Whether a running iterator drops its container quietly at its end.

    Others hold the container too, or all its elements end quietly.  The caller may hold the elements.
    """
    try:
        held = iterator_state.read(iterator, "over")
    except (IndexError, TypeError):
        return True
    if sys.getrefcount(held) > HELD_BY_ITERATOR:
        return True
    own = next((c for c in CONTAINERS if issubclass(type(held), c)), None)
    if own is None:
        return isinstance(held, (str, bytes, bytearray, range))
    return all(map(is_quiet, [*dict.keys(held), *dict.values(held)] if own is dict else own.__iter__(held)))


def _held_by(value: Any) -> list[Any]:
    """The objects that only `value` holds: they end with it."""
    children = gc.get_referents(value)
    return [c for c in children if not is_quiet(c) and sys.getrefcount(c) <= HELD_ONCE]


def names_ends(code: types.CodeType, namespace: dict[str, Any]) -> bool:
    """Whether a function, or a function that it names, names a class with a finalizer: its calls may create instances."""
    todo, seen = [(code, namespace)], {code}
    for code, namespace in todo:
        parts = [(c, namespace) for c in code.co_consts if type(c) is types.CodeType]
        for real in [namespace[name] for name in code.co_names if name in namespace]:
            if issubclass(type(real), type) and is_ended(real):
                return True
            if type(real) is types.FunctionType:
                parts.append((real.__code__, real.__globals__))
        todo += [part for part in parts if part[0] not in seen] if len(todo) < NAMED else []
        seen.update(part[0] for part in parts)
    return False


def is_ended(cls: type) -> bool:
    # `mro_of` is None for a class whose `mro()` is running.
    return any("__del__" in namespace_of(c) for c in mro_of(cls) or ())


def _has_end(value: Any) -> bool:
    cls = type(value)
    if cls is types.GeneratorType:
        return bool(value.gi_suspended)
    if cls is types.CoroutineType:
        return bool(value.cr_suspended)
    if cls is memoryview:
        return _exports(value)
    if is_ended(cls):
        return True
    return bool(flags_of(cls) & HEAP_TYPE) and any(map(_calls_back, weakref.getweakrefs(value)))


def _exports(view: memoryview) -> bool:
    """Whether the end of a memoryview allows its object to be resized."""
    try:
        return type(view.obj) is not bytes
    except ValueError:  # it is released
        return False


def _calls_back(reference: Any) -> bool:
    """Whether a weak reference runs code when its object ends.  A proxy's attributes are the referent's."""
    if type(reference) in weakref.ProxyTypes:
        return bool(gc.get_referents(reference))
    return reference.__callback__ is not None


def in_slot(owner: Any, name: str) -> list[Any]:
    """The contents of an object's slot, as a list of one; [] if there is no such slot or it is empty."""
    found = next((own[name] for c in mro_of(type(owner)) if name in (own := namespace_of(c))), None)
    if type(found) is not types.MemberDescriptorType:
        return []
    try:
        return [found.__get__(owner, type(owner))]
    except AttributeError:
        return []


def is_referred_to(real: Any) -> bool:
    """Whether weak references observe the end of an instance."""
    return (
        bool(flags_of(type(real)) & HEAP_TYPE)
        and not issubclass(type(real), (type, torch.nn.Module, torch.Tensor))
        and weakref.getweakrefcount(real) > 0
    )


class _Probe:
    """An object whose weak reference has a single holder."""


def only_entries_refer(real: Any) -> bool:
    """Whether only compiled entries hold weak references to an instance, so that the program cannot observe its end."""
    probe = _Probe()
    known = weakref.ref(probe)
    return _other_holders(real) < _other_holders(probe) if known is not None else False


def _other_holders(real: Any) -> float:
    """The number of references to an object's only weak reference that do not come from entries.

    Infinite if it has several weak references, or a callback.
    """
    references = weakref.getweakrefs(real)
    if len(references) != 1 or type(references[0]) is not weakref.ref or references[0].__callback__ is not None:
        return math.inf
    entries = [h for h in gc.get_referrers(references[0]) if isinstance(h, _native.Entry)]
    return sys.getrefcount(references[0]) - sum(o is references[0] for e in entries for o in gc.get_referents(e))
