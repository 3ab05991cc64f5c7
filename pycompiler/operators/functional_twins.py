"""Functional twins of other libraries' operators that write their arguments: new values instead of in-place writes.

In: an operator, as the program calls it.  Out: its twin, which returns the operator's results and then the new value of
each written argument, with the argument's layout.

Example: the twin of ``put(Tensor(a!) b, Tensor x) -> ()`` is ``put(Tensor b, Tensor x) -> Tensor``.  It calls the
operator on a copy of `b`.

Functional graphs contain the twin (`autograd/trace/forward.py`).  Lowering restores the operator, on a copy.  Scheduling
omits the copy if the old value is not used.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from pycompiler.operators.operator_facts import facts_of

NAMESPACE = "pycompiler_functional"
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
_ORIGINAL: dict[Any, OpOverload] = {}
_ALIAS = re.compile(r"Tensor\([^)]*\)")


@functools.cache
def writing(target: object) -> OpOverload | None:
    """The operator that a call of `target` runs, if it is another library's, writes arguments and has a twin; else None.

    There is no twin for an operator that returns views, or that writes lists or optional tensors.
    """
    if isinstance(target, OpOverloadPacket):
        names = target.overloads()  # type: ignore[no-untyped-call]
        target = getattr(target, names[0]) if len(names) == 1 else None
    if (
        not isinstance(target, OpOverload)
        or not facts_of(target).foreign
        or target in _ORIGINAL
        or not target._schema.is_mutable
    ):
        return None
    arguments = target._schema.arguments
    plain = all(a.alias_info is None or a.alias_info.is_write and str(a.type) == "Tensor" for a in arguments)
    return target if plain and not any(r.alias_info is not None for r in target._schema.returns) else None


@functools.cache
def twin_of(op: OpOverload) -> OpOverload:
    """The twin of an operator for which `writing` is not None."""
    name = re.sub(r"\W", "_", f"{op.namespace}_{op.overloadpacket.__name__}_{op._overloadname}_{len(_ORIGINAL)}")
    given, _, gives = _ALIAS.sub("Tensor", str(op._schema)).partition("(")[2].rpartition(" -> ")
    results = [g for g in gives.removeprefix("(").removesuffix(")").split(", ") if g]
    results += ["Tensor"] * len(facts_of(op).written)
    _LIBRARY.define(f"{name}({given} -> ({', '.join(results)})" if len(results) > 1 else f"{name}({given} -> Tensor")  # type: ignore[no-untyped-call]
    kernel = functools.partial(_computed, op)
    _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{name}", kernel, lib=_LIBRARY)
    twin: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    _ORIGINAL[twin] = op
    return twin


def original(op: object) -> OpOverload | None:
    """The operator with this twin, or None."""
    return _ORIGINAL.get(op)


def with_written(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], change: Callable[[Any], Any]
) -> tuple[list[Any], dict[str, Any], list[Any]]:
    """The arguments, with `change` applied to each written one, and the list of the changed ones."""
    args, kwargs, made = list(args), dict(kwargs), []
    for i, name in facts_of(op).written:
        holder: Any = args if i < len(args) else kwargs
        key = i if i < len(args) else name
        holder[key] = change(holder[key])
        made.append(holder[key])
    return args, kwargs, made


def _computed(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    given, named, made = with_written(op, args, kwargs, _copy)
    found = op(*given, **named)
    results = [] if not op._schema.returns else [found] if len(op._schema.returns) == 1 else [*found]
    return (*results, *made) if len(results) + len(made) > 1 else made[0]


def _copy(t: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=t.device).copy_(t)
