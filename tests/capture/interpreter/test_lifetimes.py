"""Lifetimes of variables, after graph breaks too: dropped values are freed, since nothing else holds arguments."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import _native
from pycompiler.errors import Unfit

REFS: list[weakref.ref[Any]] = []
LOG: list[Any] = []


@pycompiler.disable
def see() -> None:
    LOG.append([r() is not None for r in REFS])


def watch(value: Any) -> Any:
    REFS.append(weakref.ref(value))
    return value


class Ended:
    def __init__(self, name: str) -> None:
        self.name = name

    def __del__(self) -> None:
        LOG.append(self.name)


class Block:
    def __init__(self, t: torch.Tensor) -> None:
        self.t = t

    def run(self) -> torch.Tensor:
        t = watch(self.t * 2)
        see()
        t = t + 1
        see()
        return t


def deleted(x):
    big = watch(x + 1)
    pycompiler.graph_break()
    y = big.sum()
    del big
    see()
    return y


def rebound(x):
    big = watch(x + 1)
    pycompiler.graph_break()
    big = big * 2
    see()
    return big


def rebound_and_dead(x):
    big = watch(x + 1)
    see()
    y = big * 2
    big = None
    try:
        see()
        raise ValueError
    except ValueError:
        see()
    return y


def below(b):
    watch(b)
    see()
    b = further_below(b * 2)
    see()
    return b


def further_below(c):
    watch(c)
    see()
    c = c + 1
    see()
    return c + 1


def of_callees(x):
    y = below(x + 1)
    see()
    return y


def of_methods(x):
    block = watch(Block(x + 1))
    see()
    y = block.run()
    see()
    return y


def in_a_loop(x):
    for i in range(3):
        t = watch(x * i)
        see()
        t = t + 1
        see()
    return t


def in_a_handler(x):
    t = watch(x * 2)
    try:
        see()
        y = t + 1
        del t
        see()
        raise ValueError
    except ValueError:
        see()
    return y


def in_a_with(x):
    t = watch(x * 2)
    with torch.no_grad():
        see()
        y = t + 1
        del t
        see()
    return y


def in_a_container(x):
    t = watch(x + 1)
    see()
    pair = (t, t + 1)
    del t
    y = pair[0] + 1
    del pair
    see()
    return y


def in_a_generator(x):
    t = watch(x + 1)
    see()
    y = sum(a for a in [t * 2, t])
    del t
    see()
    return y


def in_a_cell(x):
    t = watch(x * 2)

    def inner():
        return t

    see()
    y = inner() + 1
    t = None
    see()
    return y


def with_an_end(x):
    first, second = Ended("first"), Ended("second")
    see()
    del first
    LOG.append("between")
    see()
    second = x
    LOG.append("after")
    see()
    return second


class Made(Ended):
    shared = 0

    @classmethod
    def make(cls, name: str) -> Made:
        cls.shared += 1
        return cls(name)


def of_a_class_that_a_method_is_given(x):
    for cls in KINDS:
        LOG.append(type(cls.make("made")).__name__)
    return x + 1


KINDS = [Made]
PROGRAMS = (deleted, rebound, rebound_and_dead, of_callees, of_methods, in_a_loop, in_a_handler, in_a_with, in_a_container,
            in_a_generator, in_a_cell, with_an_end, of_a_class_that_a_method_is_given)  # fmt: skip


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    collecting = gc.isenabled()
    gc.disable()
    yield
    if collecting:
        gc.enable()


def told(fn: Callable[..., Any], times: int) -> list[list[Any]]:
    result = []
    for _ in range(times):
        LOG.clear()
        REFS.clear()
        fn(torch.ones(4))
        result.append(list(LOG))
    return result


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_weak_references_see_eager_s_ends(program, backend):
    assert told(pycompiler.compile(program, backend=backend), 3) == told(program, 3)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_resume_functions_that_run_as_they_are(program):
    """The resume function itself runs where compiling stopped after the first part, or where no entry fits."""
    compiled = pycompiler.compile(program, backend="eager")
    told(compiled, 1)
    with pycompiler.set_stance("force_eager"):
        assert told(compiled, 1) == told(program, 1)
    again = pycompiler.compile(program, backend="eager")
    assert told(again, 1) == told(program, 1)
    with pycompiler.set_stance("eager_on_recompile"):
        LOG.clear()
        REFS.clear()
        again(torch.ones(4, dtype=torch.float64))
        assert told(program, 1) == [LOG]


def test_memory_is_free_after_del_behind_a_break():
    """The memory behind a tensor is freed too, not its Python object alone: peak memory is eager's."""

    def of_memory(x, make):
        big = make()
        pycompiler.graph_break()
        y = big.sum() + x
        del big
        see()
        return y

    @pycompiler.disable
    def make() -> torch.Tensor:
        buffer = (ctypes.c_float * 16)()
        REFS.append(weakref.ref(buffer))
        return torch.frombuffer(buffer, dtype=torch.float32)

    for backend in ("eager", "native"):
        compiled = pycompiler.compile(of_memory, backend=backend)
        for _ in range(3):
            LOG.clear()
            REFS.clear()
            compiled(torch.ones(()), make)
            assert LOG == [[False]]


def test_a_frame_that_begins_anew_has_its_arguments():
    """Generated code may fail a check on a value and run the frame eagerly: no argument may be freed before that."""

    def program(x, n):
        big = watch(x + 1)
        see()
        if big.sum() < 0:
            raise ValueError("negative")
        y = big * n
        del big
        see()
        return y

    for backend in ("eager", "native"):
        compiled = pycompiler.compile(program, backend=backend)
        for value in (1.0, 2.0, -9.0, 3.0):
            outcomes = []
            for fn in (program, compiled):
                LOG.clear()
                REFS.clear()
                try:
                    outcomes.append((fn(torch.full((4,), value), 3).tolist(), list(LOG)))
                except ValueError as error:
                    outcomes.append((str(error), list(LOG)))
            assert outcomes[0] == outcomes[1]


def test_a_tail_call_is_followed_once():
    def f(x): ...

    made: list[Any] = []

    def target(x):
        made.append(_native.tail_call(resumed, x))
        return made[-1]

    def rest(x):
        _native.entered()
        _native.entered()  # no frame is left to enter
        return x is thing

    resumed = _native.CompiledFunction(rest, lambda *r: None, positional=True)
    compiled = _native.CompiledFunction(f, lambda *r: _native.Entry([], target, "function"))
    thing = Ended("thing")
    assert compiled(thing)
    with pytest.raises(RuntimeError, match="followed once"):
        made[-1]()
    assert _native.tail_call(resumed, thing)()
    with pytest.raises(TypeError):
        _native.tail_call(resumed, thing)(1)
    assert _native.entered() is None


def test_code_that_begins_anew_after_it_was_entered_is_an_error():
    def f(x): ...

    def bad(x):
        _native.entered()
        raise Unfit("too late")

    def rest(x):
        raise AssertionError("ran without its arguments")

    resumed = _native.CompiledFunction(rest, lambda *r: _native.Entry([], bad, "function"), positional=True)
    compiled = _native.CompiledFunction(
        f, lambda *r: _native.Entry([], lambda x: _native.tail_call(resumed, x), "function")
    )
    with pytest.raises(RuntimeError, match="arguments are gone"):
        compiled(Ended("x"))


class Answering:
    @classmethod
    def __torch_function__(cls, func, types=(), args=(), kwargs=None):
        return 1


answering = Answering()


def test_what_asks_torch_functions_keeps_no_frame():
    """The exception that ends the call on fake tensors must not keep the callers of the compiled function alive."""

    def caller(fn):
        REFS.clear()
        kept = watch(Block(torch.ones(1)))
        assert fn() == 1
        return kept.t

    def fn():
        return torch.add(answering, 1)

    caller(pycompiler.compile(fn, backend="eager"))
    assert REFS[0]() is None


def test_a_variable_is_deleted_once():
    def program(x, k):
        del k
        del k

    with pytest.raises(UnboundLocalError):
        pycompiler.compile(program, backend="eager")(torch.ones(1), 1)


class Kept(list):
    """A list that can have weak references."""


def counted_in_a_loop(items):
    for _, _ in enumerate(items):
        pycompiler.graph_break()


def counted_by_next(items):
    counted = enumerate(items)
    pycompiler.graph_break()
    return next(counted)


def counted_in_rows(items):
    for _ in enumerate(zip(items, enumerate(items), strict=False)):
        pycompiler.graph_break()


def in_turn(items):
    for _ in zip(items, map(int, items), filter(None, items), reversed(items), strict=False):
        pycompiler.graph_break()


BEGUN = (counted_in_a_loop, counted_by_next, counted_in_rows, in_turn)


@pytest.mark.parametrize("program", BEGUN, ids=lambda p: p.__name__)
def test_what_a_begun_iterator_is_over_dies_with_the_call(program):
    """The value of a started iterator must not form a reference cycle: the capture would keep the arguments alive."""
    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(3):
        items = Kept([3, 1])
        ended = weakref.ref(items)
        compiled(items)
        del items
        assert ended() is None


def keeps_its_own_method(table: dict[Any, Any], key: str) -> None:
    table["get"] = table.get
    table[key] = 1


def reads_a_list_in_a_circle(held: list[Any], key: str) -> Any:
    return len(held), held[0], held[1]


@pytest.mark.parametrize("made", [keeps_its_own_method, reads_a_list_in_a_circle])
def test_circles_of_existing_objects_keep_nothing_of_the_call(made: Callable[..., Any]) -> None:
    """Captured values must not refer to each other in a cycle as these objects do, or they live until a collection."""
    LOG.clear()
    held: Any = {"k": Ended("it")} if made is keeps_its_own_method else [Ended("it")]
    if isinstance(held, dict):
        held["get"] = held.get
    else:
        held.append(held.append)
    gc.disable()
    try:
        pycompiler.compile(made, backend="eager")(held, "k")
        held.clear()
        assert LOG == ["it"]
    finally:
        gc.enable()
