"""`requires_grad_()` on parameters and arguments inside compiled functions: gradients, flags and errors match eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pycompiler
from tests.harness.compare import assert_same

BACKENDS = ("eager", "aot_eager", "native")
Program = Callable[..., Any]
CAPTURED: list[Any] = []  # one-graph programs, with the flags of `d` at entry


def one_graph(*flags: bool) -> Callable[[Program], Program]:
    def register(fn: Program) -> Program:
        CAPTURED.extend((fn, flag) for flag in flags)
        return fn

    return register


@one_graph(True, False)
def frozen(g: Any, d: Any, x: Any) -> Any:
    for p in d.parameters():
        p.requires_grad_(False)
    return d(g(x)).sum()


@one_graph(True)
def frozen_for_a_while(g: Any, d: Any, x: Any) -> Any:
    d.requires_grad_(False)
    loss = d(g(x)).sum()
    d.requires_grad_(True)
    return loss


@one_graph(True, False)
def backward_while_frozen(g: Any, d: Any, x: Any) -> Any:
    d.requires_grad_(False)
    loss = d(g(x)).sum()
    loss.backward()
    d.requires_grad_(True)
    return loss.detach()


@one_graph(True, False)
def unfrozen_for_a_backward(g: Any, d: Any, x: Any) -> Any:
    d.requires_grad_(True)
    loss = d(g(x)).sum()
    loss.backward()
    return loss.detach(), [p.grad is None for p in d.parameters()]


@one_graph(True, False)
def both_steps_of_a_gan(g: Any, d: Any, x: Any) -> Any:
    for p in d.parameters():
        p.requires_grad_(False)
    first = d(g(x)).mean()
    first.backward()
    for p in d.parameters():
        p.requires_grad_(True)
    second = (d(g(x).detach()) ** 2).mean()
    second.backward()
    with torch.no_grad():
        for p in [*g.parameters(), *d.parameters()]:
            p.sub_(0.1 * p.grad)
            p.grad = None
    return first.detach() + second.detach()


@one_graph(True, False)
def one_weight(g: Any, d: Any, x: Any) -> Any:
    first = d(g(x)).sum()
    d[0].weight.requires_grad = False
    second = d(g(x) * 2).sum()
    return first + second, second, d[0].weight.requires_grad, d[0].weight.is_leaf


@one_graph(True, False)
def what_came_before_gets_no_gradient(g: Any, d: Any, x: Any) -> Any:
    first = d(g(x)).sum()
    d[0].weight.requires_grad = False
    (first + d(g(x) * 2).sum()).backward()
    return d[0].weight.grad is None, d[2].weight.grad is None


@one_graph(True, False)
def what_came_before_gets_one_again(g: Any, d: Any, x: Any) -> Any:
    d.requires_grad_(True)
    first = d(g(x)).sum()
    d.requires_grad_(False)
    second = d(g(x)).sum() * 2
    d.requires_grad_(True)
    (first + second).backward()
    return second.detach()


@one_graph(True)
def under_no_grad(g: Any, d: Any, x: Any) -> Any:
    with torch.no_grad():
        d.requires_grad_(False)
        y = d(x)
    z = d(g(x)).sum()
    with torch.no_grad():
        d.requires_grad_(True)
    return z, y


@one_graph(True, False)
def as_keys(g: Any, d: Any, x: Any) -> Any:
    place = {p: i for i, p in enumerate(d.parameters())}
    d.requires_grad_(False)
    return d(g(x)).sum() * sum(place[p] for p in d.parameters())


@one_graph(True, False)
def written_while_frozen(g: Any, d: Any, x: Any) -> Any:
    weight = d[0].weight
    weight.requires_grad_(False)
    weight.mul_(2)
    weight.requires_grad_(True)
    d(g(x)).sum().backward()
    with torch.no_grad():
        weight.sub_(weight.grad)
    return weight.sum().detach()


@one_graph(True, False)
def saliency(g: Any, d: Any, x: Any) -> Any:
    d.requires_grad_(False)
    x.requires_grad_(True)
    (slopes,) = torch.autograd.grad(d(x).sum(), x)
    x.requires_grad_(False)
    return slopes.abs(), x.requires_grad


@one_graph(True, False)
def spent_and_given_back(g: Any, d: Any, x: Any) -> Any:
    d.requires_grad_(True)
    loss = (d(x) * 2).sum()
    loss.backward()
    d.requires_grad_(False)
    return loss, loss.detach()


def left_unfrozen(g: Any, d: Any, x: Any) -> Any:
    d.requires_grad_(True)
    return d(g(x)).sum()


def turned(g: Any, d: Any, x: Any) -> Any:
    for p in d.parameters():
        p.requires_grad_(not p.requires_grad)
    y = d(g(x))
    return y.sum(), y.requires_grad


@one_graph(False)
def penalty(g: Any, d: Any, x: Any) -> Any:
    x.requires_grad_(True)
    (slopes,) = torch.autograd.grad(d(x).sum(), x, create_graph=True)
    return (slopes**2).sum() + g(x).sum()


def broken(g: Any, d: Any, x: Any) -> Any:
    d.requires_grad_(False)
    first = d(g(x)).sum()
    pycompiler.graph_break()
    second = d(g(x)).sum()
    d.requires_grad_(True)
    return first + second


def an_operator_raises(g: Any, d: Any, x: Any) -> Any:
    d.requires_grad_(False)
    return x[torch.tensor([0, 7])].sum() * d[0].weight.sum()


def the_program_raises(g: Any, d: Any, x: Any) -> Any:
    d.requires_grad_(False)
    y = d(g(x)).sum()
    if d[0].weight.requires_grad is False:
        raise ValueError("frozen")
    return y


def written_later(g: Any, d: Any, x: Any) -> Any:
    d[0].weight.requires_grad_(False)
    y = d(g(x)).sum()
    d[0].weight.add_(1)
    return y


def gets_a_history(g: Any, d: Any, x: Any) -> Any:
    d[0].weight.requires_grad_(False)
    d[0].weight.mul_(g[0].weight.sum())
    return d(x).sum(), d[0].weight.is_leaf


def gradient_of_what_is_frozen(g: Any, d: Any, x: Any) -> Any:
    y = (d[0].weight * 2).sum()
    d[0].weight.requires_grad_(False)
    try:
        return torch.autograd.grad(y, d[0].weight)[0]
    except RuntimeError as error:
        return str(error)[:40]


def of_a_result(g: Any, d: Any, x: Any) -> Any:
    y = g(x)
    try:
        y.requires_grad_(False)
    except RuntimeError as error:
        return y.sum(), str(error)[:40]
    return y.sum()


def after_a_checkpoint(g: Any, d: Any, x: Any) -> Any:
    y = checkpoint(d, g(x), use_reentrant=False).sum()
    d.requires_grad_(False)
    return y


def with_hooks(g: Any, d: Any, x: Any) -> Any:
    handle = d[0].weight.register_hook(lambda grad: grad * 2)
    d[2].requires_grad_(False)
    y = d(g(x)).sum()
    y.backward()
    d[2].requires_grad_(True)
    handle.remove()
    return y.detach()


def views(g: Any, d: Any, x: Any) -> Any:
    row = x[0]
    x.requires_grad_(True)
    row.add_(1)
    try:
        x.add_(1)
    except RuntimeError as error:
        row.add_(len(str(error)) % 7)
    with torch.no_grad():
        x.mul_(2)
    (slopes,) = torch.autograd.grad((d(x) + d(row)).sum(), x)
    x.requires_grad_(False)
    x.add_(row)
    return slopes, x.sum().detach()


def views_made_while_frozen(g: Any, d: Any, x: Any) -> Any:
    """A view without a history has the flag of its base at creation."""
    d.requires_grad_(False)
    row, parts = d[0].weight[0], d[2].weight.unbind()
    d.requires_grad_(True)
    return row, row.requires_grad, (row * x).sum(), parts[0] + 1


def views_made_without_gradients(g: Any, d: Any, x: Any) -> Any:
    with torch.no_grad():
        row = d[0].weight[0]
    flag = row.requires_grad
    d.requires_grad_(not flag)
    return row.requires_grad, flag, (row * x).sum(), row.grad_fn is None


def data_given_while_frozen(g: Any, d: Any, x: Any) -> Any:
    d[0].weight.requires_grad_(False)
    d[0].weight.data = d[0].weight.detach() * 0.5
    y = d(g(x)).sum()
    d[0].weight.requires_grad_(True)
    return y + d(g(x)).sum()


@one_graph(True)
def turned_around_a_call_that_waits(g: Any, d: Any, x: Any) -> Any:
    d.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("frozen", stacklevel=1)
    d.requires_grad_(True)
    return d(g(x)).sum()


OTHERS = [
    views, views_made_while_frozen, views_made_without_gradients, data_given_while_frozen,
    left_unfrozen, turned, broken, an_operator_raises, the_program_raises, written_later, gets_a_history,
    gradient_of_what_is_frozen, of_a_result, after_a_checkpoint, with_hooks,
]  # fmt: skip


def models(flag: bool) -> tuple[Any, Any]:
    torch.manual_seed(0)
    g = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    d = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    return g, d.requires_grad_(flag)


def state(modules: Any) -> list[Any]:
    with warnings.catch_warnings():  # a warning about `.grad` of a non-leaf
        warnings.simplefilter("ignore")
        parts = [p for m in modules for p in m.parameters()]
        return [(p.detach().clone(), p.grad, p.requires_grad, p.is_leaf) for p in parts]


def observed(fn: Program, flag: bool, calls: int = 3) -> list[Any]:
    """Results of calls, of backwards where a result has a history, and all parameters after each of them."""
    found: list[Any] = []
    modules = models(flag)

    def attempt(do: Callable[[], Any]) -> Any:
        try:
            return do()
        except (RuntimeError, ValueError, IndexError) as error:
            return (type(error), str(error).partition("\n")[0][:60])

    for i in range(calls):
        x = torch.linspace(-1, 1, 6).view(2, 3) + i
        result = attempt(lambda x=x: fn(*modules, x))
        values = result if isinstance(result, tuple) else (result,)
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        found += [[v.detach().clone() if isinstance(v, torch.Tensor) else v for v in values], state(modules)]
        found += [[(t.requires_grad, t.is_leaf) for t in tensors], x.requires_grad]
        if tracked := [t.sum() for t in tensors if t.requires_grad]:
            found += [attempt(lambda t=tracked: torch.autograd.backward(t)), state(modules), x.grad]
        for module in modules:
            module.zero_grad()
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [*dict.fromkeys(fn for fn, _ in CAPTURED), *OTHERS], ids=lambda f: f.__name__)
def test_as_eager(fn: Program, backend: str) -> None:
    for flag in (True, False):
        assert_same(observed(pycompiler.compile(fn, backend=backend), flag), observed(fn, flag))


@pytest.mark.parametrize(("fn", "flag"), CAPTURED, ids=lambda v: getattr(v, "__name__", str(v)))
def test_one_graph(fn: Program, flag: bool) -> None:
    x = torch.linspace(-1, 1, 6).view(2, 3)
    report = pycompiler.explain(fn)(*models(flag), x)
    assert (report.graph_count, report.graph_break_count) == (1, 0), report.break_reasons
    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    modules = models(flag)
    for _ in range(6):
        compiled(*modules, x)
    assert pycompiler.counters(compiled)["compiles"] <= 3  # flags at entry, existing gradients


def test_what_cannot_be_sound_breaks_the_graph() -> None:
    x = torch.linspace(-1, 1, 6).view(2, 3)
    for fn in (gets_a_history, views_made_while_frozen, data_given_while_frozen):
        report = pycompiler.explain(fn)(*models(True), x)
        assert report.graph_break_count, fn
    with torch.inference_mode():
        report = pycompiler.explain(frozen)(*models(True), x)
        assert report.graph_break_count


def test_two_parameters_that_may_be_one() -> None:
    def freezes_one(a: Any, b: Any) -> Any:
        a.requires_grad_(False)
        return (a * b).sum()

    compiled = pycompiler.compile(freezes_one, backend="eager")
    for same in (False, True, False):
        results = []
        for run in (compiled, freezes_one):
            a = nn.Parameter(torch.ones(2))
            b = a if same else nn.Parameter(torch.ones(2))
            y = run(a, b)
            results.append((y.requires_grad, a.requires_grad, b.requires_grad))
        assert results[0] == results[1]


def test_another_input_that_is_a_view() -> None:
    def turns(a: Any, b: Any) -> Any:
        a.requires_grad_(not a.requires_grad)
        return b * 2, b.requires_grad

    for backend in BACKENDS:
        compiled = pycompiler.compile(turns, backend=backend)
        for flag, is_view in ((False, False), (False, True), (True, True), (True, False), (False, True)):
            results = []
            for run in (compiled, turns):
                a = torch.ones(2, 2, requires_grad=flag)
                with torch.no_grad():
                    b = a[0] if is_view else torch.ones(2)
                y, asked = run(a, b)
                results.append((y.requires_grad, asked, a.requires_grad))
            assert results[0] == results[1], (backend, flag, is_view)
    compiled = pycompiler.compile(turns, backend="eager", fullgraph=True)
    for _ in range(4):
        compiled(torch.ones(2, 2, requires_grad=True), torch.ones(2))
    assert pycompiler.counters(compiled)["compiles"] == 1


def test_an_optimizer_steps_what_was_unfrozen() -> None:
    def train(g: Any, d: Any, optimizers: Any, x: Any) -> Any:
        for frozen_, trained, optimizer in ((d, g, optimizers[0]), (g, d, optimizers[1])):
            frozen_.requires_grad_(False)
            trained.requires_grad_(True)
            optimizer.zero_grad()
            loss = (d(g(x)) ** 2).mean()
            loss.backward()
            optimizer.step()
        return loss.detach()

    for backend in BACKENDS:
        results = []
        for run in (pycompiler.compile(train, backend=backend), train):
            g, d = models(True)
            optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (g, d)]
            x = torch.linspace(-1, 1, 6).view(2, 3)
            results.append([*(run(g, d, optimizers, x) for _ in range(4)), state((g, d))])
        assert_same(*results)
    assert pycompiler.explain(train)(g, d, optimizers, x).graph_break_count == 0


def test_a_graph_that_failed_leaves_flags_as_eager() -> None:
    def indexes(p: Any, x: Any, i: Any) -> Any:
        p.requires_grad_(False)
        y = (p * x)[i]
        p.requires_grad_(True)
        return y.sum()

    for backend in BACKENDS:
        compiled = pycompiler.compile(indexes, backend=backend)
        for at in (1, 9, 0):
            flags = []
            for run in (compiled, indexes):
                p = nn.Parameter(torch.ones(3))
                try:
                    run(p, torch.ones(3), torch.tensor([at]))
                except (IndexError, RuntimeError) as error:
                    flags.append(type(error))
                flags.append(p.requires_grad)
            assert flags[: len(flags) // 2] == flags[len(flags) // 2 :], (backend, at)
