"""Numbers that optimizers read from tensors: values match eager, and a number that decides a branch is checked in each call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _get_value

import pycompiler
from tests.harness.compare import assert_same_calls

pytestmark = pytest.mark.usefixtures("fresh")

BACKENDS = ("eager", "aot_eager", "native")


def both(fn: Callable[..., Any], *calls: Callable[[], tuple[Any, ...]], backend: str = "native") -> dict[str, int]:
    """Compare each call, eager and compiled, on arguments of its own; the final state of the arguments is compared too."""
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for make in calls:
        assert_same_calls(compiled, fn, make, calls=1, exact=True)
    return pycompiler.counters(compiled)


def stepped(s: Any, x: Any) -> Any:
    s += 1
    return x * 2 if _get_value(s) > 3 else x + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_branch_is_compiled_once(dtype: torch.dtype, backend: str) -> None:
    numbers = (0.0, 1.0, 2.0, 2.5, 3.0, 7.0, 1.0, 9.0, -4.0, math.nan, math.inf, -math.inf, 2.0000000001)
    counts = both(
        stepped, *[lambda n=n: (torch.tensor(n, dtype=dtype), torch.ones(3)) for n in numbers], backend=backend
    )  # type: ignore[misc]
    assert counts["compiles"] == 2 and counts["fresh_failures"] == 0


def test_sums_round_as_the_tensor_does() -> None:
    def fn(s: Any) -> Any:
        s += 1
        s.add_(1.5)
        torch._foreach_add_([s], 0.1)
        return s.clone() if _get_value(s) > 2.0**24 + 2 else -s

    large = [float(torch.tensor(2.0**24 + k, dtype=torch.float32)) for k in range(-6, 6)]
    assert both(fn, *[lambda n=n: (torch.tensor(n),) for n in large])["compiles"] == 2  # type: ignore[misc]


def test_several_numbers_of_a_tensor_between_writes() -> None:
    def fn(s: Any, x: Any) -> Any:
        first = _get_value(s)
        s += 1
        second = _get_value(s)
        s += 2
        x = x * 2 if first < 1 else x * 3
        return x + 1 if second > 4 else x - 1

    counts = both(fn, *[lambda n=n: (torch.tensor(float(n)), torch.ones(2)) for n in range(6)])  # type: ignore[misc]
    assert counts["compiles"] == 3  # never both conditions


def test_a_number_stays_what_it_was() -> None:
    def fn(s: Any) -> Any:
        n = _get_value(s)
        s.mul_(3)
        n += 1
        m = n
        m *= 2
        return n, m, -n / 2, 2**n, n > 1, max(n, 0.5), min(n, m)

    compiled = pycompiler.compile(fn, fullgraph=True)
    for dtype in (torch.float32, torch.float64):
        for value in (1.5, -2.0, 4.0):
            mine, theirs = (torch.tensor(value, dtype=dtype, requires_grad=False) for _ in range(2))
            got, expected = compiled(mine), fn(theirs)
            assert got == expected and [*map(type, got)] == [*map(type, expected)]
            assert torch.equal(mine, theirs)


def test_no_gradient_goes_through_a_number() -> None:
    def fn(s: Any, x: Any) -> Any:
        return (x * _get_value(s)).sum()

    for run in (fn, pycompiler.compile(fn, fullgraph=True)):
        s, x = torch.tensor(2.0, requires_grad=True), torch.ones(3, requires_grad=True)
        run(s, x).backward()
        assert s.grad is None and x.grad is not None and x.grad.tolist() == [2.0] * 3


def test_numbers_beyond_a_break_are_numbers() -> None:
    def fn(s: Any, x: Any) -> Any:
        s += 1
        n = _get_value(s)
        large = n > 2
        pycompiler.graph_break()
        return type(n), type(large), x.lerp(x + 1, n), n if large else -n

    compiled = pycompiler.compile(fn)
    for value in (0.0, 1.0, 2.0, 3.0):
        assert str(compiled(torch.tensor(value), torch.ones(2))) == str(fn(torch.tensor(value), torch.ones(2)))


WRITTEN: dict[str, Callable[[Any, Any], Any]] = {
    "otherwise": lambda s, x: s.mul_(2),
    "by a view": lambda s, x: s.view(1).add_(1),
    "by its data": lambda s, x: s.data.add_(1),
    "by a number that is not known": lambda s, x: s.add_(x.sum()),
    "by itself": lambda s, x: s.add_(s),
    "by assignment": lambda s, x: s.__setitem__(..., 5.0),
    "by a copy": lambda s, x: s.copy_(x[0] * 3),
}


@pytest.mark.parametrize("how", WRITTEN)
def test_what_is_written_otherwise_breaks_the_graph(how: str) -> None:
    def fn(s: Any, x: Any) -> Any:
        WRITTEN[how](s, x)
        return (x * 2, s.clone()) if _get_value(s) > 3 else (x + 1, s.clone())

    assert pycompiler.explain(fn)(torch.tensor(1.0), torch.ones(2)).graph_break_count == 1
    compiled = pycompiler.compile(fn)
    for value in (0.0, 1.0, 2.0, 3.0, 4.0, 1.0):
        s, t = torch.tensor(value), torch.tensor(value)
        torch.testing.assert_close(compiled(s, torch.ones(2)), fn(t, torch.ones(2)))
        assert torch.equal(s, t)


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_that_something_else_writes(backend: str) -> None:
    def fn(w: Any, s: Any, t: Any) -> Any:
        w.add_(3)
        s += 1
        t += 1
        x = w * 2 if _get_value(s) > 3 else w + 1
        return x * 3 if _get_value(t) > 3 else x - 1

    def arguments(kind: str) -> tuple[Any, ...]:
        w, s, t = torch.ones(4), torch.tensor(1.0), torch.tensor(1.0)
        return {
            "apart": (w, s, t), "in w": (w, w[1], t), "one": (w, s, s), "views of one": (w, s, s.view(())),
            "places of one": (w, *torch.ones(2).unbind()), "all": (w, w[2], w[2:3].view(())),
        }[kind]  # fmt: skip

    compiled = pycompiler.compile(fn, backend=backend)
    for kind in ("apart", "in w", "apart", "one", "views of one", "places of one", "all", "apart"):
        mine, theirs = arguments(kind), arguments(kind)
        torch.testing.assert_close(compiled(*mine), fn(*theirs), rtol=0, atol=0)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: torch.tensor(int(n)), lambda n: torch.tensor(n, dtype=torch.float16), lambda n: torch.tensor(n, dtype=torch.bfloat16),
        lambda n: torch._neg_view(torch.tensor(-n)), lambda n: torch.tensor([n]), lambda n: torch.tensor(n > 1),
    ],
    ids=["int", "float16", "bfloat16", "negative", "of one element", "bool"],
)  # fmt: skip
def test_other_tensors_are_as_in_eager(make: Callable[[float], Any]) -> None:
    def fn(s: Any, x: Any) -> Any:
        return x * 2 if _get_value(s) > 3 else x + 1

    compiled = pycompiler.compile(fn)
    for value in (1.0, 5.0, 3.0, 4.0):
        torch.testing.assert_close(compiled(make(value), torch.ones(1)), fn(make(value), torch.ones(1)))


def test_inference_tensors_and_mode() -> None:
    with torch.inference_mode():
        compiled = pycompiler.compile(stepped)
        for value in (1.0, 5.0, 3.0, 4.0):
            s, t = torch.tensor(value), torch.tensor(value)
            assert torch.equal(compiled(s, torch.ones(1)), stepped(t, torch.ones(1))) and torch.equal(s, t)


def test_what_python_refuses_is_refused() -> None:
    def fn(s: Any, x: Any) -> Any:
        return x * 2 if 1 / _get_value(s) > 0.3 else x + _get_value(s) ** -0.5

    compiled = pycompiler.compile(fn)
    for value in (1.0, 5.0, 0.0, 2.0, -1.0, 4.0):
        if value == 0.0:
            with pytest.raises(ZeroDivisionError):
                compiled(torch.tensor(value), torch.ones(2))
        else:  # a root of -1 is complex
            assert torch.equal(compiled(torch.tensor(value), torch.ones(2)), fn(torch.tensor(value), torch.ones(2)))


def test_programs_own_numbers_break_as_ever() -> None:
    def fn(s: Any, x: Any) -> Any:
        return x * 2 if s.item() > 3 else x + 1

    (reason,) = pycompiler.explain(fn)(torch.tensor(1.0), torch.ones(2)).break_reasons
    assert reason.kind == "data-dependent-value"


def test_a_miss_says_the_number() -> None:
    compiled = pycompiler.compile(stepped, fullgraph=True)
    compiled(torch.tensor(1.0), torch.ones(2))
    (told,) = pycompiler.explain_miss(compiled, torch.tensor(3.0), torch.ones(2))
    assert "L['s'].item()" in told and "3.0: not" in told


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("rows", ["same", "others"])
def test_lists_written_by_themselves(rows: str) -> None:
    def fn(a: Any, b: Any) -> Any:
        torch._foreach_mul_([a, b], [a, b] if rows == "same" else [b, a])
        return a + b

    make = lambda: (torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0]))  # noqa: E731
    both(fn, make, make)


def test_parameters_of_an_optimizer_of_lists() -> None:
    """Weights of `_foreach_lerp_`: one number, read from a tensor, for each tensor of the list."""
    weights = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]

    def fn(s: Any) -> Any:
        with torch.no_grad():
            torch._foreach_lerp_(weights, [torch.zeros(3), torch.zeros(2, 2)], [_get_value(s), _get_value(s) / 2])
        return [w.detach().clone() for w in weights]

    compiled = pycompiler.compile(fn, fullgraph=True)
    assert [w.tolist() for w in compiled(torch.tensor(0.5))] == [[0.5] * 3, [[0.75] * 2] * 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_that_operators_read(backend: str) -> None:
    def fn(x: Any, y: Any, n: Any) -> Any:
        x.add_(y, alpha=n)
        x.add_(y.bfloat16(), alpha=n * 2)
        return x, torch.full_like(x, n)

    numbers = [torch.tensor(0.3), torch.tensor(-2.0), torch.tensor(1e30), torch.tensor(0.7, dtype=torch.float64)]
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for n in numbers:
        x, y = torch.linspace(-1, 1, 7), torch.linspace(3, 4, 7)
        torch.testing.assert_close(compiled(x.clone(), y, n), fn(x.clone(), y, n))
    assert pycompiler.counters(compiled)["compiles"] == 2  # one compile for each dtype of the number


@pytest.mark.parametrize(
    "bad", [torch.tensor(0.5), torch.tensor(0.5, requires_grad=True), torch.ones(2), torch.tensor(1j)], ids=repr
)
def test_numbers_that_operators_refuse(bad: Any) -> None:
    def fn(x: Any, n: Any) -> Any:
        return x.add_(x, alpha=n)

    with pytest.raises((RuntimeError, TypeError)) as theirs:
        fn(torch.ones(3, dtype=torch.int64), bad)
    with pytest.raises(type(theirs.value)):
        pycompiler.compile(fn)(torch.ones(3, dtype=torch.int64), bad)
