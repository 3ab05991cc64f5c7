"""Parts of a page: tags, foldable tables, the style.

In: strs and rows.  Out: HTML.  Rows beyond `OPEN` are in parts that the reader can open, and are laid out only then.

Strs of a trace become HTML only by `escape` (called by `code`, `link`, and for attributes by `tag`).  The page's policy
allows one script, by its digest, and no network access.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from typing import Any

OPEN, PART = 40, 500  # rows that are visible at once; rows of each further part
PLAIN = 2_000  # rows of a table that are elements of the page; further rows are created when their part is opened (`UNFOLD`)

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #57606a; --paper: #fff; --panel: #f6f8fa; --line: #d0d7de;
  --accent: #0550ae; --bad: #a40e26; --badpaper: #ffebe9; --bar: #54aeff; --warmpaper: #fff8c5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --dim: #9ea7b3; --paper: #0d1117; --panel: #161b22; --line: #30363d;
    --accent: #79c0ff; --bad: #ffa198; --badpaper: #3d1418; --bar: #1f6feb; --warmpaper: #2e2a1f; } }
* { box-sizing: border-box } html { scroll-padding-top: 1rem }
body { margin: 0; font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper) }
header, main { max-width: 76rem; margin: 0 auto; padding: 1rem 1.25rem } header { padding-bottom: 0 } main { padding-top: 0 }
h1 { font-size: 1.5rem; margin: .25rem 0 }
h2 { font-size: 1.2rem; margin: 1.5rem 0 .5rem; border-bottom: 1px solid var(--line) }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; overflow-wrap: anywhere } p { margin: .25rem 0 } a { color: var(--accent) }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; border-radius: 2px }
.skip { position: absolute; left: -100rem }
.skip:focus { left: 1rem; top: .5rem; background: var(--paper); padding: .25rem .5rem }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; margin: .5rem 0; list-style: none }
.facts { display: flex; flex-wrap: wrap; gap: .5rem; margin: .75rem 0; padding: 0; list-style: none }
.facts li { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: .35rem .75rem }
.facts b { display: block; font-size: 1.25rem } .facts .bad { background: var(--badpaper); color: var(--bad) }
code, pre, .code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .85em }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: .6rem;
  overflow: auto; max-height: 34rem }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100%; margin: .25rem 0 }
caption { text-align: left; color: var(--dim); padding: .25rem 0 }
th, td { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid var(--line) }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
td.wrap { overflow-wrap: anywhere } td a code, td > details > summary { white-space: nowrap } td > details { margin: 0 }
details { margin: .25rem 0 } summary { cursor: pointer; color: var(--accent) }
ol.todo li { margin: .5rem 0; padding: .4rem .7rem; background: var(--panel); border-left: 4px solid var(--bar);
  border-radius: 4px; overflow-wrap: anywhere }
ol.todo .do::before { content: "→ " } .dim { color: var(--dim) } .bad { color: var(--bad) }
.bar { display: inline-block; height: .6rem; background: var(--bar); border-radius: 2px; min-width: 1px }
table.source td { border: 0; padding: 0 .6rem 0 0 } table.source td.code { white-space: pre; width: 55% }
table.source tr.broken td { background: var(--badpaper) } table.source tr.hot td { background: var(--warmpaper) }
table.source details { margin: 0 } .notes { max-width: 40rem } .notes .costly { display: block }
@media print { nav, .skip { display: none } }
"""
# Half a million rows as elements would dominate the load time of the page; as text they cost nothing.
UNFOLD = """document.addEventListener("toggle", event => {
  const rows = event.target.querySelector(":scope > script.rows");
  if (rows) rows.outerHTML = rows.textContent }, true)"""
DIGEST = base64.b64encode(hashlib.sha256(UNFOLD.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{DIGEST}'; base-uri 'none'; form-action 'none'"
)
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body><a class="skip" href="#main">Skip to the report</a>
<header><h1>{title}</h1><p class="dim">{made}</p>{facts}
<nav aria-label="Sections"><ul>{nav}</ul></nav></header>
<main id="main"><noscript><p class="dim">Rows from {plain} on of a list need scripts to be shown.</p></noscript>
{sections}</main>
<script type="application/json" id="document">{data}</script><script>{unfold}</script>
</body></html>
"""


def escape(value: Any) -> str:
    """A str or number of a trace as HTML, also safe between quotes."""
    return html.escape(str(value))


def link(to: str, content: str) -> str:
    """`content`, as HTML, linked to the element with that id."""
    return tag("a", content, href=f"#{to}")


def tag(kind: str, content: str, **attributes: str) -> str:
    """Attribute names end with "_" if they are Python keywords, and have "_" for "-"."""
    given = "".join(f' {k.rstrip("_").replace("_", "-")}="{escape(v)}"' for k, v in attributes.items() if v)
    return f"<{kind}{given}>{content}</{kind}>"


def code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def folded(summary: str, content: str, *, kind: str = "") -> str:
    return tag("details", f"<summary>{summary}</summary>{content}", class_=kind)


def some(made: Sequence[str], what: str) -> str:
    """The first items as they are, the others folded."""
    rest = "".join(made[OPEN:])
    return "".join(made[:OPEN]) + (folded(f"{len(made) - OPEN:,} more {what}", rest) if rest else "")


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """`heads` with a leading "#" are columns of numbers.  Rows are HTML; the first cell of each is its head."""
    number = [h.startswith("#") for h in heads]
    head = "".join(
        tag("th", escape(h.lstrip("#")), scope="col", class_="n" if n else "")
        for h, n in zip(heads, number, strict=True)
    )

    starts = ['<td class="n">' if n else '<td class="wrap">' for n in number]

    def row(cells: Sequence[str]) -> str:
        made = [f"{start}{cell}</td>" for start, cell in zip(starts, cells, strict=True)]
        return f"<tr>{''.join(made)}</tr>"

    made = [row(cells) for cells in rows]

    def part(rows: Sequence[str], text: str) -> str:
        return tag(
            "div",
            tag("table", f"<caption>{text}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"),
            class_="wide",
        )

    parts = [part(made[:OPEN], escape(caption))]
    for k in range(OPEN, len(made), PART):
        some = made[k : k + PART]
        content = part(some, escape(caption))
        if k >= PLAIN:  # strs in it are escaped, so they can neither end the script nor start another one
            content = tag("script", content, type="text/plain", class_="rows")
        parts.append(folded(f"{k + 1:,} to {k + len(some):,} of {len(made):,}", content, kind="part"))
    return "".join(parts)


def bar(share: float) -> str:
    """A bar beside its number, hidden from screen readers; "" for nothing."""
    if not share > 0.0:
        return ""
    return f'<span class="bar" style="width:{min(share, 1.0) * 8:.2f}rem" aria-hidden="true"></span>'
