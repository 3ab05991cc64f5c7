"""Rows: a report's number in pytorch/pytorch, its subject, and a program that is run eagerly and compiled.

In: `@report(105264, "uint8 sums wrap before they are widened")` over a function without parameters that returns
`(fn, make_args)`, or `(fn, make_args, make_args, ...)` for calls with different arguments. A single maker is called
twice. Or `@scenario(...)` over a function `(compile)` that returns all values to compare: for programs with actions
between calls.
Out: `outcome(row, compile)`: the results of each call, its arguments afterwards, gradients, or the error.
`difference(got, wanted, exact)`: None, or a description.

`exact`: floats are bit-equal, signs of zeros included (of NaNs only the places). Otherwise they are close: the size
alone distinguishes a wrong gradient from a gradient that is 0 except for rounding.
"""

from __future__ import annotations

import dataclasses
import random
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

Compile = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Report:
    number: int
    subject: str
    run: Callable[[Compile], Any]
    topic: str
    exact: bool
    options: dict[str, Any]  # options of `compile` that the report names
    peer_config: dict[str, Any]  # settings of torch.compile that the report names: "inductor.fallback_random"
    cuda: bool  # reported on CUDA only; run here on the CPU
    described: bool  # written from a description or a part of the program


@dataclasses.dataclass(frozen=True)
class Raised:
    kind: str

    def __str__(self) -> str:
        return f"raises {self.kind}"


REPORTS: dict[str, Report] = {}  # by key: the number, or the number and a letter if a report has several programs


def scenario(
    number: int, subject: str, *, exact: bool = False, peer_config: dict[str, Any] | None = None, cuda: bool = False,
    described: bool = False, part: str = "", **options: Any,
) -> Callable[[Callable[[Compile], Any]], Callable[[Compile], Any]]:  # fmt: skip
    """Registers `program(compile)`."""

    def register(program: Callable[[Compile], Any]) -> Callable[[Compile], Any]:
        topic = program.__module__.rpartition("programs_")[2]
        key = f"{number}{part}"
        assert key not in REPORTS, key
        REPORTS[key] = Report(number, subject, program, topic, exact, options, peer_config or {}, cuda, described)
        return program

    return register


def report(
    number: int, subject: str, *, training: bool = False, **more: Any
) -> Callable[[Callable[[], Sequence[Any]]], Callable[[], Sequence[Any]]]:
    """Registers `program() -> (fn, make_args, ...)`; `training`: the gradients of leaves and parameters are compared, too."""

    def register(program: Callable[[], Sequence[Any]]) -> Callable[[], Sequence[Any]]:
        def run(compile: Compile) -> Any:
            fn, *makers = program()
            compiled = compile(fn)
            return [_call(fn, compiled, make, training) for make in (makers if len(makers) > 1 else makers * 2)]

        run.__module__ = program.__module__
        scenario(number, subject, **more)(run)
        return program

    return register


def _call(fn: Any, compiled: Any, make: Callable[[], Sequence[Any]], training: bool) -> Any:
    torch.manual_seed(0)
    args = make()
    if isinstance(fn, nn.Module):
        fn.zero_grad()
    try:
        result = compiled(*args)
        if training:
            loss(result).backward()
    except Exception as error:
        return raised(error)
    leaves = [a for a in tensors(args) if a.is_leaf and a.requires_grad] if training else []
    if training and isinstance(fn, nn.Module):
        leaves += list(fn.parameters())
    return result, args, [leaf.grad for leaf in leaves]


def raised(error: BaseException) -> Raised:
    return Raised(type(error).__name__)


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors(v)] if isinstance(value, (list, tuple)) else []


def loss(result: Any) -> torch.Tensor:
    """A weighted sum with another weight for each element, which distinguishes gradients by their place."""
    parts = [t for t in tensors(result) if t.requires_grad]
    return sum(((t * torch.linspace(0.5, 1.5, t.numel()).to(t).reshape(t.shape)).sum() for t in parts), torch.zeros(()))


def outcome(row: Report, compile: Compile) -> Any:
    """The result of the program with that `compile`; an error that leaves it becomes a `Raised`."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return row.run(compile)
        except Exception as error:
            return raised(error)


def eager(fn: Any = None, **options: Any) -> Any:
    return (lambda fn: fn) if fn is None else fn


def difference(got: Any, wanted: Any, exact: bool) -> str | None:
    """None if they agree. An error agrees with any error: these reports are about silent results."""
    if isinstance(got, Raised) or isinstance(wanted, Raised):
        return None if type(got) is type(wanted) else f"{_brief(got)}, eager {_brief(wanted)}"
    if type(got) is not type(wanted):
        return f"a {type(got).__name__}, eager a {type(wanted).__name__}"
    if isinstance(wanted, torch.Tensor):
        return _tensors_differ(got, wanted, exact)
    if isinstance(wanted, np.ndarray):
        if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
            return f"{got.dtype}{list(got.shape)}, eager {wanted.dtype}{list(wanted.shape)}"
        return _tensors_differ(torch.from_numpy(got.copy()), torch.from_numpy(wanted.copy()), exact)
    if isinstance(wanted, dict):
        if list(got) != list(wanted):
            return f"keys {list(got)}, eager {list(wanted)}"
        got, wanted = list(got.values()), list(wanted.values())
    if isinstance(wanted, (list, tuple)):
        if len(got) != len(wanted):
            return f"{len(got)} items, eager {len(wanted)}"
        found = (difference(a, b, exact) for a, b in zip(got, wanted, strict=True))
        return next((text for text in found if text is not None), None)
    if isinstance(
        wanted, (type(None), bool, int, float, str, complex, torch.dtype, type, np.generic, set, frozenset, range)
    ):
        return None if got == wanted or got != got and wanted != wanted else f"{got}, eager {wanted}"
    if isinstance(wanted, (nn.Module, types.FunctionType)) or wanted.__class__.__module__.startswith("tests"):
        return None  # an object of the program's own: the program returns its parts
    return None if got == wanted else f"{got}, eager {wanted}"


def _tensors_differ(got: torch.Tensor, wanted: torch.Tensor, exact: bool) -> str | None:
    if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
        return f"{got.dtype}{list(got.shape)}, eager {wanted.dtype}{list(wanted.shape)}"
    if got.requires_grad != wanted.requires_grad:
        return f"requires_grad={got.requires_grad}, eager {wanted.requires_grad}"
    got, wanted = got.detach(), wanted.detach()
    if exact or not (wanted.dtype.is_floating_point or wanted.dtype.is_complex):
        same = (got == wanted) | ((got != got) & (wanted != wanted))
        if wanted.dtype.is_floating_point:
            same &= (got != got) | (torch.signbit(got) == torch.signbit(wanted))
        return None if bool(same.all()) else f"{_brief(got)}, eager {_brief(wanted)}"
    near = {"rtol": 1e-4, "atol": 5e-5} if wanted.dtype in (torch.float32, torch.complex64) else {}
    try:
        torch.testing.assert_close(got, wanted, equal_nan=True, **near)
    except AssertionError:
        return f"{_brief(got)}, eager {_brief(wanted)}"
    return None


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        text = str(value.flatten()[:6].tolist())
        return text if value.numel() <= 6 else text[:-1] + ", ...]"
    return str(value) if isinstance(value, Raised) else "a result"
