"""What compilers do with arrays on the stack: a crash is seen from another process."""

from __future__ import annotations

import subprocess
import sys

CRASHED = """
import torch, pycompiler
def f(x):
    t = torch.cat([x, x], 1)
    return t.sum(-2), torch.nn.functional.softmin(t, 1)
x = torch.randn(2, 2, 7, dtype=torch.float64)
compiled = pycompiler.compile(f)
for one, other in zip(compiled(x), f(x)):
    torch.testing.assert_close(one, other)
print("ran")
"""


def test_what_lies_on_the_stack_is_aligned() -> None:
    """gcc 12 stored 16 bytes at once to 8-aligned arrays of a short loop's reductions."""
    done = subprocess.run([sys.executable, "-c", CRASHED], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr[-2000:]
