"""Random programs over containers that outlive the call and change between calls: results and contents match eager."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same

PLACES = ("0", "1", "-1", "-2", "2", "-3", "i % 3")
KEYS = ("'a'", "'b'", "i", "i + 1", "3", "2.0", "None")
VALUES = ("x", "i", "1", "'t'", "(i, x)", "[i]")

# Statement forms; `{c}` is the container, `{p}` an index, `{k}` a key, `{v}` a value.
ROWS: dict[str, tuple[str, ...]] = {
    "rows": (
        "{c}.append({v})", "{c}.append({v})", "{c}.extend([{v}, {v}])", "{c} += [{v}]", "{c}.insert({p}, {v})",
        "out.append({c}.pop())", "{c}.pop(0)", "{c}[{p}] = {v}", "out.append({c}[{p}])", "del {c}[{p}]",
        "out.append(bool({c}))", "out.append({c}[{p}] is {c}[{p}])", "out.append(len({c}))", "out.append({c}[1:])",
        "{c}.clear()", "{c}.reverse()", "{c}[:1] = [i, 2]",
    ),
    "queue": (
        "{c}.append({v})", "{c}.appendleft({v})", "{c}.extend([{v}, 1])", "{c}.extendleft([{v}, 1])", "out.append({c}.pop())",
        "out.append({c}.popleft())", "{c}[{p}] = {v}", "out.append({c}[{p}])", "del {c}[{p}]", "out.append(len({c}))",
        "{c}.clear()", "{c}.rotate(1)",
    ),
    "table": (
        "{c}[{k}] = {v}", "{c}[{k}] = {v}", "out.append({c}.get({k}))", "out.append({c}.pop({k}, 7))", "out.append({k} in {c})",
        "{c}.setdefault({k}, {v})", "{c}.update(a={v}, z=1)", "del {c}[{k}]", "out.append(bool({c}))", "out.append(list({c}))",
        "{c}.clear()", "out.append({c}.popitem())", "out.append(len({c}))",
    ),
    "seen": (
        "{c}.add({k})", "{c}.add({k})", "{c}.discard({k})", "{c}.remove({k})", "out.append({k} in {c})", "{c}.update([{k}, {k}])",
        "out.append(len({c}))", "{c}.clear()",
    ),
}  # fmt: skip
ROWS |= {"alias": ROWS["rows"], "bounded": ROWS["queue"], "ordered": ROWS["table"]}


def program(r: random.Random) -> str:
    names = r.sample([*ROWS], r.randint(1, 3))
    lines = ["def program(x, i, world, out):", *(f"    {n} = world[{n!r}]" for n in names)]

    def line(name: str) -> str:
        row = r.choice(ROWS[name])
        for hole, choices in (("{p}", PLACES), ("{k}", KEYS), ("{v}", VALUES)):
            while hole in row:
                row = row.replace(hole, r.choice(choices), 1)
        return row.replace("{c}", name)

    def block(indent: str, depth: int) -> None:
        for _ in range(r.randint(1, 5)):
            kind, inner = r.random(), indent + "    "
            if kind < 0.12 and depth < 2:
                lines.append(indent + r.choice(["if i % 2:", f"if {r.choice(names)}:", "for j in range(2):"]))
                block(inner, depth + 1)
            elif kind < 0.2 and depth < 2:
                lines.append(indent + "try:")
                block(inner, depth + 1)
                lines.extend([indent + "except (IndexError, KeyError, TypeError) as e:", inner + "out.append(type(e))"])
            elif kind < 0.3:
                lines.append(indent + r.choice(["pycompiler.graph_break()", "x = x * 2 + 1"]))
            else:
                lines.append(indent + line(r.choice(names)))

    block("    ", 0)
    block("    ", 0)
    return "\n".join([*lines, "    return x + 1"])


def world(r: random.Random, alike: bool) -> dict[str, Any]:
    def some() -> list[Any]:
        return [r.choice([1, 2, "s", torch.ones(2), (1, 2)]) for _ in range(r.randint(0, 5))]

    rows = some()
    table = {r.choice(["a", "b", "c", 1, 2, 3, 4]): r.randint(0, 9) for _ in range(r.randint(0, 4))}
    return {
        "rows": rows, "alias": rows if alike else some(), "queue": collections.deque(some()), "table": table,
        "bounded": collections.deque(some(), maxlen=4), "ordered": collections.OrderedDict(a=1, q=2),
        "seen": set(r.sample(["a", "b", 1, 2, 3, None], r.randint(0, 4))),
    }  # fmt: skip


def disturb(r: random.Random, found: dict[str, Any]) -> None:
    for name in r.choices([*found], k=r.randint(0, 3)):
        c = found[name]
        more: Callable[[], Any] = (
            getattr(c, "append", None) or getattr(c, "add", None) or (lambda v, c=c: c.update({v: 1}))
        )
        if r.random() < 0.6 or not c:
            more(r.randint(5, 9))
        elif isinstance(c, dict):
            del c[next(iter(c))]
        elif isinstance(c, set):
            c.discard(1)
        else:
            del c[0]


@pytest.mark.parametrize("seed", range(60))
def test_programs(seed: int) -> None:
    r = random.Random(seed)
    text = program(r)
    namespace: dict[str, Any] = {"pycompiler": pycompiler}
    exec(compile(text, f"<program {seed}>", "exec"), namespace)
    fn = namespace["program"]
    compiled = pycompiler.compile(fn, backend="eager")
    begin = r.random()
    worlds = [world(random.Random(begin), False) for _ in range(2)]
    for i in range(6):
        if r.random() < 0.2:
            begin, alike = r.random(), r.random() < 0.5
            worlds = [world(random.Random(begin), alike) for _ in range(2)]
        change, ends = r.random(), []
        for run, found in zip((fn, compiled), worlds, strict=True):
            disturb(random.Random(change), found)
            out: list[Any] = []
            try:
                result = run(torch.ones(2) * i, i, found, out)
            except (IndexError, KeyError, TypeError) as error:
                result = (type(error), str(error))
            ends.append((result, out, found))
        assert_same(ends[1], ends[0], exact=True, what=f"call {i} of\n{text}")
