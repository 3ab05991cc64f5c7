"""Buffers, hashes, locks, generators and bytearrays created in a function: used in the graph, and returned as new
objects in each call."""

from __future__ import annotations

import array
import contextlib
import csv
import datetime
import decimal
import hashlib
import io
import pprint
import queue
import random
import shlex
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same

PROGRAMS: list[Callable[..., Any]] = []


def program(fn: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS.append(fn)
    return fn


@program
def text_buffers(x: Any) -> Any:
    buffer = io.StringIO()
    written = buffer.write("shape ")
    print(*x.shape, "|", sep=", ", file=buffer, flush=True)
    print(file=buffer, end="!")
    with io.StringIO("a\nb\nc") as lines:
        read = [lines.readline(), *lines]
    try:
        lines.read()
    except ValueError as e:
        said = str(e)
    return x * written, buffer.getvalue(), buffer.tell(), read, said, lines.closed, isinstance(buffer, io.TextIOBase)


@program
def bytes_in_buffers(x: Any) -> Any:
    buffer, into = io.BytesIO(b"abcdef"), bytearray(4)
    buffer.seek(1)
    count = buffer.readinto(into)
    into += b"gh"
    into[0] = 65
    del into[1]
    return x[: len(into)] * count, bytes(into), repr(into), into == b"Adegh", b"g" in into, into[1:3], [*into][0]


@program
def hashes(x: Any) -> Any:
    one = hashlib.sha256(b"abc")
    other = one.copy()
    other.update("more".encode())
    new = hashlib.new("md5", b"x", usedforsecurity=False)
    return (
        x * int(one.hexdigest()[:2], 16),
        other.digest(),
        one.name,
        new.digest_size,
        hashlib.blake2b(digest_size=4).hexdigest(),
    )


@program
def locks(x: Any) -> Any:
    lock, again = threading.Lock(), threading.RLock()
    with lock, again, again:
        y = x + lock.locked()
    try:
        with lock:
            raise KeyError(1)
    except KeyError:
        pass
    try:
        lock.release()
    except RuntimeError as e:
        said = str(e)
    return y, lock.acquire(False), lock.acquire(blocking=False), said


@program
def what_locks_are_in(x: Any) -> Any:
    event, rooms, todo = threading.Event(), threading.Semaphore(2), queue.Queue(3)
    before = event.is_set()
    event.set()
    todo.put(3)
    todo.put(4)
    with rooms:
        y = x * todo.get() + todo.qsize()
    return (
        y,
        before,
        event.wait(),
        rooms.acquire(),
        rooms.acquire(),
        rooms.acquire(blocking=False),
        todo.get(),
        todo.empty(),
    )


@program
def numbers_of_a_generator(x: Any) -> Any:
    rng = random.Random(7)
    parts = [x + 1, x + 2, x + 3]
    rng.shuffle(parts)
    return (
        rng.choice(parts),
        rng.random(),
        rng.randint(1, 9),
        rng.gauss(0, 1),
        rng.sample(range(9), 3),
        rng.uniform(1, 2),
    )


@program
def arrays(x: Any) -> Any:
    numbers = array.array("i", [1, 2])
    numbers.append(3)
    numbers.extend(numbers)
    try:
        numbers.append("no")  # type: ignore[arg-type]
    except TypeError as e:
        said = str(e)
    return (
        x * sum(numbers),
        numbers.tolist(),
        numbers.typecode,
        len(numbers),
        numbers[-1],
        str(numbers),
        said,
        max(numbers),
    )


@program
def layouts(x: Any) -> Any:
    layout = struct.Struct("<ih")
    return (
        x * layout.size,
        layout.pack(1, 2),
        layout.unpack(b"\1\0\0\0\2\0"),
        zlib.crc32(bytearray(b"abc")),
        layout.format,
    )


@program
def rows(x: Any) -> Any:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow([1, "a,b"])
    writer.writerows([(2, None), (3, "c")])
    buffer.seek(0)
    return x + 1, list(csv.reader(buffer)), buffer.getvalue()


@program
def library(x: Any) -> Any:
    return x * 2, pprint.pformat({"a": [1, 2], "b": "x" * 80}), shlex.split("a 'b c' # d"), shlex.quote("a b")


@program
def leave(x: Any) -> Any:
    buffer, lock, made, rng = io.StringIO("ab"), threading.Lock(), bytearray(b"x"), random.Random(3)
    buffer.seek(0, io.SEEK_END)
    buffer.write("c")
    lock.acquire()
    made.extend(b"yz")
    with contextlib.suppress(TypeError):
        made.append(None)  # type: ignore[arg-type]
    first = rng.random()
    return x + 1, seen(buffer), [lock.locked(), Shown(lock)], made, first, Shown(rng), {"again": made}


@program
def left_together(x: Any) -> Any:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow("ab")
    return x + 1, Shown((writer, buffer))


class Shown:
    """An object that is read after the call."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def state(self) -> Any:
        if isinstance(self.held, tuple):
            self.held[0].writerow("cd")
            return self.held[1].getvalue()
        if isinstance(self.held, io.StringIO):
            self.held.write("!")
            return self.held.getvalue()
        return self.held.random() if isinstance(self.held, random.Random) else self.held.locked()


def seen(value: Any) -> Shown:
    return Shown(value)


@program
def decimals(x: Any) -> Any:
    total = Decimal("1.10") + 2 - Decimal(1) / 8
    return (
        x * float(total),
        total,
        str(total),
        f"{total:.1f}",
        round(total, 1),
        -total,
        int(total),
        total > 2,
        abs(-total).as_tuple(),
    )


@program
def rounded_decimals(x: Any) -> Any:
    third = Decimal(1) / Decimal(3)
    try:
        third / 0
    except decimal.DivisionByZero as e:
        said = type(e).__name__
    try:
        Decimal("x")
    except decimal.InvalidOperation as e:
        said += repr(e) + str(e.args)
    return x * float(third), third.quantize(Decimal("0.01")), said, sorted([third, Decimal(2)]), hash(Decimal("2.5"))


@program
def texts_of_dates(x: Any) -> Any:
    day = datetime.datetime(2024, 2, 9, 3, 4, 5, 6)
    return (
        x * day.day,
        day.strftime("%Y-%m-%d %H:%M:%S.%f %j%%"),
        day.date().strftime("%d/%m"),
        datetime.datetime.strptime("2020-01-02", "%Y-%m-%d"),
    )


def state(value: Any) -> Any:
    if isinstance(value, Shown):
        return value.state()
    if isinstance(value, (tuple, list)):
        return [state(v) for v in value]
    return {k: state(v) for k, v in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("fn", PROGRAMS)
def test_it_is_one_graph(fn: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(fn, fullgraph=True)
    results = []
    for k in range(3):
        x = torch.arange(6.0) + k
        results.append(compiled(x))
        assert_same(state(list(results[-1])), state(list(fn(x))))
    assert compiled.counters()["compiles"] == 1


def test_each_call_makes_its_own() -> None:
    compiled = pycompiler.compile(leave, fullgraph=True)
    first, second = compiled(torch.ones(2)), compiled(torch.ones(2))
    assert first[1].held is not second[1].held and first[3] is not second[3] and first[3] is first[6]["again"]
    first[3].append(1)
    first[1].held.write("more")
    assert second[3] == b"xyz" and second[1].held.getvalue() == "abc" and second[1].held.tell() == 3


def test_an_object_of_another_class_from_now_on() -> None:
    class Named(random.Random):
        def random(self) -> float:
            return 0.25

    def fn(x: Any) -> Any:
        rng = random.Random(1)
        rng.name = "a"  # type: ignore[attr-defined]
        named = rng.name  # type: ignore[attr-defined]
        rng.__class__ = Named
        return x + 1, rng.random(), named

    compiled = pycompiler.compile(fn)
    for _ in range(2):
        assert compiled(torch.ones(2))[1:] == (0.25, "a")


def test_over_a_break() -> None:
    def broken(x: Any) -> Any:
        buffer, made = io.StringIO(), bytearray(b"ab")
        buffer.write("before ")
        made += b"c"
        pycompiler.graph_break()
        buffer.write("behind")
        made += b"d"
        return x * len(made), buffer.getvalue(), made

    compiled = pycompiler.compile(broken)
    for _ in range(3):
        assert_same(list(compiled(torch.ones(2))), list(broken(torch.ones(2))))


@pytest.mark.parametrize(
    "what", [lambda lock: lock.acquire(), lambda lock: lock.__enter__(), lambda lock: lock.acquire(True)]
)
def test_a_lock_that_nobody_lets_go_of_is_no_part_of_a_graph(what: Callable[[Any], Any]) -> None:
    """Capture would wait forever."""

    def waits(x: Any, ask: Any) -> Any:
        lock = threading.Lock()
        lock.acquire()
        if x.shape[0] > 1:
            lock.release()
        what(lock)
        return x + 1

    assert pycompiler.explain(waits)(torch.ones(2), None).graph_break_count == 0

    def held(x: Any) -> Any:
        lock = threading.Lock()
        lock.acquire()
        with contextlib.suppress(RuntimeError):
            what(Once(lock))
        return x + 1

    class Once:
        def __init__(self, lock: Any) -> None:
            self.lock = lock

        def __enter__(self) -> Any:
            return self.acquire()

        def acquire(self, blocking: bool = True) -> Any:
            return self.lock.acquire(blocking, -1 if not blocking else 0.001)

    compiled = pycompiler.compile(held)
    torch.testing.assert_close(compiled(torch.ones(2)), torch.ones(2) + 1)


def test_locks_that_were_there_before() -> None:
    """Guards would read the protected state before the lock is taken."""
    lock = threading.Lock()

    def counts(x: Any) -> Any:
        with lock:
            y = x + 1
        return y * 2

    compiled = pycompiler.compile(counts)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 4.0))
    assert not lock.locked()
    assert {b.kind for b in pycompiler.explain(counts)(torch.ones(2)).break_reasons} == {"builtin-call"}


@pytest.fixture
def context() -> Iterator[decimal.Context]:
    with decimal.localcontext() as within:
        within.clear_flags()
        yield within


def test_the_context_of_decimals_is_guarded(context: decimal.Context) -> None:
    def third(x: Any) -> Any:
        return x + 1, Decimal(1) / 3

    compiled = pycompiler.compile(third, fullgraph=True)
    for digits in (28, 5, 28):
        context.prec = digits
        assert compiled(torch.ones(2))[1] == Decimal(1) / 3
    assert compiled.counters()["compiles"] == 2
    context.traps[decimal.Inexact] = True
    for fn in (third, pycompiler.compile(third)):
        with pytest.raises(decimal.Inexact):
            fn(torch.ones(2))


def test_flags_of_the_context(context: decimal.Context) -> None:
    def thirds(x: Any) -> Any:
        return x + 1, [Decimal(1) / 3, Decimal(2) / 3]

    compiled = pycompiler.compile(thirds, fullgraph=True)
    for _ in range(3):
        compiled(torch.ones(2))
        assert [s for s, raised in context.flags.items() if raised] == [decimal.Inexact, decimal.Rounded]
        context.clear_flags()


def test_flags_are_not_set_by_the_capture(context: decimal.Context) -> None:
    def fails(x: Any) -> Any:
        y = Decimal(1) / 4
        return x + 1, y

    pycompiler.compile(fails)(torch.ones(2))
    assert not any(context.flags.values())


@pytest.mark.parametrize("asks", [
    lambda: random.Random().random(), lambda: random.Random(None).random(), lambda: again(random.Random(1)), lambda: repr(io.StringIO()),
    lambda: threading.Lock().__repr__(), lambda: hash(hashlib.md5()), lambda: hashlib.md5().__hash__(),
])  # fmt: skip
def test_what_is_no_constant(asks: Callable[[], Any]) -> None:
    """Hash values and addresses differ between calls."""

    def fn(x: Any) -> Any:
        return x + 1, asks()

    assert pycompiler.explain(fn)(torch.ones(2)).graph_break_count >= 1
    compiled = pycompiler.compile(fn)
    keep = [compiled(torch.ones(2))[1] for _ in range(3)]
    assert [type(k) for k in keep] == [type(fn(torch.ones(2))[1])] * 3


def again(rng: random.Random) -> float:
    rng.seed()
    return rng.random()


def test_print_to_an_object_of_the_programs() -> None:
    class Tee:
        def __init__(self) -> None:
            self.said: list[str] = []

        def write(self, text: str) -> None:
            self.said.append(text)

    def says(x: Any, tee: Any) -> Any:
        print("shape", x.shape[0], file=tee)
        return x + 1

    compiled, there, here = pycompiler.compile(says, fullgraph=True), Tee(), Tee()
    for _ in range(2):
        compiled(torch.ones(2), there)
        says(torch.ones(2), here)
        assert there.said == here.said


def test_print_breaks_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    def says(x: Any) -> Any:
        print("hi")
        return x + 1

    pycompiler.compile(says)(torch.ones(2))
    assert capsys.readouterr().out == "hi\n"
    assert pycompiler.explain(says)(torch.ones(2)).graph_break_count == 1


def test_inside_of_a_transform() -> None:
    """An object created inside the transform is an ordinary value. An object from outside is not changed by code that
    eager may run again."""

    def inside(x: Any) -> Any:
        def f(y: Any) -> Any:
            buffer = io.StringIO()
            print("a", file=buffer)
            return (y**2).sum() * len(buffer.getvalue())

        return torch.func.grad(f)(x)

    compiled = pycompiler.compile(inside, fullgraph=True)
    torch.testing.assert_close(compiled(torch.ones(3)), inside(torch.ones(3)))

    def again(x: Any) -> Any:
        buffer = io.StringIO()

        def f(y: Any) -> Any:
            buffer.write("a")
            return y.sin()

        w = x.clone().requires_grad_()
        z = torch.utils.checkpoint.checkpoint(f, w, use_reentrant=False)
        (g,) = torch.autograd.grad(z.sum(), w)
        return g, buffer.getvalue()

    compiled = pycompiler.compile(again)
    for _ in range(2):
        assert_same(list(compiled(torch.ones(3))), list(again(torch.ones(3))))
