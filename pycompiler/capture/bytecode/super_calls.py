"""`super()` in code that is cut: resume functions lack the free variable `__class__` and the first argument that it
looks for.

In: the instructions of a function.
Out: the same with both arguments written out, if the name means the builtin.  Another callable of that name is called
without arguments, as before.
"""

from __future__ import annotations

import sys

from pycompiler.capture.bytecode import build
from pycompiler.capture.bytecode.build import Code
from pycompiler.capture.bytecode.instruction import Instruction

NULL_ABOVE = sys.version_info >= (3, 13)
"""Whether the NULL of a call lies above the callable."""


def with_explicit_super(body: Code, entry: Instruction, first: Code) -> tuple[Code, Instruction]:
    """`body` with explicit arguments of `super`, and its entry; `first` loads the first argument.

    An entry at the call itself moves to the first inserted instruction, where the stack is as in the original.
    """
    result: Code = []
    pending = iter(body)
    for instruction in pending:
        if instruction.opname == "LOAD_SUPER_ATTR" and not instruction.flag & 2:
            written = _attribute(instruction)
        elif instruction.opname == "LOAD_GLOBAL" and instruction.argval == "super" and instruction.reads:
            result.append(instruction)
            instruction = next(pending)
            written = _call(instruction, [part.copy() for part in first])
            if instruction.opname == "PRECALL":
                next(pending)
        else:
            result.append(instruction)
            continue
        for part in written:
            part.positions, part.lineno, part.handler = instruction.positions, instruction.lineno, instruction.handler
        written[0].offset = instruction.offset
        entry = written[0] if entry is instruction else entry
        result += written
    return result, entry


def _call(call: Instruction, first: Code) -> Code:
    explicit = [*build.load_deref("__class__"), *first, *build.call(2)]
    return _if_builtin(2 if NULL_ABOVE else 1, explicit, build.call(0))


def _attribute(load: Instruction) -> Code:
    """Code for a LOAD_SUPER_ATTR without arguments; the callable and both arguments are on the stack."""
    explicit = build.named("LOAD_SUPER_ATTR", load.argval, load.flag | 2)
    to_its_place = [] if NULL_ABOVE else build.swap(2)
    called = [*build.pop_top(), *build.pop_top(), *build.push_null(), *to_its_place, *build.call(0)]
    return _if_builtin(3, explicit, [*called, *build.named("LOAD_ATTR", load.argval, load.flag & 1)])


def _if_builtin(depth: int, explicit: Code, other: Code) -> Code:
    end = build.nop()
    asked = [*build.copy(depth), *build.load_const(super), *build.is_op(), *build.jump_if(False, other[0])]
    return [*asked, *explicit, *build.jump(end[0]), *other, *end]


__all__ = ["with_explicit_super"]
