"""Scalars that optimizers read from tensors (`step.item()`): in the graph they stay tensors of one double each.

In: the place of a read, and the graph so far.  Out: the tensors that stand for Python floats.  If one decides a branch,
a guard (`Decision`) on the number in an existing tensor at the frame's start.

    step += 1                     # the tensor holds single(x + 1)
    n = step.item()               # a float, that number
    if 2 * n > 5:                 # decided by today's x, and guarded: mul(single(x + 1), 2.0) > 5.0

Only sums of a tensor's number with constants are followed.  After any other write to the memory, the branch breaks the
graph.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.symbolic_numbers import Symbolic
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir.guards import Guard, UserFrame
from pycompiler.ir.source import Source
from pycompiler.operators.kernel_type_checks import memory_of
from pycompiler.symbolic.data_checks import (
    COMPARISONS,
    NAME,
    DataChecks,
    Decision,
    Span,
    X,
    memory_around,
    overlap,
    place_of,
)
from pycompiler.symbolic.symbolic_node import EXACT, Real

ARITHMETIC: dict[Any, str] = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.truediv: "truediv", operator.pow: "pow",
    operator.neg: "neg", torch.pow: "pow",
}  # fmt: skip
COMPARED: dict[Any, str] = {getattr(operator, name): name for name in COMPARISONS}
SUMS = (operator.iadd, "add_", torch._foreach_add_)
"""Operators that add a constant in place to a tensor, or to each tensor of a list."""
MADE: dict[Any, float | None] = {torch.tensor: None, torch.zeros: 0.0, torch.ones: 1.0}
"""Functions that create a tensor of a number -> the number; None: the first argument."""
WIDTHS = {torch.float32: 4, torch.float64: 8}


@dataclass(eq=False)
class ScalarCell:
    """The number in a tensor: its current value, and the number of writes that were followed.

    For an existing tensor (`given`) it is computed from `X`, the number at the frame's start.  Otherwise the tensor was
    created from a constant.
    """

    tensor: Tensor
    version: int
    now: Real | float | None
    writes: int = 0

    @property
    def given(self) -> Tensor | None:
        return self.tensor if self.tensor.exists else None

    @property
    def is_followed(self) -> bool:
        """Whether there were no other writes."""
        return self.tensor.version == self.version + self.writes


@dataclass(frozen=True)
class ScalarRead:
    """A float of the program, and the cells it was computed from.  `value` is None if it is not known."""

    value: Real | float | None = None
    cells: frozenset[ScalarCell] = frozenset()


UNKNOWN = ScalarRead()


class ScalarReads:
    """The scalar reads of one frame."""

    def __init__(self, cx: Capture) -> None:
        self.cx = cx
        self.read: dict[fx.Node, fx.Node] = {}  # node of a read number -> node of the tensor it was read from
        self.chosen: set[fx.Node] = set()  # nodes that choose one of two numbers
        self.numbers: dict[fx.Node, ScalarRead] = {}
        self.results: dict[fx.Node, ScalarRead] = {}  # numbers from which no other number was computed
        self.cells: dict[int, ScalarCell] = {}  # by id of the fake
        self._lying: dict[int, list[ScalarCell]] = {}  # by memory
        self.decided: dict[Decision, dict[Source, Tensor]] = {}
        self.places: dict[Source, Span] = {}  # memory of numbers that decided a branch
        self.written: dict[Source, Span] = {}  # memory that was written before
        self.place: tuple[UserFrame, ...] = ()
        self._places: set[int] = set()  # memory written so far
        self._homes: dict[int, fx.Node] = {}  # memory -> node of the number in it
        self._plain = 0  # number of inputs known to be plain tensors
        self._counts = (0, 0)  # numbers of inputs and of writes at the last query
        self._newly: dict[Source, Span] = {}  # written memory that no decision has considered yet
        self._at: fx.Node | None = None

    # reads and operators of the program ------------------------------------------------------------------------
    def take(self, tensor: Tensor) -> Value | None:
        """`tensor.item()` as a copy, independent of later writes and without gradient; None if the tensor holds no float."""
        graph, fake = self.cx.graph, tensor.fake
        if not fake.dtype.is_floating_point or not all(type(n) is int and n == 1 for n in fake.shape) or graph.levels:
            return None
        source = graph.node_of(tensor)
        if fake.requires_grad:
            tensor = graph.call_method("detach", [tensor], {})  # type: ignore[assignment]
        if fake.dim():
            tensor = graph.call_method("reshape", [tensor, Const(())], {})  # type: ignore[assignment]
        made = graph.call_method("clone" if fake.dtype is torch.float64 else "double", [tensor], {})
        assert isinstance(made, Tensor)
        self.read[made.node] = source
        return made

    def is_number(self, value: Value | None) -> bool:
        """Whether a tensor stands for a float of the program."""
        if not self.read or not isinstance(value, Tensor):
            return False
        self._follow()
        return value.node in self.numbers

    def stands_for_number(self, value: Tensor) -> bool:
        """Whether it leaves the frame as a Python number: read, computed, or a comparison of such numbers."""
        if self.is_number(value):
            return True
        return value.node.target in COMPARED and any(a in self.numbers for a in value.node.all_input_nodes)

    def beside(self, fn: Callable[..., Any], left: Value, right: Value) -> tuple[Value, Value]:
        """The operands of an operator.  Beside a 0-dim tensor a number takes its dtype, since as a double it would
        promote it."""
        numbers = [self.is_number(v) for v in (left, right)] if self.read else [False, False]
        if fn is operator.truediv and numbers[0] and isinstance(right, Const) and right.value == 0:
            self.cx.evaluate_raw(fn, 1.0, right.value)  # raises
        for number, other in ((left, right), (right, left)) if sum(numbers) == 1 else ():
            single = isinstance(other, Tensor) and other.dtype is torch.float32 and not other.rank
            if single and self.is_number(number):
                cast = self.cx.graph.call_method("to", [number, Const(torch.float32)], {})
                return (cast, right) if number is left else (left, cast)
        return left, right

    def extreme(self, op: Callable[[Value, Value], Value], best: Value, other: Value) -> Value | None:
        """The result of `max` or `min` of two numbers, one of them a tensor; None if they are not such numbers."""
        if not any(map(self.is_number, (best, other))) or not all(map(self._is_float, (best, other))):
            return None
        made = self.cx.graph.call_function(torch.where, [op(other, best), other, best], {})
        assert isinstance(made, Tensor)
        self.chosen.add(made.node)
        return made

    def truth(self, value: Tensor) -> bool | None:
        """Whether a comparison of numbers holds in this call, guarded; None if it cannot be guarded."""
        node = value.node
        if not self.read or node.target not in COMPARED or node.graph is not self.cx.graph.graph:
            return None
        self._follow()
        sides = [self._operand(a) for a in node.args]
        left, right = (s.value if isinstance(s, ScalarRead) else s for s in sides)
        cells = frozenset[ScalarCell]().union(*(s.cells for s in sides if isinstance(s, ScalarRead)))
        given = [c.given for c in cells if c.given is not None]
        if left is None or right is None or len(given) > 1 or not all(map(self._may_be_read, cells)):
            return None
        today = [t.real.item() for t in given if t.real is not None] or [0.0]
        try:
            holds = Decision(left, COMPARED[node.target], right, True).passes({NAME: today[0]})
        except (ArithmeticError, TypeError):  # eager raises, or continues with a complex number
            return None
        if not all(map(self._is_apart, given)):
            return None
        for t in given:
            self._decide(Decision(left, COMPARED[node.target], right, holds), t)
        return holds

    def _decide(self, decision: Decision, tensor: Tensor) -> None:
        assert tensor.source is not None
        self.decided.setdefault(decision, {})[tensor.source] = tensor
        self.place = self.place or self.cx.user_stack

    def guard(self) -> Guard | None:
        """The guard of all decisions.  It also excludes numbers for which Python's floats would raise."""
        if self.read:
            self._follow()
        for number in self.results.values():
            for given in [c.given for c in number.cells if c.given is not None and self._may_be_read(c)]:
                if isinstance(number.value, Real) and _may_raise(number.value) and self._is_apart(given):
                    self._decide(Decision(number.value, "ne", math.nan, True), given)
                    for base in _roots(number.value):  # for -inf and -0.0 `sqrt` differs from Python's power
                        self._decide(Decision(base, "le", 0.0, False), given)
        if not self.decided:
            return None
        tensors: dict[Source, Tensor] = {s: t for found in self.decided.values() for s, t in found.items()}
        sources = list(tensors)
        at = {source: i for i, source in enumerate(sources)}
        reads = tuple((t.cls, t.dtype, WIDTHS[t.dtype]) for t in tensors.values())
        decisions = tuple(
            Decision(d.left, d.op, d.right, d.holds, tuple(at[s] for s in found)) for d, found in self.decided.items()
        )
        others = (*sources[1:], *(s for s in self.written if s not in tensors))
        return Guard("data", sources[0], DataChecks(reads, decisions), others, self.place)

    # the recorded calls ----------------------------------------------------------------------------------------
    def _follow(self) -> None:
        """Process the calls recorded since the last call."""
        graph = self.cx.graph.graph
        if self._at is not None and (self._at.graph is not graph or self._at._erased):
            self.numbers, self.results, self.cells, self._places, self._at = {}, {}, {}, set(), None
            self._homes.clear()
            self._lying.clear()
        node = graph._root.next if self._at is None else self._at.next
        while node is not graph._root:
            self._note(node)
            self._at, node = node, node.next

    def _note(self, node: fx.Node) -> None:
        if written := node.meta.get("writes"):
            self._note_writes(node, written)
        if node in self.read:
            cell = self._cell(self.read[node])
            self.numbers[node] = UNKNOWN if cell is None else ScalarRead(cell.now, frozenset((cell,)))
        elif node in self.chosen:
            self.numbers[node] = UNKNOWN
        elif node.op == "call_function" and node.target in MADE:
            self._note_made(node)
        elif node.op == "call_function" and node.target in ARITHMETIC and not node.kwargs:
            if any(a in self.numbers for a in node.args if isinstance(a, fx.Node)):
                self._note_computed(node)
        if node in self.numbers:
            self._homes[memory_of(node.meta["example_value"])] = node

    def _note_made(self, node: fx.Node) -> None:
        """A tensor created from a constant."""
        fake = node.meta["example_value"]
        value: Any = MADE[node.target]
        if value is None:
            value = node.args[0] if len(node.args) == 1 else None
        if "out" not in node.kwargs and _holds_number(fake) and (type(value) is float or _is_small(value)):
            self._add(fake, ScalarCell(self.cx.graph.by_fake[id(fake)], 0, _rounded(float(value), fake.dtype)))

    def _note_computed(self, node: fx.Node) -> None:
        operands = [self._operand(a) for a in node.args]
        if any(o is None for o in operands):
            return
        values = [o.value if isinstance(o, ScalarRead) else o for o in operands]
        cells = frozenset[ScalarCell]().union(*(o.cells for o in operands if isinstance(o, ScalarRead)))
        if any(v is None for v in values) or sum(c.given is not None for c in cells) > 1:
            self.numbers[node] = UNKNOWN
            return
        self.numbers[node] = self.results[node] = ScalarRead(
            _folded(Real(ARITHMETIC[node.target], tuple(values))), cells
        )
        for n in node.all_input_nodes:
            self.results.pop(n, None)

    def _note_writes(self, node: fx.Node, written: list[fx.Node]) -> None:
        followed = (
            node.target in SUMS and len(node.args) == 2 and not node.kwargs and type(node.args[1]) in (int, float)
        )
        places = {
            memory_of(n.meta["example_value"]) for n in written if n.meta["example_value"].layout is torch.strided
        }
        targets = node.args[0] if isinstance(node.args[0], (list, tuple)) else [node.args[0]]
        known = [self._cell(t) for t in targets if t in written] if followed else []
        for cell in filter(None, known):
            cell.now, cell.writes = _plus(cell, node.args[1]), cell.writes + 1
        for cell in (c for place in places for c in self._lying.get(place, ())):
            if not any(cell is c for c in known):
                cell.now = None
        for n in [self._homes[place] for place in places if place in self._homes]:
            self.numbers[n] = UNKNOWN
        self._places |= places

    def _cell(self, node: Any) -> ScalarCell | None:
        """The cell of a tensor created from a constant, or of an existing one; None for any other."""
        graph = self.cx.graph
        if not isinstance(node, fx.Node):
            return None
        fake = node.meta["example_value"]
        if (known := self.cells.get(id(fake))) is not None:
            return known
        if node.op != "placeholder" or graph.placeholders[node].make is not None:
            return None
        at = graph.placeholders[node].at
        if at is None or graph.inputs[at].fake is not fake or not _is_plain(graph.inputs[at]):
            return None
        start = None if memory_of(fake) in self._places else X
        return self._add(fake, ScalarCell(graph.inputs[at], graph.versions[at], start))

    def _add(self, fake: torch.Tensor, cell: ScalarCell) -> ScalarCell:
        self.cells[id(fake)] = cell
        self._lying.setdefault(memory_of(fake), []).append(cell)
        return cell

    # numbers --------------------------------------------------------------------------------------------------
    def _operand(self, argument: Any) -> ScalarRead | float | None:
        """A number among a call's arguments; None for other arguments."""
        if isinstance(argument, fx.Node):
            if argument in self.numbers:
                return self.numbers[argument]
            value = argument.meta.get("example_value")
            return UNKNOWN if isinstance(value, (float, torch.SymFloat, torch.SymInt)) else None
        return float(argument) if type(argument) is float or _is_small(argument) else None

    def _is_float(self, value: Value) -> bool:
        """Whether it is a number that tensors of numbers accept as an operand."""
        if isinstance(value, Symbolic):
            return value.python_type() is float
        return self.is_number(value) or (
            isinstance(value, Const) and (type(value.value) is float or _is_small(value.value))
        )

    # decisions ------------------------------------------------------------------------------------------------
    def _may_be_read(self, cell: ScalarCell) -> bool:
        """Whether all writes so far were followed."""
        graph = self.cx.graph
        plain = all(not t.wrapper and t.layout is torch.strided for t in graph.inputs[self._plain :])
        if plain:
            self._plain = len(graph.inputs)
        return plain and cell.is_followed and not graph.facts.swaps and not hasattr(graph, "outer")

    def _is_apart(self, tensor: Tensor) -> bool:
        """Guard that no deciding number shares memory with another one, or with memory the graph wrote under another
        name.

        False if it does in this call.
        """
        assert tensor.real is not None and tensor.source is not None
        place = {} if tensor.source in self.places else {tensor.source: place_of(tensor.real)}
        places, written = self.places | place, self._newly_written()
        if any(overlap(a, b) for a in place.values() for b in self.places.values()):
            return False
        others = [(p, spans) for p in place.values() for spans in (self.written, written)]
        others += [(p, written) for p in self.places.values()] if written else []
        if any(overlap(at, span) for at, spans in others for source, span in spans.items() if source not in places):
            return False
        self.places, self._newly = places, {}
        self.written |= written
        return True

    def _newly_written(self) -> dict[Source, Span]:
        graph = self.cx.graph
        (inputs, mark), self._counts = self._counts, (len(graph.inputs), graph.facts.mark())
        found = [t for t in graph.inputs[inputs:] if graph.facts.is_written(t.fake)]
        graph.facts.place_inputs()
        found += [graph.inputs[i] for w in graph.facts.writes[mark:] for s in w.storages for i in s.inputs]
        self._newly |= {
            t.source: memory_around(t.real)
            for t in found
            if t.source and t.source not in self.written and t.real is not None and t.device.type == "cpu"
        }
        return self._newly


def _holds_number(fake: Any) -> bool:
    """Whether it is a CPU tensor of one float whose writes are counted."""
    plain = isinstance(fake, torch.Tensor) and fake.layout is torch.strided and not fake.is_inference()
    return (
        plain
        and fake.dtype in WIDTHS
        and fake.device.type == "cpu"
        and all(type(n) is int and n == 1 for n in fake.shape)
    )


def _is_plain(t: Tensor) -> bool:
    """Whether a guard can read the number of an existing tensor."""
    real = t.real
    if real is None or t.source is None or t.is_special or t.cls not in (torch.Tensor, torch.nn.Parameter):
        return False
    return _holds_number(t.fake) and not (real.is_neg() or real.is_inference()) and real.untyped_storage().nbytes() > 0


def _is_small(value: Any) -> bool:
    """Whether it is an int that a float holds exactly."""
    return type(value) is int and abs(value) <= EXACT


def _may_raise(value: Real) -> bool:
    return value.op in ("truediv", "pow") or any(isinstance(a, Real) and _may_raise(a) for a in value.args)


def _roots(value: Real) -> list[Real]:
    """The bases of square roots: operators on tensors call `sqrt` for such a power."""
    parts = [a for a in value.args if isinstance(a, Real)]
    own = [a for a in parts[:1] if value.op == "pow" and value.args[1] in (0.5, -0.5)]
    return own + [base for a in parts for base in _roots(a)]


def _folded(value: Real) -> Real | float | None:
    """A number computed from constants alone is evaluated; None if that raises."""
    if value.symbols:
        return value
    try:
        return value.eval({})
    except (ArithmeticError, TypeError):
        return None


def _rounded(value: Real | float, dtype: torch.dtype) -> Real | float | None:
    return value if dtype is torch.float64 else _folded(Real("float32", (value,)))


def _plus(cell: ScalarCell, more: Any) -> Real | float | None:
    """The sum after an in-place addition, in the tensor's precision."""
    dtype = cell.tensor.dtype
    if (
        cell.now is None
        or not (type(more) is float or _is_small(more))
        or (more := _rounded(float(more), dtype)) is None
    ):
        return None
    total = _folded(Real("add", (cell.now, more)))
    return None if total is None else _rounded(total, dtype)
