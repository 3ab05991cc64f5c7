"""Random expressions of numbers that change between calls: sizes, ints, floats, truths, attributes; beside constants.

    python -m tests.fuzz.numbers --count 20000 --seed 0        (from the root)

Each program is called four times, compiled and eager: values and their types, errors and their texts must be the same.
"""

from __future__ import annotations

import argparse
import logging
import math
import operator
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

import pycompiler

ATOMS = (
    "a", "b", "c", "t", "x.shape[0]", "x.shape[1]", "x.numel()", "2", "3", "-1", "0", "1", "True", "False", "2.0", "0.5", "1.0",
    "None", "'s'", "o.k", "(a, b)", "[b, a]", "len(l)",
)  # fmt: skip
BINARY = (
    "+", "-", "*", "//", "%", "/", "**", "==", "!=", "<", "<=", ">", ">=", "&", "|", "^", "<<", ">>", "and", "or", "is", "in",
    "not in",
)  # fmt: skip
CALLS = (
    "int({})", "float({})", "bool({})", "abs({})", "-({})", "+({})", "~({})", "not ({})", "round({})", "math.floor({})",
    "math.ceil({})", "math.sqrt(abs({}))", "str({})", "repr({})", "hash({})", "isinstance({}, bool)", "isinstance({}, int)",
    "type({})", "len(range(abs(int({})) % 7))", "math.isfinite({})", "bin(int({}))", "f'{{{}}}'", "f'{{{}:>5}}'",
    "({}).bit_length()", "sum(range(int({}) % 5))", "({}).is_integer()", "[10, 20, 30][int({}) % 3]",
    "{{1: 'one', 2: 'two', True: 't'}}.get({})", "({}) in {{1, 2.0, 5}}", "math.gcd(int({}), 6)", "complex({})",
    "operator.index({})", "torch.tensor({}).item()", "(x.sum() * ({})).item()", "x.new_full((2,), {}).tolist()",
    "math.trunc({})", "({}).real", "({}).__class__", "divmod({}, 3)", "pow(int({}) % 5, 3, 7)", "sorted([{}, 2, 1.5])",
    "min({}, 2)", "max(1.5, {})", "({}, 1) < (2, 0)", "math.copysign(1, {})", "({}).conjugate()", "slice({})",
    "'ab' * (int({}) % 3)", "[0] * (int({}) % 3)",
)  # fmt: skip
INTS = ((2, 3, 4, 5), (5, -7, 9, 11), (0, 1, 2, 3), (-1, -2, -3, 4), (2, 2, 7, True))
FLOATS = ((0.5, 1.5, 2.5, 3.0), (0.0, -0.0, 1.0, -2.5), (1e300, 2.0, math.inf, math.nan))
SHAPES = ((2, 3), (3, 3), (4, 5), (1, 2), (0, 2))


class Counter:
    def __init__(self) -> None:
        self.k = 3


def expression(rng: random.Random, depth: int) -> str:
    chance = rng.random()
    if depth == 0 or chance < 0.2:
        return rng.choice(ATOMS)
    if chance < 0.6:
        return f"({expression(rng, depth - 1)} {rng.choice(BINARY)} {expression(rng, depth - 1)})"
    if chance < 0.9:
        return rng.choice(CALLS).format(expression(rng, depth - 1))
    return f"({expression(rng, depth - 1)} if {expression(rng, depth - 1)} else {expression(rng, depth - 1)})"


def program(rng: random.Random) -> str:
    parts = [expression(rng, rng.choice([1, 2, 2, 3])) for _ in range(rng.choice([1, 2, 3]))]
    return f"def program(x, a, b, c, t, o, l):\n    o.k += 1\n    return ({', '.join(parts)},)\n"


def seen(value: Any) -> Any:
    """The compared form of a value: types, and strings, which distinguish zeros and NaNs."""
    return (type(value), [seen(v) for v in value]) if isinstance(value, (tuple, list)) else (type(value), repr(value))


def answer(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return seen(fn(*args))
    except pycompiler.errors.InternalError as e:
        return "a bug of ours", str(e)
    except Exception as e:
        return type(e), str(e)


def differs(text: str, rng: random.Random) -> str | None:
    """The results of a program in eager and compiled, if they differ."""
    names: dict[str, Any] = {"math": math, "torch": torch, "operator": operator}
    exec(compile(text, "<numbers>", "exec"), names)
    eager = names["program"]
    dynamic, backend = rng.choice([None, None, True]), rng.choice(["eager", "eager", "eager", "aot_eager"])
    compiled = pycompiler.compile(eager, backend=backend, dynamic=dynamic)
    ints, others, floats = rng.choice(INTS), rng.choice(INTS), rng.choice(FLOATS)
    counters = Counter(), Counter()
    for call in range(4):
        x = torch.ones(rng.choice(SHAPES) if rng.random() < 0.7 else (2 + call, 3))
        numbers = ints[call], others[call], floats[call], rng.random() < 0.5
        found = [
            answer(fn, x, *numbers, o, [0] * (call + 1)) for fn, o in zip((eager, compiled), counters, strict=True)
        ]
        if found[0] != found[1]:
            return (
                f"{text}{backend}, dynamic={dynamic}, call {call}, {tuple(x.shape)}, {numbers}: {found[0]}; {found[1]}"
            )
    return None


def run(seed: int) -> str | None:
    """The difference that the program of a seed exposes."""
    rng = random.Random(seed)
    text = program(rng)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return differs(text, rng)
    except SyntaxError:
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    pycompiler.config.raise_internal_errors = True
    failures = 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        if (found := run(seed)) is not None:
            failures += 1
            print(f"# seed {seed}\n{found}", flush=True)
    print(f"{arguments.count} programs, {failures} differ")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
