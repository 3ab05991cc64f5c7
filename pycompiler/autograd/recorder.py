"""Record the ATen operators that run below autograd and functionalisation.

In: operators that reach the dispatch mode `Recorder` with FakeTensor arguments. Out: nodes of `Recorder.graph`, each
with ``meta["val"]`` (the FakeTensor, or the tuple of them, that the operator returned).
Example: ``with Recorder(fake_mode, table) as r: torch.add(a, b)`` leaves one ``aten.add.Tensor`` node in ``r.graph``.

Invariants: a FakeTensor that was seen once keeps its node for ever (nothing below functionalisation mutates), and is
kept alive by that node's meta, so ``id`` is a sound key. Equal pure calls give one node (value numbering).
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from pycompiler.autograd.kernels import recorded
from pycompiler.autograd.policies import Policy
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.autograd.views import is_view_op, view_parent, view_root
from pycompiler.ir import choices, late
from pycompiler.ir.effects import acts, ordered
from pycompiler.ir.expr import Expr
from pycompiler.ir.guards import own_place
from pycompiler.ir.kernels import is_asked
from pycompiler.ir.late import BINDS
from pycompiler.ir.modes import OwnMode
from pycompiler.ir.numbers import SYMBOLIC, Numbers, symbol_of, value_of
from pycompiler.ir.places import apart
from pycompiler.ir.propagate import propagate
from pycompiler.ir.registered import is_replaced, replaced
from pycompiler.ir.symbols import expr_of, hint_of, symbols_of

aten = torch.ops.aten
prim = torch.ops.prim

Decomposition = Callable[..., Any]

_MISSING = object()
_SMALL_CONSTANT = 1
_VECTOR = 16  # elements from which on `normal_` draws a vector at a time where memory is contiguous


class _NotFunctional(Exception):
    """A decomposition wanted to mutate, or gave another dtype; the operator is recorded whole instead."""


def tensors_in(args: Any) -> Iterator[torch.Tensor]:
    """Tensors in nested tuples, lists and dict values, in order."""
    if isinstance(args, torch.Tensor):
        yield args
    elif isinstance(args, (tuple, list)):
        for a in args:
            yield from tensors_in(a)
    elif isinstance(args, dict):
        for a in args.values():
            yield from tensors_in(a)


def identity(generator: torch.Generator) -> int:
    """What the dispatcher's objects of one generator have in common: it makes a new one for each call."""
    return generator._cdata  # type: ignore[attr-defined,no-any-return]


def is_dense(t: torch.Tensor) -> bool:
    """True when the strides of `t` are a permutation of contiguous ones (no overlap, no holes)."""
    expected = 1
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True), key=lambda at: (hint_of(at[0]), hint_of(at[1]))):
        if size == 1:
            continue
        if stride != expected:
            return t.numel() == 0
        expected *= size
    return True


def is_probably_dense(t: torch.Tensor) -> bool:
    """`is_dense` of today's sizes, which assumes nothing of others."""
    shape, stride = ([hint_of(n) for n in ns] for ns in (t.shape, t.stride()))
    return is_dense(torch.empty_strided(shape, stride, device="meta"))


def overlaps_itself(t: torch.Tensor, shape: Sequence[int] | None = None, stride: Sequence[int] | None = None) -> bool:
    """True for a tensor (or its view by `shape` and `stride`) that may have two elements in one place of memory."""
    shape, stride = (t.shape if shape is None else shape), (t.stride() if stride is None else stride)
    if all(type(n) is int for n in (*shape, *stride)):
        return not apart(shape, stride)
    if any(n == 0 for n in shape):
        return False
    reach: Any = 0
    steps = [(s, n) for n, s in zip(shape, stride, strict=True) if n > 1]
    for step, n in sorted(steps, key=lambda at: (hint_of(at[0]), hint_of(at[1]))):
        if step <= reach:
            return True
        reach += (n - 1) * step
    return False


def covers(t: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: Any = None) -> bool:
    """Whether all elements of the view by strides are elements of `t`: its memory may have others beside it, or between."""
    start = t.storage_offset() if offset is None else offset
    if any(n == 0 for n in shape):
        return True
    if start == t.storage_offset() and list(shape) == list(t.shape) and list(stride) == list(t.stride()):
        return True
    first: Any = start - t.storage_offset()
    last = first + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    return bool(first >= 0) and is_dense(t) and bool(last < t.numel())


def same_places(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether elements of two tensors of one shape lie alike: strides of dimensions with one element do not matter."""
    return a.numel() == 0 or all(n == 1 or s == t for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True))


@contextlib.contextmanager
def functional() -> Iterator[None]:
    """C++ functionalisation on: what is made inside is a functional wrapper, views stay views."""
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def plain(mode: FakeTensorMode) -> Iterator[None]:
    """Inside a trace: make FakeTensors of `mode` that are not recorded."""
    torch._disable_functionalization()  # type: ignore[no-untyped-call]
    try:
        with _disable_current_modes(), torch.no_grad(), mode:
            yield
    finally:
        torch._enable_functionalization(reapply_views=True)


class Recorder(OwnMode):
    """Dispatch mode that appends what it sees to an fx graph; see the module docstring."""

    def __init__(self, fake_mode: FakeTensorMode, decompositions: Mapping[OpOverload, Decomposition]) -> None:
        super().__init__()
        self.fake_mode = fake_mode
        self.decompositions = decompositions
        self.graph = fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self.source: fx.Node | None = None
        self._began: list[tuple[int, fx.Node]] = []  # numbers that autograd's next node had when sources began
        self.differentiates = False  # the forward is recorded, the gradients follow
        self.region: int | None = None  # of a checkpoint: what is recorded now is computed again
        self.policy: Policy | None = None  # of that checkpoint: what is saved all the same
        self._regions = itertools.count()
        self._node_of: dict[int, fx.Node] = {}
        self._constant_of: dict[int, FakeTensor] = {}
        self._seen: dict[Any, Any] = {}
        self._depth = 0
        self._replaced = replaced()
        self.through: tuple[fx.Node, tuple[Any, ...]] | None = None  # of the call being recorded: what it was a view of
        self.counts = False  # whether the program counts elements from the start of a storage
        self._open: list[OpOverload] = []  # operators being decomposed; one that a rule calls itself stays whole
        self._given: set[int] = set()  # ids of tensors that functionalisation holds
        self._last_placeholder: fx.Node | None = None
        self.numbers = Numbers(self.graph, {})
        self.to_bind: list[Any] = []  # symbols that the captured call bound, in order
        self._bound: list[Any] = []  # those that the operator being recorded has bound
        self._binds = 0  # how many operators have
        self._again = False  # whether what an operator gives has a size that was bound before
        self._known_bound: dict[Any, Any] = {}  # operator and argument -> what was bound of it

    # -- symbols that a call binds ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def binding(self) -> Iterator[None]:
        """Operators whose results depend on data give what they gave in capture."""
        mode: Any = self.fake_mode
        before, mode.binder = getattr(mode, "binder", None), self._bind
        try:
            yield
        finally:
            mode.binder = before

    def _bind(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        def new(kind: str, most: Any = None) -> Any:
            known = self._known_bound.get((func, id(args[0])))
            if known is not None and not self.to_bind:
                self._again = True
                return known
            if not self.to_bind:
                raise AutogradUnsupported("a result that depends on data", str(func), "the graph runs eagerly")
            self._bound.append(self.to_bind.pop(0))
            self._known_bound[func, id(args[0])] = self._bound[-1][0]
            return self._bound[-1][0]

        with self.fake_mode:
            return BINDS[func](new, *args, **kwargs)

    def _note_bound(self, node: fx.Node, out: Any) -> None:
        """Nodes that read the symbols: of a number its parts, of results sizes."""
        node.meta["binds"], bound, self._bound = True, self._bound, []
        self._binds += 1
        env: Any = symbols_of(bound[0][0])
        for number, names in bound:
            if len(names) == 2:
                for read, name in zip((late.positive, late.negative), names, strict=True):
                    self._symbol(self.graph.call_function(read, (node,)), name, env.int(Expr.sym(name)))
            elif isinstance(number, torch.SymFloat):
                self._symbol(node, names[0], number)
            else:
                dim, t = next((d, t) for t in tensors_in(out) for d, n in enumerate(t.shape) if _is(n, number))
                self._symbol(self.graph.call_function(late.size, (self._node_of[id(t)], dim)), names[0], number)

    def _symbol(self, node: fx.Node, name: str, number: Any) -> None:
        node.meta["val"], node.meta["bound"] = number, name
        self.numbers.symbols[name] = node

    def check(self, check: late.Check, values: Sequence[Any]) -> None:
        bound = self.numbers.symbols
        args = (
            bound[n] if n in check.symbols.bound else self._arg(v) for n, v in zip(check.names, values, strict=True)
        )
        node = self.graph.call_function(check, tuple(args))
        node.meta["val"] = None

    def next_region(self) -> int:
        return next(self._regions) if self.region is None else self.region

    # -- tensors and nodes ------------------------------------------------------------------------------------------

    def placeholder(self, name: str, value: Any) -> fx.Node:
        """A graph input after the inputs made so far, whatever was recorded meanwhile."""
        if self._last_placeholder is None:
            at = self.graph._root
        else:
            at = self._last_placeholder
        with self.graph.inserting_after(at):
            node = self.graph.placeholder(name)
        node.meta["val"] = value
        self._last_placeholder = node
        if (symbol := symbol_of(value)) is not None:
            self.numbers.symbols.setdefault(symbol, node)
        if isinstance(value, torch.Generator):
            self._node_of[identity(value)] = node
        if isinstance(value, torch.Tensor):
            self._node_of[id(value)] = node
            self._given.add(id(value))
        return node

    def node(self, value: torch.Tensor) -> fx.Node:
        """The node that computes `value`; a KeyError means that the tensor did not come from this trace."""
        return self._node_of[id(value)]

    def alias(self, value: torch.Tensor, node: fx.Node) -> None:
        """From now on `value` is what `node` computes (`node.meta` keeps it alive)."""
        self._node_of[id(value)] = node
        self._given.add(id(value))
        node.meta.setdefault("aliases", []).append(value)

    def copied(self, node: fx.Node) -> fx.Node:
        """A copy of what `node` computes, in memory of its own."""
        copy = self.graph.call_function(aten.clone.default, (node,), {})
        with plain(self.fake_mode):
            value = node.meta["val"].clone()
        copy.meta.update({**node.meta, "val": value})
        copy.meta.pop("aliases", None)
        self._node_of[id(value)] = copy
        return copy

    def constant(self, value: torch.Tensor) -> FakeTensor:
        """The FakeTensor that stands for a real tensor baked into the graph."""
        fake = self._constant_of.get(id(value))
        if fake is None:
            fake = self.fake_mode.from_tensor(value.detach(), static_shapes=True)
            self._bake(value, fake)
        return fake

    def _bake(self, value: torch.Tensor, fake: FakeTensor) -> fx.Node:
        if value.numel() == _SMALL_CONSTANT and value.layout is torch.strided:
            # A one-element constant is a fill, which a backend folds into its users.
            args = (list(value.shape), value.item())
            node = self.graph.call_function(
                aten.full.default, args, {"dtype": value.dtype, "device": value.device, "pin_memory": False}
            )
        else:
            name = f"_tensor_constant{len(self.constants)}"
            self.constants[name] = value
            node = self.graph.create_node("get_attr", name, (), {}, name=name)
        node.meta["val"] = fake
        node.meta["constant"] = value
        self._node_of[id(fake)] = node
        self._constant_of[id(value)] = fake
        return node

    # -- the mode ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is prim.device.default:
            return args[0].fake_device if isinstance(args[0], FakeTensor) else args[0].device
        if self._depth == 0:
            if self._replaced and is_replaced(func, self._replaced):
                raise AutogradUnsupported(
                    "an operator has a kernel of the program's", str(func), "the graph runs eagerly"
                )
            if self.differentiates:
                _refuse_gradient(func, args, kwargs or {})
        out = self._value(func, types, args, kwargs or {})
        if self._depth == 0 and self.policy is not None and self.policy.saves(func, args, kwargs or {}, out):
            for t in tensors_in(out):
                self._node_of[id(t)].meta["saved"] = True
        return self._separate(func, out) if self._depth == 0 else out

    def _separate(self, func: OpOverload, out: Any) -> Any:
        """`out` for functionalisation: each result is a tensor of its own, with its own version counter."""
        if isinstance(out, (list, tuple)):
            parts = [self._separate(func, o) for o in out]
            return parts if isinstance(out, list) else tuple(parts)
        if not isinstance(out, FakeTensor):
            return out
        if id(out) not in self._given:
            self._given.add(id(out))
        elif is_view_op(func):
            node = self._node_of[id(out)]
            out = self.fake_mode.dispatch(aten.alias.default, (), (out,), {})
            self.alias(out, node)
        else:
            node = self._node_of[id(out)]
            options = {"dtype": out.dtype, "device": out.device}
            shape = (list(out.shape), list(out.stride()))
            out = self.fake_mode.dispatch(aten.empty_strided.default, (), shape, options)
            self.alias(out, node)
        return out

    def _value(self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        pure, binds = not ordered(func), self._binds
        key: Any = None
        if pure:
            try:
                key = (func, self._key(args), self._key(tuple(kwargs.items())) if kwargs else ())
                known = self._seen.get(key, _MISSING)
                if known is not _MISSING:
                    return known
            except TypeError:
                pure = False
        fold = _FOLDS.get(func)
        if fold is not None:
            args = fold(self, *args)
            if len(args) == 1:
                return args[0]
        decompose = self.decompositions.get(func) if func not in self._open else None
        if decompose is not None and choices.active and not choices.taken("decomposition", lambda: self._named(func)):
            decompose = None
        if decompose is None and is_composite(func):
            decompose = func.decompose
        if func is aten.mul.Tensor and _is_spread(*args):
            decompose = _spread
        out = self._decomposed(func, decompose, args, kwargs) if decompose is not None else NotImplemented
        if out is NotImplemented:
            out = self._record(func, types, args, kwargs)
        if self.through is not None:
            self._node_of[id(out)].meta["through"], self.through = self.through, None
        if pure and func not in BINDS and self._binds == binds:
            self._seen[key] = out
        return out

    def begin(self, source: fx.Node) -> None:
        """What is recorded from now on is done for this node of the captured graph."""
        self.source = source
        if source.op in ("call_function", "call_method"):
            self._began.append((torch.autograd._get_sequence_nr(), source))

    def _folds(self) -> bool:
        """Whether the captured graph calls `unfold_backward` itself, or by a gradient that is asked for inside of it."""
        if self.source is not None and self.source.target in (aten.unfold_backward, aten.unfold_backward.default):
            return True
        node = torch._C._current_autograd_node()
        return node is not None and node.name().startswith("Unfold")

    def _place(self) -> Mapping[str, Any]:
        """The `meta` that names the program's line; of a gradient, that of the operator whose gradient it is."""
        if self.source is not None:
            return self.source.meta
        node = torch._C._current_autograd_node() if self.differentiates else None
        if node is None:
            return {}
        k = bisect.bisect_right(self._began, node._sequence_nr(), key=lambda row: row[0]) - 1
        return self._began[k][1].meta if k >= 0 else {}

    def _named(self, func: OpOverload) -> str:
        """An operator with the program's line that is being traced."""
        user = self._place().get("user")
        what = "for the gradient of " if self.differentiates and self.source is None else ""
        return f"{func} ({what}{own_place(user)})" if user else str(func)

    def _key(self, value: Any) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            return self._node_of[id(value)]
        if kind is tuple or kind is list or kind is torch.Size:
            return tuple([self._key(v) for v in value])
        if kind in SYMBOLIC:
            return (kind, value_of(value))
        if kind is float and value == 0.0:
            return (float, str(value))  # 0.0 and -0.0 compare equal
        if isinstance(value, torch.Tensor):
            raise TypeError("a tensor that is not fake has no key")
        return (kind, value)

    def _decomposed(
        self, func: OpOverload, decompose: Decomposition, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        mark = self.graph._root.prev
        self._depth += 1
        self._open.append(func)
        try:
            with self:
                out = decompose(*args, **kwargs)
            if self._depth == 1 and isinstance(out, torch.Tensor) and is_asked(func):
                self._same_dtypes(func, args, kwargs, out)
            return out
        except (_NotFunctional, ZeroDivisionError):  # torch's rules divide by sizes, which may be 0
            if self._depth > 1:
                raise
            while self.graph._root.prev is not mark:
                self.graph.erase_node(self.graph._root.prev)
            self._seen.clear()  # it may name erased nodes
            self.numbers.known.clear()
            return NotImplemented
        finally:
            self._open.pop()
            self._depth -= 1

    def _same_dtypes(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Raises where operands of several dtypes are promoted otherwise by a decomposition than by the operator.

        Of operators that programs call, with one result.  Statistics are wider here than a kernel's own, and the kernels behind
        functions (gradients' formulas among them) do not take such operands, or their shape functions are wrong about dtypes.
        """
        if len({t.dtype for t in tensors_in((args, kwargs))}) < 2:
            return
        whole = propagate(self.fake_mode, func, (), args, kwargs)
        if [t.dtype for t in tensors_in(whole)] != [t.dtype for t in tensors_in(out)]:
            raise _NotFunctional(str(func))

    def laid_out(self, value: torch.Tensor, strides: Sequence[int], *, exactly: bool = False) -> torch.Tensor:
        """`value` with `strides`, where they are those of a dense tensor (`exactly`: of dimensions of one element too); the
        mode is on."""
        with _disable_current_modes():
            like = torch.empty_strided(value.shape, strides, device="meta")
        if same_places(value, like):
            return value.as_strided(value.shape, strides) if exactly else value
        if not is_dense(like):
            return value
        order = sorted(range(like.dim()), key=lambda d: -hint_of(strides[d]))
        back = [order.index(d) for d in range(like.dim())]
        return value.permute(order).clone(memory_format=torch.contiguous_format).permute(back)

    def _record(self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func._schema.is_mutable:
            if self._depth:
                raise _NotFunctional(str(func))
            raise AutogradUnsupported("an operator mutates its arguments unseen", str(func), "the graph runs eagerly")
        if func is aten.normal_functional.default and args[0].numel() >= _VECTOR and not is_dense(args[0]):
            # eager's kernel of the CPU draws otherwise into memory with gaps than into the copy that functionalisation makes
            if args[0].device.type == "cpu":
                raise AutogradUnsupported(
                    "normal_ of a view with gaps", str(args[0].stride()), "the graph runs eagerly"
                )
        if func is aten.unfold_backward.default and not (self.differentiates or self._folds()):
            # functionalisation's inverse of `unfold`; it forgets the elements that no window covers
            raise AutogradUnsupported("a write through windows", "unfold", "the graph runs eagerly")
        if func is aten.as_strided_scatter.default and not self.differentiates and overlaps_itself(args[0], *args[2:4]):
            # functionalisation's inverse of `as_strided`: old elements would be written over new ones in their place
            raise AutogradUnsupported("a write through a view", "as_strided that overlaps", "the graph runs eagerly")
        if func is aten.as_strided_scatter.default and not self.differentiates and not covers(args[0], *args[2:]):
            # the same inverse: what lies beside the elements that the graph has would not be written
            raise AutogradUnsupported(
                "a write through a view", "as_strided beside its tensor", "the graph runs eagerly"
            )
        if func is aten.lift_fresh.default or func is aten.lift_fresh_copy.default:
            return self._lift(func, types, args[0])
        if args and isinstance(args[0], (complex, float, int)) and is_view_op(func):  # of a number there are no views
            args = (torch.tensor(args[0], dtype=_AS_TENSOR.get(type(args[0]))), *args[1:])
        if func is aten.view_as_real.default and _is_conjugate(self.node(args[0])):  # `resolve_conj` is not seen here
            args = (self._record(aten.clone.default, types, args, {}),)
        real = [t for t in tensors_in((args, kwargs)) if not isinstance(t, FakeTensor)]
        if real:
            fakes = {id(t): self.constant(t) for t in real}
            args, kwargs = fx.node.map_aggregate((args, kwargs), lambda a: fakes.get(id(a), a))
        try:
            out = propagate(self.fake_mode, func, types, args, kwargs)
        except ZeroDivisionError as e:  # torch's shape functions divide by sizes (huber_loss_backward)
            raise AutogradUnsupported("an empty tensor", f"{func} of one", "none: the graph runs eagerly") from e
        if not any(True for _ in tensors_in(out)) and not acts(func) and not self._bound:
            return out
        if isinstance(out, torch.Tensor) and id(out) in self._node_of:
            return out
        node = self.graph.create_node(
            "call_function", recorded(func), self._arg(args), self._arg(kwargs), name=func.overloadpacket.__name__
        )
        self._attach(node, out)
        if self._bound:
            self._note_bound(node, out)
        if self._again:
            node.meta["binds"], self._again = True, False
            self._binds += 1
        return out

    def _lift(self, func: OpOverload, types: Sequence[type], value: torch.Tensor) -> torch.Tensor:
        if isinstance(value, FakeTensor):
            return value
        if id(value) not in self._constant_of:
            fake: Any = self.fake_mode.dispatch(func, types, (value,), {})
            self._bake(value, fake)
        return self._constant_of[id(value)]

    def _arg(self, value: Any) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            return self._node_of[id(value)]
        if kind is tuple:
            return tuple([self._arg(v) for v in value])
        if kind is list:
            return [self._arg(v) for v in value]
        if kind is dict:
            return {k: self._arg(v) for k, v in value.items()}
        if kind is torch.Generator:
            if self.differentiates:
                raise AutogradUnsupported(
                    "a generator that a backward draws from", str(value), "the graph runs eagerly"
                )
            return self._node_of[identity(value)]
        if isinstance(value, torch.Size):
            return [self._arg(v) for v in value]
        return self.numbers.node(value) if isinstance(value, SYMBOLIC) else value

    def _attach(self, node: fx.Node, out: Any) -> None:
        node.meta["val"] = (
            tuple(out) if isinstance(out, tuple) else out
        )  # torch's named results have no importable type
        if self.region is not None:
            node.meta["again"] = self.region
        if self.differentiates:
            node.meta["gradient"] = True
        if self.source is not None:
            node.meta["source"] = self.source.name
        place = self._place()
        for key in ("stack_trace", "user"):
            if key in place:
                node.meta[key] = place[key]
        if isinstance(out, torch.Tensor):
            self._node_of[id(out)] = node
            return
        for i, item in enumerate(out if isinstance(out, (tuple, list)) else ()):
            if isinstance(item, (torch.Tensor, tuple, list)):  # a list among the results of another library's operator
                self._attach(self.graph.create_node("call_function", operator.getitem, (node, i)), item)


def _is_conjugate(node: fx.Node) -> bool:
    """Whether the memory that `node`'s value is a view of holds the conjugate of it."""
    found = False
    while (parent := view_parent(node)) is not None:
        found ^= node.target is aten._conj.default
        node = parent[0]
    return found


_SPREADS = ("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0")
"""Nodes of autograd's that give a gradient to all elements that are the one that was found."""


def _is_spread(mask: Any, share: Any) -> bool:
    """Whether a product is such a gradient.  The CPU's formula for plain tensors fills in the share: a product with the mask is
    no number where that is infinite, or where nothing was found."""
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool or mask.device.type != "cpu":
        return False
    node = torch._C._current_autograd_node()
    return node is not None and node.name().startswith(_SPREADS)


def _spread(mask: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, share, 0)


def _is(size: Any, number: Any) -> bool:
    return isinstance(size, torch.SymInt) and expr_of(size) == expr_of(number)


def _refuse_gradient(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises for what eager's nodes refuse when their gradient is asked for, and functionalisation allows: writes of floats
    to integers, which it casts (the gradient of `addcdiv` by an integer)."""
    if func is not aten._to_copy.default or not isinstance(args[0], torch.Tensor):  # a number, where vmap makes it one
        return
    given, wanted = args[0].dtype, kwargs.get("dtype")
    if wanted is not None and not torch.can_cast(given, wanted):
        raise AutogradUnsupported("no gradient", f"{given} is written to {wanted}", "the graph runs eagerly")


def _fold_view(recorder: Recorder, x: torch.Tensor, size: Sequence[int]) -> tuple[Any, ...]:
    """A view of a view is a view of the base; of the base's own shape it is the base."""
    node = recorder.node(x)
    if node.target is aten.view.default:
        base = node.args[0].meta["val"]  # type: ignore[union-attr]
        if base.is_contiguous():
            x = base
    return (x,) if tuple(x.shape) == tuple(size) else (x, size)


def _fold_permute(recorder: Recorder, x: torch.Tensor, dims: Sequence[int]) -> tuple[Any, ...]:
    """A permutation of a permutation is one permutation; the identity is nothing."""
    rank = x.dim()
    dims = [d % rank for d in dims]
    node = recorder.node(x)
    if node.target is aten.permute.default:
        inner: Any = node.args[1]
        x, dims = node.args[0].meta["val"], [inner[d] for d in dims]  # type: ignore[union-attr]
    return (x,) if dims == list(range(rank)) else (x, dims)


def _fold_strided(
    recorder: Recorder, x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: Any = None
) -> tuple[Any, ...]:
    """Strides of the storage: a view by them is one of the tensor that owns it, whatever views lie between, which a stage may
    copy.  Without an offset that of `x` is meant, which is only known where no input owns the storage."""
    if offset is not None and not recorder.differentiates:
        recorder.counts = True
    node = recorder.node(x)
    root = view_root(node)
    base: torch.Tensor = root.meta["val"]
    start = x.storage_offset() if offset is None else offset
    if root.op != "placeholder" and not recorder.differentiates and not covers(base, size, stride, start):
        # what an input became by a write stands for its elements only, not for what lies beside them in its memory
        raise AutogradUnsupported("a view of a written tensor", "as_strided beside it", "the graph runs eagerly")
    if root is node:
        return x, size, stride, offset
    if offset is None and root.op == "placeholder":
        while node.target is aten.as_strided.default and node.args[3] is None:
            node = node.args[0]  # type: ignore[assignment]
        if node.target is not aten.as_strided.default:
            return node.meta["val"], size, stride, None
        start = offset = node.args[3]  # type: ignore[assignment]
    recorder.through = recorder.node(x), (size, stride, offset)
    if base.dtype != x.dtype or _is_conjugate(node):
        raise AutogradUnsupported(
            "strides of memory that is of another type", str(base.dtype), "the graph runs eagerly"
        )
    return base, size, stride, start


def _fold_strided_write(
    recorder: Recorder, x: torch.Tensor, value: torch.Tensor, size: Any, stride: Any, offset: Any = None
) -> tuple[Any, ...]:
    if offset is not None and not recorder.differentiates:
        recorder.counts = True
    return x, value, size, stride, offset


# Operator → simpler arguments for it, or the one value that it amounts to. Their recorded arguments are normal (d >=
# 0).
_FOLDS: dict[OpOverload, Callable[..., tuple[Any, ...]]] = {
    aten.view.default: _fold_view,
    aten.permute.default: _fold_permute,
    aten.as_strided.default: _fold_strided,
    aten.as_strided_scatter.default: _fold_strided_write,
}

# What numbers are where tensors are expected.
_AS_TENSOR = {complex: torch.complex128, float: torch.float64}

_composite: dict[OpOverload, bool] = {}


def is_composite(func: OpOverload) -> bool:
    known = _composite.get(func)
    if known is None:
        known = func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd) and not any(
            func.has_kernel_for_dispatch_key(k)
            for k in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA, torch._C.DispatchKey.Meta)
        )
        _composite[func] = known
    return known
