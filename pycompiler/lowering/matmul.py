"""Products of matrices: small ones as loops, others by the engine, or as ATen calls.

In: mm, bmm, addmm.  Out, the first that fits:

- with at most SMALL multiply-adds, a folding Loop: cheaper than a call, and fused with its neighbours;
- of an inference graph on the CPU, in float32, with a right matrix whose columns or rows are contiguous (the weight of a
  linear layer, or of GPT-2's layers): the engine's kernel (`ir.plan.Product`);
- on a GPU: cuBLASLt, called by the engine (`gpu_matmul.py`), on padded operands where that pays (`matmul_padding.py`);
- ATen's operator.

A loop adds the bias of a larger product if the engine computes it or a loop reads it: ATen's kernel would first write the
bias to every row of the result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pycompiler import _native, config
from pycompiler.ir.loops import Extern, Ref
from pycompiler.lowering.body import compute_dtype
from pycompiler.lowering.elementwise import broadcast_load, lazy
from pycompiler.lowering.gpu_matmul import on_gpu
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.matmul_padding import padded_product
from pycompiler.lowering.readers import is_loop, readers
from pycompiler.lowering.reductions import finished
from pycompiler.lowering.registry import lowering
from pycompiler.lowering.values import Value, product, unsqueeze
from pycompiler.symbolic.expr import ONE, Expr
from pycompiler.symbolic.hints import likely

aten = torch.ops.aten
SMALL = 4096


def total(low: Lowering, x: Value, y: Value) -> Any:
    """x @ y over the last two dimensions, in the computation dtype; NotImplemented if it is a large sum."""
    dtype = low.fake.dtype
    work = product([*x.shape, y.shape[-1]])
    is_outer = x.rank == 2 and x.shape[-1] == 1 and dtype in (torch.float32, torch.float64)
    # BLAS adds nothing then, so that a product may be -0.0; to a vector it adds the products.
    is_outer &= low.fake.device.type == "cpu" and (low.op is aten.addmm.default or 1 not in (x.shape[0], y.shape[1]))
    if not dtype.is_floating_point or not (is_outer or (work.const is not None and 0 < work.as_int() <= SMALL)):
        return NotImplemented
    compute = compute_dtype(dtype)
    if is_outer:
        return lazy(lambda a, b: a * b, x, y, dtype=compute)
    pairs = lazy(lambda a, b: a * b, unsqueeze(x, x.rank), unsqueeze(y, y.rank - 2), dtype=compute)
    (result,) = low.reduce("sum", pairs, (x.rank - 1,), lambda v: v, [low.buffer_for(low.fake, compute)])
    return result


@lowering(aten.mm.default, aten.bmm.default)
def mm(low: Lowering, x: Value, y: Value) -> Any:
    sums = total(low, x, y)
    if sums is NotImplemented and (aligned := padded_product(low, x, y)) is not None:
        return aligned
    if sums is NotImplemented and low.fake.device.type == "cuda":
        return on_gpu(low, x, y)
    if sums is NotImplemented and low.op is aten.mm.default:
        return by_engine(low, x, y)
    if sums is NotImplemented or sums.dtype == low.fake.dtype:
        return sums
    return finished(low, sums, low.fake, lambda v: v)


@lowering(aten.addmm.default)
def addmm(low: Lowering, bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1) -> Any:
    if alpha == 0 or beta == 0:
        return NotImplemented  # ATen omits the term, including its NaN and infinities
    sums = total(low, x, y)
    if sums is NotImplemented:
        if (aligned := padded_product(low, x, y, bias, beta=beta, alpha=alpha)) is not None:
            return aligned
        if alpha != 1 or beta != 1:
            return sums
        if low.fake.device.type == "cuda":
            return on_gpu(low, x, y, bias)
        sums = by_engine(low, x, y)
        if sums is NotImplemented and not loop_adds_bias(low, bias):
            return sums
        if sums is NotImplemented:
            sums = low.call(aten.mm.default, [low.placed(node).ref() for node in factors(low.node)], {}, low.fake)
    buffer = low.buffer_for(low.fake)

    def emit(body: Any, index: Any) -> Any:
        value = sums.load(body, index)
        added = broadcast_load(bias, body, index, buffer.shape).to(value.dtype)
        return (value if alpha == 1 else value * alpha) + (added if beta == 1 else added * beta)

    return low.pointwise(emit, buffer)


FEW_ROWS = 6  # with fewer, the right matrix would be packed for little work
FEW_COLUMNS = 16


def by_engine(low: Lowering, x: Value, y: Value) -> Any:
    """The product by the engine's kernel; NotImplemented where ATen's is as fast, or another dtype or device."""
    if not low.gm.meta.get("inference") or {x.dtype, y.dtype} != {torch.float32} or y.buffer is None:
        return NotImplemented
    right = y.ref()
    if not is_of_engine(low, (x.shape[0], y.shape[1]), right) or not all(
        low.at_least(n, 1) for n in (*x.shape, *y.shape)
    ):
        return NotImplemented
    return product_of(low, low.realised(x).ref(), right, by_engine=True)


def is_of_engine(low: Lowering, shape: tuple[Expr, Expr], right: Ref) -> bool:
    """Whether the engine's kernel is faster than ATen's for a product of float32 matrices of this shape."""
    if not has_engine(low):
        return False
    rows, columns = (likely(n) or 0 for n in shape)
    return rows >= FEW_ROWS and columns >= FEW_COLUMNS and ONE in right.stride


def has_engine(low: Lowering) -> bool:
    """Whether the engine's kernels for float32 run on this processor, and compute what ATen's do."""
    if low.fake.device.type != "cpu" or not config.engine_products or not is_full_precision():
        return False
    return _native.matrix_product_vectors(torch.get_num_threads()) > 0


def is_full_precision() -> bool:
    """Whether ATen multiplies float32 matrices on the CPU in float32.  torch has an older and a newer setting for it, and
    refuses to read the older one if the newer one was set."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:
        return torch.backends.mkldnn.matmul.fp32_precision in ("ieee", "none")  # type: ignore[attr-defined, no-any-return]


def product_of(low: Lowering, left: Ref, right: Ref, *, by_engine: bool) -> Value:
    """The product of two matrices in memory, as rows one after the other."""
    rows, columns = left.shape[0], right.shape[1]
    buffer = low.fresh(low.fake.dtype, (rows, columns), (columns, ONE), low.fake.device)
    low.add(Extern(aten.mm.default, (left, right), {}, (buffer,), origin=(low.node.name,), by_engine=by_engine))
    return low.value_of(buffer)


def factors(node: Any) -> list[fx.Node]:
    """The two matrices of an addmm."""
    return list(node.args[1:3])


def loop_adds_bias(low: Lowering, bias: Value) -> bool:
    """Whether a loop reads the sum and can add the bias without loss: a product in half precision would be rounded once
    more."""
    exact = low.fake.dtype in (torch.float32, torch.float64)
    return exact and low.fake.device.type == "cpu" and bias.rank == 1 and any(map(is_loop, readers(low.node)))
