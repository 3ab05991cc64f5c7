"""Argument binding against CPython: the same locals, the same TypeErrors."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pycompiler import _native
from tests.native.engine import equality_compiler

SIGNATURES = [
    "", "a", "a, b", "a=1", "a, b=2", "a=1, b=2", "a, /", "a, /, b", "a=1, /", "a, /, b=2", "a=1, /, b=2", "a, b, /",
    "*args", "a, *args", "a=1, *args", "a, b=2, *args", "a, /, *args",
    "**kw", "a, **kw", "a=1, **kw", "a, /, **kw", "a, b=2, /, **kw", "a, /, b, **kw",
    "*, k", "*, k=3", "*, k, m=4", "*, k=3, m", "a, *, k", "a, *, k=3", "a=1, *, k", "a, b=2, *, k, m=4",
    "a, /, *, k", "a, /, b=2, *, k=3", "*args, k", "*args, k=3", "a, *args, k", "a, *args, k=3", "a=1, *args, k, m=4",
    "*args, **kw", "a, *args, **kw", "a=1, *args, **kw", "a, /, b=2, *args, **kw", "a, *args, k, **kw",
    "a, *args, k=3, **kw", "a, /, b, *args, k, m=4, **kw", "*, k, **kw", "*, k=3, **kw", "a, *, k, **kw",
    "self, a", "a, b, c, d, e, f, g, h", "a, b, c=1, d=2, e=3, f=4",
]  # fmt: skip

CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (args, dict(zip(names, range(100, 100 + len(names)), strict=True)))
    for args in ((), (10,), (10, 11), (10, 11, 12), tuple(range(10, 18)), tuple(range(10, 19)))
    for n in range(4)
    for names in itertools.combinations(("a", "b", "k", "m", "z"), n)
]


def outcome(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return f(*args, **kwargs)
    except TypeError as e:
        return f"TypeError: {e}"


def make(signature: str) -> tuple[Any, Any]:
    scope: dict[str, Any] = {}
    exec(f"def f({signature}): return dict(locals())", scope)
    fn = scope["f"]
    # The generated code has no signature that could raise: it receives the engine's slots.
    compiled = _native.CompiledFunction(
        fn, equality_compiler(fn, lambda d: d), recompile_limit=10**6, accumulated_limit=10**6
    )
    return fn, compiled


@pytest.mark.parametrize("signature", SIGNATURES)
def test_binds_as_cpython(signature: str) -> None:
    fn, compiled = make(signature)
    bound = 0
    for args, kwargs in CALLS:
        want = outcome(fn, args, kwargs)
        got = outcome(compiled, args, kwargs)
        assert got == want, (signature, args, kwargs)
        if isinstance(want, dict):
            bound += 1
            assert list(got) == list(want)
    counters = compiled.counters()
    assert counters["eager_calls"] == 0
    assert counters["compiles"] + counters["hits"] == bound


def test_defaults_are_read_at_each_call() -> None:
    fn, compiled = make("a=1, *, k=3")
    assert compiled() == {"a": 1, "k": 3}
    fn.__defaults__ = (7,)
    fn.__kwdefaults__ = {"k": 8}
    assert compiled() == {"a": 7, "k": 8}
    fn.__defaults__ = None
    assert outcome(compiled, (), {}) == outcome(fn, (), {}) != {}
    fn.__defaults__ = (1, 2, 3)  # more than the parameters: CPython takes the last ones
    assert compiled() == fn() == {"a": 3, "k": 8}
    fn.__kwdefaults__ = None
    assert outcome(compiled, (1,), {}) == outcome(fn, (1,), {})


def test_code_replaced() -> None:
    fn, compiled = make("a, b=2")
    assert compiled(5) == {"a": 5, "b": 2}
    old = fn.__code__
    fn.__code__ = (lambda z, y=9: (z, y)).__code__
    assert compiled(1) == {"z": 1, "y": 2}
    assert compiled.counters()["compiles"] == 2
    fn.__code__ = old
    assert compiled(5) == {"a": 5, "b": 2}
    assert compiled.counters()["compiles"] == 2
    assert len(compiled.entries) == 2


def test_keyword_names_that_are_not_interned() -> None:
    fn, compiled = make("alpha, *, beta")
    name = "".join(["be", "ta"])
    assert compiled(1, **{name: 2}) == {"alpha": 1, "beta": 2}
    assert outcome(compiled, (1,), {"alpha": 2, "beta": 3}) == outcome(fn, (1,), {"alpha": 2, "beta": 3})


def test_arguments_keep_identity() -> None:
    def f(x: Any, *args: Any, **kw: Any) -> Any:
        return x, args, kw

    seen: list[Any] = []

    def body(d: dict[str, Any]) -> Any:
        seen.append(d)
        return d["x"]

    compiled = _native.CompiledFunction(f, equality_compiler(f, body))
    o, p = object(), object()
    assert compiled(o, p, q=p) is o
    assert seen[0]["args"] == (p,)
    assert seen[0]["kw"] == {"q": p}


class Host:
    def method(self, a: int, b: int = 2) -> Any:
        return ("eager", self, a, b)

    def __init__(self) -> None:
        self.tag = 1


Host.method = _native.CompiledFunction(
    Host.method, equality_compiler(Host.method, lambda d: ("compiled", d["self"], d["a"], d["b"]))
)  # type: ignore[assignment]


def test_binds_as_a_method() -> None:
    h = Host()
    assert h.method(1) == ("compiled", h, 1, 2)
    bound = h.method
    assert bound(3, b=4) == ("compiled", h, 3, 4)
    assert Host.method(h, 5) == ("compiled", h, 5, 2)  # type: ignore[arg-type]
    assert bound.__self__ is h
    assert isinstance(Host.__dict__["method"], _native.CompiledFunction)


def test_free_variables_travel_as_cells() -> None:
    def outer(n: int) -> Any:
        def f(x: int) -> int:
            nonlocal n
            n += 1
            return x + n

        return f

    def compile(c: Any, locals_: dict[str, Any], reasons: Any) -> _native.Entry:
        assert list(locals_) == ["x", "n"]
        assert locals_["n"] is c.fn.__closure__[0]
        return _native.Entry([], target, "function")

    def target_body(x: int) -> Any:
        return ("compiled", x)

    for style in ("cell argument", "free variable"):
        f = outer(10)
        if style == "cell argument":

            def target(x: int, n: Any) -> Any:
                n.cell_contents += 1
                return ("compiled", x + n.cell_contents)
        else:
            target = outer(-1000)  # the same free variables; the engine gives it f's cells
        c = _native.CompiledFunction(f, compile)
        first, second = c(1), c(1)
        if style == "cell argument":
            assert (first, second) == (("compiled", 12), ("compiled", 13))
        else:
            assert (first, second) == (12, 13)
        assert f.__closure__[0].cell_contents == 12
        assert f(0) == 13


def test_positional_only_form() -> None:
    def resume(a: int, b: int = 2) -> int:
        return a + b

    c = _native.CompiledFunction(resume, equality_compiler(resume, lambda d: d), positional=True, name="resume_7")
    assert c(1, 2) == {"a": 1, "b": 2}
    for bad in (lambda: c(1), lambda: c(1, b=2), lambda: c(1, 2, 3)):
        with pytest.raises(TypeError, match="resume_7 takes exactly 2 positional arguments"):
            bad()


def test_constructor_refuses() -> None:
    def f() -> None: ...

    compile = equality_compiler(f, lambda d: d)
    for args, kwargs, text in (
        ((len, compile), {}, "needs a Python function"),
        ((f, 3), {}, "compile must be callable"),
        ((f,), {}, "exactly two positional"),
        ((f, compile), {"bogus": 1}, "unexpected keyword argument 'bogus'"),
    ):
        with pytest.raises(TypeError, match=text):
            _native.CompiledFunction(*args, **kwargs)
    with pytest.raises(ValueError, match="must not be negative"):
        _native.CompiledFunction(f, compile, recompile_limit=-1)
