"""Graph breaks and the code after them: loops, with, try, nested calls, cells, side effects, exceptions."""

from __future__ import annotations

import copy
import math
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same_calls

log: list[Any] = []


def note(value: Any) -> Any:
    """An opaque call: it breaks the graph at any place."""
    log.append(value)
    return value


note = pycompiler.disable(note)


def in_loop(x: torch.Tensor) -> torch.Tensor:
    for i in range(4):
        x = x + i
        note(i)
        x = x * 2
    return x


def in_while(x: torch.Tensor) -> torch.Tensor:
    n = 0
    while n < 5:
        n += note(1)
        x = x + n
        if n == 2:
            continue
        if n == 4:
            break
    else:
        x = x * 100
    return x, n


def in_nested_loops(x: torch.Tensor) -> torch.Tensor:
    for i in range(3):
        for j in [10, 20]:
            x = x + i * j
            note((i, j))
    return x


def in_with(x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = x * 2
        note(torch.is_grad_enabled())
        z = y + 1
    return z, torch.is_grad_enabled()


class Manager:
    def __init__(self) -> None:
        self.events: list[str] = []

    def __enter__(self) -> Manager:
        self.events.append("enter")
        return self

    def __exit__(self, kind: Any, value: Any, tb: Any) -> bool:
        self.events.append("exit" if kind is None else kind.__name__)
        return kind is ValueError


def in_user_with(x: torch.Tensor, m: Manager) -> Any:
    with m as got:
        x = x + 1
        note(got is m)
        x = x * 3
    return x, list(m.events)


def with_suppressed(x: torch.Tensor, m: Manager) -> Any:
    with m:
        x = x + 1
        note(1)
        raise ValueError("inside")
    return x * 2, list(m.events)


def in_try(x: torch.Tensor) -> torch.Tensor:
    try:
        x = x + 1
        note("try")
        x = x * 2
    finally:
        note("finally")
        x = x - 3
    return x


def in_except(x: torch.Tensor) -> Any:
    try:
        x = x + 1
        raise KeyError("k")
    except KeyError as e:
        note(str(e))
        x = x * 2
        return x, e.args
    finally:
        note("done")


def native_exception_caught(x: torch.Tensor) -> torch.Tensor:
    try:
        x = x + 1
        x = x + int(note("12"))
        x = x + int(note("no number"))
    except ValueError:
        x = x * 5
    return x + 1


def in_callee(x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor, k: int = 3) -> torch.Tensor:
        y = y * k
        note("inner")
        return y + 1

    x = x + 1
    x = inner(x) + inner(x, k=4)
    return x.relu()


def deep_callee(x: torch.Tensor) -> torch.Tensor:
    def c(y: torch.Tensor) -> torch.Tensor:
        y = y + 1
        note("c")
        return y * 2

    def b(y: torch.Tensor) -> tuple[torch.Tensor, int]:
        z = c(y - 1)
        return z + y, 7

    a, n = b(x * 3)
    return a + n


def cells(x: torch.Tensor) -> Any:
    total = 0

    def add(k: int) -> None:
        nonlocal total
        total += k

    add(1)
    x = x + total
    note("cells")
    add(2)
    x = x * total
    return x, total, add.__closure__[0].cell_contents


def side_effects(x: torch.Tensor, items: list[Any], table: dict[str, Any]) -> Any:
    items.append(x + 1)
    table["first"] = len(items)
    note(len(items))
    items.append(table.pop("first"))
    table["x"] = x * 2
    return x


def data_dependent(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        y = x + 1
    else:
        y = x - 1
    while y.sum() < 40:
        y = y * 2 + 1
    return y if y.max() > 3 else -y


def scalar_value(x: torch.Tensor) -> Any:
    n = x.sum().item()
    return x * n, math.floor(n)


def stack_values(x: torch.Tensor) -> Any:
    return [x + 1, note(5), x * 2, {"k": note(6), "t": (x, note(7))}]


def call_arguments(x: torch.Tensor) -> torch.Tensor:
    return torch.add(x + 1, torch.mul(x, note(3)), alpha=note(2))


def comprehension(x: torch.Tensor) -> Any:
    return [x + note(i) for i in range(3)], {k: note(k) for k in ("a", "b")}


def unpacking(x: torch.Tensor) -> Any:
    a, *b = note((x + 1, x + 2, x + 3))
    return a, b


def deleted(x: torch.Tensor) -> Any:
    y = x + 1
    z = y * 2
    del y
    note("gone")
    try:
        return y  # noqa: F821
    except UnboundLocalError:
        return z


def generator_argument(x: torch.Tensor) -> Any:
    return sum(note(i) * x for i in range(3))


ARGS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "in_user_with": lambda: (torch.arange(4.0), Manager()),
    "with_suppressed": lambda: (torch.arange(4.0), Manager()),
    "side_effects": lambda: (torch.arange(4.0), [1], {"a": 2}),
}
CASES = [
    in_loop, in_while, in_nested_loops, in_with, in_user_with, with_suppressed, in_try, in_except,
    native_exception_caught, in_callee, deep_callee, cells, side_effects, data_dependent, scalar_value, stack_values,
    call_arguments, comprehension, unpacking, deleted, generator_argument,
]  # fmt: skip


def noted(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that also returns the log of the call."""

    def run(*args: Any) -> Any:
        log.clear()
        return fn(*args), list(log)

    return run


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", CASES, ids=lambda f: f.__name__)
def test_like_eager(fn: Callable[..., Any], backend: str) -> None:
    make = ARGS.get(fn.__name__, lambda: (torch.arange(4.0),))
    compiled = pycompiler.compile(fn, backend=backend)
    assert_same_calls(noted(compiled), noted(fn), make, calls=3, exact=True)


def test_breaks_and_graphs_are_counted() -> None:
    e = pycompiler.explain(in_callee)(torch.arange(4.0))
    assert e.graph_break_count >= 2
    assert e.graph_count == 4  # one before the break, one between the two, one after each
    assert "inner" in str(e.break_reasons[0].stack[-1].function)


def test_long_loop_does_not_recurse() -> None:
    def count(x: torch.Tensor, n: int) -> torch.Tensor:
        for i in range(n):
            x = x + 1
            note(i)
        return x

    compiled = pycompiler.compile(count, backend="eager")
    assert torch.equal(compiled(torch.zeros(2), 3000), torch.full((2,), 3000.0))


def fails(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    note("before")
    z = y * 2
    raise RuntimeError(f"shape {tuple(z.shape)}")


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_exception_has_the_users_traceback(backend: str) -> None:
    compiled = pycompiler.compile(fails, backend=backend)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"shape \(4,\)") as info:
            compiled(torch.arange(4.0))
        last = traceback.extract_tb(info.value.__traceback__)[-1]
        assert last.filename == __file__
        assert last.line == 'raise RuntimeError(f"shape {tuple(z.shape)}")'


def test_fullgraph_raises_with_reason_stack_and_hint() -> None:
    compiled = pycompiler.compile(in_callee, fullgraph=True)
    with pytest.raises(pycompiler.errors.Unsupported) as info:
        compiled(torch.arange(4.0))
    text = str(info.value)
    assert "disabled-call" in text and "what to do" in text and __file__ in text
    assert info.value.user[-1].function == "inner"


def test_a_traceback_names_each_frame_once() -> None:
    """The rule includes a frame that the frame hook answered."""

    def callee(x: torch.Tensor) -> None:
        pycompiler.graph_break()
        raise ValueError(x)

    def fn(x: torch.Tensor) -> tuple[int, torch.Tensor]:
        try:
            callee(x)
        except ValueError as e:
            return len(traceback.extract_tb(e.__traceback__)), x + 1
        return 0, x

    x, compiled = torch.ones(2), pycompiler.compile(fn, backend="eager")
    assert [compiled(x)[0] for _ in range(2)] == [fn(x)[0]] * 2


def test_toy_example_of_the_documents(capsys: pytest.CaptureFixture[str]) -> None:
    def toy_example(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = a / (torch.abs(a) + 1)
        print("woo")
        if b.sum() < 0:
            b = b * -1
        return x * b

    explanation = pycompiler.explain(toy_example)(torch.randn(10), torch.ones(10))
    assert capsys.readouterr().out == "woo\n"
    assert (explanation.graph_count, explanation.graph_break_count) == (3, 2)
    assert explanation.op_count == 5
    text = str(explanation)
    assert "Graph Count: 3" in text and "Graph Break Count: 2" in text and "Op Count: 5" in text
    first = toy_example.__code__.co_firstlineno
    lines = [r.stack[-1].lineno for r in explanation.break_reasons]
    assert lines == [first + 2, first + 3]
    assert all(r.stack[-1].filename == __file__ for r in explanation.break_reasons)
    negative = pycompiler.explain(toy_example)(torch.randn(10), -torch.ones(10))
    assert negative.op_count == 6


def test_arguments_are_not_shared_between_calls() -> None:
    compiled = pycompiler.compile(side_effects, backend="eager")
    a, b = [1], [1]
    compiled(torch.arange(4.0), a, {})
    compiled(torch.arange(4.0), b, {})
    assert len(a) == len(b) == 3 and copy.copy(a)[2] == 2


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x).relu()
        note("block")
        return y * 2


class Guarded(torch.nn.Module):
    """A module that calls its blocks inside a try block, where a break in a callee cannot be resumed from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        try:
            for block in self.blocks:
                x = block(x)
        finally:
            x = x - 1
        return x


def test_frames_that_cannot_be_inlined_are_reached_by_the_hook() -> None:
    torch.manual_seed(0)
    model, x = Guarded(), torch.randn(2, 4)
    graphs: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    compiled = pycompiler.compile(model, backend=backend)
    expected = model(x)
    assert torch.equal(compiled(x), expected)
    targets = [n.target for gm in graphs for n in gm.graph.nodes if n.op == "call_function"]
    assert torch._C._nn.linear in targets  # the frames of the blocks were captured
    count = len(graphs)
    assert torch.equal(compiled(x), expected)
    assert len(graphs) == count


def test_disabled_functions_and_their_callees_stay_eager() -> None:
    seen: list[str] = []

    def backend(gm: Any, inputs: Any) -> Any:
        seen.extend(str(n.target) for n in gm.graph.nodes if n.op in ("call_function", "call_method"))
        return gm.forward

    def helper(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    @pycompiler.disable
    def eager(x: torch.Tensor) -> torch.Tensor:
        return helper(x.sin())

    @pycompiler.disable(recursive=False)
    def shallow(x: torch.Tensor) -> torch.Tensor:
        return helper(x.tan())

    def program(x: torch.Tensor) -> torch.Tensor:
        return eager(x + 1) + shallow(x * 2)

    x = torch.arange(4.0)
    compiled = pycompiler.compile(program, backend=backend)
    assert torch.equal(compiled(x), program(x))
    assert "sin" not in seen and "tan" not in seen
    assert seen.count("cos") == 1  # through `shallow` only
