"""Results that depend on one another, from compositions: views, writes, detach, hooks, checkpoints, Functions, transforms.

For each: gradients and second gradients by every pair, and later hooks and `retain_grad`, compared with eager.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import pycompiler
from tests.harness.compare import assert_same

Tensors = tuple[torch.Tensor, ...]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a)
        return a * a

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (a,) = ctx.saved_tensors
        return 2 * a * g


def hooked(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return y, y.sin()


def hooks_in_a_chain(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x * 2
    z = y.sin()
    z.register_hook(lambda g: g * w.detach())
    u = z * y
    u.register_hook(lambda g: g + 1)
    u.register_hook(lambda g: g * g)
    return y, z, u


def hook_of_shared_work(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    h = x.exp()
    h.register_hook(lambda g: g * 3)
    y = h.sin()
    return y, (y * h).cos()


def hook_of_a_view(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    x = x * 1
    x.register_hook(lambda g: 2 * g)
    y = x.t()
    y.register_hook(lambda g: g + 1)
    return y, y.sin()


def hook_that_reads(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    scale = (x * w).sum()
    y = x.exp()
    y.register_hook(lambda g: g * scale)
    return y, y * y


def hook_behind_a_view(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    h = x.exp()
    h.register_hook(lambda g: g * 2)
    v = h.t()
    return v, h[1:], v.sin() * w


def view_of_a_view(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    a = w.reshape(9).reshape(3, 3)
    b = a.t()
    return a, b, b * b.clone()


def written_in_between(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x.sin()
    t = y * 2
    y.mul_(w)
    return y, t, y.cos() * t


def added_to_another(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x * 2
    total = torch.zeros(3, 3, dtype=torch.float64)
    total.add_(y)
    return y, total.sin()


def normalised(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x.exp()
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    return y, F.batch_norm(F.dropout(y, 0.4), mean, var, training=True).sin()


def set_in_part(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x.sin()
    y[0] = w[1]
    z = y.exp()
    return y, z, F.relu(y, inplace=False) * z


def view_of_written(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x * 3
    F.relu(y, inplace=True)
    v = y.t()
    return v, v.sin(), y * y


def functions(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = Square.apply(x)
    z = Square.apply(y)
    return y, z, z * y


def checkpoints(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = checkpoint(lambda a: a.sin() * w, x, use_reentrant=False)
    return y, checkpoint(lambda a: (a * y).cos(), x, use_reentrant=False)


def transforms(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = torch.vmap(lambda a, b: a.sin() * b)(x, w)
    v = y.view(-1)
    z = torch.vmap(torch.func.grad(lambda a: (a**3).sum()))(y)
    return v, z, v.view(3, 3) * z


def hooks_and_checkpoints(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x * w
    y.register_hook(lambda g: g * 2)
    z = Square.apply(y)
    v = z[1:]
    v.register_hook(lambda g: g + 1)
    return v, checkpoint(lambda a: a.exp(), v, use_reentrant=False), y


def gradient_inside(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    (g,) = torch.autograd.grad((x * x * w).sum(), x, create_graph=True)
    y = g * w
    return g, y, y * g


def detached(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x.sin()
    y.mul_(y.detach().cos())
    with torch.no_grad():
        c = y * 2
    return y, y * w + c


def split(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    a, b = torch.cumsum(x, 0).split([1, 2])
    joined = torch.cat([a.exp(), b])
    return a, joined, joined.t()


def forces(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x * w
    energy = (y**4).sum()
    (force,) = torch.autograd.grad(energy, y, create_graph=True)
    return y, force.sin()


PROGRAMS = (
    *(hooked, hooks_in_a_chain, hook_of_shared_work, hook_of_a_view, hook_that_reads, hook_behind_a_view, view_of_a_view),
    *(written_in_between, added_to_another, normalised, set_in_part, view_of_written, functions, checkpoints, transforms),
    *(hooks_and_checkpoints, gradient_inside, forces, detached, split),
)  # fmt: skip


def leaves() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(1)
    return [(torch.rand(3, 3, dtype=torch.float64, generator=generator) + 0.3).requires_grad_() for _ in range(2)]


def afterwards(run: Any) -> Any:
    inputs, seen = leaves(), []
    made = run(*inputs)
    for k, t in enumerate(made):
        t.register_hook(lambda g, k=k: seen.append((k, g.clone())))
        t.retain_grad()
    sum(t.sin().sum() for t in made).backward()
    return sorted(seen, key=lambda at: at[0]), [t.grad for t in (*made, *inputs)]


def changed(run: Any) -> Any:
    found = []
    for k in range(len(run(*leaves()))):
        inputs = leaves()
        made = run(*inputs)
        made[k].register_hook(lambda g: 2 * g)
        sum((t * t).sum() for t in made).backward()
        found.append([x.grad for x in inputs])
    return found


def by_pairs(run: Any) -> Any:
    inputs = leaves()
    made = run(*inputs)
    grad = torch.autograd.grad
    return [grad(t.sin().sum(), [*made, *inputs], retain_graph=True, allow_unused=True) for t in made]


def twice_by_pairs(run: Any) -> Any:
    found = []
    count = len(run(*leaves()))
    for i in range(count):
        for j in range(count):
            inputs = leaves()
            made = run(*inputs)
            (g,) = torch.autograd.grad(made[i].pow(2).sum(), made[j], create_graph=True, allow_unused=True)
            if g is not None and g.requires_grad:
                total = g.sin().sum()
                found.append(torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True))
                found.append(torch.autograd.grad(total, made[j], allow_unused=True))
    return found


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_beside_eager(program: Any, backend: str) -> None:
    run = pycompiler.compile(program, backend=backend, fullgraph=program is not forces)  # `forces` runs eagerly
    for ask in (afterwards, changed, by_pairs, twice_by_pairs):
        assert_same(ask(run), ask(program), tolerance=1e-9, sharing=False)
    assert run.counters()["compiles"] == 1


def asked_inside(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x.sin()
    y.register_hook(lambda g: g * 2)
    (g,) = torch.autograd.grad((y * w).sum(), y, create_graph=True)
    return y * g, y * w


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_gradients_inside_pass_hooks(backend: str) -> None:
    run = pycompiler.compile(asked_inside, backend=backend, fullgraph=True)
    for ask in (afterwards, changed, by_pairs, twice_by_pairs):
        assert_same(ask(run), ask(asked_inside), tolerance=1e-9)
    assert run.counters()["compiles"] == 1
