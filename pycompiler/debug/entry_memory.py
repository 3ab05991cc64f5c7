"""Memory of an entry of a compiled callable, in bytes.

In: a compiled function and the guards of one of its entries.  Out: scratch memory of a call, constants and kernel code of
the native plans that the entry reaches: inference or forward, and the backwards compiled so far.
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
from pycompiler.autograd.runtime import functions_of
from pycompiler.debug.describe import Data
from pycompiler.ir.guards import Guard

# Modules whose objects lie between an entry and its plans.
INTERMEDIATE_MODULES = (
    "pycompiler.autograd.",
    "pycompiler.ir.autograd_node",
    "pycompiler.pipeline.verification",
    "pycompiler.pipeline.graph_errors",
    "pycompiler.debug.repro_after",
)


def memory_of_entry(function: CompiledFunction, guards: tuple[Guard, ...]) -> Data:
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
    """The objects held by a callable between an entry and its plans.  Other compiled callables have entries of their own."""
    if _is(value, types.FunctionType):
        cells = map(_content, value.__closure__ or ())
        # generated code: not the globals of a module
        own = () if "__spec__" in value.__globals__ else value.__globals__.values()
        return *cells, *own, *value.__code__.co_consts, *(value.__defaults__ or ())
    if _is(value, types.BuiltinMethodType):  # `apply` of an autograd Function
        of = value.__self__
        return functions_of(of) if isinstance(of, type) and issubclass(of, torch.autograd.Function) else []
    if _is(value, (staticmethod, types.MethodType)):
        return value.__func__, getattr(value, "__self__", None)
    if _is(value, functools.partial):
        return value.func, *value.args
    if _is(value, (_native.NodeForward, _native.NodeBackward, _native.NodeGradients)):
        return [value.recipe]
    if _is(value, _native.BackendCall):
        return [value.target]
    if type(value) in (list, tuple):
        return value  # type: ignore[no-any-return]
    if type(value) is dict:
        return value.values()
    if type(value).__module__.startswith(INTERMEDIATE_MODULES):
        return getattr(value, "__dict__", {}).values()
    return ()


def _is(value: Any, cls: Any) -> bool:
    """Type check by the type alone: an object of the program may define `__class__`, and warn."""
    return issubclass(type(value), cls)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None
