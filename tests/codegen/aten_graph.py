"""Input of the tests of lowering, scheduling and codegen: functional graphs of the operators that reach lowering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import make_fx

from pycompiler.autograd.decompositions import default_decompositions


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table of every compile, for make_fx, which calls a rule again for an operator that the rule returns
    unchanged."""

    def once(rule: Callable[..., Any]) -> Callable[..., Any]:
        running: list[bool] = []

        def call(*args: Any, **kwargs: Any) -> Any:
            if running:
                return NotImplemented
            running.append(True)
            try:
                return rule(*args, **kwargs)
            finally:
                running.pop()

        return call

    return {op: once(rule) for op, rule in default_decompositions().items()}


def aten_graph(f: Callable[..., Any], args: Sequence[Any], tracing_mode: str = "fake") -> fx.GraphModule:
    with torch.no_grad(), enable_python_dispatcher():
        gm = make_fx(lambda *a: f(*a), tracing_mode=tracing_mode)(*args)
        if any(getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in gm.graph.nodes):
            gm = make_fx(torch.func.functionalize(gm), tracing_mode=tracing_mode)(*args)
        with torch._C._AutoDispatchBelowADInplaceOrView():  # a rule for a view may return its argument
            return make_fx(gm, decomposition_table=decompositions(), tracing_mode=tracing_mode)(*args)
