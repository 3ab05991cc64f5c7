"""The stages in order: the only file that imports more than one of them.

    frame → capture → graph → backend (autograd → lowering → scheduling → codegen → runtime) → plan → entry

`FrameCompiler` belongs to one compiled callable; `compile_frame` is what the engine calls on a miss.
`compile_aten` is the whole compiler for one functional ATen graph.
"""

from __future__ import annotations

import logging
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from pycompiler import _native, autograd, backends, config, lowering, scheduling
from pycompiler.capture.breaks import SkipFrame
from pycompiler.capture.frame import BreakRecord, Captured, capture_frame
from pycompiler.capture.values.tensor import Tensor
from pycompiler.codegen import cpp
from pycompiler.errors import (
    BackendError,
    InternalError,
    PyCompilerError,
    RecompileError,
    RecompileLimitExceeded,
    Unsupported,
)
from pycompiler.ir.fake import fake_of, new_fake_mode
from pycompiler.ir.guards import Guard, Scope, explain
from pycompiler.logs import artifact, stage, step
from pycompiler.runtime import build
from pycompiler.runtime.plan_builder import make_plan
from pycompiler.runtime.toolchain import NoCompiler

log = stage("dynamo")
log_graph = artifact("graph_code")
log_guards = artifact("guards")
log_breaks = artifact("graph_breaks")
log_recompiles = artifact("recompiles")
log_bytecode = artifact("bytecode")
log_aot = artifact("aot_graphs")
log_output = artifact("output_code")

_times: dict[str, list[float]] = {}
_times_lock = threading.Lock()


class timed:
    """Context manager that adds the seconds of a phase to `compile_times`."""

    def __init__(self, phase: str) -> None:
        self.phase = phase

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        with _times_lock:
            _times.setdefault(self.phase, []).append(time.perf_counter() - self.start)


def compile_times(repr: str = "str", aggregate: bool = False) -> str | tuple[list[str], list[list[str]]]:
    """Seconds per compile phase: a text (`repr="str"`) or headers and rows (`repr="csv"`); summed with `aggregate`."""
    with _times_lock:
        rows = {k: [sum(v)] if aggregate else list(v) for k, v in _times.items()}
    if repr == "csv":
        return list(rows), [[f"{s:.6f}" for s in v] for v in rows.values()]
    width = max(map(len, rows), default=5)
    lines = [f"{k:<{width}}  {', '.join(f'{s:.4f}' for s in v)}" for k, v in rows.items()]
    return "\n".join(["Compile times (seconds):", *lines])


# the native compiler ------------------------------------------------------------------------------------------
def compile_aten(gm: fx.GraphModule, example_inputs: Sequence[Any], name: str = "graph") -> Callable[..., Sequence[Any]]:
    """A functional ATen graph (`meta["val"]` on every node) → the native plan that runs it.

    Without a C++ compiler, or when a stage fails, the graph runs through ATen, with a warning.
    """
    if log_aot.enabled:
        log_aot(f"{name}\n{gm.print_readable(print_output=False)}")
    try:
        with timed("lowering"):
            program = lowering.lower(gm, name=name)
        with timed("scheduling"):
            schedule = scheduling.schedule(program)
        with timed("codegen"):
            source = cpp.generate(schedule)
        with timed("build"):
            library = build.build(source.text, source.symbols, name) if source.symbols else None
        plan = make_plan(schedule, library)
        if log_output.enabled:
            log_output(plan.source)
        return _native.Plan(plan)  # type: ignore[no-any-return,attr-defined]
    except NoCompiler:
        return gm.forward  # type: ignore[no-any-return]
    except Exception as e:
        if not config.suppress_errors and config.verbose:
            raise
        log.warning("graph %s runs through ATen: %s: %s", name, type(e).__name__, e, exc_info=config.verbose)
        STATISTICS["aten_fallbacks"] += 1
        return gm.forward  # type: ignore[no-any-return]


STATISTICS = {"aten_fallbacks": 0, "graphs": 0}


@backends.register_backend(name="native")
def native(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Sequence[Any]]:
    """Autograd, then the compiler for each graph."""
    return _joint(gm, example_inputs, compile_aten)


@backends.register_backend(name="aot_eager")
def aot_eager(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Sequence[Any]]:
    """Autograd without the compiler: the ATen graphs run as they are."""
    return _joint(gm, example_inputs, lambda module, inputs: module.forward)


def _joint(gm: fx.GraphModule, example_inputs: Sequence[Any], compiler: Any) -> Callable[..., Sequence[Any]]:
    partition = "min_cut" if config.partition == "min_cut" else "default"
    try:
        with timed("autograd"):
            return autograd.compile_joint(
                gm,
                example_inputs,
                fw_compiler=compiler,
                bw_compiler=compiler,
                partition=partition,
                activation_memory_budget=config.activation_memory_budget,
            )
    except autograd.AutogradUnsupported as e:
        log.warning("a graph runs eagerly: %s", e)
        STATISTICS["aten_fallbacks"] += 1
        return gm.forward  # type: ignore[no-any-return]


# frames -------------------------------------------------------------------------------------------------------
@dataclass
class GraphRecord:
    """What one capture produced, kept for `explain` and the logs."""

    code: types.CodeType
    graph: fx.GraphModule | None
    guards: list[Guard]
    op_count: int
    broke: BreakRecord | None
    seconds: float


@dataclass
class Family:
    """What the frames of one compiled callable share: backend, flags, resume functions, records."""

    backend: Callable[..., Any]
    backend_name: str
    fullgraph: bool = False
    recompile_limit: int | None = None
    guard_filter: Callable[[Sequence[Any]], Sequence[bool]] | None = None
    listener: Callable[[GraphRecord], None] | None = None
    resumes: dict[types.CodeType, Any] = field(default_factory=dict)
    members: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    ours: bool = True

    def reset(self) -> None:
        """Drop all entries of all members, and the resume functions."""
        for member in list(self.members):
            member.reset()
        self.resumes.clear()


class FrameCompiler:
    """Compiles the frames of one function; the engine calls it on a miss.  Also the `Host` of its captures."""

    tail_call = staticmethod(_native.tail_call)

    def __init__(self, family: Family) -> None:
        self.family = family

    # engine callback ------------------------------------------------------------------------------------------
    def __call__(self, fn: Any, values: dict[str, Any], reasons: list[tuple[int, int]]) -> Any:
        function = fn.fn
        code, namespace = function.__code__, function.__globals__
        if reasons:
            self.report_recompile(fn, values, namespace, reasons)
        if config.debug_function and code.co_name != config.debug_function:
            return None
        start = time.perf_counter()
        step(1, "torchdynamo start tracing %s (%s:%d)", code.co_name, code.co_filename, code.co_firstlineno)
        try:
            with timed("capture and backend"):
                captured = capture_frame(
                    code, namespace, values, self, fullgraph=self.family.fullgraph, on_break=self.on_break
                )
        except SkipFrame as e:
            if self.family.fullgraph:
                raise Unsupported("skipped-frame", str(e), "remove fullgraph=True, or what the reason names") from None
            log.info("%s runs eagerly: %s", code.co_qualname, e)
            log_breaks("frame %s runs eagerly: %s", code.co_qualname, e)
            return None
        except PyCompilerError as e:
            if config.suppress_errors and not isinstance(e, Unsupported):
                log.warning("%s runs eagerly: %s", code.co_qualname, e)
                return None
            raise
        step(1, "torchdynamo done tracing %s", code.co_name)
        self.record(code, captured, time.perf_counter() - start)
        return self.entry(function, captured)

    def entry(self, function: types.FunctionType, captured: Captured) -> Any:
        guards = self.filtered(captured.guards)
        if captured.template is not None:
            if captured.empty:
                return _native.Entry(guards, function, "eager")
            return _native.Entry(guards, captured.compiled, "plan", captured.template, captured.inputs)
        return _native.Entry(guards, captured.function, "function")

    def filtered(self, guards: list[Guard]) -> list[Guard]:
        if self.family.guard_filter is None:
            return guards
        keep = list(self.family.guard_filter(guards))
        return [g for g, k in zip(guards, keep, strict=True) if k]

    # host of the capture --------------------------------------------------------------------------------------
    def compile_graph(self, gm: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        STATISTICS["graphs"] += 1
        if log_graph.enabled:
            log_graph(gm.print_readable(print_output=False))
        family = self.family
        step(2, "calling compiler function %s", family.backend_name)
        try:
            made = family.backend(gm, self.example_inputs(gm, inputs))
        except PyCompilerError:
            raise
        except Exception as e:
            if not family.ours:
                if config.suppress_errors:
                    log.warning("backend %s failed, the graph runs eagerly: %s", family.backend_name, e)
                    return gm.forward  # type: ignore[no-any-return]
                raise
            raise BackendError(f"backend {family.backend_name!r} raised {type(e).__name__}: {e}") from e
        step(2, "done compiler function %s", family.backend_name)
        if not callable(made):
            raise BackendError(f"backend {family.backend_name!r} returned {made!r}; expected a callable of the inputs")
        return checked_outputs(made, gm, family.backend_name) if not family.ours else made  # type: ignore[no-any-return]

    def example_inputs(self, gm: fx.GraphModule, inputs: list[Tensor]) -> list[torch.Tensor]:
        """Fakes for our own backends; the caller's tensors for others."""
        if not self.family.ours:
            return [t.real for t in inputs if t.real is not None]
        if any(t.fake._version != 0 for t in inputs):  # in-place operators have changed the fakes
            mode = new_fake_mode()
            return [fake_of(mode, t.real) for t in inputs if t.real is not None]
        return [t.fake for t in inputs]

    def resume_function(self, code: types.CodeType, namespace: dict[str, Any]) -> Any:
        found = self.family.resumes.get(code)
        if found is None:
            function = types.FunctionType(code, namespace, code.co_name)
            found = self.family.resumes[code] = new_compiled(function, self.family, positional=True)
        return found

    # reports --------------------------------------------------------------------------------------------------
    def on_break(self, record: BreakRecord) -> None:
        if self.family.fullgraph:
            raise Unsupported(record.kind, record.reason, record.hint, record.stack)
        if log_breaks.enabled:
            log_breaks(str(Unsupported(record.kind, record.reason, record.hint, record.stack)))

    def report_recompile(
        self, fn: Any, values: dict[str, Any], namespace: dict[str, Any], reasons: list[tuple[int, int]]
    ) -> None:
        if not (log_recompiles.enabled or config.error_on_recompile):
            return
        texts = explain_reasons(fn, values, namespace, reasons)
        if log_recompiles.enabled:
            log_recompiles("recompiling %s; failed guards:\n%s", fn.name, "\n".join(texts))
        if config.error_on_recompile:
            raise RecompileError(f"{fn.name} would be compiled again; failed guards:\n" + "\n".join(texts))

    def record(self, code: types.CodeType, captured: Captured, seconds: float) -> None:
        if log_guards.enabled:
            log_guards("guards of %s:\n%s", code.co_qualname, "\n".join(map(str, captured.guards)))
        if log_bytecode.enabled and captured.function is not None:
            import dis

            text = dis.Bytecode(captured.function.__code__).dis()
            log_bytecode("generated code of %s:\n%s", code.co_qualname, text)
        if self.family.listener is not None:
            self.family.listener(
                GraphRecord(code, captured.graph, captured.guards, captured.op_count, captured.broke, seconds)
            )


def checked_outputs(made: Callable[..., Any], gm: fx.GraphModule, name: str) -> Callable[..., Sequence[Any]]:
    """A user's compiled graph, with its number of outputs checked on each call."""
    expected = len(gm.graph.output_node().args[0])  # type: ignore[arg-type]

    def run(*inputs: Any) -> Sequence[Any]:
        outputs = made(*inputs)
        if isinstance(outputs, torch.Tensor) and expected == 1:
            return (outputs,)
        if not isinstance(outputs, (tuple, list)) or len(outputs) != expected:
            seen = f"{len(outputs)} outputs" if isinstance(outputs, (tuple, list)) else repr(type(outputs).__name__)
            raise BackendError(f"the callable of backend {name!r} returned {seen}; the graph has {expected} outputs")
        return outputs

    return run


def explain_reasons(
    fn: Any, values: dict[str, Any], namespace: dict[str, Any], reasons: Sequence[tuple[int, int]]
) -> list[str]:
    """One line per entry that did not fit: which guard failed, what was seen and expected, where it was made."""
    entries = fn.entries
    lines = []
    for index, failed in reasons:
        if index >= len(entries):
            continue
        guards = entries[index].guards
        text = explain(guards[failed], Scope(values, namespace)) if failed < len(guards) else "an input cannot be read"
        lines.append(f"  entry {index}: {text}")
    return lines


def new_compiled(function: Callable[..., Any], family: Family, *, positional: bool = False, name: str | None = None) -> Any:
    """A `CompiledFunction` for `function` in `family`."""
    limit = family.recompile_limit if family.recompile_limit is not None else config.recompile_limit
    made = _native.CompiledFunction(
        function,
        FrameCompiler(family),
        positional=positional,
        recompile_limit=limit,
        accumulated_limit=config.accumulated_recompile_limit,
        name=name or getattr(function, "__qualname__", None),
    )
    family.members.add(made)
    return made


def _on_limit(fn: Any, reasons: list[tuple[int, int]]) -> None:
    """Called by the engine, once per code object that reaches its limit."""
    guards = []
    for index, failed in reasons[:1]:
        entries = fn.entries
        if index < len(entries) and failed < len(entries[index].guards):
            guards.append(str(entries[index].guards[failed]))
    last = guards[0] if guards else "unknown"
    message = (
        f"{fn.name} reached its recompile limit ({fn.recompile_limit}); further misses run eagerly. "
        f"Last failed guard: {last}. Raise config.recompile_limit, or make the value constant."
    )
    if config.fail_on_recompile_limit_hit:
        raise RecompileLimitExceeded(message)
    warnings.warn(message, RuntimeWarning, stacklevel=2)
    logging.getLogger("pycompiler").warning(message)


_native.set_limit_callback(_on_limit)

__all__ = ["Family", "FrameCompiler", "GraphRecord", "InternalError", "compile_aten", "compile_times", "new_compiled"]
