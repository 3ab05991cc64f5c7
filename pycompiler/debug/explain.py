"""explain(fn)(*args): run once, report graphs, breaks, guards.

In: a function or module and arguments.  Out: `Explanation`, which prints the report and holds it as fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from pycompiler import api, backends, pipeline
from pycompiler.capture.frame import BreakRecord
from pycompiler.ir.guards import Guard


@dataclass
class Explanation:
    """What a run of a compiled callable captured."""

    graphs: list[fx.GraphModule] = field(default_factory=list)
    break_reasons: list[BreakRecord] = field(default_factory=list)
    out_guards: list[list[Guard]] = field(default_factory=list)
    op_count: int = 0
    ops_per_graph: list[list[Any]] = field(default_factory=list)
    compile_times: str = ""
    result: Any = None

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        return len(self.break_reasons)

    def __str__(self) -> str:
        lines = [
            f"Graph Count: {self.graph_count}",
            f"Graph Break Count: {self.graph_break_count}",
            f"Op Count: {self.op_count}",
            "Break Reasons:",
        ]
        for i, record in enumerate(self.break_reasons, 1):
            lines += [
                f"  Break Reason {i}:",
                f"    Reason: {record.reason}",
                f"    Hint: {record.hint}",
                "    User Stack:",
            ]
            for f in record.stack:
                lines.append(f"      <FrameSummary file {f.filename}, line {f.lineno} in {f.function}>")
        lines.append("Ops per Graph:")
        for i, ops in enumerate(self.ops_per_graph, 1):
            lines += [f"  Ops {i}:", *(f"    {op}" for op in ops)]
        lines.append("Out Guards:")
        for i, guards in enumerate(self.out_guards, 1):
            lines += [f"  Guards {i}:", *(f"    {g}" for g in guards)]
        return "\n".join([*lines, self.compile_times])


def explain(fn: Callable[..., Any], *, backend: str = "eager") -> Callable[..., Explanation]:
    """A callable that runs `fn` once under capture and returns an `Explanation`; `fn`'s own cache is not touched."""

    def run(*args: Any, **kwargs: Any) -> Explanation:
        explanation = Explanation()

        def listener(record: pipeline.GraphRecord) -> None:
            if record.graph is not None:
                explanation.graphs.append(record.graph)
                explanation.op_count += record.op_count
                explanation.ops_per_graph.append(
                    [n.target for n in record.graph.graph.nodes if n.op in ("call_function", "call_method")]
                )
            explanation.out_guards.append(record.guards)
            if record.broke is not None:
                explanation.break_reasons.append(record.broke)

        target = getattr(fn, "_orig_mod", fn)
        compiled = api.compile(target, backend=backend)
        if backends.lookup(backend) is not None:
            found = api.compiled_of(compiled)
            if found is not None:
                found._pycompiler_family.listener = listener
        explanation.result = compiled(*args, **kwargs)
        explanation.compile_times = str(pipeline.compile_times())
        return explanation

    return run
