"""Common operators beside eager, one at a time, worst first: `python bench/bench_operators.py [PART OF A NAME...]`.

One thread, inference.  Eager and compiled calls alternate in one process, and the least of many times counts, so other work
of the machine affects both alike.  Calls of small tensors are mostly dispatch, calls of large tensors mostly the kernel.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers import MAKERS
from results import show_time

Operator = Callable[..., Tensor]
POINTWISE: dict[str, Operator] = {
    "relu": torch.relu, "gelu": F.gelu, "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "exp": torch.exp, "log": lambda x: torch.log(x.abs()),
    "sqrt": lambda x: torch.sqrt(x.abs()), "x / 3": lambda x: x / 3, "sin": torch.sin,
    "dropout off": lambda x: F.dropout(x, 0.1, False),
    "transposed + x": lambda x: x.t().contiguous().view_as(x) + x,
}  # fmt: skip
ROWS: dict[str, Operator] = {
    "softmax, last": lambda x: torch.softmax(x, -1), "softmax, first": lambda x: torch.softmax(x, 0),
    "sum, last": lambda x: x.sum(-1), "sum, first": lambda x: x.sum(0), "sum, all": lambda x: x.sum(),
    "mean, last": lambda x: x.mean(-1), "amax, last": lambda x: x.amax(-1), "amax, first": lambda x: x.amax(0),
    "argmax, last": lambda x: x.argmax(-1), "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "cat": lambda x: torch.cat((x, x), -1), "stack": lambda x: torch.stack((x, x)), "flip": lambda x: x.flip(-1),
    "narrow rows": lambda x: torch.softmax(x.view(-1, 8), -1),
}  # fmt: skip
IMAGES: dict[str, Operator] = {
    "group_norm": lambda x: F.group_norm(x, 8), "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
    "batch_norm, eval": lambda x: F.batch_norm(x, x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])),
    "batch_norm, train": lambda x: F.batch_norm(x, None, None, training=True),
    "mean of an image": lambda x: x.mean((2, 3)),
}  # fmt: skip
SHAPES = ((8, 8), (64, 64), (512, 512), (2048, 2048))
IMAGE_SHAPES = ((2, 16, 8, 8), (8, 64, 32, 32))
DTYPES = (torch.float32, torch.bfloat16)


def cases() -> Iterator[tuple[str, Operator, tuple[Tensor, ...]]]:
    generator = torch.Generator().manual_seed(0)
    for table, shapes in ((POINTWISE, SHAPES), (ROWS, SHAPES), (IMAGES, IMAGE_SHAPES)):
        for dtype in DTYPES:
            for shape in shapes:
                x = torch.randn(shape, generator=generator).to(dtype)
                for name, operator in table.items():
                    yield f"{name}, {'×'.join(map(str, shape))} {str(dtype).removeprefix('torch.')}", operator, (x,)
    for rows in (64, 4096):
        indices = torch.randint(1000, (rows,), generator=generator)
        yield f"embedding, {rows} of 1000×128", F.embedding, (indices, torch.randn(1000, 128, generator=generator))


def least(first: Callable[[], object], second: Callable[[], object], seconds: float) -> tuple[float, float]:
    """The shortest time of each; they alternate in batches long enough for the clock."""
    for fn in (first, second) * 3:
        fn()
    start = time.perf_counter()
    first()
    calls = max(1, int(2e-4 / (time.perf_counter() - start + 1e-9)))
    best = [float("inf"), float("inf")]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for k, fn in enumerate((first, second)):
            start = time.perf_counter()
            for _ in range(calls):
                fn()
            best[k] = min(best[k], (time.perf_counter() - start) / calls)
    return best[0], best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="only the cases whose name contains one of these")
    parser.add_argument("--seconds", type=float, default=0.1, help="time for each case")
    args = parser.parse_args()
    torch.set_num_threads(1)
    peer = MAKERS["pycompiler"]()
    found: list[tuple[float, str]] = []
    with torch.no_grad():
        for name, operator, inputs in cases():
            if args.parts and not any(part in name for part in args.parts):
                continue
            peer.reset()
            compiled = peer.compile(operator)
            eager, ours = least(lambda: operator(*inputs), lambda: compiled(*inputs), args.seconds)
            found.append((ours / eager, f"| {name} | {show_time(eager)} | {show_time(ours)} | {ours / eager:.2f} |"))
    slower = sum(ratio > 1 for ratio, _ in found)
    print(
        f"| operator ({slower} of {len(found)} slower than eager) | eager | pycompiler | ours / eager |",
        "| --- | --- | --- | --- |",
        sep="\n",
    )
    for _, line in sorted(found, reverse=True):
        print(line)


if __name__ == "__main__":
    main()
