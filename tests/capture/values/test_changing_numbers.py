"""Numbers and strings that change with each call and decide a branch, are
divisors, or are stored: found by attacks on entries that serve all values."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture.outliving import Kept, compiles_over

import pycompiler
from pycompiler import config

Call = tuple[Any, ...]


@pytest.fixture(autouse=True)
def raise_internal_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "raise_internal_errors", True)


def same(program: Callable[..., Any], calls: list[Call], **state: Any) -> int:
    """Compare results, errors and state with eager after each call; return the number of compiles."""
    return compiles_over(program, lambda: Kept(**copy.deepcopy(state)), calls, lambda i, kept, call: (kept, *call))


def test_a_store_behind_stores_that_were_looked_at() -> None:
    def texts(s: Any, k: int) -> None:
        s.d[f"loss/{k}"] = k
        s.d[f"all/{k}"] = [k]
        n = len(s.d)
        s.d[f"n/{k}"] = n

    def numbers(s: Any, k: int) -> None:
        s.d[k] = 1
        s.d[k + 100] = []
        s.d.get(0)
        s.d[k + 200] = 2

    def counted(s: Any, k: float) -> None:
        s.d[k] = 1
        s.d[k + 100] = [4]
        s.d[k + k] = s.d.get(k + k, 0) + 1

    assert same(texts, [(k,) for k in range(1, 9)], d={}) <= 4
    assert same(numbers, [(k,) for k in range(1, 9)], d={}) <= 4
    assert same(counted, [(k + 0.5,) for k in range(1, 9)], d={}) <= 4


QUESTIONS: list[Callable[[int, float], Any]] = [
    lambda n, x: n > x, lambda n, x: n == float(n), lambda n, x: n != x, lambda n, x: n == x + 0.5, lambda n, x: x == n + 1,
    lambda n, x: x < 2**53 + 1, lambda n, x: n * n + 1 > x, lambda n, x: n < x, lambda n, x: x == 2**53 + 1,
    lambda n, x: x * 2 > n, lambda n, x: n * 10**30 > x, lambda n, x: x / (n + 1) > n,
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_integers_beside_floats_are_compared_exactly(number: int) -> None:
    def program(s: Any, n: int, x: float) -> None:
        s.q = QUESTIONS[number](n, x)

    calls: list[Call] = [
        (1, 1.5),
        (2, 2.5),
        (3, 0.5),
        (2**53 + 1, 2.0**53),
        (2**62 - 1, 2.0**62),
        (5, 2.0**53),
        (10**30, 0.5),
    ]
    same(program, [*calls, (0, 0.5), (7, 3.5), (4, 2.5)])


def test_what_an_operator_refuses_is_refused_in_the_program() -> None:
    def handled(s: Any, n: int, x: float) -> None:
        try:
            s.q = x / (n - x)
        except ZeroDivisionError:
            s.q = "zero"

    def roots(s: Any, n: int) -> None:
        s.log.append(1)
        s.log.append(1.5 / math.sqrt(n))

    def powers(s: Any, n: int, x: float) -> None:
        s.log.append((n / 2) ** -1.5)
        s.log.append(x % (n - 2))
        s.log.append(math.log2(n))

    def product(s: Any, n: int, x: float) -> None:
        s.log.append(1)
        s.log.append(f"{1.5 / (n * x)}")

    same(handled, [(1, 2.5), (2, 3.5), (3, 4.5), (4, 4.0), (5, 5.0), (6, 1.5), (7, 1.5)])
    same(roots, [(3,), (4,), (5,), (0,), (-3,), (9,), (-5,)], log=[])
    same(powers, [(3, 2.5), (4, 3.5), (5, 4.5), (2, 0.5), (0, 1.5), (-4, 2.5), (7, 2.0)], log=[])
    same(product, [(3, 2.5), (4, 3.5), (5, 4.5), (4, 0.0), (7, 1.5)], log=[])


def test_an_error_whose_text_names_a_float_that_changes() -> None:
    def program(s: Any, x: float) -> Any:
        s.n = 1
        return s.d[x + x]

    same(program, [(k + 0.5,) for k in range(5)], d={}, n=0)


def test_texts_that_are_refused_for_what_the_number_is() -> None:
    def large(s: Any, n: int) -> None:
        x = n
        try:
            for _ in range(5):
                x = x * x
            s.text = "%.2f" % x
        except OverflowError as e:
            s.text = str(e)

    def digits(s: Any, n: int) -> None:
        s.log.append(1)
        s.text = f"{n**512}"

    def length(s: Any, v: float) -> None:
        s.log.append(1)
        s.log.append("%ld" % v)

    def letter(s: Any, n: int) -> None:
        s.log.append(1)
        s.log.append("%lc" % n)

    same(large, [(2,), (3,), (5,), (7,), (10**12,), (10**15,), (4,)], text="")
    same(digits, [(2,), (3,), (5,), (10**9,), (10**9 + 1,)], text="", log=[])
    same(length, [(1.5,), (2.5,), (3.5,), (math.inf,)], log=[])
    same(letter, [(65,), (66,), (67,), (0x110000,)], log=[])


def test_products_beyond_what_the_engine_counts_with() -> None:
    def program(s: Any, n: int, m: int, w: float) -> None:
        s.q = n * m != w

    same(program, [(3, 2, 2.5), (4, 3, 1.5), (7, 0, 0.5), (10**30, 0, 0.5), (10**30, 2, 0.5)])


FAR = 2**63 + 2
INSIDE: dict[str, Callable[..., Any]] = {
    "a comparison": lambda x, k: (x + 1, k * FAR % 7 == 3),
    "an operand": lambda x, k: (x + (k * FAR % 7), k),
    "a quotient": lambda x, k: (x + (k * FAR // 2**62), k),
    "a size": lambda x, k: (x[: k * FAR % 3 + 1], k),
    "an index": lambda x, k: (x + 1, [1, 2, 3][k * FAR % 3]),
    "a text": lambda x, k: (x + 1, f"{k * FAR % 7}" in "135"),
    "a float": lambda x, k: (x * (k * FAR % 7 / 2 + 0.5), k * FAR / 3 > 2.0**64),
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", INSIDE)
def test_what_the_engine_does_not_count_with_inside_of_a_number(name: str, backend: str) -> None:
    compiled = pycompiler.compile(INSIDE[name], backend=backend)
    for k in (3, 4, 5, 6, 9, -4):
        got, want = compiled(torch.arange(4.0), k), INSIDE[name](torch.arange(4.0), k)
        assert torch.equal(got[0], want[0]) and got[1] == want[1], k


def test_powers_and_functions_of_numbers_that_count_up() -> None:
    def program(s: Any, n: int) -> None:
        s.rate = 0.95**n, 1.5**n, math.cos(n / 7), (n * 0.5) % 3.0, 2.0 ** (n - 5)

    def beyond(s: Any, n: int) -> None:
        s.log.append(1)
        s.rate = 10.0**n, math.exp(n * 1.0)

    assert same(program, [(n,) for n in range(2, 14)], rate=0) <= 3
    same(beyond, [(2,), (3,), (4,), (400,), (5,), (-400,), (10**6,), (0,)], rate=0, log=[])
