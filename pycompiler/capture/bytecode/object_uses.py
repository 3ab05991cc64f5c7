"""Uses of an object by code, as far as single instructions show them.

In: code, or the instructions after the load of an object.
Out: whether the code stores anything that lasts, only reads the object, or reads an attribute whose name is a
constant.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import Any

WRITERS = frozenset(
    ("append", "appendleft", "extend", "extendleft", "add", "insert", "pop", "popleft", "remove", "discard", "update",
     "setdefault", "clear", "popitem", "subtract", "sort", "reverse", "rotate", "move_to_end", "setitem", "delitem", "iadd",
     "ior", "iand", "ixor", "isub", "imul", "iconcat", "__setitem__", "__delitem__", "__iadd__", "__ior__", "difference_update",
     "intersection_update", "symmetric_difference_update")
)  # fmt: skip
"""Names of methods that write containers."""
_STORES = frozenset(("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"))
_LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_CONST", "LOAD_SMALL_INT", "LOAD_DEREF"))


def _loaded(step: dis.Instruction) -> int | None:
    """The number of objects that a simple load adds to the stack; None for other instructions."""
    if step.opname in _LOADS or step.opname == "LOAD_GLOBAL" and "NULL" not in step.argrepr:
        return 1
    return 0 if step.opname == "LOAD_ATTR" and "NULL" not in step.argrepr else None


def is_only_read(rest: list[dis.Instruction]) -> bool:
    """Whether the next instructions only read an element of the object."""
    depth = 0
    for step in rest:
        if step.opname in ("CONTAINS_OP", "GET_ITER"):
            return depth == 0
        if step.opname == "BINARY_SUBSCR" or step.opname == "BINARY_OP" and step.argrepr == "[]":
            return depth == 1
        if (more := _loaded(step)) is None:
            return False
        depth += more
    return False


def getattr_name(rest: list[dis.Instruction]) -> str | None:
    """The attribute name that `getattr` is called with, if it is a constant."""
    given: list[dis.Instruction] = []
    for step in rest:
        if step.opname in ("CALL", "CALL_FUNCTION") and len(given) == step.arg and len(given) in (2, 3):
            return given[1].argval if given[1].opname == "LOAD_CONST" and type(given[1].argval) is str else None
        if (more := _loaded(step)) is None:
            return None
        if more:
            given.append(step)
    return None


def stores(code: types.CodeType, *, own: bool) -> bool:
    """Whether the code stores attributes or globals; `own`: stores to a new object (a first argument or a local) do not
    count."""
    others = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    before: Any = None
    for i in dis.get_instructions(code):
        name = (
            before.argval[-1]
            if before is not None and isinstance(before.argval, tuple)
            else getattr(before, "argval", None)
        )
        on_own = own and before is not None and before.opname.startswith("LOAD_FAST") and name not in others
        if i.opname in _STORES and not (i.opname == "STORE_ATTR" and on_own):
            return True
        before = i
    return False


def nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from nested_codes(inner)
