"""Sorts, top k, positions, buckets."""

from __future__ import annotations

from ..generate import Scene, Unfit, operator


@operator(1.5)
def sort(g: Scene) -> str:
    v = g.real(1)
    t = g.of(v)
    d = g.dim(t)
    n = t.shape[d]
    if not n:
        raise Unfit
    k = g.rng.randint(1, n)  # (torch reads uninitialised memory for the median of a wide view along another dimension)
    return g.some(f"torch.sort({v}, {d})[0]", f"torch.sort({v}, {d}, descending=True).values", f"{v}.argsort({d}, stable=True)",
                  f"torch.topk({v}, {k}, {d})[0]", f"torch.topk({v}, {k}, {d}).indices", f"torch.kthvalue({v}, {k}, {d})[0]",
                  f"torch.median({v}.contiguous(), {d})[0]", f"torch.msort({v})", f"{v}.quantile(0.5, {d})" if str(t.dtype) in ("torch.float64", "torch.float32") else f"{v}.median()")  # fmt: skip


@operator(0.7)
def several(g: Scene) -> str:
    """Statements that bind two names."""
    v = g.real(1)
    t = g.of(v)
    d = g.dim(t)
    n = t.shape[d]
    if n < 2:
        raise Unfit
    a, b = g.name(), g.name()
    return "!" + f"{a}, {b} = " + g.some(
        f"torch.sort({v}, {d}, stable=True)", f"{v}.max({d})", f"{v}.split(({n - 1}, 1), {d})", f"torch.var_mean({v}, {d})", f"{v}.topk(2, {d})",
        f"torch.frexp({v})", f"{v}.tensor_split(2, {d})", f"torch.aminmax({v}, dim={d})", f"{v}.sort({d}, True)")  # fmt: skip


@operator(0.7)
def buckets(g: Scene) -> str:
    v = g.real(1)
    return g.some(f"torch.bucketize({v}.detach(), torch.linspace(-1, 1, 5, dtype={v}.dtype, device=DEVICE))",
                  f"torch.searchsorted(torch.arange(4.0, dtype={v}.dtype, device=DEVICE), {v}.detach())",
                  f"torch.heaviside({v}, torch.ones((), dtype={v}.dtype, device=DEVICE))", f"torch.isin({v}, {v}[:1])",
                  f"torch.histc({v}.detach().float(), 4, -2, 2)", f"torch.bincount({v}.detach().abs().long().flatten(), minlength=3)")  # fmt: skip
