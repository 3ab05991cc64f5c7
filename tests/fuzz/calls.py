"""Calls of what capture handles, with arguments of any kind and number, compared with eager.

A call stands in a `try`, as programs write it: its result, its error, or what it made of its arguments is what is compared.
``python -m tests.fuzz.calls --count 5000 --seed 0`` prints the calls that end otherwise when they are compiled.
"""

from __future__ import annotations

import argparse
import collections
import logging
import random
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

import pycompiler
from pycompiler.capture import calls

# What waits, ends or changes the process, gives something else each time, or is not compared here.
LEFT_OUT = re.compile(
    r"breakpoint|input|exit|quit|sleep|open|print|fork|seed|distributed|dist\.|\.random|shuffle|urandom|token|exec|eval|compile|"
    r"Generator|ock|time|help|clock|cuda|collect|getpid|stance|set_|default|deterministic|autocast|inference_mode|_dynamo|"
    r"globals|locals|warn|DisableTorch|cmp_to_key|dataclass|pybind11|push_on|pop_torch|logging|_slotnames|id$"
)


class Program:
    """A class of the program's."""

    def __init__(self, n: int = 3) -> None:
        self.n = n

    def __repr__(self) -> str:
        return f"Program({getattr(self, 'n', None)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.n == other.n

    def __hash__(self) -> int:
        return 5

    def __lt__(self, other: Program) -> bool:
        return self.n < other.n

    def __index__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])

    def __len__(self) -> int:
        return 2


def _same(value: Any) -> Any:
    return value


MODULE = torch.nn.Linear(2, 2)
MAKERS: dict[str, Callable[[], Any]] = {
    "int": lambda: 3, "negative": lambda: -1, "float": lambda: 2.5, "big": lambda: 2**70, "complex": lambda: 1j,
    "bool": lambda: True, "none": lambda: None, "str": lambda: "ab", "bytes": lambda: b"ab", "list": lambda: [3, 1, 2],
    "tuple": lambda: (1, 2), "dict": lambda: {"a": 1}, "set": lambda: {1, 2}, "frozenset": lambda: frozenset([1]),
    "ordered": lambda: collections.OrderedDict(a=1), "deque": lambda: collections.deque([1, 2]),
    "defaultdict": lambda: collections.defaultdict(list), "range": lambda: range(3), "slice": lambda: slice(0, 1),
    "iterator": lambda: iter([1, 2]), "generator": lambda: (n for n in (1, 2)), "keys": lambda: {1: 2}.keys(),
    "function": lambda: _same, "class": lambda: int, "program": Program, "its class": lambda: Program,
    "exception": lambda: ValueError("x"), "tensor": lambda: torch.arange(4.0).reshape(2, 2),
    "index": lambda: torch.tensor([1, 0]), "size": lambda: torch.Size([2, 1]), "dtype": lambda: torch.float64,
    "module": lambda: MODULE,
}  # fmt: skip
OF_CLASS = {type(MAKERS[name]()): name for name in (
    "list", "dict", "str", "tuple", "set", "bytes", "int", "float", "ordered", "deque", "defaultdict", "frozenset", "range",
)}  # fmt: skip
OF_CLASS |= {torch.Tensor: "tensor", torch._C.TensorBase: "tensor"}


def name_of(fn: Any) -> str:
    owner = getattr(getattr(fn, "__objclass__", None), "__name__", "")
    return f"{getattr(fn, '__module__', None) or ''}.{owner}.{getattr(fn, '__qualname__', fn)}"


def handled() -> list[Any]:
    """What there is a handler for, but for what is left out, in an order that stays."""
    found = [*calls.BUILTINS, *calls.CONSTRUCTORS]
    return sorted((f for f in found if callable(f) and not LEFT_OUT.search(name_of(f))), key=name_of)


def call_of(seed: int, functions: list[Any]) -> tuple[Any, list[str], list[str]]:
    """A function, the kinds of its arguments, and of those with a name."""
    rng = random.Random(seed)
    fn = rng.choice(functions)
    kinds = [rng.choice([*MAKERS]) for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3)))]
    own = OF_CLASS.get(getattr(fn, "__objclass__", None))
    if kinds and own is not None and rng.random() < 0.85:
        kinds[0] = own
    return fn, kinds, ["int"] if rng.random() < 0.06 else []


def program(fn: Any, named: bool) -> Callable[[tuple[Any, ...]], Any]:
    def call(args: tuple[Any, ...]) -> Any:
        try:
            return fn(*args, bogus=1) if named else fn(*args)
        except Exception as e:
            return "raised", type(e).__name__, str(e)

    return call


ADDRESS = re.compile(r"0x[0-9a-f]+")


def seen(value: Any) -> Any:
    """What is compared of a result or an argument."""
    if isinstance(value, torch.Tensor):
        return (
            "tensor",
            value.dtype,
            tuple(value.shape),
            value.tolist() if value.numel() < 50 and not value.is_meta else None,
        )
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(map(repr, map(seen, value)))
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value).__name__, [seen(v) for v in list(value)[:20]]
    if isinstance(value, dict):
        return type(value).__name__, [(seen(k), seen(v)) for k, v in list(value.items())[:20]]
    if isinstance(value, types.GeneratorType):
        return "generator"
    return ADDRESS.sub("at", repr(value))[:300]


def outcome(run: Callable[[tuple[Any, ...]], Any], kinds: list[str]) -> Any:
    args = tuple(MAKERS[kind]() for kind in kinds)
    try:
        return seen(run(args)), seen(args)
    except Exception as e:  # which the call's own handler has not seen
        return "left the program", type(e).__name__, str(e)[:300]


def difference(fn: Any, kinds: list[str], named: bool) -> str | None:
    """What a compiled call does otherwise; None where nothing is, or eager itself does not do the same twice."""
    run = program(fn, named)
    want = outcome(run, kinds)
    got = outcome(pycompiler.compile(run, backend="eager"), kinds)
    if got == want or outcome(run, kinds) != want:
        return None
    return f"{name_of(fn)}({', '.join(kinds)}{', bogus=1' if named else ''}): eager {want}, compiled {got}"


def differences(seed: int, count: int) -> Iterator[str]:
    functions = handled()
    for number in range(seed, seed + count):
        fn, kinds, named = call_of(number, functions)
        if (found := difference(fn, kinds, bool(named))) is not None:
            yield f"seed {number}: {found}"


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.fuzz.calls", description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    failures = 0
    for text in differences(asked.seed, asked.count):
        failures += 1
        print(text, flush=True)
    print(f"{asked.count} calls, {failures} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
