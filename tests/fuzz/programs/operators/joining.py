"""cat and stack of pieces, pads of either sign, writes of a piece into a copy."""

from __future__ import annotations

from ..generate import Scene, Unfit, operator
from ..overlaps import touched


@operator(4)
def cat_pieces(g: Scene) -> str:
    """A tensor cut into pieces (also of one element or none) and joined again in some order, some pieces computed."""
    v = g.real(1)
    t = g.of(v)
    d = g.rng.randrange(t.dim())
    n, r = t.shape[d], g.rng
    cuts = sorted([0, n, *(r.randint(0, n) for _ in range(r.randint(1, 2)))])
    lead = ":, " * d
    parts = [f"{v}[{lead}{a}:{b}]" for a, b in zip(cuts, cuts[1:], strict=False)]
    parts = [r.choice((p, p, p, f"{p} * 2", f"{p}.sin()", f"{p}.flip({d})")) for p in parts]
    if r.random() < 0.5:
        r.shuffle(parts)
    back = g.some(str(d), str(d - t.dim()))
    return f"torch.cat([{', '.join(parts)}], {back})"


@operator(3)
def cat(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0)
    t = g.live[v]
    d = g.dim(t)
    parts = [v]
    for _ in range(g.rng.randint(1, 2)):
        w = g.fit(t.shape, exact=True)
        n = g.of(w).shape[d]
        lead = ":, " * (d % t.dim())
        cut = f"({w})[{lead}{g.rng.randint(0, n)}:{n}]" if g.rng.random() < 0.4 else w
        parts.append(cut)
    g.rng.shuffle(parts)
    return f"torch.{g.some('cat', 'cat', 'concat')}([{', '.join(parts)}], {d})"


@operator(2)
def stack(g: Scene) -> str:
    v = g.tensor()
    t = g.live[v]
    parts = [v, *(g.fit(t.shape, exact=True) for _ in range(g.rng.randint(1, 2)))]
    d = g.rng.randrange(-t.dim() - 1, t.dim() + 1)
    return g.some(
        f"torch.stack([{', '.join(parts)}], {d})",
        f"torch.stack([{', '.join(parts)}], {d})",
        f"torch.hstack([{', '.join(parts)}])",
        f"torch.vstack([{', '.join(parts)}])",
    )


@operator(3)
def pad(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0 and t.numel() > 0)
    t = g.live[v]
    r = g.rng
    if r.random() < 0.2 and t.dim() in (2, 3, 4) and t.is_floating_point():
        return (
            f"F.pad({v}, (1, {r.randint(0, 1)}), mode={g.some(repr('reflect'), repr('replicate'), repr('circular'))})"
        )
    amounts = []
    for n in list(reversed(t.shape))[: r.randint(1, min(3, t.dim()))]:
        amounts += [r.randint(-min(2, n), 2), r.randint(-1, 2)]
    value = g.some("", ", value=1", ", value=-0.5") if t.is_floating_point() else ""
    return f"F.pad({v}, ({', '.join(map(str, amounts))}){value})"


@operator(2)
def write_piece(g: Scene) -> str:
    """select_scatter, slice_scatter, diagonal_scatter, as_strided_scatter."""
    v = g.real(1)
    t = g.of(v)
    if not t.numel() or len(touched(t)) != t.numel():  # eager copies such a layout, and writes elements twice
        raise Unfit
    r = g.rng
    d = r.randrange(t.dim())
    n = t.shape[d]
    lead = t.shape[:d] + t.shape[d + 1 :]
    kind = r.random()
    if kind < 0.4:
        return f"torch.select_scatter({v}, {g.fit(lead, t.dtype, exact=True)}, {d}, {r.randrange(-n, n)})"
    if kind < 0.85 or t.dim() < 2:
        start = r.randrange(n)
        step = r.choice((1, 2))
        end = r.randint(start, n)
        shape = (*t.shape[:d], -(-(end - start) // step), *t.shape[d + 1 :])
        return f"torch.slice_scatter({v}, {g.fit(shape, t.dtype, exact=True)}, {d}, {start}, {end}, {step})"
    diagonal = t.diagonal()
    return f"torch.diagonal_scatter({v}, {g.fit(diagonal.shape, t.dtype, exact=True)})"


@operator(1)
def broadcast(g: Scene) -> str:
    v, w = g.tensor(), g.tensor()
    return g.some(f"torch.broadcast_tensors({v}, {w})[{g.some('0', '1')}]", f"{v}.expand_as({w})", f"torch.meshgrid({v}.flatten(), {w}.flatten(), indexing='ij')[0]",
                  f"torch.block_diag({v}[:2], {w}[:2])", f"torch.kron({v}[:3], {w}[:2])", f"torch.cartesian_prod({v}.flatten()[:3], {v}.flatten()[:2])")  # fmt: skip
