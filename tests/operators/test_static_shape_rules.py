"""Shape rules for constant sizes: their results match the real kernels."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch._ops import OpOverload

import pycompiler
from pycompiler.operators import static_shape_rules
from pycompiler.symbolic.symbols import Symbols
from pycompiler.torch_compat.fake_mode import fake_like, fake_of, new_fake_mode

aten = torch.ops.aten
F32, F64, I64, I8, B, BF = torch.float32, torch.float64, torch.int64, torch.int8, torch.bool, torch.bfloat16


def tensor(draw: random.Random, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    order = draw.sample(range(len(shape)), len(shape)) if draw.random() < 0.5 else list(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for d in reversed(order):
        strides[d], step = step, step * max(1, shape[d])
    return torch.empty_strided(shape, strides, dtype=dtype).fill_(1)


def narrower(draw: random.Random, shape: list[int]) -> list[int]:
    return [1 if draw.random() < 0.3 else n for n in shape][
        draw.randrange(len(shape) + 1) if draw.random() < 0.3 else 0 :
    ]


TWO = [aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.eq.Tensor, aten.lt.Tensor, aten.pow.Tensor_Tensor,
       aten.maximum.default, aten.bitwise_and.Tensor, aten.logical_or.default, aten.atan2.default, aten.remainder.Tensor]  # fmt: skip
NUMBER = [
    aten.add.Tensor,
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.gt.Scalar,
    aten.pow.Tensor_Scalar,
    aten.sub.Tensor,
    aten.rsub.Scalar,
]
ONE = [aten.exp.default, aten.neg.default, aten.relu.default, aten.gelu.default, aten.sigmoid.default, aten.logical_not.default,
       aten.abs.default, aten.rsqrt.default, aten.isnan.default]  # fmt: skip


def said(op: Any, args: Any, **kwargs: Any) -> Any:
    """The fake mode's answer: shape, strides, type of each result, or the kind of the exception."""
    mode = new_fake_mode()
    fakes = [fake_of(mode, a) if isinstance(a, torch.Tensor) else a for a in args]
    with mode:
        try:
            return described(op(*fakes, **kwargs))
        except (RuntimeError, TypeError, IndexError) as error:
            return type(error)


def described(out: Any) -> Any:
    if isinstance(out, (list, tuple)):
        return [described(o) for o in out]
    return None if out is None else (tuple(out.shape), out.stride(), out.dtype)


def kernels(op: Any, args: Any, **kwargs: Any) -> Any:
    try:
        return described(op(*args, **kwargs))
    except (RuntimeError, TypeError, IndexError) as error:
        return type(error)


@pytest.mark.parametrize("op", [*TWO, *ONE, *NUMBER], ids=str)
def test_pointwise_results_are_the_kernels(op: OpOverload) -> None:
    draw, met = random.Random(str(op)), 0
    for _ in range(40):
        shape = [draw.choice([0, 1, 2, 3, 5]) for _ in range(draw.randrange(5))]
        one = draw.choice([F32, F32, F64, BF, I64, I8, B])
        args: list[Any] = [tensor(draw, one, shape)]
        if op in TWO:
            other = draw.choice([one, one, F32, I64, B])
            args.append(tensor(draw, other, narrower(draw, shape)))
        elif op in NUMBER:
            args.append(draw.choice([1, 2, 0.5, True]))
        real = kernels(op, args)
        types = {a.dtype for a in args if isinstance(a, torch.Tensor)}
        if isinstance(real, type) or (
            len(types) > 1 and not all(a.is_contiguous() for a in args if isinstance(a, torch.Tensor))
        ):
            continue
        met += 1
        assert said(op, args) == real, args
    assert met > 5


@pytest.mark.parametrize("op", [aten.sum.dim_IntList, aten.mean.dim, aten.amax.default], ids=str)
@pytest.mark.parametrize("dtype", [F32, BF, I64, B])
def test_folds_are_the_kernels(op: OpOverload, dtype: torch.dtype) -> None:
    x = torch.ones(4, 3, 5).to(dtype).transpose(0, 2)
    real = kernels(op, [x, [0, 2], True])
    if not isinstance(real, type):
        assert said(op, [x, [0, 2], True]) == real


older_says_less = pytest.mark.skipif(torch.__version__ < "2.15", reason="older torches say otherwise of fakes")

WRITES: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.relu_.default, ()), (aten.add_.Tensor, (torch.ones(3),)), (aten.add_.Tensor, (2,)), (aten.div_.Scalar, (2,)),
    (aten.copy_.default, (torch.ones(1, 3, dtype=F64),)), (aten.zero_.default, ()), (aten.fill_.Scalar, (2.0,)), (aten.exp_.default, ()),
]  # fmt: skip


@pytest.mark.parametrize(("op", "rest"), WRITES, ids=lambda v: str(v) if isinstance(v, OpOverload) else "")
def test_a_write_gives_its_argument(op: OpOverload, rest: tuple[Any, ...]) -> None:
    mode = new_fake_mode()
    x = fake_of(mode, torch.ones(2, 3))
    with mode:
        assert op(x, *(fake_of(mode, r) if isinstance(r, torch.Tensor) else r for r in rest)) is x
    assert static_shape_rules.writes_itself(op, (x, *rest), {})


@pytest.mark.parametrize(
    ("x", "op", "rest"),
    [
        pytest.param(torch.ones(2, 3, dtype=I64), aten.div_.Scalar, (2,), marks=older_says_less),
        (torch.ones(2, 3, dtype=I64), aten.exp_.default, ()),
        (torch.ones(3), aten.add_.Tensor, (torch.ones(2, 3),)),
        (torch.ones(3), aten.add_.Tensor, (torch.ones(4),)),
        (torch.ones(3, dtype=I64), aten.add_.Tensor, (1.5,)),
    ],
)
def test_a_write_that_does_not_fit_raises(x: torch.Tensor, op: OpOverload, rest: tuple[Any, ...]) -> None:
    assert not static_shape_rules.writes_itself(op, (x, *rest), {})
    assert said(op, [x, *rest]) is kernels(op, [x, *rest]) is RuntimeError


def test_a_write_into_elements_that_share_memory_is_torchs() -> None:
    assert not static_shape_rules.writes_itself(aten.relu_.default, (torch.ones(3, 1).expand(3, 4),), {})


X = torch.ones(2, 1, 4).transpose(0, 2)


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        (aten.full.default, ([2, 3], 1), {}), (aten.full.default, ([2, 3], 1.5), {}), (aten.full.default, ([2], True), {}),
        (aten.full.default, ([2, 3], 1), {"dtype": F64}), (aten.zeros.default, ([0, 3],), {}), (aten.empty.memory_format, ([2],), {"dtype": I8}),
        (aten.arange.start_step, (0, 10, 3), {}), (aten.arange.start_step, (1, 1, 3), {}), (aten.arange.start_step, (0, 9, 3), {"dtype": F32}),
        (aten.arange.start_step, (0, 1.5, 1), {}), (aten.scalar_tensor.default, (2,), {}), (aten.scalar_tensor.default, (2,), {"dtype": I64}),
        (aten.empty_strided.default, ([2, 3], [1, 2]), {}), (aten.zeros_like.default, (X,), {}), (aten.full_like.default, (X, 3), {"dtype": I64}),
        (aten.new_zeros.default, (X, [2, 2]), {}), (aten.new_full.default, (X, [2, 2], 3), {"dtype": B}),
        (aten.ones_like.default, (torch.ones(3, 1).expand(3, 4),), {}), (aten.empty_like.default, (X,), {}),
        (aten.view.default, (X, [4, -1]), {}), (aten.view.default, (torch.ones(0, 3), [3, 0]), {}), (aten.view.default, (X, [3, 3]), {}),
        (aten.view.default, (torch.ones(0, 3), [0, -1]), {}), (aten.view.default, (torch.ones(6), [-2, -3]), {}),
        (aten.split.Tensor, (X, 3), {}), (aten.split.Tensor, (X, 3, 2), {}), pytest.param(aten.split.Tensor, (X, 0), {}, marks=older_says_less), (aten.split.Tensor, (X, 2, 5), {}),
        (aten.split_with_sizes.default, (X, [1, 3]), {}), (aten.split_with_sizes.default, (X, [1, 2]), {}),
        (aten.mm.default, (torch.ones(2, 3), torch.ones(2, 4)), {}),
        (aten.mm.default, (torch.ones(2, 3, dtype=BF), torch.ones(3, 4, dtype=BF)), {}),
        (aten._to_copy.default, (X,), {"dtype": I64}), (aten.cat.default, ([torch.ones(2), torch.ones(2, dtype=I64)],), {}),
        (aten.convolution.default, (torch.ones(1, 1, 4, 4), torch.ones(2, 1, 1, 1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), {}),
        (aten.convolution.default, (torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last), torch.ones(2, 3, 3, 3), None,
                                    [1, 1], [0, 0], [1, 1], False, [0, 0], 1), {}),
        (aten.convolution_backward.default, (torch.ones(2, 4, 4, 4), torch.ones(2, 3, 4, 4), torch.ones(4, 3, 1, 1), [4],
                                             [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, True]), {}),
        (aten.convolution_backward.default, (torch.ones(2, 4, 4), torch.ones(2, 4, 5), torch.ones(4, 2, 2), [4],
                                             [1], [0], [1], False, [0], 2, [True, True, True]), {}),
    ],
)  # fmt: skip
def test_others_are_the_kernels(op: Any, args: Any, kwargs: Any) -> None:
    mode = new_fake_mode()
    fakes = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: fake_of(mode, t), args)
    real = kernels(op, args, **kwargs)
    with mode:
        assert kernels(op, fakes, **kwargs) == real


def test_the_default_dtype_counts() -> None:
    x = torch.ones(2, dtype=I64)
    assert said(aten.div.Tensor, [x, 2])[2] is F32
    torch.set_default_dtype(F64)
    try:
        assert said(aten.div.Tensor, [x, 2])[2] is said(aten.full.default, [[2], 0.5])[2] is F64
    finally:
        torch.set_default_dtype(F32)


def test_random_numbers_are_not_drawn() -> None:
    mode = new_fake_mode()
    x = fake_of(mode, torch.ones(3))
    before = torch.get_rng_state()
    with mode:
        aten.bernoulli_.float(x, 0.5), aten.bernoulli.p(x, 0.5)
    assert torch.equal(torch.get_rng_state(), before)


def test_writes_of_symbolic_sizes() -> None:
    symbols, mode = Symbols(), new_fake_mode(symbolic=True)
    n, m = symbols.new(5), symbols.new(6)

    def fake(*shape: Any, dtype: torch.dtype = F32) -> torch.Tensor:
        strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
        return fake_like(mode, shape, strides, 0, dtype, torch.device("cpu"))

    x = fake(n, m)
    assert static_shape_rules.writes_alike(aten.add_.Tensor, (x, fake(n, m)), {"alpha": 2})
    assert static_shape_rules.writes_alike(aten.relu_.default, (x,), {})
    assert not static_shape_rules.writes_alike(aten.add_.Tensor, (x, fake(n, 1)), {})  # left to torch's shape function
    assert not static_shape_rules.writes_alike(aten.add_.Tensor, (x, fake(m, n)), {})
    assert not static_shape_rules.writes_alike(aten.add_.Tensor, (x, n), {})
    assert not static_shape_rules.writes_alike(aten.add_.Tensor, (fake(n, dtype=I64), fake(n)), {})  # kernel refuses
    assert not static_shape_rules.writes_alike(aten.add.Tensor, (x, x), {})
    assert not symbols.relations


def test_numbers_alone_into_a_tensor() -> None:
    """No operand is a tensor: the sum has the kind of the numbers and is then converted."""

    def program(a: int, b: int, out: torch.Tensor) -> torch.Tensor:
        return torch.add(a, b, out=out)

    for out in (torch.tensor(0.0), torch.tensor(0)):
        mine, theirs = out.clone(), out.clone()
        got = pycompiler.compile(program, backend="eager", fullgraph=True)(2, 3, mine)
        assert got is mine and torch.equal(got, program(2, 3, theirs))
