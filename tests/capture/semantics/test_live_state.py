"""Live state that changes while the program runs: iterators over dicts, attributes of C objects, class patterns."""

from __future__ import annotations

import collections
import sys
import threading
import types
import weakref

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same_calls


def both(program, make, **options):
    """Compare the result (or error) and the final argument, eager and compiled, twice."""
    compiled = pycompiler.compile(program, backend="eager", **options)
    assert_same_calls(compiled, program, lambda: (torch.zeros(1), make()), exact=True)
    return compiled


def with_a_hole():
    table = {"z": 0, "a": 1, "b": 2, "c": 3}
    del table["z"]
    return table


def keys_over_a_write(x, table):
    it = iter(table)
    next(it)
    pycompiler.graph_break()
    table["b"] = 5
    y = x + 1
    pycompiler.graph_break()
    return y, list(it)


def items_over_a_deletion_of_the_last(x, table):
    it = iter(table.items())
    next(it)
    pycompiler.graph_break()
    del table["c"]
    table["c"] = 4
    table["a"] = 7
    y = x + 1
    pycompiler.graph_break()
    return y, list(it)


def values_of_now(x, table):
    values, items, keys = iter(table.values()), iter(table.items()), iter(table)
    table["a"], table["b"] = 7, 8
    return x + next(values) + next(items)[1], next(keys)


def values_that_the_loop_writes(x, table):
    for key, value in table.items():
        table["c"] = value + 10
        x = x + value
        table[key] = 0
    return x


def grown(x, table):
    for value in table.values():
        table["new"] = value
    return x


def grown_at_its_end(x, table):
    for key in table.keys():
        if key == "c":
            table["new"] = 1
    return x


def grown_before_a_break(x, table):
    made = {"a": 1}
    for value in made.values():
        made["new"] = value
        x = x + 1
        if value == 1:
            pycompiler.graph_break()
    return x


def grown_before_its_first_step(x, table):
    keys = iter(table)
    table["new"] = 1
    return x, next(keys)


def other_keys_of_the_same_size(x, table):
    seen = []
    for key in table:
        if key == "a":
            table["b"] = table.pop("b")
        seen.append(key)
    return x, seen


def other_keys_before_a_break(x, table):
    made, seen = {"a": 1, "b": 2}, []
    for key, value in made.items():
        if key == "a":
            del made["a"]
            made["d"] = 4
            pycompiler.graph_break()
        seen.append((key, value))
    return x, seen


@pytest.mark.parametrize(
    "program",
    [keys_over_a_write, items_over_a_deletion_of_the_last, values_of_now, values_that_the_loop_writes, grown,
     grown_at_its_end, grown_before_a_break, grown_before_its_first_step, other_keys_of_the_same_size,
     other_keys_before_a_break],
)  # fmt: skip
def test_iterators_over_dicts_are_live(program):
    both(program, with_a_hole)


class Plain:
    a = 1


PLAIN = Plain()


def local_with_a():
    made = threading.local()
    made.a = 1
    return made


@pytest.mark.parametrize("make", [lambda: types.SimpleNamespace(a=1), local_with_a, lambda: weakref.proxy(PLAIN)])
def test_attributes_of_c_objects(make):
    def program(x, o):
        return x + getattr(o, "a", 7), hasattr(o, "a"), hasattr(o, "zz"), getattr(o, "zz", 5)

    compiled = pycompiler.compile(program, backend="eager")
    given = make()
    wanted = program(torch.zeros(1), given)
    assert repr(compiled(torch.zeros(1), given)) == repr(wanted) == "(tensor([1.]), True, False, 5)"


def test_an_attribute_that_appears_on_a_namespace():
    def program(x, o):
        return x + getattr(o, "a", 7)

    compiled, given = pycompiler.compile(program, backend="eager"), types.SimpleNamespace()
    assert compiled(torch.zeros(1), given).item() == 7
    given.a = 2
    assert compiled(torch.zeros(1), given).item() == 2


def test_match_args_that_change():
    class Pair:
        __match_args__: tuple[str, ...] = ("left", "right")

        def __init__(self):
            self.left, self.right = 1, 2

    def program(x, pair):
        match pair:
            case Pair(a, b):
                return x + 10 * a + b
        return x

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    assert compiled(torch.zeros(1), Pair()).item() == 12
    Pair.__match_args__ = ("right", "left")
    assert compiled(torch.zeros(1), Pair()).item() == 21
    del Pair.__match_args__
    with pytest.raises(TypeError, match="accepts 0 positional"):
        pycompiler.compile(program, backend="eager")(torch.zeros(1), Pair())


def dict_grown_before_its_loop(x, table):
    table["new"] = 1
    seen = []
    for key in table:
        pycompiler.graph_break()
        seen.append(key)
    return seen


def list_grown_before_its_loop(x, items):
    items.append(5)
    items.append(6)
    seen = []
    for item in items:
        seen.append(item)
        if item == 6:
            pycompiler.graph_break()
        if len(seen) > 9:
            break
    return seen


def list_grown_before_its_loop_backwards(x, items):
    items.append(5)
    seen = []
    for item in reversed(items):
        seen.append(item)
        pycompiler.graph_break()
        seen.append(item)
    return seen


def list_changed_in_its_loop_backwards(x, items):
    seen = []
    for item in reversed(items):
        if item == 1:
            items[:] = [8, 9]
            items.append(7)
        if item == 9:
            items.clear()
            pycompiler.graph_break()
            items.append(6)
        seen.append(item)
    return seen


@pytest.mark.parametrize(
    ("program", "make"),
    [
        (list_grown_before_its_loop_backwards, lambda: [3, 1]),
        (list_changed_in_its_loop_backwards, lambda: [3, 2, 1]),
        (dict_grown_before_its_loop, dict),
        (dict_grown_before_its_loop, with_a_hole),
        (list_grown_before_its_loop, lambda: [3, 1]),
        (list_grown_before_its_loop, lambda: collections.deque([3, 1])),
    ],
)
def test_an_iterator_over_what_was_written_before_it_was_made(program, make):
    both(program, make)


def handled_around(x):
    return x + 1, sys.exc_info()[0], type(sys.exception())


def raised_again(x):
    y = x + 1
    if y.shape[0]:
        raise
    return y


def test_what_the_caller_handles_is_seen():
    compiled, again = pycompiler.compile(handled_around, backend="eager"), pycompiler.compile(raised_again)
    x = torch.zeros(1)
    assert compiled(x)[1:] == handled_around(x)[1:]
    try:
        raise KeyError("mine")
    except KeyError:
        assert compiled(x)[1:] == (KeyError, KeyError)
        with pytest.raises(KeyError, match="mine"):
            again(x)
    with pytest.raises(RuntimeError, match="No active exception"):
        again(x)


def reversed_after_growth(x, items):
    items.append(5)
    out = []
    for k in reversed(items):
        pycompiler.graph_break()
        out.append(k)
    return x + 1, out


def reversed_and_not_begun(x, items):
    items += [5, 6]
    back = reversed(items)
    pycompiler.graph_break()
    return x + 1, list(back)


def reversed_then_grown(x, items):
    own = [1, 2, 3]
    back = reversed(own)
    own.append(4)
    own[1] = 7
    out = [next(back)]
    pycompiler.graph_break()
    return x + 1, out, next(back), next(back), next(back, None)


def reversed_over_writes(x, items):
    out = []
    for k in reversed(items):
        items[0] = 9
        out.append(k)
    back = reversed(items)
    out.append(next(back))
    items.clear()
    return x + 1, out, list(back)


def reversed_others(x, items):
    backs = reversed(tuple(items)), reversed(range(4)), reversed({1: 2, 3: 4}), reversed(collections.deque(items))
    out = [next(back) for back in backs]
    pycompiler.graph_break()
    return x + 1, out, [list(back) for back in backs]


@pytest.mark.parametrize(
    "program",
    [reversed_after_growth, reversed_and_not_begun, reversed_then_grown, reversed_over_writes, reversed_others],
)
def test_a_list_backwards_goes_on_where_it_stood(program):
    both(program, lambda: [3, 1, 4])


def cells_of_each_other(x, _):
    z = x
    x = z + 1

    def outer(v):
        pycompiler.graph_break()
        return v

    first = sum([outer(z) for _ in (1, 2)])
    return x, z, first, sum([outer(x) for _ in (1, 2)])


def a_local_of_a_cell(x, _):
    before = x
    inner = lambda: x  # noqa: E731
    x = x + 1
    pycompiler.graph_break()
    return before, inner()


def a_cell_emptied_twice(x, _):
    j = 1
    inner = lambda: j  # noqa: E731
    for _ in (1, 2):
        pycompiler.graph_break()
        try:
            del j
        except UnboundLocalError:
            return x + 1, "empty", inner
    return x + 1, inner


@pytest.mark.parametrize("program", [cells_of_each_other, a_local_of_a_cell])
def test_cells_are_read_before_they_get_new_contents(program):
    both(program, lambda: None)


def test_a_cell_is_emptied_once():
    compiled = pycompiler.compile(a_cell_emptied_twice, backend="eager")
    for _ in range(2):
        assert compiled(torch.zeros(1), None)[1] == "empty"


class Ends:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("end")


def emptied(x, log, held):
    held.clear()
    log.append("cleared")
    return x + 1


def emptied_after_a_break(x, log, held):
    y = x + 1
    pycompiler.graph_break()
    del held[0]
    log.append("cleared")
    log += [len(held)]
    return y


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", [emptied, emptied_after_a_break])
def test_what_a_finalizer_appends_stays(program, backend):
    """A replay of the list must keep the finalizer's element: the captured contents must not overwrite it."""

    def seen(fn):
        log = ["before"]
        fn(torch.zeros(1), log, [Ends(log)])
        return log

    compiled = pycompiler.compile(program, backend=backend)
    for _ in range(2):
        assert seen(compiled) == seen(program)
