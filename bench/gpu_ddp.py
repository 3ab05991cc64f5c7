"""Training steps of several GPUs: milliseconds, and the share of communication beneath computation, beside torch.compile.

    python bench/gpu_ddp.py [--gpus 2] [--json out.json] [--only DDP] [--repeat 20]

Model: 8 blocks (layer norm, Linear 2048 x 8192, GELU, Linear 8192 x 2048) in bfloat16, 8 x 512 rows on each GPU.
Cases: `DistributedDataParallel` around the compiled model, and compiled; `fully_shard` around compiled blocks, and compiled.
Prints for each: the median of a step by the clock, the kernel time of collectives in a step, and the share of it in which
the same GPU runs a kernel of another kind, from a profiler's trace of rank 0.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import pycompiler

KINDS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda module: module,
    "torch.compile": torch.compile,
    "pycompiler": pycompiler.compile,
}
BLOCKS, WIDTH, ROWS, TRACED = 8, 2048, (8, 512), 3
Spans = list[tuple[float, float]]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(nn.functional.gelu(self.inner(self.norm(x))))


def blocks() -> list[nn.Module]:
    torch.manual_seed(0)
    return [Block().to("cuda", torch.bfloat16) for _ in range(BLOCKS)]


def ddp_inside(compile: Callable[[Any], Any], rank: int) -> Any:
    return DistributedDataParallel(compile(nn.Sequential(*blocks())), device_ids=[rank])


def ddp_outside(compile: Callable[[Any], Any], rank: int) -> Any:
    return compile(DistributedDataParallel(nn.Sequential(*blocks()), device_ids=[rank]))


def sharded_inside(compile: Callable[[Any], Any], rank: int) -> Any:
    made = blocks()
    for block in made:
        fully_shard(block)
        block.forward = compile(block.forward)  # type: ignore[method-assign]
    return fully_shard(nn.Sequential(*made))


def sharded_outside(compile: Callable[[Any], Any], rank: int) -> Any:
    made = blocks()
    for block in made:
        fully_shard(block)
    return compile(fully_shard(nn.Sequential(*made)))


CASES: dict[str, Callable[[Callable[[Any], Any], int], Any]] = {
    "DDP(compile(model))": ddp_inside,
    "compile(DDP(model))": ddp_outside,
    "FSDP2 around compiled blocks": sharded_inside,
    "compile(FSDP2)": sharded_outside,
}


# traces -------------------------------------------------------------------------------------------------------
def union(spans: Iterable[tuple[float, float]]) -> Spans:
    """The spans in order, joined where they overlap."""
    found: Spans = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def length(spans: Spans) -> float:
    return sum(end - begin for begin, end in spans)


def common(a: Spans, b: Spans) -> float:
    """The length of the parts that lie in both unions."""
    return length(a) + length(b) - length(union([*a, *b]))


def overlap(path: str) -> tuple[float, float]:
    """From a trace: milliseconds of collectives in a step, and the share beneath other kernels."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    spans: dict[bool, Spans] = {False: [], True: []}
    for e in kernels:
        spans["nccl" in e["name"].lower()].append((e["ts"], e["ts"] + e["dur"]))
    collectives, others = union(spans[True]), union(spans[False])
    total = length(collectives)
    return total / 1000 / TRACED, common(collectives, others) / total if total else 0.0


# the run ------------------------------------------------------------------------------------------------------
def measure(case: str, kind: str, rank: int, repeat: int, folder: str) -> dict[str, Any]:
    run = CASES[case](KINDS[kind], rank)
    x = torch.randn(*ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        run(x).float().square().mean().backward()
        for p in run.parameters():
            p.grad = None

    for _ in range(10):
        step()
    times = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1000)
    path = os.path.join(folder, f"{rank}.json")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(TRACED):
            step()
        torch.cuda.synchronize()
    if rank == 0:
        profile.export_chrome_trace(path)
    collectives, share = overlap(path) if rank == 0 else (0.0, 0.0)
    return {"case": case, "kind": kind, "wall": statistics.median(times), "collectives": collectives, "beneath": share}


def worker(rank: int, options: argparse.Namespace, folder: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=options.gpus)
    results = []
    for case in CASES:
        for kind in KINDS:
            if options.only not in f"{case} {kind}":
                continue
            found = measure(case, kind, rank, options.repeat, folder)
            results.append(found)
            if rank == 0:
                print(
                    f"{case:<30} {kind:<14} step {found['wall']:7.2f} ms   collectives {found['collectives']:6.2f} ms, "
                    f"{found['beneath']:4.0%} beneath other kernels",
                    flush=True,
                )
            torch.compiler.reset()
            pycompiler.reset()
    if rank == 0 and options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--json")
    parser.add_argument("--only", default="", help="a part of the names of a case and a kind")
    parser.add_argument("--repeat", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(options, folder), nprocs=options.gpus)


if __name__ == "__main__":
    main()
