"""Weak references whose object the frame has dropped: they are dead, although the graph still needs the object."""

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
    """The variable keeps its referent alive: a module, with further weak references from torch, or an element of a container."""
    compiled = pycompiler.compile(program, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), program(torch.ones(2)))


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_modules_whose_mode_changes_inside(kind: Any) -> None:
    """Such modules compare their weights through weak references; the module's mode is no weight."""
    torch.manual_seed(0)
    module = kind(3, 4, 2, dropout=0.5, batch_first=True)

    def program(x: torch.Tensor) -> Any:
        module.eval()
        with torch.no_grad():
            plain = module(x)[0]
        module.train()
        return plain, module(x)[0]

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for mode in (True, False, True):
        module.train(mode)
        x = torch.randn(2, 3, 3)
        found = []
        for call in (program, compiled):
            torch.manual_seed(1)
            found.append(call(x))
        torch.testing.assert_close(found[1], found[0])
        assert module.training
    assert compiled.counters()["compiles"] == 1


def test_a_mode_that_was_a_weight() -> None:
    """The store drops the old value of the attribute, which could be the last reference to the weight: guarded."""
    weight = torch.nn.Parameter(torch.ones(2))
    holder = torch.nn.Module()
    holder.weight = weight
    reference = weakref.ref(weight)
    del weight

    def program(x: torch.Tensor) -> Any:
        known = holder.weight
        holder.note = None
        same = reference() is known
        return x + 1, same

    holder.note = 3
    compiled = pycompiler.compile(program, backend="eager")
    for note in (3, 4.0, torch.ones(1), [1], None):
        holder.note = note
        torch.testing.assert_close(compiled(torch.ones(2))[0], torch.full((2,), 2.0))
        holder.note = note
        assert compiled(torch.ones(2))[1] is program(torch.ones(2))[1]
