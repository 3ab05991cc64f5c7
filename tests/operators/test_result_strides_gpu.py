"""Strides of results on a CUDA device, whose kernels have their own rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pycompiler

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "contiguous": ((4, 3, 5), (15, 5, 1)),
    "transposed": ((4, 3, 5), (1, 20, 4)),
    "with gaps": ((4, 3, 5), (60, 10, 2)),
    "expanded": ((4, 3, 5), (0, 5, 1)),
    "of one element in dimensions": ((4, 1, 1), (1, 3, 1)),
    "nothing": ((0, 3, 1), (3, 3, 7)),
}
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "sort": lambda x: x.sort(0).values,
    "cumsum": lambda x: x.cumsum(1),
    "norm": lambda x: x.norm(dim=1, keepdim=True),
    "softmax": lambda x: x.softmax(0),
    "logsigmoid": F.logsigmoid,
    "huber_loss": lambda x: F.huber_loss(x, x, reduction="none"),
    "max_pool1d": lambda x: F.max_pool1d(x, 1),
    "matmul": lambda x: x @ x.mT,
    "flip": lambda x: x.flip(0),
    "mixed": lambda x: torch.div(x.int(), x.double() + 2, rounding_mode="floor"),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_strides_are_the_kernels(name: str, layout: str, backend: str) -> None:
    shape, strides = LAYOUTS[layout]
    x = torch.randn(600, device="cuda").as_strided(shape, strides)
    got, expected = pycompiler.compile(CALLS[name], backend=backend)(x), CALLS[name](x)
    assert (got.shape, got.stride()) == (expected.shape, expected.stride())
    torch.testing.assert_close(got, expected)
