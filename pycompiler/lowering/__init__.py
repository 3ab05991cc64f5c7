"""Functional ATen graph -> loop IR.

In: an fx.GraphModule of ATen operators with `meta["val"]`.  Out: `ir.loops.Program`.

    program = lower(graph)   # as `autograd.compile_joint` hands it to its compilers
"""

from pycompiler.lowering import (
    activations,
    casts,
    creation,
    indexing,
    joining,
    losses,
    matmul,
    normalization,
    pointwise,
    pooling,
    reductions,
    stores,
    views,
)
from pycompiler.lowering.graph import Lowering, LoweringError, lower
from pycompiler.lowering.registry import LOWERINGS, lowering

# importing a family fills the registry
FAMILIES = (
    activations,
    casts,
    creation,
    indexing,
    joining,
    losses,
    matmul,
    normalization,
    pointwise,
    pooling,
    reductions,
    stores,
    views,
)

__all__ = ["FAMILIES", "LOWERINGS", "Lowering", "LoweringError", "lower", "lowering"]
