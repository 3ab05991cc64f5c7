"""`with torch.device(...)` and `torch.set_default_device(...)`: constructors without a device get the innermost one, as torch's
own mode at the bottom of the stack gives it to them.

In: entering and leaving, and a call.  Out: `Capture.devices` holds those that are entered, `Capture.default_device` the one that
is set (`GraphBuilder.call_function` asks for both); the call itself waits until the graph has run.
A graph that ends in between ends before the innermost `with` that is still open: that runs natively, as does its end.
"""

from __future__ import annotations

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.builtins import torch_api
from pycompiler.capture.calls import Args, Kwargs, builtin
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
        raise Break("global-state", "the end of a with torch.device(...) that began outside of the graph")
    cx.devices.pop()
    return Const(None)


@builtin(torch.set_default_device)
def set_default_device(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    given = [cx.realize(v) for v in (*args, *kwargs.values())]
    if len(given) != 1 or kwargs.keys() - {"device"} or not isinstance(given[0], Const):
        raise Break("builtin-call", "torch.set_default_device() of other arguments")
    if cx.devices or cx.graph.is_inner or cx.functions.modes_on() or cx.functions.modes_around():
        raise Break("global-state", "torch.set_default_device() under a mode, or in a transform")
    wanted = given[0].value
    try:
        device = torch.device("cpu" if wanted is None else wanted)
    except (RuntimeError, TypeError):  # which the program sees
        raise Break("global-state", "torch.set_default_device() of no device") from None
    around = torch_api.default_device()
    if around is not None and around.type != "cpu" and around != device:  # where arrays are, which have no device
        raise Break("global-state", "torch.set_default_device() of another device than is set around the call")
    cx.effects.defer(Builtin(torch.set_default_device), [given[0]])
    cx.default_device = device
    return Const(None)


@builtin(torch.get_default_device)
def get_default_device(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if cx.device is None:
        return cx.evaluate(torch.get_default_device)
    device = cx.device
    return cx.make(device if device.index is not None else torch.tensor([], device=device).device)
