"""Reductions, normalisations and losses against eager."""

import pytest
import torch
import torch.nn.functional as F
from harness import bools, check, externs, ints, lowered, randn

import pycompiler
from pycompiler.ir.loops import Loop
from tests.harness.compare import assert_same_calls

pytestmark = pytest.mark.whole  # each row is a rule of its own

f16, f32, f64, bf16, i64 = torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.int64

REDUCTIONS = {
    "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, 2), keepdim=True)),
    "mean": lambda x: (x.mean(), x.mean(-1), x.mean((0, 1), True)),
    "prod": lambda x: (x.prod(), x.prod(1, keepdim=True)),
    "amax": lambda x: (x.amax(), x.amax((0, 1)), x.max(), x.amax(-1, True)),
    "amin": lambda x: (x.amin(2), x.min()),
    "max_dim": lambda x: x.max(1),
    "min_dim": lambda x: x.min(0, keepdim=True),
    "argmax": lambda x: (x.argmax(), x.argmax(1), x.argmin(-1, keepdim=True)),
    "any": lambda x: ((x > 1).any(), (x > 1).any(1), x.any(0)),
    "all": lambda x: ((x > -1).all(), (x > -1).all(-1, True)),
    "var": lambda x: (x.var(), x.var(1), x.var((0, 2), correction=0, keepdim=True)),
    "std": lambda x: (x.std(), x.std(-1, unbiased=False)),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std_mean": lambda x: torch.std_mean(x, (0, 1)),
    "norm": lambda x: (
        x.norm(),
        torch.linalg.vector_norm(x, 1, 1),
        torch.linalg.vector_norm(x, float("inf")),
        torch.linalg.vector_norm(x, 3, -1),
    ),
    "logsumexp": lambda x: (x.logsumexp(1), x.logsumexp((0, 1), keepdim=True)),
    "count": lambda x: (x > 0).count_nonzero(1),
    "nansum": lambda x: x.nansum(1),
    "of_views": lambda x: (x.transpose(0, 2).sum(1), x[:, ::2].mean(0), x.permute(1, 0, 2).reshape(4, -1).amax(1)),
    "chain": lambda x: ((x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()).sum(1),
    "sum_dtype": lambda x: (x.sum(1, dtype=f64), x.mean(0, dtype=f32)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_reduction(name, dtype):
    check(REDUCTIONS[name], [randn(3, 4, 5, dtype=dtype)], native=True)


@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin", "max_dim", "argmax", "any", "all", "count"])
def test_integer_reduction(name):
    check(REDUCTIONS[name], [ints(3, 4, 5)], native=True)
    if name != "argmax":
        check(lambda x: REDUCTIONS[name](x.int()), [ints(3, 4, 5)], native=True)


def test_bool_reduction():
    check(lambda x: (x.sum(1), x.sum(), x.any(0), x.all(1), x.amax(1)), [bools(3, 4)], native=True)


def test_nan_and_ties():
    x = torch.tensor([[1.0, float("nan"), 3.0, 3.0], [2.0, 5.0, 5.0, -1.0]])
    check(lambda x: (x.amax(1), x.amin(1), x.argmax(1), x.argmin(1), x.max(), x.max(1)), [x], native=True)


def test_size_one_and_empty():
    check(lambda x: (x.sum(0), x.amax(0), x.mean(1), x.var(0, correction=0)), [randn(1, 3)], native=True)
    check(lambda x: (x.sum(0), x.sum(1), x.prod(1), x.any(1), x.mean(1)), [torch.empty(3, 0)], native=True)
    check(lambda x: (x + 1, x.reshape(0, 6), x.t().sum(0)), [torch.empty(0, 3)], native=True)
    check(lambda x: (x.sum(), x.mean(), x.amax()), [torch.tensor(3.0)], native=True)


@pytest.mark.parametrize("dynamic", [True, False])
def test_means_of_any_number_are_kernels(dynamic, plans):
    def means(x):
        return x.mean(), x.mean(1), x.mean(0, keepdim=True) * 2

    compiled = pycompiler.compile(means, dynamic=dynamic, fullgraph=True)
    for shape in ((3, 7), (5, 1024)):
        x = randn(*shape)
        torch.testing.assert_close(compiled(x), means(x))
    assert plans.found and not plans.operators()


NORMS = {
    "softmax": lambda x: (x.softmax(-1), x.softmax(0)),
    "log_softmax": lambda x: (x.log_softmax(-1), x.log_softmax(1)),
    "softmax_f32": lambda x: x.softmax(-1, dtype=f32),
    "softmin": lambda x: F.softmin(x, 1),
    "layer_norm": lambda x: F.layer_norm(x, (5,)),
    "layer_norm2": lambda x: F.layer_norm(x, (4, 5)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "rms_norm": lambda x: F.rms_norm(x, (5,)),
    "instance_norm": lambda x: F.instance_norm(x),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "cosine": lambda x: F.cosine_similarity(x[0], x[1]),
    "masked": lambda x: x.masked_fill(x < 0, float("-inf")).softmax(-1),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_normalisation(name, dtype):
    check(NORMS[name], [randn(3, 4, 5, dtype=dtype)], native=True)


@pytest.mark.parametrize("name", [n for n in NORMS if n not in ("masked",)])
def test_normalisation_gradient(name):
    def gradient(x, g):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = NORMS[name](x)
            y = y[0] + y[1] if isinstance(y, tuple) else y
            return torch.autograd.grad(y, x, g.reshape(-1)[: y.numel()].reshape(y.shape).to(y.dtype))

    check(gradient, [randn(3, 4, 5, dtype=f64), randn(3, 4, 5, dtype=f64, seed=1)], native=True)


@pytest.mark.parametrize("dtype", [f32, bf16])
def test_affine_layer_norm_and_gradients(dtype):
    def both(x, w, b, g):
        with torch.enable_grad():
            x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
            y = F.layer_norm(x, (5,), w, b)
            return y.detach(), *torch.autograd.grad(y, (x, w, b), g)

    tensors = randn(3, 4, 5), randn(5, seed=1), randn(5, seed=2), randn(3, 4, 5, seed=3)
    check(both, [t.to(dtype) for t in tensors], native=True)
    check(lambda x, w: F.layer_norm(x, (5,), w), [tensors[0].to(dtype), tensors[1].to(dtype)], native=True)


def test_affine_group_norm_and_rms_norm_gradients():
    def both(x, w, b, g):
        with torch.enable_grad():
            x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
            y = F.group_norm(x, 2, w, b) + F.rms_norm(x, (5,), x[0, 0])
            return y.detach(), *torch.autograd.grad(y, (x, w, b), g)

    check(
        both,
        [t.double() for t in (randn(3, 4, 5), randn(4, seed=1), randn(4, seed=2), randn(3, 4, 5, seed=3))],
        native=True,
    )


def test_group_norm_of_channels_that_lie_last():
    x = randn(2, 4, 3, 5).to(memory_format=torch.channels_last)
    check(
        lambda x, w, b: torch.native_group_norm(x, w, b, 2, 4, 15, 2, 1e-5),
        [x, randn(4, seed=1), randn(4, seed=2)],
        native=True,
    )


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training):
    def both(x, w, b, mean, var, g):
        with torch.enable_grad():
            x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
            y = F.batch_norm(x, mean.clone(), var.clone(), w, b, training=training)
            return y.detach(), *torch.autograd.grad(y, (x, w, b), g)

    args = [
        randn(3, 4, 5, 2),
        randn(4, seed=1),
        randn(4, seed=2),
        randn(4, seed=5),
        randn(4, seed=6).abs(),
        randn(3, 4, 5, 2, seed=3),
    ]
    check(both, args, rtol=1e-4, atol=1e-5, native=True)


CROSS = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "ignore": {"ignore_index": 1},
    "smooth": {"label_smoothing": 0.1},
    "weight": {"weight": [0.5, 1.0, 2.0, 0.1]},
}


@pytest.mark.parametrize("name", CROSS)
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_cross_entropy_and_gradient(name, dtype):
    options = dict(CROSS[name])
    weights = [torch.tensor(options.pop("weight"), dtype=dtype)] if "weight" in options else []

    def both(x, t, *weights):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            if weights:
                options["weight"] = weights[0]
            loss = F.cross_entropy(x, t, **options)
            return loss.detach(), *torch.autograd.grad(loss.sum(), x)

    check(both, [randn(6, 4, dtype=dtype), ints(6, low=0, high=4), *weights], native=True)


def test_a_fold_over_one_element_is_no_fold():
    fold = [lambda x: (x.sum(1), x.amax(1), x.argmax(1), x.mean(1)), lambda x: torch.var_mean(x, 1, correction=0)]
    for f in fold:
        program = check(f, [torch.tensor([[1.5], [float("nan")], [-2.0]])], native=True)
        assert not any(isinstance(n, Loop) and n.reduction for n in program.nodes)


def test_softmax_folds_twice():
    program = lowered(lambda x: x.softmax(-1), [randn(4, 8)])
    kinds = [n.reduction.kind for n in program.nodes if isinstance(n, Loop) and n.reduction]
    assert kinds == ["max", "sum"]
    assert not externs(program)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [3, 108, 1000])
def test_equal_numbers_do_not_vary(dtype, n):
    """Their rounded sum, divided, would be another number; ATen's moments start from the first number."""
    x = torch.randn(5, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(n)).to(dtype).expand(5, n)

    def fn(x, rows):
        columns = x.t().contiguous()
        return rows.var(1), rows.std(1), x.var(1), columns.var(0), rows[:1].var(), (x * 1).var(1)

    for result in pycompiler.compile(fn)(x, x.contiguous()):
        assert not result.any(), result


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 3e4])
def test_equal_numbers_are_normalised_to_zero(dtype, scale):
    """Holds for any producer of the row and any length: the error of a rounded mean would be normalised up to 1."""
    for n in (3, 7, 108, 1000):
        start = torch.randn(5, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) * scale
        x = start.to(dtype).expand(5, n).contiguous()

        def fn(x, n=n):
            made = F.gelu(x) / 7  # values that do not exist before the moments
            norms = F.layer_norm(x, (n,)), F.layer_norm(x + x, (n,)), F.layer_norm(made, (n,))
            images = x.view(1, 5, n)
            norms += F.group_norm(images, 5), F.instance_norm(images), F.batch_norm(images, None, None, training=True)
            return *norms, torch.var_mean(x, 1)[0], torch.var_mean(x.t().contiguous(), 0)[0], x.std(1)

        for result in pycompiler.compile(fn, dynamic=False)(x):
            assert not result.any(), result


@pytest.mark.parametrize("n", [100, 2100])
def test_moments_of_doubles_beside_a_far_first_number(n):
    """Differences from a far first number would lose their digits (a fuzzed program, seed 70007352)."""
    x = torch.zeros(1, n, dtype=torch.float64)
    x[0, 0] = 0.7345
    norm, (_, mean) = pycompiler.compile(lambda x: (F.layer_norm(x, (n,)), torch.var_mean(x, 1)))(x)
    assert abs(mean.item() * n / 0.7345 - 1) < n * 2.0**-53  # n roundings, for any vector width
    assert abs(norm.sum().item()) < 1e-11


def test_normalised_beside_a_far_first_number():
    """The first number is a bad start value if it is far off."""
    x = torch.randn(4, 1024, generator=torch.Generator().manual_seed(0))
    x[:, 0] = torch.tensor([1e4, -1e6, 1e8, 3.0])
    exact = F.layer_norm(x.double(), (1024,))
    found = pycompiler.compile(F.layer_norm)(x, (1024,)).double()
    # A few roundings of the largest, 32: a vector lane adds its other terms to it, twice as many if vectors are half
    # as long.
    assert (found - exact).abs().max() < 16 * 2.0**-23 * exact.abs().max()


@pytest.mark.parametrize("dtype", [f32, f64, bf16, torch.float16])
def test_a_sum_of_one_zero_has_no_sign(dtype):
    def program(x):
        views = x[:1], x[0], x[:, None]
        means = x.mean(1), x[:1].mean(0, keepdim=True), x[0, 0].mean(), x.nansum(1)
        return [v.sum(d, keepdim=True) for v in views for d in (0, -1)], x[0, 0].sum(), x.sum((0, 1)), means, x.prod(1)

    for shape in ((3, 1), (1, 1), (1, 2)):
        x = torch.full(shape, -0.0, dtype=dtype)
        got, want = (torch.utils._pytree.tree_leaves(f(x)) for f in (pycompiler.compile(program), program))
        assert [torch.signbit(t).tolist() for t in got] == [torch.signbit(t).tolist() for t in want]


def test_gradients_of_a_sum_of_one():
    x = torch.tensor([[-0.0], [2.0]], requires_grad=True)
    for f in (lambda x: x.sum(1), lambda x: x.expand(2, 3) * -0.0, lambda x: x.mean(-1, keepdim=True)):
        grads = [torch.autograd.grad(g(x).sum(), x)[0] for g in (f, pycompiler.compile(f))]
        assert torch.equal(*grads) and torch.equal(*map(torch.signbit, grads))


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("name", ["any", "all"])
def test_an_empty_list_of_dimensions_reduces_none(name: str, keepdim: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return getattr(torch, name)(x, dim=(), keepdim=keepdim)

    compiled = pycompiler.compile(program, fullgraph=True)
    values = (torch.tensor([[True, False]]), torch.tensor([0, 3]), torch.tensor([0.0, float("nan")]), torch.tensor(0.0))
    for x in (*values, torch.ones(0, 3), torch.tensor([1, 0], dtype=torch.uint8)):
        assert_same_calls(compiled, program, lambda x=x: (x,), exact=True)


@pytest.mark.parametrize("name", ["sum", "nansum", "prod"])
def test_a_narrower_dtype_rounds_first(name: str) -> None:
    def program(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return getattr(x, name)(dtype=dtype)

    compiled = pycompiler.compile(program, fullgraph=True)
    for numbers in ([70000.0, -70000.0], [257.0, -256.0], [70000.0, 1e-5]):
        for dtype in (f16, bf16):
            assert_same_calls(
                compiled, program, lambda given=(numbers, dtype): (torch.tensor(given[0]), given[1]), exact=True
            )


def test_margins_of_a_nan_count_as_none() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        classes = torch.tensor([1])
        return F.multi_margin_loss(x, classes), F.multilabel_margin_loss(x, torch.tensor([[1, -1]]))

    compiled = pycompiler.compile(program)
    assert_same_calls(compiled, program, lambda: (torch.tensor([[float("nan"), 1.0]]),), exact=True)
