"""`requires_grad_()` of existing leaves: what autograd sees of one while its flag is another than when the frame began.

In the graph a tensor has two sides: what its placeholder is, and an alias of it with the other flag.  What is computed while it
is frozen reads one that is detached; what is computed while it is not, where the frame got it frozen, reads a leaf that the graph
makes, so that a backward inside finds it.  The flag itself is an effect that follows the graph.
Example: with ``p.requires_grad_(False)`` in the frame, ``p * x`` is ``detach(p) * x`` from then on.
"""

from __future__ import annotations

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture
from pycompiler.capture.values.tensor import Tensor

KIND, CALL = "unsupported-operation", "Tensor.requires_grad_()"


def turn(cx: Capture, tensor: Tensor, wanted: bool) -> Tensor:
    """The flag of an existing tensor is `wanted` from now on, and has not been."""
    graph = cx.graph
    sides = graph.turned.get(tensor)
    if sides is None:
        _check(cx, tensor)
        sides = graph.turned[tensor] = {not wanted: (tensor.node, tensor.fake)}
        graph.stand_in(tensor)
    if wanted not in sides:
        made = graph.call_method("detach", [tensor], {})
        assert isinstance(made, Tensor)
        if wanted:
            graph.call_method("requires_grad_", [made], {}, always=True)
            graph.leaves.append((made.fake, cx.step()))
        graph.stands_for(made.fake, tensor)
        sides[wanted] = made.node, made.fake
    cx.effects.set_flag(tensor, wanted)
    graph.flipped_at.setdefault(tensor, cx.step())
    tensor.node, tensor.fake = sides[wanted]
    return tensor


def _check(cx: Capture, tensor: Tensor) -> None:
    graph, real = cx.graph, tensor.real
    inner = graph.packs or graph.later or graph.is_inner or cx.inference.open or torch.is_inference_mode_enabled()
    if inner or real is None or tensor.source is None or tensor.is_special or tensor in graph.replaced:
        raise Break(KIND, CALL)
    if real.is_inference() or real.layout is not torch.strided or not may_be_leaf(tensor.fake):
        raise Break(KIND, f"{CALL} of what has no gradients")
    cx.guard("equals", tensor.source.attr("is_leaf"), real.is_leaf)
    if not real.is_leaf:
        raise Break(KIND, f"{CALL} of what has a history")


def may_be_leaf(fake: torch.Tensor) -> bool:
    return fake.is_floating_point() or fake.is_complex()


def check(cx: Capture, outputs: list[torch.Tensor]) -> None:
    """Where the graph ends: nothing was written into such a tensor that has a history, which it would have then; and what shows
    it without a history of its own is one that the tensor leads, whatever its flag is by then."""
    graph = cx.graph
    for tensor, sides in graph.turned.items():
        if any(fake.requires_grad is not flag or not fake.is_leaf for flag, (_, fake) in sides.items()):
            raise Break(KIND, f"{CALL} of what is written later", graph.flipped_at[tensor])
        made = [fake for _, fake in [*sides.values()][1:]]
        if any(out._base is fake and out.grad_fn is None for fake in made for out in outputs):
            raise Break(KIND, f"{CALL} of what a view leaves the graph of", graph.flipped_at[tensor])
    if graph.flipped_at:
        _check_views(cx)


def _check_views(cx: Capture) -> None:
    """No other input is a view of such a tensor: it would require grad as that does."""
    turned = {id(t.real): (t.source, step) for t, step in cx.graph.flipped_at.items()}
    sources = tuple(source for source, _ in turned.values() if source is not None)
    for value in cx.graph.inputs:
        real = value.real
        if real is None or value.source is None or type(real) is torch.nn.Parameter or not may_be_leaf(value.fake):
            continue
        with torch._C.DisableTorchFunction():
            base = None if real.is_inference() else real._base
        if id(base) in turned:
            raise Break(KIND, f"{CALL} of what another input is a view of", turned[id(base)][1])
        if value.is_special or real.is_inference():  # of which nobody reads attributes
            continue
        place = value.source.attr("_base")
        cx.guard(*(("id_is", place, None) if base is None else ("no_alias", place, None, sources)))
