"""Launches on a real GPU: streams, threads, unaligned addresses, a user's CUDA graph, memory."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import pycompiler
from pycompiler import _native, graphs
from tests.harness.compare import assert_same

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.softmax(x * 2, -1).sum(0), x.sum(), x.mean(1)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []

    def plan(data: Any, graphs: Any) -> Any:
        made.append(_native.Plan(data, graphs))
        return made[-1]

    names = {name: getattr(_native, name) for name in dir(_native)}
    monkeypatch.setattr(graphs, "_native", type("Engine", (), {**names, "Plan": staticmethod(plan)}))
    return made


def test_kernels_and_their_workspaces_lie_in_one_block(plans: list[Any]) -> None:
    x = torch.randn(1000, 300, device="cuda")
    compiled = pycompiler.compile(several)
    assert_same(compiled(x), several(x), tolerance=1e-4)
    (plan,) = plans
    assert set(plan.routes) <= {"launch", "alloc", "place", "free"}
    assert plan.routes.count("alloc") == 3  # the outputs
    assert plan.arena_bytes > 0


def test_large_buffers_are_the_allocators(plans: list[Any]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).softmax(0).softmax(1)

    x = torch.randn(4096, 4096, device="cuda")
    assert_same(pycompiler.compile(program)(x), program(x), tolerance=1e-4)
    assert plans[0].arena_bytes < x.nbytes


def test_slices_whose_address_is_not_aligned() -> None:
    compiled, x = pycompiler.compile(double), torch.randn(5001, device="cuda")
    for start in (0, 1, 2, 4, 3):
        assert_same(compiled(x[start : start + 1000]), double(x[start : start + 1000]), tolerance=1e-4)


def test_a_stream_of_the_callers() -> None:
    compiled = pycompiler.compile(double)
    y = torch.ones(1 << 22, device="cuda")
    compiled(y)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # work on another stream runs before
        result = compiled(y.zero_().add_(3))
    stream.synchronize()
    assert bool((result == 7).all())


def test_threads() -> None:
    compiled, x = pycompiler.compile(double), torch.randn(1000, device="cuda")
    want, results = double(x), list[bool]()
    threads = [
        threading.Thread(target=lambda: results.extend(torch.equal(compiled(x), want) for _ in range(20)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80


def test_a_users_cuda_graph() -> None:
    compiled, x = pycompiler.compile(several), torch.randn(1000, 300, device="cuda")
    given = torch.zeros_like(x)
    compiled(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = compiled(given)
    given.copy_(x)
    graph.replay()
    assert_same(results, several(x), tolerance=1e-4)


def test_memory_does_not_grow() -> None:
    compiled, x = pycompiler.compile(several), torch.randn(1000, 300, device="cuda")
    compiled(x)
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        compiled(x)
    assert torch.cuda.memory_allocated() == before


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)


def test_an_index_out_of_range_ends_the_device_as_in_eager() -> None:
    program = """
import torch, pycompiler
f = pycompiler.compile(lambda w, i: w[i] * 2)
w, i = torch.randn(50, 16, device="cuda"), torch.tensor([1, 49], device="cuda")
torch.testing.assert_close(f(w, i), w[i] * 2)
try:
    f(w, i + 1)
    torch.cuda.synchronize()
except RuntimeError as error:
    print("raised", "device-side assert" in str(error))
"""
    done = python(program)
    assert "raised True" in done.stdout, done.stdout + done.stderr[-2000:]
    assert "index out of range" in done.stdout + done.stderr


def test_a_warm_start_does_not_import_triton() -> None:
    program = """
import sys, torch, pycompiler
x = torch.randn(50, 33, device="cuda")
torch.testing.assert_close(pycompiler.compile(lambda x: x.softmax(-1) * 3)(x), x.softmax(-1) * 3)
print("imported", "triton.compiler" in sys.modules)
"""
    python(program)
    done = python(program)
    assert "imported False" in done.stdout, done.stdout + done.stderr[-2000:]


def test_training() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU()).cuda()
    x = torch.randn(32, 64, device="cuda", requires_grad=True)

    def gradients(f: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        return list(torch.autograd.grad(F.mse_loss(f(x), torch.zeros(32, 64, device="cuda")), [x, *model.parameters()]))

    assert_same(gradients(pycompiler.compile(model)), gradients(model), tolerance=1e-4, strides=False)


def test_one_plan_serves_every_size(plans: list[Any]) -> None:
    def program(x: torch.Tensor, w: torch.Tensor, scale: float) -> tuple[torch.Tensor, ...]:
        y = F.layer_norm(F.gelu(x) * scale, (x.shape[-1],), w)
        return y.softmax(0), y.sum((0, 1)), x.flatten(0, 1).amax(0), torch.cat([x, y], 1)[:, 1:-1].sum(-1)

    torch.manual_seed(0)
    compiled = pycompiler.compile(program, dynamic=True)
    for a, b, scale in ((5, 7, 0.5), (64, 300, 1.5), (3, 2000, 2.5), (700, 2, 3.5)):
        x, w = torch.randn(a, b, 48, device="cuda"), torch.randn(48, device="cuda")
        exact = program(x.double(), w.double(), scale)  # sums of 19,200: eager's own are off by 4e-4
        for got, eager, want in zip(compiled(x, w, scale), program(x, w, scale), exact, strict=True):
            assert (got - want).abs().max() <= 2 * (eager - want).abs().max() + 1e-4
    assert len(plans) <= 2
    assert "launch" in plans[-1].routes


def test_training_at_every_size() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU()).cuda()
    compiled = pycompiler.compile(model, dynamic=True)
    for rows in (32, 5, 1000):
        x = torch.randn(rows, 64, device="cuda", requires_grad=True)
        given = [x, *model.parameters()]
        got, want = (torch.autograd.grad(F.silu(f(x)).sum(), given) for f in (compiled, model))
        assert_same(got, want, tolerance=1e-4, strides=False)


def trained(batches: bool, steps: int = 30) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).cuda()
    call = pycompiler.compile(model, options={"triton.batch_launches": batches})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    for step in range(steps):
        x = torch.randn(32 if step % 7 else 48, 64, device="cuda")
        loss = call(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            kept.append(loss.detach())
    pycompiler.reset()
    return [*kept, *model.parameters()]


def test_launches_that_start_together_have_the_bits_of_single_ones() -> None:
    for one, other in zip(trained(batches=True), trained(batches=False), strict=True):
        assert torch.equal(one, other)


def test_a_batch_starts_on_the_current_stream() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.softmax(x.sum(0) * 2, -1).cumsum(0), -1) + x

    compiled, x = pycompiler.compile(program), torch.randn(1000, 300, device="cuda")
    want = [program(x * n) for n in range(8)]
    side = torch.cuda.Stream()
    for turn in range(4):
        for n in range(8):
            with torch.cuda.stream(side if (turn + n) % 2 else torch.cuda.current_stream()):
                torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
                got = compiled(x * n)
            torch.cuda.synchronize()
            assert_same(got, want[n], tolerance=1e-4)


def test_batches_keep_no_memory() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.sum(0) * 2, -1) + torch.softmax(x, 0)

    compiled, x = pycompiler.compile(program), torch.randn(1000, 300, device="cuda")
    compiled(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(50):
        compiled(x)
    assert torch.cuda.memory_allocated() == before
