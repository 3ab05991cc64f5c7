"""Functional ATen graph -> loop IR.

In: an fx.GraphModule of ATen operators with `meta["val"]`.  Out: `ir.loops.Program`.

    program = lower(make_fx(f, decomposition_table=core_decompositions(), tracing_mode="fake")(*inputs))
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
from pycompiler.lowering.decompositions import core_decompositions
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

__all__ = ["FAMILIES", "LOWERINGS", "Lowering", "LoweringError", "core_decompositions", "lower", "lowering"]
