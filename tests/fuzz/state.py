"""Global state of torch: modes, autocast, defaults; and guard lists of kinds that capture does not make."""

from __future__ import annotations

import random
import types
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz.core import Knob, Scene, attr, calls, contents, family, places
from pycompiler.ir.guards import Guard
from pycompiler.ir.source import local


class Function(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + 1 if func is torch.ones else result


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ops.aten.mm.default else result


def context(make: Any, cell: Any = None) -> Knob:
    """A knob that enters and leaves a context; contexts of one cell are left in the order that torch requires."""
    active: list[Any] = []

    def turn(i: int) -> None:
        while active:
            active.pop().__exit__(None, None, None)
        if i:
            active.append(make())
            active[0].__enter__()

    return Knob(turn, 2, cell=cell)


# Deterministic algorithms change no result of these programs, but may change other programs: the guards compare them.
# Under a function or dispatch mode the call runs eagerly.
@family("global_state")
def modes(rng: random.Random) -> Scene:
    w = torch.ones(4, 4, requires_grad=True)
    x = torch.ones(4, 4)

    def fn(x: Any) -> Any:
        y = x @ w + torch.ones(4, 4)
        return (
            y,
            (x @ x).dtype,
            torch.is_grad_enabled(),
            y.requires_grad,
            torch.is_inference_mode_enabled(),
            torch.zeros(2).dtype,
            torch.empty(1).device.type,
            torch.are_deterministic_algorithms_enabled(),
            torch.get_default_dtype(),
        )

    return Scene(fn, lambda: (x,), {
        "grad": places(lambda v: torch._C._set_grad_enabled(v), True, False, cell=("modes",)),
        "inference": context(torch.inference_mode, cell=("modes",)),
        "autocast": context(lambda: torch.autocast("cpu", dtype=torch.bfloat16), cell=("modes",)),
        "autocast to half": context(lambda: torch.autocast("cpu", dtype=torch.float16), cell=("modes",)),
        "autocast behind the back": places(lambda v: torch.set_autocast_enabled("cpu", v), False, True, cell=("modes",)),
        "default dtype": places(torch.set_default_dtype, torch.float32, torch.float64),
        "deterministic": places(lambda v: torch.use_deterministic_algorithms(v, warn_only=v), False, True),
        "threads": places(torch.set_num_threads, 1, 2, matters=False),
        "matmul precision": places(torch.set_float32_matmul_precision, "highest", "high", matters=False),
        "function mode": context(Function, cell=("modes",)),
        "dispatch mode": context(Dispatch, cell=("modes",)),
        "printing": places(lambda v: torch.set_printoptions(precision=v), 4, 5, matters=False),
        "seed": places(torch.manual_seed, 0, 1, matters=False),
    })  # fmt: skip


@family("global_state")
def autocast_state(rng: random.Random) -> Scene:
    x = torch.ones(4, 4)

    def fn(x: Any) -> Any:
        with torch.no_grad():
            y = x @ x
        return (
            y,
            (x @ x).dtype,
            torch.is_grad_enabled(),
            torch.ones(1).device.type,
            torch.are_deterministic_algorithms_enabled(),
            y.dtype,
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        )

    return Scene(fn, lambda: (x,), {
        "enabled": places(lambda v: torch.set_autocast_enabled("cpu", v), False, True),
        "dtype": places(lambda v: torch.set_autocast_dtype("cpu", v), torch.bfloat16, torch.float16),
        "cache": places(torch.set_autocast_cache_enabled, True, False),
        "default device": places(torch.set_default_device, None, "meta"),
        "warn only": calls(lambda: torch.use_deterministic_algorithms(False), lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(True, warn_only=True)),
        "gradients": places(lambda v: torch._C._set_grad_enabled(v), True, False, matters=True),
    })  # fmt: skip


# truth: capture makes no such guard; the engine has the kind, and this is its list ----------------------------------
@family("truth")
def truths(rng: random.Random) -> Scene:
    h = types.SimpleNamespace(a=[1], b=5, c="x", d={}, e=None)
    space = local("x").then("instance_dict")
    guards = [
        Guard("type_is", local("x"), types.SimpleNamespace),
        Guard("truth", space.dict_item("a"), True),
        Guard("truth", space.dict_item("b"), True),
        Guard("truth", space.dict_item("c"), True),
        Guard("truth", space.dict_item("d"), False),
        Guard("truth", space.dict_item("e"), False),
    ]
    return Scene(lambda x: x, lambda: (h,), {
        "list": contents(h.a, [1], [], [2, 3]),
        "number": attr(h, "b", 5, 0, 0.0, True, 2.5, 0j),
        "text": attr(h, "c", "x", "", b"", b"y"),
        "dict": contents(h.d, {}, {1: 2}),
        "nothing": attr(h, "e", None, (), (1,), set(), {1}, range(0), range(2)),
    }, guards=guards)  # fmt: skip
