"""Exception groups: their methods, and `except*`, which splits a group and raises the rest again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import config
from pycompiler.capture.semantics import exception_groups
from tests.harness.compare import assert_same

X = torch.linspace(-1, 1, 4)


@pytest.fixture(autouse=True)
def raise_internal_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "raise_internal_errors", True)


def told(e: BaseException | None, depth: int = 0) -> Any:
    """The visible state of an exception."""
    if e is None or depth > 6:
        return None
    places: list[tuple[str, int]] = []  # 3.13 has a frame that the hook compiles twice
    traceback = e.__traceback__
    while traceback is not None:
        place = (traceback.tb_frame.f_code.co_name, traceback.tb_lineno)
        places[-1:] = [place] if places and places[-1][0] == place[0] else [*places[-1:], place]
        traceback = traceback.tb_next
    inner = [told(m, depth + 1) for m in e.exceptions] if isinstance(e, BaseExceptionGroup) else None
    return (
        type(e), str(e), len(e.args), getattr(e, "__notes__", None), e.__suppress_context__, inner,
        told(e.__cause__, depth + 1), told(e.__context__, depth + 1), [p for p in places if p[0] != "outcome"],
    )  # fmt: skip


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except BaseException as e:
        return told(e)


def same(fn: Callable[..., Any], *args: Any, graphs: int | None = 1) -> None:
    """Compare eager with two compiled calls, in `graphs` graphs (None: any number)."""
    expected = outcome(fn, *args)
    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(2):
        assert_same(outcome(compiled, *args), expected, exact=True)
    if graphs is not None:
        report = pycompiler.explain(fn)(*args)
        assert (report.graph_count, report.graph_break_count) == (graphs, 0), report.break_reasons


class Coded(ExceptionGroup):
    """A group with an extra constructor argument."""

    def __new__(cls, message: str, members: Any, code: int) -> Coded:
        made = super().__new__(cls, message, members)
        made.code = code
        return made

    def derive(self, members: Any) -> Coded:
        return Coded(self.message, members, self.code + 1)


def fails(kind: int) -> None:
    if kind == 0:
        raise ExceptionGroup(
            "many", [ValueError("a"), KeyError("b"), ExceptionGroup("in", [ValueError("c"), OSError(2, "d")])]
        )
    if kind == 1:
        raise ValueError("lone")
    if kind == 2:
        raise ExceptionGroup("keys", [KeyError("k")])
    if kind == 3:
        raise Coded("coded", [TypeError("t"), ValueError("v"), KeyError("w")], 3)


def handled(x: torch.Tensor, kind: int) -> Any:
    log: list[Any] = []
    try:
        try:
            x = x + 1
            fails(kind)
        except* ValueError as e:
            log.append((type(e), e.message, len(e.exceptions), str(e), getattr(e, "code", None)))
            x = x * 2
        except* (KeyError, OSError) as e:
            log.append([type(m).__name__ for m in e.exceptions])
            x = x - 3
        else:
            log.append("else")
        finally:
            log.append("finally")
    except Exception as e:
        log.append((type(e), [str(m) for m in e.exceptions], getattr(e, "code", None)))
    return x.sin(), log


@pytest.mark.parametrize("kind", range(5))
def test_each_clause_gets_its_part(kind: int) -> None:
    same(handled, X, kind, graphs=None if kind == 1 and exception_groups.WRAPPED else 1)


def test_what_nobody_catches_is_raised_again() -> None:
    def program(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
        y = x * 2
        try:
            fails(0)
        except* ValueError as e:
            e.add_note("seen")
            log.append(len(e.exceptions))
        return y

    same(program, X, [], graphs=None)


def test_handlers_raise_too() -> None:
    def program(x: torch.Tensor, how: str) -> Any:
        log: list[Any] = []
        try:
            try:
                fails(0)
            except* ValueError as e:
                if how == "again":
                    raise
                if how == "named":
                    raise e
                if how == "new":
                    raise RuntimeError("new")
                if how == "from":
                    raise RuntimeError("from") from e
                if how == "group":
                    raise ExceptionGroup("g", [RuntimeError("x"), TypeError("y")])
            except* KeyError:
                if how != "none":
                    raise LookupError("second") from None
        except BaseException as e:
            log.append((type(e), repr(e), e.__suppress_context__, type(e.__cause__)))
            log.append([(repr(m), type(m.__cause__)) for m in e.exceptions])
        return x + 1, log

    for how in ("again", "named", "new", "from", "group", "none", "other"):
        same(program, X, how)


def test_groups_are_split_and_derived() -> None:
    def program(x: torch.Tensor) -> Any:
        log: list[Any] = []
        inner = Coded("in", [ValueError(1), TypeError(2)], 7)
        group = ExceptionGroup("out", [inner, KeyError(3)])
        group.add_note("n")
        for by in (ValueError, (TypeError, KeyError), lambda e: isinstance(e, Coded), OSError, Exception, ()):
            found, rest = group.split(by)
            log.append([repr(found), repr(rest), getattr(found, "__notes__", None), found is group, rest is group])
            log.append(repr(group.subgroup(by)))
        try:
            group.split(3)
        except TypeError as e:
            log.append(str(e))
        part = inner.subgroup(ValueError)
        log.append((part.code, part.exceptions[0] is inner.exceptions[0], inner.exceptions is inner.exceptions))
        log.append(repr(inner.derive([OSError(4)])))
        return x + 1, log

    same(program, X)


def test_the_members_of_a_group_are_what_it_was_made_of() -> None:
    def program(x: torch.Tensor) -> Any:
        errors: list[Exception] = [ValueError(1), KeyError(2)]
        group = ExceptionGroup("g", errors)
        errors.pop()
        return x + 1, len(group.exceptions), str(group), repr(group), group, errors

    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(2):
        y, count, text, shown, group, errors = compiled(X)
        assert (count, text, shown) == program(X)[1:4]
        assert len(group.exceptions) == 2
        assert group.args[1] is errors


def test_nested_clauses_and_loops() -> None:
    def program(x: torch.Tensor, kinds: tuple[int, ...]) -> Any:
        log: list[Any] = []
        for kind in kinds:
            try:
                try:
                    fails(kind)
                    log.append("fine")
                except* KeyError as e:
                    log.append(repr(e))
                    try:
                        raise TypeError("inner") from e.exceptions[0]
                    except* TypeError as t:
                        log.append((repr(t), repr(t.exceptions[0].__cause__), repr(t.exceptions[0].__context__)))
                    x = x + kind
            except* Exception as e:
                log.append(("outer", repr(e)))
        return x * 2, log

    same(program, X, (0, 1, 2, 3, 4), graphs=None if exception_groups.WRAPPED else 1)


def test_breaks_inside_of_handlers() -> None:
    def program(x: torch.Tensor, kind: int) -> Any:
        log: list[Any] = []
        try:
            try:
                fails(kind)
            except* ValueError as e:
                log.append(repr(e))
                pycompiler.graph_break()
                x = x * 2
            except* OSError as e:
                pycompiler.graph_break()
                log.append(repr(e))
                if kind == 0:
                    raise
        except ExceptionGroup as e:
            log.append((repr(e), [repr(m) for m in e.exceptions]))
        return x.sin(), log

    for kind, broken in enumerate((True, True, False, True, False)):
        same(program, X, kind, graphs=None)
        reasons = [r.kind for r in pycompiler.explain(program)(X, kind).break_reasons]
        lone = kind == 1 and exception_groups.WRAPPED
        assert reasons[:1] == (["unsupported-operation"] if lone else ["explicit-break"] if broken else [])


def test_what_is_refused() -> None:
    def program(x: torch.Tensor, given: Any) -> Any:
        log: list[Any] = []
        try:
            try:
                fails(2)
            except* given:
                log.append("caught")
        except BaseException as e:
            log.append(told_shortly(e))
        try:
            fails(1)
        except Exception as e:
            try:
                try:
                    raise e
                except given:
                    log.append("caught one")
            except BaseException as other:
                log.append(told_shortly(other))
        return x + 1, log

    for given in (int, 3, ExceptionGroup, (KeyError, 3), (KeyError, BaseExceptionGroup), (KeyError, (ValueError,)), ()):
        same(program, X, given)


def told_shortly(e: BaseException) -> tuple[type, str]:
    return type(e), str(e)


def test_groups_that_were_there_before() -> None:
    def program(x: torch.Tensor, errors: list[Exception]) -> Any:
        log: list[Any] = []
        try:
            if len(errors) > 1:
                raise ExceptionGroup("collected", errors)
            raise errors[0]
        except* ValueError as e:
            log.append(e.exceptions[0] is errors[0])
        except* KeyError as e:
            log.append(e.exceptions)
        return x + len(log), log

    lone = ValueError("a")
    for errors in ([lone], [lone, KeyError("b")], [lone, lone]):
        same(program, X, errors, graphs=None)


def _noted(x, kind):
    e = ValueError("a")
    shared = ["before"]
    said = None
    try:
        if kind == "no text":
            e.add_note("one")
            e.add_note(3)
        elif kind == "nothing":
            e.add_note(None)
        elif kind == "no list":
            e.__notes__ = ("t",)
            e.add_note("one")
        elif kind == "a list of the program's":
            e.__notes__ = shared
            e.add_note("one")
        elif kind == "deleted":
            e.add_note("one")
            del e.__notes__
            e.add_note("two")
        elif kind == "a group":
            e = ExceptionGroup("g", [ValueError(1), KeyError(2)])
            e.add_note("one")
            part, rest = e.split(ValueError)
            part.add_note("two")
            said = part.__notes__, rest.__notes__
        elif kind == "none":
            e.add_note()
    except TypeError as t:
        said = str(t)
    return x + 1, said, shared, getattr(e, "__notes__", None), repr(e)


@pytest.mark.parametrize(
    "kind", ["no text", "nothing", "no list", "a list of the program's", "deleted", "a group", "none"]
)
def test_notes(kind):
    x = torch.ones(2)
    compiled = pycompiler.compile(_noted, backend="eager", fullgraph=kind != "none")
    assert compiled(x, kind)[1:] == _noted(x, kind)[1:]
    assert compiled.counters()["compiles"] == 1 and compiled.counters()["eager_calls"] == 0
