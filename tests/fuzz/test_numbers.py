"""Random expressions of numbers (`numbers.py`): fixed seeds, and the faults found so far."""

from __future__ import annotations

import random

import pytest

from fuzz import numbers

FOUND = {
    "a shift of a float": "2.0 << x.shape[0]",
    "bits of floats": "c & a",
    "a complex power": "b ** 0.5",
    "a power of NaN": "c ** x.shape[1]",
    "a negative power of a negative number": "a ** a",
    "a zero's sign": "c // x.shape[0]",
    "a quotient that is rounded up": "c // 0.1",
    "an index that is a float": "operator.index(c)",
    "an index that is a truth": "operator.index(x.shape[1] == x.shape[0])",
    "a division by a float that is zero": "math.copysign(1, (b / c))",
    "a remainder by a float that is zero": "b % c",
    "a remainder by an int that is zero": "2.0 % b",
    "a zero over a negative number": "x.shape[0] / a, t / a",
    "a slice as a key": "{1: 2}.get(slice(a))",
}


@pytest.mark.parametrize("text", FOUND.values(), ids=FOUND)
def test_found(text: str) -> None:
    for seed in range(24):
        assert (
            numbers.differs(f"def program(x, a, b, c, t, o, l):\n    return ({text},)\n", random.Random(seed)) is None
        )


@pytest.mark.parametrize("part", range(10))
def test_fixed_seeds(part: int) -> None:
    assert [found for seed in range(50 * part, 50 * part + 50) if (found := numbers.run(seed)) is not None] == []
