"""Entries, modes, limits, tail calls, and the references that a call holds."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pycompiler import _native
from pycompiler.ir.guards import Guard
from pycompiler.ir.source import local
from pycompiler.pipeline import reports
from tests.native.engine import equality_compiler


def double(x: Any, y: Any = 0) -> Any:
    return ("eager", x, y)


def make(**options: Any) -> Any:
    return _native.CompiledFunction(
        double, equality_compiler(double, lambda d: ("compiled", d["x"], d["y"])), **options
    )


def test_hits_and_recency() -> None:
    c = make()
    for x in (1, 2, 3):
        assert c(x) == ("compiled", x, 0)
    checks = c.counters()["guard_checks"]
    assert c(1) == ("compiled", 1, 0)  # the oldest entry: three checks
    assert c.counters()["guard_checks"] == checks + 3
    assert c(1) == ("compiled", 1, 0)  # now the first entry: one check
    assert c.counters()["guard_checks"] == checks + 4
    assert [e.guards[0].arg for e in c.entries] == [1, 3, 2]
    n = c.counters()
    assert (n["hits"], n["misses"], n["compiles"]) == (2, 3, 3)
    assert c.entries[0].hits == 2


def test_reasons_name_entry_and_guard() -> None:
    seen: list[Any] = []

    def compile(self: Any, locals_: dict[str, Any], reasons: list[tuple[int, int]]) -> _native.Entry:
        seen.append((self, [(self.entries[e].guards[g].source.arg, self.entries[e].guards[g].arg) for e, g in reasons]))
        guards = [Guard("equals", local("x"), locals_["x"]), Guard("equals", local("y"), locals_["y"])]
        return _native.Entry(guards, double, "function")

    c = _native.CompiledFunction(double, compile)
    c(1, 1), c(1, 2), c(2, 2)
    assert seen == [(c, []), (c, [("y", 1)]), (c, [("x", 1), ("x", 1)])]
    texts = c.explain_miss(9, y=9)
    assert len(texts) == 3
    assert all("L['x'] ==" in t and "seen 9" in t for _, _, t in texts)
    assert c.explain_miss(2, 2) == []
    with pytest.raises(TypeError, match="do not fit the signature"):
        c.explain_miss()


def test_none_means_never() -> None:
    calls: list[int] = []
    c = _native.CompiledFunction(double, lambda *a: calls.append(1))
    assert [c(i) for i in range(3)] == [("eager", i, 0) for i in range(3)]
    assert calls == [1]
    assert c.counters()["eager_calls"] == 3
    c.reset()
    c(1)
    assert calls == [1, 1]


def test_exceptions_of_the_compiler_propagate_and_leave_it_usable() -> None:
    fail = [True]
    good = equality_compiler(double, lambda d: "ok")

    def compile(*a: Any) -> Any:
        if fail[0]:
            raise KeyboardInterrupt("stop")
        return good(*a)

    c = _native.CompiledFunction(double, compile)
    with pytest.raises(KeyboardInterrupt):
        c(1)
    fail[0] = False
    assert c(1) == "ok"
    bad = _native.CompiledFunction(double, lambda *a: 3)
    with pytest.raises(TypeError, match="must return an Entry or None, not 3"):
        bad(1)


@pytest.fixture
def own_error() -> Iterator[None]:
    """The engine's own exception classes, without the package's replacements."""
    from pycompiler.errors import BadBackendResult, RecompileError

    _native.hand_in(RecompileError=_native.RecompileError, BadOutputs=RuntimeError)
    yield
    _native.hand_in(RecompileError=RecompileError, BadOutputs=BadBackendResult)


def test_modes(own_error: None) -> None:
    c = make()
    assert c(1)[0] == "compiled"
    c.set_mode("run")
    assert (c(1)[0], c(2)[0], c.mode) == ("compiled", "eager", "run")
    c.set_mode("eager")
    assert c(1)[0] == "eager"
    c.set_mode("error")
    assert c(1)[0] == "compiled"
    with pytest.raises(_native.RecompileError, match=r"double: no entry fits this call[\s\S]*L\['x'\] == 1: seen 2"):
        c(2)
    c.set_mode("compile")
    assert c(2)[0] == "compiled"
    with pytest.raises(ValueError, match="unknown mode"):
        c.set_mode("fast")
    assert c.counters()["compiles"] == 2


def test_recompile_error_class_can_be_chosen(own_error: None) -> None:
    class Mine(Exception):
        pass

    c = make()
    c.set_mode("error")
    _native.hand_in(RecompileError=Mine)
    with pytest.raises(Mine, match="nothing is compiled yet"):
        c(1)
    with pytest.raises(TypeError, match="unknown name Other; known: same_constant"):
        _native.hand_in(Other=Mine)


@pytest.fixture
def limits() -> Iterator[list[Any]]:
    seen: list[Any] = []
    _native.hand_in(on_limit=lambda c, reasons: seen.append((c, reasons)))
    yield seen
    _native.hand_in(on_limit=reports.on_limit)  # later tests in the process need it


def test_recompile_limit(limits: list[Any]) -> None:
    c = make(recompile_limit=2)
    assert [c(i)[0] for i in range(5)] == ["compiled", "compiled", "eager", "eager", "eager"]
    assert c(0)[0] == "compiled"
    n = c.counters()
    assert (n["compiles"], n["limit_hits"], n["eager_calls"]) == (2, 3, 3)
    assert len(limits) == 1
    assert limits[0][0] is c
    assert [e for e, _ in limits[0][1]] == [0, 1]
    c.recompile_limit = 3
    assert c(9)[0] == "compiled"
    c.reset()
    assert c(7)[0] == "compiled"
    assert c.counters()["compiles"] == 1


def test_accumulated_limit_spans_code_objects(limits: list[Any]) -> None:
    def f(x: int) -> str:
        return "eager"

    def g(x: int) -> str:
        return "eager"

    c = _native.CompiledFunction(f, equality_compiler(f, lambda d: "compiled"), accumulated_limit=3)
    first = f.__code__
    assert [c(i) for i in range(2)] == ["compiled"] * 2
    f.__code__ = g.__code__
    assert [c(i) for i in range(3)] == ["compiled", "eager", "eager"]
    f.__code__ = first
    assert c(0) == "compiled"
    assert c(5) == "eager"
    assert len(limits) == 2


def test_eager_entry_runs_the_original_under_its_guards() -> None:
    c = _native.CompiledFunction(
        double, lambda s, l, r: _native.Entry([Guard("equals", local("x"), 1)], double, "eager")
    )
    assert c(1, y=5) == ("eager", 1, 5)
    assert c(1, 5) == ("eager", 1, 5)
    assert c.counters()["hits"] == 1
    assert c.counters()["eager_calls"] == 2


def test_guards_that_fail_at_once_run_the_original() -> None:
    c = _native.CompiledFunction(
        double, lambda s, l, r: _native.Entry([Guard("equals", local("x"), 99)], double, "function")
    )
    assert c(1) == ("eager", 1, 0)
    assert c.counters()["fresh_failures"] == 1


# ---- plans ----


def plan(outputs: Any, inputs: list[Any], target: Any = None) -> Any:
    target = target or (lambda *ins: [t + 1 for t in ins])
    guards = [Guard("type_is", local("x"), torch.Tensor)]
    return _native.CompiledFunction(double, lambda s, l, r: _native.Entry(guards, target, "plan", outputs, inputs))


def test_output_templates() -> None:
    x = torch.ones(2)
    marker = object()
    template = (
        "dict",
        [
            ("a", ("tuple", [("graph", 0), ("list", [("graph", 1), ("const", marker)])])),
            (3, ("source", local("y").item(0))),
        ],
    )
    c = plan(template, [local("x"), local("x").attr("data")])
    y = [object()]
    for _ in range(2):
        r = c(x, y)
        assert list(r) == ["a", 3]
        assert isinstance(r["a"], tuple)
        assert isinstance(r["a"][1], list)
        assert torch.equal(r["a"][0], x + 1)
        assert torch.equal(r["a"][1][0], x + 1)
        assert r["a"][1][1] is marker
        assert r[3] is y[0]
    assert r["a"][1] is not c(x, y)["a"][1]
    c.set_mode("run")
    assert c(x, [])[0] == "eager"  # an output whose source cannot be read is a miss


def test_plan_errors(own_error: None) -> None:
    with pytest.raises(RuntimeError, match="returned 1 outputs; expected"):
        plan(("graph", 3), [local("x")])(torch.ones(1))
    for bad, text in (
        (("nope", 1), "unknown output kind"),
        (("graph",), "bad output template"),
        (5, "bad output template"),
    ):
        with pytest.raises(ValueError, match=text):
            plan(bad, [local("x")])(torch.ones(1))
    with pytest.raises(ZeroDivisionError):
        plan(("graph", 0), [local("x")], lambda *ins: 1 // 0)(torch.ones(1))


def test_entry_refuses() -> None:
    for args, error, text in (
        (([], double, "no"), ValueError, "unknown entry kind"),
        (([], len, "function"), TypeError, "needs a Python function"),
        (([], 3, "plan"), TypeError, "needs a callable"),
    ):
        with pytest.raises(error, match=text):
            _native.Entry(*args)
    wrong = _native.CompiledFunction(double, lambda s, l, r: _native.Entry([], lambda a: a, "function"))
    with pytest.raises(ValueError, match="takes 1 positional parameters, but the frame has 2 locals"):
        wrong(1)


def test_an_entry_belongs_to_one_layout() -> None:
    entry = _native.Entry([Guard("equals", local("x"), 1)], double, "function")
    a = _native.CompiledFunction(double, lambda *r: entry)
    assert a(1) == ("eager", 1, 0)

    def other(p: Any, x: Any) -> None: ...

    b = _native.CompiledFunction(other, lambda *r: entry)
    with pytest.raises(ValueError, match="in use by a function with other locals"):
        b(0, 1)


# ---- tail calls ----


def test_tail_calls_do_not_recurse() -> None:
    def loop(n: int, acc: int) -> Any:
        raise AssertionError("compiled")

    def step(n: int, acc: int) -> Any:
        return _native.tail_call(c, n - 1, acc + n) if n else acc

    c = _native.CompiledFunction(loop, lambda s, l, r: _native.Entry([], step, "function"), positional=True)
    assert c(100_000, 0) == 100_000 * 100_001 // 2
    assert c.counters()["tail_calls"] == 100_000
    assert c.counters()["compiles"] == 1


def test_tail_call_to_a_plain_callable_and_errors() -> None:
    def f(x: Any) -> Any: ...

    def run(target: Any) -> Any:
        return _native.CompiledFunction(f, lambda s, l, r: _native.Entry([], target, "function"))(5)

    assert run(lambda x: _native.tail_call(divmod, x, 2)) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        run(lambda x: _native.tail_call(divmod, x, 0))
    with pytest.raises(TypeError, match="f must be callable"):
        _native.tail_call(3)
    with pytest.raises(TypeError):
        _native.TailCall()
    o = object()
    t = _native.tail_call(f, o)
    r = weakref.ref(c := (lambda: None))
    t = _native.tail_call(c, o)
    del c
    assert r() is not None
    del t
    assert r() is None


@pytest.mark.parametrize(
    ("error", "answer", "is_in_frame"),
    [
        (ValueError, None, False),
        (ValueError, True, True),
        (KeyboardInterrupt, None, True),
        (KeyboardInterrupt, True, True),
    ],
)
def test_where_an_error_of_a_graph_behind_a_tail_call_is_raised(
    error: type[BaseException], answer: bool | None, is_in_frame: bool
) -> None:
    """In the frame, if `failed` wants it, or if it is an interrupt."""

    def resume(x: Any) -> Any:
        return "in the frame", type(_native.entered())

    def graph(x: Any) -> Any:
        raise error

    asked: list[type[BaseException]] = []

    def failed(raised: BaseException) -> bool | None:
        asked.append(type(raised))
        return answer

    template = ("tuple", [("graph", 0)])
    entry = _native.Entry([], graph, "plan", template, [local("x")], failed=failed)
    inner = _native.CompiledFunction(resume, lambda *_: entry, positional=True)
    calls = _native.Entry([], lambda x: _native.tail_call(inner, x), "function")
    outer = _native.CompiledFunction(lambda x: x, lambda *_: calls)
    if is_in_frame:
        assert outer(5) == ("in the frame", error)
    else:
        with pytest.raises(error):
            outer(5)
    assert asked == [error]


# ---- lifetime ----


def test_dict_weakref_and_wraps() -> None:
    c = functools.wraps(double)(make())
    assert c.__wrapped__ is double
    assert c.__name__ == "double"
    c.note = 5
    assert vars(c)["note"] == 5
    r = weakref.ref(c)
    assert r() is c
    del c
    gc.collect()
    assert r() is None
    assert "double" in repr(make())


def test_subclass() -> None:
    class Mine(_native.CompiledFunction):
        pass

    m = Mine(double, equality_compiler(double, lambda d: "compiled"))
    assert m(1) == "compiled"
    assert isinstance(m, Mine)


def test_cycles_are_collected() -> None:
    class Model:
        pass

    def build() -> Any:
        m = Model()

        def f(self: Any) -> None: ...

        def target(self: Any) -> Any:
            return m

        c = _native.CompiledFunction(
            f, lambda s, l, r: _native.Entry([Guard("id_is", local("self"), m)], target, "function")
        )
        c.back = c
        m.call = c  # type: ignore[attr-defined]
        assert c(m) is m
        assert c(m) is m
        return weakref.ref(m), weakref.ref(c), weakref.ref(c.entries[0])

    refs = build()
    gc.collect()
    assert [r() for r in refs] == [None, None, None]


def test_calls_leak_nothing() -> None:
    x, y, default = object(), [object()], object()

    def f(a: Any, b: Any = default, *args: Any, k: Any = default, **kw: Any) -> Any: ...

    def target(a: Any, b: Any, k: Any, args: Any, kw: Any) -> Any:
        return a

    c = _native.CompiledFunction(
        f, lambda s, l, r: _native.Entry([Guard("type_is", local("b").then("type"), type)], target, "function")
    )
    p = plan(("tuple", [("graph", 0), ("source", local("y").item(0)), ("const", default)]), [local("x")])
    t = torch.ones(1)

    def rounds(n: int) -> None:
        for _ in range(n):
            assert c(x, y, x, k=x, z=x) is x
            assert c(x) is x
            p(t, y)
            try:
                c()
            except TypeError:
                pass

    rounds(10)
    gc.collect()
    watched = (x, y, y[0], default, t, None, target, f, c, p)
    before = [sys.getrefcount(o) for o in watched]
    blocks = sys.getallocatedblocks()
    rounds(20_000)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 200
    after = [sys.getrefcount(o) for o in watched]
    # objects of earlier tests that end meanwhile refer to None; an error in each round would count 20,000
    allowed = [10_000 if o is None else 10 for o in watched]
    assert all(abs(a - b) < most for a, b, most in zip(after, before, allowed, strict=True)), (before, after)


def test_compile_and_reset_cycles_leak_nothing() -> None:
    c = make()

    def grown() -> int:
        gc.collect()
        blocks = sys.getallocatedblocks()
        for _ in range(500):
            c(1), c(2), c.reset()
        gc.collect()
        return sys.getallocatedblocks() - blocks

    assert min(grown() for _ in range(4)) < 100  # the first rounds fill free lists


def test_reset_while_an_entry_runs() -> None:
    def target(x: Any, y: Any) -> Any:
        c.reset()
        gc.collect()
        return ("compiled", x)

    c = _native.CompiledFunction(double, lambda s, l, r: _native.Entry([], target, "function"))
    for _ in range(3):
        assert c(1) == ("compiled", 1)


def test_compile_that_resets_is_not_stored() -> None:
    inner = equality_compiler(double, lambda d: "compiled")

    def compile(s: Any, l: Any, r: Any) -> Any:
        s.reset()
        return inner(s, l, r)

    c = _native.CompiledFunction(double, compile)
    assert c(1) == "compiled"
    assert c.entries == []


def test_call_from_its_own_compilation_is_eager() -> None:
    inner = equality_compiler(double, lambda d: "compiled")

    def compile(s: Any, l: Any, r: Any) -> Any:
        assert s(1) == ("eager", 1, 0)
        return inner(s, l, r)

    assert _native.CompiledFunction(double, compile)(1) == "compiled"


def test_an_entry_becomes_another_one() -> None:
    """`become` works before and after the engine binds the entry; its guards, closure and hit count stay."""

    def answer(k: int) -> Any:
        return lambda x, y: (k, x, y)

    guards = [Guard("equals", local("x"), 1)]
    stored = _native.Entry(guards, double, "eager")
    early = _native.Entry(guards, double, "eager")
    early.become(_native.Entry(guards, answer(7), "function"))  # before the engine has it
    waiting = [early, stored]
    c = _native.CompiledFunction(double, lambda *call: waiting.pop())
    assert c(1) == c(1) == ("eager", 1, 0) and stored.hits == 1
    stored.become(_native.Entry(guards, answer(5), "function"))
    assert c(1) == (5, 1, 0) and (stored.hits, stored.kind, len(c.entries)) == (2, "function", 1)
    assert c.counters()["misses"] == 1
    c.reset()
    assert c(1) == (7, 1, 0) and not waiting
    with pytest.raises(ValueError, match="locals"):
        stored.become(_native.Entry(guards, lambda x: x, "function"))  # it takes another number of locals
    assert c(1) == (7, 1, 0)


def test_an_entry_becomes_another_one_while_the_engine_binds_it() -> None:
    """Binding runs Python (here the key's hash), and meanwhile another thread may replace the entry."""
    stored = _native.Entry([], double, "eager")

    class Key:
        def __hash__(self) -> int:
            if stored.kind == "eager":
                stored.become(_native.Entry([], lambda x, y: "compiled", "function"))
            return 1

    stored = _native.Entry([Guard("dict_contains", local("x"), (Key(), False))], double, "eager")
    c = _native.CompiledFunction(double, lambda *call: stored)
    assert c({}) in ("compiled", ("eager", {}, 0))
    assert c({}) == "compiled" or stored.kind == "eager"


def test_a_call_that_runs_keeps_what_it_runs() -> None:
    stored = _native.Entry(
        [], lambda x, y: (stored.become(_native.Entry([], double, "eager")), gc.collect(), x)[2], "function"
    )
    c = _native.CompiledFunction(double, lambda *call: stored)
    assert c(1) == 1 and c(1) == ("eager", 1, 0)


def test_an_entry_that_ended_is_gone() -> None:
    """An ended entry serves no call, has no position and counts for no limit; a running call of it continues."""
    made: list[Any] = []

    def compile(s: Any, l: Any, r: Any) -> Any:
        def answer(x: Any, y: Any) -> Any:
            return x, len(made)

        made.append(_native.Entry([Guard("equals", local("x"), l["x"])], answer, "function"))
        reasons.append(r)
        return made[-1]

    reasons: list[Any] = []
    c = _native.CompiledFunction(double, compile, recompile_limit=2)
    assert c(1) == (1, 1) and c(2) == (2, 2)
    made[1].end()
    assert c.entries == [made[0]] and [row[:2] for row in c.explain_miss(5)] == [(0, 0)]
    assert c(2) == (2, 3) and reasons[-1] == [(0, 0)]
    assert c.entries == [made[2], made[0]] and c.counters()["limit_hits"] == 0
    with pytest.raises(RuntimeError):
        made[1].become(made[0])
    ends = _native.Entry([], lambda x, y: (ends.end(), gc.collect(), x)[2], "function")
    c = _native.CompiledFunction(double, lambda *call: ends)
    assert c(1) == 1 and c.entries == []
