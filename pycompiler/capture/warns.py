"""What the frame warns of, and what torch warns of in a call of the graph, is noted in the journal: `shown` shows it.

In: a text and the frame that it is about; what was heard while a call ran on fakes.  Out: an effect, or a `Break` where the
line is none that is captured.
Example: `softmax` without a dimension warns about its caller's line; ``x.T`` of three dimensions about the line itself, once.
"""

from __future__ import annotations

import functools
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from pycompiler.capture import polyfills
from pycompiler.capture.breaks import Break
from pycompiler.capture.effects import UNKNOWN, Warned
from pycompiler.capture.shown import ONCE, OfTorch
from pycompiler.capture.values.base import Capture
from pycompiler.ir.heard import ALWAYS, IN_C, Heard, Listening, Place, line_of_call
from pycompiler.ir.symbols import Specialise, hint_of

if TYPE_CHECKING:
    from pycompiler.capture.interpreter import Frame
    from pycompiler.capture.on_fakes import Call

SHOWN = ("filters", "showwarning", "_showwarnmsg_impl")
STAND = {of.__code__ for of in (polyfills.engine_of_hook, polyfills.backward_of_hook, polyfills.method_of_hook)}
"""What stands for torch's callers of hooks."""
FOR_C = frozenset(f"pycompiler.capture.{name}" for name in ("polyfills", "heaps", "groups", "composed"))
"""Modules whose functions are inlined for functions in C, which have no frames."""
ONLY_FAKES = (
    "pycompiler.", "torch._ops", "torch._subclasses", "torch._refs", "torch._prims", "torch._decomp",
    "torch._meta_registrations", "torch._library", "torch.utils._python_dispatch", "torch.fx",
)  # fmt: skip
"""Modules whose functions run between a call and its shape function, where eager runs a kernel."""


def note(cx: Capture, place: Place, message: str, category: type[Warning], by: OfTorch | None = None) -> None:
    """The frame warns of this; `by`: torch does, when this is called."""
    known = [cx.effects.globals.get((id(vars(warnings)), name), UNKNOWN) for name in SHOWN]
    if any(v is not UNKNOWN for v in known) or id(warnings.filters) in cx.by_id:
        raise Break("builtin-call", f"warnings.warn({message!r}, ...): the frame has changed what becomes of it")
    cx.effects.warn(Warned(message, category, place.code.co_filename, place.lineno, place.namespace, by))


def place_at(cx: Capture, level: Any) -> Place | None:
    """The line that `stacklevel` means; None where eager would have others in between, or means one outside."""
    if type(level) is not int or level <= 0:
        return None
    found = list(itertools.islice(_places(cx), level))
    if len(found) < level or any("importlib" in place.code.co_filename for place, _ in found):
        return None
    place, _ = found[-1]
    if place.module.startswith("pycompiler.") or not all(told for _, told in found[:-1]):
        return None
    return place


def line(cx: Capture) -> Place | None:
    """The line that is called from: of the program, or of a library, but of nothing that stands for C."""
    return next((p for p, _ in _places(cx) if not p.module.startswith("pycompiler.")), None)


def _places(cx: Capture) -> Iterator[tuple[Place, bool]]:
    """Where the frames are, the innermost first, and whether the next one is what called it."""
    for frame in reversed(cx.frames):
        if frame.globals.get("__name__") in FOR_C and frame.code not in STAND:
            continue
        yield _place_of(frame), frame.follows or frame.code in STAND
        if frame.of_module:
            yield from ((place, True) for place in _lines_of_modules())


def _place_of(frame: Frame) -> Place:
    return Place(frame.code, frame.user_frame().lineno or 0, frame.globals)


@functools.cache
def _lines_of_modules() -> tuple[Place, ...]:
    """The lines of `nn.Module.__call__` between a call of a module without hooks and its `forward`."""
    calls = ((torch.nn.Module._call_impl, 0), (torch.nn.Module._wrapped_call_impl, -1))
    return tuple(Place(fn.__code__, line_of_call(fn.__code__, which), fn.__globals__) for fn, which in calls)


def note_once(cx: Capture, what: str) -> None:
    place = line(cx)
    if place is None:
        raise Break("builtin-call", f"torch warns of {what}, about a line outside")
    with ALWAYS, Listening() as heard:
        ONCE[what]()
    for said in heard:
        by = OfTorch.of(ONCE[what], False, (), {}) if IN_C in said.message else None
        note(cx, place, said.message, said.category, by)


def note_kernel(cx: Capture, call: Call, result: Any) -> list[str]:
    """What no more than the kernel of the host warns of, which fakes do not run; the texts."""
    if not KERNELS[call.name]([n.meta["example_value"] for n in call.operands], result):
        return []
    by = OfTorch.of(call.target, call.op == "call_method", call.fakes, call.kfakes, kernel=True)
    place = line(cx)
    if place is None:
        return []
    with ALWAYS:
        heard = by.heard()
    for text, category in heard:
        note(cx, place, text, category, by)
    return [text for text, _ in heard]


def _of_one(given: Sequence[torch.Tensor], result: Any) -> bool:
    results = [t for t in (result if isinstance(result, tuple) else (result,)) if isinstance(t, torch.Tensor)]
    return any(hint_of(g.numel()) == hint_of(r.numel()) > 0 for g in given for r in results)


def _made_real(given: Sequence[torch.Tensor], result: Any) -> bool:
    made = isinstance(result, torch.Tensor) and not (result.is_complex() or result.dtype is torch.bool)
    return made and any(g.is_complex() for g in given)


KERNELS: dict[str, Callable[[Sequence[torch.Tensor], Any], bool]] = {
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), _of_one),
    **dict.fromkeys(
        ("to", "type", "type_as", "copy_", "float", "double", "half", "bfloat16", "int", "long"), _made_real
    ),
    "where": lambda given, result: given[0].dtype is torch.uint8,
    **dict.fromkeys(("index_reduce", "index_reduce_"), lambda given, result: True),
    **dict.fromkeys(("searchsorted", "bucketize"), lambda given, result: not all(t.is_contiguous() for t in given)),
}
"""Operators whose kernels may warn, and of what."""


def note_heard(cx: Capture, call: Call, heard: Sequence[Heard]) -> list[str]:
    """What a call of the graph warned of on fakes, eager's call warns of; the texts."""
    texts = []
    for said in heard:
        theirs = [p for p in reversed(said.frames[: said.inside]) if not p.module.startswith("pycompiler.capture.")]
        called = [*itertools.takewhile(lambda p: not p.module.startswith(ONLY_FAKES), theirs)]  # the innermost last
        by = None
        if IN_C in said.message:
            place: Place | None = called[-1] if called else line(cx)
            by = OfTorch.of(call.target, call.op == "call_method", call.fakes, call.kfakes)
        elif len(called) < len(theirs):
            continue  # a shape function's own
        else:
            place = _place_meant(cx, said, len(called))
        names = frozenset(re.findall(r"\w+", said.message)) & frozenset(
            cx.sizes.symbols.hints if cx.sizes.symbols else ()
        )
        if names and by is None:
            raise Specialise(sorted(names), f"{call.name} warns of it")
        if place is None:
            raise Break("builtin-call", f"{call.name}, which warns about a line outside: {said.message}")
        note(cx, place, said.message, said.category, by)
        texts.append(said.message)
    return texts


def _place_meant(cx: Capture, said: Heard, called: int) -> Place | None:
    """Of the frames of what was called, or of those that called it, the one that a warning is about."""
    at = next(
        (i for i, p in enumerate(said.frames) if (p.code.co_filename, p.lineno) == (said.filename, said.lineno)), None
    )
    if at is None:
        return None
    if at < called:
        return said.frames[at]
    level = at - called + 1
    return line(cx) if level == 1 else place_at(cx, level)
