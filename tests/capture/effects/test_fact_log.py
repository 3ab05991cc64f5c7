"""The log of facts: one report of a write, and queries by location."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import grad, vmap
from torch.utils.checkpoint import checkpoint

import pycompiler
from pycompiler.capture.breaks import Break
from pycompiler.capture.effects.fact_log import FactLog, IndexCopy
from tests.harness.compare import assert_same_calls

X = torch.ones(3)


@dataclass
class Body:
    step: int
    live: bool = True


def wrote(log: FactLog, *tensors: torch.Tensor) -> bool:
    """Report a write of these tensors."""
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"t{i}") for i in range(len(tensors))]
    for node, tensor in zip(nodes, tensors, strict=True):
        node.meta["example_value"] = tensor
    return log.write("add_", nodes)


def test_a_write_is_known_under_every_name() -> None:
    log, x, other = FactLog(), torch.ones(4), torch.ones(4)
    log.add_input(x, x)
    assert wrote(log, x[1:].detach()) and log.lasts
    assert log.is_written(x.view(2, 2)) and not log.is_written(other)
    assert log.storage(x).inputs == [0] and log.storage(x).exists
    assert not wrote(log, other) and log.is_written(other)


def test_a_write_of_unknown_memory_lasts() -> None:
    log = FactLog()
    assert wrote(log) and log.lasts
    assert wrote(log, torch.ones(2).to_sparse())


def test_undo_forgets_an_abandoned_graph() -> None:
    log, x, y = FactLog(), torch.ones(4), torch.ones(4)
    log.add_input(x, x)
    wrote(log, y)
    mark = log.mark()
    wrote(log, x)
    wrote(log, y)
    assert log.is_written(y, mark) and log.lasts
    log.undo(mark)
    assert not log.is_written(x) and log.is_written(y) and not log.is_written(y, mark) and not log.lasts


def test_inputs_are_found_again_after_a_change_of_storage() -> None:
    log, x, y = FactLog(), torch.ones(4), torch.ones(4)
    log.add_input(x, x)
    wrote(log, x)
    x.set_(y)  # type: ignore[call-overload]
    wrote(log, x)
    assert log.storage(y).inputs == [0]


def test_a_body_that_runs_again() -> None:
    log, x, first, second = FactLog(), torch.ones(4), Body(3), Body(5)
    owner = Body(0)
    place = log.location("attribute", owner, "size")
    for body in (first, second):
        log.read_again(place, body)
        log.read_again(log.storage(x).location, body)
    log.change("attribute", owner, "other")
    for expected in (first, second):
        for report in (
            lambda: log.change("attribute", owner, "size"),
            lambda: wrote(log, x[:2]),
            lambda: log.change_memory(x),
        ):
            with pytest.raises(Break) as broke:
                report()
            assert broke.value.step == expected.step
        expected.live = False
    assert log.change("attribute", owner, "size") == place
    wrote(log, x)


def test_each_rule_breaks_the_graph() -> None:
    x, base = torch.ones(4), torch.ones(4, 4)

    def with_inference_tensor(log: FactLog) -> None:
        with torch.inference_mode():
            made = torch.ones(4)
        log.add_input(x, made)

    def with_copy(log: FactLog) -> None:
        log.copies.append(IndexCopy(log.storage(x), log.storage(base), 7))

    def with_wait(log: FactLog) -> None:
        log.storage(x).waited = True

    def with_region(log: FactLog) -> None:
        log.storage(x).in_inference = True

    for note, kind in ((with_inference_tensor, "global-state"), (with_copy, "data-dependent-value"),
                       (with_wait, "unsupported-operation"), (with_region, "unsupported-operation")):  # fmt: skip
        log = FactLog()
        wrote(log, x)
        note(log)
        with pytest.raises(Break) as broke:
            wrote(log, x[1:])
        assert broke.value.kind == kind
    log = FactLog()
    with_copy(log)
    with pytest.raises(Break):
        wrote(log, base)
    assert log.is_copy(x[1:]) and not log.is_copy(base)
    with pytest.raises(Break):
        log.check_copies(log.known([x]))
    log.check_copies(log.known([base]))


def mapped(x: Any, a: Any) -> Any:
    torch.from_numpy(a).add_(1)
    return vmap(lambda t: t * a[0])(x)


def differentiated(x: Any, a: Any) -> Any:
    a += 1
    n = a[0]
    return grad(lambda t: (t * n * a[1]).sum())(x)


def under_a_checkpoint(x: Any, a: Any) -> Any:
    a[0] = 7
    return checkpoint(lambda t: (t * a[0]).sin(), x, use_reentrant=False)


@pytest.mark.parametrize("program", [mapped, differentiated, under_a_checkpoint])
def test_an_inner_graph_knows_the_writes_around_it(program: Any) -> None:
    """An element that an inner function reads is not the element from before the call."""
    compiled = pycompiler.compile(program, backend="eager")
    assert_same_calls(compiled, program, lambda: (torch.arange(3.0), np.array([1.0, 2.0, 3.0])), calls=2, exact=True)
    assert pycompiler.explain(program)(torch.arange(3.0), np.array([1.0, 2.0, 3.0])).graph_count


class Written(torch.autograd.Function):
    """Writes its argument three times."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        x.add_(1)
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def with_other_data(x: torch.Tensor) -> Any:
    x.data = torch.zeros(3)
    Written.apply(x)
    return x._version


def with_another_storage(x: torch.Tensor) -> Any:
    x.set_(torch.zeros(3))
    Written.apply(x)
    x.add_(1)
    Written.apply(x)
    return x._version


@pytest.mark.parametrize("program", [with_other_data, with_another_storage])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_writes_of_an_inner_graph_to_replaced_data_count(program: Any, backend: str) -> None:
    assert pycompiler.compile(program, backend=backend)(torch.ones(3)) == program(torch.ones(3))
