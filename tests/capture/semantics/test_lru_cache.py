"""functools.lru_cache on functions of tensors and objects: results, counters and returned objects match eager."""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import pycompiler
from pycompiler import _native
from tests.capture.harness import compile_recorded

Make = Callable[[Callable[..., Any]], tuple[Callable[..., Any], Callable[[], list[Any]]]]
LIMITS: tuple[dict[str, Any], ...] = (
    {},
    {"maxsize": None},
    {"maxsize": 2},
    {"maxsize": 1},
    {"maxsize": 0},
    {"maxsize": 3, "typed": True},
)


def seen(steps: list[tuple[int, ...]], compile: Callable[[Any], Any], program: Any, **limits: Any) -> list[Any]:
    """Per step: the identity of each result among all earlier results, the cache counters, and the values."""
    tensors = [torch.full((3,), float(i)) for i in range(4)]

    @functools.lru_cache(**limits)
    def scaled(x: Any, by: Any = 2, *, more: Any = None) -> Any:
        return x * by + (0 if more is None else more[0])

    fn, known, told = compile(lambda *given: program(scaled, *given)), [], []
    for step in steps:
        results = fn(*(tensors[i] for i in step))
        for result in results:
            if not any(k is result for k in known):
                known.append(result)
        order = [next(i for i, k in enumerate(known) if k is r) for r in results]
        told.append((order, scaled.cache_info(), [r.tolist() for r in results]))
    return told


def one(scaled: Any, x: Any) -> Any:
    return [scaled(x)]


def twice(scaled: Any, x: Any) -> Any:
    return [scaled(x, more=(x, 1)), scaled(x, more=(x, 1))]


def pair(scaled: Any, x: Any, y: Any) -> Any:
    return [scaled(x, y), scaled(y, 2), scaled(x, y)]


def numbers(scaled: Any, x: Any) -> Any:
    return [scaled(x, 1), scaled(x, 1.0), scaled(x, True)]


def own(scaled: Any, x: Any) -> Any:
    made = x + 1
    return [scaled(made), scaled(made), made]


PROGRAMS = {one: 1, twice: 1, pair: 2, numbers: 1, own: 1}


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_results_and_counts_are_eagers(program: Any, limits: dict[str, Any]) -> None:
    places = [0, 0, 1, 0, 2, 1, 0, 3, 3, 1, 2, 0]
    steps = [(i,) if PROGRAMS[program] == 1 else (i, j) for i, j in itertools.pairwise(places)]
    compiled = seen(steps, pycompiler.compile, program, **limits)
    assert compiled == seen(steps, lambda fn: fn, program, **limits)


def test_a_call_that_is_kept_is_a_graph_of_its_own_without_the_function() -> None:
    @functools.lru_cache
    def scaled(x: Any) -> Any:
        return x * 2

    compiled = compile_recorded(lambda x: scaled(x) + 1, fullgraph=True)
    x, y = torch.ones(3), torch.ones(3)
    for given in (x, x, y, y, x):
        assert torch.equal(compiled.fn(given), torch.full((3,), 3.0))
    assert len(compiled.records) == 2
    assert scaled.cache_info()[:2] == (3, 2)


def test_methods_keep_results_by_the_object() -> None:
    class Table(torch.nn.Module):
        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

        @functools.lru_cache  # noqa: B019
        def row(self, n: int) -> Any:
            return torch.arange(n) * self.by

        def forward(self, x: Any) -> Any:
            return x + self.row(3), self.row(3)

    first, second = Table(2), Table(3)
    compiled = pycompiler.compile(lambda table, x: table(x), fullgraph=True)
    results = [compiled(table, torch.zeros(3)) for table in (first, first, second, second, first)]
    for table, (value, row) in zip((first, first, second, second, first), results, strict=True):
        assert row is table.row(3)
        assert value.tolist() == [0, table.by, 2 * table.by]
    first.by = 5  # the cached result is older
    assert compiled(first, torch.zeros(3))[0].tolist() == [0, 2, 4]
    Table.row.cache_clear()
    assert compiled(first, torch.zeros(3))[0].tolist() == [0, 5, 10]
    assert Table.row.cache_info()[:2] == (1, 1)


def test_an_object_of_the_frames_own_is_a_key() -> None:
    class Sum:
        def __init__(self, x: int) -> None:
            self.x = x

        @functools.lru_cache  # noqa: B019
        def add(self, value: int) -> None:
            self.x += value

    def fn(x: Any) -> Any:
        made = Sum(4)
        made.add(3)
        made.add(3)
        return x + made.x, made

    compiled = pycompiler.compile(fn, fullgraph=True)
    for calls in (1, 2):
        value, made = compiled(torch.zeros(2))
        assert value.tolist() == [7, 7]
        made.add(3)
        assert made.x == 7
        assert Sum.add.cache_info()[:2] == (2 * calls, calls)


def test_cached_functions_that_call_each_other() -> None:
    @functools.lru_cache(maxsize=4)
    def power(x: Any, n: int) -> Any:
        return x if n == 0 else power(x, n - 1) * 2

    compiled = pycompiler.compile(lambda x: power(x, 3), fullgraph=True)
    x = torch.ones(2)
    assert compiled(x) is compiled(x) is power(x, 3)
    assert power.cache_info()[:2] == (2, 4)
    assert power(x, 0) is x
    deep = pycompiler.compile(lambda x: power(x, 6))  # more calls than the table holds
    y = torch.ones(2)
    assert deep(y) is power(y, 6)
    assert torch.equal(deep(y), y * 64)


def test_gradients_go_through_what_is_kept() -> None:
    @functools.lru_cache
    def squared(x: Any) -> Any:
        return x * x

    compiled = pycompiler.compile(lambda x: squared(x) * 3)
    x = torch.ones(2, requires_grad=True)
    first, second = compiled(x), compiled(x)
    assert squared(x).grad_fn is not None
    (first + second).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [12, 12]


def test_what_goes_out_and_runs_code_is_left_to_eager() -> None:
    ended: list[int] = []

    class Loud:
        def __del__(self) -> None:
            ended.append(1)

    @functools.lru_cache(maxsize=1)
    def scaled(x: Any, loud: Any = None) -> Any:
        return x * 2

    def fn(x: Any) -> Any:
        result = scaled(x)
        return result, len(ended)

    compiled = pycompiler.compile(fn)
    compiled(torch.ones(2))
    scaled.cache_clear()
    scaled(torch.ones(2), Loud())
    assert compiled(torch.ones(2))[1] == 1
    assert scaled.cache_info()[1] == 2


def test_a_function_that_raises_keeps_nothing() -> None:
    @functools.lru_cache
    def checked(x: Any, at: Any) -> Any:
        if x.shape[0] == 2:
            raise ValueError("two")
        return x[at]

    def fn(x: Any, at: Any) -> Any:
        try:
            return checked(x, at)
        except (ValueError, IndexError) as e:
            return type(e)

    compiled, x = pycompiler.compile(fn), torch.arange(3.0)
    assert compiled(torch.ones(2), torch.tensor([1])) is ValueError
    assert compiled(x, torch.tensor([1])).tolist() == [1]
    assert checked.cache_info()[:2] == (0, 2)
    assert compiled(x, torch.tensor([7])) is IndexError
    assert checked.cache_info()[:2] == (0, 3)
    outside = pycompiler.compile(lambda x, at: checked(x, at) + 1, fullgraph=True)
    outside(x, torch.tensor([2]))
    with pytest.raises(IndexError):
        outside(x, torch.tensor([9]))
    assert checked.cache_info()[:2] == (0, 5)


def test_a_break_inside_is_one_at_the_call() -> None:
    @functools.lru_cache
    def broken(x: Any) -> Any:
        pycompiler.graph_break()
        return x * 2

    compiled, x = pycompiler.compile(lambda x: broken(x) + 1), torch.ones(2)
    for _ in range(3):
        assert compiled(x).tolist() == [3, 3]
    assert broken.cache_info()[:2] == (2, 1)


def test_objects_with_an_equality_of_their_own_break_the_graph() -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and self.name == other.name

        def __hash__(self) -> int:
            return hash(self.name)

    @functools.lru_cache
    def of(named: Any, x: Any) -> Any:
        return x + len(named.name)

    compiled, x = compile_recorded(lambda named, x: of(named, x)), torch.ones(2)
    assert compiled.fn(Named("a"), x) is compiled.fn(Named("a"), x)
    assert of.cache_info()[:2] == (1, 1)


def test_nan_is_another_key_each_time() -> None:
    @functools.lru_cache
    def scaled(x: Any, by: float) -> Any:
        return x * by

    compiled, x = pycompiler.compile(lambda x, by: scaled(x, by)), torch.ones(2)
    for _ in range(3):
        compiled(x, float("nan"))
    assert scaled.cache_info()[:2] == (0, 3)


def test_two_arguments_that_become_one_are_one_key() -> None:
    @functools.lru_cache
    def scaled(x: Any) -> Any:
        return x * 2

    compiled = pycompiler.compile(lambda x, y: scaled(x) is scaled(y))
    x, y = torch.ones(2), torch.ones(2)
    assert compiled(x, y) is False
    scaled.cache_clear()
    assert compiled(x, x) is True
    assert scaled.cache_info()[:2] == (1, 1)


def test_a_checkpointed_body_that_asks_a_table_is_left_to_eager() -> None:
    calls = []

    @functools.lru_cache
    def kept(x: Any) -> Any:
        calls.append(1)
        return x.detach() * 2

    def run(compile: Any) -> Any:
        kept.cache_clear()
        x = torch.ones(2, requires_grad=True)
        fn = compile(lambda x: checkpoint(lambda x: x.sin() * kept(x), x, use_reentrant=False).sum())
        fn(x).backward()
        return x.grad, len(calls), kept.cache_info()

    eager = run(lambda fn: fn)
    calls.clear()
    compiled = run(pycompiler.compile)
    assert torch.equal(eager[0], compiled[0])
    assert eager[1:] == compiled[1:]


def test_where_no_frame_is_looked_at_eager_puts_it_there() -> None:
    @functools.lru_cache
    def scaled(x: Any) -> Any:
        return x * 2

    compiled = pycompiler.compile(lambda x: scaled(x), backend="eager")
    compiled(torch.ones(2))
    x = torch.ones(2)
    _native.pause_hook()
    try:
        assert compiled(x) is scaled(x)
    finally:
        _native.resume_hook()
    assert scaled.cache_info()[:2] == (1, 2)


def test_a_transformed_function_that_asks_a_table_is_left_to_eager() -> None:
    @functools.lru_cache
    def scaled(x: Any) -> Any:
        return x * 2

    def fn(x: Any, y: Any) -> Any:
        return torch.func.vmap(lambda row: row + scaled(y))(x)

    compiled, x, y = pycompiler.compile(fn), torch.ones(2, 3), torch.ones(3)
    assert torch.equal(compiled(x, y), compiled(x, y))
    assert scaled.cache_info()[:2] == (1, 1)
    assert scaled(y).tolist() == [2, 2, 2]


def test_entries_hold_no_arguments() -> None:
    @functools.lru_cache
    def scaled(x: Any, y: Any) -> Any:
        return x * y

    compiled = pycompiler.compile(lambda x, y: scaled(x, y))
    x, y = torch.ones(2), torch.ones(2)
    compiled(x, y)
    compiled(x, y)
    scaled.cache_clear()

    gone = [weakref.ref(x), weakref.ref(y)]
    del x, y
    gc.collect()
    assert [r() for r in gone] == [None, None]


def test_attributes_of_a_cached_function_are_read_and_written_as_eager_does() -> None:
    @functools.lru_cache
    def kept(k: int) -> int:
        return k

    def tagged(x: Any) -> Any:
        return x + getattr(kept, "tag", 5)

    def shown(x: Any) -> Any:
        return x + 1, kept.held, kept.__dict__  # type: ignore[attr-defined]

    def written(x: Any) -> Any:
        kept.held["a"] = x  # type: ignore[attr-defined]
        vars(kept)["more"] = 3
        return x + kept.more  # type: ignore[attr-defined]

    x = torch.ones(1)
    compiled = pycompiler.compile(tagged, backend="eager")
    values = [compiled(x).item()]
    for value in (1, 2):
        kept.tag = value  # type: ignore[attr-defined]
        values.append(compiled(x).item())
    del kept.tag  # type: ignore[attr-defined]
    assert [*values, compiled(x).item()] == [6, 2, 3, 6]
    kept.held = {}  # type: ignore[attr-defined]
    _, held, namespace = pycompiler.compile(shown, backend="eager")(x)
    assert held is kept.held and namespace is vars(kept)  # type: ignore[attr-defined]
    assert pycompiler.compile(written, backend="eager")(x).item() == 4
    assert kept.held == {"a": x}  # type: ignore[attr-defined]


def test_what_wraps_a_cached_function_has_its_annotations() -> None:
    def wrapping(fn: Any) -> Any:
        @functools.wraps(fn)
        def wrapped() -> Any:
            return fn

        return wrapped

    def program() -> Any:
        @functools.cache
        def inner() -> None: ...

        return wrapping(inner)

    made = pycompiler.compile(program, backend="eager")()
    if sys.version_info >= (3, 14):  # annotations are functions, which `wraps` copies
        assert made.__annotations__ == program().__annotations__ and not hasattr(made(), "__annotations__")
    else:
        assert made.__annotations__ is made.__dict__["__annotations__"] is made().__annotations__


def test_a_refusal_leaves_no_cycle_that_holds_the_callers_frame() -> None:
    class Equal:
        __hash__ = object.__hash__

        def __eq__(self, other: Any) -> bool:
            return True

    @functools.lru_cache
    def kept(o: Any) -> int:
        return 1

    def called(compiled: Callable[..., Any]) -> weakref.ref[Any]:
        held = Equal()
        compiled(torch.ones(2))
        return weakref.ref(held)

    key = Equal()
    gc.collect()
    gc.disable()
    try:
        gone = called(pycompiler.compile(lambda x: x * kept(key), backend="eager"))
        assert gone() is None
    finally:
        gc.enable()


LOG: list[int] = []


@functools.lru_cache
def doubled(n: int) -> int:
    return n * 2


@functools.lru_cache(maxsize=None)  # noqa: UP033
def listed(n: int) -> list[int]:
    return [n]


@functools.lru_cache(typed=True)
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@functools.lru_cache
def logged(n: int) -> int:
    LOG.append(n)
    return n


OF_CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "once": lambda x: x + doubled(3),
    "again": lambda x: x + doubled(3) + doubled(n=3) + len(listed(2)) + doubled(3),
    "without a limit": lambda x: (x + 1, listed(2)),
    "recursion": lambda x: x + fibonacci(10),
    "behind a break": lambda x: print(end="") or x + doubled(3),
    "an effect inside": lambda x: x + logged(3),
    "an effect before": lambda x: LOG.append(1) or x + doubled(3),
}


@pytest.mark.parametrize("name", list(OF_CONSTANTS))
def test_calls_with_constants_are_counted(name: str) -> None:
    fn, cached = OF_CONSTANTS[name], (doubled, listed, fibonacci, logged)
    seen = []
    for call in (fn, pycompiler.compile(fn, backend="eager")):
        for f in cached:
            f.cache_clear()
        for _ in range(3):
            call(torch.ones(2))
            seen.append([f.cache_info() for f in cached])
    assert seen[:3] == seen[3:]


def test_a_hit_with_a_constant_stays_longest() -> None:
    @functools.lru_cache(maxsize=2)
    def kept(n: int) -> list[int]:
        return [n]

    def fn(x: Any) -> Any:
        return x + 1, kept(1)

    compiled, x = pycompiler.compile(fn, backend="eager"), torch.ones(2)
    first = kept(1)
    for n in range(2, 5):
        kept(n)
        assert compiled(x)[1] is first
    assert kept.cache_info()[:2] == (3, 4)
