"""A call that is recorded runs on fakes: what it gave, and what it did.

In: a `Call`, whose arguments are nodes.  Out: its result, or a `Break`; and `Did`, what it counted, wrote and drew meanwhile.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from pycompiler.capture.breaks import Break
from pycompiler.capture.nodes import has_tensor, name_of, operands_of, version_of
from pycompiler.capture.sizes import NeedsSymbols, Sizes
from pycompiler.ir.heard import ALWAYS, Heard, Listening
from pycompiler.ir.kernels import tensors_of
from pycompiler.ir.leaves import Leaves
from pycompiler.ir.subclasses import Spec, flatten_all, is_wrapper, same
from pycompiler.ir.symbols import Specialise, is_symbolic

if TYPE_CHECKING:
    from pycompiler.ir.fake import FakeMode

# Functions that look at numbers, but not of a fake tensor.
CHECKING = frozenset((torch.nn.functional.one_hot,))


class Call:
    """A call that is about to be recorded.  `run` does what `target` says; `always`: it acts, whatever is counted; `whole`: a
    function of the program's, which may have effects."""

    def __init__(
        self,
        op: str,
        target: Any,
        run: Callable[..., Any],
        args: list[Any],
        kwargs: dict[str, Any],
        *,
        always: bool,
        whole: bool = False,
    ) -> None:
        self.op, self.target, self.run, self.args, self.kwargs = op, target, run, args, kwargs
        self.always, self.whole = always, whole
        self.fakes: Any = fx.node.map_arg(args, _example)
        self.kfakes: Any = fx.node.map_arg(kwargs, _example)
        self.given = operands_of(args, kwargs)
        self.operands = [n for n in self.given if isinstance(n.meta["example_value"], torch.Tensor)]

    @property
    def name(self) -> str:
        return name_of(self.target)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (*self.args, *self.kwargs.values())


def _example(node: fx.Node) -> Any:
    return node.meta["example_value"]


class Counts(NamedTuple):
    """What a mode of fakes counts (`ir/fake.py: _mode_class`)."""

    effects: int
    writes: int
    once: int
    others: int
    draws: int
    kernels_draw: int
    tells: int
    refusals: int
    fails: int
    meets: int

    @staticmethod
    def of(mode: FakeMode) -> Counts:
        return Counts._make(_read(mode))

    def since(self, then: Counts) -> Counts:
        return Counts._make(map(operator.sub, self, then))


_read = operator.attrgetter(*Counts._fields)


@dataclass
class Did:
    """What a call did.  mutates: it wrote arguments, `written`.  acts: more than that, and its results.  python: as far as is
    known.  drawn: random numbers; draws_only: nothing else.  refuses: it may raise an error of data.  lasts: what it wrote is not
    the graph's alone."""

    counts: Counts
    mutates: bool
    written: list[fx.Node]
    acts: bool
    python: bool
    drawn: bool
    draws_only: bool
    refuses: bool
    lasts: bool = False


class Before:
    """How things are before a call: its operands' versions, what is inside of wrappers, and what was counted."""

    def __init__(self, mode: FakeMode, call: Call) -> None:
        self.mode, self.call = mode, call
        self.versions = [version_of(n) for n in call.operands]
        self.counts = Counts.of(mode)
        self.tracked = [n for n in call.operands if _example(n).requires_grad]
        self.wrappers: list[torch.Tensor] = [
            _example(n) for n in call.operands if is_wrapper(type(n.meta["example_value"]))
        ]
        leaves, specs = flatten_all(self.wrappers)
        self.specs: list[Spec | None] = specs
        self.inside = [(t, None if t.is_inference() else t._version) for t in leaves]
        self.outs = [(t, t.shape) for t in tensors_of(call.kfakes["out"])] if "out" in call.kfakes else []

    @property
    def resizes(self) -> bool:
        """Whether the call has given a tensor that had elements others: what it views, and views of it, lie there too."""
        return any(0 not in shape and t.shape != shape for t, shape in self.outs)

    def did(self, result: Any) -> Did:
        """What the call did, which gave `result`."""
        call, counts = self.call, Counts.of(self.mode).since(self.counts)
        now = [version_of(n) for n in call.operands]
        mutates = self.versions != now or (None in self.versions and counts.writes > 0)
        written = [n for n, a, b in zip(call.operands, self.versions, now, strict=True) if a is None or a != b]
        python, checks = call.whole and not has_tensor(result), call.target in CHECKING
        draws_only = counts.draws > 0 and counts.effects == counts.kernels_draw and not python and not checks
        return Did(
            counts, mutates, written if mutates else [],
            acts=counts.effects > 0 or checks or python, python=python, drawn=counts.draws > 0, draws_only=draws_only,
            refuses=checks or counts.refusals > 0,
        )  # fmt: skip

    def writes_in_place(self, mutates: bool, note: Callable[[], None]) -> bool:
        """Whether the call has written these wrappers, if at all, so that the program can see it: the very tensors inside, and
        the version of what is around them.  `note`: it has."""
        now, after = flatten_all(self.wrappers)
        if not all(map(same, self.specs, after)) or any(a is not b for a, (b, _) in zip(now, self.inside, strict=True)):
            return False
        if mutates and any(t.is_inference() for t in (*self.wrappers, *now)):  # which count no versions
            return False
        if not mutates:
            return all(version is None or t._version == version for t, version in self.inside)
        note()
        return True


def run(mode: FakeMode, sizes: Sizes, call: Call, bind: Callable[..., Any]) -> tuple[Any, list[Heard]]:
    """What a call gives, and warns of; `bind` is asked about results that depend on data."""
    cause: BaseException | None = None
    mode.asks, mode.binder = True, bind
    try:
        with ALWAYS, Listening() as heard, mode:
            return call.run(*call.fakes, **call.kfakes), heard
    except DataDependentOutputException as e:
        settle_numbers(sizes, call.operands)
        raise Break("data-dependent-value", f"{call.name} ({e})") from e
    except DynamicOutputShapeException as e:
        settle_numbers(sizes, call.operands)
        raise Break("dynamic-output-shape", call.name) from e
    except UnsupportedOperatorException as e:
        raise Break("operator-failed", f"{call.name}: no shape function ({e})") from e
    except Specialise as e:
        if sizes.symbols is not None and sizes.symbols.is_late(e.names):
            raise Break("data-dependent-value", f"{call.name}: {e.why}") from e
        raise
    except (Leaves, KeyboardInterrupt):
        raise
    except Exception as e:
        cause = _first_cause(e)
        if isinstance(cause, (Break, NeedsSymbols)):
            raise cause from None
        _specialise(sizes, call, e)
        if isinstance(cause, DataDependentOutputException):
            settle_numbers(sizes, call.operands)
            raise Break("data-dependent-value", call.name) from e
        raise Break("operator-failed", f"{call.name}: {type(e).__name__}: {e}") from e
    finally:
        mode.asks, mode.binder = False, None
        cause = None  # an error and this frame would hold each other


def _first_cause(error: BaseException) -> BaseException:
    """Where a chain of causes begins."""
    return error if error.__cause__ is None else _first_cause(error.__cause__)


def settle_numbers(sizes: Sizes, operands: Iterable[fx.Node]) -> None:
    """Somebody looks into these: numbers of which the program made tensors become constants, which fakes know."""
    todo, seen, names = [*operands], set[fx.Node](), set[str]()
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            names |= node.meta.get("numbers", frozenset())
            todo += node.all_input_nodes
    if names and not sizes.known_symbols.is_late(names):
        raise Specialise(sorted(names), "a tensor that was made of it is looked into")


def _specialise(sizes: Sizes, call: Call, error: Exception) -> None:
    """What fails for symbolic sizes is captured again with numbers; where all are marked, it breaks the graph."""
    if sizes.symbols is None:
        return
    given: list[Any] = []
    fx.node.map_aggregate(
        (call.fakes, call.kfakes), lambda a: given.extend([*a.shape] if isinstance(a, torch.Tensor) else [a])
    )
    names = sorted(frozenset().union(*(n.node.value.symbols for n in given if is_symbolic(n) and not n.node.is_bool())))
    if sizes.symbols.is_late(names):
        raise Break("data-dependent-value", f"{type(error).__name__}: {error}") from error
    if free := [n for n in names if n not in sizes.required]:
        raise Specialise(free, f"{type(error).__name__}: {error}") from error
