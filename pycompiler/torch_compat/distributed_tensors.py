"""Distributed tensors (`torch.distributed.tensor.DTensor`): wrappers of this process's part, with a mesh and placements; and
what a collective gives before it is waited for.

In: such a tensor, or what its class says of one.  Out: its parts as other wrappers have them; what guards compare.
torch.distributed.tensor is not imported before the program does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch


def dtensor() -> Any:
    """The class, if it is loaded."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def is_distributed(cls: type) -> bool:
    return cls.__name__ == "DTensor" and cls is dtensor()


def is_awaited(cls: type) -> bool:
    """The class of what a functional collective gives outside: its first use waits.  A graph waits whenever it uses one, since to
    wait again costs nothing; the object's own note of it (`completed`) is left as it was."""
    module = sys.modules.get("torch.distributed._functional_collectives")
    return cls.__name__ == "AsyncCollectiveTensor" and cls is getattr(module, "AsyncCollectiveTensor", None)


def plain(tensor: Any) -> tuple[dict[str, Any], tuple[tuple[str, Any], ...], Any]:
    """(tensors inside, the mesh, context), which torch's versions put together otherwise: whether it requires grad is autograd's,
    above the class, as it is of all wrappers."""
    spec = tensor._spec
    context = spec.placements, spec.tensor_meta, spec.shard_order, False
    return {"_local_tensor": tensor._local_tensor}, (("device_mesh", spec.mesh),), context


def make(cls: Any, inner: dict[str, Any], context: Any, size: torch.Size, stride: tuple[int, ...]) -> torch.Tensor:
    """One of what `plain` gives."""
    module = sys.modules["torch.distributed.tensor._dtensor_spec"]
    placements, meta, order, requires_grad = context
    meta = module.TensorMeta(shape=size, stride=stride, dtype=meta.dtype)
    spec = module.DTensorSpec(inner["device_mesh"], placements, tensor_meta=meta, shard_order=order)
    return cls(inner["_local_tensor"], spec, requires_grad=requires_grad)  # type: ignore[no-any-return]


def is_known(tensor: Any) -> bool:
    """Whether all that decides what operators do with it is in its text (`text_of`), and its mesh."""
    module = sys.modules["torch.distributed.tensor.placement_types"]
    known = (module.Shard, module.Replicate, module.Partial)
    return all(type(p) in known for p in tensor._spec.placements)


def text_of(tensor: Any) -> str:
    spec = tensor._spec
    return f"{spec.placements} {spec.tensor_meta} {spec.shard_order} {type(tensor._local_tensor).__name__}"


def replicated(context: Any) -> Any:
    """The context of gradients of what has this one: they are no parts of sums."""
    module = sys.modules["torch.distributed.tensor.placement_types"]
    placements, *rest = context
    return (tuple(module.Replicate() if p.is_partial() else p for p in placements), *rest)


def gradient_spec(spec: Any) -> Any:
    """The spec that a gradient of an output is expected to have."""
    if spec is None or not is_distributed(spec.cls):
        return spec
    return replace(spec, context=replicated(spec.context))


def redistributed(tensor: torch.Tensor, spec: Any) -> torch.Tensor:
    """A gradient in the placements that a backward was compiled for."""
    if spec is None or not is_distributed(type(tensor)):
        return tensor
    placements: Sequence[Any] = spec.context[0]
    mesh = dict(spec.held)["device_mesh"]
    found: Any = tensor
    if found._spec.placements == placements or found._spec.mesh != mesh:
        return tensor
    return found.redistribute(mesh, placements)  # type: ignore[no-any-return]
