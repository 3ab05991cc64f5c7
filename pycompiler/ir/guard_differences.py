"""The aspect in which a call differs from a guard: dtype, flag, str, size, identity and so on.

In: a failed guard with the call's values, or with the guards that other entries have on the same source.
Out: names of `ASPECTS`.

Example: `aspects(Guard("equals", local("mode"), "sum"), scope)` is `("text",)` for a call with `mode="mean"`.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any

import torch

from pycompiler.ir.guards import Guard, TensorSpec, deref, is_singleton, spec_differences
from pycompiler.ir.source import Scope, Source, read

# Kinds of guards with a single aspect.
OF_KINDS: dict[str, str] = {
    "length": "length", "dict_keys": "keys", "dict_contains": "keys", "dict_absent": "keys", "set_equals": "elements",
    "instance_absent": "attribute", "class_absent": "attribute", "global_state": "state", "truth": "condition",
    "cell_empty": "cell", "no_alias": "aliases", "same_object": "aliases", "sizes": "relation", "data": "data",
}  # fmt: skip
ASPECTS: frozenset[str] = frozenset({
    *OF_KINDS.values(), "class", "dtype", "device", "requires_grad", "dimensions", "sizes", "strides", "keys of dispatch",
    "none", "flag", "text", "number", "value", "identity", "structure",
})  # fmt: skip


def aspects(guard: Guard, scope: Scope) -> tuple[str, ...]:
    """The aspects in which this call differs from the guard."""
    try:
        if guard.kind == "same_object" and all(is_singleton(read(s, scope)) for s in (guard.source, *guard.others)):
            return ("value",)
        if guard.kind in OF_KINDS:
            return (OF_KINDS[guard.kind],)
        value = read(guard.source, scope)
        if guard.kind == "tensor":
            return _of_tensor(value, guard.arg)
        return _between(guard, type(value) if guard.kind == "type_is" else value)
    except Exception:
        return ("structure",)


def aspects_between(guard: Guard, others: Iterable[Guard]) -> tuple[str, ...]:
    """The aspects in which a guard differs from other entries' guards on the same source.

    Without such guards: the aspects that may differ.
    """
    if guard.kind in OF_KINDS:
        return (OF_KINDS[guard.kind],)
    found: dict[str, None] = {}
    for other in others:
        if other.source == guard.source and other.kind == guard.kind:
            found |= dict.fromkeys(_between(guard, deref(other.arg)))
    return tuple(found) or _between(guard, deref(guard.arg))


def _of_tensor(value: Any, spec: TensorSpec) -> tuple[str, ...]:
    if value is None:
        return ("none",)
    return tuple(spec_differences(TensorSpec.of(value), spec)) if isinstance(value, torch.Tensor) else ("class",)


def _between(guard: Guard, other: Any) -> tuple[str, ...]:
    """Compare as the guard's kind does: two specs, two classes, or two values."""
    expected = deref(guard.arg)
    if guard.kind == "tensor":
        return tuple(spec_differences(other, expected))
    if guard.kind == "type_is":
        return ("none" if type(None) in (expected, other) else "class",)
    return (_of_values(guard.source, expected, other, guard.kind == "id_is"),)


def _of_values(source: Source, expected: Any, seen: Any, by_identity: bool) -> str:
    if source.kind in ("size", "stride"):
        return f"{source.kind}s"
    if source.kind == "computed":
        return "condition"
    if expected is None or seen is None:
        return "none"
    for kind, aspect in ((bool, "flag"), ((str, bytes), "text"), (numbers.Number, "number")):
        if isinstance(expected, kind) and isinstance(seen, kind):  # type: ignore[arg-type]
            return aspect
    if type(expected) is not type(seen):
        return "class"
    return "identity" if by_identity and not is_singleton(expected) else "value"
