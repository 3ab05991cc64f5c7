"""The opcode table.

In: handlers, registered by `@opcode("NAME", ...)`.
Out: `HANDLERS`, opcode name → handler(frame, instruction).  `UNHANDLED` lists the opcodes that break the graph on
purpose, with the reason.  A test asserts that each opcode of each supported Python version is in exactly one of the
two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pycompiler.capture.bytecode.instruction import Instruction
    from pycompiler.capture.interpreter.evaluation import Frame

SEND_POPS = sys.version_info < (3, 12)  # at its end SEND replaces the iterator by the result, instead of pushing it
OpcodeHandler = Callable[["Frame", "Instruction"], None]
HANDLERS: dict[str, OpcodeHandler] = {}

_ASYNC = "coroutines run eagerly"
UNHANDLED: dict[str, str] = {
    "GET_AWAITABLE": _ASYNC, "GET_AITER": _ASYNC, "GET_ANEXT": _ASYNC, "BEFORE_ASYNC_WITH": _ASYNC,
    "END_ASYNC_FOR": _ASYNC, "ASYNC_GEN_WRAP": _ASYNC,
    "IMPORT_STAR": "only at module level", "PRINT_EXPR": "only in interactive sessions",
    "CACHE": "removed when bytecode is decoded", "EXTENDED_ARG": "removed when bytecode is decoded",
    "RESERVED": "not an instruction", "INTERPRETER_EXIT": "not part of a function's code",
    "EXIT_INIT_CHECK": "not part of a function's code", "ENTER_EXECUTOR": "removed when bytecode is decoded",
    "BUILD_INTERPOLATION": "template strings run eagerly", "BUILD_TEMPLATE": "template strings run eagerly",
    "LOAD_SMALL_INT": "a LOAD_CONST when bytecode is decoded", "LOAD_COMMON_CONSTANT": "a LOAD_CONST when bytecode is decoded",
    "LOAD_FAST_BORROW": "a LOAD_FAST when bytecode is decoded",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": "split when bytecode is decoded",
    "LOAD_FAST_LOAD_FAST": "split when bytecode is decoded",
    "STORE_FAST_LOAD_FAST": "split when bytecode is decoded",
    "STORE_FAST_STORE_FAST": "split when bytecode is decoded",
}  # fmt: skip


def opcode(*names: str) -> Callable[[OpcodeHandler], OpcodeHandler]:
    """Register a handler under one or more opcode names (of any Python version)."""

    def register(handler: OpcodeHandler) -> OpcodeHandler:
        for name in names:
            if name in HANDLERS or name in UNHANDLED:
                raise ValueError(f"opcode {name} is registered twice")
            HANDLERS[name] = handler
        return handler

    return register
