"""Regressions found by the program fuzzer (`tests/fuzz/python`), reduced."""

from __future__ import annotations

import array
import collections
import contextlib
import datetime
import decimal
import enum
import functools
import gc
import itertools
import operator
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import config
from tests.harness.compare import assert_same, assert_same_calls


def both(fn: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> tuple[list[Any], list[Any]]:
    """Results of two calls, eager and compiled: results or errors, and arguments afterwards."""
    sides = []
    for call in (fn, pycompiler.compile(fn, backend="eager")):
        seen: list[Any] = []
        args = make()
        for _ in range(2):
            try:
                seen.append(call(*args))
            except Exception as error:
                seen.append((type(error), str(error)))
            seen.append(
                [vars(a) if hasattr(a, "__dict__") else list(a) if hasattr(a, "__iter__") else None for a in args]
            )
        sides.append(seen)
    return sides[0], sides[1]


@pytest.fixture(autouse=True)
def raise_internal_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "raise_internal_errors", True)


def once(k: int) -> Iterator[int]:
    while k < 3:
        k += yield k


def test_a_generator_that_has_ended_stays_one_across_a_break() -> None:
    def program(log: list[Any]) -> str:
        it = once(5)
        next(it, None)
        pycompiler.graph_break()
        log.append((type(it).__name__, it.__name__, it.__qualname__))
        it.close()
        return it.send(1)

    eager, compiled = both(program, lambda: ([],))
    assert_same(compiled, eager)
    assert eager[0] == (StopIteration, "")


class Cached:
    asked = 0

    @functools.cached_property
    def total(self) -> int:
        self.asked += 1
        return 5


class Behind(Cached):
    @property
    def total(self) -> int:
        return super().total + 1


class Again(Cached):
    def twice(self) -> int:
        return super().total + super().total


@pytest.mark.parametrize("cls", [Behind, Again])
def test_a_cached_property_reached_through_super(cls: type) -> None:
    def program(held: Any) -> int:
        return held.twice() if hasattr(held, "twice") else held.total + held.total

    eager, compiled = both(program, lambda: (cls(),))
    assert_same(compiled, eager)
    assert eager[-1][0]["asked"] == 1


WRONG = {
    "append": lambda: [].append(), "insert": lambda: [].insert(1), "pop": lambda: [].pop(1, 2), "get": lambda: {}.get(),
    "add": lambda: set().add(), "zip": lambda: zip(1), "list": lambda: list(1, 2), "getattr": lambda: getattr(1),
    "iter": lambda: iter(), "index": lambda: [1].index(), "divmod": lambda: divmod(1), "slice": lambda: slice(),
    "slice of four": lambda: slice(1, 2, 3, 4), "deque": lambda: collections.deque([1], 2, 3), "send": lambda: once(1).send(),
    "sort": lambda: [].sort(1), "dict": lambda: dict(1, 2), "namedtuple": lambda: collections.namedtuple(),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_builtin_that_does_not_take_its_arguments_raises(name: str) -> None:
    eager, compiled = both(WRONG[name], lambda: ())
    assert_same(compiled, eager)
    assert eager[0][0] is TypeError


class Slotted:
    __slots__ = ("log", "size")

    def __init__(self, size: int, log: list[str]) -> None:
        self.size, self.log = size, log

    def __getattribute__(self, name: str) -> Any:
        if name == "size":
            self.log.append(name)
        return super().__getattribute__(name)


def test_guards_read_no_slot_behind_a_getattribute() -> None:
    logs: list[list[str]] = []
    for call in (lambda held: held.size + 1, pycompiler.compile(lambda held: held.size + 1, backend="eager")):
        logs.append([])
        held = Slotted(2, logs[-1])
        assert [call(held), call(held)] == [3, 3]
    assert logs == [["size", "size"]] * 2


def test_a_frame_that_asks_for_its_variables_goes_on_after_two_breaks() -> None:
    def program(log: list[Any]) -> int:
        def inner(k: int) -> int:
            def elements(k: int) -> Iterator[int]:
                try:
                    yield k
                finally:
                    log.append("closed")

            for _ in elements(3):
                log.append("append" in dir(log))
            return k

        return inner(1)

    eager, compiled = both(program, lambda: ([],))
    assert_same(compiled, eager)
    assert eager[-1] == [[True, "closed"] * 2]


def test_a_resume_function_shows_no_names_of_its_own() -> None:
    def made(log: list[Any]) -> Callable[[list[Any]], int]:
        held, count = [1], 3

        def program(log: list[Any]) -> int:
            nonlocal count
            count += held[0]
            pycompiler.graph_break()
            log.append((sorted(locals()), sorted(dir())))
            pycompiler.graph_break()
            log.append(sorted(locals()))
            return count

        return program

    for _ in range(2):
        eager, compiled = [], []
        assert made(eager)(eager) == pycompiler.compile(made(compiled), backend="eager")(compiled) == 4
        assert_same(compiled, eager)
        assert eager[-1] == ["count", "held", "log"]


ENDED: list[int] = []


class Ended:
    def __init__(self, k: int) -> None:
        self.k = k

    def __del__(self) -> None:
        ENDED.append(self.k)


def store_below_a_call(log: list[Any]) -> None:
    (lambda: Ended(len(log)))().k += 1
    log.append([*ENDED])


def store_below_a_break(log: list[Any]) -> None:
    (lambda: Ended(id(log) - id(log) + 1))().k += 1
    log.append([*ENDED])


def vars_are_seen(log: list[Any]) -> None:
    made = Ended(2)
    pycompiler.graph_break()
    log.append(made.__dict__.get("k"))


@pytest.mark.parametrize("program", [store_below_a_call, store_below_a_break, vars_are_seen])
def test_the_end_of_an_object_that_only_a_call_held_is_eagers(program: Callable[[list[Any]], None]) -> None:
    sides = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for call in (program, pycompiler.compile(program, backend="eager")):
            ENDED.clear()
            log: list[Any] = []
            for _ in range(2):
                call(log)
            sides.append((log, [*ENDED]))
    finally:
        if collecting:
            gc.enable()
    assert sides[0] == sides[1]
    assert len(sides[0][1]) == 2


def test_arithmetic_of_ids_breaks_the_graph() -> None:
    def program(log: list[Any]) -> list[Any]:
        try:
            return [id(log) - id(log), -id(log) < 0]
        except TypeError:
            return ["refused"]

    eager, compiled = both(program, lambda: ([],))
    assert_same(compiled, eager)
    assert eager[0] == [0, True]


def assert_same_outcomes(*programs: Callable[[], Any]) -> None:
    for program in programs:
        assert_same_calls(pycompiler.compile(program, backend="eager"), program, tuple)


@pytest.mark.parametrize("value", [3, None, "name", ()], ids=str)
@pytest.mark.parametrize(
    "name", ["__name__", "__qualname__", "__code__", "__annotations__", "__dict__", "__closure__", "__globals__"]
)
def test_an_attribute_of_a_new_function_takes_what_eager_takes(name: str, value: Any) -> None:
    def program() -> Any:
        def made() -> int:
            return 1

        setattr(made, name, value)
        return made(), getattr(made, name)

    assert_same_outcomes(program)


def test_errors_call_classes_by_the_names_that_c_gave_them() -> None:
    x, size, queue = torch.ones(2), torch.Size([2]), collections.deque([1])

    class Inner:
        @property
        def k(self) -> int:
            return 1

    def sets_property() -> None:
        Inner().k = 2  # type: ignore[misc]

    assert_same_outcomes(
        lambda: x + size, lambda: queue.zz, lambda: size.zz, lambda: {**queue}, lambda: range(size),
        lambda: queue(), lambda: torch.float32(), lambda: vars(object()), lambda: vars(3), sets_property,
    )  # fmt: skip


def test_views_of_ordered_dicts_are_theirs() -> None:
    def program() -> list[Any]:
        table = collections.OrderedDict(a=1, b=2)
        table.move_to_end("a")
        views: list[Any] = [table.keys(), table.values(), table.items()]
        iterators = [iter(table), *map(iter, views)]
        told = [type(v).__name__ for v in (*views, *iterators)]
        pycompiler.graph_break()
        return [*told, *(type(v).__name__ for v in views), *map(list, views)]

    assert_same_outcomes(program)


class OneSlot:
    __slots__ = ("k",)
    shared = 4


class Plain:
    shared = 4


@pytest.mark.parametrize("name", ["k", "shared", "none"])
@pytest.mark.parametrize("cls", [OneSlot, Plain], ids=lambda cls: cls.__name__)
def test_errors_of_attributes_that_are_not_there(cls: type, name: str) -> None:
    def reads() -> Any:
        made = cls()
        made.k = 1
        del made.k
        return made.k

    def deletes() -> None:
        delattr(cls(), name)

    def writes() -> None:
        made = cls()
        setattr(made, name, 2)
        delattr(made, name)
        delattr(made, name)

    assert_same_outcomes(reads, deletes, writes)


def test_methods_bound_before_read_and_write_their_receiver() -> None:
    """Methods that are operators (`list.__len__`), too, which CPython binds in a class of its own."""

    def outcome(compiles: Callable[..., Any]) -> list[Any]:
        items, table, members = [1, 2], {1: 2}, {1}
        reads: list[Any] = [
            items.__len__, table.__len__, members.__len__, members.copy, items.__repr__, lambda: [*lists()], lambda: [*keys()]
        ]  # fmt: skip
        lists, keys, has, stores, puts = (
            items.__iter__, table.__iter__, items.__contains__, items.__setitem__, table.__setitem__
        )  # fmt: skip

        def program(x: Any) -> Any:
            seen = [read() for read in reads], has(7)
            stores(0, 7)
            puts(3, 4)
            return seen, str(x + 1)

        call = compiles(program)
        seen = [call(torch.ones(2)), list(items), dict(table)]
        items.append(5)
        table[9] = 9
        members.add(6)
        return [*seen, call(torch.ones(2)), items, table]

    assert outcome(lambda fn: pycompiler.compile(fn, backend="eager")) == outcome(lambda fn: fn)


class SlotsOnly:
    __slots__ = ()

    @functools.cached_property
    def total(self) -> int:
        return 4


def test_a_cached_property_without_a_dict_to_keep_it() -> None:
    def unraised() -> None:
        raise SlotsOnly().total from no_such_name  # type: ignore[misc, name-defined]  # noqa: F821

    def handled() -> list[str]:
        try:
            return [str(SlotsOnly().total)]
        except TypeError as e:
            return [repr(e), repr(e.__context__), repr(e.__cause__), str(e.__suppress_context__)]

    assert_same_outcomes(lambda: SlotsOnly().total, unraised)
    assert pycompiler.compile(handled, backend="eager")() == handled()


class Held:
    """An object that the caller of a compiled function holds."""


@pytest.mark.parametrize("text", [lambda x: f"{x}", lambda x: repr(x), lambda x: "%s" % x, lambda x: f"{x.sum():.2f}"])
def test_a_text_of_a_tensor_keeps_no_frames(text: Callable[[torch.Tensor], str]) -> None:
    """A deferred graph break stores no traceback, which would hold the frames of the compiler and its callers."""

    class Named(contextlib.nullcontext[None]):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def program(x: torch.Tensor) -> torch.Tensor:
        with contextlib.ExitStack() as stack:
            stack.enter_context(Named(text(x)))
            pycompiler.graph_break()
        return x * 2

    compiled = pycompiler.compile(program, backend="eager")

    def caller() -> weakref.ref[Held]:
        held = Held()
        compiled(torch.ones(2))
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        assert caller()() is None
    finally:
        gc.enable()


class Ending:
    log: list[str] = []

    def __init__(self, size: int) -> None:
        self.size = size

    def __del__(self) -> None:
        Ending.log.append("end")


def begun_list(x: torch.Tensor) -> None:
    def last() -> None:
        Ending.log.append(str([Ending(v) for v in range(2)][-1].size))

    last()


def keeps_results(x: torch.Tensor) -> Ending:
    @functools.cache
    def kept(k: Any) -> None:
        pass

    kept(str)
    return Ending(1)


def asks_keys(x: torch.Tensor) -> Ending:
    table = {Noted(1): 1, Noted(11): 2}
    pycompiler.graph_break()
    made = Ending(len(table))
    table.get(Noted(11))
    return made


class Noted(Ending):
    def __hash__(self) -> int:
        Ending.log.append("hash")
        return self.size % 10

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Noted) and self.size == other.size


@pytest.mark.parametrize("program", [begun_list, keeps_results, asks_keys], ids=lambda f: f.__name__)
def test_ends_come_without_the_collector(program: Callable[..., Any]) -> None:
    """No error of a capture refers to the caller's frames; a list built before a break holds its elements no longer
    than eager."""

    def outcome(call: Callable[..., Any]) -> list[str]:
        Ending.log = []
        for _ in range(2):
            call(torch.ones(2))
            Ending.log.append("returned")
        return Ending.log

    gc.collect()
    gc.disable()
    try:
        assert outcome(pycompiler.compile(program, backend="eager")) == outcome(program)
    finally:
        gc.enable()


class Inserts:
    def __init__(self, items: list[int]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[int]:
        self.items.insert(0, 9)
        yield from (7, 8)


@pytest.mark.parametrize("place", [slice(1, None), slice(None, 2), slice(3, 1), slice(-1, None), slice(0, 0)], ids=str)
def test_a_slice_is_known_before_what_takes_its_place(place: slice) -> None:
    def program(items: list[int]) -> None:
        items[place] = Inserts(items)

    eager, compiled = both(program, lambda: ([1, 2, 3, 4],))
    assert_same(compiled, eager)


class AskedSlot:
    __slots__ = ("items", "log")

    def __getattr__(self, name: str) -> int:
        self.log.append(name)
        return 5


def test_a_slot_that_is_empty_by_now_is_asked_for_once() -> None:
    def program(made: AskedSlot) -> Any:
        try:
            del made.items
        except AttributeError as error:
            return str(error), made.items, list(made.log)

    def outcome(call: Callable[..., Any]) -> list[Any]:
        made = AskedSlot()
        made.items, made.log = 1, []
        return [call(made), call(made), call(made), made.log]

    assert outcome(pycompiler.compile(program, backend="eager")) == outcome(program)


class AsksItems:
    def __init__(self, items: list[int]) -> None:
        self.items = items

    def __contains__(self, k: int) -> bool:
        return k in self.items


NO_STEP, BACKWARDS = slice(None, None, 0), slice(None, None, -1)


def test_a_slice_across_a_break_takes_places_of_a_list() -> None:
    """After a break the slice is a constant; a store must accept it like any slice."""

    def program(x: torch.Tensor, held: AsksItems, log: list[Any]) -> Any:
        made = AsksItems([3])
        try:
            made.items[::-1] += [*(v for v in ([v for v in log] if bool(x.sum() > 0) else log) if x.dim() not in held)][
                :3
            ]
        except Exception as error:
            log.append(str(error))
        finally:
            held.items.append(2)
        return made.items, held.items, log

    eager, compiled = both(program, lambda: (torch.ones(3), AsksItems([1]), [4, 5]))
    assert_same(compiled, eager)


@pytest.mark.parametrize("place", [NO_STEP, BACKWARDS], ids=str)
@pytest.mark.parametrize("write", ["made = items[place]", "items[place] = [7, 8, 9]", "del items[place]"])
def test_slices_that_are_constants(write: str, place: slice) -> None:
    scope: dict[str, Any] = {"place": place}
    exec(f"def program(items):\n    made = None\n    {write}\n    return made, items", scope)
    eager, compiled = both(scope["program"], lambda: ([1, 2, 3],))
    assert_same(compiled, eager)


class Logged:
    """Its hash is the hash of its size; it records each equality test."""

    asked: list[Any] = []

    def __init__(self, size: Any = None) -> None:
        self.size = size

    def __eq__(self, other: object) -> bool:
        Logged.asked.append("eq")
        return isinstance(other, Logged) and self.size == other.size

    def __hash__(self) -> int:
        return hash(self.size)


@pytest.mark.parametrize("sizes", [(1, 2), (1, 1), (None, None)], ids=str)
@pytest.mark.parametrize(
    "program",
    [
        lambda p, k, x: {p: 5}.get((pycompiler.graph_break(), Logged(k))[1], 7) + x,
        lambda p, k, x: x + len({ob: pycompiler.graph_break() for ob in [p, Logged(k)]}),
        lambda p, k, x: x + {Logged(k): 3, p: 4}[(pycompiler.graph_break(), p)[1]],
        lambda p, k, x: [x + v for v in {p: 1, Logged(k): (pycompiler.graph_break(), 2)[1]}.values()],
    ],
    ids=["get", "comprehension", "subscript", "values"],
)
def test_keys_of_a_dict_across_a_break_are_asked_what_eager_asks(
    program: Callable[..., Any], sizes: tuple[Any, Any]
) -> None:
    """Guards on the dict must not compare its keys with the compile's keys (one `__eq__` per tried entry)."""
    compiled = pycompiler.compile(program, backend="eager")
    p = Logged(sizes[0])

    def asked(call: Callable[..., Any]) -> tuple[Any, list[Any]]:
        Logged.asked = []
        result = call(p, sizes[1], torch.ones(()))
        return str(result), Logged.asked

    wanted = asked(program)
    assert [asked(compiled) for _ in range(5)] == [wanted] * 5


def test_what_a_cached_function_keeps_ends_with_the_table() -> None:
    """A guard must not hold an argument without weak reference support: it must end when the table drops it."""
    ended: list[str] = []

    class Slotted:
        __slots__ = ()

        def __del__(self) -> None:
            ended.append("end")

    @functools.lru_cache(maxsize=2)
    def kept(t: torch.Tensor, *, o: Any = None) -> torch.Tensor:
        return t

    def program(x: torch.Tensor) -> torch.Tensor:
        return kept(kept(x), o=Slotted()) + 1

    x, seen = torch.ones(2), []
    for call in (program, pycompiler.compile(program, backend="eager")):
        kept.cache_clear()
        ended.clear()
        counts = []
        for _ in range(4):
            assert call(x).tolist() == [2.0, 2.0]
            counts.append((len(ended), kept.cache_info()))
        seen.append(counts)
    assert seen[0] == seen[1]


class Restarting:
    """An iterator that restarts at each `iter()`, and counts these calls."""

    def __init__(self) -> None:
        self.at, self.asked = 0, 0

    def __iter__(self) -> Restarting:
        self.at = 0
        self.asked += 1
        return self

    def __next__(self) -> int:
        if self.at > 2:
            raise StopIteration
        self.at += 1
        return self.at


@pytest.mark.parametrize(
    "make",
    [
        lambda o: zip(o, [1, 2, 3, 4]),
        lambda o: map(lambda v: (v, 1), o),
        lambda o: enumerate(o),
        lambda o: ((v, 2) for v in filter(None, o)),
        lambda o: zip(itertools.islice(o, 3), itertools.count()),
        lambda o: zip(itertools.chain(o, [7]), itertools.repeat(2)),
        lambda o: itertools.zip_longest(o, [1], fillvalue=0),
        lambda o: itertools.pairwise(o),
        lambda o: zip(itertools.accumulate(o), [1, 2, 3]),
        lambda o: zip(itertools.takewhile(lambda v: v < 3, o), [1, 2, 3]),
        lambda o: zip(itertools.dropwhile(lambda v: v < 2, o), [1, 2, 3]),
    ],
    ids=[
        "zip",
        "map",
        "enumerate",
        "filter",
        "islice",
        "chain",
        "zip_longest",
        "pairwise",
        "accumulate",
        "takewhile",
        "dropwhile",
    ],
)
@pytest.mark.parametrize("steps", [0, 1])
def test_an_object_is_asked_for_its_iterator_once(make: Callable[[Any], Any], steps: int) -> None:
    """Neither capture nor an iterator rebuilt after a graph break may call `iter()` on the object again (it would
    restart)."""

    def program(o: Restarting, x: torch.Tensor) -> Any:
        rows = make(o)
        for _ in range(steps):
            x = x + next(rows)[0]
        pycompiler.graph_break()
        for a, b in rows:
            x = x * 2 + a * b
        return x, o.asked, o.at

    eager, compiled = both(program, lambda: (Restarting(), torch.ones(2)))
    assert str(eager) == str(compiled)


class _Nowhere:
    """An object that refuses the operators of others and has none of its own."""

    def __divmod__(self, other: Any) -> Any:
        return NotImplemented


class _Reflected:
    def __rdivmod__(self, other: Any) -> str:
        return "reflected"


OF_C = {
    "minus": lambda d: -d,
    "plus": lambda d: +d,
    "not": lambda d: ~d,
    "abs": lambda d: abs(d),
    "divmod": lambda d: divmod(d, d),
}


@pytest.mark.parametrize("kind", OF_C)
@pytest.mark.parametrize(
    "make", [lambda: decimal.Decimal("1.5"), lambda: datetime.timedelta(3), object, lambda: array.array("i")]
)
def test_operators_of_classes_that_only_c_knows(kind: str, make: Callable[[], Any]) -> None:
    """The graph breaks: capture must not apply these operators to operands without them."""

    def program(d: Any) -> Any:
        try:
            return OF_C[kind](d)
        except (TypeError, ArithmeticError) as e:
            return type(e), str(e)

    eager, compiled = both(program, lambda: (make(),))
    assert_same(compiled, eager)


def test_divmod_asks_the_other_side() -> None:
    eager, compiled = both(lambda: divmod(_Nowhere(), _Reflected()), tuple)
    assert_same(compiled, eager)


@pytest.mark.parametrize("value", [{}.keys(), {}.items(), bytearray(), array.array("i"), {}, collections.deque()])
def test_what_has_no_hash_says_so_in_the_program(value: Any) -> None:
    def program(v: Any) -> Any:
        try:
            return {v}, {v: 1}
        except TypeError as e:
            return str(e)

    eager, compiled = both(program, lambda: (value,))
    assert_same(compiled, eager)


@pytest.mark.parametrize(
    "call",
    [
        lambda: iter([], 3), lambda: operator.attrgetter("a", 3), lambda: itertools.count("a"), lambda: frozenset([1], 2),
        lambda: map(len), lambda: types.MethodType(3, 4), lambda: operator.methodcaller(3), lambda: operator.concat(1, 2),
        lambda: list.__new__(dict), lambda: enum.unique(bogus=1), lambda: vars(enum, 2), lambda: staticmethod(1, 2),
    ],
)  # fmt: skip
def test_wrong_arguments_are_told_in_the_program(call: Callable[[], Any]) -> None:
    """The error must occur at the call, inside the program's handlers, not where the result leaves the graph."""

    def program() -> Any:
        try:
            return call()
        except TypeError as e:
            return str(e)

    eager, compiled = both(program, tuple)
    assert_same(compiled, eager)


def test_tensors_of_no_size() -> None:
    def program() -> Any:
        return torch.Tensor().shape, torch.LongTensor().shape, torch.Tensor(torch.Size([])).shape, torch.Tensor(2).shape

    assert pycompiler.compile(program, backend="eager")() == program()


def test_sums_of_floats_are_those_of_this_python() -> None:
    """Quirk of CPython 3.12: sums of floats are compensated; also if the numbers differ in each call."""

    def program(x: Any, a: float, b: float) -> Any:
        return x * sum([a, b, a]), sum((a, b, -a, a, x)), sum([b, a], 0.5), sum([1, 2], b)

    compiled = pycompiler.compile(program, backend="eager")
    x = torch.ones(1, dtype=torch.float64)
    for k in range(5):
        assert str(compiled(x, 0.1 + k, 1e16 - k)) == str(program(x, 0.1 + k, 1e16 - k))


class Sized:
    def __init__(self, size: Any) -> None:
        self.size = size

    def __repr__(self) -> Any:
        return self.size


def test_handlers_do_not_see_how_a_capture_begins_anew() -> None:
    """A size that becomes a symbol inside a C call restarts the capture: `RestartWithSymbols` must not reach the
    program."""

    def program(p: Any) -> Any:
        try:
            return "%s" % p
        except Exception as e:
            return repr(e)

    compiled = pycompiler.compile(program, backend="eager")
    for size in (1, 1, 2, 3, "ab", 4.5):
        assert compiled(Sized(size)) == program(Sized(size))


def test_what_a_function_that_names_itself_closes_over_ends_with_the_frame() -> None:
    """After the first call, capture must not hold the variable's value at the break, in a cycle through the function."""
    told: list[int] = []

    class Ended:
        def __del__(self) -> None:
            told.append(1)

    def program() -> int:
        for a in [Ended(), None]:

            def again() -> Any:
                return a, again

        return len(told)

    compiled = pycompiler.compile(program, backend="eager")
    gc.disable()
    try:
        for run in (program, compiled, compiled):
            told.clear()
            assert (run(), len(told)) == (1, 1)
    finally:
        gc.enable()


def test_a_function_of_autograds_without_tensors() -> None:
    """Such a Function is no node of the graph; code that revisits graph bodies must not expect one."""

    class Named(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, cls: type, k: Any) -> Any:
            return k, cls.__name__

    def program(x: torch.Tensor) -> Any:
        return Named.apply(dict, len), Named.apply(list, 3), x + 1

    eager, compiled = both(program, lambda: (torch.ones(2),))
    assert str(eager) == str(compiled)


def test_a_transform_that_records_nothing_in_another_body() -> None:
    def program(x: torch.Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(lambda t: torch.vmap(lambda u: u)(t), x, use_reentrant=False)

    assert torch.equal(pycompiler.compile(program, backend="eager", fullgraph=True)(torch.ones(2)), torch.ones(2))
