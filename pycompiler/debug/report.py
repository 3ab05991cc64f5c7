"""`python -m pycompiler report script.py`: runs a program and writes its report; `trace DIR`: the report of a folder of traces.

In: a program with its arguments, or a folder from `PYCOMPILER_TRACE` or `TORCH_TRACE`.  Out: one HTML file, advice as
text, and the program's own exit status; 2 if nothing was run.  The program runs in a child.  If a signal ends it, the
page has all events until then, a line names the signal, and the exit status is 128 plus its number.  `--every` writes the
page meanwhile, and `--diff OLD NEW` compares two reports.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from pycompiler.debug import child_program, program
from pycompiler.debug.document import Document
from pycompiler.debug.events import event_of
from pycompiler.debug.trace import read
from pycompiler.errors import ArgumentError

DEFAULT = "pycompiler_report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", default=DEFAULT, help=f"path of the page (default: {DEFAULT})")
    parser.add_argument("--json", help="also write the document as JSON to this path")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="also write the page while the program runs")
    parser.add_argument(
        "--diff", nargs=2, metavar=("OLD", "NEW"), help="compare two reports (--json, or pages), and run nothing"
    )
    parser.add_argument("--no-costs", action="store_true", help="do not measure guards and steps")
    program.add_arguments(parser)


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", help=f"path of the page (default: {DEFAULT} in the folder)")
    parser.add_argument("folder", help="a folder of traces, or one of its files")


def main(options: argparse.Namespace) -> int:
    if options.diff:
        return diff(*map(Path, options.diff))
    chosen = program.chosen(options, "report")
    out = Path(options.out)
    if chosen is None or not may_write(out) or not (options.json is None or may_write(Path(options.json))):
        return 2
    folder = Path(tempfile.mkdtemp())  # not TemporaryDirectory: the child would remove it at its end
    try:
        ended = child_program.run(
            chosen,
            folder,
            costs=not options.no_costs,
            every=options.every,
            meanwhile=lambda: write_running(folder, out),
        )
        if ended.signal:
            print(f"report: {ended}; the page shows all until then", file=sys.stderr)
        write(Document.of([*read(folder), ended.event()]), out, options.json)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ended.status


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
