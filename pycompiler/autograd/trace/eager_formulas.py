"""Gradients whose formulas look at data in eager, and not in a trace.

In: nodes of autograd's graph of a trace. Out: `AutogradUnsupported` where the data may be such that the two differ.
Example: ``y = v.prod(); v.data.add_(1)``: eager divides the product that `y` holds by what is in `v` now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pycompiler.autograd.recorder import Recorder
from pycompiler.autograd.trace.inputs import inner
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.ir.ctc import CtcLosses, ctc_losses

aten = torch.ops.aten

_REMADE: dict[str | type, Any] = {
    "ProdBackward0": aten.prod.default,
    "ProdBackward1": aten.prod.dim_int,
    CtcLosses._backward_cls: ctc_losses,  # type: ignore[attr-defined]
}
"""Nodes that keep what their operator was given, first, and gave, last, of which a trace's formula makes the latter again: by
name where torch made them, by class where a Function did (whose name another one may have)."""
_VECTORS: dict[str, tuple[int, ...]] = {
    "LinalgEigBackward0": (1,),
    "LinalgEighBackward0": (1,),
    "LinalgSvdBackward0": (0, 2),
}
"""Results that are known up to a phase where they are complex: eager refuses gradients that depend on it."""


def refuse_written(recorder: Recorder, node: Any, keeps: Sequence[torch.Tensor]) -> None:
    """Raises where what a node keeps was written since, unseen by autograd."""
    operator = _REMADE.get(type(node)) or _REMADE.get(node.name())
    if operator is None:
        return
    given, made = (recorder.node(inner(t)) for t in _ends(node, keeps))
    if made.target is not operator or made.args[0] is not given:
        raise AutogradUnsupported(
            "what a gradient is made of is written behind autograd's back", node.name(), "clone it first"
        )


def _ends(node: Any, keeps: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return (node._saved_self, node._saved_result) if hasattr(node, "_saved_result") else (keeps[0], keeps[-1])


def refuse_phase(node: Any, number: int) -> None:
    """Raises where a gradient of this result is one that eager looks at before it goes on."""
    if node is not None and number in _VECTORS.get(node.name(), ()) and node._input_metadata[number].dtype.is_complex:
        raise AutogradUnsupported("a gradient by complex vectors", node.name(), "the graph runs eagerly")
