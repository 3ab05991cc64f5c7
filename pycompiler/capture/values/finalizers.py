"""What runs when the last reference to an object goes: finalizers, callbacks of weak references, generators that end.

In: an existing object.  Out: `runs_code`, whether letting go of it may run code of the program, or let an
array of bytes be resized.  Capture breaks the graph where
such an object is dropped, so that what follows sees what its end did; generated code that drops something asks first
(`rebuild.only_quiet`), since the next call may drop another object: then the frame runs eagerly.
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
from pycompiler.ir import begun
from pycompiler.ir.source import flags_of, mro_of, namespace_of

QUIET: frozenset[type] = frozenset({
    type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.nn.Parameter, torch.dtype, torch.device, torch.Size,
    type, types.ModuleType, types.CodeType, types.BuiltinFunctionType,
})  # fmt: skip
"""Classes of objects that end quietly, or that more than their owner holds."""
MOST = 300  # objects that are looked at
NAMED = 50  # functions that are


def _argument() -> int:
    probe = object()
    return sys.getrefcount(probe) - 1


ARGUMENT = _argument()  # references to an object by being an argument: CPython 3.14 lends it that of a variable
HELD_ONCE = 3 + ARGUMENT  # references to an object that one other holds, and `_held_by`
HELD_BY_ITERATOR = 2 + ARGUMENT  # ... that an iterator holds, and `lets_go_quietly`
HEAP_TYPE = 1 << 9
CONTAINERS: tuple[Any, ...] = (dict, list, tuple, set, frozenset, collections.deque)
"""What is asked for what it holds by these classes' own methods: a subclass may have others."""


_QUIET = frozenset(map(id, QUIET))


def is_quiet(real: Any) -> bool:
    """Whether an object is of one of those classes: its metaclass, which may be the program's, is not asked."""
    return id(type(real)) in _QUIET


def runs_code(real: Any) -> bool:
    """Whether code may run when nothing holds `real` any more: of its own, or of what it alone holds; but for modules."""
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


def lets_go_quietly(iterator: Any) -> bool:
    """Whether what a begun iterator is over, of which it lets go at its end, is held by others, too, or holds only what ends
    quietly: its elements may be held by who asks."""
    try:
        held = begun.read(iterator, "over")
    except (IndexError, TypeError):
        return True
    if sys.getrefcount(held) > HELD_BY_ITERATOR:
        return True
    own = next((c for c in CONTAINERS if issubclass(type(held), c)), None)
    if own is None:
        return isinstance(held, (str, bytes, bytearray, range))
    return all(map(is_quiet, [*dict.keys(held), *dict.values(held)] if own is dict else own.__iter__(held)))


def _held_by(value: Any) -> list[Any]:
    """The objects that `value` alone holds: the others do not end with it."""
    children = gc.get_referents(value)
    return [c for c in children if not is_quiet(c) and sys.getrefcount(c) <= HELD_ONCE]


def names_ends(code: types.CodeType, namespace: dict[str, Any]) -> bool:
    """Whether a function, or one that it names, names a class whose instances have a finalizer: calls may give such."""
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
    return any("__del__" in namespace_of(c) for c in mro_of(cls) or ())  # none, of a class whose `mro()` runs


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
    """Whether what a view is of may have another size when the view has ended."""
    try:
        return type(view.obj) is not bytes
    except ValueError:  # it is released
        return False


def _calls_back(reference: Any) -> bool:
    """Whether a weak reference runs code when its object ends; a proxy passes all questions on to that."""
    if type(reference) in weakref.ProxyTypes:
        return bool(gc.get_referents(reference))
    return reference.__callback__ is not None


def in_slot(owner: Any, name: str) -> list[Any]:
    """What a slot of an object holds, if there is such a slot, and something in it."""
    found = next((own[name] for c in mro_of(type(owner)) if name in (own := namespace_of(c))), None)
    if type(found) is not types.MemberDescriptorType:
        return []
    try:
        return [found.__get__(owner, type(owner))]
    except AttributeError:
        return []


def is_referred_to(real: Any) -> bool:
    """Whether the end of an instance is seen by weak references."""
    return (
        bool(flags_of(type(real)) & HEAP_TYPE)
        and not issubclass(type(real), (type, torch.nn.Module, torch.Tensor))
        and weakref.getweakrefcount(real) > 0
    )


class _Probe:
    """Whose weak reference nothing but one variable holds."""


def only_entries_refer(real: Any) -> bool:
    """Whether the weak references to an instance are those that compiled entries have of it: the program sees its end by none."""
    probe = _Probe()
    known = weakref.ref(probe)
    return _other_holders(real) < _other_holders(probe) if known is not None else False


def _other_holders(real: Any) -> float:
    """How many references to an object's one weak reference no entry has; it is without a callback, else infinite."""
    references = weakref.getweakrefs(real)
    if len(references) != 1 or type(references[0]) is not weakref.ref or references[0].__callback__ is not None:
        return math.inf
    entries = [h for h in gc.get_referrers(references[0]) if isinstance(h, _native.Entry)]
    return sys.getrefcount(references[0]) - sum(o is references[0] for e in entries for o in gc.get_referents(e))
