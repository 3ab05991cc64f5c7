"""The program fuzzer: `python -m tests.fuzz.python --count 20000 --seed 0 --jobs 2 --seconds 3600` (from the root).

`--peer` compiles with torch.compile instead, which shows whether the fuzzer can find faults. `--cut` reduces the
program of `--file` (or of `--seed`).
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from fuzz import forks


class Programs:
    """The programs of the program fuzzer, in the form of `forks.Subject`."""

    def __init__(self) -> None:
        self.ended_by: set[str] = set()

    def text(self, seed: int) -> str:
        from fuzz.python.generate import generate

        return generate(seed)

    def difference(self, text: str, backend: str) -> str | None:
        from fuzz.python.check import difference

        self.ended_by.clear()
        return difference(text, backend, self.ended_by)

    def too_many(self, ended_by: Counter[str], programs: int) -> list[str]:
        return forks.too_many(ended_by, programs)

    def kind(self, found: str) -> str:
        kind, _, what = found.partition(", ")[2].partition(":")
        if kind == "state":  # the object that differs
            return f"{kind}:{what.split('.')[1] if '.' in what else what}"
        return f"{kind}:{re.sub('[0-9]+', '', what)[:200]}" if kind == "error" else kind

    def reduced(self, seed: int | None, text: str, fails: Callable[[str], bool]) -> str:
        from fuzz.python.reduce import reduced

        return reduced(text, fails)


def main() -> int:
    parser = forks.options("python -m tests.fuzz.python", __doc__)
    parser.add_argument("--peer", dest="backend", action="store_const", const="peer", help="compile with torch.compile")
    parser.add_argument("--cut", action="store_true", help="reduce the program of --file or --seed")
    arguments = parser.parse_args()
    programs = Programs()
    if arguments.cut:
        forks.prepare(programs)
        text = Path(arguments.file).read_text() if arguments.file else programs.text(arguments.seed)
        backend = forks.backend_of(0 if arguments.file else arguments.seed, arguments.backend)
        print(forks.cut_down(programs, None, text, backend))
        return 0
    return forks.command(programs, arguments)


if __name__ == "__main__":
    sys.exit(main())
