"""The fuzzer of the compiler: `python -m tests.fuzz.compiler --count 50000 --seed 1 --jobs 16` (from the repository's root).

Random tensor programs, forward and backward, beside eager: values, dtypes, shapes, strides, aliasing, versions, gradients,
mutation of arguments, errors.  Prints each program that differs with its seed, the counts, and a reduced script for the first
program of each group.  With an installed wheel: `python tests/fuzz/compiler.py ...` from a plain checkout.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from fuzz.programs import campaign  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.compiler", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="programs")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first program; each program has the next seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--backend", default="native", help="native, aot_eager or eager")
    parser.add_argument("--seconds", type=float, default=1e9, help="no new processes after this time")
    parser.add_argument("--reduce", type=int, default=24, help="number of findings to reduce, some of each group")
    parser.add_argument("--out", type=Path, help="folder for the scripts of findings")
    chosen = parser.parse_args()
    if any((ROOT / "pycompiler").glob("_native*.so")):  # otherwise the installed wheel
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return campaign.run(
        chosen.seed, chosen.count, chosen.jobs, chosen.device, chosen.backend, chosen.seconds, chosen.reduce, chosen.out
    )


if __name__ == "__main__":
    sys.exit(main())
