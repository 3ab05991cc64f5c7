"""What had been done when a graph failed.  In: the error of its call.  Out: whether its frame may run again as it is written."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pycompiler.capture.tracebacks import nodes_run, walk
from pycompiler.ir.plan import StepNote


def raised_first(error: BaseException) -> bool:
    """Whether a graph has done nothing by then that lasts, the operator that raised included.  What is switched is switched back
    by who calls the graph."""
    if (note := StepNote.of(error)) is not None:
        return not note.lasts
    found = [(nodes, entry.tb_frame) for entry in walk(error) if (nodes := nodes_run(entry))]
    if len(found) != 1:
        return False
    (*before, last), frame = found[0]
    if "lasts" not in last.meta or any(n.meta.get("lasts") for n in before):
        return False
    return not last.meta["lasts"] or _checks_before(last, frame.f_locals)


def _checks_before(node: fx.Node, values: dict[str, Any]) -> bool:
    """Whether an operator that raised has not begun to write: one that writes one tensor, and may refuse it for what it is.  A
    tensor of inference mode (its counter stays, whatever its data are) autograd refuses when it is written."""
    written = values.get(str(node.args[0])) if node.args else None
    if not isinstance(written, torch.Tensor) or node.meta.get("acts") or node.meta.get("refuses"):
        return False
    try:
        return isinstance(written._version, int)
    except RuntimeError:
        return False
