"""Resume functions: the original code, entered in the middle.

In: a code object, the offset to go on at, the live variables and the stack layout.
Out: a code object whose parameters are those variables (cells as raw cell objects), followed by the stack items that
are not NULL.

Example: the function of ``resume(code, 20, locals=("x",), stack=("value", "null"))`` is called as ``fn(x, item)``.
It pushes `item` and a NULL and goes on at offset 20.

The stack may hold two kinds of items that are no ordinary values (see `code_structure.stack_kinds`).  For an
``"exc"`` item, the parameter is the exception *being handled at that level*.  The resume function enters its handler
again; the tail that calls the resume function has left it (`frames.tail_call`).  For a ``"lasti"`` item the parameter
is ignored.

A ``"boxed"`` item comes in a list of its own, which the head empties.  A caller holds the arguments until the call
ends, but an iterator may have to end earlier, with the stack's reference to it.  A ``"cell"`` item is a cell that an
inlined comprehension (3.12) saves on the stack.  Meanwhile its own variable has the slot of a variable that closures
share.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import CodeType

from pycompiler import _native
from pycompiler.capture.bytecode import build
from pycompiler.capture.bytecode.analysis import reachable, variables_used
from pycompiler.capture.bytecode.assemble import assemble_with_offsets
from pycompiler.capture.bytecode.build import Code
from pycompiler.capture.bytecode.code_facts import reading
from pycompiler.capture.bytecode.code_structure import check_function, find, group, shielded
from pycompiler.capture.bytecode.decode import cell_names, decode, preamble_cells, slot_names
from pycompiler.capture.bytecode.instruction import Instruction
from pycompiler.capture.bytecode.super_calls import with_explicit_super
from pycompiler.ir.source import OWNED_PREFIX


@dataclass(eq=False)
class ResumeInfo:
    """The origin of a resume function's code object; it is the last constant of that code object."""

    original: CodeType
    at: int
    """The offset in `original` where the function continues."""
    locals: tuple[str, ...]
    stack: tuple[str, ...]
    """Kind of every stack item from the bottom: "value", "boxed", "cell", "null", "exc" or "lasti"."""
    boxed: tuple[str, ...] = ()
    """The names of `locals` that come in a list of their own, as "boxed" stack items do."""
    parameters: tuple[str, ...] = ()
    restored: tuple[tuple[str, str], ...] = ()
    """(cell, parameter) of the cells among `locals`, in the order in which the preamble restores them."""
    offsets: dict[int, int] = field(default_factory=dict)
    """Offset in the resume function's code → offset in `original`."""

    def offset_of(self, original_offset: int) -> int:
        """The inverse of `offsets`: where the instruction at an offset of `original` is in the resume function."""
        return max(new for new, old in self.offsets.items() if old == original_offset)


ERROR = "__error"
_Key = tuple[int, int, tuple[str, ...], tuple[str, ...], tuple[str, ...]]
_shared: weakref.WeakValueDictionary[_Key, CodeType] = weakref.WeakValueDictionary()
"""Resume code by (id of the original, offset, locals, stack, boxed).  A live entry keeps its original alive: ids are
unique."""


def resume_info(code: CodeType) -> ResumeInfo | None:
    """The `ResumeInfo` of a resume function's code object, None for any other."""
    last = code.co_consts[-1] if code.co_consts else None
    return last if isinstance(last, ResumeInfo) else None


def register_resume_code(code: CodeType) -> None:
    """Let `resume` find a resume function's code that was built elsewhere."""
    info = resume_info(code)
    if info is not None:
        _shared.setdefault((id(info.original), info.at, info.locals, info.stack, info.boxed), code)


def cell_parameters(info: ResumeInfo | None) -> tuple[str, ...]:
    """The parameters of a resume function that receive cell objects; an ordinary function has none."""
    if info is None:
        return ()
    known = slot_names(info.original)
    saved = (_stack_name(position, known) for position, kind in enumerate(info.stack) if kind == "cell")
    return (*(parameter for _, parameter in info.restored), *saved)


def origin_of(code: CodeType) -> tuple[CodeType, dict[int, int] | None]:
    """The user's code object behind `code` and the map to its offsets; (`code`, None) when `code` is the user's own."""
    info = resume_info(code)
    return (code, None) if info is None else (info.original, info.offsets)


def original_offset(code: CodeType, offset: int) -> tuple[CodeType, int]:
    """The user's code object, and the offset there of the instruction at `offset` of `code`."""
    original, offsets = origin_of(code)
    if offsets is None:
        return original, offset
    if offset not in offsets:
        raise ValueError(f"offset {offset} of {code.co_qualname} belongs to its head, not to the user")
    return original, offsets[offset]


def resume(
    code: CodeType,
    at: int,
    *,
    locals: tuple[str, ...],
    stack: tuple[str, ...],
    boxed: tuple[str, ...] = (),
    name: str | None = None,
) -> CodeType:
    """The code object of a resume function, shared between calls with the same origin, variables and stack.

    `code` may itself be a resume function's; `at` is an offset in `code`.  `stack` has "value" or "null" for every
    item from the bottom.  `code_structure.stack_kinds` corrects items to more exact kinds, see
    `resume_info(result).stack`.
    """
    original, at = original_offset(code, at)
    check_function(original)
    body = reading(original).instructions
    at = body[group(body, at).start].offset or 0
    stack = _checked_stack(original, at, stack)
    key = (id(original), at, locals, stack, boxed)
    result = _shared.get(key)
    if result is None:
        result = _shared[key] = _build(original, decode(original), ResumeInfo(original, at, locals, stack, boxed), name)
    return result


def _checked_stack(code: CodeType, at: int, stack: tuple[str, ...]) -> tuple[str, ...]:
    known = reading(code)
    entry = known.instructions[find(known.instructions, at)]
    kinds = known.kinds.get(entry)
    if kinds is None:
        raise ValueError(f"{entry!r} of {code.co_qualname} cannot be reached, so nothing can be resumed there")
    if len(kinds) != len(stack):
        raise ValueError(f"{entry!r} of {code.co_qualname} expects {len(kinds)} stack items, the layout has {stack}")
    pairs = zip(stack, kinds, strict=True)
    return tuple(given if given == "null" or kind == "value" else kind for given, kind in pairs)


def _build(code: CodeType, body: list[Instruction], info: ResumeInfo, name: str | None) -> CodeType:
    at, locals, stack = info.at, info.locals, info.stack
    known = slot_names(code)
    if unknown := [name for name in locals if name not in known]:
        raise ValueError(f"{unknown} are not variables of {code.co_qualname}; expected some of {known}")
    entry = body[find(body, at)]
    items = {position: _stack_name(position, known) for position, kind in enumerate(stack) if kind != "null"}
    first, error = known[0] if known else "", _fresh(ERROR, known)
    preamble = preamble_cells(code, body)
    body, entry = with_explicit_super(
        body, entry, build.load_deref(first) if first in cell_names(code) else build.load_fast(first)
    )
    kept = reachable(body, [entry])
    body = shielded([instruction for instruction in body if instruction in kept])
    used = variables_used(body)
    cells = tuple(cell for cell in cell_names(code) if cell in locals or cell in used)
    free = tuple(cell for cell in cells if cell in code.co_freevars and cell in locals)
    cells = tuple(cell for cell in cells if cell not in free)
    made = tuple(cell for cell in preamble if cell in cells)
    given = {name: _fresh(f"__free_{name}", known) if name in free else name for name in locals}
    given |= {name: _fresh(f"{OWNED_PREFIX}{name}", known) for name in info.boxed}
    info.parameters = (*given.values(), *items.values())
    info.restored = tuple((cell, given[cell]) for cell in (*made, *free) if cell in locals)
    instructions = [
        *(instruction for cell in made for instruction in build.make_cell(cell)),
        *build.op("RESUME", 0),
        *build.call_function(build.load_const(_native.entered)),
        *build.store_fast(error),
        *restore_cells(info.restored, moved=True),
        *(i for local in info.boxed for i in (*_unboxed(given[local]), *build.store_fast(local))),
        *_push_stack(stack, items, entry),
        *_arrive(entry, error),
        *build.jump(entry),
    ]
    for instruction in instructions:
        instruction.positions, instruction.lineno = entry.positions, entry.lineno
    line = entry.lineno or code.co_firstlineno
    plain = code.co_name if name is None else name
    assembly = assemble_with_offsets(
        [*instructions, *body],
        code,
        argnames=info.parameters,
        varnames=tuple(n for n in code.co_varnames if n not in {*cells, *free}),  # errors name variables of equal names
        cellvars=cells,
        freevars=free,
        name=plain,
        qualname=f"{code.co_qualname.rpartition('.')[0]}.resume_in_{plain}_at_{line}".lstrip("."),
        keep=(info,),
        cell_arguments=cell_parameters(info),
    )
    places = assembly.offsets
    info.offsets = {places[i]: i.offset for i in body if i.offset is not None}
    return assembly.code


def entered() -> Code:
    """Code after which the frame is the only holder of the arguments that its `TailCall` held."""
    return [*build.call_function(build.load_const(_native.entered)), *build.pop_top()]


def has_active_handler(code: CodeType) -> bool:
    """Whether `code` is a resume function that continues where a handler of the program is active, even only a
    `with`."""
    info = resume_info(code)
    return info is not None and _entry(reading(code).instructions, info).handler is not None


def raise_at_entry(code: CodeType, body: Sequence[Instruction]) -> Code:
    """Code that raises the error on the stack where the resume function continues, for the handlers in `body`, its own
    code.

    The frame has not used its parameters yet.
    """
    info = resume_info(code)
    assert info is not None
    known = slot_names(info.original)
    items = {position: _stack_name(position, known) for position, kind in enumerate(info.stack) if kind != "null"}
    given = dict(zip(info.locals, info.parameters, strict=False))
    entry = _entry(body, info)
    raising = build.op("RERAISE", 0)
    if "exc" in info.stack:  # the handled exception is the error's context
        raising = [*_arrive(entry, ERROR), *build.load_const(RuntimeError), *build.op("RAISE_VARARGS", 1)]
    else:
        raising = [*build.load_fast(ERROR), *build.delete_fast(ERROR), *raising]
    for instruction in raising:
        instruction.handler, instruction.positions, instruction.lineno = entry.handler, entry.positions, entry.lineno
    return [
        *build.store_fast(ERROR),
        *entered(),
        *(i for local in info.boxed for i in (*_unboxed(given[local]), *build.store_fast(local))),
        *_push_stack(info.stack, items, raising[-1]),
        *raising,
    ]


def _arrive(entry: Instruction, error: str) -> Code:
    """Code that raises an exception from before the function's start, for the handlers active at `entry`."""
    code = build.call_function(build.load_const(_native.arrive), [*build.load_fast(error), *build.delete_fast(error)])
    if entry.opname != "PUSH_EXC_INFO":  # a handler at PUSH_EXC_INFO assumes that PUSH_EXC_INFO has run
        for instruction in code:
            instruction.handler = entry.handler
    return [*code, *build.pop_top()]


def _entry(body: Sequence[Instruction], info: ResumeInfo) -> Instruction:
    return body[find(body, info.offset_of(info.at))]


def _stack_name(position: int, known: Sequence[str]) -> str:
    return _fresh(f"__stack{position}", known)


def _fresh(name: str, known: Sequence[str]) -> str:
    while name in known:
        name = f"_{name}"
    return name


def restore_cells(cells: Sequence[tuple[str, str]], *, moved: bool = False) -> list[Instruction]:
    """Put the cells that are given into their slots.

    MAKE_CELL has wrapped a parameter that is one of the function's own cells.  The parameter of a free variable,
    whose slot no closure fills, has another name.  So Python sees an empty cell as before: as a local variable, or as
    a free one.
    `moved`: the other name is deleted, so that no `locals()` shows it.
    """
    result: list[Instruction] = []
    for cell, given in cells:
        own = given == cell
        result += build.load_deref(cell) if own else build.load_fast(given)
        result += build.store_raw(cell)
        result += build.delete_fast(given) if moved and not own else []
    return result


def _push_stack(stack: Sequence[str], items: dict[int, str], entry: Instruction) -> list[Instruction]:
    """Push the stack bottom up. Parameters are moved, not copied: an item lives as long as in the original."""
    result: list[Instruction] = []
    for position, kind in enumerate(stack):
        if kind == "null":
            result += build.push_null()
            continue
        load = [*build.load_fast(items[position]), *build.delete_fast(items[position])]
        if kind == "exc":
            load = build.enter_handler(load)
        elif kind == "boxed":
            load = _unboxed(items[position])
        elif kind == "lasti":
            load = [*load, *build.pop_top(), *build.load_lasti(entry, position)]
        result += load
    return result


def _unboxed(name: str) -> list[Instruction]:
    """Push the only item of a list that a parameter holds, and take it out of the list."""
    item = [*build.load_fast(name), *build.unpack_sequence(1)]
    return [*item, *build.load_fast(name), *build.load_const(0), *build.delete_item(), *build.delete_fast(name)]
