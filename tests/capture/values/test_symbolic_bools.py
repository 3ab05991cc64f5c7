"""True and False beside a symbolic number are 1 and 0, as in Python; the number stays a symbol."""

from __future__ import annotations

from typing import Any

import pytest

import pycompiler

OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "//", "%", "**", "&", "|", "^", "<<", ">>")
FORMS = ("a {} b", "b {} a", "(a > 3) {} a", "a {} (a > 3)", "(a > 3) {} (a > 4)", "(a > 3) {} b", "(a == 5) {} 1")
OTHERS = (
    "[a].count(b)", "b in (a, 3)", "a in {b}", "{a: 1}.get(b)", "[b, 2].index(a)", "max(a, b)", "sum([a, b])", "pow(a, b)",
    "(a, b) == (b, a)", "[a, b] < [b, a]", "b if a == b else a", "a and b", "a is b",
)  # fmt: skip


def answer(fn: Any, a: float, b: bool) -> Any:
    try:
        found = fn(a, b)
    except (TypeError, ValueError, ZeroDivisionError) as e:
        return type(e)
    return found, type(found)


@pytest.mark.parametrize("numbers", [(2, 5, 7, 9), (1, 3, 0, 4), (2.5, 3.5, 1.0, 0.0)], ids=["ints", "small", "floats"])
@pytest.mark.parametrize("text", [*(form.format(op) for form in FORMS for op in OPERATORS), *OTHERS])
def test_as_python(text: str, numbers: tuple[float, ...]) -> None:
    program = eval(f"lambda a, b: ({text})")
    compiled = pycompiler.compile(program, backend="eager", dynamic=True)
    for b in (True, False):
        for a in numbers:
            assert answer(compiled, a, b) == answer(program, a, b)


class Counter:
    def __init__(self) -> None:
        self.k = 2


@pytest.mark.parametrize(
    "how", [lambda k, n: k == n, lambda k, n: k in [n], lambda k, n: [n].count(k), lambda k, n: n < k]
)
def test_a_number_that_changed_is_asked_beside_a_truth(how: Any) -> None:
    def program(counter: Counter, n: int) -> Any:
        counter.k += 1
        return how(counter.k, n)

    compiled = pycompiler.compile(program, backend="eager")
    ours, eagers = Counter(), Counter()
    for n in (2, 2, True, True, True, False, 1):
        assert compiled(ours, n) == program(eagers, n)
