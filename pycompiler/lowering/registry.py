"""The table of lowerings: ATen operator -> function that creates values for it.

    @lowering(aten.relu)                      # a packet registers every functional overload
    def relu(low: Lowering, x: Value) -> Value: ...

A lowering gets the context and the node's arguments, tensors as `Value`s.  It returns a Value (or a tuple of them), or
`NotImplemented` for a case that it leaves to the ATen kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch._prims  # defines the operators of torch.ops.prims

LoweringFunction = Callable[..., Any]
F = TypeVar("F", bound=LoweringFunction)
LOWERINGS: dict[Any, LoweringFunction] = {}
# Operators that are also lowered for dtypes that loops cannot compute with, such as complex.
ANY_DTYPE: set[Any] = set()


def overloads(op: Any) -> Iterator[torch._ops.OpOverload]:
    """The functional overloads of a packet (no out=, no mutation, tensors only), or the overload itself."""
    if isinstance(op, torch._ops.OpOverload):
        yield op
        return
    for name in op.overloads():
        overload = getattr(op, name)
        tensors = any("Tensor" in str(a.type) for a in (*overload._schema.arguments, *overload._schema.returns))
        if tensors and not overload._schema.is_mutable and torch._C._dispatch_has_kernel(overload.name()):
            yield overload


def register(ops: Any, handler: LoweringFunction) -> None:
    """Adds rows for one operator (packet or overload) or several; a second row for an operator is an error."""
    for op in ops if isinstance(ops, list | tuple) else [ops]:
        for overload in overloads(op):
            if overload in LOWERINGS:
                raise ValueError(f"{overload} has a lowering already: {LOWERINGS[overload].__qualname__}")
            LOWERINGS[overload] = handler


def lowering(*ops: Any, any_dtype: bool = False) -> Callable[[F], F]:
    """Registers the decorated function for `ops`."""

    def add(handler: F) -> F:
        register(ops, handler)
        if any_dtype:
            ANY_DTYPE.update(o for op in ops for o in overloads(op))
        return handler

    return add
