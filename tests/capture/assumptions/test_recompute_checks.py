"""Recompute checks: a checkpoint's backward reads its function's state again, and compiled code raises after a change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import pycompiler

SCALE = 2.0
BACKENDS = ("eager", "native")


class Place:
    """The place from which a checkpointed function reads its scale, with the function that changes the scale."""

    def __init__(self, body: Callable[..., Any], change: Callable[[], None], *given: Any) -> None:
        self.body, self.change, self.given = body, change, given


def of_attribute() -> Place:
    holder = type("Holder", (), {})()
    holder.scale = 2.0
    return Place(lambda a: (a * holder.scale).sin(), lambda: setattr(holder, "scale", 5.0))


def of_global() -> Place:
    def change() -> None:
        globals()["SCALE"] = 5.0

    globals()["SCALE"] = 2.0
    return Place(lambda a: (a * SCALE).sin(), change)


def of_cell() -> Place:
    scale = 2.0

    def change() -> None:
        nonlocal scale
        scale = 5.0

    return Place(lambda a: (a * scale).sin(), change)


def of_list() -> Place:
    scales = [2.0]
    return Place(lambda a: (a * scales[0]).sin(), lambda: scales.__setitem__(0, 5.0))


def of_argument() -> Place:
    scales = {"s": 2.0}
    return Place(lambda a, d: (a * d["s"]).sin(), lambda: scales.update(s=5.0), scales)


def of_other_tensor() -> Place:
    holder = torch.nn.Module()
    holder.scale = torch.nn.Parameter(torch.tensor(2.0))

    def change() -> None:
        holder.scale = torch.nn.Parameter(torch.tensor(5.0))

    return Place(lambda a: (a * holder.scale).sin(), change)


def of_written_tensor() -> Place:
    scale = torch.tensor(2.0)
    return Place(lambda a: (a * scale).sin(), lambda: scale.fill_(5.0))  # type: ignore[func-returns-value]


PLACES = (of_attribute, of_global, of_cell, of_list, of_argument, of_other_tensor, of_written_tensor)


def inputs() -> torch.Tensor:
    return torch.arange(4.0, requires_grad=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", PLACES, ids=lambda make: make.__name__)
def test_a_change_before_the_backward_is_an_error(make: Callable[[], Place], backend: str) -> None:
    place = make()

    @pycompiler.compile(backend=backend, fullgraph=True)
    def program(x: torch.Tensor, *given: Any) -> torch.Tensor:
        return checkpoint(place.body, x, *given, use_reentrant=False).cos()

    for _ in range(2):
        x, y = inputs(), inputs()
        program(x, *place.given).sum().backward()
        place.body(y, *place.given).cos().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    x = inputs()
    loss = program(x, *place.given).sum()
    place.change()
    with pytest.raises(RuntimeError, match="has changed before its backward"):
        loss.backward()
    assert x.grad is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_the_function_does_not_read_may_change(backend: str) -> None:
    class Model(torch.nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)
            self.last: torch.Tensor | None = None
            self.mask: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.mask = x.detach() > 1  # read below; the frame's own store is repeated in the backward
            y = checkpoint(lambda a: self.inner(a) * self.mask, x, use_reentrant=False)
            assert isinstance(y, torch.Tensor)
            self.last = y.detach()
            return y

    torch.manual_seed(0)
    model = Model()
    compiled = pycompiler.compile(model, backend=backend, fullgraph=True)
    for call in range(3):
        x, y = inputs(), inputs()
        loss = compiled(x).sum()
        model.calls += 10
        loss.backward(retain_graph=True)
        (model.inner(y) * (y > 1)).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
        loss.backward()
        assert model.calls == 11 * (call + 1)


def test_backwards_of_functions_look_at_what_is_there_then() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(w)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return grad * SCALE * ctx.saved_tensors[0], None

    holder = torch.nn.Module()
    holder.w = torch.nn.Parameter(torch.tensor(3.0))
    globals()["SCALE"] = 2.0
    compiled = pycompiler.compile(lambda x: Scaled.apply(x, holder.w), backend="native", fullgraph=True)
    x = inputs()
    loss = compiled(x).sum()
    holder.w = torch.nn.Parameter(torch.tensor(7.0))  # the saved tensor is unaffected
    loss.backward(retain_graph=True)
    torch.testing.assert_close(x.grad, torch.full((4,), 6.0))
    globals()["SCALE"] = 5.0
    with pytest.raises(RuntimeError, match="has changed before its backward"):
        loss.backward()


def test_vjp_of_what_is_written_before_the_pullback() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        y, pull = torch.func.vjp(lambda a: (a * w).sin(), x)
        w.fill_(5.0)
        return y, pull(torch.ones(4))

    x = torch.arange(4.0)
    torch.testing.assert_close(
        pycompiler.compile(program, backend="eager")(x, torch.tensor(2.0)), program(x, torch.tensor(2.0))
    )
