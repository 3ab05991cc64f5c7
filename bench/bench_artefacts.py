"""Loads a saved GPT in a new process without a C++ compiler: import, load, first call; compared with a compile.

Prints milliseconds of import (torch and pycompiler), of `load` (import → ready), of the first forward and of the first
backward, and the size of the file.  The limit of `load` is 50 ms.

    python bench/bench_artefacts.py [--layers 4] [--runs 5]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

PROGRAM = """
import json, sys, time
path, layers, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
clock = time.perf_counter
marks = [clock()]
import torch, pycompiler
marks.append(clock())
sys.path.insert(0, sys.argv[4])
from models.gpt import GPT, Config
torch.manual_seed(0)
model = GPT(Config(layers=layers))
tokens = torch.randint(0, 256, (2, 129))
marks.append(clock())
compiled = pycompiler.load(path, model) if what == "load" else pycompiler.compile(model)
marks.append(clock())
loss = compiled(tokens[:, :-1], tokens[:, 1:])
marks.append(clock())
loss.backward()
marks.append(clock())
if what == "save":
    pycompiler.save(compiled, path)
steps = [(b - a) * 1e3 for a, b in zip(marks, marks[1:])]
print(json.dumps({"import": steps[0], "ready": steps[2], "forward": steps[3], "backward": steps[4],
                  "compiles": pycompiler.counters(compiled)["compiles"]}))
"""


def run(path: Path, layers: int, what: str, cache: Path, **environment: str) -> dict[str, float]:
    command = [sys.executable, "-c", PROGRAM, str(path), str(layers), what, str(EXAMPLES)]
    variables = {**os.environ, "PYCOMPILER_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1", **environment}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # modules have bytecode, as in an installed package
    variables["PYTHONPYCACHEPREFIX"] = str(cache.parent / "bytecode")
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, caches = Path(folder) / "gpt", [Path(folder) / n for n in ("saved", "loaded")]
        rows = {"compile, empty caches": [run(path, options.layers, "save", caches[0])]}
        rows["load, empty cache"] = [run(path, options.layers, "load", caches[1], PATH="", CXX="")]
        rows["load"] = [run(path, options.layers, "load", caches[1], PATH="", CXX="") for _ in range(options.runs)]
        print(f"{path.stat().st_size / 1e6:.2f} MB")
        for name, runs in rows.items():
            best = {k: min(r[k] for r in runs) for k in runs[0]}
            print(f"{name:22}", "  ".join(f"{k} {v:.0f}{' ms' if k != 'compiles' else ''}" for k, v in best.items()))


if __name__ == "__main__":
    main()
