"""Programs whose state outlives the calls: each call leaves eager's state for any argument, with few compiles."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture.outliving import Kept, Program, Same, compiles_over

import pycompiler
from tests.harness.compare import assert_same


def compiles(fn: Program, make: Callable[[], Any], calls: list[tuple[Any, ...]], backend: str = "eager") -> int:
    """The number of compiles of `fn(x, kept, *call)` over these calls."""
    return compiles_over(fn, make, calls, lambda i, kept, call: (torch.arange(3.0) + i, kept, *call), backend)


class Renamed(str):
    """A string that is equal to every value."""

    def __hash__(self) -> int:
        return hash("a")

    def __eq__(self, other: object) -> bool:
        return True

    def __format__(self, spec: str) -> str:
        return "formatted"


class Number(int):
    def __str__(self) -> str:
        return "a number"

    __repr__ = __format__ = lambda self, *args: "a number"  # type: ignore[assignment]


NAMES: list[Any] = ["a", "b", "c", "a", "d", "e", "b", "f", "a", "g", "c", "h"]
COUNTS: list[Any] = [0, 1, 2, 3, 5, 2, 7, 11, 3, 0, 4, 9]
FLOATS: list[Any] = [5.0, 4.0, 4.5, 3.0, 7.0, 2.0, 2.5, 1.0, 0.5, 0.25, 9.0, 0.125]
ODD: list[Any] = [
    "a", 1, True, 1.0, -0.0, 0, False, None, 2**63, 2**70, -(2**63), -1, math.nan, math.inf, "b", "a", Renamed("z"), Renamed("a"),
    Number(1), Same("a"), Same(1), "c", (1, "a"), torch.float32, -2, 7, 8, "1", 3, 4, "",
]  # fmt: skip


def numbered(values: list[Any]) -> list[tuple[Any, ...]]:
    return [(v, i) for i, v in enumerate(values)]


# keys -------------------------------------------------------------------------------------------------------------
def gets(x: Any, table: Any, k: Any, i: int) -> Any:
    table[k] = table.get(k, 0) + 1
    return x * 2


def gets_twice(x: Any, table: Any, k: Any, i: int) -> Any:
    table[k] = table.get(k, 0) + i
    table["a"] = table.get("a", 0) + 1
    return x * 2, table.get(k), "b" in table


def asks_and_adds(x: Any, table: Any, k: Any, i: int) -> Any:
    if k in table:
        table[k] += i
    else:
        table[k] = i
    return x * 2, len(table)


def asks_twice(x: Any, table: Any, k: Any, i: int) -> Any:
    before = k in table
    if k not in table:
        table[k] = 0
    table[k] += 1
    return x * 2, before, k in table


def handles(x: Any, table: Any, k: Any, i: int) -> Any:
    try:
        table[k] += 1
    except KeyError:
        table[k] = 1
    return x * 2


def takes_out(x: Any, table: Any, k: Any, i: int) -> Any:
    last = table.pop(k, None)
    if i % 3:
        table[k] = i
    return x * 2, last, list(table) if i % 5 == 4 else None


def deletes(x: Any, table: Any, k: Any, i: int) -> Any:
    if k in table:
        del table[k]
        return x
    table[k] = i
    return x * 2


def sets_default(x: Any, table: Any, k: Any, i: int) -> Any:
    return x * 2, table.setdefault(k, i)


def lists(x: Any, table: Any, k: Any, i: int) -> Any:
    table.setdefault(k, []).append(i)
    table.setdefault(k, []).append(x.sum())
    return x * 2


def remembers(x: Any, table: Any, k: Any, i: int) -> Any:
    if k not in table:
        table[k] = x + 1
    return table[k] * x


def two_keys(x: Any, table: Any, k: Any, i: int) -> Any:
    other = f"{k}!"
    table[other] = table.get(k, 0) + 1
    table[k] = table.get(other, 0) + 1
    return x * 2


def looks_at_all(x: Any, table: Any, k: Any, i: int) -> Any:
    table[k] = table.get(k, 0) + 1
    return x * 2, list(table.items()), len(table), bool(table)


KEYED = [
    gets, gets_twice, asks_and_adds, asks_twice, handles, takes_out, deletes, sets_default, lists, remembers, two_keys,
    looks_at_all,
]  # fmt: skip
TABLES: dict[str, Callable[[], Any]] = {
    "empty": dict,
    "dict": lambda: {"a": 1, "b": 5, 1: 1, 2: 2, "z": 0},
    "defaultdict": lambda: collections.defaultdict(int, {"a": 2}),
    "OrderedDict": lambda: collections.OrderedDict(a=1, z=2, b=3),
    "Counter": lambda: collections.Counter({"a": 1, 3: 2}),
    "own keys": lambda: {Same("a"): 1, "z": 2, Same(3): 4},
}


@pytest.mark.parametrize("values", [NAMES, COUNTS, ODD, ODD[::-1]], ids=["names", "counts", "odd", "odd backwards"])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("fn", KEYED)
def test_keys_are_those_of_each_call(fn: Program, table: str, values: list[Any]) -> None:
    compiles(fn, TABLES[table], numbered(values))


MOST = {gets_twice: 8, takes_out: 8}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("table", ["empty", "dict"])
@pytest.mark.parametrize("fn", [fn for fn in KEYED if fn is not looks_at_all])
def test_a_key_compiles_once_for_each_outcome(fn: Program, table: str, backend: str) -> None:
    assert compiles(fn, TABLES[table], numbered(NAMES), backend) <= MOST.get(fn, 6)


def test_lists_of_a_defaultdict() -> None:
    def program(x: Any, table: Any, k: Any, i: int) -> Any:
        table[k].append(x.sum())
        table["all"].append(i)
        return x * 2

    def make() -> Any:
        return collections.defaultdict(list)

    for backend in ("eager", "native"):
        assert compiles(program, make, numbered(NAMES), backend) <= 5
    compiles(program, make, numbered(ODD))


def test_one_list_under_two_keys() -> None:
    def program(x: Any, table: Any, k: Any, other: Any) -> Any:
        table[k].append(1)
        table[other].append(2)
        table["b"].append(3)
        return x * len(table[k])

    def make() -> Any:
        shared: list[Any] = []
        return {"a": shared, "b": [], "c": shared, "d": [7]}

    compiled = pycompiler.compile(program, backend="eager")
    ours, theirs = make(), make()
    for k, other in [("a", "b"), ("a", "c"), ("d", "a"), ("a", "a"), ("b", "d"), ("c", "a"), ("b", "b")]:
        assert torch.equal(compiled(torch.ones(2), ours, k, other), program(torch.ones(2), theirs, k, other))
        assert ours == theirs


def test_keys_of_an_object_and_its_attributes() -> None:
    """The key is read when the frame starts, and the dict may be the object's own attribute dict."""

    def program(x: Any, kept: Any, k: Any, i: int) -> Any:
        before = kept.table.get(kept.name, 0)
        kept.table[kept.name] = before + 1
        kept.name = k
        after = kept.table.get(kept.name, 0)
        kept.table[kept.name] = after + 10
        return x * 2, before, after

    compiles(program, lambda: Kept(table={}, name="begin"), numbered(NAMES))

    def of_itself(x: Any, kept: Any, k: Any, i: int) -> Any:
        vars(kept)[k] = vars(kept).get(k, 0) + 1
        return x * kept.a, kept.a

    compiles(of_itself, lambda: Kept(a=1, b=2), numbered(NAMES))

    def given_its_own(x: Any, kept: Any, table: Any, k: Any) -> Any:
        table[k] = table.get(k, 0) + 1
        return x * kept.a

    compiled = pycompiler.compile(given_its_own, backend="eager")
    for k in ("b", "a", "c", "a"):
        for shared in (False, True):
            results = []
            for run in (compiled, given_its_own):
                kept = Kept(a=1)
                table = vars(kept) if shared else {}
                results.append((run(torch.ones(2), kept, table, k), kept, table))
            assert_same(*results, exact=True)


def test_tuples_of_what_changes_are_constants() -> None:
    def program(x: Any, table: Any, k: Any, i: int) -> Any:
        table["loss", i % 3] = x.sum()
        table["loss", 1] = k
        table[k] = table.get(k, 0) + 1
        return x * 2, ("loss", i % 3) in table, table.get(torch.float32), int in table

    compiles(program, dict, numbered(NAMES))
    assert pycompiler.explain(program)(torch.ones(2), {}, "a", 2).graph_break_count == 0


def test_what_a_key_that_changes_drops() -> None:
    ended: list[int] = []

    class Loud:
        def __init__(self, n: int) -> None:
            self.n = n

        def __del__(self) -> None:
            ended.append(self.n)

    def program(x: Any, table: Any, k: str) -> Any:
        if k in table:
            table[k] = 1
        return x * 2, len(ended), table.pop("c", None) is None

    compiled = pycompiler.compile(program, backend="eager")
    for run in (program, compiled):
        ended.clear()
        table: dict[str, Any] = {"a": Loud(1), "b": 2, "c": Loud(3), "d": Loud(4)}
        assert [run(torch.ones(1), table, k)[1:] for k in ("b", "a", "c", "d", "a", "b")] == [
            (0, False), (2, True), (2, True), (3, True), (3, True), (3, True)
        ]  # fmt: skip
    assert ended == [3, 1, 4]


# sets -------------------------------------------------------------------------------------------------------------
def test_members_that_are_asked_for() -> None:
    def program(x: Any, seen: Any, k: Any, i: int) -> Any:
        if k in seen:
            return x * 3
        seen.add(k)
        return x * 2

    for backend in ("eager", "native"):
        assert compiles(program, set, numbered(NAMES), backend) <= 3
        assert compiles(program, set, numbered(COUNTS), backend) <= 6
    for values in (ODD, ODD[::-1]):
        compiles(program, set, numbered(values))
        compiles(program, lambda: {"a", 1, None}, numbered(values))

    def only_adds(x: Any, seen: Any, k: Any, i: int) -> Any:
        seen.add(k)
        seen.discard("c")
        return x * 2, k in seen if i % 4 == 3 else None

    compiles(only_adds, set, numbered(ODD))
    assert compiles(only_adds, set, numbered(NAMES)) <= 8


# comparisons ------------------------------------------------------------------------------------------------------
def keeps_the_best(x: Any, kept: Any, v: Any, i: int) -> Any:
    if v < kept.best:
        kept.best = v
    return x * 2


def stops_early(x: Any, kept: Any, v: Any, i: int) -> Any:
    if v < kept.best - 1e-4:
        kept.best, kept.bad = v, 0
    else:
        kept.bad += 1
        if kept.bad >= 3:
            return x * 3
    return x * kept.best


def compares_all(x: Any, kept: Any, v: Any, i: int) -> Any:
    told = (
        v == kept.best,
        v != kept.best,
        v <= kept.best,
        v >= kept.best,
        not v > kept.best,
        v * 2 < kept.best + 1,
        abs(v) < i,
    )
    kept.best = v
    return x * 2, told


def averages(x: Any, kept: Any, v: Any, i: int) -> Any:
    kept.bad += 1
    kept.best = 0.9 * kept.best + 0.1 * v
    return x * (3 if kept.best / kept.bad > 0.5 else 2)


NUMBERS: list[Any] = [
    math.nan, 1.0, -0.0, 0.0, 0, math.inf, -math.inf, 3, True, 2**53 + 1, float(2**53), 2**70, -1.5, 5e-324, 1e308, Number(2),
    math.nan, 2, 2.0, -7, -(2**63), 0.1, 0.3, 0.5, 1.25, -2.5,
]  # fmt: skip


@pytest.mark.parametrize(
    "values", [FLOATS, COUNTS, NUMBERS, NUMBERS[::-1]], ids=["floats", "ints", "odd", "odd backwards"]
)
@pytest.mark.parametrize("fn", [keeps_the_best, stops_early, compares_all, averages])
def test_comparisons_are_decided_in_each_call(fn: Program, values: list[Any]) -> None:
    for best in (100.0, 100, math.inf, math.nan, 0.0):
        compiles(fn, lambda best=best: Kept(best=best, bad=0), numbered(values))  # type: ignore[misc]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(("fn", "most"), [(keeps_the_best, 3), (stops_early, 4), (averages, 4)])
def test_a_comparison_of_floats_compiles_for_its_outcomes(fn: Program, most: int, backend: str) -> None:
    for best in (100.0, math.inf):
        assert compiles(fn, lambda best=best: Kept(best=best, bad=0), numbered(FLOATS), backend) <= most  # type: ignore[misc]


def test_what_was_decided_is_explained() -> None:
    compiled = pycompiler.compile(keeps_the_best, backend="eager")
    kept = Kept(best=100.0, bad=0)
    for i, v in enumerate((5.0, 4.0)):
        compiled(torch.ones(2), kept, v, i)
    reasons = "\n".join(map(str, compiled.explain_miss(torch.ones(2), kept, 6.0, 2)))
    assert "not lt(float0, float1)" in reasons or "float0" in reasons, reasons


# strings ----------------------------------------------------------------------------------------------------------
def logs(x: Any, kept: Any, v: Any, i: int) -> Any:
    kept.log[f"loss/{v}"] = x.sum()
    kept.name = f"step_{i}: {v!r:>5}"
    kept.lines.append("step %d of %s" % (i, "all"))
    kept.lines.append("step {} of {!s:<4}|".format(i, v))
    kept.lines.append(str(i) + "/" + str(v))
    return x * 2


def shows_a_number(x: Any, kept: Any, v: Any, i: int) -> Any:
    kept.lines.append(f"{v:.3f} {v:>9} {v}")
    kept.lines.append("%.2f|%5s|%r" % (v, i, v))
    kept.lines.append(format(v, "08.2f"))
    return x * 2, f"{v * 2 + i}"


def shows_a_text(x: Any, kept: Any, v: Any, i: int) -> Any:
    kept.lines.append(v)
    kept.lines.append(v.upper() + "/" + v.strip().replace("a", "b"))
    kept.name = f"{v:>4}{v!r}"
    return x * 2, v, f"{v}!"


def decides(x: Any, kept: Any, v: Any, i: int) -> Any:
    name = f"key {v}"
    kept.name = name
    if name == "key 3" or kept.name.endswith("b"):
        return x * 3
    return x * len(name)


def by_value(x: Any, kept: Any, v: Any, i: int) -> Any:
    try:
        kept.lines.append("%d %x" % (v, i))
        kept.lines.append(f"{i:c}{v:d}")
        kept.lines.append("{0[0]}{0.real}".format(v))
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        kept.lines.append(f"{type(error).__name__}: {error}")
    return x * 2


@pytest.mark.parametrize(
    "values", [NAMES, COUNTS, FLOATS, ODD, NUMBERS], ids=["names", "counts", "floats", "odd", "numbers"]
)
@pytest.mark.parametrize("fn", [logs, shows_a_number, shows_a_text, decides, by_value])
def test_texts_are_those_of_each_call(fn: Program, values: list[Any]) -> None:
    compiles(fn, lambda: Kept(log={}, name="", lines=[]), numbered(values))


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(
    ("fn", "values"), [(logs, COUNTS), (logs, NAMES), (shows_a_number, FLOATS), (shows_a_text, NAMES)]
)
def test_a_text_that_is_stored_compiles_once(fn: Program, values: list[Any], backend: str) -> None:
    assert compiles(fn, lambda: Kept(log={}, name="", lines=[]), numbered(values), backend) <= 4


def test_a_text_that_raises_for_some_numbers() -> None:
    def program(x: Any, kept: Any, v: Any, i: int) -> Any:
        try:
            kept.lines.append("%d|" % v)
            kept.lines.append("%d|%5.1f" % (v, v))
            kept.lines.append("{:d}".format(i) + f"{i:c}")
        except (OverflowError, ValueError) as error:
            kept.lines.append(str(error))
        return x * 2

    values = [1.5, 2.5, 3.5, math.inf, 4.5, math.nan, 7.5, -math.inf, 1e300]
    compiles(program, lambda: Kept(lines=[]), numbered(values))
    compiles(
        program,
        lambda: Kept(lines=[]),
        [(v, i) for v, i in zip(values, [5, 7, 9, -1, 2**40, 3, 2**31, 55, 66], strict=True)],
    )


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_texts_of_sizes_that_the_graph_changes(backend: str) -> None:
    def program(x: Any, lines: Any) -> Any:
        lines.append(f"{x.shape[0]}x{x.shape[1]}")
        x.t_()
        lines.append(f"{x.shape[0]}x{x.shape[1]} {x.stride(0)}")
        return x * 2, f"{x.shape}"

    compiled = pycompiler.compile(program, backend=backend)
    ours: list[Any] = []
    theirs: list[Any] = []
    for size in [(2, 3), (3, 4), (5, 4), (6, 7), (8, 2)]:
        got, wanted = compiled(torch.ones(size), ours), program(torch.ones(size), theirs)
        assert torch.equal(got[0], wanted[0]) and got[1] == wanted[1] and ours == theirs


def test_texts_of_variables_in_cells() -> None:
    def program(x: Any, kept: Any, k: Any, i: int) -> Any:
        def change() -> None:
            nonlocal k, i
            k, i = k + "!", i + 1

        first = f"{i}/{k}"
        change()
        second = f"{i}/{k}"
        kept.lines.append((first, second))
        return x * 2, first, second, lambda: (k, i)

    compiled = pycompiler.compile(program, backend="eager")
    ours, theirs = Kept(lines=[]), Kept(lines=[])
    for i, k in enumerate(NAMES):
        got, wanted = (run(torch.ones(2), kept, k, i) for run, kept in ((compiled, ours), (program, theirs)))
        assert got[1:3] == wanted[1:3] and got[3]() == wanted[3]() and ours.lines == theirs.lines


def test_texts_around_a_break_and_in_what_is_made() -> None:
    class Record:
        def __init__(self, name: str) -> None:
            self.name = name

    def program(x: Any, kept: Any, v: Any, i: int) -> Any:
        name = f"{v}/{i}"
        x = x * 2
        pycompiler.graph_break()
        kept.lines.append((name, f"{name}/{i}"))
        kept.name = name
        return x * 2

    def made(x: Any, kept: Any, v: Any, i: int) -> Any:
        record = Record(f"{v}/{i}")
        kept.name = record.name
        kept.lines.append((record.name, vars(record), getattr(kept, "name"), vars(kept)["name"]))
        return x * len(record.name)

    def make() -> Kept:
        return Kept(lines=[], name="")

    assert compiles(program, make, numbered(NAMES)) <= 6
    compiles(made, make, numbered(ODD))
    for values in (ODD, NUMBERS):
        compiles(program, make, numbered(values))


# lists and deques ---------------------------------------------------------------------------------------------------
def totals(x: Any, kept: Any, v: Any, i: int) -> Any:
    kept.rows.append(v)
    return x * sum(kept.rows), sum(kept.rows) / len(kept.rows)


def extremes(x: Any, kept: Any, v: Any, i: int) -> Any:
    kept.rows.append(v)
    kept.rows.insert(0, i)
    return x * 2, max(kept.rows), min(kept.rows)


def windows(x: Any, kept: Any, v: Any, i: int) -> Any:
    kept.rows.append(v)
    last = kept.rows[-3:]
    return x * 2, sum(last), len(last), max(kept.rows[-4:-1], default=0), kept.rows[:2]


def keeps_a_window(x: Any, kept: Any, v: Any, i: int) -> Any:
    kept.rows.append(v)
    if len(kept.rows) > 4:
        kept.rows.pop(0)
    return x * sum(kept.rows)


def bounded(x: Any, kept: Any, v: Any, i: int) -> Any:
    kept.queue.append(v)
    return x * 2, len(kept.queue), kept.queue[-1]


def bounded_sum(x: Any, kept: Any, v: Any, i: int) -> Any:
    kept.queue.append(v)
    kept.queue.append(i)
    return x * (sum(kept.queue) / len(kept.queue)), max(kept.queue)


def bounded_left(x: Any, kept: Any, v: Any, i: int) -> Any:
    kept.queue.appendleft(v)
    kept.queue.append(x.sum())
    kept.queue.appendleft(i)
    return x * 2, kept.queue[0]


def bounded_and_taken(x: Any, kept: Any, v: Any, i: int) -> Any:
    kept.queue.append(v)
    if len(kept.queue) > 2:
        first = kept.queue.popleft()
        kept.queue[-1] = first
    kept.queue.append(i)
    return x * 2


LISTED = [totals, extremes, windows, keeps_a_window, bounded, bounded_sum, bounded_left, bounded_and_taken]


@pytest.mark.parametrize(
    "values", [COUNTS, FLOATS, NUMBERS, NAMES, ODD], ids=["ints", "floats", "numbers", "names", "odd"]
)
@pytest.mark.parametrize(
    ("fn", "limit"), [*((f, None) for f in LISTED[:4]), *itertools.product(LISTED[4:], [None, 0, 1, 2, 4])]
)
def test_lists_and_queues_are_those_of_each_call(fn: Program, limit: int | None, values: list[Any]) -> None:
    compiles(fn, lambda: Kept(rows=[], queue=collections.deque(maxlen=limit)), numbered(values))
    filled: list[Any] = [1, 2.5, 0, 7]
    compiles(fn, lambda: Kept(rows=[*filled], queue=collections.deque(filled, maxlen=limit)), numbered(values))


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(("fn", "most"), [(totals, 4), (extremes, 6), (windows, 6), (bounded, 5), (bounded_sum, 5)])
def test_a_list_that_grows_is_summed_by_each_call(fn: Program, most: int, backend: str) -> None:
    assert compiles(fn, lambda: Kept(rows=[], queue=collections.deque(maxlen=5)), numbered(FLOATS), backend) <= most
    assert compiles(fn, lambda: Kept(rows=[], queue=collections.deque(maxlen=5)), numbered(COUNTS), backend) <= most + 3


def test_a_queue_of_tensors_compiles_for_room_and_for_none() -> None:
    def program(x: Any, kept: Any, v: Any, i: int) -> Any:
        kept.queue.append(x.sum())
        return x * kept.queue[-1]

    assert compiles(program, lambda: Kept(queue=collections.deque(maxlen=6)), numbered(FLOATS)) == 2


# hooks that stay registered across a graph break ----------------------------------------------------------------------
def linear() -> torch.nn.Linear:
    made = torch.nn.Linear(3, 3)
    torch.nn.init.constant_(made.weight, 0.5)
    torch.nn.init.constant_(made.bias, 0.25)
    return made


def removes(x: Any, kept: Any, v: Any, i: int) -> Any:
    seen: list[Any] = []
    handle = kept.module.register_forward_hook(lambda module, given, result: seen.append(result.sum()))
    y = kept.module(x)
    pycompiler.graph_break()
    y = kept.module(y)
    handle.remove()
    return y, len(seen), len(kept.module._forward_hooks)


def removes_two(x: Any, kept: Any, v: Any, i: int) -> Any:
    first = kept.module.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    second = kept.module.register_forward_hook(lambda module, given, result: result + 1, prepend=True)
    pycompiler.graph_break()
    y = kept.module(x)
    first.remove()
    y = kept.module(y)
    second.remove()
    return kept.module(y)


def with_keywords(x: Any, kept: Any, v: Any, i: int) -> Any:
    handle = kept.module.register_forward_hook(lambda module, given, keywords, result: result * 3, with_kwargs=True)
    other = kept.module.register_forward_hook(lambda module, given, result: result - 1)
    pycompiler.graph_break()
    y = kept.module(x)
    handle.remove()
    other.remove()
    return y


def keeps_the_handle(x: Any, kept: Any, v: Any, i: int) -> Any:
    if kept.handle is not None:
        kept.handle.remove()
    kept.handle = kept.module.register_forward_hook(lambda module, given, result: result * 2)
    pycompiler.graph_break()
    return kept.module(x), len(kept.module._forward_hooks)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", [removes, removes_two, with_keywords, keeps_the_handle])
def test_a_hook_that_is_held_over_a_break(fn: Program, backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend)
    ours, theirs = (Kept(module=linear(), handle=None) for _ in range(2))
    for i in range(12):
        x = torch.arange(3.0) + i
        assert_same(compiled(x, ours, 0, i), fn(x, theirs, 0, i), exact=True, what=f"call {i}")
        if i == 5:
            before = pycompiler.counters(compiled)["compiles"]
    assert pycompiler.counters(compiled)["compiles"] == before <= 16


def test_hooks_that_a_table_has_besides() -> None:
    """Hook ids are looked up in other tables, and by the owner of a handle."""

    def program(x: Any, kept: Any, v: Any, i: int) -> Any:
        handle = kept.module.register_forward_hook(lambda module, given, result: result + i, always_call=i % 2 == 0)
        pycompiler.graph_break()
        y = kept.module(x)
        told = handle.id in kept.module._forward_hooks, handle.id in kept.module._forward_hooks_always_called
        handle.remove()
        return y, told, list(kept.module._forward_hooks.values())

    compiled = pycompiler.compile(program, backend="eager")
    ours, theirs = (Kept(module=linear()) for _ in range(2))
    for i in range(10):
        x = torch.arange(3.0) + i
        assert_same(compiled(x, ours, 0, i), program(x, theirs, 0, i), exact=True, what=f"call {i}")


def test_counters() -> None:
    def program(x: Any, table: Any, k: Any, i: int) -> Any:
        table[k] += i
        table["a"] -= 1
        return x * 2, table[k]

    assert compiles(program, collections.Counter, numbered(NAMES)) <= 8
    assert compiles(program, lambda: collections.Counter({"a": 5, "q": 1}), numbered(NAMES), "native") <= 8
    compiles(program, collections.Counter, numbered(ODD))
