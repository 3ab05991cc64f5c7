"""`python -m tests.reports [NUMBER ...]`: runs rows beside eager, each in a process of its own, and prints a table.

`--peer`: torch.compile (backend inductor) as well.  `--write docs/reports.json`: the verdicts, for the page (those of other rows and
of the other compiler are kept).  `--missing`: only rows without a verdict there.  Exit status 1 where ours is not right.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch

from tests.reports.run import load, run_apart


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reports", description=__doc__)
    parser.add_argument("numbers", nargs="*", help="numbers of reports (default: all)")
    parser.add_argument("--peer", action="store_true", help="torch.compile as well")
    parser.add_argument("--only-peer", action="store_true", help="torch.compile alone")
    parser.add_argument("--missing", action="store_true", help="only rows that the written file does not have")
    parser.add_argument("--write", type=Path, help="the file of verdicts")
    parser.add_argument("--limit", type=int, help="largest number of rows")
    parser.add_argument("--jobs", default="1", help="threads of torch")
    args = parser.parse_args()
    torch.set_num_threads(int(args.jobs))
    rows = load()
    known: dict[str, Any] = json.loads(args.write.read_text()) if args.write and args.write.exists() else {}
    known = {key: value for key, value in known.items() if key in rows}
    who = ["peer"] if args.only_peer else ["ours", "peer"] if args.peer else ["ours"]
    wanted = {k: r for k, r in rows.items() if not args.numbers or k in args.numbers or str(r.number) in args.numbers}
    if args.missing:
        wanted = {k: r for k, r in wanted.items() if any(w not in known.get(k, {}) for w in who)}
    if "peer" in who:
        importlib.import_module("torch._inductor.compile_fx")  # once, before the forks
    counts: dict[str, dict[str, int]] = {w: {} for w in who}
    for key, row in list(wanted.items())[: args.limit]:
        entry = known.setdefault(key, {})
        entry |= {
            "number": row.number,
            "subject": row.subject,
            "topic": row.topic,
            "cuda": row.cuda,
            "described": row.described,
        }
        words = []
        for name in who:
            verdict = run_apart(row, name)
            entry[name] = dataclasses.asdict(verdict)
            counts[name][verdict.word] = counts[name].get(verdict.word, 0) + 1
            seen = f" {verdict.graphs} graphs {' '.join(verdict.breaks)}" if name == "ours" else ""
            words.append(f"{name}: {verdict.word}{' (' + verdict.text + ')' if verdict.text else ''}{seen}")
        print(f"{key:16} {row.subject[:60]:60} {'   '.join(words)}", flush=True)
        if args.write:
            known = dict(sorted(known.items(), key=lambda item: (item[1]["number"], item[0])))
            args.write.write_text(json.dumps(known, indent=1) + "\n")
    print({"torch": torch.__version__, **counts})
    return int(any(word != "right" for word in counts.get("ours", {})))


sys.exit(main())
