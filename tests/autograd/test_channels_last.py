"""Channels last for the convolutions of a graph: the pass as a rewrite, and values, gradients and strides beside eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import pycompiler
from pycompiler.autograd import layout
from pycompiler.autograd.decompositions import default_decompositions
from pycompiler.autograd.joint import Joint
from pycompiler.autograd.layout import CONVOLUTIONS, is_of_images, lay_out, prefers_channels_last
from pycompiler.autograd.partition import partition
from pycompiler.autograd.trace import trace_joint
from pycompiler.ir import phases
from pycompiler.ir.plan import Expect, Plan
from tests.autograd.ad_helpers import fakes, lifted
from tests.harness.compare import assert_same

aten = torch.ops.aten


class Block(nn.Module):
    """The parts of a ResNet: a stem with pooling, two convolutions around which the image is added, a linear layer."""

    def __init__(self, channels: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.narrow, self.norm1 = nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels)
        self.wide, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.pool, self.head = nn.MaxPool2d(3, 2, 1), nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.norm(self.stem(x)).relu())
        y = self.norm1(self.narrow(x)).relu()
        y = (self.norm2(self.wide(y)) + x).relu()
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


def is_last(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last)


def joint_of(module: nn.Module, *args: torch.Tensor) -> Joint:
    gm, _ = lifted(module, args)
    examples = fakes(gm)
    mode = next(e for e in examples if isinstance(e, torch.Tensor)).fake_mode
    return trace_joint(gm, examples, mode, default_decompositions(), True)


def strides(nodes: list[Any]) -> list[Any]:
    return [None if n is None else n.meta["val"].stride() for n in nodes]


def conversions(graph: fx.Graph) -> list[Any]:
    return [n for n in graph.nodes if n.target is aten.clone.default and "memory_format" in n.kwargs]


def run_strides(graph: fx.Graph) -> None:
    """Asserts that ATen runs the graph, and that each value has the strides that the graph says."""
    gm = fx.GraphModule({}, graph)

    class Run(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            out = super().run_node(n)
            for real, fake in zip(
                *([v] if isinstance(v, torch.Tensor) else v or [] for v in (out, n.meta.get("val"))), strict=False
            ):
                if isinstance(real, torch.Tensor) and n.op != "output":
                    assert (real.shape, places(real)) == (fake.shape, places(fake)), n.format_node()
            return out

    given = [n.meta["val"] for n in graph.nodes if n.op == "placeholder"]
    made = [torch.ones(v.shape, dtype=v.dtype).as_strided(v.shape, v.stride()) for v in given]
    with torch.no_grad():
        Run(gm).run(*made)


# -- the rewrite ------------------------------------------------------------------------------------------------------


def test_no_conversion_lies_between_convolutions() -> None:
    joint = joint_of(Block(), torch.randn(2, 3, 16, 16))
    before = [strides(nodes) for nodes in (joint.fresh, joint.grads, [n for _, n in joint.stores])]
    lay_out(joint, is_of_images)
    assert [strides(nodes) for nodes in (joint.fresh, joint.grads, [n for _, n in joint.stores])] == before
    joint.graph.lint()
    calls = [n for n in joint.graph.nodes if n.target in CONVOLUTIONS]
    assert len(calls) == 6
    for n in calls:
        images = n.args[: CONVOLUTIONS[n.target] + 1]
        assert all(is_last(a.meta["val"]) for a in images), n.format_node()
    for n in conversions(joint.graph):
        source = n.args[0]
        is_edge = source.op == "placeholder" or any(u.op == "output" for u in n.users)
        is_spread = source.target is aten.div.Tensor  # the gradient of the mean: one number for an image
        assert is_edge or is_spread, n.format_node()
    run_strides(joint.graph)


def test_an_image_is_converted_once_for_each_part() -> None:
    joint = joint_of(Block(), torch.randn(2, 3, 16, 16))
    lay_out(joint, is_of_images)
    found = conversions(joint.graph)
    assert len({(n.args[0], n.kwargs["memory_format"], "gradient" in n.meta) for n in found}) == len(found)
    part = partition(joint)
    for graph in (part.forward.graph, part.backward.graph):
        sources = [n.args[0] for n in conversions(graph)]
        assert len(sources) == len(set(sources))
    saved = [n.meta["val"] for n, (kind, _) in zip(part.saved_nodes, part.saved, strict=True) if kind == "output"]
    assert any(map(is_last, saved))


def test_channels_last_weights_need_no_conversion() -> None:
    module = Block().to(memory_format=torch.channels_last)
    joint = joint_of(module, torch.randn(2, 3, 16, 16).contiguous(memory_format=torch.channels_last))
    before = strides(joint.grads)
    lay_out(joint, is_of_images)
    assert not [n for n in conversions(joint.graph) if n.args[0].op == "placeholder"]
    assert strides(joint.grads) == before


def test_a_graph_without_chosen_convolutions_stays() -> None:
    joint = joint_of(Block(), torch.randn(2, 3, 16, 16))
    before = str(joint.graph)
    lay_out(joint)  # on the CPU
    lay_out(joint, lambda n: False)
    assert str(joint.graph) == before


def on_gpu(dtype: torch.dtype, groups: int = 1, rank: int = 2) -> fx.Node:
    """A convolution of fake tensors on a GPU."""
    graph = fx.Graph()
    with FakeTensorMode():
        shapes = (2, 4, *(6,) * rank), (4, 4 // groups, *(3,) * rank)
        x, w = (torch.empty(s, dtype=dtype, device="cuda") for s in shapes)
        nodes = [graph.placeholder(name) for name in "xw"]
        for n, v in zip(nodes, (x, w), strict=True):
            n.meta["val"] = v
        ones, zeros = [1] * rank, [0] * rank
        node = graph.call_function(aten.convolution.default, (*nodes, None, ones, zeros, ones, False, zeros, groups))
        node.meta["val"] = node.target(x, w, *node.args[2:])
    graph.output(node)
    return node


def test_the_rule() -> None:
    assert prefers_channels_last(on_gpu(torch.bfloat16))
    assert prefers_channels_last(on_gpu(torch.float16))
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        assert prefers_channels_last(on_gpu(torch.float32))
    assert not prefers_channels_last(on_gpu(torch.float64))
    assert not prefers_channels_last(on_gpu(torch.bfloat16, groups=2))
    assert not prefers_channels_last(on_gpu(torch.bfloat16, rank=1))
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        assert not prefers_channels_last(on_gpu(torch.float32))
        assert prefers_channels_last(on_gpu(torch.bfloat16))
    with torch.backends.cudnn.flags(enabled=False):
        assert not prefers_channels_last(on_gpu(torch.bfloat16))


def test_a_graph_of_a_gpu() -> None:
    gm, values = lifted(Block().bfloat16().eval().requires_grad_(requires_grad=False), [torch.randn(2, 3, 16, 16)])
    mode = FakeTensorMode()
    with mode:
        examples = [torch.empty_strided(v.shape, v.stride(), dtype=torch.bfloat16, device="cuda") for v in values]
    joint = trace_joint(gm, examples, mode, default_decompositions(), True)
    lay_out(joint)
    calls = [n for n in joint.graph.nodes if n.target in CONVOLUTIONS]
    assert len(calls) == 3
    assert all(is_last(n.meta["val"]) for n in calls)
    assert all(n.args[0].op == "placeholder" for n in conversions(joint.graph))


# -- beside eager -----------------------------------------------------------------------------------------------------


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """All convolutions of images on the CPU are chosen; a list of the number of conversions of each graph."""
    pycompiler.reset()
    found: list[int] = []
    original = layout.lay_out

    def chosen(node: fx.Node) -> bool:
        return is_of_images(node) and layout._groups(node) == 1

    def lay(joint: Joint, rule: Callable[[fx.Node], bool] = chosen, **_: Any) -> None:
        original(joint, rule)
        found.append(len(conversions(joint.graph)))

    monkeypatch.setattr(pycompiler.autograd, "lay_out", lay)
    yield found
    pycompiler.reset()


def places(t: torch.Tensor) -> list[int]:
    """The strides of dimensions with more than one element."""
    return [s for n, s in zip(t.shape, t.stride(), strict=True) if n != 1]


def beside_eager(
    program: Callable[..., Any], module: nn.Module, *args: torch.Tensor, tolerance: float = 1e-4,
    only_places: bool = False,
) -> None:  # fmt: skip
    """Compares results, gradients and buffers with eager's: values, shapes and strides.

    `only_places`: the strides of a gradient may differ in dimensions of one element.
    """
    torch.manual_seed(0)
    other = copy.deepcopy(module)
    ours, theirs = ([a.detach().clone().requires_grad_(a.requires_grad) for a in args] for _ in range(2))
    compiled = pycompiler.compile(lambda *a: program(module, *a), fullgraph=True)
    for _ in range(2):
        torch.manual_seed(1)
        got = compiled(*ours)
        torch.manual_seed(1)
        want = program(other, *theirs)
        got, want = ((r,) if isinstance(r, torch.Tensor) else tuple(r) for r in (got, want))
        assert [t.stride() for t in got] == [t.stride() for t in want]
        assert_same(got, want, tolerance=tolerance)
        for results in (got, want):
            loss: Any = sum((t.float() * torch.linspace(0.5, 1.5, t.numel()).view(t.shape)).sum() for t in results)
            if loss.requires_grad:
                loss.backward()
        pairs = [*zip(ours, theirs, strict=True), *zip(module.parameters(), other.parameters(), strict=True)]
        for a, b in pairs:
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None and b.grad is not None:
                assert places(a.grad) == places(b.grad)
                assert_same(a.grad, b.grad, tolerance=tolerance, strides=not only_places)
        assert_same([*module.buffers()], [*other.buffers()], tolerance=tolerance)


class Net(nn.Module):
    """Convolutions for the programs below."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.point = nn.Conv2d(channels, channels, 1, bias=False)
        self.depth = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.pair = nn.Conv2d(channels, channels, 3, padding=1, groups=2 if channels % 2 == 0 else 1)
        self.up = nn.ConvTranspose2d(channels, channels, 2, stride=2)
        self.joined = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)


def residual(m: Net, x: torch.Tensor) -> Any:
    return m.b(m.norm(m.a(x)).relu()) + x


def joined(m: Net, x: torch.Tensor) -> Any:
    y = m.a(x)
    return m.joined(torch.cat((y, x), 1)), torch.cat((m.b(y), y), 2)


def pooled(m: Net, x: torch.Tensor) -> Any:
    y = F.avg_pool2d(m.b(F.max_pool2d(m.a(x), 3, 2, 1)), 2)
    return m.point(F.adaptive_avg_pool2d(y, (2, 2))), F.max_pool2d(m.b(x), 2, return_indices=True)[1]


def upsampled(m: Net, x: torch.Tensor) -> Any:
    y = F.interpolate(m.a(x), scale_factor=2, mode="nearest")
    return m.b(F.interpolate(m.b(y), size=(7, 9), mode="bilinear")), m.up(y)


def viewed(m: Net, x: torch.Tensor) -> Any:
    y = m.a(x)
    n, c, h, w = y.shape
    z = m.b(y.view(n, c * h, w).softmax(1).view(n, c, h, w))
    return z.flatten(1), z.permute(0, 2, 3, 1).reshape(n, h * w, c), m.point(y[:, :, 1:, ::2])


def returned_between(m: Net, x: torch.Tensor) -> Any:
    y = m.a(x).relu()
    return y, m.b(y), y.sum((2, 3), keepdim=True)


def twice(m: Net, x: torch.Tensor) -> Any:
    y = m.a(x)
    return m.a(y) + m.b(y) * y + m.b(x)


def of_groups(m: Net, x: torch.Tensor) -> Any:
    return m.pair(m.depth(m.point(x)).relu()) + m.depth(x)


def squeezed(m: Net, x: torch.Tensor) -> Any:
    y = m.a(x)
    scale = m.point(m.point(y.mean((2, 3), keepdim=True)).relu()).sigmoid()
    return m.b(y * scale)


def random(m: Net, x: torch.Tensor) -> Any:
    y = F.dropout(m.a(x), 0.5)
    return m.b(F.dropout2d(y, 0.5)) + torch.rand_like(y)


def padded(m: Net, x: torch.Tensor) -> Any:
    y = F.pad(m.a(x), (1, 2, 0, 1))
    return m.b(F.pad(m.b(y), (1, 1, 1, 1), mode="reflect")).clamp(-1, 1), y.to(torch.float64)


def strided(m: Net, x: torch.Tensor) -> Any:
    y = m.a(x) * 2
    return m.b(y), y.as_strided((2, 3), (1, 2)), torch.full((), y.stride(0)), y.transpose(1, 2).contiguous().sin()


def written(m: Net, x: torch.Tensor) -> Any:
    y = m.a(x)
    y.mul_(m.b(x))
    y[:, 0] = 1.0
    return m.b(y.add_(x))


def normalised(m: Net, x: torch.Tensor) -> Any:
    y = F.group_norm(m.a(x), 2 if x.shape[1] % 2 == 0 else 1)
    return F.layer_norm(m.b(y), x.shape[-2:]), F.instance_norm(y)


PROGRAMS = (
    residual, joined, pooled, upsampled, viewed, returned_between, twice, of_groups, squeezed, random, padded,
    strided, written, normalised,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_training(program: Callable[..., Any], forced: list[int]) -> None:
    beside_eager(program, Net(), torch.randn(2, 4, 8, 6, requires_grad=True))
    assert any(found > 0 for found in forced)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_one_channel_and_a_batch_of_one(program: Callable[..., Any], forced: list[int]) -> None:
    beside_eager(program, Net(1), torch.randn(1, 1, 8, 6, requires_grad=True))
    assert forced


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_channels_last_inputs_and_weights(program: Callable[..., Any], forced: list[int]) -> None:
    x = torch.randn(2, 4, 8, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    if program is viewed:
        pytest.skip("eager has no such view")
    # Without the pass, too, a gradient may have other strides in dimensions of one element.
    beside_eager(program, Net().to(memory_format=torch.channels_last), x, only_places=True)
    assert forced


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_inference(program: Callable[..., Any], forced: list[int]) -> None:
    with torch.no_grad():
        beside_eager(program, Net(), torch.randn(2, 4, 8, 6))
    assert forced


def test_bfloat16(forced: list[int]) -> None:
    beside_eager(residual, Net().bfloat16(), torch.randn(2, 4, 8, 6).bfloat16().requires_grad_(), tolerance=2e-1)
    with torch.autocast("cpu", torch.bfloat16):
        beside_eager(residual, Net(), torch.randn(2, 4, 8, 6, requires_grad=True), tolerance=2e-1)
    assert forced


@pytest.mark.parametrize("program", [residual, pooled, viewed, upsampled, twice], ids=lambda p: p.__name__)
def test_symbolic_sizes(program: Callable[..., Any], forced: list[int]) -> None:
    module, other = Net(), Net()
    other.load_state_dict(module.state_dict())
    compiled = pycompiler.compile(lambda x: program(module, x), fullgraph=True, dynamic=True)
    for batch, size in ((2, 8), (3, 10), (5, 8)):
        x, y = (torch.randn(batch, 4, size, 6, generator=torch.Generator().manual_seed(0)) for _ in range(2))
        results = [run(t.requires_grad_()) for run, t in ((compiled, x), (lambda t: program(other, t), y))]
        got, want = ((r,) if isinstance(r, torch.Tensor) else r for r in results)
        assert_same(got, want, tolerance=1e-4)
        for found in (got, want):
            sum(t.sin().sum() for t in found if t.requires_grad).backward()  # type: ignore[union-attr]
        assert_same(x.grad, y.grad, tolerance=1e-4)
    assert_same([p.grad for p in module.parameters()], [p.grad for p in other.parameters()], tolerance=1e-3)
    assert len(forced) <= 2
    assert any(forced)


def test_hooks_of_saved_tensors(forced: list[int]) -> None:
    """A hook may give a saved tensor back with other strides."""
    module = Net()
    compiled = pycompiler.compile(residual, fullgraph=True)
    x, y = (torch.randn(2, 4, 8, 6, generator=torch.Generator().manual_seed(0), requires_grad=True) for _ in range(2))
    want = residual(copy.deepcopy(module), y)
    want.sin().sum().backward()
    compiled(copy.deepcopy(module), x)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(force=True).copy(), torch.from_numpy):
        got = compiled(module, x)
    assert_same(got, want, tolerance=1e-4)
    got.sin().sum().backward()
    assert_same(x.grad, y.grad, tolerance=1e-4)


def test_an_output_that_is_written_before_the_backward(forced: list[int]) -> None:
    """Eager has saved it, and raises."""
    module, x = Net(), torch.randn(2, 4, 8, 6)
    compiled = pycompiler.compile(returned_between, fullgraph=True)
    for run in (returned_between, compiled):
        y, z, _ = run(module, x)
        y.detach().zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()


def test_the_gradient_reads_an_output_as_it_is_now(forced: list[int]) -> None:
    """A write through `.data` is invisible to autograd; eager computes with the new values."""
    module, x = Net(), torch.randn(2, 4, 8, 6, requires_grad=True)
    found = []
    for run in (returned_between, pycompiler.compile(returned_between, fullgraph=True)):
        x.grad = None
        y, z, _ = run(module, x)
        y.data.zero_()
        z.sum().backward()
        found.append((x.grad, module.b.weight.grad))
        module.zero_grad()
    assert_same(found[1], found[0], tolerance=1e-4)


def test_the_gradient_reads_views_of_an_output_as_it_is_now(forced: list[int]) -> None:
    """With one channel, the views have the same strides in both layouts."""
    conv, x = nn.Conv2d(4, 1, 3, padding=1), torch.randn(2, 4, 8, 6)

    def program(x: torch.Tensor) -> Any:
        y = conv(x)
        return y, (y[:, 0] * x[:, 0]).sum() + y.squeeze(1).square().sum()

    found = []
    for run in (program, pycompiler.compile(program, fullgraph=True)):
        conv.zero_grad()
        y, z = run(x)
        y.data.mul_(3.0)
        z.backward()
        found.append(conv.weight.grad)
    assert_same(found[1], found[0], tolerance=1e-4)


def test_second_derivatives_and_checkpoints(forced: list[int]) -> None:
    module, x = Net(), torch.randn(2, 4, 8, 6, requires_grad=True)

    def program(x: torch.Tensor) -> Any:
        return module.b(torch.utils.checkpoint.checkpoint(lambda t: module.a(t).tanh(), x, use_reentrant=False)).sin()

    found = []
    for run in (program, pycompiler.compile(program, fullgraph=True)):
        (first,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        (plain,) = torch.autograd.grad(run(x).sum(), x)
        found.append((first.detach(), second, plain))
    assert_same(found[1], found[0], tolerance=1e-4)
    assert any(forced)


def test_the_layout_of_a_returned_image_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ATen call whose result leaves the graph channels last: torch's shape functions may be wrong."""
    pycompiler.reset()
    plans: list[Plan] = []

    class Watch(phases.Observer):
        def artefact(self, name: str, value: Any) -> None:
            if name == "plan":
                plans.append(value[0])

    monkeypatch.setattr(phases, "observers", [*phases.observers, Watch()])
    module = nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 8, 6).contiguous(memory_format=torch.channels_last)
    for given, checks in ((x, 1), (x.contiguous(), 1)):
        plans.clear()
        out = pycompiler.compile(lambda t: module(t), fullgraph=True)(given)
        assert is_last(out)
        assert sum(isinstance(step, Expect) for step in plans[0].steps) == checks


def test_the_knob(monkeypatch: pytest.MonkeyPatch) -> None:
    pycompiler.reset()
    found: list[bool] = []  # for each graph, whether the rule is that of convolutions
    monkeypatch.setattr(pycompiler.autograd, "lay_out", lambda joint, **rules: found.append("rule" not in rules))
    module, x = Net(), torch.randn(2, 4, 8, 6)
    with pycompiler.config.patch(layout_optimization=False):
        pycompiler.compile(lambda x: module.a(x), fullgraph=True)(x)
    assert found == [False]
    pycompiler.compile(lambda x: module.a(x).sin(), fullgraph=True, backend="aot_eager")(x)
    assert found == [False]
    pycompiler.compile(lambda x: module.a(x).cos(), fullgraph=True)(x)
    assert found == [False, True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_no_conversion_by_cudnn() -> None:
    pycompiler.reset()
    module = Block(64).cuda().bfloat16()
    other = copy.deepcopy(module)
    x = torch.randn(8, 3, 64, 64, device="cuda").bfloat16()
    compiled = pycompiler.compile(module, fullgraph=True)
    out, want = compiled(x), other(x)
    assert out.stride() == want.stride()
    for result in (out, want):
        result.float().logsumexp(1).sum().backward()
    for a, b in zip(module.parameters(), other.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert a.grad.stride() == b.grad.stride()
        assert (a.grad - b.grad).float().norm() <= 0.1 * b.grad.float().norm() + 1e-2
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        compiled(x).float().logsumexp(1).sum().backward()
        torch.cuda.synchronize()
    assert not [e.name for e in found.events() if "ToNhwc" in e.name or "ToNchw" in e.name]
