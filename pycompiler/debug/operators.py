"""`python -m pycompiler operator aten.silu`: the way down of an operator, from a program's call to a kernel.

In: the name of an operator, or of one of its overloads.  Out: a line for each table that has a say, in the order in which they
are asked; the last one takes it.

Example: `way(aten.silu.default)` is `[Step("decomposed", "decomp.activations.silu")]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload, OpOverloadPacket

from pycompiler.autograd import kernels
from pycompiler.autograd.decomp.registry import PARTIAL, RULES
from pycompiler.autograd.decompositions import WHOLE, default_decompositions
from pycompiler.autograd.recorder import is_composite
from pycompiler.errors import ArgumentError
from pycompiler.ir import composites, effects
from pycompiler.lowering.kept import KEPT
from pycompiler.lowering.registry import LOWERINGS
from pycompiler.lowering.updates import PARTS, WRITES


class Step(NamedTuple):
    """What a table says of an operator."""

    what: str
    by: str
    ends: bool = True  # nothing after it is asked

    def __str__(self) -> str:
        return f"  {self.what}: {self.by}"


def way(op: OpOverload) -> list[Step]:
    """The steps of an operator; the last one takes it."""
    steps: list[Step] = []
    for ask in TABLES:
        for step in ask(op):
            steps.append(step)
            if step.ends:
                return steps
    raise AssertionError(f"nothing takes {op}")


def _does(op: OpOverload) -> Iterator[Step]:
    found = [name for name, ask in EFFECTS.items() if ask(op)]
    if found:
        yield Step("besides its results it", ", ".join(found), False)


def _composite(op: OpOverload) -> Iterator[Step]:
    """No graph has it: torch's dispatcher calls its parts."""
    ours = composites.rule_of(op)
    if ours is not None or is_composite(op):
        yield Step("taken apart", _place(ours) if ours is not None else "the dispatcher, by torch's composite kernel")


def _functional(op: OpOverload) -> Iterator[Step]:
    """Functionalisation makes another operator of one that writes."""
    if op._schema.is_mutable:
        plain = functional(op)
        yield Step("written as", f"{plain or 'its functional form'}, and a copy")


def functional(op: OpOverload) -> OpOverload | None:
    """The operator of the same arguments that gives what `op` writes."""
    packet = getattr(getattr(torch.ops, op.namespace), op.overloadpacket.__name__.removesuffix("_"), None)
    others = [getattr(packet, name) for name in (packet.overloads() if packet is not None else ())]
    return next((o for o in others if not o._schema.is_mutable and _arguments(o) == _arguments(op)), None)


def _arguments(op: OpOverload) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]


def _recorded(op: OpOverload) -> Iterator[Step]:
    if kernels.recorded(op) is not op:
        yield Step("recorded as", str(kernels.recorded(op)), False)


def _decomposed(op: OpOverload) -> Iterator[Step]:
    rule = default_decompositions().find(op)
    if rule is not None:
        partial = op in PARTIAL
        by = _place(rule) if op in RULES else f"torch, {_place(rule)}"
        yield Step("decomposed", f"{by}, for some arguments" if partial else by, not partial)
    else:
        reasons = {
            "it draws": effects.draws(op),
            "an operator of ATen's core set": torch.Tag.core in op.tags,
            "better whole (`decompositions.WHOLE`)": op.overloadpacket in WHOLE,
        }
        yield Step("whole", next((r for r, holds in reasons.items() if holds), "no table takes it apart"), False)


def _lowered(op: OpOverload) -> Iterator[Step]:
    if op in WRITES or op in PARTS:
        yield Step("made in place", "lowering.updates, where it writes a part of an input", False)
    if op in LOWERINGS:
        yield Step("lowered", f"{_place(LOWERINGS[op])}, or ATen's kernel where it gives NotImplemented")


def _kernel(op: OpOverload) -> Iterator[Step]:
    name = op.overloadpacket.__name__
    reason = next((reason for reason, names in KEPT.items() if name in names), "no lowering")
    yield Step("called", f"ATen's kernel ({reason})" if op.namespace == "aten" else "its kernel")


EFFECTS: dict[str, Callable[[OpOverload], bool]] = {
    "draws": effects.draws,
    "acts": effects.acts,
    "raises": effects.raises,
    "writes unseen": effects.writes_unseen,
}

# In the order in which a call meets them.
TABLES: tuple[Callable[[OpOverload], Iterator[Step]], ...] = (
    *(_does, _composite, _functional, _recorded, _decomposed, _lowered, _kernel),
)


def _place(fn: Any) -> str:
    module = str(getattr(fn, "__module__", "")).removeprefix("pycompiler.").removeprefix("autograd.")
    name = str(getattr(fn, "__qualname__", fn))
    return module if name.endswith("<lambda>") else f"{module}.{name}"


def named(name: str) -> list[OpOverload]:
    """The overloads that a name says: `aten.add` all of them, `aten.add.Tensor` one."""
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
        raise ArgumentError(f"no operator is called {name!r}; say aten.add, or aten.add.Tensor")
    return known


def _is_dispatched(op: OpOverload) -> bool:
    """Some overloads are TorchScript's alone."""
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
        print(op, *way(op), sep="\n")
    return 0
