"""Views in a functional graph: the owner of a value's storage, and the steps that rebuild the view.

In: a node of the recorded graph. Out: its root (the node that owns the storage) and the view operators between them.

Example: for ``y = x.t()[0]`` the root of ``y`` is ``x`` and the steps are ``permute`` and ``select``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

aten = torch.ops.aten


@cache
def is_view_op(target: object) -> bool:
    """Whether the operator's result shares the storage of its first argument (also for getitem of a list of such results)."""
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return False
    arguments = target._schema.arguments
    returns = target._schema.returns
    return bool(arguments and returns and arguments[0].alias_info is not None and returns[0].alias_info is not None)


@dataclass(frozen=True)
class ViewStep:
    """One view operator: ``target(base, *args, **kwargs)``, then element `item` if it returns several.

    An `offset` among `kwargs` is relative to the base's own offset.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    item: int | None = None

    def __call__(self, base: torch.Tensor) -> torch.Tensor:
        args, kwargs = self.args, self.kwargs
        if "offset" in kwargs:
            args = (*args, base.storage_offset() + kwargs["offset"])
            kwargs = {k: v for k, v in kwargs.items() if k != "offset"}
        out = self.target(base, *args, **kwargs)
        return out if self.item is None else out[self.item]  # type: ignore[no-any-return]


_METHODS = {
    aten.as_strided.default: torch._C.TensorBase.as_strided,
    aten.detach.default: torch._C.TensorBase.detach,
    aten.diagonal.default: torch._C.TensorBase.diagonal,
    aten.expand.default: torch._C.TensorBase.expand,
    aten.permute.default: torch._C.TensorBase.permute,
    aten.select.int: torch._C.TensorBase.select,
    aten.split.Tensor: torch._C.TensorBase.split,
    aten.split_with_sizes.default: torch._C.TensorBase.split_with_sizes,
    aten.squeeze.default: torch._C.TensorBase.squeeze,
    aten.squeeze.dim: torch._C.TensorBase.squeeze,
    aten.squeeze.dims: torch._C.TensorBase.squeeze,
    aten.t.default: torch._C.TensorBase.t,
    aten.transpose.int: torch._C.TensorBase.transpose,
    aten.unbind.int: torch._C.TensorBase.unbind,
    aten.unfold.default: torch._C.TensorBase.unfold,
    aten.unsqueeze.default: torch._C.TensorBase.unsqueeze,
    aten.view.default: torch._C.TensorBase.view,
    aten.view.dtype: torch._C.TensorBase.view,
}


def fastest_call(target: Callable[..., Any]) -> Callable[..., Any]:
    """The fastest function for a step: the tensor's method, which parses arguments without the schema (1 to 2 us less).

    `target` itself if there is no such method.
    """
    return _METHODS.get(target, target)  # type: ignore[call-overload,no-any-return]


def under_no_grad(base: torch.Tensor, step: ViewStep) -> torch.Tensor:
    """A view created with gradients disabled."""
    with torch.no_grad():
        return step(base)


def under_grad(base: torch.Tensor, step: ViewStep) -> torch.Tensor:
    """A view created with gradients enabled, in a graph that is called with gradients disabled."""
    with torch.enable_grad():
        return step(base)


def base_of(view: torch.Tensor) -> torch.Tensor:
    """The base of `view` for autograd."""
    base = view._base
    assert base is not None
    return base


_set_creation = torch._C._autograd._set_creation_meta
_OF_SEVERAL = torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE
_OF_A_FUNCTION = torch._C._autograd.CreationMeta.IN_CUSTOM_FUNCTION
_WITHOUT_GRAD = torch._C._autograd.CreationMeta.NO_GRAD_MODE


def as_one_of_several(view: torch.Tensor) -> torch.Tensor:
    """A view that autograd treats as one of several results (`split`, `unbind`), which must not be written."""
    if view._is_view():
        _set_creation(view, _OF_SEVERAL)
    return view


def as_without_grad(view: torch.Tensor) -> torch.Tensor:
    """A view that autograd treats as created with gradients disabled: it must not be written with gradients enabled."""
    if view._is_view():
        _set_creation(view, _WITHOUT_GRAD)
    return view


def data_of(view: torch.Tensor) -> torch.Tensor:
    """`view.data`, which counts its own versions: a write to it is invisible to other aliases."""
    return view.data


def as_a_functions(view: torch.Tensor) -> torch.Tensor:
    """A view that autograd treats as a result of a custom Function, which must not be written."""
    if view._is_view():
        _set_creation(view, _OF_A_FUNCTION)
    return view


def view_parent(node: fx.Node) -> tuple[fx.Node, ViewStep] | None:
    """The node that `node` views directly and the step between them, or None if it owns its storage."""
    item = None
    if node.target is operator.getitem:
        item, node = node.args[1], node.args[0]  # type: ignore[assignment]
    if node.op != "call_function" or not is_view_op(node.target):
        return None
    base, *rest = node.args
    assert isinstance(base, fx.Node)
    assert item is None or isinstance(item, int)
    return base, ViewStep(node.target, tuple(rest), dict(node.kwargs), item)  # type: ignore[arg-type]


def view_root(node: fx.Node) -> fx.Node:
    """The node that owns the storage of `node`'s value."""
    while (parent := view_parent(node)) is not None:
        node = parent[0]
    return node


def _program_view_parent(node: fx.Node) -> tuple[fx.Node, ViewStep] | None:
    """`view_parent` with the views as the program wrote them: a gradient passes each of them, and some drop a part of it."""
    if "through" in node.meta:
        parent, args = node.meta["through"]
        return parent, ViewStep(aten.as_strided.default, args, {})
    return view_parent(node)


def view_steps(node: fx.Node, base: fx.Node) -> list[ViewStep] | None:
    """The steps from `base` to `node`; None if `node` is not a view of `base` with numbers as arguments."""
    steps: list[ViewStep] = []
    while node is not base:
        parent = _program_view_parent(node)
        if parent is None:
            return None
        node, step = parent
        args, kwargs = fx.map_arg((step.args, step.kwargs), lambda n: n.meta["val"])
        if any(isinstance(a, torch.Tensor) for a in (*args, *kwargs.values())):
            return None
        steps.append(replace(step, args=args, kwargs=kwargs))
    return steps[::-1]


def strided_step(value: torch.Tensor, base: torch.Tensor) -> ViewStep | None:
    """`value` as one `as_strided` of `base` (both from one trace), or None if the dtypes differ.

    The offset is relative to the base, whose own offset may differ at run time: `runtime` adds it.
    """
    if value.dtype != base.dtype:
        return None
    offset = value.storage_offset() - base.storage_offset()
    return ViewStep(aten.as_strided.default, (list(value.shape), list(value.stride())), {"offset": offset})
