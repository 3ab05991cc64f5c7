"""The package's own builtins: what a program puts into `builtins` is called by the program, not by its compiler.

In: nothing.  Out: every module of the package that is imported after this one finds a copy of the builtins behind its
globals; `replaced`, since torch's Python, which compiles run as well, finds the program's.
Example: after ``builtins.len = f`` graphs are not compiled, and what was compiled before calls `f` where the program does.
"""

from __future__ import annotations

import builtins
import sys
import types
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import Any

_NOW = vars(builtins)
OWN: dict[str, Any] = dict(_NOW)

# Put in place by shells, consoles and import hooks: nothing that a compile computes follows from them.
_OUTWARD = ("print", "input", "open", "breakpoint", "exit", "quit", "help", "copyright", "credits", "license", "_",
            "__import__", "__doc__", "__loader__", "__spec__")  # fmt: skip
RELIED_ON = {name: value for name, value in OWN.items() if name not in _OUTWARD}


def replaced() -> str:
    """The name of a builtin that is not what it was when the package was imported, or ""."""
    for name, value in RELIED_ON.items():
        if _NOW.get(name) is not value:
            return f"builtins.{name}"
    return ""


class _Loader(SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__builtins__"] = OWN  # functions keep what they find there when they are made
        super().exec_module(module)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: types.ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("pycompiler."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader.__class__ is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


sys.meta_path.insert(0, _Finder)
