"""Whole models in processes of their own: compile, train, serve; and the ladder of backends on one model."""

from __future__ import annotations

import copy
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from models import build

import pycompiler

ROOT = Path(__file__).resolve().parents[2]

# Plain gradient descent by hand: torch.optim itself imports torch.compile.
PROGRAM = """
import json, sys
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from models import build
import pycompiler
from pycompiler.runtime import build as kernels
case = build("gpt")
model = pycompiler.compile(case.model)
losses = []
for _ in range(3):
    loss = case.loss(model(*case.args, **case.kwargs))
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
            p.grad = None
    losses.append(loss.item())
model.eval()
with torch.no_grad():
    model(case.args[0])
peer = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "torch._functorch.partitioners",
        "torch._functorch.compilers")
print(json.dumps({
    "losses": losses,
    "peer": sorted(m for m in sys.modules if m.startswith(peer)),
    "compiles": pycompiler.counters(model)["compiles"],
    "fallbacks": pycompiler.graphs.STATISTICS["aten_fallbacks"],
    "kernels": kernels.counters,
}))
"""


def run(cache: Path) -> dict[str, Any]:
    env = {**os.environ, "PYCOMPILER_CACHE_DIR": str(cache)}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH", "")]))
    command = [sys.executable, "-c", PROGRAM, str(ROOT / "examples")]
    out = subprocess.run(command, env=env, cwd=cache, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    found: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
    return found


@functools.cache
def eager_losses() -> list[float]:
    case = build("gpt")
    losses = []
    for _ in range(3):
        loss = case.run()
        loss.backward()
        with torch.no_grad():
            for p in case.model.parameters():
                p -= 0.1 * p.grad  # type: ignore[operator]
                p.grad = None
        losses.append(loss.item())
    return losses


def test_gpt_trains_and_serves_without_the_peer_and_builds_once(tmp_path: Path) -> None:
    cold, warm = run(tmp_path), run(tmp_path)
    for seen in (cold, warm):
        assert seen["peer"] == []
        assert seen["compiles"] == 2  # training, serving
        assert seen["fallbacks"] == 0
        assert seen["losses"] == pytest.approx(eager_losses(), rel=1e-4)
    assert warm["losses"] == cold["losses"]
    assert cold["kernels"]["builds"] > 0
    assert warm["kernels"]["builds"] == 0


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_ladder_of_backends(backend: str) -> None:
    """Each layer alone trains the same model; the first that differs has the fault."""
    case = build("gpt")
    model = pycompiler.compile(copy.deepcopy(case.model), backend=backend, fullgraph=True)
    loss, want = case.loss(model(*case.args, **case.kwargs)), case.run()
    loss.backward()
    want.backward()
    torch.testing.assert_close(loss, want, rtol=1e-4, atol=1e-5)
    for (name, p), q in zip(model.named_parameters(), case.model.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    assert pycompiler.counters(model)["compiles"] == 1


def test_whole_training_step_with_breaks_and_an_optimizer() -> None:
    """Forward, loss, backward and optimizer.step() in one compiled function: partial graphs, same parameters."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    twin = copy.deepcopy(net)
    x, y = torch.randn(16, 4), torch.randn(16, 1)

    def step(model: Any, optimizer: Any, log: list[float]) -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        log.append(loss.item())
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = pycompiler.compile(step)
    have: list[float] = []
    want: list[float] = []
    ours, theirs = torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(4):
        torch.testing.assert_close(compiled(net, ours, have), step(twin, theirs, want))
    assert have == pytest.approx(want, rel=1e-5)
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    assert have[-1] < have[0]
