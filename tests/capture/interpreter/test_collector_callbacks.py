"""Garbage collection during a capture: callbacks of the program run in the middle of the capture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

NESTED = """
import gc, torch, pycompiler
g = pycompiler.compile(lambda x: x + 1, backend="eager")
f = pycompiler.compile(lambda x, k: x * k + 1, backend="eager")
gc.callbacks.append(lambda phase, info: g(torch.ones(1)))
gc.set_threshold(3)
for k in range(5):
    assert f(torch.ones(2), k).tolist() == [k + 1.0] * 2
gc.callbacks.clear()
assert g(torch.ones(1)).item() == 2
"""


def test_what_the_collector_calls_within_another_capture() -> None:
    """torch creates Python tensors there with its dispatch off: another capture inside that must not crash."""
    done = subprocess.run([sys.executable, "-c", NESTED], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
