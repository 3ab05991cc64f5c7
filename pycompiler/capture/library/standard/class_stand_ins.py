"""Stand-in objects for values in a class that is created during a capture.

In: a value of the frame.
Out: a real object.  The new class is itself a stand-in, and its attributes are stand-ins; `wrap` finds the values by
them.
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
from pycompiler.capture.values.containers.dicts import Dict, Proxy
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.containers.sets import Set
from pycompiler.capture.values.finalizers import is_ended
from pycompiler.capture.values.functions import Builtin, Function
from pycompiler.capture.values.objects import Object

DESCRIPTORS = ("__get__", "__set__", "__delete__", "__set_name__")
LOOKUP_METHODS = ("__getattribute__", "__getattr__")
# attributes whose contents are read when a class is created
READ_BY_TYPE = ("__annotations__", "__slots__", "__match_args__")


def stand_in(cx: Capture, value: Value) -> Any:
    """The object that a class created now holds for this value; `wrap` finds the value by it."""
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
        ):  # all empty tuples are one object; creating the class changes objects
            cx.remember(made, value)
        return made
    if is_descriptor(value):
        return _instance(cx, value)
    return StandIn(value)


def is_descriptor(value: Value) -> bool:
    return any(mro_lookup(value.python_type(), name) is not MISSING for name in DESCRIPTORS)


def is_written(cls: type) -> bool:
    """Whether a class's descriptor methods are code of the program, or such code decides whether it has them.

    Such code must not run on a stand-in.
    """
    library = "functools", "enum", "dataclasses"
    own, of_class = (
        [mro_lookup(c, name) for name in names] for c, names in ((cls, DESCRIPTORS), (type(cls), LOOKUP_METHODS))
    )
    return any(is_programs(hook, library) for hook in (*own, *of_class))


def answers_lookups(cls: type) -> bool:
    """Whether code of the program answers attribute lookups on an instance."""
    return any(
        is_programs(mro_lookup(cls, name), ("functools", "enum", "dataclasses", "typing")) for name in LOOKUP_METHODS
    )


IN_C = (
    types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType, types.BuiltinFunctionType,
)  # fmt: skip


def is_programs(hook: Any, library: tuple[str, ...]) -> bool:
    """Whether a special method exists that is neither in C nor from these modules."""
    if hook is MISSING or isinstance(hook, IN_C):
        return False
    return not isinstance(hook, types.FunctionType) or hook.__module__ not in library


def _instance(cx: Capture, value: Value) -> Any:
    """An empty instance, so that lookups reach its class. Only for Python classes whose instances have no finalizer."""
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
        except TypeError:  # another layout, or abstract
            pass
        else:
            cx.remember(made, value)
            return made
    raise Break("builtin-call", f"a class whose body has {value.describe()}")


def _function(cx: Capture, value: Any) -> Any:
    if value.name.startswith("__annotate") and value.code.co_freevars:  # Python calls it without the frame's variables
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
    """Stand-ins for objects of the standard library that class creation reads."""
    maker = next((maker for cls, maker in OBJECTS.items() if cls is value.cls), None)
    if maker is None:
        return None
    if (known := cx.kept.get((OBJECTS_MADE, id(value)))) is not None:  # a second name for the same object in the body
        return known[1]
    held = {k: cx.realize(v) for k, v in value.overlay.items()}
    if any(is_written(v.python_type()) for v in held.values()):
        raise Break("builtin-call", f"a class whose body has a {value.describe()} with a user-defined descriptor")
    real = {k: real_contents(cx, v.mapping) if isinstance(v, Proxy) else stand_in(cx, v) for k, v in held.items()}
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


def real_contents(cx: Capture, value: Value) -> Any:
    """The real objects in a dict or list in a class body."""
    value = cx.realize(value)
    if isinstance(value, Dict) and value.cls is dict:
        return {k.const(): real_contents(cx, v) for k, v in value.pairs(cx)}
    if isinstance(value, (List, Tuple)) and value.cls in (list, tuple):
        return value.cls([real_contents(cx, v) for v in value.iterate(cx)])
    return stand_in(cx, value)


classes.STAND_IN.append(stand_in)
