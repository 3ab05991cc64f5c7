"""Hooks of modules that a frame registers, and may remove again.

In: `module.register_forward_hook(hook)`, and calls of its handle.
Out: entries in the module's dicts, where the module's call finds them.  Their key is a placeholder for the handle's
real number (`HookNumber`), which generated code takes.
"""

from __future__ import annotations

import torch
from torch.utils.hooks import RemovableHandle

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.recipe import runtime_helpers
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.sequences import Sequence, Tuple
from pycompiler.capture.values.functions import Builtin
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.opaque import HANDLE
from pycompiler.capture.values.weak_references import FIRST, HookDictReference, HookNumber

# callers that hold the handle and do not pass its number on
REGISTER = {
    f.__code__
    for f in (
        torch.nn.Module.register_forward_hook,
        torch.nn.Module.register_forward_pre_hook,
        torch.nn.Module.register_full_backward_hook,
        torch.nn.Module.register_full_backward_pre_hook,
    )
}


@builtin(RemovableHandle.__init__)
def init(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    given = [cx.realize(a) for a in args]
    extra = cx.realize(kwargs.get("extra_dict", Const(None)))
    dicts = [*given[1:], *(map(cx.realize, extra.items) if isinstance(extra, Sequence) else [extra])]
    dicts = [d for d in dicts if not cx.is_none(d)]
    known = len(given) == 2 and isinstance(given[0], Object) and given[0].cls is RemovableHandle and not given[0].exists
    callers = [f.code for f in cx.frames[-1:]]
    if (
        not known
        or not REGISTER.issuperset(callers)
        or not all(isinstance(d, Dict) for d in dicts)
        or cx.graph.is_inner
    ):
        return cx.inline(cx.make(RemovableHandle.__init__), args, kwargs)
    handle, made_at = given[0], cx.step()
    assert isinstance(handle, Object)
    number = FIRST + len({n for n, _, _ in cx.registered})
    first, *others = (HookDictReference(d, made_at) for d in dicts)
    handle.overlay.update(hooks_dict_ref=first, id=HookNumber(number), extra_dict_ref=Tuple([*others]))
    cx.registered += [(number, d, made_at) for d in dicts if isinstance(d, Dict)]
    cx.effects.defer(Builtin(runtime_helpers.skip_handle), [])
    cx.effects.journal[-1].name = HANDLE
    return Const(None)


@builtin(RemovableHandle.remove)
def remove(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    handle = cx.realize(args[0])
    if handle.source is not None:
        raise Break("builtin-call", "the removal of a hook that was registered outside of the graph")
    return cx.inline(cx.make(RemovableHandle.remove), args, kwargs)
