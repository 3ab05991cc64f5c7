"""Products of matrices, convolutions, attention."""

from __future__ import annotations

import torch

from ..generate import Scene, Unfit, operator


@operator(3)
def matmul(g: Scene) -> str:
    v = g.tensor(lambda t: t.is_floating_point() and t.dim() > 0)
    t = g.live[v]
    n, k = t.shape[-1], g.rng.choice([*g.sizes, 1])
    kind = g.rng.random()
    if kind < 0.3:
        return f"{v} @ {g.fit((n, k), t.dtype, exact=True)}"
    if kind < 0.5:
        w = g.fit((k, n), t.dtype, exact=True)
        return g.some(
            f"F.linear({v}, {w})", f"F.linear({v}, {w}, {g.fit((k,), t.dtype, exact=True)})", f"{v} @ {w}.t()"
        )
    if kind < 0.65:
        return f"{v} @ {g.fit((n,), t.dtype, exact=True)}"
    if t.dim() < 2:
        return g.some(f"torch.outer({v}, {v})", f"torch.dot({v}, {v})", f"{v} @ {v}")
    if t.dim() == 3 and kind < 0.8:
        w = g.fit((t.shape[0], n, k), t.dtype, exact=True)
        return g.some(f"torch.bmm({v}, {w})", f"torch.einsum('bij,bjk->bki', {v}, {w})")
    if t.dim() == 2 and kind < 0.9:
        a = g.fit((t.shape[0], k), t.dtype)
        return f"torch.addmm({a}, {v}, {g.fit((n, k), t.dtype, exact=True)}, beta=0.5)"
    return g.some(
        f"{v} @ {v}.mT",
        f"{v}.mT @ {v}",
        f"torch.einsum('...ij->...ji', {v})",
        f"torch.einsum('...ij,...ij->...i', {v}, {v})",
    )


@operator(1)
def convolution(g: Scene) -> str:
    v = g.tensor(lambda t: t.is_floating_point() and t.dim() in (3, 4) and min(t.shape) > 0)
    t = g.live[v]
    channels, made = t.shape[1], g.rng.randint(1, 3)
    if channels > 16:
        raise Unfit
    kernel = tuple(g.rng.randint(1, min(3, n + 2)) for n in t.shape[2:])
    w = g.fit((made, channels, *kernel), t.dtype, exact=True)
    extra = g.some("", ", padding=1", ", stride=2, padding=1", ", padding=1, dilation=2")
    if t.dtype in (torch.bfloat16, torch.float16):
        extra = ""  # bug of eager (oneDNN): a weight that meets only padding gets uninitialised memory as gradient
    if g.rng.random() < 0.2:
        w = g.fit((channels, made, *kernel), t.dtype, exact=True)
        return f"F.conv_transpose{t.dim() - 2}d({v}, {w}{g.some('', ', stride=2')})"
    bias = f", {g.fit((made,), t.dtype, exact=True)}" if g.rng.random() < 0.5 else ""
    return f"F.conv{t.dim() - 2}d({v}, {w}{bias}{extra})"


@operator(0.6)
def attention(g: Scene) -> str:
    v = g.tensor(lambda t: t.is_floating_point() and t.dim() in (3, 4) and min(t.shape) > 0)
    k = g.fit(g.live[v].shape, g.live[v].dtype, exact=True)
    return f"F.scaled_dot_product_attention({v}, {k}, {v} * 0.5{g.some('', ', is_causal=True')})"


@operator(0.4)
def factor(g: Scene) -> str:
    v = g.tensor(lambda t: str(t.dtype) in ("torch.float64", "torch.float32") and t.dim() == 2 and t.shape[0] > 0)
    n = g.live[v].shape[0]
    square = f"({v} @ {v}.t() + {n + 1} * torch.eye({n}, dtype={v}.dtype, device=DEVICE))"
    return g.some(f"torch.linalg.inv({square})", f"torch.linalg.cholesky({square})", f"torch.linalg.solve({square}, {v})", f"torch.trace({square})",
                  f"torch.linalg.det({square} / {n + 2})")  # fmt: skip
