"""Errors of a graph, as the program expects them: switched state is switched back, and the frame runs eagerly where
eager would do more.

In: a compiled graph and its `ErrorsOfData`.  Out: a callable that handles the graph's errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from pycompiler import _native
from pycompiler.capture.recipe.runtime_helpers import of_saving
from pycompiler.capture.recording.data_errors import EXPECTED, ErrorsOfData
from pycompiler.errors import PyCompilerError, Unfit
from pycompiler.ir.lazy_value import LazyCall
from pycompiler.logs import stage
from pycompiler.pipeline.float_inputs import TakesTensors
from pycompiler.torch_compat import torch_state

log = stage("dynamo")


def with_errors(errors: ErrorsOfData, graph: Callable[..., Any], *, ours: bool) -> Callable[..., Any] | None:
    """`graph`, or a wrapper of it; errors of a user's backend reach the user. None: the frame has to run eagerly."""
    left = ours or errors.levelled  # left to eager
    again = errors.are_eagers and (left or errors.expected)
    switched = errors.done.switches and not isinstance(graph, _native.Plan)
    if runs_as_captured(
        graph
        # Its writes so far are the writes that eager has made.  If eager has made none, the frame raises.
    ):
        if again and (errors.seen.early or errors.seen.behind) and errors.done.writes:
            log.info("a frame runs eagerly: its graph writes inputs before an operator that may raise for some data")
            return None
        refused = ours and errors.refuses and not (errors.done.once or errors.late)
        again = errors.levelled or again and errors.seen.early or refused
    elif errors.levelled:
        log.info("a frame runs eagerly: under a transform, a graph that may raise for some data runs only as captured")
        return None
    again |= ours and errors.undoable
    if not (again or switched or errors.redraws):
        return graph
    now = torch_state.read_state() if switched else {}  # the state of the call, which guards compare
    now.pop(torch_state.NESTING, None)
    undo = Undo(errors, graph, tuple(now.items()), again=again, left=left)
    return _native.BackendCall(undo.of_one_generator() or undo.of_any())


class Undo:
    """Undoes the changes of a graph that raises, and leaves the call to eager, as for a failed assumption.

    `again`: the error is one that eager raises, too.  `left`: all errors are left to eager.
    """

    def __init__(
        self,
        errors: ErrorsOfData,
        graph: Callable[..., Any],
        state: Sequence[tuple[str, Any]],
        *,
        again: bool,
        left: bool,
    ) -> None:
        self.graph, self.state, self.again, self.left = graph, state, again, left
        undone = again or errors.redraws
        self.written, self.given = errors.done.written, errors.done.given and undone
        self.devices = tuple(d for d in errors.done.draws if d.type in GENERATORS) if undone else ()

    def of_any(self) -> Callable[..., Any]:
        """A callable that runs the graph."""
        graph, written, given = self.graph, self.written, self.given

        def run(*inputs: Any) -> Any:
            drawn = [GENERATORS[d.type][0](d) for d in self.devices]
            of_inputs = [(g, g.get_state()) for g in inputs if isinstance(g, torch.Generator)] if given else []
            versions = counts(inputs, written)
            try:
                return graph(*inputs)
            except BaseException as error:
                if not self.is_undone(error, drawn, of_inputs, written=versions != counts(inputs, written)):
                    raise
            raise Unfit("an operator raised")

        return run

    def of_one_generator(self) -> Callable[..., Any] | None:
        """The same for a graph that draws on the CPU and writes nothing, or None.

        It saves the cost of the general case, for example for dropout where the program handles errors.
        """
        if self.written or self.given or [d.type for d in self.devices] != ["cpu"]:
            return None
        graph, is_undone, get_state = self.graph, self.is_undone, torch.default_generator.get_state

        def run(*inputs: Any) -> Any:
            drawn = get_state()
            try:
                return graph(*inputs)
            except BaseException as error:
                if not is_undone(error, (drawn,)):
                    raise
            raise Unfit("an operator raised")

        return run

    def is_undone(
        self,
        error: BaseException,
        drawn: Sequence[torch.Tensor],
        of_inputs: Sequence[tuple[torch.Generator, torch.Tensor]] = (),
        *,
        written: bool = False,
    ) -> bool:
        """Whether the call is left to eager, with all state as before the graph."""
        torch_state.restore_after_error(dict(self.state))
        unfit = isinstance(error, Unfit)  # raised before anything is written; an earlier part may have drawn numbers
        if isinstance(error, PyCompilerError) or not (unfit or (self.again and isinstance(error, Exception))):
            return False
        if of_saving(error) or not (self.left or unfit or EXPECTED in str(error)):
            return False
        if written:
            log.warning("a graph raised after it had written its inputs: the frame does not run again as in eager")
            return False
        torch_state.write_state(dict(self.state))
        for device, numbers in zip(self.devices, drawn, strict=True):
            GENERATORS[device.type][1](numbers, device)
        for generator, numbers in of_inputs:
            generator.set_state(numbers)
        if not unfit:
            log.info("a graph raised %s: its frame runs eagerly", type(error).__name__)
        return not unfit  # `Unfit` reports itself


def runs_as_captured(graph: Callable[..., Any]) -> bool:
    """Whether the captured graph runs operator by operator, in the program's order."""
    target = graph.target if isinstance(graph, _native.BackendCall) else graph
    target = target.inside if isinstance(target, TakesTensors) else target
    return isinstance(target, (LazyCall, fx.GraphModule)) or isinstance(
        getattr(target, "__self__", None), fx.GraphModule
    )


def counts(inputs: Sequence[Any], written: Sequence[int]) -> list[int]:
    """The versions of the inputs that a graph writes; inference tensors have none."""
    return [0 if inputs[i].is_inference() else inputs[i]._version for i in written]


# By type of device: how to read and restore a generator's state.
GENERATORS: dict[str, tuple[Callable[[torch.device], torch.Tensor], Callable[[torch.Tensor, torch.device], None]]] = {
    "cpu": (lambda device: torch.default_generator.get_state(), lambda state, device: torch.set_rng_state(state)),
    "cuda": (torch.cuda.get_rng_state, torch.cuda.set_rng_state),
}
