"""Iterators that existed before the frame: created before the call, or before a graph break."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from pycompiler.capture.library.standard import iteration
from pycompiler.capture.recording.wrap import wraps
from pycompiler.capture.semantics import operators
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.iterators import ExistingIterator, ExistingOuterIterator, Iter
from pycompiler.capture.values.containers.sequences import Tuple
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.opaque import Opaque
from pycompiler.ir import iterator_state
from pycompiler.ir.source import Source


@wraps(*iterator_state.READABLE)
def _running_iterator(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("type_is", source, type(real))
    try:
        return ExistingIterator(real, source)
    except (TypeError, ValueError, RuntimeError):  # elements of other owners, too many elements, or a changed dict
        return Opaque(real)


def _of_parts(
    make: Callable[[Capture, list[Value], dict[str, Value]], Value],
) -> Callable[[Capture, Any, Source], Value]:
    """Wrap an iterator without state of its own, other than its source iterators, like a new one."""

    def wrap(cx: Capture, real: Any, source: Source) -> Value:
        cx.guard("type_is", source, type(real))
        try:
            parts = iterator_state.read(real, "parts")
        except TypeError:
            return Opaque(real)
        cx.guard("length", source.then("begun", "parts"), len(parts))
        first = 0 if make is iteration.zip_ else 1  # the first part is a function
        values = [cx.wrap(p, source.then("begun", "parts").item(i)) for i, p in enumerate(parts)]
        values[first:] = [iteration.IteratorTaken(v) if isinstance(v, Object) else v for v in values[first:]]
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
    """Wrap an existing enumerate. Its steps also advance its source, so the source's steps must run no code."""
    cx.guard("type_is", source, enumerate)
    if not iterator_state.is_pure(real):
        return Opaque(real)
    iterator, start = (
        cx.wrap(p, source.then("begun", "parts").item(i)) for i, p in enumerate(iterator_state.read(real, "parts"))
    )

    numbers = itertools.count()

    def step() -> Value | None:
        value = cx.next_of(iterator)
        if value is None:
            return None
        return Tuple([operators.binary(cx, "+", start, Const(next(numbers))), cx.realize(value)])

    return ExistingOuterIterator(step, real)
