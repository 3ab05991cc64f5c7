"""Process groups and properties that a graph assumes about them.

In: the name of a group, or a placement.  Out: plain constants that guards compare; the kind of collective of an operator.

Example: ``facts("0")`` is ``((0, 1), 1, "gloo")`` in the second of two processes, and None if there is no such group.

Operators contain the name of a group and look it up at run time.  So a group that was created anew is used as soon as
it has the name.  Ranks and sizes in the graph are compared with the current group of this name.
This module never imports torch.distributed before the program does.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import Any

from torch._ops import OpOverload, OpOverloadPacket

NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional")
WAITS = frozenset(("wait_tensor", "wait_tensors"))
IN_FLIGHT = "in_flight"
"""Marks a node of a captured graph whose result was not waited for."""
Facts = tuple[tuple[int, ...], int, str]


def c10d() -> Any:
    """torch's module, if it is loaded."""
    return sys.modules["torch.distributed.distributed_c10d"]


def facts(name: str) -> Facts | None:
    """A group's ranks, the position of this process among them, and the backend; None if no group has this name."""
    module = c10d()
    try:
        group = module._resolve_process_group(name)
        return tuple(module.get_process_group_ranks(group)), group.rank(), str(module.get_backend(group))
    except (KeyError, RuntimeError, ValueError):
        return None


def world() -> tuple[str, Facts | None] | None:
    """The name and facts of the group of all processes, or None."""
    group = c10d().GroupMember.WORLD
    return None if group is None else (group.group_name, facts(group.group_name))


def is_registered(group: Any) -> bool:
    """Whether the group's name still refers to this group: it has not been destroyed."""
    try:
        return group is not None and c10d()._resolve_process_group(group.group_name) is group
    except RuntimeError:
        return False


def text_of_placement(placement: Any) -> str:
    """All properties of a placement of torch's own classes, as a str."""
    return f"{type(placement).__qualname__}: {placement!r}"


@cache
def name_of(op: object) -> str | None:
    """The name of a functional collective, or of a wait; None for any other operator."""
    if isinstance(op, OpOverload):
        op = op.overloadpacket
    if not isinstance(op, OpOverloadPacket):
        return None
    namespace, _, name = op._qualified_op_name.partition("::")
    return name if namespace in NAMESPACES else None


@cache
def launches(op: object) -> bool:
    """Whether the operator starts work that continues after the call.

    Until a wait, the results must not be read and the arguments must not be written.
    """
    name = name_of(op)
    return name is not None and name not in WAITS and name != "_wrap_tensor_autograd"


def load_shapes() -> None:
    """Load the shape functions of collectives, from a module that the program may not have imported.

    Without them torch runs the collective itself, on fake tensors.
    """
    importlib.import_module("torch.distributed._functional_collectives")
