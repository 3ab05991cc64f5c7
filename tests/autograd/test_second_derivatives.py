"""Second derivatives, batched gradients and other requests beyond a compiled backward, as in eager."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ad_helpers import Compiled
from torch import nn
from torch.autograd import functional as F
from torch.utils.checkpoint import checkpoint

import pycompiler
from pycompiler.errors import DoubleBackwardError
from tests.harness.compare import assert_same

BACKENDS = ("aot_eager", "native")


def vector(n: int = 4) -> torch.Tensor:
    return torch.linspace(-1, 1.3, n, dtype=torch.float64)


def scalar(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x**2).sum()


def several(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x.sum()


def first_and_second(f: Any) -> Any:
    x = vector().requires_grad_()
    first = torch.autograd.grad(f(x), x, create_graph=True)[0]
    second = torch.autograd.grad(first.sum(), x, create_graph=True)[0]
    return first, second, torch.autograd.grad(second.sum(), x)


def backward_twice(f: Any) -> Any:
    x = vector().requires_grad_()
    f(x).backward(create_graph=True)
    first = x.grad
    assert first is not None
    x.grad = None
    first.pow(2).sum().backward()
    return first, x.grad


def batched(f: Any) -> Any:
    x = vector().requires_grad_()
    return torch.autograd.grad(f(x), x, torch.eye(4, dtype=torch.float64), is_grads_batched=True)


ASKED: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "hessian": (scalar, lambda f: F.hessian(f, vector())),
    "hessian vectorized": (scalar, lambda f: F.hessian(f, vector(), vectorize=True)),
    "hvp": (scalar, lambda f: F.hvp(f, vector(), vector())),
    "vhp": (scalar, lambda f: F.vhp(f, vector(), vector())),
    "jacobian": (several, lambda f: F.jacobian(f, vector(), create_graph=True)),
    "jacobian vectorized": (several, lambda f: F.jacobian(f, vector(), vectorize=True)),
    "jvp": (several, lambda f: F.jvp(f, vector(), vector())),
    "grad of grad of grad": (scalar, first_and_second),
    "backward": (scalar, backward_twice),
    "is_grads_batched": (several, batched),
    "func.grad": (scalar, lambda f: torch.func.grad(f)(vector())),
    "func.hessian": (scalar, lambda f: torch.func.hessian(f)(vector())),
    "func.jacrev": (several, lambda f: torch.func.jacrev(f)(vector())),
    "func.vmap of grad": (scalar, lambda f: torch.vmap(torch.func.grad(f))(vector(12).view(3, 4))),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ASKED)
@pytest.mark.captures_nothing(
    "a compiled function inside of torch's transforms runs as written",
    "func.grad-aot_eager",
    "func.grad-native",
    "func.hessian-aot_eager",
    "func.hessian-native",
    "func.jacrev-aot_eager",
    "func.jacrev-native",
    "func.vmap of grad-aot_eager",
    "func.vmap of grad-native",
)
def test_derivatives_of_derivatives(name: str, backend: str) -> None:
    fn, ask = ASKED[name]
    compiled = pycompiler.compile(fn, backend=backend)
    for _ in range(2):
        assert_same(ask(compiled), ask(fn))


def test_gradgradcheck() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).tanh().softmax(-1)

    inputs = (vector(6).view(3, 2).requires_grad_(), vector(4).view(2, 2).requires_grad_())
    compiled = pycompiler.compile(fn)
    assert torch.autograd.gradcheck(compiled, inputs, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(compiled, inputs, check_batched_grad=True)


def test_through_a_graph_break() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        print(end="")
        return (y * y * x).sum()

    assert_same(first_and_second(pycompiler.compile(fn)), first_and_second(fn))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_penalty(backend: str) -> None:
    def train(compiled: bool) -> Any:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.LayerNorm(8), nn.Linear(8, 1)).double()
        run = pycompiler.compile(net, backend=backend) if compiled else net
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
            out = run(x)
            (slope,) = torch.autograd.grad(out, x, torch.ones_like(out), create_graph=True)
            loss = out.mean() + ((slope.norm(dim=1) - 1) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, [p.detach() for p in net.parameters()]

    assert_same(train(True), train(False))


def test_random_numbers_are_those_of_the_forward() -> None:
    def ask(f: Any) -> Any:
        torch.manual_seed(0)
        x = vector(40).requires_grad_()
        out = f(x)
        torch.rand(3)
        (first,) = torch.autograd.grad(out, x, create_graph=True)
        return out, first, torch.autograd.grad(first.sum(), x), torch.rand(2)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (nn.functional.dropout(x, 0.5) ** 3).sum()

    assert_same(ask(pycompiler.compile(fn)), ask(fn))


def test_what_was_detached_stays_so() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            c = x * x
        return (x.detach() * x.sin() * c * x).sum()

    assert_same(first_and_second(pycompiler.compile(fn)), first_and_second(fn))


def test_running_statistics_are_updated_once() -> None:
    def ask(compiled: bool) -> Any:
        net = nn.Sequential(nn.BatchNorm1d(4), nn.Tanh()).double()
        x = vector(20).view(5, 4).requires_grad_()
        out = (pycompiler.compile(net) if compiled else net)(x).sin().sum()
        (first,) = torch.autograd.grad(out, x, create_graph=True)
        first.pow(2).sum().backward()
        return out, x.grad, list(net.buffers()), [p.grad for p in net.parameters()]

    assert_same(ask(True), ask(False))


def test_inputs_that_depend_on_each_other() -> None:
    def ask(f: Any) -> Any:
        x = vector().requires_grad_()
        y = x * 2
        (first,) = torch.autograd.grad(f(x, y), x, create_graph=True)
        return first, torch.autograd.grad(first.sum(), x)

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y.sin() * x).sum()

    assert_same(ask(pycompiler.compile(fn)), ask(fn))


def _scaled(buffer: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    buffer.mul_(2).add_(w * w)
    return buffer.sin().sum()


def _multiplied(buffer: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    buffer.mul_(w)
    return (buffer * w).sin().sum()


def _added_in_part(buffer: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    buffer[1:].mul_(w[1:])
    return (buffer.exp() * torch.rand_like(w)).sum()


def _hidden(buffer: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    buffer.data.mul_(2)
    buffer.mul_(w)
    return (buffer * buffer).sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [_scaled, _multiplied, _added_in_part, _hidden])
def test_written_buffers_whose_old_values_gradients_need(program: Callable[..., Any], backend: str) -> None:
    """Small buffers are saved as copies. For a large one the gradients are right, and their derivatives are a clear error."""

    def ask(f: Any, n: int) -> Any:
        torch.manual_seed(0)
        w = vector(n).requires_grad_()
        buffer = vector(n) * 3
        loss = f(buffer, w) + (buffer * buffer).sum()
        first = torch.autograd.grad(loss, w, create_graph=True)[0]
        return first, torch.autograd.grad(first.sum(), w)[0], buffer

    compiled = pycompiler.compile(program, backend=backend, dynamic=False)
    assert_same(ask(compiled, 4), ask(program, 4))


def test_a_large_written_buffer() -> None:
    def program(buffer: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        buffer.mul_(2)
        return ((buffer @ buffer[0]) * w).sin().sum()

    compiled, w = pycompiler.compile(program), torch.ones(600, requires_grad=True)
    loss = compiled(torch.ones(600, 500), w)
    assert_same(
        torch.autograd.grad(loss, w, retain_graph=True), torch.autograd.grad(program(torch.ones(600, 500), w), w)
    )
    with pytest.raises(DoubleBackwardError, match="writes l_buffer, whose old value is gone"):
        torch.autograd.grad(loss, w, create_graph=True)


def doubled(y: torch.Tensor) -> torch.Tensor:
    return y.mul_(2)


def doubled_in_a_part(y: torch.Tensor) -> torch.Tensor:
    y[1:] *= 3
    return y + 1


def overwritten(y: torch.Tensor) -> None:
    y.mul_(2)[0] = 5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("inner", [doubled, doubled_in_a_part, overwritten])
def test_gradients_of_a_written_input_are_of_what_it_was(inner: Callable[..., Any], backend: str) -> None:
    """No gradient needs the old value, so the gradients can be differentiated; they do not stop at the written input."""
    found = []
    for run in (inner, pycompiler.compile(inner, backend=backend)):
        x = vector().requires_grad_()
        y = x.sin()
        made = run(y)
        loss = (y * y).sum() + (0 if made is None else (made**3).sum())
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        found.append((first.detach(), *torch.autograd.grad(first.sin().sum(), x)))
    assert_same(found[1], found[0])


def test_a_hook_behind_a_result_where_gradients_end_is_not_asked() -> None:
    """Gradients of later values stop at a result and start again there; until then nothing behind the result has a gradient."""

    def fn(x: torch.Tensor) -> Any:
        hooked = x * 3
        hooked.register_hook(lambda g: g * 2)
        product = hooked * x
        return product.softmax(-1), product, hooked

    for which in ((0,), (0, 1), (0, 1, 2)):
        found = []
        for run in (fn, pycompiler.compile(fn, backend="aot_eager")):
            x = vector().requires_grad_()
            results = run(x)
            (first,) = torch.autograd.grad(sum((results[k] ** 2).sum() for k in which), x, create_graph=True)
            found.append((first.detach(), *torch.autograd.grad(first.sin().sum(), x)))
        assert_same(found[1], found[0])


def test_views_of_a_hidden_base() -> None:
    def ask(f: Any) -> Any:
        x = vector(6).requires_grad_()
        a, b = f(x)
        (first,) = torch.autograd.grad((a * b).sum(), x, create_graph=True)
        return first, torch.autograd.grad(first.sum(), x)

    def fn(x: torch.Tensor) -> Any:
        y = (x * x).view(2, 3)
        return y[0], y[1]

    assert_same(ask(pycompiler.compile(fn)), ask(fn))


def test_an_input_that_is_gone_or_changed_is_an_error() -> None:
    def softmax(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(0)

    x = torch.randn(3, requires_grad=True)
    compiled = Compiled(softmax, [x * 1], name="soft")
    middle = x * 1
    out = compiled(middle)[0]
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x, retain_graph=True)[0], torch.zeros(3))
    with torch.no_grad():
        middle.add_(1)
    with pytest.raises(DoubleBackwardError, match="'soft': its input x has been modified"):
        torch.autograd.grad(out.sum(), x, create_graph=True)
    x = torch.randn(300_000, requires_grad=True)
    out = Compiled(softmax, [x * 1], name="soft")(x * 1)[0]
    gc.collect()
    with pytest.raises(DoubleBackwardError, match="'soft': its input x was freed"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_small_results_of_other_work_are_kept_for_a_second_derivative() -> None:
    def ask(f: Any) -> Any:
        x = vector().requires_grad_()
        out = f(x * 2)
        gc.collect()
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        second = torch.autograd.grad(first.sum(), x)
        with pytest.raises(RuntimeError, match="a second time"):
            torch.autograd.grad(out.sum(), x)
            torch.autograd.grad(out.sum(), x, create_graph=True)
        return first, second

    for fn in (lambda x: (x + 1).softmax(0) ** 2, lambda x: x.exp()):
        assert_same(ask(pycompiler.compile(fn)), ask(fn))


def test_lazily_conjugated_gradients() -> None:
    def ask(f: Any) -> Any:
        x = vector().requires_grad_()
        z = torch.complex(x * 2, x).requires_grad_()
        a, b = f(x, z)
        other = torch.complex(a, a * 2).conj()
        loss = (other * torch.complex(vector(), vector() ** 2)).abs().sum() + b.conj().imag.sum()
        return torch.autograd.grad(loss, [x, z])

    def fn(x: torch.Tensor, z: torch.Tensor) -> Any:
        return x * x, z * z

    for backend in BACKENDS:
        assert_same(ask(pycompiler.compile(fn, backend=backend)), ask(fn))


def test_sparse_gradients() -> None:
    def ask(f: Any) -> Any:
        table = vector(12).view(4, 3).requires_grad_()
        rows = nn.functional.embedding(torch.tensor([1, 1, 2]), f(table), sparse=True)
        return torch.autograd.grad(rows.sin().sum(), table)

    assert_same(ask(pycompiler.compile(lambda t: t * 2)), ask(lambda t: t * 2))


ODD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros of sgn": lambda y: y.sgn().sum(),
    "zeros of the second derivative of abs": lambda y: torch.autograd.grad(y.abs().sum(), y, create_graph=True)[0].sum(),
    "zeros beside others": lambda y: y.sgn().sum() + y.sum(),
    "a penalty": lambda y: torch.autograd.grad(torch.linalg.vector_norm(y, 1, -1).sum(), y, create_graph=True)[0].pow(2).sum(),
    "sparse": lambda y: nn.functional.embedding(torch.tensor([1, 1, 2]), y, sparse=True).sin().sum(),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("name", ODD)
def test_tangents_without_memory(name: str, kept: bool, backend: str) -> None:
    """`kept`: the graph's input is alive. Otherwise the captured graph is not run again, but the values are the same."""

    def ask(f: Any) -> Any:
        x = vector(12).view(4, 3).requires_grad_()
        given = x if kept else x * 1
        y = f(given)[0]
        del given
        (found,) = torch.autograd.grad(ODD[name](y), x)
        return found.to_dense(), torch.tensor([found._is_zerotensor(), found.is_sparse]) if kept else ()

    def fn(x: torch.Tensor) -> Any:
        return x.sin() * 2, x.t() @ x

    assert_same(ask(pycompiler.compile(fn, backend=backend)), ask(fn))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_layer_under_a_penalty_of_absolute_values(backend: str) -> None:
    def ask(f: Any) -> Any:
        x, w = vector(6).view(2, 3).requires_grad_(), vector(9).view(3, 3).requires_grad_()
        (first,) = torch.autograd.grad(f(x, w).abs().sum(), x, create_graph=True)
        first.pow(2).sum().backward()
        return first, w.grad, x.grad

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    assert_same(ask(pycompiler.compile(fn, backend=backend)), ask(fn))


def test_sizes_that_the_compile_settled_are_numbers() -> None:
    """`split` needs a constant number of parts, although the size is an input of the graph."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = (x * x).view(-1).view(x.shape)
        return y.split(1)[0] * y

    compiled = pycompiler.compile(fn, backend="aot_eager", dynamic=True)
    made = []
    for f in (fn, compiled):
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        made.append(torch.autograd.grad(first.pow(2).sum(), x)[0])
    assert_same(made[1], made[0])


def _its_own(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return a.exp(), b.sigmoid()


def _of_later_ones(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (a * b).exp()
    return y, y * a


def _in_a_chain(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = a * 2
    y = h.exp()
    return h, y, y.tanh() * b


def _in_place(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = a * b
    return y.exp_(), y * b


def _beside_a_view(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (a * b).exp()
    return y.view(1, -1)[0], y[:1] * b[:1]


def _of_several_operators(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.softmax(a * b, 0), (a @ b).sqrt()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program", [_its_own, _of_later_ones, _in_a_chain, _in_place, _beside_a_view, _of_several_operators]
)
def test_derivatives_of_gradients_by_results_that_are_kept(program: Callable[..., Any], backend: str) -> None:
    """`exp` saves its result: in eager the derivative of its gradient continues at the caller's tensor."""
    compiled = pycompiler.compile(program, backend=backend)
    for n in (2, 3):
        found = []
        for run in (program, compiled):
            a, b = (torch.linspace(0.3, 0.7, n, dtype=torch.float64).add(k).requires_grad_() for k in (0, 0.1))
            made = run(a, b)
            log: list[Any] = []
            for t in made:
                t.register_hook(lambda grad, log=log: log.append(grad.detach()))
            total = sum(((k + 1) * t).pow(k + 1).sum() for k, t in enumerate(made))
            first = torch.autograd.grad(total, (a, b), create_graph=True)
            loss = sum(g.sin().sum() for g in first)
            asked = [
                torch.autograd.grad(loss, by, create_graph=True, allow_unused=True) for by in ((*made, a, b), (a, b))
            ]
            third = torch.autograd.grad(sum(t.sum() for t in asked[0] if t is not None), (*made, a), allow_unused=True)
            found.append([first, *asked, third, log])
        assert_same(found[1], found[0])
    assert compiled.counters()["compiles"] == 2


def test_results_that_are_kept_are_let_go() -> None:
    compiled = pycompiler.compile(lambda x: x.exp())
    x = vector().requires_grad_()
    y = compiled(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), y, retain_graph=True)
    assert torch.equal(second, torch.ones_like(y))
    ends = [weakref.ref(t) for t in (y, first)]
    gc.disable()
    try:
        del y, first
        assert [end() for end in ends] == [None, None]
    finally:
        gc.enable()


REFUSE: dict[str, Callable[[torch.Tensor], Any]] = {
    "cholesky": torch.linalg.cholesky,
    "inv": torch.linalg.inv,
    "lu_unpack": lambda a: torch.lu_unpack(a, a.int().diagonal() - 1),
    "multinomial": lambda a: torch.multinomial(a.sum(0), 2),
    "division of integers": lambda a: a.long().sum() // a.long().diagonal(),
    "nll_loss": lambda a: nn.functional.nll_loss(a, a.long().diagonal() - 1),
    "an assertion": lambda a: torch._assert_async(a.sum() > 0),  # type: ignore[func-returns-value]
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", REFUSE)
def test_operators_that_refuse_zeros(what: str, backend: str) -> None:
    """A value that no gradient depends on still exists in the replay, where an operator reads it."""

    def program(x: torch.Tensor, a: torch.Tensor) -> Any:
        return x.exp(), REFUSE[what](a)

    compiled = pycompiler.compile(program, backend=backend)
    for _ in range(2):
        found = []
        for run in (program, compiled):
            x = vector().requires_grad_()
            y = run(x, torch.eye(4, dtype=torch.float64) * 2)[0]  # no other reference to the matrix
            (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            found.append([first, *torch.autograd.grad(first.sum(), x)])
        assert_same(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("draw", [torch.poisson, torch._standard_gamma])
def test_numbers_behind_draws_that_take_as_many_as_their_arguments_say(draw: Any, backend: str) -> None:
    def program(x: torch.Tensor, rate: torch.Tensor) -> Any:
        count = draw(rate)
        return nn.functional.dropout(x.exp(), 0.5), count

    compiled = pycompiler.compile(program, backend=backend)
    rate = torch.linspace(20, 60, 8, dtype=torch.float64)
    found = []
    for run in (program, compiled):
        torch.manual_seed(3)
        x = vector(16).requires_grad_()
        (first,) = torch.autograd.grad(run(x, rate)[0].sum(), x, create_graph=True)
        found.append([first, *torch.autograd.grad(first.sum(), x)])
    assert_same(found[1], found[0])


def _asked_exp(x: torch.Tensor) -> Any:
    y = x.exp()
    return y, torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def _asked_tanh(x: torch.Tensor) -> Any:
    y = torch.tanh(x)
    return y, torch.autograd.grad(y.sum(), x, create_graph=True)[0]


def _asked_softmax(x: torch.Tensor) -> Any:
    y = torch.softmax(x, 0)
    return y, torch.autograd.grad(y[0], x, create_graph=True)[0]


def _asked_sin(x: torch.Tensor) -> Any:
    y = (x * x).sin()
    return y, torch.autograd.grad(y.sum(), x, create_graph=True)[0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [_asked_exp, _asked_tanh, _asked_softmax, _asked_sin])
def test_derivatives_by_results_behind_gradients_that_the_graph_asks_for(
    program: Callable[..., Any], backend: str
) -> None:
    """Energies and forces: gradients under `create_graph` include the path by the result that the energy's own node saves."""
    compiled = pycompiler.compile(program, backend=backend)
    found = []
    for run in (program, compiled):
        x = vector().requires_grad_()
        y, q = run(x)
        (first,) = torch.autograd.grad(y.sin().sum() + (y * q).sum(), x, create_graph=True)
        rows = F.jacobian(lambda x, run=run: run(x)[1], x)
        found.append((first, torch.autograd.grad(first.pow(2).sum(), x)[0], rows))
    assert_same(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_replay_leaves_the_callers_statistics_alone(backend: str) -> None:
    """The operator writes tensors that its schema does not mark as written."""

    def program(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        return torch.native_batch_norm(x, None, None, mean, var, True, 0.5, 1e-5)[0]

    found = []
    for run in (program, pycompiler.compile(program, backend=backend)):
        x, mean, var = vector(12).view(4, 3).requires_grad_(), vector(3), vector(3).exp()
        (first,) = torch.autograd.grad((run(x, mean, var) ** 3).sum(), x, create_graph=True)
        found.append((first, mean, var))
    assert_same(found[1], found[0])


def _hook_beside(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = torch.relu(w - 0.3)
    y.register_hook(lambda g: g * 3)
    return (x * w).exp(), y


def _hook_on_the_way(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = (w * x).tanh()
    y.register_hook(lambda g: g * 3)
    return y.sum() * x, y * w


class _Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        made = x.exp()
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.saved_tensors[0]


def _a_function_on_the_way(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = (w * x) / (_Exp.apply(x) + 1)
    return y.sin(), y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [_hook_beside, _hook_on_the_way, _a_function_on_the_way])
def test_hooks_of_results_that_second_derivatives_do_not_reach(program: Callable[..., Any], backend: str) -> None:
    """Hooks of the program, and hooks of the caller."""
    found = []
    for run in (program, pycompiler.compile(program, backend=backend)):
        x, w = vector().requires_grad_(), (vector() + 2).requires_grad_()
        made = run(x, w)
        asked: list[bool] = []
        for t in made:
            t.register_hook(lambda g, asked=asked: asked.append(g is None))
        for t in made:
            first = torch.autograd.grad(t.sum(), (x, w), create_graph=True, allow_unused=True)
            for g in first:
                if g is not None and g.requires_grad:
                    found.append(torch.autograd.grad(g.sum(), (x, w), allow_unused=True, retain_graph=True))
        found.append(any(asked))
    half = len(found) // 2
    assert_same(found[half:], found[:half])


def test_a_replay_reads_its_own_results() -> None:
    """The compiled forward may round a maximum differently, so the replay compares with its own maximum."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x, None, None, training=True).amax(0)

    for backend in ("aot_eager", "native"):
        found = []
        for call in (program, pycompiler.compile(program, backend=backend)):
            x = torch.randn(7, 5, generator=torch.Generator().manual_seed(3)).double().requires_grad_()
            (first,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
            found.append([first, *torch.autograd.grad(first.pow(2).sum(), x)])
        assert_same(found[1], found[0])


def _singular(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svdvals(x)


def _symmetric(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigvalsh(x @ x.T)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [_singular, _symmetric])
def test_derivatives_pass_the_node_of_a_result_beside_it(program: Any, backend: str) -> None:
    """The derivatives arrive at vectors of the same call, which the program has dropped. The result's hooks
    are called with None, and the third derivative gives a gradient to the result that the node saves."""

    def ask(call: Any) -> Any:
        x, seen = (vector(12).view(3, 4).cos() + torch.eye(3, 4)).double().requires_grad_(), []
        y = call(x)
        (first,) = torch.autograd.grad(y, x, torch.arange(1.0, 4, dtype=torch.float64), create_graph=True)
        third = torch.autograd.grad((first**2).sum(), x, create_graph=True)[0]
        y.register_hook(lambda g: seen.append(g is None))  # type: ignore[no-untyped-call]
        return [first, third, *torch.autograd.grad(third.sin().sum(), (y, x), retain_graph=True)], seen

    compiled = pycompiler.compile(program, backend=backend)
    (ours, calls), (theirs, wanted) = ask(compiled), ask(program)
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)
    assert calls == wanted
    assert compiled.counters()["compiles"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("write", [lambda y: y.mul_(2), lambda y: y[1:].mul_(2)])
def test_a_result_that_is_made_again_and_was_written_since(write: Any, backend: str) -> None:
    """The result of a checkpoint may be written: derivatives by its old value do not pass the write."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda t: t.sin().exp(), x, use_reentrant=False)  # type: ignore[no-any-return]

    def ask(call: Any) -> Any:
        x = vector().requires_grad_()
        y = call(x)
        write(y)
        (first,) = torch.autograd.grad(y, x, torch.arange(1.0, 5, dtype=torch.float64), create_graph=True)
        return [first, *torch.autograd.grad(first.sum(), x)]

    compiled = pycompiler.compile(program, backend=backend)
    assert_same(ask(compiled), ask(program))
    assert compiled.counters()["compiles"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_input_that_was_detached_since(backend: str) -> None:
    """Batched gradients belong to the old input. Derivatives of gradients would miss its history, and raise."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.outer(x, y.reshape(-1))  # its node saves the view

    def ask(call: Any) -> Any:
        x = vector().requires_grad_()
        y = x.sigmoid()
        made = call(x, y)
        y.detach_()
        given = torch.arange(32.0, dtype=torch.float64).view(2, 4, 4)
        return made, x, torch.autograd.grad(made, x, given, is_grads_batched=True, retain_graph=True)

    compiled = pycompiler.compile(program, backend=backend)
    made, x, found = ask(compiled)
    torch.testing.assert_close(found, ask(program)[2])
    with pytest.raises(DoubleBackwardError, match="has been detached"):
        torch.autograd.grad(made.sum(), x, create_graph=True)
