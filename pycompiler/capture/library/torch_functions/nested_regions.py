"""Regions that the program marks (`ir/nested.py`): their calls are traced in line, and their nodes numbered."""

from __future__ import annotations

from pycompiler.capture.calls import LATE, Args, Kwargs
from pycompiler.capture.values.base import Capture, Value
from pycompiler.ir import nested


def call_region(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    with cx.graph.region():
        return cx.call(args[0], args[1:], kwargs)


LATE[nested.__name__, "call_region"] = call_region
LATE["torch._higher_order_ops.invoke_subgraph", "invoke_subgraph_placeholder"] = call_region
