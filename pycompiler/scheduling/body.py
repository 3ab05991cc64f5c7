"""Loop bodies: their reads and costs, inlining of one into another, removal of duplicate and dead operations."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from pycompiler import config
from pycompiler.ir.kernel import LOADS, loads, space_of
from pycompiler.ir.loops import Loop, Op, refuses
from pycompiler.scheduling.iteration_space import map_exprs
from pycompiler.symbolic.expr import Expr, split, within
from pycompiler.symbolic.hints import likely

HALF = (torch.bfloat16, torch.float16)
_FREE = ("const", "index", "cast", "load", "masked_load", "bitcast", "not", "and", "or", "neg", "abs", "where")
_SIMPLE = (
    "add", "sub", "mul", "maximum", "minimum", "fma", "square", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf",
    "sign", "floor", "ceil", "round", "trunc", "xor", "shl", "shr", "signbit", "copysign",
)  # fmt: skip
WEIGHT: dict[str, int] = {**dict.fromkeys(_FREE, 0), **dict.fromkeys(_SIMPLE, 1), "truediv": 4, "reciprocal": 4,
                          "sqrt": 4, "rsqrt": 6}  # fmt: skip
TRANSCENDENTAL_WEIGHT = 12
CHEAP = 3  # arithmetic that is cheaper to repeat than to store
LONGEST = 1000  # characters of an index: inlining can repeat an index within itself, again and again
FEW = 8  # a consumer of less than 1/FEW of the values should compute them itself


def cost(loop: Loop) -> int:
    """Arithmetic per point, an addition being 1."""
    return sum(WEIGHT.get(op.name, TRANSCENDENTAL_WEIGHT) for op in loop.body)


def loaded(loop: Loop) -> set[str]:
    return {name for name, _ in loads(loop)}


def reads(loop: Loop) -> set[str]:
    """Buffers whose contents the loop needs, including a buffer that it extends."""
    return loaded(loop) | ({loop.init} if loop.init else set())


def is_indirect(index: Expr) -> bool:
    return any(s.startswith("%") for s in index.symbols)


def renumber(e: Expr, at: Mapping[int, int]) -> Expr:
    """The index with `%n` symbols renumbered as their operations move."""
    names = {s: Expr.sym(f"%{at[int(s[1:])]}") for s in e.symbols if s.startswith("%")}
    return e.subst(names) if names else e


def move(op: Op, at: Mapping[int, int]) -> Op:
    """`op` with its arguments and indirect indices renumbered."""
    attrs = tuple(renumber(a, at) if isinstance(a, Expr) else a for a in op.attrs)
    return Op(op.name, tuple(at[a] for a in op.args), op.dtype, attrs)


def digits(index: Expr, store: Expr, dims: Sequence[tuple[str, Expr]],
           ranges: Mapping[str, Expr]) -> dict[str, Expr] | None:  # fmt: skip
    """Values of the variables `dims` at which `store` equals `index`, whose symbols have `ranges`.

    None if the store is not a mixed radix number.
    """
    strides: list[tuple[Expr, Expr, str]] = []
    for v, n in dims:
        c = store.coeff(v)
        if c is None or (c.const is not None and c.const <= 0):
            return None
        strides.append((c, n, v))
    rest = index - store.subst({v: 0 for v, _ in dims})
    if rest.symbols & {v for v, _ in dims} and store.symbols - {v for v, _ in dims}:
        return None
    strides.sort(key=_largest_first)
    for (outer, _, _), (inner, size, _) in itertools.pairwise(strides):
        least, _ = (outer - inner * size).bounds({})
        if least is None or least < 0:
            return None
    found = _read_off(rest, strides, ranges)
    if found is not None:
        return found
    found = {}
    for k, (stride, _, v) in enumerate(strides):
        found[v] = rest // stride
        if k + 1 < len(strides):
            rest = rest % stride
    return found


def _read_off(
    index: Expr, strides: Sequence[tuple[Expr, Expr, str]], ranges: Mapping[str, Expr]
) -> dict[str, Expr] | None:
    """The factors of the strides, if each is known to be a digit.  Needs no division, whatever the sizes."""
    found: dict[str, Expr] = {}
    for stride, n, v in strides:
        found[v], index = split(index, stride)
        if not within(found[v], n, ranges):
            return None
    return found if index == 0 else None


def _largest_first(at: tuple[Expr, Expr, str]) -> tuple[int, ...]:
    """Sort key: stride, then size.  Symbolic ones are compared by their hints, or by the number of sizes they multiply."""
    return tuple(-(len(e.terms[0][0]) if (n := likely(e)) is None else n) for e in at[:2])


def checked_ranges(index: Expr, body: Sequence[Op]) -> dict[str, Expr] | None:
    """Ranges of the indirect symbols of an index; None if one of them is not known to be in range."""
    found: dict[str, Expr] = {}
    for s in index.symbols:
        if s.startswith("%"):
            op = body[int(s[1:])]
            if op.name != "wrap_index":
                return None
            found[s] = op.attrs[0]
    return found


def checked_vars(producer: Loop) -> set[str]:
    """The variables on which a loop's checks depend."""
    found: set[str] = set()
    seen: set[int] = set()
    work = refuses(producer.body)
    while work:
        p = work.pop()
        if p in seen:
            continue
        seen.add(p)
        op = producer.body[p]
        symbols = {s for a in op.attrs if isinstance(a, Expr) for s in a.symbols}
        work += [*op.args, *(int(s[1:]) for s in symbols if s.startswith("%"))]
        found |= symbols
    return found & {v for v, _ in space_of(producer)}


def is_surjective(dims: Sequence[tuple[str, Expr]], values: Mapping[str, Expr], ranges: Mapping[str, Expr]) -> bool:
    """Whether the variables `dims`, at `values`, take all their values as the variables of `ranges` run."""
    flat, total = Expr.of(0), Expr.of(1)
    for v, n in reversed(dims):
        flat, total = flat + values[v] * total, total * n
    flat = flat.simplify(ranges)
    strides: list[tuple[Expr, Expr]] = []
    for w, n in ranges.items():
        c = flat.coeff(w)
        if c is None:
            return False
        flat -= c * Expr.sym(w)
        if c.const is not None and c.const < 0:  # runs from the last to the first
            flat, c = flat + c * (n - 1), -c
        if c != 0 and n != 1:
            strides.append((c, n))
    reached = Expr.of(1)
    while (step := next((s for s in strides if s[0] == reached), None)) is not None:
        strides.remove(step)
        reached = reached * step[1]
    return flat == 0 and not strides and reached == total


def inline(consumer: Loop, producer: Loop, name: str) -> Loop | None:
    """`consumer` with loads of `name` replaced by the computation of `producer` (pointwise); None if that is not
    possible.

    The producer's checks must still run at all of its points.
    """
    which = [b.name for b in producer.out].index(name)
    store, dims = producer.store_index[which], space_of(producer)
    ranges = dict(space_of(consumer))
    names = checked_vars(producer)
    looked_at = [d for d in dims if d[0] in names]
    body: list[Op] = []
    at: dict[int, int] = {}
    unrounded: dict[int, int] = {}
    for position, op in enumerate(consumer.body):
        new = move(op, at)
        if op.name == "cast" and op.dtype == torch.float32 and new.args[0] in unrounded:
            at[position] = unrounded[new.args[0]]
            continue
        if op.name not in LOADS or op.attrs[0] != name:
            at[position] = len(body)
            body.append(new)
            continue
        limits = checked_ranges(new.attrs[1], body)
        values = None if limits is None else digits(new.attrs[1], store, dims, {**ranges, **limits})
        if values is None or limits is None:
            return None
        values = {v: e.simplify({**ranges, **limits}) for v, e in values.items()}
        guard = new.args if op.name == "masked_load" else None
        if looked_at and (guard is not None or not is_surjective(looked_at, values, ranges)):
            return None
        at[position] = _splice(body, producer, producer.results[which], values, ranges, guard)
        last = body[at[position]]
        if last.name == "cast" and last.dtype in HALF and not config.emulate_precision_casts and not _casts(producer):
            unrounded[at[position]] = last.args[0]
    if any(len(str(a)) > LONGEST for op in body for a in op.attrs if type(a) is Expr and not a.is_const):
        return None
    return tidy(replace(consumer, body=tuple(body), results=tuple(at[r] for r in consumer.results),
                        store_index=tuple(renumber(e, at) for e in consumer.store_index),
                        origin=producer.origin + tuple(o for o in consumer.origin if o not in producer.origin)))  # fmt: skip


def _casts(loop: Loop) -> bool:
    """Whether the program itself requested a conversion of dtype."""
    return any(name.startswith(("_to_copy", "convert_element_type")) for name in loop.origin)


def _splice(body: list[Op], producer: Loop, result: int, values: Mapping[str, Expr], ranges: Mapping[str, Expr],
            guard: tuple[int, ...] | None) -> int:  # fmt: skip
    """Append the producer's body at `values`.  Under a guard (predicate, other) no load happens where the predicate is
    false."""
    at: dict[int, int] = {}
    for position, op in enumerate(producer.body):
        new = map_exprs(move(op, at), values, ranges)
        if guard is not None and op.name == "load":
            body.append(Op("const", (), op.dtype, (0,)))
            new = Op("masked_load", (guard[0], len(body) - 1), op.dtype, new.attrs)
        elif guard is not None and op.name == "masked_load":
            body.append(Op("and", (guard[0], new.args[0]), body[guard[0]].dtype))
            new = Op("masked_load", (len(body) - 1, new.args[1]), op.dtype, new.attrs)
        at[position] = len(body)
        body.append(new)
    if guard is None:
        return at[result]
    body.append(Op("where", (guard[0], at[result], guard[1]), producer.body[result].dtype))
    return len(body) - 1


def tidy(loop: Loop) -> Loop:
    """The loop without duplicate and unused operations.  Checks of indices stay."""
    seen: dict[tuple[object, ...], int] = {}
    at: dict[int, int] = {}
    body: list[Op] = []
    for position, op in enumerate(loop.body):
        new = move(op, at)
        key = (new.name, new.args, new.dtype, tuple(a if type(a) is Expr else (type(a), repr(a)) for a in new.attrs))
        if key not in seen:
            seen[key] = len(body)
            body.append(new)
        at[position] = seen[key]
    results = [at[r] for r in loop.results]
    stores = [renumber(e, at) for e in loop.store_index]
    needed: set[int] = set()
    work = results + [int(s[1:]) for e in stores for s in e.symbols if s.startswith("%")]
    work += [k for k, op in enumerate(body) if op.name == "wrap_index"]
    while work:
        p = work.pop()
        if p in needed:
            continue
        needed.add(p)
        work += body[p].args
        work += [int(s[1:]) for a in body[p].attrs if isinstance(a, Expr) for s in a.symbols if s.startswith("%")]
    place = {p: k for k, p in enumerate(sorted(needed))}
    return replace(loop, body=tuple(move(body[p], place) for p in sorted(needed)),
                   results=tuple(place[r] for r in results), store_index=tuple(renumber(e, place) for e in stores))  # fmt: skip
