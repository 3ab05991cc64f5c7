"""The run of a recorded call on fake tensors: its result and its effects.

In: a `RecordedCall` whose arguments are nodes.  Out: its result or a `Break`; and `CallEffects`: counters, writes, random draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from pycompiler.capture.breaks import Break
from pycompiler.capture.recording.input_symbols import RestartWithSymbols, Sizes
from pycompiler.capture.recording.nodes import has_tensor, name_of, operands_of, version_of
from pycompiler.ir.control_flow_exceptions import LeavesCompile
from pycompiler.operators.kernel_type_checks import tensors_of
from pycompiler.operators.operator_facts import CallFacts
from pycompiler.symbolic.symbols import Specialise, is_symbolic
from pycompiler.torch_compat.tensor_subclasses import Spec, flatten_all, is_tensor_subclass, same
from pycompiler.torch_compat.warning_listener import ALWAYS, CapturedWarning, Listening

if TYPE_CHECKING:
    from pycompiler.torch_compat.fake_mode import FakeMode

# Functions that check numbers in real tensors, but not in fake ones.
CHECKING = frozenset((torch.nn.functional.one_hot,))


class RecordedCall:
    """A call to record.  `run` performs `target`.

    - `always`: it has an effect, whatever the counters say.
    - `whole`: a function of the program, which may have effects.
    """

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


@dataclass
class CallEffects:
    """The effects of a call.

    - `mutates`: it wrote the arguments in `written`.
    - `acts`: it has effects beyond its writes and results.
    - `python`: a program's function without tensor results, whose effects are unknown.
    - `drawn`: it drew random numbers.  `draws_only`: it had no other effect.
    - `refuses`: it may raise an error of data.
    - `lasts`: it wrote memory that is not only the graph's.
    """

    counts: CallFacts
    mutates: bool
    written: list[fx.Node]
    acts: bool
    python: bool
    drawn: bool
    draws_only: bool
    refuses: bool
    lasts: bool = False


class StateBefore:
    """The state before a call: versions of operands, inner tensors of subclasses, and counters."""

    def __init__(self, mode: FakeMode, call: RecordedCall) -> None:
        self.mode, self.call = mode, call
        self.versions = [version_of(n) for n in call.operands]
        self.counts = mode.seen
        self.tracked = [n for n in call.operands if _example(n).requires_grad]
        self.wrappers: list[torch.Tensor] = [
            _example(n) for n in call.operands if is_tensor_subclass(type(n.meta["example_value"]))
        ]
        leaves, specs = flatten_all(self.wrappers)
        self.specs: list[Spec | None] = specs
        self.inside = [(t, None if t.is_inference() else t._version) for t in leaves]
        self.outs = [(t, t.shape) for t in tensors_of(call.kfakes["out"])] if "out" in call.kfakes else []

    @property
    def resizes(self) -> bool:
        """Whether the call resized a non-empty `out` tensor: its base and views share the memory."""
        return any(0 not in shape and t.shape != shape for t, shape in self.outs)

    def did(self, result: Any) -> CallEffects:
        """The effects of the call, which returned `result`."""
        call, counts = self.call, self.mode.seen.since(self.counts)
        now = [version_of(n) for n in call.operands]
        mutates = self.versions != now or (None in self.versions and counts.writes > 0)
        written = [n for n, a, b in zip(call.operands, self.versions, now, strict=True) if a is None or a != b]
        python, checks = call.whole and not has_tensor(result), call.target in CHECKING
        draws_only = counts.draws > 0 and counts.effects == counts.kernels_draw and not python and not checks
        return CallEffects(
            counts, mutates, written if mutates else [],
            acts=counts.effects > 0 or checks or python, python=python, drawn=counts.draws > 0, draws_only=draws_only,
            refuses=checks or counts.refusals > 0,
        )  # fmt: skip

    def writes_in_place(self, mutates: bool, note: Callable[[], None]) -> bool:
        """Whether the call wrote these tensor subclasses, if at all, in a way that the program can observe.

        The inner tensors must be the same objects, and the outer version must count the write.  `note` is called after
        a write.
        """
        now, after = flatten_all(self.wrappers)
        if not all(map(same, self.specs, after)) or any(a is not b for a, (b, _) in zip(now, self.inside, strict=True)):
            return False
        if mutates and any(t.is_inference() for t in (*self.wrappers, *now)):  # they count no versions
            return False
        if not mutates:
            return all(version is None or t._version == version for t, version in self.inside)
        note()
        return True


def run(
    mode: FakeMode, sizes: Sizes, call: RecordedCall, bind: Callable[..., Any]
) -> tuple[Any, list[CapturedWarning]]:
    """The result and warnings of a call.  `bind` supplies results that depend on data."""
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
    except (LeavesCompile, KeyboardInterrupt):
        raise
    except Exception as e:
        cause = _first_cause(e)
        if isinstance(cause, (Break, RestartWithSymbols)):
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
    """The first error of a chain of causes."""
    return error if error.__cause__ is None else _first_cause(error.__cause__)


def settle_numbers(sizes: Sizes, operands: Iterable[fx.Node]) -> None:
    """Specialise the symbolic numbers from which these tensors were created: a fake tensor knows only constants."""
    todo, seen, names = [*operands], set[fx.Node](), set[str]()
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            names |= node.meta.get("numbers", frozenset())
            todo += node.all_input_nodes
    if names and not sizes.known_symbols.is_late(names):
        raise Specialise(sorted(names), "an operator reads data of a tensor created from this number")


def _specialise(sizes: Sizes, call: RecordedCall, error: Exception) -> None:
    """Restart the capture with constants if the call failed because of symbols.  Break if all of them are marked dynamic."""
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
