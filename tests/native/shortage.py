"""A program: the n-th allocation of Python's, or of the engine's, fails while compiled functions are called, for each n.

Run by `test_shortage.py`; `PYTHONPATH=.:tests python tests/native/shortage.py [scene ...]` tries every n, and prints one line of JSON a scene.  A call in which memory
is short ends with a MemoryError or with the right value; the next call, in which it is not, gives the right value; nothing is
left behind.  Of two ways memory is short: the n-th allocation alone fails, or all from the n-th on.

Of Python's, what fails is what its allocators are asked for (`_testcapi.set_nomemory`): objects, of CPython's and torch's as well.  Of the
engine's, it is what Rust's allocator is asked for (`guards-rs/src/ffi/shortage.rs`): the engine's reserve serves the request, and the call
ends with a MemoryError.
"""

from __future__ import annotations

import _testcapi
import argparse
import collections
import gc
import json
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import pycompiler
from native.test_references import KEY, TOKEN, Token, collected, compiled
from pycompiler import _native
from pycompiler.ir.guards import Guard, TensorSpec
from pycompiler.ir.plan import Aten, Plan, SlotRef
from pycompiler.ir.source import local
from pycompiler.symbolic.expr import Expr

aten = torch.ops.aten
MOST = 5000  # allocations of one call
FEW = 60  # each n up to this one is tried, whatever the step
ROUNDS = 8  # caches grow in the first ones; a leak grows in each
SHORT = (MemoryError, torch.OutOfMemoryError)
# ... and torch's messages where it drops that error: for a tuple that it could not create, and an argument that it
# could not read
TORCHS_WORDS = ("Could not allocate", "aten::as_strided() Expected a value of type")


@dataclass
class Scene:
    """`call()` gives a value that `right` accepts; it leaves no reference to `watched`, and at most `lost` blocks."""

    call: Callable[[], Any]
    right: Callable[[Any], bool]
    watched: tuple[Any, ...] = (TOKEN, KEY, Token)
    lost: int = 0
    # CPython 3.11 loses errors when all allocations fail: it has sixteen MemoryErrors ready. Scenes that handle an
    # error in Python let a single allocation fail.
    all_too: bool = True


SCENES: dict[str, Callable[[], Scene]] = {}


def scene(make: Callable[[], Scene]) -> Callable[[], Scene]:
    SCENES[make.__name__] = make
    return make


def is_close(a: Any, b: Any) -> bool:
    """A graph that raises may be replaced by eager execution, whose last bits differ."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.allclose(a, b)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(is_close, a, b))
    if isinstance(a, dict):
        return type(b) is dict and a.keys() == b.keys() and all(is_close(a[k], b[k]) for k in a)
    return bool(a == b)


def gives(call: Callable[[], Any], *watched: Any, **more: Any) -> Scene:
    """A scene whose call must give the same value each time."""
    want = call()
    return Scene(call, lambda got: is_close(want, got), (TOKEN, KEY, Token, *watched), **more)


def compiles(call: Callable[[], Any], *watched: Any, **more: Any) -> Scene:
    call()
    return gives(call, *watched, all_too=False, **more)


# -- the engine by itself ---------------------------------------------------------------------------------------------


@scene
def hit() -> Scene:
    call = compiled(Guard("type_is", local("x"), Token), Guard("equals", local("n"), 3))
    return gives(lambda: call(TOKEN, key=KEY, other=TOKEN), call)


@scene
def hit_that_is_recorded() -> Scene:
    holder = type("Holder", (), {})()
    holder.a = {"b": [TOKEN, 1]}
    part = local("x").then("instance_dict").dict_item("a").dict_item("b")
    call = compiled(Guard("length", part, 2), Guard("type_is", part.then("item", 0), Token))
    return gives(lambda: (call(holder), call(holder), setattr(holder, "c", object()), call(holder))[0], call, holder)


@scene
def hit_that_asks() -> Scene:
    call = compiled(Guard("type_is", local("x").then("attr", "token"), Token), Guard("truth", local("more"), False))
    holder = type("Holder", (), {"token": TOKEN})()
    return gives(lambda: call(holder) is holder or call(holder)[0] is holder, call, holder)


@scene
def hit_that_makes_numbers() -> Scene:
    size = local("x").then("size", 0)
    call = compiled(Guard("equals", size, 10**6), Guard("equals", local("n").then("minus"), -(10**6)))
    x = torch.empty(10**6, dtype=torch.bool)
    return Scene(lambda: call(x, 10**6), lambda got: got is x or (got[0] is x and got[1] == 10**6), (call, x))


@scene
def miss_past_the_limit() -> Scene:
    call = compiled(Guard("equals", local("n"), 3))
    return gives(lambda: call(TOKEN, 4), call)


@scene
def miss_and_insertion() -> Scene:
    def function(x: Any, n: int) -> Any:
        return (x, n)

    def compile(_: Any, given: dict[str, Any], reasons: Any) -> _native.Entry:
        return _native.Entry([Guard("equals", local("n"), given["n"])], lambda x, n: (x, n), "function")

    call = _native.CompiledFunction(function, compile)

    def run() -> Any:
        try:
            return [call(TOKEN, n) for n in range(3)], len(call.entries), call.counters()["misses"]
        finally:
            call.reset()

    return gives(run, call, function)


@scene
def stopped_compiler() -> Scene:
    call = _native.CompiledFunction(lambda x, n: (x, n), lambda *_: None)
    return gives(lambda: (call.reset(), call(TOKEN, 2), call(TOKEN, 3))[1:], call)


@scene
def statistics() -> Scene:
    call = compiled(Guard("equals", local("n"), 3), Guard("type_is", local("x"), Token))

    def run() -> Any:
        [entry] = call.entries
        said = [
            call.counters()["hits"] > -1,
            repr(call),
            entry.kind,
            repr(entry)[:12],
            entry.hits >= 0,
            call.mode,
            call.name,
        ]
        return (
            said,
            [guard for _, guard, _ in call.explain_miss(TOKEN, 4)],
            call.explain_miss(TOKEN),
            call.recompile_limit,
        )

    return gives(run, call)


@scene
def tail_call() -> Scene:
    def run(x: Any, n: int) -> Any:
        return _native.tail_call(call, x, n - 1) if n else _native.tail_call(divmod, 7, 2)

    call: Any = _native.CompiledFunction(
        lambda x, n: divmod(7, 2), lambda *_: _native.Entry([], run, "function"), positional=True
    )
    return gives(lambda: call(TOKEN, 3), call, run)


@scene
def closure() -> Scene:
    def outer(token: Any) -> Any:
        def inner(x: Any) -> Any:
            return (x, token)

        return inner

    target, other = outer(TOKEN), outer(KEY)

    def run() -> Any:
        call = _native.CompiledFunction(target, lambda *_: _native.Entry([], other, "function"))
        return call(1), call(2)

    return gives(run, target, other)


@scene
def frame_hook() -> Scene:
    def callee(x: Any) -> Any:
        return (x, 1)

    def target(x: Any) -> Any:
        return callee(x)

    inner = _native.CompiledFunction(callee, lambda *_: _native.Entry([], lambda x: (x, 1), "function"))

    def run() -> Any:
        hook = _native.FrameHook(lambda code, function: inner if code is callee.__code__ else None)
        call = _native.CompiledFunction(
            lambda x: (x, 1), lambda *_: _native.Entry([], lambda x: target(x), "function", frame_hook=hook)
        )
        return call(TOKEN), call(TOKEN)

    return gives(run, callee, inner)


@scene
def guard_tree() -> Scene:
    guards = [Guard("dict_keys", local("x"), ("a", 2)), Guard("equals", local("x").dict_item("a"), (1, 2.5))]
    tree, cases = _native.GuardTree(guards, ["x"]), [{"x": {"a": (1, 2.5), 2: 3}}, {"x": {"a": TOKEN}}, {"x": TOKEN}]
    return Scene(lambda: [tree.check(case, {}) for case in cases], lambda got: got[1:] == [0, 0], (TOKEN, tree))


# -- plans -----------------------------------------------------------------------------------------------------------


def plan_of(outputs: list[Any]) -> _native.Plan:
    n = Expr.sym("n")
    steps = [
        Aten(aten.add.Tensor, (SlotRef(0), SlotRef(0)), {}, (1,)),
        Aten(aten.as_strided.default, (SlotRef(1), [n, 2], (0, 1)), {"storage_offset": n - 2}, (2,)),
        Aten(aten.add.Scalar, (SlotRef(2), 2.5), {"alpha": n}, (3,)),  # a call through Python
    ]
    return _native.Plan(Plan(1, 4, [*steps], outputs, symbols={"n": (0, 0)}, name="short"))


@scene
def plan_by_itself() -> Scene:
    plan, x = plan_of([1, 3, 0, (Expr.sym("n") + 1000,), 2, 3]), torch.ones(300)
    return gives(lambda: (plan(x), plan([x])), x, plan)


@scene
def statistics_of_a_plan() -> Scene:
    plan = plan_of([3])
    return gives(lambda: (plan.name, plan.n_inputs, plan.routes, plan.arena_bytes, plan.exclusive, repr(plan)), plan)


@scene
def plan_that_shares() -> Scene:
    plan, x = plan_of([3]), torch.ones(3)
    _native.unless_shared(plan, [0], lambda x, y: (x * 4,))
    other = _native.Plan(Plan(2, 3, [Aten(aten.mul.Tensor, (SlotRef(0), SlotRef(1)), {}, (2,))], [2], name="shared"))
    _native.unless_shared(other, [0], lambda x, y: (x * y,))
    return gives(lambda: (plan(x), other(x, x), plan.exclusive[0]), x, plan, other)


@scene
def plan_in_an_entry() -> Scene:
    x = torch.ones(300)
    outputs = (
        "dict",
        [(KEY, ("graph", 0)), ("t", ("tuple", [("graph", 1), ("source", local("x"))])), ("l", ("list", []))],
    )
    entry = _native.Entry(
        [Guard("tensor", local("x"), TensorSpec.of(x))], plan_of([1, 3]), "plan", outputs, [local("x")]
    )
    call = _native.CompiledFunction(lambda x: entry, lambda *_: entry)
    return gives(lambda: call(x), x, call, entry)


@scene
def function_of_a_backend() -> Scene:
    x = torch.ones(3)
    target = _native.BackendCall(lambda x: [x + x, x], "test", 2)
    entry = _native.Entry([], target, "plan", ("tuple", [("graph", 0), ("graph", 1)]), [local("x")])
    call = _native.CompiledFunction(lambda x: (x + x, x), lambda *_: entry)
    return gives(lambda: (call(x), target(x)), x, call, entry)


# -- whole compiled functions -----------------------------------------------------------------------------------------


@scene
def inference() -> Scene:
    @pycompiler.compile
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (x.sin() * y).cos() + 1, {"s": x.sum(), "n": [x]}

    x, y = torch.randn(8), torch.randn(8)
    return compiles(lambda: f(x, y), x, y)


@scene
def module() -> Scene:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4)).eval()
    served, x = pycompiler.compile(net.requires_grad_(False)), torch.randn(3, 4)
    return compiles(lambda: served(x), x, net)


@scene
def training() -> Scene:
    w, x = torch.nn.Parameter(torch.randn(4, 4)), torch.randn(3, 4)

    @pycompiler.compile
    def f(x: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x @ w) * x).sum()

    def run() -> Any:
        w.grad = None
        f(x).backward()
        grad, w.grad = w.grad, None
        return grad

    return compiles(run, x, w, lost=60)  # CPython 3.11 loses a tuple that a list is built from, torch a gradient


@scene
def many_inputs() -> Scene:
    @pycompiler.compile
    def f(xs: list[torch.Tensor]) -> Any:
        total = xs[0].sin()
        for x in xs[1:]:
            total = total + x
        return total, torch.stack(xs).sort(0)[1], tuple(xs)

    xs = [torch.randn(2) for _ in range(40)]
    return compiles(lambda: f(xs), *xs)


@scene
def sizes_that_change() -> Scene:
    @pycompiler.compile(dynamic=True)
    def f(x: torch.Tensor) -> Any:
        return (x.sin() * x.shape[0]).sum(0), x.shape[0] + 1000, x.shape[0] * 2.5

    x = torch.randn(5, 3)
    return compiles(lambda: f(x), x)


@scene
def graph_break() -> Scene:
    @pycompiler.compile
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        print(end="")
        return y * 2

    x = torch.randn(8)
    return compiles(lambda: f(x), x)


@scene
def miss_of_a_frozen_function() -> Scene:
    @pycompiler.compile
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n

    x = torch.randn(8)
    f(x, 3)
    pycompiler.set_policy(f, "run")
    return compiles(lambda: (f(x, 3), f(x, 7)), x)


@scene
def counters() -> Scene:
    @pycompiler.compile
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n

    x = torch.randn(8)
    f(x, 3), f(x, 3)
    return compiles(lambda: (len(pycompiler.counters()) > 0, len(pycompiler.explain_miss(f, x, 4))), x)


# -- the sweep ----------------------------------------------------------------------------------------------------------


class OfPython:
    """Allocations of Python's objects."""

    @staticmethod
    def fail(n: int, all_from: bool) -> None:
        _testcapi.set_nomemory(n, 0 if all_from else n + 1)

    @staticmethod
    def restore() -> None:
        _testcapi.remove_mem_hooks()

    @staticmethod
    def is_left() -> bool:
        """Whether the failing allocation is still to come."""
        try:
            for _ in range(20):
                bytes(100)
        except MemoryError:
            return True
        return False


class OfEngine:
    """Allocations of the engine."""

    came = False

    def fail(self, n: int, all_from: bool) -> None:
        _native.fail_allocations(n + 1, all_from)

    def restore(self) -> None:
        self.came = _native.restore_allocations()

    def is_left(self) -> bool:
        self.restore()
        return not self.came


MEMORIES: dict[str, OfPython | OfEngine] = {"python": OfPython(), "engine": OfEngine()}


def attempt(scene: Scene, memory: OfPython | OfEngine, n: int, all_from: bool) -> tuple[str, bool]:
    """The end of the call ("short" or "right"), and whether it made at most `n` allocations."""
    raised = got = text = None
    few = False
    memory.fail(n, all_from)
    try:
        try:
            got = scene.call()
        except BaseException as error:  # not stored: the interpreter has only sixteen MemoryErrors in reserve
            raised = type(error)
            text = error.args
        few = memory.is_left()
    finally:
        memory.restore()
    if raised is None:
        assert scene.right(got), f"wrong with n = {n}, {all_from = }: {got!r}"
        return "right", few
    is_torchs = raised is RuntimeError and str(text[0]).startswith(TORCHS_WORDS)
    assert issubclass(raised, SHORT) or is_torchs, f"with n = {n}, {all_from = }: {raised.__name__}{text}"
    return "short", few


def sweep(scene: Scene, memory: OfPython | OfEngine, step: int) -> collections.Counter[str]:
    done: collections.Counter[str] = collections.Counter()
    for all_from in (False, True) if scene.all_too or memory is MEMORIES["engine"] else (False,):
        n = 0
        while True:
            held = [sys.getrefcount(o) for o in scene.watched]
            end, few = attempt(scene, memory, n, all_from)
            done[end] += 1
            if not scene.right(scene.call()):
                raise AssertionError(f"wrong behind a shortage with n = {n}, {all_from = }")
            now = [sys.getrefcount(o) for o in scene.watched]
            if any(abs(a - b) > 2 for a, b in zip(held, now, strict=True)):  # tolerance: one entry of a cache
                raise AssertionError(f"references {held} became {now} with n = {n}, {all_from = }")
            if (few and end == "right") or n > MOST:
                break
            n += 1 if n < FEW else step
            if n % 10 == 0:
                gc.collect()  # an error may be held by its own frames
        done["allocations"] = max(done["allocations"], n)
    return done


def run(name: str, memory: str, step: int) -> dict[str, Any]:
    scene = SCENES[name]()
    for _ in range(3):
        assert scene.right(scene.call()), name
    with collected():
        grown = 0
        for _ in range(ROUNDS):
            gc.collect()
            before = sys.getallocatedblocks()
            done = sweep(scene, MEMORIES[memory], step)
            gc.collect()
            grown = sys.getallocatedblocks() - before
            if grown < done["short"] // 4 + 4 + scene.lost:
                break
        else:
            raise AssertionError(f"{name}: {done['short']} shortages leave {grown} blocks")
    return {"scene": name, "memory": memory, "short": 0, **done}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenes", nargs="*")
    parser.add_argument("--memory", choices=MEMORIES, default="python", help="whose allocations fail")
    parser.add_argument("--step", type=int, default=1, help="between the n beyond the first")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    failed = 0
    for name in options.scenes or SCENES:
        try:
            print(json.dumps(run(name, options.memory, options.step)), flush=True)
        except Exception:
            failed += 1
            print(f"-- {name}", file=sys.stderr)
            traceback.print_exc()
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
