"""The origin of an entry of the kernel cache: the program and the compile that built it.

In: the running program, and the compile of this thread (`ir/compile_names.py`).  Out: `origin.json` in the entry's folder;
`Origin`, read back for `cache ls`.  No digest covers the file: an entry without it, or with a damaged one, stays valid.

Example: `[0/1/forward] step#1.forward at train.py:12, made by /home/me/train.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from pycompiler.ir import compile_names

FILE = "origin.json"
LARGEST = 1 << 16  # bytes that are read
INTERACTIVE = "an interactive program"


@dataclass(frozen=True)
class Origin:
    """`program`: path of the script or module.  The other fields are empty for an entry that no compile built, for example one
    that a saved artefact contained.

    Attributes:
        program: The path of the program.
        compile: The compile's id and name.
        file: The file of the compiled function.
        line: The line at which the compiled code begins.
    """

    program: str
    compile: str = ""
    file: str = ""
    line: int = 0

    @staticmethod
    def current() -> Origin:
        known = compile_names.current()
        if known is None:
            return Origin(program())
        return Origin(program(), str(known), known.code.co_filename, known.line)

    def __str__(self) -> str:
        at = f"{self.compile} at {os.path.basename(self.file)}:{self.line}, " if self.compile else ""
        text = f"{at}made by {self.program}"
        return "".join(c if c.isprintable() else "?" for c in text)  # a path may contain control codes of terminals


def program() -> str:
    """The path of the running script or module; `-c` for a program in the command."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.abspath(file) if file else (sys.argv[0] if sys.argv else "") or INTERACTIVE


def write(folder: Path) -> None:
    """Write the origin into the folder of a new entry.  An error has no effect: the entry is valid without the file."""
    with contextlib.suppress(OSError):
        (folder / FILE).write_text(json.dumps(asdict(Origin.current())))
        os.chmod(folder / FILE, 0o600)


def read(folder: Path) -> Origin | None:
    """The origin of an entry; None for an entry of an earlier version, and for a file that is not as written."""
    try:
        always = os.O_NOFOLLOW | os.O_NONBLOCK  # no link, and no wait for a pipe
        with open(folder / FILE, "rb", opener=lambda path, flags: os.open(path, flags | always)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = json.loads(file.read(LARGEST))
        origin = Origin(**{field.name: data[field.name] for field in fields(Origin)})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    texts = (origin.program, origin.compile, origin.file)
    return origin if all(isinstance(t, str) for t in texts) and type(origin.line) is int else None
