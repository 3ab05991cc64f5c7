"""What programs found that are put together of fragments of the language, each called again after changes."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler


def outcome(fn: Callable[..., Any], *args: Any) -> str:
    try:
        return str(fn(*args))
    except Exception as error:
        return f"{error!r} {error.__context__!r}"


def both(make: Callable[[list[Any]], Callable[..., Any]], *calls: tuple[Any, ...]) -> Any:
    """What each call gives, and what is in the log behind it, eager and compiled; the compiled function."""
    seen = []
    for compile in (lambda fn: fn, lambda fn: pycompiler.compile(fn, backend="eager")):
        log: list[Any] = []
        fn = compile(make(log))
        seen.append([(outcome(fn, *args), str(log)) for args in calls])
    assert seen[1] == seen[0]
    return fn


@pytest.mark.parametrize("base", [enum.Enum, enum.Flag])
def test_values_that_no_member_has_are_asked_for_once(base: Any) -> None:
    """The capture asks no `_missing_` of the program's by itself."""

    def make(log: list[Any]) -> Callable[..., Any]:
        class E(base):  # type: ignore[misc]
            A = 1
            B = 2

            @classmethod
            def _missing_(cls, value: Any) -> Any:
                log.append(value)
                return {"a": cls.A, "q": 3}.get(value) or super()._missing_(value)

        return lambda x, value: (x + 1, E(value))

    x = torch.ones(2)
    values = [1, "a", "a", "q", 2, 3, 3, [1], 1.0, 0, 0, "b"]
    fn = both(make, *[(x, v) for v in values])
    pycompiler.reset()
    report = pycompiler.explain(fn.fn)(x, "a")
    assert (report.graph_count, report.graph_break_count) == (1, 0)


def test_stop_iteration_thrown_into_a_generator_that_has_not_begun() -> None:
    def fn(x: Any, begun: bool, error: Any) -> Any:
        def two() -> Any:
            yield 1
            yield 2

        it = two()
        if begun:
            next(it)
        try:
            it.throw(error)
        except (RuntimeError, StopIteration) as e:
            return x + 1, type(e), type(e.__cause__), e.__cause__ is e.__context__, list(it)

    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    for begun in (False, True):
        for error in (StopIteration, StopIteration(3)):
            assert str(compiled(torch.ones(2), begun, error)) == str(fn(torch.ones(2), begun, error))


def _with_defaults(names: dict[str, Any]) -> Callable[..., Any]:
    def f(a: Any = (1,), *, b: Any = 2) -> Any:
        return a, b

    def by_another_name(x: Any) -> Any:
        names["b"] = x.shape[0]
        return f()

    def by_its_own(x: Any) -> Any:
        given = f.__kwdefaults__
        before = f()
        if given:
            given["b"] = x.shape[0]
        return before, f(), given is f.__kwdefaults__, f.__defaults__ is f.__defaults__

    def of_one_made_here(x: Any) -> Any:
        def made(*, b: Any = x) -> Any:
            return b

        made.__kwdefaults__["b"] = x + 1
        return made(), made.__kwdefaults__

    def change(k: int) -> None:
        f.__kwdefaults__ = [names, {"b": 3}, None, {"b": 5}][k]

    return lambda x, which, k: change(k) if k is not None else (by_another_name, by_its_own, of_one_made_here)[which](x)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_defaults_of_keywords_are_a_dict_that_others_may_change(which: int) -> None:
    calls = [(torch.ones(n), which, k) for n in (2, 3) for k in (None, 0, None, 1, None, 2, None, 3, None, 0, None)]
    both(lambda log: _with_defaults({"b": 1}), *calls)
