"""First calls with empty caches, and processes that start with warm ones; one thread."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import programs
import pytest
import torch
from models import build
from peers import ALL, COMPILERS, Peer

compilers = pytest.mark.parametrize("peer", COMPILERS, indirect=True)
everyone = pytest.mark.parametrize("peer", ALL, indirect=True)


class Fresh:
    """Creates a new compiled model in fresh caches each round; the caches of the previous round are dropped."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.stack = ExitStack()

    def __call__(self, model: torch.nn.Module, *rest: Any, **kwargs: Any) -> tuple[Any, ...]:
        self.stack.close()
        self.peer.reset()
        self.stack = ExitStack()
        self.stack.enter_context(self.peer.empty_caches())
        return (self.peer.compile(model, **kwargs), *rest)


@compilers
def test_linears(measure, peer: Peer) -> None:
    fresh = Fresh(peer)
    with torch.no_grad():
        measure.once(
            "compile: 50 Linear, empty caches",
            lambda: fresh(programs.linears(50), torch.ones(8, 8)),
            lambda model, x: model(x),
            limits={"torch.compile": 1 / 5},
        )
    fresh.stack.close()


@compilers
def test_gpt(measure, peer: Peer) -> None:
    fresh = Fresh(peer)

    def setup() -> tuple[Any, ...]:
        case = build("gpt")
        return fresh(case.model, case)

    measure.once(
        "compile: GPT, forward and backward, empty caches",
        setup,
        lambda model, case: case.loss(model(*case.args, **case.kwargs)).backward(),
        limits={"torch.compile": 1 / 4},
    )
    fresh.stack.close()


@compilers
def test_capture(measure, peer: Peer) -> None:
    """Capture alone: the backend runs the captured graph uncompiled."""
    fresh = Fresh(peer)

    def setup() -> tuple[Any, ...]:
        case = build("gpt")
        return fresh(case.model, case, backend="eager")

    measure.once(
        "compile: GPT, capture alone",
        setup,
        lambda model, case: model(*case.args, **case.kwargs),
        limits={"torch.compile": 1.0},
    )
    fresh.stack.close()


FIRST_RESULT = Path(__file__).with_name("first_result.py")


def environment(caches: Path) -> dict[str, str]:
    """One thread; all caches, also of bytecode, in `caches`: installed packages have bytecode."""
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "PYCOMPILER_CACHE_DIR": str(caches / "pycompiler"),
        "PYTHONPYCACHEPREFIX": str(caches / "bytecode"),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


@everyone
def test_process(measure, peer: Peer, tmp_path: Path) -> None:
    """From process start to first result, caches warm."""
    env = environment(tmp_path)

    def start() -> None:
        command = [sys.executable, str(FIRST_RESULT), peer.name]
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)

    start()
    measure.once("compile: process start to first result, warm caches", tuple, start, limits={"eager": 1.5})


@compilers
def test_warm_first_call(measure, peer: Peer, tmp_path: Path) -> None:
    """The first call in a second process: the first process has filled the caches."""
    env = environment(tmp_path)
    processes: list[subprocess.Popen[str]] = []

    def ready() -> tuple[Any, ...]:
        command = [sys.executable, str(FIRST_RESULT), peer.name, "--wait"]
        process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return (process,)

    def call(process: Any) -> None:
        process.stdin.write("\n")
        process.stdin.flush()
        assert "first call" in process.stdout.readline()

    try:
        call(*ready())
        measure.once(
            "compile: first call of a second process, warm caches", ready, call, limits={"torch.compile": 1 / 3}
        )
    finally:
        for process in processes:
            process.communicate()
