"""Expressions against brute-force evaluation."""

import itertools
import operator
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycompiler.symbolic.expr import Expr, below, quotient

RANGES = {"i": 3, "j": 4, "k": 6}
POINTS = [dict(zip(RANGES, p, strict=True)) for p in itertools.product(*(range(n) for n in RANGES.values()))]
OPS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "min": lambda a, b: a.min(b) if isinstance(a, Expr) else min(a, b),
    "max": lambda a, b: a.max(b) if isinstance(a, Expr) else max(a, b),
}  # fmt: skip


def trees(negative: bool = True):
    """Nested (op, left, right) over symbols and constants; divisors are positive constants."""
    leaf = st.sampled_from(list(RANGES)) | st.integers(-9 if negative else 0, 30)
    ops = ["+", "*", "min", "max"] + (["-"] if negative else [])
    grow = lambda t: (
        st.tuples(st.sampled_from(ops), t, t)
        | st.tuples(st.sampled_from(["//", "%"]), t, st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]))
    )
    return st.recursive(leaf, grow, max_leaves=8)


def build(tree, env=None):
    if isinstance(tree, tuple):
        return OPS[tree[0]](build(tree[1], env), build(tree[2], env))
    if env is None:
        return Expr.of(tree)
    return env[tree] if isinstance(tree, str) else tree


@settings(max_examples=400, deadline=None, derandomize=True)
@given(trees())
def test_value_simplify_bounds_print(tree):
    e = build(tree)
    small = e.simplify(RANGES)
    low, high = e.bounds(RANGES)
    code = compile(e.to_py(), "e", "eval")
    for env in POINTS:
        want = build(tree, env)
        assert e.eval(env) == want
        assert small.eval(env) == want, (e, small)
        assert eval(code, {"min": min, "max": max}, dict(env)) == want
        assert low is None or low <= want
        assert high is None or want <= high


@settings(max_examples=150, deadline=None, derandomize=True)
@given(trees(), trees(negative=False))
def test_subst_is_evaluation(tree, inner):
    e = build(tree).subst({"i": build(inner), "k": 5})
    for env in POINTS[::7]:
        assert e.eval(env) == build(tree, {**env, "i": build(inner, env), "k": 5})


@settings(max_examples=150, deadline=None, derandomize=True)
@given(trees())
def test_coeff(tree):
    e = build(tree)
    c = e.coeff("i")
    if c is not None:
        for env in POINTS:
            if env["i"] + 1 < RANGES["i"]:
                assert e.eval({**env, "i": env["i"] + 1}) - e.eval(env) == c.eval(env)


def test_flat_index_round_trip():
    """Delinearising a linearised index gives the variables back, for every shape."""
    for shape in itertools.product([1, 2, 3, 5], repeat=3):
        names = ["i", "j", "k"]
        ranges = dict(zip(names, shape, strict=True))
        i, j, k = (Expr.of(0) if n == 1 else Expr.sym(v) for v, n in zip(names, shape, strict=True))
        flat = (i * shape[1] + j) * shape[2] + k
        assert (flat // (shape[1] * shape[2])).simplify(ranges) == i
        assert ((flat // shape[2]) % shape[1]).simplify(ranges) == j
        assert (flat % shape[2]).simplify(ranges) == k


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("(64*i + j) // 32 % 2", "0"),
        ("(12*i + j) // 24", "((i) // (2))"),
        ("(12*i + j) % 24", "12*((i) % (2)) + j"),
        ("i*7 + x // 12 * 12 + x % 12", "7*i + x"),
        ("x // 5 % 3 * 5 + x % 5", "((x) % (15))"),
        ("x // 4 // 3", "((x) // (12))"),
        ("x % 24 // 4", "((((x) // (4))) % (6))"),
        ("x % 24 % 8", "((x) % (8))"),
        ("(4*x + 7) // 2", "2*x + 3"),
    ],
)
def test_simplifications(text, want):
    e = eval(text, {n: Expr.sym(n) for n in "ijx"})
    assert repr(e.simplify({"i": 8, "j": 12, "x": 10_000})) == want


def test_symbolic_sizes():
    i, j, s = Expr.sym("i"), Expr.sym("j"), Expr.sym("s0")
    flat = i * s + j
    assert (flat // s).simplify({"i": 4, "j": s}) == i
    assert (flat % s).simplify({"i": 4, "j": s}) == j
    assert flat.coeff("i") == s
    assert s * 4 // s == 4
    assert s % s == 0
    assert s.max(0) == s
    assert s.min(0) == 0


def test_division_by_symbolic_sizes():
    i, j, k, m, n = (Expr.sym(name) for name in ("i", "j", "k", "m", "n"))
    flat, ranges = i * m * n + j * n + k, {"i": 3, "j": m, "k": n}
    assert (flat // n).simplify(ranges) == i * m + j
    assert (flat // (m * n)).simplify(ranges) == i
    assert (flat // n % m).simplify(ranges) == j
    assert (flat % (m * n)).simplify(ranges) == j * n + k
    wide = i * (n + 1) + j
    assert (wide // (n + 1)).simplify({"i": m, "j": n + 1}) == i
    assert (wide % (n + 1)).simplify({"i": m, "j": n + 1}) == j
    assert (wide // (n + 1)).simplify({"i": m, "j": n + 2}) != i  # j may be n + 1
    assert ((2 * i + j) // (2 * n)).simplify({"i": n, "j": 2}) == 0
    assert ((2 * i + j) // (2 * n)).simplify({"i": n, "j": 3}) != 0
    for env in ({"i": 2, "j": 3, "k": 4, "m": 5, "n": 6}, {"i": 0, "j": 0, "k": 1, "m": 2, "n": 3}):
        for e in (flat // (n + 1), flat % (m + n), (flat - n) // (2 * n + 2)):
            assert e.simplify({"i": m, "j": m, "k": n}).eval(env) == e.eval(env)


def test_quotients():
    m, n = Expr.sym("m"), Expr.sym("n")
    assert quotient(6 * m * n, 2 * n) == 3 * m
    assert quotient(m * n + m, n + 1) == m
    assert quotient(Expr.of(12), Expr.of(4)) == 3
    assert quotient(16 * n - 16, Expr.of(16)) == n - 1
    assert quotient(m, n) is quotient(6 * m, 4 * Expr.of(1)) is quotient(m, Expr.of(0)) is None


def test_last_points_are_below_sizes():
    i, j, m, n = (Expr.sym(name) for name in ("i", "j", "m", "n"))
    assert below(i * n + j, m * n, {"i": m, "j": n})
    assert not below(i * n + j, m * n, {"i": m, "j": n + 1})
    assert not below(Expr.sym("%1"), n, {"%1": n})
    assert not below(n - i, n, {"i": n})  # i may be 0


def test_the_name_of_a_symbol():
    n = Expr.sym("n")
    assert (n.symbol, (2 * n).symbol, (n // 2).symbol, n.min(Expr.sym("m")).symbol, Expr.of(3).symbol) == (
        "n", None, None, None, None,
    )  # fmt: skip


def test_constants_are_ints():
    assert Expr.of(3) == 3
    assert 3 == Expr.of(3)
    assert Expr.of(3) != 4
    assert {Expr.of(3): "x"}[3] == "x"
    assert hash(Expr.of(10**9)) == hash(10**9)
    assert int(Expr.of(7)) == 7
    assert [0, 1, 2][Expr.of(1)] == 1
    assert Expr.of(0) is Expr.of(2) - 2
    assert not Expr.of(0)
    assert 5 - Expr.of(3) == 2
    assert 7 // Expr.of(2) == 3
    assert 7 % Expr.of(4) == 3
    assert Expr.of("n") == Expr.sym("n")
    assert Expr.of("n").symbols == {"n"}
    with pytest.raises(TypeError, match="symbolic"):
        int(Expr.sym("n"))
    with pytest.raises(TypeError, match=r"not float"):
        Expr.of(1.5)
    with pytest.raises(ZeroDivisionError):
        Expr.sym("n") // 0


def test_canonical_and_pickled():
    i, j = Expr.sym("i"), Expr.sym("j")
    assert 2 * i + j * 3 == j + i + i + 2 * j
    assert hash(i + j) == hash(j + i)
    e = (i * 5 + j) % 7 + i // 2 * j
    assert pickle.loads(pickle.dumps(e)) == e
    assert repr(1024 * i + j + 3) == "1024*i + j + 3"
    assert (-i).to_c() == "-i"
    assert ((i * 5 + j) // 7).to_c({"i": "x"}) == "((5*x + j) / (7))"
