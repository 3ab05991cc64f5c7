"""A compiled function under transforms of torch.func: its graph runs operator by operator on the transformed tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import pycompiler
from pycompiler import config
from pycompiler.errors import RecompileError
from tests.harness.compare import assert_same

Fn = Callable[..., Any]
X = torch.linspace(-1, 2, 60).reshape(3, 4, 5)
LAYER = torch.nn.Linear(5, 2)


class Counting:
    """A backend that returns the graph itself, and counts."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: torch.fx.GraphModule, examples: Any) -> Fn:
        self.graphs += 1
        assert not any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in examples)
        return gm.forward


def loss(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum()


def asks_in_vain(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.is_contiguous(memory_format=torch.channels_last) else x


def writes_own(x: torch.Tensor) -> torch.Tensor:
    z = torch.zeros_like(x)
    z.add_(x)
    return z


def writes_unbatched(x: torch.Tensor) -> torch.Tensor:
    z = torch.zeros(5)
    z.add_(x)  # vmap refuses this write
    return z


def writes_view(x: torch.Tensor) -> torch.Tensor:
    z = x * 2
    z.reshape(-1).add_(1)
    return z


def handles(x: torch.Tensor) -> torch.Tensor:
    try:
        return x + torch.rand(5)
    except RuntimeError:
        return x - 1


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    pycompiler.graph_break()
    return y + 1


# Name, function, call, and the number of graphs that the backend receives.
PROGRAMS: list[tuple[str, Fn, Fn, int]] = [
    ("elementwise", lambda x: x.sin() + 1, lambda f: vmap(f)(X), 1),
    ("a transform inside", lambda x: vmap(torch.sin)(x), lambda f: vmap(vmap(f))(X), 1),
    ("a gradient inside", lambda x: grad(loss)(x), lambda f: grad(lambda y: f(y).sum())(X), 1),
    ("gradient", loss, lambda f: grad(f)(X), 1),
    ("gradient of a gradient", loss, lambda f: grad(lambda y: grad(f)(y).sum())(X), 1),
    ("gradients of rows", loss, lambda f: vmap(grad(f))(X), 1),
    ("Jacobian", lambda x: x.sin() * x, lambda f: jacrev(f)(X[0, 0]), 1),
    ("Jacobian by tangents", lambda x: x.sin() * x, lambda f: jacfwd(f)(X[0, 0]), 0),
    ("Hessian", loss, lambda f: hessian(f)(X[0, 0]), 0),
    ("module", lambda x: LAYER(x), lambda f: vmap(f)(X), 1),
    ("two levels", lambda x, y: x * y, lambda f: vmap(lambda a: vmap(lambda b: f(a.sum(), b))(a))(X), 1),
    ("detached", lambda x: (x.detach() * x).sum(), lambda f: grad(f)(X), 1),
    ("what vmap refuses", lambda x: x + torch.rand(5), lambda f: vmap(f)(X), 1),
    ("drawn for each", lambda x: x + torch.rand(5), lambda f: vmap(f, randomness="different")(X), 1),
    ("drawn once", lambda x: x + torch.rand(5), lambda f: vmap(f, randomness="same")(X), 1),
    ("a handler", handles, lambda f: vmap(f)(X), 1),
    ("writes", lambda x: x.add_(1).sin(), lambda f: vmap(f)(X.clone()), 1),
    ("writes what it made", writes_own, lambda f: vmap(f)(X), 1),
    ("writes what is not mapped", writes_unbatched, lambda f: vmap(f)(X[0]), 1),
    ("writes by a view", writes_view, lambda f: vmap(f, in_dims=2, out_dims=1)(X), 1),
    ("a branch on data", lambda x: (x * x).sum() if x.sum() > 0 else x.sum(), lambda f: grad(f)(X), 2),
    ("history", lambda x: x.sum() * (2 if x.requires_grad else 3), lambda f: grad(f)(X), 2),
    ("sizes", lambda x: x.reshape(-1) * x.shape[0], lambda f: vmap(f)(X.transpose(0, 1)), 1),
    ("strides", lambda x: (x * 2).t() * x.stride(0), lambda f: vmap(f)(X.transpose(0, 1)), 2),
    ("what a level does not tell", asks_in_vain, lambda f: vmap(f)(X), 0),
    ("copies", lambda x: copy.deepcopy(x * 2) + 1, lambda f: vmap(f)(X), 1),
    ("parameters", lambda x: torch.nn.Parameter(x.detach()) * 2, lambda f: vmap(f)(X), 2),
    ("a break", breaks, lambda f: vmap(f)(X), 2),
]


@pytest.mark.captures_nothing("frames of dual numbers run as they are written", "Hessian", "Jacobian by tangents")
@pytest.mark.parametrize(("fn", "call", "graphs"), [p[1:] for p in PROGRAMS], ids=[p[0] for p in PROGRAMS])
def test_programs_under_transforms(fn: Fn, call: Fn, graphs: int) -> None:
    def run(f: Fn) -> Any:
        torch.manual_seed(0)
        try:
            return call(f), torch.rand(2)
        except RuntimeError as e:
            return str(e), torch.rand(2)

    backend = Counting()
    compiled = pycompiler.compile(fn, backend=backend)
    expected = run(fn)
    for _ in range(3):
        assert_same(run(compiled), expected)
    assert backend.graphs == graphs
    for kind in ("native", "aot_eager"):  # these run the function as written
        assert_same(run(pycompiler.compile(fn, backend=kind)), expected)


def test_entries_belong_to_their_levels() -> None:
    backend = Counting()
    compiled = pycompiler.compile(lambda x: x.sin(), backend=backend)
    calls: list[Fn] = [
        lambda f: f(X),
        lambda f: vmap(f)(X),
        lambda f: vmap(vmap(f))(X),
        lambda f: vmap(f, randomness="same")(X),
        lambda f: grad(lambda x: f(x).sum())(X),
    ]
    for _ in range(2):
        for call in calls:
            assert_same(call(compiled), call(torch.sin))
    assert backend.graphs == len(calls)


def test_gradients_go_through_a_graph_under_vmap() -> None:
    w = torch.ones(5, requires_grad=True)
    backend = Counting()
    compiled = pycompiler.compile(lambda x: x * w.sin(), backend=backend)
    vmap(compiled)(X).sum().backward()
    torch.testing.assert_close(w.grad, X.sum((0, 1)) * torch.ones(5).cos())
    assert backend.graphs == 1


def test_a_backend_that_gives_something_else_is_not_used() -> None:
    def backend(gm: torch.fx.GraphModule, examples: Any) -> Fn:
        return lambda *inputs: (torch.zeros(()),)  # not a graph of torch operators

    compiled = pycompiler.compile(lambda x: x.sin(), backend=backend)
    for _ in range(2):
        torch.testing.assert_close(vmap(compiled)(X), X.sin())


def test_what_cannot_be_captured_runs_eagerly_even_with_fullgraph() -> None:
    backend = Counting()
    compiled = pycompiler.compile(lambda x: x.sum() * (2 if x.requires_grad else 3), backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(grad(compiled)(X), torch.full_like(X, 2))
    assert compiled(X) == X.sum() * 3 and backend.graphs == 1  # outside the transform it is a graph


def test_a_compile_that_is_forbidden_is_told() -> None:
    compiled = pycompiler.compile(lambda x: x.sin(), backend="eager")
    with config.patch(error_on_recompile=True):
        vmap(compiled)(X)
        vmap(compiled)(X)
        with pytest.raises(RecompileError):
            compiled(X)
        native = pycompiler.compile(lambda x: x.sin())
        native(X)
        vmap(native)(X)  # runs as written: no compile
