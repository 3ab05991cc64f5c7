"""Products of matrices on a GPU, without a GPU: `fake_driver.c` stands for cuBLASLt and multiplies on the host."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pycompiler import _native
from pycompiler.ir.plan import Alloc, Free, GpuProduct, Plan
from pycompiler.runtime.plan_python import PythonPlan
from pycompiler.runtime.rules import PlanError, check_plan

sys.path.insert(0, str(Path(__file__).parent))
from launch_cases import notes
from plan_cases import f32

GPU = torch.device("cuda", 0)
BYTES = 4096  # of workspace
CONTIGUOUS = ((20, 5, 1), (15, 3, 1), (12, 3))  # strides of 2 products of 4 x 5 by 5 x 3


def step_of(**fields: Any) -> GpuProduct:
    """A product of the inputs 0 and 1 into slot 3; input 2 is the bias, slot 4 the workspace."""
    product = GpuProduct(GPU, torch.float32, (0, 1, 3, 4), (0, 0, 0, 0), (2, 4, 3, 5), CONTIGUOUS, BYTES)
    return dataclasses.replace(product, **fields)


def plan_of(step: GpuProduct) -> Plan:
    memory = Alloc(4, (BYTES,), (1,), torch.uint8, torch.device("cpu"))
    plan = Plan(3, 5, [f32(3, 100), memory, step, Free((4,))], [3], name="hand")
    check_plan(plan)
    return plan


WITH_BIAS = {"slots": (0, 1, 3, 4, 2), "offsets": (0, 0, 0, 0, 0), "sizes": (1, 4, 3, 5)}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "batches": ({}, "product 4 3 5 batches 2 transposed 0 0 bias 0"),
    "right transposed": ({"strides": ((20, 5, 1), (15, 1, 5), (12, 3))}, "batches 2 transposed 1 0 bias 0"),
    "left transposed": ({"strides": ((20, 1, 4), (15, 3, 1), (12, 3))}, "batches 2 transposed 0 1 bias 0"),
    "rows apart": ({"strides": ((40, 9, 1), (30, 1, 6), (24, 5))}, "batches 2 transposed 1 0 bias 0"),
    "one matrix for all": ({"strides": ((20, 5, 1), (0, 3, 1), (12, 3))}, "batches 2 transposed 0 0 bias 0"),
    "bias": (WITH_BIAS, "product 4 3 5 batches 1 transposed 0 0 bias 1"),
    "bias and offsets": ({**WITH_BIAS, "offsets": (4, 8, 12, 0, 4)}, "bias 1 alignment 16"),
    "odd offsets": ({**WITH_BIAS, "offsets": (1, 8, 12, 0, 4)}, "bias 1 alignment 4"),
}


def inputs() -> list[torch.Tensor]:
    return [torch.randn(100) for _ in range(3)]


@pytest.mark.parametrize("name", CASES)
def test_products_are_those_of_the_python_plan(driver: Any, name: str) -> None:
    fields, note = CASES[name]
    plan, given = plan_of(step_of(**fields)), inputs()
    expected = torch.zeros(100)
    for slot, shape, strides, offset in plan.steps[2].views[2:3]:  # type: ignore[union-attr]
        assert slot == 3
        whole = PythonPlan(plan)(*given)[0]
        expected = whole.as_strided(shape, strides, offset)
        found = _native.Plan(plan)(*given)[0].as_strided(shape, strides, offset)
    torch.testing.assert_close(found, expected)
    (line,) = notes(driver)
    assert note in line and f"workspace {BYTES}" in line


def test_it_starts_on_the_current_stream_and_leaves_nothing_behind(driver: Any) -> None:
    before = driver.fake_lt_alive()
    driver.fake_stream(0, 1234)
    plan = _native.Plan(plan_of(step_of()))
    assert plan.routes == ["alloc", "place", "product", "free"]
    assert driver.fake_lt_alive() > before
    for _ in range(3):
        plan(*inputs())
    assert all(line.endswith(f"stream {hex(1234)}") for line in notes(driver)) and len(notes(driver)) == 3
    del plan
    assert driver.fake_lt_alive() == before


def test_a_product_without_an_algorithm_is_refused_when_the_plan_is_built(driver: Any) -> None:
    driver.fake_lt_refuses(1)
    try:
        with pytest.raises(
            RuntimeError, match="graph hand, step 2 .*cuda:0: cublasLtMatmulAlgoGetHeuristic: .*NOT_SUPPORTED"
        ):
            _native.Plan(plan_of(step_of()))
    finally:
        driver.fake_lt_refuses(0)


def test_the_workspace_is_enough_for_all_addresses(driver: Any) -> None:
    assert _native.gpu_product_workspace(step_of()) == 1024  # more than for aligned addresses
    driver.fake_lt_refuses(1)
    try:
        assert _native.gpu_product_workspace(step_of()) is None
    finally:
        driver.fake_lt_refuses(0)
    with pytest.raises(ValueError, match="without a number"):
        _native.gpu_product_workspace(step_of(device=torch.device("cuda")))


@pytest.mark.parametrize(
    "fields",
    [
        {"strides": ((20, 4, 1), (15, 3, 1), (12, 3))},  # rows of left overlap
        {"strides": ((20, 5, 2), (15, 3, 1), (12, 3))},  # neither direction is contiguous
        {"strides": ((20, 5, 1), (15, 3, 1), (12, 2))},  # rows of out overlap
        {"sizes": (2, 0, 3, 5)},
        {"offsets": (-1, 0, 0, 0)},
    ],
)
def test_matrices_that_are_none_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="matrix product"):
        plan_of(step_of(**fields))
