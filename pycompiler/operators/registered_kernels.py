"""Kernels that a program registers for ATen's operators, in whose place compiled code would run its own.

In: nothing. Out: which operators have one; whoever wants to is told when another one comes.
Example: after ``Library("aten", "IMPL").impl("sin", f, "CPU")`` graphs with ``sin`` run eagerly, and no entry is left that
was compiled before. (What a C++ extension registers is not seen.)
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

# Torch itself registers some, whose meaning is that of the operator.
_ITS_KEYS = ("Meta", "CUDA", "MPS", "FuncTorchDynamicLayerFrontMode", "PythonTLSSnapshot")
_torchs = {key for key in library._impls if key.endswith(_ITS_KEYS)}
_UNSEEN = ("Autograd", "Composite", "Functionalize", "Functorch", "Python", "ADInplace")
_listeners: list[Callable[[], None]] = []


def _added() -> list[tuple[str, str]]:
    """Operators ("add.Tensor") and dispatch keys; what shapes are made of does not count."""
    keys = [key.split("/") for key in library._impls - _torchs]
    return [(name, key) for space, name, key in keys if space == "aten" and key != "Meta"]


def replaced() -> frozenset[str]:
    """The operators' base names, "sin" for `sin_` and `sin.out`; "*" where a trace may not meet them."""
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
    """Calls `tell` whenever a kernel has been registered for an operator of ATen."""
    _listeners.append(tell)


def _is_composite(name: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CompositeImplicitAutograd"))


def _is_torchs(frame: types.FrameType | None) -> bool:
    """Whether torch calls: of `torch.library` it is the caller that counts."""
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
