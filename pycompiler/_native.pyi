"""The native engine (guards-rs/).  Its contracts are in ARCHITECTURE.md, "The engine"."""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from types import CodeType, FunctionType
from typing import Any, Literal, final, overload

import torch

from pycompiler.ir import autograd_node
from pycompiler.ir import plan as ir_plan
from pycompiler.ir.guards import Guard
from pycompiler.ir.source import Source

__version__: str

Mode = Literal["compile", "run", "eager", "error"]
EntryKind = Literal["function", "plan", "eager"]
Level = Literal["offsets", "c_abi", "slow"]
Sign = Literal["events", "versions", "nothing"]
# (position of the entry in `CompiledFunction.entries`, index of a guard that fails).  The number of guards as the index
# means that an input source cannot be read.
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
        """Drops all entries and counters.  Running entries finish."""
    def set_mode(self, mode: Mode, /) -> None: ...
    def install(self, entry: Entry, /) -> None:
        """Stores an entry compiled elsewhere as the most recently used one of the code object of `fn`."""
    def entries_of(self, code: CodeType, /) -> list[Entry]: ...
    def explain_miss(self, *args: Any, **kwargs: Any) -> list[tuple[int, int, str]]:
        """(entry, guard, text) for each entry that does not fit these arguments.  Empty if an entry fits."""
    def aot_compile(self, example_inputs: tuple[tuple[Any, ...], dict[str, Any]], /) -> CompiledFunction:
        """Added by pycompiler/api.py."""
    def save_compiled_function(self, path: str | PathLike[str], external_data: object = None) -> Any:
        """Added by pycompiler/api.py: the `SaveReport`."""
    @property
    def entries(self) -> list[Entry]: ...
    @property
    def mode(self) -> Mode: ...
    @property
    def fn(self) -> Any: ...  # a FunctionType; mypy would treat that type as a method
    @property
    def name(self) -> str: ...
    recompile_limit: int
    accumulated_limit: int
    _pycompiler_family: Any  # in its `__dict__`, set by pycompiler/wrapping.py
    _orig_mod: Any

@final
class Entry:
    """Guards, and the target that runs when they hold."""

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
        title: str | None = None,
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
        """Gives this entry the contents of `other` from the next call on.  Nothing else may use `other`."""

    def end(self) -> None:
        """Ends the entry: the next call does not find it."""

    @property
    def hits(self) -> int: ...

@final
class BackendCall:
    """Calls `target` with the frame hook off.  With a `backend`, each call checks the outputs of `target`, which that backend
    returned."""

    def __new__(cls, target: Callable[..., Any], backend: str | None = None, n_outputs: int = 0) -> BackendCall: ...
    def __call__(self, *inputs: Any) -> Any: ...
    @property
    def target(self) -> Callable[..., Any]: ...

@final
class PlainState:
    """A cached `is_unusual()`.  While torch's state equals the state of the last False, `is_unusual` is not called.  It must
    depend only on grad mode, autocast, modes and transforms."""

    def __new__(cls, is_unusual: Callable[[], bool]) -> PlainState: ...
    def __call__(self) -> bool: ...

@final
class NodeForward:
    """The `forward` of an autograd Function: runs the graph, and saves values on the node."""

    def __new__(cls, recipe: autograd_node.ForwardRecipe) -> NodeForward: ...
    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """The results for (node, *inputs); for a node that is not alone, for (node, inputs, results, states, ends, ...)."""
    @property
    def recipe(self) -> autograd_node.ForwardRecipe: ...

@final
class NodeBackward:
    """The `backward` of an autograd Function.  As an attribute of a class it is a method."""

    def __new__(cls, recipe: autograd_node.BackwardRecipe) -> NodeBackward: ...
    @overload
    def __get__(self, node: None, cls: Any = None) -> NodeBackward: ...
    @overload
    def __get__(self, node: Any, cls: Any = None) -> Callable[..., Any]: ...
    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """The gradients of the node's inputs for (node, *tangents)."""
    @property
    def recipe(self) -> autograd_node.BackwardRecipe: ...

@final
class NodeGradients:
    """Runs the backward graph for one set of defined tangents."""

    def __new__(cls, recipe: autograd_node.GradientRecipe) -> NodeGradients: ...
    def __call__(self, ctx: Any, tangents: Sequence[Any]) -> tuple[Any, ...]: ...
    @property
    def recipe(self) -> autograd_node.GradientRecipe: ...

@final
class FrameHook:
    """While an entry with this hook runs, `callback(code, function)` returns a CompiledFunction, or None."""

    def __new__(cls, callback: Callable[[CodeType, FunctionType], CompiledFunction | None]) -> FrameHook: ...

@final
class GuardTree:
    """The native check of one guard list."""

    def __new__(cls, guards: Iterable[Guard], param_names: Sequence[str]) -> GuardTree: ...
    def check(self, locals: dict[str, Any], globals: dict[str, Any]) -> int | None:
        """None, or the index of a guard that does not hold."""
    def __len__(self) -> int: ...
    @property
    def is_fast(self) -> bool: ...
    @property
    def evaluated(self) -> int:
        """The number of steps that the next check evaluates, if nothing has changed."""
    @property
    def guards(self) -> tuple[Guard, ...] | None: ...

@final
class TailCall:
    """The result of `tail_call`: a function and its arguments."""

    def __call__(self) -> Any:
        """Calls the function and returns its result."""

class RecompileError(RuntimeError):
    """A call found no fitting entry while mode 'error' forbids a compile."""

def tail_call(f: Callable[..., Any], /, *args: Any) -> TailCall:
    """Returned by generated frame code: the engine continues with f(*args)."""

def entered() -> BaseException | None:
    """Called by the code of a `TailCall`'s function: from then on its frame alone holds the arguments.  Returns the exception
    raised before that code ran, or None."""

def arrive(error: BaseException | None, /) -> None:
    """Raises the exception that `entered` returned, if any."""

def show_ranges(variables: dict[str, Any], name: str, begin: Callable[[str], Any], prefix: str) -> bool:
    """While `variables[name]` is True, calls create ranges `begin(prefix + text)`.  False if changes cannot be noticed."""

def set_watcher(callback: Callable[..., Any] | None) -> None:
    """Reports every call to `callback`.  ("call", callable, guards) returns whether the callback wants ("entry", callable,
    tried, guards, call, all, [each]).  ("plan", plan, [each step]) reports a plan.  Times are in nanoseconds."""

def hand_in(**objects: object) -> None:
    """Stores Python objects that the engine needs, by the names of `handed_in()` (rows of `handed.rs`).  None removes one."""

def handed_in() -> list[str]:
    """Names of the Python objects of the package that the engine needs."""

def set_frame_hook(callback: Callable[[CodeType, FunctionType], CompiledFunction | None] | None) -> None:
    """Calls `callback(code, function)` once for each code object met while the hook is on.  None turns the hook off."""

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
    """Turns the fast path of guards on or off, for all callables.  Returns whether this interpreter supports it."""

def force_dict_sign(sign: Sign | None) -> Sign:
    """Selects how the fast path finds changed dicts, for trees built later.  None selects the best way that works here.
    Returns the selected way."""

def fail_allocations(n: int, all: bool) -> None:
    """Makes the n-th allocation of the engine in this thread find no memory, alone or with all later ones; for tests."""

def restore_allocations() -> bool:
    """Ends `fail_allocations`. Returns whether the allocation that was to fail came."""

def watched_dicts() -> int:
    """Number of dicts that call back when they change, for guards that rely on it."""

def force_tensor_level(level: Level) -> Level:
    """Caps how tensors are read, for guards built later.  Returns the level in force."""

def tensor_probe() -> dict[str, Any]: ...
def guard_kinds() -> list[str]: ...
def accessors() -> list[str]: ...

class Plan:
    """Executes an `ir.plan.Plan`.  Several threads may call it at once."""

    def __new__(cls, plan: ir_plan.Plan, graphs: Any = None, /) -> Plan:
        """graphs: a `runtime.cuda_graphs.CudaGraphs`, or None."""
    def __call__(self, *inputs: torch.Tensor | list[torch.Tensor]) -> tuple[Any, ...]:
        """The outputs for these inputs.  A single list of inputs is emptied, and each input is freed after its last use."""
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
        """How each step runs, in one word: alloc, place (in scratch), room (in scratch, dynamic size), view, shift (a pointer),
        kernel, launch, shim, dispatcher, python, expect, count_versions, free, copy, compute."""
    @property
    def arena_bytes(self) -> int:
        """Bytes of scratch memory of one call, without parts of dynamic size."""
    @property
    def graphs(self) -> Any: ...
    @property
    def exclusive(self) -> tuple[list[int], Callable[..., Sequence[Any]]] | None:
        """The arguments (written, eager) of `unless_shared`."""

def unless_shared(plan: Plan, written: Sequence[int], eager: Callable[..., Sequence[Any]]) -> None:
    """Makes later calls of `plan` return `eager(*inputs)` if an input at a position in `written` shares memory with another
    input.  Must be called once, before the first call of the plan."""

def shares_memory(values: tuple[Any, ...], written: Sequence[int]) -> bool:
    """Whether a tensor at a position in `written` overlaps the memory of another tensor."""

def storage_holders(tensor: torch.Tensor) -> tuple[int, int | None]:
    """An id of the tensor's storage, and the number of references to it.  None in place of the number if this torch's
    storages cannot be counted."""

def matrix_product(addresses: Sequence[int], numbers: Sequence[int], threads: int) -> None:
    """Run the engine's kernel for `ir.plan.Product`: the addresses of left, right and out, and `Product.scalars`."""

def convolution(addresses: Sequence[int], numbers: Sequence[int], threads: int) -> None:
    """Run the engine's kernel for `ir.plan.Convolution`: the addresses of `slots`, and `Convolution.scalars`."""

def matrix_product_vectors(threads: int) -> int:
    """Bytes of a vector of the engine's product of matrices; 0 if it cannot run here, or not with so many threads."""

def has_gpu_products() -> bool:
    """Whether torch has loaded the library for products on GPUs, cuBLASLt."""

def gpu_product_workspace(product: ir_plan.GpuProduct) -> int | None:
    """Bytes of workspace for cuBLASLt's algorithms, at aligned addresses and at others; None if it refuses the product."""

def kind_of(tensor: torch.Tensor) -> int:
    """0 if the values are stored as they are, 1 if they are stored negated or conjugated, 2 for any other tensor (sparse,
    without memory, a tensor subclass)."""

def torch_routes() -> dict[str, str]:
    """The route of each capability of the loaded torch: the fast one or the fallback."""

def use_gpu_driver(path: str | None) -> None:
    """Plans built later start their kernels through this library.  None means `libcuda.so.1`."""

def force_slow_routes(on: bool) -> None:
    """For tests: wraps and unwraps tensors by the fallbacks."""

def shim_schemas() -> list[str]:
    """Schemas of the operators that plans call through their own function of torch's C ABI."""
