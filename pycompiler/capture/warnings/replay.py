"""Replay of warnings: generated code raises the frame's warnings after the graph.

This requires that a warning runs no code of the program, and that the frame does not see its traces.  Before the
graph, generated code checks this (`check_only_printed`).  `warnings` is unchanged since its import; it records into a list,
or prints to a CPython stream.  The frame reaches neither that list nor a warning registry.  Otherwise `Unfit`: the
frame runs eagerly.
"""

from __future__ import annotations

import contextlib
import gc
import io
import operator
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from pycompiler.capture.values.attributes import MISSING, instance_dict
from pycompiler.errors import Unfit
from pycompiler.ir import iterator_state
from pycompiler.ir.source import mro_of, namespace_of
from pycompiler.operators.result_strides import in_order
from pycompiler.symbolic.symbols import hint_of
from pycompiler.torch_compat.warning_listener import IN_C, CapturedWarning, Listening

SHOWS = ("showwarning", "_showwarnmsg")
PRINTS = ("_showwarnmsg_impl", "formatwarning", "_formatwarnmsg", "_formatwarnmsg_impl")
"""The functions of `warnings` that run for each warning, and the functions that print it."""
SHOWS_ALL = (*SHOWS, *PRINTS)
BUFFERED, RAW = (io.BufferedWriter, io.BufferedRandom), (io.FileIO, io.BytesIO)
Namespaces = tuple[dict[str, Any], ...]
Line = tuple[str, int]
Messages = list[tuple[str, type[Warning], Line | None]]
"""Messages and categories; for a Python function in the call also the line that each is about."""


def warn(message: str, category: type[Warning], filename: str, lineno: int, namespace: dict[str, Any]) -> None:
    """`warnings.warn`, about this line of the module with this namespace."""
    module, known = namespace.get("__name__", "<string>"), namespace.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, filename, lineno, module, known)


@dataclass(frozen=True)
class TensorLike:
    """A tensor without its memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    device: str

    @staticmethod
    def of(value: Any, kernel: bool = False) -> Any:
        """The stand-ins for a call's arguments; for a `kernel`, with at most two elements per dimension."""
        if isinstance(value, torch.Tensor):
            shape = tuple(map(hint_of, value.shape))
            lies = value if value.layout is torch.strided else torch.empty(shape, device="meta")
            strides = tuple(map(hint_of, lies.stride()))
            if kernel:
                dense = in_order(shape, strides) == strides
                shape = tuple(min(n, 2) for n in shape)
                strides = in_order(shape, strides) if dense else strides
            return TensorLike(shape, strides, value.dtype, value.requires_grad, "cpu" if kernel else "meta")
        return hint_of(value)

    @staticmethod
    def made(value: Any) -> Any:
        if not isinstance(value, TensorLike):
            return value
        with torch.no_grad():
            made = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=value.device)
            made = made.zero_() if value.device == "cpu" else made
        return made.requires_grad_() if value.requires_grad else made


def _mapped(of: Callable[[Any], Any], value: Any) -> Any:
    if type(value) is dict:
        return {k: _mapped(of, v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return (list if isinstance(value, list) else tuple)(_mapped(of, v) for v in value)
    if isinstance(value, slice):
        return slice(_mapped(of, value.start), _mapped(of, value.stop), _mapped(of, value.step))
    return of(value)


@dataclass
class WarningsHeard:
    """The warnings of a call now, in this process, and its warnings on every call, once these are known."""

    now: Messages = field(default_factory=list)
    always: Messages | None = None


@dataclass(frozen=True, eq=False)
class TorchWarning:
    """A call that makes torch warn in C++: on every call, or once per process, which torch counts.

    The call runs on stand-ins before the graph, since the graph may make the same call.  It runs twice: the second
    run gives the warnings of every later call, until torch is set to warn always.
    """

    target: Any
    method: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def is_spent(self) -> bool:
        """Whether the call warns no more, until torch is set to warn always."""
        state = self.told
        return state.always == [] and not state.now

    @property
    def told(self) -> WarningsHeard:
        return self.__dict__.setdefault("_told", WarningsHeard())  # type: ignore[no-any-return]

    @staticmethod
    def of(target: Any, method: bool, args: Any, kwargs: Any, *, kernel: bool = False) -> TorchWarning:
        """The record of a call; `kernel`: only the host's kernel warns, whatever the sizes."""
        like = partial(TensorLike.of, kernel=kernel)
        return TorchWarning(target, method, tuple(_mapped(like, list(args))), _mapped(like, dict(kwargs)))

    def ask(self) -> None:
        state = self.told
        if state.always is None:
            state.now, state.always = self.heard(), self.heard()
        else:
            state.now = self.heard() if torch.is_warn_always_enabled() else state.always

    def heard(self) -> Messages:
        return [(said.message, said.category, _line_inside(said)) for said in self.listen()]

    def listen(self) -> list[CapturedWarning]:
        args, kwargs = _mapped(TensorLike.made, self.args), _mapped(TensorLike.made, self.kwargs)
        with Listening() as heard, torch._C.DisableTorchFunction(), contextlib.suppress(Exception):
            if self.method:
                getattr(args[0], self.target)(*args[1:], **kwargs)
            else:
                self.target(*args, **kwargs)
        return [said for said in heard if IN_C in said.message]

    def tell(self, filename: str, lineno: int, namespace: dict[str, Any]) -> None:
        """Raise the call's warnings about this line, once; all warnings of a C call are about the calling line."""
        state, lines = self.told, (None, (filename, lineno))
        told, state.now = state.now, [said for said in state.now if said[2] not in lines]
        for text, category, at in told:
            if at in lines:
                warn(text, category, filename, lineno, namespace)


def _line_inside(said: CapturedWarning) -> Line | None:
    """The line inside the called Python code that a warning is about, of the program or of torch; otherwise None."""
    inside = said.inside > 0 and not said.frames[0].module.startswith("pycompiler.")
    return (said.filename, said.lineno) if inside else None


def _short_signal() -> None:
    spectrum, window = torch.ones(3, 2, dtype=torch.complex64, device="cpu"), torch.ones(4, device="cpu")
    torch._C._VariableFunctions.istft(spectrum, 4, window=window, length=9)  # type: ignore[attr-defined]


def _no_window() -> None:
    torch._C._VariableFunctions.istft(torch.ones(3, 2, dtype=torch.complex64, device="cpu"), 4)  # type: ignore[attr-defined]


def _no_leaf() -> None:
    (torch.ones((), requires_grad=True, device="cpu") * 2).grad  # noqa: B018


def _tensor_of_tensor() -> None:
    torch.tensor(torch.ones((), device="cpu"))


ONCE: dict[str, Callable[[], None]] = {
    "a short signal": _short_signal, "no window": _no_window, "the gradient of no leaf": _no_leaf,
    "a tensor of a tensor": _tensor_of_tensor,
}  # fmt: skip
"""Calls that make torch warn."""


def check_only_printed(
    categories: tuple[type[Warning], ...], namespaces: Namespaces, calls: tuple[TorchWarning, ...], *looked_at: Any
) -> None:
    """Raise `Unfit` if a warning of these classes would do more than be printed.

    This includes a change of an object that the frame reaches.
    `namespaces`: the modules that warn.  Then torch's warnings for these calls are collected.
    """
    ours = vars(warnings)
    log = getattr(ours.get("_showwarnmsg_impl"), "__self__", None)
    listed = type(log) is list and ours["_showwarnmsg_impl"] == log.append
    if not _are_originals(SHOWS if listed else SHOWS_ALL) or not (listed or _only_writes(sys.stderr)):
        raise Unfit("a warning that code of the program would show")
    registries = [found for n in namespaces if (found := n.get("__warningregistry__")) is not None]
    changed = [*([log] if listed else ()), ours.get("onceregistry"), *namespaces, *registries]
    if looked_at and _reach(looked_at, changed):
        raise Unfit("a warning that changes an object of the program")
    if (
        any(map(_may_raise, categories))
        or ours.get("defaultaction") == "error"
        or getattr(sys.flags, "context_aware_warnings", False)
    ):
        raise Unfit("a warning that would be raised as an error")
    for call in calls:
        call.ask()


def check_torch_only(
    categories: tuple[type[Warning], ...], namespaces: Namespaces, calls: tuple[TorchWarning, ...], *looked_at: Any
) -> None:
    """The same, if only torch warns: mostly it has done so already, once per process."""
    if torch.is_warn_always_enabled() or not all(call.is_spent for call in calls):
        check_only_printed(categories, namespaces, calls, *looked_at)


def _may_raise(category: type[Warning]) -> bool:
    """Whether the first matching filter may turn a warning of this class into an error."""
    for action, text, asked, module, lineno in warnings.filters:
        if issubclass(category, asked):
            if action == "error":
                return True
            if text is None and module is None and lineno == 0:
                return False
    return False


_originals: dict[tuple[str, ...], tuple[Any, ...]] = {}  # functions found to be CPython's


def _are_originals(names: tuple[str, ...]) -> bool:
    found = tuple(map(vars(warnings).get, names))
    if all(map(operator.is_, found, _originals.get(names, (MISSING,)))):
        return True
    if all(map(_is_original, names, found)):
        _originals[names] = found
        return True
    return False


def _is_original(name: str, found: Any) -> bool:
    return isinstance(found, types.FunctionType) and found.__globals__ is vars(warnings) and found.__name__ == name


def _only_writes(stream: Any) -> bool:
    """Whether `stream.write` is CPython's, down to the file or the bytes."""
    if stream is None or type(stream) is io.StringIO:
        return stream is None or not stream.closed
    classes = mro_of(type(stream))
    if io.TextIOWrapper not in classes or "write" in (instance_dict(stream) or ()):
        return False
    own = classes[: classes.index(io.TextIOWrapper)]
    if any({"write", "__getattribute__"} & namespace_of(c).keys() for c in own):
        return False
    buffer = namespace_of(io.TextIOWrapper)["buffer"].__get__(stream)
    raw = buffer.raw if type(buffer) in BUFFERED else buffer
    return type(raw) in RAW and not raw.closed


def _reach(values: tuple[Any, ...], changed: list[Any]) -> bool:
    """Whether one of `values` is one of these objects, or an iterator that refers to one."""
    todo, places, seen = [*values], {*map(id, changed)}, set()
    while todo:
        value = todo.pop()
        if id(value) in places:
            return True
        if type(value) in (tuple, *iterator_state.READABLE, *iterator_state.COMPOSED) and id(value) not in seen:
            seen.add(id(value))
            todo += gc.get_referents(value)
    return False
