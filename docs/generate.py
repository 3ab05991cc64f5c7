"""Generated parts of the pages: tables of graph breaks, knobs, logs, faults and reports.

mkdocs calls `on_page_markdown`, which replaces each mark `<!-- generated: NAME -->` by `render(NAME)`, and `on_post_page`,
which refuses a page that loads anything from another host.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pycompiler import config, logs
from pycompiler.capture.breaks import BREAK_KINDS

ROOT = Path(__file__).resolve().parents[1]
MARK = re.compile(r"<!-- generated: (\w+) -->")


def _table(*rows: tuple[str, ...]) -> str:
    first, *others = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
    return "\n".join([first, "|" + " --- |" * len(rows[0]), *others])


def breaks() -> str:
    rows = ((f"[{kind}](#{kind})", what, hint) for kind, (what, hint) in BREAK_KINDS.items())
    return _table(("id", "cause", "way out"), *rows)


def _shown(value: object) -> str:
    home = str(Path.home())
    return "a folder" if isinstance(value, str) and (value.startswith((home, "/"))) else f"`{value!r}`"


def knobs() -> str:
    rows = []
    for knob in config.KNOBS:
        names = ", ".join(f"`{name}`" for name in (knob.name, *knob.aliases))
        unread = "" if knob.kept is None else " (no effect: another value logs a warning)"
        variables = ", ".join(f"`{v}`" for v in knob.variables)
        rows.append((names, _shown(knob.default), knob.doc + unread, variables))
    return _table(("knob", "default", "meaning", "environment"), *rows)


def artefacts() -> str:
    levels = {
        0: "its name",
        10: "its name, or `+stage`",
        20: "its name, or the stage",
        30: "its name, or the stage at any level",
    }
    rows = ((f"`{name}`", row.stage, row.doc, levels[row.level]) for name, row in logs.ARTIFACTS.items())
    return _table(("artefact", "stage", "shows", "switched on by"), *rows)


def stages() -> str:
    rows = ((f"`{name}`", f"`{logger}`") for name, logger in logs.STAGES.items())
    return _table(("stage", "logger"), *rows)


def contributing() -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return text.replace("[ARCHITECTURE.md](ARCHITECTURE.md)", "ARCHITECTURE.md").partition("\n")[2]


def faults() -> str:
    figures = json.loads((ROOT / "docs" / "faults.json").read_text())
    rows = []
    for row in figures.values():
        ours, peer = row["ours"], row.get("peer", {})
        said = peer.get("reason") or (
            f"{peer['seconds']} s: {peer['outcome']}<br>`{peer['command']}`" if peer else "not run"
        )
        rows.append(
            (
                row["what"],
                row["symptom"],
                f"`{ours['command']}`",
                f"{ours['seconds']} s",
                "<br>".join(f"`{' '.join(s.split())}`" for s in ours["says"]),
                said,
            )
        )
    return _table(("fault", "symptom", "the command", "seconds", "it says", "torch's tools"), *rows)


VERDICTS = {
    "right": "right", "wrong": "**wrong**", "error": "error", "crash": "crash", "timeout": "no answer in 300 s",
}  # fmt: skip


def _verdicts() -> list[dict[str, Any]]:
    return list(json.loads((ROOT / "docs" / "reports.json").read_text()).values())


def _captured(ours: dict[str, Any]) -> str:
    """How much of the program this compiler compiled."""
    if ours["graphs"] == 0:
        return "eager" if ours["breaks"] or not ours["compiles"] else "no operator"
    count = len(ours["breaks"])
    return f"{count} break{'s' * (count > 1)}" if count else "whole"


def reports() -> str:
    rows = (
        (
            f"[{r['number']}](https://github.com/pytorch/pytorch/issues/{r['number']}){' *' * r['described']}",
            r["subject"] + (" (CUDA)" if r["cuda"] else ""),
            VERDICTS[r["peer"]["word"]],
            VERDICTS[r["ours"]["word"]],
            _captured(r["ours"]),
        )
        for r in _verdicts()
    )
    return _table(("report", "subject", "torch.compile 2.15", "this compiler", "captured"), *rows)


def scores() -> str:
    """Counts of reports by verdict.  A report with several programs counts as its worst program."""
    worst = ("wrong", "crash", "timeout", "error", "right")
    words: dict[str, dict[int, str]] = {"peer": {}, "ours": {}}
    for r in _verdicts():
        for who, found in words.items():
            found[r["number"]] = min(r[who]["word"], found.get(r["number"], "right"), key=worst.index)

    def row(name: str, who: str) -> tuple[str, str, str, str]:
        found = list(words[who].values())
        right, wrong = found.count("right"), found.count("wrong")
        return name, str(right), str(wrong), str(len(found) - right - wrong)

    head = ("", f"right, of {len(words['ours'])} reports", "wrong, silently", "error or crash")
    return _table(head, row("torch.compile 2.15", "peer"), row("this compiler", "ours"))


PARTS: dict[str, Callable[[], str]] = {
    "breaks": breaks, "knobs": knobs, "artefacts": artefacts, "stages": stages, "contributing": contributing,
    "faults": faults, "reports": reports, "scores": scores,
}  # fmt: skip


def render(name: str) -> str:
    return PARTS[name]()


def on_page_markdown(markdown: str, **_: object) -> str:
    return MARK.sub(lambda found: render(found[1]), markdown)


LOADS = re.compile(
    r"""<(?:script|img|source|iframe|video|audio|embed)\b[^>]*?\s(?:src|srcset)=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*rel=["']?(?:stylesheet|preload|preconnect|icon|manifest))[^>]*?\shref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|(?:url\(|@import\s)\s*["']?((?:https?:)?//[^"')\s]+)"""
)


def foreign(page: str) -> list[str]:
    """Addresses of other hosts that a page loads when it is opened; links that a reader follows do not count."""
    return [next(filter(None, found.groups())) for found in LOADS.finditer(page)]


def on_post_page(output: str, page: Any, **_: object) -> str:
    loads = foreign(output)
    if loads:
        from mkdocs.exceptions import PluginError  # imported only in a build: tests have no mkdocs

        raise PluginError(f"{page.file.src_uri} loads {', '.join(loads)}: pages load nothing from other hosts")
    return output
