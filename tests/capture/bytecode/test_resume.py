"""Resume everywhere: every function of the corpus, cut at every instruction, behaves as it does uncut."""

import functools
import pathlib
import sys
import traceback

import corpus
import pytest
from corpus import CASES
from splitting import Splitter, TailCall, split_points, trampoline

CORPUS_FILES = {corpus.__file__, "<string>"}


def prepare(name):
    corpus.counter = 0
    fn, args, log = CASES[name]()
    kwargs = {}
    if isinstance(fn, functools.partial):
        fn, kwargs = fn.func, fn.keywords
    return fn, args, kwargs, log


def outcome(run, log):
    """Result or exception (with its chain and the user's line), side effects, and no exception left behind."""
    try:
        result = run()
        shown = ("returned", repr(result))
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename in CORPUS_FILES]
        chain = [(type(e).__name__, str(e)) for e in chain_of(error)]
        shown = ("raised", chain, lines[-1], error.__suppress_context__, repr(getattr(error, "exceptions", None)))
    assert sys.exc_info() == (None, None, None)
    return *shown, repr(log), corpus.counter


def chain_of(error):
    while error is not None:
        yield error
        error = error.__context__


def uncut(name):
    fn, args, kwargs, log = prepare(name)
    return outcome(lambda: fn(*args, **kwargs), log)


def points(name):
    fn = prepare(name)[0]
    return split_points(getattr(fn, "__func__", fn).__code__)


@pytest.mark.parametrize("name", CASES)
def test_cut_at_every_arrival(name):
    wanted, met = uncut(name), 0
    for at in points(name):
        fn, args, kwargs, log = prepare(name)
        splitter = Splitter(fn)
        assert outcome(lambda s=splitter: s.chain(at, args, kwargs), log) == wanted, f"cut at {at}"
        met += splitter.cuts > 0
    assert met


@pytest.mark.parametrize("name", CASES)
def test_continuation_at_every_instruction(name):
    wanted, met = uncut(name), 0
    for at in points(name):
        static = {}
        for attempt in ("dynamic", "static"):
            fn, args, kwargs, log = prepare(name)
            splitter, learned = Splitter(fn), {}

            def run(s=splitter, static=static, learned=learned):
                result, found = s.once(at, args, kwargs, static)
                learned.update(found or {})
                return result

            assert outcome(run, log) == wanted, f"cut at {at}, {attempt} tail"
            static = learned
            met += splitter.cuts
    assert met
