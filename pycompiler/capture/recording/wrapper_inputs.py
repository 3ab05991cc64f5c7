"""Existing tensor subclasses (`torch_compat/tensor_subclasses.py`) as inputs of the graph.

In: a tensor of a class with `__torch_dispatch__`.  Out: a `Tensor` whose fake is the same subclass around fakes.
Operators call the class when shapes are computed, and again when the graph is compiled.  Guards cover all state that
the operators depend on.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.dispatch_hooks import MAKERS, HookGuards
from pycompiler.capture.recipe.runtime_helpers import make_object, make_tuple_subclass
from pycompiler.capture.values.attributes import guard_mro, lookup
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.sequences import Sequence, Tuple
from pycompiler.capture.values.distributed_objects import guard_groups
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir.guards import TensorSpec
from pycompiler.ir.source import Source
from pycompiler.torch_compat.distributed_tensors import is_distributed, is_known, text_of
from pycompiler.torch_compat.fake_mode import fake_as, with_history
from pycompiler.torch_compat.tensor_subclasses import (
    CONTRACT,
    Spec,
    SubclassConstructor,
    flatten,
    has_own_metadata,
    held_by,
    rebuild,
    same,
)


def wrap_wrapper(cx: Capture, real: torch.Tensor, source: Source) -> Value:
    cls = type(real)
    if any(hasattr(torch.Tensor, name) for name in held_by(real)):
        raise Break("tensor-subclass", f"{cls.__qualname__} with an instance attribute that hides one of torch.Tensor")
    if not has_own_metadata(real):
        raise Break("tensor-subclass", f"{cls.__qualname__}, whose class computes its sizes, strides or device")
    leaves: list[torch.Tensor] = []
    try:
        spec = flatten(real, leaves)
    except AttributeError as e:  # its `__init__` has not run yet
        raise Break("tensor-subclass", f"{cls.__qualname__}, whose __tensor_flatten__ raises: {e}") from None
    assert spec is not None
    distributed = is_distributed(cls)
    for leaf in leaves:
        if type(leaf) is not torch.Tensor or leaf.layout is not torch.strided or leaf.requires_grad and not distributed:
            raise Break("tensor-subclass", f"{cls.__qualname__} around an inner tensor of an unsupported kind")
    if distributed:
        _guard_distributed(cx, real, source)
    else:
        _guard_class(cx, cls, spec.context)
    nested = any(part is not None for _, part in spec.parts)
    if distributed or nested or any(vars(real).get(n) is not t for (n, _), t in zip(spec.parts, leaves, strict=True)):
        cx.guard("tensor", source, TensorSpec.of(real))
        value = cx.graph.add_input(real, source, None, cls)
        if not distributed:
            _guard_inside(cx, value, real, fixed=True)
    else:
        value = _of_any_size(cx, real, source, spec)
        _guard_inside(cx, value, real, fixed=False)
        spec = replace(spec, size=value.shape, stride=value.strides)
    made: list[torch.Tensor] = []
    if not same(flatten(value.fake, made), spec):
        raise Break("tensor-subclass", f"{cls.__qualname__}, which __tensor_unflatten__ rebuilds differently")
    return value


def _of_any_size(cx: Capture, real: torch.Tensor, source: Source, spec: Spec) -> Tensor:
    """A tensor subclass whose sizes, and its inner tensors' sizes, may be symbols.

    The class computes outer sizes from the inner tensors.  The real outer sizes must equal them, in each call or by guards.
    """
    layout = cx.sizes.layout(real, source, wrapper=True)
    sizes, strides = layout or (real.size(), real.stride())
    cx.guard("tensor", source, TensorSpec.of(real) if layout is None else TensorSpec.of(real).opened(*layout))
    space = source.then("instance_dict")
    places = {name: space.dict_item(name) for name, _ in spec.parts}
    cx.sizes.within(source, places.values())
    inside = [cx.realize(cx.wrap(vars(real)[name], place)) for name, place in places.items()]
    fakes = [fake_as(cx.graph.fake_mode, v.fake) for v in inside if isinstance(v, Tensor)]
    with torch.inference_mode(False):
        fake = replace(spec, size=torch.Size(sizes), stride=tuple(strides)).rebuild(iter(fakes))
    made = (*fake.size(), *fake.stride())
    if len(made) != 2 * len(sizes) or not all(bool(a == b) for a, b in zip(made, (*sizes, *strides), strict=True)):
        raise Break("tensor-subclass", f"{type(real).__qualname__}, which __tensor_unflatten__ rebuilds differently")
    return cx.graph.add_input(real, source, None, type(real), with_history(cx.graph.fake_mode, fake, real))


def construct(cx: Capture, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A tensor subclass that the program creates from constants and tensors without gradient: a call in the graph."""
    given = [cx.realize(v) for v in (*args, *kwargs.values())]
    tensors = [v for v in given if isinstance(v, Tensor)]
    plain = all(type(v.fake) is FakeTensor and not v.is_special and not v.requires_grad for v in tensors)
    if cx.graph.levels or not tensors or not plain or cx.functions.concerns(args, kwargs):
        raise Break("tensor-subclass", f"{cls.__qualname__}(...)")
    known = [None if isinstance(v, Tensor) else _argument(cx, v) for v in given]
    _guard_class(cx, cls, known)
    for name in MAKERS:
        lookup(cx, cls, name)
    places = [i for i, v in enumerate(given) if isinstance(v, Tensor)]
    made = cx.graph.call_inner(SubclassConstructor(cls, known, places, tuple(kwargs)), [], [*tensors])
    leaves: list[torch.Tensor] = []
    if not isinstance(made, Tensor) or type(made.fake) is not cls or made.requires_grad:
        raise Break(
            "tensor-subclass", f"{cls.__qualname__}(...), which returns another class, or a tensor that requires grad"
        )
    if not has_own_metadata(made.fake) or any(hasattr(torch.Tensor, name) for name in held_by(made.fake)):
        raise Break(
            "tensor-subclass",
            f"{cls.__qualname__}(...), whose class computes its metadata, or whose attributes hide those of torch.Tensor",
        )
    spec = flatten(made.fake, leaves)
    again: list[torch.Tensor] = []
    if not same(flatten(rebuild(spec, iter(leaves)), again), spec) or any(t.requires_grad for t in leaves):
        raise Break("tensor-subclass", f"{cls.__qualname__}, which __tensor_unflatten__ rebuilds differently")
    return made


def _argument(cx: Capture, value: Value) -> Any:
    """A constant, or an immutable object of constants: each call of the graph passes this very object."""
    value = cx.realize(value, "as an argument of a tensor subclass")
    made: Any
    if isinstance(value, Tuple):
        items = [_argument(cx, v) for v in value.items]
        made = value.cls(items) if value.cls in (tuple, torch.Size) else make_tuple_subclass(value.cls, *items)
        cx.graph.held[id(made)] = made, value
        return made
    if (member := _member(cx, value)) is not None:
        return member
    if not isinstance(value, Object) or value.exists or value.storage is not None or not _is_frozen(cx, value.cls):
        return value.const()
    made = make_object(value.cls, None)
    for name, held in value.overlay.items():
        object.__setattr__(made, name, _argument(cx, held))
    cx.graph.held[id(made)] = made, value
    return made


def _member(cx: Capture, value: Value) -> enum.Enum | None:
    """An Enum member, guarded by identity; None for other values."""
    if not isinstance(value, Object) or not value.exists or not isinstance(value.real, enum.Enum):
        return None
    if value.source is not None:
        cx.guard("id_is", value.source, value.real)
    return value.real


def _is_frozen(cx: Capture, cls: type) -> bool:
    """Whether instances are immutable and equal by their fields: a frozen dataclass."""
    params = getattr(cls, "__dataclass_params__", None)
    return params is not None and params.frozen and params.eq and lookup(cx, cls, "__eq__") is vars(cls).get("__eq__")


def _guard_class(cx: Capture, cls: type, told: Any) -> None:
    """Guard all state that operators depend on: the class, the reads of its hook, the classes of the instances' context."""
    for name in CONTRACT:
        lookup(cx, cls, name)
    guard_mro(cx, cls)
    found = lookup(cx, cls, "__torch_dispatch__")
    hook = HookGuards(cx, cls)
    hook.told(told)
    hook.guard(getattr(found, "__func__", found))


def _guard_distributed(cx: Capture, real: Any, source: Source) -> None:
    """Guard a DTensor, whose class is torch's own code: its placements, its local tensor, and its mesh."""
    if not is_known(real):
        raise Break("tensor-subclass", f"DTensor placed as {real.placements}")
    mesh = cx.wrap(real._spec.mesh, source.attr("_spec").attr("mesh"))
    guard_groups(cx, mesh.const())
    cx.guard("equals", source.then("begun", text_of), text_of(real))
    cx.guard("tensor", source.attr("_local_tensor"), TensorSpec.of(real._local_tensor))


def _guard_inside(cx: Capture, value: Tensor, real: torch.Tensor, *, fixed: bool) -> None:
    """Guard the reads of `__tensor_flatten__`, by inlining it, and the inner tensors; `fixed`: with their sizes."""
    before = bool(cx.effects)
    flat = cx.call(value.getattr(cx, "__tensor_flatten__"), [], {})
    if bool(cx.effects) != before:
        raise Break("tensor-subclass", f"{value.cls.__qualname__}, whose __tensor_flatten__ has side effects")
    _settle(cx, flat)
    for name in real.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
        inner = cx.realize(value.getattr(cx, name))
        if not isinstance(inner, Tensor) or inner.source is None or inner.real is None:
            raise Break("tensor-subclass", f"{value.cls.__qualname__}.{name}, an inner tensor computed at each read")
        if fixed:
            _guard_sizes(cx, inner)
        cx.graph.stands_for(getattr(value.fake, name), inner)  # operators may pass it on to their results


def _guard_sizes(cx: Capture, value: Tensor) -> None:
    assert value.source is not None and value.real is not None
    cx.guard("tensor", value.source, TensorSpec.of(value.real))
    if value.wrapper:
        for name in value.real.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            inner = cx.realize(value.getattr(cx, name))
            if not isinstance(inner, Tensor) or inner.source is None or inner.real is None:
                raise Break(
                    "tensor-subclass", f"{value.cls.__qualname__}.{name}, an inner tensor computed at each read"
                )
            _guard_sizes(cx, inner)


def _settle(cx: Capture, value: Value) -> None:
    """Guard each constant in a context.  Other objects break the graph."""
    value = cx.realize(value, "in the context of __tensor_flatten__")
    if isinstance(value, Sequence):
        for item in [*value.items]:
            _settle(cx, item)
    elif isinstance(value, Dict):
        for key, item in value.pairs(cx):
            _settle(cx, key)
            _settle(cx, item)
    elif value.is_const():
        value.const()
    elif isinstance(value, Object) and value.storage is None and _is_frozen(cx, value.cls):
        for part in dataclasses.fields(value.cls):
            _settle(cx, value.getattr(cx, part.name))
        if value.exists:  # operators may pass it on
            cx.graph.held[id(value.real)] = value.real, value
    elif _member(cx, value) is None:
        raise Break("tensor-subclass", f"{value.describe()} in the context of __tensor_flatten__")
