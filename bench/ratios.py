"""Prints the ratio table of a run as Markdown: `python bench/ratios.py RUN.json [--page docs/measured.md]`.

`--instructions COUNTS.json` (of `instructions.py --out`) adds a table of instructions.  `--page` writes all tables between
the two marks in that file, so no figure is written by hand.  The exit status is 1 when a ratio is above its limit, and 0 with
`--report-only`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from instructions import table
from results import Group, copy_rates, load, show_ratio, show_time

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def rows(groups: Collection[Group]) -> Iterator[str]:
    yield "| work | eager | torch.compile | pycompiler | ours / torch.compile | ours / eager | ours, share of copy |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    copies = copy_rates(groups)
    for group in groups:
        rate, copy = group.rate("pycompiler"), copies.get(group.threads)
        share = "–" if rate is None or copy is None else f"{100 * rate / copy:.0f} %"
        times = (show_time(group.seconds.get(name)) for name in ("eager", "torch.compile", "pycompiler"))
        ratios = (show_ratio(group.ratio(p), group.limits.get(p)) for p in ("torch.compile", "eager"))
        yield f"| {group.name} | {' | '.join(times)} | {' | '.join(ratios)} | {share} |"


def geomean(groups: Iterable[Group], prefix: str, suffix: str, peer: str) -> float | None:
    logs = [
        math.log(ratio)
        for group in groups
        if group.name.startswith(prefix) and group.name.endswith(suffix) and (ratio := group.ratio(peer)) is not None
    ]
    return math.exp(sum(logs) / len(logs)) if logs else None


def above(groups: Iterable[Group]) -> Iterator[str]:
    """A line for each ratio above its limit, and for each limit without a measurement."""
    for group in groups:
        for peer, limit in group.limits.items():
            ratio = group.ratio(peer)
            if ratio is None:
                yield f"{group.name}: ours / {peer} was not measured, and may be at most {limit:.3g}"
            elif ratio > limit:
                yield f"{group.name}: ours / {peer} is {show_ratio(ratio)}, and may be at most {limit:.3g}"


def render(path: Path, stat: str, counts: Path | None) -> str:
    groups = load(path, stat)
    lines = list(rows(list(groups.values())))
    for what in ("inference", "training"):
        means = [geomean(groups.values(), "model: ", what, peer) for peer in ("torch.compile", "eager")]
        if any(m is not None for m in means):
            lines.append(f"| **models, {what}: geometric mean** | | | | {' | '.join(map(show_ratio, means))} | |")
    if counts:
        lines += ["", *table(json.loads(counts.read_text()))]
    run = json.loads(path.read_text())
    machine = run["machine_info"]
    cpu = machine.get("cpu", {})
    lines += [
        "",
        f"{cpu.get('brand_raw', machine['machine'])}, Python {machine['python_version']}, {run['datetime'][:10]}, "
        f"commit {run['commit_info'].get('id', 'unknown')[:10]}; {stat} of a call. Repeat with `make bench`.",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--stat", default="median", choices=("median", "min", "mean"))
    parser.add_argument("--instructions", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--report-only", action="store_true", help="limits do not fail the run")
    args = parser.parse_args()
    text = render(args.run, args.stat, args.instructions)
    print(text)
    if args.page:
        page = args.page.read_text()
        before, _, rest = page.partition(BEGIN)
        _, _, after = rest.partition(END)
        if END not in rest:
            print(f"{args.page} has no marks {BEGIN} and {END}", file=sys.stderr)
            return 1
        args.page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    failed = list(above(load(args.run, args.stat).values()))
    print("".join(f"above its limit: {line}\n" for line in failed), end="", file=sys.stderr)
    return int(bool(failed) and not args.report_only)


if __name__ == "__main__":
    sys.exit(main())
