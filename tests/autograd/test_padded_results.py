"""Products whose results have wider rows: the pass as a rewrite, and values, gradients and strides beside eager.

Every product of the CPU is padded here to a multiple of eight columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

import pycompiler
from pycompiler.autograd import layout
from pycompiler.autograd.joint import Joint
from pycompiler.autograd.layout import is_product, lay_out
from pycompiler.autograd.partition import partition
from tests.autograd.test_channels_last import beside_eager, joint_of, run_strides, strides

aten = torch.ops.aten
COLUMNS = 13  # of the head


def wider(node: fx.Node) -> int | None:
    columns = int(node.meta["val"].shape[-1])
    return columns + -columns % 8 if columns % 8 else None


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A list of the number of padded products of each graph."""
    pycompiler.reset()
    found: list[int] = []
    original = layout.lay_out

    def lay(joint: Joint, **_: Any) -> None:
        before = [n for n in joint.graph.nodes if is_product(n)]
        original(joint, columns=wider)
        found.append(sum(n.target is aten.slice.Tensor for n in before))

    monkeypatch.setattr(pycompiler.autograd, "lay_out", lay)
    yield found
    pycompiler.reset()


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, COLUMNS, bias=False)
        self.biased, self.back = nn.Linear(8, COLUMNS), nn.Linear(COLUMNS, 8)

    def forward(self, x: Tensor) -> Any:
        return returned(self, x)


def labels(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0] * x.shape[1]) % COLUMNS


def loss(m: Head, x: Tensor) -> Any:
    return F.cross_entropy(m.head(m.norm(x)).float().view(-1, COLUMNS), labels(x))


def returned(m: Head, x: Tensor) -> Any:
    logits = m.head(m.norm(x))
    return F.cross_entropy(logits.float().view(-1, COLUMNS), labels(x)), logits


def biased(m: Head, x: Tensor) -> Any:
    return m.back(m.biased(x).relu()), m.head(x).sum(0)


def scalar_bias(m: Head, x: Tensor) -> Any:
    return torch.addmm(x[0, 0, 0], x[0], m.head.weight.t()).sin(), torch.baddbmm(x[:, :1, :1], x, x.mT)


def viewed(m: Head, x: Tensor) -> Any:
    y = m.head(x)
    return (
        y.transpose(0, 1)[1:, :, 2:5],
        y.flatten()[3:].sin(),
        y[..., ::2].softmax(-1),
        y.unsqueeze(0).expand(2, -1, -1, -1) * 2,
    )


def strided(m: Head, x: Tensor) -> Any:
    y = m.head(x)
    return y.as_strided((3, 4), (1, 2)), torch.full((), y.stride(0)), y * 2


def written(m: Head, x: Tensor) -> Any:
    y = m.head(x)
    y.mul_(2)
    y[..., 0] = 1.0
    return y.exp(), y


def batched(m: Head, x: Tensor) -> Any:
    y = torch.bmm(x, x[:, :5].mT)
    return torch.bmm(y.softmax(-1), x[:, :5]), y


def multiplied(m: Head, x: Tensor) -> Any:
    y = m.head(x).view(-1, COLUMNS)
    return y @ y.t(), y.t() @ y


def random(m: Head, x: Tensor) -> Any:
    return F.dropout(m.head(x), 0.5), torch.rand_like(m.head(x))


PROGRAMS = (loss, returned, biased, scalar_bias, viewed, strided, written, batched, multiplied, random)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("training", [True, False])
def test_beside_eager(forced: list[int], program: Callable[..., Any], training: bool) -> None:
    torch.manual_seed(0)
    module = Head().requires_grad_(requires_grad=training)
    beside_eager(program, module, torch.randn(3, 7, 8, requires_grad=training))
    assert sum(forced) > 0, "no product was padded"


def test_the_forward_saves_the_wide_result_and_returns_a_copy() -> None:
    joint = joint_of(Head().bfloat16(), torch.randn(3, 7, 8, dtype=torch.bfloat16, requires_grad=True))
    before = [strides(nodes) for nodes in (joint.fresh, joint.grads)]
    lay_out(joint, columns=wider)
    assert [strides(nodes) for nodes in (joint.fresh, joint.grads)] == before
    joint.graph.lint()
    run_strides(joint.graph)
    [product] = [n for n in joint.graph.nodes if is_product(n) and n.meta["val"].shape[-1] == 16]
    part = partition(joint)
    saved = [n.meta["val"] for n, (kind, _) in zip(part.saved_nodes, part.saved, strict=True) if kind == "output"]
    assert [s.stride() for s in saved if s.numel() in (21 * 13, 21 * 16)] == [(7 * 16, 16, 1)], product
    assert aten.clone.default in [n.target for n in part.forward.graph.nodes]


def test_a_graph_without_padded_products_stays() -> None:
    joint = joint_of(Head(), torch.randn(3, 7, 8, requires_grad=True))
    before = str(joint.graph)
    lay_out(joint, columns=lambda _: None)
    assert str(joint.graph) == before


def test_a_write_between_forward_and_backward_ends_as_in_eager(forced: list[int]) -> None:
    """Eager's loss saves its own float32 copy of the logits, so the program may write them."""
    torch.manual_seed(0)
    module, x = Head(), torch.randn(3, 7, 8)

    def gradient(call: Callable[..., Any]) -> Any:
        module.zero_grad()
        value, logits = call(module, x)
        with torch.no_grad():
            logits.zero_()
        value.backward()
        return module.head.weight.grad

    torch.testing.assert_close(gradient(pycompiler.compile(returned, fullgraph=True)), gradient(returned))
    assert sum(forced) > 0
