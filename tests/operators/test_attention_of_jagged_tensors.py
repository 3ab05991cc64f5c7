"""`scaled_dot_product_attention` of jagged tensors on the CPU: one graph, without reading the lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import pycompiler
from tests.torch_compat.test_jagged_tensors import assert_same_jagged, eager_graphs, jagged, loss

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
nested: Any = torch.nested


class Block(torch.nn.Module):
    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = torch.nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (torch.nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, [self.heads, -1]).transpose(1, 2) for f in (self.q, self.k, self.v))
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


def around(values: torch.Tensor, offsets: torch.Tensor, longest: int) -> Any:
    """Attention heads of shape (rows, 2, length, 4), ragged in dimension 2."""
    made = nested.nested_tensor_from_jagged(values, offsets, min_seqlen=0, max_seqlen=longest)
    return made.unflatten(-1, [2, 4]).transpose(1, 2).detach()


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_block_trains_for_all_lengths(backend: str, warnings_of_graphs: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    block = Block()
    compiled = pycompiler.compile(lambda x: block(x), backend=backend, fullgraph=True)
    for lengths in ((2, 3), (4, 6, 5), (3, 9), (7, 2, 5, 4)):
        x = jagged(*lengths, width=8, grad=True)
        y = x.detach().requires_grad_()
        found = []
        for fn, t in ((block, x), (compiled, y)):
            block.zero_grad()
            result = fn(t)
            loss(result).backward()
            found.append((result, t.grad, [p.grad for p in block.parameters()]))
        assert_same_jagged(found[1], found[0], [x.offsets()])
    assert compiled.counters()["compiles"] == 2
    assert eager_graphs(warnings_of_graphs) == []


def attend(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, scale=0.3)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_queries_and_keys_of_other_lengths(backend: str) -> None:
    compiled = pycompiler.compile(attend, backend=backend, fullgraph=True)
    for keys in ([0, 4, 9], [0, 1, 9], [0, 0, 9], [0, 9, 9]):  # some rows are empty
        of_q, of_k = torch.tensor([0, 2, 5]), torch.tensor(keys)
        q = around(torch.randn(5, 8), of_q, 3)
        k, v = (around(torch.randn(9, 8), of_k, 9) for _ in range(2))
        given, ours = ([t.detach().requires_grad_() for t in (q, k, v)] for _ in range(2))
        wanted, got = attend(*given), compiled(*ours)
        assert_same_jagged(got, wanted, [of_q])
        loss(wanted).backward()
        loss(got).backward()
        for t, u in zip(given, ours, strict=True):
            torch.testing.assert_close(u.grad._values, t.grad._values)


def test_what_torch_was_told_of_lengths_is_looked_at() -> None:
    """The frame runs eagerly where the declared longest row is wrong."""
    compiled = pycompiler.compile(attend, fullgraph=True)
    offsets = torch.tensor([0, 2, 7])
    for longest in (5, 6, 4, 3):
        q, k, v = (around(torch.randn(7, 8), offsets, longest) for _ in range(3))
        assert_same_jagged(compiled(q, k, v), attend(q, k, v))
    q, k, v = (around(torch.randn(9, 8), offsets, 5) for _ in range(3))
    for fn in (attend, compiled):
        with pytest.raises(RuntimeError, match="split"):
            fn(q, k, v)


OTHERWISE: dict[str, Callable[[Any], Any]] = {
    "dropout": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "half": lambda x: F.scaled_dot_product_attention(x.bfloat16(), x.bfloat16(), x.bfloat16()),
    "lengths that torch does not know": lambda x: F.scaled_dot_product_attention(
        *[nested.nested_tensor_from_jagged(x.transpose(1, 2).values(), x.offsets()).transpose(1, 2)] * 3
    ),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_other_attention_is_torchs(name: str) -> None:
    fn = OTHERWISE[name]
    x = around(torch.randn(5, 8), torch.tensor([0, 2, 5]), 3)
    compiled = pycompiler.compile(fn)
    for _ in range(2):
        torch.manual_seed(1)
        got = compiled(x)
        torch.manual_seed(1)
        assert_same_jagged(got, fn(x), [x.offsets()])
    assert pycompiler.explain(fn)(x).break_reasons[0].kind == "data-dependent-value"


OFFSETS = {2: torch.tensor([0, 3, 6]), 3: torch.tensor([0, 2, 4, 6])}


def heads(rows: int = 2, count: int = 2, width: int = 4, dtype: torch.dtype = torch.float32) -> Any:
    """Heads of rows with 6 elements in all."""
    values = torch.randn(6, count * width, dtype=dtype)
    made = nested.nested_tensor_from_jagged(values, OFFSETS[rows], min_seqlen=2, max_seqlen=3)
    return made.unflatten(-1, [count, width]).transpose(1, 2).detach()


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [({"count": 1}, {}, {}), ({}, {"count": 1}, {"count": 1}), ({}, {"count": 1}, {}), ({}, {}, {"count": 1}),
     ({"rows": 3}, {}, {}), ({}, {}, {"rows": 3}), ({}, {"width": 2}, {"width": 2}), ({}, {"dtype": torch.float64}, {})],
)  # fmt: skip
def test_heads_that_do_not_fit_are_an_error(query: Any, key: Any, value: Any) -> None:
    """Operators on padded rows would broadcast a single head."""
    given = [heads(**how) for how in (query, key, value)]
    compiled = pycompiler.compile(F.scaled_dot_product_attention, backend="aot_eager")
    for fn in (F.scaled_dot_product_attention, compiled):
        with pytest.raises((RuntimeError, ValueError), match=r"matmul|dtype"):
            fn(*given)
    plain = [heads() for _ in range(3)]
    torch.testing.assert_close(compiled(*plain).values(), F.scaled_dot_product_attention(*plain).values())
