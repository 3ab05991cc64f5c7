"""explain(fn)(*args): run once, report graphs, breaks, guards.

In: a function or module and arguments.  Out: `Explanation`, which prints the report and holds it as fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from pycompiler import backends, pipeline, wrapping
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
    seconds: list[tuple[str, float]] = field(default_factory=list)
    result: Any = None

    def add(self, record: pipeline.GraphRecord) -> None:
        """Called by the pipeline after each capture."""
        if record.graph is not None:
            self.graphs.append(record.graph)
            self.op_count += record.op_count
            nodes = record.graph.graph.nodes
            self.ops_per_graph.append([n.target for n in nodes if n.op in ("call_function", "call_method")])
        self.out_guards.append(record.guards)
        self.seconds.append((record.code.co_qualname, record.seconds))
        if record.broke is not None:
            self.break_reasons.append(record.broke)

    @property
    def compile_times(self) -> str:
        """Seconds that each capture took, its backend included."""
        rows = [f"  {name}: {seconds:.4f}" for name, seconds in self.seconds]
        return "\n".join(["Compile Times (seconds):", *rows])

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


def explain(fn: Callable[..., Any], /, *args: Any, backend: str | Callable[..., Any] = "eager", **kwargs: Any) -> Any:
    """`explain(fn)(*args)` runs `fn` once under capture and returns an `Explanation`; `fn`'s own cache is not touched.

    The older form `explain(fn, *args)` does the same at once.
    """

    def run(*args: Any, **kwargs: Any) -> Explanation:
        explanation = Explanation()
        function = backends.lookup(backend)
        family = pipeline.Family(
            backend=function,
            backend_name=getattr(function, "__name__", repr(function)),
            listener=explanation.add,
            ours=backends.is_ours(backend),
        )
        explanation.result = wrapping.compiled(fn, family, None)(*args, **kwargs)
        return explanation

    return run(*args, **kwargs) if args or kwargs else run
