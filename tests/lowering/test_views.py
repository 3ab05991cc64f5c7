"""Views as index arithmetic: every composition gives eager's elements, shapes and strides."""

import math
import random

import pytest
import torch
from harness import check, externs, ints, lowered, randn
from torch.fx.experimental.proxy_tensor import make_fx

import pycompiler
from pycompiler.ir.interpret import interpret
from pycompiler.ir.loops import Loop
from pycompiler.lowering import lower
from pycompiler.lowering.values import delinearise, hints_of, to_expr
from pycompiler.symbolic.expr import Expr
from tests.harness.compare import assert_same, assert_same_calls

pytestmark = pytest.mark.whole  # each row is a rule of its own

VIEWS = {
    "view": lambda x: x.view(6, 20),
    "reshape": lambda x: x.permute(2, 0, 1).reshape(10, 12),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, -1),
    "t": lambda x: x[0].t(),
    "expand": lambda x: x[:, :1].expand(6, 7, 5),
    "expand_new": lambda x: x.expand(2, 6, 4, 5),
    "slice": lambda x: x[1:5:2, :, 1:],
    "negative": lambda x: x[-3:, -1],
    "select": lambda x: x.select(1, 2),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(-1).unsqueeze(0),
    "narrow": lambda x: x.narrow(0, 2, 3),
    "unbind": lambda x: x.unbind(1),
    "split": lambda x: x.split(2, 2),
    "split_sizes": lambda x: x.split([1, 3], 1),
    "chunk": lambda x: x.chunk(4, 0),
    "diagonal": lambda x: x.diagonal(1, 0, 2),
    "diagonal_below": lambda x: x.diagonal(-2, 0, 1),
    "diagonal_of_four": lambda x: x.view(2, 3, 4, 5).diagonal(1, 1, 3),
    "unfold": lambda x: x.unfold(2, 3, 1),
    "movedim": lambda x: x.movedim(0, 2),
    "as_strided": lambda x: x.as_strided((3, 4), (10, 2), 5),
    "flatten": lambda x: x.flatten(1),
    "mT": lambda x: x.mT,
    "view_as": lambda x: x.view_as(torch.empty(12, 10)),
    "swapaxes": lambda x: x.swapaxes(0, 1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view_and_consumer(name):
    x = randn(6, 4, 5)
    make = VIEWS[name]
    if name not in ("reshape",):
        program = check(make, [x], native=True)
        assert not program.nodes, "a view of an input is no code"

    def consumer(x):
        y = make(x)
        return [v * 2 + 1 for v in y] if isinstance(y, tuple) else y * 2 + 1

    check(consumer, [x], native=True)


@pytest.mark.parametrize("name", VIEWS)
def test_view_of_a_value_without_memory(name):
    check(lambda: VIEWS[name](torch.arange(120).view(6, 4, 5)), [], native=True)


def test_a_squeezed_dimension_of_a_number():
    check(lambda x: (x.sum().squeeze(0) * 2, x.sum().squeeze(-1), x[0, 0].squeeze(0) + 1), [randn(2, 3)], native=True)
    check(lambda: torch.full((), 3.0).squeeze(0) * 2, [], native=True)


def test_views_of_intermediates_are_no_nodes():
    program = check(lambda x: (x + 1).view(4, 30).t()[3:].unsqueeze(0), [randn(6, 4, 5)], native=True)
    assert len(program.nodes) == 1


def test_reshape_of_a_permuted_input_folds_into_its_consumer():
    from pycompiler.lowering.body import BodyBuilder
    from pycompiler.lowering.values import Value, permute, reshape
    from pycompiler.symbolic.expr import Expr

    n = tuple(map(Expr.of, (2, 3, 4, 5)))
    v = Value.strided("in0", n, tuple(map(Expr.of, (60, 20, 5, 1))), torch.float32, torch.device("cpu"))
    heads = reshape(permute(v, (0, 2, 1, 3)), (2, 4, 15))  # [batch, length, heads * width]
    body = BodyBuilder({"i": Expr.of(2), "j": Expr.of(4), "k": Expr.of(15)})
    heads.load(body, [Expr.sym("i"), Expr.sym("j"), Expr.sym("k")])
    index = body.ops[0].attrs[1]
    assert repr(index) == "60*i + 20*((k) // (5)) + 5*j + ((k) % (5))"
    back = reshape(heads, (2, 4, 3, 5))
    body = BodyBuilder({v: Expr.of(9) for v in "abcd"} | {"c": Expr.of(3), "d": Expr.of(5)})
    back.load(body, [Expr.sym(v) for v in "abcd"])
    assert repr(body.ops[0].attrs[1]) == "60*a + 20*c + 5*b + d"


def test_dimensions_that_stay_apart_are_not_divided():
    """Each group of dimensions of a view is as small as its sizes permit."""
    a, b, n = (Expr.sym(v) for v in "abn")
    shape, target = (Expr.of(4), n), (Expr.of(2), Expr.of(2), n)
    assert delinearise([a, b], shape, target, {"a": Expr.of(4), "b": n}) == [a // 2, a % 2, b]


def test_sizes_of_torch():
    """Expressions of torch's own symbols, which a graph of torch.compile has."""
    seen = []

    def f(x):
        n, m = x.shape
        a, b = to_expr(n), to_expr(m)
        seen.extend([
            (n // 2, a // 2), (n % 3, a % 3), (n + m - 1, a + b - 1), (n * m, a * b), (n * n, a * a),
            (torch.sym_max(n, m), a.max(b)), (torch.sym_min(n, 4), a.min(4)),
        ])  # fmt: skip
        assert (hints_of(n), hints_of(n + m)) == ({a.symbol: 7}, {})
        return x + 1

    make_fx(f, tracing_mode="symbolic")(randn(7, 5))
    assert [to_expr(size) for size, _ in seen] == [e for _, e in seen]


def random_view(r, x):
    """(description, function) of a random legal view of x."""
    d = r.randrange(max(x.dim(), 1))
    kinds = ["permute", "unsqueeze", "reshape"] + (["slice", "select", "step", "expand"] if x.dim() else [])
    match r.choice(kinds):
        case "permute":
            order = r.sample(range(x.dim()), x.dim())
            return f"permute {order}", lambda t: t.permute(order)
        case "unsqueeze":
            at = r.randrange(x.dim() + 1)
            return f"unsqueeze {at}", lambda t: t.unsqueeze(at)
        case "slice":
            a = r.randrange(x.shape[d])
            b = r.randrange(a + 1, x.shape[d] + 1)
            return f"slice {d} {a}:{b}", lambda t: t.narrow(d, a, b - a)
        case "step":
            step = r.choice([2, 3])
            return f"step {d} {step}", lambda t: t[(slice(None),) * d + (slice(0, None, step),)]
        case "select":
            if x.dim() < 2:
                return "alias", lambda t: t.view(t.shape) if t.is_contiguous() else t.squeeze()
            a = r.randrange(x.shape[d])
            return f"select {d} {a}", lambda t: t.select(d, a)
        case "expand":
            if x.shape[d] != 1:
                return "new dim", lambda t: t.expand(2, *t.shape)
            return f"expand {d}", lambda t: t.expand(*t.shape[:d], 3, *t.shape[d + 1 :])
    factors = [n for n in (2, 3, 4, 5, 6) if x.numel() % n == 0]
    f = r.choice(factors) if factors else 1
    shape = [x.numel() // f, f] if r.random() < 0.5 else [f, -1]
    return f"reshape {shape}", lambda t: t.reshape(shape)


@pytest.mark.parametrize("seed", range(60))
def test_random_compositions(seed):
    r = random.Random(seed)
    x = torch.arange(120.0).reshape(r.choice([(6, 4, 5), (2, 3, 4, 5), (120,), (1, 24, 5)]))
    steps, y = [], x
    for _ in range(r.randrange(2, 7)):
        name, step = random_view(r, y)
        y = step(y)
        if y.numel() > 3000:
            break
        steps.append((name, step))

    def f(x):
        for _, step in steps:
            x = step(x)
        return x + 0.5, x.sum(0) if x.dim() else x * 2

    check(f, [x], native=True)


def test_input_strides_and_offsets():
    base = torch.arange(60.0)
    x = base.as_strided((3, 4), (2, 7), 5)
    check(lambda x: (x * 2, x[1:], x.t().reshape(-1) + 1, x.as_strided((2,), (3,), 8)), [x], native=True)
    check(lambda x: x.sum(0), [torch.ones(1).expand(4, 5)], native=True)


def test_as_strided_beyond_the_input_reads_the_storage():
    x = torch.arange(20.0)[5:9]
    check(lambda x: x.as_strided((2, 3), (3, 1), 1) + 1, [x], native=False)


def test_output_strides_match_eager():
    x = randn(4, 6)
    check(lambda x: (x.t(), x.t().contiguous(), x.t().clone(), (x.t() + 1)[::2], x[:, 1].clone()), [x], native=True)


def test_outputs_that_are_inputs_and_repeated_outputs():
    program = check(lambda x, y: (x, y, y * 2, x), [randn(3), randn(4)], native=True)
    assert program.outputs[0] == 0
    assert program.outputs[3] == 0


CREATION = {
    "full": lambda x: torch.full((2, 3), 2.5) + x,
    "zeros_like": lambda x: torch.zeros_like(x),
    "arange": lambda x: torch.arange(3) * x,
    "arange_steps": lambda x: torch.arange(7, 1, -2) * x,
    "ones": lambda x: x @ torch.ones(3, 2),
    "eye": lambda x: torch.eye(3)[1:] + x,
    "tril": lambda x: x.tril(-1) + x.triu(1),
    "linspace": lambda x: torch.linspace(0, 1, 3) + x,
    "mask": lambda x: torch.ones(3, 3, dtype=torch.bool).tril()[:2] & (x > 0),
    "arange_f32": lambda x: torch.arange(3, dtype=torch.float32),
    "scalar": lambda x: torch.tensor(3.0) * x,
    "scalar_tensor": lambda x: torch.scalar_tensor(3, dtype=torch.int64) + torch.scalar_tensor(-1.5) * x,
    "empty_like": lambda x: torch.empty_like(x).copy_(x) * 2,
    "positions": lambda x: (torch.arange(2)[:, None] >= torch.arange(3)[None]).float() * x,
    "fill": lambda x: torch.full_like(x, 3),
    "bf16": lambda x: torch.full((3,), 1.1, dtype=torch.bfloat16) * 3,
    "new": lambda x: x.new_zeros(2, 3) + x.new_ones(3),
}


@pytest.mark.parametrize("name", CREATION)
def test_creation(name):
    check(CREATION[name], [randn(2, 3)])


def test_constants_that_no_decomposition_took():
    """A trace adds some of them after decompositions."""
    aten = torch.ops.aten

    def f(x):
        return aten.zeros_like(x) - x, aten.new_zeros(x, [2, 3]), aten.zero(x), aten.ones_like(x) / x

    program = lower(make_fx(f, tracing_mode="fake")(randn(2, 3)))
    assert not externs(program)
    assert_same(interpret(program, [randn(2, 3)]), [*f(randn(2, 3))])


CONVERTED = {
    "bfloat16": lambda x: torch.full((2, 3), 1.1, dtype=torch.bfloat16).float() + x,
    "float16": lambda x: torch.full((), 0.1, dtype=torch.float16).double() * x,
    "double": lambda x: torch.full((3,), 1.1).double() + x,
    "twice": lambda x: torch.full((3,), 1.1, dtype=torch.float64).bfloat16().double() * x,
    "infinity": lambda x: torch.full((3,), math.inf).to(torch.int64) + x,
    "nan": lambda x: torch.full((3,), math.nan).to(torch.bool) & (x > 0),
    "negative": lambda x: torch.full((3,), -1.5).to(torch.int8) + x,
    "wraps": lambda x: torch.full((3,), 300).to(torch.uint8) + x,
    "integers": lambda x: torch.full((3,), 2**24 + 1).float().double() + x.double(),
    "filled": lambda x: (
        torch.ops.aten.fill(x[:1].expand(2, 3), 3) + torch.ops.aten.fill(x.bfloat16()[:, ::2], 1.1).sum()
    ),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_numbers_are_rounded_to_the_dtype_that_they_are_converted_from(name):
    check(CONVERTED[name], [randn(2, 3)], native=True, rtol=0)


JOINING = {
    "reflect2": lambda x, y: torch.nn.functional.pad((x * y)[None], (2, 1, 1, 2), mode="reflect"),
    "replicate": lambda x, y: torch.nn.functional.pad(x[None], (3, 1, 0, 2), mode="replicate"),
    "cat": lambda x, y: torch.cat([x, y]),
    "cat1": lambda x, y: torch.cat([x[:, :2], x, x.t()[:3, :1].t().expand(3, 3)], 1),
    "cat_dtypes": lambda x, y: torch.cat([x, y.long()]),
    "stack": lambda x, y: torch.stack([x, y], 1),
    "stack_last": lambda x, y: torch.stack([x, y], -1),
    "cat_same": lambda x, y: torch.cat([x, x]) * 2,
    "cat_empty_vectors": lambda x, y: torch.cat([torch.empty(0), x[0], y[0, :0], y[1]]),
    "cat_nothing": lambda x, y: torch.cat([x[0, :0], y[1, :0]]),
    "cat_empty": lambda x, y: torch.cat([x, torch.empty(0), y[:0]]),
    "pad": lambda x, y: torch.nn.functional.pad(x, (1, 2, 0, 3), value=1.5),
    "crop": lambda x, y: torch.nn.functional.pad(x, (-1, 2, 1, -2)),
    "pad_expr": lambda x, y: torch.nn.functional.pad(x * y, (2, 0)),
    "slice_scatter": lambda x, y: torch.slice_scatter(x, y[:2], 0, 1, 3),
    "slice_scatter_step": lambda x, y: torch.slice_scatter(x, y[:, :2], 1, 0, 4, 2),
    "select_scatter": lambda x, y: torch.select_scatter(x, y[0], 0, -1),
    "flip": lambda x, y: x.flip(0, 1),
    "flip1": lambda x, y: (x * y).flip(-1),
    "roll": lambda x, y: x.roll(1, 0),
    "roll2": lambda x, y: x.roll((2, -1), (1, 0)),
    "roll_flat": lambda x, y: x.roll(5),
    "repeat": lambda x, y: x.repeat(2, 1, 3),
    "tile": lambda x, y: x.tile(2),
    "rot90": lambda x, y: x.rot90(),
    "repeat_interleave": lambda x, y: x.repeat_interleave(3, 1),
    "hstack": lambda x, y: torch.hstack([x, y]),
    "block": lambda x, y: torch.cat([-x[..., 2:], x[..., :2]], -1),
    "slice_grad": lambda x, y: torch.ops.aten.slice_backward(x, [6, 4], 0, 1, 4, 1),
    "select_grad": lambda x, y: torch.ops.aten.select_backward(x, [3, 5, 4], 1, -2),
    "reflect": lambda x, y: torch.nn.functional.pad(x[None], (1, 2), mode="reflect"),
    "meshgrid": lambda x, y: torch.meshgrid(x[0], y[0], indexing="ij"),
}


@pytest.mark.parametrize("name", JOINING)
def test_joining(name):
    check(JOINING[name], [randn(3, 4), randn(3, 4, seed=2)], native=True)


def test_copying_views_are_calls():
    copies = lambda x, y: (torch.permute_copy(x, (1, 0)), torch.view_copy(y, (4, 3)), *torch.unbind_copy(x, 1))  # noqa: E731
    check(copies, [randn(3, 4), randn(3, 4, seed=2)], native=False)


def test_cat_writes_into_one_buffer():
    program = check(lambda x, y: torch.cat([x, y], 1), [randn(3, 4), randn(3, 2)], native=True)
    assert [isinstance(n, Loop) and n.init for n in program.nodes] == [None, program.nodes[0].out[0].name]


INDEXING = {
    "embedding": lambda x, i: torch.nn.functional.embedding(i % 6, x),
    "gather": lambda x, i: x.gather(0, i.abs() % 6),
    "index": lambda x, i: x[i],
    "index_neg": lambda x, i: x[-i.abs() % 6 - 6],
    "index2": lambda x, i: x[i, i % 4],
    "index_apart": lambda x, i: x[None][:, i[0] % 6, None, i[1] % 4],
    "index_tail": lambda x, i: x[:, i % 4],
    "select": lambda x, i: x.index_select(1, i[0] % 4),
    "take": lambda x, i: x.take(i),
    "take_along": lambda x, i: torch.take_along_dim(x, i.abs() % 6, 0),
    "scatter_add": lambda x, i: x.scatter_add(0, i.abs() % 6, torch.ones(2, 4)),
    "index_add": lambda x, i: x.index_add(0, i[0] % 6, x[:4]),
    "index_put_acc": lambda x, i: x.index_put((i[0], i[1] % 4), x[0], accumulate=True),
    "scatter_line": lambda x, i: x.scatter(0, i[:1].abs() % 6, -1.0),
    "scatter_src": lambda x, i: x.scatter(0, i[:1].abs() % 6, x[1:2]),
    "embedding_grad": lambda x, i: torch.ops.aten.embedding_dense_backward(x[:2], i[:, 0].abs() % 6, 7, -1, False),
    "embedding_pad": lambda x, i: torch.ops.aten.embedding_dense_backward(x[:2], i[:, 0].abs() % 2, 7, 1, False),
    "interpolate": lambda x, i: torch.nn.functional.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "index_float_chain": lambda x, i: (x * 2)[i + 0] + x[i],
    "cross": lambda x, i: torch.nn.functional.cross_entropy(x, i[0].abs().repeat(2)[:6] % 4),
}


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name):
    check(INDEXING[name], [randn(6, 4), ints(2, 4)], native=True)


def test_an_index_out_of_range_raises():
    with pytest.raises(IndexError, match="index 3 is out of bounds for dimension 0 with size 3"):
        interpret(lowered(lambda x, i: x[i], [randn(3, 4), torch.tensor([0, 2])]), [randn(3, 4), torch.tensor([0, 3])])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shift", [-(2**62), -(2**62) - 1, -(2**63)])
def test_shifts_that_torch_takes_for_symbols_are_refused(shift: int, dynamic: bool) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.roll(shift) + 1

    assert_same_calls(pycompiler.compile(fn, dynamic=dynamic), fn, lambda: (torch.arange(5.0),), exact=True)
