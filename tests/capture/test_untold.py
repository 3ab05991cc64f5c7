"""Texts that tell of data, which nobody reads, and checks of all elements of a tensor break no graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pycompiler


def check(holds: Any, message: str) -> None:
    torch._check_tensor_all(holds, lambda: message)


def checked(x: Any, n: Any) -> Any:
    y = x * 2
    check(n * 3 == x.sum(), f"not {n}, but {x.sum()!r}")
    return y + n


def raised(x: Any, n: Any) -> Any:
    message = f"of {n}: {x}"
    if isinstance(message, str) and x.shape[0] > 3:
        raise ValueError(message)
    return x + 1


def written(x: Any, n: Any) -> Any:
    y = x + 1
    message = f"{y}"
    y.add_(n)
    return y, message


def asked(x: Any, n: Any) -> Any:
    y = x + 1
    text = f"<{y.sum()}>"
    y.mul_(2)
    return y * len(text)


def over_a_break(x: Any, n: Any) -> Any:
    kept = [f"{x} and {n}"]
    x.add_(n)
    pycompiler.graph_break()
    return x * 2, kept


def inner(x: Any) -> Any:
    text = f"{x}"
    x.add_(1)
    return text.upper()


def called(x: Any, n: Any) -> Any:
    return inner(x * 2), x + n


def outcome(fn: Any, *args: Any) -> str:
    try:
        return str(fn(*args))
    except (RuntimeError, ValueError) as e:
        return repr(e)


PROGRAMS = {checked: 0, raised: 0, written: 1, asked: 1, over_a_break: 3, called: 2}


@pytest.mark.parametrize("fn", PROGRAMS)
def test_they_are_eagers(fn: Any) -> None:
    compiled = pycompiler.compile(fn)
    for data in ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0], [4.0, 0.0, 2.0]):
        given, wanted = torch.tensor(data), torch.tensor(data)
        assert outcome(compiled, given, torch.tensor(2.0)) == outcome(fn, wanted, torch.tensor(2.0))
        assert torch.equal(given, wanted)


def test_a_programs_way_of_printing(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, x, n = pycompiler.compile(raised), torch.ones(3), torch.tensor(2.0)
    compiled(x, n)
    told: list[int] = []
    shown = torch.Tensor.__repr__
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda t, **k: (told.append(1), shown(t, **k))[1])
    for wanted in (1, 2):  # of one dimension; others are numbers' texts
        compiled(x, n)
        assert len(told) == wanted


@pytest.mark.parametrize(("fn", "breaks"), PROGRAMS.items())
def test_breaks(fn: Any, breaks: int) -> None:
    report = pycompiler.explain(fn)(torch.tensor([1.0, 2.0, 3.0]), torch.tensor(2.0))
    assert report.graph_break_count == breaks, report.break_reasons
