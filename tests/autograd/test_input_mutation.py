"""Inputs that a compiled function writes: values, versions, gradients and errors match eager, through the whole compiler."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pycompiler

pytestmark = pytest.mark.usefixtures("fresh")

ERROR = "one of the variables needed for gradient computation has been modified by an inplace operation"


def memories(how: str) -> tuple[Tensor, Tensor]:
    """Two inputs: separate, or parts of one memory."""
    x = torch.arange(16.0)
    return {
        "apart": (x, x.clone()),
        "neighbours": (x[:8], x[8:]),
        "the same": (x, x.view(16)),
        "a part": (x, x[4:8]),
        "around it": (x[4:8], x),
        "other dtype": (x, x.view(torch.int32)),
        "interleaved": (x[::2], x[1::2]),
        "reversed roles": (x.view(4, 4)[0], x.view(4, 4).t()),
    }[how]


@pytest.mark.parametrize("first", ["apart", "a part"])
def test_inputs_that_share_memory(first: str, caplog: pytest.LogCaptureFixture) -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        b.mul_(2)
        return (b * 2).sum() + a.sum()

    compiled = pycompiler.compile(f, recompile_limit=64)
    compiled(*memories(first))
    hows = ["apart", "neighbours", "the same", "a part", "around it", "interleaved", "reversed roles"]
    for how in [*hows, *reversed(hows)]:
        ours, theirs = memories(how), memories(how)
        with caplog.at_level(logging.INFO, logger="pycompiler.autograd"):
            caplog.clear()
            torch.testing.assert_close(compiled(*ours), f(*theirs), msg=lambda m, how=how: f"{how}: {m}")
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, msg=lambda m, how=how: f"{how}: {m}")
        eager = any("shares memory with another input" in r.getMessage() for r in caplog.records)
        assert eager == (how not in ("apart", "neighbours")), how


def test_shared_memory_of_another_dtype() -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return b * 2

    ours, theirs = memories("other dtype"), memories("other dtype")
    assert torch.equal(pycompiler.compile(f)(*ours), f(*theirs))
    assert torch.equal(ours[0], theirs[0])


def test_shared_memory_with_gradients() -> None:
    """A buffer that is written and overlaps an argument, in a graph with a backward."""

    def f(w: Tensor, state: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            state.add_(1)
        return (w * x).sum()

    def run(fn: Callable[..., Tensor], overlap: bool) -> list[Tensor]:
        w, state = torch.arange(4.0).requires_grad_(), torch.arange(8.0)
        loss = fn(w, state, state[2:6] if overlap else state[2:6].clone())
        loss.backward()
        assert w.grad is not None
        return [loss.detach(), w.grad, state]

    compiled = pycompiler.compile(f)
    for overlap in (False, True, False):
        torch.testing.assert_close(run(compiled, overlap), run(f, overlap))


# ---- versions ------------------------------------------------------------------------------------------------------


def test_a_saved_tensor_that_is_written_is_noticed() -> None:
    def step(x: Tensor) -> None:
        with torch.no_grad():
            x.mul_(2)

    for fn in (step, pycompiler.compile(step)):
        w, x = torch.ones(4, requires_grad=True), torch.arange(4.0)
        loss = (w * x).sum()
        fn(x)
        assert x.tolist() == [0, 2, 4, 6]
        with pytest.raises(RuntimeError, match=ERROR):
            loss.backward()


def test_what_a_compiled_graph_saved_is_noticed_too() -> None:
    def forward(w: Tensor, x: Tensor) -> Tensor:
        return (w * x).sin()

    def step(x: Tensor) -> None:
        with torch.no_grad():
            x.add_(1)

    compiled, write = pycompiler.compile(forward), pycompiler.compile(step)
    w, x = torch.ones(4, requires_grad=True), torch.arange(4.0)
    loss = compiled(w, x).sum()
    write(x)
    with pytest.raises(RuntimeError, match=ERROR):
        loss.backward()


def test_a_value_saved_before_its_write_in_one_graph() -> None:
    """The gradient needs the old value. Eager saved the tensor itself and refuses."""

    def f(w: Tensor, x: Tensor) -> Tensor:
        y = w * x.clone()
        with torch.no_grad():
            x.mul_(3)
        return y.sum()

    for fn in (f, pycompiler.compile(f)):
        w, x = torch.ones(4, requires_grad=True), torch.arange(4.0)
        fn(w, x).backward()
        assert w.grad is not None
        assert w.grad.tolist() == [0, 1, 2, 3]
        assert x.tolist() == [0, 3, 6, 9]


def test_batch_norm_statistics() -> None:
    ours = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    theirs = copy.deepcopy(ours)
    compiled = pycompiler.compile(ours)
    before = [[b._version for b in m.buffers()] for m in (ours, theirs)]
    for k in range(3):
        x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(k))
        compiled(x).sum().backward()
        theirs(x).sum().backward()
    for a, b in zip([*ours.buffers(), *ours.parameters()], [*theirs.buffers(), *theirs.parameters()], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    counted = [[b._version - v for b, v in zip(m.buffers(), vs, strict=True)]
               for m, vs in zip((ours, theirs), before, strict=True)]  # fmt: skip
    assert counted[0] == counted[1]


def test_expanded_input_is_refused_as_in_eager() -> None:
    def f(x: Tensor) -> None:
        x.add_(1)

    for fn in (f, pycompiler.compile(f)):
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            fn(torch.zeros(1).expand(4))


# ---- random programs -----------------------------------------------------------------------------------------------

OPERATORS: list[Callable[[Tensor, Tensor], Any]] = [
    lambda x, y: x.add_(y),
    lambda x, y: x.mul_(0.5),
    lambda x, y: x.copy_(y * 2),
    lambda x, y: x.t().sub_(y),
    lambda x, y: x[1:].add_(y[:-1]),
    lambda x, y: x.add_(y.sum()),
    lambda x, y: x.sub_(y.mean(0)),
    lambda x, y: x.clamp_(-1, 1),
    lambda x, y: x.view(-1)[::2].zero_(),
    lambda x, y: x * y,
    lambda x, y: (x + y).relu(),
    lambda x, y: x.t() + 1,
]


def program(seed: int) -> Callable[..., Any]:
    """A random program that writes into some of its arguments and computes values from the others."""

    def run(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        rng = random.Random(seed)
        values = [a, b, c]
        for _ in range(rng.randrange(2, 7)):
            values.append(rng.choice(OPERATORS)(rng.choice(values), rng.choice(values)))
        made = [v for v in values[3:] if v.shape == a.shape]
        return tuple(v + 0 for v in made[-2:])

    return run


def arguments(shared: bool) -> tuple[Tensor, ...]:
    base = torch.rand(30, generator=torch.Generator().manual_seed(3))
    a, b = base[:9].view(3, 3), base[9:18].view(3, 3).t()
    return (a, b, (base[6:15] if shared else base[18:27]).view(3, 3))


@pytest.mark.parametrize("block", range(3))
def test_random_programs(block: int) -> None:
    """Values and version counts of the arguments, with separate arguments and (the same entry) with shared memory."""
    compared = 0
    for seed in range(block * 12, block * 12 + 12):
        fn = program(seed)
        compiled = pycompiler.compile(fn)
        for shared in (False, True, False):
            ours, theirs = arguments(shared), arguments(shared)
            start = [t._version for t in ours]
            try:
                with torch.no_grad():
                    expected = fn(*theirs)
            except RuntimeError:
                continue  # eager refuses: source and target overlap
            with torch.no_grad():
                got = compiled(*ours)
            for a, b in zip([*got, *ours], [*expected, *theirs], strict=True):
                torch.testing.assert_close(a, b, msg=lambda m, seed=seed: f"seed {seed}, shared {shared}: {m}")
            written = [[t._version > v for t, v in zip(ts, start, strict=True)] for ts in (ours, theirs)]
            assert written[0] == written[1], f"seed {seed}, shared {shared}"
            compared += 1
    assert compared >= 12


EXPANDED: dict[str, Callable[[Tensor], object]] = {
    "its own sizes": lambda y: y.expand(2, 3).fill_(1.0),
    "one more dimension": lambda y: y.expand(1, 2, 3).mul_(0.5),
    "as another": lambda y: y.expand_as(y).floor_(),
    "transposed": lambda y: y.t().expand(3, -1).fill_(2.0),
    "broadcast": lambda y: torch.broadcast_to(y, (2, 3)).fill_(1.0),
    "among others": lambda y: torch.broadcast_tensors(y, y + 1)[0].fill_(1.0),
    "a row of many": lambda y: y[:1].expand(2, 3)[1].fill_(1.0),
    "at an index": lambda y: y.expand(2, 3).__setitem__(0, 1.0),
    "one of a list": lambda y: torch._foreach_mul_([y.expand(2, 3)], 0.5),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_expanded_tensors_are_written(name: str) -> None:
    """Functionalisation turns the write into the old value plus a difference. Infinities must not give
    NaN there, and large numbers must not lose the digits of the written value (seed 80049393)."""

    def fn(x: Tensor) -> Tensor:
        y = x * 2
        EXPANDED[name](y)
        return y * torch.tensor([torch.nan, 1.0, 1.0])

    for grad in (False, True):
        numbers = [[torch.inf, 1e20, 1.0], [1e-20, -torch.inf, 3.0]]
        given = [torch.tensor(numbers, requires_grad=grad) for _ in range(2)]
        results = [f(x) for f, x in zip((fn, pycompiler.compile(fn)), given, strict=True)]
        torch.testing.assert_close(results[1], results[0], equal_nan=True, rtol=0, atol=0)
        if grad:
            for r in results:
                r.sum().backward()
            torch.testing.assert_close(given[1].grad, given[0].grad, equal_nan=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("where", ["before the call", "in the graph"])
@pytest.mark.parametrize("through", ["itself", "a part", "data"])
def test_writes_to_lists_of_tensors_are_counted(through: str, where: str, backend: str) -> None:
    """A backward that reads a tensor raises after a later write to it, for example by a step of an optimizer."""

    def program(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        out = x * z
        torch._foreach_add_([{"itself": z, "a part": z[:1], "data": z.data}[through], torch.ones(2)], 1.0)
        return out

    found = []
    for fn in (program, pycompiler.compile(program, backend=backend)):
        x, z = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
        before = x * z
        out = fn(x, z)
        try:
            (before if where == "before the call" else out).sum().backward()
            error = ""
        except RuntimeError as raised:
            error = str(raised)[: len(ERROR)]
        found.append((z.tolist(), z._version, error))
    assert found[0] == found[1]
    assert found[0][2] == ("" if through == "data" else ERROR)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in ("sum", "prod") for dtype in (torch.int64, torch.uint8)]
    + [(name, torch.float64) for name in ("sum", "prod", "mean", "nansum", "nanmean")],
)
def test_a_reduction_computes_in_the_dtype_of_out(name: str, dtype: torch.dtype, backend: str) -> None:
    """With an integer `out` the reduction adds integers: 1.6 + 2.7 is 3."""

    def program(x: Tensor) -> Tensor:
        out = torch.zeros(2, dtype=dtype)
        getattr(torch, name)(x, 0, out=out)
        return out

    x = torch.tensor([[1.6, 2.7], [2.7, 3.8], [3.8, 1.6]])
    assert torch.equal(pycompiler.compile(program, backend=backend)(x), program(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", ["arange", "linspace", "logspace", "range"])
@pytest.mark.parametrize("shape", [(2, 2), (4,), (3,), (3, 3), ()])
def test_a_range_fills_out_as_it_lies(shape: tuple[int, ...], name: str, backend: str) -> None:
    """`out` keeps its layout where it has as many elements, whatever its shape is."""

    def program() -> Tensor:
        out = torch.zeros(shape).t() if len(shape) == 2 else torch.zeros(shape)
        getattr(torch, name)(*{"arange": (4,), "range": (0, 3)}.get(name, (0, 2, 4)), out=out)
        return out

    assert torch.equal(pycompiler.compile(program, backend=backend)(), program())


def _one_row(m: nn.Linear, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.weight[:2].mul_(0.9)
    return x * 2


def _rows_between_uses(m: nn.Linear, x: Tensor) -> Tensor:
    y = m(x)
    with torch.no_grad():
        m.weight[0].zero_()
        m.weight[1] = 5
        m.weight[:, 1].add_(2)
        part = m.weight[:2]
        part.view(-1).add_(1)
        part.mul_(2)
    return m(x) + y.detach()


def _rows_of_a_result(m: nn.Linear, x: Tensor) -> Tensor:
    z = m.weight * 2
    with torch.no_grad():
        part = z[:2]
        part.mul_(0.9)
        read = part + 1
    return z * x + read.sum()


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("program", [_one_row, _rows_between_uses, _rows_of_a_result])
def test_parts_of_parameters_that_are_written_without_gradients(program: Any, backend: str, caplog: Any) -> None:
    """Autograd refuses to give the history of such a view. The program does not read the history, so the graph is compiled."""
    sides = []
    with caplog.at_level(logging.WARNING, logger="pycompiler.autograd"):
        for run in (program, pycompiler.compile(program, backend=backend, fullgraph=True)):
            torch.manual_seed(0)
            m, x = nn.Linear(3, 3), torch.linspace(-1, 1, 9).view(3, 3).requires_grad_()
            made = run(m, x)
            made.sum().backward()
            sides.append((made, x.grad, m.weight.detach(), m.weight.grad))
    torch.testing.assert_close(sides[1], sides[0])
    assert not caplog.records


def _cut_off(x: Tensor) -> Tensor:
    return x.detach_() + 1


def _cut_off_a_view_of_its_own(x: Tensor) -> Any:
    try:
        (x + 1).view(-1).detach_()
    except RuntimeError as e:
        return x + 1, str(e)
    return x


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", [_cut_off, _cut_off_a_view_of_its_own])
def test_views_refuse_to_be_cut_off(program: Any, backend: str) -> None:
    compiled = pycompiler.compile(program, backend=backend)
    for make in (lambda: torch.ones(2, 3), lambda: torch.ones(3, 2).view(2, 3), lambda: torch.ones(2, 3)):
        sides = []
        for run in (program, compiled):
            try:
                sides.append(str(run(make())))
            except RuntimeError as e:
                sides.append(repr(e))
        assert sides[1] == sides[0]
    assert compiled.counters()["compiles"] == (2 if program is _cut_off else 1)
