"""`threading.local`: a graph reads and writes the attributes of its thread as in eager."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler


class Defaults(threading.local):
    scale = 2
    on = False

    def doubled(self) -> int:
        return self.scale * 2


def reads(x: Any, local: Any) -> Any:
    return x * getattr(local, "scale", 3), hasattr(local, "missing")


def writes(x: Any, local: Any) -> Any:
    before = getattr(local, "on", None)
    local.on = True
    y = x + local.on
    local.kept = y
    local.on = before
    return y, before


def deletes(x: Any, local: Any) -> Any:
    local.a = x * 2
    local.b = 3
    del local.b
    try:
        return local.a + local.b
    except AttributeError as e:
        return local.a, str(e)


def deletes_what_was_there(x: Any, local: Any) -> Any:
    local.there = 4
    del local.there
    try:
        del local.there
    except AttributeError as e:
        return x * 2, str(e), getattr(local, "there", None)


class Flag:
    """A switch in the style of libraries: a flag that is set for a while."""

    def __init__(self, local: Any) -> None:
        self.local = local

    def __enter__(self) -> None:
        self.before, self.local.on = getattr(self.local, "on", False), True

    def __exit__(self, *_: object) -> None:
        self.local.on = self.before


def switched(x: Any, local: Any) -> Any:
    with Flag(local):
        y = x + 1 if local.on else x - 1
    return y if not local.on else x


PROGRAMS = (reads, writes, deletes, deletes_what_was_there, switched)


def shown(result: Any, local: Any) -> str:
    return repr((result, vars(local)))


@pytest.mark.parametrize("make", (threading.local, Defaults))
@pytest.mark.parametrize("fn", PROGRAMS)
def test_it_is_eagers(fn: Callable[..., Any], make: type) -> None:
    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    one, other = make(), make()
    for change in ({}, {}, {"scale": 5}, {"scale": 6.5, "there": 1}, {"on": True}):
        vars(one).update(change)
        vars(other).update(change)
        x = torch.ones(2)
        assert shown(compiled(x, one), one) == shown(fn(x, other), other)


def test_each_thread_has_its_own() -> None:
    local = threading.local()
    local.scale = 4
    compiled = pycompiler.compile(reads, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1), local)[0].item() == 4
    seen: list[float] = []

    def elsewhere() -> None:
        seen.append(compiled(torch.ones(1), local)[0].item())
        local.scale = 7
        seen.append(compiled(torch.ones(1), local)[0].item())
        compiled(torch.ones(1), local)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [3, 7]
    assert [compiled(torch.ones(1), local)[0].item() for _ in range(3)] == [4] * 3
    local.scale = 5
    assert compiled(torch.ones(1), local)[0].item() == 5


def test_defaults_of_the_class() -> None:
    def fn(x: Any, local: Any) -> Any:
        return x * local.doubled(), local.on

    compiled, local = pycompiler.compile(fn, backend="eager", fullgraph=True), Defaults()
    assert repr(compiled(torch.ones(1), local)) == "(tensor([4.]), False)"
    try:
        Defaults.scale = 3
        assert compiled(torch.ones(1), local)[0].item() == 6
        local.scale = 1
        assert compiled(torch.ones(1), local)[0].item() == 2
    finally:
        Defaults.scale = 2


def test_two_that_may_be_one() -> None:
    def fn(x: Any, a: Any, b: Any) -> Any:
        a.n = 1
        b.n = 2
        return x * a.n

    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    for _ in range(2):
        assert compiled(torch.ones(1), threading.local(), threading.local()).item() == 1
        local = threading.local()
        assert compiled(torch.ones(1), local, local).item() == 2


def test_its_dict_beside_it() -> None:
    def fn(x: Any, local: Any, d: Any) -> Any:
        local.n = 1
        d["n"] = 2
        return x * local.n

    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(1), threading.local(), {}).item() == 1
        local = threading.local()
        assert compiled(torch.ones(1), local, vars(local)).item() == 2


def test_what_a_write_drops() -> None:
    class Noisy:
        def __del__(self) -> None:
            seen.append("end")

    def fn(x: Any, local: Any, seen: list[str]) -> Any:
        local.held = None
        seen.append("after")
        return x * 2

    compiled = pycompiler.compile(fn, backend="eager")
    seen: list[str] = []
    for make in (object, Noisy, object, Noisy):
        local = threading.local()
        local.held = make()
        compiled(torch.ones(1), local, seen)
        assert seen == (["end", "after"] if make is Noisy else ["after"])
        seen.clear()
    gc.collect()


def test_a_class_with_code_of_its_own_breaks() -> None:
    class Begins(threading.local):
        def __init__(self) -> None:
            self.n = 3

    def fn(x: Any, local: Any) -> Any:
        return x * local.n

    found = pycompiler.explain(fn)(torch.ones(1), Begins())
    assert found.result.item() == 3
    assert {b.kind for b in found.break_reasons} == {"unsupported-attribute"}
