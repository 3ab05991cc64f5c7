"""Build what the server loads: weights, buckets, and a file for each backend.

python -m examples.serve.build                            # both models, for this package
python -m examples.serve.build --model text --backend all --lengths 16 32 64
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from examples.serve.backends import BACKENDS, BUCKETS, WEIGHTS
from examples.serve.models import SPECS, Spec

FOLDER = Path("build/serve")


def build(spec: Spec, folder: Path, backends: Iterable[str] = ("ours",)) -> None:
    """Fill `folder`; prints a line for each backend."""
    folder.mkdir(parents=True, exist_ok=True)
    model = spec.model()
    torch.save(model.state_dict(), folder / WEIGHTS)
    (folder / BUCKETS).write_text(json.dumps({"lengths": spec.lengths, "batches": spec.batches}))
    for name in backends:
        if missing := BACKENDS[name].missing():
            print(f"{spec.name}, {name}: skipped, {missing}")
            continue
        begin = time.perf_counter()
        what = BACKENDS[name].build(spec, model, folder)
        print(f"{spec.name}, {name}: {what}, {time.perf_counter() - begin:.1f} s")


def names(chosen: str, known: Iterable[str], parser: argparse.ArgumentParser) -> list[str]:
    """A list of names with commas, or "all"."""
    found = list(known) if chosen == "all" else chosen.split(",")
    for name in found:
        if name not in known:
            parser.error(f"unknown name {name!r}; expected one of {', '.join(known)}, or all")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.serve.build", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="all", help=f"{', '.join(SPECS)} or all (default)")
    parser.add_argument("--backend", default="ours", help=f"{', '.join(BACKENDS)}, several with commas, or all")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"a folder for each model goes there ({FOLDER})")
    parser.add_argument("--lengths", type=int, nargs="+", help="buckets of lengths of texts, in tokens")
    parser.add_argument("--batches", type=int, nargs="+", help="buckets of batch sizes")
    asked = parser.parse_args(arguments)
    for name in names(asked.model, SPECS, parser):
        spec = SPECS[name]
        if asked.lengths and spec.lengths != (0,):
            spec = replace(spec, lengths=tuple(sorted(set(asked.lengths))))
        if asked.batches:
            spec = replace(spec, batches=tuple(sorted(set(asked.batches))))
        if spec.lengths[0] < 2 and spec.lengths != (0,) or spec.batches[0] < 1:
            parser.error(f"buckets are {spec.lengths} by {spec.batches}; expected lengths above 1, batches above 0")
        build(spec, asked.folder / name, names(asked.backend, BACKENDS, parser))
    return 0


if __name__ == "__main__":
    sys.exit(main())
