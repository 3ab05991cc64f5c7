"""`numpy.errstate` around captured code."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pycompiler


def ignored(a: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        b = np.log(a) / a
    return b * 2


def nested(a: Any) -> Any:
    with np.errstate(all="ignore"):
        with np.errstate(divide="warn", over="print"):
            b = a + 1
        c = np.log(a)
    return b, c


def left_by_return(a: Any) -> Any:
    with np.errstate(all="ignore"), torch.no_grad():
        return torch.from_numpy(np.log(a))


def twice(a: Any) -> Any:
    state = np.errstate(all="ignore")
    with state:
        b = np.log(a)
    try:
        with state:
            b = b * 2
    except TypeError as error:
        return b, str(error), state._token is not None  # type: ignore[attr-defined]
    return b


def raising(a: Any) -> Any:
    with np.errstate(all="raise"):
        try:
            return 1 / a
        except FloatingPointError as error:
            return str(error)


def raising_inside(a: Any) -> Any:
    with np.errstate(divide="ignore"):
        with np.errstate(invalid="raise"):
            b = 1 / a
        c = np.log(a)
    return b, c


def asked(a: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.log(a), np.geterr(), np.float64(1) / np.float64(0)


def broken(a: Any) -> Any:
    with np.errstate(divide="ignore"):
        b = np.log(a)
        pycompiler.graph_break()
        c = np.log(a)
    return b, c, np.geterr()


def called(a: Any) -> Any:
    told: list[str] = []
    with np.errstate(call=lambda *said: told.append(said[0]), divide="call"):
        return 1 / a, told


def unknown(a: Any) -> Any:
    try:
        with np.errstate(divide="bad"):  # type: ignore[arg-type]
            return a * 2
    except ValueError as error:
        return str(error)


MANAGER = np.errstate(divide="ignore")


def made_before(a: Any) -> Any:
    manager = np.errstate(divide="ignore") if MANAGER._token is not None else MANAGER  # type: ignore[attr-defined]
    with manager:
        return np.log(a)


WHOLE = (ignored, nested, left_by_return, twice)
OTHERS = (raising, raising_inside, asked, broken, called, unknown, made_before)


def outcome(fn: Callable[..., Any]) -> Any:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            return repr(fn(np.array([0.0, 1.0, 4.0]))), [str(w.message) for w in told], np.geterr()
        except FloatingPointError as error:
            return str(error), [str(w.message) for w in told], np.geterr()


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", [*WHOLE, *OTHERS], ids=lambda f: f.__name__)
def test_results_and_warnings_are_eagers(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=fn in WHOLE)
    around: list[dict[str, Any]] = [{}, {"under": "warn"}, {"divide": "ignore"}, {}]
    for state in around:
        with np.errstate(**state):
            assert outcome(compiled) == outcome(fn)


def test_the_state_around_is_guarded() -> None:
    def fn(a: Any) -> Any:
        with np.errstate(over="ignore"):
            return 1 / a

    compiled = pycompiler.compile(fn, backend="eager")
    for state in ("ignore", "raise", "ignore"):
        with np.errstate(divide=state):  # type: ignore[arg-type]
            assert outcome(compiled) == outcome(fn)


def test_gradients_pass() -> None:
    compiled = pycompiler.compile(pycompiler.wrap_numpy(ignored), backend="eager", fullgraph=True)
    x = torch.tensor([0.5, 2.0], requires_grad=True)
    want = torch.log(x) / x * 2
    made = compiled(x)
    torch.testing.assert_close(made, want)
    torch.testing.assert_close(torch.autograd.grad(made.sum(), x), torch.autograd.grad(want.sum(), x))
    assert compiled.counters()["compiles"] == 1
