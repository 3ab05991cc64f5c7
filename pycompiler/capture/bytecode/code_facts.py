"""Cached facts about a code object's instructions: captures and resume functions need them again and again.

In: a code object.  Out: its `CodeReading`: shared instructions that must not be changed, and facts about each of them.
"""

from __future__ import annotations

import functools
import weakref
from types import CodeType

from pycompiler.capture.bytecode.analysis import live_variables, reachable, successors
from pycompiler.capture.bytecode.code_structure import Exit, group, group_exits, stack_kinds
from pycompiler.capture.bytecode.decode import decode
from pycompiler.capture.bytecode.instruction import Instruction


class CodeReading:
    """The instructions of one code object, shared by all users."""

    def __init__(self, code: CodeType) -> None:
        self.instructions = decode(code)
        self.free = code.co_freevars
        self.position = {instruction: place for place, instruction in enumerate(self.instructions)}

    @functools.cached_property
    def kinds(self) -> dict[Instruction, tuple[str, ...]]:
        """`code_structure.stack_kinds`."""
        return stack_kinds(self.instructions)

    @functools.cached_property
    def replaces_free(self) -> bool:
        """Whether a comprehension takes the slot of a free variable of the same name for its cell (CPython 3.12)."""
        made = {i.argval for i in self.instructions if i.opname == "MAKE_CELL"}
        return not made.isdisjoint(self.free)

    @functools.cached_property
    def live(self) -> dict[Instruction, frozenset[str]]:
        """`analysis.live_variables`."""
        return live_variables(self.instructions)


_READINGS: weakref.WeakKeyDictionary[CodeType, CodeReading] = weakref.WeakKeyDictionary()


def reading(code: CodeType) -> CodeReading:
    """The `CodeReading` of a code object."""
    found = _READINGS.get(code)
    if found is None:
        found = _READINGS[code] = CodeReading(code)
    return found


def is_in_loop(code: CodeType, at: int) -> bool:
    """Whether control may come back to the instruction at `at` of `code`."""
    known = reading(code)
    place = next(p for p, instruction in enumerate(known.instructions) if instruction.offset == at)
    entry, *after = known.instructions[place:]
    return entry in reachable(known.instructions, successors(entry, after[0] if after else None))


def last_of_group(code: CodeType, at: int) -> Instruction:
    """The last instruction of the group at `at`; all exits of the group are its exits."""
    instructions = reading(code).instructions
    last: int = group(instructions, at).stop - 1
    return instructions[last]


def exits(code: CodeType, at: int) -> dict[str, Exit]:
    """The exits of the instruction (with its group) at `at`: keys `"next"` and `"jump"`."""
    instructions = reading(code).instructions
    return group_exits(instructions, group(instructions, at))
