"""Templates of the report's page: the environment with its filters, the policy, parts that are kept compressed.

In: the files of `templates/`.  Out: `PageParts`, which renders them.  Values become HTML only by a template's escaping,
or by the page's script, which makes text nodes of them.  The policy allows one script, by its digest, and no network
access.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from pycompiler.debug import number_format
from pycompiler.debug.describe import Data
from pycompiler.debug.document import Document
from pycompiler.debug.step_shares import timeline_of

OPEN, PART = 40, 500  # rows that are visible at once; rows of each further part (`templates/page.js`)
FOLDER = Path(__file__).parent / "templates"


@functools.cache
def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


SCRIPTS = ("page.js", "links.js", "search.js", "view.js", "timeline.js", "drawing.js")


@functools.cache
def script() -> str:
    """The page's one script, from its files."""
    return "\n".join(map(text_of, SCRIPTS))


def policy() -> str:
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def anchor(made: Data, letter: str) -> str:
    """The id of a frame or graph in the page."""
    return f"{letter}{made['run']}-{made['number']}"


def basename(where: str) -> str:
    """`file:line in function` without the file's folder, and with the function's name in the program."""
    file, colon, rest = where.partition(":")
    return number_format.place(os.path.basename(file) + colon + rest)


@functools.cache
def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "nanoseconds": number_format.nanoseconds, "size": number_format.size, "short": number_format.short,
        "counted": number_format.counted, "title": number_format.title, "name": number_format.name,
        "begins": number_format.begins, "basename": basename, "id": anchor,
    }  # fmt: skip
    return made


class PageParts:
    """Renders the templates of one page.  `kept`: HTML of folded parts, which the page has compressed."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.timeline = timeline_of(document)
        self.kept: list[str] = []
        self.keys = {id(g): f"g{k}-{i}" for k, f in enumerate(document.frames) for i, g in enumerate(f["guards"])}
        self.positions = {id(graph): k for k, graph in enumerate(document.graphs)}

    def key(self, guards: Sequence[Data]) -> str:
        """The keys of guards in the page (`templates/links.js`)."""
        return " ".join(self.keys[id(guard)] for guard in guards)

    def step_key(self, graph: Data, position: int) -> str:
        return f"s{self.positions[id(graph)]}-{position}"

    def line_key(self, where: str) -> str:
        return self.document.id_of(where) or ""

    def keep(self, content: str) -> int:
        self.kept.append(str(content))
        return len(self.kept) - 1

    def render(self, template: str, **values: Any) -> str:
        given = {"document": self.document, "keep": self.keep, "open": OPEN, "key": self.key, "step_key": self.step_key,
                 "line_key": self.line_key, **values}  # fmt: skip
        return environment().get_template(template).render(given)
