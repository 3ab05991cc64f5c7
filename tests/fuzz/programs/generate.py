"""Generator of programs by seed. In: a seed. Out: `Program`s that eager runs, most of them without an error.

Statements are drawn from the table OPERATORS (`operators/`), and run when they are drawn, so that the shapes,
strides and dtypes of all values are known. A statement that raises in eager is dropped and counted. A few such
statements stay, as the end of their program: then compiled code must raise, too.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .overlaps import Overlaps
from .program import Program, bound, defined, names, prelude

Operator = Callable[["Scene"], str]
OPERATORS: dict[str, tuple[Operator, float]] = {}
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
COMPLEX = (torch.complex64, torch.complex128)
SMALL = (1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9)
LARGE = (16, 17, 31, 64, 65, 100, 257, 1000, 1024, 2100)
RARE = 1.0  # the weight of an operator that is aimed at and has no weight of its own
MOST = 9000  # elements of a value

# Dtypes of the floating inputs of a program, with weights.
PROFILES: tuple[tuple[float, tuple[torch.dtype, ...]], ...] = (
    (46, (torch.float64,)),
    (20, (torch.float32,)),
    (6, (torch.float32, torch.bfloat16)),
    (4, (torch.bfloat16,)),
    (4, (torch.float16, torch.float32)),
    (8, (torch.float64, torch.float32)),
    (6, (torch.float64, torch.float32, torch.bfloat16, torch.float16)),
    (6, (torch.float64, torch.complex128)),
)


# Exact functions of a value. Their gradients are zero, or they have none.
CONSUMERS = (
    "{t} == {t}.amax(-1, keepdim=True)", "{t} == {t}.amin(0, keepdim=True)", "{t}.floor()", "{t}.int()", "{t}.long()", "({t} / {t}) == 1",
    "({t} - {t}) == 0", "{t}.argmax(-1)", "{t}.argmin(0)", "{t} == {t}.flip(-1)", "{t} > {t}.flip(0)", "({t} * 8).round()", "{t}.sign()",
    "({t} / 3).trunc()", "{t} * {t} - {t} * {t} == 0",
)  # fmt: skip
CONSUMED = 0.2  # the share of programs with such consumers


class Unfit(Exception):
    """No value fits the operator that was drawn."""


def operator(weight: float = 1.0) -> Callable[[Operator], Operator]:
    """A row of OPERATORS: a function of the scene that gives the source of an expression or statement."""

    def register(fn: Operator) -> Operator:
        name = fn.__name__.rstrip("_")
        if name in OPERATORS:
            raise ValueError(f"two operators named {name}")
        OPERATORS[name] = (fn, weight)
        return fn

    return register


@dataclass(frozen=True)
class Aim:
    """Operators that are drawn more often, and by how much; sizes of dimensions."""

    operators: dict[str, float] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()


@dataclass
class Scene:
    """A program under construction; `live`: the tensors by name, as eager computes them."""

    seed: int
    device: str = "cpu"
    aim: Aim = field(default_factory=Aim)
    leaves: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    live: dict[str, Any] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    count: int = 0

    def __post_init__(self) -> None:
        self.rng = r = random.Random(self.seed)
        self.namespace = dict(prelude(self.device))
        self.dtypes = r.choices([d for _, d in PROFILES], [w for w, _ in PROFILES])[0]
        self.training = r.random() < 0.65
        self.wild = r.random() < 0.04  # allows infinities and NaN
        sizes = [r.choice(SMALL) for _ in range(3)]
        if r.random() < 0.15:
            sizes[r.randrange(3)] = r.choice(LARGE)
        if r.random() < 0.03:
            sizes[r.randrange(3)] = 0
        self.sizes = list(self.aim.sizes) or sizes

    # ---- choosing -------------------------------------------------------------------------------------------------
    def shape(self, most: int = 4) -> tuple[int, ...]:
        """A shape of this program's sizes, at times with ones."""
        r = self.rng
        dims = r.choices(range(most + 1), (1, 4, 8, 4, 1)[: most + 1])[0]
        shape = [1 if r.random() < 0.08 else r.choice(self.sizes) for _ in range(dims)]
        while numel(shape) > MOST:
            shape[shape.index(max(shape))] = r.choice((1, 2, 3))
        return tuple(shape)

    def tensor(self, fits: Callable[[torch.Tensor], bool] | None = None) -> str:
        """A tensor, new and unused ones first."""
        found = [n for n, t in self.live.items() if isinstance(t, torch.Tensor) and (fits is None or fits(t))]
        if not found:
            raise Unfit
        recent = len(self.live)
        weights = [(4.0 if not self.used[n] else 1.0) + 3.0 * k / recent for k, n in enumerate(found)]
        return self.rng.choices(found, weights)[0]

    def real(self, least: int = 0) -> str:
        """A floating tensor of `least` dimensions or more; a cast of an existing one if there is none."""
        try:
            return self.tensor(lambda t: t.is_floating_point() and t.dim() >= least)
        except Unfit:
            name = self.tensor(lambda t: t.dim() >= least and not t.is_complex())
            return f"{name}.to({self.dtype()})"

    def number(self, least: int = 0) -> str:
        return self.tensor(lambda t: t.dtype != torch.bool and t.dim() >= least)

    def dtype(self) -> str:
        return str(self.rng.choice([d for d in self.dtypes if d.is_floating_point]))

    def of(self, expression: str) -> torch.Tensor:
        """The value of an expression over the live tensors."""
        if expression in self.live:
            return self.live[expression]  # type: ignore[no-any-return]
        with torch.no_grad():
            return eval(expression, self.namespace, self.live)  # type: ignore[no-any-return]

    def scalar(self) -> str:
        return self.rng.choice(("2", "-1", "0.5", "1.5", "-0.25", "3", "1", "0.1"))

    def dim(self, t: torch.Tensor) -> int:
        """A dimension, counted from either end."""
        if not t.dim():
            raise Unfit
        return self.rng.randrange(-t.dim(), t.dim())

    def dims(self, t: torch.Tensor, least: int = 1) -> list[int]:
        if t.dim() < least:
            raise Unfit
        found = self.rng.sample(range(t.dim()), self.rng.randint(least, t.dim()))
        return [d - t.dim() if self.rng.random() < 0.4 else d for d in found]

    def some(self, *texts: str) -> str:
        return self.rng.choice(texts)

    def fresh(self) -> int:
        return self.rng.randrange(10**6)

    # ---- inputs ---------------------------------------------------------------------------------------------------
    def leaf(self, text: str, grad: bool = False) -> str:
        name = f"a{len(self.leaves)}"
        line = f"{name} = {text}{'.requires_grad_()' if grad else ''}"
        exec(line, self.namespace)
        self.leaves.append(line)
        return name

    def argument(self, text: str) -> str:
        """An argument computed by the source `text` from the leaves."""
        name = f"x{len(self.arguments)}"
        line = f"{name} = {text}"
        exec(line, self.namespace, self.live)
        self.arguments.append(line)
        return name

    def plain(self, shape: Sequence[int], dtype: torch.dtype | str, extra: str = "") -> str:
        """A new argument that needs no gradient."""
        a = self.leaf(f"data({self.fresh()}, {listed(shape)}dtype={dtype}{extra})")
        return self.argument(a)

    def index(self, n: int, shape: Sequence[int], negative: bool = False) -> str:
        """Integers below n: an argument."""
        if n == 0 or numel(shape) == 0:
            raise Unfit
        low = -n if negative and self.rng.random() < 0.3 else 0
        return self.plain(shape, "torch.int64", f", low={low}, high={n}")

    def different(self, n: int, k: int) -> str:
        """k different integers below n, an argument or a constant."""
        if n == 0 or k > n:
            raise Unfit
        if self.rng.random() < 0.4 and k < 12:
            return f"torch.tensor({self.rng.sample(range(n), k)}, device=DEVICE)"
        return self.argument(f"order({self.fresh()}, {n}, {k})")

    def mask(self, shape: Sequence[int]) -> str:
        """A mask that broadcasts to `shape`: a comparison, or an argument."""
        try:
            return self.tensor(lambda t: t.dtype == torch.bool and broadcasts(t.shape, shape))
        except Unfit:
            pass
        if self.rng.random() < 0.6:
            try:
                name = self.tensor(
                    lambda t: not t.is_complex() and t.dtype != torch.bool and tuple(t.shape) == tuple(shape)
                )
                return f"({name} {self.rng.choice(('>', '<', '>=', '!='))} {self.rng.choice(('0', '0.3', '1'))})"
            except Unfit:
                pass
        return self.plain(self.narrower(shape), torch.bool)

    def narrower(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to `shape`."""
        r = self.rng
        found = [1 if r.random() < 0.15 else n for n in shape]
        return tuple(found[r.randrange(len(found)) :] if found and r.random() < 0.25 else found)

    def fit(self, shape: Sequence[int], dtype: torch.dtype | None = None, exact: bool = False) -> str:
        """A value that broadcasts to `shape` (has it, if `exact`): a tensor, a part of one, or a new argument."""
        r = self.rng

        def fits(t: torch.Tensor) -> bool:
            right = t.dtype == dtype if dtype else t.dtype != torch.bool
            return right and (tuple(t.shape) == tuple(shape) if exact else broadcasts(t.shape, shape))

        if r.random() < 0.8:
            try:
                return self.tensor(fits)
            except Unfit:
                pass
        if r.random() < 0.7:
            try:
                return self.part(shape, dtype)
            except Unfit:
                pass
        wanted = dtype or r.choice(self.dtypes)
        if r.random() < 0.3 and numel(shape) < 100:
            size = f"({listed(shape)})"
            return r.choice((f"torch.full({size}, 0.7, dtype={wanted}, device=DEVICE)",
                             f"torch.ones({size}, dtype={wanted}, device=DEVICE)",
                             f"torch.zeros({size}, dtype={wanted}, device=DEVICE)"))  # fmt: skip
        if wanted.is_floating_point and self.training and r.random() < 0.5:
            return self.argument(self.leaf(f"data({self.fresh()}, {listed(shape)}dtype={wanted})", grad=True))
        return self.plain(shape if exact else self.narrower(shape), wanted)

    def part(self, shape: Sequence[int], dtype: torch.dtype | None = None) -> str:
        """A piece of a larger tensor, or a wider view of a smaller one."""

        def fits(t: torch.Tensor) -> bool:
            right = t.dtype == dtype if dtype else t.is_floating_point()
            return right and t.dim() == len(shape) > 0 and all(n >= m for n, m in zip(t.shape, shape, strict=True))

        name = self.tensor(fits)
        pieces = []
        for n, m in zip(self.live[name].shape, shape, strict=True):
            start = self.rng.randint(0, n - m)
            step = 2 if m > 1 and start + 2 * (m - 1) < n and self.rng.random() < 0.5 else 1
            stop = start + step * (m - 1) + 1 if m else start
            pieces.append(":" if n == m else f"{start}:{stop}" + (f":{step}" if step > 1 else ""))
        return f"{name}[{', '.join(pieces)}]"

    # ---- statements -----------------------------------------------------------------------------------------------
    def add(self, text: str) -> bool:
        """Runs and stores a statement (an expression gets a name); False if eager refuses it or its values explode."""
        is_expression = text[0] != "!"
        statement = f"t{self.count} = {text}" if is_expression else text[1:]
        before = dict(self.live)
        watch = Overlaps()
        try:
            with watch if not is_expression else contextlib.nullcontext():
                exec(statement, self.namespace, self.live)
        except Exception as e:
            self.live = before
            self.dropped[f"eager refuses: {type(e).__name__}"] += 1
            if (
                self.device == "cpu"
                and self.rng.random() < 0.02
                and isinstance(e, RuntimeError | IndexError | TypeError)
            ):
                self.statements.append(statement)
                raise Ended from None
            return False
        if watch.found:
            self.live = before
            self.dropped["reads what it writes, in an order of eager's own"] += 1
            return False
        for name in bound(statement):
            why = self.unwanted(self.live[name])
            if why:
                self.live = before
                self.dropped[why] += 1
                return False
        self.used.update(names(statement) - set(bound(statement)))
        self.statements.append(statement)
        self.count += is_expression
        return True

    def name(self) -> str:
        """The next name, for statements that bind a name themselves."""
        self.count += 1
        return f"t{self.count - 1}"

    def unwanted(self, value: Any) -> str:
        if not isinstance(value, torch.Tensor):
            return ""
        if value.numel() > MOST:
            return "values become large"
        if self.wild or not value.numel() or not (value.is_floating_point() or value.is_complex()):
            return ""
        top = float(value.detach().abs().max())
        limit = 300.0 if value.dtype in (torch.float16, torch.bfloat16) else 1e4
        return "" if top < limit else "values explode"


class Ended(Exception):
    """The last statement raises in eager."""


def numel(shape: Sequence[int]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def listed(shape: Sequence[int]) -> str:
    """Sizes as `4, 5, ` (empty without dimensions)."""
    return "".join(f"{n}, " for n in shape)


def broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    if len(shape) > len(to):
        return False
    return all(n in (1, m) for n, m in zip(reversed(shape), reversed(to), strict=False))


# Arguments made of a leaf: source over {a}, and the probability.  Views of a product are no leaves, so they may be
# written.
LAYOUTS: tuple[tuple[float, str], ...] = (
    (10, "{a}"),
    (3, "({a} * 1)"),
    (2, "{a}.t()"),
    (1, "({a} * 1).t()"),
    (2, "{a}[::2]"),
    (2, "({a} * 1)[..., 1:]"),
    (1, "{a}[..., ::3]"),
    (1, "{a}.transpose(0, -1)"),
    (1, "{a}[:1].expand({a}.shape)"),
    (1, "{a}[..., :1].expand({a}.shape)"),
    (1, "{a}.detach()"),
    (1, "{a}[None].expand(2, *{a}.shape)"),
    (0.5, "{a}.unfold(0, 2, 1)"),
    (0.5, "{a}.flatten().as_strided((2, 3), (1, 2))"),
)


def inputs(scene: Scene) -> None:
    """The first arguments: of several dtypes and layouts, some of them views of one memory."""
    r = scene.rng
    for _ in range(r.randint(1, 4)):
        kind = r.random()
        dtype = r.choice(scene.dtypes) if kind < 0.88 else r.choice((torch.int64, torch.bool, torch.int32, torch.uint8))
        shape = scene.shape()
        grad = scene.training and (dtype.is_floating_point or dtype.is_complex) and r.random() < 0.75
        name = scene.leaf(f"data({scene.fresh()}, {listed(shape)}dtype={dtype})", grad)
        layouts = 1 + (r.random() < 0.12)
        for _ in range(layouts):
            text = r.choices([t for _, t in LAYOUTS], [w for w, _ in LAYOUTS])[0].replace("{a}", name)
            try:
                scene.argument(text)
            except Exception:  # this leaf has no such view
                scene.argument(name)
    if r.random() < 0.1 and len(scene.arguments) > 1:
        first = defined(scene.arguments[0])
        scene.argument(
            r.choice((f"{first}.view_as({first})", f"{first}[:1]", first)) if scene.live[first].dim() else first
        )


def generate(seed: int, device: str = "cpu", aim: Aim | None = None) -> tuple[Program, Counter[str]]:
    """The program of `seed`, and counts of the dropped statements by reason."""
    scene = Scene(seed, device, aim or Aim())
    r = scene.rng
    inputs(scene)
    rows = list(OPERATORS.items())
    aims = scene.aim.operators
    chances = [(w or RARE) * aims[n] if n in aims else w for n, (_, w) in rows]
    wanted = r.choices((r.randint(3, 8), r.randint(8, 16), r.randint(16, 40)), (5, 3, 1))[0]
    ended = False
    for _ in range(wanted * 6):
        if len(scene.statements) >= wanted:
            break
        name, (fn, _) = r.choices(rows, chances)[0]
        kept = (len(scene.leaves), len(scene.arguments), dict(scene.live))
        try:
            text = fn(scene)
            done = scene.add(text)
        except Unfit:
            scene.dropped["nothing fits"] += 1
            done = False
        except Ended:
            ended = True
            break
        except Exception as e:
            scene.dropped[f"operator {name} failed to describe itself: {type(e).__name__}"] += 1
            done = False
        if not done:
            del scene.leaves[kept[0] :], scene.arguments[kept[1] :]
            scene.live = kept[2]
    program = Program(seed, tuple(scene.leaves), tuple(scene.arguments), tuple(scene.statements), results(scene, ended),
                      r.choices(("random", "ones", "loss"), (6, 2, 2))[0])  # fmt: skip
    if not ended and r.random() < CONSUMED:
        program = consumed(program, scene)
    return program.without_unused(), scene.dropped


def consumed(program: Program, scene: Scene) -> Program:
    """The program with one to three exact consumers of values anywhere in it; the values are returned, too.

    The consumers are the last statements: a later write to the value would make its result another than what they read.
    """
    r = scene.rng
    found = [n for n, t in scene.live.items() if n[0] == "t" and t.is_floating_point() and t.dim() and t.numel()]
    exact, statements, returned = [], list(program.statements), list(program.results)
    for operand in r.sample(found, min(len(found), r.randint(1, 3))):
        name = scene.name()
        statements.append(f"{name} = {r.choice(CONSUMERS).format(t=operand)}")
        returned += [name] if operand in returned else [operand, name]
        exact.append(name)
    return replace(program, statements=tuple(statements), results=tuple(returned), exact=tuple(exact))


def results(scene: Scene, ended: bool) -> tuple[str, ...]:
    """The results of the program: unused values, some used ones, at times an argument, or the same value twice."""
    r = scene.rng
    made = [n for n in scene.live if n[0] == "t"]
    found = [n for n in made if not scene.used[n] and r.random() < 0.75]
    found += [n for n in made if scene.used[n] and r.random() < 0.12]
    if made and not found:
        found = made[-1:]
    if r.random() < 0.06 and scene.arguments:
        found.append(defined(r.choice(scene.arguments)))
    if found and r.random() < 0.03:
        found.append(r.choice(found))
    r.shuffle(found)
    return tuple(found[:6])
