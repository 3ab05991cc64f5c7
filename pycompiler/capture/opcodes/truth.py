"""The truth value at a conditional jump."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pycompiler.capture.bytecode.analysis import only_raises
from pycompiler.capture.values.base import Value
from pycompiler.capture.values.tensor import Tensor

if TYPE_CHECKING:
    from pycompiler.capture.bytecode.instruction import Instruction
    from pycompiler.capture.interpreter.evaluation import Frame


def truth_at(frame: Frame, jump: Instruction, value: Value) -> bool:
    """The truth of a value, for the jump that follows.

    For a tensor: if one branch only raises, the graph assumes the other branch and checks the assumption.
    """
    if not isinstance(value, Tensor) or not jump.opname.startswith("POP_JUMP") or jump.target is None:
        return frame.cx.truth(value)
    following = frame.instructions[frame.position[jump] + 1]
    ways = (jump.target, following) if jump.opname.endswith("TRUE") else (following, jump.target)
    bad = [truth for truth, way in zip((True, False), ways, strict=True) if only_raises(frame.instructions, way)]
    if len(bad) == 1 and frame.cx.graph.expect(value, not bad[0]):
        return not bad[0]
    return frame.cx.truth(value)
