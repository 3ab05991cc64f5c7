"""`requires_grad_()` of existing leaves: autograd's view of a leaf while its flag differs from the frame's start.

In the graph such a tensor has two sides: its placeholder, and an alias with the other flag.  Operations while it is
frozen read a detached alias.  A leaf that the frame gets frozen has the other case: operations after its release read
a new leaf of the graph.  A backward in the frame finds that leaf.  The flag itself is an effect after the graph.
Example: after ``p.requires_grad_(False)`` in the frame, ``p * x`` is ``detach(p) * x``.
"""

from __future__ import annotations

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture
from pycompiler.capture.values.tensor import Tensor

KIND, CALL = "unsupported-operation", "Tensor.requires_grad_()"


def switch_flag(cx: Capture, tensor: Tensor, wanted: bool) -> Tensor:
    """Switch the flag of an existing tensor to `wanted`."""
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
    if inner or real is None or tensor.source is None or tensor.is_special or tensor in cx.facts.swaps:
        raise Break(KIND, CALL)
    if real.is_inference() or real.layout is not torch.strided or not may_be_leaf(tensor.fake):
        raise Break(KIND, f"{CALL} of an inference tensor, a tensor that is not strided, or a dtype without gradients")
    cx.guard("equals", tensor.source.attr("is_leaf"), real.is_leaf)
    if not real.is_leaf:
        raise Break(KIND, f"{CALL} of a tensor with autograd history")


def may_be_leaf(fake: torch.Tensor) -> bool:
    return fake.is_floating_point() or fake.is_complex()


def check(cx: Capture, outputs: list[torch.Tensor]) -> None:
    """Break at the end of the graph if a turned tensor got a history by a write, or if a view without a history leaves
    the graph.

    Such a view would show the tensor's flag, whatever it is then.
    """
    graph = cx.graph
    for tensor, sides in graph.turned.items():
        if any(fake.requires_grad is not flag or not fake.is_leaf for flag, (_, fake) in sides.items()):
            raise Break(KIND, f"{CALL} of a tensor that is written in place later", graph.flipped_at[tensor])
        made = [fake for _, fake in [*sides.values()][1:]]
        if any(out._base is fake and out.grad_fn is None for fake in made for out in outputs):
            raise Break(KIND, f"{CALL} of a tensor of which a view leaves the graph", graph.flipped_at[tensor])
    if graph.flipped_at:
        _check_views(cx)


def _check_views(cx: Capture) -> None:
    """Guard that no other input is a view of a turned tensor: the view's flag would change, too."""
    turned = {id(t.real): (t.source, step) for t, step in cx.graph.flipped_at.items()}
    sources = tuple(source for source, _ in turned.values() if source is not None)
    for value in cx.graph.inputs:
        real = value.real
        if real is None or value.source is None or type(real) is torch.nn.Parameter or not may_be_leaf(value.fake):
            continue
        with torch._C.DisableTorchFunction():
            base = None if real.is_inference() else real._base
        if id(base) in turned:
            raise Break(KIND, f"{CALL} of a tensor of which another input is a view", turned[id(base)][1])
        if value.is_special or real.is_inference():  # attributes of such a tensor are never read
            continue
        place = value.source.attr("_base")
        cx.guard(*(("id_is", place, None) if base is None else ("no_alias", place, None, sources)))
