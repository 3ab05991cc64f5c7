"""Operators on lists of tensors (`torch._foreach_exp`): one autograd node, which saves and frees for all tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pycompiler

BACKENDS = ("aot_eager", "native")
Made = tuple[torch.Tensor, torch.Tensor]


def keeps_results(a: torch.Tensor, b: torch.Tensor) -> Made:
    x, y = torch._foreach_tanh([a, b])
    return x, y


def keeps_arguments(a: torch.Tensor, b: torch.Tensor) -> Made:
    x, y = torch._foreach_mul([a, b], [b, a])
    return x, y


def keeps_nothing(a: torch.Tensor, b: torch.Tensor) -> Made:
    x, y = torch._foreach_add([a, b], [b, a])
    return x, y


def is_read_later(a: torch.Tensor, b: torch.Tensor) -> Made:
    x, y = torch._foreach_exp([a, b])
    return x, y * x


def is_written(a: torch.Tensor, b: torch.Tensor) -> Made:
    made = [a * 1, b * 1]
    torch._foreach_exp_(made)
    return made[0], made[1] * b


PROGRAMS = [keeps_results, keeps_arguments, keeps_nothing, is_read_later, is_written]


def gradient(of: torch.Tensor, by: Any, **kwargs: Any) -> Any:
    try:
        found = torch.autograd.grad(of, by, torch.ones_like(of), allow_unused=True, **kwargs)
    except RuntimeError as error:
        return str(error)[:60]
    return [[round(v, 9) for v in g.tolist()] for g in found if g is not None and g.any()]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_they_keep(program: Any, backend: str) -> None:
    """A second backward, and a backward after a write, raise where eager's do."""
    compiled = pycompiler.compile(program, backend=backend, fullgraph=program is not is_written)  # runs eagerly
    found: list[list[Any]] = []
    for run in (program, compiled):
        seen: list[Any] = []
        for written in (None, "a", "b", "x", "y"):
            for retain in (False, True):
                a, b = (torch.tensor([0.3, 0.5], dtype=torch.float64, requires_grad=True) * k for k in (1, 2))
                x, y = run(a, b)
                with torch.no_grad():
                    if written is not None:
                        {"a": a, "b": b, "x": x, "y": y}[written].add_(1)
                for t in (x, y, x):
                    seen.append(gradient(t, (a, b), retain_graph=retain))
        found.append(seen)
    assert found[1] == found[0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_derivatives_of_their_gradients(program: Any, backend: str) -> None:
    compiled = pycompiler.compile(program, backend=backend, fullgraph=program is not is_written)
    found = []
    for run in (program, compiled):
        a, b = (torch.tensor([0.3, 0.5], dtype=torch.float64, requires_grad=True) for _ in range(2))
        x, y = run(a, b)
        first = torch.autograd.grad((x * y).sin().sum(), (a, b), create_graph=True)
        second = torch.autograd.grad((first[0] * first[1]).sum(), (x, y, a, b), allow_unused=True)
        found.append([*first, *second])
    torch.testing.assert_close(found[1], found[0])


def _with_numbers(a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch._foreach_mul([a, b], 2.0), torch._foreach_lerp([a, b], [b, a], [a, b])


def _in_a_chain(a: torch.Tensor, b: torch.Tensor) -> Any:
    made = torch._foreach_addcmul([a, b], [a, b], [a, b])
    return made, torch._foreach_sin(made), torch._foreach_norm([a, b])


def _one_is_left(a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch._foreach_mul([a, b], [a, b])[0] * 2, b * 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program", [keeps_results, keeps_arguments, keeps_nothing, _with_numbers, _in_a_chain, _one_is_left]
)
def test_what_gets_no_gradient(program: Any, backend: str) -> None:
    """Missing gradients, for each result alone."""
    found = []
    for run in (program, pycompiler.compile(program, backend=backend, fullgraph=True)):
        a, b = (torch.tensor([0.3, 0.5], dtype=torch.float64, requires_grad=True) for _ in range(2))
        results = torch.utils._pytree.tree_leaves(run(a, b))
        by = (a, b, *results)
        found.append([torch.autograd.grad(t.sum(), by, retain_graph=True, allow_unused=True) for t in results])
    torch.testing.assert_close(found[1], found[0])


def norms(tensors: list[torch.Tensor]) -> Any:
    return torch._foreach_norm(tensors, 2)[0]


def products_with_norms(tensors: list[torch.Tensor]) -> Any:
    between = torch._foreach_lerp(tensors, tensors, 0.3)
    return *(t * n for t, n in zip(tensors, torch._foreach_norm(between, 2), strict=True)), *between


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [norms, products_with_norms])
def test_what_they_do_not_reach_has_no_gradient(program: Any, backend: str) -> None:
    """The gradient is None, not zeros: for parameters, for results of other work, and in derivatives of gradients."""
    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    found: list[list[Any]] = []
    for run in (program, compiled):
        seen: list[Any] = []
        for of_other_work in (False, True):
            leaves = [torch.tensor(v, requires_grad=True) for v in ([0.3, 0.7], [0.5, 0.2])]
            made = run([t.sin() for t in leaves] if of_other_work else leaves)
            first = torch.autograd.grad(
                (made[0] if isinstance(made, tuple) else made).sum(), leaves, create_graph=True, allow_unused=True
            )
            second = torch.autograd.grad(first[0].sum(), leaves, allow_unused=True)  # type: ignore[union-attr]
            seen += [g is None for g in (*first, *second)]
        found.append(seen)
    assert found[1] == found[0] == [False, True] * 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_results_of_other_work_that_they_do_not_reach(backend: str) -> None:
    compiled = pycompiler.compile(norms, backend=backend, fullgraph=True)
    given = [torch.ones(2, requires_grad=True).sin() for _ in range(2)]
    assert [g is None for g in torch.autograd.grad(compiled(given), given, allow_unused=True)] == [False, True]
