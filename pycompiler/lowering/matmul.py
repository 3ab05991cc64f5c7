"""Products of matrices: small ones as loops, others by the engine, or as ATen calls.

In: mm, bmm, addmm.  Out, the first that fits:

- with at most SMALL multiply-adds, a folding Loop: cheaper than a call, and fused with its neighbours;
- of an inference graph on the CPU, in float32, with a right matrix whose columns are contiguous (the transposed weight of
  a linear layer): the engine's kernel (`ir.plan.Product`);
- on a GPU, of constant sizes and with aligned rows: cuBLASLt, called by the engine (`ir.plan.GpuProduct`).  ATen's call
  asks the library for an algorithm each time, which takes 20 to 45 us;
- ATen's operator.

A loop adds the bias of a larger product if the engine computes it or a loop reads it: ATen's kernel would first write the
bias to every row of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from pycompiler import _native, config
from pycompiler.ir.loops import Extern, Ref
from pycompiler.ir.plan import CUDA_DTYPES
from pycompiler.lowering.body import compute_dtype
from pycompiler.lowering.elementwise import broadcast_load, lazy
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.reductions import finished
from pycompiler.lowering.registry import LOWERINGS, lowering
from pycompiler.lowering.values import Value, contiguous_strides, product, to_exprs, unsqueeze
from pycompiler.symbolic.expr import ONE, ZERO, Expr
from pycompiler.symbolic.hints import likely

aten = torch.ops.aten
SMALL = 4096
_PRODUCTS = (aten.mm, aten.bmm, aten.addmm)


def total(low: Lowering, x: Value, y: Value) -> Any:
    """x @ y over the last two dimensions, in the computation dtype; NotImplemented if it is not small."""
    dtype = low.fake.dtype
    work = product([*x.shape, y.shape[-1]])
    if work.const is None or not 0 < work.as_int() <= SMALL or not dtype.is_floating_point:
        return NotImplemented
    compute = compute_dtype(dtype)
    pairs = lazy(lambda a, b: a * b, unsqueeze(x, x.rank), unsqueeze(y, y.rank - 2), dtype=compute)
    (result,) = low.reduce("sum", pairs, (x.rank - 1,), lambda v: v, [low.buffer_for(low.fake, compute)])
    return result


@lowering(aten.mm, aten.bmm)
def mm(low: Lowering, x: Value, y: Value) -> Any:
    sums = total(low, x, y)
    if sums is NotImplemented and low.fake.device.type == "cuda":
        return on_gpu(low, x, y)
    if sums is NotImplemented and low.op is aten.mm.default:
        return by_engine(low, x, y)
    if sums is NotImplemented or sums.dtype == low.fake.dtype:
        return sums
    return finished(low, sums, low.fake, lambda v: v)


@lowering(aten.addmm)
def addmm(low: Lowering, bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1) -> Any:
    if alpha == 0 or beta == 0:
        return NotImplemented  # ATen omits the term, including its NaN and infinities
    sums = total(low, x, y)
    if sums is NotImplemented:
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
    if low.fake.device.type != "cpu" or not config.engine_products or not is_full_precision():
        return False
    rows, columns = (likely(n) or 0 for n in shape)
    if rows < FEW_ROWS or columns < FEW_COLUMNS or right.stride[0] != ONE:
        return False
    return _native.matrix_product_vectors(torch.get_num_threads()) > 0


ALIGNED = 16  # bytes; cuBLASLt has fast kernels for rows that start at multiples of them


def on_gpu(low: Lowering, x: Value, y: Value, bias: Value | None = None) -> Any:
    """The product by cuBLASLt, with a bias of its columns; NotImplemented where ATen has to decide."""
    given = (x, y) if bias is None else (bias, x, y)
    dtype, device = low.fake.dtype, low.fake.device
    if dtype not in CUDA_DTYPES or {v.dtype for v in given} != {dtype}:
        return NotImplemented
    if not sums_in_float32(dtype) or not multiplies(device, dtype):
        return NotImplemented
    shape = to_exprs(low.fake.shape)
    if not (config.engine_products and _native.has_gpu_products()) or (bias is not None and bias.rank != 1):
        return NotImplemented
    if not all(n.is_const and n != 0 for v in given for n in v.shape):
        return NotImplemented
    out = low.fresh(dtype, shape, contiguous_strides(shape), device)
    refs = tuple(low.realised(v).ref() for v in given)
    *_, left, right = refs
    if not all(is_aligned(ref, dtype.itemsize) for ref in (left, right, Ref(out.name, shape, out.stride, ZERO))):
        return NotImplemented
    if bias is not None and (refs[0].stride != (ONE,) or not is_multiple(refs[0].offset, dtype.itemsize)):
        return NotImplemented
    low.add(Extern(low.op, refs, {}, (out,), origin=(low.node.name,), by_engine=True))
    return low.value_of(out)


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
    try:
        return dtype is not torch.float32 or not torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:  # torch's newer setting was used
        return False


def is_aligned(matrices: Ref, itemsize: int) -> bool:
    """Whether rows or columns are contiguous, and each starts at a multiple of ALIGNED."""
    *_, rows, columns = matrices.shape
    *batch, step, apart = matrices.stride
    if not all(s.is_const for s in (*matrices.stride, matrices.offset)):
        return False
    by_rows = apart == ONE and step.as_int() >= columns.as_int()
    by_columns = step == ONE and apart.as_int() >= rows.as_int()
    far = step if by_rows else apart
    return (by_rows or by_columns) and all(is_multiple(n, itemsize) for n in (*batch, far, matrices.offset))


def is_multiple(n: Expr, itemsize: int) -> bool:
    return n.is_const and n.as_int() * itemsize % ALIGNED == 0


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
    return exact and low.fake.device.type == "cpu" and bias.rank == 1 and any(map(_is_loop, readers(low.node)))


def readers(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that read its elements, through views."""
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        if schema is not None and any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
            yield from readers(user)
        else:
            yield user


def _is_loop(node: fx.Node) -> bool:
    return node.target in LOWERINGS and getattr(node.target, "overloadpacket", None) not in _PRODUCTS
