"""Products with unaligned rows are padded on a GPU.  The CPU computes such programs, too, so values are compared here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check, lowered, randn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import pycompiler
from pycompiler import config
from pycompiler.ir.interpret import interpret
from pycompiler.ir.loops import Extern, Loop, Program
from pycompiler.ir.verify import verify
from pycompiler.lowering import lower, matmul_padding
from pycompiler.lowering.matmul_padding import pays
from tests.harness.compare import assert_same

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
Sizes = tuple[tuple[int, ...], ...]


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule holds for the CPU, and for products of any size."""
    monkeypatch.setattr(matmul_padding, "DEVICES", frozenset({"cpu"}))
    monkeypatch.setattr(matmul_padding, "pays", lambda *_: True)
    monkeypatch.setattr(matmul_padding, "is_fast_dtype", lambda _: True)


def products(program: Program) -> list[list[tuple[int, ...]]]:
    """The shapes of each product's operands and result."""
    found = [n for n in program.nodes if isinstance(n, Extern) and "mm" in str(n.op)]
    return [[tuple(int(e.as_int()) for e in t.shape) for t in (*n.args, *n.out) if t is not None] for n in found]


def on_gpu(f: Callable[..., Any], *inputs: tuple[tuple[int, ...], torch.dtype]) -> Program:
    """The program of f for tensors on a GPU, which need not be present."""
    with FakeTensorMode():
        args = [torch.empty(shape, dtype=dtype, device="cuda") for shape, dtype in inputs]
        return lower(make_fx(f)(*args))


def copies(program: Program) -> int:
    """The loops that move a matrix: they only load and store, and more than the zeros of a strip."""
    return sum(isinstance(n, Loop) and [op.name for op in n.body] == ["load"] for n in program.nodes)


ROWS, DEPTH, COLUMNS = 33, 45, 51
CASES: dict[str, tuple[Callable[..., Any], Sizes]] = {
    "mm": (lambda x, y: x @ y, ((ROWS, DEPTH), (DEPTH, COLUMNS))),
    "left transposed": (lambda x, y: x.t() @ y, ((DEPTH, ROWS), (DEPTH, COLUMNS))),
    "right transposed": (lambda x, y: x @ y.t(), ((ROWS, DEPTH), (COLUMNS, DEPTH))),
    "both transposed": (lambda x, y: x.t() @ y.t(), ((DEPTH, ROWS), (COLUMNS, DEPTH))),
    "parts": (lambda x, y: x[1:, 2:-1] @ y[:, ::2], ((ROWS + 1, DEPTH + 3), (DEPTH, 2 * COLUMNS))),
    "broadcast": (lambda x, y: x.expand(ROWS, DEPTH) @ y, ((1, DEPTH), (DEPTH, COLUMNS))),
    "result in a loop": (lambda x, y: (x @ y).relu() * 2, ((ROWS, DEPTH), (DEPTH, COLUMNS))),
    "result folded": (lambda x, y: (x @ y).softmax(-1).sum(0), ((ROWS, DEPTH), (DEPTH, COLUMNS))),
    "result viewed": (lambda x, y: (x @ y).view(3, -1, COLUMNS)[:, 2:] + 1, ((ROWS, DEPTH), (DEPTH, COLUMNS))),
    "result flattened": (lambda x, y: (x @ y).view(-1)[5:].cos(), ((ROWS, DEPTH), (DEPTH, COLUMNS))),
    "result strided": (lambda x, y: (x @ y).as_strided((7, 9), (51, 2), 3) + 1, ((ROWS, DEPTH), (DEPTH, COLUMNS))),
    "result twice": (lambda x, y: ((p := x @ y), p.sin(), p.t()), ((ROWS, DEPTH), (DEPTH, COLUMNS))),
    "operand of a loop": (lambda x, y: (x.sin() * 2) @ y.exp(), ((ROWS, DEPTH), (DEPTH, COLUMNS))),
    "operand shared": (lambda x, y: ((s := x.sin()) @ y, s.t() @ s), ((ROWS, DEPTH), (DEPTH, COLUMNS))),
    "product of a product": (lambda x, y: (x @ y) @ (x @ y).t(), ((ROWS, DEPTH), (DEPTH, COLUMNS))),
    "addmm": (torch.addmm, ((COLUMNS,), (ROWS, DEPTH), (DEPTH, COLUMNS))),
    "addmm, a row": (torch.addmm, ((1, COLUMNS), (ROWS, DEPTH), (DEPTH, COLUMNS))),
    "addmm, a column": (torch.addmm, ((ROWS, 1), (ROWS, DEPTH), (DEPTH, COLUMNS))),
    "addmm, a matrix": (torch.addmm, ((ROWS, COLUMNS), (ROWS, DEPTH), (DEPTH, COLUMNS))),
    "addmm, scaled": (
        lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=3).relu(),
        ((COLUMNS,), (ROWS, DEPTH), (DEPTH, COLUMNS)),
    ),
    "bmm": (torch.bmm, ((3, ROWS, DEPTH), (3, DEPTH, COLUMNS))),
    "bmm, transposed": (lambda x, y: torch.bmm(x.mT, y.mT).tanh(), ((3, DEPTH, ROWS), (3, COLUMNS, DEPTH))),
    "bmm, one batch": (lambda x, y: torch.bmm(x.expand(3, -1, -1), y), ((ROWS, DEPTH), (3, DEPTH, COLUMNS))),
    "linear": (torch.nn.functional.linear, ((4, ROWS, DEPTH), (COLUMNS, DEPTH), (COLUMNS,))),
}


def inputs(sizes: Sizes, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(randn(*shape, dtype=dtype, seed=k) / 4 for k, shape in enumerate(sizes))


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("name", CASES)
def test_padded_products_have_eagers_values_and_strides(name: str, dtype: torch.dtype) -> None:
    f, sizes = CASES[name]
    multiple = 16 // dtype.itemsize
    tolerance = 1e-4 if dtype == F32 else 2e-2
    program = check(f, inputs(sizes, dtype), rtol=tolerance, atol=tolerance)
    assert products(program)
    for *operands, result in products(program):
        assert result[-1] % multiple == 0
        left, right = operands[-2:]
        assert left[-1] == right[-2] and (left[-2], right[-1]) == result[-2:]


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("name", CASES)
def test_padded_products_train(name: str) -> None:
    f, sizes = CASES[name]

    def step(call: Callable[..., Any]) -> list[Any]:
        args = [t.requires_grad_() for t in inputs(sizes, F32)]
        results = call(*args)
        results = results if isinstance(results, tuple) else (results,)
        gradients = torch.autograd.grad(sum((r * r).sum() for r in results), args)
        return [*(r.detach() for r in results), *gradients]

    compiled = pycompiler.compile(f, fullgraph=True)
    for ours, eagers in zip(step(compiled), step(f), strict=True):
        assert_same(ours, eagers, tolerance=1e-4, absolute=1e-4)
    results = compiled(*(t for t in inputs(sizes, F32)))
    for ours, eagers in zip(
        torch.utils._pytree.tree_leaves(results),
        torch.utils._pytree.tree_leaves(f(*inputs(sizes, F32))),
        strict=True,
    ):
        assert_same(ours, eagers, tolerance=1e-4, absolute=1e-4)


@pytest.mark.usefixtures("forced")
def test_results_that_share_memory_in_eager_share_it() -> None:
    x, y = inputs(((ROWS, DEPTH), (DEPTH, COLUMNS)), F32)
    whole, flat = pycompiler.compile(lambda x, y: ((p := x @ y), p.view(-1)), fullgraph=True)(x, y)
    flat.zero_()
    assert not whole.any() and whole.is_contiguous()


@pytest.mark.usefixtures("forced")
def test_padding_brings_no_nan() -> None:
    x, y = (torch.full(size, torch.inf) for size in ((ROWS, DEPTH), (DEPTH, COLUMNS)))
    assert pycompiler.compile(lambda x, y: x @ y, fullgraph=True)(x, y).isinf().all()


@pytest.mark.usefixtures("forced")
def test_a_padded_operand_is_padded_again_after_a_write() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = x @ y
        x.mul_(2)
        return first, x @ y

    x, y = inputs(((ROWS, DEPTH), (DEPTH, COLUMNS)), F32)
    own, other = x.clone(), x.clone()
    for ours, eagers in zip(pycompiler.compile(f, fullgraph=True)(own, y), f(other, y), strict=True):
        assert_same(ours, eagers, tolerance=1e-4, absolute=1e-4)
    assert torch.equal(own, other)


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("written", [True, False])
def test_a_graph_that_writes_an_operand_pads_it_again(written: bool) -> None:
    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = x @ y
        torch.ops.aten.copy_.default(x if written else z, z + 1)
        return first, x @ y

    args = inputs(((ROWS, DEPTH), (DEPTH, COLUMNS), (ROWS, DEPTH)), F32)
    program = lower(make_fx(f)(*args))
    verify(program)
    ours = [a.clone() for a in args]
    assert_same(interpret(program, ours), list(f(*args)), tolerance=1e-4, absolute=1e-4)
    assert_same(ours, list(args), history=False)
    first, second = ([t.buffer for t in n.args] for n in program.nodes if isinstance(n, Extern) and "mm" in str(n.op))
    assert [a == b for a, b in zip(first, second, strict=True)] == [not written, True]


@pytest.mark.usefixtures("forced")
def test_products_of_one_operand_share_its_padding() -> None:
    args = inputs(((64, 67), (67, 32), (64, 32)), F32)
    program = lowered(lambda g, w, x: (g @ w, g.t() @ x), args)
    assert products(program) == [[(64, 68), (68, 32), (64, 32)], [(68, 64), (64, 32), (68, 32)]]
    first, second = (n.args[0] for n in program.nodes if isinstance(n, Extern))
    assert first.buffer == second.buffer


@pytest.mark.usefixtures("forced")
def test_sizes_that_are_symbols_and_other_dtypes_stay() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    compiled = pycompiler.compile(f, fullgraph=True, dynamic=True)
    for rows in (33, 35):
        args = inputs(((rows, DEPTH), (DEPTH, COLUMNS)), F32)
        assert_same(compiled(*args), f(*args), tolerance=1e-4, absolute=1e-4)
    with config.patch(shape_padding=False):
        assert products(lowered(f, inputs(((ROWS, DEPTH), (DEPTH, COLUMNS)), BF16)))[0][2] == (ROWS, COLUMNS)


HEAD = (((4096, 768), BF16), ((50257, 768), BF16))


def test_a_head_with_odd_columns_is_padded_on_a_gpu() -> None:
    program = on_gpu(lambda x, w: (x @ w.permute(1, 0)).relu(), *HEAD)
    assert products(program) == [[(4096, 768), (768, 50264), (4096, 50264)]]
    assert copies(program) == 1  # the weight; the loop reads the result in place
    program = on_gpu(lambda x, w: x @ w.permute(1, 0), *HEAD)
    assert copies(program) == 2  # the caller gets a contiguous result
    with config.patch(shape_padding=False):
        assert products(on_gpu(lambda x, w: x @ w.permute(1, 0), *HEAD)) == [[(4096, 768), (768, 50257), (4096, 50257)]]


def test_the_gradient_of_a_head_is_written_padded() -> None:
    def backward(g: torch.Tensor, w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        g = g.exp()
        return g @ w, g.permute(1, 0) @ x

    program = on_gpu(backward, ((4096, 50257), BF16), ((50257, 768), BF16), ((4096, 768), BF16))
    assert products(program) == [
        [(4096, 50264), (50264, 768), (4096, 768)],
        [(50264, 4096), (4096, 768), (50264, 768)],
    ]
    assert copies(program) == 2  # the gradient, which is fused with `exp`, and the weight


@pytest.mark.parametrize(
    "sizes",
    [
        {"x": (4096, 768), "w": (50264, 768)},  # aligned
        {"x": (1, 768), "w": (50257, 768)},  # one token: memory limits it
        {"x": (64, 768), "w": (50257, 768)},  # a copy of the weight costs more
        {"x": (64, 63), "w": (65, 63)},  # small
    ],
)
def test_products_stay_where_padding_does_not_pay(sizes: dict[str, tuple[int, ...]]) -> None:
    x, w = sizes["x"], sizes["w"]
    program = on_gpu(lambda x, w: (x @ w.permute(1, 0)).relu(), (x, BF16), (w, BF16))
    assert [p for p in products(program) if p[-1][-1] != w[0]] == []


def test_float32_is_padded_where_tensor_cores_multiply_it() -> None:
    head = ((4096, 768), F32), ((50257, 768), F32)
    assert products(on_gpu(lambda x, w: (x @ w.permute(1, 0)).relu(), *head))[0][-1] == (4096, 50257)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert products(on_gpu(lambda x, w: (x @ w.permute(1, 0)).relu(), *head))[0][-1] == (4096, 50260)
    finally:
        torch.set_float32_matmul_precision(before)
    assert products(on_gpu(lambda x, w: (x @ w.permute(1, 0)).relu(), *[(s, torch.float64) for s, _ in head])) == [
        [(4096, 768), (768, 50257), (4096, 50257)]
    ]


def test_what_pays() -> None:
    head = 4096 * 768 * 50257
    weight, logits = 2 * 768 * 50257, 2 * 4096 * 50257
    assert pays(2, head, weight + logits, weight + logits)
    assert not pays(2, head // 64, weight + logits // 64, weight)
    assert not pays(2, 1023**3, 0, 0) and pays(2, 1535**3, 0, 0)
