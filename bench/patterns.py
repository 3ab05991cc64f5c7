"""43 kernel patterns beside eager: `python bench/patterns.py [--device cuda] [--dtype bfloat16] [--rows 1024] [--columns 1024]`.

In: a device, a dtype, a size.  Out: one line of JSON, microseconds of eager and of the compiled call by pattern.  With
`--torch-compile`, its times follow in the line, and a table to read stands before it.  The time is of `--threads` threads on
a CPU, and device time on a GPU.  To compare two versions of the package, run each with its own PYTHONPATH, by turns, and give
the files of lines to `python bench/patterns.py --compare OLD NEW`: the least time of each pattern counts.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Pattern = Callable[..., Any]


def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> Any:
    m, v = m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001
    return p - 1e-3 * (m / 0.9) / ((v / 0.999).sqrt() + 1e-8), m, v


def rotary(x: Tensor, y: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * y.cos() + torch.cat((-x[:, half:], x[:, :half]), -1) * y.sin()


def rms_norm(x: Tensor, y: Tensor) -> Tensor:
    z = x + y
    return z * torch.rsqrt(z.float().square().mean(-1, keepdim=True) + 1e-6).to(z.dtype)


def whitened(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt()


# Functions of two to four matrices x, y, z, w of one size.
PATTERNS: dict[str, Pattern] = {
    "add, mul": lambda x, y, z, w: x * y + z,
    "polynomial": lambda x, y, z, w: ((x * 0.3 + 1) * x + 2) * x - y,
    "divide": lambda x, y, z, w: x / (y.abs() + 1),
    "divide rows": lambda x, y, z, w: x / (y.abs().sum(-1, keepdim=True) + 1),
    "divide by a number": lambda x, y, z, w: (x / 3 - y) / 7,
    "relu, add": lambda x, y, z, w: (x + y).relu(),
    "gelu": lambda x, y, z, w: F.gelu(x + y),
    "gelu, tanh": lambda x, y, z, w: F.gelu(x, approximate="tanh"),
    "swiglu": lambda x, y, z, w: F.silu(x) * y,
    "sigmoid": lambda x, y, z, w: torch.sigmoid(x) * y,
    "tanh": lambda x, y, z, w: torch.tanh(x + y),
    "exp, log": lambda x, y, z, w: x.exp().log1p(),
    "sin, cos": lambda x, y, z, w: x.sin() + y.cos(),
    "softplus": lambda x, y, z, w: F.softplus(x),
    "sqrt, rsqrt": lambda x, y, z, w: x.abs().sqrt() * (y.abs() + 1).rsqrt(),
    "clamp": lambda x, y, z, w: (x * 2).clamp(-1, 1) + y,
    "where": lambda x, y, z, w: torch.where(x > 0, y, z),
    "softmax": lambda x, y, z, w: torch.softmax(x, -1),
    "softmax, first": lambda x, y, z, w: torch.softmax(x, 0),
    "masked softmax": lambda x, y, z, w: torch.softmax(x.masked_fill(y > 1, -1e4), -1),
    "log_softmax": lambda x, y, z, w: torch.log_softmax(x, -1),
    "logsumexp": lambda x, y, z, w: torch.logsumexp(x, -1),
    "layer_norm": lambda x, y, z, w: F.layer_norm(x, x.shape[-1:], y[0], z[0]),
    "gelu, layer_norm": lambda x, y, z, w: F.layer_norm(F.gelu(x), x.shape[-1:]),
    "residual, layer_norm": lambda x, y, z, w: F.layer_norm(x + y, x.shape[-1:], z[0], w[0]),
    "residual, rms_norm": lambda x, y, z, w: rms_norm(x, y),
    "batch_norm, relu": lambda x, y, z, w: F.batch_norm(x, None, None, training=True).relu(),
    "whitened": lambda x, y, z, w: whitened(x),
    "normalize": lambda x, y, z, w: F.normalize(x, dim=-1),
    "sum, last": lambda x, y, z, w: (x * y).sum(-1),
    "sum, first": lambda x, y, z, w: (x * y).sum(0),
    "sum, all": lambda x, y, z, w: (x * y).sum(),
    "mse": lambda x, y, z, w: F.mse_loss(x, y),
    "var_mean": lambda x, y, z, w: torch.var_mean(x, -1),
    "amax, last": lambda x, y, z, w: (x * y).amax(-1),
    "argmax": lambda x, y, z, w: (x + y).argmax(-1),
    "any": lambda x, y, z, w: (x > 3).any(-1),
    "cat, relu": lambda x, y, z, w: torch.cat((x, y), -1).relu(),
    "transposed": lambda x, y, z, w: x.t() + y if x.shape[0] == x.shape[1] else x.t() * 2,
    "rotary": lambda x, y, z, w: rotary(x, y),
    "adam": adam,
    "gather": lambda x, y, z, w: x.gather(-1, (y > 0).long()),
    "to int": lambda x, y, z, w: (x * 10).int() + (y * 10).int(),
}
# Patterns that are trained: gradients of their sums.
TRAINED: dict[str, Pattern] = {
    name: PATTERNS[name]
    for name in (
        "gelu",
        "swiglu",
        "softmax",
        "residual, layer_norm",
        "gelu, layer_norm",
        "batch_norm, relu",
        "relu, add",
        "clamp",
    )
}


def trained(fn: Pattern) -> Pattern:
    def step(*args: Tensor) -> Any:
        leaves = [a.detach().requires_grad_() for a in args]
        return torch.autograd.grad(fn(*leaves).square().sum(), leaves, allow_unused=True)

    return step


def on_cpu(fn: Callable[[], Any], seconds: float) -> float:
    for _ in range(3):
        fn()
    start = time.perf_counter()
    fn()
    calls = max(1, int(1e-3 / (time.perf_counter() - start + 1e-9)))
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(calls):
            fn()
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


def on_gpu(fn: Callable[[], Any], seconds: float) -> float:
    import triton

    found = triton.testing.do_bench(fn, warmup=20, rep=int(seconds * 1e3), return_mode="median")
    return float(found) * 1e3


def measured(chosen: argparse.Namespace) -> dict[str, list[float]]:
    """Microseconds of eager, of this package and, if chosen, of torch.compile, by pattern."""
    import pycompiler

    device, dtype, seconds = chosen.device, getattr(torch, chosen.dtype), chosen.seconds
    kinds: list[Callable[[Pattern], Pattern]] = [lambda fn: fn, pycompiler.compile]
    if chosen.torch_compile:
        kinds.append(torch.compile)
    generator = torch.Generator().manual_seed(0)
    args = [torch.randn(chosen.rows, chosen.columns, generator=generator).to(device, dtype) for _ in range(4)]
    clock = on_gpu if device == "cuda" else on_cpu
    found = {}
    for table, training in ((PATTERNS, False), (TRAINED, True)):
        for name, fn in table.items():
            pycompiler.reset()
            torch.compiler.reset()
            with torch.set_grad_enabled(training):
                calls = [trained(kind(fn)) if training else kind(fn) for kind in kinds]
                times = [clock(functools.partial(call, *args), seconds) for call in calls]
            found[f"{name}, trained" if training else name] = times
    return found


def print_table(found: dict[str, list[float]]) -> None:
    """Prints the times beside torch.compile's, the largest ratios first."""
    print("| pattern | eager, us | torch.compile | ours | ours / torch.compile | ours / eager |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, (eager, ours, peer) in sorted(found.items(), key=lambda row: -row[1][1] / row[1][2]):
        print(f"| {name} | {eager:.1f} | {peer:.1f} | {ours:.1f} | {ours / peer:.2f} | {ours / eager:.2f} |")
    to_peer, to_eager = (geomean([times[1] / times[other] for times in found.values()]) for other in (2, 0))
    print(f"geomean of {len(found)}: ours / torch.compile {to_peer:.3f}, ours / eager {to_eager:.3f}")


def least(path: Path) -> dict[str, list[float]]:
    """The least times of each pattern, over the lines of a file."""
    best: dict[str, list[float]] = {}
    for line in path.read_text().splitlines():
        for name, times in json.loads(line).items():
            best[name] = [min(a, b) for a, b in zip(best.get(name, times), times, strict=True)]
    return best


def compare(old: Path, new: Path) -> None:
    before, after = least(old), least(new)
    print(
        "| pattern | eager, us | old | new | new / old | new / eager |",
        "| --- | --- | --- | --- | --- | --- |",
        sep="\n",
    )
    ratios, to_eager = [], []
    for name in sorted(after, key=lambda n: -after[n][1] / before[n][1]):
        eager, a, b = min(before[name][0], after[name][0]), before[name][1], after[name][1]
        ratios.append(b / a)
        to_eager.append(b / eager)
        print(f"| {name} | {eager:.1f} | {a:.1f} | {b:.1f} | {b / a:.2f} | {b / eager:.2f} |")
    print(f"geomean of {len(ratios)}: new / old {geomean(ratios):.3f}, new / eager {geomean(to_eager):.3f}")


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=0.1, help="time for each measurement")
    parser.add_argument("--threads", type=int, default=1, help="threads of the CPU")
    parser.add_argument("--torch-compile", action="store_true", help="measure torch.compile too, and print a table")
    parser.add_argument("--compare", nargs=2, type=Path, help="two files of lines")
    chosen = parser.parse_args()
    if chosen.compare:
        compare(*chosen.compare)
        return
    torch.set_num_threads(chosen.threads)
    found = measured(chosen)
    if chosen.torch_compile:
        print_table(found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
