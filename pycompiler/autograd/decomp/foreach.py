"""Operators on lists of tensors, one tensor at a time, so that each tensor becomes ordinary pointwise work that fuses.

In: ``aten._foreach_add.List(xs, ys, alpha=2)``. Out: ``[aten.add(x, y, alpha=2) for x, y in zip(xs, ys)]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

_PREFIX = "_foreach_"

# Name after the prefix → packet for one tensor, where the names differ.
_RENAMED = {"norm": aten.linalg_vector_norm, "zero": aten.zeros_like}

# Packets for a number in place of the second list.
_WITH_SCALAR = {"maximum": aten.clamp_min, "minimum": aten.clamp_max}


def foreach(op: OpOverload) -> Callable[..., Any] | None:
    """A decomposition of a functional ``_foreach_`` operator; None for any other."""
    name = op.overloadpacket.__name__
    if not name.startswith(_PREFIX) or op._schema.is_mutable or not op._schema.returns:
        return None
    base = name.removeprefix(_PREFIX)
    packet = _RENAMED.get(base) or getattr(aten, base, None)
    if op._overloadname.startswith("Scalar"):
        packet = _WITH_SCALAR.get(base, packet)
    if packet is None or (op._overloadname == "Tensor" and base in ("addcmul", "addcdiv")):
        return None  # these take their numbers in one tensor
    listed = [str(a.type).startswith("List[") for a in op._schema.arguments]
    names = [a.name for a in op._schema.arguments]
    keyword = _keyword_arguments(packet)

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        bound = dict(zip(names, args, strict=False)) | kwargs
        results = []
        for i in range(len(bound[names[listed.index(True)]])):
            positional, named = [], {}
            for argument, is_list in zip(names, listed, strict=True):
                if argument not in bound:
                    continue
                value = bound[argument][i] if is_list else bound[argument]
                target = "value" if argument == "scalars" and "value" in keyword else argument
                if target in keyword:
                    named[target] = value
                else:
                    positional.append(value)
            results.append(packet(*positional, **named))
        return results

    return decomposed


def _keyword_arguments(packet: Any) -> frozenset[str]:
    found: set[str] = set()
    for overload in packet.overloads():
        found.update(a.name for a in getattr(packet, overload)._schema.arguments if a.kwarg_only and not a.is_out)
    return frozenset(found)
