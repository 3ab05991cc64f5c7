"""Backends of other packages get symbolic numbers that torch's own machinery supports."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager

import pycompiler
from tests.harness.compare import assert_same


def check(program: Any, *calls: tuple[Any, ...]) -> None:
    compiled = pycompiler.compile(program, backend=aot_eager, fullgraph=True)
    for args in calls:
        assert_same(compiled(*args), program(*args))
    assert compiled.counters()["compiles"] == 2


def test_sizes_of_what_is_made() -> None:
    def program(n: int, m: int) -> torch.Tensor:
        return torch.full((n, m), 2.0, dtype=torch.complex64)

    check(program, *((n + 3, 2 * n) for n in range(2, 5)))


def test_sizes_and_numbers_together() -> None:
    def program(x: torch.Tensor, y: torch.Tensor, rate: float) -> Any:
        return x * rate + y.size(0), x.reshape(-1, 2).sum(0)

    check(program, *((torch.ones(2 * i, 4), torch.ones(i), 0.5 * i) for i in range(2, 6)))


def test_numbers_that_are_asked_for_more() -> None:
    """torch's tracing reads the expression of a float operand of an in-place product: it gets a symbol of torch."""

    def program(x: torch.Tensor, rate: float) -> Any:
        return x.clone().mul_(0.5 * rate), rate + 1

    check(program, *((torch.ones(2), rate) for rate in (0.1, 0.2, 0.3, 0.4)))


def test_a_backend_s_own_attribute_error() -> None:
    def broken(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        return examples[0].no_such_attribute

    compiled = pycompiler.compile(lambda x: x + 1, backend=broken, dynamic=True)
    with pytest.raises(AttributeError, match="no_such_attribute"):
        compiled(torch.ones(3))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", ["native", "aot_eager"])
def test_a_backend_that_hands_its_graph_on_to_ours_keeps_symbols(name: str, dynamic: bool | None) -> None:
    """The backend gets tensors; the graph's own fake tensors say which of their sizes are symbols."""
    seen: list[Any] = []

    def handed_on(gm: Any, inputs: Any) -> Any:
        assert not any(isinstance(t, torch._subclasses.FakeTensor) for t in inputs)
        seen.append(gm)
        return pycompiler.lookup_backend(name)(gm, inputs)

    def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.sin() * x.shape[1] * n

    def written(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x * n
        x.detach()[:, 1:].add_(1)
        return y + x.shape[1]

    for program in (scaled, written):
        seen.clear()
        compiled = pycompiler.compile(program, backend=handed_on, dynamic=dynamic)
        for n in (4, 5, 7, 9, 16):
            x, y = (torch.linspace(0, 1, 2 * n).view(2, n).requires_grad_() for _ in range(2))
            compiled(x, n).sum().backward()
            program(y, n).sum().backward()
            torch.testing.assert_close((x, x.grad), (y, y.grad))
        assert len(seen) == pycompiler.counters(compiled)["compiles"] == (2 if dynamic is None else 1)


def test_a_backend_that_passes_other_tensors_on_has_their_sizes() -> None:
    seen: list[Any] = []

    def narrower(gm: Any, inputs: Any) -> Any:
        others = [t[:, :3] if isinstance(t, torch.Tensor) else t for t in inputs]
        seen.append((pycompiler.lookup_backend("aot_eager")(gm, others), others))
        return gm.forward

    pycompiler.compile(lambda x: x.sin() * 2, backend=narrower, dynamic=True)(torch.ones(2, 5))
    [(made, others)] = seen
    assert torch.equal(made(*others)[0], torch.ones(2, 3).sin() * 2)
