"""The graph under construction: its inputs."""

from __future__ import annotations

import dis
import weakref
from typing import Any

import torch
from capture.harness import compile_recorded
from torch import nn

import pycompiler
from pycompiler.capture.recipe.recipe import Recipe
from pycompiler.wrapping import compiled_of


class Deep(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner: nn.Module = Deep(depth - 1) if depth > 1 else nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_inputs_of_deep_sources_have_names_of_their_own() -> None:
    """The names of weight and bias start alike and are longer than the limit."""
    net, x = Deep(40), torch.ones(2, 4)
    compiled = compile_recorded(lambda x: net(x))
    assert torch.equal(compiled.fn(x), net(x))
    assert [r.broke for r in compiled.records] == [None]


def test_sources_with_one_spelling() -> None:
    class Holder:
        def __init__(self) -> None:
            self.a_b, self.a, self.a_b_2 = torch.ones(2), {"b": torch.full((2,), 10.0)}, torch.full((2,), 100.0)

    holder = Holder()
    compiled = compile_recorded(lambda x, h: x + h.a_b + h.a["b"] + h.a_b_2)
    assert torch.equal(compiled.fn(torch.zeros(2), holder), torch.full((2,), 111.0))
    assert [r.broke for r in compiled.records] == [None]


def recipes(compiled: Any) -> list[Recipe]:
    family = compiled_of(compiled)._pycompiler_family
    return [family.made[entry].recipe for entry in compiled_of(compiled).entries]


class Result:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


def test_generated_code_reads_once_what_inputs_have_in_common() -> None:
    """The common prefix of several parameters is read once, and the code keeps no reference: a removed module is freed."""
    net, x = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), torch.ones(2, 4)
    compiled = pycompiler.compile(lambda x: Result(net(x)), backend="eager", fullgraph=True)
    assert torch.equal(compiled(x).value, net(x))
    [recipe] = recipes(compiled)
    assert recipe.code is not None
    reads = [i.argval for i in dis.get_instructions(recipe.code) if i.opname == "LOAD_CONST"]
    assert [reads.count(name) for name in ("_modules", "_parameters", "weight")] == [1, 3, 3]
    gone = weakref.ref(net[1])
    net[1] = nn.Linear(4, 4)
    assert gone() is None
    assert torch.equal(compiled(x).value, net(x))


class State:
    def __init__(self) -> None:
        self.count = 0


def test_objects_that_are_written_are_different_ones() -> None:
    """One guard covers all objects of a class: each pair must be distinct."""

    def fn(x: torch.Tensor, a: State, b: State, c: State) -> torch.Tensor:
        a.count, b.count = 1, 2
        return x + c.count

    compiled, x = pycompiler.compile(fn, backend="eager", fullgraph=True), torch.ones(2)
    for same in ((0, 1, 2), (0, 0, 2), (0, 1, 1), (0, 1, 0), (0, 0, 0), (0, 1, 2)):
        mine, theirs = ([State() for _ in range(3)] for _ in range(2))
        got, wanted = compiled(x, *(mine[i] for i in same)), fn(x, *(theirs[i] for i in same))
        assert torch.equal(got, wanted) and [s.count for s in mine] == [s.count for s in theirs], same
    assert pycompiler.counters(compiled)["compiles"] == 5
    first = recipes(compiled)[-1]
    assert sum(g.kind == "no_alias" for g in first.guards) == 2  # one for the objects, one for their dicts
