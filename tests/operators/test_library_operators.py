"""Operators of `torch.library` compared with eager: errors that no schema declares, and writes that the schema does declare."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pycompiler
from pycompiler.ir import persistent_names
from pycompiler.operators import functional_twins
from tests.harness.compare import assert_same, observe

BACKENDS = ("eager", "aot_eager", "native")


@torch.library.custom_op("pycompiler_library::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    if x.sum() > 100:
        raise ValueError("too much")
    return x * 2


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("pycompiler_library::put", mutates_args=("b",))
def put(b: Tensor, x: Tensor) -> None:
    if x.real.sum() > 100:
        raise ValueError("too much")
    b.copy_(x)


class Count:
    n = 0


def caught(count: Count, x: Tensor, b: Tensor) -> Any:
    count.n += 1
    try:
        return doubled(x + 1).sin(), count.n
    except ValueError as error:
        return str(error), x * 3


def caught_further_out(count: Count, x: Tensor, b: Tensor) -> Any:
    def inner(x: Tensor) -> Tensor:
        count.n += 1
        y = doubled(x)
        count.n += 1
        return y

    try:
        return inner(x)
    except ValueError:
        return count.n, x + 1


def suppressed(count: Count, x: Tensor, b: Tensor) -> Tensor:
    with contextlib.suppress(ValueError):
        x = doubled(x) + 1
    return x * 2


def behind_a_draw(count: Count, x: Tensor, b: Tensor) -> Tensor:
    dropped = torch.dropout(x, 0.5, True)
    return doubled(x) + dropped


def behind_an_effect(count: Count, x: Tensor, b: Tensor) -> Tensor:
    count.n += 1
    y = doubled(x)
    count.n += 1
    return y


def between_writes(count: Count, x: Tensor, b: Tensor) -> Tensor:
    b.add_(1)
    y = doubled(x)
    b.mul_(2)
    return y + b


def written_and_caught(count: Count, x: Tensor, b: Tensor) -> Any:
    try:
        put(b, x)
        return b * 2
    except ValueError as error:
        return str(error), x + b


def written_and_suppressed(count: Count, x: Tensor, b: Tensor) -> Tensor:
    with contextlib.suppress(ValueError), torch.no_grad():
        put(b, x)
        x = x + 1
    return x * b


def written_without_gradients(count: Count, x: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        put(b, x)
        return doubled(b)


WHOLE = (
    caught,
    caught_further_out,
    suppressed,
    behind_a_draw,
    behind_an_effect,
    between_writes,
    written_without_gradients,
)
BROKEN = (written_and_caught, written_and_suppressed)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [*WHOLE, *BROKEN], ids=lambda f: f.__name__)
def test_errors_are_eagers(program: Callable[..., Any], backend: str) -> None:
    run = pycompiler.compile(program, backend=backend)
    for size in (1.0, 2.0, 60.0, 1.0):
        assert_same(*(observe(f, (Count(), torch.full((4,), size), torch.ones(4))) for f in (run, program)))
    assert run.counters()["compiles"] == 1
    assert pycompiler.explain(program)(Count(), torch.ones(4), torch.ones(4)).graph_break_count == (program in BROKEN)


# ---- writes, and lists as results ------------------------------------------------------------------------------


@torch.library.custom_op("pycompiler_library::add_to", mutates_args=("total",))
def add_to(x: Tensor, total: Tensor, by: float = 2.0) -> Tensor:
    total.add_(x)
    return total * by


@add_to.register_fake
def _(x: Tensor, total: Tensor, by: float = 2.0) -> Tensor:
    return torch.empty_like(total)


@torch.library.custom_op("pycompiler_library::both", mutates_args=("a", "b"))
def both(a: Tensor, b: Tensor, n: int, xs: list[Tensor], name: str = "x") -> tuple[Tensor, Tensor]:
    a.mul_(n)
    b.add_(xs[0])
    return a + b, xs[1] * 2


@both.register_fake
def _(a: Tensor, b: Tensor, n: int, xs: list[Tensor], name: str = "x") -> tuple[Tensor, Tensor]:
    return torch.empty_like(a), torch.empty_like(xs[1])


@torch.library.custom_op("pycompiler_library::lists", mutates_args=())
def lists(xs: list[Tensor], by: int) -> tuple[Tensor, list[Tensor], int]:
    return xs[0] * by, [x + 1 for x in xs], len(xs)


@lists.register_fake
def _(xs: list[Tensor], by: int) -> tuple[Tensor, list[Tensor], int]:
    return torch.empty_like(xs[0]), [torch.empty_like(x) for x in xs], len(xs)


def _back(ctx: Any, grad: Tensor, grads: list[Tensor], _: Any) -> Any:
    return [grad * ctx.by + grads[0], *grads[1:]], None


lists.register_autograd(_back, setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]))

_RAW = torch.library.Library("pycompiler_library_raw", "DEF")
_RAW.define("scale_(Tensor(a!) x, float by, *, int? n=None) -> ()")
_RAW.define("grow(Tensor(a!) x, Tensor? y=None) -> Tensor")
_RAW.impl("scale_", lambda x, by, n=None: (x.mul_(by), None)[1], "CompositeExplicitAutograd")
_RAW.impl("grow", lambda x, y=None: x.add_(1 if y is None else y) * 2, "CompositeExplicitAutograd")


def into_what_the_frame_made(x: Tensor, y: Tensor) -> Any:
    made = torch.zeros_like(x)
    put(made, x)
    between = made * 2
    put(made, y)
    return made, between, add_to(x, made)


def into_a_part(x: Tensor, y: Tensor) -> Any:
    part = x[1:]
    put(part, torch.ones_like(part))
    return x * y, part


def into_an_argument(x: Tensor, y: Tensor) -> Any:
    return add_to(x, y, by=3.0) + y, y.sin()


def into_two(x: Tensor, y: Tensor) -> Any:
    a, b = both(x, y, 3, [x + 1, y.exp()], name="q")
    return a, b, x + y


def again_and_again(x: Tensor, y: Tensor) -> Any:
    for i in range(3):
        put(y, x * i + y)
        x = add_to(x, y).tanh()
    return x, y


def raw(x: Tensor, y: Tensor) -> Any:
    torch.ops.pycompiler_library_raw.scale_(x, 2.0, n=3)
    grown = torch.ops.pycompiler_library_raw.grow(y)
    return grown + x, torch.ops.pycompiler_library_raw.grow(y, x)


def into_columns(x: Tensor, y: Tensor) -> Any:
    table = x.view(1, -1).expand(3, -1).contiguous()
    put(table[:, 1], torch.ones(3))
    put(table.t()[0], torch.zeros(3))
    return table, x


def lists_of_tensors(x: Tensor, y: Tensor) -> Any:
    a, found, n = lists([x, y], 3)
    return a * n, found[1], lists([found[0] * 2], n)[1][0]


WRITING = (
    into_what_the_frame_made,
    into_a_part,
    into_an_argument,
    into_two,
    again_and_again,
    raw,
    into_columns,
    lists_of_tensors,
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", WRITING, ids=lambda f: f.__name__)
def test_writes_are_compiled(program: Callable[..., Any], backend: str, caplog: pytest.LogCaptureFixture) -> None:
    run = pycompiler.compile(program, backend=backend, fullgraph=True)
    for size in (4, 5, 9, 4):
        torch.manual_seed(size)
        given = torch.randn(size), torch.randn(size)
        own = [t.clone() for t in given]
        assert_same(run(*given), program(*own))
        assert_same([*given], own)
    assert run.counters()["compiles"] == 2
    assert "runs eagerly" not in caplog.text


def test_layouts_and_types_of_what_is_written(caplog: pytest.LogCaptureFixture) -> None:
    def program(a: Tensor, b: Tensor) -> Tensor:
        put(a, b * 2)
        return a + b

    cases: list[tuple[Callable[[], Tensor], int]] = [
        (lambda: torch.randn(4, 4).t(), 1),
        (lambda: torch.randn(8, 4)[::2], 2),
        (lambda: torch.randn(4, 4, dtype=torch.complex64), 3),
        (lambda: torch.randn(4, 4).half(), 4),
    ]
    run = pycompiler.compile(program, dynamic=False)
    for make, compiles in cases:
        a, b = make(), make()
        own = a.clone(memory_format=torch.preserve_format)
        assert_same(run(a, b), program(own, b))
        assert_same(a, own, strides=False)  # `own` is a contiguous copy
        assert run.counters()["compiles"] == compiles
    assert "runs eagerly" not in caplog.text


def test_a_cache_beside_gradients(caplog: pytest.LogCaptureFixture) -> None:
    def program(w: Tensor, cache: Tensor) -> Tensor:
        with torch.no_grad():
            put(cache[1:3], w[1:3])
        return (w * cache.clone()).exp().sum()

    run = pycompiler.compile(program, fullgraph=True)
    for _ in range(2):
        w, cache = torch.arange(4.0).requires_grad_(), torch.ones(4)
        own, its = w.detach().clone().requires_grad_(), cache.clone()
        found, expected = run(w, cache), program(own, its)
        found.backward()
        expected.backward()
        assert_same([found.detach(), w.grad, cache], [expected.detach(), own.grad, its])
    assert run.counters()["compiles"] == 1 and "runs eagerly" not in caplog.text


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("program", ["after", "large"])
def test_what_is_left_to_eager(program: str, caplog: pytest.LogCaptureFixture) -> None:
    """Two eager cases: a write to a tensor that a gradient needs (its backward raises), and a large argument, never copied."""

    def after(w: Tensor, cache: Tensor) -> Tensor:
        y = w * cache
        with torch.no_grad():
            put(cache, y)
        return y

    def large(w: Tensor, cache: Tensor) -> Tensor:
        put(cache, -w.detach().abs()[0].expand(cache.shape))
        return cache[:4] + w.detach()

    fn, size = {"after": (after, 4), "large": (large, 100_000)}[program]
    run = pycompiler.compile(fn, fullgraph=True)
    w, cache = torch.randn(4, requires_grad=True), torch.ones(size)
    own = cache.clone()
    found, expected = run(w, cache), fn(w, own)
    assert_same([found.detach(), cache], [expected.detach(), own])
    if program == "after":
        for result in (found, expected):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                result.sum().backward()
    assert run.counters()["compiles"] == 1 and "runs eagerly" in caplog.text


_RAW.define("mul(Tensor(a!) a, Tensor(b!) b, Tensor x) -> Tensor")
_RAW.impl("mul", lambda a, b, x: a.add_(x) + b.mul_(2).add_(x.sum()), "CompositeExplicitAutograd")
_PAIR = torch.ops.pycompiler_library_raw.mul


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("which", ["one twice", "parts", "read", "apart"])
def test_arguments_that_share_memory(which: str, backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """Two arguments may share memory: a write through one is visible through the other. Separate copies would lose that."""

    def program(b: Tensor, x: Tensor) -> Any:
        if which == "one twice":
            return _PAIR(b, b, x), b + 1
        if which == "parts":
            return _PAIR(b[:3], b[1:], x[:3]), b + 1
        if which == "read":
            return _PAIR(b, x, b), b + 1
        return _PAIR(b[:2], b[2:], x[:2]), b + 1

    run = pycompiler.compile(program, backend=backend, fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        given = torch.randn(4), torch.randn(4)
        own = [t.clone() for t in given]
        assert_same(run(*given), program(*own))
        assert_same([*given], own)
    assert run.counters()["compiles"] == 1
    assert ("runs eagerly" in caplog.text) is (which != "apart" and backend != "eager")


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_lists(backend: str) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        a, [b, c], _ = lists([x, y.sin()], 3)
        return (a * b).sum() + c.exp().sum()

    run = pycompiler.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        given = [torch.randn(4, requires_grad=True) for _ in range(2)]
        own = [t.detach().clone().requires_grad_() for t in given]
        run(*given).backward()
        program(*own).backward()
        assert_same([t.grad for t in given], [t.grad for t in own])
    assert run.counters()["compiles"] == 1


def test_a_twin_has_the_name_of_its_operator() -> None:
    """A twin is created anew in each process: an artefact refers to it by the operator's name, for unusual backwards."""
    op = torch.ops.pycompiler_library.put.default
    twin = functional_twins.twin_of(op)
    name = persistent_names.name_of(twin)
    assert name == ("twin", "pycompiler_library", "put", "default")
    assert persistent_names.resolve(name) is twin and functional_twins.original(twin) is op
    with pytest.raises(persistent_names.NameGone):
        persistent_names.resolve(("twin", "pycompiler_library", "doubled", "default"))


CALLED: list[float] = []


@torch.library.custom_op("pycompiler_library::scale_", mutates_args=("x",))
def scale_(x: Tensor, by: torch.types.Number) -> None:
    CALLED.append(float(x[0]))
    x.mul_(by)


@torch.library.custom_op("pycompiler_library::raised_by_one", mutates_args=("x",))
def raised_by_one(x: Tensor) -> Tensor:
    CALLED.append(float(x[0]))
    x.add_(1)
    if x[0] < 2.5:
        raise ValueError("small")
    return x * 1


@raised_by_one.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("pycompiler_library::interrupted", mutates_args=())
def interrupted(x: Tensor) -> Tensor:
    CALLED.append(float(x[0]))
    if x[0] < 0:
        raise KeyboardInterrupt
    return x * 1


@interrupted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def scales(x: Tensor) -> Tensor:
    y = x.clone()
    scale_(y, 2)
    return y


def scales_what_it_is_given(x: Tensor) -> Tensor:
    scale_(x, 2)
    return x + 1


def raises_its_own(x: Tensor) -> Any:
    y = x.clone()
    return raised_by_one(y), y


def interrupts(x: Tensor) -> Tensor:
    return interrupted(x) + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [scales, scales_what_it_is_given, raises_its_own, interrupts])
def test_operators_written_in_python_are_called_once(fn: Callable[..., Any], backend: str) -> None:
    """A raised exception reaches the user unchanged, without a second call that meets the
    writes of the first call. The None of an operator without results counts as no result."""
    compiled = pycompiler.compile(fn, backend=backend)
    for first in (5.0, 1.0, -1.0):
        found = []
        for run in (fn, compiled, compiled):
            x = torch.full((2,), first)
            CALLED.clear()
            try:
                result: Any = run(x)
            except (ValueError, KeyboardInterrupt) as error:
                result = repr(error)
            # an operator that writes only memory of the graph and raises is called again by the frame, on its own copy
            calls = CALLED if fn is not raises_its_own else [*dict.fromkeys(CALLED)]
            found.append((str(result), list(calls), x.tolist()))
        assert found[1:] == [found[0]] * 2


ODD_RESULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros without memory": lambda x: torch._efficientzerotensor(x.shape),
    "a view of them": lambda x: torch._efficientzerotensor(x.shape).t(),
    "negated": lambda x: torch._neg_view(x.clone()),
}
how = ""


@torch.library.custom_op("pycompiler_library::odd", mutates_args=())
def odd(x: Tensor) -> Tensor:
    return ODD_RESULTS[how](x)


@odd.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ODD_RESULTS)
def test_results_that_are_not_their_memory(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor) -> Any:
        y = odd(x)
        return y.sin() + 1, y @ x, y.t() @ x, y

    monkeypatch.setitem(globals(), "how", name)
    x = torch.arange(4.0).view(2, 2)
    found, expected = pycompiler.compile(program, backend=backend)(x), program(x)
    torch.testing.assert_close([t.clone() for t in found], [t.clone() for t in expected])


HISTORY: list[Any] = []
SETTINGS = {"scale": 2.0}
OFFSET = 1.0


def told(what: str) -> None:
    HISTORY.append(what)


@torch.library.custom_op("pycompiler_library::remembered", mutates_args=())
def remembered(x: Tensor) -> Tensor:
    told("remembered")
    return x.clone()


@remembered.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("pycompiler_library::as_set", mutates_args=())
def as_set(x: Tensor) -> Tensor:
    return x * SETTINGS["scale"] + OFFSET


@as_set.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("pycompiler_library::stepped", mutates_args=())
def stepped(x: Tensor) -> Tensor:
    global OFFSET, HISTORY
    OFFSET += 1
    HISTORY += ["stepped"]
    return x.clone()


@stepped.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def bound_behind(x: Tensor) -> Tensor:
    return stepped(x) + OFFSET


def bound_before(x: Tensor) -> Tensor:
    offset = OFFSET
    return stepped(x) + offset


def added_in_place(x: Tensor) -> Tensor:
    return stepped(x) + len(HISTORY)


def between_entries(x: Tensor) -> Tensor:
    HISTORY.append("before")
    y = remembered(x)
    HISTORY.append("between")
    return remembered(y + 1)


def counted_behind(x: Tensor) -> Tensor:
    return remembered(x) + len(HISTORY)


def set_before(x: Tensor) -> Tensor:
    SETTINGS["scale"] += 1
    return as_set(x)


def moved_before(x: Tensor) -> Tensor:
    global OFFSET
    OFFSET += 1
    return as_set(x)


def set_behind(x: Tensor) -> Tensor:
    scale = SETTINGS["scale"]
    y = as_set(x) + scale
    SETTINGS["scale"] = scale + 1
    return y


def of_others(x: Tensor) -> Tensor:
    HISTORY.append("before")
    return as_set(x) * SETTINGS["scale"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("fn", "breaks"),
    [
        (between_entries, 2),
        (counted_behind, 1),
        (set_before, 1),
        (moved_before, 1),
        (set_behind, 0),
        (of_others, 0),
        (bound_behind, 1),
        (bound_before, 0),
        (added_in_place, 1),
    ],
)
def test_what_operators_name_is_as_the_frame_has_it(fn: Callable[..., Any], breaks: int, backend: str) -> None:
    def calls(fn: Callable[..., Any]) -> list[Any]:
        global OFFSET
        HISTORY.clear()
        SETTINGS["scale"], OFFSET = 2.0, 1.0
        return [[fn(torch.ones(3)), list(HISTORY), dict(SETTINGS), OFFSET] for _ in range(3)]

    assert_same(calls(pycompiler.compile(fn, backend=backend)), calls(fn))
    HISTORY.clear()
    assert pycompiler.explain(fn)(torch.ones(3)).graph_break_count == breaks
