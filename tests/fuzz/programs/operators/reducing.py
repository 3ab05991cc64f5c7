"""Reductions over any dimensions, norms, softmax, scans, losses, pooling."""

from __future__ import annotations

import torch

from ..generate import Scene, Unfit, operator


def over(g: Scene, t: torch.Tensor) -> str:
    """Dimensions as arguments: all or some, with or without `keepdim`."""
    if not t.dim() or g.rng.random() < 0.12:
        return ""
    dims = g.dims(t)
    text = str(dims[0]) if len(dims) == 1 else f"({', '.join(map(str, dims))})"
    return text + (", keepdim=True" if g.rng.random() < 0.5 else "")


def one(g: Scene, t: torch.Tensor) -> str:
    return f"{g.dim(t)}" + (", keepdim=True" if g.rng.random() < 0.5 else "")


@operator(5)
def reduce(g: Scene) -> str:
    v = g.number()
    t = g.live[v]
    if t.is_floating_point() or t.is_complex():
        return f"{v}.{g.some('sum', 'sum', 'mean')}({over(g, t)})"
    return f"{v}.sum({over(g, t)})"


@operator(2.5)
def extreme(g: Scene) -> str:
    v = g.real(1)
    t = g.of(v)
    return g.some(f"{v}.amax({over(g, t)})", f"{v}.amin({over(g, t)})", f"{v}.max({one(g, t)})[0]", f"{v}.min({one(g, t)}).values",
                  f"{v}.max()", f"{v}.argmax({one(g, t)})", f"{v}.argmin()", f"{v}.aminmax(dim={g.dim(t)})[1]", f"{v}.max({one(g, t)})[1]",
                  f"{v}.max({one(g, t)}).values * 2")  # fmt: skip


@operator(2)
def spread(g: Scene) -> str:
    v = g.real(1)
    t = g.of(v)
    dims = over(g, t) or "-1"
    rest = dims + g.some("", "", ", correction=0") if t.dim() else ""
    return g.some(f"{v}.var({rest})", f"({v} + torch.arange({v}.shape[-1], device=DEVICE)).std({rest})", f"torch.var_mean({v}, {rest})[{g.some('0', '1')}]",
                  f"torch.logsumexp({v}, {dims})", f"({v} * 0.5 + 1).prod({one(g, t)})")  # fmt: skip


@operator(1)
def truth(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0)
    t = g.live[v]
    return g.some(
        f"({v} != 0).any({one(g, t)})",
        f"({v} == 0).all()",
        f"({v} != 0).{g.some('amin', 'amax')}({over(g, t)})",
        f"{v}.count_nonzero({g.dim(t)})",
        f"({v} != 0).sum({over(g, t)})",
    )


@operator(1.5)
def norm(g: Scene) -> str:
    v = g.real(1)
    t = g.of(v)
    d = g.dim(t)
    return g.some(f"torch.linalg.vector_norm({v}, {g.some('1', '2', '3')}, {d})", f"{v}.norm()", f"F.normalize({v}, dim={d})",
                  f"({v} + 0.1).norm(dim={d}, keepdim=True)", f"torch.linalg.vector_norm({v}, float('inf'), {d})",
                  f"F.cosine_similarity({v}, {v} + 1, dim={d})", f"F.pairwise_distance({v}, {v} * 2 + 1)", f"F.rms_norm({v}, {v}.shape[-1:])")  # fmt: skip


@operator(3)
def softmax(g: Scene) -> str:
    v = g.real(1)
    t = g.of(v)
    d = g.dim(t)
    return g.some(f"F.softmax({v}, {d})", f"F.log_softmax({v}, {d})", f"torch.softmax({v} * 2, {d})", f"F.softmin({v}, {d})",
                  f"{v}.softmax({d}) * {v}")  # fmt: skip


@operator(2.5)
def normalize(g: Scene) -> str:
    v = g.real(1)
    t = g.of(v)
    if not t.numel():
        raise Unfit
    last = t.shape[-1:]
    if t.dim() > 1 and g.rng.random() < 0.3:
        last = t.shape[-2:]
    plain = f"F.layer_norm({v}, {tuple(last)})"
    if g.rng.random() < 0.4:
        return plain
    if g.rng.random() < 0.6 and t.dim() > 1:
        c = t.shape[1]
        w = g.fit((c,), t.dtype, exact=True)
        # Bug of eager: batch_norm's gradients are wrong for a strided weight, or an input that only resembles
        # channels last.
        return g.some(
            f"F.batch_norm({v}.contiguous(), None, None, {w}.contiguous(), None, True)",
            f"F.group_norm({v}, 1, {w})",
            f"F.instance_norm({v})",
        )
    w, b = g.fit(last, t.dtype, exact=True), g.fit(last, t.dtype, exact=True)
    return f"F.layer_norm({v}, {tuple(last)}, {w}, {b})"


@operator(0.8)
def batch_norm_running(g: Scene) -> str:
    v = g.real(2)
    t = g.of(v)
    c = t.shape[1]
    mean, var = g.plain((c,), t.dtype), g.plain((c,), t.dtype)
    n = g.name()
    training = g.some("True", "True", "False")
    positive = f"{var}.abs_()\n" if training == "False" else ""
    return f"!{positive}{n} = F.batch_norm({v}.contiguous(), {mean}, {var}, None, None, {training}, 0.1)"


@operator(2)
def scan(g: Scene) -> str:
    v = g.number(1)
    t = g.live[v]
    d = g.dim(t)
    if not t.is_floating_point():
        return f"{v}.cumsum({d})"
    return g.some(f"{v}.cumsum({d})", f"{v}.cumsum({d})", f"({v}.tanh() + 1.5).cumprod({d})", f"torch.logcumsumexp({v}, {d})",
                  f"{v}.cummax({d})[0]", f"{v}.cummin({d}).values", f"torch.diff({v}, dim={d})",
                  f"{v}.cumsum({d}, dtype=torch.float64)", f"torch.trapezoid({v}, dim={d})")  # fmt: skip


@operator(1.5)
def loss(g: Scene) -> str:
    v = g.real(1)
    t = g.of(v)
    w = g.fit(t.shape, t.dtype, exact=True)
    how = g.some("", ", reduction='sum'", ", reduction='none'")
    texts = [f"F.mse_loss({v}, {w}{how})", f"F.l1_loss({v}, {w}{how})", f"F.smooth_l1_loss({v}, {w}{how})", f"F.huber_loss({v}, {w}{how})",
             f"F.binary_cross_entropy_with_logits({v}, {w}.sigmoid(){how})", f"F.kl_div(F.log_softmax({v}, -1), F.softmax({w}, -1){how})",
             f"F.soft_margin_loss({v}, {w}.sign(){how})"]  # fmt: skip
    if t.dim() == 2 and t.numel():
        i = g.index(t.shape[1], t.shape[:1])
        texts += [f"F.cross_entropy({v}, {i}{how})", f"F.nll_loss(F.log_softmax({v}, 1), {i}{how})",
                  f"F.cross_entropy({v}, {i}, label_smoothing=0.1, ignore_index=0{how})"] * 2  # fmt: skip
    return g.rng.choice(texts)


@operator(1)
def pool(g: Scene) -> str:
    v = g.tensor(lambda t: t.is_floating_point() and t.dim() in (3, 4) and min(t.shape) > 0)
    k, p = g.some("1", "2"), g.some("0", "1")
    kind = 1 if g.live[v].dim() == 3 and g.rng.random() < 0.7 else 2
    return g.some(f"F.avg_pool{kind}d({v}, 2, {k}, {p})", f"F.max_pool{kind}d({v}, 2, {k}, {p})", f"F.adaptive_avg_pool{kind}d({v}, {g.some('1', '2', '3')})",
                  f"F.interpolate({v}, scale_factor=2)", f"F.adaptive_max_pool{kind}d({v}, 1)", f"F.max_pool{kind}d({v}, 3, 2, 1)")  # fmt: skip


@operator(0.7)
def centred(g: Scene) -> str:
    v = g.real(1)
    d = g.dim(g.of(v))
    return g.some(f"{v} - {v}.mean({d}, keepdim=True)", f"{v} / ({v}.abs().amax({d}, keepdim=True) + 1)",
                  f"({v} - {v}.mean({d}, True)) * torch.rsqrt({v}.var({d}, correction=0, keepdim=True) + 0.1)")  # fmt: skip
