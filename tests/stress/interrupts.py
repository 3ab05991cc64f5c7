"""Ctrl-C at random moments of a compile: the callable, the knobs and the process stay as before."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

import pycompiler


def children() -> list[str]:
    """Processes that this one started and that still run."""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [p for p in pids if "Z" not in Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()[0]]


def state() -> tuple[Any, ...]:
    return (sys.getrecursionlimit(), pycompiler.config.snapshot(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack(), torch.get_default_dtype(),
            signal.getsignal(signal.SIGINT))  # fmt: skip


def callee(x: Any) -> Any:
    pycompiler.graph_break()
    return x * 2


def run(count: int, backend: str = "native", seed: int = 0) -> dict[str, Any]:
    """`count` interrupts, uniform over the duration of a first call; new kernels each time."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    rng, interrupted, in_compiler = random.Random(seed), 0, 0
    before, duration = state(), 0.0
    for i in range(-3, count):
        factor = 1.0 + i / 512 + seed
        x = torch.ones(3, requires_grad=True)

        def loss(x: Any, factor: float = factor) -> Any:
            return callee((x * factor).sin()).sum()

        made = pycompiler.compile(loss, backend=backend)
        ctrl_c = threading.Timer(rng.uniform(0, duration) if i >= 0 else 1e6, os.kill, (os.getpid(), signal.SIGINT))
        ctrl_c.daemon = True
        ctrl_c.start()
        begin = time.perf_counter()
        try:
            try:
                made(x).backward()
            finally:
                ctrl_c.cancel()
                ctrl_c.join()
                time.sleep(0)
        except KeyboardInterrupt as e:
            interrupted += 1
            text, trace = "", e.__traceback__
            while trace is not None:
                text, trace = text + trace.tb_frame.f_code.co_name + " ", trace.tb_next
            in_compiler += "run_compiler" in text
        if i < 0:
            duration = time.perf_counter() - begin  # the first calls import modules
        assert not children(), "a compiler outlives the interrupt"
        assert state() == before, (state(), before)
        for _ in range(2):
            x.grad = None
            value = made(x)
            value.backward()
            torch.testing.assert_close(value.detach(), 2 * torch.sin(torch.full((3,), factor)).sum())
            torch.testing.assert_close(x.grad, 2 * factor * torch.cos(torch.full((3,), factor)))
        counts = pycompiler.counters(made)
        assert counts["hits"] >= 1, counts  # it is compiled, and used
    return {"interrupts": interrupted, "of": count, "while the C++ compiler ran": in_compiler,
            "compile_s": round(duration, 3)}  # fmt: skip
