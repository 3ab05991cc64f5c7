"""Rules that the HTML source of every report page must keep."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

from pycompiler.debug.page_data import unpacked

VOID = {"meta", "br", "input"}


class Structure(HTMLParser):
    """Checks that tags are closed in order, ids are unique and links have a target in the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.outside: list[str] = []
        self.scripts: Counter[str] = Counter()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "script":
            self.scripts[given.get("type", "")] += 1
        for name in ("href", "src", "data", "action"):
            value = given.get(name)
            if value is not None:
                (self.links if value.startswith("#") else self.outside).append(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


PARTS = re.compile(r'<script type="text/plain" id="parts">([\w+/=]*)</script>')


def whole(page: str) -> str:
    """The page with its folded parts, which it has compressed, behind its own elements."""
    packed = PARTS.search(page)
    assert packed is not None
    return page + "".join(unpacked(packed[1]))


def checked(page: str) -> Structure:
    """The parsed page, after checks that hold for every page."""
    found = Structure(whole(page))
    assert len(set(found.ids)) == len(found.ids)
    assert {link[1:] for link in found.links} <= set(found.ids)
    assert found.outside == []  # the page fetches nothing
    # the lines that have ids, and the page's script
    assert found.scripts.pop("application/json") == found.scripts.pop("") == 1
    assert found.scripts == {"text/plain": 3}  # the folded parts, the timeline and the document; not run
    assert "@import" not in page and "url(" not in page
    return found
