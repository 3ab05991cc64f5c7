"""A program's warnings are in no graph, and break none: they are shown as eager shows them, or the frame is eager's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import functorch
import pytest
import torch

import pycompiler

X = torch.ones(3)


def deprecated(level: int) -> None:
    warnings.warn("do not", FutureWarning, stacklevel=level)


def here(x: Any, seen: Any = None) -> Any:
    y = x + 1
    warnings.warn("here", stacklevel=1)
    x.add_(1)
    return y * 2


def of_callers(x: Any, seen: Any = None) -> Any:
    deprecated(1)
    deprecated(2)
    warnings.warn("last", DeprecationWarning)  # noqa: B028
    return x * 2


def of_functorch(x: Any, seen: Any = None) -> Any:
    return functorch.grad(lambda x: x.sin().sum())(x) + functorch.vmap(torch.cos)(x)


def caught(x: Any, seen: Any = None) -> Any:
    y = x + 1
    try:
        warnings.warn("caught", stacklevel=1)
    except UserWarning:
        return y * 3
    return y * 2


def looked_at(x: Any, seen: Any = None) -> Any:
    before = 0 if seen is None else len(seen)
    warnings.warn("again", stacklevel=1)
    return x * (before + 1) + (0 if seen is None else len(seen))


Shown = list[tuple[str, type[Warning], str, int]]


def shown(fn: Callable[..., Any], action: Any, *args: Any, log: bool = False) -> tuple[Any, Shown]:
    """The result or error, and what was warned of."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)
        try:
            result = fn(*args, seen) if log else fn(*args)
        except Warning as e:
            result = repr(e)
    return result, [(str(w.message), w.category, w.filename, w.lineno) for w in seen]


@pytest.mark.parametrize("fn", [here, of_callers, of_functorch, caught, looked_at])
@pytest.mark.parametrize("first", ["always", "error"])
def test_they_are_eagers(fn: Callable[..., Any], first: Any) -> None:
    compiled = pycompiler.compile(fn)
    for action in (first, "always", "error", "ignore", "always"):
        given, wanted = X.clone(), X.clone()
        got, want = shown(compiled, action, given), shown(fn, action, wanted)
        assert str(got) == str(want)
        assert torch.equal(given, wanted)


def test_they_break_no_graph() -> None:
    for fn in (here, of_callers, of_functorch, caught):
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            pycompiler.compile(fn, fullgraph=True)(X.clone())


@pytest.mark.parametrize("first", [True, False])
def test_a_frame_that_looks_at_the_log(first: bool) -> None:
    compiled = pycompiler.compile(looked_at)
    for log in (first, False, True):
        got, want = shown(compiled, "always", X, log=log), shown(looked_at, "always", X, log=log)
        assert str(got) == str(want)


def test_a_programs_way_of_showing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, told = pycompiler.compile(here), []
    compiled(X.clone())
    given = X.clone()
    monkeypatch.setattr(warnings, "showwarning", lambda *a, **k: told.append(float(given[0])))
    warnings.simplefilter("always")
    compiled(given)
    assert told == [1.0]  # before the write


def test_a_line_outside_of_what_is_captured() -> None:
    def fn(x: Any) -> Any:
        deprecated(3)
        return x * 2

    def caller(x: Any, fn: Any) -> Any:
        return fn(x)

    compiled = pycompiler.compile(fn)
    assert str(shown(caller, "always", X, compiled)) == str(shown(caller, "always", X, fn))
    assert {b.kind for b in pycompiler.explain(fn)(X).break_reasons} == {"builtin-call"}
