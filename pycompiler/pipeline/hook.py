"""Functions that run during a graph break: which get a cache of their own, and which run as they are."""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pycompiler import _native
from pycompiler.capture.bytecode.locations import encode_locations
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.ir.persistent_names import code_digest
from pycompiler.pipeline.compile_environment import traced_by_python
from pycompiler.pipeline.interface import Family
from pycompiler.torch_compat import torch_compile
from pycompiler.torch_compat.warning_listener import line_of_call


class FrameLookup:
    """The frame hook's lookup: called by the engine, once per code object, for functions that run during a family's
    graph break.

    A user's function that could not be inlined gets a cache of its own in the family.  Library code runs as it is.
    """

    def __init__(self, family: weakref.ref[Family]) -> None:
        self.family = family

    def __call__(self, code: types.CodeType, function: types.FunctionType) -> _native.CompiledFunction | None:
        family = self.family()
        if family is None or family.fullgraph or family.mode != "compile":
            return None
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            return None  # checkpointing runs the function again, outside of the hook, and must save as many tensors
        if not isinstance(function, types.FunctionType) or traced_by_python():
            return None
        found = family.hooked.get(code)
        if found is None:
            disabled = disabled_by_torch(function) or compiling_by_torch(function)
            if disabled is not None:
                found = _native.CompiledFunction(function, disabled, name=function.__qualname__)
            elif inlining_rules.why_not_hooked(function) is None:
                found = family.compiled(without_state(function))
                if family.shelf and (stored := family.shelf.pop(code_digest(code), None)) is not None:
                    stored(found)
            else:
                return None
            family.hooked[code] = found
        return found


def eagerly(target: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call with the frame hook off, so that no function below is compiled unless it is a compiled callable."""
    _native.pause_hook()
    try:
        return target(*args, **kwargs)
    finally:
        _native.resume_hook()


def leave_eager(code: types.CodeType) -> None:
    """Never compile frames of `code` that the frame hook meets; functions that they call may be compiled."""
    inlining_rules.EAGER_CODES.add(code)


def disabled_by_torch(function: types.FunctionType) -> Callable[..., Any] | None:
    """If `function` is a result of torch.compiler.disable: a compiler whose only entry runs the original eagerly."""
    if not torch_compile.is_disabled_call(function.__code__):
        return None
    recursive = torch_compile.mark(function, torch_compile.RECURSIVE) is not False
    pause, resume = _native.pause_hook, _native.resume_hook

    def begin(called: Any) -> None:
        if recursive:
            pause()
        elif isinstance(called, types.FunctionType):
            leave_eager(called.__code__)

    def end() -> None:
        if recursive:
            resume()

    def run(args: tuple[Any, ...], kwargs: dict[str, Any], fn: types.CellType, self: Any) -> Any:
        begin(fn.cell_contents)
        try:
            return fn.cell_contents(*args, **kwargs)
        finally:
            end()

    def without_self(args: tuple[Any, ...], kwargs: dict[str, Any], fn: types.CellType) -> Any:
        begin(fn.cell_contents)
        try:
            return fn.cell_contents(*args, **kwargs)
        finally:
            end()

    target = in_place_of(function, run if "self" in function.__code__.co_freevars else without_self)
    torch_compile.skip_frames_of(target.__code__)
    return lambda *call: _native.Entry([], target, "function")


def in_place_of(function: types.FunctionType, target: Any) -> types.FunctionType:
    """`target` with frames at the line where `function` calls its wrapped function: warnings and tracebacks show that
    line."""
    code, line = function.__code__, line_of_call(function.__code__)
    made = target.__code__.replace(
        co_filename=code.co_filename, co_name=code.co_name, co_qualname=code.co_qualname, co_firstlineno=line,
        co_linetable=encode_locations([(len(target.__code__.co_code) // 2, (line, line, None, None))], line),
    )  # fmt: skip
    return types.FunctionType(made, function.__globals__, code.co_name, None, target.__closure__)


def compiling_by_torch(function: types.FunctionType) -> Callable[..., Any] | None:
    """If `function` is a compile of torch.compile: a compiler whose only entry runs it with the frame hook off."""
    code, namespace = function.__code__, function.__globals__
    if not torch_compile.is_compile_call(code):
        return None

    def target(args: tuple[Any, ...], kwargs: dict[str, Any], fn: types.CellType) -> Any:
        return eagerly(types.FunctionType(code, namespace, code.co_name, None, (fn,)), args, kwargs)

    torch_compile.skip_frames_of(target.__code__)
    return lambda *call: _native.Entry([], target, "function")


def without_state(function: types.FunctionType) -> types.FunctionType:
    """The function with empty cells and no defaults.

    For the hook's calls the engine uses the cells and defaults of the frame's own function.  The first function's
    would stay alive with its code.
    """
    made = with_empty_cells(function.__code__, function.__globals__)
    made.__name__, made.__qualname__ = function.__name__, function.__qualname__
    return made


def with_empty_cells(code: types.CodeType, namespace: dict[str, Any]) -> types.FunctionType:
    """The function with empty cells: the engine passes the cells of each call, and this call's cells would stay
    alive."""
    cells = tuple(types.CellType() for _ in code.co_freevars)
    return types.FunctionType(code, namespace, code.co_name, None, cells or None)


def original(code: types.CodeType) -> types.CodeType:
    """`code` as a function of its frame's locals; the hook does not compile it, but may compile functions that it
    calls."""
    stars = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS
    made = code.replace(
        co_argcount=code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & star) for star in stars),
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~sum(stars),
        co_consts=(*code.co_consts, object()),  # makes it unequal to any other code
    )
    leave_eager(made)
    return made


torch_compile.skip_frames_of(FrameLookup.__call__.__code__)
