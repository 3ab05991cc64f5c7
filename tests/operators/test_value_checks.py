"""Value checks of eager's kernels: decomposed graphs refuse the same values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import pycompiler
from tests.harness.compare import assert_same, observe

BACKENDS = ["aot_eager", "native"]
CLASSES = torch.tensor([0, 2, 3, 1])


def outcome(fn: Any, args: Any) -> Any:
    try:
        return fn(*args)
    except (IndexError, RuntimeError) as error:
        return type(error), str(error).partition("\n")[0]


LOSSES = [
    (lambda x, t: F.cross_entropy(x, t), (torch.randn(4, 3), CLASSES)),
    (lambda x, t: F.cross_entropy(x, t), (torch.randn(4, 3, requires_grad=True), CLASSES)),
    (lambda x, t: F.cross_entropy(x, t, reduction="none"), (torch.randn(4, 3), CLASSES)),
    (lambda x, t: F.cross_entropy(x, -1 - t, ignore_index=-1), (torch.randn(4, 3), CLASSES)),
    (lambda x, t: F.cross_entropy(x, t, torch.ones(3)), (torch.randn(4, 3), CLASSES)),
    (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), (torch.randn(4, 3), CLASSES)),
    (lambda x, t: F.cross_entropy(x, t[2]), (torch.randn(3), CLASSES)),
    (lambda x, t: F.nll_loss(x, t.view(1, 2, 2)), (torch.randn(1, 3, 2, 2), CLASSES)),
    (lambda x, t: F.nll_loss(x, t) * 0 + 1, (torch.randn(4, 3), CLASSES)),
    (lambda x, t: F.binary_cross_entropy(x, t), (torch.rand(4) + 1, torch.rand(4))),
    (lambda x, t: F.binary_cross_entropy(x, t), ((torch.rand(4) + 1).requires_grad_(), torch.rand(4))),
    (lambda x, t: F.binary_cross_entropy(x, t), (torch.rand(4) * torch.nan, torch.rand(4))),
    (lambda x, t: F.binary_cross_entropy(x, t, reduction="none"), (torch.rand(4), torch.rand(4) - 2)),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", range(len(LOSSES)))
def test_losses_refuse_what_eager_refuses(number: int, backend: str) -> None:
    fn, args = LOSSES[number]
    want = observe(fn, args)
    assert isinstance(want.error, (IndexError, RuntimeError)), "eager refuses it"
    assert_same(observe(pycompiler.compile(fn, backend=backend), args), want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_losses_of_what_eager_takes(backend: str) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> Any:
        p = x.sigmoid()
        return F.binary_cross_entropy(p, y), F.binary_cross_entropy(p, y, reduction="none"), F.cross_entropy(x, t)

    x, y, t = torch.randn(4, 3, requires_grad=True), torch.tensor([0.0, 1.0, -0.0]).expand(4, 3), CLASSES % 3
    got, want = pycompiler.compile(fn, backend=backend)(x, y, t), fn(x, y, t)
    assert_same(got, want)
    for g, w in zip(got, want, strict=True):
        assert_same(*(torch.autograd.grad(r.sum(), x, retain_graph=True)[0] for r in (g, w)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_deviations_of_large_numbers(backend: str) -> None:
    """The squares overflow float32; ATen's kernels compute in double."""

    def fn(x: torch.Tensor) -> Any:
        return torch.std(x), torch.std(x, 1), *torch.std_mean(x), *torch.std_mean(x, 0)

    x = torch.randn(10, 10) * 1e30
    got = pycompiler.compile(fn, backend=backend)(x)
    torch.testing.assert_close(got, fn(x))
    assert all(bool(r.isfinite().all()) for r in got)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.dropout(x, 0.5),
        lambda x: F.dropout1d(x, 0.5),
        lambda x: F.alpha_dropout(x, 0.5, True),
        lambda x: torch.bernoulli(x, 0.5),
        lambda x: x.bernoulli(0.5),
        lambda x: torch.empty_like(x).bernoulli_(0.5),
        lambda x: torch.zeros_like(x).permute(1, 0, 2)[:, ::2].bernoulli_(0.5),
    ],
)
def test_numbers_are_drawn_in_the_order_of_memory(fn: Any, backend: str) -> None:
    x = torch.ones(3, 4, 5).permute(1, 2, 0)
    torch.manual_seed(3)
    want = fn(x)
    torch.manual_seed(3)
    got = pycompiler.compile(fn, backend=backend)(x)
    assert torch.equal(got, want) and got.stride() == want.stride()


def test_tensors_without_memory_are_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum(0)

    for x in (torch.empty(3, 4, device="meta"), torch.empty(3, 4, device="meta", requires_grad=True)):
        got = pycompiler.compile(fn)(x)
        assert got.shape == (4,) and got.device.type == "meta" and got.requires_grad == x.requires_grad
    assert not [r for r in caplog.records if r.levelname == "WARNING"]
