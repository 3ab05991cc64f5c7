"""Interplay with torch.compile and torch.compiler: their wrappers, marks and guard filters, and compiled callables below them."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler
from pycompiler import exc
from pycompiler.wrapping import compiled_of

X = torch.arange(4.0)
compiler: Any = torch.compiler


class Graphs:
    """A backend that records the operators of each graph."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def __call__(self, gm: Any, inputs: Any) -> Any:
        self.seen.append([n.name for n in gm.graph.nodes if n.op not in ("placeholder", "output")])
        return gm


@pytest.fixture
def graphs() -> Iterator[Graphs]:
    torch._dynamo.reset()
    yield Graphs()
    torch._dynamo.reset()


def helper(x: Any) -> Any:
    return x.cos() * 5


def part(x: Any) -> Any:
    return helper(x).sin()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.gain = 2.0

    def forward(self, x: Any) -> Any:
        return helper(self.linear(x)) * self.gain

    def step(self, x: Any) -> Any:
        return helper(x) - 1


def breaking(x: Any) -> Any:
    y = x + 1
    pycompiler.graph_break()
    return y.cos()


# torch.compile around pycompiler ------------------------------------------------------------------------------
OURS: dict[str, Callable[[], Any]] = {
    "function": lambda: part,
    "breaking function": lambda: breaking,
    "module": Net,
    "method": lambda: Net().step,
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("kind", OURS)
@pytest.mark.captures_nothing("torch.compile compiles the original", "function-eager", "function-native", "breaking function-eager",
                              "breaking function-native", "module-eager", "module-native")  # fmt: skip
def test_torch_compile_of_a_compiled_callable(kind: str, backend: str, graphs: Graphs) -> None:
    target = OURS[kind]()
    made = torch.compile(pycompiler.compile(target, backend=backend), backend=graphs)
    for _ in range(2):
        torch.testing.assert_close(made(X), target(X))


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("kind", OURS)
def test_compiled_callable_called_below_torch_compile(kind: str, backend: str, graphs: Graphs) -> None:
    """torch.compile captures every frame of its thread: without marks it would compile this compiler, for minutes."""
    target = OURS[kind]()
    inner = pycompiler.compile(target, backend=backend)

    def outer(x: Any) -> Any:
        return inner(x * 2) + 1

    made = torch.compile(outer, backend=graphs)
    for _ in range(2):
        torch.testing.assert_close(made(X), target(X * 2) + 1)
    assert len(graphs.seen) <= 4


# pycompiler around torch.compile ------------------------------------------------------------------------------
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("kind", ["function", "module", "method"])
def test_what_torch_compile_made_is_captured_as_its_original(kind: str, fullgraph: bool, graphs: Graphs) -> None:
    target = OURS[kind]()
    theirs = torch.compile(target, backend="eager", fullgraph=fullgraph)
    made = pycompiler.compile(theirs, backend=graphs, fullgraph=True)
    torch.testing.assert_close(made(X), target(X))

    def outer(x: Any) -> Any:
        return theirs(x + 1) * 2

    torch.testing.assert_close(pycompiler.compile(outer, backend=graphs, fullgraph=True)(X), target(X + 1) * 2)
    assert len(graphs.seen) == 2


def test_hooks_on_torchs_wrapper_of_a_module_run(graphs: Graphs) -> None:
    theirs = torch.compile(Net(), backend="eager")
    theirs.register_forward_hook(lambda module, args, out: out * 3)

    def outer(x: Any) -> Any:
        return theirs(x) + 1

    torch.testing.assert_close(pycompiler.compile(outer, backend=graphs)(X), theirs._orig_mod(X) * 3 + 1)


# torch.compiler.disable ----------------------------------------------------------------------------------------
def module_with_disabled_forward() -> Any:
    net = Net()
    net.forward = compiler.disable(net.forward)  # type: ignore[method-assign]
    return net


DISABLED: dict[str, Callable[[], Any]] = {
    "function": lambda: compiler.disable(part),
    "lambda": lambda: compiler.disable(lambda x: helper(x)),
    "module": lambda: compiler.disable(Net()),
    "method": lambda: compiler.disable(Net().step),
    "forward": module_with_disabled_forward,
    "torch._dynamo.disable": lambda: torch._dynamo.disable(part),
}


@pytest.mark.parametrize("kind", DISABLED)
def test_disabled_code_is_never_captured_nor_what_it_calls(kind: str, graphs: Graphs) -> None:
    eager = DISABLED[kind]()

    def direct(x: Any) -> Any:
        return eager(x + 1) * 2

    def in_with(x: Any) -> Any:
        with open("/dev/null"):
            y = eager(x + 1) * 2
            pycompiler.graph_break()
        return y + 1

    def through_the_hook(x: Any) -> Any:
        def inner(x: Any) -> Any:
            pycompiler.graph_break()
            return eager(x * 3)

        with open("/dev/null"):
            return inner(x) + 1

    for fn in (direct, in_with, through_the_hook):
        torch.testing.assert_close(pycompiler.compile(fn, backend=graphs)(X), fn(X))
    assert {name for graph in graphs.seen for name in graph} == {"add", "mul"}
    graphs.seen.clear()
    torch.testing.assert_close(pycompiler.compile(eager, backend=graphs)(X), eager(X))
    assert graphs.seen == []


def test_compiles_of_torchs_behind_a_break_keep_its_state() -> None:
    torch._dynamo.reset()

    def drawing(gm: Any, inputs: Any) -> Any:
        torch.rand(3)
        torch.set_default_dtype(torch.float64)
        assert not torch.is_inference_mode_enabled()
        return gm

    def program(x: Any) -> Any:
        pycompiler.graph_break()
        return torch.compile(breaking, backend=drawing, fullgraph=False)(x)

    torch.manual_seed(0)
    before, compiled = torch.get_rng_state(), pycompiler.compile(program)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(X), breaking(X))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() is torch.float32
    torch._dynamo.reset()


def test_modules_are_made_inside_after_torch_compile_was_used() -> None:
    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend="eager")(X)

    def program(x: Any) -> Any:
        return nn.Linear(4, 4, bias=False)(x).shape[0] * x

    compiled = pycompiler.compile(program, fullgraph=True)
    assert torch.equal(compiled(X), program(X))
    torch._dynamo.reset()


def test_disabled_without_recursion_captures_what_it_calls(graphs: Graphs) -> None:
    eager = compiler.disable(part, recursive=False)
    torch.testing.assert_close(pycompiler.compile(lambda x: eager(x + 1) * 2, backend=graphs)(X), part(X + 1) * 2)
    assert graphs.seen == [["add"], ["cos", "mul"], ["mul"]]


def test_disabled_class(graphs: Graphs) -> None:
    @compiler.disable
    class Part:
        def __init__(self, n: int) -> None:
            self.n = helper(torch.ones(1)) * n

        def __call__(self, x: Any) -> Any:
            return helper(x) + self.n

    torch.testing.assert_close(pycompiler.compile(lambda x: Part(2)(x) * 2, backend=graphs)(X), Part(2)(X) * 2)
    assert graphs.seen == [["mul"]]


def test_reasons_of_breaks_are_shown() -> None:
    for disable in (compiler.disable, pycompiler.disable):
        eager = disable(part, reason="it talks to a printer")
        with pytest.raises(exc.Unsupported, match=r"part \(it talks to a printer\)"):
            pycompiler.compile(lambda x, eager=eager: eager(x), fullgraph=True)(X)


# guard filters -------------------------------------------------------------------------------------------------
def kept(filter_: Any, backend: str = "eager") -> tuple[Any, list[Any]]:
    """A compiled net with a guard filter, and the guards that remain."""
    made = pycompiler.compile(Net(), backend=backend, options={"guard_filter_fn": filter_})
    torch.testing.assert_close(made(X), made._orig_mod(X))
    return made, list(compiled_of(made).entries[0].guards)


def names(guards: list[Any]) -> list[str]:
    return [str(g) for g in guards]


def test_filter_of_all_modules() -> None:
    made, guards = kept(compiler.skip_guard_on_all_nn_modules_unsafe)
    assert not any("L['self']" in text for text in names(guards))
    assert any(g.kind == "tensor" for g in guards)
    made.gain = 7.0
    assert pycompiler.explain_miss(made, X) == []
    assert pycompiler.explain_miss(made, X.double()) != []


def test_filter_of_builtin_modules() -> None:
    made, guards = kept(compiler.skip_guard_on_inbuilt_nn_modules_unsafe)
    assert not any("_modules']['linear']" in text for text in names(guards))
    made.gain = 7.0
    assert pycompiler.explain_miss(made, X) != []


def test_filters_of_tensors_globals_and_all() -> None:
    _, guards = kept(compiler.keep_tensor_guards_unsafe)
    assert [(g.kind, "self" in str(g)) for g in guards] == [("tensor", False)]
    _, guards = kept(lambda entries: compiler.keep_tensor_guards_unsafe(entries, keep_parameters=True))
    assert [g.kind for g in guards] == ["tensor"] * 3
    _, guards = kept(compiler.skip_guard_on_globals_unsafe)
    assert {g.source.root.kind for g in guards if g.kind != "global_state"} == {"local"}
    _, guards = kept(compiler.keep_portable_guards_unsafe)
    assert {g.kind for g in guards} == {"global_state", "tensor"}
    _, guards = kept(compiler.skip_all_guards_unsafe, "native")
    assert guards == []


def test_what_a_filter_sees() -> None:
    seen: list[Any] = []

    def filter_(entries: Any) -> Any:
        seen.extend(entries)
        return (True for _ in entries)

    kept(filter_)
    gain = next(e for e in seen if e.name.endswith("['gain']") and e.kind == "equals")
    assert (gain.value, gain.has_value, gain.guard_type, gain.is_global) == (2.0, True, "EQUALS_MATCH", False)
    assert gain.orig_guard.source.is_unspecialized_nn_module()
    assert not gain.orig_guard.source.is_unspecialized_builtin_nn_module()
    assert gain.orig_guard.name == gain.name == gain.source.name
    absent = next(e for e in seen if e.kind == "instance_absent")
    assert absent.guard_type == "NOT_PRESENT_IN_GENERIC_DICT"
    assert (absent.derived_guard_types, absent.code_parts) == ((), (str(absent),))
    with pytest.raises(AttributeError, match="'nope'"):
        _ = absent.nope


def test_a_filter_that_raises_reaches_the_user() -> None:
    def raising(entries: Any) -> Any:
        raise KeyError("mine")

    made = pycompiler.compile(part, options={"guard_filter_fn": raising})
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            made(X)


@pytest.mark.parametrize("answer", [[True], None, 3, [True] * 1000], ids=["few", "None", "number", "many"])
def test_a_filter_with_a_wrong_answer_is_named(answer: Any) -> None:
    def filter_(entries: Any) -> Any:
        return answer

    with pytest.raises(exc.ArgumentError, match=r"guard filter 'filter_' returned .* one bool a guard"):
        pycompiler.compile(part, options={"guard_filter_fn": filter_})(X)


def test_evaluation_functions_in_front_of_each_other() -> None:
    """Inside a graph break torch.compile and this package each install a frame evaluation function
    in front of the other. A failed compile must not hand frames around in an endless circle."""
    seen: list[int] = []

    def wants(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return x * 2

    def program(x: torch.Tensor) -> Any:
        return eagerly(x.sum() > 100, wants, torch.sin, (x,))

    eagerly = pycompiler.disable(torch.cond, recursive=False)
    compiled = pycompiler.compile(program, backend="eager")
    with pytest.raises(Exception, match="side effect"):
        compiled(torch.ones(3))


class TwoResults(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        hidden = self.first(x).relu()
        return hidden, self.second(hidden).exp()


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize(
    "loss", [lambda h, y: h.sin().sum() + y.sum(), lambda h, y: h.square().sum()], ids=["both", "one"]
)
def test_gradients_under_torchs_compiled_autograd(
    loss: Callable[..., Any], backend: str, recwarn: pytest.WarningsRecorder
) -> None:
    """The package's backward is called unchanged, and the package's own traces use the engine unchanged."""
    enabled = importlib.import_module("torch._dynamo.compiled_autograd")._enable
    torch._dynamo.reset()
    model = TwoResults()
    compiled = pycompiler.compile(model, backend=backend)
    for rows in (2, 3, 5, 2):
        found = []
        for run in (model, compiled):
            model.zero_grad()
            x = torch.linspace(-1, 1, 4 * rows).view(rows, 4).requires_grad_()
            with enabled(torch.compile(backend="eager")) if run is compiled else contextlib.nullcontext():
                loss(*run(x)).backward()
            found.append([x.grad, *(p.grad for p in model.parameters())])
        assert all(type(g) in (torch.Tensor, type(None)) for g in found[1])
        for ours, theirs in zip(found[1], found[0], strict=True):
            assert (ours is None) is (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours, theirs)
    assert pycompiler.counters(compiled)["compiles"] == 2
    assert not [w for w in recwarn if "how to trace" in str(w.message)]
    torch._dynamo.reset()
