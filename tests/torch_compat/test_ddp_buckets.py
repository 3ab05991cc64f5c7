"""`DistributedDataParallel` around compiled modules, and compiled: buckets are reduced when eager would reduce them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pycompiler
from tests.harness.compare import assert_same
from tests.processes import Processes

WIDTH, LAYERS = 16, 4
ONE_LAYER = (4 * WIDTH * WIDTH + 4) / 2**20  # MiB: a bucket is full with the weight and the bias of one layer
OPTIONS: dict[str, dict[str, bool]] = {
    "plain": {},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "views": {"gradient_as_bucket_view": True},
}
WAYS = ("inside", "outside")


class Layers(nn.Module):
    def __init__(self, *, skips: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.skips = skips

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[1:] if self.skips else self.layers:
            x = torch.tanh(layer(x))
        return x


def built(how: str, options: dict[str, bool], backend: str) -> tuple[nn.Module, DistributedDataParallel, Any]:
    """The module, DDP, and the callable of the training program."""
    module = Layers(skips=bool(options.get("find_unused_parameters")))
    inside: Any = pycompiler.compile(module, backend=backend) if how == "inside" else module
    ddp = DistributedDataParallel(inside, bucket_cap_mb=ONE_LAYER, **options)
    return module, ddp, pycompiler.compile(ddp, backend=backend) if how == "outside" else ddp


def steps(how: str, options: dict[str, bool], rank: int, backend: str = "native") -> tuple[list[Any], list[Any]]:
    """Events of each step (a layer's gradients are final, a bucket is reduced), and the gradients and parameters."""
    module, ddp, run = built(how, options, backend)
    events: list[Any] = []

    def reduce(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
        events.append(("bucket", bucket.index()))
        work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0])

    ddp.register_comm_hook(None, reduce)
    for k, layer in enumerate(module.layers):
        arrived: list[int] = []

        def final(p: torch.Tensor, k: int = k, arrived: list[int] = arrived) -> None:
            arrived.append(1)
            if len(arrived) % 2 == 0:
                events.append(("layer", k))

        for p in layer.parameters():
            p.register_post_accumulate_grad_hook(final)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9)
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(rank))
    seen, values = [], []
    for step in range(5):
        with ddp.no_sync() if step == 2 else contextlib.nullcontext():
            run(x).square().sum().backward()
        if step != 2:
            optimizer.step()
            values += [None if p.grad is None else p.grad.clone() for p in module.parameters()]
            optimizer.zero_grad()
        seen.append([*events])
        events.clear()
    return seen, [*values, *(p.detach() for p in module.parameters())]


def run_options(rank: int, world: int) -> None:
    for name, options in OPTIONS.items():
        expected, wanted = steps("eager", options, rank)
        if name == "plain":
            overlapping = [e for k in reversed(range(LAYERS)) for e in (("layer", k), ("bucket", LAYERS - 1 - k))]
            assert expected[1] == overlapping
        for how in WAYS:
            events, found = steps(how, options, rank)
            assert_same(found, wanted, tolerance=1e-5)
            assert events == expected, (name, how)


def run_without_the_knob(rank: int, world: int) -> None:
    """Gradients come together then.  They have the same bits."""
    staged, wanted = steps("inside", {}, rank)
    with pycompiler.config.patch(optimize_ddp=False):
        events, found = steps("inside", {}, rank)
    assert_same(found, wanted)
    assert events != staged


def run_one_forward(rank: int, world: int) -> None:
    """A forward is one call of one graph."""
    pycompiler.reset()
    for how in WAYS:
        for backend in ("aot_eager", "native"):
            module, _, run = built(how, {}, backend)
            for _ in range(3):
                y = run(torch.randn(8, WIDTH))
                stages, node = 0, y.grad_fn
                while node is not None:
                    behind = [n for n, _ in node.next_functions if n is not None and "stage" in n.name()]
                    assert len(behind) < 2
                    stages, node = stages + 1, behind[0] if behind else None
                assert stages == LAYERS
                y.sum().backward()


def run_compiles_of_one_process(rank: int, world: int) -> None:
    """In the second process, the rows change in each step, then the gradients have stages in one process only."""
    found = []
    for how in ("eager", *WAYS):
        with pycompiler.config.patch(optimize_ddp=rank == 0):
            module, _, run = built(how, {}, "native")
            for step in range(4):
                rows = 4 + rank * step
                run(torch.ones(rows, WIDTH)).square().mean().backward()
            found.append([p.grad for p in module.parameters()])
    assert_same(found[1], found[0], tolerance=1e-5)
    assert_same(found[2], found[0], tolerance=1e-5)


@pytest.mark.parametrize("run", [run_options, run_without_the_knob, run_one_forward, run_compiles_of_one_process])
def test_in_two_processes(two: Processes, run: Callable[[int, int], None]) -> None:
    two.run(run)
