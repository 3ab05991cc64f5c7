"""Gather, scatter and search; indices and arguments that eager refuses; shapes, strides and padding."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.reports.core import report


@report(94778, "index_add of a vector that is broadcast")
def broadcast_index_add() -> Any:
    return lambda x, v: torch.index_add(x, 0, torch.tensor([4, 1, 2, 3, 0]), v.expand(5, 5)), lambda: (
        torch.randn(5, 5), torch.randn(5))  # fmt: skip


@report(108963, "index_add with alpha, divided, as two results")
def index_add_alpha() -> Any:
    def fn(x: Any) -> Any:
        made = torch.zeros(1, dtype=torch.double).index_add(0, torch.tensor([0]), x, alpha=2.0) / 2
        return made, made.clone()

    return fn, lambda: (torch.rand(1, dtype=torch.double),)


@report(191571, "scatter_add_ into one row, gathered in the same graph", described=True, cuda=True)
def scatter_then_gather() -> Any:
    def fn(x: Any, i: Any) -> Any:
        total = torch.zeros(1, x.shape[1])
        total.scatter_add_(0, i.unsqueeze(-1).expand(-1, x.shape[1]), x)
        return torch.index_select(total, 0, i)

    return fn, lambda: (torch.randn(8, 4), torch.zeros(8, dtype=torch.long))


@report(182343, "searchsorted in a slice of offsets", exact=True)
def search_in_slice() -> Any:
    return lambda offsets, x: torch.searchsorted(offsets[1:], x, right=True), lambda: (
        torch.tensor([0, 3, 7, 12]), torch.arange(12))  # fmt: skip


@report(183986, "index_add, index_copy, index_fill and index_put of an expanded tensor", exact=True)
def expanded_targets() -> Any:
    def fn(row: Any, i: Any, src: Any) -> Any:
        x = row.expand(4, 3)
        return (x.index_add(0, i, src), x.index_copy(0, i, src), x.index_fill(0, i, 7.0), x.index_put((i,), src),
                x.index_put((i,), src, accumulate=True))  # fmt: skip

    return fn, lambda: (torch.ones(1, 3), torch.tensor([0, 2]), torch.arange(6.0).reshape(2, 3))


@report(131321, "scatter_reduce refuses a negative index", cuda=True)
def negative_scatter() -> Any:
    return lambda x, i, src: torch.scatter_reduce(x, 0, i, src, "sum"), lambda: (
        torch.arange(4.0), torch.tensor([0, 1, 0, 1, 2, -1]), torch.arange(6.0))  # fmt: skip


@report(185885, "index_add refuses a negative index")
def negative_index_add() -> Any:
    def fn(x: Any, i: Any, src: Any) -> Any:
        made = torch.index_add(x, 0, i, src)
        return made, made.clamp_max(1.0)

    return fn, lambda: (torch.zeros(4, 3), torch.tensor([0, -1]), torch.ones(2, 3))


@report(183608, "embedding refuses a negative index")
def negative_embedding() -> Any:
    return lambda i, w: F.embedding(i, w), lambda: (torch.tensor([2, -2, 4]), torch.randn(5, 2))


@report(151918, "embedding of a weight that needs a gradient refuses a negative index", cuda=True)
def negative_trained_embedding() -> Any:
    return lambda i, w: torch.embedding(w, i), lambda: (torch.arange(8) - 4, torch.randn(8, 1, requires_grad=True))


@report(100831, "embedding refuses an index past its rows")
def large_embedding() -> Any:
    return lambda i, w: F.embedding(i, w), lambda: (torch.tensor([[0, 7, 3]]), torch.randn(1, 2))


@report(183769, "select past the end of a dimension is an error")
def select_past_end() -> Any:
    def fn(x: Any) -> Any:
        base = x.unsqueeze(1)
        return torch.cat((torch.select(base, 1, 0), torch.select(base, 1, 1)), -1)

    return fn, lambda: (torch.arange(12.0).reshape(3, 4),)


@report(193757, "binary_cross_entropy refuses targets past 1")
def targets_past_one() -> Any:
    return lambda t: F.binary_cross_entropy(torch.ones_like(t), t), lambda: (torch.ones(4, 4) * 1.5,)


@report(185246, "bernoulli refuses probabilities past 1")
def probabilities_past_one() -> Any:
    return lambda p: torch.bernoulli(p), lambda: (torch.tensor([0.5, 1.5]),)


@report(185248, "normal refuses negative standard deviations")
def negative_deviation() -> Any:
    return lambda m, s: torch.normal(m, s), lambda: (torch.zeros(4), torch.full((4,), -1.0))


@report(195675, "clamp refuses a bound that the dtype does not have")
def bound_past_float() -> Any:
    return lambda x: torch.clamp(x, min=-3.4e39, max=3.4e39), lambda: (torch.randn(4),)


@report(174174, "The remainder by the integer 0 is an error", cuda=True)
def remainder_by_zero() -> Any:
    return lambda x, y: torch.remainder(x, y), lambda: (torch.tensor([5, 6, 7]), torch.tensor([2, 0, 3]))


@report(154420, "fmod of uint8 by 0 is an error")
def fmod_by_zero() -> Any:
    return lambda x, y: torch.fmod(x, y), lambda: (
        torch.tensor([5, 6], dtype=torch.uint8), torch.tensor([2, 0], dtype=torch.uint8))  # fmt: skip


@report(150993, "A product of an int64 and a float matrix is an error")
def product_of_dtypes() -> Any:
    return lambda x, w: torch.mm(x, w), lambda: (torch.ones(2, 2), torch.ones(2, 2, dtype=torch.int64))


@report(189895, "A sum of 16,384, padded by one zero in front", cuda=True)
def padded_sum() -> Any:
    def fn(mask: Any) -> Any:
        return F.pad(torch.cumsum(mask.sum(-1, dtype=torch.int32), 0, dtype=torch.int32), (1, 0))

    return fn, lambda: (torch.ones(1, 16384, dtype=torch.bool),)


@report(144462, "One element is padded with zeros", exact=True, cuda=True)
def padded_element() -> Any:
    return lambda x: F.pad(x, (10, 10), "constant", 0), lambda: (torch.randn(1, 1, 1),)


@report(198201, "interpolate(nearest) by 1.3 keeps a dimension of 3 as it is", exact=True)
def unchanged_dimension() -> Any:
    return lambda x: F.interpolate(x, scale_factor=(1.3, 1.5), mode="nearest"), lambda: (
        torch.arange(12.0).reshape(1, 1, 3, 4),
    )


@report(147261, "interpolate by 1 / 300 with dynamic sizes", dynamic=True)
def shrunk_by_300() -> Any:
    return lambda x: F.interpolate(x, scale_factor=1 / 300, mode="linear").shape, lambda: (
        torch.randn(1, 2, 396 * 300),
    )


@report(114226, "pad by replication, cos, floor, a quotient and interpolate, in one order of results", cuda=True)
def order_of_results() -> Any:
    def fn(x: Any) -> Any:
        wave = torch.cos(F.pad(x, (0, 0, 5, 0), "replicate"))
        floor = torch.floor(wave)
        return wave / floor, F.interpolate(floor, size=[1, 1], mode="nearest")

    return fn, lambda: (torch.randn(2, 3, 4, 1),)


@report(113015, "A strided slice is summed, and negated for a maximum", exact=True)
def strided_slices() -> Any:
    def fn(x: Any) -> Any:
        first, every = x[-50:-49], x[-50::7]
        return every.sum(0).round(), torch.max(first, -every)

    return fn, lambda: (torch.arange(1, 151.0).reshape(50, 3),)


@report(172693, "reshape of a strided tensor with dynamic sizes keeps eager's strides", described=True, dynamic=True)
def strides_of_reshape() -> Any:
    def fn(x: Any) -> Any:
        y = x.transpose(0, 1).reshape(x.shape[1] * x.shape[0] // 2, 2)
        z = x[:, ::2].reshape(x.shape[0], -1, 1)
        return y, z, z.stride()

    return fn, lambda: (torch.arange(24.0).reshape(4, 6),), lambda: (torch.arange(60.0).reshape(6, 10),)


@report(116433, "Strides of a view with a dimension of one", dynamic=True)
def strides_of_view() -> Any:
    def fn(x: Any) -> Any:
        return (x + 1).view(-1, 1, 2)

    def strides(x: Any) -> Any:
        return fn(x).stride()

    return strides, lambda: (torch.arange(8.0),), lambda: (torch.arange(12.0),)


@report(130394, "empty_strided keeps its strides when it is filled", exact=True, cuda=True)
def filled_strided() -> Any:
    def fn(x: Any) -> Any:
        made = torch.empty_strided(x.size(), x.stride())
        made[:] = x + x
        return made, made.stride()

    return fn, lambda: (torch.randn(16, 16)[:, :8],)


for part, op in (
    ("copysign", lambda a, b: torch.copysign(a, b - 1.5)), ("floor_divide", lambda a, b: torch.floor_divide(a, b)),
    ("div", lambda a, b: torch.div(a, b, rounding_mode="floor")),
    ("addr", lambda a, b: torch.addr(a, b[:, 0], b[0], beta=0.0)),
    ("put", lambda a, b: a.put(torch.tensor([0, 7]), torch.tensor([1.0, 2.0]))),
):  # fmt: skip
    report(198364, f"Strides of {part} of a transposed input", exact=True, part=f" {part}")(
        lambda op=op: (lambda a, b: (op(a, b), op(a, b).stride()), lambda: (torch.rand(6, 5).mT, torch.rand(5, 6) + 1))
    )


@report(113172, "Strides of bessel_y0 of a transposed input", described=True)
def strides_of_bessel() -> Any:
    def fn(x: Any) -> Any:
        made = torch.special.bessel_y0(x)
        return made, made.stride()

    return fn, lambda: ((torch.rand(9, 10) + 0.5).t(),)


@report(168278, "The shape of sqrt(abs(.)) of a detached copy that needs a gradient")
def shape_of_detached() -> Any:
    def fn(x: Any) -> Any:
        y = x.clone().detach().requires_grad_(True)
        _ = y.ndim + 1
        return torch.sqrt(torch.abs(y)).detach()

    return fn, lambda: (torch.randn(6, 2, 3),)


@report(130290, "argwhere of equal elements of two meshes, used as an index")
def mapped_elements() -> Any:
    def fn(x: Any, mapping: Any) -> Any:
        xx, yy = torch.meshgrid(mapping, x, indexing="ij")
        found = torch.argwhere(xx == yy)
        made = torch.zeros_like(x)
        made[found[:, 1]] = found[:, 0]
        return made

    return fn, lambda: (torch.tensor([1, 2, 3, 5, 6, 7]), torch.tensor([0, 3, 4, 5, 7]))


@report(93823, "masked_fill by a mask that is broadcast", exact=True)
def broadcast_mask() -> Any:
    return lambda x, mask: x.masked_fill(mask, 0), lambda: (torch.rand(2, 4, 8), torch.ones(2, 4, 1).bool())


@report(93374, "where of a condition, a large and a small tensor of which two are broadcast", exact=True)
def broadcast_where() -> Any:
    big, small = torch.rand(13, 7, 3), torch.rand(1, 1)
    return lambda c: torch.where(c, big, small), lambda: (torch.tensor([[True]]),)


@report(154036, "vmap of jacrev with an auxiliary result")
def jacobians_with_aux() -> Any:
    def phi(x: Any, t: Any) -> Any:
        return torch.exp(-((x - 4 * t) ** 2) / (t + 1))

    def fn(x: Any, t: Any) -> Any:
        grad, value = torch.func.jacrev(lambda y: (phi(y, t),) * 2, has_aux=True)(x)
        return -grad / value + 4

    def batched(xs: Any, t: Any) -> Any:
        return torch.vmap(fn, in_dims=(0, None))(xs, t)

    return batched, lambda: (torch.linspace(-1, 1, 16, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64))


@report(141865, "A linear layer of fp32 weights refuses fp16")
def linear_of_half() -> Any:
    layer = torch.nn.Linear(1, 1).eval()
    return lambda x: layer(x), lambda: (torch.randn(1, 1, dtype=torch.float16),)


@report(96432, "The least of two concatenated tensors", exact=True)
def least_of_two() -> Any:
    return lambda a, b: torch.cat((a, b)).min(0).values, lambda: (torch.rand(2), torch.rand(2))


@report(171282, "The dtype of binary_cross_entropy_with_logits of bf16 with an fp32 weight", cuda=True)
def loss_of_dtypes() -> Any:
    def fn(x: Any, target: Any, weight: Any) -> Any:
        return torch.ops.aten.binary_cross_entropy_with_logits(x, target, weight, None, 2)

    return fn, lambda: (torch.randn(4, 5, 6).bfloat16(), torch.rand(4, 5, 6).bfloat16(), torch.rand(6))


BOOLS, WHOLE = torch.tensor([[True, False, True]]), torch.tensor([[1, -2, 3], [4, 0, -6]])
REFUSED = {
    "conv2d of bools": lambda: (F.conv2d, BOOLS[None, None], BOOLS[None, None]),
    "argmax of bools": lambda: (torch.argmax, BOOLS),
    "round of bools": lambda: (torch.round, BOOLS),
    "softmax of integers": lambda: (lambda x: F.softmax(x, 1), WHOLE),
    "var of integers": lambda: (torch.var, WHOLE),
    "max_pool1d of bools": lambda: (lambda x: F.max_pool1d(x, 2), BOOLS),
    "huber_loss of integers": lambda: (F.huber_loss, WHOLE, WHOLE + 1),
    "bitwise_and of floats": lambda: (torch.bitwise_and, WHOLE.float(), WHOLE.float()),
    "bitwise_not of floats": lambda: (torch.bitwise_not, WHOLE.float()),
    "mse_loss of complex numbers": lambda: (F.mse_loss, WHOLE + 1j, WHOLE - 1j),
    "nansum of complex numbers": lambda: (torch.nansum, WHOLE + 1j),
}
for name, made in REFUSED.items():
    report(198155, f"Eager refuses {name}", part=f" {name}")(lambda made=made: (made()[0], lambda: made()[1:]))
