"""torch's `while_loop` in one graph, with a tensor or a number as condition: eager's results on every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop

import pycompiler
from tests.harness.compare import assert_same

BACKENDS = ("eager", "aot_eager", "native")
W = torch.nn.Parameter(torch.full((4,), 1.5))


def written_out(test: Any, body: Any, carried: Any) -> Any:
    """The result of torch's `while_loop`, which eager compiles."""
    result = tuple(carried)
    while test(*result):
        result = body(*result)
    return result


PROGRAMS: dict[str, tuple[Callable[..., Any], bool]] = {}
"""Programs over a loop, a counter and a tensor, and whether the loop is a call in the graph."""


def program(*, call: bool = True) -> Callable[[Callable[..., Any]], None]:
    return lambda fn: PROGRAMS.update({fn.__name__: (fn, call)})


@program()
def counted(loop: Any, i: Any, x: Any) -> Any:
    return loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (i, x))


@program()
def until_it_is_large(loop: Any, i: Any, x: Any) -> Any:
    bias = x.cos()
    return loop(lambda i, y: y.sum() < 100, lambda i, y: (i + 1, y * 2 + bias), (i, x + 1))[1].relu() + 1


@program()
def never(loop: Any, i: Any, x: Any) -> Any:
    return loop(lambda i, y: i < 0, lambda i, y: (i + 1, y * 2), [i, x])


@program()
def nested_containers(loop: Any, i: Any, x: Any) -> Any:
    found = loop(
        lambda i, d: i < d["n"], lambda i, d: (i + 1, {"k": d["k"] * 2, "n": d["n"] + 0}), (i, {"k": x, "n": i + 2})
    )
    return found[1]["k"], found[0]


@program()
def a_loop_in_a_loop(loop: Any, i: Any, x: Any) -> Any:
    def inner(y: Any) -> Any:
        return loop(lambda j, z: j < 2, lambda j, z: (j + 1, z + y.mean() + x), (torch.zeros_like(i), y.clone()))[1]

    return loop(lambda i, y: i < 3, lambda i, y: (i + 1, inner(y)), (i, x))


@program()
def a_branch_in_a_loop(loop: Any, i: Any, x: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        return i + 1, torch.cond(i > 1, lambda y: y * 2, lambda y: y + 1, (y,))

    return loop(lambda i, y: i < 3, body, (i, x))


@program()
def kernels_and_operators(loop: Any, i: Any, x: Any) -> Any:
    return loop(lambda i, y: i < 4, lambda i, y: (i + 1, (y.outer(y) @ x).softmax(0).sin()), (i, x))


@program()
def a_parameter_without_gradients(loop: Any, i: Any, x: Any) -> Any:
    with torch.no_grad():
        return loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * W), (i, x))


@program(call=False)
def a_number(loop: Any, i: Any, x: Any) -> Any:
    return loop(lambda k, y: k < 3, lambda k, y: (k + 1, y + k * 1.5), (0, x))


@program(call=False)
def no_pass(loop: Any, i: Any, x: Any) -> Any:
    return loop(lambda k, y: k < 0, lambda k, y: (k + 1, y + k), (0, x))


@program(call=False)
def as_often_as_a_size_says(loop: Any, i: Any, x: Any) -> Any:
    return loop(lambda k, y: 2 * k < y.shape[0], lambda k, y: (k + 1, y + k), (0, x))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loop_is_one_graph(name: str, backend: str) -> None:
    fn, call = PROGRAMS[name]
    compiled = pycompiler.compile(lambda i, x: fn(while_loop, i, x), backend=backend, fullgraph=True)
    for start, scale in ((0, 1.0), (1, 3.0), (7, -2.0), (0, 40.0)):
        i, x = torch.tensor(start), torch.arange(4.0) * scale
        before = x.clone()
        got, want = compiled(i, x), fn(written_out, i, x)
        assert_same(got, want)
        assert torch.equal(x, before)
        results = [t for t in got if isinstance(t, torch.Tensor)] if isinstance(got, tuple) else [got]
        assert all(t.data_ptr() not in (x.data_ptr(), i.data_ptr()) for t in results)
    assert compiled.counters()["compiles"] == 1
    report = pycompiler.explain(lambda i, x: fn(while_loop, i, x))(torch.tensor(0), torch.arange(4.0))
    targets = {n.target.__name__ for g in report.graphs for n in g.graph.nodes if n.op == "call_function"}
    assert ("while_loop" in targets) is call


def test_it_is_torchs() -> None:
    i, x = torch.tensor(0), torch.arange(4.0)
    for name in ("counted", "nested_containers", "a_number", "no_pass"):
        fn = PROGRAMS[name][0]
        assert_same(fn(written_out, i, x), fn(while_loop, i, x))


def test_random_numbers_of_each_pass_are_left_to_eager() -> None:
    def program(loop: Any, i: Any, x: Any) -> Any:
        return loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + torch.rand(4)), (i, x))

    compiled = pycompiler.compile(lambda i, x: program(while_loop, i, x))
    found = []
    for run in (compiled, lambda i, x: program(written_out, i, x)):
        torch.manual_seed(0)
        found.append(run(torch.tensor(0), torch.zeros(4)))
    assert_same(found[0], found[1])


SEEN: list[int] = []


def _tells(i: Any, y: Any) -> Any:
    SEEN.append(1)
    return i + 1, y * 2


REFUSED: dict[str, Callable[..., Any]] = {
    "a body that gives back what it takes": lambda i, x: while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, y), (i, x)
    ),
    "a body with an effect": lambda i, x: while_loop(lambda i, y: i < 3, _tells, (i, x)),
    "passes with an effect": lambda i, x: while_loop(lambda i, y: i < 3, _tells, (0, x)),
    "a body that writes": lambda i, x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y.add_(1) * 2), (i, x)),
    "passes that write": lambda i, x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y.add_(1) * 2), (0, x)),
    "another dtype": lambda i, x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y.double()), (i, x)),
    "a test with a dimension": lambda i, x: while_loop(lambda i, y: i.view(1) < 3, lambda i, y: (i + 1, y * 2), (i, x)),
    "a number beside a tensor's test": lambda i, x: while_loop(
        lambda k, y: y.sum() < 9, lambda k, y: (k + 1, y + k), (0, x)
    ),
    "gradients of what has none": lambda i, x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * W), (i, x)),
    "gradients of complex numbers": lambda i, x: while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, y * W), (i, x.to(torch.complex64))
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_to_eager(name: str) -> None:
    """Errors come from eager too: no side effect has happened before eager runs."""
    x = torch.ones(4)
    with pytest.raises(
        pycompiler.exc.Unsupported, match=r"inner-graph(.|\n)*while_loop|changes an object|writes a tensor"
    ):
        pycompiler.compile(REFUSED[name], fullgraph=True)(torch.tensor(0), x)
    assert not SEEN and torch.equal(x, torch.ones(4))


@pytest.mark.captures_nothing("a loop in inference mode runs as written")
def test_in_inference_mode_it_is_eagers(caplog: pytest.LogCaptureFixture) -> None:
    def program(x: torch.Tensor) -> Any:
        return while_loop(lambda y: y.sum() < 50, lambda y: (y + 1,), (x,))

    with torch.inference_mode():
        got, want = pycompiler.compile(program)(torch.arange(3.0)), program(torch.arange(3.0))
    torch.testing.assert_close(got, want)
    assert got[0].is_inference() == want[0].is_inference()
    assert "a bug of pycompiler" not in caplog.text
