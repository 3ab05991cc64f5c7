"""Kernels that a program registers for ATen operators, which compiled code would bypass.

In: nothing.  Out: the operators with such kernels.  Listeners are called when another kernel is registered.

Example: after ``Library("aten", "IMPL").impl("sin", f, "CPU")``, graphs with ``sin`` run eagerly.  All entries compiled
before are dropped.  Kernels registered by a C++ extension are not seen.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import library
from torch._ops import OpOverload

# Keys of kernels registered by torch itself, which keep the operator's meaning.
_ITS_KEYS = ("Meta", "CUDA", "MPS", "FuncTorchDynamicLayerFrontMode", "PythonTLSSnapshot")
_torchs = {key for key in library._impls if key.endswith(_ITS_KEYS)}
_UNSEEN = ("Autograd", "Composite", "Functionalize", "Functorch", "Python", "ADInplace")
_listeners: list[Callable[[], None]] = []


def _added() -> list[tuple[str, str]]:
    """Operators ("add.Tensor") and dispatch keys of registered kernels; shape functions do not count."""
    keys = [key.split("/") for key in library._impls - _torchs]
    return [(name, key) for space, name, key in keys if space == "aten" and key != "Meta"]


def replaced() -> frozenset[str]:
    """The operators' base names, "sin" for `sin_` and `sin.out`; "*" if a trace may not see them."""
    found = _added()
    hidden = any(key.startswith(_UNSEEN) or _is_composite(name) for name, key in found)
    return frozenset({name.partition(".")[0].removesuffix("_") for name, _ in found} | ({"*"} if hidden else set()))


def is_of_python(op: OpOverload) -> bool:
    """Whether a kernel of the operator is written in Python."""
    space, _, name = op._schema.name.partition("::")
    its = f"{space}/{name}{'.' + op._schema.overload_name if op._schema.overload_name else ''}/"
    return any(key.startswith(its) and not key.endswith("/Meta") for key in library._impls)


def is_replaced(op: OpOverload, names: frozenset[str]) -> bool:
    return "*" in names or op.overloadpacket.__name__.removesuffix("_") in names


def on_register(tell: Callable[[], None]) -> None:
    """Call `tell` whenever a kernel was registered for an ATen operator."""
    _listeners.append(tell)


def _is_composite(name: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CompositeImplicitAutograd"))


def _is_torchs(frame: types.FrameType | None) -> bool:
    """Whether torch registers the kernel; frames of `torch.library` are skipped to find the caller."""
    while frame is not None and frame.f_globals.get("__name__") in ("torch.library", "torch._library", "functools"):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "torch"


def _listen() -> None:
    original = library.Library.impl

    @functools.wraps(original)
    def impl(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.ns != "aten":
            return original(self, *args, **kwargs)  # type: ignore[no-untyped-call]
        before = frozenset(library._impls)
        result = original(self, *args, **kwargs)  # type: ignore[no-untyped-call]
        if _is_torchs(sys._getframe(1)):
            _torchs.update(library._impls - before)
            return result
        for tell in _listeners:
            tell()
        return result

    library.Library.impl = impl  # type: ignore[method-assign]


_listen()
