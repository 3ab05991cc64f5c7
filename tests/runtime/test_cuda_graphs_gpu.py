"""CUDA graphs on a real GPU: bits beside plain launches, outputs that are held, parameters, streams, sizes, memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pycompiler
from pycompiler.runtime import cuda_graphs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

STEPS = 120


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    lines: list[str] = []
    monkeypatch.setattr(cuda_graphs, "log", lambda text, *args: lines.append(text % args))
    yield lines
    print(*lines, sep="\n")


def recorded(said: list[str]) -> int:
    return sum(" is recorded: " in line for line in said)


class Block(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(F.gelu(self.up(x))))


def model(depth: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(depth))).cuda()


def batches(n: int, rows: Callable[[int], int] = lambda k: 32) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(1)
    return [torch.randn(rows(k), 64, generator=generator, device="cuda") for k in range(n)]


def trained(
    steps: int, mode: str, rows: Callable[[int], int] = lambda k: 32, accumulate: int = 1, set_to_none: bool = True,
    hold: bool = False, **settings: Any,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:  # fmt: skip
    """(loss of each step, parameters at the end)."""
    net = model()
    compiled = pycompiler.compile(net, mode=mode, **settings)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=True)
    losses, held = [], []
    for k, x in enumerate(batches(steps, rows)):
        y = compiled(x)
        loss = F.mse_loss(y, x.roll(1, 0))
        loss.backward()
        losses.append(loss.detach())
        if hold:
            held.append((y, y.detach().clone()))
        if k % accumulate == accumulate - 1:
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
    assert all(torch.equal(y, copy) for y, copy in held)
    return losses, [p.detach() for p in net.parameters()]


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for xs, ys in zip(a, b, strict=True) for x, y in zip(xs, ys, strict=True))


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"accumulate": 4},
        {"set_to_none": False},
        {"hold": True},
        {"rows": lambda k: 32 + 16 * (k % 3), "dynamic": True},
        {"rows": lambda k: 32 + k % 20, "dynamic": True},
    ],
    ids=["plain", "accumulate", "zeroed", "held", "three sizes", "twenty sizes"],
)
def test_training_has_the_bits_of_launches(how: dict[str, Any], said: list[str]) -> None:
    want = trained(STEPS, "default", **how)
    assert recorded(said) == 0
    got = trained(STEPS, "reduce-overhead", **how)
    assert recorded(said) >= 2
    assert same(got, want)


def test_outputs_are_held_over_a_hundred_calls(said: list[str]) -> None:
    net = model().requires_grad_(False)
    compiled, xs = pycompiler.compile(net, mode="reduce-overhead"), batches(100)
    held = [compiled(x) for x in xs]
    plain = pycompiler.compile(net)
    assert all(torch.equal(y, plain(x)) for x, y in zip(xs, held, strict=True))
    assert recorded(said) >= 2


def test_saved_tensors_of_a_hundred_forwards() -> None:
    net = model()
    compiled, plain = pycompiler.compile(net, mode="reduce-overhead"), pycompiler.compile(net)
    xs = batches(100)

    def gradients(f: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        losses = [f(x).square().sum() for x in xs]
        torch.stack(losses[::-1]).sum().backward()
        made = [p.grad for p in net.parameters()]
        net.zero_grad()
        return made

    gradients(compiled)
    assert same([gradients(compiled)], [gradients(plain)])


def test_parameters_that_change_by_data(said: list[str]) -> None:
    net = model().requires_grad_(False)
    compiled, plain = pycompiler.compile(net, mode="reduce-overhead"), pycompiler.compile(net)
    x = batches(1)[0]
    for k in range(8):
        for p in net.parameters():
            p.data = p.data * 1.01 if k % 2 else p.data
        for _ in range(3):
            assert torch.equal(compiled(x), plain(x))
    for p in net.parameters():
        p.mul_(0.5)
    assert torch.equal(compiled(x), plain(x))
    assert recorded(said) >= 2


def test_two_streams(said: list[str]) -> None:
    net = model().requires_grad_(False)
    compiled, plain = pycompiler.compile(net, mode="reduce-overhead"), pycompiler.compile(net)
    streams, xs = [torch.cuda.Stream(), torch.cuda.Stream()], batches(60)
    want = [plain(x) for x in xs]
    torch.cuda.synchronize()
    got = []
    for k, x in enumerate(xs):
        with torch.cuda.stream(streams[k % 2]):
            got.append(compiled(x).clone())
    torch.cuda.synchronize()
    assert same([got], [want])
    assert recorded(said) == 2


def test_buffers_that_are_written(said: list[str]) -> None:
    def results(mode: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64)).cuda()
        compiled = pycompiler.compile(net, mode=mode)
        made = []
        for x in batches(20):
            compiled(x).sum().backward()
            made.append(net[1].running_mean.clone())
        return [*made, *(p.grad for p in net.parameters())]

    want, got = results("default"), results("reduce-overhead")
    assert same([got], [want])
    assert recorded(said) >= 2


def test_random_numbers_are_those_of_launches(said: list[str]) -> None:
    """Also after a new seed, and where others draw between the steps."""

    def results(mode: str) -> list[torch.Tensor]:
        torch.manual_seed(3)
        net = nn.Sequential(Block(), nn.Dropout(0.3), Block(), nn.Dropout(0.1)).cuda()
        compiled = pycompiler.compile(net, mode=mode)
        made = []
        for k, x in enumerate(batches(40)):
            if k in (10, 25):
                torch.manual_seed(k)
            y = compiled(x)
            y.square().mean().backward()
            made += [y.detach().clone(), torch.rand(3, device="cuda")]
            if k % 7 == 0:
                made += [p.grad.clone() for p in net.parameters()]
                net.zero_grad(set_to_none=True)
        return [*made, torch.cuda.get_rng_state()]

    want, got = results("default"), results("reduce-overhead")
    assert same([got], [want])
    assert recorded(said) >= 2


def test_a_failed_capture_leaves_the_random_numbers_of_recordings(said: list[str]) -> None:
    def results(mode: str) -> list[torch.Tensor]:
        made = []
        compiled = pycompiler.compile(lambda x: F.dropout(x.relu() @ x.T, 0.5) + 1, mode=mode)
        for k, x in enumerate(batches(20)):
            if k == 8 and mode != "default":
                stream = cuda_graphs._stream_for(0, torch.cuda.current_stream().cuda_stream)
                with pytest.raises(RuntimeError):
                    cuda_graphs._captured(
                        stream, torch.cuda.graph_pool_handle(), lambda: (torch.rand(3, device="cuda").sum().item(),)
                    )
            if k in (3, 10):
                torch.manual_seed(k)
            made.append(compiled(x).clone())
        return [*made, torch.cuda.get_rng_state()]

    torch.manual_seed(3)
    want = results("default")
    torch.manual_seed(3)
    got = results("reduce-overhead")
    assert same([got], [want])
    assert recorded(said) == 1 and not any("new state" in line for line in said)


def test_dropout_of_attention_is_that_of_launches(said: list[str]) -> None:
    def results(mode: str) -> list[torch.Tensor]:
        torch.manual_seed(3)
        q, k, v = (
            torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
        )

        def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q * 2, k, v, dropout_p=0.2).relu()

        compiled = pycompiler.compile(attention, mode=mode)
        made = []
        for _ in range(12):
            y = compiled(q, k, v)
            y.float().square().mean().backward()
            made += [y.detach().clone(), *(t.grad.clone() for t in (q, k, v))]
            q.grad = k.grad = v.grad = None
        return made

    assert same([results("reduce-overhead")], [results("default")])


def test_reads_of_the_host_are_not_recorded(said: list[str]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x[x.sum(1) > 0] @ x.T).relu() + 1

    with pycompiler.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = pycompiler.compile(program, mode="reduce-overhead")
        for x in batches(4):
            torch.testing.assert_close(compiled(x), program(x))
    assert recorded(said) == 0


def test_a_sync_that_no_rule_knows_leaves_launches(said: list[str]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (torch.linalg.eigh(x @ x.T)[0] + 1).relu() @ x

    compiled, plain = pycompiler.compile(program, mode="reduce-overhead"), pycompiler.compile(program)
    for x in batches(5):
        torch.testing.assert_close(compiled(x), plain(x))
    assert recorded(said) == 0
    assert "recording raised" in said[-1]
    y = torch.ones(5, device="cuda") + torch.rand(5, device="cuda").floor()  # no error is left over
    assert float((y + 1).sum()) == 10


def test_a_graph_break_between_two_graphs(said: list[str]) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x @ w).relu() + 1
        pycompiler.graph_break()
        return (y @ w).sigmoid() * 2

    w = torch.randn(64, 64, device="cuda", requires_grad=True)
    compiled, plain = pycompiler.compile(program, mode="reduce-overhead"), pycompiler.compile(program)

    def gradients(f: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        return [torch.autograd.grad(f(x, w).sum(), w)[0] for x in batches(10)]

    assert same([gradients(compiled)], [gradients(plain)])
    assert recorded(said) >= 4


def test_a_users_graph_of_a_recorded_callable() -> None:
    net = model().requires_grad_(False)
    compiled = pycompiler.compile(net, mode="reduce-overhead")
    given, x = torch.zeros(32, 64, device="cuda"), batches(1)[0]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(4):
            compiled(given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            result = compiled(given)
    given.copy_(x)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, pycompiler.compile(net)(x))


def test_memory_does_not_grow() -> None:
    def run(steps: int) -> None:
        for x in batches(steps, lambda k: 32 + k % 20):
            compiled(x).square().mean().backward()
            net.zero_grad()

    net = model()
    compiled = pycompiler.compile(net, mode="reduce-overhead", dynamic=True)
    run(100)
    gc.collect()
    before = torch.cuda.memory_allocated()
    run(400)
    gc.collect()
    assert torch.cuda.memory_allocated() <= before


def test_reset_frees_recordings() -> None:
    gc.collect()
    net = model()
    compiled = pycompiler.compile(net, mode="reduce-overhead")
    for x in batches(5):
        compiled(x).sum().backward()
        net.zero_grad()
    assert any(r.executable for r in cuda_graphs._LIVE), "graphs are started by their address"
    before = torch.cuda.memory_allocated()
    pycompiler.reset(compiled)
    gc.collect()
    assert torch.cuda.memory_allocated() < before
