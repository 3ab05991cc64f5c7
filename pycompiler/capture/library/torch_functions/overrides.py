"""Handlers of functions around `__torch_function__`: queries, function modes, and switching both off.

Out: answers from the program's own state (`capture/interpreter/torch_function.py`).  The thread's state follows where
the graph ends (`capture/interpreter/frame.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import overrides

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin, takes_nothing
from pycompiler.capture.interpreter.torch_function import State
from pycompiler.capture.library.gradients import parameters
from pycompiler.capture.semantics import polyfills
from pycompiler.capture.semantics.signatures import constant_arguments
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.sequences import Tuple
from pycompiler.capture.values.functions import Builtin
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.tensor import Tensor, as_subclass


@builtin(overrides.has_torch_function)
def has_torch_function(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(cx.functions.asks_one_of(list(cx.elements(args[0]))))


@builtin(overrides.has_torch_function_unary, overrides.has_torch_function_variadic)
def has_torch_function_variadic(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(cx.functions.asks_one_of(args))


@builtin(overrides.handle_torch_function)
def handle_torch_function(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    func, relevant, *given = args
    values = [
        v for v in cx.elements(relevant) if isinstance(v, Tensor) or hasattr(v.python_type(), "__torch_function__")
    ]
    asked: list[Value] = []
    for value in values if cx.functions.state == State.ENABLED else []:
        cls = value.python_type()
        if cls.__torch_function__ is torch._C._disabled_torch_function_impl:  # type: ignore[attr-defined]
            continue
        if all(cls is not v.python_type() for v in asked):
            place = next((i for i, v in enumerate(asked) if issubclass(cls, v.python_type())), len(asked))
            asked.insert(place, value)
    call = [Tuple(given), Dict({cx.key(Const(k)): v for k, v in kwargs.items()})]
    return cx.functions.tell(func, [v.python_type() for v in asked], asked, call)


@builtin(torch._C._disabled_torch_function_impl)
def disabled(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`super().__torch_function__` of a subclass of Parameter."""
    names = ("func", "types", "args", "kwargs")
    bound = {"args": Tuple([]), "kwargs": Const(None), **dict(zip(names, args, strict=False)), **kwargs}
    given = bound["kwargs"]
    named = {k.const(): v for k, v in given.pairs(cx)} if isinstance(given, Dict) else {}
    return cx.functions.off(bound["func"], list(cx.elements(bound["args"])), named)


@builtin(overrides.get_default_nowrap_functions)
@takes_nothing
def nowrap(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return cx.make(overrides.get_default_nowrap_functions())


# modes --------------------------------------------------------------------------------------------------------------------
@builtin(torch._C._push_on_torch_function_stack)
def push(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not isinstance(args[0], Object):
        raise Break("global-state", f"{args[0].describe()} as a function mode")
    cx.effects.allow(None, "the stack of function modes")
    cx.functions.modes.append(args[0])
    return Const(None)


@builtin(torch._C._pop_torch_function_stack)
def pop(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not cx.functions.modes:
        raise Break("global-state", "the end of a function mode that was entered outside of the graph")
    cx.effects.allow(None, "the stack of function modes")
    return cx.functions.modes.pop()


@builtin(torch._C._len_torch_function_stack)
def count(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(len(cx.functions.modes) + cx.functions.below)


@builtin(torch._C._get_function_stack_at)
def mode_at(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    place: int = args[0].const() - cx.functions.below
    if not 0 <= place < len(cx.functions.modes):
        raise Break("global-state", "a read of a function mode that was entered outside of the graph")
    return cx.functions.modes[place]


# switches -----------------------------------------------------------------------------------------------------------------
@builtin(torch._C._is_torch_function_mode_enabled)
def modes_enabled(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const((bool(cx.functions.modes) or cx.functions.below > 0) and cx.functions.state != State.ALL_DISABLED)


@builtin(torch._C._is_torch_function_enabled)
def enabled(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(cx.functions.state == State.ENABLED)


@builtin(torch._C._is_torch_function_all_disabled)
def all_disabled(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(cx.functions.state == State.ALL_DISABLED)


@builtin(polyfills.turn_off)
def turn_off(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    before = cx.functions.state
    if cx.truth(args[0]):
        cx.functions.state = State.ALL_DISABLED
    elif before == State.ENABLED:
        cx.functions.state = State.SUBCLASSES_DISABLED
    return cx.make(before)


@builtin(torch._C._get_torch_function_state)  # type: ignore[attr-defined]
@takes_nothing
def get_state(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return cx.make(cx.functions.state)


@builtin(polyfills.turn_back, torch._C._set_torch_function_state)  # type: ignore[attr-defined]
def set_state(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    state: Any = args[0].const() if args[0].is_const() else None
    if not isinstance(state, State):
        raise Break("global-state", f"_set_torch_function_state({args[0].describe()})")
    cx.effects.allow(None, "the state of __torch_function__")
    cx.functions.state = state
    return Const(None)


# subclasses ---------------------------------------------------------------------------------------------------------------
@builtin(torch.Tensor.__new__)
def make_tensor(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`cls(tensor)`: an alias, without a call of any `__torch_function__`."""
    if len(args) != 2 or kwargs or not isinstance(args[0], Class) or not isinstance(args[1], Tensor):
        raise Break("builtin-call", f"Tensor.__new__({', '.join(a.describe() for a in args)})")
    return as_subclass(cx, [args[1], args[0]], {})


@builtin(torch.Tensor._make_subclass)
@constant_arguments("as the flag requires_grad")
def make_subclass(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    trains = len(args) == 3 and not kwargs and args[2].is_const() and args[2].const() is True
    if trains and args[0].const() is torch.nn.Parameter and isinstance(args[1], Tensor):
        return parameters.make(cx, args[1])
    plain = len(args) == 2 and not kwargs or (len(args) == 3 and args[2].is_const() and args[2].const() is False)
    if not plain or not isinstance(args[0], Class) or not isinstance(args[1], Tensor):
        raise Break("tensor-subclass", f"_make_subclass({', '.join(a.describe() for a in args)})")
    detached = cx.call(Builtin(torch.Tensor.detach), [args[1]], {})
    return as_subclass(cx, [detached, args[0]], {})
