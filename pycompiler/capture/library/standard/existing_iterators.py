"""Iterators that existed before the frame: made before the call, or before a graph break."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from pycompiler.capture import operators
from pycompiler.capture.builtins import iteration
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.iterators import Begun, Iter, Leading
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.opaque import Opaque
from pycompiler.capture.values.sequences import Tuple
from pycompiler.capture.wrap import wraps
from pycompiler.ir import begun
from pycompiler.ir.source import Source


@wraps(*begun.TELLING)
def _begun(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("type_is", source, type(real))
    try:
        return Begun(real, source)
    except (TypeError, ValueError, RuntimeError):  # elements of others, too many of them, or a dict that has changed
        return Opaque(real)


def _of_parts(
    make: Callable[[Capture, list[Value], dict[str, Value]], Value],
) -> Callable[[Capture, Any, Source], Value]:
    """One that has no state but that of the iterators it asks: as one that is made now."""

    def wrap(cx: Capture, real: Any, source: Source) -> Value:
        cx.guard("type_is", source, type(real))
        try:
            parts = begun.read(real, "parts")
        except TypeError:
            return Opaque(real)
        cx.guard("length", source.then("begun", "parts"), len(parts))
        first = 0 if make is iteration.zip_ else 1  # before it a function
        values = [cx.wrap(p, source.then("begun", "parts").item(i)) for i, p in enumerate(parts)]
        values[first:] = [iteration.Asked(v) if isinstance(v, Object) else v for v in values[first:]]
        made = make(cx, values, {})
        assert isinstance(made, Iter)
        made.real = real
        return made

    return wrap


wraps(zip)(_of_parts(iteration.zip_))
wraps(map)(_of_parts(iteration.map_))
wraps(filter)(_of_parts(iteration.filter_))


@wraps(enumerate)
def _enumerate(cx: Capture, real: Any, source: Source) -> Value:
    """Its steps are those of what it counts, too; so these have to be steps that run nothing."""
    cx.guard("type_is", source, enumerate)
    if not begun.is_pure(real):
        return Opaque(real)
    iterator, start = (
        cx.wrap(p, source.then("begun", "parts").item(i)) for i, p in enumerate(begun.read(real, "parts"))
    )

    numbers = itertools.count()

    def step() -> Value | None:
        value = cx.next_of(iterator)
        if value is None:
            return None
        return Tuple([operators.binary(cx, "+", start, Const(next(numbers))), cx.realize(value)])

    return Leading(step, real)
