"""Class statements in a function, and `type(name, bases, namespace)`.

In: a class body.
Out: a `Class`.  The body is inlined, and its namespace creates a class at once, with which the capture goes on.  This
class is a stand-in for the class that each call creates; its attributes stand for values of the frame (`stand_in`).
No code of the program runs to create it.  Generated code creates a class only if the class, or an instance, leaves
the graph.
"""

from __future__ import annotations

import abc
import builtins
import dataclasses
import enum
import functools
import sys
import types
import typing
from typing import Any, NamedTuple

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin, constructor, run_frame
from pycompiler.capture.interpreter.evaluation import Frame
from pycompiler.capture.library.standard import enum_classes, metaclasses
from pycompiler.capture.library.standard.builtin_functions import type_of
from pycompiler.capture.library.standard.class_stand_ins import (
    READ_BY_TYPE,
    answers_lookups,
    is_written,
    real_contents,
    stand_in,
)
from pycompiler.capture.recipe import runtime_helpers
from pycompiler.capture.values.attributes import mro_lookup
from pycompiler.capture.values.base import Capture, Cell, StandIn, Value
from pycompiler.capture.values.classes import SUBSCRIPTED, Class, MadeMethod
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.containers.sets import Set
from pycompiler.capture.values.functions import Function, Partial

METACLASSES = {
    type, abc.ABCMeta, enum.EnumMeta, type(torch.autograd.Function), type(typing.Protocol), typing._TypedDictMeta,  # type: ignore[attr-defined]
    typing.NamedTupleMeta,  # type: ignore[attr-defined]
}  # fmt: skip
"""Metaclasses whose code may run during the capture: it reads names and annotations."""


@builtin(builtins.__build_class__)
def build_class(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    body, name, *bases = args
    if not isinstance(body, Function) or body.real is not None:
        raise Break("builtin-call", "__build_class__ of a function that is not a class body")
    if any(isinstance(b, Class) and isinstance(b.cls, enum.EnumMeta) for b in map(cx.realize, bases)):
        enum_classes.check_body(body.code)
    frame = Frame(cx, body.code, body.globals, {}, body.closure(cx), function=body)
    if (meta := metaclasses.traced_meta(cx, bases, kwargs)) is not None:
        frame.names = metaclasses.prepare(cx, meta, name, bases, kwargs)
        run_frame(cx, frame)
        return metaclasses.call(cx, meta, name, bases, frame.names, kwargs)
    head = ClassHeader.of(cx, name, bases, kwargs)
    frame.names = Dict({})
    run_frame(cx, frame)
    return make_class(cx, head, name, bases, frame.names, kwargs, body.globals)


class ClassHeader(NamedTuple):
    """The facts about a class that Python determines before the body runs."""

    bases: tuple[Any, ...]
    words: dict[str, Any]
    meta: Any

    @classmethod
    def of(cls, cx: Capture, name: Value, bases: Args, kwargs: Kwargs) -> ClassHeader:
        real = tuple(_base(cx, b) for b in bases)
        words = {k: stand_in(cx, v) for k, v in kwargs.items()}
        resolved = cx.evaluate_raw(types.resolve_bases, real)
        meta = cx.evaluate_raw(_meta, resolved, words)
        _check(meta, resolved)
        cx.evaluate_raw(
            meta.__prepare__, name.const(), resolved, **{k: v for k, v in words.items() if k != "metaclass"}
        )
        return cls(real, words, meta)


def make_class(
    cx: Capture, head: ClassHeader, name: Value, bases: Args, names: Dict, kwargs: Kwargs, scope: dict[str, Any]
) -> Class:
    """The class of this name, from the namespace of its body."""
    real_bases, words, meta = head
    held = {k.const(): v for k, v in names.pairs(cx)}
    if "__classdictcell__" in held:  # lazy annotations (3.14), and type parameters
        raise Break("builtin-call", "a class whose annotations or type parameters read its namespace")
    held.setdefault("__module__", Const(scope.get("__name__")))
    if any(metaclasses.is_named(cx.realize(v)) for v in held.values()):
        return _with_names(cx, name, bases, names, kwargs)
    cell = held.pop("__classcell__", None)
    if not isinstance(cell, Cell | None):
        raise Break("builtin-call", "a class whose __classcell__ is not a cell")
    if meta is not type and any(is_written(cx.realize(v).python_type()) for v in held.values()):
        raise Break(
            "builtin-call",
            f"a class of the metaclass {meta.__qualname__} whose body has a user-defined descriptor",
        )
    attributes = {k: real_contents(cx, v) if k in READ_BY_TYPE else stand_in(cx, v) for k, v in held.items()}
    if meta is not type and any(map(answers_lookups, map(type, attributes.values()))):
        raise Break(
            "builtin-call",
            f"a class of the metaclass {meta.__qualname__} whose body has an object that defines attribute lookup",
        )
    if any(isinstance(v, StandIn) for v in attributes.values()) and meta is enum.EnumMeta:
        raise Break("builtin-call", f"the Enum {name.const()} with a value that the frame created or changed")
    if meta is enum.EnumMeta:
        enum_classes.check(name.const(), real_bases, attributes)
    made = cx.evaluate_raw(types.new_class, name.const(), real_bases, words, lambda space: _fill(space, attributes))
    keys = Const(tuple(held))
    cls = Class(made, (runtime_helpers.make_class, [name, Tuple(list(bases)), Dict({cx.key(Const(k)): v for k, v in
    kwargs.items()}),
                                            cell or Const(None), keys, *held.values()], {}))  # fmt: skip
    return metaclasses.remember(cx, cls, cell)


def _with_names(cx: Capture, name: Value, bases: Args, names: Dict, kwargs: Kwargs) -> Class:
    """A class with an attribute whose `__set_name__` is code of the program."""
    known = [cx.realize(b) for b in bases]
    metas = [type(b.cls) for b in known if isinstance(b, Class)]
    if kwargs or len(metas) < len(known) or any(meta is not type for meta in metas):
        raise Break("builtin-call", "a class with a metaclass or keywords, whose body has an object with __set_name__")
    return metaclasses.new(cx, Class(type), name, Tuple(known), names, {})


def _fill(space: Any, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        space[name] = value


def _base(cx: Capture, value: Value) -> Any:
    value = cx.realize(value)
    if isinstance(value, Class):
        return value.cls
    real = getattr(value, "real", None)
    known = any(type(real) is cls for cls in SUBSCRIPTED) and value.source is not None and value.source.kind == "const"
    if not known and (real is None or value.source is None or getattr(real, "__module__", None) != "typing"):
        raise Break("builtin-call", f"a class that derives from {value.describe()}")
    return real


def _meta(resolved: tuple[Any, ...], words: dict[str, Any]) -> Any:
    """The metaclass, as `types.prepare_class` finds it, without a call of `__prepare__`."""
    meta = words.get("metaclass", type(resolved[0]) if resolved else type)
    return types._calculate_meta(meta, resolved) if isinstance(meta, type) else meta  # type: ignore[attr-defined]


def _check(meta: Any, bases: tuple[Any, ...]) -> None:
    """Break if code of the program would create the class."""
    if not any(meta is known for known in METACLASSES):
        raise Break(
            "builtin-call", f"a class of the metaclass {meta.__qualname__ if issubclass(type(meta), type) else meta!r}"
        )
    for base in bases:
        if metaclasses.has_hook(base):
            raise Break("builtin-call", f"a class that derives from {base.__qualname__}, which has __init_subclass__")
        if issubclass(base, torch.Tensor):
            raise Break("tensor-subclass", "a tensor subclass that is created inside of a function")


@constructor(functools.cached_property)
def cached_property_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not isinstance(args[0], Function):  # its name and module are read
        raise Break("builtin-call", f"functools.cached_property of {args[0].describe()}")
    return MadeMethod(functools.cached_property, args[0])


@constructor(type)
def type_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and not kwargs:
        return type_of(cx, args[0])
    name, bases, names = args
    if not isinstance(bases, Tuple) or not isinstance(names, Dict) or names.source is not None or kwargs:
        raise Break("builtin-call", "type(name, bases, namespace)")
    known = [cx.realize(b) for b in bases.iterate(cx)]
    if any(isinstance(b, Class) and type(b.cls) is type and metaclasses.has_hook(b.cls) for b in known):
        return metaclasses.new(cx, Class(type), name, bases, names, {})
    if not all(isinstance(b, Class) for b in known):  # `type` does not resolve other bases
        raise Break("builtin-call", "type(name, bases, namespace) with bases that are not classes")
    return make_class(cx, ClassHeader.of(cx, name, known, {}), name, known, names, {}, cx.frames[-1].globals)


# decorators ---------------------------------------------------------------------------------------------------
def _decorated(fn: Any) -> None:
    @builtin(fn)
    def decorate(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if not args:
            return Partial(cx.make(fn), [], kwargs, functools.partial)
        cls = args[0]
        words = {k: cx.snapshot(v) for k, v in kwargs.items()}
        if (
            len(args) != 1
            or not isinstance(cls, Class)
            or cls.made is None
            or not any(type(cls.cls) is m for m in METACLASSES)
        ):
            raise Break("builtin-call", f"{fn.__qualname__} of {', '.join(a.describe() for a in args)}")
        if any(is_written(type(v)) for base in cls.cls.__mro__ for v in vars(base).values()):
            raise Break("builtin-call", f"{fn.__qualname__} of a class whose body has a user-defined descriptor")
        if fn is dataclasses.dataclass and any(
            isinstance(v, (StandIn, dataclasses.Field)) for v in _annotations(cls.cls).values()
        ):
            raise Break("builtin-call", "a dataclass with an annotation that the frame created or changed")
        if fn is dataclasses.dataclass and any(_cannot_be_a_default(v) for v in vars(cls.cls).values()):
            raise Break("builtin-call", "a dataclass with a dict, list or set as a default")
        if fn is enum.unique and mro_lookup(cls.cls, "name") is not enum.Enum.__dict__["name"]:
            raise Break("builtin-call", "enum.unique of a class that defines the attribute name of its members")
        if words.get("slots"):
            return _with_slots(cx, cls, words)
        cx.evaluate_raw(fn, cls.cls, **words)
        cls.steps.append((fn, [], words))
        return cls


def _with_slots(cx: Capture, cls: Class, words: dict[str, Any]) -> Class:
    """`dataclass(slots=True)`: another class with the same body."""
    named = any(metaclasses.names(type(v)) for v in vars(cls.cls).values())
    if (
        named
        or any(map(metaclasses.has_hook, cls.cls.__mro__))
        or (cls.cell is not None and sys.version_info >= (3, 13))
    ):
        raise Break(
            "builtin-call", "dataclass(slots=True) of a class with __set_name__, __init_subclass__ or a __class__ cell"
        )
    made = cx.evaluate_raw(dataclasses.dataclass, cls.cls, **words)
    return metaclasses.remember(cx, Class(made, (functools.partial(dataclasses.dataclass, **words), [cls], {})), None)


def _annotations(cls: type) -> dict[str, Any]:
    found: dict[str, Any] = vars(cls).get("__annotations__", {})
    return found


def _cannot_be_a_default(raw: Any) -> bool:
    return isinstance(raw, StandIn) and isinstance(raw.value, (Dict, List, Set))


for _fn in (dataclasses.dataclass, functools.total_ordering, typing.runtime_checkable, typing.final, enum.unique):
    _decorated(_fn)
