"""Objects that the frame creates from constants and the capture runs for real (`capture/values/native_objects.py`).

In: calls of their classes and functions.
Out: `NativeObject` values.  This file has the kinds of objects, their constructors, and `print` into such an object.
"""

from __future__ import annotations

import _thread
import array
import contextlib
import csv
import hashlib
import io
import random
import struct
import sys
import threading
from collections.abc import Iterator
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin, constructor
from pycompiler.capture.semantics import formatting
from pycompiler.capture.semantics.lru_cache_calls import describe_call
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.distributed_objects import assume
from pycompiler.capture.values.native_objects import KINDS, MAKERS, NativeKind, NativeObject, run
from pycompiler.capture.values.objects import Object


def _waits(lock: Any, name: str, args: list[Any], words: dict[str, Any]) -> bool:
    """Whether the call would wait for ever: no other holder can release a lock of the frame."""
    asks = name in ("acquire", "acquire_lock", "__enter__")
    return asks and bool((*args, words.get("blocking", True))[0]) and lock.locked()


def _names_thread(lock: Any, name: str, args: list[Any], words: dict[str, Any]) -> bool:
    """Whether a condition calls this method while it waits."""
    return name in ("_release_save", "_acquire_restore")


def _is_seed(seed: Any) -> bool:
    """Whether the seed determines all numbers that follow."""
    return type(seed) in (int, float, str, bytes)


def _draws(rng: Any, name: str, args: list[Any], words: dict[str, Any]) -> bool:
    return name == "seed" and not (args and _is_seed(args[0]))


def _hash_types() -> Iterator[type]:
    """The hash classes of OpenSSL and of Python, as far as this build has them."""
    for name in sorted(hashlib.algorithms_guaranteed):
        for make in (lambda: hashlib.new(name), getattr(hashlib, name)):
            with contextlib.suppress(ValueError):
                yield type(make())


_TOLD = ("digest", "hexdigest", "copy")
_HASH = NativeKind(reads=_TOLD)
_BUFFER = NativeKind(reads=("getvalue", "tell", "readable", "writable", "seekable"), refused=("getbuffer", "fileno"))
_BYTES = NativeKind(
    shown=True, equals=True, refused=("buffer_info", "tofile", "fromfile"),
    reads=("find", "count", "index", "startswith", "endswith", "decode", "hex", "tobytes", "tolist", "copy"),
)  # fmt: skip
KINDS |= {
    io.StringIO: _BUFFER,
    io.BytesIO: _BUFFER,
    bytearray: _BYTES,
    array.array: _BYTES,
    struct.Struct: NativeKind(refused=("pack_into", "iter_unpack"), reads=("pack", "unpack", "unpack_from")),
    _thread.LockType: NativeKind(reads=("locked",), depends=_waits),
    _thread.RLock: NativeKind(reads=("_is_owned",), depends=_names_thread),
    random.Random: NativeKind(refused=("__getstate__", "__setstate__"), depends=_draws),
    type(csv.reader([])): NativeKind(),
    type(csv.writer(io.StringIO())): NativeKind(),
    **dict.fromkeys(_hash_types(), _HASH),
}
_CLASSES: tuple[type, ...] = (
    io.StringIO, io.BytesIO, bytearray, array.array, struct.Struct, _thread.RLock, hashlib.blake2b,
    hashlib.blake2s,
)  # fmt: skip
_FUNCTIONS = (
    *(fn for name, fn in vars(sys.modules.get("_hashlib", sys)).items() if name == "new" or name.startswith("openssl_")),
    _thread.allocate_lock,
)  # fmt: skip
inlining_rules.INLINED |= {
    threading.RLock,
    *(getattr(threading.Event, name) for name in ("__init__", "is_set", "set", "clear", "wait")),
    *(fn for fn in vars(threading.Condition).values() if isinstance(fn, type(_waits)) and fn.__name__ != "__repr__"),
    *(getattr(threading.Semaphore, name) for name in ("__init__", "acquire", "release", "__exit__")),
}
"""Python code over locks, which uses nothing else of the program."""


def _maker(fn: Any) -> Any:
    def make(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        return run(cx, fn, args, kwargs)

    return make


_CLASSES += (threading.Lock,) if isinstance(threading.Lock, type) else ()  # since 3.13
for _fn in _FUNCTIONS:
    builtin(_fn)(_maker(_fn))
for _cls in _CLASSES:
    constructor(_cls)(_maker(_cls))
MAKERS += [*_FUNCTIONS, *_CLASSES]


def _of_rows(fn: Any) -> None:
    @builtin(fn)
    def make(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        """Read or write rows over an owned object, with a dialect that no table names."""
        named = [v for v in (*args[1:2], kwargs.get("dialect")) if v is not None and not cx.is_none(v)]
        if not args or not isinstance(args[0], NativeObject) or named:
            raise Break("builtin-call", describe_call(fn, args))
        assume(cx, (csv,), csv.field_size_limit, "it depends on csv.field_size_limit()")
        return run(cx, fn, args, kwargs)


for _fn in (csv.reader, csv.writer):
    _of_rows(_fn)


@constructor(random.Random)
def generator(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    given = [*args, *kwargs.values()]
    if len(given) != 1 or not _is_seed(cx.snapshot(given[0])):
        raise Break("builtin-call", "random.Random(...) without a seed that is an int, float, str or bytes")
    return run(cx, random.Random, args, kwargs)


_WORDS = {"sep": " ", "end": "\n"}


def _refused(args: Args) -> Break:
    return Break("builtin-call", f"print({', '.join(a.describe() for a in args)})")


@builtin(print)
def print_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Print into a buffer, or into an object of the program that has `write`."""
    given = {"file": Const(None), "flush": Const(False), **kwargs}
    file = cx.realize(given["file"])
    if cx.is_none(file):
        file = cx.effects.get_global(vars(sys), "stdout") or file
    known = (isinstance(file, NativeObject) and hasattr(type(file.own), "write")) or isinstance(file, Object)
    if not known or len(given) > 2 + sum(name in given for name in _WORDS):
        raise _refused(args)
    words = [cx.snapshot(given[name]) if name in given else None for name in _WORDS]
    sep, end = (default if word is None else word for word, default in zip(words, _WORDS.values(), strict=True))
    if type(sep) is not str or type(end) is not str:
        raise _refused(args)
    write = file.getattr(cx, "write")
    for place, value in enumerate(args):
        if place:
            cx.call(write, [Const(sep)], {})
        cx.call(write, [formatting.text(cx, value, str)], {})
    cx.call(write, [Const(end)], {})
    if cx.truth(given["flush"]):
        cx.call(file.getattr(cx, "flush"), [], {})
    return Const(None)
