"""Functions that run graphs by a tensor's value, or row by row: `torch.cond`, `while_loop`, `scan` and `map`.

In: a call of the program.
Out: a call in the graph (`ir/higher_order.py`), with the traced functions as inner graphs
(`capture/interpreter/tracers.py`): both branches, or a loop's test and body.  A body is traced on stand-ins for the
carried values of any pass.  Where a number decides, the functions are called directly: one branch, or one pass after
the other.  The same holds for loops over few rows (`capture/semantics/polyfills.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pycompiler.capture.breaks import Break, SkipFrame
from pycompiler.capture.interpreter import tracers
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.interpreter.tracers import Tracer
from pycompiler.capture.library.gradients.function_transforms import (
    arguments,
    detached,
    items_of,
    late_handler,
    made_by,
    same_structure,
)
from pycompiler.capture.semantics import polyfills
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import Tuple
from pycompiler.capture.values.symbolic_numbers import PLAIN_VALUES, Symbolic
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir import higher_order
from pycompiler.operators.kernel_type_checks import memory_of


@late_handler("torch", "cond")
def cond(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    pred, yes, no, operands = arguments(cx, "pred true_fn false_fn operands", args, kwargs, operands=Tuple([]))
    given = items_of(cx, operands)
    if torch.is_inference_mode_enabled():
        raise Break("inner-graph", "torch.cond in inference mode")
    if isinstance(pred, PLAIN_VALUES) or pred.is_const():
        if not issubclass(pred.python_type(), (bool, int, float)):
            raise Break("inner-graph", f"torch.cond with the predicate {pred.describe()}")
        return cx.call(yes if cx.truth(pred) else no, given, {})
    if not isinstance(pred, Tensor) or pred.numel != 1:
        raise Break("inner-graph", f"torch.cond with the predicate {pred.describe()}")
    tracers.tensors(cx, operands)
    (result, outs, body), (other, other_outs, other_body) = (_branch(cx, fn, given) for fn in (yes, no))
    if not same_structure(cx, result, other) or [_meta(t) for t in outs] != [_meta(t) for t in other_outs]:
        raise Break(
            "inner-graph", "torch.cond whose branches return tensors of different structures, layouts or dtypes"
        )
    lifted = tracers.lifted_of_all(body, other_body)
    kinds = tuple(a.requires_grad or b.requires_grad for a, b in zip(outs, other_outs, strict=True))
    _with_gradients(cx, outs, kinds)
    bodies = [tracer.close(results, lifted)[0] for tracer, results in ((body, outs), (other_body, other_outs))]
    cx.graph.place_inner(higher_order.cond, bodies, [kinds, pred, *lifted], outs)
    return result


def _branch(cx: Capture, fn: Value, given: list[Value]) -> tuple[Value, list[Tensor], Tracer]:
    """A branch's result, its tensors, and its tracer, not yet closed."""
    with tracers.inner_tracer(cx, pure=True) as tracer:
        result = cx.call(fn, list(given), {})
        outs = tracers.tensors(cx, result)
        if not _is_fresh(tracer, outs):
            raise Break(
                "inner-graph", "torch.cond with a branch whose results share memory with an input or each other"
            )
        return result, outs, tracer


def _meta(tensor: Tensor) -> Any:
    fake = tensor.fake
    return fake.shape, fake.stride(), fake.dtype, fake.device, fake.is_conj(), fake.is_neg()


def _with_gradients(cx: Capture, results: list[Tensor], kinds: Sequence[bool]) -> None:
    """Make results of the marked kinds require grad, as an operator's results: no leaves."""
    with cx.fake_mode, torch.enable_grad():
        for t, kind in zip(results, kinds, strict=True):
            if kind and not t.requires_grad:
                t.fake = t.detached().requires_grad_().clone()


def _is_fresh(tracer: Tracer, outs: list[Tensor]) -> bool:
    """Whether the traced function created these tensors, each in separate memory."""
    memory = [t.memory for t in outs]
    outside = {memory_of(fake) for _, fake, _ in tracer.given}
    return made_by(tracer, outs) == outs and len(set(memory)) == len(memory) and not outside & set(memory)


@late_handler("torch._higher_order_ops.while_loop", "while_loop")
def while_loop(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    test, body, carried = arguments(cx, "cond_fn body_fn carried_inputs", args, kwargs)
    if cx.graph.levels or cx.graph.packs or cx.graph.later:
        raise Break("inner-graph", "while_loop under a transform, in a checkpoint, or in a backward")
    if torch.is_inference_mode_enabled():
        # torch compiles its loops, with inference mode suspended
        raise SkipFrame("the frame calls while_loop in inference mode")
    leaves = _leaves(cx, carried)
    going, asked = _traced(cx, test, carried)
    if not isinstance(going, Tensor):
        return _passes(cx, test, body, carried)
    tensors = [v for v in leaves if isinstance(v, Tensor)]
    if len(tensors) < len(leaves):
        raise Break("inner-graph", "while_loop that carries a number, with a cond_fn that returns a tensor")
    if going.dtype != torch.bool or going.rank or not _is_fresh(asked, [going]):
        raise Break(
            "inner-graph",
            f"while_loop whose cond_fn returns {going.describe()}, not a new bool tensor without dimensions",
        )
    result, outs, tracer = _body(cx, body, carried)
    lifted = tracers.lifted_of_all(asked, tracer)
    kinds = (False,) * len(tensors)
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *tracers.tensors_of(lifted), *outs)):
        result, outs, tracer = _body(cx, body, carried, grads=True)
        lifted = tracers.lifted_of_all(asked, tracer)
        kinds = tuple(t.dtype.is_floating_point for t in tensors)
        if any(out.requires_grad and not t.requires_grad for t, out in zip(tensors, outs, strict=True)):
            # torch's gradients pass back through such a tensor in the last pass only
            raise Break(
                "inner-graph",
                "while_loop whose body_fn returns a tensor that requires grad for a carried tensor that does not",
            )
        if any(t.dtype.is_complex for t in (*tensors, *tracers.tensors_of(lifted))):
            raise Break("inner-graph", "while_loop with gradients of complex tensors")
        _with_gradients(cx, outs, kinds)
    bodies = [part.close(results, lifted)[0] for part, results in ((asked, [going]), (tracer, outs))]
    cx.graph.place_inner(higher_order.while_loop, bodies, [kinds, *tensors, *lifted], outs)
    return result


def _body(cx: Capture, fn: Value, carried: Value, *, grads: bool = False) -> tuple[Value, list[Tensor], Tracer]:
    """A loop's result, its tensors, and the tracer of its body, not yet closed."""
    result, tracer = _traced(cx, fn, carried, grads=grads)
    outs = tracers.tensors(cx, result)
    if not _fits(cx, carried, result) or not _is_fresh(tracer, outs):
        raise Break("inner-graph", "while_loop whose body_fn does not return new tensors like the carried ones")
    return result, outs, tracer


def _traced(cx: Capture, fn: Value, carried: Value, *, grads: bool = False) -> tuple[Value, Tracer]:
    """The result of a loop's test or body for any pass, and its tracer, not yet closed.

    `grads`: stand-ins require grad where the carried tensors do.
    """

    def argument(t: Tensor) -> Tensor:
        return tracer.argument(detached(cx, t, requires_grad=grads and t.requires_grad))

    with tracers.inner_tracer(cx, pure=True) as tracer:
        given = tracers.mapped(cx, carried, argument, _number)
        return cx.realize(cx.call(fn, items_of(cx, given), {})), tracer


def _passes(cx: Capture, test: Value, body: Value, carried: Value) -> Value:
    """Run one pass after the other, while the test returns a true number."""
    begun, result = cx.effects.begin(pure=True), carried
    try:
        while _goes_on(cx, test, result):
            before = [v for v in _leaves(cx, result) if isinstance(v, Tensor)]
            versions = [t.version for t in before]
            made = cx.realize(cx.call(body, items_of(cx, result), {}))
            outs = [v for v in _leaves(cx, made) if isinstance(v, Tensor)]
            memory = [t.memory for t in (*before, *outs)]
            if not _fits(cx, result, made) or len(set(memory[len(before) :])) < len(outs):
                raise Break(
                    "inner-graph",
                    "while_loop whose body_fn returns values unlike the carried ones, or tensors that share memory",
                )
            if versions != [t.version for t in before] or set(memory[: len(before)]) & set(memory[len(before) :]):
                raise Break("inner-graph", "while_loop whose body_fn writes to its inputs, or returns one of them")
            result = made
    finally:
        cx.effects.end(begun)
    if result is not carried:
        return result
    copied = tracers.mapped(cx, carried, lambda t: cx.graph.call_method("clone", [t], {}), _number)
    return Tuple(items_of(cx, copied))


def _goes_on(cx: Capture, test: Value, carried: Value) -> bool:
    going = cx.realize(cx.call(test, items_of(cx, carried), {}))
    if not isinstance(going, PLAIN_VALUES) or going.python_type() is not bool:
        raise Break("inner-graph", f"while_loop whose cond_fn returns {going.describe()}, not a bool")
    return cx.truth(going)


def _number(value: Value) -> Value:
    """For `mapped`: a leaf that is no tensor must be an integer."""
    return value if isinstance(value, PLAIN_VALUES) and value.python_type() is int else tracers.refused(value)


def _leaves(cx: Capture, carried: Value) -> list[Value]:
    """The carried values of a loop, in order."""
    found: list[Value] = []

    def note(value: Value) -> Value:
        found.append(_number(value) if not isinstance(value, Tensor) else value)
        return value

    tracers.mapped(cx, carried, note, note)
    return found


def _fits(cx: Capture, carried: Value, result: Value) -> bool:
    """Whether the result of a pass has the form of the next pass's argument."""
    before, after = items_of(cx, carried), items_of(cx, result)
    if len(before) != len(after) or not all(same_structure(cx, a, b) for a, b in zip(before, after, strict=True)):
        return False
    pairs = zip(_leaves(cx, carried), _leaves(cx, result), strict=True)
    return all(_meta(a) == _meta(b) for a, b in pairs if isinstance(a, Tensor) and isinstance(b, Tensor))


@builtin(polyfills.is_symbol)
def is_symbol(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(isinstance(cx.realize(args[0]), Symbolic))


FEW_ROWS = 16  # few known rows are unrolled: they fuse


@builtin(polyfills.repeated)
def repeated(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    fn, init, xs, others = (cx.realize(a) for a in args)
    rows = tracers.tensors(cx, xs)
    length = rows[0].shape[0]
    if (isinstance(length, int) and length <= FEW_ROWS) or torch.is_inference_mode_enabled():
        return Const(None)
    if cx.graph.levels or cx.graph.packs or cx.graph.later:
        return Const(None)
    try:
        return _scan(cx, fn, tracers.tensors(cx, init), rows, items_of(cx, others), length)
    except Break:  # then the single calls report the break, or can be captured
        return Const(None)


def _scan(cx: Capture, fn: Value, carried: list[Tensor], rows: list[Tensor], others: list[Value], length: Any) -> Value:
    result, outs, tracer = _row(cx, fn, carried, rows, others)
    operands, grads = [*carried, *rows, *tracers.tensors_of(tracer.used_outside())], False
    if torch.is_grad_enabled() and any(t.requires_grad for t in operands):
        result, outs, tracer = _row(cx, fn, carried, rows, others, grads=True)
        operands, grads = [*carried, *rows, *tracers.tensors_of(tracer.used_outside())], True
        if any(t.dtype.is_complex for t in (*operands, *outs)):
            raise Break("inner-graph", "a scan with gradients of complex tensors")
    body, lifted = tracer.close(outs)
    made = [*outs[: len(carried)], *(Tensor(t.node, _stacked(cx, t, length)) for t in outs[len(carried) :])]
    kinds = tuple(grads and t.dtype.is_floating_point for t in made)
    _with_gradients(cx, made, kinds)
    counts = (len(carried), len(rows))
    cx.graph.place_inner(higher_order.scan, [body], [kinds, counts, *carried, *rows, *lifted], made)
    results = iter(made)
    return tracers.mapped(cx, result, lambda _: next(results), _nothing)


def _row(
    cx: Capture, fn: Value, carried: list[Tensor], rows: list[Tensor], others: list[Value], *, grads: bool = False
) -> tuple[Value, list[Tensor], Tracer]:
    """The result of a scan's body for any row, its tensors, and its tracer, not yet closed.

    `grads`: carried stand-ins require grad, and so do rows of tensors that require grad.
    """
    with tracers.inner_tracer(cx, pure=True) as tracer:
        given = [tracer.argument(detached(cx, t, requires_grad=grads and t.dtype.is_floating_point)) for t in carried]
        given += [tracer.argument(_first_row(cx, t, grads and t.requires_grad)) for t in rows]
        result = cx.realize(cx.call(fn, [*given, *others], {}))
        outs = tracers.tensors(cx, result, _nothing)
        if [_meta(t) for t in outs[: len(carried)]] != [_meta(t) for t in carried] or not _is_fresh(tracer, outs):
            raise Break("inner-graph", "a scan whose function does not return new tensors like the carried ones")
        return result, outs, tracer


def _first_row(cx: Capture, tensor: Tensor, requires_grad: bool) -> torch.Tensor:
    fake = tensor.fake
    with cx.fake_mode:
        row = torch.empty_strided(fake.shape[1:], fake.stride()[1:], dtype=fake.dtype, device=fake.device)
        return row.requires_grad_(requires_grad)


def _stacked(cx: Capture, row: Tensor, length: Any) -> torch.Tensor:
    with cx.fake_mode:
        return torch.empty((length, *row.shape), dtype=row.dtype, device=row.device)


def _nothing(value: Value) -> Value:
    """For `mapped`: a leaf that is no tensor must be None."""
    return value if value.is_const() and value.const() is None else tracers.refused(value)
