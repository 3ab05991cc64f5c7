"""Filling of containers: the elements of iterables and the pairs of mappings, requested as each kind of container does.

In: a container value and the data to add.  Out: the container, changed, with the side effect recorded; for set
operations a new set.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterable
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.semantics import length_hints
from pycompiler.capture.values.attributes import MISSING, lookup
from pycompiler.capture.values.base import Capture, Value, class_name
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict, DictView, Proxy
from pycompiler.capture.values.containers.iterators import Iter
from pycompiler.capture.values.containers.keys import keys_of, known_hash
from pycompiler.capture.values.containers.sequences import Deque, List, Tuple
from pycompiler.capture.values.containers.sets import Set
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.tensor import Tensor


def additions(cx: Capture, target: List, values: Value) -> Iterable[Value]:
    """The elements to add to a list, one by one: the code that yields an element sees the earlier ones in the list."""
    if unwrapped(values) is target:
        return list(target.iterate(cx))
    iterator = cx.iterator(values)
    if not isinstance(target, Deque):
        length_hints.call_length_hint(cx, values)
    return cx.pull(iterator)


def _of_set(value: Value) -> Value:
    """The value whose contents a set's methods read directly.  Subclasses of other containers are iterated by their
    methods."""
    inner = unwrapped(value)
    return inner if isinstance(inner, Set) else value


def members(cx: Capture, iterable: Value) -> tuple[list[Value], Any]:
    """The elements, and a real iterable that represents them in operations of real sets.

    The elements of a set are in any order.  The second result is None if the iterable is a set without a shadow or has
    elements of unknown hash.
    """
    iterable = _of_set(cx.realize(iterable))
    if isinstance(iterable, (Set, Dict)):
        keys_of(iterable)
    if isinstance(iterable, DictView) and iterable.what == "keys":
        keys_of(iterable.mapping)
    if isinstance(iterable, Set):
        return list(iterable.entries.values()), iterable.shadow
    values = [cx.realize(v, "as an element of a set") for v in cx.elements(iterable)]
    if isinstance(iterable, Const):
        return values, iterable.value
    if not all(v.is_const() and known_hash(v.const()) for v in values):
        return values, None
    known = [v.const() for v in values]
    if isinstance(iterable, Dict):
        return values, dict.fromkeys(known)
    if isinstance(iterable, DictView) and iterable.what != "values":
        return values, dict.fromkeys(known).keys()
    return values, known


def set_operation(cx: Capture, op: str, left: Set, others: list[Value], real: Callable[..., Any], like: Any) -> Set:
    """left op others.  `real` performs the operation on the shadow of `left` and on `like`."""
    ours, theirs = left.entries, {cx.key(v): v for v in others}
    only_ours = {k: v for k, v in ours.items() if k not in theirs}
    picks = {
        "|": {**theirs, **ours},
        "&": {k: v for k, v in ours.items() if k in theirs},
        "-": only_ours,
        "^": {**only_ours, **{k: v for k, v in theirs.items() if k not in ours}},
    }
    if op == "&" and any(_are_distinct_objects(cx, ours[k], theirs[k]) for k in picks[op]):
        raise Break("unsupported-operation", "an intersection of sets whose equal elements are different objects")
    made = Set(picks[op], frozenset if issubclass(left.cls, frozenset) else set)
    made.plain = False
    made.shadow = None if left.shadow is None or like is None else real(left.shadow, like)
    cx.placed(made)
    return made


def _are_distinct_objects(cx: Capture, a: Value, b: Value) -> bool:
    if a.is_const() and b.is_const():
        return repr(a.const()) != repr(b.const())
    return not cx.same(a, b)


UPDATES: dict[str, Callable[..., None]] = {
    "&": set.intersection_update,
    "-": set.difference_update,
    "^": set.symmetric_difference_update,
}


def set_in_place(cx: Capture, op: str, target: Set, iterable: Value) -> None:
    """target op= iterable."""
    others, like = members(cx, iterable)
    made = set_operation(cx, op, target, others, lambda shadow, _: shadow, like)
    if made.shadow is not None:
        UPDATES[op](made.shadow, like)
    target.replace(cx, made, UPDATES[op], unwrapped(iterable), others)


def set_update(cx: Capture, target: Set, iterable: Value) -> None:
    """target.update(iterable), target |= iterable."""
    if isinstance(iterable, (Iter, Object)) and _of_set(iterable) is iterable:
        for v in cx.elements(iterable):
            target.add(cx, v)
        return
    others, like = members(cx, iterable)
    if like is None and isinstance(unwrapped(iterable), (Set, Dict)) or isinstance(like, (set, frozenset, dict)):
        made = set_operation(cx, "|", target, others, lambda shadow, _: shadow, like)
        if made.shadow is not None:
            made.shadow.update(like)
        target.replace(cx, made, set.update, unwrapped(iterable), others)
        return
    for v in others:
        target.add(cx, v)


def unwrapped(value: Value) -> Value:
    if isinstance(value, Proxy):
        return value.mapping
    return value.storage if isinstance(value, Object) and value.storage is not None else value


MAPPING_METHODS = ("keys", "__getitem__")
"""Methods that C calls on a mapping."""


def as_dict(cx: Capture, value: Value) -> Value:
    """The contents of a mapping without calls of its methods, as C reads a dict.

    Exception: a mapping whose `__iter__` is not dict's, and which has Python methods, is returned unchanged.
    """
    if isinstance(value, Object) and (iterates := lookup(cx, value.cls, "__iter__")) is not dict.__iter__:
        if any(
            isinstance(f, types.FunctionType) for f in (iterates, *(lookup(cx, value.cls, n) for n in MAPPING_METHODS))
        ):
            return value
    return unwrapped(value)


def unpacked(cx: Capture, value: Value, *, listed: bool = True) -> list[Value]:
    """The elements of an iterable; a list's or tuple's stay lazy.  `listed`: they are collected in a list first."""
    if isinstance(value, (Tuple, List)) and value.cls in (tuple, list):
        return list(value.items)
    return cx.listed(value) if listed else list(cx.elements(value))


def mapping_pairs(
    cx: Capture,
    mapping: Value,
    *,
    looked_at: bool = True,
    listed: bool = True,
    first: Callable[[Value], object] | None = None,
) -> Iterable[tuple[Value, Value]]:
    """The pairs of a mapping passed as ** argument or to update(), one by one.

    `first` is called with a key before its value is read.  `listed`: all keys are read first.
    """
    mapping = as_dict(cx, mapping)
    if isinstance(mapping, Dict):
        keys_of(mapping)
        if not looked_at and mapping.cls is dict:
            mapping.guard_keys(cx)
            pairs = [(k.value, v) for k, v in mapping.entries.items()]
        else:
            pairs = mapping.pairs(cx)
        for key, value in pairs:
            if first is not None:
                first(key)
            yield key, value
        return
    keys = cx.call(mapping.getattr(cx, "keys"), [], {})
    if listed and not iterable(cx, keys):
        name, given = class_name(mapping.python_type()), class_name(keys.python_type())
        cx.throw(TypeError, f"{name}.keys() returned a non-iterable (type {given})")
    for key in list(cx.elements(keys)) if listed else cx.elements(keys):
        if first is not None:
            first(key)
        yield key, mapping.getitem(cx, key)


def store_target(target: Any) -> Any:
    """The target that a dict's methods store into.  OrderedDict calls the `__setitem__` of a subclass."""
    within = getattr(target, "within", None)
    return target if within is None or not issubclass(within.python_type(), collections.OrderedDict) else within


def dict_update(cx: Capture, target: Any, source: Value) -> None:
    source, target = as_dict(cx, source), store_target(target)
    if isinstance(source, Dict) or (isinstance(source, Object) and hasattr(source.cls, "keys")):
        lazily = issubclass(target.python_type(), collections.OrderedDict)
        for key, value in mapping_pairs(cx, source, listed=not lazily):
            target.setitem(cx, key, value)
        return
    for i, element in enumerate(cx.elements(source)):
        place = f"dictionary update sequence element #{i}"
        if isinstance(element, Tensor) and not element.rank:
            raise Break("builtin-call", f"an update with {place}, which is not a sequence")
        pair = list(cx.elements(element)) if iterable(cx, element) else None
        if (pair is None or len(pair) != 2) and issubclass(target.python_type(), collections.OrderedDict):
            raise Break("builtin-call", f"update of {target.describe()} with an element that is not a pair")
        if pair is None:
            cx.throw(TypeError, f"cannot convert {place} to a sequence")
        if len(pair) != 2:
            cx.throw(ValueError, f"{place} has length {len(pair)}; 2 is required")
        target.setitem(cx, *pair)


def iterable(cx: Capture, value: Value) -> bool:
    """Whether the value's class has a method that iter() needs."""
    return any(lookup(cx, value.python_type(), n) is not MISSING for n in ("__iter__", "__getitem__"))
