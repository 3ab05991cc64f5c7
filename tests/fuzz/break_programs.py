"""Random programs for the break fuzzer, as trees that a reducer can cut and as source text.

In: a seed.  Out: a `Program`: a block of statements, some with nested blocks; `source()` prints it.  Every program
defines `program(x, n, flag, items, table, box, log)`.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass
class Node:
    """A statement: clauses, each a header and, in a compound statement, the block below it."""

    clauses: list[tuple[str, list[Node] | None]]

    def lines(self, indent: int) -> Iterator[str]:
        for header, block in self.clauses:
            yield "    " * indent + header
            if block is not None:
                if not block:
                    yield "    " * (indent + 1) + "pass"
                for node in block:
                    yield from node.lines(indent + 1)


Block = list[Node]


def source(program: Block) -> str:
    """The source text of a program."""
    return "\n".join(line for node in program for line in node.lines(0)) + "\n"


def line(text: str) -> Node:
    return Node([(text, None)])


ERRORS = ("ValueError", "KeyError", "Custom", "TypeError", "ZeroDivisionError", "IndexError", "Exception")


@dataclass
class Scope:
    """The names that statements at one place may use, and the actions allowed there."""

    ints: set[str]
    tensors: set[str]
    lists: set[str]
    maybe: set[str] = field(default_factory=set)
    """Integers that are bound on some paths only."""
    cells: tuple[str, ...] = ()
    """Integers of the enclosing functions, for `nonlocal`."""
    loop: bool = False
    handler: bool = False
    generator: bool = False
    depth: int = 0

    def inner(self, **changes: bool) -> Scope:
        made = Scope(set(self.ints), set(self.tensors), set(self.lists), set(self.maybe), self.cells, self.loop,
                     self.handler, self.generator, self.depth + 1)  # fmt: skip
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    def leave(self, inner: Scope) -> None:
        """Leave a block that ran in full, in part, or not at all."""
        self.maybe |= (inner.ints | inner.maybe) - self.ints
        self.ints &= inner.ints
        self.maybe -= self.ints


class Generator:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.budget = self.rng.choice((6, 10, 16, 26))
        self.serial = 0
        self.helpers: list[str] = []
        self.generators: list[str] = []

    def name(self, prefix: str) -> str:
        self.serial += 1
        return f"{prefix}{self.serial}"

    def one(self, *options: str) -> str:
        return self.rng.choice(options)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    # expressions ----------------------------------------------------------------------------------------------
    def integer(self, scope: Scope, depth: int = 0) -> str:
        rng = self.rng
        if scope.maybe and self.chance(0.06):
            return rng.choice(sorted(scope.maybe))
        if depth > 1 or self.chance(0.45):
            return rng.choice([*sorted(scope.ints), str(rng.randrange(4))])
        a, b = self.integer(scope, depth + 1), self.integer(scope, depth + 1)
        s = rng.choice(sorted(scope.lists))
        options = [
            f"({a} + {b})", f"({a} * 2 - {b})", f"len({s})", f"brk({a})", f"note(log, {a})", f"sum({s})",
            f"({a} if {self.condition(scope, depth + 1)} else {b})", f"boom({a})", f"boom_after_break({a})",
            f"box.grow({rng.randrange(3)})", f"box.grow_and_break({rng.randrange(3)})", "box.size",
            f"max({a}, {b}, 0)", f"int(brk({self.tensor(scope, depth + 1)}.sum().item() > 2))",
            f"[{a}, {b}, 5][{rng.randrange(4)}]", f"table.get('a', {b})", f"table['{self.one('a', 'b', 'zz')}']",
            f"(lambda v: v + {a})({b})", f"(lambda v: brk(v) + {a})({b})", f"{a} // {b}", "adder(2)(3)",
            f"sum(v + {b} for v in {s})", f"len([brk(v) for v in {s} if v != {a}])",
            f"len({{v: {a} for v in {s}}})", f"sum({{v % 3 for v in {s}}})", f"next(iter({s}), {a})",
            f"next((v for v in {s} if v > {a}), {b})",
        ]  # fmt: skip
        if scope.depth >= 0 and self.chance(0.1):
            walrus = self.name("w")
            scope.maybe.add(walrus)
            return f"({walrus} := {a})"
        if self.helpers and self.chance(0.2):
            return self.call_helper(scope, depth)
        return rng.choice(options)

    def call_helper(self, scope: Scope, depth: int) -> str:
        helper = self.rng.choice(self.helpers)
        a = self.integer(scope, depth + 1)
        t = self.tensor(scope, depth + 1)
        form = self.rng.choice((f"{helper}({t}, {a}, log)", f"{helper}(*[{t}, {a}], log=log)",
                                f"{helper}({t}, log=log, **{{'n': {a}}})"))  # fmt: skip
        return f"int({form}.shape[0])"

    def tensor(self, scope: Scope, depth: int = 0) -> str:
        t = self.rng.choice(sorted(scope.tensors))
        if depth > 1 or self.chance(0.4):
            return t
        u = self.tensor(scope, depth + 1)
        a = self.rng.choice(sorted(scope.ints))
        options = [f"({t} + {u})", f"({t} * 0.5)", f"{t}.sin()", f"brk({t} + 1)", f"scaled({t}, 2, shift=1)",
                   f"scaled_break({t}, 2, 1, shift=1, more=3)", f"({t} - {a})", f"torch.where({u} > 0, {t}, {u})",
                   f"({t} if {self.condition(scope, depth + 1)} else {u})", f"torch.stack([{t}, {u}]).sum(0)",
                   f"sum([{t} * v for v in (1, 2)], {u})", f"sum([brk({t}) for v in (1, 2)], {u})"]  # fmt: skip
        return self.rng.choice(options)

    def condition(self, scope: Scope, depth: int = 0) -> str:
        a, b = self.integer(scope, depth + 1), self.integer(scope, depth + 1)
        t, s = self.rng.choice(sorted(scope.tensors)), self.rng.choice(sorted(scope.lists))
        return self.one("flag", "not flag", f"{a} > {b}", f"{a} == {b}", f"{t}.sum() > {a}", s, f"{a} in {s}",
                        f"brk({a} < {b})", f"flag and {a} > 1", f"{a} or {b}", f"{a} < {b} < 5", "box.size > 3")  # fmt: skip

    def iterable(self, scope: Scope) -> str:
        a, s = self.rng.choice(sorted(scope.ints)), self.rng.choice(sorted(scope.lists))
        own = [f"{g}(x, 2, log)" for g in self.generators]
        return self.one("range(2)", "range(3)", s, f"range(min({a}, 3))", "counting(log, 2)", "counting_final(log, 3)",
                        "counting_break(log, 2)", "delegating(log, 2)", f"[v + 1 for v in {s}]", "table.values()",
                        "(1, brk(2), 3)", f"(v * 2 for v in {s})", f"(brk(v) for v in {s})", f"reversed({s})",
                        "map(boom, (0, 1, 2))", f"sorted({s})", *own)  # fmt: skip

    # statements -----------------------------------------------------------------------------------------------
    def block(self, scope: Scope, most: int = 4) -> Block:
        made = []
        for _ in range(self.rng.randint(1, most)):
            if self.budget <= 0:
                break
            self.budget -= 1
            made += self.statement(scope)
        return made

    def statement(self, scope: Scope) -> Block:
        compound = self.budget > 1 and scope.depth < 4 and self.chance(0.45)
        table = COMPOUND if compound else SIMPLE
        return self.rng.choices([make for _, make in table], [weight for weight, _ in table])[0](self, scope)

    def assign(self, scope: Scope) -> Block:
        name = self.one("i", "j", "k")
        text = line(f"{name} = {self.integer(scope)}")
        scope.ints.add(name)
        scope.maybe.discard(name)
        return [text]

    def assign_tensor(self, scope: Scope) -> Block:
        name = self.one("x", "y", "z")
        text = line(f"{name} = {self.tensor(scope)}")
        scope.tensors.add(name)
        return [text]

    def assign_list(self, scope: Scope) -> Block:
        s, a = self.rng.choice(sorted(scope.lists)), self.integer(scope)
        text = self.one(f"[{a}, 2]", f"[*{s}, {a}]", f"[brk(v) + 1 for v in {s}]", f"[v for v in {s} if v > {a}]",
                        f"[v + w for v in {s} for w in (0, {a})][:4]", f"list({self.iterable(scope)})[:5]", f"{s}[:2]",
                        f"[(lambda: v)() for v in {s}]", f"[boom(v) for v in {s}]", f"[[v, brk({a})][0] for v in {s}]")  # fmt: skip
        scope.lists.add("s")
        return [line(f"s = {text}")]

    def effect(self, scope: Scope) -> Block:
        a, t, name = self.integer(scope), self.tensor(scope), self.rng.choice(sorted(scope.ints))
        return [line(self.one(f"log.append({a})", f"log.append({t}.tolist())", f"log.append(f'v={{{name}!r:>4}}')",
                              f"table['a'] = {a}", f"items.append({a}) if len(items) < 9 else None", f"box.label = 'l' + str({a})", f"x += {a}",
                              f"table[{a}] = 1", "log.append(handled_name())", f"items[0] = {a}",
                              f"log.append(type(sys.exception()).__name__) if {self.condition(scope)} else None"))]  # fmt: skip

    def augment(self, scope: Scope) -> Block:
        name = self.rng.choice(sorted(scope.ints))
        return [line(f"{name} {self.one('+=', '-=', '*=')} {self.integer(scope)}")]

    def graph_break(self, scope: Scope) -> Block:
        t = self.rng.choice(sorted(scope.tensors))
        return [line(self.one("pycompiler.graph_break()", "gc.isenabled()", f"log.append({t}.sum().item() > 0)",
                              f"brk({self.integer(scope)})"))]  # fmt: skip

    def delete(self, scope: Scope) -> Block:
        own = sorted(scope.ints & {"i", "j", "k"})
        if not own:
            return self.graph_break(scope)
        name = self.rng.choice(own)
        scope.ints.discard(name)
        scope.maybe.add(name)
        return [line(f"del {name}")]

    def unpack(self, scope: Scope) -> Block:
        s, a = self.rng.choice(sorted(scope.lists)), self.integer(scope)
        text = self.one(f"i, *s = [{a}, *{s}]", f"*s, j = [*{s}, brk({a})]", f"i, j = {a}, brk(2)", f"i, j = {s}",
                        f"(i, (j, k)) = {a}, (1, {a})", f"i = j = {a}")  # fmt: skip
        scope.ints |= {"i", "j"} - ({"i"} if text.startswith("*s") else {"j"} if text.startswith("i, *s") else set())
        scope.maybe -= scope.ints
        return [line(text)]

    def leave(self, scope: Scope) -> Block:
        if scope.generator and self.chance(0.7):
            return [line(self.one(f"yield {self.integer(scope)}", f"yield brk({self.integer(scope)})"))]
        way = "return" if scope.generator else f"return {self.tensor(scope)}"
        if scope.loop and self.chance(0.6):
            way = self.one("break", "continue")
        return [line(way if self.chance(0.3) else f"if {self.condition(scope)}: {way}")]

    def throw(self, scope: Scope) -> Block:
        kind = self.one(*ERRORS[:6])
        made = f"{kind}('t{self.rng.randrange(9)}')"
        if scope.handler and self.chance(0.5):
            return [line(self.one("raise", f"raise {made} from None", f"raise {made} from e", "raise e"))]
        return [line(self.one(f"raise {made}", f"if n > 2: raise {kind}", f"assert {self.condition(scope)}, 'a'", "raise brk(" + made + ")",
                              f"if {self.condition(scope)}: raise {made}"))]  # fmt: skip

    # compound statements --------------------------------------------------------------------------------------
    def branch(self, scope: Scope) -> Block:
        first, second = scope.inner(), scope.inner()
        clauses: list[tuple[str, Block | None]] = [(f"if {self.condition(scope)}:", self.block(first))]
        if self.chance(0.3):
            third = scope.inner()
            clauses.append((f"elif {self.condition(scope)}:", self.block(third)))
            scope.maybe |= third.ints - scope.ints
        if self.chance(0.5):
            clauses.append(("else:", self.block(second)))
        scope.leave(first)
        scope.leave(second)
        return [Node(clauses)]

    def loop(self, scope: Scope) -> Block:
        iterable = self.iterable(scope)
        target = self.one("i", "j", "k")
        if self.chance(0.2):
            iterable = self.one(f"enumerate({iterable})", f"zip({iterable}, {self.iterable(scope)})", "table.items()")
            target = f"k, {self.name('u')}" if "table" not in iterable or "(" in iterable else "u0, j"
        inner = scope.inner(loop=True)
        inner.ints |= {target} & {"i", "j", "k"}
        clauses: list[tuple[str, Block | None]] = [(f"for {target} in {iterable}:", self.block(inner))]
        scope.leave(inner)
        if self.chance(0.3):
            other = scope.inner()
            clauses.append(("else:", self.block(other, 2)))
            scope.leave(other)
        return [Node(clauses)]

    def while_loop(self, scope: Scope) -> Block:
        count = self.name("c")
        inner = scope.inner(loop=True)
        body = [line(f"{count} += 1"), *self.block(inner)]
        scope.leave(inner)
        condition = f"{count} < {self.rng.randint(1, 3)}"
        if self.chance(0.3):
            condition += f" and ({self.condition(scope)})"
        clauses: list[tuple[str, Block | None]] = [(f"while {condition}:", body)]
        if self.chance(0.3):
            other = scope.inner()
            clauses.append(("else:", self.block(other, 2)))
            scope.leave(other)
        return [line(f"{count} = 0"), Node(clauses)]

    def manager(self) -> str:
        name = self.name("m")
        breaks, fails = self.one("", "", "enter", "exit"), self.one("", "", "", "", "", "enter", "exit")
        swallow = self.chance(0.3)
        return self.one(f"Manager(log, '{name}', {swallow}, '{breaks}', '{fails}')", f"plain(log, '{name}')",
                        f"final(log, '{name}')", f"final_break(log, '{name}')", f"swallowing(log, '{name}')",
                        f"changing(log, '{name}')", f"Manager(log, '{name}')",
                        "contextlib.suppress(ValueError)", "contextlib.nullcontext(4)", "torch.no_grad()")  # fmt: skip

    def with_block(self, scope: Scope) -> Block:
        items = [self.manager() for _ in range(1 + self.chance(0.25))]
        inner = scope.inner()
        if self.chance(0.3) and "suppress" not in items[0] and "no_grad" not in items[0]:
            items[0] += " as k"
            inner.ints.add("k")
        body = self.block(inner)
        scope.leave(inner)
        return [Node([(f"with {', '.join(items)}:", body)])]

    def try_block(self, scope: Scope) -> Block:
        body = scope.inner()
        clauses: list[tuple[str, Block | None]] = [("try:", self.block(body))]
        scope.leave(body)
        handlers = self.rng.choice((0, 1, 1, 1, 2))
        for position in range(handlers):
            inner = scope.inner(handler=True)
            kinds = self.one(self.one(*ERRORS), f"({self.one(*ERRORS)}, {self.one(*ERRORS)})")
            header = f"except {kinds} as e:" if self.chance(0.6) else f"except {kinds}:"
            if position == handlers - 1 and self.chance(0.2):
                header = "except:"
            block = self.block(inner)
            if " as e" in header and self.chance(0.4):
                block.insert(0, line("log.append((type(e).__name__, str(e), type(e.__context__).__name__))"))
            clauses.append((header, block))
            scope.leave(inner)
        if handlers and self.chance(0.3):
            other = scope.inner()
            clauses.append(("else:", self.block(other, 2)))
            scope.leave(other)
        if not handlers or self.chance(0.4):
            last = scope.inner()
            clauses.append(("finally:", self.block(last, 3)))
            scope.leave(last)
        return [Node(clauses)]

    def match_block(self, scope: Scope) -> Block:
        a, s = self.integer(scope), self.rng.choice(sorted(scope.lists))
        subject = self.one(a, s, "box", "table", f"({a}, flag)")
        clauses: list[tuple[str, Block | None]] = []
        body: Block = [Node(clauses)]
        for pattern in self.rng.sample(PATTERNS, 3):
            inner = scope.inner()
            guard = f" if {self.condition(scope)}" if self.chance(0.3) else ""
            clauses.append((f"case {pattern}{guard}:", self.block(inner, 2)))
            scope.leave(inner)
        return [Node([(f"match {subject}:", [Node([clause]) for clause in clauses])])] if body else []

    def closure(self, scope: Scope) -> Block:
        """A nested function that reads and writes a variable of this one, called once or twice."""
        name, cell = self.name("inner"), self.name("cell")
        inner = Scope({"a", cell}, {"x"} & scope.tensors or set(scope.tensors), set(scope.lists), depth=scope.depth + 2,
                      generator=self.chance(0.3))  # fmt: skip
        body = [line(f"nonlocal {cell}")] if self.chance(0.7) else []
        own = self.block(inner, 3)
        assigned = {"i", "j", "k", "s", "x", "y", "z"}
        reads = [line(f"{v} = 1") for v in sorted(assigned & {"i", "j", "k"}) if self.chance(0.5)]
        tensors = [line(f"{v} = v0") for v in ("y", "z", "x")]
        body += [*reads, *tensors, line("s = [1, 2]"), *own]
        if body[0].clauses[0][0].startswith("nonlocal"):
            body.append(line(f"{cell} += 1"))
        header = f"def {name}(a, v0={self.rng.choice(sorted(scope.tensors))}):"
        call = f"list({name}({self.integer(scope)}))" if inner.generator else f"{name}({self.integer(scope)})"
        result: Block = [line(f"{cell} = {self.integer(scope)}"), Node([(header, body)])]
        if inner.generator:
            body.append(line("yield a"))
        result += [line(call) for _ in range(1 + self.chance(0.3))]
        if self.chance(0.5):
            result.append(line(f"log.append({cell})"))
        return result

    # the program ----------------------------------------------------------------------------------------------
    def helper(self, generator: bool) -> Node:
        name = self.name("gen" if generator else "helper")
        scope = Scope({"n"}, {"x"}, {"s"}, depth=2, generator=generator)
        body = [line("flag = n > 1"), line("items = s = [1, 2]"), line("table = {'a': 1}"), line("box = Box(1, 'h')")]
        body += self.block(scope, 4)
        body.append(line("yield n" if generator else "return x"))
        (self.generators if generator else self.helpers).append(name)
        return Node([(f"def {name}(x, n, log):", body)])

    def program(self) -> Block:
        made: Block = []
        total, self.budget = self.budget, 5
        if self.chance(0.4):
            made.append(self.helper(False))
        if self.chance(0.25):
            self.budget = 5
            made.append(self.helper(True))
        self.budget = total
        scope = Scope({"n"}, {"x"}, {"items"})
        body = []
        while self.budget > 0:
            body += self.block(scope)
        body.append(
            line(f"return {self.one('x', 'x, n', '[x, items]', 'table, x', 'box.size, x', self.tensor(scope))}")
        )
        made.append(Node([("def program(x, n, flag, items, table, box, log):", body)]))
        return made


PATTERNS = ("0", "1 | 2", "int()", "[a0, *a1]", "[]", "Box(size=3)", "Box(a2, label)", "{'a': a3, **a4}", "(a5, True)",
            "str()", "list()", "None")  # fmt: skip
Make = Callable[[Generator, Scope], Block]
SIMPLE: list[tuple[int, Make]] = [
    (4, Generator.assign), (4, Generator.assign_tensor), (2, Generator.assign_list), (4, Generator.effect),
    (2, Generator.augment), (4, Generator.graph_break), (1, Generator.delete), (2, Generator.unpack),
    (2, Generator.leave), (2, Generator.throw),
]  # fmt: skip
COMPOUND: list[tuple[int, Make]] = [
    (3, Generator.branch), (3, Generator.loop), (2, Generator.while_loop), (4, Generator.with_block),
    (5, Generator.try_block), (1, Generator.match_block), (2, Generator.closure),
]  # fmt: skip


def generate(seed: int) -> Block:
    """The program of a seed: the first attempt that compiles (an assignment expression may be drawn where Python
    forbids it)."""
    for attempt in range(100):
        made = Generator(100 * seed + attempt).program()
        with contextlib.suppress(SyntaxError):
            compile(source(made), "<program>", "exec")
            return made
    raise AssertionError(f"no program of seed {seed} compiles")
