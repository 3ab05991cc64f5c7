"""The break fuzzer by fixed seeds; each program with which it found a fault has a test by name in `tests/capture`."""

from __future__ import annotations

import logging
import warnings

import pytest

from fuzz.break_check import difference, reduced
from fuzz.break_programs import generate, line, source
from fuzz.forks import backend_of

PROGRAMS = 40
EACH = 10


@pytest.mark.parametrize("first", range(0, PROGRAMS, EACH))
def test_random_programs_do_as_eager_does(first: int) -> None:
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for seed in range(first, first + EACH):
                program = generate(seed)
                found = difference(source(program), backend_of(seed, "mixed"))
                assert found is None, f"seed {seed}: {found}\n{source(program)}"
    finally:
        logging.disable(logging.NOTSET)


def test_the_comparison_sees_a_difference_and_the_reducer_cuts_it_out() -> None:
    told = "def program(x, n, flag, items, table, box, log):\n    return x + pycompiler.is_compiling()\n"
    found = difference(told)
    assert found is not None
    assert "result" in found
    program = [line("a = 1"), line("b = 2"), line("c = 3")]
    assert source(reduced(program, lambda text: "b = 2" in text)) == "b = 2\n"
