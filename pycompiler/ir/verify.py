"""Legality of a `Program`: a list of rules, run after lowering in all tests, and under `config.verify_ir`.

In: a program.  Out: nothing, or `IRError` naming each violated rule, the node and the violation.  Example:

    verify(lower(gm))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from pycompiler.ir.loops import POINTWISE, REDUCTIONS, Buffer, Extern, Loop, Node, Program, Ref
from pycompiler.ir.printer import print_node, print_value
from pycompiler.operators.memory_overlap import has_no_overlap
from pycompiler.symbolic.expr import Expr

Complaints = Iterator[str]


class IRError(Exception):
    """A bug of the compiler: a stage created an illegal program."""


def verify(program: Program) -> None:
    """Raises IRError when a rule is violated."""
    found: list[str] = []
    for rule in PROGRAM_RULES:
        found += [f"{rule.__name__}: {text}" for text in rule(program)]
    for node in program.nodes:
        if isinstance(node, Loop):
            for check in LOOP_RULES:
                found += [f"{check.__name__}: {text}\n{print_node(node)}" for text in check(node, program)]
    if found:
        raise IRError(f"illegal program {program.name}, {len(found)} violation(s):\n" + "\n".join(found))


def refs_of(args: Any) -> Iterator[Ref]:
    """Every Ref in (nested) arguments."""
    if isinstance(args, Ref):
        yield args
    elif isinstance(args, list | tuple):
        for a in args:
            yield from refs_of(a)
    elif isinstance(args, dict):
        yield from refs_of(list(args.values()))


def reads_of(node: Node) -> Iterator[str]:
    """Names of the buffers that a node reads (for a Loop with `init`, also the buffer that it extends)."""
    if isinstance(node, Extern):
        yield from (r.buffer for r in refs_of(node.args))
        yield from (r.buffer for r in refs_of(node.kwargs))
        return
    if node.init is not None:
        yield node.init
    yield from (op.attrs[0] for op in node.body if op.name in ("load", "masked_load"))


# -- rules on programs -----------------------------------------------------------------------------------------------


def defined_before_use(p: Program) -> Complaints:
    known = {b.name for b in p.inputs if b is not None} | set(p.constants)
    for node in p.nodes:
        yield from (f"{name} is read before it is written, in\n{print_node(node)}"
                    for name in reads_of(node) if name not in known)  # fmt: skip
        known |= {b.name for b in node.out if b is not None}
    yield from (f"output {print_value(r)} names an unknown buffer" for r in refs_of(p.outputs) if r.buffer not in known)


def written_once(p: Program) -> Complaints:
    """Each buffer has one creating node; later writers name it in `init`; no node reads it between two writers."""
    created = {b.name for b in p.inputs if b is not None} | set(p.constants)
    closed: set[str] = set()
    for node in p.nodes:
        extends = node.init if isinstance(node, Loop) else None
        if extends is not None and (len(node.out) != 1 or node.out[0] is None or node.out[0].name != extends):
            yield f"init {extends} is not the loop's output"
        if extends in closed:
            yield f"{extends} is written again after it was read"
        closed |= set(reads_of(node)) - {extends}
        for b in node.out:
            if b is not None and extends is None:
                if b.name in created:
                    yield f"{b.name} is created twice"
                created.add(b.name)


def buffers_declared(p: Program) -> Complaints:
    made = [b for b in p.inputs if b is not None] + [b for n in p.nodes for b in n.out if b is not None]
    for b in made:
        if p.buffers.get(b.name) != b:
            yield f"{b.name} is not in program.buffers as it is used ({p.buffers.get(b.name)})"
        if len(b.shape) != len(b.stride):
            yield f"{b.name} has {len(b.shape)} sizes and {len(b.stride)} strides"
    yield from (f"constant {name} is not in program.buffers" for name in p.constants if name not in p.buffers)


def mutations_are_arguments(p: Program) -> Complaints:
    for node in p.nodes:
        if isinstance(node, Extern):
            yield from (
                f"{node.op} mutates {m}, which is not an argument" for m in node.mutates if m not in set(reads_of(node))
            )


def outputs_are_legal(p: Program) -> Complaints:
    for o in p.outputs:
        if isinstance(o, int) and not 0 <= o < len(p.inputs):
            yield f"output {o} is not an input index"
        if isinstance(o, tuple) and len(o) != 1:
            yield f"a constant output is a 1-tuple, not {o}"


def refs_in_bounds(p: Program) -> Complaints:
    refs = [r for n in p.nodes if isinstance(n, Extern) for r in refs_of([n.args, n.kwargs])] + list(refs_of(p.outputs))
    for r in refs:
        buffer = p.buffers.get(r.buffer)
        if buffer is None or any(n == 0 for n in r.shape):
            continue
        last = r.offset + sum((Expr.of(n - 1) * s for n, s in zip(r.shape, r.stride, strict=True)), Expr.of(0))
        extent = _extent(buffer)
        if last.is_const and extent.is_const and last.as_int() >= extent.as_int():
            yield f"{print_value(r)} ends at {last}, the storage has {extent} elements"


# -- rules on loops --------------------------------------------------------------------------------------------------


def spaces(n: Loop, _: Program) -> Complaints:
    red = n.reduction
    names = n.vars + (red.vars if red else ())
    if len(set(names)) != len(names):
        yield f"a variable is bound twice: {names}"
    if len(n.vars) != len(n.ranges) or (red and len(red.vars) != len(red.ranges)):
        yield "as many variables as ranges are needed"
    if red and not red.vars:
        yield "a reduction folds over at least one variable"


def ssa(n: Loop, _: Program) -> Complaints:
    for i, op in enumerate(n.body):
        if op.name not in POINTWISE:
            yield f"op {i}: unknown operation {op.name}"
        elif len(op.args) != POINTWISE[op.name]:
            yield f"op {i}: {op.name} takes {POINTWISE[op.name]} values, not {len(op.args)}"
        if any(not 0 <= a < i for a in op.args):
            yield f"op {i}: argument not defined before: {op.args}"
    yield from (f"result {r} is not a position" for r in n.results if not 0 <= r < len(n.body))


def arity(n: Loop, _: Program) -> Complaints:
    inputs, outputs = REDUCTIONS.get(n.reduction.kind, (-1, -1)) if n.reduction else (len(n.out), len(n.out))
    if inputs < 0 and n.reduction:
        yield f"unknown reduction {n.reduction.kind}"
    elif (len(n.results), len(n.out)) != (inputs, outputs):
        yield f"{len(n.results)} results and {len(n.out)} outputs, expected {inputs} and {outputs}"
    if len(n.store_index) != len(n.out):
        yield f"{len(n.store_index)} store indices for {len(n.out)} outputs"
    if n.store_mode == "add" and n.init is None:
        yield "an adding store needs an initialised output"


_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_FLOAT_ONLY = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "atan2",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "one_plus_erf",
        "erfc",
        "erfinv",
        "lgamma",
        "digamma",
        "sigmoid",
        "reciprocal",
        "truediv",
        "floor",
        "ceil",
        "round",
        "trunc",
        "copysign",
        "nextafter",
        "hypot",
        "rand",
        "randn",
    ]
)
_COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "signbit"])
_BITWISE = frozenset(["and", "or", "xor", "not", "shl", "shr"])
_FREE = frozenset(["cast", "bitcast", "load", "masked_load", "const", "index", "where", "rand", "randn"])


def dtypes(n: Loop, p: Program) -> Complaints:
    body = n.body
    for i, op in enumerate(body):
        args = [body[a].dtype for a in op.args if 0 <= a < i]
        where = f"op {i} {op.name}"
        if op.name in ("load", "masked_load"):
            buffer = p.buffers.get(op.attrs[0])
            if buffer is not None and buffer.dtype != op.dtype:
                yield f"{where}: a {op.dtype} load of a {buffer.dtype} buffer"
            if op.name == "masked_load" and args != [torch.bool, op.dtype]:
                yield f"{where}: takes (bool, {op.dtype}), not {args}"
        elif op.name in _COMPARISONS:
            if op.dtype != torch.bool or len(set(args)) > 1:
                yield f"{where}: compares equal dtypes into bool, not {args} into {op.dtype}"
        elif op.name == "where":
            if args != [torch.bool, op.dtype, op.dtype]:
                yield f"{where}: takes (bool, {op.dtype}, {op.dtype}), not {args}"
        elif op.name == "index" and op.dtype.is_floating_point:
            yield f"{where}: an index is an integer"
        elif op.name not in _FREE and any(a != op.dtype for a in args):
            yield f"{where}: {args} into {op.dtype}, all must be the same"
        if op.name in _FLOAT_ONLY and op.dtype not in _FLOATS:
            yield f"{where}: on {op.dtype}, expected a floating point dtype"
        if op.name in _BITWISE and op.dtype.is_floating_point:
            yield f"{where}: on {op.dtype}, expected an integer or bool"
        if op.name not in _FREE and op.dtype in (torch.float16, torch.bfloat16):
            yield f"{where}: arithmetic in {op.dtype}, expected casts to float32"


def result_dtypes(n: Loop, _: Program) -> Complaints:
    given = [n.body[r].dtype for r in n.results if 0 <= r < len(n.body)]
    kind = n.reduction.kind if n.reduction else ""
    fixed = {"argmax": torch.int64, "argmin": torch.int64, "any": torch.bool, "all": torch.bool}.get(kind)
    want = [fixed] if fixed else given * (len(n.out) if kind else 1)
    if given and [b.dtype for b in n.out] != want:
        yield f"outputs are {[b.dtype for b in n.out]}, the values {want}"
    if kind in ("any", "all") and given != [torch.bool]:
        yield f"{kind} folds bool, not {given}"


def scopes(n: Loop, p: Program) -> Complaints:
    inner = set(n.vars) | (set(n.reduction.vars) if n.reduction else set())
    sizes = {s for b in p.inputs if b is not None for e in (*b.shape, *b.stride) for s in e.symbols} | _size_symbols(p)
    sizes |= {*p.numbers, *p.reals}
    for i, e in _index_exprs(n):
        for s in e.symbols - sizes:
            if s.startswith("%"):
                k = int(s[1:])
                if not 0 <= k < i or n.body[k].dtype.is_floating_point:
                    yield f"index {e}: {s} is not an integer value defined before"
            elif s not in inner:
                yield f"index {e}: {s} is not in scope"
    for e in n.store_index:
        if n.reduction and e.symbols & set(n.reduction.vars):
            yield f"store index {e} depends on a reduction variable"


def in_range(n: Loop, p: Program) -> Complaints:
    ranges = dict(zip(n.vars + (n.reduction.vars if n.reduction else ()),
                      n.ranges + (n.reduction.ranges if n.reduction else ()), strict=True))  # fmt: skip
    ranges = {v: r.subst(p.hints) for v, r in ranges.items()}  # symbolic sizes are checked for their hints only
    if any(r == 0 for r in ranges.values()):
        return
    accesses = [(op.attrs[0], op.attrs[1]) for op in n.body if op.name == "load"]
    accesses += [(b.name, e) for b, e in zip(n.out, n.store_index, strict=False)]
    for name, e in accesses:
        buffer = p.buffers.get(name)
        if buffer is None or any(a.kind != "sym" or a.key.startswith("%") for mono, _ in e.terms for a in mono):
            continue  # bounds are exact for affine expressions only
        e, extent = e.subst(p.hints), _extent(buffer).subst(p.hints).const
        if not e.symbols <= ranges.keys():
            continue
        low, high = e.bounds(ranges)
        if low is not None and low < 0:
            yield f"{name}[{e}] may be {low}"
        if high is not None and extent is not None and high >= extent:
            yield f"{name}[{e}] may be {high}, the storage has {extent} elements"


def stores_one_to_one(n: Loop, _: Program) -> Complaints:
    """The places of an affine store index must not collide."""
    if n.store_mode == "add" or not all(r.is_const for r in n.ranges):
        return
    for e in n.store_index:
        strides = [(e.coeff(v), r.as_int()) for v, r in zip(n.vars, n.ranges, strict=True)]
        known = [(abs(s.as_int()), r) for s, r in strides if s is not None and s.is_const]
        if len(known) < len(strides) or any(r == 0 for _, r in known):
            continue
        if not has_no_overlap([size for _, size in known], [stride for stride, _ in known]):
            yield f"store index {e} writes an element twice"


def _index_exprs(n: Loop) -> Iterator[tuple[int, Expr]]:
    for i, op in enumerate(n.body):
        if op.name in ("load", "masked_load"):
            yield i, op.attrs[1]
        elif op.name == "index":
            yield i, op.attrs[0]
    yield from ((len(n.body), e) for e in n.store_index)


def _size_symbols(p: Program) -> set[str]:
    return {s for b in p.buffers.values() for e in (*b.shape, *b.stride) for s in e.symbols}


def _extent(b: Buffer) -> Expr:
    if any(n == 0 for n in b.shape):
        return Expr.of(0)
    return sum((Expr.of(n - 1) * s for n, s in zip(b.shape, b.stride, strict=True)), Expr.of(1))


PROGRAM_RULES: list[Callable[[Program], Complaints]] = [
    defined_before_use, written_once, buffers_declared, mutations_are_arguments, outputs_are_legal, refs_in_bounds,
]  # fmt: skip
LOOP_RULES: list[Callable[[Loop, Program], Complaints]] = [
    spaces, ssa, arity, dtypes, result_dtypes, scopes, in_range, stores_one_to_one,
]  # fmt: skip
