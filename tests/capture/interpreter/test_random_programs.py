"""Random small programs over lists, dicts, objects, tensors and graph breaks: compiled code matches eager Python."""

from __future__ import annotations

import linecache
import random
import types
from typing import Any

import pytest
import torch
from capture.harness import ANY, Case, check_case

PROGRAMS = 80


class Box:
    """A mutable object of the programs."""

    def __init__(self) -> None:
        self.n = 1
        self.items = [1, 2]

    def bump(self, by: int) -> int:
        self.n += by
        return self.n


EXPRESSIONS = (
    "n + {k}", "len(a)", "a[{i}]", "d.get('{c}', {k})", "b.n", "b.bump({k})", "sum(v for v in a if isinstance(v, int))", "n * {k} % 7",
    "max([n, {k}])", "len([v for v in a if v is not None])", "int(t.dim())", "t.shape[0]", "(lambda v: v + {k})(n)", "f(n, k={k})",
    "sorted([n, {k}, 2])[0]", "b.items[{i}]", "next(iter([n, {k}]))", "d.setdefault('{c}', {k})", "[*a, {k}][{i}]", "g()",
)  # fmt: skip
STATEMENTS = (
    "n = {e}", "a.append({e})", "a[{i}] = {e}", "d['{c}'] = {e}", "b.n = {e}", "b.items = [*b.items, {e}]", "t = t + {e}", "t.add_({e})",
    "u = t * {e}", "a.append(t)", "d['{c}'] = [n]", "x.mul_(2)", "b.last = t", "a.reverse()", "d.pop('{c}', None)", "b.items.append({e})",
    "a, extra = a[:], a", "print(n)", "print(len(a), sorted(d))", "t = torch.where(t > {k}, t, t + 1)", "b.items, b.n = [b.n], len(b.items)",
    "total += {e}", "t = t.view(-1)", "a = [v for v in a]", "d = dict(d, {c}={e})", "n -= 1", "del a[{i}]", "other = b", "x[0] = {e}",
)  # fmt: skip
BLOCKS = (
    "for i in range({k}):", "if n > {k}:", "while total < {k}:\n{p}    total += 1", "try:", "with torch.no_grad():", "for v in list(a):",
    "if t.shape[0] > {k}:", "for key, value in list(d.items()):", "if b.n % 2:",
)  # fmt: skip


class Writer:
    """Writes one program from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def fill(self, template: str, pad: str = "") -> str:
        r = self.random
        text = template.replace("{e}", "(" + r.choice(EXPRESSIONS) + ")")
        return (
            text.replace("{k}", str(r.randint(0, 4))).replace("{i}", str(r.randint(-1, 1)))
            .replace("{c}", r.choice("xyz")).replace("{p}", pad)
        )  # fmt: skip

    def block(self, depth: int, pad: str) -> list[str]:
        r, lines = self.random, []
        for _ in range(r.randint(1, 4)):
            if depth and r.random() < 0.3:
                head = self.fill(r.choice(BLOCKS), pad)
                lines += [pad + head, *self.block(depth - 1, pad + "    ")]
                if head == "try:":
                    lines += [
                        f"{pad}except (IndexError, KeyError, TypeError) as e:",
                        f"{pad}    a.append(type(e).__name__)",
                    ]
                    if r.random() < 0.5:
                        lines += [f"{pad}finally:", f"{pad}    total += 1"]
            else:
                lines.append(pad + self.fill(r.choice(STATEMENTS)))
        return lines

    def program(self) -> str:
        body = [line for _ in range(3) for line in self.block(2, "    ")]
        return "\n".join(
            ["def program(x, a, d, b):", "    n, total, t, u = 1, 0, x + 1, None", "    def f(v, *, k=1):", "        return v + k + n",
             "    def g():", "        nonlocal n", "        n += 1", "        return n", *body, "    return a, d, n, total, t, u"]
        )  # fmt: skip


def compiled_from(source: str, name: str) -> Any:
    filename = f"<tests/capture/{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace = {"torch": torch}
    exec(compile(source, filename, "exec"), namespace)
    function = namespace["program"]
    assert isinstance(function, types.FunctionType)
    return function


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_program(seed: int) -> None:
    source = Writer(seed).program()
    function = compiled_from(source, f"program_{seed}")
    args = (torch.arange(3.0), [1, 2, 3], {"x": 1, "y": [2]}, Box())
    try:
        check_case(Case(function, args, breaks=ANY, recompiles=1000))
    except Exception as e:
        raise AssertionError(f"{e}\n{source}") from e
