"""A graph whose errors are those of the program: what it switched is switched back, what eager would have done is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from pycompiler import _native
from pycompiler.capture.builtins import torch_api
from pycompiler.capture.errors_of_data import EXPECTED, ErrorsOfData
from pycompiler.capture.rebuild import of_saving
from pycompiler.errors import PyCompilerError, Unfit
from pycompiler.ir.later import LaterCall
from pycompiler.logs import stage
from pycompiler.pipeline.floats import TakesTensors

log = stage("dynamo")


def with_errors(errors: ErrorsOfData, graph: Callable[..., Any], *, ours: bool) -> Callable[..., Any] | None:
    """`graph`, or what runs it; an error of a user's backend reaches the user.  None: the frame has to run eagerly."""
    left = ours or errors.levelled  # to eager
    again = errors.are_eagers and (left or errors.expected)
    switched = errors.done.switches and not isinstance(graph, _native.Plan)
    if runs_as_captured(
        graph
    ):  # what it has written by then is what eager has; where that is nothing, the frame raises
        if again and errors.seen.early and errors.done.writes:
            log.info("a frame runs eagerly: it sees an error of data, behind which its graph has written inputs")
            return None
        refused = ours and errors.refuses and not (errors.done.once or errors.late)
        again = errors.levelled or again and errors.seen.early or refused
    elif errors.levelled:
        log.info("a frame runs eagerly: under a transform a graph runs as it was captured, or not at all")
        return None
    again |= ours and errors.undoable
    if not (again or switched):
        return graph
    now = torch_api.read_state() if switched else {}  # the call's, which guards compare
    now.pop(torch_api.NESTING, None)
    state = tuple(now.items())
    devices = tuple(d for d in errors.done.draws if d.type in GENERATORS) if again else ()
    written = errors.done.written

    def run(*inputs: Any) -> Any:
        drawn, versions = [GENERATORS[d.type][0](d) for d in devices], counts(inputs, written)
        given = [(g, g.get_state()) for g in inputs if isinstance(g, torch.Generator)] if again else []
        try:
            return graph(*inputs)
        except BaseException as error:
            torch_api.write_state({name: value for name, value in state if name not in torch_api.STAYS})
            unfit = isinstance(error, Unfit)  # raised before anything is written; a part before may have drawn numbers
            if not again or isinstance(error, PyCompilerError) or not (unfit or isinstance(error, Exception)):
                raise
            if of_saving(error):
                raise
            if not (left or unfit) and EXPECTED not in str(error):
                raise
            if versions != counts(inputs, written):
                log.warning("a graph that has written its inputs raised: what eager does then is not done")
                raise
            torch_api.write_state(dict(state))
            for device, numbers in zip(devices, drawn, strict=True):
                GENERATORS[device.type][1](numbers, device)
            for generator, numbers in given:
                generator.set_state(numbers)
            if unfit:
                raise
            log.info("a graph raised %s: its frame runs eagerly", type(error).__name__)
        raise Unfit("an operator raised")

    return _native.BackendCall(run)


def runs_as_captured(graph: Callable[..., Any]) -> bool:
    """Whether the captured graph runs operator by operator, in the program's order."""
    target = graph.target if isinstance(graph, _native.BackendCall) else graph
    target = target.inside if isinstance(target, TakesTensors) else target
    return isinstance(target, (LaterCall, fx.GraphModule)) or isinstance(
        getattr(target, "__self__", None), fx.GraphModule
    )


def counts(inputs: Sequence[Any], written: Sequence[int]) -> list[int]:
    """The versions of the inputs that a graph writes; inference tensors have none."""
    return [0 if inputs[i].is_inference() else inputs[i]._version for i in written]


# By type of device: how a generator's state is read and put back.
GENERATORS: dict[str, tuple[Callable[[torch.device], torch.Tensor], Callable[[torch.Tensor, torch.device], None]]] = {
    "cpu": (lambda device: torch.default_generator.get_state(), lambda state, device: torch.set_rng_state(state)),
    "cuda": (torch.cuda.get_rng_state, torch.cuda.set_rng_state),
}
