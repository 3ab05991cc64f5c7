"""The decoder: a code object → a list of plain instructions.

In: any code object.
Out: fresh `Instruction`s in order, with jumps and handlers as references.  Superinstructions, and comparisons with a
cast to bool, are split.

Example: ``[i.opname for i in decode(f.__code__)]``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import pairwise
from types import CodeType

from pycompiler.capture.bytecode.instruction import ExceptionHandler, Instruction, Positions
from pycompiler.capture.bytecode.locations import decode_exception_table
from pycompiler.capture.bytecode.tables import (
    BINARY_OPERATORS,
    CACHES,
    CELL,
    COMMON_CONSTANTS,
    COMPARE_OPERATORS,
    COMPARE_SHIFT,
    COMPARE_TO_BOOL,
    CONST,
    FAST,
    HAS_ARG,
    INTRINSICS,
    JUMP,
    NAME,
    NAME_SHIFT,
    OPMAP,
    OPNAME,
    SPECIAL_METHODS,
    SUPERINSTRUCTIONS,
)

_INSPECTS_FRAME = frozenset(["locals", "vars", "dir", "eval", "exec"])
"""Builtins that read all variables of the calling frame."""
_GLOBAL_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
_FRAME_READERS = frozenset(["f_locals", "getrefcount"])
"""Attributes that show all variables of a frame, or reveal references to them."""
_NAMED_LOADS = (*_GLOBAL_LOADS, "LOAD_ATTR", "LOAD_METHOD")
_CALLS = ("PRECALL", "CALL", "CALL_KW", "CALL_FUNCTION_EX")
LOCAL_SUFFIX = "#local"
_CONSTANTS: dict[str, Callable[[int], object]] = {
    "LOAD_SMALL_INT": lambda arg: arg,
    "LOAD_COMMON_CONSTANT": lambda arg: COMMON_CONSTANTS[arg],
}
"""3.14's short forms of LOAD_CONST."""


def slot_names(code: CodeType) -> list[str]:
    """The name of every variable slot (locals, then cells that are not locals, then free variables), all different."""
    own = [*code.co_varnames, *(name for name in code.co_cellvars if name not in code.co_varnames)]
    free = set(code.co_freevars)
    return [name + LOCAL_SUFFIX if name in free else name for name in own] + list(code.co_freevars)


def parameters(code: CodeType) -> tuple[str, ...]:
    """The names of the slots that hold arguments: positional, keyword-only, `*args`, `**kwargs`."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += sum(bool(code.co_flags & flag) for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
    return tuple(slot_names(code)[:count])


def cell_names(code: CodeType) -> tuple[str, ...]:
    """The names of the slots that hold cells: own cells, then free variables."""
    free = set(code.co_freevars)
    return (*(name + LOCAL_SUFFIX if name in free else name for name in code.co_cellvars), *code.co_freevars)


def preamble_cells(code: CodeType, body: list[Instruction]) -> tuple[str, ...]:
    """The names of the slots that hold cells from the start, without the cells of an inlined comprehension (3.12)."""
    end = next((position for position, instruction in enumerate(body) if instruction.opname == "RESUME"), len(body))
    made = {instruction.argval for instruction in body[:end] if instruction.opname == "MAKE_CELL"}
    return tuple(name for name in cell_names(code) if name in made or name in code.co_freevars)


def decode(code: CodeType) -> list[Instruction]:
    """The instructions of `code`, new objects at every call."""
    slots = slot_names(code)
    cells = frozenset(cell_names(code))
    positions: list[Positions] = list(code.co_positions())
    instructions: list[Instruction] = []
    starts: dict[int, Instruction] = {}
    jumps: list[tuple[Instruction, int]] = []
    raw = code.co_code
    offset = extended = 0
    start = 0
    while offset < len(raw):
        opname, arg = OPNAME[raw[offset]], extended | raw[offset + 1]
        if opname == "EXTENDED_ARG":
            extended, offset = arg << 8, offset + 2
            continue
        following = offset + 2 + 2 * CACHES[opname]
        for half, (name, value) in enumerate(_plain(opname, arg)):
            instruction = _instruction(name, value, code, slots, cells)
            instruction.offset = offset + half
            instruction.positions = positions[offset // 2]
            instruction.lineno = instruction.positions[0]
            instructions.append(instruction)
            starts.setdefault(start, instruction)
        if opname in JUMP:
            jumps.append((instructions[-1], following + 2 * (-arg if "BACKWARD" in opname else arg)))
        offset = start = following
        extended = 0
    for instruction, goal in jumps:
        instruction.target = starts[goal]
    _attach_handlers(code, instructions, starts)
    _mark_hidden_reads(code, instructions, slots)
    return instructions


def _plain(opname: str, arg: int) -> list[tuple[str, int]]:
    if opname in SUPERINSTRUCTIONS:
        first, *second = SUPERINSTRUCTIONS[opname]
        return [(first, arg >> 4), (second[0], arg & 15)] if second else [(first, arg)]
    if opname == "COMPARE_OP" and arg & COMPARE_TO_BOOL:
        return [(opname, arg & ~COMPARE_TO_BOOL), ("TO_BOOL", 0)]
    return [(opname, arg)]


def _instruction(opname: str, arg: int, code: CodeType, slots: list[str], cells: frozenset[str]) -> Instruction:
    if opname not in HAS_ARG:
        return Instruction(opname)
    result = Instruction(opname, arg, arg)
    if opname in _CONSTANTS:
        return Instruction("LOAD_CONST", argval=_CONSTANTS[opname](arg))
    if opname in CONST:
        result.argval = code.co_consts[arg]
    elif opname in NAME:
        shift = NAME_SHIFT.get(opname, 0)
        result.argval, result.flag = code.co_names[arg >> shift], arg & (1 << shift) - 1
    elif opname in FAST or opname in CELL:
        result.argval = slots[arg]
        if opname == "LOAD_FAST" and result.argval in cells and "LOAD_CLOSURE" not in OPMAP:
            # 3.13 and later have no LOAD_CLOSURE any more: they load the cell slot raw.
            result.opname = "LOAD_CLOSURE"
    elif opname == "COMPARE_OP":
        result.argval = COMPARE_OPERATORS[arg >> COMPARE_SHIFT]
    elif opname == "BINARY_OP":
        result.argval = BINARY_OPERATORS[arg]
    elif opname in INTRINSICS:
        result.argval = INTRINSICS[opname][arg]
    elif opname == "LOAD_SPECIAL":
        result.argval = SPECIAL_METHODS[arg]
    elif opname in JUMP:
        result.argval = None
    return result


def _attach_handlers(code: CodeType, instructions: list[Instruction], starts: dict[int, Instruction]) -> None:
    rows = decode_exception_table(code.co_exceptiontable)
    row = 0
    handler: ExceptionHandler | None = None
    for instruction in instructions:
        assert instruction.offset is not None
        unit = instruction.offset // 2
        while row < len(rows) and rows[row][0] + rows[row][1] <= unit:
            row, handler = row + 1, None
        if row < len(rows) and rows[row][0] <= unit:
            _, _, target, depth, lasti = rows[row]
            handler = handler or ExceptionHandler(starts[2 * target], depth, lasti)
            instruction.handler = handler


def _mark_hidden_reads(code: CodeType, instructions: list[Instruction], slots: list[str]) -> None:
    """Mark calls that read the frame's variables implicitly, and the loads of their callables: the frame may be cut in
    between."""
    inspects = [
        i
        for i in instructions
        for loads, names in ((_GLOBAL_LOADS, _INSPECTS_FRAME), (_NAMED_LOADS, _FRAME_READERS))
        if i.opname in loads and i.argval in names
    ]
    calls = [i for i in instructions if i.opname in _CALLS] if inspects else []
    for instruction in (*inspects, *calls):
        instruction.reads = tuple(slots)
    for position, (instruction, following) in enumerate(pairwise(instructions)):
        if is_zero_argument_super(code, instruction, following):
            for part in instructions[position : position + 3]:
                if part is instruction or part.opname in ("PRECALL", "CALL"):
                    part.reads = part.reads or ("__class__", slots[0])
        elif instruction.opname == "LOAD_SUPER_ATTR" and not instruction.flag & 2 and code.co_argcount:
            # An unspecialised instruction calls `super` without arguments, whatever is on the stack.
            instruction.reads = ("__class__", slots[0])


def is_zero_argument_super(code: CodeType, load: Instruction, following: Instruction) -> bool:
    """Whether `load` and the call after it are `super()`, which finds `__class__` and the first argument by itself."""
    return (
        load.opname == "LOAD_GLOBAL"
        and load.argval == "super"
        and bool(load.flag)
        and following.opname in ("PRECALL", "CALL")
        and following.arg == 0
        and "__class__" in code.co_freevars
        and code.co_argcount > 0
    )


def opcode_number(opname: str) -> int:
    """The number of a real opcode; an error that names the version's gap otherwise."""
    if opname not in OPMAP:
        raise ValueError(f"opcode {opname!r} does not exist in this Python; expected one of dis.opmap")
    return OPMAP[opname]
