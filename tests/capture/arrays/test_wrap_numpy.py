"""`wrap_numpy`: functions of arrays as functions of tensors."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same, assert_same_calls

BACKENDS = ("eager", "native")


RESULTS: dict[str, Callable[[Any], Any]] = {
    "a number": lambda a: {"k": np.float32(2), "b": a * 2},
    "a truth": lambda a: [np.bool_(True), a * 2, np.complex64(2), np.uint8(3), np.uint16(3)],
    "of numbers": lambda a: (np.float32(2) * np.float32(3), np.sum([1, 2]), np.pi, 3, a),
    "an array without dimensions": lambda a: (np.array(np.float32(3)), a[0], a.sum()),
    "an ordered dict": lambda a: collections.OrderedDict(a=a * 2, b=np.float32(1)),
    "no tree of torch's": lambda a: (slice(1, 2), a * 2, {1}, a.shape),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", RESULTS)
def test_numbers_in_results_are_tensors(name: str, backend: str) -> None:
    fn = pycompiler.wrap_numpy(RESULTS[name])
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    assert_same_calls(compiled, fn, lambda: (torch.ones(3),), exact=True, sharing=False)


def test_trees_of_torchs_that_capture_does_not_know() -> None:
    fn = pycompiler.wrap_numpy(
        lambda a: (collections.defaultdict(list, a=a * 2), collections.deque([a, np.float32(2)]))
    )
    assert_same(pycompiler.compile(fn, backend="eager")(torch.ones(3)), fn(torch.ones(3)), exact=True)


OF_CONSTANTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "eye": (lambda a: np.linalg.solve(a.T @ a + np.eye(4), a), lambda t: torch.linalg.solve(t.T @ t + torch.eye(4).double(), t)),
    "identity": (lambda a: a @ np.identity(4), lambda t: t * 1),
    "tri": (lambda a: a * np.tri(4), lambda t: t.tril()),
    "diag": (lambda a: a @ np.diag([1.0, 2, 3, 4]), lambda t: t * torch.tensor([1.0, 2, 3, 4])),
    "meshgrid": (lambda a: a * np.meshgrid([1.0, 2, 3, 4], [0, 1, 2, 3])[0], lambda t: t * torch.tensor([1.0, 2, 3, 4])),
    "vander": (lambda a: a * np.vander([1.0, 2, 3, 4])[1], lambda t: t * torch.tensor([8.0, 4, 2, 1])),
    "triu_indices": (lambda a: a[np.triu_indices(4)], lambda t: t[torch.triu_indices(4, 4).unbind()]),
    "cumsum": (lambda a: a * np.cumsum([1.0, 1, 1, 1]), lambda t: t * torch.tensor([1.0, 2, 3, 4])),
    "an element": (lambda a: a * np.eye(4)[0, 0] * float(np.cumsum([1, 2])[-1]), lambda t: t * 3),
    "a truth": (lambda a: a * 2 if np.cumsum([1, 2])[-1] > 2 else a, lambda t: t * 2),
    "a loop": (lambda a: sum(a * w for w in np.linspace(0, 1, 3)), lambda t: t * 1.5),
    "is written": (lambda a: (lambda e: (e.__setitem__((0, 0), 5), a @ e)[1])(np.eye(4)),
                   lambda t: t * torch.tensor([5.0, 1, 1, 1])),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OF_CONSTANTS)
def test_arrays_of_constants_let_gradients_pass(name: str, backend: str) -> None:
    ours, torchs = OF_CONSTANTS[name]
    _same_gradients(ours, torchs, [(4, 4)], backend)


GRADIENTS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "kernel": (lambda a, b: np.exp(-((a[:, None] - b) ** 2).sum(-1)), lambda a, b: torch.exp(-((a[:, None] - b) ** 2).sum(-1))),
    "cumsum": (lambda a, b: (a @ b.T).cumsum(0), lambda a, b: (a @ b.T).cumsum(0)),
    "where": (lambda a, b: np.where(a > 0, a, 0).sum(axis=0), lambda a, b: torch.where(a > 0, a, 0).sum(0)),
    "einsum": (lambda a, b: np.einsum("ij,kj->ik", a, b), lambda a, b: torch.einsum("ij,kj->ik", a, b)),
    "norm": (lambda a, b: np.linalg.norm(a - b, axis=1), lambda a, b: torch.linalg.vector_norm(a - b, dim=1)),
    "max": (lambda a, b: np.stack([a, b]).max(axis=0), lambda a, b: torch.stack([a, b]).amax(0)),
    "sort": (lambda a, b: np.sort(a, 0) * b, lambda a, b: a.sort(0).values * b),
    "index": (lambda a, b: a[[0, 1, 0]] + b[1:2], lambda a, b: a[[0, 1, 0]] + b[1:2]),
    "clip": (lambda a, b: np.clip(a, -1, 1) * np.tanh(b), lambda a, b: a.clamp(-1, 1) * b.tanh()),
    "astype": (lambda a, b: (a * b).astype(np.float32), lambda a, b: (a * b).float()),
    "solve": (lambda a, b: np.linalg.solve(a.T @ a + np.eye(4), b.T),
              lambda a, b: torch.linalg.solve(a.T @ a + torch.eye(4).double(), b.T)),
    "std": (lambda a, b: np.concatenate([a, b * 2]).std(axis=0), lambda a, b: torch.cat([a, b * 2]).std(0, correction=0)),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_torchs(name: str, backend: str) -> None:
    ours, torchs = GRADIENTS[name]
    _same_gradients(ours, torchs, [(3, 4), (3, 4)], backend)


def _same_gradients(ours: Any, torchs: Any, shapes: list[tuple[int, ...]], backend: str) -> None:
    torch.manual_seed(0)
    fn = pycompiler.wrap_numpy(ours)
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
        made, want, plain = compiled(*given), torchs(*given), fn(*(t.detach().clone() for t in given))
        assert_same(made, want, strides=False)
        assert_same(made, plain, history=False)
        along = torch.randn_like(want)
        gradients = [torch.autograd.grad(result, given, along, allow_unused=True) for result in (made, want)]
        assert_same(*gradients)
    assert len(compiled.entries) == 1
