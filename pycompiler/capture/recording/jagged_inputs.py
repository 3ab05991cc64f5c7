"""Existing jagged tensors (`torch_compat/jagged_tensors.py`) as inputs of the graph, and the nested ints in shapes.

In: a tensor of torch's class.  Out: a `Tensor` whose fake is a jagged tensor around fakes.  The inner tensors are
inputs too, so their sizes may be symbols.  Guards say which of them are one object, since nested ints are equal exactly
then.
"""

from __future__ import annotations

from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.attributes import lookup
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir.source import Source
from pycompiler.symbolic.symbols import Specialise, expr_of, is_symbolic
from pycompiler.torch_compat import jagged_tensors
from pycompiler.torch_compat.fake_mode import with_history
from pycompiler.torch_compat.tensor_subclasses import CONTRACT


def wrap_jagged(cx: Capture, real: Any, source: Source) -> Value:
    cls = type(real)
    jagged_tensors.prepare()
    if any(hasattr(torch.Tensor, name) and name not in jagged_tensors.OWN for name in vars(real)):
        raise Break("tensor-subclass", f"{cls.__qualname__} with an instance attribute that hides one of torch.Tensor")
    for name in CONTRACT:
        lookup(cx, cls, name)
    cx.guard("type_is", source, cls)
    cx.guard("equals", source.attr("requires_grad"), real.requires_grad)
    inside = _inside(cx, real, source)
    fake: Any = _fake(cx, real, inside)
    value = cx.graph.add_input(real, source, None, cls, fake)
    cx.graph.stands_for(jagged_tensors.values_of(value.fake), inside[jagged_tensors.VALUES])
    return value


def _inside(cx: Capture, real: Any, source: Source) -> dict[str, Tensor]:
    space = source.then("instance_dict")
    cx.guard("equals", space.dict_item("_ragged_idx"), real._ragged_idx)
    if real._lengths is None:
        cx.guard("equals", space.dict_item("_lengths"), None)
    cache = space.dict_item("_metadata_cache")
    cx.guard("type_is", cache, dict)
    for key in jagged_tensors.CACHED.values():
        if key not in real._metadata_cache:
            cx.guard("dict_absent", cache, key)
        elif real._metadata_cache[key] is None:
            cx.guard("equals", cache.dict_item(key), None)
    places = {n: cache.dict_item(jagged_tensors.CACHED[n]) if n in jagged_tensors.CACHED else space.dict_item(n)
              for n, _ in jagged_tensors.parts(real)}  # fmt: skip
    cx.sizes.within(source, places.values())
    found: dict[str, Tensor] = {}
    for name, tensor in jagged_tensors.parts(real):
        value = cx.wrap(tensor, places[name])
        if not isinstance(value, Tensor) or value.cls is not torch.Tensor or value.real is None:
            raise Break("tensor-subclass", f"{type(real).__qualname__} around an inner tensor of an unsupported kind")
        found[name] = value
    ragged = found.get("_lengths") or found["_offsets"]
    cx.graph.apart(ragged)
    return found


def _fake(cx: Capture, real: Any, inside: dict[str, Tensor]) -> torch.Tensor:
    """The same structure around the values' fakes, so that nested ints are equal if the offsets are one object."""
    step = inside[jagged_tensors.VALUES].strides[real._ragged_idx - 1]
    if is_symbolic(step):  # torch multiplies nested ints with constants only
        raise Specialise(sorted(expr_of(step).symbols), "the number is the stride of a ragged dimension")
    with torch.no_grad(), torch.inference_mode(False):
        given = {n: v.fake for n, v in inside.items()}
        given[jagged_tensors.VALUES] = inside[jagged_tensors.VALUES].detached()
        fake = jagged_tensors.make(type(real), given, real._ragged_idx)
    return with_history(cx.graph.fake_mode, fake, real)
