"""Replay order of side effects: a finalizer that a replayed store triggers reads and writes the same state as in eager."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture.harness import compile_recorded

SHARED: dict[str, Any] = {"number": 0}


class Ghost:
    """An object whose finalizer records the state it reads and writes a mark."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world

    def __del__(self) -> None:
        world = self.world
        seen = [world.n, names(world.items), names(world.table), names(world.queue), SHARED["number"], world.read()]
        world.log.append((self.name, seen))
        if self.name.endswith("+"):
            world.items.append(-1)
            world.table[self.name] = -1


class World:
    def __init__(self) -> None:
        cell = 0

        def write(value: int) -> None:
            nonlocal cell
            cell = value

        self.write, self.read = write, lambda: cell
        self.log: list[Any] = []
        self.n = 0
        self.items: list[Any] = [3, Ghost("item", self), 5]
        self.table: dict[Any, Any] = {"a": Ghost("a", self), "b": 7, "c": Ghost("c+", self)}
        self.queue: Any = collections.deque([0], 2)
        self.ghost: Any = Ghost("ghost", self)
        self.haunted: Any = Ghost("haunted+", self)
        SHARED["number"] = 0


def names(values: Any) -> list[Any]:
    pairs = values.items() if isinstance(values, dict) else enumerate(values)
    return [(k, v if isinstance(v, int) else v.name) for k, v in pairs]


def attribute_then_append(w: Any, x: Any) -> Any:
    w.haunted = None
    w.items.append(1)
    w.ghost = None
    w.items.append(2)
    return x + 1


def append_then_attribute(w: Any, x: Any) -> Any:
    w.items.append(1)
    w.haunted = None
    w.n += 1
    w.ghost = None
    w.n += 1
    return x + 1


def attribute_that_is_stored_twice(w: Any, x: Any) -> Any:
    w.ghost = 1
    w.n = 5
    w.ghost = 2
    w.haunted = 3
    w.n = 6
    w.n = 7
    return x + w.n


def keys_that_go_and_come(w: Any, x: Any) -> Any:
    w.table["d"] = 1
    del w.table["c"]
    w.table["b"] = 8
    w.n = 1
    w.table["a"] = 9
    return x + 1


def globals_and_cells(w: Any, x: Any) -> Any:
    global NUMBER
    NUMBER = 1
    SHARED["number"] = 1
    w.write(1)
    w.ghost = None
    SHARED["number"] = 2
    w.write(2)
    w.haunted = None
    return x + 1


def emptied(w: Any, x: Any) -> Any:
    w.haunted = None
    w.items.clear()
    w.queue.append(1)
    w.ghost = None
    w.table.clear()
    w.table["z"] = 1
    return x + 1


def in_the_middle(w: Any, x: Any) -> Any:
    w.haunted = None
    w.items[1] = 4
    w.ghost = None
    w.items.insert(0, 1)
    return x + 1


def stored_after_a_tensor(w: Any, x: Any) -> Any:
    y = x * 2
    w.items.append(y.dim())
    w.haunted = y
    w.items.append(w.haunted.dim())
    return y


class Holder:
    def __init__(self) -> None:
        self.n, self.m, self.other = 0, 0, None
        self.items: list[int] = []
        self.table: dict[str, Any] = {"k": []}


@pytest.mark.parametrize(
    "program",
    [
        attribute_then_append, append_then_attribute, attribute_that_is_stored_twice, keys_that_go_and_come,
        globals_and_cells, emptied, in_the_middle, stored_after_a_tensor,
    ],
)  # fmt: skip
def test_finalizers_see_what_was_written_before(program: Callable[..., Any]) -> None:
    compiled = compile_recorded(program)
    told = []
    for fn in (program, compiled.fn, compiled.fn):
        world = World()
        result = fn(world, torch.ones(2))
        told.append((list(world.log), names(world.items), names(world.table), names(world.queue), result.tolist()))
    assert told[1] == told[0]
    assert told[2] == told[0]
    assert len(told[0][0]) > 1 or program is stored_after_a_tensor
    assert not compiled.skipped


def test_many_writes_of_one_place_are_few() -> None:
    """Stores merge where the dropped values run no code, as
    in a counter. Other stores stay apart, up to a limit."""

    def counts(o: Any, x: Any, times: int) -> Any:
        for i in range(times):
            o.n += 1
            o.items.append(i)
            o.m = i
        return x + o.n

    def replaces(o: Any, x: Any, times: int) -> Any:
        for i in range(times):
            o.table["k"] = [i]
            o.other = [i]
        return x + 1

    for program, most in ((counts, 40 * 2 + 80), (replaces, 0)):
        sizes = []
        for times in (40, 80):
            compiled = compile_recorded(program)
            compiled.fn(Holder(), torch.ones(2), times)
            sizes.append(len(compiled.fn.entries[0].target.__code__.co_code))
        assert sizes[1] - sizes[0] <= most
