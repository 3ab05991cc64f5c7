"""Reads and writes by index tensors and masks, out of place."""

from __future__ import annotations

from ..generate import Scene, Unfit, operator


@operator(2.5)
def gather(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0 and t.numel() > 0)
    t = g.live[v]
    d = g.dim(t)
    shape = list(t.shape)
    shape[d] = g.rng.randint(1, 4)
    for k in range(len(shape)):
        if k != d % t.dim() and g.rng.random() < 0.2:
            shape[k] = g.rng.randint(1, shape[k])
    return f"{v}.gather({d}, {g.index(t.shape[d], shape)})"


@operator(0.5)
def take(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0 and t.numel() > 0)
    t = g.live[v]
    d = g.dim(t)
    return g.some(
        f"torch.take({v}, {g.index(t.numel(), (2, 3))})",
        f"torch.take_along_dim({v}, {v}.argsort({d}, stable=True), {d})",
    )


@operator(2)
def index_select(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0 and t.numel() > 0)
    t = g.live[v]
    d = g.dim(t)
    return f"{v}.index_select({d}, {g.index(t.shape[d], (g.rng.randint(1, 5),))})"


@operator(3)
def index(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0 and t.numel() > 0)
    t = g.live[v]
    shape = t.shape
    r = g.rng
    kind = r.random()
    if kind < 0.2 and t.dim() > 1:
        return f"{v}[:, {g.index(shape[1], (r.randint(1, 4),), negative=True)}]"
    if kind < 0.45 and t.dim() > 1:
        k = r.randint(1, 4)
        return f"{v}[{g.index(shape[0], (k,), True)}, {g.index(shape[1], (k,), True)}]"
    if kind < 0.55 and t.dim() > 1:
        return f"{v}[{g.index(shape[0], (3, 1), True)}, {g.index(shape[1], (2,), True)}]"
    if kind < 0.65 and t.dim() > 2:
        return f"{v}[{g.index(shape[0], (2,), True)}, :, {g.index(shape[2], (2,), True)}]"
    if kind < 0.75:
        return f"{v}[..., {[r.randrange(-shape[-1], shape[-1]) for _ in range(3)]}]"
    return f"{v}[{g.index(shape[0], r.choice(((2,), (3,), (2, 2))), negative=True)}]"


@operator(2.5)
def scatter(g: Scene) -> str:
    """scatter to distinct places; scatter_add and scatter_reduce to any."""
    v = g.real(1)
    t = g.of(v)
    if not t.numel():
        raise Unfit
    d = g.dim(t)
    n = t.shape[d]
    shape = list(t.shape)
    kind = g.rng.random()
    if kind < 0.4:
        k = g.rng.randint(1, n)
        shape[d] = k
        at = [1] * t.dim()
        at[d] = k
        i = f"{g.different(n, k)}.view({', '.join(map(str, at))}).expand({', '.join(map(str, shape))})"
        if g.rng.random() < 0.3:
            return f"{v}.scatter({d}, {i}, {g.scalar()})"
        return f"{v}.scatter({d}, {i}, {g.fit(shape, t.dtype, exact=True)})"
    shape[d] = g.rng.randint(1, 4)
    i, w = g.index(n, shape), g.fit(shape, t.dtype, exact=True)
    if kind < 0.8:
        return f"{v}.scatter_add({d}, {i}, {w})"
    how = g.some("sum", "amax", "amin", "mean", "prod")
    return f"{v}.scatter_reduce({d}, {i}, {w}, {how!r}, include_self={g.some('True', 'False')})"


@operator(2)
def index_write(g: Scene) -> str:
    v = g.real(1)
    t = g.of(v)
    if not t.numel():
        raise Unfit
    d = g.dim(t)
    n = t.shape[d]
    shape = list(t.shape)
    if g.rng.random() < 0.5:
        k = g.rng.randint(1, 4)
        shape[d] = k
        i, w = g.index(n, (k,)), g.fit(shape, t.dtype, exact=True)
        return g.some(f"{v}.index_add({d}, {i}, {w})", f"{v}.index_add({d}, {i}, {w}, alpha=2)", f"{v}.index_fill({d}, {i}, 1.5)",
                      f"{v}.index_reduce({d}, {i}, {w}, {g.some(repr('amax'), repr('mean'), repr('prod'))})")  # fmt: skip
    k = g.rng.randint(1, n)
    shape[d] = k
    return f"{v}.index_copy({d}, {g.different(n, k)}, {g.fit(shape, t.dtype, exact=True)})"


@operator(2.5)
def index_put(g: Scene) -> str:
    v = g.real(1)
    t = g.of(v)
    if not t.numel():
        raise Unfit
    n = t.shape[0]
    kind = g.rng.random()
    if kind < 0.35:
        m = g.mask(t.shape)
        return f"torch.index_put({v}, (({m}).expand({tuple(t.shape)}),), torch.full((), 0.3, dtype={t.dtype}, device=DEVICE))"
    if kind < 0.65:
        k = g.rng.randint(1, 4)
        w = g.fit((k, *t.shape[1:]), t.dtype)
        return f"torch.index_put({v}, ({g.index(n, (k,), True)},), {w}, accumulate=True)"
    if kind < 0.8 and t.dim() > 1:
        k = g.rng.randint(1, 4)
        w = g.fit((k, *t.shape[2:]), t.dtype)
        return (
            f"torch.index_put({v}, ({g.index(n, (k,), True)}, {g.index(t.shape[1], (k,), True)}), {w}, accumulate=True)"
        )
    k = g.rng.randint(1, n)
    return f"torch.index_put({v}, ({g.different(n, k)},), {g.fit((k, *t.shape[1:]), t.dtype)})"


@operator(1)
def masked(g: Scene) -> str:
    v = g.real(1)
    t = g.of(v)
    m = g.mask(t.shape)
    w = g.fit(t.shape, t.dtype, exact=True)
    return g.some(f"{v}.masked_scatter({m}, {w})", f"{v}.masked_fill(~({m}), -1.0)", f"torch.where({m}, {v}, {w})")


@operator(0.4)
def data_dependent(g: Scene) -> str:
    v = g.real(1)
    t = g.of(v)
    return g.some(f"{v}.masked_select({v} > 0).sum()", f"torch.nonzero({v} > 0).sum()", f"{v}[{v} > 0] * 2")


@operator(1.5)
def embedding(g: Scene) -> str:
    v = g.tensor(lambda t: t.is_floating_point() and t.dim() == 2 and t.shape[0] > 0)
    n, width = g.live[v].shape
    if g.device != "cpu" and not width:
        raise Unfit  # eager's gradient accesses illegal memory
    i = g.index(n, (g.rng.randint(1, 4),))
    return g.some(f"F.embedding({i}, {v})", f"F.embedding({i}, {v})", f"F.embedding({i}, {v}, padding_idx=0)", f"F.one_hot({i}, {n}).to({v}.dtype) @ {v}",
                  f"F.embedding_bag({i}, {v}, torch.tensor([0], device=DEVICE))")  # fmt: skip


@operator(1)
def cut_piece(g: Scene) -> str:
    """An undone pad and a roll of halves: loads with shifts."""
    v = g.real(1)
    t = g.of(v)
    if t.shape[-1] < 2:
        raise Unfit
    return g.some(f"F.pad({v}, (1, 1))[..., 2:] - {v}", f"{v}[..., 1:] - {v}[..., :-1]", f"F.pad({v}[..., :-1], (1, 0)) * {v}",
                  f"torch.cat([{v}[..., 1:], {v}[..., :1]], -1) * {v}")  # fmt: skip
