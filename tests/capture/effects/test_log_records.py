"""`logging` records: created after the graph, unless the program's own code receives them."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

X = torch.ones(2)


class Keeps(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(f"{record.levelname} {record.getMessage()} {record.exc_info is not None}")


class Counts(logging.Filter):
    count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        Counts.count += 1
        return True


class Shouts(logging.Formatter):
    count = 0

    def format(self, record: logging.LogRecord) -> str:
        Shouts.count += 1
        return super().format(record).upper()


def loud() -> logging.Logger:
    made = logging.Logger("of the program")
    made.setLevel(logging.INFO)
    return made


def test_what_a_handler_of_the_programs_keeps_is_seen() -> None:
    logger, handler = loud(), Keeps()
    logger.addHandler(handler)

    def fn(x: Any) -> Any:
        logger.info("a %s", 3)
        first = len(handler.records)
        logger.debug("not enabled")
        try:
            _ = 1 // (x.shape[0] - 2)
        except ZeroDivisionError:
            logger.exception("e")
        return x + first, len(handler.records), handler.records[-1]

    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(3):
        handler.records.clear()
        want = str(fn(X))
        handler.records.clear()
        assert str(compiled(X)) == want
    assert pycompiler.explain(fn)(X).break_reasons[0].kind == "skipped-call"


def _filtered(logger: logging.Logger) -> Callable[[], int]:
    logger.addFilter(Counts())
    return lambda: Counts.count


def _filtered_by_handler(logger: logging.Logger) -> Callable[[], int]:
    handler = logging.StreamHandler(io.StringIO())
    handler.addFilter(Counts())
    logger.addHandler(handler)
    return lambda: Counts.count


def _formatted(logger: logging.Logger) -> Callable[[], int]:
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(Shouts())
    logger.addHandler(handler)
    return lambda: Shouts.count


def _by_a_parent(logger: logging.Logger) -> Callable[[], int]:
    logger.parent = loud()
    handler = Keeps()
    logger.parent.addHandler(handler)
    return lambda: len(handler.records)


@pytest.mark.parametrize("listens", [_filtered, _filtered_by_handler, _formatted, _by_a_parent])
@pytest.mark.parametrize("first", [True, False])
def test_whoever_gets_a_record(listens: Callable[[logging.Logger], Callable[[], int]], first: bool) -> None:
    """A receiver that is registered later makes the frame run eagerly."""
    logger = loud()
    logger.addHandler(logging.NullHandler())
    count: Callable[[], int] = (lambda: 0) if not first else listens(logger)

    def fn(x: Any) -> Any:
        before = count()
        logger.info("a record")
        return x + 1, count() - before

    compiled = pycompiler.compile(fn, backend="eager")
    for late in (False, True, False):
        if late and not first:
            count = listens(logger)
        assert str(compiled(X)) == str(fn(X))


def test_a_stream_does_not_break_the_graph() -> None:
    logger, stream = loud(), io.StringIO()
    logger.addHandler(logging.StreamHandler(stream))

    def fn(x: Any) -> Any:
        logger.info("shape %s", x.shape)
        logging.debug("by the root")
        return x + 1

    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    for _ in range(2):
        compiled(X)
    assert stream.getvalue() == "shape torch.Size([2])\n" * 2
    counters = compiled.counters()
    assert (counters["compiles"], counters["hits"]) == (1, 1)


def test_a_handler_whose_level_is_not_reached() -> None:
    logger, handler = loud(), Keeps()
    logger.addHandler(handler)

    def fn(x: Any) -> Any:
        logger.debug("not enabled")
        return x + len(handler.records)

    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), fn(X))
    logger.setLevel(logging.DEBUG)
    logger._cache.clear()  # type: ignore[attr-defined]  # a logger outside any manager
    handler.records.clear()
    want = fn(X)
    handler.records.clear()
    assert torch.equal(compiled(X), want)


def told_of_containers(x: Any, logger: logging.Logger, k: Any) -> Any:
    known, rows = {"k": k}, [k, 1]
    logger.info("%s", known)
    known["k"] = 7
    logger.info("w %(k)s", known)
    logger.info("%s %s", rows, (k, {"a": [k]}))
    rows.append(k)
    return x + 1, known, rows


def told_of_texts(x: Any, logger: logging.Logger, k: Any) -> Any:
    logger.info(f"v {k}")
    logger.info("a %s", f"{k:>5}")
    logger.info("b" + str(k))
    logger.log(logging.INFO, "v %s %s" % (k, k + 1))
    return x + 1


@pytest.mark.parametrize("fn", [told_of_containers, told_of_texts])
def test_numbers_that_change_are_told_as_they_are(fn: Callable[..., Any]) -> None:
    stream = io.StringIO()
    logger = loud()
    logger.handlers, logger.propagate = [logging.StreamHandler(stream)], False
    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    for numbers in ((1, 2, 3, 4), (1.5, 2.5, 3.5)):
        for k in numbers:
            texts = []
            for called in (fn, compiled):
                stream.seek(0)
                stream.truncate()
                texts.append((str(called(X, logger, k)), stream.getvalue()))
            assert texts[0] == texts[1]
    assert compiled.counters()["compiles"] == 4
