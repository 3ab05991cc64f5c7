"""Pointwise arithmetic, functions, comparisons, casts, masks."""

from __future__ import annotations

import torch

from ..generate import Scene, Unfit, operator

BOUNDED = ("sin", "cos", "tanh", "sigmoid", "erf", "atan", "relu", "abs", "neg", "square", "sgn", "floor", "round",
           "frac", "sign", "asinh", "trunc", "ceil", "logical_not", "isnan", "sinc")  # fmt: skip
ACTIVATIONS = ("gelu", "silu", "softplus", "elu", "leaky_relu", "hardsigmoid", "hardswish", "hardtanh", "mish", "selu", "relu6", "celu",
               "logsigmoid", "softsign", "tanhshrink", "softshrink", "hardshrink")  # fmt: skip


@operator(7)
def arithmetic(g: Scene) -> str:
    v = g.number()
    w = g.fit(g.of(v).shape)
    return g.some(f"{v} + {w}", f"{v} * {w}", f"{v} - {w}", f"torch.maximum({v}, {w})", f"torch.minimum({v}, {w})",
                  f"torch.add({v}, {w}, alpha={g.some('2', '-1', '0.5')})")  # fmt: skip


@operator(3)
def with_scalar(g: Scene) -> str:
    v, s = g.tensor(), g.scalar()
    return g.some(f"{v} * {s}", f"{v} + {s}", f"{s} - {v}", f"{v} / {s}", f"{v}.clamp(-1, {s})", f"{v}.clamp_min({s})")


@operator(1.2)
def outer(g: Scene) -> str:
    v, w = g.real(1), g.real(1)
    return g.some(f"{v}[..., None] * {w}", f"{v}.unsqueeze(0) + {w}.unsqueeze(-1)", f"{v}[:, None] - {w}")


@operator(1.5)
def divide(g: Scene) -> str:
    v = g.number()
    w = g.fit(g.of(v).shape)
    return g.some(f"{v} / ({w}.abs() + 0.5)", f"{v} / ({w} * {w} + 1)", f"torch.div({v}, {w}.abs() + 1, rounding_mode={g.some(repr('floor'), repr('trunc'))})",
                  f"torch.remainder({v}, {w}.abs() + 1)", f"torch.fmod({v}, {w}.abs() + 1)", f"{v} // 2", f"{v} % 3")  # fmt: skip


@operator(4)
def unary(g: Scene) -> str:
    v = g.tensor()
    return f"{v}.{g.rng.choice(BOUNDED)}()" if g.rng.random() < 0.9 else f"torch.{g.rng.choice(BOUNDED)}({v})"


@operator(2)
def careful(g: Scene) -> str:
    """Functions applied within their domain."""
    v = g.real()
    return g.some(f"{v}.clamp(-3, 3).exp()", f"torch.log({v}.abs() + 0.5)", f"torch.sqrt({v}.abs() + 0.1)",
                  f"torch.rsqrt({v}.abs() + 0.1)", f"torch.reciprocal({v}.abs() + 0.5)", f"torch.log1p({v}.abs())",
                  f"torch.expm1({v}.clamp(max=2))", f"torch.pow({v}.abs() + 0.1, {g.some('2', '0.5', '3', '-1', '1.5')})",
                  f"{v} ** {g.some('2', '3')}", f"torch.atan2({v}, {v}.abs() + 1)", f"torch.acos({v}.tanh() * 0.9)",
                  f"torch.xlogy({v}, {v}.abs() + 1)", f"torch.hypot({v}, {v}.abs() + 1)", f"torch.lgamma({v}.abs() + 1)",
                  f"torch.digamma({v}.abs() + 1)", f"{v}.logit(0.1)", f"torch.special.entr({v}.abs() + 0.1)",
                  f"torch.nan_to_num({v}, nan=1.0)", f"torch.erfc({v})", f"torch.special.i0({v}.clamp(-3, 3))")  # fmt: skip


@operator(2)
def activation(g: Scene) -> str:
    v = g.real()
    return f"F.{g.rng.choice(ACTIVATIONS)}({v})"


@operator(0.6)
def gated(g: Scene) -> str:
    v = g.real(1)
    d = g.dim(g.of(v))
    return g.some(f"F.glu({v}, {d})", f"F.prelu({v}, torch.full((1,), 0.3, dtype={v}.dtype, device=DEVICE))",
                  f"F.threshold({v}, 0.1, 5.0)", f"F.gelu({v}, approximate='tanh')", f"{v} * torch.sigmoid({v})")  # fmt: skip


@operator(3)
def where(g: Scene) -> str:
    v = g.tensor()
    shape = g.live[v].shape
    m, s = g.mask(shape), g.scalar()
    w = g.fit(shape)
    return g.some(f"torch.where({m}, {v}, {w})", f"torch.where({m}, {v}, {s})", f"torch.where({m}, {w}, {v})",
                  f"{v}.masked_fill({m}, {s})", f"{v} * {m}", f"torch.where({v} > {s}, {v}, {w})")  # fmt: skip


@operator(2)
def compare(g: Scene) -> str:
    v = g.tensor(lambda t: not t.is_complex())
    w = g.fit(g.live[v].shape) if g.rng.random() < 0.6 else g.scalar()
    # two computed numbers are never compared for equality: rounding would decide the result
    return f"{v} {g.some('>', '<', '>=', '<=') if g.live[v].is_floating_point() else g.some('>', '<=', '==', '!=')} {w}"


@operator(0.8)
def logic(g: Scene) -> str:
    v = g.tensor(lambda t: t.dtype == torch.bool)
    w = g.fit(g.live[v].shape, torch.bool)
    return f"{v} {g.some('&', '|', '^')} {w}" if g.rng.random() < 0.8 else f"~{v}"


@operator(3)
def cast(g: Scene) -> str:
    v = g.tensor()
    kinds = [*map(str, g.dtypes), "torch.float32", "torch.float64", "torch.int64", "torch.int32", "torch.bool"]
    if g.live[v].is_complex():
        kinds = ["torch.complex64", "torch.complex128"]
    text = f"{v}.to({g.rng.choice(kinds)})"
    return g.rng.choice((text, text, text, f"{v}.double()", f"{v}.float()", f"{v}.type_as({g.tensor()})"))


@operator(1)
def integers(g: Scene) -> str:
    v = g.tensor(lambda t: not t.is_floating_point() and not t.is_complex() and t.dtype != torch.bool)
    return g.some(f"{v} * 3 - 1", f"{v} & 7", f"{v} >> 1", f"{v} % 5", f"{v} // 3", f"{v}.abs()", f"~{v}", f"-{v}",
                  f"{v} ** 2", f"{v}.clamp(0, 3)", f"{v} / 4", f"torch.bitwise_xor({v}, 3)")  # fmt: skip


@operator(1.5)
def ternary(g: Scene) -> str:
    v = g.real()
    shape = g.of(v).shape
    a, b = g.fit(shape), g.fit(shape)
    return g.some(f"torch.addcmul({v}, {a}, {b}, value=0.5)", f"torch.lerp({v}, {a}, 0.3)", f"{v} * {a} + {b}",
                  f"torch.addcdiv({v}, {a}, {b}.abs() + 1)", f"torch.clamp({v}, {a} - 1, {a} + 1)")  # fmt: skip


@operator(0.7)
def created(g: Scene) -> str:
    v = g.tensor()
    shape = tuple(g.live[v].shape)
    return g.some(f"{v} + torch.zeros_like({v})", f"torch.ones_like({v})", f"torch.full_like({v}, 2)",
                  f"torch.arange({max(1, shape[-1] if shape else 1)}, device=DEVICE) * {v}",
                  f"{v}.new_zeros({shape})", f"torch.linspace(0, 1, {max(1, shape[-1] if shape else 1)}, device=DEVICE)",
                  f"torch.eye({g.rng.choice(g.sizes)}, dtype={g.dtype()}, device=DEVICE)")  # fmt: skip


@operator(0.8)
def constants(g: Scene) -> str:
    """Tensors that become constants of the graph."""
    v = g.real(1)
    n = g.of(v).shape[-1]
    if not 1 < n < 50:
        raise Unfit
    values = [round(g.rng.uniform(-2, 2), 2) for _ in range(n)]
    c = f"torch.tensor({values}, dtype={g.of(v).dtype}, device=DEVICE)"
    return g.some(f"{v} * {c}", f"torch.cat([{c}, {c}[1:]])", f"F.pad({c}, (1, -1))", f"{c}[{g.index(n, (3,))}]", f"F.pad({c}[{g.index(n, (3,))}], (1, 1))",
                  f"{v} @ {c}", f"torch.cat([{v}.flatten(), {c}])", f"torch.cat([{v}.cos().sum(-1).flatten()[:2], {c}])", f"torch.cumsum({c}, 0)")  # fmt: skip


@operator(0.5)
def python_number(g: Scene) -> str:
    v, w = g.real(), g.real()
    if g.rng.random() < 0.5:
        return f"{v} * {w}.detach().mean().item()"
    n = g.name()
    return f"!if ({w}.detach() > 0).any():\n    {n} = {v} * 2\nelse:\n    {n} = {v} - 1"


@operator(0.8)
def without_grad(g: Scene) -> str:
    v, w = g.number(), g.tensor()
    n = g.name()
    how = g.some("torch.no_grad()", "torch.no_grad()", "torch.enable_grad()", "torch.set_grad_enabled(False)")
    return f"!with {how}:\n    {n} = {v} * {w}"
