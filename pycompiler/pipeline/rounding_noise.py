"""The rounding part of a result: eager runs again, with each operator's result moved by its last digit, up or down.

In: a run of a graph by eager, and its results.
Out: for each result, how far rounding alone may move it.  Where large values cancel (a divergence of equal
distributions, the gradient of a norm over two elements), the result is rounding only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pycompiler.operators.operator_facts import facts_of
from pycompiler.torch_compat.dispatch_modes import OwnMode

RUNS = 3
BEYOND = 8  # digits: roundings may add up
GROWS = 3  # the least growth from one digit to these

Run = Callable[[], Sequence[Any]]


class LastDigitNoise(OwnMode):
    """Moves floats that an operator computes by their last digit.
    `size`: the largest size; `coarsest`: the coarsest dtype."""

    def __init__(self, seed: int, digits: int = 1) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.size, self.digits = 0.0, digits
        self.coarsest = torch.float64

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if facts_of(func).gives_views:  # the base of a view was moved
            return made
        for t in made if isinstance(made, tuple | list) else (made,):
            if isinstance(t, torch.Tensor) and t.dtype.is_floating_point and t.layout is torch.strided:
                self.size = max(self.size, size_of(t))
                self.coarsest = max(self.coarsest, t.dtype, key=lambda dtype: torch.finfo(dtype).eps)
                signs = torch.randint(0, 2, t.shape, generator=self.generator) * 2 - 1
                t.mul_((1 + self.digits * torch.finfo(t.dtype).eps * signs.double()).to(t.device, t.dtype))
        return made


def size_of(t: torch.Tensor) -> float:
    finite = t.detach()[t.isfinite()].double()
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


def roundings(run: Run, given: Sequence[Any], near: Callable[[torch.dtype], float]) -> list[float]:
    """A number per result; 0 if nothing is known.

    At most `near` (of the coarsest dtype) times the largest value computed on the way.  Rounding grows with the
    number of moved digits.  A change that does not grow is a jump (a comparison, `floor`), and counts as 0.
    """
    few, many = _moved(run, given, near, 1), _moved(run, given, near, BEYOND)
    return [at_once if at_once > GROWS * one else 0.0 for one, at_once in zip(few, many, strict=True)]


def _moved(run: Run, given: Sequence[Any], near: Callable[[torch.dtype], float], digits: int) -> list[float]:
    found = [0.0] * len(given)
    for seed in range(RUNS):
        values: Sequence[Any] = ()
        with LastDigitNoise(seed, digits) as mode, contextlib.suppress(Exception):
            values = run()
        if len(values) != len(given):
            return [0.0] * len(given)
        for k, (value, one) in enumerate(zip(values, given, strict=True)):
            if _are_floats(value, one):
                found[k] = max(found[k], min(size_of(value.double() - one.double()), near(mode.coarsest) * mode.size))
    return found


def _are_floats(value: Any, one: Any) -> bool:
    if not (isinstance(value, torch.Tensor) and isinstance(one, torch.Tensor)):
        return False
    return one.dtype.is_floating_point and one.layout is torch.strided and value.shape == one.shape
