"""Collectives in graphs, compared with eager in every process of a gloo group."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.tensor

import pycompiler
from pycompiler import graphs
from pycompiler.autograd import compile_joint
from pycompiler.operators import process_groups
from tests.harness.compare import assert_same
from tests.processes import Processes, fresh_store, start

BACKENDS = ("eager", "aot_eager", "native")
ops = torch.ops._c10d_functional


# programs that run in each process ----------------------------------------------------------------------------
def plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    if isinstance(value, functional.AsyncCollectiveTensor):
        value = value.wait()
    return value.detach() if isinstance(value, torch.Tensor) else value


def given(rank: int, world: int, *, grad: bool = False) -> torch.Tensor:
    return (torch.arange(6.0 * world).reshape(2 * world, 3) / 7 + rank).requires_grad_(grad)


def results(call: Callable[..., Any], rank: int, world: int, *, grad: bool = False) -> list[Any]:
    """For each of two calls: the result, the final argument and its gradient."""
    found = []
    for _ in range(2):
        x = given(rank, world, grad=grad)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            result = call(x)
        if grad:
            (plain_sum(result)).backward()
        found.append([plain(result), x.detach(), x.grad])
    return found


def plain_sum(result: Any) -> torch.Tensor:
    if isinstance(result, functional.AsyncCollectiveTensor):
        result = result + 0
    return result.sum() if isinstance(result, torch.Tensor) else sum(map(plain_sum, result))  # type: ignore[arg-type, return-value]


def same(
    fn: Callable[..., Any], rank: int, world: int, *, grad: bool = False, backends: tuple[str, ...] = BACKENDS
) -> None:
    wanted = results(fn, rank, world, grad=grad)
    for backend in backends:
        compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
        assert_same(results(compiled, rank, world, grad=grad), wanted)
        assert compiled.counters()["compiles"] == 1
    assert torch._C._distributed_c10d._get_work_registry_size() == 0  # type: ignore[attr-defined]


def functions(world: int) -> dict[str, Callable[..., Any]]:
    group = dist.group.WORLD
    assert group is not None
    return {
        "all_reduce": lambda x: functional.all_reduce(x * 2, "sum", [*range(world)]) + 1,
        "all_gather": lambda x: functional.all_gather_tensor(x * 2, 0, group).sin(),
        "columns": lambda x: functional.all_gather_tensor(x * 2, 1, group).sin(),
        "reduce_scatter": lambda x: functional.reduce_scatter_tensor(x * 2, "sum", 0, group).sin(),
        "all_to_all": lambda x: functional.all_to_all_single(x * 2, None, None, group).sin(),
        "coalesced": lambda x: [t.sin() for t in functional.all_reduce_coalesced([x * 2, x.cos()], "sum", group)],
        "several": lambda x: (
            functional.all_reduce(functional.all_reduce(x, "sum", group).sin(), "sum", group)
            * functional.all_reduce(x.cos(), "sum", group)
        ),
    }


def run_functional(rank: int, world: int) -> None:
    for name, fn in functions(world).items():
        if world == 2 or name == "several":
            kernels = name in ("several", "coalesced")
            same(fn, rank, world, grad=True, backends=BACKENDS if kernels else BACKENDS[:2])
    same(functions(world)["reduce_scatter"], rank, world)
    group = dist.group.WORLD
    same(lambda x: functional.broadcast(x * 2, 1, group).sin(), rank, world)  # type: ignore[arg-type]


def run_in_place(rank: int, world: int) -> None:
    def reduced(x: torch.Tensor) -> Any:
        y = x * 2
        dist.all_reduce(y)
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        return y + x

    def gathered(x: torch.Tensor) -> Any:
        whole, part = torch.empty(x.shape[0] * world, 3), torch.empty(2, 3)
        dist.all_gather_into_tensor(whole, x.sin())
        dist.reduce_scatter_tensor(part, x.cos())
        parts = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(parts, x)
        changed = torch.empty_like(x)
        dist.all_to_all_single(changed, x)
        return whole + 1, part, parts[-1] * 2, changed

    for fn in (reduced, gathered):
        same(fn, rank, world)


def run_handles(rank: int, world: int) -> None:
    """Collectives that continue after the call, until the program waits."""

    def waits(x: torch.Tensor) -> Any:
        y = x * 2
        work = dist.all_reduce(y, async_op=True)
        between = x.sin()
        assert work is not None
        done = work.wait()
        return y + between, done

    def several(x: torch.Tensor) -> Any:
        whole, part, own = torch.empty(x.shape[0] * world, 3), torch.empty(x.shape[0] // world, 3), x * 1
        works = [
            dist.all_gather_into_tensor(whole, x.sin(), async_op=True),
            dist.reduce_scatter_tensor(part, x.cos(), async_op=True),
            dist.all_reduce(own, op=dist.ReduceOp.MAX, async_op=True),
        ]
        for work in works:
            work.wait()  # type: ignore[union-attr]
        return whole * 2, part + 1, own

    def of_an_argument(x: torch.Tensor) -> Any:
        work = dist.all_reduce(x, async_op=True)
        work.wait()  # type: ignore[union-attr]
        work.wait()  # type: ignore[union-attr]
        return x * 2

    for fn in (waits, several, of_an_argument):
        if fn is not several or world == 2:
            same(fn, rank, world)


def run_questions(rank: int, world: int) -> None:
    group = dist.group.WORLD
    assert group is not None

    def fn(x: torch.Tensor) -> Any:
        words = dist.get_rank(group), group.size(), dist.get_backend() == "gloo", dist.is_initialized()
        return x * dist.get_rank() + dist.get_world_size(), words

    same(fn, rank, world)


def run_order(rank: int, world: int) -> None:
    """Launches of different sizes, in the same order in all processes; work between a launch and its wait; unused results."""

    def fn(x: torch.Tensor) -> Any:
        first = ops.all_gather_into_tensor(x * 2, world, "0")
        second = ops.all_reduce(x.cos(), "sum", "0")
        between = (x.sin() @ x.T).relu()
        unread = ops.all_reduce(x[:1] * 3, "sum", "0")
        ops.wait_tensor(unread)
        return ops.wait_tensor(second).sum() + between, ops.wait_tensor(first).sin()

    for _ in range(3):
        same(fn, rank, world)
        same(fn, rank, world, grad=True)


def run_writes(rank: int, world: int) -> None:
    """An input that a collective reads may be written only after the collective has read it."""

    def fn(x: torch.Tensor) -> Any:
        flying = ops.all_gather_into_tensor(x, world, "0")
        landed = ops.wait_tensor(flying)
        x.mul_(3)
        return landed.sin()

    same(fn, rank, world)


def run_results_written(rank: int, world: int) -> None:
    def fn(x: torch.Tensor) -> Any:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD).add_(1)  # type: ignore[arg-type]

    same(fn, rank, world)
    same(fn, rank, world, grad=True)


def run_in_flight(rank: int, world: int) -> None:
    """A read without a wait, or through an alias, behaves as in eager."""

    def other_name(x: torch.Tensor) -> Any:
        flying = ops.all_reduce(x * 2, "sum", "0")
        view = flying.view(-1)
        ops.wait_tensor(flying)
        return view + 1

    def written(x: torch.Tensor) -> Any:
        flying = ops.all_reduce(x * 2, "sum", "0")
        landed = ops.wait_tensor(flying)
        landed.add_(1)
        return landed, flying

    def of_others(x: torch.Tensor) -> Any:
        ops.wait_tensor(x)
        return x * x

    for fn in (other_name, written, of_others):
        wanted = results(fn, rank, world)
        for backend in BACKENDS:
            found = pycompiler.explain(fn)(given(rank, world))
            assert [b.kind for b in found.break_reasons][:1] == ["unsupported-operation"], found
            assert_same(results(pycompiler.compile(fn, backend=backend), rank, world), wanted)


HELD: list[Any] = []


def run_breaks(rank: int, world: int) -> None:
    def handle(x: torch.Tensor) -> Any:
        y = x * 2
        work = dist.all_reduce(y, async_op=True)
        assert work is not None
        print(end="")
        work.wait()
        return y + 1

    def kept(x: torch.Tensor) -> Any:
        y = x * 2
        work = dist.all_reduce(y, async_op=True)
        assert work is not None
        HELD.append(work)
        wait_for_all()
        return y + 1

    def wait_for_all() -> None:
        while HELD:
            HELD.pop().wait()

    def barred(x: torch.Tensor) -> Any:
        y = x * 2
        dist.barrier()
        return y + 1

    for fn in (handle, kept, barred):
        assert pycompiler.explain(fn)(given(rank, world)).graph_break_count
        assert_same(results(pycompiler.compile(fn), rank, world), results(fn, rank, world))


def run_groups(rank: int, world: int) -> None:
    """One function, called with different groups."""
    pairs = dist.new_group([0, 1])
    alone = [dist.new_group([i]) for i in range(world)]

    def fn(x: torch.Tensor, group: Any) -> Any:
        return functional.all_reduce(x, "sum", group) * dist.get_world_size(group)

    compiled = pycompiler.compile(fn, fullgraph=True)
    x = given(rank, world)
    for count, group in enumerate((dist.group.WORLD, alone[rank], *([pairs] if rank < 2 else [])), start=1):
        torch.testing.assert_close(compiled(x, group), plain(fn(x, group)))
        assert compiled.counters()["compiles"] == count
    torch.testing.assert_close(compiled(x, dist.group.WORLD), plain(fn(x, dist.group.WORLD)))
    assert compiled.counters()["compiles"] == count


def run_given_in_flight(rank: int, world: int) -> None:
    """The result of an earlier collective, without a wait: its use in a graph waits, even if another use has waited before."""
    group = dist.group.WORLD
    kind = functional.AsyncCollectiveTensor

    def used(y: torch.Tensor, w: torch.Tensor) -> Any:
        return (y * w).sum(), y.view(-1) + 1, y[0], type(y).__name__

    def waited(y: torch.Tensor, w: torch.Tensor) -> Any:
        return y.wait() * w, y.trigger_wait() + 1  # type: ignore[attr-defined]

    def given_back(y: torch.Tensor, w: torch.Tensor) -> Any:
        return y, w + 1, y.view(-1)

    def another(y: torch.Tensor, w: torch.Tensor) -> Any:
        return functional.all_reduce(y, "max", group) * w + y  # type: ignore[arg-type]

    def broken(y: torch.Tensor, w: torch.Tensor) -> Any:
        z = y.view(3, -1)
        pycompiler.graph_break()
        return z * w.reshape(3, -1), y

    def run(fn: Callable[..., Any]) -> tuple[list[Any], list[str]]:
        values, kinds = [], []
        for i in range(4):
            w = (torch.arange(6.0 * world).reshape(2 * world, 3) / 5).requires_grad_()
            y = functional.all_reduce(given(rank, world) + i, "sum", group)  # type: ignore[arg-type]
            assert type(y) is kind
            if i == 2:
                y.trigger_wait()
            result = fn(y, w)
            tensors = [t for t in result if isinstance(t, torch.Tensor)]
            plain_sum(tensors).backward()
            values.append([plain(tensors), w.grad, y.wait()])
            kinds += [t if isinstance(t, str) else type(t).__name__ for t in result]
        return values, kinds

    for fn in (used, waited, given_back, another, broken):
        wanted = run(fn)
        for backend in BACKENDS:
            compiled = pycompiler.compile(fn, backend=backend, fullgraph=fn is another)
            values, kinds = run(compiled)
            torch.testing.assert_close(values, wanted[0])
            assert kinds == wanted[1], (fn, backend)
            assert compiled.counters()["compiles"] == 1
    assert torch._C._distributed_c10d._get_work_registry_size() == 0  # type: ignore[attr-defined]


def run_made_anew(rank: int, world: int) -> None:
    """A group with the same name and other member ranks: no part of the old group is used."""

    def fn(x: torch.Tensor) -> Any:
        y = functional.all_gather_tensor(x, 0, "0") * (1 + dist.get_rank())  # type: ignore[arg-type]
        dist.all_reduce(x)
        return y, dist.get_rank(), x

    compiled = pycompiler.compile(fn, fullgraph=True)
    assert_same(results(compiled, rank, world), results(fn, rank, world))
    store = fresh_store(rank)
    dist.destroy_process_group()
    start(world - 1 - rank, world, store)
    assert_same(results(compiled, rank, world), results(fn, rank, world))
    assert compiled.counters()["compiles"] == 2
    store = fresh_store(dist.get_rank())
    dist.destroy_process_group()
    start(rank, world, store)
    assert_same(results(compiled, rank, world), results(fn, rank, world))
    assert compiled.counters()["compiles"] == 2  # the first entry holds again


# tests --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "run",
    [
        run_functional,
        run_in_place,
        run_handles,
        run_questions,
        run_order,
        run_writes,
        run_results_written,
        run_in_flight,
        run_given_in_flight,
        run_breaks,
        run_groups,
    ],
)
def test_in_two_processes(two: Processes, run: Callable[[int, int], None]) -> None:
    two.run(run)


@pytest.mark.parametrize("run", [run_functional, run_in_place, run_groups])
def test_in_three_processes(three: Processes, run: Callable[[int, int], None]) -> None:
    three.run(run)


def test_a_group_that_is_made_anew(two: Processes) -> None:
    two.run(run_made_anew)


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of this process only."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_programs_that_import_no_more_than_they_need() -> None:
    """pycompiler itself loads torch's functional collectives; its scan of compiled functions' objects queries none of them."""
    program = """
import warnings, torch, torch.distributed as dist, pycompiler
warnings.simplefilter("error")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

def program(x):
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return y + 1

def asks(x):
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    work.is_completed()
    work.wait()
    return y

assert torch.equal(pycompiler.compile(program, fullgraph=True)(torch.ones(2)), torch.full((2,), 3.0))
assert "async_op" in pycompiler.explain(asks)(torch.ones(2)).break_reasons[0].reason
dist.destroy_process_group()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("backend", BACKENDS)
def test_versions_of_what_a_collective_writes(alone: None, backend: str) -> None:
    """Eager's kernels lie below autograd: the write does not change the version, and a backward does not notice it."""

    def reduced(x: torch.Tensor) -> Any:
        dist.all_reduce(x)
        return x * 2

    def saved(w: torch.Tensor, x: torch.Tensor) -> Any:
        product = w * x
        dist.all_reduce(x)
        return product

    compiled = pycompiler.compile(reduced, backend=backend, fullgraph=True)
    within = pycompiler.compile(saved, backend=backend, fullgraph=True)
    w, x = torch.ones(2, requires_grad=True), torch.full((2,), 3.0)
    before = w * x
    compiled(x)
    assert x._version == 0
    before.sum().backward()
    within(w, x).sum().backward()
    assert x._version == 0 and w.grad is not None and w.grad.tolist() == [6.0, 6.0]


@pytest.mark.parametrize("backend", ("eager", "native"))
def test_a_checkpoint_of_a_distributed_tensor(alone: None, backend: str) -> None:
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))

    def program(x: torch.Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(lambda y: (y * y).sin(), x, use_reentrant=False).full_tensor().sum()

    def gradients(run: Callable[..., Any]) -> torch.Tensor:
        made = torch.distributed.tensor.distribute_tensor(torch.arange(3.0), mesh, [torch.distributed.tensor.Shard(0)])
        made.requires_grad_()
        run(made).backward()
        return made.grad.full_tensor()  # type: ignore[union-attr]

    torch.testing.assert_close(gradients(pycompiler.compile(program, backend=backend)), gradients(program))


def test_waits_come_before_their_readers(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that does not read the result runs while the collective does, in the graph and in its kernels."""

    def program(x: torch.Tensor) -> Any:
        reduced = functional.all_reduce(x * 2, "sum", dist.group.WORLD)  # type: ignore[arg-type]
        gathered = functional.all_gather_tensor(x.cos(), 0, dist.group.WORLD)  # type: ignore[arg-type]
        between = ((x @ x.T).relu() @ x).sin()
        return between + reduced, gathered.view(-1)

    orders: list[list[str]] = []

    def ordered(gm: torch.fx.GraphModule, examples: Any) -> Any:
        orders.append([n.name for n in gm.graph.nodes if n.op == "call_function"])
        return gm

    def backend(gm: torch.fx.GraphModule, examples: Any) -> Any:
        return compile_joint(gm, examples, fw_compiler=ordered, bw_compiler=ordered)

    x = given(0, 1)
    wanted = plain(program(x))
    assert_same(plain(pycompiler.compile(program, backend=backend, fullgraph=True)(x)), wanted)
    (order,) = orders
    expected = ["all_reduce", "all_gather_into_tensor", "sin", "wait_tensor", "add", "wait_tensor_1"]
    assert [name for name in order if name in expected] == expected
    schedules: list[Any] = []
    schedule = graphs.scheduled

    def kept(*args: Any) -> Any:
        schedules.append(schedule(*args))
        return schedules[-1]

    monkeypatch.setattr(graphs, "scheduled", kept)
    assert_same(plain(pycompiler.compile(program, fullgraph=True)(x)), wanted, tolerance=1e-6)
    steps = [process_groups.name_of(getattr(step, "op", None)) or "kernel" for step in schedules[0].steps]
    assert steps[steps.index("all_gather_into_tensor") + 1 :][:2] == ["kernel", "wait_tensor"]
