"""Fixture of programs in modules of their own, which a test may change after saving them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[str], ModuleType]]:
    """`program(text)` is the module `artefact_program` with this source; each call creates it anew."""
    name = "artefact_program"
    folder = tmp_path / "program"
    folder.mkdir()
    sys.path.insert(0, str(folder))
    count = 0

    def make(text: str) -> ModuleType:
        nonlocal count
        count += 1
        sys.modules.pop(name, None)
        path = folder / f"{name}.py"
        path.write_text(text + f"\n# {'x' * count}\n")  # another size: a cached .pyc of the same second is then invalid
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield make
    sys.path.remove(str(folder))
    sys.modules.pop(name, None)
