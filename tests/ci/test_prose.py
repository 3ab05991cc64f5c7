"""Prose of the package: sentences of docstrings and comments name their subject, and are short."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Pronouns in the place of a noun of the code.
VAGUE = re.compile(
    r"^(what|those|whoever|nobody|that which|one that)\b"
    r"|\b(what (it|they|is|has|was|nobody)|those (that|of|which)|whoever|as it was|is told|of what|by what|from what)\b",
    re.IGNORECASE,
)
MOST_WORDS = 35
SHARE = 0.005  # of sentences that may match: the pattern knows no grammar


def texts(source: str) -> Iterator[str]:
    """Docstrings, strings that document attributes, and comments (lines below each other are one text)."""
    for node in ast.walk(ast.parse(source)):
        for statement in getattr(node, "body", ()) if isinstance(getattr(node, "body", None), list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                if isinstance(statement.value.value, str):
                    yield statement.value.value
    block, last = "", -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(type:|noqa|fmt:|!)", token.string):
            text = token.string.lstrip("#").strip()
            own = token.line[: token.start[1]].strip() == ""
            if own and token.start[0] == last + 1:
                block += f" {text}"
            else:
                yield block
                block = text
            last = token.start[0] if own else -1
    yield block


def sentences(text: str) -> Iterator[str]:
    text = re.sub(r"\n\s*\n(?:[ ]{4,}.*\n?)+", "\n", text)  # indented examples
    text = re.sub(r"``[^`]*``|`[^`]*`", "CODE", text)
    for part in re.split(r"(?<=[.:;])\s+|\n\s*\n|\n\s*[-*|] ", text):
        if len(part.split()) >= 3:
            yield " ".join(part.split())


@pytest.mark.parametrize(
    ("sentence", "vague"),
    {
        "What nobody asked for": True, "Guards of those that were read": True, "The result is of what it was": True,
        "Alias guards: a written object must not be reachable under another name.": False,
    }.items(),
)  # fmt: skip
def test_the_pattern(sentence: str, vague: bool) -> None:
    assert bool(VAGUE.search(sentence)) is vague


def test_sentences_name_their_subject_and_are_short() -> None:
    found = [
        (path.relative_to(ROOT).as_posix(), sentence)
        for path in sorted((ROOT / "pycompiler").rglob("*.py"))
        for text in texts(path.read_text())
        for sentence in sentences(text)
    ]
    assert len(found) > 8_000
    vague = [pair for pair in found if VAGUE.search(pair[1])]
    assert len(vague) <= SHARE * len(found), vague
    long = [pair for pair in found if len(pair[1].split()) > MOST_WORDS]
    assert not long, long
    words = sum(len(sentence.split()) for _, sentence in found)
    assert words / len(found) <= 16
