"""The smallest part of a graph that still shows a symptom.

In: a graph, its inputs, a `Setting`.  Out: `Smallest`, the part and how to create its inputs.
First each half is tried alone.  Then the end and the beginning are moved by halving, ever smaller pieces are left out,
and finally outputs are left out.

Values of omitted operators become inputs, with the values that eager computes.  So every choice of operators is a graph
that can run.  Each candidate runs in a child process with a time limit; a crash and a hang are symptoms too.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

import torch
from torch import fx

from pycompiler.debug.repro import like
from pycompiler.debug.trial import Outcome, Setting, Symptom, in_child, observe
from pycompiler.pipeline.verification import Copies

LIMIT = 60.0  # seconds per candidate; after the first one finished, `PATIENCE` times its duration, but at least `LEAST`
PATIENCE, LEAST = 4.0, 10.0
T = TypeVar("T")


# parts of a graph -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class NodeRange:
    """A graph of some nodes of another graph; `boundary`: the nodes whose values are its inputs."""

    module: fx.GraphModule
    boundary: tuple[fx.Node, ...]
    count: int  # number of operators


def part_of(gm: fx.GraphModule, kept: set[fx.Node], outputs: Sequence[fx.Node], numbers: dict[str, Any]) -> NodeRange:
    """The graph of `kept`.  numbers: name -> value of nodes that are not tensors; they become literals if they are not
    in `kept`."""
    nodes = [n for n in gm.graph.nodes if n in kept]
    needed = {a for n in nodes for a in n.all_input_nodes}
    boundary = tuple(n for n in gm.graph.nodes if n in needed - kept and n.op != "get_attr" and n.name not in numbers)
    graph = fx.Graph()
    place: dict[fx.Node, Any] = {}
    for n in boundary:
        place[n] = graph.placeholder(n.name)

    def given(node: fx.Node) -> Any:
        if node not in place:
            place[node] = graph.node_copy(node) if node.op == "get_attr" else numbers[node.name]
        return place[node]

    for n in nodes:
        place[n] = graph.create_node(n.op, n.target, fx.map_arg(n.args, given), fx.map_arg(n.kwargs, given), n.name)
    graph.output(tuple(place[n] for n in outputs))
    made = fx.GraphModule(gm, graph)
    return NodeRange(made, boundary, len(nodes))


class _Recording(fx.Interpreter):
    """Runs a graph and records the final values of some nodes."""

    def __init__(self, gm: fx.GraphModule, wanted: Iterable[fx.Node]) -> None:
        super().__init__(gm, garbage_collect_values=True)
        self.wanted, self.found = set(wanted), dict[fx.Node, Any]()

    def run_node(self, n: fx.Node) -> Any:
        made = super().run_node(n)
        if n in self.wanted:
            self.found[n] = made
        return made


def values_of(gm: fx.GraphModule, inputs: Sequence[Any], wanted: Sequence[fx.Node]) -> list[Any]:
    """Eager's values of nodes, as inputs of a graph: with memory of their own, and with `requires_grad` of the original."""
    torch.manual_seed(0)
    run = _Recording(gm, wanted)
    run.run(*Copies.of(inputs).values)
    return [_as_input(run.found[n]) for n in wanted]


def _as_input(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    (copy,) = Copies.of([value.detach()]).values
    return copy.requires_grad_(value.requires_grad)


def non_tensor_values(gm: fx.GraphModule, inputs: Sequence[Any]) -> dict[str, list[Any]]:
    """For each node that is not a tensor: ["number", value], or ["opaque"] if it has no literal."""
    run = _Recording(gm, gm.graph.nodes)
    torch.manual_seed(0)
    run.run(*Copies.of(inputs).values)
    found: dict[str, list[Any]] = {}
    for node, value in run.found.items():
        if isinstance(value, torch.Tensor) or node.op in ("output", "get_attr"):
            continue
        if isinstance(value, torch.Size):
            value = list(value)
        plain = value is None or type(value) in (bool, int, float, str)
        flat = type(value) is list and all(type(v) is int for v in value)
        found[node.name] = ["number", value] if plain or flat else ["opaque"]
    return found


def units_of(gm: fx.GraphModule, opaque: set[str]) -> list[list[fx.Node]]:
    """Nodes that are used or omitted together: an operator that returns no tensor, with the nodes that read its parts."""
    units: list[list[fx.Node]] = []
    home: dict[fx.Node, list[fx.Node]] = {}
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        joined = [home[a] for a in node.all_input_nodes if a.name in opaque and a in home]
        if not joined:
            units.append([])
            joined = units[-1:]
        unit = joined[0]
        for other in joined[1:]:
            if other is not unit:
                unit.extend(other)
                units.remove(other)
                home.update(dict.fromkeys(other, unit))
        unit.append(node)
        home[node] = unit
    return units


def written(path: Path, write: Callable[[Path], object]) -> Path:
    """`path`, completely written: if `write` is interrupted or the disk is full, there is no such file."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


# the search -------------------------------------------------------------------------------------------------------
@dataclass
class Smallest:
    part: NodeRange
    symptom: Symptom
    real: bool  # it needs eager's values: random values do not show the symptom
    values: Path | None  # the file with these values
    tried: int
    seconds: float


class NotReproduced(Exception):
    """The whole graph shows no symptom."""


class Minifier:
    """See the module.  `folder`: for the inputs of the smallest part so far; `found`: called with each smaller part."""

    def __init__(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[Any],
        setting: Setting,
        folder: Path,
        *,
        limit: float = LIMIT,
        threads: int = 0,
        out: TextIO | None = None,
        found: Callable[[NodeRange, Symptom, Path], None] | None = None,
    ) -> None:
        self.gm, self.inputs, self.setting, self.folder = gm, list(inputs), setting, folder
        self.limit, self.slowest = limit, 0.0
        self.out = out or sys.stderr
        self.tell = found or (lambda *_: None)
        self.tried, self.whole, self.start = 0, 0, time.monotonic()
        self.threads = threads or torch.get_num_threads()
        self.numbers: dict[str, Any] = {}
        self.opaque: set[str] = set()
        self.wanted: Symptom | None = None  # the symptom that each part must show
        self.seen: Symptom | None = None  # the symptom of the smallest part
        self.best: NodeRange | None = None
        self.values: Path | None = None

    def run(self) -> Smallest:
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # threads do not survive a fork; the children create their own
        try:
            return self.searched()
        finally:
            torch.set_num_threads(before)

    def searched(self) -> Smallest:
        units = self.in_one_half(self.begin())
        head = units[: self.halved(len(units), lambda n: units[:n])]
        units = head[len(head) - self.halved(len(head), lambda n: head[len(head) - n :]) :]
        units = self.thinned(units, lambda left: self.shows(self.part(left)))
        outputs = self.thinned(self.outputs(units), lambda left: self.shows(self.part(units, left)))
        assert self.best is not None
        assert self.wanted is not None
        random = self.trial(self.part(units, outputs), real=False).symptom
        needs = not self.wanted.is_same(random)
        shown = self.seen or self.wanted
        return Smallest(self.best, shown if needs else random or shown, needs, self.values, self.tried,
                        time.monotonic() - self.start)  # fmt: skip

    def begin(self) -> list[list[fx.Node]]:
        """All units; the symptom of the whole graph is the wanted symptom."""
        known = in_child(self.surveyed, self.limit, self.threads)
        if known.told is None:
            raise NotReproduced("eager cannot run the graph on these inputs")
        self.opaque = {name for name, (kind, *_) in known.told.items() if kind == "opaque"}
        given = {n.name for n in self.gm.graph.find_nodes(op="placeholder")} if self.setting.dynamic else set()
        self.numbers = {name: row[1] for name, row in known.told.items() if row[0] == "number" and name not in given}
        units = units_of(self.gm, self.opaque)
        whole = self.part(units)
        self.whole = whole.count
        outcome = self.trial(whole)
        self.wanted = self.setting.wanted or outcome.symptom
        if outcome.symptom is None or self.wanted is None:
            raise NotReproduced("the graph alone shows no fault")
        if not self.wanted.is_same(outcome.symptom):
            raise NotReproduced(
                f"the program shows {self.wanted}; the graph alone shows another fault: {outcome.symptom}"
            )
        self.seen = outcome.symptom
        self.say(f"the graph of {whole.count} operators shows: {self.wanted}")
        if self.wanted.kind != "hang":
            self.limit = min(self.limit, max(LEAST, PATIENCE * outcome.seconds))
        self.keep(whole)
        return units

    def surveyed(self) -> dict[str, list[Any]]:
        with self.setting.entered():
            return non_tensor_values(self.gm, self.inputs)

    def in_one_half(self, units: list[list[fx.Node]]) -> list[list[fx.Node]]:
        """The half that shows the symptom alone, then its half, and so on, as long as there is one: most faults are local."""
        while len(units) > 1:
            middle = len(units) // 2
            half = next((h for h in (units[:middle], units[middle:]) if self.shows(self.part(h))), None)
            if half is None:
                break
            units = half
        return units

    def halved(self, count: int, choose: Callable[[int], list[list[fx.Node]]]) -> int:
        """The least number of units, taken from one end, that shows the symptom, if it grows monotonically with the units."""
        low, high = 1, count
        while low < high:
            middle = (low + high) // 2
            if self.shows(self.part(choose(middle))):
                high = middle
            else:
                low = middle + 1
        return high

    def thinned(self, items: list[T], shows: Callable[[list[T]], bool]) -> list[T]:
        """Leave out ever smaller pieces, as long as the symptom stays."""
        size = (len(items) + 1) // 2
        while size and len(items) > 1:
            k = 0
            while k < len(items):
                left = items[:k] + items[k + size :]
                if left and shows(left):
                    items = left
                else:
                    k += size
            size = size // 2 if size > 1 else 0
        return items

    # candidates -----------------------------------------------------------------------------------------------------
    def outputs(self, units: list[list[fx.Node]]) -> list[fx.Node]:
        """The tensors of kept nodes that omitted nodes read, or that are unused."""
        kept = {n for unit in units for n in unit}
        return [
            n for n in self.gm.graph.nodes
            if n in kept and n.name not in self.opaque and n.name not in self.numbers
            and (not n.users or not kept.issuperset(n.users))
        ]  # fmt: skip

    def part(self, units: list[list[fx.Node]], outputs: Sequence[fx.Node] | None = None) -> NodeRange:
        kept = {n for unit in units for n in unit}
        return part_of(self.gm, kept, self.outputs(units) if outputs is None else outputs, self.numbers)

    def shows(self, part: NodeRange) -> bool:
        assert self.wanted is not None
        outcome = self.trial(part)
        shows = self.wanted.is_same(outcome.symptom)
        if shows:
            self.seen = outcome.symptom
            self.keep(part)
        elif self.wanted.kind == "hang":
            self.slowest = max(self.slowest, outcome.seconds)
            self.limit = min(self.limit, max(LEAST, PATIENCE * self.slowest))
        self.say(f"{part.count} operators: {'still' if shows else 'no longer'}; {self.best.count if self.best else 0} left, "
                 f"{self.tried} tried, {time.monotonic() - self.start:.0f} s")  # fmt: skip
        return shows

    def keep(self, part: NodeRange) -> None:
        self.best = part
        assert self.seen is not None
        trial, self.values = self.folder / "trial.pt", None
        if trial.exists():
            self.values = trial.replace(self.folder / f"{part.count}_operators.pt")
            self.tell(part, self.seen, self.values)

    def values_of(self, smallest: Smallest) -> list[Any]:
        """The inputs of the smallest part; recomputed if they could not be saved."""
        if smallest.values is not None:
            return list(torch.load(smallest.values, weights_only=True))
        with self.setting.entered():
            return values_of(self.gm, self.inputs, smallest.part.boundary)

    def trial(self, part: NodeRange, *, real: bool = True) -> Outcome:
        self.tried += 1
        (self.folder / "trial.pt").unlink(missing_ok=True)
        return in_child(lambda: self.observed(part, real), self.limit, self.threads)

    def observed(self, part: NodeRange, real: bool) -> list[str] | None:
        """Runs in the child: the symptom of a part.  Its inputs are saved before any compiled code runs."""
        with self.setting.entered():
            values = values_of(self.gm, self.inputs, part.boundary)
            if real:
                with contextlib.suppress(OSError, RuntimeError):  # the disk is full
                    written(self.folder / "trial.pt", lambda path: torch.save(values, path))
            else:
                torch.manual_seed(0)
                values = [like(v) for v in values]
        found = observe(part.module, values, self.setting)
        return None if found is None else [found.kind, found.what, found.text]

    def say(self, text: str) -> None:
        print(f"minifier: {text}", file=self.out, flush=True)
