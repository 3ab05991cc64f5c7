"""`with torch.inference_mode():` in a frame.

In: entering and leaving.
Out: nodes that switch the grad mode; `Capture.inference` records the tensors created inside.  A graph that would end
inside the block ends before the `with`, which then runs natively, as does its end.
"""

from __future__ import annotations

from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.library.torch_functions import torch_api
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const, UnknownObject
from pycompiler.capture.values.objects import Object

MANAGER: Any = torch.inference_mode
KIND = "global-state"


@builtin(MANAGER.__enter__)
def enter(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    manager = cx.realize(args[0])
    inside = cx.graph.is_inner or cx.graph.later or cx.graph.packs
    if inside or kwargs or not isinstance(manager, Object) or manager.exists or len(args) != 1:
        raise Break(KIND, "torch.inference_mode")
    wanted = manager.getattr(cx, "mode")
    if not wanted.is_const() or wanted.const() is not True or torch.is_inference_mode_enabled():
        raise Break(KIND, "torch.inference_mode")
    told = cx.frames[-1].here(Break(KIND, "a torch.inference_mode object that leaves the graph"))
    manager.overlay["_inference_mode_context"] = UnknownObject(told)
    before = torch.is_grad_enabled()
    cx.inference.open.append((before, cx.step()))
    if before:
        torch_api.switch(cx, torch._C._set_grad_enabled, False)
    return Const(None)


@builtin(MANAGER.__exit__)
def leave(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    manager = cx.realize(args[0])
    if not cx.inference.open or not isinstance(manager, Object) or manager.exists:
        raise Break(KIND, "the end of a torch.inference_mode block that began outside of the graph")
    before, _ = cx.inference.open.pop()
    if before is not torch.is_grad_enabled():
        torch_api.switch(cx, torch._C._set_grad_enabled, before)
    return Const(None)


@builtin(torch.is_inference_mode_enabled)
def is_on(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(bool(cx.inference.open) or torch.is_inference_mode_enabled())
