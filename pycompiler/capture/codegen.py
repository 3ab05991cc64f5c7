"""From the state at the end of a capture to instructions: load values, build objects, replay side effects.

In: values, effects.  Out: bytecode (`bytecode.build` lists) that leaves the same objects behind as the captured
program would have.  Tensors computed by the graph come from its outputs, which are numbered as they are asked for.

Example: `head.load(value)` for a list of two graph tensors gives `LOAD_FAST out0; LOAD_FAST out1; BUILD_LIST 2`.
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from pycompiler.capture import again, looks, nodes, rebuild, shown, tracebacks
from pycompiler.capture.breaks import Break, SkipFrame
from pycompiler.capture.builtins import backwards
from pycompiler.capture.builtins.numbers import Getter
from pycompiler.capture.builtins.parameters import Parameter
from pycompiler.capture.builtins.patterns import Match, Text
from pycompiler.capture.bytecode import build
from pycompiler.capture.bytecode.build import Code
from pycompiler.capture.context import Capture
from pycompiler.capture.effects import Write, state_of
from pycompiler.capture.sizes import DRAWN
from pycompiler.capture.values.array import Array, ArrayMethod
from pycompiler.capture.values.attributes import Own, is_held, mro_lookup
from pycompiler.capture.values.base import Cell, Lazy, Value
from pycompiler.capture.values.classes import SUBSCRIPTED, Class, MadeMethod, MadeProperty, PyModule, Super
from pycompiler.capture.values.constant import Addressed, Const, Untold, Withheld
from pycompiler.capture.values.containers import (
    RESTLESS,
    UNORDERED,
    Deque,
    Dict,
    DictView,
    Key,
    List,
    Proxy,
    Set,
    Slice,
    Tally,
    Tuple,
    Variables,
    restless,
)
from pycompiler.capture.values.deferred import Deferred, Reading, ThreadIdent
from pycompiler.capture.values.ends import Contents
from pycompiler.capture.values.functions import Builtin, Function, Method, Partial
from pycompiler.capture.values.iterators import Begun, Generator, Iter, IteratorMethod, Over
from pycompiler.capture.values.objects import DELETED, HANDLE, InstanceDict, Object, Opaque, Range
from pycompiler.capture.values.owned import Owned
from pycompiler.capture.values.references import FIRST, HookNumber, MadeReference, Registered
from pycompiler.capture.values.symbolic import NestedInt, Symbolic, is_late
from pycompiler.capture.values.tensor import Handle, Storage, StorageMethod, Tensor, TensorMethod
from pycompiler.ir import jagged
from pycompiler.ir.arrays import array_of, number_of
from pycompiler.ir.source import ACCESSORS, Source, local
from pycompiler.ir.symbols import is_symbolic
from pycompiler.logs import artifact

log_effects = artifact("side_effects")


def _attribute(name: str) -> Callable[[Any], Code]:
    return lambda arg: build.load_attr(name)


# How generated code follows an accessor; what is not listed goes through the accessor's own `read`.
RELOAD: dict[str, Callable[[Any], Code]] = {
    "attr": build.load_attr,
    "item": lambda i: [*build.load_const(i), *build.load_item()],
    "dict_item": lambda k: [*build.load_const(k), *build.load_item()],
    "cell": _attribute("cell_contents"),
    "code": _attribute("__code__"),
    "defaults": _attribute("__defaults__"),
    "kwdefaults": _attribute("__kwdefaults__"),
    "closure": _attribute("__closure__"),
    "func_globals": _attribute("__globals__"),
    "method_self": _attribute("__self__"),
    "method_func": _attribute("__func__"),
    "grad": _attribute("grad"),
}


READ_ALONE = frozenset((*RELOAD, "instance_dict"))


class _Guarded(NamedTuple):
    """What guards tell of places."""

    walked: int  # how many guards this is of
    exact: set[Source]  # where the same object is in every call
    says_items: set[Source]  # what is there has a `__getitem__` of its own


class Head:
    """Collects the instructions of a generated frame's head."""

    def __init__(self, cx: Capture, value_cells: frozenset[str]) -> None:
        self.cx = cx
        check_readings(cx)
        self.value_cells = value_cells  # parameters that the preamble has put into new cells
        self.prepare: Code = []  # builds objects into temporaries
        self.temps: dict[int, str] = {}
        self.aliases: dict[int, str] = {}  # of `C[...]`, by the capture's
        self.keep: list[Value] = []
        self.outputs: list[Tensor] = []
        self.loads: collections.Counter[str] = collections.Counter()  # of each output
        self.referred: list[tuple[MadeReference, str]] = []  # weak references to outputs, and the nodes of these
        self.count = 0
        self.building: set[int] = set()
        self.pinned: dict[Source, str] = {}
        self.shared: dict[Source, str] = {}  # what was read for others below it
        self.first: Code = []  # reads what begun iterators have ahead, before anything else
        self.ahead: dict[Source, str] = {}
        self.entry: Code = []  # reads numbers before the graph runs
        self.numbers: dict[Source, str] = {}
        self._guarded = _Guarded(0, set(), set())
        self.handles = ""  # a variable: the first number of the handles that the frame makes
        if cx.takes_handles():
            self.handles = self.temp()
            count = build.load_const(len({n for n, _, _ in cx.registered}))
            self.prepare += [*self.call(rebuild.take_handles, count), *build.store_fast(self.handles)]
        self.tracebacks: dict[int, Value] = {}  # by the places that it shows: the first exception that has it
        self.own_cells: dict[str, Cell] = {}  # the root frame's own cells that the code built so far refers to
        made = {DRAWN.item(i) for i in range(len(cx.effects.draws))}
        given = (v for w in cx.effects.draws for v in w.value[:1] if not isinstance(v, Tensor))
        owners = [v for v in given if v.source is not None and v.source not in made]
        self.states = (
            self.temp() if owners and cx.errors_of_data.begins_again else None
        )  # to draw anew where the graph fails
        if self.states is not None:
            loads = [self.follow(v.source) for v in owners if v.source is not None]
            self.entry += [*self.call(rebuild.states_of, *loads), *build.store_fast(self.states)]
        for i, write in enumerate(cx.effects.draws):
            name = self.numbers[DRAWN.item(i)] = self.temp()
            owner, *args = (self.load(v) if v.source is None else self.follow(v.source) for v in write.value)
            self.entry += [*self.call(write.target.fn, owner, *args), *build.store_fast(name)]
        for reading in cx.effects.readings:  # in order, whoever needs them
            if not isinstance(reading, Reading):  # which may raise
                self.load(reading)
                continue
            name = self.temps[id(reading)] = self.temp()
            at = self.entry if reading.first else self.prepare
            at += [*self.call(reading.make, *map(self.load, reading.parts)), *build.store_fast(name)]

    # values ---------------------------------------------------------------------------------------------------
    def temp(self) -> str:
        self.count += 1
        return f"__pyc{self.count}"

    def call(self, fn: Any, *args: Code) -> Code:
        return build.call_function(build.load_const(fn), *args)

    def load(self, value: Value) -> Code:
        """Instructions that push `value`."""
        if isinstance(value, Symbolic):
            return self.number(value)
        if isinstance(value, Const) and not (isinstance(value, HookNumber) and self.handles):
            if self.made_class(type(value.value)) is not None or self.names_made_class(value.value):
                raise SkipFrame(f"{value.describe()}, of a class that each call makes, leaves the graph")
            self.cx.check_number(value)
            return build.load_const(value.value)
        if value.within is not None:
            return self.load(value.within)
        if isinstance(value, Tensor) and value.source is None and self.is_bare(value):
            return build.load_fast(self.output(value))
        if value.source is not None:
            at = value.source.root.arg
            if self.made_class(at) is None and not is_alias(at) and self.names_made_class(at):
                raise SkipFrame(f"{value.describe()}, of a class that each call makes, leaves the graph")
            return self.load_source(value.source)
        name = self.temps.get(id(value))
        if name is None:
            name = self.build(value)
        return build.load_fast(name)

    def alias(self, real: Any) -> Code:
        """Push what a class that each call makes gives for `C[...]`, of constants and such classes."""
        name = self.aliases.get(id(real))
        if name is None:
            parts = [self.alias(a) if is_alias(a) else self.load(self.cx.make(a)) for a in real.__args__]
            name = self.temp()
            self.store(self.call(rebuild.subscript, self.load_class(real.__origin__), *parts), name)
            self.aliases[id(real)] = name
        return build.load_fast(name)

    def is_bare(self, value: Tensor) -> bool:
        """Whether the graph gives a tensor as the program has it: plain, no number, without attributes, with its history."""
        plain = (value.cls is torch.Tensor or value.wrapper) and not value.overlay
        plain = plain and not self.cx.inference.is_made(value.fake) and backwards.retained_at(self.cx, value) is None
        return plain and backwards.spent(self.cx, value) is None and not self.cx.items.stands_for_number(value)

    def number(self, value: Symbolic) -> Code:
        """Push a number over symbols: computed from where these are read."""
        name = self.temps.get(id(value))
        if name is None:
            if value.source is not None and is_symbolic(value.sym):
                return self.at_entry(value.source)
            if not is_computed(value):
                return build.load_const(value.settle("as a result that no call computes").value)
            number = value.sym.node.value
            if isinstance(number, float):  # it became a constant
                return build.load_const(number)
            names = tuple(sorted(number.symbols))
            loads = [self.symbol(n) for n in names]
            name = self.temp()
            self.store(self.call(rebuild.compute, build.load_const(number), build.load_const(names), *loads), name)
            self.temps[id(value)] = name
            self.keep.append(value)
        return build.load_fast(name)

    def symbol(self, name: str) -> Code:
        """Push the value of a symbol; of one that the graph binds it is read of the graph's result."""
        at = self.cx.graph.bound.readings.get(name)
        if at is None:
            return self.at_entry(self.cx.sizes.source_of(name))
        if at.version is not None and at.tensor.fake._version != at.version:
            raise SkipFrame("a tensor is written whose number was read before")
        return self.call(rebuild.bound, self.load(at.tensor), build.load_const(at.read), build.load_const(at.args))

    def at_entry(self, source: Source) -> Code:
        """Push the number that is at `source` when the frame begins: the graph may turn its tensor (`x.t_()`)."""
        name = self.numbers.get(source)
        if name is None:
            name = self.numbers[source] = self.temp()
            self.entry += [*self.follow(source), *build.store_fast(name)]
        return build.load_fast(name)

    def output(self, tensor: Tensor) -> str:
        at = next((i for i, known in enumerate(self.outputs) if known.node is tensor.node), len(self.outputs))
        if at == len(self.outputs):
            self.outputs.append(tensor)
        self.loads[tensor.node.name] += 1
        return f"__out{at}"

    def counts_alone(self) -> None:
        """A view of data that a tensor was given counts its versions with that tensor; what a graph gives counts its own."""
        for writes in self.cx.graph.replaced.values():
            for tensor in self.outputs:
                if tensor.fake is not writes.fake and writes.is_of_alias(tensor.node) and writes.shares(tensor.fake):
                    raise Break("unsupported-operation", "a view of data that a tensor was given", writes.made_at)

    def only_referred(self) -> None:
        """A tensor to which weak references lead, and nothing else that generated code makes, may be held by torch."""
        counts = collections.Counter(name for _, name in self.referred)
        for reference, name in self.referred:
            if self.loads[name] <= counts[name]:
                raise Break("builtin-call", "a weak reference to a tensor that nothing else holds", reference.made_at)

    def load_source(self, source: Source) -> Code:
        """Push what is at `source`; read before side effects are replayed and cells get new contents, since both may change
        what it leads to."""
        if source.kind == "attr" and source.arg == "grad_fn":  # which writes change
            return self.at_entry(source)
        root = source.root
        through_cell = root.kind == "local" and root.arg in self.value_cells
        if not through_cell and (source.base is None or not self.cx.effects):
            return self.follow(source)
        name = self.pinned.get(source)
        if name is None:
            name = self.pinned[source] = self.temp()
            self.store(self.follow(source), name)
        return build.load_fast(name)

    def follow_all(self, sources: Sequence[Source]) -> list[Code]:
        """Push what is at these, one after the other; what several of them lead through is read once, and let go of behind the
        last."""
        below = collections.Counter(s.base for s in _links(sources) if s.base is not None and _is_read_alone(s.base))
        loads = list[Code]()
        for source in sources:
            through = [s for s in _chain(source) if below[s] > 1 and s not in self.shared]
            code: Code = []
            for s in reversed(through):
                read, name = self.follow(s), self.temp()
                code += [*read, *build.store_fast(name)]
                self.shared[s] = name
            loads.append([*code, *self.follow(source)])
        if self.shared:
            loads[-1] += [
                i for name in self.shared.values() for i in (*build.load_const(None), *build.store_fast(name))
            ]
        self.shared.clear()
        return loads

    def _read_ahead(self, source: Source, iterator: Source) -> Code:
        """Push what a begun iterator gives next: it is read before anything that is shared."""
        name = self.ahead.get(source)
        if name is None:
            name = self.ahead[source] = self.temp()
            shared, self.shared = self.shared, {}
            call = self.call(ACCESSORS["begun"].read, self.follow(iterator), build.load_const(source.arg))
            self.first += [*call, *build.store_fast(name)]
            self.shared = shared
        return build.load_fast(name)

    def follow(self, source: Source) -> Code:
        if (name := self.shared.get(source)) is not None:
            return build.load_fast(name)
        if source.base == DRAWN:
            return build.load_fast(self.numbers[source])
        if source.base is None:
            if source.kind == "local":
                name = source.arg
                return build.load_deref(name) if name in self.value_cells else build.load_raw(name)
            if source.kind == "globals":
                return build.load_const(self.cx.root_globals)
            if is_alias(source.arg) and self.names_made_class(source.arg):
                return self.alias(source.arg)
            return self.load_class(source.arg) if isinstance(source.arg, type) else build.load_const(source.arg)
        if source.kind == "mro_lookup" and self.is_lasting(source.base) and self.is_one_object(source):
            return build.load_const(ACCESSORS["mro_lookup"].read(source.base.arg, source.arg))
        if source.kind == "begun":
            return self._read_ahead(source, source.base)
        base = self.follow(source.base)
        reload = RELOAD.get(source.kind)
        odd = source.kind == "dict_item" and not isinstance(source.arg, (str, int))
        if (
            reload is not None
            and not odd
            and not (source.kind in ("item", "dict_item") and self.says_items(source.base))
        ):
            return [*base, *reload(source.arg)]
        return self.call(ACCESSORS[source.kind].read, base, build.load_const(source.arg))

    def ask_iterators(self) -> None:
        """What an iterator is over is none of the containers that the frame changes, but where it was; at its end it lets go of
        nothing that runs code."""
        effects = self.cx.effects
        for iterator in effects.advanced.values():
            if not isinstance(iterator, Begun):
                continue
            others = [
                v for v in effects.written() if isinstance(v, (List, Dict, Set)) and not iterator.is_over(self.cx, v)
            ]
            asked = [rebuild.only_apart] if others else []
            for ask in [*asked, *([rebuild.only_at_ease] if iterator.exhausted else [])]:
                loads = [self.follow(_source(v)) for v in (others if ask is rebuild.only_apart else [])]
                self.first += [*self.call(ask, self.follow(_source(iterator)), *loads), *build.pop_top()]

    def says_items(self, source: Source) -> bool:
        """Whether what is there has a `__getitem__` of its own."""
        return source in self.guarded().says_items

    def is_one_object(self, source: Source) -> bool:
        """Whether guards see to it that the same object is there in every call."""
        return source in self.guarded().exact

    def guarded(self) -> _Guarded:
        """What the guards so far tell; they are walked again only where there are more."""
        guards = self.cx.guards
        if self._guarded.walked != len(guards):
            exact = {g.source for g in guards.values() if g.kind in ("id_is", "equals")}
            classes = ((g.source, g.arg) for g in guards.values() if g.kind == "type_is")
            says = {s for s, cls in classes if isinstance(mro_lookup(cls, "__getitem__"), types.FunctionType)}
            self._guarded = _Guarded(len(guards), exact, says)
        return self._guarded

    def build(self, value: Value) -> str:
        """Build a new object into a temporary, once per value."""
        if id(value) in self.building:
            raise SkipFrame("a cyclic container made inside of the frame")
        self.building.add(id(value))
        self.keep.append(value)
        try:
            for kind, builder in BUILDERS.items():
                if isinstance(value, kind):
                    name = self.temp()
                    builder(self, value, name)
                    self.temps[id(value)] = name
                    return name
        finally:
            self.building.discard(id(value))
        raise SkipFrame(f"{value.describe()} cannot be rebuilt outside of the graph")

    def store(self, code: Code, name: str) -> None:
        self.prepare += [*code, *build.store_fast(name)]

    def load_class(self, cls: type) -> Code:
        """Push a class: in most cases one that exists."""
        known = self.made_class(cls)
        return build.load_const(cls) if known is None else self.load(known)

    def made_class(self, cls: Any) -> Class | None:
        """The value of a class that each call makes."""
        known = self.cx.by_id.get(id(cls))
        return known if isinstance(known, Class) and known.made is not None else None

    def names_made_class(self, real: Any) -> bool:
        """Whether a constant names the stand-in of a class that each call makes: a type like `list[Made]`, or a slot of it."""
        if not self.cx.made_classes:
            return False
        named = (
            real.cls
            if type(real) is Own
            else getattr(real, "__objclass__", None)
            if type(real) is types.MemberDescriptorType
            else real
        )
        if self.made_class(named) is not None:
            return True
        aliased = type(real).__module__ in ("types", "typing", "collections.abc", "_collections_abc")
        parts = real if type(real) in (tuple, frozenset) else getattr(real, "__args__", ()) if aliased else ()
        if aliased and hasattr(real, "__origin__"):
            parts = (real.__origin__, *parts)
        return any(map(self.names_made_class, parts))

    def is_lasting(self, source: Source) -> bool:
        """Whether it is a constant that is there in every call."""
        return source.kind == "const" and self.made_class(source.arg) is None

    def load_all(self, values: list[Value]) -> list[Code]:
        return [
            self.load(self.cx.realize(v)) if not isinstance(v, Lazy) else self.load_source(_source(v)) for v in values
        ]

    def load_item(self, value: Value) -> Code:
        return self.load_source(_source(value)) if isinstance(value, Lazy) else self.load(value)

    def load_cell(self, cell: Cell) -> Code:
        if cell.frame_name is not None:
            self.own_cells[cell.frame_name] = cell
            return build.load_raw(cell.frame_name)
        return self.load(cell)


def is_alias(real: Any) -> bool:
    return any(type(real) is cls for cls in SUBSCRIPTED)


def _source(value: Value) -> Source:
    assert value.source is not None
    return value.source


def check_readings(cx: Capture) -> None:
    """No operator may come behind what is read behind the graph, and what was begun is over."""
    for work in cx.effects.works:
        if not work.is_over:
            raise work.broke
    late = next((r for r in cx.effects.readings if isinstance(r, Reading) and not r.first), None)
    if late is not None and any(n.op.startswith("call") for n in _behind(late.behind)):
        assert late.told is not None
        raise late.told


def _behind(node: Any) -> Iterator[Any]:
    while (node := node.next).op != "root":
        yield node


def _flat(codes: list[Code]) -> Code:
    return [i for code in codes for i in code]


def _tuple(head: Head, value: Tuple, name: str) -> None:
    items = [head.load_item(v) for v in value.items]
    if value.cls is tuple and len(items) > build.AT_ONCE:
        head.store(head.call(tuple, build.list_of(items)), name)
    elif value.cls is tuple:
        head.store([*_flat(items), *build.build_tuple(len(items))], name)
    elif value.cls is torch.Size:
        head.store(head.call(torch.Size, [*_flat(items), *build.build_tuple(len(items))]), name)
    else:
        head.store(head.call(rebuild.make_tuple_subclass, head.load_class(value.cls), *items), name)


def _list(head: Head, value: List, name: str) -> None:
    items = [head.load_item(v) for v in value.items]
    made = build.list_of(items)
    extra = [build.load_const(value.limit)] if isinstance(value, Deque) else []
    head.store(made if value.cls is list else head.call(value.cls, made, *extra), name)


def _store_keys(keys: Iterable[Key]) -> None:
    """Generated code is about to store these: break where one was made that it cannot store."""
    found = restless(keys)
    if found is not None:
        raise Break("mutation-unsupported", RESTLESS, found.at)


def _dict(head: Head, value: Dict, name: str) -> None:
    _store_keys(value.entries)
    pairs = [code for k, v in value.entries.items() for code in (head.load(k.value), head.load_item(v))]
    if value.cls is dict:
        head.store([*_flat(pairs), *build.build_map(len(pairs) // 2)], name)
        return
    factory = [head.load(value.default_factory)] if value.default_factory is not None else []
    head.store(head.call(value.cls, *factory), name)
    head.prepare += [*head.call(rebuild.fill_dict, build.load_fast(name), *pairs), *build.pop_top()]
    if value.attributes:
        names, held = build.load_const(tuple(value.attributes)), head.load_all([*value.attributes.values()])
        head.prepare += [*head.call(rebuild.set_attributes, build.load_fast(name), names, *held), *build.pop_top()]


def _reference(head: Head, value: MadeReference, name: str) -> None:
    load = head.load(value.referent)
    if isinstance(value.referent, Tensor) and value.referent.source is None:
        if not head.is_bare(value.referent):
            raise Break("builtin-call", "a weak reference to a tensor with attributes", value.made_at)
        head.referred.append((value, value.referent.node.name))
    head.store(head.call(weakref.ref, load), name)


def _registered(head: Head, value: Registered, name: str) -> None:
    head.store(head.call(weakref.ref, head.load(value.entries)), name)


def _hook_number(head: Head, value: HookNumber, name: str) -> None:
    first = build.load_fast(head.handles)
    head.store(head.call(operator.add, first, build.load_const(value.value - FIRST)), name)


def _variables(head: Head, value: Variables, name: str) -> None:
    if value.frame() in head.cx.stopped:
        raise SkipFrame("what locals() gave is alive where the graph ends, and a later call would change it")
    _dict(head, value, name)


def _instance_dict(head: Head, value: InstanceDict, name: str) -> None:
    head.store([*head.load(value.owner), *build.load_attr("__dict__")], name)


def _set(head: Head, value: Set, name: str) -> None:
    _store_keys(value.entries)
    if value.recipe is not None and any(restless(v.entries) is not None for v in value.recipe[1]):
        raise Break("mutation-unsupported", RESTLESS, value.made_at)
    if value.additions() is None and value.recipe is not None and not any(v.changed for v in value.recipe[1]):
        head.store(head.call(value.recipe[0], *[head.load(v) for v in value.recipe[1]]), name)
        return
    items = [head.load(v) for v in _additions(head, value)]
    if value.cls is set:
        head.store([*_flat(items), *build.build_set(len(items))], name)
    else:
        head.store(head.call(value.cls, [*_flat(items), *build.build_tuple(len(items))]), name)


def _additions(head: Head, value: Set) -> list[Value]:
    """The elements in the order in which they are added to a new set, which then has the order that it has in eager."""
    order = value.additions()
    if order is None:
        if value.made_at is None:
            raise SkipFrame(f"a {value.cls.__name__} of which the order is not known is alive where the graph ends")
        raise Break("unsupported-operation", UNORDERED, value.made_at)
    if not value.plain and len(order) > 1:
        head.cx.looks_at_hashes(value.shadow)
    return order


def _object(head: Head, value: Object, name: str) -> None:
    args = build.load_const(None)
    if value.args is not None:
        made_of = value.args if value.group is None else value.group
        args = [*_flat([head.load_item(a) for a in made_of]), *build.build_tuple(len(made_of))]
    storage = value.storage
    if isinstance(storage, Tuple):
        _tuple(head, Tuple(storage.items, value.cls), name)
    else:
        head.store(head.call(rebuild.make_object, head.load_class(value.cls), args), name)
    head.temps[id(value)] = name  # attributes may lead back to the object
    me = build.load_fast(name)
    if isinstance(storage, (Dict, Set)):
        _store_keys(storage.entries)
    if isinstance(storage, Dict):
        pairs = [code for k, v in storage.entries.items() for code in (head.load(k.value), head.load_item(v))]
        head.prepare += [*head.call(rebuild.fill_dict, me, *pairs), *build.pop_top()]
    elif isinstance(storage, List):
        items = [head.load_item(v) for v in storage.items]
        head.prepare += [*head.call(rebuild.fill_list, me, *items), *build.pop_top()]
    elif isinstance(storage, Set):
        items = [head.load(v) for v in _additions(head, storage)]
        head.prepare += [*head.call(rebuild.fill_set, me, *items), *build.pop_top()]
    if value.group is not None and value.args is not None:  # which tell what was given, and may say otherwise by now
        given = [*_flat([head.load_item(a) for a in value.args]), *build.build_tuple(len(value.args))]
        head.prepare += [*head.call(rebuild.set_attributes, me, build.load_const(("args",)), given), *build.pop_top()]
    if value.passed or value.raised_at is not None:
        head.prepare += [*_grown_traceback(head, me, value), *build.pop_top()]
    stored = [k for k, v in value.overlay.items() if v is not DELETED]
    for held, names in itertools.groupby(stored, lambda k: is_held(value.cls, k)):  # in order, which their dict tells
        store = rebuild.hold_attributes if held else rebuild.set_attributes
        known = tuple(names)
        values = [head.load_item(value.overlay[k]) for k in known]
        head.prepare += [*head.call(store, build.load_fast(name), build.load_const(known), *values), *build.pop_top()]


def _grown_traceback(head: Head, load: Code, exception: Value) -> Code:
    known = isinstance(exception, Object) and "__context__" in exception.overlay
    add = tracebacks.add_traceback if known else tracebacks.raise_outside
    if exception.source is None and exception.passed:  # parts of a group have one traceback
        alike = head.tracebacks.setdefault(id(exception.passed), exception)
        if alike is not exception:
            return head.call(add, head.call(tracebacks.with_traceback_of, load, head.load(alike)))
    return head.call(add, load, *[build.load_const(place) for place in tracebacks.entries(exception.passed)])


def _function(head: Head, value: Function, name: str) -> None:
    none = build.load_const(None)
    defaults, kwdefaults, closure = none, none, none
    if value.made_defaults:
        loads = [head.load_item(v) for v in value.made_defaults]
        defaults = [*_flat(loads), *build.build_tuple(len(loads))]
    if value.made_kwdefaults:
        pairs = [c for k, v in value.made_kwdefaults.items() for c in (build.load_const(k), head.load_item(v))]
        kwdefaults = [*_flat(pairs), *build.build_map(len(pairs) // 2)]
    if value.made_closure:
        cells = [head.load_cell(c) for c in value.made_closure]
        closure = [*_flat(cells), *build.build_tuple(len(cells))]
    attributes = none
    plain = {k: v for k, v in value.overlay.items() if k not in ("__name__", "__qualname__")}
    if plain:
        pairs = [c for k, v in plain.items() for c in (build.load_const(k), head.load_item(v))]
        attributes = [*_flat(pairs), *build.build_map(len(pairs) // 2)]
    names = build.load_const((value.name, value.qualname))
    parts = (build.load_const(value.code), build.load_const(value.globals), names, defaults, kwdefaults, closure)
    head.store(head.call(rebuild.make_function, *parts, attributes), name)


def _cell(head: Head, value: Cell, name: str) -> None:
    contents = [] if value.contents is None else [head.load_item(value.contents)]
    head.store(head.call(rebuild.make_cell, *contents), name)


def _iter(head: Head, value: Iter, name: str) -> None:
    if value.exhausted and isinstance(value, Generator):
        head.store(head.call(rebuild.ended_generator, build.load_const(value.names)), name)
        return
    if value.exhausted:
        head.store(head.call(rebuild.ended_iterator, build.load_const(value.cls)), name)
        return
    if value.recipe is None:
        kind = "generator" if isinstance(value, Generator) else value.cls.__name__
        raise Break("generator-state", f"a {kind} made inside of the frame", value.made_at)
    make, args = value.recipe(value.taken)
    if value.over is not None and _disturbed(head, value.over, value.taken):
        raise Break("generator-state", f"a {value.cls.__name__} over what the frame has changed", value.made_at)
    head.store(head.call(make, *[head.load_item(a) for a in args]), name)


def _disturbed(head: Head, over: Over, taken: int) -> bool:
    """Whether an iterator that generated code makes anew would not go on where the program's does: for what happened to the
    container since, or by the writes that are replayed later."""
    container = over.container
    if over.is_moved(taken):
        return True
    if not head.cx.effects.is_written(container):
        return False
    if isinstance(container, List) and not isinstance(container, Deque):  # it would stand behind the end
        return (over.length - taken if over.backwards else taken) > container.length_before
    if not isinstance(container, Dict):
        return True
    keys = [key.value for key in container.entries]
    return len(keys) != len(container.real) or not all(
        key.is_const() and key.const() is old for key, old in zip(keys, container.real, strict=True)
    )


def _method(head: Head, value: Method, name: str) -> None:
    head.store(head.call(_bind_method, head.load(value.function), head.load(value.receiver)), name)


def _bind_method(function: Any, receiver: Any) -> Any:
    if isinstance(function, types.ClassMethodDescriptorType):
        return function.__get__(None, receiver)
    if isinstance(function, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return function.__get__(receiver, type(receiver))
    if not callable(function):  # a classmethod binds anything
        return classmethod(function).__get__(None, receiver)
    return types.MethodType(function, receiver)


def _const(head: Head, value: Any, name: str) -> None:
    if isinstance(value, Class) and value.made is not None:
        fn, args, kwargs = value.made
        if value.cell is not None:  # filled by what makes the class
            cell = head.temps[id(value.cell)] = head.temp()
            head.store(head.call(rebuild.make_cell), cell)
        loads = [head.load(v) for v in (*args, *kwargs.values())]
        head.store(build.call_function(build.load_const(fn), *loads, kwnames=tuple(kwargs)), name)
        head.temps[id(value)] = name  # what it was given since may lead back to it
        for change, args, words in value.steps:
            given = build.load_const(functools.partial(change, **words) if words else change)
            called = build.call_function(given, build.load_fast(name), *head.load_all(args))
            head.prepare += [*called, *build.pop_top()]
        return
    real = {Class: "cls", PyModule: "module", Builtin: "fn", Opaque: "real"}[type(value)]
    if is_alias(getattr(value, real)) and head.names_made_class(getattr(value, real)):
        head.store(head.alias(getattr(value, real)), name)
        return
    if head.names_made_class(getattr(value, real)):
        raise SkipFrame(f"{value.describe()}, of a class that each call makes, leaves the graph")
    head.store(build.load_const(getattr(value, real)), name)


def _partial(head: Head, value: Partial, name: str) -> None:
    if value.shown:
        raise SkipFrame("a partial leaves the graph that made it and looked at its parts")
    names = tuple(value.kwargs)
    loads = [head.load(value.function), *(head.load_item(v) for v in (*value.args, *value.kwargs.values()))]
    head.store(build.call_function(build.load_const(functools.partial), *loads, kwnames=names), name)
    if value.overlay:
        known = tuple(value.overlay)
        head.temps[id(value)] = name  # an attribute may lead back to it
        values = [head.load_item(v) for v in value.overlay.values()]
        store = head.call(rebuild.set_attributes, build.load_fast(name), build.load_const(known), *values)
        head.prepare += [*store, *build.pop_top()]


def _getter(head: Head, value: Getter, name: str) -> None:
    head.store(head.call(value.cls, *[head.load(k) for k in value.keys]), name)


def _slice(head: Head, value: Slice, name: str) -> None:
    head.store(head.call(slice, *[head.load(p) for p in value.parts]), name)


def _view(head: Head, value: DictView, name: str) -> None:
    owner: Any = collections.OrderedDict if value.is_ordered() else value.mapping.seen_by
    head.store(head.call(getattr(owner, value.what), head.load(value.mapping)), name)


def _proxy(head: Head, value: Proxy, name: str) -> None:
    head.store(head.call(types.MappingProxyType, head.load(value.mapping)), name)


def _tensor(head: Head, value: Tensor, name: str) -> None:
    if (retained := backwards.retained_at(head.cx, value)) is not None:
        raise Break("unsupported-attribute", "Tensor.retain_grad() of what leaves the graph", *retained)
    behind = backwards.spent(head.cx, value)
    if head.cx.items.stands_for_number(value):
        load = head.call(torch.Tensor.item, build.load_fast(head.output(value)))
    elif behind is None:
        load = build.load_fast(head.output(value))
    else:
        given = head.cx.graph.call_method("detach", [value], {})
        assert isinstance(given, Tensor)
        load = head.call(rebuild.spent, build.load_fast(head.output(given)), *head.load_all([*behind]))
    if head.cx.inference.is_made(value.fake):
        load = head.call(rebuild.as_inference, load)
    if value.cls is not torch.Tensor and not value.wrapper:
        load = head.call(rebuild.as_subclass, load, build.load_const(value.cls))
    _with_attributes(head, value, name, load)


def _parameter(head: Head, value: Parameter, name: str) -> None:
    _with_attributes(head, value, name, build.load_fast(head.numbers[value.place]))


def _with_attributes(head: Head, value: Tensor, name: str, load: Code) -> None:
    head.store(load, name)
    head.temps[id(value)] = name  # attributes may lead back to it
    if value.overlay:
        values = [head.load_item(v) for v in value.overlay.values()]
        names = build.load_const(tuple(value.overlay))
        head.prepare += [*head.call(rebuild.set_attributes, build.load_fast(name), names, *values), *build.pop_top()]


def _array(head: Head, value: Array, name: str) -> None:
    head.store(head.call(number_of if value.scalar else array_of, head.load(value.tensor)), name)


def _array_method(head: Head, value: ArrayMethod, name: str) -> None:
    head.store([*head.load(value.array), *build.load_attr(value.name)], name)


def _tensor_method(head: Head, value: TensorMethod, name: str) -> None:
    head.store([*head.load(value.tensor), *build.load_attr(value.name)], name)


def _storage(head: Head, value: Storage, name: str) -> None:
    head.store(head.call(torch.Tensor.untyped_storage, head.load(value.tensor)), name)


def _storage_method(head: Head, value: StorageMethod, name: str) -> None:
    head.store([*head.load(value.storage), *build.load_attr(value.name)], name)


def _iterator_method(head: Head, value: IteratorMethod, name: str) -> None:
    head.store([*head.load(value.iterator), *build.load_attr(value.name)], name)


def _super(head: Head, value: Super, name: str) -> None:
    head.store(head.call(super, head.load_class(value.cls), head.load(value.receiver)), name)


def _pattern(head: Head, value: Text, name: str) -> None:
    if isinstance(value, Match):
        raise Break("builtin-call", "a match made inside of a function leaves it")
    head.store(build.load_const(value.real), name)


def _made_descriptor(head: Head, value: MadeProperty | MadeMethod, name: str) -> None:
    if value.cls not in (property, staticmethod, classmethod, functools.cached_property):
        raise Break("builtin-call", "a property made inside of a function leaves it")
    head.store(head.call(value.cls, *head.load_all(value.given())), name)


def _range(head: Head, value: Range, name: str) -> None:
    head.store(head.call(rebuild.open_range, build.load_const(value.name), build.load_const(value.left)), name)


def _handle(head: Head, value: Handle, name: str) -> None:
    if value.owner is None or value.hook is None:
        raise SkipFrame(f"{value.describe()} of a tensor of the graph")
    # Handles are made before flags are set, and only what requires grad takes a hook.
    if value.owner in head.cx.graph.flipped_at:
        head.prepare += [*head.call(rebuild.set_flag, head.load(value.owner), build.load_const(True)), *build.pop_top()]
    head.store(head.call(torch.Tensor.register_hook, head.load(value.owner), head.load_item(value.hook)), name)


def _untold(head: Head, value: Untold | Withheld, name: str) -> None:
    raise value.broke


def _addressed(head: Head, value: Addressed | Deferred, name: str) -> None:
    head.store(head.call(value.make, *head.load_all(value.parts)), name)


def _thread_ident(head: Head, value: ThreadIdent, name: str) -> None:
    head.store(head.call(threading.get_ident), name)


def _nested_int(head: Head, value: NestedInt, name: str) -> None:
    owner, dim = value.owner(head.cx)
    head.store(head.call(jagged.size, head.load(owner), build.load_const(dim)), name)


def _owned(head: Head, value: Owned, name: str) -> None:
    """Everything that happened to it, and to those that it was used with, happens again."""
    for step in value.journal:
        loads = [head.load(v) for v in (*step.args, *step.kwargs.values())]
        fn = (
            [build.load_const(step.fn)]
            if not step.raised
            else [build.load_const(rebuild.quietly), build.load_const(step.fn)]
        )
        called = build.call_function(*fn, *loads, kwnames=tuple(step.kwargs))
        if step.made is None:
            head.prepare += [*called, *build.pop_top()]
            continue
        made = head.temps[id(step.made)] = name if step.made is value else head.temp()
        head.keep.append(step.made)
        head.store(called, made)


BUILDERS: dict[type[Value], Callable[[Head, Any, str], None]] = {
    Text: _pattern, InstanceDict: _instance_dict, Variables: _variables, Tuple: _tuple, List: _list, Dict: _dict, Set: _set,
    Object: _object, Function: _function, Cell: _cell, Iter: _iter, Method: _method, Class: _const, PyModule: _const,
    Builtin: _const, Opaque: _const, Owned: _owned, Partial: _partial, Getter: _getter, Slice: _slice,
    DictView: _view, Proxy: _proxy,
    TensorMethod: _tensor_method, NestedInt: _nested_int, Addressed: _addressed,
    Deferred: _addressed, ThreadIdent: _thread_ident, Storage: _storage, StorageMethod: _storage_method,
    Untold: _untold, Withheld: _untold,
    MadeReference: _reference, Registered: _registered, HookNumber: _hook_number, IteratorMethod: _iterator_method, Super: _super,
    MadeProperty: _made_descriptor, MadeMethod: _made_descriptor,
    Parameter: _parameter, Tensor: _tensor, Handle: _handle, Range: _range, Array: _array, ArrayMethod: _array_method,
}  # fmt: skip


# side effects -------------------------------------------------------------------------------------------------
def replay_effects(head: Head) -> Code:
    """Instructions that apply all recorded writes to objects that existed before, in order; one that changes nothing has none."""
    effects = head.cx.effects
    if log_effects.enabled and effects.journal:
        log_effects("side effects that follow the graph:\n%s", effects.describe())
    codes = [REPLAYS[write.kind](head, write) for write in effects.journal]
    codes += _watch(head)
    return _flat([[*code, *build.pop_top()] for code in codes if code])


def ask_drops(head: Head) -> Code:
    """First of all: whether the objects that the frame's writes drop end quietly, as those that were seen."""
    head.ask_iterators()
    drops = head.cx.effects.drops.values()
    if not drops:
        return []
    owners = [DROPPED.get(kind, _followed)(head, target) for kind, _, target in drops]
    places = tuple(("value" if kind in ("key", "tally") else kind, name) for kind, name, _ in drops)
    return [*head.call(rebuild.only_quiet, build.load_const(places), *owners), *build.pop_top()]


def _followed(head: Head, target: Value) -> Code:
    return head.follow(_source(target))


def _at_key(head: Head, target: tuple[Dict, Symbolic | Lazy]) -> Code:
    """What a dict has at a text, or at a number, which is computed of what is there when the frame begins."""
    container, key = target
    return head.call(rebuild.at_key, head.follow(_source(container)), _key_at_begin(head, key))


def _counted_at(head: Head, target: tuple[Dict, Symbolic | Lazy, bool]) -> Code:
    container, key, zero = target
    place = head.follow(_source(container)), _key_at_begin(head, key)
    return head.call(rebuild.counted_at, *place, build.load_const(zero))


def _key_at_begin(head: Head, key: Symbolic | Lazy) -> Code:
    if isinstance(key, Lazy):
        load = head.follow(_source(key))
    elif is_computed(key):
        number = key.sym.node.value
        names = tuple(sorted(number.symbols))
        loads = [head.follow(head.cx.sizes.source_of(n)) for n in names]
        load = head.call(rebuild.compute, build.load_const(number), build.load_const(names), *loads)
    else:
        load = build.load_const(key.settle("as a key").value)
    return load


DROPPED: dict[str, Callable[[Head, Any], Code]] = {
    "global": lambda head, namespace: build.load_const(namespace),
    "key": _at_key,
    "tally": _counted_at,
}
"""How generated code loads what has, or is, what a write drops."""


def ask_tables(head: Head) -> Code:
    """Before that: whether what the frame computed can be put into the tables of cached functions."""
    asked = head.cx.effects.tables.items()
    return _flat([[*head.call(k.only_open, build.load_const(n)), *build.pop_top()] for k, n in asked])


def ask_warnings(head: Head) -> Code:
    """Before that: whether what the frame warns of is only shown, and changes nothing that the frame has looked at."""
    said = head.cx.effects.warnings
    if not said:
        return []
    categories, spaces = tuple(dict.fromkeys(w.category for w in said)), {id(w.namespace): w.namespace for w in said}
    namespaces = [*_flat([build.load_const(s) for s in spaces.values()]), *build.build_tuple(len(spaces))]
    looked_at = [v.source for v in head.cx.by_id.values() if isinstance(v, (List, Dict, Iter)) and v.source is not None]
    followed = map(head.follow, dict.fromkeys(looked_at))
    return [*head.call(shown.only_shown, build.load_const(categories), namespaces, *followed), *build.pop_top()]


def _watch(head: Head) -> list[Code]:
    """Hang on to the results of such calls what their backward looks at again; other results are known by now."""
    bodies = [b for b in head.cx.effects.looks.bodies if b.runs_again]
    reached = nodes.reached_from(head.cx.graph.graph, [b.call for b in bodies if b.call is not None])
    leading: dict[tuple[str, ...], list[looks.Body]] = {}  # to these results
    for k, body in enumerate(bodies):
        results = tuple(head.output(t) for t in head.outputs if reached.get(t.node, 0) >> k & 1)
        if results:
            leading.setdefault(results, []).append(body)
    inputs = head.cx.graph.inputs
    written = [t.source for t in (inputs[i] for i in head.cx.graph.mutated_inputs()) if t.source is not None]
    stored = [s for w in head.cx.effects.journal for s in _stored(w)]
    codes = []
    for results, group in leading.items():
        found = looks.again(group, head.cx.guards.values(), head.cx.sizes, written, stored)
        if found is not None:
            given = [*_flat([build.load_fast(name) for name in results]), *build.build_tuple(len(results))]
            roots = [head.follow(local(name)) for name in found.names]
            namespace = build.load_const(head.cx.root_globals)
            outliving = {id(v): v for body in group for v in body.made if id(v) in head.temps}.values()
            made = [*_flat([head.load(v) for v in outliving]), *build.build_tuple(len(outliving))]
            codes.append(head.call(again.watch, build.load_const(found), namespace, given, made, *roots))
    return codes


def _stored(write: Write) -> list[Source]:
    """Where this write of an existing object or container is seen afterwards."""
    source = getattr(write.target, "source", None) if write.kind in ("attribute", "contents") else None
    if source is None:
        return []
    if write.kind == "contents":
        return [source]
    assert write.name is not None
    return [write.target.namespace_source().dict_item(write.name)]


def _replay_attribute(head: Head, write: Write) -> Code:
    target, name = head.load(write.target), build.load_const(write.name)
    held = is_held(write.target.cls, write.name or "")
    if write.value is DELETED:
        remove = [build.load_const(write.target.stores.__delattr__)]
        return (
            head.call(rebuild.drop_held, target, name)
            if held
            else head.call(rebuild.delete_attribute, *remove, target, name)
        )
    if held:
        return head.call(rebuild.hold_attributes, target, build.load_const((write.name,)), head.load_item(write.value))
    return head.call(write.target.stores.__setattr__, target, name, head.load_item(write.value))


def _replay_class(head: Head, write: Write) -> Code:
    if head.cx.effects.looks.watches:
        raise Break("mutation-unsupported", "a class, beside what a backward looks at again", write.before)
    return head.call(
        type.__setattr__, build.load_const(write.target.cls), build.load_const(write.name), head.load_item(write.value)
    )


def _replay_grad(head: Head, write: Write) -> Code:
    return head.call(rebuild.set_grad, head.load(write.target), head.load_item(write.value))


def _replay_flag(head: Head, write: Write) -> Code:
    as_it_was = next(iter(head.cx.graph.turned[write.target]))
    others = [w for w in head.cx.effects.journal if w.kind == "flag" and w.target is write.target]
    flag = write.value.const()
    if flag is as_it_was and len(others) == 1:
        return []
    return head.call(rebuild.set_flag, head.load(write.target), build.load_const(flag))


def _replay_global(head: Head, write: Write) -> Code:
    place = build.load_const(write.target), build.load_const(write.name)
    if write.value is DELETED:
        return head.call(rebuild.delete_global, *place)
    return head.call(rebuild.set_global, *place, head.load_item(write.value))


def _replay_cell(head: Head, write: Write) -> Code:
    contents = [] if write.value is None else [head.load_item(write.value)]
    return head.call(rebuild.set_cell, head.load_source(_source(write.target)), *contents)


def _replay_traceback(head: Head, write: Write) -> Code:
    return _grown_traceback(head, head.load(write.target), write.target)


def _replay_call(head: Head, write: Write) -> Code:
    if write.name == HANDLE and head.handles:
        return []
    return build.call_function(head.load(write.target), *[head.load_item(a) for a in write.value])


def _replay_warning(head: Head, write: Write) -> Code:
    said = write.target
    if said.once is not None:
        return head.call(shown.warn_by, *map(build.load_const, (said.once, said.filename, said.lineno, said.namespace)))
    given = (said.message, said.category, said.filename, said.lineno, said.namespace)
    return head.call(shown.warn, *map(build.load_const, given))


def _replay_keep(head: Head, write: Write) -> Code:
    result, *args = write.value
    loads = [build.load_const(write.name), *([] if result is None else [head.load_item(result)]), *head.load_all(args)]
    return head.call(write.target.hit if result is None else write.target.put, *loads)


def _replay_hit(head: Head, write: Write) -> Code:
    return head.call(type(write.target).hit, build.load_const(write.target))


def _replay_advance(head: Head, write: Write) -> Code:
    return head.call(rebuild.advance, head.load(write.target), build.load_const(write.value))


def _replay_contents(head: Head, write: Write) -> Code:
    container = write.target
    target, after = head.load_source(_source(container)), state_of(container) if write.after is None else write.after
    if isinstance(container, List) and write.before.emptied != after.emptied:
        fill = rebuild.fill_deque if isinstance(container, Deque) else rebuild.fill_list
        return head.call(fill, target, *[head.load_item(v) for v in after.items])
    if isinstance(container, List) and not after.is_whole:
        return _changed_ends(head, container, target, write.before, after)
    if isinstance(container, Deque):
        fill = rebuild.fill_deque if container.moves else rebuild.store_deque
        return head.call(fill, target, *[head.load_item(v) for v in after.items])
    if isinstance(container, List):
        return _changed_list(head, target, write.before.items, after.items)
    if isinstance(container, Dict):
        return _replay_dict(head, target, write.before, after)
    if isinstance(container, Set):
        log = container.log[write.before : after]
        steps = [head.call(how, target, *([] if v is None else [head.load(v)])) for how, v in log]
        return _flat([[*build.pop_top(), *step] if i else step for i, step in enumerate(steps)])
    raise SkipFrame(f"a change of {container.describe()} cannot be replayed")


def _replay_dict(head: Head, target: Code, before: Any, after: Any) -> Code:
    (old, stored, emptied, _), (new, stores, by_now, whole) = before, after
    last = stores if emptied != by_now else stores[len(stored) :]
    if emptied != by_now:
        pairs = [c for k, v in new.items() for c in (head.load(k.value), head.load_item(v))]
        return head.call(rebuild.fill_emptied, target, *pairs, *_loaded(head, last))
    changed = _changed_dict(head, target, old, new, known=whole)
    steps = [changed] if changed else []
    for counted, group in itertools.groupby(last, lambda store: isinstance(store[1], Tally)):
        how = (rebuild.count_up, target) if counted else (rebuild.change_dict, target, build.load_const(0))
        steps.append(head.call(*how, *_loaded(head, group)))
    return _flat([[*build.pop_top(), *step] if i else step for i, step in enumerate(steps)])


def _loaded(head: Head, stores: Iterable[tuple[Value, Value]]) -> list[Code]:
    return [c for k, v in stores for c in (head.load_item(k), head.load_item(v))]


def _changed_list(head: Head, target: Code, before: list[Value], after: list[Value]) -> Code:
    """What is between the elements that stay at both ends is replaced: what a finalizer appends meanwhile stays."""
    begin = _in_common(before, after)
    if before and not after:
        return head.call(list.clear, target)
    if begin == len(before) == len(after):
        return []
    if begin == len(before):
        return head.call(rebuild.extend_list, target, *[head.load_item(v) for v in after[begin:]])
    rest = _in_common(before[begin:][::-1], after[begin:][::-1])
    place = build.load_const(begin), build.load_const(len(before) - rest)
    return head.call(
        rebuild.replace_part, target, *place, *[head.load_item(v) for v in after[begin : len(after) - rest]]
    )


def _changed_ends(head: Head, container: List, target: Code, before: Contents, after: Contents) -> Code:
    """The same of a list of any length: what is at its ends is replaced there, the end first, since it may be what a shorter
    begin moves."""
    steps = []
    for old, new, at_end in ((*before.at_end(after), True), (*before.at_begin(after), False)):
        begin = _in_common(old, new)
        rest = _in_common(old[begin:][::-1], new[begin:][::-1])
        if begin == len(old) == len(new):
            continue
        start, stop = (begin - len(old), -rest or None) if at_end else (begin, len(old) - rest)
        items = [head.load_item(v) for v in new[begin : len(new) - rest]]
        place = build.load_const(start), build.load_const(stop)
        if start == 0 and at_end and not isinstance(container, Deque):
            steps.append(head.call(rebuild.extend_list, target, *items))
        else:
            replace = rebuild.replace_in_deque if isinstance(container, Deque) else rebuild.replace_part
            steps.append(head.call(replace, target, *place, *items))
    return _flat([[*build.pop_top(), *step] if i else step for i, step in enumerate(steps)])


def _in_common(a: list[Value], b: list[Value]) -> int:
    """How many values two lists begin with alike."""
    return next((i for i, (v, w) in enumerate(zip(a, b, strict=False)) if not _is_same(v, w)), min(len(a), len(b)))


def _is_same(a: Value, b: Value) -> bool:
    """Whether both stand for what was at one place when the frame began, or are one value."""
    return a is b or (a.source is not None and a.source == b.source)


def _changed_dict(head: Head, target: Code, before: dict[Key, Value], after: dict[Key, Value], *, known: bool) -> Code:
    """Keys go out, then values are stored; those that another order would move are taken out first.  `known`: whether the
    dict has no other keys; where it may have, keys stay that did not go out and come again."""
    first, new = {id(k) for k in before}, list(after)
    stay = {k for k in new if id(k) in first}  # one that comes again may be equal and another: 2.0 for 2
    if known:
        old = [k for k in before if k in stay]
        kept = next((i for i, (k, j) in enumerate(zip(old, new, strict=False)) if k is not j), len(old))
        stay = set(new[:kept])
    out = [head.load(k.value) for k in before if k not in stay]
    pairs = [
        c
        for k in new
        if k not in stay or not _is_same(before[k], after[k])
        for c in (head.load(k.value), head.load_item(after[k]))
    ]
    return (
        []
        if not out and not pairs
        else head.call(rebuild.change_dict, target, build.load_const(len(out)), *out, *pairs)
    )


REPLAYS: dict[str, Callable[[Head, Write], Code]] = {
    "attribute": _replay_attribute, "grad": _replay_grad, "flag": _replay_flag, "class": _replay_class,
    "global": _replay_global, "cell": _replay_cell, "traceback": _replay_traceback,
    "call": _replay_call, "contents": _replay_contents, "advance": _replay_advance, "draw": lambda head, write: [],
    "warning": _replay_warning, "keep": _replay_keep, "hit": _replay_hit,
}  # fmt: skip


def _chain(source: Source) -> Iterator[Source]:
    """A source and those that it leads through."""
    at: Source | None = source
    while at is not None:
        yield at
        at = at.base


def _links(sources: Sequence[Source]) -> dict[Source, None]:
    """All that is read for these, once each."""
    found: dict[Source, None] = {}
    for source in sources:
        for s in _chain(source):
            if s in found:
                break
            found[s] = None
    return found


def _is_read_alone(source: Source) -> bool:
    """Whether it is no variable, and read where it is asked for."""
    return source.base is not None and all(s.base is None or s.kind in READ_ALONE for s in _chain(source))


def is_computed(value: Symbolic) -> bool:
    """Whether each call computes the number; a condition on what is known before a call is assumed."""
    return is_symbolic(value.sym) and (not isinstance(value.sym, torch.SymBool) or is_late(value.sym))


def return_template(head: Head, value: Value) -> Any:
    """The return value as data for the native plan, or None when it needs generated code."""
    return _template(head, value, set())


def given_back(head: Head, template: Any) -> Any:
    """The template of a frame that returns a tensor of the caller's, with it as the graph's result; others as they are."""
    kind, source = template
    for tensor in head.cx.graph.inputs:
        if kind == "source" and tensor.source == source and tensor.cls is torch.Tensor and head.is_bare(tensor):
            return ("graph", int(head.output(tensor)[len("__out") :]))
    return template


def _template(head: Head, value: Value, seen: set[int]) -> Any:
    """A new container that occurs twice has no template: the plan would make two of it."""
    value = head.cx.realize(value)
    if isinstance(value, InstanceDict) or id(value) in seen:
        return None
    if isinstance(value, Symbolic):
        if is_computed(value):
            return None if value.source is None else ("source", value.source)
        value = value.settle("as a result that no call computes")
    if isinstance(value, (List, Dict)) and value.source is None:
        seen.add(id(value))
    if isinstance(value, Const):
        return ("const", value.value)
    if isinstance(value, Tensor) and value.source is None and not head.is_bare(value):
        return None
    if isinstance(value, Tensor) and value.source is None:
        return ("graph", int(head.output(value)[len("__out") :]))
    if value.source is not None:
        return ("source", value.source) if head.made_class(value.source.root.arg) is None else None
    if isinstance(value, (Tuple, List)) and value.cls in (tuple, list):
        items = [_template(head, v, seen) for v in value.items]
        return None if None in items else (value.cls.__name__, items)
    if isinstance(value, Dict) and value.cls is dict:
        pairs = [(k.value.const(), _template(head, v, seen)) for k, v in value.entries.items() if k.value.is_const()]
        if len(pairs) == len(value.entries) and all(t is not None for _, t in pairs):
            return ("dict", pairs)
    return None
