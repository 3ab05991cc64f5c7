"""CompileProfiler: a backend that only observes.

In: `prof = CompileProfiler()`, given as `backend=` of `compile`; also usable as `with CompileProfiler() as prof:`.
Out: after the program ran, `prof.report()`, a text with every graph break, every recompile and the guards that failed.
The captured graphs run uncompiled; there is no limit of recompiles, so that all are recorded.
"""

from __future__ import annotations

import os
import types
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from pycompiler import config
from pycompiler.ir.generated_source import forward_of
from pycompiler.pipeline.records import BackendObserver, GraphRecord, RecompileRecord

REPORT = """\
Compile Profiler Report
=======================

Graph Breaks
------------
{breaks}

Recompilation
-------------
{recompiles}
"""
BREAKS = """\
A graph break is a place of the program that capture cannot put into a graph: {count} in {frames}.
compile(fullgraph=True) raises at the first one.
"""
LIMIT = """\
With config.recompile_limit = {needed} or more (it is {limit}) no call would run eagerly because of the limit."""


class CompileProfiler(BackendObserver):
    """See the module.  `frame_count`: graphs; `op_count`: calls in them; `graph_breaks`, `guard_failures`: the records."""

    def __init__(self) -> None:
        self.frame_count = 0
        self.op_count = 0
        self.graph_breaks: list[GraphRecord] = []
        self.guard_failures: dict[types.CodeType, list[RecompileRecord]] = {}

    def __call__(self, gm: fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Sequence[Any]]:
        self.frame_count += 1
        self.op_count += sum(node.op.startswith("call_") for node in gm.graph.nodes)
        return forward_of(gm)

    def __enter__(self) -> CompileProfiler:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def compiled(self, record: GraphRecord) -> None:
        if record.broke is not None:
            self.graph_breaks.append(record)

    def recompiled(self, record: RecompileRecord) -> None:
        self.guard_failures.setdefault(record.code, []).append(record)

    def get_metrics(self) -> dict[str, Any]:
        """`{"guard_failures": {code: [text of the guards that failed, one per recompile]}}`."""
        return {"guard_failures": {code: [str(r) for r in found] for code, found in self.guard_failures.items()}}

    def report(self) -> str:
        return REPORT.format(breaks=self._breaks(), recompiles=self._recompiles())

    def _breaks(self) -> str:
        if not self.graph_breaks:
            return "No graph breaks detected."
        count, frames = len(self.graph_breaks), len({r.code for r in self.graph_breaks})
        lines = [BREAKS.format(count=_counted(count, "break"), frames=_counted(frames, "frame"))]
        seen = Counter(_break_text(r) for r in self.graph_breaks)
        return "\n".join([*lines, *(f"{times} x {text}" for text, times in seen.items())])

    def _recompiles(self) -> str:
        if not self.guard_failures:
            return "No recompiles detected."
        lines = []
        for code, found in self.guard_failures.items():
            lines.append(f"{_place(code)}: {_counted(len(found), 'recompile')}")
            lines += [f"  {k}. {_recompile_text(record)}" for k, record in enumerate(found, 1)]
        needed = 1 + max(map(len, self.guard_failures.values()))
        return "\n".join([*lines, LIMIT.format(needed=needed, limit=config.recompile_limit)])


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _recompile_text(record: RecompileRecord) -> str:
    """The guards that failed, one below the other, and each piece of advice once."""
    told = dict.fromkeys(line.strip() for line in str(record).splitlines() if line.strip())
    ways = [line for line in told if line.startswith("way out:")]
    return "\n     ".join([*(line for line in told if line not in ways), *ways])


def _place(code: types.CodeType) -> str:
    return f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def _break_text(record: GraphRecord) -> str:
    broke = record.broke
    assert broke is not None
    where = [f"\n     {frame}" for frame in broke.stack[-1:]]
    return "".join([f"[{broke.kind}] {broke.reason}", *where, f"\n     what to do: {broke.hint}" if broke.hint else ""])
