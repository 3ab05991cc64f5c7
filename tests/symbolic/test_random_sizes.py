"""Random numbers as sizes and offsets, and numbers in tensors that may overflow a dtype: the graph checks its
assumptions while it runs. Where one fails, eager finds all state unchanged, the random generators included."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import pycompiler
from tests.harness.compare import assert_same, observe

backends = pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])


@pytest.fixture(autouse=True)
def knobs() -> Iterator[None]:
    with pycompiler.config.patch(capture_scalar_outputs=True):
        yield


def fresh(args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(a.clone().detach().requires_grad_(a.is_floating_point()) if torch.is_tensor(a) else a for a in args)


def agree(fn: Callable[..., Any], calls: list[tuple[Any, ...]], backend: str) -> dict[str, int]:
    """Compare results, gradients, errors and the random state with eager."""
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for args in calls:
        assert_same(*(observe(f, fresh(args), backward=True, seed=3) for f in (compiled, fn)))
    return pycompiler.counters(compiled)


def resized(x: torch.Tensor) -> Any:
    n = int(torch.randint(2, 5, (1,)).item())
    torch._check(n > 0)
    y = F.interpolate(x, size=(n * 3, n * 3), mode="bilinear", align_corners=True)
    return y, y.shape[2] // 3


def cropped(x: torch.Tensor, low: int) -> Any:
    at = torch.randint(low, low + 1, (1,)).item()
    torch._check(at >= 0)
    torch._check(at + 2 <= x.shape[0], lambda: "beyond the end")
    return x.narrow(0, at, 2) * torch.rand(2)[:, None]


def after_dropout(x: torch.Tensor) -> torch.Tensor:
    y = F.dropout(x, 0.5)
    return y * torch.rand(()).item() + torch.randn_like(y) * y.sum().item()


@backends
def test_one_graph_for_all_numbers_drawn(backend: str) -> None:
    images = [(torch.arange(50.0).reshape(1, 2, 5, 5) + i,) for i in range(3)]
    counters = agree(resized, images, backend)
    assert (counters["compiles"], counters["eager_calls"]) == (1, 0)
    counters = agree(after_dropout, [(torch.arange(12.0).reshape(4, 3) + i,) for i in range(3)], backend)
    assert (counters["compiles"], counters["eager_calls"]) == (1, 0)


@backends
def test_what_does_not_hold_is_drawn_again_by_eager(backend: str) -> None:
    counters = agree(cropped, [(torch.arange(12.0).reshape(4, 3), low) for low in (1, 2, 3, 2)], backend)
    assert (counters["compiles"], counters["eager_calls"]) == (2, 1)


def test_behind_a_write_nothing_is_bound() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.add_(torch.rand(4))
        return x * x.sum().item()

    assert pycompiler.explain(fn)(torch.ones(4)).graph_break_count == 1


LISTS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "addcmul": lambda x, v: tuple(torch._foreach_addcmul([x], [x], [x], value=1 - v)),
    "addcdiv": lambda x, v: tuple(torch._foreach_addcdiv([x], [x + 1], [x + 2], value=v)),
    "mul": lambda x, v: tuple(torch._foreach_mul([x, x + 1], v.item())),
    "pow": lambda x, v: tuple(torch._foreach_pow([x.abs() + 1], 1 - v.item())),
    "full": lambda x, v: x + torch.full((3,), v.item()),
    "full of halves": lambda x, v: x + torch.full((3,), v.item(), dtype=torch.float16),
}


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@backends
@pytest.mark.parametrize("name", LISTS)
def test_floats_that_a_dtype_may_not_hold(name: str, backend: str) -> None:
    """Eager's error for finite floats that overflow the dtype; infinite floats fit."""
    fn, x = LISTS[name], torch.arange(12.0).reshape(4, 3)
    values = [torch.tensor(v, dtype=torch.float64) for v in (0.5, 3.0, -1e30, 1e300, math.inf, 2.0)]
    detached = [(x, v) for v in values]

    def run(x: torch.Tensor, v: torch.Tensor) -> Any:
        return fn(x, v.detach())

    counters = agree(run, detached, backend)
    assert counters["compiles"] == 1 and counters["eager_calls"] <= 2


def test_a_file_knows_what_to_look_at(tmp_path: Path) -> None:
    compiled = pycompiler.compile(full, fullgraph=True)
    compiled(*fresh([torch.tensor(2.0, dtype=torch.float64)]))
    path = tmp_path / "full"
    pycompiler.save(compiled, path)
    loaded = pycompiler.load(path, full)
    for value in (3.0, 1e300):
        v = torch.tensor(value, dtype=torch.float64)
        assert_same(*(observe(f, fresh((v,)), backward=True) for f in (loaded, full)))
    assert pycompiler.counters(loaded)["compiles"] == 0


def full(v: torch.Tensor) -> torch.Tensor:
    return torch.full((3,), v.item()) * 2
