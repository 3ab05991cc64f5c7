"""Regressions found by whole programs of users: schedules, replay buffers, mixed precision. Values equal eager's, and
state that changes from call to call does not compile each time."""

from __future__ import annotations

import logging
import math
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import config
from pycompiler.wrapping import compiled_of
from tests.harness.compare import assert_same, observe


@pytest.fixture(autouse=True)
def raise_internal_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "raise_internal_errors", True)


def compiles(fn: Callable[..., Any], calls: list[tuple[Any, ...]], backend: str = "native") -> int:
    """The number of compiles; each call must give eager's result, and none runs eagerly."""
    compiled = pycompiler.compile(fn, backend=backend)
    for call in calls:
        wanted, got = observe(fn, call), observe(compiled, call)
        assert_same(got, wanted)
    counts = pycompiler.counters(compiled)
    assert not counts["limit_hits"]
    return counts["compiles"]


def parts(compiled: Any) -> list[Any]:
    """All compiled functions of it: itself, its resume functions, and frames reached after a graph break."""
    return list(compiled_of(compiled)._pycompiler_family.members)  # type: ignore[union-attr]


SCHEDULES: list[Callable[[Any], float]] = [
    lambda n: 0.05 + 0.85 * math.exp(-1.0 * n / 200), lambda n: math.log(n) / math.log(2), lambda n: math.log10(n + 1),
    lambda n: math.log1p(n / 10), lambda n: math.tanh(n / 10), lambda n: math.erf(n / 30), lambda n: math.expm1(-n / 9),
    lambda n: math.pow(n, 0.5), lambda n: math.radians(n) + math.degrees(n), lambda n: math.erfc(n / 7) + math.asinh(n),
    lambda n: math.acos(1 / (n + 1)), lambda n: 1 - math.exp(-n / 2000.0),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(SCHEDULES)))
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_schedules_by_functions_of_math(number: int, backend: str) -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        rate = SCHEDULES[number](n)
        return x * rate, rate

    x = torch.ones(2, dtype=torch.float64)
    assert compiles(program, [(x, n) for n in (5, 6, 7, 50, 300)], backend) == 2
    floats = [(x, f) for f in (2.5, 3.25, 4.5, 0.75, 9.0)]
    assert compiles(program, floats, backend) <= 3


def test_functions_of_math_beyond_what_they_are_defined_for() -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        return x + math.log(n), math.exp(n), math.acos(n / 100)

    numbers: list[Any] = [3, 4, 5, 0, -1, 99, 101, 800, 7, 10**400]
    floats = [0.5, 0.75, math.inf, math.nan, -0.5, 0.0, 800.0, 0.25, -math.inf]
    for given in (numbers, floats):
        compiled = pycompiler.compile(program, recompile_limit=32)
        for n in given:
            assert_same(*(observe(f, (torch.ones(1), n)) for f in (compiled, program)))


def test_sine_of_a_float_that_is_not_finite() -> None:
    assert (
        compiles(lambda x, f: x * math.sin(f), [(torch.ones(1), f) for f in (0.5, 0.75, math.inf, 0.25, math.nan)]) <= 5
    )


def test_an_average_whose_decay_grows() -> None:
    class Average:
        def __init__(self) -> None:
            self.n = 0
            self.shadow = torch.zeros(3)

        def update(self, value: torch.Tensor) -> None:
            self.n += 1
            decay = min(0.9, (1 + self.n) / (10 + self.n))
            self.shadow.mul_(decay).add_(value, alpha=1 - decay)
            self.shadow.lerp_(value, 0.95**self.n)
            self.shadow.add_(value, alpha=math.log(self.n + 1) + math.sqrt(self.n))

    eager, ours = Average(), Average()
    update = pycompiler.compile(Average.update)
    for i in range(8):
        eager.update(torch.arange(3.0) + i)
        update(ours, torch.arange(3.0) + i)
        torch.testing.assert_close(eager.shadow, ours.shadow)
    assert pycompiler.counters(update)["compiles"] <= 3


class Memory:
    def __init__(self) -> None:
        self.held: deque[int] = deque(maxlen=50)

    def __len__(self) -> int:
        return len(self.held)


class Rows(list):  # type: ignore[type-arg]
    pass


class Said(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return super().__len__()


class Steps:
    def __init__(self) -> None:
        self.n: Any = 0

    def __len__(self) -> int:
        return self.n  # type: ignore[no-any-return]

    def append(self, _: int) -> None:
        self.n += 1


class Ready(Steps):
    def __bool__(self) -> bool:
        return self.n > 6  # type: ignore[no-any-return]


QUESTIONS: list[Callable[[Any, torch.Tensor], Any]] = [
    lambda held, x: x + 1 if len(held) < 10 else x - 1, lambda held, x: x + len(held), lambda held, x: x - 1 if held else x + 1,
    lambda held, x: (x * 2, f"{len(held)} rows"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
@pytest.mark.parametrize("kind", [Memory, Rows, Said, Steps, Ready])
def test_lengths_of_objects_that_grow(kind: type, number: int) -> None:
    question, held = QUESTIONS[number], kind()
    compiled = pycompiler.compile(question)
    for i in range(14):
        (held.held if kind is Memory else held).append(i)
        assert str(question(held, torch.ones(2))) == str(compiled(held, torch.ones(2)))
    counts = pycompiler.counters(compiled)
    assert counts["compiles"] <= 3 and not counts["eager_calls"]


@pytest.mark.parametrize("wrong", [-1, 2**63, "a", 2.5])
def test_lengths_that_are_none(wrong: Any) -> None:
    steps = Steps()
    compiled = pycompiler.compile(QUESTIONS[1])
    for n in (3, 4, 5, wrong):
        steps.n = n
        assert_same(*(observe(f, (steps, torch.ones(2))) for f in (compiled, QUESTIONS[1])))


def test_ids_that_leave_the_graph() -> None:
    class Held:
        pass

    def given(o: Any, x: torch.Tensor) -> Any:
        return x + 1, id(o)

    def around(o: Any, x: torch.Tensor) -> Any:
        states: dict[int, Any] = defaultdict(dict)
        states[id(o)]["x"] = x * 2
        pycompiler.graph_break()
        return states[id(o)]["x"] + 1, list(states)

    def made(o: Any, x: torch.Tensor) -> Any:
        new = [o]
        return x, id(new) == id(new), {id(new): new}

    held = Held()
    for fn, count in ((given, 1), (around, 2)):
        compiled = pycompiler.compile(fn)
        for _ in range(3):
            assert str(fn(held, torch.ones(2))) == str(compiled(held, torch.ones(2)))
        assert pycompiler.counters(compiled)["compiles"] == count and not pycompiler.counters(compiled)["eager_calls"]
    compiled = pycompiler.compile(made)
    _, same, ids = compiled(held, torch.ones(2))
    assert same and [id(v) for v in ids.values()] == list(ids) and not pycompiler.counters(compiled)["eager_calls"]

    def of_a_number(o: Any, x: torch.Tensor) -> Any:
        return x + 1, id(o.number)

    held.number = 1234.5  # type: ignore[attr-defined]
    assert pycompiler.compile(of_a_number)(held, torch.ones(2))[1] == id(held.number)  # type: ignore[attr-defined]


def test_a_step_in_mixed_precision_is_compiled() -> None:
    """`GradScaler` stores the state of an optimizer under its id."""

    def prepare() -> tuple[Any, ...]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 3)
        opt = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
        return layer, opt, torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

    def step(layer: Any, opt: Any, scaler: Any, x: torch.Tensor) -> Any:
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = layer(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        norm = torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return loss.detach(), norm

    compiled = pycompiler.compile(step)
    eager, ours = prepare(), prepare()
    for i in range(6):
        x = torch.full((2, 3), float("inf") if i == 3 else 1.0 + i)
        torch.testing.assert_close(step(*eager, x), compiled(*ours, x), equal_nan=True)
        torch.testing.assert_close(list(eager[0].parameters()), list(ours[0].parameters()))
        assert eager[2].state_dict() == ours[2].state_dict()
    counts = pycompiler.counters(compiled)
    assert not counts["eager_calls"] and counts["compiles"] <= 8, counts


FLOORED: list[Callable[[Any, Any], float]] = [
    lambda t, c: math.exp(-(c - 1.5) / max(t, 1e-9)), lambda t, c: 1 / max(t, 1e-3) + 1 / max(c, 1e-9),
    lambda t, c: math.sqrt(max(t - 1, 0.0)), lambda t, c: math.log(min(max(t, 0.1), 0.9)), lambda t, c: t / min(c, -c),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(FLOORED)))
def test_functions_of_the_lesser_and_the_greater(number: int) -> None:
    def program(x: torch.Tensor, t: Any, c: Any) -> Any:
        return x * FLOORED[number](t, c)

    x = torch.ones(2, dtype=torch.float64)
    numbers = [
        (1.0, 2.0),
        (0.9, 3.0),
        (0.81, 2.5),
        (0.7, 0.25),
        (0.6, 1e-12),
        (0.5, 4.0),
        (0.05, 2.0),
        (0.04, 0.5),
        (0.5, 0.0),
    ]
    assert compiles(program, [(x, t, c) for t, c in numbers]) <= 5
    nan = math.nan
    assert compiles(program, [(x, 0.5, 1.0), (x, 0.6, 1.5), (x, nan, 1.0), (x, 0.6, nan), (x, 0.5, -1.0)]) <= 5


def test_what_goes_through_a_modules_tables_is_not_compiled_for_each_module() -> None:
    """`named_parameters` calls a function of its own for each class of module."""
    layers = torch.nn.ModuleList(
        [torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.LayerNorm(2), torch.nn.Sequential(torch.nn.ReLU())]
    )

    def program(x: torch.Tensor) -> Any:
        y = x * 2
        pycompiler.graph_break()
        return y + 1

    def names(x: torch.Tensor) -> Any:
        found = []
        for name, p in layers.named_parameters():
            pycompiler.graph_break()
            found.append((name, p.shape, x + 1))
        return found

    assert compiles(program, [(torch.ones(2),)] * 2) == 2
    compiled = pycompiler.compile(names)
    for _ in range(3):
        assert str(names(torch.ones(2))) == str(compiled(torch.ones(2)))
    assert not [m.fn.__qualname__ for m in parts(compiled) if "named_parameters" in m.fn.__qualname__]


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_sequences_packed_by_lengths_in_a_tensor(cell: str) -> None:
    """Lengths in a tensor of the caller break the graph: packing, layer and padding each run as one call."""

    class Tagger(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = getattr(torch.nn, cell)(3, 4, batch_first=True, bidirectional=True)
            self.out = torch.nn.Linear(8, 2)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = torch.nn.utils.rnn.pack_padded_sequence(x * 2, lengths, batch_first=True, enforce_sorted=False)
            rows, _ = torch.nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
            return self.out(rows).relu()

    torch.manual_seed(0)
    model = Tagger()
    compiled = pycompiler.compile(model)
    for lengths in ([4, 2, 3], [5, 1, 5], [2, 3, 1], [4, 4, 4]):
        x = torch.randn(3, max(lengths), 3)
        given = torch.tensor(lengths)
        expected = model(x, given)
        grads = torch.autograd.grad(expected.sum(), list(model.parameters()))
        found = compiled(x, given)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), list(model.parameters())), grads)
    code = [m.fn.__code__.co_filename + m.fn.__qualname__ for m in parts(compiled)]
    assert not [f for f in code if "rnn.py" in f]
    assert pycompiler.counters(compiled)["compiles"] <= 16


class Counted:
    """A callback as trainers have them."""

    def __init__(self) -> None:
        self.bad = 0
        self.lines: list[str] = []

    def on_step(self, step: int) -> None:
        self.bad += 1


class Told(Counted):
    def on_step(self, step: int) -> None:
        if step % 2 == 0:
            pycompiler.graph_break()
            self.lines.append(f"step {step}")


class Trainer:
    def __init__(self) -> None:
        self.callbacks = [Told(), Counted()]
        self.step = 0

    def train(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        for callback in self.callbacks:
            callback.on_step(self.step)
        self.step += 1
        return y + 1


def test_what_entries_see_of_objects_breaks_no_loop_over_them() -> None:
    """An entry refers to its objects weakly; the program's loop over them must not break because of the entry."""
    eager, ours = Trainer(), Trainer()
    compiled = pycompiler.compile(Trainer.train)
    records: list[Any] = []
    compiled_of(compiled)._pycompiler_family.listener = records.append  # type: ignore[union-attr]
    for _ in range(7):
        assert torch.equal(eager.train(torch.ones(2)), compiled(ours, torch.ones(2)))
        assert [(c.bad, c.lines) for c in eager.callbacks] == [(c.bad, c.lines) for c in ours.callbacks]
    kinds = {r.broke.kind for r in records if r.broke is not None}
    assert kinds == {"explicit-break", "running-iterator"}


ENDED: list[bool] = []


@pytest.mark.parametrize("how", ["plain", "callback"])
def test_objects_that_the_program_refers_to_end_in_time(how: str) -> None:
    class Part:
        def __init__(self, number: float) -> None:
            self.number = number

        def go(self, x: torch.Tensor) -> torch.Tensor:
            pycompiler.graph_break()
            return x + self.number

    def program(parts: list[Any], last: Any, x: torch.Tensor) -> Any:
        gone = []
        while parts:
            part = parts.pop()
            x = part.go(x)
            part = None
            gone.append(last() is None)
        return x * 2, gone

    def run(fn: Callable[..., Any]) -> Any:
        found = []
        for watched in (False, True, False, True, True):
            ENDED.clear()
            made = [Part(1.0), Part(2.0)]
            callback = (lambda _: ENDED.append(True)) if how == "callback" else None
            last = weakref.ref(made[1], callback) if watched else (lambda: 0)
            found.append((str(fn(made, last, torch.ones(2))), list(ENDED)))
        return found

    assert run(program) == run(pycompiler.compile(program))


@pytest.fixture
def said() -> Any:
    """The warnings of the compiler of gradients: a graph that runs eagerly."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("pycompiler.autograd")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


WRITES: list[Callable[[Any, torch.Tensor, torch.Tensor], Any]] = [
    lambda out, y, t: out.index_add_(0, t, y[t]), lambda out, y, t: out.add_(y), lambda out, y, t: out.copy_(y),
    lambda out, y, t: out.mul_(y.sum()).add_(y), lambda out, y, t: out[1:].add_(y[1:]), lambda out, y, t: out.scatter_add_(0, t[:, None].expand(-1, 4), y[t]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRITES)))
def test_sums_that_begin_without_gradients(number: int, said: list[str]) -> None:
    """An argument without gradients is no leaf after the function writes a tensor that requires gradients into it."""
    layer = torch.nn.Linear(4, 4)
    place = torch.tensor([0, 2])

    def program(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        WRITES[number](out, layer(x), place)
        return x + 1

    compiled = pycompiler.compile(program)
    for n in (5, 6, 7):
        x, results = torch.randn(n, 4), []
        for fn in (program, compiled):
            out = torch.ones(n, 4)
            fn(out, x)
            assert out.requires_grad and not out.is_leaf
            results.append((out, torch.autograd.grad(out.square().sum(), list(layer.parameters()))))
        torch.testing.assert_close(*results)
    assert not said and not pycompiler.counters(compiled)["eager_calls"]


def test_experts_of_a_mixture_add_to_what_began_empty(said: list[str]) -> None:
    class Mixture(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = torch.nn.Linear(4, 3)
            self.experts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
            out = torch.zeros_like(x)
            for i, expert in enumerate(self.experts):
                rows, slots = (chosen == i).nonzero(as_tuple=True)
                if rows.numel():
                    out.index_add_(0, rows, expert(x[rows]) * weights[rows, slots, None])
            return out

    torch.manual_seed(0)
    model = Mixture()
    compiled = pycompiler.compile(model)
    for n in (5, 6, 9):
        x = torch.randn(n, 4)
        results = [
            (y := m(x), torch.autograd.grad(y.square().sum(), list(model.parameters()), allow_unused=True))
            for m in (model, compiled)
        ]
        torch.testing.assert_close(*results)
    assert not said
