"""Closures and cells, decorators, nested functions, globals, recursion."""

from __future__ import annotations

import functools

import torch
from capture.harness import ANY, case

X = torch.arange(4.0)
counter = 0
table = {"calls": 0}
FACTOR = 3
deleted_later = 5


def _closure_over_value():
    k = 4

    def closure_over_value(x):
        return x * k

    return closure_over_value


case(X)(_closure_over_value())


def _closure_counter():
    n = 0

    def closure_counter(x):
        nonlocal n
        n += 1
        return x + n, n

    return closure_counter


case(X, recompiles=1)(_closure_counter())


def _closure_list():
    seen = [1]

    def closure_list(x):
        seen.append(len(seen))
        return x + seen[-1]

    return closure_list


case(X)(_closure_list())


def _closure_tensor():
    w = torch.ones(4)

    def closure_tensor(x):
        nonlocal w
        w = w + x
        return w * 2

    return closure_tensor


case(X)(_closure_tensor())


def _empty_cell():
    def empty_cell(x):
        try:
            return later
        except NameError as e:
            return x + 1, str(e)

    if False:
        later = 1
    return empty_cell


case(X)(_empty_cell())


@case(X)
def nonlocal_shared(x):
    total = 0

    def add(v):
        nonlocal total
        total += v
        return total

    def read():
        return total

    add(1)
    add(2)
    return x + read(), total


@case(X)
def late_binding(x):
    fns = []
    for k in range(3):
        fns.append(lambda v: v * k)
    return [f(x) for f in fns]


@case(X)
def returned_closure(x):
    k = 2

    def inner(v):
        return v * k + x

    return inner


@case(X)
def returned_closures_share_cell(x):
    state = [x]
    n = 0

    def put(v):
        nonlocal n
        n += 1
        state.append(v)

    def get():
        return state, n

    put(x + 1)
    return put, get


@case(X)
def cell_of_argument(x):
    def change():
        nonlocal x
        x = x * 2

    change()
    change()
    return x


@case(X)
def cell_deleted(x):
    v = 1

    def read():
        return v

    del v
    try:
        read()
    except NameError:
        return x + 1


@case(X)
def nested_three_levels(x):
    a = 1

    def level1():
        b = 2

        def level2():
            nonlocal a, b
            a += b
            b += a
            return a + b

        return level2() + b

    return x + level1(), a


@case(X)
def class_like_dict_of_closures(x):
    def make(n):
        def get():
            return n

        def put(v):
            nonlocal n
            n = v

        return {"get": get, "put": put}

    p, q = make(1), make(2)
    p["put"](10)
    return x * p["get"]() * q["get"]()


def _twice(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs) * 2

    return wrapper


def _scaled(k):
    def decorate(fn):
        def wrapper(v):
            return fn(v) * k

        return wrapper

    return decorate


@_twice
@_scaled(3)
def _decorated(v):
    return v + 1


@case(X)
def global_decorators(x):
    return _decorated(x)


@case(X)
def local_decorators(x):
    @_twice
    def f(v):
        """Doc."""
        return v - 1

    return f(x), f.__name__, f.__doc__, f.__wrapped__(x)


@case(X)
def recursion(x):
    def power(v, n):
        return v if n == 0 else power(v * 2, n - 1)

    return power(x, 5)


def _fib(n):
    return n if n < 2 else _fib(n - 1) + _fib(n - 2)


@case(X)
def global_recursion(x):
    return x + _fib(10)


@case(X)
def mutual_recursion(x):
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    return x + 1 if even(10) else x


@case(X, recompiles=1)
def global_counter(x):
    global counter
    counter += 1
    return x + counter


@case(X)
def global_container(x):
    table["calls"] = 3
    table["new"] = x + 1
    return x + table["calls"]


@case(X)
def global_read(x):
    return x * FACTOR


@case(X)
def global_new_name(x):
    global made_by_function
    made_by_function = x * 2
    return made_by_function + 1


@case(X)
def global_function_stores(x):
    def bump():
        global counter
        counter = 41
        counter += 1

    bump()
    return x + counter


@case(X)
def global_deleted(x):
    global deleted_later
    y = x + deleted_later
    del deleted_later
    return y * 2


@case(X)
def unknown_name(x):
    try:
        return no_such_name  # noqa: F821
    except NameError as e:
        return x + 1, str(e)


@case(X)
def local_unbound(x):
    try:
        y = later  # noqa: F821
        later = 1
        return y
    except UnboundLocalError as e:
        return x + 1, str(e)


@case(X)
def local_deleted(x):
    y = 1
    del y
    try:
        return y  # noqa: F821
    except UnboundLocalError:
        return x + 2


@case(X)
def function_attributes(x):
    def f():
        f.calls += 1
        return f.calls

    f.calls = 0
    f()
    f()
    return x + f.calls, f.__name__, hasattr(f, "missing")


@case(X)
def immediately_called_lambda(x):
    return (lambda a, *b, c=2: a * c + len(b))(x, 1, 2)


@case(X)
def lambda_in_dict(x):
    ops = {"add": lambda a, b: a + b, "mul": lambda a, b: a * b}
    return ops["add"](x, 1) + ops["mul"](x, 2)


@case(X)
def lambda_returned_in_list(x):
    return [lambda v, k=k: v + k + x.sum() for k in range(2)]


@case(X)
def docstring_and_annotations(x: torch.Tensor, n: int = 2) -> torch.Tensor:
    """A documented function."""
    y: torch.Tensor = x * n
    return y


@case(X)
def function_with_annotations_returned(x):
    def g(a: int, *, b: str = "s") -> float:
        return a

    return g


@case(X)
def method_of_local_list(x):
    items = []
    append = items.append
    for i in range(3):
        append(x * i)
    return items


@case(X)
def star_in_index(x):
    idx = (0, 1)
    d = {(0, 1, 2): 5}
    return x * d[(*idx, 2)]


@case(X)
def walrus(x):
    if (n := len(x)) > 3 and (y := x * n) is not None:
        return y + n
    return x


@case(X)
def walrus_in_comprehension(x):
    values = [last := i * 2 for i in range(4)]
    return x + last, values


@case(X)
def cached_function(x):
    return x * _cached(3), _cached(3)


@functools.lru_cache(maxsize=None)
def _cached(n):
    return n * n


@functools.singledispatch
def _dispatch(v):
    return 0


@_dispatch.register
def _(v: int):
    return v


@_dispatch.register
def _(v: list):
    return len(v)


@case(X, breaks=ANY, recompiles=20)
def single_dispatch(x):
    return x + _dispatch(3) * _dispatch([1, 2]) + _dispatch("s")


@case(X)
def decorator_with_state(x):
    def counted(fn):
        calls = [0]

        def inner(*a):
            calls[0] += 1
            return fn(*a)

        inner.calls = calls
        return inner

    @counted
    def f(v):
        return v + 1

    return f(f(x)), f.calls
