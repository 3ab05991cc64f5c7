"""Regions that the program marks (`ir/nested_regions.py`): their calls are inlined, and their nodes numbered."""

from __future__ import annotations

from pycompiler.capture.interpreter.calls import LATE_BUILTINS, Args, Kwargs
from pycompiler.capture.values.base import Capture, Value
from pycompiler.ir import nested_regions


def call_region(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    with cx.graph.region():
        return cx.call(args[0], args[1:], kwargs)


LATE_BUILTINS[nested_regions.__name__, "call_region"] = call_region
LATE_BUILTINS["torch._higher_order_ops.invoke_subgraph", "invoke_subgraph_placeholder"] = call_region
