"""Results that are pieces of one tensor, as `split` and `unbind` return them: one call creates them all, as in eager.

In: outputs, each with its own steps that end in a slice and a mark.  Out: outputs that share a call and take its items.

Example: ``a, b = x.chunk(2); return a, b`` gives two slices that are marked as pieces, and becomes ``x.split(n)``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload

from pycompiler.autograd.joint import Output
from pycompiler.autograd.views import ViewStep, as_one_of_several

aten = torch.ops.aten

_SEVERAL = 2  # the least number of pieces that are created together


def share_calls(outputs: Sequence[Output], bases: Mapping[int, torch.Tensor]) -> list[Output]:
    """The outputs; outputs that are together all pieces of one tensor share a call. bases: the base of each view."""
    groups: dict[Any, list[int]] = {}
    for k, output in enumerate(outputs):
        if k in bases and _is_piece(output):
            *before, cut, _ = output.steps
            groups.setdefault(
                (output.of_input, output.of_result, output.index, cut.target, repr((before, cut.args[0]))), []
            ).append(k)
    found = list(outputs)
    for number, members in enumerate(groups.values()):
        *before, cut, _ = outputs[members[0]].steps
        base = bases[members[0]]
        for step in before:
            base = step(base)
        cuts = {k: outputs[k].steps[-2].args[1:] for k in members}
        if (whole := _WHOLE[cut.target](base, cut.args[0], cuts)) is not None:
            for k in members:
                step, item = whole[k]
                found[k] = replace(outputs[k], steps=(*before, replace(step, item=item)), pieces=number)
    return found


def _is_piece(output: Output) -> bool:
    if len(output.steps) < 2 or output.steps[-1].target is not as_one_of_several:
        return False
    cut = output.steps[-2]
    plain = all(isinstance(s.target, OpOverload) and not s.kwargs and _is_plain(s.args) for s in output.steps[:-1])
    return plain and cut.target in _WHOLE


def _is_plain(args: Any) -> bool:
    return all(type(a) is int or (isinstance(a, (list, tuple)) and _is_plain(a)) for a in args)


Cuts = Mapping[int, tuple[int, ...]]
Whole = dict[int, tuple[ViewStep, int]]


def _unbound(base: torch.Tensor, dim: int, cuts: Cuts) -> Whole | None:
    size = base.shape[dim]
    items = {k: place for k, (place,) in cuts.items()}
    if type(size) is not int or len({*items.values()}) < len(items) or len(items) < max(_SEVERAL, size // 2):
        return None
    return {k: (ViewStep(aten.unbind.int, (dim,), {}), item) for k, item in items.items()}


def _split(base: torch.Tensor, dim: int, cuts: Cuts) -> Whole | None:
    size = base.shape[dim]
    if type(size) is not int or len(cuts) < _SEVERAL or any(len(c) != 2 for c in cuts.values()):
        return None
    order = sorted(cuts, key=cuts.__getitem__)
    edges = [0, *(cuts[k][1] for k in order)]
    if edges[-1] != size or any(cuts[k] != ends for k, ends in zip(order, itertools.pairwise(edges), strict=True)):
        return None
    sizes = [b - a for a, b in itertools.pairwise(edges)]
    alike = len({*sizes[:-1]}) == 1 and 0 < sizes[-1] <= sizes[0]
    step = (
        ViewStep(aten.split.Tensor, (sizes[0], dim), {})
        if alike
        else ViewStep(aten.split_with_sizes.default, (sizes, dim), {})
    )
    return {k: (step, item) for item, k in enumerate(order)}


_WHOLE: dict[Any, Any] = {aten.select.int: _unbound, aten.slice.Tensor: _split}
