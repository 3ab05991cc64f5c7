"""Tracebacks of a compiled program match eager's: functions, lines, columns, hints."""

import functools
import io
import sys
import traceback
from contextlib import contextmanager, redirect_stderr

import pytest
import torch

import pycompiler

a_global_of_this_module = 1


def inner(x, y):
    return x.shape[0] + missing(y)  # noqa: F821


def missing_of_module():
    return a_global_of_this_modul  # noqa: F821


def text(error):
    """The text that CPython prints at exit for the exception, hints included."""
    out = io.StringIO()
    with redirect_stderr(out):
        sys.__excepthook__(type(error), error, error.__traceback__)
    return out.getvalue().partition("\n  File")[2]


def caught_from_a_call(x):
    y = x + 1
    try:
        inner(x, y)
    except NameError as e:
        return y, e


def hint_of_a_local(x):
    def f():
        blech, more = x + 1, None
        return bluch  # noqa: F821

    try:
        f()
    except NameError as e:
        return x + 1, e


def hint_of_a_global(x):
    try:
        missing_of_module()
    except NameError as e:
        return x + 1, e


def hint_of_a_builtin(x):
    try:
        ZeroDivisionErrrrr  # noqa: F821, B018
    except NameError as e:
        return x + 1, e


def behind_a_break(x):
    blech = x + 1
    pycompiler.graph_break()
    try:
        return blech + bluch  # noqa: F821
    except NameError as e:
        return blech, e


def a_hint_whose_variable_is_dead(x):
    blech = x + 1
    y = blech + 1
    pycompiler.graph_break()
    try:
        (y.sum(), bluch)  # noqa: F821, B018
    except NameError as e:
        return y, e


def chained(x):
    try:
        try:
            raise KeyError("first")
        except KeyError as e:
            raise ValueError("second") from e
    except ValueError as e:
        return x + 1, e


def raised_again(x):
    try:
        try:
            inner(x, x)
        except NameError:
            x = x + 1
            raise
    except NameError as e:
        return x, e


def by_way_of_c(x):
    def step(a, b):
        raise ValueError(a, b)

    try:
        functools.reduce(step, [1, 2, 3])
    except ValueError as e:
        return x + 1, e


def by_way_of_a_generator(x):
    def elements():
        yield 1
        raise ValueError("in a generator")

    try:
        return x, list(elements())
    except ValueError as e:
        return x + 1, e


def by_way_of_a_manager(x):
    @contextmanager
    def managed():
        yield x + 1

    try:
        with managed() as y:
            raise ValueError("inside")
    except ValueError as e:
        return y, e


def a_closure(x):
    seen = [x]

    def f(y):
        def g():
            return seen[0] + y + unknown  # noqa: F821

        return g()

    try:
        f(x)
    except NameError as e:
        return x + 1, e


def several_lines(x):
    try:
        return x, (
            1
            + len(
                3,
            )
        )
    except TypeError as e:
        return x + 1, e


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(
    "fn",
    [
        caught_from_a_call, hint_of_a_local, hint_of_a_global, hint_of_a_builtin, behind_a_break, a_hint_whose_variable_is_dead,
        chained, raised_again, by_way_of_c, by_way_of_a_generator, by_way_of_a_manager, a_closure, several_lines,
    ],
)  # fmt: skip
def test_what_is_printed_is_eagers(fn, backend):
    x = torch.ones(3)
    y, error = fn(x)
    compiled = pycompiler.compile(fn, backend=backend)
    for _ in range(2):
        z, seen = compiled(x)
        assert torch.equal(y, z) and text(seen) == text(error)
        assert traceback.format_exception(seen)[1:] == traceback.format_exception(error)[1:]
    broken = fn in (behind_a_break, a_hint_whose_variable_is_dead)
    report = pycompiler.explain(fn)(x)
    assert report.graph_break_count == broken and report.graph_count == 1, report.break_reasons


def _broken(x, fails):
    pycompiler.graph_break()
    if fails:
        raise ValueError(x.shape[0])
    return x + 1


def _around(x, fails, k):
    if k:
        return _around(x, fails, k - 1)
    y = _broken(x, fails == 1)
    if fails == 2:
        raise ValueError("behind it")
    return y


def _outermost(x, fails):
    return _around(x, fails, 2) * 2


def _handled(x, fails):
    try:
        return _outermost(x, fails)
    except ValueError as e:
        return e


@pytest.mark.parametrize("fn", [_outermost, _handled])
@pytest.mark.parametrize("fails", [0, 1, 2])
def test_frames_between_a_break_and_the_root_are_in_tracebacks(fn, fails):
    """Such frames wait for the result; in the meantime they are not Python frames."""
    compiled = pycompiler.compile(fn, backend="eager")
    seen = []
    for call in (fn, compiled, compiled):
        try:
            made = call(torch.ones(3), fails)
        except ValueError as e:
            made = e
        seen.append(made.tolist() if not fails else traceback.format_exception(made)[-8:])
    assert seen[1] == seen[0] == seen[2]
    if fails:
        assert sum("in _around" in part for part in "".join(seen[0]).splitlines()) == 3
    report = pycompiler.explain(_outermost)(torch.ones(3), 0)
    assert report.graph_count == 2 and {r.kind for r in report.break_reasons} == {"explicit-break"}


def test_a_frame_behind_a_break_has_the_functions_name():
    def fn(x):
        y = x + 1
        pycompiler.graph_break()
        here = sys._getframe()
        return y * 2, here.f_code.co_name, [f.name for f in traceback.extract_stack()][-1]

    assert pycompiler.compile(fn, backend="eager")(torch.ones(2))[1:] == ("fn", "fn")


def test_a_module_shows_the_lines_of_its_loader():
    """`linecache` looks for the loader in the globals of the traceback's frame."""

    class Loader:
        def get_source(self, name):
            return "def f():\n    raise ValueError  # of a loader\n"

    scope = {"__name__": "of_a_loader", "__loader__": Loader()}
    exec(compile(Loader().get_source(""), "of_a_loader.py", "exec"), scope)
    f = scope["f"]

    def fn(x):
        try:
            f()
        except ValueError as e:
            return x + 1, e

    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    assert "# of a loader" in "".join(traceback.format_exception(fn(torch.ones(2))[1]))
    assert "# of a loader" in "".join(traceback.format_exception(compiled(torch.ones(2))[1]))
