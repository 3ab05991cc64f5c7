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
    """Makes a new compiled model in fresh caches each round; the caches of the round before are dropped."""

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
    """Capture alone: the backend runs the captured graph as it is."""
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


@everyone
def test_process(measure, peer: Peer, tmp_path: Path) -> None:
    """From process start to first result, caches warm."""
    env = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "PYCOMPILER_CACHE_DIR": str(tmp_path / "pycompiler"),
        "OMP_NUM_THREADS": "1",
    }

    def start() -> None:
        script = Path(__file__).with_name("first_result.py")
        subprocess.run([sys.executable, str(script), peer.name], env=env, check=True, stdout=subprocess.DEVNULL)

    start()
    measure.once("compile: process start to first result, warm caches", tuple, start, limits={"eager": 1.5})
