"""torch's jagged tensors (`torch.nested`, layout `torch.jagged`): the wrapper class whose shape has a *nested int*.

In: a tensor of torch's class.  Out: the tensors inside, and how the same is made of others.
Example: of rows of length 2 and 3 with 4 columns, the tensors are `_values` (5 by 4) and `_offsets` ([0, 2, 5]), and the shape is
(2, j, 4): `j` stands for the object `_offsets`.

The class is torch's, so what it does is known.  Two jagged tensors fit each other where their offsets are one object; so the
tensors beside `_values` are the *structure*, which operators hand on: they are the same objects in results, never copies.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_MODULE, _NAME = "torch.nested._internal.nested_tensor", "NestedTensor"
VALUES = "_values"
OWN = frozenset((VALUES,))  # of its attributes those that have names of torch.Tensor's
SHAPED = ("_offsets", "_lengths")
CACHED = {"_min_seqlen_tensor": "min_seqlen", "_max_seqlen_tensor": "max_seqlen"}
"""Tensors whose first size is a number that torch has computed; the class has properties by these names."""


def is_jagged(cls: type) -> bool:
    """Whether it is torch's class, which is imported when the first one is made."""
    return cls.__name__ == _NAME and cls is getattr(sys.modules.get(_MODULE), _NAME, None)


def parts(tensor: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors inside by their names, `_values` first."""
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
    """Have torch make the tensor that tells its dispatcher of the class; under a mode it would be a fake, for ever."""
    from torch.nested._internal.nested_tensor import _nt_view_dummy

    _nt_view_dummy()


def size(tensor: torch.Tensor, dim: int) -> Any:
    """A size of a jagged tensor, as a call of the graph's."""
    return tensor.size(dim)


def is_nested_int(number: Any) -> bool:
    return isinstance(number, torch.SymInt) and bool(number.node.is_nested_int())


def new_nested_int(ids: Iterator[int]) -> torch.SymInt:
    """One that is equal to no other."""
    from torch.nested._internal.nested_int import NestedIntNode  # with torch's class

    node: Any = NestedIntNode(next(ids), 1)
    return torch.SymInt(node)
