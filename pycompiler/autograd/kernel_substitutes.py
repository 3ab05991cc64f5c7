"""Substitutes of ATen kernels that behave differently below autograd than in eager.

In: an operator. Out: the operator to record.

Example: a graph calls ``pycompiler::mkldnn_rnn_layer``, which enables gradients around ATen's kernel.  Without gradients
that kernel does not create the workspace that its backward needs, even with the argument for training.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

_LIBRARY = torch.library.Library("pycompiler", "FRAGMENT")  # type: ignore[no-untyped-call]


def _with_gradients_on(op: OpOverload) -> OpOverload:
    """`op` under another name, with a kernel that runs with gradients enabled."""
    name = op.overloadpacket.__name__
    arguments = str(op._schema).partition("(")[2]
    _LIBRARY.define(f"{name}({arguments}")  # type: ignore[no-untyped-call]

    def kernel(*args: Any) -> Any:
        with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
            return op(*args)

    for key in ("CPU", "Meta"):
        _LIBRARY.impl(name, kernel, key)  # type: ignore[no-untyped-call]
    return getattr(torch.ops.pycompiler, name).default  # type: ignore[no-any-return]


_INSTEAD: dict[OpOverload, OpOverload] = {}
if hasattr(aten, "mkldnn_rnn_layer"):
    _INSTEAD[aten.mkldnn_rnn_layer.default] = _with_gradients_on(aten.mkldnn_rnn_layer.default)


def substitute_of(op: OpOverload) -> OpOverload:
    """The operator that a graph calls where a program calls `op`."""
    return _INSTEAD.get(op, op)
