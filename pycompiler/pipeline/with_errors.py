"""A graph whose errors are those of the program: what it switched is switched back, what eager would have done is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pycompiler import _native
from pycompiler.capture.builtins import torch_api
from pycompiler.capture.frame import Captured
from pycompiler.errors import PyCompilerError, Unfit
from pycompiler.logs import stage

log = stage("dynamo")


def with_errors(captured: Captured, graph: Callable[..., Any], *, ours: bool) -> Callable[..., Any]:
    """`graph`, or what runs it; an error of a user's backend reaches the user."""
    again = captured.again and ours
    switched = captured.switches and not isinstance(graph, _native.Plan)
    if not (again or switched):
        return graph
    state = tuple(torch_api.read_state().items()) if switched else ()  # the call's, which guards compare

    def run(*inputs: Any) -> Any:
        try:
            return graph(*inputs)
        except BaseException as error:
            torch_api.write_state(dict(state))
            if not again or isinstance(error, PyCompilerError) or not isinstance(error, Exception):
                raise
            log.info("a graph raised %s: its frame runs eagerly", type(error).__name__)
        raise Unfit("an operator raised")

    return _native.BackendCall(run)
