"""Generated code shows what the frame warns of after the graph, where showing runs no code of the program's, and nobody looks.

Before the graph it asks (`only_shown`): `warnings` is as it was imported, and it records into a list, or prints to a stream of
CPython's own; the frame reaches neither that list nor a registry of warnings.  Else `Unfit`: the frame runs eagerly.
"""

from __future__ import annotations

import functools
import gc
import io
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture.values.attributes import instance_dict
from pycompiler.errors import Unfit
from pycompiler.ir import begun
from pycompiler.ir.source import mro_of, namespace_of

SHOWS = ("showwarning", "_showwarnmsg")
PRINTS = ("_showwarnmsg_impl", "formatwarning", "_formatwarnmsg", "_formatwarnmsg_impl")
"""The functions of `warnings` that run to show one, and those that run to print it."""
BUFFERED, RAW = (io.BufferedWriter, io.BufferedRandom), (io.FileIO, io.BytesIO)
Namespaces = tuple[dict[str, Any], ...]


def warn(message: str, category: type[Warning], filename: str, lineno: int, namespace: dict[str, Any]) -> None:
    """`warnings.warn`, about this line of the module with this namespace."""
    module, known = namespace.get("__name__", "<string>"), namespace.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, filename, lineno, module, known)


def _short_signal() -> Callable[[], Any]:
    spectrum, window = torch.ones(3, 2, dtype=torch.complex64, device="cpu"), torch.ones(4, device="cpu")
    return functools.partial(torch._C._VariableFunctions.istft, spectrum, 4, window=window, length=9)  # type: ignore[attr-defined]


ONCE = {"a short signal": _short_signal}
"""What makes the calls by which torch warns, of what it warns of once a process."""


def warn_by(name: str, filename: str, lineno: int, namespace: dict[str, Any]) -> None:
    """What torch warns of in C++, about this line, since its frame calls it; modes of the program's do not see the call."""
    made = compile("call()", filename, "eval")
    with torch._C.DisableTorchFunction():
        eval(made.replace(co_firstlineno=lineno), namespace, {"call": ONCE[name]()})


def only_shown(categories: tuple[type[Warning], ...], namespaces: Namespaces, *looked_at: Any) -> None:
    """Raises `Unfit` when a warning of these classes, of modules with these namespaces, would do more than be shown, or change
    what the frame reaches."""
    log = getattr(vars(warnings).get("_showwarnmsg_impl"), "__self__", None)
    listed = type(log) is list and vars(warnings)["_showwarnmsg_impl"] == log.append
    if not all(map(_is_original, SHOWS if listed else (*SHOWS, *PRINTS))) or not (listed or _only_writes(sys.stderr)):
        raise Unfit("a warning that the program shows")
    registries = [found for n in namespaces if (found := n.get("__warningregistry__")) is not None]
    changed = [*([log] if listed else ()), vars(warnings).get("onceregistry"), *namespaces, *registries]
    if _reach(looked_at, changed):
        raise Unfit("a warning that the program sees")
    actions = [vars(warnings).get("defaultaction")]
    actions += [action for action, _, asked, *_ in warnings.filters if any(issubclass(c, asked) for c in categories)]
    if "error" in actions or getattr(sys.flags, "context_aware_warnings", False):
        raise Unfit("a warning that is an error")


def _is_original(name: str) -> bool:
    found = vars(warnings).get(name)
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
