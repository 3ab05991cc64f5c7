"""Gradients in a frame: `torch.autograd.grad` as a node of the graph, tensor hooks, `requires_grad_` and `.grad`.

In: calls of the program.
Out: nodes of the graph, effects, or breaks.  The autograd graph of the fakes shows the path of a gradient.  The path
must not leave the captured graph: the history behind an input is not known.
"""

from __future__ import annotations

from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter import tracers
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.library.gradients import backward_hooks, requires_grad
from pycompiler.capture.recipe import runtime_helpers
from pycompiler.capture.semantics import polyfills
from pycompiler.capture.values import tensor as tensors
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import DictView
from pycompiler.capture.values.containers.iterators import Generator, Iter
from pycompiler.capture.values.containers.sequences import Sequence, Tuple
from pycompiler.capture.values.functions import Builtin
from pycompiler.capture.values.tensor import Handle, Tensor
from pycompiler.ir import higher_order
from pycompiler.ir.node_effects import effects_of
from pycompiler.ir.source import Source
from pycompiler.operators.kernel_type_checks import memory_of

AUTOCAST: dict[str, Any] = {"autocast_cpu": False, "autocast_cuda": False}
OF_GRAD = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused",
           "is_grads_batched", "materialize_grads")  # fmt: skip


@builtin(torch.autograd.grad)
def grad(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    refuse_inside(cx, "torch.autograd.grad")
    cx.effects.looks.go_backward()
    refuse_waiting(cx, "torch.autograd.grad")
    if "is_grads_batched" in kwargs and cx.truth(kwargs["is_grads_batched"]) or len(args) > 7:
        raise Break("unsupported-operation", "torch.autograd.grad with is_grads_batched")
    if cx.graph.retained:  # retained results on the path would store theirs, too
        raise Break("unsupported-operation", "torch.autograd.grad after Tensor.retain_grad()")
    args = [_tupled(cx, a) if k < 3 else a for k, a in enumerate(args)]
    kwargs = {k: _tupled(cx, v) if k in ("outputs", "inputs", "grad_outputs") else v for k, v in kwargs.items()}
    outputs = kwargs["outputs"] if "outputs" in kwargs else args[0]
    for leaf in leaves([t.fake for t in tensors_in(cx, outputs)]):
        value = cx.graph.known(leaf)
        if value is None or value.is_special:
            raise Break(
                "unsupported-operation",
                "torch.autograd.grad of a tensor that was computed outside of the graph, or from a tensor subclass",
            )
        if value.source is not None and not is_plain_leaf(cx, value):
            raise Break(
                "unsupported-operation",
                f"torch.autograd.grad through {value.describe()}, which has autograd history or hooks",
            )
    if cx.graph.hooks:
        return _through_hooks(cx, dict(zip(OF_GRAD, args, strict=False)) | kwargs)
    return cx.graph.call_function(torch.autograd.grad, args, kwargs)


def _through_hooks(cx: Capture, given: dict[str, Value]) -> Value:
    """`torch.autograd.grad` whose path may meet hooks with effects."""
    outputs, inputs = tensors_in(cx, given["outputs"]), tensors_in(cx, given["inputs"])
    told = {n for n in ("create_graph", "materialize_grads") if n in given and cx.truth(given[n])}
    plain = not told and given.keys() <= set(OF_GRAD) and len({*inputs}) == len(inputs)
    grads = cx.realize(given.get("grad_outputs", Const(None)))
    grads = Tuple([grads]) if isinstance(grads, Tensor) else grads
    if not plain or (isinstance(grads, Sequence) and len(grads.items) != len(outputs)):
        raise Break(
            "unsupported-operation",
            "torch.autograd.grad beside hooks, with create_graph, materialize_grads, a repeated input, or another "
            "number of grad_outputs than outputs",
        )
    if not all(t.requires_grad for t in inputs):
        raise Break("unsupported-operation", "torch.autograd.grad of an input that does not require grad")
    found: dict[Tensor, Value] = {}
    retained = "retain_graph" in given and cx.truth(given["retain_graph"])
    backward_hooks.run_backward(cx, outputs, grads, inputs, found.update, retained=retained, accumulates=False)
    if len(found) < len(inputs) and not ("allow_unused" in given and cx.truth(given["allow_unused"])):
        raise Break("unsupported-operation", "torch.autograd.grad of an input that the outputs do not use")
    return Tuple([found.get(t, Const(None)) for t in inputs])


def _tupled(cx: Capture, value: Value) -> Value:
    """An iterator (`module.parameters()`) as a tuple; other values unchanged."""
    value = cx.realize(value)
    return cx.call(cx.make(tuple), [value], {}) if isinstance(value, (Iter, Generator, DictView)) else value


def refuse_inside(cx: Capture, what: str) -> None:
    if cx.graph.descending:
        raise Break("unsupported-operation", f"{what} in a hook of a backward")
    if cx.graph.levels or cx.graph.packs or cx.graph.later:
        raise Break("inner-graph", f"{what} under a transform, in a checkpoint, or in a backward")
    if cx.inference.open:
        raise Break("unsupported-operation", f"{what} in inference mode")


def refuse_waiting(cx: Capture, what: str) -> None:
    if any(w.kind == "call" and any(isinstance(v, Handle) for v in w.value) for w in cx.effects.journal):
        raise Break(
            "unsupported-operation", f"{what} after Tensor.register_hook() of a tensor that exists outside of the graph"
        )


def tensors_in(cx: Capture, value: Value) -> list[Tensor]:
    value = cx.realize(value)
    found = [cx.realize(v) for v in value.items] if isinstance(value, Sequence) else [value]
    if not all(isinstance(v, Tensor) for v in found):
        raise Break("unsupported-operation", f"torch.autograd.grad of {value.describe()}")
    return found  # type: ignore[return-value]


def leaves(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves where gradients of these outputs end."""
    found = [t for t in outputs if t.grad_fn is None and t.requires_grad]
    todo: list[Any] = [t.grad_fn for t in outputs]
    seen: set[Any] = set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [n for n, _ in node.next_functions]
        if hasattr(node, "variable"):
            found.append(node.variable)
    return found


def is_plain_leaf(cx: Capture, value: Tensor, *hooks: str) -> bool:
    """Whether an existing tensor has no history, and no hooks that a gradient would call; guarded."""
    assert value.source is not None and value.real is not None
    for name, wanted in (("is_leaf", True), *((h, None) for h in ("_backward_hooks", *hooks))):
        cx.guard("equals" if name == "is_leaf" else "id_is", value.source.attr(name), getattr(value.real, name))
        if getattr(value.real, name) is not wanted:
            return False
    return type(value.real) is torch.nn.Parameter or _is_its_own(cx, value.real, value.source)


def _is_its_own(cx: Capture, leaf: torch.Tensor, source: Source) -> bool:
    """Whether a leaf requires gradients by its own flag; guarded.

    A view created without a history shows the flag of its base, and gets no gradient.
    """
    place = source.attr("_base")
    if leaf._base is None:
        cx.guard("id_is", place, None)
        return True
    cx.guard("equals", place.attr("requires_grad"), leaf._base.requires_grad)
    return not leaf._base.requires_grad


def of_existing(cx: Capture, tensor: Tensor, hook: Value) -> Value:
    """A hook of an existing leaf, which no write replaces.  Only a backward calls it, so it is registered after the
    graph."""
    assert tensor.real is not None and tensor.source is not None
    cx.guard("equals", tensor.source.attr("is_leaf"), tensor.real.is_leaf)
    if not tensor.real.is_leaf or not tensor.requires_grad:
        raise Break(
            "unsupported-attribute",
            "Tensor.register_hook() of a tensor that exists outside of the graph and is not a leaf that requires grad",
        )
    handle = Handle(tensor, hook)
    cx.effects.defer(Builtin(runtime_helpers.keep), [handle])
    return handle


def register_hook(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Register a hook. It is traced at once, for any gradient of the tensor's shape, and may have no effects."""
    tensor, hook = cx.realize(args[0]), args[1] if len(args) == 2 and not kwargs else None
    refuse_inside(cx, "Tensor.register_hook()")
    if hook is not None and isinstance(tensor, Tensor) and tensor.exists and not tensor.is_special:
        return of_existing(cx, tensor, hook)
    if hook is None or not isinstance(tensor, Tensor) or tensor.exists or tensor.is_special:
        raise Break("unsupported-attribute", "Tensor.register_hook() of a tensor subclass, or with other arguments")
    if not tensor.requires_grad or tensor.is_leaf:
        raise Break("unsupported-attribute", "Tensor.register_hook() of a tensor without autograd history")
    if any(known is tensor for known, _ in cx.graph.retained):
        raise Break("unsupported-attribute", "Tensor.register_hook() after Tensor.retain_grad()")
    if backward_hooks.hooks_are_inlined(cx):
        return Handle(remove=backward_hooks.hook_of_tensor(cx, tensor, hook))
    try:
        _trace(cx, tensor, hook)
    except Break:
        if cx.graph.is_inner or backward_hooks.HOOKS_OUTLIVE in cx.tried:
            raise
        backward_hooks.restart_with_hooks(cx)
    return Handle()


def _trace(cx: Capture, tensor: Tensor, hook: Value) -> None:
    """Trace a hook without effects into a graph, which backwards outside also call."""
    looks, step, drawn = cx.effects.looks, cx.frames[0].begin, cx.fake_mode.seen.once
    with (
        tracers.inner_tracer(cx, levels=True, pure=True, later=True, grad=False, **AUTOCAST) as tracer,
        looks.of_body(step, [hook], cx.frames),
    ):
        with cx.fake_mode:
            given = torch.empty_like(tensor.fake)
        result = cx.realize(cx.call(hook, [tracer.argument(given)], {}))
        if not isinstance(result, Tensor) and not cx.is_none(result) or cx.fake_mode.seen.once > drawn:
            raise Break("inner-graph", f"a hook that returns {result.describe()}, or draws random numbers")
        body, lifted = tracer.close([result] if isinstance(result, Tensor) else [])
    looks.tensors(tracers.tensors_of(lifted))
    if isinstance(result, Tensor):
        cx.graph.call_inner(higher_order.register_gradient_hook, [body], [tensor, *lifted], always=True)
    elif any(effects_of(n).acts for n in body.graph.nodes):
        raise Break("inner-graph", "a hook that returns None and calls an operator with effects")


def requires_grad_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`requires_grad_()`: nothing for a tensor that already has the flag; a new tensor without a history becomes a
    leaf."""
    tensor, *given = (cx.realize(v, "as the flag requires_grad") for v in (*args, *kwargs.values()))
    wanted = given[0].const() if len(given) == 1 and given[0].is_const() else True
    plain = (
        kwargs.keys() <= {"requires_grad"}
        and not cx.graph.levels
        and (not given or (len(given) == 1 and given[0].is_const()))
    )
    if not isinstance(tensor, Tensor) or (tensor.is_special and not tensor.wrapper) or not plain:
        raise Break("unsupported-operation", "Tensor.requires_grad_()")
    if wanted is tensor.getattr(cx, "requires_grad").const():
        if wanted and isinstance(tensor.real, torch.Tensor) and tensor.real.is_inference():
            # eager raises
            raise Break("unsupported-operation", "Tensor.requires_grad_() of an inference tensor")
        if wanted and not _says_so_itself(cx, tensor):
            raise Break(
                "unsupported-operation", "Tensor.requires_grad_() of a view that takes requires_grad from its base"
            )
        return tensor
    if tensor.exists:
        if wanted is True and tensor not in cx.graph.turned and _may_start(cx, tensor):
            tensor.requires_grad = True
            cx.effects.draw(Builtin(runtime_helpers.start_leaf), [tensor])
            cx.graph.flipped_at[tensor] = cx.step()
            return tensor
        return requires_grad.switch_flag(cx, tensor, wanted)
    inner = cx.graph.packs or cx.graph.later or tensor.is_special
    inner |= bool(cx.inference.open) or cx.inference.is_made(tensor.fake)
    if wanted is not True or inner or tensor.overlay or not requires_grad.may_be_leaf(tensor.fake):
        raise Break("unsupported-operation", "Tensor.requires_grad_()")
    cx.graph.call_method("requires_grad_", [tensor], {}, always=True)
    cx.graph.leaves.append((tensor.fake, cx.step()))
    return tensor


def _says_so_itself(cx: Capture, tensor: Tensor) -> bool:
    """Whether a tensor that requires grad has a history or its own flag; guarded."""
    real, source = tensor.real, tensor.source
    if real is None or source is None or tensor.is_special or type(real) is torch.nn.Parameter or real.is_inference():
        return True
    cx.guard("equals", source.attr("is_leaf"), real.is_leaf)
    return not real.is_leaf or _is_its_own(cx, real, source)


def _may_start(cx: Capture, tensor: Tensor) -> bool:
    """Whether an existing tensor may require grad from the graph's start: it is unused, and nothing before may
    raise."""
    graph, node = cx.graph, tensor.node
    inner = graph.is_inner or graph.packs or graph.later or cx.inference.open or torch.is_inference_mode_enabled()
    if inner or tensor.is_special or tensor.parted or node.op != "placeholder" or node.users or tensor.source is None:
        return False
    fake, real = tensor.fake, tensor.real
    alone = sum(t.memory == memory_of(fake) for t in graph.inputs if t.layout is torch.strided) == 1
    quiet = not any(effects_of(n).refuses or effects_of(n).acts for n in graph.graph.nodes)
    return (
        fake.layout is torch.strided
        and requires_grad.may_be_leaf(fake)
        and not (real is not None and real.is_inference())
        and alone
        and quiet
        and not cx.functions.concerns([tensor], {})
    )


def store_requires_grad(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`tensor.requires_grad = value`: unlike the method, it refuses every tensor with a history."""
    tensor = cx.realize(args[0])
    if not isinstance(tensor, Tensor) or tensor.is_special or not cx.truth(tensor.getattr(cx, "is_leaf")):
        raise Break("tensor-attribute-store", f"Tensor.requires_grad of {tensor.describe()}")
    return requires_grad_(cx, args, kwargs)


def store_grad(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`tensor.grad = value`: an effect.  A new tensor gets the attribute where it leaves the graph.

    A value that eager refuses breaks the graph, and so does a value with a history.
    """
    tensor, value = map(cx.realize, args)
    assert isinstance(tensor, Tensor)
    inner = cx.graph.packs or cx.graph.later or cx.graph.levels or getattr(cx.graph, "outer", None) is not None
    odd = not tensor.exists and tensor.requires_grad and not tensor.is_leaf
    if inner or odd or tensor.is_special or not _fits(cx, tensor, value):
        raise Break("tensor-attribute-store", f"Tensor.grad = {value.describe()}")
    if isinstance(value, Tensor) and value.requires_grad and tensor.requires_grad:
        raise Break("tensor-attribute-store", f"Tensor.grad = {value.describe()}, which requires grad")
    cx.effects.set_grad(tensor, value)
    return value


def delete_grad(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`del tensor.grad`, which leaves None."""
    return store_grad(cx, [*args, Const(None)], kwargs)


def _fits(cx: Capture, tensor: Tensor, value: Value) -> bool:
    if not isinstance(value, Tensor):
        return cx.is_none(value)
    a, b = tensor.fake, value.fake
    alike = (a.dtype, a.device, a.layout, a.layout) == (b.dtype, b.device, b.layout, torch.strided)
    return value is not tensor and not value.is_special and alike and a.shape == b.shape


def check_leaves(cx: Capture, outputs: list[torch.Tensor]) -> None:
    """Break if a tensor that the program made a leaf leaves the graph.

    A backend's results are no leaves, and require grad only if an input does.
    """
    made = {id(fake): step for fake, step in cx.graph.leaves}

    def is_existing(leaf: torch.Tensor) -> bool:
        known = cx.graph.known(leaf)
        return known is not None and known.exists

    for out in outputs if made else ():
        ends = leaves([out])
        inside = [made[id(t)] for t in ends if id(t) in made]
        if inside and (
            len(inside) == len(ends) or id(out) in made or any(id(t) in made and is_existing(t) for t in ends)
        ):
            raise Break(
                "unsupported-operation",
                "Tensor.requires_grad_() of a new tensor that leaves the graph, itself or through a result",
                inside[0],
            )


tensors.METHODS["register_hook"] = register_hook
tensors.METHODS["requires_grad_"] = requires_grad_
tensors.STORES["requires_grad"] = store_requires_grad
tensors.STORES["grad"] = store_grad
tensors.DELETIONS["grad"] = delete_grad


@builtin(polyfills.joined)
def joined(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Join results to operands that require grad and that they do not reach; not needed under a transform."""
    results, operands = args
    made = [t for t in tracers.tensors(cx, results, _same) if t.dtype.is_floating_point or t.dtype.is_complex]
    wanted = [t for t in tracers.tensors(cx, operands, _same) if t.requires_grad]
    if cx.graph.levels or not torch.is_grad_enabled() or all(_reaches(m.fake, w.fake) for m in made for w in wanted):
        return results
    copies = cx.graph.call_inner(higher_order.connected_copies, [], [len(made), *made, *wanted])
    assert isinstance(copies, Tuple)
    copy_of = {id(m): c for m, c in zip(made, copies.items, strict=True)}
    return tracers.mapped(cx, results, lambda t: copy_of.get(id(t), t), _same)


def _same(value: Value) -> Value:
    return value


def _reaches(result: torch.Tensor, operand: torch.Tensor) -> bool:
    """Whether a backward from `result` reaches `operand`, in fakes."""
    todo, seen = [result.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if node is operand.grad_fn or getattr(node, "variable", None) is operand:
            return True
        seen.add(node)
        todo += [n for n, _ in node.next_functions]
    return result is operand
