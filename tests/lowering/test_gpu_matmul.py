"""Which products of matrices on a GPU the engine passes to cuBLASLt, and that they are the program's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pycompiler import _native, config, graphs
from pycompiler.ir.plan import Alloc, Aten, GpuProduct, Plan
from pycompiler.lowering import gpu_matmul
from pycompiler.runtime.plan_python import PythonPlan

BF16 = torch.bfloat16
GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def with_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pytest.importorskip("triton")
    monkeypatch.setattr(_native, "has_gpu_products", lambda: True)
    yield


def planned(f: Callable[..., Any], *inputs: Tensor) -> Plan:
    """The plan for such inputs on a GPU."""
    with FakeTensorMode():
        args = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=GPU) for t in inputs]
        gm = make_fx(f)(*args)
    return graphs.planned(gm, "products")[1]


def counts(plan: Plan) -> tuple[int, int]:
    """Products by the engine, and calls of ATen's operators."""
    return sum(isinstance(s, GpuProduct) for s in plan.steps), sum(isinstance(s, Aten) for s in plan.steps)


def on_host(plan: Plan, *inputs: Tensor) -> Any:
    """The outputs of a plan without kernels, on the CPU."""
    host = torch.device("cpu")
    steps = [dataclasses.replace(s, device=host) if isinstance(s, Alloc) else s for s in plan.steps]
    return PythonPlan(dataclasses.replace(plan, steps=steps))(*inputs)


def r(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def far(rows: int, columns: int) -> Tensor:
    """A matrix whose rows are 16 elements further apart than they are long."""
    return r(rows, columns + 16)[:, :columns]


CASES: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "contiguous": (lambda x, w: x @ w, [r(33, 64), r(64, 40)]),
    "linear layer": (lambda x, w, b: torch.addmm(b, x, w.permute(1, 0)), [r(33, 64), r(40, 64), r(40)]),
    "gradient of a weight": (lambda x, g: x.permute(1, 0) @ g, [r(40, 64), r(40, 48)]),
    "float32": (lambda x, w: x @ w, [r(33, 64, dtype=torch.float32), r(64, 40, dtype=torch.float32)]),
    "float16": (lambda x, w: x @ w, [r(33, 64, dtype=torch.float16), r(64, 40, dtype=torch.float16)]),
    "rows apart": (lambda x, w: x @ w, [far(33, 64), far(64, 40)]),
    "a part of a matrix": (lambda x, w: x[3:20, 8:72] @ w, [r(33, 96), r(64, 40)]),
    "batches": (lambda x, y: torch.bmm(x, y.permute(0, 2, 1)), [r(3, 33, 64), r(3, 40, 64)]),
    "one matrix for all batches": (lambda x, y: torch.bmm(x, y.expand(3, 64, 40)), [r(3, 33, 64), r(64, 40)]),
    "two in turn": (lambda x, w: (x @ w) @ w, [r(33, 64), r(64, 64)]),
}


@pytest.mark.parametrize("name", CASES)
def test_products_of_aligned_matrices_are_the_engines(name: str) -> None:
    f, inputs = CASES[name]
    plan = planned(f, *inputs)
    assert counts(plan) == (2 if name == "two in turn" else 1, 0)
    found, expected = on_host(plan, *inputs)[0], f(*inputs)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()


OTHERS: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "odd columns": (lambda x, w: x @ w, [r(33, 64), r(64, 41)]),
    "odd depth": (lambda x, w: x @ w, [r(33, 63), r(63, 40)]),
    "odd offset": (lambda x, w: x[:, 1:65] @ w, [r(33, 72), r(64, 40)]),
    "overlapping rows": (lambda x, w: x.as_strided((33, 64), (8, 1)) @ w, [r(500), r(64, 40)]),
    "expanded row": (lambda x, w: x.expand(33, 64) @ w, [r(64), r(64, 40)]),
    "neither direction": (lambda x, w: x.as_strided((33, 64), (128, 2)) @ w, [r(5000), r(64, 40)]),
    "float64": (lambda x, w: x @ w, [r(33, 64, dtype=torch.float64), r(64, 40, dtype=torch.float64)]),
    "complex": (lambda x, w: x @ w, [r(33, 64, dtype=torch.complex64), r(64, 40, dtype=torch.complex64)]),
    "scaled": (lambda x, w, b: torch.addmm(b, x, w, alpha=2), [r(33, 64), r(64, 40), r(40)]),
    "a bias of rows": (lambda x, w, b: torch.addmm(b, x, w), [r(33, 64), r(64, 40), r(33, 40)]),
    "a bias of gaps": (lambda x, w, b: torch.addmm(b[::2], x, w), [r(33, 64), r(64, 40), r(80)]),
    "one row": (lambda x, w: x @ w, [r(1, 640), r(640, 40)]),
    "nothing": (lambda x, w: x @ w, [r(33, 0), r(0, 40)]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_are_atens(name: str) -> None:
    f, inputs = OTHERS[name]
    products, _ = counts(planned(f, *inputs))
    assert products == 0


def test_settings_of_precision_leave_products_to_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul, f = torch.backends.cuda.matmul, CASES["float32"][0]
    floats, halves = CASES["float32"][1], CASES["float16"][1]
    before = matmul.allow_tf32
    try:
        matmul.allow_tf32 = True
        assert counts(planned(f, *floats)) == (0, 1)
        assert counts(planned(f, *halves)) == (1, 0)
    finally:
        matmul.allow_tf32 = before
    before = matmul.allow_fp16_accumulation
    try:
        matmul.allow_fp16_accumulation = True
        assert counts(planned(f, *floats)) == (1, 0)
        assert counts(planned(f, *halves)) == (0, 1)
    finally:
        matmul.allow_fp16_accumulation = before
    monkeypatch.setattr(config, "engine_products", False)
    assert counts(planned(f, *floats)) == (0, 1)


@pytest.mark.parametrize(("dtype", "capability", "multiplied"), [
    (BF16, (7, 5), False), (BF16, (8, 0), True), (BF16, (9, 0), True), (torch.float16, (7, 5), True),
])  # fmt: skip
def test_bfloat16_needs_a_gpu_that_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, capability: tuple[int, int], multiplied: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert gpu_matmul.multiplies(GPU, dtype) == multiplied


def test_a_torch_without_the_library_calls_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "has_gpu_products", lambda: False)
    f, inputs = CASES["contiguous"]
    assert counts(planned(f, *inputs)) == (0, 1)


def test_what_the_library_refuses_is_atens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_matmul, "workspace_of", lambda product: None if product.sizes[2] == 40 else 512)
    assert counts(planned(*_of("contiguous"))) == (0, 1)
    assert counts(planned(*_of("gradient of a weight"))) == (1, 0)


def _of(name: str) -> tuple[Any, ...]:
    f, inputs = CASES[name]
    return f, *inputs


def test_products_share_one_workspace() -> None:
    f, inputs = CASES["two in turn"]
    plan = planned(f, *inputs)
    products = [s for s in plan.steps if isinstance(s, GpuProduct)]
    spaces = {s.slots[3] for s in products}
    assert len(spaces) == 1
    (space,) = spaces
    assert [s.shape for s in plan.steps if isinstance(s, Alloc) and s.slot == space] == [(products[0].workspace,)]
    assert space in plan.steps[plan.steps.index(products[-1]) + 1].slots  # type: ignore[union-attr]
