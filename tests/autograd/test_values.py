"""Values, gradients and mutated buffers of compiled graphs, compared with eager."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ad_helpers import Compiled, check, fakes, lifted, loss_of
from ad_models import GPT, ConvNet
from torch import fx, nn

import pycompiler
from pycompiler.autograd import aot_eager, compile_joint


@pytest.fixture(autouse=True)
def _fixed() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))


@pytest.mark.parametrize("how", ["default", "min_cut"])
def test_mlp(how: str) -> None:
    check(mlp(), [torch.randn(5, 8)], partition=how)


def test_input_gradient() -> None:
    check(mlp(), [torch.randn(5, 8, requires_grad=True)])


def test_conv_batchnorm_training() -> None:
    net = ConvNet()
    compiled = check(net, [torch.randn(2, 3, 12, 12)])
    assert int(net.norm.num_batches_tracked) == 2  # `check` calls twice
    assert compiled.backward is not None


def test_conv_batchnorm_eval() -> None:
    net = ConvNet()
    check(net, [torch.randn(2, 3, 12, 12)])
    check(net.eval(), [torch.randn(2, 3, 12, 12)])


def test_channels_last() -> None:
    net = ConvNet().to(memory_format=torch.channels_last)
    check(net, [torch.randn(2, 3, 12, 12).to(memory_format=torch.channels_last)])


def test_dropout_same_stream_and_same_mask() -> None:
    check(
        nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 8), nn.Dropout(0.5)), [torch.randn(16, 8)], seed=7
    )


def test_dropout_eval() -> None:
    check(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3)).eval(), [torch.randn(16, 8)])


@pytest.mark.parametrize("how", ["default", "min_cut"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_gpt(how: str, dropout: float) -> None:
    ids = torch.randint(0, 11, (2, 6))
    check(GPT(dropout), [ids, ids.roll(1, 1)], partition=how)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(reduction: str, weighted: bool) -> None:
    weight = torch.rand(5) + 0.5 if weighted else None
    target = torch.tensor([0, 4, -100, 2])

    def loss(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, t, weight=weight, reduction=reduction)

    check(loss, [torch.randn(4, 5, requires_grad=True), target])
    check(loss, [torch.randn(2, 5, 2, requires_grad=True), target.view(2, 2)])


UNARY = [
    F.relu,
    F.gelu,
    F.silu,
    F.sigmoid,
    torch.tanh,
    F.softplus,
    F.elu,
    F.leaky_relu,
    F.hardtanh,
    F.hardswish,
    F.hardsigmoid,
    F.mish,
    F.selu,
    F.logsigmoid,
    F.relu6,
    torch.exp,
    torch.sin,
    torch.erf,
    torch.var,
    torch.std,
    torch.prod,
    torch.cumsum,
    torch.logsumexp,
    torch.softmax,
    torch.log_softmax,
    torch.amax,
    torch.sort,
    torch.norm,
    torch.diff,
    torch.triu,
    torch.flip,
    torch.trace,
]
NEEDS_DIM = {
    torch.cumsum: (1,),
    torch.logsumexp: (1,),
    torch.softmax: (0,),
    torch.log_softmax: (1,),
    torch.flip: ((0,),),
}


@pytest.mark.parametrize("fn", UNARY, ids=lambda f: f.__name__)
def test_unary(fn: object) -> None:
    rest = NEEDS_DIM.get(fn, ())
    check(
        lambda x: fn(x * 1.5, *rest)[0] if fn is torch.sort else fn(x * 1.5, *rest),
        [torch.randn(4, 4, requires_grad=True)],
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.Softmax(-1)).to(dtype)
    check(net, [torch.randn(4, 8, dtype=dtype)], tolerance=1e-9 if dtype is torch.float64 else 3e-2)


LOSSES = [
    torch.ops.aten.mse_loss,
    torch.ops.aten.l1_loss,
    torch.ops.aten.smooth_l1_loss,
    torch.ops.aten.huber_loss,
    torch.ops.aten.binary_cross_entropy_with_logits,
    torch.ops.aten.kl_div,
]


@pytest.mark.parametrize("fn", LOSSES, ids=str)
def test_losses(fn: Any) -> None:
    check(lambda a, b: fn(a, b), [torch.randn(6, 3, requires_grad=True), torch.rand(6, 3)])


def test_group_norm_and_instance_norm() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.instance_norm(F.group_norm(x, 2, w), eps=1e-3)

    check(fn, [torch.randn(2, 4, 9, requires_grad=True), torch.rand(4, requires_grad=True)])


def test_views_and_indexing() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=1)
        c = torch.cat([a.t(), b.t() * 2], 1)
        return torch.stack([c[:, ::2].sum(1), c[i, 1:-1].mean(0)[:3]]) + x.unbind(0)[1][:3]

    check(fn, [torch.randn(5, 6, requires_grad=True), torch.tensor([2, 0, 0, 1])])


def test_where_masked_and_scalars() -> None:
    def fn(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        y = x.masked_fill(m, float("-inf")).softmax(-1)
        return torch.where(m, 3.0 - x, y) + (1 - x) * torch.tensor([1.0, 2.0, 3.0]) + torch.tensor(2.5)

    check(fn, [torch.randn(4, 3, requires_grad=True), torch.tensor([True, False, False])])


def test_autocast_region() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y.float().sum(1)

    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    region = graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, None))
    y = graph.call_function(torch.matmul, (x, w))
    graph.call_function(torch.amp.autocast_mode._exit_autocast, (region,))
    graph.output((graph.call_method("sum", (graph.call_method("float", (y,)), 1)),))
    args = [torch.randn(4, 8), torch.randn(8, 4, requires_grad=True)]
    got = aot_eager(fx.GraphModule(nn.Module(), graph), args)(*args)[0]
    expected = fn(*args)
    torch.testing.assert_close(got, expected)
    (g,) = torch.autograd.grad(loss_of([got]), [args[1]])
    (e,) = torch.autograd.grad(loss_of([expected]), [args[1]])
    torch.testing.assert_close(g, e)


def test_ambient_autocast_is_part_of_the_graph() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    x = torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compiled = Compiled(net, [x])
        got, expected = compiled(x)[0], net(x)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    got.float().sum().backward()
    assert net[0].weight.grad is not None
    assert net[0].weight.grad.dtype == torch.float32


def test_backward_called_under_autocast() -> None:
    net, x = mlp(), torch.randn(5, 8)
    compiled = Compiled(net, [x])
    compiled(x)[0].sum().backward()
    expected = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    out = compiled(x)[0].sum()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out.backward()
    for p, e in zip(net.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, e, rtol=0, atol=0)


def test_no_grad_region() -> None:
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    y = graph.call_function(torch.matmul, (x, w))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    z = graph.call_function(torch.matmul, (x, w))
    graph.output((graph.call_function(operator.add, (y, z)), y))
    args = [torch.randn(4, 8), torch.randn(8, 4, requires_grad=True)]
    out, inside = aot_eager(fx.GraphModule(nn.Module(), graph), args)(*args)
    assert torch.is_grad_enabled()
    assert out.requires_grad
    assert not inside.requires_grad
    (got,) = torch.autograd.grad(out.sum(), [args[1]])
    torch.testing.assert_close(got, args[0].sum(0)[:, None].expand(8, 4))
    torch.testing.assert_close(inside, (args[0] @ args[1]).detach())


def test_grad_mode_off_is_inference() -> None:
    with torch.no_grad():
        compiled = Compiled(mlp(), [torch.randn(5, 8)])
        assert compiled.inference is not None
        assert compiled.forward is None
        assert not compiled(torch.randn(5, 8))[0].requires_grad
    with torch.inference_mode():
        compiled = Compiled(mlp(), [torch.randn(5, 8)])
        assert compiled(torch.randn(5, 8))[0].is_inference()


def test_inference_without_epilogue_is_the_compilers_callable() -> None:
    def kernel(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (args[0] * 2,)

    gm, _ = lifted(lambda x: x * 2, [torch.randn(3)])
    fn = compile_joint(gm, fakes(gm), fw_compiler=lambda g, i: kernel, bw_compiler=lambda g, i: kernel)
    assert fn is kernel


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_number_minus_integers(backend: str) -> None:
    """The result is not the negative plus the number: unsigned integers have no negative, and bools are refused."""
    numbers = torch.tensor([0, 1, 200], dtype=torch.uint8)
    for fn in (lambda t: 0.1 - t, lambda t: 3 - t, lambda t: torch.rsub(t, 2, alpha=3)):
        torch.testing.assert_close(pycompiler.compile(fn, backend=backend)(numbers), fn(numbers))
    with pytest.raises((NotImplementedError, RuntimeError), match="Subtraction, the `-` operator, with a bool tensor"):
        pycompiler.compile(lambda t: 0.1 - (t > 0), backend=backend)(numbers)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_what_shape_functions_get_wrong(backend: str) -> None:
    """A division by an empty size; strides of 0 in a fresh result; one-element dimensions with negative indices."""
    programs = [
        (lambda x: torch.nn.functional.huber_loss(x, x * 2), (0,)),
        (lambda x: torch.select_scatter(x, torch.zeros((), dtype=x.dtype), 0, -1).sum(-1, keepdim=True), (2,)),
        (lambda x: torch.linalg.vector_norm(x, 1, -2), (1, 3)),
        (lambda x: x.cfloat() * x.cfloat().expand(8, -1, 1, 5), (1, 1, 1)),
    ]
    for program, shape in programs:
        x = torch.ones(shape, dtype=torch.float64).requires_grad_()
        want = program(x)
        got = pycompiler.compile(program, backend=backend)(x)
        assert (got.shape, got.stride()) == (want.shape, want.stride())
        torch.testing.assert_close(got, want, equal_nan=True)
        tangent = torch.ones_like(want)
        grads = [torch.autograd.grad(out, x, tangent, retain_graph=True)[0] for out in (got, want)]
        torch.testing.assert_close(*grads, equal_nan=True)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_complex_numbers_of_the_program(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """The gradient conjugates the complex number; a resolved conjugate has its own memory."""
    programs = [
        lambda x: torch.view_as_real(x * 1j),
        lambda x: (x * (2 + 1j)).imag.sin(),
        lambda x: torch.view_as_real((x * 1j).conj().resolve_conj()),
        lambda x: torch.view_as_real((x * 1j).conj()[1:].resolve_conj().conj_physical()),
    ]
    for program in programs:
        xs = [torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2)]
        want, got = program(xs[0]), pycompiler.compile(program, backend=backend, fullgraph=True)(xs[1])
        torch.testing.assert_close(got, want)
        want.square().sum().backward()
        got.square().sum().backward()
        torch.testing.assert_close(xs[1].grad, xs[0].grad)
    assert not caplog.records


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("how", ["computed with", "copied", "cast"])
def test_tensors_of_inference_mode_among_the_inputs(how: str, backend: str) -> None:
    """Autograd neither saves inference tensors nor counts their versions. It saves tensors computed from them elsewhere."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if how == "cast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return y @ x
        return (y + 1) * x if how == "computed with" else y.clone() @ x

    compiled = pycompiler.compile(program, backend=backend)
    for made_in in (True, False, True):
        with torch.inference_mode(made_in):
            y = torch.randn(4, 4)
        found = []
        for fn in (program, compiled):
            x = torch.ones(4, 4, requires_grad=True)
            out = fn(x, y)
            (first,) = torch.autograd.grad(out.float().sin().sum(), x, create_graph=True)
            first.sum().backward()
            found.append((out, first, x.grad))
        torch.testing.assert_close(found[1], found[0])
