"""Replaced `builtins`: a program may replace any builtin at any time, and neither torch's Python nor this compiler may
use the replacement."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.pipeline import compiler
from pycompiler.torch_compat import program_builtins
from tests.harness.compare import assert_same


def program(x: torch.Tensor, y: torch.Tensor, items: list[int]) -> tuple[torch.Tensor, int]:
    w = abs((x * 2 + y).relu() - 1)
    for a, b in zip(items, reversed(items)):
        w = w * a + b
    n = len(items) + max(items) + sum(sorted(items)) + min(items)
    if isinstance(x, torch.Tensor) and getattr(x, "ndim") == 2:
        w = w @ y.t() + n
    return w.softmax(-1).sum(0), n


def arguments() -> tuple[Any, ...]:
    torch.manual_seed(0)
    return torch.randn(3, 4), torch.randn(3, 4), [3, 1, 2]


NAMES = ("abs", "len", "max", "sum", "isinstance", "getattr", "zip", "sorted", "range", "hasattr", "any")


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Restore the builtins at once: `pytest` itself calls builtins before a fixture could end."""
    before, update, now = dict(vars(builtins)), dict.update, vars(builtins)
    try:
        yield
    finally:
        update(now, before)


def counting(name: str, calls: list[str]) -> Callable[..., Any]:
    real = getattr(builtins, name)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return real(*args, **kwargs)

    return replaced


@pytest.mark.parametrize("backend", ("eager", "native"))
@pytest.mark.parametrize("name", NAMES)
def test_who_counts_the_calls_of_a_builtin_counts_the_programs(name: str, backend: str) -> None:
    """The builtin is replaced before the first call, or between two calls."""
    compiled, early = pycompiler.compile(program, backend=backend), pycompiler.compile(program, backend=backend)
    x, y, items = arguments()
    wanted = program(x, y, items)
    assert_same(early(x, y, items), wanted)
    calls: list[str] = []
    found, counts = [], []
    with put_back():
        setattr(builtins, name, counting(name, calls))
        for fn in (program, compiled, early, compiled):
            calls.clear()
            found.append(fn(x, y, items))
            counts.append(calls.copy())
    for result, count in zip(found, counts, strict=True):
        assert_same(result, wanted)
        assert count == counts[0]
    assert_same(compiled(x, y, items), wanted)
    assert_same(compiled(x, y, items), wanted)
    assert compiled.counters()["hits"] == 1


@pytest.mark.parametrize("name", ("abs", "len", "max", "min", "next", "isinstance", "hasattr", "getattr", "divmod"))
def test_nothing_is_kept_of_a_compile_during_which_a_builtin_was_replaced(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel compiled with a wrong `abs` of strides would read other memory."""
    real, compile_graph = getattr(builtins, name), compiler.compile_graph

    def wrong(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs)
        kind = found.__class__
        return not found if kind is bool else found * 3 if kind in (int, float, torch.Tensor) else found

    def while_replaced(*args: Any) -> Any:
        setattr(builtins, name, wrong)
        return compile_graph(*args)

    monkeypatch.setattr(compiler, "compile_graph", while_replaced)
    compiled = pycompiler.compile(program)
    with put_back(), contextlib.suppress(Exception):  # the program itself keeps the replacement
        compiled(*arguments())
    monkeypatch.undo()
    assert_same(compiled(*arguments()), program(*arguments()))
    assert_same(compiled(*arguments()), program(*arguments()))
    assert compiled.counters()["hits"] == 1


def test_a_backward_that_would_be_compiled_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x.abs()).sum(0)

    x = torch.randn(4, 5, requires_grad=True)
    (wanted,) = torch.autograd.grad(fn(x).sum(), x)
    out = pycompiler.compile(fn, fullgraph=True)(x).sum()
    calls: list[str] = []
    with put_back():
        builtins.abs = counting("abs", calls)
        (found,) = torch.autograd.grad(out, x)
    torch.testing.assert_close(found, wanted)
    assert calls == []
    assert "is not compiled and runs operator by operator: the program has replaced builtins.abs" in caplog.text


def test_one_graph_or_an_error() -> None:
    compiled, raised = pycompiler.compile(program, fullgraph=True), []
    with put_back():
        builtins.len = counting("len", [])
        try:
            compiled(*arguments())
        except pycompiler.exc.Unsupported as e:
            raised.append(e)
    assert "the program has replaced builtins.len" in str(raised[0])
    assert_same(compiled(*arguments()), program(*arguments()))


def test_what_shells_and_import_hooks_replace_is_no_reason() -> None:
    calls: list[str] = []
    compiled = pycompiler.compile(program, fullgraph=True)
    with put_back():
        for name in ("print", "open", "__import__", "input"):
            setattr(builtins, name, counting(name, calls))
        found = compiled(*arguments())
    assert_same(found, program(*arguments()))
    assert compiled.counters()["compiles"] == 1


def test_the_packages_functions_have_builtins_of_their_own() -> None:
    assert compiler.FrameCompiler.__call__.__builtins__ is program_builtins.OWN  # type: ignore[attr-defined]


@pytest.mark.parametrize("backend", ("eager", "native"))
def test_a_function_that_replaces_one_itself(backend: str) -> None:
    def replaces(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
        real = builtins.sum
        builtins.sum = lambda v: real(v) + 1  # type: ignore[assignment]
        try:
            seen.append(sum([1]))
            return x * sum([1, 1])
        finally:
            builtins.sum = real

    def adds(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
        builtins.added_by_a_test = x  # type: ignore[attr-defined]
        y = added_by_a_test * 2  # type: ignore[name-defined]  # noqa: F821
        del builtins.added_by_a_test  # type: ignore[attr-defined]
        seen.append(hasattr(builtins, "added_by_a_test"))
        return y  # type: ignore[no-any-return]

    for fn in (replaces, adds):
        compiled = pycompiler.compile(fn, backend=backend)
        for i in range(3):
            ours, theirs = list[int](), list[int]()
            assert torch.equal(compiled(torch.ones(1) * i, ours), fn(torch.ones(1) * i, theirs))
            assert ours == theirs
        assert vars(builtins)["sum"] is program_builtins.OWN["sum"]
