"""Side effects: their order, sharing between them, and their visibility to the program and the caller."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types

import torch
from capture.harness import ANY, case

X = torch.arange(4.0)


class Bag:
    def __init__(self, **values):
        self.__dict__.update(values)


@case(X, [], {})
def one_new_object_in_two_places(x, a, d):
    shared = [x + 1]
    a.append(shared)
    d["s"] = shared
    shared.append(2)
    return shared


@case(X, Bag(a=1), Bag(a=2))
def swap_attributes(x, p, q):
    p.a, q.a = q.a, p.a
    return x + p.a


@case(X, [1, 2])
def swap_items(x, a):
    a[0], a[1] = a[1], a[0]
    return x * a[0]


@case(X, [[1], [2]])
def swap_inner_lists(x, a):
    a[0], a[1] = a[1], a[0]
    a[0].append(9)
    return x + len(a[0])


@case(X, {"a": [1], "b": [2]})
def swap_dict_values(x, d):
    d["a"], d["b"] = d["b"], d["a"]
    return x + d["a"][0]


@case(X, Bag(items=[1]))
def replaced_container(x, p):
    old = p.items
    p.items = [5]
    old.append(2)
    p.items.append(6)
    return x + len(old), old, p.items


@case(X, Bag(items=[1]))
def deleted_and_made_again(x, p):
    old = p.items
    del p.items
    missing = not hasattr(p, "items")
    p.items = [*old, 2]
    return x + 1, missing


@case(X, {"a": 1})
def key_deleted_and_made_again(x, d):
    del d["a"]
    d["b"] = 2
    d["a"] = 3
    return x + 1, list(d)


@case(X, [1])
def list_added_to_itself_twice(x, a):
    a += a
    a.extend(a)
    return x + len(a)


@case(X, [0])
def list_inside_itself(x, a):
    a.append(a)
    return x + len(a), a[1] is a


@case(X, Bag(n=0))
def object_refers_to_itself(x, p):
    p.me = p
    p.n += 1
    return x + p.me.n


@case(X, Bag(v=None))
def intermediate_kept_in_object(x, p):
    y = x * 2
    p.v = y
    y.add_(1)
    return y.sum()


@case(X, [])
def tensors_kept_in_list(x, log):
    for i in range(3):
        x = x + i
        log.append(x)
    log[0].zero_()
    return x


@case(X, {})
def input_kept_in_dict(x, d):
    d["x"] = x
    d["view"] = x[1:]
    x.add_(1)
    return d["x"] * 2


@case(X, torch.zeros(4))
def mutation_then_read_of_other_input(x, y):
    y.copy_(x)
    z = y + 1
    y.zero_()
    return z


@case(X)
def mutation_between_views(x):
    a, b = x[:2], x[2:]
    a.add_(b)
    b.mul_(a)
    return x.clone()


@case(X, [])
def effects_before_exception_is_caught(x, log):
    try:
        log.append("a")
        x = x + 1
        log.append({}["missing"])
    except KeyError:
        log.append("c")
    return x


@case(X, [], breaks="builtin-call")
def effects_around_breaks(x, log):
    log.append(x + 1)
    print("one")
    log.append(x + 2)
    print("two", len(log))
    log.clear()
    log.append("end")
    return x


@case(X, Bag(n=0), breaks="builtin-call")
def attribute_seen_by_the_break(x, p):
    p.n = 1
    print(p.n)
    p.n = 2
    print(p.n)
    return x + p.n


@case(X, {"n": 0}, breaks="builtin-call")
def dict_seen_by_the_break(x, d):
    d["n"] += 1
    print(d)
    d["m"] = d.pop("n")
    print(d)
    return x + d["m"]


def _closure_seen_by_the_break():
    n = 0

    def closure_seen_by_the_break(x):
        nonlocal n
        n = 5
        print(n)
        n = 6
        return x + n

    return closure_seen_by_the_break


case(X, breaks="builtin-call")(_closure_seen_by_the_break())


@case(X, breaks="builtin-call")
def new_objects_cross_breaks(x):
    a = [x + 1]
    b = {"a": a}
    print("one")
    a.append(2)
    print(len(b["a"]))
    return a, b, b["a"] is a


@case(X, breaks="builtin-call")
def functions_cross_breaks(x):
    n = 1

    def add(v):
        nonlocal n
        n += 1
        return v + n

    y = add(x)
    print(n)
    y = add(y)
    print(n)
    return y, n


@case(X, breaks=ANY)
def iterators_cross_breaks(x):
    it = iter([1, 2, 3, 4])
    pairs = zip(it, "abcd")
    a = next(it)
    print("one")
    b = next(pairs)
    print("two")
    return x + a, b, list(it), list(pairs)


@case(X, breaks=ANY)
def map_and_enumerate_cross_breaks(x):
    log = []

    def f(v):
        log.append(v)
        return v * 2

    m = map(f, [1, 2, 3])
    e = enumerate(m, 10)
    first = next(e)
    print(log)
    return x + first[1], list(e), log


@case(X, [1, 2, 3], breaks=ANY)
def list_grows_while_loop_breaks(x, a):
    for v in a:
        print(v)
        if len(a) < 6:
            a.append(v + 10)
    return x + len(a)


@case(X, breaks=ANY)
def exception_crosses_break(x):
    try:
        raise ValueError("v")
    except ValueError as e:
        print("handling", e)
        return x + 1, e.args


@case(X, breaks="builtin-call")
def nested_calls_break(x):
    def inner(v, log):
        log.append("in")
        print("inner")
        log.append("out")
        return v * 2

    def outer(v):
        log = []
        r = inner(v + 1, log)
        return r + 1, log

    return outer(x), outer(x * 2)


@case(X, breaks="builtin-call")
def break_in_expression(x):
    return (x + 1) * len(str(print("a"))) + (x.sum() if print("b") is None else 0)


@case(X, breaks=ANY)
def break_in_comprehension(x):
    return [x + (i if print(i) is None else 0) for i in (1, 2)]


@case(X, breaks="builtin-call")
def break_in_arguments(x):
    def f(*a, k, **rest):
        return sum(a) + k, rest

    return f(x + 1, print("one") or 2, k=print("two") or x, z=print("three"))


@case(X, breaks=ANY)
def break_in_try_with_finally(x):
    log = []
    for i in range(2):
        try:
            print("body", i)
            if i == 1:
                raise KeyError(i)
            log.append(i)
        except KeyError as e:
            print("handler")
            log.append(e.args)
        finally:
            print("finally")
            log.append("f")
    return x + len(log), log


@case(X, collections.Counter("ab"), breaks=ANY)
def counter_argument(x, c):
    c["a"] += 2
    c.update("bb")
    return x + c["b"], c.most_common()


@dataclasses.dataclass
class State:
    step: int = 0
    history: list = dataclasses.field(default_factory=list)
    params: dict = dataclasses.field(default_factory=dict)


@case(X, State(params={"w": torch.ones(4)}))
def training_state(x, s):
    s.step += 1
    s.params["w"] = s.params["w"] - 0.1 * x
    s.history.append(s.params["w"].sum())
    return s.params["w"]


@case(X)
def returned_bound_method(x):
    b = Bag(v=x + 1)
    b.items = []
    return b.items.append, b


@case(X)
def returned_partial(x):
    return functools.partial(torch.add, x + 1, alpha=2)


@case(X, [3])
def returned_slice_and_range(x, a):
    return slice(a[0], None), range(a[0]), x[slice(1, a[0])]


@case(X)
def same_tensor_returned_twice(x):
    y = x + 1
    return y, y, [y], {"y": y}


@case(X)
def equal_but_distinct_lists(x):
    a, b = [1], [1]
    return a, b, a is b, a == b, x + 1


@case(X)
def nested_new_containers_share(x):
    inner = {"t": x + 1}
    return [inner, inner], (inner, [inner])


@case(X)
def default_argument_object_is_shared(x):
    def f(v, seen=[]):  # noqa: B006
        seen.append(v)
        return seen

    a = f(1)
    b = f(2)
    return a is b, a, x + 1


@case(X, [1, 2, 3])
def list_reversed_in_place_and_returned(x, a):
    a.reverse()
    b = a
    b.sort()
    return b, x + a[0]


@case(X, Bag(d={"k": [1]}))
def deep_path(x, p):
    p.d["k"].append(x)
    p.d["k"][0] = p
    return x + len(p.d["k"])


@case(X, {1: "a"})
def keys_of_other_types(x, d):
    d[(1, 2)] = "t"
    d[None] = "n"
    d[1.5] = "f"
    d[True] = "same as one"
    return x + len(d)


@case(X, set())
def set_filled(x, s):
    for i in range(3):
        s.add(i % 2)
    s.add("a")
    return x + len(s)


@case(X, Bag())
def lambda_stored(x, p):
    k = 3
    p.fn = lambda v: v * k
    return p.fn(x)


@case(X, [])
def generator_effects(x, log):
    def steps():
        for i in range(3):
            log.append(i)
            yield x + i

    g = steps()
    a = next(g)
    log.append("between")
    b = next(g)
    g.close()
    return a + b


@case(X, Bag(count=0))
def property_effects(x, p):
    class_of = type(p)
    p.count += 1
    return x + p.count, class_of is Bag


@case(torch.ones(2), breaks=ANY)
def deleted_attribute_of_a_namespace_and_vars(x):
    y = x + 1
    o = types.SimpleNamespace(a=1)
    del o.a
    vars(o)["q"] = 3
    return y + o.q
