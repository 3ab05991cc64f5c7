"""`with torch.device(...)` and `torch.set_default_device(...)`: constructors without a device get the innermost device.

Torch does this by a mode at the bottom of the stack.  In: entering and leaving, and a call.  Out: `Capture.devices`
has the entered devices, `Capture.default_device` the device set by the call.  `GraphBuilder.call_function` reads
both.  The call itself waits until the graph has run.  A graph that would end inside a block ends before the innermost
open `with`, which then runs natively, as does its end.
"""

from __future__ import annotations

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.library.torch_functions import torch_api
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.functions import Builtin


@builtin(torch.device.__enter__)
def enter(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    device = args[0].const()
    cx.devices.append((device, cx.step()))
    return args[0]


@builtin(torch.device.__exit__)
def leave(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not cx.devices or cx.devices[-1][0] != args[0].const():
        raise Break("global-state", "the end of a torch.device(...) block that began outside of the graph")
    cx.devices.pop()
    return Const(None)


@builtin(torch.set_default_device)
def set_default_device(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    given = [cx.realize(v) for v in (*args, *kwargs.values())]
    if len(given) != 1 or kwargs.keys() - {"device"} or not isinstance(given[0], Const):
        raise Break("builtin-call", "torch.set_default_device() without one constant device")
    if cx.devices or cx.graph.is_inner or cx.functions.modes_on() or cx.functions.modes_around():
        raise Break("global-state", "torch.set_default_device() under a mode, or in a passed function")
    wanted = given[0].value
    try:
        device = torch.device("cpu" if wanted is None else wanted)
    except (RuntimeError, TypeError):  # the program sees the error
        raise Break("global-state", "torch.set_default_device() of a value that is not a device") from None
    around = torch_api.default_device()
    # it would decide where NumPy arrays are, which have no device
    if around is not None and around.type != "cpu" and around != device:
        raise Break("global-state", "torch.set_default_device() while another default device is set around the call")
    cx.effects.defer(Builtin(torch.set_default_device), [given[0]])
    cx.default_device = device
    return Const(None)


@builtin(torch.get_default_device)
def get_default_device(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if cx.device is None:
        return cx.evaluate(torch.get_default_device)
    device = cx.device
    return cx.make(device if device.index is not None else torch.tensor([], device=device).device)
