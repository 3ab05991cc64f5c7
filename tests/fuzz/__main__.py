"""The longer run: `python -m tests.fuzz --seconds 600 --seed 1` (from the repository's root).

Walks over all families, round after round with new seeds, until the time is over; prints a table of guard kinds.
A family that fails is printed with the call that repeats its reduced walk, counted, and left out of later rounds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from fuzz import attributes, containers, functions, modules, state, tensors  # noqa: F401
from fuzz.core import FAMILIES, Stale, Tally, walk
from pycompiler import config


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit in seconds")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round; each round uses a thousand seeds")
    parser.add_argument("--turns", type=int, default=500, help="turns of a walk")
    parser.add_argument("--only", default="", help="families whose names contain this")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    config.raise_internal_errors = True
    until, seed = time.monotonic() + chosen.seconds, chosen.seed
    tallies: dict[str, Tally] = defaultdict(Tally)
    stale: Counter[str] = Counter()
    needless: Counter[str] = Counter()
    families = [f for f in FAMILIES.values() if chosen.only in f.name]
    while time.monotonic() < until and families:
        for family in list(families):
            if time.monotonic() >= until:
                break
            try:
                tallies[family.kind].add(walk(family, seed, chosen.turns))
            except Stale as e:
                print(e, *e.__notes__, sep="\n", flush=True)
                (needless if e.needless else stale)[family.kind] += 1
                families.remove(family)
        seed += 1000
    print(
        f"{'guard kind':<16} {'mutations':>10} {'compiles':>9} {'hits':>9} {'told apart':>11} {'stale':>6} {'needless':>9}"
    )
    failed = sum((t.failed for t in tallies.values()), Tally().failed)
    for kind, t in tallies.items():
        print(
            f"{kind:<16} {t.mutations:>10} {t.compiles:>9} {t.hits:>9} {failed[kind]:>11} {stale[kind]:>6} {needless[kind]:>9}"
        )
    total = sum(t.mutations for t in tallies.values())
    print(f"{total} mutations, {stale.total()} stale hits, {needless.total()} needless recompiles")
    return int(bool(stale or needless))


sys.exit(main())
