"""Distributed tensors in graphs, compared with eager in every process of a gloo group."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import pycompiler
from tests.harness.compare import assert_same
from tests.processes import Processes

BACKENDS = ("eager", "aot_eager", "native")


# programs that run in each process -----------------------------------------------------------------------------
def mesh_of(world: int) -> DeviceMesh:
    return init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))


def whole(rows: int = 6) -> torch.Tensor:
    return torch.arange(rows * 4.0).reshape(rows, 4) / 10


def plain(value: Any) -> Any:
    """Values in plain form: a distributed tensor becomes its placements, shape and local tensor."""
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    if isinstance(value, DTensor):
        return [str(value.placements), list(value.shape), plain(value.to_local())]
    if hasattr(value, "wait"):
        value = value.wait()
    return value.detach() if isinstance(value, torch.Tensor) else value


def results(call: Callable[..., Any], make: Callable[[], torch.Tensor], *, grad: bool) -> list[Any]:
    found = []
    for _ in range(2):
        x = make().requires_grad_(grad)
        result = call(x)
        if grad:
            total = result.sum()
            (total.full_tensor() if isinstance(total, DTensor) else total).backward()
        found.append([plain(result), plain(x), plain(x.grad) if grad else None])
    return found


class Told(logging.Handler):
    """A log handler that records the warnings about code that was not compiled."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def same(
    fn: Callable[..., Any], make: Callable[[], torch.Tensor], *, grad: bool = False, compiles: bool = True
) -> None:
    """`compiles`: whether the graph below the subclass is compiled as well."""
    wanted, told = results(fn, make, grad=grad), Told()
    logging.getLogger("pycompiler").addHandler(told)
    try:
        for backend in BACKENDS:
            compiled = pycompiler.compile(fn, backend=backend, fullgraph=compiles)
            assert_same(results(compiled, make, grad=grad), wanted)
            assert compiled.counters()["compiles"] == 1
    finally:
        logging.getLogger("pycompiler").removeHandler(told)
    assert compiles == (not any("runs eagerly" in text for text in told.said)), told.said


def run_values(rank: int, world: int) -> None:
    mesh = mesh_of(world)

    def sharded() -> Any:
        return distribute_tensor(whole(), mesh, [Shard(0)])

    same(lambda x: (x * 2).sin(), sharded)
    same(lambda x: (x * 2).sin(), sharded, grad=True)
    same(lambda x: (x * 2).redistribute(mesh, [Replicate()]).sin(), sharded)
    same(lambda x: (x * 2).redistribute(mesh, [Shard(1)]).sin(), sharded, grad=True)
    same(lambda x: (x * 2).sin().full_tensor().cos(), sharded, grad=True)
    same(lambda x: (x * 2).to_local().sin(), sharded, grad=True)
    same(lambda x: (x @ x.t()).sin().redistribute(mesh, [Replicate()]).to_local().cos(), sharded, grad=True)
    same(lambda x: x.to_local(), sharded, compiles=False)
    same(lambda x: x.mul_(2).sin(), sharded)


def run_made(rank: int, world: int) -> None:
    mesh = mesh_of(world)

    def local() -> torch.Tensor:
        return whole() + rank

    same(lambda x: DTensor.from_local(x * 2, mesh, [Shard(0)]).sin(), local)
    same(lambda x: DTensor.from_local(x * 2, mesh, [Shard(0)]).sin().full_tensor().cos(), local, grad=True)

    def summed(x: torch.Tensor) -> Any:
        made: Any = DTensor.from_local(x.sin(), mesh, [Partial()])
        return made.redistribute(placements=[Replicate()]).sin().to_local().cos()

    same(summed, local, grad=True)


def run_questions(rank: int, world: int) -> None:
    mesh = mesh_of(world)

    def fn(x: Any) -> Any:
        where = x.device_mesh.get_local_rank() + mesh["tp"].size() + mesh.ndim + mesh.get_group("tp").size()
        return x * where if x.placements[0].is_shard(0) and x.placements == (Shard(0),) else x

    same(fn, lambda: distribute_tensor(whole(), mesh, [Shard(0)]))


def run_guards(rank: int, world: int) -> None:
    """Guards on placements, on the local shard and on the mesh."""
    mesh, other = mesh_of(world), init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))

    def fn(x: Any) -> Any:
        return (x * 2).sum(0).full_tensor()

    compiled = pycompiler.compile(fn, fullgraph=True)
    given: list[Any] = [
        distribute_tensor(whole(), mesh, [Shard(0)]),
        distribute_tensor(whole(), mesh, [Replicate()]),
        distribute_tensor(whole(), mesh, [Shard(1)]),
        distribute_tensor(whole(), other, [Shard(0)]),
        DTensor.from_local(whole(), mesh, [Partial()]),
        DTensor.from_local(whole(), mesh, [Partial("max")]),
    ]
    for count, x in enumerate(given, start=1):
        assert_same(compiled(x), fn(x))
        assert compiled.counters()["compiles"] == count
    assert_same(compiled(given[0] + 1), fn(given[0] + 1))
    assert compiled.counters()["compiles"] == len(given)


def run_changed(rank: int, world: int) -> None:
    """A tensor whose placements change in place."""
    mesh = mesh_of(world)
    x: Any = distribute_tensor(torch.ones(2, 2), mesh, [Replicate()])
    compiled = pycompiler.compile(lambda: x * 2, fullgraph=True)
    for _ in range(3):
        assert compiled().placements == (Replicate(),)
    x._spec = DTensor.from_local(torch.ones(2, 2), mesh, [Partial()], shape=x.shape, stride=x.stride())._spec
    assert compiled().placements == (x * 2).placements == (Partial(),)
    assert compiled.counters()["compiles"] == 2


def run_placements(rank: int, world: int) -> None:
    def fn(x: torch.Tensor) -> Any:
        same = Shard(0) == Shard(0) and Replicate() != Shard(0) and Partial("sum").is_partial()
        return {Shard(1): 1, Replicate(): 2}[Shard(1)] + x, same, Shard(1).dim

    compiled = pycompiler.compile(fn, fullgraph=True)
    assert_same(compiled(whole()), fn(whole()))


def run_uneven(rank: int, world: int) -> None:
    """Shards of different sizes on each process, some of them empty."""
    mesh = mesh_of(world)
    same(lambda x: (x * 2).sin().full_tensor().cos(), lambda: distribute_tensor(whole(5), mesh, [Shard(0)]), grad=True)
    same(lambda x: (x * 2).full_tensor(), lambda: distribute_tensor(whole(2), mesh, [Shard(0)]))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


def assert_same_steps(module: nn.Module, other: nn.Module, call: Callable[..., Any], x: torch.Tensor) -> None:
    for _ in range(2):
        wanted, got = module(x), call(x)
        assert_same(plain(got), plain(wanted))
        for result in (wanted, got):
            result.sin().sum().backward()
        grads = [[plain(p.grad) for p in m.parameters()] for m in (module, other)]
        assert_same(grads[1], grads[0])


def run_tensor_parallel(rank: int, world: int) -> None:
    torch.manual_seed(0)
    module = parallelize_module(Pair(), mesh_of(world), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    x = torch.randn(4, 8)
    for backend in BACKENDS:
        other = copy.deepcopy(module)
        assert_same_steps(copy.deepcopy(module), other, pycompiler.compile(other, backend=backend, fullgraph=True), x)


def run_given_in_flight(rank: int, world: int) -> None:
    """Shards whose collective is still in flight."""
    mesh = mesh_of(world)

    def fn(y: DTensor) -> Any:
        return (y * 2).to_local() + 1, y + 1

    for backend in BACKENDS:
        compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
        for i in range(3):
            x = DTensor.from_local(whole() + rank + i, mesh, [Shard(0)])
            given, other = (x.redistribute(mesh, [Replicate()], async_op=True) for _ in range(2))
            assert type(given._local_tensor) is not torch.Tensor
            assert_same(plain(compiled(given)), plain(fn(other)))
        assert compiled.counters()["compiles"] == 1


def run_sharded(rank: int, world: int) -> None:
    """FSDP around compiled blocks, as around uncompiled blocks."""

    def build() -> nn.Sequential:
        torch.manual_seed(0)
        made = nn.Sequential(Pair(), Pair())
        for block in made:
            fully_shard(block)
        return fully_shard(made)

    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
    for backend in BACKENDS:
        other = build()
        for block in other:
            block.forward = pycompiler.compile(block.forward, backend=backend)
        assert_same_steps(build(), other, other, x)


# tests --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "run",
    [
        run_values,
        run_made,
        run_questions,
        run_guards,
        run_changed,
        run_placements,
        run_tensor_parallel,
        run_sharded,
        run_given_in_flight,
    ],
)
def test_in_two_processes(two: Processes, run: Callable[[int, int], None]) -> None:
    two.run(run)


@pytest.mark.parametrize("run", [run_uneven, run_tensor_parallel])
def test_in_three_processes(three: Processes, run: Callable[[int, int], None]) -> None:
    three.run(run)
