"""Convolutions of inference graphs on the CPU, channels last.

In: `aten.convolution` of images (batch, channels, rows, columns) with a weight that is an input of the graph.  Out, the
first that fits:

- of 1 x 1 windows over an image that is channels last, or some channels of one: a product of matrices;
- of depth, of a small image: the engine's kernel (`ir.plan.Depthwise`); of few multiply-adds and windows: a loop;
- of one group, in float32: the engine's kernel (`ir.plan.Convolution`);
- `mkldnn::_convolution_pointwise`, whose weight the plan packs once.

A call of oneDNN's takes about 45 us more than a product of matrices of the same size (called from Python, on a machine
with AVX2), as long as all of a small convolution takes.  The results are channels last, and ATen's poolings and
upsamplings keep that layout.  All other convolutions stay ATen calls, as do all convolutions of training graphs, whose
weights differ in each step.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from pycompiler import config
from pycompiler.ir.loops import Extern, Ref
from pycompiler.lowering import values
from pycompiler.lowering.body import BodyBuilder, Val
from pycompiler.lowering.graph import Lowering, is_dense, same_strides
from pycompiler.lowering.joining import fill_padded
from pycompiler.lowering.matmul import has_engine, is_full_precision, product_of
from pycompiler.lowering.matmul import is_of_engine as is_product_of_engine
from pycompiler.lowering.registry import lowering
from pycompiler.lowering.values import Value, channels_last_strides, contiguous_strides, to_exprs
from pycompiler.operators import packed_weights
from pycompiler.symbolic.expr import ONE, ZERO, Expr
from pycompiler.symbolic.hints import likely

aten = torch.ops.aten
VECTOR = 16  # with fewer channels, a loop over channels fills no vector
NEAR = 1024  # places of an image
LARGE = 1 << 22  # elements of an image that the engine copies for each thread
WINDOW = 25  # of more windows, oneDNN's kernel is faster than an unrolled loop
SMALL = 1 << 20  # multiply-adds; oneDNN's kernel needs fewer cycles for each, which outweighs its call


@lowering(aten.convolution)
def convolution(low: Lowering, x: Value, weight: Value, bias: Value | None, stride: Sequence[int],
                padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Sequence[int],
                groups: int) -> Any:  # fmt: skip
    op = packed_weights.convolution()
    numbers = [*stride, *padding, *dilation, groups]
    if op is None or transposed or not all(type(n) is int for n in numbers) or not is_inference(low, x, weight, bias):
        return NotImplemented
    steps, around, apart = (each(n, x.rank - 2) for n in (stride, padding, dilation))
    kernel = [n.as_int() for n in weight.shape[2:]]
    if (
        groups == 1
        and kernel == steps == [1, 1]
        and around == [0, 0]
        and (step := step_of_places(x)) is not None
        and is_exact_product(x, bias)
    ):
        return product(low, x, weight, bias, step)
    if weight.shape[:2] == (x.shape[1], ONE) and weight.shape[0] >= VECTOR and x.dtype is torch.float32:
        if is_near(x) and has_engine(low):
            return by_engine(low, x, weight, bias, [steps, around, apart], groups)
        if is_small(low, weight):
            return of_depth(low, x, weight, bias, kernel, steps, around, apart)
    if is_of_engine(low, x, weight, groups):
        return by_engine(low, x, weight, bias, [steps, around, apart], groups)
    if not config.pack_weights or not all(s.is_const for s in weight.stride):  # the engine compares bytes alone
        return NotImplemented
    added = None if bias is None else low.realised(bias, contiguous_strides(bias.shape)).ref()  # oneDNN ignores strides
    given = [whole(low, x), weight.ref(), added]
    return channels_last_call(low, op, [*given, around, steps, apart, groups, "none", [], None])


def each(numbers: Sequence[int], rank: int) -> list[int]:
    """One number for each dimension."""
    return list(numbers) * rank if len(numbers) == 1 else list(numbers)


def is_inference(low: Lowering, x: Value, weight: Value, bias: Value | None) -> bool:
    """Whether it is a convolution of images by a weight of the program, without gradients, in a dtype of oneDNN."""
    node: Any = low.node.args[1]
    if not (low.gm.meta.get("inference") and node.op == "placeholder"):
        return False
    if low.fake.device.type != "cpu" or not torch._C._get_mkldnn_enabled() or x.rank != packed_weights.RANK:
        return False
    if not packed_weights.takes(x.dtype) or {v.dtype for v in (x, weight, bias) if v is not None} != {x.dtype}:
        return False
    if not all(n.is_const and n != 0 for n in weight.shape):
        return False
    return all(low.at_least(n, 1) for n in (*x.shape, *to_exprs(low.fake.shape)))


def step_of_places(x: Value) -> Expr | None:
    """Elements between neighbouring places of an image: all places lie equally far apart, and channels are adjacent.
    None for other images."""
    batch, channels, rows, columns = x.shape
    order = ((columns, x.stride[3]), (rows, x.stride[2]), (batch, x.stride[0]))
    step = next((stride for n, stride in order if n != 1), channels)
    expected = (step * columns * rows, ONE, step * columns, step)
    return step if x.buffer is not None and same_strides(x.shape, x.stride, expected) else None


def is_exact_product(x: Value, bias: Value | None) -> bool:
    """Whether a product of matrices rounds as a convolution does."""
    if x.dtype is torch.float32:
        return is_full_precision()
    return bias is None  # the sum would be rounded before the bias is added


def is_small(low: Lowering, weight: Value) -> bool:
    """Whether a convolution of depth is faster as a loop."""
    windows = weight.shape[2].as_int() * weight.shape[3].as_int()
    places = likely(values.product(to_exprs(low.fake.shape)))
    return windows <= WINDOW and places is not None and places * windows <= SMALL


def is_near(x: Value) -> bool:
    """Whether the engine's kernel, which copies the image, is faster than a loop or oneDNN's kernel."""
    places = likely(values.product(x.shape[2:]))
    return places is not None and places <= NEAR


def is_of_engine(low: Lowering, x: Value, weight: Value, groups: int) -> bool:
    """Whether the engine's kernel for a single group is as fast as oneDNN's.  It packs the weight in each call, or once if
    `freezing` promises that it stays."""
    if groups != 1 or x.dtype is not torch.float32 or not has_engine(low) or weight.buffer is None:
        return False
    places = likely(values.product(x.shape[1:]))
    is_contiguous = same_strides(weight.shape, weight.stride, contiguous_strides(weight.shape))
    return is_contiguous and weight.shape[0] >= VECTOR and places is not None and places <= LARGE


def by_engine(low: Lowering, x: Value, weight: Value, bias: Value | None, numbers: list[Any], groups: int) -> Value:
    """A convolution by the engine."""
    image = low.realised(x, channels_last_strides(x.shape)).ref()
    factors = low.realised(weight, contiguous_strides(weight.shape)).ref()
    added = None if bias is None else low.realised(bias, contiguous_strides(bias.shape)).ref()
    buffer = low.channels_last_buffer(low.fake)
    args = (image, factors, added, *numbers, False, [0, 0], groups)
    low.add(Extern(aten.convolution.default, args, {}, (buffer,), origin=(low.node.name,), by_engine=True))
    return low.value_of(buffer)


def whole(low: Lowering, x: Value) -> Ref:
    """The image as it lies in memory, if it lies there without gaps."""
    return x.ref() if x.buffer is not None and is_dense(x.shape, x.stride) else low.copy(x).ref()


def channels_last_call(low: Lowering, op: Any, args: Sequence[Any]) -> Value:
    buffer = low.channels_last_buffer(low.fake)
    low.add(Extern(op, tuple(args), {}, (buffer,), origin=(low.node.name,)))
    return low.value_of(buffer)


def product(low: Lowering, x: Value, weight: Value, bias: Value | None, step: Expr) -> Value:
    """One row of a matrix for each place of the image, `step` elements apart.

    A loop adds the bias: ATen would first copy it to every row.
    """
    assert x.buffer is not None
    batch, given, rows, columns = x.shape
    places, taken = batch * rows * columns, weight.shape[0]
    left = Ref(x.buffer, (places, given), (step, ONE), x.offset)
    matrix = low.realised(values.permute(values.reshape(weight, [taken, given]), (1, 0))).ref()
    by_engine = x.dtype is torch.float32 and is_product_of_engine(low, (places, taken), matrix)
    rows_of = product_of(low, left, matrix, by_engine=by_engine)
    assert rows_of.buffer is not None
    low.channels_last.add(rows_of.buffer)
    shape = (batch, taken, rows, columns)
    sums = values.restrided(rows_of, shape, channels_last_strides(shape), ZERO)
    if bias is None:
        return sums
    return low.pointwise(lambda b, i: sums.load(b, i) + bias.load(b, [i[1]]), low.channels_last_buffer(low.fake))


def of_depth(low: Lowering, x: Value, weight: Value, bias: Value | None, kernel: Sequence[int], steps: Sequence[int],
             around: Sequence[int], apart: Sequence[int]) -> Value:  # fmt: skip
    """Each channel by its own windows: a loop over places and channels, with all windows unrolled."""
    image = low.realised(x)
    if any(around):  # zeros around it, channels last
        shape = (*x.shape[:2], *(n + 2 * p for n, p in zip(x.shape[2:], around, strict=True)))
        buffer = low.fresh(x.dtype, shape, channels_last_strides(shape), x.device)
        image = fill_padded(low, x, [ZERO, ZERO, *map(Expr.of, around)], 0, buffer)
    channels = weight.shape[0]
    windows = values.reshape(weight, [channels, kernel[0] * kernel[1]])
    windows = low.copy(values.permute(windows, (1, 0)))  # a vector of channels for each window
    added = None if bias is None else low.realised(bias)

    def emit(body: BodyBuilder, index: list[Expr]) -> Val:
        n, c, i, j = index
        total = None if added is None else added.load(body, [c])
        for k, at in enumerate(itertools.product(range(kernel[0]), range(kernel[1]))):
            place = [p * s + q * a for p, s, q, a in zip((i, j), steps, at, apart, strict=True)]
            value, factor = image.load(body, [n, c, *place]), windows.load(body, [Expr.of(k), c])
            total = value * factor if total is None else value.op("fma", factor, total)
        assert total is not None
        return total

    return low.pointwise(emit, low.channels_last_buffer(low.fake))


@lowering(aten.avg_pool2d, aten._adaptive_avg_pool2d, aten.upsample_nearest2d, aten.upsample_bilinear2d)
def resampled(low: Lowering, x: Value, *options: Any) -> Any:
    if not low.keeps_channels_last(low.fake, [x]):
        return NotImplemented
    return channels_last_call(low, low.op, [x.ref(), *options])
