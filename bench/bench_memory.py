"""Peak memory of a training step, model by model: `python bench/bench_memory.py [MODEL...]` prints the table.

Each figure comes from a separate process, after warm-up steps (a step: forward, loss, backward).

- tensors: the largest number of bytes in use from torch's allocator during a step (torch.profiler), plus the scratch blocks
  that pycompiler's plans keep, counted as if no two plans shared a block.  The figure repeats exactly; the limit applies to it.
- resident: the highest resident size of a few steps less the resident size at rest, plus the scratch.  The heap is trimmed, and
  the kernel's peak is reset (/proc/self/clear_refs).  Holes of the C heap that a step touches count, so the figure varies.
- process: the highest resident size, modules and compiled code included.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "examples")]

from results import show_ratio  # noqa: E402

NAMES = ("gpt", "bert", "gpt2", "llama", "vit", "resnet18")
IMPLEMENTATIONS = ("eager", "torch.compile", "pycompiler")
KINDS = ("tensors", "resident", "process")
WARM, STEPS = 6, 6
MIB = 1 << 20


def status(field: str) -> int:
    """Bytes in a line of /proc/self/status, such as VmHWM."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"/proc/self/status has no {field}: this bench needs Linux")


def measure(model: str, implementation: str) -> dict[str, int]:
    """Measure this process."""
    import torch
    from models import build
    from peers import MAKERS

    torch.set_num_threads(1)
    case = build(model)
    compiled = MAKERS[implementation]().compile(case.model)

    def step() -> None:
        case.loss(compiled(*case.args, **case.kwargs)).backward()
        case.model.zero_grad(set_to_none=True)

    for _ in range(WARM):
        step()
    gc.collect()
    held = held_back() if implementation == "pycompiler" else 0
    tensors = allocated(step)
    ctypes.CDLL(None).malloc_trim(0)
    rest = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(STEPS):
        step()
    peak = status("VmHWM")
    return {"tensors": tensors + held, "resident": peak - rest + held, "process": peak}


def allocated(step: Callable[[], None]) -> int:
    """The largest number of bytes in tensors alive at once, among those created since the call."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        step()
    events = run.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(itertools.accumulate(size for _, size in changes), default=0)


def held_back() -> int:
    """Bytes of pycompiler's scratch blocks, if no two of its plans shared one."""
    from pycompiler import _native

    return sum(p.arena_bytes for p in gc.get_objects() if type(p) is _native.Plan)


def in_a_process(model: str, implementation: str) -> dict[str, int]:
    command = [sys.executable, __file__, "--one", model, implementation]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{model} with {implementation} failed:\n{run.stderr}")
    found: dict[str, int] = json.loads(run.stdout.splitlines()[-1])
    return found


def row(model: str) -> str:
    found = {name: in_a_process(model, name) for name in IMPLEMENTATIONS}
    cells = []
    for kind in KINDS:
        sizes = [found[name][kind] / MIB for name in IMPLEMENTATIONS]
        cells += [f"{size:.1f}" for size in sizes]
        cells.append(show_ratio(sizes[2] / sizes[1], 1.0 if kind == "tensors" else None))
    return f"| {model} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=NAMES)
    parser.add_argument(
        "--one", nargs=2, metavar=("MODEL", "IMPLEMENTATION"), help="measure this process; for internal use"
    )
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*args.one)))
        return
    heads = [f"{kind}: {name}" for kind in KINDS for name in (*IMPLEMENTATIONS, "ours / torch.compile")]
    print(f"| training step, MiB | {' | '.join(heads)} |")
    print(f"| {' | '.join(['---'] * (len(heads) + 1))} |")
    for model in args.models:
        print(row(model), flush=True)


if __name__ == "__main__":
    main()
