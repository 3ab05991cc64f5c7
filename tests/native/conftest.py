"""Shared fixtures of the engine tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pycompiler import _native


@pytest.fixture(params=["offsets", "c_abi", "slow"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each way in which the engine reads tensors."""
    before = _native.force_tensor_level("offsets")
    if _native.force_tensor_level(request.param) != request.param:
        pytest.skip("the probe does not allow this level")
    yield request.param
    _native.force_tensor_level(before)
