"""Calls of a captured graph that run graphs inside of it: function transforms, branches, checkpoints.

In: bodies (graph modules whose results are a tuple), what is fixed (numbers of arguments, dimensions), tensors.
Out: a flat tuple of tensors.
Example: ``grad_and_value(body, 1, x, w)`` gives the gradient of the body's first result with respect to x, then all results.

The first tensors are the function's own arguments, the rest are what it used of the graph around it. The transforms are
torch.func's own; functorch's levels work on whatever tensors the graph runs with: real, fake, or recorded ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import checkpoint as torch_checkpoint

from pycompiler.ir.texts import forward_of

Tensors = tuple[torch.Tensor, ...]


def grad_and_value(body: fx.GraphModule, count: int, *tensors: torch.Tensor) -> Tensors:
    """The gradients of the first result with respect to the first `count` tensors, then all results."""
    run, rest = forward_of(body), tensors[count:]

    def function(wanted: Tensors) -> tuple[torch.Tensor, Tensors]:
        loss, *others = run(*wanted, *rest)
        return loss, tuple(others)

    gradients, (loss, others) = torch.func.grad_and_value(function, has_aux=True)(tensors[:count])
    return (*gradients, loss, *others)


def vmap(
    body: fx.GraphModule,
    in_dims: Sequence[int],
    out_dims: Sequence[Any],
    randomness: str,
    chunk_size: int | None,
    *tensors: torch.Tensor,
) -> Tensors:
    """The body for each slice of the first ``len(in_dims)`` tensors."""
    run, rest = forward_of(body), tensors[len(in_dims) :]
    mapped = torch.func.vmap(
        lambda *slices: tuple(run(*slices, *rest)), tuple(in_dims), tuple(out_dims), randomness, chunk_size=chunk_size
    )
    return tuple(mapped(*tensors[: len(in_dims)]))


def jvp(body: fx.GraphModule, count: int, outputs: int, strict: bool, *tensors: torch.Tensor) -> Tensors:
    """`count` primals, as many tangents, then the rest → all results, then the tangents of the first `outputs`."""
    run, rest = forward_of(body), tensors[2 * count :]

    def function(*primals: torch.Tensor) -> tuple[Tensors, Tensors]:
        results = tuple(run(*primals, *rest))
        return results[:outputs], results[outputs:]

    made: Any = torch.func.jvp(function, tensors[:count], tensors[count : 2 * count], strict=strict, has_aux=True)
    return (*made[0], *made[2], *made[1])


def vjp_value(body: fx.GraphModule, count: int, outputs: int, *tensors: torch.Tensor) -> Tensors:
    """`count` primals, then the rest → all results."""
    made = _vjp(body, count, outputs, tensors)
    return (*made[0], *made[2])


def vjp(body: fx.GraphModule, count: int, outputs: int, *tensors: torch.Tensor) -> Tensors:
    """A cotangent for each of the first `outputs` results, `count` primals, then the rest → the primals' cotangents."""
    return tuple(_vjp(body, count, outputs, tensors[outputs:])[1](tensors[:outputs]))


def _vjp(body: fx.GraphModule, count: int, outputs: int, tensors: Sequence[torch.Tensor]) -> Any:
    run, rest = forward_of(body), tensors[count:]

    def function(*primals: torch.Tensor) -> tuple[Tensors, Tensors]:
        results = tuple(run(*primals, *rest))
        return results[:outputs], results[outputs:]

    return torch.func.vjp(function, *tensors[:count], has_aux=True)


def cond(yes: fx.GraphModule, no: fx.GraphModule, kinds: Sequence[bool], pred: Any, *tensors: torch.Tensor) -> Tensors:
    """The results of one body.  `kinds`: which of them require grad, whichever body is chosen: then each tensor that does
    gets a gradient, of zeros where the body does not read it."""
    results = forward_of(yes if pred else no)(*tensors)
    reached = [t for t in tensors if t.requires_grad]
    if not reached or not torch.is_grad_enabled() or not any(kinds):
        return tuple(results)
    chosen = [r for r, k in zip(results, kinds, strict=True) if k]
    joined = iter(_Joined.apply(len(chosen), *chosen, *reached))  # type: ignore[no-untyped-call]
    return tuple(next(joined) if k else r for r, k in zip(results, kinds, strict=True))


class _Joined(torch.autograd.Function):
    """Copies of the first tensors, which reach all others."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> Tensors:
        ctx.others = [(t.shape, t.dtype, t.device) for t in tensors[count:]]
        return tuple(t.clone() for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        zeros = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.others]
        return None, *grads, *zeros


def checkpoint(body: fx.GraphModule, preserve_rng_state: bool, *tensors: torch.Tensor) -> Tensors:
    """The body's results; what it computes in between is computed again in the backward."""
    made = torch_checkpoint.checkpoint(
        forward_of(body), *tensors, use_reentrant=False, preserve_rng_state=preserve_rng_state
    )
    return tuple(made)
