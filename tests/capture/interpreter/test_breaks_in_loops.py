"""Graph breaks inside loops: few compiles, for any length of the loop and any difference between its passes.

Each program runs as written, then compiled twice: same values, and no compile in the second call.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import pycompiler
from pycompiler.pipeline.compiler import PASSES
from tests.harness.compare import assert_same

N = 12
SAID: list[Any] = []


def say(what: Any) -> None:
    """A call that breaks the graph: capture does not enter it."""
    SAID.append(what)


say = pycompiler.disable(say)


class Block(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.index = index
        self.name = f"block {index}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x).relu()


def items(layers: nn.ModuleList, x: torch.Tensor) -> Any:
    for layer in layers:
        x = layer(x)
        say("layer")
    return x


def counted(layers: nn.ModuleList, x: torch.Tensor) -> Any:
    for i, layer in enumerate(layers):
        x = layer(x) * (i + 1)
        say(i)
    return x


def some(layers: nn.ModuleList, x: torch.Tensor) -> Any:
    taps = []
    for i, layer in enumerate(layers):
        x = layer(x)
        say(i)
        if i in (2, 5, 8):
            taps.append(x)
    return torch.stack(taps) + x


def zipped(layers: nn.ModuleList, x: torch.Tensor) -> Any:
    for scale, layer in zip(range(N), reversed(layers), strict=True):
        x = layer(x) + scale
        say(scale)
    return x


def indexed(layers: nn.ModuleList, x: torch.Tensor) -> Any:
    for i in range(len(layers)):
        x = layers[i](x)
        say(i)
    return x


def while_loop(layers: nn.ModuleList, x: torch.Tensor) -> Any:
    i = 0
    while i < len(layers):
        x = layers[i](x)
        say(i)
        i += 1
    return x


def nested(layers: nn.ModuleList, x: torch.Tensor) -> Any:
    for i in range(4):
        for j in range(3):
            x = layers[i * 3 + j](x)
            say((i, j))
    return x


def growing_list(layers: nn.ModuleList, x: torch.Tensor) -> Any:
    states = []
    for layer in layers:
        x = layer(x)
        states.append(x)
        say(len(states))
    return torch.stack(states)


def growing_tuple(layers: nn.ModuleList, x: torch.Tensor) -> Any:
    states: tuple[torch.Tensor, ...] = ()
    for layer in layers:
        x = layer(x)
        states = (*states, x)
        say(x.shape)
    return torch.stack(states)


def growing_dict(layers: nn.ModuleList, x: torch.Tensor) -> Any:
    states = {}
    for i, layer in enumerate(layers):
        x = layer(x)
        states[f"layer {i}"] = x
        say(i)
    return torch.stack([*states.values()])


def of_each(layers: nn.ModuleList, x: torch.Tensor) -> Any:
    cache: list[Any] = [None] * N
    for layer in layers:
        x = layer(x) * layer.index
        cache[layer.index] = x
        say(layer.name)
    return torch.stack(cache)


def by_name(layers: nn.ModuleList, x: torch.Tensor) -> Any:
    scales = {f"{i}": 1.5 + i for i in range(N)}
    for name, layer in layers.named_children():
        x = layer(x) * scales[name]
        say(name)
    return x


def left(layers: nn.ModuleList, x: torch.Tensor) -> Any:
    for i, layer in enumerate(layers):
        if i == 4:
            continue
        x = layer(x)
        say(i)
        if i == 9:
            break
    else:
        say("not left")
    return x


def in_with_and_try(layers: nn.ModuleList, x: torch.Tensor) -> Any:
    with torch.no_grad():
        for i, layer in enumerate(layers):
            try:
                x = layer(x)
                say(i)
                if i % 5 == 4:
                    raise ValueError(i)
            except ValueError as e:
                say(e.args)
            finally:
                x = x + 1
    return x


def functions(layers: nn.ModuleList, x: torch.Tensor) -> Any:
    for f in [lambda y, i=i: y * i + 1 for i in range(N)]:
        x = f(x)
        say("function")
    return x


def comprehended(layers: nn.ModuleList, x: torch.Tensor) -> Any:
    states = []
    for layer in [b for b in layers if b.index % 4]:
        x = layer(x)
        say(layer.index)
        states += [layer(x) for layer in layers[:2]]
    return torch.stack(states)


PROGRAMS = [items, counted, some, zipped, indexed, while_loop, nested, growing_list, growing_tuple, growing_dict,
            of_each, by_name, left, in_with_and_try, functions, comprehended]  # fmt: skip


class Counting:
    """A backend that counts its graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.graphs += 1
        return gm.forward


@pytest.fixture(autouse=True)
def limits_are_errors() -> Iterator[None]:
    SAID.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", pycompiler.errors.RecompileLimitWarning)
        yield


def said(program: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """The result of the program, and the values passed to `say`."""
    SAID.clear()
    return program(), [*SAID]


def model() -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList([Block(i) for i in range(N)])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_few_compiles(program: Callable[..., Any]) -> None:
    backend = Counting()
    compiled = pycompiler.compile(program, backend=backend)
    layers, x = model(), torch.randn(2, 4)
    wanted = said(lambda: program(layers, x))
    for graphs in (0, None):
        assert graphs is None or backend.graphs == graphs
        assert_same(said(lambda: compiled(layers, x)), wanted)
    first = backend.graphs
    assert_same(said(lambda: compiled(layers, x * 2)), said(lambda: program(layers, x * 2)))
    assert backend.graphs == first <= 3 * PASSES
    assert all(len(m.entries) <= PASSES + 1 for m in compiled._pycompiler_family.members)


@pytest.mark.parametrize("program", [items, growing_list, indexed], ids=lambda f: f.__name__)
def test_gradients(program: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(program, backend="aot_eager")
    grads = []
    for run in (program, compiled, compiled):
        layers = model().double()
        x = torch.ones(2, 4, requires_grad=True, dtype=torch.double)
        run(layers, x).square().sum().backward()
        grads.append([x.grad, *(p.grad for p in layers.parameters())])
    torch.testing.assert_close(grads[1], grads[0])
    torch.testing.assert_close(grads[2], grads[0])


def test_the_iterator_is_where_eager_has_it_after_an_exception() -> None:
    def program(iterator: Iterator[Any], x: torch.Tensor) -> Any:
        states = []
        for i in iterator:
            states.append(x * i)
            say(i)
            if i == 7:
                raise ValueError(len(states))
        return states

    compiled = pycompiler.compile(program, backend="eager")
    for make in (lambda: iter(range(N)), lambda: iter([*range(N)]), lambda: (i for i in range(N)), itertools.count):
        left = []
        for run in (program, compiled, compiled):
            iterator: Any = make()
            with pytest.raises(ValueError, match="8"):
                run(iterator, torch.ones(2))
            left.append(next(iterator))
        assert left == [8, 8, 8]


def test_two_loops_share_an_iterator() -> None:
    def program(layers: nn.ModuleList, x: torch.Tensor) -> Any:
        iterator, states = iter(layers), []
        for layer in iterator:
            x = layer(x)
            states.append(x)
            say(len(states))
            if len(states) % 2:
                x = x - next(iterator)(x)
            if len(states) == 3:
                break
        for layer in iterator:
            x = layer(x) * 2
            say("rest")
        return x, next(iterator, None)

    compiled, layers, x = pycompiler.compile(program, backend="eager"), model(), torch.ones(2, 4)
    wanted = said(lambda: program(layers, x))
    for _ in range(2):
        assert_same(said(lambda: compiled(layers, x)), wanted)


def test_a_loop_of_a_thousand_steps() -> None:
    def train(x: torch.Tensor, w: torch.Tensor, steps: int) -> torch.Tensor:
        for step in range(steps):
            loss = (x @ w).square().mean()
            loss.backward()
            with torch.no_grad():
                w -= 0.01 * w.grad
                w.grad = None
            if step % 100 == 0:
                say(loss.item())
        return loss

    def results(run: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        return said(lambda: run(torch.randn(4, 3), torch.randn(3, 2, requires_grad=True), 300))

    backend = Counting()
    assert_same(results(pycompiler.compile(train, backend=backend)), results(train))
    assert backend.graphs <= PASSES


def test_what_no_compile_made_is_not_saved(tmp_path: Path) -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        states = []
        for i in range(n):
            states.append(x * i)
            say(i)
        return torch.stack(states)

    compiled = pycompiler.compile(program)
    compiled(torch.ones(2), N)
    assert not pycompiler.save(compiled, tmp_path / "artefact").left_out
