"""A frame to an entry of the engine: capture, then a backend.

    frame → capture → graph → backend (autograd → `graphs.compile_aten`) → plan → entry

This file and `graphs.py` are the only ones that import more than one stage.  `FrameCompiler` belongs to one compiled
callable; the engine calls it on a miss.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _pop_mode, _push_mode

from pycompiler import _native, autograd, backends, background, config
from pycompiler.capture import skip
from pycompiler.capture.breaks import SkipFrame
from pycompiler.capture.builtins import torch_api
from pycompiler.capture.frame import BreakRecord, Captured, capture_frame
from pycompiler.capture.recipe import GRAPH, TAIL_CALL, Hole, Resume, fill
from pycompiler.capture.sizes import Policy
from pycompiler.errors import (
    ArgumentError,
    BackendError,
    BadBackendResult,
    InternalError,
    PyCompilerError,
    RecompileError,
    RecompileLimitExceeded,
    RecompileLimitWarning,
    Unsupported,
    UserError,
)
from pycompiler.graphs import STATISTICS, compile_aten
from pycompiler.ir import peer
from pycompiler.ir.fake import fake_of, new_fake_mode
from pycompiler.ir.guard_entries import entries
from pycompiler.ir.guards import Guard, explain, global_state
from pycompiler.ir.interrupts import allowed, deferred
from pycompiler.ir.names import code_digest, traced_through
from pycompiler.ir.shared import WhileInside
from pycompiler.ir.source import Scope
from pycompiler.ir.source import const as const_source
from pycompiler.ir.symbols import Specialise
from pycompiler.ir.texts import drop_text, drop_text_with, forward_of
from pycompiler.logs import artifact, stage, step
from pycompiler.progress import compiling, current_name, timed

log = stage("dynamo")
log_graph = artifact("graph_code")
log_guards = artifact("guards")
log_breaks = artifact("graph_breaks")
log_recompiles = artifact("recompiles")
log_bytecode = artifact("bytecode")


# backends ---------------------------------------------------------------------------------------------------
def native(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Sequence[Any]]:
    """Autograd, then the compiler for each graph."""
    return _joint(gm, example_inputs, compile_aten)


def aot_eager(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Sequence[Any]]:
    """Autograd without the compiler: the ATen graphs run as they are."""

    def as_it_is(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
        drop_text_with(module)
        return _native.BackendCall(forward_of(module))

    return _joint(gm, example_inputs, as_it_is)


backends.register_backend(native, name="native")
backends.register_backend(aot_eager, name="aot_eager")


def _joint(gm: fx.GraphModule, example_inputs: Sequence[Any], compiler: Any) -> Callable[..., Sequence[Any]]:
    partition = "min_cut" if config.partition == "min_cut" else "default"
    forward = current_name()

    def compile_backward(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:  # at the first backward, not here
        with compiling(f"backward of {forward or 'a graph'}"), RESTING_COLLECTOR:
            return compiler(module, inputs)

    try:
        with timed("autograd"):
            return autograd.compile_joint(
                gm,
                example_inputs,
                fw_compiler=compiler,
                bw_compiler=compile_backward,
                partition=partition,
                activation_memory_budget=config.activation_memory_budget,
                ahead=background.inside(),
            )
    except autograd.AutogradUnsupported as e:
        log.warning("a graph runs eagerly: %s", e)
        STATISTICS["aten_fallbacks"] += 1
        return forward_of(gm)


# frames -------------------------------------------------------------------------------------------------------
@dataclass
class GraphRecord:
    """What one capture produced, kept for `explain` and the logs."""

    code: types.CodeType
    graph: fx.GraphModule | None
    guards: list[Guard]
    op_count: int
    broke: BreakRecord | None
    seconds: float


@dataclass(frozen=True)
class Remarks:
    """What an entry rests on besides its guards, which cannot change while the process runs: see `Captured`."""

    process: tuple[str, ...] = ()
    abstract: tuple[tuple[type, type, bool], ...] = ()


def remarks_of(captured: Captured) -> Remarks:
    graphs = [] if captured.graph is None else [m for m in captured.graph.modules() if isinstance(m, fx.GraphModule)]
    targets = dict.fromkeys(n.target for gm in graphs for n in gm.graph.nodes if n.op == "call_function")
    calls = [f"its graph holds what {name} did when it was traced" for t in targets if (name := traced_through(t))]
    return Remarks((*captured.process, *calls), captured.abstract)


@dataclass(eq=False)
class Family:
    """What the frames of one compiled callable share: backend, flags, resume functions, records."""

    backend: Callable[..., Any]
    backend_name: str
    fullgraph: bool = False
    recompile_limit: int | None = None
    guard_filter: Callable[[Sequence[Any]], Sequence[bool]] | None = None
    listener: Callable[[GraphRecord], None] | None = None
    resumes: dict[types.CodeType, Any] = field(default_factory=dict)
    members: Members = field(default_factory=lambda: Members())
    ours: bool = True
    dynamic: bool | None = None
    backend_options: dict[str, Any] = field(default_factory=dict)  # keyword arguments of each call of the backend
    knobs: dict[str, Any] = field(default_factory=dict)  # knobs of `config` that hold during compiles
    policy: _native.Mode = "compile"
    background: bool = False  # a call that misses runs eagerly, and its graph is compiled by a worker
    hooked: dict[types.CodeType, Any] = field(default_factory=dict)  # functions reached through the frame hook
    shelf: dict[str, Callable[[Any], None]] = field(
        default_factory=dict
    )  # digest of such a function's code → loads its entries
    remarks: weakref.WeakKeyDictionary[Any, Remarks] = field(default_factory=weakref.WeakKeyDictionary)  # by entry
    sizes: dict[types.CodeType, Policy] = field(default_factory=dict)  # which are symbols

    def __post_init__(self) -> None:
        _families.add(self)
        self.frame_hook = _native.FrameHook(FrameLookup(weakref.ref(self)))

    def copy(self) -> Family:
        """A family of its own with the same settings."""
        return replace(
            self, resumes={}, hooked={}, sizes={}, shelf={}, remarks=weakref.WeakKeyDictionary(), members=Members(),
            listener=None,
        )  # fmt: skip

    def reset(self) -> None:
        """Drop all entries of all members, and the resume functions.  The policy stays."""
        for member in self.members:
            member.reset()
        self.resumes.clear()
        self.hooked.clear()
        self.shelf.clear()
        self.sizes.clear()

    def sizes_of(self, code: types.CodeType) -> Policy:
        """What is symbolic in captures of `code`."""
        found = self.sizes.get(code)
        if found is None:
            allowed = config.dynamic_shapes and self.dynamic is not False
            changing = allowed and self.dynamic is None and config.automatic_dynamic_shapes
            everything = allowed and self.dynamic is True
            made = Policy(everything=everything, automatic=changing, marked=allowed)
            found = self.sizes.setdefault(code, made)
        return found

    def set_policy(self, policy: _native.Mode) -> None:
        """What a miss does, in all members, resume functions included: see `_native.CompiledFunction.set_mode`."""
        self.policy = policy
        self.apply_policy()

    @property
    def mode(self) -> _native.Mode:
        """The policy, unless `config.disable` is set."""
        return "eager" if config.disable else self.policy

    def apply_policy(self) -> None:
        for member in self.members:
            member.set_mode(self.mode)

    # limits ---------------------------------------------------------------------------------------------------
    @property
    def raises_at_limit(self) -> bool:
        """Whether a miss at the limit raises; then `FrameCompiler` checks the limit, else the engine does."""
        return self.fullgraph or config.fail_on_recompile_limit_hit

    @property
    def limit(self) -> int:
        return config.recompile_limit if self.recompile_limit is None else self.recompile_limit

    def set_limits(self, member: Any) -> None:
        member.recompile_limit = NO_LIMIT if self.raises_at_limit else min(self.limit, NO_LIMIT)
        total = config.accumulated_recompile_limit
        member.accumulated_limit = NO_LIMIT if self.raises_at_limit else min(total, NO_LIMIT)


NO_LIMIT = 2**31


class Members:
    """A weak set of compiled functions or families that threads may add to while others iterate."""

    def __init__(self) -> None:
        self._set: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()

    def add(self, member: Any) -> None:
        with self._lock:
            self._set.add(member)

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            return iter(list(self._set))


_families = Members()


def families() -> list[Family]:
    """The families of all compiled callables that are alive."""
    return list(_families)


def _limits_changed() -> None:
    for family in _families:
        for member in family.members:
            family.set_limits(member)


def _disable_changed() -> None:
    for family in _families:
        family.apply_policy()


config.on_change("disable", _disable_changed)
for _name in ("recompile_limit", "accumulated_recompile_limit", "fail_on_recompile_limit_hit"):
    config.on_change(_name, _limits_changed)


def place_of(code: types.CodeType) -> str:
    return f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


class ThreadState:
    """The state of torch that belongs to the thread that makes it; inside of `with`, another thread has it too."""

    def __init__(self) -> None:
        self.state, self.inference = torch_api.read_state(), torch.is_inference_mode_enabled()

    def __enter__(self) -> None:
        self.before = torch_api.read_state()
        self.mode = torch.inference_mode(self.inference)
        self.mode.__enter__()
        torch_api.write_state(self.state)

    def __exit__(self, *exc: object) -> None:
        self.mode.__exit__(*exc)
        torch_api.write_state(self.before)


def leave_eager(code: types.CodeType) -> None:
    """Never compile frames of `code` that the frame hook meets; what they call may be compiled."""
    skip.EAGER_CODES.add(code)


@contextlib.contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """The user's saved-tensor hooks (checkpointing) see the compiled graph when it runs, not its compilation."""
    autograd_c = torch._C._autograd
    hooks = []
    while (top := autograd_c._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        autograd_c._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            autograd_c._push_saved_tensors_default_hooks(pack, unpack)


NEVER = 2**31 - 1
RESTING_COLLECTOR = WhileInside(
    gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds), lambda before: (*before[:2], NEVER)
)
"""While frames are compiled, the oldest generation is not searched for garbage.

What a compile makes is in use until its end, and one search of all objects that torch made costs as much as the
compile of fifty layers.  Young garbage is still collected; thresholds that others set meanwhile stay.
"""


class FrameLookup:
    """The engine asks it, once per code object, about functions that run while a graph break of a family runs.

    User functions that could not be inlined get a cache of their own in the family; library code runs as it is.
    """

    def __init__(self, family: weakref.ref[Family]) -> None:
        self.family = family

    def __call__(self, code: types.CodeType, function: types.FunctionType) -> Any:
        family = self.family()
        if family is None or family.fullgraph or family.policy != "compile":
            return None
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            return None  # checkpointing runs the function again, outside of the hook, and must save as many tensors
        if not isinstance(function, types.FunctionType) or traced_by_python():
            return None
        found = family.hooked.get(code)
        if found is None:
            disabled = disabled_by_torch(function)
            if disabled is not None:
                found = _native.CompiledFunction(function, disabled, name=function.__qualname__)
            elif skip.why_not_hooked(function) is None:
                found = new_compiled(without_state(function), family)
                if family.shelf and (stored := family.shelf.pop(code_digest(code), None)) is not None:
                    stored(found)
            else:
                return None
            family.hooked[code] = found
        return found


def eagerly(target: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call with the frame hook off, so that no function below is compiled unless it is a compiled callable."""
    _native.pause_hook()
    try:
        return target(*args, **kwargs)
    finally:
        _native.resume_hook()


def disabled_by_torch(function: types.FunctionType) -> Callable[..., Any] | None:
    """If `function` is what torch.compiler.disable returned: a compiler whose only entry runs the original eagerly."""
    if not peer.is_disabled_call(function.__code__):
        return None
    recursive = peer.mark(function, peer.RECURSIVE) is not False

    def run(args: tuple[Any, ...], kwargs: dict[str, Any], fn: types.CellType, self: Any) -> Any:
        if recursive:
            return eagerly(fn.cell_contents, args, kwargs)
        if isinstance(fn.cell_contents, types.FunctionType):
            leave_eager(fn.cell_contents.__code__)
        return fn.cell_contents(*args, **kwargs)

    def without_self(args: tuple[Any, ...], kwargs: dict[str, Any], fn: types.CellType) -> Any:
        return run(args, kwargs, fn, None)

    target = run if "self" in function.__code__.co_freevars else without_self
    peer.leave_alone(target.__code__)
    return lambda *call: _native.Entry([], target, "function")


def without_state(function: types.FunctionType) -> types.FunctionType:
    """The function with empty cells and no defaults: for the hook's calls the engine takes those of the frame's own
    function, and the first one's would stay alive with its code."""
    made = with_empty_cells(function.__code__, function.__globals__)
    made.__name__, made.__qualname__ = function.__name__, function.__qualname__
    return made


def with_empty_cells(code: types.CodeType, namespace: dict[str, Any]) -> types.FunctionType:
    """The function with empty cells: the engine gives it those of each call, and this call's would stay alive."""
    cells = tuple(types.CellType() for _ in code.co_freevars)
    return types.FunctionType(code, namespace, code.co_name, None, cells or None)


@contextlib.contextmanager
def users_backend() -> Iterator[None]:
    """A user's backend may be interrupted, and may draw random numbers to try its code: they count as not drawn.

    There is one generator for all threads: where another one may draw, its numbers must not come twice.
    """
    state = torch.random.get_rng_state()
    alone = threading.active_count() == 1
    try:
        with allowed():
            yield
    finally:
        if alone and not torch.equal(state, torch.random.get_rng_state()):
            torch.random.set_rng_state(state)


def traced_by_python() -> bool:
    """Whether a trace or profile function written in Python is set: it, and what it calls, is no part of the program."""
    return any(isinstance(f, (types.FunctionType, types.MethodType)) for f in (sys.gettrace(), sys.getprofile()))


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """A debugger's or profiler's functions do not see, and do not slow down, the compiler at work."""
    if not traced_by_python():
        yield
        return
    trace, profile = sys.gettrace(), sys.getprofile()
    sys.settrace(None)
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.settrace(trace)
        sys.setprofile(profile)


class modes_as_before:
    """Puts the dispatch modes back that were on before a compile, when an exception ends it.

    Ctrl-C can come between torch's switching on of a mode and the `with` block that would switch it off.
    """

    KEYS = tuple(getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL"))

    def __enter__(self) -> None:
        self.before, self.functions = self.now(), torch._C._len_torch_function_stack()

    @staticmethod
    def now() -> list[Any]:
        return [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            return
        if any(a is not b for a, b in zip_longest(self.now(), self.before)):
            for key in self.KEYS:
                torch._C._unset_dispatch_mode(key)
            while torch._C._len_torch_dispatch_stack():
                _pop_mode()
            for mode in self.before:
                _push_mode(mode)
        while torch._C._len_torch_function_stack() > self.functions:
            torch._C._pop_torch_function_stack()


class OwnKnobs:
    """Knobs of one callable during its compile.  They are set for the process: one compile at a time has its own."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.before: dict[str, Any] = {}  # the values that the compile which has the lock put aside
        os.register_at_fork(after_in_child=self.after_fork)

    @contextlib.contextmanager
    def __call__(self, knobs: dict[str, Any]) -> Iterator[None]:
        if not knobs:
            yield
            return
        with self.lock:
            outer, self.before = self.before, {name: getattr(config, name) for name in knobs} | self.before
            try:
                with config.patch(knobs):
                    yield
            finally:
                self.before = outer

    def after_fork(self) -> None:
        """The compile of another thread has ended with it."""
        if not self.lock._is_owned():  # type: ignore[attr-defined]
            before, self.lock, self.before = self.before, threading.RLock(), {}
            for name, value in before.items():
                setattr(config, name, value)


own_knobs = OwnKnobs()


NEVER_HOLDS = Guard("equals", const_source(0), 1)


def specialise(code: types.CodeType, policy: Policy, captured: Captured, wanted: Specialise) -> None:
    """The symbols that a stage cannot carry are numbers in later captures of `code`."""
    assert captured.sizes is not None
    origins = captured.sizes.origins_of(wanted)
    if not origins:
        raise InternalError(f"no symbols of this graph: {wanted}")
    required = [o for o in origins if o in captured.sizes.required.values()]
    if required:
        raise UserError(f"{required[0].number} is marked dynamic, but cannot be: {wanted.why}")
    policy.specialise(origins)
    log.info("%s: sizes are numbers again: %s", code.co_qualname, wanted)


class UsersError(BaseException):
    """Carries an exception of the user's own code (a backend, a guard filter) out of a compile unchanged."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class FrameCompiler:
    """Compiles the frames of one function; the engine calls it on a miss: capture, compile of the graph, assembly."""

    def __init__(self, family: Family) -> None:
        self.family = family

    # engine callback ------------------------------------------------------------------------------------------
    def __call__(self, fn: Any, values: dict[str, Any], reasons: list[tuple[int, int]]) -> Any:
        """The entry for this call, or None: run the function eagerly from now on."""
        function = fn.fn
        code, namespace = function.__code__, function.__globals__
        if reasons:
            self.report_recompile(fn, values, namespace, reasons)
        if config.debug_function and code.co_name != config.debug_function:
            return None
        with untraced(), deferred():
            return self.compile_or_explain(function, values)

    def compile_or_explain(self, function: types.FunctionType, values: dict[str, Any]) -> Any:
        """The entry; None with a log line, or an exception, where there is none."""
        code = function.__code__
        try:
            return self.compile_frame(function, values)
        except SkipFrame as e:
            if self.family.fullgraph:
                raise Unsupported("skipped-frame", str(e), "remove fullgraph=True, or what the reason names") from None
            log.info("%s runs eagerly: %s", code.co_qualname, e)
            log_breaks("frame %s runs eagerly: %s", code.co_qualname, e)
            return None
        except UsersError as e:
            error = e.error
        except (Unsupported, UserError):
            raise
        except Exception as e:
            if (
                isinstance(e, RecursionError) and not self.family.fullgraph
            ):  # the program's calls have used the stack up
                log.info("%s runs eagerly: %s", code.co_qualname, e)
                return None
            error = located(e, code)
            if (config.raise_internal_errors or self.family.fullgraph) and not config.suppress_errors:
                raise error from (None if error is e else e)
        return self.failed(code, error)

    def compile_frame(self, function: types.FunctionType, values: dict[str, Any]) -> Any:
        code = function.__code__
        start = time.perf_counter()
        step(1, "torchdynamo start tracing %s (%s:%d)", code.co_name, code.co_filename, code.co_firstlineno)
        with timed("capture and backend"), compiling(place_of(code)), RESTING_COLLECTOR, without_saved_tensor_hooks(), \
             modes_as_before():  # fmt: skip
            policy = self.family.sizes_of(code)
            graph: Callable[..., Any] | None = None
            while True:
                captured = capture_frame(
                    code, function.__globals__, values, fullgraph=self.family.fullgraph, on_break=self.on_break,
                    policy=policy,
                )  # fmt: skip
                guards = self.filtered(captured.guards, Scope(values, function.__globals__))
                if captured.graph is None:
                    break
                examples = self.example_inputs(captured)
                if self.family.background:
                    return self.compile_later(function, captured, guards, examples)
                try:
                    graph = self.compile_graph(captured.graph, examples)
                    break
                except Specialise as e:
                    specialise(code, policy, captured, e)
        step(1, "torchdynamo done tracing %s", code.co_name)
        self.record(code, captured, time.perf_counter() - start)
        return self.assemble(function, captured, guards, graph)

    def compile_later(
        self, function: types.FunctionType, captured: Captured, guards: list[Guard], examples: list[torch.Tensor]
    ) -> Any:
        """An entry that runs the original code until a worker has compiled the graph."""
        entry = _native.Entry(guards, function, "eager")
        self.family.remarks[entry] = Remarks(("its graph is not compiled yet (wait_for_compiles), or could not be",))
        captured.examples.clear()  # what was passed may go with the call
        name = place_of(function.__code__)
        start = time.perf_counter()
        watched = weakref.ref(entry)
        wanted, state = global_state(), ThreadState()

        def job() -> None:
            if watched() is None or captured.graph is None:  # nobody can call it any more
                return
            with state, compiling(name), RESTING_COLLECTOR, modes_as_before():
                if global_state() != wanted:
                    raise BackendError("torch's global state is not what it was when the call was captured")
                try:
                    graph = self.compile_graph(captured.graph, examples)
                except UsersError as e:
                    raise e.error from None
                except Specialise as e:  # the next call that fits begins anew
                    specialise(function.__code__, self.family.sizes_of(function.__code__), captured, e)
                    if (waiting := watched()) is not None:
                        waiting.become(_native.Entry([NEVER_HOLDS], function, "eager"))
                    return
                if global_state() != wanted:
                    raise BackendError("torch's global state changed during the compile")
            examples.clear()
            self.record(function.__code__, captured, time.perf_counter() - start)
            made, waiting = self.assemble(function, captured, guards, graph), watched()
            if made is not None and waiting is not None:
                waiting.become(made)
                self.family.remarks[waiting] = remarks_of(captured)

        background.submit(name, job)
        return entry

    def failed(self, code: types.CodeType, error: Exception) -> None:
        """The frame runs eagerly after an error, with one warning; a user's own errors reach the user."""
        users = not isinstance(error, InternalError) or isinstance(error, BadBackendResult)
        if users and not config.suppress_errors:
            raise error
        log.warning("%s runs eagerly: %s", code.co_qualname, error, exc_info=error if config.verbose else None)

    def assemble(
        self, function: types.FunctionType, captured: Captured, guards: list[Guard], graph: Callable[..., Any] | None
    ) -> Any:
        """The entry of a captured frame whose graph was compiled; None where the original code does as well."""
        guards = [*guards, *self.size_guards(captured)]
        entry = self.entry_of(function, captured, guards, graph)
        if entry is not None:
            self.family.remarks[entry] = remarks_of(captured)
        return entry

    def entry_of(
        self, function: types.FunctionType, captured: Captured, guards: list[Guard], graph: Callable[..., Any] | None
    ) -> Any:
        """See `assemble`."""
        if captured.template is not None:
            if captured.empty:
                if function.__code__ in self.family.hooked:  # nothing to gain from compiling it
                    return None
                return _native.Entry(guards, function, "eager")
            assert graph is not None
            return _native.Entry(guards, graph, "plan", captured.template, captured.inputs)
        assert captured.code is not None
        code = fill(captured.code, lambda hole: self.held(hole, graph))
        return function_entry(self.family, guards, code, function.__globals__, hook=captured.broke is not None)

    def size_guards(self, captured: Captured) -> list[Guard]:
        """What is assumed of symbols, after the graph is compiled, which may assume more."""
        sizes = captured.sizes
        if sizes is None or (guard := sizes.guard()) is None:
            return []
        if (wrong := sizes.specialised()) is not None:
            origin, relation = wrong
            where = f" at {relation.place[-1]}" if relation.place else ""
            raise UserError(
                f"{origin.number} is marked dynamic, but must be one number: {relation} is assumed{where}\n"
                "use maybe_mark_dynamic, or a computation that works for all sizes"
            )
        assert sizes.symbols is not None
        sizes.symbols.freeze()
        return [guard]

    def held(self, hole: Hole, graph: Callable[..., Any] | None) -> object:
        """What generated code holds in place of `hole`."""
        if isinstance(hole, Resume):
            return self.resume_function(hole.code, hole.namespace)
        return {GRAPH: graph, TAIL_CALL: _native.tail_call}[hole]

    def filtered(self, guards: list[Guard], scope: Scope) -> list[Guard]:
        """The guards that the user's filter keeps; its exceptions are the user's."""
        choose = self.family.guard_filter
        if choose is None:
            return guards
        try:
            answers = choose(entries(guards, scope))
            keep = list(answers) if isinstance(answers, Iterable) else None
        except Exception as e:
            raise UsersError(e) from None
        if keep is None or len(keep) != len(guards):
            seen = repr(answers) if keep is None else f"{len(keep)} answers"
            raise ArgumentError(
                f"the guard filter {getattr(choose, '__name__', choose)!r} returned {seen} for {len(guards)} guards; "
                "expected one bool a guard, in order"
            )
        return [g for g, k in zip(guards, keep, strict=True) if k]

    # graphs and resume functions ------------------------------------------------------------------------------
    def compile_graph(self, gm: fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., Any]:
        """What the backend makes of the graph, as something the engine calls."""
        STATISTICS["graphs"] += 1
        if log_graph.enabled:
            log_graph(gm.print_readable(print_output=False))
        family = self.family
        step(2, "calling compiler function %s", family.backend_name)
        try:
            with own_knobs(family.knobs), contextlib.nullcontext() if family.ours else users_backend():
                made = family.backend(gm, examples, **family.backend_options)
        except Specialise:
            raise
        except Exception as e:
            if not family.ours:
                note = f"raised by backend {family.backend_name!r}, which was called to compile a graph"
                if note not in getattr(e, "__notes__", ()):
                    e.add_note(note)
                raise UsersError(e) from None
            if isinstance(e, PyCompilerError):
                raise
            raise BackendError(f"backend {family.backend_name!r} raised {type(e).__name__}: {e}") from e
        finally:
            if family.ours:
                drop_text(type(gm))  # it was only traced
            else:
                drop_text_with(gm)
        step(2, "done compiler function %s", family.backend_name)
        if not callable(made):
            raise BadBackendResult(
                f"backend {family.backend_name!r} returned {made!r}; expected a callable that takes the graph's inputs "
                f"and returns its outputs (gm.forward is one)"
            )
        if not family.ours:
            return _native.BackendCall(made, family.backend_name, len(gm.graph.output_node().args[0]))  # type: ignore[arg-type]
        return made if isinstance(made, _native.Plan) else _native.BackendCall(made)

    def example_inputs(self, captured: Captured) -> list[Any]:
        """Fakes for our own backends; the caller's tensors for others; SymInts for both."""
        examples = captured.examples
        if not self.family.ours:
            return [e.real if isinstance(e.real, torch.Tensor) else e.fake for e in examples]
        if any(isinstance(e.fake, torch.Tensor) and e.fake._version != 0 for e in examples):  # changed in place
            mode = new_fake_mode(symbolic=captured.sizes is not None and captured.sizes.symbols is not None)
            return [fake_of(mode, e.real, e.layout) if isinstance(e.real, torch.Tensor) else e.fake for e in examples]
        return [e.fake for e in examples]

    def resume_function(self, code: types.CodeType, namespace: dict[str, Any]) -> Any:
        return resume_function(self.family, code, namespace)

    # reports --------------------------------------------------------------------------------------------------
    def on_break(self, record: BreakRecord) -> None:
        if self.family.fullgraph:
            raise Unsupported(record.kind, record.reason, record.hint, record.stack)
        if log_breaks.enabled:
            log_breaks(str(Unsupported(record.kind, record.reason, record.hint, record.stack)))

    def report_recompile(
        self, fn: Any, values: dict[str, Any], namespace: dict[str, Any], reasons: list[tuple[int, int]]
    ) -> None:
        """Logs why a call compiles again; raises where it must not."""
        raises = self.family.raises_at_limit
        count = len(fn.entries)
        over = raises and (count >= self.family.limit or count >= config.accumulated_recompile_limit)
        if not (log_recompiles.enabled or config.error_on_recompile or over):
            return
        texts = explain_reasons(fn, values, namespace, reasons)
        if log_recompiles.enabled:
            log_recompiles("recompiling %s; failed guards, latest entry first:\n%s", fn.name, "\n".join(texts))
        if over:
            raise RecompileLimitExceeded(limit_message(fn, self.family.limit, texts[0] if texts else "unknown"))
        if config.error_on_recompile:
            raise RecompileError(
                f"{fn.name} would be compiled again, and config.error_on_recompile forbids it; failed guards:\n"
                + "\n".join(texts)
            )

    def record(self, code: types.CodeType, captured: Captured, seconds: float) -> None:
        guards = [*captured.guards, *self.size_guards(captured)]
        if log_guards.enabled:
            log_guards("guards of %s:\n%s", code.co_qualname, "\n".join(map(str, guards)))
        if log_bytecode.enabled and captured.code is not None:
            import dis

            text = dis.Bytecode(captured.code).dis()
            log_bytecode("generated code of %s:\n%s", code.co_qualname, text)
        if self.family.listener is not None:
            self.family.listener(GraphRecord(code, captured.graph, guards, captured.op_count, captured.broke, seconds))


def explain_reasons(
    fn: Any, values: dict[str, Any], namespace: dict[str, Any], reasons: Sequence[tuple[int, int]]
) -> list[str]:
    """One line per entry that did not fit: which guard failed, what was seen and expected, where it was made."""
    entries = fn.entries
    lines = []
    for index, failed in reasons:
        if index >= len(entries):
            continue
        guards = entries[index].guards
        if failed >= len(guards):
            lines.append(f"  entry {index}: an input cannot be read")
            continue
        guard = guards[failed]
        lines.append(f"  entry {index}: {explain(guard, Scope(values, namespace))}\n    way out: {way_out(guard)}")
    return lines


# What a user can do about a guard of each kind that fails again and again.
WAYS_OUT = {
    "tensor": "give tensors of the same shape, dtype and flags, or compile with dynamic=True",
    "equals": "pass the value as a tensor, or keep it constant between calls",
    "length": "keep the length constant, or pad to a fixed length",
    "dict_keys": "keep the keys and their order constant",
    "set_equals": "keep the set constant",
    "global_state": "call with the same grad mode, autocast and defaults, or compile a callable for each",
    "id_is": "make the object once, outside of the calls",
    "type_is": "pass the same type, or compile a callable for each",
    "truth": "keep the condition constant",
    "sizes": "avoid branches on sizes, and sizes 0 and 1",
}


def way_out(guard: Guard) -> str:
    general = "keep the value as it was at the first call"
    return f"{WAYS_OUT.get(guard.kind, general)}; or raise config.recompile_limit"


def located(error: Exception, code: types.CodeType) -> InternalError:
    """`error` as an InternalError that names function, file, line and operator."""
    made = error if isinstance(error, InternalError) else InternalError(f"{type(error).__name__}: {error}")
    stack, operator = getattr(error, "pycompiler_place", ((), ""))
    frame = stack[-1] if stack else None
    return made.locate(
        function=frame.function if frame else code.co_qualname,
        filename=frame.filename if frame else code.co_filename,
        lineno=frame.lineno if frame else code.co_firstlineno,
        operator=operator,
    )


def new_compiled(
    function: Callable[..., Any], family: Family, *, positional: bool = False, name: str | None = None
) -> Any:
    """A `CompiledFunction` for `function` in `family`."""
    made = _native.CompiledFunction(
        function,
        FrameCompiler(family),
        positional=positional,
        name=name or getattr(function, "__qualname__", None),
    )
    family.set_limits(made)
    made.set_mode(family.mode)
    family.members.add(made)
    return made


def resume_function(family: Family, code: types.CodeType, namespace: dict[str, Any]) -> Any:
    """The compiled function that goes on with `code` after a break: one a family."""
    found = family.resumes.get(code)
    if found is None:
        function = with_empty_cells(peer.leave_alone(code), namespace)  # the cells come as arguments
        made = new_compiled(function, family, positional=True)
        found = family.resumes.setdefault(code, made)  # a worker may have been quicker
    return found


def function_entry(
    family: Family, guards: Sequence[Guard], code: types.CodeType, namespace: dict[str, Any], *, hook: bool
) -> Any:
    """The entry that runs generated code; with a `hook`, functions that it calls are met by the frame hook."""
    function = with_empty_cells(peer.leave_alone(code), namespace)
    return _native.Entry(guards, function, "function", frame_hook=family.frame_hook if hook else None)


def limit_message(fn: Any, limit: int, last: str) -> str:
    return (
        f"{fn.name} reached its recompile limit ({limit} entries): calls that fit no entry run eagerly. "
        f"Last failed guard: {last.strip()}"
    )


def _on_limit(fn: Any, reasons: list[tuple[int, int]]) -> None:
    """Called by the engine, once per code object that reaches its limit."""
    entries = fn.entries
    failed = [str(entries[i].guards[g]) for i, g in reasons[:1] if i < len(entries) and g < len(entries[i].guards)]
    ways = [way_out(entries[i].guards[g]) for i, g in reasons[:1] if i < len(entries) and g < len(entries[i].guards)]
    last = f"{failed[0]}. Way out: {ways[0]}" if failed else "unknown"
    limit = fn.recompile_limit if len(entries) >= fn.recompile_limit else fn.accumulated_limit
    message = limit_message(fn, limit, last)
    warnings.warn(message, RecompileLimitWarning, stacklevel=2)
    log.warning(message)


for _callback in (FrameCompiler.__call__, FrameLookup.__call__, _on_limit):  # whatever the engine calls
    peer.leave_alone(_callback.__code__)
_native.set_limit_callback(_on_limit)
_native.set_exceptions(RecompileError=RecompileError, BadOutputs=BadBackendResult)

__all__ = ["Family", "FrameCompiler", "GraphRecord", "InternalError", "compile_aten", "new_compiled"]
