"""Functions that take functions: torch.func's transforms and checkpoints.  Branches and loops are in
`capture/library/torch_functions/control_flow.py`.

In: a call of the program.
Out: a call in the graph (`ir/higher_order.py`), with the traced function as an inner graph
(`capture/interpreter/tracers.py`).  The program's functions are called as in eager mode, with wrapped or sliced
tensors.  The capture uses stand-ins for these.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from pycompiler import config
from pycompiler.capture.assumptions.recompute_reads import Rebound
from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter import tracers
from pycompiler.capture.interpreter.calls import LATE_BUILTINS, Args, Kwargs
from pycompiler.capture.interpreter.tracers import Lifted, Tracer
from pycompiler.capture.recipe.codegen import BUILDERS
from pycompiler.capture.semantics import polyfills
from pycompiler.capture.values.base import Capture, Cell, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.sequences import Sequence, Tuple
from pycompiler.capture.values.containers.sets import Set
from pycompiler.capture.values.functions import Builtin, Function, Partial
from pycompiler.capture.values.symbolic_numbers import PLAIN_VALUES, Symbolic
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir import higher_order

TransformHandler = Callable[[Capture, Args, Kwargs], Value]


def late_handler(module: str, *names: str) -> Callable[[TransformHandler], TransformHandler]:
    def register(handler: TransformHandler) -> TransformHandler:
        def where_captured(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
            if not config.capture_func_transforms:
                raise Break("inner-graph", "config.capture_func_transforms is False")
            return handler(cx, args, kwargs)

        for name in names:
            LATE_BUILTINS[module, name] = (
                where_captured if module.startswith(("torch._functorch", "torch.func")) else handler
            )
        return handler

    return register


def arguments(cx: Capture, names: str, args: Args, kwargs: Kwargs, **defaults: Value) -> list[Value]:
    """The arguments of a function with these parameters, in parameter order."""
    bound = {**defaults, **dict(zip(names.split(), args, strict=False)), **kwargs}
    if bound.keys() != set(names.split()) or len(args) > len(names.split()):
        raise Break("inner-graph", "a call whose arguments do not fit the function's signature")
    return [cx.realize(bound[name]) for name in names.split()]


def items_of(cx: Capture, value: Value) -> list[Value]:
    if not isinstance(value, Sequence):
        raise Break("inner-graph", f"{value.describe()} where a tuple is expected")
    return [cx.realize(v) for v in value.items]


def _keywords(cx: Capture, value: Value) -> Kwargs:
    assert isinstance(value, Dict)
    return {k.const(): v for k, v in value.pairs(cx)}


def detached(cx: Capture, tensor: Tensor, *, requires_grad: bool = False) -> torch.Tensor:
    """A separate fake like the tensor's."""
    try:
        with cx.fake_mode:
            fake = tensor.detached()
            return fake.requires_grad_() if requires_grad else fake
    except RuntimeError as e:
        raise Break("inner-graph", str(e)) from e


def _with_aux(cx: Capture, result: Value, has_aux: bool) -> tuple[Value, Value | None]:
    """A function's result, and its auxiliary output."""
    if not has_aux:
        return result, None
    pair = items_of(cx, result)
    if len(pair) != 2 or result.python_type() is not tuple:
        raise Break("inner-graph", "a function with has_aux=True that does not return a pair")
    return pair[0], pair[1]


class _GraphTensors:
    """The tensors of a call in the graph, taken in order."""

    def __init__(self, cx: Capture, result: Value) -> None:
        self.cx = cx
        self.left = iter(items_of(cx, result))

    def like(self, value: Value) -> Value:
        """A tree like `value` with the next tensors in it."""
        return tracers.mapped(self.cx, value, lambda t: next(self.left), tracers.refused)


def _one(value: Value) -> Value:
    """For `mapped`: a leaf that holds no tensor."""
    return value if value.is_const() or isinstance(value, Symbolic) else tracers.refused(value)


# torch.func -----------------------------------------------------------------------------------------------------------
EAGER = "torch._functorch.eager_transforms"


@late_handler(EAGER, "grad_and_value_impl")
def grad_and_value(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Tuple(_gradients(cx, args, kwargs))


@late_handler(EAGER, "grad_impl")
def grad(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    gradients, value = _gradients(cx, args, kwargs)
    return Tuple([gradients, value.items[1]]) if isinstance(value, Tuple) else gradients


def _gradients(cx: Capture, args: Args, kwargs: Kwargs) -> list[Value]:
    """The gradients, and the value or (value, aux)."""
    fn, argnums, aux_flag, positional, keywords = arguments(cx, "func argnums has_aux args kwargs", args, kwargs)
    given, keywords_ = items_of(cx, positional), _keywords(cx, keywords)
    wanted = _positions(cx, argnums, len(given))
    has_aux = cx.truth(aux_flag)
    leaves: list[Tensor] = []
    with _differentiated(cx) as tracer:
        for i in wanted:
            given[i] = tracers.mapped(cx, given[i], lambda t: _variable(cx, tracer, t, leaves), tracers.refused)
        loss, aux = _with_aux(cx, cx.call(fn, given, keywords_), has_aux)
        if not isinstance(loss, Tensor):
            raise Break("inner-graph", f"the gradient of a function that returns {loss.describe()}")
        body, lifted = tracer.close([loss, *(tracers.tensors(cx, aux) if aux else ())])
    made = _GraphTensors(cx, cx.graph.call_inner(higher_order.grad_and_value, [body], [len(leaves), *leaves, *lifted]))
    before = [items_of(cx, positional)[i] for i in wanted]
    gradients = [made.like(v) for v in before]
    value = made.like(loss)
    return [
        Tuple(gradients) if isinstance(argnums, Tuple) else gradients[0],
        value if aux is None else Tuple([value, made.like(aux)]),
    ]


def _differentiated(cx: Capture) -> contextlib.AbstractContextManager[Tracer]:
    """A tracer of a function under a gradient transform."""
    if cx.graph.packs:
        raise Break("inner-graph", "a gradient transform in a checkpoint")
    return tracers.inner_tracer(cx, levels=True, under="grad", grad=True)


def _positions(cx: Capture, argnums: Value, count: int) -> list[int]:
    """The positions that `argnums` means."""
    known = [v.const() for v in items_of(cx, argnums)] if isinstance(argnums, Tuple) else [argnums.const()]
    if not all(type(n) is int and -count <= n < count for n in known) or not known:
        raise Break("inner-graph", f"argnums={known}")
    found = [n % count for n in known]
    if len(set(found)) != len(found):
        raise Break("inner-graph", f"argnums={known}")
    return found


def _variable(cx: Capture, tracer: Tracer, tensor: Tensor, leaves: list[Tensor]) -> Tensor:
    leaves.append(tensor)
    return tracer.argument(detached(cx, tensor, requires_grad=True))


@late_handler("torch._functorch.vmap", "_check_randomness_arg")
def check_randomness(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    (randomness,) = arguments(cx, "randomness", args, kwargs)
    if randomness.const() not in ("error", "different", "same"):
        raise Break("inner-graph", f"randomness={randomness.const()!r}")
    return Const(None)


@late_handler("torch._functorch.vmap", "vmap_impl")
def vmap(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    fn, in_dims, out_dims, randomness, chunk_size, *given = (cx.realize(a) for a in args)
    if randomness.const() == "same" and not cx.is_none(chunk_size):  # torch resets the generator before each chunk
        raise Break("inner-graph", "vmap with chunk_size and randomness='same'")
    leaves: list[Tensor] = []
    dims: list[int] = []
    chunks = not cx.is_none(chunk_size)
    # with chunks the function is called once per chunk
    with tracers.inner_tracer(cx, levels=True, pure=chunks, under="vmap") as tracer:

        def sliced(tensor: Tensor, dim: Value) -> Value:
            if cx.is_none(dim):
                return tensor
            leaves.append(tensor)
            dims.append(_dim(dim))
            return tracer.argument(_slice(cx, tensor, dims[-1]), mapped=True)

        dims_of = items_of(cx, in_dims) if isinstance(in_dims, Sequence) else [in_dims] * len(given)
        if len(dims_of) != len(given) or issubclass(in_dims.python_type(), list):
            raise Break("inner-graph", "vmap with in_dims that do not fit the arguments")
        slices = [_zipped(cx, v, d, sliced) for v, d in zip(given, dims_of, strict=True)]
        if not leaves:
            raise Break("inner-graph", "vmap without a tensor to map over")
        result = cx.call(fn, slices, kwargs)
        outs: list[Tensor] = []
        places: list[int | None] = []

        def out(tensor: Tensor, dim: Value) -> Value:
            outs.append(tensor)
            places.append(None if cx.is_none(dim) else _dim(dim))
            return tensor

        _zipped(cx, result, out_dims, out)
        tracers.tensors(cx, result)  # breaks unless all leaves are tensors
        body, lifted = tracer.close(outs, writes=cx.is_none(chunk_size))  # versions count the writes of each chunk
    fixed = [tuple(dims), tuple(places), randomness.const(), chunk_size.const()]
    return _GraphTensors(cx, cx.graph.call_inner(higher_order.vmap, [body], [*fixed, *leaves, *lifted])).like(result)


def _dim(value: Value) -> int:
    known = value.const()
    if type(known) is not int:
        raise Break("inner-graph", f"vmap with dimension {known!r}, which is not an int")
    return known


def _slice(cx: Capture, tensor: Tensor, dim: int) -> torch.Tensor:
    fake = tensor.fake
    if not -fake.dim() <= dim < fake.dim():
        raise Break("inner-graph", f"vmap over dimension {dim} of {tensor.describe()}, which is out of range")
    with cx.fake_mode:
        if not fake.shape[dim]:  # the body is traced even if there is no slice
            sizes, strides = list(fake.shape), list(fake.stride())
            del sizes[dim], strides[dim]
            return torch.empty_strided(sizes, strides, dtype=fake.dtype, device=fake.device)
        return fake.detach().select(dim, 0)


def _zipped(cx: Capture, value: Value, dims: Value, fn: Callable[[Tensor, Value], Value]) -> Value:
    """`mapped` with the dimension of each tensor: `dims` is a tree like `value`, or one dimension for a whole
    subtree."""
    value, dims = cx.realize(value), cx.realize(dims, "as a dimension of vmap")
    if isinstance(dims, Const):
        other = (lambda v: v) if cx.is_none(dims) else tracers.refused
        return tracers.mapped(cx, value, lambda t: fn(t, dims), other)
    if isinstance(dims, Dict) and isinstance(value, Dict):
        pairs = [(k, v, dims.lookup(cx, k)) for k, v in value.pairs(cx)]
        if len(pairs) == len(dims.entries) and value.cls is dims.cls is dict:
            return Dict({cx.key(k): _zipped(cx, v, d, fn) for k, v, d in pairs if d is not None})
    if isinstance(dims, Sequence) and isinstance(value, Sequence) and dims.cls is value.cls in (list, tuple):
        if len(dims.items) == len(value.items):
            pairs_ = zip(value.items, dims.items, strict=True)
            return cx.sequence([_zipped(cx, v, d, fn) for v, d in pairs_], value.cls)
    raise Break("inner-graph", f"vmap with dimensions {dims.describe()} for {value.describe()}")


@late_handler(EAGER, "_jvp_with_argnums")
def jvp(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    names = "func primals tangents argnums strict has_aux"
    fn, primals, tangents, argnums, strict, aux_flag = arguments(cx, names, args, kwargs, strict=Const(False))
    if primals.python_type() is not tuple:
        raise Break("inner-graph", "torch.func.jvp with primals that are not a tuple")
    given = items_of(cx, primals)
    wanted = range(len(given)) if cx.is_none(argnums) else _positions(cx, argnums, len(given))
    has_aux = cx.truth(aux_flag)
    leaves: list[Tensor] = []
    with tracers.inner_tracer(cx, levels=True, under="jvp") as tracer:

        def dual(tensor: Tensor) -> Value:
            leaves.append(tensor)
            return tracer.argument(detached(cx, tensor))

        duals = list(given)
        for i in wanted:
            duals[i] = tracers.mapped(cx, given[i], dual, tracers.refused)
        result, aux = _with_aux(cx, cx.call(fn, duals, {}), has_aux)
        outs = tracers.tensors(cx, result)
        body, lifted = tracer.close([*outs, *(tracers.tensors(cx, aux) if aux else ())])
    along = tracers.tensors(cx, tangents)
    if not same_structure(cx, Tuple([given[i] for i in wanted]), tangents):
        raise Break("inner-graph", "torch.func.jvp with tangents of another structure than the primals")
    fixed = [len(leaves), len(outs), cx.truth(strict)]
    made = _GraphTensors(cx, cx.graph.call_inner(higher_order.jvp, [body], [*fixed, *leaves, *along, *lifted]))
    value = made.like(result)
    others = [] if aux is None else [made.like(aux)]
    return Tuple([value, made.like(result), *others])


@late_handler(EAGER, "_vjp_with_argnums")
def vjp(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`vjp`.  The graph's call stores the history that the pullback goes through, for each call of the pullback in the
    graph."""
    argnums, aux_flag = (cx.realize(kwargs.get(n, Const(d))) for n, d in (("argnums", None), ("has_aux", False)))
    fn, given, has_aux = args[0], [cx.realize(a) for a in args[1:]], cx.truth(aux_flag)
    wanted = range(len(given)) if cx.is_none(argnums) else _positions(cx, argnums, len(given))
    before = [given[i] for i in wanted]
    leaves: list[Tensor] = []
    with _differentiated(cx) as tracer:
        for i in wanted:
            given[i] = tracers.mapped(cx, given[i], lambda t: _variable(cx, tracer, t, leaves), tracers.refused)
        result, aux = _with_aux(cx, cx.call(fn, given, {}), has_aux)
        outs = tracers.tensors(cx, result)
        if not outs or not all(t.dtype.is_floating_point or t.dtype.is_complex for t in outs):
            raise Break("inner-graph", f"torch.func.vjp of a function that returns {result.describe()}")
        body, lifted = tracer.close([*outs, *(tracers.tensors(cx, aux) if aux else ())])
    made = _GraphTensors(cx, cx.graph.call_inner(higher_order.vjp, [body], [len(leaves), len(outs), *leaves, *lifted]))
    value = made.like(result)
    primals = Tuple(before) if cx.is_none(argnums) or isinstance(argnums, Tuple) else before[0]
    others = [] if aux is None else [made.like(aux)]
    kept = _PullbackValue([*leaves, *lifted], result, cx.frames[0].begin, primals, next(made.left))
    return Tuple([value, cx.call(cx.make(polyfills.pullback), [kept], {}), *others])


class _LinearMap(Value):
    """A linear map that a transform returns besides a function's value; it takes tangents or cotangents."""

    what: str  # the values that its argument must be like: "results" or "arguments"

    def __init__(self, given: list[Lifted], like: Value, step: int) -> None:
        """`given`: the values that the function used. `like`: the structure of a call's argument."""
        self.given, self.like, self.step = given, like, step
        self.writes = self._written()

    def _written(self) -> list[int]:
        return [t.version for t in tracers.tensors_of(self.given)]

    def python_type(self) -> type:
        return types.FunctionType

    def along(self, cx: Capture, given: Value, name: str) -> list[Tensor]:
        """The tensors of a call's argument `given`."""
        if self.writes != self._written():
            raise Break(
                "inner-graph", f"a write to a tensor between {name} and the call of the returned function", self.step
            )
        if not same_structure(cx, self.like, given):
            raise Break(
                "inner-graph",
                f"a call of the function from {name} with values of another structure than the {self.what}",
            )
        return tracers.tensors(cx, given)


def _leaves(head: Any, value: _LinearMap, name: str) -> None:
    raise Break("inner-graph", "a function from torch.func.vjp or torch.func.linearize leaves the graph", value.step)


BUILDERS[_LinearMap] = _leaves


class _PullbackValue(_LinearMap):
    """A map from cotangents of a function's results to cotangents of its arguments."""

    what = "results"

    def __init__(self, given: list[Lifted], like: Value, step: int, primals: Value, kept: Value) -> None:
        super().__init__(given, like, step)
        self.primals, self.kept = primals, kept

    def call(self, cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        along = self.along(cx, args[0], "torch.func.vjp")
        return _GraphTensors(cx, cx.graph.call_inner(higher_order.apply_pullback, [], [self.kept, *along])).like(
            self.primals
        )


class _Pushforward(_LinearMap):
    """A map from tangents of a function's arguments to tangents of its results."""

    what = "arguments"

    def __init__(
        self, given: list[Lifted], like: Value, step: int, result: Value, body: Any, counts: tuple[int, int]
    ) -> None:
        super().__init__(given, like, step)
        self.result, self.body, self.counts = result, body, counts

    def call(self, cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        along = self.along(cx, args[0], "torch.func.linearize")
        count, outputs = self.counts
        if [meta(t) for t in along] != [meta(t) for t in tracers.tensors_of(self.given[:count])]:
            raise Break(
                "inner-graph", "tangents of other sizes, dtypes or devices than the arguments of torch.func.linearize"
            )
        body = fx.GraphModule(self.body, copy.deepcopy(self.body.graph), class_name="InnerGraph")
        given = [count, outputs, False, *self.given[:count], *along, *self.given[count:]]
        made = cx.graph.call_inner(higher_order.jvp, [body], given)
        return _GraphTensors(cx, Tuple(items_of(cx, made)[outputs:])).like(self.result)


def meta(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


@late_handler("torch.func", "linearize")
def linearize(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`linearize`. Eager also calls the function twice. It stores intermediate results without gradients."""
    if kwargs or cx.graph.levels or cx.graph.packs or cx.graph.later:
        raise Break(
            "inner-graph", "torch.func.linearize with keywords, under a transform, in a checkpoint, or in a backward"
        )
    fn, primals = args[0], Tuple([cx.realize(a) for a in args[1:]])
    drawn, step = cx.fake_mode.seen.once, cx.frames[0].begin
    value = cx.call(fn, list(primals.items), {})
    leaves: list[Tensor] = []
    with tracers.inner_tracer(cx, levels=True, pure=True, under="jvp") as tracer:

        def dual(tensor: Tensor) -> Value:
            leaves.append(tensor)
            return tracer.argument(detached(cx, tensor))

        duals = tracers.mapped(cx, primals, dual, tracers.refused)
        result = cx.call(fn, items_of(cx, duals), {})
        outs = tracers.tensors(cx, result)
        body, lifted = tracer.close(outs)
    if cx.fake_mode.seen.once > drawn:
        raise Break("inner-graph", "random numbers in a function passed to torch.func.linearize")
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*leaves, *tracers.tensors_of(lifted))):
        raise Break("inner-graph", "torch.func.linearize of a function that uses a tensor that requires grad")
    push = _Pushforward([*leaves, *lifted], primals, step, result, body, (len(leaves), len(outs)))
    return Tuple([value, cx.call(cx.make(polyfills.pushforward), [push], {})])


@late_handler(EAGER, "error_if_complex")
def error_if_complex(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if any(t.dtype.is_complex for t in tracers.tensors(cx, args[1], lambda v: v)):
        raise Break("inner-graph", "a Jacobian of complex tensors")
    return Const(None)


def same_structure(cx: Capture, a: Value, b: Value) -> bool:
    """Whether two trees have the same structure, and numbers of the same kind."""
    a, b = cx.realize(a), cx.realize(b)
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor)
    if isinstance(a, PLAIN_VALUES) and isinstance(b, PLAIN_VALUES):
        return a.python_type() is b.python_type()
    if isinstance(a, Sequence) and isinstance(b, Sequence):
        same = a.cls is b.cls and len(a.items) == len(b.items)
        return same and all(same_structure(cx, v, w) for v, w in zip(a.items, b.items, strict=True))
    if isinstance(a, Dict) and isinstance(b, Dict):
        if a.cls is not b.cls or list(a.entries) != list(b.entries):
            return False
        return all(same_structure(cx, v, w) for (_, v), (_, w) in zip(a.pairs(cx), b.pairs(cx), strict=True))
    return False


# checkpoints -------------------------------------------------------------------------------------------------------
@late_handler("torch.utils.checkpoint", "checkpoint")
def checkpoint(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    options = {name: kwargs.pop(name) for name in ("context_fn", *CHECKPOINT) if name in kwargs}
    target = _checkpoint_of(cx, cx.realize(options.pop("context_fn", Const(None))))
    for name, value in options.items():
        value = cx.realize(value, "as an option of a checkpoint")
        if not CHECKPOINT[name](value.const() if value.is_const() else getattr(value, "real", None)):
            raise Break("inner-graph", f"checkpoint with {name}={value.describe()}")
    if "use_reentrant" not in options or not args or cx.is_none(args[0]) or cx.graph.levels:
        raise Break("inner-graph", "a checkpoint without use_reentrant, or under a transform")
    reentrant = options["use_reentrant"].const()
    if reentrant:
        _check_reentrant(cx, args, [*kwargs, *(options.keys() - {"use_reentrant", "preserve_rng_state"})], target)
    keeps = options.get("preserve_rng_state", Const(True)).const()
    drawn = cx.fake_mode.seen.once
    looks, step, given = cx.effects.looks, cx.frames[0].begin, [*args[1:], *kwargs.values()]
    called = args[0], [*args[1:]], dict(kwargs)
    direct = [v for v in map(cx.realize, args[1:]) if isinstance(v, Tensor)]
    by_its_own_backward = target is higher_order.checkpoint and not reentrant and not cx.graph.is_inner
    rebound: dict[Cell, Value | None] | None = {} if by_its_own_backward else None
    body_of = looks.of_body(step, [args[0], *given], cx.frames, rebound)
    with tracers.inner_tracer(cx, pure=True, packs=True) as tracer, body_of:
        tracer.reentrant = tracer.reentrant or reentrant
        result = cx.call(args[0], args[1:], kwargs)
        outs = made_by(tracer, tracers.tensors(cx, result, _one))
        if not keeps and cx.fake_mode.seen.once > drawn:
            raise Break("inner-graph", "random numbers in a checkpoint with preserve_rng_state=False")
        body, lifted = tracer.close(outs)
    if reentrant:
        _check_results(result, outs, direct, tracers.tensors_of(lifted))
    looks.tensors(tracers.tensors_of(lifted))
    cx.graph.place_inner(target, [body], [keeps, *lifted], outs)
    if rebound:
        node = looks.bodies[-1].call
        assert node is not None

        def trace() -> None:
            _trace_again(cx, node, step, called, given, len(outs))

        looks.rebound.append(Rebound(node, step, rebound, trace))
    return result


def _trace_again(
    cx: Capture, node: fx.Node, step: int, called: tuple[Value, list[Value], dict[str, Value]], given: Args, count: int
) -> None:
    """Give the checkpoint `node` a second body for its backward, traced with the variables' values at the end of the
    frame."""
    drawn, looks = cx.fake_mode.seen.once, cx.effects.looks
    fn, args, kwargs = called
    try:
        with (
            tracers.inner_tracer(cx, pure=True, packs=True) as tracer,
            looks.of_body(step, [fn, *given], cx.frames, {}),
        ):
            outs = made_by(tracer, tracers.tensors(cx, cx.call(fn, args, kwargs), _one))
            body, lifted = tracer.close(outs)
        looks.bodies[-1].call = node
        looks.tensors(tracers.tensors_of(lifted))
    except Break as b:
        raise Break(b.kind, b.seen, step) from None
    operands = [cx.graph.to_arg(v) for v in lifted]
    before = {n for n in itertools.takewhile(lambda n: n is not node, cx.graph.graph.nodes)}
    if cx.fake_mode.seen.once > drawn or len(outs) != count or not before.issuperset(operands):
        raise Break(
            "inner-graph",
            "a checkpoint that reads a variable which the frame later sets to a value computed after the checkpoint",
            step,
        )
    first, keeps, *direct = node.args
    with cx.graph.graph.inserting_before(node):
        again = cx.graph.submodule(body)
    node.target = higher_order.checkpoint_of_two
    node.args = (first, again, keeps, len(direct), *direct, *operands)


def _check_reentrant(cx: Capture, args: Args, named: list[str], target: Any) -> None:
    """Break unless a reentrant checkpoint gives the same gradients as a non-reentrant one.

    It does so for tensors passed directly, and for leaves.  Other cases, and its warnings, are left to eager.
    """
    passed = [cx.realize(a) for a in args[1:]]
    apart = [v for v in passed if isinstance(v, Tensor)]
    within = [t for v in passed if not isinstance(v, Tensor) for t in tracers.tensors(cx, v, _one)]
    plain = target is higher_order.checkpoint and not named and not any(t.requires_grad for t in within)
    if not plain or not torch.is_grad_enabled() or not any(t.requires_grad for t in apart):
        raise Break(
            "inner-graph",
            "a reentrant checkpoint with keywords or context_fn, without gradients, or of tensors in containers",
        )


def _check_results(result: Value, made: list[Tensor], direct: list[Tensor], lifted: list[Tensor]) -> None:
    """Break unless each result of a reentrant checkpoint requires grad and is no argument."""
    items = result.items if isinstance(result, Tuple) and result.cls is tuple else [result]
    known = all(isinstance(v, Tensor) and v in made and v.requires_grad for v in items) and len(items) == len(made)
    if not known or any(t.requires_grad and not t.is_leaf and t not in direct for t in lifted):
        raise Break(
            "inner-graph",
            "a reentrant checkpoint that closes over a tensor with autograd history, or that returns anything but "
            "new tensors that require grad",
        )


def _checkpoint_of(cx: Capture, contexts: Value) -> Callable[..., Any]:
    """The function that the graph calls for a checkpoint's `context_fn`: an existing function, or a partial of existing
    objects."""
    real = None if contexts.is_const() and contexts.const() is None else _existing(cx, contexts)
    if real is None or real is torch.utils.checkpoint.noop_context_fn:
        return higher_order.checkpoint
    return higher_order.SelectiveCheckpoint(real)


def _existing(cx: Capture, value: Value) -> Any:
    """The real object of a value, guarded to stay the same; a list, set or partial of such objects is built again."""
    value = cx.realize(value, "in the context_fn of a checkpoint")
    if isinstance(value, Function) and value.real is not None and value.source is not None:
        cx.guard("id_is", value.source, value.real)
        return value.real
    if isinstance(value, Partial) and value.cls is functools.partial:
        args, kwargs = [_existing(cx, a) for a in value.args], {k: _existing(cx, v) for k, v in value.kwargs.items()}
        return functools.partial(_existing(cx, value.function), *args, **kwargs)
    if isinstance(value, Sequence) and value.cls in (list, tuple):
        return value.cls(_existing(cx, v) for v in value.items)
    if isinstance(value, Set) and value.cls in (set, frozenset):
        return value.cls(_existing(cx, v) for v in value.ordered(cx))
    if value.is_const():
        return value.const()
    if isinstance(value, Builtin):
        return value.fn
    raise Break("inner-graph", f"checkpoint with a context_fn made of {value.describe()}")


CHECKPOINT: dict[str, Callable[[Any], bool]] = {
    "use_reentrant": lambda v: isinstance(v, bool),
    "preserve_rng_state": lambda v: isinstance(v, bool),
    "determinism_check": lambda v: v in torch.utils.checkpoint._allowed_determinism_checks_to_fns,
    "debug": lambda v: v is False,
    "early_stop": lambda v: isinstance(v, bool),
    "respect_saved_tensors_hooks": lambda v: v is None,
}
"""The options of a checkpoint, and whether a value of an option is captured."""


def made_by(tracer: Tracer, found: list[Tensor]) -> list[Tensor]:
    """The tensors that a tracer created, each once."""
    return list(dict.fromkeys(t for t in found if t.node.graph is tracer.graph))
