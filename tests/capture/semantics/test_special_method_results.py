"""Results of special methods: Python's conversions and TypeErrors; comparisons call the operand that Python calls."""

from __future__ import annotations

import functools
import operator
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same

LOG: list[tuple[str, str]] = []


class First:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __eq__(self, other: object) -> bool:
        LOG.append((type(self).__name__, type(other).__name__))
        return self is other

    def _answer(self, *args: Any) -> Any:
        return self.answer

    __hash__ = __int__ = __float__ = __complex__ = __index__ = __str__ = __repr__ = __format__ = _answer


class Second(First):
    pass


ANSWERS = [2, 2.5, None, True, "1", -1, 2**62, 2**70, [1], 1 + 0j]

ASKED: dict[str, Callable[[Any], Any]] = {
    "int": int, "float": float, "complex": complex, "str": str, "repr": repr, "ascii": ascii, "hash": hash,
    "format": lambda o: f"{o}", "repr in a format": lambda o: f"{o!r}", "str.format": lambda o: "{:d}".format(o),  # noqa: UP032
    "index": lambda o: [1, 2, 3, 4][o], "operator.index": operator.index, "range": lambda o: len(range(o)),
    "slice": lambda o: [1, 2, 3][:o], "key": lambda o: {o: 1} and 1,
    "reverse": lambda o: sorted([2, 1, 3], reverse=o.answer), "sort": lambda o: [1, 2].sort(reverse=o.answer),
    "maxlen": lambda o: deque([1, 2, 3], o), "maxlen of a number": lambda o: deque([1, 2, 3], o.answer),
    "getattr": lambda o: getattr(o, o.answer, 3), "isinstance": lambda o: isinstance(o, o.answer),
}  # fmt: skip


def told(fn: Callable[..., Any], *args: Any) -> Any:
    LOG.clear()
    try:
        return fn(torch.ones(1), *args)[0], [*LOG]
    except Exception as e:
        return type(e), str(e), [*LOG]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", list(ASKED))
def test_answers_are_pythons(name: str) -> None:
    ask = ASKED[name]

    def fn(x: torch.Tensor, o: Any) -> Any:
        return ask(o), x + 1

    for answers in (ANSWERS[:6], ANSWERS[4:], ANSWERS[6::-1], ANSWERS[:3:-1]):
        compiled = pycompiler.compile(fn, backend="eager")
        for answer in answers:
            assert_same(told(compiled, First(answer)), told(fn, First(answer)), exact=True)


COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "equal": lambda a, b: a == b,
    "other": lambda a, b: a != b,
    "list.index": lambda a, b: [a, b].index(b),
    "tuple.count": lambda a, b: (a, b).count(b),
    "in": lambda a, b: b in [a, b],
    "lists": lambda a, b: [a] == [b],
    "dicts": lambda a, b: {1: a} == {1: b},
    "deque.remove": lambda a, b: deque([a, b]).remove(b),
}


@pytest.mark.parametrize("name", list(COMPARED))
def test_a_subclass_is_asked_first_though_it_inherits_the_method(name: str) -> None:
    compare = COMPARED[name]

    def fn(x: torch.Tensor, a: Any, b: Any) -> Any:
        return compare(a, b), x + 1

    compiled = pycompiler.compile(fn, backend="eager")
    for a, b in ((First(1), Second(1)), (Second(1), First(1)), (First(1), First(1))):
        assert_same(told(compiled, a, b), told(fn, a, b), exact=True)


class Plain:
    pass


REFUSED: dict[str, Callable[[Any], Any]] = {
    "operator of a class with a module in its name": lambda o: OrderedDict() | o,
    "the other way round": lambda o: o @ OrderedDict(),
    "not in a list": lambda o: [Plain()].index(o),
    "no class": lambda o: issubclass(o, int),
    "partial of no callable": lambda o: functools.partial(o),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_errors_that_the_program_reads_have_pythons_words(name: str) -> None:
    refuse = REFUSED[name]

    def program(x: torch.Tensor, o: Any) -> Any:
        try:
            refuse(o)
        except Exception as e:
            return x + 1, type(e), str(e)
        return x, None

    o = Plain()
    eager, compiled = (fn(torch.ones(1), o)[1:] for fn in (program, pycompiler.compile(program, backend="eager")))
    assert eager == compiled
    assert eager[0] is not None


class Counting:
    """An iterator with a StopIteration value, which records the values sent to it."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration(7)
        self.left -= 1
        return self.left

    def send(self, value: int) -> int:
        if value == 2:
            raise StopIteration("sent")
        return value


def delegating(iterator: Any) -> Any:
    yield (yield from iterator)


def at_its_end(x: torch.Tensor) -> Any:
    try:
        next(Counting(0))
    except StopIteration as e:
        return x + 1, e.value, next(Counting(0), 5)


def delegated(x: torch.Tensor) -> Any:
    return x + 1, [*delegating(Counting(2))]


def sent_on(x: torch.Tensor) -> Any:
    outer = delegating(Counting(2))
    return x + 1, next(outer), outer.send(1), outer.send(2)


def sent_to_none(x: torch.Tensor) -> Any:
    outer = delegating([1, 2])
    next(outer)
    try:
        outer.send(3)
    except AttributeError as e:
        return x + 1, str(e), [*outer]


@pytest.mark.parametrize("program", [at_its_end, delegated, sent_on, sent_to_none])
def test_what_an_iterator_of_the_programs_ends_with(program: Callable[[torch.Tensor], Any]) -> None:
    eager, compiled = (
        fn(torch.ones(1))[1:] for fn in (program, pycompiler.compile(program, backend="eager", fullgraph=True))
    )
    assert eager == compiled


class EqualsAll(str):
    """A string that is equal to every value."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


class Digit(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class Text(str):
    pass


ANY, DIGIT, TEXT = EqualsAll("a"), Digit(3), Text("a")
KEYS: list[Callable[[], Any]] = [
    lambda: ({ANY: 1}.get("a"), len({ANY, "a"})),
    lambda: ({DIGIT: 1}.get(3), {3: 1}.get(DIGIT), len({DIGIT, 3, 4})),
    lambda: ({TEXT: 1}.get("a"), {"a": 1}.get(TEXT), len({TEXT, "a"})),
]


@pytest.mark.parametrize("look", KEYS)
def test_a_key_says_which_constants_it_equals(look: Callable[[], Any]) -> None:
    compiled = pycompiler.compile(lambda x: (x + 1, look()), backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(1))[1] == look()


class Never:
    """An object that is equal to nothing and logs each comparison."""

    def __eq__(self, other: object) -> bool:
        LOG.append(("asked", type(other).__name__))
        return False

    def __hash__(self) -> int:
        return 1

    def method(self) -> None:
        pass


OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "list": lambda a, b: a in [b], "tuple": lambda a, b: a in (b,), "set": lambda a, b: a in {b}, "deque": lambda a, b: a in deque([b]),
    "dict": lambda a, b: {b: 1}.get(a), "set of two": lambda a, b: len({a, b}), "count": lambda a, b: [b].count(a),
    "remove": lambda a, b: [b].remove(a), "index": lambda a, b: (b,).index(a), "lists": lambda a, b: [a] == [b],
    "dicts": lambda a, b: {1: a} == {1: b}, "values": lambda a, b: a in {1: b}.values(), "items": lambda a, b: (1, a) in {1: b}.items(),
    "generator": lambda a, b: a in (c for c in [b]), "countOf": lambda a, b: operator.countOf([b], a),
    "sentinel": lambda a, b: len([*iter([b, b, a].pop, b)]), "methods": lambda a, b: a.method == b.method,
}  # fmt: skip


@pytest.mark.parametrize("name", list(OF_TWO))
def test_two_that_became_one_are_not_asked(name: str) -> None:
    """Containers call `==` only for distinct objects: the graph assumes by a guard that the two are distinct."""
    look = OF_TWO[name]
    program = lambda x, a, b: (look(a, b), x + 1)  # noqa: E731
    compiled = pycompiler.compile(program, backend="eager")
    one, other = Never(), Never()
    for pair in ((one, other), (one, other), (one, one), (other, one)):
        assert_same(told(compiled, *pair), told(program, *pair), exact=True)


class Members(set[int]):
    pass


@pytest.mark.parametrize("ask", [set.discard, set.remove, set.__contains__])
@pytest.mark.parametrize("made", [set, Members])
def test_sets_are_asked_for_as_frozen_ones(ask: Callable[..., Any], made: type) -> None:
    def program(x: torch.Tensor, members: set[Any], one: Any) -> Any:
        try:
            return x * 2, ask(members, one), len(members)
        except (KeyError, TypeError) as e:
            return x * 2, type(e), str(e), len(members)

    compiled = pycompiler.compile(program, backend="eager")
    for members in ({1, 2}, {1, frozenset({1})}):
        want, got = (fn(torch.ones(1), set(members), made({1}))[1:] for fn in (program, compiled))
        assert want == got
