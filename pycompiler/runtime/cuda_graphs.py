"""CUDA graphs of plans: what of a plan is recorded, and when.

In: an ATen graph and its `ir.plan.Plan`.  Out: `CudaGraphs`, the policy of `_native.Plan(plan, graphs)`, or None with a
line in the log `cudagraphs`.  The engine replays recordings natively (`guards-rs/src/plan/cuda_graphs.rs`).  It calls
`CudaGraphs.miss` if no recording fits a call.

The first call with new sizes launches kernels as usual: it loads modules and warms libraries up.  A later one is
recorded, then replayed.  Rules for addresses:

- A parameter, an input that stays where it was, and an output of another recording are recorded by their addresses.
- An input that has moved is copied into memory of the recording at each replay.
- An input that the plan writes is never copied.  If it moves, the plan is not recorded any more.

Rules for outputs: they lie in the recording, and are not overwritten while the program refers to them.  If a call finds
few of them in use, later calls get copies of these.  If many are in use, a second pool is recorded.

Example: `_native.Plan(plan, CudaGraphs(plan, TorchRecorder(0), limit=8))`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from pycompiler import _native, config
from pycompiler.ir.plan import READS, Aten, CopyInto, CountVersions, GpuProduct, Kernel, Launch, Plan, slots_of
from pycompiler.logs import artifact
from pycompiler.operators.kernel_type_checks import tensors_of
from pycompiler.operators.operator_facts import TORCHS, dropout_of, drops_nothing, facts_of, written_by
from pycompiler.operators.process_groups import NAMESPACES, launches

log = artifact("cudagraphs")

POOLS = 2  # of a plan and a stream: the second one serves while outputs of the first are in use
CAPTURES = 8  # of one place
VARIANTS = 4  # recordings that are kept of one place and pool
FEW_OUTPUTS = 4  # so many are copied
STRAYS = 8  # calls in which an output of another recording lies elsewhere, before it is copied

LAUNCHING = (Launch, GpuProduct, Aten, CopyInto)
Place = tuple[tuple[int, ...], int]  # the words of the plan's symbols, and the stream


class Unrecordable(Exception):
    """A plan cannot be recorded; the text says why."""


class NotNow(Exception):
    """A call is not recorded; later calls may be."""


@dataclass(eq=False)
class Recording:
    """A recorded call.

    `graph`: the owner of the CUDA graph at the address `executable` (0: `replay` starts it).
    `key`: the words of the plan's symbols; `stream`: where it is replayed; `pool`: number of its memory pool.
    `inputs`: per input the address, the tensor into which it is copied, or None if no step reads it.
    `outputs`: the outputs of the recorded run; `copied`: those of which calls get copies.
    `counted`: inputs that a call writes, once for each write.
    `copyable`: outputs that share their storage with no other one; `storages`: ids of storages that calls get.
    """

    graph: Any
    executable: int
    replay: Callable[[], Any]
    key: tuple[int, ...]
    stream: int
    pool: int
    inputs: tuple[int | torch.Tensor | None, ...]
    outputs: tuple[Any, ...]
    counted: tuple[int, ...] = ()
    copied: frozenset[int] = frozenset()
    copyable: frozenset[int] = frozenset()
    storages: frozenset[int] = frozenset()

    def is_at(self, addresses: Sequence[int | None]) -> bool:
        """Whether each input that is not copied lies at its address."""
        pairs = zip(self.inputs, addresses, strict=True)
        return all(wanted == given for wanted, given in pairs if isinstance(wanted, int))


_LIVE: weakref.WeakSet[Recording] = weakref.WeakSet()
"""Recordings whose outputs programs get.  The storages of these outputs keep their addresses."""
_LIVE_LOCK = threading.RLock()  # a set must not grow while another thread iterates over it


_DRAWING_STREAMS: dict[int, int] = {}
"""Device -> the stream of its recordings with random numbers."""


class Recorder(Protocol):
    """Records what a function launches.  Tests have one without a GPU.  `draws`: it draws random numbers."""

    draws: bool

    @property
    def device(self) -> int: ...

    def new_pool(self) -> Any: ...

    def record(
        self, run: Callable[..., Sequence[Any]], inputs: Sequence[Any], pool: Any, stream: int
    ) -> tuple[Any, int, Callable[[], Any], Sequence[Any]]:
        """(owner, address of the executable graph or 0, function that replays it, outputs of `run`)."""


class CudaGraphs:
    """The policy of one plan.  `miss` is called by the engine, which reads `recordings` afterwards.

    `limit`: combinations of sizes that are recorded.  `ignored`: inputs whose values no kernel reads, although a step
    names them.
    """

    def __init__(self, plan: Plan, recorder: Recorder, limit: int, ignored: frozenset[int] = frozenset()) -> None:
        self.plan, self.recorder, self.limit = plan, recorder, limit
        self.recordings: list[Recording] = []
        read = {slot for step in plan.steps for slot in READS[type(step)](step)} - ignored
        self.read = [i in read for i in range(plan.n_inputs)]
        self.written = tuple(slot for step in plan.steps for slot in _writes(step) if slot < plan.n_inputs)
        self.launches = sum(isinstance(step, LAUNCHING) for step in plan.steps)
        self.captures: dict[Place, int] = {}  # number of captures, for each place seen
        self.pools: list[tuple[int, Any]] = []  # stream and handle
        self.addresses: list[int | None] = []  # at the miss before
        self.moved = set[int]()
        self.managed: dict[int, int] = {}  # inputs that were outputs of recordings -> calls in which they were not
        self.copied = frozenset[int]()  # outputs
        self.plain: _native.Plan | None = None
        self.lock = threading.Lock()
        self.said = set[str]()

    @property
    def device(self) -> int:
        return self.recorder.device

    def miss(self, inputs: list[Any], key: Sequence[int], stream: int, busy: Sequence[tuple[int, list[int]]]) -> bool:
        """Record the call, if it should be.  `busy`: pools with outputs in use, and these outputs.

        Returns whether later calls may be recorded.  The call itself is replayed if a recording fits it now, else it
        launches kernels as usual.
        """
        if not self.lock.acquire(blocking=False):
            return True  # another thread records
        try:
            self._miss(inputs, (tuple(key), stream), dict(busy))
        except Unrecordable as why:
            self.say(f"is not recorded any more: {why}")
            self.recordings = []
            return False
        except NotNow as why:
            self.say(f"launches its kernels for some calls: {why}", again=False)
        except Exception as error:
            if config.raise_internal_errors:
                raise
            self.say(f"is not recorded any more: {type(error).__name__}: {error}")
            self.recordings = []
            return False
        finally:
            self.lock.release()
        return True

    def say(self, what: str, again: bool = True) -> None:
        """Write a line into the log; only once unless `again`."""
        if again or what not in self.said:
            self.said.add(what)
            log("graph %s %s", self.plan.name, what)

    def _miss(self, inputs: list[Any], place: Place, busy: Mapping[int, list[int]]) -> None:
        key, stream = place
        sizes = {key for key, _ in self.captures}
        if key not in sizes and len(sizes) >= self.limit:
            raise NotNow(f"it has {self.limit} combinations of sizes already")
        if self.recorder.draws and _DRAWING_STREAMS.setdefault(self.device, stream) != stream:
            raise NotNow("graphs with random numbers are replayed on one stream: they share torch's seed and position")
        is_new = place not in self.captures
        captures = self.captures.setdefault(place, 0)
        now = [_address(t) if read else None for t, read in zip(inputs, self.read, strict=True)]
        static = self._static(inputs)
        self._observe(inputs, now, static)
        if is_new:
            return
        if moved := self.moved.intersection(self.written):
            raise Unrecordable(f"input {min(moved)}, which it writes, has another address than before")
        if len(self.moved) * 2 > self.launches:
            raise NotNow(f"{len(self.moved)} inputs would be copied for {self.launches} launches")
        if strays := self.managed.keys() - static:
            self._stray(strays)
            raise NotNow("inputs are outputs of a graph that was not replayed")
        fitting = [r for r in self.recordings if (r.key, r.stream) == place and r.is_at(now)]
        if self._copies({output for r in fitting for output in busy.get(r.pool, ())}):
            raise NotNow(f"outputs {sorted(self.copied)} were in use, and are copied from now on")
        if captures >= CAPTURES:
            raise NotNow("its inputs come with ever other addresses and strides")
        pool = self._pool(stream, {*busy, *(r.pool for r in fitting)})
        self.captures[place] += 1
        self._record(inputs, now, place, pool)

    def _static(self, inputs: Sequence[Any]) -> set[int]:
        """The inputs that lie in outputs of recordings."""
        with _LIVE_LOCK:
            storages = frozenset[int]().union(*(r.storages for r in _LIVE))
        if not storages:
            return set()
        return {i for i, (t, read) in enumerate(zip(inputs, self.read, strict=True)) if read and _lies_in(t, storages)}

    def _observe(self, inputs: Sequence[Any], now: list[int | None], static: set[int]) -> None:
        """Note the inputs that have moved since the call before."""
        before, self.addresses = self.addresses or now, now
        for i in static:
            self.managed.setdefault(i, 0)
            self.moved.discard(i)
        for i, (a, b) in enumerate(zip(before, now, strict=True)):
            if a != b and i not in self.managed and not isinstance(inputs[i], torch.nn.Parameter):
                self.moved.add(i)

    def _stray(self, inputs: Iterable[int]) -> None:
        for i in inputs:
            self.managed[i] += 1
            if self.managed[i] > STRAYS:
                del self.managed[i]
                self.moved.add(i)

    def _copies(self, in_use: set[int]) -> bool:
        """Whether few more outputs are copied from now on, since they are in use."""
        new = in_use - self.copied
        if not new or len(new | self.copied) > FEW_OUTPUTS or not all(new <= r.copyable for r in self.recordings):
            return False
        self.copied |= new
        for recording in self.recordings:
            recording.copied = self.copied
            recording.storages -= {_storage(recording.outputs[i]) for i in new}
        return True

    def _pool(self, stream: int, busy: set[int]) -> int:
        """A pool of the stream without outputs in use, created if there are few."""
        mine = [n for n, (of, _) in enumerate(self.pools) if of == stream]
        if free := [n for n in mine if n not in busy]:
            return free[0]
        if len(mine) >= POOLS:
            raise NotNow("outputs of earlier calls are in use")
        self.pools.append((stream, self.recorder.new_pool()))
        return len(self.pools) - 1

    def _record(self, inputs: list[Any], now: Sequence[int | None], place: Place, pool: int) -> None:
        kept: list[int | torch.Tensor | None] = [*now]
        with torch.inference_mode(False), torch.no_grad():
            for i in self.moved:
                t = inputs[i]
                kept[i] = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
        given = [k if isinstance(k, torch.Tensor) else t for k, t in zip(kept, inputs, strict=True)]
        if self.plain is None:
            self.plain = _native.Plan(self.plan)
        try:
            graph, executable, replay, outputs = self.recorder.record(self.plain, given, self.pools[pool][1], place[1])
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            raise Unrecordable(f"recording raised {type(error).__name__}: {text}") from error
        made = {i: t for i, (t, slot) in enumerate(zip(outputs, self.plan.outputs, strict=True)) if self._makes(slot)}
        _check_outputs([*made.values()], [*inputs, *given, *self.plan.constants.values()])
        # An output that is an input belongs to the caller.
        own = [
            None if type(s) is int and s < self.plan.n_inputs else o
            for o, s in zip(outputs, self.plan.outputs, strict=True)
        ]
        new = Recording(graph, executable, replay, *place, pool, tuple(kept), tuple(own), self.written)
        new.copyable = _alone(made)
        new.copied = self.copied & new.copyable
        new.storages = frozenset(_storage(t) for i, t in made.items() if i not in new.copied)
        with _LIVE_LOCK:
            _LIVE.add(new)
        self._keep(new)
        copied = f", {len(self.moved)} copied" if self.moved else ""
        sizes = f", sizes {list(place[0])}" if place[0] else ""
        out = f", outputs {sorted(new.copied)} copied" if new.copied else ""
        self.say(f"is recorded: {self.launches} launches, {sum(self.read)} inputs{copied}{sizes}, pool {pool}{out}")

    def _makes(self, output: Any) -> bool:
        """Whether an output is a tensor that the plan creates."""
        return type(output) is int and output >= self.plan.n_inputs and output not in self.plan.constants

    def _keep(self, new: Recording) -> None:
        """Store a recording, and drop those that no call will fit."""
        same = [r for r in self.recordings if (r.key, r.stream, r.pool) == (new.key, new.stream, new.pool)]
        fresh = [r for r in same if not any(isinstance(r.inputs[i], int) for i in self.moved)]
        kept = fresh[len(fresh) + 1 - VARIANTS :] if len(fresh) >= VARIANTS else fresh
        self.recordings = [*(r for r in self.recordings if r not in same or r in kept), new]


def _writes(step: Any) -> Iterator[int]:
    """The slots whose versions a step counts."""
    if isinstance(step, CountVersions):
        yield from step.slots
    elif isinstance(step, CopyInto):
        yield step.target
    elif isinstance(step, Aten):
        for value in written_by(step.op, step.args, step.kwargs):
            yield from slots_of(value)


def _address(value: Any) -> int | None:
    return value.data_ptr() if isinstance(value, torch.Tensor) else None


def _storage(tensor: torch.Tensor) -> int:
    return _native.storage_holders(tensor)[0]


def _lies_in(value: Any, storages: frozenset[int]) -> bool:
    return isinstance(value, torch.Tensor) and _storage(value) in storages


def _check_outputs(made: Sequence[torch.Tensor], others: Sequence[Any]) -> None:
    """Raise `Unrecordable` for outputs that replays cannot hand out."""
    if any(_native.storage_holders(t)[1] is None for t in made):
        raise Unrecordable("this torch does not show the references to storages")
    storages = {_storage(t) for t in others if isinstance(t, torch.Tensor)}
    if any(_storage(t) in storages for t in made):
        raise Unrecordable("an output is a view of an input or of a constant")


def _alone(made: Mapping[int, torch.Tensor]) -> frozenset[int]:
    """The outputs whose copies behave like them: no other output, and no element of their own, is on the same memory."""
    storages = Counter(map(_storage, made.values()))
    return frozenset(
        i for i, t in made.items() if storages[_storage(t)] == 1 and torch._debug_has_internal_overlap(t) == 0
    )


# -- reasons ----------------------------------------------------------------------------------------------------------


def of_plan(gm: fx.GraphModule, plan: Plan) -> CudaGraphs | None:
    """The policy of a plan, if `config.triton.cudagraphs` is on and the plan can be recorded."""
    if not config.triton.cudagraphs:
        return None
    devices = {t.device for node in gm.graph.nodes for t in tensors_of(node.meta.get("val")) if t.device.type == "cuda"}
    if (why := reason_of(gm) or _unfit(plan) or _several(devices)) is not None:
        log("graph %s is not recorded: %s", plan.name, why)
        return None
    limit = config.triton.cudagraph_dynamic_shape_rerecord_limit
    doubtful, draws_numbers = is_doubtful(plan), any(_draws(gm))
    if doubtful and draws_numbers:
        log("graph %s is not recorded: %s", plan.name, "it draws random numbers, and an operator may wait for the GPU")
        return None
    recorder = TorchRecorder(devices.pop().index or 0, doubtful, draws_numbers)
    return CudaGraphs(plan, recorder, limit, frozenset(_seeds(gm)))


def _unfit(plan: Plan) -> str | None:
    if any(isinstance(step, Kernel) for step in plan.steps):
        return "it has kernels of the CPU"
    if any(t.device.type == "cpu" for t in plan.constants.values()):
        return "a constant is a tensor of the CPU"
    launched = sum(isinstance(step, LAUNCHING) for step in plan.steps)
    return "it has fewer than two launches" if launched < 2 else None


def _several(devices: set[torch.device]) -> str | None:
    named = ", ".join(sorted(map(str, devices))) or "no GPU"
    return None if len(devices) == 1 else f"tensors on {named}"


def _on_host(gm: fx.GraphModule) -> str | None:
    seeds = {node for node in gm.graph.nodes if _is_seed(node)}
    for node in gm.graph.nodes:
        if node in seeds or node.op == "output":
            continue
        if any(t.device.type == "cpu" for t in tensors_of(node.meta.get("val"))) and not _drops_nothing(node):
            return f"{_shown(node)} is a tensor of the CPU"
    return None


def _dropping(gm: fx.GraphModule) -> str | None:
    """Attention with dropout.  Its forward keeps the seed on the host, unless it is recorded, and its backward reads it there,
    unless it is recorded: one of them recorded without the other reads the wrong memory."""
    found = (n for n in gm.graph.nodes if dropout_of(n.target, n.args, n.kwargs) not in (None, 0))
    return next((f"{_shown(n)} drops values of an attention" for n in found), None)


def _drawing(gm: fx.GraphModule) -> str | None:
    for n in _draws(gm):
        op: Any = n.target
        if facts_of(op).waits != "never":
            return f"{_shown(n)} draws random numbers by a kernel that may wait for the GPU"
        if any("generator" in a.name and n.kwargs.get(a.name) is not None for a in op._schema.arguments):
            return f"{_shown(n)} draws random numbers from a generator of the program"
    return None


def _draws(gm: fx.GraphModule) -> Iterator[fx.Node]:
    """The nodes that draw random numbers."""
    return (n for n in gm.graph.nodes if facts_of(n.target).draws and not _drops_nothing(n))


def _reading(gm: fx.GraphModule) -> str | None:
    found = (n for n in gm.graph.nodes if _reads_data(n))
    return next((f"{_shown(n)} reads data on the host" for n in found), None)


def _foreign(gm: fx.GraphModule) -> str | None:
    for n in gm.graph.nodes:
        if launches(n.target) or getattr(n.target, "namespace", None) in NAMESPACES:
            return f"{_shown(n)} is a collective"
        if facts_of(n.target).writes_unseen:
            return f"{_shown(n)} writes arguments without saying so"
        if n.op == "call_module" or (n.op == "call_function" and _is_foreign(n.target)):
            return f"{_shown(n)} is not an operator of torch"
    return None


REASONS: tuple[Callable[[fx.GraphModule], str | None], ...] = (_on_host, _dropping, _drawing, _reading, _foreign)


def reason_of(gm: fx.GraphModule) -> str | None:
    """Why a graph cannot be recorded, or None."""
    return next(filter(None, (reason(gm) for reason in REASONS)), None)


def _shown(node: fx.Node) -> str:
    return f"input {node.name}" if node.op == "placeholder" else f"{node.target} ({node.name})"


def _drops_nothing(node: fx.Node) -> bool:
    return drops_nothing(node.target, node.args, node.kwargs)


_DATA = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))


def _reads_data(node: fx.Node) -> bool:
    """Whether the call makes the host wait for values of a tensor."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return False
    waits = facts_of(op).waits
    if waits == "masks":  # masks are converted to positions, whose number is data
        indices = [i.meta["val"] for i in node.all_input_nodes if isinstance(i.meta.get("val"), torch.Tensor)]
        return any(t.dtype in (torch.bool, torch.uint8) for t in indices)
    return bool(_DATA.intersection(op.tags)) or waits == "always" or torch.Tag.cudagraph_unsafe in op.tags


def _is_foreign(target: Any) -> bool:
    """Whether torch does not have the operator, and no fact says that this package's own never waits for the GPU."""
    if isinstance(target, torch._ops.OpOverload):
        ours = target.namespace == "pycompiler" and facts_of(target).waits == "never"
        return target.namespace not in TORCHS and not ours
    return isinstance(target, torch._ops.HigherOrderOperator)


def _is_seed(node: fx.Node) -> bool:
    """Whether the node is the state of random numbers of an attention that drops nothing: nothing reads its value."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.numel() > 2 or value.dtype not in (torch.int64, torch.uint64):
        return False
    if node.op == "placeholder":
        return bool(node.users) and all("attention" in str(user.target) and _drops_nothing(user) for user in node.users)
    return any("attention" in str(made.target) and _drops_nothing(made) for made in node.all_input_nodes)


def _seeds(gm: fx.GraphModule) -> Iterator[int]:
    """Positions of the inputs that are such states, on the CPU."""
    for i, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        if _is_seed(node) and node.meta["val"].device.type == "cpu":
            yield i


# -- recording --------------------------------------------------------------------------------------------------------


def is_doubtful(plan: Plan) -> bool:
    """Whether an operator of the plan may do something that a capture forbids."""
    return any(facts_of(step.op).waits != "never" for step in plan.steps if isinstance(step, Aten))


class TorchRecorder:
    """Records by `torch.cuda.CUDAGraph`, on a stream of its own for each stream of the program.

    `doubtful`: each recording is tried first.  `draws`: torch replays it, since it gives the kernels the generator's seed
    and position, and advances the generator as the recorded operators do.
    """

    def __init__(self, device: int, doubtful: bool = False, draws: bool = False) -> None:
        self.device, self.doubtful, self.draws = device, doubtful, draws

    def new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def record(
        self, run: Callable[..., Sequence[Any]], inputs: Sequence[Any], pool: Any, stream: int
    ) -> tuple[Any, int, Callable[[], Any], Sequence[Any]]:
        with _RECORDING, torch.cuda.device(self.device):
            own = _stream_for(self.device, stream)
            _keep_workspace(own, threading.get_ident())
            if self.doubtful:
                _try(own, lambda: run(*inputs))
            graph, outputs = _captured(own, pool, lambda: run(*inputs))
        address = 0 if self.draws else getattr(graph, "raw_cuda_graph_exec", lambda: 0)()
        return graph, address, graph.replay, outputs


_RECORDING = threading.RLock()  # threads record one after the other, since they may share the stream


@functools.cache
def _stream_for(device: int, stream: int) -> torch.cuda.Stream:
    """The stream on which calls of `stream` are recorded.

    A stream that nothing else uses: the libraries' workspaces of a stream are part of its graphs, so graphs of two
    streams, which may run at once, have different ones.
    """
    made = ctypes.c_void_p()
    with torch.cuda.device(device):
        _driver("cuStreamCreate", ctypes.byref(made), _NON_BLOCKING)
    return torch.cuda.ExternalStream(made.value, device)  # type: ignore[no-untyped-call]


_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: a capture must not wait for the default stream
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


def _driver(name: str, *arguments: Any) -> None:
    """Call a function of the GPU's driver."""
    code = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    if code != 0:
        raise RuntimeError(f"{name}: error {code} of the GPU's driver")


@functools.cache
def _keep_workspace(stream: torch.cuda.Stream, thread: int) -> Any:
    """Allocates the workspace of the stream's matmuls, in a pool that lives as long as the process.

    torch keeps one workspace for each handle of cuBLAS (hence thread) and stream, allocated at its first use.
    Without this, it would lie in the pool of the first graph.
    """
    small = torch.ones(16, 16, device=stream.device)
    torch.mm(small, small)  # creates the handle
    return _captured(stream, torch.cuda.graph_pool_handle(), lambda: (torch.mm(small, small),)), small


def _try(stream: torch.cuda.Stream, run: Callable[[], Any]) -> None:
    """Capture once by the driver alone, in memory that is given back.

    torch 2.11 does not end a failed capture completely: its generator of random numbers is unusable afterwards.
    """
    made, handle = ctypes.c_void_p(), ctypes.c_void_p(stream.cuda_stream)
    with torch.cuda.stream(stream), torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        _driver("cuStreamBeginCapture_v2", handle, _THREAD_LOCAL)
        try:
            run()
        except BaseException:
            with contextlib.suppress(RuntimeError):
                _driver("cuStreamEndCapture", handle, ctypes.byref(made))
            _forget_error(stream)
            raise
        _driver("cuStreamEndCapture", handle, ctypes.byref(made))
        _driver("cuGraphDestroy", made)


def _forget_error(stream: torch.cuda.Stream) -> None:
    """Take the error that a library has left over, which torch would raise at its next launch."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=stream.device)


def _mend_generator(stream: torch.cuda.Stream) -> None:
    """End the capture of the generator's state, which a failed capture has left open (see `_try`).

    Another capture ends it.  The state must stay the same object: recordings with random numbers refer to it.
    """
    generator = torch.cuda.default_generators[stream.device_index]
    with contextlib.suppress(RuntimeError):
        _forget_error(stream)
        small, graph = torch.ones(16, device=stream.device), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=torch.cuda.graph_pool_handle(), capture_error_mode="thread_local")
            small.add_(1)
            graph.capture_end()
        position = generator.get_offset()
        torch.rand(1, device=stream.device)  # raises if the state is still captured
        generator.set_offset(position)
        return
    with contextlib.suppress(RuntimeError, AttributeError):
        generator.graphsafe_set_state(generator.clone_state())
        log("random numbers of %s have a new state, since a capture has failed", stream.device)


def _captured(stream: torch.cuda.Stream, pool: Any, run: Callable[[], Sequence[Any]]) -> tuple[Any, Sequence[Any]]:
    graph = torch.cuda.CUDAGraph()
    collects = gc.isenabled()
    gc.disable()  # a finalizer could call a function that a capture forbids
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                outputs = run()
            except BaseException:
                with contextlib.suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
    except BaseException:
        with contextlib.suppress(RuntimeError):  # if torch has not left the pool
            torch._C._cuda_endAllocateToPool(stream.device_index, pool)
        _mend_generator(stream)
        _forget_error(stream)
        raise
    finally:
        if collects:
            gc.enable()
    return graph, outputs
