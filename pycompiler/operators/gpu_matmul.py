"""What cuBLASLt needs for a product of matrices on a GPU.

In: an `ir.plan.GpuProduct`, whose slots do not matter.  Out: bytes of workspace, or None if the library refuses the product.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

from pycompiler import _native
from pycompiler.ir.plan import WORKSPACE, GpuProduct

LEAST = 256  # bytes; an address is given in any case


def workspace_of(product: GpuProduct) -> int | None:
    """Bytes for the library's algorithms; `WORKSPACE`, which is always enough, on a machine without a GPU."""
    if not torch.cuda.is_available():
        return WORKSPACE
    return _asked(replace(product, slots=tuple(range(len(product.slots))), workspace=WORKSPACE))


@cache
def _asked(product: GpuProduct) -> int | None:
    needed = _native.gpu_product_workspace(product)
    return None if needed is None else max(needed, LEAST)
