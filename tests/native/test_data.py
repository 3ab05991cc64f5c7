"""The guard kind "data" (values in tensors), natively, against its Python evaluator."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from pycompiler import _native
from pycompiler.ir.guards import Guard, explain, first_failure
from pycompiler.ir.source import Scope, local
from pycompiler.symbolic.data_checks import COMPARISONS, DataChecks, Decision, X
from pycompiler.symbolic.symbolic_node import Real

A, B, W = local("a"), local("b"), local("w")
SINGLE, DOUBLE = (torch.Tensor, torch.float32, 4), (torch.Tensor, torch.float64, 8)
ODD = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 2.0**24, 1e300, -1e300, 5e-324, math.inf, -math.inf, math.nan)


def agree(guard: Guard, locals_: dict[str, Any], tree: Any = None) -> bool:
    tree = tree or _native.GuardTree([guard], ("a", "b", "w"))
    native = tree.check(locals_, {}) is None
    assert native == (first_failure([guard], Scope(locals_, {})) is None), (str(guard), locals_)
    return native


def above(number: float, *at: int) -> Decision:
    return Decision(X, "gt", number, True, at)


def test_numbers_are_read_anew_in_each_check(level: str) -> None:
    guard = Guard(
        "data", A, DataChecks((SINGLE, DOUBLE), (above(2.0, 0, 1), Decision(X, "eq", 7.0, False, (1,)))), (B,)
    )
    tree = _native.GuardTree([guard], ("a", "b", "w"))
    a, b = torch.tensor(3.0), torch.tensor([4.0], dtype=torch.float64)
    for value, other, fits in (
        (3.0, 4.0, True),
        (2.0, 4.0, False),
        (3.0, 7.0, False),
        (3.0, 2.0, False),
        (2.5, 2.5, True),
    ):
        a.fill_(value)
        b.fill_(other)
        assert agree(guard, {"a": a, "b": b, "w": None}, tree) is fits
    a.fill_(1.0)
    told = explain(guard, Scope({"a": a, "b": b}, {}))
    assert "L['a'].item() (and 1 more)" in told and "1.0: not gt(x, 2.0)" in told


@pytest.mark.parametrize(
    "wrong",
    [
        torch.tensor(3.0, dtype=torch.float64), torch.tensor(3), torch.ones(2), torch.empty(0), torch.tensor(3.0, device="meta"),
        torch.nn.Parameter(torch.tensor(3.0)), 3.0, None, torch.tensor(3.0, dtype=torch.complex64),
    ],
    ids=repr,
)  # fmt: skip
def test_anything_else_fits_not(level: str, wrong: Any) -> None:
    guard = Guard("data", A, DataChecks((SINGLE,), (above(2.0, 0),)))
    assert agree(guard, {"a": torch.tensor(3.0)})
    assert not agree(guard, {"a": wrong})


def test_a_storage_without_the_number(level: str) -> None:
    a = torch.tensor(3.0)
    a.untyped_storage().resize_(0)
    tree = _native.GuardTree([Guard("data", A, DataChecks((SINGLE,), (above(-1.0, 0),)))], ("a",))
    assert tree.check({"a": a}, {}) is not None


def test_memory_that_two_have(level: str) -> None:
    base, apart = torch.full((8,), 3.0), torch.full((4,), 3.0)
    two = Guard("data", A, DataChecks((SINGLE, SINGLE), (above(2.0, 0, 1),)), (B,))
    one = Guard("data", A, DataChecks((SINGLE,), (above(2.0, 0),)), (W,))
    assert agree(two, {"a": base[1], "b": base[2]})  # each has its own place
    assert not agree(two, {"a": base[1], "b": base[1:2]})
    assert agree(one, {"a": base[1], "w": apart})
    assert not agree(one, {"a": base[1], "w": base[4:]})  # another part of the storage
    assert not agree(one, {"a": apart[0], "w": apart})
    assert agree(one, {"a": apart[0], "w": torch.empty(0)})


def number(rng: random.Random, depth: int) -> Real | float:
    if depth == 0 or rng.random() < 0.2:
        return X if rng.random() < 0.7 else rng.choice(ODD)
    op = rng.choice(("add", "sub", "mul", "truediv", "pow", "pow", "neg", "abs", "float32"))
    return Real(op, tuple(number(rng, depth - 1) for _ in range(1 if op in ("neg", "abs", "float32") else 2)))


def test_arithmetic_is_that_of_pythons_floats() -> None:
    rng, held = random.Random(0), 0
    for _ in range(3000):
        test = Decision(number(rng, 3), rng.choice(list(COMPARISONS)), number(rng, 2), rng.random() < 0.5, (0,))
        guard = Guard("data", A, DataChecks((DOUBLE,), (test,)))
        tree = _native.GuardTree([guard], ("a",))
        for value in (*rng.sample(ODD, 4), rng.uniform(-4, 4), float(rng.randrange(100))):
            held += agree(guard, {"a": torch.tensor(value, dtype=torch.float64)}, tree)
    assert held > 5000


def test_wrong_data_is_refused() -> None:
    for checks in (
        DataChecks(((torch.Tensor, torch.float16, 2),), ()),
        DataChecks((SINGLE,), (Decision(X, "is", 1.0, True, (0,)),)),
        DataChecks((SINGLE,), (Decision(Real.named("y"), "eq", 1.0, True, (0,)),)),
    ):
        with pytest.raises(ValueError):
            _native.GuardTree([Guard("data", A, checks)], ("a",))
