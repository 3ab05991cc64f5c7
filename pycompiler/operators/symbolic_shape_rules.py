"""Our own rules for sizes and strides of results with symbolic sizes, for which torch's shape functions make many queries.

In: an operator's arguments, with symbolic FakeTensors.  Out: (sizes, strides) of each fresh result; None when in doubt.

    mm(a, b)        # [((s0, 8), (8, 1))]

`operator_table.py` gives each operator its rule.  A rule must hold at every size.  It queries SymInts for the operator's
own requirements (equal sizes, non-empty results), so these become assumptions.  `agree` compares a rule's answer with
torch's answer for the hints (`symbolic/concretize.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from pycompiler.operators import tensor_iterator
from pycompiler.operators.operator_facts import facts_of
from pycompiler.symbolic.symbols import expr_of, hint_of

Sizes = tuple[Any, ...]
Layout = tuple[Sizes, Sizes]


class InDoubt(Exception):
    """No rule gives the result."""


def has_rule(op: OpOverload) -> bool:
    return facts_of(op).layouts is not None or tensor_iterator.is_iterated(op)


def layouts_of(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Layout] | None:
    """The layouts by the rule for `op`; None if there is no rule, or if it is in doubt."""
    try:
        if (rule := facts_of(op).layouts) is not None:
            return rule(*args, **kwargs)  # type: ignore[no-any-return]
        return pointwise(op, args) if tensor_iterator.is_iterated(op) and kwargs.keys() <= _HARMLESS else None
    except InDoubt:
        return None


_HARMLESS = {"approximate", "rounding_mode", "alpha"}  # arguments of pointwise operators that do not affect shapes


def agree(found: Sequence[Layout], today: Sequence[Layout]) -> bool:
    """Whether rules and torch agree for the hints."""
    return [(tuple(map(hint_of, n)), tuple(map(hint_of, s))) for n, s in found] == list(today)


# numbers ----------------------------------------------------------------------------------------------------------
def same(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal, without an assumption."""
    if type(a) is int and type(b) is int:
        return a == b
    return a is b or expr_of(a) == expr_of(b)


def is_one(n: Any) -> bool:
    return type(n) is int and n == 1


def assume(holds: Any) -> None:
    """Assume a requirement of the operator.  If it does not hold, torch raises, so no rule applies."""
    if not holds:
        raise InDoubt


def equal(a: Any, b: Any) -> None:
    if not same(a, b):
        assume(a == b)


def contiguous(sizes: Sequence[Any]) -> Sizes:
    strides: list[Any] = []
    step: Any = 1
    for n in reversed(sizes):
        strides.append(step)
        step = step * (max(n, 1) if type(n) is int else torch.sym_max(n, 1))
    return tuple(reversed(strides))


def packed(sizes: Sequence[Any]) -> Layout:
    return tuple(sizes), contiguous(sizes)


def is_packed(t: torch.Tensor) -> bool:
    """Whether the tensor is known to be contiguous."""
    return is_dense_in_order(t.shape, t.stride(), range(t.dim() - 1, -1, -1))


def is_plain(t: torch.Tensor) -> bool:
    """Whether the tensor is known to be contiguous, including the strides of dimensions of one element.

    Those strides alone can make a kernel that keeps a memory format treat the tensor as channels-last.
    """
    return is_packed(t) and all(
        not is_one(n) or same(stride, plain)
        for n, stride, plain in zip(t.shape, t.stride(), packed(t.shape)[1], strict=True)
    )


def is_dense_in_order(sizes: Sequence[Any], strides: Sequence[Any], order: Sequence[int]) -> bool:
    """Whether dimensions are known to lie without gaps, the first of `order` innermost."""
    step: Any = 1
    for d in order:
        if is_one(sizes[d]):
            continue
        if not same(strides[d], step):
            return False
        step = step * sizes[d]
    return True


def channels_last(sizes: Sequence[Any]) -> Layout:
    n, c, h, w = sizes
    return (n, c, h, w), (c * h * w, 1, w * c, c)


def is_channels_last(t: torch.Tensor) -> bool:
    """Whether kernels that keep a memory format are known to treat the tensor as channels-last."""
    return t.dim() == 4 and not any(map(is_one, t.shape[1:])) and is_dense_in_order(t.shape, t.stride(), (1, 3, 2, 0))


def like(t: torch.Tensor) -> Layout:
    """The layout of a copy that keeps the memory format."""
    shape, strides = tuple(t.shape), t.stride()
    if is_packed(t):
        return shape, strides
    doubt_unless(1 not in map(hint_of, shape))
    return shape, tensor_iterator.strides_in_order(shape, [(shape, strides)])


def doubt_unless(known: bool) -> None:
    if not known:
        raise InDoubt


def dims_of(rank: int, dims: Any) -> list[int]:
    """Dimensions counted from the front; none given means all."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(rank))
    found = [int(d) for d in (dims if isinstance(dims, (list, tuple)) else [dims])]
    doubt_unless(all(-rank <= d < rank for d in found))
    return [d % rank for d in found]


# pointwise --------------------------------------------------------------------------------------------------------
def broadcast(shapes: Sequence[Sequence[Any]]) -> Sizes:
    """The broadcast shape; unequal sizes are compared with 1, which is assumed."""
    rank = max(map(len, shapes))
    found: list[Any] = [1] * rank
    for shape in shapes:
        for d, n in enumerate(shape, rank - len(shape)):
            if is_one(found[d]):
                found[d] = n
            elif not (is_one(n) or same(n, found[d]) or bool(n == 1)):
                if bool(found[d] == 1):
                    found[d] = n
                else:
                    equal(n, found[d])
    return tuple(found)


def pointwise(op: OpOverload, args: Sequence[Any]) -> list[Layout]:
    operands = tensor_iterator.operands(op, args)
    tensors = [t for t in args if isinstance(t, torch.Tensor)]
    shape = broadcast([s for s, _ in operands])
    if all(is_packed(t) for t in tensors):
        return [packed(shape)]
    whole = all(len(s) == len(shape) and all(map(same, s, shape)) for s, _ in operands)
    first = tensors[0]
    if whole and all(all(map(same, t.stride(), first.stride())) for t in tensors):
        return [like(first)]
    doubt_unless(1 not in map(hint_of, shape) and len({t.dtype for t in tensors}) == 1)
    return [(shape, tensor_iterator.strides_in_order(shape, operands))]


# products ---------------------------------------------------------------------------------------------------------
def mm(a: torch.Tensor, b: torch.Tensor) -> list[Layout]:
    doubt_unless(a.dim() == b.dim() == 2)
    equal(a.shape[1], b.shape[0])
    return [packed((a.shape[0], b.shape[1]))]


def bmm(a: torch.Tensor, b: torch.Tensor) -> list[Layout]:
    doubt_unless(a.dim() == b.dim() == 3)
    equal(a.shape[0], b.shape[0])
    equal(a.shape[2], b.shape[1])
    return [packed((a.shape[0], a.shape[1], b.shape[2]))]


def _added(bias: torch.Tensor, made: Layout) -> list[Layout]:
    doubt_unless(bias.dim() <= len(made[0]))
    for n, m in zip(reversed(bias.shape), reversed(made[0]), strict=False):
        if not is_one(n):
            equal(n, m)
    return [made]


def addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> list[Layout]:
    return _added(bias, mm(a, b)[0])


def baddbmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> list[Layout]:
    return _added(bias, bmm(a, b)[0])


def embedding(weight: torch.Tensor, indices: torch.Tensor, *rest: Any, **flags: Any) -> list[Layout]:
    doubt_unless(weight.dim() == 2)
    return [packed((*indices.shape, weight.shape[1]))]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, **flags: Any) -> list[Layout]:
    doubt_unless(q.dim() == k.dim() == v.dim() == 4 and not rest[2:])
    doubt_unless(flags.get("attn_mask") is None)
    for a, b in ((q, k), (k, v)):
        equal(a.shape[0], b.shape[0])
        equal(a.shape[1], b.shape[1])
        equal(a.shape[3], b.shape[3])
    equal(k.shape[2], v.shape[2])
    batch, heads, length = q.shape[:3]
    return [like(q), ((batch, heads, length), (length * heads, 1, heads))]


# folds ------------------------------------------------------------------------------------------------------------
def folded(x: torch.Tensor, dims: Any, keep: bool) -> Layout:
    """A reduction's contiguous result: without the reduced dimensions, or with size 1 there."""
    gone = set(dims_of(x.dim(), dims))
    return packed([1 if d in gone else n for d, n in enumerate(x.shape) if keep or d not in gone])


def fold(x: torch.Tensor, dims: Any = None, keep: bool = False, **dtype: Any) -> list[Layout]:
    return [folded(x, dims, keep)]


def fold_all(x: torch.Tensor, **dtype: Any) -> list[Layout]:
    return [((), ())]


def extreme(x: torch.Tensor, dims: Any = (), keep: bool = False) -> list[Layout]:
    for d in dims_of(x.dim(), dims):
        assume(x.shape[d] != 0)
    return [folded(x, dims, keep)]


def var_mean(x: torch.Tensor, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> list[Layout]:
    return [folded(x, dims, keepdim)] * 2


def var(x: torch.Tensor, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> list[Layout]:
    return [folded(x, dims, keepdim)]


def softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> list[Layout]:
    dims_of(x.dim(), dim)
    return [packed(x.shape)]


def softmax_backward(grad: torch.Tensor, out: torch.Tensor, dim: int, dtype: Any) -> list[Layout]:
    doubt_unless(grad.dim() == out.dim())
    for a, b in zip(grad.shape, out.shape, strict=True):
        equal(a, b)
    return [packed(grad.shape)]


# norms ------------------------------------------------------------------------------------------------------------
def layer_norm(x: torch.Tensor, shape: Sequence[Any], weight: Any, bias: Any, eps: float) -> list[Layout]:
    first = x.dim() - len(shape)
    doubt_unless(first >= 0 and len(shape) > 0)
    for t in (x.shape[first:], *(t.shape for t in (weight, bias) if t is not None)):
        doubt_unless(len(t) == len(shape))
        for a, b in zip(t, shape, strict=True):
            equal(a, b)
    statistic = packed((*x.shape[:first], *(1 for _ in shape)))
    return [packed(x.shape), statistic, statistic]


def _batch_norm(x: torch.Tensor, training: bool, parts: Sequence[Any]) -> list[Layout]:
    doubt_unless(x.dim() >= 2 and is_plain(x))
    for t in parts:
        if t is not None:
            doubt_unless(t.dim() == 1)
            equal(t.shape[0], x.shape[1])
    statistic = packed((x.shape[1],) if training else (0,))
    return [packed(x.shape), statistic, statistic]


def batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> list[Layout]:
    return _batch_norm(x, training, (weight, bias, mean, var))


def batch_norm_functional(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> list[Layout]:
    return [*_batch_norm(x, training, (weight, bias, mean, var)), packed(mean.shape), packed(var.shape)]


def batch_norm_inference(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> list[Layout]:
    return _batch_norm(x, False, (weight, bias, mean, var))


# windows ----------------------------------------------------------------------------------------------------------
def _each(value: Any, rank: int) -> Sequence[Any]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * rank if len(values) == 1 else values


def _windows(sizes: Sequence[Any], kernel: Any, stride: Any, padding: Any, dilation: Any) -> Sizes:
    """The number of windows in each dimension: at least one."""
    rank = len(sizes)
    found = []
    given = zip(sizes, *(_each(v, rank) for v in (kernel, stride, padding, dilation)), strict=True)
    for n, k, s, p, d in given:
        room = n + 2 * p - d * (k - 1) - 1
        assume(room >= 0)
        found.append(room // s + 1)
    return tuple(found)


def convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> list[Layout]:  # fmt: skip
    doubt_unless(x.dim() == weight.dim() > 2)
    laid = _format(x, weight, groups)
    assume(x.shape[0] != 0)
    taken, given = (
        (weight.shape[0], weight.shape[1] * groups) if transposed else (weight.shape[1] * groups, weight.shape[0])
    )
    equal(x.shape[1], taken)
    if bias is not None:
        doubt_unless(bias.dim() == 1)
        equal(bias.shape[0], given)
    if transposed:
        across = _spread(x.shape[2:], weight.shape[2:], stride, padding, dilation, output_padding)
    else:
        across = _windows(x.shape[2:], weight.shape[2:], stride, padding, dilation)
    return [laid((x.shape[0], given, *across))]


def _format(x: torch.Tensor, weight: torch.Tensor, groups: int) -> Callable[[Sequence[Any]], Layout]:
    """The layout of a convolution's results, common to all kernels that ATen may choose for different sizes."""
    last = is_channels_last(x) or is_channels_last(weight)
    doubt_unless(all(is_plain(t) or is_channels_last(t) for t in (x, weight)))
    doubt_unless(not last or x.device.type == "cpu" or groups == 1)
    return channels_last if last else packed


def _spread(sizes: Sequence[Any], kernel: Any, stride: Any, padding: Any, dilation: Any, more: Any) -> Sizes:
    """The input sizes for which `_windows` gives these sizes."""
    rank = len(sizes)
    found = []
    given = zip(sizes, *(_each(v, rank) for v in (kernel, stride, padding, dilation, more)), strict=True)
    for n, k, s, p, d, m in given:
        assume(n >= 1)
        doubt_unless(0 <= m < max(s, d))
        found.append((n - 1) * s - 2 * p + d * (k - 1) + m + 1)
        assume(found[-1] >= 1)
    return tuple(found)


def convolution_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, mask: Sequence[bool],
) -> list[Layout]:  # fmt: skip
    """The layouts of the needed gradients, whatever the layout of the result."""
    laid = _format(x, weight, groups)
    [(sizes, _)] = convolution(x, weight, None, stride, padding, dilation, transposed, output_padding, groups)
    doubt_unless(grad.dim() == x.dim())
    for a, b in zip(grad.shape, sizes, strict=True):
        equal(a, b)
    made = (laid(x.shape), laid(weight.shape), packed((sizes[1],)))
    return [layout for layout, asked in zip(made, mask, strict=True) if asked]


def max_pool(
    x: torch.Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> list[Layout]:
    doubt_unless(x.dim() in (3, 4) and not ceil and is_plain(x))
    for n in x.shape[1:]:
        assume(n != 0)
    made = packed((*x.shape[:-2], *_windows(x.shape[-2:], kernel, stride or kernel, padding, dilation)))
    return [made, made]


def avg_pool(
    x: torch.Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, *rest: Any
) -> list[Layout]:
    doubt_unless(x.dim() in (3, 4) and not ceil and is_plain(x))
    for n in x.shape[1:]:
        assume(n != 0)
    return [packed((*x.shape[:-2], *_windows(x.shape[-2:], kernel, stride or kernel, padding, 1)))]


# copies -----------------------------------------------------------------------------------------------------------
def cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> list[Layout]:
    first = tensors[0]
    doubt_unless(all(t.dim() == first.dim() > 0 and (t.dim() < 4 or is_plain(t)) for t in tensors))
    (along,) = dims_of(first.dim(), dim)
    for t in tensors[1:]:
        for d in range(first.dim()):
            if d != along:
                equal(t.shape[d], first.shape[d])
    total = sum(t.shape[along] for t in tensors)
    return [packed([total if d == along else n for d, n in enumerate(first.shape)])]


def clone(x: torch.Tensor, *, memory_format: Any = torch.preserve_format) -> list[Layout]:
    if memory_format is torch.contiguous_format:
        return [packed(x.shape)]
    doubt_unless(memory_format in (None, torch.preserve_format))
    return [like(x)]
