"""Enum members that are also numbers or str."""

from __future__ import annotations

import enum
import types
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.attributes import MISSING, instance_dict, is_data_descriptor, lookup, mro_lookup
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.opaque import Opaque
from pycompiler.ir.source import const_source, mro_of, namespace_of, qualname_of

LIBRARY = ("enum", "typing", "abc", "functools", "dataclasses")
SHOWN = ("__str__", "__repr__", "__format__")
QUIET = (
    *SHOWN, "__init__", "__new__", "__new_member__", "__post_init__", "__init_subclass__", "__class_getitem__", "__annotate__",
    "__annotate_func__", "__reduce__", "__reduce_ex__", "__copy__", "__deepcopy__", "__dir__",
)  # fmt: skip
"""Methods that neither operators nor key lookups call."""
OWN = ("_value_", "_name_", "__objclass__", "_sort_order_")


class Member(Const):
    """A constant, except for attributes that the program defined in its class or set on the member."""

    def describe(self) -> str:
        held = instance_dict(self.value) or {}
        return f"{qualname_of(type(self.value))}.{held.get('_name_')}"  # None while the member is being created

    __repr__ = describe

    def says_texts(self) -> bool:
        """Whether the program defines how it is printed."""
        return any(_is_written(mro_lookup(type(self.value), name)) for name in SHOWN)

    def method(self, cx: Capture, name: str) -> Value | None:
        """A special method written in Python, bound."""
        raw = mro_lookup(type(self.value), name)
        return cx.class_attribute(self, name) if isinstance(raw, types.FunctionType) else None

    def getattr(self, cx: Capture, name: str) -> Value:
        found = _of_program(cx, self, self.value, name)
        return super().getattr(cx, name) if found is None else found


class OperatorMember(Opaque):
    """A member whose class defines operators or equality in Python."""

    def getattr(self, cx: Capture, name: str) -> Value:
        cls = type(self.real)
        if isinstance(lookup(cx, cls, "__getattribute__"), types.FunctionType):
            raise Break("unsupported-attribute", f"{self.describe()}.{name}")
        found = _of_program(cx, self, self.real, name)
        if found is None and mro_lookup(cls, name) is enum.Enum.__dict__.get(name) and name in ("name", "value"):
            found = cx.make(self.real._name_ if name == "name" else self.real._value_)
        return super().getattr(cx, name) if found is None else found


def _of_program(cx: Capture, value: Value, real: Any, name: str) -> Value | None:
    """An attribute that the program set, or that the program's code computes; else None."""
    raw = mro_lookup(type(real), name)
    held = instance_dict(real) or {}
    if name in held and name not in OWN and (raw is MISSING or not is_data_descriptor(raw)):
        return cx.wrap(held[name], const_source(real).then("instance_dict").dict_item(name))
    return cx.class_attribute(value, name) if _is_written(raw) else None


def _is_written(raw: Any) -> bool:
    """Whether code of the program computes an attribute."""
    function: Any = getattr(raw, "__func__", raw) if isinstance(raw, (classmethod, staticmethod)) else raw
    function = function.fget if isinstance(raw, (property, types.DynamicClassAttribute)) else function
    return isinstance(function, types.FunctionType) and function.__module__ not in LIBRARY


def user_special_methods(cls: type) -> list[str]:
    """Special methods of the program that define the instances' behaviour."""
    return [
        name
        for c in mro_of(cls)
        for name, raw in namespace_of(c).items()
        if name.startswith("__") and name not in QUIET and isinstance(raw, types.FunctionType)
        if raw.__module__ not in LIBRARY
    ]


def user_operator_class(value: Any) -> type | None:
    """The class with such methods, of a value or of a part of it; None if there is none."""
    if type(value) in (tuple, list, frozenset):
        return next((found for part in value if (found := user_operator_class(part)) is not None), None)
    return type(value) if user_special_methods(type(value)) else None
