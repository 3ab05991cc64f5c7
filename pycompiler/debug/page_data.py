"""The data of a page: a document as compressed text, each source and stack once.

In: a document's data (JSON).  Out: `packed(data)`, base64 of deflate; `embedded(page)`, the data of a page that has it.
`encode` writes a list of equal tables by columns, and a value that occurs often as a number in a list of shared values.
A column of lists of earlier rows ("inputs") becomes a column of distances, since equal layers have equal distances.
A column of texts, or the lines of a long text, become templates and numbers, since layers differ in numbers only.
`templates/page.js` has the same decoder.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

SHARED = ("stack", "source", "inlined", "owner", "place", "file", "where")  # fields whose values occur often
COLUMNS = 4  # shorter lists stay lists of tables
ROWS, DISTANCES = "inputs", "~inputs"  # a column of lists of positions, and its name as distances
LONG = 2_000  # characters of a text whose lines are encoded
HOLE = "\x7f"  # the place of a number in a template
DIGITS = re.compile(r"(?<![0-9])(?:0|[1-9][0-9]{0,14})(?![0-9])")


def encode(data: Any) -> dict[str, Any]:
    """`{"shared": [...], "data": ...}`; a shared value may contain the numbers of earlier ones."""
    shared: list[Any] = []
    known: dict[str, int] = {}

    def walk(value: Any, field: str = "") -> Any:
        if isinstance(value, dict):
            made: Any = {str(key): walk(item, str(key)) for key, item in value.items()}
        elif isinstance(value, (list, tuple)):
            made = by_columns(value) if _is_table(value) else [walk(item) for item in value]
        elif isinstance(value, str) and len(value) >= LONG:
            lines = templates_of(value.split("\n"))
            made = value if lines is None else {"$lines": lines}
        else:
            made = value
        return share(made) if field in SHARED and value else made

    def by_columns(rows: Any) -> Any:
        columns: dict[str, Any] = {}
        for key in rows[0]:
            values = [row[key] for row in rows]
            are_texts = all(isinstance(value, str) for value in values)
            texts = templates_of(values) if are_texts else None
            columns[key] = [walk(value, key) for value in values] if texts is None else {"$texts": texts}
        if ROWS in columns and all(map(_are_positions, columns[ROWS])):
            columns[DISTANCES] = [[i - k for k in found] for i, found in enumerate(columns.pop(ROWS))]
        return {"$columns": columns}

    def share(made: Any) -> Any:
        key = json.dumps(made)
        if key not in known:
            known[key] = len(shared)
            shared.append(made)
        return {"$": known[key]}

    encoded = walk(data)
    return {"shared": shared, "data": encoded}


def templates_of(texts: list[str]) -> dict[str, Any] | None:
    """`{"templates": [...], "of": [a template for each text], "numbers": [of all texts]}`; None if a text has a hole."""
    if any(HOLE in text for text in texts):
        return None
    templates: dict[str, int] = {}
    of = [templates.setdefault(DIGITS.sub(HOLE, text), len(templates)) for text in texts]
    numbers = [int(digits) for text in texts for digits in DIGITS.findall(text)]
    return {"templates": list(templates), "of": of, "numbers": numbers}


def texts_of(made: dict[str, Any]) -> list[str]:
    """The inverse of `templates_of`."""
    numbers = iter(made["numbers"])
    return [re.sub(HOLE, lambda _: str(next(numbers)), made["templates"][k]) for k in made["of"]]


def _is_table(rows: Any) -> bool:
    if len(rows) < COLUMNS or not all(isinstance(row, dict) and row for row in rows):
        return False
    return all(row.keys() == rows[0].keys() for row in rows) and all(isinstance(key, str) for key in rows[0])


def _are_positions(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def decode(encoded: dict[str, Any]) -> Any:
    """The inverse of `encode`."""
    shared: list[Any] = []

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(item) for item in value]
        if not isinstance(value, dict):
            return value
        if value.keys() == {"$"}:
            return shared[value["$"]]
        if value.keys() == {"$texts"}:
            return texts_of(value["$texts"])
        if value.keys() == {"$lines"}:
            return "\n".join(texts_of(value["$lines"]))
        if value.keys() == {"$columns"}:
            columns = {key: walk(items) for key, items in value["$columns"].items()}
            if DISTANCES in columns:
                columns[ROWS] = [[i - k for k in found] for i, found in enumerate(columns.pop(DISTANCES))]
            return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return {key: walk(item) for key, item in value.items()}

    for item in encoded["shared"]:
        shared.append(walk(item))
    return walk(encoded["data"])


def packed(data: Any) -> str:
    text = json.dumps(data, separators=(",", ":"), default=str).encode()
    return base64.b64encode(zlib.compress(text, 9)).decode()


def unpacked(text: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(text)))


EMBEDDED = re.compile(r'<script type="text/plain" id="document">([\w+/=]*)</script>')


def embedded(page: str) -> Any:
    """The document's data of a page; ValueError for another file."""
    found = EMBEDDED.search(page)
    if found is None:
        raise ValueError("no page of pycompiler")
    return decode(unpacked(found[1]))
