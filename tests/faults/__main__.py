"""`python -m tests.faults [NAME ...]`: puts faults into child processes, runs the one command of each, and says what came of it.

`--peer`: the same with torch's tools; `--write docs/faults.json`: the figures, for the page (which keeps those of other rows).
Seconds are of the processor, children included: they do not depend on what else the machine does.
Exit status 1 where a command did not say what its row wants.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.faults.table import TABLE, Row

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "tests" / "faults" / "site"
LIMIT = 600.0


def run(command: str, fault: str, folder: Path, limit: float = LIMIT, **more: str) -> tuple[str, float, int | None]:
    """Output of a shell command line, its seconds, its exit status (None: it was killed)."""
    own = {
        "PYTHONPATH": os.pathsep.join(map(str, (SITE, ROOT))), "FAULT": fault, "OMP_NUM_THREADS": "1", "HOME": str(folder),
        "PYCOMPILER_CACHE_DIR": str(folder / "cache"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **more,
    }  # fmt: skip
    before = seconds()
    child = subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env={**os.environ, **own}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        text, _ = child.communicate(timeout=limit)
        return text, seconds() - before, child.returncode
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        text, _ = child.communicate()
        return text, seconds() - before, None


def seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ours(row: Row, folder: Path) -> dict[str, Any]:
    (folder / "program.py").write_text(row.text.lstrip())
    text, used, _ = run(row.command, row.name, folder)
    page = folder / "page.json"
    whole = text + (page.read_text() if page.exists() else "")
    missing = [part for part in row.says if part not in whole and json.dumps(part)[1:-1] not in whole]
    return {"command": row.command, "seconds": round(used, 1), "says": row.says, "missing": missing, "text": text}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--show", action="store_true", help="show the output of each command")
    options = parser.parse_args()
    bad = 0
    for row in TABLE:
        if options.names and row.name not in options.names:
            continue
        with tempfile.TemporaryDirectory() as name:
            if options.peer:
                from tests.faults.peers import theirs

                found = theirs(row, Path(name))
            else:
                found = ours(row, Path(name))
        bad += bool(found.get("missing"))
        text = found.pop("text", "")
        print(row.name, json.dumps(found), text if options.show or found.get("missing") else "", sep="\n", flush=True)
        if options.write:
            write(options.write, row, "peer" if options.peer else "ours", found)
    return min(bad, 1)


def write(path: Path, row: Row, side: str, found: dict[str, Any]) -> None:
    known = json.loads(path.read_text()) if path.exists() else {}
    known[row.name] = {"what": row.what, "symptom": row.symptom, **known.get(row.name, {}), side: found}
    order = [row.name for row in TABLE]
    path.write_text(json.dumps({n: known[n] for n in order if n in known}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
