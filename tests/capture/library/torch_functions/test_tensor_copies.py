"""`copy.deepcopy` and `copy.copy` of tensors, alone, in containers and in modules."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(3, 3)
        self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("scale", torch.full((3,), 2.0))
        self.tied = self.inner.weight

    def forward(self, x: Any) -> Any:
        return self.inner(x) * self.scale + self.frozen


def deep(x: Any) -> Any:
    c = copy.deepcopy(x)
    c += 1
    return c, x, c is x


def deep_of_intermediates(x: Any) -> Any:
    y = x * 2
    c = copy.deepcopy([y, y, {"z": x + 1}])
    c[0].add_(1)
    return y, c, c[0] is c[1], c[0] is y


def deep_of_layouts(x: Any) -> Any:
    t = torch.arange(6.0).view(2, 3).t()
    c = copy.deepcopy(t)
    return c, c.stride(), copy.deepcopy(torch.arange(3)), copy.deepcopy(torch.tensor(True)), x + 1


def shallow(x: Any) -> Any:
    c = copy.copy(x)
    c.add_(1)
    y = x * 2
    d = copy.copy(y)
    d.mul_(3)
    return c, c is x, y, d, d is y, c.data_ptr() == x.data_ptr() if not torch.compiler.is_compiling() else True


def shallow_in_a_list(x: Any) -> Any:
    a = copy.copy([x, x])
    return a[0] is x, a, x + 1


def parameters(x: Any, module: Any) -> Any:
    p = copy.deepcopy(module.inner.weight)
    return p, type(p) is torch.nn.Parameter, p.requires_grad, p.is_leaf, (p * x).sum()


def modules(x: Any, module: Any) -> Any:
    other = copy.deepcopy(module)
    return other(x), other.inner is module.inner, other.tied is other.inner.weight, other.frozen.requires_grad


def trained(x: Any, module: Any) -> Any:
    other = copy.deepcopy(module)
    loss = other(x).sum()
    grads = torch.autograd.grad(loss, [other.inner.weight, other.inner.bias])
    return [g + 1 for g in grads], loss.detach()


def of_no_leaf(x: Any) -> Any:
    y = x.clone().requires_grad_() * 2
    try:
        return copy.deepcopy(y)
    except RuntimeError as e:
        return str(e), x + 1


def of_a_slice(x: Any) -> Any:
    return copy.deepcopy(x[::2]) + 1, copy.deepcopy(torch.ones(1).expand(3)).stride()


def of_views_together(x: Any) -> Any:
    y = x * 2
    a, b = copy.deepcopy([y[:2], y[:3]])
    a.add_(1)
    return b, y


def with_attributes(x: Any) -> Any:
    c = copy.deepcopy(NAMED)
    return c.title, c.title is NAMED.title, c + x


def leaf_with_a_gradient(x: Any) -> Any:
    c = copy.deepcopy(LEAF)
    return c.grad, c.requires_grad, c is LEAF, c.detach() + x


def with_a_memo_of_its_own(x: Any) -> Any:
    memo: dict[Any, Any] = {}
    c = copy.deepcopy(x, memo)
    return c, memo[id(x)] is c, copy.deepcopy(x, memo) is c


def as_pickles(x: Any) -> Any:
    return len(x.__reduce_ex__(2)), x + 1


def leaves(x: Any) -> Any:
    c, two = copy.deepcopy(WEIGHT), copy.deepcopy([WEIGHT, WEIGHT])
    (c * x).sum().backward()
    with torch.no_grad():
        WEIGHT.mul_(1)
        c.add_(1)
    return c, c.grad, c.is_leaf, c.requires_grad, two[0] is two[1], type(c) is torch.Tensor, WEIGHT.grad


def leaves_of_the_frame(x: Any) -> Any:
    w = x.clone().requires_grad_()
    v = copy.deepcopy(w)
    (g,) = torch.autograd.grad((v * v).sum(), v)
    with torch.no_grad():
        u = copy.deepcopy(v)
    return g, u, u.requires_grad, copy.deepcopy(w.detach())


WEIGHT = torch.arange(3.0, requires_grad=True)
NAMED = torch.ones(3)
NAMED.title = ["named"]  # type: ignore[attr-defined]
LEAF = torch.ones(3, requires_grad=True)
LEAF.grad = torch.full((3,), 5.0)

WHOLE = (deep, deep_of_intermediates, deep_of_layouts, shallow, shallow_in_a_list, parameters, modules, trained, with_a_memo_of_its_own,
         leaves, leaves_of_the_frame)  # fmt: skip
BROKEN = (of_no_leaf, of_a_slice, of_views_together, with_attributes, leaf_with_a_gradient, as_pickles)


def told(fn: Callable[..., Any], run: Callable[..., Any]) -> Any:
    """The result of a call, and its argument afterwards."""
    x = torch.arange(3.0)
    result = run(x, Scaled()) if fn in (parameters, modules, trained) else run(x)
    return result, x, x._version


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("fn", [*WHOLE, *BROKEN])
def test_copies_are_eagers(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=fn in WHOLE)
    for _ in range(2):
        assert_same(told(fn, compiled), told(fn, fn), exact=backend != "native")
    if fn in WHOLE:
        assert compiled.counters()["compiles"] == 1


def test_gradients_of_a_copied_parameter() -> None:
    for run in (parameters, pycompiler.compile(parameters, fullgraph=True)):
        module = Scaled()
        p, *_, loss = run(torch.arange(3.0), module)
        loss.backward()
        assert p.grad is not None and p.grad[0].tolist() == [0.0, 1.0, 2.0]
        assert module.inner.weight.grad is None


def test_attributes_and_gradients_are_guarded() -> None:
    compiled = pycompiler.compile(lambda x: copy.deepcopy(x))
    x = torch.ones(2)
    compiled(x)
    x.title = [1]  # type: ignore[attr-defined]
    c = compiled(x)
    assert c.title == [1] and c.title is not x.title
    y = torch.ones(2)
    y.grad = torch.zeros(2)
    assert compiled(y).grad is not None and compiled(y).grad is not y.grad
    leaf = torch.ones(2, requires_grad=True)
    assert compiled(leaf).is_leaf and compiled(leaf) is not compiled(leaf)
    (compiled(leaf) * 2).sum().backward()
    assert leaf.grad is None


def test_an_attribute_that_the_frame_has_stored_is_copied() -> None:
    def fn(x: Any) -> Any:
        y = x + 1
        y.title = [1]
        return y, copy.deepcopy(y)

    y, copied = pycompiler.compile(fn)(torch.ones(2))
    assert copied.title == [1] and copied.title is not y.title and torch.equal(copied, y)


def test_two_that_may_be_in_one_memory_break() -> None:
    def fn(x: Any, y: Any) -> Any:
        a, b = copy.deepcopy((x, y))
        a.add_(1)
        return b

    compiled = pycompiler.compile(fn)
    x = torch.zeros(4)
    for args in ((torch.zeros(4), torch.zeros(4)), (x, x.view(2, 2)), (x, x)):
        assert compiled(*args).tolist() == fn(*args).tolist()
    assert pycompiler.explain(fn)(torch.zeros(4), torch.zeros(4)).graph_break_count > 0
