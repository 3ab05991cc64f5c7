"""Differences between CPython 3.11, 3.12, 3.13 and 3.14, as tables over opcode names.

In: the running interpreter's `opcode` module.  Out: families of opcodes, cache sizes, encodings of packed arguments.

Example: ``CACHES["LOAD_GLOBAL"]`` is 5 on 3.11 and 4 on 3.12.
"""

from __future__ import annotations

import opcode
import sys
from typing import Any, Final

VERSION: Final = sys.version_info[:2]
_opcode: Any = opcode

OPMAP: Final[dict[str, int]] = {
    name: code for name, code in opcode.opmap.items() if code < 256 and not name.startswith("INSTRUMENTED_")
}
OPNAME: Final[dict[int, str]] = {code: name for name, code in OPMAP.items()}


def _names(numbers: list[int]) -> frozenset[str]:
    return frozenset(OPNAME[number] for number in numbers if number in OPNAME)


def _caches() -> dict[str, int]:
    entries = _opcode._inline_cache_entries
    if isinstance(entries, dict):
        return {name: entries.get(name, 0) for name in OPMAP}
    return {name: entries[number] for name, number in OPMAP.items()}


CACHES: Final[dict[str, int]] = _caches()
"""Code units of inline cache that follow the instruction."""

HAS_ARG: Final = (
    _names(_opcode.hasarg)
    if hasattr(opcode, "hasarg")
    else frozenset(name for name, number in OPMAP.items() if number >= opcode.HAVE_ARGUMENT)
)
SUPERINSTRUCTIONS: Final[dict[str, tuple[str, ...]]] = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
    "LOAD_FAST_BORROW": ("LOAD_FAST",),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("LOAD_FAST", "LOAD_FAST"),
}
"""3.13: the first half's variable is in the argument's high four bits, the second half's in the low four.

3.14 borrows references where its compiler has proved that the local outlives them.  In code that is cut this may not
hold.
"""

CONST: Final = _names(opcode.hasconst)
NAME: Final = _names(opcode.hasname)
CELL: Final = _names(opcode.hasfree) | {"LOAD_CLOSURE", "LOAD_DEREF"}  # 3.14 lists the latter as raw
"""Opcodes that use a slot as a cell."""
FAST: Final = _names(opcode.haslocal) - frozenset(SUPERINSTRUCTIONS) - CELL
"""Opcodes that use a slot raw."""
VARIABLE: Final = FAST | CELL
JUMP_UNCONDITIONAL: Final = frozenset(
    ["JUMP", "JUMP_NO_INTERRUPT", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"]
)
POP_JUMP_KINDS: Final = ("IF_TRUE", "IF_FALSE", "IF_NONE", "IF_NOT_NONE")
_FROM: Final = frozenset(["END_ASYNC_FOR"])
"""3.14: the argument is the origin of the jump, for monitoring."""
JUMP: Final = (_names(opcode.hasjrel) | JUMP_UNCONDITIONAL | {f"POP_JUMP_{kind}" for kind in POP_JUMP_KINDS}) - _FROM
"""Every jump, including the version-independent spellings JUMP, JUMP_NO_INTERRUPT and POP_JUMP_IF_*."""
STOPS: Final = JUMP_UNCONDITIONAL | {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
"""Opcodes after which the next instruction does not run."""
QUIET: Final = frozenset(["NOP", "PUSH_NULL", "COPY", "SWAP", "PUSH_EXC_INFO", "POP_EXCEPT", "LOAD_CONST", "MAKE_CELL",
                          "LOAD_FAST_AND_CLEAR", "STORE_FAST", "PRECALL", "KW_NAMES", "NOT_TAKEN", "POP_TOP", "END_FOR",
                          "POP_ITER"])  # fmt: skip
"""Opcodes that never raise, so their handler is never entered from them. Forward jumps do not raise either."""

NAME_SHIFT: Final[dict[str, int]] = {
    "LOAD_GLOBAL": 1,
    "LOAD_ATTR": 1 if VERSION >= (3, 12) else 0,
    "LOAD_SUPER_ATTR": 2,
}
"""The number of low bits of a name opcode's argument that are flags."""

BINARY_OPERATORS: Final[tuple[str, ...]] = tuple(text for _, text in _opcode._nb_ops)
COMPARE_OPERATORS: Final[tuple[str, ...]] = tuple(opcode.cmp_op)
COMPARE_SHIFT: Final = {(3, 11): 0, (3, 12): 4}.get(VERSION, 5)
COMPARE_TO_BOOL: Final = 16 if VERSION >= (3, 13) else 0
"""The bit of COMPARE_OP's argument that casts the result to bool."""
COMPARE_MASKS: Final = {"<": 2, "<=": 10, "==": 8, "!=": 7, ">": 4, ">=": 12}
"""3.12+: COMPARE_OP's low bits list the outcomes that mean true (unordered 1, less 2, greater 4, equal 8).

The specialised forms of the instruction read nothing else, see Include/internal/pycore_code.h.
"""
INTRINSICS: Final[dict[str, tuple[str, ...]]] = {
    "CALL_INTRINSIC_1": tuple(getattr(opcode, "_intrinsic_1_descs", ())),
    "CALL_INTRINSIC_2": tuple(getattr(opcode, "_intrinsic_2_descs", ())),
}

COMMON_CONSTANTS: Final[tuple[object, ...]] = tuple(getattr(opcode, "_common_constants", ()))
"""3.14: the constants that LOAD_COMMON_CONSTANT pushes."""
SPECIAL_METHODS: Final[tuple[str, ...]] = tuple(getattr(opcode, "_special_method_names", ()))
"""3.14: the methods that LOAD_SPECIAL looks up."""

LASTI_IS_INT: Final = VERSION < (3, 14)
"""Whether a handler gets the raising index as an object; since 3.14 it is a tagged word that only RERAISE
understands."""
EXIT_DEPTH: Final = 5 if VERSION >= (3, 14) else 4
"""The depth of the manager's `__exit__` for WITH_EXCEPT_START; since 3.14 its receiver, or NULL, is one above."""
ALWAYS_KEYWORDS: Final = VERSION >= (3, 14)
"""Whether CALL_FUNCTION_EX has no argument: the keywords, or NULL, are always on the stack."""

FOR_ITER_LANDING: Final[tuple[str, ...]] = {
    (3, 11): (),
    (3, 12): ("END_FOR",),
    (3, 13): ("END_FOR", "POP_TOP"),
}.get(VERSION, ("END_FOR",))
"""The instructions required at the target of FOR_ITER.

An exhausted FOR_ITER jumps *over* them.  3.11 has none: there FOR_ITER pops the iterator itself.  Since 3.14
POP_ITER, which follows them, pops it.
"""


def encode_compare(operator: str) -> int:
    """The argument of COMPARE_OP for an operator string."""
    index = COMPARE_OPERATORS.index(operator) << COMPARE_SHIFT
    return index if VERSION == (3, 11) else index | COMPARE_MASKS[operator]
