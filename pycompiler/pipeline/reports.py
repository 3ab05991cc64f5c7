"""Reports of a compile: breaks, records, recompiles with reasons and advice, limits, errors with a place."""

from __future__ import annotations

import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pycompiler import config
from pycompiler._native import CompiledFunction
from pycompiler.capture.breaks import BreakRecord
from pycompiler.capture.interpreter.frame import Captured
from pycompiler.errors import (
    InternalError,
    RecompileError,
    RecompileLimitExceeded,
    RecompileLimitWarning,
    Unsupported,
    stack_text,
)
from pycompiler.ir import compile_names, phases
from pycompiler.ir.guard_differences import aspects, aspects_between
from pycompiler.ir.guards import explain, first_failure, seen
from pycompiler.ir.source import Scope
from pycompiler.logs import artifact, stage
from pycompiler.pipeline.guards import size_guards
from pycompiler.pipeline.interface import Family
from pycompiler.pipeline.records import EagerRecord, GraphRecord, GuardDifference, RecompileRecord
from pycompiler.torch_compat import torch_compile

log = stage("dynamo")
log_guards = artifact("guards")
log_breaks = artifact("graph_breaks")
log_recompiles = artifact("recompiles")
log_all_failures = artifact("recompiles_verbose")
MOST_ENTRIES_REPORTED = 16  # entries reported for one recompile
log_bytecode = artifact("bytecode")
LONG_CONSTANT = 200  # characters


class _ShortRepr:
    """Stands for a constant with a long `repr`, such as the namespace of builtins."""

    def __init__(self, value: object, text: str) -> None:
        items = f" of {len(value)} items" if isinstance(value, (dict, list, tuple, set, frozenset)) else ""
        self.text = f"<{type(value).__qualname__}{items}: {' '.join(text[:60].split())} ...>"

    def __repr__(self) -> str:
        return self.text


def listing(code: types.CodeType) -> str:
    """The instructions as `dis` prints them, one per line."""
    import dis

    texts = [(value, repr(value)) for value in code.co_consts]
    shown = tuple(_ShortRepr(v, text) if len(text) > LONG_CONSTANT else v for v, text in texts)
    return dis.Bytecode(code.replace(co_consts=shown)).dis()


@dataclass(frozen=True)
class FailureRecord:
    """A frame that could not be compiled: its function and locals (free variables as cells), and the error."""

    family: Family
    function: types.FunctionType
    values: dict[str, Any]
    error: Exception


def as_error(broke: BreakRecord) -> Unsupported:
    return Unsupported(broke.kind, broke.reason, broke.hint, broke.stack)


def report_breaks(breaks: Sequence[BreakRecord]) -> None:
    if log_breaks.enabled:
        for broke in breaks:
            log_breaks(str(as_error(broke)))


def record(family: Family, code: types.CodeType, captured: Captured, seconds: float) -> None:
    guards = [*captured.recipe.guards, *size_guards(captured)]
    if log_guards.enabled:
        log_guards("guards of %s:\n%s", code.co_qualname, "\n".join(map(str, guards)))
    if log_bytecode.enabled:
        log_bytecode("original code of %s:\n%s", code.co_qualname, listing(code))
        if captured.recipe.code is not None:
            log_bytecode("generated code of %s:\n%s", code.co_qualname, listing(captured.recipe.code))
    inlined = tuple(captured.inlined)
    made = GraphRecord(
        compile_names.program_code(code), captured.graph, guards, captured.op_count, captured.broke, seconds, inlined,
        hooked=code in family.hooked,
    )  # fmt: skip
    phases.artefact("frame", made)
    if family.listener is not None:
        family.listener(made)
    if (observer := family.observer) is not None:
        with phases.observer_errors_logged(observer):
            observer.compiled(made)


def report_recompile(
    family: Family,
    fn: CompiledFunction,
    values: dict[str, Any],
    namespace: dict[str, Any],
    reasons: list[tuple[int, int]],
) -> None:
    """Log why a call compiles again; raise if it must not."""
    raises = family.raises_at_limit
    count = len(fn.entries)
    over = raises and (count >= family.limit or count >= config.accumulated_recompile_limit)
    observer = family.observer
    if log_all_failures.enabled and config.report_guard_failures:
        failures = "\n".join(all_failures(fn, values, namespace))
        log_all_failures("recompiling %s; all guards that fail:\n%s", fn.name, failures)
    watched = phases.is_wanted("recompile")
    if not (log_recompiles.enabled or config.error_on_recompile or over or observer or watched):
        return
    texts = explain_reasons(fn, values, namespace, reasons)
    differences = tuple(differences_of(fn, Scope(values, namespace), reasons)) if watched else ()
    told = RecompileRecord(compile_names.own_code(fn.fn.__code__, values), tuple(texts), differences)
    if observer is not None:
        with phases.observer_errors_logged(observer):
            observer.recompiled(told)
    phases.artefact("recompile", told)
    if log_recompiles.enabled and config.report_guard_failures:
        log_recompiles("recompiling %s; failed guards, latest entry first:\n%s", fn.name, "\n".join(texts))
    if over:
        raise RecompileLimitExceeded(limit_message(fn, family.limit, texts[0] if texts else "unknown"))
    if config.error_on_recompile:
        raise RecompileError(
            f"{fn.name} would be compiled again, and config.error_on_recompile forbids it; failed guards:\n"
            + "\n".join(texts)
        )


def report_symbols(code: types.CodeType, changed: Sequence[str]) -> None:
    """Log sizes and numbers that changed and are now symbols: one compile covers all their values."""
    if changed:
        log_recompiles("%s: sizes and integers that changed are symbolic now: %s", code.co_qualname, "; ".join(changed))


def explain_reasons(
    fn: CompiledFunction, values: dict[str, Any], namespace: dict[str, Any], reasons: Sequence[tuple[int, int]]
) -> list[str]:
    """One line per entry that did not fit: the failed guard, the value seen and expected, and where the guard was made.

    At most `MOST_ENTRIES_REPORTED` entries are listed.  So a program that compiles for each of n calls gets lines in
    proportion to n, not n squared.
    """
    entries = fn.entries
    lines = []
    for index, failed in reasons[:MOST_ENTRIES_REPORTED]:
        if index >= len(entries):
            continue
        guards = entries[index].guards
        if failed >= len(guards):
            lines.append(f"  entry {index}: an input cannot be read")
            continue
        guard = guards[failed]
        scope = Scope(values, namespace)
        lines.append(f"  entry {index}: {explain(guard, scope)}\n    way out: {way_out(aspects(guard, scope))}")
    if len(reasons) > MOST_ENTRIES_REPORTED:
        lines.append(f"  and {len(reasons) - MOST_ENTRIES_REPORTED} older entries")
    return lines


def differences_of(fn: CompiledFunction, scope: Scope, reasons: Sequence[tuple[int, int]]) -> Iterator[GuardDifference]:
    """The failed guard of each entry, of at most `MOST_ENTRIES_REPORTED` entries."""
    entries = fn.entries
    for index, failed in reasons[:MOST_ENTRIES_REPORTED]:
        if index < len(entries) and failed < len(guards := entries[index].guards):
            guard = guards[failed]
            yield GuardDifference(guard, tuple(aspects(guard, scope)), seen(guard, scope))


def all_failures(fn: CompiledFunction, values: dict[str, Any], namespace: dict[str, Any]) -> list[str]:
    """Every guard of every entry that does not hold for this call."""
    scope = Scope(values, namespace)
    return [
        f"  entry {index}: {explain(guard, scope)}"
        for index, entry in enumerate(fn.entries)
        for guard in entry.guards
        if first_failure([guard], scope) is not None
    ]


# Advice to the user for an aspect (`ir/guard_differences.py`) in which calls differ again and again.
WAYS_OUT = {
    "class": "pass the same type, or compile a callable for each",
    "none": "pass None always or never, or compile a callable for each",
    "flag": "keep the flag constant between calls, or compile a callable for each of its values",
    "text": "keep the text constant between calls, or compile a callable for each",
    "number": "pass the number as a tensor, or keep it constant between calls",
    "value": "keep the value constant between calls, or compile a callable for each",
    "identity": "make the object once, outside of the calls",
    "structure": "pass arguments of the same structure",
    "dtype": "pass tensors of the same dtype, or compile a callable for each",
    "device": "pass tensors on the same device, or compile a callable for each",
    "requires_grad": "pass tensors with the same requires_grad, or compile a callable for each",
    "dimensions": "pass tensors with the same number of dimensions, or compile a callable for each",
    "sizes": "sizes that change are compiled once (config.automatic_dynamic_shapes, dynamic=True), except 0, 1 and "
    "sizes that the program needs as numbers",
    "strides": "pass tensors with the same strides (.contiguous())",
    "keys of dispatch": "pass tensors of the same layout and kind: all or none conjugated, negated, of inference mode",
    "length": "keep the length constant, or pad to a fixed length",
    "keys": "keep the keys and their order constant",
    "elements": "keep the set constant",
    "attribute": "set the attribute before the first call",
    "state": "call with the same grad mode, autocast and defaults, or compile a callable for each",
    "condition": "keep the condition constant",
    "cell": "bind the variable before the first call",
    "aliases": "pass the same object twice always or never",
    "relation": "avoid branches on sizes and numbers, and sizes 0 and 1",
    "data": "keep the branch that the number decides, and give the tensor that holds the number memory of its own",
}


def way_out(aspects: Sequence[str]) -> str:
    """The advice for the aspects that differ."""
    return f"{'; '.join(WAYS_OUT[aspect] for aspect in aspects)}; or raise config.recompile_limit"


WONT_CONVERT = """\
WON'T CONVERT {function} {filename} line {lineno}: {function} runs eagerly
due to:
{cause}

from user code:
{user}

{more}
=========="""


def wont_convert(code: types.CodeType, error: Exception, cause: Exception) -> str:
    """Why a frame runs eagerly: the error and the line of the program. With `config.verbose`, the whole traceback."""
    stack, _ = getattr(cause, "pycompiler_place", ((), ""))
    last = traceback.extract_tb(cause.__traceback__)[-1:]
    trace = traceback.format_exception(cause) if config.verbose else traceback.format_list(last)
    return WONT_CONVERT.format(
        function=code.co_qualname,
        filename=code.co_filename,
        lineno=code.co_firstlineno,
        cause="".join(trace).rstrip() + f"\n{error}",
        user=stack_text(stack) or f"    {code.co_filename}:{code.co_firstlineno} in {code.co_qualname}",
        more="" if config.verbose else "Set pycompiler.config.verbose = True for more information",
    )


def located(error: Exception, code: types.CodeType) -> InternalError:
    """`error` as an InternalError that names function, file, line and operator."""
    made = error if isinstance(error, InternalError) else InternalError(f"{type(error).__name__}: {error}")
    stack, operator = getattr(error, "pycompiler_place", ((), ""))
    frame = stack[-1] if stack else None
    return made.locate(
        function=frame.function if frame else code.co_qualname,
        filename=frame.filename if frame else code.co_filename,
        lineno=frame.lineno if frame else code.co_firstlineno,
        operator=operator,
        compile=compile_names.name_of_error(error),
    )


def limit_message(fn: CompiledFunction, limit: int, last: str) -> str:
    return (
        f"{fn.name} reached its recompile limit ({limit} entries): calls that fit no entry run eagerly. "
        f"Last failed guard: {last.strip()}"
    )


# Called with each compiled function that reaches its limit.
limit_listeners: list[Callable[[CompiledFunction], None]] = []


def on_limit(fn: CompiledFunction, reasons: list[tuple[int, int]]) -> None:
    """Called by the engine, once per code object that reaches its limit."""
    entries = fn.entries
    last = "unknown"
    for i, g in reasons[:1]:
        if i < len(entries) and g < len(entries[i].guards):
            guard = entries[i].guards[g]
            others = [other for k, entry in enumerate(entries) if k != i for other in entry.guards]
            last = f"{guard}. Way out: {way_out(aspects_between(guard, others))}"
    limit = fn.recompile_limit if len(entries) >= fn.recompile_limit else fn.accumulated_limit
    message = limit_message(fn, limit, last)
    phases.artefact("eager", EagerRecord(compile_names.program_code(fn.fn.__code__), "limit", last))
    for listener in limit_listeners:
        with phases.observer_errors_logged(listener):
            listener(fn)
    warnings.warn(message, RecompileLimitWarning, stacklevel=2)
    log.warning(message)


torch_compile.skip_frames_of(on_limit.__code__)
