"""The instruction record that every file of this room exchanges.

In: nothing. Out: `Instruction`, `Handler`, `UnitOf`.

What `argval` holds, by family of opcode:

- LOAD_CONST, RETURN_CONST, KW_NAMES: the constant;
- LOAD_NAME, LOAD_GLOBAL, LOAD_ATTR, LOAD_METHOD, LOAD_SUPER_ATTR, IMPORT_NAME, STORE_ATTR ...: the name. `flag` has the
  low bits: LOAD_GLOBAL 1 = pushes NULL too, LOAD_ATTR 1 = method form (3.12+), LOAD_SUPER_ATTR 1 = method form,
  2 = two-argument `super`;
- *_FAST, *_DEREF, MAKE_CELL, LOAD_CLOSURE: the variable's name. All variables of a code object have different names:
  where CPython keeps a local and a free variable of the same name apart (a comprehension inlined by 3.12), the local is
  decoded as ``name#local``;
- COMPARE_OP, BINARY_OP: the operator's text, `<` or `+=`;
- CALL_INTRINSIC_1/2: the intrinsic's name;
- anything else with an argument: the argument itself.

Example: ``Instruction("LOAD_GLOBAL", argval="print", flag=1)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Positions = tuple[int | None, int | None, int | None, int | None]
"""Line, end line, column, end column, as `code.co_positions` yields them."""


@dataclass(frozen=True)
class Handler:
    """The exception table entry that covers an instruction.

    On an exception the stack is cut to `depth` items, the raising instruction's index is pushed if `lasti`, then the
    exception, and `target` runs next.
    """

    target: Instruction
    depth: int
    lasti: bool


@dataclass(eq=False, slots=True, weakref_slot=True)
class Instruction:
    """One plain instruction: never CACHE, EXTENDED_ARG, a superinstruction or a specialised form. Equal by identity."""

    opname: str
    arg: int | None = None
    """The argument as a number. `assemble` ignores it for families whose `argval` or `target` says more."""
    argval: Any = None
    target: Instruction | None = None
    """Where a jump goes."""
    offset: int | None = None
    """Byte offset in the code object decoded, odd for the second half of a superinstruction; None when built by us."""
    lineno: int | None = None
    positions: Positions | None = None
    handler: Handler | None = None
    flag: int = 0
    reads: tuple[str, ...] = ()
    """Variables that the instruction, or the call it leads to, reads unseen (`super()`, `locals()`)."""

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
