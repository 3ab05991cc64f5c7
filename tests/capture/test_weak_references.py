"""What a weak reference leads to after the frame has let go of it: nothing, though the graph still needs the object."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler


def rebound(x: Any) -> Any:
    big = x + 1
    r = weakref.ref(big)
    pycompiler.graph_break()
    s = big.sum()
    big = None
    return s, r() is None


def deleted(x: Any) -> Any:
    big = x + 1
    r = weakref.ref(big)
    pycompiler.graph_break()
    before = r() is None
    s = big.sum()
    del big
    return s, before, r() is None


def of_a_cell(x: Any) -> Any:
    big = x + 1
    r = weakref.ref(big)

    def let_go() -> None:
        nonlocal big
        big = None

    pycompiler.graph_break()
    s = big.sum()
    let_go()
    return s, r() is None


def popped(x: Any) -> Any:
    held = [x + 1]
    r = weakref.ref(held[0])
    pycompiler.graph_break()
    s = held.pop().sum()
    return s, r() is None


def in_a_list_that_goes(x: Any) -> Any:
    held = [x + 1]
    r = weakref.ref(held[0])
    pycompiler.graph_break()
    s = held[0].sum()
    held = None
    return s, r() is None


def of_an_attribute(x: Any) -> Any:
    owner = types.SimpleNamespace(a=x + 1)
    r = weakref.ref(owner.a)
    pycompiler.graph_break()
    s = owner.a.sum()
    owner.a = None
    return s, r() is None


def still_held(x: Any) -> Any:
    big = x + 1
    other, r = big, weakref.ref(big)
    pycompiler.graph_break()
    s = big.sum()
    big = None
    return s + other.sum(), r() is None


def moved(x: Any) -> Any:
    a, b = x + 1, x + 2
    r = weakref.ref(a)
    pycompiler.graph_break()
    a, b = b, a
    a = None
    there = r() is None
    s = b.sum()
    b = None
    return s, there, r() is None


FRAMES = [rebound, deleted, of_a_cell, popped, in_a_list_that_goes, of_an_attribute, still_held, moved]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", FRAMES)
def test_after_the_frame_let_go(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend)
    for _ in range(3):
        assert str(compiled(torch.ones(4))) == str(fn(torch.ones(4)))


KEPT = torch.ones(4)


def of_this_or_another(x: Any, alone: bool) -> Any:
    big = x + 1
    r = weakref.ref(big if alone else KEPT)
    pycompiler.graph_break()
    s = big.sum()
    big = None
    return s, r() is None


@pytest.mark.parametrize("first", [True, False])
def test_another_object_in_the_next_call(first: bool) -> None:
    compiled = pycompiler.compile(of_this_or_another, backend="eager")
    for alone in (first, not first, first):
        assert str(compiled(torch.ones(4), alone)) == str(of_this_or_another(torch.ones(4), alone))


class Child(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        x = x * 2
        return x + self.__dict__["parent"]().weight


def test_a_module_that_the_caller_holds_breaks_no_graph() -> None:
    child, parent = Child(), torch.nn.Linear(2, 2)
    child.__dict__["parent"] = weakref.ref(parent)
    x = torch.ones(2, 2)
    assert torch.equal(pycompiler.compile(child, backend="eager", fullgraph=True)(x), child(x))


def modules_in_a_proxy(x: Any) -> Any:
    layer = torch.nn.Linear(2, 2)
    proxy = weakref.proxy(layer)
    y = x + proxy.in_features
    pycompiler.graph_break()
    return y * proxy.out_features


def things_in_a_set(x: Any) -> Any:
    layer = torch.nn.Linear(2, 2)
    known = weakref.WeakSet([layer])
    y = x + len(known)
    pycompiler.graph_break()
    return y + len(known)


@pytest.mark.parametrize("program", [modules_in_a_proxy, things_in_a_set])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_variables_hold_what_is_referred_to_beyond_breaks(program: Any, backend: str) -> None:
    """Of a module, that others than the program refer to weakly, too; and of what is in a container that is given."""
    compiled = pycompiler.compile(program, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), program(torch.ones(2)))
