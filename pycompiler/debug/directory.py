"""The debug directory: files about every compile, under `config.debug_dir_root`.

In: `config.trace.enabled` (TORCH_COMPILE_DEBUG=1).  Out, with the names of torch's documentation:

    run_2026_03_01_08_20_52_143510-pid_180167/
        torchdynamo/debug.log                    capture of frames
        torchinductor/aot_model___0_debug.log    autograd: the joint graph of model 0
        torchinductor/model__0_forward_1.0/      one ATen graph of it: the files of `FILES`, each by its switch
        torchinductor/names.txt                  of each folder the compile: `[0/1/forward] step#1.forward`, and the
                                                 function's place; printed files begin with the same line

A file that cannot be written is reported once in the log; the compile goes on.
"""

from __future__ import annotations

import contextlib
import cProfile
import datetime
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import fx

from pycompiler import config, logs
from pycompiler.debug import render
from pycompiler.ir import compile_names, phases

DYNAMO, INDUCTOR = "torchdynamo", "torchinductor"


@dataclass(frozen=True)
class File:
    """A file of a graph's folder: the knob that switches it on, its artefact, and its renderer."""

    switch: str
    artefact: str
    text: Callable[[dict[str, Any]], str]  # argument: the artefacts of the graph so far, and all branches as "branches"


FILES: dict[str, File] = {
    "fx_graph_readable.py": File("fx_graph", "fx_graph", lambda a: render.readable(a["fx_graph"])),
    "fx_graph_runnable.py": File("fx_graph", "fx_graph", lambda a: render.runnable(a["fx_graph"], a["branches"])),
    "fx_graph_transformed.py": File("fx_graph_transformed", "schedule", render.transformed),
    "ir_pre_fusion.txt": File("ir_pre_fusion", "program", lambda a: render.program(a["program"])),
    "ir_post_fusion.txt": File("ir_post_fusion", "schedule", lambda a: render.schedule(a["schedule"])),
    "output_code.py": File("output_code", "plan", lambda a: render.output(a, a["branches"])),
    "graph_diagram.svg": File("graph_diagram", "schedule", lambda a: render.diagram(a["schedule"])),
}
NAMES = "names.txt"
LOGS = {"debug.log": ("debug_log", logging.DEBUG), "info.log": ("info_log", logging.INFO)}


@dataclass
class GraphFiles:
    """A graph that is being compiled.

    Unbacked symbols can split it into parts; files of later parts get a number.
    """

    folder: Path
    made: dict[str, Any] = field(default_factory=dict)
    part: int = 0

    def add(self, name: str, value: Any) -> None:
        if name == "program" and "plan" in self.made:
            self.part += 1
            del self.made["plan"]
        self.made[name] = value

    def path(self, file: str) -> Path:
        stem, _, suffix = file.partition(".")
        return self.folder / (f"{stem}_{self.part}.{suffix}" if self.part else file)


class _DirectoryState(threading.local):
    """The models and graphs that a thread compiles, the innermost last."""

    def __init__(self) -> None:
        self.models: list[int] = []
        self.graphs: list[GraphFiles] = []


class ThreadLogHandler(logging.FileHandler):
    """A log file for the records of the thread that created it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, delay=True)
        self.setFormatter(logs.FORMATTER)
        self.thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> Any:
        return record.thread == self.thread and super().filter(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Print no traceback, for example for a full disk."""


class Directory(phases.Observer):
    """Writes the run's folder, which is created at the first compile."""

    def __init__(self) -> None:
        self.state = _DirectoryState()
        self.counts: dict[int, itertools.count[int]] = {}
        self.numbers: dict[int, int] = {}  # number of a model in the process -> its number in this directory
        self.branches: dict[int, tuple[Sequence[fx.GraphModule], Sequence[Any], Sequence[str]]] = {}
        self.dynamo: logging.Handler | None = None
        self.root: Path | None = None
        self.pid = os.getpid()

    # the run ----------------------------------------------------------------------------------------------------
    def open(self) -> Path:
        """The run's folder."""
        if self.root is None or self.pid != os.getpid():  # a fork has a folder of its own
            self.pid = os.getpid()
            stamp = datetime.datetime.now().strftime("%Y_%m_%d_%H_%M_%S_%f")
            root = Path(config.debug_dir_root) / f"run_{stamp}-pid_{self.pid}"
            (root / DYNAMO).mkdir(parents=True)
            (root / INDUCTOR).mkdir()
            self.root = root
            logging.getLogger(logs.ROOT).info("debug directory: %s", root)
        return self.root

    def close(self) -> None:
        if self.dynamo is not None:
            logs.stop_listening(self.dynamo)
            self.dynamo.close()
            self.dynamo = None

    def begin(self, phase: str) -> None:
        if phase == "compile" and self.dynamo is None:
            with self.safely("torchdynamo/debug.log"):
                made = logging.FileHandler(self.open() / DYNAMO / "debug.log")
                made.setFormatter(logs.FORMATTER)
                logs.listen(made, "capture", logging.DEBUG)
                self.dynamo = made

    def end(self, phase: str, seconds: float) -> None:
        if self.state.graphs:
            logs.stage("native").debug("%s: %.6f s", phase, seconds)

    @contextlib.contextmanager
    def safely(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            config.say_once(f"debug directory: {what} is not written: {type(error).__name__}: {error}")

    # models and graphs ------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def model(self, number: int) -> Iterator[None]:
        number = self.numbers.setdefault(number, len(self.numbers))
        handler = None
        with self.safely("the log of a model"):
            handler = ThreadLogHandler(self.open() / INDUCTOR / f"aot_model___{number}_debug.log")
            logs.listen(handler, "autograd", logging.DEBUG)
        self.state.models.append(number)
        try:
            yield
        finally:
            self.state.models.pop()
            self.drop(handler)

    def drop(self, handler: logging.Handler | None) -> None:
        if handler is not None:
            logs.stop_listening(handler)
            handler.close()

    @contextlib.contextmanager
    def graph(self, kind: str) -> Iterator[None]:
        number = self.state.models[-1] if self.state.models else 0
        count = next(self.counts.setdefault(number, itertools.count(1)))
        handlers: list[logging.Handler] = []
        profile: cProfile.Profile | None = None
        folder = Path(f"model__{number}_{kind}_{count}.0")
        with self.safely(str(folder)):
            folder = self.open() / INDUCTOR / folder
            folder.mkdir()
            with (folder.parent / NAMES).open("a") as names:
                known = compile_names.current()
                names.write(f"{folder.name}\t{known or ''}\t{known.place if known else ''}\n")
            for name, (switch, level) in LOGS.items():
                if config.get_knob(f"trace.{switch}"):
                    handlers.append(ThreadLogHandler(folder / name))
                    logs.listen(handlers[-1], "all", level)
            if config.trace.compile_profile:
                profile = cProfile.Profile()
                profile.enable()
        self.state.graphs.append(GraphFiles(folder, {"branches": self.branches}))
        logs.stage("native").debug("compile of %s begins", folder.name)
        try:
            yield
        finally:
            logs.stage("native").debug("compile of %s ends", folder.name)
            self.state.graphs.pop()
            with self.safely("compile.prof"):
                if profile is not None:
                    profile.disable()
                    profile.dump_stats(folder / "compile.prof")
            for handler in handlers:
                self.drop(handler)

    def artefact(self, name: str, value: Any) -> None:
        if name == "joint":
            logs.stage("autograd").debug("joint graph:\n%s", value)
        if name == "branch":
            number, *made = value
            self.branches[number] = tuple(made)
        if not self.state.graphs:
            return
        graph = self.state.graphs[-1]
        graph.add(name, value)
        if name == "fx_graph":
            logs.stage("autograd").debug("%s:\n%s", graph.folder.name, value.graph)
        for file, row in FILES.items():
            if row.artefact == name and config.get_knob(f"trace.{row.switch}"):
                with self.safely(file):
                    graph.path(file).write_text(heading(file) + row.text(graph.made))


def heading(file: str) -> str:
    """The first line of a printed file: the name of the compile and the function's place."""
    known = compile_names.current()
    return f"# {known}, {known.place}\n" if known is not None and not file.endswith(".svg") else ""
