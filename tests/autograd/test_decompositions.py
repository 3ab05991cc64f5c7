"""The project's own decomposition rules, compared with ATen's kernels on random arguments; precedence in the rule table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import pycompiler
from pycompiler.autograd.decomp.foreach import foreach
from pycompiler.autograd.decomp.registry import RULES, rule
from pycompiler.autograd.decompositions import default_decompositions
from pycompiler.operators.operator_facts import facts_of

aten = torch.ops.aten


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (4, 6)))


def layer_norm_backward() -> tuple[Any, ...]:
    a, w, b = x(5, 4, 6), x(4, 6), x(4, 6)
    _, mean, rstd = aten.native_layer_norm(a, [4, 6], w, b, 1e-5)
    return x(5, 4, 6), a, [4, 6], mean, rstd, w, b, [True, True, True]


def batch_norm_backward(train: bool) -> tuple[Any, ...]:
    a, w = x(3, 5, 7), x(5)
    mean, rstd = a.mean((0, 2)), (a.var((0, 2), correction=0) + 1e-5).rsqrt()
    return x(3, 5, 7), a, w, x(5), x(5).abs() + 0.5, mean, rstd, train, 1e-5, [True, True, True]


def group_norm_backward() -> tuple[Any, ...]:
    a, w = x(2, 6, 5), x(6)
    _, mean, rstd = aten.native_group_norm(a, w, x(6), 2, 6, 5, 3, 1e-5)
    return x(2, 6, 5), a, mean, rstd, w, 2, 6, 5, 3, [True, True, True]


def nll_backward(reduction: int, weight: torch.Tensor | None) -> tuple[Any, ...]:
    t = torch.tensor([1, 0, 5, 2])
    logp = x(4, 6).log_softmax(1)
    _, total = aten.nll_loss_forward(logp, t, weight, reduction, 2)
    return torch.rand(4) if reduction == 0 else torch.rand(()), logp, t, weight, reduction, 2, total


T = torch.tensor([1, 0, 5, 2])
CASES: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.t.default, (x(),), {}),
    (aten.t.default, (x(3),), {}),
    (aten.transpose.int, (x(2, 3, 4), 0, -1), {}),
    (aten._unsafe_view.default, (x(), [6, 4]), {}),
    (aten.slice.Tensor, (x(), 1, 0, 99), {}),
    (aten.split.Tensor, (x(), 4, 1), {}),
    (aten.split_with_sizes.default, (x(), [1, 5], 1), {}),
    (aten.unbind.int, (x(), 1), {}),
    (aten.expand.default, (x(4, 6), [4, 6]), {}),
    (aten.clone.default, (x(4, 6).t(),), {"memory_format": torch.preserve_format}),
    (aten.copy.default, (x(4, 6), x(6)), {}),
    (aten.copy.default, (x(4, 6), x(4, 6).double()), {}),
    (aten.copy.default, (x(4, 6), x(6, 4).t()), {}),
    (aten.select_backward.default, (x(4), [4, 6], 1, 2), {}),
    (aten.select_backward.default, (x(6), [4, 6], -2, -1), {}),
    (aten.slice_backward.default, (x(4, 3), [4, 6], 1, 2, 5, 1), {}),
    (aten.slice_backward.default, (x(4, 3), [4, 6], 1, -3, 9999, 1), {}),
    (aten.slice_backward.default, (x(4, 2), [4, 6], 1, 1, 5, 2), {}),
    (aten._efficientzerotensor.default, ([2, 3],), {}),
    (aten.zeros.default, ([2, 3],), {}),
    (aten.ones.default, ([2, 3],), {"dtype": torch.int32}),
    (aten.new_zeros.default, (x(), [3]), {}),
    (aten.new_ones.default, (x(), [3]), {}),
    (aten.new_full.default, (x(), [3], 7), {"dtype": torch.int64}),
    (aten.zeros_like.default, (x(2, 3, 4).permute(2, 0, 1),), {}),
    (aten.ones_like.default, (x(2, 3, 4).permute(1, 0, 2),), {"dtype": torch.float64}),
    (aten.full_like.default, (x(), 3), {}),
    (aten.fill.Scalar, (x(), 3), {}),
    (aten.zero.default, (x(),), {}),
    (aten.hardsigmoid.default, (x() * 3,), {}),
    (aten.hardswish.default, (x() * 3,), {}),
    (aten.hardsigmoid_backward.default, (x(), x() * 3), {}),
    (aten.hardswish_backward.default, (x(), x() * 3), {}),
    (aten.elu_backward.default, (x(), 0.7, 1.3, 0.9, False, x()), {}),
    (aten.elu_backward.default, (x(), 0.7, 1.3, 0.9, True, x()), {}),
    (aten.silu.default, (x(),), {}),
    (aten.silu_backward.default, (x(), x()), {}),
    (aten.sigmoid_backward.default, (x(), x()), {}),
    (aten.tanh_backward.default, (x(), x()), {}),
    (aten.threshold_backward.default, (x(), x(), 0), {}),
    (aten.leaky_relu_backward.default, (x(), x(), 0.1, False), {}),
    (aten.hardtanh_backward.default, (x(), x(), -0.5, 0.5), {}),
    (aten.native_dropout_backward.default, (x(), x() > 0, 2.0), {}),
    (aten.mul.Scalar, (x(), 2.5), {}),
    (aten.div.Scalar, (x(), 2.5), {}),
    (aten.add.Scalar, (x(), 2.5, 3), {}),
    (aten.sub.Scalar, (x(), 2.5, 3), {}),
    (aten.rsub.Scalar, (x(), 2.5), {}),
    (aten.rsub.Tensor, (x(), x()), {"alpha": 2}),
    (aten.sgn.default, (x(),), {}),
    (aten.masked_fill.Scalar, (x(), x() > 0, float("-inf")), {}),
    (aten.masked_fill.Tensor, (x(), x() > 0, torch.tensor(2.0)), {}),
    (aten._softmax.default, (x(), 1, False), {}),
    (aten._softmax.default, (x().bfloat16(), 0, False), {}),
    (aten._log_softmax.default, (x(), 0, False), {}),
    (aten._softmax_backward_data.default, (x(), x().softmax(1), 1, torch.float32), {}),
    (aten._log_softmax_backward_data.default, (x(), x().log_softmax(1), 1, torch.float32), {}),
    (aten.sum.default, (x(2, 3, 4),), {}),
    (aten.sum.default, (torch.tensor(True),), {}),
    (aten.mean.default, (x(2, 3, 4),), {}),
    (aten.native_layer_norm.default, (x(5, 4, 6), [4, 6], x(4, 6), x(4, 6), 1e-5), {}),
    (aten.native_layer_norm.default, (x(5, 6), [6], None, None, 1e-3), {}),
    (aten.native_layer_norm_backward.default, layer_norm_backward(), {}),
    (aten._native_batch_norm_legit_functional.default, (x(3, 5, 7), x(5), x(5), x(5), x(5).abs(), True, 0.1, 1e-5), {}),
    (aten._native_batch_norm_legit.no_stats, (x(3, 5, 7), x(5), x(5), True, 0.1, 1e-5), {}),
    (aten._native_batch_norm_legit_no_training.default, (x(3, 5, 7), x(5), None, x(5), x(5).abs(), 0.1, 1e-5), {}),
    (aten.native_batch_norm_backward.default, batch_norm_backward(True), {}),
    (aten.native_batch_norm_backward.default, batch_norm_backward(False), {}),
    (aten.native_group_norm.default, (x(2, 6, 5), x(6), x(6), 2, 6, 5, 3, 1e-5), {}),
    (aten.native_group_norm_backward.default, group_norm_backward(), {}),
    *((aten.nll_loss_forward.default, (x(4, 6), T, w, r, 2), {}) for w in (None, torch.rand(6)) for r in (0, 1, 2)),
    *((aten.nll_loss_backward.default, nll_backward(r, w), {}) for w in (None, torch.rand(6)) for r in (0, 1, 2)),
    (aten.nll_loss_forward.default, (x(6), torch.tensor(3), None, 1, -100), {}),
    (aten.nll_loss2d_forward.default, (x(4, 6, 2, 1), T.view(4, 1, 1).expand(4, 2, 1), None, 1, 2), {}),
    *(
        (aten.binary_cross_entropy.default, (torch.rand(4, 6), torch.rand(4, 6), w, r), {})
        for w in (None, torch.rand(6))
        for r in (0, 1, 2)
    ),
    (aten.mse_loss.default, (x(), x()), {}),
    (aten.huber_loss.default, (x(), x(), 1, 0.7), {}),
    (aten.huber_loss.default, (x().bfloat16(), x().bfloat16(), 0, 0.7), {}),
    (aten.smooth_l1_loss.default, (x(), x(), 2, 0.7), {}),
    (aten.smooth_l1_loss.default, (x().half(), x().half(), 0, 0.7), {}),
    (aten.smooth_l1_loss.default, (x(), x(), 1, 0.0), {}),
    (aten.mse_loss_backward.default, (x(), x(), x(), 0), {}),
    (aten.mse_loss_backward.default, (torch.rand(()), x(), x(), 1), {}),
    (aten.smooth_l1_loss_backward.default, (torch.rand(()), x(), x(), 1, 0.25), {}),
    (aten.huber_loss_backward.default, (torch.rand(()), x(), x(), 1, 0.25), {}),
    (aten.huber_loss_backward.default, (x().half(), x().half(), x().half(), 0, 0.7), {}),
    (aten.softshrink.default, (x(), 0.25), {}),
    (aten.logit.default, (x().sigmoid(),), {}),
    (aten.logit.default, (x(), 0.1), {}),
    (aten.logit_backward.default, (x(), x().sigmoid()), {}),
    (aten.logit_backward.default, (x(), x(), 0.1), {}),
    (aten.threshold.default, (x(), 0.25, 3.0), {}),
    (aten.soft_margin_loss_backward.default, (torch.rand(()), x(), x(), 1), {}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), CASES, ids=lambda v: str(v) if hasattr(v, "overloadpacket") else "")
def test_rule_equals_kernel(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    got = RULES[op](*args, **kwargs)
    assert got is not NotImplemented
    expected = op(*args, **kwargs)
    if isinstance(expected, torch.Tensor):
        got, expected = [got], [expected]
    assert len(got) == len(expected)
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        if op is aten.native_layer_norm.default and i:
            a = a.reshape(b.shape)
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        torch.testing.assert_close(
            a, b, rtol=1e-4 if b.dtype == torch.float32 else 2e-2, atol=1e-5, check_stride=i == 0
        )


LAYOUTS = {
    "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "spread": lambda t: torch.stack([t, t], -1)[..., 0],
    "expanded": lambda t: t[:1].expand(t.shape),
    "one row": lambda t: t[:1].as_strided((1, *t.shape[1:]), (7, *t.stride()[1:])),
}
LAID_OUT = [
    (aten._softmax.default, (1, False)),
    (aten._log_softmax.default, (0, False)),
    (aten.masked_fill.Scalar, (torch.tensor(True), 2.0)),
    (aten.masked_fill.Tensor, (torch.tensor(True), torch.tensor(2.0))),
    (aten.native_layer_norm.default, ([7], None, None, 1e-5)),
    (aten._native_batch_norm_legit.no_stats, (None, None, True, 0.1, 1e-5)),
    (aten.clone.default, ()),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("op", "rest"), LAID_OUT, ids=lambda v: str(v) if hasattr(v, "overloadpacket") else "")
def test_results_have_the_strides_of_the_kernel(op: Any, rest: tuple[Any, ...], layout: str) -> None:
    """Kernels with contiguous results give these for any layout."""
    t = LAYOUTS[layout](x(3, 5, 7))
    options = {"memory_format": torch.contiguous_format} if op is aten.clone.default else {}
    got, expected = RULES[op](t, *rest, **options), op(t, *rest, **options)
    if got is NotImplemented:
        return  # the kernel is used
    pairs = [(got, expected)] if isinstance(expected, torch.Tensor) else [(got[0], expected[0])]
    assert [a.stride() for a, _ in pairs] == [b.stride() for _, b in pairs]


def test_batch_norm_keeps_channels_last() -> None:
    t = x(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    args = (t, None, None, True, 0.1, 1e-5)
    rule_, kernel = (
        f(*args)[0] for f in (RULES[aten._native_batch_norm_legit.no_stats], aten._native_batch_norm_legit.no_stats)
    )
    assert rule_.stride() == kernel.stride()


# Rules that return the value itself, or that replace operators without a direct call.
UNCALLED = {
    aten.bernoulli.p,
    getattr(aten.random, "from"),
    aten.detach.default,
    aten.alias.default,
    aten.lift.default,
    aten._reshape_alias.default,
    aten.nll_loss2d_backward.default,
}


def test_every_rule_has_a_case() -> None:
    assert set(RULES) - {op for op, _, _ in CASES} == UNCALLED


def test_two_rules_for_one_operator_are_refused() -> None:
    with pytest.raises(ValueError, match="two decompositions"):
        rule(aten.silu.default)(lambda: None)


def test_table_order() -> None:
    table = default_decompositions()
    assert table.get(aten.silu.default) is RULES[aten.silu.default]
    assert table.get(aten.mm.default) is None
    assert table.get(aten.mish_backward.default) is not None
    assert table.get(aten.bernoulli.default) is None
    assert table.get(aten.bernoulli.p) is RULES[aten.bernoulli.p]
    with pytest.raises(KeyError):
        table[aten.convolution.default]
    assert {op for op in table if facts_of(op).draws} == {aten.bernoulli.p, getattr(aten.random, "from")}
    assert len(table) > len(RULES)


FOREACH = [
    (aten._foreach_add.List, ([x(3), x(2, 2)], [x(3), x(2, 2)]), {"alpha": 2}),
    (aten._foreach_mul.Scalar, ([x(3), x(2, 2)], 0.5), {}),
    (aten._foreach_addcdiv.Scalar, ([x(3)], [x(3)], [x(3).abs() + 1], 0.3), {}),
    (aten._foreach_addcmul.ScalarList, ([x(3)], [x(3)], [x(3)], [0.3]), {}),
    (aten._foreach_lerp.Scalar, ([x(3)], [x(3)], 0.3), {}),
    (aten._foreach_sqrt.default, ([x(3).abs()],), {}),
    (aten._foreach_maximum.Scalar, ([x(3)], 0.1), {}),
    (aten._foreach_pow.ScalarAndTensor, (2.0, [x(3), x(2)]), {}),
    (aten._foreach_norm.Scalar, ([x(3), x(2, 2)], 2), {}),
    (aten._foreach_div.Tensor, ([x(3)], torch.tensor(2.0)), {}),
]


@pytest.mark.parametrize(
    ("op", "args", "kwargs"), FOREACH, ids=lambda v: str(v) if hasattr(v, "overloadpacket") else ""
)
def test_foreach(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    decompose = foreach(op)
    assert decompose is not None
    for a, b in zip(decompose(*args, **kwargs), op(*args, **kwargs), strict=True):
        torch.testing.assert_close(a, b)


def test_foreach_leaves_others_alone() -> None:
    assert foreach(aten.add.Tensor) is None
    assert foreach(aten._foreach_add_.List) is None
    assert foreach(aten._foreach_addcdiv.Tensor) is None


def test_addcmul_of_integers_takes_an_integer_of_a_float() -> None:
    n = torch.tensor([0, 1, 2, 200], dtype=torch.int32)
    got = pycompiler.compile(lambda n: torch.addcmul(n, n, n, value=1.5))(n)
    assert got.dtype == torch.int32
    assert got.equal(torch.addcmul(n, n, n, value=1.5))


MIXED = {
    "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=2),
    "addcmul of 1": torch.addcmul,
    "addcdiv": torch.addcdiv,
    "huber": lambda a, b, c: torch.nn.functional.huber_loss(a, b),
    "soft margin": lambda a, b, c: torch.nn.functional.soft_margin_loss(a, b),
    "nextafter": lambda a, b, c: torch.nextafter(a, c),
}
DTYPES = {
    "scalar of wider floats": ((torch.float32, (2,)), (torch.float64, ()), (torch.int64, (2, 2))),
    "bytes": ((torch.float32, (2,)), (torch.uint8, (2,)), (torch.uint8, (2, 2))),
    "integers first": ((torch.float64, (2,)), (torch.int64, (2,)), (torch.int64, (2, 2))),
    "floats": ((torch.float16, (2,)), (torch.float32, (2,)), (torch.float64, ())),
    "halves": ((torch.float16, (2,)), (torch.float16, (2,)), (torch.bfloat16, ())),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("dtypes", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("fn", MIXED.values(), ids=MIXED)
def test_operands_of_several_dtypes_are_promoted_at_once(fn: Any, dtypes: Any, backend: str) -> None:
    """A product of bytes is not computed in bytes where a float is added; numbers of no dimensions do not promote."""
    given = [torch.full(shape, 3.0 + 199 * k).to(dtype) for k, (dtype, shape) in enumerate(dtypes)]
    try:
        expected = fn(*given)
    except RuntimeError:
        pytest.skip("eager refuses these dtypes")
    got = pycompiler.compile(fn, backend=backend)(*given)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


def batch_normed(a: torch.Tensor, w: torch.Tensor | None) -> torch.Tensor:
    return torch.nn.functional.batch_norm(a, None, None, w, training=True)


NORMS = {
    "group": lambda a, w: torch.nn.functional.group_norm(a, 2, w),
    "layer": lambda a, w: torch.nn.functional.layer_norm(a.transpose(1, 2), (4,), w),
    "batch": batch_normed,
    "instance": lambda a, w: torch.nn.functional.instance_norm(a, weight=w),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("weight", [None, "alike", torch.float32], ids=["none", "alike", "float32"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("fn", NORMS.values(), ids=NORMS)
def test_halves_are_normalised_with_statistics_of_our_own(fn: Any, dtype: Any, weight: Any, backend: str) -> None:
    """ATen's gradient formulas refuse float32 statistics for half inputs: they may not be called with the graph's statistics."""

    def gradients(f: Any) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        a, kind = torch.randn(3, 4, 5).to(dtype).requires_grad_(), dtype if weight == "alike" else weight
        w = None if kind is None else torch.randn(4).to(kind).requires_grad_()
        out = f(a, w)
        leaves = [t for t in (a, w) if t is not None]
        return (out, *torch.autograd.grad(out, leaves, torch.randn(out.shape).to(out.dtype)))

    try:
        expected = gradients(fn)
    except RuntimeError:
        pytest.skip("eager refuses these dtypes")
    got = gradients(pycompiler.compile(fn, backend=backend))
    assert [t.dtype for t in got] == [t.dtype for t in expected]
    torch.testing.assert_close(got, expected, rtol=3e-2, atol=6e-2)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_random_between(dtype: torch.dtype, backend: str) -> None:
    """The overload is named by a Python keyword, which no printed graph can call."""

    def f(x: torch.Tensor, low: int) -> torch.Tensor:
        return x.clone().random_(low, 9) * 2

    compiled = pycompiler.compile(f, backend=backend, fullgraph=True)
    for low in (1, 2, 3):
        x = torch.zeros(5, 3, dtype=dtype)
        torch.manual_seed(4)
        expected = f(x, low), torch.rand(2)
        torch.manual_seed(4)
        assert torch.equal(compiled(x, low), expected[0])
        assert torch.equal(torch.rand(2), expected[1])


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "loss",
    [
        F.smooth_l1_loss,
        F.soft_margin_loss,
        F.huber_loss,
        lambda *args, **kwargs: F.smooth_l1_loss(*args, **kwargs, beta=0.25),
    ],
)
def test_gradients_of_losses_of_what_is_no_number(loss: Any, dtype: torch.dtype, reduction: str, backend: str) -> None:
    """A loss that is NaN must not give zero gradients."""
    edge = [0.0, 0.25, -0.25, 1.0, -1.0, 1.5, -0.5, 3.0, 100.0, -200.0, torch.inf, -torch.inf, torch.nan]
    x = torch.tensor([edge] * 2, dtype=dtype, requires_grad=True)
    target = torch.tensor([1.0, -1.0], dtype=dtype)[:, None].expand_as(x)

    def program(x: torch.Tensor) -> torch.Tensor:
        return loss(x, target, reduction=reduction)

    made = [f(x) for f in (program, pycompiler.compile(program, backend=backend))]
    expected, found = (torch.autograd.grad(y, x, torch.full_like(y, 2.0)) for y in made)
    torch.testing.assert_close(found, expected, equal_nan=True)
