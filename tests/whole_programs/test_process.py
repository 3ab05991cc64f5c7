"""A whole process: it imports no part of torch.compile, and builds no kernel a second time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, sys
import torch
{compile}
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 1))
step = compile(model)
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(32, 8)
losses = []
for _ in range(3):
    loss = step(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
with torch.no_grad():
    losses.append(step(x).sum().item())
peer = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "torch._functorch._aot_autograd",
        "torch._functorch.partitioners", "torch._functorch.compilers")
print(json.dumps([losses, sorted(m for m in sys.modules if m.startswith(peer))]))
"""


def run(compile: str, cache: Path) -> tuple[list[float], set[str]]:
    env = {**os.environ, "PYCOMPILER_CACHE_DIR": str(cache)}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH", "")]))
    if "site-packages" in __import__("pycompiler").__file__:
        env.pop("PYTHONPATH")  # an installed wheel is under test
    program = PROGRAM.replace("{compile}", compile)
    command = [sys.executable, "-c", program]  # puts its working directory in front of the path
    out = subprocess.run(command, env=env, cwd=cache, capture_output=True, text=True, check=True)
    losses, modules = json.loads(out.stdout.splitlines()[-1])
    return losses, set(modules)


def test_nothing_of_the_peer_on_our_account(tmp_path: Path) -> None:
    """torch imports some of its compiler by itself (its optimizers do): only additional modules count."""
    eager, baseline = run("compile = lambda model: model", tmp_path)
    losses, modules = run("from pycompiler import compile", tmp_path)
    assert modules - baseline == set()
    assert all(abs(a - b) < 1e-4 for a, b in zip(losses, eager, strict=True))


def test_what_the_import_brings() -> None:
    """Beyond torch's imports: no module that only some programs, or only readers of generated code, need."""
    program = (
        "import sys, torch; before = set(sys.modules); import pycompiler; print(*sorted(set(sys.modules) - before))\n"
        "assert 'capture' not in pycompiler.utils.compile_times()"  # the form in which the documents use torch._dynamo
    )
    out = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in out.stdout.split() if not name.startswith("_sysconfigdata")]
    assert {n.partition(".")[0] for n in names} - sys.stdlib_module_names <= {"pycompiler", "platformdirs", "torch"}
    assert {n for n in names if n.startswith("torch.")} <= {"torch.utils._device"}


def test_second_process_builds_no_kernel(tmp_path: Path) -> None:
    def libraries() -> dict[str, int]:
        return {str(p): p.stat().st_mtime_ns for p in tmp_path.rglob("*.so")}

    first, _ = run("from pycompiler import compile", tmp_path)
    built = libraries()
    assert built
    second, _ = run("from pycompiler import compile", tmp_path)
    assert libraries() == built
    assert second == first
