"""In-place writes of inputs: new values that kernels store directly into the memory of the input.

In: a program that ends in `aten.copy_(input, value)`.  Out: the copies that are unnecessary, because the value's buffer
lives in the input's memory.  Example (`p`, `m` are inputs):

    loop b1 = m * 0.9 + g * 0.1                  kernel k0(m, g, p) -> b1 in m, b2 in p
    loop b2 = p - b1                       =>
    extern copy_(m, b1); extern copy_(p, b2)

A partial update (`lowering/partial_updates.py`) starts as a copy of the input, into which calls write.  The copy is
dropped if the calls may write into the input.

A value is stored in place under two conditions.  All readers of the old value must have read it: in an earlier step or
nest, or in the same nest at the very point that is stored, before the store (`conflict`).  And no error of data may
follow: a call that raises has written nothing, and can run again eagerly (`pipeline/graph_errors.py`).  All other
values keep their copy, at the end.  Each call checks that two inputs share no memory (`_native.unless_shared`).
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch

from pycompiler.ir.kernel import Nest, Stage, loads
from pycompiler.ir.loops import Buffer, Extern, Loop, Node, Program, Ref, refuses
from pycompiler.ir.verify import reads_of
from pycompiler.operators.operator_facts import divides, facts_of
from pycompiler.operators.process_groups import launches
from pycompiler.scheduling.body import is_indirect
from pycompiler.symbolic.expr import Expr

COPY = torch.ops.aten.copy_.default


def candidates(program: Program) -> dict[str, Extern]:
    """Buffers that may live in the memory of an input, with the copies that this saves."""
    inputs = {b.name for b in program.inputs if b is not None}
    outside = inputs | set(program.constants) | {o.buffer for o in program.outputs if isinstance(o, Ref)}
    writers = _writers(program)
    found: dict[str, Extern] = {}
    # Inputs whose new value a later node reads, or whose old value a collective may read after its call.
    wanted_after = {name for n in program.nodes if isinstance(n, Extern) and launches(n.op) for name in reads_of(n)}
    for node in reversed(program.nodes):
        pair = _whole_copy(program, node)
        if pair is not None:
            target, value = pair
            if (
                target in inputs - wanted_after
                and value not in outside | found.keys()
                and len(writers[target]) == 1
                and (is_made_at_once(writers.get(value, [])) or _copied_from(program, writers, value) is not None)
            ):
                assert isinstance(node, Extern)
                found[value] = node
                continue
        wanted_after |= set(reads_of(node))
    return dict(reversed(found.items()))


def _writers(program: Program) -> dict[str, list[Node]]:
    writers: dict[str, list[Node]] = {}
    for node in program.nodes:
        for name in _writes(node):
            writers.setdefault(name, []).append(node)
    return writers


def is_made_at_once(makers: Sequence[Node]) -> bool:
    """Whether a single loop stores all elements, each at a place that no element decides."""
    return (
        len(makers) == 1
        and isinstance(makers[0], Loop)
        and makers[0].store_mode == "set"
        and not any(map(is_indirect, makers[0].store_index))
    )


def _copied_from(program: Program, writers: dict[str, list[Node]], value: str) -> str | None:
    """The buffer that `value` starts as a copy of, before calls write into parts of it; or None."""
    copy, *rest = writers.get(value, [None])
    if not rest or not all(isinstance(n, Extern) and value in n.mutates for n in rest):
        return None
    if not isinstance(copy, Loop) or copy.reduction or copy.init or len(copy.body) != 1 or copy.body[0].name != "load":
        return None
    source, at = copy.body[0].attrs
    a, b = program.buffers[source], program.buffers[value]
    same = (a.shape, a.dtype, a.device, _strides(a)) == (b.shape, b.dtype, b.device, _strides(b))
    return str(source) if same and at == copy.store_index[0] else None


def begun(program: Program, copies: dict[str, Extern]) -> dict[str, tuple[str, str]]:
    """Partial updates: value -> (the buffer it starts as a copy of, the input in whose memory both may live), in order."""
    writers = _writers(program)
    inputs = {b.name for b in program.inputs if b is not None}
    outside = inputs | set(program.constants) | {o.buffer for o in program.outputs if isinstance(o, Ref)}
    found: dict[str, tuple[str, str]] = {}
    for last, copy in copies.items():
        value, chain = last, dict[str, tuple[str, str]]()
        while (source := _copied_from(program, writers, value)) is not None and value not in outside:
            chain[value] = (source, target_of(copy))
            value = source
        if chain and value == target_of(copy) and found.keys().isdisjoint(chain):
            found |= dict(reversed(chain.items()))
    return found


def target_of(copy: Extern) -> str:
    """The input that a copy writes."""
    name: str = copy.args[0].buffer
    return name


def _writes(node: Node) -> list[str]:
    made = [b.name for b in node.out if b is not None]
    return made + list(node.mutates) if isinstance(node, Extern) else made


def _whole_copy(program: Program, node: Node) -> tuple[str, str] | None:
    """(input, value) of a copy between two whole buffers with the same layout, or None."""
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


def readers_first(nodes: Sequence[Node], copies: dict[str, Extern], begins: dict[str, tuple[str, str]]) -> list[Node]:
    """`nodes` ordered, if possible, so that an input's old value is read before the new one is computed.

    Also nodes that may raise an error of data come before the first partial write of an input.
    """
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
    refusing = {k for k, node in enumerate(nodes) if isinstance(node, Loop) and begins and refuses(node.body)}
    targets = {value: target_of(copy) for value, copy in copies.items()} | {v: t for v, (_, t) in begins.items()}
    for value, target in targets.items():
        last = makers[value]
        late = {k for k in readers.get(target, ()) if k > last}
        if value in begins:
            late |= {k for k in refusing if k > last}
        moved = {k for k in _closure(needs, late) if k >= last}
        if value in begins:  # a node that cannot come earlier stays
            late = {k for k in late if _is_free(nodes, needs, k, last)}
            moved = {k for k in _closure(needs, late) if k >= last}
        if late and last not in moved and all(isinstance(nodes[k], Loop) for k in moved):  # calls keep their order
            needs[last] |= late
    if all(k > n for k, ns in enumerate(needs) for n in ns):
        return list(nodes)
    order: dict[int, None] = {}
    for k in range(len(nodes)):
        _visit(needs, k, order)
    return [nodes[k] for k in order]


def _is_free(nodes: Sequence[Node], needs: Sequence[set[int]], k: int, last: int) -> bool:
    """Whether a node and all its dependencies can come before another node."""
    moved = {n for n in _closure(needs, {k}) if n >= last}
    return last not in moved and all(isinstance(nodes[n], Loop) for n in moved)


def _closure(needs: Sequence[set[int]], start: set[int]) -> set[int]:
    """`start` and all dependencies."""
    seen, work = set(start), list(start)
    while work:
        new = needs[work.pop()] - seen
        work += new
        seen |= new
    return seen


def _visit(needs: Sequence[set[int]], start: int, order: dict[int, None]) -> None:
    """Append a node after all its dependencies."""
    work = [start]
    while work:
        k = work[-1]
        missing = sorted((n for n in needs[k] if n not in order), reverse=True)
        if missing:
            work += missing
        else:
            order.setdefault(work.pop(), None)


# ---- the schedule -------------------------------------------------------------------------------------------------


def stored_in_place(
    steps: Sequence[list[Nest] | Extern],
    copies: dict[str, Extern],
    begins: dict[str, tuple[str, str]],
    buffers: dict[str, Buffer],
) -> dict[str, str]:
    """The values that are stored in place: buffer -> input."""
    made: dict[str, tuple[int, int]] = {}
    first: dict[str, tuple[int, int]] = {}  # of the calls that write a buffer
    readers: dict[str, list[tuple[int, int]]] = {}
    for k, step in enumerate(steps):
        parts: Sequence[Nest | Extern] = step if isinstance(step, list) else [step]
        for j, part in enumerate(parts):
            reads, writes = _touched(part)
            for name in reads:
                if not _copies(part, name, begins):
                    readers.setdefault(name, []).append((k, j))
            made |= dict.fromkeys(writes, (k, j))
            for name in part.mutates if isinstance(part, Extern) else ():
                first.setdefault(name, (k, j))
    stores: dict[str, str] = {}
    settled = max((k for k, step in enumerate(steps) if _may_raise(step, buffers)), default=-1)
    for value, copy in copies.items():
        target, at = target_of(copy), made[value]
        chain = _chain(begins, value)
        if chain:
            # no node reads the old values after the first write, and no error of data can follow it
            olds = [(old, first[new]) for new in chain for old in (begins[new][0], target)]
            if first[chain[0]][0] > settled and not any(r >= k for old, k in olds for r in readers.get(old, ())):
                stores |= dict.fromkeys(chain, target)
            continue
        if at[0] <= settled or any(reader > at for reader in readers.get(target, ())):
            continue
        step = steps[at[0]]
        if isinstance(step, list) and conflict(step[at[1]], value, target, buffers[value].device) is None:
            stores[value] = target
    return stores


def _chain(begins: dict[str, tuple[str, str]], value: str) -> list[str]:
    """The partial updates that end in `value`, in the order of their writes."""
    chain: list[str] = []
    while value in begins:
        chain.insert(0, value)
        value = begins[value][0]
    return chain


def _copies(part: Nest | Extern, name: str, begins: dict[str, tuple[str, str]]) -> bool:
    """Whether a nest is only the initial copy of a partial update."""
    if isinstance(part, Extern) or len(part.stages) != 1:
        return False
    made = part.stages[0].outputs[0]
    return made in begins and begins[made][0] == name


def without_copies(
    steps: Sequence[list[Nest] | Extern], begins: dict[str, tuple[str, str]], stores: dict[str, str]
) -> list[list[Nest] | Extern]:
    """The steps without the initial copies of partial updates that are written in place."""
    left: list[list[Nest] | Extern] = []
    for step in steps:
        if isinstance(step, list):
            step = [n for n in step if not any(o in stores and o in begins for s in n.stages for o in s.outputs)]
        if step:
            left.append(step)
    return left


def _may_raise(step: list[Nest] | Extern, buffers: dict[str, Buffer]) -> bool:
    """Whether a step may end with an error of data; kernels of a GPU report none."""
    if isinstance(step, Extern):
        return (
            (facts_of(step.op).raises and not step.checked)
            or facts_of(step.op).acts
            or divides(step.op, step.args, step.out)
        )
    stages = [s for nest in step for s in nest.stages]
    return any(refuses(s.loop.body) and buffers[s.outputs[0]].device.type == "cpu" for s in stages)


def copies_last(steps: Sequence[list[Nest] | Extern], inputs: Set[str]) -> list[list[Nest] | Extern]:
    """Move copies into inputs after all steps that do not use their buffers."""
    order: list[list[Nest] | Extern] = []
    waiting: list[Extern] = []
    for step in steps:
        if isinstance(step, Extern) and step.op is COPY and target_of(step) in inputs:
            waiting.append(step)
            continue
        parts: Sequence[Nest | Extern] = step if isinstance(step, list) else [step]
        if waiting and any(_touches(copy, *_touched(part)) for part in parts for copy in waiting):
            order += waiting
            waiting = []
        order.append(step)
    return order + waiting  # type: ignore[operator]


def _touches(copy: Extern, reads: set[str], writes: set[str]) -> bool:
    return target_of(copy) in reads | writes or not writes.isdisjoint(reads_of(copy))


def _touched(part: Nest | Extern) -> tuple[set[str], set[str]]:
    if isinstance(part, Extern):
        return set(reads_of(part)), set(_writes(part))
    return (
        {name for s in part.stages for name, _ in loads(s.loop)} | {s.loop.init for s in part.stages if s.loop.init},
        {name for s in part.stages for name in s.outputs},
    )


def conflict(nest: Nest, value: str, target: str, device: torch.device) -> str | None:
    """The reason why the nest cannot write `value` into the memory of `target`, or None.

    Each read of the old value in the nest must be of the element stored at that point of the nest, in an earlier pass
    or before the store in the same pass.  On a CPU a point of a nest belongs to one thread.  On other devices that is
    certain only for nests without folds.
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
    if writer.role == "accumulate":  # each point of the nest computes only a part of it
        return False
    if reader.level != writer.level:
        return reader.level < writer.level
    if writer.role == "row":
        return reader.role == "row" and k <= order
    return writer.role == "point" and k <= order
