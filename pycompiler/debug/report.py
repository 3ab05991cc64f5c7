"""`python -m pycompiler report script.py`: runs a program and writes its report; `trace DIR`: the report of a folder of traces.

In: a script with its arguments, or a folder that `PYCOMPILER_TRACE` or `TORCH_TRACE` named.  Out: one HTML file, what to do
next as text, and the script's own exit status.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import threading
import traceback
from pathlib import Path

from pycompiler.debug.describe import Data
from pycompiler.debug.document import Document
from pycompiler.debug.events import Recorder

DEFAULT = "pycompiler_report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", default=DEFAULT, help=f"the page (default: {DEFAULT})")
    parser.add_argument("--json", help="the document as data, too")
    parser.add_argument("--no-costs", action="store_true", help="do not measure guards and steps")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", help=f"the page (default: {DEFAULT} in the folder)")
    parser.add_argument("folder")


def status_of(error: SystemExit) -> int:
    """The exit status that Python would end with."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def main(options: argparse.Namespace) -> int:
    events: list[Data] = []
    lock = threading.Lock()

    def take(event: Data) -> None:
        with lock:
            events.append(event)

    sys.argv = [options.script, *options.arguments]
    sys.path[0] = str(Path(options.script).resolve().parent)
    status = 0
    with Recorder(take, costs=not options.no_costs):
        try:
            runpy.run_path(options.script, run_name="__main__")
        except SystemExit as error:
            status = status_of(error)
        except BaseException:  # the report says what was compiled until then
            traceback.print_exc()
            status = 1
    write(Document.of(events), Path(options.out), options.json)
    return status


def trace_main(options: argparse.Namespace) -> int:
    from pycompiler.debug.trace import read

    events = list(read(Path(options.folder)))
    if not events:
        print(f"{options.folder}: no traces (*.jsonl) of pycompiler", file=sys.stderr)
        return 1
    write(Document.of(events), Path(options.out or Path(options.folder) / DEFAULT), None)
    return 0


def write(document: Document, out: Path, json_out: str | None) -> None:
    import json

    from pycompiler.debug.page import page  # only who wants a page

    out.write_text(page(document), encoding="utf-8")
    if json_out:
        Path(json_out).write_text(json.dumps(document.data), encoding="utf-8")
    print(f"{document}\n\nreport: {out}", file=sys.stderr)
