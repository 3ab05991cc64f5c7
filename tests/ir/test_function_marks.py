"""Marks on functions of a program: allow_in_graph, disallow_in_graph, constants, substitutes, graph breaks as errors."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.errors import ArgumentError
from pycompiler.exc import Unsupported
from pycompiler.ir import function_marks

X = torch.arange(4.0)
SCALE = 3.0
WEIGHT = torch.nn.Parameter(torch.ones(4))
BACKENDS = ("eager", "aot_eager", "native")


def graphs_of(fn: Callable[..., Any], *args: Any) -> list[list[str]]:
    report = pycompiler.explain(fn)(*args)
    return [[str(n.target) for n in g.graph.nodes if n.op == "call_function"] for g in report.graphs]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mark", [pycompiler.allow_in_graph, pycompiler.nonstrict_trace, torch.compiler.allow_in_graph])
def test_a_function_that_is_one_node(mark: Any, backend: str) -> None:
    def inner(x: Any, scale: float = 2.0) -> Any:
        values = {k: x * scale for k in locals() if k == "x"}
        return [*values.values(), x.cos()]

    marked = mark(inner)

    def fn(x: Any) -> Any:
        a, b = marked(x + 1, scale=3.0)
        return a.sin() + b

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    grads = []
    for f in (compiled, fn):
        x = X.clone().requires_grad_()
        f(x).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(compiled(X), fn(X))
    torch.testing.assert_close(*grads)
    assert len(graphs_of(fn, X)[0]) < 8


class Sub(torch.Tensor):
    pass


class Doubles(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.cos else result


@pytest.mark.parametrize("mark", [pycompiler.allow_in_graph, pycompiler.nonstrict_trace])
def test_what_asks_torch_function_is_left_to_eager(mark: Any) -> None:
    marked = mark(lambda x: torch.cos(x["a"][0]))

    def under_a_mode(x: Any) -> Any:
        with Doubles():
            return marked({"a": [x]})

    compiled = pycompiler.compile(lambda x: marked({"a": [x]}), backend="eager")
    for x in (X, X.as_subclass(Sub), X):
        got = compiled(x)
        assert type(got) is type(x) and torch.equal(got, torch.cos(x))
        with Doubles():
            got = compiled(X)
        assert torch.equal(got, torch.cos(X) * 2)
        assert torch.equal(pycompiler.compile(under_a_mode, backend="eager")(X), torch.cos(X) * 2)
    with pytest.raises(Unsupported, match="__torch_function__"):
        pycompiler.compile(lambda x: marked({"a": [x]}), fullgraph=True)(X.as_subclass(Sub))


def test_the_documents_functional_call() -> None:
    layer = torch.nn.Linear(4, 4)

    @pycompiler.allow_in_graph
    def call(parameters: Any, x: Any) -> Any:
        return torch.func.functional_call(layer, parameters, (x,))

    def fn(x: Any) -> Any:
        return call({k: v * 2 for k, v in layer.named_parameters()}, x)

    torch.testing.assert_close(pycompiler.compile(fn, backend="eager", fullgraph=True)(X), fn(X))


def test_a_parameter_of_its_own_is_left_to_eager() -> None:
    inner = pycompiler.allow_in_graph(lambda x: x * WEIGHT)
    compiled = pycompiler.compile(lambda x: inner(x) * 2)
    WEIGHT.grad = None
    compiled(X).sum().backward()
    torch.testing.assert_close(WEIGHT.grad, X * 2)
    with pytest.raises(Unsupported, match="requires grad and is not an argument"):
        pycompiler.compile(lambda x: inner(x) * 2, fullgraph=True)(X)


def test_disallowed_functions_break_until_they_are_allowed() -> None:
    def fn(x: Any) -> Any:
        return torch.sub(torch.add(x, 1), 1) + 1

    pycompiler.disallow_in_graph([torch.sub])
    try:
        assert len(graphs_of(fn, X)) == 2
        torch.testing.assert_close(pycompiler.compile(fn, backend="eager")(X), fn(X))
    finally:
        pycompiler.allow_in_graph(torch.sub)
        function_marks._marks.pop(id(torch.sub))
    assert len(graphs_of(fn, X)) == 1


@pytest.mark.parametrize("mark", [pycompiler.assume_constant_result, torch.compiler.assume_constant_result])
def test_results_that_are_constants(mark: Any) -> None:
    calls: list[Any] = []

    class Model:
        size = 3

        @mark
        def depth(self, n: int) -> int:
            calls.append(n)
            return eval("self.size + n")  # capture refuses eval

    model = Model()
    compiled = pycompiler.compile(lambda x: x + model.depth(2), backend="eager", fullgraph=True)
    assert [float((compiled(X) - X)[0]) for _ in range(2)] == [5.0, 5.0] and calls == [2]
    table = mark(lambda: torch.tensor([1.0, 2.0, 3.0, 4.0]))
    torch.testing.assert_close(pycompiler.compile(lambda x: x * table(), fullgraph=True)(X), X * table())


def test_results_that_are_constants_are_those_of_what_was_called() -> None:
    class Holder:
        def __init__(self, k: float) -> None:
            self.k = k

        @pycompiler.assume_constant_result
        def get(self) -> float:
            return self.k

    def maker(k: float) -> Any:
        return pycompiler.assume_constant_result(lambda: k)

    of_method = pycompiler.compile(lambda x, h: x + h.get(), backend="eager", fullgraph=True)
    of_closure = pycompiler.compile(lambda x, f: x + f(), backend="eager", fullgraph=True)
    for compiled, given in ((of_method, [Holder(1.0), Holder(2.0)]), (of_closure, [maker(1.0), maker(2.0)])):
        assert [float((compiled(X, g) - X)[0]) for g in (*given, *given)] == [1.0, 2.0, 1.0, 2.0]
        assert len(compiled.entries) == 2


def test_substitutes_are_inlined() -> None:
    def fn(x: Any, items: Any) -> Any:
        return x + operator.indexOf(items, 3)

    with pytest.raises(ArgumentError, match="signature"):
        pycompiler.substitute_in_graph(operator.indexOf)(lambda a: a)
    seen = []
    try:

        @pycompiler.substitute_in_graph(operator.indexOf)
        def index_of(a: Any, b: Any, /) -> Any:
            seen.append(b)
            for i, item in enumerate(a):
                if item is b or item == b:
                    return i
            raise ValueError("sequence.index(x): x not in sequence")

        compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(X, [1, 2, 3]), X + 2)
        assert seen == [3]
        with pytest.raises(ArgumentError, match="already"):
            pycompiler.substitute_in_graph(operator.indexOf)(index_of)
    finally:
        function_marks._substitutes.pop(id(operator.indexOf), None)


def test_breaks_that_are_errors() -> None:
    def within(x: Any, error: bool) -> Any:
        y = x + 1
        with pycompiler.error_on_graph_break(error):
            pycompiler.graph_break("here")
        return y * 2

    compiled = pycompiler.compile(within, backend="eager")
    torch.testing.assert_close(compiled(X, False), (X + 1) * 2)
    with pytest.raises(Unsupported, match="here"):
        compiled(X, True)

    @pycompiler.error_on_graph_break(True)
    def strict(x: Any) -> Any:
        with pycompiler.error_on_graph_break(False):
            y = x.sin()
            pycompiler.graph_break("allowed")
            y = y + 1
        return y if x.sum() > 0 else x  # data-dependent branch

    with pytest.raises(Unsupported, match="depend"):
        pycompiler.compile(lambda x: strict(x), backend="eager")(X)
    assert not function_marks.breaks_are_errors()


def test_torchs_own_marks_of_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    from torch import _dynamo as peer

    def within(x: Any, error: bool) -> Any:
        y = x + 1
        with peer.error_on_graph_break(error):
            peer.graph_break("here")
        return y * 2

    @peer.error_on_graph_break(True)
    def strict(x: Any, *rest: Any, **more: Any) -> Any:
        print("printed", rest, more)
        return x + 1

    @peer.error_on_graph_break(False)
    def lenient(x: Any) -> Any:
        print("printed")
        return x + 1

    compiled = pycompiler.compile(within, backend="eager")
    torch.testing.assert_close(compiled(X, False), (X + 1) * 2)
    with pytest.raises(Unsupported, match="explicit-break.*here"):
        compiled(X, True)
    with pytest.raises(Unsupported, match="print"):
        pycompiler.compile(lambda x: strict(x.sin(), 1, error=2), backend="eager")(X)
    around = pycompiler.compile(peer.error_on_graph_break(True)(lambda x: lenient(x) * 2), backend="eager")
    for _ in range(2):
        torch.testing.assert_close(around(X), (X + 1) * 2)
    assert capsys.readouterr().out == "printed\n" * 2
    assert not function_marks.breaks_are_errors()


def test_torchs_older_name_of_is_compiling() -> None:
    from torch import _dynamo as peer

    compiled = pycompiler.compile(lambda x: x + peer.is_compiling(), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(X), X + 1)


@pytest.mark.parametrize("mark, compiles", [("mark_dynamic", 1), ("maybe_mark_dynamic", 1), ("mark_static", 4)])
def test_torchs_own_marks_of_sizes(mark: str, compiles: int) -> None:
    from torch import _dynamo as peer

    compiled = pycompiler.compile(lambda x: x * 2, backend="eager")
    for size in (5, 7, 3, 4):
        x = torch.ones(2, size)
        getattr(peer, mark)(x, -1 if mark == "mark_static" else 1)
        torch.testing.assert_close(compiled(x), x * 2)
    assert len(compiled.entries) == compiles


def test_torchs_own_range_of_a_size() -> None:
    from torch import _dynamo as peer

    x, y, number = torch.ones(4), torch.ones(9), torch.ones(())
    for t in (x, y):
        peer.mark_dynamic(t, 0, min=2, max=6)
    peer.mark_dynamic(number, 0)  # the dimension does not exist
    compiled = pycompiler.compile(lambda x, n: x * n, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, number), x)
    with pytest.raises(pycompiler.errors.UserError, match="9, but marked to be from 2 to 6"):
        compiled(y, number)


def test_it_holds_around_calls_too() -> None:
    def fn(x: Any) -> Any:
        pycompiler.graph_break()
        return x + 1

    with pycompiler.error_on_graph_break(True), pytest.raises(Unsupported):
        pycompiler.compile(fn, backend="eager")(X)
    torch.testing.assert_close(pycompiler.compile(fn, backend="eager")(X), X + 1)


@pytest.mark.parametrize("take", [pycompiler.allow_in_graph, pycompiler.disallow_in_graph, pycompiler.nonstrict_trace,
                                  pycompiler.assume_constant_result, pycompiler.substitute_in_graph])  # fmt: skip
def test_wrong_arguments(take: Any) -> None:
    with pytest.raises(ArgumentError, match="takes a function"):
        take(3)


def test_errors_of_breaks_are_a_threads() -> None:
    seen: list[bool] = []
    with pycompiler.error_on_graph_break(True):
        thread = threading.Thread(target=lambda: seen.append(function_marks.breaks_are_errors()))
        thread.start()
        thread.join()
        assert function_marks.breaks_are_errors()
    assert seen == [False]
