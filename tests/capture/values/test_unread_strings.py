"""Unread strings that show data or addresses, and checks of all elements of a tensor: they break no graph."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same_calls


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


PROGRAMS = {checked: 0, raised: 0, written: 1, asked: 1, over_a_break: 3, called: 2}


@pytest.mark.parametrize("fn", PROGRAMS)
def test_they_are_eagers(fn: Any) -> None:
    compiled = pycompiler.compile(fn)
    for data in ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0], [4.0, 0.0, 2.0]):
        assert_same_calls(compiled, fn, lambda d=data: (torch.tensor(d), torch.tensor(2.0)), calls=1, exact=True)


def test_a_programs_way_of_printing(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, x, n = pycompiler.compile(raised), torch.ones(3), torch.tensor(2.0)
    compiled(x, n)
    told: list[int] = []
    shown = torch.Tensor.__repr__
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda t, **k: (told.append(1), shown(t, **k))[1])
    for wanted in (1, 2):  # for one dimension; others format numbers
        compiled(x, n)
        assert len(told) == wanted


@pytest.mark.parametrize(("fn", "breaks"), PROGRAMS.items())
def test_breaks(fn: Any, breaks: int) -> None:
    report = pycompiler.explain(fn)(torch.tensor([1.0, 2.0, 3.0]), torch.tensor(2.0))
    assert report.graph_break_count == breaks, report.break_reasons


SHOWN = "tensor([1., 1.])"

# Operations that read or compare the characters of a string.
QUESTIONS: dict[str, Any] = {
    "equal": lambda text, other: text == other,
    "unequal": lambda text, other: other != text,
    "in a list": lambda text, other: text in [other],
    "in a tuple": lambda text, other: other in ("a", text),
    "equal tuples": lambda text, other: (text,) == (other,),
    "count": lambda text, other: [text, other].count(other),
    "a key that is there": lambda text, other: {other: 1}.get(text),
    "a key of its own": lambda text, other: {text: 1}.get(other),
    "in a set": lambda text, other: other in {text},
    "keys together": lambda text, other: len({text: 1, other: 2}),
    "less": lambda text, other: min(text, other),
    "part": lambda text, other: other[1:4] in text,
    "sum": lambda text, other: text + other,
    "slice": lambda text, other: text[1:3],
    "none": lambda text, other: (text == None, text in [None, 3]),  # noqa: E711
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_text_of_data_equals_what_has_its_letters(question: str) -> None:
    def fn(x: Any, other: Any) -> Any:
        text = f"{x}"
        return x + 1, QUESTIONS[question](text, other)

    compiled, x = pycompiler.compile(fn), torch.ones(2)
    for other in (SHOWN, "another", SHOWN):
        assert compiled(x, other)[1] == fn(x, other)[1]


class Plain:
    pass


class Shown:
    def __str__(self) -> str:
        return "shown"


class Formatted:
    def __format__(self, spec: str) -> str:
        return f"<{spec}>"


ADDRESSES: dict[str, Any] = {
    "str": str,
    "repr": repr,
    "format": format,
    "f-string": lambda made: f"a {made} and {made!r:}: {made!a}, {3}",
    "of a text": lambda made: f"{str(made)}!",
}


@pytest.mark.parametrize("cls", [Plain, Shown, Formatted])
@pytest.mark.parametrize("way", ADDRESSES)
def test_a_text_with_an_address_is_that_of_the_object(way: str, cls: type) -> None:
    def made_here(x: Any, given: Any) -> Any:
        made = cls()
        return x + 1, ADDRESSES[way](made), made

    def was_there(x: Any, given: Any) -> Any:
        return x + 1, ADDRESSES[way](given), given

    for fn in (made_here, was_there):
        compiled = pycompiler.compile(fn, fullgraph=True)
        for _ in range(3):
            value, text, made = compiled(torch.ones(2), cls())
            assert text == ADDRESSES[way](made)
            assert value.tolist() == [2, 2]
        assert compiled.counters()["compiles"] == 1


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_text_with_an_address_equals_what_has_its_letters(question: str) -> None:
    def fn(x: Any, given: Any, other: Any) -> Any:
        text = str(given)
        return x + 1, QUESTIONS[question](text, other)

    compiled, x, given = pycompiler.compile(fn), torch.ones(2), Plain()
    for other in (str(given), "another", str(given)):
        assert compiled(x, given, other)[1] == fn(x, given, other)[1]


def test_an_object_that_is_only_shown() -> None:
    def fn(x: Any) -> Any:
        return x + 1, str(Plain()).partition(" object at ")[0]

    compiled = pycompiler.compile(fn)
    assert compiled(torch.ones(2))[1] == fn(torch.ones(2))[1]


def test_a_class_that_is_shown_in_another_way_later() -> None:
    class Changing:
        pass

    def fn(x: Any, given: Any) -> Any:
        return x + 1, str(given)

    compiled, given = pycompiler.compile(fn), Changing()
    for name, answer in (("__repr__", "first"), ("__str__", "second")):
        assert compiled(torch.ones(2), given)[1] == str(given)
        setattr(Changing, name, lambda self, answer=answer: answer)
        assert compiled(torch.ones(2), given)[1] == answer


class Countable:
    def __index__(self) -> int:
        return 65

    __int__ = __index__


COUNTABLE = Countable()


@pytest.mark.parametrize(
    "told",
    [
        lambda x: "%s" % x,
        lambda x: b"%a" % x,
        lambda x: len("%.5s|" % x),
        lambda x: "%s" % x.numpy(),
        lambda x: "nothing" % x,  # noqa: F507
        lambda x: operator.mod("%s", x) == str(x),
        lambda x: "%d %x %c" % ((COUNTABLE,) * 3),
        lambda x: "%d %.1f" % (x[0], x[1]),
        lambda x: "%d %d" % x,
        lambda x: "%d" % (x,),
        lambda x: "%d" % (COUNTABLE.__class__,),
    ],
)
def test_percent_tells_of_tensors_as_they_are(told: Any) -> None:
    """`%` shows the real tensor after a later break, and its errors name no class of capture."""

    def f(x: torch.Tensor) -> Any:
        try:
            shown = told(x)
        except (TypeError, ValueError) as error:
            shown = repr(error)
        return shown, str(x + 1)

    x = torch.tensor([1.0, 2.0])
    assert pycompiler.compile(f, backend="eager")(x) == f(x)
