"""NumPy random numbers (`numpy.random.rand(4)`, generator methods): drawn in eager's order, leaving the generators in
eager's state."""

from __future__ import annotations

import random
import unittest.mock
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pycompiler
from pycompiler import config
from tests.harness.compare import assert_same

OLD, NEW = np.random.RandomState(3), np.random.default_rng(3)
HELD: dict[str, Any] = {}


def noisy(x: Any) -> Any:
    return x.numpy() * np.random.rand(4) + np.random.randn(3, 1)


def as_tensors(x: Any) -> Any:
    return x + torch.from_numpy(np.random.standard_normal((4,))), torch.tensor(np.random.uniform(-1, 1, size=(2, 2)))


def in_order(x: Any) -> Any:
    first, second, third = np.random.random(2), OLD.normal(1.0, 2.0, 3), NEW.random((2, 2), dtype=np.float32)
    return first, x.sin(), second, third, np.random.random_sample(2), NEW.standard_normal(2), OLD.rand(1)


def numbers(x: Any) -> Any:
    r, n = np.random.rand(), np.random.randint(3, 9)
    y = x * r + NEW.normal(0.5, scale=2.0) - n
    return y, [r, n, n + 1], OLD.uniform(high=3), np.random.randn(), NEW.uniform(1, 2), np.random.random()


def numbers_of_numpys(x: Any) -> Any:
    n, m = NEW.integers(5), np.random.randint(2, 7, dtype=np.int32)
    return x.numpy() * n + m, n, m


def of_dtypes(x: Any) -> Any:
    a, b, c = (
        np.random.randint(0, 2, (3,), dtype=bool),
        NEW.integers(0, 9, 4, dtype="int32"),
        OLD.randint(5, size=[2, 2]),
    )
    return a, b, c, np.random.randint(9, size=2, dtype="uint8"), NEW.random(3, "float32"), np.random.normal(size=())


def indices(x: Any) -> Any:
    order, other, two = np.random.permutation(4), OLD.permutation(4), NEW.choice(4, 2, replace=False)
    return x.numpy()[order], x[torch.from_numpy(other)], order, two


def written(x: Any) -> Any:
    a = np.random.rand(4)
    b = a
    a += 1
    b[0] = 7
    t = torch.from_numpy(a)
    t.mul_(2)
    x.add_(t)
    return a, b is a, t


def by_itself(x: Any) -> Any:
    return np.random.rand(3), x


def unused(x: Any) -> Any:
    np.random.rand(4)
    return x + 1


def kept(x: Any) -> Any:
    HELD["noise"] = np.random.rand(4)
    return x + torch.from_numpy(HELD["noise"])


def in_a_loop(x: Any) -> Any:
    for i in range(3):
        x = x + torch.from_numpy(np.random.rand(*x.shape)) * i
    return x, random.random()


def beside_torchs(x: Any) -> Any:
    y = torch.rand(4) + x
    return y, np.random.rand(2), torch.rand(2), NEW.normal(size=2)


def others(x: Any) -> Any:
    return (
        OLD.gamma(2.0, size=3),
        np.random.exponential(size=2),
        NEW.poisson([1, 2.5]),
        np.random.beta(1, 2, (2,)),
        x + 1,
    )


def seeded(x: Any) -> Any:
    np.random.seed(5)
    return x + torch.from_numpy(np.random.rand(4))


def looked_at(x: Any) -> Any:
    y = x.numpy() + np.random.rand(4)
    position = np.random.get_state()[2]
    return y, position, np.random.rand(2)


def shuffled(x: Any) -> Any:
    a = np.arange(4)
    np.random.shuffle(a)
    return a, np.random.rand(1), x


def decided(x: Any) -> Any:
    return (x + 1 if np.random.rand() < 0.5 else x - 1), NEW.random()


def counted(x: Any) -> Any:
    return [x + i for i in range(np.random.randint(1, 4))], np.random.choice(5), NEW.integers(4, dtype=int)


def refused(x: Any) -> Any:
    try:
        return np.random.uniform(0, 1, -3)
    except ValueError as e:
        return x, len(str(e)), np.random.rand(2)


def of_data(x: Any) -> Any:
    return np.random.permutation(x.numpy()), np.random.normal(x.numpy()), np.random.uniform(0, 1, x.sum().long().item())


def into_another(x: Any) -> Any:
    out = np.zeros(3)
    NEW.random(out=out)
    return out, x


def after_an_error_of_data(x: Any) -> Any:
    rows = torch.embedding(x.view(2, 2), (x * 0).long())
    return rows * torch.from_numpy(np.random.rand(2))


def before_an_error_of_data(x: Any) -> Any:
    r = torch.from_numpy(np.random.rand(2))
    x.add_(1)
    return torch.embedding(x.view(2, 2), (x * 0).long()) * r


def in_a_transform(x: Any) -> Any:
    return torch.func.grad(lambda t: (t * torch.from_numpy(np.random.rand(4))).sum())(x)


def behind_a_print(x: Any) -> Any:
    y = x + torch.from_numpy(np.random.rand(4))
    pycompiler.graph_break()
    return y * torch.from_numpy(np.random.rand(4)), np.random.rand()


WHOLE = (noisy, as_tensors, in_order, numbers, numbers_of_numpys, of_dtypes, indices, written, by_itself, unused, kept, in_a_loop, others, beside_torchs)  # fmt: skip
BROKEN = (seeded, looked_at, shuffled, decided, counted, refused, of_data, into_another, after_an_error_of_data,
          before_an_error_of_data, in_a_transform, behind_a_print)  # fmt: skip


def states() -> Any:
    return np.random.get_state(), OLD.get_state(), NEW.bit_generator.state, random.getstate(), torch.get_rng_state()


def seen(fn: Callable[..., Any], seed: int) -> Any:
    """The results and writes of a call, and the final state of the generators."""
    np.random.seed(seed)
    OLD.seed(seed)
    NEW.bit_generator.state = np.random.PCG64(seed).state
    random.seed(seed)
    torch.manual_seed(seed)
    HELD.clear()
    x = torch.arange(4.0, dtype=torch.float64)
    return fn(x), x, dict(HELD), states()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("fn", [*WHOLE, *BROKEN])
def test_drawn_as_in_eager(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=fn in WHOLE)
    for seed in range(3):
        assert_same(seen(compiled, seed), seen(fn, seed), exact=backend != "native", tolerance=1e-7)


@pytest.mark.parametrize("fn", WHOLE)
def test_draws_compile_once(fn: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(fn, fullgraph=True)
    for seed in range(4):
        seen(compiled, seed)
    assert compiled.counters()["compiles"] == 1


def test_breaks_are_named() -> None:
    for fn in (seeded, shuffled, after_an_error_of_data, refused):
        report = pycompiler.explain(fn)(torch.arange(4.0))
        assert report.graph_break_count >= 1
        assert {b.kind for b in report.break_reasons} <= {"skipped-call", "builtin-call"}


def test_an_error_of_the_program_leaves_the_generator_where_eager_does() -> None:
    def fn(x: Any, i: Any) -> Any:
        y = torch.embedding(x, i) * torch.from_numpy(np.random.rand(2))
        return y * torch.from_numpy(np.random.rand(2))

    found = []
    for run in (fn, pycompiler.compile(fn)):
        np.random.seed(1)
        with pytest.raises(IndexError):
            run(torch.ones(2, 2), torch.tensor([5]))
        found.append(states()[0])
    assert_same(*found)


def test_what_is_drawn_is_looked_up_in_each_call() -> None:
    compiled = pycompiler.compile(lambda x: x + torch.from_numpy(np.random.rand(2)))
    x = torch.zeros(2)
    compiled(x)
    with unittest.mock.patch("numpy.random.rand", lambda n: np.full(n, 7.0)):
        assert compiled(x).tolist() == [7.0, 7.0]


def test_a_generator_that_comes_as_an_argument() -> None:
    def fn(x: Any, generator: Any) -> Any:
        return x * torch.from_numpy(generator.random(2)), generator.normal(size=3)

    compiled = pycompiler.compile(fn, fullgraph=True)
    for seed in (1, 2, 3):
        expected, used = np.random.default_rng(seed), np.random.default_rng(seed)
        assert_same(compiled(torch.ones(2), used), fn(torch.ones(2), expected), exact=True)
        assert_same(used.bit_generator.state, expected.bit_generator.state)
    assert compiled.counters()["compiles"] == 1
    old, expected_old = np.random.RandomState(5), np.random.RandomState(5)
    generators = [np.random.Generator(np.random.MT19937(1)) for _ in range(2)]
    for used, expected in ((old, expected_old), generators):
        assert_same(compiled(torch.ones(2), used), fn(torch.ones(2), expected), exact=True)
    assert compiled.counters()["compiles"] == 2  # a second compile for the other class


def test_a_generator_of_another_class_is_the_programs() -> None:
    class Dice(np.random.RandomState):
        def rand(self, *size: int) -> Any:
            return np.full(size, 0.25)

    dice = Dice(1)
    compiled = pycompiler.compile(lambda x: x * torch.from_numpy(dice.rand(2)))
    assert compiled(torch.ones(2)).tolist() == [0.25, 0.25]


def test_gradients() -> None:
    def fn(x: Any) -> Any:
        return (x.sin() * torch.from_numpy(np.random.rand(4))).sum() * np.random.uniform(1, 2)

    grads = []
    for run in (fn, pycompiler.compile(fn, fullgraph=True)):
        np.random.seed(5)
        x = torch.arange(4.0).requires_grad_()
        run(x).backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0])


def test_results_of_several_calls_are_apart() -> None:
    compiled = pycompiler.compile(by_itself, fullgraph=True)
    x = torch.ones(2)
    np.random.seed(0)
    first = compiled(x)[0]
    before = first.copy()
    second = compiled(x)[0]
    second += 1
    assert (first == before).all() and first.flags.writeable and not np.shares_memory(first, second)


def test_a_size_that_is_a_symbol_is_a_number() -> None:
    compiled = pycompiler.compile(in_a_loop, fullgraph=True)
    for n in (2, 3, 4):
        np.random.seed(n)
        want = in_a_loop(torch.ones(n))[0]
        np.random.seed(n)
        torch.testing.assert_close(compiled(torch.ones(n))[0], want)


def test_a_default_device_is_left_to_eager() -> None:
    compiled = pycompiler.compile(lambda x: np.random.rand(2))
    torch.set_default_device("meta")
    try:
        np.random.seed(0)
        want = np.random.rand(2).tolist()
        np.random.seed(0)
        assert compiled(torch.ones(2, device="cpu")).tolist() == want
    finally:
        torch.set_default_device(None)


def test_trace_numpy_off() -> None:
    with config.patch(trace_numpy=False):
        assert pycompiler.explain(noisy)(torch.ones(4)).graph_break_count > 0


def test_draws_are_saved(tmp_path: Any) -> None:
    path = tmp_path / "draw"
    for fn in (in_order, numbers):
        compiled = pycompiler.compile(fn, fullgraph=True)
        expected = seen(compiled, 1)
        pycompiler.save(compiled, path)
        loaded = pycompiler.load(path, fn)
        assert_same(seen(loaded, 1), expected, exact=True)
        assert loaded.counters()["compiles"] == 0


def test_the_share_of_a_mixture() -> None:
    def mixed(x: torch.Tensor) -> Any:
        share = np.random.beta(0.4, 0.4)
        return share * x + (1 - share) * x.flip(0), share

    compiled = pycompiler.compile(mixed, fullgraph=True)
    for n in (2, 3, 4):
        x, found = torch.randn(n), []
        for call in (mixed, compiled):
            np.random.seed(n)
            made, share = call(x)
            found.append((made, share, type(share), np.random.random()))
        torch.testing.assert_close(found[1][0], found[0][0])
        assert found[0][1:] == found[1][1:]
    assert compiled.counters()["eager_calls"] == 0
