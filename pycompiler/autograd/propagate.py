"""Shapes, strides and types of results: FakeTensorMode's answer, reached on a short path for ordinary operators.

In: an operator and FakeTensor arguments. Out: FakeTensors.
Example: of ``aten.mm`` with (2, 3) and (3, 4) it is a (2, 4) FakeTensor.

The short path runs the operator's meta kernel and wraps the result. It is right for operators whose result lies on the
one device of their tensor arguments and whose shape does not depend on data; anything else goes through the mode, which
costs about five times as much (it hashes the arguments for its cache).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

aten = torch.ops.aten

_ORDINARY = frozenset(
    (
        *(aten.permute.default, aten.view.default, aten.expand.default, aten.unsqueeze.default, aten.select.int),
        *(aten.slice.Tensor, aten.squeeze.dim, aten.squeeze.dims, aten.alias.default),
        *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.cat.default),
        *(aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default, aten.var_mean.correction),
        *(aten.gather.default, aten.slice_scatter.default, aten.select_scatter.default, aten.embedding.default),
    )
)


def _mm(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...] | None:
    good = a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0] and a.dtype == b.dtype
    return (a.shape[0], b.shape[1]) if good else None


def _bmm(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...] | None:
    good = a.dim() == b.dim() == 3 and a.shape[0] == b.shape[0] and a.shape[2] == b.shape[1] and a.dtype == b.dtype
    return (a.shape[0], a.shape[1], b.shape[2]) if good else None


def _addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...] | None:
    shape = _mm(a, b)
    good = shape is not None and bias.dtype == a.dtype and bias.dim() == 1 and bias.shape[0] == shape[1]
    return shape if good else None


# Operators whose meta kernels are slow Python: the shape of their contiguous result, or None when in doubt.
_CONTIGUOUS: dict[OpOverload, Callable[..., tuple[int, ...] | None]] = {
    aten.mm.default: _mm,
    aten.bmm.default: _bmm,
    aten.addmm.default: _addmm,
}


@cache
def is_ordinary(op: OpOverload) -> bool:
    """True when the meta kernel alone gives the result (see the module docstring)."""
    if op in _ORDINARY:
        return True
    if torch.Tag.pointwise not in op.tags or op.namespace != "aten" or torch.Tag.nondeterministic_seeded in op.tags:
        return False
    arguments, returns = op._schema.arguments, op._schema.returns
    makes_device = any(a.name in ("device", "dtype", "memory_format") for a in arguments)
    return not makes_device and not op._schema.is_mutable and len(returns) == 1 and str(returns[0].type) == "Tensor"


def propagate(
    mode: FakeTensorMode, op: OpOverload, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What `op` returns for these arguments (all tensors are FakeTensors of `mode`)."""
    if is_ordinary(op) and (device := _one_device(args)) is not None:
        direct = _CONTIGUOUS.get(op)
        shape = direct(*args) if direct is not None and not kwargs else None
        with in_kernel_invocation_manager(mode):
            if shape is None:
                out = op(*args, **kwargs)
            else:
                out = torch.empty(shape, dtype=args[-1].dtype, device="meta")
        if isinstance(out, torch.Tensor):
            return FakeTensor(mode, out, device)
        return tuple([FakeTensor(mode, o, device) for o in out])
    return mode.dispatch(op, types, args, kwargs)


def _one_device(args: Sequence[Any]) -> torch.device | None:
    """The device of every tensor in `args`, or None when there are several or none."""
    found = None
    for a in args:
        kind = type(a)
        if kind is FakeTensor:
            device = a.fake_device
        elif kind is list and a and type(a[0]) is FakeTensor:
            device = _one_device(a)
        elif isinstance(a, torch.Tensor):
            return None
        else:
            continue
        if found is not None and device != found:
            return None
        found = device
        if found is None:
            return None
    return found
