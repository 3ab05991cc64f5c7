"""The fuzzer of NumPy on fixed seeds."""

from __future__ import annotations

import pytest

from tests.fuzz import arrays


@pytest.mark.parametrize("seed", range(60))
def test_programs_of_arrays(seed: int) -> None:
    arrays.run(seed)


@pytest.mark.parametrize("seed", range(1000, 1015))
def test_kernels(seed: int) -> None:
    arrays.run(seed, "native")


def test_programs_give_results() -> None:
    """A fuzzer whose programs all raise at once would find nothing."""
    assert sum(arrays.run(seed) for seed in range(2000, 2010)) > 7
