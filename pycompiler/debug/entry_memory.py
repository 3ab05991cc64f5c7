"""What an entry of a compiled callable holds, in bytes.

In: a compiled function and the guards of one of its entries.  Out: scratch of a call, constants and the code of kernels, of
the native plans that the entry leads to: inference or forward, and the backwards that were compiled so far.
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Iterable
from typing import Any

import torch

from pycompiler import _native
from pycompiler._native import CompiledFunction
from pycompiler.debug.describe import Data
from pycompiler.ir.guards import Guard

# Modules whose objects stand between an entry and its plans.
BETWEEN = (
    "pycompiler.autograd.",
    "pycompiler.pipeline.verified",
    "pycompiler.pipeline.with_errors",
    "pycompiler.debug.after",
)


def held(function: CompiledFunction, guards: tuple[Guard, ...]) -> Data:
    found: Data = {"scratch": 0, "constants": 0, "library": 0}
    plans = [plan for entry in function.entries if entry.guards is guards for plan in plans_of(entry.target)]
    for plan in plans:
        found["scratch"] += plan.arena_bytes
        found["constants"] += sum(t.numel() * t.itemsize for t in plan.plan.constants.values())
    libraries = {plan.plan.library for plan in plans if plan.plan.library}
    found["library"] = sum(os.path.getsize(library) for library in libraries if os.path.exists(library))
    return found


def plans_of(target: Any) -> list[Any]:
    """The native plans that a call of `target` may run, each once."""
    seen: dict[int, Any] = {}
    waiting = [target]
    while waiting:
        value = waiting.pop()
        if id(value) not in seen:
            seen[id(value)] = value
            waiting.extend(_leads_to(value))
    return [value for value in seen.values() if _is(value, _native.Plan)]


def _leads_to(value: Any) -> Iterable[Any]:
    """What a callable between an entry and its plans keeps.  Other compiled callables have entries of their own."""
    if _is(value, types.FunctionType):
        cells = map(_content, value.__closure__ or ())
        own = () if "__spec__" in value.__globals__ else value.__globals__.values()  # generated: no module's
        return *cells, *own, *value.__code__.co_consts, *(value.__defaults__ or ())
    if _is(value, types.BuiltinMethodType):  # `apply` of a Function
        of = value.__self__
        return [*vars(of).values()] if isinstance(of, type) and issubclass(of, torch.autograd.Function) else []
    if _is(value, (staticmethod, types.MethodType)):
        return value.__func__, getattr(value, "__self__", None)
    if _is(value, functools.partial):
        return value.func, *value.args
    if _is(value, _native.BackendCall):
        return [value.target]
    if type(value) in (list, tuple):
        return value  # type: ignore[no-any-return]
    if type(value) is dict:
        return value.values()
    if type(value).__module__.startswith(BETWEEN):
        return getattr(value, "__dict__", {}).values()
    return ()


def _is(value: Any, cls: Any) -> bool:
    """By its type alone: an object of the program's may say otherwise, and warn."""
    return issubclass(type(value), cls)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None
