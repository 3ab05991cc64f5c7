"""Class attributes that a function writes: counters, flags, the last result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import pycompiler
from pycompiler.capture.values.attributes import WRITTEN
from pycompiler.errors import Unsupported

BEGIN = {"count": 0, "name": "a", "last": None, "weight": 2.0}


class Kept:
    count = 0
    name = "a"
    last: Any = None
    weight: Any = 2.0
    seen: Any = []  # noqa: RUF012

    def step(self, x: Any) -> Any:
        Kept.count += 1
        type(self).name = self.name + "b"
        self.__class__.last = x.sum()
        return x * self.count + Kept.count


class Sub(Kept):
    pass


class Counting(torch.nn.Module):
    total = 0

    def forward(self, x: Any) -> Any:
        Counting.total += 1
        return x * self.total


class Watched(type):
    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)


class Strict(metaclass=Watched):
    count = 0


OBJECT, DERIVED, MODULE = Kept(), Sub(), Counting()


@pytest.fixture(autouse=True)
def begin() -> Any:
    for name, value in BEGIN.items():
        setattr(Kept, name, value)
    for name in {"count", "fresh", "name", "last"} & vars(Sub).keys():
        delattr(Sub, name)
    if "fresh" in vars(Kept):
        del Kept.fresh  # type: ignore[attr-defined]
    Counting.total = Strict.count = 0
    yield
    assert not WRITTEN


def state() -> Any:
    return str([{k: v for k, v in vars(c).items() if k in (*BEGIN, "fresh", "total")} for c in (Kept, Sub, Counting)])


def counted(x: Any) -> Any:
    return OBJECT.step(x), OBJECT.step(x), Kept.count, Kept.last


def of_a_subclass(x: Any) -> Any:
    Sub.count = Sub.count + 5
    y = DERIVED.step(x)
    return y, Sub.count, Kept.count, DERIVED.count, OBJECT.count


def of_a_module(x: Any) -> Any:
    return MODULE(x) + MODULE(x), Counting.total


def fresh(x: Any) -> Any:
    known = hasattr(Kept, "fresh")
    Kept.fresh = 3  # type: ignore[attr-defined]
    y = x + OBJECT.fresh + DERIVED.fresh  # type: ignore[attr-defined]
    Sub.fresh = x  # type: ignore[attr-defined]
    return y + Sub.fresh + DERIVED.fresh, known, Kept.fresh  # type: ignore[attr-defined]


def grown(x: Any) -> Any:
    Kept.weight = Kept.weight + x
    Kept.weight = Kept.weight * 2
    return Kept.weight


def by_name(x: Any) -> Any:
    setattr(Kept, "count", getattr(Kept, "count") + 2)  # noqa: B009, B010
    return x * Kept.count, [i for i in range(Kept.count)]


PROGRAMS = [counted, of_a_subclass, of_a_module, fresh, grown, by_name]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_written_as_in_eager(fn: Callable[..., Any], backend: str) -> None:
    def calls(call: Callable[..., Any]) -> Any:
        for name, value in BEGIN.items():
            setattr(Kept, name, value)
        for name in {"count", "fresh", "name", "last"} & vars(Sub).keys():
            delattr(Sub, name)
        if "fresh" in vars(Kept):
            del Kept.fresh  # type: ignore[attr-defined]
        Counting.total = 0
        return [(str(call(torch.arange(2.0))), state()) for _ in range(4)]

    assert calls(pycompiler.compile(fn, backend=backend, fullgraph=True)) == calls(fn)
    report = pycompiler.explain(fn)(torch.arange(2.0))
    assert (report.graph_count, report.graph_break_count) == (1, 0)


def test_a_counter_is_compiled_twice() -> None:
    graphs = []

    def backend(gm: Any, _: Any) -> Any:
        graphs.append(gm)
        return gm

    compiled = pycompiler.compile(of_a_module, backend=backend, fullgraph=True)
    for i in range(8):
        y, total = compiled(torch.ones(2))
        assert total == 2 * i + 2
        torch.testing.assert_close(y, torch.full((2,), 4.0 * i + 3))
    assert len(graphs) <= 3  # the start, a symbol, and the constants 0 and 1


def around_a_break(x: Any) -> Any:
    Kept.count += 1
    y = x * Kept.count
    pycompiler.graph_break()
    Kept.count += 1
    return y + Kept.count


def holds_objects(x: Any) -> Any:
    Kept.seen = [1]
    return x + len(Kept.seen)


def has_a_say(x: Any) -> Any:
    Strict.count += 1
    return x + Strict.count


def shown(x: Any) -> Any:
    Kept.count += 1
    return x + vars(Kept)["count"]


def test_what_a_backward_looks_at_is_not_written_in_a_graph() -> None:
    with pytest.raises(Unsupported, match="a backward reads objects again"):
        pycompiler.compile(in_a_checkpoint, backend="eager", fullgraph=True)(torch.arange(2.0, requires_grad=True))


def in_a_checkpoint(x: Any) -> Any:
    y = checkpoint(lambda x: x * x * Kept.count, x, use_reentrant=False)
    Kept.count += 1
    return y


def shown_before(x: Any) -> Any:
    shows = vars(Kept)
    before = shows["count"]
    Kept.count += 1
    return x + shows["count"] * before


@pytest.mark.parametrize(
    "fn", [around_a_break, holds_objects, has_a_say, shown, shown_before], ids=lambda fn: fn.__name__
)
def test_breaks(fn: Callable[..., Any]) -> None:
    def calls(call: Callable[..., Any]) -> Any:
        Kept.count = Strict.count = 1
        Kept.seen = []
        found = []
        for _ in range(3):
            x = torch.arange(2.0, requires_grad=True)
            y = call(x)
            y.sum().backward()
            found.append((y.tolist(), x.grad.tolist(), Kept.count, Strict.count, Kept.seen))
        return found

    assert calls(pycompiler.compile(fn, backend="eager")) == calls(fn)
    with pytest.raises(Unsupported):
        pycompiler.compile(fn, backend="eager", fullgraph=True)(torch.arange(2.0, requires_grad=True))


@pytest.mark.parametrize("kind", ["items", "values", "keys"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_view_of_attributes_shows_those_behind_a_break(kind: str, begun: bool) -> None:
    def fn(x: Any) -> Any:
        seen = getattr(vars(Kept), kind)()
        if begun:
            seen = iter(seen)
        pycompiler.graph_break()
        Kept.count += 1
        return x + 1, [found for found in seen if found in (Kept.count, "count", ("count", Kept.count))]

    def calls(call: Callable[..., Any]) -> Any:
        Kept.count = 100
        return [(call(torch.zeros(2))[1], Kept.count) for _ in range(3)]

    assert calls(pycompiler.compile(fn, backend="eager")) == calls(fn)


class Unhashable(type):
    def __eq__(cls, other: object) -> Any:
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]


class Plain(metaclass=Unhashable):
    number = 0


def test_a_class_that_has_no_hash() -> None:
    def fn(x: Any) -> Any:
        Plain.number += 1
        made = Plain()
        return (
            x + made.number,
            isinstance(made, Plain),
            isinstance(3, Plain),
            issubclass(Plain, Plain),
            type(made) is Plain,
        )

    def calls(call: Callable[..., Any]) -> Any:
        Plain.number = 0
        found = []
        for _ in range(3):
            y, *rest = call(torch.zeros(2))
            found.append((y.tolist(), rest, Plain.number))
        return found

    assert calls(pycompiler.compile(fn, backend="eager", fullgraph=True)) == calls(fn)


def nothing_left(x: Any) -> Any:
    Kept.count += 1
    raise ValueError(str(x.shape))


def test_an_error_leaves_what_was_written() -> None:
    compiled = pycompiler.compile(nothing_left, backend="eager")
    for i in range(2):
        with pytest.raises(ValueError, match="torch.Size"):
            compiled(torch.ones(2))
        assert Kept.count == i + 1


class Base:
    number = 1


class Between(Base):
    pass


class Least(Between):
    pass


def through_bases(x: Any) -> Any:
    Base.number += 1
    seen = [Least.number, Least().number, getattr(Between, "number", None)]
    Least.number += 10
    return x + Base.number, [*seen, Least.number]


class Other:
    number = 5


class Moved(Base):
    pass


def of_moved(x: Any) -> Any:
    Base.number += 1
    return x, Moved.number + Base.number


def test_what_comes_between_the_class_that_is_written_and_the_one_that_is_asked() -> None:
    def calls(call: Callable[..., Any]) -> Any:
        Base.number = 1
        found = []
        for between, least in [((), ()), ((), (5,)), ((7,), ()), ((), ()), ((8,), (9,)), ((), ())]:
            for cls, own in ((Between, between), (Least, least)):
                if "number" in vars(cls):
                    del cls.number
                for number in own:
                    cls.number = number
            y, seen = call(torch.zeros(2))
            found.append((y.tolist(), seen, Base.number, Least.number))
        return found

    def moves(call: Callable[..., Any]) -> Any:
        found = []
        for bases in [(Other,), (Base,), (Other, Base), (Base, Other)]:
            Moved.__bases__ = bases
            Base.number = 5
            found.append((call(torch.zeros(2))[1], Base.number))
        return found

    assert moves(pycompiler.compile(of_moved, backend="eager")) == moves(of_moved)
    for backend in ("eager", "native"):
        assert calls(pycompiler.compile(through_bases, backend=backend)) == calls(through_bases)
