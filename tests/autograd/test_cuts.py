"""Gradients by results of a compiled graph, through values that the graph computed from these results, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ad_helpers import fakes, lifted, run_graph
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import pycompiler
from pycompiler.autograd import compile_joint
from pycompiler.autograd.trace.gradient_paths import choose_cuts
from pycompiler.autograd.unsupported import AutogradUnsupported
from tests.harness.compare import assert_same

BACKENDS = ("aot_eager", "native")
Tensors = tuple[torch.Tensor, ...]


def squares(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x.sin() @ w
    return y, (y * y).cumsum(0)


def classified(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    logits = x @ w
    return logits, F.cross_entropy(logits, torch.tensor([0, 2, 1]))


def chain(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    first = x.sin()
    second = first.exp() @ w
    return first, second, (second * first + x).cos()


def backwards(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    inner = x.sin()
    outer = inner.cos() * w
    return outer, inner, inner.sum() * outer


def in_place(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = torch.relu_(x @ w)
    return y, y.pow(2).softmax(0)


def of_a_view(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = (x @ w).t()
    return y, y.exp()[1:]


def random(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = F.dropout(x @ w, 0.5)
    return y, F.dropout((y * x.sum()).tanh(), 0.3)


def two_behind(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x @ w
    return y, y.sin(), y.cos() * w, x.exp()


def states(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    made = [x]
    for _ in range(4):
        made.append(made[-1] + F.layer_norm(made[-1], [3]).tanh() @ w)
    return tuple(made[1:])


def broken(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x @ w
    z = y.sigmoid()
    pycompiler.graph_break()
    return y, z, z * y.sum()


def shared(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    both = x @ w
    y = both.exp()
    return y, (y * both).cos()


def shared_in_a_chain(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    h = x.exp()
    k = h * w
    y = k + h
    z = y * k * h
    return y, z, (z * y * h).sin()


def views(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x.exp()
    z = y.view(-1)
    return y, z, z[1:5], z.sin() * w.view(-1)


def views_of_nothing_returned(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x * w
    v = y[0]
    return v, y.t(), v.exp() + y.sum()


def views_of_an_input(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x.t()
    return y, y[1:], (y[1:] @ w).sin(), y.exp()


def taken_apart(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    a, b, c = (x * w).unbind()
    return a, b, a * b + c


def written_views(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x * 2
    z = y[0]
    z.mul_(w[0])
    return z, y, y.sin(), z.cos()


PROGRAMS = (
    *(squares, classified, chain, backwards, in_place, of_a_view, random, two_behind, states, broken),
    *(shared, shared_in_a_chain, views, views_of_nothing_returned, views_of_an_input, taken_apart, written_views),
)


def leaves() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(3, 3, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(2)]


def by_the_first(run: Any, inputs: list[torch.Tensor]) -> Any:
    made = run(*inputs)
    return torch.autograd.grad(made[-1].sum(), [made[0], *inputs], allow_unused=True)


def by_all(run: Any, inputs: list[torch.Tensor]) -> Any:
    made = run(*inputs)
    asked = [t for t in (*made, *inputs) if t.requires_grad]
    return [
        torch.autograd.grad(t.sin().sum(), asked, retain_graph=True, allow_unused=True) for t in made if t.requires_grad
    ]


def hooked(run: Any, inputs: list[torch.Tensor]) -> Any:
    made, seen = run(*inputs), []
    for k, t in enumerate(made):
        t.register_hook(lambda g, k=k: seen.append((k, g.clone())))
        t.retain_grad()
    sum(t.sin().sum() for t in made).backward()
    return sorted(seen, key=lambda at: at[0]), [t.grad for t in (*made, *inputs)]


def changed_by_a_hook(run: Any, inputs: list[torch.Tensor]) -> Any:
    made = run(*inputs)
    made[0].register_hook(lambda g: 3 * g)
    sum(t.cos().sum() for t in made).backward()
    return [x.grad for x in inputs]


def twice(run: Any, inputs: list[torch.Tensor]) -> Any:
    made = run(*inputs)
    first = torch.autograd.grad((made[-1] ** 2).sum(), [made[0], *inputs], create_graph=True, allow_unused=True)
    total = sum(g.sin().sum() for g in first if g is not None)
    return first, torch.autograd.grad(total, inputs, allow_unused=True)


def batched(run: Any, inputs: list[torch.Tensor]) -> Any:
    made = run(*inputs)
    directions = torch.stack([torch.ones_like(made[-1]), torch.full_like(made[-1], 2.0)])
    return torch.autograd.grad(made[-1], [made[0], *inputs], directions, is_grads_batched=True, allow_unused=True)


def one_after_the_other(run: Any, inputs: list[torch.Tensor]) -> Any:
    made = run(*inputs)
    made[-1].sum().backward()
    with pytest.raises(RuntimeError, match="a second time"):
        made[-1].sum().backward()
    return [x.grad for x in inputs]


ASKED = (by_the_first, by_all, hooked, changed_by_a_hook, twice, batched, one_after_the_other)


def check(run: Any, program: Any, ask: Callable[..., Any]) -> None:
    torch.manual_seed(1)
    expected = ask(program, leaves())
    torch.manual_seed(1)
    assert_same(ask(run, leaves()), expected, tolerance=1e-9, strides=False)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_gradients_by_what_a_graph_returns(program: Any, backend: str) -> None:
    run = pycompiler.compile(program, backend=backend)
    for ask in ASKED:
        check(run, program, ask)


def test_sizes_that_change() -> None:
    run = pycompiler.compile(squares, dynamic=True)
    for n in (3, 5, 2):

        def ask(f: Any, inputs: list[torch.Tensor], n: int = n) -> Any:
            return by_the_first(
                f, [torch.linspace(0, 1, 3 * n, dtype=torch.float64).view(n, 3).requires_grad_(), inputs[1]]
            )

        check(run, squares, ask)
    assert pycompiler.explain(squares)(*leaves()).graph_count == 1


def test_a_written_intermediate_is_refused_where_a_gradient_needs_it() -> None:
    def ask(run: Any, inputs: list[torch.Tensor]) -> str:
        y, z = run(*inputs)[:2]
        with torch.no_grad():
            y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
            z.sum().backward()
        return caught.type.__name__

    assert ask(pycompiler.compile(squares), leaves()) == ask(squares, leaves())


def test_a_map_of_what_a_network_looks_at() -> None:
    """Grad-CAM: the gradient of a score by the features."""

    class Seeing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
            self.head = nn.Linear(4, 5)

        def forward(self, image: torch.Tensor) -> Tensors:
            features = self.body(image)
            return features, self.head(features.mean((2, 3)))

    torch.manual_seed(0)
    module, image = Seeing().double(), torch.randn(2, 3, 8, 8, dtype=torch.float64)

    def seen(run: Any) -> Any:
        features, scores = run(image)
        (weights,) = torch.autograd.grad(scores[:, 1].sum(), features, retain_graph=True)
        scores.logsumexp(1).sum().backward()
        grads = [p.grad for p in module.parameters()]
        module.zero_grad(set_to_none=True)
        return features, weights, grads

    torch.testing.assert_close(seen(pycompiler.compile(module)), seen(module), rtol=1e-9, atol=1e-9)


def backwards_of(program: Any) -> int:
    """The number of backward graphs of a call of `program`."""
    graphs = []

    def compiler(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        graphs.append(gm)
        return run_graph(gm, examples)

    gm, _ = lifted(program, leaves())
    compiled = compile_joint(gm, fakes(gm), fw_compiler=run_graph, bw_compiler=compiler)
    sum(t.sum() for t in compiled(*leaves())).backward()
    return len(graphs)


def test_work_that_results_share_is_a_node_of_its_own() -> None:
    assert backwards_of(shared) == 3
    assert backwards_of(squares) == 2
    assert backwards_of(states) == 4
    assert backwards_of(lambda x, w: (x.sin(), x.cos())) == 1


def test_where_gradients_can_end() -> None:
    def ends(outputs: list[torch.Tensor], which: list[int], known: Any = None) -> Any:
        found = choose_cuts(outputs, {(outputs[k].grad_fn, outputs[k].output_nr): k for k in which}, known or {}, tops)
        return found if known else found[0]

    tops: set[int] = set()

    x = leaves()[0]
    y = x.sin()
    z = y.exp()
    assert ends([y, z], [0, 1]) == [0]
    assert ends([z, y], [0, 1]) == [1]
    assert ends([y, z, z * y], [0, 1, 2]) == [0, 1]
    assert ends([y, z], []) == []
    assert ends([x.sin(), x.cos()], [0, 1]) == []
    a, b = (x * 2).unbind()[:2]
    with pytest.raises(AutogradUnsupported, match="share work"):  # both pass their common base
        ends([a, a * b], [0, 1])
    first = x * 2
    assert ends([y, first.exp() + y, first], [0, 1, 2]) == [0, 2]
    graph = torch.fx.Graph()
    work = graph.placeholder("h")
    assert ends([z, z * y], [0, 1], {(y.grad_fn, 0): work}) == ([0], [work]), "shared work becomes a result"
    assert ends([z, z * y, y], [0, 1, 2]) == [0, 2]
    w = leaves()[1]
    tops = {id(x), id(w)}
    one, other = y.exp(), y * w
    assert ends([one, other], [], {(y.grad_fn, 0): work}) == ([], [work]), "of other leaves, too"
    assert ends([one, other], [0, 1]) == [], "which are not told apart where that cannot be one"
    assert ends([x.sin(), x * w], [], {(y.grad_fn, 0): work}) == ([], []), "leaves are no work"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("watch", [torch.Tensor.retain_grad, lambda y: y.register_hook(lambda g: 2 * g), None])
def test_second_derivatives_by_what_is_returned(watch: Any, backend: str) -> None:
    """The derivatives reach the intermediate itself, referenced or not."""

    def ask(run: Any, program: Any) -> Any:
        inputs, keep = leaves(), []
        made = run(*inputs)
        if watch is not None:
            watch(made[0])
        first = torch.autograd.grad(made[-1].sum(), made[0], create_graph=True)[0]
        if program is squares:
            keep.append(made[0])
        del made
        first.pow(2).sum().backward()
        return [x.grad for x in inputs], [t.grad for t in keep if watch is torch.Tensor.retain_grad]

    for program in (squares, shared, in_place):
        run = pycompiler.compile(program, backend=backend)
        torch.testing.assert_close(ask(run, program), ask(program, program), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_is_called_for_gradients_of_its_result_only(backend: str) -> None:
    def beside(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        h = x.exp()
        return h.sin(), h.cos()

    def ask(run: Any, program: Any, which: int) -> Any:
        inputs, seen = leaves(), []
        made = run(*inputs)
        for k, t in enumerate(made):
            t.register_hook(lambda g, k=k: seen.append((k, g)))
        made[which].sum().backward()
        return seen, inputs[0].grad

    run = pycompiler.compile(beside, backend=backend)
    for which in (0, 1):
        torch.testing.assert_close(ask(run, beside, which), ask(beside, beside, which), rtol=1e-9, atol=1e-9)
    assert run.counters()["compiles"] == 1


def _heads(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Tensors:
    h = (x @ x).tanh()
    return h @ w, h * v


def _losses(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Tensors:
    h = (x * w).sin()
    return h.sum(), (h * v).exp(), v.norm(), h


def _apart(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Tensors:
    return x * w, w.norm(), (v * 2).tanh()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [_heads, _losses, _apart])
def test_hooks_on_what_other_results_lead_to_are_not_called(program: Any, backend: str) -> None:
    """A common node of all results would call hooks of leaves with None, and hooks of results that reach no requested input."""

    def ask(run: Any, which: list[int], starts: list[int]) -> Any:
        torch.manual_seed(0)
        inputs = [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
        made, seen = run(*inputs), []
        for k, t in enumerate((*inputs, *made)):
            t.register_hook(lambda g, k=k: seen.append((k, g)))
        for t in inputs:
            t.register_post_accumulate_grad_hook(lambda t: seen.append((9, t.grad)))
        torch.autograd.backward([made[k].sum() for k in which], retain_graph=True)
        ends = [made[k].sum() for k in which]
        wanted = [inputs[k] for k in starts]
        asked = torch.autograd.grad(ends, wanted, allow_unused=True, retain_graph=True)
        return sorted(seen, key=lambda s: (s[0], s[1] is None, float(s[1].sum()))), asked

    run = pycompiler.compile(program, backend=backend)
    every = range(len(program(*[torch.ones(3, 3, dtype=torch.float64)] * 3)))
    for which in [[k] for k in every] + [[*every]]:
        for starts in ([0], [1, 2], [0, 1, 2]):
            torch.testing.assert_close(ask(run, which, starts), ask(program, which, starts), rtol=1e-9, atol=1e-9)
    assert run.counters()["compiles"] == 1


def test_of_many_sets_of_leaves_there_is_one_node() -> None:
    """Each node would be a backward to compile, so many sets of leaves share one node."""
    few, many = ([torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(n)] for n in (8, 9))

    def program(*ps: torch.Tensor) -> list[torch.Tensor]:
        return [p.exp() for p in ps]

    for inputs, nodes in ((few, 8), (many, 1)):
        made = pycompiler.compile(program, backend="aot_eager")(*inputs)
        reached = {len(_behind(t.grad_fn)) for t in made}
        assert reached == {len(inputs) // nodes}
        sum(t.sum() for t in made).backward()
        assert all(torch.equal(p.grad, p.exp()) for p in inputs)  # type: ignore[arg-type]


def _behind(node: Any) -> set[Any]:
    """The leaves behind a node."""
    found, stack = set[Any](), [node]
    while stack:
        node = stack.pop()
        variable = getattr(node, "variable", None)
        found |= set() if variable is None else {id(variable)}
        stack.extend(n for n, _ in node.next_functions if n is not None)
    return found


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize(
    "piece", [lambda t: t.split(2, 0)[0], lambda t: t.unbind(0)[1], lambda t: t.chunk(2)[1].view(-1)]
)
def test_gradients_pass_pieces_that_are_results(piece: Any, backend: str) -> None:
    """A piece that is rebuilt between autograd nodes needs a history: otherwise values computed from it give no gradient."""

    def program(x: torch.Tensor) -> Any:
        part = piece(x.abs().sqrt())
        return part.relu() * 3, part

    compiled, seen = pycompiler.compile(program, backend=backend), []
    for call in (program, compiled):
        for weights in ((1, 0), (0, 1), (2, 5)):
            x = torch.linspace(0.5, 3, 24).reshape(6, 4).requires_grad_()
            sum(w * (t * t).sum() for w, t in zip(weights, call(x))).backward()  # type: ignore[union-attr]
            assert x.grad is not None
            seen.append(x.grad)
    for ours, theirs in zip(seen[3:], seen[:3]):
        torch.testing.assert_close(ours, theirs)
    assert compiled.counters()["compiles"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("piece", [lambda t: t.split(2)[0], lambda t: t.unbind(1)[1], lambda t: t.chunk(2)[1].view(-1)])
def test_gradients_by_pieces_beside_what_they_are_pieces_of(piece: Any, again: bool, backend: str) -> None:
    def program(x: torch.Tensor) -> Tensors:
        v = x.sin()
        p = piece(v)
        return p, p.exp(), v

    def ask(call: Any) -> Any:
        p, made, v = call(torch.linspace(-1, 2, 16, dtype=torch.float64).reshape(4, 4).requires_grad_())
        first = torch.autograd.grad(made, (p, v), torch.ones_like(made), create_graph=again, retain_graph=True)
        return *first, *torch.autograd.grad((first[0] if again else made).sum(), (p, v))

    compiled = pycompiler.compile(program, backend=backend)
    torch.testing.assert_close(ask(compiled), ask(program))
    assert compiled.counters()["compiles"] == 1


def _of_qr(x: torch.Tensor) -> Tensors:
    v = torch.linalg.qr(x).R
    p = v.view_as(v)
    return p, p.sin(), v


def _of_a_checkpoint(x: torch.Tensor) -> Tensors:
    v = checkpoint(lambda t: (t * t).sin(), x, use_reentrant=False)
    p = v.view_as(v)
    return p, p.sin(), v


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("program", [_of_qr, _of_a_checkpoint])
def test_gradients_by_views_of_what_one_call_gives_beside_others(program: Any, again: bool, backend: str) -> None:
    """A view of one of several results with their own memory has a history when it is rebuilt, unlike
    a piece. A backward can continue from such a view where it cannot continue from the base."""

    def ask(call: Any) -> Any:
        p, made, v = call(torch.linspace(-1, 2, 9, dtype=torch.float64).reshape(3, 3).requires_grad_())
        (first,) = torch.autograd.grad(made, p, torch.ones_like(made), retain_graph=True, create_graph=again)
        return (first, *torch.autograd.grad((first if again else made).sum(), (p, v)))

    compiled = pycompiler.compile(program, backend=backend)
    torch.testing.assert_close(ask(compiled), ask(program))
    assert compiled.counters()["compiles"] == 1


class _Viewed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("again", [False, True])
def test_gradients_pass_what_a_function_gives_as_a_view(again: bool, backend: str) -> None:
    """Gradients by the view start at the view itself, where the gradients by the other result stop."""

    def program(x: torch.Tensor) -> Tensors:
        v = _Viewed.apply(x * x)
        return v.sin(), v

    def ask(call: Any, which: int) -> Any:
        x = torch.linspace(-1, 1.3, 4, dtype=torch.float64).requires_grad_()
        made = call(x)
        (first,) = torch.autograd.grad(made[which], x, torch.ones(4, dtype=torch.float64), create_graph=again)
        return (first, *torch.autograd.grad(first.sum(), x)) if again else first

    compiled = pycompiler.compile(program, backend=backend)
    for which in (0, 1):
        torch.testing.assert_close(ask(compiled, which), ask(program, which))
    assert compiled.counters()["compiles"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_leads_to_no_input_calls_no_hooks_and_frees_nothing(backend: str) -> None:
    """A piece taken under `no_grad` has `requires_grad` set, but passes no gradient on."""

    def alone(x: torch.Tensor) -> Tensors:
        with torch.no_grad():
            v = x.split(2)[0]
        return (v.mean().pow(3),)

    def beside(x: torch.Tensor) -> Tensors:
        return *alone(x), x.sin()

    def ask(call: Any) -> Any:
        x, seen = torch.linspace(-1, 1.3, 4).requires_grad_() * 1, []
        x.register_hook(lambda g: seen.append(g))  # type: ignore[no-untyped-call]
        made = call(x)[0]
        for _ in range(2):
            seen += torch.autograd.grad(made, x, allow_unused=True)
        made.backward()
        return seen, made.requires_grad

    for program in (alone, beside):
        compiled = pycompiler.compile(program, backend=backend)
        assert ask(compiled) == ask(program) == ([None, None], True)
        assert compiled.counters()["compiles"] == 1
