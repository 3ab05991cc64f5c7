"""Compile a torch-level graph with its gradients: trace, partition, pass both graphs to compilers, wrap.

In: an ``fx.GraphModule`` (placeholders are tensors and numbers), example inputs, three compilers.
Out: a callable of the graph's inputs that returns a tuple and behaves as eager does: gradients, in-place writes, aliases.

Example: ``compile_joint(gm, fakes, fw_compiler=c, bw_compiler=c)(*inputs)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from pycompiler.autograd import runtime
from pycompiler.autograd.control_flow import Branches
from pycompiler.autograd.decompositions import default_decompositions
from pycompiler.autograd.joint import Joint
from pycompiler.autograd.late_waits import wait_late
from pycompiler.autograd.partition import Partition, forward_only
from pycompiler.autograd.partition import partition as cut_joint
from pycompiler.autograd.recorder import Decomposition
from pycompiler.autograd.replay import Replay
from pycompiler.autograd.trace import trace_joint
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.ir.generated_source import forward_of
from pycompiler.ir.node_effects import effects_of
from pycompiler.ir.phases import artefact, phase
from pycompiler.logs import artifact
from pycompiler.symbolic.number_nodes import SYMBOLIC
from pycompiler.torch_compat.fake_mode import fake_as, fake_of, is_inference, new_fake_mode, with_history

_log_joint = artifact("aot_joint_graph")

GraphCompiler = Callable[[fx.GraphModule, list[Any]], Callable[..., Sequence[Any]]]


def compile_joint(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    fw_compiler: GraphCompiler,
    bw_compiler: GraphCompiler,
    inference_compiler: GraphCompiler | None = None,
    partition: str = "min_cut",
    decompositions: Mapping[OpOverload, Decomposition] | None = None,
    activation_memory_budget: float = 1.0,
    store_in_graph: bool = True,
    ahead: bool = False,
    name: str = "graph",
    layout: Callable[[Joint], None] | None = None,
    buckets: Sequence[int] = (),
) -> Callable[..., Sequence[Any]]:
    """Compile `gm`; see the module docstring.

    Compilers get a functional ATen graph (``meta["val"]`` on every node) and its FakeTensors.  They return a callable of
    positional tensors, whose results have the strides of their ``meta["val"]``.
    `store_in_graph`: new values of inputs that autograd need not see are written by ``aten.copy_`` nodes at the end of
    the forward graph, not by a wrapper around it, so that a compiler can fuse the write.
    `ahead`: the backward for gradients of all outputs is compiled now, not at its first call.
    `buckets`: limits of DDP's buckets in bytes: the backward has stages, which give the gradients of one bucket each.
    `layout`: a pass over the joint graph that chooses strides for intermediate results (`layout.py`).
    Raises `AutogradUnsupported` for graphs that must run eagerly; an error of eager itself propagates unchanged.
    """
    for node in gm.graph.nodes:
        if effects_of(node).python:
            called = getattr(node.target, "__qualname__", node.target)
            raise AutogradUnsupported(
                "a Python function that each call of the graph calls", str(called), "the graph runs eagerly"
            )
    symbolic = any(isinstance(e, SYMBOLIC) for e in example_inputs)
    mode = detect_fake_mode(tuple(example_inputs)) or new_fake_mode(symbolic=symbolic)
    gm, lifted = lift_attributes(gm)
    fakes = [fakeify(t, mode) for t in (*lifted, *example_inputs)]
    table = default_decompositions() if decompositions is None else decompositions

    counts = False

    def trace(body: fx.GraphModule, examples: Sequence[Any], made: Branches) -> Joint:
        nonlocal counts
        inner = trace_joint(body, examples, mode, table, branches=made.calls)
        counts |= inner.counts
        return inner

    branches = Branches(mode, trace, inference_compiler or fw_compiler)
    branches.prepare(gm)
    if branches.choices:
        fw_compiler, bw_compiler, inference_compiler = (
            _keeping_alive(c, branches.choices) for c in (fw_compiler, bw_compiler, inference_compiler or fw_compiler)
        )
    _refuse_saved_inference(gm, fakes, mode)
    with phase("joint"):
        joint = trace_joint(gm, fakes, mode, table, store_in_graph, branches.calls, cut=True)
        wait_late(joint.graph, set(joint.grads))
        if layout is not None:
            layout(joint)
    artefact("joint", joint.graph)
    if _log_joint.enabled:
        _log_joint(f"{name}\n{joint.graph}")
    ambient_autocast = torch._C._is_any_autocast_enabled()
    if joint.needs_backward:
        with phase("partition"):
            part = cut_joint(joint, partition, activation_memory_budget)
            _refuse_inference(part, fakes)
        again = Replay(gm, joint, part, fakes, name)
        forward = fw_compiler(part.forward, _example_values(part.forward))
        if ambient_autocast:
            forward = runtime.autocast_free(forward)
        inner = runtime.differentiable(joint, part, forward, bw_compiler, again, name, ahead, buckets)
    else:
        module = forward_only(joint)
        inner = (inference_compiler or fw_compiler)(module, _example_values(module))
        if ambient_autocast:
            inner = runtime.autocast_free(inner)
        computes = any(n.op not in ("placeholder", "output") for n in module.graph.nodes)
        if computes and torch.is_grad_enabled() and any(n.meta.get("requires_grad") for n in joint.inputs):
            inner = runtime.grad_free(inner)
    run = runtime.epilogue(joint, inner, name=name)
    joint.more, joint.hooks = [], []  # captured nodes must not outlive the compile
    eager = runtime.raise_unfit if any(effects_of(n).refuses for n in gm.graph.nodes) else gm.forward
    bodies = [m for m in gm.modules() if isinstance(m, fx.GraphModule)]
    if any(effects_of(n).switches for body in bodies for n in body.graph.nodes):
        eager = runtime.restoring_state(eager)
    counted = sorted({*joint.written, *(joint.touched if joint.needs_backward else ())})
    if counted and len(joint.inputs) > 1:
        run = runtime.unless_shared(run, counted, eager, name=name, pairs=runtime.empty_pairs(joint, counted))
    if counts or joint.counts:
        run = runtime.unless_moved(run, joint, eager, name=name)
    run = runtime.unless_retained(run, joint, eager, name=name)
    return functools.partial(run, *lifted) if lifted else run


def _refuse_inference(part: Partition, inputs: Sequence[Any]) -> None:
    """Autograd does not save inference tensors.  Eager's nodes may save other tensors here, or raise."""
    for kind, index in part.saved:
        if kind == "input" and isinstance(inputs[index], torch.Tensor) and is_inference(inputs[index]):
            raise AutogradUnsupported(
                "an inference tensor would be saved for backward", f"input {index}", "clone it first"
            )


def _refuse_saved_inference(gm: fx.GraphModule, inputs: Sequence[Any], mode: FakeTensorMode) -> None:
    """Eager's nodes do not save inference tensors either.  They raise, even for a node that no result depends on."""
    of_inference = [isinstance(t, torch.Tensor) and is_inference(t) for t in inputs]
    tracked = torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in inputs)
    if not (any(of_inference) and tracked):
        return
    given = [with_history(mode, fake_as(mode, t), t) if isinstance(t, torch.Tensor) else t for t in inputs]
    with torch.inference_mode(), mode:
        given = [t.clone() if own else t for t, own in zip(given, of_inference, strict=True)]
    try:
        with mode, torch.enable_grad():
            gm.forward(*given)
    except Exception as error:  # other errors arise again when the graph is traced
        if "Inference tensors cannot be saved" in str(error):
            raise AutogradUnsupported(
                "an inference tensor would be saved for backward", "an input", "clone it first"
            ) from error


def _keeping_alive(compiler: GraphCompiler, held: object) -> GraphCompiler:
    """A version of `compiler` whose results keep alive objects that their graphs only refer to by name."""
    return functools.partial(_compile_holding, compiler, held)


def _compile_holding(
    compiler: GraphCompiler, held: object, module: fx.GraphModule, inputs: list[Any]
) -> Callable[..., Sequence[Any]]:
    return functools.partial(_run_holding, compiler(module, inputs), held)


def _run_holding(made: Callable[..., Sequence[Any]], held: object, *args: Any) -> Sequence[Any]:
    return made(*args)


def aot_eager(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """`compile_joint` with compilers that run the ATen graphs unchanged."""

    def run_graph(module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Sequence[Any]]:
        return forward_of(module)

    return compile_joint(gm, example_inputs, fw_compiler=run_graph, bw_compiler=run_graph)


def _example_values(module: fx.GraphModule) -> list[Any]:
    return [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]


def fakeify(value: Any, mode: FakeTensorMode) -> Any:
    """`value` as a FakeTensor of `mode` with static sizes; a number unchanged."""
    if isinstance(value, FakeTensor) or not isinstance(value, torch.Tensor):
        return value
    return fake_of(mode, value)


def lift_attributes(gm: fx.GraphModule) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """`gm` with its tensor attributes turned into leading placeholders, and those tensors.

    The given module is not changed: without tensor attributes it is returned itself.
    """
    attributes = [n for n in gm.graph.nodes if n.op == "get_attr" and isinstance(_fetch(gm, n.target), torch.Tensor)]
    if not attributes:
        return gm, []
    values: dict[str, torch.Tensor] = {n.target: _fetch(gm, n.target) for n in attributes}
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    lifted = {target: graph.placeholder(f"lifted_{i}") for i, target in enumerate(values)}
    for node in gm.graph.nodes:
        env[node] = (
            lifted[node.target]
            if node.op == "get_attr" and node.target in lifted
            else graph.node_copy(node, env.__getitem__)
        )
    return fx.GraphModule(gm, graph), list(values.values())


def _fetch(gm: fx.GraphModule, target: Any) -> Any:
    return functools.reduce(getattr, target.split("."), gm)
