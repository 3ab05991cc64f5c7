"""Where gradients go: through the nodes of autograd's own graph of a trace, and past what these keep."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx

from pycompiler.autograd.joint import Path
from pycompiler.autograd.recorder import tensors_in
from pycompiler.autograd.saved import modified
from pycompiler.autograd.trace.inputs import storage_of
from pycompiler.autograd.unsupported import AutogradUnsupported


class Slices:
    """What nodes keep that a write to a view hides behind ``CopySlices``, where nobody can ask them: the tensors that the
    operators of such a write saved, by the node of the view's base."""

    def __init__(self) -> None:
        self.kept: dict[Any, list[torch.Tensor]] = {}

    @contextlib.contextmanager
    def watch(self, node: fx.Node, written: Sequence[torch.Tensor]) -> Iterator[None]:
        """Around the call of `node`, which writes these."""
        views = node.target is operator.setitem or any(t._is_view() for t in written)
        if not views or not torch.is_grad_enabled():
            yield
            return
        saved: list[torch.Tensor] = []

        def pack(value: torch.Tensor) -> tuple[torch.Tensor, int]:
            saved.append(value)
            return value, value._version

        with torch.autograd.graph.saved_tensors_hooks(pack, _unpacked):  # type: ignore[no-untyped-call]
            yield
        for t in written:
            base = t._base if t._is_view() else t
            if base is not None and base.grad_fn is not None and not _saved_names(type(base.grad_fn)):
                self.kept[base.grad_fn] = saved


def _unpacked(packed: tuple[torch.Tensor, int]) -> torch.Tensor:
    """A saved tensor; autograd checks no versions where there are hooks."""
    value, version = packed
    if value._version != version:
        raise RuntimeError(modified(f"{value.type()} {list(value.shape)}", value._version, version))
    return value


def paths(
    outputs: Sequence[torch.Tensor],
    leaves: Mapping[int, int],
    kept_as: Mapping[int, tuple[str, int]],
    slices: Slices,
    written: Callable[[torch.Tensor], bool],
) -> list[Path]:
    """For each output its gradient's way.  `leaves`: ids of leaves → inputs; `kept_as`: storages → what `Path.kept` calls
    them; `written`: whether a product is another by now.  Sets are bits of numbers: networks have thousands of nodes."""
    names = list(dict.fromkeys(kept_as.values()))
    numbers = {name: 1 << i for i, name in enumerate(names)}
    bits = {storage: numbers[name] for storage, name in kept_as.items()}
    found: dict[Any, tuple[int, int, int]] = {}
    for number, node in enumerate(_in_order([t.grad_fn for t in outputs])):
        keeps = [*_kept_tensors(node), *slices.kept.get(node, ())]
        if type(node).__name__.startswith("ProdBackward") and written(node._saved_result):
            raise AutogradUnsupported(  # whose values the formula reads where nothing is zero: a trace has the other one
                "a product is written behind autograd's back", "`.data` of a result of prod", "clone it first"
            )
        leaf = leaves.get(id(getattr(node, "variable", None)))
        inputs, nodes, kept = 0 if leaf is None else 1 << leaf, (1 << number if keeps else 0), 0
        for t in keeps:
            kept |= bits.get(storage_of(t), 0)
        for behind, _ in node.next_functions:
            if behind is not None:
                a, b, c = found[behind]
                inputs, nodes, kept = inputs | a, nodes | b, kept | c
        found[node] = inputs, nodes, kept
    found_of = [found[t.grad_fn] for t in outputs]
    return [Path(_bits(a), _bits(b), frozenset(names[k] for k in _bits(c))) for a, b, c in found_of]


def _bits(number: int) -> frozenset[int]:
    return frozenset(k for k, digit in enumerate(reversed(bin(number)[2:])) if digit == "1")


def _in_order(roots: Sequence[Any]) -> list[Any]:
    """The nodes of autograd's graph behind `roots`, each after those that its gradients flow to."""
    order: list[Any] = []
    seen: set[Any] = set()
    stack: list[tuple[Any, bool]] = [(node, False) for node in roots]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node is not None and node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((n, False) for n, _ in node.next_functions)
    return order


def _kept_tensors(node: Any) -> list[torch.Tensor]:
    """What a node of autograd's graph keeps until its gradient is computed."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return list(node.saved_tensors)
    kind: Any = type(node)
    return list(tensors_in([getattr(node, name) for name in _saved_names(kind)]))


@cache
def _saved_names(kind: Any) -> list[str]:
    return [name for name in dir(kind) if name.startswith("_saved_")]
