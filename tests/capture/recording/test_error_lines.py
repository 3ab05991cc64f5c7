"""Lines of data-dependent errors: the frame runs again as written, so the program's
own line raises the error. The graph must not have written anything before."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

Program = Callable[..., Any]
I = torch.tensor([1, 77])  # noqa: E741
SINGULAR = torch.zeros(2, 2)


def embedding(x: torch.Tensor, log: list[Any]) -> Any:
    return torch.nn.functional.embedding(I, x[:, None]) * 2


def inlined(x: torch.Tensor, log: list[Any]) -> Any:
    return _picked(x + 1) * 2


def _picked(x: torch.Tensor) -> torch.Tensor:
    return x.take(I)


def linear_algebra(x: torch.Tensor, log: list[Any]) -> Any:
    y = torch.linalg.inv(SINGULAR * x[0])
    return y + 1


def asserted(x: torch.Tensor, log: list[Any]) -> Any:
    torch._assert_async((x > 5).all())
    return x + 1


def ahead_of_an_effect(x: torch.Tensor, log: list[Any]) -> Any:
    y = x[I] * 2
    log.append(1)
    return y


def behind_an_effect(x: torch.Tensor, log: list[Any]) -> Any:
    log.append(1)
    return x[I] * 2


def ahead_of_a_break(x: torch.Tensor, log: list[Any]) -> Any:
    y = x[I] * 2
    pycompiler.graph_break()
    return y + 1


def behind_a_break(x: torch.Tensor, log: list[Any]) -> Any:
    y = x + 1
    pycompiler.graph_break()
    return y[I] * 2


def in_an_object(x: torch.Tensor, log: list[Any]) -> Any:
    return {"picked": x[I] * 2, "given": [x]}


def state_is_switched(x: torch.Tensor, log: list[Any]) -> Any:
    torch.set_grad_enabled(False)
    y = (x * 2)[I]
    torch.set_grad_enabled(True)
    return y


def what_is_written_stays(x: torch.Tensor, log: list[Any]) -> Any:
    x.add_(1)
    return x[I] + 1


def one_hot(x: torch.Tensor, log: list[Any]) -> Any:
    return torch.nn.functional.one_hot(I, 3) + x


PROGRAMS: list[Program] = [
    embedding, inlined, linear_algebra, asserted, ahead_of_an_effect, behind_an_effect, ahead_of_a_break, behind_a_break,
    in_an_object, state_is_switched, what_is_written_stays, one_hot,
]  # fmt: skip


def told(program: Program, grad: bool) -> tuple[Any, ...]:
    """The error, its lines in this file, and the state after the error."""
    x = torch.ones(3)
    x = x.requires_grad_() if grad else x
    log: list[Any] = []
    with pytest.raises((RuntimeError, IndexError)) as caught:
        program(x, log)
    mode = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    lines = [f.lineno for f in traceback.extract_tb(caught.value.__traceback__) if f.filename == __file__][1:]
    return caught.type, str(caught.value), lines, caught.value.__context__, log, x.tolist(), mode


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_errors_have_the_programs_line(program: Program, grad: bool) -> None:
    if program is what_is_written_stays and grad:
        return
    compiled = pycompiler.compile(program)
    want = told(program, grad)
    assert want[2]
    for _ in range(2):
        assert told(compiled, grad) == want
    counters = pycompiler.counters(compiled)
    assert counters["compiles"] >= 1 and counters["hits"] >= 1


def written_ahead(x: torch.Tensor, log: list[Any]) -> Any:
    x.add_(1)
    y = x * 2
    return _picked(y)


def written_ahead_of_an_effect(x: torch.Tensor, log: list[Any]) -> Any:
    x.add_(1)
    y = x[I]
    log.append(1)
    return y


def written_behind_a_break(x: torch.Tensor, log: list[Any]) -> Any:
    with torch.no_grad():
        pycompiler.graph_break()
        x.add_(1)
        y = x * 2
        return _picked(y)


def written_in_torchs_own(x: torch.Tensor, log: list[Any]) -> Any:
    x.add_(1)
    return torch.nn.functional.embedding(I, x[:, None])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(
    "program", [written_ahead, written_ahead_of_an_effect, written_behind_a_break, written_in_torchs_own]
)
def test_a_graph_that_has_written_by_then_names_the_lines_itself(program: Program, backend: str) -> None:
    """Such a graph runs as captured, and its traceback must show the program's statement, not a line of the graph module."""
    compiled = pycompiler.compile(program, backend=backend)
    want = told(program, False)
    for _ in range(2):
        assert told(compiled, False) == want


def viewed(x: torch.Tensor) -> torch.Tensor:
    x.as_strided((3,), (1,)).zero_()
    return x.copy_(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_refused_writes_to_pieces_have_the_programs_line(backend: str) -> None:
    compiled = pycompiler.compile(viewed, backend=backend)
    assert compiled(torch.ones(6))[:4].tolist() == [0, 0, 0, 1]
    found = []
    for run in (viewed, compiled, compiled):
        with pytest.raises(RuntimeError, match="modified inplace") as caught:
            run(torch.ones(6, requires_grad=True).split(3)[0])
        found.append([(f.name, f.lineno) for f in traceback.extract_tb(caught.value.__traceback__)][1:])
    assert len(found[0]) == 1
    assert found[1:] == [found[0]] * 2


OVER = torch.tensor([0.5])


def written_by_what_it_is(x: torch.Tensor) -> None:
    OVER.add_(x[0])
    y = x
    del y
    misspelt  # type: ignore[name-defined]  # noqa: B018, F821


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_write_that_its_kernel_refuses_ahead_of_a_break_has_the_programs_line(backend: str) -> None:
    """The data cause no error here: no operator of the graph counts as raising."""
    compiled = pycompiler.compile(written_by_what_it_is, backend=backend)
    found = []
    for run in (written_by_what_it_is, compiled, compiled):
        OVER.fill_(0.5)
        with pytest.raises(NameError):
            run(torch.ones(1))
        with pytest.raises(RuntimeError, match="unsupported operation") as caught:
            run(OVER.view(1))
        found.append([(f.name, f.lineno) for f in traceback.extract_tb(caught.value.__traceback__)][1:])
    assert len(found[0]) == 1
    assert found[1:] == [found[0]] * 2


def logged_and_written(x: torch.Tensor, y: torch.Tensor, log: list[Any]) -> None:
    z = y.clone().add_(1)
    log.append(1)
    with torch.no_grad():
        x.detach().mul_(y)
    log.append(z)


def written_before_it_is_logged(x: torch.Tensor, y: torch.Tensor, log: list[Any]) -> None:
    x.add_(1)
    log.append(1)
    x.mul_(y[0])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_what_came_before_a_refused_write_has_happened(backend: str) -> None:
    """A graph without earlier writes lets the frame run again; a graph that has written does not."""
    compiled = pycompiler.compile(logged_and_written, backend=backend)
    compiled(torch.ones(3), torch.ones(3), [])
    found = []
    for run in (logged_and_written, compiled, compiled):
        log: list[Any] = []
        x = torch.arange(3.0)
        with pytest.raises(RuntimeError, match="unsupported operation") as caught:
            run(x, x[1:2], log)
        lines = [(f.name, f.lineno) for f in traceback.extract_tb(caught.value.__traceback__)][1:]
        found.append((log, x.tolist(), lines, torch.is_grad_enabled()))
    assert found[0][0] == [1]
    assert found[1:] == [found[0]] * 2


def switched_for_good(x: torch.Tensor, y: torch.Tensor) -> None:
    torch.set_grad_enabled(False)
    x.detach().mul_(y)
    torch.set_grad_enabled(True)


def switched_for_a_while(x: torch.Tensor, y: torch.Tensor) -> None:
    with torch.no_grad():
        x.detach().mul_(y)


def switched_and_written(x: torch.Tensor, y: torch.Tensor) -> None:
    with torch.no_grad():
        x.add_(0)
        x.detach().mul_(y)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", [switched_for_good, switched_for_a_while, switched_and_written])
def test_a_refused_write_leaves_modes_as_eager_does(program: Program, backend: str) -> None:
    """A graph with aliased inputs is replaced by another graph: the other graph must not leave gradients off after its error."""
    compiled = pycompiler.compile(program, backend=backend)
    compiled(torch.ones(3), torch.ones(3))
    found = []
    for run in (program, compiled, compiled):
        x = torch.arange(3.0)
        try:
            with pytest.raises(RuntimeError, match="unsupported operation"):
                run(x, x[1:2])
            found.append(torch.is_grad_enabled())
        finally:
            torch.set_grad_enabled(True)
    assert found == [program is not switched_for_good] * 3


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_graph_that_has_written_does_not_run_again(backend: str) -> None:
    compiled = pycompiler.compile(written_before_it_is_logged, backend=backend)
    compiled(torch.ones(3), torch.ones(3), [])
    x = torch.arange(3.0)
    with pytest.raises(RuntimeError, match="unsupported operation"):
        compiled(x, x[:], [])
    assert x.tolist() == [1.0, 2.0, 3.0]


def test_numbers_that_were_drawn_are_eagers() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return (x + torch.rand(3))[i]

    compiled = pycompiler.compile(program)
    drawn = []
    for run in (program, compiled, compiled):
        torch.manual_seed(0)
        with pytest.raises(IndexError):
            run(torch.ones(3), I)
        drawn.append(torch.rand(()).item())
    assert drawn[1:] == drawn[:1] * 2


def test_errors_of_other_backends_reach_the_program() -> None:
    calls = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        def run(*given: Any) -> Any:
            calls.append(len(given))
            raise IndexError("of the backend")

        return run

    compiled = pycompiler.compile(lambda x, i: x[i] * 2, backend=backend)
    for _ in range(2):
        with pytest.raises(IndexError, match="of the backend"):
            compiled(torch.ones(3), torch.tensor([1]))
    assert calls == [2, 2]
