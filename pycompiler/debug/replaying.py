"""`python -m pycompiler replay FILE`: runs a recorded frame alone, compiled as recorded.

In: a file of `recording.py`.  Out: the frame's result, or its error.  The file is a program: reading its header
(`--show`) runs none of it, replaying runs its code.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import linecache
import marshal
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pycompiler import config
from pycompiler.api import compile as compile_function
from pycompiler.debug.recording import LENGTH, MAGIC, versions
from pycompiler.debug.thaw import Thaw
from pycompiler.errors import ArtefactError
from pycompiler.runtime import private_files

_HEAD = len(MAGIC) + 32 + LENGTH.size


def parse(file: str | Path, *, trust: bool = False) -> tuple[dict[str, Any], bytes]:
    """(header, body) of a complete file; ArtefactError for others.

    Without `trust`, also ArtefactError for a file that other users could have written.
    """
    try:
        data = private_files.read_file(Path(file), trust=trust)
    except private_files.Unsafe as error:
        text = f"{error}; a record is a program: replay it with --trust, or replay(..., trust=True), if you know who wrote it"
        raise ArtefactError(text) from None
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not data.startswith(MAGIC):
        raise ArtefactError(f"{file} is not a replay record of this version of pycompiler")
    rest = data[len(MAGIC) + 32 :]
    if len(data) < _HEAD or hashlib.sha256(rest).digest() != data[len(MAGIC) : len(MAGIC) + 32]:
        raise ArtefactError(f"{file} is damaged: its contents do not have the recorded sha256")
    (length,) = LENGTH.unpack_from(rest)
    try:
        header = json.loads(rest[LENGTH.size : LENGTH.size + length])
    except (ValueError, RecursionError) as error:
        raise ArtefactError(f"{file} is damaged: {error}") from None
    if wrong := header_error(header):
        raise ArtefactError(f"{file} is damaged: {wrong}")
    return header, rest[LENGTH.size + length :]


# Fields of a header: strs, then lists of strs.
TEXTS = ("function", "place", "python", "bytecode", "torch", "pycompiler")
LISTS = ("missing", "remarks")


def header_error(header: Any) -> str:
    """The error in a header, "" for none."""
    if not isinstance(header, dict):
        return "its header is not a table"
    for name in TEXTS:
        if not isinstance(header.get(name), str):
            return f"its header has no text {name}"
    for name in LISTS:
        found = header.get(name)
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            return f"its header has no list of texts {name}"
    error = header.get("error", 0)
    return "" if error is None or isinstance(error, str) else "its header has no text error"


def described(header: dict[str, Any]) -> str:
    """The contents of a record, as a str."""
    lines = [f"frame {header['function']} ({header['place']})", f"recorded error: {header['error'] or 'none'}"]
    lines.append(f"python {header['python']}, torch {header['torch']}, pycompiler {header['pycompiler']}")
    lines += [f"not recorded: {m}" for m in header["missing"]]
    return "\n".join([*lines, *header["remarks"]])


@dataclass
class RecordedFrame:
    """A recorded call.  `settings`: arguments of `compile`, and knobs."""

    header: dict[str, Any]
    call: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    settings: dict[str, Any]
    state: dict[str, Any]
    knobs: dict[str, Any]
    modules: dict[str, Any]
    remarks: list[str]

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """Context manager: torch's state, knobs and the program's modules as recorded; errors of the compiler are raised."""
        replaced = {n: sys.modules.get(n) for n in self.modules if n != "__main__"}
        dtype = torch.get_default_dtype()
        own = {**self.settings["knobs"], **self.knobs, "raise_internal_errors": True, "suppress_errors": False}
        with contextlib.ExitStack() as stack:
            stack.enter_context(config.patch({n: v for n, v in own.items() if n in {r.name for r in config.KNOBS}}))
            stack.enter_context(torch.inference_mode(self.state["inference"]))
            stack.enter_context(torch.set_grad_enabled(self.state["grad"]))
            for device, kind in self.state["autocast"]:
                stack.enter_context(torch.autocast(device, kind))
            stack.enter_context(torch.random.fork_rng(devices=[]))
            torch.set_rng_state(torch.frombuffer(bytearray(self.state["random"]), dtype=torch.uint8))
            stack.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(self.state["dtype"])
            sys.modules.update({n: self.modules[n] for n in replaced})
            try:
                yield
            finally:
                for name, before in replaced.items():
                    if before is None:
                        sys.modules.pop(name, None)
                    else:
                        sys.modules[name] = before

    def run(self, *, eager: bool = False, backend: Any = None, around: Callable[..., Any] | None = None) -> Any:
        """Call it once.  `around`: called with function and arguments in place of the call (a debugger)."""
        call = self.call
        with self.surroundings():
            if not eager:
                chosen = {k: v for k, v in self.settings.items() if k != "knobs"}
                if backend is not None:
                    chosen["backend"] = backend
                call = compile_function(call, **chosen)
            if around is not None:
                return around(call, *self.args, **self.kwargs)
            return call(*self.args, **self.kwargs)


def read(file: str | Path, *, trust: bool = False) -> RecordedFrame:
    """The call in a file; ArtefactError if this Python cannot run it.  `trust` as in `parse`."""
    header, body = parse(file, trust=trust)
    here = versions()
    if header["bytecode"] != here["bytecode"]:
        raise ArtefactError(f"{file} holds bytecode of {header['python']}; this is {here['python']}: replay it there")
    try:
        records, fills, (call, args, kwargs, *rest), sources = marshal.loads(body)
    except (ValueError, EOFError, TypeError) as error:
        raise ArtefactError(f"{file} is damaged: {error}") from None
    if not isinstance(sources, dict):
        raise ArtefactError(f"{file} is damaged: its sources are not a table")
    try:
        thawed = Thaw(records, fills)
    except Exception as error:
        raise ArtefactError(f"the frame of {file} cannot be made here: {type(error).__name__}: {error}") from error
    settings, state, knobs = thawed.values(rest)
    remarks = [
        f"recorded with {n} {header[n]}, this is {here[n]}" for n in ("torch", "pycompiler") if header[n] != here[n]
    ]
    for filename, text in sources.items():
        if text and "".join(linecache.getlines(filename)) != text:
            linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    return RecordedFrame(
        header, thawed.value(call), thawed.values(args), {k: thawed.value(v) for k, v in kwargs}, settings, state, knobs,
        thawed.modules, [*remarks, *thawed.remarks],
    )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="a record that replay_record_enabled wrote")
    parser.add_argument("--show", action="store_true", help="show the contents of the record, run nothing")
    parser.add_argument("--trust", action="store_true", help="accept a file that other users can have written")
    parser.add_argument("--eager", action="store_true", help="run the function uncompiled")
    parser.add_argument("--backend", help="compile with this backend")
    parser.add_argument(
        "--pdb", action="store_true", help="debug: from its first line with --eager, else where it fails"
    )


def main(options: argparse.Namespace) -> int:
    """Exit status: 0 if the frame ran, 1 if it failed, 2 if the file cannot be replayed."""
    try:
        if options.show:
            print(described(parse(options.file, trust=options.trust)[0]))
            return 0
        frame = read(options.file, trust=options.trust)
    except ArtefactError as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    print("\n".join([described(frame.header), *frame.remarks]), file=sys.stderr)
    if options.pdb:
        with _interrupts_as_they_were():
            return _run(frame, options)
    return _run(frame, options)


@contextlib.contextmanager
def _interrupts_as_they_were() -> Iterator[None]:
    """Context manager: restore the SIGINT handler, because pdb's `continue` leaves one for a debugger that is gone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _run(frame: RecordedFrame, options: argparse.Namespace) -> int:
    around = None
    if options.pdb and options.eager:
        import pdb

        around = pdb.Pdb().runcall
    try:
        result = frame.run(eager=options.eager, backend=options.backend, around=around)
    except Exception as error:
        traceback.print_exception(error)
        if options.pdb:
            import pdb

            pdb.post_mortem(error.__traceback__)
        return 1
    print(f"the frame ran; the result: {result!r}")
    return 0
