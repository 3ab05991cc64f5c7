"""Whole programs: random compositions, symbolic sizes, other devices."""

import random

import pytest
import torch
import torch.nn.functional as F
from aten_graph import aten_graph
from harness import check, randn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pycompiler import config
from pycompiler.ir.interpret import interpret
from pycompiler.ir.loops import Extern, Loop
from pycompiler.ir.verify import verify
from pycompiler.lowering import lower
from pycompiler.lowering.graph import LoweringError

pytestmark = pytest.mark.whole  # each row is a rule of its own

UNARY = [torch.relu, torch.sin, torch.sigmoid, torch.abs, lambda t: t.exp().log1p(), lambda t: t * t, torch.tanh]
BINARY = [torch.add, torch.mul, torch.sub, torch.maximum, lambda a, b: torch.where(a > b, a, b * 0.5)]
REDUCE = [
    lambda t, d: t.sum(d, keepdim=True),
    lambda t, d: t.amax(d, keepdim=True),
    lambda t, d: t.mean(d, keepdim=True),
    lambda t, d: t.softmax(d),
    lambda t, d: t.var(d, correction=0, keepdim=True),
]
LAYOUT = [
    lambda r, t: t.permute(r.sample(range(t.dim()), t.dim())),
    lambda r, t: t.reshape(-1, t.shape[-1]) if t.dim() > 1 else t[None],
    lambda r, t: t[..., : max(1, t.shape[-1] // 2)],
    lambda r, t: torch.cat([t, t * 0.5], r.randrange(t.dim())),
    lambda r, t: F.pad(t, (1, r.randrange(2))),
    lambda r, t: t.flip(r.randrange(t.dim())),
    lambda r, t: t.contiguous(),
    lambda r, t: t.unsqueeze(r.randrange(t.dim() + 1)),
    lambda r, t: t.bfloat16().float(),
]


def random_program(seed):
    """A function of two tensors that applies the same random steps in each call."""

    def f(x, y):
        r = random.Random(seed)
        values = [x, y]
        for _ in range(8):
            t = r.choice(values)
            match r.randrange(4):
                case 0:
                    values.append(r.choice(UNARY)(t))
                case 1:
                    others = [v for v in values if _broadcasts(v.shape, t.shape)]
                    values.append(r.choice(BINARY)(t, r.choice(others)))
                case 2:
                    values.append(r.choice(REDUCE)(t, r.randrange(t.dim())))
                case 3 if t.numel() < 600:
                    values.append(r.choice(LAYOUT)(r, t))
        return values[-4:]

    return f


def _broadcasts(a, b):
    return all(m == n or 1 in (m, n) for m, n in zip(a[::-1], b[::-1]))


@pytest.mark.parametrize("seed", range(60))
def test_random_program(seed):
    check(random_program(seed), [randn(3, 4, seed=seed), randn(2, 3, 4, seed=seed + 1)], rtol=2e-4, atol=2e-4)


SYMBOLIC = {
    "pointwise": lambda x: x * 2 + x.sin(),
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(0),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "reshape": lambda x: x.t().reshape(-1) * 2,
    "cat": lambda x: torch.cat([x, x * 2], 0),
    "mm": lambda x: x @ x.t(),
    "slice": lambda x: x[1:] * 2 + x[-1],
    "heads": lambda x: x.view(x.shape[0], 2, 3).transpose(0, 1).reshape(2, -1) + 1,
    "arange": lambda x: torch.arange(x.shape[0])[:, None] * x,
    "expand": lambda x: x[:, None].expand(-1, x.shape[0], -1) * 1.5,
    "pad": lambda x: F.pad(x, (1, 2)),
    "embedding": lambda x: F.embedding(torch.arange(x.shape[0]) % 3, x),
    "tril": lambda x: x.tril() + x.flip(0),
    "extern": lambda x: x.cumsum(0)[1:] + 1,
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_sizes(name):
    f = SYMBOLIC[name]
    program = lower(aten_graph(f, [randn(5, 6)], tracing_mode="symbolic"))
    verify(program)
    for rows in (5, 9):
        x = randn(rows, 6)
        torch.testing.assert_close(interpret(program, [x])[0], f(x))


def test_floats_of_torchs_symbols_are_refused():
    """Such symbols belong to `make_fx`; a captured graph has symbols of pycompiler."""
    with pytest.raises(LoweringError, match="not an ATen operator"):
        lower(aten_graph(lambda x: x * (x.shape[0] / 2), [randn(5, 6)], tracing_mode="symbolic"))


def test_sizes_of_tensors_are_known_today():
    program = lower(aten_graph(lambda x: x.exp(), [randn(5, 7)], tracing_mode="symbolic"))
    [x] = program.inputs
    assert [program.hints[n.symbol] for n in x.shape] == [5, 7]


def test_sizes_that_depend_on_data_are_refused():
    with torch.no_grad():
        gm = make_fx(lambda x: x.nonzero() + 1, tracing_mode="symbolic")(torch.ones(3))
    with pytest.raises(NotImplementedError, match="depends on data"):
        lower(gm)


def test_another_device():
    """Loops stay on their tensors' device; a rank-0 CPU tensor is moved there first."""
    with FakeTensorMode() as mode, torch.no_grad():
        x, s = torch.empty(4, 5, device="cuda"), torch.empty(())
        with mode:
            gm = make_fx(lambda x, s: (x * s + 1).sum(0), tracing_mode="real")(x, s)
    program = lower(gm)
    verify(program)
    assert [n.op for n in program.nodes if isinstance(n, Extern)] == [torch.ops.aten._to_copy.default]
    assert {b.device.type for n in program.nodes for b in n.out} == {"cuda"}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_both_ends_of_lerp(device):
    """GPU kernels round differently from CPU kernels: the trees differ, and both equal eager's CPU result except for
    rounding."""
    x, y, w = randn(6), randn(6, seed=1), torch.tensor([0.0, 0.25, 0.49, 0.5, 0.75, 1.0])
    with FakeTensorMode() as mode, torch.no_grad():
        fakes = [torch.empty(6, device=device) for _ in range(3)]
        with mode:
            gm = make_fx(lambda x, y, w: torch.lerp(x, y, w))(*fakes)
    [found] = interpret(lower(gm), [x, y, w])
    torch.testing.assert_close(found, torch.lerp(x, y, w))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("asked", ["", "the knob", "torch"])
def test_sums_at_places_repeat_bit_for_bit_where_that_is_asked_for(device, asked):
    """Atomic adds of a GPU have any order: floats go to ATen's sorting kernels. On a CPU one thread adds."""

    def f(x, y, i):
        return (x.index_add(0, i, x[:2]), x.index_put((i,), x[:2], accumulate=True), x.scatter_add(0, i[:, None], x),
                y.index_add(0, i, y[:2]))  # fmt: skip

    def grad(x, i):
        return torch.ops.aten.embedding_dense_backward(x, i, 7, -1, False)

    with FakeTensorMode() as mode, torch.no_grad():
        x, y = torch.empty(4, 5, device=device), torch.empty(4, 5, dtype=torch.int64, device=device)
        i = torch.empty(2, dtype=torch.int64, device=device)
        with mode:
            programs = [make_fx(f)(x, y, i), make_fx(grad)(x[:2], i)]
    try:
        torch.use_deterministic_algorithms(asked == "torch")
        with config.patch(deterministic=asked == "the knob"):
            lowered = [lower(gm) for gm in programs]
    finally:
        torch.use_deterministic_algorithms(False)
    adds = sum(isinstance(n, Loop) and n.store_mode == "add" for p in lowered for n in p.nodes)
    calls = {n.op for p in lowered for n in p.nodes if isinstance(n, Extern)}
    if device == "cpu" or not asked:
        assert (adds, calls) == (5, set())
    else:
        aten = torch.ops.aten
        assert adds == 1
        assert calls == {aten.index_add.default, aten.index_put.default, aten.scatter_add.default,
                         aten.embedding_dense_backward.default}  # fmt: skip


def test_dead_loops_are_dropped():
    program = check(lambda x: (x.exp() * 2, x.max(1).values), [randn(3, 4)], native=True)
    kinds = [n.reduction.kind for n in program.nodes if isinstance(n, Loop) and n.reduction]
    assert kinds == ["max"], "the indices that nobody uses are not computed"
