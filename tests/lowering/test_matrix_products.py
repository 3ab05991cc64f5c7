"""Products of matrices in inference graphs: by the engine's kernel, whose bits depend on a row and a column alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler
from pycompiler import _native, config
from pycompiler.ir.plan import Aten, Product
from pycompiler.runtime.output_code import output_code
from tests.harness.built_plans import BuiltPlans
from tests.harness.compare import assert_same

pytestmark = [
    pytest.mark.usefixtures("without_gradients"),
    pytest.mark.skipif(_native.matrix_product_vectors(1) == 0, reason="this processor has no AVX2"),
]


CHAIN = 256  # as in guards-rs/src/ffi/product.rs


def chains(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight.T as a sum of chains of fused multiply-adds for each result: a product of floats is exact in double."""
    total: torch.Tensor | None = None
    for begin in range(0, x.shape[1], CHAIN):
        chain = torch.zeros(x.shape[0], weight.shape[0])
        for k in range(begin, min(begin + CHAIN, x.shape[1])):
            chain = (x[:, k, None].double() * weight[:, k].double() + chain.double()).float()
        total = chain if total is None else total + chain
    assert total is not None
    return total


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(48, 48)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.inner(x)
        return y, y.t().relu(), (y * 2).sum(0)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "linear": (lambda: nn.Linear(64, 128), (20, 64), 1),
    "without a bias": (lambda: nn.Linear(64, 128, bias=False), (20, 64), 1),
    "of more dimensions": (lambda: nn.Linear(24, 40), (2, 3, 7, 24), 1),
    "deep": (lambda: nn.Linear(2500, 33), (9, 2500), 1),
    "layers": (lambda: nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 50), nn.Softmax(-1)), (33, 64), 2),
    "read twice": (Twice, (16, 48), 1),
    "1 x 1 windows": (lambda: nn.Sequential(nn.Conv2d(3, 32, 3), nn.Conv2d(32, 24, 1)), (2, 3, 12, 12), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_products_are_by_the_engine(name: str, plans: BuiltPlans) -> None:
    make, shape, products = MODULES[name]
    model, x = make(), torch.randn(shape)
    compiled = pycompiler.compile(model, fullgraph=True)
    for given in (x, -2 * x):
        assert_same(compiled(given), model(given), tolerance=1e-4)
    assert plans.count(Product) == products


def test_each_result_is_a_sum_of_chains_of_fused_multiply_adds(plans: BuiltPlans) -> None:
    linear = nn.Linear(300, 70, bias=False)
    x = torch.randn(19, 300)
    x[3], x[4, 5], linear.weight[7, 9] = 0.0, float("inf"), float("nan")
    have = pycompiler.compile(linear)(x)
    assert plans.count(Product) == 1
    assert torch.equal(have.nan_to_num(), chains(x, linear.weight).nan_to_num())
    assert torch.equal(have.isnan(), chains(x, linear.weight).isnan())


@pytest.mark.parametrize("threads", [1, 2])
def test_the_bits_of_a_row_depend_on_no_other_row(threads: int) -> None:
    linear = nn.Linear(200, 300)
    x = torch.randn(400, 200)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        compiled = pycompiler.compile(linear, dynamic=True, fullgraph=True)
        whole = compiled(x)
        for rows in (slice(0, 2), slice(3, 10), slice(100, 228), slice(398, 400)):  # a single row is another graph's
            assert torch.equal(compiled(x[rows]), whole[rows])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(whole, chains(x, linear.weight) + linear.bias)


def test_a_symbolic_number_of_rows(plans: BuiltPlans) -> None:
    linear = nn.Linear(32, 48)
    compiled = pycompiler.compile(linear, dynamic=True, fullgraph=True)
    for rows in (12, 1, 7, 100, 0):
        x = torch.randn(rows, 32)
        assert_same(compiled(x), linear(x), tolerance=1e-5)
    assert plans.count(Product) >= 1


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t(),
    "every other column": lambda x: x[:, ::2],
    "an offset": lambda x: x[3:, 5:],
    "expanded": lambda x: x[0].expand(40, -1),
    "flipped": lambda x: x.flip(1),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("outside", [True, False])
def test_left_matrices_of_any_layout(view: str, outside: bool, plans: BuiltPlans) -> None:
    x = torch.randn(40, 40)
    given = VIEWS[view](x)
    weight = torch.randn(30, given.shape[1])

    def inside(x: torch.Tensor) -> torch.Tensor:
        return VIEWS[view](x) @ weight.t()

    compiled: Any = pycompiler.compile(lambda t: t @ weight.t() if outside else inside(t), fullgraph=True)
    assert torch.equal(compiled(given if outside else x), chains(given, weight))
    assert plans.count(Product) == 1


def test_right_matrices_of_any_offset_and_stride(plans: BuiltPlans) -> None:
    whole = torch.randn(50, 90)
    x = torch.randn(10, 60)
    compiled = pycompiler.compile(lambda x, w: x @ w[7:41, 11:71].t(), fullgraph=True)
    assert torch.equal(compiled(x, whole), chains(x, whole[7:41, 11:71]))
    assert plans.count(Product) == 1


@pytest.mark.parametrize(("rows", "columns"), [(6, 16), (20, 33), (13, 100), (70, 64), (128, 300)])
def test_right_matrices_of_rows(rows: int, columns: int, plans: BuiltPlans) -> None:
    """As GPT-2 has its weights, also side by side in one matrix."""
    x, whole = torch.randn(rows, 300), torch.randn(310, columns + 21)
    compiled = pycompiler.compile(lambda x, w: x @ w[7:307, 5 : columns + 5], fullgraph=True)
    want = chains(x, whole[7:307, 5 : columns + 5].t())
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(compiled(x, whole), want)
    finally:
        torch.set_num_threads(before)
    assert plans.count(Product) == 1


def doubles(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.double() @ w.double().t()


OTHERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a right matrix with gaps": lambda x, w: x[:, ::2] @ w[:, ::2].t(),
    "few rows": lambda x, w: x[:5] @ w.t(),
    "few columns": lambda x, w: x @ w[:15].t(),
    "doubles": doubles,
    "half precision": lambda x, w: x.bfloat16() @ w.bfloat16().t(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_are_operators_of_aten(name: str, plans: BuiltPlans) -> None:
    x, w = torch.randn(20, 40), torch.randn(30, 40)
    compiled = pycompiler.compile(OTHERS[name], fullgraph=True)
    assert_same(compiled(x, w), OTHERS[name](x, w), tolerance=1e-4 if name != "half precision" else 1e-2)
    assert (plans.count(Product), plans.count(Aten)) == (0, 1)


def test_training_graphs_and_the_knob_keep_aten(plans: BuiltPlans) -> None:
    linear, x = nn.Linear(64, 64), torch.randn(20, 64)
    with torch.enable_grad():
        pycompiler.compile(linear)(x).sum().backward()
    with config.patch(engine_products=False):
        assert torch.equal(pycompiler.compile(linear)(x), linear(x))
    pycompiler.compile(linear, options={"engine_products": False})(x)
    assert plans.count(Product) == 0 and plans.count(Aten) >= 3


def test_reduced_precision_is_atens(plans: BuiltPlans) -> None:
    linear, x = nn.Linear(64, 64), torch.randn(20, 64)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        pycompiler.compile(linear)(x)
    finally:
        torch.set_float32_matmul_precision(before)
    assert plans.count(Product) == 0


def test_changed_weights_are_read(plans: BuiltPlans) -> None:
    """The kernel reads the weight where it is: nothing of an earlier call is kept."""
    linear, x = nn.Linear(64, 64), torch.randn(20, 64)
    compiled = pycompiler.compile(linear)
    compiled(x)
    linear.weight.data.numpy()[:] = 1.0
    assert_same(compiled(x), linear(x), tolerance=1e-4)
    linear.weight.data = torch.zeros(64, 64)
    assert torch.equal(compiled(x), linear.bias.expand(20, 64))
    assert plans.count(Product) == 1


def test_deep_products_are_as_close_as_eager_is() -> None:
    """Terms of one sign lose most digits in a single chain."""
    x, linear = torch.rand(16, 20_000), nn.Linear(20_000, 32, bias=False)
    linear.weight.uniform_(0.0, 1.0)
    exact = x.double() @ linear.weight.double().t()
    far = ((pycompiler.compile(linear)(x) - exact) / exact).abs().max()
    assert far < 2e-6
    assert_same(pycompiler.compile(linear)(x), linear(x))


@torch.library.custom_op("test_matrix_products::turned", mutates_args=())
def turned(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t() * 2


@torch.library.custom_op("test_matrix_products::fewer", mutates_args=())
def fewer(x: torch.Tensor) -> torch.Tensor:
    return x[:10].clone()


@turned.register_fake
@fewer.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_operators_whose_fakes_are_wrong() -> None:
    """The kernel reads by address, so that the plan checks the layout of an operator's result before."""
    x, w = torch.randn(40, 40), torch.randn(32, 40)
    for operator in (turned, fewer):
        compiled: Any = pycompiler.compile(lambda x, operator=operator: (operator(x) @ w.t()).relu())
        assert_same(compiled(x), (operator(x) @ w.t()).relu(), tolerance=1e-4)


def test_printed_products_in_memory_of_another_dtype(tmp_path: Path, plans: BuiltPlans) -> None:
    def program(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((a @ b @ b).float() @ w.t()).relu().sum(1)

    inputs = torch.rand(18, 15).double(), torch.rand(15, 15).double(), torch.rand(16, 15)
    have = pycompiler.compile(program, fullgraph=True)(*inputs)
    (plan,) = plans.found
    scope: dict[str, Any] = {"__name__": "printed"}
    exec(output_code(plan, inputs), scope)
    assert_same(scope["call"](inputs)[0], have, tolerance=1e-5)


NEWER: dict[str, tuple[Any, str, int]] = {
    "of GPUs": (torch.backends.cuda.matmul, "tf32", 1),
    "of the CPU": (torch.backends.mkldnn.matmul, "bf16", 0),
}


@pytest.mark.parametrize("name", NEWER)
def test_torchs_newer_settings_of_precision(name: str, plans: BuiltPlans) -> None:
    """`torch.get_float32_matmul_precision` raises an error once they are set."""
    setting, value, products = NEWER[name]
    linear, before = nn.Linear(64, 64), setting.fp32_precision
    try:
        setting.fp32_precision = value
        pycompiler.compile(linear, fullgraph=True)(torch.randn(20, 64))
    finally:
        setting.fp32_precision = before
    assert len(plans.found) == 1 and plans.count(Product) == products


def test_many_rows_and_few_columns() -> None:
    """The rows are packed, a part at a time."""
    x, w = torch.randn(30_000, 256), torch.randn(17, 256)
    have = pycompiler.compile(lambda x: x @ w.t())(x)
    assert torch.equal(have[::1_009], chains(x[::1_009], w))
