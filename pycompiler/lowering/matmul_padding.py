"""Products of matrices on a GPU whose rows have an unaligned length: padded to multiples of 16 bytes.

In: an mm, addmm or bmm, and its operands.  Out: the same operator on operands with zeros behind their rows and columns,
and a view of its result; None where padding does not pay (`pays`).

Example: GPT-2's head multiplies (4096, 768) by (768, 50257) in bfloat16.  cuBLAS has fast kernels only for rows that
begin at multiples of 16 bytes, so the product is computed as (4096, 768) by (768, 50264).  Loops read the first 50257
columns of the result in place.

Where the padding comes from:

- An operand is written into a padded buffer by a loop.  Scheduling fuses it with the loop that computes the operand, so
  only an input, or the result of an ATen call, is copied.  Products share a padded operand.
- The result is a view of a padded buffer for loops.  If anything else reads it (the caller, an ATen call), a loop
  copies it once into memory with eager's strides.

Values: padded terms of a sum are zero times zero.  So no NaN appears, and a sum stays the same number; a sum of only
negative zeros may become positive zero.  Rows and columns in the padding of a result are not read.  The kernel of another
size may add in another order, as it does for any other size.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx

from pycompiler import config
from pycompiler.ir.loops import Extern, Loop
from pycompiler.lowering.gpu_matmul import ALIGNED, product_of, uses_tf32
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.joining import fill_part
from pycompiler.lowering.readers import is_loop, readers, source
from pycompiler.lowering.values import Exprs, Value, contiguous_strides, permute, restrided
from pycompiler.symbolic.expr import ZERO, Expr

DEVICES = frozenset({"cuda"})
LEAST_SIZE = 16  # rows, columns and depth; thinner products are limited by memory
Sizes = tuple[int, int, int]  # rows and columns of the result, and depth


def pays(itemsize: int, multiply_adds: int, read_bytes: int, copied_bytes: int) -> bool:
    """Whether a padded product with its copies takes less time than the unaligned product.

    - read_bytes: operands and result; copied_bytes: of these, the bytes that padding copies (each is read and written).

    The figures are rounded ones of an H200 for 2-byte elements; float32 in TF32 has half the rates.  Measured with torch 2.11:
    unaligned 94 to 153 TFLOP/s, aligned 490 to 863, copies 1.7 to 3.7 TB/s; squares of 1023 gained nothing, of 1535 they did.
    """
    unaligned, aligned = 120e12, 500e12  # floating-point operations/s
    bandwidth = 3.0e12  # bytes/s
    fewest = 2 * 10**9  # multiply-adds; with fewer, starting further kernels costs as much
    operations, memory = 2 * multiply_adds * (itemsize / 2), read_bytes / bandwidth
    before = max(operations / unaligned, memory)
    after = max(operations / aligned, memory) + 2 * copied_bytes / bandwidth
    return multiply_adds >= fewest and after < 0.8 * before


def is_fast_dtype(dtype: torch.dtype) -> bool:
    """Whether tensor cores multiply the dtype."""
    return dtype in (torch.bfloat16, torch.float16) or (dtype == torch.float32 and uses_tf32())


def padded_sizes(node: fx.Node) -> Sizes | None:
    """The sizes to which a product is padded; None if it stays as it is.

    A size is padded if the elements along it are contiguous in a matrix: the depth of a left matrix in rows, the rows of
    a transposed one, and the columns of the result.
    """
    left, right = _matrices(node)
    x, y, result = left.meta["val"], right.meta["val"], node.meta["val"]
    if not config.shape_padding or result.device.type not in DEVICES or not is_fast_dtype(result.dtype):
        return None
    if any(t.dtype != result.dtype or t._has_symbolic_sizes_strides for t in (x, y, result)):
        return None
    rows, depth, columns = x.shape[-2], x.shape[-1], y.shape[-1]
    if min(rows, depth, columns) < LEAST_SIZE or result.numel() == 0:
        return None
    multiple = ALIGNED // result.dtype.itemsize
    m = rows + -rows % multiple if _is_transposed(x) else rows
    n = columns + -columns % multiple
    k = depth + -depth % multiple if not _is_transposed(x) or _is_transposed(y) else depth
    if (m, n, k) == (rows, columns, depth):
        return None
    copied = sum(
        prod(t.shape)
        for of, t, padded in ((left, x, (m, k)), (right, y, (k, n)))
        if tuple(t.shape[-2:]) != padded and not is_loop(source(of))
    )
    if n != columns and _leaves(node):
        copied += result.numel()
    size = result.dtype.itemsize
    touched = sum(t.numel() for t in (x, y, result))
    return (m, n, k) if pays(size, result.numel() * depth, touched * size, copied * size) else None


def padded_columns(node: fx.Node) -> int | None:
    """The number of columns to which a product's result is padded; None if it has its own columns."""
    sizes, columns = padded_sizes(node), node.meta["val"].shape[-1]
    return None if sizes is None or sizes[1] == columns else sizes[1]


def _matrices(node: Any) -> tuple[fx.Node, fx.Node]:
    left, right = node.args[-2:]
    return left, right


def _is_transposed(matrix: torch.Tensor) -> bool:
    """Whether the columns are contiguous, and not the rows."""
    return matrix.stride(-1) != 1 and matrix.stride(-2) == 1


def _leaves(node: fx.Node) -> bool:
    """Whether anything but a loop reads the result."""
    return not all(map(is_loop, readers(node)))


def padded_product(low: Lowering, x: Value, y: Value, bias: Value | None = None, **scales: float) -> Value | None:
    """The current node's product, padded, or None.  `bias`, `scales`: the further arguments of addmm."""
    sizes = padded_sizes(low.node)
    if sizes is None:
        return None
    m, n, k = map(Expr.of, sizes)
    operands = [padded(low, x, (*x.shape[:-2], m, k)), padded(low, y, (*y.shape[:-2], k, n))]
    logical = (*x.shape[:-1], y.shape[-1])
    shape = (*x.shape[:-2], m, n)
    if bias is not None:
        wide = shape[len(shape) - bias.rank :]
        operands.insert(0, padded(low, bias, tuple(b if b == 1 else w for b, w in zip(bias.shape, wide, strict=True))))
    buffer = low.fresh(low.fake.dtype, shape, contiguous_strides(shape), low.fake.device)
    low.add(product_of(low, operands, buffer, scales))
    whole = low.value_of(buffer)
    result = restrided(whole, logical, whole.stride, ZERO)
    return low.copy(result) if n != logical[-1] and _leaves(low.node) else result


def padded(low: Lowering, v: Value, shape: Exprs) -> Value:
    """v in memory of `shape`, with zeros behind its elements; v itself if it has this shape.

    The order of the last two dimensions in memory stays.  Later products of the same operand get the same memory.
    """
    if shape == v.shape:
        return low.realised(v)
    if v.buffer is not None and v.rank > 1 and v.stride[-1] != 1 and v.stride[-2] == 1:
        order = [*range(v.rank - 2), v.rank - 1, v.rank - 2]
        return permute(padded(low, permute(v, order), tuple(shape[d] for d in order)), order)
    key = (v.buffer, v.offset, v.shape, v.stride, shape)
    if v.buffer is not None and (known := _found(low, key)) is not None:
        return known
    buffer = low.fresh(v.dtype, shape, contiguous_strides(shape), v.device)
    fill_part(low, v, buffer, (ZERO,) * v.rank, first=True)
    for d in range(v.rank):
        if shape[d] != v.shape[d]:  # zeros behind dimension d, and along all of the later ones
            strip = (*v.shape[:d], shape[d] - v.shape[d], *shape[d + 1 :])
            at = (*(ZERO,) * d, v.shape[d], *(ZERO,) * (v.rank - d - 1))
            fill_part(low, Value.constant(0, strip, v.dtype, v.device), buffer, at, first=False)
    if v.buffer is not None:
        loop = low.program.nodes[-1]
        assert isinstance(loop, Loop)
        low.padded[key] = loop
    return low.value_of(buffer)


def _found(low: Lowering, key: tuple[Any, ...]) -> Value | None:
    """The padded operand of an earlier product, unless its source was written since, or its loops were removed."""
    last = low.padded.get(key)
    if last is None:
        return None
    for node in reversed(low.program.nodes):
        if node is last:
            return low.value_of(last.out[0])
        if key[0] in (node.mutates if isinstance(node, Extern) else [b.name for b in node.out]):
            break
    return None
