"""Immutable objects of torch.distributed: placements, meshes, process groups, queried at capture time.

In: such an object.  Out: a constant.  Example: ``mesh.size()`` is 2, where `mesh` and its groups are guarded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const, reference
from pycompiler.ir.source import Source, const_source
from pycompiler.operators import process_groups
from pycompiler.operators.process_groups import text_of_placement


class Fixed(Const):
    """`tells`: the attributes and methods that may be queried."""

    def __init__(self, value: Any, tells: frozenset[str]) -> None:
        super().__init__(value)
        self.tells = tells

    def getattr(self, cx: Capture, name: str) -> Value:
        if name in ("__class__", "__doc__"):
            return super().getattr(cx, name)
        if name not in self.tells:
            raise Break("unsupported-attribute", f"{type(self.value).__qualname__}.{name}")
        guard_groups(cx, self.value)
        if callable(found := cx.evaluate_raw(getattr, self.value, name)):
            return FixedMethod(self, name, found)
        return known(cx, found)

    def getitem(self, cx: Capture, key: Value) -> Value:
        if "__getitem__" not in self.tells:
            raise Break("unsupported-operation", f"{self.describe()}[...]")
        guard_groups(cx, self.value)
        return known(cx, cx.evaluate_raw(lambda: self.value[cx.snapshot(key)]))

    def truth(self, cx: Capture) -> bool:
        return bool(self.value)


class FixedMethod(Value):
    """A bound method of such an object."""

    def __init__(self, owner: Fixed, name: str, fn: Callable[..., Any]) -> None:
        self.owner, self.name, self.fn = owner, name, fn

    def describe(self) -> str:
        return f"{type(self.owner.value).__qualname__}.{self.name}"

    __repr__ = describe

    def python_type(self) -> type:
        return type(self.fn)

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        guard_groups(cx, self.owner.value)
        given, named = [cx.snapshot(a) for a in args], {k: cx.snapshot(v) for k, v in kwargs.items()}
        return known(cx, cx.evaluate_raw(self.fn, *given, **named))


def known(cx: Capture, real: Any) -> Value:
    """The value of a query's result."""
    if type(real) in (tuple, list):
        return cx.sequence([known(cx, v) for v in real], type(real))
    guard_groups(cx, real)
    return cx.make(real)


_GROUP = frozenset(("group_name", "rank", "size", "name"))
_MESH = frozenset(
    ("ndim", "device_type", "shape", "mesh_dim_names", "size", "get_rank", "get_local_rank", "get_coordinate", "get_group",
     "get_all_groups", "__getitem__", "_dim_group_names", "_is_current_rank_part_of_mesh", "_sym_get_coordinate")
)  # fmt: skip
_PLACEMENT = frozenset(("dim", "reduce_op", "split_factor", "is_shard", "is_replicate", "is_partial"))
_PLACEMENTS = ("Shard", "_StridedShard", "Replicate", "Partial")

# (module, class) -> attributes and methods that may be queried
TELLS = {
    ("torch._C._distributed_c10d", "ProcessGroup"): _GROUP,
    ("torch.distributed.device_mesh", "DeviceMesh"): _MESH,
    **{("torch.distributed.tensor.placement_types", name): _PLACEMENT for name in _PLACEMENTS},
}  # fmt: skip


_OWN_MODULE = type.__dict__["__module__"].__get__  # bypasses the metaclass


def fixed(real: Any) -> Fixed | None:
    """`real` as a constant, if it is such an object; else None."""
    cls = type(real)
    if type(module := _OWN_MODULE(cls)) is not str or not module.startswith("torch."):
        return None
    found = (tells for (where, name), tells in TELLS.items() if getattr(sys.modules.get(where), name, None) is cls)
    tells = next(found, None)
    return None if tells is None else Fixed(real, tells)


def wrap_fixed(cx: Capture, real: Any, source: Source) -> Value | None:
    """The value of an existing object, guarded: a placement by its contents, others by identity."""
    value = fixed(real)
    if value is None or source.kind == "const":
        return value
    if value.tells is _PLACEMENT:
        cx.guard("type_is", source, type(real))
        cx.guard("equals", source.then("begun", text_of_placement), text_of_placement(real))
    else:
        cx.guard("id_is", source, reference(real))
    return value


def guard_groups(cx: Capture, real: Any) -> None:
    """Guard the groups on which the results of a mesh or a group depend."""
    if (tells := fixed(real)) is None or tells.tells is _PLACEMENT:
        return
    rely_on_world(cx)
    if tells.tells is _GROUP:
        rely_on_group(cx, real.group_name)
        _rely_on_registered(cx, real)
    else:
        for name in getattr(real, "_dim_group_names", ()):
            rely_on_group(cx, name)


def rely_on_world(cx: Capture) -> None:
    if process_groups.world() is None:
        raise Break("unsupported-operation", "a query of torch.distributed before a default process group exists")
    _assume(cx, ("world",), process_groups.world)


def rely_on_group(cx: Capture, name: str) -> None:
    if process_groups.facts(name) is None:
        raise Break("unsupported-operation", f"the process group {name!r}, which does not exist")
    _assume(cx, ("group", name), lambda: process_groups.facts(name))


def _rely_on_registered(cx: Capture, group: Any) -> None:
    """Guard that a group is registered: a destroyed group's name may belong to another one."""
    if not process_groups.is_registered(group):
        raise Break("unsupported-operation", "a process group that was destroyed")
    held = reference(group)
    _assume(cx, ("registered", id(group)), lambda: process_groups.is_registered(held()))


class GuardedQuery:
    """The current answer to a question, as an attribute for guards."""

    def __init__(self, question: Callable[[], Any]) -> None:
        self.question = question

    @property
    def answer(self) -> Any:
        return self.question()


def assume(cx: Capture, key: tuple[Any, ...], question: Callable[[], Any], why: str) -> None:
    """Guard the current answer to a question.  It holds in this process only, because of `why`."""
    asked = cx.kept.setdefault((GuardedQuery, *key), GuardedQuery(question))
    cx.guard("equals", const_source(asked).attr("answer"), asked.answer)
    cx.process[why] = None


def _assume(cx: Capture, key: tuple[Any, ...], question: Callable[[], Any]) -> None:
    assume(cx, key, question, "the capture depends on process groups")
