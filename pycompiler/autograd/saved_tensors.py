"""Saved tensors of graphs with several outputs: the tensors that a backward takes, and the tensors left for later backwards.

In: one of our autograd nodes. Out: tensors. In eager, each output has nodes of its own, and each node keeps its tensors
until its gradient is computed.  Our node serves all outputs.

Example: for ``a, b = x.exp(), x.sin()``, first `a` goes backward, then `b`, both without ``retain_graph``.  Or `a` is
written and `b` goes backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from pycompiler.autograd.joint import Joint
from pycompiler.autograd.partition import Partition
from pycompiler.torch_compat import torch_compile

keeps_graph: Callable[[], bool] = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)

TWICE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)


class RemainingTensors(NamedTuple):
    """The state after a backward has freed its part of the graph: the nodes that eager has freed, remaining tensors
    with versions."""

    freed: frozenset[int]
    tensors: list[tuple[torch.Tensor, int] | None]


class SavedTensors:
    """Called with the autograd node: returns the tensors that the backward of `tangents` takes (the backward of `part`).

    rest: for a list of tangents, the positions of the tensors that their backward takes or checks.
    holds: whether the node has references to inputs that may have no other owner.
    """

    def __init__(
        self, joint: Joint, whole: Partition, part: Partition, tangents: Sequence[int], rest: Callable[..., set[int]],
        *, holds: bool
    ) -> None:  # fmt: skip
        tensors = [j for j, n in enumerate(whole.saved_nodes) if isinstance(n.meta["val"], torch.Tensor)]
        all_taken = range(len(whole.saved))
        numbers = {j: p for p, j in enumerate(all_taken if whole.taken is None else whole.taken)}
        taken = set(all_taken if part is whole else [numbers[j] for j in part.taken or ()])
        self.positions = [p for p, j in enumerate(tensors) if j in taken]
        self._paths = joint.paths
        self._nodes = frozenset[int]().union(*(joint.paths[k].nodes for k in tangents))
        self._rest_of, self._holds = rest, holds
        self._rest: dict[frozenset[int], tuple[frozenset[int], set[int]] | None] = {}
        self._caller = [self._owner(joint, whole, j) for j in tensors]
        kept = joint.kept(tangents)
        self.checked = [
            p for p, (j, owner) in enumerate(zip(tensors, self._caller, strict=True)) if j in taken or owner in kept
        ]

    @staticmethod
    def _owner(joint: Joint, whole: Partition, j: int) -> tuple[str, int] | None:
        """The caller's tensor that a saved tensor is; None for a tensor that no other code can write."""
        kind, index = whole.saved[j]
        if kind == "input":
            return ("input", index)
        return ("fresh", index) if index < len(joint.fresh) else None

    @torch_compile.skipped
    def __call__(self, ctx: Any) -> list[torch.Tensor]:
        items = self.look(ctx)
        self.free(ctx, items)
        return [items[p][0] for p in self.positions]

    def look(self, ctx: Any) -> list[Any]:
        """All remaining saved tensors, each with its version in the forward, or None.

        Raises if a tensor that the backward takes or checks was freed or written.
        """
        left: RemainingTensors | None = getattr(ctx, "left", None)
        return self._unpacked(ctx) if left is None else self._from(left)

    def free(self, ctx: Any, items: list[Any]) -> None:
        """Free the tensors of this backward, unless the graph is retained; keep the tensors of other backwards."""
        if keeps_graph():
            return
        left: RemainingTensors | None = getattr(ctx, "left", None)
        freed = frozenset[int]() if left is None else left.freed
        if freed not in self._rest:
            self._rest[freed] = self._after(freed)
        rest = self._rest[freed]
        if rest is not None:
            ctx.left = RemainingTensors(rest[0], [item if p in rest[1] else None for p, item in enumerate(items)])
            return
        if left is not None:
            ctx.left = None
        if self._holds:
            ctx.watched = ()

    def _unpacked(self, ctx: Any) -> list[Any]:
        """The saved tensors, each with its version in the forward."""
        try:
            return [(t, t._version) for t in ctx.saved_tensors]
        except RuntimeError:
            # A tensor was written, perhaps one that this backward does not take; the version of a new output was 0.
            tensors: list[Any] = [getattr(s, "data", None) for s in ctx._raw_saved_tensors]
            if any(t is None for t in tensors):
                raise
            given = iter(ctx.versions)
            owners = zip(tensors, self._caller, strict=True)
            items = [(t, t._version if o is None else 0 if o[0] == "fresh" else next(given)) for t, o in owners]
            if any(items[p][0]._version != items[p][1] for p in self.checked):
                raise
            return items

    def _from(self, left: RemainingTensors) -> list[Any]:
        if self._nodes & left.freed:
            raise RuntimeError(TWICE)
        for item in (left.tensors[p] for p in self.checked):
            if item is not None and item[0]._version != item[1]:
                value, expected = item
                raise RuntimeError(modified(f"{value.type()} {list(value.shape)}", value._version, expected))
        return left.tensors

    def _after(self, freed: frozenset[int]) -> tuple[frozenset[int], set[int]] | None:
        """The nodes freed after this backward, and the positions of tensors for the remaining backwards."""
        freed |= self._nodes
        others = [k for k, path in enumerate(self._paths) if not path.nodes & freed]
        return (freed, self._rest_of(others)) if others else None


class SavedTensorCheck:
    """Called with the autograd node before a replay computes the gradients of some tangents.

    Returns the saved tensors (as `SavedTensors.look`), after the checks of the compiled backward.
    saved: the `SavedTensors` of a node with several outputs.  asked: without one, whether the
    backward reads saved tensors, which raises if they were freed.
    kept: indices of version counters to check, each with a function that raises.
    positions: of the tensors that the backward takes.  holds: as in `SavedTensors`.
    """

    def __init__(
        self,
        saved: SavedTensors | None,
        asked: bool,
        kept: Sequence[tuple[int, Callable[..., None]]],
        count: int,
        holds: bool,
    ) -> None:
        self.saved, self.asked, self.kept, self.holds = saved, asked, kept, holds
        self.positions = tuple(range(count) if saved is None else saved.positions)

    def __call__(self, ctx: Any) -> list[Any]:
        if self.saved is not None:
            items = self.saved.look(ctx)
        else:
            items = [(t, t._version) for t in ctx.saved_tensors] if self.asked else []
        for j, fail in self.kept:
            counter, expected = ctx.kept[j]
            if counter._version != expected:
                fail(counter, expected)
        return items

    def free(self, ctx: Any, items: list[Any]) -> None:
        if self.saved is not None:
            self.saved.free(ctx, items)
        elif self.holds and not keeps_graph():
            ctx.watched = ()


@torch_compile.skipped
def strong_reference(value: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A strong reference to `value`, with the interface of a weak one."""
    return lambda: value


NOTHING = torch.empty(0)
"""The memory of tensors that only count versions."""


def raiser_of_written(value: torch.Tensor) -> Callable[[torch.Tensor, int], None]:
    """A function that raises autograd's error for a written tensor like `value`, which eager would have saved."""
    return functools.partial(_fail, f"{_kind(value)} {list(value.shape)}")


@torch_compile.skipped
def _fail(value: str, counter: torch.Tensor, expected: int) -> None:
    raise RuntimeError(modified(value, counter._version, expected))


def _kind(value: torch.Tensor) -> str:
    """The legacy name of a tensor's type.  For a fake tensor, torch would import its distributed tensors."""
    if value.device.type != "cpu":
        return value.type()
    with _disable_current_modes():
        return torch.empty(0, dtype=value.dtype, device="cpu").type()


def modified(value: str, version: int, expected: int) -> str:
    """autograd's error message for a saved tensor that was written."""
    return (
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{value}] is at version {version}; expected version {expected} instead. "
        "Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True)."
    )
