"""Predicted strides of pointwise results, compared with ATen's kernels: all layouts, dimensions of size one and zero."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload

from pycompiler.operators.operator_facts import operators_with
from pycompiler.operators.tensor_iterator import (
    fresh_strides,
    is_iterated,
    operands,
    with_kernel_strides,
)

aten = torch.ops.aten
RULED = {*operators_with("strides")}


def layout(draw: random.Random, shape: list[int]) -> Tensor:
    """A random layout: permuted, with gaps, with any stride for a dimension of size one, sometimes overlapping."""
    if draw.random() < 0.3:
        return torch.empty_strided(shape, [draw.choice([0, 1, 2, 3, 7, 28]) for _ in shape])
    order, step, strides = list(range(len(shape))), 1, [0] * len(shape)
    if draw.random() < 0.6:
        draw.shuffle(order)
    for d in reversed(order):
        strides[d] = draw.choice([1, 3, 7, step]) if shape[d] == 1 else step
        step *= max(1, shape[d]) * draw.choice([1, 1, 1, 1, 2])
    return torch.empty_strided(shape, strides)


def narrower(draw: random.Random, shape: list[int]) -> list[int]:
    """A shape that broadcasts to `shape`."""
    kept = [1 if draw.random() < 0.2 else n for n in shape]
    return kept[draw.randrange(len(shape) + 1) :] if draw.random() < 0.2 else kept


# Number arguments of the operators, by parameter name.
NUMBERS = {"other": 2, "min": 0, "max": 1, "min_val": 0, "max_val": 1, "exponent": 3, "value": 0, "threshold": 0,
           "weight": 0.5, "alpha": 1, "scale": 1, "input_scale": 1, "is_result": False, "self_is_result": False, "beta": 1, "negative_slope": 0.1}  # fmt: skip


def arguments(op: OpOverload, tensors: list[Tensor]) -> list[Any]:
    """Arguments of an operator: the tensors, and numbers where the schema has no default."""
    integers = op._schema.name.split("::")[1].startswith(("bitwise", "gcd", "lcm"))
    given: list[Any] = []
    for argument in op._schema.arguments:
        if str(argument.type) == "Tensor":
            t = tensors.pop(0)
            dtype = torch.bool if argument.name == "condition" else torch.int64 if integers else t.dtype
            made = torch.empty_strided(t.shape, t.stride(), dtype=dtype)
            given.append(made.fill_(1) if integers else made)  # lcm of uninitialised integers may end the process
        elif argument.name in NUMBERS and not argument.kwarg_only:
            given.append(NUMBERS[argument.name])
        elif argument.has_default_value() or argument.kwarg_only:
            break
        else:
            raise AssertionError(f"no argument for {argument.name}")
    return given


@pytest.mark.parametrize("op", sorted((op for op in RULED if is_iterated(op)), key=str), ids=str)
def test_strides_are_the_kernels(op: OpOverload) -> None:
    draw = random.Random(str(op))
    for _ in range(60):
        shape = [draw.choice([0, 1, 1, 2, 3, 7]) for _ in range(draw.randrange(5))]
        other = list if op is aten.gelu_backward.default else lambda n: narrower(draw, n)  # oneDNN takes equal shapes
        x, y, z = layout(draw, shape), *(layout(draw, other(shape)) for _ in range(2))
        args = arguments(op, [x, y, z])
        real = op(*args)
        assert fresh_strides(operands(op, args)) == real.stride(), operands(op, args)
        meta = torch.empty(real.shape, dtype=real.dtype, device="meta")
        if real.dim() and (real.numel() == 0 or 1 in real.shape):
            assert with_kernel_strides(op, args, meta).stride() == real.stride()


def ambiguous(draw: random.Random) -> list[int]:
    return [draw.choice([0, 1, 1, 2, 3]) for _ in range(draw.randrange(1, 5))]


@pytest.mark.parametrize("op", sorted((op for op in RULED if not is_iterated(op)), key=str), ids=str)
def test_strides_of_copies_and_contiguous_results(op: OpOverload) -> None:
    draw = random.Random(str(op))
    for _ in range(60):
        x = layout(draw, ambiguous(draw)) + 0 if draw.random() < 0.3 else layout(draw, ambiguous(draw))
        args: list[Any] = {"masked_fill": [x, x > 0, 1.0], "pow": [2.0, x], "mvlgamma": [x.abs() + 9, 2]}.get(
            op.overloadpacket.__name__, [x]
        )
        if op is aten.masked_fill.Tensor:
            args[2] = torch.tensor(1.0)
        real = op(*args)
        if real.numel() == 0 or 1 in real.shape:
            assert with_kernel_strides(op, args, real.to("meta")).stride() == real.stride(), (x.shape, x.stride())


@pytest.mark.parametrize(
    "op", [aten.add.Tensor, aten.mul.Tensor, aten.ge.Tensor, aten.maximum.default, aten.where.self], ids=str
)
def test_operands_of_another_dtype_are_copied_first(op: OpOverload) -> None:
    draw = random.Random(str(op))
    for _ in range(200):
        shape = ambiguous(draw)
        x, y = layout(draw, shape), layout(draw, narrower(draw, shape)).double()
        args = [x > 0, x, y] if op is aten.where.self else [x, y]
        real = op(*args)
        if real.numel() == 0 or 1 in real.shape:
            assert with_kernel_strides(op, args, real.to("meta")).stride() == real.stride(), [
                (t.shape, t.stride()) for t in args
            ]


def test_what_is_not_known_keeps_what_the_meta_kernel_says() -> None:
    x = torch.empty_strided((1, 7), (1, 1))
    meta = torch.empty(1, 7, device="meta")
    assert with_kernel_strides(aten.isinf.default, (x,), meta) is meta
