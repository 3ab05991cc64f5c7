"""A program, run as Python would run it: a script, a folder with a `__main__.py`, `-m module`, or standard input (`-`).

In: the arguments of a command of `python -m pycompiler`.  Out: the program's exit status.  Its tracebacks contain only
frames of the program.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.machinery
import importlib.util
import linecache
import os
import runpy
import sys
import traceback
import types
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

INTERRUPTED = 130  # a shell's status for a process that Ctrl-C ended
INPUT = "<stdin>"


@dataclass(frozen=True)
class UserProgram:
    name: str
    arguments: list[str] = field(default_factory=list)
    is_module: bool = False

    @staticmethod
    def of(options: argparse.Namespace) -> UserProgram:
        if options.module:
            return UserProgram(options.module[0], options.module[1:], is_module=True)
        return UserProgram(options.script, options.arguments)

    def why_not(self) -> str | None:
        """The reason why the program cannot run, or None."""
        if self.is_module:
            sys.path[0] = os.getcwd()
            try:
                found = importlib.util.find_spec(self.name)
            except (ImportError, ValueError) as error:
                return f"no module {self.name}: {error}"
            return None if found else f"no module {self.name} (in {os.getcwd()}, or installed)"
        path = Path(self.name)
        if self.name == "-" or path.is_file() or (path / "__main__.py").is_file():
            return None
        if path.is_dir():
            return f"{self.name} is a folder without a __main__.py"
        return f"no file {self.name} (in {os.getcwd()}); a module is run by -m {self.name.removesuffix('.py')}"

    def run(self) -> None:
        """Run the program in this process.  Its exceptions, SystemExit too, propagate."""
        sys.argv = [self.name, *self.arguments]
        if self.is_module:
            sys.path[0] = os.getcwd()
            runpy.run_module(self.name, run_name="__main__", alter_sys=True)
        elif self.name == "-":
            self.run_input()
        elif Path(self.name).is_dir() or self.name.endswith(".pyc") or zipfile.is_zipfile(self.name):
            sys.path[0] = str(Path(self.name).resolve().parent)
            runpy.run_path(self.name, run_name="__main__")
        else:
            self.run_file(os.path.join(os.getcwd(), self.name))

    def run_file(self, path: str) -> None:
        """Run a file under its full path, as Python does: its lines are found even if the program changes its folder."""
        with open(path, "rb") as file:
            code = importlib.machinery.SourceFileLoader("__main__", path).source_to_code(file.read(), path)
        sys.path[0] = str(Path(path).resolve().parent)
        run_main(code, __file__=path, __cached__=None)

    def run_input(self) -> None:
        source = sys.stdin.read()
        linecache.cache[INPUT] = (len(source), None, source.splitlines(keepends=True), INPUT)
        sys.path[0] = ""
        run_main(compile(source, INPUT, "exec"))

    def status(self) -> int:
        """Run the program; returns Python's exit status, after printing its traceback."""
        try:
            self.run()
        except SystemExit as error:
            if error.code is None or isinstance(error.code, int):
                return error.code or 0
            print(error.code, file=sys.stderr)
            return 1
        except BaseException as error:
            print_program_traceback(error)
            return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        return 0


def run_main(code: types.CodeType, **names: object) -> None:
    before, module = sys.modules["__main__"], types.ModuleType("__main__")
    module.__dict__.update(names)
    sys.modules["__main__"] = module
    try:
        exec(code, module.__dict__)
    finally:
        sys.modules["__main__"] = before


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for a script with its arguments, or -m with a module's."""
    parser.usage = f"{parser.prog} [options] script ... | -m module ... | -"
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, help="run a module, with the arguments that follow"
    )
    parser.add_argument("script", nargs="?", help="a file, a folder with a __main__.py, or - for standard input")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)


def chosen(options: argparse.Namespace, command: str) -> UserProgram | None:
    """The program to run; None after printing the reason why there is none."""
    if not options.module and options.script is None:
        print(f"{command}: which program? a script, -m module, or - for standard input", file=sys.stderr)
        return None
    program = UserProgram.of(options)
    if (reason := program.why_not()) is not None:
        print(f"{command}: {reason}", file=sys.stderr)
        return None
    return program


def print_program_traceback(error: BaseException) -> None:
    """Print the traceback from the program's first frame on."""
    place = error.__traceback__
    while place is not None and _is_runner(place.tb_frame.f_code):
        place = place.tb_next
    traceback.print_exception(type(error), error, place)


def _is_runner(code: types.CodeType) -> bool:
    return code.co_filename == __file__ or Path(code.co_filename).name in ("runpy.py", "<frozen runpy>")


@contextlib.contextmanager
def at_exits(told: Callable[[int], None]) -> Iterator[None]:
    """Context manager: call `told(status)` before an `os._exit` of this process; forks exit directly."""
    leave, own = os._exit, os.getpid()

    def tell(status: int) -> NoReturn:
        if os.getpid() == own:
            told(status)
        leave(status)

    os._exit = tell
    try:
        yield
    finally:
        os._exit = leave
