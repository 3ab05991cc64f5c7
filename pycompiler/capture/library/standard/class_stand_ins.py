"""What a class that is made while a frame is captured has for the values of the frame: the class is a stand-in, and so are its
attributes, by which `wrap` finds the values again.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.values import classes
from pycompiler.capture.values.attributes import MISSING, mro_lookup
from pycompiler.capture.values.base import Capture, StandIn, Value
from pycompiler.capture.values.classes import Class, MadeMethod, MadeProperty
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.dicts import Dict, Proxy
from pycompiler.capture.values.finalizers import is_ended
from pycompiler.capture.values.functions import Builtin, Function
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.sequences import List, Tuple
from pycompiler.capture.values.sets import Set

DESCRIPTORS = ("__get__", "__set__", "__delete__", "__set_name__")
LOOKS = ("__getattribute__", "__getattr__")
READ_BY_TYPE = ("__annotations__", "__slots__", "__match_args__")  # what is looked into when a class is made


def stand_in(cx: Capture, value: Value) -> Any:
    """The object that a class made now has for this value: what `wrap` finds the value by again."""
    value = cx.realize(value)
    if isinstance(value, (Const, Class)):
        return value.const()
    real = getattr(value, "real", None)
    if real is not None and value.source is not None and not getattr(value, "overlay", None):
        if not isinstance(value, (Dict, List, Set)):
            return real
    elif isinstance(value, Builtin):
        return value.fn
    elif (maker := MAKERS.get(type(value))) is not None and (made := maker(cx, value)) is not None:
        if made != () and not isinstance(
            value, Object
        ):  # all empty tuples are one; the making of the class changes objects
            cx.remember(made, value)
        return made
    if is_descriptor(value):
        return _instance(cx, value)
    return StandIn(value)


def is_descriptor(value: Value) -> bool:
    return any(mro_lookup(value.python_type(), name) is not MISSING for name in DESCRIPTORS)


def is_written(cls: type) -> bool:
    """Whether instances are descriptors by code of the program's, which nobody may run who looks at a stand-in, or such code
    says whether they are."""
    library = "functools", "enum", "dataclasses"
    own, of_class = ([mro_lookup(c, name) for name in names] for c, names in ((cls, DESCRIPTORS), (type(cls), LOOKS)))
    return any(is_programs(hook, library) for hook in (*own, *of_class))


def sees_looks(cls: type) -> bool:
    """Whether code of the program's answers when an attribute of an instance is looked for."""
    return any(is_programs(mro_lookup(cls, name), ("functools", "enum", "dataclasses", "typing")) for name in LOOKS)


IN_C = (
    types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType, types.BuiltinFunctionType,
)  # fmt: skip


def is_programs(hook: Any, library: tuple[str, ...]) -> bool:
    """Whether a special method is there, and neither in C nor of these modules."""
    if hook is MISSING or isinstance(hook, IN_C):
        return False
    return not isinstance(hook, types.FunctionType) or hook.__module__ not in library


def _instance(cx: Capture, value: Value) -> Any:
    """An empty instance, so that look-ups meet its class: of a class in Python whose instances end quietly."""
    cls = value.python_type()
    plain = isinstance(value, Object) and value.storage is None and value.args is None and not is_ended(cls)
    asked = isinstance(mro_lookup(cls, "__getattribute__"), types.FunctionType)
    if (
        plain
        and not asked
        and all(mro_lookup(cls, name) is MISSING for name in ("__getattr__", "__isabstractmethod__"))
    ):
        try:
            made: Any = object.__new__(cls)
        except TypeError:  # of another layout, or abstract
            pass
        else:
            cx.remember(made, value)
            return made
    raise Break("builtin-call", f"a class with {value.describe()} in its body")


def _function(cx: Capture, value: Any) -> Any:
    if value.name.startswith("__annotate") and value.code.co_freevars:  # Python calls it, without the frame's variables
        raise Break("builtin-call", "a class whose annotations name variables of a function")
    cells = tuple(types.CellType() for _ in value.code.co_freevars)
    made = types.FunctionType(value.code, value.globals, value.name, None, cells or None)
    made.__qualname__ = value.qualname
    if value.made_defaults:
        made.__defaults__ = tuple(stand_in(cx, v) for v in value.made_defaults)
    if "__isabstractmethod__" in value.overlay:
        made.__isabstractmethod__ = value.overlay["__isabstractmethod__"].const()  # type: ignore[attr-defined]
    return made


def _descriptor(cx: Capture, value: Any) -> Any:
    return value.cls(*[stand_in(cx, v) for v in value.given()])


def _tuple(cx: Capture, value: Any) -> Any:
    return tuple(stand_in(cx, v) for v in value.items) if value.cls is tuple else None


def _object(cx: Capture, value: Any) -> Any:
    """Objects of the standard library whose class asks for them."""
    maker = next((maker for cls, maker in OBJECTS.items() if cls is value.cls), None)
    if maker is None:
        return None
    if (known := cx.kept.get((OBJECTS_MADE, id(value)))) is not None:  # by another name in the same body
        return known[1]
    held = {k: cx.realize(v) for k, v in value.overlay.items()}
    if any(is_written(v.python_type()) for v in held.values()):
        raise Break("builtin-call", f"a class with a {value.describe()} of a descriptor in its body")
    real = {k: told(cx, v.mapping) if isinstance(v, Proxy) else stand_in(cx, v) for k, v in held.items()}
    made = maker(real)
    cx.kept[OBJECTS_MADE, id(value)] = value, made
    return made


OBJECTS_MADE = "objects made for classes"
FIELD = ("default", "default_factory", "init", "repr", "hash", "compare", "metadata", "kw_only")
OBJECTS: dict[type, Callable[[dict[str, Any]], Any]] = {
    dataclasses.InitVar: lambda held: dataclasses.InitVar(held["type"]),
    dataclasses.Field: lambda held: dataclasses.field(**{k: held[k] for k in FIELD if k in held}),
    enum.auto: lambda held: enum.auto(),
}
MAKERS: dict[type, Callable[[Capture, Any], Any]] = {
    Function: _function, MadeProperty: _descriptor, MadeMethod: _descriptor, Tuple: _tuple, Object: _object,
}  # fmt: skip


def told(cx: Capture, value: Value) -> Any:
    """What a class is told by a dict or list in its body, as real objects."""
    value = cx.realize(value)
    if isinstance(value, Dict) and value.cls is dict:
        return {k.const(): told(cx, v) for k, v in value.pairs(cx)}
    if isinstance(value, (List, Tuple)) and value.cls in (list, tuple):
        return value.cls([told(cx, v) for v in value.iterate(cx)])
    return stand_in(cx, value)


classes.STAND_IN.append(stand_in)
