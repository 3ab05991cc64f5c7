"""Torch-level graphs in the form of capture: every parameter, buffer and argument is a placeholder with a FakeTensor.

In: a module or function and its arguments. Out: the graph module and the real inputs in placeholder order.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pycompiler.autograd import compile_joint
from pycompiler.autograd.decompositions import default_decompositions
from pycompiler.autograd.joint import Joint
from pycompiler.autograd.trace import trace_joint
from tests.harness.compare import assert_same


class _Inliner(fx.Tracer):
    """Traces through every module, so that only functions, methods and attributes remain."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, qualname: str) -> bool:
        return False


def lifted(target: Any, args: Sequence[Any]) -> tuple[fx.GraphModule, list[Any]]:
    """(graph with parameters, buffers and `args` as placeholders, their values)."""
    tracer = _Inliner()
    with contextlib.ExitStack() as stack:
        for norm in (nn.BatchNorm1d, nn.BatchNorm2d):  # fx cannot trace the branch on the rank
            stack.enter_context(mock.patch.object(norm, "_check_input_dim", return_value=None))
        traced = tracer.trace(target)
    root = tracer.root
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    attributes = list(dict.fromkeys(n.target for n in traced.nodes if n.op == "get_attr"))
    holders = {name: graph.placeholder("p_" + str(name).replace(".", "_")) for name in attributes}
    values: list[Any] = []
    for name in attributes:
        value: Any = root
        for part in str(name).split("."):
            value = getattr(value, part)
        values.append(value)
    for node in traced.nodes:
        env[node] = holders[node.target] if node.op == "get_attr" else graph.node_copy(node, env.__getitem__)
    values += args
    mode = FakeTensorMode()
    for node, value in zip([n for n in graph.nodes if n.op == "placeholder"], values, strict=True):
        is_tensor = isinstance(value, torch.Tensor)
        node.meta["example_value"] = mode.from_tensor(value, static_shapes=True) if is_tensor else value
    return fx.GraphModule(nn.Module(), graph), values


def fakes(gm: fx.GraphModule) -> list[Any]:
    """The example inputs that capture would pass."""
    return [n.meta["example_value"] for n in gm.graph.nodes if n.op == "placeholder"]


def joint_of(target: Any, args: list[Any]) -> Joint:
    gm, _ = lifted(target, args)
    examples = fakes(gm)
    mode = next(e.fake_mode for e in examples if isinstance(e, torch.Tensor))
    return trace_joint(gm, examples, mode, default_decompositions())


def run_graph(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A compiler that runs the ATen graph and checks the strides of its results against the trace."""
    outputs = gm.graph.output_node().args[0]

    def run(*args: Any) -> Any:
        results = gm.forward(*args)
        for node, value in zip(outputs, results, strict=True):  # type: ignore[arg-type]
            if isinstance(node, fx.Node) and isinstance(value, torch.Tensor):
                expected = node.meta["val"]
                assert (value.shape, value.dtype) == (expected.shape, expected.dtype), node
        return results

    return run


class Compiled:
    """The result of `compile_joint`, with the graphs that the compilers received."""

    def __init__(self, target: Any, args: Sequence[Any], **options: Any) -> None:
        self.gm, self.values = lifted(target, args)
        self.compiles = 0
        self.forward: fx.GraphModule | None = None
        self.backward: fx.GraphModule | None = None
        self.inference: fx.GraphModule | None = None
        self.fn = compile_joint(
            self.gm,
            fakes(self.gm),
            fw_compiler=self._keep("forward"),
            bw_compiler=self._keep("backward"),
            inference_compiler=self._keep("inference"),
            **options,
        )

    def _keep(self, which: str) -> Callable[..., Any]:
        def compiler(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            setattr(self, which, gm)
            self.compiles += 1
            return run_graph(gm, inputs)

        return compiler

    def __call__(self, *args: Any) -> Any:
        return self.fn(*self.values[: len(self.values) - len(args)], *args)


def clones(args: Sequence[Any]) -> list[Any]:
    """Fresh leaves with the same values."""
    return [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args]


def flat(out: Any) -> tuple[Any, ...]:
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def loss_of(outputs: Sequence[Any]) -> torch.Tensor:
    """A scalar that weighs each element of each differentiable output differently."""
    total = torch.zeros(())
    for out in outputs:
        if isinstance(out, torch.Tensor) and out.requires_grad:
            weight = torch.linspace(0.5, 1.5, out.numel(), device=out.device).reshape(out.shape)
            total = total.to(out.device) + (out.float() * weight).sum()
    return total


def check(target: Any, args: Sequence[Any], *, tolerance: float = 1e-5, seed: int = 0, **options: Any) -> Compiled:
    """Check outputs, gradients, mutated inputs and buffers of the compiled `target` against eager, in two calls.

    The first call must have compiled a graph, and the second one must compile none.
    """
    if isinstance(target, nn.Module):
        target.zero_grad()
    eager_target = copy.deepcopy(target) if isinstance(target, nn.Module) else target
    compiled = Compiled(target, args, **options)
    for call in range(2):
        compiles = compiled.compiles
        eager_args, our_args = clones(args), clones(args)
        torch.manual_seed(seed + call)
        expected = flat(eager_target(*eager_args))
        torch.manual_seed(seed + call)
        got = flat(compiled(*our_args))
        assert_same(got, expected, tolerance=tolerance)
        if any(isinstance(o, torch.Tensor) and o.requires_grad for o in expected):
            loss_of(expected).backward()
            loss_of(got).backward()
        assert_same((our_args, target), (eager_args, eager_target), tolerance=tolerance)
        assert compiled.compiles, "nothing was compiled"
        assert call == 0 or compiled.compiles == compiles, "the second call compiled again"
    return compiled
