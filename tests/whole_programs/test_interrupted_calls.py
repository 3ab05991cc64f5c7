"""State after a call that does not end normally: an error of any operator, of a backend, an interrupt."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import pycompiler
from pycompiler import _native
from pycompiler.ir.guards import Guard, function_modes, function_modes_off, global_state
from pycompiler.ir.source import const_source, local
from pycompiler.torch_compat.autocast_regions import autocast_nesting
from tests.harness.compare import assert_same

BACKENDS = ["eager", "aot_eager", "native"]
HUGE = 2**45
Seen = list[Any]
Fn = Callable[..., Any]
LOCK = threading.Lock()


@torch.compiler.disable
def look(seen: Seen) -> None:
    seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), LOCK.locked()))


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def state() -> Any:
    return *global_state(), autocast_nesting(), LOCK.locked()


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = state()
    yield
    left = state()
    torch.set_grad_enabled(True)
    if LOCK.locked():
        LOCK.release()
    assert left == before


# errors before a resume function runs ---------------------------------------------------------------------------
def in_managers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with LOCK, torch.no_grad():
        y = x @ w
        look([])
        y = y @ w
        look([])
        y = y + 1
    return (y @ w).relu()


def in_autocast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ w
        look([])
        y = y @ w
        with LOCK:
            look([])
            y = y @ w
    return y


def in_a_mode(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with Mode():
        y = x @ w
        look([])
        y = y @ w
    return y


def with_a_device(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.device("cpu"), LOCK:
        y = torch.ones(3) @ w
        look([])
        return y + torch.ones(3)


def below_a_call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def inner(v: torch.Tensor) -> torch.Tensor:
        with LOCK:
            v = v + 1
            look([])
            return v @ w

    with torch.no_grad():
        x = x * 2
        return inner(inner(x))


def in_loops(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        with LOCK:
            for j in (1, 2):
                try:
                    look([])
                    x = x @ w + j
                finally:
                    look([])
    return x


MANAGED = [in_managers, in_autocast, in_a_mode, with_a_device, below_a_call, in_loops]


@pytest.mark.parametrize("when", ["compiled", "called"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("form", MANAGED, ids=lambda f: f.__name__)
def test_managers_are_left_where_a_backend_raises(form: Fn, error: type[BaseException], when: str) -> None:
    """The error may occur at any graph; the next call is right."""
    x, w = torch.ones(2, 3), torch.full((3, 3), 0.1, requires_grad=True)
    before, expected, fails = state(), form(x, w), True
    for number in range(20):
        pycompiler.reset()
        graphs = 0

        def backend(gm: torch.fx.GraphModule, examples: list[Any], number: int = number) -> Any:
            nonlocal graphs
            mine, graphs = graphs, graphs + 1
            if fails and when == "compiled" and mine == number:
                raise error("of the backend")

            def run(*inputs: Any) -> Any:
                if fails and when == "called" and mine == number:
                    raise error("of the backend")
                return gm(*inputs)

            return run

        compiled, fails = pycompiler.compile(form, backend=backend), True
        with contextlib.suppress(error):
            compiled(x, w)
        fails = False
        assert state() == before
        torch.testing.assert_close(compiled(x, w), expected)
        if graphs <= number:
            assert number > 1
            return
    raise AssertionError


def test_handlers_of_the_program_see_what_is_raised_where_it_goes_on() -> None:
    """The handled exception is the context of the new one, and the variables have their current values."""

    def backend(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        if any(n.target == "sin" for n in gm.graph.nodes):
            raise KeyboardInterrupt
        return gm

    def fn(x: torch.Tensor) -> Any:
        n, found = 1, None
        try:
            raise ValueError("first")
        except ValueError as first:
            try:
                n = 2
                look([])
                return x.sin()
            except KeyboardInterrupt as e:
                found = e.__context__ is first
            finally:
                n += 10
        return n, found, x + 1

    n, found, y = pycompiler.compile(fn, backend=backend)(torch.ones(3))
    assert (n, found, y.tolist()) == (12, True, [2.0] * 3)


# interrupts -----------------------------------------------------------------------------------------------------
def test_an_interrupt_while_modes_are_off_leaves_them_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt may occur between any two of torch's functions."""
    pop, push = torch._C._pop_torch_function_stack, torch._C._push_on_torch_function_stack
    calls = 0

    def counted(step: Fn, at: int) -> Fn:
        def run(*args: Any) -> Any:
            nonlocal calls
            result = step(*args)
            calls += 1
            if calls == at:
                raise KeyboardInterrupt
            return result

        return run

    with Mode() as first, Mode() as second:
        for at in range(1, 6):
            calls = 0
            monkeypatch.setattr(torch._C, "_pop_torch_function_stack", counted(pop, at))
            monkeypatch.setattr(torch._C, "_push_on_torch_function_stack", counted(push, at))
            with contextlib.suppress(KeyboardInterrupt), function_modes_off():
                assert function_modes() == [first, second]
            monkeypatch.undo()
            assert [torch._C._get_function_stack_at(i) for i in range(2)] == [first, second]
            assert torch._C._len_torch_function_stack() == 2 and function_modes() == [first, second]
        assert calls == 4


class Asked(BaseException):
    pass


def test_an_interrupt_in_the_frame_hook_is_not_lost() -> None:
    """After the interrupt, the hook is called again for the function."""
    times = 0

    def ask(code: Any, function: Any) -> None:
        nonlocal times
        if code is called.__code__:
            times += 1
            if times == 1:
                raise Asked

    def called() -> int:
        return 1

    _native.set_frame_hook(ask)
    _native.enter_hook()
    try:
        with pytest.raises(Asked):
            called()
            [str(i) for i in range(1000)]
        assert called() == 1
    finally:
        _native.exit_hook()
        _native.set_frame_hook(None)
    assert times == 2


class Raising:
    def __eq__(self, other: object) -> bool:
        raise Asked

    __hash__ = object.__hash__


def test_what_ends_a_thread_ends_no_other_one() -> None:
    ended = []

    def work() -> None:
        tree = _native.GuardTree([Guard("equals", local("x"), Raising())], ("x",))
        try:
            tree.check({"x": Raising()}, {})
            [str(i) for i in range(1000)]
        except Asked:
            ended.append("work")

    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        [str(i) for i in range(1000)]
    except Asked:
        ended.append("main")
    assert ended == ["work"]


# errors of any operator -------------------------------------------------------------------------------------------
def drawn(seen: Seen, x: torch.Tensor) -> Any:
    d = F.dropout(x, 0.5)
    try:
        return d.expand(HUGE, 3) * 2
    except RuntimeError:
        return d, torch.rand(2)


def drawn_behind_a_break(seen: Seen, x: torch.Tensor) -> Any:
    look(seen)
    a = torch.rand(2)
    try:
        return x.expand(HUGE, 3) * a[0]
    except RuntimeError:
        return a


def drawn_by_a_generator(seen: Seen, x: torch.Tensor) -> Any:
    generator = torch.Generator().manual_seed(3)
    d = x * torch.rand(3, generator=generator)
    try:
        return d.expand(HUGE, 3) * 2
    except RuntimeError:
        return d, torch.rand(2, generator=generator)


def drawn_by_python(seen: Seen, x: torch.Tensor) -> Any:
    d = x * random.random() + np.random.rand()
    try:
        return d.expand(HUGE, 3) * 2
    except RuntimeError:
        return d, random.random(), np.random.rand()


def drawn_by_python_behind_a_break(seen: Seen, x: torch.Tensor) -> Any:
    n = 1
    try:
        look(seen)
        n = random.randint(2, 9)
        return x.expand(HUGE, 3) * n
    except RuntimeError:
        return x + n


def done_before(seen: Seen, x: torch.Tensor) -> Any:
    seen.append(1)
    return x.expand(HUGE, 3) * 2


def done_before_behind_a_break(seen: Seen, x: torch.Tensor) -> Any:
    look(seen)
    seen.append(1)
    y = x.expand(HUGE, 3) * 2
    seen.append(2)
    return y


def switched_before(seen: Seen, x: torch.Tensor) -> Any:
    torch.set_grad_enabled(False)
    return x.expand(HUGE, 3) * 2


FORMS = [
    drawn,
    drawn_behind_a_break,
    drawn_by_a_generator,
    drawn_by_python,
    drawn_by_python_behind_a_break,
    done_before,
    done_before_behind_a_break,
    switched_before,
]


def outcome(run: Fn, x: torch.Tensor) -> Any:
    seen: Seen = []
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    try:
        result = run(seen, x)
    except RuntimeError as e:
        result = type(e)
    after = torch.is_grad_enabled(), torch.rand(2).tolist(), random.random(), np.random.rand()
    torch.set_grad_enabled(True)
    return result, seen, after


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_what_stands_before_an_error_of_memory_is_done_once(form: Fn, backend: str) -> None:
    compiled = pycompiler.compile(form, backend=backend)
    for _ in range(2):
        expected, found = outcome(form, torch.ones(3)), outcome(compiled, torch.ones(3))
        assert_same(found, expected)
    assert compiled.counters()["compiles"] == 1


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_what_is_written_before_an_error_of_memory_is_seen_by_its_handler(backend: str) -> None:
    """A handler after a break must see the written tensor."""

    def fn(seen: Seen, x: torch.Tensor) -> Any:
        try:
            look(seen)
            x.fill_(2)
            return x.expand(HUGE, 3) * 2
        except RuntimeError:
            return x + 1

    compiled = pycompiler.compile(fn, backend=backend)
    for _ in range(2):
        x = torch.zeros(3)
        assert compiled([], x).tolist() == [3.0] * 3 and x.tolist() == [2.0] * 3


def test_the_oracle_of_torchs_state_is_interrupted_but_not_for_good() -> None:
    """An error in the state query comes from a signal handler, whatever its class."""

    class Alarm(Exception):
        pass

    def interrupted() -> Any:
        raise Alarm

    x = torch.ones(3)
    compiled = pycompiler.compile(lambda x: x + 1)
    with Mode():  # the state is queried through Python
        expected = compiled(x)
        _native.hand_in(global_state=interrupted)
        try:
            tree = _native.GuardTree([Guard("global_state", const_source(None), global_state())], ("x",))
            with pytest.raises(Alarm):
                assert tree.check({"x": x}, {}) == 0
                [str(i) for i in range(1000)]
        finally:
            _native.hand_in(global_state=global_state)
        assert torch.equal(compiled(x), expected)


# lifetimes and random numbers of compiles --------------------------------------------------------------------------
def test_a_backend_that_fails_keeps_nothing_alive_and_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only if no other thread may draw random numbers; earlier tests may have left threads."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)

    def backend(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        torch.rand(1), random.random(), np.random.rand()
        if any(n.target == "expand" for n in gm.graph.nodes):
            raise RuntimeError("of the backend")
        return gm

    def fn(x: torch.Tensor, breaks: bool) -> torch.Tensor:
        if breaks:
            look([])
        return x.expand(3, 3) * 2

    def numbers() -> Any:
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    for breaks in (False, True):
        compiled = pycompiler.compile(fn, backend=backend)
        before = numbers()
        gc.collect()
        gc.disable()
        try:
            x = torch.ones(3)
            gone = weakref.ref(x)
            with contextlib.suppress(RuntimeError):
                compiled(x, breaks)
            del x
            assert gone() is None
        finally:
            gc.enable()
        assert numbers() == before
