"""Random numbers as sizes and places, and numbers in tensors that a dtype may not hold: what is assumed of them is looked at while
the graph runs, and where it is otherwise eager finds all as it was, the generators too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import pycompiler

backends = pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])


@pytest.fixture(autouse=True)
def knobs() -> Iterator[None]:
    with pycompiler.config.patch(capture_scalar_outputs=True):
        yield


def told(fn: Callable[..., Any], *args: Any) -> Any:
    """The result and its gradients, or the error; and the random number that comes next."""
    torch.manual_seed(3)
    args = tuple(a.clone().detach().requires_grad_(a.is_floating_point()) if torch.is_tensor(a) else a for a in args)
    try:
        found = fn(*args)
        made = found if isinstance(found, tuple) else (found,)
        sum(t.sum() for t in made if isinstance(t, torch.Tensor) and t.requires_grad).backward()
        result: Any = found, [a.grad for a in args if isinstance(a, torch.Tensor)]
    except Exception as error:
        result = [float(b) for b in repr(error).encode()]  # which can be compared
    return result, torch.rand(1)


def agree(fn: Callable[..., Any], calls: list[tuple[Any, ...]], backend: str) -> dict[str, int]:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for args in calls:
        torch.testing.assert_close(told(compiled, *args), told(fn, *args), equal_nan=True)
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
    """Eager's error for those that it does not hold; infinite ones it does."""
    fn, x = LISTS[name], torch.arange(12.0).reshape(4, 3)
    values = [torch.tensor(v, dtype=torch.float64) for v in (0.5, 3.0, -1e30, 1e300, math.inf, 2.0)]
    detached = [(x, v) for v in values]

    def run(x: torch.Tensor, v: torch.Tensor) -> Any:
        return fn(x, v.detach())

    counters = agree(run, detached, backend)
    assert counters["compiles"] == 1 and counters["eager_calls"] <= 2


def test_a_file_knows_what_to_look_at(tmp_path: Path) -> None:
    compiled = pycompiler.compile(full, fullgraph=True)
    told(compiled, torch.tensor(2.0, dtype=torch.float64))
    path = tmp_path / "full"
    pycompiler.save(compiled, path)
    loaded = pycompiler.load(path, full)
    for value in (3.0, 1e300):
        v = torch.tensor(value, dtype=torch.float64)
        torch.testing.assert_close(told(loaded, v), told(full, v))
    assert pycompiler.counters(loaded)["compiles"] == 0


def full(v: torch.Tensor) -> torch.Tensor:
    return torch.full((3,), v.item()) * 2
