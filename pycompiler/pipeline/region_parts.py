"""A captured graph with equal regions (`ir/nested_regions.py`), cut into parts that are compiled separately.

In: a graph whose nodes name the region that made them, and its example inputs.
Out:
`split`: the parts in order, or None if the graph stays whole; `chained`: the callable that runs the compiled parts.
Example: 24 blocks, each a region, are compiled as one: `regions.py` finds the second to the last equal to the first.

At run time a cut is like a graph break.  The parts behind it get real tensors, and each part is an autograd node.  So
facts about these tensors must hold when the cut is reached.  Fakes do not show this if a tensor is written, or if
torch's state changes in between.  Such graphs stay whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from pycompiler import config, regions
from pycompiler.autograd.runtime import build_text
from pycompiler.ir.generated_source import drop_source_when_freed
from pycompiler.ir.nested_regions import REGION
from pycompiler.ir.node_effects import effects_of
from pycompiler.ir.plan import mark_lasting
from pycompiler.logs import stage
from pycompiler.operators.kernel_type_checks import memory_of, tensors_of
from pycompiler.torch_compat.fake_mode import fake_like

log = stage("dynamo")

Run = Callable[..., Sequence[Any]]


class NotSplit(Exception):
    """The reason why a graph is not cut."""


@dataclass(eq=False)
class RegionPart:
    """Consecutive nodes of the graph, as a graph of their own: `inputs` and `outputs` are nodes of the whole graph."""

    nodes: list[fx.Node]
    region: int | None
    inputs: list[fx.Node] = field(default_factory=list)
    outputs: list[fx.Node] = field(default_factory=list)
    module: Any = None
    examples: list[Any] = field(default_factory=list)

    @cached_property
    def key(self) -> Hashable:
        """Equal for equal parts; None if parts cannot be compared."""
        try:
            return regions.key_of(self.module, self.examples)
        except regions.NotShareable:
            return None


def split(gm: fx.GraphModule, examples: Sequence[Any]) -> list[RegionPart] | None:
    """See the module docstring."""
    marked = {n.meta[REGION] for n in gm.graph.nodes if REGION in n.meta}
    if len(marked) < 2 or not config.share_regions:
        return None
    try:
        return _Splitter(gm, examples).run()
    except NotSplit as why:
        log.info("regions are compiled in place: %s", why)
    except RuntimeError as error:  # autograd does not know a view's history
        log.info("regions are compiled in place: %s", error)
    return None


class _Splitter:
    def __init__(self, gm: fx.GraphModule, examples: Sequence[Any]) -> None:
        self.gm = gm
        self.placeholders = dict(zip(gm.graph.find_nodes(op="placeholder"), examples, strict=True))
        mode = detect_fake_mode(tuple(examples))
        if not isinstance(mode, FakeTensorMode):
            raise NotSplit("the graph has no tensors")
        self.mode = mode
        self.fakes: dict[fx.Node, Any] = {}
        self.calls = [n for n in gm.graph.nodes if n.op in ("call_function", "call_method")]

    def run(self) -> list[RegionPart] | None:
        self.check_calls()
        alone = self.parts({n: n.meta.get(REGION) for n in self.calls})
        counts = Counter(p.key for p in alone if p.region is not None and p.key is not None)
        alike = {p.region for p in alone if p.region is not None and counts[p.key] > 1}
        if not alike:
            raise NotSplit("no two regions are alike")
        if all(p.region is None or p.region in alike for p in alone):
            return alone
        return self.parts({n: r if (r := n.meta.get(REGION)) in alike else None for n in self.calls})

    # whether ------------------------------------------------------------------------------------------------------
    def check_calls(self) -> None:
        """Break off unless no call changes torch's state, sizes are numbers, and writes can be seen."""
        if torch.is_inference_mode_enabled():
            raise NotSplit("inference tensors have no version counter")
        for value in self.placeholders.values():
            if not isinstance(value, (FakeTensor, int, float, bool)):
                raise NotSplit(f"an input is a {type(value).__name__}")
        for node in self.calls:
            made = node.meta.get("example_value")
            found = tensors_of(made)
            if not found or any(t._has_symbolic_sizes_strides for t in found):
                raise NotSplit(
                    f"{node} changes torch's state"
                    if made is None
                    else f"{node} has symbolic sizes, or is not a tensor"
                )

    def check_crossing(self, node: fx.Node) -> None:
        """Require that facts about a value at the end of the capture held when it was computed."""
        made = node.meta.get("example_value")
        if not isinstance(made, FakeTensor) or type(made) is not FakeTensor or made.layout is not torch.strided:
            raise NotSplit(f"{node} is {type(made).__name__}")
        if made._version:
            raise NotSplit(f"{node} is written")
        if made.is_conj() or made.is_neg():
            raise NotSplit(f"{node} is a conjugated or negated view")

    def check_read(self, node: fx.Node) -> None:
        """Check an input of several parts: later parts would not know of a gradient that a write gives it."""
        made = node.meta.get("example_value")
        if isinstance(made, torch.Tensor) and made._version and made.requires_grad:
            raise NotSplit(f"{node}, which has gradients, is written")

    # parts --------------------------------------------------------------------------------------------------------
    def parts(self, region_of: dict[fx.Node, int | None]) -> list[RegionPart]:
        """Cut where the region changes."""
        found: list[RegionPart] = []
        for node, region in region_of.items():
            if not found or found[-1].region != region:
                found.append(RegionPart([], region))
            found[-1].nodes.append(node)
        place = {n: i for i, p in enumerate(found) for n in p.nodes}
        for i, part in enumerate(found):
            for node in part.nodes:
                reads = [n for n in node.all_input_nodes if n.op != "get_attr" and place.get(n) != i]
                part.inputs += [n for n in dict.fromkeys(reads) if n not in part.inputs]
                if any(place.get(user) != i for user in node.users):
                    part.outputs.append(node)
            self.build(part)
        self.check_errors(found)
        return found

    def check_errors(self, found: list[RegionPart]) -> None:
        """Require that no part raises behind a part that writes an input: a graph that raises has written none, so its
        frame can run again."""
        given = _memories(n.meta.get("example_value") for n in self.placeholders)
        written = False
        for part in found:
            if written and any(effects_of(n).refuses for n in part.nodes):
                raise NotSplit("a part that may raise follows a part that writes")
            written |= any(effects_of(n).mutates and not given.isdisjoint(_given(n)) for n in part.nodes)

    def build(self, part: RegionPart) -> None:
        for node in part.outputs:
            self.check_crossing(node)
        graph, env = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in part.inputs:
            self.check_read(node)
            env[node] = graph.placeholder(node.name)
            env[node].meta["example_value"] = node.meta.get("example_value")
        held: dict[str, Any] = {}
        for node in part.nodes:
            for body in node.all_input_nodes:
                if body.op == "get_attr" and body not in env:
                    held[str(body.target)] = getattr(self.gm, str(body.target))
                    env[body] = graph.node_copy(body)
            env[node] = graph.node_copy(node, env.__getitem__)
            env[node].meta.pop(REGION, None)
        graph.output(tuple(env[n] for n in part.outputs))
        part.module = fx.GraphModule(held, graph, class_name="CapturedGraph")
        part.module.meta.update(self.gm.meta)
        drop_source_when_freed(part.module)
        part.examples = [self.example(n) for n in part.inputs]

    def example(self, node: fx.Node) -> Any:
        """The example of a part's input."""
        if node in self.placeholders:
            return self.placeholders[node]
        if node not in self.fakes:
            made = node.meta["example_value"]
            lies = made.size(), made.stride(), made.storage_offset()
            fake = fake_like(self.mode, *lies, made.dtype, made.device)
            if made.requires_grad:
                with self.mode, torch.enable_grad():
                    fake = fake.requires_grad_().clone(memory_format=torch.preserve_format).as_strided(*lies[:2])
            self.fakes[node] = fake
        return self.fakes[node]


def _memories(values: Iterable[Any]) -> set[int]:
    return {memory_of(t) for t in tensors_of(list(values)) if t.layout is torch.strided}


def _given(node: fx.Node) -> set[int]:
    """The memory of a call's arguments."""
    return _memories(n.meta.get("example_value") for n in node.all_input_nodes)


def chained(gm: fx.GraphModule, parts: Sequence[RegionPart], made: Sequence[Run]) -> Run:
    """The callable of the graph's inputs that runs the parts; a value is released after the last part that reads it."""
    names = {n: f"args[{i}]" for i, n in enumerate(gm.graph.find_nodes(op="placeholder"))}
    returned = list(gm.graph.output_node().args[0])  # type: ignore[arg-type]
    last = {n: i for i, p in enumerate(parts) for n in p.inputs} | dict.fromkeys(returned, len(parts))
    lines = ["def run(*args):"]
    for i, part in enumerate(parts):
        names |= {n: f"v{i}_{k}" for k, n in enumerate(part.outputs)}
        results = " ".join(f"{names[n]}," for n in part.outputs)
        call = f"part{i}({', '.join(names[n] for n in part.inputs)})"
        lines += ["    try:"] if i == 1 else []
        pad = "        " if i else "    "
        lines.append(f"{pad}{results} = {call}" if results else f"{pad}{call}")
        gone = [
            names[n]
            for n in dict.fromkeys([*part.inputs, *part.outputs])
            if last.get(n, i) == i and n.op != "placeholder"
        ]
        lines += [f"{pad}del {', '.join(gone)}"] if gone else []
    text = " ".join("None," if n is None else f"{names[n] if isinstance(n, fx.Node) else repr(n)}," for n in returned)
    if len(parts) > 1:
        lines += ["    except BaseException as error:", "        behind_others(error)", "        raise"]
    lines.append(f"    return ({text})")
    scope: dict[str, Any] = {f"part{i}": run for i, run in enumerate(made)} | {"behind_others": mark_lasting}
    return build_text("run", "\n".join(lines) + "\n", scope)  # type: ignore[no-any-return]
