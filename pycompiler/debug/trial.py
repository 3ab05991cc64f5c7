"""Trials of a graph: it is compiled and called, here or in a forked child with a time limit.

In: a graph, inputs, and a `Setting`: the layer that compiles it, and its options.  Out: a `Symptom`, or None if it works.
The child may crash or hang, which is then the symptom.  The forking process itself must not have run torch operators.
"""

from __future__ import annotations

import contextlib
import difflib
import faulthandler
import json
import os
import re
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from pycompiler import config
from pycompiler.api import compile as compile_function
from pycompiler.debug import repro
from pycompiler.errors import InternalError
from pycompiler.ir.generated_source import forward_of
from pycompiler.ir.graph_copies import copied
from pycompiler.pipeline.differences import Difference
from pycompiler.pipeline.verification import Copies, compare, eager_results, results


@dataclass(frozen=True)
class Symptom:
    """kind: "error", "values", "crash" or "hang".  what: the exception's class, the signal, or the result that differs."""

    kind: str
    what: str = ""
    text: str = ""

    def is_like(self, other: Symptom | None) -> bool:
        """Whether both show the same fault: the differing result and the message may change on the way."""
        if other is None or self.kind != other.kind:
            return False
        return self.kind in ("values", "hang") or self.what == other.what

    def is_same(self, other: Symptom | None) -> bool:
        """Whether both are one fault; for errors also class, message and raising function must agree.

        Numbers, names with numbers and a few other words of a message change with the part of the graph that raises it.
        """
        if other is None or not self.is_like(other):
            return False
        if self.kind != "error":
            return True
        (mine, here), (its, there) = _words(self.text), _words(other.text)
        alike = difflib.SequenceMatcher(None, mine, its, autojunk=False).ratio()
        return (not here or not there or here == there) and (mine == its or alike >= ALIKE)

    def __str__(self) -> str:
        return {"error": f"{self.what}: {self.text}", "values": f"wrong values: {self.what}: {self.text}",
                "crash": f"it crashes with {self.what}", "hang": "it hangs"}[self.kind]  # fmt: skip


ALIKE = 0.7  # the share of words that messages of one fault have in common


def _words(text: str) -> tuple[list[str], str]:
    """The words of an error's message, without numbers and quoted parts; and the raising function, "" if unknown."""
    message, _, function = text.removesuffix(")").rpartition(" in ") if PLACE.search(text) else (text, "", "")
    plain = re.sub(r"0x[0-9a-f]+|'[^']*'|\"[^\"]*\"|_?\d+", "", PLACE_OPEN.sub("", message) if function else message)
    return re.findall(r"\w+", plain), function


PLACE = re.compile(r" \(\S.*:\d+ in [^()]*\)$")  # added by `symptom_of`
PLACE_OPEN = re.compile(r" \(\S.*:\d+$")


@dataclass(frozen=True)
class Setting:
    """How a graph is compiled: after "dynamo" by a backend, after "aot" by the compiler of graphs.

    accuracy: wrong values are a symptom, not only errors.  around: expressions of contexts around all calls.
    dynamic: sizes were symbols.  Parts are then captured anew, with symbols for all sizes of their inputs, after "aot" too.
    wanted: the symptom of the program; None if there was none, so that any symptom counts.
    """

    layer: str = "dynamo"
    backend: Any = "native"
    options: dict[str, Any] = field(default_factory=dict)
    knobs: dict[str, Any] = field(default_factory=dict)
    accuracy: bool = False
    tolerance: float = 1e-3
    around: tuple[str, ...] = ()
    dynamic: bool = False
    wanted: Symptom | None = None

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        quiet = {"raise_internal_errors": True, "suppress_errors": False, "repro_after": None, "disable": False}
        with contextlib.ExitStack() as stack:
            for text in self.around:
                stack.enter_context(eval(text, {"torch": torch, "repro": repro}))
            if self.layer == "aot":
                stack.enter_context(torch.no_grad())
            stack.enter_context(config.patch({**self.knobs, **quiet}))
            yield

    def compiled(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
        if self.layer == "aot" and not self.dynamic:
            return repro.compile_graph(copied(gm), inputs)
        made: Callable[..., Sequence[Any]] = compile_function(
            forward_of(gm), backend=self.backend, options=self.options or None, dynamic=self.dynamic or None
        )
        return made


def observe(gm: fx.GraphModule, inputs: Sequence[Any], setting: Setting, *, raises: bool = False) -> Symptom | None:
    """The symptom in this process.  An error that eager raises too is not a symptom.  `raises`: errors propagate."""
    with setting.entered():
        eager = forward_of(gm)
        torch.manual_seed(0)
        try:
            made = setting.compiled(gm, inputs)
            if not setting.accuracy:
                results(made, Copies.of(inputs))
                return None
        except Exception as error:
            if raises:
                raise
            return None if _raises(eager, inputs) else symptom_of(error)
        try:
            return of_difference(compare(eager, made, inputs, setting.tolerance))
        except Exception:  # eager's own
            return None


def symptom_of(error: BaseException) -> Symptom:
    while (inner := error.__cause__ or (isinstance(error, InternalError) and error.__context__)) and inner is not error:
        error = inner
    where = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" ({where[0].filename}:{where[0].lineno} in {where[0].name})" if where else ""
    return Symptom(
        "error", type(error).__name__, f"{str(error).strip().splitlines()[0] if str(error).strip() else ''}{place}"
    )


def of_difference(found: Difference | None) -> Symptom | None:
    if found is None:
        return None
    if found.what == "the call":
        return Symptom("error", found.text.removeprefix("it raised ").partition(":")[0], found.text)
    return Symptom("values", found.what, found.text)


def _raises(eager: Callable[..., Any], inputs: Sequence[Any]) -> bool:
    try:
        eager_results(eager, inputs)
    except Exception:
        return True
    return False


# children -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Outcome:
    """The answer of a child (None: nothing), how it ended, and its duration."""

    told: Any
    signal: int
    timed_out: bool
    seconds: float

    @property
    def symptom(self) -> Symptom | None:
        if self.timed_out:
            return Symptom("hang")
        if self.signal:
            return Symptom("crash", signal.Signals(self.signal).name)
        return None if self.told is None else Symptom(*self.told)


def in_child(job: Callable[[], Any], limit: float, threads: int, *, quiet: bool = True) -> Outcome:
    """The JSON result of `job` in a fork of this process, which is killed after `limit` seconds."""
    reader, writer = os.pipe()
    start = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about other threads, which a child does not have
        child = os.fork()
    if child == 0:
        _run_child(job, writer, threads, quiet)
    with contextlib.suppress(OSError):  # the child does so too, since either may be first
        os.setpgid(child, child)
    os.close(writer)
    try:
        text, timed_out = _read(reader, start + limit)
        if timed_out:
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    except BaseException:
        with contextlib.suppress(OSError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(reader)
    ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) and not timed_out else 0
    whole = not timed_out and not ended and os.waitstatus_to_exitcode(status) == 0 and bool(text)
    if not (whole or timed_out or ended):
        ended = signal.SIGABRT  # it exited by itself, without an answer: _exit()
    return Outcome(json.loads(text) if whole else None, ended, timed_out, time.monotonic() - start)


def _run_child(job: Callable[[], Any], writer: int, threads: int, quiet: bool) -> None:
    code = 70
    try:
        faulthandler.disable()  # a crash is an answer and needs no report
        os.setpgid(0, 0)  # compilers that it starts end with it
        if quiet:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
        torch.set_num_threads(threads)
        text = json.dumps(job()).encode()
        with os.fdopen(writer, "wb") as file:
            file.write(text)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _read(reader: int, until: float) -> tuple[bytes, bool]:
    """(contents of the pipe, whether the time ended before the pipe was closed)."""
    parts: list[bytes] = []
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return b"".join(parts), True
        part = os.read(reader, 1 << 16)
        if not part:
            return b"".join(parts), False
        parts.append(part)
