"""`ctc_loss`: lengths are data, and the shapes of the graph do not depend on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pycompiler


def example(frames: int, count: int, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(frames + count)
    lengths = torch.tensor([3] * (count - 1) + [2])
    return (
        torch.randn(frames, count, 5, dtype=dtype),
        torch.randint(1, 5, (count, 3)),
        torch.full((count,), frames),
        lengths,
    )


LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "mean": lambda p, y, n, k: F.ctc_loss(p.log_softmax(-1), y, n, k),
    "sum": lambda p, y, n, k: F.ctc_loss(p.log_softmax(-1), y, n, k, reduction="sum", zero_infinity=True),
    "none": lambda p, y, n, k: torch.ctc_loss(p.log_softmax(-1), y, n.int(), k.int(), 0, 0, False).sum(),
    "one": lambda p, y, n, k: F.ctc_loss(p[:, 0].log_softmax(-1), y[0], n[0], k[0], blank=0),
    "lists": lambda p, y, n, k: F.ctc_loss(p.log_softmax(-1), y, [p.shape[0]] * p.shape[1], (2,) * p.shape[1]),
    "in a row": lambda p, y, n, k: F.ctc_loss(p.log_softmax(-1), y.flatten()[: 3 * k.numel() - 1].int(), n, k),
    "module": lambda p, y, n, k: nn.CTCLoss(blank=4, zero_infinity=True)(p.log_softmax(-1), y - 1, n, k),
}


@pytest.mark.parametrize("backend", ["native", "eager", "aot_eager"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients(name: str, backend: str) -> None:
    fn = LOSSES[name]
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for size in ((8, 2), (9, 2), (10, 3)):
        p, *rest = example(*size, dtype=torch.float64 if name == "in a row" else torch.float32)
        sides = []
        for call in (fn, compiled):
            given = p.clone().requires_grad_()
            made = call(given, *rest)
            made.backward()
            sides.append((made, given.grad))
        torch.testing.assert_close(sides[1], sides[0])
    assert compiled.counters()["eager_calls"] == 0


def test_other_lengths_are_the_same_entry() -> None:
    compiled = pycompiler.compile(LOSSES["mean"], fullgraph=True)
    p, y, n, k = example(8, 2)
    for lengths in ([1, 1], [3, 2], [2, 3], [0, 3]):
        torch.testing.assert_close(
            compiled(p, y, n, torch.tensor(lengths)), LOSSES["mean"](p, y, n, torch.tensor(lengths))
        )
    assert compiled.counters()["compiles"] == 1


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_errors_and_infinities_are_eagers(backend: str) -> None:
    compiled = pycompiler.compile(LOSSES["mean"], backend=backend)
    p, y, _, _ = example(8, 2)
    for frames, lengths in (([9, 8], [3, 2]), ([8, 8], [4, 2]), ([8, 8], [3, -1]), ([2, 8], [3, 2]), ([8], [3, 3])):
        told = []
        for call in (LOSSES["mean"], compiled):
            try:
                told.append(call(p, y, torch.tensor(frames), torch.tensor(lengths)).item())
            except RuntimeError as error:
                told.append(str(error))
        assert told[0] == told[1] or pytest.approx(told[0]) == told[1]


def test_a_training_step_is_one_graph() -> None:
    found = []
    for wrap in (lambda f: f, lambda f: pycompiler.compile(f, fullgraph=True)):
        torch.manual_seed(0)
        model = nn.Linear(5, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @wrap
        def step(p: Any, y: Any, n: Any, k: Any, model: Any = model, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.ctc_loss(model(p).log_softmax(-1), y, n, k)
            loss.backward()
            optimizer.step()
            return loss.detach()

        found.append([(step(*example(*size)), model.weight.detach().clone()) for size in ((8, 2), (8, 2), (9, 3))])
    torch.testing.assert_close(found[1], found[0])


def test_autocast() -> None:
    linear = nn.Linear(5, 5)

    def program(p: torch.Tensor, y: torch.Tensor, n: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.ctc_loss(linear(p).log_softmax(-1), y, n, k)

    compiled = pycompiler.compile(program, fullgraph=True)
    found, wanted = compiled(*example(8, 2)), program(*example(8, 2))
    assert found.dtype is wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


def test_a_second_derivative_is_refused_as_in_eager() -> None:
    compiled = pycompiler.compile(LOSSES["mean"], fullgraph=True)
    p, *rest = example(8, 2)
    for call in (LOSSES["mean"], compiled):
        given = p.clone().requires_grad_()
        (grad,) = torch.autograd.grad(call(given, *rest), given, create_graph=True)
        with pytest.raises(RuntimeError, match="_ctc_loss_backward is not implemented"):
            grad.sum().backward()
