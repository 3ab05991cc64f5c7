"""`locals()`, `vars()`, `dir()` of captured functions; `eval` and `exec` of constant strings; other cases need a real frame."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler


def asked_for_names(x: Any) -> Any:
    if x.dim() > 1:
        rows, columns = x.shape
        x = x.view(-1)
    x = x + 1
    return x.view(rows, columns) if "rows" in locals() and "columns" in vars() else x


def one_dict_a_frame(x: Any, *rest: Any, factor: int = 3) -> Any:
    y = x * factor
    first = locals()
    known = sorted(first)
    z = y + 1
    second = locals()
    del z
    third = locals()
    return first is second, second is third, known, sorted(third), dir(), y


def scaled(a: Any, b: int) -> Any:
    return a * b


def passed_on(x: Any) -> Any:
    def given(a: Any, b: int = 2) -> Any:
        return scaled(**locals())

    def inner(a: Any) -> Any:
        b = a + 1
        x  # noqa: B018  # a free variable
        return locals()

    return given(x), inner(x)


@pytest.mark.parametrize("program", [asked_for_names, one_dict_a_frame, passed_on])
def test_captured(program: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for shape in ((2, 3), (4,)):
        assert str(compiled(torch.ones(shape))) == str(program(torch.ones(shape)))


def alive_at_a_break(x: Any) -> Any:
    first = locals()
    pycompiler.graph_break()
    y = x + 1
    locals()
    return sorted(first), y


@pytest.mark.captures_nothing("the dict of locals() beyond a graph break keeps the frame eager")
def test_a_dict_that_a_later_call_brings_up_to_date_outlives_no_graph() -> None:
    compiled = pycompiler.compile(alive_at_a_break, backend="eager")
    assert str(compiled(torch.ones(2))) == str(alive_at_a_break(torch.ones(2)))


def evaluates(x: Any) -> Any:
    y = x + 1
    return eval("y * y.sum().item()")


def around(x: Any) -> Any:
    y = x * 3
    return evaluates(y) + 1


def a_text(x: Any) -> Any:
    y = x + 1
    return eval("y * 2 + torch.relu(x) + sum([i for i in range(3)])")


def compiled_before(x: Any) -> Any:
    code = compile("x * 3", "<text>", "eval")
    return eval(code), eval(code, {"x": x + 1})


def statements(x: Any) -> Any:
    names: dict[str, Any] = {"y": x}
    exec("z = y * 2\nfor i in range(3):\n    z = z + i\ndel y", names)
    return names["z"], sorted(names), names["i"]


def with_variables(x: Any) -> Any:
    names = {"y": x + 1}
    return eval("y + x", {"x": 2, "y": None}, names)


def errors(x: Any) -> Any:
    seen = []
    for text in ("1 / 0", "nobody", "x.y", "()[0]"):
        try:
            eval(text, {})
        except Exception as error:
            seen.append((type(error).__name__, str(error)))
    return x + len(seen), seen


@pytest.mark.parametrize("program", [a_text, compiled_before, statements, with_variables, errors])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_known_texts_are_captured(program: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    for shape in ((2,), (3,)):
        assert str(compiled(torch.ones(shape))) == str(program(torch.ones(shape)))
    assert pycompiler.explain(program)(torch.ones(2)).graph_count == 1


def text_of(x: Any, text: str) -> Any:
    return eval(text) + 1


def test_a_text_that_is_given_is_guarded() -> None:
    compiled = pycompiler.compile(text_of, backend="eager", fullgraph=True)
    for text in ("x * 2", "x * 3", "x * 2"):
        torch.testing.assert_close(compiled(torch.ones(2), text), text_of(torch.ones(2), text))


def test_the_call_of_what_evaluates_is_the_break() -> None:
    report = pycompiler.explain(around)(torch.ones(2))
    assert report.graph_count == 2
    assert [b.kind for b in report.break_reasons] == ["data-dependent-value"]
    compiled = pycompiler.compile(around, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), around(torch.ones(2)))


class Ends:
    """An object that logs its end."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __del__(self) -> None:
        self.log.append("ended")


def shown_alone(x: Any, log: list[str]) -> Any:
    thing = Thing()
    reference = weakref.ref(thing)
    locals()
    del thing
    return reference() is None, x + 1


def shown_beyond_a_break(x: Any, log: list[str]) -> Any:
    thing = Thing()
    reference = weakref.ref(thing)
    locals()
    thing = None  # type: ignore[assignment]
    pycompiler.graph_break()
    return reference() is None, x + 1


def shown_to_its_end(x: Any, log: list[str]) -> Any:
    thing = Ends(log)
    locals()
    del thing
    log.append("here")
    pycompiler.graph_break()
    log.append("there")
    return x + 1


class Thing:
    """A class that supports weak references."""


@pytest.mark.parametrize("program", [shown_alone, shown_beyond_a_break, shown_to_its_end])
@pytest.mark.captures_nothing(
    "the dict of locals() that outlives a statement keeps the frame eager", "shown_alone", "shown_beyond_a_break"
)
def test_what_locals_gave_lives_as_long_as_the_frame(program: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(program, backend="eager")
    gc.disable()
    try:
        for _ in range(2):
            expected: list[str] = []
            log: list[str] = []
            assert str(compiled(torch.ones(2), log)) == str(program(torch.ones(2), expected))
            assert log == expected
    finally:
        gc.enable()
