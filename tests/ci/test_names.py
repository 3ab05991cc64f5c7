"""Names of modules and top-level classes consist of words of the glossary, and of the words in `words.txt`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KNOWN = Path(__file__).with_name("words.txt")


def words_of(name: str) -> list[str]:
    """`_FrameEntry2` and `frame_entry` have the words frame, entry."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return [part.lower() for part in parts]


def names() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "pycompiler").rglob("*.py")):
        here = path.relative_to(ROOT).as_posix()
        if path.stem != "__init__":
            yield here, path.stem
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                yield here, node.name


def glossary() -> set[str]:
    terms = re.findall(r"\*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text())
    return {word for term in terms for word in words_of(term)}


def test_words_of_a_name() -> None:
    assert words_of("_FrameEntry2") == words_of("frame_entry") == ["frame", "entry"]
    assert words_of("CSESource") == ["cse", "source"]


def test_names_have_known_words() -> None:
    """A new word is a decision: take the field's term, and add it to the glossary or to the list."""
    known = glossary() | set(KNOWN.read_text().split())
    unknown = {(place, name, word) for place, name in names() for word in words_of(name) if word not in known}
    assert not unknown, sorted(unknown)


def test_the_list_has_no_other_words() -> None:
    listed = KNOWN.read_text().split()
    used = {word for _, name in names() for word in words_of(name)}
    assert listed == sorted(set(listed)), "sorted, each once"
    assert not set(listed) - used, sorted(set(listed) - used)
    assert not set(listed) & glossary(), sorted(set(listed) & glossary())
