"""Hooks that a backward in the frame calls: hooks of tensors (`register_hook`), and full backward hooks of modules.

In: a hook with effects, so it cannot be traced into a graph of its own.
Out: autograd goes backward in parts (`higher_order.partial_gradients`).  Between two parts the hook is inlined like any call.
Autograd's engine runs nodes in descending order of their sequence numbers.  A part is all nodes younger than the
hook's node.  Gradients for older nodes wait.
Example: in ``y = f(x); y.register_hook(seen.append); g(y).sum().backward()`` the graph computes the gradient of
``y``, then from it the gradient of ``x``.

A hook that a backward outside of the frame would call cannot be inlined.  Then the frame is captured again (`RestartCapture`),
and the registration is a break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from pycompiler.capture.breaks import Break, Raised, RestartCapture
from pycompiler.capture.semantics import polyfills
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import Sequence, Tuple
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir import higher_order
from pycompiler.torch_compat import torch_state

KIND = "unsupported-operation"
HOOKS_INLINED, HOOKS_OUTLIVE = ("hooks act",), ("hooks outlive the frame",)
Ready = Callable[[list[tuple[Tensor, Tensor]]], None]


@dataclass(eq=False)
class Hooks:
    """The hooks of one autograd node.

    `of_tensors`: hooks of its results, as (output number, tensor, hook).
    `of_node`: hooks of the node itself, which passes gradients from `after` to `before`.
    """

    of_tensors: list[tuple[int, Tensor, Value]] = field(default_factory=list)
    of_node: list[Value] = field(default_factory=list)
    before: list[Tensor] = field(default_factory=list)
    after: list[Tensor] = field(default_factory=list)


def hooks_are_inlined(cx: Capture) -> bool:
    """Whether backwards in the frame call the hooks."""
    return HOOKS_INLINED in cx.tried and HOOKS_OUTLIVE not in cx.tried and not cx.graph.is_inner


def restart_with_hooks(cx: Capture) -> None:
    """A hook has effects: restart the capture, with all hooks of the frame called this way."""
    if HOOKS_INLINED not in cx.tried:
        cx.tried[HOOKS_INLINED] = True
        raise RestartCapture


def module_hook_node(cx: Capture, tensors: list[Value]) -> Value:
    """`BackwardHookFunction.apply`, which creates the autograd node of a module's hooks."""
    told = Break("builtin-call", "the autograd node of a module's backward hooks")
    given = [t for t in tensors if isinstance(t, Tensor) and not t.is_special]
    plain = len(given) == len(tensors) and not cx.inference.open and not cx.graph.descending
    if cx.graph.is_inner or cx.graph.packs or cx.graph.later or HOOKS_OUTLIVE in cx.tried or not plain:
        raise told
    restart_with_hooks(cx)
    made = cx.graph.call_inner(higher_order.behind_common_node, [], [*given])
    assert isinstance(made, Sequence)
    after = [t for t in map(cx.realize, made.items) if isinstance(t, Tensor)]
    node = next((t.grad_fn for t in after if t.grad_fn is not None), None)
    if node is None or len(after) != len(given):
        raise told
    cx.graph.hooks[node] = Hooks(before=given, after=after)
    return Tuple([*after])


def hook_of_tensor(cx: Capture, tensor: Tensor, hook: Value) -> Callable[[], None]:
    """`tensor.register_hook(hook)`; returns a function that removes the hook."""
    if cx.graph.descending:
        raise Break("unsupported-attribute", "Tensor.register_hook() in a hook of a backward")
    entry = (tensor.output_nr, tensor, hook)
    entries = cx.graph.hooks.setdefault(tensor.grad_fn, Hooks()).of_tensors
    entries.append(entry)

    def remove() -> None:
        if entry in entries:
            entries.remove(entry)

    return remove


def check(cx: Capture, outputs: list[torch.Tensor]) -> None:
    """At the end of the graph: restart if a backward outside could reach a node with hooks."""
    live = {n for n, h in cx.graph.hooks.items() if h.of_tensors or h.after}
    if live and any(n in live for n in _behind([t.grad_fn for t in outputs])):
        cx.tried[HOOKS_OUTLIVE] = True
        raise RestartCapture


def _behind(roots: list[Any]) -> Iterator[Any]:
    todo, seen = roots, set[Any]()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        todo += [n for n, _ in node.next_functions]


def number_of(node: Any) -> int:
    """The engine's order of nodes; the youngest node has the highest number."""
    return int(node._sequence_nr())


# a backward in parts ----------------------------------------------------------------------------------------------------
def run_backward(
    cx: Capture,
    outputs: list[Tensor],
    given: Value,
    wanted: list[Tensor],
    ready: Ready,
    *,
    retained: bool,
    accumulates: bool,
    method: bool = False,
) -> set[Any]:
    """Pass gradients from `outputs` back to the `wanted` tensors; returns the nodes that were run.

    `ready` receives finished gradients in autograd's order.
    `accumulates`: as a backward does.
    `method`: the program calls `Tensor.backward`.
    """
    descent = _BackwardInParts(cx, outputs, wanted, ready, retained, accumulates)
    descent.caller = polyfills.method_of_hook if method else polyfills.backward_of_hook
    if descent.hooked:
        descent.run([*given.items] if isinstance(given, Sequence) else [given] * len(outputs))
    else:
        descent.all(given)
        descent.finish(-1)
    return descent.leading


class _BackwardInParts:
    def __init__(
        self,
        cx: Capture,
        outputs: list[Tensor],
        wanted: list[Tensor],
        ready: Ready,
        retained: bool,
        accumulates: bool,
    ) -> None:
        self.cx, self.outputs, self.wanted, self.ready = cx, outputs, wanted, ready
        self.retained, self.accumulates = retained, accumulates
        # tensors whose gradients go on to older nodes, with the gradients
        self.waiting: list[tuple[Tensor, Value]] = []
        self.found: dict[Tensor, list[Tensor]] = {}
        self.leaves = {id(t.fake): t for t in wanted if t.grad_fn is None}
        self.results = {(t.grad_fn, t.output_nr): t for t in wanted if t.grad_fn is not None}
        self.last: dict[Tensor, int] = {}  # leaf → the number of the last node that gives a gradient for it
        nodes = {n for n, _ in self.results}
        self.leading = self._leading(nodes)
        self.hooked = sorted(
            (n for n in cx.graph.hooks if n in self.leading or n in nodes), key=number_of, reverse=True
        )
        self.by_edge: dict[tuple[Any, int], Tensor] = {}
        self.caller: Callable[..., Any] = polyfills.backward_of_hook

    def _leading(self, nodes: set[Any]) -> set[Any]:
        """The nodes that the engine runs: nodes with a path to a wanted tensor."""
        found = set[Any]()
        roots = [t.grad_fn for t in self.outputs if t.grad_fn is not None]
        for node in sorted(_behind(roots), key=number_of):  # the nodes behind a node are older
            for older, _ in node.next_functions:
                leaf = self.leaves.get(id(getattr(older, "variable", None)))
                if leaf is not None:
                    self.last.setdefault(leaf, number_of(node))
                if leaf is not None or older in found or older in nodes:
                    found.add(node)
        return found

    def run(self, grads: list[Value]) -> None:
        """Run one part for each node with hooks, and one for the rest."""
        self.waiting = [(t, self._begun(t, g)) for t, g in zip(self.outputs, grads, strict=True)]
        for value in [*self.cx.graph.by_fake.values()]:
            node = None if value.is_special else _history(value.fake)
            if node is not None:
                self.by_edge.setdefault((node, value.output_nr), value)
        self._check()
        self.cx.graph.descending = True
        try:
            for node in self.hooked:
                self.down_to(number_of(node))
                self.call(node, self.cx.graph.hooks[node])
            self.down_to(-1)
        finally:
            self.cx.graph.descending = False

    def _check(self) -> None:
        """Break if code that each part would run again is not free of effects."""
        first = number_of(self.hooked[0])
        for node in self.leading:
            own = isinstance(node, torch.autograd.function.BackwardCFunction) and not higher_order.is_passed(node)
            if own and number_of(node) < first:
                raise Break(KIND, "backward() through a hook, and then through an autograd Function")
        if any(higher_order.is_checkpoint(n.target) for n in self.cx.graph.graph.nodes):
            raise Break(KIND, "backward() through a hook, in a graph with a checkpoint")

    def _begun(self, output: Tensor, grad: Value) -> Value:
        grad = self.cx.realize(grad)
        if not self.cx.is_none(grad):
            return grad
        if output.rank:
            raise Break(KIND, "backward() without a gradient for an output that is not a scalar")
        return self.cx.graph.call_function(torch.ones_like, [output], {})

    def down_to(self, number: int) -> None:
        """Run the nodes that are younger than this number."""
        active = [e for e in self.waiting if e[0].grad_fn is None or number_of(e[0].grad_fn) > number]
        self.waiting = [e for e in self.waiting if e not in active]
        roots, grads = [t for t, _ in active], [g for _, g in active]
        ends, older = self._ends(roots, number)
        if ends or older:
            self.part(roots, grads, ends, older)
        self.finish(number)

    def _ends(self, roots: list[Tensor], number: int) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors that a part gives gradients for: wanted tensors, and results of older nodes."""
        ends, older, seen = dict[Tensor, None](), dict[Tensor, None](), set[Any]()
        ends |= {t: None for t in roots if id(t.fake) in self.leaves}
        todo: list[tuple[Any, int]] = [(t.grad_fn, t.output_nr) for t in roots]
        while todo:
            edge = node, _ = todo.pop()
            if node is None or edge in seen:
                continue
            seen.add(edge)
            if (leaf := self.leaves.get(id(getattr(node, "variable", None)))) is not None:
                ends[leaf] = None
            elif node not in self.leading and edge not in self.results:
                continue
            elif number_of(node) <= number:
                older[self._tensor(edge)] = None
            else:
                ends |= {self.results[edge]: None} if edge in self.results else {}
                todo += node.next_functions if node in self.leading else ()
        return [*ends], [*older]

    def _tensor(self, edge: tuple[Any, int]) -> Tensor:
        if edge not in self.by_edge:
            raise Break(KIND, "backward() through a hook, and through a tensor that was written in place later")
        return self.by_edge[edge]

    def all(self, grads: Value) -> None:
        """Run one call of `torch.autograd.grad`."""
        made = self.cx.graph.call_function(
            torch.autograd.grad,
            [Tuple([*self.outputs]), Tuple([*self.wanted])],
            {"grad_outputs": grads, "retain_graph": Const(self.retained), "allow_unused": Const(True)},
        )
        self._note(made, self.wanted, [])

    def part(self, roots: list[Tensor], grads: list[Value], ends: list[Tensor], older: list[Tensor]) -> None:
        given = [Tuple([*values]) for values in (roots, grads, ends, older)]
        self._note(self.cx.graph.call_inner(higher_order.partial_gradients, [], given), ends, older)

    def _note(self, made: Value, ends: list[Tensor], older: list[Tensor]) -> None:
        assert isinstance(made, Sequence)
        found = [self.cx.realize(grad) for grad in made.items]
        for grad in found:
            if isinstance(grad, Tensor) and (grad.layout is not torch.strided or grad.is_special):
                raise Break(KIND, f"backward() that gives {grad.describe()}, which is sparse or a tensor subclass")
        for tensor, grad in zip(ends, found, strict=False):
            if isinstance(grad, Tensor):
                self.found.setdefault(tensor, []).append(grad)
        self.waiting += [e for e in zip(older, found[len(ends) :], strict=True) if isinstance(e[1], Tensor)]

    def finish(self, number: int) -> None:
        """Report the wanted tensors that get no gradient from older nodes."""
        done = [t for t in self.wanted if t in self.found and self.last.get(t, number + 1) > number]
        if done:
            self.ready([(t, self._sum([*self.found.pop(t)])) for t in dict.fromkeys(done)])

    def _sum(self, grads: list[Value]) -> Tensor:
        total, *rest = grads
        for grad in rest:
            total = self.cx.graph.call_function(torch.add, [total, grad], {})
        assert isinstance(total, Tensor)
        return total

    # hooks ----------------------------------------------------------------------------------------------------
    def call(self, node: Any, hooks: Hooks) -> None:
        """Call the hooks of a node's results, then the node's own."""
        given: dict[int, list[Value]] = {}
        tensors: dict[int, Tensor] = {}
        for tensor, grad in [e for e in self.waiting if e[0].grad_fn is node]:
            given.setdefault(tensor.output_nr, []).append(grad)
            tensors[tensor.output_nr] = tensor
        self.waiting = [e for e in self.waiting if e[0].grad_fn is not node]
        grads = {nr: self._sum(parts) for nr, parts in given.items()}
        # For `autograd.grad`, the gradient of a node that runs is the gradient that arrived at it.
        early = not self.accumulates and node in self.leading
        for nr in [nr for nr in grads if early and (node, nr) in self.results]:
            self.found[self.results.pop((node, nr))] = [grads[nr]]
        for nr, _, hook in [*hooks.of_tensors]:
            if nr not in grads:
                raise Break(KIND, "a hook of a tensor that gets no gradient")
            grads[nr] = self._made(grads[nr], self._call(hook, [grads[nr]]))
        if not hooks.after:
            self.waiting += [(tensors[nr], grad) for nr, grad in grads.items()]
            return
        if not grads:
            raise Break(KIND, "a module's backward hook that no gradient reaches")
        for nr, grad in grads.items():
            if (node, nr) in self.results:
                self.found.setdefault(self.results[node, nr], []).append(grad)
        if node in self.leading:
            self._through(hooks, grads)

    def _through(self, hooks: Hooks, grads: dict[int, Tensor]) -> None:
        """Call the hooks of a module's node on its gradients."""
        outs: list[Value] = [grads.get(nr, Const(None)) for nr in range(len(hooks.after))]
        ins = [g if isinstance(g, Tensor) else self._zeros(t) for g, t in zip(outs, hooks.after, strict=True)]
        for hook in hooks.of_node:
            made = self.cx.realize(self._call(hook, [Tuple([*ins]), Tuple([*outs])]))
            if self.cx.is_none(made):
                continue
            items = [*made.items] if isinstance(made, Tuple) else [made]
            if len(items) != len(ins):
                raise Break("builtin-call", "a hook that returns another number of gradients than it receives")
            ins = [self._made(a, b, none=True) for a, b in zip(ins, items, strict=True)]
        self.waiting += [
            (t, g) for t, g in zip(hooks.before, ins, strict=True) if t.requires_grad and isinstance(g, Tensor)
        ]

    def _zeros(self, tensor: Tensor) -> Value:
        """The zeros that stand for a missing gradient, as a Function receives it."""
        size = Tuple([self.cx.make(n) for n in tensor.shape])
        like: dict[str, Value] = {"dtype": Const(tensor.dtype), "device": Const(tensor.device)}
        return self.cx.graph.call_function(torch.zeros, [size], like)

    def _call(self, hook: Value, args: list[Value]) -> Value:
        state, functions = torch_state.read_state(), self.cx.functions.now()
        try:
            made = self.cx.call(self.cx.make(self.caller), [hook, *args], {})
        except Raised as raised:
            raise Break("builtin-call", f"a hook that raises {raised.value.describe()}") from None
        if torch_state.read_state() != state or self.cx.functions.now() != functions:
            raise Break("global-state", "a hook that leaves torch's global state changed")
        return made

    def _made(self, grad: Value, made: Value, *, none: bool = False) -> Any:
        """The gradient after a hook.  Breaks unless it has the old gradient's dtype, device, shape and layout, as
        autograd requires."""
        made = self.cx.realize(made)
        if self.cx.is_none(made):
            return made if none else grad
        fits = isinstance(made, Tensor) and isinstance(grad, Tensor) and not made.is_special
        if fits:
            a, b = grad.fake, made.fake  # type: ignore[attr-defined]
            fits = (a.dtype, a.device, a.shape, a.layout) == (b.dtype, b.device, b.shape, b.layout)
        if not fits:
            raise Break("builtin-call", f"a hook that returns {made.describe()} for the gradient {grad.describe()}")
        return made


def _history(fake: torch.Tensor) -> Any:
    try:
        return fake.grad_fn
    except RuntimeError:  # a view whose history was lost by a write
        return None
