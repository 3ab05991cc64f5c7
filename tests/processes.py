"""Processes that form a group (gloo), for tests of distributed code.

`Processes(2).run(fn)` calls ``fn(rank, world)``, a function at the top of a test module, in each process; an error
in one is an error of the call. The processes live until `close`. If one fails or takes too long, all are replaced
by new ones.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from tests import children

SECONDS = 300
ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from tests import processes; processes.serve(*sys.argv[2:])"


class Processes:
    def __init__(self, world: int) -> None:
        self.world = world
        self.started: list[subprocess.Popen[str]] = []

    def run(self, fn: Callable[[int, int], None]) -> None:
        if not self.started:
            self._start()
        for process in self.started:
            assert process.stdin is not None
            print(fn.__module__, fn.__name__, file=process.stdin, flush=True)
        end = time.monotonic() + SECONDS
        said = [self._answer(process, end) for process in self.started]
        failed = {rank: text for rank, text in enumerate(said) if text != "ok"}
        if failed:
            self.close()
            raise AssertionError("\n".join(f"process {rank}: {text}" for rank, text in failed.items()))

    def _start(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="processes")
        store = os.path.join(self.folder.name, "store")
        for rank in range(self.world):
            words = [str(ROOT), str(rank), str(self.world), store]
            self.started.append(
                subprocess.Popen(
                    [children.python(), "-c", PROGRAM, *words],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
                )
            )  # fmt: skip

    @staticmethod
    def _answer(process: subprocess.Popen[str], end: float) -> str:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], max(end - time.monotonic(), 0.1))
        line = process.stdout.readline() if ready else ""
        return str(json.loads(line)) if line else "it ended" if ready else "no answer"

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()
        if self.started:
            self.folder.cleanup()
        self.started = []


def serve(rank: str, world: str, store: str) -> None:
    """Calls the functions that are named, one a line."""
    import torch
    import torch.distributed as dist

    answers: TextIO = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import pycompiler

    torch.set_num_threads(1)
    pycompiler.config.raise_internal_errors = True
    start(int(rank), int(world), store)
    for line in sys.stdin:
        module, name = line.split()
        try:
            getattr(importlib.import_module(module), name)(int(rank), int(world))
            said = "ok"
        except BaseException:
            said = traceback.format_exc()
        print(json.dumps(said), file=answers, flush=True)
    dist.destroy_process_group()


def start(rank: int, world: int, store: str) -> None:
    import torch.distributed as dist

    wait = datetime.timedelta(seconds=SECONDS // 2)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=wait)


def fresh_store(rank: int) -> str:
    """A new prefix in the store that the processes of the group share."""
    import torch.distributed as dist

    made: list[Any] = [tempfile.mkdtemp(prefix="store") + "/store" if rank == 0 else None]
    dist.broadcast_object_list(made, 0)
    return str(made[0])
