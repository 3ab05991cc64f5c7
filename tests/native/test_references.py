"""Each kind of call, repeated, changes neither reference counts nor the number of allocated blocks."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from native.engine import equality_compiler
from pycompiler import _native
from pycompiler.ir.guards import Guard, TensorSpec, global_state
from pycompiler.ir.plan import Aten, Plan, SlotRef
from pycompiler.ir.source import const_source, local

Call = Callable[[], object]
CALLS = 60
aten = torch.ops.aten


class Token:
    """An argument and result whose reference count is checked."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


class Raises(Token):
    def __eq__(self, other: object) -> bool:
        raise KeyError("the user's")

    __hash__ = object.__hash__

    def __len__(self) -> int:
        raise KeyError("the user's")


TOKEN = Token()
KEY = Token()
CASES: dict[str, Callable[[], Call]] = {}


def case(make: Callable[[], Call]) -> Callable[[], Call]:
    """`make()` gives the call that is repeated."""
    CASES[make.__name__] = make
    return make


def function(x: Any, n: int = 3, *rest: Any, key: Any = KEY, **more: Any) -> Any:
    return (x, n)


def compiled(*guards: Guard, kind: str = "function", target: Any = None, **entry: Any) -> Any:
    """A callable whose only entry has these guards; a target of kind function returns its first argument."""

    def run(x: Any, n: Any, key: Any, rest: Any, more: Any) -> Any:
        return x

    made = _native.Entry(list(guards), target or run, kind, **entry)
    result = _native.CompiledFunction(function, lambda *_: made, recompile_limit=1)
    result(TOKEN)
    return result


@case
def hit() -> Call:
    call = compiled(Guard("type_is", local("x"), Token), Guard("equals", local("n"), 3))
    return lambda: call(TOKEN, key=KEY, other=TOKEN)


@case
def hit_with_recorded_guards() -> Call:
    holder = type("Holder", (), {})()
    holder.a = {"b": [TOKEN, 1]}
    part = local("x").then("instance_dict").dict_item("a").dict_item("b")
    call = compiled(Guard("length", part, 2), Guard("type_is", part.then("item", 0), Token))
    return lambda: (call(holder), call(holder), setattr(holder, "c", object()), call(holder))


@case
def hit_that_asks() -> Call:
    source = local("x").then("attr", "token")
    call = compiled(Guard("type_is", source, Token), Guard("truth", local("more"), False))
    holder = type("Holder", (), {"token": TOKEN})()
    return lambda: call(holder)


@case
def miss_past_the_limit() -> Call:
    call = compiled(Guard("equals", local("n"), 3))
    return lambda: call(TOKEN, 4)


@case
def miss_and_compilation() -> Call:
    call = _native.CompiledFunction(function, equality_compiler(function, lambda d: d["x"]))

    def run() -> None:
        for n in range(3):
            call(TOKEN, n)
        call.reset()

    return run


@case
def error_in_a_guard() -> Call:
    call = compiled(Guard("length", local("x"), 2), Guard("equals", local("x"), TOKEN))
    odd = Raises()
    return lambda: call(odd)


@case
def error_in_the_compiler() -> Call:
    def compile(*_: Any) -> Any:
        raise KeyError("the backend's")

    return raises(KeyError, _native.CompiledFunction(function, compile))


@case
def error_in_the_target() -> Call:
    def five(x: Any, n: Any, key: Any, rest: Any, more: Any) -> Any:
        raise KeyError("the program's")

    call = _native.CompiledFunction(function, lambda *_: _native.Entry([], five, "function"))
    return raises(KeyError, call)


@case
def wrong_arguments() -> Call:
    call = compiled()
    return raises(TypeError, lambda x: call(key=x))


@case
def eager_entry() -> Call:
    call = compiled(Guard("type_is", local("x"), Token), kind="eager")
    return lambda: call(TOKEN)


@case
def never_compiled() -> Call:
    call = _native.CompiledFunction(function, lambda *_: None)
    return lambda: call(TOKEN, n=2)


@case
def callable_as_plan() -> Call:
    outputs = ("dict", [(KEY, ("graph", 0)), ("c", ("const", TOKEN)), ("s", ("list", [("source", local("x"))]))])
    call = compiled(kind="plan", target=lambda *given: given, inputs=[local("x")], outputs=outputs)
    return lambda: call(TOKEN)


@case
def wrong_outputs() -> Call:
    inner = _native.Entry([], lambda *given: 3, "plan", ("graph", 0), [local("x")])
    return raises(RuntimeError, _native.CompiledFunction(function, lambda *_: inner))


@case
def plan_in_an_entry() -> Call:
    x = torch.ones(3)
    guards = [Guard("tensor", local("x"), TensorSpec.of(x)), Guard("global_state", const_source(None), global_state())]
    entry = _native.Entry(guards, double(), "plan", ("tuple", [("graph", 0), ("source", local("x"))]), [local("x")])
    call = _native.CompiledFunction(function, lambda *_: entry)
    call(x)
    return lambda: (call(x), call(x))


@case
def plan_by_itself() -> Call:
    plan, x = double(), torch.ones(3)
    return lambda: (plan(x), plan([x]), plan.routes)


@case
def error_in_a_plan() -> Call:
    plan = double()
    return lambda: (raises(TypeError, plan)(), raises(TypeError, lambda x: plan(x, x, x))())


@case
def plan_made_and_dropped() -> Call:
    return double


@case
def tail_call() -> Call:
    def countdown(x: Any, n: int) -> Any:
        return (x, n)

    call: Any = None

    def run(x: Any, n: int) -> Any:
        return _native.tail_call(call, x, n - 1) if n else _native.tail_call(divmod, 7, 2)

    call = _native.CompiledFunction(countdown, lambda *_: _native.Entry([], run, "function"), positional=True)
    return lambda: call(TOKEN, 3)


@case
def closure() -> Call:
    def outer(token: Any) -> Any:
        def inner(x: Any) -> Any:
            return (x, token)

        return inner

    target, other = outer(TOKEN), outer(KEY)
    call = _native.CompiledFunction(target, lambda *_: _native.Entry([], other, "function"))
    return lambda: call(1)


@case
def frame_hook() -> Call:
    def callee(x: Any) -> Any:
        return (x, 1)

    def target(x: Any) -> Any:
        return callee(x)

    inner = _native.CompiledFunction(callee, lambda *_: _native.Entry([], lambda x: (x, 2), "function"))
    hook = _native.FrameHook(lambda code, function: inner if code is callee.__code__ else None)
    call = _native.CompiledFunction(
        lambda x: x, lambda *_: _native.Entry([], lambda x: target(x), "function", frame_hook=hook)
    )
    return lambda: call(TOKEN)


@case
def explain_miss() -> Call:
    call = compiled(Guard("equals", local("n"), 3), Guard("type_is", local("x"), Token))
    return lambda: (call.explain_miss(TOKEN, 4), call.explain_miss(TOKEN), call.entries, call.counters(), repr(call))


@case
def refused() -> Call:
    call = compiled(Guard("equals", local("n"), 3))
    call.set_mode("error")
    return raises(RuntimeError, lambda x: call(x, 5))


@case
def guard_tree() -> Call:
    guards = [Guard("dict_keys", local("x"), ("a", 2)), Guard("equals", local("x").dict_item("a"), (1, 2.5))]

    def run() -> None:
        tree = _native.GuardTree(guards, ["x"])
        for value in ({"a": (1, 2.5), 2: 3}, {"a": TOKEN}, {Raises(): 1}, TOKEN):
            tree.check({"x": value}, {})

    return run


@case
def made_and_dropped() -> Call:
    def run() -> None:
        call = _native.CompiledFunction(function, lambda *_: None, name="n")
        vars(call)["me"] = call
        compiled(Guard("id_is", local("x"), TOKEN))

    return run


def double() -> _native.Plan:
    steps = [Aten(aten.add.Tensor, (SlotRef(0), SlotRef(0)), {}, (1,))]
    return _native.Plan(Plan(1, 2, [*steps], [1], name="double"))


def raises(error: type[Exception], call: Callable[[Any], object]) -> Call:
    def run() -> None:
        try:
            call(TOKEN)
        except error:
            return
        raise AssertionError(f"no {error.__name__}")

    return run


def counts() -> list[int]:
    gc.collect()
    watched = (TOKEN, KEY, Token, function, None, True, (), "x")
    return [sys.getallocatedblocks(), len(gc.get_objects()), *map(sys.getrefcount, watched)]


@contextlib.contextmanager
def collected() -> Iterator[None]:
    """The collector runs only on request, and scans only new objects, which is quick."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def leaks(call: Call) -> list[int] | None:
    """The growth of each count in the last of many rounds, if every round grew; None after a round without growth.

    Caches grow for a while, at a falling rate; a leak of a call grows in each round.
    """
    grown: list[int] = []
    with collected():
        for _ in range(25):
            before = counts()
            for _ in range(CALLS):
                call()
            grown = [after - b for after, b in zip(counts(), before, strict=True)]
            if max(map(abs, grown)) < CALLS // 4:
                return None
    return grown


@pytest.mark.filterwarnings("ignore:.*reached its recompile limit")
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left(name: str) -> None:
    assert leaks(CASES[name]()) is None


@pytest.mark.unsanitized("with PYTHONMALLOC=malloc CPython counts no blocks")
def test_a_leak_would_be_seen() -> None:
    kept: list[Any] = []
    assert leaks(lambda: kept.append(object())) is not None
    assert leaks(lambda: kept.append(TOKEN)) is not None
