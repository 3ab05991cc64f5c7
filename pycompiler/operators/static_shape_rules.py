"""Results for static sizes without torch's shape functions, which are Python and import sympy at a first call.

In: a mode, an operator, its arguments (FakeTensors without symbols).  Out: FakeTensors, or None if torch must answer.

Example: for ``aten.add.Tensor`` with (2, 3) of float32 and (3,) of int64 the result is (2, 3) of float32.

Layouts come from `symbolic_shape_rules.py` and `tensor_iterator.py`.  Dtypes are the results of the kernel for tensors
of one element, run once for each combination of dtypes.  If the kernel refuses them, torch's shape function reports the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from pycompiler.operators.operator_facts import facts_of
from pycompiler.operators.symbolic_shape_rules import (
    InDoubt,
    Layout,
    doubt_unless,
    is_channels_last,
    is_packed,
    layouts_of,
    packed,
    same,
)
from pycompiler.operators.tensor_iterator import (
    broadcast,
    computes_in,
    dense_strides,
    fresh_strides,
    is_iterated,
    operands,
)

aten = torch.ops.aten
Types = tuple[torch.dtype, ...]
RuleResults = Sequence[tuple[Layout, torch.dtype] | None]  # None: a result that is not needed

_MOST_ANSWERS = 20_000
_types: dict[Any, torch.dtype | None] = {}
_SINGLE = frozenset((torch.float32, torch.float64))  # no kernel mixes them with wider dtypes
_FLOATS = _SINGLE | {torch.bfloat16, torch.float16}


def results_by_rule(
    mode: FakeTensorMode, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device
) -> RuleResults | None:
    """Layout and dtype of each fresh result; all tensors among the arguments are on `device`."""
    try:
        if is_iterated(op):
            return _pointwise(op, args, kwargs, device)
        if op is aten.convolution_backward.default:
            return _convolution_backward(mode, op, args)
        if facts_of(op).layouts is None or (op is aten.convolution.default and not _is_plain_convolution(mode, args)):
            return None
        found = layouts_of(op, args, kwargs)
        if found is None:
            return None
        types = (facts_of(op).dtypes or of_all)(op, args, kwargs, len(found))
        return list(zip(found, types, strict=True))
    except InDoubt:
        return None


# pointwise --------------------------------------------------------------------------------------------------------
def _pointwise(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device
) -> RuleResults | None:
    dtype = kernels_type(op, args, kwargs)
    if dtype is None:
        return None
    layouts = operands(op, args, computes_in(args, dtype) if device.type == "cpu" else None)
    shape = fitting([s for s, _ in layouts])
    types = {t.dtype for t in args if isinstance(t, torch.Tensor)}
    doubt_unless(len(types) == 1 or op is aten.where.self or all(t.is_contiguous() for t in map(_meta, _tensors(args))))
    return [((shape, fresh_strides(layouts)), dtype)]


def _tensors(args: Sequence[Any]) -> list[torch.Tensor]:
    return [t for a in args for t in (a if isinstance(a, (list, tuple)) else (a,)) if isinstance(t, torch.Tensor)]


def fitting(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The broadcast shape; raises InDoubt if the shapes do not fit."""
    found = broadcast([tuple(s) for s in shapes])
    for shape in shapes:
        doubt_unless(all(n in (1, m) for n, m in zip(reversed(shape), reversed(found), strict=False)))
    return found


def kernels_type(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype | None:
    """The dtype of the kernel's one result for tensors of one element; None if the kernel refuses them."""
    try:
        key = (op, torch.get_default_dtype(), *map(_key, args), *((k, _key(v)) for k, v in kwargs.items()))
        if key in _types:
            return _types[key]
    except TypeError:  # an argument without a hash
        return None
    if len(_types) > _MOST_ANSWERS:
        _types.clear()
    try:
        with _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast():
            _types[key] = op(*map(_of_one, args), **{k: _of_one(v) for k, v in kwargs.items()}).dtype
    except Exception:  # torch's own shape function reports the error
        _types[key] = None
    return _types[key]


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.dim())
    return tuple(map(_key, value)) if isinstance(value, (list, tuple)) else (type(value), value)


def _of_one(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.ones((1,) * value.dim(), dtype=value.dtype, device="cpu")
    return value


# dtypes of other operators ----------------------------------------------------------------------------------------
def of_all(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], n: int) -> Types:
    """The common dtype of all tensors among the arguments, if no other dtype is requested."""
    found = {t.dtype for t in _tensors(args)}
    doubt_unless(len(found) == 1 and found <= _SINGLE and kwargs.get("dtype") in (None, *found))
    return (*found,) * n


def of_floats(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], n: int) -> Types:
    found = {t.dtype for t in _tensors(args)}
    doubt_unless(len(found) == 1 and found <= _FLOATS)
    return (*found,) * n


def of_equals(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], n: int) -> Types:
    found = {t.dtype for t in _tensors(args)}
    doubt_unless(len(found) == 1)
    return (*found,) * n


def of_first(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], n: int) -> Types:
    """The dtype of the first argument; others may be index tensors."""
    others = {t.dtype for t in args[1:] if isinstance(t, torch.Tensor)}
    doubt_unless(args[0].dtype in _SINGLE and others <= {torch.int64, args[0].dtype})
    return (args[0].dtype,) * n


def of_request(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], n: int) -> Types:
    return (kwargs.get("dtype") or args[0].dtype,) * n


def by_kernel(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], n: int) -> Types:
    if (dtype := kernels_type(op, args, kwargs)) is None:
        raise InDoubt
    return (dtype,) * n


def of_softmax(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], n: int) -> Types:
    doubt_unless(args[2] is False)
    return of_floats(op, args, kwargs, n)


def of_softmax_backward(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], n: int) -> Types:
    doubt_unless(args[3] is args[0].dtype)
    return of_all(op, args[:2], kwargs, n)


def of_pool(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], n: int) -> Types:
    return (*of_all(op, args, kwargs, 1), torch.int64)


def of_attention(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], n: int) -> Types:
    doubt_unless(args[0].device.type == "cpu")
    return of_all(op, args, kwargs, n)


def _is_plain_convolution(mode: FakeTensorMode, args: Sequence[Any], sizes: Any = None) -> bool:
    """Whether the kernel that ATen chooses returns contiguous memory; `sizes`: of the bias, for a backward."""
    if args[0].device.type != "cpu" or any(map(is_channels_last, args[:2])):
        return False
    if args[1].dim() == 3:
        return True
    with mode:
        backend = torch._C._select_conv_backend(*args, bias_sizes=sizes)  # type: ignore[attr-defined]
        choose: Any = torch._C._conv_determine_backend_memory_format  # type: ignore[attr-defined]
        return choose(args[0], args[1], backend) is torch.contiguous_format


def _convolution_backward(mode: FakeTensorMode, op: OpOverload, args: Sequence[Any]) -> RuleResults | None:
    grad, x, weight, sizes, *how, mask = args
    types = of_floats(op, (grad, x, weight), {}, 3)
    doubt_unless(len(args) == 11 and is_packed(x) and is_packed(weight) and is_packed(grad) and x.dim() == weight.dim())
    if not _is_plain_convolution(mode, (x, weight, None, *how), sizes):
        return None
    shapes = (x.shape, weight.shape, (weight.shape[1] * how[-1] if how[3] else weight.shape[0],))
    return [(packed(s), t) if m else None for s, t, m in zip(shapes, types, mask, strict=True)]


# factories --------------------------------------------------------------------------------------------------------
def factory_result(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Layout, torch.dtype] | None:
    """Layout and dtype of a fresh host tensor; None if torch must answer."""
    factory = facts_of(op).factory
    if factory is None or not _FACTORY_OPTIONS.issuperset(kwargs) or kwargs.get("layout") not in _STRIDED:
        return None
    if kwargs.get("pin_memory") or kwargs.get("memory_format") not in _KEPT:
        return None
    likes = next((a for a in args if isinstance(a, torch.Tensor)), None)
    device = kwargs.get("device") or (torch.device("cpu") if likes is None else likes.device)
    if torch.device(device).type != "cpu" or not _is_made_of(likes):
        return None
    try:
        layout, dtype = factory(*args)
        return layout, kwargs.get("dtype") or dtype
    except InDoubt:
        return None


_FACTORY_OPTIONS = frozenset(("dtype", "layout", "device", "pin_memory", "memory_format"))
_STRIDED = (None, torch.strided)
_KEPT = (None, torch.preserve_format)


def _is_made_of(t: Any) -> bool:
    if t is None:
        return True
    return type(t) is FakeTensor and t.layout is torch.strided and not t._has_symbolic_sizes_strides


def _sized(shape: Any) -> Layout:
    doubt_unless(all(type(n) is int and n >= 0 for n in shape))
    return packed(shape)


def _type_of_number(value: Any) -> torch.dtype:
    doubt_unless(type(value) in (bool, int, float))
    return {bool: torch.bool, int: torch.int64}.get(type(value), torch.get_default_dtype())


def made_empty(shape: Any) -> tuple[Layout, torch.dtype]:
    return _sized(shape), torch.get_default_dtype()


def made_strided(shape: Any, strides: Any) -> tuple[Layout, torch.dtype]:
    doubt_unless(all(type(n) is int and n >= 0 for n in (*shape, *strides)) and len(shape) == len(strides))
    return (tuple(shape), tuple(strides)), torch.get_default_dtype()


def made_full(shape: Any, value: Any) -> tuple[Layout, torch.dtype]:
    return _sized(shape), _type_of_number(value)


def made_scalar(value: Any) -> tuple[Layout, torch.dtype]:
    doubt_unless(type(value) in (bool, int, float))
    return ((), ()), torch.get_default_dtype()


def made_range(start: Any, end: Any, step: Any = 1) -> tuple[Layout, torch.dtype]:
    doubt_unless(type(start) is type(end) is type(step) is int and step > 0 and end >= start)
    return packed((-((start - end) // step),)), torch.int64


def made_like(x: torch.Tensor, value: Any = 0) -> tuple[Layout, torch.dtype]:
    return (tuple(x.shape), dense_strides(tuple(x.shape), x.stride())), x.dtype


def made_new(x: torch.Tensor, shape: Any, value: Any = 0) -> tuple[Layout, torch.dtype]:
    return _sized(shape), x.dtype


# writes -----------------------------------------------------------------------------------------------------------
@cache
def _unwritten(op: OpOverload) -> OpOverload | None:
    """The functional overload of a pointwise operator that writes its first argument."""
    name = op.overloadpacket.__name__
    packet = getattr(aten, name[:-1], None) if op.namespace == "aten" and name.endswith("_") else None
    fresh = getattr(packet, op._overloadname, None) if packet is not None else None
    return fresh if fresh is not None and is_iterated(fresh) else None


def writes_itself(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `op` writes its first argument as pointwise operators do, and returns it."""
    facts = facts_of(op)
    if facts.draws_in_place is not None:
        dense = torch.ops.aten.is_non_overlapping_and_dense.default(_meta(args[0]))
        plain = args[0].dtype in _FLOATS and dense and all(v is None for v in kwargs.values())
        return plain and all(type(p) in (int, float) for p in args[1:]) and facts.draws_in_place(*args[1:])
    if not facts.fills and _unwritten(op) is None:
        return False
    x = args[0]
    if not lies_apart(x):
        return False
    try:
        shape = fitting([a.shape for a in _tensors(args)])
    except InDoubt:
        return False
    return shape == tuple(x.shape) and kernels_type(op, args, kwargs) is x.dtype


def lies_apart(x: torch.Tensor) -> bool:
    """Whether the elements do not overlap: each dimension steps over the range of the narrower ones."""
    end = 1
    for step, n in sorted((s, n) for n, s in zip(x.shape, x.stride(), strict=True) if n != 1):
        if step < end:
            return False
        end = step * n
    return True


def writes_alike(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """`writes_itself` for symbolic sizes: contiguous memory, and operands known to have its shape."""
    if _unwritten(op) is None or not all(isinstance(v, _NUMBERS) for v in (*args, *kwargs.values())):
        return False
    x = args[0]
    for t in _tensors(args):
        if t.dim() != x.dim() or not all(map(same, t.shape, x.shape)):
            return False
    return is_packed(x) and kernels_type(op, args, kwargs) is x.dtype


_NUMBERS = (torch.Tensor, int, float, str)  # no SymInt, and no list


def _meta(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
