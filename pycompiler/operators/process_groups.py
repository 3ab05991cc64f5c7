"""Process groups and what goes by them, as far as a graph takes it for granted.

In: the name of a group, a placement.  Out: what guards compare, plain constants; operators by what they are to a collective.
Example: ``facts("0")`` is ``((0, 1), 1, "gloo")`` in the second of two processes, None where there is no such group.

Operators name groups, and look the name up when they run: a group that was made anew is used as soon as it has the name.
What graphs hold besides (ranks, sizes) is compared with what the name means then.  torch.distributed is not imported before
the program does.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import Any

from torch._ops import OpOverload, OpOverloadPacket

NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional")
WAITS = frozenset(("wait_tensor", "wait_tensors"))
FLIES = "in_flight"
"""Marks a node of a captured graph whose result was not waited for."""
Facts = tuple[tuple[int, ...], int, str]


def c10d() -> Any:
    """torch's module, if it is loaded."""
    return sys.modules["torch.distributed.distributed_c10d"]


def facts(name: str) -> Facts | None:
    """A group's ranks, this process's place among them, and what carries them out; None where there is no group by this name."""
    module = c10d()
    try:
        group = module._resolve_process_group(name)
        return tuple(module.get_process_group_ranks(group)), group.rank(), str(module.get_backend(group))
    except (KeyError, RuntimeError, ValueError):
        return None


def world() -> tuple[str, Facts | None] | None:
    """The group of all processes."""
    group = c10d().GroupMember.WORLD
    return None if group is None else (group.group_name, facts(group.group_name))


def is_registered(group: Any) -> bool:
    """Whether a group is the one that its name means: it has not been destroyed."""
    try:
        return group is not None and c10d()._resolve_process_group(group.group_name) is group
    except RuntimeError:
        return False


def text_of_placement(placement: Any) -> str:
    """All that there is to a placement of torch's own classes."""
    return f"{type(placement).__qualname__}: {placement!r}"


@cache
def name_of(op: object) -> str | None:
    """The name of a functional collective, or of a wait; None of any other operator."""
    if isinstance(op, OpOverload):
        op = op.overloadpacket
    if not isinstance(op, OpOverloadPacket):
        return None
    namespace, _, name = op._qualified_op_name.partition("::")
    return name if namespace in NAMESPACES else None


@cache
def launches(op: object) -> bool:
    """Begins what goes on when the call is over: until they were waited for nobody reads its results, or writes its arguments."""
    name = name_of(op)
    return name is not None and name not in WAITS and name != "_wrap_tensor_autograd"


def load_shapes() -> None:
    """Shape functions of collectives, which a module defines that the program may not have imported; without them torch runs the
    collective itself, on fakes."""
    importlib.import_module("torch.distributed._functional_collectives")
