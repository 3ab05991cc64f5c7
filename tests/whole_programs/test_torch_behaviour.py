"""Regressions found by tests of torch's own behaviour, each as a program of its own."""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
import operator
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pycompiler


@dataclasses.dataclass(frozen=True)
class Inner:
    x: float
    y: float


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    z: int


def test_a_key_of_a_dataclass_within_another() -> None:
    def program(x: Any) -> Any:
        found = {Outer(Inner(2.5, 4.5), 5): 2}
        return x * found[Outer(Inner(2.5, 4.5), 5)], hash((Inner(1.0, 2.0), 3)) == hash((Inner(1.0, 2.0), 3))

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    assert str(compiled(torch.ones(2))) == str(program(torch.ones(2)))


def test_an_id_in_arithmetic_is_that_of_this_object() -> None:
    def program(x: Any, thing: Any) -> Any:
        return x + (id(thing) // 1000) % 1000

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    first, second = Inner(1.0, 2.0), Inner(1.0, 2.0)
    for thing in (Inner, Inner, Outer, first, second, first):
        torch.testing.assert_close(compiled(torch.ones(2), thing), program(torch.ones(2), thing))
    assert compiled.counters()["compiles"] == 4


@pytest.mark.parametrize("given", [([], {"from": -10, "to": 10}), ([-10], {"to": 10}), ([], {"from": 2.0, "to": 3.0})])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_arguments_whose_names_are_pythons_own(given: tuple[list[Any], dict[str, Any]], backend: str) -> None:
    def program(x: Any) -> Any:
        return x.clone().uniform_(*given[0], **given[1])

    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = program(torch.ones(5))
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(torch.ones(5)), expected)


def test_attributes_of_a_thread_through_their_dict() -> None:
    local = threading.local()

    def program(x: Any) -> Any:
        del local.__dict__["old"]
        local.__dict__["new"] = x + 2
        return local.new * 3, "new" in vars(local), local.__dict__

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        results = []
        for call in (program, compiled):
            vars(local).clear()
            local.old = 1
            result = call(torch.ones(1))
            assert result[2] is local.__dict__
            results.append(str(result))
        assert results[0] == results[1]
    assert compiled.counters()["compiles"] == 1


def test_what_a_function_calls_that_is_disabled_alone_is_compiled() -> None:
    graphs = []

    def backend(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm

    def doubled(x: Any) -> Any:
        return x * 2

    @pycompiler.disable(recursive=False)
    def program(x: Any) -> Any:
        return doubled(x) + 1

    compiled = pycompiler.compile(program, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert len(graphs) == 1


@pytest.fixture
def deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_deterministic_algorithms_inside(deterministic: None, backend: str) -> None:
    def program(x: Any) -> Any:
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        filled = torch.empty(3)
        inside = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(before)
        return x + 1, filled, before, inside

    def leaves_it(x: Any) -> Any:
        torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled())
        return x + 1

    for fn in (program, leaves_it):
        compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
        for before in (False, True, False):
            found = []
            for call in (fn, compiled):
                torch.use_deterministic_algorithms(before)
                found.append((str(call(torch.ones(2))), torch.are_deterministic_algorithms_enabled()))
            assert found[0] == found[1]
        assert compiled.counters()["compiles"] == 2


def enums(x: Any) -> Any:
    made = enum.IntEnum("Month", "june july", start=10)
    return [int(m) for m in made], x + 1


class Missing(enum.Enum):
    RED = 1

    @classmethod
    def _missing_(cls, item: Any) -> Any:
        return 5


def context_of_what_a_constant_raises(x: Any) -> Any:
    try:
        Missing("none")
    except TypeError as e:
        return repr(e.__context__), x + 1


def keywords(x: Any) -> Any:
    told = []
    for cls in (bool, float, tuple, list, zip, range, collections.deque):
        try:
            cls(unknown=1)  # type: ignore[operator]
        except TypeError as e:
            told.append(str(e))
    return told, x + 1


class Around:
    class Slotted:
        __slots__ = ("a",)


def empty_slots(x: Any) -> Any:
    told, made = [], Around.Slotted()
    made.a = 1
    del made.a
    for read in (lambda: made.a, lambda: Around.Slotted().a, lambda: made.b):  # type: ignore[attr-defined]
        try:
            read()
        except AttributeError as e:
            told.append(str(e))
    return told, x + 1


def iterators_of_code(x: Any) -> Any:
    code = keywords.__code__
    return list(code.co_positions()), list(code.co_lines()), x + 1


def thrown_while_a_generator_handles(x: Any) -> Any:
    def inner() -> Iterator[None]:
        yield

    def outer() -> Iterator[None]:
        try:
            raise KeyError("a")
        except KeyError:
            yield from inner()

    made = outer()
    next(made)
    try:
        made.throw(ValueError)  # type: ignore[attr-defined]
    except ValueError as e:
        return repr(e.__context__), x + 1


def tees(x: Any) -> Any:
    a, b = itertools.tee([1, 2, 3, 4])
    next(a)
    c, d = itertools.tee(a)
    return a is c, next(a), list(d), list(b), list(c), list(a), x + 1


def sums_after_none(x: Any) -> Any:
    sums = itertools.accumulate([None, None, None], operator.is_)
    first = next(sums)
    pycompiler.graph_break()
    return first, list(sums), x + 1


def key_that_goes_and_comes(x: Any) -> Any:
    known = {0: 0}
    try:
        for key in known:
            del known[0]
            known[0] = key
    except RuntimeError as e:
        return str(e), x + 1


def class_made_inside(x: Any) -> Any:
    pair = collections.namedtuple("pair", "a b")
    pair.a.__doc__ = "the first"
    pycompiler.graph_break()
    return pair.a.__doc__, type(pair(1, 2)) is pair, x + 1


def parts_of_groups(x: Any) -> Any:
    try:
        ExceptionGroup("several", [ValueError()]).exceptions = ()  # type: ignore[misc]
    except AttributeError as e:
        return str(e), x + 1


def text_of_an_encoding_error(x: Any) -> Any:
    error = UnicodeEncodeError("ascii", "xxxx", 1, 4, "reason")
    error.end = 2
    return str(error), x + 1


def what_is_no_class(x: Any) -> Any:
    told = [isinstance(x, (torch.Tensor, 1)), issubclass(bool, (int, "x")), isinstance(1, (str, (int,)))]
    for fn, a, b in ((isinstance, 1, 1), (issubclass, int, 1), (issubclass, 1, int), (isinstance, "a", (int, "b"))):
        try:
            told.append(fn(a, b))  # type: ignore[arg-type]
        except TypeError as e:
            told.append(str(e))  # type: ignore[arg-type]
    return told, x + 1


@pytest.mark.parametrize(
    "program",
    [
        what_is_no_class, enums, context_of_what_a_constant_raises, keywords, empty_slots, iterators_of_code, thrown_while_a_generator_handles, tees, sums_after_none,
        key_that_goes_and_comes, class_made_inside, parts_of_groups, text_of_an_encoding_error,
    ],
)  # fmt: skip
def test_as_cpython_does_it(program: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(2):
        assert str(compiled(torch.ones(2))) == str(program(torch.ones(2)))


class Spelled(str):
    def split(self, *separators: Any) -> Any:  # type: ignore[override]
        return ["its own"]


SPELLED, PATTERN = Spelled("a b"), re.compile("a (b)")


def of_a_subclass_of_text(x: Any) -> Any:
    found = PATTERN.match(SPELLED)
    assert found is not None
    newer = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) > (1, 13)
    parts = SPELLED.split(), SPELLED.upper(), list(SPELLED), "-".join(SPELLED), {"a", "b", " "}.issuperset(SPELLED)
    return parts, found.group(1), type(found.string), newer, x + 1


def test_texts_of_other_classes() -> None:
    compiled = pycompiler.compile(of_a_subclass_of_text, backend="eager")
    for _ in range(2):
        assert str(compiled(torch.ones(2))) == str(of_a_subclass_of_text(torch.ones(2)))
    whole = pycompiler.compile(lambda x: x + len(list(SPELLED)), backend="eager", fullgraph=True)
    torch.testing.assert_close(whole(torch.ones(2)), torch.full((2,), 4.0))


def test_callbacks_of_weak_references_behind_a_break() -> None:
    class Thing:
        pass

    def program(x: Any, seen: list[Any]) -> Any:
        thing = Thing()
        reference = weakref.ref(thing, seen.append)
        pycompiler.graph_break()
        return reference() is None, x + 1

    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(2):
        eager: list[Any] = []
        found: list[Any] = []
        assert str(program(torch.ones(2), eager)) == str(compiled(torch.ones(2), found))
        assert len(eager) == len(found)
        assert len(eager) == 1 or sys.version_info >= (3, 14)  # the versions in which the reference ends first


@pytest.mark.parametrize("size", [(), (2,)])
def test_a_size_beside_an_empty_tuple_stays_a_size(size: tuple[int, ...]) -> None:
    def program(x: Any) -> Any:
        known, given, empty = torch.Size(size), x.shape, ()
        given += ()
        sums = known + empty, empty + known, known + known, given + empty, empty + x.shape, empty + empty
        return x + 1, [type(s) for s in sums], type(given), sums[-1] is empty

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    x = torch.ones(size)
    assert str(compiled(x)) == str(program(x))
