"""explain(fn)(*args): run once, report graphs, breaks, guards.

In: a function or module and arguments.  Out: `Explanation`, which prints the report, has it as fields, as a page
(`html()`) and as data (`document`).
"""

from __future__ import annotations

import dis
import inspect
import os
import sys
import types
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import fx

from pycompiler import api, config, pipeline, wrapping
from pycompiler.capture.breaks import BreakRecord
from pycompiler.ir.guards import Guard

if TYPE_CHECKING:
    from pycompiler.debug.document import Document


@dataclass
class Explanation:
    """The result of `explain`: graphs, breaks and guards of one call.

    Attributes:
        graphs: Captured graphs, in order.
        break_reasons: A record for each graph break: `kind`, `reason`, `hint` and `stack`.
        out_guards: Guards of each graph.
        op_count: The number of operators in all graphs.
        ops_per_graph: Operators of each graph.
        seconds: The name and the seconds of each captured frame, its backend included.
        result: The result of the call.
        events: Events of the compiles as data; `document` is made of them.
        graph_count: The number of graphs.
        graph_break_count: The number of graph breaks.
        compile_times: `seconds` as a text.
        document: The report as data.
    """

    graphs: list[fx.GraphModule] = field(default_factory=list)
    break_reasons: list[BreakRecord] = field(default_factory=list)
    out_guards: list[list[Guard]] = field(default_factory=list)
    op_count: int = 0
    ops_per_graph: list[list[Any]] = field(default_factory=list)
    seconds: list[tuple[str, float]] = field(default_factory=list)
    result: Any = None
    events: list[dict[str, Any]] = field(default_factory=list, repr=False)

    @cached_property
    def document(self) -> Document:
        """The report as data: `debug.document.Document`."""
        from pycompiler.debug.document import Document

        return Document.of(self.events)

    def html(self, path: str | os.PathLike[str] | None = None) -> str:
        """The report as a self-contained page.

        Args:
            path: A file that also gets the page.  None: no file.

        Returns:
            str: The page.
        """
        from pycompiler.debug.page import page  # imported only for a page

        text = page(self.document)
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return text

    def _repr_html_(self) -> str:
        """The page in a frame of its own, for notebooks."""
        from pycompiler.debug.page import framed  # imported only for a page

        return framed(self.html())

    def __iter__(self) -> Iterator[Any]:
        """The tuples that torch's `explain` once returned: six values, or four if four are unpacked."""
        config.say_once("explain() returns one object; taking it apart as a tuple is deprecated: read its fields")
        six = (
            self.brief(),
            self.out_guards,
            self.graphs,
            self.ops_per_graph,
            self.break_reasons,
            self.brief(verbose=True),
        )
        return iter(six[: _unpacked_count(sys._getframe(1))])

    def brief(self, *, verbose: bool = False) -> str:
        """The text of those tuples."""
        graphs, breaks = _counted(self.graph_count, "graph"), _counted(self.graph_break_count, "graph break")
        lines = [f"pycompiler produced {graphs}, with {breaks} and {self.op_count} ops."]
        if self.break_reasons:
            lines.append(" Break reasons:")
        for i, record in enumerate(self.break_reasons, 1):
            lines.append(f"\n{i}. {record.reason}")
            for f in record.stack if verbose else record.stack[-1:]:
                lines.append(f'  File "{f.filename}", line {f.lineno}, in {f.function}\n    {f.line}')
        return "\n".join(lines)

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
        """Seconds of each capture, including its backend."""
        rows = [f"  {name}: {seconds:.4f}" for name, seconds in self.seconds]
        return "\n".join(["Compile Times (seconds):", *rows])

    def _cause_lines(self) -> list[str]:
        """Causes of breaks, recompiles and eager calls: what to change, and where."""
        causes = self.document.data["causes"] if self.events else []
        lines = ["Causes:"] if causes else []
        for i, cause in enumerate(causes[:MOST_CAUSES], 1):
            file, _, line = cause["where"].rpartition(":")
            lines += [f"  {i}. {cause['what']} at {os.path.basename(file)}:{line}", f"     -> {cause['do']}"]
        return lines + ([f"  and {len(causes) - MOST_CAUSES} more"] if len(causes) > MOST_CAUSES else [])

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
            *self._cause_lines(),
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
            lines += [f"  Guards {i}:", *(f"    {text}" for text in _guard_lines(guards))]
        return "\n".join([*lines, self.compile_times])


MOST_CAUSES = 10
SHOWN = 12  # guards of a graph; `out_guards` and the page have all
OF_CALLS = frozenset({"tensor", "sizes", "data"})  # kinds of guards that calls fail most


def _guard_lines(guards: list[Guard]) -> list[str]:
    """Guards as strs: guards on tensors and sizes first, then in order of creation."""
    ranked = sorted(guards, key=lambda g: g.kind not in OF_CALLS)
    left = len(guards) - SHOWN
    return [
        *map(str, ranked[:SHOWN]),
        *([f"and {_counted(left, 'other')}: see out_guards, or .html(path)"] if left > 0 else []),
    ]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _unpacked_count(frame: types.FrameType) -> int:
    """How many values the frame's current instruction unpacks; six for other instructions."""
    at = next((i for i in dis.get_instructions(frame.f_code) if i.offset == frame.f_lasti), None)
    return int(at.arg or 0) if at is not None and at.opname == "UNPACK_SEQUENCE" else 6


# Keyword arguments of `compile` that `explain` also takes, with their defaults.
OPTIONS = {
    "backend": "eager", "dynamic": None, "fullgraph": False, "mode": None, "options": None, "recompile_limit": None,
}  # fmt: skip


def explain(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a function once under capture and report graphs, graph breaks, guards and compile times.

    `explain(fn)(*args)` returns the report.  Entries that `fn` itself has stay as they are.
    The older form `explain(fn, *args)` does the same at once.

    Args:
        fn: A function or an `nn.Module`, compiled or not.
        *args: Positional arguments of the call, in the older form.
        **kwargs: `backend` (default "eager"; "native" adds kernels to the report), `dynamic`, `fullgraph`, `mode`, `options`
            and `recompile_limit`, as in `compile`, unless `fn` has a parameter of that name.  In the older form also keyword
            arguments of the call.

    Returns:
        Callable | Explanation: A function that runs `fn` and returns an `Explanation`; in the older form the `Explanation`.

    Raises:
        ArgumentError: As in `compile`.

    Example:
        ```python
        def step(x):
            y = x.relu()
            print("half way")
            return y * 2

        report = pycompiler.explain(step)(torch.ones(4))
        assert (report.graph_count, report.graph_break_count) == (2, 1)
        print(report.break_reasons[0])               # the call, its line and the way out
        report.html("report.html")                   # the same and more, as a page
        ```
    """
    own = _parameters(fn)
    settings = OPTIONS | {name: kwargs.pop(name) for name in OPTIONS if name in kwargs and name not in own}

    def run(*args: Any, **kwargs: Any) -> Explanation:
        from pycompiler.debug.events import Recorder  # imported only when needed

        explanation = Explanation()
        compiled = api.compile(fn, **settings)
        if (made := wrapping.compiled_of(compiled)) is not None:
            made._pycompiler_family.listener = explanation.add
        with Recorder(explanation.events.append, costs=True):
            explanation.result = compiled(*args, **kwargs)
        return explanation

    if not args and not kwargs:
        return run
    config.say_once("explain(fn, *args) is deprecated: explain(fn)(*args)")
    return run(*args, **kwargs)


def _parameters(fn: Callable[..., Any]) -> Collection[str]:
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return ()
