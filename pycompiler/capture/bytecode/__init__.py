"""CPython bytecode as data: decode, edit, analyse, assemble, and generate code at graph breaks.

In: code objects of CPython 3.11 to 3.14.
Out: lists of `Instruction`, and code objects built from such lists.  Nothing here imports torch, so the package can
be tested under a bare interpreter.

Example::

    code = assemble(decode(f.__code__), f.__code__)      # behaves like f.__code__

Files in reading order:

- instruction.py: the instruction record
- tables.py: differences between Python versions
- decode.py: code object → instructions
- analysis.py: control flow, stack depth, live variables
- code_structure.py: groups, exits and kinds of stack items
- code_facts.py: these facts, cached by code object
- object_uses.py: uses of an object by code
- build.py: emitters of instruction lists
- locations.py: tables of locations and exceptions
- verify.py: the proof of generated code
- assemble.py: instructions → code object
- super_calls.py: `super()` in code that is cut
- resume.py: resume functions
- frames.py: generated frame code
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
from pycompiler.capture.bytecode.instruction import ExceptionHandler, Instruction

__all__ = [
    "ExceptionHandler",
    "FrameLayout",
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
