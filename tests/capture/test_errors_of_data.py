"""Errors that depend on data: what eager has done by then is done, and its handlers run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

BACKENDS = ("eager", "aot_eager", "native")
GOOD, BAD = torch.tensor([0, 1]), torch.tensor([0, 9])


def handled(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    try:
        return x[i] + 1
    except IndexError:
        return x * 0


def before(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    seen.append(1)
    return x[i]


def behind(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    seen.append(1)
    y = x.index_select(0, i)
    seen.append(2)
    return y * 2


def at_last(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    try:
        return x[i]
    finally:
        seen.append(3)


def caller(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    def inner() -> Any:
        seen.append(1)
        return x.gather(0, i)

    try:
        return inner()
    except (IndexError, RuntimeError) as e:
        seen.append(len(seen))
        return x.sum(), type(e).__name__


def before_a_break(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    seen.append(1)
    y = x[i]
    print(end="")
    seen.append(2)
    return y + 1


def behind_a_break(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    seen.append(1)
    print(end="")
    seen.append(2)
    y = x[i]
    seen.append(3)
    return y + 1


def a_break_inside(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    seen.append(1)
    try:
        z = x[i]
        print(end="")
    except IndexError:
        seen.append(5)
        z = x
    finally:
        seen.append(7)
    seen.append(2)
    return z + 1


def division(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    seen.append(1)
    try:
        return 10 // (i - 9)
    except RuntimeError:
        return i


def of_own_memory(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    y = torch.zeros(3)
    y[0] = 2
    y.add_(x.detach())
    try:
        y[i] = 1
    except IndexError:
        seen.append(4)
    return y * 2


PROGRAMS: list[Callable[..., Any]] = [
    handled, before, behind, at_last, caller, before_a_break, behind_a_break, a_break_inside, division, of_own_memory,
]  # fmt: skip


def run(fn: Callable[..., Any], i: torch.Tensor, grad: bool) -> Any:
    seen: list[int] = []
    x = torch.arange(3.0).requires_grad_(grad)
    try:
        result = fn(seen, x, i)
    except Exception as e:
        return type(e), str(e), seen
    results = result if isinstance(result, tuple) else (result,)
    wanted = [r.sum() for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if wanted:
        torch.autograd.backward(wanted)
    return (
        [r.tolist() if isinstance(r, torch.Tensor) else r for r in results],
        seen,
        x.grad is not None and x.grad.tolist(),
    )


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", PROGRAMS)
def test_errors_come_where_eager_has_them(fn: Callable[..., Any], backend: str, grad: bool) -> None:
    for first in (GOOD, BAD):
        compiled = pycompiler.compile(fn, backend=backend)
        for i in (first, BAD, GOOD, BAD):
            assert run(compiled, i, grad) == run(fn, i, grad)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("write", ["x.add_(1)", "x.data.add_(1)", "x[1:].mul_(2)", "x.view(-1).detach()[0] = 5"])
def test_what_a_graph_has_written_is_written_once(write: str, backend: str) -> None:
    """Such a frame does not run twice."""
    scope: dict[str, Any] = {}
    exec(f"def fn(seen, x, i):\n    seen.append(1)\n    {write}\n    return x[i]", scope)
    compiled = pycompiler.compile(scope["fn"], backend=backend)
    compiled([], torch.ones(3), GOOD)
    x, expected = torch.ones(3), torch.ones(3)
    for fn, t in ((scope["fn"], expected), (compiled, x)):
        with pytest.raises(IndexError):
            fn([], t, BAD)
    assert x.tolist() in (expected.tolist(), [1.0] * 3)


CHECKED: dict[str, tuple[Callable[[torch.Tensor], Any], Any, Any]] = {
    "a masked scatter": (lambda x: x.masked_scatter(x > 0, x[:1]), [1.0, -1.0], [1.0, 1.0]),
    "a histogram": (torch.histc, [1.0, 2.0], [1.0, float("nan")]),
    "an inverse": (torch.linalg.inv, [[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]),
    "a factor": (torch.linalg.cholesky, [[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, 1.0]]),
    "classes": (lambda x: torch.nn.functional.one_hot(x.long(), 3), [1.0], [5.0]),
    "a share": (lambda x: torch.nn.functional.binary_cross_entropy(x, x), [0.5], [2.0]),
}


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", list(CHECKED))
def test_kernels_that_check_their_arguments(name: str, backend: str, read: bool) -> None:
    """Whether somebody reads the result or not."""
    operator, good, bad = CHECKED[name]

    def fn(seen: list[int], x: torch.Tensor) -> Any:
        seen.append(1)
        try:
            y = operator(x)
        except RuntimeError as e:
            return type(e)
        return (y, x + 1) if read else x + 1

    compiled = pycompiler.compile(fn, backend=backend)
    for values in (good, bad):
        seen: list[int] = []
        expected, found = fn([], torch.tensor(values)), compiled(seen, torch.tensor(values))
        assert seen == [1]
        if isinstance(expected, type):
            assert found is expected
        else:
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_numbers_are_drawn_once(backend: str) -> None:
    def fn(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
        seen.append(1)
        return (x + torch.rand(3))[i]

    compiled = pycompiler.compile(fn, backend=backend)
    compiled([], torch.ones(3), GOOD)
    states = []
    for f in (fn, compiled):
        torch.manual_seed(0)
        with pytest.raises(IndexError):
            f([], torch.ones(3), BAD)
        states.append(torch.get_rng_state())
    assert torch.equal(states[0], states[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_switched_state_is_switched_back(backend: str) -> None:
    """Eager leaves the `with` by its error."""

    @pycompiler.compile(backend=backend)
    def fn(x: torch.Tensor, i: torch.Tensor) -> Any:
        with torch.no_grad(), torch.autocast("cpu"):
            return x[i]

    fn(torch.ones(3), GOOD)
    with pytest.raises(IndexError):
        fn(torch.ones(3), BAD)
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_a_users_backend_tells_its_errors() -> None:
    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        def fails(*args: Any) -> Any:
            raise ValueError("of the backend")

        return fails

    with pytest.raises(ValueError, match="of the backend"):
        pycompiler.compile(before, backend=backend)([], torch.ones(3), GOOD)
