"""Record the ATen operators that run below autograd and functionalisation.

In: operators that reach the dispatch mode `Recorder` with FakeTensor arguments. Out: nodes of `Recorder.graph`, each
with ``meta["val"]`` (the FakeTensor, or the tuple of them, that the operator returned).

Example: ``with Recorder(fake_mode, table) as r: torch.add(a, b)`` leaves one ``aten.add.Tensor`` node in ``r.graph``.

Invariants: a recorded FakeTensor keeps its node for ever (nothing below functionalisation writes in place).  The node's
meta keeps the FakeTensor alive, so ``id`` is a sound key. Equal pure calls give one node (value numbering).
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

from pycompiler.autograd.checkpoint_policies import PolicyCall
from pycompiler.autograd.kernel_substitutes import substitute_of
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.autograd.views import is_view_op, view_parent, view_root
from pycompiler.ir import choices
from pycompiler.ir.guards import own_place
from pycompiler.operators.kernel_type_checks import has_kernel_checks
from pycompiler.operators.memory_overlap import has_no_overlap
from pycompiler.operators.operator_facts import facts_of
from pycompiler.operators.propagate import propagate
from pycompiler.operators.registered_kernels import is_replaced, replaced
from pycompiler.symbolic import unbacked_symbols
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.number_nodes import SYMBOLIC, Numbers, symbol_of, value_of
from pycompiler.symbolic.symbols import expr_of, hint_of, symbols_of
from pycompiler.symbolic.unbacked_symbols import BINDS
from pycompiler.torch_compat.dispatch_modes import OwnMode

aten = torch.ops.aten
prim = torch.ops.prim

Decomposition = Callable[..., Any]

_MISSING = object()
_SMALL_CONSTANT = 1
_VECTOR = 16  # elements from which on `normal_` draws a vector at a time into contiguous memory


class _NotFunctional(Exception):
    """A decomposition tried to write in place, or returned another dtype; the operator is recorded whole instead."""


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


def generator_identity(generator: torch.Generator) -> int:
    """An identity shared by all Python objects of one generator; the dispatcher creates a new object for each call."""
    return generator._cdata  # type: ignore[attr-defined,no-any-return]


def is_dense(t: torch.Tensor) -> bool:
    """Whether the strides of `t` are a permutation of contiguous ones (no overlap, no gaps)."""
    expected = 1
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True), key=lambda at: (hint_of(at[0]), hint_of(at[1]))):
        if size == 1:
            continue
        if stride != expected:
            return t.numel() == 0
        expected *= size
    return True


def is_probably_dense(t: torch.Tensor) -> bool:
    """`is_dense` for the hints of the sizes, without assumptions."""
    shape, stride = ([hint_of(n) for n in ns] for ns in (t.shape, t.stride()))
    return is_dense(torch.empty_strided(shape, stride, device="meta"))


def overlaps_itself(t: torch.Tensor, shape: Sequence[int] | None = None, stride: Sequence[int] | None = None) -> bool:
    """Whether a tensor (or its view by `shape` and `stride`) may have two elements in one place of memory."""
    shape, stride = (t.shape if shape is None else shape), (t.stride() if stride is None else stride)
    if all(type(n) is int for n in (*shape, *stride)):
        return not has_no_overlap(shape, stride)
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
    """Whether all elements of a strided view are elements of `t`; its memory may hold others beside or between them."""
    start = t.storage_offset() if offset is None else offset
    if any(n == 0 for n in shape):
        return True
    if start == t.storage_offset() and list(shape) == list(t.shape) and list(stride) == list(t.stride()):
        return True
    first: Any = start - t.storage_offset()
    last = first + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    return bool(first >= 0) and is_dense(t) and bool(last < t.numel())


def same_places(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether elements of two tensors of one shape have the same places; strides of dimensions with one element do not matter."""
    return a.numel() == 0 or all(n == 1 or s == t for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True))


@contextlib.contextmanager
def functional() -> Iterator[None]:
    """Context manager for C++ functionalisation: tensors created inside are functional wrappers, views stay views."""
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def unrecorded_fakes(mode: FakeTensorMode) -> Iterator[None]:
    """Context manager inside a trace: create FakeTensors of `mode` without recording."""
    torch._disable_functionalization()  # type: ignore[no-untyped-call]
    try:
        with _disable_current_modes(), torch.no_grad(), mode:
            yield
    finally:
        torch._enable_functionalization(reapply_views=True)


class Recorder(OwnMode):
    """Dispatch mode that appends each operator to an fx graph; see the module docstring."""

    def __init__(self, fake_mode: FakeTensorMode, decompositions: Mapping[OpOverload, Decomposition]) -> None:
        super().__init__()
        self.fake_mode = fake_mode
        self.decompositions = decompositions
        self.graph = fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self.source: fx.Node | None = None
        self._began: list[tuple[int, fx.Node]] = []  # sequence numbers of autograd's next node when sources began
        self.differentiates = False  # the forward is recorded, the gradients follow
        self.region: int | None = None  # the current checkpoint: nodes recorded now are recomputed in the backward
        self.policy: PolicyCall | None = None  # the policy of that checkpoint: exceptions that are saved
        self._regions = itertools.count()
        self._node_of: dict[int, fx.Node] = {}
        self._constant_of: dict[int, FakeTensor] = {}
        self._seen: dict[Any, Any] = {}
        self._depth = 0
        self._replaced = replaced()
        # for the call being recorded: the tensor that its result views
        self.through: tuple[fx.Node, tuple[Any, ...]] | None = None
        self.counts = False  # whether the program counts elements from the start of a storage
        self._open: list[OpOverload] = []  # operators being decomposed; an operator that its own rule calls stays whole
        self._given: set[int] = set()  # ids of tensors held by functionalisation
        self._last_placeholder: fx.Node | None = None
        self.numbers = Numbers(self.graph, {})
        self.to_bind: list[Any] = []  # unbacked symbols of the captured call, in order
        self._bound: list[Any] = []  # symbols bound by the operator being recorded
        self._binds = 0  # number of operators that bound symbols
        self._again = False  # whether the operator's result has a size that was bound before
        self._known_bound: dict[Any, Any] = {}  # operator and argument -> symbols bound for them

    # -- unbacked symbols -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def binding(self) -> Iterator[None]:
        """Context manager: operators whose results depend on data return the results of capture."""
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
                raise AutogradUnsupported("a size or number that depends on data", str(func), "the graph runs eagerly")
            self._bound.append(self.to_bind.pop(0))
            self._known_bound[func, id(args[0])] = self._bound[-1][0]
            return self._bound[-1][0]

        with self.fake_mode:
            return BINDS[func](new, *args, **kwargs)

    def _note_bound(self, node: fx.Node, out: Any) -> None:
        """Add nodes that read the symbols: the parts of a number, the sizes of results."""
        node.meta["binds"], bound, self._bound = True, self._bound, []
        self._binds += 1
        env: Any = symbols_of(bound[0][0])
        for number, names in bound:
            if len(names) == 2:
                for read, name in zip((unbacked_symbols.positive, unbacked_symbols.negative), names, strict=True):
                    self._symbol(self.graph.call_function(read, (node,)), name, env.int(Expr.sym(name)))
            elif isinstance(number, torch.SymFloat):
                self._symbol(node, names[0], number)
            else:
                dim, t = next((d, t) for t in tensors_in(out) for d, n in enumerate(t.shape) if _is(n, number))
                self._symbol(
                    self.graph.call_function(unbacked_symbols.size, (self._node_of[id(t)], dim)), names[0], number
                )

    def _symbol(self, node: fx.Node, name: str, number: Any) -> None:
        node.meta["val"], node.meta["bound"] = number, name
        self.numbers.symbols[name] = node

    def check(self, check: unbacked_symbols.UnbackedCheck, values: Sequence[Any]) -> None:
        bound = self.numbers.symbols
        args = (
            bound[n] if n in check.symbols.unbacked else self._arg(v) for n, v in zip(check.names, values, strict=True)
        )
        node = self.graph.call_function(check, tuple(args))
        node.meta["val"] = None

    def next_region(self) -> int:
        return next(self._regions) if self.region is None else self.region

    # -- tensors and nodes ------------------------------------------------------------------------------------------

    def placeholder(self, name: str, value: Any) -> fx.Node:
        """A graph input after all earlier inputs, even if other nodes were recorded meanwhile."""
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
            self._node_of[generator_identity(value)] = node
        if isinstance(value, torch.Tensor):
            self._node_of[id(value)] = node
            self._given.add(id(value))
        return node

    def node(self, value: torch.Tensor) -> fx.Node:
        """The node that computes `value`; a KeyError means that the tensor did not come from this trace."""
        return self._node_of[id(value)]

    def alias(self, value: torch.Tensor, node: fx.Node) -> None:
        """Register `value` as a result of `node` (`node.meta` keeps it alive)."""
        self._node_of[id(value)] = node
        self._given.add(id(value))
        node.meta.setdefault("aliases", []).append(value)

    def copied(self, node: fx.Node) -> fx.Node:
        """A copy of the value of `node`, in memory of its own."""
        copy = self.graph.call_function(aten.clone.default, (node,), {})
        with unrecorded_fakes(self.fake_mode):
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
                    "an operator has a kernel that the program registered", str(func), "the graph runs eagerly"
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
        pure, binds = not facts_of(func).ordered, self._binds
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
        if (
            decompose is not None
            and choices.active
            and not choices.step_enabled("decomposition", lambda: self._named(func))
        ):
            decompose = None
        if decompose is None and is_composite(func):
            decompose = func.decompose
        if func is aten.mul.Tensor and _is_spread(*args):
            decompose = _fill_where
        out = self._decomposed(func, decompose, args, kwargs) if decompose is not None else NotImplemented
        if out is NotImplemented:
            out = self._record(func, types, args, kwargs)
        if self.through is not None:
            self._node_of[id(out)].meta["through"], self.through = self.through, None
        if pure and func not in BINDS and self._binds == binds:
            self._seen[key] = out
        return out

    def begin(self, source: fx.Node) -> None:
        """Start recording for this node of the captured graph."""
        self.source = source
        if source.op in ("call_function", "call_method"):
            self._began.append((torch.autograd._get_sequence_nr(), source))

    def _folds(self) -> bool:
        """Whether the captured graph calls `unfold_backward`, directly or by a gradient computed inside of it."""
        if self.source is not None and self.source.target in (aten.unfold_backward, aten.unfold_backward.default):
            return True
        node = torch._C._current_autograd_node()
        return node is not None and node.name().startswith("Unfold")

    def _place(self) -> Mapping[str, Any]:
        """The `meta` with the program's line.  For a gradient: the meta of the operator whose gradient it is."""
        if self.source is not None:
            return self.source.meta
        node = torch._C._current_autograd_node() if self.differentiates else None
        if node is None:
            return {}
        k = bisect.bisect_right(self._began, node._sequence_nr(), key=lambda row: row[0]) - 1
        return self._began[k][1].meta if k >= 0 else {}

    def _named(self, func: OpOverload) -> str:
        """An operator's name with the program's line that is being traced."""
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
            if self._depth == 1 and isinstance(out, torch.Tensor) and has_kernel_checks(func):
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
        """Raises if a decomposition promotes operands of several dtypes differently from the operator.

        Checked only for operators that programs call, with one result.  Others are exempt: statistics are wider here
        than a kernel's own.  Internal kernels (formulas of gradients among them) refuse such operands, or their shape
        functions give wrong dtypes.
        """
        if len({t.dtype for t in tensors_in((args, kwargs))}) < 2:
            return
        whole = propagate(self.fake_mode, func, (), args, kwargs)
        if [t.dtype for t in tensors_in(whole)] != [t.dtype for t in tensors_in(out)]:
            raise _NotFunctional(str(func))

    def laid_out(self, value: torch.Tensor, strides: Sequence[int], *, exactly: bool = False) -> torch.Tensor:
        """`value` with `strides` if they are dense (`exactly`: also in dimensions of one element).  The mode must be on."""
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
            raise AutogradUnsupported(
                "an operator that writes its arguments, and that functionalisation does not replace",
                str(func),
                "the graph runs eagerly",
            )
        if func is aten.normal_functional.default and args[0].numel() >= _VECTOR and not is_dense(args[0]):
            # eager's CPU kernel draws differently into memory with gaps than into the copy that functionalisation creates
            if args[0].device.type == "cpu":
                raise AutogradUnsupported(
                    "normal_ on a view with gaps in memory", str(args[0].stride()), "the graph runs eagerly"
                )
        if func is aten.unfold_backward.default and not (self.differentiates or self._folds()):
            # functionalisation's inverse of `unfold`, which forgets the elements that no window covers
            raise AutogradUnsupported("a write through a view", "unfold", "the graph runs eagerly")
        if func is aten.as_strided_scatter.default and not self.differentiates and overlaps_itself(args[0], *args[2:4]):
            # functionalisation's inverse of `as_strided`: it would write old elements over new ones in the same place
            raise AutogradUnsupported(
                "a write through a view", "as_strided with elements that overlap", "the graph runs eagerly"
            )
        if func is aten.as_strided_scatter.default and not self.differentiates and not covers(args[0], *args[2:]):
            # the same inverse: memory beside the graph's elements would not be written
            raise AutogradUnsupported(
                "a write through a view", "as_strided that leaves the memory of its tensor", "the graph runs eagerly"
            )
        if func is aten.lift_fresh.default or func is aten.lift_fresh_copy.default:
            return self._lift(func, types, args[0])
        if args and isinstance(args[0], (complex, float, int)) and is_view_op(func):  # a number has no views
            args = (torch.tensor(args[0], dtype=_AS_TENSOR.get(type(args[0]))), *args[1:])
        if func is aten.view_as_real.default and _is_conjugate(
            self.node(args[0])
        ):  # `resolve_conj` is not recorded here
            args = (self._record(aten.clone.default, types, args, {}),)
        real = [t for t in tensors_in((args, kwargs)) if not isinstance(t, FakeTensor)]
        if real:
            fakes = {id(t): self.constant(t) for t in real}
            args, kwargs = fx.node.map_aggregate((args, kwargs), lambda a: fakes.get(id(a), a))
        try:
            out = propagate(self.fake_mode, func, types, args, kwargs)
        except ZeroDivisionError as e:  # torch's shape functions divide by sizes (huber_loss_backward)
            raise AutogradUnsupported(
                "a division by the size of an empty tensor", f"{func}", "the graph runs eagerly"
            ) from e
        if not any(True for _ in tensors_in(out)) and not facts_of(func).acts and not self._bound:
            return out
        if isinstance(out, torch.Tensor) and id(out) in self._node_of:
            return out
        node = self.graph.create_node(
            "call_function", substitute_of(func), self._arg(args), self._arg(kwargs), name=func.overloadpacket.__name__
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
                    "a backward that draws from a generator", str(value), "the graph runs eagerly"
                )
            return self._node_of[generator_identity(value)]
        if isinstance(value, torch.Size):
            return [self._arg(v) for v in value]
        return self.numbers.node(value) if isinstance(value, SYMBOLIC) else value

    def _attach(self, node: fx.Node, out: Any) -> None:
        node.meta["val"] = (
            tuple(out) if isinstance(out, tuple) else out
        )  # the types of torch's named results cannot be imported
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
            # another library's operator may return a list among its results
            if isinstance(item, (torch.Tensor, tuple, list)):
                self._attach(self.graph.create_node("call_function", operator.getitem, (node, i)), item)


def _is_conjugate(node: fx.Node) -> bool:
    """Whether the memory that `node`'s value views holds its conjugate."""
    found = False
    while (parent := view_parent(node)) is not None:
        found ^= node.target is aten._conj.default
        node = parent[0]
    return found


_SPREADS = ("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0")
"""Autograd nodes that give a gradient to all elements equal to the result."""


def _is_spread(mask: Any, share: Any) -> bool:
    """Whether a product computes such a gradient.

    On the CPU, the formula for plain tensors fills in the share.  A product with the mask gives NaN where the share is
    infinite, or where no element matches.
    """
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool or mask.device.type != "cpu":
        return False
    node = torch._C._current_autograd_node()
    return node is not None and node.name().startswith(_SPREADS)


def _fill_where(mask: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, share, 0)


def _is(size: Any, number: Any) -> bool:
    return isinstance(size, torch.SymInt) and expr_of(size) == expr_of(number)


def _refuse_gradient(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises for gradients that eager's nodes refuse and functionalisation allows.

    These are writes of floats to integers, which functionalisation casts (the gradient of `addcdiv` by an integer).
    """
    if func is not aten._to_copy.default or not isinstance(args[0], torch.Tensor):  # vmap can make it a number
        return
    given, wanted = args[0].dtype, kwargs.get("dtype")
    if wanted is not None and not torch.can_cast(given, wanted):
        raise AutogradUnsupported(
            "autograd refuses the gradient", f"{given} is written to {wanted}", "the graph runs eagerly"
        )


def _fold_view(recorder: Recorder, x: torch.Tensor, size: Sequence[int]) -> tuple[Any, ...]:
    """A view of a view is a view of the base; with the base's own shape it is the base."""
    node = recorder.node(x)
    if node.target is aten.view.default:
        base = node.args[0].meta["val"]  # type: ignore[union-attr]
        if base.is_contiguous():
            x = base
    return (x,) if tuple(x.shape) == tuple(size) else (x, size)


def _fold_permute(recorder: Recorder, x: torch.Tensor, dims: Sequence[int]) -> tuple[Any, ...]:
    """A permutation of a permutation is one permutation; the identity is dropped."""
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
    """A strided view becomes a view of the storage's owner, since a stage may copy the views in between.

    Without an offset, the offset of `x` applies, which is only known if no input owns the storage.
    """
    if offset is not None and not recorder.differentiates:
        recorder.counts = True
    node = recorder.node(x)
    root = view_root(node)
    base: torch.Tensor = root.meta["val"]
    start = x.storage_offset() if offset is None else offset
    if root.op != "placeholder" and not recorder.differentiates and not covers(base, size, stride, start):
        # a written input stands for its own elements only, not for other elements in its memory
        raise AutogradUnsupported(
            "a view of a written tensor", "as_strided that leaves the memory of its tensor", "the graph runs eagerly"
        )
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
            "as_strided of a tensor whose memory has another dtype, or is conjugated",
            str(base.dtype),
            "the graph runs eagerly",
        )
    return base, size, stride, start


def _fold_strided_write(
    recorder: Recorder, x: torch.Tensor, value: torch.Tensor, size: Any, stride: Any, offset: Any = None
) -> tuple[Any, ...]:
    if offset is not None and not recorder.differentiates:
        recorder.counts = True
    return x, value, size, stride, offset


# Operator → simpler arguments for it, or the one value that it equals. Recorded arguments are normalised (d >= 0).
_FOLDS: dict[OpOverload, Callable[..., tuple[Any, ...]]] = {
    aten.view.default: _fold_view,
    aten.permute.default: _fold_permute,
    aten.as_strided.default: _fold_strided,
    aten.as_strided_scatter.default: _fold_strided_write,
}

# Dtypes of numbers in place of tensors.
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
