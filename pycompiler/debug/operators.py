"""`python -m pycompiler operator aten.silu`: the way of an operator, from a program's call to a kernel.

In: the name of an operator, or of one of its overloads.  Out: one line per table that affects the operator, in the
order of the queries; the last table takes it.

Example: `steps_of(aten.silu.default)` is `[Step("decomposed", "decomp.activations.silu")]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload, OpOverloadPacket

from pycompiler.autograd import kernel_substitutes
from pycompiler.autograd.decomp.registry import PARTIAL, RULES
from pycompiler.autograd.decompositions import default_decompositions
from pycompiler.autograd.recorder import is_composite
from pycompiler.errors import ArgumentError
from pycompiler.lowering.partial_updates import PARTS, WRITES
from pycompiler.lowering.registry import LOWERINGS
from pycompiler.operators import composite_rules
from pycompiler.operators.operator_facts import Facts, facts_of


class TableAnswer(NamedTuple):
    """The answer of a table about an operator."""

    what: str
    by: str
    ends: bool = True  # no later table is queried

    def __str__(self) -> str:
        return f"  {self.what}: {self.by}"


def steps_of(op: OpOverload) -> list[TableAnswer]:
    """The steps of an operator; the last one takes it."""
    steps: list[TableAnswer] = []
    for ask in TABLES:
        for step in ask(op):
            steps.append(step)
            if step.ends:
                return steps
    raise AssertionError(f"no table handles {op}")


def _effects(op: OpOverload) -> Iterator[TableAnswer]:
    found = [name for name, ask in EFFECTS.items() if ask(facts_of(op))]
    if found:
        yield TableAnswer("effects", ", ".join(found), False)


def _composite(op: OpOverload) -> Iterator[TableAnswer]:
    """Composite operators are in no graph: torch's dispatcher calls their parts."""
    ours = composite_rules.rule_of(op)
    if ours is not None or is_composite(op):
        yield TableAnswer(
            "taken apart", _place(ours) if ours is not None else "the dispatcher, by torch's composite kernel"
        )


def _functional(op: OpOverload) -> Iterator[TableAnswer]:
    """Functionalisation replaces an operator that writes."""
    if op._schema.is_mutable:
        plain = functional(op)
        yield TableAnswer("written as", f"{plain or 'its functional form'}, and a copy")


def functional(op: OpOverload) -> OpOverload | None:
    """The functional operator with the same arguments that returns the values written by `op`."""
    packet = getattr(getattr(torch.ops, op.namespace), op.overloadpacket.__name__.removesuffix("_"), None)
    others = [getattr(packet, name) for name in (packet.overloads() if packet is not None else ())]
    return next((o for o in others if not o._schema.is_mutable and _arguments(o) == _arguments(op)), None)


def _arguments(op: OpOverload) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]


def _recorded(op: OpOverload) -> Iterator[TableAnswer]:
    if kernel_substitutes.substitute_of(op) is not op:
        yield TableAnswer("recorded as", str(kernel_substitutes.substitute_of(op)), False)


def _decomposed(op: OpOverload) -> Iterator[TableAnswer]:
    rule = default_decompositions().find(op)
    if rule is not None:
        partial = op in PARTIAL
        by = _place(rule) if op in RULES else f"torch, {_place(rule)}"
        yield TableAnswer("decomposed", f"{by}, for some arguments" if partial else by, not partial)
    else:
        reasons = {
            "draws random numbers": facts_of(op).draws,
            "an operator of ATen's core set": torch.Tag.core in op.tags,
            "kept whole (`operators.operator_table`)": facts_of(op).whole,
        }
        yield TableAnswer("whole", next((r for r, holds in reasons.items() if holds), "no table decomposes it"), False)


def _lowered(op: OpOverload) -> Iterator[TableAnswer]:
    if op in WRITES or op in PARTS:
        yield TableAnswer("made in place", "lowering.partial_updates, where it writes a part of an input", False)
    if op in LOWERINGS:
        yield TableAnswer(
            "lowered", f"{_place(LOWERINGS[op])}, or ATen's kernel where the lowering returns NotImplemented"
        )


def _kernel(op: OpOverload) -> Iterator[TableAnswer]:
    reason = facts_of(op).kept or "no lowering"
    yield TableAnswer("called", f"ATen's kernel ({reason})" if op.namespace == "aten" else "its kernel")


EFFECTS: dict[str, Callable[[Facts], object]] = {
    "draws random numbers": lambda facts: facts.draws,
    "has side effects": lambda facts: facts.acts,
    "may raise": lambda facts: facts.raises,
    "writes without counting versions": lambda facts: facts.writes_unseen,
}

# In the order in which a call meets them.
TABLES: tuple[Callable[[OpOverload], Iterator[TableAnswer]], ...] = (
    *(_effects, _composite, _functional, _recorded, _decomposed, _lowered, _kernel),
)


def _place(fn: Any) -> str:
    module = str(getattr(fn, "__module__", "")).removeprefix("pycompiler.").removeprefix("autograd.")
    name = str(getattr(fn, "__qualname__", fn))
    return module if name.endswith("<lambda>") else f"{module}.{name}"


def named(name: str) -> list[OpOverload]:
    """The overloads with a name: `aten.add` means all of them, `aten.add.Tensor` one."""
    found: Any = torch.ops
    parts = name.removeprefix("torch.ops.").replace("::", ".").split(".")
    try:
        for part in parts if len(parts) > 1 else ["aten", *parts]:
            found = getattr(found, part)
    except AttributeError:
        found = None
    if isinstance(found, OpOverloadPacket):
        found = [getattr(found, overload) for overload in found.overloads()]  # type: ignore[no-untyped-call]
    known = [
        op
        for op in (found if isinstance(found, list) else [found])
        if isinstance(op, OpOverload) and _is_dispatched(op)
    ]
    if not known:
        raise ArgumentError(f"unknown operator {name!r}; expected a name such as aten.add or aten.add.Tensor")
    return known


def _is_dispatched(op: OpOverload) -> bool:
    """Whether the overload has a kernel; some overloads exist only for TorchScript."""
    return bool(torch._C._dispatch_has_kernel(op.name()))  # type: ignore[no-untyped-call]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="aten.softmax, or one overload: aten.add.Tensor")


def main(options: argparse.Namespace) -> int:
    try:
        found = [op for name in options.names for op in named(name)]
    except ArgumentError as e:
        print(e)
        return 2
    for op in found:
        print(op, *steps_of(op), sep="\n")
    return 0
