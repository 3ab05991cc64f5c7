"""A process that ends with its first result: `python bench/first_result.py IMPLEMENTATION [--wait]`.

Prints the seconds of its first call. With `--wait` it prints a line when ready, and calls after it reads a line.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "examples")]

import programs  # noqa: E402
import torch  # noqa: E402
from peers import MAKERS  # noqa: E402

torch.set_num_threads(1)
model = MAKERS[sys.argv[1]]().compile(programs.linears(50))
inputs = torch.ones(8, 8)
if "--wait" in sys.argv:
    print("ready", flush=True)
    sys.stdin.readline()
with torch.no_grad():
    start = time.perf_counter()
    result = float(model(inputs).sum())
    print(f"{time.perf_counter() - start:.4f} s for the first call: {result}", flush=True)
