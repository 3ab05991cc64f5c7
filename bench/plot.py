"""Draws the README's five figures and writes its table: `python bench/plot.py`.

In: the table of `docs/measured.md`, which `ratios.py` writes.
Out: `docs/images/figures.png`, `figures-dark.png` for dark pages, and the rows between the two marks in README.md.
No figure is written by hand.  A picture holds its figures as text, too: a test compares them with the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
PEERS = ("eager", "torch.compile", "pycompiler")
UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
# Row of measured.md -> its name in the README.
SHOWN = {
    "call: x + 1, 4 floats": "a call of `x + 1`, 4 floats",
    "call: MLP 8×8, forward and backward": "a call of an MLP 8×8, forward and backward",
    "guards: 727 nested modules": "guards of 727 nested modules",
    "kernel: softmax 2048×1024": "softmax 2048×1024, fp32, 2 threads",
    "compile: GPT, forward and backward, empty caches": "first compile of a GPT, forward and backward, empty caches",
}
# Colours of the three bars, and of texts: for light and for dark pages.
COLOURS = {"": ("#b0b4bd", "#e39b52", "#3f51b5", "#24292f"), "-dark": ("#6b7180", "#c98442", "#8c9eff", "#dfe3ea")}


@dataclass(frozen=True)
class Row:
    """One piece of work.  `times`: by peer, as they are printed; "–" if not measured."""

    name: str
    times: tuple[str, ...]

    @property
    def seconds(self) -> tuple[float | None, ...]:
        return tuple(None if text == "–" else float(text.split()[0]) * UNITS[text.split()[1]] for text in self.times)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows(page: str) -> list[Row]:
    """The shown rows of measured.md; KeyError if a row is missing."""
    lines = [cells(line) for line in page.splitlines() if line.startswith("| ")]
    head = next(line for line in lines if line[0] == "work")
    columns = [head.index(peer) for peer in PEERS]
    table = {line[0]: tuple(line[k] for k in columns) for line in lines if len(line) == len(head)}
    return [Row(name, table[name]) for name in SHOWN]


def machine(page: str) -> str:
    """The line below the table without its commit: processor, Python, day."""
    line = next(line for line in page.splitlines() if ", commit " in line)
    return line.partition(", commit ")[0].replace("(R)", "")


def table(page: str) -> str:
    """The README's table."""
    lines = [f"| {' | '.join(('work', *PEERS))} |", "| --- |" + " --- |" * len(PEERS)]
    lines += [f"| {' | '.join((SHOWN[row.name], *row.times))} |" for row in rows(page)]
    return "\n".join([*lines, "", f"Median of a call; {machine(page)}, two cores."])


def said(page: str) -> str:
    """The figures as a picture holds them."""
    return "; ".join(f"{row.name}: {', '.join(row.times)}" for row in rows(page))


def draw(page: str, path: Path, colours: tuple[str, ...]) -> None:
    """Bars of each row, scaled to its longest bar, with their times."""
    from matplotlib.figure import Figure

    *bars, ink = colours
    figure = Figure(figsize=(8, 3.9), layout="constrained")
    axes = figure.subplots()
    for k, row in enumerate(rows(page)):
        known = [(peer, s) for peer, s in enumerate(row.seconds) if s is not None]
        longest = max(s for _, s in known)
        for place, (peer, seconds) in enumerate(known):
            y = k + (place - (len(known) - 1) / 2) * 0.26
            axes.barh(y, seconds / longest, height=0.22, color=bars[peer], label=PEERS[peer] if k == 0 else None)
            weight = "bold" if PEERS[peer] == "pycompiler" else "normal"
            axes.text(
                seconds / longest + 0.008, y, row.times[peer], va="center", fontsize=8.5, color=ink, weight=weight
            )
    names = [SHOWN[row.name].replace("`", "").replace(", ", ",\n", 1) for row in rows(page)]
    axes.set_yticks(range(len(names)), names, fontsize=9, color=ink)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.1)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    figure.legend(
        loc="outside upper left", ncols=3, frameon=False, fontsize=9.5, labelcolor=ink, title="time, each row to its own scale",
        title_fontproperties={"size": 8.5}, alignment="left",
    ).get_title().set_color(ink)  # fmt: skip
    figure.savefig(path, dpi=180, transparent=True, metadata={"Description": said(page)})


def main() -> None:
    page = (ROOT / "docs" / "measured.md").read_text()
    images = ROOT / "docs" / "images"
    images.mkdir(exist_ok=True)
    for suffix, colours in COLOURS.items():
        draw(page, images / f"figures{suffix}.png", colours)
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    readme.write_text(f"{before}{BEGIN}\n{table(page)}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
