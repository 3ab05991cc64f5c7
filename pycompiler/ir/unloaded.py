"""Shape functions without sympy: torch's import it, half a second of a first call, to ask whether a size is symbolic.

In: nothing.  Out: `without_sympy()`; the functions that torch's shape functions and decompositions call are the same, but where
nobody has imported sympy, their `import` gives what answers for plain numbers, of which no object of sympy's can be one.  What
else they ask, of a size that is symbolic, is asked of the real modules, which it imports.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

SHAPES = "torch.fx.experimental.symbolic_shapes"
_MODULES = ("torch", "torch._prims_common", "torch._prims_common.wrappers", "torch._refs", "torch._meta_registrations",
            "torch._decomp.decompositions", "torch._decomp.decompositions_for_rng", "torch._subclasses.fake_tensor")  # fmt: skip


def is_idle() -> bool:
    """Whether a shape function of torch's would be the first to import sympy."""
    return SHAPES not in sys.modules


@functools.cache
def without_sympy() -> None:
    """Replace each such function in the modules that name it; public ones of `torch` stay, which programs know by identity."""
    modules = [module for name in _MODULES if (module := sys.modules.get(name)) is not None]
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
    """Whether it, or a function inside of it, names them."""
    if not {"sympy", SHAPES}.isdisjoint(code.co_names):
        return True
    return any(_names(c) for c in code.co_consts if isinstance(c, types.CodeType))


class _Live(dict[str, Any]):
    """A module's globals as they are when they are read, but for the builtins, which nested functions take from here too."""

    def __init__(self, space: dict[str, Any]) -> None:
        super().__init__(__builtins__={**vars(builtins), "__import__": import_lazily})
        self.space = space

    def __missing__(self, name: str) -> Any:
        return self.space[name]


def _copy(fn: types.FunctionType) -> types.FunctionType:
    copy = types.FunctionType(fn.__code__, _Live(fn.__globals__), fn.__name__, fn.__defaults__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    functools.update_wrapper(copy, fn)
    del copy.__wrapped__  # type: ignore[attr-defined]
    return copy


def import_lazily(name: str, *args: Any, **kwargs: Any) -> Any:
    """`__import__`, where sympy is not there yet without it."""
    if is_idle() and (found := _INSTEAD.get(name)) is not None:
        return found
    return builtins.__import__(name, *args, **kwargs)


class _Nothing:
    """Of this class there are no objects."""


class _Sympy:
    Basic = Integer = _Nothing

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("sympy"), name)


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, (tuple, list)) else type(value) in (bool, int)


def _plain(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    """`answer` for numbers that are no symbols; the function of torch's for all others."""

    def asked(*args: Any) -> Any:
        if all(map(_is_plain, args)):
            return answer(*args)
        return getattr(importlib.import_module(SHAPES), name)(*args)

    return asked


class _Shapes:
    guard_or_false = staticmethod(_plain("guard_or_false", bool))
    guard_or_true = staticmethod(_plain("guard_or_true", bool))
    expect_true = staticmethod(_plain("expect_true", lambda known, *_: bool(known)))
    statically_known_true = staticmethod(_plain("statically_known_true", bool))
    sym_and = staticmethod(_plain("sym_and", lambda *xs: functools.reduce(operator.and_, xs)))
    sym_eq = staticmethod(
        _plain("sym_eq", lambda a, b: tuple(a) == tuple(b) if isinstance(a, (tuple, list)) else a == b)
    )
    sym_or = staticmethod(_plain("sym_or", lambda *xs: functools.reduce(operator.or_, xs)))

    @staticmethod
    def is_nested_int(value: Any) -> bool:
        return isinstance(value, torch.SymInt) and value.node.is_nested_int()

    def __getattr__(self, name: str) -> Any:
        return _Late(name)


class _Late:
    """A function that is imported when it is called."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(SHAPES), self.name)(*args, **kwargs)


_INSTEAD = {"sympy": _Sympy(), SHAPES: _Shapes()}
