"""Pointwise arithmetic, elementary functions, comparisons and logic.  Activations are in activations.py.

A row of a table: ATen operator -> tree over the operands in the computation dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from pycompiler.lowering.body import BodyBuilder, Val
from pycompiler.lowering.elementwise import Kind, elementwise, mixed, number
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.promotion import as_float, promoted, rounded
from pycompiler.lowering.registry import lowering, register
from pycompiler.lowering.values import Value, normal_dim, to_exprs
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.symbolic_node import Real

aten, prims = torch.ops.aten, torch.ops.prims
Tree = Callable[..., Val]


def op(name: str) -> Tree:
    return lambda x, *others: x.op(name, *others)


def is_float(x: Val) -> bool:
    return x.dtype.is_floating_point


def round_floats(name: str) -> Tree:
    """Rounding: integers stay as they are."""
    return lambda x: x.op(name) if is_float(x) else x


def add(x: Val, y: Val) -> Val:
    return x | y if x.dtype == torch.bool else x + y


def mul(x: Val, y: Val) -> Val:
    return x & y if x.dtype == torch.bool else x * y


def maximum(x: Val, y: Val) -> Val:
    return x | y if x.dtype == torch.bool else x.op("maximum", y)


def minimum(x: Val, y: Val) -> Val:
    return x & y if x.dtype == torch.bool else x.op("minimum", y)


def absolute(x: Val) -> Val:
    return x if x.dtype in (torch.bool, torch.uint8) else x.op("abs")


def sign(x: Val) -> Val:
    return x if x.dtype == torch.bool else x.op("sign")


def plus_product(x: Val, a: Val, b: Val | float) -> Val:
    """x + a * b, rounded once if ATen's kernels round once."""
    return a.op("fma", b, x) if is_float(x) else x + a * b


def quotient(x: Val, y: Val) -> Val:
    return x / y


def floor_quotient(half: torch.dtype) -> Tree:
    """The quotient rounded down, as ATen's kernels of half precision compute it: each step rounds to `half`."""

    def tree(x: Val, y: Val) -> Val:
        def step(v: Val) -> Val:
            return v.to(half).to(v.dtype)

        rest = x.op("fmod", y)
        q = step(step(x - rest) / y)
        q = (rest.ne(0) & (y < 0).op("xor", rest < 0)).where(step(q - 1), q)
        down = q.op("floor")
        down = (step(q - down) > 0.5).where(step(down + 1), down)
        whole = x / y
        return y.eq(0).where(whole, q.ne(0).where(down, whole * 0))

    return tree


def by_its_inverse(x: Val, y: Val) -> Val:
    """x / y as CUDA kernels divide by a number: they multiply by its inverse."""
    n = y.constant
    if n is not None and n != 0:
        return x * (1.0 / torch.tensor(n, dtype=y.dtype).item())
    return x * (y.like(1) / y)


def power(x: Val, y: Val, roots: bool = True, step: torch.dtype | None = None) -> Val:
    """x ** y.  Exponents that torch's kernel treats specially become multiplications and, with `roots`, roots.

    `step`: the dtype to which the kernel rounds a square before the next operation.
    """
    n = y.constant

    def square(x: Val) -> Val:
        return x * x if step is None else (x * x).to(step).to(x.dtype)

    if n is not None and is_float(x):
        special: dict[float, Tree] = {
            0.0: lambda x: x.like(1), 1.0: lambda x: x, 2.0: lambda x: x * x, 3.0: lambda x: square(x) * x,
            0.5: lambda x: x.op("sqrt"), -0.5: lambda x: x.op("rsqrt"), -1.0: lambda x: x.op("reciprocal"),
            -2.0: lambda x: square(x).op("reciprocal"),
        }  # fmt: skip
        if float(n) in special and (roots or abs(n) != 0.5):
            return special[float(n)](x)
    if n is not None and not is_float(x) and x.dtype != torch.bool and 0 <= n <= 4:
        result = x.like(1)
        for _ in range(int(n)):
            result = result * x
        return result
    return x.op("pow", y)


def same_bool(name: str) -> Tree:
    """A comparison: operands in the promoted dtype, result bool."""
    return lambda x, y: x.test(name, y)


def logical(name: str) -> Tree:
    return lambda x, *others: x.to(torch.bool).op(name, *(o.to(torch.bool) for o in others))


def float_test(tree: Callable[[Val], Val]) -> Tree:
    """A test that is False for every integer."""
    return lambda x: tree(x) if is_float(x) else x.body.const(False, torch.bool)


def logaddexp(x: Val, y: Val) -> Val:
    top = x.op("maximum", y)
    apart = (x - y).op("abs")
    same = x.op("abs").eq(math.inf) & x.eq(y)
    return same.where(x, top + (-apart).op("exp").op("log1p"))


FLOAT_UNARY = [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "erfinv",
    "lgamma",
    "digamma",
    "sigmoid",
    "reciprocal",
]

# operands are promoted together and computed in that dtype
DEFAULT: dict[Any, Tree] = {
    aten.mul.Tensor: mul, aten.maximum: maximum, aten.minimum: minimum,
    aten.neg: op("neg"), aten.abs: absolute, aten.sign: sign,
    aten.floor: round_floats("floor"), aten.ceil: round_floats("ceil"), aten.trunc: round_floats("trunc"),
    aten.round.default: round_floats("round"),
    aten.frac: lambda x: x - x.op("trunc"), aten.fmod: op("fmod"), aten.remainder: op("mod"),
    aten.hypot: op("hypot"),
    aten.bitwise_and: op("and"), aten.bitwise_or: op("or"), aten.bitwise_xor: op("xor"), aten.bitwise_not: op("not"),
    aten.bitwise_left_shift: op("shl"), aten.bitwise_right_shift: op("shr"), aten.__lshift__: op("shl"),
    aten.__rshift__: op("shr"),
    aten.logaddexp: logaddexp, aten.relu: lambda x: maximum(x.like(0), x),
}  # fmt: skip

# as DEFAULT, but integers become floats first
FLOAT: dict[Any, Tree] = {
    **{getattr(aten, name): op(name) for name in FLOAT_UNARY},
    aten.atan2: op("atan2"), aten.copysign: op("copysign"),
}  # fmt: skip

# as DEFAULT, but the result is bool
TEST: dict[Any, Tree] = {
    **{getattr(aten, name): same_bool(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    aten.isnan: float_test(lambda x: x.test("isnan")), aten.isinf: float_test(lambda x: x.test("isinf")),
    aten.signbit: lambda x: x.test("signbit") if is_float(x) else x < 0 if x.dtype != torch.bool else x.like(0),
}  # fmt: skip

# operands are converted to bool one by one
LOGIC: dict[Any, Tree] = {
    aten.logical_and: logical("and"), aten.logical_or: logical("or"), aten.logical_xor: logical("xor"),
    aten.logical_not: logical("not"),
}  # fmt: skip


EXACT = {aten.mul.Tensor: (1,)}  # see `given_as`


def _row(tree: Tree, kind: Kind, exact: Sequence[int]) -> Callable[..., Any]:
    return lambda low, *args: elementwise(low, tree, args, kind, exact=exact)


for _table, _kind in ((DEFAULT, Kind.DEFAULT), (FLOAT, Kind.FLOAT), (TEST, Kind.DEFAULT)):
    for _op, _tree in _table.items():
        register(_op, _row(_tree, _kind, EXACT.get(_op, ())))
for _op, _tree in LOGIC.items():
    register(_op, (lambda tree: lambda low, *values: mixed(low, tree, values))(_tree))


@lowering(aten.add.Tensor, aten.sub.Tensor)
def add_sub(low: Lowering, x: Any, y: Any, alpha: Any = 1) -> Any:
    plus = low.op._overloadpacket is aten.add
    if not plus and any(v.dtype is torch.bool if isinstance(v, Value) else isinstance(v, bool) for v in (x, y)):
        return NotImplemented  # ATen's kernel raises, its shape function accepts a Python bool
    alpha = _alpha(low, alpha, (x, y))

    def tree(x: Val, y: Val) -> Val:
        if alpha == 1:
            return add(x, y) if plus else x - y
        factor = y.like(alpha)
        if is_float(x):
            return plus_product(x, y, factor if plus else -factor)
        return add(x, mul(y, factor)) if plus else x - y * factor

    return elementwise(low, tree, (x, y))


def _alpha(low: Lowering, alpha: Any, args: Sequence[Any]) -> Any:
    return rounded(alpha, promoted(args)) if low.fake.device.type == "cpu" else alpha


@lowering(aten.nextafter)
def nextafter(low: Lowering, x: Value, y: Value) -> Any:
    if promoted((x, y)) in (torch.bfloat16, torch.float16):
        return NotImplemented  # computed in float, the result would be the next float
    return elementwise(low, op("nextafter"), (x, y))


@lowering(aten.xlogy, aten.special_xlog1py)
def xlogy(low: Lowering, x: Any, y: Any) -> Value:
    half = as_float(promoted((x, y)))
    name = "log" if low.op._overloadpacket is aten.xlogy else "log1p"

    def tree(x: Val, y: Val) -> Val:
        return y.test("isnan").where(y, x.eq(0).where(x.like(0), x * y.op(name).to(half).to(x.dtype)))

    return elementwise(low, tree, (x, y), Kind.FLOAT)


@lowering(aten.rsub.Scalar)
def rsub(low: Lowering, x: Value, y: Any, alpha: Any = 1) -> Any:
    if x.dtype is torch.bool:
        return NotImplemented  # ATen's kernel raises, its shape function does not
    alpha = _alpha(low, alpha, (x, y))

    def tree(x: Val, y: Val) -> Val:
        if alpha == 1:
            return y - x
        return plus_product(y, x, -x.like(alpha)) if is_float(x) else y - x * alpha

    return elementwise(low, tree, (x, y))


def is_single(low: Lowering, position: int, value: Any) -> bool:
    """Whether ATen's iterator takes the argument at `position` for a scalar: a number, or a tensor of one element, which on the
    CPU may be expanded (all strides 0)."""
    if not isinstance(value, Value) or value.rank == 0:
        return True
    fake = low.fake_of(position)
    lines = zip(to_exprs(fake.shape), to_exprs(fake.stride()), strict=True)
    return value.device.type == "cpu" and all(n == 1 or step == 0 for n, step in lines)


@lowering(aten.div.Tensor, aten.div.Tensor_mode, aten.div.Scalar_mode)
def div(low: Lowering, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    half, by_scalar = promoted((x, y)), is_single(low, 1, y)
    by_inverse = by_scalar and low.fake.device.type == "cuda" and not (isinstance(y, Value) and y.device.type == "cuda")
    if rounding_mode is None:
        return elementwise(low, by_its_inverse if by_inverse else quotient, (x, y), Kind.FLOAT, exact=(1,))
    name = {"trunc": "truncdiv", "floor": "floordiv"}[rounding_mode]
    if rounding_mode == "trunc" and by_inverse and half.is_floating_point:
        return elementwise(low, lambda x, y: by_its_inverse(x, y).op("trunc"), (x, y), exact=(1,))
    if rounding_mode == "trunc" and half in (torch.bfloat16, torch.float16) and not by_scalar:
        # ATen rounds the quotient first
        return elementwise(low, lambda x, y: (x / y).to(half).to(x.dtype).op("trunc"), (x, y))
    if rounding_mode == "floor" and half in (torch.bfloat16, torch.float16) and not by_scalar:
        return elementwise(low, floor_quotient(half), (x, y))
    return elementwise(low, op(name), (x, y), exact=(1,))


@lowering(aten.floor_divide)
def floor_divide(low: Lowering, x: Any, y: Any) -> Value:
    return div(low, x, y, "floor")


@lowering(aten.pow)
def pow_(low: Lowering, x: Any, y: Any) -> Any:
    if isinstance(x, Real) or isinstance(y, Real):
        return NotImplemented  # ATen's kernel reads the exponent
    if isinstance(y, float) and 0 < abs(y) < torch.finfo(torch.float32).tiny and promoted((x, y)) != torch.float64:
        return NotImplemented  # rounded to float it would be the exponent 0
    if isinstance(y, Value):  # eager's kernels treat no element of a tensor specially
        return elementwise(low, lambda x, y: x.op("pow", y), (x, y))
    roots = low.fake.device.type != "cpu" or promoted((x, y)) != torch.float16
    dtype, cuda = promoted((x, y)), low.fake.device.type == "cuda"
    step = dtype if dtype == torch.bfloat16 or (cuda and dtype == torch.float16) else None
    return elementwise(low, lambda x, y: power(x, y, roots, step), (x, y))


@lowering(aten.round.decimals)
def round_decimals(low: Lowering, x: Value, decimals: int = 0) -> Any:
    if not x.dtype.is_floating_point:
        return NotImplemented
    ten = 10.0 ** abs(decimals)
    if decimals >= 0:
        return elementwise(low, lambda x: (x * ten).op("round") / ten, (x,))
    return elementwise(low, lambda x: (x / ten).op("round") * ten, (x,))


def least(dtype: torch.dtype, bound: Any) -> Any:
    """A lower bound.  A negative one is no bound for unsigned numbers if ATen treats it so."""
    if dtype == torch.uint8 and isinstance(bound, int) and bound < 0:
        return torch.clamp(torch.zeros((), dtype=dtype), min=bound).item()
    return bound


def _contains(dtype: torch.dtype, *bounds: Any) -> bool:
    """Whether an integer dtype contains the bounds.  Other bounds are left to ATen."""
    if dtype.is_floating_point or dtype == torch.bool:
        return True
    high = torch.iinfo(dtype).max
    return all(torch.iinfo(dtype).min <= b <= high for b in bounds if isinstance(b, int))


@cache
def _nan_bounds() -> bool:
    """Whether ATen returns NaN if the only bound is the number NaN (in torch 2.11 such a number is no bound)."""
    return bool(torch.clamp(torch.zeros(1), max=math.nan).isnan())


def _bound(smaller: bool, bound: Any) -> Tree:
    """The tree of one bound: the `smaller` of the two, or the other."""
    if isinstance(bound, Value):
        return minimum if smaller else maximum  # for equal zeros ATen keeps the bound
    may_be_nan = isinstance(bound, Real) or (isinstance(bound, float) and math.isnan(bound))
    if not may_be_nan or _nan_bounds():
        pick = minimum if smaller else maximum
        return lambda x, b: pick(b, x)  # for equal zeros ATen keeps the operand
    return lambda x, b: ((b < x) if smaller else (x < b)).where(b, x)


@lowering(aten.fmax, aten.fmin)
def fmax(low: Lowering, x: Any, y: Any) -> Value:
    """maximum/minimum that prefer the operand that is not NaN.

    Of two zeros the CPU's kernels return the first, those of bfloat16 the second.
    """
    pick = maximum if low.op._overloadpacket is aten.fmax else minimum
    other = low.fake.dtype == torch.bfloat16 or low.fake.device.type != "cpu"

    def tree(x: Val, y: Val) -> Val:
        picked = pick(x, y) if other else pick(y, x)
        return y.test("isnan").where(x, x.test("isnan").where(y, picked)) if is_float(x) else picked

    return elementwise(low, tree, (x, y))


@lowering(aten.clamp)
def clamp(low: Lowering, x: Value, min: Any = None, max: Any = None) -> Any:
    dtype = promoted((x, min, max))
    if not _contains(dtype, max, *((min,) if isinstance(min, int) and min > 0 else ())):
        return NotImplemented
    min = least(dtype, min)
    if not _contains(dtype, min):
        return NotImplemented
    if min is None or max is None:
        bound = max if min is None else min
        return elementwise(low, _bound(min is None, bound), (x, bound))

    def tree(x: Val, low_end: Val, high: Val) -> Val:
        if isinstance(min, Value):  # see `_bound`
            return minimum(maximum(x, low_end), high)
        return minimum(high, maximum(low_end, x))

    return elementwise(low, tree, (x, min, max))


@lowering(aten.clamp_min)
def clamp_min(low: Lowering, x: Value, bound: Any) -> Any:
    bound = least(promoted((x, bound)), bound)
    if not _contains(promoted((x, bound)), bound):
        return NotImplemented
    return elementwise(low, _bound(False, bound), (x, bound))


@lowering(aten.clamp_max)
def clamp_max(low: Lowering, x: Value, bound: Any) -> Any:
    if not _contains(promoted((x, bound)), bound):
        return NotImplemented
    return elementwise(low, _bound(True, bound), (x, bound))


@lowering(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(low: Lowering, condition: Value, x: Any, y: Any) -> Value:
    dtype = promoted((x, y))

    def tree(c: Val, *branches: Val) -> Val:
        given = iter(branches)
        yes, no = (next(given).to(dtype) if isinstance(v, Value) else c.body.const(v, dtype) for v in (x, y))
        return c.to(torch.bool).where(yes, no)

    return mixed(low, tree, [condition, *(v for v in (x, y) if isinstance(v, Value))])


@lowering(aten.masked_fill)
def masked_fill(low: Lowering, x: Value, mask: Value, value: Any) -> Value:
    if isinstance(value, Value):
        return mixed(low, lambda x, m, v: m.where(v.to(x.dtype), x), (x, mask, value))
    return mixed(low, lambda x, m: m.where(value, x), (x, mask))


@lowering(aten.addcmul)
def addcmul(low: Lowering, x: Value, a: Value, b: Value, *, value: Any = 1) -> Any:
    if not _contains(promoted((x, a, b)), value):
        return NotImplemented

    def tree(x: Val, a: Val, b: Val) -> Val:
        if value == 1:
            return plus_product(x, a, b)
        factor = number(x.body, value, x.dtype)
        return plus_product(x, a * b, factor) if low.fake.device.type == "cuda" else plus_product(x, a * factor, b)

    return elementwise(low, tree, (x, a, b))


@lowering(aten.linalg_cross)
def cross(low: Lowering, x: Value, y: Value, *, dim: int = -1) -> Any:
    if low.fake.dtype not in (torch.float32, torch.float64) or not x.shape == y.shape == to_exprs(low.fake.shape):
        return NotImplemented
    d, buffer = normal_dim(dim, x.rank), low.buffer_for(low.fake)

    def emit(body: BodyBuilder, index: Sequence[Expr]) -> Val:
        def part(v: Value, step: int) -> Val:
            return v.load(body, [(i + step) % 3 if k == d else i for k, i in enumerate(index)])

        return plus_product(-(part(x, 2) * part(y, 1)), part(x, 1), part(y, 2))

    return low.pointwise(emit, buffer)


@lowering(aten.addcdiv)
def addcdiv(low: Lowering, x: Value, a: Value, b: Value, *, value: Any = 1) -> Value:

    def tree(x: Val, a: Val, b: Val) -> Val:
        if value == 1:
            return x + a / b
        factor = number(x.body, value, x.dtype)
        return plus_product(x, a / b, factor) if low.fake.device.type == "cuda" else x + a * factor / b

    return elementwise(low, tree, (x, a, b))


@lowering(aten.lerp)
def lerp(low: Lowering, x: Value, end: Value, weight: Any) -> Value:
    cuda = low.fake.device.type == "cuda"

    def tree(x: Val, y: Val, w: Val) -> Val:
        # They differ in the sign of a zero.
        near_end = plus_product(y, -(y - x), 1 - w) if cuda else plus_product(y, w - 1, y - x)
        return (w.op("abs") < 0.5).where(plus_product(x, w, y - x), near_end)

    return elementwise(low, tree, (x, end, weight), exact=(2,))
