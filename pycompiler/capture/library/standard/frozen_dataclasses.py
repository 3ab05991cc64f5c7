"""Frozen dataclasses as arguments of graph nodes: a node builds each again from its fields.

In: an object.  Out: the node, or None for an object that is more than its fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import fx

from pycompiler.capture.recording import graph
from pycompiler.capture.recording.call_arguments import mutable
from pycompiler.capture.recording.graph import GraphBuilder
from pycompiler.capture.recording.nodes import CREATES_OBJECT
from pycompiler.capture.values.attributes import lookup
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.objects import Object


def argument(builder: GraphBuilder, value: Object) -> fx.Node | None:
    cx, cls = builder.cx, value.cls
    if "__dataclass_params__" not in cls.__dict__ or value.storage is not None or not cls.__dictoffset__:
        return None
    if not lookup(cx, cls, "__dataclass_params__").frozen:
        return None
    lookup(cx, cls, "__dataclass_fields__")
    names = tuple(f.name for f in dataclasses.fields(cls))
    held = value.instance_dict_value(cx)
    assert isinstance(held, Dict)
    held.guard_keys(cx)
    if {k.value.const() for k in held.entries} != {*names}:
        return None
    fields = tuple(builder.to_arg(held.getitem(cx, Const(name))) for name in names)
    make = _maker(cls, names)
    node = builder.graph.call_function(make, fields)
    node.meta["example_value"] = make(*fx.node.map_arg(fields, lambda n: n.meta["example_value"]))
    node.meta[CREATES_OBJECT] = True
    return node


def _maker(cls: type, names: tuple[str, ...]) -> Callable[..., Any]:
    """A function that graphs can name and copy; `__init__` and `__post_init__` have already run."""

    def make(*fields: Any) -> Any:
        made: Any = object.__new__(cls)
        made.__dict__.update(zip(names, map(mutable, fields), strict=True))
        return made

    make.__name__ = f"make_{cls.__name__}"
    return make


graph.OBJECTS.append(argument)
