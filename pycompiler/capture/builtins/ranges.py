"""`torch.profiler.record_function`: a range that the profiler shows.

What is inside is one part of a graph, so a range that ends in the frame has nothing to show of it.  One that is open where
the graph breaks is opened by generated code, and one that was opened before is closed by it.
"""

from __future__ import annotations

import torch

from pycompiler.capture import skip
from pycompiler.capture.breaks import Break
from pycompiler.capture.calls import Args, Kwargs, builtin
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
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
