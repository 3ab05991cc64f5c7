import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import pycompiler

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "codegen")]
torch.set_num_threads(1)


@pytest.fixture
def without_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    pycompiler.reset()
    with torch.no_grad():
        yield
