"""The capture of one frame: graph, guards, effects, and what handlers need to compute with values.

In: nothing yet.  Out: a `Capture`, passed to every handler and value method as `cx`.
"""

from __future__ import annotations

import builtins
import contextlib
import decimal
import enum
import itertools
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch

from pycompiler.capture import calls, hints, open_texts, rebuild, stand_in_guards, tracebacks, warns, wrap
from pycompiler.capture.answers import answered
from pycompiler.capture.apart import COMPARED, may_be
from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.effects import Effects
from pycompiler.capture.errors_of_data import ErrorsOfData
from pycompiler.capture.funnel import STACK, Functions
from pycompiler.capture.graph import GraphBuilder
from pycompiler.capture.inference import Inference
from pycompiler.capture.items import Items
from pycompiler.capture.on_fakes import settle_numbers
from pycompiler.capture.reached import OfOperators
from pycompiler.capture.sizes import Policy, Sizes
from pycompiler.capture.values import array, decimals, exceptions, owned
from pycompiler.capture.values.array import Array
from pycompiler.capture.values.attributes import (
    class_attribute,
    hide_written,
    is_mutable,
    leave_bases,
    lookup,
    mro_lookup,
    show_written,
)
from pycompiler.capture.values.base import Cell, Lazy, Value, class_name, iterating
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import LITERAL_IDS, LITERALS, Const, Identity, Untold, reference
from pycompiler.capture.values.deferred import Deferred, is_one
from pycompiler.capture.values.dicts import Dict, DictView, Proxy
from pycompiler.capture.values.finalizers import ARGUMENT
from pycompiler.capture.values.functions import ALIASES, Builtin, Function, Partial
from pycompiler.capture.values.instance_dicts import FunctionDict, PartialDict
from pycompiler.capture.values.iterators import (
    INDEXING,
    PASSING,
    Generator,
    Iter,
    Over,
    ends_others,
    is_seen_by_entries_alone,
    iterator_class,
)
from pycompiler.capture.values.keys import RESTLESS, Key, UserKey
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.opaque import Opaque, Token, as_text
from pycompiler.capture.values.owned import Owned
from pycompiler.capture.values.references import HookNumber
from pycompiler.capture.values.sequences import Deque, List, Sequence, Slice, Tuple
from pycompiler.capture.values.sets import Set
from pycompiler.capture.values.symbolic import Symbolic
from pycompiler.capture.values.tensor import Handle, Tensor
from pycompiler.ir import arrays
from pycompiler.ir.control import breaks_are_errors
from pycompiler.ir.fake import new_fake_mode
from pycompiler.ir.guards import Guard, UserFrame, global_state, keys_of
from pycompiler.ir.leaves import Leaves
from pycompiler.ir.source import ELEMENTS, GLOBALS, Source
from pycompiler.ir.source import const as const_source
from pycompiler.ir.symbols import Symbols

if TYPE_CHECKING:
    from pycompiler.capture.interpreter import Frame
    from pycompiler.capture.on_fakes import Call
    from pycompiler.ir.heard import Heard

T = TypeVar("T")
BUDGET = 400_000
MOST_ELEMENTS = 1_000_000
ONLY_SUSPENDED = (
    2 + ARGUMENT
)  # references to a generator that only `Capture.suspended`, a variable and an argument hold
CONSTANT: dict[str, Callable[[Any], bool]] = {
    "id_is": lambda known: False,
    "type_is": lambda known: is_mutable(type(known)) or isinstance(known, types.ModuleType),
}
"""What could be otherwise of an object that the entry holds: a class of Python's is assigned, and so is a module's."""
SINGLETONS = (bool, type(None), type(Ellipsis), type(NotImplemented))


class Capture:
    """State of one frame's capture."""

    def __init__(
        self,
        root_globals: dict[str, Any],
        policy: Policy,
        *,
        symbolic: bool = False,
        modes: list[Any] | None = None,
        state: Any = None,
    ) -> None:
        self.root_globals = root_globals
        self.sizes = Sizes(policy, Symbols() if symbolic else None)
        if self.sizes.symbols is not None:
            self.sizes.symbols.place = lambda: self.user_stack
        self.fake_mode = new_fake_mode(symbolic=symbolic)
        self.graph = GraphBuilder(self, self.fake_mode)
        self.effects = Effects(self.graph.graph)
        self.items = Items(self)
        self.guards: dict[tuple[Any, ...], Guard] = {}
        self.by_id: dict[int, Value] = {}
        self.of_operators = OfOperators()
        self.made_classes: list[type] = []  # stand-ins for those that the program makes in each call
        self.keyed: dict[int, Value] = {}  # existing objects that were keys of dicts and sets, by identity
        self.keep: list[Any] = []
        self.constants: dict[int, Value] = {}  # values of code constants, by id: one object stays one value
        self.places: dict[Source, Source] = {}  # what is computed of several places
        self.kept: dict[tuple[Any, ...], Any] = {}  # calls of cached functions, each asked for once
        self.frames: list[Frame] = []
        self._stack: tuple[tuple[int, int], tuple[UserFrame, ...]] = ((-1, 0), ())
        self.tried: dict[tuple[Any, ...], Any] = {}  # those of them that earlier attempts met
        self.verdicts: dict[Any, bool] = {}  # whether they may be called by the capture
        self.budget = BUDGET
        self.elements_taken = 0
        self.steps = 0  # instructions executed, in all frames
        self.stop_at: int | None = None  # step before which the capture stops
        self.hidden = hide_written()
        self.reads_frame: dict[int, int | None] = {}  # steps that need a real frame, and those around them
        self.errors = breaks_are_errors()  # whether a break raises, at the program's current place
        self.spread = False  # the current call is `f(**mapping)`
        self.direct = False  # the callable being called is the operand of the current CALL, not called by a builtin
        # of the `forward` that is called next, in a module's call without hooks
        self.of_module: types.CodeType | None = None
        self.heard: list[Heard] = []  # warnings of code that has run since the capture began
        self.constructs = False  # it is a class, or the `__init__` that this one calls
        self.ids_are_keys = False
        self.variables: list[Token] = []  # context variables that the program has set, the last one last
        self.devices: list[
            tuple[torch.device, int | None]
        ] = []  # those of each `with`, and the steps that entered them
        self.default_device: torch.device | None = None  # the one that the program has set
        self.inference = Inference()
        self.registered: list[tuple[int, Dict, int | None]] = []  # hooks of modules: number, dict, step
        self.stopped_by: Value | None = None  # the generator or exception that ended the last iterator that was asked
        self.stopper: type[Exception] = Exception
        self.stopped: list[Frame] = []  # where the capture has stopped
        self.suspended: list[Generator] = []  # generators that wait where their end runs code of the program
        self.cells: list[Cell] = []  # a function that calls itself is in one of those that it closes over
        self.holding: list[weakref.ref[Value]] = []  # exceptions that hold frames
        self.inlined: set[types.CodeType] = set()
        self.errors_of_data = ErrorsOfData()
        self.surrounded = False  # by transforms, or by an operator whose kernel this is (`run_under`)
        self.autocast_regions = 0  # that the program has entered
        self.process: dict[str, None] = {}  # what was folded into this capture and is another thing in another process
        self.abstract: dict[
            tuple[int, int], tuple[type, type, bool]
        ] = {}  # whether a class is one of an abstract class
        self.module_hooks_checked: bool | None = None
        self.guard("global_state", const_source(torch), global_state() if state is None else state)
        self.functions = Functions(self, modes or [])

    def run_under(self, levels: tuple[tuple[Any, ...], ...], *, as_captured: bool) -> None:
        """The frame is called under transforms of torch.func, or in the kernel of an operator: what of a tensor a level, or
        autograd, answers there is not asked.  `as_captured`: the graph will run operator by operator, each of which may be
        refused; of tensors that levels wrap not even the layout is known."""
        self.surrounded = self.graph.levels = True
        self.errors_of_data.levelled = as_captured
        self.graph.under = frozenset(name.lower() for name, *_ in levels)
        if levels:
            self.guard("equals", const_source(STACK).attr("levels"), levels)
        self.process["it runs under transforms, or in a kernel"] = None

    def release(self) -> None:
        """Forget everything: values, frames and the capture refer to each other in circles, and to what was passed."""
        for exception in filter(None, (known() for known in self.holding)):
            exception.__dict__["held"].clear()
        show_written(self.hidden)
        for cls in self.made_classes:
            leave_bases(cls)
        for cell in self.cells:
            cell.contents = None
        for value in self.by_id.values():
            if value.source is not None:  # an existing object, which may hold what holds it
                vars(value).clear()
        self.graph.__dict__.clear()
        self.items.__dict__.clear()
        self.sizes.leave()
        self.__dict__.clear()

    # guards and objects ---------------------------------------------------------------------------------------
    def guard(self, kind: str, source: Source, arg: Any = None, others: tuple[Source, ...] = ()) -> None:
        if source.kind == "const" and kind in CONSTANT and not CONSTANT[kind](source.arg):
            return
        if self.made_classes and (said := stand_in_guards.said(self, kind, source, arg, others)) is not None:
            for others_say in said:
                self.guard(*others_say)
            return
        tag = arg if id(type(arg)) in LITERAL_IDS and isinstance(arg, (str, int, type(None))) else id(arg)
        key = (kind, source, id(type(arg)), tag if kind != "tensor" else None, others)
        if key not in self.guards:
            self.guards[key] = Guard(kind, source, arg, others, self.user_stack)
        if self.effects.looks.open:
            self.effects.looks.assumed(self.guards[key])

    def guard_dict_keys(self, source: Source, real: dict[Any, Any]) -> None:
        """Keys that are compared by methods of the program's are known by identity, each at its place: nobody may ask them."""
        keys = keys_of(real)
        if not any(is_restless(type(key)) for key in keys):
            self.guard("dict_keys", source, keys)
            return
        self.guard("length", source, len(keys))
        for i, key in enumerate(keys):
            if isinstance(key, LITERALS) and not is_restless(type(key)):
                self.guard("equals", source.then("dict_key_at", i), key)
                continue
            held = reference(key)
            if held is key and is_restless(type(key)):
                raise Break("unsupported-operation", RESTLESS)
            self.guard("id_is", source.then("dict_key_at", i), held)

    def warns_of(self, what: str) -> None:
        """Torch warns of this in C++, once or each time, about the line that is called from (`shown.ONCE`)."""
        warns.note_once(self, what)

    def warned_by(self, call: Call, heard: list[Heard], result: Any) -> list[str]:
        """A call of the graph warns of this: the texts."""
        return warns.note_call(self, call, heard, result) if heard or call.name in warns.KERNELS else []

    @property
    def user_stack(self) -> tuple[UserFrame, ...]:
        """Where the program is now, outermost frame first."""
        if self._stack[0] != (self.steps, len(self.frames)):
            self._stack = ((self.steps, len(self.frames)), tuple(f.user_frame() for f in self.frames))
        return self._stack[1]

    def remember(self, real: Any, value: Value) -> None:
        self.by_id[id(real)] = value
        self.keep.append(real)

    def wrap(self, real: Any, source: Source) -> Value:
        if self.made_classes:
            if type(real) in LITERALS and stand_in_guards.is_own(self, source):
                return self.make(real)
            source = stand_in_guards.place(self, source)
        return wrap.wrap(self, real, source)

    def make(self, real: Any) -> Value:
        return wrap.make(self, real)

    def lazy(self, real: Any, source: Source) -> Value:
        return Lazy(real, stand_in_guards.place(self, source) if self.made_classes else source)

    def realize(self, value: Value) -> Value:
        if isinstance(value, Lazy):
            if value.seen is None:
                value.seen = value.look(self)
            return value.seen
        return value

    def computed(self, function: Callable[..., Any], *places: Source) -> Source:
        """What each call computes of these places, once."""
        made = places[0].computed(function, *places[1:])
        return self.places.setdefault(made, made)

    def realize_all(self, args: list[Value], kwargs: dict[str, Value]) -> None:
        """The arguments of a call, where they are.  To look at one may call functions (keys of a dict), which are none of the
        CALL instruction's."""
        direct, self.direct = self.direct, False
        try:
            args[:] = map(self.realize, args)
            kwargs.update([(k, self.realize(v)) for k, v in kwargs.items()])
        finally:
            self.direct = direct

    def wrap_key(self, real: Any, source: Source) -> Value:
        if isinstance(real, (torch.dtype, torch.device, type, tuple, frozenset)):
            try:
                return self.make(real)
            except Break:
                pass
        return self.wrap(real, source)

    def wrap_cell(self, cell: types.CellType, source: Source) -> Cell:
        known = self.by_id.get(id(cell))
        if isinstance(known, Cell):
            return known
        try:
            contents: Value | None = self.lazy(cell.cell_contents, source.then("cell"))
        except ValueError:
            contents = None
            self.guard("cell_empty", source)
        made = self.made_cell(Cell(contents, source=source))
        self.remember(cell, made)
        return made

    def made_cell(self, cell: Cell) -> Cell:
        self.cells.append(cell)
        return cell

    def wrap_descriptor(self, raw: Any, source: Source, receiver: Value | None, owner: Value) -> Value:
        raise Break("unsupported-attribute", f"descriptor {type(raw).__name__}")

    def class_attribute(self, value: Value, name: str) -> Value:
        return class_attribute(self, value, name)

    def dict_source(self, namespace: dict[str, Any]) -> Source:
        return GLOBALS if namespace is self.root_globals else const_source(namespace)

    def no_global_module_hooks(self) -> bool:
        """Whether no global module hook is registered; guarded once."""
        if self.module_hooks_checked is None:
            module = sys.modules["torch.nn.modules.module"]
            tables = [getattr(module, n) for n in
                      ("_global_backward_hooks", "_global_backward_pre_hooks", "_global_forward_hooks",
                       "_global_forward_pre_hooks")]  # fmt: skip
            self.module_hooks_checked = not any(tables)
            for t in tables:
                self.guard("length", const_source(t), len(t))
        return self.module_hooks_checked

    def count_step(self) -> int:
        """Called before each instruction; stops where a break was found before, and bounds the work."""
        self.steps += 1
        if self.steps == self.stop_at:
            self.stopped = list(self.frames)
            raise self.stopper
        if self.steps > self.budget:
            raise Break("trace-budget", f"{self.budget} instructions")
        return self.steps

    def count_element(self) -> None:
        """Called for each element of an iterator: instructions do not tell of those that builtins take."""
        self.elements_taken += 1
        if self.elements_taken > MOST_ELEMENTS:
            raise Break("trace-budget", f"{MOST_ELEMENTS} elements of iterators")

    # constants ------------------------------------------------------------------------------------------------
    def looks_at_hashes(self, values: Iterable[Any], what: str = "the order of a set") -> None:
        """Text, None and classes have other hashes in another process: what follows from them is said of the capture."""
        if not all(map(same_hash_everywhere, values)):
            self.process[f"it depends on {what}, which differs between processes"] = None

    def looks_at_address(self) -> None:
        """What follows is right in this process alone."""
        self.process["it depends on an address, which differs between processes"] = None

    def evaluate_raw(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """fn(*args) on real constants; what it raises is raised in the captured program."""
        for a in args:
            if type(a) in (set, frozenset) and len(a) > 1 and not any(fn is f for f in ORDERLESS):
                self.looks_at_hashes(a)
        around, before = sys.exception(), len(self.heard)
        numbers = arrays.numpy() is not None and (any(map(arrays.is_number, args)) or arrays.is_of_numpy(fn))
        try:
            with arrays.as_errors() if numbers else decimals.context_of(self, fn, (*args, *kwargs.values())):
                found = fn(*args, **kwargs)
        except Leaves:
            raise
        except FloatingPointError as e:
            raise Break("builtin-call", f"what NumPy computes of constants: {e}") from e
        except Exception as e:
            if e.__cause__ is not None or e.__context__ not in (None, around):
                raise Break("uncaught-exception", f"{type(e).__name__} while another exception was handled") from None
            told = {**vars(e), **exceptions.set_beside(e)}
            warns.note_evaluated(self, self.heard[before:], sys._getframe().f_code)
            self.throw(type(e), *e.args, **{k: self.make(v) for k, v in told.items()})
        if len(self.heard) > before:
            warns.note_evaluated(self, self.heard[before:], sys._getframe().f_code)
        return found

    def evaluate(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Value:
        found = self.evaluate_raw(fn, *args, **kwargs)
        if hasattr(type(found), "__next__"):  # it has a state: each call of the program's makes one
            raise Break("builtin-call", f"{fn.__qualname__}, which gives an iterator ({type(found).__name__})")
        return self.make(found)

    def sequence(self, items: list[Value], cls: type) -> Value:
        return List(items, cls) if issubclass(cls, list) else Tuple(items, cls)

    def tuple_of(self, items: list[Value]) -> Value:
        return Tuple(list(items))

    def class_of(self, value: Value) -> Value:
        return self.make(value.python_type())

    def key(self, value: Value) -> Key:
        return Key(self, value)

    def key_of(self, value: Value) -> object:
        value = self.realize(value).settle("as a key")
        if isinstance(value, Const) and type(value.value) is frozenset:
            return ("f", frozenset(Key(self, self.make(v)) for v in value.value))
        if isinstance(value, (Const, Slice)) and value.python_type() is slice and sys.version_info < (3, 12):
            self.no_hash("slice")
        if isinstance(value, (Const, Slice)) and value.python_type() is slice:
            parts = value.parts if isinstance(value, Slice) else value.value.__reduce__()[1]
            return ("s", *(self.key_of(p if isinstance(p, Value) else Const(p)) for p in parts))
        if isinstance(value, Const):
            return ("c", value.value)
        if isinstance(value, Set) and value.cls is frozenset:
            return ("f", frozenset(value.entries))
        if isinstance(value, Tuple):
            return ("t", *(self.key_of(v) for v in value.items))
        if isinstance(value, (List, Dict, Set)) and not value.is_const():
            self.no_hash(class_name(value.python_type()))
        if isinstance(value, Class):
            if any(value.special(self, name) for name in ("__hash__", "__eq__")):
                raise Break(
                    "unsupported-operation", f"{value.describe()} as a key, whose metaclass says what it equals"
                )
            return ("o", id(value.cls))
        if isinstance(value, Object):
            return self._key_of_object(value)
        if isinstance(value, Owned) and value.kind.equals:
            self.no_hash(class_name(value.python_type()))
        if isinstance(value, Deque):
            self.no_hash("collections.deque")
        if isinstance(value, Array):
            if value.scalar:
                raise Break("data-dependent-value", "a number of NumPy's as a key")
            self.no_hash("numpy.ndarray")
        if isinstance(value, Untold):
            raise value.broke
        if isinstance(value, Deferred):
            raise value.is_asked()
        if isinstance(value, Opaque) and (known := self._key_of_opaque(value)) is not None:
            return known
        if isinstance(value, Builtin) and type(value.fn) in ALIASES:  # which equal others
            return ("c", value.fn)
        if isinstance(value, Identity):
            value = value.value
            return ("id of", self.guard_identity(value))
        if mro_lookup(value.python_type(), "__hash__") is None:
            self.no_hash(class_name(value.python_type()))
        return self.guard_identity(value)

    def no_hash(self, name: str) -> NoReturn:
        if sys.version_info >= (3, 14):  # whose text says what for
            raise Break("unsupported-operation", f"hash of an object of {name!r}, which has none")
        self.throw(TypeError, f"unhashable type: {name!r}")

    def guard_identity(self, value: Value) -> object:
        """An existing object is a key by its identity: it is none of the other keys."""
        if value.source is not None and getattr(value, "real", None) is not None:
            self.keyed[id(value)] = value
        return value.identity()

    def guard_keys_apart(self) -> None:
        """Objects that are keys by identity stay different ones."""
        groups: dict[tuple[type, type], list[Value]] = {}
        for value in self.keyed.values():
            if isinstance(value, COMPARED):
                groups.setdefault((type(value), value.python_type()), []).append(value)
        for first, *others in groups.values():
            apart = tuple(v.source for v in others if v.source is not None and v.source != first.source)
            if apart and first.source is not None:
                self.guard("no_alias", first.source, None, apart)

    def _key_of_opaque(self, value: Opaque) -> object:
        """Of an object that says by C code which others it equals, as a constant; None: no others."""
        hasher, equal = (lookup(self, value.python_type(), name) for name in ("__hash__", "__eq__"))
        if hasher is None:
            self.no_hash(class_name(value.python_type()))
        if hasher is object.__hash__ and equal is object.__eq__:
            return None
        if value.source is None or isinstance(hasher, types.FunctionType) or isinstance(equal, types.FunctionType):
            raise Break("unsupported-operation", f"hash of {value.describe()}")
        self.guard("id_is", value.source, reference(value.real))
        return ("c", value.real)

    def _key_of_object(self, value: Object) -> object:
        hasher = lookup(self, value.cls, "__hash__")
        if hasher is None:
            self.no_hash(class_name(value.cls))
        by_name = hasher is enum.Enum.__hash__ and lookup(self, value.cls, "__eq__") is object.__eq__
        if hasher is object.__hash__ or by_name or issubclass(value.cls, torch.nn.Module):
            self.guard_identity(value)
            return value.identity()
        if not isinstance(hasher, types.FunctionType):
            raise Break("unsupported-operation", f"hash of {value.describe()}")
        method = value.special(self, "__hash__")
        assert method is not None
        hashed = answered(self, hash, value, "__hash__", method).const()
        return UserKey(self, value, hashed, calm=_is_calm(hasher) and _is_calm(lookup(self, value.cls, "__eq__")))

    def is_none(self, value: Value) -> bool:
        return isinstance(value, Const) and value.value is None

    def snapshot(self, value: Value) -> Any:
        """The real value of a constant, or of a container of constants, for a function that only reads it."""
        value = self.realize(value)
        if isinstance(value, Sequence) and value.cls in (list, tuple):
            return value.cls(self.snapshot(v) for v in value.items)
        if isinstance(value, Set) and value.cls in (set, frozenset):
            known = [self.snapshot(v) for v in value.ordered(self)]
            return value.cls(known) if value.shadow is None else value.cls(value.shadow)
        if isinstance(value, Dict) and value.cls is dict:
            return {self.snapshot(k): self.snapshot(v) for k, v in value.pairs(self)}
        return value.const()

    def index(self, value: Value, sequence: str = "") -> int:
        """operator.index(value); for `sequence`[value] the TypeError says so."""
        if isinstance(value, Tensor):
            known = self.graph.known_number(value.fake)
            if known is None or type(known.value) is bool:
                settle_numbers(self.sizes, [value.node])
                raise Break("data-dependent-value", "a tensor used as an index")
            return int(known.value)
        method = value.special(self, "__index__") if isinstance(value, Object) else None
        if method is not None:
            return self._fitted(
                int(answered(self, operator.index, value, "__index__", method).const()), value, sequence
            )
        value = value.plain_number()
        cls = value.python_type()
        if isinstance(value, Array) and hasattr(cls, "__index__"):
            raise Break("data-dependent-value", "a number of NumPy's as an index")
        if sequence and not hasattr(cls, "__index__"):
            self.throw(TypeError, f"{sequence} indices must be integers or slices, not {class_name(cls)}")
        value = value.settle(f"as an index of a {sequence}" if sequence else "as an integer")
        if value.is_const():
            return self._fitted(int(self.evaluate_raw(operator.index, value.const())), value, sequence)
        if hasattr(cls, "__index__"):
            raise Break("unsupported-operation", f"{value.describe()} as an integer")
        self.throw(TypeError, f"{class_name(cls)!r} object cannot be interpreted as an integer")

    def _fitted(self, index: int, of: Value, sequence: str) -> int:
        if sequence and not -sys.maxsize - 1 <= index <= sys.maxsize:
            self.throw(IndexError, f"cannot fit {class_name(of.python_type())!r} into an index-sized integer")
        return index

    def size(self, value: Value) -> int:
        """operator.index(value) as a method in C takes it for a place or a number of times: one of 64 bits."""
        index = self.index(value)
        self.evaluate_raw(itertools.repeat, None, index)
        return index

    def identical(self, a: Value, b: Value) -> bool:
        """The operator `is`: unlike `same`, its answer no is an assumption about two existing objects."""
        a, b = self.realize(a), self.realize(b)
        if self.graph.doubtful and isinstance(a, Tensor) and isinstance(b, Tensor):
            raise Break(
                "inner-graph", "whether two tensors are one, where an operator gives its argument if it lies so"
            )
        if a is b:
            return True
        if isinstance(a, Deferred) or isinstance(b, Deferred):
            return is_one(self, a, b)
        if isinstance(a, Symbolic) or isinstance(b, Symbolic):
            if a.python_type() is not b.python_type():
                return False
            a, b = (v.settle("to tell whether it is another number") for v in (a, b))
        answer = self.same(a, b)
        if not answer and array.is_truth(a) and array.is_truth(b):
            raise Break("unsupported-operation", "whether two of NumPy's truths are one")
        if isinstance(a, Builtin) and isinstance(b, Builtin):  # those of `X.__get__` are equal, not one
            return a.fn is b.fn
        if isinstance(a, Const) and isinstance(b, Const):  # equal numbers and texts need not be one object
            return answer and (a.value is b.value or isinstance(a.value, SINGLETONS))
        if not answer:
            self._stay_apart(a, b)
        return answer

    def _stay_apart(self, a: Value, b: Value) -> None:
        """Guards that two existing objects, which are two today, are two."""
        if a.source is not None and b.source is not None and a.source != b.source and may_be(a, b):
            self.guard("no_alias", a.source, None, (b.source,))

    def same(self, a: Value, b: Value) -> bool:
        """`a is b`, of symbolic numbers no more than one of the reasons why they are equal."""
        if a is b:
            return True
        a, b = self.realize(a), self.realize(b)
        if isinstance(a, Symbolic) or isinstance(b, Symbolic):
            return a is b
        if isinstance(a, Const) and isinstance(b, Const):
            if a.value is b.value:
                return True
            return type(a.value) is type(b.value) and isinstance(a.value, LITERALS) and a.identity() == b.identity()
        return a is b or a.identity() == b.identity()

    def equal(self, a: Value, b: Value) -> bool:
        """`bool(a == b)`."""
        return self.truth(calls.compare(self, "==", a, b))

    def alike(self, a: Value, b: Value) -> bool:
        """What containers ask of two objects: whether they are one, and only if not, whether `a == b`."""
        if self.same(a, b):
            return True
        self._stay_apart(self.realize(a), self.realize(b))
        return self.equal(a, b)

    def truth(self, value: Value) -> bool:
        return value.truth(self)

    # exceptions -----------------------------------------------------------------------------------------------
    def throw(self, cls: type[BaseException], *args: Any, **told: Value) -> NoReturn:
        """Raise cls(*args) in the captured program; `told` are attributes that it has besides."""
        if cls is TypeError and self.effects.readings:  # what is known behind the graph alone may be of the right type
            raise Break("builtin-call", f"a TypeError beside what is known when the graph has run: {args}")
        kept = (*LITERALS, tuple, list, decimal.Decimal)
        made = Object(cls, args=[self.make(a) if type(a) in kept else Const(str(a)) for a in args])
        made.overlay |= told
        raise self.raised(made)

    def throw_value(self, cls: type[BaseException], args: list[Value]) -> NoReturn:
        raise self.raised(Object(cls, args=args))

    def raised(self, exception: Value) -> Raised:
        """`raise exception`: the exception being handled becomes its context, and the place is remembered."""
        handled = next((f.handled[-1] for f in reversed(self.frames) if f.handled), None)
        exists = not isinstance(exception, Object) or exception.exists
        if exists and handled is not None and handled is not exception:  # of contexts that exist, too, none leads back
            raise Break("unsupported-operation", "raise of an existing exception while another one is handled")
        if isinstance(exception, Object):
            if handled is not None and handled is not exception:
                link: Value | None = handled
                passed: set[int] = set()
                while isinstance(link, Object) and link.overlay.get("__context__") is not exception:
                    link = None if id(link) in passed else link.overlay.get("__context__")
                    passed.add(id(link))
                if isinstance(link, Object):  # no exception comes to be its own context
                    self.effects.set_attr(link, "__context__", Const(None))
                self.effects.set_attr(exception, "__context__", handled)
        return self.thrown(exception)

    def thrown(self, exception: Value) -> Raised:
        """An exception is raised, with the context that it has."""
        if isinstance(exception, Object) and exception.raised_at is None and self.frames:
            exception.raised_at = self.frames[0].begin
        return Raised(exception)

    def passing(self, exception: Value) -> None:
        """An exception is raised in the innermost frame, or comes out of a call there: its traceback grows."""
        if self.frames:
            frame = self.frames[-1]
            at, line = frame.current.offset, frame.user_frame().lineno
            self.effects.passed(exception, tracebacks.place_of(frame.code, frame.globals, at, line))

    def throw_from(
        self, cls: type[BaseException], text: str, cause: Value | None, context: Value | None = None
    ) -> NoReturn:
        """`raise cls(text) from cause`, while that or `context` is handled."""
        made = Object(cls, args=[Const(text)])
        context = cause if context is None else context
        made.overlay |= {"__cause__": cause or Const(None), "__suppress_context__": Const(True)}
        made.overlay |= {} if context is None else {"__context__": context}
        made.raised_at = getattr(context, "raised_at", None)
        raise Raised(made)

    def exception_attribute(self, exception: Object, name: str) -> Value:
        if name == "__context__" and (exception.passed or exception.raised_at is not None):
            self.ask_callers()
        return exceptions.attribute(self, exception, name)

    def ask_callers(self) -> None:
        """What they handle is asked for: those that led here may, at any call; contextlib only orders contexts by it."""
        if self.frames[-1].code.co_filename != contextlib.__file__:
            raise Break("builtin-call", "what a caller of the compiled function handles is asked for")

    def as_exception(self, value: Value, args: Iterable[Value] = ()) -> Value:
        """The instance that `raise value` raises; `args`: what a class is given."""
        if not isinstance(value, Class) or not issubclass(value.cls, BaseException):
            return value
        made = self.call(value, [*args], {})
        if not issubclass(made.python_type(), BaseException):
            given = (
                f"calling {value.cls!r} should have returned an instance of BaseException, not {made.python_type()!r}"
            )
            self.throw(TypeError, given)
        return made

    def catching(self, cls: type[BaseException] | tuple[type[BaseException], ...], action: Callable[[], T]) -> T | None:
        try:
            return action()
        except Raised as e:
            if issubclass(e.value.python_type(), cls):
                return None
            raise

    # generators that are dropped ------------------------------------------------------------------------------
    def close_dropped(self) -> None:
        """Close suspended generators to which the program has no reference any more: CPython does so at once.

        Each reference of the program is one of ours: from a stack, a variable, a container. One that only we have left
        (of a cycle, or of a frame of ours) keeps a generator open; then the graph breaks where it was made.
        """
        place = len(self.suspended)
        while place:
            place -= 1
            generator = self.suspended[place]
            if sys.getrefcount(generator) > ONLY_SUSPENDED:
                continue
            del self.suspended[place]
            try:
                generator.close(self)
            except Raised:
                raise Break("generator-state", "a dropped generator that raises", generator.made_at) from None
            place = len(self.suspended)

    def hold(self, exception: Value, frame: Frame) -> None:
        """The traceback of an exception holds a frame that it leaves, and so its variables."""
        exception.__dict__.setdefault("held", []).append(frame)
        self.holding.append(weakref.ref(exception))

    def drop(self, frame: Frame, value: Value) -> None:
        """The root frame drops a reference: what existed before may end with it, and do anything."""
        self.effects.unbind(value)
        real = getattr(value, "real", None)
        if (
            real is None
            and not isinstance(value, (List, Tuple))
            or not (issubclass(type(real), Iterator) or ends_others(value))
        ):
            return
        if sum(_refers(v, value) for v in (*frame.stack, *frame.locals.values())) != 1:
            return
        if not issubclass(type(real), Iterator):
            if self._is_held(frame, value) or is_seen_by_entries_alone(value):
                return
            cls = type(real) if isinstance(value, Lazy) else value.python_type()
            raise Break("finalizer", f"a {class_name(cls)} is dropped")
        value = self.realize(value)
        if ends_others(value):
            raise Break("generator-state", f"a {value.python_type().__name__} is dropped")

    def _is_held(self, frame: Frame, value: Value) -> bool:
        """Whether a container that the frame was called with, still has and did not change holds an object."""
        source = value.source
        if source is None or source.kind not in ELEMENTS or self.effects.written():
            return False
        root = source.root
        return root.kind != "local" or any(v.source == root for v in frame.locals.values())

    def nothing_suspended(self) -> None:
        """Where the graph ends no generator of ours may wait for an end that would run later, or never; context variables are
        what they were."""
        if self.variables:
            raise Break("generator-state", "a context variable that is set", self.variables[0].made_at)
        if self.devices:
            raise Break("global-state", "a default device that is set", self.devices[-1][1])
        if self.inference.open:
            raise Break("global-state", "inference mode that is on", self.inference.open[0][1])
        if self.registered and not self.takes_handles() and any(map(self._stays, self.registered)):
            raise Break("builtin-call", "hooks of modules and of tensors that stay registered", self.registered[0][2])
        if self.suspended:
            made_at = min(g.made_at or 0 for g in self.suspended)
            raise Break("generator-state", "a generator made inside of the frame", made_at)

    @property
    def device(self) -> torch.device | None:
        """Which the program gives constructors here: that of a `with`, or the default that it has set."""
        return self.devices[-1][0] if self.devices else self.default_device

    def takes_handles(self) -> bool:
        """Whether generated code takes the numbers of the handles of modules' hooks at once: no other handles come between."""
        calls = (w.value for w in self.effects.journal if w.kind == "call")
        return bool(self.registered) and not any(isinstance(v, Handle) for given in calls for v in given)

    def _stays(self, registered: tuple[int, Dict, int | None]) -> bool:
        number, entries, _ = registered
        return any(isinstance(key.value, HookNumber) and key.value.value == number for key in entries.entries)

    def check_number(self, leaving: Const) -> None:
        """What stands for the number of a handle is seen by nobody else."""
        for number, _, made_at in self.registered:
            if type(leaving.value) is int and leaving.value == number:
                raise Break("builtin-call", "the number of a hook's handle", made_at)

    # calls ----------------------------------------------------------------------------------------------------
    def placed(self, value: Value) -> Value:
        """Remember where an iterator or a set was made: the capture stops there if it cannot outlive the graph."""
        if isinstance(value, (Iter, Set)) and value.made_at is None and self.frames:
            value.made_at = self.frames[0].begin
        return value

    def step(self) -> int | None:
        """The step of the root frame, for a `Break`."""
        return self.frames[0].begin if self.frames else None

    def call(self, fn: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        fn = self.realize(fn)
        if not fn.passes_on:  # and functions that it calls give it their results: they are no part of the CALL
            self.direct = False
            args, kwargs = [self.realize(a) for a in args], {k: self.realize(v) for k, v in kwargs.items()}
        return self.placed(fn.call(self, [*args], {**kwargs}))

    def call_direct(self, fn: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The call of a CALL instruction; a frame inlined for it (not for a builtin in between) is `direct`.

        The arguments are the callee's: an inlined one empties the list.
        """
        fn = self.realize(fn)
        if (made := open_texts.called(self, fn, args, kwargs)) is not None:
            return made
        if not fn.passes_on:
            self.realize_all(args, kwargs)
        self.direct, self.constructs = fn.passes_on, type(fn) is Class
        try:
            return self.placed(fn.call(self, args, kwargs))
        finally:
            self.direct = self.constructs = False

    def call_next(self, fn: Value, args: list[Value]) -> Value:
        """A call that the frame's own instruction makes, which is none: no other frame is between them."""
        self.constructs = True
        try:
            return self.call(fn, args, {})
        finally:
            self.constructs = False

    def call_function(self, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return calls.call_function(self, fn, args, kwargs)

    def inline(self, fn: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A Python function's code, whatever else is known of it."""
        assert isinstance(fn, Function)
        return calls.inline(self, fn, list(args), dict(kwargs))

    def call_builtin(self, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return calls.call_builtin(self, fn, args, kwargs)

    def call_existing(self, obj: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise Break("builtin-call", obj.describe())

    def construct(self, cls: Class, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return calls.construct(self, cls, args, kwargs)

    def iterator(self, value: Value) -> Value:
        """iter(value)."""
        if isinstance(value, Iter):
            return value
        if isinstance(value, Owned) and value.is_iterator():
            return owned.run(self, type(value.own).__iter__, [value], {})
        own = isinstance(value, Object) and isinstance(mro_lookup(value.cls, "__iter__"), types.WrapperDescriptorType)
        if isinstance(value, Object) and (value.storage is None or not own):
            if own and (kind := iterating(value)) == "running-iterator":  # C's: it alone knows where it is
                raise Break(kind, f"iteration over {value.describe()}")
            method = value.special(self, "__iter__")
            if method is not None:
                made = self.realize(self.call(method, [], {}))
                if not isinstance(made, Tensor) and not hasattr(made.python_type(), "__next__"):
                    self.throw(TypeError, f"iter() returned non-iterator of type {class_name(made.python_type())!r}")
                return made
        if isinstance(value, Opaque) and mro_lookup(value.python_type(), "__iter__") is mro_lookup(str, "__iter__"):
            value = as_text(self, value)
        return self.container_iterator(value)

    def container_iterator(self, value: Value, *, backwards: bool = False) -> Iter:
        """iter(container) or reversed(container), which generated code makes again and advances."""
        if backwards and value.is_const() and value.python_type() is range:  # which may be long
            return self.container_iterator(Const(value.const()[::-1]))
        kind = iterator_class(value, backwards=backwards)
        held = value.mapping if isinstance(value, DictView) else getattr(value, "storage", None) or value
        over = Over(held, backwards=backwards) if isinstance(held, (Sequence, Dict, Set)) else None
        if not backwards:
            made = Iter(
                value.iterate(self), kind, lambda taken: (rebuild.iterator_at, [value, Const(taken)]), over=over
            )
            made.indexes = value if kind is INDEXING else None
            return made
        given = value if isinstance(value, DictView) else held
        elements = list(given.iterate(self))
        if isinstance(given, (Dict, DictView, Proxy)):
            moving = given.in_order(self, -1)
        else:
            moving = held.backwards(self) if isinstance(held, List) else iter(elements[::-1])
        length = Const(len(elements))
        return Iter(moving, kind, lambda taken: (rebuild.reversed_at, [value, length, Const(taken)]), over=over)

    def next_of(self, iterator: Value) -> Value | None:
        """next(iterator), or None at its end: then `stopped_by` says what ended it."""
        if isinstance(iterator, Iter):
            self.stopped_by = None
            try:
                value = iterator.next(self)
            except Raised as e:  # by what it calls: to whoever asks it is the end, for this time
                if isinstance(iterator, Generator) or not issubclass(e.value.python_type(), StopIteration):
                    raise
                self.stopped_by = e.value
                return None
            if value is None and iterator.cls not in PASSING:
                self.stopped_by = iterator if isinstance(iterator, Generator) else None
            return value
        if isinstance(iterator, Owned) and iterator.is_iterator():
            self.stopped_by = None
            return iterator.next(self)
        if isinstance(iterator, Object):
            method = iterator.special(self, "__next__")
            if method is not None:
                try:
                    return self.call(method, [], {})
                except Raised as e:
                    if not issubclass(e.value.python_type(), StopIteration):
                        raise
                    self.stopped_by = e.value
                    return None
        raise Break(iterating(iterator), f"next({iterator.describe()})")

    def stop(self) -> NoReturn:
        """The exception at the end of the iterator that `next_of` has just found there."""
        ended, self.stopped_by = self.stopped_by, None
        if ended is None or isinstance(ended, Generator):
            result = Const(None) if ended is None else ended.take_returned()
            self.throw_value(StopIteration, [] if self.is_none(result) else [result])
        raise Raised(ended)

    def elements(self, value: Value) -> Iterator[Value]:
        """The elements of an iterable, realised."""
        return self.pull(self.iterator(value))

    def listed(self, value: Value) -> list[Value]:
        """The elements of an iterable of which CPython makes a list: it asks for their number first."""
        iterator = self.iterator(value)
        hints.ask_length(self, value)
        return list(self.pull(iterator))

    def tupled(self, value: Value) -> list[Value]:
        """The elements of an iterable of which CPython makes a tuple at once: from 3.14 on it does not ask for their number."""
        return list(self.elements(value)) if sys.version_info >= (3, 14) else self.listed(value)

    def pull(self, iterator: Value) -> Iterator[Value]:
        """What is left of an iterator, realised."""
        while (element := self.next_of(iterator)) is not None:
            yield self.realize(element)

    def resume_generator(self, frame: Frame, sent: Value | None) -> tuple[str, Value]:
        return calls.run_frame(self, frame, sent)

    def throw_into_generator(self, frame: Frame, exception: Value) -> tuple[str, Value]:
        return calls.run_frame(self, frame, None, exception)

    def function_dict(self, function: Function | Partial) -> Value:
        """vars(function), of one that is made here."""
        return (PartialDict if isinstance(function, Partial) else FunctionDict)(self, function)

    def builtin_namespace(self) -> dict[str, Any]:
        return builtins.__dict__


def is_restless(cls: type) -> bool:
    """Whether comparing instances of a class runs what the program wrote, and may see."""
    methods = cls.__hash__, cls.__eq__
    return any(isinstance(method, types.FunctionType) and not _is_calm(method) for method in methods)


def _is_calm(method: Any) -> bool:
    """Whether a `__hash__` or `__eq__` is one that `dataclasses` wrote, of fields."""
    return isinstance(method, types.FunctionType) and method.__code__.co_filename == "<string>"


# Functions of sets that see no order.
ORDERLESS = (len, bool, isinstance, operator.contains, operator.eq, operator.ne)


def same_hash_everywhere(value: Any) -> bool:
    """Whether this constant has the same hash in every process."""
    if type(value) in (tuple, frozenset):
        return all(map(same_hash_everywhere, value))
    return type(value) in (int, float, complex, bool)


BOUND = (types.MethodType, types.BuiltinMethodType)


def _refers(holder: Value, value: Value) -> bool:
    """Whether a variable or an item of the stack is the value, or a bound method of it (a `with` keeps `__exit__`)."""
    if holder is value or getattr(holder, "receiver", None) is value:
        return True
    bound, real = getattr(holder, "real", None), getattr(value, "real", None)
    return real is not None and type(bound) in BOUND and bound.__self__ is real  # type: ignore[union-attr]
