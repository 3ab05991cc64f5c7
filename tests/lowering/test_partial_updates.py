"""In-place writes of parts of inputs, in the input or in a copy: values, versions, views and errors equal eager's
either way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import graphs
from pycompiler.ir.kernel import Schedule
from pycompiler.ir.loops import Extern
from tests.harness.compare import assert_same

r = torch.randn
BIG = (2, 512, 8)


def at(*places: int) -> torch.Tensor:
    return torch.tensor(places)


def attention(k: Any, v: Any, pos: Any, x: Any) -> Any:
    k.index_copy_(1, pos, x)
    v.index_copy_(1, pos, x * 2)
    return (x @ k.transpose(1, 2)).softmax(-1) @ v


def assign(c: Any, pos: Any, x: Any) -> Any:
    c[:, pos] = x
    return c.sum(1)


def assign_one_place(c: Any, i: Any, j: Any, x: Any) -> Any:
    c[i, j] = x
    return c.sum(1)


def part_of_another(c: Any, d: Any, x: Any) -> Any:
    c.copy_(torch.slice_scatter(d, x, 1, 3, 5))
    return c * 2, d + 1


def accumulate(c: Any, i: Any, j: Any, x: Any) -> Any:
    return c.index_put_((i, j), x, accumulate=True).sum(1)


def slices(c: Any, x: Any) -> Any:
    c[:, 3:5] = x
    return c[:, :5] * 2


def nested(c: Any, x: Any) -> Any:
    c[:1, 3:5] = x[:1]
    return c[:, :5] * 2


def narrowed(c: Any, x: Any) -> Any:
    c.narrow(1, 7, 2).copy_(x)
    return c * 2


def layer(c: Any, pos: Any, x: Any) -> Any:
    c[1].index_copy_(0, pos, x[1])
    return c[1] + 1


def two_layers(c: Any, pos: Any, x: Any) -> Any:
    c[0].index_copy_(0, pos, x[0])
    c[1, 4:6] = x[1]
    return c + 1


def twice(c: Any, pos: Any, x: Any) -> Any:
    c.index_copy_(1, pos, x)
    seen = c * 3
    c.index_copy_(1, pos + 1, x * 2)
    return seen, c * 2


def every_kind(c: Any, pos: Any, x: Any) -> Any:
    c.index_copy_(1, pos, x)
    c[:, 9:11] = x
    c.index_add_(1, pos, x)
    c.scatter_(1, pos.view(1, -1, 1).expand(2, -1, 8), 2.5)
    return c.sum(1)


def scattered(c: Any, pos: Any, x: Any) -> Any:
    return c.scatter_(1, pos.view(1, -1, 1).expand(2, -1, 8), x) * 2


def scatter_added(c: Any, pos: Any, x: Any) -> Any:
    return c.scatter_add_(1, pos.view(1, -1, 1).expand(2, -1, 8), x) * 2


def of_a_cast(c: Any, x: Any) -> Any:
    c[:, 3:5] = x.double()
    return c.sum()


def of_its_own(c: Any, pos: Any) -> Any:
    c.index_copy_(1, pos, c[:, 5:7] * 2)
    return c.sum(1)


def old_value_first(c: Any, pos: Any, x: Any) -> Any:
    old = c * 2
    c.index_copy_(1, pos, x)
    return old, c + 1


def old_value_last(c: Any, pos: Any, x: Any) -> Any:
    old = c.clone()
    c.index_copy_(1, pos, x)
    return (old @ x.transpose(1, 2)).sum(1), c + 1


def returned(c: Any, pos: Any, x: Any) -> Any:
    return c.index_copy_(1, pos, x), c[:, 3]


def refused_later(c: Any, pos: Any, x: Any, table: Any) -> Any:
    c.index_copy_(1, pos, x)
    return table.index_select(0, c.sum().to(torch.int64).view(1) % 3)


def positions_of_its_own(c: Any, n: Any, x: Any) -> Any:
    pos = torch.arange(2) + n
    n.add_(2)
    c.index_copy_(1, pos, x)
    return c.sum(1)


# name -> (function, arguments, number of inputs whose parts are written in place)
CASES: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]], int]] = {
    "attention": (attention, lambda: [r(2, 512, 8), r(2, 512, 8), at(5), r(2, 1, 8)], 2),
    "equal places": (lambda c, p, x: c.index_copy_(1, p, x) + 1, lambda: [r(BIG), at(5, 5, 5), r(2, 3, 8)], 1),
    "assign": (assign, lambda: [r(BIG), at(5, -1), r(2, 2, 8)], 1),
    "assign, broadcast": (assign, lambda: [r(BIG), at(5, -1), r(8)], 1),
    "assign, int32": (assign, lambda: [r(BIG), at(5, 7).int(), r(2, 2, 8)], 1),
    "assign at places": (assign_one_place, lambda: [r(BIG), at(0, 1, -1), at(5, 2, -512), r(3, 8)], 1),
    "accumulate": (accumulate, lambda: [r(BIG), at(0, 0, -1), at(5, 5, 3), r(3, 8)], 1),
    "mask": (lambda c, m, x: c.index_put_((m,), x) * 2, lambda: [r(BIG), torch.arange(2) > 0, r(1, 512, 8)], 0),
    "slice": (slices, lambda: [r(BIG), r(2, 2, 8)], 1),
    "slice, broadcast": (slices, lambda: [r(BIG), r(8)], 1),
    "slice, another type": (slices, lambda: [r(BIG), torch.arange(8)], 1),
    "slice of a cast": (of_a_cast, lambda: [r(BIG), r(2, 2, 8)], 1),
    "slices": (nested, lambda: [r(BIG), r(2, 2, 8)], 1),
    "narrow": (narrowed, lambda: [r(BIG), r(2, 2, 8)], 1),
    "layer": (layer, lambda: [r(BIG), at(5, 6), r(2, 2, 8)], 1),
    "two layers": (two_layers, lambda: [r(BIG), at(5, 6), r(2, 2, 8)], 1),
    "twice": (twice, lambda: [r(BIG), at(5, 6), r(2, 2, 8)], 1),
    "every kind": (every_kind, lambda: [r(BIG), at(5, 6), r(2, 2, 8)], 1),
    "scatter": (scattered, lambda: [r(BIG), at(5, 6), r(2, 2, 8)], 1),
    "scatter_add": (scatter_added, lambda: [r(BIG), at(5, 5), r(2, 2, 8)], 1),
    "bfloat16": (assign, lambda: [r(BIG).bfloat16(), at(5), r(2, 1, 8).bfloat16()], 1),
    "integers": (assign, lambda: [torch.arange(4096).view(2, 256, 8), at(5), torch.ones(2, 1, 8).long()], 1),
    "complex": (assign, lambda: [r(BIG, dtype=torch.complex64), at(5), r(2, 1, 8, dtype=torch.complex64)], 0),
    "transposed": (assign, lambda: [r(512, 2, 8).transpose(0, 1), at(5), r(2, 1, 8)], 1),
    "with gaps": (assign, lambda: [r(2, 512, 16)[:, :, ::2], at(5), r(2, 1, 8)], None),
    "at an offset": (slices, lambda: [r(3, 512, 8)[1:], r(2, 2, 8)], 1),
    "of another": (part_of_another, lambda: [r(BIG), r(BIG), r(2, 2, 8)], 0),
    "of its own": (of_its_own, lambda: [r(BIG), at(6, 5)], 1),
    "old value first": (old_value_first, lambda: [r(BIG), at(5), r(2, 1, 8)], 1),
    "old value last": (old_value_last, lambda: [r(BIG), at(5), r(2, 1, 8)], None),
    "returned": (returned, lambda: [r(BIG), at(5), r(2, 1, 8)], None),
    "refused later": (refused_later, lambda: [r(BIG), at(5), r(2, 1, 8), r(3)], 0),
    "own positions": (positions_of_its_own, lambda: [r(BIG), torch.tensor(3), r(2, 2, 8)], 1),
    "small": (slices, lambda: [r(2, 16, 8), r(2, 2, 8)], 0),
    "most of it": (slices, lambda: [r(2, 5, 512), r(2, 2, 512)], 0),
}  # fmt: skip


@pytest.fixture
def schedules(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Schedule]]:
    """The schedule of each compiled graph, independent of other tests' caches."""
    made: list[Schedule] = []
    scheduled = graphs.scheduled
    monkeypatch.setattr(graphs, "scheduled", lambda *a: made.append(scheduled(*a)) or made[-1])
    with pycompiler.config.patch(share_regions=False):
        yield made


def written(s: Schedule) -> set[str]:
    """Inputs that calls write in place."""
    calls = [step for step in s.steps if isinstance(step, Extern)]
    return {s.stores[name] for call in calls for name in call.mutates if name in s.stores}


def fresh(args: list[Any]) -> list[Any]:
    """The arguments in memory of their own with the same layout and offset."""
    return [torch.empty(0, dtype=a.dtype).set_(a.untyped_storage().clone(), a.storage_offset(), a.shape, a.stride())
            if isinstance(a, torch.Tensor) else a for a in args]  # fmt: skip


def outcome(f: Callable[..., Any], args: list[Any]) -> tuple[Any, list[Any], list[int]]:
    """(results or the error, the arguments' contents afterwards, the number of writes of each)."""
    before = [a._version for a in args]
    try:
        results: Any = f(*args)
    except (IndexError, RuntimeError) as e:
        results = (type(e), str(e).splitlines()[0])
    return results, args, [a._version - v for a, v in zip(args, before, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, schedules: list[Schedule]) -> None:
    f, make, in_place = CASES[name]
    torch.manual_seed(0)
    args = make()
    compiled = pycompiler.compile(f, fullgraph=True)
    for _ in range(2):
        (want, theirs, counts), (got, ours, ours_counts) = outcome(f, fresh(args)), outcome(compiled, fresh(args))
        assert_same(got, want)
        assert_same(ours, theirs, exact=True)
        assert [n > 0 for n in counts] == [n > 0 for n in ours_counts]
    if in_place is not None:
        (s,) = schedules
        assert len(written(s)) == in_place, str(s)


def test_a_part_of_another_tensor_needs_no_copy(schedules: list[Schedule]) -> None:
    pycompiler.compile(part_of_another, fullgraph=True)(r(BIG), r(BIG), r(2, 2, 8))
    (s,) = schedules
    assert not any(isinstance(step, Extern) for step in s.steps), str(s)


def two_caches(k: Any, v: Any, pos: Any, late: Any, x: Any) -> Any:
    k.index_copy_(1, pos, x)
    v.index_copy_(1, late, x)
    return k + v


WRONG: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {
    "first": (two_caches, lambda: [r(BIG), r(BIG), at(512), at(5), r(2, 1, 8)]),
    "second": (two_caches, lambda: [r(BIG), r(BIG), at(5), at(512), r(2, 1, 8)]),
    "negative": (two_caches, lambda: [r(BIG), r(BIG), at(5), at(-1), r(2, 1, 8)]),
    "some of it is written": (two_caches, lambda: [r(BIG), r(BIG), at(5, 6), at(5, 600), r(2, 2, 8)]),
    "assign": (assign, lambda: [r(BIG), at(-513), r(2, 1, 8)]),
    "assign at places": (assign_one_place, lambda: [r(BIG), at(0, 2), at(5, 6), r(2, 8)]),
    "layer": (layer, lambda: [r(BIG), at(512, 6), r(2, 2, 8)]),
    "scatter": (scattered, lambda: [r(BIG), at(5, 512), r(2, 2, 8)]),
    "added": (every_kind, lambda: [r(BIG), at(5, 512), r(2, 2, 8)]),
    "refused later": (refused_later, lambda: [r(BIG), at(512), r(2, 1, 8), r(3)]),
    "behind an index": (
        lambda c, t, i, pos: (c.index_copy_(1, pos, t[i].view(2, 1, 8)), c * 2)[1],
        lambda: [r(BIG), r(4, 8), at(1, 4), at(5)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors_leave_what_eager_leaves(name: str) -> None:
    """An index error in an input that eager has not written yet, or has written in part."""
    f, make = WRONG[name]
    args = make()
    compiled = pycompiler.compile(f)
    want, got = outcome(f, fresh(args)), outcome(compiled, fresh(args))
    assert isinstance(want[0], tuple)
    assert_same(got, want, exact=True)


def test_inputs_that_share_memory() -> None:
    compiled = pycompiler.compile(assign)
    c, pos = r(BIG), at(5)
    assign_to, other = fresh([c])[0], fresh([c])[0]
    compiled(fresh([c])[0], pos, r(2, 1, 8))
    want = assign(other, pos, other[:, 4:5])
    assert torch.equal(compiled(assign_to, pos, assign_to[:, 4:5]), want)
    assert torch.equal(assign_to, other)


def test_positions_that_are_numbers(schedules: list[Schedule]) -> None:
    """One position after the other: the second compile has a symbol, and writes the cache in place."""

    def step(c: torch.Tensor, n: int, x: torch.Tensor) -> torch.Tensor:
        c[:, n : n + 1] = x
        return c.sum(1)

    compiled = pycompiler.compile(step, fullgraph=True)
    ours, theirs = torch.zeros(BIG), torch.zeros(BIG)
    for n in (*range(8), 511, 512, -1):
        x = r(2, 1, 8)
        want, got = outcome(lambda: step(theirs, n, x), []), outcome(lambda: compiled(ours, n, x), [])
        assert type(got[0]) is type(want[0])
        assert torch.equal(ours, theirs), n
    assert [len(written(s)) for s in schedules[:2]] == [1, 1]


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "enable_grad"])
def test_a_module_that_decodes(mode: str) -> None:
    """Each step sees the writes of the earlier steps."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = torch.nn.Linear(8, 8)
            self.register_buffer("k", torch.zeros(2, 300, 8))
            self.register_buffer("v", torch.zeros(2, 300, 8))

        def forward(self, x: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
            k, v = x.detach() * 2, x.detach() - 1
            self.k[:, pos] = k
            self.v.index_copy_(1, pos, v)
            return x + (self.q(x) @ self.k.transpose(1, 2)).softmax(-1) @ self.v

    torch.manual_seed(0)
    theirs = torch.nn.Sequential(Layer(), Layer()).double()
    ours = torch.nn.Sequential(Layer(), Layer()).double()
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())  # this counts as a write

    def forward(m: torch.nn.Sequential, x: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        for part in m:
            x = part(x, pos)
        return x

    compiled = pycompiler.compile(forward, fullgraph=True)
    for n in range(4):
        x, pos = r(2, 1, 8).double(), at(n)
        with getattr(torch, mode)():
            got, want = compiled(ours, x, pos), forward(theirs, x, pos)
        torch.testing.assert_close(got, want)
        if mode == "enable_grad":
            got.sum().backward()
            want.sum().backward()
    for (name, a), b in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b)
        assert a._version == b._version or mode == "inference_mode", name
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
