"""What torch's shape functions import of `torch.fx.experimental.symbolic_shapes`, for numbers that are none of its symbols.

In: the arguments of a function of that module.  Out: its answer for plain numbers, of which no object of sympy's can be one; all
else (a number that is symbolic, another name of the module) is asked of the module itself, whose import takes half a second.
"""

from __future__ import annotations

import functools
import importlib
import operator
import sys
from collections.abc import Callable
from typing import Any

import torch

SHAPES = "torch.fx.experimental.symbolic_shapes"


def is_idle() -> bool:
    """Whether a shape function of torch's would be the first to import sympy."""
    return SHAPES not in sys.modules


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, (tuple, list)) else type(value) in (bool, int)


def _holds_no_symbols(value: Any) -> bool:
    """The same for tensors and numbers of any type."""
    if isinstance(value, (tuple, list)):
        return all(map(_holds_no_symbols, value))
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:  # of sparse ones the parts are smaller than these
            return all(type(n) is int for n in value.shape)
        return not value._has_symbolic_sizes_strides
    return value is None or type(value) in (bool, int, float, complex, str, torch.dtype, torch.device)


def _plain(name: str, answer: Callable[..., Any], known: Callable[[Any], bool] = _is_plain) -> Callable[..., Any]:
    """`answer` for numbers that are no symbols; the function of torch's for all others."""

    def asked(*args: Any, **kwargs: Any) -> Any:
        if not kwargs and all(map(known, args)):
            return answer(*args)
        return getattr(importlib.import_module(SHAPES), name)(*args, **kwargs)

    return asked


def _same(a: Any, b: Any) -> bool:
    return tuple(a) == tuple(b) if isinstance(a, (tuple, list)) else a == b


_ANSWERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("guard_or_false", "guard_or_true", "guard_size_oblivious", "statically_known_true"), bool),
    **dict.fromkeys(("has_guarding_hint", "has_hint"), lambda value: True),
    **dict.fromkeys(("guarding_hint_or_throw", "guard_int"), int),
    "expect_true": lambda known, *_: bool(known),
    "sym_and": lambda *xs: functools.reduce(operator.and_, xs),
    "sym_or": lambda *xs: functools.reduce(operator.or_, xs),
    "sym_eq": _same,
}
_OF_TENSORS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("has_free_symbols", "has_free_unbacked_symbols", "is_symbolic"), lambda value: False),
    **dict.fromkeys(("_iterate_exprs", "_iterate_nodes"), lambda value: iter(())),
    "free_unbacked_symbols": lambda value: set(),
}
globals().update({name: _plain(name, answer) for name, answer in _ANSWERS.items()})
globals().update({name: _plain(name, answer, _holds_no_symbols) for name, answer in _OF_TENSORS.items()})


def is_nested_int(value: Any) -> bool:
    return isinstance(value, torch.SymInt) and value.node.is_nested_int()


def compute_unbacked_bindings(env: Any, *args: Any, **kwargs: Any) -> Any:
    if env is None:
        return None
    return importlib.import_module(SHAPES).compute_unbacked_bindings(env, *args, **kwargs)  # type: ignore[attr-defined]


class _Late:
    """A name that is imported when it is called."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(SHAPES), self.name)(*args, **kwargs)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Late(name) if is_idle() else getattr(sys.modules[SHAPES], name)
