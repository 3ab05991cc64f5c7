"""Existing jagged tensors (`ir/jagged.py`) as inputs of the graph, and the nested ints in shapes.

In: a tensor of torch's class.  Out: a `Tensor` whose fake is a jagged tensor around fakes.  Its tensors inside are inputs, too,
so sizes of theirs may be symbols; which of them are one object is guarded, for nested ints are equal exactly then.
"""

from __future__ import annotations

from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.attributes import lookup
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir import jagged
from pycompiler.ir.fake import with_history
from pycompiler.ir.source import Source
from pycompiler.ir.subclasses import CONTRACT
from pycompiler.ir.symbols import Specialise, expr_of, is_symbolic


def wrap_jagged(cx: Capture, real: Any, source: Source) -> Value:
    cls = type(real)
    jagged.prepare()
    if any(hasattr(torch.Tensor, name) and name not in jagged.OWN for name in vars(real)):
        raise Break("tensor-subclass", f"{cls.__qualname__} with an attribute by the name of a tensor's")
    for name in CONTRACT:
        lookup(cx, cls, name)
    cx.guard("type_is", source, cls)
    cx.guard("equals", source.attr("requires_grad"), real.requires_grad)
    inside = _inside(cx, real, source)
    fake: Any = _fake(cx, real, inside)
    value = cx.graph.add_input(real, source, None, cls, fake)
    cx.graph.stands_for(jagged.values_of(value.fake), inside[jagged.VALUES])
    return value


def _inside(cx: Capture, real: Any, source: Source) -> dict[str, Tensor]:
    space = source.then("instance_dict")
    cx.guard("equals", space.dict_item("_ragged_idx"), real._ragged_idx)
    if real._lengths is None:
        cx.guard("equals", space.dict_item("_lengths"), None)
    cache = space.dict_item("_metadata_cache")
    cx.guard("type_is", cache, dict)
    for key in jagged.CACHED.values():
        if key not in real._metadata_cache:
            cx.guard("dict_absent", cache, key)
        elif real._metadata_cache[key] is None:
            cx.guard("equals", cache.dict_item(key), None)
    places = {n: cache.dict_item(jagged.CACHED[n]) if n in jagged.CACHED else space.dict_item(n)
              for n, _ in jagged.parts(real)}  # fmt: skip
    cx.sizes.within(source, places.values())
    found: dict[str, Tensor] = {}
    for name, tensor in jagged.parts(real):
        value = cx.wrap(tensor, places[name])
        if not isinstance(value, Tensor) or value.cls is not torch.Tensor or value.real is None:
            raise Break("tensor-subclass", f"{type(real).__qualname__} around a tensor of another kind")
        found[name] = value
    ragged = found.get("_lengths") or found["_offsets"]
    cx.graph.apart(ragged)
    return found


def _fake(cx: Capture, real: Any, inside: dict[str, Tensor]) -> torch.Tensor:
    """The same around fakes; the structure's are those of its values, so that nested ints are equal where offsets are one."""
    step = inside[jagged.VALUES].fake.stride()[real._ragged_idx - 1]
    if is_symbolic(step):  # torch multiplies nested ints with numbers only
        raise Specialise(sorted(expr_of(step).symbols), "it is the stride of a ragged dimension")
    with torch.no_grad(), torch.inference_mode(False):
        given = {n: v.fake for n, v in inside.items()}
        given[jagged.VALUES] = inside[jagged.VALUES].fake.detach()
        fake = jagged.make(type(real), given, real._ragged_idx)
    return with_history(cx.graph.fake_mode, fake, real)
