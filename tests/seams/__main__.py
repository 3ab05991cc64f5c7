"""`python -m tests.seams program.py [--triton]`: the first seam at which the file's `fn(*args)` differs from eager."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.seams", description=__doc__)
    parser.add_argument("program", help="a Python file with `fn` and `args` (a list, or a function that makes it)")
    parser.add_argument("--triton", action="store_true", help="also Triton kernels, under Triton's interpreter")
    chosen = parser.parse_args()
    if chosen.triton:
        os.environ["TRITON_INTERPRET"] = "1"
    from seams import first_difference

    module = runpy.run_path(chosen.program)
    args = module["args"]() if callable(module["args"]) else module["args"]
    found = first_difference(module["fn"], args)
    print(found or "no difference")
    if found is not None and found.error is not None:
        traceback.print_exception(found.error)
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main())
