"""Views: slices of every kind, permutations, expansions, reshapes, windows; and operators that make them contiguous."""

from __future__ import annotations

from ..generate import Scene, Unfit, numel, operator


def piece(g: Scene, n: int, views: bool = True) -> str:
    """An index into one dimension of n elements."""
    r = g.rng
    kind = r.random()
    if kind < 0.25 or n == 0:
        return ":"
    if kind < 0.4:
        return str(r.randrange(-n, n))
    if kind < 0.55:
        return f"::{r.choice((2, 3))}"
    start = r.randrange(-n, n)
    at = start % n
    if kind < 0.62:
        return f"{start}:{at + 1}"  # one element
    if kind < 0.66:
        return f"{at}:{r.randint(0, at)}"  # none
    if kind < 0.8:
        return f"{start}:"
    if kind < 0.9:
        return f":{r.choice((at + 1, -1, -2))}"
    return f"{at}:{r.randint(at, n)}:{r.choice((1, 2, 3))}"


@operator(6)
def slice_(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0)
    shape = g.live[v].shape
    pieces = [piece(g, n) for n in shape[: g.rng.randint(1, len(shape))]]
    if len(pieces) < len(shape) and g.rng.random() < 0.4:
        pieces = ["...", *(piece(g, n) for n in shape[len(shape) - len(pieces) :])]
    if g.rng.random() < 0.1:
        pieces.insert(g.rng.randint(0, len(pieces)), "None")
    return f"{v}[{', '.join(pieces)}]"


@operator(1)
def select(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0 and t.numel() > 0)
    d = g.dim(g.live[v])
    n = g.live[v].shape[d]
    return f"{v}.select({d}, {g.rng.randrange(-n, n)})"


@operator(1)
def narrow(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0 and t.numel() > 0)
    d = g.dim(g.live[v])
    n = g.live[v].shape[d]
    start = g.rng.randrange(n)
    return f"{v}.narrow({d}, {start}, {g.rng.randint(0, n - start)})"


@operator(2)
def expand(g: Scene) -> str:
    v = g.tensor()
    shape = [-1 if n != 1 else g.rng.choice([*g.sizes, -1]) for n in g.live[v].shape]
    lead = [g.rng.choice(g.sizes)] if g.rng.random() < 0.4 or not shape else []
    return f"{v}.expand({', '.join(map(str, lead + shape))})"


@operator(1)
def expand_piece(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0 and t.numel() > 0)
    d = g.dim(g.live[v])
    shape = list(g.live[v].shape)
    return f"{v}.narrow({d}, {g.rng.randrange(shape[d])}, 1).expand({', '.join(map(str, shape))})"


@operator(1.5)
def repeat(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0)
    times = [g.rng.choice((1, 1, 2, 3)) for _ in range(g.live[v].dim() + (g.rng.random() < 0.2))]
    if g.rng.random() < 0.25:
        return f"{v}.repeat_interleave({g.rng.choice((2, 3))}, dim={g.dim(g.live[v])})"
    return f"{v}.{g.some('repeat', 'tile')}({', '.join(map(str, times))})"


@operator(1)
def unfold(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0 and max(t.shape) > 1)
    d = g.dim(g.live[v])
    n = g.live[v].shape[d]
    if not n:
        raise Unfit
    return f"{v}.unfold({d}, {g.rng.randint(1, n)}, {g.rng.randint(1, 3)})"


@operator(3)
def permute(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 1)
    t = g.live[v]
    a, b = g.dim(t), g.dim(t)
    order = g.rng.sample(range(t.dim()), t.dim())
    choices = [f"{v}.transpose({a}, {b})", f"{v}.permute({', '.join(map(str, order))})", f"{v}.movedim({a}, {b})",
               f"{v}.mT", f"torch.swapaxes({v}, {a}, {b})"]  # fmt: skip
    return g.rng.choice([*choices, f"{v}.t()"] if t.dim() == 2 else choices)


@operator(2)
def flip(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0)
    t = g.live[v]
    choices = [f"{v}.flip({', '.join(map(str, g.dims(t)))})", f"torch.roll({v}, {g.rng.randint(-3, 3)}, {g.dim(t)})"]
    if t.dim() > 1:
        choices += [f"torch.rot90({v}, {g.rng.randint(-1, 3)}, (0, {g.rng.choice((1, -1))}))", f"{v}.fliplr()"]
    return g.rng.choice(choices)


@operator(3)
def reshape(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0)
    t = g.live[v]
    n, r = t.numel(), g.rng
    how = r.choice(("reshape", "reshape", "view"))
    divisors = [k for k in range(1, min(n, 64) + 1) if n % k == 0] or [1]
    a = r.choice(divisors)
    if n == 0:
        return f"{v}.reshape({r.choice(('0', '0, 3', '2, 0'))})"
    b = r.choice([k for k in divisors if (n // a) % k == 0])
    return r.choice((f"{v}.{how}(-1)", f"{v}.{how}({a}, {n // a})", f"{v}.{how}(-1, {a})", f"{v}.{how}({a}, {b}, -1)",
                     f"{v}.flatten()", f"{v}.ravel()", f"{v}.{how}({n // a}, 1, {a})", f"{v}.flatten(0, 1)"))  # fmt: skip


@operator(1.5)
def squeeze(g: Scene) -> str:
    v = g.tensor()
    t = g.live[v]
    d = g.rng.randrange(-t.dim() - 1, t.dim() + 1)
    if 1 in t.shape and g.rng.random() < 0.6:
        return g.some(f"{v}.squeeze()", f"{v}.squeeze({list(t.shape).index(1)})")
    return g.some(f"{v}.unsqueeze({d})", f"{v}[None]", f"{v}[..., None]", f"{v}.view_as({v})")


@operator(0.8)
def unflatten(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0 and any(n > 1 and n % 2 == 0 for n in t.shape))
    d = next(k for k, n in enumerate(g.live[v].shape) if n > 1 and n % 2 == 0)
    return f"{v}.unflatten({d}, ({g.some('2, -1', '-1, 2', '1, 2, -1')}))"


@operator(1.2)
def as_strided(g: Scene) -> str:
    v = g.tensor(lambda t: t.numel() > 2 and t.untyped_storage().nbytes() == t.numel() * t.element_size())
    n, r = g.live[v].numel(), g.rng
    shape = [r.randint(1, 4) for _ in range(r.randint(1, 3))]
    stride = [r.randint(0, 3) for _ in shape]
    reach = sum((a - 1) * b for a, b in zip(shape, stride, strict=True))
    if reach >= n:
        raise Unfit
    offset = r.choice((0, r.randint(0, n - 1 - reach)))
    return f"{v}.as_strided(({', '.join(map(str, shape))},), ({', '.join(map(str, stride))},), {offset})"


@operator(1.2)
def diagonal(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 1)
    k = g.rng.randint(-2, 2)
    return g.some(f"{v}.diagonal({k})", f"{v}.diagonal({k}, -1, -2)", f"torch.tril({v}, {k})", f"torch.triu({v}, {k})",
                  f"torch.diag_embed({v}[0], {k})")  # fmt: skip


@operator(0.8)
def chunk(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() > 0 and max(t.shape) > 1)
    t = g.live[v]
    d = list(t.shape).index(max(t.shape))
    at = g.rng.randint(0, 1)
    return g.some(f"{v}.chunk(2, {d})[{at}]", f"{v}.tensor_split(3, {d})[{at}]", f"{v}.unbind({d})[{at}]",
                  f"{v}.split({g.rng.randint(1, t.shape[d] - 1)}, {d})[{at}]")  # fmt: skip


@operator(1.2)
def copied(g: Scene) -> str:
    v = g.tensor()
    t = g.live[v]
    texts = [f"{v}.clone()", f"{v}.contiguous()", f"{v}.detach()", f"{v}.clone(memory_format=torch.contiguous_format)"]
    if t.dim() == 4:
        texts.append(f"{v}.contiguous(memory_format=torch.channels_last)")
    return g.rng.choice(texts)


@operator(0.5)
def complex_parts(g: Scene) -> str:
    v = g.tensor(lambda t: t.is_complex())
    return g.some(f"{v}.real", f"{v}.imag", f"{v}.conj()", f"{v}.abs()", f"torch.view_as_real({v})", f"{v}.angle()")


@operator(0.5)
def shape_numbers(g: Scene) -> str:
    v, w = g.real(1), g.tensor(lambda t: t.dim() > 0)
    return f"{v} * {w}.shape[{g.dim(g.live[w])}] / ({w}.numel() + 1)"


@operator(0.6)
def unfold_image(g: Scene) -> str:
    v = g.tensor(lambda t: t.dim() == 4 and t.is_floating_point() and numel(t.shape) > 0)
    return f"F.unfold({v}, {g.some('1', '2', '(2, 1)')}, padding={g.some('0', '1')}, stride={g.some('1', '2')})"
