"""The memory plan: which buffers reuse the memory of dead ones, and when memory is freed.

In: steps in order.  Out: `storage` (buffer -> buffer whose memory it uses), `frees` (per step), and more `stores` of
kernels.  Invariant: two buffers share memory only if one's last use precedes the other's first by a whole step, or if
one kernel replaces the other buffer by it, element by element (on a CPU: the kernel then touches half of the memory).
Only buffers used by kernels and the engine share memory: outputs, inputs and arguments of ATen calls are tensors of
their own.  A value that an ATen call reads may replace a buffer; its memory is freed after its last use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pycompiler.ir import choices
from pycompiler.ir.kernel import KernelGroup, Schedule, loads
from pycompiler.ir.loops import Buffer, Extern
from pycompiler.ir.verify import reads_of
from pycompiler.scheduling.graph import writes_of
from pycompiler.scheduling.stores import conflict, is_made_at_once
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.hints import likely


def touched(step: KernelGroup | Extern) -> set[str]:
    """Buffers in memory that the step reads or writes."""
    if isinstance(step, KernelGroup):
        return {*step.reads, *step.writes}
    return set(reads_of(step)) | set(writes_of(step))


def storage_bytes(b: Buffer) -> Expr:
    """Bytes from the first element to the last; 0 if there are none."""
    extent = Expr.of(1)
    for n, s in zip(b.shape, b.stride, strict=True):
        if n == 0:
            return Expr.of(0)
        extent = extent + (n - 1) * s
    return extent * b.dtype.itemsize


def is_covered(need: Expr, have: Expr) -> bool:
    """Whether `have` bytes are enough for all sizes."""
    spare, _ = (have - need).bounds({})
    return spare is not None and spare >= 0


def plan_memory(schedule: Schedule, kept: set[str]) -> None:
    """Fill `storage` and `frees`.

    `kept`: buffers that are never freed here: inputs, constants, outputs and new values of inputs.  `storage` already
    contains the places of new values that are stored in place.
    """
    last: dict[str, int] = {}
    shared_ok: dict[str, bool] = defaultdict(lambda: True)
    for k, step in enumerate(schedule.steps):
        for name in touched(step):
            last[name] = k
            if isinstance(step, Extern) and not step.by_engine:
                shared_ok[name] = False
    storage = schedule.storage
    users: dict[str, int] = {}  # memory -> step of its last use
    dead: list[str] = []
    frees: list[list[str]] = [[] for _ in schedule.steps]
    for k, step in enumerate(schedule.steps):
        own = [n for n in step.reads if n not in kept and last[n] == k] if isinstance(step, KernelGroup) else []
        ended = [n for n in own if shared_ok[n] and shared_ok[storage[n]] and users[storage[n]] <= k]
        for name in _fresh(step, storage, kept):
            home = None
            if name not in kept:
                home = _replace_or_skip(schedule, step, name, ended)
                if home is None and shared_ok[name]:
                    home = _take_or_skip(schedule, dead, name)
            storage[name] = home or name
        for name in touched(step):
            home = storage.setdefault(name, name)
            users[home] = max(users.get(home, -1), last[name])
        for name in sorted(touched(step)):
            home = storage[name]
            if last[name] == k and name not in kept and users[home] <= k:
                if shared_ok[home] and shared_ok[name]:
                    dead.append(home)
                else:
                    frees[k].append(home)
    final: dict[str, int] = {}
    for k, step in enumerate(schedule.steps):
        for name in touched(step):
            final[storage[name]] = k
    for name in dict.fromkeys(dead):
        frees[final[name]].append(name)
    schedule.frees = [sorted(set(f)) for f in frees]


def _replace_or_skip(schedule: Schedule, step: KernelGroup | Extern, name: str, ended: Sequence[str]) -> str | None:
    """The memory of a buffer of `ended` that a kernel may replace by the new one, unless a bisector disables it."""
    if not isinstance(step, KernelGroup) or schedule.target.kind != "cpu":
        return None
    for target in ended:
        if target not in step.stores.values() and _is_replaced(schedule, step, name, target):
            pair = (name, target)
            if not choices.step_enabled("memory", lambda: " replaces ".join(_makers(schedule, pair))):
                return None
            step.stores[name] = target
            return schedule.storage[target]
    return None


def _is_replaced(schedule: Schedule, group: KernelGroup, value: str, target: str) -> bool:
    """Whether each element of a buffer is read for the last time at the point where the value's is stored there."""
    a, b = schedule.buffers[value], schedule.buffers[target]
    if (a.dtype, a.device) != (b.dtype, b.device) or storage_bytes(a) != storage_bytes(b) or a.offset != b.offset:
        return False
    loops = [(k, s.loop) for k, nest in enumerate(group.nests) for s in nest.stages]
    makers = [(k, loop) for k, loop in loops if any(b.name == value for b in loop.out)]
    if not is_made_at_once([loop for _, loop in makers]) or any(loop.init == target for _, loop in loops):
        return False
    at = makers[0][0]
    if any(k > at and name == target for k, loop in loops for name, _ in loads(loop)):
        return False
    return conflict(group.nests[at], value, target, a.device) is None


def _take_or_skip(schedule: Schedule, dead: list[str], name: str) -> str | None:
    """`_take`, unless a bisector disables it."""
    home = _take(schedule, dead, name)
    if home is not None and not choices.step_enabled(
        "memory", lambda: " in the memory of ".join(_makers(schedule, (name, home)))
    ):
        dead.append(home)
        return None
    return home


def _makers(schedule: Schedule, names: tuple[str, ...]) -> list[str]:
    """The graph's nodes that compute the buffers."""
    loops = [s.loop for step in schedule.steps if isinstance(step, KernelGroup) for n in step.nests for s in n.stages]
    origins = [[o for loop in loops if any(b.name == name for b in loop.out) for o in loop.origin] for name in names]
    return [f"[{' '.join(dict.fromkeys(found)) or name}]" for name, found in zip(names, origins, strict=True)]


def _fresh(step: KernelGroup | Extern, storage: dict[str, str], kept: set[str]) -> list[str]:
    names = step.writes if isinstance(step, KernelGroup) else writes_of(step)
    return [n for n in names if n not in storage]


def _take(schedule: Schedule, dead: list[str], name: str) -> str | None:
    """The smallest dead memory that fits the buffer and wastes at most as much again."""
    need = storage_bytes(schedule.buffers[name])
    device = schedule.buffers[name].device
    best: tuple[int, str] | None = None
    for home in dead:
        have = storage_bytes(schedule.buffers[home])
        if schedule.buffers[home].device != device or not is_covered(need, have):
            continue
        if is_covered(have, 2 * need + 4096) and (best is None or (likely(have) or 0) < best[0]):
            best = (likely(have) or 0, home)
    if best is None:
        return None
    dead.remove(best[1])
    return best[1]
