"""Max pooling over windows.

In: an image.  Out: a loop for each window's maximum, and a loop for its position, which is dropped if it is not read.
Of equal values the first one wins, and the last NaN wins, as in ATen's kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from pycompiler.lowering.body import BodyBuilder, Val, compute_dtype
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.registry import lowering
from pycompiler.lowering.values import Value
from pycompiler.symbolic.expr import Expr

aten = torch.ops.aten
WINDOW = 25  # for larger windows the unrolled loop is slower than ATen's kernel


@lowering(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    low: Lowering,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    kernel, pad = _pair(kernel_size), _pair(padding)
    step = _pair(stride or kernel_size)
    values, positions = low.fake
    sizes = [n.const for n in x.shape[-2:]]
    if (
        kernel[0] * kernel[1] > WINDOW
        or _pair(dilation) != (1, 1)
        or not x.dtype.is_floating_point
        or any(n is None or n == 0 for n in x.shape)
        or None in sizes
        or values.device.type != "cpu"
    ):
        return NotImplemented
    source, width = low.realised(x), x.shape[-1]
    compute, lowest = compute_dtype(x.dtype), -math.inf

    def window(body: BodyBuilder, index: list[Expr]) -> list[tuple[Val, Expr]]:
        """(value, position in the image) at each place of the window.

        Places outside are moved into the image.  Padding is at most half a window, so the replacement is in the window
        too, and is visited in the same order.
        """
        starts = [i * s - p for i, s, p in zip(index[-2:], step, pad, strict=True)]
        found = []
        for offsets in itertools.product(range(kernel[0]), range(kernel[1])):
            places = [start + k for start, k in zip(starts, offsets, strict=True)]
            at = [_inside(body, place, n) for place, n in zip(places, x.shape[-2:], strict=True)]
            found.append((source.load(body, [*index[:-2], *at]).to(compute), at[0] * width + at[1]))
        return found

    def greatest(body: BodyBuilder, index: list[Expr]) -> Val:
        best = body.const(lowest, compute)
        for value, _ in window(body, index):
            best = value.op("maximum", best)
        return best

    def position(body: BodyBuilder, index: list[Expr]) -> Val:
        best = body.const(lowest, compute)
        first = [(i * s - p).max(0) for i, s, p in zip(index[-2:], step, pad, strict=True)]
        at = _small_index(body, first[0] * width + first[1])
        for value, place in window(body, index):
            wins = (value > best) | value.test("isnan")
            best, at = wins.where(value, best), wins.where(_small_index(body, place), at)
        return at

    return tuple(
        low.pointwise(emit, low.buffer_for(fake, like=[x]))
        for emit, fake in ((greatest, values), (position, positions))
    )


def _pair(numbers: Sequence[int]) -> tuple[int, int]:
    return (int(numbers[0]), int(numbers[-1]))


def _small_index(body: BodyBuilder, e: Expr) -> Val:
    """A position below 2**31 in int32: a vector holds twice as many."""
    return body.emit("index", (), torch.int32, (e,))


def _inside(body: BodyBuilder, place: Expr, size: Expr) -> Expr:
    """The nearest place in [0, size); comparisons that always hold are left out."""
    least, most = place.bounds(body.ranges)
    if least is None or least < 0:
        place = place.max(0)
    return place.min(size - 1) if most is None or most >= size.as_int() else place
