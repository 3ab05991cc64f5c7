"""Lowering: functional ATen graph -> loop IR.

In: an fx.GraphModule of ATen operators with `meta["val"]`.  Out: `ir.loops.Program`.

    program = lower(graph)   # as `autograd.compile_joint` hands it to its compilers

Read in this order:

- `graph.py`: `Lowering`, the walk over the nodes, calls of ATen kernels.
- `registry.py`: the table operator -> lowering.
- `values.py`, `body.py`: lowered tensors and their views; loop bodies.
- `promotion.py`, `elementwise.py`: type promotion and the loop of pointwise operators.
- `pointwise.py`, `activations.py`, `casts.py`, `creation.py`, `views.py`: one loop or none per operator.
- `indexing.py`, `checked_indices.py`, `joining.py`: index tensors, their checks, concatenation and padding.
- `reductions.py`, `normalization.py`, `pooling.py`, `losses.py`, `matmul.py`: folds.
- `convolution.py`: convolutions with packed weights.
- `partial_updates.py`, `input_stores.py`: writes to inputs.
"""

from pycompiler.lowering import (
    activations,
    casts,
    convolution,
    creation,
    indexing,
    input_stores,
    joining,
    losses,
    matmul,
    normalization,
    pointwise,
    pooling,
    reductions,
    views,
)
from pycompiler.lowering.graph import Lowering, LoweringError, lower
from pycompiler.lowering.registry import LOWERINGS, lowering

# importing a family fills the registry
FAMILIES = (
    activations,
    casts,
    convolution,
    creation,
    indexing,
    joining,
    losses,
    matmul,
    normalization,
    pointwise,
    pooling,
    reductions,
    input_stores,
    views,
)

__all__ = ["FAMILIES", "LOWERINGS", "Lowering", "LoweringError", "lower", "lowering"]
