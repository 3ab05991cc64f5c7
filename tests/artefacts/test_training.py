"""Optimizer steps and whole training steps: saved in one process, they continue in another like the unsaved run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import children

STEPS = """
import copy, sys, torch, pycompiler

optimizers = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p),
}
name, what, role, path = sys.argv[1:]
torch.manual_seed(0)


def numbers(k, *size):
    return torch.randn(*size, generator=torch.Generator().manual_seed(k))


def training(model, optimizer):
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
optimizer = optimizers[name](model.parameters())
target = training(model, optimizer) if what == "training" else optimizer.step


def call(compiled, k):
    if what == "training":
        return compiled(numbers(k, 2, 4))
    for j, p in enumerate(model.parameters()):
        p.grad = numbers(100 * k + j, *p.shape)
    compiled()
    return model(numbers(k, 2, 4)).detach()


def state():
    grads = [p.grad for p in model.parameters()]
    return copy.deepcopy((model.state_dict(), optimizer.state_dict(), grads))


if role == "save":
    compiled = pycompiler.compile(target, fullgraph=True)
    for k in range(4):
        call(compiled, k)
    before, saved = state(), pycompiler.save(compiled, path)
    assert (saved.entries, saved.left_out) == (2, ()), saved
    losses = [call(compiled, k) for k in range(4, 7)]
    assert pycompiler.counters(compiled)["compiles"] == 2
    torch.save((before, losses, state()), path + ".pt")
else:
    before, losses, after = torch.load(path + ".pt")
    model.load_state_dict(before[0])
    optimizer.load_state_dict(before[1])
    for p, grad in zip(model.parameters(), before[2]):
        p.grad = grad
    compiled = pycompiler.load(path, target, trust=True)
    with pycompiler.config.patch(error_on_recompile=True):
        found = [call(compiled, k) for k in range(4, 7)]
    counters = pycompiler.counters(compiled)
    assert (counters["hits"], counters["compiles"]) == (3, 0), counters
    same = torch.utils._pytree.tree_flatten
    for mine, theirs in zip(same((found, state()))[0], same((losses, after))[0], strict=True):
        assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs, (mine, theirs)
    print("the same")
"""


@pytest.mark.parametrize("what", ["training", "optimizer"])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_step_goes_on_in_another_process(name: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(STEPS)
    for role in ("save", "load"):
        command = [children.python(), "steps.py", name, what, role, str(tmp_path / "step")]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout == "the same\n"
