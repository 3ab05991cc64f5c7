"""Dropped generators: they end at their last reference, in order with other side effects; errors for empty variables."""

from __future__ import annotations

import contextlib
import os

import pytest
import torch

import pycompiler


def brk(value):
    pycompiler.graph_break()
    return value


def counting(log, n=3, broken=False):
    try:
        for i in range(n):
            yield i
    finally:
        if broken:
            pycompiler.graph_break()
        log.append("closed")


@contextlib.contextmanager
def entered(log):
    log.append("in")
    try:
        yield
    finally:
        log.append("out")


def first(iterator, log):
    value = next(iterator)
    iterator = None
    log.append("first")
    return value


def left_by_break(x, log):
    for i in counting(log):
        if i == 1:
            break
    log.append("after")
    return x + i


def left_by_return(x, log):
    with entered(log):
        for i in counting(log):
            return x + i


def left_by_an_exception(x, log):
    with contextlib.suppress(ValueError), entered(log):
        for _ in counting(log):
            raise ValueError
    return x


def left_by_an_exception_of_a_callee(x, log):
    def callee():
        for _ in counting(log):
            raise ValueError

    try:
        callee()
    except ValueError:
        log.append("caught")
    return x


def held_by_a_traceback(x, log):
    def callee():
        held = counting(log)
        next(held)
        raise ValueError

    try:
        callee()
    except ValueError:
        log.append("caught")
    log.append("after")
    return x


def of_a_variable(x, log):
    g = counting(log)
    next(g)
    g = None
    log.append("rebound")
    h = counting(log)
    next(h)
    del h
    log.append("deleted")
    k = counting(log)
    next(k)
    log.append("returns")
    return x


def of_a_callee(x, log):
    def callee():
        g = counting(log)
        next(g)
        log.append("in callee")

    callee()
    log.append(first(counting(log), log))
    return x


def inside_of_others(x, log):
    def delegating():
        yield from counting(log)

    for _ in zip((1, 2, 3), enumerate(delegating())):
        pass
    log.append("zip")
    for _ in delegating():
        break
    log.append("delegated")
    log.append(any(counting(log)))
    log.append(1 in counting(log))
    return x


def breaks_when_it_ends(x, log):
    for _ in counting(log, broken=True):
        break
    log.append("after")
    return x


def raises_when_it_ends(x, log):
    def refusing():
        try:
            yield 1
        except GeneratorExit:
            log.append("refused")

    for _ in refusing():
        break
    log.append("after")
    return x


def over_a_break(x, log):
    with contextlib.suppress(ZeroDivisionError), entered(log):
        for i in counting(log):
            log.append(brk(i))
            log.append(3 // (1 - i))
    return x


def zipped_over_a_break(x, log):
    with contextlib.suppress(NameError), entered(log):
        for i, _ in zip((1, brk(2), 3), counting(log)):
            log.append(i)
            if i == 2:
                del i
                log.append(i)
    for i, _ in zip((1, brk(2), 3), counting(log)):
        if i == 2:
            break
    log.append("after")
    return x


def variables_over_breaks(x, log):
    g, h, k = counting(log), counting(log), zip(counting(log), (1, 2))
    log.append((next(g), next(h), next(k)))
    brk(1)
    log.append("broken")
    g = None
    log.append("rebound")
    brk(1)
    del h
    log.append("deleted")
    brk(1)
    log.append("returns")
    return x


def nested_over_breaks(x, log):
    def callee(n):
        for i in counting(log):
            if brk(i) == n:
                return i

    log.append(callee(1) + callee(0))
    for i in zip(counting(log), (brk(v) for v in (5, 6, 7))):
        log.append(i)
        for j in counting(log):
            try:
                if brk(j):
                    break
            finally:
                log.append("inner")
        if i[0]:
            return x


DROPS = [left_by_break, left_by_return, left_by_an_exception, left_by_an_exception_of_a_callee, held_by_a_traceback,
         of_a_variable, of_a_callee, inside_of_others, breaks_when_it_ends, raises_when_it_ends, over_a_break,
         zipped_over_a_break, variables_over_breaks, nested_over_breaks]  # fmt: skip


@pytest.mark.parametrize("program", DROPS)
def test_a_dropped_generator_ends_at_once(program):
    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(2):
        wanted, found = [], []
        assert torch.equal(program(torch.ones(2), wanted), compiled(torch.ones(2), found))
        assert found == wanted


@pytest.mark.parametrize("program", DROPS[:8])
def test_such_a_generator_does_not_break_the_graph(program):
    log = []
    assert pycompiler.explain(program)(torch.ones(2), log).graph_break_count == 0
    assert "closed" in log


def local_cell(x, log):
    def reads():
        return value

    with entered(log):
        brk(1)
        return x + value
    value = 1


def local_cell_in_a_with(x, log):
    with contextlib.suppress(KeyError):
        return x + sum(v + late for v in () if v > (late := 3)) + late


def deleted_twice(x, log):
    i = brk(2)
    for k in (1, 2):
        log.append([k + i for _ in (1,)])
        log.append(max(k * i for _ in (1,)))
        del i
    return x


def free_cell(x, log):
    def reads():
        brk(1)
        return x + value

    if not log:
        return reads()
    value = 1


def free_cell_caught(x, log):
    def reads():
        brk(1)
        try:
            return x + value
        except NameError as error:
            log.append((type(error).__name__, str(error)))
            raise

    if log is None:
        value = 1
    return reads()


@pytest.mark.parametrize("program", [local_cell, local_cell_in_a_with, deleted_twice, free_cell, free_cell_caught])
def test_an_empty_cell_is_a_local_or_a_free_variable(program):
    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(2):
        told = []
        for fn in (program, compiled):
            log = []
            with pytest.raises(NameError) as caught:
                fn(torch.ones(2), log)
            told.append((type(caught.value), str(caught.value), log))
        assert told[0] == told[1]


def test_a_with_statement_keeps_what_it_entered() -> None:
    """`__exit__` stays on the stack and keeps the manager alive after the result of `__enter__` is popped."""

    def program(x: torch.Tensor) -> torch.Tensor:
        with open(os.devnull):
            y = x.sin()
        return y + 1

    explained = pycompiler.explain(program)(torch.ones(2))
    assert explained.graph_count >= 1
    assert not any("dropped" in b.reason for b in explained.break_reasons)
    assert torch.equal(pycompiler.compile(program)(torch.ones(2)), program(torch.ones(2)))
