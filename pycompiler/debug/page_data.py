"""The data of a page: a document as compressed text, each source and stack once.

In: a document's data (JSON).  Out: `packed(data)`, base64 of deflate; `embedded(page)`, the data of a page that has it.
`encode` writes a list of equal tables by columns, and a value that occurs often as a number in a list of shared values.
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


def encode(data: Any) -> dict[str, Any]:
    """`{"shared": [...], "data": ...}`; a shared value may contain the numbers of earlier ones."""
    shared: list[Any] = []
    known: dict[str, int] = {}

    def walk(value: Any, field: str = "") -> Any:
        if isinstance(value, dict):
            made: Any = {str(key): walk(item, str(key)) for key, item in value.items()}
        elif isinstance(value, (list, tuple)):
            made = by_columns(value) if _is_table(value) else [walk(item) for item in value]
        else:
            made = value
        return share(made) if field in SHARED and value else made

    def by_columns(rows: Any) -> Any:
        return {"$columns": {key: [walk(row[key], key) for row in rows] for key in rows[0]}}

    def share(made: Any) -> Any:
        key = json.dumps(made)
        if key not in known:
            known[key] = len(shared)
            shared.append(made)
        return {"$": known[key]}

    encoded = walk(data)
    return {"shared": shared, "data": encoded}


def _is_table(rows: Any) -> bool:
    if len(rows) < COLUMNS or not all(isinstance(row, dict) and row for row in rows):
        return False
    return all(row.keys() == rows[0].keys() for row in rows) and all(isinstance(key, str) for key in rows[0])


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
        if value.keys() == {"$columns"}:
            columns = {key: walk(items) for key, items in value["$columns"].items()}
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
