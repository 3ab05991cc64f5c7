"""Checks of an Enum that is created in a function: no code of the program may run during its creation."""

from __future__ import annotations

import enum
import types
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.bytecode.code_facts import reading
from pycompiler.capture.library.standard.class_stand_ins import DESCRIPTORS, LOOKUP_METHODS, is_programs
from pycompiler.capture.values.attributes import MISSING
from pycompiler.capture.values.enum_members import LIBRARY, user_operator_class, user_special_methods
from pycompiler.ir.source import mro_of, namespace_of

CALLED = ("__new__", "__init__", "__new_member__", "_generate_next_value_", "__setattr__", "__delattr__", *DESCRIPTORS,
          *LOOKUP_METHODS)  # fmt: skip
"""Methods of a class and its members that `EnumType` calls during creation."""


def check_body(code: types.CodeType) -> None:
    """Break unless the body's stores are simple.

    The Enum's namespace sees each store: it refuses a second store of a name, and it stores the value of an `auto()`.
    """
    known = reading(code)
    stored = [i.argval for i in known.instructions if i.opname in ("STORE_NAME", "DELETE_NAME")]
    read = {i.argval for i in known.instructions if i.opname == "LOAD_NAME"} & set(stored)
    loops = any(i.target is not None and known.position[i.target] <= place for i, place in known.position.items())
    asks = {"vars", "locals", "exec", "eval"} & set(code.co_names)
    if len(stored) != len(set(stored)) or loops or asks or (read and "auto" in code.co_names):
        raise Break(
            "builtin-call",
            "an Enum whose body stores a name twice, has a loop, reads one of its names beside auto(), or calls vars, "
            "locals, exec or eval",
        )


def check(name: str, bases: tuple[Any, ...], attributes: dict[str, Any]) -> None:
    """Break unless no code of the program runs; `attributes`: the body's namespace, as real objects."""
    told = [n for n in CALLED if n in attributes or any(_has(base, n) for base in bases)]
    mixed = [n for base in bases if not issubclass(base, enum.Enum) for n in user_special_methods(base)]
    if told or mixed:
        raise Break("builtin-call", f"the Enum {name}, whose creation calls a user-defined {(told or mixed)[0]}")
    for value in attributes.values():
        if (cls := user_operator_class(value)) is not None:
            raise Break(
                "builtin-call",
                f"the Enum {name} with a {cls.__qualname__}, whose user-defined methods its creation calls",
            )


def _has(base: type, name: str) -> bool:
    found = (namespace_of(c).get(name, MISSING) for c in mro_of(base))
    return any(is_programs(getattr(raw, "__func__", raw), LIBRARY) for raw in found)
