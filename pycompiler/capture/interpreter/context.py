"""The state of one capture: graph, guards, side effects, and the operations that handlers use to compute with values.

In: the root frame's globals and the size policy.  Out: a `Capture`, passed to every handler and value method as `cx`.
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

from pycompiler.capture.assumptions import inherited_guards
from pycompiler.capture.assumptions.alias_guards import COMPARED, may_be
from pycompiler.capture.assumptions.custom_op_reads import OperatorWrites
from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.effects.fact_log import FactLog
from pycompiler.capture.effects.side_effects import Effects
from pycompiler.capture.interpreter import calls
from pycompiler.capture.interpreter.torch_function import STACK, TorchFunctionState
from pycompiler.capture.recipe import runtime_helpers
from pycompiler.capture.recording import wrap
from pycompiler.capture.recording.data_errors import ErrorsOfData
from pycompiler.capture.recording.fake_calls import settle_numbers
from pycompiler.capture.recording.graph import GraphBuilder
from pycompiler.capture.recording.inference_mode import Inference
from pycompiler.capture.recording.input_symbols import Sizes, SymbolPolicy
from pycompiler.capture.recording.nodes import name_of
from pycompiler.capture.recording.scalar_reads import ScalarReads
from pycompiler.capture.semantics import length_hints, symbolic_formatting, tracebacks
from pycompiler.capture.semantics.special_methods import call_special
from pycompiler.capture.values import array, decimals, exceptions, native_objects
from pycompiler.capture.values.array import Array
from pycompiler.capture.values.attributes import (
    class_attribute,
    hide_written,
    is_mutable,
    lookup,
    mro_lookup,
    show_written,
    unlist_subclass,
)
from pycompiler.capture.values.base import NEEDED, Cell, LazyObject, Value, class_name, iteration_break_kind
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import LITERAL_IDS, LITERALS, Const, Identity, UnknownStr, reference
from pycompiler.capture.values.containers.dicts import Dict, DictView, Proxy
from pycompiler.capture.values.containers.instance_dicts import FunctionDict, PartialDict
from pycompiler.capture.values.containers.iterators import (
    INDEXING,
    PASSING,
    Generator,
    Iter,
    IterationState,
    is_seen_by_entries_alone,
    iterator_class,
    runs_code_at_end,
)
from pycompiler.capture.values.containers.keys import USER_KEYS, Key, UserKey
from pycompiler.capture.values.containers.sequences import Deque, List, Sequence, Slice, Tuple
from pycompiler.capture.values.containers.sets import Set
from pycompiler.capture.values.deferred import Deferred, is_one
from pycompiler.capture.values.finalizers import ARGUMENT
from pycompiler.capture.values.functions import ALIASES, Builtin, Function, Partial
from pycompiler.capture.values.native_objects import NativeObject
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.opaque import ContextVarToken, Opaque, as_text
from pycompiler.capture.values.symbolic_numbers import Symbolic
from pycompiler.capture.values.tensor import Handle, Tensor
from pycompiler.capture.values.weak_references import HookNumber
from pycompiler.capture.warnings import record
from pycompiler.ir import cuda_graph_override
from pycompiler.ir.control_flow_exceptions import LeavesCompile
from pycompiler.ir.function_marks import breaks_are_errors
from pycompiler.ir.guards import Guard, UserFrame, global_state, keys_of
from pycompiler.ir.source import ELEMENTS, GLOBALS, Source, const_source
from pycompiler.operators import numpy_arrays
from pycompiler.symbolic.symbols import Symbols
from pycompiler.torch_compat.fake_mode import new_fake_mode

if TYPE_CHECKING:
    from pycompiler.capture.interpreter.evaluation import Frame
    from pycompiler.capture.recording.fake_calls import RecordedCall
    from pycompiler.torch_compat.warning_listener import CapturedWarning

T = TypeVar("T")
BUDGET = 400_000
MOST_ELEMENTS = 1_000_000
# References to a generator that only `Capture.suspended`, a variable and an argument hold.
ONLY_SUSPENDED = 2 + ARGUMENT
GUARDS_OF_CONSTANTS: dict[str, Callable[[Any], bool]] = {
    "id_is": lambda known: False,
    "type_is": lambda known: is_mutable(type(known)) or isinstance(known, types.ModuleType),
}
"""When a guard on an object that the entry itself holds is still needed.  The object's identity cannot change; the class
of a Python instance or of a module can be assigned."""
SINGLETONS = (bool, type(None), type(Ellipsis), type(NotImplemented))


class Capture:
    """The state of one frame's capture."""

    def __init__(
        self,
        root_globals: dict[str, Any],
        policy: SymbolPolicy,
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
        self.facts = FactLog()
        self.graph = GraphBuilder(self, self.fake_mode)
        self.effects = Effects(self.graph.graph, self.facts)
        self.items = ScalarReads(self)
        self.guards: dict[tuple[Any, ...], Guard] = {}
        self.by_id: dict[int, Value] = {}
        self.of_operators = OperatorWrites()
        self.made_classes: list[type] = []  # stand-ins for classes that the program creates in each call
        self.keyed: dict[int, Value] = {}  # existing objects that were keys of dicts and sets, by identity
        self.keep: list[Any] = []
        self.constants: dict[int, Value] = {}  # values of code constants, by id: one constant stays one value
        self.places: dict[Source, Source] = {}  # sources computed from several sources
        self.kept: dict[tuple[Any, ...], Any] = {}  # cached function calls, each read once
        self.frames: list[Frame] = []
        self._stack: tuple[tuple[int, int], tuple[UserFrame, ...]] = ((-1, 0), ())
        self.tried: dict[tuple[Any, ...], Any] = {}  # the cached calls that earlier attempts of this capture met
        self.verdicts: dict[Any, bool] = {}  # whether the capture may call a cached function
        self.budget = BUDGET
        self.elements_taken = 0
        self.steps = 0  # instructions executed, in all frames
        self.stop_at: int | None = None  # step before which the capture stops
        self.hidden = hide_written()
        # Steps that need a real frame → the step of the code around each.
        self.reads_frame: dict[int, int | None] = {}
        self.errors = breaks_are_errors()  # whether a break raises, at the program's current place
        self.cuda_graphs = cuda_graph_override.now()  # settings at the program's current place
        self.cuda_graphs_met = {**self.cuda_graphs}  # settings that the graph has met, which hold for all of it
        self.spread = False  # the current call is `f(**mapping)`
        self.direct = False  # the callable being called is the operand of the current CALL, not called by a builtin
        # code of the `forward` that a module's call without hooks calls next
        self.of_module: types.CodeType | None = None
        self.heard: list[CapturedWarning] = []  # warnings of code that has run since the capture began
        self.constructs = False  # the callable is a class, or the `__init__` that a direct class call runs
        self.ids_are_keys = False
        self.variables: list[ContextVarToken] = []  # context variables that the program has set, the latest last
        # device of each open `with`, and the step that entered it
        self.devices: list[tuple[torch.device, int | None]] = []
        self.default_device: torch.device | None = None  # the default device that the program has set
        self.inference = Inference(self.facts)
        self.registered: list[tuple[int, Dict, int | None]] = []  # module hooks: number, dict, step
        self.stopped_by: Value | None = None  # the generator or exception that ended the iterator advanced last
        self.stopper: type[Exception] = Exception
        self.stopped: list[Frame] = []  # the frames at the step where the capture stopped
        self.suspended: list[Generator] = []  # suspended generators whose end runs code of the program
        self.cells: list[Cell] = []  # released at the end: a function that calls itself is in a cell of its own closure
        self.holding: list[weakref.ref[Value]] = []  # exceptions that hold frames
        self.inlined: set[types.CodeType] = set()
        self.errors_of_data = ErrorsOfData()
        self.surrounded = False  # inside torch.func transforms, or in an operator's kernel (`run_under`)
        self.autocast_regions = 0  # autocast regions that the program has entered
        self.process: dict[str, None] = {}  # reasons why the capture is valid in this process only
        # answers of abstract classes: is one class a subclass of the other
        self.abstract: dict[tuple[int, int], tuple[type, type, bool]] = {}
        self.module_hooks_checked: bool | None = None
        self.guard("global_state", const_source(torch), global_state() if state is None else state)
        self.functions = TorchFunctionState(self, modes or [])

    def run_under(self, levels: tuple[tuple[Any, ...], ...], *, as_captured: bool) -> None:
        """Record that the frame is called under torch.func transforms, or in the kernel of an operator.

        The capture then does not read facts about tensors that a transform level or autograd would answer.
        `as_captured`: the graph will run operator by operator, and each operator may be refused.  Not even the layout
        of a tensor that a level wraps is known.
        """
        self.surrounded = self.graph.levels = True
        self.errors_of_data.levelled = as_captured
        self.graph.under = frozenset(name.lower() for name, *_ in levels)
        if levels:
            self.guard("equals", const_source(STACK).attr("levels"), levels)
        self.process["the frame runs under transforms, or in the kernel of an operator"] = None

    def release(self) -> None:
        """Forget everything.  Values, frames and the capture refer to each other, and to the call's arguments, in
        cycles."""
        for exception in filter(None, (known() for known in self.holding)):
            exception.__dict__["held"].clear()
        show_written(self.hidden)
        for cls in self.made_classes:
            unlist_subclass(cls)
        for cell in self.cells:
            cell.contents = None
        for value in self.by_id.values():
            if value.source is not None:  # an existing object, which may hold its own holder
                vars(value).clear()
        self.graph.__dict__.clear()
        self.items.__dict__.clear()
        self.sizes.leave()
        self.__dict__.clear()

    # guards and objects ---------------------------------------------------------------------------------------
    def guard(self, kind: str, source: Source, arg: Any = None, others: tuple[Source, ...] = ()) -> None:
        if source.kind == "const" and kind in GUARDS_OF_CONSTANTS and not GUARDS_OF_CONSTANTS[kind](source.arg):
            return
        if (
            self.made_classes
            and (said := inherited_guards.replacement_guards(self, kind, source, arg, others)) is not None
        ):
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
        """Guard the keys of a dict.  A key compared by a method of the program is guarded by identity, at its place.
        Guards never run such a method."""
        keys = keys_of(real)
        if not any(compares_by_program_code(type(key)) for key in keys):
            self.guard("dict_keys", source, keys)
            return
        self.guard("length", source, len(keys))
        for i, key in enumerate(keys):
            if isinstance(key, LITERALS) and not compares_by_program_code(type(key)):
                self.guard("equals", source.then("dict_key_at", i), key)
                continue
            held = reference(key)
            if held is key and compares_by_program_code(type(key)):
                raise Break("unsupported-operation", USER_KEYS)
            self.guard("id_is", source.then("dict_key_at", i), held)

    def warns_of(self, what: str) -> None:
        """Record a warning that torch's C++ code raises, once or each time, about the calling line (`replay.ONCE`)."""
        record.note_once(self, what)

    def warned_by(self, call: RecordedCall, heard: list[CapturedWarning], result: Any) -> list[str]:
        """The messages of the warnings that a call of the graph raises."""
        return record.note_call(self, call, heard, result) if heard or call.name in record.KERNELS else []

    @property
    def user_stack(self) -> tuple[UserFrame, ...]:
        """The program's current place, outermost frame first."""
        if self._stack[0] != (self.steps, len(self.frames)):
            self._stack = ((self.steps, len(self.frames)), tuple(f.user_frame() for f in self.frames))
        return self._stack[1]

    def remember(self, real: Any, value: Value) -> None:
        self.by_id[id(real)] = value
        self.keep.append(real)

    def wrap(self, real: Any, source: Source) -> Value:
        if self.made_classes:
            if type(real) in LITERALS and inherited_guards.is_own(self, source):
                return self.make(real)
            source = inherited_guards.place(self, source)
        return wrap.wrap(self, real, source)

    def make(self, real: Any) -> Value:
        return wrap.make(self, real)

    def lazy(self, real: Any, source: Source) -> Value:
        return LazyObject(real, inherited_guards.place(self, source) if self.made_classes else source)

    def realize(self, value: Value, why: str = "") -> Value:
        """The value that the program uses.  `why`: the reason why a symbolic number becomes a constant."""
        if isinstance(value, LazyObject):
            if value.seen is None:
                value.seen = value.look(self)
            value = value.seen
        return value.settle(why) if why else value

    def computed(self, function: Callable[..., Any], *places: Source) -> Source:
        """The source of a value that each call computes once from these sources."""
        made = places[0].computed(function, *places[1:])
        return self.places.setdefault(made, made)

    def realize_all(self, args: list[Value], kwargs: dict[str, Value], why: str = "") -> None:
        """Realise the arguments of a call in place; with `why`, as constants where possible.

        Realising may call functions (keys of a dict).  Such a call is not the CALL instruction's own, so `direct` is
        off meanwhile.
        """
        direct, self.direct = self.direct, False
        try:
            args[:] = [self.realize(v, why) for v in args]
            kwargs.update([(k, self.realize(v, why)) for k, v in kwargs.items()])
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
        """Called before each instruction: stops at the step where a break was found before, and bounds the work."""
        self.steps += 1
        if self.steps == self.stop_at:
            self.stopped = list(self.frames)
            raise self.stopper
        if self.steps > self.budget:
            raise Break("trace-budget", f"{self.budget} instructions")
        return self.steps

    def count_element(self) -> None:
        """Called for each element of an iterator: builtins take elements without executing instructions."""
        self.elements_taken += 1
        if self.elements_taken > MOST_ELEMENTS:
            raise Break("trace-budget", f"{MOST_ELEMENTS} elements of iterators")

    # constants ------------------------------------------------------------------------------------------------
    def looks_at_hashes(self, values: Iterable[Any], what: str = "the order of a set") -> None:
        """Mark the capture as valid in this process only, if one of the values has another hash in another process.

        Hashes of `str`, None and classes differ between processes.
        """
        if not all(map(same_hash_everywhere, values)):
            self.process[f"the capture depends on {what}, which differs between processes"] = None

    def looks_at_address(self) -> None:
        """Mark the capture as valid in this process only."""
        self.process["the capture depends on an address, which differs between processes"] = None

    def evaluate_raw(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """fn(*args) on real constants; its exception is raised in the captured program."""
        for a in args:
            if type(a) in (set, frozenset) and len(a) > 1 and not any(fn is f for f in ORDERLESS):
                self.looks_at_hashes(a)
        around, before = sys.exception(), len(self.heard)
        numbers = numpy_arrays.numpy() is not None and (
            any(map(numpy_arrays.is_number, args)) or numpy_arrays.is_of_numpy(fn)
        )
        try:
            with numpy_arrays.as_errors() if numbers else decimals.context_of(self, fn, (*args, *kwargs.values())):
                found = fn(*args, **kwargs)
        except LeavesCompile:
            raise
        except FloatingPointError as e:
            raise Break("builtin-call", f"a NumPy call on constants raises a FloatingPointError: {e}") from e
        except Exception as e:
            if e.__cause__ is not None or e.__context__ not in (None, around):
                raise Break("uncaught-exception", f"{type(e).__name__} while another exception was handled") from None
            told = {**vars(e), **exceptions.extra_attributes(e)}
            record.note_evaluated(self, self.heard[before:], sys._getframe().f_code)
            self.throw(type(e), *e.args, **{k: self.make(v) for k, v in told.items()})
        if len(self.heard) > before:
            record.note_evaluated(self, self.heard[before:], sys._getframe().f_code)
        return found

    def evaluate(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Value:
        """The result of `evaluate_raw`, as a value.  Values among the arguments are constants from now on."""

        def known(given: Any) -> Any:
            return given.const(f"as an argument of {name_of(fn)}") if isinstance(given, Value) else given

        found = self.evaluate_raw(fn, *map(known, args), **{name: known(v) for name, v in kwargs.items()})
        if hasattr(type(found), "__next__"):  # an iterator has a state: each call of the program creates one
            raise Break("builtin-call", f"{fn.__qualname__}, which returns an iterator ({type(found).__name__})")
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
        value = self.realize(value, "as a key")
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
                    "unsupported-operation",
                    f"{value.describe()} as a key, whose metaclass has its own __hash__ or __eq__",
                )
            return ("o", id(value.cls))
        if isinstance(value, Object):
            return self._key_of_object(value)
        if isinstance(value, NativeObject) and value.kind.equals:
            self.no_hash(class_name(value.python_type()))
        if isinstance(value, Deque):
            self.no_hash("collections.deque")
        if isinstance(value, Array):
            if value.scalar:
                raise Break("data-dependent-value", "a NumPy number as a key")
            self.no_hash("numpy.ndarray")
        if isinstance(value, UnknownStr):
            raise value.broke
        if isinstance(value, Deferred):
            raise value.is_asked()
        if isinstance(value, Opaque) and (known := self._key_of_opaque(value)) is not None:
            return known
        if isinstance(value, Builtin) and type(value.fn) in ALIASES:  # an alias equals other aliases
            return ("c", value.fn)
        if isinstance(value, Identity):
            value = value.value
            return ("id of", self.guard_identity(value))
        if mro_lookup(value.python_type(), "__hash__") is None:
            self.no_hash(class_name(value.python_type()))
        return self.guard_identity(value)

    def no_hash(self, name: str) -> NoReturn:
        if sys.version_info >= (3, 14):  # the message of 3.14 says what the hash was for
            raise Break("unsupported-operation", f"hash of an unhashable {name!r} object")
        self.throw(TypeError, f"unhashable type: {name!r}")

    def guard_identity(self, value: Value) -> object:
        """The key of an object compared by identity.  An existing object is recorded: guards keep it apart from the
        other keys."""
        if value.source is not None and getattr(value, "real", None) is not None:
            self.keyed[id(value)] = value
        return value.identity()

    def guard_keys_apart(self) -> None:
        """Guard that existing objects used as keys by identity stay different objects."""
        groups: dict[tuple[type, type], list[Value]] = {}
        for value in self.keyed.values():
            if isinstance(value, COMPARED):
                groups.setdefault((type(value), value.python_type()), []).append(value)
        for first, *others in groups.values():
            apart = tuple(v.source for v in others if v.source is not None and v.source != first.source)
            if apart and first.source is not None:
                self.guard("no_alias", first.source, None, apart)

    def _key_of_opaque(self, value: Opaque) -> object:
        """The key of an object whose C code compares it by value, as a constant; None if it equals itself only."""
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
        hashed = call_special(self, hash, value, "__hash__", method).const()
        return UserKey(
            self,
            value,
            hashed,
            calm=_is_dataclass_method(hasher) and _is_dataclass_method(lookup(self, value.cls, "__eq__")),
        )

    def is_none(self, value: Value) -> bool:
        return isinstance(value, Const) and value.value is None

    def snapshot(self, value: Value, why: str = NEEDED) -> Any:
        """The real value of a constant, or of a container of constants, for a function that only reads it."""
        value = self.realize(value)
        if isinstance(value, Sequence) and value.cls in (list, tuple):
            return value.cls(self.snapshot(v, why) for v in value.items)
        if isinstance(value, Set) and value.cls in (set, frozenset):
            known = [self.snapshot(v, why) for v in value.ordered(self)]
            return value.cls(known) if value.shadow is None else value.cls(value.shadow)
        if isinstance(value, Dict) and value.cls is dict:
            return {self.snapshot(k, why): self.snapshot(v, why) for k, v in value.pairs(self)}
        return value.const(why)

    def index(self, value: Value, sequence: str = "") -> int:
        """operator.index(value). `sequence`: the name of the indexed type, for its TypeError."""
        if isinstance(value, Tensor):
            known = self.graph.known_number(value.fake)
            if known is None or type(known.value) is bool:
                settle_numbers(self.sizes, [value.node])
                raise Break("data-dependent-value", "a tensor used as an index")
            return int(known.value)
        method = value.special(self, "__index__") if isinstance(value, Object) else None
        if method is not None:
            return self._fitted(
                int(call_special(self, operator.index, value, "__index__", method).const()), value, sequence
            )
        value = value.plain_number()
        cls = value.python_type()
        if isinstance(value, Array) and hasattr(cls, "__index__"):
            raise Break("data-dependent-value", "a NumPy number as an index")
        if sequence and not hasattr(cls, "__index__"):
            self.throw(TypeError, f"{sequence} indices must be integers or slices, not {class_name(cls)}")
        value = self.realize(value, f"as an index of a {sequence}" if sequence else "as an integer")
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
        """operator.index(value) as a C method takes it for an index or a count: a 64-bit number."""
        index = self.index(value)
        self.evaluate_raw(itertools.repeat, None, index)
        return index

    def identical(self, a: Value, b: Value) -> bool:
        """The operator `is`.  Unlike `same`, an answer False is an assumption about two existing objects, and is
        guarded."""
        a, b = self.realize(a), self.realize(b)
        if self.graph.doubtful and isinstance(a, Tensor) and isinstance(b, Tensor):
            raise Break(
                "inner-graph",
                "`is` of two tensors, where an operator may return its argument or a copy, depending on strides",
            )
        if a is b:
            return True
        if isinstance(a, Deferred) or isinstance(b, Deferred):
            return is_one(self, a, b)
        if isinstance(a, Symbolic) or isinstance(b, Symbolic):
            if a.python_type() is not b.python_type():
                return False
            a, b = (self.realize(v, "as an operand of `is`") for v in (a, b))
        answer = self.same(a, b)
        if not answer and array.is_truth(a) and array.is_truth(b):
            raise Break("unsupported-operation", "`is` of two NumPy bools")
        if isinstance(a, Builtin) and isinstance(
            b, Builtin
        ):  # two builtins from `X.__get__` are equal, but not one object
            return a.fn is b.fn
        if isinstance(a, Const) and isinstance(b, Const):  # equal numbers and strings need not be one object
            return answer and (a.value is b.value or isinstance(a.value, SINGLETONS))
        if not answer:
            self._stay_apart(a, b)
        return answer

    def _stay_apart(self, a: Value, b: Value) -> None:
        """Guard that two existing objects, different today, stay different."""
        if a.source is not None and b.source is not None and a.source != b.source and may_be(a, b):
            self.guard("no_alias", a.source, None, (b.source,))

    def same(self, a: Value, b: Value) -> bool:
        """`a is b`. For symbolic numbers True is only one reason for equality."""
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
        """The comparison that containers use: `a is b`, and only if not, `a == b`."""
        if self.same(a, b):
            return True
        self._stay_apart(self.realize(a), self.realize(b))
        return self.equal(a, b)

    def override_cuda_graphs(self, kind: str, value: bool | None) -> bool | None:
        """Set a setting of `override_cudagraphs`; returns the previous one."""
        before, self.cuda_graphs[kind] = self.cuda_graphs[kind], value
        if value is not None:
            self.cuda_graphs_met[kind] = value
        return before

    def truth(self, value: Value) -> bool:
        return value.truth(self)

    # exceptions -----------------------------------------------------------------------------------------------
    def throw(self, cls: type[BaseException], *args: Any, **told: Value) -> NoReturn:
        """Raise cls(*args) in the captured program; `told`: further attributes of the exception."""
        # A deferred value, known only after the graph has run, may have the right type.
        if cls is TypeError and self.effects.readings:
            raise Break("builtin-call", f"a TypeError beside a value that is known only after the graph: {args}")
        kept = (*LITERALS, tuple, list, decimal.Decimal)
        made = Object(cls, args=[self.make(a) if type(a) in kept else Const(str(a)) for a in args])
        made.overlay |= told
        raise self.raised(made)

    def throw_value(self, cls: type[BaseException], args: list[Value]) -> NoReturn:
        raise self.raised(Object(cls, args=args))

    def raised(self, exception: Value) -> Raised:
        """`raise exception`: the exception being handled becomes its context, and the place is recorded."""
        handled = next((f.handled[-1] for f in reversed(self.frames) if f.handled), None)
        exists = not isinstance(exception, Object) or exception.exists
        # No context of an existing exception may lead back to it, either.
        if exists and handled is not None and handled is not exception:
            raise Break("unsupported-operation", "raise of an existing exception while another one is handled")
        if isinstance(exception, Object):
            if handled is not None and handled is not exception:
                link: Value | None = handled
                passed: set[int] = set()
                while isinstance(link, Object) and link.overlay.get("__context__") is not exception:
                    link = None if id(link) in passed else link.overlay.get("__context__")
                    passed.add(id(link))
                if isinstance(link, Object):  # no exception becomes its own context
                    self.effects.set_attr(link, "__context__", Const(None))
                self.effects.set_attr(exception, "__context__", handled)
        return self.thrown(exception)

    def thrown(self, exception: Value) -> Raised:
        """Raise an exception with the context that it already has."""
        if isinstance(exception, Object) and exception.raised_at is None and self.frames:
            exception.raised_at = self.frames[0].begin
        return Raised(exception)

    def passing(self, exception: Value) -> None:
        """Extend an exception's traceback: it is raised in the innermost frame, or comes out of a call there."""
        if self.frames:
            frame = self.frames[-1]
            at, line = frame.current.offset, frame.user_frame().lineno
            self.effects.passed(exception, tracebacks.place_of(frame.code, frame.globals, at, line))

    def throw_from(
        self, cls: type[BaseException], text: str, cause: Value | None, context: Value | None = None
    ) -> NoReturn:
        """`raise cls(text) from cause`, while `cause` or `context` is handled."""
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
        """Break: the program reads the exception that a caller handles.

        Different calls can come from callers that handle different exceptions.  contextlib only orders contexts by
        it.
        """
        if self.frames[-1].code.co_filename != contextlib.__file__:
            raise Break("builtin-call", "a read of the exception that a caller of the compiled function handles")

    def as_exception(self, value: Value, args: Iterable[Value] = ()) -> Value:
        """The instance that `raise value` raises; `args`: the arguments of a class."""
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
        """Close suspended generators that the program no longer references: CPython does so at once.

        Each reference of the program is a reference of the capture: from a stack, a variable or a container.  A
        reference that only the capture holds (a cycle, or a frame of the interpreter) keeps a generator open; then
        the graph breaks where it was created.
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
                raise Break(
                    "generator-state", "a dropped generator that raises when it is closed", generator.made_at
                ) from None
            place = len(self.suspended)

    def hold(self, exception: Value, frame: Frame) -> None:
        """Record that an exception's traceback holds a frame that it leaves, and so the frame's variables."""
        exception.__dict__.setdefault("held", []).append(frame)
        self.holding.append(weakref.ref(exception))

    def drop(self, frame: Frame, value: Value) -> None:
        """The root frame drops a reference.  An object that existed before the call may end with it, and run any
        code."""
        self.effects.unbind(value)
        real = getattr(value, "real", None)
        if (
            real is None
            and not isinstance(value, (List, Tuple))
            or not (issubclass(type(real), Iterator) or runs_code_at_end(value))
        ):
            return
        if sum(_refers(v, value) for v in (*frame.stack, *frame.locals.values())) != 1:
            return
        if not issubclass(type(real), Iterator):
            if self._is_held(frame, value) or is_seen_by_entries_alone(value):
                return
            cls = type(real) if isinstance(value, LazyObject) else value.python_type()
            raise Break("finalizer", f"a {class_name(cls)} is dropped")
        value = self.realize(value)
        if runs_code_at_end(value):
            raise Break("generator-state", f"a {value.python_type().__name__} is dropped")

    def _is_held(self, frame: Frame, value: Value) -> bool:
        """Whether an unchanged container, given to the frame and still referenced, holds the value."""
        source = value.source
        if source is None or source.kind not in ELEMENTS or self.effects.written():
            return False
        root = source.root
        return root.kind != "local" or any(v.source == root for v in frame.locals.values())

    def nothing_suspended(self) -> None:
        """Break if a suspended generator, a context variable, a device or a hook of the program is open at the end of
        the graph.

        A generator's end would run later or never.  Context variables must have their old values.
        """
        if self.variables:
            raise Break(
                "generator-state",
                "a context variable that is still set where the graph ends",
                self.variables[0].made_at,
            )
        if self.devices:
            raise Break("global-state", "a default device that is still set where the graph ends", self.devices[-1][1])
        if self.inference.open:
            raise Break(
                "global-state", "inference mode that is still on where the graph ends", self.inference.open[0][1]
            )
        if self.registered and not self.takes_handles() and any(map(self._stays, self.registered)):
            raise Break("builtin-call", "hooks of modules and tensors that stay registered", self.registered[0][2])
        if self.suspended:
            made_at = min(g.made_at or 0 for g in self.suspended)
            raise Break("generator-state", "a generator made inside of the frame", made_at)

    @property
    def device(self) -> torch.device | None:
        """The device that constructors use here: of the innermost `with`, or the program's default."""
        return self.devices[-1][0] if self.devices else self.default_device

    def takes_handles(self) -> bool:
        """Whether generated code takes the numbers of all module-hook handles at once: no other handle is created in
        between."""
        calls = (w.value for w in self.effects.journal if w.kind == "call")
        return bool(self.registered) and not any(isinstance(v, Handle) for given in calls for v in given)

    def _stays(self, registered: tuple[int, Dict, int | None]) -> bool:
        number, entries, _ = registered
        return any(isinstance(key.value, HookNumber) and key.value.value == number for key in entries.entries)

    def check_number(self, leaving: Const) -> None:
        """Break if the placeholder for a hook handle's number leaves the frame: its real number is not known yet."""
        for number, _, made_at in self.registered:
            if type(leaving.value) is int and leaving.value == number:
                raise Break("builtin-call", "the number of a hook's handle, known only after the graph", made_at)

    # calls ----------------------------------------------------------------------------------------------------
    def placed(self, value: Value) -> Value:
        """Record where an iterator or a set was created: the capture stops there if it cannot outlive the graph."""
        if isinstance(value, (Iter, Set)) and value.made_at is None and self.frames:
            value.made_at = self.frames[0].begin
        return value

    def step(self) -> int | None:
        """The step of the root frame, for a `Break`."""
        return self.frames[0].begin if self.frames else None

    def call(self, fn: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        fn = self.realize(fn)
        if not fn.passes_on:  # functions that `fn` calls give their results to `fn`: they are no part of the CALL
            self.direct = False
            args, kwargs = [self.realize(a) for a in args], {k: self.realize(v) for k, v in kwargs.items()}
        return self.placed(fn.call(self, [*args], {**kwargs}))

    def call_direct(self, fn: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The call of a CALL instruction.  A frame inlined for it (not for a builtin in between) is `direct`.

        The argument list belongs to the callee: inlining empties it.
        """
        fn = self.realize(fn)
        if (made := symbolic_formatting.call(self, fn, args, kwargs)) is not None:
            return made
        if not fn.passes_on:
            self.realize_all(args, kwargs)
        self.direct, self.constructs = fn.passes_on, type(fn) is Class
        try:
            return self.placed(fn.call(self, args, kwargs))
        finally:
            self.direct = self.constructs = False

    def call_next(self, fn: Value, args: list[Value]) -> Value:
        """A call that the frame makes itself without a CALL instruction: no other frame is between caller and
        callee."""
        self.constructs = True
        try:
            return self.call(fn, args, {})
        finally:
            self.constructs = False

    def call_function(self, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return calls.call_function(self, fn, args, kwargs)

    def inline(self, fn: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Inline a Python function's code, without handlers or break rules."""
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
        if isinstance(value, NativeObject) and value.is_iterator():
            return native_objects.run(self, type(value.own).__iter__, [value], {})
        own = isinstance(value, Object) and isinstance(mro_lookup(value.cls, "__iter__"), types.WrapperDescriptorType)
        if isinstance(value, Object) and (value.storage is None or not own):
            if (
                own and (kind := iteration_break_kind(value)) == "running-iterator"
            ):  # only the C iterator knows its position
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
        """iter(container) or reversed(container); generated code creates it again and advances it."""
        if backwards and value.is_const() and value.python_type() is range:  # a range may be long
            return self.container_iterator(Const(value.const()[::-1]))
        kind = iterator_class(value, backwards=backwards)
        held = value.mapping if isinstance(value, DictView) else getattr(value, "storage", None) or value
        over = IterationState(held, backwards=backwards) if isinstance(held, (Sequence, Dict, Set)) else None
        if not backwards:
            made = Iter(
                value.iterate(self), kind, lambda taken: (runtime_helpers.iterator_at, [value, Const(taken)]), over=over
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
        return Iter(moving, kind, lambda taken: (runtime_helpers.reversed_at, [value, length, Const(taken)]), over=over)

    def next_of(self, iterator: Value) -> Value | None:
        """next(iterator), or None at its end; `stopped_by` then holds the generator or exception that ended it."""
        if isinstance(iterator, Iter):
            self.stopped_by = None
            try:
                value = iterator.next(self)
            # A StopIteration from a function that the iterator calls: for the caller it is the end, this time.
            except Raised as e:
                if isinstance(iterator, Generator) or not issubclass(e.value.python_type(), StopIteration):
                    raise
                self.stopped_by = e.value
                return None
            if value is None and iterator.cls not in PASSING:
                self.stopped_by = iterator if isinstance(iterator, Generator) else None
            return value
        if isinstance(iterator, NativeObject) and iterator.is_iterator():
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
        raise Break(iteration_break_kind(iterator), f"next({iterator.describe()})")

    def stop(self) -> NoReturn:
        """Raise the exception at the end of the iterator that `next_of` has just reached."""
        ended, self.stopped_by = self.stopped_by, None
        if ended is None or isinstance(ended, Generator):
            result = Const(None) if ended is None else ended.take_returned()
            self.throw_value(StopIteration, [] if self.is_none(result) else [result])
        raise Raised(ended)

    def elements(self, value: Value) -> Iterator[Value]:
        """The elements of an iterable, realised."""
        return self.pull(self.iterator(value))

    def listed(self, value: Value) -> list[Value]:
        """The elements of an iterable that CPython turns into a list: it reads the length hint first."""
        iterator = self.iterator(value)
        length_hints.call_length_hint(self, value)
        return list(self.pull(iterator))

    def tupled(self, value: Value) -> list[Value]:
        """The elements of an iterable that CPython turns into a tuple at once.  Since 3.14 it does not read the length
        hint."""
        return list(self.elements(value)) if sys.version_info >= (3, 14) else self.listed(value)

    def pull(self, iterator: Value) -> Iterator[Value]:
        """The remaining elements of an iterator, realised."""
        while (element := self.next_of(iterator)) is not None:
            yield self.realize(element)

    def resume_generator(self, frame: Frame, sent: Value | None) -> tuple[str, Value]:
        return calls.run_frame(self, frame, sent)

    def throw_into_generator(self, frame: Frame, exception: Value) -> tuple[str, Value]:
        return calls.run_frame(self, frame, None, exception)

    def function_dict(self, function: Function | Partial) -> Value:
        """vars(function), for a function that the frame created."""
        return (PartialDict if isinstance(function, Partial) else FunctionDict)(self, function)

    def builtin_namespace(self) -> dict[str, Any]:
        return builtins.__dict__


def compares_by_program_code(cls: type) -> bool:
    """Whether comparing instances of a class runs code of the program, which may have effects."""
    methods = cls.__hash__, cls.__eq__
    return any(isinstance(method, types.FunctionType) and not _is_dataclass_method(method) for method in methods)


def _is_dataclass_method(method: Any) -> bool:
    """Whether a `__hash__` or `__eq__` was generated by `dataclasses` from fields."""
    return isinstance(method, types.FunctionType) and method.__code__.co_filename == "<string>"


# Functions of sets that do not depend on the order.
ORDERLESS = (len, bool, isinstance, operator.contains, operator.eq, operator.ne)


def same_hash_everywhere(value: Any) -> bool:
    """Whether a constant has the same hash in every process."""
    if type(value) in (tuple, frozenset):
        return all(map(same_hash_everywhere, value))
    return type(value) in (int, float, complex, bool)


BOUND = (types.MethodType, types.BuiltinMethodType)


def _refers(holder: Value, value: Value) -> bool:
    """Whether a variable or stack item is the value, or a bound method of it (a `with` stores `__exit__`)."""
    if holder is value or getattr(holder, "receiver", None) is value:
        return True
    bound, real = getattr(holder, "real", None), getattr(value, "real", None)
    return real is not None and type(bound) in BOUND and bound.__self__ is real  # type: ignore[union-attr]
