"""`with torch.device(...)` in compiled functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode

import pycompiler
from tests.harness.compare import assert_same

META = torch.device("meta")


def made(x: torch.Tensor, n: int) -> Any:
    with META:
        inside = torch.ones(2, 3), torch.full((2,), 1.5), torch.arange(4, device="cpu"), torch.as_tensor(x)
        copied, alike = torch.tensor(x), torch.ones_like(x)
    return inside, copied, alike, torch.ones(2)


def nested(x: torch.Tensor, n: int) -> Any:
    with META:
        with torch.device("cpu"):
            a, one = torch.ones(2), torch.get_default_device()
        return a, torch.ones(2), one, torch.get_default_device()


def broken(x: torch.Tensor, n: int) -> Any:
    a = torch.ones(2)
    with META:
        b = torch.ones(2)
        print(end="")
        c = torch.ones(n)
    return a, b, c, torch.ones(2), torch.get_default_device()


def called(x: torch.Tensor, n: int) -> Any:
    def inner() -> Any:
        with META:
            print(end="")
            return torch.ones(n)

    return torch.ones(2), inner(), torch.ones(2)


def ended_by_an_error(x: torch.Tensor, n: int) -> Any:
    try:
        with META:
            made = torch.ones(2)
            raise ValueError(n)
    except ValueError:
        return made, torch.ones(2), torch.get_default_device()


def raises(x: torch.Tensor, n: int) -> Any:
    with META:
        return torch.ones(2), x.nothing


def by_hand(x: torch.Tensor, n: int) -> Any:
    META.__enter__()
    a = torch.ones(2), torch.tensor([1.0, 2.0])
    META.__exit__(None, None, None)
    return a, torch.ones(2)


def under_a_mode(x: torch.Tensor, n: int) -> Any:
    with BaseTorchFunctionMode(), META:
        a = torch.ones(2)
    return a, torch.ones(2)


def outside(x: torch.Tensor, n: int) -> Any:
    return torch.tensor(x), torch.as_tensor(x), torch.tensor([1.0, n]), torch.tensor(n, device="cpu")


PROGRAMS = [outside, made, nested, broken, called, ended_by_an_error, raises, by_hand, under_a_mode]


@pytest.fixture(params=[None, "meta"], ids=["plain", "default"])
def default(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.set_default_device(request.param)
    yield
    torch.set_default_device(None)


def seen(fn: Callable[..., Any], n: int) -> Any:
    """Results with their devices, and the final state."""
    try:
        found: Any = fn(torch.zeros(2, device="cpu"), n)
    except AttributeError as e:
        found = str(e)
    return found, torch.get_default_device(), torch._C._len_torch_function_stack()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.usefixtures("default")
def test_as_eager(program: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(program, backend=backend)
    for n in (2, 2, 3, 4):
        assert_same(seen(compiled, n), seen(program, n), exact=True)


@pytest.mark.parametrize("program", [made, nested, ended_by_an_error], ids=lambda f: f.__name__)
def test_one_graph(program: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    assert_same(seen(compiled, 2), seen(program, 2), exact=True)


@pytest.mark.skipif(torch.xpu.is_available(), reason="there is such a device")
def test_a_default_device_that_the_machine_lacks() -> None:
    compiled = pycompiler.compile(lambda x: (torch.get_device_module().__name__, x + 1), backend="eager")
    for device in ("xpu", "cpu", "xpu"):
        x = torch.ones(2)
        with torch.device(device):
            assert compiled(x)[0] == torch.get_device_module().__name__
