"""Decompositions of this package, one file per family; importing this package fills `registry.RULES`.

In: an ATen operator.  Out: a Python function of its arguments in smaller operators.  Files in reading order:

- registry.py: the table, and shared arithmetic
- activations.py, losses.py, norms.py, reductions.py: pointwise functions, losses, normalisations, softmax and sums
- shapes.py, creation.py: views, copies and fills
- random.py: random numbers
- foreach.py: operators on lists of tensors
"""

from pycompiler.autograd.decomp import activations, creation, losses, norms, random, reductions, shapes

__all__ = ["activations", "creation", "losses", "norms", "random", "reductions", "shapes"]
