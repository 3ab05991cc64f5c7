"""Instructions for the state at the end of a capture: `Head` loads values.

In: values.  Out: bytecode (`bytecode.build` lists) that produces the objects of the captured program.  New objects are
built (`object_builders.py`), and writes to existing ones are repeated (`effect_replay.py`).  Graph tensors come from
the graph's outputs, numbered in the order of their first use.
Example: `head.load(value)` for a list of two graph tensors gives `LOAD_FAST out0; LOAD_FAST out1; BUILD_LIST 2`.
"""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from pycompiler.capture.breaks import Break, SkipFrame
from pycompiler.capture.bytecode import build
from pycompiler.capture.bytecode.build import Code
from pycompiler.capture.interpreter.context import Capture
from pycompiler.capture.library.gradients import backward_calls
from pycompiler.capture.recipe import runtime_helpers
from pycompiler.capture.recording.input_symbols import DRAWN
from pycompiler.capture.values.attributes import ClassState, mro_lookup
from pycompiler.capture.values.base import Cell, LazyObject, Value
from pycompiler.capture.values.classes import SUBSCRIPTED, Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.instance_dicts import InstanceDict
from pycompiler.capture.values.containers.iterators import ExistingIterator
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.containers.sets import Set
from pycompiler.capture.values.deferred import Reading
from pycompiler.capture.values.symbolic_numbers import Symbolic, is_open_text, is_unbacked
from pycompiler.capture.values.tensor import Tensor
from pycompiler.capture.values.weak_references import HookNumber, MadeReference
from pycompiler.ir.source import ACCESSORS, Source
from pycompiler.ir.weak_guards import may_be_freed, weakly_held
from pycompiler.symbolic.symbols import is_symbolic


def _attribute(name: str) -> Callable[[Any], Code]:
    return lambda arg: build.load_attr(name)


# How generated code follows an accessor.  Accessors not listed call their `read` function.
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


BUILDERS: dict[type[Value], Callable[[Head, Any, str], None]] = {}
"""Class of values -> function that builds one into a variable (`object_builders.py`)."""


class _Guarded(NamedTuple):
    """Facts about sources that the guards establish."""

    walked: int  # number of guards processed
    exact: set[Source]  # sources with the same object in every call
    says_items: set[Source]  # sources whose object has a Python `__getitem__`


class Head:
    """Collects the instructions of a generated frame's head."""

    def __init__(self, cx: Capture, value_cells: frozenset[str]) -> None:
        self.cx = cx
        check_readings(cx)
        self.value_cells = value_cells  # parameters that the preamble has moved into new cells
        self.prepare: Code = []  # builds objects into temporaries
        self.temps: dict[int, str] = {}
        self.aliases: dict[int, str] = {}  # for `C[...]`, by id of the capture's object
        self.keep: list[Value] = []
        self.outputs: list[Tensor] = []
        self.loads: collections.Counter[str] = collections.Counter()  # number of loads of each output
        self.referred: list[tuple[MadeReference, str]] = []  # weak references to outputs, with the outputs' node names
        self.count = 0
        self.building: set[int] = set()
        self.pinned: dict[Source, str] = {}
        self.shared: dict[Source, str] = {}  # variables of sources that several others share
        self.first: Code = []  # reads the elements ahead of existing iterators, first of all
        self.ahead: dict[Source, str] = {}
        self.entry: Code = []  # reads numbers before the graph runs
        self.numbers: dict[Source, str] = {}
        self._guarded = _Guarded(0, set(), set())
        self.handles = ""  # variable with the first number of the handles that the frame creates
        if cx.takes_handles():
            self.handles = self.temp()
            count = build.load_const(len({n for n, _, _ in cx.registered}))
            self.prepare += [*self.call(runtime_helpers.take_handles, count), *build.store_fast(self.handles)]
        self.tracebacks: dict[int, Value] = {}  # by id of the places: the first exception with this traceback
        self.own_cells: dict[str, Cell] = {}  # the root frame's own cells that the code so far uses
        made = {DRAWN.item(i) for i in range(len(cx.effects.draws))}
        given = (v for w in cx.effects.draws for v in w.value[:1] if not isinstance(v, Tensor))
        owners = [v for v in given if v.source is not None and v.source not in made]
        self.states = (
            self.temp() if owners and cx.errors_of_data.begins_again else None
        )  # for a new draw if the graph fails
        if self.states is not None:
            loads = [self.follow(v.source) for v in owners if v.source is not None]
            self.entry += [*self.call(runtime_helpers.states_of, *loads), *build.store_fast(self.states)]
        for i, write in enumerate(cx.effects.draws):
            name = self.numbers[DRAWN.item(i)] = self.temp()
            owner, *args = (self.load(v) if v.source is None else self.follow(v.source) for v in write.value)
            self.entry += [*self.call(write.target.fn, owner, *args), *build.store_fast(name)]
        for reading in cx.effects.readings:  # in order, whether or not they are used
            if not isinstance(reading, Reading):  # it may raise
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
            if self.is_made_member(value.value):
                return self.member(value.value)
            if self.names_made_class(value.value):
                raise SkipFrame(f"{value.describe()}, of a class that each call creates, leaves the graph")
            self.cx.check_number(value)
            return build.load_const(value.value)
        if value.within is not None:
            return self.load(value.within)
        if isinstance(value, Tensor) and value.source is None and self.is_bare(value):
            return build.load_fast(self.output(value))
        if value.source is not None:
            at = value.source.root.arg
            direct = self.made_class(at) is not None or self.is_made_member(at) or is_alias(at)
            if not direct and self.names_made_class(at):
                raise SkipFrame(f"{value.describe()}, of a class that each call creates, leaves the graph")
            return self.load_source(value.source)
        name = self.temps.get(id(value))
        if name is None:
            name = self.build(value)
        return build.load_fast(name)

    def alias(self, real: Any) -> Code:
        """Push `C[...]` for a class that each call creates, subscripted with constants and such classes."""
        name = self.aliases.get(id(real))
        if name is None:
            parts = [self.alias(a) if is_alias(a) else self.load(self.cx.make(a)) for a in real.__args__]
            name = self.temp()
            self.store(self.call(runtime_helpers.subscript, self.load_class(real.__origin__), *parts), name)
            self.aliases[id(real)] = name
        return build.load_fast(name)

    def is_made_member(self, real: Any) -> bool:
        """Whether it is a member of an Enum that each call creates."""
        return isinstance(type(real), enum.EnumMeta) and self.made_class(type(real)) is not None

    def member(self, real: enum.Enum) -> Code:
        """Push the member of the Enum class that this call creates."""
        name = self.aliases.get(id(real))
        if name is None:
            name = self.temp()
            named = real._name_ in type(real)._member_map_
            told = build.load_const(real._name_ if named else None), build.load_const(None if named else real._value_)
            self.store(self.call(runtime_helpers.member, self.load_class(type(real)), *told), name)
            self.aliases[id(real)] = name
        return build.load_fast(name)

    def is_bare(self, value: Tensor) -> bool:
        """Whether the graph's output is the program's tensor itself: plain, no number, no attributes, with its history."""
        plain = (value.cls is torch.Tensor or value.wrapper) and not value.overlay
        plain = (
            plain and not self.cx.inference.is_made(value.fake) and backward_calls.retained_at(self.cx, value) is None
        )
        return plain and backward_calls.spent(self.cx, value) is None and not self.cx.items.stands_for_number(value)

    def number(self, value: Symbolic) -> Code:
        """Push a symbolic number, computed from its symbols."""
        name = self.temps.get(id(value))
        if name is None:
            if value.source is not None and is_symbolic(value.sym):
                return self.at_entry(value.source)
            if not is_computed(value):
                return build.load_const(value.const("as a result that generated code cannot compute"))
            number = value.sym.node.value
            if isinstance(number, float):  # it became a constant
                return build.load_const(number)
            names = tuple(sorted(number.symbols))
            loads = [self.symbol(n) for n in names]
            name = self.temp()
            self.store(
                self.call(runtime_helpers.compute, build.load_const(number), build.load_const(names), *loads), name
            )
            self.temps[id(value)] = name
            self.keep.append(value)
        return build.load_fast(name)

    def symbol(self, name: str) -> Code:
        """Push the value of a symbol.  An unbacked symbol is read from the graph's result."""
        at = self.cx.graph.bound.readings.get(name)
        if at is None:
            return self.at_entry(self.cx.sizes.source_of(name))
        if at.version is not None and at.tensor.version != at.version:
            raise SkipFrame("a write to a tensor after a read of its number")
        return self.call(
            runtime_helpers.bound, self.load(at.tensor), build.load_const(at.read), build.load_const(at.args)
        )

    def at_entry(self, source: Source) -> Code:
        """Push the number at `source` as of the frame's start: the graph may change its tensor (`x.t_()`)."""
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
        """Break if an output would be a view of replaced data: it would not share the tensor's version counter."""
        for writes in self.cx.facts.swaps.values():
            for tensor in self.outputs:
                if (
                    tensor.fake is not writes.tensor.fake
                    and writes.is_of_alias(tensor.node)
                    and writes.shares(tensor.fake)
                ):
                    raise Break("unsupported-operation", "a view of replaced data leaves the graph", writes.made_at)

    def only_referred(self) -> None:
        """Break if only weak references refer to a tensor: torch may hold it in eager."""
        counts = collections.Counter(name for _, name in self.referred)
        for reference, name in self.referred:
            if self.loads[name] <= counts[name]:
                raise Break("builtin-call", "a weak reference to a tensor that nothing else holds", reference.made_at)

    def load_source(self, source: Source) -> Code:
        """Push the object at `source`.

        It is read before the replay of side effects and before cells get new contents: both may change the path.
        """
        if source.kind == "attr" and source.arg == "grad_fn":  # writes change it
            return self.at_entry(source)
        if source.kind == "computed" and any(s.kind in ("size", "stride") for s in source.reads()):
            return self.at_entry(source)
        roots = (s for s in source.reads() if s.base is None)
        through_cell = any(s.kind == "local" and s.arg in self.value_cells for s in roots)
        if not through_cell and (source.base is None or not self.cx.effects):
            return self.follow(source)
        name = self.pinned.get(source)
        if name is None:
            name = self.pinned[source] = self.temp()
            self.store(self.follow(source), name)
        return build.load_fast(name)

    def follow_all(self, sources: Sequence[Source]) -> list[Code]:
        """Push the objects at several sources.  A shared prefix is read once and dropped after its last use."""
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
        """Push the next element of an existing iterator, read before any shared source."""
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
            if self.is_made_member(source.arg):
                return self.member(source.arg)
            if is_alias(source.arg) and self.names_made_class(source.arg):
                return self.alias(source.arg)
            return self.load_class(source.arg) if isinstance(source.arg, type) else build.load_const(source.arg)
        if source.kind == "mro_lookup" and self.is_lasting(source.base) and self.is_one_object(source):
            return build.load_const(ACCESSORS["mro_lookup"].read(source.base.arg, source.arg))
        if source.kind == "begun":
            return self._read_ahead(source, source.base)
        if source.kind == "computed":
            return self.call(source.arg.function, *map(self.follow, (source.base, *source.arg.places)))
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
        """Check iterators that existed before.

        An iterator must not iterate a container that the frame changes, unless it did at capture.  Its end must drop
        nothing that runs code.
        """
        effects = self.cx.effects
        for iterator in effects.advanced.values():
            if not isinstance(iterator, ExistingIterator):
                continue
            others = [
                v for v in effects.written() if isinstance(v, (List, Dict, Set)) and not iterator.is_over(self.cx, v)
            ]
            asked = [runtime_helpers.only_apart] if others else []
            for ask in [*asked, *([runtime_helpers.only_at_ease] if iterator.exhausted else [])]:
                loads = [self.follow(source_of(v)) for v in (others if ask is runtime_helpers.only_apart else [])]
                self.first += [*self.call(ask, self.follow(source_of(iterator)), *loads), *build.pop_top()]

    def says_items(self, source: Source) -> bool:
        """Whether the object there has a Python `__getitem__`."""
        return source in self.guarded().says_items

    def is_one_object(self, source: Source) -> bool:
        """Whether guards ensure the same object there in every call."""
        return source in self.guarded().exact

    def guarded(self) -> _Guarded:
        """The facts from all guards so far; computed again only if there are new guards."""
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
        """Push a class, existing or new."""
        known = self.made_class(cls)
        return build.load_const(cls) if known is None else self.load(known)

    def weakly(self, *codes: Code) -> Code:
        """Let instructions load classes that may end from variables, filled from weak references first of all.

        A class may lose its last reference before the instruction that loads it.
        """
        names: dict[int, str] = {}
        code: Code = []
        for i in flat([*codes]):
            if i.opname == "LOAD_CONST" and may_be_freed(cls := i.argval):
                if id(cls) not in names:
                    name = names[id(cls)] = self.temp()
                    code += [
                        *self.call(runtime_helpers.living, build.load_const(weakly_held(cls))),
                        *build.store_fast(name),
                    ]
                i.opname, i.argval = "LOAD_FAST", names[id(cls)]
        return code

    def made_class(self, cls: Any) -> Class | None:
        """The value of a class that each call creates, or None."""
        known = self.cx.by_id.get(id(cls))
        return known if isinstance(known, Class) and known.made is not None else None

    def names_made_class(self, real: Any) -> bool:
        """Whether a constant refers to the stand-in of a class that each call creates.

        Examples: a type like `list[Made]`, a slot or a member of it.
        """
        if not self.cx.made_classes:
            return False
        named = (
            real.cls
            if type(real) is ClassState
            else getattr(real, "__objclass__", None)
            if type(real) is types.MemberDescriptorType
            else real
        )
        if self.made_class(named) is not None or self.made_class(type(real)) is not None:
            return True
        aliased = type(real).__module__ in ("types", "typing", "collections.abc", "_collections_abc")
        parts = real if type(real) in (tuple, frozenset) else getattr(real, "__args__", ()) if aliased else ()
        if aliased and hasattr(real, "__origin__"):
            parts = (real.__origin__, *parts)
        return any(map(self.names_made_class, parts))

    def is_lasting(self, source: Source) -> bool:
        """Whether it is a constant that exists in every call."""
        return source.kind == "const" and self.made_class(source.arg) is None and not may_be_freed(source.arg)

    def load_all(self, values: list[Value]) -> list[Code]:
        return [
            self.load(self.cx.realize(v)) if not isinstance(v, LazyObject) else self.load_source(source_of(v))
            for v in values
        ]

    def load_item(self, value: Value) -> Code:
        return self.load_source(source_of(value)) if isinstance(value, LazyObject) else self.load(value)

    def load_cell(self, cell: Cell) -> Code:
        if cell.frame_name is not None:
            self.own_cells[cell.frame_name] = cell
            return build.load_raw(cell.frame_name)
        return self.load(cell)


def is_alias(real: Any) -> bool:
    return any(type(real) is cls for cls in SUBSCRIPTED)


def source_of(value: Value) -> Source:
    assert value.source is not None
    return value.source


def check_readings(cx: Capture) -> None:
    """Break if an operator comes after a late read, or if a started collective has not ended."""
    for work in cx.effects.works:
        if not work.is_over:
            raise work.broke
    late = next((r for r in cx.effects.readings if isinstance(r, Reading) and not r.first), None)
    if late is not None and any(n.op.startswith("call") for n in _nodes_after(late.behind)):
        assert late.told is not None
        raise late.told


def _nodes_after(node: Any) -> Iterator[Any]:
    while (node := node.next).op != "root":
        yield node


def flat(codes: list[Code]) -> Code:
    return [i for code in codes for i in code]


def _chain(source: Source) -> Iterator[Source]:
    """A source and its bases."""
    at: Source | None = source
    while at is not None:
        yield at
        at = at.base


def _links(sources: Sequence[Source]) -> dict[Source, None]:
    """All sources that these lead through, each once."""
    found: dict[Source, None] = {}
    for source in sources:
        for s in _chain(source):
            if s in found:
                break
            found[s] = None
    return found


def _is_read_alone(source: Source) -> bool:
    """Whether it is no variable, and its path is read without a call."""
    return source.base is not None and all(s.base is None or s.kind in READ_ALONE for s in _chain(source))


def is_computed(value: Symbolic) -> bool:
    """Whether each call computes the number.  A condition known before the call is assumed instead."""
    return is_symbolic(value.sym) and (not isinstance(value.sym, torch.SymBool) or is_unbacked(value.sym))


def return_template(head: Head, value: Value) -> Any:
    """The return value as data for the native plan, or None when it needs generated code."""
    return _template(head, value, set())


def as_graph_output(head: Head, template: Any) -> Any:
    """The template of a frame that returns an input tensor, with the tensor as a graph output; other templates unchanged."""
    kind, source = template
    for tensor in head.cx.graph.inputs:
        if kind == "source" and tensor.source == source and tensor.cls is torch.Tensor and head.is_bare(tensor):
            return ("graph", int(head.output(tensor)[len("__out") :]))
    return template


def _template(head: Head, value: Value, seen: set[int]) -> Any:
    """The template of a value, or None.  A new container that occurs twice has none, since the plan would create two."""
    if is_open_text(value):
        value.guard_class(head.cx)
        assert value.source is not None
        return ("source", value.source)
    value = head.cx.realize(value)
    if isinstance(value, InstanceDict) or id(value) in seen:
        return None
    if isinstance(value, Symbolic):
        if is_computed(value):
            return None if value.source is None else ("source", value.source)
        value = Const(value.const("as a result that generated code cannot compute"))
    if isinstance(value, (List, Dict)) and value.source is None:
        seen.add(id(value))
    if isinstance(value, Const):
        return None if head.names_made_class(value.value) else ("const", value.value)
    if isinstance(value, Tensor) and value.source is None and not head.is_bare(value):
        return None
    if isinstance(value, Tensor) and value.source is None:
        return ("graph", int(head.output(value)[len("__out") :]))
    if value.source is not None:
        return ("source", value.source) if head.made_class(value.source.root.arg) is None else None
    if isinstance(value, Tuple) and value.begin is not None and value.reach is not None:
        return None
    if isinstance(value, (Tuple, List)) and value.cls in (tuple, list):
        items = [_template(head, v, seen) for v in value.items]
        return None if None in items else (value.cls.__name__, items)
    if isinstance(value, Dict) and value.cls is dict:
        pairs = [(k.value.const(), _template(head, v, seen)) for k, v in value.entries.items() if k.value.is_const()]
        lasting = not any(
            may_be_freed(k) or head.names_made_class(k) for k, _ in pairs
        )  # the plan would hold the class
        if lasting and len(pairs) == len(value.entries) and all(t is not None for _, t in pairs):
            return ("dict", pairs)
    return None
