"""Methods of NumPy's random generators (`numpy.random.rand`, `RandomState`, `Generator`), which are written in Cython."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.operators.numpy_arrays import tensor_of

CLASSES = ("RandomState", "Generator")


@functools.cache
def _methods(module: Any) -> dict[int, Any]:
    """Methods by id; their immutable classes keep them alive."""
    of = [vars(getattr(module, name)).values() for name in CLASSES]
    return {id(fn): fn for fns in of for fn in fns if type(fn).__name__ == "cython_function_or_method"}


def is_method(fn: object) -> bool:
    """Whether the function is a method of a random generator, if the program has imported numpy.random."""
    module = sys.modules.get("numpy.random")
    return module is not None and id(fn) in _methods(module)


def is_generator(value: object) -> bool:
    module = sys.modules.get("numpy.random")
    return module is not None and type(value) in (module.RandomState, module.Generator)


def new_generator(kind: type) -> Any:
    """A generator of this class with an arbitrary state."""
    module = sys.modules["numpy.random"]
    return module.RandomState(0) if kind is module.RandomState else module.default_rng(0)  # type: ignore[attr-defined]


DrawCall = tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]]
"""The name of a method, its positional arguments, and its keyword arguments."""


def draw(generator: Any, call: DrawCall) -> Any:
    name, args, kwargs = call
    return getattr(generator, name)(*args, **dict(kwargs))


def draw_tensor(generator: Any, call: DrawCall) -> torch.Tensor:
    """A tensor in the memory of the drawn array, or of a NumPy number."""
    return tensor_of(draw(generator, call))


def draw_integer(generator: Any, call: DrawCall, least: int) -> Any:
    """The drawn integer minus the least possible one."""
    return draw(generator, call) - least


def drawing(method: Any, *args: Any, **kwargs: Any) -> Any:
    """A call of a method: capture has a row for it."""
    return method(*args, **kwargs)


def state_of(generator: Any) -> tuple[Callable[[Any], None], Any]:
    """A function and a state that restore the generator to its current state."""
    if hasattr(generator, "get_state"):
        return generator.set_state, generator.get_state()
    return functools.partial(setattr, generator.bit_generator, "state"), generator.bit_generator.state


def own_state() -> tuple[Callable[[Any], None], Any] | None:
    """As `state_of`, for the generator of the module itself, if the program has imported it."""
    module = sys.modules.get("numpy.random")
    return None if module is None else (module.set_state, module.get_state())
