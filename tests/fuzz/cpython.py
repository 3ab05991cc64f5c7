"""CPython's own tests with each test function and its calls compiled: `python -m tests.fuzz.cpython test_dict test_set` (from the root).

A test whose result differs from the uncompiled result is printed with the end of its traceback. Each module runs in a child
process, each test first uncompiled. A test that ends its child is named, and the next child leaves the test out. A test that takes
too long to compile gets more time in a separate child; with the uncompiled result there, it counts as slow, not as different.
`--only TEXT` takes the tests whose names contain it, `--all` all of `MODULES`. Exit status 1 if there were differences.
"""

from __future__ import annotations

import argparse
import atexit
import faulthandler
import functools
import importlib
import io
import json
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
MODULES = (
    "test_list", "test_dict", "test_set", "test_tuple", "test_str", "test_unicode", "test_int", "test_long", "test_float",
    "test_bool", "test_complex", "test_generators", "test_generator_stop", "test_iter", "test_itertools", "test_functools",
    "test_contextlib", "test_enum", "test_dataclasses", "test_exceptions", "test_exception_group", "test_exception_variations",
    "test_raise", "test_with", "test_collections", "test_userdict", "test_userlist", "test_defaultdict", "test_deque",
    "test_ordered_dict", "test_descr", "test_class", "test_range", "test_slice", "test_operator", "test_property", "test_super",
    "test_enumerate", "test_scope", "test_closure", "test_patma", "test_unpack", "test_unpack_ex", "test_extcall", "test_grammar",
    "test_listcomps", "test_setcomps", "test_dictcomps", "test_genexps", "test_named_expressions", "test_positional_only_arg",
    "test_keywordonlyarg", "test_call", "test_compare", "test_richcmp", "test_binop", "test_augassign", "test_isinstance",
    "test_abc", "test_subclassinit", "test_metaclass", "test_typechecks", "test_weakref", "test_weakset", "test_copy",
    "test_math", "test_random", "test_heapq", "test_bisect", "test_string", "test_format", "test_fstring", "test_builtin",
    "test_funcattrs", "test_decorators", "test_global", "test_userstring", "test_dictviews", "test_dynamicclassattribute",
    "test_types", "test_contains", "test_index", "test_opcodes", "test_print", "test_hash", "test_pow", "test_reprlib",
    "test_stringprep", "test_sys_settrace", "test_yield_from", "test_coroutines", "test_asyncgen", "test_typing",
    "test_sort", "test_baseexception", "test_exception_hierarchy", "test_except_star", "test_fractions", "test_numeric_tower",
    "test_abstract_numbers", "test_genericalias", "test_genericclass", "test_type_params", "test_context", "test_unary",
    "test_cmath", "test_graphlib", "test_textwrap", "test_pprint", "test_struct", "test_string_literals", "test_difflib",
)  # fmt: skip
"""The modules of `--all`; a version of Python without one of them skips it."""
PATIENCE = 30
"""Processor seconds for one test; the limit by the clock is ten times as long, for a busy machine."""
MORE = 20
"""Factor of the time limit when a late test runs again."""
MEMORY = 12 << 30
WORDY = 900
"""Characters printed of a traceback."""


class Late(BaseException):
    """A test exceeds its time."""


def cases(module: str) -> Iterator[unittest.TestCase]:
    """The tests of a module: its test methods written in Python."""
    todo: list[Any] = [unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(f"test.{module}"))]
    while todo:
        test = todo.pop(0)
        if isinstance(test, unittest.TestSuite):
            todo[:0] = list(test)
        elif hasattr(getattr(test, getattr(test, "_testMethodName", ""), None), "__func__"):
            yield test


class Alarm:
    """Raises `Late` in a test that exceeds its time."""

    def __init__(self, patience: int) -> None:
        self.patience, self.rang = patience, False
        signal.signal(signal.SIGALRM, self.ring)
        signal.signal(
            signal.SIGPROF, lambda *_: signal.raise_signal(signal.SIGALRM)
        )  # a compile has safe points for this

    def ring(self, signum: int, frame: FrameType | None) -> None:
        self.rang = True
        raise Late

    def set(self, seconds: int) -> None:
        """Start the limit now; without seconds: no limit."""
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.alarm(10 * seconds)

    def __enter__(self) -> Alarm:
        self.rang = False
        self.set(self.patience)
        return self

    def __exit__(self, *error: object) -> None:
        self.set(0)


def outcome(test: unittest.TestCase, alarm: Alarm, *, compiled: bool) -> tuple[str, str]:
    """The outcome of a test ("ok", "skipped", "failed", "late"), and the end of its traceback."""
    import pycompiler

    name = test._testMethodName
    if compiled:
        method = getattr(test, name)
        setattr(test, name, pycompiler.compile(method.__func__, backend="eager").__get__(test))
    result = unittest.TestResult()
    re.purge()  # `re` warns once per cached pattern
    limit, stdout = sys.getrecursionlimit(), sys.stdout
    try:
        sys.stdout = io.StringIO()
        with alarm:
            test.run(result)
    except Late:
        pass
    finally:
        sys.stdout = stdout
        sys.setrecursionlimit(limit)
        vars(test).pop(name, None)
    bad = [text for _, text in (*result.errors, *result.failures)]
    if alarm.rang:  # the test may have caught the exception
        return "late", "".join(bad[:1])
    return ("failed", bad[0]) if bad else ("skipped", "") if result.skipped else ("ok", "")


def child(module: str, only: str, without: list[str], patience: int, out: io.TextIOBase) -> None:
    """Print the name of each test, then both of its outcomes as a line of JSON."""
    faulthandler.enable()
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most), most))
    alarm = Alarm(patience)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    sys.setrecursionlimit(1000)
    import pycompiler
    from pycompiler.capture.interpreter import frame

    # Otherwise a call without a graph that returns its inputs or constants runs uncompiled, and nothing is compared.
    frame.return_template = lambda head, result: None
    found = [t for t in cases(module) if only in t.id() and t.id() not in without]
    again = list(cases(module))
    fresh = {t.id(): t for t in again}
    for test in found:
        print(json.dumps([test.id()]), file=out, flush=True)
        plain = outcome(test, alarm, compiled=False)
        ours = outcome(fresh[test.id()], alarm, compiled=True)
        pycompiler.reset()
        print(json.dumps([test.id(), plain, ours]), file=out, flush=True)


@functools.cache
def elsewhere() -> str:
    """A folder with CPython's tests outside of the standard library, so that their functions count as the program's.
    Functions that a test calls after a graph break, or passes to C code, are then compiled, too."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    os.symlink(Path(importlib.import_module("test").__file__ or "").parent, Path(folder.name) / "test")
    return folder.name


def run(module: str, only: str = "", patience: int = PATIENCE) -> tuple[int, list[tuple[str, str]], list[str]]:
    """The number of tests that ran, the differences of a module (names and tracebacks), and the slow tests."""
    ended: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {}
    broken: list[tuple[str, str]] = []
    while True:
        without = [*ended, *(name for name, _ in broken)]
        begun: str | None = None
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            read, write = os.pipe()
            command = [sys.executable, "-c", START, module, only, str(write), json.dumps(without), str(patience)]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join((elsewhere(), os.environ.get("PYTHONPATH", "")))}
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, pass_fds=[write], stdout=subprocess.DEVNULL, stderr=errors
            )
            os.close(write)
            with open(read) as lines:
                for line in lines:
                    name, *both = json.loads(line)
                    begun = None if both else name
                    if both:
                        ended[name] = both[0], both[1]
            code = process.wait()
            errors.seek(0)
            said = errors.read()[-WORDY:]
        if code == 0:
            break
        if begun is None:
            broken.append((module, said))
            break
        broken.append((begun, f"ends its process: {code}\n{said}"))
    slow: list[str] = []
    different: list[tuple[str, str]] = []
    for name, (plain, ours) in ended.items():
        if ours[0] == "late" != plain[0] and patience == PATIENCE:
            _, late, _ = run(module, name, MORE * PATIENCE)
            different += late
            slow += [] if late else [name]
        elif plain[0] != ours[0]:
            different.append((name, f"{plain[0]} -> {ours[0]}\n{(ours[1] or plain[1])[-WORDY:]}"))
    return len(ended), broken + different, slow


START = (
    "import sys, json; sys.path.insert(0, 'tests'); from fuzz.cpython import child; "
    "child(sys.argv[1], sys.argv[2], json.loads(sys.argv[4]), int(sys.argv[5]), open(int(sys.argv[3]), 'w'))"
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.cpython", description=__doc__)
    parser.add_argument("modules", nargs="*", help="modules of CPython's test package")
    parser.add_argument("--only", default="", help="tests whose names contain this")
    parser.add_argument("--all", action="store_true", help="all modules of the list")
    chosen = parser.parse_args()
    total = 0
    for module in MODULES if chosen.all else chosen.modules:
        count, found, slow = run(module, chosen.only)
        total += len(found)
        print(f"== {module}: {count} tests, {len(found)} different, {len(slow)} slow", flush=True)
        for name in slow:
            print(f"-- {name} takes longer than {PATIENCE} s compiled, with the uncompiled result", flush=True)
        for name, text in found:
            print(f"-- {name}\n   {text.strip()}".replace("\n", "\n   "), flush=True)
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
