"""Generators passed to operators: drawn in eager's order when the graph runs, with eager's final state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import pycompiler
from tests.harness.compare import assert_same

BACKENDS = ("eager", "aot_eager", "native")
OWN = torch.Generator()


def made(x: Any, g: Any) -> Any:
    return x + torch.randn(4, 5, generator=g) * 2


def filled(x: Any, g: Any) -> Any:
    x = (x * 2).normal_(generator=g)
    return x + torch.randint(0, 10, (4, 5), generator=g)


def written(x: Any, g: Any) -> Any:
    x.t()[1:3].uniform_(generator=g)
    return x + 1


def of_integers(x: Any, g: Any) -> Any:
    x.t()[1:3].random_(9, generator=g)
    return (x * 2).random_(0, 7, generator=g) + x, torch.zeros(6, 5).t().random_(-3, 4)


def of_distributions(x: Any, g: Any) -> Any:
    y = x * 2
    y.t()[1:3].cauchy_(generator=g)
    return x.exponential_(2.0, generator=g), y.geometric_(0.5, generator=g) + 1, (x + 1).log_normal_(generator=g)


def of_probabilities(x: Any, g: Any) -> Any:
    return torch.bernoulli(x.sigmoid(), generator=g) * x, torch.multinomial(x.softmax(-1), 3, generator=g)


def among_others(x: Any, g: Any) -> Any:
    return torch.rand(5, generator=g) + torch.rand(5) * torch.randn(5, generator=g) + x.uniform_(0, 1, generator=g)


def order(x: Any, g: Any) -> Any:
    return x[torch.randperm(4, generator=g)]


def unused(x: Any, g: Any) -> Any:
    torch.rand(3, generator=g)
    return x + 1


def two_names(x: Any, g: Any) -> Any:
    again = {"g": g}
    return x + torch.rand(5, generator=g) - torch.rand(5, generator=again["g"])


def initialised(x: Any, g: Any) -> Any:
    return torch.nn.init.kaiming_uniform_(x, generator=g) + 1


def of_a_global(x: Any, g: Any) -> Any:
    return x * torch.rand(5, generator=OWN) + torch.rand(5, generator=g)


def one_by_one(x: Any, g: Any) -> Any:
    return torch.vmap(lambda r: r + torch.randn(5, generator=g), randomness="different")(x)


def all_alike(x: Any, g: Any) -> Any:
    return torch.vmap(lambda r: r.clone().bernoulli_(generator=g) + r, randomness="same")(x)


def in_chunks(x: Any, g: Any) -> Any:
    def one(r: Any) -> Any:
        return torch.vmap(lambda q: q * torch.rand((), generator=g), randomness="different")(r)

    return torch.vmap(one, randomness="different", chunk_size=2)(x)


def differentiated(x: Any, g: Any) -> Any:
    return torch.func.grad(lambda r: (r.square() * torch.randn(4, 5, generator=g)).sum())(x)


def own(x: Any, g: Any) -> Any:
    h = torch.Generator(x.device).manual_seed(x.dim())
    return x + torch.rand(5, generator=h), torch.rand(5, generator=h, device=h.device)


def seeded(x: Any, g: Any) -> Any:
    g.manual_seed(x.shape[0])
    return x + torch.rand(5, generator=g) + torch.rand(5)


def own_in_a_function(x: Any, g: Any) -> Any:
    def one(r: Any) -> Any:
        h = torch.Generator().manual_seed(4)
        return r + torch.rand(5, generator=h), torch.rand((), generator=g)

    return torch.vmap(one, randomness="different")(x)


PROGRAMS = (
    made, filled, written, of_probabilities, among_others, order, unused, two_names, initialised, of_a_global, one_by_one,
    all_alike, in_chunks, differentiated, own, seeded, own_in_a_function, of_integers,
    of_distributions,
)  # fmt: skip


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def outcome(fn: Callable[..., Any], g: Any, calls: int = 3) -> list[Any]:
    """Per call: the result, the argument, and the states of the generators."""
    found: list[Any] = []
    torch.manual_seed(1)
    OWN.manual_seed(2)
    for k in range(calls):
        x = torch.linspace(-1, 1, 20).view(4, 5) + k
        found.append((fn(x, g), x, g.get_state(), OWN.get_state(), torch.get_rng_state()))
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_eagers_numbers(fn: Callable[..., Any], backend: str, caplog: pytest.LogCaptureFixture) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    assert_same(outcome(compiled, generator()), outcome(fn, generator()))
    assert_same(outcome(compiled, generator(7)), outcome(fn, generator(7)))
    assert compiled.counters()["compiles"] == 1  # another generator is another input
    assert "runs eagerly" not in caplog.text


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_default_generator_by_name_is_drawn_from_in_order(backend: str) -> None:
    compiled = pycompiler.compile(among_others, backend=backend, fullgraph=True)
    default = torch.default_generator
    assert_same(outcome(compiled, default), outcome(among_others, default))


def dropped(x: Any, g: Any) -> Any:
    kept = torch.rand(x.shape, generator=g) > 0.5
    return (x.tanh() * kept * torch.rand(()) * torch.randn(5, generator=g)).square()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("own", [True, False])
def test_a_backward_draws_nothing(backend: str, own: bool) -> None:
    compiled = pycompiler.compile(dropped, backend=backend, fullgraph=True)

    def found(fn: Callable[..., Any]) -> Any:
        torch.manual_seed(1)
        g = generator() if own else torch.default_generator
        x = torch.linspace(-1, 1, 20).view(4, 5).requires_grad_()
        y = fn(x, g)
        after = g.get_state()
        (first,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        (again,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        torch.rand(3, generator=g)  # the program's next numbers
        (second,) = torch.autograd.grad(again.sum(), x)
        return y, first, again, second, after, g.get_state(), torch.get_rng_state()

    for _ in range(2):
        torch.testing.assert_close(found(compiled), found(dropped))


def of_two(x: Any, g: Any, h: Any) -> Any:
    return (x.tanh() * torch.rand(5, generator=g) * torch.rand(5, generator=h) * torch.rand(5, generator=g)).square()


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_that_are_one_in_a_later_call(backend: str) -> None:
    compiled = pycompiler.compile(of_two, backend=backend, fullgraph=True)

    def found(fn: Callable[..., Any], *seeds: int) -> Any:
        made = {seed: generator(seed) for seed in seeds}
        x = torch.linspace(-1, 1, 20).view(4, 5).requires_grad_()
        y = fn(x, *(made[seed] for seed in seeds))
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y, first, torch.autograd.grad(first.sum(), x), [g.get_state() for g in made.values()]

    for seeds in ((1, 2), (3, 3)):
        torch.testing.assert_close(found(compiled, *seeds), found(of_two, *seeds))


def looked_at(x: Any, g: Any) -> Any:
    y = x + torch.rand(5, generator=g)
    state = g.get_state()
    return y * torch.rand(5, generator=g), state, g.initial_seed()


def set_again(x: Any, g: Any) -> Any:
    y = x + torch.rand(5, generator=g)
    g.manual_seed(5)
    return y * torch.rand(5, generator=g)


def seeded_after_a_draw(x: Any, g: Any) -> Any:
    h = torch.Generator().manual_seed(2)
    y = x + torch.rand(5, generator=h)
    h.manual_seed(5)
    return y * torch.rand(5, generator=h), h.get_state(), torch.rand(5, generator=g)


def the_default_one_seeded(x: Any, g: Any) -> Any:
    y = x + torch.rand(5)
    torch.default_generator.manual_seed(5)
    return y + torch.rand(5)


def unseeded(x: Any, g: Any) -> Any:
    h = torch.Generator()
    return x + torch.rand(5, generator=h), h.initial_seed(), h.get_state()


def kept(x: Any, g: Any) -> Any:
    h = torch.Generator().manual_seed(2)
    y = x + torch.rand(5, generator=h)
    print(end="")
    return y + torch.rand(5, generator=h), h.get_state()


def seeded_beside_an_error(x: Any, g: Any) -> Any:
    try:
        y = torch.embedding(x, torch.arange(3) + (x[0, 0] * 50).long())
        g.manual_seed(1)
    except IndexError:
        y = x
    return y - torch.rand(5, generator=g)


def in_a_checkpoint(x: Any, g: Any) -> Any:
    x = x.clone().requires_grad_()
    y = checkpoint(lambda t: t.sin() * torch.rand(5, generator=g), x, use_reentrant=False)
    return y, torch.autograd.grad(y.sum(), x)


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * torch.rand(5, generator=OWN)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad + torch.rand(5, generator=OWN)


def in_a_backward(x: Any, g: Any) -> Any:
    x = x.clone().requires_grad_()
    y = Noisy.apply(x + torch.rand(5, generator=g))  # type: ignore[no-untyped-call]
    return y, torch.autograd.grad(y.sum(), x, retain_graph=True), torch.autograd.grad(y.sum(), x)


def after_an_error_of_data(x: Any, g: Any) -> Any:
    y = torch.rand(5, generator=g)
    try:
        return torch.embedding(x, torch.arange(3) + (x[0, 0] * 50).long()) + y
    except IndexError:
        return y - torch.rand(5, generator=g)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fn",
    [
        looked_at, set_again, seeded_after_a_draw, the_default_one_seeded, unseeded, kept, seeded_beside_an_error,
        in_a_checkpoint, in_a_backward, after_an_error_of_data,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_what_sees_a_generator_sees_what_was_drawn(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend)
    assert_same(outcome(compiled, generator()), outcome(fn, generator()))


def device_of(x: Any, g: Any) -> Any:
    return x + torch.rand(5, generator=g, device=g.device)


def test_its_device_is_read() -> None:
    compiled = pycompiler.compile(device_of, backend="eager", fullgraph=True)
    assert_same(outcome(compiled, generator()), outcome(device_of, generator()))


@pytest.mark.parametrize("fn", [made, among_others, one_by_one, unused], ids=lambda f: f.__name__)
def test_a_comparison_with_eager_draws_nothing_of_the_programs(fn: Callable[..., Any]) -> None:
    with pycompiler.config.patch(verify_correctness=True):
        compiled = pycompiler.compile(fn)
        assert_same(outcome(compiled, generator()), outcome(fn, generator()))
        default = torch.default_generator
        assert_same(outcome(compiled, default), outcome(fn, default))


def returned(x: Any, g: Any) -> Any:
    h = torch.Generator().manual_seed(6)
    return x + torch.rand(5, generator=h), {"h": h}


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_that_the_program_made_is_given_back(backend: str) -> None:
    compiled = pycompiler.compile(returned, backend=backend, fullgraph=True)
    for _ in range(2):
        (y, held), (z, other) = compiled(torch.ones(5), None), returned(torch.ones(5), None)
        assert type(held["h"]) is torch.Generator
        torch.testing.assert_close((y, held["h"].get_state()), (z, other["h"].get_state()))
    assert compiled(torch.ones(5), None)[1]["h"] is not held["h"]


@pytest.mark.parametrize("fn", [made, among_others, dropped, own], ids=lambda f: f.__name__)
def test_a_file_has_such_graphs(fn: Callable[..., Any], tmp_path: Path) -> None:
    compiled = pycompiler.compile(fn)
    outcome(compiled, generator())
    saved = pycompiler.save(compiled, tmp_path / "graph")
    assert not saved.left_out
    loaded = pycompiler.load(tmp_path / "graph", fn, trust=True)
    assert_same(outcome(loaded, generator()), outcome(fn, generator()))
    assert loaded.counters()["compiles"] == 0


@pytest.mark.parametrize("rows", [4, 7])
@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_are_symbols(rows: int, backend: str) -> None:
    def program(x: Any, g: Any) -> Any:
        return x.sin() * torch.rand(x.shape[0], generator=g).unsqueeze(1) + torch.randn(x.shape, generator=g)

    compiled = pycompiler.compile(program, backend=backend, fullgraph=True, dynamic=True)
    for n in (3, rows, 9):
        x, g, h = torch.ones(n, 2), generator(), generator()
        torch.testing.assert_close((compiled(x, g), g.get_state()), (program(x, h), h.get_state()))
    assert compiled.counters()["compiles"] == 1
