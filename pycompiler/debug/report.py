"""`python -m pycompiler report script.py`: runs a program and writes its report; `trace DIR`: the report of a folder of traces.

In: a program with its arguments, or a folder from `PYCOMPILER_TRACE` or `TORCH_TRACE`.  Out: one HTML file, advice as
text, and the program's own exit status; 2 if nothing was run.  The program runs in a child.  If a signal ends it, the
page has all events until then, a line names the signal, and the exit status is 128 plus its number.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from pycompiler.debug import child_program, program
from pycompiler.debug.document import Document
from pycompiler.debug.trace import read
from pycompiler.errors import ArgumentError

DEFAULT = "pycompiler_report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", default=DEFAULT, help=f"path of the page (default: {DEFAULT})")
    parser.add_argument("--json", help="also write the document as JSON to this path")
    parser.add_argument("--no-costs", action="store_true", help="do not measure guards and steps")
    program.add_arguments(parser)


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", help=f"path of the page (default: {DEFAULT} in the folder)")
    parser.add_argument("folder", help="a folder of traces, or one of its files")


def main(options: argparse.Namespace) -> int:
    chosen = program.chosen(options, "report")
    out = Path(options.out)
    if chosen is None or not may_write(out) or not (options.json is None or may_write(Path(options.json))):
        return 2
    folder = Path(tempfile.mkdtemp())  # not TemporaryDirectory: the child would remove it at its end
    try:
        ended = child_program.run(chosen, folder, costs=not options.no_costs)
        if ended.signal:
            print(f"report: {ended}; the page shows all until then", file=sys.stderr)
        write(Document.of([*read(folder), ended.event()]), out, options.json)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ended.status


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
