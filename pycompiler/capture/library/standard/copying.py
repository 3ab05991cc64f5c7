"""Handlers for `copy.copy` and `copy.deepcopy`: an object's state, and how to build a copy."""

from __future__ import annotations

import collections
import copyreg
import types
from collections.abc import Callable
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.semantics.polyfills import (
    get_state,
    namespace_reduce,
    reduce_ex,
    reduce_ordered,
    reduce_set,
    slot_names,
)
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.exceptions import builtin_base

REDUCED = (object, list, dict)
"""C classes whose instances have only attributes, slots and elements."""
REDUCES: dict[type, Callable[..., Any]] = {set: reduce_set, collections.OrderedDict: reduce_ordered,
                                             types.SimpleNamespace: namespace_reduce}  # fmt: skip
"""Classes with a `__reduce__` in C."""
WORD = 8  # bytes


def _is_reduced(value: Value) -> bool:
    """Whether no C class with state of its own (such as a lock) is among the bases.

    CPython detects such a class by the size of an instance, and refuses to copy.
    """
    cls = value.python_type()
    base = builtin_base(cls)
    if cls in REDUCED or base not in REDUCED:
        return False
    words = bool(cls.__dictoffset__) + bool(cls.__weakrefoffset__) + len(slot_names(cls))
    return base is not object or cls.__basicsize__ <= object.__basicsize__ + WORD * words


@builtin(object.__reduce_ex__)
def object_reduce_ex(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    value, protocol = args
    if (known := REDUCES.get(value.python_type())) is not None and protocol.python_type() is int:
        return cx.call(cx.make(known), [value], {})
    if not _is_reduced(value) or protocol.python_type() is not int or protocol.const() < 2:
        raise Break("builtin-call", f"object.__reduce_ex__ of {value.describe()}")
    return cx.call(cx.make(reduce_ex), [value], {})


@builtin(object.__getstate__)  # type: ignore[attr-defined]
def object_get_state(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    (value,) = args
    if isinstance(value, Dict) and value.cls is collections.OrderedDict:
        return _attributes_of_ordered(cx, value)
    if not _is_reduced(value):
        raise Break("builtin-call", f"object.__getstate__ of {value.describe()}")
    return cx.call(cx.make(get_state), [value], {})


def _attributes_of_ordered(cx: Capture, value: Dict) -> Value:
    """None, for an OrderedDict without attributes; attributes of an existing one are not read."""
    if value.attributes:
        raise Break("builtin-call", f"object.__getstate__ of {value.describe()}, which has attributes")
    if value.source is not None:
        if vars(value.real):
            raise Break("builtin-call", f"object.__getstate__ of {value.describe()}, which has attributes")
        cx.guard("length", value.source.attr("__dict__"), 0)
    return Const(None)


@builtin(copyreg._slotnames)  # type: ignore[attr-defined]
def slotnames(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """The original stores its result in the class."""
    return cx.call(cx.make(slot_names), list(args), {})
