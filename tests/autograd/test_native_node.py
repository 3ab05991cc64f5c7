"""The autograd node of a compiled graph runs in the engine: no Python frame lies between torch and the two plans."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import _native
from tests.harness.compare import assert_same


def frames_of(call: Callable[[], Any]) -> list[str]:
    """The functions whose Python frames the call enters, and `run_backward` where autograd's engine starts."""
    found: list[str] = []

    def note(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            found.append(frame.f_code.co_qualname)
        elif event == "c_call" and arg.__name__ == "run_backward":
            found.append(arg.__name__)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def mlp() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))


def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.exp(), (x * 2).sin()


def node_of(result: torch.Tensor) -> Any:
    node = result.grad_fn
    assert isinstance(type(node).apply, _native.NodeBackward)
    return node


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_training_call_enters_no_python_frame(dynamic: bool) -> None:
    compiled = pycompiler.compile(mlp(), dynamic=dynamic)
    x, tangent = torch.randn(3, 4), torch.randn(3, 4)
    compiled(x).backward(tangent)
    forward = frames_of(functools.partial(compiled, x))
    backward = frames_of(functools.partial(compiled(x).backward, tangent))
    assert forward == []
    assert backward[backward.index("run_backward") + 1 :] == []


def test_results_that_go_backward_alone_get_their_own_gradients() -> None:
    compiled = pycompiler.compile(two)
    for chosen in (0, 1, 0):
        x, y = (torch.linspace(-1, 1, 5, requires_grad=True) for _ in range(2))
        compiled(x)[chosen].sum().backward()
        two(y)[chosen].sum().backward()
        assert_same(x.grad, y.grad)


@pytest.mark.parametrize("stride", [(1, 3), (0, 0)])
def test_a_tangent_of_another_layout_is_fitted(stride: tuple[int, int]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).tanh()

    compiled = pycompiler.compile(program)
    x, y = (torch.linspace(-1, 1, 9).reshape(3, 3).requires_grad_() for _ in range(2))
    tangent = torch.linspace(1, 2, 9).as_strided((3, 3), stride)
    compiled(x).backward(tangent)
    program(y).backward(tangent)
    assert_same(x.grad, y.grad)


def test_a_node_called_by_hand_gives_its_gradients() -> None:
    compiled = pycompiler.compile(torch.sin)
    x = torch.ones(3, requires_grad=True)
    node = node_of(compiled(x))
    with torch.no_grad():
        (found,) = node.apply(torch.full((3,), 2.0))
    assert_same(found, x.detach().cos() * 2)


def test_a_graph_may_free_the_tangents_of_a_list() -> None:
    """Torch passes a list if it can; a plan frees each input after its last use."""
    compiled = pycompiler.compile(torch.sin)
    node = node_of(compiled(torch.ones(3, requires_grad=True)))
    backward: _native.NodeBackward = type(node).apply
    seen: list[Any] = []

    class Graph:
        def call(self, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
            tangent = weakref.ref(inputs[-1])
            inputs.clear()
            seen.append(tangent())
            return (torch.zeros(3),)

    gradients = _native.NodeGradients(replace(backward.recipe.find((False,)).recipe, graph=Graph()))
    ours = _native.NodeBackward(replace(backward.recipe, find=lambda missing: gradients))
    tangents = [torch.ones(3)]
    with torch.no_grad():
        ours(node, tangents)
    assert (tangents, seen) == ([], [None])


@pytest.mark.skipif(
    not hasattr(torch.autograd.function.BackwardCFunction, "apply_boxed"), reason="this torch passes no lists"
)
def test_a_tangent_dies_before_the_backward_ends() -> None:
    """In eager, the node that reads a tangent frees it, and later nodes have its memory."""
    seen: list[Any] = []
    compiled = pycompiler.compile(torch.sin)
    result = compiled(torch.ones(3, requires_grad=True))
    node, kept = node_of(result), list[Any]()
    result.register_hook(lambda tangent: kept.append(weakref.ref(tangent)))
    gradients = type(node).apply.recipe.find((False,))

    class Graph:
        def call(self, values: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
            values.clear()
            seen.append(kept[0]())
            return (torch.zeros(3),)

    other = _native.NodeGradients(replace(gradients.recipe, graph=Graph()))
    type(node).apply_boxed = _native.NodeBackward(replace(type(node).apply.recipe, find=lambda missing: other))
    result.exp().sum().backward()
    assert seen == [None]


def test_hooks_of_a_node_see_tangents_and_gradients() -> None:
    def asked(run: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
        x, seen = torch.linspace(-1, 1, 4, requires_grad=True), list[Any]()
        result = run(x)
        assert result.grad_fn is not None
        result.grad_fn.register_hook(lambda inputs, outputs: seen.append((inputs, outputs)))
        result.grad_fn.register_prehook(lambda outputs: (outputs[0] * 2,))
        result.sum().backward()
        return [*seen, x.grad]

    assert_same(asked(pycompiler.compile(torch.sin)), asked(torch.sin))


def test_anomaly_mode_names_the_node_with_a_nan() -> None:
    compiled = pycompiler.compile(torch.sqrt)
    x = torch.zeros(2, requires_grad=True)
    result = compiled(x)
    with torch.autograd.detect_anomaly(check_nan=True), pytest.raises(RuntimeError, match="returned nan values"):
        (result * 0).sum().backward()


def test_the_garbage_collector_frees_the_functions_of_a_node() -> None:
    compiled = pycompiler.compile(torch.sin)
    result = compiled(torch.ones(3, requires_grad=True))
    result.sum().backward()
    cls = type(node_of(result))
    held = [weakref.ref(f) for f in (cls.apply, cls._forward_cls.forward, cls.apply.recipe.find((False,)))]
    del compiled, result, cls
    gc.collect()
    assert [reference() for reference in held] == [None] * 3


def test_a_recipe_with_an_unknown_word_is_refused() -> None:
    compiled = pycompiler.compile(torch.sin)
    recipe = type(node_of(compiled(torch.ones(3, requires_grad=True))))._forward_cls.forward.recipe
    with pytest.raises(ValueError, match="unknown place"):
        _native.NodeForward(type(recipe)(**{**vars(recipe), "tensors": (("elsewhere", 0),)}))


@pytest.mark.parametrize("number", [0.5, 3])
def test_numbers_beside_symbolic_strides(number: float) -> None:
    def program(x: torch.Tensor, a: float) -> torch.Tensor:
        return (x.sin() * a).tanh()

    compiled = pycompiler.compile(program, dynamic=True)
    for rows in (3, 4):
        x = torch.linspace(-1, 1, 2 * rows).view(rows, 2).requires_grad_()
        for value in (number, number + 1):
            assert_same(*(torch.autograd.grad(f(x, value).sum(), x) for f in (compiled, program)), tolerance=1e-6)


@pytest.mark.parametrize("wrong", [(1.0,), ([1.0],), ("x" * 100,), (), (torch.ones(3), torch.ones(3))])
def test_a_node_that_is_called_by_hand_checks_its_arguments(wrong: tuple[Any, ...]) -> None:
    y = pycompiler.compile(torch.sin)(torch.ones(3, requires_grad=True))
    with torch.no_grad(), pytest.raises(TypeError):
        y.grad_fn.apply(*wrong)


def test_torchs_compiler_looks_at_no_frame_of_a_backward() -> None:
    """The first backward compiles its graph: torch.compile of the step must not read the frames of this compiler."""
    net = pycompiler.compile(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Dropout(0.5)))

    def step(x: torch.Tensor) -> torch.Tensor:
        value = net(x).sum()
        value.backward()
        return value.detach()

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(step, backend="eager")
    for rows in (5, 5, 6, 7):
        compiled(torch.ones(rows, 4))
    frames = torch._dynamo.utils.counters["frames"]["total"]
    torch._dynamo.reset()
    assert frames < 150, "before nodes were native, there were 109 frames"
