"""`config.replay_record_enabled`: a frame that cannot be compiled is written to a file, which `replaying.py` runs alone.

In: a callable with its arguments, its compile settings, torch's state.  Out: `replays/<function>_<pid>_<n>.rec` below
`config.debug_dir_root`: MAGIC, sha256 of the rest, length of the header, header (JSON), body (`marshal`).  The
bytecode belongs to one version of Python, named in the header.  The file is a program: its reader runs its code.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import itertools
import json
import logging
import marshal
import os
import platform
import struct
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pycompiler import config
from pycompiler._native import __version__
from pycompiler.debug.freeze import Freezer, own_function
from pycompiler.ir import phases
from pycompiler.logs import ROOT
from pycompiler.pipeline.interface import Family
from pycompiler.pipeline.reports import FailureRecord

log = logging.getLogger(ROOT)

MAGIC = b"pycompiler frame 1\n"
LENGTH = struct.Struct("<Q")
FILES = 100  # most files of a process
# Knobs for paths, output and error handling.
NOT_RECORDED = frozenset({
    "repro_after", "repro_level", "repro_dir", "debug_dir_root", "base_dir", "cache_dir", "log_level", "debug", "verbose",
    "progress", "background_compile", "suppress_errors", "raise_internal_errors", "disable", "debug_function",
    "replay_record_enabled", "bisect", "bisect_log", "trace_dir", "verify_ir", "summary_at_exit",
})  # fmt: skip


def versions() -> dict[str, str]:
    """Properties that must agree where the file is read (`python`, `bytecode`), or should agree."""
    return {
        "python": f"{sys.implementation.name} {platform.python_version()}",
        "bytecode": importlib.util.MAGIC_NUMBER.hex(),
        "torch": torch.__version__,
        "pycompiler": __version__,
    }


def state() -> dict[str, Any]:
    """torch's state that affects a frame's results."""
    devices = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "dtype": torch.get_default_dtype(),
        "autocast": [(d, torch.get_autocast_dtype(d)) for d in devices],
        "random": bytes(torch.get_rng_state().tolist()),  # not a tensor, since tensors may be left out
    }


def knobs() -> dict[str, Any]:
    """Knobs without their default value that affect a compile."""
    defaults = {row.name: row.default for row in config.KNOBS}
    found = config.snapshot()
    return {
        n: v for n, v in found.items()
        if n in defaults and v != defaults[n] and n not in NOT_RECORDED and not n.startswith("trace.")
    }  # fmt: skip


def freeze(
    call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], settings: Mapping[str, Any], error: str
) -> bytes:
    """The contents of the file of a call."""
    freezer = Freezer(config.replay_record_limit)
    with torch._C.DisableTorchFunction():
        if type(call) is types.FunctionType:
            top = own_function(freezer, call, call.__qualname__)
        else:
            top = freezer.value(call, "the callable")
        names = _names(call)
        parts = (
            top,
            tuple(
                freezer.value(a, f"L.{n}") for n, a in itertools.zip_longest(names[: len(args)], args, fillvalue="args")
            ),
            tuple((k, freezer.value(v, f"L.{k}")) for k, v in kwargs.items()),
            freezer.value(dict(settings), "settings"),
            freezer.value(state(), "torch's state"),
            freezer.value(knobs(), "config"),
        )
        freezer.finish()
    code = getattr(inspect.unwrap(call), "__code__", None)
    header = {
        **versions(),
        "function": getattr(call, "__qualname__", type(call).__qualname__),
        "place": f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "",
        "error": error,
        "missing": freezer.missing,
        "remarks": freezer.remarks,
        "packages": {n: v for n in sorted(freezer.libraries) if isinstance(v := _version(n), str)},
    }
    text = json.dumps(header, sort_keys=True).encode()
    body = marshal.dumps((freezer.records, freezer.fills, parts, freezer.sources))
    rest = LENGTH.pack(len(text)) + text + body
    return MAGIC + hashlib.sha256(rest).digest() + rest


def _names(call: Callable[..., Any]) -> tuple[str, ...]:
    code = getattr(call, "__code__", None)
    return code.co_varnames if isinstance(code, types.CodeType) else ()


def _version(package: str) -> Any:
    return getattr(sys.modules.get(package), "__version__", None)


def write(path: Path, data: bytes) -> Path:
    """Write the whole file, or none, writable only by this user whatever the umask; its reader would refuse other files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(temporary, "wb", opener=lambda name, _: os.open(name, flags, 0o600)) as file:
        file.write(data)
    temporary.replace(path)
    return path


_numbers = itertools.count()


def new_path(name: str) -> Path:
    plain = "".join(c if c.isalnum() else "_" for c in name)[:60]
    return Path(config.debug_dir_root) / "replays" / f"{plain}_{os.getpid()}_{next(_numbers)}.rec"


def record(
    call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], settings: Mapping[str, Any], error: str,
    path: Path | None = None,
) -> Path:  # fmt: skip
    """Write a call to a file and return its path; the log names missing parts."""
    data = freeze(call, args, kwargs, settings, error)
    made = write(path or new_path(getattr(call, "__name__", "frame")), data)
    log.warning("Wrote a replay record to: %s (to run it: python -m pycompiler replay %s)", made, made)
    return made


# frames ---------------------------------------------------------------------------------------------------------------
def arguments(code: types.CodeType, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call that binds a frame's locals to these values."""
    plain, only = code.co_argcount, code.co_kwonlyargcount
    names = iter(code.co_varnames[plain + only :])
    args = [values[n] for n in code.co_varnames[:plain]]
    kwargs = {n: values[n] for n in code.co_varnames[plain : plain + only]}
    if code.co_flags & inspect.CO_VARARGS:
        args += values[next(names)]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs.update(values[next(names)])
    return args, kwargs


def settings_of(family: Family) -> dict[str, Any]:
    """The compile settings of a callable, as arguments of `compile`, and the knobs of its mode and options."""
    options = family.backend_options
    backend = functools.partial(family.backend, **options) if options else family.backend
    return {
        "backend": family.backend_name if family.ours else backend,
        "fullgraph": family.fullgraph,
        "dynamic": family.dynamic,
        "knobs": dict(family.knobs),
    }


class FailureRecorder(phases.Observer):
    """Records the frames whose compile fails, each error of a frame once."""

    def __init__(self) -> None:
        self.seen: set[tuple[types.CodeType, str]] = set()

    def artefact(self, name: str, value: Any) -> None:
        if name == "failure":
            self.failed(value)

    def failed(self, failure: FailureRecord) -> None:
        function, error = failure.function, f"{type(failure.error).__name__}: {failure.error}"
        key = (function.__code__, error)
        if key in self.seen or len(self.seen) >= FILES:
            return
        self.seen.add(key)
        try:
            args, kwargs = arguments(function.__code__, failure.values)
            record(function, args, kwargs, settings_of(failure.family), error)
        except Exception as problem:  # an observer's error: the user must see the compile's own error
            log.error("no replay record was written: %s: %s", type(problem).__name__, problem)


_recorder = FailureRecorder()


def listen() -> None:
    """`config.replay_record_enabled` was set."""
    if config.replay_record_enabled == (_recorder in phases.observers):
        return
    if config.replay_record_enabled:
        phases.observers.append(_recorder)
    else:
        phases.observers.remove(_recorder)
