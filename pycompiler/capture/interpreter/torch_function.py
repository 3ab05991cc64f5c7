"""Dispatch to `__torch_function__` of function modes, tensor subclasses and other classes.

In: a call that the program makes, with values as arguments.
Out: the result of the program's own `__torch_function__`, inlined.  None if no `__torch_function__` applies; the call
then goes into the graph.
Example: under `with Mode():` of the program, ``cx.functions.ask(torch.relu, [x], {})`` inlines
`Mode.__torch_function__`.

Torch decides which function it passes on, with which types and arguments.  This module does not reimplement that
rule.  The call runs once on stand-ins: empty tensors of generated classes.  Torch then reports these facts instead of
computing.  A Python function of torch does its own dispatch (`torch.overrides`).  So it is inlined where a
`__torch_function__` may apply.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.sequences import List, Sequence, Slice, Tuple
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir.guards import mode_at, skips_next, transform_levels
from pycompiler.ir.source import const_source

State = torch._C._TorchFunctionState  # type: ignore[attr-defined]
read_state, write_state = torch._C._get_torch_function_state, torch._C._set_torch_function_state  # type: ignore[attr-defined]


class _DispatchReached(BaseException):
    """Ends a call on stand-ins; holds the arguments that `__torch_function__` would get."""

    def __init__(self, func: Any, kinds: tuple[type, ...], args: Any = (), kwargs: Any = None) -> None:
        self.func, self.kinds, self.call = func, kinds, (args,) if kwargs is None else (args, kwargs)


class _ProbeMode(TorchFunctionMode):
    def __torch_function__(self, *call: Any, **kwargs: Any) -> Any:
        raise _DispatchReached(*call, **kwargs)


def _raise_reached(cls: type, *call: Any, **kwargs: Any) -> Any:
    raise _DispatchReached(*call, **kwargs)


class _ValueStandIns:
    """Stand-ins for values, and the mapping back to the values."""

    def __init__(self, cx: Capture) -> None:
        self.cx = cx
        self.values: dict[int, Value] = {}
        self.classes: dict[
            type, type
        ] = {}  # class → a stand-in class whose `__torch_function__` raises `_DispatchReached`
        self.held: list[Any] = []

    def of(self, value: Value) -> Any:
        """The stand-in for `value`."""
        value = self.cx.realize(value, "as an argument that __torch_function__ may see")
        if isinstance(value, Const):
            return value.const()
        made: Any
        if isinstance(value, Tensor):
            made = torch.empty(0)
            if value.overrides:
                made = made.as_subclass(self.like(value.cls))
        elif has_override(value):
            made = self.like(value.python_type())()
        elif isinstance(value, Sequence):
            items = [self.of(v) for v in value.items]
            made = items if isinstance(value, List) else tuple(items)
        elif isinstance(value, Dict):
            made = {k.const(): self.of(v) for k, v in value.pairs(self.cx)}
        elif isinstance(value, Slice):
            made = slice(*map(self.of, value.parts))
        elif value.is_const():
            made = value.const()
        else:
            raise Break(
                "unsupported-operation", f"{value.describe()} among arguments that __torch_function__ may handle"
            )
        self.values[id(made)] = value
        self.held.append(made)
        return made

    def like(self, cls: type) -> type:
        """A stand-in for `cls`, with the same relation to other classes. Torch's own classes stand for themselves."""
        if cls in (object, torch.Tensor, torch.nn.Parameter):
            return cls
        if cls not in self.classes:
            kept = [b for b in cls.__bases__ if issubclass(b, torch.Tensor) or has_hook(b)]
            bases = tuple(dict.fromkeys(map(self.like, kept))) or (object,)
            self.classes[cls] = type(cls.__name__, bases, {"__torch_function__": classmethod(_raise_reached)})
        return self.classes[cls]

    def back(self, made: Any) -> Value:
        """The value that a stand-in stands for, or the value of a container of stand-ins."""
        known = self.values.get(id(made))
        if known is not None:
            return known
        if type(made) in (tuple, list):
            return self.cx.sequence([self.back(v) for v in made], type(made))
        if type(made) is dict:
            return Dict({self.cx.key(Const(k)): self.back(v) for k, v in made.items()})
        if isinstance(made, torch.Tensor):
            raise Break(
                "unsupported-operation", "a tensor that torch created among the arguments of __torch_function__"
            )
        return self.cx.make(made)

    def real(self, cls: type) -> type:
        return next((real for real, made in self.classes.items() if made is cls), cls)


def has_hook(cls: type) -> bool:
    """Whether torch calls `__torch_function__` of instances of a class (other than plain tensors)."""
    hook = getattr(cls, "__torch_function__", None)
    return hook is not None and hook is not torch._C._disabled_torch_function_impl


def has_override(value: Value) -> bool:
    if isinstance(value, Tensor):
        return value.overrides
    return isinstance(value, Object) and has_hook(value.cls) and not issubclass(value.cls, TorchFunctionMode)


STATES: dict[str, Callable[[], Any]] = {
    "skips": skips_next,
    "levels": transform_levels,
    "profiled": torch.autograd._profiler_enabled,  # type: ignore[attr-defined]
}


class ThreadAttributes:
    """Thread state around a call, as attributes that guards read.

    ``at_0``: the outermost function mode of the thread.  ``skips``: `skips_next`.  ``levels``: the transforms of
    torch.func.  ``profiled``: whether a profiler is on.
    """

    def __getattr__(self, name: str) -> Any:
        if name in STATES:
            return STATES[name]()
        word, _, place = name.partition("_")
        if word != "at" or int(place) >= torch._C._len_torch_function_stack():
            raise AttributeError(name)
        return mode_at(int(place))


STACK = ThreadAttributes()


class TorchFunctionState:
    """Function modes of the program, innermost last, and whether `__torch_function__` is on."""

    def __init__(self, cx: Capture, outside: list[Any]) -> None:
        self.cx = cx
        base = torch._C._len_torch_function_stack()
        sources = [const_source(STACK).attr(f"at_{base + i}") for i in range(len(outside))]
        self.modes = [cx.wrap(mode, source) for mode, source in zip(outside, sources, strict=True)]
        self.below = torch._C._len_torch_function_stack()  # a default device is a function mode of torch
        self.state = read_state()
        self.begun = (self.state, tuple(self.modes))

    # questions ------------------------------------------------------------------------------------------------
    def now(self) -> tuple[Any, tuple[Value, ...]]:
        """The state and the modes."""
        return self.state, tuple(self.modes)

    def modes_around(self) -> bool:
        """Whether a mode is on when guards are evaluated."""
        return bool(self.begun[1])

    def is_plain(self) -> bool:
        """Whether no mode is on at the frame's start and end, and the state did not change."""
        return self.now() == self.begun and not self.modes

    def modes_on(self) -> bool:
        return bool(self.modes) and self.state != State.ALL_DISABLED

    def overriding(self, values: Iterator[Value] | list[Value]) -> list[Value]:
        """The values whose `__torch_function__` applies, also from inside sequences.

        Each class appears once: subclasses first, then in order.
        """
        if self.state != State.ENABLED:
            return []
        found: list[Value] = []
        for value in self._flat(values):
            cls = value.python_type() if has_override(value) else None
            if cls is not None and all(cls is not v.python_type() for v in found):
                place = next((i for i, v in enumerate(found) if issubclass(cls, v.python_type())), len(found))
                found.insert(place, value)
        return found

    def _flat(self, values: Iterator[Value] | list[Value]) -> Iterator[Value]:
        for value in values:
            value = self.cx.realize(value)
            if isinstance(value, Sequence):
                yield from self._flat(value.items)
            elif isinstance(value, (Tensor, Object)):
                yield value

    def concerns(self, args: list[Value], kwargs: dict[str, Value]) -> bool:
        """Whether a `__torch_function__` may apply to a call with these arguments."""
        return self.modes_on() or bool(self.overriding([*args, *kwargs.values()]))

    def asks_one_of(self, values: list[Value]) -> bool:
        """`has_torch_function(values)`: unlike a call, it does not read into sequences of values."""
        found = self.state == State.ENABLED and any(has_override(self.cx.realize(v)) for v in values)
        return (self.modes_on() or found) and self._asks()

    def _asks(self) -> bool:
        """Record that `__torch_function__` dispatch is assumed to be on: frames that begin while torch skips it run
        eagerly."""
        self.cx.wrap(False, const_source(STACK).attr("skips")).const()
        return True

    def inside_concerns(self, values: list[Value]) -> bool:
        """Whether operations of a function on these values, or on their contents, may reach a `__torch_function__`."""
        todo = [self.cx.realize(v) for v in values]
        if self.modes_on() or self.overriding(todo):
            return True
        inner: list[Value] = []
        for value in todo:
            if isinstance(value, Sequence):
                inner += value.items
            elif isinstance(value, Dict):
                inner += value.entries.values()
        return bool(inner) and self.inside_concerns(inner)

    # calls ----------------------------------------------------------------------------------------------------
    def ask(self, run: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        """The result of `run(*args, **kwargs)` if a `__torch_function__` applies, else None."""
        if not self.concerns(args, kwargs):
            return None
        copies = _ValueStandIns(self.cx)
        seen = self._look(run, [copies.of(a) for a in args], {k: copies.of(a) for k, a in kwargs.items()})
        if seen is None:
            return None
        func = self.cx.make(seen.func)
        kinds = [copies.real(cls) for cls in seen.kinds]
        asked = self.overriding([*args, *kwargs.values()])
        return self.tell(
            func, kinds, [v for v in asked if v.python_type() in kinds], [copies.back(v) for v in seen.call]
        )

    def _look(self, run: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> _DispatchReached | None:
        before = read_state()
        modes = [_ProbeMode()] if self.modes_on() else []
        for mode in modes:
            torch._C._push_on_torch_function_stack(mode)
        write_state(self.state)
        try:
            # torch reports no keywords and empty keywords alike
            run(*args, **kwargs) if kwargs or self.cx.spread else run(*args)
        except _DispatchReached as seen:
            return seen.with_traceback(None)  # its caller would hold itself
        except TypeError:  # wrong arguments: the call itself raises the error
            return None
        except Exception as e:  # the function used the stand-ins before torch dispatched
            raise Break(
                "tensor-subclass", f"{run!r} raises {type(e).__name__} before the dispatch to __torch_function__"
            ) from e
        finally:
            write_state(before)
            for _ in modes:
                torch._C._pop_torch_function_stack()
        return None

    def tell(self, func: Value, kinds: list[type], asked: list[Value], call: list[Value]) -> Value:
        """Call the innermost mode, which is off the stack meanwhile, then the classes' hooks, until one returns a
        result."""
        self._asks()
        given = [func, Tuple([self.cx.make(cls) for cls in kinds]), *call]
        if self.modes_on():
            mode = self.modes.pop()
            try:
                result = self._call_hook(mode, given)
            finally:
                self.modes.append(mode)
            if result is not None:
                return result
        for value in asked:
            result = self._call_hook(value, given)
            if result is not None:
                return result
        raise Break("tensor-subclass", f"each __torch_function__ returns NotImplemented for {func.describe()}")

    def _call_hook(self, owner: Value, given: list[Value]) -> Value | None:
        """The result of a hook; None for NotImplemented."""
        self.cx.direct = False
        result = self.cx.call(owner.getattr(self.cx, "__torch_function__"), list(given), {})
        return None if isinstance(result, Const) and result.value is NotImplemented else result

    def off(self, func: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A call with `__torch_function__` of subclasses turned off."""
        before = self.state
        if before == State.ENABLED:
            self.state = State.SUBCLASSES_DISABLED
        try:
            return self.cx.call(func, args, kwargs)
        finally:
            self.state = before


def tensor_descriptor(fn: Any) -> tuple[str, str] | None:
    """("__get__" or "__set__", name) if `fn` is ``torch.Tensor.<name>.__get__`` or ``__set__``."""
    if isinstance(fn, types.MethodWrapperType) and fn.__name__ in ("__get__", "__set__"):
        owner = fn.__self__
        if isinstance(owner, types.GetSetDescriptorType) and issubclass(torch.Tensor, owner.__objclass__):
            return fn.__name__, owner.__name__
    return None
