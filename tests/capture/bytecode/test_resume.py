"""Resume at every instruction: each corpus function, cut at any instruction, behaves as without the cut."""

import difflib
import fractions
import functools
import json.decoder
import json.scanner
import re
import string
import sys
import textwrap
import traceback
import types
import weakref

import bytecode_corpus as corpus
import pytest
from bytecode_corpus import CASES
from bytecode_splitting import Splitter, TailCall, split_points, trampoline

from pycompiler.capture.bytecode import (
    FrameLayout,
    continuation,
    decode,
    exits,
    origin_of,
    resume,
    resume_info,
    whole,
)
from pycompiler.capture.bytecode.build import build_tuple, load_deref, load_fast, return_value
from pycompiler.capture.bytecode.tables import VERSION

SOURCES = {corpus.__file__, "<string>"}


def prepare(name):
    corpus.counter = 0
    fn, args, log = CASES[name]()
    kwargs = {}
    if isinstance(fn, functools.partial):
        fn, kwargs = fn.func, fn.keywords
    return fn, args, kwargs, log


def outcome(run, log):
    """The result or the exception (with its chain and the user's line), and the side effects. No handled exception may remain."""
    try:
        result = run()
        shown = ("returned", repr(result))
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename in SOURCES]
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


MOST = 45
"""The largest number of cuts per function: in a longer function only every second or third instruction is cut."""


def points(name):
    fn = prepare(name)[0]
    found = split_points(getattr(fn, "__func__", fn).__code__)
    return found[:: 1 + len(found) // MOST]


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


@pytest.mark.parametrize("name", CASES)
def test_break_at_every_arrival(name):
    """The engine's sequence: head, native instruction, tail, resume function, then the same break again."""
    wanted, met = uncut(name), 0
    for at in points(name)[::3]:
        fn, args, kwargs, log = prepare(name)
        splitter = Splitter(fn)
        assert outcome(lambda s=splitter: s.cycle(at, args, kwargs), log) == wanted, f"break at {at}"
        met += splitter.cuts
    assert met


LIBRARY = {
    "wrap": (textwrap.TextWrapper, "_wrap_chunks", lambda: textwrap.fill("the quick brown fox " * 9, 31)),
    "split": (textwrap.TextWrapper, "_handle_long_word", lambda: textwrap.wrap("x" * 50 + " yy-zz" * 9, 7)),
    "matching": (
        difflib.SequenceMatcher,
        "find_longest_match",
        lambda: difflib.SequenceMatcher(None, "abxcdabc", "abcdxabc").get_opcodes(),
    ),
    "fraction": (fractions.Fraction, "__new__", lambda: [fractions.Fraction(s) for s in ("3/7", "1.25", "-1e3")]),
    "string": (json.decoder, "py_scanstring", lambda: json.decoder.py_scanstring(r'a\n\u00e9\ud83d\ude00"', 0)),
    "format": (
        string.Formatter,
        "_vformat",
        lambda: string.Formatter().format("{0} {a[k]:>{w}} {1!r}", 1, "x", a={"k": 2}, w=5),
    ),
    "regex": (re._parser, "_parse", lambda: re._compiler.compile(r"(?P<n>a|b+?)[^c-f\d]{2}(?=x)$(?i:z)").groupindex),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_library_functions_cut_in_loops(name, monkeypatch):
    owner, attribute, call = LIBRARY[name]
    original = vars(owner)[attribute]
    fn = getattr(original, "__func__", original)
    wanted, met = call(), 0
    found = split_points(fn.__code__)
    for at in found[:: 1 + len(found) // 12]:
        splitter = Splitter(fn, limit=100_000)

        def cut(*args, _splitter=splitter, _at=at, **kwargs):
            return _splitter.chain(_at, args, kwargs)

        monkeypatch.setattr(owner, attribute, staticmethod(cut) if isinstance(original, staticmethod) else cut)
        assert call() == wanted, f"cut at {at}"
        met += splitter.cuts
    assert met


def code_of(source, name="fn"):
    space = {}
    exec(source, space)
    return space[name].__code__


LOOP = """
def fn(n, *, k=1):
    total = 0
    for i in range(n):
        total += len(str(i)) * k
    return total
"""


def find_op(code, opname):
    return next(i.offset for i in decode(code) if i.opname == opname)


def test_resume_code_is_shared_named_and_mapped():
    code = code_of(LOOP)
    at = find_op(code, "GET_ITER")
    kwargs = dict(locals=("n", "k", "total"), stack=("value",))
    made = resume(code, at, **kwargs)
    assert made is resume(code, at, **kwargs)
    assert made is not resume(code, at, locals=("k", "total"), stack=("value",))
    assert (made.co_name, made.co_qualname) == ("fn", "resume_in_fn_at_4")  # tracebacks show the code's name
    assert made.co_filename == code.co_filename
    assert made.co_varnames[: made.co_argcount] == ("n", "k", "total", "__stack0")
    assert not made.co_freevars
    original, offsets = origin_of(made)
    assert original is code
    assert offsets[resume_info(made).offset_of(at)] == at
    assert origin_of(code) == (code, None)
    assert types.FunctionType(made, {"len": len, "str": str})(0, 2, 100, range(11)) == 124
    again = resume(made, resume_info(made).offset_of(at), **kwargs)
    assert again is made


def test_unused_resume_code_is_freed():
    code = code_of(LOOP)
    made = resume(code, find_op(code, "GET_ITER"), locals=("k",), stack=("value",))
    gone = weakref.ref(made)
    del made
    assert gone() is None


def test_stack_items_are_moved_not_kept():
    class Item:
        pass

    code = code_of("def fn(x):\n    use(x())\n    return 1\n")
    body = decode(code)
    call = next(n for n, i in enumerate(body) if i.opname == "POP_TOP")
    made = resume(code, body[call].offset, locals=(), stack=("value",))
    item = Item()
    gone = weakref.ref(item)
    seen = []

    def run(fn, *args):
        return fn(*args)

    fn = types.FunctionType(made, {})
    assert run(fn, item) == 1
    del item
    assert gone() is None
    assert not seen


def test_layout_of_parameters():
    def outer(free):
        def fn(a, /, b, *rest, c, d=1, **more):
            cell = a

            def inner():
                return cell, b, free

            return inner

        return fn

    code = outer(1).__code__
    layout = FrameLayout.of(code)
    assert layout.params == ("a", "b", "c", "d", "rest", "more")
    assert layout.freevars == ("free",)
    assert layout.names == (*layout.params, "free")
    assert set(layout.cells) == {"b", "cell", "free"}


def test_whole_has_only_the_head():
    free = 10

    def fn(a, *rest, b=2, **more):
        def inner():
            return a

        return inner() + free + b

    head = [*load_deref("a"), *load_fast("rest"), *load_deref("free"), *build_tuple(3), *return_value()]
    code = whole(fn.__code__, head)
    made = types.FunctionType(code, {}, closure=fn.__closure__)
    assert made("a", "b", ("rest",), {}) == ("a", ("rest",), 10)
    assert code.co_flags & 0x0C == 0
    assert len(code.co_code) < len(fn.__code__.co_code) + 20


def test_errors_name_the_problem():
    code = code_of(LOOP)
    at = find_op(code, "GET_ITER")
    with pytest.raises(ValueError, match="stack items"):
        resume(code, at, locals=("n",), stack=())
    with pytest.raises(ValueError, match="are not variables of"):
        resume(code, at, locals=("nothing",), stack=("value",))
    with pytest.raises(ValueError, match="no instruction at offset"):
        resume(code, at + 1, locals=(), stack=("value",))
    with pytest.raises(ValueError, match="missing"):
        continuation(code, [], at, {})
    made = resume(code, at, locals=("n", "k", "total"), stack=("value",))
    with pytest.raises(ValueError, match="head"):
        resume(made, 0, locals=(), stack=())
    for source in ("def fn():\n    yield 1\n", "async def fn():\n    await x\n", "async def fn():\n    yield 1\n"):
        suspended = code_of(source)
        with pytest.raises(ValueError, match="generator or coroutine"):
            continuation(suspended, [], 0, {})
        with pytest.raises(ValueError, match="generator or coroutine"):
            resume(suspended, 0, locals=(), stack=())


def test_exits_of_a_loop_skip_its_end():
    code = code_of(LOOP)
    found = exits(code, find_op(code, "FOR_ITER"))
    after = next(i for i in decode(code) if i.offset == found["jump"].offset)
    assert (found["next"].effect, found["jump"].effect) == (1, -1 if VERSION < (3, 14) else 0)
    assert after.opname == "POP_ITER" or (after.opname, after.argval) == ("LOAD_FAST", "total")


def test_tail_calls_do_not_nest():
    def deep(n):
        return TailCall(deep, n - 1) if n else "end"

    assert trampoline(deep(10_000)) == "end"
