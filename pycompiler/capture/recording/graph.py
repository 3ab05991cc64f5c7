"""The graph under construction: fx nodes, fake tensors, inputs.

In: values and torch functions.  Out: `Tensor` values (or constants), and at the end an `fx.GraphModule` whose
placeholders carry `meta["example_value"]`.
"""

from __future__ import annotations

import contextlib
import itertools
import keyword
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    FakeTensor,
)

from pycompiler import config
from pycompiler.capture.breaks import Break
from pycompiler.capture.effects.fact_log import IndexCopy
from pycompiler.capture.recording.call_arguments import (
    OwnTensors,
    dtype_of,
    follows_from_metadata,
    makes_tensors,
    method_named,
    mutable,
    plain_constant,
)
from pycompiler.capture.recording.constant_tensors import KnownTensors
from pycompiler.capture.recording.conversion_checks import convert
from pycompiler.capture.recording.data_errors import EXPECTED
from pycompiler.capture.recording.fake_calls import CallEffects, RecordedCall, StateBefore, run
from pycompiler.capture.recording.nodes import examples, has_tensor, name_of, operands_of, remove_dead
from pycompiler.capture.recording.unbacked_bindings import NumberArgument, UnbackedBindings
from pycompiler.capture.values.array import Array
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.sequences import List, Slice, Tuple
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.opaque import Opaque
from pycompiler.capture.values.symbolic_numbers import NestedInt, Symbolic
from pycompiler.capture.values.tensor import GraphOnly, Tensor
from pycompiler.ir import higher_order
from pycompiler.ir.cuda_graph_override import OVERRIDE
from pycompiler.ir.nested_regions import REGION
from pycompiler.ir.node_effects import NodeEffects, effects_of
from pycompiler.ir.source import Source
from pycompiler.ir.weak_guards import weak_source
from pycompiler.operators import flex_attention
from pycompiler.operators.kernel_type_checks import memory_of, tensors_of
from pycompiler.operators.process_groups import IN_FLIGHT
from pycompiler.operators.result_strides import StrideProbe, layouts
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.size_nodes import SizeNodes
from pycompiler.symbolic.symbols import expr_of, is_symbolic
from pycompiler.torch_compat import jagged_tensors
from pycompiler.torch_compat.fake_mode import Layout, as_plain, fake_of, is_plain
from pycompiler.torch_compat.tensor_subclasses import flatten, is_tensor_subclass

if TYPE_CHECKING:
    from pycompiler.torch_compat.fake_mode import FakeMode


@dataclass
class GraphInput:
    """A placeholder, the source of its real value (a tensor, number or generator), and its fake."""

    node: fx.Node
    source: Source
    fake: Any
    layout: Layout | None = None
    aliased: bool = False  # the graph gets an alias of class torch.Tensor
    make: Callable[[Any], Any] | None = None  # creates a value that generated code makes, in this scope
    at: int | None = None  # its index among the tensors


def _replaced(cx: Capture, value: Value, tensor: Tensor, number: Value) -> Value:
    """An argument with the number in place of the tensor it was read from."""
    value = cx.realize(value)
    if value is tensor:
        return number
    if isinstance(value, Slice):
        parts = [_replaced(cx, v, tensor, number) for v in value.parts]
        return Slice(parts) if any(a is not b for a, b in zip(parts, value.parts, strict=True)) else value
    if isinstance(value, (Tuple, List)) and value.cls in (tuple, list):
        items = [_replaced(cx, v, tensor, number) for v in value.items]
        return (
            cx.sequence(items, value.cls) if any(a is not b for a, b in zip(items, value.items, strict=True)) else value
        )
    return value


class GraphBuilder:
    """Collects the calls of one frame."""

    def __init__(self, cx: Capture, fake_mode: FakeMode) -> None:
        self.cx = cx
        self.fake_mode = fake_mode
        self.asker = StrideProbe()
        self.graph = fx.Graph()
        self.inputs: list[Tensor] = []
        self.attributes: dict[str, Any] = {}
        self.ragged: dict[Tensor, None] = {}  # existing offsets or lengths of jagged tensors
        self.whole: dict[Tensor, None] = {}  # offsets whose values the graph reads
        self.by_fake: dict[int, Tensor] = {}
        self._names: set[str] = set()
        self._last_input: fx.Node | None = None
        self.versions: dict[int, int] = {}
        self.placeholders: dict[fx.Node, GraphInput] = {}
        self.generators: dict[object, fx.Node] = {}  # by identity
        self.numbers = SizeNodes(self.graph, self._symbol)
        self.bound: UnbackedBindings[Tensor] = UnbackedBindings(self.graph, cx.sizes, self.by_fake)
        self.facts = cx.facts
        self.happened = False  # an operation that cannot be repeated
        self.folded = KnownTensors(self.facts)
        self.named: set[fx.Node] = set()  # symbols in the sizes of inputs
        self.used: list[GraphInput] = []  # inputs of the finished graph
        self.in_region = self.regions = 0  # current nesting of regions, and their number so far
        # Whether an operator returned its argument, which other strides may change (with `levels`).
        self.doubtful = False
        self.held: dict[int, tuple[Any, Value]] = {}  # immutable attributes of tensor subclasses, and their values
        # How the program created some parameters (`capture/library/gradients/parameters.py`).
        self.parameters: list[Any] = []
        # By id of the memo: the memo and the tensors that `copy.deepcopy` copied.
        self.copied: dict[int, tuple[Value, list[Tensor]]] = {}
        # See `capture/library/gradients/requires_grad.py`.
        self.turned: dict[Tensor, dict[bool, tuple[fx.Node, torch.Tensor]]] = {}
        self.flipped_at: dict[Tensor, int | None] = {}  # the step of the first of these changes
        # Tensors that the program turned into leaves, and the steps.
        self.leaves: list[tuple[torch.Tensor, int | None]] = []
        # Results whose gradients the program retains, and the steps.
        self.retained: list[tuple[Tensor, int | None]] = []
        self.spent = set[Any]()  # autograd nodes of fakes that a backward has passed
        # Autograd nodes of fakes, and the hooks on them: `capture/library/gradients/backward_hooks.py`.
        self.hooks: dict[Any, Any] = {}
        self.descending = False  # whether a backward is running through them
        self.levels = (
            False  # whether tensors are wrapped when the graph runs (a transform's body, `interpreter/tracers.py`)
        )
        self.packs = False  # whether saved tensors are packed when the graph runs (a checkpoint's body)
        self.reentrant = False  # whether the graph runs with grad mode off before it runs with it on
        self.later = False  # whether the graph runs in a backward, with an unknown grad mode
        self.lands = False  # whether the current call is a wait for a collective
        self.under = frozenset[str]()  # the transforms that the graph will run under
        self.indexes = False  # whether an integer tensor is an index whose number is never read (`flex_attention`)

    @property
    def is_inner(self) -> bool:
        """Whether the graph runs inside of another call: of an outer graph, or of a transform around the frame."""
        return self.levels or hasattr(self, "outer")

    # inputs ---------------------------------------------------------------------------------------------------
    def add_input(
        self,
        real: torch.Tensor,
        source: Source,
        layout: Layout | None = None,
        cls: type | None = None,
        fake: torch.Tensor | None = None,
    ) -> Tensor:
        """A placeholder for an existing tensor.  Placeholders come first, in order of first use.

        For a class with `__torch_function__` (`cls`) the graph gets a plain alias; a tensor subclass goes in unchanged.
        """
        wrapper = cls is not None and is_tensor_subclass(cls)
        if fake is None:
            plain = real if cls is None or wrapper else as_plain(real)
            if self.levels and plain.requires_grad and is_plain(plain):
                plain = plain.detach()
            fake = fake_of(self.fake_mode, plain, layout)
        node = self.read(source, fake)
        self.placeholders[node].layout = layout
        self.placeholders[node].aliased = cls is not None and not wrapper
        self.placeholders[node].at = len(self.inputs)
        value = Tensor(node, fake, real, cls)
        value.source = source
        self.inputs.append(value)
        self.by_fake[id(fake)] = value
        self.versions[len(self.inputs) - 1] = fake._version
        self.facts.add_input(fake, real)
        return value

    def generator(self, value: Opaque) -> fx.Node:
        """The placeholder of a program's generator: operators draw from it when the graph runs, in the program's order."""
        node = self.generators.get(value.identity())
        if node is None:
            assert value.source is not None
            device = value.getattr(self.cx, "device").const()
            node = self.generators[value.identity()] = self.read(value.source, torch.Generator(device))
        return node

    def draws_from(self, value: Opaque) -> bool:
        """Whether an operator of any graph takes this generator."""
        return value.identity() in self.generators

    def _symbol(self, name: str) -> fx.Node:
        """A placeholder for a size, or an integer argument."""
        if name in self.bound.readings:
            return self.bound.node_of(name)
        symbols, source = self.cx.sizes.known_symbols, self.cx.sizes.source_of(name)
        return self.read(source, symbols.symbol(name))

    def takes_items(self) -> bool:
        """Whether reads of numbers from tensors are captured."""
        return bool(config.capture_scalar_outputs)

    def _bind(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operator whose result depends on data, or NotImplemented."""
        if func is torch.ops.aten._local_scalar_dense.default and self.known_number(args[0]) is not None:
            raise NumberArgument(args[0], str(func))
        errors = self.cx.errors_of_data
        made = self.bound.bind(self.fake_mode, func, args, kwargs, inner=hasattr(self, "outer"), happened=self.happened)
        errors.redraws |= made is not NotImplemented and bool(errors.done.draws)
        return made

    def read(self, source: Source, fake: Any) -> fx.Node:
        """A placeholder for the value at `source`."""
        anchor = self._last_input
        ctx = self.graph.inserting_after(anchor) if anchor is not None else self.graph.inserting_before(self._first())
        with ctx:
            node = self.graph.placeholder(self._fresh(source))
        self._last_input = node
        node.meta["example_value"] = fake
        node.meta["source"] = weak_source(source)  # the graph outlives the capture
        self.placeholders[node] = GraphInput(node, source, fake)
        return node

    def _first(self) -> fx.Node:
        return next(iter(self.graph.nodes), self.graph._root)

    def _fresh(self, source: Source) -> str:
        text = source.name
        for junk in ("L['", "']", "vars(", ")", ".cell_contents", "__mro__", "_parameters", "_modules", "_buffers"):
            text = text.replace(junk, "_" if junk in ("']", ".cell_contents") else "")
        name = "".join(c if c.isalnum() else "_" for c in text).strip("_") or "arg"
        while "__" in name:
            name = name.replace("__", "_")
        # The end distinguishes deep sources.  Names that still collide (`a.b` and `a_b`) get a number.
        name = f"l_{name[-100:].strip('_')}"
        numbered = (f"{name}_{i}" for i in itertools.count(2))
        fresh = next(n for n in itertools.chain([name], numbered) if n not in self._names)
        self._names.add(fresh)
        return fresh

    # calls ----------------------------------------------------------------------------------------------------
    def call_function(
        self, target: Callable[..., Any], args: list[Value], kwargs: dict[str, Value], *, always: bool = False
    ) -> Value:
        found = self.cx.functions.ask(target, args, kwargs)
        if found is not None:
            return found
        if self.cx.device and makes_tensors(target) and self.cx.is_none(kwargs.get("device", Const(None))):
            kwargs = {**kwargs, "device": Const(self.cx.device)}
        if target is operator.pow and isinstance(args[0], Const) and str(args[0].value).startswith("-"):
            target = torch.pow  # printed, the graph would read -2.0 ** x, which is -(2.0 ** x)
        return self._call("call_function", target, target, args, kwargs, always)

    def call_whole(self, target: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A function of the program as one node.  A tensor of its own that requires grad breaks: it would get no gradient."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with OwnTensors():
                return target(*map(mutable, args), **{k: mutable(v) for k, v in kwargs.items()})

        if self.cx.device:
            raise Break("global-state", "a function put into the graph while a default device is set")
        return self._call("call_function", target, run, args, kwargs, False, whole=True)

    def call_method(self, name: str, args: list[Value], kwargs: dict[str, Value], *, always: bool = False) -> Value:
        return self._call("call_method", name, method_named(name), args, kwargs, always)

    def index_mapped(self, tensor: Tensor, key: Value) -> Value:
        """``tensor[key]`` with integer tensors that `vmap` maps: their numbers are never read."""
        return self._call(
            "call_function", higher_order.index_mapped, higher_order.index_mapped, [tensor, key], {}, False
        )

    def indexed(self, tensor: Tensor, indices: list[Value]) -> Value:
        """``tensor[indices]`` for integers and integer tensors."""
        return self._call(
            "call_function", flex_attention.indexed, flex_attention.indexed, [tensor, *indices], {}, False
        )

    def pick(self, tensor: Tensor, dim: int, index: Value) -> Tensor | None:
        """A copy of the result of `select` with an integer tensor; None if its layout would differ."""
        fake, place = tensor.fake, self.to_arg(index)
        alike = fake.layout is torch.strided and fake.device.type == place.meta["example_value"].device.type == "cpu"
        outer = fake.shape[:dim]
        if not alike or not fake.is_contiguous() or not all(type(n) is int and n == 1 for n in outer):
            return None
        if fake.is_conj() or fake.is_neg():
            return None
        # Saved for the backward, while eager saves only the number.
        kept = fake.requires_grad and torch.is_grad_enabled()
        if kept or place.meta["example_value"].dtype not in (torch.int64, torch.int32):
            index = self.call_method("to", [index, Const(torch.int64)], {"copy": Const(kept)})
        made = self.call_function(torch.ops.aten.index.Tensor, [tensor, List([*[Const(None)] * dim, index])], {})
        assert isinstance(made, Tensor)
        self.facts.copies.append(IndexCopy(self.facts.storage(made.fake), self.facts.storage(fake), self.cx.step()))
        return made

    def is_mapped(self, tensor: Tensor) -> bool:
        """Whether `vmap` passes a different slice to each call of a function."""
        return False

    def call_inner(
        self, target: Callable[..., Any], bodies: list[fx.GraphModule], args: list[Any], *, always: bool = False
    ) -> Value:
        """`target(*bodies, *args)`, a function of `ir/higher_order.py`.  Values among `args` become nodes."""
        nodes = [*(self.submodule(b) for b in bodies), *(self.to_arg(a) if isinstance(a, Value) else a for a in args)]
        made = self._record(RecordedCall("call_function", target, target, nodes, {}, always=always))
        self._note_bodies(target)
        return made

    def _note_bodies(self, target: Callable[..., Any]) -> None:
        """Assign bodies that run again to the call just recorded, or to the call that contains it."""
        made = (
            None
            if hasattr(self, "outer")
            else next((n for n in reversed(self.graph.nodes) if n.target is target), None)
        )
        if made is not None:  # a call without tensors is no node
            self.cx.effects.looks.called(made)

    def place_inner(
        self, target: Callable[..., Any], bodies: list[fx.GraphModule], args: list[Any], results: list[Tensor]
    ) -> None:
        """Like `call_inner`, for known results: from now on they are this graph's tensors."""
        nodes = [*(self.submodule(b) for b in bodies), *(self.to_arg(a) if isinstance(a, Value) else a for a in args)]
        node = self.graph.call_function(target, tuple(nodes))
        made = tuple(t.fake for t in results)
        given = [n for n in operands_of(nodes, {}) if isinstance(n.meta["example_value"], torch.Tensor)]
        self.cx.inference.look(name_of(target), examples(given), made)
        node.meta["example_value"], node.meta["strides"], node.meta["user"] = made, layouts(made), self.cx.user_stack
        inside = [effects_of(n) for body in bodies for n in body.graph.nodes]
        node.meta["effects"] = NodeEffects(acts=any(e.acts for e in inside), lasts=any(e.lasts for e in inside))
        self._note_bodies(target)
        for i, value in enumerate(results):
            value.node = self.graph.call_function(operator.getitem, (node, i))
            value.node.meta["example_value"] = value.fake
            self.by_fake[id(value.fake)] = value

    @contextlib.contextmanager
    def region(self) -> Iterator[None]:
        """A region: the nodes created inside belong together.  Of nested regions only the outermost counts.

        Nodes of a call that binds unbacked symbols belong to no region: the outer graph checks the assumptions on them.
        """
        backwards = iter(reversed(self.graph.nodes))  # in torch 2.11 `reversed` returns no iterator
        last, depth = next(backwards, self.graph._root), self.in_region
        self.in_region += 1
        try:
            yield
        finally:
            self.in_region = depth
        made = []
        while (last := last.next) is not self.graph._root:
            made.append(last)
        if depth == 0 and not any("binds" in n.meta for n in made):
            self.regions += 1
            for node in made:
                node.meta[REGION] = self.regions

    def submodule(self, body: fx.GraphModule) -> fx.Node:
        """The get_attr node of an inner graph."""
        name = f"body_{len(self.attributes)}"
        self.attributes[name] = body
        node = self.graph.get_attr(name)
        node.meta["example_value"] = body
        return node

    def _call(
        self,
        op: str,
        target: Any,
        run: Any,
        args: list[Value],
        kwargs: dict[str, Value],
        always: bool,
        *,
        whole: bool = False,
    ) -> Value:
        args, kwargs = convert(self.cx, target, args, kwargs)
        if any(map(keyword.iskeyword, kwargs)):
            args, kwargs = _by_position(target, args, kwargs)
        nodes = [self.to_arg(a) for a in args]
        knodes = {k: self.to_arg(a) for k, a in kwargs.items()}
        if not (isinstance(target, types.FunctionType) and str(target.__module__).partition(".")[0] != "torch"):
            nodes, knodes = [dtype_of(a) for a in nodes], {k: dtype_of(a) for k, a in knodes.items()}
        elif any(isinstance(a, type) for a in (*nodes, *knodes.values())):
            raise Break("unsupported-operation", f"a class as an argument of {name_of(target)}")
        try:
            call = RecordedCall(op, target, run, nodes, knodes, always=always, whole=whole)
            return self._record(call, [*args, *kwargs.values()])
        except NumberArgument as reads:
            again = None if whole else self._with_number(op, target, self.by_fake.get(id(reads.fake)), args, kwargs)
            if again is None:
                raise
        return self.cx.call(*again)

    def _with_number(
        self, op: str, target: Any, tensor: Tensor | None, args: list[Value], kwargs: dict[str, Value]
    ) -> tuple[Value, list[Value], dict[str, Value]] | None:
        """The program's call with the number in place of the tensor; None if the tensor is no argument."""
        if tensor is None or (op == "call_method" and args[0] is tensor):
            return None
        direct = [v for v in map(self.cx.realize, (*args, *kwargs.values())) if isinstance(v, Tensor)]
        if sum(v is tensor for v in direct) > 1 and any(v is not tensor for v in direct):
            return None  # `torch.add(x, n, alpha=n)`: as an operand a number has another dtype
        number = self.known_number(tensor.fake) or self.call_method("item", [tensor], {})
        given = [_replaced(self.cx, a, tensor, number) for a in args]
        named = {k: _replaced(self.cx, a, tensor, number) for k, a in kwargs.items()}
        if all(a is b for a, b in zip((*args, *kwargs.values()), (*given, *named.values()), strict=True)):
            return None
        return (
            (self.cx.make(target), given, named)
            if op == "call_function"
            else (given[0].getattr(self.cx, target), given[1:], named)
        )

    def _record(self, call: RecordedCall, given: Sequence[Value] = ()) -> Value:
        """Run the call on fakes, and add it to the graph.  If it returns a list of `given`, the result is that value."""
        self._check_operands(call)
        self._check_layout(call)
        if call.name == "detach_":
            self._check_detached(call)
        before = StateBefore(self.fake_mode, call)
        self.bound.begin(call.target)
        self.fake_mode.foreign = ()
        result, heard = run(self.fake_mode, self.cx.sizes, call, self._bind)
        did = before.did(result)
        late = self._note_writes(call, before, did)
        self._check_gradients(call, before)
        around = bool(before.wrappers) or any(is_tensor_subclass(type(t)) for t in tensors_of(result))
        if self.fake_mode.shape_env is None and not around:
            ordinary, once = not did.counts.others, did.counts.once > 0
            self.asker.lay(call.target, call.run, call.fakes, call.kfakes, result, ordinary=ordinary, once=once)
        self.cx.inference.look(call.name, examples(call.operands), tensors_of(result))
        self.happened |= call.always or did.mutates or (did.counts.once > 0 and not did.draws_only)
        if not (call.always or did.mutates or did.acts or self.levels):
            self.folded.note(call, result)
        self._note_errors(call, did, result, late)
        self.cx.of_operators.note(self.fake_mode.foreign, self.cx.by_id, self.cx.effects)
        if not (call.always or did.mutates or did.acts or self.bound.binding or has_tensor(result)):
            if call.operands and not follows_from_metadata(result, call.op):
                raise Break("operator-failed", f"{call.name} returns a {type(result).__name__}")
            return self.cx.make(result)
        known = self.known(result) if isinstance(result, torch.Tensor) else None
        self._check_levels(call, did, result, known)
        node = self._add(call, did, result, self.cx.warned_by(call, heard, result))
        if known is not None:  # an in-place operator: the result is its argument
            return known
        if given and isinstance(result, (list, tuple)):
            fakes = (*call.fakes, *call.kfakes.values())
            if (same := next((v for v, fake in zip(given, fakes, strict=True) if fake is result), None)) is not None:
                return same
        value = self.from_result(result, node)
        if self.bound.binding:
            self.numbers.known |= self.bound.note(node, result)
        return value

    def _check_operands(self, call: RecordedCall) -> None:
        if not self.lands and any(IN_FLIGHT in n.meta for n in call.operands):
            raise Break("unsupported-operation", f"{call.name} of a collective's result that was not waited for")
        # Fake tensors would accept it.
        if any(jagged_tensors.is_nested_int(n.meta["example_value"]) for n in call.given):
            if not any(is_tensor_subclass(type(n.meta["example_value"])) for n in call.operands):
                raise Break("tensor-subclass", f"{call.name} of the size of a ragged dimension")

    def _check_layout(self, call: RecordedCall) -> None:
        """Break if an in-place view operator changes the layout of an input that must keep it.

        A gradient set after the graph must have the tensor's layout at that time.  For a class with
        `__torch_function__` the graph holds an alias, and only the alias would change.
        """
        name = call.name.partition(".")[0]
        packet: Any = getattr(torch.ops.aten, name, None) if name.endswith("_") and call.operands else None
        value = None if packet is None else self.known(call.operands[0].meta["example_value"])
        if value is None or not value.exists or not isinstance(packet, torch._ops.OpOverloadPacket):
            return
        if not any(torch.Tag.inplace_view in getattr(packet, o).tags for o in packet.overloads()):  # type: ignore[no-untyped-call]
            return
        if isinstance(value.overlay.get("grad"), Tensor):
            raise Break("unsupported-operation", f"{name} of {value.describe()}, whose .grad the frame has set")
        if value.cls is not None and not value.wrapper and name != "detach_":
            raise Break("tensor-subclass", f"{name} of a {value.cls.__qualname__}, which the graph uses by an alias")

    def _note_writes(self, call: RecordedCall, before: StateBefore, did: CallEffects) -> bool:
        """Record the writes of a call.  Returns whether it may raise an error of data after a write to inputs."""
        name, facts = call.name, self.facts
        if did.counts.writes and not did.mutates and _below_versions():
            raise Break("unsupported-operation", f"{name}, which may write, where version counters are off")
        if before.wrappers and not before.writes_in_place(did.mutates, self._write_around):
            raise Break("tensor-subclass", f"{name}, which writes, on a {type(before.wrappers[0]).__name__}")
        late = did.refuses and (did.mutates or call.always or facts.lasts)
        if before.resizes:
            raise Break("unsupported-operation", f"{name}, which resizes its `out` tensor")
        if not did.mutates:
            if call.always:
                facts.write(name, [])
            return late
        written = examples(did.written)
        drops = not any(t.is_complex() for t in written)
        if drops and any(type(a) is complex for a in call.arguments):  # eager raises, fake tensors do not
            raise Break("operator-failed", f"{name}, which writes a complex number to a real tensor")
        checked = any(map(facts.may_refuse, written))  # checked before the write
        late |= checked and facts.lasts
        did.refuses |= checked
        did.lasts = facts.write(name, did.written, lasts=hasattr(self, "outer"))
        if self.levels and not hasattr(self, "outer"):  # aliases are unknown, and a rejected graph runs again
            raise Break("inner-graph", f"{name}, which writes, under a transform")
        return late

    def _write_around(self) -> None:
        """Count a write of a tensor subclass for its inner tensors that are inputs too."""
        written = {
            t.source for t, version in zip(self.inputs, self.versions.values(), strict=True)
            if t.wrapper and t.source is not None and t.version != version
        }  # fmt: skip
        for t in self.inputs:
            at = None if t.source is None else t.source.base
            while at is not None:
                if at in written:
                    torch.autograd.graph.increment_version(t.fake)
                    break
                at = at.base

    def _check_gradients(self, call: RecordedCall, before: StateBefore) -> None:
        """Break if a call cuts a tensor off from its history: neither values nor operators could show it."""
        cut = bool(self.levels) and call.name.endswith("detach_")
        if cut or any(not n.meta["example_value"].requires_grad for n in before.tracked):
            raise Break("unsupported-operation", f"{call.name} of a tensor that requires grad")

    def _check_detached(self, call: RecordedCall) -> None:
        """detach_ raises for a view.  Guard that an existing tensor is no view."""
        (node,) = call.operands
        given = next((t for t in self.inputs if t.node is node), None)
        if given is None:
            if node.meta["example_value"]._is_view():
                self.cx.evaluate_raw(lambda: torch.empty(1, device="cpu").view(1).detach_())
        elif given.real is None or given.source is None or given.real._base is not None:
            raise Break("unsupported-operation", "detach_ of a view")
        else:
            self.cx.guard("id_is", given.source.attr("_base"), None)

    def _note_errors(self, call: RecordedCall, did: CallEffects, result: Any, late: bool) -> None:
        errors, counts = self.cx.errors_of_data, did.counts
        errors.note(
            refuses=did.refuses, fails=counts.fails > 0, acts=counts.tells > 0, meets=counts.meets > 0,
            draws=[t.device for t in tensors_of((result, call.fakes, call.kfakes))] if did.drawn else (),
            frames=self.cx.frames, effects=bool(self.cx.effects),
        )  # fmt: skip
        errors.late |= late

    def _check_levels(self, call: RecordedCall, did: CallEffects, result: Any, known: Tensor | None) -> None:
        """Break for calls whose result may differ where tensors are wrapped at run time: fakes are not wrapped."""
        if known is not None and not did.mutates:
            self.doubtful |= self.levels
        if not self.levels or hasattr(self, "outer"):
            return
        if any(t.requires_grad for t in tensors_of(result)):
            raise Break("inner-graph", f"{call.name} returns a tensor that requires grad, in a graph without autograd")
        if self.cx.errors_of_data.levelled and known is not None and not did.mutates:
            raise Break("inner-graph", f"{call.name} returns its argument, but may return a copy for other strides")

    def _add(self, call: RecordedCall, did: CallEffects, result: Any, warns: Sequence[str]) -> fx.Node:
        node = self.graph.create_node(call.op, call.target, tuple(call.args), call.kwargs)
        node.meta["example_value"], node.meta["strides"] = result, layouts(result)
        node.meta["user"] = self.cx.user_stack
        node.meta["writes"], wrote = did.written, did.counts.writes > 0
        unseen = wrote and not did.mutates
        lasts = did.lasts or did.drawn or did.python or did.counts.tells > 0 or call.always or unseen
        node.meta["effects"] = NodeEffects(
            mutates=did.mutates or call.always, wrote=wrote, acts=did.acts, python=did.python, draws=did.draws_only,
            refuses=did.refuses, lasts=lasts, warns=tuple(warns),
        )  # fmt: skip
        return node

    def is_given(self, value: Tensor) -> bool:
        """Whether it shares memory with an input."""
        return hasattr(self, "outer") or self.facts.reaches_inputs((value.fake,))

    def known(self, fake: torch.Tensor) -> Tensor | None:
        """The value with this fake, if there is one."""
        return self.by_fake.get(id(fake))

    def stands_for(self, fake: torch.Tensor, value: Tensor) -> None:
        """Register `fake` as a second fake of an input's value."""
        self.by_fake[id(fake)] = value

    def follows(self, value: Tensor) -> bool:
        """Whether it is a view, without a history, of a tensor whose requires_grad flag has changed since.

        See `capture/library/gradients/requires_grad.py`: the view's flag has changed with it.
        """
        base = value.base if self.turned else None
        owner = None if base is None else self.known(base)
        return owner in self.turned and owner.fake is not base and value.grad_fn is None  # type: ignore[union-attr]

    def node_of(self, value: Tensor, *, leaves: bool = False) -> fx.Node:
        """The node of this graph for a tensor, which is used, or `leaves` the graph as an output."""
        if not leaves and self.follows(value):
            raise Break("unsupported-operation", f"Tensor.requires_grad_() of the base of {value.describe()}, a view")
        if value.node.graph is not self.graph:
            raise Break("inner-graph", f"{value.describe()} outlives the function that made it")
        if value.parted and torch.is_grad_enabled():
            raise Break("tensor-attribute-store", f"gradients of {value.describe()}, whose data were replaced")
        return value.node

    def give_way(self, value: Tensor) -> None:
        """Call before an existing tensor gets other data: the placeholder keeps the old data under a new value."""
        if value not in self.inputs:
            return
        at, fake = self.inputs.index(value), value.fake
        with self.fake_mode, torch.no_grad():
            was = fake.detach().requires_grad_(fake.requires_grad)
        before = self.inputs[at] = Tensor(value.node, was, value.real)
        before.source = value.source
        self.by_fake[id(was)] = before
        self.facts.replace_input(at, was)
        value.node.meta["example_value"] = self.placeholders[value.node].fake = was

    def stand_in(self, value: Tensor) -> None:
        """Call before an existing tensor gets another node: the placeholder stays the same."""
        at = self.inputs.index(value)
        before = self.inputs[at] = Tensor(value.node, value.fake, value.real)
        before.source = value.source

    def set_state(self, setter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Apply a change of global torch state now, and record it as a node."""
        result = setter(*args, **kwargs)
        self.happened = True
        self.cx.errors_of_data.done.switches = True
        self.asker.forget()
        node = self.graph.create_node("call_function", setter, args, kwargs)
        node.meta["effects"] = NodeEffects(mutates=True, switches=True)
        node.meta["example_value"] = result
        return node

    def from_result(self, result: Any, node: fx.Node) -> Value:
        """The value of a call's result: tensors inside containers become getitem nodes."""
        if isinstance(result, torch.Tensor):
            known = self.known(result)
            if known is not None:
                return known
            wrapper = is_tensor_subclass(type(result))
            if not all(isinstance(t, FakeTensor) for t in (_inside(result) if wrapper else [result])):
                raise Break("operator-failed", f"{node.target} returned a real tensor during capture")
            value = Tensor(node, result, None, type(result) if wrapper else None)
            self.by_fake[id(result)] = value
            return value
        if isinstance(result, (tuple, list)):
            items = []
            for i, element in enumerate(result):
                if has_tensor(element) or isinstance(element, higher_order.Pullback):
                    item = self.graph.call_function(operator.getitem, (node, i))
                    item.meta["example_value"] = element
                    items.append(self.from_result(element, item))
                else:
                    items.append(self.cx.make(element))
            return self.cx.sequence(items, type(result))
        if isinstance(result, higher_order.Pullback):
            return GraphOnly(node)
        if has_tensor(result):
            raise Break("operator-failed", f"{node.target} returned {type(result).__name__}")
        return self.cx.make(result)

    def to_arg(self, value: Value) -> Any:
        """The fx argument for `value`."""
        value = self.cx.realize(value)
        if isinstance(value, Tensor):
            return self.node_of(value)
        if isinstance(value, GraphOnly):
            return self.kept(value)
        if isinstance(value, Symbolic):
            return self.number(value)
        if isinstance(value, NestedInt):
            return self.nested_int(value)
        if isinstance(value, Array) and (number := value.plain_number()) is not value:
            return self.to_arg(number)
        if isinstance(value, Array):
            raise Break("unsupported-operation", f"{value.describe()} among the arguments of a torch function")
        if isinstance(value, Const):
            return plain_constant(value.value)
        return value_to_arg(self, value)

    def kept(self, value: GraphOnly) -> fx.Node:
        """The node of a value that only the graph sees."""
        if value.node.graph is not self.graph:
            raise Break("inner-graph", f"{value.describe()} outlives the function that made it")
        return value.node

    def number(self, value: Symbolic) -> Any:
        """The node of a symbolic number."""
        self.cx.sizes.fits(value.sym)
        return self.numbers.argument(value.sym)

    def nested_int(self, value: NestedInt) -> fx.Node:
        """The node that reads the size of a ragged dimension."""
        owner, dim = value.owner(self.cx)
        node = self.graph.call_function(jagged_tensors.size, (self.node_of(owner), dim))
        node.meta["example_value"], node.meta["user"] = value.sym, ()
        return node

    def with_size(self, size: torch.SymInt) -> tuple[Tensor, int] | None:
        """A tensor of the graph with this nested int in its shape, and the dimension; existing tensors first."""
        found = [t for t in self.by_fake.values() if t.wrapper and jagged_tensors.is_jagged(type(t.fake))]
        for t in sorted(found, key=lambda t: t.source is None):
            for dim, n in enumerate(t.shape):
                if jagged_tensors.is_nested_int(n) and n == size:
                    return t, dim
        return None

    def apart(self, ragged: Tensor) -> None:
        """Guard that `ragged` is a different object than the other offsets: nested ints are equal iff their offsets are
        one object."""
        for other in self.ragged:
            if other is not ragged and other.source is not None:
                self.cx.guard("no_alias", other.source, None, (ragged.source,))  # type: ignore[arg-type]
        self.ragged[ragged] = None

    def constant_tensor(self, real: torch.Tensor) -> Tensor:
        """A tensor created during capture from constants, as an attribute of the graph."""
        name = f"_tensor_constant{len(self.attributes)}"
        self.attributes[name] = real
        fake = fake_of(self.fake_mode, real)
        node = self.graph.get_attr(name)
        node.meta["example_value"] = fake
        value = Tensor(node, fake)
        self.by_fake[id(fake)] = value
        return value

    def known_number(self, fake: torch.Tensor) -> Const | None:
        """The number in a tensor that the program created from constants, or None."""
        real = self.folded.of(fake)
        return None if real is None or real.numel() != 1 else Const(real.item())

    def expect(self, value: Tensor, truth: bool) -> bool:
        """Assume that a tensor is true, or false.  Returns False if that cannot be assumed.

        The graph checks it.  Where it does not hold, the frame runs eagerly and raises the program's error.
        """
        fake, errors = value.fake, self.cx.errors_of_data
        one = all(type(n) is int and n == 1 for n in fake.shape)
        if not (config.rewrite_assert_with_torch_assert and one and fake.device.type == "cpu") or fake.is_complex():
            return False  # on other devices a wrong assumption aborts the process
        if hasattr(self, "outer") or errors.done.once or self.cx.functions.concerns([value], {}):
            return False
        holds = value if fake.dtype is torch.bool else self.call_function(torch.ne, [value, Const(0)], {})
        if not truth:
            holds = self.call_function(torch.logical_not, [holds], {})
        errors.expected = errors.seen.early = True
        self.call_function(torch._assert_async, [holds, Const(EXPECTED)], {})
        return True

    # end ------------------------------------------------------------------------------------------------------
    def finish(self, outputs: list[Tensor], *, unused: bool = False) -> fx.GraphModule:
        """The graph that returns a tuple of `outputs`.

        Calls without users are removed unless they write.  `unused`: the program's calls stay.
        """
        self.graph.output(tuple(self.node_of(t, leaves=True) for t in outputs))
        self.bound.check((t.fake for t in self.inputs), self._symbol)
        remove_dead(self.graph, unused=unused)
        self._name_sizes()
        self.used = self._prune_inputs()
        module = fx.GraphModule(self.attributes, self.graph, class_name="CapturedGraph")
        module.meta[OVERRIDE] = self.cx.cuda_graphs_met
        return module

    def _name_sizes(self) -> None:
        """Add a node for each symbol in the sizes and strides of inputs, since later stages may need them."""
        for value in self.inputs:
            if value.node.users and (value.wrapper or value.has_symbols):
                shown = [value.fake, *_inside(value.fake)]
                for n in (n for t in shown for n in (*t.shape, *t.stride())):
                    for name in expr_of(n).symbols if is_symbolic(n) else ():
                        self.named.add(self.numbers.argument(self.cx.sizes.known_symbols.int(Expr.sym(name))))

    def _prune_inputs(self) -> list[GraphInput]:
        """Erase unused placeholders and return the others, in order."""
        kept = []
        for node in [n for n in self.graph.nodes if n.op == "placeholder"]:
            if node.users or node in self.named:
                kept.append(self.placeholders[node])
            else:
                self.graph.erase_node(node)
        return kept

    def is_wrapped(self) -> bool:
        """Whether an input has a class with `__torch_function__`."""
        return any(i.aliased for i in self.placeholders.values())

    def positions(self, inputs: Iterable[int]) -> list[int]:
        """Positions of inputs, given by index, among the inputs of the finished graph."""
        nodes = {self.inputs[i].node for i in inputs}
        return [k for k, t in enumerate(self.used) if t.node in nodes]

    def is_written(self, value: Tensor) -> bool:
        """Whether calls have written an existing tensor, or memory that it shares with others."""
        versions = zip(self.inputs, self.versions.values(), strict=True)
        return any(t.source == value.source and t.version != version for t, version in versions)

    def tells_history(self, value: Tensor, name: str) -> bool:
        """Whether the fake's attribute is known to equal eager's.  A `_version` counts the writes of all its aliases."""
        fake = value.fake
        if name != "_version":
            return True
        if fake.layout is not torch.strided or fake.is_inference() or hasattr(self, "outer"):
            return False
        if self.cx.sizes.symbols is not None:  # operators that write into their own result may differ for symbols
            return False
        if self.cx.inference.is_made(fake) or self.facts.is_copy(fake):  # these count no writes, or another tensor's
            return False
        given = [p.fake for p in self.placeholders.values() if isinstance(p.fake, torch.Tensor)]
        return all(t.layout is torch.strided and memory_of(t) != memory_of(fake) for t in given)

    def mutated_inputs(self) -> list[int]:
        return [i for i, t in enumerate(self.inputs) if t.version != self.versions[i]]


def _inside(wrapper: torch.Tensor) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    flatten(wrapper, found)
    return found


def _by_position(target: Any, args: list[Value], kwargs: dict[str, Value]) -> tuple[list[Value], dict[str, Value]]:
    """Pass keyword arguments named like Python keywords by position (`x.uniform_(**{"from": 0.0})`), so that a graph
    can be printed."""
    name = target if isinstance(target, str) else target.__name__
    packet = getattr(torch.ops.aten, name, None)
    for overload in () if packet is None else packet.overloads():
        given, named = list(args), dict(kwargs)
        for argument in getattr(packet, overload)._schema.arguments[len(args) :]:
            if argument.kwarg_only or not any(map(keyword.iskeyword, named)):
                break
            if argument.name not in named and not argument.has_default_value():
                break
            given.append(named.pop(argument.name, Const(argument.default_value)))
        if not any(map(keyword.iskeyword, named)):
            return given, named
    raise Break("unsupported-operation", f"{name_of(target)} with the keywords {', '.join(kwargs)}")


OBJECTS: list[Callable[[GraphBuilder, Object], fx.Node | None]] = []
"""Functions that create nodes of objects; filled by `library/`."""


def value_to_arg(builder: GraphBuilder, value: Value) -> Any:
    """Arguments that are containers, classes or functions."""
    if isinstance(value, Slice):
        return slice(*(builder.to_arg(v) for v in value.parts))
    if isinstance(value, Tuple):
        items = tuple(builder.to_arg(v) for v in value.items)
        if value.cls in (tuple, torch.Size):
            return items
        raise Break("unsupported-operation", f"{value.describe()} as an operator's argument")
    if isinstance(value, List):
        return [builder.to_arg(v) for v in value.items]
    if isinstance(value, Dict):
        return {k.const(): builder.to_arg(v) for k, v in value.pairs(builder.cx)}
    if value.is_const():
        return plain_constant(value.const())
    if isinstance(value, Object):
        made = next(filter(None, (make(builder, value) for make in OBJECTS)), None)
        if made is not None:
            return made
    if isinstance(value, Opaque) and type(value.real) is torch.Generator:
        return builder.generator(value)
    raise Break("unsupported-operation", f"{value.describe()} as an operator's argument")


def _below_versions() -> bool:
    """Whether version counters are disabled, as inside of a `__torch_dispatch__`: then writes cannot be detected."""
    return torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.ADInplaceOrView)
