"""Convolutions of all channels in inference graphs, by the engine's kernel: only frozen weights are packed across calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler
from pycompiler import _native
from pycompiler.ir.plan import Convolution, Pack
from pycompiler.operators import packed_weights
from pycompiler.runtime.output_code import output_code
from pycompiler.runtime.plan_python import PythonPlan
from pycompiler.symbolic.expr import Expr
from tests.harness.built_plans import BuiltPlans
from tests.harness.compare import assert_same

pytestmark = [
    pytest.mark.usefixtures("without_gradients"),
    pytest.mark.skipif(
        _native.matrix_product_vectors(1) == 0 or packed_weights.convolution() is None, reason="no AVX2, or no oneDNN"
    ),
]
CHAIN = 256


def image(channels: int, *sizes: int, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, channels, *sizes)


def chains(x: torch.Tensor, m: nn.Conv2d) -> torch.Tensor:
    """The bias plus chains of fused multiply-adds: a product of floats is exact in double."""
    padding: Any = m.padding
    (up, left), (down, right), (below, beside) = padding, m.stride, m.dilation
    padded = nn.functional.pad(x, (left, left, up, up))
    shape = m(x).shape
    total = None if m.bias is None else m.bias[:, None, None].expand(shape).contiguous()
    _, channels, rows, columns = m.weight.shape
    step = max(1, CHAIN // (rows * columns))
    for first in range(0, channels, step):
        chain = torch.zeros(shape)
        for channel in range(first, min(channels, first + step)):
            for i in range(rows):
                for j in range(columns):
                    read = padded[:, channel, i * below :: down, j * beside :: right][:, : shape[2], : shape[3]]
                    factor = m.weight[:, channel, i, j, None, None]
                    chain = (read.double()[:, None] * factor.double() + chain.double()).float()
        total = chain if total is None else total + chain
    assert total is not None
    return total


CASES: dict[str, Callable[[], tuple[nn.Conv2d, torch.Tensor]]] = {
    "padded": lambda: (nn.Conv2d(8, 32, 3, padding=1), image(8, 9, 14)),
    "without padding": lambda: (nn.Conv2d(20, 16, 3), image(20, 6, 30)),
    "several chains, without a bias": lambda: (nn.Conv2d(70, 48, 3, padding=1, bias=False), image(70, 5, 5)),
    "filters of no whole vector": lambda: (nn.Conv2d(5, 19, 3, padding=1), image(5, 8, 8)),
    "of pixels": lambda: (nn.Conv2d(3, 32, 7, stride=2, padding=3, bias=False), image(3, 20, 26)),
    "1 x 1, strided": lambda: (nn.Conv2d(300, 33, 1, stride=2), image(300, 5, 7)),
    "dilated, unequal": lambda: (
        nn.Conv2d(6, 24, (2, 3), stride=(2, 1), dilation=(3, 2), padding=(0, 4)),
        image(6, 11, 6),
    ),
    "one place": lambda: (nn.Conv2d(9, 16, 3), image(9, 3, 3, batch=1)),
    "large windows": lambda: (nn.Conv2d(2, 16, 17, padding=8), image(2, 6, 5)),
    "channels last": lambda: (
        nn.Conv2d(8, 16, 3, padding=1),
        image(8, 9, 9).contiguous(memory_format=torch.channels_last),
    ),
    "an image with gaps": lambda: (nn.Conv2d(4, 16, 3), image(4, 9, 18)[..., ::2]),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_each_result_is_a_sum_of_chains(name: str, threads: int, plans: BuiltPlans) -> None:
    module, x = CASES[name]()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        compiled = pycompiler.compile(module, fullgraph=True)
        have = compiled(x)
        assert torch.equal(compiled(x), have)
    finally:
        torch.set_num_threads(before)
    assert (plans.count(Convolution), plans.count(Pack)) == (1, 0)
    assert torch.equal(have, chains(x, module))
    assert_same(have, module(x), tolerance=1e-5)


SHARED: dict[str, Callable[[], tuple[nn.Conv2d, torch.Tensor]]] = {
    "rows": lambda: (nn.Conv2d(32, 48, 3, padding=1), image(32, 40, 40, batch=1)),
    "filters": lambda: (nn.Conv2d(64, 200, 3, padding=1), image(64, 7, 7, batch=1)),
    "images": lambda: (nn.Conv2d(16, 32, 3, stride=2), image(16, 21, 21, batch=5)),
}


@pytest.mark.parametrize("name", SHARED)
def test_threads_share_the_parts(name: str, plans: BuiltPlans) -> None:
    module, x = SHARED[name]()
    compiled = pycompiler.compile(module, fullgraph=True)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(compiled(x))
    finally:
        torch.set_num_threads(before)
    assert plans.count(Convolution) >= 1
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert_same(found[0], module(x), tolerance=1e-5)


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_padding_adds_nothing_where_a_weight_is_not_finite(number: float) -> None:
    module, x = nn.Conv2d(16, 16, 5, padding=1, stride=2).requires_grad_(requires_grad=False), image(16, 13, 11)
    compiled = pycompiler.compile(module, fullgraph=True)
    module.weight[3, 2, 0, 4] = 0
    want = compiled(x)
    module.weight[3, 2, 0, 4] = number
    found = compiled(x)
    # the results of filter 3 whose windows have this place inside of the image: all but the first row, and the last column
    reached = torch.zeros_like(want, dtype=torch.bool)
    reached[:, 3, 1:, :-1] = True
    assert torch.equal(~found.isfinite(), reached)
    assert torch.equal(found[~reached], want[~reached])


@pytest.mark.parametrize("dynamic", [False, True])
def test_other_sizes(dynamic: bool, plans: BuiltPlans) -> None:
    module = nn.Conv2d(8, 16, 3, padding=1)
    compiled = pycompiler.compile(module, fullgraph=True, dynamic=dynamic)
    for batch, size in ((2, 12), (3, 9), (5, 3)):
        x = image(8, size, size, batch=batch)
        assert_same(compiled(x), module(x), tolerance=1e-5)
    assert plans.count(Convolution) >= 1


def test_a_printed_plan_convolves_with_torch(plans: BuiltPlans) -> None:
    module, x = nn.Conv2d(8, 16, 3, padding=1), image(8, 9, 9)
    pycompiler.compile(module, fullgraph=True)(x)
    (plan,) = [p for p in plans.found if any(isinstance(s, Convolution) for s in p.steps)]
    assert "torch.convolution(" in output_code(plan)


@pytest.mark.parametrize("freezing", [False, True])
def test_a_weight_larger_than_its_image_is_packed_once_if_it_is_frozen(freezing: bool, plans: BuiltPlans) -> None:
    module, x = nn.Conv2d(64, 64, 3, padding=1), image(64, 7, 7)
    compiled = pycompiler.compile(module, fullgraph=True, options={"freezing": freezing})
    assert torch.equal(compiled(x), chains(x, module))
    assert (plans.count(Convolution), plans.count(Pack)) == (1, int(freezing))


PANELS: dict[str, Callable[[], tuple[nn.Conv2d, torch.Tensor]]] = {
    "several panels and chains": lambda: (nn.Conv2d(96, 128, 3, padding=1, bias=False), image(96, 7, 7)),
    "strided, with a bias": lambda: (nn.Conv2d(64, 96, 3, stride=2, padding=1), image(64, 9, 6)),
    "1 x 1, strided": lambda: (nn.Conv2d(300, 64, 1, stride=2), image(300, 5, 7)),
    "dilated, unequal": lambda: (nn.Conv2d(60, 64, (2, 3), stride=(2, 1), dilation=(3, 2)), image(60, 8, 6)),
}


@pytest.mark.parametrize("name", PANELS)
def test_packed_weights_give_the_same_bits(name: str, plans: BuiltPlans) -> None:
    module, x = PANELS[name]()
    module.requires_grad_(requires_grad=False)
    plain = pycompiler.compile(module, fullgraph=True)
    frozen = pycompiler.compile(module, fullgraph=True, options={"freezing": True})
    before = torch.get_num_threads()
    try:
        for number in (0.5, float("inf"), float("nan")):
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                module.weight[5, 2, 0, 0] = number
                module.weight.data = module.weight.data.clone()  # another address
                found, want = frozen(x), plain(x)
                assert torch.equal(found.isfinite(), want.isfinite())
                assert torch.equal(found.nan_to_num(), want.nan_to_num())
    finally:
        torch.set_num_threads(before)
    assert (plans.count(Convolution), plans.count(Pack)) == (2, 1)


def test_a_printed_plan_reads_panels(plans: BuiltPlans) -> None:
    module, x = nn.Conv2d(64, 64, 3, padding=1, bias=False), image(64, 7, 7)
    with torch.no_grad():
        want = pycompiler.compile(module, fullgraph=True, options={"freezing": True})(x)
    (plan,) = plans.found
    scope: dict[str, Any] = {}
    exec(output_code(plan), scope)  # noqa: S102
    assert plan.n_inputs == 2
    (printed,) = scope["call"]([x, module.weight])
    assert_same(printed, want, tolerance=1e-5)
    assert torch.equal(PythonPlan(plan)(x, module.weight)[0], want)


def test_panels_of_another_processor_are_refused(plans: BuiltPlans) -> None:
    module, x = nn.Conv2d(64, 64, 3), image(64, 7, 7)
    pycompiler.compile(module, fullgraph=True, options={"freezing": True})(x)
    (step,) = [s for p in plans.found for s in p.steps if isinstance(s, Convolution)]
    numbers = [n.as_int() if isinstance(n, Expr) else int(n) for n in replace(step, panel=step.panel * 2).scalars]
    tensors = [x, module.weight, torch.empty(2, 64, 5, 5), module.bias]
    with pytest.raises(RuntimeError, match="vectors of another length"):
        _native.convolution([t.data_ptr() for t in tensors], numbers, 1)


OTHERS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "few filters": lambda: (nn.Conv2d(8, 4, 3), image(8, 9, 9)),
    "of groups": lambda: (nn.Conv2d(8, 32, 3, groups=2), image(8, 9, 9)),
    "a weight that is channels last": lambda: (
        nn.Conv2d(8, 16, 3).to(memory_format=torch.channels_last),
        image(8, 9, 9).contiguous(memory_format=torch.channels_last),
    ),
    "a large image": lambda: (nn.Conv2d(1, 16, 3), image(1, 2100, 2100, batch=1)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_convolutions_stay_with_onednn(name: str, plans: BuiltPlans) -> None:
    module, x = OTHERS[name]()
    assert_same(pycompiler.compile(module, fullgraph=True)(x), module(x), tolerance=1e-5)
    assert (plans.count(Convolution), plans.count(Pack)) == (0, 1)
