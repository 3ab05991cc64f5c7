"""Wrappers (`ir/subclasses.py`) that compiled functions make."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import pycompiler
from tests.test_wrappers import BACKENDS, Coded, check, leaves

X = torch.arange(12.0).reshape(3, 4)


def coded(x: torch.Tensor) -> Any:
    return Coded((x * 10).int(), 0.1)


def by_name(x: torch.Tensor) -> Any:
    return Coded((x * 10).int(), scale=0.1) * 2


def both(x: torch.Tensor) -> Any:
    made: Any = TwoTensor(x + 1, x * 2)
    return made * 3, made.a, made.shape == x.shape, type(made) is TwoTensor


def written(x: torch.Tensor) -> Any:
    made: Any = TwoTensor(x + 1, x * 2)
    made.add_(1)
    return made


def held(x: torch.Tensor) -> Any:
    return TwoTensor(x, x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", (coded, by_name, both, written, held))
def test_a_wrapper_that_is_made(program: Any, backend: str) -> None:
    check(program, X, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_wrapper_that_is_made_holds_is_eagers(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        data = x * 2
        return TwoTensor(x, data), data

    x = X.clone()
    made, data = pycompiler.compile(program, fullgraph=True, backend=backend)(x)
    data.fill_(7)
    x.fill_(5)
    a, b = leaves(made)
    assert bool((a == 5).all()) and bool((b == 7).all())


class Slotted(Coded):
    """Whose instances have slots, beside the dict of all tensors."""

    __slots__ = ("first", "times", "unset")

    def __init__(self, codes: torch.Tensor, scale: float) -> None:
        self.first, self.times = codes, scale

    def __tensor_flatten__(self) -> Any:
        return ["first"], {"scale": self.times}

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Slotted:
        return Slotted(inner["first"], context["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        decoded = [a.first.float() * a.times if isinstance(a, Slotted) else a for a in args]
        result = func(*decoded, **(kwargs or {}))
        return Slotted((result * 10).int(), 0.1) if func is torch.ops.aten.relu.default else result


def in_slots(x: torch.Tensor) -> Any:
    made: Any = Slotted((x * 10).int(), 0.1)
    return torch.relu(made), made * 2, made.times, made.first


def of_slots(x: Any) -> Any:
    return torch.relu(x), x * 3, x.first + 1, x.times


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrappers_with_slots(backend: str) -> None:
    check(in_slots, X, backend=backend)
    compiled = pycompiler.compile(of_slots, backend=backend, fullgraph=True)
    for scale in (0.5, 0.5, 0.25):
        got, wanted = compiled(Slotted(X.int(), scale)), of_slots(Slotted(X.int(), scale))
        assert (
            type(got[0]) is Slotted and torch.equal(got[0].first, wanted[0].first) and got[0].times == wanted[0].times
        )
        assert torch.equal(got[1], wanted[1]) and torch.equal(got[2], wanted[2]) and got[3] == wanted[3]
    assert compiled.counters()["compiles"] == 2


MADE: list[int] = []


class Counting(Coded):
    def __init__(self, codes: torch.Tensor, scale: float) -> None:
        super().__init__(codes, scale)
        MADE.append(1)


class Marking(Coded):
    def __init__(self, codes: torch.Tensor, scale: float) -> None:
        super().__init__(codes, scale)
        codes.mark = 5  # type: ignore[attr-defined]


@pytest.mark.parametrize("cls", (Counting, Marking))
def test_a_class_that_does_more_breaks_the_graph(cls: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        codes = x.int()
        return cls(codes, 0.5) * 2, getattr(codes, "mark", None)

    MADE.clear()
    compiled = pycompiler.compile(program, backend="eager")
    assert [compiled(X)[1] for _ in range(2)] == [program(X)[1]] * 2
    assert len(MADE) % 3 == 0


def test_a_list_that_a_wrapper_holds_is_of_its_call() -> None:
    def program(x: torch.Tensor) -> Any:
        return Coded(x.int(), [0.5])  # type: ignore[arg-type]

    compiled = pycompiler.compile(program, backend="eager")
    first, second = compiled(X), compiled(X)
    assert first.scale is not second.scale


def test_one_that_is_replaced_is_made_anew() -> None:
    class Scaled(Coded):
        pass

    def program(x: torch.Tensor) -> Any:
        return Scaled(x.int(), 0.5) * 2

    compiled = pycompiler.compile(program, backend="eager")
    first = compiled(X)

    def doubled(self: Any, codes: torch.Tensor, scale: float) -> None:
        self.codes, self.scale = codes, scale * 2

    Scaled.__init__ = doubled  # type: ignore[method-assign]
    assert not torch.equal(compiled(X), first) and torch.equal(compiled(X), program(X))


def test_a_wrapper_of_what_needs_a_gradient_breaks_the_graph() -> None:
    def program(x: torch.Tensor) -> Any:
        return TwoTensor(x * 2, x * 3).sum()

    report = pycompiler.explain(program)(X.clone().requires_grad_())
    assert report.break_reasons[0].kind == "tensor-subclass"


def test_arguments_that_are_refused_raise_eagers_error() -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            return TwoTensor(x, x[0])
        except AssertionError:
            return x + 1

    assert torch.equal(pycompiler.compile(program, backend="eager")(X), X + 1)
