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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)

from pycompiler import config
from pycompiler.capture.breaks import Break
from pycompiler.capture.converted import convert
from pycompiler.capture.errors_of_data import EXPECTED
from pycompiler.capture.nodes import has_tensor, name_of, operands_of, remove_dead, version_of
from pycompiler.capture.sizes import NeedsSymbols
from pycompiler.capture.values.array import Array
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers import Dict, List, Slice, Tuple
from pycompiler.capture.values.objects import Object, Opaque
from pycompiler.capture.values.symbolic import NestedInt, Symbolic
from pycompiler.capture.values.tensor import Tensor
from pycompiler.capture.written_calls import (
    OwnTensors,
    dtype_of,
    is_told_by_fakes,
    makes_tensors,
    method_named,
    mutable,
    plain_constant,
)
from pycompiler.ir import attention, jagged, late, transforms
from pycompiler.ir.expr import Expr
from pycompiler.ir.fake import Layout, as_plain, fake_of, is_plain
from pycompiler.ir.kernels import counts_with, memory_of, tensors_of
from pycompiler.ir.late import BINDS
from pycompiler.ir.nested import REGION
from pycompiler.ir.places import apart
from pycompiler.ir.process_groups import FLIES
from pycompiler.ir.size_graph import SizeNodes
from pycompiler.ir.source import Source
from pycompiler.ir.strides import Asker, layouts
from pycompiler.ir.subclasses import Spec, flatten, flatten_all, is_wrapper, same
from pycompiler.ir.symbols import Specialise, expr_of, is_symbolic

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


@dataclass
class Reading:
    """Where a symbol that a call binds is read: a function of a tensor of the graph, as it was then."""

    tensor: Tensor
    version: int | None
    read: Callable[..., Any] | None
    args: tuple[int, ...]
    item: fx.Node | None  # the number of which it is a part


class Writes:
    """How often a tensor that has got other data was written by its aliases, nodes that count for themselves: a constant of
    generated code's, which grows until the graph ends.  Writes by views from before are counted where they happen.
    What the graph makes is its last alias from then on: of that only what was before has to be counted."""

    def __init__(self, fake: torch.Tensor, exists: bool, made_at: int | None) -> None:
        self.fake, self.exists, self.made_at = fake, exists, made_at
        self.aliases = list[fx.Node]()
        self.count = Const(0)
        self.seen = 0

    def take(self, alias: fx.Node) -> None:
        """From now on it is another alias."""
        self.aliases.append(alias)
        self.count, self.seen = Const(0 if self.exists else self.fake._version), self.fake._version

    def shares(self, fake: object) -> bool:
        return isinstance(fake, torch.Tensor) and (fake is self.fake or counts_with(fake, self.fake))

    def is_of_alias(self, node: fx.Node) -> bool:
        """Whether a node is an alias, or a view of one."""
        if node in self.aliases:
            return True
        inputs = (n for n in node.all_input_nodes if self.shares(n.meta.get("example_value")))
        return any(map(self.is_of_alias, inputs))

    def look(self, written: list[fx.Node]) -> None:
        """After a call that wrote these."""
        grown, self.seen = self.fake._version - self.seen, self.fake._version
        by_alias = {self.is_of_alias(n) for n in written if self.shares(n.meta["example_value"])}
        if grown and len(by_alias) > 1:
            raise Break(
                "unsupported-operation", "a write of data that were replaced, by what has the old and the new ones"
            )
        if self.exists and True in by_alias:
            self.count.value += grown


GIVE_NUMBERS = ("item", torch.Tensor.item, torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)
"""Targets whose result is the number in a tensor."""


class ReadsNumber(Break):
    """An operator takes a tensor for a number, and looks into it."""

    def __init__(self, fake: torch.Tensor, name: str) -> None:
        super().__init__("data-dependent-value", f"{name}, which reads a number that no result shows")
        self.fake = fake


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
        self.bound: dict[str, Reading] = {}  # symbols that a call binds
        self.replaced: dict[Tensor, Writes] = {}  # tensors that have got other data
        self._binding: list[
            tuple[Any, tuple[str, ...]]
        ] = []  # numbers that the operator called now binds, their symbols
        self._sizes: dict[Any, Any] = {}  # of data that has not changed: the size that an operator gave
        self.happened = False  # something that cannot be done twice
        self.written: set[int] = set()  # memory that calls wrote
        self.named: set[fx.Node] = set()  # symbols in the sizes of inputs
        self.used: list[Input] = []  # inputs of the finished graph
        self.in_region = self.regions = 0  # how many surround what is traced now, and how many there were
        self.doubtful = (
            False  # whether an operator gave its argument, which it may not do for other strides (with `levels`)
        )
        self.parameters: list[Any] = []  # how the program made some (`builtins/parameters.py`)
        self.copied: dict[int, tuple[Value, list[Tensor]]] = {}  # by memo: it, and what `copy.deepcopy` has copied
        self.leaves: list[tuple[torch.Tensor, int | None]] = []  # what the program made leaves, and at which step
        self.spent = set[Any]()  # autograd's nodes, of fakes, that a backward has gone through
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
        value = Tensor(node, fake, real, cls)
        value.source = source
        self.inputs.append(value)
        self.by_fake[id(fake)] = value
        self.versions[len(self.inputs) - 1] = fake._version
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
        if name in self.bound:
            return self._bound(name)
        symbols, source = self.cx.sizes.known_symbols, self.cx.sizes.source_of(name)
        return self.read(source, symbols.symbol(name))

    def _bound(self, name: str) -> fx.Node:
        """The node of a symbol that a call binds."""
        at, symbols = self.bound[name], self.cx.sizes.known_symbols
        if at.item is not None and name in symbols.floats:
            return at.item
        assert at.read is not None
        node = self.graph.call_function(at.read, (at.item or at.tensor.node, *at.args))
        node.meta["example_value"] = symbols.int(Expr.sym(name))
        return node

    def takes_items(self) -> bool:
        """Whether numbers in tensors are captured."""
        return bool(config.capture_scalar_outputs)

    def _bind(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator gives whose result depends on data, under the knob that wants it captured."""
        scalar = func is torch.ops.aten._local_scalar_dense.default
        if not (config.capture_scalar_outputs if scalar else config.capture_dynamic_output_shape_ops):
            return NotImplemented
        symbols = self.cx.sizes.symbols
        if symbols is None:
            raise NeedsSymbols
        if getattr(self, "outer", None) is not None:
            raise Break("inner-graph", f"{func}, whose result depends on data")
        if self.happened:
            raise Break("data-dependent-value", f"{func}, after a write or a random number: an assumption may not hold")
        if scalar and not self._gives_number:
            raise ReadsNumber(args[0], str(func))

        def new(kind: str, most: Any = None) -> Any:
            same = (func, id(args[0]), args[0]._version)
            if same in self._sizes:
                return self._sizes[same][0]
            known = len(symbols.bound)
            made = symbols.bind(kind, None if most is None else expr_of(most))
            if kind == "float":
                symbols.greatest[tuple(symbols.bound)[known]] = torch.finfo(args[0].dtype).max
            self._binding.append((made, tuple(symbols.bound)[known:]))
            if kind == "size":
                self._sizes[same] = made, args[0]
            return made

        with self.fake_mode:
            return BINDS[func](new, *args, **kwargs)

    def _note_bound(self, node: fx.Node, result: Any) -> None:
        """Where what `node` binds is read: of results sizes, or the number that is the result."""
        node.meta["binds"], self._binding = self._binding, []
        if not has_tensor(result):
            if len(node.meta["binds"]) != 1:
                raise Break("data-dependent-value", f"{name_of(node.target)}, of several numbers")
            ((_, names),) = node.meta["binds"]
            tensor = self.by_fake[id(node.all_input_nodes[0].meta["example_value"])]
            reads = (late.positive, late.negative) if len(names) == 2 else (None,)
            for name, read in zip(names, reads, strict=True):
                self.bound[name] = Reading(tensor, version_of(tensor.node), read, (), node)
            if len(names) == 2:
                self.numbers.known[result.node.value] = node
            return
        results = result if isinstance(result, (tuple, list)) else (result,)
        for _, names in node.meta["binds"]:
            found = [(t, dim) for t in results if isinstance(t, torch.Tensor)
                     for dim, n in enumerate(t.shape) if is_symbolic(n) and [expr_of(n)] == [*map(Expr.sym, names)]]  # fmt: skip
            if not found:
                raise Break(
                    "data-dependent-value", f"{name_of(node.target)}, which reads a number that no result shows"
                )
            t, dim = found[0]
            self.bound[names[0]] = Reading(self.by_fake[id(t)], None, late.size, (dim,), None)

    def read(self, source: Source, fake: Any) -> fx.Node:
        """A placeholder for what is at `source`."""
        anchor = self._last_input
        ctx = self.graph.inserting_after(anchor) if anchor is not None else self.graph.inserting_before(self._first())
        with ctx:
            node = self.graph.placeholder(self._fresh(source))
        self._last_input = node
        node.meta["example_value"] = fake
        node.meta["source"] = source
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
        if self.cx.devices and makes_tensors(target) and self.cx.is_none(kwargs.get("device", Const(None))):
            kwargs = {**kwargs, "device": Const(self.cx.devices[-1][0])}
        if target is operator.pow and isinstance(args[0], Const) and str(args[0].value).startswith("-"):
            target = torch.pow  # the text of a graph would be -2.0 ** x, which is -(2.0 ** x)
        return self._call("call_function", target, target, args, kwargs, always)

    def call_whole(self, target: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A function of the program's as one node; a tensor of its own that requires grad would get no gradient."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with OwnTensors():
                return target(*map(mutable, args), **{k: mutable(v) for k, v in kwargs.items()})

        if self.cx.devices:
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

    def is_mapped(self, tensor: Tensor) -> bool:
        """Whether `vmap` gives each call of a function another one."""
        return False

    def call_inner(
        self, target: Callable[..., Any], bodies: list[fx.GraphModule], args: list[Any], *, always: bool = False
    ) -> Value:
        """`target(*bodies, *args)`, a function of `ir/transforms.py`; values among `args` go into the graph."""
        nodes = [*(self.submodule(b) for b in bodies), *(self.to_arg(a) if isinstance(a, Value) else a for a in args)]
        made = self._record("call_function", target, target, nodes, {}, always)
        self._note_bodies(target)
        return made

    def _note_bodies(self, target: Callable[..., Any]) -> None:
        """Bodies that look again are part of the call made now, or of one that it is part of."""
        if not hasattr(self, "outer"):
            self.cx.effects.looks.called(next(n for n in iter(reversed(self.graph.nodes)) if n.target is target))

    def place_inner(
        self, target: Callable[..., Any], bodies: list[fx.GraphModule], args: list[Any], results: list[Tensor]
    ) -> None:
        """As `call_inner`, of a function whose results are known: from now on they are this graph's tensors."""
        nodes = [*(self.submodule(b) for b in bodies), *(self.to_arg(a) if isinstance(a, Value) else a for a in args)]
        node = self.graph.call_function(target, tuple(nodes))
        made = tuple(t.fake for t in results)
        node.meta["example_value"], node.meta["strides"], node.meta["user"] = made, layouts(made), self.cx.user_stack
        node.meta["acts"] = any(n.meta.get("acts") for body in bodies for n in body.graph.nodes)
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
            return self._record(op, target, run, nodes, knodes, always, whole=whole)
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
        number = self.call_method("item", [tensor], {})
        given = [_replaced(self.cx, a, tensor, number) for a in args]
        named = {k: _replaced(self.cx, a, tensor, number) for k, a in kwargs.items()}
        if all(a is b for a, b in zip((*args, *kwargs.values()), (*given, *named.values()), strict=True)):
            return None
        return (
            (self.cx.make(target), given, named)
            if op == "call_function"
            else (given[0].getattr(self.cx, target), given[1:], named)
        )

    def _record(
        self,
        op: str,
        target: Any,
        run: Any,
        nodes: list[Any],
        knodes: dict[str, Any],
        always: bool,
        *,
        whole: bool = False,
    ) -> Value:
        """Run the call on fakes, and add it to the graph.  `whole`: a function of the program's, which may have effects."""
        fakes = fx.node.map_arg(nodes, lambda n: n.meta["example_value"])
        kfakes = fx.node.map_arg(knodes, lambda n: n.meta["example_value"])
        given = operands_of(nodes, knodes)
        operands = [n for n in given if isinstance(n.meta["example_value"], torch.Tensor)]
        if not self.lands and any(FLIES in n.meta for n in operands):
            raise Break(
                "unsupported-operation", f"{name_of(target)} of what a collective gave, which was not waited for"
            )
        before, counted = [version_of(n) for n in operands], self._counts()
        wrappers = [n.meta["example_value"] for n in operands if is_wrapper(type(n.meta["example_value"]))]
        if not wrappers and any(jagged.is_nested_int(n.meta["example_value"]) for n in given):
            raise Break(
                "tensor-subclass", f"{name_of(target)} of the size of a ragged dimension"
            )  # fakes would take it
        leaves, specs = flatten_all(wrappers)
        inside = [(t, None if t.is_inference() else t._version) for t in leaves]
        draws, tells, kernels_draw = self.fake_mode.draws, self.fake_mode.tells, self.fake_mode.kernels_draw
        refusals, fails, meets = self.fake_mode.refusals, self.fake_mode.fails, self.fake_mode.meets
        tracked = [n for n in operands if n.meta["example_value"].requires_grad]
        self.fake_mode.asks, self.fake_mode.binder, self._binding = True, self._bind, []
        self._gives_number = target in GIVE_NUMBERS
        cause: BaseException | None = None
        try:
            with self.fake_mode:
                result = run(*fakes, **kfakes)
        except DataDependentOutputException as e:
            self.settle_numbers(operands)
            raise Break("data-dependent-value", f"{name_of(target)} ({e})") from e
        except DynamicOutputShapeException as e:
            self.settle_numbers(operands)
            raise Break("dynamic-output-shape", f"{name_of(target)}") from e
        except UnsupportedOperatorException as e:
            raise Break("operator-failed", f"{name_of(target)}: no shape function ({e})") from e
        except Specialise as e:
            if self.cx.sizes.symbols is not None and self.cx.sizes.symbols.is_late(e.names):
                raise Break("data-dependent-value", f"{name_of(target)}: {e.why}") from e
            raise
        except (Break, KeyboardInterrupt, NeedsSymbols):
            raise
        except Exception as e:
            cause = _first_cause(e)
            if isinstance(cause, (Break, NeedsSymbols)):
                raise cause from None
            self._specialise(fakes, kfakes, e)
            if isinstance(_first_cause(e), DataDependentOutputException):
                self.settle_numbers(operands)
                raise Break("data-dependent-value", f"{name_of(target)}") from e
            raise Break("operator-failed", f"{name_of(target)}: {type(e).__name__}: {e}") from e
        finally:
            self.fake_mode.asks, self.fake_mode.binder = False, None
            cause = None  # an error and this frame would hold each other
        acts, writes, once, others = (now > then for now, then in zip(self._counts(), counted, strict=True))
        python = whole and not has_tensor(result)
        drawn = self.fake_mode.draws > draws
        draws_only = drawn and self.fake_mode.effects - counted[0] == self.fake_mode.kernels_draw - kernels_draw
        draws_only &= not python and target not in _CHECKING
        acts |= target in _CHECKING or python
        mutates = before != [version_of(n) for n in operands] or (None in before and writes)
        if writes and not mutates and _below_versions():
            raise Break("unsupported-operation", f"{name_of(target)}, which may write, where versions are not counted")
        may_refuse = target in _CHECKING or self.fake_mode.refusals > refusals
        if wrappers and not self._writes_in_place(wrappers, specs, inside, mutates):
            raise Break("tensor-subclass", f"{name_of(target)}, which writes, on a {type(wrappers[0]).__name__}")
        late = may_refuse and (mutates or always or self.cx.errors_of_data.writes)
        written: list[fx.Node] = []
        if mutates:
            written = [n for n, v in zip(operands, before, strict=True) if v is None or v != version_of(n)]
            self.cx.effects.looks.writes(n.meta["example_value"] for n in written)
            for changing in self.replaced.values():
                changing.look(written)
            changed = [n.meta["example_value"] for n in written]
            if self.waited and not self.waited.isdisjoint(memory_of(t) for t in changed if t.layout is torch.strided):
                raise Break(
                    "unsupported-operation", f"{name_of(target)}, which writes what a collective gave by another name"
                )
            self.written |= {memory_of(t) for t in changed if t.layout is torch.strided}
            checked = any(self._may_be_refused(n.meta["example_value"]) for n in written)  # before it writes
            drops = not any(n.meta["example_value"].is_complex() for n in written)
            if drops and any(type(a) is complex for a in (*nodes, *knodes.values())):  # eager refuses, fakes do not
                raise Break("operator-failed", f"{name_of(target)}, which writes a complex number to others")
            late |= checked and self.cx.errors_of_data.writes
            may_refuse |= checked
            self.cx.errors_of_data.writes |= self._is_given(n.meta["example_value"] for n in written)
        outermost = self.levels and not hasattr(self, "outer")
        if outermost and mutates:  # what shares memory there is not known, and a refused graph runs again
            raise Break("inner-graph", f"{name_of(target)}, which writes, under a transform")
        cut = bool(self.levels) and name_of(target).endswith("detach_")
        if cut or any(not n.meta["example_value"].requires_grad for n in tracked):  # no value tells it, and no operator
            raise Break("unsupported-operation", f"{name_of(target)} of a tensor that requires grad")
        around = bool(wrappers) or any(is_wrapper(type(t)) for t in tensors_of(result))
        if self.fake_mode.shape_env is None and not around:
            self.asker.lay(target, run, fakes, kfakes, result, ordinary=not others, once=once)
        binds = bool(self._binding)
        self.happened |= always or mutates or once
        self.cx.errors_of_data.note(
            refuses=may_refuse,
            fails=self.fake_mode.fails > fails,
            acts=self.fake_mode.tells > tells,
            meets=self.fake_mode.meets > meets,
            draws=[t.device for t in tensors_of((result, fakes, kfakes))] if drawn else (),
            frames=self.cx.frames, effects=bool(self.cx.effects),
        )  # fmt: skip
        self.cx.errors_of_data.writes |= always and not mutates
        self.cx.errors_of_data.late |= late
        if not (always or mutates or acts or binds or has_tensor(result)):
            if operands and not is_told_by_fakes(result, op):
                raise Break("operator-failed", f"{name_of(target)} gives a {type(result).__name__}")
            return self.cx.make(result)
        known = self.known(result) if isinstance(result, torch.Tensor) else None
        if outermost and any(t.requires_grad for t in tensors_of(result)):
            raise Break("inner-graph", f"{name_of(target)} gives what requires grad, where autograd is left out")
        if outermost and self.cx.errors_of_data.levelled and known is not None and not mutates:
            raise Break("inner-graph", f"{name_of(target)} gives its argument, which it may not do for other strides")
        node = self.graph.create_node(op, target, tuple(nodes), knodes)
        node.meta["example_value"], node.meta["strides"] = result, layouts(result)
        node.meta["user"] = self.cx.user_stack
        node.meta["mutates"], node.meta["acts"], node.meta["refuses"] = mutates or always, acts, may_refuse
        node.meta["draws"] = draws_only
        node.meta["writes"] = written
        if python:
            node.meta["python"] = True  # no trace of its operators stands for a call
        self.doubtful |= known is not None and self.levels and not mutates
        if known is not None:  # an in-place operator: the result is its argument
            return known
        value = self.from_result(result, node)
        if binds:
            self._note_bound(node, result)
        return value

    def _writes_in_place(
        self,
        wrappers: list[torch.Tensor],
        specs: list[Spec | None],
        inside: list[tuple[torch.Tensor, int | None]],
        mutates: bool,
    ) -> bool:
        """Whether a call has written these wrappers, if at all, so that the program can see it: the very tensors inside, and
        the version of what is around them.  What is inside of inputs, and an input of the graph too, is written with them."""
        now, after = flatten_all(wrappers)
        if not all(map(same, specs, after)) or any(a is not b for a, (b, _) in zip(now, inside, strict=True)):
            return False
        if mutates and any(t.is_inference() for t in (*wrappers, *now)):  # which count no versions
            return False
        if not mutates:
            return all(version is None or t._version == version for t, version in inside)
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
        return True

    def is_given(self, value: Tensor) -> bool:
        """Whether it shares memory with an input."""
        return self._is_given((value.fake,))

    def _is_given(self, written: Iterable[torch.Tensor]) -> bool:
        """Whether a tensor lies in memory of an input, seen or not (`.data`)."""
        given = {t.fake.untyped_storage()._cdata for t in self.inputs if t.fake.layout is torch.strided}
        plain = [t for t in written if t.layout is torch.strided]
        return hasattr(self, "outer") or any(t.untyped_storage()._cdata in given for t in plain) or not plain

    def _may_be_refused(self, written: torch.Tensor) -> bool:
        """Whether eager may refuse a write that fakes allow: into elements that share memory (its kernels know), or what is
        given as a view of a leaf, or made under inference mode."""
        if written.layout is not torch.strided:
            return False
        shape, stride = written.shape, written.stride()
        if all(type(n) is int for n in (*shape, *stride)) and not apart(shape, stride):
            return True
        strided = [t for t in self.inputs if t.fake.layout is torch.strided]
        place = written.untyped_storage()._cdata
        given = [t.real for t in strided if t.real is not None and t.fake.untyped_storage()._cdata == place]
        if written.requires_grad and torch.is_grad_enabled():
            return bool(given)
        return not torch.is_inference_mode_enabled() and any(t.is_inference() for t in given)

    def known(self, fake: torch.Tensor) -> Tensor | None:
        """The value that `fake` stands for, if there is one."""
        return self.by_fake.get(id(fake))

    def stands_for(self, fake: torch.Tensor, value: Tensor) -> None:
        """From now on `fake`, too, is an input's value, whose fake is another."""
        self.by_fake[id(fake)] = value

    def node_of(self, value: Tensor) -> fx.Node:
        """The node of this graph that stands for a tensor."""
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
        value.node.meta["example_value"] = self.placeholders[value.node].fake = was

    def settle_numbers(self, operands: Iterable[fx.Node]) -> None:
        """Somebody looks into these: numbers of which the program made tensors become constants, which fakes know."""
        todo, seen, names = [*operands], set[fx.Node](), set[str]()
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                names |= node.meta.get("numbers", frozenset())
                todo += node.all_input_nodes
        if names and not self.cx.sizes.known_symbols.is_late(names):
            raise Specialise(sorted(names), "a tensor that was made of it is looked into")

    def _specialise(self, args: Any, kwargs: Any, error: Exception) -> None:
        """What fails for symbolic sizes is captured again with numbers; where all are marked, it breaks the graph."""
        sizes = self.cx.sizes
        if sizes.symbols is None:
            return
        given: list[Any] = []
        fx.node.map_aggregate(
            (args, kwargs), lambda a: given.extend([*a.shape] if isinstance(a, torch.Tensor) else [a])
        )
        names = sorted(
            frozenset().union(*(n.node.value.symbols for n in given if is_symbolic(n) and not n.node.is_bool()))
        )
        if sizes.symbols.is_late(names):
            raise Break("data-dependent-value", f"{type(error).__name__}: {error}") from error
        if free := [n for n in names if n not in sizes.required]:
            raise Specialise(free, f"{type(error).__name__}: {error}") from error

    def _counts(self) -> tuple[int, ...]:
        """How many operators have been dispatched: with effects, that write, that happen once, that are not ordinary."""
        mode = self.fake_mode
        return mode.effects, mode.writes, mode.once, mode.others

    def set_state(self, setter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Apply a change of global torch state now, and record it as a node."""
        result = setter(*args, **kwargs)
        self.happened = True
        self.cx.errors_of_data.switches = True
        self.asker.forget()
        node = self.graph.create_node("call_function", setter, args, kwargs)
        node.meta["mutates"] = True
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
                if has_tensor(element):
                    item = self.graph.call_function(operator.getitem, (node, i))
                    item.meta["example_value"] = element
                    items.append(self.from_result(element, item))
                else:
                    items.append(self.cx.make(element))
            return self.cx.sequence(items, type(result))
        if has_tensor(result):
            raise Break("operator-failed", f"{node.target} returned {type(result).__name__}")
        return self.cx.make(result)

    def to_arg(self, value: Value) -> Any:
        """The fx argument that stands for `value`."""
        value = self.cx.realize(value)
        if isinstance(value, Tensor):
            return self.node_of(value)
        if isinstance(value, Symbolic):
            return self.number(value)
        if isinstance(value, NestedInt):
            return self.nested_int(value)
        if isinstance(value, Array):
            raise Break("unsupported-operation", f"{value.describe()} among the arguments of a function of torch's")
        if isinstance(value, Const):
            return plain_constant(value.value)
        return value_to_arg(self, value)

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

    def literal(self, value: Tensor) -> int | None:
        """The integer of which the program made a tensor, where it has written nothing since."""
        node = value.node
        if node.graph is not self.graph or node.target not in (torch.tensor, torch.as_tensor) or node.kwargs:
            return None
        later = node
        while (later := later.next) is not self.graph._root:
            if later.meta.get("mutates"):
                return None
        return node.args[0] if len(node.args) == 1 and type(node.args[0]) is int else None

    def expect(self, value: Tensor, truth: bool) -> bool:
        """Assume that a tensor is true, or false: the graph looks, and where it is otherwise the frame runs eagerly, which raises
        what the program raises.  False where it cannot be assumed."""
        fake, errors = value.fake, self.cx.errors_of_data
        one = all(type(n) is int and n == 1 for n in fake.shape)
        if not (config.rewrite_assert_with_torch_assert and one and fake.device.type == "cpu") or fake.is_complex():
            return False  # on other devices a wrong assumption ends the process
        if hasattr(self, "outer") or errors.acts or self.cx.functions.concerns([value], {}):
            return False
        holds = value if fake.dtype is torch.bool else self.call_function(torch.ne, [value, Const(0)], {})
        if not truth:
            holds = self.call_function(torch.logical_not, [holds], {})
        errors.expected = errors.seen = True
        self.call_function(torch._assert_async, [holds, Const(EXPECTED)], {})
        return True

    # end ------------------------------------------------------------------------------------------------------
    def finish(self, outputs: list[Tensor], *, unused: bool = False) -> fx.GraphModule:
        """The graph returning a tuple of `outputs`; calls whose result nobody reads are removed unless they mutate, but with
        `unused`, if they are the program's."""
        self.graph.output(tuple(self.node_of(t) for t in outputs))
        self._check_bound()
        remove_dead(self.graph, unused=unused)
        self._name_sizes()
        self.used = self._prune_inputs()
        module = fx.GraphModule(self.attributes, self.graph, class_name="CapturedGraph")
        return module

    def must_check(self) -> bool:
        """Whether something is assumed of what a call binds, although nothing of the graph may be returned."""
        return bool(self.bound) and bool(self.cx.sizes.known_symbols.late)

    def _check_bound(self) -> None:
        """A node behind what binds symbols that looks if what is assumed of them holds; more may be assumed later, of these
        and of the sizes of inputs."""
        if not self.bound:
            return
        symbols = self.cx.sizes.known_symbols
        last = next(n for n in reversed(self.graph.nodes) if "binds" in n.meta)
        wanted = {n for r in symbols.late for n in r.expr.symbols}
        for value in self.inputs:
            wanted |= {s for n in value.fake.shape if is_symbolic(n) for s in expr_of(n).symbols}
        names = sorted(n for n in (wanted | self.bound.keys()) if n in self.bound or n in self.cx.sizes.origins)
        names = [n for n in names if n not in symbols.floats]
        if self.bound.keys().isdisjoint(names):  # of floats nothing is assumed
            return
        behind = last.next
        while behind.target is operator.getitem and behind.args[0] is last:  # several results, which sizes are read of
            behind = behind.next
        with self.graph.inserting_before(behind):
            nodes = tuple(self._symbol(n) for n in names)
            node = self.graph.call_function(late.Check(symbols, names), nodes)
        node.meta["acts"], node.meta["example_value"], node.meta["user"] = True, None, ()

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


# Functions that look at numbers, but not of a fake tensor.
_CHECKING = frozenset((torch.nn.functional.one_hot,))


def _first_cause(error: BaseException) -> BaseException:
    """Where a chain of causes begins."""
    return error if error.__cause__ is None else _first_cause(error.__cause__)


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
