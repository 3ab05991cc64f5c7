"""Outputs without a gradient: the gradients of the others are computed as if these outputs did not exist."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ad_helpers import Compiled, clones

import pycompiler


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_an_input_of_unused_outputs_gets_none(backend: str) -> None:
    fn = pycompiler.compile(lambda x, w: (x * 2, w * 3), backend=backend)
    x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    fn(x, w)[0].sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))
    assert w.grad is None
    fn(x, w)[1].sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))
    torch.testing.assert_close(w.grad, torch.full((3,), 3.0))
    a, b = fn(x, w)
    (a + b).sum().backward()
    torch.testing.assert_close(w.grad, torch.full((3,), 6.0))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_zeros_times_infinity_do_not_arise(backend: str) -> None:
    fn = pycompiler.compile(lambda x: (x * 2, x.sqrt()), backend=backend)
    x = torch.zeros(3, requires_grad=True)
    fn(x)[0].sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))


def _programs() -> list[Any]:
    return [
        lambda x, w: ((x @ w).relu(), (x @ w).sum(0), w.exp()),
        lambda x, w: (torch.cat([x, w])[:3], torch.stack([x, w]).sin(), x.t() * 2),
        lambda x, w: (x.var(0), (x * w).softmax(1), x[1:].t() + w[:, 1:]),
        lambda x, w: torch.nn.functional.layer_norm(x, (4,), w[0], w[1]).split(2) + (x.max(0).values,),
    ]


@pytest.mark.parametrize("program", _programs())
def test_each_set_of_outputs(program: Any) -> None:
    torch.manual_seed(0)
    args = [torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)]
    compiled = Compiled(program, args)
    for chosen in ([0], [1], [2], [0, 2], [1, 2], [0, 1, 2]):
        theirs, ours = clones(args), clones(args)
        for run, inputs in ((program, theirs), (compiled.fn, ours)):
            outs = run(*inputs)
            sum((outs[k].cos().sum() for k in chosen), torch.zeros(())).backward()
        for a, b in zip(ours, theirs, strict=True):
            assert (a.grad is None) == (b.grad is None), chosen
            if b.grad is not None:
                torch.testing.assert_close(a.grad, b.grad)


def test_only_what_is_asked_for_is_compiled() -> None:
    x = torch.randn(3, requires_grad=True)
    compiled = Compiled(lambda t: (t.exp(), t.sin() * 2), [x])
    compiled(x)[1].sum().backward()
    assert compiled.backward is not None
    names = {str(n.target) for n in compiled.backward.graph.nodes if n.op == "call_function"}
    assert "aten.exp.default" not in names
    assert "aten.cos.default" in names


def test_gradients_that_are_zero_have_memory() -> None:
    """sgn's gradient is a zero tensor without memory: a native kernel that reads it is a segmentation fault."""
    for backend in ("aot_eager", "native"):
        x = torch.randn(3, requires_grad=True)
        pycompiler.compile(lambda x: (x - 1).sgn() * (x - 1).sgn(), backend=backend)(x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_gradient_that_is_zero_is_no_missing_one(backend: str) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        return x.round() + w, torch.nn.functional.pad(x, (1, 1)), w * 2, torch.cat([x[1:1], w])

    compiled = pycompiler.compile(fn, backend=backend)
    for chosen in range(4):
        found = []
        for f in (compiled, fn):
            x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
            f(x, w)[chosen].sum().backward()
            found.append([x.grad, w.grad])
        for a, b in zip(*found, strict=True):
            assert (a is None) == (b is None), chosen
            if b is not None:
                torch.testing.assert_close(a, b)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_what_only_others_formulas_check_is_not_kept(backend: str) -> None:
    """The gradient of index_reduce has a gather that may raise. The gather belongs to this formula alone, not to all outputs."""

    def fn(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> Any:
        a = x.index_reduce(0, i, x.detach() * 2, "amax")
        b = w.var(0)
        pycompiler.graph_break()
        a += 3
        return b

    x, w = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)
    i = torch.tensor([0, 1, 1])
    (expected,) = torch.autograd.grad(fn(x * 1, w, i), w)
    (found,) = torch.autograd.grad(pycompiler.compile(fn, backend=backend)(x * 1, w, i), w)
    torch.testing.assert_close(found, expected)


class _GivesWhatItSaves(torch.autograd.Function):
    """Its gradient depends on no tangent: the backward graph returns a tensor that the forward saved."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.exp())
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.saved_tensors[0]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_saved_gradient_stands_behind_fewer_saved_tensors(backend: str) -> None:
    """Without the first tangent the backward takes only the last saved tensor."""

    def fn(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> Any:
        return w.sin() * y, _GivesWhatItSaves.apply(x)

    compiled = pycompiler.compile(fn, backend=backend)
    for chosen in range(2):
        found = []
        for f in (compiled, fn):
            x, w = torch.arange(1.0, 4.0, requires_grad=True), torch.arange(2.0, 5.0, requires_grad=True)
            f(x, w, torch.ones(3))[chosen].sum().backward()
            found.append([x.grad, w.grad])
        torch.testing.assert_close(*found)
