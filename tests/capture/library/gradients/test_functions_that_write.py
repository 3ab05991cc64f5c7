"""Autograd Functions that mark their writes: captured, with eager's gradients, identities and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import pycompiler
from tests.harness.compare import Comparer, Outcome, compare_outcomes, observe

BACKENDS = ("eager", "aot_eager", "native")
SIZES = (2, 3, 5, 7)
W = torch.nn.Parameter(torch.tensor([1.5, -2.0, 0.5]))


class Scale(torch.autograd.Function):
    """A Function whose gradients show that its backward ran; it saves a copy of the tensor that it writes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.clone(), w)
        ctx.n = x.shape[0]
        x.mul_(w)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grads[0] * w, (grads[0] * x * 3 / ctx.n).sum(0)


class Exp(torch.autograd.Function):
    """A Function that saves the written tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return grads[0] * y


class Two(torch.autograd.Function):
    """A Function with one written result and one new result."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        z = x * y
        x.add_(y)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x, y)
        return x, z

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grads[0] + grads[1] * y, (grads[0] * 2 + grads[1] * (x - y)).sum(0)


class Lost(torch.autograd.Function):
    """A Function that does not return the tensor that it marks: an error in torch."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x.add_(1))
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * 2


class Unwritten(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * 5


class Kept(torch.autograd.Function):
    """A Function that keeps the written tensor and another result as context attributes, whose versions torch does not check."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.x, ctx.z = x, x * 3
        ctx.mark_dirty(x.exp_())
        return x, ctx.z

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * ctx.x + grads[1] * ctx.z


PROGRAMS: dict[str, tuple[bool, Callable[[torch.Tensor, torch.Tensor], Any]]] = {}
"""Whether the graph is whole, and the program, over a leaf that requires grad and a buffer that does not."""


def program(*, whole: bool = True) -> Callable[[Callable[[torch.Tensor, torch.Tensor], Any]], None]:
    return lambda fn: PROGRAMS.update({fn.__name__: (whole, fn)})


@program()
def a_result_is_the_argument(x: torch.Tensor, b: torch.Tensor) -> Any:
    y = x * 2
    z = Scale.apply(y, W)
    return z * 1, z is y, y.sum() * 2


@program()
def what_is_written_is_saved(x: torch.Tensor, b: torch.Tensor) -> Any:
    y = x * 2
    z = Exp.apply(y)
    return z.sin() + y


@program()
def two_results(x: torch.Tensor, b: torch.Tensor) -> Any:
    y = x * 2
    a, z = Two.apply(y, W * 1)
    return a * z + y, a is y


@program()
def an_input_that_gets_a_history(x: torch.Tensor, b: torch.Tensor) -> Any:
    Scale.apply(b, W)
    return b * 2


@program()
def an_input_without_gradients(x: torch.Tensor, b: torch.Tensor) -> Any:
    Exp.apply(b)
    return b * 2


@program()
def without_grad_mode(x: torch.Tensor, b: torch.Tensor) -> Any:
    with torch.no_grad():
        z = Exp.apply(b)
    return b * 2, z is b, z.requires_grad


@program()
def seen_through_a_view(x: torch.Tensor, b: torch.Tensor) -> Any:
    y = x * 2
    z = y[1:]
    Exp.apply(y)
    return z * 2 + 1


@program()
def a_value_from_before(x: torch.Tensor, b: torch.Tensor) -> Any:
    y = x * 2
    z = y + 1
    Exp.apply(y)
    return z.sin() + y


@program()
def one_after_the_other(x: torch.Tensor, b: torch.Tensor) -> Any:
    y = x * 2
    for _ in range(3):
        Scale.apply(y, W)
    return y.cos()


@program()
def nothing_is_written(x: torch.Tensor, b: torch.Tensor) -> Any:
    y = x * 2
    return Unwritten.apply(y) + 1, y * 3


@program()
def in_a_checkpoint(x: torch.Tensor, b: torch.Tensor) -> Any:
    return checkpoint(lambda x: Scale.apply(x * 2, W).sin(), x, use_reentrant=False)


@program(whole=False)
def given_twice(x: torch.Tensor, b: torch.Tensor) -> Any:
    y = x * 2
    return Two.apply(y, y)[1] * 2


@program(whole=False)
def a_view(x: torch.Tensor, b: torch.Tensor) -> Any:
    y = (x * 2)[1:]
    Exp.apply(y)
    return y * 2


@program(whole=False)
def a_leaf(x: torch.Tensor, b: torch.Tensor) -> Any:
    Exp.apply(x)
    return x * 2


@program(whole=False)
def what_is_marked_is_lost(x: torch.Tensor, b: torch.Tensor) -> Any:
    return Lost.apply(x * 2)


@program()
def what_another_node_keeps(x: torch.Tensor, b: torch.Tensor) -> Any:
    y = x * 2
    z = y * y
    Exp.apply(y)
    return z + y


@program()
def what_it_saved_is_written_later(x: torch.Tensor, b: torch.Tensor) -> Any:
    y = x * 2
    Exp.apply(y)
    y.add_(1)
    return y * 2


@program()
def what_it_keeps_unsaved(x: torch.Tensor, b: torch.Tensor) -> Any:
    y = x * 2
    _, z = Kept.apply(y)
    return y * 2 + z


@program(whole=False)
def what_it_keeps_unsaved_is_written_later(x: torch.Tensor, b: torch.Tensor) -> Any:
    y = x * 2
    _, z = Kept.apply(y)
    y.add_(1)
    return y * 2 + z


@program(whole=False)
def a_result_that_it_keeps_unsaved_is_written_later(x: torch.Tensor, b: torch.Tensor) -> Any:
    y = x * 2
    _, z = Kept.apply(y)
    z[1:].add_(1)
    return y * 2 + z


def observed(run: Callable[..., Any], n: int) -> Outcome:
    """The observable outcome of a call and its backward."""
    generator = torch.Generator().manual_seed(n)
    x = torch.rand(n, 3, generator=generator).requires_grad_()
    b = torch.rand(n, 3, generator=generator)
    W.grad, version = None, b._version
    outcome = observe(run, (x, b), backward=True)
    outcome.world = x, b, W.grad, b._version > version
    return outcome


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_gives_what_eager_gives(name: str, backend: str) -> None:
    whole, fn = PROGRAMS[name]
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=whole)
    for n in SIZES:
        got, want = observed(compiled, n), observed(fn, n)
        compare_outcomes(want, got, Comparer(exact=False))
    if whole and want.error is None:
        assert compiled.counters()["compiles"] == 2


def test_second_gradients() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return Exp.apply(x * 2).sin()

    compiled, found = pycompiler.compile(fn, fullgraph=True), []
    for run in (compiled, fn):
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        (g,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)  # type: ignore[no-untyped-call]
        found.append(torch.autograd.grad(g.sum(), x)[0])
    torch.testing.assert_close(*found)


def test_a_write_that_is_not_marked_is_left_to_eager() -> None:
    class Silent(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            y.add_(1)
            ctx.mark_dirty(x.add_(1))
            return x

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            return grads[0], None

    def fn(x: torch.Tensor, b: torch.Tensor) -> Any:
        return Silent.apply(x * 2, b)

    with pytest.raises(pycompiler.exc.Unsupported, match="writes a tensor"):
        pycompiler.compile(fn, fullgraph=True)(torch.ones(3), torch.ones(3))
    compare_outcomes(observed(fn, 3), observed(pycompiler.compile(fn), 3), Comparer(exact=False))
