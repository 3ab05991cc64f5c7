"""`x[i]` inside `vmap`, with a mapped integer tensor `i`: no call reads the number of `i`, and the elements match eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, jacrev, vmap

import pycompiler

X = torch.arange(12.0).reshape(3, 4)
I = torch.tensor([0, 2, 1])  # noqa: E741


def closed_over(x: Any, i: Any) -> Any:
    return vmap(lambda i: x[i])(i)


def both_mapped(x: Any, i: Any) -> Any:
    return vmap(lambda v, i: (v[i] * 2, v[i + 1]))(x, i)


def among_others(x: Any, i: Any) -> Any:
    return vmap(lambda v, i: v[None, i, 1:], in_dims=(1, 0))(x.reshape(2, 3, 2), i % 2)


def behind_an_ellipsis(x: Any, i: Any) -> Any:
    return vmap(lambda v, i: v[..., i])(x, -i)


def several(x: Any, i: Any) -> Any:
    return vmap(lambda i: x[i, i] + x.T[i, None, i])(i.int())


def nested(x: Any, i: Any) -> Any:
    return vmap(lambda v, j: vmap(lambda k: v[k] + v[j])(i))(x, i)


def differentiated(x: Any, i: Any) -> Any:
    return jacrev(lambda w: vmap(lambda i: (w * x)[i].sum().sin())(i))(torch.ones(4))


def a_copy(x: Any, i: Any) -> Any:
    def one(v: Any, i: Any) -> Any:
        v = v.clone()
        v[i].add_(1)  # writes a copy
        return v

    return vmap(one)(x, i)


PROGRAMS = (closed_over, both_mapped, among_others, behind_an_ellipsis, several, nested, differentiated, a_copy)


@pytest.mark.parametrize("backend", ("eager", "native"))
@pytest.mark.parametrize("fn", PROGRAMS)
def test_it_is_eagers(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for shift in (0, 1):
        i = (I + shift) % 3
        torch.testing.assert_close(compiled(X, i), fn(X, i))
    assert compiled.counters()["compiles"] == 1


def out_of_bounds(x: Any, i: Any) -> Any:
    return vmap(lambda v, i: v[i])(x, i + 9)


def under_a_transform(x: Any, i: Any) -> Any:
    return vmap(grad(lambda v, i: v[i].sin()))(x, i)


def of_flags(x: Any, i: Any) -> Any:
    return vmap(lambda v, i: v[i > 1])(x, i)


@pytest.mark.parametrize("fn", (out_of_bounds, under_a_transform, of_flags))
def test_what_eager_refuses(fn: Callable[..., Any]) -> None:
    with pytest.raises(Exception) as eager:
        fn(X, I)
    with pytest.raises(type(eager.value), match=str(eager.value)[:20]):
        pycompiler.compile(fn, backend="eager")(X, I)


def test_one_that_is_not_mapped_is_asked() -> None:
    def fn(x: Any, i: Any) -> Any:
        return vmap(lambda v: v[i[0]])(x)

    found = pycompiler.explain(fn)(X, I)
    assert torch.equal(found.result, fn(X, I))
    assert {b.kind for b in found.break_reasons} == {"data-dependent-value"}
