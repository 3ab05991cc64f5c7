"""Numbers computed from sizes: as graph nodes and as source text."""

from __future__ import annotations

import math

import pytest
import torch
from torch import fx

from pycompiler.symbolic.number_nodes import Numbers, is_number, real_text, symbols_in, text_of, value_of
from pycompiler.symbolic.symbols import Specialise, Symbols

MAKE = (
    lambda m, n: m * n * 2 - n + 3, lambda m, n: (m + 5) // 3 * n, lambda m, n: (m * n) % (n + 1), lambda m, n: -m,
    lambda m, n: torch.sym_max(m, n * 2) + torch.sym_min(m, n), lambda m, n: n / m, lambda m, n: 2.0 / (m * n) ** 0.5,
    lambda m, n: torch.sym_sqrt(m + n) * 0.5, lambda m, n: m * n * n // (m * n),
)  # fmt: skip


def graph_of(values, symbols):
    graph = fx.Graph()
    places = {name: graph.placeholder(name) for name in symbols.hints}
    numbers = Numbers(graph, places)
    graph.output(tuple(numbers.node(v) if isinstance(v, (torch.SymInt, torch.SymFloat)) else v for v in values))
    return fx.GraphModule(torch.nn.Module(), graph)


def test_nodes_and_texts_compute_the_expression():
    symbols = Symbols()
    m, n = symbols.new(7, name="m"), symbols.new(4, name="n")
    values = [make(m, n) for make in MAKE]
    module = graph_of(values, symbols)
    for a, b in ((7, 4), (9, 2), (3, 30)):
        expected = [make(a, b) for make in MAKE]
        assert list(module(a, b)) == pytest.approx(expected, rel=1e-15)
        space = {"sizes": (a, b), "math": math}
        names = {"m": "sizes[0]", "n": "sizes[1]"}
        texts = [real_text(value_of(v), names) if isinstance(v, torch.SymFloat) else text_of(v, names) for v in values]
        assert [eval(t or str(v), space) for t, v in zip(texts, values, strict=True)] == pytest.approx(
            expected, rel=1e-15
        )
    assert all(is_number(node.target) for node in module.graph.nodes if node.op == "call_function")


def test_an_expression_is_one_node():
    symbols = Symbols()
    m, n = symbols.new(7, name="m"), symbols.new(4, name="n")
    module = graph_of([m * n, n * m, (m * n) // 3, (n * m) // 3], symbols)
    assert len([node for node in module.graph.nodes if node.op == "call_function"]) == 2


def test_arguments_and_what_is_in_them():
    symbols = Symbols()
    m = symbols.new(7, name="m")
    graph = fx.Graph()
    place = graph.placeholder("m")
    made = Numbers(graph, {"m": place}).arguments([m, (1, m * 1), {"k": m - m}, torch.float32])
    assert made == [place, (1, place), {"k": 0}, torch.float32]
    assert symbols_in([m * 2, [1, (m,)], "m"]) == {"m"}
    assert text_of((1, [m * 2, 3]), {"m": "a"}) == "(1, [(2*a), 3, ], )"
    assert text_of((1, [2]), {}) is None


def test_a_symbol_without_input_must_be_known():
    symbols = Symbols()
    m = symbols.new(7, name="m")
    with pytest.raises(Specialise) as raised:
        Numbers(fx.Graph(), {}).node(m * 2)
    assert raised.value.names == ("m",)


def test_nothing_is_assumed_when_guards_are_made():
    symbols = Symbols()
    m, n = symbols.new(7, name="m"), symbols.new(4, name="n")
    with symbols.settled():
        assert bool(m >= 2)
        with pytest.raises(Specialise):
            bool(m > n)
    assert symbols.relations == []
    assert bool(m > n)
    assert len(symbols.relations) == 1
    with symbols.settled():
        assert bool(m > n)
