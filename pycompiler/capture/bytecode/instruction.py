"""The instruction record that every file of this package exchanges.

In: nothing.  Out: `Instruction`, `ExceptionHandler`, `UnitOf`.

The content of `argval`, by family of opcode:

- LOAD_CONST, RETURN_CONST, KW_NAMES: the constant;
- LOAD_NAME, LOAD_GLOBAL, LOAD_ATTR, LOAD_METHOD, LOAD_SUPER_ATTR, IMPORT_NAME, STORE_ATTR ...: the name;
- *_FAST, *_DEREF, MAKE_CELL, LOAD_CLOSURE: the variable's name;
- COMPARE_OP, BINARY_OP: the operator as a string, `<` or `+=`;
- CALL_INTRINSIC_1/2: the intrinsic's name;
- any other opcode with an argument: the argument itself.

`flag` has the low bits of a name's argument: LOAD_GLOBAL 1 = also pushes NULL, LOAD_ATTR 1 = method form (3.12+),
LOAD_SUPER_ATTR 1 = method form, 2 = two-argument `super`.

All variables of a code object have different names here.  CPython can have a local and a free variable of the same
name (a comprehension inlined by 3.12); such a local is decoded as ``name#local``.

Example: ``Instruction("LOAD_GLOBAL", argval="print", flag=1)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Positions = tuple[int | None, int | None, int | None, int | None]
"""Line, end line, column, end column, as `code.co_positions` yields them."""


@dataclass(frozen=True)
class ExceptionHandler:
    """The exception table entry that covers an instruction.

    On an exception the stack is cut to `depth` items.  The raising instruction's index is pushed if `lasti`, then the
    exception, and `target` runs next.
    """

    target: Instruction
    depth: int
    lasti: bool


@dataclass(eq=False, slots=True, weakref_slot=True)
class Instruction:
    """One plain instruction: never CACHE, EXTENDED_ARG, a superinstruction or a specialised form.  Compared by
    identity."""

    opname: str
    arg: int | None = None
    """The argument as a number. `assemble` ignores it for families that use `argval` or `target` instead."""
    argval: Any = None
    target: Instruction | None = None
    """The target of a jump."""
    offset: int | None = None
    """Byte offset in the decoded code object, odd for the second half of a superinstruction; None for a generated
    instruction."""
    lineno: int | None = None
    positions: Positions | None = None
    handler: ExceptionHandler | None = None
    flag: int = 0
    reads: tuple[str, ...] = ()
    """Variables that the instruction, or the call it leads to, reads implicitly (`super()`, `locals()`)."""

    @property
    def number(self) -> int:
        """`arg` of an instruction that has one."""
        assert self.arg is not None, self
        return self.arg

    def copy(self) -> Instruction:
        """The same instruction as a new object: same target, same handler."""
        return Instruction(
            self.opname, self.arg, self.argval, self.target, self.offset, self.lineno, self.positions, self.handler,
            self.flag, self.reads,
        )  # fmt: skip

    def __repr__(self) -> str:
        shown = f" {self.argval!r}" if self.argval is not None else f" {self.arg}" if self.arg is not None else ""
        where = f" -> {self.target.opname}@{self.target.offset}" if self.target is not None else ""
        return f"<{self.offset} {self.opname}{shown}{where}>"


@dataclass(frozen=True)
class UnitOf:
    """A constant known only after assembly: the code unit (as in `lasti`) of `target`, or of a copy with its offset."""

    target: Instruction
