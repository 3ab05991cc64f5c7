"""The program of a seed: `generate(seed)` → the source of a module.

It has the prelude, classes, functions, `program` with the parameters that it uses, and `CHANGES`, statements that
run between calls. The arguments are the module's globals of the parameters' names, so that changes can reach every
object.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterable

from fuzz.python import classes, kept, rows, tensors
from fuzz.python.grammar import Grammar, Scope, Writer
from fuzz.python.repair import repaired

SHARE = 0.5
"""Share of the rows of each type in one program: with fewer rows, combinations of the same rows are more frequent."""
TRAINING = 0.4
"""Share of the programs that have the rows of `tensors.py`."""
KEEPING = 0.3
"""Share of the programs that have the rows of `kept.py`."""
PARAMETERS = {
    "x": "tensor", "y": "tensor", "n": "int", "flag": "bool", "s": "str", "items": "list", "tensors": "tensors", "table": "dict",
    "tdict": "tdict", "bag": "set", "queue": "queue", "pair": "pair", "rec": "rec", "o": "obj", "p": "obj", "objs": "objs", "mod": "mod",
}  # fmt: skip
SETUP = (
    "x = torch.arange(3.0) - 1", "y = torch.tensor([0.5, 2.0, -1.5])", "n, flag, s = 2, True, 'ab'", "items = [3, 1, 2]", "tensors = [x, y]",
    "table = {'a': 1, 'b': 2}", "tdict = {'u': x, 'v': y}", "bag = {1, 5}", "queue = collections.deque([1, 2])", "pair = Pair(1, y)", "rec = Rec(2, x)",
)  # fmt: skip
OTHERWISE = ("x.requires_grad_()", "y.requires_grad_()", "y = x", "x = torch.ones(4)[1:]", "items = Stack(items)", "items = Loaded(items)", "table = Table(table)", "table = Filed(table)", "rec.items = items",
             "pair = Pair(0, x)", "table = collections.OrderedDict(table)", "GL = items", "queue = collections.deque([1, 2, 3], maxlen=3)", "GD = table")  # fmt: skip


def generate(seed: int) -> str:
    """The first program of the seed that compiles (an assignment expression may stand where it must not) and ends
    soon."""
    for attempt in range(100):
        rng = random.Random(1000 * seed + attempt)
        with contextlib.suppress(SyntaxError):
            text = repaired(_program(rng, keeps=random.Random(seed).random() < KEEPING), rng)
            if text is not None:
                return text
    raise AssertionError(f"no program of seed {seed} runs")


def _program(rng: random.Random, keeps: bool) -> str:
    features = rng.sample(sorted(classes.FEATURES), rng.choice((0, 2, 3, 5)))
    trains = rng.random() < TRAINING
    grammar = _grammar(rng, features, trains)
    if keeps:
        rows_of_its_own = [*kept.STATEMENTS, *kept.COMPOUND]
        grammar.statements += rng.sample(rows_of_its_own, len(rows_of_its_own) // 3) * 12
    writer = Writer(rng, grammar, _literals())
    known = Scope({kind: [name for name, of in PARAMETERS.items() if of == kind] for kind in set(PARAMETERS.values())})
    parts = [rows.PRELUDE.strip("\n"), *_classes(rng, writer, features), _net(rng, writer)]
    for header, result in (("def helper(k, w=1):", "<int|k:int|w:int>"), ("def thelper(t):", "<tensor|t:tensor>")):
        writer.budget = rng.choice((0, 2, 4))
        text = header + ("\n    <block>" if writer.budget else "") + f"\n    return {result}"
        parts.append("\n".join(writer.written(text, Scope({}), "")))
    parts.append("\n".join(_setup(rng, known, trains)))
    writer.budget = rng.choice((4, 8, 12, 20))
    scope = Scope(known.names, returns=rng.choice(("tensor", "tensor", "any")))
    body: list[str] = []
    while writer.budget > 0:
        body += writer.block(scope, "    ")
    final = rng.choice(
        ("<tensor>", "<tensor>, <any>", "<any>", "[<tensor>, <obj>, <list>]", "{'a': <tensor>, 'b': <any>}")
    )
    body.append("    return " + writer.filled(final, scope, 0))
    used = [name for name in PARAMETERS if re.search(rf"\b{name}\b", "\n".join(body))]
    parts.append("\n".join([f"def program({', '.join(used)}):", *body]))
    changes = [writer.filled(change, scope.inner(), 2) for change in _changes(rng, features, trains, keeps)]
    parts.append("CHANGES = [\n" + "".join(f"    {change!r},\n" for change in changes) + "]")
    return "\n\n".join(parts) + "\n"


def _grammar(rng: random.Random, features: list[str], trains: bool) -> Grammar:
    own = [classes.FEATURES[name] for name in features]
    expressions: dict[str, list[str]] = {}
    for kind, of in rows.EXPRESSIONS.items():
        expressions[kind] = rng.sample(of, max(2, int(len(of) * SHARE)))
    statements = rng.sample(ROWS, int(len(ROWS) * SHARE))
    more = [(classes.BASE.expressions, classes.BASE.statements), (classes.NET_EXPRESSIONS, classes.NET_STATEMENTS)]
    more = more if rng.random() < 0.7 else more[1:]
    for rows_of, acts in [*more, (tensors.EXPRESSIONS, TENSOR_ROWS)] if trains else more:
        for kind, of in rows_of.items():
            expressions.setdefault(kind, []).extend(rng.sample(of, max(1, int(len(of) * SHARE))))
        statements += rng.sample(acts, int(len(acts) * SHARE))
    for feature in own:
        for kind, of in feature.expressions.items():
            expressions[kind] += [*of] * 2
        statements += [*feature.statements] * 2
    return Grammar(expressions, statements)


ROWS, TENSOR_ROWS = rows.statements(), tensors.statements()


def _literals() -> dict[str, tuple[str, ...]]:
    return {kind: tuple(of) for kind, of in (rows.LITERALS | tensors.LITERALS).items()}


def _classes(rng: random.Random, writer: Writer, features: list[str]) -> list[str]:
    """`C0`, and `C1`, which overrides parts of it."""
    store = rng.choice(("plain", "plain", "plain", *classes.STORES))
    body = [classes.STORES[store]] if classes.STORES[store] else []
    body.append(classes.INIT.replace("<size>", "pass" if store == "read-only" else "self.size = size"))
    if "slots" in store:
        body[-1] = body[-1].replace("    shared = 1\n", "    shared = 1\n", 1)
    for name in features:
        writer.budget = rng.choice((0, 1, 2))
        body += _written(writer, rng.choice(classes.FEATURES[name].forms))
    meta = "(metaclass=Meta)" if "Meta" in features else ""
    parts = [classes.META.strip("\n")] * bool(meta) + [classes.FIELD.strip("\n")] * (store == "descriptor")
    parts.append("\n".join([f"class C0{meta}:", *body]))
    inherits = [one for name in features for one in classes.FEATURES[name].overrides if rng.random() < 0.7]
    if not inherits and rng.random() < 0.5:
        return [*parts, "C1 = C0"]
    writer.budget = 2
    own = [text for form in inherits for text in _written(writer, form)]
    return [*parts, "\n".join(["class C1(C0):", *(own or ["    shared = 3"])])]


def _written(writer: Writer, form: str) -> list[str]:
    """A form of a feature; when the writer's budget is used up, blocks are empty."""
    return writer.written(form, Scope({}), "")


def _net(rng: random.Random, writer: Writer) -> str:
    writer.budget = rng.choice((0, 2))
    return "\n".join([
        "class Net(torch.nn.Module):", "    def __init__(self):", "        super().__init__()",
        "        self.weight = torch.nn.Parameter(torch.arange(9.0).reshape(3, 3) / 9)",
        "        self.register_buffer('mean', torch.zeros(3))", "        self.calls, self.last = 0, None",
        "        " + rng.choice(classes.NET["init"]),
        *_written(writer, "    def forward(self, t):\n        " + rng.choice(classes.NET["forward"])),
    ])  # fmt: skip


def _setup(rng: random.Random, scope: Scope, trains: bool) -> Iterable[str]:
    yield from SETUP
    yield from rng.sample(OTHERWISE, rng.choice((0, 1, 2)))
    yield "o, p = C0(2, y), C1(1, x)"
    yield "objs = [o, p]"
    yield "mod = Net()"
    yield rng.choice(classes.NET["setup"])
    yield from kept.SETUP
    if trains:
        yield rng.choice(tensors.SETUP)
        yield "opt = " + rng.choice(tensors.OPTIMIZERS)


def _changes(rng: random.Random, features: list[str], trains: bool, keeps: bool) -> list[str]:
    if keeps:
        return [rng.choice(kept.CHANGES)] * rng.choice((3, 5, 7))
    pool = [*classes.CHANGES, *classes.BASE.changes, *classes.NET["change"], *(tensors.CHANGES * 2 if trains else ())]
    own = [change for name in features for change in classes.FEATURES[name].changes]
    return [rng.choice(own if own and rng.random() < 0.3 else pool) for _ in range(rng.choice((1, 2, 3)))]
