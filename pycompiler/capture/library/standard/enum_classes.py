"""What an Enum that is made inside of a function must be, for no code of the program's to run while it is made."""

from __future__ import annotations

import enum
import types
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.builtins.stand_ins import DESCRIPTORS, LOOKS, is_programs
from pycompiler.capture.bytecode.reading import reading
from pycompiler.capture.values.attributes import MISSING
from pycompiler.capture.values.members import LIBRARY, asked, asking
from pycompiler.ir.source import mro_of, namespace_of

CALLED = ("__new__", "__init__", "__new_member__", "_generate_next_value_", "__setattr__", "__delattr__", *DESCRIPTORS,
          *LOOKS)  # fmt: skip
"""What `EnumType` calls of a class, and of its members, before it is done."""


def check_body(code: types.CodeType) -> None:
    """The namespace of an Enum's body hears of each store: of a second one of a name, and it stores what an `auto()` says."""
    known = reading(code)
    stored = [i.argval for i in known.instructions if i.opname in ("STORE_NAME", "DELETE_NAME")]
    read = {i.argval for i in known.instructions if i.opname == "LOAD_NAME"} & set(stored)
    loops = any(i.target is not None and known.position[i.target] <= place for i, place in known.position.items())
    asks = {"vars", "locals", "exec", "eval"} & set(code.co_names)
    if len(stored) != len(set(stored)) or loops or asks or (read and "auto" in code.co_names):
        raise Break("builtin-call", "an Enum whose body stores a name twice, or reads one beside an auto()")


def check(name: str, bases: tuple[Any, ...], attributes: dict[str, Any]) -> None:
    """`attributes`: what its body has left, as real objects."""
    told = [n for n in CALLED if n in attributes or any(_has(base, n) for base in bases)]
    mixed = [n for base in bases if not issubclass(base, enum.Enum) for n in asked(base)]
    if told or mixed:
        raise Break("builtin-call", f"the Enum {name}, whose making calls {(told or mixed)[0]}")
    for value in attributes.values():
        if (cls := asking(value)) is not None:
            raise Break("builtin-call", f"the Enum {name} with a {cls.__qualname__}, which is asked while it is made")


def _has(base: type, name: str) -> bool:
    found = (namespace_of(c).get(name, MISSING) for c in mro_of(base))
    return any(is_programs(getattr(raw, "__func__", raw), LIBRARY) for raw in found)
