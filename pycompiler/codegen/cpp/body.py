"""Loop bodies as C++ statements, each value once.

In: a stage and the scopes that it may write to.  Out: lines in those scopes and the names of its results.  Values that
do not depend on inner variables go to the row scope, before the inner loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from pycompiler.codegen.cpp import ops
from pycompiler.codegen.cpp.index import c_index
from pycompiler.codegen.cpp.types import HALF, bitcast, cast, constant, ctype, load, stored
from pycompiler.ir.kernel import LOADS, Stage, Unsupported
from pycompiler.ir.loops import INDEX_RULES, Buffer, Op
from pycompiler.ir.plan import WITHOUT_NUMBERS, WRONG_INDEX
from pycompiler.ir.target import Target
from pycompiler.symbolic.expr import Expr


@dataclass
class CodeBlock:
    """Lines of one block.  `known`: key of a computed value -> its C name."""

    lines: list[str] = field(default_factory=list)
    known: dict[tuple[object, ...], str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)  # variables declared in it


@dataclass
class CppFunction:
    """The common part of all nests of one C++ function.

    - `shared`: buffers in the memory of an input that the function reads too.  All accesses go through one pointer, so
      that the other pointers have no aliases.
    - `scalars`: the symbols of sizes.
    """

    buffers: Mapping[str, Buffer]
    pointers: dict[str, str]  # buffer -> C name
    target: Target
    shared: Mapping[str, str] = field(default_factory=dict)
    counter: int = 0
    may_fail: bool = False
    scalars: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.pointers |= {b: self.pointers[target] for b, target in self.shared.items()}

    def fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"


@dataclass
class Context:
    """The locations of a nest's values.

    - `names`: variables -> C names.
    - `inner`: variables of inner loops.
    - `held`: buffers whose value at this point is in a variable.
    - `scratch`: buffers stored in a row array.
    """

    function: CppFunction
    names: dict[str, str]
    ranges: dict[str, Expr]
    inner: set[str]
    row: CodeBlock
    held: dict[str, str] = field(default_factory=dict)
    scratch: dict[str, str] = field(default_factory=dict)
    scratch_at: str = "0"
    column_at: dict[str, str] = field(default_factory=dict)  # position in the array of a column fold
    staged: dict[tuple[str, Expr], str] = field(default_factory=dict)  # loads that a tile holds -> place in the tile
    scalar_only: bool = False  # the pass cannot be vectorised
    flags: dict[str, int] = field(default_factory=dict)  # flags of checks in the pass -> error sites

    def index(self, e: Expr, local: Mapping[str, str] | None = None) -> str:
        return c_index(e, {**self.names, **local} if local else self.names, self.ranges)


class BodyWriter:
    """Writes one stage's body.  `inside`: the innermost scope (the row scope itself for row stages)."""

    def __init__(self, context: Context, stage: Stage, inside: CodeBlock) -> None:
        self.c, self.stage, self.inside = context, stage, inside
        self.value: list[str] = []
        self.exact: list[torch.dtype | None] = []

    def write(self) -> list[str]:
        """The names of the results."""
        for op in self.stage.loop.body:
            self.value.append(self.op(op))
            self.exact.append(self.exactly(op))
        return [self.value[r] for r in self.stage.loop.results]

    def local(self, e: Expr) -> dict[str, str]:
        """C text of the indirect symbols in an index.

        gcc 12 gathers at -1 for an index 1 that it knows to be a bool.  PYC_KEPT hides the value from it
        (`tests/codegen/test_arithmetic.py`).
        """
        return {s: f"PYC_KEPT((int64_t){self.value[int(s[1:])]})" for s in e.symbols if s.startswith("%")}

    def scope_for(self, args: list[str], exprs: list[Expr]) -> CodeBlock:
        """The row scope if the value does not vary inside it, else the inner one."""
        row = self.c.row
        if self.inside is row:
            return row
        for e in exprs:
            if e.symbols & self.c.inner or any(v in self.inside.names for v in self._values_in(e)):
                return self.inside
        return self.inside if any(a in self.inside.names for a in args) else row

    def _values_in(self, e: Expr) -> list[str]:
        return [self.value[int(s[1:])] for s in e.symbols if s.startswith("%")]

    def define(self, key: tuple[object, ...], text: str, kind: str, scope: CodeBlock) -> str:
        for s in (self.c.row, self.inside):
            if key in s.known:
                return s.known[key]
        name = self.c.function.fresh("t")
        scope.lines.append(f"const {kind} {name} = {text};")
        scope.known[key] = name
        scope.names.add(name)
        return name

    def op(self, op: Op) -> str:
        if op.name == "const":
            return constant(op.attrs[0], op.dtype)
        if op.name == "index":
            return self.index_value(op)
        if op.name in ("load", "masked_load"):
            return self.load(op)
        if op.name == "wrap_index":
            return self.wrapped(op)
        args = [self.value[a] for a in op.args]
        dtypes = [self.stage.loop.body[a].dtype for a in op.args]
        if op.name == "cast" and op.dtype in HALF and self.exact[op.args[0]] == op.dtype:
            return args[0]
        if op.name == "bitcast" and self.exact[op.args[0]] == dtypes[0]:
            text = bitcast(args[0], dtypes[0], op.dtype, exact=True)
        else:
            text = ops.pointwise(op.name, args, dtypes, op.dtype)
        if text in args:
            return text
        scope = self.scope_for(args, [])
        if op.name in ops.SCALAR_ONLY and ctype(dtypes[0]).kind == "int":
            self.may_fail(scope)
        return self.define((text, op.dtype), text, ctype(op.dtype).compute, scope)

    def exactly(self, op: Op) -> torch.dtype | None:
        """bf16 or f16 if the value is exactly such a number, in a float."""
        if op.name in (*LOADS, "cast", "const", "bitcast") and op.dtype in HALF:
            return op.dtype
        if op.name in ("where", "maximum", "minimum"):
            a, b = (self.exact[k] for k in op.args[-2:])
            return a if a == b else None
        kept = op.name in ("neg", "abs", "copysign") or (op.name == "cast" and op.dtype == torch.float32)
        return self.exact[op.args[0]] if kept else None

    def may_fail(self, scope: CodeBlock) -> None:
        """Note that the code sets the error code, which a vector loop cannot do."""
        self.c.function.may_fail = True
        self.c.scalar_only |= scope is self.inside

    def index_value(self, op: Op) -> str:
        e: Expr = op.attrs[0]
        text = f"({ctype(op.dtype).compute})({self.c.index(e, self.local(e))})"
        return self.define((text, op.dtype), text, ctype(op.dtype).compute, self.scope_for([], [e]))

    def wrapped(self, op: Op) -> str:
        """A checked index: its value is in range from here on."""
        size: Expr = op.attrs[0]
        value = self.value[op.args[0]]
        if size == 1 and not INDEX_RULES[op.attrs[1]].wraps and self.scope_for([value], []) is not self.c.row:
            return self.flagged(value, error_site(op))
        call = "pyc_wrap_index" if INDEX_RULES[op.attrs[1]].wraps else "pyc_index"
        text = f"{call}({value}, {self.c.index(size, self.local(size))}, {error_site(op)}, &error)"
        scope = self.scope_for([value], [size])
        self.may_fail(scope)
        return self.define((text,), text, "int64_t", scope)

    def flagged(self, value: str, site: int) -> str:
        """An index that can only be 0.  A vector loop sets a flag for any other value, and the code after it reports
        the error."""
        if ("flag", value, site) not in self.inside.known:
            flag = self.c.function.fresh("wrong")
            self.inside.lines.append(f"{flag} |= {value} != 0;")
            self.inside.known["flag", value, site] = flag
            self.c.flags[flag] = site
            self.c.function.may_fail = True
        return "0"

    def load(self, op: Op) -> str:
        kept = self.kept(op)
        return self.memory(op) if kept is None else self.masked(op, kept)

    def kept(self, op: Op) -> str | None:
        """The element if the nest holds it: in a variable, or in an array of the row or of the tile; else None."""
        name, index = op.attrs[0], op.attrs[1]
        if name in self.c.held:
            return self.c.held[name]
        if name in self.c.scratch:
            place = f"{self.c.scratch[name]}[{self.c.column_at.get(name, self.c.scratch_at)}]"
        elif (name, index) in self.c.staged and op.name == "load":
            place = self.c.staged[name, index]
        else:
            return None
        return self.define((place,), load(op.dtype, place), ctype(op.dtype).compute, self.inside)

    def masked(self, op: Op, value: str) -> str:
        """`value` where the mask of the load is true."""
        if op.name != "masked_load":
            return value
        guard, other = (self.value[a] for a in op.args)
        text = f"{guard} ? {value} : {other}"
        return self.define((text, op.dtype), text, ctype(op.dtype).compute, self.scope_for([guard, value, other], []))

    def memory(self, op: Op) -> str:
        name, index = op.attrs[0], op.attrs[1]
        args = [self.value[a] for a in op.args]
        scope = self.scope_for(args, [index])
        guard = args[0] if op.name == "masked_load" else None
        at = self.address(name, index, scope, guard)
        text = load(self.c.function.buffers[name].dtype, f"{self.c.function.pointers[name]}[{at}]")
        if guard is not None:
            text = f"{guard} ? {text} : {args[1]}"
        return self.define((name, text, op.dtype), text, ctype(op.dtype).compute, scope)

    def in_range(self, symbol: str) -> bool:
        """Whether an index symbol is a loop variable, a size, or a checked value."""
        return not symbol.startswith("%") or self.stage.loop.body[int(symbol[1:])].name == "wrap_index"

    def address(self, name: str, index: Expr, scope: CodeBlock, guard: str | None) -> str:
        """C text of a position in a buffer; indirect ones are checked (and only where the guard is true)."""
        text = self.c.index(index, self.local(index))
        if all(self.in_range(s) for s in index.symbols) and storage_extent(self.c.function.buffers[name]) != 0:
            return text
        self.may_fail(scope)
        at = checked_index(self.c, index, self.local(index), name)
        if guard is not None:
            at = f"{guard} ? {at} : 0"
        return self.define((name, at), at, "int64_t", scope)


def error_site(op: Op) -> int:
    """The error site of a checked index, as far as it is known here (`ir.plan.KernelErrors`)."""
    _, rule, dim = op.attrs
    key = WRONG_INDEX + list(INDEX_RULES).index(rule)
    return key | dim << 8 if dim < 16 else key + WITHOUT_NUMBERS


def checked_index(c: Context, index: Expr, local: Mapping[str, str], name: str) -> str:
    """`index` with its indirect part checked.

    A single indirect value is compared with the largest one that stays inside the buffer for all loop variables.
    Otherwise the whole index is compared with the storage.
    """
    extent = storage_extent(c.function.buffers[name])
    if extent == 0:
        raise Unsupported(f"indirect access to {name}, which is empty")
    indirect = [s for s in index.symbols if s.startswith("%")]
    if len(indirect) == 1:
        (s,) = indirect
        stride = index.coeff(s)
        if stride is not None and stride.is_const and stride.as_int() > 0:
            rest = index.subst({s: 0})
            low, high = rest.bounds(c.ranges)
            if low == 0 and high is not None and extent.is_const:
                limit = (extent.as_int() - 1 - high) // stride.as_int() + 1
                return c.index(index, {s: f"pyc_checked({local[s]}, {max(limit, 0)}, &error)"})
    return f"pyc_checked({c.index(index, local)}, {c.index(extent)}, &error)"


def storage_extent(b: Buffer) -> Expr:
    """Number of elements from a buffer's first to its last."""
    extent = Expr.of(1)
    for n, s in zip(b.shape, b.stride, strict=True):
        if n == 0:
            return Expr.of(0)
        extent = extent + (n - 1) * s
    return extent


def store(buffer: Buffer, place: str, value: str, dtype: torch.dtype, exact: torch.dtype | None = None) -> str:
    """A store.  `exact` (`BodyWriter.exactly`): a value that is exactly a number of its dtype needs no second rounding,
    and keeps the bits of a NaN that is only moved."""
    if dtype == buffer.dtype == exact:
        return f"{place} = pyc_narrow_{ctype(dtype).storage}({value});"
    if dtype != buffer.dtype:
        value = cast(value, dtype, buffer.dtype)
    return f"{place} = {stored(buffer.dtype, value)};"
