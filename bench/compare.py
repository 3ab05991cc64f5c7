"""Compares two runs by ratio: `python bench/compare.py OLD.json NEW.json [--fail-above 1.3]`.

Machines drift, so the ratios ours / torch.compile (or ours / eager) within each run are compared.  `change` is the
new ratio over the old ratio: above 1 is slower.  With `--fail-above`, the exit code is 1 when a change is above it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

PEERS = ("torch.compile", "eager")


def ratios(path: Path) -> dict[str, dict[str, float]]:
    """Group -> peer -> pycompiler / peer. It reads the file without `results.py`, to work on commits that lack that
    module."""
    seconds: dict[str, dict[str, float]] = {}
    for bench in json.loads(path.read_text())["benchmarks"]:
        info = bench["extra_info"]
        seconds.setdefault(bench["group"], {})[info["impl"]] = bench["stats"]["median"] / info["calls"]
    return {
        group: {peer: by["pycompiler"] / by[peer] for peer in PEERS if peer in by}
        for group, by in seconds.items()
        if "pycompiler" in by
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--fail-above", type=float)
    args = parser.parse_args()
    old, new = ratios(args.old), ratios(args.new)
    worst = 0.0
    print("| work | peer | old ratio | new ratio | change |\n| --- | --- | --- | --- | --- |")
    for group in new:
        peer = next((p for p in PEERS if p in new[group] and p in old.get(group, {})), None)
        if peer is None:
            continue
        change = new[group][peer] / old[group][peer]
        worst = max(worst, change)
        print(f"| {group} | {peer} | {old[group][peer]:.3f} | {new[group][peer]:.3f} | {change:.2f} |")
    for group in sorted(old.keys() ^ new.keys()):
        print(f"| {group} | only in the {'old' if group in old else 'new'} run | | | |")
    return int(args.fail_above is not None and worst > args.fail_above)


if __name__ == "__main__":
    sys.exit(main())
