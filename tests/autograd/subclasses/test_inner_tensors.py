"""Inner values of a subclass instance that an operator created: tensors belong to the graph; numbers, dtypes and tuples
are constants."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import pycompiler

BACKENDS = ("eager", "aot_eager", "native")


class Scaled(torch.Tensor):
    """A subclass whose operators pass its scale on and count."""

    data_: torch.Tensor
    scale: torch.Tensor
    depth: int

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor, depth: int) -> Scaled:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls, data.shape, strides=data.stride(), dtype=data.dtype, device=data.device
        )

    def __init__(self, data: torch.Tensor, scale: torch.Tensor, depth: int) -> None:
        self.data_, self.scale, self.depth = data, scale, depth

    def __repr__(self) -> str:
        return f"Scaled({self.data_!r}, {self.scale!r}, {self.depth})"

    def __tensor_flatten__(self) -> Any:
        return ["data_", "scale"], {"depth": self.depth}

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Scaled:
        return Scaled(inner["data_"], inner["scale"], context["depth"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        of = args[0]
        rest = [a.data_ if isinstance(a, Scaled) else a for a in args[1:]]
        return Scaled(func(of.data_, *rest, **(kwargs or {})), of.scale, of.depth + 1)


def made_of(x: Any) -> Any:
    y = x * 2
    return y.data_ + 1, y.scale * y.depth, y.data_ is y.data_


def handed_on(x: Any) -> Any:
    y = (x * 2).sin()
    return y.scale is x.scale, y.scale + x.scale, y.depth - x.depth


def written_inside(x: Any) -> Any:
    y = x * 2
    y.data_.add_(1)
    z = y + 1
    return z.data_ * 1, y


def in_both(x: Any) -> Any:
    y = x + 1
    return y, y.scale * 2, torch.cat([y.data_.view(-1), x.data_.view(-1)])


def flat(made: Any) -> list[Any]:
    if isinstance(made, Scaled):
        return [made.data_, made.scale, made.depth]
    return [part for m in made for part in flat(m)] if isinstance(made, tuple) else [made]


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [made_of, handed_on, written_inside, in_both])
def test_it_is_the_graphs(fn: Callable[[Any], Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for depth in (1, 1, 5):
        got, want = (flat(run(Scaled(torch.ones(2, 3), torch.full((3,), 2.5), depth))) for run in (compiled, fn))
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b) if isinstance(b, torch.Tensor) else a == b
    assert compiled.counters()["compiles"] == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_gradients(backend: str) -> None:
    def fn(x: Any) -> Any:
        y = x * 2
        return y.sin(), y.a + 1, y.a.requires_grad

    compiled, found = pycompiler.compile(fn, backend=backend, fullgraph=True), []
    for run in (compiled, fn):
        x: Any = TwoTensor(torch.ones(3), torch.ones(3) * 2).requires_grad_()
        y, a, tracked = run(x)
        y.sum().backward()
        found.append([x.grad.a, x.grad.b, y.a.detach(), a.detach(), torch.tensor([tracked, a.requires_grad])])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_there_is_left_to_eager(backend: str) -> None:
    def fn(x: Any) -> Any:
        return getattr(x * 2, "missing", 7) + x.depth

    compiled = pycompiler.compile(fn, backend=backend)
    assert compiled(Scaled(torch.ones(2), torch.ones(2), 3)) == 10


class Granularity(enum.Enum):
    TENSOR = 1
    ROW = 2


class Dtypes(NamedTuple):
    low: torch.dtype
    high: torch.dtype


@dataclass(frozen=True)
class Layout:
    block: tuple[int, int]


class Quantized(torch.Tensor):
    """A subclass in the style of quantization libraries, described by dtypes, a granularity and a layout."""

    data_: torch.Tensor
    about: tuple[Any, ...]

    @staticmethod
    def __new__(cls, data: torch.Tensor, dtypes: Dtypes, granularity: Granularity, layout: Layout) -> Quantized:
        made = torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=dtypes.high, device=data.device)  # type: ignore[attr-defined]
        made.data_, made.dtypes, made.granularity, made.layout_ = data, dtypes, granularity, layout
        made.shape_, made.device_ = tuple(dtypes), data.device
        return made  # type: ignore[no-any-return]

    def __tensor_flatten__(self) -> Any:
        return ["data_"], (self.dtypes, self.granularity, self.layout_)  # type: ignore[attr-defined]

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Quantized:
        return Quantized(inner["data_"], *context)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        of = args[0]
        rest = [a.data_ if isinstance(a, Quantized) else a for a in args]
        return Quantized(func(*rest, **(kwargs or {})), of.dtypes, of.granularity, of.layout_)


def told_by(y: Any) -> Any:
    return y.dtypes, y.dtypes.high, y.granularity, y.layout_, y.shape_, y.device_, y.dtypes is y.dtypes


def quantized(x: torch.Tensor, layout: Layout) -> Any:
    dtypes = Dtypes(torch.float32, torch.float64)
    y = Quantized(x, dtypes, Granularity.ROW, Layout((1, 2)))
    z = y * 2
    rows = 2 if z.granularity is Granularity.ROW else 1
    return (z.data_ + rows).to(z.dtypes.high), told_by(y), y.dtypes is dtypes, z.dtypes is dtypes, z.layout_ == layout


def handed(y: Any) -> Any:
    z = y + 1
    return z.data_ * z.layout_.block[1], told_by(y), z.dtypes == y.dtypes, z.granularity


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_tells_of_it_is_constant(backend: str) -> None:
    compiled = pycompiler.compile(quantized, backend=backend, fullgraph=True)
    for fill in (1.0, 2.0):
        x, layout = torch.full((2, 3), fill), Layout((1, 2))
        got, want = compiled(x, layout), quantized(x, layout)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
    assert compiled.counters()["compiles"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_tells_of_existing_ones(backend: str) -> None:
    compiled = pycompiler.compile(handed, backend=backend, fullgraph=True)
    for block, rows in ((1, False), (1, False), (4, False), (4, True), (4, True), (1, False)):
        granularity = Granularity.ROW if rows else Granularity.TENSOR
        y = Quantized(torch.ones(2, 3), Dtypes(torch.float32, torch.float64), granularity, Layout((1, block)))
        got, want = compiled(y), handed(y)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
    assert compiled.counters()["compiles"] == 3
