"""`tensor.data = other` and `tensor.set_(other)`: the tensor then has the other's memory, and keeps its own history.

In the graph the tensor becomes another node, an alias of that data.  Generated code changes an existing tensor after
the graph.  A tensor that requires grad would need a leaf with new data, which a graph cannot have: with grad mode on,
the graph ends before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.effects.data_swaps import AliasWrites
from pycompiler.capture.interpreter.calls import Args, Kwargs
from pycompiler.capture.library.gradients.parameters import Parameter
from pycompiler.capture.recipe import runtime_helpers
from pycompiler.capture.values import tensor as tensors
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.functions import Builtin
from pycompiler.capture.values.tensor import Tensor
from pycompiler.operators.kernel_type_checks import memory_of, shares_version, tensors_of


def store(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    tensor, given = map(cx.realize, args)
    assert isinstance(tensor, Tensor)
    if isinstance(given, Tensor) and _is_its_own(cx, tensor, given):
        return given
    if not isinstance(given, Tensor) or not _may_have(cx, tensor, given):
        raise Break("tensor-attribute-store", f"Tensor.data = {given.describe()}")
    _swap_data(cx, tensor, given, runtime_helpers.set_data)
    return given


def set_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`set_` counts as a write of the tensor; the tensor may have no history."""
    tensor, *others = map(cx.realize, args)
    given = others[0] if len(others) == 1 and not kwargs else None
    if not isinstance(tensor, Tensor) or not isinstance(given, Tensor) or not _may_have(cx, tensor, given):
        raise Break("unsupported-operation", "Tensor.set_()")
    if tensor.requires_grad or given.requires_grad:
        raise Break("unsupported-operation", "Tensor.set_() of a tensor that requires grad")
    if not tensor.exists and _is_saved(tensor):
        raise Break("unsupported-operation", "Tensor.set_() of a tensor that a backward may need")
    _swap_data(cx, tensor, given, runtime_helpers.set_)
    return tensor


def _is_saved(tensor: Tensor) -> bool:
    """Whether a history started at an earlier state of a new tensor: a backward would find the tensor written."""
    results = (t for n in tensor.node.users for t in tensors_of(n.meta.get("example_value")))
    return any(t.requires_grad for t in results)


def _swap_data(cx: Capture, tensor: Tensor, given: Tensor, take: Callable[..., Any]) -> None:
    """Give the tensor another's memory.  For an existing tensor `take` does so after the graph, and counts the alias's
    writes."""
    data = cx.graph.call_method("detach", [given], {})
    alias = cx.graph.call_function(getattr, [given, Const("data")], {})  # the alias counts its own versions
    assert isinstance(alias, Tensor)
    cx.facts.change_memory(tensor.fake)
    if tensor.exists:
        cx.graph.give_way(tensor)
    with cx.fake_mode, torch.no_grad():
        take(tensor.fake, given.fake, 0)
    writes = cx.facts.swaps.setdefault(tensor, AliasWrites(tensor, cx.step()))
    count = Const(0 if tensor.exists else tensor.version)
    writes.take(alias.node, count)
    if tensor.exists:
        cx.effects.defer(Builtin(take), [tensor, data, count])
    elif count.value:
        cx.effects.defer(Builtin(runtime_helpers.count), [tensor, count])
    alias.node.meta["example_value"] = tensor.fake
    tensor.node, tensor.parted = alias.node, tensor.requires_grad


def check(cx: Capture, outputs: list[Tensor]) -> None:
    """Break at the end of the graph if the replaced data would be visible in a wrong state.

    No result may be a view of such an existing tensor, or share its version counter, if it was computed from the
    alias.  No backward may need a tensor that counts as written after the graph.
    """
    for tensor, writes in cx.facts.swaps.items():
        for out in outputs if writes.exists else ():
            if out.fake is not tensor.fake and writes.shares(out.fake) and writes.is_of_alias(out.node):
                raise Break(
                    "tensor-attribute-store", "Tensor.data of a tensor of which a view leaves the graph", writes.made_at
                )
        if not writes.exists and writes.count is not None and writes.count.value and _is_saved(tensor):
            raise Break("unsupported-operation", "Tensor.set_() of a tensor that a backward may need", writes.made_at)


def _is_its_own(cx: Capture, tensor: Tensor, given: Tensor) -> bool:
    """Whether the tensor already has these data (``x.data -= y`` stores them)."""
    a, b = tensor.fake, given.fake
    if (
        cx.functions.concerns([tensor, given], {})
        or given.is_special
        or tensor.is_special
        or tensor.parted
        or b.requires_grad
    ):
        return False
    if a.layout is not torch.strided or b.layout is not torch.strided or memory_of(a) != memory_of(b):
        return False
    return _lies(a) == _lies(b)


def _lies(fake: torch.Tensor) -> tuple[Any, ...]:
    return fake.shape, fake.stride(), fake.storage_offset(), fake.dtype, fake.is_conj(), fake.is_neg()


def _may_have(cx: Capture, tensor: Tensor, given: Tensor) -> bool:
    """Whether the module's rules hold for both tensors, and for the place of the call."""
    graph = cx.graph
    inner = hasattr(graph, "outer") or graph.levels or graph.packs or graph.later
    inner |= tensor in graph.turned or given in graph.turned  # turned tensors have two nodes
    if inner or cx.functions.concerns([tensor, given], {}) or torch.is_inference_mode_enabled():
        return False
    for value in (tensor, given):
        fake = value.fake
        odd = fake.layout is not torch.strided or fake.is_conj() or fake.is_neg() or fake.is_inference()
        odd |= (
            cx.inference.is_made(fake)
            or cx.facts.is_copy(fake)
            or (value.real is not None and value.real.is_inference())
        )
        if odd or value.is_special or isinstance(value, Parameter):
            return False
    if tensor.shown:  # the array keeps the old data
        return False
    a, b = tensor.fake, given.fake
    seen = (a, tensor.real) if tensor.real is not None else (a,)
    if (a.dtype, a.device) != (b.dtype, b.device) or any(t._is_view() for t in seen):
        return False
    if not tensor.exists and any(_counts_with(a, n.meta.get("example_value")) for n in graph.graph.nodes):
        return False  # an older view shares its version counter
    return not a.requires_grad or (tensor.exists and a.is_leaf)


def _counts_with(fake: torch.Tensor, value: Any) -> bool:
    return any(t is not fake and shares_version(t, fake) for t in tensors_of(value))


tensors.STORES["data"] = store
tensors.METHODS["set_"] = set_
