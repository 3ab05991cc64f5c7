"""In-place writes: to values, to views of them, to arguments; optimizer steps."""

from __future__ import annotations

import torch

from ..generate import Scene, Unfit, operator
from .views import piece

UNARY = ("sin_", "tanh_", "relu_", "neg_", "abs_", "zero_", "sigmoid_", "floor_", "square_")


def written(g: Scene, least: int = 0) -> str:
    """A writable tensor: no leaf that requires a gradient, and no expanded one."""

    def fits(t: torch.Tensor) -> bool:
        own = not (t.is_leaf and t.requires_grad) and not (
            t._is_view() and t._base is not None and t._base.is_leaf and t._base.requires_grad
        )
        return t.is_floating_point() and t.dim() >= least and own and (0 not in t.stride() or g.rng.random() < 0.02)

    return g.tensor(fits)


def window(g: Scene, v: str) -> str:
    """`v` or a view of it."""
    t = g.live[v]
    if not t.dim() or g.rng.random() < 0.35:
        return v
    if g.rng.random() < 0.2:
        return g.rng.choice((f"{v}.transpose(0, -1)", f"{v}.diagonal()" if t.dim() > 1 else f"{v}.view(-1)", f"{v}.select(0, 0)", f"{v}.unsqueeze(0)",
                             f"{v}.view(-1)", f"{v}.narrow(-1, 0, 1)"))  # fmt: skip
    pieces = [piece(g, n) for n in t.shape[: g.rng.randint(1, t.dim())]]
    return f"{v}[{', '.join(pieces)}]"


@operator(5)
def write(g: Scene) -> str:
    v = written(g)
    w = window(g, v)
    t = g.of(w)
    kind = g.rng.random()
    if kind < 0.3:
        return f"!{w}.{g.rng.choice(UNARY)}()"
    if kind < 0.5:
        return f"!{w}.{g.some('add_', 'mul_', 'sub_', 'fill_', 'copy_' if False else 'clamp_')}({g.scalar()})"
    other = g.fit(t.shape)
    if kind < 0.9:
        return f"!{w}.{g.some('add_', 'mul_', 'copy_', 'sub_')}({other})"
    return f"!{w}.{g.some('addcmul_', 'lerp_')}({other}, {g.fit(t.shape, t.dtype)})"


@operator(3)
def assign(g: Scene) -> str:
    v = written(g, 1)
    t = g.live[v]
    pieces = [piece(g, n) for n in t.shape[: g.rng.randint(1, t.dim())]]
    target = f"{v}[{', '.join(pieces)}]"
    value = g.fit(g.of(target).shape) if g.rng.random() < 0.75 else g.scalar()
    return f"!{target} {g.some('=', '=', '+=', '*=')} {value}"


@operator(1.5)
def assign_mask(g: Scene) -> str:
    v = written(g, 1)
    t = g.live[v]
    m = g.mask(t.shape)
    w = window(g, v)
    return g.some(f"!{v}.masked_fill_({m}, {g.scalar()})", f"!{v}[({m}).expand({tuple(t.shape)})] = {g.scalar()}", f"!{w}.masked_fill_({w} > 0.2, 0.5)",
                  f"!{v}.masked_scatter_({m}, {g.fit(t.shape, t.dtype, exact=True)})")  # fmt: skip


@operator(2)
def write_index(g: Scene) -> str:
    v = written(g, 1)
    t = g.live[v]
    if not t.numel():
        raise Unfit
    d = g.dim(t)
    n = t.shape[d]
    k = g.rng.randint(1, min(n, 4))
    shape = list(t.shape)
    shape[d] = k
    value = g.fit(shape, t.dtype, exact=True)
    kind = g.rng.random()
    if kind < 0.3:
        return f"!{v}.index_add_({d}, {g.index(n, (k,))}, {value})"
    if kind < 0.5:
        return f"!{v}.index_copy_({d}, {g.different(n, k)}, {value})"
    if kind < 0.6:
        return f"!{v}.index_fill_({d}, {g.index(n, (k,))}, {g.scalar()})"
    if kind < 0.8:
        return f"!{v}.scatter_add_({d}, {g.index(n, shape)}, {value})"
    first = t.shape[0]
    k = g.rng.randint(1, first)
    return f"!{v}[{g.different(first, k)}] {g.some('=', '=', '+=')} {g.fit((k, *t.shape[1:]), t.dtype)}"


@operator(1)
def step(g: Scene) -> str:
    """An optimizer step on an argument and its running averages."""
    v = g.tensor(lambda t: t.is_floating_point() and 0 not in t.stride())
    t = g.live[v]
    w = g.fit(t.shape, t.dtype, exact=True)
    m, p = g.plain(t.shape, t.dtype), g.plain(t.shape, t.dtype)
    return g.some(
        f"!with torch.no_grad():\n    {m}.mul_(0.9).add_({w}, alpha=0.1)\n    {p}.sub_({m} * 0.01)",
        f"!with torch.no_grad():\n    {m}.lerp_({w}, 0.1)\n    {p}.addcdiv_({m}, {m}.abs().sqrt().add_(0.1), value=-0.1)",
        f"!with torch.no_grad():\n    {p}.copy_({p} * 0.5 + {w})\n    {m}.copy_({p}.flip(-1))"
        if t.dim()
        else f"!{p}.detach().zero_()",
        f"!{p}.add_({m} * {w})\n{m}.mul_({p})",
    )


@operator(0.8)
def row_step(g: Scene) -> str:
    """An argument whose new value uses folds: statistics of rows or columns."""
    v = g.real(2)
    t = g.of(v)
    d = g.rng.randrange(t.dim())
    shape = [n for k, n in enumerate(t.shape) if k != d]
    p = g.plain(shape, t.dtype)
    return g.some(f"!{p}.copy_({v}.detach().mean({d}))", f"!{p}.mul_(0.9).add_({v}.detach().mean({d}) * 0.1)", f"!{p}.copy_({v}.detach().amax({d}))",
                  f"!{p}.copy_(({v}.detach() * {p}.unsqueeze({d})).sum({d}))", f"!{p}.copy_({v}.detach().sum({d}) * {p}.sin())",
                  f"!{p}.copy_(({v}.detach() - {p}.unsqueeze({d})).abs().amax({d}) + {p}.mean())")  # fmt: skip


@operator(0.5)
def out(g: Scene) -> str:
    v = g.tensor(lambda t: t.is_floating_point() and not t.requires_grad)
    t = g.live[v]
    w = g.plain(t.shape, t.dtype)
    return f"!torch.{g.some('add', 'mul')}({v}.detach(), {g.scalar()}, out={w})"


@operator(0.5)
def through_data(g: Scene) -> str:
    v = written(g)
    return g.some(f"!{v}.detach().mul_(0.5)", f"!{v}.data.add_(1)", f"!with torch.no_grad():\n    {v}.zero_()")
