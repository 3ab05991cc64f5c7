"""New parameters (`nn.Parameter(t)`): autograd leaves, which a graph cannot return.

In: the data tensor.
Out: a `Parameter`.  Generated code creates an empty parameter before the graph and passes it in; the graph starts
with a copy of the data into it.  In eager mode parameter and data share memory.  So the graph breaks if the data are
used later and either is written, or if the data leave the graph.  A parameter of an existing tensor is created from
that tensor and shares its memory; then neither may be written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pycompiler.capture.breaks import Break
from pycompiler.capture.recipe import runtime_helpers
from pycompiler.capture.recording.input_symbols import DRAWN
from pycompiler.capture.values.base import Capture
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.functions import Builtin
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir import higher_order
from pycompiler.ir.node_effects import effects_of
from pycompiler.ir.source import Source, read
from pycompiler.operators.kernel_type_checks import memory_of
from pycompiler.operators.memory_overlap import has_no_overlap

KIND = "tensor-subclass"


class Parameter(Tensor):
    """A new parameter, or another new leaf, that generated code has at `place`."""

    def __init__(self, node: fx.Node, fake: torch.Tensor, place: Source, cls: type = torch.nn.Parameter) -> None:
        super().__init__(node, fake)
        self.cls = cls
        self.place = place

    def _grad(self, cx: Capture) -> Any:
        return self.overlay.get("grad", Const(None))


@dataclass(frozen=True, eq=False)
class ParameterCreation:
    """One creation.
    `data`: the data's fake.
    `last`: the last node of the graph at that time.
    `step`: of the root frame."""

    data: torch.Tensor
    made: Parameter
    last: fx.Node
    copied: bool
    step: int | None

    def is_seen(self, outputs: list[torch.Tensor]) -> bool:
        """Whether the program can see that the parameter does not share its data's memory."""
        memory = memory_of(self.data)
        both = {memory, memory_of(self.made.fake)}
        if not self.copied:
            return any(_writes(node, both) for node in self.last.graph.nodes)
        if any(t.layout is torch.strided and memory_of(t) == memory for t in outputs):
            return True
        used = written = False
        node = self.last
        while (node := node.next).op != "root":
            used |= _touches(node, {memory})
            written |= _writes(node, both)
        return used and written


def _touches(node: fx.Node, memory: set[int]) -> bool:
    found = [n.meta.get("example_value") for n in node.all_input_nodes]
    return any(isinstance(t, torch.Tensor) and t.layout is torch.strided and memory_of(t) in memory for t in found)


def _writes(node: fx.Node, memory: set[int]) -> bool:
    return bool(effects_of(node).mutates) and _touches(node, memory)


def make(cx: Capture, data: Tensor, cls: type = torch.nn.Parameter) -> Parameter:
    """A parameter that requires grad, or another leaf of class `cls`, whose data has no other holder."""
    graph, fake = cx.graph, data.fake
    plain = fake.layout is torch.strided and not data.is_special and not (fake.is_conj() or fake.is_neg())
    trains = fake.is_floating_point() or fake.is_complex()
    if (
        graph.is_inner
        or not plain
        or not trains
        or torch.is_inference_mode_enabled()
        or cx.inference.open
        or cx.inference.is_made(fake)
        or cx.facts.is_copy(fake)
    ):
        raise Break(KIND, f"nn.Parameter({data.describe()})")
    size, stride = (
        tuple(cx.make(n).const("as a size of a parameter") for n in ns) for ns in (fake.shape, fake.stride())
    )
    existing = [*(t.fake for t in graph.inputs), *(m.made.fake for m in graph.parameters)]
    given = {memory_of(t) for t in existing if t.layout is torch.strided}
    copied = memory_of(fake) not in given
    if copied and not has_no_overlap(size, stride):  # a copy cannot fill it
        raise Break(KIND, f"nn.Parameter({data.describe()}), whose elements share memory")
    place = DRAWN.item(len(cx.effects.draws))
    with cx.fake_mode, torch.no_grad():
        if copied:
            stands_for = torch.empty_strided(size, stride, dtype=fake.dtype, device=fake.device)
        else:
            stands_for = fake.detach()
        stands_for.requires_grad_()
    example: Callable[[Any], Any]
    if copied:
        kind = (size, stride, fake.dtype, fake.device)
        new = runtime_helpers.new_parameter if cls is torch.nn.Parameter else runtime_helpers.new_leaf
        cx.effects.draw(Builtin(new), [Const(k) for k in kind])
        example = functools.partial(_new, new, kind)
    else:
        whole = _existing(cx, data)
        assert whole.source is not None
        cx.effects.draw(Builtin(torch.nn.Parameter), [whole])
        example = functools.partial(_of_existing, whole.source)
    made = Parameter(graph.read(place, stands_for), stands_for, place, cls)
    graph.placeholders[made.node].make = example
    graph.by_fake[id(stands_for)] = made
    last = next(iter(reversed(graph.graph.nodes)))
    if copied:
        mark, happened = cx.facts.mark(), graph.happened
        graph.call_inner(higher_order.copy_into_leaf, [], [made, data], always=True)
        last = next(iter(reversed(graph.graph.nodes)))
        cx.facts.undo(mark)  # the parameter has no other holder yet
        graph.happened = happened
    graph.parameters.append(ParameterCreation(fake, made, last, copied, cx.step()))
    return made


def _new(new: Callable[..., torch.Tensor], kind: tuple[Any, ...], scope: Any) -> torch.Tensor:
    return new(*kind)


def _of_existing(source: Source, scope: Any) -> torch.nn.Parameter:
    return torch.nn.Parameter(read(source, scope))


def _existing(cx: Capture, data: Tensor) -> Tensor:
    """The existing tensor with this memory and layout."""
    fake = data.fake
    for i, value in enumerate(cx.graph.inputs):
        own = value.fake
        alike = own is fake or (
            own.layout is torch.strided
            and memory_of(own) == memory_of(fake)
            and (own.shape, own.stride(), own.dtype) == (fake.shape, fake.stride(), fake.dtype)
            and own.storage_offset() == fake.storage_offset()
        )
        if alike and own._version == cx.graph.versions[i] and value.source is not None and not value.is_special:
            return value
    raise Break(
        KIND, f"nn.Parameter({data.describe()}), whose data share an input's memory in another layout or version"
    )


def check(cx: Capture, outputs: list[torch.Tensor]) -> None:
    """Break at the end of the graph if the program can see the copy."""
    for making in cx.graph.parameters:
        if making.is_seen(outputs):
            raise Break(
                KIND,
                f"nn.Parameter({making.made.describe()}), whose data the program also uses under another name",
                making.step,
            )
