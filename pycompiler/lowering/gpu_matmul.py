"""Products of matrices on a GPU by cuBLASLt, called by the engine.

In: mm, addmm and bmm of constant sizes, with two rows or more that are aligned.  Out: an `Extern` that becomes an
`ir.plan.GpuProduct`.  A product that the library refuses stays ATen's.
ATen's call asks the library for an algorithm each time, which takes the host 20 to 45 us; the engine asks once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pycompiler import _native, config
from pycompiler.ir.loops import Buffer, Extern, Ref
from pycompiler.ir.plan import CUDA_DTYPES, WORKSPACE, GpuProduct
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.values import Value, contiguous_strides, to_exprs
from pycompiler.symbolic.expr import ONE, ZERO, Expr

ALIGNED = 16  # bytes; cuBLASLt has fast kernels for rows that start at multiples of them


def on_gpu(low: Lowering, x: Value, y: Value, bias: Value | None = None) -> Any:
    """The product by cuBLASLt, with a bias of its columns; NotImplemented where ATen has to decide."""
    given = (x, y) if bias is None else (bias, x, y)
    shape = to_exprs(low.fake.shape)
    if not may_multiply(low) or not all(n.is_const and n != 0 for v in given for n in v.shape):
        return NotImplemented
    out = low.fresh(low.fake.dtype, shape, contiguous_strides(shape), low.fake.device)
    product = product_of(low, [low.realised(v) for v in given], out, {})
    if not product.by_engine:
        return NotImplemented
    low.add(product)
    return low.value_of(out)


def product_of(low: Lowering, operands: Sequence[Value], out: Buffer, scales: Mapping[str, float]) -> Extern:
    """The call of the current node's operator: by the engine if it can.  The operands lie in memory, a bias first."""
    refs = tuple(v.ref() for v in operands)
    *bias, left, right = refs
    size, whole = out.dtype.itemsize, Ref(out.name, out.shape, out.stride, ZERO)
    fits = may_multiply(low) and all(v.dtype == out.dtype for v in operands) and all(s == 1 for s in scales.values())
    fits = fits and all(is_aligned(ref, size) for ref in (left, right, whole))
    fits = fits and all(
        ref.stride == (ONE,) and ref.shape == out.shape[-1:] and is_multiple(ref.offset, size) for ref in bias
    )
    needed = workspace_of(GpuProduct.of(refs, out)) if fits and left.shape[-2] != 1 else None
    if needed is None:
        return Extern(low.op, refs, dict(scales), (out,), origin=(low.node.name,))
    return Extern(low.op, refs, {}, (out,), origin=(low.node.name,), by_engine=True, workspace=needed)


LEAST = 256  # bytes of workspace; an address is given in any case


def workspace_of(product: GpuProduct) -> int | None:
    """Bytes for the library's algorithms, or None if it refuses the product.  `WORKSPACE` is always enough; it is the answer
    on a machine without a GPU."""
    return _asked(product) if torch.cuda.is_available() else WORKSPACE


@functools.cache
def _asked(product: GpuProduct) -> int | None:
    needed = _native.gpu_product_workspace(product)
    return None if needed is None else max(needed, LEAST)


def may_multiply(low: Lowering) -> bool:
    """Whether the engine multiplies matrices of the node's dtype on its device."""
    dtype, device = low.fake.dtype, low.fake.device
    if (
        device.type != "cuda"
        or dtype not in CUDA_DTYPES
        or not config.engine_products
        or not _native.has_gpu_products()
    ):
        return False
    return sums_in_float32(dtype) and multiplies(device, dtype)


def multiplies(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the GPU multiplies numbers of this dtype: those before Ampere have no bfloat16."""
    return (
        dtype is not torch.bfloat16
        or not torch.cuda.is_available()
        or torch.cuda.get_device_capability(device) >= (8, 0)
    )


def sums_in_float32(dtype: torch.dtype) -> bool:
    """Whether ATen's products on GPUs add in float32, or may add so."""
    if dtype is torch.float16:
        return not getattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", False)
    return dtype is not torch.float32 or not uses_tf32()


def uses_tf32() -> bool:
    """Whether ATen may multiply float32 matrices on GPUs in TF32.  torch has an older and a newer setting, and refuses to read
    the older one if the newer one was set."""
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def is_aligned(matrices: Ref, itemsize: int) -> bool:
    """Whether rows or columns are contiguous, and each starts at a multiple of ALIGNED."""
    *_, rows, columns = matrices.shape
    *batch, step, apart = matrices.stride
    if not all(s.is_const for s in (*matrices.shape, *matrices.stride, matrices.offset)):
        return False
    by_rows = apart == ONE and step.as_int() >= columns.as_int()
    by_columns = step == ONE and apart.as_int() >= rows.as_int()
    far = step if by_rows else apart
    return (by_rows or by_columns) and all(is_multiple(n, itemsize) for n in (*batch, far, matrices.offset))


def is_multiple(n: Expr, itemsize: int) -> bool:
    return n.is_const and n.as_int() * itemsize % ALIGNED == 0
