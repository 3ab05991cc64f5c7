"""Symbolic sizes: answers match plain numbers wherever the assumed relations hold, and known facts settle comparisons."""

import math
import random

import pytest
import torch
import torch.nn.functional as F

from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.symbols import Relation, Specialise, Symbols, expr_of, hint_of, is_symbolic, symbols_of
from pycompiler.torch_compat.fake_mode import fake_of, new_fake_mode


def texts(symbols):
    return [str(r) for r in symbols.relations]


def test_what_is_assumed_has_numbers_that_guards_hold():
    """Guards hold numbers below 2**63. A product less one leads to `2**63 >= s0*s1`; the guard uses the neighbouring number."""
    symbols = Symbols()
    a, b = symbols.new(9), symbols.new(12)
    assert a * b - 1 <= 2**63 - 1
    assert a * b - 1 <= 2**63 - 1
    assert texts(symbols) == ["9223372036854775807 >= s0*s1"]
    with pytest.raises(Specialise, match="cannot hold"):
        assert a * 2**63 > b * b  # a factor has no such neighbour


def test_normal_forms_cancel():
    symbols = Symbols()
    s, b = symbols.new(8), symbols.new(12)
    assert expr_of(s * b // b) == Expr.sym("s0")
    assert expr_of((s + 1) * b // (s + 1)) == Expr.sym("s1")
    assert (s * b) % s == 0 and s % (s * b) == s
    assert expr_of(torch.sym_max(s, s - 1)) == Expr.sym("s0")
    assert hint_of(s * b) == 96 and hint_of(3) == 3 and is_symbolic(s) and not is_symbolic(s - s)
    assert symbols_of(s) is symbols and symbols_of(3) is None
    assert texts(symbols) == []


def test_facts_settle_comparisons_without_an_assumption():
    symbols = Symbols()
    s, b = symbols.new(8), symbols.new(12, high=64)
    assert s > 1 and s != 0 and s != 1 and b <= 64 and s * b >= 4 and (s + b) // 2 >= 2
    assert s - s // 2 >= 0 and s * b != b - b and not s * b == 3
    assert s * b == b * s and s + b > s
    assert s <= 2**63 - 1 and not s > 2**63 - 1 and s != s // 2 and s // 2 < s
    assert texts(symbols) == []
    assert [str(r) for r in symbols.declared()] == ["s0 >= 2", "s1 >= 2", "64 >= s1"]


def test_hints_settle_the_rest_once():
    symbols = Symbols()
    s = symbols.new(8)
    symbols.place = lambda: "here"
    assert s > 5 and not s < 6 and 3 * s > 15 and s >= 3
    assert texts(symbols) == ["s0 >= 6"] and symbols.relations[0].place == "here"
    assert s % 4 == 0 and not s % 4 != 0
    assert texts(symbols)[1:] == ["((s0) % (4)) == 0"]
    assert not symbols.relations[1].holds({"s0": 9}) and symbols.relations[1].holds({"s0": 12})


def test_divisors_of_a_symbol_settle_remainders():
    symbols = Symbols()
    s, b = symbols.new(24), symbols.new(24)
    assert s % 8 == 0 and b % 6 == 0 and b == s
    known = texts(symbols)
    assert s % 4 == 0 and s % 12 == 0 and not b % 24 != 0 and b % 3 == 0
    assert texts(symbols) == known == ["((s0) % (8)) == 0", "((s1) % (6)) == 0", "s1 == s0"]
    assert symbols.records["s0"].divisor == 24 and symbols.records["s1"].equal == Expr.sym("s0")
    assert s % 5 != 0 and texts(symbols)[3:] == ["((s0) % (5)) != 0"]


def test_a_bound_of_a_float_is_not_narrowed_after_the_guards():
    symbols = Symbols()
    value = symbols.float("f", 2.0).node.value
    symbols.within(value, 65504.0)
    symbols.freeze()
    symbols.within(value, 1e38)  # follows from the bound
    with pytest.raises(Specialise, match="may not hold"):
        symbols.within(value, 100.0)
    assert symbols.records["f"].most == 65504.0


def test_an_equality_makes_symbols_one():
    symbols = Symbols()
    a, b, c = symbols.new(8), symbols.new(8), symbols.new(16)
    assert a == b and c == 2 * a
    assert expr_of(b) == expr_of(a) and expr_of(c * b) == 2 * Expr.sym("s0") * Expr.sym("s0")
    assert a * 3 == b * 3 and c // b == 2
    assert texts(symbols) == ["s1 == s0", "s2 == 2*s0"]


def test_a_value_that_is_asked_for_is_assumed():
    symbols = Symbols()
    s, b = symbols.new(8), symbols.new(3)
    assert list(range(s))[-1] == 7 and int(s) == 8 and symbols.is_static("s0") and not symbols.is_static("s1")
    assert expr_of(s * b) == 8 * Expr.sym("s1") and expr_of(s) == 8
    assert texts(symbols) == ["s0 == 8"]


def test_a_size_that_became_a_number_divides_as_one():
    """A size that became a constant divides like a plain number; torch's constant float has no `__rfloat_truediv__`."""
    symbols = Symbols()
    s = symbols.new(4)
    assert int(s) == 4
    assert (1.0 / s, s / 2, 3 / s, s**2, s % 3, s // 3, 7 // s, 1 - s, -s) == (0.25, 2.0, 0.75, 16, 1, 1, 1, -3, -4)
    assert torch.sym_float(s) == 4.0 and math.sqrt(s) == 2.0 and not is_symbolic(s)


def test_floats_follow_their_symbols():
    symbols = Symbols()
    s = symbols.new(9)
    assert hint_of(s**0.5) == 3.0 and hint_of(1 / s) == 1 / 9 and hint_of(torch.sym_sqrt(s) * 2.5) == 7.5
    assert hint_of(s / 2 + 1.5) == 6.0 and expr_of(math.floor(s / 2)) == Expr.sym("s0") // 2
    assert expr_of(math.ceil(s * 0.5)) == (Expr.sym("s0") + 1) // 2 and expr_of(torch.sym_int(s * 2.0)) == 2 * Expr.sym(
        "s0"
    )
    assert s / 2 > 3
    assert not symbols.is_static("s0")
    assert float(s**0.5) == 3.0 and symbols.is_static("s0")


def test_errors_are_those_of_numbers():
    symbols = Symbols()
    s = symbols.new(9)
    for wrong in (lambda: s // (s - 9), lambda: s % (s - 9), lambda: s / (s - 9)):
        with pytest.raises(ZeroDivisionError):
            wrong()
    with pytest.raises(TypeError):
        s + "x"
    with pytest.raises(ValueError, match="no symbol s1 of 1 from 2"):
        symbols.new(1)


def test_a_relation_prints_without_negative_terms():
    a, b = Expr.sym("a"), Expr.sym("b")
    assert str(Relation(">=", 3 * a - b - 7)) == "3*a >= b + 7"
    assert str(Relation("!=", a // 2 - 1)) == "((a) // (2)) != 1"


def test_after_the_guards_are_made_nothing_is_assumed():
    symbols = Symbols()
    s, b = symbols.new(8), symbols.new(4)
    assert symbols.at_least(expr_of(s), expr_of(b) + 1) and symbols.at_least(expr_of(s), 6)
    symbols.freeze()
    assert s > b and s >= 2 and s > 5
    with pytest.raises(Specialise, match="s0 must be known: s0 >= 7 would be assumed"):
        bool(s > 6)
    with pytest.raises(Specialise):
        int(b)
    assert texts(symbols) == ["s0 >= s1 + 1", "s0 >= 6"]


OPERATIONS = (
    lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a // b, lambda a, b: a % b,
    lambda a, b: torch.sym_max(a, b), lambda a, b: torch.sym_min(a, b), lambda a, b: -a, lambda a, b: abs(a - b),
    lambda a, b: math.floor(a / b), lambda a, b: math.ceil(a * 0.5), lambda a, b: a + 3, lambda a, b: a // 3,
)  # fmt: skip
QUESTIONS = (
    lambda a, b: a == b, lambda a, b: a != b, lambda a, b: a < b, lambda a, b: a >= b, lambda a, b: a % 2 == 0,
    lambda a, b: a > 7, lambda a, b: a / 2 > 3, lambda a, b: torch.sym_not(a == b),
)  # fmt: skip


def program(seed, inputs):
    """The answers of a random program, and the values that it computes."""
    random_ = random.Random(seed)
    values, answers = list(inputs), []
    for _ in range(8):
        a, b = random_.choice(values), random_.choice(values)
        if random_.random() < 0.4:
            answers.append(bool(random_.choice(QUESTIONS)(a, b)))
        else:
            try:
                values.append(random_.choice(OPERATIONS)(a, b))
            except ZeroDivisionError:
                answers.append("zero")
    return values, answers


@pytest.mark.parametrize("block", range(4))
def test_where_the_relations_hold_answers_are_those_of_numbers(block):
    met = 0
    for seed in range(block * 100, block * 100 + 100):
        random_ = random.Random(seed)
        symbols = Symbols()
        inputs = [symbols.new(random_.randint(2, 20)) for _ in range(3)]
        values, answers = program(seed, inputs)
        made = [expr_of(v) for v in values]
        assumed = [*symbols.relations, *symbols.declared()]
        decided = symbols.decisions
        assert all(r.holds(symbols.hints) for r in assumed) and all(d.passes(symbols.hints) for d in decided)
        sizes = [dict(symbols.hints)] + [{n: random_.randint(2, 24) for n in symbols.hints} for _ in range(20)]
        for env in sizes:
            if all(r.holds(env) for r in assumed) and all(d.passes(env) for d in decided):
                met += env != symbols.hints
                expected, expected_answers = program(seed, list(env.values()))
                assert answers == expected_answers, (seed, env)
                assert [symbols.resolve(e).eval(env) for e in made] == expected, (seed, env)
    assert met > 50


def test_operators_take_symbolic_sizes():
    symbols = Symbols()
    b, s = symbols.new(4), symbols.new(6)
    mode = new_fake_mode(symbolic=True)
    x = fake_of(mode, torch.ones(4, 6, 16, requires_grad=True), ((b, s, 16), (16 * s, 16, 1)))
    image = fake_of(mode, torch.ones(4, 3, 6, 6), ((b, 3, s, s), (3 * s * s, s * s, s, 1)))
    w = fake_of(mode, torch.ones(16, 16))
    with mode:
        y = F.layer_norm(F.gelu(F.linear(x, w)), (16,)) + x
        heads = y.view(b, s, 2, 8).transpose(1, 2)
        attended = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(b, s, -1)
        results = [
            (attended, "s0 s1 16"), (attended.sum(1), "s0 16"), (torch.cat([y, y], 1), "s0 2*s1 16"),
            (F.pad(y, (0, 0, 2, 1)), "s0 s1+3 16"), (y.view(-1, 16), "s0*s1 16"), (torch.arange(s), "s1"),
            (torch.ones(s, s).tril(), "s1 s1"), (y @ y.mT, "s0 s1 s1"), (y.softmax(1).flatten(), "16*s0*s1"),
            (F.max_pool2d(F.interpolate(image, scale_factor=2.0), 2), "s0 3 s1 s1"), (y.repeat(1, 2, 1), "s0 2*s1 16"),
            (F.conv2d(image, torch.ones(8, 3, 3, 3), padding=1, stride=2), "s0 8 ((s1+1)//(2)) ((s1+1)//(2))"),
        ]  # fmt: skip
    for out, shape in results:
        assert [str(expr_of(n)).replace(" ", "").strip() for n in out.shape] == shape.split(), shape
    assert attended.is_contiguous() and not heads.is_contiguous() and attended.requires_grad
    assert texts(symbols) == []


def test_the_static_fake_mode_knows_nothing_of_symbols():
    with new_fake_mode() as mode:
        assert mode.cache_enabled and not torch._C._dispatch_tls_is_dispatch_key_included("PythonDispatcher")
    with new_fake_mode(symbolic=True):
        assert torch._C._dispatch_tls_is_dispatch_key_included("PythonDispatcher")
    assert not torch._C._dispatch_tls_is_dispatch_key_included("PythonDispatcher")


def test_answers_are_kept_until_something_is_assumed():
    symbols = Symbols()
    s, b = symbols.new(8), symbols.new(8)
    product = (s * b).node
    assert (s * b).node is product and (s * 3).node.value == 3 * Expr.sym("s0")
    assert not (s + b == 17) and s == b  # the first comparison only checks, the second makes the symbols equal
    assert (s * b).node is not product and expr_of(s * b) == Expr.sym("s0") * Expr.sym("s0")
    assert product.value == expr_of(s * b)
    assert int(b) == 8 and s * b == 64 and product.constant_int() == 64
