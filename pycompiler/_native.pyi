"""The native engine (guards-rs/).  Contracts: ARCHITECTURE.md, "The engine"."""

from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FunctionType
from typing import Any, Literal, final, overload

import torch

from pycompiler.ir import plan as ir_plan
from pycompiler.ir.guards import Guard
from pycompiler.ir.source import Source

__version__: str

Mode = Literal["compile", "run", "eager", "error"]
EntryKind = Literal["function", "plan", "eager"]
Level = Literal["offsets", "c_abi", "slow"]
Sign = Literal["events", "versions", "nothing"]
# (position of the entry in `CompiledFunction.entries`, index of a guard that fails; the number of guards stands for an
# input source that cannot be read)
Reason = tuple[int, int]

class CompiledFunction:
    """A compiled Python function: entries under guards, compiled on demand by `compile(self, locals, reasons)`."""

    def __init__(
        self,
        fn: FunctionType | Callable[..., Any],
        compile: Callable[[Any, dict[str, Any], list[Reason]], Entry | None],
        *,
        positional: bool = False,
        recompile_limit: int = 8,
        accumulated_limit: int = 256,
        name: str | None = None,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    def __get__(self, instance: None, owner: Any = None) -> CompiledFunction: ...
    @overload
    def __get__(self, instance: Any, owner: Any = None) -> Callable[..., Any]: ...
    def counters(self) -> dict[str, int]:
        """hits, misses, compiles, eager_calls, limit_hits, guard_checks, fresh_failures, tail_calls."""
    def reset(self) -> None:
        """Drops all entries and counters; entries that run now finish."""
    def set_mode(self, mode: Mode, /) -> None: ...
    def install(self, entry: Entry, /) -> None:
        """Stores an entry that was not compiled here, as the one used last, for the code object of `fn`."""
    def entries_of(self, code: CodeType, /) -> list[Entry]: ...
    def explain_miss(self, *args: Any, **kwargs: Any) -> list[tuple[int, int, str]]:
        """(entry, guard, text) per entry that does not fit these arguments; empty when one fits."""
    @property
    def entries(self) -> list[Entry]: ...
    @property
    def mode(self) -> Mode: ...
    @property
    def fn(self) -> Any: ...  # the FunctionType, which mypy would take for a method
    @property
    def name(self) -> str: ...
    recompile_limit: int
    accumulated_limit: int
    _pycompiler_family: Any  # in its `__dict__`: put there by pycompiler/wrapping.py
    _orig_mod: Any

@final
class Entry:
    """Guards, and what runs when they hold."""

    def __new__(
        cls,
        guards: Iterable[Guard],
        target: Callable[..., Any],
        kind: EntryKind,
        outputs: tuple[str, Any] | None = None,
        inputs: Iterable[Source] | None = None,
        *,
        frame_hook: FrameHook | None = None,
        failed: Callable[[BaseException], object] | None = None,
    ) -> Entry: ...
    @property
    def guards(self) -> tuple[Guard, ...]: ...
    @property
    def target(self) -> Callable[..., Any]: ...
    @property
    def kind(self) -> EntryKind: ...
    @property
    def inputs(self) -> tuple[Source, ...]: ...
    @property
    def outputs(self) -> tuple[str, Any] | None: ...
    @property
    def frame_hook(self) -> bool: ...
    def become(self, other: Entry) -> None:
        """From the next call on this entry is what `other` is, which nothing else may use."""

    def end(self) -> None:
        """From the next call on this entry is gone."""

    @property
    def hits(self) -> int: ...

@final
class BackendCall:
    """`target` with the frame hook off; its outputs are checked on each call when `backend` names whose they are."""

    def __new__(cls, target: Callable[..., Any], backend: str | None = None, n_outputs: int = 0) -> BackendCall: ...
    def __call__(self, *inputs: Any) -> Any: ...
    @property
    def target(self) -> Callable[..., Any]: ...

@final
class PlainState:
    """Called, it gives `is_unusual()`; while torch's state is the one of the last False, that is not asked.  It must depend
    on nothing but grad mode, autocast, modes and transforms."""

    def __new__(cls, is_unusual: Callable[[], bool]) -> PlainState: ...
    def __call__(self) -> bool: ...

@final
class FrameHook:
    """`callback(code, function)` is asked for a CompiledFunction, or None, while an entry with this hook runs."""

    def __new__(cls, callback: Callable[[CodeType, FunctionType], CompiledFunction | None]) -> FrameHook: ...

@final
class GuardTree:
    """The native check of a guard list by itself."""

    def __new__(cls, guards: Iterable[Guard], param_names: Sequence[str]) -> GuardTree: ...
    def check(self, locals: dict[str, Any], globals: dict[str, Any]) -> int | None:
        """None, or the index of a guard that does not hold."""
    def __len__(self) -> int: ...
    @property
    def is_fast(self) -> bool: ...
    @property
    def guards(self) -> tuple[Guard, ...] | None: ...

@final
class TailCall:
    """What `tail_call` makes."""

    def __call__(self) -> Any:
        """Continue here, and wait for the result."""

class RecompileError(RuntimeError):
    """A call found no fitting entry while mode 'error' forbids to compile."""

def tail_call(f: Callable[..., Any], /, *args: Any) -> TailCall:
    """Returned by generated frame code: the engine continues with f(*args)."""

def entered() -> BaseException | None:
    """Said by code that a `TailCall` leads to: from now on its frame alone holds the arguments.  Gives what was raised before
    that code ran, or None."""

def arrive(error: BaseException | None, /) -> None:
    """Raises what `entered` has given, if anything."""

def show_ranges(variables: dict[str, Any], name: str, begin: Callable[[str], Any], prefix: str) -> bool:
    """While `variables[name]` is True, calls have ranges `begin(prefix + text)`; False where that cannot be noticed."""

def set_watcher(callback: Callable[..., Any] | None) -> None:
    """Is told of every call: ("call", callable, guards) → whether it wants ("entry", callable, tried, guards, call, all,
    [each]); ("plan", plan, [each step]).  Nanoseconds."""

def hand_in(**objects: object) -> None:
    """Python that the engine needs, by the names of `handed_in()` (the rows of `handed.rs`); None takes it back."""

def handed_in() -> list[str]:
    """What the engine needs of the package's Python, by name."""

def set_frame_hook(callback: Callable[[CodeType, FunctionType], CompiledFunction | None] | None) -> None:
    """`callback(code, function)` is asked once per code object met while the hook is on; None turns the hook off."""

def enter_frozen() -> None:
    """Freezes all compiled functions in this thread, until the matching exit_frozen(): a miss runs eagerly."""

def exit_frozen() -> None: ...
def enter_hook() -> None:
    """Turns the frame hook on in this thread, until the matching exit_hook()."""

def exit_hook() -> None: ...
def pause_hook() -> None:
    """Ignores the frame hook in this thread, until the matching resume_hook()."""

def resume_hook() -> None: ...
def set_fast_guards(on: bool) -> bool:
    """Turns the fast path of guards on or off, for all callables; returns whether this interpreter supports it."""

def force_dict_sign(sign: Sign | None) -> Sign:
    """By what the fast path learns that a dict changed, for trees built from now on; None: the best that works here.
    Returns what is in force."""

def watched_dicts() -> int:
    """How many dicts call back when they change, for guards that rely on it."""

def force_tensor_level(level: Level) -> Level:
    """Caps how tensors are read, for guards built from now on; returns the level in force."""

def tensor_probe() -> dict[str, Any]: ...
def guard_kinds() -> list[str]: ...
def accessors() -> list[str]: ...

class Plan:
    """Executes an `ir.plan.Plan`.  Any number of threads may call it at once."""

    def __new__(cls, plan: ir_plan.Plan, /) -> Plan: ...
    def __call__(self, *inputs: torch.Tensor | list[torch.Tensor]) -> tuple[Any, ...]:
        """The outputs for these inputs (or one list of them, which is emptied: each is freed after its last use)."""
    @property
    def name(self) -> str: ...
    @property
    def plan(self) -> ir_plan.Plan: ...
    @property
    def n_inputs(self) -> int: ...
    @property
    def n_outputs(self) -> int: ...
    @property
    def routes(self) -> list[str]:
        """One word a step, how it runs: alloc, place (in scratch), view, shift (a pointer), kernel, shim, dispatcher,
        python, expect, count_versions, free, copy."""
    @property
    def arena_bytes(self) -> int:
        """Scratch memory of one call."""
    @property
    def exclusive(self) -> tuple[list[int], Callable[..., Sequence[Any]]] | None:
        """What `unless_shared` was given: (written, eager)."""

def unless_shared(plan: Plan, written: Sequence[int], eager: Callable[..., Sequence[Any]]) -> None:
    """From now on `plan` gives back what `eager` returns for its inputs, when an input at one of the positions `written`
    shares memory with another one.  Called once, before the plan is."""

def shares_memory(values: tuple[Any, ...], written: Sequence[int]) -> bool:
    """Whether one of the tensors at the positions `written` touches the memory of another one."""

def kind_of(tensor: torch.Tensor) -> int:
    """0 where its values are its memory, 1 where they are that negated or conjugated, 2 for any other tensor (sparse, without
    memory, a wrapper)."""

def torch_routes() -> dict[str, str]:
    """How each capability of the loaded torch is reached: its fast way or the fallback."""

def use_gpu_driver(path: str | None) -> None:
    """Plans made from now on start their kernels through another library than `libcuda.so.1` (None: through that one)."""

def force_slow_routes(on: bool) -> None:
    """Tests: wrap and unwrap tensors by the fallbacks."""

def shim_schemas() -> list[str]:
    """Operators that plans call through their own function of torch's C ABI."""
