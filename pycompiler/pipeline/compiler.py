"""A frame to an entry of the engine: capture, then a backend.

    frame → capture → graph → backend (autograd → `graphs.compile_aten`) → plan → entry

The engine calls a `FrameCompiler` on a miss.
"""

from __future__ import annotations

import os
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from pycompiler import _native, backends, background, config, logs
from pycompiler._native import CompiledFunction, Entry
from pycompiler.capture import skip
from pycompiler.capture.breaks import BreakRecord, EagerOnce, NotCaptured, SkipFrame
from pycompiler.capture.bytecode.frames import resumes_in_loop
from pycompiler.capture.frame import Captured, capture_frame
from pycompiler.capture.recipe import Recipe, weakly
from pycompiler.capture.sizes import Policy
from pycompiler.errors import BackendError, BadBackendResult, InternalError, Unsupported, UserError
from pycompiler.ir import choices, own_builtins, peer, titles, watch
from pycompiler.ir.guards import (
    Guard,
    as_usual,
    function_modes,
    global_state,
    in_kernel,
    levels,
    modes_off,
    skips_next,
    without_saved_tensor_hooks,
)
from pycompiler.ir.interrupts import deferred
from pycompiler.ir.source import Scope
from pycompiler.ir.symbols import Specialise
from pycompiler.ir.watch import phase
from pycompiler.logs import follow_torch, stage, step
from pycompiler.pipeline import stance
from pycompiler.pipeline.assemble import assemble
from pycompiler.pipeline.call_backend import compile_graph, example_inputs
from pycompiler.pipeline.guards import UsersError, filtered, once, size_guards, specialise
from pycompiler.pipeline.interface import Family
from pycompiler.pipeline.records import Made, recipe_of
from pycompiler.pipeline.reports import (
    FailureRecord,
    as_error,
    located,
    log_breaks,
    record,
    report_breaks,
    report_recompile,
    report_symbols,
    wont_convert,
)
from pycompiler.pipeline.surroundings import (
    RESTING_COLLECTOR,
    ThreadState,
    modes_as_before,
    untraced,
    without_dispatch,
)
from pycompiler.progress import compiling

log = stage("dynamo")

# A part of a frame that goes on inside of a loop has as many entries. If these do not fit, what they assume differs from pass
# to pass (a number that is an index, the length of a list that grows); then one entry without guards runs it as written.
PASSES = 5


def place_of(code: types.CodeType) -> str:
    code = titles.shown(code)
    return f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def name_of(code: types.CodeType) -> str:
    """The name of a function; that of what runs behind a break says so, which no traceback does."""
    return titles.shown(code).co_qualname.rpartition(".")[2]


def eager_once(function: types.FunctionType) -> Entry:
    """What runs this call eagerly and is no entry of the next: it has ended."""
    entry = _native.Entry([], function, "eager")
    entry.end()
    return entry


class FrameCompiler:
    """Compiles the frames of one function; the engine calls it on a miss: capture, compile of the graph, assembly."""

    def __init__(self, family: Family) -> None:
        self.family = family

    # engine callback ------------------------------------------------------------------------------------------
    def __call__(self, fn: CompiledFunction, values: dict[str, Any], reasons: list[tuple[int, int]]) -> Entry | None:
        """The entry for this call, or None: run the function eagerly from now on."""
        follow_torch()
        if name := own_builtins.replaced():
            return self.without(name, fn.fn)
        with titles.titled(self.family.title_of(fn, values)):
            return self.entry_for(fn, values, reasons)

    def entry_for(self, fn: CompiledFunction, values: dict[str, Any], reasons: list[tuple[int, int]]) -> Entry | None:
        function: types.FunctionType = fn.fn
        code, namespace = function.__code__, function.__globals__
        if (under := bool(levels()) or in_kernel()) and not self.fits(code):
            log.info(
                "this call of %s runs eagerly: under a transform, or in the kernel of an operator", code.co_qualname
            )
            return eager_once(function)
        if reasons:
            with deferred(), modes_off():
                report_recompile(self.family, fn, values, namespace, reasons)
        if stance.current().waits and not reasons and code not in self.family.waited:
            self.family.waited.add(code)
            return eager_once(function)
        if without_dispatch():
            log.info("this call of %s runs eagerly: within torch, where tensors of Python cannot be", code.co_qualname)
            return eager_once(function)
        if (
            skips_next()
        ):  # whoever asks `__torch_function__` next, a compile or the function, is told that nobody answers
            log.info("this call of %s runs eagerly: torch skips a call of __torch_function__ in it", code.co_qualname)
            return eager_once(function)
        if config.debug_function and name_of(code) != config.debug_function:
            return self.family.original_entry(function)
        if not choices.taken("frame", lambda: place_of(code)):
            return self.family.original_entry(function)
        if len(fn.entries) >= PASSES and resumes_in_loop(code):
            log.info("%s differs in each pass of its loop: it runs as written, what it calls is compiled", fn.name)
            return self.family.original_entry(function)
        with untraced(), deferred(), modes_off(), peer.engine_as_it_is():
            try:
                entry = self.compile_or_explain(function, values) if not under else self.under(function, values)
            except EagerOnce as e:
                log.info("this call of %s runs eagerly: %s", code.co_qualname, e)
                return eager_once(function)
            if name := own_builtins.replaced():
                return self.without(name, function)
            if entry is not None and (under or function_modes()):
                with as_usual():  # of each dtype the engine makes a tensor once, which no mode should see
                    _native.GuardTree(entry.guards, list(values))
            return eager_once(function) if entry is None and under else entry

    def without(self, name: str, function: types.FunctionType) -> Entry:
        """The call runs eagerly: torch's Python, which a compile runs, would call what the program put into `builtins`."""
        why = f"{name} is replaced, which torch calls as well while it compiles"
        if self.family.fullgraph:
            raise Unsupported("skipped-frame", why, "put it back for the first call, or remove fullgraph=True")
        log.info("this call of %s runs eagerly: %s", function.__code__.co_qualname, why)
        return eager_once(function)

    def fits(self, code: types.CodeType) -> bool:
        """Whether there may be a graph of a frame under transforms, or in the kernel of an operator."""
        compiles = self.family.ours and self.family.backend is not backends.eager
        if code in self.family.unwrapped or levels() and (compiles or in_kernel()):
            return False
        # What the hook meets there is the handler of a class or a mode, called for each operator.
        return not in_kernel() or not (code in self.family.hooked or torch._C._is_any_autocast_enabled())

    def under(self, function: types.FunctionType, values: dict[str, Any]) -> Entry | None:
        """`compile_or_explain` under transforms, or in a kernel; what has no graph there is not tried again."""
        try:
            entry = self.compile_or_explain(function, values)
        except Unsupported as e:
            log.info("%s runs eagerly there: %s", function.__code__.co_qualname, e)
            entry = None
        if entry is None:
            self.family.unwrapped.add(function.__code__)
        return entry

    def compile_or_explain(self, function: types.FunctionType, values: dict[str, Any]) -> Entry | None:
        """The entry; None with a log line, or an exception, where there is none."""
        code = function.__code__
        try:
            return self.compile_and_tell(function, values)
        except SkipFrame as e:
            if self.family.fullgraph:
                raise Unsupported("skipped-frame", str(e), "remove fullgraph=True, or what the reason names") from None
            log.info("%s runs eagerly: %s", code.co_qualname, e)
            log_breaks("frame %s runs eagerly: %s", code.co_qualname, e)
            return None
        except UsersError as e:
            error = cause = e.error
        except (Unsupported, UserError, EagerOnce):
            raise
        except Exception as e:
            if name := own_builtins.replaced():  # meanwhile; `logging` would call it, too
                raise EagerOnce(f"{name} was replaced while it was compiled: {e}") from None
            cause = e
            if isinstance(e, RecursionError) and not self.family.fullgraph:
                # the program's calls have used the stack up
                log.info("%s runs eagerly: %s", code.co_qualname, e)
                return None
            error = located(e, code)
            if (config.raise_internal_errors or self.family.fullgraph) and not config.suppress_errors:
                if error is e:
                    raise  # its cause stays
                raise error from e
        try:
            self.failed(code, error, cause)
        finally:
            del error, cause  # which hold this frame
        return None

    def compile_and_tell(self, function: types.FunctionType, values: dict[str, Any]) -> Entry | None:
        """`compile_frame`; whoever looks is told of what fails."""
        try:
            return self.compile_frame(function, values)
        except EagerOnce:
            raise
        except (Exception, UsersError) as e:
            if not isinstance(e, SkipFrame) or self.family.fullgraph:
                cause = e.error if isinstance(e, UsersError) else e
                watch.artefact("failure", FailureRecord(self.family, function, values, cause))
                del cause  # which holds this frame
            raise

    def compile_frame(self, function: types.FunctionType, values: dict[str, Any]) -> Entry | None:
        code = function.__code__
        if skip.has_other_builtins(function):
            raise SkipFrame(f"a function {skip.OTHER_BUILTINS}")
        start = time.perf_counter()
        self.family.begun(code)
        with compiling(place_of(code)), phase("compile"), RESTING_COLLECTOR, without_saved_tensor_hooks(), \
             modes_as_before():  # fmt: skip
            shown = titles.shown(code)
            step(1, "torchdynamo start tracing %s (%s:%d)", name_of(code), shown.co_filename, shown.co_firstlineno)
            policy, scope = self.family.sizes_of(code), Scope(values, function.__globals__)
            graph: Callable[..., Any] | None = None
            while True:
                captured = self.capture(function, values, policy)
                report_symbols(code, policy.told())
                with phase("guards"):
                    guards = filtered(self.family, captured.recipe.guards, scope)
                if captured.graph is None:
                    break
                examples = example_inputs(captured, self.family.ours or bool(levels()) or in_kernel(), scope)
                if (
                    self.family.background
                    and not (function_modes() or levels() or in_kernel())
                    and choices.taken("background", lambda: place_of(code))
                ):
                    return self.compile_later(function, captured, guards, examples)
                try:
                    with as_usual():
                        graph = compile_graph(self.family, captured.graph, examples)
                    break
                except Specialise as e:
                    specialise(code, policy, captured, e)
        step(1, "torchdynamo done tracing %s", name_of(code))
        record(self.family, code, captured, time.perf_counter() - start)
        return self.assemble(function, captured, guards, graph)

    def capture(self, function: types.FunctionType, values: dict[str, Any], policy: Policy) -> Captured:
        """The capture of a call; its breaks are told, or raised where they may not be."""
        fullgraph, unused = self.family.fullgraph, not self.family.ours
        try:
            with phase("capture"):
                captured = capture_frame(
                    function.__code__, function.__globals__, values, fullgraph=fullgraph, policy=policy, unused=unused
                )
        except NotCaptured as e:
            report_breaks(e.breaks)
            raise
        if isinstance(captured, BreakRecord):
            raise as_error(captured)
        report_breaks(captured.breaks)
        return captured

    def compile_later(
        self, function: types.FunctionType, captured: Captured, guards: list[Guard], examples: list[torch.Tensor]
    ) -> Entry:
        """An entry that runs the original code until a worker has compiled the graph."""
        waits = "its graph is not compiled yet (wait_for_compiles), or could not be"
        recipe = weakly(Recipe(guards, process=(waits,)))
        entry = _native.Entry(recipe.guards, function, "eager")
        self.family.made[entry] = Made(recipe)
        title = titles.current()
        name = place_of(function.__code__)
        start = time.perf_counter()
        watched = weakref.ref(entry)
        wanted, state = global_state(), ThreadState()

        def job() -> None:
            if watched() is None or captured.graph is None:  # nobody can call it any more
                return
            with titles.titled(title), state, compiling(name), RESTING_COLLECTOR, modes_as_before():
                if global_state() != wanted:
                    raise BackendError("torch's global state is not what it was when the call was captured")
                try:
                    graph = compile_graph(self.family, captured.graph, examples)
                except UsersError as e:
                    raise e.error from None
                except Specialise as e:  # the next call that fits begins anew
                    specialise(function.__code__, self.family.sizes_of(function.__code__), captured, e)
                    if (waiting := watched()) is not None:
                        waiting.end()
                    return
                if global_state() != wanted or own_builtins.replaced():
                    raise BackendError("torch's global state, or a builtin, changed during the compile")
            examples.clear()
            with titles.titled(title):
                record(self.family, function.__code__, captured, time.perf_counter() - start)
                made, waiting = self.assemble(function, captured, guards, graph), watched()
            if made is not None and waiting is not None:
                waiting.become(made)
                self.family.made[waiting] = self.family.made[made]

        background.submit(name, job)
        return entry

    def failed(self, code: types.CodeType, error: Exception, cause: Exception) -> None:
        """The frame runs eagerly after an error, which is said once; a user's own errors reach the user."""
        users = not isinstance(error, InternalError) or isinstance(error, BadBackendResult)
        if users and not config.suppress_errors:
            try:
                raise error
            finally:
                del error, cause  # which hold this frame
        log.error("%s", wont_convert(code, error, cause))

    def assemble(
        self, function: types.FunctionType, captured: Captured, guards: list[Guard], graph: Callable[..., Any] | None
    ) -> Entry | None:
        """The entry of a captured frame whose graph was compiled; None where the original code does as well."""
        with phase("guards"):
            guards = [*guards, *size_guards(captured)]
        if not choices.taken("guards", lambda: f"guards of {place_of(function.__code__)}"):
            guards = [*guards, once()]
        recipe = recipe_of(captured, guards)
        if recipe.template is None and recipe.code is None and function.__code__ in self.family.hooked:
            return None  # nothing to gain from compiling it
        with phase("assemble"):
            return assemble(self.family, function, Made(recipe, graph))


peer.leave_alone(FrameCompiler.__call__.__code__)
peer.leave_alone(FrameCompiler.entry_for.__code__)
logs.tags.append(titles.tag)
