"""Reductions that do not vectorise, as two that do: moments, and extremes with their positions.

In: a graph and a fold in it.  Out: the loops that replace it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from pycompiler.ir.kernel import loads, space_of
from pycompiler.ir.loops import Buffer, Extern, Loop, Op
from pycompiler.scheduling.body import CHEAP, FEW, cost
from pycompiler.scheduling.graph import BufferGraph
from pycompiler.scheduling.iteration_space import rewrite
from pycompiler.symbolic.expr import ZERO, Expr
from pycompiler.symbolic.hints import likely

FAR = 4  # length of the chain of producers of a fold that is searched
FIRST = 64  # limit of the arithmetic that is repeated for the first value of a row
# Digits of a float's mantissa.
DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def _buffer(
    graph: BufferGraph, name: str, dtype: torch.dtype, dims: list[tuple[str, Expr]], device: torch.device
) -> tuple[Buffer, Expr]:
    """A fresh contiguous buffer over `dims` and the index that stores into it."""
    stride, at, strides = Expr.of(1), Expr.of(0), []
    for v, n in reversed(dims):
        strides.append(stride)
        at = at + Expr.sym(v) * stride
        stride = stride * n
    buffer = Buffer(name, dtype, tuple(n for _, n in dims), tuple(reversed(strides)), device)
    graph.buffers[name] = buffer
    return buffer, at


def _twice(graph: BufferGraph, node: Loop, name: str) -> tuple[list[Loop], Loop]:
    """(nodes to add, `node` with a value that is cheap to compute twice)."""
    folded = set(node.reduction.vars) if node.reduction is not None else set()
    if cost(node) <= CHEAP and sum(not folded.isdisjoint(at.symbols) for _, at in loads(node)) <= 1:
        return [], node
    dims, dtype = space_of(node), node.body[node.results[0]].dtype
    whole, at = _buffer(graph, f"{name}_x", dtype, dims, node.out[0].device)
    vars_, ranges = tuple(v for v, _ in dims), tuple(n for _, n in dims)
    stored = replace(node, out=(whole,), vars=vars_, ranges=ranges, store_index=(at,), reduction=None)
    return [stored], replace(node, body=(Op("load", (), dtype, (whole.name, at)),), results=(0,))


def _sums_equal_numbers(node: Loop, count: Expr) -> bool:
    """Whether the sum of `count` equal numbers is exact: their dtype has fewer digits than the sum's."""
    result = node.body[node.results[0]]
    source = node.body[result.args[0]].dtype if result.name == "cast" else result.dtype
    spare = DIGITS.get(result.dtype, 0) - DIGITS.get(source, DIGITS[torch.float64])
    return count.is_const and spare >= 0 and count.as_int() <= 2**spare


def _available_early(graph: BufferGraph, loop: Loop, far: int = FAR) -> bool:
    """Whether a few values of the loop can be computed before the rest: its inputs are in memory, or may be recomputed."""
    if cost(loop) > FIRST:
        return False
    writers = [w for name in {name for name, _ in loads(loop)} for w in graph.writers[name]]
    return all(
        isinstance(w, Extern) or (far > 0 and graph.repeatable(w) and _available_early(graph, w, far - 1))
        for w in writers
    )


class Moments:
    """Mean and m2 = sum((x - mean)^2), in one of three ways.

    - Numbers with spare digits (float32 in double): one pass over their distances d from the first number.  With s =
      sum(d) and q = sum(d^2), mean = first + s/n and m2 = q - s^2/n.  The first number is one of the n, so q <= (n + 1)
      m2.  The difference loses at most log2(n + 1) of the 29 spare bits, however far the first number is from the mean.
    - The same numbers if the first one is not available before the others: two passes, sum(x) and sum((x - mean)^2).
    - Numbers without spare digits: two passes.  The second also sums the distances from the rounded mean, and their
      average corrects both results.  (The rounded sum of equal numbers has another mean, from which all of them
      differ.)
    """

    def __init__(self, graph: BufferGraph, node: Loop) -> None:
        assert node.reduction is not None
        self.graph, self.node, self.dtype = graph, node, node.body[node.results[0]].dtype
        self.count = math.prod(node.reduction.ranges, start=Expr.of(1))
        self.made, self.value = _twice(graph, node, node.out[0].name)
        self.fold = replace(node.reduction, kind="sum")

    def loops(self) -> list[Loop]:
        (mean, m2), (mean_at, m2_at) = self.node.out, self.node.store_index
        if self.has_spare_digits() and not self.made and self.is_long() and _available_early(self.graph, self.node):
            first = self.start()
            total, square = (
                self.folded("sum", self.apart(*first)),
                self.folded("square", self.apart(*first, square=True)),
            )
            average = self.average(total)
            self.finished(mean, mean_at, self.plus(average, first))
            self.finished(m2, m2_at, self.corrected(average, square))
        elif _sums_equal_numbers(self.node, self.count):
            self.finished(mean, mean_at, self.average(self.folded("sum")))
            self.folded_into(m2, m2_at, self.apart(mean.name, mean_at, square=True))
        else:
            near = self.buffer("near")
            self.finished(*near, self.average(self.folded("sum")))
            at = near[0].name, near[1]
            rest, square = self.folded("rest", self.apart(*at)), self.folded("square", self.apart(*at, square=True))
            average = self.average(rest)
            self.finished(mean, mean_at, self.plus(average, at))
            self.finished(m2, m2_at, self.corrected(average, square))
        return self.made

    def has_spare_digits(self) -> bool:
        result = self.node.body[self.node.results[0]]
        source = self.node.body[result.args[0]].dtype if result.name == "cast" else result.dtype
        return self.dtype == torch.float64 and source != torch.float64

    def is_long(self) -> bool:
        count = likely(self.count)
        return count is None or count >= FEW

    # ---- loops ---------------------------------------------------------------------------------------------------

    def buffer(self, name: str) -> tuple[Buffer, Expr]:
        dims = space_of(self.node)[: len(self.node.vars)]
        return _buffer(self.graph, f"{self.node.out[0].name}_{name}", self.dtype, dims, self.node.out[0].device)

    def folded(self, name: str, body: tuple[Op, ...] = ()) -> tuple[str, Expr]:
        out, at = self.buffer(name)
        self.folded_into(out, at, body)
        return out.name, at

    def folded_into(self, out: Buffer, at: Expr, body: tuple[Op, ...]) -> None:
        """Append a loop that sums a body's last value, or the numbers themselves without a body."""
        result = len(body) - 1 if body else self.value.results[0]
        loop = replace(self.value, out=(out,), body=body or self.value.body, results=(result,), store_index=(at,))
        self.made.append(replace(loop, reduction=self.fold))

    def finished(self, out: Buffer, at: Expr, body: tuple[Op, ...]) -> None:
        node = self.node
        self.made.append(Loop((out,), node.vars, node.ranges, body, (len(body) - 1,), (at,), origin=node.origin))

    def start(self) -> tuple[str, Expr]:
        """The first of the numbers; 0 if it is infinite or NaN."""
        out, at = self.buffer("start")
        node, k, x = self.node, len(self.node.body), self.node.results[0]
        finite = (
            Op("sub", (x, x), self.dtype),
            Op("const", (), self.dtype, (0.0,)),
            Op("eq", (k, k + 1), torch.bool),
            Op("where", (k + 2, x, k + 1), self.dtype),
        )
        first = replace(
            node, out=(out,), store_index=(at,), reduction=None, body=(*node.body, *finite), results=(k + 3,)
        )
        dims = space_of(node)[: len(node.vars)]
        self.made.append(rewrite(first, dict.fromkeys(self.fold.vars, ZERO), dims, dict(dims)))
        return out.name, at

    # ---- bodies --------------------------------------------------------------------------------------------------

    def average(self, total: tuple[str, Expr]) -> tuple[Op, ...]:
        load = Op("load", (), self.dtype, total)
        if self.count.is_const:
            count = Op("const", (), self.dtype, (float(self.count.as_int()),))
            return load, count, Op("truediv", (0, 1), self.dtype)
        index = Op("index", (), torch.int64, (self.count,))
        return load, index, Op("cast", (1,), self.dtype), Op("truediv", (0, 2), self.dtype)

    def apart(self, name: str, at: Expr, *, square: bool = False) -> tuple[Op, ...]:
        """The distance of a number from an element, or its square."""
        k, x = len(self.value.body), self.value.results[0]
        gap = (*self.value.body, Op("load", (), self.dtype, (name, at)), Op("sub", (x, k), self.dtype))
        return (*gap, Op("mul", (k + 1, k + 1), self.dtype)) if square else gap

    def plus(self, average: tuple[Op, ...], element: tuple[str, Expr]) -> tuple[Op, ...]:
        k = len(average)
        return (*average, Op("load", (), self.dtype, element), Op("add", (k - 1, k), self.dtype))

    def corrected(self, average: tuple[Op, ...], square: tuple[str, Expr]) -> tuple[Op, ...]:
        """`square` minus (average * total), at least 0 despite rounding.  `average` computes the average of the total."""
        k, dtype = len(average), self.dtype
        less = (Op("mul", (0, k - 1), dtype), Op("load", (), dtype, square), Op("sub", (k + 1, k), dtype))
        return (*average, *less, Op("const", (), dtype, (0.0,)), Op("maximum", (k + 2, k + 3), dtype))


def _welford(graph: BufferGraph, node: Loop) -> list[Loop]:
    return Moments(graph, node).loops()


def _argument(graph: BufferGraph, node: Loop) -> list[Loop]:
    """The extreme, then the least position of a value that equals it (or is NaN, since a NaN wins)."""
    reduction = node.reduction
    assert reduction is not None
    points = math.prod(reduction.ranges, start=Expr.of(1))
    if points.const is not None and points.const >= 2**31:
        return [node]
    index = torch.int32 if points.const is not None else torch.int64
    (out,), dtype, outer = node.out, node.body[node.results[0]].dtype, space_of(node)[: len(node.vars)]
    if dtype == torch.bool:
        body = (*node.body, Op("cast", (node.results[0],), torch.int32))
        return _argument(graph, replace(node, body=body, results=(len(body) - 1,)))
    best, best_at = _buffer(graph, f"{out.name}_best", dtype, outer, out.device)
    first, first_at = _buffer(graph, f"{out.name}_first", index, outer, out.device)
    made, value = _twice(graph, node, out.name)
    if dtype.is_floating_point:
        graph.held |= {name for name, _ in loads(value)}
    made.append(
        replace(value, out=(best,), store_index=(best_at,), reduction=replace(reduction, kind=reduction.kind[3:]))
    )
    position, stride = Expr.of(0), Expr.of(1)
    for v, n in zip(reversed(reduction.vars), reversed(reduction.ranges), strict=True):
        position, stride = position + Expr.sym(v) * stride, stride * n
    k, x = len(value.body), value.results[0]
    search = [
        *value.body,
        Op("load", (), dtype, (best.name, best_at)),
        Op("eq", (x, k), torch.bool),
        Op("isnan", (x,), torch.bool),
        Op("or", (k + 1, k + 2), torch.bool),
        Op("index", (), index, (position,)),
        Op("index", (), index, (points,)) if points.const is None else Op("const", (), index, (points.const,)),
        Op("where", (k + 3, k + 4, k + 5), index),
    ]
    fold = replace(reduction, kind="min")
    made.append(
        replace(value, out=(first,), body=tuple(search), results=(k + 6,), store_index=(first_at,), reduction=fold)
    )
    wide: tuple[Op, ...] = (Op("load", (), index, (first.name, first_at)),)
    if index != torch.int64:
        wide += (Op("cast", (0,), torch.int64),)
    made.append(Loop((out,), node.vars, node.ranges, wide, (len(wide) - 1,), node.store_index, origin=node.origin))
    return made


TWO_PASSES: dict[str, Callable[[BufferGraph, Loop], list[Loop]]] = {
    "welford": _welford, "argmax": _argument, "argmin": _argument,
}  # fmt: skip
