"""The break fuzzer: `python -m tests.fuzz.breaks --count 1000 --seed 0 --jobs 1 --seconds 600` (from the root).

`forks.py` runs its programs (`break_programs.py`), `break_check.py` compares them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from fuzz import forks


class Breaks:
    """The programs of the break fuzzer, in the form of `forks.Subject`."""

    def text(self, seed: int) -> str:
        from fuzz.break_programs import generate, source

        return source(generate(seed))

    def difference(self, text: str, backend: str) -> str | None:
        from fuzz.break_check import difference

        return difference(text, backend)

    def kind(self, found: str) -> str:
        return found.partition(":")[0].partition(", ")[2]

    def reduced(self, seed: int | None, text: str, fails: Callable[[str], bool]) -> str:
        from fuzz.break_check import reduced
        from fuzz.break_programs import generate, source

        return text if seed is None else source(reduced(generate(seed), fails, 300))


def main() -> int:
    return forks.command(Breaks(), forks.options("python -m tests.fuzz.breaks", __doc__).parse_args())


if __name__ == "__main__":
    sys.exit(main())
