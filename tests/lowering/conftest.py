import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import pycompiler
from pycompiler.ir import phases
from tests.harness.built_plans import BuiltPlans

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "codegen")]
torch.set_num_threads(1)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> BuiltPlans:
    """The plans that the test builds.  Equal graphs of other tests, which share their plans, are forgotten."""
    pycompiler.reset()
    made = BuiltPlans()
    monkeypatch.setattr(phases, "observers", [*phases.observers, made])
    return made


@pytest.fixture
def without_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    pycompiler.reset()
    with torch.no_grad():
        yield
