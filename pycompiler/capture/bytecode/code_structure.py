"""Structure of the original code that a generated function must respect: groups, exits, kinds of stack items.

In: a code object's decoded instructions and a byte offset.
Out: the instructions that run natively as one group, the places where control goes afterwards, and the stack items
that are no ordinary values.

Example: ``group_exits(body, group(body, 12))["next"].offset`` is where a resume function goes on after the
instruction at 12.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType

from pycompiler.capture.bytecode.analysis import stack_depth, stack_effect
from pycompiler.capture.bytecode.instruction import Instruction
from pycompiler.capture.bytecode.tables import FOR_ITER_LANDING, QUIET, STOPS, VERSION

_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
_CALL_PARTS = ("KW_NAMES", "PRECALL", "CALL")
"""A call is one to three instructions that pass state outside the stack (3.11 and 3.12), so they stay together."""


@dataclass(frozen=True)
class Exit:
    """One exit of an instruction: the offset where the original goes on, and the change of the stack depth until
    there."""

    offset: int
    effect: int


def check_function(code: CodeType) -> None:
    """`ValueError` unless `code` is an ordinary function's."""
    if code.co_flags & _SUSPENDS:
        raise ValueError(f"{code.co_qualname} is a generator or coroutine; it can neither be split nor resumed")
    if not code.co_flags & inspect.CO_OPTIMIZED:
        raise ValueError(f"{code.co_qualname} is module or class code; expected a function's code object")


def find(instructions: Sequence[Instruction], offset: int) -> int:
    """The position of the instruction at a byte offset."""
    for position, instruction in enumerate(instructions):
        if instruction.offset == offset:
            return position
    raise ValueError(f"no instruction at offset {offset}; expected an `Instruction.offset` that decode() gave")


def group(instructions: Sequence[Instruction], offset: int) -> slice:
    """The instructions that run together with the instruction at `offset`.

    A call needs its KW_NAMES and PRECALL.  A TO_BOOL runs with the jump behind it: a frame then continues at either
    branch, as in versions whose jumps take the truth themselves.
    """
    start = end = skip_landing(instructions, find(instructions, offset))
    if instructions[start].opname in _CALL_PARTS:
        while start > 0 and instructions[start - 1].opname in _CALL_PARTS[:2]:
            start -= 1
        while instructions[end].opname != "CALL":
            end += 1
    if instructions[end].opname == "TO_BOOL" and instructions[end + 1].opname.startswith("POP_JUMP_IF"):
        end += 1
    return slice(start, end + 1)


def skip_landing(instructions: Sequence[Instruction], position: int) -> int:
    """The position after END_FOR (and 3.13's POP_TOP): an exhausted FOR_ITER never runs them."""
    return position + len(FOR_ITER_LANDING) if instructions[position].opname == "END_FOR" else position


def group_exits(instructions: Sequence[Instruction], part: slice) -> dict[str, Exit]:
    """The exits of a group, by `"next"` (it falls through) and `"jump"`."""
    last = instructions[part.stop - 1]
    before = sum(stack_effect(i, jump=False) for i in instructions[part.start : part.stop - 1])
    result: dict[str, Exit] = {}
    if last.opname not in STOPS:
        following = instructions[part.stop]
        result["next"] = Exit(_offset(following), before + stack_effect(last, jump=False))
    if last.target is not None:
        landing = instructions.index(last.target)
        goal = skip_landing(instructions, landing)
        popped = sum(stack_effect(i, jump=False) for i in instructions[landing:goal])
        result["jump"] = Exit(_offset(instructions[goal]), before + stack_effect(last, jump=True) + popped)
    return result


def _offset(instruction: Instruction) -> int:
    assert instruction.offset is not None, f"{instruction!r} was not decoded"
    return instruction.offset


def stack_kinds(instructions: Sequence[Instruction]) -> dict[Instruction, tuple[str, ...]]:
    """The kind of every stack item before each reachable instruction.

    - ``"exc"``: the exception that was being handled before this handler was entered; POP_EXCEPT will restore it;
    - ``"lasti"``: the index of a raising instruction, which has a meaning in this code object only;
    - ``"value"``: any other item, NULL included.
    """
    index = {instruction: position for position, instruction in enumerate(instructions)}
    reached = stack_depth(instructions)
    kinds: dict[Instruction, tuple[str, ...]] = {}
    pending: list[tuple[Instruction, tuple[str, ...]]] = [(instructions[0], ())]
    while pending:
        instruction, before = pending.pop()
        if instruction in kinds:
            continue
        kinds[instruction] = before
        if instruction.opname not in STOPS:
            following = instructions[index[instruction] + 1]
            pending.append((following, _kinds_after(instruction, before, reached[following])))
        if instruction.target is not None:
            pending.append((instruction.target, _resized(before, reached[instruction.target])))
        if (handler := instruction.handler) is not None and instruction.opname not in QUIET:
            pushed = ("lasti", "value") if handler.lasti else ("value",)
            pending.append((handler.target, before[: handler.depth] + pushed))
    return kinds


def _kinds_after(instruction: Instruction, before: tuple[str, ...], depth: int) -> tuple[str, ...]:
    opname, arg = instruction.opname, instruction.arg or 0
    after = list(before)
    if opname == "PUSH_EXC_INFO":
        after[-1:] = ["exc", "value"]
    elif opname == "SWAP":
        after[-1], after[-arg] = after[-arg], after[-1]
    elif opname == "COPY":
        # Of two copies of a previous exception only the upper one meets POP_EXCEPT (COPY 3, POP_EXCEPT, RERAISE 1).
        after.append(after[-arg])
        if after[-1] == "exc":
            after[-1 - arg] = "value"
    else:
        return _resized(before, depth)
    return tuple(after)


def _resized(kinds: tuple[str, ...], depth: int) -> tuple[str, ...]:
    return kinds[:depth] + ("value",) * (depth - len(kinds))


def shielded(instructions: Sequence[Instruction]) -> list[Instruction]:
    """The same code, with NOPs that make it safe for 3.13's unwinding.  A NOP stands where a handler's range would begin
    too late.

    When a callee that runs in the same interpreter loop raises, 3.13 looks for the caller's handler one code unit
    *before* the calling instruction (ceval.c, `resume_with_error`).  Compiled code has an operand of the same range
    there.  Code that enters a range by a jump, or lost its unreachable part, has none.  The NOPs need not run.
    """
    if VERSION < (3, 13):
        return list(instructions)
    result: list[Instruction] = []
    for instruction in instructions:
        if (result[-1].handler if result else None) != instruction.handler:
            nop = instruction.copy()
            nop.opname, nop.arg, nop.argval, nop.target, nop.flag, nop.reads = "NOP", None, None, None, 0, ()
            result.append(nop)
        result.append(instruction)
    return result
