"""`python -m pycompiler report script.py`: runs a program and writes its report; `trace DIR`: the report of a folder of traces.

In: a program with its arguments, or a folder from `PYCOMPILER_TRACE` or `TORCH_TRACE`.  Out: one HTML file, advice as
text, and the program's own exit status; 2 if nothing was run.  The program runs in a child.  If a signal ends it, the
page has all events until then, a line names the signal, and the exit status is 128 plus its number.  `--every` writes the
page meanwhile, `--serve [PORT]` shows it in a browser meanwhile, and `--diff OLD NEW` compares two reports.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pycompiler.debug import child_program, program
from pycompiler.debug.document import Document
from pycompiler.debug.events import event_of
from pycompiler.debug.trace import read
from pycompiler.errors import ArgumentError

if TYPE_CHECKING:
    from pycompiler.debug.report_server import ReportServer

DEFAULT = "pycompiler_report.html"
OPTIONS = {"-o": 1, "--out": 1, "--json": 1, "--every": 1, "--diff": 2}  # number of values of each


def port(text: str) -> int:
    """A port of `--serve`; 0: a free one."""
    if text.isdecimal() and int(text) < 1 << 16:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no port: expected a number from 0 to 65535, such as --serve 8000; "
                                     "write --serve alone for a free port")  # fmt: skip


def with_port(arguments: Sequence[str]) -> list[str]:
    """The arguments with an explicit port: `--serve script.py` has none, and argparse would take the script for it."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] not in ("-", "--", "-m"):
        if arguments[at] == "--serve" and not "".join(arguments[at + 1 : at + 2]).lstrip("-").isdecimal():
            return [*arguments[:at], "--serve=0", *arguments[at + 1 :]]
        at += 1 + (1 if arguments[at] == "--serve" else OPTIONS.get(arguments[at], 0))
    return list(arguments)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", default=DEFAULT, help=f"path of the page (default: {DEFAULT})")
    parser.add_argument("--json", help="also write the document as JSON to this path")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="also write the page while the program runs")
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--diff", nargs=2, metavar=("OLD", "NEW"), help="compare two reports (--json, or pages), and run nothing"
    )
    either.add_argument(
        "--serve", type=port, metavar="PORT", nargs="?", const=0,
        help="show the page at http://127.0.0.1:PORT/ while the program runs, and after its end until Ctrl-C "
        "(default: a free port)",
    )  # fmt: skip
    parser.add_argument("--no-costs", action="store_true", help="do not measure guards and steps")
    program.add_arguments(parser)


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", help=f"path of the page (default: {DEFAULT} in the folder)")
    parser.add_argument(
        "--serve", type=port, metavar="PORT", nargs="?", const=0,
        help="show the page at http://127.0.0.1:PORT/ until Ctrl-C, while programs write to the folder "
        "(default: a free port); a file is written only with --out",
    )  # fmt: skip
    parser.add_argument("folder", help="a folder of traces, or one of its files")


def main(options: argparse.Namespace) -> int:
    if options.diff:
        return diff(*map(Path, options.diff))
    chosen = program.chosen(options, "report")
    out = Path(options.out)
    if chosen is None or not may_write(out) or not (options.json is None or may_write(Path(options.json))):
        return 2
    folder = Path(tempfile.mkdtemp())  # not TemporaryDirectory: the child would remove it at its end
    server = None
    try:
        if options.serve is not None:
            server = served(options.serve, folder, os.path.basename(chosen.name), runs=True)
            print(f"report: {server.url} shows the page while the program runs", file=sys.stderr)
        ended = child_program.run(
            chosen,
            folder,
            costs=not options.no_costs,
            every=options.every,
            meanwhile=lambda: write_running(folder, out),
            server=server,
        )
        if ended.signal:
            print(f"report: {ended}; the page shows all until then", file=sys.stderr)
        if server is not None:
            server.report.ended = ended
        write(Document.of([*read(folder), ended.event()]), out, options.json)
        if server is not None:
            serve_until_interrupt(server)
    except ArgumentError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    finally:
        if server is not None:
            server.close()
        shutil.rmtree(folder, ignore_errors=True)
    return ended.status


def served(number: int, place: Path, name: str, *, runs: bool) -> ReportServer:
    """The server of a folder's report, which listens but does not answer yet; ArgumentError for an unusable port."""
    from pycompiler.debug.report_server import ReportServer, TraceReport  # imported only to serve

    return ReportServer(TraceReport(place, name, runs), number)


def serve_until_interrupt(server: ReportServer) -> None:
    from pycompiler.debug.report_server import wait_for_interrupt

    wait_for_interrupt(f"report: {server.url} shows the page until Ctrl-C")


def diff(old: Path, new: Path) -> int:
    from pycompiler.debug.comparison import Comparison, read  # imported only to compare

    try:
        print(Comparison.of(read(old), read(new)))
    except ArgumentError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    return 0


def write_running(folder: Path, out: Path) -> None:
    """Write the page of a program that still runs; a reader never sees half a page."""
    from pycompiler.debug.page import page  # imported only for a page

    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(page(Document.of([*read(folder), event_of("running")])), encoding="utf-8")
        temporary.replace(out)
    except (OSError, ArgumentError) as error:
        print(f"report: no page while the program runs: {error}", file=sys.stderr)
        temporary.unlink(missing_ok=True)


def may_write(path: Path) -> bool:
    """Whether a file can be created there, checked before the program runs."""
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        print(f"report: {path} cannot be written: {error.strerror or error}", file=sys.stderr)
        return False
    return True


def trace_main(options: argparse.Namespace) -> int:
    place = Path(options.folder)
    if options.serve is not None:
        try:
            server = served(options.serve, place, place.name or str(place), runs=False)
        except ArgumentError as error:
            print(f"trace: {error}", file=sys.stderr)
            return 2
        server.start()
        serve_until_interrupt(server)
        server.close()
        if options.out is None:
            return 0
    try:
        events = list(read(place))
    except ArgumentError as error:
        print(f"trace: {error}", file=sys.stderr)
        return 2
    if not events:
        why = "no traces (*.jsonl) of pycompiler" if place.exists() else "no such folder or file"
        print(f"trace: {place}: {why}", file=sys.stderr)
        return 1
    out = Path(options.out or (place if place.is_dir() else place.parent) / DEFAULT)
    if not may_write(out):
        return 2
    write(Document.of(events), out, None)
    return 0


def write(document: Document, out: Path, json_out: str | None) -> None:
    import json

    from pycompiler.debug.page import page  # imported only for a page

    out.write_text(page(document), encoding="utf-8")
    if json_out:
        Path(json_out).write_text(json.dumps(document.data), encoding="utf-8")
    print(f"{document}\n\nreport: {out}", file=sys.stderr)
