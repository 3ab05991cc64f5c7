"""Frozen dataclasses among the arguments of a function that is put into the graph: a node makes each anew of its fields.

In: an object.  Out: the node, or None for an object that is more than its fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import fx

from pycompiler.capture import graph
from pycompiler.capture.graph import GraphBuilder
from pycompiler.capture.nodes import MADE
from pycompiler.capture.values.attributes import lookup
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.dicts import Dict
from pycompiler.capture.values.objects import Object
from pycompiler.capture.written_calls import mutable


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
    node.meta[MADE] = True
    return node


def _maker(cls: type, names: tuple[str, ...]) -> Callable[..., Any]:
    """A function that graphs can name and copy; `__init__` and `__post_init__` have run."""

    def make(*fields: Any) -> Any:
        made: Any = object.__new__(cls)
        made.__dict__.update(zip(names, map(mutable, fields), strict=True))
        return made

    make.__name__ = f"make_{cls.__name__}"
    return make


graph.OBJECTS.append(argument)
