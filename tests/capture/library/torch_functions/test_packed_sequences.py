"""Packed sequences: one graph for known lengths, with eager's values and gradients; otherwise a break where eager reads them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import pycompiler
from tests.harness.compare import assert_same, assert_same_calls

LENGTHS = [4, 6, 2]


class Tagger(nn.Module):
    def __init__(self, layers: nn.Module, batch_first: bool = True) -> None:
        super().__init__()
        self.embedding, self.layers, self.first = nn.Embedding(11, 5), layers, batch_first

    def forward(self, words: torch.Tensor, lengths: Any, sort: bool = False, **given: Any) -> Any:
        x = self.embedding(words if self.first else words.t())
        packed = pack_padded_sequence(x, lengths, batch_first=self.first, enforce_sorted=sort)
        made, hidden = self.layers(packed)
        padded, sizes = pad_packed_sequence(made, batch_first=self.first, **given)
        return padded * 2, sizes, hidden


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(5, 4, batch_first=True),
    "both ways, two layers": lambda: nn.LSTM(5, 4, num_layers=2, bidirectional=True, batch_first=True),
    "projected": lambda: nn.LSTM(5, 4, proj_size=3, batch_first=True, bias=False),
    "gru": lambda: nn.GRU(5, 4, bidirectional=True, batch_first=True),
    "rnn": lambda: nn.RNN(5, 4, batch_first=True),
    "relu": lambda: nn.RNN(5, 4, nonlinearity="relu", batch_first=True),
}


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value if v is not None for t in flat(v)]


def run(fn: Any, net: nn.Module, *args: Any, **kwargs: Any) -> Any:
    net.zero_grad()
    made = flat(fn(*args, **kwargs))
    sum(t.float().sin().sum() for t in made).backward()  # type: ignore[union-attr]
    return made, [p.grad for p in net.parameters()]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, backend: str) -> None:
    torch.manual_seed(0)
    net = Tagger(LAYERS[name]())
    other = copy.deepcopy(net)
    compiled = pycompiler.compile(other.forward, backend=backend, fullgraph=True)
    for _ in range(2):
        words = torch.randint(0, 11, (3, 6))
        assert_same(run(compiled, other, words, LENGTHS), run(net, net, words, LENGTHS))
    assert compiled.counters()["compiles"] == 1


@pytest.mark.parametrize("first", [True, False])
def test_options(first: bool) -> None:
    torch.manual_seed(0)
    net = Tagger(nn.GRU(5, 4, batch_first=first), first)
    other = copy.deepcopy(net)
    compiled = pycompiler.compile(other.forward, fullgraph=True)
    words = torch.randint(0, 11, (3, 7))
    for args, kwargs in (
        (([5, 3, 1], True), {}),
        (((5, 3, 1), False), {"total_length": 9}),
        (([7, 7, 7],), {"padding_value": -1.5}),
        ((torch.Size((2, 3, 1)),), {}),
    ):
        assert_same(run(compiled, other, words, *args, **kwargs), run(net, net, words, *args, **kwargs))


def made_inside(net: Tagger, words: torch.Tensor) -> Any:
    lengths = torch.tensor([2, 6, 4])
    longest = int(lengths.max())
    packed = pack_padded_sequence(net.embedding(words), lengths, batch_first=True, enforce_sorted=False)
    made, hidden = net.layers(packed)
    mask = torch.arange(longest)[None] < lengths[:, None]
    return pad_packed_sequence(made, batch_first=True)[0] * mask[..., None], hidden, lengths.tolist()[0] * words


def of_a_list(net: Tagger, words: torch.Tensor) -> Any:
    rows = [net.embedding(words[0, :5]), net.embedding(words[1, :3]), net.embedding(words[2, :3])]
    made, hidden = net.layers(pack_sequence(rows))
    return hidden, made.data, made.batch_sizes


def with_state(net: Tagger, words: torch.Tensor) -> Any:
    packed = pack_padded_sequence(net.embedding(words), [3, 6, 1], batch_first=True, enforce_sorted=False)
    state = tuple(torch.ones(1, 3, 4) * torch.arange(3.0)[None, :, None] * k for k in (1, 2))
    made, hidden = net.layers(packed, state)
    made = PackedSequence(made.data.relu(), made.batch_sizes, made.sorted_indices, made.unsorted_indices)
    return made.batch_sizes, pad_packed_sequence(net.layers(PackedSequence(
        torch.cat([made.data, made.data[:, :1]], 1), *made[1:]))[0]), hidden  # fmt: skip


@pytest.mark.parametrize("fn", [made_inside, of_a_list, with_state])
def test_programs(fn: Any) -> None:
    torch.manual_seed(0)
    net = Tagger(nn.LSTM(5, 4, batch_first=True))
    other = copy.deepcopy(net)
    compiled = pycompiler.compile(fn, fullgraph=True)
    for _ in range(2):
        words = torch.randint(0, 11, (3, 6))
        assert_same(run(compiled, other, other, words), run(fn, net, net, words))
    assert compiled.counters()["compiles"] == 1


def test_other_lengths() -> None:
    """Lists that change, lengths in tensors, and lengths that eager refuses."""
    torch.manual_seed(0)
    net = Tagger(nn.LSTM(5, 4, batch_first=True))
    compiled = pycompiler.compile(net.forward, recompile_limit=20)
    words = torch.randint(0, 11, (3, 6))
    for lengths in ([4, 6, 2], [6, 6, 6], [2, 0, 3], [3, 4], [9, 1, 1], torch.tensor([4, 6, 2])):
        for sort in (False, True):
            assert_same_calls(compiled, net, lambda given=(words, lengths, sort): given, calls=1)


def test_symbolic_sizes() -> None:
    torch.manual_seed(0)
    net = Tagger(nn.GRU(5, 4, batch_first=True))
    other = copy.deepcopy(net)
    compiled = pycompiler.compile(other.forward, fullgraph=True, dynamic=True)
    for steps in (6, 8, 9):
        words = torch.randint(0, 11, (3, steps))
        assert_same(run(compiled, other, words, LENGTHS), run(net, net, words, LENGTHS))
    assert compiled.counters()["compiles"] <= 2  # the longest sequence fills the batch, or does not


def written(x: torch.Tensor) -> Any:
    n = torch.tensor([2, 1])
    view = n[:1]
    first = x[: int(n[0])]
    view += 1
    return first, x[: int(n[0])] * 2, n


def written_as_data(x: torch.Tensor) -> Any:
    n = torch.tensor([2, 1])
    n.data.add_(1)
    return x[: int(n[0])] * 2


@pytest.mark.parametrize("fn", [written, written_as_data])
def test_what_is_written_is_not_known(fn: Any) -> None:
    x = torch.arange(5.0)
    compiled = pycompiler.compile(fn)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), fn(x))
    assert pycompiler.explain(fn)(x).graph_break_count > 0


def parts(x: torch.Tensor) -> Any:
    places = torch.tensor([1, 3])
    three = torch.tensor_split(x, places + 1), x.tensor_split(places, dim=1), torch.tensor_split(x, torch.tensor(2))
    return *[t * 2 for ts in three for t in ts], x[places[1]], int(places.sum()), places[0].item()


def test_tensor_split_at_known_places() -> None:
    x = torch.randn(5, 4)
    compiled = pycompiler.compile(parts, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), parts(x))
