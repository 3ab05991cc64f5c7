"""Recorded writes: the dispatched operator decides what a call writes, whatever its name and however its arguments are passed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import pycompiler
from pycompiler.ir.node_effects import effects_of
from tests.harness.compare import assert_same_calls, tensors_in


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    pycompiler.reset()
    yield
    pycompiler.reset()


def _assert_same(compiled: Callable[[Tensor], Any], fn: Callable[[Tensor], Any], grad: bool) -> None:
    """Compare results, the argument and gradients of squares."""

    def given() -> tuple[Tensor]:
        torch.manual_seed(3)
        return (torch.randn(3, 3, requires_grad=grad),)

    def squared(run: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        return lambda x: (result := run(x), [t * t for t in tensors_in((result,))])

    assert_same_calls(squared(compiled), squared(fn), given, backward=grad, exact=True)


def _expanded(write: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def fn(x: Tensor) -> Any:
        y = x * 2
        whole = y[:1].expand(3, 3)
        write(whole)
        return y, whole

    return fn


def _exchanged(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x + 1, x * 2
    torch._foreach_add_([a, b], [b, a])
    return a, b


def _twice(x: Tensor) -> Tensor:
    a = x + 1
    torch._foreach_add_([a, a], 1)
    return a


def _rows_exchanged(x: Tensor) -> Tensor:
    a = x + 1
    torch._foreach_mul_([a[0], a[1]], [a[1], a[0]])
    return a


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "relu, by position": _expanded(lambda y: F.relu(y, True)),
    "relu, by name": _expanded(lambda y: F.relu(y, inplace=True)),
    "dropout, by position": _expanded(lambda y: F.dropout(y, 0.5, True, True)),
    "hardtanh, by position": _expanded(lambda y: F.hardtanh(y, -1.0, 1.0, True)),
    "each of a list": _expanded(lambda y: torch._foreach_mul_([y], 2.0)),
    "lists that read each other": _exchanged,
    "a list that names one twice": _twice,
    "rows that read each other": _rows_exchanged,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_writes_that_eager_refuses_or_makes_in_turn(name: str, grad: bool) -> None:
    """The recorder must detect these writes by dispatch, not by name; a missed write gives the product of each row."""
    _assert_same(pycompiler.compile(WRITES[name]), WRITES[name], grad)


COMPILED: dict[str, Callable[[Tensor], Any]] = {
    "relu of a view, by position": lambda x: (lambda y: (F.relu(y.t(), True), y)[1])(x * 2),
    "threshold of a row": lambda x: (lambda y: (F.threshold(y[0], 0.5, 1.0, True), y)[1])(x * 2),
    "lists": lambda x: (lambda a, b: (torch._foreach_add_([a, b], [x, x]), a, b)[1:])(x + 1, x * 2),
    "out": lambda x: torch.sort(x.detach(), out=(torch.empty(3, 3), torch.empty(3, 3, dtype=torch.long)))[0] * x,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", COMPILED)
def test_writes_of_all_kinds_are_compiled(name: str, grad: bool, caplog: pytest.LogCaptureFixture) -> None:
    fn = COMPILED[name]
    _assert_same(pycompiler.compile(fn, fullgraph=True), fn, grad)
    assert not [r for r in caplog.records if "runs eagerly" in r.getMessage()]


def test_calls_on_lists_are_writes_of_the_graph() -> None:
    """Kernels that compute only shapes count no versions for these calls."""
    told: list[Any] = []

    def backend(gm: Any, _: Any) -> Any:
        told.extend(effects_of(n).mutates for n in gm.graph.nodes if "foreach" in str(n.target))
        return gm

    @pycompiler.compile(backend=backend)
    def fn(x: Tensor) -> Tensor:
        a = x + 1
        torch._foreach_zero_([a])
        torch._foreach_copy_([a], [x])
        return a + torch._foreach_add([a], 1)[0]

    fn(torch.randn(3))
    assert told == [True, True, False]


def test_a_checkpoint_that_writes_what_it_is_given_behind_a_list() -> None:
    """The checkpoint's backward must repeat the write, as eager's does, so the call may not be one graph."""

    def fn(x: Tensor) -> Tensor:
        def body(a: Tensor) -> Tensor:
            torch._foreach_add_([a.data], 1.0)
            return (a * a).sin()

        result: Tensor = checkpoint(body, x * 2, use_reentrant=False)
        return result

    found = []
    for f in (fn, pycompiler.compile(fn)):
        x = torch.tensor([0.3, -1.2, 0.7], requires_grad=True)
        f(x).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])
