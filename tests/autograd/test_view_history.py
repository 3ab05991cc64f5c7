"""Views that leave a graph have the same base and history as in eager. An in-place write
to a view, or to its base, gives eager's values, histories, versions and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

Program = Callable[[torch.Tensor, torch.Tensor], Any]


def told(t: torch.Tensor) -> tuple[Any, ...]:
    """The observable state of a tensor; its history may be refused."""
    try:
        history: Any = t.grad_fn is None, t.is_leaf
    except RuntimeError as error:
        history = str(error)
    return t.detach().tolist(), t.requires_grad, history


def seen(program: Program, write: Callable[[Any, torch.Tensor], None], leaf: bool) -> Any:
    """The state of the results before and after a write, and gradients."""
    w = torch.arange(1.0, 5.0).requires_grad_()
    x = torch.arange(2.0, 6.0)
    x = x.requires_grad_() if leaf else x
    made = program(x, w)
    versions = [t._version for t in made]
    log: list[Any] = [[told(t) for t in made]]
    try:
        write(made, w)
    except RuntimeError as error:
        log.append(str(error))
    log += [[told(t) for t in made], told(x), [t._version - n for t, n in zip(made, versions, strict=True)]]
    tracked = [t for t in made if t.requires_grad and isinstance(told(t)[2], tuple)]
    if tracked:
        sum((t * t).sum() for t in tracked).backward()  # type: ignore[union-attr]
    return [*log, *(t.grad if t.grad is None else t.grad.tolist() for t in (w, x))]


def detached_and_view(x: torch.Tensor, w: torch.Tensor) -> Any:
    d = x.detach()
    return d, d[:2]


def views_of_detached(x: torch.Tensor, w: torch.Tensor) -> Any:
    d = x.detach()
    return d[:2], d.view(2, 2)[0], x


def views_of_two_detached(x: torch.Tensor, w: torch.Tensor) -> Any:
    d, e = x.detach(), x.detach()
    return d[:2], e[:2], d[1:3], e


def data_and_view(x: torch.Tensor, w: torch.Tensor) -> Any:
    d = x.data
    return d[:2], d, x.data


def detached_from_data(x: torch.Tensor, w: torch.Tensor) -> Any:
    d = x.data
    return d.detach()[:2], d.detach()[1:3], x.detach()


def detached_from_a_result(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x * 2
    d = y.detach()
    return d[:2], y, d[1:3]


def detached_piece(x: torch.Tensor, w: torch.Tensor) -> Any:
    d = x.detach()
    return d.split(2)[0], d


def made_without_gradients(x: torch.Tensor, w: torch.Tensor) -> Any:
    d = torch.ones(4)
    with torch.no_grad():
        v = d[:2]
    return v, d, v[:1]


def made_without_gradients_of_an_argument(x: torch.Tensor, w: torch.Tensor) -> Any:
    d = x.detach()
    with torch.no_grad():
        v = d.view(2, 2)
    return v[0], d


def made_with_gradients_off_and_on(x: torch.Tensor, w: torch.Tensor) -> Any:
    d = torch.ones(4)
    torch.set_grad_enabled(False)
    v = d[:2]
    torch.set_grad_enabled(True)
    return v, d[2:], d


PROGRAMS: list[Program] = [
    detached_and_view, views_of_detached, views_of_two_detached, data_and_view, detached_from_data, detached_from_a_result,
    detached_piece, made_without_gradients, made_without_gradients_of_an_argument, made_with_gradients_off_and_on,
]  # fmt: skip


def _quietly(made: Any, w: torch.Tensor) -> None:
    made[0].mul_(2)


def _with_gradients(made: Any, w: torch.Tensor) -> None:
    made[0].mul_(w[:1])


def _another(made: Any, w: torch.Tensor) -> None:
    made[1].mul_(w[:1])


@pytest.mark.parametrize("write", [_quietly, _with_gradients, _another])
@pytest.mark.parametrize("leaf", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_writes_to_views(program: Program, leaf: bool, write: Callable[[Any, torch.Tensor], None]) -> None:
    compiled = pycompiler.compile(program, backend="aot_eager", fullgraph=True)
    want = seen(program, write, leaf)
    for _ in range(2):
        assert seen(compiled, write, leaf) == want


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_view_made_without_gradients_is_written_with_them_behind_a_break(mode: Any, backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        made = torch.ones(4)
        with mode():
            part = made[:2]
        part.mul_(x)
        return made * 1

    x = torch.ones(2, requires_grad=True)
    compiled = pycompiler.compile(program, backend=backend)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="A view was created in"):
            compiled(x)
    report = pycompiler.explain(program)
    with pytest.raises(RuntimeError, match="A view was created in"):
        report(x)


def test_a_view_made_with_gradients_by_who_is_called_without() -> None:
    def program(x: torch.Tensor) -> Any:
        made = torch.ones(4)
        with torch.enable_grad():
            part = made[:2]
        return made, part, made[2:]

    compiled = pycompiler.compile(program, backend="aot_eager", fullgraph=True)
    w = torch.full((2,), 3.0, requires_grad=True)
    for run in (program, compiled, compiled):
        with torch.no_grad():
            made, part, other = run(torch.ones(4))
        with pytest.raises(RuntimeError, match="created in no_grad mode"):
            other.mul_(w)
        part.mul_(w)
        assert made.requires_grad and made.tolist() == [3.0, 3.0, 1.0, 1.0]


def test_data_of_an_inference_tensor_can_be_written() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            y = x * 2
        return y.data

    compiled = pycompiler.compile(program, backend="aot_eager")
    for run in (program, compiled, compiled):
        y = run(torch.ones(2))
        assert y.is_inference() and y.add_(1).tolist() == [3.0, 3.0]
    assert pycompiler.explain(program)(torch.ones(2)).graph_break_count == 1


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_result_with_gaps_that_has_no_history_may_be_written(backend: str) -> None:
    """A gradient that depends on no tangent is a view in eager, and the graph runs under `no_grad`."""

    def program(x: torch.Tensor) -> Any:
        pairs = torch.view_as_real(x.to(torch.complex64))
        return torch.autograd.grad(pairs, x, torch.ones_like(pairs), create_graph=True)[0]

    found = []
    for call in (program, pycompiler.compile(program, backend=backend, fullgraph=True)):
        x = torch.ones(2, 3, requires_grad=True)
        made = call(x)
        made.add_(x.sum())
        found.append([made, *torch.autograd.grad(made.sum(), x)])
    torch.testing.assert_close(found[1], found[0])
