"""Higher-order operators of a captured graph: function transforms, branches, loops, checkpoints, autograd Functions.

In: bodies (graph modules that return a tuple), constants (numbers of arguments, dimensions), tensors.
Out: a flat tuple of tensors.

Example: ``grad_and_value(body, 1, x, w)`` gives the gradient of the body's first result with respect to x, then all
results.  The first tensors are the function's own arguments; the rest are values that it used from the surrounding graph.
The transforms are torch.func's own.  Their levels accept the tensors of the graph: real, fake, or recorded.
"""

from __future__ import annotations

import array
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.autograd.function import once_differentiable
from torch.utils import checkpoint as torch_checkpoint

from pycompiler.ir.generated_source import forward_of

Tensors = tuple[torch.Tensor, ...]


def grad_and_value(body: fx.GraphModule, count: int, *tensors: torch.Tensor) -> Tensors:
    """The gradients of the first result with respect to the first `count` tensors, then all results."""
    run, rest = forward_of(body), tensors[count:]

    def function(wanted: Tensors) -> tuple[torch.Tensor, Tensors]:
        loss, *others = run(*wanted, *rest)
        return loss, tuple(others)

    gradients, (loss, others) = torch.func.grad_and_value(function, has_aux=True)(tensors[:count])
    return (*gradients, loss, *others)


def vmap(
    body: fx.GraphModule,
    in_dims: Sequence[int],
    out_dims: Sequence[Any],
    randomness: str,
    chunk_size: int | None,
    *tensors: torch.Tensor,
) -> Tensors:
    """The body applied to each slice of the first ``len(in_dims)`` tensors."""
    run, rest = forward_of(body), tensors[len(in_dims) :]
    mapped = torch.func.vmap(
        lambda *slices: tuple(run(*slices, *rest)), tuple(in_dims), tuple(out_dims), randomness, chunk_size=chunk_size
    )
    return tuple(mapped(*tensors[: len(in_dims)]))


def jvp(body: fx.GraphModule, count: int, outputs: int, strict: bool, *tensors: torch.Tensor) -> Tensors:
    """`count` primals, as many tangents, then the rest → all results, then the tangents of the first `outputs` results."""
    run, rest = forward_of(body), tensors[2 * count :]

    def function(*primals: torch.Tensor) -> tuple[Tensors, Tensors]:
        results = tuple(run(*primals, *rest))
        return results[:outputs], results[outputs:]

    made: Any = torch.func.jvp(function, tensors[:count], tensors[count : 2 * count], strict=strict, has_aux=True)
    return (*made[0], *made[2], *made[1])


class Pullback:
    """The pullback of `torch.func.vjp` as a value of the graph.  It keeps the tensors of the forward alive."""

    def __init__(self, call: Callable[[Tensors], Tensors]) -> None:
        self.call = call


def vjp(body: fx.GraphModule, count: int, outputs: int, *tensors: torch.Tensor) -> tuple[Any, ...]:
    """`count` primals, then the rest → all results, then a pullback from cotangents of the first `outputs` to the primals'."""
    run, rest = forward_of(body), tensors[count:]

    def function(*primals: torch.Tensor) -> tuple[Tensors, Tensors]:
        results = tuple(run(*primals, *rest))
        return results[:outputs], results[outputs:]

    made: Any = torch.func.vjp(function, *tensors[:count], has_aux=True)
    return (*made[0], *made[2], Pullback(made[1]))


def apply_pullback(pullback: Pullback, *cotangents: torch.Tensor) -> Tensors:
    """The primals' cotangents."""
    return tuple(pullback.call(cotangents))


def cond(yes: fx.GraphModule, no: fx.GraphModule, kinds: Sequence[bool], pred: Any, *tensors: torch.Tensor) -> Tensors:
    """The results of one body.

    `kinds`: for each result, whether it requires grad, whichever body runs.
    Each tensor that requires grad then gets a gradient: zeros if the body does not read it.
    """
    return _reaching(kinds, forward_of(yes if pred else no)(*tensors), tensors)


def _reaching(kinds: Sequence[bool], results: Sequence[torch.Tensor], tensors: Sequence[Any]) -> Tensors:
    """The results.  Each result with a gradient is connected to each tensor that requires grad."""
    reached = [t for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad]
    if not reached or not torch.is_grad_enabled() or not any(kinds):
        return tuple(results)
    chosen = [r for r, k in zip(results, kinds, strict=True) if k]
    joined = iter(_ConnectedCopies.apply(len(chosen), *chosen, *reached))  # type: ignore[no-untyped-call]
    return tuple(next(joined) if k else r for r, k in zip(results, kinds, strict=True))


def while_loop(test: fx.GraphModule, body: fx.GraphModule, kinds: Sequence[bool], *tensors: torch.Tensor) -> Tensors:
    """The final values of the carried tensors, after the body ran while `test` held; the other tensors are the same in
    each pass.

        `kinds`: for each carried tensor, whether it has gradients.  Gradients reach all tensors as in `cond`."""
    carried, rest = tensors[: len(kinds)], tensors[len(kinds) :]
    if not forward_of(test)(*carried, *rest)[0]:
        return _reaching(kinds, tuple(t.clone() for t in carried), tensors)
    while True:
        carried = tuple(forward_of(body)(*carried, *rest))
        if not forward_of(test)(*carried, *rest)[0]:
            return _reaching(kinds, carried, tensors)


def scan(body: fx.GraphModule, kinds: Sequence[bool], counts: tuple[int, int], *tensors: torch.Tensor) -> Tensors:
    """The final carried tensors, and the stacked other results of the body.

    `counts`: how many tensors are carried from row to row, and how many of the next tensors are read row by row.
    The remaining tensors are the same for each row.
    """
    carried, rows, rest = tensors[: counts[0]], tensors[counts[0] : sum(counts)], tensors[sum(counts) :]
    run, made = forward_of(body), list[Tensors]()
    for row in zip(*rows, strict=True):
        results = tuple(run(*carried, *row, *rest))
        carried = results[: counts[0]]
        made.append(results[counts[0] :])
    return _reaching(kinds, (*carried, *map(torch.stack, zip(*made, strict=True))), tensors)


def connected_copies(count: int, *tensors: torch.Tensor) -> Tensors:
    """Copies of the first `count` tensors.  If a copy gets a gradient, each other tensor gets a gradient of zeros."""
    return tuple(_ConnectedCopies.apply(count, *tensors))  # type: ignore[no-untyped-call]


class _ConnectedCopies(torch.autograd.Function):
    """Copies of the first tensors, connected to all other tensors in the autograd graph."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> Tensors:
        ctx.others = [(t.shape, t.dtype, t.device) for t in tensors[count:]]
        return tuple(t.clone() for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        zeros = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.others]
        return None, *grads, *zeros


def checkpoint(body: fx.GraphModule, preserve_rng_state: bool, *tensors: torch.Tensor) -> Tensors:
    """The body's results; the backward recomputes its intermediate values."""
    made = torch_checkpoint.checkpoint(
        forward_of(body), *tensors, use_reentrant=False, preserve_rng_state=preserve_rng_state
    )
    return tuple(made)


def checkpoint_of_two(
    body: fx.GraphModule, again: fx.GraphModule, preserve_rng_state: bool, count: int, *tensors: torch.Tensor
) -> Tensors:
    """`checkpoint` of `body` over the first `count` tensors; the backward recomputes `again` over the other tensors.

    Used where the function reads variables that were set again between forward and backward.
    """
    left = [(body, tensors[:count])]

    def run(*_: torch.Tensor) -> Any:
        made, given = left.pop() if left else (again, tensors[count:])
        return forward_of(made)(*given)

    made = torch_checkpoint.checkpoint(run, *tensors, use_reentrant=False, preserve_rng_state=preserve_rng_state)
    return tuple(made)


class SelectiveCheckpoint:
    """`checkpoint` with the program's contexts: one around the forward, one around the recompute of the backward."""

    def __init__(self, context_fn: Callable[[], Any]) -> None:
        self.context_fn = context_fn
        self.__name__, self.__qualname__, self.__module__ = "checkpoint", "checkpoint", __name__

    def __call__(self, body: fx.GraphModule, preserve_rng_state: bool, *tensors: torch.Tensor) -> Tensors:
        made = torch_checkpoint.checkpoint(
            forward_of(body),
            *tensors,
            use_reentrant=False,
            preserve_rng_state=preserve_rng_state,
            context_fn=self.context_fn,
        )
        return tuple(made)


@functools.cache
def _named(cls: type, name: str) -> Any:
    return type(name, (cls,), {})


def is_checkpoint(target: object) -> bool:
    return target is checkpoint or isinstance(target, SelectiveCheckpoint)


end_hooks: list[object] = []
"""Handles of active hooks that end gradients at results.  Hooks of nodes further back must not run while there are any.
"""


@contextlib.contextmanager
def ending_gradients(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Context manager: gradients end at these tensors.  Their inputs get None, not zeros."""

    def end(number: int, gradients: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(None if k == number else g for k, g in enumerate(gradients))

    handles = [
        t.grad_fn.register_prehook(functools.partial(end, t.output_nr)) for t in tensors if t.grad_fn is not None
    ]
    end_hooks.extend(handles)
    try:
        yield
    finally:
        del end_hooks[: len(handles)]
        for handle in handles:
            handle.remove()


def partial_gradients(outputs: Tensors, grads: Tensors, ends: Tensors, older: Tensors) -> Tensors:
    """Gradients of `outputs`, given theirs, for `ends` and for `older`.  Gradients do not flow beyond `older`."""
    with ending_gradients(older):
        return torch.autograd.grad(outputs, (*ends, *older), grads, retain_graph=True, allow_unused=True)


Check = Callable[[fx.GraphModule, Tensors, Tensors], None]


class _HookCheck(threading.local):
    check: Check | None = None


_shown = _HookCheck()


@contextlib.contextmanager
def check_hook_bodies(check: Check) -> Iterator[None]:
    """Context manager: `check` is called before each body that transforms gradients, with the body, the gradients, and
    its other inputs."""
    outer, _shown.check = _shown.check, check
    try:
        yield
    finally:
        _shown.check = outer


def register_gradient_hook(body: fx.GraphModule, tensor: torch.Tensor, *others: torch.Tensor) -> None:
    """Register a hook: the gradient of `tensor` becomes the result of the body."""
    run = hook_of(body, others)
    tensor.register_hook(  # type: ignore[no-untyped-call]
        lambda grad: None if grad is None and end_hooks else run(grad)
    )


def hook_of(body: fx.GraphModule, others: Tensors) -> Callable[[torch.Tensor], torch.Tensor]:
    """A hook that returns the body's result for a gradient."""
    run, check = forward_of(body), _shown.check

    def hook(grad: torch.Tensor) -> torch.Tensor:
        if check is not None:
            check(body, (grad,), others)
        return run(grad, *others)[0]  # type: ignore[no-any-return]

    return hook


class _HookNode(torch.autograd.Function):
    """The autograd node that carries a module's backward hooks."""

    saves = False

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> Tensors:
        ctx.mark_non_differentiable(*(t for t in tensors if not t.requires_grad))
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads


def behind_common_node(*tensors: torch.Tensor) -> Tensors:
    """The same tensors, behind one common autograd node."""
    return tuple(_named(_HookNode, "BackwardHookFunction").apply(*tensors))


def is_passed(node: Any) -> bool:
    """Whether an autograd node was created by `behind_common_node`."""
    return isinstance(node, _named(_HookNode, "BackwardHookFunction")._backward_cls)


def function_value(
    forward: fx.GraphModule, count: int, plain: Sequence[int], dirty: Sequence[int], *tensors: torch.Tensor
) -> Tensors:
    """The results of an autograd Function that is not differentiated; see `function`."""
    return function(forward, None, count, -1, plain, dirty, (), (None,) * count, None, True, "function", *tensors)


def function(
    forward: fx.GraphModule,
    backward: fx.GraphModule | None,
    count: int,
    outputs: int,
    plain: Sequence[int],
    dirty: Sequence[int],
    kept: Sequence[int],
    places: Sequence[int | None],
    numbers: tuple[int, int] | None,
    once: bool,
    name: str,
    *tensors: torch.Tensor,
) -> Tensors:
    """An autograd Function of the first `count` tensors.

    `outputs`: how many results of `forward` are results of the Function; the others are saved tensors.
    `plain`: results without gradients.  `dirty`: indices of `tensors` that the forward writes in place and returns.
    `kept`: the saved values, in the order in which `backward` takes them after one gradient per output.
    They are indices of `tensors`, then of the forward's other results.
    `places`: for each of the first tensors, the result of `backward` that is its gradient.
    `numbers`: the number of arguments, and of gradients if there are fewer, which is an error.
    `name`: of the Function's class; errors and autograd nodes show it.
    """
    run = forward_of(forward)
    back = None if backward is None else forward_of(backward)
    wrong = None
    if numbers is not None:
        expected, got = numbers
        wrong = f"function {name}Backward returned an incorrect number of gradients (expected {expected}, got {got})"
    call = (run, back, outputs, plain, dirty, kept, places, wrong, backward)
    made = _named(_OnceDifferentiable if once else _Function, name).apply(call, tensors[count:], *tensors[:count])
    return tuple(made)


class _Function(torch.autograd.Function):
    """The Function of `function`."""

    @staticmethod
    def forward(ctx: Any, call: Any, others: Tensors, *direct: torch.Tensor) -> Tensors:
        run, _, outputs, plain, dirty, kept, *_ = ctx.call = call
        ctx.check = _shown.check
        given = (*direct, *others)
        made = tuple(run(*given))
        results, extras = (made, ()) if outputs < 0 else (made[:outputs], made[outputs:])
        saved = [(*given, *extras)[k] for k in kept]
        ctx.save_for_backward(*(t for t in saved if isinstance(t, torch.Tensor)))
        ctx.saves = any(isinstance(t, torch.Tensor) for t in saved)
        ctx.kept = [None if isinstance(t, torch.Tensor) else t for t in saved]  # sizes and numbers
        ctx.mark_non_differentiable(*(results[i] for i in plain))
        ctx.mark_dirty(*(direct[i] for i in dirty))
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        _, back, *_, places, wrong, body = ctx.call
        if back is None:
            raise RuntimeError("a gradient through an autograd Function that did not require grad when it was captured")
        tensors = iter(
            ctx.saved_tensors if ctx.saves else ()
        )  # a Function without saved tensors may run backward again
        others = tuple(next(tensors) if n is None else n for n in ctx.kept)
        if ctx.check is not None:
            ctx.check(body, grads, others)
        made = back(*grads, *others)
        if wrong is not None:
            raise RuntimeError(wrong)
        return None, None, *(None if at is None else made[at] for at in places)


class _OnceDifferentiable(_Function):
    """A Function whose backward cannot be differentiated."""

    backward = staticmethod(once_differentiable(_Function.backward))  # type: ignore[no-untyped-call, assignment]


def function_under_transforms(
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    count: int,
    plain: Sequence[int],
    kept: Sequence[int],
    places: Sequence[int | None],
    once: bool,
    name: str,
    *tensors: torch.Tensor,
) -> Tensors:
    """`function` under transforms, which require `setup_context`.  `kept`: indices of `tensors`, then of the Function's results.

    `vmap` maps the parts of the Function, whether or not the program's Function has a vmap rule of its own.
    Capture has already checked that a rule exists where one is required.
    """
    run, back, others = forward_of(forward), forward_of(backward), tensors[count:]
    held = {k: t for k, t in enumerate(others, count) if not isinstance(t, torch.Tensor)}  # numbers

    def apply(*direct: torch.Tensor) -> Tensors:
        return tuple(run(*direct, *others))

    def setup_context(ctx: Any, inputs: Tensors, results: Tensors) -> None:
        every = (*inputs, *others, *results)
        ctx.save_for_backward(*(every[k] for k in kept if k not in held))
        ctx.mark_non_differentiable(*(results[i] for i in plain))

    def gradients(ctx: Any, *grads: torch.Tensor) -> Any:
        saved = iter(ctx.saved_tensors)
        made = back(*grads, *(held[k] if k in held else next(saved) for k in kept))
        return tuple(None if at is None else made[at] for at in places)

    written = once_differentiable(gradients) if once else gradients  # type: ignore[no-untyped-call]
    methods: dict[str, Any] = {"forward": apply, "setup_context": setup_context, "backward": written}
    members = {n: staticmethod(m) for n, m in methods.items()} | {"generate_vmap_rule": True}
    return tuple(type(name, (torch.autograd.Function,), members).apply(*tensors[:count]))  # type: ignore[attr-defined]


def packed_layers(
    name: str, sizes: tuple[int, ...], flags: tuple[Any, ...], listed: bool, count: int, *tensors: torch.Tensor
) -> Tensors:
    """Recurrent layers over packed sequences.  `sizes`: the batch size of each step, which torch reads from a tensor."""
    data, hidden, weights = tensors[0], tensors[1 : 1 + count], tensors[1 + count :]
    batch_sizes = torch.frombuffer(array.array("q", sizes), dtype=torch.int64)  # created in a way that no mode sees
    held = [*hidden] if listed else hidden[0]
    with torch._C._DisablePythonDispatcher():  # its rule would turn the batch sizes into a fake tensor
        return tuple(getattr(torch._VF, name)(data, batch_sizes, held, [*weights], *flags))  # type: ignore[attr-defined]


def copy_into_leaf(tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """Copy data into a new leaf; autograd does not record the copy."""
    return tensor.data.copy_(data.detach())


def index_mapped(tensor: torch.Tensor, key: Any) -> torch.Tensor:
    """``tensor[key]`` as `vmap` computes it, with the 0-d tensors in the key as mapped integers."""
    items = key if isinstance(key, tuple) else (key,)
    numbers = [i.unsqueeze(0) for i in items if isinstance(i, torch.Tensor) and not i.dim()]

    def one(*numbers: torch.Tensor) -> torch.Tensor:
        rest = iter(numbers)
        return tensor[tuple(next(rest) if isinstance(i, torch.Tensor) and not i.dim() else i for i in items)]

    return torch.func.vmap(one)(*numbers)[0].clone()
