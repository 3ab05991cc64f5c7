"""`with torch.inference_mode():` inside a compiled function: one graph, whose results are inference tensors as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler
from tests.harness.compare import assert_same

LINEAR = nn.Linear(4, 3)


def seen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        with torch.inference_mode():
            told = (
                value.is_inference(),
                value.requires_grad,
                value.shape,
                value.stride(),
                value.is_conj(),
                value.is_neg(),
            )
            return told, value.detach().resolve_conj().resolve_neg().clone()
    if isinstance(value, (list, tuple)):
        return [seen(v) for v in value]
    return value


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return seen(fn(*args))
    except RuntimeError as error:
        return type(error), str(error)


def manager(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = LINEAR(x).softmax(-1)
    return y, y.argmax(-1), y[0], y + 1


@torch.inference_mode()
def decorated(x: torch.Tensor) -> Any:
    return LINEAR(x).tanh()


def of_decorated(x: torch.Tensor) -> Any:
    return decorated(x * 2) * 2


def around(x: torch.Tensor) -> Any:
    """Gradients before and after the region, and views of ordinary tensors."""
    h = LINEAR(x)
    with torch.inference_mode():
        top = h.topk(2).indices
        view, same, wide = x[:2], x.detach(), h.view(-1)
    return h.gather(1, top.clone()).sum(), view, same, wide, top


def nested(x: torch.Tensor) -> Any:
    with torch.inference_mode(), torch.no_grad():
        with torch.inference_mode():
            y = x.cos()
        told = torch.is_inference_mode_enabled(), torch.is_grad_enabled(), y.is_inference(), (y * 2).is_inference()
    return y, told, torch.is_inference_mode_enabled(), torch.is_grad_enabled()


def bits(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        z = torch.complex(x, x + 1)
        return z.conj(), z.conj().imag, z.t(), [z.real, z.imag]


def raised(x: torch.Tensor) -> Any:
    try:
        with torch.inference_mode():
            y = x * 2
            raise ValueError("inside")
    except ValueError:
        return y, torch.is_inference_mode_enabled()


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("backend", ["native", "eager", "aot_eager"])
@pytest.mark.parametrize("fn", [manager, of_decorated, around, nested, bits, raised, decorated])
def test_one_graph(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for n in (2, 3, 5):
        x = torch.randn(n, 4)
        assert_same(outcome(compiled, x), outcome(fn, x))
        with torch.no_grad():
            assert_same(outcome(compiled, x), outcome(fn, x))
        assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
    assert compiled.counters()["eager_calls"] == 0


@pytest.mark.usefixtures("graphs_may_run_eagerly")
def test_gradients_around_a_region() -> None:
    compiled = pycompiler.compile(around, fullgraph=True)
    grads = []
    for call in (around, compiled):
        LINEAR.zero_grad()
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        call(x)[0].backward()
        grads.append((x.grad, LINEAR.weight.grad))
    torch.testing.assert_close(*grads)


def test_results_share_memory_as_eagers() -> None:
    compiled = pycompiler.compile(manager, fullgraph=True)
    y, _, row, _ = compiled(torch.randn(3, 4))
    with torch.inference_mode():
        y.zero_()
    assert torch.equal(row, torch.zeros(3))


def writes_outside(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
    return y.add_(1)


def trains_with(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = LINEAR.weight * 2
    return (y * LINEAR.weight).sum() + x.sum()


def makes_a_leaf(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
    return y.requires_grad_()


def makes_a_parameter(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
    return nn.Parameter(y)


def asks_the_version(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
    return y._version


def enables(x: torch.Tensor) -> Any:
    with torch.inference_mode(), torch.enable_grad():
        return LINEAR(x), torch.is_grad_enabled()


def leaves(x: torch.Tensor) -> Any:
    with torch.inference_mode(False):
        return LINEAR(x)


def keeps(x: torch.Tensor) -> Any:
    mode = torch.inference_mode()
    with mode:
        y = x * 2
    return y, sorted(vars(mode))


@pytest.mark.parametrize(
    "fn", [writes_outside, trains_with, makes_a_leaf, makes_a_parameter, asks_the_version, enables, leaves, keeps]
)
def test_what_tells_the_two_apart_is_eagers(fn: Callable[..., Any]) -> None:
    compiled, x = pycompiler.compile(fn), torch.randn(3, 4)
    for _ in range(2):
        assert_same(outcome(compiled, x), outcome(fn, x))
        with torch.inference_mode():
            assert_same(outcome(compiled, x), outcome(fn, x))


def test_a_break_inside_ends_the_graph_before_the_region() -> None:
    def program(x: torch.Tensor) -> Any:
        x = x + 1
        with torch.inference_mode():
            y = LINEAR(x)
            pycompiler.graph_break()
            y = y.relu()
        return y, y + 1, torch.is_inference_mode_enabled()

    report = pycompiler.explain(program)(torch.randn(2, 4))
    assert [b.kind for b in report.break_reasons] == [
        "global-state",
        "explicit-break",
        "global-state",
    ]  # enter, break, leave
    assert report.graph_count == 4
    compiled, x = pycompiler.compile(program), torch.randn(2, 4)
    for _ in range(2):
        assert_same(outcome(compiled, x), outcome(program, x))


def test_writes_to_what_exists_count() -> None:
    buffer = torch.zeros(3)

    def program(x: torch.Tensor) -> Any:
        with torch.inference_mode():
            buffer.add_(LINEAR(x)[0])
            LINEAR.bias.mul_(0.5)
        return buffer.is_inference()

    compiled = pycompiler.compile(program, fullgraph=True)
    found = []
    for call in (program, compiled):
        buffer.zero_()
        with torch.no_grad():
            LINEAR.bias.fill_(1.0)
        before = buffer._version, LINEAR.bias._version
        told = call(torch.ones(2, 4)), call(torch.ones(2, 4))
        after = buffer._version - before[0], LINEAR.bias._version - before[1]
        found.append((told, after, buffer.tolist(), LINEAR.bias.tolist()))
    assert found[0][:2] == found[1][:2]
    assert found[0][2:] == (pytest.approx(found[1][2], rel=1e-5), found[1][3])


def test_under_inference_mode_from_outside() -> None:
    compiled, x = pycompiler.compile(manager), torch.randn(3, 4)
    with torch.inference_mode():
        for _ in range(2):
            assert_same(outcome(compiled, x), outcome(manager, x))


def test_a_result_with_a_history_under_inference_mode() -> None:
    compiled = pycompiler.compile(lambda h: h.tanh() + 1, fullgraph=True)
    h = LINEAR(torch.randn(3, 4))
    with torch.inference_mode():
        for _ in range(2):
            assert_same(outcome(compiled, h), outcome(lambda h: h.tanh() + 1, h))
    assert compiled.counters()["eager_calls"] == 0


@pytest.mark.parametrize("backend", ["native", "eager", "aot_eager"])
def test_writes_of_what_was_made_in_inference_mode(backend: str) -> None:
    """Eager writes first and then refuses outside the mode: such a graph must not run again and write twice."""

    def outside(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    def inside(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            x.add_(1)
            return x * 2

    for fn in (outside, inside):
        found = []
        for call in (fn, pycompiler.compile(fn, backend=backend)):
            results = []
            for n in (2, 2, 3, 4):
                for made_inside in (True, False):
                    with torch.inference_mode(made_inside):
                        x = torch.zeros(n)
                    results += [str(outcome(call, x)), str(seen(x))]
            found.append(results)
        assert found[1] == found[0]


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_tensors_of_inference_mode_that_require_grad_are_not_asked_to_again(backend: str) -> None:
    """Eager refuses outside the mode, whatever the flag says (seed 1050003037)."""

    def program(x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        with torch.inference_mode():
            x.data = x.detach() * 0.5
        return x

    found = []
    for call in (program, pycompiler.compile(program, backend=backend)):
        x = torch.arange(3.0)
        found.append([str(outcome(call, x)) for _ in range(3)])
    assert found[1] == found[0] and "Setting requires_grad=True" in found[0][1]


@pytest.mark.parametrize("backend", ["native", "eager", "aot_eager"])
def test_what_eager_would_keep_is_refused_where_no_result_leads_to_it(backend: str) -> None:
    """The results have no history or another history, but eager would save the tensor: an inference tensor is refused then."""

    def detached(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        return (x * kept).detach()

    def beside(x: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x @ kept.T).argmax(), x + kept

    def not_kept(x: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x + kept).detach(), x * kept.clone()

    x = torch.rand(3, 4, requires_grad=True)
    for fn in (detached, beside, not_kept):
        compiled, found = pycompiler.compile(fn, backend=backend), []
        for call in (fn, compiled):
            with torch.inference_mode():
                kept = torch.ones(3, 4)
            found.append([str(outcome(call, x, given)) for given in (torch.ones(3, 4), kept, kept)])
        assert found[1] == found[0]
        assert ("cannot be saved for backward" in found[0][1]) is (fn is not not_kept)
