"""The costs of guards by object and line, in the program's words.

In: a document with measured guards.  Out: `groups_of(document)`, the most expensive group first.
Example: "AdamW's step counters of 42 parameters" is one group; its 42 guards differ only in an index.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pycompiler.debug import advice
from pycompiler.debug.causes import own_line
from pycompiler.debug.describe import Data
from pycompiler.debug.document_queries import DocumentQueries
from pycompiler.debug.number_format import counted, short, title

INDEX = re.compile(r"\[(?:\d+|'\d+')\]|(?<=\.)\d+(?=['\].])")
# The end of a path -> its name, for the state of an optimizer.
NOUNS = {
    "['step']": "step counters", "['step'].item()": "step counters", "['exp_avg']": "first moments",
    "['exp_avg_sq']": "second moments", "['momentum_buffer']": "momentum buffers", ".grad": "gradients",
}  # fmt: skip


@dataclass
class GuardGroup:
    """Guards of one frame on the same part of one object, made at one line."""

    frame: Data
    owner: str  # class and name of the object; empty for a local value
    part: str  # what is read of the object, with indices left out
    where: str
    nanoseconds: float = 0.0
    guards: list[Data] = field(default_factory=list)
    values: int = 0  # objects that the guards read

    @property
    def words(self) -> str:
        noun = next((noun for end, noun in NOUNS.items() if self.part.endswith(end)), None)
        cls, _, name = self.owner.partition(" ")
        if noun is not None and cls:
            return f"{cls}'s {noun} of {counted(self.values, 'parameter')}"
        if not cls:
            return short(self.part, 80)
        return f"{cls} `{name}`" + (f": {short(self.part, 80)}" if self.part else "")


def groups_of(document: DocumentQueries) -> list[GuardGroup]:
    found: dict[tuple[str, ...], GuardGroup] = {}
    for nanoseconds, frame, guard in document.ranked_guards():
        owner, part = _owner_and_part(guard)
        line = own_line(guard["stack"]) or (guard["stack"][-1] if guard["stack"] else None)
        where = f"{line['file']}:{line['line']}" if line else ""
        key = (str(frame["run"]), str(frame["number"]), owner, part, where)
        group = found.setdefault(key, GuardGroup(frame, owner, part, where))
        group.nanoseconds += nanoseconds
        group.guards.append(guard)
        group.values += 1 + guard.get("others", 0)
    return sorted(found.values(), key=lambda group: -group.nanoseconds)


def _owner_and_part(guard: Data) -> tuple[str, str]:
    source = advice.in_words(guard.get("source") or guard["text"])
    cls, name = guard.get("owner") or ("", "")
    name = advice.in_words(name)
    part = source.removeprefix(name) if name else source
    return f"{cls} {name}".strip(), INDEX.sub("[…]", part).removeprefix(".")


def of_whole(document: DocumentQueries, group: GuardGroup) -> float:
    """Nanoseconds of all guards of the group's frame, measured one by one as the group's are."""
    return float(group.frame["entry"]["all"]) or group.nanoseconds


def group_text(document: DocumentQueries, group: GuardGroup) -> str:
    """`AdamW's step counters of 42 parameters (41 guards) of step`."""
    return f"{group.words} ({counted(len(group.guards), 'guard')} of {title(group.frame['function'])})"
