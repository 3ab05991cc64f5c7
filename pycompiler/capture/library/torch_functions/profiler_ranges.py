"""`torch.profiler.record_function`, ranges of NVTX, and profilers that nobody reads: what a profiler shows.

What is inside is one part of a graph, so a range that ends in the frame has nothing to show of it.  One that is open where
the graph breaks is opened by generated code, and one that was opened before is closed by it.  NVTX keeps its ranges
by depth alone: generated code makes all of these calls behind the graph, in order.

A profiler that the frame makes and enters, and asks nothing, shows nothing to anybody: it is not switched on, here and beyond
a break inside of its `with`.  What asks it anything, or leads to it from outside, breaks the graph where it was made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture import skip
from pycompiler.capture.breaks import Break
from pycompiler.capture.calls import Args, Kwargs, builtin, constructor
from pycompiler.capture.funnel import STACK
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const, Withheld
from pycompiler.capture.values.functions import Builtin
from pycompiler.capture.values.opaque import Range
from pycompiler.ir.source import const as const_source

ENTER = torch.ops.profiler._record_function_enter_new
EXIT = torch.ops.profiler._record_function_exit._RecordFunction
_MANAGER = torch.autograd.profiler.record_function
skip.INLINED |= {_MANAGER.__init__, _MANAGER.__enter__, _MANAGER.__exit__}


@builtin(ENTER)
def enter(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    args = [a.settle("in the name of a range") for a in args]
    if kwargs or not all(a.is_const() for a in args):
        raise Break("builtin-call", "a range of the profiler whose name is not known")
    return Range(tuple(a.const() for a in args))


@builtin(EXIT)
def leave(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1 or kwargs:
        raise Break("builtin-call", "arguments that no end of a range takes")
    record = cx.realize(args[0])
    if isinstance(record, Range):
        record.left = True
    elif record.source is not None:
        cx.effects.defer(Builtin(EXIT), [record])
    else:
        raise Break("builtin-call", f"the end of the range {record.describe()}")
    return Const(None)


def _nvtx(name: str, function: Callable[..., Any]) -> None:
    def call(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        args = [a.settle("in the name of a range") for a in args]
        if kwargs or not all(a.is_const() for a in args):
            raise Break("builtin-call", "a range of NVTX whose name is not known")
        cx.effects.defer(Builtin(function), args)
        return Withheld(cx.frames[-1].here(Break("builtin-call", f"what nvtx.{name} gives")))

    builtin(function)(call)


for _name, _attribute in {"range_push": "rangePushA", "range_pop": "rangePop", "mark": "markA"}.items():
    _function = getattr(torch.cuda.nvtx._nvtx, _attribute, None)
    if isinstance(_function, type(len)):  # Python's stand-in, where torch has no NVTX, raises by itself
        _nvtx(_name, _function)


class Profiler(Withheld):
    """A profiler that nobody has read."""

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
            return Entering(self)
        if name == "__exit__":
            return self.stands_in.getattr(cx, name)
        raise self.broke


class Entering(Withheld):
    """The method that switches a profiler on, which gives it."""

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
            raise broke  # another one would be switched off
        cx.guard("equals", const_source(STACK).attr("profiled"), False)
        stands_in = cx.call(cx.make(contextlib.nullcontext), [], {})
        return Profiler(cls, stands_in, cx.frames[-1].here(broke))

    constructor(cls)(make)


for _class in (torch.profiler.profile, torch.autograd.profiler.profile):
    _profiler(_class)
