"""`set_stance` as a function, a context manager and a decorator; calls, misses and graph breaks under each stance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.errors import ArgumentError, RecompileError
from pycompiler.pipeline import stance as stances

X = torch.arange(4.0)


@pytest.fixture(autouse=True)
def default_afterwards() -> Iterator[None]:
    yield
    pycompiler.set_stance("default")


def tells(x: Any) -> Any:
    return x + (1 if pycompiler.is_compiling() else 2)


def value(fn: Any, x: Any = X) -> float:
    return float((fn(x) - x)[0])


def compiled(**settings: Any) -> Any:
    return pycompiler.compile(tells, **{"backend": "eager", **settings})


def test_force_eager_uses_nothing_that_was_compiled() -> None:
    f = compiled()
    assert value(f) == 1
    with pycompiler.set_stance("force_eager"):
        assert value(f) == 2
        assert value(compiled()) == 2  # made meanwhile
    assert value(f) == 1
    assert pycompiler.counters(f)["compiles"] == 1


def test_eager_on_recompile_uses_what_there_is() -> None:
    f = compiled(dynamic=False)
    f(X)
    with pycompiler.set_stance("eager_on_recompile"):
        assert (value(f), value(f, torch.arange(5.0)), value(compiled())) == (1, 2, 2)
    assert value(f, torch.arange(5.0)) == 1


def test_fail_on_recompile_raises() -> None:
    f = compiled(dynamic=False)
    f(X)
    with pycompiler.set_stance("fail_on_recompile"):
        assert value(f) == 1
        with pytest.raises(RecompileError, match="expected"):
            f(torch.arange(5.0))
        with pytest.raises(RuntimeError, match="nothing is compiled yet"):
            compiled()(X)


def test_eager_then_compile() -> None:
    f = compiled()
    with pycompiler.set_stance("eager_then_compile"):
        assert [value(f) for _ in range(3)] == [2, 1, 1]
    counters = pycompiler.counters(f)
    assert (counters["eager_calls"], counters["hits"]) == (1, 1)


def test_as_a_function_it_holds_until_the_next() -> None:
    f = compiled()
    pycompiler.set_stance("force_eager")
    assert value(f) == 2
    pycompiler.set_stance("default")
    assert value(f) == 1


def test_as_a_decorator_it_holds_for_calls_of_the_function() -> None:
    f = compiled()

    @pycompiler.set_stance("force_eager")
    def within(x: Any, *, times: int = 1) -> float:
        "What it says."
        return value(f, x) * times

    assert (value(f), within(X, times=2), value(f)) == (1, 4, 1)
    assert within.__name__ == "within" and within.__doc__ == "What it says."


def test_it_nests_and_an_exception_puts_it_back() -> None:
    f = compiled()
    f(X)
    with pytest.raises(ZeroDivisionError), pycompiler.set_stance("force_eager"):
        with pycompiler.set_stance("fail_on_recompile"):
            assert value(f) == 1
        assert value(f) == 2
        _ = 1 / 0
    assert value(f) == 1 and stances.current().name == "default"


def test_a_backend_is_forced_and_what_was_compiled_comes_back() -> None:
    made: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        made.append(gm)
        return gm.forward

    f = compiled()
    f(X)
    for count in (1, 1):  # the second time its entries still exist
        with pycompiler.set_stance("default", force_backend=backend):
            assert value(f) == 1
            assert len(made) == count
        assert value(f) == 1
    assert len(f.entries) == 1
    with pycompiler.set_stance(force_backend="aot_eager"):
        assert value(f) == 1
    assert len(made) == 1


def test_functions_made_while_a_backend_is_forced_have_their_own_afterwards() -> None:
    made: list[str] = []

    def named(name: str) -> Any:
        return lambda gm, inputs: made.append(name) or gm.forward

    with pycompiler.set_stance(force_backend=named("forced")):
        f = pycompiler.compile(tells, backend=named("own"))
        f(X)
    f(X)
    assert made == ["forced", "own"]


def test_a_call_that_breaks_resumes_under_the_stance() -> None:
    def fn(x: Any) -> Any:
        y = tells(x)
        pycompiler.graph_break()
        return tells(y)

    f = pycompiler.compile(fn, backend="eager")
    assert value(f) == 2
    with pycompiler.set_stance("force_eager"):
        assert value(f) == 4
    assert value(f) == 2


@pytest.mark.captures_nothing("a frozen callable without an entry runs eagerly")
def test_a_policy_is_stronger() -> None:
    for freeze in (pycompiler.run, lambda f: pycompiler.set_policy(f, "run")):
        f = freeze(compiled())
        with pycompiler.set_stance("fail_on_recompile"):
            assert value(f) == 2
        with pycompiler.set_stance("force_eager"):
            assert value(freeze(compiled())) == 2


@pytest.mark.parametrize("wrong", [{"stance": "sit"}, {"stance": "force_eager", "force_backend": "eager"},
                                   {"force_backend": "no such"}, {"skip_guard_eval_unsafe": 1}])  # fmt: skip
def test_wrong_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        pycompiler.set_stance(**wrong)
    assert stances.current().name == "default"


def test_guards_are_evaluated_whatever_is_said() -> None:
    f = compiled(dynamic=False)
    f(X)
    with pycompiler.set_stance(skip_guard_eval_unsafe=True):
        assert f(torch.arange(5.0)).shape == (5,)
