"""The package's own builtins: a program's replacement of a builtin is called by the program, not by its compiler.

In: nothing.  Out: each module of the package that is imported after this one gets a copy of the builtins.
`replaced` reports replacements, since torch's Python code, which compiles run too, sees the program's builtins.

Example: after ``builtins.len = f``, graphs are not compiled, and code compiled before calls `f` where the program does.
"""

from __future__ import annotations

import builtins
import operator
import sys
import types
from collections.abc import Callable
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import Any

_NOW = vars(builtins)
OWN: dict[str, Any] = dict(_NOW)

# Replaced by shells, consoles and import hooks; no result of a compile depends on them.
_OUTWARD = ("print", "input", "open", "breakpoint", "exit", "quit", "help", "copyright", "credits", "license", "_",
            "__import__", "__doc__", "__loader__", "__spec__")  # fmt: skip
RELIED_ON = {name: value for name, value in OWN.items() if name not in _OUTWARD}
_read, _VALUES = operator.itemgetter(*RELIED_ON), (*RELIED_ON.values(),)
_all, _map = all, map  # bound now: this module itself has no own builtins


def replaced() -> str:
    """The name of a builtin that has changed since the package was imported, or ""."""
    try:
        if _all(_map(operator.is_, _read(_NOW), _VALUES)):
            return ""
    except KeyError:  # it was deleted
        pass
    for name, value in RELIED_ON.items():
        if _NOW.get(name) is not value:
            return f"builtins.{name}"
    return ""


class _Finder:
    """A finder that delegates to all others (also the program's import hooks), and loads modules with the package's builtins."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: types.ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("pycompiler."):
            return None
        others = (finder for finder in sys.meta_path if finder is not _Finder)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            load: Any = spec.loader
            load.exec_module = partial(_run, load.exec_module)
        return spec


def _run(run: Callable[[types.ModuleType], None], module: types.ModuleType) -> None:
    module.__dict__["__builtins__"] = OWN  # functions bind this namespace when they are created
    run(module)


sys.meta_path.insert(0, _Finder)
