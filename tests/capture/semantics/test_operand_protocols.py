"""Protocol calls from C to operands and containers, in eager's order and number, also for half of a pair of methods."""

from __future__ import annotations

import array
import collections
import itertools
import operator
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

LOG: list[Any] = []


def told(fn: Callable[..., Any], *args: Any) -> Any:
    """Call `fn` and return an error as a string: an error that leaves the compiled frame would start an eager rerun."""
    try:
        return fn(*args)
    except (
        ArithmeticError,
        AttributeError,
        BufferError,
        LookupError,
        RuntimeError,
        StopIteration,
        TypeError,
        ValueError,
    ) as e:
        return f"{type(e).__name__}: {e}"


def same(program: Callable[..., Any], *numbers: Any) -> None:
    compiled = pycompiler.compile(program, backend="eager")
    for n in numbers or (1, 1, 2, 0):
        seen = []
        for fn in (program, compiled):
            LOG.clear()
            seen.append((str(fn(torch.ones(2), n)), str(LOG)))
        assert seen[1] == seen[0]
    assert compiled.counters()["compiles"]


def says(name: str, result: Any = NotImplemented) -> Any:
    """A method that logs its name."""

    def method(self: Any, *args: Any) -> Any:
        LOG.append(name)
        return result

    return method


def of(base: type, **methods: Any) -> Any:
    """A class with logging methods: each returns NotImplemented or the given result, under its name with underscores."""
    return type(
        f"Of{base.__name__}", (base,), {f"__{n}__": says(f"{base.__name__}.{n}", r) for n, r in methods.items()}
    )


NO = NotImplemented
Added = of(object, radd="r", rmul="r", ror="r", rand="r", rsub="r", rxor="r")
Iterated = type("Iterated", (), {"__radd__": says("radd"), "__iter__": lambda self: iter([5, 6])})
Counted = type("Counted", (), {"__rmul__": says("rmul"), "__index__": lambda self: 2})
REFLECTED = {"radd": NO, "rmul": NO, "ror": NO, "rpow": NO, "rdivmod": NO, "gt": NO, "eq": NO, "ne": NO}


# exceptions ---------------------------------------------------------------------------------------------------
class Broken(Exception):
    def __init__(self) -> None:
        raise KeyError(3)


class Thing:
    pass


def caught() -> Any:
    try:
        yield 1
    except BaseException as e:
        LOG.append(repr(e))
        yield 2


def passing() -> Any:
    try:
        yield from caught()
    except TypeError as e:
        yield str(e)


@pytest.mark.parametrize("generator", [caught, passing])
@pytest.mark.parametrize("what", [5, "a", None, int, Thing(), Thing, ValueError, ValueError(2), Broken])
@pytest.mark.parametrize("state", ["new", "begun", "ended"])
def test_what_is_thrown_into_a_generator(state: str, what: Any, generator: Any) -> None:
    def program(x: Any, n: Any) -> Any:
        made = generator()
        if state != "new":
            next(made)
        if state == "ended":
            list(made)
        return x + 1, told(made.throw, what), told(next, made), told(next, made)

    same(program)


def test_what_is_thrown_is_a_number_or_a_tensor() -> None:
    def program(x: Any, n: Any) -> Any:
        made = caught()
        next(made)
        return x + 1, told(made.throw, n), told(made.throw, x), list(made)

    same(program)


# operators in place -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "op", [operator.iadd, operator.imul, operator.ior, operator.iand, operator.isub, operator.ixor]
)
@pytest.mark.parametrize(
    "left",
    [
        lambda: [1], lambda: (1,), lambda: collections.deque([1]), lambda: {1}, lambda: frozenset({1}), lambda: {1: 2},
        lambda: collections.OrderedDict({1: 2}), lambda: bytearray(b"a"), lambda: of(list)([1]),
        lambda: of(list, add=NO, mul=NO)([1]), lambda: of(list, iadd=NO, imul=NO)([1]), lambda: of(list, radd=NO, rmul=NO)([1]),
        lambda: of(dict, ror=NO)({1: 2}), lambda: {1: 2}.keys(),
    ],
)  # fmt: skip
def test_whom_an_operator_in_place_asks(left: Callable[[], Any], op: Callable[..., Any]) -> None:
    rights = [
        Added, Iterated, Counted, lambda: of(list, radd="r", rmul="r")([2]), lambda: of(set, ror="r", rsub="r")({1, 3}),
        lambda: of(dict, ror="r")({3: 4}), lambda: of(int, rmul="r")(2), lambda: [2], lambda: {1}, lambda: 2,
    ]  # fmt: skip

    for right in rights:
        pair = left(), right()

        def program(x: Any, n: Any, pair: Any = pair) -> Any:
            return x + 1, told(op, left(), pair[1])

        same(program, 1, 1)


def test_a_list_that_the_right_operand_is_not_added_to() -> None:
    def program(x: Any, n: Any) -> Any:
        given: Any = [n]
        kept = given
        given += Added()
        many: Any = [n]
        many += Iterated()
        return x + 1, given, kept, many

    same(program)


# reflected methods --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("base", [Thing, int, float, str, set, frozenset])
@pytest.mark.parametrize("methods", [{}, {"add": NO, "lt": NO, "eq": NO, "or": NO, "mul": NO, "pow": NO, "divmod": NO}])
def test_a_reflected_method_is_asked_once(methods: Any, base: type) -> None:
    left = of(base, **methods)
    right = of(left, **REFLECTED)
    ops = [operator.add, operator.mul, operator.or_, pow, divmod, operator.lt, operator.gt, operator.eq, operator.ne]

    def program(x: Any, n: Any) -> Any:
        a, b = left(), right()
        return x + 1, [
            told(op, *pair) for op in ops for pair in ((a, b), (b, a), (base(), b), (b, base()), (b, right()))
        ]

    same(program)


def test_classes_whose_operators_are_their_metaclass() -> None:
    own = type("Own", (type,), {n: says(n) for n in ("__or__", "__ror__", "__lt__", "__add__", "__eq__")})
    own.__hash__ = type.__hash__  # type: ignore[method-assign, assignment]
    derived = type("Derived", (own,), {n: says(n * 2) for n in ("__ror__", "__radd__", "__gt__")})
    a, b = own("a", (), {}), derived("b", (), {})
    ops = [operator.or_, operator.add, operator.lt, operator.eq]

    def program(x: Any, n: Any) -> Any:
        pairs = (a, b), (int, a), (a, int), (None, b), (b, a), (a, a), (list[int], a)
        return x + 1, [told(op, *pair) for op in ops for pair in pairs]

    same(program)


# containers ---------------------------------------------------------------------------------------------------
def test_an_array_of_bytes_under_a_view_keeps_its_size() -> None:
    def program(x: Any, n: Any) -> Any:
        bytes_, numbers = bytearray(b"abc"), array.array("i", [1])
        view = memoryview(bytes_)[1:]
        first = told(bytes_.append, 1)
        view.release()
        bytes_.append(n)
        other = memoryview(numbers)
        second = told(numbers.append, 1)
        del other
        numbers.append(2)
        return x + 1, first, second, bytes_, numbers

    same(program)


def test_a_view_that_nobody_reads() -> None:
    def program(x: Any, n: Any) -> Any:
        bytes_ = bytearray(b"abc")
        view = memoryview(bytes_)  # noqa: F841
        return x + 1, told(bytes_.append, 1), bytes_

    same(program)


def test_a_default_that_cannot_be_called() -> None:
    def program(x: Any, n: Any) -> Any:
        made = [told(collections.defaultdict, v) for v in (5, n, "a", x, None, Thing(), [1])]
        return x + 1, made, told(collections.defaultdict, int)

    same(program)


MAPPINGS: list[Callable[[], Any]] = [
    lambda: {1: 2, 3: 4}, lambda: collections.OrderedDict({1: 2, 3: 4}), lambda: collections.Counter("aab"), dict,
    collections.OrderedDict,
]  # fmt: skip
OTHERS: list[Callable[[], Any]] = [lambda: {1, 2}, lambda: collections.deque([1, 2]), collections.deque]
VIEWS: list[Callable[[Any], Any]] = [lambda d: d, lambda d: d.items(), lambda d: d.values(), types.MappingProxyType]
WAYS: list[Callable[[Any], Any]] = [
    iter,
    reversed,
    enumerate,
    lambda c: itertools.chain(c, [7]),
    lambda c: (v for v in c),
]
CHANGES: list[Callable[[Any], Any]] = [
    lambda c: c.clear(), lambda c: c.pop(*[1, 0][: 2 * hasattr(c, "keys")]), lambda c: c.move_to_end(1),
    lambda c: c.move_to_end(3), lambda c: (c.__setitem__(77, 1), c.pop(77)), lambda c: c.__setitem__(77, 1),
    lambda c: c.append(1), lambda c: c.add(77), lambda c: c.__setitem__(1, 9), lambda c: c.rotate(1),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("taken", [0, 2])
def test_iterators_over_what_has_changed(taken: int, way: Any, change: Any) -> None:
    makes = [(m, v) for m in MAPPINGS for v in VIEWS] + [(m, VIEWS[0]) for m in OTHERS if way is not reversed]

    def steps(make: Any, view: Any) -> Any:
        container = make()
        iterator = way(view(container))
        found = [told(next, iterator, "end") for _ in range(taken)]
        found.append(told(change, container))
        return [*found, told(next, iterator, "end"), told(next, iterator, "end"), told(next, iterator, "end")]

    def program(x: Any, n: Any) -> Any:
        return x + 1, [told(steps, *made) for made in makes]

    def text(fn: Any) -> str:
        return str(fn(torch.ones(2), 1))

    compiled = pycompiler.compile(program, backend="eager")
    assert text(compiled) == text(program)


@pytest.mark.parametrize("make", [lambda: {1: 2}, lambda: {1}])
def test_an_iterator_that_has_failed_does_so_behind_a_break(make: Any) -> None:
    def program(x: Any, n: Any) -> Any:
        container = make()
        iterator = iter(container)
        container.update({9: 9})
        first = told(next, iterator)
        container.discard(9) if isinstance(container, set) else container.pop(9)
        pycompiler.graph_break()
        return x + 1, first, told(next, iterator)

    same(program)


class Mapping:
    def __init__(self, keys: Any) -> None:
        self.names = keys

    def keys(self) -> Any:
        for key in self.names:
            LOG.append(("key", key))
            yield key

    def __getitem__(self, key: str) -> str:
        LOG.append(key)
        if key == "bad":
            raise KeyError(key)
        return key * 2


def named(**words: Any) -> Any:
    return words


def test_a_mapping_is_asked_up_to_where_it_fails() -> None:
    def program(x: Any, n: Any) -> Any:
        plain: Any = {}
        ordered: Any = collections.OrderedDict()
        found = [
            told(lambda: named(**{"c": 1}, **Mapping("abcd"))),
            told(lambda: named(c=1, **Mapping("abcd"))),
            told(lambda: named(**Mapping("ab"), **Mapping("ba"))),
            told(plain.update, Mapping(["a", "bad", "c"])),
            told(ordered.update, Mapping(["a", "bad", "c"])),
            told(operator.ior, plain, Mapping("xy")),
            told(lambda: {**Mapping(["a", "bad"])}),
            told(dict, type("Nothing", (), {"keys": lambda self: 5})()),
        ]
        return x + 1, found, plain, ordered

    same(program)


# comparisons and strings -----------------------------------------------------------------------------------------
def test_what_a_sort_asks() -> None:
    less = of(object, lt=NO)
    both = of(object, lt=NO, gt=True)
    makes: list[Any] = [
        lambda: [less(), less()], lambda: [both(), both()], lambda: [less(), both()], lambda: [both(), less()],
        lambda: [both(), 1], lambda: [1, both()], lambda: [(both(), 1), (both(), 2)], lambda: [(1, both()), (1, both())],
        lambda: [both()], lambda: [(less(),), (less(), 1)], lambda: [[both()], [both()]],
    ]  # fmt: skip

    def sorts(make: Any) -> int:
        return len(sorted(make()))

    def program(x: Any, n: Any) -> Any:
        return x + 1, [told(sorts, make) for make in makes]

    same(program)


class NoIterator:
    def __iter__(self) -> Any:
        LOG.append("iter")
        return 5


class OwnError:
    def __iter__(self) -> Any:
        raise TypeError("mine")


def test_what_is_no_container() -> None:
    def program(x: Any, n: Any) -> Any:
        found = [told(lambda: n in v) for v in (NoIterator(), OwnError(), Thing())]
        return x + 1, found, told(operator.contains, NoIterator(), 1)

    same(program)


def test_the_words_of_divisions_by_zero() -> None:
    def program(x: Any, n: Any) -> Any:
        ops = operator.mod, operator.floordiv, operator.truediv, operator.imod
        return x + 1, [told(op, n, 0) for op in ops], [told(op, 5, n - n) for op in ops]

    same(program, 1, 2, 3)
