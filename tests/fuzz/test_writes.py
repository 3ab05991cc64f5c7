"""Random programs that write memory under many names (`writes.py`): fixed seeds."""

from __future__ import annotations

import warnings

import pytest

from fuzz import writes


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(10))
def test_fixed_seeds(part: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [writes.difference(seed, "eager") for seed in range(30 * part, 30 * part + 30)]
    assert [text for text in found if text is not None] == []


@pytest.mark.parametrize("call", (0, 1))
def test_a_lost_write_is_found(call: int) -> None:
    """The judge sees a write that reaches only one of two aliases."""
    x, _, a, _, _ = writes.arguments(call)
    assert writes.same([x, a], [x.clone(), a.copy()])
    assert not writes.same([x, a], [x + 1, a]) and not writes.same([x, a], [x.double(), a])
    aliased, copied = (
        writes.outcome(lambda x, *_: [x], call, True),
        writes.outcome(lambda x, *_: [x.clone()], call, True),
    )
    assert not writes.same(aliased, copied)
