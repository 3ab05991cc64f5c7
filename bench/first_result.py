"""A process that ends with its first result: `python bench/first_result.py IMPLEMENTATION`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "examples")]

import programs  # noqa: E402
import torch  # noqa: E402
from peers import MAKERS  # noqa: E402

torch.set_num_threads(1)
model = MAKERS[sys.argv[1]]().compile(programs.linears(50))
with torch.no_grad():
    print(float(model(torch.ones(8, 8)).sum()))
