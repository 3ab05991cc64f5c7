"""Shape functions without sympy: torch's import it, half a second of a first call, to ask whether a size is symbolic.

In: nothing.  Out: `without_sympy()`; the functions that torch's shape functions and decompositions call are the same, but
import `plain_numbers.py` (and `plain_sources.py`) where they imported what brings sympy (and the peer): their code is replaced,
since wrappers, tables and C++ hold the functions.  What imports sympy by name is a copy that finds it where it asks it something.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any, cast

import torch

from pycompiler.ir import plain_numbers, plain_sources
from pycompiler.ir.plain_numbers import SHAPES
from pycompiler.ir.plain_numbers import is_idle as is_idle

_PACKAGES = ("_decomp", "_refs", "_subclasses", "_prims", "_prims_common", "_meta_registrations", "_utils")
_COPIED = ("torch", "torch._prims_common", "torch._prims_common.wrappers", "torch._refs", "torch._meta_registrations",
           "torch._decomp.decompositions", "torch._decomp.decompositions_for_rng", "torch._subclasses.fake_tensor")  # fmt: skip
_INSTEAD = {SHAPES: plain_numbers.__name__, "torch.utils._sympy.functions": plain_numbers.__name__,
            "torch._dynamo.source": plain_sources.__name__}  # fmt: skip
_EMPTY = types.CellType()


@functools.cache
def without_sympy() -> None:
    for fn in functions_of_torch():
        if (code := redirected(fn.__code__)) is not fn.__code__:
            fn.__code__ = code
    _copy_what_imports_sympy()


def functions_of_torch() -> Iterator[types.FunctionType]:
    """Those of its shape functions, in whatever wrappers."""
    spaces: list[Any] = [
        m for n, m in list(sys.modules.items()) if n.startswith("torch._") and n.split(".")[1] in _PACKAGES
    ]
    spaces.append(torch)
    pending = [v for space in spaces for v in vars(space).values() if isinstance(v, (types.FunctionType, type))]
    pending += cast("Any", torch._decomp.global_decomposition_table["meta"].values())
    seen: set[int] = set()
    while pending:
        found: Any = pending.pop()
        if id(found) in seen or not str(getattr(found, "__module__", "")).startswith("torch"):
            continue
        seen.add(id(found))
        if isinstance(found, types.FunctionType):
            yield found
            held = [c.cell_contents for c in found.__closure__ or () if c != _EMPTY]
        else:
            held = list(vars(found).values()) if isinstance(found, type) else []
        pending += (v for v in held if isinstance(v, types.FunctionType))


def redirected(code: types.CodeType) -> types.CodeType:
    """`code` with what it imports from `_INSTEAD`'s modules from ours (none imports such a module whole, say the tests)."""
    for i, const in enumerate(code.co_consts):
        if type(const) is types.CodeType and (inner := redirected(const)) is not const:
            code = code.replace(co_consts=(*code.co_consts[:i], inner, *code.co_consts[i + 1 :]))
    if _INSTEAD.keys().isdisjoint(code.co_names):
        return code
    return code.replace(co_names=tuple(_INSTEAD.get(name, name) for name in code.co_names))


def _copy_what_imports_sympy() -> None:
    """Replace each such function in the modules that name it; public ones of `torch` stay, which programs know by identity."""
    modules = [module for name in _COPIED if (module := sys.modules.get(name)) is not None]
    made = {}
    for module in modules:
        for name, fn in vars(module).items():
            if isinstance(fn, types.FunctionType) and fn.__globals__ is vars(module) and _imports(fn):
                if module is not torch or name.startswith("_"):
                    made[fn] = _copy(fn)
    for module in modules:
        for name, fn in list(vars(module).items()):
            if isinstance(fn, types.FunctionType) and fn in made:
                setattr(module, name, made[fn])


def _imports(fn: types.FunctionType) -> bool:
    return fn.__closure__ is None and _names(fn.__code__)


def _names(code: types.CodeType) -> bool:
    """Whether it, or a function inside of it, names sympy."""
    return "sympy" in code.co_names or any(_names(c) for c in code.co_consts if isinstance(c, types.CodeType))


class _Live(dict[str, Any]):
    """A module's globals as they are when they are read, but for the builtins, which nested functions take from here too."""

    def __init__(self, space: dict[str, Any]) -> None:
        super().__init__(__builtins__={**vars(builtins), "__import__": import_lazily})
        self.space = space

    def __missing__(self, name: str) -> Any:
        return self.space[name]


def namespace_of(fn: types.FunctionType) -> dict[str, Any]:
    """Where a function finds its globals: of a copy the module's, which its own dict asks."""
    space = fn.__globals__
    return space.space if isinstance(space, _Live) else space


def module_of(name: str, space: dict[str, Any]) -> Any:
    """What torch's copies get for a module that is not loaded, in a function of torch's with these globals; else None."""
    known = name == "sympy" and str(space.get("__name__")).partition(".")[0] == "torch"
    return import_lazily(name) if known and is_idle() and name not in sys.modules else None


def _copy(fn: types.FunctionType) -> types.FunctionType:
    copy = types.FunctionType(fn.__code__, _Live(fn.__globals__), fn.__name__, fn.__defaults__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    functools.update_wrapper(copy, fn)
    del copy.__wrapped__  # type: ignore[attr-defined]
    return copy


def import_lazily(name: str, *args: Any, **kwargs: Any) -> Any:
    """`__import__`, where sympy is not there yet without it."""
    if is_idle():
        if name == "sympy":
            return _SYMPY
        if name == SHAPES:
            return plain_numbers
    return builtins.__import__(name, *args, **kwargs)


class _Nothing:
    """Of this class there are no objects."""


class _Sympy:
    Basic = Integer = _Nothing

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("sympy"), name)


_SYMPY = _Sympy()
