"""Counters: `counts[i] += 1` on a dict that outlives the call, with a key that may differ in each call.

In: the frame at the instruction that reads ``counts[i]``.
Out: whether the whole statement became one effect (`Count`).  After the graph, generated code adds to the dict's
current value.  Before the graph, it checks that the current value is an int.  The key may be absent if the class of
the dict then gives 0 (a Counter, a `defaultdict(int)`).  Otherwise the frame runs eagerly.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pycompiler.capture.values.attributes import lookup
from pycompiler.capture.values.base import Capture, LazyObject, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.symbolic_numbers import is_open

if TYPE_CHECKING:
    from pycompiler.capture.interpreter.evaluation import Frame

STATEMENT = ("BINARY_OP", "SWAP", "SWAP", "STORE_SUBSCR")
SIGNS = {"+=": 1, "-=": -1}


def increments(frame: Frame) -> bool:
    """Whether the statement that reads the stack's items becomes an effect; the frame then continues after the
    statement."""
    found = _added(frame)
    if found is None or len(frame.stack) < 4:
        return False
    *_, again, key_again, owner, key = frame.stack
    if again is not owner or key_again is not key:
        return False
    # otherwise the string is not needed
    if not isinstance(key, LazyObject) or key.seen is not None or type(key.real) is not str:
        key = frame.cx.realize(key)
    if not is_open(key):
        return False
    container = _counts(frame.cx, frame.cx.realize(owner))
    if container is None or not container.counts(frame.cx, key, found):
        return False
    del frame.stack[-4:]
    frame.ip += 1 + len(STATEMENT)
    return True


def _added(frame: Frame) -> int | None:
    """The constant that the next instructions add to the item and store back, or None."""
    ahead = frame.instructions[frame.ip : frame.ip + 1 + len(STATEMENT)]
    if tuple(i.opname for i in ahead[1:]) != STATEMENT or not ahead[0].opname.startswith("LOAD_"):
        return None
    load, operation, *_ = ahead
    known = load.opname in ("LOAD_CONST", "LOAD_SMALL_INT") and type(load.argval) is int and operation.argval in SIGNS
    return load.argval * SIGNS[operation.argval] if known else None


def _counts(cx: Capture, owner: Value) -> Dict | None:
    """The dict, if it is of a class whose item access only reads, adds and stores."""
    if isinstance(owner, Object) and owner.cls is collections.Counter and isinstance(owner.storage, Dict):
        written: tuple[Callable[..., Any], ...] = (dict.__getitem__, dict.__setitem__, collections.Counter.__missing__)
        found = [lookup(cx, owner.cls, fn.__name__) for fn in written]
        return owner.storage if all(f is w for f, w in zip(found, written, strict=True)) else None
    if type(owner) is not Dict or owner.cls not in (dict, collections.Counter, collections.defaultdict):
        return None
    factory = None if owner.default_factory is None else cx.realize(owner.default_factory)
    if owner.cls is collections.defaultdict and not (isinstance(factory, Class) and factory.cls is int):
        return None
    return owner
