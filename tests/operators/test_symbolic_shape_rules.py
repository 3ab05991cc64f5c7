"""Symbolic shape rules: at other sizes each rule matches torch and the real kernels, and it assumes no more than it needs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from pycompiler.operators import ctc_loss, tensor_iterator, value_checks
from pycompiler.operators.operator_facts import operators_with
from pycompiler.operators.symbolic_shape_rules import layouts_of
from pycompiler.symbolic.symbols import Symbols, expr_of
from pycompiler.torch_compat.fake_mode import fake_of, new_fake_mode

aten = torch.ops.aten
NAMES = ("a", "b", "c", "h", "w")


class T:
    """A tensor: its dimensions (symbol names, numbers, or sums as a string) and the order in which they lie in memory."""

    def __init__(self, *shape: int | str, order: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> None:
        self.shape, self.order, self.dtype = shape, order or tuple(range(len(shape))), dtype

    def sizes(self, env: Mapping[str, Any]) -> list[Any]:
        return [eval(n, {}, dict(env)) if isinstance(n, str) else n for n in self.shape]

    def layout(self, env: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
        sizes, strides, step = self.sizes(env), [0] * len(self.shape), 1
        for d in reversed(self.order):
            strides[d], step = step, step * sizes[d]
        return sizes, strides

    def real(self, env: Mapping[str, int]) -> torch.Tensor:
        sizes, strides = self.layout(env)
        made = torch.zeros(sizes, dtype=self.dtype)
        if self.dtype.is_floating_point:
            made += torch.arange(made.numel(), dtype=self.dtype).reshape(made.shape) % 7
        return torch.empty_strided(sizes, strides, dtype=self.dtype).copy_(made)


I = torch.int64
CASES: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (value_checks.within, (T("a", "b", order=(1, 0), dtype=I), "unit input"), {}),
    (aten.mm.default, (T("a", 3), T(3, "b")), {}),
    (aten.mm.default, (T("a", "c"), T("c", "b", order=(1, 0))), {}),
    (aten.bmm.default, (T("a", "b", 4), T("a", 4, "c")), {}),
    (aten.addmm.default, (T(4), T("a", 3), T(3, 4)), {}),
    (aten.addmm.default, (T("a", 1), T("a", "b"), T("b", 4)), {"beta": 2}),
    (aten.baddbmm.default, (T("a", 1, "c"), T("a", "b", 4), T("a", 4, "c")), {}),
    (aten.embedding.default, (T(7, "c"), T("a", "b", dtype=I)), {}),
    (aten.sum.dim_IntList, (T("a", "b", "c"), [0, -1]), {}),
    (aten.sum.dim_IntList, (T("a", "b", "c", order=(2, 0, 1)), [1], True), {}),
    (aten.sum.dim_IntList, (T("a", "b", dtype=torch.bool), None), {}),
    (aten.mean.dim, (T("a", 3, "b", order=(0, 2, 1)), [1], True), {"dtype": torch.float64}),
    (aten.sum.default, (T("a", "b"),), {}),
    (aten.mean.default, (T("a", "b"),), {}),
    (aten.amax.default, (T("a", "b", "c", order=(2, 1, 0)), [1]), {}),
    (aten.amin.default, (T("a", "b"), [0], True), {}),
    (aten.var_mean.correction, (T("a", "b", 5), [2]), {"correction": 0, "keepdim": True}),
    (aten.var.correction, (T("a", "b", order=(1, 0)), [0]), {"correction": 1}),
    (aten._softmax.default, (T("a", "b", "c"), -1, False), {}),
    (aten._softmax.default, (T("a", "b", "c", order=(0, 2, 1)), 1, False), {}),
    (aten._log_softmax.default, (T("a", 5), 1, False), {}),
    (aten._softmax_backward_data.default, (T("a", "b"), T("a", "b"), 1, torch.float32), {}),
    (aten._log_softmax_backward_data.default, (T("a", "b"), T("a", "b"), 1, torch.float32), {}),
    (aten.native_layer_norm.default, (T("a", "b", 6), [6], T(6), T(6), 1e-5), {}),
    (aten.native_layer_norm.default, (T("a", "b", 6, order=(1, 0, 2)), [6], None, None, 1e-5), {}),
    (aten.native_layer_norm.default, (T("a", 4, 6), [4, 6], T(4, 6), None, 1e-5), {}),
    (aten.native_batch_norm.default, (T("a", 3, "h", "w"), T(3), T(3), T(3), T(3), True, 0.1, 1e-5), {}),
    (aten.native_batch_norm.default, (T("a", 3, "h"), T(3), T(3), T(3), T(3), False, 0.1, 1e-5), {}),
    (aten._native_batch_norm_legit.default, (T("a", 3, "h"), T(3), T(3), T(3), T(3), True, 0.1, 1e-5), {}),
    (aten._native_batch_norm_legit_functional.default,
     (T("a", 3, "h"), T(3), T(3), T(3), T(3), True, 0.1, 1e-5), {}),
    (aten._native_batch_norm_legit_no_training.default, (T("a", 3, "h"), T(3), T(3), T(3), T(3), 0.1, 1e-5), {}),
    (aten.convolution.default,
     (T("a", 4, "h", "w"), T(6, 2, 3, 3), T(6), [2, 1], [1, 1], [1, 1], False, [0, 0], 2), {}),
    (aten.convolution.default, (T("a", 4, "h"), T(5, 4, 2), None, [2], [0], [2], False, [0], 1), {}),
    (aten.convolution.default,
     (T("a", 4, "h", "w"), T(4, 3, 3, 2), T(6), [2, 1], [1, 0], [1, 2], True, [1, 0], 2), {}),
    (aten.convolution.default, (T("a", 4, "h"), T(4, 5, 2), None, [3], [0], [1], True, [2], 1), {}),
    (aten.convolution_backward.default,
     (T("a", 6, "h", "w"), T("a", 4, "h", "w"), T(6, 2, 3, 3), [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 2,
      [True, True, True]), {}),
    (aten.convolution_backward.default,
     (T("a", 6, "h", "w", order=(0, 2, 3, 1)), T("a", 4, "h", "w"), T(6, 4, 1, 1), None, [1, 1], [0, 0], [1, 1], False,
      [0, 0], 1, [True, False, True]), {}),
    (aten.convolution_backward.default,
     (T("a", 5, "h-2"), T("a", 4, "h"), T(5, 4, 2), None, [1], [0], [2], False, [0], 1, [False, True, False]), {}),
    (aten.convolution_backward.default,
     (T("a", 3, "2*h+1"), T("a", 4, "h"), T(4, 3, 3), None, [2], [0], [1], True, [0], 1, [True, True, False]), {}),
    (aten.max_pool2d_with_indices.default, (T("a", 3, "h", "w"), [2, 2]), {}),
    (aten.max_pool2d_with_indices.default, (T(3, "h", "w"), [3, 2], [2, 1], [1, 0], [1, 2]), {}),
    (aten.avg_pool2d.default, (T("a", 3, "h", "w"), [3, 3], [2, 2], [1, 1]), {}),
    (aten.cat.default, ([T("a", "b"), T("c", "b")], 0), {}),
    (aten.cat.default, ([T("a", 2, "b"), T("a", 3, "b")], -2), {}),
    (aten.cat.default, ([T("a", "b", 3, order=(0, 2, 1)), T("a", "c", 3, order=(2, 1, 0))], 1), {}),
    (aten.cat.default, ([T("a", "b", order=(1, 0)), T("a", "b", order=(1, 0))], 1), {}),
    (aten.clone.default, (T("a", "b", "c", order=(1, 2, 0)),), {}),
    (aten._to_copy.default, (T("a", "b"),), {"dtype": torch.float64}),
    (aten._to_copy.default, (T("a", "b", order=(1, 0)),), {"dtype": I, "memory_format": torch.contiguous_format}),
    (aten.bernoulli.p, (T("a", "b"), 0.5), {}),
    (aten.gather.default, (T("a", 5, order=(1, 0)), 1, T("a", "b", dtype=I)), {}),
    (aten.scatter.value, (T("a", 5, order=(1, 0)), 1, T("a", 1, dtype=I), 2.0), {}),
    (torch.ops.pycompiler.pick.default, (T("a", 5, order=(1, 0)), 1, T("a", 1, dtype=I)), {}),
    (ctc_loss.ctc_losses, (T("a", "b", 5), T("b", 3, dtype=I), T("b", dtype=I), T("b", dtype=I), 0, False), {}),
    (
        ctc_loss.ctc_losses_backward,
        (T("b"), T("a", "b", 5, order=(1, 0, 2)), T("b", 3, dtype=I), T("b", dtype=I), T("b", dtype=I), 0, False), {},
    ),
    (aten.nll_loss_forward.default, (T("a", 5, order=(1, 0)), T("a", dtype=I), None, 1, -100), {}),
    (aten.nll_loss_forward.default, (T("a", 5), T("a", dtype=I), None, 0, -100), {}),
    (aten.nll_loss_backward.default, (T(), T("a", 5, order=(1, 0)), T("a", dtype=I), None, 1, -100, T()), {}),
    (aten.nll_loss_backward.default, (T("a"), T("a", 5), T("a", dtype=I), None, 0, -100, T()), {}),
    (aten.embedding_dense_backward.default, (T("a", "b", 3, order=(1, 0, 2)), T("a", "b", dtype=I), 7, -1, False), {}),
    (aten.max_pool2d_with_indices_backward.default,
     (T("a", 3, "h", "w"), T("a", 3, "2*h", "2*w"), [2, 2], [2, 2], [0, 0], [1, 1], False,
      T("a", 3, "h", "w", dtype=I)), {}),
    (aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
     (*[T("a", 2, "b", 4)] * 5, T("a", 2, "b", order=(0, 2, 1)), 0.0, True), {}),
    (aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
     (*[T("a", 2, "b", 4, order=(0, 2, 1, 3))] * 5, T("a", 2, "b", order=(0, 2, 1)), 0.0, True), {}),
    (aten.clone.default, (T("a", "b", order=(1, 0)),), {"memory_format": torch.contiguous_format}),
    (aten._scaled_dot_product_flash_attention_for_cpu.default,
     (T("a", 2, "b", 4), T("a", 2, "c", 4), T("a", 2, "c", 4)), {}),
    (aten._scaled_dot_product_flash_attention_for_cpu.default,
     (*[T("a", 2, "b", 4, order=(0, 2, 1, 3))] * 3, 0.0, True), {}),
    (aten.add.Tensor, (T("a", "b"), T("b")), {"alpha": 2}),
    (aten.add.Tensor, (T("a", 1, "c"), T("b", 1)), {}),
    (aten.mul.Tensor, (T("a", "b", order=(1, 0)), T("a", "b", order=(1, 0))), {}),
    (aten.mul.Tensor, (T("a", "b", order=(1, 0)), T("a", "b")), {}),
    (aten.sub.Tensor, (T("a", "b", 3, order=(2, 0, 1)), T("b", 3)), {}),
    (aten.add.Tensor, (T("a+1", "b"), T("a+1", "b")), {}),
    (aten.div.Tensor, (T("a", "b", dtype=I), T("b", dtype=I)), {}),
    (aten.where.self, (T("a", "b", dtype=torch.bool), T("b"), T()), {}),
    (aten.gelu.default, (T("a", "b", 4),), {"approximate": "tanh"}),
    (aten.exp.default, (T("a", "b", "c", order=(1, 0, 2)),), {}),
    (aten.relu.default, (T("a", 3, "h", "w", order=(0, 2, 3, 1)),), {}),
    (aten.gt.Scalar, (T("a", "b"), 0), {}),
]  # fmt: skip


def mapped(value: Any, fn: Callable[[T], Any]) -> Any:
    return pytree.tree_map(lambda v: fn(v) if isinstance(v, T) else v, value)


@pytest.mark.parametrize(("op", "args", "kwargs"), CASES, ids=lambda v: str(v) if hasattr(v, "overloadpacket") else "")
def test_same_as_torch_at_other_sizes(op: Any, args: Any, kwargs: Any) -> None:
    rng, symbols, mode = random.Random(str(op)), Symbols(), new_fake_mode(symbolic=True)
    first = {n: v for n, v in zip(NAMES, (3, 5, 6, 9, 8), strict=True)}
    env: dict[str, Any] = {n: symbols.new(v, name=n) for n, v in first.items()}
    found = layouts_of(op, mapped(args, lambda t: fake_of(mode, t.real(first), t.layout(env))), kwargs)
    assert found is not None
    relations = [*symbols.relations, *symbols.declared()]
    met = 0
    for sizes in (first, *({n: rng.randint(2, 12) for n in NAMES} for _ in range(12))):
        if not all(r.holds(sizes) for r in relations):
            continue
        met += 1
        said = [
            (tuple(expr_of(n).eval(sizes) for n in shape), tuple(expr_of(s).eval(sizes) for s in strides))
            for shape, strides in found
        ]
        out = op(*mapped(args, lambda t, at=sizes: t.real(at)), **kwargs)
        results = [out] if isinstance(out, torch.Tensor) else [t for t in out if t is not None]
        assert said == [(tuple(t.shape), t.stride()) for t in results], sizes
    assert met > 3, relations


def test_every_rule_has_a_case() -> None:
    assert {op for op, _, _ in CASES} >= {*operators_with("layouts")}
    assert any(tensor_iterator.is_iterated(op) for op, _, _ in CASES)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.mm.default, (T("a", 3), T(4, "b"))),
        (aten.add.Tensor, (T("a", 3), T("b", 4))),
        (aten.convolution.default, (T("a", 4, 2), T(5, 4, 3), None, [1], [0], [1], False, [0], 1)),
        (aten.convolution.default, (T("a", 4, "h"), T(3, 5, 2), None, [3], [0], [1], True, [0], 1)),
        (aten.convolution.default, (T("a", 4, "h"), T(4, 5, 2), None, [1], [0], [1], True, [1], 1)),
        (aten.max_pool2d_with_indices.default, (T("a", 3, 2, "w"), [3, 3])),
        (aten.native_layer_norm.default, (T("a", 6), [5], None, None, 1e-5)),
        (aten.cat.default, ([T("a", 3), T("b", 4)], 0)),
    ],
)
def test_no_rule_for_what_raises(op: Any, args: Any) -> None:
    symbols, mode = Symbols(), new_fake_mode(symbolic=True)
    first = {n: 6 for n in NAMES}
    env: dict[str, Any] = {n: symbols.new(v, name=n) for n, v in first.items()}
    with pytest.raises((RuntimeError, AssertionError)):
        op(*mapped(args, lambda t: t.real(first)))
    assert layouts_of(op, mapped(args, lambda t: fake_of(mode, t.real(first), t.layout(env))), {}) is None


def test_a_window_that_does_not_fit_is_assumed_not_to_come() -> None:
    symbols, mode = Symbols(), new_fake_mode(symbolic=True)
    h = symbols.new(8, name="h")
    x, weight = torch.zeros(2, 3, 8), torch.zeros(4, 3, 5)
    args = (fake_of(mode, x, ([2, 3, h], [3 * h, h, 1])), fake_of(mode, weight), None, [1], [0], [1], False, [0], 1)
    assert layouts_of(aten.convolution.default, args, {}) is not None
    assert [str(r) for r in symbols.relations] == ["h >= 5"]
