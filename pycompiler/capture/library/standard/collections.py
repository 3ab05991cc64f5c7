"""Handlers of `collections`: deque, namedtuple, Counter's counting, and OrderedDict's own methods."""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import BUILTINS, Args, Kwargs, builtin, constructor
from pycompiler.capture.library.standard.containers import insert, key_error, storage
from pycompiler.capture.semantics import container_elements, formatting, operators
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.keys import USER_KEYS, user_key_among
from pycompiler.capture.values.containers.sequences import Deque

NONE: Value = Const(None)
deque = collections.deque


@builtin(collections.namedtuple)
def namedtuple_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """A new namedtuple class: generated code creates it if it leaves the graph."""
    named = dict(kwargs)
    if "module" not in named or cx.is_none(named["module"]):
        named["module"] = Const(cx.frames[-1].globals.get("__name__", "__main__"))
    cls = cx.evaluate_raw(
        collections.namedtuple, *map(cx.snapshot, args), **{k: cx.snapshot(v) for k, v in named.items()}
    )
    made = Class(cls, (collections.namedtuple, args, named))
    cx.remember(cls, made)
    return made


def _limit(cx: Capture, maxlen: Value) -> int | None:
    if not issubclass(maxlen.python_type(), (int, type(None))):
        cx.throw(TypeError, "an integer is required")
    size = None if cx.is_none(maxlen) else cx.index(maxlen)
    cx.evaluate_raw(deque, (), size)  # raises its error
    return size


@constructor(deque)
def deque_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) > 2:
        cx.evaluate_raw(deque, *[()] * len(args))
    size = _limit(cx, args[1] if len(args) > 1 else kwargs.get("maxlen", NONE))
    made = Deque([], size)
    source = args[0] if args else kwargs.get("iterable")
    for value in cx.elements(source) if source is not None else ():
        made.push(value)
    return made


ADDING = (deque.append, deque.appendleft, deque.extend, deque.extendleft)
TAKING = (deque.pop, deque.popleft)  # their handlers report the removed element


def _deque_method(fn: Any) -> Callable[[Callable[..., Value | None]], Any]:
    """Register a method of deque that changes it: handler(cx, deque, *args) → value or None."""

    def register(handler: Callable[..., Value | None]) -> Any:
        @builtin(fn)
        def call(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
            target = args[0]
            if not isinstance(target, Deque):
                raise Break("unsupported-operation", f"deque.{fn.__name__} of {target.describe()}")
            if fn not in TAKING:
                cx.effects.mutate(target, target.dropped() if fn in ADDING else None)
            return handler(cx, target, *args[1:], **kwargs) or NONE

        return call

    return register


@_deque_method(deque.append)
def deque_append(cx: Capture, target: Deque, value: Value) -> None:
    target.push(value)


@_deque_method(deque.appendleft)
def deque_appendleft(cx: Capture, target: Deque, value: Value) -> None:
    target.push(value, left=True)


@_deque_method(deque.extend)
def deque_extend(cx: Capture, target: Deque, values: Value) -> None:
    for value in container_elements.additions(cx, target, values):
        target.push(value)


@_deque_method(deque.extendleft)
def deque_extendleft(cx: Capture, target: Deque, values: Value) -> None:
    for value in container_elements.additions(cx, target, values):
        target.push(value, left=True)


@_deque_method(deque.__init__)
def deque_init(cx: Capture, target: Deque, iterable: Value | None = None, maxlen: Value = NONE) -> None:
    target.limit = _limit(cx, maxlen)
    target.moves += 1
    target.items.clear()
    for value in container_elements.additions(cx, target, iterable) if iterable is not None else ():
        target.push(value)


@_deque_method(deque.pop)
def deque_pop(cx: Capture, target: Deque) -> Value:
    return _take(cx, target, -1)


@_deque_method(deque.popleft)
def deque_popleft(cx: Capture, target: Deque) -> Value:
    return _take(cx, target, 0)


def _take(cx: Capture, target: Deque, index: int) -> Value:
    place = target.place(index)
    if place is None:
        cx.throw(IndexError, "pop from an empty deque")
    target.change(cx, [target.raw[place]])
    target.moves += 1
    return cx.realize(target.remove(place))


@_deque_method(deque.rotate)
def deque_rotate(cx: Capture, target: Deque, n: Value = Const(1)) -> None:
    steps = cx.size(n)
    if len(target.items) > 1:
        k = steps % len(target.items)
        target.items[:] = target.items[len(target.items) - k :] + target.items[: len(target.items) - k]
        target.moves += 1


@_deque_method(deque.clear)
def deque_clear(cx: Capture, target: Deque) -> None:
    target.moves += bool(target.raw)
    target.empty()


@_deque_method(deque.insert)
def deque_insert(cx: Capture, target: Deque, index: Value, value: Value) -> None:
    if target.limit is not None and len(target.items) == target.limit:
        cx.throw(IndexError, "deque already at its maximum size")
    target.moves += 1
    insert(target, cx.size(index), value)


@_deque_method(deque.remove)
def deque_remove(cx: Capture, target: Deque, value: Value) -> None:
    del target.items[_found(cx, target, value, 0, len(target.items), "remove")]
    target.moves += 1


@builtin(deque.index)
def deque_index(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    target = storage(args[0], Deque, "deque.index")
    start, stop = ([cx.index(a) for a in args[2:]] + [0, len(target.items)][len(args) - 2 :])[:2]
    return Const(_found(cx, target, args[1], start, stop, "index"))


def _found(cx: Capture, target: Deque, value: Value, start: int, stop: int, method: str) -> int:
    """The index of the value; the error message contains the value."""
    for i in range(len(target.items))[start:stop]:
        if cx.alike(target.at(cx, i), value):
            return i
    value = cx.realize(value, "for the text of an exception")
    if not value.is_const():
        raise Break("unsupported-operation", f"{value.describe()} is not in a deque")
    if sys.version_info >= (3, 14):
        cx.throw(ValueError, f"deque.{method}(x): x not in deque")
    cx.throw(ValueError, f"{formatting.text(cx, value, repr).const()} is not in deque")
    raise AssertionError


for _name in ("reverse", "__setitem__", "__delitem__", "count", "__getitem__", "__len__", "__iter__"):
    builtin(getattr(deque, _name))(BUILTINS[getattr(list, _name)])


@builtin(deque.copy)
def deque_copy(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    source = storage(args[0], Deque, "deque.copy")
    return Deque(list(source.items), source.limit)


@builtin(collections.OrderedDict.move_to_end)
def move_to_end(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    target = storage(args[0], Dict, "OrderedDict.move_to_end")
    last = args[2] if len(args) > 2 else kwargs.get("last", Const(True))
    found = target.lookup(cx, args[1])
    if found is None:
        key_error(cx, args[1])
    asked, to_end = target.key(cx, args[1]), cx.truth(last)
    keys = list(target.entries)
    stored = next(k for k in keys if k == asked).value
    is_there = stored is keys[-1 if to_end else 0].value
    may_differ = not (args[1].is_const() and isinstance(args[1].const(), (str, bytes)))  # 1 may be stored as True
    if may_differ or not to_end or (is_there and asked not in target.added):  # in other calls another key may be last
        target.guard_keys(cx)
    if is_there:
        return NONE
    target.delitem(cx, stored)
    if to_end:
        target.setitem(cx, stored, found)
    else:
        target.entries = {cx.key(stored): found, **target.entries}
    return NONE


@builtin(collections._count_elements)  # type: ignore[attr-defined]
def count_elements(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """mapping[element] += 1 for each element."""
    mapping, zero = args[0], Const(0)
    for element in cx.elements(args[1]):
        if user_key_among([cx.key(element)]) is not None:  # CPython computes its hash only once
            raise Break("unsupported-operation", USER_KEYS)
        seen = cx.call(mapping.getattr(cx, "get"), [element, zero], {})
        mapping.setitem(cx, element, operators.binary(cx, "+", seen, Const(1)))
    return NONE
