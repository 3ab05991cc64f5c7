"""Random programs of views, in-place and out-of-place operators: values, gradients and aliasing match eager."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ad_helpers import Compiled, flat

from pycompiler.autograd import AutogradUnsupported

VIEWS: list[Callable[[Any, random.Random], Any]] = [
    lambda x, r: x.t(),
    lambda x, r: x[r.randrange(2) :],
    lambda x, r: x.view(-1)[: r.randrange(4, 8)],
    lambda x, r: x.narrow(0, 1, 1),
    lambda x, r: x.detach(),
    lambda x, r: x.unsqueeze(0),
    lambda x, r: x.select(-1, 0),
]
IN_PLACE: list[Callable[[Any, Any, random.Random], Any]] = [
    lambda x, y, r: x.add_(1.5),
    lambda x, y, r: x.mul_(0.5),
    lambda x, y, r: x.copy_(x.detach() * 2),
    lambda x, y, r: x.sin_(),
    lambda x, y, r: x.zero_(),
    lambda x, y, r: x.add_(y.sum()),
]
PLAIN: list[Callable[[Any, Any, random.Random], Any]] = [
    lambda x, y, r: x * y.mean(),
    lambda x, y, r: x.exp() * 0.1,
    lambda x, y, r: x + 1,
    lambda x, y, r: x.clone(),
    lambda x, y, r: x.contiguous(),
]


def program(seed: int) -> Callable[..., Any]:
    """A program with the same operators in every call; `seed` alone decides their operands."""

    def run(a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        rng = random.Random(seed)
        values = [a, b, c]
        for _ in range(rng.randrange(2, 9)):
            x, y = rng.choice(values), rng.choice(values)
            kind = rng.random()
            if kind < 0.4:
                values.append(rng.choice(VIEWS)(x, rng))
            elif kind < 0.7:
                values.append(rng.choice(IN_PLACE)(x, y, rng))
            else:
                values.append(rng.choice(PLAIN)(x, y, rng))
        return tuple(rng.sample(values[1:], min(3, len(values) - 1)))

    return run


def inputs() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(leaves to differentiate, arguments): a result of other work, a plain tensor, a parameter."""
    generator = torch.Generator().manual_seed(0)
    leaf = torch.rand(3, 3, generator=generator).requires_grad_()
    plain = torch.rand(3, 3, generator=generator)
    parameter = torch.rand(3, 3, generator=generator).requires_grad_()
    return [leaf, parameter], [leaf * 1, plain, parameter]


def observe(fn: Callable[..., Any]) -> list[Any]:
    """The observations of a caller: values, flags, shared memory of results, gradients, and the effect of a later write."""
    leaves, args = inputs()
    results = [*flat(fn(*args)), *args]
    seen: list[Any] = []
    for t in results:
        seen += [t.detach().clone(), t.requires_grad, t.stride()]
        seen.append([u is t for u in results])
        seen.append([u.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for u in results])
    loss = torch.zeros(())
    for k, t in enumerate(results):
        if t.requires_grad:
            loss = loss + (t * (k + 1)).sum() * 0.1
    if loss.requires_grad:
        seen += torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    with torch.no_grad():
        results[0].add_(1) if results[0].untyped_storage().size() >= results[0].numel() * 4 else None
    return seen + [t.detach().clone() for t in results]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("block", range(6))
def test_programs(block: int, stored: bool) -> None:
    torch.set_num_threads(1)
    compared = 0
    for seed in range(block * 50 + 25 * stored, block * 50 + 25 * stored + 25):
        fn = program(seed)
        try:
            expected = observe(fn)
        except RuntimeError:
            continue  # eager refuses: a leaf mutated, a saved value overwritten
        try:
            compiled = Compiled(fn, inputs()[1], store_in_graph=stored)
        except AutogradUnsupported:
            continue
        got = observe(compiled.fn)
        assert len(got) == len(expected), seed
        for a, b in zip(got, expected, strict=True):
            if isinstance(b, torch.Tensor):
                torch.testing.assert_close(a, b, msg=lambda text, seed=seed: f"seed {seed}: {text}")
            else:
                assert a == b, seed
        compared += 1
    assert compared >= 8
