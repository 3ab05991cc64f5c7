"""Random numbers: ATen's own operators draw them, in eager's order.  The rules here only make the saved tensors smaller.

In: ``aten.bernoulli.p(x, p)``. Out: the same zeros and ones, computed from a bool, which a backward graph then saves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from pycompiler.autograd.decomp.registry import rule

aten = torch.ops.aten
Tensor = torch.Tensor


def _called_as(name: str) -> bool:
    """Whether the traced program calls `name` itself."""
    source = getattr(_get_current_dispatch_mode(), "source", None)
    if source is None:
        return True
    called: str = source.target if isinstance(source.target, str) else getattr(source.target, "__name__", "")
    return called.partition(".")[0] == name


@rule(getattr(aten.random, "from"), partial=True)
def random_from(x: Tensor, low: Any, high: Any, generator: Any = None) -> Any:
    """The draw as `randint`, with the same kernel.

    A graph that calls an overload named by a keyword (`from`) cannot be printed as Python.
    """
    if high is None:
        return NotImplemented
    order = _in_memory(x)
    size, like = [x.shape[d] for d in order], {"dtype": x.dtype, "device": x.device, "pin_memory": False}
    if generator is None:
        drawn = aten.randint.low(low, high, size, **like)
    else:
        drawn = aten.randint.low_generator(low, high, size, generator=generator, **like)
    return drawn if x.is_contiguous() else _from_memory(drawn, order)


def _in_memory(x: Tensor) -> list[int]:
    """The dimensions of `x` in the order in which operators that write in place visit them."""
    if x.is_contiguous():
        return [*range(x.dim())]
    strides: tuple[int, ...] = x.stride()
    return sorted(range(x.dim()), key=lambda d: -strides[d])


def _from_memory(drawn: Tensor, order: list[int]) -> Any:
    return aten.permute.default(drawn, [order.index(d) for d in range(drawn.dim())])


@rule(aten.bernoulli.p, partial=True)
def bernoulli(x: Tensor, p: float, generator: Any = None) -> Any:
    if generator is not None:
        return NotImplemented
    if x.is_contiguous() or _called_as("bernoulli"):
        return NotImplemented if not x.is_floating_point() else (aten.bernoulli.p(x, p) != 0).to(x.dtype)
    # `bernoulli_`, turned into `bernoulli` by functionalisation: it fills memory in memory order
    order = _in_memory(x)
    drawn = aten.bernoulli.p(aten.permute.default(x, order), p) != 0
    return _from_memory(drawn, order).to(x.dtype)
