"""CPython 3.14: template strings, lazily computed annotations, and `with` as two lookups."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="CPython 3.14")


def made(source: str) -> Callable[..., Any]:
    """The function `f` of a source that older versions cannot parse, or parse differently."""
    scope: dict[str, Any] = {"torch": torch, "pycompiler": pycompiler}
    exec(compile(textwrap.dedent(source), "<program>", "exec", dont_inherit=True), scope)
    return scope["f"]


def test_a_template_string_breaks_the_graph() -> None:
    f = made("""
        def f(x, name):
            y = x + 1
            told = t"{name!r:>{4}} of {x.ndim}"
            return y * 2, told
    """)
    result, told = pycompiler.compile(f, backend="eager")(torch.ones(2), "a")
    expected = f(torch.ones(2), "a")[1]
    assert result.tolist() == [4, 4]
    assert told.strings == expected.strings
    assert [(i.value, i.expression, i.conversion, i.format_spec) for i in told.interpolations] == [
        (i.value, i.expression, i.conversion, i.format_spec) for i in expected.interpolations
    ]


def test_annotations_of_a_function_that_is_made_are_not_computed() -> None:
    f = made("""
        def f(x):
            def inner(y: unknown = 3) -> also_unknown:
                return x * y
            return inner(2), inner
    """)
    result, inner = pycompiler.compile(f, backend="eager", fullgraph=True)(torch.ones(2))
    assert result.tolist() == [2, 2]
    assert inner().tolist() == [3, 3]
    with pytest.raises(NameError, match="unknown"):
        _ = inner.__annotations__


def test_annotations_that_are_asked_for() -> None:
    f = made("""
        def f(x):
            def inner(y: int) -> str:
                return x * y
            return inner.__annotations__, inner.__annotate__(1), inner(2)
    """)
    annotations, computed, result = pycompiler.compile(f, backend="eager")(torch.ones(2))
    assert annotations == computed == {"y": int, "return": str}
    assert result.tolist() == [2, 2]


MANAGERS = """
    class Half:
        def __exit__(self, *_): ...
    class Neither: ...
    class Asynchronous:
        async def __aenter__(self): ...
        async def __aexit__(self, *_): ...
    def f(x, which):
        manager = (Half, Neither, Asynchronous, int)[which]()
        try:
            with manager:
                return x
        except TypeError as error:
            return x + 1, str(error)
"""


@pytest.mark.parametrize("which", range(4))
def test_what_is_no_manager(which: int) -> None:
    f = made(MANAGERS)
    assert pycompiler.compile(f, backend="eager")(torch.ones(1), which)[1] == f(torch.ones(1), which)[1]


def test_breaks_where_a_manager_is_a_method_and_its_receiver_and_where_it_is_one_callable() -> None:
    f = made("""
        class Plain:
            def __init__(self, log): self.log = log
            def __enter__(self): self.log.append("in"); return 3
            def __exit__(self, *error): self.log.append(error[0]); return True
        class Odd(Plain):
            __enter__ = classmethod(lambda cls: 5)
            __exit__ = staticmethod(lambda *error: error[0] is KeyError)
        def f(x, log):
            for kind in (Plain, Odd):
                with kind(log) as n:
                    x = x * n
                    pycompiler.graph_break()
                    x = x + 1
                    raise KeyError
            return x
    """)
    logs: list[list[Any]] = [[], []]
    results = [g(torch.ones(1), log).tolist() for g, log in zip((f, pycompiler.compile(f)), logs, strict=True)]
    assert results[0] == results[1] == [21]
    assert logs[0] == logs[1]


PARTIALS = """
    import functools
    def add(a, b, c=0): return a + 2 * b + 3 * c
    holed = functools.partial(add, functools.Placeholder, 2)
    class Owner:
        method = functools.partial(add, 1)
        def __rmul__(self, other): return 100
"""


@pytest.mark.parametrize(
    "program",
    [
        "return functools.partial(add, functools.Placeholder, 2)(x)",
        "return holed(x), len(holed.args)",
        "return functools.partial(holed, 5)(x)",
        "return Owner().method(x)",
        "return Owner.method(2, x)",
        "return list(map(add, [1, 2], [x, x], strict=True))",
    ],
)
def test_partials_are_methods_and_have_places_for_arguments(program: str) -> None:
    f = made(f"{PARTIALS}\n    def f(x):\n        {program}")
    compiled = pycompiler.compile(f, backend="eager")
    assert repr(compiled(torch.ones(2))) == repr(compiled(torch.ones(2))) == repr(f(torch.ones(2)))


@pytest.mark.parametrize(
    "program",
    ["{[]: 1}", "{[1]}", "{}[[]]", "hash([])", "a, b = [1, 2, 3]", "[].index(1)", "list(*3)", "dict(**3)", "not NotImplemented",
     "list(map(len, [[]], [], strict=True))"],
)  # fmt: skip
def test_what_errors_say(program: str) -> None:
    f = made(f"""
        def f(x):
            try:
                {program}
            except Exception as error:
                return x + 1, repr(error)
    """)
    assert pycompiler.compile(f, backend="eager")(torch.ones(1))[1] == f(torch.ones(1))[1]
