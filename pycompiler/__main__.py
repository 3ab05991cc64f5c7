"""`python -m pycompiler`: `report` runs a program and shows what was compiled, and why; `trace` does so for a folder of traces;
`bisect` finds the part of a compile that makes a program wrong; `replay` runs a recorded frame alone; `doctor` says what this
machine gives the compiler, `cache` shows and cleans its kernels; `operator` lists which tables take an operator."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from pycompiler.debug import bisect, cache_commands, doctor, operators, replaying, report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pycompiler", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="checks compiler, OpenMP, GPU, cache, engine; says what to do")
    cache_commands.add_arguments(commands.add_parser("cache", help="the kernel cache: ls, rm, verify"))
    bisect.add_arguments(commands.add_parser("bisect", help="which part of a compile makes a program wrong"))
    report.add_arguments(commands.add_parser("report", help="runs a script and writes what was compiled as a page"))
    replaying.add_arguments(
        commands.add_parser("replay", help="runs a frame that was recorded when its compile failed")
    )
    report.add_trace_arguments(commands.add_parser("trace", help="the page of a folder of traces (PYCOMPILER_TRACE)"))
    operators.add_arguments(commands.add_parser("operator", help="the way of an operator from a call to a kernel"))
    options = parser.parse_args(arguments)
    return MAINS[options.command](options)


MAINS: dict[str, Callable[[argparse.Namespace], int]] = {
    "doctor": lambda _: doctor.main(),
    "cache": cache_commands.main,
    "bisect": bisect.main,
    "operator": operators.main,
    "replay": replaying.main,
    "report": report.main,
    "trace": report.trace_main,
}


if __name__ == "__main__":
    sys.exit(main())
