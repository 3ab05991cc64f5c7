"""The fields of events, and their types: requirements for a readable trace.

In: an event, as read from a line of a trace.  Out: nothing, or an ArgumentError that names the first field that is
missing or has another type.  Example: `graph.number is a text, expected an integer`.  Further fields are ignored.

A trace may come from a stranger's bug report, so the page must only contain checked values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from pycompiler.debug.describe import Data
from pycompiler.debug.step_times import PARTS
from pycompiler.errors import ArgumentError

Check = Callable[[Any, str], str | None]  # value, its name → the error, or None


def plain(expected: str, *types: type) -> Check:
    def check(value: Any, at: str) -> str | None:
        fits = isinstance(value, types) and (bool in types or not isinstance(value, bool))
        return None if fits else f"{at} is {named(value)}, expected {expected}"

    return check


def optional(inner: Check) -> Check:
    return lambda value, at: None if value is None else inner(value, at)


def many(inner: Check) -> Check:
    def check(value: Any, at: str) -> str | None:
        if not isinstance(value, (list, tuple)):
            return f"{at} is {named(value)}, expected a list"
        return next((wrong for i, item in enumerate(value) if (wrong := inner(item, f"{at}[{i}]"))), None)

    return check


def one_of(*known: str) -> Check:
    def check(value: Any, at: str) -> str | None:
        return None if value in known else f"{at} is {named(value)}, expected one of {', '.join(known)}"

    return check


def row(*inner: Check) -> Check:
    def check(value: Any, at: str) -> str | None:
        if not isinstance(value, (list, tuple)) or len(value) != len(inner):
            return f"{at} is {named(value)}, expected a list of {len(inner)}"
        checked = enumerate(zip(inner, value, strict=True))
        return next((wrong for i, (one, item) in checked if (wrong := one(item, f"{at}[{i}]"))), None)

    return check


def table(key: Check, inner: Check) -> Check:
    def check(value: Any, at: str) -> str | None:
        if not isinstance(value, dict):
            return f"{at} is {named(value)}, expected a table"
        pairs = value.items()
        return next((w for k, v in pairs if (w := key(k, f"a key of {at}") or inner(v, f"{at}[{k!r}]"))), None)

    return check


def record(fields: Mapping[str, Check], *, empty: bool = False) -> Check:
    """`empty`: the table may have no field at all."""

    def check(value: Any, at: str) -> str | None:
        if not isinstance(value, dict):
            return f"{at} is {named(value)}, expected a table"
        if empty and not value:
            return None
        for name, inner in fields.items():
            if name not in value:
                return f"{at} has no field {name}"
            if wrong := inner(value[name], f"{at}.{name}"):
                return wrong
        return None

    return check


def optional_fields(fields: Mapping[str, Check]) -> Check:
    def check(value: Any, at: str) -> str | None:
        known = ((inner, value[name], f"{at}.{name}") for name, inner in fields.items() if name in value)
        return next((wrong for inner, item, where in known if (wrong := inner(item, where))), None)

    return check


def position(value: Any, at: str) -> str | None:
    """A key of a JSON table that is a number."""
    return (
        None
        if isinstance(value, str) and value.isascii() and value.isdigit()
        else f"{at} is not a position: {value!r:.40}"
    )


def number(value: Any, at: str) -> str | None:
    """A key of a JSON table that is an integer; -1 stands for an unknown frame or graph."""
    return None if value == "-1" else position(value, at)


def named(value: Any) -> str:
    kinds = {str: "a text", bool: "a truth value", int: "an integer", float: "a float", list: "a list", dict: "a table"}
    return "null" if value is None else kinds.get(type(value), type(value).__name__)


def finite(value: Any, at: str) -> str | None:
    """A number of JSON: Python also reads NaN and Infinity, which no script does."""
    wrong = plain("a number", int, float)(value, at)
    if wrong is None and isinstance(value, float) and not math.isfinite(value):
        return f"{at} is {value}, expected a finite number"
    return wrong


TEXT, INTEGER, NUMBER = plain("a text", str), plain("an integer", int), finite
STACK = many(record({"file": TEXT, "line": optional(INTEGER), "function": TEXT, "text": optional(TEXT)}))
FUNCTION = {"function": TEXT, "file": TEXT, "line": INTEGER}
LINED = {**FUNCTION, "source": many(row(INTEGER, TEXT))}
BYTES = optional(INTEGER)
MEMORY = {"after": many(INTEGER), "peak": INTEGER, "inputs": BYTES, "constants": INTEGER, "library": INTEGER}

FIELDS: dict[str, dict[str, Check]] = {
    "start": {},
    "end": {"status": INTEGER, "signal": optional(TEXT), "what": TEXT},
    "phase": {"name": TEXT, "start": NUMBER, "seconds": NUMBER, "model": optional(INTEGER), "graph": optional(INTEGER)},
    "frame": {
        **LINED,
        "number": INTEGER,
        "models": many(INTEGER),
        "inlined": many(record(LINED)),
        "seconds": NUMBER,
        "operators": INTEGER,
        "graph": optional(TEXT),
        "guards": many(record({"kind": TEXT, "text": TEXT, "stack": STACK})),
        "break": optional(record({"kind": TEXT, "reason": TEXT, "hint": TEXT, "stack": STACK})),
    },
    "graph": {
        "number": INTEGER,
        "model": optional(INTEGER),
        "kind": TEXT,
        "phases": table(TEXT, NUMBER),
        "nodes": many(record({"name": TEXT, "operator": TEXT, "of": TEXT, "place": TEXT})),
        "steps": many(record({"name": TEXT, "kind": TEXT, "operators": many(TEXT), "reads": BYTES, "writes": BYTES})),
        "memory": record(MEMORY, empty=True),
        "unfused": many(record({"kernels": many(TEXT), "why": TEXT})),
        "code": TEXT,
    },
    "hint": {"graph": optional(INTEGER), "node": TEXT, "operator": TEXT, "why": TEXT, "place": TEXT},
    "recompile": {**FUNCTION, "reasons": many(TEXT)},
    "eager": {**FUNCTION, "kind": TEXT, "reason": TEXT},
    "entry": {"frame": optional(INTEGER), "function": TEXT, "call": NUMBER, "all": NUMBER, "each": table(position, NUMBER)},
    "steps": {
        "root": INTEGER, "function": TEXT, "calls": INTEGER, "steps": INTEGER, "outside": NUMBER,
        **{part: table(number, NUMBER) for part in PARTS}, "last": many(row(one_of(*PARTS, "outside"), INTEGER, NUMBER)),
    },
    "calls": {"graph": INTEGER, "calls": INTEGER, "least": many(NUMBER), "total": many(NUMBER), "rest": NUMBER},
}  # fmt: skip
# Fields of later versions: an event may lack them.
DIFFERENCES = many(
    record({"kind": TEXT, "text": TEXT, "stack": STACK, "source": TEXT, "aspects": many(TEXT), "seen": TEXT})
)
GUARD = optional_fields({"source": TEXT, "owner": many(TEXT), "others": INTEGER})
OPTIONAL: dict[str, dict[str, Check]] = {
    "frame": {
        "hooked": plain("a truth value", bool),
        "guards": many(GUARD),
        "parameters": many(TEXT),
        "inlined": many(optional_fields({"parameters": many(TEXT)})),
    },
    "graph": {
        "nodes": many(optional_fields({"inputs": many(INTEGER)})),
        "steps": many(optional_fields({"device": many(TEXT)})),
    },
    "recompile": {"differences": DIFFERENCES},
    "steps": {
        "operators": table(number, NUMBER),
        "functions": table(number, NUMBER),
        "inner": many(many(NUMBER)),
        "device": optional(many(row(TEXT, NUMBER, NUMBER, INTEGER))),
    },
}
# Fields of an event that belongs to a compile, in traces since 0.2.
NAMES = {"id": optional(TEXT), "title": optional(TEXT)}
# Fields of the first event of a trace: strs, each optional.
START_FIELDS = ("pycompiler", "torch", "python", "machine", "program")


def check(event: Data, where: str) -> None:
    """Raises ArgumentError unless the event, from the line `where` of a trace, has the fields of its kind."""
    kind = event["event"]
    wrong = record({"at": NUMBER, "thread": INTEGER, **FIELDS[kind]})(event, kind)
    known = NAMES | OPTIONAL.get(kind, {})
    wrong = wrong or next((w for f, of in known.items() if f in event and (w := of(event[f], f"{kind}.{f}"))), None)
    if kind == "start":
        wrong = wrong or next((w for f in START_FIELDS if f in event and (w := TEXT(event[f], f"start.{f}"))), None)
    if wrong:
        raise ArgumentError(f"{where} is not an event of pycompiler: {wrong}")
