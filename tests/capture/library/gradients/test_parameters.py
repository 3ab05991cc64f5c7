"""Parameters that compiled functions create, and their queries about autograd's graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler
from tests.capture.harness import ANY, check
from tests.harness.compare import assert_same

BACKENDS = ("eager", "aot_eager", "native")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x))


def local(model: Model, x: torch.Tensor) -> Any:
    return x * nn.Parameter(torch.ones(3))


def returned(model: Model, x: torch.Tensor) -> Any:
    p = nn.Parameter(x * 2)
    p.tag = 5  # type: ignore[attr-defined]
    return p, p * x, p.is_leaf, p.grad, type(p) is nn.Parameter


def stored(model: Model, x: torch.Tensor) -> Any:
    model.scale = nn.Parameter(x * 2)
    return model(x) * model.scale


def registered(model: Model, x: torch.Tensor) -> Any:
    model.register_parameter("scale", nn.Parameter(x * 2))
    model.register_buffer("shift", x * 3)
    return model(x) * model.scale + model.shift


def of_existing(model: Model, x: torch.Tensor) -> Any:
    p = nn.Parameter(x)
    return p, p * x


def of_weights(model: Model, x: torch.Tensor) -> Any:
    p = nn.Parameter(model.layer.weight * 2)
    return p @ x, p, model(x)


def of_data(model: Model, x: torch.Tensor) -> Any:
    return nn.Parameter(model.layer.weight.data) @ x


def layer(model: Model, x: torch.Tensor) -> Any:
    model.layer = nn.Linear(3, 3)
    return model(x)


def listed(model: Model, x: torch.Tensor) -> Any:
    made = nn.ParameterList([nn.Parameter(torch.full((3,), float(i))) for i in range(3)])
    return sum(p * x for p in made), made


def under_no_grad(model: Model, x: torch.Tensor) -> Any:
    with torch.no_grad():
        p = nn.Parameter(x * 2)
        p.mul_(3)
    return p * x, p


def gradient(model: Model, x: torch.Tensor) -> Any:
    p = nn.Parameter(x * 2)
    return torch.autograd.grad((p * p).sum(), [p]), p


CAPTURED = (
    local,
    returned,
    stored,
    registered,
    of_existing,
    of_weights,
    of_data,
    layer,
    listed,
    under_no_grad,
    gradient,
)


def seen(program: Callable[..., Any], model: Model, x: torch.Tensor) -> Any:
    """Results of two calls, before and after a training step on the differentiable results, and the model's state."""
    found: list[Any] = []
    torch.manual_seed(0)
    for _ in range(2):
        result = program(model, x)
        modules = [m for m in (result if isinstance(result, tuple) else ()) if isinstance(m, nn.Module)]
        made = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        leaves = [p for m in (model, *modules) for p in m.parameters()] + [
            t for t in made if t.is_leaf and t.requires_grad
        ]
        wanted = [t for t in made if t.requires_grad]
        if wanted:
            sum((t * t).sum() for t in wanted).backward()  # type: ignore[union-attr]
        with torch.no_grad():
            for p in leaves:
                p.add_(1 if p.grad is None else p.grad)
        found += [[(type(t), t.detach().clone(), t.requires_grad, t.is_leaf, vars(t)) for t in (*made, *leaves, x)]]
        found += [[p.grad for p in leaves], [*dict(model.named_parameters())], [*dict(model.named_buffers())]]
        model.zero_grad()
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", CAPTURED)
def test_a_parameter_that_is_made_is_eagers(program: Callable[..., Any], backend: str) -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(3)
    compiled = pycompiler.compile(program, fullgraph=True, backend=backend)
    expected = seen(program, copy.deepcopy(model), x.clone())
    assert_same(seen(compiled, copy.deepcopy(model), x.clone()), expected, tolerance=1e-5, absolute=1e-8)


def both_leave(x: torch.Tensor) -> Any:
    data = x * 2
    return nn.Parameter(data), data


def data_is_written(x: torch.Tensor) -> Any:
    data = x * 2
    p = nn.Parameter(data)
    data.add_(1)
    return p * 1


def parameter_is_written(x: torch.Tensor) -> Any:
    data = x * 2
    p = nn.Parameter(data)
    with torch.no_grad():
        p.mul_(5)
    return data + p


def existing_is_written(x: torch.Tensor) -> Any:
    p = nn.Parameter(x)
    x.add_(1)
    return p * 1


def of_a_part(x: torch.Tensor) -> Any:
    return nn.Parameter(x[:2])


def of_shared_elements(x: torch.Tensor) -> Any:
    return nn.Parameter((x * 2).expand(2, 3))


def of_another(x: torch.Tensor) -> Any:
    first = nn.Parameter(x * 2)
    return first, nn.Parameter(first)


SHARED = (
    both_leave,
    data_is_written,
    parameter_is_written,
    existing_is_written,
    of_a_part,
    of_shared_elements,
    of_another,
)


@pytest.mark.parametrize("program", SHARED)
def test_memory_that_a_parameter_shares_visibly_breaks_the_graph(program: Callable[..., Any]) -> None:
    check(program, torch.ones(3), breaks="tensor-subclass")


def test_a_class_of_parameters_breaks_the_graph() -> None:
    class Mine(nn.Parameter):
        pass

    check(lambda x: Mine(x * 2), torch.ones(3), breaks="tensor-subclass")


def test_a_parameter_of_integers_raises_what_eager_raises() -> None:
    check(lambda x: nn.Parameter(x.long()), torch.ones(3), breaks=ANY)


# autograd's graph ---------------------------------------------------------------------------------------------------------
def history(x: torch.Tensor) -> Any:
    y = x * 2
    one = y.grad_fn
    return y + 1 if one else y - 1, one is None, x.grad_fn is None, y.is_leaf, x.is_leaf, y.retains_grad, y.output_nr


def in_common(x: torch.Tensor) -> Any:
    a, b = (x * 2).unbind()[:2]
    return a.grad_fn is b.grad_fn, a.grad_fn is x.grad_fn, b.output_nr


def versions(x: torch.Tensor) -> Any:
    y = x.clone()
    first = y._version
    y.add_(1)
    z = y[0]
    z.mul_(2)
    y.data.add_(1)
    return first, y._version, z._version, y


def of_views(x: torch.Tensor) -> Any:
    y = x.view(3, 1)
    z = x.clone()[0]
    return y.is_leaf, y.grad_fn is None, z.is_leaf, x.detach().is_leaf


@pytest.mark.parametrize("trains", (False, True))
@pytest.mark.parametrize("program", (history, in_common, versions, of_views))
def test_questions_about_autograds_graph_are_captured(program: Callable[..., Any], trains: bool) -> None:
    x = torch.ones(3, requires_grad=trains)
    assert_same(
        pycompiler.compile(program, fullgraph=True, backend="eager")(x), program(x), tolerance=1e-5, absolute=1e-8
    )


def test_a_history_that_comes_later_is_another_one() -> None:
    def program(x: torch.Tensor) -> Any:
        return x.grad_fn is None, bool(x.grad_fn), x.is_leaf, x + 1

    leaf = torch.ones(3, requires_grad=True)
    compiled = pycompiler.compile(program, fullgraph=True, backend="eager")
    for x in (leaf, leaf * 1, leaf, torch.ones(3), leaf * 1, leaf.sin()):
        assert_same(compiled(x), program(x), tolerance=1e-5, absolute=1e-8)
    assert compiled.counters()["compiles"] == 4  # one for each class of nodes


def test_the_node_of_an_existing_tensor_is_the_one_before_a_write() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        before = x.grad_fn
        x.mul_(w)
        return before.name(), before, x  # type: ignore[union-attr]

    w = torch.ones(3, requires_grad=True)
    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(2):
        x = w * 2
        node = x.grad_fn
        name, before, after = compiled(x, w)
        assert before is node and name == "MulBackward0" and after is x and x.grad_fn is not node


def test_whether_existing_tensors_have_one_history() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.grad_fn is y.grad_fn, x + y

    parts = [t * 1 for t in torch.ones(2, 3, requires_grad=True).unbind()]
    both = torch.ones(2, 3, requires_grad=True).unbind()
    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for x, y in (parts, both, parts):
        assert_same(compiled(x, y), program(x, y), tolerance=1e-5, absolute=1e-8)


def test_parameters_of_other_sizes() -> None:
    compiled = pycompiler.compile(lambda x: nn.Parameter(x * 2), fullgraph=True, backend="eager")
    for n in (3, 4, 5):
        assert torch.equal(compiled(torch.ones(n)), torch.full((n,), 2.0))


def test_what_a_write_does_to_the_history_of_an_existing_tensor() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        x.mul_(w)
        return x.is_leaf, x.grad_fn is None, x.requires_grad

    check(program, torch.ones(3), torch.ones(3, requires_grad=True), breaks="unsupported-attribute")


def test_a_history_that_a_write_has_lost_raises() -> None:
    def program(x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = x.view(3, 1)
        x.mul_(2)
        try:
            return y.grad_fn
        except RuntimeError:
            return x.sum()

    x = torch.ones(3, requires_grad=True)
    assert torch.equal(pycompiler.compile(program, backend="eager")(x * 1), program(x * 1))


def test_what_a_node_is_breaks_the_graph() -> None:
    def name(x: torch.Tensor) -> Any:
        y = x * 2
        return y.grad_fn.name()  # type: ignore[union-attr]

    def held(x: torch.Tensor) -> Any:
        y = x * 2
        found = [y.grad_fn]
        return found[0].name(), y  # type: ignore[union-attr]

    x = torch.ones(3, requires_grad=True)
    for program in (name, held):
        check(program, x, breaks=("unsupported-attribute", "builtin-call"))


def test_the_version_of_an_existing_tensor_breaks_the_graph() -> None:
    check(lambda x: (x._version, x + 1), torch.ones(3), breaks="unsupported-attribute")
    check(lambda x: (x.view(3, 1)._version, x + 1), torch.ones(3), breaks="unsupported-attribute")
