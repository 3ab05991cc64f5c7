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
from pycompiler.capture.bound import Bound, ReadsNumber
from pycompiler.capture.breaks import Break
from pycompiler.capture.converted import convert
from pycompiler.capture.errors_of_data import EXPECTED
from pycompiler.capture.folded import Folded
from pycompiler.capture.memory import InputMemory
from pycompiler.capture.nodes import examples, has_tensor, name_of, operands_of, remove_dead
from pycompiler.capture.on_fakes import Before, Call, Did, run
from pycompiler.capture.replaced import Writes
from pycompiler.capture.values.array import Array
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.dicts import Dict
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.opaque import Opaque
from pycompiler.capture.values.sequences import List, Slice, Tuple
from pycompiler.capture.values.symbolic import NestedInt, Symbolic
from pycompiler.capture.values.tensor import Kept, Tensor
from pycompiler.capture.written_calls import (
    OwnTensors,
    dtype_of,
    is_told_by_fakes,
    makes_tensors,
    method_named,
    mutable,
    plain_constant,
)
from pycompiler.ir import attention, jagged, transforms
from pycompiler.ir.expr import Expr
from pycompiler.ir.fake import Layout, as_plain, fake_of, is_plain
from pycompiler.ir.kernels import memory_of, tensors_of
from pycompiler.ir.mortal import weak_source
from pycompiler.ir.nested import REGION
from pycompiler.ir.process_groups import FLIES
from pycompiler.ir.size_graph import SizeNodes
from pycompiler.ir.source import Source
from pycompiler.ir.strides import Asker, layouts
from pycompiler.ir.subclasses import flatten, is_wrapper
from pycompiler.ir.symbols import expr_of, is_symbolic

if TYPE_CHECKING:
    from pycompiler.ir.fake import FakeMode


@dataclass
class Input:
    """A placeholder: where its value is (a tensor, a number or a generator), and what stands for it."""

    node: fx.Node
    source: Source
    fake: Any
    layout: Layout | None = None
    aliased: bool = False  # the graph gets an alias of class torch.Tensor
    make: Callable[[Any], Any] | None = None  # one of what generated code makes, in this scope
    at: int | None = None  # its number among the tensors


def _replaced(cx: Capture, value: Value, tensor: Tensor, number: Value) -> Value:
    """An argument with a number in the place of the tensor that it was taken from."""
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
        self.asker = Asker()
        self.graph = fx.Graph()
        self.inputs: list[Tensor] = []
        self.attributes: dict[str, Any] = {}
        self.ragged: dict[Tensor, None] = {}  # existing offsets or lengths of jagged tensors
        self.whole: dict[Tensor, None] = {}  # offsets that the graph looks at
        self.by_fake: dict[int, Tensor] = {}
        self._names: set[str] = set()
        self._last_input: fx.Node | None = None
        self.versions: dict[int, int] = {}
        self.placeholders: dict[fx.Node, Input] = {}
        self.generators: dict[object, fx.Node] = {}  # by identity
        self.numbers = SizeNodes(self.graph, self._symbol)
        self.bound: Bound[Tensor] = Bound(self.graph, cx.sizes, self.by_fake)
        self.memory = InputMemory()
        self.replaced: dict[Tensor, Writes] = {}  # tensors that have got other data
        self.happened = False  # something that cannot be done twice
        self.written: dict[int, None] = {}  # memory that calls wrote, in order
        self.folded = Folded(self.written)
        self.named: set[fx.Node] = set()  # symbols in the sizes of inputs
        self.used: list[Input] = []  # inputs of the finished graph
        self.in_region = self.regions = 0  # how many surround what is traced now, and how many there were
        self.doubtful = (
            False  # whether an operator gave its argument, which it may not do for other strides (with `levels`)
        )
        self.held: dict[
            int, tuple[Any, Value]
        ] = {}  # what wrappers are made of that never changes, and what stands for it
        self.parameters: list[Any] = []  # how the program made some (`builtins/parameters.py`)
        self.copied: dict[int, tuple[Value, list[Tensor]]] = {}  # by memo: it, and what `copy.deepcopy` has copied
        self.turned: dict[Tensor, dict[bool, tuple[fx.Node, torch.Tensor]]] = {}  # see `builtins/flags.py`
        self.flipped_at: dict[Tensor, int | None] = {}  # the step of the first of these changes
        self.leaves: list[tuple[torch.Tensor, int | None]] = []  # what the program made leaves, and at which step
        self.retained: list[tuple[Tensor, int | None]] = []  # results whose gradients the program wants, and the steps
        self.spent = set[Any]()  # autograd's nodes, of fakes, that a backward has gone through
        # Autograd's nodes, of fakes, and what hangs on them: `builtins/backward_hooks.py`.
        self.hooks: dict[Any, Any] = {}
        self.descending = False  # whether a backward is on its way through them
        self.picks: list[
            tuple[torch.Tensor, torch.Tensor, int | None]
        ] = []  # copies in the place of views, of what, and steps
        self.levels = False  # whether tensors are wrapped where the graph runs (a transform's body, `tracers.py`)
        self.packs = False  # whether what autograd saves is packed where the graph runs (a checkpoint's body)
        self.reentrant = False  # whether it runs with the grad mode off before it runs with it on
        self.later = False  # whether the graph runs in a backward, with a grad mode that is not known
        self.lands = False  # whether what is recorded now is a wait for a collective
        self.waited = set[int]()  # memory that the program has waited for, and knows by another name, too
        self.under = frozenset[str]()  # the transforms that the graph will run under
        self.indexes = (
            False  # whether an integer as a tensor is an index whose number nobody asks for (`flex_attention`)
        )

    @property
    def is_inner(self) -> bool:
        """Whether it runs inside of another call: of the graph, or of a transform around the frame."""
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
        """A placeholder for an existing tensor; placeholders come first, in order of first use.

        For one of a class that takes part in calls (`cls`) the graph gets a plain alias of it; a wrapper as it is.
        """
        wrapper = cls is not None and is_wrapper(cls)
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
        self.memory.add(fake, real)
        return value

    def generator(self, value: Opaque) -> fx.Node:
        """The placeholder of a generator of the program's: operators draw from it when the graph runs, in the program's order."""
        node = self.generators.get(value.identity())
        if node is None:
            assert value.source is not None
            device = value.getattr(self.cx, "device").const()
            node = self.generators[value.identity()] = self.read(value.source, torch.Generator(device))
        return node

    def draws_from(self, value: Opaque) -> bool:
        """Whether an operator is given this generator, in any graph."""
        return value.identity() in self.generators

    def _symbol(self, name: str) -> fx.Node:
        """A placeholder for a size, or an integer argument."""
        if name in self.bound.readings:
            return self.bound.node_of(name)
        symbols, source = self.cx.sizes.known_symbols, self.cx.sizes.source_of(name)
        return self.read(source, symbols.symbol(name))

    def takes_items(self) -> bool:
        """Whether numbers in tensors are captured."""
        return bool(config.capture_scalar_outputs)

    def _bind(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator gives whose result depends on data, or NotImplemented."""
        if func is torch.ops.aten._local_scalar_dense.default and self.known_number(args[0]) is not None:
            raise ReadsNumber(args[0], str(func))
        errors = self.cx.errors_of_data
        made = self.bound.bind(self.fake_mode, func, args, kwargs, inner=hasattr(self, "outer"), happened=self.happened)
        errors.redraws |= made is not NotImplemented and bool(errors.done.draws)
        return made

    def read(self, source: Source, fake: Any) -> fx.Node:
        """A placeholder for what is at `source`."""
        anchor = self._last_input
        ctx = self.graph.inserting_after(anchor) if anchor is not None else self.graph.inserting_before(self._first())
        with ctx:
            node = self.graph.placeholder(self._fresh(source))
        self._last_input = node
        node.meta["example_value"] = fake
        node.meta["source"] = weak_source(source)  # the graph outlives the capture
        self.placeholders[node] = Input(node, source, fake)
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
        # The end tells deep sources apart; what is still the same name (`a.b` and `a_b`) gets a number.
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
            target = torch.pow  # the text of a graph would be -2.0 ** x, which is -(2.0 ** x)
        return self._call("call_function", target, target, args, kwargs, always)

    def call_whole(self, target: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A function of the program's as one node; a tensor of its own that requires grad would get no gradient."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with OwnTensors():
                return target(*map(mutable, args), **{k: mutable(v) for k, v in kwargs.items()})

        if self.cx.device:
            raise Break("global-state", "a function that is put into the graph, with a default device")
        return self._call("call_function", target, run, args, kwargs, False, whole=True)

    def call_method(self, name: str, args: list[Value], kwargs: dict[str, Value], *, always: bool = False) -> Value:
        return self._call("call_method", name, method_named(name), args, kwargs, always)

    def index_mapped(self, tensor: Tensor, key: Value) -> Value:
        """``tensor[key]``, whose integers as tensors `vmap` maps: no call asks them for their numbers."""
        return self._call("call_function", transforms.index_mapped, transforms.index_mapped, [tensor, key], {}, False)

    def indexed(self, tensor: Tensor, indices: list[Value]) -> Value:
        """``tensor[indices]``, of integers and tensors of them."""
        return self._call("call_function", attention.indexed, attention.indexed, [tensor, *indices], {}, False)

    def pick(self, tensor: Tensor, dim: int, index: Value) -> Tensor | None:
        """A copy of what `select` gives, of an integer as a tensor; None where it would lie otherwise."""
        fake, place = tensor.fake, self.to_arg(index)
        alike = fake.layout is torch.strided and fake.device.type == place.meta["example_value"].device.type == "cpu"
        outer = fake.shape[:dim]
        if not alike or not fake.is_contiguous() or not all(type(n) is int and n == 1 for n in outer):
            return None
        if fake.is_conj() or fake.is_neg():
            return None
        kept = fake.requires_grad and torch.is_grad_enabled()  # for the backward, where eager has but the number
        if kept or place.meta["example_value"].dtype not in (torch.int64, torch.int32):
            index = self.call_method("to", [index, Const(torch.int64)], {"copy": Const(kept)})
        made = self.call_function(torch.ops.aten.index.Tensor, [tensor, List([*[Const(None)] * dim, index])], {})
        assert isinstance(made, Tensor)
        self.picks.append((made.fake, fake, self.cx.step()))
        return made

    def is_picked(self, fake: torch.Tensor) -> bool:
        """Whether it lies in memory of its own where eager's is a view."""
        return (
            bool(self.picks)
            and fake.layout is torch.strided
            and memory_of(fake) in {memory_of(t) for t, _, _ in self.picks}
        )

    def check_picks(self, fakes: Iterable[torch.Tensor], *, written: bool = False) -> None:
        """What is given to others, or written, is no copy, nor what one was made of."""
        found = {memory_of(t) for t in fakes if t.layout is torch.strided} if self.picks else ()
        for made, base, step in self.picks if found else ():
            if memory_of(made) in found or (written and memory_of(base) in found):
                raise Break(
                    "data-dependent-value", "a view by an index that is a tensor leaves the graph, or is written", step
                )

    def is_mapped(self, tensor: Tensor) -> bool:
        """Whether `vmap` gives each call of a function another one."""
        return False

    def call_inner(
        self, target: Callable[..., Any], bodies: list[fx.GraphModule], args: list[Any], *, always: bool = False
    ) -> Value:
        """`target(*bodies, *args)`, a function of `ir/transforms.py`; values among `args` go into the graph."""
        nodes = [*(self.submodule(b) for b in bodies), *(self.to_arg(a) if isinstance(a, Value) else a for a in args)]
        made = self._record(Call("call_function", target, target, nodes, {}, always=always))
        self._note_bodies(target)
        return made

    def _note_bodies(self, target: Callable[..., Any]) -> None:
        """Bodies that look again are part of the call made now, or of one that it is part of."""
        made = (
            None
            if hasattr(self, "outer")
            else next((n for n in reversed(self.graph.nodes) if n.target is target), None)
        )
        if made is not None:  # a call without tensors is none of the graph's
            self.cx.effects.looks.called(made)

    def place_inner(
        self, target: Callable[..., Any], bodies: list[fx.GraphModule], args: list[Any], results: list[Tensor]
    ) -> None:
        """As `call_inner`, of a function whose results are known: from now on they are this graph's tensors."""
        nodes = [*(self.submodule(b) for b in bodies), *(self.to_arg(a) if isinstance(a, Value) else a for a in args)]
        node = self.graph.call_function(target, tuple(nodes))
        made = tuple(t.fake for t in results)
        given = [n for n in operands_of(nodes, {}) if isinstance(n.meta["example_value"], torch.Tensor)]
        self.cx.inference.look(name_of(target), examples(given), [], made)
        node.meta["example_value"], node.meta["strides"], node.meta["user"] = made, layouts(made), self.cx.user_stack
        inside = [n.meta for body in bodies for n in body.graph.nodes]
        node.meta["acts"] = any(m.get("acts") for m in inside)
        node.meta["lasts"] = any(m.get("lasts") for m in inside)
        self._note_bodies(target)
        for i, value in enumerate(results):
            value.node = self.graph.call_function(operator.getitem, (node, i))
            value.node.meta["example_value"] = value.fake
            self.by_fake[id(value.fake)] = value

    @contextlib.contextmanager
    def region(self) -> Iterator[None]:
        """The nodes that are made inside belong together; of regions within each other the outermost counts.

        Those of a call that binds symbols belong to no region: what is assumed of these is checked by the graph around.
        """
        backwards = iter(reversed(self.graph.nodes))  # in torch 2.11 `reversed` gives no iterator
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
        """The node that stands for a graph inside of this one."""
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
            call = Call(op, target, run, nodes, knodes, always=always, whole=whole)
            return self._record(call, [*args, *kwargs.values()])
        except ReadsNumber as reads:
            again = None if whole else self._with_number(op, target, self.by_fake.get(id(reads.fake)), args, kwargs)
            if again is None:
                raise
        return self.cx.call(*again)

    def _with_number(
        self, op: str, target: Any, tensor: Tensor | None, args: list[Value], kwargs: dict[str, Value]
    ) -> tuple[Value, list[Value], dict[str, Value]] | None:
        """The program's call with the number in a tensor in the tensor's place; None where it is no argument."""
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

    def _record(self, call: Call, given: Sequence[Value] = ()) -> Value:
        """Run the call on fakes, and add it to the graph; a list that it gives back is the one that was `given`."""
        self._check_operands(call)
        self._check_layout(call)
        if call.name == "detach_":
            self._check_detached(call)
        before = Before(self.fake_mode, call)
        self.bound.begin(call.target)
        self.fake_mode.foreign = ()
        result, heard = run(self.fake_mode, self.cx.sizes, call, self._bind)
        did = before.did(result)
        late = self._note_writes(call, before, did)
        self._check_gradients(call, before)
        around = bool(before.wrappers) or any(is_wrapper(type(t)) for t in tensors_of(result))
        if self.fake_mode.shape_env is None and not around:
            ordinary, once = not did.counts.others, did.counts.once > 0
            self.asker.lay(call.target, call.run, call.fakes, call.kfakes, result, ordinary=ordinary, once=once)
        self.cx.inference.look(call.name, examples(call.operands), examples(did.written), tensors_of(result))
        self.happened |= call.always or did.mutates or (did.counts.once > 0 and not did.draws_only)
        if not (call.always or did.mutates or did.acts or self.levels):
            self.folded.note(call, result)
        self._note_errors(call, did, result, late)
        self.cx.of_operators.note(self.fake_mode.foreign, self.cx.by_id, self.cx.effects)
        if not (call.always or did.mutates or did.acts or self.bound.binding or has_tensor(result)):
            if call.operands and not is_told_by_fakes(result, call.op):
                raise Break("operator-failed", f"{call.name} gives a {type(result).__name__}")
            return self.cx.make(result)
        known = self.known(result) if isinstance(result, torch.Tensor) else None
        self._check_levels(call, did, result, known)
        node = self._add(call, did, result)
        if texts := self.cx.warned_by(call, heard, result):
            node.meta["warns"] = texts
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

    def _check_operands(self, call: Call) -> None:
        if not self.lands and any(FLIES in n.meta for n in call.operands):
            raise Break("unsupported-operation", f"{call.name} of what a collective gave, which was not waited for")
        if any(jagged.is_nested_int(n.meta["example_value"]) for n in call.given):  # which fakes would take
            if not any(is_wrapper(type(n.meta["example_value"])) for n in call.operands):
                raise Break("tensor-subclass", f"{call.name} of the size of a ragged dimension")

    def _check_layout(self, call: Call) -> None:
        """What an existing tensor gets behind the graph, its gradient, has to lie as it does by then; and one whose class takes
        part in calls is an alias in the graph, which alone would lie otherwise."""
        name = call.name.partition(".")[0]
        packet: Any = getattr(torch.ops.aten, name, None) if name.endswith("_") and call.operands else None
        value = None if packet is None else self.known(call.operands[0].meta["example_value"])
        if value is None or not value.exists or not isinstance(packet, torch._ops.OpOverloadPacket):
            return
        if not any(torch.Tag.inplace_view in getattr(packet, o).tags for o in packet.overloads()):  # type: ignore[no-untyped-call]
            return
        if isinstance(value.overlay.get("grad"), Tensor):
            raise Break("unsupported-operation", f"{name} of {value.describe()}, which has got a gradient")
        if value.cls is not None and not value.wrapper and name != "detach_":
            raise Break("tensor-subclass", f"{name} of a {value.cls.__qualname__}, of which the graph has an alias")

    def _note_writes(self, call: Call, before: Before, did: Did) -> bool:
        """What a call has written; whether it may raise an error of data when inputs are written."""
        name, errors = call.name, self.cx.errors_of_data
        if did.counts.writes and not did.mutates and _below_versions():
            raise Break("unsupported-operation", f"{name}, which may write, where versions are not counted")
        if before.wrappers and not before.writes_in_place(did.mutates, self._write_around):
            raise Break("tensor-subclass", f"{name}, which writes, on a {type(before.wrappers[0]).__name__}")
        late = did.refuses and (did.mutates or call.always or errors.done.writes)
        if before.resizes:
            raise Break("unsupported-operation", f"{name}, which resizes what it is given for its result")
        if not did.mutates:
            return late
        written = [n.meta["example_value"] for n in did.written]
        if self.memory.is_inference(written) and not torch.is_inference_mode_enabled():
            raise Break(
                "global-state", f"{name}, which writes an inference tensor"
            )  # eager refuses when it has written
        self.cx.effects.looks.writes(written)
        for changing in self.replaced.values():
            changing.look(did.written)
        places = {memory_of(t) for t in written if t.layout is torch.strided}
        if not self.waited.isdisjoint(places):
            raise Break("unsupported-operation", f"{name}, which writes what a collective gave by another name")
        self.written |= dict.fromkeys(places)
        self.check_picks(written, written=True)
        checked = any(map(self.memory.may_refuse, written))  # before it writes
        drops = not any(t.is_complex() for t in written)
        if drops and any(type(a) is complex for a in call.arguments):  # eager refuses, fakes do not
            raise Break("operator-failed", f"{name}, which writes a complex number to others")
        late |= checked and errors.done.writes
        did.refuses |= checked
        did.lasts = hasattr(self, "outer") or self.memory.has(written)
        errors.done.writes |= did.lasts
        if self.levels and not hasattr(
            self, "outer"
        ):  # what shares memory is not known, and a refused graph runs again
            raise Break("inner-graph", f"{name}, which writes, under a transform")
        return late

    def _write_around(self) -> None:
        """What is inside of inputs, and an input of the graph too, is written with them."""
        written = {
            t.source for t, version in zip(self.inputs, self.versions.values(), strict=True)
            if t.wrapper and t.source is not None and t.fake._version != version
        }  # fmt: skip
        for t in self.inputs:
            at = None if t.source is None else t.source.base
            while at is not None:
                if at in written:
                    torch.autograd.graph.increment_version(t.fake)
                    break
                at = at.base

    def _check_gradients(self, call: Call, before: Before) -> None:
        """No value tells, and no operator, that a tensor is cut off from its history."""
        cut = bool(self.levels) and call.name.endswith("detach_")
        if cut or any(not n.meta["example_value"].requires_grad for n in before.tracked):
            raise Break("unsupported-operation", f"{call.name} of a tensor that requires grad")

    def _check_detached(self, call: Call) -> None:
        """Views refuse it; of a tensor that exists it is assumed that it is none."""
        (node,) = call.operands
        given = next((t for t in self.inputs if t.node is node), None)
        if given is None:
            if node.meta["example_value"]._is_view():
                self.cx.evaluate_raw(lambda: torch.empty(1, device="cpu").view(1).detach_())
        elif given.real is None or given.source is None or given.real._base is not None:
            raise Break("unsupported-operation", "detach_ of a view")
        else:
            self.cx.guard("id_is", given.source.attr("_base"), None)

    def _note_errors(self, call: Call, did: Did, result: Any, late: bool) -> None:
        errors, counts = self.cx.errors_of_data, did.counts
        errors.note(
            refuses=did.refuses, fails=counts.fails > 0, acts=counts.tells > 0, meets=counts.meets > 0,
            draws=[t.device for t in tensors_of((result, call.fakes, call.kfakes))] if did.drawn else (),
            frames=self.cx.frames, effects=bool(self.cx.effects),
        )  # fmt: skip
        errors.done.writes |= call.always and not did.mutates
        errors.late |= late

    def _check_levels(self, call: Call, did: Did, result: Any, known: Tensor | None) -> None:
        """Where tensors are wrapped when the graph runs, which fakes are not."""
        if known is not None and not did.mutates:
            self.doubtful |= self.levels
        if not self.levels or hasattr(self, "outer"):
            return
        if any(t.requires_grad for t in tensors_of(result)):
            raise Break("inner-graph", f"{call.name} gives what requires grad, where autograd is left out")
        if self.cx.errors_of_data.levelled and known is not None and not did.mutates:
            raise Break("inner-graph", f"{call.name} gives its argument, which it may not do for other strides")

    def _add(self, call: Call, did: Did, result: Any) -> fx.Node:
        node = self.graph.create_node(call.op, call.target, tuple(call.args), call.kwargs)
        node.meta["example_value"], node.meta["strides"] = result, layouts(result)
        node.meta["user"] = self.cx.user_stack
        node.meta["mutates"], node.meta["acts"] = did.mutates or call.always, did.acts
        unseen = did.counts.writes > 0 and not did.mutates
        node.meta["lasts"] = did.lasts or did.drawn or did.python or did.counts.tells > 0 or call.always or unseen
        node.meta["refuses"], node.meta["draws"], node.meta["writes"] = did.refuses, did.draws_only, did.written
        node.meta["wrote"] = did.counts.writes > 0
        if did.python:
            node.meta["python"] = True  # no trace of its operators stands for a call
        return node

    def is_given(self, value: Tensor) -> bool:
        """Whether it shares memory with an input."""
        return hasattr(self, "outer") or self.memory.has((value.fake,))

    def known(self, fake: torch.Tensor) -> Tensor | None:
        """The value that `fake` stands for, if there is one."""
        return self.by_fake.get(id(fake))

    def stands_for(self, fake: torch.Tensor, value: Tensor) -> None:
        """From now on `fake`, too, is an input's value, whose fake is another."""
        self.by_fake[id(fake)] = value

    def follows(self, value: Tensor) -> bool:
        """Whether it is a view, without a history, of a tensor whose flag is another now (`builtins/flags.py`), as the
        view's is."""
        base = value.fake._base if self.turned else None
        owner = None if base is None else self.known(base)
        return owner in self.turned and owner.fake is not base and value.fake.grad_fn is None  # type: ignore[union-attr]

    def node_of(self, value: Tensor, *, leaves: bool = False) -> fx.Node:
        """The node of this graph that stands for a tensor, which is used or `leaves` the graph."""
        if not leaves and self.follows(value):
            raise Break("unsupported-operation", f"Tensor.requires_grad_() of what {value.describe()} is a view of")
        if value.node.graph is not self.graph:
            raise Break("inner-graph", f"{value.describe()} outlives the function that made it")
        if value.parted and torch.is_grad_enabled():
            raise Break("tensor-attribute-store", f"gradients of {value.describe()}, whose data were replaced")
        return value.node

    def give_way(self, value: Tensor) -> None:
        """An existing tensor is about to get other data: its placeholder stands for what it was."""
        if value not in self.inputs:
            return
        at, fake = self.inputs.index(value), value.fake
        with self.fake_mode, torch.no_grad():
            was = fake.detach().requires_grad_(fake.requires_grad)
        before = self.inputs[at] = Tensor(value.node, was, value.real)
        before.source = value.source
        self.by_fake[id(was)] = before
        self.memory.replace(at, was)
        value.node.meta["example_value"] = self.placeholders[value.node].fake = was

    def stand_in(self, value: Tensor) -> None:
        """An existing tensor is about to be another node: its placeholder stays what it is."""
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
        node.meta["mutates"] = node.meta["switches"] = True
        node.meta["example_value"] = result
        return node

    def from_result(self, result: Any, node: fx.Node) -> Value:
        """The value of a call's result: tensors inside containers become getitem nodes."""
        if isinstance(result, torch.Tensor):
            known = self.known(result)
            if known is not None:
                return known
            wrapper = is_wrapper(type(result))
            if not all(isinstance(t, FakeTensor) for t in (_inside(result) if wrapper else [result])):
                raise Break("operator-failed", f"{node.target} gave a real tensor during capture")
            value = Tensor(node, result, None, type(result) if wrapper else None)
            self.by_fake[id(result)] = value
            return value
        if isinstance(result, (tuple, list)):
            items = []
            for i, element in enumerate(result):
                if has_tensor(element) or isinstance(element, transforms.Pullback):
                    item = self.graph.call_function(operator.getitem, (node, i))
                    item.meta["example_value"] = element
                    items.append(self.from_result(element, item))
                else:
                    items.append(self.cx.make(element))
            return self.cx.sequence(items, type(result))
        if isinstance(result, transforms.Pullback):
            return Kept(node)
        if has_tensor(result):
            raise Break("operator-failed", f"{node.target} returned {type(result).__name__}")
        return self.cx.make(result)

    def to_arg(self, value: Value) -> Any:
        """The fx argument that stands for `value`."""
        value = self.cx.realize(value)
        if isinstance(value, Tensor):
            return self.node_of(value)
        if isinstance(value, Kept):
            return self.kept(value)
        if isinstance(value, Symbolic):
            return self.number(value)
        if isinstance(value, NestedInt):
            return self.nested_int(value)
        if isinstance(value, Array) and (number := value.plain_number()) is not value:
            return self.to_arg(number)
        if isinstance(value, Array):
            raise Break("unsupported-operation", f"{value.describe()} among the arguments of a function of torch's")
        if isinstance(value, Const):
            return plain_constant(value.value)
        return value_to_arg(self, value)

    def kept(self, value: Kept) -> fx.Node:
        """The node of what a transform has kept."""
        if value.node.graph is not self.graph:
            raise Break("inner-graph", f"{value.describe()} outlives the function that made it")
        return value.node

    def number(self, value: Symbolic) -> Any:
        """The node of a number over symbols."""
        self.cx.sizes.fits(value.sym)
        return self.numbers.argument(value.sym)

    def nested_int(self, value: NestedInt) -> fx.Node:
        """The node that reads the size of a ragged dimension."""
        owner, dim = value.owner(self.cx)
        node = self.graph.call_function(jagged.size, (self.node_of(owner), dim))
        node.meta["example_value"], node.meta["user"] = value.sym, ()
        return node

    def with_size(self, size: torch.SymInt) -> tuple[Tensor, int] | None:
        """A tensor of the graph that has this nested int in its shape, and where; existing ones first."""
        found = [t for t in self.by_fake.values() if t.wrapper and jagged.is_jagged(type(t.fake))]
        for t in sorted(found, key=lambda t: t.source is None):
            for dim, n in enumerate(t.fake.shape):
                if jagged.is_nested_int(n) and n == size:
                    return t, dim
        return None

    def apart(self, ragged: Tensor) -> None:
        """`ragged` is one of the tensors of whose nested ints it is known which are equal."""
        for other in self.ragged:
            if other is not ragged and other.source is not None:
                self.cx.guard("no_alias", other.source, None, (ragged.source,))  # type: ignore[arg-type]
        self.ragged[ragged] = None

    def constant_tensor(self, real: torch.Tensor) -> Tensor:
        """A tensor made during capture from constants (a baked attribute of the graph)."""
        name = f"_tensor_constant{len(self.attributes)}"
        self.attributes[name] = real
        fake = fake_of(self.fake_mode, real)
        node = self.graph.get_attr(name)
        node.meta["example_value"] = fake
        value = Tensor(node, fake)
        self.by_fake[id(fake)] = value
        return value

    def known_number(self, fake: torch.Tensor) -> Const | None:
        """The integer in a tensor that the program has made of constants."""
        real = self.folded.of(fake)
        return None if real is None or real.numel() != 1 else Const(real.item())

    def expect(self, value: Tensor, truth: bool) -> bool:
        """Assume that a tensor is true, or false: the graph looks, and where it is otherwise the frame runs eagerly, which raises
        what the program raises.  False where it cannot be assumed."""
        fake, errors = value.fake, self.cx.errors_of_data
        one = all(type(n) is int and n == 1 for n in fake.shape)
        if not (config.rewrite_assert_with_torch_assert and one and fake.device.type == "cpu") or fake.is_complex():
            return False  # on other devices a wrong assumption ends the process
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
        """The graph returning a tuple of `outputs`; calls whose result nobody reads are removed unless they mutate, but with
        `unused`, if they are the program's."""
        self.graph.output(tuple(self.node_of(t, leaves=True) for t in outputs))
        self.bound.check((t.fake for t in self.inputs), self._symbol)
        remove_dead(self.graph, unused=unused)
        self._name_sizes()
        self.used = self._prune_inputs()
        module = fx.GraphModule(self.attributes, self.graph, class_name="CapturedGraph")
        return module

    def _name_sizes(self) -> None:
        """Each symbol in the sizes and strides of an input is one as well: what is made of the graph may need it."""
        for value in self.inputs:
            if value.node.users and (value.wrapper or value.fake._has_symbolic_sizes_strides):
                shown = [value.fake, *_inside(value.fake)]
                for n in (n for t in shown for n in (*t.shape, *t.stride())):
                    for name in expr_of(n).symbols if is_symbolic(n) else ():
                        self.named.add(self.numbers.argument(self.cx.sizes.known_symbols.int(Expr.sym(name))))

    def _prune_inputs(self) -> list[Input]:
        """Erase placeholders that nothing uses; those left, in order."""
        kept = []
        for node in [n for n in self.graph.nodes if n.op == "placeholder"]:
            if node.users or node in self.named:
                kept.append(self.placeholders[node])
            else:
                self.graph.erase_node(node)
        return kept

    def is_wrapped(self) -> bool:
        """Whether an input is of a class that takes part in calls."""
        return any(i.aliased for i in self.placeholders.values())

    def positions(self, inputs: Iterable[int]) -> list[int]:
        """Where inputs are among those of the finished graph, by their numbers."""
        nodes = {self.inputs[i].node for i in inputs}
        return [k for k, t in enumerate(self.used) if t.node in nodes]

    def is_written(self, value: Tensor) -> bool:
        """Whether calls have written an existing tensor, or memory that it has in common with others."""
        versions = zip(self.inputs, self.versions.values(), strict=True)
        return any(t.source == value.source and t.fake._version != version for t, version in versions)

    def tells_history(self, value: Tensor, name: str) -> bool:
        """Whether an intermediate's fake has the version that eager's has: that counts the writes to all tensors beside it."""
        fake = value.fake
        if name != "_version":
            return True
        if fake.layout is not torch.strided or fake.is_inference() or hasattr(self, "outer"):
            return False
        if self.cx.sizes.symbols is not None:  # operators that write into their own result may be others of symbols
            return False
        if self.cx.inference.is_made(fake) or self.is_picked(fake):  # which counts none, or another's
            return False
        given = [p.fake for p in self.placeholders.values() if isinstance(p.fake, torch.Tensor)]
        return all(t.layout is torch.strided and memory_of(t) != memory_of(fake) for t in given)

    def mutated_inputs(self) -> list[int]:
        return [i for i, t in enumerate(self.inputs) if t.fake._version != self.versions[i]]


def _inside(wrapper: torch.Tensor) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    flatten(wrapper, found)
    return found


def _by_position(target: Any, args: list[Value], kwargs: dict[str, Value]) -> tuple[list[Value], dict[str, Value]]:
    """Without names that Python's own grammar has (`x.uniform_(**{"from": 0.0})`): a graph could not be written with them."""
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
    raise Break("unsupported-operation", f"{name_of(target)} with the names {', '.join(kwargs)}")


OBJECTS: list[Callable[[GraphBuilder, Object], fx.Node | None]] = []
"""What makes nodes of objects; filled by `builtins/`."""


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
    """Whether writes count no versions, as where torch calls a `__torch_dispatch__`: nothing tells what was written."""
    return torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.ADInplaceOrView)
