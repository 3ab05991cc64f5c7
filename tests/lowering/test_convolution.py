"""Convolutions of inference graphs read packed weights, which follow every change of the weights."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler
from pycompiler.ir.plan import Pack
from pycompiler.operators import packed_weights
from tests.harness.built_plans import BuiltPlans
from tests.harness.compare import assert_same

pytestmark = [
    pytest.mark.usefixtures("without_gradients"),
    pytest.mark.skipif(packed_weights.convolution() is None, reason="this torch has no oneDNN"),
]


BY_ONEDNN = {"engine_products": False}


def image(batch: int = 1, channels: int = 8, size: int = 12) -> torch.Tensor:
    return torch.randn(batch, channels, size, size)


class Joined(nn.Module):
    """Branches that meet: a sum, a concatenation, padding, a view, an upsampling, and a branch that is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(n, 8, 3, padding=1) for n in (8, 8, 24))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = self.a(x).relu()
        b = self.b(torch.nn.functional.pad(a, (1, 1, 0, 2)))[:, :, :12, 1:13] + x
        wide = torch.cat((a, b, x.sin()), 1)
        c = self.c(torch.nn.functional.interpolate(wide, scale_factor=2, mode="bilinear"))
        return a, c.flatten(1).softmax(1), b.mean((2, 3)), wide.to(torch.float64)


class SomeChannels(nn.Module):
    """A convolution of some channels of a result, as in ShuffleNet."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(8, 12, 3), nn.Conv2d(7, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(self.wide(x)[:, 5:])


KINDS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "3 x 3": lambda: (nn.Conv2d(8, 16, 3, padding=1), image()),
    "without a bias": lambda: (nn.Conv2d(8, 16, 3, bias=False), image(2)),
    "1 x 1": lambda: (nn.Conv2d(8, 4, 1), image()),
    "strided, dilated": lambda: (nn.Conv2d(8, 4, 3, stride=2, dilation=2), image()),
    "1 x 1, channels last": lambda: (
        nn.Conv2d(8, 4, 1, bias=False).to(memory_format=torch.channels_last),
        image(2).contiguous(memory_format=torch.channels_last),
    ),
    "1 x 1, of some channels": lambda: (SomeChannels(), image(2)),
    "1 x 1, with a bias, of a result": lambda: (nn.Sequential(nn.Conv2d(8, 4, 3), nn.Conv2d(4, 6, 1)), image(2)),
    "of depth": lambda: (nn.Conv2d(16, 16, 3, padding=1, groups=16), image(channels=16)),
    "of depth, strided, dilated": lambda: (
        nn.Conv2d(20, 20, (3, 5), stride=2, padding=(1, 2), dilation=(2, 1), groups=20, bias=False),
        image(2, channels=20),
    ),
    "of depth, of a large image": lambda: (nn.Conv2d(16, 16, 3, padding=1, groups=16), image(channels=16, size=40)),
    "of depth, large": lambda: (nn.Conv2d(64, 64, 3, padding=1, groups=64), image(channels=64, size=48)),
    "of depth, few channels": lambda: (nn.Conv2d(8, 8, 3, groups=8), image()),
    "of depth, large windows": lambda: (nn.Conv2d(16, 16, 7, padding=3, groups=16), image(channels=16)),
    "of groups": lambda: (nn.Conv2d(8, 16, 3, padding=1, groups=2), image()),
    "unequal windows": lambda: (nn.Conv2d(8, 4, (1, 3), padding=(0, 1)), image()),
    "channels last": lambda: (
        nn.Conv2d(8, 16, 3).to(memory_format=torch.channels_last),
        image().contiguous(memory_format=torch.channels_last),
    ),
    "of an image with gaps": lambda: (nn.Conv2d(8, 4, 3), image()[:, :, ::2]),
    "read by loops": lambda: (nn.Sequential(nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(), image()),
    "read by another": lambda: (nn.Sequential(nn.Conv2d(8, 4, 3), nn.Conv2d(4, 4, 3)), image()),
    "pooled": lambda: (
        nn.Sequential(
            nn.Conv2d(8, 4, 3), nn.MaxPool2d(3, 2), nn.AvgPool2d(2), nn.Conv2d(4, 4, 1), nn.AdaptiveAvgPool2d(1)
        ),
        image(2, size=20),
    ),
    "joined": lambda: (Joined(), image(2)),
}


# Kind -> the operators that compute its convolutions; one packed convolution for the others.
WAYS = {
    "3 x 3": Counter(),
    "without a bias": Counter(),
    "1 x 1, of some channels": Counter(convolution_pointwise=1, mm=1),
    "1 x 1, channels last": Counter(mm=1),
    "1 x 1, with a bias, of a result": Counter(convolution_pointwise=1, mm=1),
    "of depth": Counter(),
    "of depth, strided, dilated": Counter(),
    "of depth, of a large image": Counter(),
    "of depth, large windows": Counter(),
    "read by another": Counter(convolution_pointwise=2),
    "pooled": Counter(convolution_pointwise=1, avg_pool2d=1, mm=1),
    "joined": Counter(convolution_pointwise=3, upsample_bilinear2d=1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_convolutions_without_gradients(kind: str, plans: BuiltPlans) -> None:
    module, x = KINDS[kind]()
    compiled = pycompiler.compile(module, fullgraph=True)
    for _ in range(2):
        got, wanted = compiled(x), module(x)
        assert_same(got, wanted, tolerance=1e-4)
    wanted_calls = WAYS.get(kind, Counter(convolution_pointwise=1))
    assert Counter(name.strip("_") for name in plans.operators()) == wanted_calls
    assert plans.count(Pack) == wanted_calls["convolution_pointwise"]


PLAIN: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "transposed": lambda: (nn.ConvTranspose2d(8, 4, 3), image()),
    "of sequences": lambda: (nn.Conv1d(8, 4, 3), torch.randn(1, 8, 12)),
    "of volumes": lambda: (nn.Conv3d(8, 4, 3), torch.randn(1, 8, 5, 5, 5)),
    "double precision": lambda: (nn.Conv2d(8, 4, 3).double(), image().double()),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_other_convolutions_stay_with_aten(kind: str, plans: BuiltPlans) -> None:
    module, x = PLAIN[kind]()
    torch.testing.assert_close(pycompiler.compile(module, fullgraph=True)(x), module(x))
    assert plans.found and plans.count(Pack) == 0


def test_weights_that_are_computed_or_trained_are_not_packed(plans: BuiltPlans) -> None:
    module, x = nn.Conv2d(8, 4, 3), image()
    double = pycompiler.compile(lambda x, w: torch.conv2d(x, w * 2), fullgraph=True)
    torch.testing.assert_close(double(x, module.weight), torch.conv2d(x, module.weight * 2))
    with torch.enable_grad():
        pycompiler.compile(module, fullgraph=True)(x).sum().backward()
    assert len(plans.found) == 3 and plans.count(Pack) == 0


def test_nothing_is_packed_if_the_knob_is_off(plans: BuiltPlans) -> None:
    module, x = nn.Conv2d(8, 4, 3), image()
    compiled = pycompiler.compile(module, fullgraph=True, options={"pack_weights": False})
    torch.testing.assert_close(compiled(x), module(x))
    assert plans.found and plans.count(Pack) == 0


def rebound(module: nn.Conv2d) -> None:
    module.weight.data = torch.randn_like(module.weight)


def loaded(module: nn.Conv2d) -> None:
    module.load_state_dict({name: torch.randn_like(t) for name, t in module.state_dict().items()})


def replaced(module: nn.Conv2d) -> None:
    module.weight = nn.Parameter(torch.randn_like(module.weight))


CHANGES: dict[str, Callable[[nn.Conv2d], Any]] = {
    "in place": lambda m: m.weight.mul_(2),
    "through data": lambda m: m.weight.data.mul_(2),
    "one element, through data": lambda m: m.weight.data[-1, -1, -1, -1].add_(1),
    "through NumPy": lambda m: m.weight.detach().numpy().__imul__(2),
    "new data": rebound,
    "a state that is loaded": loaded,
    "another parameter": replaced,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_weight_is_seen_in_the_next_call(change: str, plans: BuiltPlans) -> None:
    module, x = nn.Conv2d(8, 4, 3), image()
    compiled = pycompiler.compile(module, fullgraph=True)
    before = compiled(x)
    for _ in range(2):
        CHANGES[change](module)
        torch.testing.assert_close(compiled(x), module(x))
    assert not torch.equal(compiled(x), before)
    assert plans.count(Pack) >= 1


def test_a_large_weight_is_compared_by_several_threads(plans: BuiltPlans) -> None:
    module, x = nn.Conv2d(640, 640, 3), image(channels=640, size=4)  # 14 MiB
    compiled = pycompiler.compile(module, fullgraph=True, options=BY_ONEDNN)
    for threads in (1, 2, 5):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
            module.weight.data.view(-1)[-1] += 1
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
        finally:
            torch.set_num_threads(before)
    assert plans.count(Pack) >= 1


def test_a_frozen_weight_is_compared_by_its_address(plans: BuiltPlans) -> None:
    module, x = nn.Conv2d(8, 4, 3), image()
    compiled = pycompiler.compile(module, fullgraph=True, options={"freezing": True})
    before = compiled(x)
    module.weight.mul_(2)
    torch.testing.assert_close(compiled(x), before)  # freezing promises that weights do not change
    kept, module.weight = module.weight, nn.Parameter(torch.randn_like(module.weight))
    torch.testing.assert_close(compiled(x), module(x))
    module.weight = kept
    pycompiler.reset()
    torch.testing.assert_close(compiled(x), module(x))
    assert plans.count(Pack) >= 2


def test_equal_blocks_share_a_plan_and_keep_their_own_weights(plans: BuiltPlans) -> None:
    blocks = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(20)]  # more than a plan keeps
    compiled = [pycompiler.compile(b, fullgraph=True) for b in blocks]
    x = image()
    for _ in range(3):
        for block, call in zip(blocks, compiled, strict=True):
            torch.testing.assert_close(call(x), block(x))
    assert plans.count(Pack) >= 1


def test_threads_call_with_weights_of_their_own(plans: BuiltPlans) -> None:
    convolve = pycompiler.compile(lambda x, w: torch.conv2d(x, w), fullgraph=True)
    x, weights = image(), [torch.randn(4, 8, 3, 3) for _ in range(4)]
    convolve(x, weights[0])
    wrong: list[int] = []

    def call(k: int) -> None:
        with torch.no_grad():
            wanted = torch.conv2d(x, weights[k])
            wrong.extend(k for _ in range(50) if not torch.allclose(convolve(x, weights[k]), wanted, atol=1e-5))

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and plans.count(Pack) == 1


def test_other_sizes_read_the_same_packed_weight(plans: BuiltPlans) -> None:
    module = nn.Conv2d(8, 4, 3)
    compiled = pycompiler.compile(module, fullgraph=True, dynamic=True)
    for batch, size in ((2, 12), (3, 9), (1, 17), (5, 3)):
        x = image(batch, size=size)
        torch.testing.assert_close(compiled(x), module(x))
    assert plans.count(Pack) >= 1
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        compiled(image(2, size=2))
    empty = torch.randn(0, 8, 12, 12)
    torch.testing.assert_close(compiled(empty), module(empty))


def test_bfloat16_weights_are_packed_where_the_machine_computes_with_them(plans: BuiltPlans) -> None:
    module, x = nn.Conv2d(8, 16, 3, padding=1).bfloat16(), image().bfloat16()
    torch.testing.assert_close(pycompiler.compile(module, fullgraph=True)(x), module(x))
    assert plans.count(Pack) == int(packed_weights.takes(torch.bfloat16))


def test_a_bias_with_gaps_is_read_by_its_strides(plans: BuiltPlans) -> None:
    convolve = pycompiler.compile(lambda x, w, b: torch.conv2d(x, w, b, padding=1), fullgraph=True)
    x, w = image(), torch.randn(12, 8, 3, 3)
    for bias in (torch.randn(24)[::2], torch.randn(1).expand(12)):
        torch.testing.assert_close(convolve(x, w, bias), torch.conv2d(x, w, bias, padding=1), rtol=1e-4, atol=1e-4)
    assert plans.count(Pack) >= 1


def test_views_of_the_same_bytes_are_other_weights() -> None:
    base, x = torch.randn(20_000), image()
    convolve = pycompiler.compile(lambda x, w: torch.conv2d(x, w, padding=1))
    for first, second in ((72, 9), (100, 10), (11, 110), (110, 11)):
        w = base.as_strided((8, 8, 3, 3), (first, second, 3, 1))
        torch.testing.assert_close(convolve(x, w), torch.conv2d(x, w, padding=1), rtol=1e-4, atol=1e-4)


def test_a_frozen_weight_keeps_its_address(plans: BuiltPlans) -> None:
    convolve = pycompiler.compile(lambda x, w: torch.conv2d(x, w), fullgraph=True, options={"freezing": True})
    x = image()
    for _ in range(20):
        w = torch.randn(4, 8, 3, 3)  # would lie where an earlier one was
        torch.testing.assert_close(convolve(x, w), torch.conv2d(x, w))
        w.data = torch.randn(4, 8, 3, 3)
        torch.testing.assert_close(convolve(x, w), torch.conv2d(x, w))
    assert plans.count(Pack) == 1


def test_a_weight_without_memory_raises_as_in_eager(plans: BuiltPlans) -> None:
    module, x = nn.Conv2d(8, 4, 3), image()
    compiled = pycompiler.compile(module, fullgraph=True)
    compiled(x)
    module.weight.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="data is not allocated yet|storage"):
        compiled(x)
    assert plans.count(Pack) == 1


def test_a_write_between_hash_and_packing_is_forgotten() -> None:
    module, x = nn.Conv2d(256, 256, 3, bias=False), image(channels=256, size=4)
    compiled = pycompiler.compile(module, fullgraph=True, options=BY_ONEDNN)
    first = module.weight.clone()
    second, wanted, stop = torch.randn_like(first), module(x), threading.Event()

    def write() -> None:
        with torch.no_grad():
            while not stop.is_set():
                module.weight.copy_(second)
                module.weight.copy_(first)

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(50):
        compiled(x)
    stop.set()
    writer.join()
    torch.testing.assert_close(compiled(x), wanted, rtol=1e-3, atol=1e-3)
