"""Autograd Functions under torch.func's transforms: one call in the graph, with the program's forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.func import grad, jacrev, jvp, vjp, vmap

import pycompiler
import pycompiler.errors
from tests.harness.compare import assert_same

BACKENDS = ("eager", "aot_eager", "native")


class Setting:
    factor = 2.0


SETTING = Setting()


class Square(torch.autograd.Function):
    """A Function with two results, a number and a saved result. Its gradients are no true derivatives: they show its backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any, k: Any) -> Any:
        return x**2 * k, x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.k = inputs
        ctx.save_for_backward(x, output[1])

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        x, s = ctx.saved_tensors
        return 2 * x * g * ctx.k + h * s * 5, None


class Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any, y: Any) -> Any:
        return x.cos() * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y, out = ctx.saved_tensors
        return g * out * 3 + g * y, g * x.exp()


class Ruleless(Product):
    generate_vmap_rule = False


class Marked(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any, i: Any) -> Any:
        return x[..., :2] + i, (x > 0).to(x.dtype), x.argmax(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any, i: Any) -> Any:
        return torch.cat([g * 7, g, g[..., :1]], -1), None


class Once(Product):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Any) -> Any:
        x, y, out = ctx.saved_tensors
        return g * out * 3 + g * y, g * x.exp()


class Looking(Product):
    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y, out = ctx.saved_tensors
        return g * SETTING.factor, g * x.exp()


def first_gradients(x: Any, w: Any) -> Any:
    return grad(lambda t: Square.apply(t, 3)[0].sum())(x)


def mapped(x: Any, w: Any) -> Any:
    return vmap(lambda t: Square.apply(t, 3)[0] * w)(x)


def of_samples(x: Any, w: Any) -> Any:
    return vmap(grad(lambda t, v: Product.apply(t, v).sum()), in_dims=(0, None))(x, w)


def of_what_is_shared(x: Any, w: Any) -> Any:
    return vmap(grad(lambda v, t: Product.apply(t, v).sum()), in_dims=(None, 0))(w, x)


def twice(x: Any, w: Any) -> Any:
    return grad(lambda t: grad(lambda u: Product.apply(u, w).sin().sum())(t).square().sum())(x)


def jacobian(x: Any, w: Any) -> Any:
    return jacrev(lambda t: Ruleless.apply(t, w))(x)


def mapped_twice(x: Any, w: Any) -> Any:
    return vmap(lambda t: vmap(Product.apply)(t, w))(x)


def other_dimensions(x: Any, w: Any) -> Any:
    return vmap(lambda t: Product.apply(t, t.sin()), in_dims=1, out_dims=1)(x)


def pulled(x: Any, w: Any) -> Any:
    out, pull = vjp(lambda t, v: Product.apply(t, v), x, w)
    return pull(out.cos())


def without_gradients(x: Any, w: Any) -> Any:
    with torch.no_grad():
        return vmap(lambda t: Square.apply(t, 3)[0] * w)(x)


def of_nothing_mapped(x: Any, w: Any) -> Any:
    return vmap(lambda t: Product.apply(w, w) + t)(x)


def marked(x: Any, w: Any) -> Any:
    return vmap(lambda t: Marked.apply(t, 3)[:2])(x)


def marked_gradient(x: Any, w: Any) -> Any:
    def loss(t: Any) -> Any:
        a, b, c = Marked.apply(t, torch.arange(2))
        return (a * b[..., :2]).sum(), c

    return grad(loss, has_aux=True)(x)


def several(x: Any, w: Any) -> Any:
    return vmap(lambda t: Product.apply(Square.apply(t, 2)[1], w) + Product.apply(w, t))(x)


def once(x: Any, w: Any) -> Any:
    return vmap(grad(lambda t: Once.apply(t, w).sum()))(x)


PROGRAMS = (
    first_gradients, mapped, of_samples, of_what_is_shared, twice, jacobian, mapped_twice, other_dimensions, pulled,
    without_gradients, of_nothing_mapped, marked, marked_gradient, several, once,
)  # fmt: skip


def outcome(fn: Callable[..., Any], *, second: bool = True) -> Any:
    """Results, gradients and second gradients; or the error."""
    x = torch.linspace(-1, 1, 20, dtype=torch.float64).view(4, 5).requires_grad_()
    w = torch.linspace(1, 2, 5, dtype=torch.float64).requires_grad_()
    found = []
    try:
        results = fn(x, w)
        found = [*results] if isinstance(results, tuple) else [results]
        for order in range(1 + second):
            roots = [t for t in found if t.requires_grad]
            if roots:
                made = torch.autograd.grad(
                    sum(t.sum() for t in roots), (x, w), create_graph=not order, allow_unused=True
                )  # type: ignore[arg-type]
                found += [torch.zeros(()) if g is None else g for g in made]
    except RuntimeError as error:
        return [type(error), str(error)]
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_eagers_results_and_gradients(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        contiguous = fn is of_nothing_mapped and backend != "eager"  # eager's second gradient is an expanded one
        assert_same(outcome(compiled), outcome(fn), tolerance=1e-8, strides=not contiguous)


def without_setup(x: Any, w: Any) -> Any:
    class Old(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Any) -> Any:
            return t * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    return grad(lambda t: Old.apply(t).sum())(x)


class Ruled(Product):
    generate_vmap_rule = False

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any, y: Any) -> Any:
        return Ruled.apply(x, y) * 2, 0


class Pushed(Product):
    @staticmethod
    def jvp(ctx: Any, a: Any, b: Any) -> Any:
        return a * 2 + b

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs)


class Asking(Product):
    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g if ctx.needs_input_grad[0] else None, g * 2 if ctx.needs_input_grad[1] else None


class Keeping(Product):
    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, y = inputs
        ctx.save_for_backward(x, y, output * 2)


class Same(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


class Attribute(Product):
    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.x, ctx.y = inputs

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.y, g * ctx.x


def as_attributes(x: Any, w: Any) -> Any:
    return grad(lambda t: Attribute.apply(t, w).sum())(x)


def given_back(x: Any, w: Any) -> Any:
    return grad(lambda t: Same.apply(t.clone()).sum())(x)


def given_back_plain(x: Any, w: Any) -> Any:
    return Same.apply(x * 2)


def ruleless(x: Any, w: Any) -> Any:
    return vmap(lambda t: Ruleless.apply(t, w))(x)


def ruled(x: Any, w: Any) -> Any:
    return vmap(lambda t: Ruled.apply(t, t))(x)


def pushed(x: Any, w: Any) -> Any:
    return jvp(lambda t: Pushed.apply(t, w.expand(4, 5)), (x,), (x,))


def asking(x: Any, w: Any) -> Any:
    return vmap(grad(lambda t: Asking.apply(t, w).sum()))(x)


def keeping(x: Any, w: Any) -> Any:
    return vmap(grad(lambda t: Keeping.apply(t, w).sum()))(x)


@pytest.mark.parametrize(
    "fn",
    [without_setup, as_attributes, given_back, given_back_plain, ruleless, ruled, pushed, asking, keeping],
    ids=lambda f: f.__name__,
)
def test_what_is_not_captured_is_eagers(fn: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(2):
        assert_same(outcome(compiled), outcome(fn), tolerance=1e-8)
    with pytest.raises((pycompiler.errors.Unsupported, RuntimeError)):
        pycompiler.compile(fn, backend="eager", fullgraph=True)(torch.ones(4, 5), torch.ones(5))


def looking(x: Any, w: Any) -> Any:
    return vmap(lambda t: Looking.apply(t, w))(x) * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backward_that_looks_again_is_told_of_a_change(backend: str) -> None:
    compiled = pycompiler.compile(looking, backend=backend, fullgraph=True)
    x = torch.ones(4, 5, requires_grad=True)
    y = compiled(x, torch.ones(5))
    y.sum().backward()
    assert x.grad is not None and x.grad[0, 0] == 4
    y = compiled(x, torch.ones(5))
    SETTING.factor = 3.0
    try:
        with pytest.raises(RuntimeError, match="reads has changed"):
            y.sum().backward()
        assert torch.autograd.grad(compiled(x, torch.ones(5)).sum(), x)[0][0, 0] == 6
    finally:
        SETTING.factor = 2.0
