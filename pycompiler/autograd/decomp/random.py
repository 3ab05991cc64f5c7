"""Random numbers are drawn by ATen's own operators, in eager's order; here only what is kept of them becomes smaller.

In: ``aten.bernoulli.p(x, p)``. Out: the same zeros and ones, by way of a bool, which is what a backward graph then saves.
"""

from __future__ import annotations

from typing import Any

import torch

from pycompiler.autograd.decomp.registry import rule

aten = torch.ops.aten
Tensor = torch.Tensor


@rule(aten.bernoulli.p)
def bernoulli(x: Tensor, p: float, generator: Any = None) -> Any:
    if generator is not None or not x.is_floating_point():
        return NotImplemented
    return (aten.bernoulli.p(x, p) != 0).to(x.dtype)
