"""Signs of changed dicts for the fast path of guards: events where this CPython has them, versions elsewhere."""

from __future__ import annotations

import collections
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import _native
from pycompiler.ir.guards import Guard, first_failure
from pycompiler.ir.source import Scope, local

X = local("x")


@pytest.fixture(autouse=True)
def best_sign() -> Iterator[None]:
    yield
    _native.force_dict_sign(None)


needs_events = pytest.mark.skipif(_native.force_dict_sign("events") != "events", reason="no events of dicts here")
_native.force_dict_sign(None)


class Thing:
    def __init__(self) -> None:
        self.a, self.b = 1, 2
        self.table: Any = {"k": 1}
        self.hooks: Any = collections.OrderedDict()


def guards_of(thing: Thing) -> list[Guard]:
    d = X.then("instance_dict")
    return [
        Guard("type_is", X, type(thing)),
        Guard("equals", d.dict_item("a"), thing.a),
        Guard("equals", d.dict_item("table").dict_item("k"), thing.table["k"]),
        Guard("length", d.dict_item("hooks"), 0),
    ]


class Checked:
    """A recorded tree over one object."""

    def __init__(self, thing: Any = None, fast: bool = True) -> None:
        self.thing = thing or Thing()
        self.guards = guards_of(self.thing)
        self.tree = _native.GuardTree(self.guards, ("x",))
        assert self.holds() and self.holds() and self.tree.is_fast is fast

    def holds(self) -> bool:
        got = self.tree.check({"x": self.thing}, {})
        assert (got is None) == (first_failure(self.guards, Scope({"x": self.thing}, {})) is None)
        return got is None


def test_every_python_has_one() -> None:
    assert _native.force_dict_sign(None) == ("events" if sys.version_info >= (3, 12) else "versions")
    assert _native.force_dict_sign("versions") == ("versions" if sys.version_info < (3, 14) else "nothing")
    assert _native.force_dict_sign("nothing") == "nothing"
    assert not _native.set_fast_guards(True)
    with pytest.raises(ValueError, match="known: events, versions, nothing"):
        _native.force_dict_sign("words")  # type: ignore[arg-type]


def test_without_a_sign_every_guard_is_evaluated() -> None:
    _native.force_dict_sign("nothing")
    thing = Thing()
    tree = _native.GuardTree(guards_of(thing), ("x",))
    for _ in range(3):
        assert tree.check({"x": thing}, {}) is None
        assert not tree.is_fast
    thing.a = 5
    assert tree.check({"x": thing}, {}) == 1


@needs_events
def test_what_is_watched_is_let_go() -> None:
    before = _native.watched_dicts()
    things = [Checked() for _ in range(5)]
    assert _native.watched_dicts() == before + 15
    del things[0].thing
    assert _native.watched_dicts() == before + 12  # dead dicts have sent their event
    del things[:3]
    assert _native.watched_dicts() == before + 6
    shared = Checked(things[0].thing)
    del things[0]
    assert _native.watched_dicts() == before + 6
    shared.thing.table["k"] = 7
    assert not shared.holds()
    del shared, things
    assert _native.watched_dicts() == before


@needs_events
def test_reset_lets_go() -> None:
    def fn(x: Any) -> Any: ...

    before = _native.watched_dicts()
    thing = Thing()
    call = _native.CompiledFunction(fn, lambda *_: _native.Entry(guards_of(thing), lambda x: 1, "function"))
    for _ in range(3):
        call(thing)
    assert _native.watched_dicts() == before + 3
    call.reset()
    assert _native.watched_dicts() == before
    thing.a = 3


def test_an_address_that_is_used_again() -> None:
    """A dead dict proves nothing about the next dict at its address."""
    for _ in range(200):
        c = Checked()
        c.thing.table = None
        c.thing.table = {"k": 2}
        assert not c.holds()
        c.thing.__dict__ = {**vars(c.thing), "table": {"k": 1}}
        assert c.holds()
        vars(c.thing)["hooks"] = collections.OrderedDict(a=1)
        assert not c.holds()


def test_attributes_stay_what_they_were() -> None:
    """Recording may move attributes from the object into its dict: same dict, same order, same objects."""
    for empty in (False, True):
        thing = Thing()
        if empty:
            vars(thing).clear()
        held, items = vars(thing), list(vars(thing).items())
        walk = iter(held.items())
        if items:
            next(walk)
        guards = [Guard("dict_keys", X.then("instance_dict"), tuple(vars(thing))), Guard("instance_absent", X, "z")]
        guards += [Guard("type_is", X, Thing)]
        tree = _native.GuardTree(guards, ("x",))
        for _ in range(3):
            assert tree.check({"x": thing}, {}) is None
        assert vars(thing) is held
        assert list(held.items()) == items and all(held[k] is v for k, v in items)
        assert list(walk) == items[1:]
        thing.z = 1  # type: ignore[attr-defined]
        assert tree.check({"x": thing}, {}) is not None
        assert list(vars(Thing())) == ["a", "b", "table", "hooks"]


def test_a_change_while_the_collector_runs() -> None:
    class Cyclic:
        def __init__(self, c: Checked) -> None:
            self.me, self.c = self, c

        def __del__(self) -> None:
            self.c.thing.table["k"] = 9

    c = Checked()
    Cyclic(c)
    gc.collect()
    assert not c.holds()


def test_a_tree_that_dies_with_what_it_watches() -> None:
    """The tree, its object and the dicts are garbage of one cycle, freed in any order."""
    before = _native.watched_dicts()
    for _ in range(20):
        c = Checked()
        c.thing.tree, c.thing.me = c, c.thing
        c.thing.table["self"] = c.thing.hooks["x"] = c
        del c
    gc.collect()
    assert _native.watched_dicts() == before


def test_changes_by_other_threads() -> None:
    c = Checked()
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            c.thing.a = 2
            c.thing.table["k"] = 5
            c.thing.a = 1
            c.thing.table["k"] = 1

    threads = [threading.Thread(target=change) for _ in range(3)]
    for t in threads:
        t.start()
    for _ in range(3000):
        c.tree.check({"x": c.thing}, {})
    stop.set()
    for t in threads:
        t.join()
    assert c.holds() and c.holds()
    c.thing.a = 2
    assert not c.holds()


def test_models_of_torch() -> None:
    """Stores through the class's own `__setattr__`, hooks, moved parameters."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    d = X.then("instance_dict").dict_item("_modules").dict_item("0").then("instance_dict")
    guards = [
        Guard("equals", d.dict_item("training"), True),
        Guard("length", d.dict_item("_forward_hooks"), 0),
        Guard("dict_keys", d.dict_item("_parameters"), ("weight", "bias")),
    ]
    tree = _native.GuardTree(guards, ("x",))

    def holds() -> bool:
        return tree.check({"x": model}, {}) is None

    assert holds() and holds() and tree.is_fast
    model.eval()
    assert not holds()
    model.train()
    assert holds()
    handle = model[0].register_forward_hook(lambda *_: None)
    assert not holds()
    handle.remove()
    assert holds()
    model[0].bias = None
    assert holds()
    model[0].register_parameter("more", None)
    assert not holds()


PROGRAM = """
import ctypes, os, sys, torch
{before}
from native.test_dict_signs import Checked
import pycompiler
from pycompiler import _native

c = Checked(fast={fast})
c.thing.a = 2
assert not c.holds()
c.thing.a = 1
assert c.holds() and c.holds()
{after}
"""


def run(before: str = "", after: str = "", fast: bool = True, **env: str) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    command = [sys.executable, "-c", PROGRAM.format(before=before, after=after, fast=fast)]
    done = subprocess.run(
        command, env={**os.environ, **env, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]


TAKE_ALL = """
Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
callback, taken = Callback(lambda *_: 0), 0
while True:
    try:
        ctypes.pythonapi.PyDict_AddWatcher(callback)
        taken += 1
    except RuntimeError:
        break
assert taken > 3
"""


@needs_events
def test_no_callback_is_left() -> None:
    """Without callbacks versions are the sign (3.14 has none: each guard is evaluated), and no error is reported."""
    left = _native.force_dict_sign("versions")
    run(TAKE_ALL, f'assert _native.force_dict_sign(None) == "{left}"', fast=left != "nothing")


FORK = """
child = os.fork()
assert c.holds()
c.thing.table["k"] = 8
assert not c.holds()
if child:
    assert os.waitpid(child, 0)[1] == 0
c.thing.table["k"] = 1
assert c.holds() and c.holds() and c.tree.is_fast
c.thing.me = sys.kept = c  # dies when the interpreter ends
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_and_the_end_of_the_interpreter() -> None:
    run(after=FORK, PYTHONMALLOC="debug")


def test_attributes_that_are_being_cleared() -> None:
    """Quirk of CPython 3.13: it first reports an empty dict, then drops the values one by one; a finalizer runs in
    between."""

    class Calls:
        def __del__(self) -> None:
            seen.append(c(torch.zeros(1), o).item())

    class Thing:
        def __init__(self) -> None:
            self.first, self.v, self.w = Calls(), 1, 2

    def f(x: Any, a: Any) -> Any:
        return x + getattr(a, "v", 100) + getattr(a, "w", 200)

    found = []
    for c in (f, pycompiler.compile(f, backend="eager")):
        seen: list[float] = []
        for _ in range(20):
            o = Thing()
            vars(o).clear()
            seen.append(c(torch.zeros(1), o).item())
        del o
        gc.collect()
        found.append(seen)
    assert found[0] == found[1]
