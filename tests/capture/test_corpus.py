"""Every function of the corpus behaves compiled as it does in eager Python."""

from __future__ import annotations

import pytest
from capture.corpus import (
    arguments,
    classes,
    closures,
    containers,
    control,
    iteration,
    modules,
    protocols,
    scalars,
    tensors,
)
from capture.harness import Case, cases, check_case

MODULES = (arguments, classes, closures, containers, control, iteration, modules, protocols, scalars, tensors)


@pytest.mark.parametrize("case", cases(*MODULES))
def test_corpus(case: Case) -> None:
    check_case(case)
