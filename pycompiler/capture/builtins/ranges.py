"""`torch.profiler.record_function` and ranges of NVTX: what a profiler shows.

What is inside is one part of a graph, so a range that ends in the frame has nothing to show of it.  One that is open where
the graph breaks is opened by generated code, and one that was opened before is closed by it.  NVTX keeps its ranges
by depth alone: generated code makes all of these calls behind the graph, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture import skip
from pycompiler.capture.breaks import Break
from pycompiler.capture.calls import Args, Kwargs, builtin
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const, Withheld
from pycompiler.capture.values.functions import Builtin
from pycompiler.capture.values.objects import Range

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
