"""Mutated inputs: new values that kernels store straight into the memory of the input.

In: a program that ends in `aten.copy_(input, value)`.  Out: which of those copies are not needed, because the value's
buffer lives in the input's memory.  Example (`p`, `m` are inputs):

    loop b1 = m * 0.9 + g * 0.1                  kernel k0(m, g, p) -> b1 in m, b2 in p
    loop b2 = p - b1                       =>
    extern copy_(m, b1); extern copy_(p, b2)

A value is stored in place when everybody who reads the old value has done so: in an earlier step or nest, or in the same
nest at the very point that is stored, before the store (`conflict`); and when nothing is refused any more: a call that
raises has written nothing, and can be run again eagerly (`pipeline/with_errors.py`).  All else keeps its copy, at the end.
That two inputs share no memory is checked at each call (`_native.unless_shared`).
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch

from pycompiler.ir.effects import acts, divides, raises
from pycompiler.ir.expr import Expr
from pycompiler.ir.kernel import Nest, Stage, loads
from pycompiler.ir.loops import Buffer, Extern, Loop, Node, Program, Ref, refuses
from pycompiler.ir.verify import reads_of
from pycompiler.scheduling.body import is_indirect

COPY = torch.ops.aten.copy_.default
# Operations on integers that may end a kernel with an error; then the input must still hold its old value.
MAY_FAIL = frozenset(["wrap_index", "floordiv", "truncdiv", "mod", "fmod"])


def candidates(program: Program) -> dict[str, Extern]:
    """Buffers that may live in the memory of an input, and the copies which that saves."""
    inputs = {b.name for b in program.inputs if b is not None}
    outside = inputs | set(program.constants) | {o.buffer for o in program.outputs if isinstance(o, Ref)}
    writers: dict[str, list[Node]] = {}
    for node in program.nodes:
        for name in _writes(node):
            writers.setdefault(name, []).append(node)
    failing = _may_have_failed(program)
    found: dict[str, Extern] = {}
    wanted_after: set[str] = set()  # inputs whose new value a later node sees
    for node in reversed(program.nodes):
        pair = _whole_copy(program, node)
        if pair is not None:
            target, value = pair
            makers = writers.get(value, [])
            if (
                target in inputs - wanted_after
                and value not in outside | failing | found.keys()
                and len(writers[target]) == 1
                and len(makers) == 1
                and isinstance(makers[0], Loop)
                and makers[0].store_mode == "set"
                and not any(map(is_indirect, makers[0].store_index))
            ):
                assert isinstance(node, Extern)
                found[value] = node
                continue
        wanted_after |= set(reads_of(node))
    return dict(reversed(found.items()))


def target_of(copy: Extern) -> str:
    """The input that a copy writes."""
    name: str = copy.args[0].buffer
    return name


def _writes(node: Node) -> list[str]:
    made = [b.name for b in node.out if b is not None]
    return made + list(node.mutates) if isinstance(node, Extern) else made


def _whole_copy(program: Program, node: Node) -> tuple[str, str] | None:
    """(input, value) of a copy between two whole buffers of one layout."""
    if not isinstance(node, Extern) or node.op is not COPY or len(node.args) < 2:
        return None
    target, value = node.args[0], node.args[1]
    if not isinstance(target, Ref) or not isinstance(value, Ref):
        return None
    to, source = program.buffers[target.buffer], program.buffers[value.buffer]
    same = (to.shape, to.dtype, to.device) == (source.shape, source.dtype, source.device)
    layouts = [(r.shape, r.offset, _strides(r)) for r in (target, value)]
    layouts += [(b.shape, b.offset, _strides(b)) for b in (to, source)]
    if not same or any(x != layouts[0] for x in layouts) or layouts[0][1] != 0:
        return None
    return target.buffer, value.buffer


def _strides(x: object) -> list[Expr]:
    return [s for n, s in zip(x.shape, x.stride, strict=True) if n != 1]  # type: ignore[attr-defined]


def _may_have_failed(program: Program) -> set[str]:
    """Buffers whose values are wrong when a kernel ends with an error."""
    bad: set[str] = set()
    for node in program.nodes:
        if bad.intersection(reads_of(node)) or (isinstance(node, Loop) and _may_fail(node)):
            bad |= {b.name for b in node.out if b is not None}
    return bad


def _may_fail(loop: Loop) -> bool:
    return any(
        (op.name in MAY_FAIL and not op.dtype.is_floating_point)
        or any(isinstance(a, Expr) and is_indirect(a) for a in op.attrs)
        for op in loop.body
    )


def readers_first(nodes: Sequence[Node], copies: dict[str, Extern]) -> list[Node]:
    """`nodes` in an order in which the old value of an input is read before the new one is made, where that can be."""
    readers: dict[str, set[int]] = {}
    makers: dict[str, int] = {}
    needs: list[set[int]] = []
    for k, node in enumerate(nodes):
        needs.append({makers[name] for name in reads_of(node) if name in makers})
        for name in reads_of(node):
            readers.setdefault(name, set()).add(k)
        for name in _writes(node):
            needs[k] |= {makers[name]} if name in makers else set()
            makers[name] = k
    for value, copy in copies.items():
        last = makers[value]
        late = {k for k in readers.get(target_of(copy), ()) if k > last}
        moved = {k for k in _closure(needs, late) if k >= last}
        if late and last not in moved and all(isinstance(nodes[k], Loop) for k in moved):  # calls keep their order
            needs[last] |= late
    if all(k > n for k, ns in enumerate(needs) for n in ns):
        return list(nodes)
    order: dict[int, None] = {}
    for k in range(len(nodes)):
        _visit(needs, k, order)
    return [nodes[k] for k in order]


def _closure(needs: Sequence[set[int]], start: set[int]) -> set[int]:
    """`start` and all that it needs."""
    seen, work = set(start), list(start)
    while work:
        new = needs[work.pop()] - seen
        work += new
        seen |= new
    return seen


def _visit(needs: Sequence[set[int]], start: int, order: dict[int, None]) -> None:
    """Appends a node after all that it needs."""
    work = [start]
    while work:
        k = work[-1]
        missing = sorted((n for n in needs[k] if n not in order), reverse=True)
        if missing:
            work += missing
        else:
            order.setdefault(work.pop(), None)


# ---- the schedule -------------------------------------------------------------------------------------------------


def in_place(
    steps: Sequence[list[Nest] | Extern], copies: dict[str, Extern], buffers: dict[str, Buffer]
) -> dict[str, str]:
    """Which values are stored in place: buffer -> input."""
    made: dict[str, tuple[int, int]] = {}
    readers: dict[str, list[tuple[int, int]]] = {}
    for k, step in enumerate(steps):
        parts: Sequence[Nest | Extern] = step if isinstance(step, list) else [step]
        for j, part in enumerate(parts):
            reads, writes = _touched(part)
            for name in reads:
                readers.setdefault(name, []).append((k, j))
            made |= dict.fromkeys(writes, (k, j))
    stores: dict[str, str] = {}
    settled = max((k for k, step in enumerate(steps) if _may_refuse(step, buffers)), default=-1)
    for value, copy in copies.items():
        target, at = target_of(copy), made[value]
        if at[0] <= settled or any(reader > at for reader in readers.get(target, ())):
            continue
        step = steps[at[0]]
        if isinstance(step, list) and conflict(step[at[1]], value, target, buffers[value].device) is None:
            stores[value] = target
    return stores


def _may_refuse(step: list[Nest] | Extern, buffers: dict[str, Buffer]) -> bool:
    """Whether a call may end there with an error of its data; a GPU's kernels tell none."""
    if isinstance(step, Extern):
        return raises(step.op) or acts(step.op) or divides(step.op, step.args, step.out)
    stages = [s for nest in step for s in nest.stages]
    return any(refuses(s.loop.body) and buffers[s.outputs[0]].device.type == "cpu" for s in stages)


def copies_last(steps: Sequence[list[Nest] | Extern], inputs: Set[str]) -> list[list[Nest] | Extern]:
    """Copies into inputs come behind all that does not see them."""
    order: list[list[Nest] | Extern] = []
    waiting: list[Extern] = []
    for step in steps:
        if isinstance(step, Extern) and step.op is COPY and target_of(step) in inputs:
            waiting.append(step)
            continue
        parts: Sequence[Nest | Extern] = step if isinstance(step, list) else [step]
        if waiting and any(_meets(copy, *_touched(part)) for part in parts for copy in waiting):
            order += waiting
            waiting = []
        order.append(step)
    return order + waiting  # type: ignore[operator]


def _meets(copy: Extern, reads: set[str], writes: set[str]) -> bool:
    return target_of(copy) in reads | writes or not writes.isdisjoint(reads_of(copy))


def _touched(part: Nest | Extern) -> tuple[set[str], set[str]]:
    if isinstance(part, Extern):
        return set(reads_of(part)), set(_writes(part))
    return (
        {name for s in part.stages for name, _ in loads(s.loop)} | {s.loop.init for s in part.stages if s.loop.init},
        {name for s in part.stages for name in s.outputs},
    )


def conflict(nest: Nest, value: str, target: str, device: torch.device) -> str | None:
    """Why the nest cannot write `value` into the memory of `target`, or None.

    Each read of the old value in the nest must be of the element that is stored at that point of the nest, in an earlier
    pass or before the store in the same pass.  A point of a nest belongs to one thread on a CPU; elsewhere that is known
    of nests without folds only.
    """
    if device.type != "cpu" and any(s.role != "point" or s.level for s in nest.stages):
        return f"the nest that makes {value} has folds"
    ranges = dict(nest.dims)
    order, writer = next((k, s) for k, s in enumerate(nest.stages) if value in s.outputs)
    at = dict(zip(writer.outputs, writer.loop.store_index, strict=True))[value].simplify(ranges)
    for k, s in enumerate(nest.stages):
        for name, index in loads(s.loop):
            if name != target:
                continue
            if is_indirect(index) or index.simplify(ranges) != at:
                return f"{s.outputs[0]} reads {target} at {index}, {value} is stored at {at}"
            if not _before(s, k, writer, order):
                return f"{s.outputs[0]} reads {target} after {value} is stored"
    return None


def _before(reader: Stage, k: int, writer: Stage, order: int) -> bool:
    """Whether the read happens before the store of the same point."""
    if writer.role == "accumulate":  # of which each point of the nest makes a part
        return False
    if reader.level != writer.level:
        return reader.level < writer.level
    if writer.role == "row":
        return reader.role == "row" and k <= order
    return writer.role == "point" and k <= order
