"""Generated frame code: a head, then one original instruction run natively, then tails that call resume functions.

In: a root code object, the head's instructions and the code to run afterwards.
Out: a code object of an ordinary function.  Its parameters are the frame's parameters, all positional, in
locals-array order; free variables stay free variables.

Example, a break at the call at offset 30 of `code` with one local alive::

    after = exits(code, 30)["next"]
    rest = resume(code, after.offset, locals=("x",), stack=("value",))
    tail = tail_call(native_tail_call, function_of(rest), ("x",), resume_info(rest).stack)
    frame = continuation(code, head, 30, {"next": tail})
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, MethodType

from pycompiler.capture.bytecode import build
from pycompiler.capture.bytecode.analysis import reachable
from pycompiler.capture.bytecode.assemble import assemble
from pycompiler.capture.bytecode.code_facts import exits, is_in_loop, reading
from pycompiler.capture.bytecode.code_structure import (
    Exit,
    check_function,
    group,
    group_exits,
    shielded,
    skip_landing,
    stack_kinds,
)
from pycompiler.capture.bytecode.decode import decode, parameters, preamble_cells, slot_names
from pycompiler.capture.bytecode.instruction import Instruction
from pycompiler.capture.bytecode.resume import (
    ResumeInfo,
    cell_parameters,
    origin_of,
    original_offset,
    restore_cells,
    resume,
    resume_info,
)
from pycompiler.capture.bytecode.tables import LASTI_IS_INT

Tail = Sequence[Instruction] | Callable[[], Sequence[Instruction]]
Failed = Callable[[Sequence[Instruction]], Sequence[Instruction]]


@dataclass(frozen=True)
class FrameLayout:
    """The content of the engine's locals array for a root code object."""

    params: tuple[str, ...]
    """Positional, keyword-only, `*args`, `**kwargs`: as in `co_varnames`."""
    freevars: tuple[str, ...]
    cells: tuple[str, ...]
    """Names whose slot holds a cell object once the preamble has run: own cells, then free variables."""

    @property
    def names(self) -> tuple[str, ...]:
        """All slots of the locals array in order."""
        return self.params + self.freevars

    @staticmethod
    def of(code: CodeType) -> FrameLayout:
        """The layout of a code object."""
        return FrameLayout(parameters(code), code.co_freevars, preamble_cells(code, reading(code).instructions))


def resumes_in_loop(code: CodeType) -> bool:
    """Whether `code` is a resume function that continues inside a loop."""
    info = resume_info(code)
    return info is not None and is_in_loop(info.original, info.at)


def preamble(code: CodeType, body: Sequence[Instruction]) -> list[Instruction]:
    """The original's first instructions up to RESUME; for a resume function also the instructions that restore the
    cells."""
    end = next(position for position, instruction in enumerate(body) if instruction.opname == "RESUME") + 1
    info = resume_info(code)
    restored = () if info is None else info.restored
    return [*(instruction.copy() for instruction in body[:end]), *restore_cells(restored)]


def loads_method(instruction: Instruction) -> bool:
    """Whether the instruction pushes two slots.  Depending on the attribute it finds, one slot may be NULL."""
    if instruction.opname in ("LOAD_METHOD", "LOAD_SPECIAL"):
        return True
    return (
        instruction.opname in ("LOAD_ATTR", "LOAD_SUPER_ATTR")
        and sys.version_info >= (3, 12)
        and bool(instruction.flag & 1)
    )


def bound(*parts: Callable[..., object]) -> Callable[..., object]:
    """A callable, or a receiver and its method, as one callable."""
    return MethodType(parts[1], parts[0]) if len(parts) == 2 else parts[0]


def plain_load(instruction: Instruction) -> list[Instruction]:
    """The instruction; a method load becomes an attribute load, so that NULL is in a known slot."""
    if not loads_method(instruction):
        return [instruction]
    if instruction.opname == "LOAD_SPECIAL":  # method and receiver, or callable and NULL: `bound` gets one or two
        return [instruction, *build.swap(2), *build.load_const(bound), *build.swap(3), *build.swap(2),
                *build.op("CALL", 1), *build.push_null()]  # fmt: skip
    load = instruction.copy()
    load.opname = "LOAD_ATTR" if load.opname == "LOAD_METHOD" else load.opname
    load.flag &= ~1
    swap = [] if sys.version_info >= (3, 13) else build.op("SWAP", 2)
    return [load, *build.push_null(), *swap]


def continuation(
    code: CodeType,
    head: Sequence[Instruction],
    resume_at: int,
    tails: Mapping[str, Tail],
    *,
    failed: Failed | None = None,
    name: str | None = None,
) -> CodeType:
    """A function that runs `head`, then the original instruction at `resume_at`, then a tail.

    `head` runs after the preamble (every cell slot holds its cell) and leaves the original's stack before
    `resume_at`.  `tails` has an entry for each key of `exits(code, resume_at)`; a tail ends in a return.  An
    exception raised by the instruction goes to the original's handlers, which run the original code.  A loop that
    comes back to the instruction also runs the original code.
    `failed`: builds the handler of instructions of the head, from the original's instructions.
    """
    check_function(code)
    body = decode(code)
    part = group(body, resume_at)
    native = [instruction.copy() for instruction in body[part]]
    native[-1:] = plain_load(native[-1])
    wanted = group_exits(body, part)
    if missing := wanted.keys() - tails.keys():
        raise ValueError(f"{native[-1]!r} needs tails {sorted(wanted)}; missing {sorted(missing)}")
    after = _tail(tails["next"]) if "next" in wanted else []
    if "jump" in wanted:
        # FOR_ITER jumps over the instructions at its target, so they must be there.
        landing = body.index(native[-1].target or native[-1])
        jumped = [i.copy() for i in body[landing : skip_landing(body, landing)]] + _tail(tails["jump"])
        native[-1].target = jumped[0]
        after += jumped
    after += failed(body) if failed is not None else []
    own = [*head, *native, *after]
    _fill_positions([*head, *after], native[0])
    instructions = [*preamble(code, body), *own, *body]
    kept = reachable(instructions, instructions[:1])
    return _assemble([i for i in instructions if i in kept], code, name)


def whole(
    code: CodeType, head: Sequence[Instruction], *, failed: Failed | None = None, name: str | None = None
) -> CodeType:
    """A function that runs only `head`, which ends in a return.

    The original's preamble is included, and the code reached from `failed`, the handler of instructions of the head.
    """
    check_function(code)
    body = decode(code)
    first = next((instruction for instruction in body if instruction.opname == "RESUME"), body[0])
    own = [*head, *(failed(body) if failed is not None else [])]
    _fill_positions(own, first)
    instructions = [*preamble(code, body), *own, *body]
    kept = reachable(instructions, instructions[:1])
    return _assemble([i for i in instructions if i in kept], code, name)


def _assemble(instructions: list[Instruction], code: CodeType, name: str | None) -> CodeType:
    layout = FrameLayout.of(code)
    locals_ = tuple(slot_names(code)[: code.co_nlocals])
    cells = cell_parameters(resume_info(code))
    return assemble(
        shielded(instructions), code, argnames=layout.params, varnames=locals_, name=name, cell_arguments=cells
    )


def _tail(tail: Tail) -> list[Instruction]:
    return list(tail() if callable(tail) else tail)


def _fill_positions(built: Sequence[Instruction], native: Instruction) -> None:
    """Give generated instructions the line of the code they serve, so that a traceback never shows a foreign line."""
    for instruction in built:
        if instruction.offset is None and instruction.lineno is None:
            instruction.positions, instruction.lineno = native.positions, native.lineno


def tail_call(
    call: object,
    resume_fn: object,
    locals: Sequence[str],
    stack: Sequence[str],
    *,
    boxed: Sequence[str] = (),
    prefix: str = "__tail",
) -> list[Instruction]:
    """Code that returns ``call(resume_fn, *locals, *stack items)``, with cells as cell objects.

    `stack` is the `ResumeInfo.stack` of the resume function; the items are on the stack when the tail begins.  At an
    "exc" item, the tail leaves the handler and passes on the exception handled there.
    """
    names = [f"{prefix}{position}" for position in range(len(stack))]
    levels = [name for name, kind in zip(names, stack, strict=True) if kind == "exc"]
    current = f"{prefix}_exc"
    handled = dict(zip(levels, [*levels[1:], current], strict=False))
    result: list[Instruction] = []
    for name, kind in reversed(list(zip(names, stack, strict=True))):
        if kind == "lasti" and not LASTI_IS_INT:
            result += [*build.pop_top(), *build.load_const(None)]
        result += build.store_fast(name)
    if levels:
        result += [*build.call_function(build.load_const(sys.exception)), *build.store_fast(current)]
    for name in reversed(levels):
        result += [*build.load_fast(name), *build.op("POP_EXCEPT")]
    arguments = [[*build.load_raw(name), *(build.build_list(1) if name in boxed else [])] for name in locals]
    arguments += [
        [*build.load_fast(handled.get(name, name)), *(build.build_list(1) if kind == "boxed" else [])]
        for name, kind in zip(names, stack, strict=True)
        if kind != "null"
    ]
    result += build.call_function(build.load_const(call), build.load_const(resume_fn), *arguments)
    if levels:
        # An exception holds this frame by its traceback: a local that held the exception would close a cycle.
        passed = [name for name, kind in zip(names, stack, strict=True) if kind != "null"]
        result += [instruction for name in (*passed, current) for instruction in build.delete_fast(name)]
    return [*result, *build.return_value()]


__all__ = [
    "Exit",
    "FrameLayout",
    "ResumeInfo",
    "continuation",
    "exits",
    "origin_of",
    "original_offset",
    "preamble",
    "resume",
    "resume_info",
    "resumes_in_loop",
    "stack_kinds",
    "tail_call",
    "whole",
]
