"""What tests of torch's own behaviour found, each as a program of its own."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import pycompiler


@dataclasses.dataclass(frozen=True)
class Inner:
    x: float
    y: float


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    z: int


def test_a_key_of_a_dataclass_within_another() -> None:
    def program(x: Any) -> Any:
        found = {Outer(Inner(2.5, 4.5), 5): 2}
        return x * found[Outer(Inner(2.5, 4.5), 5)], hash((Inner(1.0, 2.0), 3)) == hash((Inner(1.0, 2.0), 3))

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    assert str(compiled(torch.ones(2))) == str(program(torch.ones(2)))


def test_an_id_in_arithmetic_is_that_of_this_object() -> None:
    def program(x: Any, thing: Any) -> Any:
        return x + (id(thing) // 1000) % 1000

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    first, second = Inner(1.0, 2.0), Inner(1.0, 2.0)
    for thing in (Inner, Inner, Outer, first, second, first):
        torch.testing.assert_close(compiled(torch.ones(2), thing), program(torch.ones(2), thing))
    assert compiled.counters()["compiles"] == 4


@pytest.mark.parametrize("given", [([], {"from": -10, "to": 10}), ([-10], {"to": 10}), ([], {"from": 2.0, "to": 3.0})])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_arguments_whose_names_are_pythons_own(given: tuple[list[Any], dict[str, Any]], backend: str) -> None:
    def program(x: Any) -> Any:
        return x.clone().uniform_(*given[0], **given[1])

    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = program(torch.ones(5))
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(torch.ones(5)), expected)


def test_attributes_of_a_thread_through_their_dict() -> None:
    local = threading.local()

    def program(x: Any) -> Any:
        del local.__dict__["old"]
        local.__dict__["new"] = x + 2
        return local.new * 3, "new" in vars(local), local.__dict__

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        results = []
        for call in (program, compiled):
            vars(local).clear()
            local.old = 1
            result = call(torch.ones(1))
            assert result[2] is local.__dict__
            results.append(str(result))
        assert results[0] == results[1]
    assert compiled.counters()["compiles"] == 1


def test_what_a_function_calls_that_is_disabled_alone_is_compiled() -> None:
    graphs = []

    def backend(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm

    def doubled(x: Any) -> Any:
        return x * 2

    @pycompiler.disable(recursive=False)
    def program(x: Any) -> Any:
        return doubled(x) + 1

    compiled = pycompiler.compile(program, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert len(graphs) == 1


@pytest.fixture
def deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_deterministic_algorithms_inside(deterministic: None, backend: str) -> None:
    def program(x: Any) -> Any:
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        filled = torch.empty(3)
        inside = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(before)
        return x + 1, filled, before, inside

    def leaves_it(x: Any) -> Any:
        torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled())
        return x + 1

    for fn in (program, leaves_it):
        compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
        for before in (False, True, False):
            found = []
            for call in (fn, compiled):
                torch.use_deterministic_algorithms(before)
                found.append((str(call(torch.ones(2))), torch.are_deterministic_algorithms_enabled()))
            assert found[0] == found[1]
        assert compiled.counters()["compiles"] == 2
