"""The engine's own kernels, called with what no plan passes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from pycompiler import _native

ALONE = """
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.ExtensionFileLoader("_native", sys.argv[1])
native = importlib.util.module_from_spec(importlib.util.spec_from_loader("_native", loader))
loader.exec_module(native)
print(native.matrix_product_vectors(1), native.matrix_product_vectors(2))
"""


def test_no_product_has_two_threads_where_no_library_for_threads_is_loaded() -> None:
    """torch loads the library."""
    done = subprocess.run([sys.executable, "-c", ALONE, _native.__file__], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(_native.matrix_product_vectors(1)), "0"]
    assert _native.matrix_product_vectors(2) == _native.matrix_product_vectors(1)


@pytest.mark.skipif(not _native.matrix_product_vectors(1), reason="this processor has no vectors for the kernel")
@pytest.mark.parametrize("filters", [0, 1])
def test_a_panic_is_an_exception(filters: int, capfd: pytest.CaptureFixture[str]) -> None:
    """A window without elements divides by zero."""
    numbers = [1] * 26
    numbers[0] = numbers[10] = numbers[18] = numbers[25] = 0
    numbers[24] = filters
    image, weight, out = torch.ones(1), torch.ones(1), torch.full((1,), 7.0)
    with pytest.raises(RuntimeError, match="internal error of the engine in a kernel"):
        _native.convolution([t.data_ptr() for t in (image, weight, out)], numbers, 1)
    assert "divide by zero" in capfd.readouterr().err
