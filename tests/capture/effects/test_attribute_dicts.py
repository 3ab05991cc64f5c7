"""A dict that is also the attribute dict of an object: a write through either name is visible through the other."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.errors import Unsupported

X = torch.ones(2)
FLAG = 5


class Box:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Attributes(dict):  # type: ignore[type-arg]
    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__ = self


def as_dict_then_object(x, o, d):
    d["a"] = 1
    return x + o.a


def as_object_then_dict(x, o, d):
    o.a = 2
    return x + d["a"]


def read_first(x, o, d):
    y = x + o.a + d["a"]
    d["a"] = 7
    return y + o.a


def in_turns(x, o, d):
    d["a"] = 1
    o.a = 2
    d["a"] = 3
    return x + o.a


def makes_and_deletes(x, o, d):
    o.b = 1
    d["a"] = d.pop("b", 4)
    del o.a
    return x + len(d) + hasattr(o, "b")


def called(_x, o, _d):
    vars(o)["a"] = 9
    return _x + o.a + _d["a"]


PROGRAMS = (as_dict_then_object, as_object_then_dict, read_first, in_turns, makes_and_deletes, called)


def module(**attributes):
    made = types.ModuleType("made")
    vars(made).update(attributes)
    return made


def linear(**attributes):
    made = torch.nn.Linear(1, 1)
    vars(made).update(attributes)
    return made


def tensor(**attributes):
    made = torch.ones(1)
    vars(made).update(attributes)
    return made


def function(**attributes):
    def made(): ...

    vars(made).update(attributes)
    return made


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("make", (Box, Attributes, linear, module, tensor, function), ids=lambda m: m.__name__)
def test_both(program, make):
    compiled = pycompiler.compile(program)
    for _ in range(2):
        a, b = make(a=5), make(a=5)
        want = program(X, a, vars(a))
        assert torch.equal(compiled(X, b, vars(b)), want)
        assert {k: v for k, v in vars(a).items() if k in "ab"} == {k: v for k, v in vars(b).items() if k in "ab"}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("make", (Box, linear), ids=lambda m: m.__name__)
def test_apart_then_both(program, make):
    """An entry for a separate dict must not run for the object's own attribute dict."""
    compiled = pycompiler.compile(program)
    for share in (False, True, False):
        a, b = make(a=5), make(a=5)
        da, db = (vars(a), vars(b)) if share else ({"a": 6}, {"a": 6})
        assert torch.equal(compiled(X, b, db), program(X, a, da))
        assert vars(a).get("a") == vars(b).get("a") and da.get("a") == db.get("a")


def test_items_that_are_attributes():
    def program(x, d):
        d["n"] = d.n + 1
        d.m = d["n"] * 2
        return x * d.n + d["m"]

    compiled = pycompiler.compile(program)
    a, b = Attributes(n=0), Attributes(n=0)
    for _ in range(3):
        assert torch.equal(compiled(X, b), program(X, a)) and a == b


def test_read_only_stays_one_graph():
    compiled = pycompiler.compile(lambda x, d: x * d.n + d["n"], fullgraph=True)
    assert torch.equal(compiled(X, Attributes(n=3)), X * 6)
    assert torch.equal(compiled(X, Attributes(n=4)), X * 8)


def test_objects_of_one_dict():
    def program(x, a, b):
        a.n = b.n + 1
        return x * b.n

    def both(shared):
        made = Box(n=0), Box(n=0)
        if shared:
            made[1].__dict__ = made[0].__dict__
        return made

    compiled = pycompiler.compile(program)
    for shared in (False, True):
        mine, theirs = both(shared), both(shared)
        assert torch.equal(compiled(X, *mine), program(X, *theirs)) and mine[1].n == theirs[1].n


def test_attribute_that_is_its_own_dict():
    class Counter:
        def __init__(self):
            self.d = self.__dict__
            self.n = 0

        def step(self, x):
            self.d["n"] = self.n + 1
            return x * self.n

    mine, theirs = Counter(), Counter()
    step = pycompiler.compile(mine.step)
    assert [step(X).tolist() for _ in range(3)] == [theirs.step(X).tolist() for _ in range(3)]


def as_globals(x):
    global FLAG
    globals()["FLAG"] = 1
    y = x + FLAG
    FLAG = 2
    return y + globals()["FLAG"]


def test_globals():
    global FLAG
    FLAG = 5
    assert torch.equal(pycompiler.compile(as_globals)(X), X + 3) and FLAG == 2
    with pytest.raises(Unsupported):
        pycompiler.compile(as_globals, fullgraph=True)(X)
