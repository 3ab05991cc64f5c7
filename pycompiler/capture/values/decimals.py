"""`Decimal`: constants whose arithmetic reads the thread's decimal context and sets flags there.

In: a call on constants, one of them a `Decimal`.  Out: a context manager around the folding of the call.  It guards the
decimal context and makes generated code set the same flags.
"""

from __future__ import annotations

import contextlib
import decimal
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.distributed_objects import assume
from pycompiler.capture.values.functions import Builtin

FLAGS = "flags of the thread's decimal context"


def state() -> tuple[Any, ...]:
    """The part of the decimal context that arithmetic depends on."""
    known = decimal.getcontext()
    traps = tuple(signal for signal, trapped in known.traps.items() if trapped)
    return known.prec, known.rounding, known.Emin, known.Emax, known.capitals, known.clamp, traps


def set_flags(names: Sequence[str]) -> None:
    for name in names:
        decimal.getcontext().flags[getattr(decimal, name)] = True


def _concerns(fn: Any, args: Iterable[Any]) -> bool:
    owner = getattr(fn, "__self__", None)
    return fn is decimal.Decimal or type(owner) is decimal.Decimal or any(type(a) is decimal.Decimal for a in args)


@contextlib.contextmanager
def _local_context(cx: Capture) -> Iterator[None]:
    assume(cx, (decimal,), state, "the capture depends on the thread's decimal context")
    told: set[str] = cx.kept.setdefault((decimal, "flags"), set())
    own = decimal.getcontext().copy()
    own.clear_flags()
    try:
        with decimal.localcontext(own) as within:
            yield
    finally:
        names = sorted(signal.__name__ for signal, raised in within.flags.items() if raised)
        if not told.issuperset(names):
            if cx.graph.is_inner:
                raise Break("inner-graph", FLAGS)
            cx.effects.defer(Builtin(set_flags), [Const(tuple(n for n in names if n not in told))])
            told.update(names)


def context_of(cx: Capture, fn: Any, args: Iterable[Any]) -> contextlib.AbstractContextManager[None]:
    """The context manager in which the capture folds a call."""
    return _local_context(cx) if _concerns(fn, args) else contextlib.nullcontext()
