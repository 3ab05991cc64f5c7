"""A capture as data: no graph is compiled, no function is called, and the code is assembled later, any number of times."""

from __future__ import annotations

import logging
import types
import weakref
from unittest import mock

import pytest
import torch

import pycompiler
from pycompiler import logs
from pycompiler.capture.breaks import BreakRecord, SkipFrame
from pycompiler.capture.interpreter import context
from pycompiler.capture.interpreter.frame import Captured, capture_frame
from pycompiler.capture.recipe.recipe import GRAPH, TAIL_CALL, Hole, Resume, fill, holes
from pycompiler.ir.source import Source


def capture(f: types.FunctionType, *args: object) -> Captured:
    values = dict(zip(f.__code__.co_varnames, args, strict=False))
    captured = capture_frame(f.__code__, f.__globals__, values)
    assert isinstance(captured, Captured)
    return captured


def test_a_frame_without_effects_is_a_graph_and_a_template() -> None:
    captured = capture(lambda x: {"y": x.sin() + 1}, torch.ones(3))
    assert captured.recipe.code is None and captured.recipe.template == ("dict", [("y", ("graph", 0))])
    assert captured.graph is not None and [e.fake.shape for e in captured.examples] == [torch.Size([3])]


def test_generated_code_has_holes_and_is_filled_twice() -> None:
    def f(x, seen):  # type: ignore[no-untyped-def]
        seen.append("before")
        y = x + 1
        pycompiler.graph_break()
        return y * 2

    x, seen = torch.ones(3), list[str]()
    captured = capture(f, x, seen)  # type: ignore[arg-type]
    assert seen == [] and captured.recipe.code is not None and captured.graph is not None
    assert {type(h) for h in holes(captured.recipe.code)} == {Hole, Resume}
    for factor in (1, 10):
        calls: list[tuple[object, ...]] = []

        def held(hole: Hole, factor: int = factor, calls: list[tuple[object, ...]] = calls) -> object:
            if isinstance(hole, Resume):
                return hole.code.co_qualname
            answers = {GRAPH: lambda x: (factor * (x + 1),), TAIL_CALL: lambda *args: calls.append(args) or "gone on"}
            return answers[hole]

        made = types.FunctionType(fill(captured.recipe.code, held), f.__globals__)
        assert made(x, seen) == "gone on"
        ((name, y, *_),) = calls
        assert ".resume_in_f_at_" in str(name) and torch.equal(y, factor * (x + 1))  # type: ignore[arg-type]
        assert seen == ["before"]
        seen.clear()


def test_what_guards_tell_of_places_is_looked_up() -> None:
    """Each load of an item looks up its guards, without a walk over all: comparisons stay linear in the number of lists."""

    def compared(count: int) -> int:
        with mock.patch.object(Source, "__eq__", autospec=True, side_effect=Source.__eq__) as asked:
            lists = [[torch.ones(2)] for _ in range(count)]
            captured = capture(lambda xs: types.SimpleNamespace(a=sum(x[0] for x in xs)), lists)
        assert captured.recipe.code is not None
        return asked.call_count

    compared(4)
    assert compared(80) < 5 * compared(20)


def test_breaks_are_part_of_the_result() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        y = x + 1
        pycompiler.graph_break()
        return y * 2

    captured = capture(f, torch.ones(3))
    assert captured.broke is not None and captured.breaks == (captured.broke,)
    assert captured.broke.kind == "explicit-break"
    assert capture(lambda x: x + 1, torch.ones(3)).breaks == ()
    broke = capture_frame(f.__code__, f.__globals__, {"x": torch.ones(3)}, fullgraph=True)
    assert broke == captured.broke and isinstance(broke, BreakRecord)

    def endless(x):  # type: ignore[no-untyped-def]
        while True:
            x = x + 1

    with mock.patch.object(context, "BUDGET", 500), pytest.raises(SkipFrame) as skipped:
        capture_frame(endless.__code__, endless.__globals__, {"x": torch.ones(3)})
    assert [b.kind for b in skipped.value.breaks] == ["trace-budget"]


def test_who_hears_of_a_break_is_called_after_the_capture() -> None:
    """A log handler of the user runs under the caller's torch state, not under the state at the captured break."""
    seen = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append((torch.is_grad_enabled(), "explicit-break" in record.getMessage()))

    def f(x):  # type: ignore[no-untyped-def]
        with torch.no_grad():
            pycompiler.graph_break()
        return x + 1

    handler = Handler()
    logs.set_logs(graph_breaks=True)
    logger = logging.getLogger("pycompiler")
    logger.addHandler(handler)
    try:
        assert torch.equal(pycompiler.compile(f, backend="eager")(torch.ones(2)), torch.ones(2) + 1)
    finally:
        logger.removeHandler(handler)
        logs.reset_logs()
    assert seen == [(True, True)]


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x, kept):  # type: ignore[no-untyped-def]
        kept["x"] = x
        self.seen.add_(x)
        return self.linear(x) + self.seen


def breaks(layer, x, kept):  # type: ignore[no-untyped-def]
    y = layer(x, kept)
    pycompiler.graph_break()
    return y * 2


@pytest.mark.parametrize("f", [lambda layer, x, kept: layer(x, kept), breaks], ids=["whole", "break"])
def test_no_tensor_of_the_call_is_held(f: types.FunctionType) -> None:
    """A capture refers to its inputs by their sources and holds no example tensors."""
    layer, x = Layer(), torch.randn(3)
    captured = capture(f, layer, x, dict[str, object]())
    held = {name: weakref.ref(t) for name, t in {"x": x, **layer.state_dict(keep_vars=True)}.items()}
    del layer, x
    assert captured.graph is not None and len(captured.recipe.inputs) == len(captured.examples) == 4
    assert {name for name, reference in held.items() if reference() is not None} == set()


class Marked(torch.Tensor):
    pass


@pytest.mark.parametrize("kind", [torch.Tensor, Marked])
def test_other_backends_are_given_what_is_at_the_sources(kind: type[torch.Tensor]) -> None:
    given: list[object] = []

    def backend(gm, inputs):  # type: ignore[no-untyped-def]
        given.extend(inputs)
        return gm.forward

    def f(rows, n):  # type: ignore[no-untyped-def]
        return rows[0].add_(1) * n

    x = torch.arange(6.0)[1::2].as_subclass(kind)
    compiled = pycompiler.compile(f, backend=backend, dynamic=True)
    assert compiled([x], 5).tolist() == [10.0, 20.0, 30.0]
    tensors = [t for t in given if isinstance(t, torch.Tensor)]
    assert [(type(t), t.data_ptr(), t.stride()) for t in tensors] == [(torch.Tensor, x.data_ptr(), (2,))]
