"""Replacements for torch's Python rules of composite operators that differ from eager's kernels.

In: nothing.  Out: `python_rules()`, torch's Python dispatcher with the rules of this file active in this thread.
Traces with symbolic sizes follow these rules.

Example: torch's rule of a multi-layer LSTM forgets the dropout between layers.  Our rule calls torch's once per layer.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload

from pycompiler.operators import operator_table as operator_table  # fills the rows
from pycompiler.operators.argument_checks import check_arguments
from pycompiler.operators.operator_facts import operators_with

aten = torch.ops.aten

Rule = Callable[..., Any]
_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)


class _Inside(threading.local):
    depth = 0


_inside = _Inside()


@contextlib.contextmanager
def python_rules() -> Iterator[None]:
    _install()
    _inside.depth += 1
    try:
        with enable_python_dispatcher():
            yield
    finally:
        _inside.depth -= 1


def _dropout(theirs: Rule, x: Tensor, p: Any, train: bool) -> Tensor:
    """Dropout.  torch's rule draws even for p = 1, and draws complex numbers in another way than the kernel."""
    if p == 0 or not train or x.numel() == 0:
        return x
    if p == 1:
        return x * torch.zeros((), dtype=x.dtype, device=x.device)
    if x.dtype.is_floating_point:
        return theirs(x, p, train)  # type: ignore[no-any-return]
    dtype = x.dtype.to_real() if x.is_complex() else x.dtype
    return x * torch.empty_like(x, dtype=dtype).bernoulli_(1 - p).div_(1 - p)


def _layer_by_layer(theirs: Rule, *args: Any) -> Any:
    """Arguments: `(data, hx, params, …)` or, packed, `(data, batch_sizes, hx, params, …)`.  An LSTM's state is two tensors."""
    sizes = args[1:2] if isinstance(args[3], (list, tuple)) else ()
    x, hx, params, has_biases, layers, p, train, both_ways, *batch_first = (args[0], *args[1 + len(sizes) :])
    if p == 0 or not train or layers < 2:
        return _squeezed(theirs(*args))
    states, ways, count = (hx,) if isinstance(hx, Tensor) else hx, 2 if both_ways else 1, len(params) // layers
    last: list[Any] = []
    x = x.transpose(0, 1) if batch_first == [True] else x
    for k in range(layers):
        state = [s.narrow(0, k * ways, ways) for s in states]
        given = state[0] if isinstance(hx, Tensor) else state
        layer = params[k * count : (k + 1) * count]
        rest = (has_biases, 1, 0.0, train, both_ways, *([False] * len(batch_first)))
        x, *after = _squeezed(theirs(x, *sizes, given, layer, *rest))
        last.append(after)
        x = torch.dropout(x, p, True) if k < layers - 1 else x
    x = x.transpose(0, 1) if batch_first == [True] else x
    return (x, *(torch.cat(parts) for parts in zip(*last, strict=True)))


def _squeezed(results: Any) -> Any:
    """States with three dimensions: an older torch's rule leaves an LSTM's states a further dimension of size 1."""
    x, *states = results
    return (x, *(s.squeeze(1) if s.dim() == 4 else s for s in states))


def _demanding(op: OpOverload) -> Rule:
    """torch's rule after a check of the numbers: the rule decomposes the operator, so no later stage sees the call."""

    def rule(theirs: Rule, *args: Any, **kwargs: Any) -> Any:
        check_arguments(op, args, kwargs)
        return theirs(*args, **kwargs)

    return rule


def _softshrink(theirs: Rule, x: Tensor, lambd: Any = 0.5) -> Tensor:
    """softshrink and its gradient.  torch's rule multiplies by 0: zeros, and gradients of zero, get a sign."""
    check_arguments(aten.softshrink.default, (x, lambd), {})
    most = torch.finfo(x.dtype).max
    torch._check(0 <= lambd <= most, lambda: f"lambda must be in range [0, {most}], but found {lambd}")
    bound = torch.scalar_tensor(lambd, dtype=x.dtype, device=x.device)
    # CUDA's kernel passes the gradient of a NaN; the CPU's gives 0.
    inside = torch.where(x.isnan(), x if x.is_cuda else x.detach(), 0.0)
    return torch.where(x.abs() > bound, x - x.detach().sign() * bound, inside)


_RECURRENT = (aten.rnn_tanh, aten.rnn_relu, aten.gru, aten.lstm)
_RULES: dict[OpOverload, Rule] = {
    aten.dropout.default: _dropout,
    aten.softshrink.default: _softshrink,
    **{getattr(op, name): _layer_by_layer for op in _RECURRENT for name in ("input", "data")},
    **{op: _demanding(op) for op in operators_with("composite_check")},
}


def rule_of(op: OpOverload) -> Rule | None:
    """Our rule for a composite operator, or None if graphs use torch's rule."""
    return _RULES.get(op)


@cache
def _install() -> None:
    """Install the rules.  Threads outside of `python_rules` still use torch's rules."""
    for op, rule in _RULES.items():
        for key in _KEYS:
            theirs: Any = op.py_kernels.get(key)
            if theirs is not None:
                op.py_kernels[key] = _chosen(rule, theirs)
        op._dispatch_cache.clear()


def _chosen(ours: Rule, theirs: Rule) -> Rule:
    def called(*args: Any, **kwargs: Any) -> Any:
        return ours(theirs, *args, **kwargs) if _inside.depth else theirs(*args, **kwargs)

    return called
