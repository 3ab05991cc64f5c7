"""A table of operators and compositions over dtypes, compiled in a few builds, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kernel_harness import build_all, lowered, run_plan

import pycompiler

f32, f64, bf16, f16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
i64, i32, i8, u8 = torch.int64, torch.int32, torch.int8, torch.uint8

UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc "
    "erfinv lgamma digamma sigmoid reciprocal neg abs sign floor ceil trunc round isnan isinf signbit square"
).split()
BINARY = "add sub mul true_divide floor_divide remainder fmod maximum minimum pow atan2 hypot copysign nextafter eq lt ge".split()
INTEGER = "add sub mul floor_divide remainder fmod maximum minimum bitwise_and bitwise_or bitwise_xor eq lt".split()
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-3, 1e3, float("inf"), -float("inf"), float("nan")])


def floats(dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([torch.linspace(-3, 3, 41), SPECIAL]).to(dtype)


def integers(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    info = torch.iinfo(dtype)
    a = torch.tensor([0, 1, 2, 7, 100, info.max, info.min, info.max - 1, 5, 9], dtype=dtype)
    b = torch.tensor([1, 3, 2, 5, 7, 2, 3, info.max, 4, 1], dtype=dtype)
    return a.repeat(5), b.repeat(5).roll(3)


Row = tuple[str, Callable[..., Any], list[torch.Tensor]]


def pointwise_rows() -> list[Row]:
    rows: list[Row] = []
    for name in UNARY:
        for dtype in (f32, bf16, f64) if name in ("exp", "log", "sigmoid", "round") else (f32, bf16):
            rows.append((f"{name} {dtype}", getattr(torch, name), [floats(dtype)]))
    for name in BINARY:
        for dtype in (f32, f16) if name not in ("nextafter", "pow") else (f32, f64):
            usual = floats(dtype)
            usual = usual[usual.isfinite() & (usual.abs() > 1e-2)] if name in ("remainder", "floor_divide") else usual
            a, b = (t.contiguous() for t in torch.meshgrid(usual[::3], usual[::2], indexing="ij"))
            rows.append((f"{name} {dtype}", getattr(torch, name), [a, b]))
    for name in INTEGER:
        for dtype in (i64, i32, i8, u8):
            rows.append((f"{name} {dtype}", getattr(torch, name), list(integers(dtype))))
    return rows


def composed_rows() -> list[Row]:
    r = torch.randn
    x, y = r(12, 40), r(12, 40)
    mask = torch.rand(12, 40) > 0.5
    image = r(2, 6, 9, 9)
    ids = torch.randint(0, 12, (5, 7))
    rows: list[Row] = [
        ("clamp", lambda x: x.clamp(-0.5, 0.7), [x]),
        ("where", lambda x, m: torch.where(m, x, 2.0), [x, mask]),
        ("masked_fill softmax", lambda x, m: x.masked_fill(m, float("-inf")).softmax(-1), [x, mask]),
        ("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), [x]),
        ("silu", F.silu, [x]), ("elu", F.elu, [x]), ("leaky", F.leaky_relu, [x]), ("softplus", F.softplus, [x]),
        ("hardswish", F.hardswish, [x]), ("mish", F.mish, [x]), ("logsigmoid", F.logsigmoid, [x]),
        ("var", lambda x: x.var(-1), [x]), ("std 0", lambda x: x.std(0), [x]), ("norm", lambda x: x.norm(dim=-1), [x]),
        ("prod", lambda x: x.prod(-1), [x * 0.1 + 1]), ("mean 0", lambda x: x.mean(0), [x]),
        ("amax all", lambda x: x.amax(), [x]), ("argmax", lambda x: x.argmax(-1), [x]), ("argmin 0", lambda x: x.argmin(0), [x]),
        ("argmax all", lambda x: x.argmax(), [x]), ("any", lambda m: m.any(-1), [mask]), ("all", lambda m: m.all(), [mask]),
        ("logsumexp", lambda x: x.logsumexp(-1), [x]), ("max values", lambda x: x.max(-1), [x]),
        ("cumulative", lambda x: x.cumsum(-1), [x]), ("integer sum", lambda m: m.sum(0), [mask]),
        ("flip", lambda x: x.flip(1) + x, [x]), ("roll", lambda x: x.roll(3, 1), [x]), ("pad", lambda x: F.pad(x, (2, 3, 1, 0)), [x]),
        ("slice", lambda x: x[2:9, 3::4] * 2, [x]), ("expand", lambda x: x[:, None].expand(12, 3, 40) + 1, [x]),
        ("cat", lambda x, y: torch.cat([x, y, x], 1), [x, y]), ("stack", lambda x, y: torch.stack([x, y], 1), [x, y]),
        ("split", lambda x: [t * 2 for t in x.split(10, 1)], [x]), ("tril", lambda x: x.tril(2), [x]),
        ("transpose", lambda x, y: x.T + y.reshape(40, 12), [x, y]), ("reshape", lambda x: x.reshape(4, 3, 8, 5).transpose(1, 2) + 1, [x]),
        ("embedding", lambda i, w: F.embedding(i, w), [ids, x]), ("gather", lambda x, i: x.gather(1, i), [x, torch.randint(0, 40, (12, 5))]),
        ("index", lambda x, i: x[i], [x, ids]), ("index negative", lambda x, i: x[i, 1:], [x, torch.tensor([-1, 0, -12])]),
        ("index_select", lambda x, i: x.index_select(1, i), [x, torch.tensor([3, 3, 0])]),
        ("scatter_add", lambda x, i, y: x.scatter_add(1, i, y), [x, torch.randint(0, 40, (12, 40)), y]),
        ("index_put", lambda x, i: x.index_put((i,), torch.ones(40)), [x, torch.tensor([3, 7])]),
        ("one_hot", lambda i: F.one_hot(i, 12), [ids]), ("arange", lambda x: x + torch.arange(40), [x]),
        ("batch_norm", lambda x: F.batch_norm(x, None, None, training=True), [image]),
        ("group_norm", lambda x: F.group_norm(x, 3), [image]), ("instance", lambda x: F.instance_norm(x), [image]),
        ("avg_pool", lambda x: F.avg_pool2d(x, 3), [image]), ("max_pool", lambda x: F.max_pool2d(x, 2), [image]),
        ("global pool", lambda x: x.mean((2, 3)), [image]), ("channels_last", lambda x: F.relu(x) + 1, [image.to(memory_format=torch.channels_last)]),
        ("upsample", lambda x: F.interpolate(x, scale_factor=2.0), [image]), ("glu", lambda x: F.glu(x), [x]),
        ("cross_entropy smooth", lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), [x, torch.randint(0, 40, (12,))]),
        ("bce", lambda x, m: F.binary_cross_entropy_with_logits(x, m.float()), [x, mask]), ("smooth_l1", F.smooth_l1_loss, [x, y]),
        ("kl", lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"), [x, y]),
        ("cosine", lambda x, y: F.cosine_similarity(x, y), [x, y]), ("normalize", F.normalize, [x]),
        ("mixed", lambda x, y: (x.to(bf16) * y).to(f16) + 1, [x, y]), ("to int", lambda x: (x * 10).to(i32) // 3, [x]),
        ("bool algebra", lambda m, x: (m & (x > 0)) | ~m, [mask, x]), ("scalar", lambda x: x.sum() * 2 + x[0, 0], [x]),
        ("shifts", lambda i: (i << 3) >> 1, [ids]), ("bitcast", lambda x: x.view(i32) & 0xFF, [x]),
        ("size one", lambda x: x[:1].sum(0, keepdim=True) + x[:, :1], [x]), ("empty", lambda x: (x[:0].sum(0), x[:, :0] + 1), [x]),
    ]  # fmt: skip
    for dtype in (bf16, f16, f64):
        rows.append((f"softmax {dtype}", lambda x: x.softmax(-1), [x.to(dtype)]))
        rows.append((f"layer_norm {dtype}", lambda x: F.layer_norm(x, (40,)), [x.to(dtype)]))
        rows.append((f"sum 0 {dtype}", lambda x: x.sum(0), [x.to(dtype)]))
        rows.append((f"amax {dtype}", lambda x: x.amax(1), [x.to(dtype)]))
    return rows


def tolerance(t: torch.Tensor) -> dict[str, float]:
    return (
        {"rtol": 2e-2, "atol": 2e-2}
        if t.dtype in (bf16, f16)
        else {"rtol": 1e-5, "atol": 2e-5}
        if t.dtype == f32
        else {}
    )


@pytest.mark.parametrize("rows", [pointwise_rows, composed_rows])
def test_operators(rows: Callable[[], list[Row]]) -> None:
    torch.manual_seed(0)
    table = rows()
    plans = build_all([lowered(f, args, f"g{k}") for k, (_, f, args) in enumerate(table)])
    wrong = []
    for (name, f, args), plan in zip(table, plans, strict=True):
        want = f(*args)
        want = list(want) if isinstance(want, tuple | list) else [want]
        try:
            for a, b in zip(run_plan(plan, args), want, strict=True):
                torch.testing.assert_close(a, b, equal_nan=True, **tolerance(b))
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__} {error}")
    assert not wrong, "\n".join(wrong)


def test_extremes_are_found_where_products_and_sums_are_contracted() -> None:
    """The position of the extreme must match the stored number, which a second computation might round differently."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.square()
        least = y.argmin()
        return least, *(y + 3).max(0)

    compiled = pycompiler.compile(fn, backend="native")
    for seed in range(20):
        x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        for want, got in zip(fn(x), compiled(x), strict=True):
            torch.testing.assert_close(got, want)
