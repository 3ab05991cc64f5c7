"""Times calls while a 12-layer model is compiled: the slowest call, with `background=True` and without.

Prints the eager call (median, slowest), the part of the first call that is capture, the slowest call while the worker
compiles, the first call without a background compile, and torch.compile's first call.  The bound, checked by eye:
slowest ≤ capture + 2 × the eager call.

    python bench/bench_background.py [--layers 12] [--width 256] [--length 64]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import pycompiler


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w))
        return x + self.mlp(self.norm2(x))


def milliseconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 12), ("width", 256), ("length", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(Block(options.width) for _ in range(options.layers))).eval()
    x = torch.randn(1, options.length, options.width)
    with tempfile.TemporaryDirectory() as cache, torch.no_grad(), pycompiler.config.patch(cache_dir=cache):
        pycompiler.compile(lambda y: y.sin() + 1)(x)  # triggers the imports and probes that a process does once
        eager = sorted(milliseconds(lambda: model(x)) for _ in range(60))
        print(f"eager call: median {eager[30]:.1f} ms, slowest {eager[-1]:.1f} ms")
        captured = pycompiler.compile(model, backend=lambda gm, inputs: gm.forward)
        capture = milliseconds(lambda: captured(x)) - eager[30]
        behind = pycompiler.compile(model, background=True)
        calls = [milliseconds(lambda: behind(x))]
        begin = time.perf_counter()
        while not pycompiler.wait_for_compiles(0):
            calls.append(milliseconds(lambda: behind(x)))
        seconds = time.perf_counter() - begin
        bound = capture + 2 * eager[30]
        print(f"background: first call {calls[0]:.1f} ms (capture {capture:.1f}); {len(calls) - 1} calls in {seconds:.2f} s "
              f"of compile, slowest call after the first {max(calls[1:], default=0.0):.1f} ms; "
              f"slowest {max(calls):.1f} ms, bound (capture + 2 eager calls) {bound:.1f} ms")  # fmt: skip
        print(f"call after the compile: {sorted(milliseconds(lambda: behind(x)) for _ in range(60))[30]:.1f} ms")
    with tempfile.TemporaryDirectory() as cache, torch.no_grad(), pycompiler.config.patch(cache_dir=cache):
        at_once = pycompiler.compile(model)
        print(f"without background: the first call takes {milliseconds(lambda: at_once(x)):.0f} ms")
        peer = torch.compile(model)
        print(f"torch.compile: the first call takes {milliseconds(lambda: peer(x)):.0f} ms")


if __name__ == "__main__":
    main()
