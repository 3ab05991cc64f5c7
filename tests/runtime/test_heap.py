"""Freed memory serves the next call without page faults."""

import subprocess
import sys

PROGRAM = """
import resource, torch
from pycompiler.runtime.heap import keep_freed_memory
torch.set_num_threads(1)
keep_freed_memory()

def call():
    blocks = [torch.zeros(15 << 18) for _ in range(3)]  # 15 MiB each

for _ in range(5):
    call()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    call()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10)
"""


def test_freed_memory_is_kept() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=400)
    assert int(run.stdout) < 64, run.stdout  # a block has 3840 pages
