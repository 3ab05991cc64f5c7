"""Library context managers that change the process: `warnings.catch_warnings`, `sdpa_kernel`, profiler ranges.

With breaks, exceptions, returns and generators inside, all observations and the final state match eager.
"""

from __future__ import annotations

import unittest.mock
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import pycompiler

X = torch.ones(3)


def raises(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = x + 1
        warnings.warn("now", DeprecationWarning, stacklevel=1)
    return x


def caught(x: torch.Tensor) -> Any:
    try:
        raises(x)
    except DeprecationWarning as e:
        x = x + len(str(e))
    warnings.warn("later", stacklevel=1)
    return x


def recorded(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("heard", stacklevel=1)
        x = x + len(seen)
    return x.sin(), [str(w.message) for w in seen]


def broken(x: torch.Tensor) -> Any:
    first = recorded(x)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="quiet")
        warnings.warn("quiet", stacklevel=1)
        x = x * 2
        pycompiler.graph_break()
        warnings.warn("quiet too", stacklevel=1)
        second = recorded(x)
    warnings.warn("quiet no more", stacklevel=1)
    return first, second


def returned(x: torch.Tensor) -> Any:
    for i in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if i == 1:
                return x + i, warnings.filters[0][0]
            x = x * 2
    return x


def suspended(x: torch.Tensor) -> Any:
    def parts() -> Iterator[torch.Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield x + 1
            warnings.warn("inside", stacklevel=1)
            yield x + 2

    found = []
    for part in parts():
        warnings.warn("outside", stacklevel=1)
        found.append(part)
    return found


def left_by_an_error(x: torch.Tensor) -> Any:
    try:
        with sdpa_kernel(SDPBackend.MATH):
            x = F.scaled_dot_product_attention(x, x, x)
            pycompiler.graph_break()
            inside = torch.backends.cuda.flash_sdp_enabled()
            raise KeyError(1)
    except KeyError:
        pass
    return x, inside, torch.backends.cuda.flash_sdp_enabled()


def nested(x: torch.Tensor) -> Any:
    with sdpa_kernel(SDPBackend.MATH), torch.profiler.record_function("outer") as outer, torch.no_grad():
        x = F.scaled_dot_product_attention(x, x, x)
        with torch.profiler.record_function("inner"):
            pycompiler.graph_break()
            seen = torch.backends.cuda.flash_sdp_enabled(), torch.is_grad_enabled(), outer.name
    return x, seen, torch.backends.cuda.flash_sdp_enabled(), torch.is_grad_enabled()


def observed(fn: Callable[..., Any]) -> Any:
    """The result, the warnings and the final state of a call."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        try:
            result = fn(torch.ones(1, 1, 2, 2))
        except Warning as e:
            result = repr(e)
        left = warnings.filters == before, torch.backends.cuda.flash_sdp_enabled()
    return repr(result), [str(w.message) for w in heard], left


@pytest.mark.parametrize("fn", [raises, caught, recorded, broken, returned, suspended, left_by_an_error, nested])
def test_as_eager(fn: Callable[..., Any]) -> None:
    compiled, wanted = pycompiler.compile(fn, backend="eager"), observed(fn)
    assert [observed(compiled) for _ in range(3)] == [wanted] * 3


# profiler ranges, attention priorities --------------------------------------------------------------------------
EXISTING = torch.profiler.record_function("existing")


def passed(x: torch.Tensor) -> Any:
    with torch.profiler.record_function("ended") as ended, EXISTING:
        x = x + 1
    return x, ended.name


@torch.profiler.record_function("decorated")
def open_at_a_break(x: torch.Tensor) -> Any:
    x = x + 1
    with torch.autograd.profiler.record_function("open", "args"):
        pycompiler.graph_break()
        x = x * 2
    return x


def left_by_an_exception(x: torch.Tensor) -> Any:
    try:
        with torch.profiler.record_function("left"):
            x = x + 1
            int(x.sum().item()) // 0
    except ZeroDivisionError:
        x = x * 3
    return x


@pytest.mark.parametrize("fn", [open_at_a_break, left_by_an_exception], ids=lambda f: f.__name__)
def test_ranges_around_breaks_are_shown(fn: Callable[..., Any]) -> None:
    def shown(fn: Callable[..., Any]) -> Any:
        with torch.profiler.profile() as profile:
            result = fn(torch.ones(3))
        names = ("decorated", "open", "left")
        return result.tolist(), sorted((e.key, e.count) for e in profile.key_averages() if e.key in names)

    compiled = pycompiler.compile(fn, backend="eager")
    assert [shown(compiled) for _ in range(2)] == [shown(fn)] * 2


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_ranges_do_not_break_the_graph(backend: str) -> None:
    result, name = pycompiler.compile(passed, backend=backend, fullgraph=True)(torch.ones(3))
    assert result.tolist() == [2.0] * 3 and name == "ended"
    assert EXISTING.record is not None


# profilers with unused results ----------------------------------------------------------------------------------
def unread(x: torch.Tensor) -> Any:
    y = x**2
    with torch.profiler.profile():
        y = y + 2
        with torch.autograd.profiler.profile(), torch.profiler.record_function("inside"):
            z = y**3
    return z


def unread_around_a_break(x: torch.Tensor) -> Any:
    with torch.profiler.profile() as profiler:
        y = x + 2
        pycompiler.graph_break()
        y = y * 2
    del profiler
    return y


def unread_and_left_by_an_exception(x: torch.Tensor) -> Any:
    try:
        with torch.profiler.profile():
            x = x + 1
            raise KeyError
    except KeyError:
        return x * 3


def read_afterwards(x: torch.Tensor) -> Any:
    with torch.profiler.profile() as profiler:
        y = x + 1
    return y, len(profiler.events()) > 0


def read_beyond_a_break(x: torch.Tensor) -> Any:
    with torch.profiler.profile() as profiler:
        y = x + 1
        pycompiler.graph_break()
        y = y * 2
    return y, len(profiler.events()) > 0


def entered_twice(x: torch.Tensor) -> Any:
    profiler = torch.profiler.profile()
    with profiler:
        x = x + 1
    with profiler:
        return x + 2


def with_a_handler(x: torch.Tensor) -> Any:
    told: list[Any] = []
    with torch.profiler.profile(on_trace_ready=told.append):
        x = x + 1
    return x, len(told)


PROFILED = [(unread, 1), (unread_around_a_break, 2), (unread_and_left_by_an_exception, 1), (read_afterwards, 1),
            (read_beyond_a_break, 2), (entered_twice, 2), (with_a_handler, 1)]  # fmt: skip


nested = pytest.mark.skipif(torch.__version__ < "2.15", reason="older torches raise for profilers inside of profilers")


@pytest.mark.parametrize(
    ("fn", "graphs"),
    [pytest.param(*PROFILED[0], marks=nested), *PROFILED[1:]],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_profilers_inside(fn: Callable[..., Any], graphs: int) -> None:
    compiled = []

    def backend(gm: torch.fx.GraphModule, examples: Any) -> Any:
        compiled.append(gm)
        return gm.forward

    f = pycompiler.compile(fn, backend=backend)
    for _ in range(2):
        assert repr(f(torch.ones(2))) == repr(fn(torch.ones(2)))
    assert len(compiled) == graphs
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]


@nested
def test_a_profiler_inside_of_another_is_switched_on() -> None:
    def shown(f: Callable[..., Any]) -> int:
        with torch.profiler.profile() as outer:
            f(torch.ones(2))
        return len(outer.events())

    compiled = pycompiler.compile(unread, backend="eager")
    compiled(torch.ones(2))
    assert shown(compiled) == shown(unread) == 0  # the profiler ends the outer one


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_priorities_of_attention(backend: str) -> None:
    order = torch._C._get_sdp_priority_order

    def fn(x: torch.Tensor) -> Any:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
            y, inside = F.scaled_dot_product_attention(x, x, x), list(order())
        return y, inside, list(order())

    x, before = torch.rand(1, 2, 4, 8), order()
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    try:
        for outside in (before, before[::-1], before):
            torch._C._set_sdp_priority_order(outside)
            want, got = fn(x), compiled(x)
            torch.testing.assert_close(got[0], want[0])
            assert got[1:] == want[1:] and order() == outside
    finally:
        torch._C._set_sdp_priority_order(before)


def quiet(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = x + 1
    return y * 2


def warning(x):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="hidden", category=UserWarning)
        y = x + 1
        warnings.warn("hidden", stacklevel=1)
        y = y * 3
        warnings.warn("shown", stacklevel=1)
    warnings.warn("hidden", stacklevel=1)
    return y * 2


def left_by_an_exception(x):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with warnings.catch_warnings():
                warnings.resetwarnings()
                raise ValueError(x)
    except ValueError as e:
        y = e.args[0] + 1
    return y


def broken_inside(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", append=True)
        y = x + 1
        pycompiler.graph_break()
        known = list(warnings.filters)
    return y * 2, known


def looked_at(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = len(warnings.filters), warnings.filters[0]
        y = x + 1
    return y * 2, known


def kept(x):
    warnings.simplefilter("ignore", DeprecationWarning)
    return x + 1, warnings.catch_warnings(record=True)


def with_errors(x):
    with warnings.catch_warnings(action="error"):
        y = x + 1
        try:
            warnings.warn("raised", stacklevel=1)
        except UserWarning as e:
            return y, str(e)


def twice(fn, x):
    """The results, warnings and final state of two calls."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        filters, seen = warnings.filters, []
        for _ in range(2):
            seen.append(fn(x))
            seen.append((warnings.filters is filters, list(filters)))
        made = [vars(v[1]) if isinstance(v, tuple) and isinstance(v[1], warnings.catch_warnings) else v for v in seen]
        return made, [str(w.message) for w in shown]


@pytest.mark.parametrize("fn, breaks", [(quiet, 0), (warning, 0), (left_by_an_exception, 0), (broken_inside, 1), (looked_at, 1),
                                        (kept, 0), (with_errors, 1)])  # fmt: skip
def test_filters_of_warnings(fn: Callable[..., Any], breaks: int) -> None:
    x = torch.tensor(1.0)
    assert twice(pycompiler.compile(fn, backend="eager"), x) == twice(fn, x)
    with warnings.catch_warnings():
        report = pycompiler.explain(fn)(x)
    assert report.graph_break_count == breaks, report


def test_ranges_of_nvtx_pass_through() -> None:
    """Pushes and pops run after the graph, in order; their results are read outside it."""
    nvtx = torch.cuda.nvtx

    def program(x: Any) -> Any:
        nvtx.range_push("whole")
        with nvtx.range("part {}", 1):
            y = x.sin()
            nvtx.mark("here")
        nvtx.range_pop()
        return y + 1

    calls: list[Any] = []
    told = {
        name: (lambda *a, _name=name: calls.append((_name, *a)))  # type: ignore[misc]
        for name in ("rangePushA", "rangePop", "markA")
    }
    if not isinstance(nvtx._nvtx.rangePushA, type(len)):
        pytest.skip("this torch has no NVTX")
    explained = pycompiler.explain(program)(X)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    compiled = pycompiler.compile(program, fullgraph=True)
    assert torch.equal(compiled(X), program(X))
    with unittest.mock.patch.multiple(nvtx._nvtx, **told):
        assert torch.equal(compiled(X), program(X))
    half = len(calls) // 2
    assert calls[:half] == calls[half:] and len(calls) == 10

    def depth(x: Any) -> Any:
        deep = nvtx.range_push("whole")
        return x + 1, deep - nvtx.range_pop()

    assert pycompiler.compile(depth)(X)[1] == depth(X)[1] == 0
