"""CPython bytecode as data: decode, edit, analyse, assemble, and the code generators of graph breaks.

In: code objects of CPython 3.11 to 3.14. Out: lists of `Instruction`, and code objects made from such lists.
Nothing here imports torch, so that the room can be tested under a bare interpreter.

Example::

    code = assemble(decode(f.__code__), f.__code__)      # behaves like f.__code__
"""

from pycompiler.capture.bytecode.analysis import live_locals, stack_depth, successors
from pycompiler.capture.bytecode.assemble import assemble
from pycompiler.capture.bytecode.decode import decode
from pycompiler.capture.bytecode.frames import (
    FrameLayout,
    ResumeInfo,
    continuation,
    exits,
    origin_of,
    resume,
    resume_info,
    tail_call,
    whole,
)
from pycompiler.capture.bytecode.instruction import Handler, Instruction

__all__ = [
    "FrameLayout",
    "Handler",
    "Instruction",
    "ResumeInfo",
    "assemble",
    "continuation",
    "decode",
    "exits",
    "live_locals",
    "origin_of",
    "resume",
    "resume_info",
    "stack_depth",
    "successors",
    "tail_call",
    "whole",
]
