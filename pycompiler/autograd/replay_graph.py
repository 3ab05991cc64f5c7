"""The graph that a replay runs: a captured graph in which the caller's tensors can take the place of results.

In: a captured graph, and the results at which gradients of others end (`Joint.cuts`).
Out: the graph without metadata.  For each such result it has a further input: the caller's own tensor, or None.

Example: for ``y = x.exp(); return y, y.sin()`` the gradient of the second result by `y` is ``cos(y)``.  Its derivative by
`y` must reach the caller's `y`, so the graph continues from that tensor.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module

from pycompiler.autograd.joint import Joint
from pycompiler.autograd.recorder import tensors_in
from pycompiler.ir import higher_order
from pycompiler.ir.generated_source import drop_source_when_freed
from pycompiler.operators.kernel_type_checks import memory_of


def replay_module(
    gm: fx.GraphModule, joint: Joint, ends: Sequence[fx.Node | None]
) -> tuple[fx.GraphModule, list[bool]]:
    """`gm` without the metadata of its nodes, which keeps a compile's tensors alive, and without the hooks of `joint`.

    The caller's results have these hooks.
    After its results, the graph returns the values of `Joint.more`.  Then, for each result or input of `ends` (or
    None), it returns the value from which it continues.  It has one further input per end, for the caller's tensor.
    Also returns, for each end, whether its input has an effect.
    """
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    results, moved = [*results_of(gm), *joint.more], {hook.call for hook in joint.hooks}
    points = [None if end is None else _point(gm.graph, end) for end in ends]
    links_of = [linked if end is None or not has_inner_gradient(end, gm.graph.nodes) else linked_later for end in ends]
    before: dict[fx.Node, fx.Node] = {}
    links: list[fx.Node] = []
    last = [n for n in gm.graph.nodes if n.op == "placeholder"][-1:]

    def copy(node: fx.Node) -> None:
        env[node] = graph.node_copy(node, env.__getitem__)
        env[node].meta = {}
        if [node] == last:
            links.extend(graph.placeholder(f"end_{k}") for k in range(len(ends)))
        if node.target is higher_order.register_gradient_hook:
            env[node].target = hooked
        for link, point, how in zip(links, points, links_of, strict=False):
            if point is not None and point[0] is node:
                made = graph.call_function(how, (env[point[1][0]], link))
                before.update((n, env[n]) for n in point[1])
                env.update(dict.fromkeys(point[1], made))

    for node in gm.graph.nodes:
        if node not in moved:
            copy(node)
    if joint.more or ends:
        given = [before.get(n, env[n]) if isinstance(n, fx.Node) else n for n in results]
        going = [env[end] if end is not None else None for end in ends]
        graph.output_node().args = ((*given, *going),)
    with _use_lazy_graph_module(True):
        module: fx.GraphModule = _make_graph_module(gm, graph)
    drop_source_when_freed(module)
    return module, [point is not None for point in points]


def results_of(gm: fx.GraphModule) -> Sequence[Any]:
    """The nodes of a graph's results."""
    return _given(gm.graph.output_node())


def _given(output: fx.Node) -> Sequence[Any]:
    results: Any = output.args[0]
    return results if isinstance(results, (tuple, list)) else (results,)


def _point(graph: fx.Graph, result: fx.Node) -> tuple[fx.Node, list[fx.Node]] | None:
    """The node after which a result has its final value, and the nodes that stand for it there.

    None if an earlier value of the same memory is still read afterwards, or if this is unknown.
    """
    memory = _memory([result])
    nodes = {n: i for i, n in enumerate(graph.nodes)}
    same = [n for n in nodes if not _memory([n]).isdisjoint(memory)]
    readers = {
        user
        for n in same
        for user in n.users
        if user.op != "output" and user.target is not higher_order.register_gradient_hook
    }
    writes = {n: _writes(n) for n in (*readers, result)}
    if not memory or any(written is None for written in writes.values()) or _is_one_of(result):
        return None
    told = {n: [w for w in written or () if w.meta["example_value"].requires_grad] for n, written in writes.items()}
    at = max([result, *(n for n in readers if not _memory(told[n]).isdisjoint(memory))], key=nodes.__getitem__)
    if at is result and not told[result]:
        return at, [result]
    itself = [result]
    # a method that returns the tensor it writes
    while (written := itself[-1]).op == "call_method" and str(written.target).endswith("_"):
        itself.append(written.args[0])  # type: ignore[arg-type]
    itself += [at] if at.op == "call_method" and at.args[0] in itself and str(at.target).endswith("_") else []
    early = (n for n in same if nodes[n] <= nodes[at] and n not in itself)
    if any(nodes[user] > nodes[at] and user.op != "output" for n in early for user in n.users):
        return None
    return at, itself


_GIVEN_TOGETHER = (
    higher_order.grad_and_value, higher_order.vmap, higher_order.jvp, higher_order.vjp,
    higher_order.apply_pullback, higher_order.partial_gradients,
    torch.autograd.grad,
)  # fmt: skip


def _is_one_of(value: fx.Node) -> bool:
    """Whether one call returns a value together with other values computed from it."""
    made: Any = value.args[0] if value.target is operator.getitem else None
    return made is not None and (made.target in _GIVEN_TOGETHER or higher_order.is_checkpoint(made.target))


def has_inner_gradient(tensor: fx.Node, nodes: Iterable[fx.Node]) -> bool:
    """Whether the graph itself computes gradients that may pass through a tensor; `nodes`: all, in order."""
    behind = {tensor}
    for n in nodes:
        if not behind.isdisjoint(n.all_input_nodes):
            if n.target in (torch.autograd.grad, higher_order.partial_gradients):
                return True
            behind.add(n)
    return False


def _writes(node: fx.Node) -> Sequence[fx.Node] | None:
    """The tensors that a call writes; None if unknown."""
    if "writes" in node.meta:
        return node.meta["writes"]  # type: ignore[no-any-return]
    if node.op in ("placeholder", "get_attr", "output") or node.target is operator.getitem:
        return ()
    bodies = [a.meta["example_value"] for a in node.all_input_nodes if a.op == "get_attr"]
    inside = [n for body in bodies if isinstance(body, fx.GraphModule) for n in body.graph.nodes]
    dirty = node.target is higher_order.function and node.args[5]
    known = inside and not dirty and all(_writes(n) == [] or _writes(n) == () for n in inside)
    return () if known else None


def _memory(nodes: Sequence[fx.Node]) -> set[int]:
    return {memory_of(t) for n in nodes for t in tensors_in(n.meta.get("example_value"))}


class _Linked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, end: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        # autograd nodes of lists pass gradients on to all items, and most of these are undefined
        ctx.set_materialize_grads(False)
        return value.detach()  # not a view: other tensors with its memory may be written

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None


def linked(value: torch.Tensor, end: torch.Tensor | None) -> torch.Tensor:
    """`value`, with derivatives of `end` if there is one."""
    return value if end is None else _Linked.apply(end, value.detach())  # type: ignore[no-untyped-call,no-any-return]


class _LinkedLater(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, end: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return value.detach()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return (grad, None) if getattr(ctx, "goes_on", False) else (None, grad)


def linked_later(value: torch.Tensor, end: torch.Tensor | None) -> torch.Tensor:
    """As `linked`, but only after the graph has run: gradients that the graph itself computes flow to `value`."""
    return value if end is None else _LinkedLater.apply(end, value)  # type: ignore[no-untyped-call,no-any-return]


def mark_run_ended(ends: Sequence[Any]) -> None:
    """Mark the end of the graph's run, which returned `ends`."""
    for t in ends:
        if isinstance(t, torch.Tensor) and isinstance(t.grad_fn, torch.autograd.function.BackwardCFunction):
            t.grad_fn.goes_on = True  # type: ignore[attr-defined]


def hooked(body: fx.GraphModule, tensor: torch.Tensor, *others: torch.Tensor) -> None:
    """As `higher_order.register_gradient_hook`, but the hook does not run without a gradient: derivatives then continue
    elsewhere."""
    run = higher_order.hook_of(body, others)
    tensor.register_hook(lambda grad: None if grad is None else run(grad))  # type: ignore[no-untyped-call]


def end_of(value: torch.Tensor) -> torch.Tensor:
    """A tensor without memory that passes derivatives on to `value` unchanged; created while gradients are enabled."""
    end: torch.Tensor = torch.ops.aten.alias.default(value)
    end.data = _NOTHING
    return end


@contextlib.contextmanager
def history_at_version(end: torch.Tensor, version: int) -> Iterator[bool]:
    """Context manager: `end` has the history of `version`, even if its value was written since.

    Yields whether it was written; the history of a view then starts anew.
    """
    now = end._version
    if now == version:
        yield False
        return
    _set_versions((end,), (version,))
    try:
        yield True
    finally:
        _set_versions((end,), (now,))


class DerivativeRoots:
    """Results saved by eager's autograd nodes, their own or later ones.

    Derivatives of gradients by such a result must reach the caller's tensor, as in eager, where the replay has a copy
    of it.  The derivative that arrives at the copy's node is taken there, and passed on at the start of the replay.
    """

    def __init__(self, ends: Mapping[int, torch.Tensor]) -> None:
        self.ends = ends
        self._taken: dict[int, torch.Tensor] = {}

    def root(self, value: torch.Tensor, results: Sequence[int], *, has_memory: bool) -> torch.Tensor:
        """`value`, from which the replay starts; the `results` depend on it."""
        node: Any = value.grad_fn
        like = None if has_memory else node._input_metadata[value.output_nr]
        return _Root.apply(self, results, like, value, *(self.ends[k] for k in results))  # type: ignore[no-untyped-call,no-any-return]

    def take(self, result: int, made: torch.Tensor) -> None:
        """Register `made`, the replay's own `result`, after the gradients are computed."""
        if made.grad_fn is not None:
            made.grad_fn.register_prehook(functools.partial(self._take, result, made.output_nr))

    def _take(self, result: int, number: int, gradients: Sequence[Any]) -> tuple[Any, ...]:
        if gradients[number] is not None:
            self._taken[result] = gradients[number]
        return tuple(None if k == number else g for k, g in enumerate(gradients))

    def taken(self, results: Sequence[int]) -> list[torch.Tensor | None]:
        return [self._taken.pop(k, None) for k in results]


def led_to(
    gradients: Mapping[int, torch.Tensor], results: Mapping[int, torch.Tensor], behind: Collection[Any]
) -> dict[int, frozenset[int]]:
    """For each gradient: the `results` whose nodes its derivatives pass on their way to the nodes `behind`.

    Hooks of a result also run if another result of the same call gets a gradient, and their node saves its own result.
    """
    places: dict[Any, set[int]] = {}
    for k, t in results.items():
        places.setdefault(t.grad_fn, set()).add(k)
    found: dict[Any, frozenset[int]] = {}

    def passed(node: Any) -> frozenset[int]:
        return found.get(node, frozenset()).union(places.get(node, ()))

    stack: list[tuple[Any, bool]] = [(g.grad_fn, False) for g in gradients.values()]
    while stack:
        node, done = stack.pop()
        if done:
            found[node] = frozenset[int]().union(*(passed(n) for n, _ in node.next_functions))
        elif node is not None and node not in found:
            found[node] = frozenset()
            if node not in behind and not isinstance(node, _Linked._backward_cls):  # type: ignore[attr-defined]
                stack.append((node, True))
                stack.extend((n, False) for n, _ in node.next_functions)
    return {i: passed(g.grad_fn) for i, g in gradients.items()}


class _Root(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, onward: DerivativeRoots, results: Sequence[int], like: Any, value: torch.Tensor, *ends: torch.Tensor
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.onward, ctx.results = onward, results
        if like is None:
            return value.view_as(value)
        return torch.empty((), dtype=like.dtype, device=like.device).expand(like.shape)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None, None, None, grad, *ctx.onward.taken(ctx.results)


class PassThrough(torch.autograd.Function):
    """A tensor subclass with a node that passes gradients on unchanged, since not each class supports `aten.alias`."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


_NOTHING = torch.empty(0)
_set_versions: Any = torch._C._autograd._unsafe_set_version_counter
