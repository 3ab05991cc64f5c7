"""`unittest` assertions in compiled functions: captured as Python code."""

from __future__ import annotations

import unittest
from typing import Any

import pytest
import torch

import pycompiler
from tests.capture.harness import check


class Tests(unittest.TestCase):
    def runTest(self) -> None: ...


CASE = Tests()
X = torch.arange(3.0)


def plain(x: torch.Tensor) -> Any:
    CASE.assertEqual(x.shape, torch.Size([3]))
    CASE.assertTrue(x.dim() == 1)
    CASE.assertIs(x, x)
    CASE.assertIn(1, [1, 2])
    CASE.assertIsInstance(x, torch.Tensor)
    CASE.assertGreater(2, 1)
    CASE.assertAlmostEqual(1.0, 1.0)
    return x + 1


def containers(x: torch.Tensor) -> Any:
    CASE.assertEqual([1, 2], [1, 2])
    CASE.assertEqual({"a": 1}, {"a": 1})
    CASE.assertEqual((1,), (1,))
    CASE.assertEqual("a", "a")
    return x + 1


def raised(x: torch.Tensor) -> Any:
    with CASE.assertRaises(ValueError) as caught:
        raise ValueError("no")
    return x + 1, str(caught.exception)


def raised_below(x: torch.Tensor) -> Any:
    def inner() -> None:
        y = x + 1
        raise KeyError(y.dim())

    CASE.assertRaises(KeyError, inner)
    return x + 1


def fails(x: torch.Tensor) -> Any:
    try:
        CASE.assertEqual(x.dim(), 2, "dimensions")
    except AssertionError as error:
        return x + 1, str(error)


def not_raised(x: torch.Tensor) -> Any:
    try:
        with CASE.assertRaises(ValueError):
            x = x + 1
    except AssertionError as error:
        return x, str(error)


def below(x: torch.Tensor) -> Any:
    with CASE.subTest(i=1):
        y = x + 1
    return y


@pytest.mark.parametrize("program", (plain, containers, raised, raised_below, fails, not_raised, below))
def test_assertions_are_captured(program: Any) -> None:
    check(program, X)


def test_one_that_does_not_hold_raises() -> None:
    def program(x: torch.Tensor) -> Any:
        CASE.assertEqual(x.dim(), 2)
        return x + 1

    with pytest.raises(AssertionError, match="1 != 2"):
        pycompiler.compile(program, backend="eager")(X)
