"""Gradients, autograd Functions, hooks, and modes of autograd."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.reports.core import report, scenario


@report(182012, "Gradients of diagonal_scatter", training=True)
def diagonal_scatter() -> Any:
    return lambda x, src: torch.diagonal_scatter(x, src).sum(), lambda: (
        torch.randn(8, 8, requires_grad=True), torch.randn(8, requires_grad=True))  # fmt: skip


@report(183602, "Gradients of diagonal_scatter of zeros along diagonal 0", training=True)
def diagonal_of_zeros() -> Any:
    return lambda x, src: torch.diagonal_scatter(x, src, 0).sum(), lambda: (
        torch.zeros(5, 5, requires_grad=True), torch.ones(5, requires_grad=True))  # fmt: skip


@report(180164, "Gradients of a sum over a dimension that slice_scatter wrote", training=True)
def slice_scatter() -> Any:
    return lambda x, y: torch.slice_scatter(x, y, dim=1, start=0, end=6).sum(1), lambda: (
        torch.randn(4, 13, 33, requires_grad=True), torch.randn(4, 6, 33, requires_grad=True))  # fmt: skip


@report(193061, "Gradients of two layer norms whose scales and shifts are chunks of one table", training=True)
def modulated_norms() -> Any:
    def fn(x: Any, table: Any, t: Any) -> Any:
        a, b, c, d = (table + t).chunk(4, dim=1)
        y = F.layer_norm(x, (16,)) * (1 + a) + b
        return F.layer_norm(y + x, (16,)) * (1 + c) + d

    return fn, lambda: (torch.randn(2, 9, 16, requires_grad=True), torch.randn(1, 4, 16, requires_grad=True),
                        torch.randn(2, 4, 16, requires_grad=True))  # fmt: skip


@report(185509, "Gradients of interpolate, conv2d, max_pool2d and where", training=True)
def pool_and_where() -> Any:
    def fn(x: Any, w: Any, b: Any, mask: Any) -> Any:
        y = F.interpolate(x, scale_factor=(1.5, 1.25), mode="bilinear", align_corners=False)[:, :, 1:7, 1:8]
        conv = F.conv2d(y, w, b, padding=1)
        return torch.where(mask, conv, F.max_pool2d(conv, 3, stride=1, padding=1))

    return fn, lambda: (torch.randn(2, 3, 6, 8, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True),
                        torch.randn(4, requires_grad=True), torch.rand(2, 4, 6, 7) > 0.5)  # fmt: skip


@report(106321, "Gradients of a state that runs through an unrolled loop", training=True, cuda=True)
def unrolled_state() -> Any:
    def fn(xs: Any, state: Any, w: Any) -> Any:
        made = []
        for x in xs:
            state = x + state * w
            made.append(state)
        return torch.cat(made)

    return fn, lambda: tuple(torch.rand(*s, dtype=torch.float64, requires_grad=True) for s in ((5, 3, 7), (3, 7), (7,)))


@scenario(114338, "enable_grad inside of a call under no_grad")
def enabled_within_no_grad(compile: Any) -> Any:
    def fn(x: Any) -> Any:
        with torch.enable_grad():
            first = x + 1
        return first, x + 1

    compiled = compile(fn)
    with torch.no_grad():
        made = [compiled(torch.ones(4, requires_grad=True)) for _ in range(2)]
    return made, [a is b for a, b in made]


@report(176854, "detach_ of a product: its requires_grad is read", exact=True)
def detached_in_place() -> Any:
    def fn(x: Any) -> Any:
        y = x * 2.0
        y.detach_()
        return y + 1.0, y.requires_grad

    return fn, lambda: (torch.randn(4, requires_grad=True),)


class _Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 5


@report(133491, "mark_dirty of an autograd Function: the written tensor has its history", training=True)
def marked_dirty() -> Any:
    def fn(x: Any) -> Any:
        y = x.sin()
        _Written.apply(y)
        return y * 3

    return fn, lambda: (torch.randn(4, requires_grad=True),)


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(w)
        ctx.mark_dirty(x)
        x.copy_(x @ w)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (w,) = ctx.saved_tensors
        return grad @ w.t(), None


@report(184113, "A product written into its own argument by an autograd Function", described=True, training=True)
def product_in_place() -> Any:
    def fn(x: Any, w: Any, r: Any) -> Any:
        y = x @ w
        _Rotated.apply(y, r)
        return y

    return fn, lambda: (torch.randn(3, 4), torch.randn(4, 4, requires_grad=True), torch.randn(4, 4))


class _Sine(torch.autograd.Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.zeros_like(grad)


@report(193279, "func.grad uses the backward of an autograd Function")
def own_backward() -> Any:
    return torch.func.grad(lambda x: _Sine.apply(x).sum()), lambda: (torch.randn(4),)


@report(129963, "An autograd Function twice in a row, whose second result is a derivative", training=True)
def cube_twice() -> Any:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            slope = 3 * x**2
            ctx.save_for_backward(x, slope)
            return x**3, slope

        @staticmethod
        def backward(ctx: Any, grad: Any, of_slope: Any) -> Any:
            x, slope = ctx.saved_tensors
            return grad * slope + of_slope * 6 * x

    def fn(x: Any) -> Any:
        return Cube.apply(Cube.apply(x)[0])[0]

    return fn, lambda: (torch.linspace(0.5, 1.5, 4, requires_grad=True),)


@report(118396, "set_materialize_grads(False) and mark_non_differentiable", training=True)
def context_methods() -> Any:
    class Pair(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.set_materialize_grads(False)
            index = x.argsort()
            ctx.mark_non_differentiable(index)
            return x * 3, x * 4, index

        @staticmethod
        def backward(ctx: Any, first: Any, second: Any, _: Any) -> Any:
            return (0 if first is None else first * 3) + (100 if second is None else second * 4)

    def fn(x: Any) -> Any:
        first, _, index = Pair.apply(x)
        return first, index

    return fn, lambda: (torch.randn(4, requires_grad=True),)


@report(
    181146, "One tensor is two arguments of an autograd Function whose gradients differ", described=True, training=True
)
def same_argument_twice() -> Any:
    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            return x * 2 + y

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return None, grad * 7

    def fn(x: Any) -> Any:
        return Two.apply(x, x)

    return fn, lambda: (torch.randn(4, requires_grad=True),)


@report(
    160901,
    "An autograd Function whose arguments need no gradient, between others that do",
    described=True,
    training=True,
)
def function_of_constants() -> Any:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, k: Any) -> Any:
            return x * k

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 11, None

    def fn(x: Any, c: Any) -> Any:
        still = Scaled.apply(c, 2.0)
        moved = Scaled.apply(x, 3.0)
        return still, moved, still * moved

    return fn, lambda: (torch.randn(4, requires_grad=True), torch.randn(4))


def _layer() -> Any:
    layer = nn.Linear(3, 3, bias=False)
    layer.weight = nn.Parameter(torch.eye(3))
    return layer


def _gradient(compiled: Any) -> Any:
    x = torch.arange(1.0, 4.0, requires_grad=True)
    y = compiled(x)
    y.sum().backward()
    return y, x.grad


@scenario(115750, "A full backward hook is registered after the first call")
def late_backward_hook(compile: Any) -> Any:
    layer = _layer()
    compiled = compile(lambda x: layer(x))
    before = _gradient(compiled)
    layer.register_full_backward_hook(lambda module, grads, _: tuple(g * 2 for g in grads))
    return before, _gradient(compiled)


@scenario(117265, "A full backward pre-hook after the first call, then another forward")
def late_backward_pre_hook(compile: Any) -> Any:
    layer = _layer()
    compiled = compile(lambda x: layer(x))
    seen = [_gradient(compiled)]
    layer.register_full_backward_pre_hook(lambda module, grads: tuple(g * 2 for g in grads))
    seen.append(_gradient(compiled))
    layer.forward = lambda x: 3.14 * x
    seen.append(_gradient(compiled))
    return seen


@scenario(117758, "Forward hooks are registered after the first call of a compiled module")
def late_forward_hooks(compile: Any) -> Any:
    net = nn.Sequential(_layer(), nn.ReLU(), _layer())
    compiled, seen = compile(net), {}
    compiled(torch.ones(2, 3))
    for name, module in net.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda m, args, out, name=name: seen.update({name: out.sum().item()}))
    compiled(torch.ones(2, 3))
    return seen


@scenario(91468, "retain_grad of what a function computes and returns")
def retained(compile: Any) -> Any:
    def fn(x: Any) -> Any:
        y = x.clone()
        y.retain_grad()
        z = y.clone()
        z.retain_grad()
        return z, y

    z, y = compile(fn)(torch.tensor(2.0, requires_grad=True))
    z.clone().backward()
    return z.grad, y.grad


@scenario(91468, "A hook of a value between two graphs changes autograd.grad", part=" hook")
def hook_between(compile: Any) -> Any:
    def fn(x: Any) -> Any:
        y = x * x
        z = y * x
        print(end="")
        y.register_hook(lambda g: None if g is None else 3.14 * g)
        return torch.autograd.grad(z, x)[0]

    return compile(fn)(torch.tensor(1.0, requires_grad=True))


@scenario(116221, "saved_tensors_hooks around a compiled call")
def saved_hooks(compile: Any) -> Any:
    a, b = torch.tensor(1.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    compiled = compile(lambda a, b: a * b)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: 2 * x):
        y = compiled(a, b)
    y.backward()
    return a.grad, b.grad


@scenario(100977, "A call under no_grad, then one that is trained")
def trained_after_inference(compile: Any) -> Any:
    layer = _layer()
    compiled = compile(lambda x: layer(x))
    with torch.no_grad():
        compiled(torch.ones(3))
    y = compiled(torch.arange(3.0))
    y.sum().backward()
    return y, layer.weight.grad


@scenario(108863, "Weights of conv and batch norm change between two calls under no_grad")
def weights_change(compile: Any) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)).eval()
    compiled, x, seen = compile(net), torch.randn(1, 2, 4, 4), []
    for _ in range(2):
        with torch.no_grad():
            seen.append(compiled(x).clone())
            net[0].weight.add_(1.0)
    return seen
