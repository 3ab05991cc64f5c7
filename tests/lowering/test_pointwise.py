"""Pointwise operators against eager: promotion, values, special values."""

import math
import operator

import pytest
import torch
import torch.nn.functional as F
from aten_graph import decompositions
from harness import bools, check, externs, ints, randn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import pycompiler
from pycompiler.ir.interpret import interpret
from pycompiler.ir.verify import verify
from pycompiler.lowering import lower
from pycompiler.lowering.elementwise import elementwise
from pycompiler.lowering.registry import LOWERINGS
from tests.harness.compare import assert_same, assert_same_calls

pytestmark = pytest.mark.whole  # each row is a rule of its own

f32, f64, bf16, f16, i64, i32, u8 = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
)
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 1e-3, 1e3, math.inf, -math.inf, math.nan])
UNARY_FLOAT = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf "
    "erfc erfinv lgamma digamma sigmoid reciprocal sinc deg2rad rad2deg logit"
).split()
UNARY = (
    "neg abs sign sgn square floor ceil trunc round frac relu isnan isinf isfinite isposinf isneginf signbit "
    "logical_not"
).split()


@pytest.mark.parametrize("name", UNARY_FLOAT + UNARY)
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_unary(name, dtype):
    f = getattr(torch, name)
    check(lambda x: f(x), [SPECIAL.to(dtype)], native=True)
    check(lambda x: f(x), [randn(3, 5, dtype=dtype)], native=True)


@pytest.mark.parametrize(
    "name",
    [
        "exp",
        "sqrt",
        "sigmoid",
        "reciprocal",
        "sign",
        "abs",
        "neg",
        "floor",
        "round",
        "square",
        "isnan",
        "isfinite",
        "relu",
        "signbit",
        "logical_not",
        "bitwise_not",
    ],
)
@pytest.mark.parametrize("dtype", [i64, i32])
def test_unary_integer(name, dtype):
    f = getattr(torch, name)
    check(lambda x: f(x), [ints(4, 3, dtype=dtype)], native=True)


BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "floor_divide": torch.floor_divide,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "xlogy": torch.xlogy,
}
PAIRS = [(f32, f32), (bf16, bf16), (f32, bf16), (i64, i64), (i32, f32), (i64, bf16)]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtypes", PAIRS, ids=str)
def test_binary(name, dtypes):
    a, b = dtypes
    x = randn(4, 3, dtype=a) * 3 if a.is_floating_point else ints(4, 3, dtype=a)
    y = randn(3, dtype=b, seed=1) * 2 if b.is_floating_point else ints(3, low=1, dtype=b)
    check(lambda x, y: BINARY[name](x, y), [x, y], native=True)


FLOAT_BINARY = {
    "pow": torch.pow,
    "hypot": torch.hypot,
    "logaddexp": torch.logaddexp,
    "nextafter": torch.nextafter,
    "heaviside": torch.heaviside,
}


@pytest.mark.parametrize("name", FLOAT_BINARY)
def test_float_binary(name):
    f = FLOAT_BINARY[name]
    check(lambda x, y: f(x, y), [randn(4, 3).abs(), randn(4, 3, seed=2)], native=True)


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bitwise(name):
    f = getattr(torch, name)
    check(lambda x, y: f(x, y), [ints(4, 3), ints(3)], native=True)
    check(lambda x, y: f(x, y), [bools(4, 3), bools(3, seed=1)], native=True)


def test_shifts_and_integer_pow():
    check(lambda x: (x << 2, x >> 1, x**2, x**3, x**0, 2 ** x.abs()), [ints(4, 3)], native=True)


@pytest.mark.parametrize("scalar", [2, 2.5, True, -1])
@pytest.mark.parametrize("dtype", [f32, bf16, i32, torch.bool, u8])
def test_scalars_promote_as_torch(scalar, dtype):
    x = (
        bools(3, 4)
        if dtype == torch.bool
        else randn(3, 4, dtype=dtype)
        if dtype.is_floating_point
        else ints(3, 4, low=0, dtype=dtype)
    )
    check(
        lambda x: (x + scalar, x * scalar, x == scalar, x < scalar, x / scalar, torch.where(x > 1, x, scalar)),
        [x],
        native=True,
    )


@pytest.mark.parametrize("zero_dtype", [f64, f32, i64, torch.bool])
@pytest.mark.parametrize("dtype", [f32, bf16, i32])
def test_zero_dim_tensors_promote_as_torch(zero_dtype, dtype):
    x = randn(3, 4, dtype=dtype) if dtype.is_floating_point else ints(3, 4, dtype=dtype)
    check(lambda x, s: (x + s, torch.maximum(x, s), x * s > s), [x, torch.tensor(2).to(zero_dtype)], native=True)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5, 7])
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_pow_scalar(exponent, dtype):
    check(lambda x: x**exponent, [randn(4, 3, dtype=dtype).abs() + 0.1], native=True)


def test_alpha_and_compound():
    x, y, z = randn(4, 3), randn(3, seed=1), randn(4, 1, seed=2)
    check(
        lambda x, y, z: (torch.add(x, y, alpha=2), torch.sub(x, y, alpha=0.5), torch.rsub(x, y, alpha=3)),
        [x, y, z],
        native=True,
    )
    check(lambda x, y, z: (torch.addcmul(x, y, z, value=0.5), torch.addcdiv(x, y, z.abs() + 1)), [x, y, z], native=True)
    check(lambda x, y, z: (torch.lerp(x, y, 0.3), torch.lerp(x, y, z), torch.lerp(x, y, 0.7)), [x, y, z], native=True)
    check(
        lambda x, y, z: (x.clamp(-0.5, 0.5), x.clamp(min=y), x.clamp_min(0.1), x.clamp_max(0.1), x.clamp(y, z)),
        [x, y, z],
        native=True,
    )
    check(lambda x: (torch.nan_to_num(x), torch.nan_to_num(x, 1.0, 2.0, -3.0)), [SPECIAL], native=True)
    check(lambda x: torch.special.entr(x), [SPECIAL], native=True)


def test_where_and_masks():
    x, y, m = randn(4, 3), ints(3), bools(4, 1)
    check(
        lambda x, y, m: (torch.where(m, x, y), torch.where(m, y, 1.5), torch.where(m, 2.0, x)), [x, y, m], native=True
    )
    check(lambda x, m: (x.masked_fill(m, -math.inf), x.masked_fill(m, torch.tensor(2.0))), [x, m], native=True)
    check(lambda x, m: x.bfloat16().masked_fill(m, -1e4), [x, m], native=True)


def test_a_number_in_another_memory_fills_a_tensor_of_a_gpu():
    """No rule rewrites such a `masked_fill`: the operator reaches its lowering."""
    with FakeTensorMode():
        x, m = torch.empty(4, 3, dtype=bf16, device="cuda"), torch.empty(3, dtype=torch.bool, device="cuda")
        program = lower(make_fx(torch.masked_fill, decomposition_table=decompositions())(x, m, torch.empty(())))
    assert externs(program) == ["aten._to_copy.default"]  # of the number


@pytest.mark.parametrize("dtype", [f32, bf16, i64])
def test_a_number_of_any_dtype_fills_a_tensor(dtype):
    args = [randn(4, 3).to(dtype), bools(3), torch.tensor(2.75, dtype=f32 if dtype.is_floating_point else i32)]
    program = lower(make_fx(torch.masked_fill)(*args))
    verify(program)
    assert not externs(program)
    assert_same(interpret(program, args)[0], torch.masked_fill(*args))


def test_bool_arithmetic():
    check(
        lambda a, b: (a + b, a * b, torch.maximum(a, b), torch.minimum(a, b), a == b, a.float() - 1, ~a),
        [bools(4, 3), bools(3, seed=3)],
        native=True,
    )


ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 2),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 1.3),
    "celu": lambda x: F.celu(x, 0.7),
    "selu": F.selu,
    "softplus": lambda x: F.softplus(x, 2, 3),
    "softshrink": lambda x: F.softshrink(x, 0.3),
    "hardshrink": lambda x: F.hardshrink(x, 0.3),
    "threshold": lambda x: F.threshold(x, 0.1, -3),
    "logsigmoid": F.logsigmoid,
    "tanhshrink": F.tanhshrink,
    "softsign": F.softsign,
    "prelu": lambda x: F.prelu(x, torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])),
    "glu": lambda x: F.glu(x[:, :4], 1),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [f32, bf16, f64])
def test_activation(name, dtype):
    if name == "prelu" and dtype != f32:
        pytest.skip("prelu takes a weight of its input's dtype")
    check(ACTIVATIONS[name], [randn(7, 5, dtype=dtype) * 3], native=True)


@pytest.mark.parametrize("name", [n for n in ACTIVATIONS if n != "prelu"])
def test_activation_gradient(name):
    def gradient(x, g):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(ACTIVATIONS[name](x), x, g)

    x = randn(7, 5, dtype=f64) * 3
    check(gradient, [x, torch.ones_like(ACTIVATIONS[name](x))], native=True)


def test_prelu_gradient():
    def gradient(x, w):
        with torch.enable_grad():
            x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
            return torch.autograd.grad(F.prelu(x, w).sum(), (x, w))

    check(gradient, [randn(7, 5), randn(5).abs()], native=True)


LOSSES = {
    "mse": lambda x, y: F.mse_loss(x, y),
    "l1": lambda x, y: F.l1_loss(x, y),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, beta=0.5),
    "huber": lambda x, y: F.huber_loss(x, y, delta=0.4),
    "bce_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "bce": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "kl": lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean"),
    "soft_margin": lambda x, y: F.soft_margin_loss(x, y.sign()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient(name):
    def both(x, y):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            loss = LOSSES[name](x, y)
            return loss.detach(), *torch.autograd.grad(loss, x)

    check(both, [randn(6, 5), randn(6, 5, seed=3)], native=True)


def test_dtype_conversions():
    x = torch.tensor([-2.7, -0.2, 0.0, 1.5, 200.4, 3e9])
    check(
        lambda x: (x.to(f64), x.bfloat16(), x.half(), x[:5].int(), x.long(), x.bool(), x[1:5].to(u8)), [x], native=True
    )
    check(lambda x: (x.float(), x.bool(), x.to(i32)), [ints(4, 3)], native=True)
    check(lambda x: x.view(i32), [randn(4, 3)], native=True)


def test_operators_module():
    for f in (operator.add, operator.mul, operator.truediv, operator.floordiv, operator.mod):
        check(lambda x, f=f: (f(x, 3), f(3, x)), [randn(4).abs() + 1], native=True)


def test_strides_follow_eager():
    x = randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check(lambda x: (x + 1, x.relu() * x.permute(0, 2, 3, 1).permute(0, 3, 1, 2)), [x], native=True)
    check(lambda x: x.t() + 1, [randn(3, 5)], native=True)
    check(lambda x: x.t() + x, [randn(4, 4)], native=True)
    check(lambda x: x.expand(4, 3) + 1, [randn(1, 3)], native=True)
    check(lambda x: x[:, ::2] * 2, [randn(4, 6)], native=True)


ROUNDED = {
    "==": lambda x, c: x == c,
    "<": lambda x, c: c < x,
    "%": lambda x, c: x % c,
    "fmod": torch.fmod,
    "+": lambda x, c: x + c,
    "-": lambda x, c: c - x,
    "*": lambda x, c: x * c,
    "/": lambda x, c: x / c,
    "//": lambda x, c: x // c,
    "rfloordiv": lambda x, c: c // x,
    "trunc": lambda x, c: torch.div(x, c, rounding_mode="trunc"),
    "**": lambda x, c: x**c,
    "rpow": lambda x, c: c**x,
    "alpha": lambda x, c: torch.add(x, x.flip(0), alpha=c),
    "hardshrink": F.hardshrink,
    "0-d": lambda x, c: x == torch.full((), c),
    "0-d first": lambda x, c: torch.full((), c) * x,
    "0-d divisor": lambda x, c: x / torch.full((), c),
}


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("dtype", [bf16, f16])
@pytest.mark.parametrize("number", [0.3, 0.7])
def test_scalars_beside_half_precision_are_rounded_where_aten_rounds_them(name, dtype, number):
    """`x == 0.3` holds for the bfloat16 nearest to 0.3; products and quotients use 0.3 itself."""
    near = (torch.arange(-16, 16) * torch.tensor(number, dtype=dtype)).to(dtype)
    x = torch.cat([near, randn(96, dtype=dtype)])
    check(lambda x: ROUNDED[name](x, number), [x], rtol=0, atol=0)


def test_integers_beside_half_precision_are_rounded():
    check(lambda n, x: (n + x, n == x, n * x), [torch.full((4,), 1001), torch.full((4,), 1000.0, dtype=bf16)], rtol=0)


def test_half_power_of_float16():
    """ATen uses no root here: `pow` gives inf for -inf, and 0.0 for -0.0."""
    x = torch.tensor([-0.0, -math.inf, 2.0, 0.0], dtype=f16)
    check(lambda x: (torch.signbit(x**0.5), x**0.5, x**-0.5), [x])


def test_negative_lower_bounds_of_unsigned_numbers():
    x = torch.tensor([0, 1, 200, 255], dtype=u8)
    check(lambda x: (x.clamp(min=-3), x.clamp(-3, 5), x.clamp_min(-1), x.clamp(max=300 - 256)), [x], native=True)
    if torch.__version__ >= "2.15":  # older ones raise for some of these limits
        check(lambda x: F.hardtanh(x, -1, 1), [x], native=True)


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparisons_of_python_are_the_operators(name, monkeypatch):
    compare = getattr(operator, name) if name not in ("eq", "ne") else lambda a, b: a.test(name, b)
    op = getattr(torch.ops.aten, name).Tensor
    monkeypatch.setitem(LOWERINGS, op, lambda low, x, y: elementwise(low, compare, (x, y)))
    x, y = torch.tensor([0.0, 1.0, -0.0, 2.0, math.nan, math.inf]), torch.tensor([1.0, 1.0, 0.0, -2.0, 1.0, math.inf])
    check(lambda x, y: op(x, y), [x, y], native=True)


def test_minus_a_bool_is_refused() -> None:
    def program(x: torch.Tensor, b: bool) -> torch.Tensor:
        return x - b

    for run in (program, pycompiler.compile(program)):
        with pytest.raises(RuntimeError, match="Subtraction"):  # not computed with the bool as a number
            run(torch.ones(2), True)
    compiled = pycompiler.compile(lambda x, n: x - n)  # the rule for booleans does not apply to numbers
    assert [compiled(torch.ones(2), n).tolist() for n in (0.5, 0.25, 3.0)] == [[0.5, 0.5], [0.75, 0.75], [-2.0, -2.0]]
    assert compiled.counters()["compiles"] == 2
    with pytest.raises(RuntimeError, match="Subtraction"):
        compiled(torch.ones(2), True)


def test_logarithms_of_half_precision_are_rounded_as_their_numbers_are():
    for dtype in (f16, bf16):
        x = torch.tensor([0.0, -0.0, 301, -3.7, 0.5, math.inf, math.nan, 1e-3], dtype=dtype)
        for fn in (torch.xlogy, torch.special.xlog1py):
            for n in (2**31, 0.3, 257, -1e-9):
                y = torch.tensor(n)
                check(lambda x, y, f=fn, n=n: (f(x, n), f(n, x), f(x, x), f(x, y)), [x, y], rtol=0, atol=0)
                check(lambda x, f=fn, n=n: (f(x, n), f(n, x)), [x[2]], rtol=0, atol=0)
    check(lambda n: (torch.xlogy(n, 2.5), torch.xlogy(2, n), torch.special.xlog1py(n, n)), [ints(8)], native=True)


@pytest.mark.parametrize("backend", ("aot_eager", "native"))
def test_complex_infinities_meet_the_factors_that_atens_kernels_have(backend):
    """ATen's kernels multiply an added or subtracted operand by 1 + 0j, which gives NaN for an infinity."""
    inf, nan = math.inf, math.nan
    values = [0j, 1 + 2j, complex(inf, 0), complex(inf, inf), complex(nan, 1), complex(1, -inf), -2 + 0j]

    def program(x, y):
        return ((1 + 2j) - x, 2 - x, inf - x, (1 + 2j) - x / y, torch.rsub(x, 1j, alpha=2), torch.addcmul(x, x, y),
                torch.addcmul(x, x, y, value=2), torch.addcdiv(x, x, y, value=2j), x.sgn(), 1j - x.real, x.real.sgn())  # fmt: skip

    for dtype in (torch.complex64, torch.complex128):
        given = torch.tensor(values, dtype=dtype), torch.tensor(values[::-1], dtype=dtype)
        got, want = (map(_parts, fn(*given)) for fn in (pycompiler.compile(program, backend=backend), program))
        for mine, eagers in zip(got, want, strict=True):
            torch.testing.assert_close(mine, eagers, rtol=0, atol=0, equal_nan=True)


def _parts(x):
    return torch.view_as_real(x) if x.is_complex() else x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("exponent", [0.5, -0.5, 3.0, -2.0])
def test_a_power_by_a_tensor_of_known_elements_is_no_root(exponent: float, dtype: torch.dtype) -> None:
    """Kernels look at numbers only: the root of -inf is NaN, its power by a tensor of halves is inf."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        exponents = torch.full_like(x, exponent)
        return x**exponents, x**exponent, torch.float_power(x, exponents).to(dtype), x.clone().pow_(exponents)

    compiled = pycompiler.compile(program, fullgraph=True)
    extremes = torch.tensor([-math.inf, -0.0, 0.0, math.inf, math.nan, 1.0] * 16, dtype=dtype)
    assert_same_calls(compiled, program, lambda: (extremes,), exact=True)
    if dtype.itemsize == 2:
        assert_same_calls(compiled, program, lambda: (torch.linspace(0.1, 3, 128).to(dtype),), exact=True)
