"""`flex_attention` as plain operators: the scores of all pairs, the program's function of each score, the weighted values.

In: two bodies for a single pair (`capture/library/torch_functions/flex_attention.py` traces them).  One changes a score,
the other decides whether a query sees a key.
Out: the attention, the logarithms (base two) of the rows' sums, and the rows' greatest scores.

Example: ``flex_attention(score, mask, 0.125, query, key, value, bias)``: both bodies take the bias after the pair's numbers.

The arithmetic is eager's: all scores are float32 (float64 for float64 queries).  The backward recomputes the scores.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.autograd.function import once_differentiable

from pycompiler.ir.generated_source import forward_of

Tensors = tuple[torch.Tensor, ...]
LN2 = math.log(2)


def precision(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the scores, for queries of this dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def indexed(tensor: torch.Tensor, *indices: Any) -> torch.Tensor:
    """``tensor[indices]`` for integers and integer tensors, without reading the value of any tensor."""
    numbers = [
        i if isinstance(i, torch.Tensor) else torch.full((), i, dtype=torch.int64, device=tensor.device)
        for i in indices
    ]
    return torch.ops.aten.index(tensor, numbers)  # type: ignore[no-any-return]


def flex_attention(score: fx.GraphModule, mask: fx.GraphModule, scale: Any, *tensors: Any) -> Tensors:
    """Query, key and value come first; the other values that the bodies read may be tensors or numbers."""
    call = (forward_of(score), forward_of(mask), scale)
    device = tensors[0].device.type
    casts = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    with torch.autocast(device, enabled=False) if casts else contextlib.nullcontext():
        return tuple(_Attention.apply(call, *tensors))  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    """The scores are not saved for the backward, and the greatest scores have no gradient."""

    @staticmethod
    def forward(ctx: Any, call: Any, *tensors: Any) -> Tensors:
        query, key, value, *others = tensors
        _, keys, values = _fitting(query, key, value)
        seen = _masked_scores(call, _scores(query, keys, call[2]), others)
        sums = seen.logsumexp(-1)
        sums = torch.where((seen == -math.inf).all(-1), -math.inf, sums) / LN2
        greatest = seen.max(-1)[0] / LN2
        made = torch._safe_softmax(seen, -1).to(query.dtype) @ values.to(query.dtype)
        out = copy_with_layout_of(made, query)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(greatest)
        ctx.call, ctx.numbers = call, [None if isinstance(t, torch.Tensor) else t for t in others]
        ctx.save_for_backward(query, key, value, out, sums, *(t for t in others if isinstance(t, torch.Tensor)))
        return out, sums, greatest

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_out: Any, grad_sums: Any, _: Any) -> Any:
        query, key, value, out, sums, *rest = ctx.saved_tensors
        tensors = iter(rest)
        others = [next(tensors) if n is None else n for n in ctx.numbers]
        groups, keys, values = _fitting(query, key, value)
        scores = _scores(query, keys, ctx.call[2])
        work = scores.dtype
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        sums = sums * LN2
        weights = torch.exp(_masked_scores(ctx.call, scores, others) - sums.unsqueeze(-1))
        weights = torch.where((sums == -math.inf).unsqueeze(-1), 0, weights)
        grad_values = weights.to(query.dtype).transpose(-2, -1) @ grad_out
        along = grad_out.to(work) @ values.to(work).transpose(-2, -1)
        along = along - (out.to(work) * grad_out.to(work)).sum(-1, keepdim=True)
        if grad_sums is not None:
            along = along + (grad_sums / LN2).unsqueeze(-1)
        grad_scores, grads = _through(ctx.call[0], scores, others, ctx.needs_input_grad[4:], weights * along)
        grad_scores = (grad_scores * ctx.call[2]).to(query.dtype)
        visible = _over_pairs(ctx.call[1], _places(scores), others, scored=False)()
        grad_scores = torch.where(visible, grad_scores, torch.zeros((), dtype=query.dtype, device=query.device))
        grad_keys = _gathered(grad_scores.transpose(-2, -1) @ query, groups)
        return (
            None,
            copy_with_layout_of(grad_scores @ keys, query),
            _reduced(copy_with_layout_of(grad_keys, key), key),
            _reduced(copy_with_layout_of(_gathered(grad_values, groups), value), value),
            *grads,
        )


def _fitting(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[int, torch.Tensor, torch.Tensor]:
    """The number of query heads per key head; keys and values expanded to each batch and head of the queries."""
    batch = query.size(0)
    if key.size(0) != batch and not (batch > 1 and key.size(0) == 1):
        raise RuntimeError(f"a batch of {batch} queries and one of {key.size(0)} keys")
    groups = query.size(1) // key.size(1)
    both = []
    for t in (key, value):
        t = t.expand(batch, *t.shape[1:])
        both.append(t if groups == 1 else t.repeat_interleave(groups, dim=1))
    return groups, both[0], both[1]


def _gathered(grad: torch.Tensor, groups: int) -> torch.Tensor:
    """The gradient of a shared key head: the sum over its query heads."""
    return grad.view(grad.size(0), -1, groups, *grad.shape[2:]).sum(2)


def _reduced(grad: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return grad if grad.size(0) == tensor.size(0) else grad.sum(0, keepdim=True)


def _scores(query: torch.Tensor, keys: torch.Tensor, scale: Any) -> torch.Tensor:
    work = precision(query.dtype)
    scores: torch.Tensor = (query.to(work) @ keys.to(work).transpose(-2, -1)) * scale
    return scores.to(work)


def _places(scores: torch.Tensor) -> Tensors:
    """The indices of batches, heads, queries and keys."""
    return tuple(torch.arange(0, n, device=scores.device) for n in scores.shape)


def _over_pairs(
    body: Callable[..., Any], places: Sequence[torch.Tensor], others: Sequence[Any], *, scored: bool
) -> Callable[..., torch.Tensor]:
    """The body for all pairs: a function of the scores if `scored`."""

    def each(*given: torch.Tensor) -> Any:
        return body(*given, *others)[0]

    for dim in (3, 2, 1, 0):
        dims = tuple(0 if d == dim else None for d in range(4))
        each = torch.func.vmap(each, in_dims=(0, *dims) if scored else dims)
    return lambda *scores: each(*scores, *places)


def _masked_scores(call: Any, scores: torch.Tensor, others: Sequence[Any]) -> torch.Tensor:
    """The program's function of the scores; minus infinity where a query does not see a key."""
    score, mask, _ = call
    places = _places(scores)
    nothing = torch.full((), -math.inf, dtype=scores.dtype, device=scores.device)
    visible = _over_pairs(mask, places, others, scored=False)()
    return torch.where(visible, _over_pairs(score, places, others, scored=True)(scores), nothing)


def _through(
    body: Callable[..., Any], scores: torch.Tensor, others: Sequence[Any], needed: Sequence[bool], grad: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """The gradients of the scores, and of the body's other values where needed."""
    wanted = [t for t, need in zip(others, needed, strict=True) if need]

    def function(scores: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        rest = iter(given)
        taken = [next(rest) if need else t for t, need in zip(others, needed, strict=True)]
        return _over_pairs(body, _places(scores), taken, scored=True)(scores)

    made, pull = torch.func.vjp(function, scores, *wanted)  # type: ignore[misc]
    grad_scores, *rest = pull(grad.to(made.dtype))
    grads = iter(rest)
    return grad_scores, [next(grads).contiguous() if need else None for need in needed]


def copy_with_layout_of(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A copy with the dimension order of `like` in memory, but with the last dimension contiguous."""
    last = tensor.dim() - 1
    order = sorted(range(tensor.dim()), key=like.stride, reverse=True)[::-1]
    strides = _strides(tensor.shape, order)
    if strides[last] != 1:
        strides = _strides(tensor.shape, [last, *(d for d in order if d != last)])
    made = tensor.new_empty_strided(tensor.shape, strides)
    return made.copy_(tensor)


def _strides(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    """Strides of dimensions in this order, innermost first."""
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    return strides
