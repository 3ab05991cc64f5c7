"""Functions that take functions: torch.func's transforms, torch.cond, checkpoints, and side effects inside them."""

from __future__ import annotations

import torch
from capture.harness import ANY, case
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

X = torch.arange(12.0).reshape(3, 4) / 7
W = torch.arange(20.0).reshape(4, 5).sin()
count = 0


def loss(x, w):
    return (torch.tanh(x @ w) ** 2).sum()


gradient_of_loss = grad(loss)


# transforms -----------------------------------------------------------------------------------------------------------
@case(X, W, graphs=1)
def gradient(x, w):
    return grad(loss)(x, w) * 2


@case(X, W, graphs=1)
def transformed_outside(x, w):
    return gradient_of_loss(x, w)


@case(X, W, graphs=1)
def argnums(x, w):
    return grad(loss, argnums=(1, 0))(x, w), grad(loss, argnums=-1)(x, w), grad(lambda a, b: a.sum(), 1)(x, w)


@case(X, W, graphs=1)
def aux(x, w):
    return grad(lambda x, w: (loss(x, w), {"a": x * 2, "b": (w, x)}), has_aux=True)(x, w)


@case(X, W, graphs=1)
def value_too(x, w):
    return grad_and_value(loss, argnums=1)(x, w)


@case(X, W, graphs=1)
def trees_and_numbers(x, w):
    return grad(lambda p, k: loss(p["x"], p["w"][0] * k))({"x": x, "w": (w,)}, 3.0)


@case(X, W, graphs=1)
def keywords(x, w):
    return grad(lambda x, *, w: loss(x, w))(x, w=w), vmap(lambda r, w=None: r @ w)(x, w=w)


@case(X, W, graphs=1)
def what_is_around(x, w):
    y = x.sin()
    return grad(lambda v: loss(y, v) + y.sum())(w) + W


@case(X, W, graphs=1)
def twice(x, w):
    return grad(lambda x: grad(lambda x: loss(x, w))(x).sin().sum())(x)


@case(X, W, graphs=1)
def rows(x, w):
    return vmap(lambda r: (r @ w).sin().sum())(x), vmap(lambda r: {"k": r.cos()}, in_dims=-1, out_dims={"k": 1})(x)


@case(X, W, graphs=1)
def dimensions(x, w):
    first = vmap(lambda a, b, k: a.sum() * b * k, in_dims=(1, None, None), out_dims=1)(x, w, 3)
    second = vmap(lambda d: d["a"].sum() * d["b"].sum(), in_dims=({"a": 0, "b": None},))({"a": x, "b": w})
    return first, second, vmap(lambda a, b: (a.sum(), b * 2), in_dims=(0, None), out_dims=(0, None))(x, w)


@case(X, graphs=1)
def chunks_and_nests(x):
    return vmap(torch.sin, chunk_size=2)(x), vmap(vmap(lambda a, b: a * b, (None, 0)), (0, None))(x, x)


@case(X, W, graphs=1)
def each_gradient(x, w):
    return vmap(grad(lambda r: loss(r[None], w)))(x), grad(lambda w: vmap(lambda r: loss(r[None], w))(x).sum())(w)


@case(X, W, graphs=1)
def tangents(x, w):
    return jvp(lambda d: {"o": d["a"] @ d["b"]}, ({"a": x, "b": w},), ({"a": x, "b": w * 2},)), jvp(
        lambda a, b: (a * b, a.sin()), (x, x + 1), (x.cos(), x), has_aux=True
    )


@case(X, W, graphs=1)
def forward_and_back(x, w):
    return jvp(grad(lambda x: loss(x, w)), (x,), (x,)), grad(lambda a: jvp(torch.tanh, (a,), (x,))[1].sum())(x)


@case(X, graphs=1)
def numbers_are_drawn(x):
    first = grad(lambda x: torch.nn.functional.dropout(x * x, 0.5).sum())(x)
    return first, vmap(lambda x: torch.nn.functional.dropout(x, 0.5), randomness="different")(x)


@case(X, graphs=1)
def writes_inside(x):
    def f(x):
        y = x * 2
        y.add_(x).mul_(3)
        return (y * y).sum()

    return grad(f)(x)


@case(X, graphs=1)
def modes(x):
    def without(x):
        with torch.no_grad():
            c = (x * x).sum()
        return (x * c).sum()

    with torch.no_grad():
        first = grad(lambda x: (x * x).sum())(x)
    return first, grad(without)(x)


@case(torch.nn.Linear(4, 2), X, graphs=1)
def parameters(lin, x):
    return grad(lambda p: functional_call(lin, p, (x,)).sum())(dict(lin.named_parameters()))


@case(X, graphs=1)
def effects_happen_once(x):
    global count
    seen = []

    def f(x):
        global count
        count += 1
        seen.append(x.shape[0])
        return x.sum()

    return grad(f)(x), seen, count


@case(X, breaks="inner-graph")
def leaks(x):
    seen = []

    def f(x):
        y = x * 2
        seen.append(y.detach())
        return y.sum()

    g = grad(f)(x)
    return g, seen


@case(X, graphs=1)
def writes_what_it_maps(x):
    y = x * 1

    def f(r):
        r.add_(1)
        return r.sum()

    return vmap(f)(y), y


@case(X, breaks="inner-graph")
def writes_outside(x):
    y = x[0] * 1

    def f(r):
        y.add_(1)
        return r.sum()

    return vmap(f)(x), y


@case(X, breaks=("inner-graph", "uncaught-exception"))
def raises(x):
    def f(x):
        raise ValueError("from inside")

    try:
        return grad(f)(x)
    except ValueError as e:
        return str(e), x


@case(X, breaks="inner-graph")
def asks_for_levels(x):
    return grad(lambda x: (x * 2).sum() if x.requires_grad else x.sum())(x)


@case(X, breaks="inner-graph")
def asks_for_strides(x):
    return vmap(lambda r: (r * 2) * (r * 2).stride(0), in_dims=1)(x.T)


@case(X, breaks="data-dependent-jump")
def branches(x):
    try:
        return vmap(lambda r: r if r.sum() > 0 else -r)(x)
    except RuntimeError:
        return x


@case(X, W, breaks="operator-failed")
def refused_by_torch(x, w):
    try:
        return grad(lambda x: x @ w)(x)
    except RuntimeError:
        return x


# checkpoints ----------------------------------------------------------------------------------------------------------
@case(X, W, graphs=1)
def checkpointed(x, w):
    return checkpoint(lambda a, k=None: {"u": torch.tanh(a @ k), "v": (a, a.T, 3, None)}, x, k=w, use_reentrant=False)


@case(X, graphs=1)
def checkpoints_nest(x):
    def inner(x):
        return checkpoint(torch.sin, x * 2, use_reentrant=False).cos()

    return checkpoint(lambda x: torch.nn.functional.dropout(inner(x), 0.5), x, use_reentrant=False)


@case(X, breaks="inner-graph")
def checkpoint_with_an_effect(x):
    seen = []

    def f(x):
        seen.append(3)
        return x * 2

    return checkpoint(f, x, use_reentrant=False), seen


@case(X, breaks="inner-graph")
def checkpoint_that_takes_the_next(x):
    numbers = iter([2, 3])
    return checkpoint(lambda x: x * next(numbers), x, use_reentrant=False), list(numbers)


@case(X, breaks="inner-graph")
def checkpoint_that_writes(x):
    y = x * 1
    return checkpoint(lambda x: x * y.add_(1), x, use_reentrant=False), y


@case(X, breaks="inner-graph")
def checkpoint_of_other_kinds(x):
    return checkpoint(torch.sin, x, use_reentrant=True)


# pullbacks ------------------------------------------------------------------------------------------------------------
@case(X, W, graphs=1)
def vector_jacobian_product(x, w):
    value, pull = vjp(lambda x, w: (torch.tanh(x @ w), x.sum()), x, w)
    return value, pull((value[0], value[1])), pull((value[0] * 2, value[1])), pull.__name__


@case(X, W, graphs=1)
def jacobians(x, w):
    f = jacrev(lambda x, w: torch.tanh(x[0] @ w), argnums=(0, 1))
    return f(x, w), jacfwd(lambda x: {"y": x[0] @ w})(x), hessian(lambda r: loss(r[None], w))(x[0] * 1)


@case(X, breaks=ANY)
def pullback_of_what_draws(x):
    return vjp(lambda x: x.sin() + 0 * torch.rand_like(x), x)[1](x)


@case(X, breaks=ANY)
def pullback_after_a_break(x):
    y, pull = vjp(torch.sin, x)
    print(end="")
    return pull(y)


# branches -------------------------------------------------------------------------------------------------------------
@case(X, W, graphs=1)
def one_of_two(x, w):
    y = x.cos()
    return torch.cond(x.sum() > 1000, lambda a: torch.tanh(a @ w), lambda a: torch.sin(y @ w), (x,)) * 2


@case(X, graphs=1)
def branches_nest(x):
    def yes(a):
        return torch.cond(a.sum() > 1000, torch.sin, torch.exp, (a,)), {"k": a * 2}

    return torch.cond(x.sum() > -1000, yes, lambda a: (a.cos(), {"k": a * 3}), (x,))


@case(X, graphs=1)
def branch_that_is_known(x):
    return torch.cond(x.shape[0] > 2, torch.sin, torch.cos, (x,))
