"""`config.summary_at_exit`: one line at the end of the program, with the cost of its breaks and recompiles.

In: the compiles and calls of this process.  Out: a line on stderr, for example `pycompiler: 3 breaks and 8 recompiles cost
about 41 ms of 96 ms a step: python -m pycompiler report train.py`.  Without the knob nothing is observed; a program in
which a recompile limit was hit gets a line without costs.
"""

from __future__ import annotations

import atexit
import os
import shlex
import sys

from pycompiler import config
from pycompiler._native import CompiledFunction
from pycompiler.debug.describe import Data
from pycompiler.debug.number_format import counted, title

KEPT = frozenset({"start", "frame", "graph", "recompile", "eager", "entry", "steps", "calls"})
LARGE = ("graph", "nodes", "code", "unfused", "memory")  # fields of events that the line does not need


class ExitSummary:
    """Events of this process, until its end.  `limits`: functions whose recompile limit was hit."""

    def __init__(self) -> None:
        self.events: list[Data] = []
        self.limits: dict[str, None] = {}
        self.recorder: object = None
        self.registered = -1  # the process that prints the line

    def changed(self) -> None:
        """`config.summary_at_exit` has changed."""
        from pycompiler.debug.events import Recorder  # imported only to observe

        if config.summary_at_exit and self.recorder is None:
            recorder = self.recorder = Recorder(self.take, costs=True, device=False)
            recorder.__enter__()
            self.register()
        elif not config.summary_at_exit and isinstance(self.recorder, Recorder):
            self.recorder.__exit__()
            self.recorder = None
            self.events.clear()

    def take(self, event: Data) -> None:
        if event["event"] in KEPT:
            small: Data = {"graph": None, "nodes": [], "code": "", "unfused": [], "memory": {}}
            self.events.append({k: small[k] if k in LARGE and event["event"] in ("frame", "graph") else v
                                for k, v in event.items()})  # fmt: skip

    def limit_hit(self, function: CompiledFunction) -> None:
        self.limits[title(function.name)] = None
        self.register()

    def register(self) -> None:
        if self.registered != os.getpid():
            self.registered = os.getpid()
            atexit.register(self.tell)

    def tell(self) -> None:
        if self.registered != os.getpid():  # a fork: its parent prints the line
            return
        if line := self.line():
            print(f"pycompiler: {line}: {command()}", file=sys.stderr)

    def line(self) -> str:
        from pycompiler.debug.causes import summary
        from pycompiler.debug.document import Document
        from pycompiler.debug.events import Recorder

        if isinstance(self.recorder, Recorder):
            self.recorder.tell_calls()
            return summary(Document.of(self.events))
        if self.limits:
            return f"{counted(len(self.limits), 'function')} at the recompile limit ({', '.join(self.limits)})"
        return ""


def command() -> str:
    """The command that makes the report of this program."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = ["-m", spec.name.removesuffix(".__main__")] if spec is not None else [sys.argv[0] or "SCRIPT"]
    return f"python -m pycompiler report {shlex.join([*name, *sys.argv[1:]])}"


exit_summary = ExitSummary()
