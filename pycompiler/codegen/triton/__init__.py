"""Triton code generation: schedule -> Triton source.

In: `ir.kernel.Schedule`.  Out: the text of a Python module.  Read in this order:

- `generate.py`: the module and its kernels.
- `tiles.py`: how a nest becomes a grid of tiles.
- `nest.py`: a nest as a kernel.
- `folds.py`: reductions.
- `ops.py`, `types.py`, `index.py`: operations, types, index expressions.
"""

from pycompiler.codegen.triton.generate import generate
from pycompiler.ir.kernel import Unsupported

__all__ = ["Unsupported", "generate"]
