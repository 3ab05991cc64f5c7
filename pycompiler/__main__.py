"""`python -m pycompiler`: `report` runs a program and shows what was compiled, and why; `trace` does so for a folder of traces;
`bisect` finds the part of a compile that makes a program wrong; `replay` runs a recorded frame alone; `doctor` checks this
machine's compiler, GPU and caches; `cache` shows and cleans the kernel cache; `operator` lists the tables that handle
an operator."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from pycompiler.debug import bisect, cache_commands, doctor, operators, replaying, report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pycompiler", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="checks compiler, OpenMP, GPU, cache and engine, with advice")
    cache_commands.add_arguments(commands.add_parser("cache", help="the kernel cache: ls, rm, verify"))
    bisect.add_arguments(commands.add_parser("bisect", help="finds the part of a compile that makes a program wrong"))
    report.add_arguments(commands.add_parser("report", help="runs a script and writes its compiles as a page"))
    replaying.add_arguments(
        commands.add_parser("replay", help="runs a frame that was recorded when its compile failed")
    )
    report.add_trace_arguments(
        commands.add_parser("trace", help="writes a folder of traces (PYCOMPILER_TRACE) as a page")
    )
    operators.add_arguments(
        commands.add_parser("operator", help="shows the path of an operator from a call to its kernel")
    )
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args([*given[:1], *report.with_port(given[1:])])
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
