"""A check that runs the user's code owns the objects that it reads."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from native import ownership
from pycompiler import _native
from pycompiler.ir.guards import Guard
from pycompiler.ir.plan import Aten, Plan, SlotRef
from pycompiler.ir.source import local


def test_the_users_code_may_drop_everything() -> None:
    program = Path(ownership.__file__)
    env = {**os.environ, "PYTHONMALLOC": "debug", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == list(ownership.SCENES)


def test_a_plan_may_be_dropped_by_its_own_step() -> None:
    calls: list[_native.CompiledFunction] = []

    def drop(x: torch.Tensor) -> torch.Tensor:
        calls[0].reset()
        calls[0].fn.__defaults__ = None
        gc.collect()
        return x + 1

    with torch.library._scoped_library("pycompiler_ownership", "DEF") as library:
        library.define("drop(Tensor x) -> Tensor")
        library.impl("drop", drop, "CompositeExplicitAutograd")
        op = torch.ops.pycompiler_ownership.drop.default
        steps = [Aten(op, (SlotRef(0),), {}, (1,)), Aten(torch.ops.aten.add.Tensor, (SlotRef(0), SlotRef(1)), {}, (2,))]

        def compile(*_: Any) -> _native.Entry:
            plan = _native.Plan(Plan(1, 3, [*steps], [2, 0], name="dropped"))
            outputs = ("tuple", [("graph", 0), ("graph", 1), ("source", local("x"))])
            return _native.Entry([], plan, "plan", outputs, [local("x")])

        def fn(x: Any) -> Any: ...

        for warm in range(3):
            fn.__defaults__ = (torch.ones(3),)
            calls[:] = [_native.CompiledFunction(fn, compile)]
            for _ in range(warm):
                calls[0](torch.ones(3))
            fn.__defaults__ = (torch.ones(3),)
            total, given, again = calls[0]()
            assert total.tolist() == [3, 3, 3] and given is again and given.tolist() == [1, 1, 1]
            assert calls[0].entries == []


class Box:
    def __init__(self) -> None:
        self.first, self.second = Box.__new__(Box), Box.__new__(Box)


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "function": lambda run: run,
    "function of any number": lambda run: lambda *inputs: run(*inputs),
    "partial": functools.partial,
    "callable object": lambda run: type("Target", (), {"__call__": staticmethod(run)})(),
    "backend's function": lambda run: _native.BackendCall(run, "test", 2),
    "backend's object": lambda run: _native.BackendCall(functools.partial(run), "test", 2),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_inputs_outlive_what_they_were_read_from(name: str) -> None:
    """A running graph may drop the only other references to its inputs and to the sources of its outputs."""
    boxes: list[Box] = []

    def run(a: Any, b: Any) -> Any:
        seen = weakref.ref(a), weakref.ref(b)
        vars(boxes[0]).clear()
        [Box() for _ in range(10)]
        assert seen[0]() is a and seen[1]() is b
        return a, b

    d = local("x").then("instance_dict")
    sources = [d.dict_item("first"), d.dict_item("second")]
    outputs = ("tuple", [("graph", 0), ("graph", 1), ("source", d.dict_item("third"))])
    guards = [Guard("type_is", local("x"), Box), *(Guard("type_is", s, Box) for s in sources)]
    target = WRAPPED[name](run)
    call = _native.CompiledFunction(lambda x: x, lambda *_: _native.Entry(guards, target, "plan", outputs, sources))
    for _ in range(6):
        box = Box()
        box.third = Box.__new__(Box)  # type: ignore[attr-defined]
        for _ in range(3):
            want = tuple(vars(box).values())
            boxes[:] = [box]
            got = call(box)
            assert all(g is w for g, w in zip(got, want, strict=True))
            vars(box).update(first=want[0], second=want[1], third=want[2])
            del got, want


def test_another_thread_may_drop_everything_meanwhile() -> None:
    asked, dropped = threading.Event(), threading.Event()

    class Slow:
        def __hash__(self) -> int:
            return hash("a")

        def __eq__(self, other: object) -> bool:
            if thread.is_alive():
                asked.set()
                dropped.wait(300)
            return False

    def drop() -> None:
        asked.wait(300)
        call.reset()
        fn.__defaults__ = (None,)
        del box.d
        gc.collect()
        dropped.set()

    thread = threading.Thread(target=drop)
    box = type("Box", (), {})()
    box.d = {Slow(): 0, "a": [1, 2, 3]}

    def fn(x: Any = box) -> Any: ...

    item = local("x").then("instance_dict").dict_item("d").dict_item("a")
    entry = _native.Entry(
        [Guard("length", item, 3), Guard("type_is", item, list)],
        lambda *given: given,
        "plan",
        ("tuple", [("graph", 0)]),
        [item],
    )
    call = _native.CompiledFunction(fn, lambda *_: entry)
    thread.start()
    found = call()
    thread.join()
    assert found == ([1, 2, 3],)
