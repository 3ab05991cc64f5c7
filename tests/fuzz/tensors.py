"""Guards of tensors: metadata, hidden writes of data, shared memory, attributes of tensors."""

from __future__ import annotations

import random
import types
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import _get_value

from fuzz.attributes import thing
from fuzz.core import GONE, Scene, X, attr, calls, count, family, places


def filled(*size: int, value: float = 1.0, **options: Any) -> torch.Tensor:
    return torch.full(size, value, **options)


# tensor ---------------------------------------------------------------------------------------------------------
@family("tensor")
def metadata_of_arguments(rng: random.Random) -> Scene:
    h = types.SimpleNamespace(w=filled(2, 4))
    base = torch.arange(16.0)

    def fn(x: Any, w: Any) -> Any:
        return (
            (x * w).sum(-1),
            w.shape,
            w.stride(),
            w.requires_grad,
            isinstance(w, nn.Parameter),
            w.is_contiguous(),
            w.dtype,
        )

    return Scene(fn, lambda: (X(), h.w), {
        "w": attr(
            h, "w", h.w, filled(4), filled(3, 4), filled(2, 4, dtype=torch.float64), filled(4, 2).t(), filled(2, 1),
            filled(2, 4).requires_grad_(), nn.Parameter(filled(2, 4)), nn.Parameter(filled(2, 4), requires_grad=False),
            filled(2, 4).to(torch.int64), filled(2, 4, value=2.0).to(torch.bfloat16), filled(0, 4), filled(1, 2, 4),
            base[:8].view(2, 4), torch.tensor(2.0), 3, 2.5, None,
        ),
        "same metadata": calls(
            lambda: setattr(h, "w", filled(2, 4)), lambda: setattr(h, "w", filled(2, 4, value=5.0)), lambda: setattr(h, "w", base[3:11].view(2, 4)),
            matters=False, cell=("attr", id(h), "w"),
        ),
        "unread": count(h),
    })  # fmt: skip


@family("tensor")
def data_behind_the_back(rng: random.Random) -> Scene:
    t = thing(w=nn.Parameter(filled(2, 4)), b=filled(4, 4), s=filled(4))
    first = t.w.data

    def fn(x: Any, t: Any) -> Any:
        return (x * t.w).sum() + t.b.sum(0) + t.s, t.w.shape, t.b.stride(), t.w.requires_grad, t.s.requires_grad

    return Scene(fn, lambda: (X(), t), {
        ".data": places(lambda v: setattr(t.w, "data", v), first, filled(3, 4), filled(2, 4, dtype=torch.float64), filled(4, 2).t(), filled(4)),
        ".data of the same kind": places(lambda v: setattr(t.b, "data", filled(4, 4, value=v)), 1.0, 2.0, matters=False, cell=("b",)),
        "resize_": places(lambda n: t.b.resize_(n, 4).fill_(1), 4, 2, 8, cell=("b",)),
        "t_": calls(lambda: t.b.set_(filled(4, 4)), lambda: t.b.set_(filled(5, 4).t()), lambda: t.b.set_(filled(4, 1)), cell=("b",)),
        "unsqueeze_": calls(lambda: t.s.set_(filled(4)), lambda: t.s.set_(filled(4)).unsqueeze_(0), lambda: t.s.set_(filled(2, 4)), cell=("s",)),
        "requires_grad_": places(lambda v: t.w.requires_grad_(v), True, False),
        "in place": places(lambda v: t.b.fill_(v), 1.0, 7.0, matters=False),
        "grad": places(lambda v: setattr(t.w, "grad", None), 1, 1, matters=False),
        "version": calls(lambda: t.s.add_(0), lambda: t.s.mul_(1), matters=False),
        "unread": count(t),
    })  # fmt: skip


@family("tensor")
def tensors_born_again(rng: random.Random) -> Scene:
    """Freed objects and new ones at their addresses, with other metadata or the same."""
    t = thing(w=None, table={})
    size = rng.randrange(1, 6)

    def born(n: int, dtype: Any = torch.float32) -> None:
        t.w = None
        t.table.clear()
        t.w = torch.ones(n, dtype=dtype)
        t.table["w"] = torch.ones(n, dtype=dtype)

    born(size)

    def fn(x: Any, t: Any) -> Any:
        return x.sum() + t.w + t.table["w"], t.w.shape, t.w.dtype

    return Scene(fn, lambda: (X(), t), {
        "size": places(born, size, 7, 8, cell=("w",)),
        "same": calls(lambda: born(size), lambda: born(size), matters=False, cell=("w",)),
        "dtype": calls(lambda: born(size), lambda: born(size, torch.float64), lambda: born(size, torch.int32), cell=("w",)),
        "unread": count(t),
    })  # fmt: skip


@family("tensor")
def leaves_offsets_and_grads(rng: random.Random) -> Scene:
    base = torch.arange(12.0)
    h = types.SimpleNamespace(v=filled(4), w=filled(4).requires_grad_(), g=filled(4).requires_grad_())

    def fn(x: Any, h: Any) -> Any:
        y = x + h.v
        if h.g.grad is not None:
            y = y + h.g.grad
        return y, h.w.is_leaf, h.v.storage_offset(), h.v._is_view(), h.g.grad is None

    w = h.w
    return Scene(fn, lambda: (X(), h), {
        "view": attr(h, "v", h.v, base[2:6], base[5:9], base.view(3, 4)[1]),
        "leaf": attr(h, "w", w, w * 1),
        "grad": attr(h.g, "grad", None, filled(4), filled(4, value=3.0)),
        "values of the view": places(lambda v: base.add_(0), 1, 1, matters=False),
    })  # fmt: skip


@family("tensor")
def attributes_of_tensors(rng: random.Random) -> Scene:
    w = filled(4)
    p = nn.Parameter(filled(4))
    p.scale = 2  # type: ignore[attr-defined]

    def fn(x: Any, w: Any) -> Any:
        return x + (1 if hasattr(w, "tag") else 2) + p.scale, getattr(w, "level", 0)  # type: ignore[attr-defined]

    return Scene(fn, lambda: (X(), w), {
        "tag": attr(w, "tag", GONE, 1, matters=True),
        "scale": attr(p, "scale", 2, 3, 2.0),
        "level": places(lambda v: vars(w).pop("level", 0) if v is GONE else vars(w).update(level=v), GONE, 5, 6),
        "unread": attr(w, "zzz", GONE, 1, matters=False),
    })  # fmt: skip


# no_alias: memory ---------------------------------------------------------------------------------------------------
def shared_memory(backend: str, rng: random.Random) -> Scene:
    base = torch.arange(16.0)
    a, b = torch.arange(4.0), torch.arange(4.0)
    h = types.SimpleNamespace(a=a, b=b)

    def fn(a: Any, b: Any) -> Any:
        a.add_(1)
        c = b * 2
        a.mul_(2)
        return a + b, c

    def put_back() -> None:
        for t in (base, apart, *views, h.a, h.b):
            whole = torch.empty(0).set_(t.untyped_storage())
            whole.copy_(torch.arange(float(whole.numel())))

    apart = torch.arange(4.0)
    windows = [base[i : i + 4] for i in range(6)]
    views = [a, b, a[:], b[:]]
    return Scene(fn, lambda: (h.a, h.b), {
        "b": attr(h, "b", b, a, views[2], windows[0], windows[1], base[::2][:4], base[8:12]),
        "a": attr(h, "a", a, windows[0], windows[2], views[3]),
        "set_": calls(lambda: b.set_(torch.arange(4.0)), lambda: b.set_(a), lambda: b.set_(base[1:5]), cell=("set",)),
        ".data": calls(lambda: setattr(b, "data", torch.arange(4.0)), lambda: setattr(b, "data", a), cell=("set",)),
        "apart": attr(h, "b", b, apart, matters=False),
    }, effects=lambda: (base.clone(), a.clone(), b.clone()), restore=put_back, backend=backend)  # fmt: skip


@family("no_alias")
def memory_of_mutated_inputs(rng: random.Random) -> Scene:
    return shared_memory("eager", rng)


@family("no_alias")
def memory_of_mutated_inputs_functional(rng: random.Random) -> Scene:
    """The same under a backend with a functional graph, which could lose the order of reads and writes."""
    return shared_memory("aot_eager", rng)


@family("no_alias")
def buffers_that_meet(rng: random.Random) -> Scene:
    """Running statistics, which an operator writes without a new tensor version."""
    torch.manual_seed(0)
    one, two = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    x = torch.randn(3, 4)
    mean = two.running_mean

    def fn(x: Any) -> Any:
        return two(one(x) * 2) + one.running_mean + two.running_mean

    def put_back() -> None:
        for bn in (one, two):
            bn.running_mean.zero_()
            bn.running_var.fill_(1)
            bn.num_batches_tracked.zero_()

    return Scene(fn, lambda: (x,), {
        "tied": places(lambda v: two._buffers.__setitem__("running_mean", v), mean, one.running_mean, one.running_mean[:]),
        "momentum": attr(one, "momentum", 0.1, 0.5),
        "training": places(lambda v: two.train(v), True, False),
    }, effects=lambda: (one.running_mean.clone(), two.running_mean.clone()), restore=put_back, backend="aot_eager")  # fmt: skip


@family("no_alias")
def tensors_that_meet(rng: random.Random) -> Scene:
    t = thing(a=filled(4), b=filled(4), c=filled(4))
    a, b = t.a, t.b

    def fn(x: Any, t: Any) -> Any:
        t.a.add_(1)
        y = t.b + x * t.c
        t.a.sub_(1)
        return y, t.a is t.b, t.b is t.c

    return Scene(fn, lambda: (X(), t), {
        "b": attr(t, "b", b, a, filled(4)),
        "c": attr(t, "c", t.c, b, a),
        "values": places(lambda v: t.c.mul_(1), 1, 1, matters=False),
        "unread": count(t),
    })  # fmt: skip


# sizes ----------------------------------------------------------------------------------------------------------
@family("sizes")
def sizes_that_are_symbols(rng: random.Random) -> Scene:
    """Conditions on symbols hold for each call that an entry serves: order, divisors, strides, two equal sizes."""
    h = types.SimpleNamespace(w=filled(6, 4), v=filled(6), n=3)

    def fn(w: Any, v: Any, n: Any) -> Any:
        rows = w.shape[0]
        y = w * 2 if rows > 5 else w + 1
        if rows % 3 == 0:
            y = y.reshape(3, -1)
        if v.shape[0] == rows:
            y = y * v.sum()
        return y.sum(-1), rows * n - v.shape[0], w.stride(), y[:n].shape, [i * n for i in range(v.shape[0] // 3)]

    return Scene(fn, lambda: (h.w, h.v, h.n), {
        "w": attr(
            h, "w", h.w, filled(7, 4), filled(9, 4), filled(3, 4), filled(4, 4), filled(2, 4), filled(1, 4), filled(0, 4), filled(6, 5),
            filled(4, 6).t(), filled(12, 4)[::2], filled(6, 8)[:, ::2], filled(6, 1), filled(6, 4, dtype=torch.float64), filled(8, 8),
        ),
        "v": attr(h, "v", h.v, filled(7), filled(9), filled(2), filled(1), filled(0), filled(12)[::2], filled(6, 1)),
        "n": attr(h, "n", 3, 4, 2, 1, 0, 7, -1, -2, -3, -7, -(2**62), True, 2.0),
        "unread": count(h),
    }, dynamic=True)  # fmt: skip


# data -----------------------------------------------------------------------------------------------------------
@family("data")
def numbers_that_decide(rng: random.Random) -> Scene:
    """Decisions of an optimizer's number: by its value, in memory of its own or in memory that the graph writes
    through an alias."""
    w, base, s = filled(4), filled(8), torch.tensor(1.0)
    h = types.SimpleNamespace(w=w, s=s, start=1.0)
    low = rng.choice((2.0, 3.0))

    def fn(w: Any, s: Any) -> Any:
        w.mul_(2)
        s += 1
        n = _get_value(s)
        y = w * 2 if n * 0.75**n > 0.8 else w + 1
        if n != 5.0:
            y = y - 1
        if not n <= low:
            s += 1
            y = y * 3 if _get_value(s) >= 2.0**24 else y * 5
        return y, n

    def put_back() -> None:
        w.fill_(1)
        base.fill_(1)
        h.s.data.fill_(h.start if h.s.is_floating_point() else 1)

    def start(value: float) -> None:
        h.start = value
        put_back()

    large = 2.0**24
    return Scene(fn, lambda: (h.w, h.s), {
        "value": places(start, 1.0, 0.0, 2.0, 3.0, 4.0, 6.0, -1.0, -1.5, large, large - 1, large - 2, float("nan"), float("inf"), -float("inf")),
        "s": attr(
            h, "s", s, torch.tensor(1.0, dtype=torch.float64), torch.tensor(1), torch.tensor([1.0]), base[2], w[1], w.view(4)[3:],
            nn.Parameter(torch.tensor(1.0), requires_grad=False), torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(1.0, requires_grad=True),
        ),
        "w": attr(h, "w", w, base[:4], base[4:]),
        "written": places(lambda v: s.mul_(1), 1, 1, matters=False),
    }, effects=lambda: (w.clone(), base.clone(), h.s.detach().clone()), restore=put_back)  # fmt: skip
