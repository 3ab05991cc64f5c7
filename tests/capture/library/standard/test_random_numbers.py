"""Random numbers of Python's generators (`random.random()`, `random.randint(1, 6)`): drawn in eager's order, with
eager's final state."""

from __future__ import annotations

import random
import unittest.mock
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same

OWN = random.Random(3)


def scaled(x: Any) -> Any:
    return (x + 1) * random.uniform(0, 1)


def several(x: Any) -> Any:
    first = random.random()
    y = x.sin() * first
    second = OWN.normalvariate(0.5)
    return y - second * first, [first, second, first + second, random.uniform(a=-1, b=2.5)]


def in_a_loop(x: Any) -> Any:
    return [x * random.random() for _ in range(3)]


def written(x: Any) -> Any:
    r = OWN.random()
    x.add_(r)
    return r


def as_tensors(x: Any) -> Any:
    return x + torch.full((4,), random.random()) + torch.tensor(random.random()) + x.half() * random.uniform(-1e5, 1e5)


def unused(x: Any) -> Any:
    random.random()
    return x + 1


def integers(x: Any) -> Any:
    first = random.randint(-3, 9)
    second = OWN.randrange(2, 40, 3)
    y = x * first - second + random.randrange(5)
    return y, [first, second, first * second, first + random.random()], x.new_zeros(random.randrange(10, 0, -2))


def rolled(x: Any) -> Any:
    return x.roll(random.randint(0, 3)), random.randint(1, 1)


def filled(x: Any) -> Any:
    return torch.full((4,), random.randint(1, 1)), x[random.randint(0, 3)], x.narrow(0, 0, 2) * random.randint(0, 1)


def cut(x: Any) -> Any:
    return x[random.randint(0, 2) :] + 1


def of_a_size(x: Any) -> Any:
    return x.repeat(random.randint(2, 5)).sum() * x


def decided(x: Any) -> Any:
    n = random.randint(0, 9)
    return (x + n if n > 4 else x - n), OWN.random()


def counted(x: Any) -> Any:
    for _ in range(random.randint(1, 3)):
        x = x + 1
    return [x, 1, 2, 3][random.randrange(1, 3)], len(f"{random.randint(1, 9)}"), x


def refused(x: Any) -> Any:
    try:
        return random.randint(3, 1)
    except ValueError as e:
        return x, len(str(e))


def skipped_layers(x: Any) -> Any:
    for _ in range(4):
        if random.random() < 0.5:
            continue
        x = x + random.random()
    return x


def known(x: Any) -> Any:
    return x * int(random.random() * 10), round(random.random(), 2)


def among_others(x: Any) -> Any:
    r = random.random()
    random.seed(int(r * 100))
    return x * random.random() * random.randint(0, 5) + random.gauss(0.0, 1.0), r


def after_an_error_of_data(x: Any) -> Any:
    rows = torch.embedding(x.view(2, 2), (x * 0).long())
    return rows * random.random()


def before_an_error_of_data(x: Any) -> Any:
    r = random.random()
    x.add_(1)
    return torch.embedding(x.view(2, 2), (x * 0).long()) * r


def in_a_transform(x: Any) -> Any:
    return torch.func.grad(lambda t: (t * random.random()).sum())(x)


def as_a_rate(x: Any) -> Any:
    return torch.nn.functional.dropout(x, random.random())


def by_other_numbers(x: Any) -> Any:
    return (
        x * OWN.normalvariate(mu=x.shape[0] * x.dim())
        + OWN.normalvariate(sigma=x.sum().item())
        + random.uniform(True, 2)
    )


def beside_torchs(x: Any) -> Any:
    y = torch.nn.functional.dropout(x, 0.5)
    r = random.random()
    return x * r + torch.rand(4), random.random(), y.add_(torch.randn(4)), random.randint(0, 5)


def beside_torchs_and_an_error(x: Any) -> Any:
    y = torch.rand(2)
    r = random.random()
    return torch.embedding(x.view(2, 2), (x * 0).long()) * r + y, torch.rand(1)


WHOLE = (scaled, several, in_a_loop, written, as_tensors, unused, integers, filled, beside_torchs)
BROKEN = (
    cut,
    rolled,
    of_a_size,
    decided,
    counted,
    refused,
    skipped_layers,
    known,
    among_others,
    after_an_error_of_data,
    before_an_error_of_data,
    beside_torchs_and_an_error,
    in_a_transform,
    as_a_rate,
    by_other_numbers,
)


def seen(fn: Callable[..., Any], seed: int) -> Any:
    """The results and writes of a call, and the final state of the generators."""
    for generator in (random, OWN, torch.random):
        (generator.manual_seed if generator is torch.random else generator.seed)(seed)  # type: ignore[union-attr]
    x = torch.arange(4.0)
    return fn(x), x, torch.get_rng_state(), random.getstate(), OWN.getstate()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("fn", [*WHOLE, *BROKEN])
def test_drawn_as_in_eager(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=fn in WHOLE)
    for seed in range(4):
        assert_same(seen(compiled, seed), seen(fn, seed), exact=backend != "native")


@pytest.mark.parametrize("fn", WHOLE)
def test_draws_compile_once(fn: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(fn, fullgraph=True)
    for seed in range(4):
        seen(compiled, seed)
    assert compiled.counters()["compiles"] == 1


def test_an_error_of_the_program_leaves_the_generator_where_eager_does() -> None:
    def fn(x: Any, i: Any) -> Any:
        a = random.random()
        y = torch.embedding(x, i) * a
        return y * random.random()

    compiled = pycompiler.compile(fn)
    states = []
    for run in (fn, compiled):
        random.seed(1)
        with pytest.raises(IndexError):
            run(torch.ones(2, 2), torch.tensor([5]))
        states.append(random.getstate())
    assert states[0] == states[1]


def test_the_methods_that_draw_integers_are_looked_up_in_each_call() -> None:
    own = random.Random(0)
    compiled = pycompiler.compile(lambda x: x + own.randint(0, 5))
    compiled(torch.zeros(2))
    own._randbelow = lambda n: 77  # type: ignore[attr-defined]
    assert compiled(torch.zeros(2)).tolist() == [77.0, 77.0]


def test_what_is_drawn_is_looked_up_in_each_call() -> None:
    compiled = pycompiler.compile(scaled)
    x = torch.zeros(2)
    compiled(x)
    with unittest.mock.patch("random.uniform", lambda a, b: 7.0):
        assert compiled(x).tolist() == [7.0, 7.0]

    own = random.Random(0)
    compiled = pycompiler.compile(lambda x: x + own.random() + own.uniform(0, 0.5))
    compiled(x)
    own.random = lambda: 2.0  # type: ignore[method-assign]
    assert compiled(x).tolist() == [3.0, 3.0]


def test_a_generator_of_another_class_is_the_programs() -> None:
    class Dice(random.Random):
        def random(self) -> float:
            return 0.25

    dice = Dice()
    compiled = pycompiler.compile(lambda x: x * dice.random() + dice.uniform(0, 1))
    assert compiled(torch.ones(2)).tolist() == [0.5, 0.5]


def test_an_instance_that_comes_as_an_argument() -> None:
    def fn(x: Any, generator: Any) -> Any:
        return x * generator.random()

    compiled = pycompiler.compile(fn, fullgraph=True)
    for seed in (1, 2, 3):
        expected, used = random.Random(seed), random.Random(seed)
        assert torch.equal(compiled(torch.ones(2), used), fn(torch.ones(2), expected))
        assert used.getstate() == expected.getstate()
    assert compiled.counters()["compiles"] == 1


def test_gradients_of_what_was_drawn() -> None:
    def fn(x: Any) -> Any:
        return (x.sin() * random.random()).sum() * random.uniform(1, 2)

    grads = []
    for run in (fn, pycompiler.compile(fn, fullgraph=True)):
        random.seed(5)
        x = torch.arange(4.0).requires_grad_()
        run(x).backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0])


def test_a_draw_is_saved(tmp_path: Any) -> None:
    path = tmp_path / "draw"
    compiled = pycompiler.compile(several, fullgraph=True)
    expected = seen(compiled, 1)[0]
    pycompiler.save(compiled, path)
    loaded = pycompiler.load(path, several)
    found = seen(loaded, 1)[0]
    torch.testing.assert_close(found, expected)
    assert loaded.counters()["compiles"] == 0


def test_an_operator_of_another_library_may_draw_from_pythons_generator() -> None:
    library = torch.library.Library("drawn_beside", "FRAGMENT")
    library.define("noise(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    library.impl("noise", lambda x: x + random.random(), "CPU")
    library.impl("noise", lambda x: x.new_empty(x.shape), "Meta")

    def fn(x: Any) -> Any:
        y = torch.ops.drawn_beside.noise(x)
        return y, y * random.random()

    found = []
    for run in (fn, pycompiler.compile(fn)):
        random.seed(3)
        found.append([t.tolist() for t in run(torch.ones(2))])
    torch.testing.assert_close(found[1], found[0])
