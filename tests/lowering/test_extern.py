"""Operators without a lowering run as ATen's kernels with the layout of the trace; whole models."""

import pytest
import torch
import torch.nn.functional as F
from harness import check, externs, ints, lowered, randn

import pycompiler
from pycompiler.autograd import recorder
from pycompiler.autograd.decomp.registry import PARTIAL, RULES
from pycompiler.autograd.decompositions import default_decompositions
from pycompiler.graphs import STATISTICS
from pycompiler.ir.interpret import interpret
from pycompiler.ir.loops import Extern, Ref
from pycompiler.lowering import LOWERINGS, LoweringError, lowering, matmul
from pycompiler.operators.operator_facts import facts_of


@pytest.fixture(autouse=True)
def _products_are_extern(monkeypatch):
    """Products this small would be loops."""
    monkeypatch.setattr(matmul, "SMALL", 0)


EXTERN = {
    "mm": lambda x, y: x @ y.t(),
    "mm_of_expr": lambda x, y: (x + 1) @ (y * 2).t(),
    "addmm": lambda x, y: F.linear(x, y, x[0, :4]),
    "bmm": lambda x, y: x.reshape(2, 2, 6) @ y.reshape(2, 6, 2),
    "bmm_of_permuted": lambda x, y: x.view(2, 2, 6).transpose(0, 1) @ y.view(2, 2, 6).permute(1, 2, 0),
    "sort": lambda x, y: x.sort(-1),
    "topk": lambda x, y: x.topk(3),
    "cumsum": lambda x, y: x.cumsum(1),
    "cummax": lambda x, y: (x * y).cummax(0),
    "sdpa": lambda x, y: F.scaled_dot_product_attention(
        x.view(1, 2, 2, 6), y.view(1, 2, 2, 6), x.view(1, 2, 2, 6), is_causal=True
    ),
    "conv": lambda x, y: F.conv1d(x[None], y[:, :, None].reshape(3, 4, 2)),
    "max_pool": lambda x, y: F.max_pool2d(x[None], 2, 1, 0, 2, return_indices=True),
    "avg_pool": lambda x, y: F.avg_pool2d(x[None], 2),
    "adaptive": lambda x, y: F.adaptive_avg_pool2d(x[None], (2, 3)),
    "median": lambda x, y: x.median(1),
    "complex": lambda x, y: torch.fft.rfft(x).abs(),
    "complex_views": lambda x, y: torch.view_as_real(torch.view_as_complex(x.view(4, 3, 2)).t() * 2),
    "linalg": lambda x, y: torch.linalg.inv(x[:, :4] + 5 * torch.eye(4)),
    "index_put": lambda x, y: x.index_put((torch.tensor([0, 1]),), y[0]),
    "bool_index_put": lambda x, y: torch.where(x > 0, x, y).cumprod(0),
    "expanded_argument": lambda x, y: torch.bmm(x.expand(3, 4, 6), torch.ones(3, 6, 2)),
    "constant_argument": lambda x, y: x @ torch.ones(6, 2),
    "multi_use": lambda x, y: (x @ y.t()).relu() @ (x @ y.t()).relu(),
    "histc": lambda x, y: torch.histc(x, 4),
    "searchsorted": lambda x, y: torch.searchsorted(x[0].sort().values, y),
}


@pytest.mark.parametrize("name", EXTERN)
def test_extern(name):
    check(EXTERN[name], [randn(4, 6), randn(4, 6, seed=2)], native=False)


def test_copies_of_complex_tensors_are_atens():
    """The copy that gives a gradient its strides has no kernel of ours; only it may run through ATen, not the whole
    graph."""

    def f(x):
        return x * x.expand(8, -1, 1, 257)

    x = torch.randn(1, 1, 1, dtype=torch.complex128, requires_grad=True)
    before = STATISTICS["aten_fallbacks"]
    got, want = pycompiler.compile(f, fullgraph=True)(x), f(x)
    assert torch.equal(got, want)
    gradient = torch.randn_like(want)
    torch.testing.assert_close(torch.autograd.grad(got, x, gradient), torch.autograd.grad(want, x, gradient))
    assert STATISTICS["aten_fallbacks"] == before


def test_an_unlowered_operator_is_reported(monkeypatch):
    seen = []
    monkeypatch.setattr("pycompiler.lowering.graph.perf_hints", lambda text, *args: seen.append(text % args))
    lowered(lambda x: (x.polygamma(1), x.cumsum(0)), [randn(3)])
    assert len(seen) == 1
    assert "aten.polygamma.default has no lowering" in seen[0]


def test_random_numbers_are_eagers():
    program = lowered(lambda x: F.dropout(x, 0.5) + torch.rand_like(x), [randn(4, 6)])
    assert any(isinstance(n, Extern) for n in program.nodes)
    x = randn(4, 6)
    torch.manual_seed(7)
    want = F.dropout(x, 0.5) + torch.rand_like(x)
    torch.manual_seed(7)
    torch.testing.assert_close(interpret(program, [x])[0], want)


def test_arguments_are_passed_by_reference():
    program = lowered(lambda x, y: x.t() @ y[1:], [randn(3, 4), randn(4, 5)])
    (node,) = program.nodes
    assert node.args[0] == Ref("in0", (4, 3), (1, 4), 0)
    assert node.args[1].offset == 5


def test_mutation_of_an_input():
    gm = torch.fx.experimental.proxy_tensor.make_fx(lambda x, y: torch.ops.aten.copy_(x, x + y), tracing_mode="fake")(
        torch.zeros(3), torch.zeros(3)
    )
    from pycompiler.ir.verify import verify
    from pycompiler.lowering import lower

    program = lower(gm)
    verify(program)
    x = torch.ones(3)
    interpret(program, [x, torch.ones(3)])
    assert x.tolist() == [2, 2, 2]
    assert program.nodes[-1].mutates == ("in0",)


def test_one_lowering_per_operator():
    with pytest.raises(ValueError, match="has a lowering already"):
        lowering(torch.ops.aten.add.Tensor)(lambda low: None)
    assert torch.ops.aten.add.Tensor in LOWERINGS
    assert torch.ops.aten.cumsum.default not in LOWERINGS


def test_what_is_no_operator_is_refused():
    gm = torch.fx.symbolic_trace(lambda x: torch.relu(x))
    from pycompiler.lowering import lower

    for n in gm.graph.nodes:
        n.meta["val"] = None
    with pytest.raises(LoweringError, match="not an ATen operator"):
        lower(gm)


class Block(torch.nn.Module):
    """A transformer block, as people write it."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.ln1(x)).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1)) / 8**0.5
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


def test_transformer_training_step():
    torch.manual_seed(0)
    block, table = Block().double(), torch.nn.Embedding(11, 16).double()
    parameters = {**{f"b.{k}": v.detach() for k, v in block.named_parameters()}, "t": table.weight.detach()}

    def step(tokens, targets, *values):
        with torch.enable_grad():
            p = dict(zip(parameters, (v.detach().requires_grad_() for v in values), strict=True))
            x = F.embedding(tokens, p["t"])
            x = torch.func.functional_call(block, {k[2:]: v for k, v in p.items() if k.startswith("b.")}, (x,))
            loss = F.cross_entropy((x @ p["t"].t()).view(-1, 11), targets.view(-1))
            return loss.detach(), *torch.autograd.grad(loss, list(p.values()))

    args = [ints(2, 5, low=0, high=11), ints(2, 5, low=0, high=11, seed=4), *parameters.values()]
    program = check(step, args)
    assert {e.split(".")[1] for e in externs(program)} <= {"mm", "addmm", "bmm"}, externs(program)


def test_resnet_block():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 4, 1),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 5),
    ).eval()
    names, values = list(net.state_dict()), [v.detach() for v in net.state_dict().values()]

    def f(x, *values):
        return torch.func.functional_call(net, dict(zip(names, values, strict=True)), (x,))

    x = randn(2, 3, 8, 8)
    check(f, [x, *values], native=False, rtol=1e-4, atol=1e-5)
    check(f, [x.to(memory_format=torch.channels_last), *values], native=False, rtol=1e-4, atol=1e-5)


def test_every_core_operator_is_lowered_or_kept_for_a_reason():
    unlowered = set()
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            op = getattr(packet, overload)
            if torch.Tag.core in op.tags and op not in LOWERINGS and op not in RULES and "out" not in overload:
                unlowered |= set() if facts_of(op).kept else {name}
    assert not unlowered


def test_one_way_down():
    """An operator is decomposed or lowered; both only if its decomposition returns it unchanged for some arguments."""
    table = default_decompositions()
    named = [op for op in LOWERINGS if "dimname" in str(op).lower()]  # overloads of older torches, which no graph has
    assert [op for op in LOWERINGS if op in table and op not in (*PARTIAL, *named)] == []
    composite = [op for op in LOWERINGS if isinstance(op, torch._ops.OpOverload) and op not in (*table, *named)]
    assert [op for op in composite if recorder.is_composite(op) and not op._schema.name.startswith("aten::sym_")] == []
    assert [op for op in PARTIAL if op not in RULES] == []
