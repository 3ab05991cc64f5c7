"""Calls of few and many GPU kernels, kernels, and a BERT-base forward beside eager and torch.compile, in one run.

    python bench/gpu.py [--json out.json]

Prints, per case: milliseconds of each implementation, the ratio to torch.compile, the share of the device's copy
bandwidth that the kernel reaches (bytes read once and written once over the time), and the largest difference from eager.
Needs one CUDA device, and `transformers` for BERT; without it, a line says that BERT was left out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pycompiler

ROWS, COLUMNS = 16384, 4096


def milliseconds(fn: Callable[[], Any], repeat: int = 30) -> float:
    """Median device time of a call, the L2 cache flushed before each."""
    flush = torch.empty(256 * 1024 * 1024, dtype=torch.int8, device="cuda")
    for _ in range(5):
        fn()
    times = []
    for _ in range(repeat):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        fn()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def copy_bandwidth() -> float:
    """Bytes per second of a device-to-device copy, read and write counted."""
    a = torch.empty(512 * 1024 * 1024, dtype=torch.bfloat16, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.nbytes / (milliseconds(lambda: b.copy_(a)) * 1e-3)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def gelu_layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x), (x.shape[-1],), w, b)


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x) * y


def kernel_cases() -> dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], int]]:
    """name -> (function, arguments, bytes that must move)."""
    g = torch.Generator("cuda").manual_seed(0)
    x, y = (torch.randn(ROWS, COLUMNS, generator=g, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    w, b = (torch.randn(COLUMNS, generator=g, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return {
        "softmax": (softmax, (x,), 2 * x.nbytes),
        "layer_norm": (layer_norm, (x, w, b), 2 * x.nbytes),
        "gelu_layer_norm": (gelu_layer_norm, (x, w, b), 2 * x.nbytes),
        "swiglu": (swiglu, (x, y), 3 * x.nbytes),
    }


def run_kernels(copy: float) -> list[dict[str, Any]]:
    rows = []
    for name, (fn, args, moved) in kernel_cases().items():
        ours, peer = pycompiler.compile(fn), torch.compile(fn)
        with torch.no_grad():
            difference = (ours(*args).float() - fn(*args).float()).abs().max().item()
            times = {
                "eager": milliseconds(lambda fn=fn, args=args: fn(*args)),
                "torch.compile": milliseconds(lambda peer=peer, args=args: peer(*args)),
                "pycompiler": milliseconds(lambda ours=ours, args=args: ours(*args)),
            }
        share = {k: moved / (t * 1e-3) / copy for k, t in times.items()}
        rows.append({"case": name, "ms": times, "share_of_copy": share, "difference": difference})
    return rows


def host_microseconds(fn: Callable[[], Any], calls: int) -> float:
    """Least host time of a call, while the device's queue is short of full."""
    best = float("inf")
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            fn()
        best = min(best, (time.perf_counter() - start) / calls)
    torch.cuda.synchronize()
    return best * 1e6


def chain(length: int) -> Callable[[Tensor], Tensor]:
    """A chain of as many kernels: alternating row and column operations do not fuse."""

    def program(x: Tensor) -> Tensor:
        for k in range(length):
            x = x.sum(k % 2, keepdim=True) - x
        return x

    return program


def run_calls() -> list[dict[str, Any]]:
    """The host time of a call that launches few or many small kernels."""
    rows = []
    x = torch.randn(64, 64, device="cuda")
    for name, fn in {"x + 1": lambda x: x + 1, **{f"{n} sums": chain(n) for n in (1, 10, 50)}}.items():
        calls = {"eager": fn, "torch.compile": torch.compile(fn), "pycompiler": pycompiler.compile(fn),
                 "CUDA graph": torch.compile(fn, mode="reduce-overhead")}  # fmt: skip
        with torch.no_grad():
            difference = (calls["pycompiler"](x) - fn(x)).abs().max().item()
            for call in calls.values():
                for _ in range(3):
                    call(x)
            times = {k: host_microseconds(lambda call=call: call(x), 5) / 1e3 for k, call in calls.items()}
        rows.append({"case": f"host, {name}", "ms": times, "difference": difference})
    return rows


def run_bert() -> list[dict[str, Any]]:
    try:
        from transformers import BertConfig, BertModel
    except ImportError:
        print("BERT left out: transformers is not installed")
        return []
    torch.manual_seed(0)
    model = BertModel(BertConfig()).cuda().to(torch.bfloat16).eval()
    ids = torch.randint(0, 30000, (8, 512), device="cuda")
    ours, peer = pycompiler.compile(model), torch.compile(model)
    with torch.no_grad():
        reference = model(ids).last_hidden_state.float()
        difference = (ours(ids).last_hidden_state.float() - reference).abs().max().item()
        times = {
            "eager": milliseconds(lambda: model(ids)),
            "torch.compile": milliseconds(lambda: peer(ids)),
            "pycompiler": milliseconds(lambda: ours(ids)),
        }
    return [{"case": "bert-base 8x512 bf16", "ms": times, "difference": difference}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench/gpu.py needs a CUDA device; none was found")
    copy = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {copy / 1e12:.2f} TB/s")
    rows = run_calls() + run_kernels(copy) + run_bert()
    for row in rows:
        times = "  ".join(f"{k} {t:.4g} ms" for k, t in row["ms"].items())
        ratio = row["ms"]["pycompiler"] / row["ms"]["torch.compile"]
        share = f"  share of copy {row['share_of_copy']['pycompiler']:.0%}" if "share_of_copy" in row else ""
        print(f"{row['case']:22} {times}  ratio {ratio:.2f}{share}  difference {row['difference']:.3g}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump({"device": torch.cuda.get_device_name(), "copy_bytes_per_s": copy, "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
