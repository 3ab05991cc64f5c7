"""Distributed tensors (`torch.distributed.tensor.DTensor`), and results of collectives before a wait.

A DTensor is a tensor subclass that holds this process's part, with a mesh and placements.
In: such a tensor, or its class.  Out: its parts in the same form as for other tensor subclasses; data for guards.
This module never imports torch.distributed.tensor before the program does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch


def dtensor() -> Any:
    """The DTensor class, if it is loaded."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def is_distributed(cls: type) -> bool:
    return cls.__name__ == "DTensor" and cls is dtensor()


def is_pending_collective(cls: type) -> bool:
    """Whether `cls` is the result class of a functional collective outside of graphs: its first use waits.

    A graph waits at each use, since a repeated wait costs nothing.  The object's flag `completed` stays unchanged.
    """
    module = sys.modules.get("torch.distributed._functional_collectives")
    return cls.__name__ == "AsyncCollectiveTensor" and cls is getattr(module, "AsyncCollectiveTensor", None)


def flatten_parts(tensor: Any) -> tuple[dict[str, Any], tuple[tuple[str, Any], ...], Any]:
    """(inner tensors, the mesh, context).  Versions of torch differ in their own form, so it is not used.

    The context does not contain `requires_grad`: as for all tensor subclasses, autograd handles it above the class.
    """
    spec = tensor._spec
    context = spec.placements, spec.tensor_meta, spec.shard_order, False
    return {"_local_tensor": tensor._local_tensor}, (("device_mesh", spec.mesh),), context


def build(cls: Any, inner: dict[str, Any], context: Any, size: torch.Size, stride: tuple[int, ...]) -> torch.Tensor:
    """A DTensor from the result of `flatten_parts`."""
    module = sys.modules["torch.distributed.tensor._dtensor_spec"]
    placements, meta, order, requires_grad = context
    meta = module.TensorMeta(shape=size, stride=stride, dtype=meta.dtype)
    spec = module.DTensorSpec(inner["device_mesh"], placements, tensor_meta=meta, shard_order=order)
    return cls(inner["_local_tensor"], spec, requires_grad=requires_grad)  # type: ignore[no-any-return]


def is_known(tensor: Any) -> bool:
    """Whether the mesh and the str of `text_of` determine the behaviour of all operators on the tensor."""
    module = sys.modules["torch.distributed.tensor.placement_types"]
    known = (module.Shard, module.Replicate, module.Partial)
    return all(type(p) in known for p in tensor._spec.placements)


def text_of(tensor: Any) -> str:
    spec = tensor._spec
    return f"{spec.placements} {spec.tensor_meta} {spec.shard_order} {type(tensor._local_tensor).__name__}"


def replicated(context: Any) -> Any:
    """The context of gradients of a tensor with this context: gradients are never partial sums."""
    module = sys.modules["torch.distributed.tensor.placement_types"]
    placements, *rest = context
    return (tuple(module.Replicate() if p.is_partial() else p for p in placements), *rest)


def gradient_spec(spec: Any) -> Any:
    """The expected spec of a gradient of an output."""
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
