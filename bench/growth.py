"""How guard time grows with arguments, modules, entries, nesting and graph breaks, and compile time with layers.

`python bench/growth.py --out growth` writes growth/growth.json and, where matplotlib is installed, growth/growth.png.
One thread; guards with a backend whose graphs return at once; each point is the best of five rounds.  Three figures show
how straight a curve is: the cost of one more (least squares), r², and `bend`, the cost of one more in the upper half of
the range over the cost in the lower half: 1 for a line, 2 and above for quadratic growth.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "examples")]

import programs  # noqa: E402
import torch  # noqa: E402
from models.gpt import GPT, Config  # noqa: E402
from peers import MAKERS, Peer, no_work  # noqa: E402

Point = tuple[int, float]


def call_time(fn: Callable[..., Any], *args: Any, calls: int = 200) -> float:
    """Seconds of a warm call, the best of five rounds."""
    for _ in range(20):
        fn(*args)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            fn(*args)
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def by_arguments(peer: Peer) -> Iterator[Point]:
    for count in (1, 2, 5, 10, 20, 50, 100):
        fn = peer.compile(programs.adder(count), backend=no_work)
        yield count, call_time(fn, *(torch.ones(4) for _ in range(count)))


def by_modules(peer: Peer) -> Iterator[Point]:
    for count in (1, 5, 10, 25, 50, 100, 200):
        yield count, call_time(peer.compile(programs.linears(count), backend=no_work), torch.ones(8, 8))


def by_nesting(peer: Peer) -> Iterator[Point]:
    for depth in (1, 2, 5, 10, 20, 40):
        yield depth, call_time(peer.compile(programs.Deep(depth), backend=no_work), torch.ones(8, 8))


def by_entries(peer: Peer) -> Iterator[Point]:
    """The most recently used of several entries is hit."""
    for entries in range(1, 9):
        peer.reset()
        fn = peer.compile(programs.adder(1), backend=no_work, dynamic=False)
        for size in range(2, entries + 2):
            fn(torch.ones(size))
        yield entries, call_time(fn, torch.ones(entries + 1))


def by_breaks(peer: Peer) -> Iterator[Point]:
    """Each break is a jump on a tensor's value, followed by a resume function."""
    for count in (1, 2, 4, 8, 16, 32):
        peer.reset()
        yield count, call_time(peer.compile(programs.breaks(count), backend=no_work), torch.ones(4))


def first_call(peer: Peer, make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]) -> float:
    """Seconds of a first call with empty caches, the best of three rounds."""
    best = float("inf")
    for _ in range(3):
        peer.reset()
        fn, args = make()
        with peer.empty_caches():
            compiled = peer.compile(fn)
            start = time.perf_counter()
            compiled(*args)
            best = min(best, time.perf_counter() - start)
    return best


def compile_by_linears(peer: Peer) -> Iterator[Point]:
    for count in (10, 25, 50, 100, 200):
        yield count, first_call(peer, lambda count=count: (programs.linears(count), (torch.ones(8, 8),)))


def compile_by_blocks(peer: Peer) -> Iterator[Point]:
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    for count in (1, 2, 4, 8, 12):
        yield count, first_call(peer, lambda count=count: (GPT(Config(layers=count)), (tokens,)))


CURVES: dict[str, Callable[[Peer], Iterator[Point]]] = {
    "guards by tensor arguments": by_arguments,
    "guards by Linear modules": by_modules,
    "guards by depth of nesting": by_nesting,
    "guards by entries, the last used": by_entries,
    "guards by graph breaks": by_breaks,
    "first call by Linear layers, empty caches": compile_by_linears,
    "first call by GPT layers, empty caches": compile_by_blocks,
}


def straightness(points: list[Point]) -> str:
    """Slope, r² and bend of a curve; r² of a flat curve has no meaning."""
    xs, ys = zip(*points, strict=True)
    slope, _ = statistics.linear_regression(xs, ys)
    fit = f"{slope * 1e9:.1f} ns for one more"
    if slope * (xs[-1] - xs[0]) < 0.2 * ys[0]:
        return f"flat ({fit})"
    middle = min(range(1, len(xs) - 1), key=lambda i: abs(xs[i] - (xs[0] + xs[-1]) / 2))
    lower = (ys[middle] - ys[0]) / (xs[middle] - xs[0])
    upper = (ys[-1] - ys[middle]) / (xs[-1] - xs[middle])
    return f"{fit}, r² {statistics.correlation(xs, ys) ** 2:.4f}, bend {upper / lower:.2f}"


def draw(curves: dict[str, dict[str, list[Point]]], path: Path) -> bool:
    """Draw the curves; False if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(5 * len(curves), 4))
    for position, (title, lines) in enumerate(curves.items(), 1):
        axes = figure.add_subplot(1, len(curves), position)
        for name, points in lines.items():
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.set(title=title, ylabel="seconds", ylim=(0, None))
        axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(".benchmarks/growth"))
    parser.add_argument("--impl", default="torch.compile,pycompiler")
    parser.add_argument("--only", help="curves whose name contains this")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    curves: dict[str, dict[str, list[Point]]] = {}
    with torch.no_grad():
        for title, curve in CURVES.items():
            if args.only and args.only not in title:
                continue
            for name in args.impl.split(","):
                peer = MAKERS[name]()
                peer.reset()
                points = list(curve(peer))
                curves.setdefault(title, {})[name] = points
                shown = ", ".join(f"{n}: {t * 1e6:.2f} µs" for n, t in points)
                print(f"{title}, {name}: {shown}; {straightness(points)}", flush=True)
    (args.out / "growth.json").write_text(json.dumps(curves, indent=1))
    if not draw(curves, args.out / "growth.png"):
        print("matplotlib is not installed: growth.json only (pip install 'pycompiler[bench]')")
    return 0


if __name__ == "__main__":
    sys.exit(main())
