"""The default table of decompositions: ATen operator → Python function in smaller operators.

In: the name of an operator. Out: a function of its arguments, or nothing when it stays whole.
"""

from __future__ import annotations

from torch._ops import OpOverload

from pycompiler.autograd.recorder import Decomposition


def default_decompositions() -> dict[OpOverload, Decomposition]:
    return {}
