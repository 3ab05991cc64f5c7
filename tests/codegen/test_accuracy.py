"""Reductions and norms in float32 beside float64: compiled code is at least as accurate as eager.

The error of a result is the root of its mean square over draws and elements, in units of the last place of its
largest element; errors below `EXACT` pass.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pycompiler

DRAWS = 8
EXACT = 0.8
SLACK = 1.3  # factor on eager's error, since errors of few draws scatter
SHORT = 1.6  # for norms of rows of less than 256 elements: one vector of partial sums, added up as floats

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum of rows": lambda x: x.sum(-1),
    "sum of columns": lambda x: x.sum(0),
    "sum": lambda x: x.sum(),
    "mean of rows": lambda x: x.mean(-1),
    "mean of columns": lambda x: x.mean(0),
    "variance of rows": lambda x: x.var(-1),
    "variance of columns": lambda x: x.var(0),
    "variance": lambda x: x.var(),
    "deviation of rows": lambda x: x.std(-1),
    "deviation and mean": lambda x: torch.std_mean(x, -1)[0],
    "variance and mean of rows": lambda x: torch.var_mean(x, -1)[0],
    "variance and mean of columns": lambda x: torch.var_mean(x, 0)[0],
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "group norm": lambda x: F.group_norm(x[:, : x.shape[1] // 4 * 4], 4),
    "rms norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "norm of rows": lambda x: x.norm(dim=-1),
    "norm of columns": lambda x: x.norm(dim=0),
    "product": lambda x: (1 + x / 1000).prod(-1),
    "cross entropy": lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.long)),
    "mean square": lambda x: F.mse_loss(x, x.roll(1, 0)),
}

OF_SHORT_ROWS = ("layer norm", "group norm")


def error(f: Callable[[Tensor], Tensor], truth: Callable[[Tensor], Tensor], inputs: list[Tensor]) -> float:
    total, count = 0.0, 0
    for x in inputs:
        want = truth(x.double())
        unit = torch.finfo(torch.float32).eps * want.abs().max()
        total += float((((f(x).double() - want) / unit) ** 2).sum())
        count += want.numel()
    return (total / count) ** 0.5


@pytest.mark.parametrize("shape", [(60, 1000), (1000, 60)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_close_to_the_truth_as_eager(name: str, shape: tuple[int, int]) -> None:
    f = FUNCTIONS[name]
    compiled = pycompiler.compile(f, fullgraph=True)
    draw = torch.Generator().manual_seed(0)
    for mean in (0.0, 10.0):
        inputs = [torch.randn(shape, generator=draw) + mean for _ in range(DRAWS)]
        ours, eagers = error(compiled, f, inputs), error(f, f, inputs)
        slack = SHORT if name in OF_SHORT_ROWS else SLACK
        assert ours <= max(slack * eagers, EXACT), f"mean {mean}: {ours:.2f} units, eager {eagers:.2f}"
