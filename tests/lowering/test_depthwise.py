"""Convolutions of depth in inference graphs, by the engine's kernel: its bits depend on a channel and a place alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler
from pycompiler import _native
from pycompiler.ir.plan import Convolution
from pycompiler.operators import packed_weights
from pycompiler.runtime.output_code import output_code
from tests.harness.built_plans import BuiltPlans
from tests.harness.compare import assert_same

pytestmark = [
    pytest.mark.usefixtures("without_gradients"),
    pytest.mark.skipif(
        _native.matrix_product_vectors(1) == 0 or packed_weights.convolution() is None, reason="no AVX2, or no oneDNN"
    ),
]


def of_depth(channels: int, window: Any = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, window, groups=channels, **options)


def image(channels: int, *sizes: int, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, channels, *sizes)


def chains(x: torch.Tensor, m: nn.Conv2d) -> torch.Tensor:
    """One chain of fused multiply-adds for each result, from the bias on: a product of floats is exact in double."""
    sizes: Any = (m.padding, m.stride, m.dilation)
    (up, left), (down, right), (below, beside) = sizes
    padded = nn.functional.pad(x, (left, left, up, up))
    shape = m(x).shape
    start = torch.zeros(shape[1]) if m.bias is None else m.bias
    total = start[:, None, None].expand(shape).contiguous()
    for i in range(m.weight.shape[2]):
        for j in range(m.weight.shape[3]):
            rows = padded[:, :, i * below :: down, j * beside :: right][:, :, : shape[2], : shape[3]]
            factor = m.weight[:, 0, i, j, None, None]
            total = (rows.double() * factor.double() + total.double()).float()
    return total


CASES: dict[str, Callable[[], tuple[nn.Conv2d, torch.Tensor]]] = {
    "padded": lambda: (of_depth(32, padding=1), image(32, 9, 14)),
    "without a bias": lambda: (of_depth(48, 5, padding=2, bias=False), image(48, 7, 7)),
    "channels of no whole vector": lambda: (of_depth(19, padding=1), image(19, 8, 8)),
    "strided": lambda: (of_depth(40, 5, stride=2, padding=2), image(40, 15, 12)),
    "dilated, unequal": lambda: (
        of_depth(24, (2, 3), stride=(2, 1), dilation=(3, 2), padding=(0, 4)),
        image(24, 11, 6),
    ),
    "one place": lambda: (of_depth(16, 3), image(16, 3, 3, batch=1)),
    "a row": lambda: (of_depth(16, (1, 7), stride=(1, 3)), image(16, 1, 400)),
    "large windows": lambda: (of_depth(16, 11, padding=5), image(16, 6, 5)),
    "channels last": lambda: (of_depth(32), image(32, 9, 9).contiguous(memory_format=torch.channels_last)),
    "an image with gaps": lambda: (of_depth(16), image(16, 9, 18)[..., ::2]),
    "padded as text says": lambda: (of_depth(16, 3, padding="same"), image(16, 9, 9)),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_eager(name: str, plans: BuiltPlans) -> None:
    module, x = CASES[name]()
    compiled = pycompiler.compile(module, fullgraph=True)
    for _ in range(2):
        assert_same(compiled(x), module(x), tolerance=1e-5)
        x.mul_(-2)
    assert plans.count(Convolution) == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", [name for name in CASES if name != "padded as text says"])
def test_each_result_is_a_chain_of_fused_multiply_adds(name: str, threads: int, plans: BuiltPlans) -> None:
    module, x = CASES[name]()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        have = pycompiler.compile(module, fullgraph=True)(x)
    finally:
        torch.set_num_threads(before)
    assert plans.count(Convolution) == 1
    assert torch.equal(have, chains(x, module))


def test_several_threads_share_the_parts(plans: BuiltPlans) -> None:
    module, x = of_depth(200, 5, padding=2), image(200, 28, 28, batch=3)
    compiled = pycompiler.compile(module, fullgraph=True)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = compiled(x)
        torch.set_num_threads(2)
        assert torch.equal(compiled(x), alone)
    finally:
        torch.set_num_threads(before)
    assert plans.count(Convolution) >= 1 and torch.equal(alone, chains(x, module))


def test_infinities_and_nan_are_those_of_their_windows(plans: BuiltPlans) -> None:
    module, x = of_depth(16, 3), image(16, 8, 8)
    x[0, 3, 4, 4], x[1, 15, 0, 0] = float("inf"), float("nan")
    have = pycompiler.compile(module, fullgraph=True)(x)
    assert plans.count(Convolution) == 1
    assert_same(have, module(x), tolerance=1e-5)


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_padding_adds_nothing_to_a_weight_that_is_not_finite(plans: BuiltPlans, number: float) -> None:
    module, x = of_depth(64, padding=1), image(64, 14, 14)
    with torch.no_grad():
        module.weight[3, 0, 0, 0] = number
    have = pycompiler.compile(module, fullgraph=True)(x)
    assert plans.count(Convolution) == 1
    assert_same(have, module(x), tolerance=1e-5)


def test_a_row_that_is_too_long_for_a_copy(plans: BuiltPlans) -> None:
    module = of_depth(16, padding=1)
    compiled = pycompiler.compile(module, dynamic=True, fullgraph=True)
    for width in (32, 20_000):
        x = image(16, 4, width)
        assert_same(compiled(x), module(x), tolerance=1e-5)
    assert plans.count(Convolution) == 1


class Block(nn.Module):
    """A convolution between loops, a product, a view and results that are returned."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.depth, self.narrow = nn.Conv2d(8, 32, 1), of_depth(32, padding=1), nn.Conv2d(32, 8, 1)
        self.norm = nn.BatchNorm2d(32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.depth(nn.functional.silu(self.wide(x)))
        return y, self.narrow(self.norm(y).relu()) + x, y.mean((2, 3)), y[:, 1:, ::2].flatten(1)


def test_a_convolution_between_other_operators(plans: BuiltPlans) -> None:
    module, x = Block().eval(), image(8, 10, 10)
    assert_same(pycompiler.compile(module, fullgraph=True)(x), module(x), tolerance=1e-5)
    assert plans.count(Convolution) == 2  # the first is of all channels, since its image is not channels last


def loaded(module: nn.Conv2d) -> None:
    module.load_state_dict({name: torch.randn_like(t) for name, t in module.state_dict().items()})


CHANGES: dict[str, Callable[[nn.Conv2d], Any]] = {
    "through data": lambda m: m.weight.data.mul_(2),
    "through NumPy": lambda m: m.weight.detach().numpy().__imul__(2),
    "a state that is loaded": loaded,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_weight_is_seen_in_the_next_call(change: str, plans: BuiltPlans) -> None:
    module, x = of_depth(16), image(16, 9, 9)
    compiled = pycompiler.compile(module, fullgraph=True)
    before = compiled(x)
    CHANGES[change](module)
    after = compiled(x)
    assert torch.equal(after, chains(x, module)) and not torch.equal(after, before)
    assert plans.count(Convolution) == 1


def test_a_weight_and_a_bias_with_gaps(plans: BuiltPlans) -> None:
    convolve = pycompiler.compile(lambda x, w, b: torch.conv2d(x, w, b, groups=16), fullgraph=True)
    x, weight, bias = image(16, 9, 9), torch.randn(16, 1, 3, 6)[..., ::2], torch.randn(32)[::2]
    assert_same(convolve(x, weight, bias), torch.conv2d(x, weight, bias, groups=16), tolerance=1e-5)
    assert plans.count(Convolution) == 1


def test_one_kernel_convolves_images_of_all_sizes(plans: BuiltPlans) -> None:
    module = of_depth(20, 3, stride=2, padding=1)
    compiled = pycompiler.compile(module, fullgraph=True, dynamic=True)
    for batch, rows, columns in ((2, 12, 9), (3, 5, 31), (1, 60, 40)):
        x = image(20, rows, columns, batch=batch)
        assert torch.equal(compiled(x), chains(x, module))
    assert plans.count(Convolution) >= 1
    empty = torch.randn(0, 20, 12, 12)
    torch.testing.assert_close(compiled(empty), module(empty))


@pytest.mark.parametrize("biases", [0, 1])
def test_the_printed_plan_computes_the_same(biases: int, plans: BuiltPlans) -> None:
    inputs = image(32, 9, 14), torch.randn(32, 1, 3, 3), *(torch.randn(32) for _ in range(biases))

    def program(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.conv2d(x, weight, bias, padding=1, groups=32)

    have = pycompiler.compile(program, fullgraph=True)(*inputs)
    (plan,) = plans.found
    scope: dict[str, Any] = {"__name__": "printed"}
    exec(output_code(plan, inputs), scope)
    assert_same(scope["call"](inputs)[0], have, tolerance=1e-5)
    assert plans.count(Convolution) == 1


def test_trained_convolutions_and_half_precision_stay_with_aten(plans: BuiltPlans) -> None:
    module, x = of_depth(16), image(16, 9, 9)
    with torch.enable_grad():
        torch.testing.assert_close(pycompiler.compile(module, fullgraph=True)(x), module(x))
    half = of_depth(16).bfloat16()
    torch.testing.assert_close(pycompiler.compile(half, fullgraph=True)(x.bfloat16()), half(x.bfloat16()))
    assert plans.found and plans.count(Convolution) == 0
