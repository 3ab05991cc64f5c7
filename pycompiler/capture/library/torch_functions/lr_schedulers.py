"""`step()` of torch's learning rate schedulers: one native call that waits until the graph has run.

It computes numbers of the program only, which the graph does not contain.  So no guard depends on the number of steps
so far.  The changed values are not known afterwards; a frame that reads one is captured again, with the call inlined.
Schedulers that call functions of the program, and tensor learning rates, are inlined.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import lr_scheduler, swa_utils

from pycompiler.capture.breaks import RestartCapture
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.interpreter.calls import compare as compared
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const, PendingState
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.sequences import List
from pycompiler.capture.values.functions import Builtin
from pycompiler.capture.values.objects import Object
from pycompiler.ir.source import Source

INLINED = ("schedulers",)
CHANGED = ("lr", "momentum", "betas")
"""Entries of a parameter group that schedulers change."""
MODULES = (lr_scheduler.__name__, swa_utils.__name__)
KINDS = {
    cls for cls in (*vars(lr_scheduler).values(), *vars(swa_utils).values())
    if isinstance(cls, type) and issubclass(cls, lr_scheduler.LRScheduler) and cls.__module__ in MODULES
}  # fmt: skip
STEPS = tuple({id(cls.step): cls.step for cls in KINDS}.values())


def step(cx: Capture, function: types.FunctionType, args: Args, kwargs: Kwargs) -> Value:
    scheduler = cx.realize(args[0]) if args else None
    groups = {v.source: v for v in _groups(cx, scheduler) or ()}
    if INLINED in cx.tried or not groups or len(args) > 1 + (function is lr_scheduler.ReduceLROnPlateau.step) or kwargs:
        return cx.inline(cx.make(function), args, kwargs)
    fresh = [cx.sizes.policy.will_change(s, "float") for s in _numbers(groups)]
    assert isinstance(scheduler, Object)
    if "_step_count" in scheduler.real.__dict__ and cx.truth(
        compared(cx, "==", scheduler.getattr(cx, "_step_count"), Const(1))
    ):  # it may warn about its caller's line
        return cx.inline(cx.make(function), args, kwargs)
    if any(fresh):
        raise RestartCapture
    cx.effects.defer(Builtin(function), [scheduler, *args[1:]])
    unknown = PendingState(cx.tried, INLINED)
    for value in [*_all(cx, scheduler)]:
        cx.effects.wait(value, tuple(value.real.__dict__), unknown)
    for group in groups.values():
        cx.effects.wait(group, CHANGED, unknown)
    return Const(None)


def _all(cx: Capture, scheduler: Object) -> Iterator[Object]:
    yield scheduler
    if "_schedulers" in scheduler.real.__dict__:
        for part in scheduler.getattr(cx, "_schedulers").iterate(cx):
            part = cx.realize(part)
            assert isinstance(part, Object)
            yield from _all(cx, part)


def _groups(cx: Capture, scheduler: Value | None) -> list[Dict] | None:
    """The parameter groups that torch's scheduler changes; None if more may happen, or the effect is not known."""
    if (
        not isinstance(scheduler, Object)
        or not scheduler.exists
        or scheduler.source is None
        or scheduler.cls not in KINDS
    ):
        return None
    held = scheduler.real.__dict__
    own = [n for n in held if callable(getattr(scheduler.cls, n, None))]
    if own or any(_may_call(v) for v in held.values()) or scheduler.overlay:
        return None
    parts = held.get("_schedulers", ())
    if not isinstance(parts, (list, tuple)) or not isinstance(held.get("optimizer"), torch.optim.Optimizer):
        return None
    for name in ("step", "get_lr", "_update_lr"):
        cx.guard("instance_absent", scheduler.source, name)
    found: list[Dict] = []
    for part in scheduler.getattr(cx, "_schedulers").iterate(cx) if parts else ():
        inside = _groups(cx, cx.realize(part))
        if inside is None:
            return None
        found += inside
    groups = cx.realize(cx.realize(scheduler.getattr(cx, "optimizer")).getattr(cx, "param_groups"))
    if not isinstance(groups, List):
        return None
    for group in map(cx.realize, groups.items):
        if not isinstance(group, Dict) or group.real is None or group.source is None:
            return None
        if any(isinstance(group.real.get(n), torch.Tensor) for n in (*CHANGED, "initial_lr")):
            return None
        found.append(group)
    rates = cx.realize(scheduler.getattr(cx, "base_lrs")) if "base_lrs" in held else None
    if isinstance(rates, List) and len(rates.items) != len(groups.items):
        return None  # a group was added: most schedulers then raise when called
    return found


def _may_call(held: Any) -> bool:
    """Whether an object is a function of the program, or holds some; torch's methods do not count."""
    if isinstance(held, (list, tuple)) and not all(isinstance(v, (int, float)) for v in held):
        return any(_may_call(v) for v in held)
    if isinstance(held, (lr_scheduler.LRScheduler, torch.optim.Optimizer)):
        return False
    function = getattr(held, "__func__", held)
    return callable(function) and getattr(function, "__module__", None) not in (*MODULES, "builtins")


def _numbers(groups: dict[Source | None, Dict]) -> Iterator[Source]:
    for group in groups.values():
        assert group.source is not None
        yield from (group.source.dict_item(n) for n in ("lr", "momentum") if type(group.real.get(n)) is float)
        if isinstance(group.real.get("betas"), tuple):
            yield group.source.dict_item("betas").item(0)


def _register(function: types.FunctionType) -> None:
    @builtin(function)
    def handler(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        return step(cx, function, args, kwargs)


for _step in STEPS:
    _register(_step)  # type: ignore[arg-type]
