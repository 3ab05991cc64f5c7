"""Handlers of profilers: `torch.profiler.record_function`, ranges of NVTX, and profilers that the program does not read.

The code inside a range is one part of a graph, so a range that ends in the frame has nothing to show.  A range that
is open where the graph breaks is opened by generated code.  A range opened before the frame is closed by generated
code.  NVTX identifies its ranges by depth alone: generated code makes all of these calls after the graph, in order.

A profiler that the frame creates and enters, but never reads, is not switched on, in the frame and after a break
inside its `with`.  Any read of the profiler, or a reference to it from outside, breaks the graph where the profiler
was created.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin, constructor
from pycompiler.capture.interpreter.torch_function import STACK
from pycompiler.capture.semantics.signatures import constant_arguments
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const, UnknownObject
from pycompiler.capture.values.functions import Builtin
from pycompiler.capture.values.opaque import ProfilerRange
from pycompiler.ir.source import const_source

ENTER = torch.ops.profiler._record_function_enter_new
EXIT = torch.ops.profiler._record_function_exit._RecordFunction
_MANAGER = torch.autograd.profiler.record_function
inlining_rules.INLINED |= {_MANAGER.__init__, _MANAGER.__enter__, _MANAGER.__exit__}


@builtin(ENTER)
@constant_arguments("in the name of a profiler range")
def enter(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if kwargs or not all(a.is_const() for a in args):
        raise Break("builtin-call", "a profiler range whose name is not a constant")
    return ProfilerRange(tuple(a.const() for a in args))


@builtin(EXIT)
def leave(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1 or kwargs:
        raise Break("builtin-call", "the end of a profiler range with other arguments than the range")
    record = cx.realize(args[0])
    if isinstance(record, ProfilerRange):
        record.left = True
    elif record.source is not None:
        cx.effects.defer(Builtin(EXIT), [record])
    else:
        raise Break("builtin-call", f"the end of the profiler range {record.describe()}")
    return Const(None)


def _nvtx(name: str, function: Callable[..., Any]) -> None:
    @constant_arguments("in the name of a profiler range")
    def call(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if kwargs or not all(a.is_const() for a in args):
            raise Break("builtin-call", "an NVTX range whose name is not a constant")
        cx.effects.defer(Builtin(function), args)
        return UnknownObject(cx.frames[-1].here(Break("builtin-call", f"the result of nvtx.{name}")))

    builtin(function)(call)


for _name, _attribute in {"range_push": "rangePushA", "range_pop": "rangePop", "mark": "markA"}.items():
    _function = getattr(torch.cuda.nvtx._nvtx, _attribute, None)
    if isinstance(_function, type(len)):  # without NVTX, torch has a Python stand-in, which raises by itself
        _nvtx(_name, _function)


class Profiler(UnknownObject):
    """A profiler that the program has not read."""

    def __init__(self, cls: type, stands_in: Value, broke: Break) -> None:
        super().__init__(broke)
        self.cls, self.stands_in = cls, stands_in
        self.entered = False

    def describe(self) -> str:
        return "a profiler"

    def python_type(self) -> type:
        return self.cls

    def getattr(self, cx: Capture, name: str) -> Value:
        if name == "__enter__":
            return ProfilerEnter(self)
        if name == "__exit__":
            return self.stands_in.getattr(cx, name)
        raise self.broke


class ProfilerEnter(UnknownObject):
    """The method that switches a profiler on, and returns it."""

    def __init__(self, profiler: Profiler) -> None:
        super().__init__(profiler.broke)
        self.profiler = profiler

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args or kwargs or self.profiler.entered:
            raise self.broke
        self.profiler.entered = True
        return self.profiler


def _profiler(cls: type) -> None:
    def make(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        broke = Break("skipped-call", f"{cls.__module__}.{cls.__qualname__}")
        if args or kwargs or torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            raise broke  # a surrounding profiler would be switched off
        cx.guard("equals", const_source(STACK).attr("profiled"), False)
        stands_in = cx.call(cx.make(contextlib.nullcontext), [], {})
        return Profiler(cls, stands_in, cx.frames[-1].here(broke))

    constructor(cls)(make)


for _class in (torch.profiler.profile, torch.autograd.profiler.profile):
    _profiler(_class)
