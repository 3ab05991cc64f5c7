"""`backward()` in a frame: `torch.autograd.grad` of the leaves in the graph, and eager's accumulation of gradients.

In: outputs whose history is in the graph.
Out: gradients of the leaves.  A leaf without a gradient gets a new one after the graph (an effect).  A leaf with a
gradient keeps it, and the graph adds to it in place.  The autograd nodes are *spent* by the backward.  A second
backward through them, from any result of the graph, raises eager's error (`runtime_helpers.spent`).
"""

from __future__ import annotations

import collections
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.library.gradients import backward_hooks, gradients
from pycompiler.capture.values import tensor as tensors
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.sequences import Sequence, Tuple
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir import higher_order
from pycompiler.operators.kernel_type_checks import memory_of

KIND = "unsupported-operation"
OF_METHOD = ("tensors", "grad_tensors", "retain_graph", "create_graph", "inputs")
OF_FUNCTION = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")


def method(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`Tensor.backward`."""
    named = {"grad_tensors" if k == "gradient" else k: v for k, v in kwargs.items()}
    return backward(cx, dict(zip(OF_METHOD, args, strict=False)) | named, method=True)


@builtin(torch.autograd.backward)
def function(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return backward(cx, dict(zip(OF_FUNCTION, args, strict=False)) | kwargs)


def backward(cx: Capture, given: dict[str, Value], *, method: bool = False) -> Value:
    gradients.refuse_inside(cx, "backward()")
    gradients.refuse_waiting(cx, "backward()")
    cx.effects.looks.go_backward()
    given = {k: cx.realize(v) for k, v in given.items()}
    given = {k: v for k, v in given.items() if not cx.is_none(v)}
    if given.keys() - set(OF_METHOD) or cx.graph.is_inner:
        raise Break(
            KIND,
            f"backward() with {', '.join(sorted(given.keys() - set(OF_METHOD))) or 'an inner graph around the call'}",
        )
    if "create_graph" in given and cx.truth(given["create_graph"]):
        raise Break(KIND, "backward(create_graph=True)")
    outputs = gradients.tensors_in(cx, given["tensors"])
    if any(v.is_special for v in outputs):
        raise Break(KIND, "backward() of a tensor subclass")
    behind = _behind(cx, outputs)
    leaves = _wanted(cx, given["inputs"]) if "inputs" in given else behind
    for leaf in leaves:
        _check(cx, leaf)
    for leaf in behind:
        if leaf not in leaves and leaf.source is not None and not gradients.is_plain_leaf(cx, leaf):
            raise Break(KIND, f"backward(inputs=...) through {leaf.describe()}, which has autograd history or hooks")
    if not leaves:
        raise Break(KIND, "backward() of a tensor that does not require grad")
    wanted = [t for t, _ in cx.graph.retained]
    if wanted and "inputs" in given:
        raise Break(KIND, "backward(inputs=...) after Tensor.retain_grad()")
    retained = "retain_graph" in given and cx.truth(given["retain_graph"])
    grads = _of_each(cx, given["grad_tensors"]) if "grad_tensors" in given else Const(None)
    if isinstance(grads, Sequence) and len(grads.items) != len(outputs):
        raise Break(KIND, "backward() with another number of gradients than outputs")
    found = _GradientStore(cx, leaves, wanted)
    freed = backward_hooks.run_backward(
        cx, outputs, grads, [*leaves, *wanted], found.ready, retained=retained, accumulates=True, method=method
    )
    if not retained:
        cx.graph.spent.update(freed)
    cx.effects.looks.spend(lambda t: _is_spent(cx, t.grad_fn))
    return Const(None)


class _GradientStore:
    """Stores the gradients of a backward."""

    def __init__(self, cx: Capture, leaves: list[Tensor], wanted: list[Tensor]) -> None:
        self.cx, self.leaves, self.wanted = cx, set(leaves), set(wanted)
        self.before = set(cx.graph.by_fake)

    def ready(self, found: list[tuple[Tensor, Tensor]]) -> None:
        cx = self.cx
        for result, grad in found:
            if result in self.wanted:
                _retain(cx, result, grad)
        grads = [(t, grad) for t, grad in found if t in self.leaves]
        strided = (v.fake for v in cx.graph.by_fake.values() if v.layout is torch.strided)
        shared = collections.Counter(map(memory_of, strided))
        owned = collections.Counter(id(grad.fake) for _, grad in grads)
        for leaf, grad in grads:
            alone = id(grad.fake) not in self.before and owned[id(grad.fake)] == 1
            _accumulate(cx, leaf, grad, alone and shared[grad.memory] == 1)


def retain_grad(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`retain_grad` of a result that stays in the graph: a backward stores its gradient, too."""
    tensor = cx.realize(args[0])
    gradients.refuse_inside(cx, "retain_grad()")
    plain = isinstance(tensor, Tensor) and not (tensor.exists or tensor.is_special or tensor.overlay or tensor.parted)
    if len(args) > 1 or kwargs or not plain or cx.graph.is_inner or not tensor.requires_grad:  # type: ignore[attr-defined]
        raise Break("unsupported-attribute", "Tensor.retain_grad()")
    assert isinstance(tensor, Tensor)
    if any(n.target is higher_order.register_gradient_hook for n in tensor.node.users):
        raise Break("unsupported-attribute", "Tensor.retain_grad() after Tensor.register_hook()")
    if not tensor.is_leaf and retained_at(cx, tensor) is None:
        cx.graph.retained.append((tensor, cx.step()))
    return Const(None)


def _retain(cx: Capture, result: Tensor, grad: Tensor) -> None:
    """Store a retained gradient as autograd does: a copy, or a sum with the old one."""
    old = result.overlay.get("grad")
    if isinstance(old, Tensor):
        made = cx.graph.call_function(torch.add, [old, grad], {})
    else:
        made = cx.graph.call_method("clone", [grad], {"memory_format": Const(torch.contiguous_format)})
    assert isinstance(made, Tensor)
    cx.effects.set_grad(result, made)


def retained_at(cx: Capture, value: Tensor) -> tuple[int | None] | None:
    """The step at which the program retained the result's gradient, or None: a holder of the result could see the
    gradient."""
    return next(((step,) for tensor, step in cx.graph.retained if tensor is value), None)


def _of_each(cx: Capture, value: Value) -> Value:
    return value if isinstance(value, Sequence) else Tuple([value])


def _behind(cx: Capture, outputs: list[Tensor]) -> list[Tensor]:
    """The leaves behind these outputs."""
    found: dict[int, Tensor] = {}
    for fake in gradients.leaves([t.fake for t in outputs]):
        value = cx.graph.known(fake)
        if value is None:
            raise Break(KIND, "backward() of a tensor that was computed outside of the graph")
        if value.fake is fake or value.requires_grad:  # otherwise its node drops the gradient
            found[id(fake)] = value
    return list(found.values())


def _wanted(cx: Capture, inputs: Value) -> list[Tensor]:
    if isinstance(inputs, Dict):
        inputs = Tuple([v for _, v in inputs.pairs(cx)])
    found = gradients.tensors_in(cx, inputs)
    if not all(t.requires_grad and t.is_leaf for t in found):
        raise Break(KIND, "backward(inputs=...) with a tensor that is not a leaf, or does not require grad")
    return list(dict.fromkeys(found))


def _check(cx: Capture, leaf: Tensor) -> None:
    """Break unless a gradient of this leaf is only added to the old gradient."""
    if leaf.is_special or leaf.layout is not torch.strided:
        raise Break(KIND, f"backward() to {leaf.describe()}, which is a tensor subclass or not strided")
    if leaf.source is not None and not gradients.is_plain_leaf(cx, leaf, "_post_accumulate_grad_hooks"):
        raise Break(KIND, f"backward() to {leaf.describe()}, which has autograd history or hooks")


def _accumulate(cx: Capture, leaf: Tensor, grad: Tensor, alone: bool) -> None:
    """Accumulate a gradient as autograd's `AccumulateGrad` does.

    A gradient with the leaf's layout, which nothing else shares, is stored as it is.
    """
    old = cx.realize(leaf.plain_getattr(cx, "grad"))
    if isinstance(old, Tensor):
        a, b = old.fake, grad.fake
        if (
            old.is_special
            or a.requires_grad
            or (a.dtype, a.device, a.shape, a.layout) != (b.dtype, b.device, b.shape, b.layout)
        ):
            raise Break(KIND, f"backward() that adds {grad.describe()} to {old.describe()}")
        cx.graph.call_method("add_", [old, grad], {})
        return
    if not (alone and _lies_as(grad.fake, leaf.fake)):
        grad = _copy(cx, leaf, grad)
    elif grad.is_view:
        made = cx.graph.call_method("detach", [grad], {})
        assert isinstance(made, Tensor)
        grad = made
    cx.effects.set_grad(leaf, grad)


def _dense(fake: torch.Tensor) -> bool:
    return torch.ops.aten.is_non_overlapping_and_dense.default(fake)  # type: ignore[no-any-return]


def _lies_as(grad: torch.Tensor, leaf: torch.Tensor) -> bool:
    if not _dense(leaf):
        return grad.is_contiguous()
    return all(n == 1 or a == b for n, a, b in zip(grad.shape, grad.stride(), leaf.stride(), strict=True))


def _copy(cx: Capture, leaf: Tensor, grad: Tensor) -> Tensor:
    """A copy with the leaf's layout, if the leaf is dense, with version 1."""
    if not _dense(leaf.fake):
        made = cx.graph.call_method("clone", [grad], {"memory_format": Const(torch.contiguous_format)})
    else:
        layout = [Tuple([cx.make(n) for n in ns]) for ns in (leaf.shape, leaf.strides)]
        empty = cx.graph.call_method("new_empty_strided", [grad, *layout], {})
        made = cx.graph.call_method("copy_", [empty, grad], {})
    assert isinstance(made, Tensor)
    return made


# spent nodes
# -----------------------------------------------------------------------------------------------------------
def spent(cx: Capture, value: Value) -> list[Tensor] | None:
    """The existing leaves behind a tensor whose paths back all end at spent nodes; a backward from it raises.

    None for all other tensors.
    """
    if not isinstance(value, Tensor) or not cx.graph.spent or not value.requires_grad or value.grad_fn is None:
        return None
    if not _is_spent(cx, value.grad_fn):
        return None
    behind = (cx.graph.known(leaf) for leaf in gradients.leaves([value.fake]))
    return list(dict.fromkeys(v for v in behind if v is not None and v.source is not None))


def _is_spent(cx: Capture, node: Any) -> bool:
    """Whether each path back from a node ends at a spent node."""
    todo, seen = [node], set[Any]()
    while todo:
        node = todo.pop()
        if node is None:
            return False
        if node in seen or (node in cx.graph.spent and _keeps(node)):
            continue
        seen.add(node)
        if hasattr(node, "variable") or not node.next_functions:
            return False
        todo += [n for n, _ in node.next_functions if n is not None]
    return True


def _keeps(node: Any) -> bool:
    """Whether a node saves tensors: without them a second backward raises."""
    return getattr(node, "saves", True) and any(name.startswith("_raw_saved_") for name in dir(type(node)))


tensors.METHODS["backward"] = method
tensors.METHODS["retain_grad"] = retain_grad
