"""Floating-point values: sums, norms, half precision, random draws."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.reports.core import report, scenario

RANDOM = {"inductor.fallback_random": True}


@report(197108, "var_mean and std_mean of nothing have the mean NaN")
def moments_of_nothing() -> Any:
    return lambda x: (torch.var_mean(x), torch.std_mean(x, correction=0)), lambda: (torch.zeros(0, 1),)


@report(113167, "var_mean of one element with a large correction")
def large_correction() -> Any:
    return lambda x: torch.var_mean(x, correction=4.9), lambda: (torch.tensor([0.16]),)


@report(197089, "std and var of numbers of size 1e30 and 1e-30, with gradients", training=True)
def moments_of_extremes() -> Any:
    return lambda x, y: (x.std(), y.std() * 1e30, (y * 1e30).var()), lambda: (
        (torch.randn(64) * 1e30).requires_grad_(), (torch.randn(64) * 1e-30).requires_grad_())  # fmt: skip


@report(183605, "fp16: a variance of tiny numbers, plus 1e-9, is 0, whose rsqrt is infinite")
def tiny_variance() -> Any:
    def fn(x: Any) -> Any:
        return x * torch.rsqrt(x.var(dim=-1, keepdim=True) + 1e-9)

    return fn, lambda: (torch.full((3, 5), 1e-10, dtype=torch.float16),)


@report(173885, "fp16: layer_norm of a row with an infinity", described=True)
def norm_of_infinity() -> Any:
    def fn(x: Any) -> Any:
        return F.layer_norm(x, (8,))

    return fn, lambda: (
        torch.tensor([[1.0, 2.0, float("inf"), 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8]], dtype=torch.float16),
    )


@report(173054, "bf16: hardswish_backward, then + 1", cuda=True)
def hardswish_backward() -> Any:
    return lambda g, x: torch.ops.aten.hardswish_backward(g, x) + 1, lambda: (
        torch.randn(10, 20).bfloat16(), torch.randn(10, 20).bfloat16())  # fmt: skip


@report(172062, "cumprod_backward of small numbers", cuda=True)
def cumprod_backward() -> Any:
    def fn(g: Any, x: Any) -> Any:
        return torch.ops.aten.cumprod_backward(g, x, 1, x.cumprod(1))

    return fn, lambda: (torch.randn(1, 30, dtype=torch.float64) * 0.1, torch.randn(1, 30, dtype=torch.float64) * 0.1)


@report(160730, "fp16: sin of tan")
def sin_of_tan() -> Any:
    return lambda x: torch.sin(torch.tan(x)), lambda: (torch.linspace(-1.5, 1.5, 64).half(),)


@report(183761, "fp16: where, full_like, a cast to float and a sum", described=True)
def where_and_cast() -> Any:
    def fn(x: Any) -> Any:
        half = torch.where(x > 0, x * 1.001, torch.full_like(x, 0.3))
        return (half.float() + 0.1).sum()

    return fn, lambda: (torch.randn(127).half(),)


@report(132301, "bf16: a product by a number is rounded to bf16 before fp32 uses it", exact=True)
def product_is_rounded() -> Any:
    return lambda x: (x * 0.5100697232983947).float() * 3, lambda: (torch.randn(640).bfloat16(),)


@report(170745, "poisson_nll_loss with the Stirling term, float64", cuda=True)
def poisson() -> Any:
    def fn(x: Any, t: Any) -> Any:
        return torch.ops.aten.poisson_nll_loss(
            x, t, True, True, 1e-10, 0
        ).float()  # eager takes the logarithm of integers in fp32

    return fn, lambda: (torch.randn(6, 8, dtype=torch.float64) + 2, torch.randint(0, 32, (6, 8)))


@report(100970, "batch_norm whose weight has more dimensions than one")
def weight_of_more_dimensions() -> Any:
    mean, var = torch.zeros(3), torch.ones(3)
    weight, bias = torch.randn(3, 1, 1, 1), torch.randn(3)
    return lambda x: F.batch_norm(x, mean, var, weight, bias), lambda: (torch.randn(1, 3, 2, 2),)


@report(141317, "Running statistics of a batch norm after a dilated convolution", training=True)
def running_statistics() -> Any:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=2, dilation=2), nn.BatchNorm2d(4))
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(torch.linspace(-1, 1 + k, p.numel()).reshape(p.shape))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any) -> Any:
            y = self.net(x)
            return (
                y,
                self.net[1].running_mean.clone(),
                self.net[1].running_var.clone(),
                self.net[1].num_batches_tracked + 0,
            )

    return Net(), lambda: (torch.randn(2, 3, 9, 9),)


@report(121174, "Attention whose heads are permuted convolutions")
def attention_of_convolutions() -> Any:
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(4, 4, 1) for _ in range(3)]

    def fn(x: Any) -> Any:
        q, k, v = (c(x).permute(0, 2, 1, 3) for c in convolutions)
        return F.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1) @ v

    return fn, lambda: (torch.randn(1, 4, 2, 2),)


@report(195320, "Attention whose keys are permuted into their transposed layout at once")
def permuted_keys() -> Any:
    def fn(q: Any, k: Any, v: Any) -> Any:
        q, v = (t.view(2, 5, 2, 4).transpose(1, 2) for t in (q, v))
        k = k.view(2, 5, 2, 4).permute(0, 2, 3, 1)
        return (torch.matmul(q, k) * 0.5).softmax(dim=-1).matmul(v)

    return fn, lambda: tuple(torch.randn(2, 5, 8) for _ in range(3))


@report(159154, "A softmax spelled as einsums over four dimensions")
def softmax_of_einsums() -> Any:
    def fn(x: Any, scale: Any) -> Any:
        powers = torch.exp(-torch.einsum("i...,i->i...", x, scale))
        return torch.einsum("i,i...->i...", 1 / torch.einsum("i...->i", powers), powers)

    return fn, lambda: (torch.ones(5, 1, 32, 32), torch.linspace(0.5, 1, 5))


@report(179575, "A projection by einsum, then softmax")
def projection_by_einsum() -> Any:
    def fn(x: Any, w: Any) -> Any:
        return torch.einsum("bsd,hde->bhse", x, w).softmax(-1)

    return fn, lambda: (torch.randn(2, 5, 8), torch.randn(2, 8, 4))


@report(158643, "dropout draws what eager draws", peer_config=RANDOM)
def dropout_draws() -> Any:
    return lambda x: F.dropout(x, 0.5, training=True), lambda: (torch.randn(16, 8),)


@report(141538, "fractional_max_pool2d draws what eager draws", peer_config=RANDOM)
def fractional_pool() -> Any:
    pool = nn.FractionalMaxPool2d(kernel_size=(1, 1), output_ratio=(0.5, 0.5))
    return lambda x: pool(x), lambda: (torch.randn(1, 1, 10, 10),)


@report(194547, "Normal of an fp16 mean and an fp32 scale draws fp16")
def mixed_normal() -> Any:
    def fn(mean: Any, scale: Any) -> Any:
        return torch.distributions.Normal(mean, scale).sample().dtype

    return fn, lambda: (torch.zeros(8).half(), torch.ones(8))


@scenario(190758, "Gradients of dropout use the mask of the forward, also where little may be kept", described=True,
          peer_config={"functorch.activation_memory_budget": 0.1})  # fmt: skip
def mask_of_the_forward(compile: Any) -> Any:
    compiled = compile(lambda x: F.dropout(x.sin().cos() * 3, 0.5))
    agree = []
    for k in range(3):
        x = torch.full((16, 16), 0.5 + k, requires_grad=True)
        y = compiled(x)
        y.sum().backward()
        agree.append(bool(((x.grad == 0) == (y == 0)).all()) and bool((y == 0).any()))
    return agree
