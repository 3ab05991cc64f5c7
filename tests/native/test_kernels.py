"""The engine's own kernels, called with what no plan passes."""

from __future__ import annotations

import pytest
import torch

from pycompiler import _native


@pytest.mark.skipif(not _native.matrix_product_vectors(1), reason="this processor has no vectors for the kernel")
@pytest.mark.parametrize("filters", [0, 1])
def test_a_panic_is_an_exception(filters: int, capfd: pytest.CaptureFixture[str]) -> None:
    """A window without elements divides by zero."""
    numbers = [1] * 25
    numbers[0] = numbers[10] = numbers[18] = 0
    numbers[24] = filters
    image, weight, out = torch.ones(1), torch.ones(1), torch.full((1,), 7.0)
    with pytest.raises(RuntimeError, match="internal error of the engine in a kernel"):
        _native.convolution([t.data_ptr() for t in (image, weight, out)], numbers, 1)
    assert "divide by zero" in capfd.readouterr().err
