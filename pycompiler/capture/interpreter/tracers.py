"""Nested tracers: a function that the program passes on is traced into a graph of its own.

In: the capture in progress.
Out: a `Tracer`, which is the graph builder while `inner_tracer` lasts, and a graph module.
Example: ``with inner(cx, levels=True) as tracer: result = cx.call(fn, args, {})``, then ``tracer.close([...])``.

A tensor of an outer tracer that the function uses becomes an input of the inner graph ("lifted").  Size symbols,
numbers and generators are lifted, too.  An existing tensor first becomes an input of the outermost graph.  A tensor
of the inner graph that is used after the tracer's end breaks the graph.  So a leaked tensor is never wrong.  Effects
on Python objects happen once, while the function is traced, as in a single call.  Where the program may call the
function more often or not at all (`pure`), an effect on any older object breaks the graph.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.recording.graph import GraphBuilder
from pycompiler.capture.recording.nodes import remove_dead
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.opaque import Opaque
from pycompiler.capture.values.symbolic_numbers import Symbolic, is_unbacked
from pycompiler.capture.values.tensor import GraphOnly, Tensor
from pycompiler.ir.source import Source
from pycompiler.symbolic.number_nodes import symbol_of
from pycompiler.torch_compat import torch_state
from pycompiler.torch_compat.fake_mode import Layout, is_inference

Lifted = Tensor | GraphOnly | Symbolic | Opaque


def key_of_lifted(value: Lifted) -> object:
    """A key that identifies a lifted value: the node of a tensor, the name of a symbol, or a generator's identity."""
    if isinstance(value, Opaque):
        return value.identity()
    return value.node if isinstance(value, (Tensor, GraphOnly)) else str(symbol_of(value.sym))


class Tracer(GraphBuilder):
    """The graph of a function, called by a node of the surrounding graph."""

    def __init__(
        self,
        cx: Capture,
        outer: GraphBuilder,
        *,
        levels: bool,
        packs: bool,
        later: bool,
        before: Tracer | None,
        under: str,
    ) -> None:
        super().__init__(cx, outer.fake_mode)
        self.asker = outer.asker
        self.outer = outer
        self.before = before
        self.levels = levels or outer.levels
        self.packs = packs or outer.packs
        self.later = later or outer.later
        self.reentrant = outer.reentrant
        self.under = outer.under | {under} if under else outer.under
        self.calls = bool(under)  # whether only a transform of torch calls the graph, with any arguments
        self.indexes = outer.indexes
        self.given: list[tuple[fx.Node, torch.Tensor, int]] = []  # placeholders, their fakes and the fakes' versions
        self._own: list[fx.Node] = []  # placeholders of the function's own arguments
        self._mapped = set[fx.Node]()  # of these: the placeholders of slices
        self._lifted: dict[fx.Node, Lifted] = {}  # placeholder → its outer value
        self._lift: dict[object, fx.Node] = {}  # outer node, symbol or generator (`key_of_lifted`) → placeholder
        self.begun = self.facts.mark()
        self.once = levels and not later  # whether the function is called as often as in eager mode

    # inputs ---------------------------------------------------------------------------------------------------
    def argument(self, fake: torch.Tensor, *, mapped: bool = False) -> Tensor:
        """An argument of the function: a tensor with a new placeholder.  `mapped`: by a `vmap`."""
        value = Tensor(self._placeholder(f"arg_{len(self.given)}", fake), fake)
        self._own.append(value.node)
        self._mapped |= {value.node} if mapped else set()
        self.by_fake[id(fake)] = value
        return value

    def add_input(
        self,
        real: torch.Tensor,
        source: Source,
        layout: Layout | None = None,
        cls: type | None = None,
        fake: torch.Tensor | None = None,
    ) -> Tensor:
        return self.outer.add_input(real, source, layout, cls, fake)

    def apart(self, ragged: Tensor) -> None:
        self.outer.apart(ragged)

    def stands_for(self, fake: torch.Tensor, value: Tensor) -> None:
        self.outer.stands_for(fake, value)

    def is_written(self, value: Tensor) -> bool:
        return self.outer.is_written(value)

    def constant_tensor(self, real: torch.Tensor) -> Tensor:
        return self.outer.constant_tensor(real)

    def follows(self, value: Tensor) -> bool:
        return self.outer.follows(value)

    def known(self, fake: torch.Tensor) -> Tensor | None:
        beside = self.before.known(fake) if self.before else None
        return super().known(fake) or beside or self.outer.known(fake)

    def node_of(self, value: Tensor, *, leaves: bool = False) -> fx.Node:
        if value.parted:
            raise Break("inner-graph", f"{value.describe()}, whose data were replaced")
        if value.node.graph is self.graph:
            return value.node
        node = self._lift.get(value.node)
        if node is None:
            beside = self.before is not None and value.node.graph is self.before.graph
            if not beside:
                self.outer.node_of(value)  # breaks for a tensor of a tracer that has ended
            node = self._lift[value.node] = self._placeholder(f"lifted_{len(self._lift)}", value.fake)
            self._lifted[node] = value
        return node

    def number(self, value: Symbolic) -> Any:
        """The fx argument of a symbolic number.  An unbacked symbol breaks the graph: only the outer graph binds it, and
        checks its assumptions."""
        if is_unbacked(value.sym):
            return value.const("in an inner graph")
        return super().number(value)

    def _symbol(self, name: str) -> fx.Node:
        value = self.cx.make(self.cx.sizes.known_symbols.symbol(name))
        assert isinstance(value, Symbolic)
        if name not in self._lift:
            self._lift[name] = node = self._placeholder(f"lifted_{len(self._lift)}", value.sym)
            self._lifted[node] = value
        return self._lift[name]

    def generator(self, value: Opaque) -> fx.Node:
        if not self.once:
            raise Break(
                "inner-graph",
                "a generator of the program in a backward or a branch, which may draw from it several times or never",
            )
        outside = self.outer.generator(value)
        if value.identity() not in self._lift:
            node = self._placeholder(f"lifted_{len(self._lift)}", outside.meta["example_value"])
            self._lift[value.identity()], self._lifted[node] = node, value
        return self._lift[value.identity()]

    def draws_from(self, value: Opaque) -> bool:
        return self.outer.draws_from(value)

    def kept(self, value: GraphOnly) -> fx.Node:
        if value.node.graph is self.graph:
            return value.node
        if not self.calls:
            raise Break("inner-graph", f"{value.describe()}, in a checkpoint, a branch or a backward")
        self.outer.kept(value)
        if value.node not in self._lift:
            node = self._placeholder(f"lifted_{len(self._lift)}", value.node.meta["example_value"])
            self._lift[value.node], self._lifted[node] = node, value
        return self._lift[value.node]

    def _placeholder(self, name: str, example: Any) -> fx.Node:
        anchor = self._last_input
        with self.graph.inserting_before(self._first()) if anchor is None else self.graph.inserting_after(anchor):
            node = self._last_input = self.graph.placeholder(name)
        node.meta["example_value"] = example
        if isinstance(example, torch.Tensor):
            if is_inference(example):
                raise Break("inner-graph", "an inference tensor, whose writes no version counter counts")
            self.given.append((node, example, example._version))
        return node

    def is_mapped(self, tensor: Tensor) -> bool:
        # another transform: the wrapped tensor is checked instead
        if not self._mapped:
            return False
        if tensor.node.graph is not self.graph:
            return self.outer.is_mapped(tensor)
        todo, seen = [tensor.node], set[fx.Node]()
        while todo:
            node = todo.pop()
            outside = self._lifted.get(node)
            if node in self._mapped or (isinstance(outside, Tensor) and self.outer.is_mapped(outside)):
                return True
            if node not in seen:
                seen.add(node)
                todo += node.all_input_nodes
        return False

    # end ------------------------------------------------------------------------------------------------------
    def used_outside(self) -> list[Lifted]:
        """The lifted tensors and symbols."""
        return list(self._lifted.values())

    def close(
        self,
        results: list[Tensor],
        lifted: Sequence[Lifted] | None = None,
        *,
        writes: bool = False,
        may_write: Sequence[torch.Tensor] = (),
        keeps: Sequence[Tensor] = (),
    ) -> tuple[fx.GraphModule, list[Lifted]]:
        """The graph with these results, and its lifted values.  Lifted values follow the function's own arguments as
        inputs.

        `lifted`: the values to take as inputs, in order, used or not.
        `writes`: the function's arguments are views of the outer call's arguments, and may be written.
        `may_write`: outer fakes that the function may write; it uses no alias of them.
        `keeps`: values that stay lifted, used or not.
        """
        outputs = tuple(self.node_of(t) for t in results)
        kept = {self.node_of(t) for t in keeps}
        held = [
            (fake, version)
            for node, fake, version in self.given
            if (not writes or node in self._lifted) and all(fake is not t for t in may_write)
        ]
        if any(fake._version != version for fake, version in held) or self._writes(fake for fake, _ in held):
            raise Break("inner-graph", "the inner graph writes a tensor from outside")
        self.graph.output(outputs)
        remove_dead(self.graph)
        if lifted is not None:
            self._take(lifted)
        else:
            self._prune_lifted(kept)
        return fx.GraphModule(self.attributes, self.graph, class_name="InnerGraph"), list(self._lifted.values())

    def _prune_lifted(self, kept: Container[Any]) -> None:
        """Erase unused placeholders of lifted values, except `kept`."""
        for node in [n for n in self._lifted if not n.users and n not in kept]:
            self.graph.erase_node(node)
            del self._lifted[node]

    def _take(self, lifted: Sequence[Lifted]) -> None:
        """Replace the placeholders of lifted values by placeholders for `lifted`, in order, after the function's
        own."""
        places = {key_of_lifted(value): node for node, value in self._lifted.items()}
        anchor = self._own[-1] if self._own else self.graph._root
        for i, value in enumerate(lifted):
            with self.graph.inserting_after(anchor):
                anchor = self.graph.placeholder(f"operand_{i}")
            anchor.meta["example_value"] = self._stands_for(value)
            if (old := places.pop(key_of_lifted(value), None)) is not None:
                old.replace_all_uses_with(anchor)
                self.graph.erase_node(old)

    def _stands_for(self, value: Lifted) -> Any:
        if isinstance(value, Opaque):
            return self.outer.generator(value).meta["example_value"]
        if isinstance(value, GraphOnly):
            return value.node.meta["example_value"]
        return value.fake if isinstance(value, Tensor) else value.sym

    def _writes(self, held: Iterable[torch.Tensor]) -> bool:
        """Whether a call writes memory of these tensors without a change of their version (`x.data.add_`)."""
        return any(self.facts.is_written(t, self.begun) for t in held)


@contextmanager
def inner_tracer(
    cx: Capture,
    *,
    levels: bool = False,
    copies: bool = False,
    pure: bool = False,
    packs: bool = False,
    later: bool = False,
    before: Tracer | None = None,
    under: str = "",
    **started: Any,
) -> Iterator[Tracer]:
    """A tracer on top of the stack.

    `levels`: the graph will run under a transform.
    `copies`: the call gives copies of the transform's results.
    `pure`: see the module docstring.
    `packs`: the graph will run under a checkpoint.
    `later`: the graph will run in a backward, with an unknown grad mode.
    `before`: a tracer that has ended, whose tensors the graph may use.
    `under`: the name of torch's transform, if any.
    `started`: torch state at the start of the function.
    """
    if levels and not copies and torch.is_inference_mode_enabled():  # a level's result is no inference tensor
        raise Break("inner-graph", "a transform in inference mode")
    outer: GraphBuilder = cx.graph
    tracer = cx.graph = Tracer(cx, outer, levels=levels, packs=packs, later=later, before=before, under=under)
    state, functions = torch_state.read_state(), cx.functions.now()
    torch_state.write_state({**state, **started})
    begun = torch_state.read_state()
    mark, ended = cx.effects.begin(pure), False
    try:
        yield tracer
        if torch_state.read_state() != begun or cx.functions.now() != functions:
            raise Break("inner-graph", "the passed function leaves global torch state changed")
        ended = True
    except Raised as raised:
        raise Break("inner-graph", f"the passed function raises {raised.value.describe()}") from None
    finally:
        if not ended:  # nothing runs the graph
            cx.facts.undo(tracer.begun)
        cx.effects.end(mark)
        cx.graph = outer
        torch_state.write_state(state)


def mapped(cx: Capture, value: Value, fn: Callable[[Tensor], Value], other: Callable[[Value], Value]) -> Value:
    """A copy of a tree of tuples, lists and dicts: `fn` maps its tensors and `other` its other leaves, in order."""
    value = cx.realize(value)
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, Tuple) and (value.cls is tuple or hasattr(value.cls, "_fields")):
        return Tuple([mapped(cx, v, fn, other) for v in value.items], value.cls)
    if isinstance(value, List) and value.cls is list:
        return List([mapped(cx, v, fn, other) for v in value.items], value.cls)
    if isinstance(value, Dict) and value.cls in (dict, collections.OrderedDict):
        return Dict({cx.key(k): mapped(cx, v, fn, other) for k, v in value.pairs(cx)}, value.cls)
    return other(value)


def refused(value: Value) -> Value:
    """For `mapped`: break, since a leaf must be a tensor."""
    raise Break("inner-graph", f"{value.describe()} where a tensor is expected")


def tensors(cx: Capture, value: Value, other: Callable[[Value], Value] = refused) -> list[Tensor]:
    """The tensors of a tree, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    mapped(cx, value, note, other)
    return found


def tensors_of(lifted: Sequence[Lifted]) -> list[Tensor]:
    """The tensors among lifted values."""
    return [v for v in lifted if isinstance(v, Tensor)]


def lifted_of_all(*parts: Tracer) -> list[Lifted]:
    """The values that any of these functions lifts, each once."""
    return list({key_of_lifted(v): v for part in parts for v in part.used_outside()}.values())
