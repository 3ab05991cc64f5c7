"""Handlers for `match` statements.

In: a subject and a pattern on the stack.
Out: whether the pattern fits and the bound values, or the error of a wrong pattern.
"""

from __future__ import annotations

import abc
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.opcodes.registry import opcode
from pycompiler.capture.opcodes.stack import peek
from pycompiler.capture.values.attributes import MISSING, REGISTRATIONS, is_mutable, is_subclass, lookup
from pycompiler.capture.values.base import Capture, StandIn, Value, class_name
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.keys import Key
from pycompiler.capture.values.containers.sequences import Tuple
from pycompiler.capture.values.objects import Object
from pycompiler.ir.source import const_source

if TYPE_CHECKING:
    from pycompiler.capture.bytecode.instruction import Instruction
    from pycompiler.capture.interpreter.evaluation import Frame

SEQUENCE, MAPPING = 1 << 5, 1 << 6  # Py_TPFLAGS_SEQUENCE, Py_TPFLAGS_MAPPING: a class has at most one
MATCH_SELF = 1 << 22  # Py_TPFLAGS_MATCH_SELF: `case int(n)` binds the subject itself


def _is_of_kind(frame: Frame, flag: int) -> bool:
    """Whether the subject's class has the flag, from a base or from a registration (`abc`)."""
    cls = peek(frame, 1).python_type()
    if is_mutable(cls):
        frame.cx.guard("equals", const_source(REGISTRATIONS).attr("token"), abc.get_cache_token())
    return bool(cls.__flags__ & flag)


@opcode("MATCH_MAPPING")
def match_mapping(frame: Frame, ins: Instruction) -> None:
    frame.push(Const(_is_of_kind(frame, MAPPING)))


@opcode("MATCH_SEQUENCE")
def match_sequence(frame: Frame, ins: Instruction) -> None:
    frame.push(Const(_is_of_kind(frame, SEQUENCE)))


@opcode("MATCH_KEYS")
def match_keys(frame: Frame, ins: Instruction) -> None:
    cx = frame.cx
    subject, keys = peek(frame, 2), peek(frame, 1)
    found: list[Value] = []
    seen: set[Key] = set()
    for key in keys.iterate(cx):
        if cx.key(key) in seen:
            cx.throw(ValueError, f"mapping pattern checks duplicate key ({key.const()!r})")
        seen.add(cx.key(key))
        value = _value_of(cx, subject, key)
        if value is None:
            frame.push(Const(None))
            return
        found.append(value)
    frame.push(Tuple(found))


def _value_of(cx: Capture, subject: Value, key: Value) -> Value | None:
    """The result of the mapping's `get` for a key, or None; a default value is never created."""
    if isinstance(subject, Dict) and subject.cls is dict:
        return subject.lookup(cx, key)
    missing = Object(object)
    value = cx.call(subject.getattr(cx, "get"), [key, missing], {})
    return None if value is missing else value


@opcode("MATCH_CLASS")
def match_class(frame: Frame, ins: Instruction) -> None:
    cx = frame.cx
    names, cls, subject = frame.pop().const(), frame.pop(), frame.pop()
    if not isinstance(cls, Class):
        cx.throw(TypeError, f"called match pattern must be a {'type' if sys.version_info < (3, 12) else 'class'}")
    if not is_subclass(cx, subject.python_type(), (cls.cls,), instance=subject):
        frame.push(Const(None))
        return
    positional, itself = _positional(cx, cls.cls, ins.number)
    found: list[Value] = [subject] if itself else []
    seen: set[str] = set()
    for name in (*positional, *names):
        if type(name) is not str:
            cx.throw(TypeError, f"__match_args__ elements must be strings (got {type(name).__name__})")
        if name in seen:
            cx.throw(TypeError, f"{class_name(cls.cls)}() got multiple sub-patterns for attribute {name!r}")
        seen.add(name)
        value = cx.catching(AttributeError, partial(subject.getattr, cx, name))
        if value is None:
            frame.push(Const(None))
            return
        found.append(value)
    frame.push(Tuple(found))


def _positional(cx: Capture, cls: type, count: int) -> tuple[tuple[Any, ...], bool]:
    """The attributes for `count` positional patterns, and whether the only pattern binds the subject itself."""
    if not count:
        return (), False
    named = lookup(cx, cls, "__match_args__")
    itself = named is MISSING and bool(cls.__flags__ & MATCH_SELF)
    if named is MISSING:
        named = ()
    if type(named) is not tuple:
        kind = named.value.python_type() if type(named) is StandIn else type(named)
        if hasattr(kind, "__get__") or issubclass(kind, tuple):
            raise Break(
                "unsupported-opcode",
                f"MATCH_CLASS of {class_name(cls)}, whose __match_args__ is a descriptor or a tuple subclass",
            )
        cx.throw(TypeError, f"{class_name(cls)}.__match_args__ must be a tuple (got {kind.__name__})")
    allowed = 1 if itself else len(named)
    if allowed < count:
        given = f"{allowed} positional sub-pattern{'' if allowed == 1 else 's'} ({count} given)"
        cx.throw(TypeError, f"{class_name(cls)}() accepts {given}")
    return () if itself else named[:count], itself
