"""Fusion: loops that share an iteration space become one nest.

In: prepared nodes.  Out: `Group`s (one nest each, or an Extern) in dependency order. Each loop starts as a nest of its
own.  Two nests merge if this is legal and worthwhile.

- LEGAL: no third node lies on a path between them, and their spaces have a common refinement.  Each value that passes
  between them is read at exactly the point where it is computed.
- WORTH: they share memory traffic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pycompiler import config
from pycompiler.ir import choices, phases
from pycompiler.ir.kernel import Dim, Nest, Role, Stage, hinted_points, loads, numel, space_of
from pycompiler.ir.loops import Extern, Loop, Node, refuses
from pycompiler.ir.target import Target
from pycompiler.ir.verify import reads_of
from pycompiler.logs import artifact
from pycompiler.operators.operator_facts import facts_of
from pycompiler.scheduling.body import is_indirect
from pycompiler.scheduling.bundle import device_of
from pycompiler.scheduling.graph import BufferGraph, writes_of
from pycompiler.scheduling.iteration_space import Refinement, compose, fresh_var, joint, refine, rewrite
from pycompiler.scheduling.stores import target_of
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.hints import likely

log_fusion = artifact("fusion")


@dataclass
class Group:
    """A node of the dependency graph.  `before`: bit set of the groups that must precede it (closed under paths)."""

    number: int
    node: Nest | Extern
    reads: set[str]
    writes: set[str]
    before: int = 0
    solo: bool = False
    first: int = 0  # position of its first node in the program
    swept: frozenset[str] = frozenset()  # buffers with more than one element read by it


MOST_REFUSED = 32
"""The number of neighbours to try that share reads with a group but pass no values, nearest first."""


def fuse(graph: BufferGraph) -> list[Group]:
    return _Fusion(graph).run()


def start_nest(loop: Loop, target: Target) -> Nest:
    """The nest of one loop, in the form that suits its memory accesses."""
    outer = list(zip(loop.vars, loop.ranges, strict=True))
    if loop.reduction is None:
        return Nest(outer, None, [Stage(loop, "point")])
    folded = list(zip(loop.reduction.vars, loop.reduction.ranges, strict=True))
    if not outer:
        return Nest(folded, None, [Stage(loop, "accumulate")])
    low = _columns(loop, target)
    if len(low) == len(outer):
        return Nest(folded + outer, len(folded), [Stage(loop, "accumulate")])
    if low:
        return _column_nest(loop, outer, folded, low, target)
    return Nest(outer + folded, len(outer), [Stage(loop, "reduce")])


def _columns(loop: Loop, target: Target) -> list[str]:
    """The output variables along which memory is read contiguously while the fold jumps: a suffix of the outputs."""
    assert loop.reduction is not None
    if loop.reduction.kind in ("argmax", "argmin"):
        return []
    votes: dict[int, int] = defaultdict(int)
    for _, index in loads(loop):
        strides = [index.coeff(v) for v in loop.vars]
        folds = [index.coeff(v) for v in loop.reduction.vars]
        known = [None if c is None else likely(c) for c in strides + folds]
        if None in known:
            continue
        steps = [abs(c or 0) for c in known]
        jumps = [c for c in steps[len(strides) :] if c]
        if jumps:
            near = [0 < c < min(jumps) for c in steps[: len(strides)]]
            count = 0
            while count < len(near) and near[-1 - count]:
                count += 1
            votes[count] += 1
    best = max(votes, key=lambda n: (votes[n], -n), default=0)
    low = list(zip(loop.vars, loop.ranges, strict=True))[len(loop.vars) - best :]
    size = numel(low)
    if best == len(loop.vars) or (size is not None and target.few_columns <= size <= target.many_columns):
        return [v for v, _ in low]
    return []


def _column_nest(loop: Loop, outer: list[Dim], folded: list[Dim], low: list[str], target: Target) -> Nest:
    """A nest whose rows are the other outputs.  If they are few, blocks of columns become rows as well."""
    high, columns = outer[: -len(low)], outer[-len(low) :]
    rows, width = hinted_points(high), columns[0][1]
    if rows is not None and rows < target.rows and width.is_const:
        for block in (256, 128, 64):
            if width.as_int() % block == 0 and width.as_int() > block:
                v, parts = (
                    columns[0][0],
                    [(fresh_var(), Expr.of(width.as_int() // block)), (fresh_var(), Expr.of(block))],
                )
                dims = [*high, parts[0], *folded, parts[1], *columns[1:]]
                new = rewrite(loop, {v: compose(parts)}, dims, dict(dims))
                return Nest(dims, len(high) + 1, [Stage(new, "column")])
    return Nest(high + folded + columns, len(high), [Stage(loop, "column")])


@dataclass
class _NestMatch:
    """The merge of two nests: the merged dims and each side's variables over them."""

    dims: list[Dim]
    split: int | None
    left: dict[str, Expr]
    right: dict[str, Expr]
    left_rows: bool = False  # the left (right) nest has values per row only
    right_rows: bool = False


def _swap(r: Refinement) -> Refinement:
    return Refinement(r.dims, r.right, r.left)


def _split_after(r: Refinement, outer: list[Dim], exprs: dict[str, Expr]) -> int:
    names = set().union(*(exprs[v].symbols for v, _ in outer)) if outer else set()
    return sum(1 for v, _ in r.dims if v in names)


def _matches(g: Nest, h: Nest) -> Iterator[_NestMatch]:
    if g.split is None and h.split is None:
        r = refine(g.dims, h.dims)
        if r is not None:
            yield _NestMatch(r.dims, None, r.left, r.right)
    elif g.split is not None and h.split is not None:
        outer, inner = refine(g.outer, h.outer), refine(g.inner, h.inner)
        if outer is not None and inner is not None:
            both = joint(outer, inner)
            yield _NestMatch(both.dims, len(outer.dims), both.left, both.right)
    elif g.split is not None:
        yield from _match_rows(g, h, swapped=False)
    else:
        yield from _match_rows(h, g, swapped=True)


def _match_rows(rows: Nest, flat: Nest, *, swapped: bool) -> Iterator[_NestMatch]:
    full = refine(rows.dims, flat.dims)
    if full is not None:
        split = _split_after(full, rows.outer, full.left)
        r = _swap(full) if swapped else full
        yield _NestMatch(r.dims, split, r.left, r.right)
        return
    outer = refine(rows.outer, flat.dims)
    if outer is not None and flat.dims:
        same = {v: Expr.sym(v) for v, _ in rows.inner}
        both = Refinement(outer.dims + rows.inner, {**outer.left, **same}, outer.right)
        r = _swap(both) if swapped else both
        yield _NestMatch(r.dims, len(outer.dims), r.left, r.right, left_rows=swapped, right_rows=not swapped)


def _moved(stages: list[Stage], mapping: dict[str, Expr], dims: list[Dim], rows: bool) -> list[Stage]:
    ranges = dict(dims)
    out = []
    for s in stages:
        role: Role = "row" if rows and s.role == "point" else s.role
        out.append(Stage(rewrite(s.loop, mapping, dims, ranges), role))
    return out


def _share(left: list[Stage], right: list[Stage]) -> bool:
    """Whether the two sides have a common buffer that one of them reads; otherwise a merge is not worthwhile."""
    reads = [{name for s in side for name, _ in loads(s.loop)} for side in (left, right)]
    makes = [{name for s in side for name in s.outputs} for side in (left, right)]
    return not (reads[0].isdisjoint(reads[1] | makes[1]) and reads[1].isdisjoint(makes[0]))


def _pass_at_same_points(left: list[Stage], right: list[Stage], match: _NestMatch) -> bool:
    """The check of `aligned` for values that pass from one side to the other, without rewriting: most pairs fail here."""
    ranges = dict(match.dims)
    for side, f, other, g in ((left, match.left, right, match.right), (right, match.right, left, match.left)):
        made = {b.name: (s, e) for s in side for b, e in zip(s.loop.out, s.loop.store_index, strict=True)}
        for name, index in (load for s in other for load in loads(s.loop) if load[0] in made):
            producer, at = made[name]
            if producer.role == "accumulate" or not same_index(
                index.subst(g).simplify(ranges), at.subst(f).simplify(ranges), ranges
            ):
                return False
    return True


def same_index(a: Expr, b: Expr, ranges: dict[str, Expr]) -> bool:
    return a == b or a.simplify(ranges) == b.simplify(ranges)


def sort_stages(stages: list[Stage]) -> list[Stage]:
    """Producers first, otherwise in the given order."""
    made = {name: s for s in stages for name in s.outputs}
    done: list[Stage] = []
    state: dict[int, bool] = {}

    def visit(s: Stage) -> None:
        if id(s) in state:
            return
        state[id(s)] = True
        for name, _ in loads(s.loop):
            if name in made and made[name] is not s:
                visit(made[name])
        done.append(s)

    for s in stages:
        visit(s)
    return done


@dataclass
class _Fusion:
    graph: BufferGraph
    groups: dict[int, Group] = field(default_factory=dict)
    touching: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    owner: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # buffer -> groups that write it
    users: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))  # buffer -> groups that read it
    sweeping: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))  # ... several elements of it
    effects: list[int] = field(default_factory=list)  # calls that keep their order
    refusing: set[int] = field(default_factory=set)  # groups that may end with an error of data

    def run(self) -> list[Group]:
        for position, node in enumerate(self.graph.nodes):
            group = self.add(position, node)
            if not group.solo:
                self.grow(group)
        return self.order()

    def add(self, position: int, node: Node) -> Group:
        reads, writes = set(reads_of(node)), set(writes_of(node))
        solo = isinstance(node, Extern) or self.is_solo(node)
        group = Group(
            position,
            node if isinstance(node, Extern) else start_nest(node, self.graph.target),
            reads,
            writes,
            0,
            solo,
            position,
        )
        if isinstance(group.node, Nest) and not solo:
            ranges = dict(group.node.dims)
            swept = (n for s in group.node.stages for n, i in loads(s.loop) if i.simplify(ranges).symbols)
            group.swept = frozenset(swept)
        for name in group.swept:
            self.sweeping[name].add(position)
        needs = {g for name in reads for g in self.owner[name]}  # read after write
        needs |= {g for name in writes for g in self.owner[name]}  # write after write
        stored = {target_of(self.graph.copies[name]) for name in writes if name in self.graph.copies}
        parts = [name for name in writes if name in self.graph.begins]
        stored |= {old for name in parts for old in self.graph.begins[name]}
        needs |= {g for name in writes | stored for g in self.users[name]}  # write after read
        if isinstance(node, Loop) and self.graph.begins and refuses(node.body):
            self.refusing.add(position)
        if isinstance(node, Extern) and parts:  # its writes cannot be undone
            needs |= self.refusing
        if isinstance(node, Extern) and facts_of(node.op).ordered:
            needs.update(self.effects[-1:])
            self.effects.append(position)
        for g in needs:
            group.before |= self.groups[g].before | (1 << g)
        for name in writes:
            self.owner[name].append(position)
        for name in reads:
            self.users[name].add(position)
        for name in reads | writes:
            self.touching[name].add(position)
        self.groups[position] = group
        return group

    def is_solo(self, loop: Loop) -> bool:
        """Whether a loop stays alone, since its order relative to others on the same memory matters."""
        names = {b.name for b in loop.out}
        return (
            loop.init is not None
            or loop.store_mode != "set"
            or any(len(self.graph.writers[n]) > 1 for n in names)
            or any(is_indirect(e) for e in loop.store_index)
            or self.graph.is_alone(loop)
        )

    def grow(self, group: Group) -> None:
        """Merge the group with neighbours until none fits."""
        refused: set[tuple[int, int]] = set()
        while True:
            passing = {g for name in group.reads | group.writes for g in self.owner[name]}
            passing |= {g for name in group.writes for g in self.users[name]}
            neighbours = passing | {g for name in group.swept for g in self.sweeping[name]}
            ranked = sorted(neighbours - {group.number}, key=lambda g: (not (self.groups[g].writes & group.reads), -g))
            beside = 0  # neighbours that only share reads
            for g in ranked:
                other = self.groups[g]
                if other.solo or (g, group.number) in refused:
                    continue
                beside += g not in passing
                if beside > MOST_REFUSED:
                    continue
                merged = self.merge(other, group)
                if merged is not None:
                    group = merged
                    break
                refused.add((g, group.number))
            else:
                return

    def independent_path(self, a: Group, b: Group) -> bool:
        """Whether a third group lies between the two.

        Its path starts at a direct successor of the first group.  The successor shares a buffer
        with it, or stores a copy's value into one.
        """
        for x, y in ((a, b), (b, a)):
            if not y.before >> x.number & 1:
                continue
            near = {g for name in x.reads | x.writes for g in self.touching[name]}
            near.update(g for name in self.graph.copies for g in self.owner[name])
            near.update(g for name in self.graph.begins for g in self.owner[name])
            near -= {x.number, y.number}
            if any(y.before >> g & 1 and self.groups[g].before >> x.number & 1 for g in near):
                return True
        return False

    def merge(self, a: Group, b: Group) -> Group | None:
        """The merged group, or None if the merge is illegal or not worthwhile."""
        merged, why = self.attempt(a, b)
        told = merged is None and phases.is_wanted("unfused")
        if log_fusion.enabled or told:
            names = [_origins(g.node.stages) for g in (a, b) if isinstance(g.node, Nest)]
            log_fusion("%s: [%s] and [%s]", "fused" if merged else f"not fused, {why}", *names)
            if told:
                phases.artefact("unfused", (*names, why))
        return merged

    def attempt(self, a: Group, b: Group) -> tuple[Group | None, str]:
        """The merged group (see `merge`), or None and the reason."""
        assert isinstance(a.node, Nest)
        assert isinstance(b.node, Nest)
        if len(a.reads | a.writes | b.reads | b.writes) > self.graph.target.pointers or self.too_big(a.node, b.node):
            return None, "the kernel would be too large"
        if self.independent_path(a, b):
            return None, "a third kernel has to run between them"
        if any(n == 0 for _, n in a.node.dims + b.node.dims):
            return None, "one of the loops is empty"
        left, right = a.node.stages, b.node.stages
        if not _share(left, right):
            return None, "the kernels share no buffer"
        why = "their loops do not match"
        for match in _matches(a.node, b.node):
            if not self.parallel_enough(match, a.node, b.node):
                why = "too few rows to distribute over threads"
                continue
            if not _pass_at_same_points(left, right, match):
                why = "the kernels access the shared buffer at different points"
                continue
            new_left = _moved(left, match.left, match.dims, match.left_rows)
            new_right = _moved(right, match.right, match.dims, match.right_rows)
            if not aligned(new_left + new_right, dict(match.dims)):
                why = "a value would be read before it is computed"
            elif not saves_traffic(new_left, new_right):
                why = "the fusion would save no memory traffic"
            elif choices.active and not choices.step_enabled(
                "fusion", lambda: f"[{_origins(left)}] and [{_origins(right)}]"
            ):
                why = "a bisector keeps them apart"
            else:
                return self.replace(a, b, Nest(match.dims, match.split, sort_stages(new_left + new_right))), ""
        return None, why

    def too_big(self, a: Nest, b: Nest) -> bool:
        stages, most = a.stages + b.stages, self.graph.target
        return (
            len(stages) > min(most.stages, config.max_fusion_size)
            or sum(len(s.loop.body) for s in stages) > most.operations
        )

    def parallel_enough(self, match: _NestMatch, a: Nest, b: Nest) -> bool:
        """Whether enough rows remain to distribute over threads when a flat nest joins rows."""
        if match.split is None or (a.split is not None and b.split is not None):
            return True
        rows, points = hinted_points(match.dims[: match.split]), hinted_points(match.dims)
        target = self.graph.target
        return rows is None or points is None or rows >= target.rows or points < target.much_work

    def replace(self, a: Group, b: Group, nest: Nest) -> Group:
        """Let `a` absorb `b`."""
        bit_a, bit_b = 1 << a.number, 1 << b.number
        before = (a.before | b.before) & ~bit_a & ~bit_b
        reads, writes, swept = a.reads | b.reads, a.writes | b.writes, a.swept | b.swept
        merged = Group(a.number, nest, reads, writes, before, False, min(a.first, b.first), swept)
        del self.groups[b.number]
        self.groups[a.number] = merged
        for g in self.groups.values():
            if g is not merged and g.before & (bit_a | bit_b):
                g.before = ((g.before | before) & ~bit_b) | bit_a
        for name in b.reads | b.writes:
            self.touching[name].discard(b.number)
            self.touching[name].add(a.number)
        for name in b.swept:
            self.sweeping[name].discard(b.number)
            self.sweeping[name].add(a.number)
        if b.number in self.refusing:
            self.refusing = self.refusing - {b.number} | {a.number}
        for name in b.writes:
            self.owner[name] = [a.number if g == b.number else g for g in self.owner[name]]
        for name in b.reads:
            self.users[name].discard(b.number)
            self.users[name].add(a.number)
        return merged

    def order(self) -> list[Group]:
        """Dependencies first; among the ready groups the earliest in the program.  On a GPU, small nests come right after a
        nest that they depend on: they may become parts of its launches (`codegen/triton/partial_results.py`)."""
        waiting = sorted(self.groups.values(), key=lambda g: g.first)
        done, out = 0, []
        while waiting:
            for k, g in enumerate(waiting):
                if g.before & ~done == 0:
                    break
            else:
                raise AssertionError("fusion made a cycle: " + ", ".join(str(g.number) for g in waiting))
            run = [first := waiting.pop(k)]
            done |= 1 << first.number
            for before in run:  # grows
                for g in self.small_readers(before):
                    if g.before & ~done == 0 and not done >> g.number & 1:
                        waiting.remove(g)
                        run.append(g)
                        done |= 1 << g.number
            out += run
        return out

    def small_readers(self, before: Group) -> list[Group]:
        """The small nests on a GPU that read what a nest writes, in the program's order."""
        if isinstance(before.node, Extern) or device_of(before.node).type == "cpu":
            return []
        readers = {
            self.groups[g].number: self.groups[g]
            for name in before.writes
            for g in self.users[name]
            if g in self.groups
        }
        small = [g for g in readers.values() if isinstance(g.node, Nest) and self.is_small(g.node)]
        return sorted(small, key=lambda g: g.first)

    def is_small(self, nest: Nest) -> bool:
        points = hinted_points(nest.dims)
        return points is not None and points <= self.graph.target.small_nest


def _origins(stages: list[Stage]) -> str:
    """The graph's nodes that stages come from."""
    return " ".join(dict.fromkeys(o for s in stages for o in s.loop.origin))


def aligned(stages: list[Stage], ranges: dict[str, Expr]) -> bool:
    """Whether each value computed in the nest is read in the nest only at its point, and is complete there."""
    made = {b.name: (s, e) for s in stages for b, e in zip(s.loop.out, s.loop.store_index, strict=True)}
    for s in stages:
        for name, index in loads(s.loop):
            if name not in made:
                continue
            producer, at = made[name]
            if producer.role == "accumulate" or producer is s:
                return False
            if not same_index(index, at, ranges):
                return False
    return True


def saves_traffic(left: list[Stage], right: list[Stage]) -> bool:
    """Whether the merged nest moves less memory: a value is passed on, or the same elements are read."""
    for a, b in ((left, right), (right, left)):
        made = {name for s in a for name in s.outputs}
        if any(name in made for s in b for name, _ in loads(s.loop)):
            return True
    seen = {(n, i) for s in left for n, i in loads(s.loop) if i.symbols}
    return any((n, i) in seen for s in right for n, i in loads(s.loop))


def collapse(nest: Nest) -> Nest:
    """Merge adjacent dimensions that every index treats as one."""
    while True:
        for k in range(len(nest.dims) - 1):
            if nest.split is not None and k + 1 == nest.split:
                continue
            (u, n), (v, m) = nest.dims[k], nest.dims[k + 1]
            if all(_joins(e, u, v, m) for s in nest.stages for e in _exprs(s.loop)) and all(
                _same_side(s.loop, u, v) for s in nest.stages
            ):
                break
        else:
            return nest
        dims = [*nest.dims[:k], (v, n * m), *nest.dims[k + 2 :]]
        # an index c*m*u + c*v becomes c*v
        stages = [replace(s, loop=_drop_var(s.loop, u, v, n * m)) for s in nest.stages]
        split = nest.split if nest.split is None or k + 1 > nest.split else nest.split - 1
        nest = Nest(dims, split, stages)


def _exprs(loop: Loop) -> Iterator[Expr]:
    yield from loop.store_index
    for op in loop.body:
        yield from (a for a in op.attrs if isinstance(a, Expr))


def _joins(e: Expr, u: str, v: str, m: Expr) -> bool:
    cu, cv = e.coeff(u), e.coeff(v)
    return cu is not None and cv is not None and cu == cv * m


def _same_side(loop: Loop, u: str, v: str) -> bool:
    folded = loop.reduction.vars if loop.reduction else ()
    return (u in loop.vars) == (v in loop.vars) and (u in folded) == (v in folded)


def _drop_var(loop: Loop, u: str, v: str, size: Expr) -> Loop:
    mapping = {u: Expr.of(0)}
    dims = [(w, size if w == v else n) for w, n in space_of(loop) if w != u]
    return rewrite(loop, mapping, dims, dict(dims))
