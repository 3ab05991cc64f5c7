"""Unbacked symbols: data-dependent numbers and sizes that a call binds, forward and backward, under their config knobs."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.checkpoint

import pycompiler
from tests.harness.compare import assert_same, observe

backends = pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
ITEMS = (3, 2, 0, 7, 1, -2, 100)


@pytest.fixture(autouse=True)
def knobs() -> Iterator[None]:
    with pycompiler.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


def counted(x: torch.Tensor, n: torch.Tensor) -> Any:
    k = n.item()
    return x * k + 1, k, [k + 1, -k * 2], float(n) * 0.5, int(n)


def checked(x: torch.Tensor, n: torch.Tensor) -> Any:
    k = n.item()
    torch._check(k >= 0)
    torch._check(k <= x.shape[0], lambda: "more than there is")
    return x[:k].sin(), x.narrow(0, 0, k) * 2


def masked(x: torch.Tensor, n: torch.Tensor) -> Any:
    y = x[x > 0]
    return (y * 2).sum(), y, y.shape[0], torch.masked_select(x, x > 0.2).exp()


def stored(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y[n] = 3.0
    return y + 1


PROGRAMS: dict[str, Callable[..., Any]] = {
    "items": counted,
    "checked": checked,
    "made": lambda x, n: (x.new_zeros(n.item()).sum() + x, torch.arange(n.item())),
    "sliced": lambda x, n: x[: n.item()] * 2,
    "float": lambda x, n: (x * x.sum().item(), x.mean().item() * 2.0),
    "masked": masked,
    "nonzero": lambda x, n: (x.nonzero(), len(x.nonzero()), x[x.nonzero().squeeze(1)]),
    "products": lambda x, n: (lambda y: (y @ y.T).sum(1))(x[x > 0][:, None]),
    "unique": lambda x, n: (torch.unique(x.round()), torch.repeat_interleave(x, (x > 0).long() + 1)),
    "several results": lambda x, n: torch.unique(x.round(), return_inverse=True, return_counts=True),
    "computed with several": lambda x, n: tuple(
        t * 2 for t in torch.unique_consecutive(x.long(), return_inverse=True, return_counts=True)
    ),
    "one of several": lambda x, n: torch.unique(x.round(), return_inverse=True)[1] + 1,
    "same mask": lambda x, n: (lambda m: x[m] + (x * 2)[m])(x > 0),
    "asked": lambda x, n: x + 1 if n.item() > 3 else x - 1,
    "truths": lambda x, n: (bool(n.item()), bool(n), bool((x < 0).all()), bool(x.sum() - x.sum()), n.item() >= 3),
    "truths of floats": lambda x, n: (bool((x[0] * n).item()), bool(x[:1] * n), bool((x * 0 / (n - n)).sum().item())),
    "negations": lambda x, n: (
        not n,
        not (x > 0).all(),
        not n.item(),
        not x.sum().item(),
        operator.not_(n),
        operator.truth(n),
    ),
    "items that are truths": lambda x, n: ((n > 1).item(), (x > 0).tolist(), x + 1),
    "tensors for sizes": lambda x, n: (torch.zeros(n), x.new_ones((n, 2)), x.repeat(n) + 1),
    "tensors for ranges": lambda x, n: torch.arange(1, n * 2),
    "tensors for numbers": lambda x, n: (torch.add(x, x, alpha=n), torch.add(x, x, alpha=n * 0.5), x.clamp(max=n)),
    "tensors in indices": lambda x, n: (x[:n] * 2, x.outer(x)[1:n, 1:] * 3),
    "tensors in stores": stored,
    "extremes": lambda x, n: (x.new_ones(max(n.item(), 4)), min(9, n.item(), 5), max([n.item(), -1, n.item() * 2])),
}


@backends
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_takes_all_data(name: str, backend: str, caplog: pytest.LogCaptureFixture) -> None:
    fn = PROGRAMS[name]
    compiled = pycompiler.compile(fn, backend=backend)
    with caplog.at_level(logging.WARNING):
        for k in ITEMS:
            x = torch.randn(6, generator=torch.Generator().manual_seed(k + 9)) - 100 * (k == 0)
            got, want = observe(compiled, (x, torch.tensor(k))), observe(fn, (x, torch.tensor(k)))
            # floats of Python: sums are closer to float64 than eager's sums
            near: Any = {"tolerance": 1.3e-6, "absolute": 1e-12} if name == "float" else {}
            assert_same(got, want, **near)
    assert compiled.counters()["compiles"] == 1
    assert not [r for r in caplog.records if "runs eagerly" in r.message]


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n != "asked"])
def test_they_do_not_break_the_graph(name: str) -> None:
    pycompiler.compile(PROGRAMS[name], fullgraph=True)(torch.ones(6), torch.tensor(3))


@backends
def test_an_operand_that_is_a_number_too_stays_an_operand(backend: str) -> None:
    def program(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return torch.add(x, n, alpha=n)

    args = torch.tensor(1, dtype=torch.int8), torch.tensor(3)
    assert_same(pycompiler.compile(program, backend=backend)(*args), program(*args))


def test_without_the_knobs_they_do() -> None:
    with pycompiler.config.patch(capture_scalar_outputs=False, capture_dynamic_output_shape_ops=False):
        for name in ("items", "masked", "nonzero"):
            with pytest.raises(pycompiler.exc.Unsupported):
                pycompiler.compile(PROGRAMS[name], fullgraph=True)(torch.ones(6), torch.tensor(3))


GRADIENTS: dict[str, Callable[..., torch.Tensor]] = {
    "item": lambda x, n: x.sin() * n.item(),
    "float": lambda x, n: x.sin() * x.detach().sum().item(),
    "mask": lambda x, n: x.exp()[x > 0].sin() * 3,
    "select": lambda x, n: torch.masked_select(x * 2, x > 0).tanh(),
    "indices": lambda x, n: x.exp()[x.nonzero().squeeze(1)],
    "slice": lambda x, n: x.exp()[: n.item()] * 2,
    "tensor": lambda x, n: x.exp()[n] * x.cos()[:n].sum() * x.repeat(n + 1),
}


@backends
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, backend: str) -> None:
    fn = GRADIENTS[name]
    compiled = pycompiler.compile(fn, backend=backend)
    for k in (3, 2, 5, 0, 1):
        start = torch.randn(6, generator=torch.Generator().manual_seed(k)) - 100 * (k == 0)
        x, y = (start.clone().requires_grad_() for _ in range(2))
        got, want = compiled(x, torch.tensor(k)), fn(y, torch.tensor(k))
        torch.testing.assert_close(got, want)
        got.sum().backward()
        want.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert compiled.counters()["compiles"] == 1


@backends
def test_effects_happen_once(backend: str) -> None:
    """An assumption about data may fail only before the first side effect."""

    def program(x: torch.Tensor, n: torch.Tensor, seen: list[int]) -> torch.Tensor:
        seen.append(1)
        y = x.new_zeros(n.item()) + 1
        x.add_(1)
        noise = torch.rand(2)
        y = y + n.item()
        x.mul_(2)
        return torch.cat([y, noise])

    compiled = pycompiler.compile(program, backend=backend)
    for k in (4, 0, 1, 3, -1):
        got, want = (observe(f, (torch.ones(3), torch.tensor(k), list[int]()), seed=k) for f in (compiled, program))
        assert_same(got, want)


@backends
@pytest.mark.captures_nothing("the frame runs eagerly: a write to a tensor after a read of its number")
def test_a_number_is_what_it_was(backend: str) -> None:
    """`.item()` reads the number at that point; later writes to its tensor do not change it."""

    def program(n: torch.Tensor, x: torch.Tensor) -> Any:
        k = n.item()
        n.add_(5)
        return k, x * k

    compiled = pycompiler.compile(program, backend=backend)
    for k in (3, 7):
        assert_same(compiled(torch.tensor(k), torch.ones(2)), program(torch.tensor(k), torch.ones(2)))


def test_native_kernels_run_between() -> None:
    compiled = pycompiler.compile(dynamic=True)(lambda x: (x.sin() * 2)[x > 0].cos() + 1)
    compiled(torch.randn(50))
    with torch.profiler.profile() as profile:
        compiled(torch.randn(40))
    assert not [e for e in profile.events() if e.name == "aten::cos"]


def test_of_floats_there_is_nothing_to_check(caplog: pytest.LogCaptureFixture) -> None:
    """A graph with only a check of the input's size has no binding before the check. It must still compile, without a warning."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum().item() > 0 else x - 1

    compiled = pycompiler.compile(program)
    with caplog.at_level(logging.WARNING):
        for x in (torch.ones(9), -torch.ones(10), torch.ones(11)):
            assert torch.equal(compiled(x), program(x))
    assert not caplog.records


def test_inside_of_other_graphs_they_break_it() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        return x.exp()[x > 0].sum()

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)

    compiled = pycompiler.compile(program)
    for k in range(3):
        x = torch.randn(6, generator=torch.Generator().manual_seed(k))
        torch.testing.assert_close(compiled(x), program(x))


ASSUMED: dict[str, Callable[..., Any]] = {
    "sign": lambda x, n: n.item() // 2,
    "remainder": lambda x, n: (lambda k: (k % 3, k))(n.item()),
    "size": lambda x, n: torch.zeros(n.item()).shape[0],
    "demand": lambda x, n: (lambda k: (torch._check(k < 10), [k])[1])(n.item()),
}


@backends
@pytest.mark.parametrize("name", ASSUMED)
def test_assumptions_are_checked_where_no_tensor_is_computed(name: str, backend: str) -> None:
    compiled = pycompiler.compile(ASSUMED[name], backend=backend)
    for k in (4, -4, 40):
        assert_same(
            observe(compiled, (torch.ones(3), torch.tensor(k))),
            observe(ASSUMED[name], (torch.ones(3), torch.tensor(k))),
        )


@backends
def test_views_of_bound_sizes(backend: str) -> None:
    """Such views share memory with their bases, inputs and results."""

    def program(x: torch.Tensor, n: torch.Tensor) -> Any:
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= 6)
        y = x * 2
        return x[:k], y[k:], y

    compiled = pycompiler.compile(program, backend=backend)
    for k in (3, 0, 6, 7, -1):
        x = torch.arange(6.0)
        got, want = observe(compiled, (x, torch.tensor(k))), observe(program, (x, torch.tensor(k)))
        assert_same(got, want)
        if want.error is None:
            assert got.result[0].data_ptr() == want.result[0].data_ptr()
            assert got.result[1].untyped_storage().data_ptr() == got.result[2].untyped_storage().data_ptr()


@backends
def test_a_symbol_may_become_a_number_behind_a_binding(backend: str) -> None:
    def program(x: torch.Tensor, n: torch.Tensor, numbers: Iterator[int]) -> Any:
        for k in numbers:
            x, z = x + k, torch.zeros(n.item())
            if k == 3:
                break
        return x, z, next(numbers)

    compiled = pycompiler.compile(program, backend=backend)
    for k in (3, 4):
        given = torch.ones(6), torch.tensor(k)
        assert_same(compiled(*given, iter(range(1, 6))), program(*given, iter(range(1, 6))))


@backends
def test_integers_of_64_bits(backend: str) -> None:
    def program(x: torch.Tensor, n: torch.Tensor) -> Any:
        k = n.item()
        return x * (k + k), x.long() * (-k), -k, k

    compiled = pycompiler.compile(program, backend=backend)
    for k in (3, -4, 2**62, -(2**63), 2**63 - 1):
        assert_same(
            observe(compiled, (torch.ones(3), torch.tensor(k))), observe(program, (torch.ones(3), torch.tensor(k)))
        )


FITTED: dict[str, Callable[..., Any]] = {
    "split": lambda x, n: (lambda parts: (x.split(parts), parts))([n.item(), 6 - n.item()]),
    "list": lambda x, n: [t * 2 for t in torch.split(x, torch.stack([n, 6 - n]).tolist())],
}


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@backends
@pytest.mark.parametrize("name", FITTED)
def test_what_torch_would_refuse_is_assumed(name: str, backend: str) -> None:
    """Data-dependent sizes that must fit other sizes are checked in each call; where they do not fit, eager raises."""
    compiled = pycompiler.compile(FITTED[name], backend=backend, fullgraph=True)
    for k in (6, 2, 6, 0, 1, 7, -1):
        x = torch.arange(6.0)
        assert_same(observe(compiled, (x, torch.tensor(k))), observe(FITTED[name], (x, torch.tensor(k))))
    assert compiled.counters()["compiles"] == 1


@backends
def test_gradients_of_parts(backend: str) -> None:
    def program(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        a, b = x.exp().split(n.tolist())
        return a.sum() + (b * 2).sum()

    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    for k in (2, 0, 6, 3):
        x, y = (torch.arange(6.0).requires_grad_() for _ in range(2))
        got, want = compiled(x, torch.tensor([k, 6 - k])), program(y, torch.tensor([k, 6 - k]))
        torch.testing.assert_close(got, want)
        got.backward()
        want.backward()
        torch.testing.assert_close(x.grad, y.grad)


@pycompiler.nested_compile_region
def region_of_data(x: torch.Tensor) -> torch.Tensor:
    return (x.tanh()[x > 0] * x.sum().item()).sum() + x.sin()


@pycompiler.nested_compile_region
def region_over_data(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x.shape[0] + 1


@backends
def test_regions(backend: str) -> None:
    """A region that binds symbols is inlined into the outer graph; other regions take symbols bound outside."""

    def program(x: torch.Tensor) -> Any:
        kept = x[x > 0]
        return region_of_data(region_of_data(x)), region_over_data(region_over_data(kept)), region_over_data(kept[1:])

    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    for k in range(4):
        start = torch.randn(6, generator=torch.Generator().manual_seed(k), dtype=torch.float64) + 1
        mine, theirs = (start.clone().requires_grad_() for _ in range(2))
        got, want = compiled(mine), program(theirs)
        assert_same(got, want)
        sum(t.sum() for t in got).backward()
        sum(t.sum() for t in want).backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
