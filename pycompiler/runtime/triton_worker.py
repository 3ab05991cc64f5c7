"""A process that compiles Triton kernels for its parent (`triton_workers.py` starts it).

In: on stdin, the parent's `sys.path`; then pairs (`Job`, the environment variables of Triton).  Out: on the pipe whose
number is the program's argument, the version of Triton; then for each job the fields of its binary, or the text of an
error.  Messages are pickles behind their length.

The process ends when its stdin ends, which is when the parent ends or drops it, and after IDLE_S seconds without a job.
It is started by this file's path and imports no torch: torch takes seconds, and its parent's program must not run again.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import struct
import sys
import traceback
import types
from collections.abc import Mapping
from typing import Any

IDLE_S = 120.0
OF_TRITON = ("TRITON_", "PTXAS_", "DISABLE_PTXAS_", "NVPTX_")  # beginnings of environment variables
_LENGTH = struct.Struct("<Q")


def send(fd: int, message: Any) -> None:
    """Write a message.  Raises OSError if nobody reads it."""
    data = pickle.dumps(message)
    left = memoryview(_LENGTH.pack(len(data)) + data)
    while left:
        left = left[os.write(fd, left) :]


def receive(fd: int) -> Any:
    """Read a message.  Raises EOFError at the end of the stream."""
    return pickle.loads(_read(fd, *_LENGTH.unpack(_read(fd, _LENGTH.size))))


def _read(fd: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def triton_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(OF_TRITON)}


def main() -> None:
    jobs, answers = os.dup(0), int(sys.argv[1])
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    sys.path[:] = receive(jobs)
    package = types.ModuleType("pycompiler")  # its own __init__ would import torch
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules["pycompiler"] = package
    import triton  # noqa: F401  (a worker is ready when it is imported)

    from pycompiler.runtime.triton_compile import compiled, launch_data, triton_version

    send(answers, triton_version())
    while select.select([jobs], [], [], IDLE_S)[0]:
        job, variables = receive(jobs)
        for name in triton_variables(os.environ).keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)
        answer: Any
        try:
            answer = launch_data(compiled(job))
        except Exception:
            answer = traceback.format_exc()
        send(answers, answer)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError):
        main()
