"""Methods of NumPy's generators of random numbers (`numpy.random.rand`, `RandomState`, `Generator`), written in Cython."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.ir.arrays import tensor_of

CLASSES = ("RandomState", "Generator")


@functools.cache
def _methods(module: Any) -> dict[int, Any]:
    """By identity; their classes cannot be changed, and keep them."""
    of = [vars(getattr(module, name)).values() for name in CLASSES]
    return {id(fn): fn for fns in of for fn in fns if type(fn).__name__ == "cython_function_or_method"}


def is_method(fn: object) -> bool:
    """Whether it is a method of a generator's, if the program has imported them."""
    module = sys.modules.get("numpy.random")
    return module is not None and id(fn) in _methods(module)


def is_generator(value: object) -> bool:
    module = sys.modules.get("numpy.random")
    return module is not None and type(value) in (module.RandomState, module.Generator)


def new_generator(kind: type) -> Any:
    """One of a state that is no matter."""
    module = sys.modules["numpy.random"]
    return module.RandomState(0) if kind is module.RandomState else module.default_rng(0)  # type: ignore[attr-defined]


Call = tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]]
"""The name of a method, its arguments, and those by name."""


def draw(generator: Any, call: Call) -> Any:
    name, args, kwargs = call
    return getattr(generator, name)(*args, **dict(kwargs))


def draw_tensor(generator: Any, call: Call) -> torch.Tensor:
    """In the memory of the array that is drawn, or of a number of NumPy's."""
    return tensor_of(draw(generator, call))


def draw_integer(generator: Any, call: Call, least: int) -> Any:
    """How much more it is than the least that it can be."""
    return draw(generator, call) - least


def drawing(method: Any, *args: Any, **kwargs: Any) -> Any:
    """A call of a method: capture has a row for it."""
    return method(*args, **kwargs)


def state_of(generator: Any) -> tuple[Callable[[Any], None], Any]:
    """How it is put back to what it is now."""
    if hasattr(generator, "get_state"):
        return generator.set_state, generator.get_state()
    return functools.partial(setattr, generator.bit_generator, "state"), generator.bit_generator.state


def own_state() -> tuple[Callable[[Any], None], Any] | None:
    """That of the module's own generator, if the program has imported it."""
    module = sys.modules.get("numpy.random")
    return None if module is None else (module.set_state, module.get_state())
