"""The training fuzzer: `python -m tests.fuzz.training --count 2000 --seed 0 --jobs 2 --backend native` (from the root).

In: a seed. Out: a random program that can be differentiated (of the rows of `training_programs.py`), in one function or in two that
feed each other, and the caller's use of its results: gradients of some results in some order, further derivatives, hooks, writes.
`training_check.py` compares the caller's observations with eager; `forks.py` runs the programs. A new way to a derivative is a row.
"""

from __future__ import annotations

import dataclasses
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from fuzz import forks
from fuzz.training_programs import BEHIND, EFFECTS, INNER, ONE, TWO, WRITES

INPUTS = ("{l}", "{l}", "{l}", "{l}", "{l} * 1", "{l}[1:]")
PLACES = "idx, ids = torch.tensor([[0, 1], [1, 0], [2, 2]]), torch.tensor([0, 2, 0])"
HEADER = """import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from fuzz.training_check import main
from fuzz.training_programs import Dirty, One, Scale, Sorted, Two
"""
FOOTER = '\nif __name__ == "__main__":  # PYTHONPATH=tests:. python FILE native\n    main(__file__)\n'
NAMES = re.compile(r"\b[xv]\d+\b")


@dataclasses.dataclass(frozen=True)
class Program:
    """A program: lines that make inputs, lines of the function, results, later actions. `split`: the number of lines
    in a function of their own."""

    inputs: tuple[str, ...]
    makes: tuple[str, ...]
    lines: tuple[str, ...]
    split: int
    results: tuple[str, ...]
    steps: tuple[str, ...]

    def functions(self) -> Iterator[tuple[str, Sequence[str], Sequence[str], Sequence[str]]]:
        """Name, parameters, lines and results of each function."""
        first, second = self.lines[: self.split], self.lines[self.split :]
        needed = set(NAMES.findall(" ".join((*second, *self.results))))
        passed = [v for line in first if (v := defined(line)) in needed and v is not None]
        if passed:
            yield "first", self.inputs, first, passed
            yield "second", (*self.inputs, *passed), second, self.results
        else:
            yield "first", self.inputs, self.lines, self.results

    def source(self) -> str:
        """The script."""
        text, calls = HEADER, ""
        ends = ", ".join(f"y{i}" for i in range(len(self.results)))
        for name, parameters, lines, results in self.functions():
            given = ", ".join((*parameters, "idx", "ids"))
            body = "".join(f"    {line}\n" for line in lines)
            text += f"\n\ndef {name}({given}):\n{body}    return ({', '.join(results)},)\n"
            gets = ends if results is self.results else ", ".join(results)
            calls += f"        ({gets},) = compiled({name})({given})\n"
        starts = ", ".join(self.inputs)
        leaves = starts.replace("x", "l")
        text += "\n\ndef program(compiled, see):\n" + "".join(f"    {line}\n" for line in (*self.makes, PLACES))
        text += f"    with see:\n{calls}        see.called([{ends}], [{starts}])\n"
        text += "".join(f"    with see:\n        {step}\n" for step in self.steps)
        return text + f"    with see:\n        see.end([{leaves}], [{starts}], [{ends}])\n" + FOOTER

    def smaller(self) -> Iterator[Program]:
        """The programs that one cut makes of this one."""
        for i in reversed(range(len(self.steps))):
            yield dataclasses.replace(self, steps=without(self.steps, i))
        for i in reversed(range(len(self.lines))):
            yield dataclasses.replace(self, lines=without(self.lines, i), split=self.split - (i < self.split))
        if self.split:
            yield dataclasses.replace(self, split=0)
        for i in range(len(self.results) - 1, -1, -1) if len(self.results) > 1 else ():
            renamed = [re.sub(rf"\by{i}\b(, )?", "", step) for step in self.steps]
            steps = (re.sub(r"\by(\d+)\b", lambda m: f"y{int(m[1]) - (int(m[1]) > i)}", step) for step in renamed)
            yield dataclasses.replace(self, results=without(self.results, i), steps=tuple(steps))


def without(values: tuple[str, ...], place: int) -> tuple[str, ...]:
    return values[:place] + values[place + 1 :]


def is_fit(made: Any) -> bool:
    """Whether a value may be used further: a tensor of some finite numbers."""
    kind = hasattr(made, "isfinite") and made.is_floating_point()
    return kind and made.numel() <= 200 and bool(made.isfinite().all())


def defined(line: str) -> str | None:
    found = re.search(r"\b(v\d+) = ", line)
    return found and found[1]


def generate(seed: int) -> Program:
    """The program of a seed."""
    from fuzz.training_check import doubles

    with doubles():
        return Generator(seed).program()


class Generator:
    """Lines are tried when they are chosen, so that the function runs."""

    def __init__(self, seed: int) -> None:
        from fuzz.training_check import Seen

        self.random = random.Random(seed)
        count = self.random.randint(1, 3)
        rows = self.random.choice((3, 3, 3, 3, 4))
        self.inputs = [f"x{i}" for i in range(count)]
        self.makes = [f"torch.manual_seed({seed})"]
        self.others: list[str] = []  # inputs that are no leaves
        for i in range(count):
            made = self.random.choice(INPUTS)
            shape = f"{rows + (made == '{l}[1:]')}, 4"
            needed = i == 0 or self.random.random() < 0.75
            self.makes += [
                f"l{i} = see.leaf({shape}){'.requires_grad_()' if needed else ''}",
                f"x{i} = " + made.format(l=f"l{i}"),
            ]
            self.others += [f"x{i}"] if made != "{l}" else []
        self.names: dict[str, Any] = {"see": Seen()}
        exec("\n".join((HEADER, *self.makes, PLACES)), self.names)

    def program(self) -> Program:
        choose = self.random
        inner = choose.choice((0.0, 0.3))
        wanted = choose.randint(2, 7)
        lines: list[str] = []
        values: list[str] = []
        for _ in range(200):
            if len(lines) < wanted or not values:
                self.add(lines, values, inner)
        results = choose.sample(values, choose.randint(1, min(4, len(values))))
        if values[-1] not in results and choose.random() < 0.8:
            results[0] = values[-1]
        if choose.random() < 0.1:
            results.append(choose.choice(self.inputs))
        split = choose.randint(1, len(lines) - 1) if len(lines) > 1 and choose.random() < 0.3 else 0
        steps = tuple(self.steps(len(results)))
        return Program(tuple(self.inputs), tuple(self.makes), tuple(lines), split, tuple(results), steps)

    def add(self, lines: list[str], values: list[str], inner: float) -> None:
        """Add one line if the chosen one runs and gives finite numbers."""
        choose = self.random
        known = [*self.inputs, *values]
        chance = choose.random()
        table = WRITES if chance < 0.12 else INNER if chance < 0.12 + inner else TWO if chance > 0.8 else ONE
        a, b = choose.choice(known[-4:] if choose.random() < 0.6 else known), choose.choice(known)
        line, name = choose.choice(table).format(a=a, b=b), None
        if table is not WRITES and ".register_hook" not in line and ".retain_grad" not in line:
            name = f"v{len(values)}"
            line = f"{name} = {line}"
            if choose.random() < 0.06:
                line = f"with torch.no_grad(): {line}"
        try:
            exec(line, self.names)
            fit = name is None or is_fit(self.names[name])
        except Exception:  # includes views that may not be read any more
            return
        if not fit:
            return
        if name is not None:
            values.append(name)
        lines.append(line)

    def steps(self, count: int) -> Iterator[str]:
        choose = self.random
        leaves, ends = [x.replace("x", "l") for x in self.inputs], [f"y{i}" for i in range(count)]
        starts = leaves + self.others + (ends if choose.random() < 0.3 else [])

        def some(names: list[str], more: str = "") -> str:
            return f"[{', '.join([*choose.sample(names, choose.randint(1, len(names))), *([more] if more else [])])}]"

        def backward(kept: bool) -> str:
            return f"see.backward({some(ends)}, [{', '.join(leaves)}]{', retain_graph=True' if kept else ''})"

        if choose.random() < 0.25:
            places = {"y": choose.choice(ends), "l": choose.choice(leaves), "x": choose.choice(self.inputs)}
            if choose.random() < 0.2:
                yield "with torch.no_grad(): " + choose.choice(BEHIND).format(**places)
            else:
                yield choose.choice(EFFECTS).format(**places)
        if choose.random() < 0.35:
            yield backward(True)
            if choose.random() < 0.5:
                yield backward(False)
        if choose.random() < 0.35:  # with `create_graph` the graph is replayed
            yield f"g1 = see.grad({some(ends)}, {some(starts)}{', batched=True' if choose.random() < 0.25 else ''})"
        else:
            yield f"g1 = see.grad({some(ends)}, {some(starts)}, create_graph=True)"
            more = choose.choice(("", "", *ends)), "*see.given" if choose.random() < 0.3 else ""
            again = ", create_graph=True" if choose.random() < 0.6 else ""
            yield f"g2 = see.grad([*g1{more[0] and ', ' + more[0]}], {some(starts, more[1])}{again})"
            if again:
                yield f"g3 = see.grad([*g2], {some(starts)})"
            if choose.random() < 0.3:
                yield f"see.backward([*g1], [{', '.join(leaves)}], retain_graph=True)"
            if choose.random() < 0.3:
                yield f"see.penalty([{', '.join(ends)}], [{', '.join(leaves)}])"
        for chance in (0.3, 0.2):
            if choose.random() < chance:
                yield backward(False)


def reduced(program: Program, fails: Callable[[str], bool], tries: int = 200) -> Program:
    """A failing program that no single cut reduces (or the result when `tries` are used up)."""
    progress = True
    while progress and tries > 0:
        progress = False
        for candidate in program.smaller():
            tries -= 1
            if tries >= 0 and fails(candidate.source()):
                program, progress = candidate, True
                break
    return program


class Training:
    """The programs of the training fuzzer, in the form of `forks.Subject`."""

    def text(self, seed: int) -> str:
        return generate(seed).source()

    def __init__(self) -> None:
        self.ended_by: set[str] = set()

    def difference(self, text: str, backend: str) -> str | None:
        from fuzz.training_check import difference

        self.ended_by.clear()
        return difference(text, backend, self.ended_by)

    def too_many(self, ended_by: Counter[str], programs: int) -> list[str]:
        from fuzz.training_check import too_many

        return too_many(ended_by, programs)

    def kind(self, found: str) -> str:
        """The differing observation, and the words of errors; numbers are omitted, since they change as a program is
        reduced."""
        what, _, values = found.partition(": ")
        return what + " ".join(re.findall(r"\('\w+Error', .{30}", values))

    def reduced(self, seed: int | None, text: str, fails: Callable[[str], bool]) -> str:
        return text if seed is None else reduced(generate(seed), fails).source()


def main() -> int:
    parser = forks.options("python -m tests.fuzz.training", __doc__)
    parser.set_defaults(backend="aot_eager")
    return forks.command(Training(), parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
