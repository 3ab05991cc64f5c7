"""The assembler: a list of instructions → a code object.

In: plain `Instruction`s (jump direction free, no caches, no EXTENDED_ARG) and the code object to adapt.
Out: a new code object with computed arguments, caches, locations, exception table and stack size.

Example::

    body = decode(f.__code__)
    f.__code__ = assemble([*load_const("hello"), *pop_top(), *body], f.__code__)
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import CodeType

from pycompiler.capture.bytecode.analysis import variables_used
from pycompiler.capture.bytecode.decode import LOCAL_SUFFIX, cell_names, opcode_number, parameters, slot_names
from pycompiler.capture.bytecode.instruction import ExceptionHandler, Instruction, Positions, UnitOf
from pycompiler.capture.bytecode.locations import ExceptionRow, encode_exception_table, encode_locations
from pycompiler.capture.bytecode.tables import (
    BINARY_OPERATORS,
    CACHES,
    COMMON_CONSTANTS,
    CONST,
    HAS_ARG,
    INTRINSICS,
    JUMP,
    JUMP_UNCONDITIONAL,
    NAME,
    NAME_SHIFT,
    OPMAP,
    VARIABLE,
    VERSION,
    encode_compare,
)
from pycompiler.capture.bytecode.verify import prove

_HAS_DOCSTRING = 0x4000000 if VERSION >= (3, 13) else 0


@dataclass
class Variables:
    """The layout of a code object's variable slots; parameters come first in `local`."""

    local: list[str]
    cell: tuple[str, ...]
    free: tuple[str, ...]

    def slots(self) -> dict[str, int]:
        """Slot number of every name. A cell that is also a local shares the local's slot."""
        shared = set(self.local)
        names = [*self.local, *(name for name in self.cell if name not in shared), *self.free]
        if len(set(names)) != len(names):
            raise ValueError(f"variables share a name: {names}; expected different ones (see decode.slot_names)")
        return {name: slot for slot, name in enumerate(names)}


@dataclass
class Pools:
    """Constants by identity (small plain values by type and value), and names."""

    consts: list[object] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    _const_index: dict[tuple[object, ...], int] = field(default_factory=dict)
    _name_index: dict[str, int] = field(default_factory=dict)

    def const(self, value: object) -> int:
        """The index of a constant, added if it is new."""
        key = (type(value), value) if type(value) in (int, str, bytes, bool) else (type(value), None, id(value))
        if key not in self._const_index:
            self._const_index[key] = len(self.consts)
            self.consts.append(value)
        return self._const_index[key]

    def name(self, name: str) -> int:
        """The index of a name, added if it is new."""
        if name not in self._name_index:
            self._name_index[name] = len(self.names)
            self.names.append(name)
        return self._name_index[name]


@dataclass(eq=False)
class _Emission:
    """An instruction with its real opcode and its place; `goal` is the emission that a jump leads to."""

    opname: str
    arg: int
    source: Instruction
    goal: _Emission | None = None
    prefixes: int = 0
    unit: int = 0

    @property
    def units(self) -> int:
        return self.prefixes + 1 + CACHES[self.opname]

    @property
    def end(self) -> int:
        return self.unit + self.units


@dataclass(frozen=True)
class Assembly:
    """A code object and the byte offset of each instruction in it."""

    code: CodeType
    offsets: dict[Instruction, int]


def assemble(
    instructions: Sequence[Instruction],
    code: CodeType,
    *,
    argnames: tuple[str, ...] | None = None,
    varnames: tuple[str, ...] | None = None,
    cellvars: tuple[str, ...] | None = None,
    freevars: tuple[str, ...] | None = None,
    name: str | None = None,
    qualname: str | None = None,
    flags: int | None = None,
    keep: Iterable[object] = (),
    cell_arguments: Iterable[str] = (),
) -> CodeType:
    """The code object of `instructions`; omitted attributes are as in `code`.

    `argnames` makes all parameters positional (no defaults kinds, no `*args`).  Locals that the instructions use and
    `varnames` lacks are appended.
    `keep`: objects to hold in `co_consts` although no instruction loads them.
    `cell_arguments`: parameters that receive cell objects.  Raises `Unsound` for code that `verify.prove` rejects.
    """
    return assemble_with_offsets(
        instructions,
        code,
        argnames=argnames,
        varnames=varnames,
        cellvars=cellvars,
        freevars=freevars,
        name=name,
        qualname=qualname,
        flags=flags,
        keep=keep,
        cell_arguments=cell_arguments,
    ).code


def assemble_with_offsets(
    instructions: Sequence[Instruction],
    code: CodeType,
    *,
    argnames: tuple[str, ...] | None = None,
    varnames: tuple[str, ...] | None = None,
    cellvars: tuple[str, ...] | None = None,
    freevars: tuple[str, ...] | None = None,
    name: str | None = None,
    qualname: str | None = None,
    flags: int | None = None,
    keep: Iterable[object] = (),
    cell_arguments: Iterable[str] = (),
) -> Assembly:
    """`assemble`, with the byte offset of each instruction."""
    variables = _variables(instructions, code, argnames, varnames, cellvars, freevars)
    pools = Pools()
    if code.co_consts:
        # The first constant is the docstring, or None in its place: no other string may be first.
        pools.const(code.co_consts[0] if argnames is None else None)
    emissions = _emit(instructions, variables.slots(), pools)
    _place(emissions)
    before = [i.opname for i in instructions]
    depth = prove(
        instructions,
        variables.slots(),
        bound=parameters(code) if argnames is None else argnames,
        cells=cell_arguments,
        own=variables.cell,
        free=variables.free,
    )
    if before != [i.opname for i in instructions]:  # the proof changed loads to checked ones
        emissions = _emit(instructions, variables.slots(), pools)
        _place(emissions)
    flags = code.co_flags if flags is None else flags
    if argnames is not None:
        flags &= ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | _HAS_DOCSTRING)
    consts = [_final_const(value, emissions) for value in pools.consts]
    result = code.replace(
        co_code=_bytes(emissions),
        co_consts=(*consts, *keep),
        co_names=tuple(pools.names),
        co_varnames=tuple(_written(name, variables) for name in variables.local),
        co_cellvars=tuple(_written(name, variables) for name in variables.cell),
        co_freevars=variables.free,
        co_nlocals=len(variables.local),
        co_argcount=code.co_argcount if argnames is None else len(argnames),
        co_posonlyargcount=code.co_posonlyargcount if argnames is None else 0,
        co_kwonlyargcount=code.co_kwonlyargcount if argnames is None else 0,
        co_stacksize=depth + 1,
        co_linetable=_locations(emissions, code.co_firstlineno),
        co_exceptiontable=encode_exception_table(_exception_rows(emissions)),
        co_name=code.co_name if name is None else name,
        co_qualname=code.co_qualname if qualname is None else qualname,
        co_flags=flags,
    )
    offsets = {e.source: 2 * (e.unit + e.prefixes) for e in reversed(emissions)}
    return Assembly(result, offsets)


def _variables(
    instructions: Sequence[Instruction],
    code: CodeType,
    argnames: tuple[str, ...] | None,
    varnames: tuple[str, ...] | None,
    cellvars: tuple[str, ...] | None,
    freevars: tuple[str, ...] | None,
) -> Variables:
    own_cells = cell_names(code)[: len(code.co_cellvars)]
    cell = own_cells if cellvars is None else cellvars
    free = code.co_freevars if freevars is None else freevars
    if varnames is None:
        varnames = tuple(slot_names(code)[: code.co_nlocals]) if argnames is None else ()
    local = list(dict.fromkeys([*(argnames or ()), *varnames]))
    used = variables_used(instructions)
    cells = {*cell, *free}
    fast = {i.argval for i in instructions if i.opname in VARIABLE and i.argval not in cells}
    wrong = [i for i in instructions if i.opname.endswith("_DEREF") and i.argval not in cells]
    if wrong:
        raise ValueError(f"{wrong[0]!r} uses a cell, but its name is none of the cells {sorted(cells)}; pass cellvars")
    local += sorted(used & fast - set(local))
    return Variables(local, cell, free)


def _written(name: str, variables: Variables) -> str:
    """The printed name of a slot: `x#local` is `x` again when only a free variable has that name."""
    plain = name.removesuffix(LOCAL_SUFFIX)
    return plain if plain in variables.free else name


def _final_const(value: object, emissions: list[_Emission]) -> object:
    if not isinstance(value, UnitOf):
        return value
    target = value.target
    same = [e for e in emissions if e.source is target]
    copies = [e for e in emissions if target.offset is not None and e.source.offset == target.offset]
    if not same and not copies:
        raise ValueError(f"a constant refers to {target!r}, but the list has neither it nor a copy of it")
    return (same or copies)[0].unit + (same or copies)[0].prefixes


def _emit(instructions: Sequence[Instruction], slots: dict[str, int], pools: Pools) -> list[_Emission]:
    order = {instruction: position for position, instruction in enumerate(instructions)}
    if len(order) != len(instructions):
        raise ValueError("an instruction object stands twice in the list; expected `Instruction.copy()` for the second")
    emissions: list[_Emission] = []
    first: dict[Instruction, _Emission] = {}
    for instruction in instructions:
        made = _lower(instruction, order, slots, pools)
        first[instruction] = made[0]
        emissions += made
    for emission in emissions:
        if emission.goal is None and emission.opname in JUMP:
            assert emission.source.target is not None
            emission.goal = first[emission.source.target]
    return emissions


def _lower(
    instruction: Instruction, order: dict[Instruction, int], slots: dict[str, int], pools: Pools
) -> list[_Emission]:
    if instruction.handler is not None and instruction.handler.target not in order:
        raise ValueError(f"the handler of {instruction!r} is not in the list of instructions")
    if instruction.opname not in JUMP:
        if instruction.opname == "LOAD_CONST" and (short := _short_form(instruction.argval)):
            return [_Emission(*short, instruction)]
        opname = "LOAD_FAST" if instruction.opname == "LOAD_CLOSURE" and VERSION >= (3, 13) else instruction.opname
        opcode_number(opname)
        return [_Emission(opname, _argument(instruction, slots, pools), instruction)]
    if instruction.target is None or instruction.target not in order:
        raise ValueError(f"the target of {instruction!r} is not in the list of instructions")
    forward = order[instruction.target] > order[instruction]
    directed = _jump_opcode(instruction.opname, forward)
    return _trampoline(instruction) if directed is None else [_Emission(directed, 0, instruction)]


def _short_form(value: object) -> tuple[str, int] | None:
    """3.14's instruction for a constant that needs no place among the code's constants."""
    if type(value) is int and 0 <= value < 256 and "LOAD_SMALL_INT" in OPMAP:
        return "LOAD_SMALL_INT", value
    common = next((place for place, known in enumerate(COMMON_CONSTANTS) if known is value), None)
    return None if common is None else ("LOAD_COMMON_CONSTANT", common)


def _jump_opcode(opname: str, forward: bool) -> str | None:
    """The real opcode of a jump in that direction, or None if there is none."""
    if opname in JUMP_UNCONDITIONAL:
        quiet = opname.endswith("NO_INTERRUPT")
        return "JUMP_FORWARD" if forward else "JUMP_BACKWARD_NO_INTERRUPT" if quiet else "JUMP_BACKWARD"
    if opname.startswith("POP_JUMP_"):
        kind = opname[opname.index("IF_") :]
        directed = f"POP_JUMP_{'FORWARD' if forward else 'BACKWARD'}_{kind}"
        return directed if directed in OPMAP else f"POP_JUMP_{kind}" if forward else None
    return opname if forward else None


def _trampoline(instruction: Instruction) -> list[_Emission]:
    """A backward conditional jump on a version with only forward ones: branch to an unconditional jump just behind
    it."""
    opname = _jump_opcode(instruction.opname, forward=True)
    if opname is None or (VERSION >= (3, 12) and opname in ("FOR_ITER", "SEND")):
        raise ValueError(f"{instruction!r} goes backwards, but Python {VERSION} cannot; move its target behind it")
    branch, skip, back = (_Emission(name, 0, instruction) for name in (opname, "JUMP_FORWARD", "JUMP_BACKWARD"))
    landing = _Emission("NOP", 0, instruction)
    branch.goal, skip.goal = back, landing
    return [branch, skip, back, landing]


def _argument(instruction: Instruction, slots: dict[str, int], pools: Pools) -> int:
    opname, value = instruction.opname, instruction.argval
    if opname in CONST:
        return pools.const(value)
    if opname in NAME:
        return pools.name(value) << NAME_SHIFT.get(opname, 0) | instruction.flag
    if opname in VARIABLE:
        return slots[value]
    if opname == "COMPARE_OP":
        return encode_compare(value)
    if opname == "BINARY_OP":
        return BINARY_OPERATORS.index(value)
    if opname in INTRINSICS:
        return INTRINSICS[opname].index(value)
    number = value if instruction.arg is None else instruction.arg
    if opname not in HAS_ARG:
        return 0
    if not isinstance(number, int):
        raise ValueError(f"{instruction!r} has no argument; expected a number in `arg`")
    return number


def _place(emissions: list[_Emission]) -> None:
    """Fixpoint: give each emission its code unit and its EXTENDED_ARG prefixes, which only ever grow."""
    grown = True
    while grown:
        unit = 0
        for emission in emissions:
            emission.unit = unit
            unit += emission.units
        grown = False
        for emission in emissions:
            if emission.goal is not None:
                emission.arg = abs(emission.goal.unit - emission.end)
            needed = max(0, (emission.arg.bit_length() + 7) // 8 - 1)
            if needed > emission.prefixes:
                emission.prefixes, grown = needed, True


def _bytes(emissions: list[_Emission]) -> bytes:
    out = bytearray()
    extended = OPMAP["EXTENDED_ARG"]
    for emission in emissions:
        for prefix in range(emission.prefixes, 0, -1):
            out += bytes([extended, emission.arg >> 8 * prefix & 255])
        out += bytes([OPMAP[emission.opname], emission.arg & 255])
        out += bytes(2 * CACHES[emission.opname])
    return bytes(out)


def _locations(emissions: list[_Emission], first_line: int) -> bytes:
    rows: list[tuple[int, Positions]] = []
    for emission in emissions:
        source = emission.source
        rows.append((emission.units, source.positions or (source.lineno, source.lineno, None, None)))
    return encode_locations(rows, first_line)


def _exception_rows(emissions: list[_Emission]) -> list[ExceptionRow]:
    units: dict[Instruction, int] = {}
    for emission in emissions:
        units.setdefault(emission.source, emission.unit)
    rows: list[ExceptionRow] = []
    current: ExceptionHandler | None = None
    for emission in emissions:
        handler = emission.source.handler
        if handler is not None:
            start, length = emission.unit, emission.units
            if handler == current:
                start, length = rows[-1][0], emission.end - rows[-1][0]
                rows.pop()
            rows.append((start, length, units[handler.target], handler.depth, handler.lasti))
        current = handler
    return rows
