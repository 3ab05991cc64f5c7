"""The fuzzer of sizes on fixed seeds: one compile serves calls of other sizes."""

from __future__ import annotations

import pytest
import seams

from tests import symbolic_sizes
from tests.fuzz import shapes


@pytest.mark.parametrize("seed", range(60))
def test_aten_graphs(seed: int) -> None:
    shapes.run(seed, symbolic_sizes.as_aten)


@pytest.mark.parametrize("seed", range(1000, 1040))
def test_kernels(seed: int) -> None:
    shapes.run(seed)


def test_most_calls_are_served() -> None:
    """A compile that assumed every size would be correct but useless."""
    assert sum(shapes.run(seed, symbolic_sizes.as_aten) for seed in range(10)) > 10 * shapes.CALLS // 2


@pytest.mark.parametrize("seam", ["program", "schedule", "memory", "plan"])
@pytest.mark.parametrize("seed", range(4))
def test_oracles_run_symbolic_programs(seed: int, seam: str) -> None:
    assert shapes.run(seed, seams.SEAMS[seam]) > 0
