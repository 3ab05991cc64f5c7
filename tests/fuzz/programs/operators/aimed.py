"""Statements that lead to rare pairs of scheduling decisions (`coverage.py`). Random programs rarely reach these
pairs, so the statements are drawn only where a seed aims at a cell."""

from __future__ import annotations

from ..generate import Scene, operator

F64 = "torch.float64"


@operator(0)
def columns(g: Scene) -> str:
    """Folds into an array per row, and a reader of it in the same nest."""
    v = g.plain((g.rng.randint(8, 12), g.rng.randint(3, 9), 16), F64)
    n, m = g.live[v].shape[:2]
    i = g.index(min(n, m), (12,))
    return g.some(
        f"{v}.amin(1)", f"({v} > 1).any(1)", f"({v} != 0).all((1,))", f"F.pad({v}, (0, 0, 1, 1)).sum(1)", f"{v}[{i}].sum(1)",
        f"F.pad({v}, (0, 0, 1, 1))[{i}].sum(1)", f"{v}.softmax(1).sum(1)", f"({v}.softmax(1) * {v}).sum((1, 2))",
        f"({v} - {v}.mean((1, 2), keepdim=True)).sin().sum(1)", f"({v} - {v}.amax((1, 2), keepdim=True)).exp().sum(1)",
        f"({v} * {v}.sum(1, keepdim=True)).sin().sum()", f"{v}.softmax(1).sum()",
    )  # fmt: skip


@operator(0)
def padded_index(g: Scene) -> str:
    """Indirect loads under a mask, from every kind of readable value."""
    v = g.plain((8, 8), F64)
    i = g.index(8, (g.rng.choice((8, 12, 60)),))
    few = g.index(8, (8,))
    s, n = g.name(), g.name()
    return g.some(
        f"F.pad(torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], dtype={F64}, device=DEVICE), (1, 1))[{few}] * {v}",
        f"F.pad({v}.cumsum(0), (1, 1))[:, {i}]", f"F.pad({v}, (1, 1))[:, {i}].sum(1)", f"F.pad({v}[0], (1, 1))[{i}].sum()",
        f"F.pad({v}[0], (1, 1))[{few}] * {v}.sum(1)", f"F.pad({v}.sum(1), (1, 1))[{i}]",
        f"!{s} = {v}.sin()\n{n} = F.pad({s}, (1, 1))[:, {few}] * {s}.cumsum(0)",
        f"!{s} = F.layer_norm({v}.exp().sin().tanh(), (8,)).exp().tanh()\n{n} = F.pad({s}[:, :-3], (0, 3)).sum(-1)",
    )  # fmt: skip


@operator(0)
def single(g: Scene) -> str:
    """Values of one row, one column or one element: loaded beside wider ones, and by index."""
    rows, columns = g.rng.choice(((1, 17), (17, 1), (1, 1), (1, 64), (9, 1)))
    v = g.plain((rows, columns), F64)
    cube = (12, rows if rows > 1 else 9, columns if columns > 1 else 16)
    wide, other = g.plain(cube, F64), g.plain(cube, F64)
    few = g.plain(g.rng.choice(((1, 1), (1, cube[2]), (cube[1], 1))), F64)
    d, size = g.rng.choice(((0, rows), (1, columns)))
    i = g.index(size, (rows, columns))
    return g.some(
        f"({wide} * {other} * {few}).sum(1)", f"({wide} * {other} * {few}).amax(1)", f"({wide}[0] * {few}).sum(1)", f"({wide} + {v}).amax(2)",
        f"({wide}[0] - {wide}[0].amax(1, keepdim=True) * {few}[:1, :1]).exp().sum(1)", f"{wide}.sum(2) * {v}[:, 0]", f"({wide} * {v}).tanh().sum()", f"({wide}[0] * {v}).sum(1)",
        f"({wide}[0].softmax(1) * {v}).sum(1)", f"{v}.gather({d}, {i})", f"{v}.gather({d}, ({v} > 0).long().clamp_max({size - 1}))",
        f"F.pad({v}, (1, 1)).gather(1, {i})", f"F.pad({v}, (1, 1, 1, 1))[:, {i}.flatten()]", f"F.pad({v}, (0, 2)).sum({d})", f"F.pad({v}, (1, 1)).argmax({d})",
        f"({wide} * {v}.gather({d}, {i})).sum(1)", f"{v}[{i}[:, 0] * 0].flip(0).amax({d}) + {wide}.amax((0, 1))",
        f"(F.pad({v}, (1, 1)).gather(1, {i}) * {v}).sum({d})", f"{wide}.sum(2)[:, :1] * {v}[:1, :1]",
    )  # fmt: skip


@operator(0)
def single_index(g: Scene) -> str:
    """Loads by index of values from the same kernel: rows and columns, alone and among others."""
    n, m = g.rng.choice(((12, 9), (64, 9), (9, 16)))
    v, cube = g.plain((n, m), F64), g.plain((10, m, 16), F64)
    made, size = g.rng.choice((
        (f"{v}.sum(1, keepdim=True)", n), (f"{v}[None].sum(-1)", n), (f"{v}.sum(0, keepdim=True)", m), (f"{v}.sum((0, 1), keepdim=True)", 1), (f"{v}[:, :, None].sum(0)", m),
        (f"{v}[:1].exp().sin().tanh()", m), (f"{v}[:, :1].exp().sin().tanh()", n), (f"{v}[:1, :1].exp().sin().tanh()", 1), (f"F.layer_norm({v}[:1], ({m},))", m),
        (f"F.layer_norm({v}, ({m},))", n * m), (f"{cube}.sum(1)", 160), (f"{v}.amax(1, keepdim=True).exp().sin()", n), (f"{v}[None].amax(-1).exp().sin()", n),
        (f"{cube}.sum(-1)", 10 * m), (f"{cube}.amax(-1).exp().sin()", 10 * m), (f"{cube}.sum(0)", 16 * m),
    ))  # fmt: skip
    i = g.index(size, (g.rng.choice((1, 5, 40)),))
    s, r = g.name(), g.name()
    use = g.some("", f" + {s}.sum()", f" * {s}.amax()")
    used = g.some("", "", f"{s} = {s} + {v}.sum(1, keepdim=True).sum() * 0\n")
    return f"!{s} = {made}\n{used}{r} = {g.some(f'{s}.flatten()[{i}]', f'F.pad({s}.flatten(), (1, 1))[{i}]')}{use}"


@operator(0)
def stored_fold(g: Scene) -> str:
    """A fold is the new value of an argument whose old value is read before."""
    if g.rng.random() < 0.4:
        v, p = g.plain((12, 9, 16), F64), g.plain((12, 16), F64)
        row, fold, later = f"{p}[:, None]", f"{v}.mean(1)", f"({v} - {{0}}[:, None]).exp().sum(1)"
        fold = g.some(f"{v}.sum(1)", fold)
    elif g.rng.random() < 0.5:
        v, p = g.plain((64, 9), F64), g.plain((64,), F64)
        row, fold, later = (
            f"{p}[:, None]",
            g.some(f"{v}.sum(1)", f"{v}.mean(1)"),
            f"({v} - {{0}}[:, None]).exp().sum(1)",
        )
    else:
        v, p = g.plain((64, 9), F64), g.plain((9,), F64)
        row, fold, later = p, f"{v}.sum(0)", ""
    n = g.name()
    reads = [f"{p}.sum()", f"{p}.cumsum(0)", f"{v} * {row}", f"({v} * {row}).sum(1)"]
    if later and g.rng.random() < 0.4:
        return f"!{n} = ({v} * {row}).tanh().amax(1)\n{p}.copy_({later.format(n)})"
    return g.some(f"!{p}.copy_({fold})", *(f"!{n} = {read}\n{p}.copy_({fold})" for read in reads))


@operator(0)
def large_parts(g: Scene) -> str:
    """Parts of a buffer, and scatters into one, that are too large for the kernel of their operands."""
    shape = g.some("flat", "rows")
    v, w = (g.plain((66, 64) if shape == "rows" else (4200,), F64) for _ in range(2))
    s, n = g.name(), g.name()
    made = f"!{s} = {v}.exp().sin()\n{n} = "
    i = g.index(g.live[v].shape[0], g.live[v].shape[:1])
    constant = f"torch.tensor([0.1, 0.2, 0.3, 0.4], dtype={F64}, device=DEVICE).repeat({g.live[v].shape[-1] // 4})"
    return g.some(
        f"{made}torch.cat([{w} * 2, {s} + 1])", f"{made}torch.cat([{w} * 2, {s} * {w}])", f"{made}torch.cat([{w} * 2, {s} * {constant}])",
        f"{made}torch.cat([{w} * 2, {s} * {w}.cumsum(0)])", f"{made}{w}.index_add(0, {i}, {s})",
    )  # fmt: skip


@operator(0)
def chain(g: Scene) -> str:
    """Small values, each alive within one kernel, with ATen calls between."""
    shape = (24, 9, 16) if g.rng.random() < 0.5 else (60, 9)
    e, u = g.name(), g.name()
    fold = g.some("mean(1, keepdim=True).sin().exp()", "amax(1, keepdim=True)", "sum(1, keepdim=True).sin()")
    first = f"!{e} = {g.plain(shape, F64)}\n{u} = {e}.{fold}"
    step = f"{e} = ({e}.cumsum(0) * 0.5)\n{u} = ({e} * {u}).tanh().{fold}"
    other = f"{e} = {e}.cumsum(0).float()\n{u} = ({e} * {u}.float()).tanh().{fold}"
    steps = [first, step, step, g.some(step, other), step, step, step]
    return "\n".join([*steps, f"{u} = {u}.sum()"])


@operator(0)
def drawn(g: Scene) -> str:
    """Random numbers: each run starts with the same seed, and draws them in eager's order."""
    v = g.real()
    return g.some(f"F.dropout({v}, 0.5)", f"torch.rand_like({v})", f"torch.randn_like({v}) * 0.5", f"torch.bernoulli({v}.sigmoid())",
                  f"F.dropout({v}, 0.3).relu() + torch.rand_like({v})", f"torch.rand({v}.shape, dtype={v}.dtype, device=DEVICE)",
                  f"torch.randint(0, 5, {v}.shape, device=DEVICE)")  # fmt: skip
