"""Gradients whose formulas read data in eager, but not in a trace.

In: autograd nodes of a trace. Out: `AutogradUnsupported` if eager and trace may differ for some data.

Example: ``y = v.prod(); v.data.add_(1)``: eager divides the product saved in `y` by the current value of `v`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pycompiler.autograd.recorder import Recorder
from pycompiler.autograd.trace.inputs import inner
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.operators.ctc_loss import CtcLosses, ctc_losses

aten = torch.ops.aten

_RECOMPUTED_RESULTS: dict[str | type, Any] = {
    "ProdBackward0": aten.prod.default,
    "ProdBackward1": aten.prod.dim_int,
    CtcLosses._backward_cls: ctc_losses,  # type: ignore[attr-defined]
}
"""Autograd nodes that save their operator's input first and its result last, where a trace's formula recomputes the result.

Keys are names for torch's nodes, but classes for autograd Functions, whose names are not unique.
"""
_VECTORS: dict[str, tuple[int, ...]] = {
    "LinalgEigBackward0": (1,),
    "LinalgEighBackward0": (1,),
    "LinalgSvdBackward0": (0, 2),
}
"""Results that are unique only up to a phase if they are complex: eager refuses gradients that depend on the phase."""


def refuse_written(recorder: Recorder, node: Any, keeps: Sequence[torch.Tensor]) -> None:
    """Raises if a tensor saved by a node was written since without autograd."""
    operator = _RECOMPUTED_RESULTS.get(type(node)) or _RECOMPUTED_RESULTS.get(node.name())
    if operator is None:
        return
    given, made = (recorder.node(inner(t)) for t in _ends(node, keeps))
    if made.target is not operator or made.args[0] is not given:
        raise AutogradUnsupported(
            "a tensor saved for a gradient is written without autograd", node.name(), "clone it first"
        )


def _ends(node: Any, keeps: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return (node._saved_self, node._saved_result) if hasattr(node, "_saved_result") else (keeps[0], keeps[-1])


def refuse_phase(node: Any, number: int) -> None:
    """Raises if eager checks a gradient of this result before it continues."""
    if node is not None and number in _VECTORS.get(node.name(), ()) and node._input_metadata[number].dtype.is_complex:
        raise AutogradUnsupported(
            "a gradient of complex vectors, which are unique only up to a phase", node.name(), "the graph runs eagerly"
        )
