"""The frame compiler: a frame → an entry of the engine, by a capture and a backend.

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
from pycompiler.capture.breaks import BreakRecord, EagerOnce, NotCaptured, SkipFrame
from pycompiler.capture.bytecode.frames import resumes_in_loop
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.capture.interpreter.frame import Captured, capture_frame
from pycompiler.capture.recipe.recipe import Recipe, weakly
from pycompiler.capture.recording.input_symbols import SymbolPolicy
from pycompiler.errors import BackendError, BadBackendResult, InternalError, PyCompilerError, Unsupported, UserError
from pycompiler.ir import choices, compile_names, phases
from pycompiler.ir.guards import (
    Guard,
    function_modes,
    function_modes_off,
    global_state,
    in_kernel,
    outside_transforms,
    skips_next,
    transform_levels,
    without_saved_tensor_hooks,
)
from pycompiler.ir.phases import phase
from pycompiler.ir.source import Scope
from pycompiler.logs import follow_torch, stage, step
from pycompiler.pipeline import stance
from pycompiler.pipeline.assemble import assemble
from pycompiler.pipeline.call_backend import compile_graph, example_inputs
from pycompiler.pipeline.compile_environment import (
    RESTING_COLLECTOR,
    ThreadState,
    modes_as_before,
    untraced,
    without_dispatch,
)
from pycompiler.pipeline.guards import UsersError, filtered, once, size_guards, specialise
from pycompiler.pipeline.interface import Family
from pycompiler.pipeline.records import EagerRecord, EntryParts, recipe_of
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
from pycompiler.progress import compiling
from pycompiler.symbolic.symbols import Specialise
from pycompiler.torch_compat import program_builtins, torch_compile
from pycompiler.torch_compat.ddp_buckets import BUCKETS, bucket_limits
from pycompiler.torch_compat.interrupts import deferred

log = stage("dynamo")

# The most entries of a resume function that continues inside a loop. With more entries, their assumptions differ from
# pass to pass (a number that is an index, the length of a growing list). Then one entry without guards runs the
# function as written.
PASSES = 5


def place_of(code: types.CodeType) -> str:
    code = compile_names.program_code(code)
    return f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def name_of(code: types.CodeType) -> str:
    """The name of a function; for a resume function it names the break, unlike in tracebacks."""
    return compile_names.program_code(code).co_qualname.rpartition(".")[2]


def eager_once(function: types.FunctionType) -> Entry:
    """An entry for this call only: it runs the function eagerly and has ended for later calls."""
    entry = _native.Entry([], function, "eager")
    entry.end()
    return entry


class FrameCompiler:
    """The compiler of one function's frames; the engine calls it on a miss: capture, compile of the graph, assembly."""

    def __init__(self, family: Family) -> None:
        self.family = family

    # engine callback ------------------------------------------------------------------------------------------
    def __call__(self, fn: CompiledFunction, values: dict[str, Any], reasons: list[tuple[int, int]]) -> Entry | None:
        """The entry for this call, or None: run the function eagerly from now on."""
        follow_torch()
        if name := program_builtins.replaced():
            return self.without(name, fn.fn)
        with compile_names.named_compile(self.family.title_of(fn, values)):
            try:
                return self.entry_for(fn, values, reasons)
            except PyCompilerError as error:
                if not isinstance(error, InternalError):  # whose message has the name
                    compile_names.add_name(error)
                raise

    def entry_for(self, fn: CompiledFunction, values: dict[str, Any], reasons: list[tuple[int, int]]) -> Entry | None:
        function: types.FunctionType = fn.fn
        code, namespace = function.__code__, function.__globals__
        if (under := bool(transform_levels()) or in_kernel()) and not self.fits(code):
            log.info(
                "this call of %s runs eagerly: under a transform, or in the kernel of an operator", code.co_qualname
            )
            return eager_once(function)
        if reasons:
            with deferred(), function_modes_off():
                report_recompile(self.family, fn, values, namespace, reasons)
        if stance.current().waits and not reasons and code not in self.family.waited:
            self.family.waited.add(code)
            return eager_once(function)
        if without_dispatch():
            log.info(
                "this call of %s runs eagerly: torch has switched off the dispatch to Python around the call",
                code.co_qualname,
            )
            return eager_once(function)
        if skips_next():  # the next query of `__torch_function__`, from a compile or from the function, gets no answer
            log.info("this call of %s runs eagerly: torch skips its next query of __torch_function__", code.co_qualname)
            return eager_once(function)
        if config.debug_function and name_of(code) != config.debug_function:
            return self.family.original_entry(function)
        if not choices.step_enabled("frame", lambda: place_of(code)):
            return self.family.original_entry(function)
        if len(fn.entries) >= PASSES and resumes_in_loop(code):
            log.info(
                "%s differs in each pass of its loop: its code runs as written, and functions that it calls are compiled",
                fn.name,
            )
            return self.family.original_entry(function)
        with untraced(), deferred(), function_modes_off(), torch_compile.compiled_autograd_off():
            try:
                entry = self.compile_or_explain(function, values) if not under else self.under(function, values)
            except EagerOnce as e:
                log.info("this call of %s runs eagerly: %s", code.co_qualname, e)
                return eager_once(function)
            if name := program_builtins.replaced():
                return self.without(name, function)
            if entry is not None and (under or function_modes()):
                with outside_transforms():  # the engine creates one tensor per dtype, which no mode should see
                    _native.GuardTree(entry.guards, list(values))
            return eager_once(function) if entry is None and under else entry

    def without(self, name: str, function: types.FunctionType) -> Entry:
        """An entry that runs this call eagerly: torch's Python code, used by a compile, would call the object put into
        `builtins`."""
        why = f"the program has replaced {name}, which torch also calls during a compile"
        if self.family.fullgraph:
            raise Unsupported("skipped-frame", why, "restore the builtin for the first call, or remove fullgraph=True")
        log.info("this call of %s runs eagerly: %s", function.__code__.co_qualname, why)
        return eager_once(function)

    def fits(self, code: types.CodeType) -> bool:
        """Whether a frame under transforms, or in the kernel of an operator, may have a graph."""
        compiles = self.family.ours and self.family.backend is not backends.eager
        if code in self.family.unwrapped or transform_levels() and (compiles or in_kernel()):
            return False
        # There the hook meets the handler of a class or a mode, called for each operator.
        return not in_kernel() or not (code in self.family.hooked or torch._C._is_any_autocast_enabled())

    def under(self, function: types.FunctionType, values: dict[str, Any]) -> Entry | None:
        """`compile_or_explain` under transforms, or in a kernel; a function without a graph there is not tried
        again."""
        try:
            entry = self.compile_or_explain(function, values)
        except Unsupported as e:
            log.info("%s runs eagerly under a transform or in a kernel: %s", function.__code__.co_qualname, e)
            entry = None
        if entry is None:
            self.family.unwrapped.add(function.__code__)
        return entry

    def compile_or_explain(self, function: types.FunctionType, values: dict[str, Any]) -> Entry | None:
        """The entry; without one, None with a log line, or an exception."""
        code = function.__code__
        try:
            return self.compile_and_tell(function, values)
        except SkipFrame as e:
            if self.family.fullgraph:
                raise Unsupported(
                    "skipped-frame", str(e), "remove the cause named in the reason, or remove fullgraph=True"
                ) from None
            log.info("%s runs eagerly: %s", code.co_qualname, e)
            log_breaks("frame %s runs eagerly: %s", code.co_qualname, e)
            self.runs_eagerly(code, "skipped", str(e))
            return None
        except UsersError as e:
            error = cause = e.error
        except (Unsupported, UserError, EagerOnce):
            raise
        except Exception as e:
            if name := program_builtins.replaced():  # `logging` would call the replaced builtin, too
                raise EagerOnce(f"{name} was replaced while it was compiled: {e}") from None
            cause = e
            if isinstance(e, RecursionError) and not self.family.fullgraph:
                # the program's calls have used up the stack
                log.info("%s runs eagerly: %s", code.co_qualname, e)
                return None
            error = located(e, code)
            if (config.raise_internal_errors or self.family.fullgraph) and not config.suppress_errors:
                if error is e:
                    raise  # its cause stays
                raise error from e
        try:
            self.failed(code, error, cause)
            self.runs_eagerly(code, "failed", str(error))
        finally:
            del error, cause  # these hold this frame
        return None

    def runs_eagerly(self, code: types.CodeType, kind: str, reason: str) -> None:
        phases.artefact("eager", EagerRecord(compile_names.program_code(code), kind, reason))

    def compile_and_tell(self, function: types.FunctionType, values: dict[str, Any]) -> Entry | None:
        """`compile_frame`, with a failure record for listeners."""
        try:
            return self.compile_frame(function, values)
        except EagerOnce:
            raise
        except (Exception, UsersError) as e:
            if not isinstance(e, SkipFrame) or self.family.fullgraph:
                cause = e.error if isinstance(e, UsersError) else e
                phases.artefact("failure", FailureRecord(self.family, function, values, cause))
                del cause  # it holds this frame
            raise

    def compile_frame(self, function: types.FunctionType, values: dict[str, Any]) -> Entry | None:
        code = function.__code__
        if inlining_rules.has_other_builtins(function):
            raise SkipFrame(f"a function {inlining_rules.OTHER_BUILTINS}")
        start = time.perf_counter()
        self.family.begun(code)
        with compiling(place_of(code)), phase("compile"), RESTING_COLLECTOR, without_saved_tensor_hooks(), \
             modes_as_before():  # fmt: skip
            shown = compile_names.program_code(code)
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
                captured.graph.meta[BUCKETS] = bucket_limits()
                examples = example_inputs(captured, self.family.ours or bool(transform_levels()) or in_kernel(), scope)
                if (
                    self.family.background
                    and not (function_modes() or transform_levels() or in_kernel())
                    and choices.step_enabled("background", lambda: place_of(code))
                ):
                    return self.compile_later(function, captured, guards, examples)
                try:
                    with outside_transforms():
                        graph = compile_graph(self.family, captured.graph, examples)
                    break
                except Specialise as e:
                    specialise(code, policy, captured, e)
        step(1, "torchdynamo done tracing %s", name_of(code))
        record(self.family, code, captured, time.perf_counter() - start)
        return self.assemble(function, captured, guards, graph)

    def capture(self, function: types.FunctionType, values: dict[str, Any], policy: SymbolPolicy) -> Captured:
        """The capture of a call; its breaks are reported, or raised if breaks are errors."""
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
        waits = "the compile of its graph has not ended yet (wait_for_compiles), or has failed"
        recipe = weakly(Recipe(guards, process=(waits,)))
        entry = _native.Entry(recipe.guards, function, "eager", title=compile_names.title())
        self.family.made[entry] = EntryParts(recipe)
        title = compile_names.current()
        name = place_of(function.__code__)
        start = time.perf_counter()
        watched = weakref.ref(entry)
        wanted, state = global_state(), ThreadState()

        def job() -> None:
            if watched() is None or captured.graph is None:  # no call can use it any more
                return
            with compile_names.named_compile(title), state, compiling(name), RESTING_COLLECTOR, modes_as_before():
                if global_state() != wanted:
                    raise BackendError("torch's global state has changed since the call was captured")
                try:
                    graph = compile_graph(self.family, captured.graph, examples)
                except UsersError as e:
                    raise e.error from None
                except Specialise as e:  # the next matching call starts again
                    specialise(function.__code__, self.family.sizes_of(function.__code__), captured, e)
                    if (waiting := watched()) is not None:
                        waiting.end()
                    return
                if global_state() != wanted or program_builtins.replaced():
                    raise BackendError("torch's global state, or a builtin, has changed during the compile")
            examples.clear()
            with compile_names.named_compile(title):
                record(self.family, function.__code__, captured, time.perf_counter() - start)
                made, waiting = self.assemble(function, captured, guards, graph), watched()
            if made is not None and waiting is not None:
                waiting.become(made)
                self.family.made[waiting] = self.family.made[made]

        background.submit(name, job)
        return entry

    def failed(self, code: types.CodeType, error: Exception, cause: Exception) -> None:
        """Log once that the frame runs eagerly after an error; a user's own errors are raised."""
        users = not isinstance(error, InternalError) or isinstance(error, BadBackendResult)
        if users and not config.suppress_errors:
            try:
                raise error
            finally:
                del error, cause  # these hold this frame
        log.error("%s", wont_convert(code, error, cause))

    def assemble(
        self, function: types.FunctionType, captured: Captured, guards: list[Guard], graph: Callable[..., Any] | None
    ) -> Entry | None:
        """The entry of a captured frame whose graph was compiled; None if the original code does as well."""
        with phase("guards"):
            guards = [*guards, *size_guards(captured)]
        if not choices.step_enabled("guards", lambda: f"guards of {place_of(function.__code__)}"):
            guards = [*guards, once()]
        recipe = recipe_of(captured, guards)
        if recipe.template is None and recipe.code is None and function.__code__ in self.family.hooked:
            return None  # compiling it gains nothing
        with phase("assemble"):
            return assemble(self.family, function, EntryParts(recipe, graph))


torch_compile.skip_frames_of(FrameCompiler.__call__.__code__)
torch_compile.skip_frames_of(FrameCompiler.entry_for.__code__)
logs.tags.append(compile_names.log_prefix)
