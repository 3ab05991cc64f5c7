"""Programs around a compiled function with gradients: hooks, threads, checkpoints, shared memory, writes.

Each row is a program and a request; eager and both backends must give the same answer or error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import pycompiler
from tests.harness.compare import assert_same

ROWS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {}


def asked(program: Callable[..., Any]) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def add(ask: Callable[[Any], Any]) -> Callable[[Any], Any]:
        ROWS[ask.__name__] = (program, ask)
        return ask

    return add


def values(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1.3, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def leaf(*shape: int) -> torch.Tensor:
    return values(*shape).clone().requires_grad_()


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    return leaf(3, 4), leaf(4, 2)


def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).tanh().softmax(-1)


def gradients(out: torch.Tensor, *inputs: torch.Tensor) -> Any:
    out.backward()
    return [i.grad for i in inputs]


# -- hooks and the engine ---------------------------------------------------------------------------------------------


@asked(layer)
def tensor_hooks(f: Any) -> Any:
    x, w = leaves()
    y = x * 2
    seen: list[torch.Tensor] = []
    y.register_hook(seen.append)
    x.register_hook(lambda g: g * 2)
    out = f(y, w)
    out.register_hook(lambda g: g * 3)
    out.retain_grad()
    y.retain_grad()
    return gradients(out.sin().sum(), x, w, out, y), seen


@asked(layer)
def accumulated(f: Any) -> Any:
    x, w = leaves()
    for _ in range(3):
        f(x, w).sin().sum().backward()
    return x.grad, w.grad


@asked(layer)
def used_twice(f: Any) -> Any:
    x, w = leaves()
    out = f(f(x, w) @ w.t().abs(), w)
    return gradients((out * out + out.sum()).sum(), x, w)


@asked(layer)
def inputs_that_alias(f: Any) -> Any:
    x = leaf(4, 4)
    return gradients(f(x, x).sin().sum() + f(x, x.t()).cos().sum(), x)


@asked(layer)
def retained_once(f: Any) -> Any:
    x, w = leaves()
    loss = f(x, w).sin().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    return x.grad


@asked(layer)
def from_threads(f: Any) -> Any:
    x, w = leaves()
    threads = [threading.Thread(target=f(x, w).sin().sum().backward) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return x.grad


@asked(lambda x, w: (x * 0).sqrt() * w.sum())
def anomaly(f: Any) -> Any:
    x, w = leaves()
    with torch.autograd.detect_anomaly(check_nan=True):
        f(x, w).sum().backward()


@asked(layer)
def saved_tensor_hooks(f: Any) -> Any:
    x, w = leaves()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        loss = f(x, w).sin().sum()
    return gradients(loss, x, w)


@asked(layer)
def checkpointed(f: Any) -> Any:
    x, w = leaves()
    loss = checkpoint(f, x, w, use_reentrant=False).sin().sum() + checkpoint(f, x, w, use_reentrant=True).cos().sum()
    return gradients(loss, x, w)


@asked(lambda x, w: checkpoint(layer, x, w, use_reentrant=False).sin())
def checkpoint_inside(f: Any) -> Any:
    x, w = leaves()
    return gradients(f(x, w).sum(), x, w)


@asked(layer)
def expanded_gradient(f: Any) -> Any:
    x, w = leaves()
    out = f(x, w)
    return torch.autograd.grad(out, [x, w], torch.ones((), dtype=out.dtype).expand_as(out))


@asked(layer)
def some_inputs(f: Any) -> Any:
    x, w = leaves()
    f(x, w).sin().sum().backward(inputs=[w])
    w.requires_grad_(False)
    f(x, w).sin().sum().backward()
    return x.grad, w.grad


@asked(lambda x: (x.exp(), x.sum()))
def several_roots(f: Any) -> Any:
    x = leaf(3)
    a, b = f(x)
    torch.autograd.backward([a, b], [torch.ones_like(a), torch.tensor(2.0, dtype=torch.float64)])
    c, d = f(x)
    c.sum().backward(retain_graph=True)
    d.backward()
    return x.grad


@asked(layer)
def inference_mode(f: Any) -> Any:
    with torch.inference_mode():
        assert f(values(3, 4), values(4, 2)).is_inference()
    return f(values(3, 4), values(4, 2))


# -- random numbers: drawn in the order of memory --------------------------------------------------------------------------


def seeded(f: Any, *args: torch.Tensor) -> Any:
    torch.manual_seed(3)
    return f(*args), torch.rand(2)


@asked(lambda x: (torch.dropout(x.t(), 0.4, True), torch.dropout(x, 0.4, True)))
def dropout_of_a_transposed_tensor(f: Any) -> Any:
    return seeded(f, values(5, 8)), seeded(f, leaf(5, 8)), seeded(f, values(3, 8).t())


@asked(lambda x: (torch.empty_like(x).bernoulli_(0.4), torch.bernoulli(x, 0.4), x.bernoulli(0.4), torch.rand_like(x)))
def bernoulli_of_a_permuted_tensor(f: Any) -> Any:
    return seeded(f, values(2, 3, 4, 5).abs().div(2).permute(2, 0, 3, 1)), seeded(f, values(4, 5).abs().div(2))


@asked(lambda n: n.clone().bernoulli_(0.4))
def bernoulli_of_transposed_integers(f: Any) -> Any:
    return seeded(f, torch.zeros(6, 9, dtype=torch.int64).t())


@asked(
    lambda x: (
        x.new_zeros(20, 30)[:, :16].normal_(),
        x.new_zeros(6, 6)[:, :2].normal_(),
        x.new_zeros(9, 8).t().normal_(),
    )
)
def normal_of_a_view_with_gaps(f: Any) -> Any:
    return seeded(f, values(1))


# -- outputs and inputs that are one object, or share memory -------------------------------------------------------------


@asked(lambda x, w: (x * 2, w))
def an_input_comes_back(f: Any) -> Any:
    x, w = leaves()
    out, same = f(x, w)
    assert same is w
    return gradients(out.sum() + same.sum(), x, w)


@asked(lambda x, w: (x.argmax(0), x > 0, x * 2, x.detach() * w))
def some_have_no_gradient(f: Any) -> Any:
    x, w = leaf(3), leaf(3)
    out = f(x, w)
    return out, gradients((out[2] * out[3] * out[1]).sum(), x, w)


@asked(lambda x: x[1:])
def view_of_a_leaf(f: Any) -> Any:
    x = leaf(3)
    out = f(x)
    return gradients((out * 2).sum(), x), out._base is x


@asked(lambda x: x[1:])
def view_of_a_leaf_is_written(f: Any) -> Any:
    f(leaf(3)).mul_(2)


@asked(lambda x: x.view(-1))
def view_of_a_result_is_written(f: Any) -> Any:
    x = leaf(3)
    y = x * 1
    f(y).mul_(2)
    return y, gradients((y * y).sum(), x)


@asked(lambda x: x.clone().as_strided((2, 2), (1, 1)))
def overlapping_output(f: Any) -> Any:
    x = leaf(4)
    return gradients(f(x).sin().sum(), x)


# -- writes -------------------------------------------------------------------------------------------------------------


@asked(lambda x, w: (x @ w).exp())
def output_is_written_before_its_backward(f: Any) -> Any:
    x, w = leaves()
    out = f(x, w)
    out.mul_(2)
    out.sum().backward()


@asked(lambda x, w: (x @ w).exp())
def input_is_written_before_the_backward(f: Any) -> Any:
    x, w = leaves()
    y = x * 1
    out = f(y, w)
    y.mul_(2)
    out.sum().backward()


@asked(lambda x, w: x + w)
def written_where_nothing_is_saved(f: Any) -> Any:
    x, w = leaf(3), leaf(3)
    y = x * 1
    out = f(y, w)
    y.mul_(2)
    out.mul_(3)
    return gradients((out + y).sum(), x, w)


def writes_what_it_saved(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    y.mul_(3)
    return y


@asked(writes_what_it_saved)
def own_write_of_what_is_saved(f: Any) -> Any:
    f(values(3))
    f(leaf(3)).sum().backward()


def writes_between(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.add_(1)
    z = y.exp()
    y.mul_(3)
    return z.sin() + y


@asked(writes_between)
def own_writes(f: Any) -> Any:
    x = leaf(3)
    try:
        return gradients(f(x).sum(), x)
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)


def steps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        w.sub_(0.1 * x)
    return (w * x).sum()


@asked(steps)
def step_without_gradients(f: Any) -> Any:
    w = leaf(3)
    for _ in range(2):
        f(values(3), w).backward()
    return w.grad, w.detach()


def copies(buffer: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    buffer.copy_(x)
    return buffer * 2


@asked(copies)
def buffer_that_takes_a_history(f: Any) -> Any:
    buffer, x = values(3).clone(), leaf(3)
    out = f(buffer, x)
    return buffer, buffer.requires_grad, gradients((out + buffer).sum(), x)


def through_data(x: torch.Tensor) -> torch.Tensor:
    x.data.mul_(2)
    return x * 3


def through_detach(x: torch.Tensor) -> torch.Tensor:
    x.detach().mul_(2)
    return x * 3


for _program in (through_data, through_detach):

    @asked(_program)
    def write(f: Any) -> Any:
        x = leaf(3)
        out = f(x)
        return out, x.detach(), x._version, gradients(out.sum(), x)

    ROWS[_program.__name__] = ROWS.pop("write")


def break_then_add(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3, dtype=x.dtype)
    print(end="")
    total.index_add_(0, torch.tensor([0, 2, 1]), x * w)
    return total


@asked(break_then_add)
def written_after_a_break(f: Any) -> Any:
    w = leaf(3)
    out = f(values(3), w)
    return out, gradients(out.sin().sum(), w)


@asked(lambda x, out: torch.sin(x, out=out[:, ::2]) + 1)
def out_that_is_strided(f: Any) -> Any:
    out = torch.zeros(3, 8, dtype=torch.float64)
    return f(values(3, 4), out), out


@asked(lambda x, y: x.set_(y) * 2)
def storage_is_replaced(f: Any) -> Any:
    x, y = torch.zeros(2), torch.ones(3)
    out = f(x, y)
    x.add_(1)
    return out, x, y


# -- grad mode, leaves and Functions inside -------------------------------------------------------------------------------


def enabled(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return x * 2


@asked(enabled)
def enabled_inside(f: Any) -> Any:
    x = leaf(3)
    with torch.no_grad():
        out = f(x)
    return gradients(out.sum(), x)


def differentiates(x: torch.Tensor) -> torch.Tensor:
    y = x.detach().requires_grad_()
    return torch.autograd.grad((y * y).sum(), y)[0] * 2


@asked(differentiates)
def gradient_inside(f: Any) -> Any:
    return f(values(3))


@asked(lambda x: x.requires_grad_() * 2)
def requires_grad_inside(f: Any) -> Any:
    x = values(3).clone()
    return gradients(f(x).sum(), x)


class Odd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * x  # type: ignore[no-any-return]


@asked(lambda x: Odd.apply(x * 2).sum() * 3)
def a_function_with_a_backward_of_its_own(f: Any) -> Any:
    x = leaf(3)
    return gradients(f(x), x)


# -- complex numbers, and points where the gradient is a choice --------------------------------------------------------------


@asked(lambda z: (z * z.conj()).real.sum() + z.imag.sin().sum() + z.sgn().abs().sum())
def complex_gradients(f: Any) -> Any:
    z = torch.complex(values(3), values(3) ** 2).requires_grad_()
    return gradients(f(z), z)


@asked(lambda x: torch.view_as_complex(x.view(-1, 2)).abs().sum() + torch.fft.rfft(x).abs().sum())
def real_through_complex(f: Any) -> Any:
    x = leaf(6)
    return gradients(f(x), x)


@asked(lambda x: (x.max(), x.min(0).values, x.median(), x.sort().values, x.topk(2).values, x.mode().values))
def ties(f: Any) -> Any:
    x = torch.tensor([1.0, 1, 0, 0, 2, 2], requires_grad=True)
    out = f(x)
    return out, gradients(sum((t.sum() for t in out), torch.zeros(())), x)


@asked(lambda x: x.prod() + x.cumprod(0).sum() + x.norm() + (x * 0).norm() + x.abs().sum() + x.std())
def zeros(f: Any) -> Any:
    x = torch.tensor([0.0, 1, 0, 3], requires_grad=True)
    return gradients(f(x), x)


@asked(lambda x: x.to_sparse() * 2)
def sparse_output(f: Any) -> Any:
    x = leaf(3)
    return gradients(f(x).to_dense().sum(), x)


@asked(lambda x: x.to_sparse() @ x.t())
def products_of_sparse(f: Any) -> Any:
    x = leaf(2, 3)
    return gradients(f(x).sum(), x)


@asked(lambda x: x.to_sparse().transpose(0, 1).to_dense() * x.t())
def views_of_sparse(f: Any) -> Any:
    x = leaf(2, 3)
    return gradients(f(x).sum(), x)


@asked(lambda x: x.to_sparse_csr() @ x.t())
def products_of_sparse_rows(f: Any) -> Any:
    x = leaf(2, 3)
    return gradients(f(x).sum(), x)


def outcome(ask: Callable[[Any], Any], f: Any) -> Any:
    """The answer, or the type of the error: torch's text names the node of the graph."""
    try:
        return ask(f)
    except RuntimeError as error:
        return type(error)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.captures_nothing(
    "frames inside of these contexts run as written",
    "anomaly-aot_eager",
    "anomaly-native",
    "saved_tensor_hooks-aot_eager",
    "saved_tensor_hooks-native",
)
def test_as_in_eager(name: str, backend: str) -> None:
    program, ask = ROWS[name]
    compiled = pycompiler.compile(program, backend=backend)
    assert_same(outcome(ask, compiled), outcome(ask, program))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("op", [torch.max, torch.min])
def test_the_largest_of_nothing_raises_though_nobody_reads_it(op: Any, backend: str) -> None:
    def fn(x: torch.Tensor, nothing: torch.Tensor) -> torch.Tensor:
        op(nothing)
        return x + 1

    with pytest.raises(RuntimeError, match="Expected reduction dim to be specified"):
        pycompiler.compile(fn, backend=backend)(torch.ones(2), torch.ones(0))
