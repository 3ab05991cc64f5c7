"""`yield from`: the delegate receives exceptions and the close, and finds the outer generator running."""

import pytest
import torch

import pycompiler


class Delegate:
    """An iterator with all methods of a generator."""

    def __init__(self, log):
        self.log = log

    def __iter__(self):
        return self

    def __next__(self):
        self.log.append("next")
        return 1

    def send(self, value):
        self.log.append(("send", value))
        return value

    def throw(self, *given):
        self.log.append(("throw", *map(repr, given)))

    def close(self):
        self.log.append("close")


class Plain:
    def __init__(self, log):
        pass

    def __iter__(self):
        return self

    def __next__(self):
        return 1


class Ends(Delegate):
    def throw(self, *given):
        raise StopIteration(len(given))


class Refuses(Delegate):
    def close(self):
        raise KeyError("in close")


def thrown_into_delegates(x, cls):
    log = []

    def g():
        try:
            log.append(("result", (yield from cls(log))))
        except BaseException as e:
            log.append(repr(e))
            raise
        finally:
            log.append("finally")
        yield 9

    made = g()
    log.append(next(made))
    for ask in (lambda: made.throw(ValueError("v")), lambda: made.throw(ValueError), made.close, lambda: next(made)):
        try:
            log.append(ask())
        except BaseException as e:
            log.append(("out", repr(e)))
    return x + 1, log


def closed_delegates(x, cls):
    log = []

    def g():
        try:
            yield from cls(log)
        except BaseException as e:
            log.append(repr(e))
            raise
        finally:
            log.append("finally")

    made = g()
    log.append(next(made))
    try:
        log.append(made.close())
    except BaseException as e:
        log.append(("out", repr(e)))
    return x + 1, log


@pytest.mark.parametrize("cls", [Delegate, Plain, Ends, Refuses, lambda log: [1, 2], lambda log: iter((1, 2))])
@pytest.mark.parametrize("fn", [thrown_into_delegates, closed_delegates])
def test_what_a_generator_delegates_to_is_told(fn, cls):
    x = torch.ones(2)
    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    assert compiled(x, cls)[1] == fn(x, cls)[1]
    assert compiled.counters()["compiles"] == 1 and compiled.counters()["eager_calls"] == 0


def asked_while_it_delegates(x, ask):
    log = []

    def inner():
        try:
            yield 1
        except ValueError:
            try:
                ask(outer_, inner_)
            except BaseException as e:
                log.append(repr(e))
        yield 2

    def outer():
        try:
            yield from inner_
        finally:
            log.append("outer ends")

    inner_ = inner()
    outer_ = outer()
    log.append(next(outer_))
    for i in range(3):
        try:
            log.append(outer_.throw(ValueError) if i == 0 else next(outer_))
        except BaseException as e:
            log.append(("out", repr(e)))
    return x + 1, log


ASKS = [
    lambda o, i: next(o), lambda o, i: o.close(), lambda o, i: o.send(3), lambda o, i: list(o),
    lambda o, i: i.close(), lambda o, i: i.throw(KeyError), lambda o, i: next(i),
]  # fmt: skip


@pytest.mark.parametrize("ask", ASKS)
def test_a_generator_that_delegates_a_throw_is_running(ask):
    x = torch.ones(2)
    compiled = pycompiler.compile(asked_while_it_delegates, backend="eager", fullgraph=True)
    assert compiled(x, ask)[1] == asked_while_it_delegates(x, ask)[1]
    assert compiled.counters()["compiles"] == 1 and compiled.counters()["eager_calls"] == 0


@pytest.mark.parametrize("kind", range(7))
def test_errors_of_closing_come_out_where_the_generator_delegates(kind):
    def fn(x, kind):
        log = []

        def inner():
            try:
                yield 1
            except GeneratorExit:
                log.append("inner exit")
                if kind == 0:
                    raise KeyError("k") from None
                if kind == 1:
                    yield 8
                if kind == 2:
                    return 3
                raise
            except ValueError:
                if kind == 3:
                    return 4
                if kind == 4:
                    yield 5
                if kind == 5:
                    raise StopIteration(7) from None

        def outer():
            try:
                log.append(("r", (yield from inner())))
            except BaseException as e:
                log.append(repr(e))
                if kind == 6:
                    yield 3
                raise
            finally:
                log.append("finally")
            yield 10

        for first in (ValueError, None):
            made = outer()
            log.append(next(made))
            for ask in (lambda: made.throw(first) if first else None, made.close, lambda: next(made)):  # noqa: B023
                try:
                    log.append(ask())
                except BaseException as e:
                    log.append(("out", repr(e)))
        return x + 1, log

    x = torch.ones(2)
    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    assert compiled(x, kind)[1] == fn(x, kind)[1]
    assert compiled.counters()["compiles"] == 1 and compiled.counters()["eager_calls"] == 0
