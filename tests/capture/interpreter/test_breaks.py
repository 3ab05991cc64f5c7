"""Kinds of graph break: a test provokes each kind and compares the values with eager Python."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from capture.harness import Case, World, compare, compile_recorded, run

import pycompiler
from pycompiler.capture.breaks import BREAK_KINDS, Break
from pycompiler.capture.interpreter import context
from pycompiler.errors import Unsupported

X = torch.arange(4.0)
PROVOKERS: dict[str, Case] = {}


def provokes(kind: str, *args: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that breaks the graph with `kind`."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        PROVOKERS[kind] = Case(fn, args, **options)
        return fn

    return register


@provokes("data-dependent-jump", X)
def jump(x: Any) -> Any:
    return x + 1 if x.sum() > 0 else x - 1


@provokes("builtin-call", X)
def builtin_call(x: Any) -> Any:
    y = x + 1
    print("text")
    return y * 2


@provokes("inner-graph", X)
def inner_graph(x: Any) -> Any:
    return torch.func.vmap(lambda r: r * 2 if r.is_contiguous() else r)(x) + 1


@pycompiler.disable
def _disabled(x: Any) -> Any:
    return x * 5


@provokes("disabled-call", X)
def disabled_call(x: Any) -> Any:
    return _disabled(x + 1) * 2


@provokes("skipped-call", X)
def skipped_call(x: Any) -> Any:
    y = x + torch.rand(4)
    torch.manual_seed(3)
    return y + torch.rand(4)


@provokes("data-dependent-value", X)
def data_value(x: Any) -> Any:
    return x * x.sum().item()


@provokes("dynamic-output-shape", X)
def dynamic_shape(x: Any) -> Any:
    return (x + 1)[x > 1] * 2


class Rows:
    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        raise StopAsyncIteration


ROWS = Rows()


@provokes("unsupported-opcode", X)
def opcode(x: Any) -> Any:
    later = (row async for row in ROWS)
    return x * 2 if later else x


class Begins(threading.local):
    def __init__(self) -> None:
        self.number = 1


LOCAL = Begins()


@provokes("unsupported-attribute", X)
def attribute(x: Any) -> Any:
    return x + LOCAL.number


@provokes("unsupported-type", torch.eye(3).to_sparse())
def type_(x: Any) -> Any:
    return x.to_dense() + 1


@provokes("unsupported-operation", make=lambda: (X.clone(), memoryview(b"ab")))
def operation(x: Any, view: Any) -> Any:
    return x + view[0]


@provokes("tensor-attribute-store", X)
def tensor_store(x: Any) -> Any:
    y = x + 1
    y.data = x.double()
    return y * 2


class Tagged(torch.Tensor):
    def __hash__(self) -> int:
        return 1


@provokes("tensor-subclass", make=lambda: (torch.ones(4).as_subclass(Tagged),))
def subclass(x: Any) -> Any:
    return x * 2


@provokes("operator-failed", X)
def operator_failed(x: Any) -> Any:
    try:
        return x @ torch.ones(3)
    except RuntimeError:
        return x + 1


@provokes("uncaught-exception", X)
def uncaught(x: Any) -> Any:
    y = x + 1
    raise ValueError(len(y))


@provokes("recursion", X)
def recursion(x: Any) -> Any:
    def down(v: Any, n: int) -> Any:
        return v if n == 0 else down(v + 1, n - 1)

    return down(x, 200)


@provokes("generator-state", X)
def generator_state(x: Any) -> Any:
    g = (v * 2 for v in (x, x + 1))
    next(g)
    return g


@provokes("running-iterator", make=lambda: (X.clone(), itertools.chain([1], [2])))
def running_iterator(x: Any, numbers: Any) -> Any:
    for number in numbers:
        x = x + number
    return x


@provokes("explicit-break", X)
def explicit(x: Any) -> Any:
    y = x + 1
    pycompiler.graph_break()
    return y * 2


class Holder:
    level = 1


@provokes("mutation-unsupported", X)
def mutation(x: Any) -> Any:
    Holder.__doc__ = "another"
    return x * Holder.level


class Told:
    def __init__(self) -> None:
        self.ends: list[int] = []

    def __del__(self) -> None:
        self.ends.append(1)


@provokes("finalizer", X, [Told()])
def finalizer(x: Any, told: Any) -> Any:
    ends = told[0].ends
    told.clear()
    return x * len(ends)


@provokes("global-state", X)
def global_state(x: Any) -> Any:
    y = torch.ones(4)
    torch.set_flush_denormal(False)
    return x + y


@provokes("import", X)
def import_(x: Any) -> Any:
    import this_module_does_not_exist_at_all  # noqa: F401

    return x


@provokes("trace-budget", X)
def budget(x: Any) -> Any:
    n = 0
    for i in range(300):
        n += i
    return x + n


def test_elements_that_a_builtin_takes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Any, n: int) -> Any:
        return x + any(itertools.repeat(False, n))

    monkeypatch.setattr(context, "MOST_ELEMENTS", 500)
    for n, captured in ((400, True), (600, False)):
        compiled = pycompiler.compile(fn, backend="eager")
        for _ in range(2):
            assert torch.equal(compiled(X, n), fn(X, n))
        assert (compiled.counters()["eager_calls"] == 0) == captured and compiled.counters()["misses"] == 1


@contextlib.contextmanager
def _small_budget(kind: str) -> Iterator[None]:
    before = context.BUDGET
    context.BUDGET = 500 if kind == "trace-budget" else before
    try:
        yield
    finally:
        context.BUDGET = before


@pytest.mark.parametrize("kind", BREAK_KINDS)
@pytest.mark.captures_nothing("the whole frame runs eagerly: resuming would spend the budget again", "trace-budget")
def test_kind_is_provoked(kind: str) -> None:
    case = PROVOKERS[kind]
    world = World(case)
    eager = run(case.fn, world)
    compiled = compile_recorded(case.fn)
    with _small_budget(kind):
        compare(eager, run(compiled.fn, world))
        compare(eager, run(compiled.fn, world))
    if kind == "trace-budget":  # the whole frame runs eagerly: a resume would spend the budget again
        assert not compiled.breaks
    else:
        assert kind in compiled.breaks


@pytest.mark.parametrize("kind", BREAK_KINDS)
def test_fullgraph_raises_it(kind: str) -> None:
    """A fullgraph capture raises its first break with id, reason, the user's line and a hint."""
    case = PROVOKERS[kind]
    args, kwargs = World(case).fresh()
    compiled = pycompiler.compile(case.fn, backend="eager", fullgraph=True)
    with _small_budget(kind), pytest.raises(Unsupported) as caught:
        compiled(*args, **kwargs)
    text = str(caught.value)
    assert BREAK_KINDS[kind][0] in text
    assert BREAK_KINDS[kind][1] in text
    assert "test_breaks.py" in text


def test_table() -> None:
    assert PROVOKERS.keys() == BREAK_KINDS.keys()
    assert all(what and hint for what, hint in BREAK_KINDS.values())
    with pytest.raises(KeyError):
        Break("no-such-kind")


def test_reason_names_what_was_seen() -> None:
    seen = Break("builtin-call", "print('a')")
    assert seen.reason.endswith(": print('a')")
    assert Break("builtin-call").reason == BREAK_KINDS["builtin-call"][0]


class Iterates:
    def __iter__(self) -> Iterator[int]:
        return iter((1, 2))


def test_reasons_show_what_the_program_has() -> None:
    """Reasons show values by their own repr or type, never by a class of capture."""

    def fn(x: Any, n: int) -> Any:
        print("a step", x, 2.5, None, [1, n], {"a": 1}, range(3), slice(1, n), zip([1], [2]), Iterates(), len, len(x))
        print("l" * 500)
        return x

    x = torch.ones(3)
    pycompiler.mark_dynamic(x, 0)
    breaks = pycompiler.explain(fn, backend="eager")(x, 7).break_reasons
    shown = [record.reason.partition("captured: ")[2] for record in breaks]
    values = (
        "'a step', Tensor([s0], torch.float32), 2.5, None, list of 2, dict of 1, range(0, 3), slice object, zip object"
    )
    assert shown == [
        f"print({values}, Iterates object, builtin len, symbolic int s0)",
        f"print('{'l' * 76}...)",
    ]


def test_import_break_leaves_no_module() -> None:
    assert "this_module_does_not_exist_at_all" not in sys.modules
