"""Probe of the ATen kernel for results with static sizes, when no rule of `static_shape_rules.py` covers the operator.

In: an operator and its arguments (host FakeTensors without symbols).  The kernel runs on real tensors with their layouts.
Out: layouts and dtypes of fresh results, or whether the operator writes its first argument in place.
None or False means that torch's shape functions must answer; they also report errors.

Example: for ``aten.cumsum.default`` with a transposed (2, 3), the answer is the layout of the kernel's (2, 3) result.

torch's shape functions import sympy, half a second in a first call; the kernel takes as long as in the program's own
call.  The arguments are ones and zeros.  The answer holds for all values, except for operators whose tags say otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from pycompiler.operators.kernel_type_checks import has_kernel_checks, memory_of, on_host, tensors_of
from pycompiler.operators.operator_facts import facts_of
from pycompiler.operators.symbolic_shape_rules import Layout

aten = torch.ops.aten
ProbeResults = Sequence[tuple[Layout, torch.dtype]]

_LARGE = 1 << 22  # elements that the arguments span together
_BY_VALUES = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))
_INDICES = (torch.int64, torch.int32)
# Internal kernels that only read their arguments' elements (no packed weights, no workspaces).
_INNER = re.compile(
    r"(?!_|mkldnn|cudnn|miopen|fbgemm|quantized|mps).*backward$|_safe_softmax|_adaptive_avg_pool[23]d|_cdist_forward"
    r"|_transformer_encoder_layer_fwd|_native_multi_head_attention|_fft_[rc]2[rc]|_is_a(ll|ny)_true"
)


def probe_results(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ProbeResults | None:
    """Layout and dtype of each result, all in fresh memory; None if the kernel must not or cannot answer."""
    if facts_of(op).probe == "meta":
        return _of_meta(op, args, kwargs)
    if op._schema.is_mutable or not _values_do_not_decide(op, args):
        return None
    return _made(op, args, kwargs, _fresh)


def _of_meta(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ProbeResults:
    def twin(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    with _disable_current_modes(), torch.no_grad():
        out = op(*map(twin, args), **kwargs)
    return [((tuple(t.shape), t.stride()), t.dtype) for t in out]


def probe_write(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `op` writes its first argument without changing its layout, and returns it."""
    return _is_write(op) and _values_do_not_decide(op, args) and _made(op, args, kwargs, _itself) is not None


def _values_do_not_decide(op: OpOverload, args: Sequence[Any]) -> bool:
    if op is aten.index.Tensor:
        return all(i is None or i.dtype in _INDICES for i in args[1])
    return _may_be_asked(op)


@cache
def _may_be_asked(op: OpOverload) -> bool:
    facts = facts_of(op)
    inner = op.namespace == "aten" and _INNER.match(op.overloadpacket.__name__) is not None
    if not (has_kernel_checks(op) or (inner and not facts.ordered)):
        return False
    return not facts.probe and _BY_VALUES.isdisjoint(op.tags)


@cache
def _is_write(op: OpOverload) -> bool:
    first, *rest = op._schema.arguments
    returns = op._schema.returns
    if len(returns) != 1 or any(a.is_write for a in rest) or torch.Tag.inplace_view in op.tags:
        return False
    return first.is_write and returns[0].alias_info is not None and str(first.type) == "Tensor"


Told = Callable[[Sequence[torch.Tensor], Any], "ProbeResults | None"]


def _made(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], told: Told) -> ProbeResults | None:
    given = tensors_of((args, kwargs))
    if not all(type(t) is FakeTensor and on_host(t) and not t._has_symbolic_sizes_strides and t.numel() for t in given):
        return None
    if op._schema.is_mutable and len({memory_of(t) for t in given}) < len(given):
        return None
    if sum(map(_span, given)) > _LARGE:
        return None
    made: list[torch.Tensor] = []

    def stand_in(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            ones = torch.ones if value.dtype.is_floating_point else torch.zeros
            memory = ones(_span(value), dtype=value.dtype, device="cpu")
            made.append(with_bits_of(value, memory.as_strided(value.shape, value.stride())))
            return made[-1]
        if isinstance(value, list):  # also fx's list class of a graph's arguments
            return [*map(stand_in, value)]
        return tuple(map(stand_in, value)) if type(value) is tuple else value

    try:
        with _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast():
            return told(made, op(*map(stand_in, args), **{k: stand_in(v) for k, v in kwargs.items()}))
    except Exception:  # these are not the program's values: torch's shape function decides whether this is an error
        return None


def _fresh(given: Sequence[torch.Tensor], out: Any) -> ProbeResults | None:
    results = [out] if isinstance(out, torch.Tensor) else list(out) if type(out) in (list, tuple) else None
    if not results or not all(type(t) is torch.Tensor and on_host(t) and not t.storage_offset() for t in results):
        return None
    if any(t.is_conj() or t.is_neg() for t in results):
        return None
    if len({memory_of(t) for t in (*given, *results)}) < len(given) + len(results):
        return None
    return [((tuple(t.shape), t.stride()), t.dtype) for t in results]


def with_bits_of(t: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
    """`plain` with the conjugate and negative bits of `t`."""
    plain = torch._conj(plain) if plain.is_conj() != t.is_conj() else plain
    return torch._neg_view(plain) if plain.is_neg() != t.is_neg() else plain


def _itself(given: Sequence[torch.Tensor], out: Any) -> ProbeResults | None:
    return [] if out is given[0] else None


def _span(t: torch.Tensor) -> int:
    return 0 if 0 in t.shape else 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
