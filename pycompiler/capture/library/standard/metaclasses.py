"""Classes whose creation runs code of the program: a metaclass, `__init_subclass__` of a base, or `__set_name__` of an
attribute.

In: the class statement's parts.
Out: a `Class`.  The program's code is traced as any other; `type.__new__` creates the stand-in.  Neither
`type.__new__` nor generated code runs the program's code.
"""

from __future__ import annotations

import abc
import types
from typing import Any

import torch

from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.library.standard.class_stand_ins import READ_BY_TYPE, is_programs, real_contents, stand_in
from pycompiler.capture.recipe import runtime_helpers
from pycompiler.capture.values.attributes import lookup, mro_lookup
from pycompiler.capture.values.base import Capture, Cell, Value
from pycompiler.capture.values.classes import Class, Super
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.sequences import Tuple
from pycompiler.capture.values.finalizers import is_ended
from pycompiler.capture.values.objects import Object
from pycompiler.ir.source import mro_of

PLAIN = (type, abc.ABCMeta)  # allowed bases of a metaclass of the program
OTHERS = ("enum", "typing", "torch")  # modules whose metaclasses run during the capture
HOOKS = ("typing", "enum", "abc")  # modules whose `__init_subclass__` runs during the capture
NAMING = ("functools", "enum", "dataclasses", "typing")  # modules whose `__set_name__` runs during the capture
ABC_INIT: Any = vars(abc)["_abc_init"]
_PREPARE = vars(type)["__prepare__"]


def has_hook(base: type) -> bool:
    """Whether code of the program runs when a class derives from this class."""
    hook = mro_lookup(base, "__init_subclass__")
    return is_programs(getattr(hook, "__func__", hook), HOOKS)


def is_named(value: Value) -> bool:
    """Whether the value has a `__set_name__` of the program."""
    return names(value.python_type())


def names(cls: type) -> bool:
    return is_programs(mro_lookup(cls, "__set_name__"), NAMING)


def is_plain(meta: Any) -> bool:
    return any(meta is known for known in PLAIN)


def may_be_traced(meta: Any) -> bool:
    """Whether `type.__new__` creates the classes of a metaclass, and the rest is Python code."""
    if (
        not issubclass(type(meta), type)
        or not issubclass(meta, type)
        or mro_lookup(meta, "mro") is not type.__dict__["mro"]
    ):
        return False
    others = [c for c in mro_of(meta) if c is not object and not is_plain(c)]
    return not is_ended(meta) and all(type(c) is type and c.__module__.partition(".")[0] not in OTHERS for c in others)


def traced_meta(cx: Capture, bases: Args, kwargs: Kwargs) -> Class | None:
    """The metaclass of a class statement that is traced; None if no code of the program sees the creation."""
    known = [cx.realize(b) for b in bases]
    given = cx.realize(kwargs["metaclass"]) if "metaclass" in kwargs else Class(type)
    if not all(isinstance(b, Class) for b in (*known, given)):
        return None
    real = [b.cls for b in known if isinstance(b, Class)]
    meta = cx.evaluate_raw(types._calculate_meta, given.const(), real)  # type: ignore[attr-defined]
    if not may_be_traced(meta) or is_plain(meta) and not any(map(has_hook, real)):
        return None
    found = cx.make(meta)
    return found if isinstance(found, Class) else None


def prepare(cx: Capture, meta: Class, name: Value, bases: Args, kwargs: Kwargs) -> Dict:
    """The namespace that the body fills."""
    if lookup(cx, meta.cls, "__prepare__") is _PREPARE:
        return Dict({})
    given = cx.call(meta.getattr(cx, "__prepare__"), [name, Tuple(list(bases))], _words(kwargs))
    if not isinstance(given, Dict) or given.cls is not dict or given.source is not None:
        raise Break("builtin-call", "a class whose metaclass has a __prepare__ that does not return a new dict")
    return given


def _words(kwargs: Kwargs) -> Kwargs:
    return {k: v for k, v in kwargs.items() if k != "metaclass"}


def call(cx: Capture, meta: Class, name: Value, bases: Args, names: Dict, kwargs: Kwargs) -> Value:
    """meta(name, bases, names, **kwargs)."""
    cell = names.lookup(cx, Const("__classcell__"))
    given = Tuple(list(bases))
    made = new(cx, meta, name, given, names, _words(kwargs)) if meta.cls is type else cx.call(
        meta, [name, given, names], _words(kwargs)
    )  # fmt: skip
    if isinstance(cell, Cell) and (not isinstance(made, Class) or cell.contents is not made):
        raise Break("builtin-call", "a metaclass that returns another class than the __class__ of the body's methods")
    return made


@builtin(type.__new__)
def type_new(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if (
        len(args) != 4
        or not isinstance(args[0], Class)
        or not isinstance(args[2], Tuple)
        or not isinstance(args[3], Dict)
    ):
        raise Break("builtin-call", f"type.__new__({', '.join(a.describe() for a in args)})")
    return new(cx, args[0], args[1], args[2], args[3], kwargs)


def new(cx: Capture, meta: Class, name: Value, bases: Tuple, names: Dict, words: Kwargs) -> Class:
    """type.__new__(meta, name, bases, names, **words)."""
    known = [cx.realize(b) for b in bases.iterate(cx)]
    real = tuple(b.cls for b in known if isinstance(b, Class))
    held = {k.const(): cx.realize(v) for k, v in names.pairs(cx)}
    cell = held.pop("__classcell__", None)
    held.setdefault("__module__", Const(cx.frames[-1].globals.get("__name__")))
    if len(real) < len(known) or "__classdictcell__" in held or not isinstance(cell, Cell | None):
        raise Break(
            "builtin-call",
            "a class with a base that is not a class, or whose annotations or type parameters read its namespace",
        )
    if not may_be_traced(meta.cls) or types._calculate_meta(meta.cls, real) is not meta.cls:  # type: ignore[attr-defined]
        raise Break("builtin-call", f"a class whose metaclass is {meta.describe()}")
    if any(issubclass(base, torch.Tensor) for base in real):
        raise Break("tensor-subclass", "a tensor subclass that is created inside of a function")
    later = tuple(k for k, v in held.items() if is_named(v))
    attributes = [real_contents(cx, v) if k in READ_BY_TYPE else stand_in(cx, v) for k, v in held.items()]
    keys = tuple(held)
    made = cx.evaluate_raw(runtime_helpers.new_class, meta.cls, name.const(), real, None, keys, later, *attributes)
    how = [meta, name, Tuple(known), cell or Const(None), Const(keys), Const(later), *held.values()]
    cls = remember(cx, Class(made, (runtime_helpers.new_class, how, {})), cell)
    for key in later:
        _tell(cx, held[key], cls, key)
    cx.call(Super(made, cls).getattr(cx, "__init_subclass__"), [], words)
    return cls


def remember(cx: Capture, cls: Class, cell: Cell | None) -> Class:
    """Record a class that was just created."""
    cx.remember(cls.cls, cls)
    cx.made_classes.append(cls.cls)
    if cell is not None:
        cls.cell = cell
        cx.effects.set_cell(cell, cls)
    return cls


def _tell(cx: Capture, value: Value, cls: Class, name: str) -> None:
    hook = value.special(cx, "__set_name__") if isinstance(value, Object) else None
    if hook is None:
        raise Break("builtin-call", f"a class whose body has {value.describe()}")
    try:
        cx.call(hook, [cls, Const(name)], {})
    except Raised:  # Python wraps it in an error of its own
        raise Break("builtin-call", f"a __set_name__ of {value.describe()} that raises") from None


@builtin(type.__init__)
def type_init(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 4:
        raise Break("builtin-call", "type.__init__ with other arguments than a class, name, bases and namespace")
    return Const(None)


@builtin(_PREPARE)
def type_prepare(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Dict({})


@builtin(vars(object)["__init_subclass__"])
def init_subclass(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    cls = args[0].const()
    cx.evaluate_raw(vars(object)["__init_subclass__"].__get__(None, cls), *args[1:], **kwargs)
    return Const(None)


@builtin(ABC_INIT)
def abc_init(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    cls = args[0]
    if not isinstance(cls, Class) or cls.made is None:
        raise Break("builtin-call", f"_abc_init({cls.describe()})")
    cx.evaluate_raw(ABC_INIT, cls.cls)
    cls.steps.append((ABC_INIT, [], {}))
    return Const(None)


@builtin(type.__setattr__)
def type_setattr(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    cls, name, value = args
    if not isinstance(cls, Class) or cls.made is None:
        raise Break("mutation-unsupported", f"type.__setattr__({cls.describe()}, ...)")
    cls.store(cx, name.const(), value)
    return Const(None)
