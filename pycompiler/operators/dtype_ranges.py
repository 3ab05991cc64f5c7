"""Range checks of numbers that an operator converts to a dtype: eager's kernels do them, shape functions do not.

In: a call of an operator, and its result.  Out: nothing, or the kernel's exception.
For symbolic floats, the compile assumes that the dtype can hold them.

Example: ``torch.full((2,), f)`` assumes ``|f| <= 3.4e38`` (or a non-finite number), which the entry's guard checks.

Arguments of type `Scalar` in the schema are converted.  A number in place of a tensor is promoted instead, and becomes infinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from pycompiler.operators.kernel_type_checks import check_fill, check_number, on_host, tensors_of
from pycompiler.operators.operator_facts import facts_of
from pycompiler.symbolic.concretize import Concretizer
from pycompiler.symbolic.number_nodes import value_of
from pycompiler.symbolic.symbolic_node import Real
from pycompiler.symbolic.symbols import hint_of


def limit_numbers(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
    """Raises for constants that the kernel refuses; assumes that the result's dtype can hold symbolic floats."""
    found = list(_given(func, args, kwargs)) if isinstance(func, OpOverload) else []
    if not found:
        return
    results = tensors_of(out)
    dtypes = [t.dtype for t in results if t.dtype.is_floating_point or t.dtype.is_complex]
    most = min((torch.finfo(d).max for d in dtypes), default=math.inf)
    bounded = most < torch.finfo(torch.float64).max
    integers = [torch.iinfo(t.dtype) for t in results if t.dtype in _INTEGERS]
    for number in found:
        value = value_of(number) if isinstance(number, torch.SymFloat) else number
        if isinstance(value, Real):
            if bounded:
                number.node.env.within(value, most)
            continue
        refused = bounded and most < abs(value) < math.inf
        refused |= any(not i.min <= value <= i.max for i in integers)
        if refused and all(map(on_host, results)):
            if facts_of(func).converts:
                check_fill([min(hint_of(n), 2) for n in results[0].shape], results[0].dtype, value)
            else:
                today = Concretizer()
                check_number(func, today.of(tuple(args)), today.of(dict(kwargs)))


_INTEGERS = frozenset(getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64))


def _given(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    for i, name in _scalars(func):
        value = args[i] if i < len(args) else kwargs.get(name)
        yield from (v for v in (value if isinstance(value, list | tuple) else (value,)) if type(v) in _NUMBERS)


_NUMBERS = (float, int, torch.SymFloat)


@cache
def _scalars(func: OpOverload) -> tuple[tuple[int, str], ...]:
    """Positions and names of the arguments that are numbers of any type."""
    arguments = enumerate(func._schema.arguments)
    return tuple((i, a.name) for i, a in arguments if "number" in str(a.real_type))
