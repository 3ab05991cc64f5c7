"""`torch.autograd.Function.apply`: one call of the graph, with the forward and the backward as inner graphs.

In: a call of `apply`.  Out: the results, from one graph call (`ir/higher_order.py: function`).

Both functions are traced where eager runs the forward.  The backward is traced at once, for any gradients of the
results' shapes.  So it may read nothing that only a real backward knows (the layout of gradients, a wish for second
order), and may write nothing.  The call saves the tensors of the forward that the backward uses.

A forward that writes tensors and marks them dirty writes the fakes while it is traced.  The call in the graph, which
runs on the fakes next, turns these fakes into results with a history.  The compiled graph does the same with the real
tensors: the very tensors, in place.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter import tracers
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.interpreter.tracers import Lifted, Tracer, key_of_lifted
from pycompiler.capture.library.gradients import backward_hooks
from pycompiler.capture.values.attributes import MISSING, lookup, mro_lookup
from pycompiler.capture.values.base import Capture, Value, class_name
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import Tuple
from pycompiler.capture.values.functions import Function
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir import higher_order
from pycompiler.operators.kernel_type_checks import set_version

STORED = frozenset({"to_save", "saved_for_forward", "dirty_tensors", "non_differentiable", "materialize_grads"})
"""Attributes that a context's methods store on it, for C code to read."""
OPTIONS = ("boxed_grads_call", "clear_saved_tensors_on_access", "_compiled_autograd_should_lift")
"""Attributes of a Function class that change how its backward is called."""
ONCE = once_differentiable(lambda ctx: None).__code__  # type: ignore[no-untyped-call]
VARIADIC = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
AUTOCAST: dict[str, Any] = {"autocast_cpu": False, "autocast_cuda": False}


class FunctionContext(Value):
    """The `ctx` of one call."""

    exists = False

    def __init__(self, cls: type, needs: list[bool], levels: bool) -> None:
        self.cls = cls
        self.levels = levels  # each transform level has its own answer to which inputs need gradients
        self.needs = needs
        self.overlay: dict[str, Value] = {}
        self.backward = False  # whether saved tensors can be read
        self.unpacked = False  # whether saved tensors were read, which compares the versions of all of them

    def python_type(self) -> type:
        return self.cls

    def getattr(self, cx: Capture, name: str) -> Value:
        if name in self.overlay:
            return self.overlay[name]
        if name == "needs_input_grad" and self.levels:
            raise Break("inner-graph", "needs_input_grad of an autograd Function under a transform")
        if name == "needs_input_grad":
            return Tuple([Const(n) for n in self.needs])
        if name in ("saved_tensors", "saved_variables"):
            self.unpacked = self.backward
            return Tuple(self.stored(cx, "to_save") if self.backward else [])
        raw = mro_lookup(self.cls, name)
        if raw is MISSING:
            cx.throw(AttributeError, f"{class_name(self.cls)!r} object has no attribute {name!r}")
        if not isinstance(raw, types.FunctionType):
            raise Break("unsupported-attribute", f"{name} of the context of an autograd Function")
        return cx.class_attribute(self, name)

    def setattr(self, cx: Capture, name: str, value: Value) -> None:
        if name not in STORED and (mro_lookup(self.cls, name) is not MISSING or name.startswith("__")):
            raise Break("unsupported-attribute", f"{name} of the context of an autograd Function")
        cx.effects.set_attr(self, name, value)

    def stored(self, cx: Capture, name: str) -> list[Value]:
        """The tensors that a method of the context was given."""
        given = self.overlay.get(name)
        if given is None or cx.is_none(given):
            return []
        if not isinstance(given, Tuple):
            raise Break("inner-graph", f"an autograd Function whose ctx.{name} is {given.describe()}, not a tuple")
        return [cx.realize(v) for v in given.items]

    def tensors(self, cx: Capture, name: str) -> list[Tensor]:
        found = self.stored(cx, name)
        if not all(isinstance(v, Tensor) for v in found):
            raise Break("inner-graph", f"an autograd Function whose ctx.{name} holds a value that is not a tensor")
        return found  # type: ignore[return-value]


def _where_torch_has_it() -> Iterator[Any]:
    """`apply` of C, and torch's Python function around it, in versions that have one."""
    yield torch._C._FunctionBase.__dict__["apply"]
    yield torch._C._FunctionBase.apply  # type: ignore[attr-defined]
    written = torch.autograd.Function.__dict__.get("apply")
    if isinstance(written, classmethod):
        yield written.__func__


@builtin(*_where_torch_has_it())
def apply(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    cls, *given = (cx.realize(a) for a in args)
    if kwargs or not isinstance(cls, Class) or not issubclass(cls.cls, torch.autograd.Function):
        raise Break("builtin-call", "Function.apply with keywords, or of a class that is not an autograd Function")
    # the module reads the autograd node of this Function
    if cls.cls is torch.nn.modules._functions.BackwardHookFunction:
        return backward_hooks.module_hook_node(cx, given)
    levels = cx.graph.levels
    if levels:
        _check_levels(cx, cls.cls)
    for name in OPTIONS:
        if lookup(cx, cls.cls, name) not in (MISSING, False):
            raise Break("inner-graph", f"an autograd Function with the option {name}")
    direct = [a for a in given if isinstance(a, Tensor)]
    needs = [isinstance(a, Tensor) and (_has_gradients(a) if levels else a.requires_grad) for a in given]
    if any(t.is_special for t in direct) or torch.is_inference_mode_enabled():
        raise Break("inner-graph", "an autograd Function of a tensor subclass, or in inference mode")
    backward_cls: type = cls.cls._backward_cls  # type: ignore[attr-defined]
    ctx = FunctionContext(backward_cls, needs, levels)
    versions = [t.counted for t in direct]
    with tracers.inner_tracer(cx, grad=False) as forward:
        result = _call_forward(cx, cls, ctx, given)
        items = [cx.realize(v) for v in result.items] if isinstance(result, Tuple) else [result]
        if isinstance(result, Tuple) and result.cls is not tuple:
            raise Break("inner-graph", f"an autograd Function that returns {result.describe()}")
    results = [v for v in items if isinstance(v, Tensor)]
    if any(t.is_special for t in results):
        raise Break("inner-graph", "an autograd Function that returns a tensor subclass")
    dirty = _dirty(cx, ctx, direct, results)
    as_is = any(t is r for i, t in enumerate(direct) if i not in dirty for r in results)
    if as_is and _has_setup(cls.cls) and (ctx.stored(cx, "to_save") or ctx.stored(cx, "saved_for_forward")):
        raise Break(
            "inner-graph",
            "an autograd Function with setup_context that saves tensors and returns an argument unchanged",
        )
    marked = ctx.tensors(cx, "non_differentiable")
    plain = tuple(i for i, t in enumerate(results) if any(t is m for m in marked))
    if levels and dirty:
        raise Break("inner-graph", "an autograd Function under a transform that calls ctx.mark_dirty")
    written = [(direct[i].fake, version) for i in dirty if (version := versions[i]) is not None]
    if levels or torch.is_grad_enabled() and any(needs):
        made = _differentiable(cx, cls, ctx, given, items, forward, plain, dirty, written)
    else:
        body, outside = _closed(forward, direct, results, dirty)
        _count_anew(written)
        made = cx.graph.call_inner(higher_order.function_value, [body], [len(direct), plain, dirty, *outside])
    assert isinstance(made, Tuple)
    tensors = iter(made.items)
    items = [next(tensors) if isinstance(v, Tensor) else v for v in items]
    return Tuple(items) if isinstance(result, Tuple) else items[0]


def _check_levels(cx: Capture, cls: type) -> None:
    """Break unless torch's transforms treat the Function as `higher_order.function_under_transforms` treats its graphs."""
    under, ruled = cx.graph.under, lookup(cx, cls, "vmap") is not mro_lookup(torch.autograd.Function, "vmap")
    if not under or cx.graph.later:
        raise Break("inner-graph", "an autograd Function in a hook, or in the backward of another autograd Function")
    if "jvp" in under or not _has_setup(cls):
        raise Break("inner-graph", "an autograd Function under jvp, or under a transform without setup_context")
    if "vmap" in under and (ruled or lookup(cx, cls, "generate_vmap_rule") is not True):
        raise Break("inner-graph", "an autograd Function under vmap without generate_vmap_rule, or with its own vmap()")


def _has_gradients(t: Tensor) -> bool:
    return t.dtype.is_floating_point or t.dtype.is_complex


def _has_setup(cls: type) -> bool:
    return mro_lookup(cls, "setup_context") is not mro_lookup(torch.autograd.Function, "setup_context")


def _call_forward(cx: Capture, cls: Class, ctx: FunctionContext, given: Args) -> Value:
    """The result of `forward`, after `setup_context` of a class that has it."""
    lookup(cx, cls.cls, "setup_context")
    if not _has_setup(cls.cls):
        return cx.realize(cx.call(cls.getattr(cx, "forward"), [ctx, *given], {}))
    written = cls.getattr(cx, "forward")
    if not isinstance(written, Function) or written.code.co_argcount != len(given) or written.code.co_flags & VARIADIC:
        raise Break(
            "inner-graph",
            "an autograd Function with setup_context whose forward does not have one parameter for each argument",
        )
    result = cx.realize(cx.call(written, list(given), {}))
    cx.call(cls.getattr(cx, "setup_context"), [ctx, Tuple(list(given)), result], {})
    return result


def _dirty(cx: Capture, ctx: FunctionContext, direct: list[Tensor], results: list[Tensor]) -> tuple[int, ...]:
    """The positions of the tensor arguments that the Function marks as written."""
    marked = ctx.tensors(cx, "dirty_tensors")
    dirty = tuple(i for i, t in enumerate(direct) if any(t is m for m in marked))
    written = [direct[i] for i in dirty]
    if len(written) < len(marked) or any(sum(t is r for r in results) != 1 for t in written):
        raise Break(
            "inner-graph",
            "an autograd Function whose ctx.mark_dirty names a tensor that is not an argument, or that forward does "
            "not return exactly once",
        )
    if any(t.is_view and t.requires_grad for t in written):
        raise Break("inner-graph", "an autograd Function that writes to a view that requires grad")
    return dirty


def _count_anew(written: Sequence[tuple[torch.Tensor, int]]) -> None:
    """Reset the versions of traced writes: the graph's call that follows counts them."""
    for fake, version in written:
        set_version(fake, version)


def _closed(
    forward: Tracer, direct: list[Tensor], results: list[Tensor], dirty: Sequence[int]
) -> tuple[torch.fx.GraphModule, list[Lifted]]:
    """The forward's graph and its arguments: first the Function's own tensors, then other used values."""
    used = [*forward.used_outside(), *(t for t in results if t.node.graph is not forward.graph)]
    outside = [*direct, *dict.fromkeys(t for t in used if all(t is not d for d in direct))]
    return forward.close(results, outside, may_write=[direct[i].fake for i in dirty])[0], outside


def _differentiable(
    cx: Capture,
    cls: Class,
    ctx: FunctionContext,
    given: Args,
    items: list[Value],
    forward: Tracer,
    plain: tuple[int, ...],
    dirty: tuple[int, ...],
    written: Sequence[tuple[torch.Tensor, int]],
) -> Value:
    """The call in the graph of a Function that may be differentiated.

    `written`: the fakes of the `dirty` tensors, with their earlier versions.
    """
    backward, once = _backward_of(cx, cls)
    looks, step = cx.effects.looks, cx.frames[0].begin
    drawn, ctx.backward = cx.fake_mode.seen.once, True
    if "materialize_grads" in ctx.overlay and not cx.truth(ctx.overlay["materialize_grads"]):
        raise Break("inner-graph", "an autograd Function with ctx.set_materialize_grads(False)")
    with (
        tracers.inner_tracer(
            cx, levels=True, pure=True, later=not once, before=forward, grad=False, **AUTOCAST
        ) as tracer,
        looks.of_body(step, [backward, *ctx.overlay.values()], cx.frames),
    ):
        grads = [tracer.argument(_like(cx, v)) if isinstance(v, Tensor) else Const(None) for v in items]
        found = cx.realize(cx.call(backward, [ctx, *grads], {}))
        wanted = [cx.realize(v) for v in found.items] if isinstance(found, Tuple) else [found]
        too_many = any(v is not None and not cx.is_none(v) for v in wanted[len(given) :])
        if too_many or len(wanted) < len(given) and ctx.levels:
            raise Break("inner-graph", f"a backward that returns {len(wanted)} gradients for {len(given)} arguments")
        outs, places = _gradients(cx, given, wanted, ctx.needs)
        if cx.fake_mode.seen.once > drawn:
            raise Break("inner-graph", "random numbers in the backward of an autograd Function")
        unpacked = ctx.tensors(cx, "to_save") if ctx.unpacked and not ctx.levels else []
        back, saved = tracer.close(outs, keeps=unpacked)
    direct, results = [a for a in given if isinstance(a, Tensor)], [v for v in items if isinstance(v, Tensor)]
    own = [direct[i] for i in dirty]  # autograd compares their versions, which the call itself counts
    looks.tensors(t for t in tracers.tensors_of(saved) if t.node.graph is not forward.graph and t not in own)
    extras = [t for t in tracers.tensors_of(saved) if t.node.graph is forward.graph]
    for t in saved:
        if t not in extras:
            forward.to_arg(t)
    if ctx.levels:
        _check_saved(cx, ctx, saved, [*direct, *results])
        return _levelled(cx, cls, saved, (forward, back), (direct, results), (plain, tuple(places), once))
    compared = {key_of_lifted(t) for t in ctx.tensors(cx, "to_save")}
    read = {key_of_lifted(t) for t in saved} - compared
    # read in their later state, even if written meanwhile
    later = [i for i, t in enumerate(results) if key_of_lifted(t) in read]
    body, outside = _closed(forward, direct, [*results, *extras], dirty)
    kept = tuple(_place(t, outside, extras) for t in saved)
    numbers = (len(given), len(wanted)) if len(wanted) < len(given) else None
    fixed = [len(direct), len(results), plain, dirty, kept, tuple(places), numbers, once, cls.cls.__name__]
    _count_anew(written)
    made = cx.graph.call_inner(higher_order.function, [body, back], [*fixed, *outside])
    assert isinstance(made, Tuple)
    looks.tensors(made.items[i] for i in later)  # type: ignore[misc]
    return made


def _check_saved(cx: Capture, ctx: FunctionContext, saved: list[Lifted], own: list[Tensor]) -> None:
    """Break if a backward under a transform gets an argument or result as an attribute.

    `save_for_backward` wraps tensors as the transform does; an attribute is not wrapped.
    """
    kept = {key_of_lifted(t) for t in ctx.tensors(cx, "to_save")}
    if any(key_of_lifted(t) not in kept for t in saved if any(t is o for o in own)):
        raise Break(
            "inner-graph",
            "an autograd Function under a transform that keeps an argument or a result as an attribute of ctx",
        )


def _levelled(
    cx: Capture,
    cls: Class,
    saved: list[Lifted],
    parts: tuple[Tracer, torch.fx.GraphModule],
    tensors: tuple[list[Tensor], list[Tensor]],
    told: tuple[tuple[int, ...], tuple[int | None, ...], bool],
) -> Value:
    """The call under transforms: a saved tensor must be an argument, a result, or of the outer graph."""
    (direct, results), (plain, places, once) = tensors, told
    body, outside = _closed(parts[0], direct, results, ())
    known = [key_of_lifted(t) for t in (*outside, *results)]
    if not all(key_of_lifted(t) in known for t in saved):
        raise Break(
            "inner-graph",
            "an autograd Function under a transform that saves a tensor other than its arguments and results",
        )
    kept = tuple(known.index(key_of_lifted(t)) for t in saved)
    fixed = [len(direct), plain, kept, places, once, cls.cls.__name__]
    return cx.graph.call_inner(higher_order.function_under_transforms, [body, parts[1]], [*fixed, *outside])


def _backward_of(cx: Capture, cls: Class) -> tuple[Value, bool]:
    """The function that computes gradients, and whether it can be differentiated only once."""
    base = torch.autograd.Function
    lookup(cx, cls.cls, "vjp")
    name = "backward" if mro_lookup(cls.cls, "vjp") is mro_lookup(base, "vjp") else "vjp"
    found = cls.getattr(cx, name)
    if isinstance(found, Function) and found.code is ONCE:
        cell = found.closure(cx)[ONCE.co_freevars.index("fn")]
        assert cell.contents is not None
        return cell.contents, True
    return found, False


def _gradients(
    cx: Capture, given: Args, wanted: list[Value], needs: list[bool]
) -> tuple[list[Tensor], list[int | None]]:
    """The gradients that are tensors, and for each tensor argument the index of its gradient."""
    outs: list[Tensor] = []
    places: list[int | None] = []
    for argument, value, needed in zip(given, wanted, needs, strict=False):
        if not isinstance(value, Tensor) and not cx.is_none(value):
            raise Break("inner-graph", f"a backward that returns {value.describe()} as a gradient")
        if not isinstance(argument, Tensor):
            if isinstance(value, Tensor):
                raise Break("inner-graph", "a backward that returns a gradient for an argument that is not a tensor")
            continue
        if isinstance(value, Tensor) and needed:
            places.append(len(outs))
            outs.append(value)
        else:
            places.append(None)
    return outs, places


def _like(cx: Capture, result: Tensor) -> torch.Tensor:
    """A fake like the gradient of a result."""
    with cx.fake_mode:
        return torch.empty_like(result.fake)


def _place(saved: Lifted, outside: list[Lifted], extras: list[Tensor]) -> int:
    """The index of a saved value: among the call's arguments, then among the extra results of the forward's graph."""
    at = next((i for i, t in enumerate(outside) if key_of_lifted(t) == key_of_lifted(saved)), None)
    return len(outside) + next(i for i, t in enumerate(extras) if t is saved) if at is None else at
