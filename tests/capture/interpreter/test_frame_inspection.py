"""Frame inspection after breaks in calls below the root: existing frames and their variables."""

from __future__ import annotations

import inspect
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same_calls


def _named(k: int) -> Any:
    pycompiler.graph_break()
    return sys._getframe(k).f_code.co_name


def _summary(k: int) -> Any:
    pycompiler.graph_break()
    return [frame.name for frame in traceback.extract_stack()][-k:]


def _walked(k: int) -> Any:
    pycompiler.graph_break()
    frame, found = inspect.currentframe(), []
    for _ in range(k):
        assert frame is not None
        found.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return found


def _by_helper(k: int) -> Any:
    pycompiler.graph_break()
    return _helper(k)


def _helper(k: int) -> Any:
    return sys._getframe(k + 1).f_code.co_name


@pytest.mark.parametrize("inner", [_named, _summary, _walked, _by_helper])
def test_frames_between_a_break_and_the_root(inner: Callable[[int], Any]) -> None:
    def around(k: int) -> Any:
        found = inner(k)
        return found

    def outer(k: int) -> Any:
        found = around(k)
        return found

    def fn(x: Any) -> Any:
        return x + 1, [around(k) for k in (1, 2)], [outer(k) for k in (1, 2, 3)]

    assert_same_calls(pycompiler.compile(fn, backend="eager"), fn, lambda: (torch.ones(2),), exact=True)


def test_warnings_of_a_caller_behind_a_break() -> None:
    def warn(level: int) -> None:
        pycompiler.graph_break()
        warnings.warn("of a caller", stacklevel=level)

    def around(level: int) -> None:
        warn(level)

    def fn(x: Any) -> Any:
        around(1)
        around(2)
        around(3)
        return x + 1

    lines = []
    for called in (fn, *[pycompiler.compile(fn, backend="eager")] * 2):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            called(torch.ones(2))
        lines.append([warning.lineno for warning in seen])
    assert lines[1:] == lines[:1] * 2


def test_variables_that_a_frame_shows() -> None:
    def behind(x: Any, n: int) -> Any:
        y = x + n
        z = [n, y]
        pycompiler.graph_break()
        shown = {**sys._getframe().f_locals}
        return sorted(shown), len(z), y

    def inside(x: Any, n: int) -> Any:
        found = "a" in [sys._getframe().f_locals for a in [0]][0]
        return found, [sys._getframe().f_locals["a"] for a in [0]], x + n

    def called(x: Any, n: int) -> Any:
        q = x + 1
        found = behind(x, n), inside(x, n)
        del q
        return found

    for fn in (behind, inside, called):
        assert_same_calls(pycompiler.compile(fn, backend="eager"), fn, lambda: (torch.ones(2), 3), exact=True)


@pytest.mark.captures_nothing("a frame that the program holds runs eagerly")
def test_the_line_of_a_frame_that_is_held() -> None:
    def fn(x: Any) -> Any:
        frame = inspect.currentframe()
        assert frame is not None
        first = frame.f_lineno
        pycompiler.graph_break()
        return first, frame.f_lineno, x + 1

    assert_same_calls(pycompiler.compile(fn, backend="eager"), fn, lambda: (torch.ones(2),), exact=True)


def test_references_are_counted() -> None:
    def fn(x: Any) -> Any:
        held = [object()]
        around = {1: held}
        before = sys.getrefcount(held)
        pycompiler.graph_break()
        behind = sys.getrefcount(held)
        around = None  # type: ignore[assignment]
        return before, behind, sys.getrefcount(held), around, x + 1

    assert_same_calls(pycompiler.compile(fn, backend="eager"), fn, lambda: (torch.ones(2),), exact=True)
