"""Twelve programs with a known cause of breaks, recompiles or eager calls, each beside the program that follows its advice.

In: `compile` with the settings of the test or bench, and a number of elements.  Out: `step(k)`, which runs step k.
Each program has its line marked `# the cause`.  `tests/debug/test_causes.py` compares the first card and its advice,
`bench/cause_costs.py` the cost.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

Step = Callable[[int], Any]
Make = Callable[[Callable[..., Any], int], Step]
CHANGES = 6  # different sizes, numbers and keys


@dataclass(frozen=True)
class CauseProgram:
    """`what`, `do`: a part of the first card, and of its advice."""

    caused: Make
    what: str
    do: str
    advised: Make


def of(function: Callable[..., Any], arguments: Callable[[torch.Tensor, int], tuple[Any, ...]] | None = None,
       **options: Any) -> Make:  # fmt: skip
    """Steps that call a compiled function; `arguments(x, k)` of step k are `(x,)` if not given."""

    def make(compile: Callable[..., Any], size: int) -> Step:
        compiled, x = compile(function, **options), torch.ones(size)
        if arguments is None:
            return lambda k: compiled(x)
        given = [arguments(x, k) for k in range(CHANGES)]
        return lambda k: compiled(*given[k % CHANGES])

    return make


def printing(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    print("half way")  # the cause
    return y + 1


def printed_later(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y + 1


def branching(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.sum() > 0:  # the cause
        y = y + 1
    return y * 3


def choosing(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y = torch.where(y.sum() > 0, y + 1, y)
    return y * 3


def reading_item(x: torch.Tensor) -> torch.Tensor:
    n = (x * 2).sum().item()  # the cause
    return x * n


def keeping_tensor(x: torch.Tensor) -> torch.Tensor:
    n = (x * 2).sum()
    return x * n


def calling_numpy(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    scale = np.interp(0.5, [0.0, 1.0], np.genfromtxt(["1", "3"]))  # the cause
    return y * float(scale)


SCALE = float(np.interp(0.5, [0.0, 1.0], np.genfromtxt(["1", "3"])))


def without_numpy(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y * SCALE


def of_sizes(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1  # the cause


def resized(x: torch.Tensor, k: int) -> tuple[torch.Tensor]:
    return (torch.ones(x.numel() + k),)


def of_numbers(x: torch.Tensor, n: Any) -> torch.Tensor:
    return x * n  # the cause


class Hooked(nn.Module):
    def __init__(self, width: int, prints: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.inner.register_forward_hook(self.noisy if prints else self.silent)

    def noisy(self, module: nn.Module, args: Any, out: torch.Tensor) -> None:
        print("largest", out.max())  # the cause

    def silent(self, module: nn.Module, args: Any, out: torch.Tensor) -> None:
        self.largest = out.max()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 2


def hooked(prints: bool) -> Make:
    def make(compile: Callable[..., Any], size: int) -> Step:
        width = side(size)
        compiled, x = compile(Hooked(width, prints)), torch.ones(width, width)
        return lambda k: compiled(x)

    return make


def side(size: int) -> int:
    return max(4, math.isqrt(size))


@functools.lru_cache
def total(sizes: Any) -> int:
    return sum(sizes)


def unhashable(x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    try:
        n = total(sizes)  # the cause
    except TypeError:
        n = 1
    return x * n


def hashed_outside(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n


def in_threads(x: torch.Tensor) -> torch.Tensor:  # the cause
    return x * 2


def threads(grads: tuple[bool, bool]) -> Make:
    """Two threads that call in turns, each with its grad mode."""

    def make(compile: Callable[..., Any], size: int) -> Step:
        compiled, x = compile(in_threads), torch.ones(size)
        workers = [ThreadPoolExecutor(1) for _ in grads]

        def call(grad: bool) -> None:
            with torch.set_grad_enabled(grad):
                compiled(x)

        return lambda k: workers[k % 2].submit(call, grads[k % 2]).result()

    return make


@torch.library.custom_op("test_causes::plain", mutates_args=())
def plain(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("test_causes::faked", mutates_args=())
def faked(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@faked.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def without_fake(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    z = plain(y)  # the cause
    return z * 3


def with_fake(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    z = faked(y)
    return z * 3


KNOWN: dict[str, torch.Tensor] = {}
FIXED = {str(k): torch.zeros(()) for k in range(CHANGES)}


def growing(x: torch.Tensor, key: str) -> torch.Tensor:
    KNOWN[key] = x.sum()
    return torch.stack(list(KNOWN.values())).mean()  # the cause


def growing_steps(compile: Callable[..., Any], size: int) -> Step:
    """The last of the keys stays."""
    compiled, x = compile(growing), torch.ones(size)
    keys = [str(k) for k in range(CHANGES)]
    return lambda k: compiled(x, keys[min(k, CHANGES - 1)])


def keeping_keys(x: torch.Tensor) -> torch.Tensor:
    FIXED["0"] = x.sum()
    return torch.stack(list(FIXED.values())).mean()


def optimized(prepared: bool) -> Make:
    """A training step.  prepared: gradients and the optimizer's state exist before the first call."""

    def make(compile: Callable[..., Any], size: int) -> Step:
        width = side(size)
        model = nn.Linear(width, width)
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.ones(width, width)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()  # the cause
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            return loss

        if prepared:
            step(x)
        compiled = compile(step)
        return lambda k: compiled(x)

    return make


PROGRAMS: dict[str, CauseProgram] = {
    "print": CauseProgram(of(printing), "graph break [builtin-call]", "Remove `print(", of(printed_later)),
    "branch": CauseProgram(
        of(branching), "graph break [data-dependent-jump]", "choose with torch.where", of(choosing)
    ),
    "item": CauseProgram(
        of(reading_item, lambda x, k: (x * k,)), "graph break [data-dependent-value]", "Keep the value as a tensor",
        of(keeping_tensor, lambda x, k: (x * k,)),
    ),
    "numpy call": CauseProgram(
        of(calling_numpy), "graph break [", "out of the compiled function", of(without_numpy)
    ),
    "changing size": CauseProgram(
        of(of_sizes, resized, dynamic=False), "was compiled again 5 times", "without dynamic=False",
        of(of_sizes, resized),
    ),
    "changing int": CauseProgram(
        of(of_numbers, lambda x, k: (x, k + 3), dynamic=False), "was compiled again 5 times", "Pass `n` as a tensor",
        of(of_numbers, lambda x, k: (x, torch.tensor(k + 3)), dynamic=False),
    ),
    "optimizer warm-up": CauseProgram(
        optimized(False), "was compiled again", "this is warm-up (it was None in the first call)", optimized(True)
    ),
    "hook": CauseProgram(hooked(True), "graph break [builtin-call]", "Remove `print(", hooked(False)),
    "unhashable": CauseProgram(
        of(unhashable, lambda x, k: (x, [1, 2])), "graph break [builtin-call]", "before the compiled function",
        of(hashed_outside, lambda x, k: (x, 1)),
    ),
    "thread switching": CauseProgram(
        threads((True, False)), "grad mode False, expected True", "the same grad mode", threads((True, True))
    ),
    "custom operator": CauseProgram(
        of(without_fake), "graph break [operator-failed]", "Register a fake kernel (register_fake)", of(with_fake)
    ),
    "growing container": CauseProgram(
        growing_steps, "was compiled again 5 times", "Keep the keys of `KNOWN`",
        of(keeping_keys),
    ),
}  # fmt: skip
