"""Recording of warnings: warnings of the frame, and warnings that torch raises in a call of the graph.  `replay` prints
them.

In: a message and the frame it is about; the warnings heard while a call ran on fakes.
Out: an effect, or a `Break` if the warning's line is outside the captured frames.
Example: `softmax` without a dimension warns about its caller's line; ``x.T`` of three dimensions about the line
itself, once.
"""

from __future__ import annotations

import functools
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.effects.side_effects import UNKNOWN, DeferredWarning
from pycompiler.capture.semantics import polyfills
from pycompiler.capture.values.base import Capture
from pycompiler.capture.warnings.replay import ONCE, TorchWarning
from pycompiler.operators.kernel_type_checks import tensors_of
from pycompiler.symbolic.symbols import Specialise
from pycompiler.torch_compat.warning_listener import (
    ALWAYS,
    IN_C,
    CapturedWarning,
    Listening,
    WarningLine,
    line_of_call,
    lines_of,
)

if TYPE_CHECKING:
    from pycompiler.capture.interpreter.evaluation import Frame
    from pycompiler.capture.recording.fake_calls import RecordedCall

WARNING_GLOBALS = ("filters", "showwarning", "_showwarnmsg_impl")
HOOK_CALLERS = {of.__code__ for of in (polyfills.engine_of_hook, polyfills.backward_of_hook, polyfills.method_of_hook)}
"""Polyfills that stand for torch's callers of hooks."""
CALLS_HOOKS = torch.nn.Module._call_impl.__code__
POLYFILL_MODULES = frozenset((
    "pycompiler.capture.semantics.polyfills", "pycompiler.capture.semantics.heap_polyfills",
    "pycompiler.capture.semantics.exception_groups", "pycompiler.capture.semantics.torch_polyfills",
))  # fmt: skip
"""Modules whose functions are inlined in place of C functions, which have no frames."""
ONLY_FAKES = (
    "pycompiler.", "torch._ops", "torch._subclasses", "torch._refs", "torch._prims", "torch._decomp",
    "torch._meta_registrations", "torch._library", "torch.utils._python_dispatch", "torch.fx",
)  # fmt: skip
"""Modules whose functions run between a call and its shape function; eager runs a kernel there."""


def note(
    cx: Capture, place: WarningLine, message: str, category: type[Warning], by: TorchWarning | None = None
) -> None:
    """The frame raises this warning; `by`: the torch call that raises it."""
    known = [cx.effects.globals.get((id(vars(warnings)), name), UNKNOWN) for name in WARNING_GLOBALS]
    if any(v is not UNKNOWN for v in known) or id(warnings.filters) in cx.by_id:
        raise Break("builtin-call", f"warnings.warn({message!r}, ...): the frame has changed how warnings are handled")
    cx.effects.warn(DeferredWarning(message, category, place.code.co_filename, place.lineno, place.namespace, by))


def place_at(cx: Capture, level: Any) -> WarningLine | None:
    """The line that `stacklevel` means. None if eager would have other frames in between, or the line is outside."""
    if type(level) is not int or level <= 0:
        return None
    found = list(itertools.islice(_places(cx), level))
    if len(found) < level or any("importlib" in place.code.co_filename for place, _ in found):
        return None
    place, _ = found[-1]
    if place.module.startswith("pycompiler.") or not all(told for _, told in found[:-1]):
        return None
    return place


def line(cx: Capture) -> WarningLine | None:
    """The calling line, of the program or of a library, but not of a polyfill for C code."""
    return next((p for p, _ in _places(cx) if not p.module.startswith("pycompiler.")), None)


def _places(cx: Capture) -> Iterator[tuple[WarningLine, bool]]:
    """The places of the frames, innermost first, and whether the next frame is the direct caller."""
    for frame in reversed(cx.frames):
        if frame.globals.get("__name__") in POLYFILL_MODULES and frame.code not in HOOK_CALLERS:
            continue
        yield _place_of(frame), frame.follows or frame.code in HOOK_CALLERS
        if frame.of_module:
            yield from ((place, True) for place in _lines_of_modules())


def _place_of(frame: Frame) -> WarningLine:
    at = frame.user_frame().lineno or 0
    return WarningLine(frame.code, _ways_of_modules().get(at, at) if frame.code is CALLS_HOOKS else at, frame.globals)


@functools.cache
def _ways_of_modules() -> dict[int, int]:
    """Line of a module's compiled call → its line otherwise."""
    lines = lines_of(CALLS_HOOKS, "inner")
    return dict(itertools.pairwise(lines[-2:]))


@functools.cache
def _lines_of_modules() -> tuple[WarningLine, ...]:
    """The lines of `nn.Module.__call__` between a call of a module without hooks and its `forward`."""
    calls = ((torch.nn.Module._call_impl, 0), (torch.nn.Module._wrapped_call_impl, -1))
    return tuple(WarningLine(fn.__code__, line_of_call(fn.__code__, which), fn.__globals__) for fn, which in calls)


def note_once(cx: Capture, what: str) -> None:
    place = line(cx)
    if place is None:
        raise Break("builtin-call", f"torch warns of {what}, about a line outside of captured code")
    with ALWAYS, Listening() as heard:
        ONCE[what]()
    for said in heard:
        by = TorchWarning.of(ONCE[what], False, (), {}) if IN_C in said.message else None
        note(cx, place, said.message, said.category, by)


def _few(call: RecordedCall, result: Any) -> bool:
    """Whether no degrees of freedom are left."""
    given, results = _operands(call)[0], tensors_of(result)
    flags = [a for a in call.fakes if isinstance(a, bool)]  # `unbiased` comes first
    unbiased = flags[0] if flags else call.kfakes.get("unbiased")
    correction = call.kfakes.get("correction")
    correction = int(unbiased is not False) if correction is None else correction
    return bool(given.numel() <= correction * results[0].numel()) or results[0].numel() == 0


def _made_real(call: RecordedCall, result: Any) -> bool:
    made = [t.dtype for t in (tensors_of(result) or _operands(call)[:1])]
    return any(t.is_complex() for t in _operands(call)) and not any(d.is_complex or d is torch.bool for d in made)


def _operands(call: RecordedCall) -> list[torch.Tensor]:
    return [n.meta["example_value"] for n in call.operands]


KERNELS: dict[str, Callable[[RecordedCall, Any], bool]] = {
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), _few),
    **dict.fromkeys(
        ("to", "type", "type_as", "copy_", "double", "float", "half", "bfloat16", "long", "int", "short", "char", "byte",
         "setitem", "fill_", "tensor", "as_tensor", "sum", "mean", "prod", "cumsum", "cumprod", "softmax", "log_softmax",
         "softmin", "linalg_vector_norm"),
        _made_real,
    ),
    "where": lambda call, result: any(t.dtype is torch.uint8 for t in _operands(call)),
    **dict.fromkeys(("searchsorted", "bucketize"), lambda call, result: not all(t.is_contiguous() for t in _operands(call))),
    **dict.fromkeys(("scatter", "scatter_"), lambda call, result: "reduce" in call.kfakes),
    **dict.fromkeys(("index_reduce", "index_reduce_", "triangular_solve", "cholesky", "chalf"), lambda call, result: True),
}  # fmt: skip
"""Operators whose kernels may warn otherwise than their shape functions, and when (`test_warnings_of_samples.py`)."""


def note_call(cx: Capture, call: RecordedCall, heard: Sequence[CapturedWarning], result: Any) -> list[str]:
    """Record the warnings of a graph call; returns the messages.

    Eager raises the warnings that the call raised on fakes; in C++ it raises the kernel's.
    """
    like = (call.target, call.op == "call_method", call.fakes, call.kfakes)
    texts, lines = list[str](), set[tuple[str, int]]()
    of_kernel = call.name in KERNELS and KERNELS[call.name](call, result)
    if not (heard or of_kernel):
        return texts
    by = TorchWarning.of(*like, kernel=of_kernel)
    if of_kernel:
        with ALWAYS:
            heard = [*(said for said in heard if IN_C not in said.message), *by.listen()]
    for said in heard:
        theirs = [p for p in reversed(said.frames[: said.inside]) if not p.module.startswith("pycompiler.capture.")]
        called = [*itertools.takewhile(lambda p: not p.module.startswith(ONLY_FAKES), theirs)]  # the innermost last
        if IN_C in said.message:
            place = called[-1] if called else line(cx)
        elif len(called) < len(theirs):
            continue  # raised by a shape function itself
        else:
            _settle_names(cx, call, said)
            place = _place_meant(cx, said, len(called))
        if place is None:
            raise Break(
                "builtin-call", f"{call.name}, which warns about a line outside of captured code: {said.message}"
            )
        texts.append(said.message)
        if IN_C not in said.message:
            note(cx, place, said.message, said.category)
        elif (at := (place.code.co_filename, place.lineno)) not in lines:  # `by` reports all warnings of one line
            lines.add(at)
            note(cx, place, said.message, said.category, by)
    return texts


def note_evaluated(cx: Capture, heard: Sequence[CapturedWarning], evaluates: CodeType) -> None:
    """Record the warnings of a call with constants, which eager raises, too; `evaluates`: the code that made the
    call."""
    for said in heard:
        called = sum(1 for _ in itertools.takewhile(lambda p: p.code is not evaluates, said.frames))
        own = said.frames[0].module.startswith("pycompiler.")
        place = line(cx) if own else _place_meant(cx, said, called)
        if place is None:
            raise Break("builtin-call", f"a warning about a line outside of captured code: {said.message}")
        note(cx, place, said.message, said.category)


def _settle_names(cx: Capture, call: RecordedCall, said: CapturedWarning) -> None:
    hints = cx.sizes.symbols.hints if cx.sizes.symbols else {}
    if names := frozenset(re.findall(r"\w+", said.message)) & hints.keys():
        raise Specialise(sorted(names), f"a warning of {call.name} shows the number")


def _place_meant(cx: Capture, said: CapturedWarning, called: int) -> WarningLine | None:
    """The frame that a warning is about, among the frames of the call and its callers."""
    at = next(
        (i for i, p in enumerate(said.frames) if (p.code.co_filename, p.lineno) == (said.filename, said.lineno)), None
    )
    if at is None:
        return None
    if at < called:
        return said.frames[at]
    level = at - called + 1
    return line(cx) if level == 1 else place_at(cx, level)
