"""Floats of Python's generators: `random.random()`, or those of a `random.Random` that the program has.

Generated code draws them before the graph runs, in the order of the program; in the graph each is a number that is not known.
So a draw breaks the graph where something before it could still fail, look at the generator, or make the frame run again.
Methods that keep more than the generator's state (`gauss`) have no handler: the program may look at it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from pycompiler.capture.breaks import Break
from pycompiler.capture.calls import Args, BuiltinHandler, Kwargs, builtin
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.functions import Builtin, Method
from pycompiler.capture.values.objects import Object

KNOWN = 1e150  # magnitude of the arguments from which the greatest result is computed
RANDOM = random.Random.random


def _drawing(name: str, parameters: dict[str, float | None], greatest: Callable[..., float]) -> BuiltinHandler:
    """The handler of a method.  `parameters`: with their defaults; `greatest`: the magnitude that no result exceeds."""

    def draw(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        method = getattr(random.Random, name)
        owner, *others = args
        given = {k: Const(d) for k, d in parameters.items()} | dict(zip(parameters, others, strict=False)) | kwargs
        known = [v.value for v in given.values() if type(v) is Const]
        fits = len(others) <= len(parameters) and given.keys() <= parameters.keys() and len(known) == len(given)
        plain = all(type(n) in (int, float) and -KNOWN < n < KNOWN for n in known)
        made = None
        if fits and plain and _is_whole(cx, owner) and may_come_first(cx):
            made = cx.sizes.drawn(len(cx.effects.draws), float(greatest(*known)))
        if made is None:
            raise Break("skipped-call", f"random.Random.{name}")
        cx.effects.draw(Builtin(method), [owner, *map(Const, known)])
        cx.graph.happened = cx.errors_of_data.acts = True
        return cx.make(made)

    return draw


def _is_whole(cx: Capture, owner: Value) -> bool:
    """Whether an existing generator is as its class made it: its methods call `self.random`."""
    if not isinstance(owner, Object) or owner.source is None or type(owner.real) is not random.Random or owner.overlay:
        return False
    found = owner.getattr(cx, "random")
    return isinstance(found, Method) and isinstance(found.function, Builtin) and found.function.fn is RANDOM


def may_come_first(cx: Capture) -> bool:
    """Whether a draw may come before all of the graph, which runs once."""
    errors, graph = cx.errors_of_data, cx.graph
    return not (
        hasattr(graph, "outer")
        or graph.bound
        or errors.refuses
        or errors.expected
        or any(n.meta.get("acts") for n in graph.graph.nodes)
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
