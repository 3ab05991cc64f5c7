"""Handlers of Python's random generators: `random.random()`, `random.randint(1, 6)`, and methods of an existing
`random.Random`.

In: a call.
Out: an unknown number in the graph.  Generated code draws it before the graph runs, in the order of the program.  So
a draw breaks the graph if an earlier operation may fail, read the generator, or make the frame run again.  Methods
that store more than the generator's state (`gauss`) have no handler: the program may read the stored value.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, BuiltinHandler, Kwargs, builtin
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.functions import Builtin, Function, Method
from pycompiler.capture.values.objects import Object
from pycompiler.ir.node_effects import effects_of

GREATEST = 2**60  # largest magnitude of drawn integers
KNOWN = 1e150  # largest magnitude of the arguments, from which the greatest result is computed
PARTS = {name: getattr(random.Random, name) for name in ("random", "getrandbits", "randrange", "_randbelow")}
"""The methods that all other methods call."""


def _drawing(name: str, parameters: dict[str, float | None], greatest: Callable[..., float]) -> BuiltinHandler:
    """The handler of a method. `parameters`: with their defaults; `greatest`: a bound on the magnitude of results."""

    def draw(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        method = getattr(random.Random, name)
        owner, *others = args
        given = {k: Const(d) for k, d in parameters.items()} | dict(zip(parameters, others, strict=False)) | kwargs
        known = [v.value for v in given.values() if type(v) is Const]
        fits = len(others) <= len(parameters) and given.keys() <= parameters.keys() and len(known) == len(given)
        plain = all(type(n) in (int, float) and -KNOWN < n < KNOWN for n in known)
        made = None
        if fits and plain and _is_whole(cx, owner) and may_draw_before_graph(cx, apart=True):
            made = cx.sizes.drawn(len(cx.effects.draws), float, float(greatest(*known)))
        if made is None:
            raise Break("skipped-call", f"random.Random.{name}")
        _draw(cx, method, [owner, *map(Const, known)])
        return cx.make(made)

    return draw


def _draw(cx: Capture, method: Callable[..., float], args: list[Value]) -> None:
    cx.effects.draw(Builtin(method), args)
    cx.graph.happened = cx.errors_of_data.done.takes = True


def _drawing_of(name: str, numbers: Callable[..., range]) -> BuiltinHandler:
    """The handler of a method that returns one of the integers `numbers(*args)`; the draw is an index into them."""

    def draw(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        owner, *given = args
        plain = all(type(v) is Const and type(v.value) is int for v in [*given, *kwargs.values()])
        made, among = None, range(0)
        if plain and _is_whole(cx, owner):
            with contextlib.suppress(TypeError, ValueError):  # Python raises the error
                among = numbers(*[v.const() for v in given], **{k: v.const() for k, v in kwargs.items()})
            ends = [abs(n) for n in (among.start, among.stop)]
            if among and max(ends) < GREATEST and may_draw_before_graph(cx, apart=True):
                made = cx.sizes.drawn(len(cx.effects.draws), int, len(among) - 1)
        if made is None:
            raise Break("skipped-call", f"random.Random.{name}")
        _draw(cx, random.Random.randrange, [owner, Const(len(among))])
        return cx.make(among.start + among.step * made)

    return draw


def _is_whole(cx: Capture, owner: Value) -> bool:
    """Whether an existing generator has the methods of its class: its methods call one another."""
    if not isinstance(owner, Object) or owner.source is None or type(owner.real) is not random.Random or owner.overlay:
        return False
    for name, function in PARTS.items():
        found = owner.getattr(cx, name)
        held = found.function if isinstance(found, Method) else None
        if (
            held.fn if isinstance(held, Builtin) else held.real if isinstance(held, Function) else None
        ) is not function:
            return False
    return True


def may_draw_before_graph(cx: Capture, *, apart: bool = False) -> bool:
    """Whether a draw may come before the whole graph, which runs once. `apart`: torch's draws do not affect it."""
    errors, graph = cx.errors_of_data, cx.graph
    return not (
        graph.is_inner
        or graph.bound.readings
        or errors.refuses
        or errors.expected
        or any(effects_of(n).acts and not (apart and effects_of(n).draws) for n in graph.graph.nodes)
        or any(w.kind == "call" for w in cx.effects.journal)
    )


BUILT: dict[str, tuple[dict[str, float | None], Callable[..., float]]] = {
    "random": ({}, lambda: 1.0),
    "uniform": ({"a": None, "b": None}, lambda a, b: abs(a) + abs(b - a)),
    "normalvariate": (
        {"mu": 0.0, "sigma": 1.0},
        lambda mu, sigma: abs(mu) + 13 * abs(sigma),
    ),  # 2 sqrt(log(2**53)) < 13
}
for _name, (_parameters, _greatest) in BUILT.items():
    builtin(getattr(random.Random, _name))(_drawing(_name, _parameters, _greatest))


def _between(a: int, b: int) -> range:
    return range(a, b + 1)


def _counted(start: int, stop: int | None = None, step: int = 1) -> range:
    return range(start) if stop is None else range(start, stop, step)


builtin(random.Random.randint)(_drawing_of("randint", _between))
builtin(random.Random.randrange)(_drawing_of("randrange", _counted))
