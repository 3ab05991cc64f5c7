"""Lowers a functional ATen graph to the loop IR.

In: a GraphModule whose nodes call ATen operators and carry `meta["val"]` (FakeTensors).  Out: `Program`.

    gm = make_fx(f, tracing_mode="fake")(x)
    program = lower(gm)

Each operator becomes values without code (views, constants), Loops that fill one fresh buffer each, or an Extern call
of its ATen kernel.  Buffers have the strides of the fake tensors, so an Extern's operands are laid out as in the trace.
Exception: a packed convolution gives its result channels last, and the loops behind it keep that layout (`channels_last`).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from pycompiler.ir import choices, phases
from pycompiler.ir.guards import own_frame, own_place
from pycompiler.ir.loops import Buffer, Extern, Loop, Program, Reduction, Ref, checks, refuses
from pycompiler.ir.printer import print_program
from pycompiler.ir.verify import reads_of, refs_of
from pycompiler.logs import artifact
from pycompiler.lowering.body import BodyBuilder, Val
from pycompiler.lowering.registry import ANY_DTYPE, LOWERINGS
from pycompiler.lowering.values import (
    Exprs,
    Value,
    channels_last_strides,
    contiguous_strides,
    expand,
    hints_of,
    mapped,
    restrided,
    select,
    to_expr,
    to_exprs,
)
from pycompiler.operators.functional_twins import original, with_written
from pycompiler.operators.memory_overlap import has_no_overlap
from pycompiler.operators.operator_facts import divides, facts_of, written_by
from pycompiler.symbolic.expr import ZERO, Expr, SymbolicError
from pycompiler.symbolic.hints import hinted, likely
from pycompiler.symbolic.number_nodes import value_of
from pycompiler.symbolic.symbolic_node import Real
from pycompiler.symbolic.symbols import Symbols, symbols_of
from pycompiler.torch_compat import interrupts

perf_hints = artifact("perf_hints")
log_program = artifact("ir_pre_fusion")

# Types that kernels compute with; complex, quantised and other tensors are left to ATen.
COMPUTABLE = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
}  # fmt: skip


LARGE_BYTES = 1 << 26  # a result this large may not fit into memory: errors name its line

# Folds that are defined over no elements.
FOLDS_OF_EMPTY = frozenset(("sum", "prod", "any", "all"))


class LoweringError(Exception):
    """A part of the graph can become neither loops nor an ATen call."""


class Lowering:
    """State of one lowering: the program so far, and the value of each fx node.  `fake`: the current node's result."""

    def __init__(self, gm: fx.GraphModule, name: str) -> None:
        self.gm = gm
        self.program = Program([], [], [], name=name)
        self.env: dict[fx.Node, Any] = {}
        self.node: fx.Node
        self.external: Set[str] = frozenset()
        self.updates: Any = None  # `partial_updates.Updates`, computed on demand
        self._placed: dict[fx.Node, Value] = {}  # nodes -> operands of Externs
        self.filled: set[str] = set()  # buffers that loops fill
        self.channels_last: set[str] = set()  # buffers that are channels last, whatever the trace has
        # operands of padded products (`matmul_padding.padded`): what is padded -> the last loop that fills the buffer
        self.padded: dict[tuple[Any, ...], Loop] = {}
        self.symbols: Symbols | None = None
        self._reals: dict[Real, Real] = {}  # floats computed from symbols -> their names
        self.replaced: Mapping[str, Expr] = {}  # constants of symbols when the lowering began

    @functools.cached_property
    def given(self) -> frozenset[str]:
        """The buffers of inputs; placeholders are lowered first."""
        return frozenset(b.name for b in self.program.inputs if b is not None)

    @property
    def fake(self) -> Any:
        return self.node.meta["val"]

    @property
    def op(self) -> Any:
        """The operator of the current node."""
        return self.node.target

    def fake_of(self, position: int) -> Any:
        """The fake tensor of the current node's argument at `position`."""
        argument: Any = self.node.args[position]
        return argument.meta["val"]

    # -- symbolic sizes -------------------------------------------------------------------------------------------

    def at_least(self, a: Expr, b: Expr | int) -> bool:
        """Whether a >= b: a known fact, or true for the hints and then assumed for later calls."""
        least, most = (a - b).bounds({})
        if least is not None and least >= 0:
            return True
        if most is not None and most < 0:
            return False
        return self.symbols.at_least(a, b) if self.symbols is not None else (likely(a - b) or 0) >= 0

    def least(self, a: Expr, b: Expr) -> Expr:
        return a if self.at_least(b, a) else b

    def real(self, value: Any) -> Any:
        """The name of a float that the program computes; a plain float or a name is returned unchanged."""
        if not isinstance(value, Real) or value.name is not None:
            return value
        if value not in self._reals:
            name = f"real{len(self._reals)}"
            self._reals[value], self.program.reals[name] = Real.named(name), value
        return self._reals[value]

    # -- buffers --------------------------------------------------------------------------------------------------

    def declare(self, name: str, dtype: torch.dtype, shape: Exprs, stride: Exprs, device: torch.device) -> Buffer:
        buffer = Buffer(name, dtype, shape, stride, device)
        self.program.buffers[name] = buffer
        return buffer

    def fresh(self, dtype: torch.dtype, shape: Exprs, stride: Exprs, device: torch.device) -> Buffer:
        return self.declare(f"b{len(self.program.buffers)}", dtype, shape, stride, device)

    def buffer_for(
        self, fake: torch.Tensor, dtype: torch.dtype | None = None, like: Sequence[Value | None] = ()
    ) -> Buffer:
        """A buffer with the strides of `fake`, or channels last if one of `like` is so against the trace."""
        shape = to_exprs(fake.shape)
        stride = to_exprs(fake.stride())
        if self.channels_last and self.keeps_channels_last(fake, like):
            return self.channels_last_buffer(fake, dtype)
        if not is_dense(shape, stride):
            if all(e.is_const for e in (*shape, *stride)) and not is_injective(shape, stride):
                raise SymbolicError("a result whose elements share memory")
            stride = dense_like(shape, stride)
        return self.fresh(dtype or fake.dtype, shape, stride, fake.device)

    def channels_last_buffer(self, fake: torch.Tensor, dtype: torch.dtype | None = None) -> Buffer:
        """A buffer of rank 4 whose layout is channels last."""
        shape = to_exprs(fake.shape)
        buffer = self.fresh(dtype or fake.dtype, shape, channels_last_strides(shape), fake.device)
        self.channels_last.add(buffer.name)
        return buffer

    def keeps_channels_last(self, fake: torch.Tensor, like: Sequence[Value | None]) -> bool:
        """Whether the result is stored channels last: as an operand is, unless the caller gets it."""
        if fake.dim() != 4 or any(user.op == "output" for user in self.node.users):
            return False
        return any(v is not None and self.is_channels_last(v) for v in like)

    def is_channels_last(self, v: Value) -> bool:
        """Whether v is a whole buffer that is channels last against the trace."""
        whole = v.buffer in self.channels_last and v.rank == 4 and v.offset == 0
        return whole and v.stride == channels_last_strides(v.shape)

    def value_of(self, buffer: Buffer) -> Value:
        return Value.strided(buffer.name, buffer.shape, buffer.stride, buffer.dtype, buffer.device)

    # -- nodes ----------------------------------------------------------------------------------------------------

    def pointwise(self, emit: Callable[[BodyBuilder, list[Expr]], Val], buffer: Buffer) -> Value:
        """A Loop that fills `buffer` with emit(body, index)."""
        index, names, ranges = loop_space(buffer.shape, buffer.stride)
        body = BodyBuilder(dict(zip(names, ranges, strict=True)))
        result = emit(body, index).to(buffer.dtype)
        self.add(Loop((buffer,), names, ranges, tuple(body.ops), (result.at,), (_at(index, buffer.stride),),
                      origin=(self.node.name,)))  # fmt: skip
        return self.value_of(buffer)

    def reduce(self, kind: str, v: Value, dims: Sequence[int], emit: Callable[[Val], Val], outs: Sequence[Buffer],
               keepdim: bool = False) -> tuple[Value, ...]:  # fmt: skip
        """Folds emit(element of v) over `dims`; each of `outs` has v's shape without them (or 1 there)."""
        if kind not in FOLDS_OF_EMPTY and not all(
            self.at_least(v.shape[d], 1) for d in dims if v.shape[d].const is None
        ):
            raise SymbolicError(f"a {kind} over a dimension that may be empty")
        out = outs[0]
        index, names, ranges = loop_space(out.shape, out.stride)
        kept = iter(index if not keepdim else [i for d, i in enumerate(index) if d not in dims])
        full: list[Expr] = []
        inner: list[tuple[str, Expr]] = []
        for d, n in enumerate(v.shape):
            if d not in dims:
                full.append(next(kept))
            elif n == 1:
                full.append(ZERO)
            else:
                inner.append((f"r{len(inner)}", n))
                full.append(Expr.sym(inner[-1][0]))
        body = BodyBuilder({**dict(zip(names, ranges, strict=True)), **dict(inner)})
        result = emit(v.load(body, full))
        if not inner:
            return self._single(kind, body, result, names, ranges, index, outs)
        fold = Reduction(kind, tuple(r for r, _ in inner), tuple(n for _, n in inner))
        self.add(Loop(tuple(outs), names, ranges, tuple(body.ops), (result.at,),
                      tuple(_at(index, b.stride) for b in outs), fold, origin=(self.node.name,)))  # fmt: skip
        return tuple(self.value_of(b) for b in outs)

    def _single(self, kind: str, body: BodyBuilder, v: Val, names: tuple[str, ...], ranges: Exprs, index: Sequence[Expr],
                outs: Sequence[Buffer]) -> tuple[Value, ...]:  # fmt: skip
        """A fold over one element: the element itself.

        Its position is 0 and its distance to the mean is 0.  A sum starts at zero, which changes the sign of a negative
        zero.
        """
        results: tuple[Val, ...] = (v,)
        if kind == "sum" and v.dtype.is_floating_point:
            results = (v + 0.0,)
        elif kind in ("argmax", "argmin"):
            results = (body.const(0, torch.int64),)
        elif kind == "welford":
            apart = v - v  # NaN for NaN and infinities
            results = (v, apart * apart)
        self.add(Loop(tuple(outs), names, ranges, tuple(body.ops), tuple(r.at for r in results),
                      tuple(_at(index, b.stride) for b in outs), origin=(self.node.name,)))  # fmt: skip
        return tuple(self.value_of(b) for b in outs)

    def add(self, node: Loop | Extern) -> None:
        self.program.nodes.append(node)
        if isinstance(node, Loop):
            self.filled.update(b.name for b in node.out)

    def copy(self, v: Value, stride: Exprs | None = None) -> Value:
        """v in fresh memory; broadcast dimensions of `stride` (0) stay broadcast."""
        stride = contiguous_strides(v.shape) if stride is None else stride
        wide = [n != 1 and s == 0 for n, s in zip(v.shape, stride, strict=True)]
        base = v
        for d, broadcast in enumerate(wide):
            if broadcast:
                base = narrowed(base, d)
        by_aten = v.dtype not in COMPUTABLE and base.buffer is not None
        if not self.lies_apart(base.shape, stride):  # no loop may write it
            base, by_aten = self.realised(base), True
        fresh = self.fresh(v.dtype, base.shape, stride, v.device)
        filled = self.copy_by_aten(base, fresh) if by_aten else self.pointwise(base.load, fresh)
        return expand(filled, v.shape) if any(wide) else filled

    def lies_apart(self, shape: Exprs, stride: Exprs) -> bool:
        """Whether no two elements share a place (gaps are allowed).  For symbolic sizes the hints decide, and are assumed."""
        if all(e.is_const for e in (*shape, *stride)) or is_dense(shape, stride):
            return is_injective(shape, stride)
        span = Expr.of(1)
        for d in reversed(stride_order(shape, stride)):
            if shape[d] != 1:
                if not self.at_least(stride[d], span):
                    return False
                span = span + (shape[d] - 1) * stride[d]
        return True

    def copy_by_aten(self, v: Value, buffer: Buffer) -> Value:
        """v in `buffer`, for a dtype that no kernel computes."""
        empty, copy, origin = torch.ops.aten.empty_strided.default, torch.ops.aten.copy_.default, (self.node.name,)
        layout = {"dtype": buffer.dtype, "device": buffer.device}
        self.add(Extern(empty, (buffer.shape, buffer.stride), layout, (buffer,), origin=origin))
        filled = self.value_of(buffer)
        self.add(Extern(copy, (filled.ref(), v.ref()), {}, (None,), (buffer.name,), origin))
        return filled

    def realised(self, v: Value, stride: Exprs | None = None) -> Value:
        """v as strided memory: itself, or a copy (with `stride`, when given, which v's own must equal)."""
        if v.buffer is not None and (stride is None or self.lies_so(v, stride)):
            return v
        return self.copy(v, stride)

    def lies_so(self, v: Value, stride: Exprs) -> bool:
        """Whether v has these strides.  Unknown strides are compared by their hints, which are then assumed.

        The trace has `max(n, 1)` where n was not known to be positive.
        """
        if same_strides(v.shape, v.stride, stride):
            return True
        if self.symbols is None:
            return False
        pairs = [(a, b) for n, a, b in zip(v.shape, v.stride, stride, strict=True) if n != 1 and a != b]
        if any(a.const is not None and b.const is not None or likely(a) != likely(b) for a, b in pairs):
            return False
        asked = self.symbols.known if self.symbols.is_settled else self.symbols.decide
        return all(asked("==", a - b) for a, b in pairs)

    def on_device(self, v: Value, device: torch.device) -> Value:
        """v where a loop on `device` can read it; a rank-0 CPU tensor may meet tensors of another device."""
        if v.number is not None or v.device == device or v.emit is not None:
            return v
        buffer = self.fresh(v.dtype, v.shape, contiguous_strides(v.shape), device)
        op = torch.ops.aten._to_copy.default
        self.add(Extern(op, (v.ref(),), {"device": device}, (buffer,), origin=(self.node.name,)))
        return self.value_of(buffer)

    # -- the ATen kernel ------------------------------------------------------------------------------------------

    def placed(self, node: fx.Node) -> Value:
        """A tensor argument of an Extern, laid out as in the trace."""
        v = self.env[node]
        if node not in self._placed:
            self._placed[node] = self.realised(v, to_exprs(node.meta["val"].stride()))
        return self._placed[node]

    def call(
        self,
        op: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        fake: Any,
        mutates: tuple[str, ...] = (),
        *,
        is_packed: bool = False,
    ) -> Any:
        """An Extern of `op` on refs and constants; its results are as `fake`.  `is_packed`: they are contiguous."""
        outs: list[Buffer | None] = []

        def make(f: Any) -> Any:
            if isinstance(f, torch.Tensor):
                shape = to_exprs(f.shape)
                stride = contiguous_strides(shape) if is_packed else to_exprs(f.stride())
                buffer = self.fresh(f.dtype, shape, stride, f.device)
                outs.append(buffer)
                return self.value_of(buffer)
            if isinstance(f, list | tuple):
                return tuple(make(x) for x in f)
            outs.append(None)
            return f

        result = make(fake) if op._schema.returns else None
        self.add(Extern(op, tuple(args), dict(kwargs), tuple(outs), mutates, (self.node.name,)))
        return result

    def extern(self, op: Any = None) -> Any:
        """The current node as an Extern, or as another overload `op` with the same arguments."""
        node: Any = self.node
        op = op or _fresh_results(node.target)
        refs = fx.map_arg((node.args, node.kwargs), self._argument)
        mutated: list[str] = []
        target: Value | None = None
        for given in written_by(op, node.args, node.kwargs):
            for n in given if isinstance(given, list | tuple) else [given]:
                if isinstance(n, fx.Node):
                    mutated.append(self._written(n))
                    target = target or self.env[n]
        returned = op._schema.returns
        if mutated and returned and all(r.alias_info is not None and r.alias_info.is_write for r in returned):
            self.add(Extern(op, tuple(refs[0]), dict(refs[1]), (None,) * len(returned), tuple(mutated), (node.name,)))
            return target
        copied = op is not node.target  # the copying variants of views return contiguous results
        return self.call(op, refs[0], refs[1], node.meta.get("val"), tuple(mutated), is_packed=copied)

    def on_copies(self, op: torch._ops.OpOverload) -> Any:
        """The current node, a twin (`operators/functional_twins.py`), as an Extern of its operator, on copies of the
        tensors it writes."""
        node, copies = self.node, dict[str, Value]()

        def argument(x: Any) -> Any:
            return fx.map_arg(x, self._argument)

        def copied(n: fx.Node) -> Any:
            copy = self.copy(self.env[n], to_exprs(n.meta["val"].stride()))
            assert copy.buffer is not None
            copies[copy.buffer] = copy
            return copy.ref()

        args, kwargs, _ = with_written(op, node.args, node.kwargs, copied)
        fakes = node.meta["val"] if isinstance(node.meta["val"], (list, tuple)) else [node.meta["val"]]
        fake = fakes[0] if len(op._schema.returns) == 1 else tuple(fakes[: len(op._schema.returns)])
        found = self.call(op, argument(tuple(args)), argument(kwargs), fake, tuple(copies))
        results = [] if found is None else [found] if len(op._schema.returns) == 1 else [*found]
        return (*results, *copies.values()) if len(results) + len(copies) > 1 else next(iter(copies.values()))

    def _argument(self, node: fx.Node) -> Any:
        return (
            with_traced_strides(self.placed(node).ref(), node) if isinstance(self.env[node], Value) else self.env[node]
        )

    def _written(self, node: fx.Node) -> str:
        v = self.env[node]
        if v.buffer is None or self.placed(node) is not v:
            raise LoweringError(f"{self.node.format_node()} writes into {node}, which has no memory of its own here")
        name: str = v.buffer
        return name


# -- strides ---------------------------------------------------------------------------------------------------------


def stride_order(shape: Sequence[Expr], stride: Sequence[Expr]) -> list[int]:
    """Dimensions by decreasing stride, according to the hints; unchanged if a stride has no hint."""
    known = [likely(s) for s in stride]
    if None in known:
        return list(range(len(shape)))
    return sorted(range(len(shape)), key=lambda d: -(known[d] or 0))


def loop_space(shape: Exprs, stride: Exprs) -> tuple[list[Expr], tuple[str, ...], Exprs]:
    """(index per dimension, variables, ranges) of the loops over a buffer, largest stride outermost."""
    index = [ZERO] * len(shape)
    order = [d for d in stride_order(shape, stride) if shape[d] != 1]
    for k, d in enumerate(order):
        index[d] = Expr.sym(f"i{k}")
    return index, tuple(f"i{k}" for k in range(len(order))), tuple(shape[d] for d in order)


def _at(index: Sequence[Expr], stride: Sequence[Expr]) -> Expr:
    return sum((i * s for i, s in zip(index, stride, strict=True)), ZERO)


def same_strides(shape: Sequence[Expr], a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    if any(n == 0 for n in shape):
        return True
    return all(n == 1 or s == t for n, s, t in zip(shape, a, b, strict=True))


def with_traced_strides(ref: Ref, node: fx.Node) -> Ref:
    """`ref`, the value of `node`, with the strides of the trace.

    Kernels accept any stride for a dimension of at most one element.  But callers see eager's strides, and ATen kernels
    derive the strides of their results from the arguments.
    """
    stride = to_exprs(node.meta["val"].stride())
    return replace(ref, stride=stride) if same_strides(ref.shape, ref.stride, stride) else ref


def is_dense(shape: Exprs, stride: Exprs) -> bool:
    """Whether the strides cover memory without gaps or overlaps."""
    step = Expr.of(1)
    for d in reversed(stride_order(shape, stride)):
        if shape[d] == 1:
            continue
        if stride[d] != step:
            return any(n == 0 for n in shape)
        step = step * shape[d]
    return True


def is_injective(shape: Exprs, stride: Exprs) -> bool:
    """Whether no two elements share a place (there may be gaps)."""
    if not all(e.is_const for e in (*shape, *stride)):
        return is_dense(shape, stride)
    return has_no_overlap([n.as_int() for n in shape], [s.as_int() for s in stride])


def dense_like(shape: Exprs, stride: Exprs) -> Exprs:
    """Dense strides in the same order of dimensions."""
    result = [Expr.of(1)] * len(shape)
    step = Expr.of(1)
    for d in reversed(stride_order(shape, stride)):
        result[d] = step
        step = step * (shape[d] if shape[d] != 0 else 1)
    return tuple(result)


def narrowed(v: Value, dim: int) -> Value:
    """The first position along `dim`, kept as a dimension of size 1."""
    first = select(v, dim, ZERO)
    shape = (*v.shape[:dim], Expr.of(1), *v.shape[dim + 1 :])
    if first.buffer is not None:
        return restrided(v, shape, v.stride, v.offset)
    return mapped(first, shape, lambda i: [*i[:dim], *i[dim + 1 :]])


# -- the graph -------------------------------------------------------------------------------------------------------

_SCALAR_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    operator.add: operator.add, operator.sub: operator.sub, operator.mul: operator.mul, operator.mod: operator.mod,
    operator.floordiv: operator.floordiv, operator.neg: operator.neg,
}  # fmt: skip


def lower(gm: fx.GraphModule, *, name: str = "graph", external: Set[str] = frozenset()) -> Program:
    """The program of a functional ATen graph.  Operators without a lowering, and the nodes named in `external`, become
    Externs, with a perf hint."""
    while True:
        low = Lowering(gm, name)
        low.external = external
        with hinted(low.program.hints):
            _run(low)
        if low.symbols is None or low.replaced == low.symbols.replaced:  # else a symbol became a constant meanwhile
            break
    _drop_dead(low.program)
    if log_program.enabled:
        log_program("%s", print_program(low.program))
    return low.program


def _run(low: Lowering) -> None:
    gm = low.gm
    for node in gm.graph.nodes:
        interrupts.check()
        low.node, before = node, len(low.program.nodes)
        if node.op == "placeholder":
            low.env[node] = _placeholder(low, node)
        elif node.op == "get_attr":
            low.env[node] = _attribute(low, node)
        elif node.op == "call_function":
            low.env[node] = _call(low, node)
        elif node.op == "output":
            low.program.outputs = [_output(low, a) for a in pytree.tree_leaves(node.args[0])]
        else:
            raise LoweringError(f"unexpected node in an ATen graph: {node.format_node()}")
        made = [n for n in low.program.nodes[before:] if isinstance(n, Loop)]
        if node.meta.get("user") and (any(checks(op) for loop in made for op in loop.body) or _is_large(node)):
            low.program.users[node.name] = own_place(node.meta["user"])


def _is_large(node: fx.Node) -> bool:
    """Whether a result may not fit into memory."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (
        value._has_symbolic_sizes_strides or value.numel() * value.element_size() >= LARGE_BYTES
    )


def _placeholder(low: Lowering, node: fx.Node) -> Any:
    fake = node.meta.get("val")
    k = len(low.program.inputs)
    if not isinstance(fake, torch.Tensor):
        low.program.inputs.append(None)
        if isinstance(fake, torch.SymInt):
            _record_hints(low, (fake,))
            name = to_expr(fake).symbol
            if name is not None:
                low.program.numbers.setdefault(name, k)
        if isinstance(fake, torch.SymFloat) and (name := value_of(fake).name) is not None:
            low.program.numbers.setdefault(name, k)
            low.program.floats.add(name)
            return value_of(fake)
        return to_expr(fake) if isinstance(fake, int | torch.SymInt) and not isinstance(fake, bool) else fake
    _record_hints(low, (*fake.shape, *fake.stride()))
    buffer = low.declare(f"in{k}", fake.dtype, to_exprs(fake.shape), to_exprs(fake.stride()), fake.device)
    low.program.inputs.append(buffer)
    return low.value_of(buffer)


def _record_hints(low: Lowering, sizes: Sequence[Any]) -> None:
    """Record the hints of the symbols."""
    for n in sizes:
        if isinstance(n, torch.SymInt):
            low.program.hints.update(hints_of(n))
            if low.symbols is None and (found := symbols_of(n)) is not None:
                low.symbols, low.replaced = found, found.replaced


def _attribute(low: Lowering, node: fx.Node) -> Any:
    value: Any = low.gm
    for part in str(node.target).split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        return value
    if value.numel() == 1 and value.device.type == "cpu" and not value.dtype.is_complex and not value.is_quantized:
        shape = to_exprs(value.shape)
        return Value.constant(value.item(), shape, value.dtype, value.device)
    for name, known in low.program.constants.items():
        if known is value:
            return low.value_of(low.program.buffers[name])
    buffer = low.declare(f"c{len(low.program.constants)}", value.dtype, to_exprs(value.shape), to_exprs(value.stride()),
                         value.device)  # fmt: skip
    low.program.constants[buffer.name] = value.detach()
    return low.value_of(buffer)


def _call(low: Lowering, node: fx.Node) -> Any:
    args: Any
    kwargs: Any
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: low.env[n])
    if node.target is operator.getitem:
        return args[0][args[1]]
    if isinstance(node.meta.get("val"), torch.SymInt):
        return to_expr(node.meta["val"])
    if isinstance(node.meta.get("val"), torch.SymFloat) and symbols_of(node.meta["val"]) is not None:
        return low.real(value_of(node.meta["val"]))
    if node.target in _SCALAR_FUNCTIONS:
        return _SCALAR_FUNCTIONS[node.target](*args)
    if not isinstance(node.target, torch._ops.OpOverload):
        raise LoweringError(f"{node.format_node()}: the target is not an ATen operator")
    if (op := original(node.target)) is not None:
        return low.on_copies(op)
    handler = LOWERINGS.get(node.target)
    if not node.users and (
        facts_of(node.target).raises or divides(node.target, node.args, [node.meta.get("val")])
    ):  # wanted only for its error, which ATen's kernel raises
        return low.extern()
    if node.name in low.external or (choices.active and handler is not None and not _taken_by_bisector(node)):
        _hint(node, "no kernel")
    elif handler is not None and (node.target in ANY_DTYPE or not _foreign_dtypes(node)):
        result = _lowered(low, handler, args, kwargs)
        if result is not NotImplemented:
            return result
        _hint(node, "no lowering for these arguments")
    else:
        _hint(node, "no lowering")
    return low.extern()


def _taken_by_bisector(node: fx.Node) -> bool:
    """Whether a bisector lets the node be lowered."""
    user = node.meta.get("user")
    what = "for the gradient of " if node.meta.get("gradient") else ""
    where = f" ({what}{own_frame(user).place}: {own_frame(user).line})" if user else ""
    return choices.step_enabled("operator", lambda: f"{node.name}: {node.target}{where}", key=node)


def _lowered(low: Lowering, handler: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The result of a lowering.  NotImplemented, with all its nodes removed, if it needs a symbolic size as a constant."""
    nodes, placed = len(low.program.nodes), len(low._placed)
    try:
        return _as_traced(handler(low, *args, **kwargs), low.fake)
    except SymbolicError as needed:
        _hint(low.node, str(needed))
    except (TypeError, AttributeError):  # a float that is not known
        if not any(isinstance(a, Real) for a in pytree.tree_leaves((args, kwargs))):
            raise
    del low.program.nodes[nodes:]
    while len(low._placed) > placed:
        low._placed.popitem()
    return NotImplemented


def _as_traced(result: Any, fake: Any) -> Any:
    """A lowering's results with the symbolic sizes of the trace, so that equal sizes have one expression."""
    if isinstance(result, Value) and isinstance(fake, torch.Tensor):
        shape = to_exprs(fake.shape)
        if result.shape == shape:
            return result
        if len(shape) != result.rank or any(likely(a) != likely(b) for a, b in zip(shape, result.shape, strict=True)):
            raise SymbolicError(f"sizes {result.shape} where the trace has {shape}")
        if any((a == 1) != (b == 1) for a, b in zip(shape, result.shape, strict=True)):
            raise SymbolicError(f"sizes {result.shape}, broadcast in another way than {shape}")
        return replace(result, shape=shape)
    if isinstance(result, tuple) and isinstance(fake, list | tuple):
        return tuple(_as_traced(r, f) for r, f in zip(result, fake, strict=False))
    return result


def _fresh_results(op: Any) -> Any:
    """The operator itself, or the copying variant of an operator that returns views of its arguments."""
    if not facts_of(op).gives_views:
        return op
    namespace, _, name = op._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), f"{name}_copy", None)
    if packet is None or op._overloadname not in packet.overloads():
        raise LoweringError(f"{op} returns views of its arguments and has neither a lowering nor a copying variant")
    return getattr(packet, op._overloadname)


def _hint(node: Any, why: str) -> None:
    if not facts_of(node.target).kept:
        phases.artefact("hint", (node, why))
        perf_hints("%s has %s: it runs as ATen's kernel (node %s)", node.target, why, node.name)


def _foreign_dtypes(node: fx.Node) -> bool:
    """Complex, quantised, sparse and other tensors are left to ATen."""
    tensors = [n.meta.get("val") for n in (*node.all_input_nodes, node)]
    return any(
        isinstance(t, torch.Tensor) and (t.dtype not in COMPUTABLE or t.layout != torch.strided) for t in tensors
    )


def _output(low: Lowering, a: Any) -> Ref | int | tuple[Any] | None:
    if not isinstance(a, fx.Node):
        return None if a is None else (a,)
    value = low.env[a]
    if a.op == "placeholder":
        return [n for n in low.gm.graph.nodes if n.op == "placeholder"].index(a)
    if isinstance(value, Value):
        return with_traced_strides(low.realised(value, to_exprs(a.meta["val"].stride())).ref(), a)
    if isinstance(value, Expr):
        return (value.as_int() if value.is_const else value,)
    return None if value is None else (value,)


def _drop_dead(program: Program) -> None:
    """Remove loops that check nothing and whose results are not read."""
    needed = {r.buffer for r in refs_of(program.outputs)}
    kept: list[Loop | Extern] = []
    for node in reversed(program.nodes):
        if isinstance(node, Extern) or any(b.name in needed for b in node.out) or refuses(node.body):
            kept.append(node)
            needed |= set(reads_of(node))
    program.nodes = kept[::-1]
    used = needed | {b.name for n in kept for b in n.out if b is not None} | {b.name for b in program.inputs if b}
    program.constants = {k: v for k, v in program.constants.items() if k in needed}
    program.buffers = {k: v for k, v in program.buffers.items() if k in used}
