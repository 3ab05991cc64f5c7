"""Linearity check of the program's functions of gradients: hooks, and backwards of autograd Functions.

In: a body (of gradients, then of its other inputs), and gradients. Out: the answer, from runs with other gradients.

Example: ``grad * mask`` is linear.  ``grad.clamp(-1, 1)`` is not, however small the gradients are.

A second derivative reaches a compiled graph's values in two ways: through its own autograd node and through its replay.
Eager adds both before it calls such a body.  Here the body runs once for each, which is equal only if it is linear.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

FAR = 2.0**20
"""Factor of a gradient that exceeds typical clipping bounds.  float16 would overflow, so it gets a smaller one."""
TOLERANCE = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float32: 1e-3, torch.complex64: 1e-3}


def may_run_again(body: fx.GraphModule) -> bool:
    """Whether further runs of a body are unobservable: it writes nothing, and draws no random numbers."""
    return not any(_acts(n) for n in body.graph.nodes)


def _acts(node: fx.Node) -> bool:
    if node.op in ("placeholder", "output"):
        return False
    name = str(getattr(node.target, "__name__", node.target))
    writes = node.target in IN_PLACE or (name.endswith("_") and not name.endswith("__")) or "out" in node.kwargs
    return writes or any(part in name for part in ("drop", "rand", "bernoulli", "normal", "multinomial"))


IN_PLACE = frozenset(f for n, f in vars(operator).items() if n.startswith("__i") and callable(f)) | {operator.setitem}


def is_linear(run: Callable[..., Sequence[Any]], gradients: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether `run(*gradients, *others)` is linear in the gradients, as far as a few runs show.  A gradient may be None."""
    given = [g for g in gradients if g is not None]
    if not all(g.layout is torch.strided and (g.is_floating_point() or g.is_complex()) for g in given):
        return True
    near = [None if g is None else _other(g) for g in gradients]
    far = [None if n is None else n * (2.0**7 if n.dtype is torch.float16 else FAR) for n in near]

    def of(values: Sequence[Any], *more: Any, times: float = 1.0) -> Sequence[Any]:
        added = [None if v is None else sum((m[i] for m in more), v * times) for i, v in enumerate(values)]
        return run(*added, *others)

    def agree(whole: Sequence[Any], *parts: tuple[float, Sequence[Any]]) -> bool:
        return all(_is_sum(w, [(k, p[i]) for k, p in parts]) for i, w in enumerate(whole))

    with torch.no_grad():
        ours, alone = of(gradients), of(far)
        return (
            agree(of(gradients, near), (1.0, ours), (1.0, of(near)))
            and agree(of(far, times=2.0), (2.0, alone))
            and agree(of(far, times=-1.0), (-1.0, alone))
        )


def _other(gradient: torch.Tensor) -> torch.Tensor:
    """Other values of about the gradient's magnitude."""
    size = gradient.abs().max().item() if gradient.numel() else 0.0
    steps = torch.arange(gradient.numel(), dtype=torch.float64, device=gradient.device)
    return ((steps * 1.7 + 0.3).cos() * (size or 1.0)).reshape(gradient.shape).to(gradient.dtype)


def _is_sum(whole: Any, parts: Sequence[tuple[float, Any]]) -> bool:
    if not isinstance(whole, torch.Tensor):
        return all(p is None for _, p in parts) or whole is None
    terms = [p * k for k, p in parts if p is not None]
    size = max((t.abs().max().item() for t in (whole, *terms) if t.numel()), default=0.0)
    apart = (whole - sum(terms, torch.zeros_like(whole))).abs().max().item() if whole.numel() else 0.0
    return not apart > size * TOLERANCE.get(whole.dtype, 0.05)
