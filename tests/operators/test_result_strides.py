"""Strides of results at capture: the kernels' strides where torch's shape functions disagree with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pycompiler
from pycompiler.operators import result_strides

DOUBLE = torch.float64
FOUND: dict[str, tuple[Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]]] = {
    "a loss of one element": (
        lambda x: F.huber_loss(x, x, reduction="none"),
        lambda: (torch.randn(3, dtype=DOUBLE)[::3],),
    ),
    "a quotient of windows": (lambda x: x // 2, lambda: (torch.arange(2).unfold(0, 2, 1),)),
    "a batch norm of one channel": (
        lambda x, m, v: F.batch_norm(x.movedim(-1, 1), m, v, None, None, True, 0.1),
        lambda: (torch.randn(3, 3, 1), torch.zeros(1), torch.ones(1)),
    ),
    "a convolution to one channel": (
        lambda x, w: F.conv1d(x, w, stride=2, padding=1),
        lambda: (torch.randn(2, 3, 2, dtype=DOUBLE), torch.randn(1, 2, 3, dtype=DOUBLE).transpose(1, 2)),
    ),
    "a copy of windows": (
        lambda x, i: x.index_fill(-2, i, 1.5),
        lambda: (torch.randn(3, 3, dtype=DOUBLE).unfold(0, 2, 1), torch.tensor(1)),
    ),
    "windows convolved by a part of themselves": (
        lambda x, i: F.conv1d((y := x.index_fill(-2, i, 1.5)), y[0:1], stride=2, padding=1),
        lambda: (torch.randn(3, 3, dtype=DOUBLE).unfold(0, 2, 1), torch.tensor(1)),
    ),
    "pooled windows, on the way that real tensors take": (
        lambda x: F.max_pool1d(x.unfold(-2, 2, 2), 2, 2, 1),
        lambda: (torch.randn(2, 2, dtype=DOUBLE),),
    ),
    "a slope for each of one channel": (
        lambda x: F.prelu(x, torch.full((1,), 0.3)),
        lambda: (torch.randn(1)[::2],),
    ),
    "a transposed quotient in another dtype": (
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        lambda: (torch.arange(4).view(2, 2).t(), torch.full((2, 2), 0.7, dtype=DOUBLE)),
    ),
    "an expanded one, sorted": (
        lambda x: torch.sort(x.expand(1, -1, -1, -1), 1, descending=True).values,
        lambda: (torch.randn(1, 1, 1, dtype=DOUBLE),),
    ),
    "random numbers": (
        lambda x: torch.rand_like(x).ge(2).to(x.dtype),
        lambda: (torch.randn(2, 1, 3).transpose(0, 2)[::2],),
    ),
    "a part of one element, written": (
        lambda x, m: torch.index_put(x[0:1:3], (m,), x[0] * 0 + 0.3),
        lambda: (torch.randn(1, dtype=DOUBLE), torch.ones(1, dtype=torch.bool)),
    ),
    "a view of its own shape": (lambda x: x.view(1, 1) + 0, lambda: (torch.randn(1, 1)[::2],)),
    "a random slope": (lambda x: F.rrelu(x.t(), 0.3, 0.3, training=True), lambda: (torch.randn(3, 4),)),
    "attention of one row": (
        lambda x: F.scaled_dot_product_attention(x, x, x * 0.5),
        lambda: (torch.randn(2, 1, 1, dtype=DOUBLE)[::2],),
    ),
    "attention of one column": (
        lambda x: F.scaled_dot_product_attention(x.mT, x.mT, x.mT * 0.5),
        lambda: (torch.randn(2, 2, 1, dtype=DOUBLE),),
    ),
    "a copy at an index": (
        lambda x, i: x.as_strided((1, 1), (2, 1), 0).clone().index_copy_(-1, i, x.as_strided((1, 1), (2, 1), 0)),
        lambda: (torch.randn(()), torch.zeros(1, dtype=torch.int64)),
    ),
    "windows of a fill": (lambda x: x.new_zeros((9,)).unfold(-1, 3, 1), lambda: (torch.randn(()),)),
    "a wide view of a sum into rows": (
        lambda x, i: x.index_add(1, i, x).narrow(-2, 2, 1).expand(1, 1, 3, 3),
        lambda: (torch.randn(1, 1, 3, 3)[::2], torch.zeros((), dtype=torch.int64)),
    ),
    "an interleaved one, written in part": (
        lambda x: torch.slice_scatter(x.as_strided((3, 1, 2), (2, 0, 3)), x[0, :3, None, None], 2, 1),
        lambda: (torch.arange(8.0).view(2, 4),),
    ),
    "a part of what lies in shared places": (
        lambda x: torch.select_scatter(x.as_strided((3, 2), (1, 1)), x[:2], 0, 1),
        lambda: (torch.arange(8.0),),
    ),
    "a sum to nothing": (lambda x: x.sum(0), lambda: (torch.randn(0, 3, 1).expand(2, 0, 3, 4).transpose(1, 3),)),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", FOUND)
def test_strides_are_the_kernels(name: str, backend: str) -> None:
    fn, make = FOUND[name]
    args = make()
    expected = fn(*(a.clone() if a.is_contiguous() else a for a in args))
    got = pycompiler.compile(fn, backend=backend, fullgraph=True)(*args)
    assert (got.shape, got.stride()) == (expected.shape, expected.stride())
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.complex(x, x).conj().imag.resolve_neg(),
        lambda x: torch.complex(x, x)[:, ::2].conj().resolve_conj(),
        lambda x: torch.complex(x, x).conj().imag.t() * 2,
    ],
)
def test_what_is_seen_negated_of_any_size(fn: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    compiled = pycompiler.compile(fn, backend="eager", dynamic=True, fullgraph=True)
    for n in (4, 5):
        x = torch.randn(n, 3)
        expected, got = fn(x), compiled(x)
        assert got.stride() == expected.stride()
        torch.testing.assert_close(got, expected)
    assert len(compiled.entries) == 1 and not caplog.records


def test_strides_are_known_to_the_program() -> None:
    def fn(x: Tensor) -> Tensor:
        y = F.huber_loss(x, x, reduction="none")
        return x + y.stride(0)

    x = torch.ones(3)[::3]
    assert torch.equal(pycompiler.compile(fn)(x), fn(x))


def test_each_combination_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    ask = result_strides._ask
    monkeypatch.setattr(result_strides, "_ask", lambda run, args, *rest: (asked.append(args), ask(run, args, *rest))[1])
    x, y = torch.ones(1, 7), torch.ones(2, 7)
    pycompiler.compile(lambda x, y: x.cumsum(0).cumsum(0) + y.cumsum(0), backend="eager")(x, y)
    assert [(a[0].shape, len(a)) for a in asked] == [((1, 7), 2)]  # contiguous operands need no probe


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_results_with_gaps(backend: str) -> None:
    """`slice_scatter` keeps its operand's strides, and a later in-place write keeps the layout of the result."""

    def fn(x: Tensor, y: Tensor) -> Tensor:
        t = torch.empty_strided((3,), (2,), dtype=x.dtype).copy_(x)
        t.mul_(y)
        return t

    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    got = pycompiler.compile(fn, backend=backend)(x, y)
    assert got.stride() == fn(x, y).stride() == (2,)
    assert torch.equal(got, x * y)
    got.sum().backward()
    assert torch.equal(x.grad, y)


@pytest.mark.parametrize("op", [torch.diagonal_scatter, torch.select_scatter, torch.slice_scatter])
def test_fresh_results_share_no_element(op: Callable[..., Tensor]) -> None:
    """Shape functions of torch 2.11 keep an expanded operand's strides. The results of a backward are copied to such strides."""
    source = torch.ones((2, 1) if op is torch.slice_scatter else (1 if op is torch.diagonal_scatter else 2,))
    place = (0,) if op is torch.diagonal_scatter else (1, 0) if op is torch.select_scatter else (1, 0, 1)

    def fn(x: Tensor) -> Tensor:
        y = torch.cat([x, x], 1)
        return op(y[:1] if op is torch.diagonal_scatter else y, source, *place).sum((0, -1), keepdim=True)

    x, y = (torch.randn(2, 1, generator=torch.manual_seed(0)).requires_grad_() for _ in range(2))
    fn(x).backward()
    pycompiler.compile(fn)(y).backward()
    assert torch.equal(x.grad, y.grad)


VIEWS: dict[str, tuple[Callable[..., object], Callable[[], tuple[Tensor, ...]]]] = {
    "of its own shape": (lambda x: x.view(1, 1), lambda: (torch.randn(1, 1)[::2],)),
    "as another": (lambda x: x.view_as(x), lambda: (torch.randn(2, 1).t(),)),
    "of a reshaped one": (lambda x: x.reshape(1, 49).reshape(1, 49, -1), lambda: (torch.randn(7, 7, 1)[..., ::3],)),
    "of nothing, written": (lambda x: ((y := x.mT), y.data.add_(1))[0], lambda: (torch.randn(0, 1, 1),)),
    "of a written input with gaps": (
        lambda x: (x.__setitem__((slice(None), slice(-3, None)), 0.5), x[:, :-2])[1],
        lambda: (torch.randn(1, 4)[..., ::3],),
    ),
    "of a written value": (lambda x: (y := x.t() * 2, v := y[:1], v.add_(1), y)[1::2], lambda: (torch.randn(3, 2),)),
    "beside its base with gaps": (
        lambda x: (y := torch.slice_scatter(x, x[:, 1:2], 1, 2, 3), F.relu(y[2:2]), y)[1:],
        lambda: (torch.randn(3, 3, 3)[..., 1:],),
    ),
}


@pytest.mark.parametrize(
    "name, grad", [*((n, False) for n in VIEWS), *((n, True) for n in VIEWS if "written" not in n)]
)
def test_views_lie_as_the_program_makes_them(name: str, grad: bool) -> None:
    fn, make = VIEWS[name]
    args = make()
    given = [[torch.empty_strided(a.shape, a.stride()).copy_(a).requires_grad_(grad) for a in args] for _ in range(2)]
    expected, got = fn(*given[0]), pycompiler.compile(fn, fullgraph=True)(*given[1])
    both = (expected, got) if isinstance(expected, tuple) and isinstance(got, tuple) else ((expected,), (got,))
    for e, g in zip(*both, strict=True):
        assert (g.shape, g.stride(), g._is_view()) == (e.shape, e.stride(), e._is_view())
        torch.testing.assert_close(g, e)


DRAWN: dict[str, tuple[Callable[..., Tensor], Callable[[], Tensor]]] = {
    "nothing": (torch.rand_like, lambda: torch.ones(2, 1, 1, 4)[:, :, 0:0, None, 3].expand(2, 1, 0, 1)),
    "one row": (torch.randn_like, lambda: torch.ones(2, 2).t().diff(dim=-2)),
    "one column": (lambda x: torch.rand_like(x), lambda: torch.ones(1, 2).t()),
    "integers": (lambda x: torch.randint_like(x, 3, 9), lambda: torch.ones(1, 7).t()),
    "coins": (torch.bernoulli, lambda: torch.full((1, 7), 0.5).t()),
    "a generator's": (
        lambda x, g=torch.Generator(): torch.poisson(x, g.manual_seed(3)),
        lambda: torch.full((3, 1), 9.0).expand(3, 1)[::2],
    ),
    "dropout": (F.dropout, lambda: torch.ones(1, 7).t()),
}


@pytest.mark.parametrize("name", DRAWN)
def test_random_numbers_lie_as_the_kernels_lay_them(name: str) -> None:
    fn, make = DRAWN[name]
    torch.manual_seed(1)
    expected, after = fn(make()), torch.rand(1)
    torch.manual_seed(1)
    got = pycompiler.compile(fn)(make())
    assert (got.shape, got.stride()) == (expected.shape, expected.stride())
    assert torch.equal(got, expected) and torch.equal(torch.rand(1), after)


def test_asking_takes_no_random_numbers() -> None:
    x = torch.ones(1, 3)
    torch.manual_seed(1)
    expected = F.dropout(x), torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(pycompiler.compile(F.dropout, backend="eager")(x), expected[0])
    assert torch.equal(torch.rand(1), expected[1])


def test_what_others_wrote_is_not_asked() -> None:
    """A custom operator may have side effects, so it is never called by a probe: it runs once."""
    called: list[int] = []

    @torch.library.custom_op("pycompiler_tests::counted", mutates_args=())
    def counted(x: Tensor) -> Tensor:
        called.append(1)
        return x.clone()

    counted.register_fake(torch.empty_like)
    pycompiler.compile(lambda x: torch.ops.pycompiler_tests.counted(x) + 1)(torch.ones(1, 3)[:, ::2])
    assert called == [1]


@pytest.mark.parametrize("dims", [[-1], [-2], [-1, -2], 0])
def test_norms_over_dimensions_of_one_element(dims: object) -> None:
    """torch 2.11's shape function rejects negative dimensions."""
    x = torch.randn(1, 1)

    def fn(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, 3, dims)  # type: ignore[arg-type]

    assert torch.equal(pycompiler.compile(fn)(x), fn(x))
