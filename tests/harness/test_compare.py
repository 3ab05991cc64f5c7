"""The comparison helper finds each kind of difference."""

from __future__ import annotations

import collections
import datetime
import decimal
import math
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from tests.harness.compare import Differs, assert_same, assert_same_calls, observe, tensors_in

ONES, OTHER = torch.ones(2), torch.zeros(2)
DIFFERENT: dict[str, tuple[Any, Any]] = {
    "a type": (1, True),
    "a class": (collections.OrderedDict(a=1), {"a": 1}),
    "a number": (1, 2),
    "a sign of zero": (0.0, -0.0),
    "NaN and a number": (math.nan, 1.0),
    "a factory of a dict": (collections.defaultdict(list), collections.defaultdict(set)),
    "a limit of a deque": (collections.deque([1], 2), collections.deque([1], 3)),
    "a length": ([1], [1, 2]),
    "the order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "a dtype": (ONES, ONES.double()),
    "a shape": (ONES, torch.ones(2, 1)),
    "strides": (torch.ones(2, 2), torch.ones(2, 2).t()),
    "a history": (ONES, torch.ones(2, requires_grad=True)),
    "an element": (ONES, torch.tensor([1.0, 1.1])),
    "a NaN": (ONES, torch.tensor([1.0, math.nan])),
    "a NaN of eager": (torch.tensor([1.0, math.nan]), ONES),
    "an infinity": (torch.tensor([math.inf]), torch.tensor([-math.inf])),
    "an integer": (torch.tensor([1]), torch.tensor([2])),
    "sharing": ([ONES, ONES], [ONES, ONES.clone()]),
    "memory": ((ONES, ONES[:]), (ONES, ONES.clone())),
    "a scale": tuple(torch.quantize_per_tensor(ONES * k, k, 0, torch.quint8) for k in (0.5, 0.25)),
    "an array": (np.ones(2), np.zeros(2)),
    "a dtype of arrays": (np.ones(2), np.ones(2, np.float32)),
    "a number of numpy": (np.float32(1), np.float32(2)),
    "a float64 of numpy": (np.float64(1), np.float64(2)),
    "a flag of numpy": (np.True_, np.False_),
    "bytes that can change": (bytearray(b"a"), bytearray(b"b")),
    "a date": (datetime.date(2000, 1, 1), datetime.date(2001, 1, 1)),
    "a decimal": (decimal.Decimal(1), decimal.Decimal(2)),
    "a layout": (torch.strided, torch.sparse_coo),
    "a memory format": (torch.contiguous_format, torch.channels_last),
    "a generator": (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
    "a weak reference": (weakref.ref(ONES), weakref.ref(OTHER)),
    "an error": (ValueError("a"), ValueError("b")),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_differences_are_found(name: str) -> None:
    a, b = DIFFERENT[name]
    with pytest.raises(Differs):
        assert_same(a, b)
    assert_same(a, a)
    assert_same(b, b)


def test_a_gradient_is_compared() -> None:
    a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
    a.grad = torch.ones(2)
    with pytest.raises(Differs, match="grad"):
        assert_same(a, b)
    assert_same(a, b, history=False)


def test_strides_and_gradients_of_subclasses_are_compared() -> None:
    def made(t: torch.Tensor) -> Any:
        return TwoTensor(t, t.clone()).requires_grad_()

    assert_same(made(torch.ones(2)), made(torch.ones(2)))
    a, b = made(torch.ones(2)), made(torch.ones(2))
    (a * 2).sum().backward()
    with pytest.raises(Differs, match="grad"):
        assert_same(a, b)
    with pytest.raises(Differs, match="stride"):
        assert_same(made(torch.ones(2, 2)), made(torch.ones(2, 2).t()))


def test_attributes_are_compared_except_for_marks_of_dynamo() -> None:
    a, b = torch.ones(2), torch.ones(2)
    a._dynamo_dynamic_indices = {0}  # type: ignore[attr-defined]
    assert_same(a, b)
    a.note = "a"  # type: ignore[attr-defined]
    with pytest.raises(Differs, match="note"):
        assert_same(a, b)


def test_rounding_is_a_difference_of_exact_comparisons_only() -> None:
    a, b = torch.tensor([1.0]), torch.tensor([1.0]) + 2e-7
    assert_same(a, b)
    with pytest.raises(Differs):
        assert_same(a, b, exact=True)
    with pytest.raises(Differs):
        assert_same(torch.tensor([0.0]), torch.tensor([-0.0]), exact=True)
    assert_same(torch.tensor([math.nan]), -torch.tensor([math.nan]), exact=True)
    with pytest.raises(Differs):
        assert_same(torch.tensor([1.0]), torch.tensor([1.1]), tolerance=1e-3)
    assert_same(torch.tensor([1.0]), torch.tensor([1.1]), tolerance=0.2)
    assert_same([1.0, math.nan], [1.1, math.nan], tolerance=0.2)
    for a, b in ((1.0, 1.1), (1.0, math.nan), (1, 2)):
        with pytest.raises(Differs):
            assert_same(a, b, tolerance=1e-3)
    with pytest.raises(Differs):
        assert_same(torch.tensor([0.0]), torch.tensor([0.1]), tolerance=0.2, absolute=0.0)
    by_dtype = {torch.float32: 0.2, torch.float64: 1e-12}
    assert_same(np.float32(1), np.float32(1.1), tolerance=by_dtype)
    with pytest.raises(Differs):
        assert_same(np.float64(1), np.float64(1.1), tolerance=by_dtype)


def test_what_is_not_asked_for_is_not_compared() -> None:
    assert_same(torch.ones(2, 2), torch.ones(2, 2).t(), strides=False)
    assert_same([ONES, ONES], [ONES, ONES.clone()], sharing=False)


def wrong_argument(x: torch.Tensor) -> torch.Tensor:
    return (x.add_(1) - 1).clone()


def wrong_random(x: torch.Tensor) -> torch.Tensor:
    random.random()
    return x.clone()


def wrong_text(x: torch.Tensor) -> torch.Tensor:
    print("x")
    return x.clone()


def wrong_mode(x: torch.Tensor) -> torch.Tensor:
    torch.set_grad_enabled(False)
    return x.clone()


def wrong_error(x: torch.Tensor) -> torch.Tensor:
    raise ValueError


@pytest.mark.captures_nothing("functions that differ, none of them compiled")
@pytest.mark.parametrize("wrong", [wrong_argument, wrong_random, wrong_text, wrong_mode, wrong_error])
def test_effects_of_calls_are_compared(wrong: Callable[..., Any]) -> None:
    def make() -> tuple[torch.Tensor]:
        return (torch.ones(3),)

    with pytest.raises(Differs):
        assert_same_calls(wrong, torch.clone, make)
    assert_same_calls(wrong, wrong, make)
    assert torch.is_grad_enabled()


@pytest.mark.captures_nothing("functions that differ, none of them compiled")
def test_gradients_of_calls_are_compared() -> None:
    def make() -> tuple[torch.Tensor]:
        return (torch.ones(3, requires_grad=True),)

    assert_same_calls(lambda x: x * 2, lambda x: x + x.detach(), make, history=False)
    with pytest.raises(Differs, match="grad"):
        assert_same_calls(lambda x: x * 2, lambda x: x + x.detach(), make, backward=True)


def test_an_outcome_has_the_error_of_the_call() -> None:
    outcome = observe(wrong_error, (ONES,))
    assert isinstance(outcome.error, ValueError) and outcome.result is None
    assert len(tensors_in([ONES, {"a": (ONES, 1)}])) == 2
