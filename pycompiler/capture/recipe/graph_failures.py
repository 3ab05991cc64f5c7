"""The effects of a graph that failed.  In: the error of its call.  Out: whether its frame may run again eagerly."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pycompiler.capture.semantics.tracebacks import nodes_run, walk
from pycompiler.ir.node_effects import effects_of
from pycompiler.ir.plan import StepNote


def had_no_effect(error: BaseException) -> bool:
    """Whether the graph had no lasting effect, including the effects of the operator that raised.

    The caller of the graph restores switched global state.
    """
    if (note := StepNote.of(error)) is not None:
        return not note.lasts
    found = [(nodes, entry.tb_frame) for entry in walk(error) if (nodes := nodes_run(entry))]
    if len(found) != 1:
        return False
    (*before, last), frame = found[0]
    lasts = effects_of(last).lasts
    if lasts is None or any(effects_of(n).lasts for n in before):
        return False
    return not lasts or _checks_before(last, frame.f_locals)


def _checks_before(node: fx.Node, values: dict[str, Any]) -> bool:
    """Whether an operator that raised had not started to write.

    True for an operator that writes one tensor and may only reject the tensor itself.  Autograd rejects an inference
    tensor, whose version counter does not count, only at the write.
    """
    written = values.get(str(node.args[0])) if node.args else None
    if not isinstance(written, torch.Tensor) or effects_of(node).acts or effects_of(node).refuses:
        return False
    try:
        return isinstance(written._version, int)
    except RuntimeError:
        return False
