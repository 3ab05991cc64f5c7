"""The guard kind "sizes", natively, against its Python evaluator: relations of sizes, strides and integers."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from pycompiler import _native
from pycompiler.ir.guards import Guard, explain, first_failure
from pycompiler.ir.source import Scope, local
from pycompiler.symbolic.data_checks import Decision
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.size_checks import size_guard
from pycompiler.symbolic.symbol import Origin, Symbol
from pycompiler.symbolic.symbolic_node import Real
from pycompiler.symbolic.symbols import Relation

X, Y, N = local("x"), local("y"), local("n")
A, B, S, I, M = map(Expr.sym, ("a", "b", "s", "i", "m"))


ORIGINS = {
    "a": Origin(X, torch.Tensor, "size", 0),
    "b": Origin(Y, torch.nn.Parameter, "size", 1),
    "s": Origin(X, torch.Tensor, "stride", 0),
    "i": Origin(N, int, "int"),
    "m": Origin(N, int, "minus"),
}
FLOAT = {"f": Origin(N, float, "float")}


def guard_of(origins: dict[str, Origin], *rest: Any, **facts: float) -> Guard | None:
    """`facts`: of the float `f`."""
    records = {name: Symbol(name, 1.0 if o.what == "float" else 1) for name, o in origins.items()}
    return size_guard(records | ({"f": Symbol("f", 1.0, **facts)} if "f" in origins else {}), origins, *rest)


def made(*relations: Relation) -> Guard:
    guard = guard_of(ORIGINS, relations)
    assert guard is not None
    return guard


def agree(guard: Guard, locals_: dict[str, Any], tree: Any = None) -> bool:
    tree = tree or _native.GuardTree([guard], ("x", "y", "n"))
    native = tree.check(locals_, {}) is None
    assert native == (first_failure([guard], Scope(locals_, {})) is None)
    return native


def test_numbers_are_read_where_they_are(level: str) -> None:
    guard = made(Relation("==", A - 4), Relation(">=", B - A), Relation("!=", S - 7), Relation("==", I % 2))
    x, y = torch.zeros(4, 3), torch.nn.Parameter(torch.zeros(2, 5))
    assert agree(guard, {"x": x, "y": y, "n": 6})
    wide = torch.zeros(4, 7)[:, :3]
    for wrong in (
        {"x": torch.zeros(5, 3)}, {"x": torch.nn.Parameter(x)}, {"y": torch.nn.Parameter(torch.zeros(2, 3))}, {"n": 5},
        {"x": wide}, {"y": torch.nn.Parameter(torch.zeros(2))}, {"n": 6.0}, {"n": True}, {"n": 2**70}, {"x": None},
        {"x": torch.zeros(())},
    ):  # fmt: skip
        assert not agree(guard, {"x": x, "y": y, "n": 6} | wrong), wrong
    assert not agree(guard, {"x": x, "y": y})


def test_programs_are_python_arithmetic(level: str) -> None:
    rng = random.Random(0)
    kinds = ("==", "!=", ">=")
    forms = [
        A * I - 12,
        (A - I) // 3 + 1,
        (I - 2 * A) % 4,
        A.max(I) - 4,
        A.min(I) - 2,
        (A * A) // (I * I + 1),
        3 - A % 2,
    ]
    held = 0
    for _ in range(100):
        guard = made(Relation(rng.choice(kinds), rng.choice(forms) - rng.randint(-2, 2)))
        tree = _native.GuardTree([guard], ("x", "y", "n"))
        for _ in range(8):
            x = torch.empty(rng.randint(0, 6), rng.randint(1, 3))
            held += agree(guard, {"x": x, "y": None, "n": rng.randint(-9, 9)}, tree)
    assert 200 < held < 700


def test_what_cannot_be_computed_does_not_hold() -> None:
    x = torch.zeros(3)
    divides = made(Relation(">=", A // I), Relation(">=", I))
    assert agree(divides, {"x": x, "n": 2})
    assert not agree(divides, {"x": x, "n": 0})
    tree = _native.GuardTree([made(Relation(">=", A * I * I))], ("x", "y", "n"))
    assert tree.check({"x": x, "n": 2**40}, {}) == 0


def test_numbers_below_zero_are_read_with_the_other_sign() -> None:
    guard = made(Relation(">=", M - 2), Relation("!=", M - 7))
    assert str(guard) == "m >= 2 and m != 7 where m = -L['n']"
    for n in (-2, -3, -8, -(2**63) + 1):
        assert agree(guard, {"n": n})
    for n in (-7, -1, 0, 1, 2, 2**63 - 1, -(2**63), 2**63, -(2**70), True, -2.0, None):
        assert not agree(guard, {"n": n}), n
    any_number = made(Relation("!=", M - 1))
    for n in (2**63 - 1, -(2**63) + 1):
        assert agree(any_number, {"n": n})
    for n in (-(2**63), 2**63, -(2**63) - 1):
        assert not agree(any_number, {"n": n})


def test_more_dimensions_than_lie_in_the_tensor() -> None:
    origins = {"a": Origin(X, torch.Tensor, "size", 6), "s": Origin(X, torch.Tensor, "stride", 0)}
    guard = guard_of(origins, [Relation("==", S - 24 * A)])
    assert guard is not None
    assert agree(guard, {"x": torch.zeros(2, 1, 2, 3, 4, 1, 5)})
    assert not agree(guard, {"x": torch.zeros(2, 1, 2, 3, 4, 1, 10)[..., ::2]})


def test_sizes_of_pinned_tensors_are_read_anew() -> None:
    """A fast path that proves the same tensor does not prove the same sizes."""
    holder = type("Holder", (), {})()
    holder.weight, holder.others = torch.zeros(4, 3), [1, 2, 3]
    weight = local("m").then("instance_dict").dict_item("weight")
    others = local("m").then("instance_dict").dict_item("others")
    guard = guard_of({"a": Origin(weight, torch.Tensor, "size", 0)}, [Relation("==", A - 4)])
    assert guard is not None
    tree = _native.GuardTree([guard, Guard("length", others, 3), Guard("type_is", others, list)], ("m",))
    scope = {"m": holder}
    for _ in range(4):
        assert tree.check(scope, {}) is None
    holder.weight.resize_(5, 3)
    for _ in range(4):
        assert tree.check(scope, {}) == 0
    holder.weight.resize_(4, 3)
    assert tree.check(scope, {}) is None


def test_a_failure_is_explained() -> None:
    guard = made(Relation(">=", A - 4), Relation("==", I - 2))
    assert str(guard) == "a >= 4 and i == 2 where a = L['x'].size(0), i = L['n']"
    text = explain(guard, Scope({"x": torch.zeros(3), "n": 2}, {}))
    assert "seen a = 3: not a >= 4" in text


def test_a_guard_of_nothing_is_none() -> None:
    assert guard_of(ORIGINS, []) is None


def test_unknown_data_are_refused() -> None:
    from pycompiler.symbolic.size_checks import SizeChecks

    good = made(Relation("==", A - 4)).arg
    for wrong in (
        SizeChecks(("a",), ((0, torch.Tensor, "numel", 0),), good.relations),
        SizeChecks(("a",), good.reads, (Relation("~", A),)),
        SizeChecks(("z",), good.reads, good.relations),
    ):
        with pytest.raises(ValueError, match="unknown|not in Plan"):
            _native.GuardTree([Guard("sizes", X, wrong)], ("x",))


def test_limits_of_floats() -> None:
    guard = guard_of(FLOAT, [], most=65504.0)
    assert guard is not None
    assert str(guard) == "|L['n']| <= 65504.0"
    for value in (0.5, -65504.0, float("inf"), float("-inf"), float("nan"), -0.0):
        assert agree(guard, {"n": value})
    for wrong in (65504.1, -1e39, 3, True, None, "3.0"):
        assert not agree(guard, {"n": wrong})
    assert "not a float of at most 65504.0" in explain(guard, Scope({"n": 1e39}, {}))
    both = guard_of(ORIGINS | FLOAT, [Relation(">=", A - 4)], most=2.0)
    assert both is not None
    assert agree(both, {"x": torch.zeros(4), "n": 2.0})
    assert not agree(both, {"x": torch.zeros(3), "n": 2.0})
    assert not agree(both, {"x": torch.zeros(4), "n": 2.5})


def test_intervals_of_floats() -> None:
    inf = math.inf
    rows = {
        (0.0, inf): ((0.0, -0.0, 5e-324, 2.0, inf), (-5e-324, -inf, math.nan, 1, True, None)),
        (-inf, 0.5): ((0.5, -1e308, -inf), (0.5000000000000001, inf, math.nan, 0)),
        (-0.25, 0.25): ((0.25, -0.25, 0.0), (0.3, -0.3, inf, math.nan)),
        (math.nan, math.nan): ((math.nan, -math.nan), (0.0, inf, 1, None)),
    }
    for (low, high), (good, wrong) in rows.items():
        guard = guard_of(FLOAT, [], low=low, high=high)
        assert guard is not None
        assert all(agree(guard, {"n": value}) for value in good)
        assert not any(agree(guard, {"n": value}) for value in wrong)
    both = guard_of(FLOAT, [], most=2.0, low=0.0)
    assert both is not None and str(both) == "|L['n']| <= 2.0 and 0.0 <= L['n']"
    assert [agree(both, {"n": value}) for value in (1.0, inf, 2.5, -1.0)] == [True, True, False, False]
    assert "-1.0: not a float of at most 2.0, from 0.0 to inf" in explain(both, Scope({"n": -1.0}, {}))


F, G = Real.named("f"), Real.named("g")
DECIDED = {**ORIGINS, "f": Origin(local("f"), float, "float"), "g": Origin(local("g"), float, "float")}
SIDES: list[Any] = [
    F, G, 0.0, 1.5, math.inf, math.nan, Real("mul", (0.9, F)), Real("sub", (G, 1e-4)), Real("truediv", (F, G)),
    Real("add", (Real("float", (I * 2,)), G)), Real("pow", (F, 2.0)), Real("neg", (Real("abs", (F,)),)), Real("int_truediv", (I, A)),
]  # fmt: skip
FLOATS = [0.0, -0.0, 1.0, 1.5, -2.5, 1e-4, math.nan, math.inf, -math.inf, 5e-324, 1e308, 1, True, 2**60, None]


def test_decisions_are_pythons_comparisons() -> None:
    rng = random.Random(1)
    held = 0
    for _ in range(150):
        left, right = rng.choice(SIDES[:2] + SIDES[6:]), rng.choice(SIDES)
        decision = Decision(left, rng.choice(["lt", "le", "gt", "ge", "eq", "ne"]), right, rng.random() < 0.5)
        guard = guard_of(DECIDED, [], [decision])
        assert guard is not None
        tree = _native.GuardTree([guard], ("x", "y", "n", "f", "g"))
        for _ in range(20):
            given = {
                "x": torch.zeros(2, 3),
                "y": None,
                "n": rng.choice([0, 1, 7, -3, 2.0]),
                "f": rng.choice(FLOATS),
                "g": rng.choice(FLOATS),
            }
            held += agree(guard, given, tree)
            assert explain(guard, Scope(given, {}))
    assert held > 300


def test_what_was_decided_is_shown() -> None:
    guard = guard_of(DECIDED, [], [Decision(F, "lt", G, True)])
    assert guard is not None and str(guard) == "lt(f, g) where f = L['f'], g = L['g']"
    assert "f = 2.0, g = 1.0: not lt(f, g)" in explain(guard, Scope({"f": 2.0, "g": 1.0}, {}))
