"""torch's jagged tensors (`torch.nested`, layout `torch.jagged`): the tensor subclass whose shape has a *nested int*.

In: a tensor of torch's class.  Out: its inner tensors, and a function that builds such a tensor from others.

Example: for rows of length 2 and 3 with 4 columns, the inner tensors are `_values` (5 by 4) and `_offsets` ([0, 2, 5]).
The shape is (2, j, 4), where `j` stands for the object `_offsets`.

The class is torch's, so its behaviour is known.  Two jagged tensors fit each other if their offsets are one object.
So the tensors beside `_values` are the *structure*.  Operators pass the same objects on to results, never copies.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_MODULE, _NAME = "torch.nested._internal.nested_tensor", "NestedTensor"
VALUES = "_values"
OWN = frozenset((VALUES,))  # its attributes whose names torch.Tensor also has
SHAPED = ("_offsets", "_lengths")
CACHED = {"_min_seqlen_tensor": "min_seqlen", "_max_seqlen_tensor": "max_seqlen"}
"""Tensors whose first size is a number computed by torch; the class has properties with these names."""


def is_jagged(cls: type) -> bool:
    """Whether `cls` is torch's class, which is imported when the first jagged tensor is created."""
    return cls is getattr(sys.modules.get(_MODULE), _NAME, None)


def parts(tensor: Any) -> list[tuple[str, torch.Tensor]]:
    """The inner tensors by name, `_values` first."""
    own, cache = vars(tensor), tensor._metadata_cache
    found = [(n, own[n]) for n in (VALUES, *SHAPED)] + [(n, cache.get(key)) for n, key in CACHED.items()]
    return [(n, t) for n, t in found if t is not None]


def values_of(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor._values
    return found


def make(cls: Any, inside: Mapping[str, torch.Tensor], ragged_idx: int) -> torch.Tensor:
    cache = {key: inside[n] for n, key in CACHED.items() if n in inside}
    lengths = inside.get("_lengths")
    made: torch.Tensor = cls(
        inside[VALUES], inside["_offsets"], lengths=lengths, _ragged_idx=ragged_idx, _metadata_cache=cache
    )
    return made


def prepare() -> None:
    """Let torch create the tensor that identifies the class to the dispatcher; under a mode it would become a fake, for ever."""
    from torch.nested._internal.nested_tensor import _nt_view_dummy

    _nt_view_dummy()


def size(tensor: torch.Tensor, dim: int) -> Any:
    """A size of a jagged tensor, as a call in the graph."""
    return tensor.size(dim)


def is_nested_int(number: Any) -> bool:
    return isinstance(number, torch.SymInt) and bool(number.node.is_nested_int())


def new_nested_int(ids: Iterator[int]) -> torch.SymInt:
    """A nested int equal to no other."""
    from torch.nested._internal.nested_int import NestedIntNode  # imported together with torch's class

    node: Any = NestedIntNode(next(ids), 1)
    return torch.SymInt(node)


def attention(query: Any, key: Any, value: Any, scale: float | None = None) -> Any:
    """Attention of heads of jagged tensors on the host, ragged in dimension 2.

    torch reads the lengths to separate the rows.  For fake tensors, all rows are padded to the greatest length.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    if not isinstance(values_of(query), FakeTensor):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale)
    factor = math.sqrt(1 / math.sqrt(query.size(-1)) if scale is None else abs(scale))
    q, k, v = (
        _padded(query) * factor,
        _padded(key) * (factor if scale is None or scale >= 0 else -factor),
        _padded(value),
    )
    offsets = key.offsets()
    there = torch.arange(k.size(2), device=offsets.device) < offsets.diff().unsqueeze(-1)
    scores = (q @ k.transpose(-2, -1)).masked_fill(~there[:, None, None], torch.finfo(q.dtype).min)
    rows = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    total = values_of(query).shape[query._ragged_idx - 1]
    lengths = {"min_seqlen": query._maybe_min_seqlen, "max_seqlen": longest(query), "sum_S": total}
    made = sys.modules[_MODULE].nested_from_padded(rows, query.offsets(), **lengths)
    return made.unflatten(-1, [v.size(1), v.size(3)]).transpose(1, 2)


def longest(tensor: Any) -> Any:
    """The greatest length, if torch knows it without reading data."""
    return tensor._maybe_max_seqlen


def _padded(heads: Any) -> torch.Tensor:
    """(rows, heads, length, width), with zeros after shorter rows."""
    made = heads.transpose(1, 2).flatten(2).to_padded_tensor(0.0)
    return made.unflatten(-1, [heads.size(1), heads.size(3)]).transpose(1, 2)  # type: ignore[no-any-return]
