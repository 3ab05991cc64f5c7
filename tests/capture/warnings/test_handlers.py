"""Warnings of a program: they enter no graph and break no graph. They appear as in eager, or the frame runs eagerly."""

from __future__ import annotations

import importlib.util
import io
import logging
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import functorch
import pytest
import torch

import pycompiler
from tests.capture.harness import ANY, check

X = torch.ones(3)


def deprecated(level: int) -> None:
    warnings.warn("do not", FutureWarning, stacklevel=level)


def here(x: Any, seen: Any = None) -> Any:
    y = x + 1
    warnings.warn("here", stacklevel=1)
    x.add_(1)
    return y * 2


def of_callers(x: Any, seen: Any = None) -> Any:
    deprecated(1)
    deprecated(2)
    warnings.warn("last", DeprecationWarning)  # noqa: B028
    return x * 2


def of_functorch(x: Any, seen: Any = None) -> Any:
    return functorch.grad(lambda x: x.sin().sum())(x) + functorch.vmap(torch.cos)(x)


class Deprecated:
    def __init__(self, n: int) -> None:
        warnings.warn("another class", DeprecationWarning, stacklevel=2)
        self.n = n


class Derived(Deprecated):
    def __init__(self) -> None:
        super().__init__(3)


def of_classes(x: Any, seen: Any = None) -> Any:
    return x * Deprecated(2).n + Derived().n


class Aliases:
    @property
    def size(self) -> int:
        warnings.warn("a property", stacklevel=2)
        return 3

    def __getattr__(self, name: str) -> int:
        warnings.warn(f"no {name}", stacklevel=2)
        return len(name)


def of_attributes(x: Any, seen: Any = None) -> Any:
    aliases = Aliases()
    return x * aliases.size + aliases.other + getattr(aliases, "size", 0)


def through(n: int) -> int:
    warnings.warn("of the line that maps", stacklevel=2)
    warnings.warn("of its caller", stacklevel=3)
    return n


def of_functions_in_c(x: Any, seen: Any = None) -> Any:
    def inner() -> Any:
        return [*map(through, (1, 2))], sorted([2, 1], key=through)

    return x * len(inner()[0])


def caught(x: Any, seen: Any = None) -> Any:
    y = x + 1
    try:
        warnings.warn("caught", stacklevel=1)
    except UserWarning:
        return y * 3
    return y * 2


def looked_at(x: Any, seen: Any = None) -> Any:
    before = 0 if seen is None else len(seen)
    warnings.warn("again", stacklevel=1)
    return x * (before + 1) + (0 if seen is None else len(seen))


Shown = list[tuple[str, type[Warning], str, int]]


def shown(fn: Callable[..., Any], action: Any, *args: Any, log: bool = False) -> tuple[Any, Shown]:
    """The result or error, and the recorded warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)
        try:
            result = fn(*args, seen) if log else fn(*args)
        except Warning as e:
            result = repr(e)
    return result, [(str(w.message), w.category, w.filename, w.lineno) for w in seen]


@pytest.mark.parametrize(
    "fn", [here, of_callers, of_functorch, of_classes, of_attributes, of_functions_in_c, caught, looked_at]
)
@pytest.mark.parametrize("first", ["always", "error"])
def test_they_are_eagers(fn: Callable[..., Any], first: Any) -> None:
    compiled = pycompiler.compile(fn)
    for action in (first, "always", "error", "ignore", "always"):
        given, wanted = X.clone(), X.clone()
        got, want = shown(compiled, action, given), shown(fn, action, wanted)
        assert str(got) == str(want)
        assert torch.equal(given, wanted)


def test_they_break_no_graph() -> None:
    for fn in (here, of_callers, of_functorch, of_classes, of_attributes, caught):
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            pycompiler.compile(fn, fullgraph=True)(X.clone())


def test_one_about_a_class_that_others_make() -> None:
    """Between the warning line and the class is a library function, or a metaclass."""

    class Meta(type):
        def __call__(cls, *args: Any) -> Any:
            return super().__call__(*args)

    class Made(Deprecated, metaclass=Meta):
        pass

    def program(x: Any) -> Any:
        made = [*map(Deprecated, (1, 2)), *sorted([2, 1], key=Deprecated(0).n.__add__)]
        return x * len(made) + Made(2).n

    compiled = pycompiler.compile(program)
    for _ in range(2):
        assert str(shown(compiled, "always", X)) == str(shown(program, "always", X))


@pytest.mark.parametrize("first", [True, False])
def test_a_frame_that_looks_at_the_log(first: bool) -> None:
    compiled = pycompiler.compile(looked_at)
    for log in (first, False, True):
        got, want = shown(compiled, "always", X, log=log), shown(looked_at, "always", X, log=log)
        assert str(got) == str(want)


def test_a_programs_way_of_showing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, told = pycompiler.compile(here), []
    compiled(X.clone())
    given = X.clone()
    monkeypatch.setattr(warnings, "showwarning", lambda *a, **k: told.append(float(given[0])))
    warnings.simplefilter("always")
    compiled(given)
    assert told == [1.0]  # before the write


def test_a_line_outside_of_what_is_captured() -> None:
    def fn(x: Any) -> Any:
        deprecated(3)
        return x * 2

    def caller(x: Any, fn: Any) -> Any:
        return fn(x)

    compiled = pycompiler.compile(fn)
    assert str(shown(caller, "always", X, compiled)) == str(shown(caller, "always", X, fn))
    assert {b.kind for b in pycompiler.explain(fn)(X).break_reasons} == {"builtin-call"}


class Count:
    told = 0


class Telling:
    """A stream of the program."""

    def write(self, text: str) -> None:
        Count.told += 1

    def flush(self) -> None: ...


class TellingFile(io.TextIOWrapper):
    def write(self, text: str) -> int:
        Count.told += 1
        return len(text)


class TellingBytes(io.BytesIO):
    def write(self, data: Any) -> int:
        Count.told += 1
        return len(data)


def told(x: Any) -> Any:
    warnings.warn("told", stacklevel=1)
    return x + Count.told


class Handler(logging.Handler):
    def emit(self, record: Any) -> None:
        Count.told += 1


def formatting(*args: Any) -> str:
    Count.told += 1
    return "told"


def stream(made: Callable[[], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(sys, "stderr", made())


def with_a_write(patch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO())
    out.write = Telling().write  # type: ignore[method-assign, assignment]
    patch.setattr(sys, "stderr", out)


def logged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(logging.getLogger("py.warnings"), "handlers", [Handler()])
    patch.setattr(warnings, "showwarning", vars(logging)["_showwarning"])


PRINTING = "_py_warnings" if sys.version_info >= (3, 14) else "warnings"


def printed(patch: pytest.MonkeyPatch) -> None:
    """Restore the printer of warnings, without pytest's recorder."""
    codes = importlib.util.find_spec(PRINTING).loader.get_code(PRINTING).co_consts  # type: ignore[union-attr]
    code = next(c for c in codes if getattr(c, "co_name", "") == "_showwarnmsg_impl")
    patch.setattr(
        warnings, "_showwarnmsg_impl", types.FunctionType(code, vars(sys.modules[PRINTING]), "_showwarnmsg_impl")
    )
    patch.setattr(warnings, "showwarning", vars(warnings)["_showwarning_orig"])


WAYS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "stream": stream(Telling),
    "file": stream(lambda: TellingFile(io.BytesIO())),
    "bytes": stream(lambda: io.TextIOWrapper(TellingBytes(), write_through=True)),
    "instance": with_a_write,
    "format": lambda patch: patch.setattr(warnings, "formatwarning", formatting),
    "logged": logged,
    "text": stream(io.StringIO),
    "wrapper": stream(lambda: io.TextIOWrapper(io.BytesIO())),
    "none": stream(lambda: None),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_runs_to_show_one(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results, compiled = [], pycompiler.compile(told)
    for fn in (told, compiled, compiled):
        Count.told = 0
        with warnings.catch_warnings(), monkeypatch.context() as patch:
            warnings.simplefilter("always")
            printed(patch)
            WAYS[way](patch)
            results.append((float(fn(torch.ones(()))), Count.told > 0))
    assert results[1:] == results[:1] * 2


def steps(x: Any, it: Any) -> Any:
    warnings.warn("p", stacklevel=1)
    return x + sum(1 for _ in it)


def first_in(x: Any, it: Any) -> Any:
    (log,) = it
    warnings.warn("p", stacklevel=1)
    return x + len(log)


ITERATORS: list[tuple[Callable[..., Any], Callable[[Any], Any]]] = [
    (steps, iter), (steps, lambda log: enumerate(iter(log))), (steps, lambda log: zip(iter(log), iter([1, 2]))),  # noqa: B905
    (steps, lambda log: map(str, iter(log))), (first_in, lambda log: iter([log])), (first_in, lambda log: [log]),
]  # fmt: skip


@pytest.mark.parametrize("fn, over", ITERATORS)
@pytest.mark.parametrize("first", [True, False])
def test_a_begun_iterator_over_the_log(fn: Any, over: Any, first: bool) -> None:
    def seen(fn: Any, log: bool) -> float:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            return float(fn(torch.ones(()), over(found if log else [])))

    compiled = pycompiler.compile(fn)
    for log in (first, not first, first):
        assert seen(compiled, log) == seen(fn, log)


def registry_of_globals(x: Any, seen: Any) -> Any:
    warnings.warn("r", stacklevel=1)
    return x + len([k for k in globals().get("__warningregistry__", {}) if k != "version"])


def registry_given(x: Any, seen: Any) -> Any:
    warnings.warn("s", stacklevel=1)
    return x + len([k for k in seen if k != "version"])


@pytest.mark.parametrize("fn", [registry_of_globals, registry_given])
def test_the_registry(fn: Any) -> None:
    results, compiled = [], pycompiler.compile(fn)
    for called in (fn, compiled, compiled):
        known: Any = globals().setdefault("__warningregistry__", {})
        known.clear()
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("default")
            results.append(float(called(torch.ones(()), known)))
    assert results == [2.0] * 3


def test_a_manager_that_records_is_captured_where_nobody_looks_at_the_list() -> None:
    def unseen(x: torch.Tensor) -> Any:
        with warnings.catch_warnings(record=True) as found:
            y = x + 1
        return y, found is None

    def left(x: torch.Tensor) -> Any:
        with warnings.catch_warnings(record=True):
            return x + 1

    def seen(x: torch.Tensor) -> Any:
        with warnings.catch_warnings(record=True) as found:
            y = x + 1
            warnings.warn("told", stacklevel=1)
        return y, [str(w.message) for w in found]

    def told(x: torch.Tensor) -> Any:
        with warnings.catch_warnings(record=True) as found:
            y = x + 1
        return y, len(found)

    check(unseen, torch.ones(2))
    check(left, torch.ones(2))
    check(seen, torch.ones(2), breaks=ANY)
    check(told, torch.ones(2), breaks="skipped-call")
