"""`flex_attention`: one call of the graph, with the program's score function and mask as inner graphs.

Torch's own function is inlined down to its operator, so eager reports its refusals.  Both functions of the program
are traced for one query-key pair, as eager's four `vmap`s call them, and may have no effects.  Inside, `x[i]` with
integers, as tensors or not, reads an element (`GraphBuilder.indexes`): their numbers are not needed.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import flex_attention as operator

from pycompiler.capture.breaks import Break, SkipFrame
from pycompiler.capture.interpreter import tracers
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin, inline
from pycompiler.capture.interpreter.tracers import Tracer
from pycompiler.capture.library.gradients.function_transforms import arguments, items_of, late_handler
from pycompiler.capture.semantics import polyfills
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import Sequence, Tuple
from pycompiler.capture.values.functions import Function
from pycompiler.capture.values.tensor import Tensor
from pycompiler.operators import flex_attention as attention

MODULE = "torch.nn.attention.flex_attention"
NAMES = "self query key value score_mod block_mask scale kernel_options score_mod_other_buffers mask_mod_other_buffers"
Q_INDICES = 7  # index in the parts of a block mask: eager's backward needs it


@late_handler(MODULE, "flex_attention")
def flex_attention(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """If a part breaks the graph, the whole call does: in eager mode it makes torch.compile trace the rest."""
    fn = cx.make(sys.modules[MODULE].flex_attention)
    assert isinstance(fn, Function)
    return inline(cx, fn, args, kwargs)


@late_handler(MODULE, "create_mask")
def create_mask(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    graph, before = cx.graph, cx.graph.indexes
    graph.indexes = True
    try:
        return cx.call(cx.make(polyfills.create_mask), args, kwargs)
    finally:
        graph.indexes = before


@builtin(type(operator).__call__)
def attend(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    try:
        return _attend(cx, args, kwargs)
    except Break as e:
        if cx.frames[0].globals.get("__name__") == MODULE:  # torch's own function runs eagerly in another way
            raise SkipFrame(e.reason) from e
        raise


def _attend(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    none = Tuple([])
    given = arguments(cx, NAMES, args, kwargs, score_mod_other_buffers=none, mask_mod_other_buffers=none)
    _, query, key, value, score_mod, blocks, scale, _, score_others, mask_others = given
    tensors: list[Any] = [query, key, value]
    if not all(isinstance(t, Tensor) and not t.is_special for t in tensors) or cx.graph.levels or cx.graph.later:
        raise Break(
            "inner-graph", "flex_attention of values that are not plain tensors, under a transform, or in a backward"
        )
    parts = items_of(cx, blocks)
    tensors = _cast(cx, tensors)
    score = _traced(cx, score_mod, tensors[0], items_of(cx, score_others), scored=True)
    mask = _traced(cx, parts[-1], tensors[0], items_of(cx, mask_others), scored=False)
    lifted = tracers.lifted_of_all(score[0], mask[0])
    bodies = [tracer.close([result], lifted)[0] for tracer, result in (score, mask)]
    used = [tracers.tensors_of(tracer.used_outside()) for tracer, _ in (score, mask)]
    if any(t.requires_grad for t in used[1]):
        raise Break("inner-graph", "flex_attention whose mask_mod uses a tensor that requires grad")
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *used[0])):
        if len({t.dtype for t in tensors}) > 1 or cx.is_none(parts[Q_INDICES]):
            raise Break(
                "inner-graph", "gradients of flex_attention with several dtypes, or with a block mask without q_indices"
            )
        if not next(iter(bodies[0].graph.nodes)).users:
            raise Break("inner-graph", "gradients of flex_attention whose score_mod does not use the score")
        by_hand = cx.frames[-1].globals.get("__name__") != MODULE
        if by_hand and any(t.requires_grad and t not in items_of(cx, score_others) for t in used[0]):
            raise Break(
                "inner-graph",
                "gradients of tensors that score_mod closes over, in a direct call of flex_attention's operator",
            )
    return cx.graph.call_inner(attention.flex_attention, bodies, [scale, *tensors, *lifted])


def _cast(cx: Capture, tensors: list[Any]) -> list[Any]:
    """The tensors as autocast casts them."""
    device = tensors[0].device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return tensors
    dtype = Const(torch.get_autocast_dtype(device))
    found = []
    for t in tensors:
        casts = t.dtype.is_floating_point and t.dtype != torch.float64
        found.append(cx.graph.call_method("to", [t, dtype], {}) if casts else t)
    return found


def _traced(cx: Capture, fn: Value, query: Tensor, others: list[Value], *, scored: bool) -> tuple[Tracer, Tensor]:
    """The tracer of a function of one pair, not yet closed, and its result."""
    fake = query.fake
    dtypes = [attention.precision(fake.dtype)] * scored + [torch.int64] * 4
    drawn, off = cx.fake_mode.seen.once, dict[str, Any](autocast_cpu=False, autocast_cuda=False)
    with tracers.inner_tracer(cx, levels=True, copies=True, pure=True, under="vmap", **off) as tracer:
        tracer.indexes = True
        with cx.fake_mode, torch.inference_mode(False):
            pair = [tracer.argument(torch.empty((), dtype=dtype, device=fake.device), mapped=True) for dtype in dtypes]
        result = cx.realize(cx.call(fn, [*pair, *others], {}))
    if not isinstance(result, Tensor) or result.is_special or result.rank:
        raise Break("inner-graph", f"flex_attention whose score_mod or mask_mod returns {result.describe()}")
    if cx.fake_mode.seen.once > drawn:
        raise Break("inner-graph", "random numbers in a score_mod or mask_mod of flex_attention")
    if not scored and result.dtype != torch.bool:
        raise Break("inner-graph", f"flex_attention whose mask_mod returns {result.dtype}, not torch.bool")
    return tracer, result


@late_handler("torch._dynamo.decorators", "mark_static")
def mark_static(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """During a capture, a size that is marked static becomes a number."""
    tensor, index = arguments(cx, "t index", args, kwargs, index=Const(None))
    if not isinstance(tensor, Tensor):
        raise Break("skipped-call", f"mark_static of {tensor.describe()}")
    sizes = cx.call(tensor.getattr(cx, "size"), [] if cx.is_none(index) else [index], {})
    for size in items_of(cx, sizes) if isinstance(sizes, Sequence) else [cx.realize(sizes)]:
        size.const("as a size that is marked static")
    return Const(None)


@late_handler("torch.fx.traceback", "annotate")
def annotate(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Annotations for nodes of torch's graphs; no such graph is built here."""
    arguments(cx, "annotation_dict", args, kwargs)
    return cx.call(cx.make(polyfills.Annotated), [], {})


@late_handler("torch.fx.traceback", "_dynamo_region_activation_memory_budget")
def budget(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return cx.call(cx.make(polyfills.Annotated), [], {})
