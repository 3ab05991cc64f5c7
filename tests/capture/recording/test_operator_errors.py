"""Errors that any operator may raise (out of memory, an interrupt): they reach the program's handlers and context managers.

In: a function whose graph fails in an operator that is not known to raise.  Context managers entered before a break are
exited. Handlers within one graph run in the frame as written.
"""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import pycompiler
from tests.harness.compare import assert_same

BACKENDS = ["eager", "aot_eager", "native"]
Seen = list[Any]
Fn = Callable[[Seen, torch.Tensor], Any]
HUGE = 1 << 44


@torch.compiler.disable
def look(seen: Seen) -> None:
    seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))


class Manager:
    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def __enter__(self) -> None:
        self.seen.append("in")

    def __exit__(self, kind: Any, *rest: Any) -> None:
        self.seen.append(("out", kind))


def handled(seen: Seen, x: torch.Tensor) -> Any:
    try:
        y = x.expand(HUGE, 3) + 1
    except RuntimeError as e:
        return type(e).__name__
    return y


def at_last(seen: Seen, x: torch.Tensor) -> Any:
    try:
        look(seen)
        return x.expand(HUGE, 3) + 1
    finally:
        seen.append("finally")


def without_gradients(seen: Seen, x: torch.Tensor) -> Any:
    with torch.no_grad(), torch.autocast("cpu"):
        look(seen)
        y = x.expand(HUGE, 3) + 1
    return y


def managed(seen: Seen, x: torch.Tensor) -> Any:
    with Manager(seen):
        look(seen)
        with Manager(seen), torch.no_grad():
            look(seen)
            y = x.expand(HUGE, 3) * 2
    return y


def caught_behind_a_break(seen: Seen, x: torch.Tensor) -> Any:
    size = 0
    for size in (HUGE, 4):
        try:
            look(seen)
            y = x.expand(size, 3) * 2
            break
        except RuntimeError:
            seen.append("smaller")
    return y, size


def inside_of_a_handler(seen: Seen, x: torch.Tensor) -> Any:
    try:
        raise ValueError("first")
    except ValueError as e:
        with torch.no_grad():
            look(seen)
            try:
                y = x.expand(HUGE, 3) * 2
            except RuntimeError as second:
                return second.__context__ is e, x + 1
    return y


def closure(seen: Seen, x: torch.Tensor) -> Any:
    n = 2

    def inner() -> int:
        return n + 1

    with Manager(seen):
        look(seen)
        n += 1
        y = x.expand(HUGE, 3) * inner()
    return y, n


FORMS = [handled, at_last, without_gradients, managed, caught_behind_a_break, inside_of_a_handler, closure]


@pytest.fixture(autouse=True)
def _gradients() -> Iterator[None]:
    yield
    torch.set_grad_enabled(True)


def outcome(run: Fn, x: torch.Tensor) -> Any:
    seen: Seen = []
    try:
        result = run(seen, x)
    except BaseException as e:
        result = type(e)
    state = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
    torch.set_grad_enabled(True)
    return result, seen, state


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_memory_that_there_is_not(form: Fn, backend: str) -> None:
    compiled = pycompiler.compile(form, backend=backend)
    for _ in range(2):
        given = torch.ones(3), torch.ones(3)
        assert_same(outcome(compiled, given[1]), outcome(form, given[0]))
        assert torch.equal(*given)


class Failing:
    """An operator unknown to the program, and the error that it raises."""

    def __init__(self, library: torch.library.Library) -> None:
        self.error: BaseException | None = None
        library.define("pass_on(Tensor x) -> Tensor")
        library.impl("pass_on", self.run, "CompositeExplicitAutograd")
        torch.library.register_fake("errors_of_any::pass_on", torch.empty_like, lib=library)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        if self.error is not None:
            raise self.error
        return x * 2


@pytest.fixture
def failing() -> Iterator[Failing]:
    with torch.library._scoped_library("errors_of_any", "FRAGMENT") as library:
        yield Failing(library)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("error", [RuntimeError, torch.OutOfMemoryError, MemoryError, KeyboardInterrupt, SystemExit])
def test_what_was_entered_before_a_break_is_left(failing: Failing, error: type[BaseException], backend: str) -> None:
    """An interrupt is raised where the frame continues: a rerun of the frame would lose the interrupt."""

    def fn(seen: Seen, x: torch.Tensor) -> Any:
        with Manager(seen), torch.no_grad():
            y = x + 1
            look(seen)
            y = torch.ops.errors_of_any.pass_on(y) + 1
        return y

    compiled = pycompiler.compile(fn, backend=backend)
    for raised in (None, error("of the test"), error("again"), None):
        failing.error = raised
        assert_same(outcome(compiled, torch.ones(3)), outcome(fn, torch.ones(3)))
    assert compiled.counters()["compiles"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_that_writes_is_not_run_twice(backend: str) -> None:
    """The error skips the handlers within the graph, since the earlier writes are unknown to them; context managers exit."""

    def fn(seen: Seen, x: torch.Tensor, total: torch.Tensor) -> Any:
        with torch.no_grad():
            look(seen)
            total += 1
            y = x.expand(HUGE, 3) + total
        return y

    compiled = pycompiler.compile(fn, backend=backend)
    for _ in range(2):
        total = torch.zeros(3)
        with pytest.raises(RuntimeError):
            compiled([], torch.ones(3), total)
        assert torch.is_grad_enabled()
        assert total.tolist() in ([0.0] * 3, [1.0] * 3)


def made(seen: Seen, x: torch.Tensor) -> Any:
    return torch.empty(1 << 60)


def computed(seen: Seen, x: torch.Tensor) -> Any:
    return x.expand(HUGE, 3) + 1


def behind_effects(seen: Seen, x: torch.Tensor) -> Any:
    seen.append("before")
    y = x.expand(HUGE, 3) + 1
    seen.append("behind")
    return y


def behind_a_write(seen: Seen, x: torch.Tensor) -> Any:
    x.add_(1)
    seen.append("before")
    y = x.expand(HUGE, 3) + 1
    x.mul_(2)
    return y


def behind_a_write_of_data(seen: Seen, x: torch.Tensor) -> Any:
    x.data.add_(1)
    seen.append("before")
    return x.expand(HUGE, 3) + 1


def beside_symbols_of_data(seen: Seen, x: torch.Tensor) -> Any:
    places = torch.nonzero(x)
    seen.append("before")
    y = x.expand(HUGE, 3) + places.sum()
    x.add_(1)
    return y


@pytest.mark.parametrize(
    "form", [made, computed, behind_effects, behind_a_write, behind_a_write_of_data, beside_symbols_of_data]
)
def test_an_error_of_memory_is_eagers(form: Fn) -> None:
    """The message, the line and the earlier side effects match eager: a plan without a write so far leaves the frame to eager."""
    compiled = pycompiler.compile(form)
    for _ in range(2):
        found = []
        for run in (form, compiled):
            seen, x = list[Any](), torch.ones(3)
            with pytest.raises(RuntimeError) as error:
                run(seen, x)
            lines = [
                (f.name, f.lineno) for f in traceback.extract_tb(error.value.__traceback__) if f.filename == __file__
            ][1:]
            found.append((str(error.value), getattr(error.value, "__notes__", None), lines, seen, x.tolist()))
        assert found[0] == found[1]


def test_what_is_written_by_another_name_is_written_once() -> None:
    """A graph that runs as captured has already written."""
    compiled = pycompiler.compile(behind_a_write_of_data, backend="eager")
    for _ in range(2):
        x = torch.ones(3)
        with pytest.raises(RuntimeError):
            compiled([], x)
        assert x.tolist() == [2.0] * 3


def test_parts_behind_others_do_not_have_the_frame_run_again() -> None:
    @torch.compiler.nested_compile_region
    def region(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    def fn(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        y = region(x)
        total.add_(1)
        return region(region(y)).expand(HUGE, 3) + 1

    compiled, total = pycompiler.compile(fn), torch.zeros(3)
    with pytest.raises(RuntimeError):
        compiled(torch.ones(3), total)
    assert total.tolist() == [1.0] * 3


@pytest.mark.parametrize("form", [handled, without_gradients], ids=lambda f: f.__name__)
def test_nothing_of_a_failed_call_stays_alive(form: Fn) -> None:
    compiled = pycompiler.compile(form)
    outcome(compiled, torch.ones(3))
    gc.collect()
    gc.disable()
    try:
        x = torch.ones(3)
        gone = weakref.ref(x)
        outcome(compiled, x)
        del x
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_checkpoint_ends_what_it_computes_again(backend: str) -> None:
    """A checkpoint stops its recompute by its own exception, which passes the program's handlers."""

    def fn(seen: Seen, x: torch.Tensor) -> torch.Tensor:
        with Manager(seen):
            try:
                return F.gelu(x.sin()).exp().sum()
            except ValueError:
                return x.sum()

    def gradient(run: Fn) -> tuple[Seen, torch.Tensor]:
        x, seen = torch.ones(3, requires_grad=True), list[Any]()
        y: Any = torch.utils.checkpoint.checkpoint(run, seen, x, use_reentrant=False)
        y.backward()
        assert x.grad is not None
        return seen, x.grad

    expected, found = gradient(fn), gradient(pycompiler.compile(fn, backend=backend))
    torch.testing.assert_close(found[1], expected[1])


@torch.library.custom_op("errors_behind_effects::write", mutates_args=("x",))
def write_and_raise(x: torch.Tensor, limit: torch.Tensor) -> None:
    x.add_(1)
    if limit.sum() > 2:
        raise RuntimeError("too much")


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_writing_operator_of_the_programs_behind_effects(backend: str) -> None:
    """The operator cannot run twice: the earlier side effects of the frame run in a frame of their own."""

    def of_an_input(x: torch.Tensor, limit: torch.Tensor, log: list[Any]) -> torch.Tensor:
        log.append("before")
        write_and_raise(x, limit)
        log.append("behind")
        return x * 2

    def of_a_copy(x: torch.Tensor, limit: torch.Tensor, log: list[Any]) -> torch.Tensor:
        y = x * 2
        log.append(y)
        write_and_raise(y, limit)
        return y

    for fn in (of_an_input, of_a_copy):
        compiled = pycompiler.compile(fn, backend=backend)
        for limit in (0.0, 5.0, 0.0):
            ends = []
            for run in (fn, compiled):
                x, log = torch.ones(2), list[Any]()
                try:
                    result = run(x, torch.tensor(limit), log).tolist()
                except RuntimeError as error:
                    result = str(error)
                ends.append((result, x.tolist(), str(log)))
            assert ends[0] == ends[1], (fn, limit)
        assert pycompiler.explain(fn)(torch.ones(2), torch.tensor(0.0), []).graph_break_count
    whole = pycompiler.compile(of_a_copy, backend=backend, fullgraph=True)
    assert whole(torch.ones(2), torch.tensor(0.0), []).tolist() == [3.0, 3.0]


@pytest.mark.skipif(torch.__version__ < "2.12", reason="torch decides by the places themselves, which breaks the graph")
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("named", [False, True], ids=["functions", "methods"])
@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
def test_places_of_quantiles_are_looked_at(name: str, named: bool, backend: str) -> None:
    """A place below 0 must be refused, not rounded to the first element or read out of bounds."""

    def program(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = getattr(x, name)(q=q) if named else getattr(torch, name)(x, q)
        return found * 2

    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    x = torch.tensor([3.0, 1.0, 4.0, 1.5, 5.0], requires_grad=True)
    for place in (0.0, 0.3, 1.0):
        q = torch.tensor([place, 0.5])
        found, expected = (f(x, q) for f in (compiled, program))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (found, expected)))
    for place in (-1.0, -0.1, 1.05, torch.nan):
        for f in (program, compiled):
            with pytest.raises(RuntimeError, match="values must be in the range"):
                f(x, torch.tensor([0.5, place]))
    assert pycompiler.counters(compiled)["compiles"] == 1
