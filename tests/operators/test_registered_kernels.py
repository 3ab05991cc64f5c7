"""Kernels that a program registers for ATen operators: they run where eager runs them, before and after a compile."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.operators.registered_kernels import replaced

BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])


def program(x: torch.Tensor) -> torch.Tensor:
    return (x.erfc() + 1).tanh()


def registered(name: str, kernel: Callable[..., Any], key: str) -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a kernel is replaced
        library.impl(name, kernel, key)  # type: ignore[no-untyped-call]
    return library


@BACKENDS
@pytest.mark.parametrize("before", [False, True], ids=["after a compile", "before it"])
def test_a_programs_kernel_runs(before: bool, backend: str) -> None:
    compiled, x = pycompiler.compile(program, backend=backend), torch.randn(5)
    plain = program(x)
    if not before:
        torch.testing.assert_close(compiled(x), plain)
    library = registered("erfc", lambda x: x * 0 + 7, "CPU")
    try:
        assert replaced() == {"erfc"}
        assert compiled(x).equal(torch.full((5,), 8.0).tanh())
        assert compiled(x).equal(torch.full((5,), 8.0).tanh())
    finally:
        library._destroy()  # type: ignore[no-untyped-call]
    assert not replaced()
    torch.testing.assert_close(compiled(x), plain)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_kernel_of_a_backward_runs(backend: str) -> None:
    def gradient(f: Any) -> torch.Tensor:
        x = torch.full((3,), 0.5, requires_grad=True)
        f(x).sum().backward()
        assert x.grad is not None
        return x.grad

    library = registered("tanh_backward", lambda grad, y: grad * 0 + 3, "CPU")
    try:
        expected = gradient(torch.tanh)
        assert expected.tolist() == [3.0] * 3
        assert gradient(pycompiler.compile(lambda x: x.tanh(), backend=backend)).equal(expected)
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def test_what_a_trace_does_not_meet_counts_for_all() -> None:
    library = registered("linear", lambda x, w, b=None: x.new_full((2, 2), 4.0), "CPU")
    try:
        assert "*" in replaced()
        got = pycompiler.compile(torch.nn.functional.linear)(torch.ones(2, 3), torch.ones(2, 3))
        assert got.tolist() == [[4.0, 4.0], [4.0, 4.0]]
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def test_others_stay_compiled() -> None:
    compiled, x = pycompiler.compile(lambda x: x.sin() * 2), torch.randn(3)
    library = registered("erfc", lambda x: x * 0 + 7, "CPU")
    try:
        torch.testing.assert_close(compiled(x), x.sin() * 2)
        torch.testing.assert_close(compiled(x), x.sin() * 2)
        assert compiled.counters()["hits"] == 1
    finally:
        library._destroy()  # type: ignore[no-untyped-call]
