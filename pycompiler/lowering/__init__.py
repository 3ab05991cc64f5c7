"""Functional ATen graph -> loop IR.

In: an fx.GraphModule of ATen operators with `meta["val"]`.  Out: `ir.loops.Program`.

    program = lower(make_fx(f, decomposition_table=core_decompositions(), tracing_mode="fake")(*inputs))
"""

from pycompiler.lowering import casts, creation, pointwise, reductions, views
from pycompiler.lowering.graph import Lowering, LoweringError, lower
from pycompiler.lowering.registry import LOWERINGS, lowering

FAMILIES = (casts, creation, pointwise, reductions, views)  # importing a family fills the registry

__all__ = ["FAMILIES", "LOWERINGS", "Lowering", "LoweringError", "lower", "lowering"]
