"""Programs of tests in processes of their own: each is a fork of a process that has imported torch.

`python()` is a path for `[python(), "-m", "pycompiler", ...]`, in place of `sys.executable`. It passes its
arguments, environment, folder and standard streams to the server, waits, and ends with the process's status. The
process has that environment before it imports pycompiler, and runs `sitecustomize`; its `sys.executable` is
`python()`, for its own children. Not usable for settings that torch reads at import (OMP_NUM_THREADS is 1), other
open files, or options of Python.
"""

from __future__ import annotations

import array
import atexit
import functools
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
CLIENT = f"""\
#!{sys.executable} -IS
import sys
sys.path.insert(0, {str(HERE)!r})
import children
children.ask(__file__)
"""
ADDRESS = "address"  # beside the program


@functools.cache
def python() -> str:
    folder = tempfile.TemporaryDirectory(prefix="children")
    path = Path(folder.name, "python")
    path.write_text(CLIENT)
    path.chmod(0o755)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); import children; children.serve(sys.argv[1])"
    server = subprocess.Popen(
        [sys.executable, "-c", program, str(HERE), str(path)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.read(5) == b"ready"

    def end() -> None:
        server.communicate()  # closes its input, which ends it
        folder.cleanup()

    atexit.register(end)
    return str(path)


# client -------------------------------------------------------------------------------------------------------------
def ask(program: str) -> NoReturn:
    """Have the server run the program in the arguments, and end with its status."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(str(Path(program).with_name(ADDRESS)))
        told = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
        streams = array.array("i", [0, 1, 2])
        server.sendmsg([len(told).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        server.sendall(told)
        status = int(server.recv(16) or b"9")  # the server is gone
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


# the server -------------------------------------------------------------------------------------------------------------
def serve(program: str) -> None:
    """Serve requests until the input ends."""
    import torch  # noqa: F401  (what all of this is for)

    base = sys.path[1:]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    base = [p for p in base if p not in given]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(Path(program).with_name(ADDRESS)))
    listener.listen(64)
    os.write(1, b"ready")
    while True:
        readable, _, _ = select.select([0, listener], [], [], 1.0)
        if 0 in readable:
            break
        if listener in readable:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                return answer(connection, program, base)
            connection.close()
        while _ended():
            pass
    listener.close()
    while _ended(0):
        pass


def _ended(how: int = os.WNOHANG) -> bool:
    try:
        return os.waitpid(-1, how)[0] != 0
    except ChildProcessError:
        return False


def answer(connection: socket.socket, program: str, base: list[str]) -> None:
    """Process of one request: runs the program in a child, reports its status, and kills it if the client goes away."""
    size, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(3 * 4))
    streams = array.array("i", ancillary[0][2])
    left, parts = int.from_bytes(size, "big"), []
    while left:
        parts.append(connection.recv(left))
        left -= len(parts[-1])
    arguments, environment, folder = json.loads(b"".join(parts))
    child = os.fork()
    if child == 0:
        connection.close()
        os.setpgid(0, 0)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return become(program, arguments, environment, folder, base)
    for stream in streams:
        os.close(stream)
    process = os.pidfd_open(child)
    readable, _, _ = select.select([process, connection], [], [])
    if process not in readable:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if process in readable:
        connection.sendall(str(status).encode())
    os._exit(0)


def become(program: str, arguments: list[str], environment: dict[str, str], folder: str, base: list[str]) -> None:
    """Become the process `python arguments...`."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.executable = program
    more = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[:] = ["", *more, *base]
    importlib.invalidate_caches()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if any(os.path.exists(os.path.join(p, "sitecustomize.py")) for p in more):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    try:
        run(arguments, main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        place = error.__traceback__
        while place is not None and place.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
            place = place.tb_next
        sys.excepthook(type(error), error.with_traceback(place), place)
        sys.exit(1)


def run(arguments: list[str], names: dict[str, Any]) -> None:
    kind, *rest = arguments
    if kind == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = ["-c", *rest[1:]] if kind == "-c" else arguments
    if kind == "-c":
        code = compile(rest[0], "<string>", "exec")
    else:
        path = os.path.join(os.getcwd(), kind)
        sys.path[0] = os.path.dirname(os.path.realpath(path))
        names["__file__"] = path
        code = compile(Path(path).read_bytes(), path, "exec")
    exec(code, names)
