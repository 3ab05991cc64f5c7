"""Memory of gradients.

In: the gradients of a joint trace, and the owners of memory. Out: their nodes, with copies where two gradients would
share memory.

Example: both gradients of ``x.view(3, 1) * w + y * w`` are one product; the second gradient is a copy of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from pycompiler.autograd.recorder import Recorder
from pycompiler.autograd.trace.inputs import inner, storage_of
from pycompiler.autograd.views import view_root

_OF_THE_FORWARD = 0
"""Marks a value that the forward keeps: a gradient may share its memory only if the caller has that memory too."""


class GradientMemory:
    """Decides which gradients may share memory.

    Autograd keeps a gradient without other owners, and adds later gradients to it in place.  So gradients may share
    memory exactly where eager's do (`cat` returns parts of the tangent).  But in the graph, equal values are one node,
    and rules of non-view operators may return their argument (`layer_norm` returns a part of the tangent for its bias).
    Of two gradients in one place, only equal tensors are safe: autograd counts them.  In eager, the order of accumulation
    protects other cases, with the view added last; our gradients arrive together.
    """

    def __init__(self, recorder: Recorder, held: Mapping[fx.Node, int]) -> None:
        self.recorder = recorder
        self.storages = dict(held)
        self.taken: dict[fx.Node, list[fx.Node]] = {}  # owner of memory -> the gradients in it

    def nodes(self, grads: Sequence[torch.Tensor | None]) -> list[fx.Node | None]:
        """The node of each gradient."""
        nodes = [None if g is None else self.recorder.node(inner(g)) for g in grads]
        for n in nodes:
            if n is not None and view_root(n) is n:
                self.taken[n] = [n]
        return [
            n if n is None or g is None or self._may_lie(n, g) else self.recorder.copied(n)
            for n, g in zip(nodes, grads, strict=True)
        ]

    def _may_lie(self, node: fx.Node, grad: torch.Tensor) -> bool:
        if grad.layout is not torch.strided:
            return True
        root, storage = view_root(node), storage_of(grad)
        mine = storage if "gradient" in root.meta else _OF_THE_FORWARD
        if self.storages.setdefault(root, mine) != storage:
            return False
        beside = self.taken.setdefault(root, [])
        if node in beside:
            return True
        if not _apart(node.meta["val"], [n.meta["val"] for n in beside]):
            return False
        beside.append(node)
        return True


def _apart(value: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    """Whether the view is known to lie before or after each of the others."""
    places = [_place(t) for t in (value, *others)]
    if len(places) > 1 and any(type(n) is not int for place in places for n in place):
        return False
    if any(t.dtype != value.dtype for t in others):  # elements of different sizes
        return False
    (first, last), *rest = places
    return all(last < a or b < first for a, b in rest)


def _place(t: torch.Tensor) -> tuple[Any, Any]:
    """The first and the last element of the storage that `t` covers."""
    first = t.storage_offset()
    return first, first + sum(((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)), 0)
