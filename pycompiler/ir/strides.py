"""Strides of results as the kernels give them, where shape functions have rules of their own.

In: an operator, its FakeTensor arguments, and the results that a shape function gave. Out: those results.
Example: of ``aten.huber_loss`` with two tensors of shape (1,) and stride (3,) it is a tensor of stride (3,): it copies them.

They differ in dimensions of one element, for tensors without elements, and where operands overlap themselves or have
gaps. There the kernel itself is asked, on tensors of ones and zeros with the layouts of the arguments, once for each
combination of layouts; for large ones and for other devices the shape function (and `iterator.py`) has the last word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from pycompiler.ir.kernels import is_asked, on_host, tensors_of

_LARGE = 1 << 16  # elements that the arguments span
_MOST_ANSWERS = 20_000

Strides = list[tuple[tuple[int, ...], tuple[int, ...]]]
_answers: dict[Any, Strides] = {}


def as_real(mode: FakeTensorMode, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Any:
    """`out`, what a shape function says `op` returns, with the strides of its kernel."""
    results = [out] if isinstance(out, torch.Tensor) else out
    if not isinstance(results, (list, tuple)) or not is_asked(op) or any(r.alias_info for r in op._schema.returns):
        return out
    given = list(tensors_of((args, kwargs)))
    if all(map(_is_dense, given)) and not any(map(_undecided, results)):
        return out
    if not given or mode.shape_env is not None or not all(map(_is_small, given)):
        return out
    key = (op, _key(args), _key(tuple(kwargs.items())))
    try:
        answer = _answers.get(key)
    except TypeError:  # an argument without a hash
        return out
    if answer is None:
        if len(_answers) > _MOST_ANSWERS:
            _answers.clear()
        answer = _answers[key] = _ask(op, args, kwargs)
    if [shape for shape, _ in answer] != [tuple(t.shape) for t in tensors_of(results)]:
        return out
    real = iter(answer)
    laid = [_laid(mode, t, next(real)[1]) if isinstance(t, torch.Tensor) else t for t in results]
    return laid[0] if isinstance(out, torch.Tensor) else laid if isinstance(out, list) else tuple(laid)


def _undecided(t: Any) -> bool:
    return isinstance(t, FakeTensor) and t.dim() > 0 and (t.numel() == 0 or 1 in t.shape)


def _is_dense(t: torch.Tensor) -> bool:
    return t.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense.default(t))


def _is_small(t: torch.Tensor) -> bool:
    return on_host(t) and not (t.is_neg() or t.is_conj()) and _span(t) <= _LARGE


def _span(t: torch.Tensor) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0


def _laid(mode: FakeTensorMode, t: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    if t.stride() == strides:
        return t
    return FakeTensor(mode, torch.empty_strided(t.shape, strides, dtype=t.dtype, device="meta"), t.device)


def _ask(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Strides:
    try:
        with _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast():
            real = op(*map(_stand_in, args), **{k: _stand_in(v) for k, v in kwargs.items()})
    except Exception:  # it does not take these values: they are not the program's
        return []
    return [(tuple(t.shape), t.stride()) for t in tensors_of(real)]


def _stand_in(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        made = torch.ones if value.dtype.is_floating_point else torch.zeros
        return made(_span(value), dtype=value.dtype).as_strided(value.shape, value.stride())
    if type(value) in (list, tuple):
        return type(value)(_stand_in(v) for v in value)
    return value


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.stride())
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    return (type(value), value)
