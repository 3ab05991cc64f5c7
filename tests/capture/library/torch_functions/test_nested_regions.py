"""Marked regions (`nested_compile_region`): equal regions of a graph are compiled once, with eager's results."""

from __future__ import annotations

import copy
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pycompiler
from pycompiler import regions
from pycompiler.pipeline import region_parts
from tests.harness.compare import assert_same_calls, tensors_in


@pytest.fixture(autouse=True)
def nothing_before() -> Iterator[None]:
    regions._regions.clear()
    regions.STATISTICS.update(shared=0, built=0)
    yield


def shared() -> int:
    return regions.STATISTICS["shared"]


@pycompiler.nested_compile_region
def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.layer_norm(x, (8,)) @ w) + x


def stack(x: torch.Tensor, *ws: torch.Tensor) -> torch.Tensor:
    x = x * 1.5
    for w in ws:
        x = layer(x, w)
    return x.softmax(-1)


def features(n: int = 4) -> torch.Tensor:
    return torch.randn(n, 8, dtype=torch.float64, requires_grad=True)


def weights(count: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(8, 8, dtype=torch.float64, requires_grad=True) for _ in range(count)]


def agree(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Compare results, gradients and writes with eager in two calls; return the compiled function."""
    made = pycompiler.compile(fn, fullgraph=True, **options)

    def squared(run: Callable[..., Any]) -> Callable[..., Any]:
        def results(*given: Any) -> Any:
            found = tensors_in(result := run(*given))
            return result, [t._is_view() for t in found], [t.square() for t in found]

        return results

    assert_same_calls(squared(made), squared(fn), lambda: copy.deepcopy(args), backward=True)
    assert pycompiler.counters(made)["compiles"] == 1
    return made


def test_alike_regions_are_compiled_once() -> None:
    agree(stack, features(), *weights(5))
    assert shared() == 4


def test_torchs_own_mark_means_the_same() -> None:
    @torch.compiler.nested_compile_region
    def region(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w)

    def fn(x: torch.Tensor, *ws: torch.Tensor) -> torch.Tensor:
        x = x + 1
        for w in ws:
            x = region(x, w)
        return x * 2

    agree(fn, features(), *weights(3))
    assert shared() == 2


def test_modules() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear, self.drop = nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Dropout(0.5)

        @pycompiler.nested_compile_region
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.drop(self.linear(self.norm(x)).relu())

    mine = nn.Sequential(*(Block() for _ in range(5))).double()
    theirs = copy.deepcopy(mine)
    made = pycompiler.compile(mine, fullgraph=True)
    for _ in range(3):
        x = torch.randn(6, 8, dtype=torch.float64)
        torch.manual_seed(3)
        got = made(x)
        torch.manual_seed(3)
        wanted = theirs(x)
        torch.testing.assert_close(got, wanted)
        got.square().sum().backward(), wanted.square().sum().backward()
    for m, t in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(m.grad, t.grad)
    torch.testing.assert_close(dict(mine.named_buffers()), dict(theirs.named_buffers()))
    assert shared() == 3


def region(fn: Any) -> Any:
    return pycompiler.nested_compile_region(fn)


@region
def scale(x: torch.Tensor, k: Any) -> Any:
    return x.sin() * k


@region
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.chunk(2, -1)  # type: ignore[return-value]


@region
def whole(x: torch.Tensor) -> torch.Tensor:
    return x


@region
def add_one(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


@region
def quiet(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x * 2
    return x + y


@region
def outer(x: torch.Tensor) -> torch.Tensor:
    return scale(x, 2.0).cos()


@region
def turned(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1) * 2


def writes_between(x: torch.Tensor) -> torch.Tensor:
    y = scale(x, 2.0)
    y += 1
    return scale(y, 2.0)


def writes_a_view_between(x: torch.Tensor) -> torch.Tensor:
    y = scale(x, 2.0)
    y[0].mul_(3)
    return scale(y, 2.0)


def writes_an_argument(x: torch.Tensor) -> torch.Tensor:
    y = scale(x.detach(), 2.0)
    x.detach().mul_(2)
    return scale(x, 2.0) + y


def unlike(x: torch.Tensor) -> torch.Tensor:
    return scale(x, 2.0) + scale(x, 3.0) + scale(x[:1], 2.0)


def some_alike(x: torch.Tensor) -> torch.Tensor:
    return scale(scale(scale(x, 2.0), 3.0), 2.0).tanh() + scale(x, 2.0)


def results_of_each(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = scale(x * 3, 2.0)
    z = scale(y, 2.0)
    return y, z, y + z, x * 2


def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = halves(x * 1)
    c, d = halves(x * 2)
    return a, b + c, d


def given_back(x: torch.Tensor) -> torch.Tensor:
    return whole(whole(x) * 2) + whole(x)


def writes_inside(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    add_one(y)
    add_one(y)
    return y * 2


def writes_inside_what_it_was_given(x: torch.Tensor) -> torch.Tensor:
    add_one(x.detach())
    add_one(x.detach())
    return x * 2


def state_inside(x: torch.Tensor) -> torch.Tensor:
    return quiet(quiet(x))


def under_no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = scale(scale(x, 2.0), 2.0)
    return y + scale(scale(x, 2.0), 2.0)


def within_each_other(x: torch.Tensor) -> torch.Tensor:
    return outer(outer(x * 3))


def strides(x: torch.Tensor) -> torch.Tensor:
    return turned(turned(turned(turned(turned(x)))))


def detached(x: torch.Tensor) -> torch.Tensor:
    return scale(scale(x, 2.0).detach(), 2.0) + scale(x, 2.0)


def constant(x: torch.Tensor) -> torch.Tensor:
    return scale(scale(torch.ones(3, 4), 2.0), 2.0) + x


PROGRAMS: dict[Callable[..., Any], int] = {
    writes_between: 0, writes_a_view_between: 0, writes_an_argument: 0, unlike: 0, some_alike: 1, results_of_each: 1,
    views: 1, given_back: 0, writes_inside: 0, writes_inside_what_it_was_given: 0, state_inside: 0, under_no_grad: 0,
    within_each_other: 1, strides: 1, detached: 1, constant: 0,
}  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS)
@pytest.mark.parametrize("grad", [True, False])
def test_programs(fn: Callable[..., Any], grad: bool) -> None:
    agree(fn, torch.randn(3, 4).requires_grad_(grad))
    assert shared() >= PROGRAMS[fn], shared()


@pytest.mark.parametrize("state", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_states_around(state: Callable[[], Any]) -> None:
    with state():
        x, ws = features(), weights(3)
        made = pycompiler.compile(stack, fullgraph=True)
        for _ in range(2):
            got, wanted = made(x, *ws), stack(x, *ws)
            assert (got.dtype, got.is_inference(), got.requires_grad) == (
                wanted.dtype,
                wanted.is_inference(),
                wanted.requires_grad,
            )
            torch.testing.assert_close(got, wanted)


def test_sizes_that_change() -> None:
    made = pycompiler.compile(stack, dynamic=True, fullgraph=True)
    ws = weights(3)
    for n in (4, 6, 9):
        x = features(n)
        torch.testing.assert_close(made(x, *ws), stack(x, *ws))


def test_what_nothing_reads_any_more_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in eager: values between the parts are freed with the last part that reads them."""
    alive: list[int] = []
    made: list[weakref.ref[torch.Tensor]] = []

    def spy(run: Any) -> Any:
        def called(*args: Any) -> Any:
            results = run(*args)
            made.extend(map(weakref.ref, results))
            alive.append(sum(r() is not None for r in made))
            return results

        return called

    before = region_parts.chained
    monkeypatch.setattr(region_parts, "chained", lambda gm, found, runs: before(gm, found, [spy(r) for r in runs]))
    with torch.no_grad():
        pycompiler.compile(stack)(features(), *weights(8))
    assert len(alive) == 10 and max(alive) == 2, alive


def test_an_error_names_the_line() -> None:
    @region
    def pick(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.relu()[i] + 1

    made = pycompiler.compile(lambda x, i, j: pick(x, i) + pick(x, j), fullgraph=True)
    x, fine = torch.ones(3, 4), torch.tensor([1])
    made(x, fine, fine)
    with pytest.raises(IndexError) as caught:
        made(x, fine, torch.tensor([7]))
    assert traceback.extract_tb(caught.value.__traceback__)[-1].lineno == pick.__wrapped__.__code__.co_firstlineno + 2


def test_gradients_of_gradients_and_retained_graphs() -> None:
    x, ws = features(), weights(3)
    made = pycompiler.compile(stack, fullgraph=True)
    for fn in (made, stack):
        for w in ws:
            w.grad = None
        y = fn(x, *ws).square().sum()
        first = torch.autograd.grad(y, ws, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), ws)
        if fn is made:
            kept = second
    torch.testing.assert_close(kept, second)
    y = made(x, *ws).sum()
    a = torch.autograd.grad(y, ws, retain_graph=True)
    torch.testing.assert_close(a, torch.autograd.grad(y, ws))


def test_in_the_background_and_in_a_file(tmp_path: Path) -> None:
    x, ws = features(), weights(3)
    made = pycompiler.compile(stack, background=True)
    made(x, *ws)
    assert pycompiler.wait_for_compiles(120)
    torch.testing.assert_close(made(x, *ws), stack(x, *ws))
    assert shared() == 2
    assert pycompiler.save(made, tmp_path / "stack").left_out == ()
    loaded = pycompiler.load(tmp_path / "stack", stack)
    assert torch.equal(loaded(x, *ws), made(x, *ws)) and pycompiler.counters(loaded)["compiles"] == 0


@pytest.mark.parametrize("writes", [False, True])
def test_no_part_raises_behind_one_that_has_written(writes: bool) -> None:
    """A handler needs the frame as written, so no part may raise after an earlier part has written."""

    @pycompiler.nested_compile_region
    def counted(x: torch.Tensor, i: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        if writes:
            n.add_(x)
        return x[i] * 2

    def program(x: torch.Tensor, n: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
        try:
            for i in indices:
                x = counted(x, i, n)
        except IndexError:
            return n * 0.5
        return x

    made = pycompiler.compile(program, fullgraph=True)
    for last in ([0, 1, 2], [0, 1, 9]):
        n, m = torch.zeros(3), torch.zeros(3)
        args = torch.arange(3.0), *map(torch.tensor, ([2, 1, 0], [1, 1, 0], last))
        assert torch.equal(made(args[0], n, *args[1:]), program(args[0], m, *args[1:]))
        assert torch.equal(n, m)
    assert shared() == (0 if writes else 2)
