"""Generated code shows what the frame warns of after the graph, where showing runs no code of the program's, and nobody looks.

Before the graph it asks (`only_shown`): `warnings` is as it was imported, and it records into a list, or prints to a stream of
CPython's own; the frame reaches neither that list nor a registry of warnings.  Else `Unfit`: the frame runs eagerly.
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
from pycompiler.ir import begun
from pycompiler.ir.heard import IN_C, Heard, Listening
from pycompiler.ir.source import mro_of, namespace_of
from pycompiler.ir.strides import in_order
from pycompiler.ir.symbols import hint_of

SHOWS = ("showwarning", "_showwarnmsg")
PRINTS = ("_showwarnmsg_impl", "formatwarning", "_formatwarnmsg", "_formatwarnmsg_impl")
"""The functions of `warnings` that run to show one, and those that run to print it."""
SHOWS_ALL = (*SHOWS, *PRINTS)
BUFFERED, RAW = (io.BufferedWriter, io.BufferedRandom), (io.FileIO, io.BytesIO)
Namespaces = tuple[dict[str, Any], ...]
Line = tuple[str, int]
Said = list[tuple[str, type[Warning], Line | None]]
"""Texts, and of a call of Python's the line of it that each is about."""


def warn(message: str, category: type[Warning], filename: str, lineno: int, namespace: dict[str, Any]) -> None:
    """`warnings.warn`, about this line of the module with this namespace."""
    module, known = namespace.get("__name__", "<string>"), namespace.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, filename, lineno, module, known)


@dataclass(frozen=True)
class Like:
    """A tensor without its memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    device: str

    @staticmethod
    def of(value: Any, kernel: bool = False) -> Any:
        """The same of what a call is given; of a `kernel`, with no more than two elements a dimension."""
        if isinstance(value, torch.Tensor):
            shape = tuple(map(hint_of, value.shape))
            lies = value if value.layout is torch.strided else torch.empty(shape, device="meta")
            strides = tuple(map(hint_of, lies.stride()))
            if kernel:
                dense = in_order(shape, strides) == strides
                shape = tuple(min(n, 2) for n in shape)
                strides = in_order(shape, strides) if dense else strides
            return Like(shape, strides, value.dtype, value.requires_grad, "cpu" if kernel else "meta")
        return hint_of(value)

    @staticmethod
    def made(value: Any) -> Any:
        if not isinstance(value, Like):
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
class Told:
    """What a call says now, in this process, and each time, once that is known."""

    now: Said = field(default_factory=list)
    always: Said | None = None


@dataclass(frozen=True, eq=False)
class OfTorch:
    """A call of which torch warns in C++: each time, or once a process, which torch counts.

    It is asked ahead of the graph, which may make the same call.  What it says then it would say again if it said it twice; until
    torch is told to warn always, that is all.
    """

    target: Any
    method: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def is_spent(self) -> bool:
        """Whether it says nothing any more, until torch is told to warn always."""
        state = self.told
        return state.always == [] and not state.now

    @property
    def told(self) -> Told:
        return self.__dict__.setdefault("_told", Told())  # type: ignore[no-any-return]

    @staticmethod
    def of(target: Any, method: bool, args: Any, kwargs: Any, *, kernel: bool = False) -> OfTorch:
        """`kernel`: what warns is no more than the kernel of the host, whatever the sizes."""
        like = partial(Like.of, kernel=kernel)
        return OfTorch(target, method, tuple(_mapped(like, list(args))), _mapped(like, dict(kwargs)))

    def ask(self) -> None:
        state = self.told
        if state.always is None:
            state.now, state.always = self.heard(), self.heard()
        else:
            state.now = self.heard() if torch.is_warn_always_enabled() else state.always

    def heard(self) -> Said:
        return [(said.message, said.category, _line_inside(said)) for said in self.listen()]

    def listen(self) -> list[Heard]:
        args, kwargs = _mapped(Like.made, self.args), _mapped(Like.made, self.kwargs)
        with Listening() as heard, torch._C.DisableTorchFunction(), contextlib.suppress(Exception):
            if self.method:
                getattr(args[0], self.target)(*args[1:], **kwargs)
            else:
                self.target(*args, **kwargs)
        return [said for said in heard if IN_C in said.message]

    def tell(self, filename: str, lineno: int, namespace: dict[str, Any]) -> None:
        """What it says about this line, once; of a call in C all is about the line that calls."""
        state, lines = self.told, (None, (filename, lineno))
        told, state.now = state.now, [said for said in state.now if said[2] not in lines]
        for text, category, at in told:
            if at in lines:
                warn(text, category, filename, lineno, namespace)


def _line_inside(said: Heard) -> Line | None:
    """The line of the program's or of torch's that it is about, if it is one of what was called."""
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
"""Calls of which torch warns."""


def only_shown(
    categories: tuple[type[Warning], ...], namespaces: Namespaces, calls: tuple[OfTorch, ...], *looked_at: Any
) -> None:
    """Raises `Unfit` when a warning of these classes, of modules with these namespaces, would do more than be shown, or change
    what the frame reaches.  Then torch is asked what it says of these calls."""
    ours = vars(warnings)
    log = getattr(ours.get("_showwarnmsg_impl"), "__self__", None)
    listed = type(log) is list and ours["_showwarnmsg_impl"] == log.append
    if not _are_originals(SHOWS if listed else SHOWS_ALL) or not (listed or _only_writes(sys.stderr)):
        raise Unfit("a warning that the program shows")
    registries = [found for n in namespaces if (found := n.get("__warningregistry__")) is not None]
    changed = [*([log] if listed else ()), ours.get("onceregistry"), *namespaces, *registries]
    if looked_at and _reach(looked_at, changed):
        raise Unfit("a warning that the program sees")
    if (
        any(map(_may_raise, categories))
        or ours.get("defaultaction") == "error"
        or getattr(sys.flags, "context_aware_warnings", False)
    ):
        raise Unfit("a warning that is an error")
    for call in calls:
        call.ask()


def only_told(
    categories: tuple[type[Warning], ...], namespaces: Namespaces, calls: tuple[OfTorch, ...], *looked_at: Any
) -> None:
    """The same where torch warns of all: mostly it has done so, once a process."""
    if torch.is_warn_always_enabled() or not all(call.is_spent for call in calls):
        only_shown(categories, namespaces, calls, *looked_at)


def _may_raise(category: type[Warning]) -> bool:
    """Whether the filter that comes first may make an error of a warning of this class."""
    for action, text, asked, module, lineno in warnings.filters:
        if issubclass(category, asked):
            if action == "error":
                return True
            if text is None and module is None and lineno == 0:
                return False
    return False


_originals: dict[tuple[str, ...], tuple[Any, ...]] = {}  # what was found to be CPython's


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
    """Whether one of `values` is one of those objects, or an iterator over it, or that asks one."""
    todo, places, seen = [*values], {*map(id, changed)}, set()
    while todo:
        value = todo.pop()
        if id(value) in places:
            return True
        if type(value) in (tuple, *begun.TELLING, *begun.ASKING) and id(value) not in seen:
            seen.add(id(value))
            todo += gc.get_referents(value)
    return False
