"""Flow analyses over decoded instructions: successors, stack depth, live variables, reachability.

In: a list of `Instruction`s in program order; jumps and handlers are references.  Out: facts per instruction.

Example: ``live_locals(instructions, instructions[7])`` are the names that a resume function at 7 must be given.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Sequence

from pycompiler.capture.bytecode.instruction import Instruction
from pycompiler.capture.bytecode.tables import CELL, HAS_ARG, JUMP_UNCONDITIONAL, NAME_SHIFT, OPMAP, STOPS, VERSION

_READS = frozenset(["LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "DELETE_FAST"])


def successors(instruction: Instruction, following: Instruction | None) -> list[Instruction]:
    """The instructions that may run after `instruction`, the `following` one in the list first; exceptions not
    counted."""
    result = []
    if instruction.opname not in STOPS and following is not None:
        result.append(following)
    if instruction.target is not None:
        result.append(instruction.target)
    return result


def stack_effect(instruction: Instruction, jump: bool) -> int:
    """The change of the stack depth by the instruction, when it jumps or when it does not.

    For FOR_ITER since 3.12 this is the compiler's view: it jumps *to* END_FOR, which pops the exhausted iterator.
    """
    opname = instruction.opname
    if opname in _EFFECTS:
        return _EFFECTS[opname]
    if opname in JUMP_UNCONDITIONAL:
        return 0
    if opname == "CALL" and VERSION == (3, 11):
        return -_argument(instruction) - 1
    if opname.startswith("POP_JUMP_"):
        return -1
    if opname == "LOAD_CONST":
        return 1  # its value may be any integer
    return dis.stack_effect(OPMAP[opname], _argument(instruction) if opname in HAS_ARG else None, jump=jump)


# 3.11's PRECALL and CALL share one effect: dis books the arguments on PRECALL, but CALL pops them. RETURN_GENERATOR
# first leaves the sent value, which the POP_TOP after it takes.
_EFFECTS = {"PRECALL": 0, "LOAD_CLOSURE": 1, "RETURN_GENERATOR": 1}


def _argument(instruction: Instruction) -> int:
    if instruction.opname in NAME_SHIFT:
        return instruction.flag
    if instruction.target is not None or instruction.arg is None:
        return instruction.argval if isinstance(instruction.argval, int) else 0
    return instruction.arg


def stack_depth(instructions: Sequence[Instruction], entry_depth: int = 0) -> dict[Instruction, int]:
    """The stack depth before each reachable instruction. `ValueError` when two ways in disagree."""
    index = {instruction: position for position, instruction in enumerate(instructions)}
    depths: dict[Instruction, int] = {}
    pending = [(instructions[0], entry_depth)] if instructions else []
    while pending:
        instruction, depth = pending.pop()
        known = depths.setdefault(instruction, depth)
        if known != depth:
            raise ValueError(f"stack depth at {instruction!r} is {known} on one path and {depth} on another")
        if depth < 0:
            raise ValueError(f"stack underflow before {instruction!r}: depth {depth}")
        for goal, goal_depth in _flow(instruction, depth, instructions, index):
            if depths.get(goal) != goal_depth:
                pending.append((goal, goal_depth))
    return depths


def _flow(
    instruction: Instruction, depth: int, instructions: Sequence[Instruction], index: dict[Instruction, int]
) -> Iterable[tuple[Instruction, int]]:
    position = index[instruction] + 1
    if instruction.opname not in STOPS:
        if position == len(instructions):
            raise ValueError(f"control falls off the end after {instruction!r}; expected a return, raise or jump")
        yield instructions[position], depth + stack_effect(instruction, jump=False)
    if instruction.target is not None:
        yield instruction.target, depth + stack_effect(instruction, jump=True)
    if instruction.handler is not None:
        yield instruction.handler.target, instruction.handler.depth + instruction.handler.lasti + 1


def reachable(instructions: Sequence[Instruction], roots: Iterable[Instruction]) -> set[Instruction]:
    """All instructions that can run once one of `roots` runs, including the handlers of such instructions."""
    index = {instruction: position for position, instruction in enumerate(instructions)}
    found: set[Instruction] = set()
    pending = list(roots)
    while pending:
        instruction = pending.pop()
        if instruction in found:
            continue
        found.add(instruction)
        position = index[instruction] + 1
        pending += successors(instruction, instructions[position] if position < len(instructions) else None)
        if instruction.handler is not None:
            pending.append(instruction.handler.target)
    return found


def only_raises(instructions: Sequence[Instruction], at: Instruction) -> bool:
    """Whether every path from an instruction raises an exception, handlers of the code itself aside."""
    index = {instruction: position for position, instruction in enumerate(instructions)}
    found: set[Instruction] = set()
    pending, raises = [at], False
    while pending:
        instruction = pending.pop()
        if instruction in found:
            continue
        found.add(instruction)
        if instruction.opname == "RAISE_VARARGS":
            raises = True
            continue
        if instruction.opname.startswith(("RETURN", "YIELD", "SEND")) or len(found) > MOST_TO_RAISE:
            return False
        position = index[instruction] + 1
        pending += successors(instruction, instructions[position] if position < len(instructions) else None)
    return raises


MOST_TO_RAISE = 100


def variables_used(instructions: Iterable[Instruction]) -> set[str]:
    """The names of all variables (locals, cells, free variables) that the instructions name."""
    return {i.argval for i in instructions if i.opname in CELL or i.opname.endswith(_FAST_ENDINGS)}


_FAST_ENDINGS = ("_FAST", "_FAST_CHECK", "_FAST_AND_CLEAR")


def live_locals(instructions: Sequence[Instruction], at: Instruction) -> set[str]:
    """Names of locals and cells that may be read at or after `at`, through jumps and handlers.

    A cell is live as long as any instruction uses it, a store included: other holders of the cell see the store.  A
    name may be unbound at `at`: the caller knows which names are bound there.
    """
    return set(live_variables(instructions)[at])


def live_variables(instructions: Sequence[Instruction]) -> dict[Instruction, frozenset[str]]:
    """`live_locals` at every instruction."""
    live: dict[Instruction, frozenset[str]] = dict.fromkeys(instructions, frozenset())
    flow = [(i, successors(i, n)) for i, n in zip(instructions, [*instructions[1:], None], strict=True)]
    changed = True
    while changed:
        changed = False
        for instruction, after in reversed(flow):
            before = _live_before(instruction, frozenset().union(*(live[goal] for goal in after)))
            if instruction.handler is not None:
                before |= live[instruction.handler.target]
            if before != live[instruction]:
                live[instruction], changed = before, True
    return live


def _live_before(instruction: Instruction, after: frozenset[str]) -> frozenset[str]:
    opname = instruction.opname
    if opname == "STORE_FAST":
        after -= {instruction.argval}
    elif opname in _READS or opname in CELL:
        after |= {instruction.argval}
    return after.union(instruction.reads)
