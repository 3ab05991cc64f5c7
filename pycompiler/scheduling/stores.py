"""Mutated inputs: new values that kernels store straight into the memory of the input.

In: a program that ends in `aten.copy_(input, value)`.  Out: which of those copies are not needed, because the value's
buffer lives in the input's memory.  Example (`p`, `m` are inputs):

    loop b1 = m * 0.9 + g * 0.1                  kernel k0(m, g, p) -> b1 in m, b2 in p
    loop b2 = p - b1                       =>
    extern copy_(m, b1); extern copy_(p, b2)

A value that is the input but for parts, which calls write (`lowering/updates.py`), is a copy of it first; that copy is dropped
where the calls may write into the input.

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
from pycompiler.ir.process_groups import launches
from pycompiler.ir.verify import reads_of
from pycompiler.scheduling.body import is_indirect

COPY = torch.ops.aten.copy_.default


def candidates(program: Program) -> dict[str, Extern]:
    """Buffers that may live in the memory of an input, and the copies which that saves."""
    inputs = {b.name for b in program.inputs if b is not None}
    outside = inputs | set(program.constants) | {o.buffer for o in program.outputs if isinstance(o, Ref)}
    writers = _writers(program)
    found: dict[str, Extern] = {}
    # inputs whose new value a later node sees, or whose old one a collective may read after its call
    wanted_after = {name for n in program.nodes if isinstance(n, Extern) and launches(n.op) for name in reads_of(n)}
    for node in reversed(program.nodes):
        pair = _whole_copy(program, node)
        if pair is not None:
            target, value = pair
            if (
                target in inputs - wanted_after
                and value not in outside | found.keys()
                and len(writers[target]) == 1
                and (_is_made_at_once(writers.get(value, [])) or _begins_as(program, writers, value) is not None)
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


def _is_made_at_once(makers: list[Node]) -> bool:
    return (
        len(makers) == 1
        and isinstance(makers[0], Loop)
        and makers[0].store_mode == "set"
        and not any(map(is_indirect, makers[0].store_index))
    )


def _begins_as(program: Program, writers: dict[str, list[Node]], value: str) -> str | None:
    """The buffer that `value` is a copy of, into parts of which calls then write."""
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
    """Values that are (a buffer, but for parts): (that buffer, the input in whose memory both may live).  First ones first."""
    writers = _writers(program)
    inputs = {b.name for b in program.inputs if b is not None}
    outside = inputs | set(program.constants) | {o.buffer for o in program.outputs if isinstance(o, Ref)}
    found: dict[str, tuple[str, str]] = {}
    for last, copy in copies.items():
        value, chain = last, dict[str, tuple[str, str]]()
        while (source := _begins_as(program, writers, value)) is not None and value not in outside:
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


def readers_first(nodes: Sequence[Node], copies: dict[str, Extern], begins: dict[str, tuple[str, str]]) -> list[Node]:
    """`nodes` in an order in which the old value of an input is read before the new one is made, where that can be; and what
    may be refused before the first part of an input is written."""
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
        if value in begins:  # what cannot come before is left where it is
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
    """Whether a node and all that it needs can come before another."""
    moved = {n for n in _closure(needs, {k}) if n >= last}
    return last not in moved and all(isinstance(nodes[n], Loop) for n in moved)


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
    steps: Sequence[list[Nest] | Extern],
    copies: dict[str, Extern],
    begins: dict[str, tuple[str, str]],
    buffers: dict[str, Buffer],
) -> dict[str, str]:
    """Which values are stored in place: buffer -> input."""
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
    settled = max((k for k, step in enumerate(steps) if _may_refuse(step, buffers)), default=-1)
    for value, copy in copies.items():
        target, at = target_of(copy), made[value]
        chain = _chain(begins, value)
        if chain:
            # nobody sees what was there from the first write on, which is no error's any more
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
    """The values that are written one after the other where `value` then is, first ones first."""
    chain: list[str] = []
    while value in begins:
        chain.insert(0, value)
        value = begins[value][0]
    return chain


def _copies(part: Nest | Extern, name: str, begins: dict[str, tuple[str, str]]) -> bool:
    """Whether a nest is nothing but the copy that a value begins as."""
    if isinstance(part, Extern) or len(part.stages) != 1:
        return False
    made = part.stages[0].outputs[0]
    return made in begins and begins[made][0] == name


def without_copies(
    steps: Sequence[list[Nest] | Extern], begins: dict[str, tuple[str, str]], stores: dict[str, str]
) -> list[list[Nest] | Extern]:
    """The steps without the copies of what is written where it lies."""
    left: list[list[Nest] | Extern] = []
    for step in steps:
        if isinstance(step, list):
            step = [n for n in step if not any(o in stores and o in begins for s in n.stages for o in s.outputs)]
        if step:
            left.append(step)
    return left


def _may_refuse(step: list[Nest] | Extern, buffers: dict[str, Buffer]) -> bool:
    """Whether a call may end there with an error of its data; a GPU's kernels tell none."""
    if isinstance(step, Extern):
        return (raises(step.op) and not step.checked) or acts(step.op) or divides(step.op, step.args, step.out)
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
