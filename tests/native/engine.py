"""Helpers of the engine tests: tiny compilers that need no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pycompiler import _native
from pycompiler.ir.guards import Guard
from pycompiler.ir.source import local

Locals = dict[str, Any]
Compile = Callable[[Any, Locals, list[tuple[int, int]]], "_native.Entry | None"]


def names_of(fn: Any) -> tuple[str, ...]:
    """The engine's slot names: parameters in `co_varnames` order, then free variables."""
    code = fn.__code__
    n = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return (*code.co_varnames[:n], *code.co_freevars)


def target_of(fn: Any, body: Callable[[Locals], Any]) -> Any:
    """A function that takes all slots positionally and calls `body` with a dict of them."""
    names = names_of(fn)
    scope = {"body": body}
    args = ", ".join(names)
    exec(f"def generated({args}): return body(dict({', '.join(f'{n}={n}' for n in names)}))", scope)
    return scope["generated"]


def equality_compiler(fn: Any, body: Callable[[Locals], Any], log: list[Locals] | None = None) -> Compile:
    """Compiles entries that guard each plain local by equality and run `body` on the locals."""

    def compile(compiled: Any, locals_: Locals, reasons: list[tuple[int, int]]) -> _native.Entry:
        if log is not None:
            log.append(dict(locals_))
        guards = [Guard("equals", local(k), v) for k, v in locals_.items() if isinstance(v, (int, str))]
        return _native.Entry(guards, target_of(fn, body), "function")

    return compile
