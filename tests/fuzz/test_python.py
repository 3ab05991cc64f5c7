"""The program fuzzer by fixed seeds; each program with which it found a fault has a test by name in `tests/capture`."""

from __future__ import annotations

import logging
import os
import random
import signal
import warnings
from collections import Counter

import pytest
import torch

from fuzz import forks
from fuzz.forks import backend_of
from fuzz.python.check import difference
from fuzz.python.generate import generate
from fuzz.python.observe import Observer, TooMuch, first_difference
from fuzz.python.reduce import reduced
from fuzz.python.repair import repaired

PROGRAMS = 500
"""`python -m tests.fuzz.python --count 20000` continues with other seeds."""
EACH = 10


@pytest.mark.parametrize("first", range(0, PROGRAMS, EACH))
def test_random_programs_do_as_eager_does(first: int) -> None:
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            unsettled = Counter[str]()
            for seed in range(first, first + EACH):
                text, ended_by = generate(seed), set[str]()
                found = difference(text, backend_of(seed, "mixed"), ended_by)
                assert found is None, f"seed {seed}: {found}\n{text}"
                unsettled.update(ended_by)
            assert not forks.too_many(unsettled, EACH)
    finally:
        logging.disable(logging.NOTSET)


TOLD = """
import pycompiler
LOG = []
x = 3
def program(x):
    LOG.append(x)
    kept = [x, {what}]
    return kept
CHANGES = ["x = 4"]
"""


def test_a_program_that_eager_does_not_repeat_is_counted() -> None:
    text = TOLD.replace("{what}", "__import__('time').monotonic_ns()")
    ended_by = set[str]()
    assert difference(text, ended_by=ended_by) is None
    assert ended_by == {forks.UNSETTLED}
    assert difference(TOLD.replace("{what}", "x"), ended_by=(settled := set[str]())) is None
    assert not settled
    assert forks.too_many(Counter({forks.UNSETTLED: 5}), 1000) == []
    assert "6 of 1000 programs ended early" in forks.too_many(Counter({forks.UNSETTLED: 6}), 1000)[0]


@pytest.mark.parametrize("what", ["pycompiler.is_compiling()", "LOG if pycompiler.is_compiling() else []"])
def test_the_comparison_sees_values_and_identities(what: str) -> None:
    found = difference(TOLD.replace("{what}", what))
    assert found is not None
    assert found.startswith("call 0, result: ")


def test_texts_may_name_nodes_of_compiled_graphs() -> None:
    texts = "Output 0 of SplitBackward0 is a view", "Output 0 of AliasBackward0 is a view"
    assert first_difference(*texts, near=True) is None
    assert first_difference(*texts, near=False) is not None
    assert first_difference(texts[0], "Output 1 of AliasBackward0 is a view", near=True) is not None


def test_printed_numbers_may_round_as_numbers_may() -> None:
    eager = "t [3.46211717 3.96402758 2.5]\n"
    for rounded in (
        "t [3.46211714 3.96402758 2.5]\n",
        "t [3.46211717 3.96402758 2.50000024]\n",
        "t [ 3.46211717  3.96402758  2.5       ]\n",
    ):
        assert first_difference(eager, rounded, near=True) is None
        assert first_difference(eager, rounded, near=False) is not None
    for other in (
        "t [3.46 3.96402758 2.5]\n",
        "u [3.46211717 3.96402758 2.5]\n",
        "t [3.46211717 3.96402758 2]\n",
        "t [3.46211717 3.96402758]\n",
    ):
        assert first_difference(eager, other, near=True) is not None


def test_a_program_that_ends_eager_is_not_made() -> None:
    class Ends:
        def text(self, seed: int) -> str:
            if seed:
                os.kill(os.getpid(), signal.SIGKILL)
            return ""

    assert forks.is_made(Ends(), 0)
    assert not forks.is_made(Ends(), 1)


def test_looking_ends() -> None:
    grown: list[int] = [1] * 1000
    with pytest.raises(TooMuch):
        Observer().look([[i, list(grown)] for i in range(1000)])
    assert len(str(Observer().look(grown))) > 1000


ENDLESS = """
class Manager:
    def __enter__(self): ...
    def __exit__(self, *_):
        return True
def f():
    with Manager():
        return [f() for _ in range(3)]
def program():
    return f()
CHANGES = []
"""


def test_a_program_that_catches_its_own_stop_is_left_out() -> None:
    assert repaired(ENDLESS, random.Random(0)) is None


def test_a_failing_program_is_cut_down() -> None:
    text = TOLD.replace("{what}", "[1, max(x, pycompiler.is_compiling())]")
    small = reduced(text, lambda candidate: "max" in candidate and "is_compiling" in candidate)
    assert "LOG" not in small
    assert "kept" in small
    assert len(small.splitlines()) <= 4, small


def test_a_seed_is_one_program() -> None:
    assert generate(11) == generate(11)


def test_the_order_of_tensors_in_a_set_is_not_compared() -> None:
    one, other = ([torch.full((2,), v) for v in values] for values in ((1.0, 2.0), (2.0, 1.0)))
    assert Observer().look(set(one)) == Observer().look(set(other))
