"""Handlers of torch.distributed: queries about processes, and collectives that write their arguments.

A query is answered during the capture; guards check the facts behind the answer
(`capture/values/distributed_objects.py`).  ``dist.all_reduce(x)`` becomes ``x.copy_(wait(all_reduce(x)))``, of
torch's functional collectives, which are inlined.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import LATE_BUILTINS, Args, Kwargs
from pycompiler.capture.recording import collectives
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const, UnknownObject
from pycompiler.capture.values.containers.sequences import List, Sequence
from pycompiler.capture.values.distributed_objects import fixed, guard_groups, known, rely_on_group, rely_on_world
from pycompiler.capture.values.tensor import Tensor
from pycompiler.operators import process_groups

C10D, FUNCTIONAL = "torch.distributed.distributed_c10d", "torch.distributed._functional_collectives"

CollectiveHandler = Callable[[Capture, Args, Kwargs], Value]


# questions ----------------------------------------------------------------------------------------------------
def _question(name: str) -> CollectiveHandler:
    def handler(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        given, named = [cx.snapshot(a) for a in args], {k: cx.snapshot(v) for k, v in kwargs.items()}
        rely_on_world(cx)
        for value in (*given, *named.values()):
            _rely_on(cx, value)
        return known(cx, cx.evaluate_raw(getattr(process_groups.c10d(), name), *given, **named))

    return handler


def _rely_on(cx: Capture, value: Any) -> None:
    if fixed(value) is not None:
        guard_groups(cx, value)
    elif type(value) is str:
        rely_on_group(cx, value)
    elif not isinstance(value, (int, type(None))):
        raise Break("unsupported-operation", f"a query of process groups with a {type(value).__qualname__} object")


for _name in ("get_rank", "get_world_size", "get_backend", "get_process_group_ranks", "get_group_rank", "get_global_rank",
              "_get_default_group", "_get_group_size_by_name", "_rank_not_in_group"):  # fmt: skip
    LATE_BUILTINS[C10D, _name] = _question(_name)


def _all_processes(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """``dist.group.WORLD``."""
    rely_on_world(cx)
    return known(cx, process_groups.c10d().GroupMember.WORLD)


LATE_BUILTINS[C10D, "_WorldMeta.WORLD"] = _all_processes


def _resolve_group(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """The name of a group, from a group, its name, a mesh, a mesh and a dimension, or (once) its ranks."""
    functional = torch.distributed._functional_collectives
    given, tag = cx.snapshot(args[0]), cx.snapshot(args[1]) if len(args) > 1 else ""
    if getattr(torch.compiler.config, "compile_on_one_rank", False):
        raise Break("unsupported-operation", "collectives under compile_on_one_rank")
    rely_on_world(cx)
    if type(given) is list:
        name = cx.evaluate_raw(process_groups.c10d()._resolve_group_name_by_ranks_and_tag, given, tag)
    else:
        for part in given if type(given) is tuple else (given,):
            _rely_on(cx, part)
        name = cx.evaluate_raw(functional._resolve_group_name, given, tag)
    rely_on_group(cx, name)
    return Const(str(name))


LATE_BUILTINS[FUNCTIONAL, "_resolve_group"] = _resolve_group  # `_resolve_group_name` calls it, except in torch 2.11
LATE_BUILTINS[FUNCTIONAL, "_resolve_group_name"] = _resolve_group
LATE_BUILTINS[FUNCTIONAL, "_are_we_tracing"] = lambda cx, args, kwargs: Const(True)


# collectives that write their arguments -----------------------------------------------------------------------
def _contiguous(tensors: list[Tensor]) -> bool:
    return all(t.is_contiguous and not t.dtype.is_complex and t.cls is torch.Tensor for t in tensors)


def _is_of_group(output: Tensor, part: Tensor, size: int) -> bool:
    """Whether `output` has the shape of all processes' parts, one after the other."""
    whole, one = output.shape, part.shape
    return len(whole) == len(one) > 0 and whole[0] == one[0] * size and whole[1:] == one[1:]


def _sized(given: dict[str, Value], size: int) -> bool:
    """Whether eager accepts the shapes: functional collectives accept more."""
    match given:
        case {"output_tensor": Tensor() as whole, "input_tensor": Tensor() as part}:
            return _is_of_group(whole, part, size)
        case {"output": Tensor() as part, "input_list": Sequence() as parts}:
            return len(parts.items) == size and part.rank > 0 and _like(parts, part)
        case {"tensor_list": Sequence() as parts, "tensor": Tensor() as part}:
            return len(parts.items) == size and part.rank > 0 and _like(parts, part)
        case {
            "output": Tensor() as output,
            "input": Tensor() as given_,
            "output_split_sizes": Const(),
            "input_split_sizes": Const(),
        }:
            rows = output.shape[0] if output.rank else 0
            return rows > 0 and output.shape == given_.shape and rows % size == 0
        case {"output": Tensor() as part, "input": Tensor() as whole}:
            return "output_split_sizes" not in given and _is_of_group(whole, part, size)
        case {"tensor": Tensor()}:
            return True
    return False


def _like(parts: Sequence, part: Tensor) -> bool:
    return all(isinstance(p, Tensor) and p.shape == part.shape for p in parts.items)


def _writing(name: str, functional: str, defaults: Any = None) -> CollectiveHandler:
    def handler(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        module = process_groups.c10d()
        process_groups.load_shapes()
        try:
            bound = inspect.signature(getattr(module, name)).bind(*args, **kwargs)
        except TypeError:
            raise Break("unsupported-operation", f"dist.{name} with arguments that do not fit its signature") from None
        given = {k: cx.realize(v) for k, v in bound.arguments.items()}
        later = cx.truth(given.pop("async_op", Const(False)))
        if later and name not in BEGINS:
            raise Break("unsupported-operation", f"dist.{name}(..., async_op=True), which returns a handle")
        tensors = [t for v in given.values() for t in ([v] if isinstance(v, Tensor) else _items(cx, v))]
        group = _group(cx, given)
        same = {(t.dtype, t.device) for t in tensors}
        if not _contiguous(tensors) or len(same) != 1 or any(t.requires_grad for t in tensors):
            raise Break(
                "unsupported-operation",
                f"dist.{name} of tensors that require grad, are not plain and contiguous, or differ in dtype or device",
            )
        if not _sized({**given, **{k: Const(None) for k in SPLITS.get(name, ()) if k not in given}}, group.size()):
            raise Break("unsupported-operation", f"dist.{name} of tensors whose sizes do not fit the process group")
        _operation(cx, name, given)
        if later:
            return _begin(cx, name, given, group)
        if name in UNCOUNTED:
            written = UNCOUNTED[name]
            given[written] = cx.graph.call_function(getattr, [given[written], Const("data")], {})
        return _run(cx, functional, given, group)

    return handler


UNCOUNTED = {"all_reduce": "tensor", "all_to_all_single": "output"}
"""Operators whose writes do not change the version of the written tensor: kernels below autograd write it."""
SPLITS = {"all_to_all_single": ("output_split_sizes", "input_split_sizes")}


BEGINS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "all_reduce": ("all_reduce", ("tensor", "op"), "tensor"),
    "all_gather_into_tensor": ("all_gather_into_tensor", ("input_tensor", "size"), "output_tensor"),
    "reduce_scatter_tensor": ("reduce_scatter_tensor", ("input", "op", "size"), "output"),
}
"""Operators that may run asynchronously: the operator, its arguments without the group, and the written argument."""


class Work(UnknownObject):
    """The handle of an asynchronous collective.  The write happens where the program waits, which must be in this
    frame."""

    def __init__(self, broke: Break, flies: Value, target: Value) -> None:
        super().__init__(broke)
        self.flies, self.target, self.is_over = flies, target, False

    def truth(self, cx: Capture) -> bool:
        return True

    def getattr(self, cx: Capture, name: str) -> Value:
        return Wait(self) if name == "wait" else super().getattr(cx, name)


class Wait(Value):
    """The bound method `wait` of a handle."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def python_type(self) -> type:
        raise self.work.broke

    def call(self, cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        work = self.work
        if args or kwargs:  # a timeout
            raise work.broke
        if not work.is_over:
            work.is_over = True
            landed = collectives.call(cx, torch.ops._c10d_functional.wait_tensor.default, [work.flies], {})
            cx.graph.call_method("copy_", [work.target, landed], {})
        return Const(True)


def _begin(cx: Capture, name: str, given: dict[str, Value], group: Any) -> Value:
    operator, names, written = BEGINS[name]
    known = {**given, "size": Const(group.size())}
    args = [known[n] for n in names]
    overload = getattr(torch.ops._c10d_functional, operator).default
    flies = collectives.call(cx, overload, [*args, Const(str(group.group_name))], {})
    target = given[written]
    if name in UNCOUNTED:
        target = cx.graph.call_function(getattr, [target, Const("data")], {})
    told = Break(
        "unsupported-operation", f"dist.{name}(..., async_op=True), whose handle this function does not wait for"
    )
    work = Work(cx.frames[-1].here(told), flies, target)
    cx.effects.works.append(work)
    return work


def _items(cx: Capture, value: Value) -> list[Tensor]:
    if not isinstance(value, List):
        return []
    value.items[:] = [cx.realize(v) for v in value.items]
    return [v for v in value.items if isinstance(v, Tensor)]


def _group(cx: Capture, given: dict[str, Value]) -> Any:
    """The group that a collective runs in, from its `group` argument."""
    rely_on_world(cx)
    group = cx.snapshot(given.pop("group", Const(None)))
    if group is None:  # the default group of each call
        group = process_groups.c10d()._get_default_group()
        rely_on_group(cx, group.group_name)
        return group
    if fixed(group) is None:
        raise Break("unsupported-operation", "a collective of a process group that does not contain this process")
    guard_groups(cx, group)
    return group


def _operation(cx: Capture, name: str, given: dict[str, Value]) -> None:
    """Replace the reduction by its name, as functional collectives take it."""
    if "op" not in given and "reduce" not in name:
        return
    names = torch.distributed._functional_collectives.REDUCE_OP_TO_STR
    op = given["op"].const() if "op" in given else torch.distributed.ReduceOp.SUM
    if op not in names:
        raise Break("unsupported-operation", f"dist.{name} with {op}")
    given["op"] = Const(names[op])


def _run(cx: Capture, functional: str, given: dict[str, Value], group: Any) -> Value:
    made = getattr(torch.distributed._functional_collectives, functional)
    cx.call(cx.make(made), [], {**given, "group": Const(str(group.group_name))})
    return Const(None)


for _name, _functional in {
    "all_reduce": "all_reduce_inplace",
    "all_gather_into_tensor": "all_gather_tensor_inplace", "all_gather_single": "all_gather_tensor_inplace",
    "reduce_scatter_tensor": "reduce_scatter_tensor_inplace", "reduce_scatter_single": "reduce_scatter_tensor_inplace",
    "all_to_all_single": "all_to_all_inplace",
    "all_gather": "all_gather_inplace", "reduce_scatter": "reduce_scatter_inplace",
}.items():  # fmt: skip
    LATE_BUILTINS[C10D, _name] = _writing(_name, _functional)
