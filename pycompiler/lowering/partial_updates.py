"""In-place writes to a part of an input: a static cache of keys and values, a counter in a table.

In: a node whose value ends in `aten.copy_(input, value)` and equals the input except for the part that the node writes
(`index_copy`, `slice_scatter`, ...).  Out: a copy of the input, and the operator that writes in place into that copy.
Scheduling drops the copy if the input itself may be written (`scheduling/stores.py`).  Indices are checked by loops of
their own, once per index, before the writes.  Example (`k` is an input):

    index_copy = aten.index_copy(k, 1, at, x)         loop check: wrap_index at 2048
    copy_(k, index_copy)                        =>    loop b3 = k;  extern index_copy_(b3, 1, at, x) mutates b3;  copy_(k, b3)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from pycompiler.ir import choices
from pycompiler.ir.loops import Extern, Loop
from pycompiler.lowering import values
from pycompiler.lowering.body import BodyBuilder, Val
from pycompiler.lowering.checked_indices import INTEGERS, position
from pycompiler.lowering.graph import COMPUTABLE, Lowering, is_injective, narrowed, same_strides
from pycompiler.lowering.values import Value, contiguous_strides, normal_dim, to_exprs
from pycompiler.lowering.views import slice_of, wrapped
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.hints import likely

aten = torch.ops.aten
COPY = aten.copy_.default

# Functional operators and their in-place variants.  Each takes the written tensor first.
WRITES: dict[Any, Any] = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
}
# Operators that replace a view by a tensor, and the view operator.
PARTS: dict[Any, Any] = {aten.slice_scatter.default: aten.slice.Tensor, aten.select_scatter.default: aten.select.int}
# An input with fewer elements is written as a whole, in the kernel that computes the rest.
LARGE = 2048
PART = 4  # a part larger than 1/PART of its input is left to a kernel


@dataclass
class Updates:
    """The partial updates of a graph.

    - `nodes`: their values are an input except for a part.
    - `inner`: such a node -> the node that computes the part it writes, itself a partial update.
    - `looks`: the loops that check indices.
    """

    nodes: set[fx.Node] = field(default_factory=set)
    inner: dict[fx.Node, fx.Node] = field(default_factory=dict)
    looks: dict[Any, Loop | Extern] = field(default_factory=dict)


def updates_of(low: Lowering) -> Updates:
    if low.updates is None:
        low.updates = find(low)
    found: Updates = low.updates
    return found


def find(low: Lowering) -> Updates:
    """The partial updates of inputs in a graph."""
    found = Updates()
    for copy in low.gm.graph.find_nodes(op="call_function", target=COPY):
        target, value = copy.args
        chain: list[fx.Node] = []
        node = _origin(value)
        while node is not target and _is_update(node, target):
            chain.append(node)
            node = _origin(node.args[0])
        if node is target and target.op == "placeholder":
            found.nodes.update(chain)
            whole = bool(low.external) or choices.active  # a single node may be left to ATen
            for outer in chain if not whole else ():
                while (inner := _inner(outer)) is not None:
                    found.inner[outer] = inner
                    outer = inner
    return found


def _origin(node: Any) -> Any:
    """The node of this value, ignoring as_strided calls that keep the layout."""
    while isinstance(node, fx.Node) and node.target is aten.as_strided.default and _lies_alike(node, node.args[0]):
        node = node.args[0]
    return node


def _lies_alike(node: fx.Node, source: Any) -> bool:
    a, b = node.meta["val"], source.meta["val"]
    offset = node.args[3] if len(node.args) > 3 else None
    return not offset and a.shape == b.shape and a.stride() == b.stride()


def _is_update(node: object, target: fx.Node) -> bool:
    """Whether a node's value is its first argument except for a part, with a dtype and size that are worth it."""
    if not isinstance(node, fx.Node) or not (node.target in WRITES or node.target in PARTS):
        return False
    to, value = target.meta["val"], node.meta["val"]
    if value.dtype not in COMPUTABLE or value.dtype != to.dtype or value.shape != to.shape or value.device != to.device:
        return False
    if (likely(_count(to)) or 0) < LARGE:
        return False
    written = _written(node)
    return bool(written) and written * PART <= (likely(_count(to)) or 0)


def _written(node: fx.Node) -> int:
    """The number of written elements, by hints; 0 if there are none, or the call may write other elements."""
    inner = _inner(node)
    if inner is not None:
        return _written(inner)
    source = _source(node)
    return 0 if source is None else likely(_count(source)) or 0


def _source(node: fx.Node) -> torch.Tensor | None:
    """A tensor with as many elements as are written."""
    a = node.args
    if node.target in PARTS:
        return _value(a[1])
    if node.target is aten.index_put.default:
        indices: Any = a[1]
        given = [_value(i) for i in indices if i is not None]
        return _value(a[2]) if given and all(i is not None and i.dtype in INTEGERS for i in given) else None
    at = 3 if node.target in (aten.index_copy.default, aten.index_add.default) else 2
    return _value(a[at])


def _value(node: object) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


def _count(t: torch.Tensor) -> Expr:
    count = Expr.of(1)
    for n in to_exprs(t.shape):
        count = count * n
    return count


def _inner(outer: fx.Node) -> fx.Node | None:
    """The node that computes the written part, if its value is that same part except for a part of its own."""
    inner = _origin(outer.args[1]) if outer.target in PARTS else None
    if not isinstance(inner, fx.Node) or not (inner.target in WRITES or inner.target in PARTS):
        return None
    view: Any = inner.args[0]
    same = isinstance(view, fx.Node) and view.target is PARTS[outer.target] and view.args[1:] == outer.args[2:]
    if not same or view.args[0] is not outer.args[0] or view.kwargs or outer.kwargs:
        return None
    alone = all(len(n.users) == 1 for n in _chain(outer.args[1], inner))
    return inner if alone and not any(_is_symbolic(n) for n in (outer, inner, view)) and _written(inner) else None


def _chain(node: Any, end: fx.Node) -> Iterator[fx.Node]:
    while node is not end:
        yield node
        node = node.args[0]
    yield end


def _is_symbolic(node: fx.Node) -> bool:
    return bool(node.meta["val"]._has_symbolic_sizes_strides) or any(
        isinstance(a, fx.Node) and not isinstance(a.meta.get("val"), torch.Tensor) for a in node.args
    )


def updated(low: Lowering, x: Value) -> Value | None:
    """The current node's value, computed in a copy of `x`; None if it is no partial update of an input."""
    found, node = updates_of(low), low.node
    if node in found.inner.values():
        return x  # not read: the outer node computes it
    if node not in found.nodes or x.buffer is None or x.offset != 0:
        return None
    held = low.program.buffers[x.buffer]
    stride = to_exprs(low.fake.stride())
    if held.shape != x.shape or not is_injective(held.shape, held.stride):
        return None
    if not same_strides(x.shape, x.stride, held.stride) or not same_strides(x.shape, stride, held.stride):
        return None
    copy = low.pointwise(x.load, low.fresh(held.dtype, held.shape, held.stride, held.device))
    _write(low, found, node, copy)
    return copy


def _write(low: Lowering, found: Updates, node: fx.Node, to: Value) -> None:
    """Emit the writes of `node` into `to`."""
    if node.target in WRITES:
        _check(low, found, node, to)
        rest, kwargs = fx.map_arg((node.args[1:], node.kwargs), low._argument)
        call, arguments = WRITES[node.target], (to.ref(), *rest)
        low.add(Extern(call, arguments, dict(kwargs), (None,), (_buffer(to),), (node.name,), checked=True))
        return
    part = _part(low, node, to)
    inner = found.inner.get(node)
    if inner is not None:
        _write(low, found, inner, part)
        return
    source = low.realised(low.env[_copied(node.args[1])])
    low.add(Extern(COPY, (part.ref(), source.ref()), {}, (None,), (_buffer(to),), (node.name,)))


def _copied(node: Any) -> fx.Node:
    """The source of `aten.copy(view, x)`, which broadcasts and converts x to the view: the in-place copy does the same."""
    given: fx.Node = node.args[1] if node.target is aten.copy.default and _value(node.args[1]) is not None else node
    return given


def _buffer(v: Value) -> str:
    assert v.buffer is not None
    return v.buffer


def _part(low: Lowering, node: fx.Node, to: Value) -> Value:
    given: list[Any] = [low.env[a] if isinstance(a, fx.Node) else a for a in node.args[2:]]
    if node.target is aten.select_scatter.default:
        dim, index = given
        return values.select(to, dim, wrapped(low, index, to.shape[normal_dim(dim, to.rank)]))
    defaults: list[Any] = [0, None, None, 1]
    dim, start, end, step = given + defaults[len(given) :]
    first, length = slice_of(low, to, dim, start, end, step)
    return values.slice_dim(to, dim, first, length, step)


# ---- indices ------------------------------------------------------------------------------------------------------


def _check(low: Lowering, found: Updates, node: fx.Node, to: Value) -> None:
    """Emit loops that check a call's indices.  A GPU reports index errors late in any case."""
    if to.device.type != "cpu":
        return
    a: Any = node.args
    if node.target is aten.index_put.default:
        given = [(i, d, "index") for d, i in enumerate(a[1]) if i is not None]
    else:
        given = [(a[2], normal_dim(a[1], to.rank), "element")]
    for index, dim, rule in given:
        look = _narrow(low.placed(index))
        key = (look.buffer, look.shape, look.stride, look.offset, to.shape[dim], rule)
        if not any(n is found.looks.get(key) for n in low.program.nodes):
            _check_loop(low, look, to.shape[dim], rule, dim)
            found.looks[key] = low.program.nodes[-1]


def _narrow(v: Value) -> Value:
    """The value without broadcast dimensions, so that each element of memory is visited once."""
    for d, (n, s) in enumerate(zip(v.shape, v.stride, strict=True)):
        if n != 1 and s == 0:
            v = narrowed(v, d)
    return v


def _check_loop(low: Lowering, index: Value, size: Expr, rule: str, dim: int) -> None:
    def emit(body: BodyBuilder, i: Sequence[Expr]) -> Val:
        return body.index(position(body, index.load(body, i), size, rule, dim))

    low.pointwise(emit, low.fresh(torch.int64, index.shape, contiguous_strides(index.shape), index.device))
