"""`with torch.device(...)`: constructors without a device get the innermost one, as torch's own mode at the bottom of the stack
gives it to them.

In: entering and leaving.  Out: nothing; `Capture.devices` holds those that are entered (`GraphBuilder.call_function` reads it).
A graph that ends in between ends before the innermost `with` that is still open: that runs natively, as does its end.
"""

from __future__ import annotations

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.calls import Args, Kwargs, builtin
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const


@builtin(torch.device.__enter__)
def enter(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    device = args[0].const()
    cx.devices.append((device, cx.step()))
    return args[0]


@builtin(torch.device.__exit__)
def leave(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not cx.devices or cx.devices[-1][0] != args[0].const():
        raise Break("global-state", "the end of a with torch.device(...) that began outside of the graph")
    cx.devices.pop()
    return Const(None)


@builtin(torch.get_default_device)
def get_default_device(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not cx.devices:
        return cx.evaluate(torch.get_default_device)
    device = cx.devices[-1][0]
    return cx.make(device if device.index is not None else torch.tensor([], device=device).device)
