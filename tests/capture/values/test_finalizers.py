"""Finalizers: code after a dropped object sees the finalizer's side effects, so the graph breaks at the drop."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.capture.recipe import runtime_helpers
from pycompiler.capture.values.finalizers import runs_code


class World:
    """State that programs write and objects read."""

    def __init__(self) -> None:
        self.seen = 0
        self.log: list[Any] = []
        self.held: Any = Told(self, 7)
        self.items: list[Any] = [Told(self, 3)]
        self.table = {"k": Told(self, 5)}
        self.plain: Any = None
        self.slots: Any = Slots()
        self.slots.a, self.slots.b = Told(self, 19), Told(self, 23)


class Slots:
    __slots__ = ("a", "b")


class Told:
    def __init__(self, world: World, value: int) -> None:
        self.world, self.value = world, value

    def __del__(self) -> None:
        self.world.seen += self.value
        self.world.log.append((self.value, self.world.seen))


class Quiet:
    pass


def attribute(x: Any, w: World) -> Any:
    w.held = None
    return x + w.seen


def item(x: Any, w: World) -> Any:
    w.items.pop()
    return x + w.seen


def key(x: Any, w: World) -> Any:
    del w.table["k"]
    return x + w.seen


def inside_of_another(x: Any, w: World) -> Any:
    w.plain = [{"deep": w.held}]
    w.held = None
    y = x + w.seen
    w.plain = None
    return y + w.seen * 10


def variable(x: Any, w: World) -> Any:
    told = w.items.pop()
    y = x + w.seen
    del told
    return y + w.seen * 10


def made(x: Any, w: World) -> Any:
    told = Told(w, 11)
    y = x + w.seen
    told = [Told(w, 13)]
    y = y + w.seen * 10
    told.clear()
    return y + w.seen * 100


def temporary(x: Any, w: World) -> Any:
    Told(w, 11)
    return x + w.seen


def many(x: Any, w: World) -> Any:
    for i in range(20):
        w.held = Told(w, i)
        w.table["k"] = i
    return x + w.seen


def weak(x: Any, w: World) -> Any:
    o = Quiet()
    r = weakref.ref(o)
    before = r() is None
    del o
    return x + 2 * (r() is None) + before


def called_back(x: Any, w: World) -> Any:
    o = Quiet()
    r = weakref.ref(o, lambda r: w.log.append("gone"))
    del o
    return x + len(w.log) + (r() is None)


def loop_variable(x: Any, w: World) -> Any:
    w.table["k"] = 0  # type: ignore[assignment]
    w.table.clear()
    w.table["l"] = w.items  # type: ignore[assignment]
    w.items = []
    for k in w.table.values():
        x = x + len(k)  # type: ignore[arg-type]
    w.table.clear()
    return x + w.seen


def slot(x: Any, w: World) -> Any:
    w.slots.a = None
    y = x + w.seen
    del w.slots.b
    return y + w.seen * 10


def appended(x: Any, w: World) -> Any:
    a: Any = []
    a.append(Told(w, 11))
    a = len(a)
    return x + w.seen + a


def in_new_containers(x: Any, w: World) -> Any:
    a: Any = {}
    b: Any = ([], Quiet())
    a["k"] = Told(w, 11)
    b[0].append(Told(w, 13))
    b[1].k = Told(w, 17)
    a = 0
    y = x + w.seen
    b = 0
    return y + w.seen * 100


def comprehended(x: Any, w: World) -> Any:
    count = len([Told(w, i) for i in (1, 2)])
    y = x + w.seen * count
    count = len({i: Told(w, i) for i in (1, 2)})
    return y + w.seen * count


PROGRAMS = (attribute, item, key, inside_of_another, variable, made, temporary, many, weak, called_back,
            loop_variable, slot, appended, in_new_containers, comprehended)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_ends_are_seen_in_order(program: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(program, backend="eager")
    told, worlds = [], []
    for fn in (program, compiled, compiled):
        world = World()
        worlds.append(world)  # the remaining objects are freed later
        told.append((fn(torch.zeros(1), world).tolist(), world.seen, list(world.log)))
    assert told[1] == told[0]
    assert told[2] == told[0]


def test_the_next_call_may_drop_something_else() -> None:
    compiled = pycompiler.compile(attribute, backend="eager", fullgraph=True)
    for held in (None, 5, torch.ones(3), [torch.ones(1)], Quiet()):
        world = World()
        world.held = held
        world.seen = 0
        assert compiled(torch.zeros(1), world).item() == 0
    world = World()
    assert compiled(torch.zeros(1), world).item() == 7
    assert len(compiled.entries) == 1


def test_what_runs_code() -> None:
    world = World()
    shared = Quiet()
    shared.told = world.held  # type: ignore[attr-defined]
    watched = Quiet()
    kept = weakref.ref(watched, world.log.append)
    started = (i for i in range(3))
    assert not runs_code(started)
    next(started)
    assert all(map(runs_code, (world.held, [Told(world, 1)], {"a": (Told(world, 1),)}, watched, started)))
    assert not any(map(runs_code, (None, 1, torch.ones(1), [torch.ones(1)], Quiet(), shared, torch.nn.Linear(1, 1))))
    assert kept() is watched


def replaced(x: Any, w: World) -> Any:
    w.items[0] = None
    return x + w.seen


def popped_after_a_write(x: Any, w: World) -> Any:
    w.items.append(1)
    w.items.pop(0)
    return x + w.seen


def sliced(x: Any, w: World) -> Any:
    w.items[0:1] = [2]
    return x + w.seen


def cleared(x: Any, w: World) -> Any:
    w.items.clear()
    return x + w.seen


def stored(x: Any, w: World) -> Any:
    w.table["k"] = None  # type: ignore[assignment]
    return x + w.seen


CHANGES = (replaced, popped_after_a_write, sliced, item, stored, key)


def with_ends(first: Any, other: Any, rest: int) -> World:
    world = World()
    world.items = [first, *(other() for _ in range(rest))]
    world.table = {"k": first, **{str(i): other() for i in range(rest)}}
    world.held, world.seen = None, 0
    return world


@pytest.mark.parametrize("program", (*CHANGES, cleared), ids=lambda fn: fn.__name__)
def test_what_a_later_call_drops_is_asked(program: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(program, backend="eager")
    assert compiled(torch.zeros(1), with_ends(Quiet(), Quiet, 0)).item() == 0
    told, world = with_ends(None, Quiet, 0), with_ends(None, Quiet, 0)
    for each in (told, world):
        each.items, each.table = [Told(each, 3)], {"k": Told(each, 5)}
    wanted = program(torch.zeros(1), told).item()
    assert wanted != 0
    assert compiled(torch.zeros(1), world).item() == wanted


@pytest.mark.parametrize("program", CHANGES, ids=lambda fn: fn.__name__)
def test_only_what_goes_out_is_looked_at(program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    compiled(torch.zeros(1), with_ends(Quiet(), Quiet, 50))
    looked: list[Any] = []
    monkeypatch.setattr(runtime_helpers, "runs_code", lambda value: looked.append(value) or False)
    compiled(torch.zeros(1), with_ends(Quiet(), Quiet, 50))
    assert len(looked) == 1


def test_a_variable_of_a_comprehension_that_lets_go_of_what_is_referred_to() -> None:
    held = [Quiet()]
    seen = weakref.ref(held[0])
    queue = [1]

    def program() -> int:
        found = [o is seen() for o in held]
        return len(found) + queue.pop()

    compiled = pycompiler.compile(program, backend="eager")
    assert compiled() == 2
    for _ in range(2):
        with pytest.raises(IndexError):
            compiled()


class Owner(torch.nn.Module):
    """A module whose child logs its end."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.child = torch.nn.Linear(2, 2)
        weakref.finalize(self.child, log.append, "gone")


def kept(x: Any, m: Owner, log: list[str]) -> Any:
    child = m.child
    x = child(x)
    child = None
    return x + len(log)


def removed(x: Any, m: Owner, log: list[str]) -> Any:
    child = m.child
    x = child(x)
    m.child = torch.nn.Identity()
    child = None
    return x + len(log)


def owner_gone(x: Any, m: Any, log: list[str]) -> Any:
    child = m.pop().child
    x = child(x)
    child = None
    return x + len(log)


@pytest.mark.parametrize(("program", "breaks"), [(kept, 0), (removed, None), (owner_gone, None)])
def test_what_another_object_still_holds_does_not_end(program: Callable[..., Any], breaks: int | None) -> None:
    def given() -> tuple[Any, ...]:
        log: list[str] = []
        torch.manual_seed(0)
        owner = Owner(log)
        return torch.ones(2), [owner] if program is owner_gone else owner, log

    compiled = pycompiler.compile(program)
    for _ in range(3):
        torch.testing.assert_close(compiled(*given()), program(*given()))
    if breaks is not None:
        assert pycompiler.explain(program)(*given()).graph_break_count == breaks


class Copied:
    """A class whose instances are created in several ways and log their end."""

    log: list[str] = []

    def __init__(self) -> None:
        self.items = [1]

    def __del__(self) -> None:
        self.log.append("end")

    def copied(self) -> Any:
        made = type(self).__new__(type(self))
        made.items = self.items
        return made


def made_by_new(o: Copied) -> None:
    del o.copied().items
    o.log.append("x")


def made_by_object_new(o: Copied) -> None:
    n = object.__new__(Copied)
    o.log.append("x")


def made_by_copy(o: Copied) -> None:
    copy.copy(o)
    o.log.append("x")


def kept_in_a_table(o: Copied) -> None:
    table = {1: Copied(), 2: Copied.__new__(Copied)}
    table.clear()
    o.log.append("x")


@pytest.mark.parametrize("fn", [made_by_new, made_by_object_new, made_by_copy, kept_in_a_table])
def test_what_is_made_without_its_class_being_called(fn: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(fn, backend="eager")
    o = Copied()
    for run in (fn, compiled, compiled):
        Copied.log.clear()
        run(o)
        assert Copied.log == WANTED[fn.__name__]


WANTED = {
    "made_by_new": ["end", "x"],
    "made_by_object_new": ["x", "end"],
    "made_by_copy": ["end", "x"],
    "kept_in_a_table": ["end", "end", "x"],
}


class Written:
    """An object without `__dict__` whose `__getattr__` logs each call."""

    __slots__ = ("t",)
    log: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.log.append(name)
        raise AttributeError(name)


def test_what_is_written_to_is_not_asked() -> None:
    def fn(o: Written, x: torch.Tensor) -> torch.Tensor:
        o.t = x + 1
        return o.t * 2

    compiled = pycompiler.compile(fn, backend="eager")
    o, x = Written(), torch.ones(2)
    for _ in range(2):
        assert torch.equal(compiled(o, x), x * 4)
    assert Written.log == []
