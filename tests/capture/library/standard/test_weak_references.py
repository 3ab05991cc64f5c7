"""Weak references that the program creates: they lead to objects held by its variables."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler


class Thing:
    value: Any


def of_an_argument(x: Any) -> Any:
    reference = weakref.ref(x)
    return reference() * 2


def of_a_result(x: Any) -> Any:
    y = x * 2
    return weakref.ref(y), y


def of_an_object(x: Any) -> Any:
    thing = Thing()
    thing.value = x + 1
    reference = weakref.ref(thing)
    return reference().value * 2, reference() is thing, reference.__callback__


def within(x: Any) -> Any:
    def inner(y: Any) -> Any:
        reference = weakref.ref(y)
        return reference() + 1

    return inner(x * 3)


@pytest.mark.parametrize("program", [of_an_argument, of_a_result, of_an_object, within])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_made_in_a_graph(program: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        expected, found = program(torch.ones(3)), compiled(torch.ones(3))
        if program is of_a_result:
            assert found[0]() is found[1]
            expected, found = expected[1], found[1]
        torch.testing.assert_close(found, expected)
    assert pycompiler.explain(program)(torch.ones(3)).graph_count == 1
    assert compiled.counters()["compiles"] == 1


def test_a_stored_reference_leads_to_what_is_stored() -> None:
    def program(x: Any, found: dict[str, Any]) -> Any:
        thing = Thing()
        found["reference"], found["thing"] = weakref.ref(thing), thing
        return x + 1

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        found: dict[str, Any] = {}
        compiled(torch.ones(2), found)
        assert found["reference"]() is found["thing"]


def alone(x: Any) -> Any:
    y = x * 2
    return weakref.ref(y)() is None, weakref.ref(y)


def dropped(x: Any) -> Any:
    thing = Thing()
    reference = weakref.ref(thing)
    del thing
    pycompiler.graph_break()
    return reference() is None, x + 1


def kept_beyond_a_break(x: Any) -> Any:
    y, thing = x * 2, Thing()
    to_tensor, to_thing = weakref.ref(y), weakref.ref(thing)
    pycompiler.graph_break()
    return to_tensor() is None, to_thing() is None, x + 1


def kept_below_a_call(x: Any) -> Any:
    def inner(y: Any) -> Any:
        z = y + 1
        reference = weakref.ref(z)
        pycompiler.graph_break()
        return reference() is None

    return inner(x), x + 1


def by_proxy(x: Any) -> Any:
    thing = Thing()
    thing.value = x * 2
    proxy = weakref.proxy(thing)
    pycompiler.graph_break()
    return proxy.value + 1


@pytest.mark.parametrize("program", [alone, dropped, kept_beyond_a_break, kept_below_a_call, by_proxy])
def test_what_variables_hold_lives(program: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(program, backend="eager")

    def shown(result: Any) -> Any:
        return str([part() if isinstance(part, weakref.ref) else part for part in result])

    for _ in range(3):
        assert shown(compiled(torch.ones(2))) == shown(program(torch.ones(2)))


def test_a_reference_to_a_tensor_that_nothing_else_holds_breaks() -> None:
    (broke,) = pycompiler.explain(lambda x: (x, weakref.ref(x * 2)))(torch.ones(2)).break_reasons
    assert broke.kind == "builtin-call"


def of_a_function(x: Any) -> Any:
    def inner(y: Any) -> Any:
        return y + 1

    reference, proxy = weakref.ref(inner), weakref.proxy(inner)
    pycompiler.graph_break()
    pycompiler.graph_break()
    return reference() is None, proxy(x)


def by_proxy_of_a_result(x: Any) -> Any:
    y = x * 2
    proxy = weakref.proxy(y)
    pycompiler.graph_break()
    return (proxy + 1,)


def of_a_method(x: Any) -> Any:
    thing = Callable_()
    method = weakref.WeakMethod(thing.method)
    pycompiler.graph_break()
    found = method()
    assert found is not None
    found, given = None, found(x)
    thing = None  # type: ignore[assignment]
    pycompiler.graph_break()
    return given, method() is None


class Callable_:
    def method(self, x: Any) -> Any:
        return x + 1


@pytest.mark.parametrize("program", [of_a_function, by_proxy_of_a_result, of_a_method])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_who_refers_weakly_by_other_ways(program: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(program, backend=backend)
    for _ in range(3):
        assert str(compiled(torch.ones(2))) == str(program(torch.ones(2)))
