"""Argument forms: defaults, *args, keyword-only, positional-only, **kwargs, and calls that do not bind."""

from __future__ import annotations

import functools

import torch
from capture.harness import case

X = torch.arange(4.0)
Y = torch.ones(4)


@case(X)
def default_scalar(x, k=3):
    return x * k


@case(X, kwargs={"k": 5})
def keyword_for_default(x, k=3):
    return x * k


@case(X, Y, Y)
def star_args(x, *rest):
    for r in rest:
        x = x + r
    return x, len(rest), rest


@case(X)
def empty_star_args(x, *rest, **named):
    return x + 1, rest, named


@case(X, kwargs={"a": Y, "b": 2})
def keyword_dict(x, **named):
    return x + named["a"] * named["b"], sorted(named)


@case(X, kwargs={"scale": 2.0})
def keyword_only(x, *, scale, shift=1):
    return x * scale + shift


@case(X, Y)
def positional_only(x, y, /, z=1, *, w=2):
    return x + y * z * w


@case(X, Y, 7, kwargs={"flag": True, "other": Y})
def everything(x, /, y, *rest, flag, **named):
    return (x - y if flag else x + y), rest, named["other"] + 1


@case(X, [Y, {"k": Y}])
def nested_containers(x, tree):
    return x + tree[0] + tree[1]["k"]


@case(X, None)
def none_argument(x, mask=None):
    return x if mask is None else x * mask


@case(X, (1, 2), "name", 2.5, True)
def scalars(x, shape, text, number, flag):
    return x.reshape(2, 2) * shape[1] + number, text + "!", not flag


@case(X, X)
def same_values_different_tensors(x, y):
    return x + y


def _shared():
    t = torch.ones(3)
    return t, t, [t]


@case(*_shared())
def same_tensor_twice(x, y, items):
    x.add_(1)
    return x + y, items[0] is x, y is x


@case(X)
def call_with_stars(x):
    def inner(a, b, *c, d, e=0, **f):
        return a + b + sum(c) + d + e + sum(f.values())

    args, kw = (x, 1, 2, 3), {"d": 4, "z": 5}
    return inner(*args, **kw), inner(*args[:2], *[9], **{"d": 1}, **{"e": 2})


@case(X)
def missing_argument_is_caught(x):
    def inner(a, b):
        return a + b

    try:
        return inner(x)
    except TypeError as e:
        return x + 1, "missing" in str(e)


@case(X)
def missing_argument_message(x):
    def inner(a, b, c, *, d):
        return a

    messages = []
    for call in (
        lambda: inner(x), lambda: inner(x, 1), lambda: inner(x, 1, 2), lambda: inner(x, 1, 2, 3, d=1),
        lambda: inner(x, 1, 2, d=1, e=1), lambda: inner(x, 1, 2, d=1, a=1),
    ):  # fmt: skip
        try:
            call()
        except TypeError as e:
            messages.append(str(e))
    return x + 1, messages


@case(X)
def positional_only_by_keyword(x):
    def inner(a, /, b=1, **rest):
        return a * b, rest

    def strict(a, /):
        return a

    try:
        strict(a=x)
    except TypeError:
        return inner(x, a=3)


@case(X, breaks="uncaught-exception")
def missing_argument_raises(x):
    def inner(a, b):
        return a + b

    return inner(x)


@case(X)
def lambda_default(x):
    fns = [lambda v, k=k: v * k for k in range(3)]
    return [f(x) for f in fns], fns[0](x, 10)


@case(X)
def mutable_default_of_new_function(x):
    def inner(v, seen=[]):  # noqa: B006
        seen.append(len(seen))
        return v + len(seen), seen

    inner(x)
    return inner(x)


_LOG: list[int] = []


def _with_mutable_default(v, seen={"n": 0}):  # noqa: B006
    return v + seen["n"]


@case(X)
def mutable_default_of_global_function(x):
    return _with_mutable_default(x) + _with_mutable_default(x, {"n": 2})


@case(X)
def partial_arguments(x):
    def inner(a, b, c=1, *, d=2):
        return a * b + c * d

    p = functools.partial(inner, x, c=5)
    q = functools.partial(p, 3, d=4)
    return p(2), q(), q(c=0), q.args, sorted(q.keywords), p.func is inner


_GLOBAL_PARTIAL = functools.partial(torch.add, alpha=2)


@case(X, Y)
def partial_of_torch_function(x, y):
    return _GLOBAL_PARTIAL(x, y)


@case(X)
def defaults_depend_on_locals(x):
    n = 3

    def inner(v, k=n, *, m=n + 1):
        return v * k + m

    n = 100
    return inner(x), n


@case(X)
def argument_reassigned(x):
    x = x + 1
    y, x = x, x * 2
    del y
    return x


@case(X, {"a": 1, "b": 2})
def unpack_dict_argument(x, d):
    def inner(a, b):
        return x * a + b

    return inner(**d), {**d, "c": 3}, [*d]


@case((X, Y), (1, 2, 3))
def tuple_arguments(pair, numbers):
    a, b = pair
    first, *rest = numbers
    return a + b * first, rest


@case(X)
def keyword_order(x):
    def inner(**kw):
        return list(kw)

    return x + 1, inner(z=1, a=2, m=3)


@case(X)
def duplicate_keyword(x):
    def inner(a, **kw):
        return a

    try:
        inner(x, **{"b": 1}, **{"b": 2})
    except TypeError as e:
        return x * 2, str(e)
