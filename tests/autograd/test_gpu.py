"""Compiled training on a CUDA device, where batch norm, dropout and attention are other operators."""

from __future__ import annotations

import pytest
import torch
from ad_helpers import check
from ad_models import GPT, ConvNet
from torch import nn

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_conv_batchnorm() -> None:
    torch.manual_seed(0)
    net = ConvNet().cuda()
    check(net, [torch.randn(2, 3, 12, 12, device="cuda")], tolerance=1e-3)
    assert int(net.norm.num_batches_tracked) == 2  # calls of `check`
    check(net.eval(), [torch.randn(2, 3, 12, 12, device="cuda")], tolerance=1e-3)


def test_dropout_same_stream_and_same_mask() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 8), nn.Dropout(0.5)).cuda()
    check(net, [torch.randn(64, 8, device="cuda")], tolerance=1e-3, seed=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gpt(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 11, (2, 6), device="cuda")
    check(GPT(0.0).cuda().to(dtype), [ids, ids.roll(1, 1)], tolerance=1e-3 if dtype is torch.float32 else 6e-2)


def test_norms_and_activations() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.SiLU(), nn.Softmax(-1)).cuda()
    check(net, [torch.randn(5, 8, device="cuda", requires_grad=True)], tolerance=1e-3)
    check(net.bfloat16(), [torch.randn(5, 8, device="cuda", dtype=torch.bfloat16)], tolerance=3e-2)


def test_scalar_from_the_cpu() -> None:
    x, s = torch.randn(4, 4, device="cuda", requires_grad=True), torch.tensor(2.5)
    check(lambda a, b: torch.where(a > 0, a * b, b) + 1, [x, s])


def test_mutation_and_views() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x[0].add_(1)
        y = x @ w
        return y, y[1:], x.t()

    check(fn, [torch.randn(4, 4, device="cuda"), torch.randn(4, 4, device="cuda", requires_grad=True)], tolerance=1e-3)
