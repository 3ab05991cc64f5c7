"""`python -m pycompiler`: `doctor` says what this machine gives the compiler, `cache` shows and cleans its kernels."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pycompiler.debug import cache_commands, doctor


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pycompiler", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="checks compiler, OpenMP, GPU, cache, engine; says what to do")
    cache_commands.add_arguments(commands.add_parser("cache", help="the kernel cache: ls, rm, verify"))
    options = parser.parse_args(arguments)
    return doctor.main() if options.command == "doctor" else cache_commands.main(options)


if __name__ == "__main__":
    sys.exit(main())
