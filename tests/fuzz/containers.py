"""Lists, tuples, dicts, sets, deques, iterators: lengths, keys, order, members."""

from __future__ import annotations

import collections
import random
import types
from typing import Any

from fuzz.attributes import make_class, thing
from fuzz.core import GONE, Scene, X, attr, calls, contents, count, family, item, places


# length ---------------------------------------------------------------------------------------------------------
@family("length")
def lengths(rng: random.Random) -> Scene:
    n = rng.randrange(1, 4)
    a = list(range(n))
    t = thing(a=a, pair=(1, 2), nested=[[1], [2, 3]])

    def fn(x: Any, t: Any) -> Any:
        total = sum(t.a)
        for inner in t.nested:
            total += len(inner)
        return x + total, len(t.pair), bool(t.a), 3 in t.a, t.a[-1:] + t.a[:1]

    return Scene(fn, lambda: (X(), t), {
        "contents": contents(a, list(range(n)), [], [9], [9, 8, 7, 6], [*range(n - 1), 3.5]),
        "grown": places(lambda k: (a.__setitem__(slice(None), [*range(n)]), a.extend([4] * k)), 0, 1, 5, cell=("item", id(a))),
        "replaced by an equal one": calls(lambda: setattr(t, "nested", [[1], [2, 3]]), lambda: setattr(t, "nested", [[1], [2, 3]]), matters=False, cell=("nested",)),
        "tuple": attr(t, "pair", (1, 2), (1, 2, 3), (), (1, 3), matters=True),
        "nested": places(lambda k: t.nested[0].__setitem__(slice(None), [0] * k), 1, 0, 4, cell=("nested",)),
        "unread": count(t),
    })  # fmt: skip


@family("length")
def deques_and_subclasses(rng: random.Random) -> Scene:
    class Rows(list):  # type: ignore[type-arg]
        pass

    d = collections.deque([1, 2, 3], maxlen=5)
    r = Rows([1, 2])
    point = collections.namedtuple("Point", "x y")
    t = thing(d=d, r=r, p=point(1, 2))

    def fn(x: Any, t: Any) -> Any:
        return x + t.d[0] + sum(t.r) + t.p.x, len(t.d), len(t.r), t.d.maxlen, t.p._fields[0], list(t.d)

    return Scene(fn, lambda: (X(), t), {
        "deque": contents(d, [1, 2, 3], [3, 1, 2], [1], [1, 2, 3, 4, 5, 6]),
        "deque replaced": attr(t, "d", d, collections.deque([1, 2, 3], maxlen=4)),
        "rows": contents(r, [1, 2], [1], [2, 2], [1, 2, 3]),
        "point": attr(t, "p", t.p, point(3, 2), point(1, 5), (1, 2), matters=True),
        "subclass": attr(Rows, "__len__", GONE, lambda self: 40),
        "iteration": attr(Rows, "__iter__", GONE, lambda self: iter([100])),
        "unread": count(t),
    })  # fmt: skip


# dict_keys --------------------------------------------------------------------------------------------------------
@family("dict_keys")
def iteration_of_dicts(rng: random.Random) -> Scene:
    d: dict[Any, Any] = {"a": 1, "b": 2}
    o: Any = collections.OrderedDict(a=1, b=2)
    space = types.SimpleNamespace(u=1, v=2)
    keyed: dict[Any, Any] = {1: 1, (1, 2): 2, 2.5: 3}

    def fn(x: Any, d: Any) -> Any:
        return x + sum(d.values()), list(d), next(iter(o)), [k for k in vars(space)], len(d), list(keyed), dict(**d)

    def moved(last: bool) -> None:
        o.move_to_end("a", last=last)

    return Scene(fn, lambda: (X(), d), {
        "contents": contents(d, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}, {}, {"a": 1, "c": 2}, {"a": 1, "b": 3}),
        "ordered": places(moved, False, True),
        "namespace": calls(lambda: vars(space).pop("w", None), lambda: setattr(space, "w", 3)),
        "keys": contents(keyed, {1: 1, (1, 2): 2, 2.5: 3}, {True: 1, (1, 2): 2, 2.5: 3}, {1.0: 1, (1, 2): 2, 2.5: 3}, {1: 1, (1, 3): 2, 2.5: 3}),
        "same again": calls(lambda: d.__setitem__("zz", 1) or d.pop("zz"), lambda: d.update(dict(d)), matters=False),
    })  # fmt: skip


@family("dict_keys")
def keyword_arguments(rng: random.Random) -> Scene:
    def callee(v: Any, **kw: Any) -> Any:
        return v + sum(kw.values()), list(kw)

    kw = {"a": 1, "b": 2}
    kwd = callee

    def inner(v: Any, *, c: Any = 1, e: Any = 2) -> Any:
        return v + c * e

    def fn(x: Any, kw: Any) -> Any:
        return kwd(x, **kw), inner(x)

    return Scene(fn, lambda: (X(), kw), {
        "contents": contents(kw, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 5, "b": 2}, {}, {"v": 1}),
        "kwdefaults": contents(inner.__kwdefaults__, {"c": 1, "e": 2}, {"e": 2, "c": 3}, {"c": 1}, {"c": 1, "e": 4}),
    })  # fmt: skip


# dict_contains, dict_absent ------------------------------------------------------------------------------------------
@family("dict_contains")
def members_of_dicts(rng: random.Random) -> Scene:
    d: Any = {"a": 1, "b": 2}
    t = thing(inner=thing())

    def fn(x: Any, d: Any, t: Any) -> Any:
        return x + (1 if "a" in d else 2), "k" in vars(t), "zz" in d, "k" in t.inner.__dict__

    return Scene(fn, lambda: (X(), d, t), {
        "a": item(d, "a", 1, GONE),
        "value of a": item(d, "a", 1, 5, matters=False),
        "zz": item(d, "zz", GONE, 1),
        "k": attr(t, "k", 3, GONE),
        "k of the inner": places(lambda v: vars(t.inner).pop("k", 0) if v is GONE else vars(t.inner).update(k=v), 3, GONE),
        "unread": item(d, "y", GONE, 1, matters=False),
    })  # fmt: skip


@family("dict_contains")
def membership_of_any_key(rng: random.Random) -> Scene:
    cls = make_class()
    o = cls()
    d: Any = {1: 1, (1, 2): 2, "s": 3, o: 4, 2.5: 5}
    key = types.SimpleNamespace(k=1)

    def fn(x: Any, d: Any) -> Any:
        return x + 1, 1 in d, (1, 2) in d, "s" in d, o in d, 2.5 in d, None in d, key.k in d

    rows = ({1: 1, (1, 2): 2, "s": 3, o: 4, 2.5: 5}, {1: 1}, {None: 0, (1, 2): 2}, {o: 4, True: 3}, {})
    return Scene(fn, lambda: (X(), d), {
        "contents": contents(d, *rows),
        "key": attr(key, "k", 1, "s", 2.5, 77, None),
        "unread": count(key),
    })  # fmt: skip


@family("dict_absent")
def absent_keys(rng: random.Random) -> Scene:
    d: Any = {"a": 1}
    dd: Any = collections.defaultdict(int, a=1)
    m = types.ModuleType("m")

    class Config(dict):  # type: ignore[type-arg]
        pass

    class Missing(dict):  # type: ignore[type-arg]
        def __missing__(self, key: Any) -> Any:
            return 30

    c, e = Config(a=1), Missing(a=1)

    def fn(x: Any, d: Any) -> Any:
        try:
            v = d["b"]
        except KeyError:
            v = -1
        return x + d.get("c", 5) + v, dd.get("b", 6), getattr(m, "k", 7), c.get("b"), e["q"], hasattr(m, "j")

    return Scene(fn, lambda: (X(), d), {
        "b": item(d, "b", GONE, 1),
        "c": places(lambda v: d.pop("c", None) if v is GONE else d.update(c=v), GONE, 2, 3),
        "default dict": places(lambda v: dd.pop("b", None) if v is GONE else dd["b"], GONE, 0),
        "module": attr(m, "k", GONE, 8),
        "subclass": places(lambda v: c.pop("b", None) if v is GONE else dict.__setitem__(c, "b", v), GONE, 9),
        "subclass's get": attr(Config, "get", GONE, lambda self, k: 44),
        "missing": places(lambda v: e.pop("q", None) if v is GONE else e.update(q=v), GONE, 3),
        "__missing__": attr(Missing, "__missing__", Missing.__missing__, lambda self, k: 31),
        "unread": item(d, "y", GONE, 1, matters=False),
        "unread of the module": attr(m, "zzz", GONE, 1, matters=False),
    })  # fmt: skip


@family("dict_absent")
def default_dicts(rng: random.Random) -> Scene:
    dd: Any = collections.defaultdict(list, a=[1])

    def fn(x: Any, dd: Any) -> Any:
        return x + len(dd["a"]) + len(dd["new"]), len(dd)

    def factory(v: Any) -> None:
        dd.default_factory = v

    return Scene(fn, lambda: (X(), dd), {
        "factory": places(factory, list, tuple, lambda: [1, 2, 3], None),
        "a": places(lambda v: dd.update(a=v), [1], [1, 2], ()),
        "other": item(dd, "other", GONE, 1),
    }, effects=lambda: dict(dd), restore=lambda: dd.pop("new", None))  # fmt: skip


# set_equals ---------------------------------------------------------------------------------------------------------
@family("set_equals")
def sets(rng: random.Random) -> Scene:
    s: Any = {1, 2}
    t = thing(f=frozenset({"a", "b"}), kinds={int, float})

    def fn(x: Any, s: Any) -> Any:
        return x + (3 in s), "a" in t.f, len(s), sorted(s), int in t.kinds, s & {1}

    return Scene(fn, lambda: (X(), s), {
        "contents": contents(s, {1, 2}, {1, 2, 3}, {3, 4}, set(), {1}, {1.5, 2}),
        "frozen": attr(t, "f", t.f, frozenset({"a"}), frozenset({"b", "c"}), {"a", "b"}, matters=True),
        "equal frozen set": calls(lambda: setattr(t, "f", frozenset({"b", "a"})), lambda: setattr(t, "f", frozenset(["a", "b"])), matters=False, cell=("attr", id(t), "f")),
        "kinds": contents(t.kinds, {int, float}, {str}, {float}),
        "in place": calls(lambda: (s.add(99), s.discard(99)), lambda: (s.add(98), s.discard(98)), matters=False),
        "unread": count(t),
    })  # fmt: skip


@family("set_equals")
def sets_of_odd_members(rng: random.Random) -> Scene:
    s: Any = {1, "a", None}

    def fn(x: Any, s: Any) -> Any:
        return x + len(s), 1 in s, True in s, None in s, sorted(map(repr, s)), (1.0 in s)

    return Scene(fn, lambda: (X(), s), {
        "contents": contents(s, {1, "a", None}, {True, "a", None}, {1.0, "a", None}, {1, b"a", None}, {2, "a", None}, {-0.0}, {0.0}, {0}),
    })  # fmt: skip


@family("set_equals")
def order_of_sets(rng: random.Random) -> Scene:
    s: Any = {16, 8, 1}
    values = [8 * rng.randrange(9) for _ in range(6)]
    t = thing(values=values, other=frozenset({0, 24}))

    def fn(x: Any, s: Any, t: Any) -> Any:
        made = set()
        for v in t.values:
            made.add(v)
            made.discard(v - 8)
        s |= {32, 8}
        s.discard(1)
        return x + len(s), list(made), list(made | {40, 0}), list(made ^ {8, 16}), str(made), s | t.other

    before = list(s)

    def restore() -> None:
        s.clear()
        s.update(before)

    def start(elements: list[int]) -> None:
        before[:] = elements

    return Scene(fn, lambda: (X(), s, t), {
        "values": places(lambda v: values.__setitem__(slice(None), v), list(values), values[::-1], [0, 8, 16], []),
        "contents": places(start, list(before), [1, 16], [24, 8, 0, 1], []),
        "other": attr(t, "other", t.other, frozenset({48})),
        "unread": count(t),
    }, effects=lambda: list(s), restore=restore)  # fmt: skip


# iterators ------------------------------------------------------------------------------------------------------------
@family("length")
def iterators(rng: random.Random) -> Scene:
    a, b = [1, 2, 3], [4, 5]
    bounds = types.SimpleNamespace(n=3, step=slice(0, 2), r=range(3))

    def numbers(n: int) -> Any:
        for i in range(n):
            yield i * a[0]

    def fn(x: Any) -> Any:
        for p, q in zip(a, b, strict=False):
            x = x + p * q
        return x, list(numbers(bounds.n)), a[bounds.step], list(enumerate(b)), list(reversed(a)), list(bounds.r)

    return Scene(fn, lambda: (X(),), {
        "a": contents(a, [1, 2, 3], [1], [2, 2, 3, 4]),
        "b": contents(b, [4, 5], [4, 5, 6], [7]),
        "n": attr(bounds, "n", 3, 2, 0),
        "slice": attr(bounds, "step", slice(0, 2), slice(None), slice(0, 2, 2)),
        "range": attr(bounds, "r", range(3), range(0, 3, 2), range(2)),
        "equal range": places(lambda v: setattr(bounds, "r", v), range(3), range(0, 3, 1), matters=False, cell=("attr", id(bounds), "r")),
        "unread": count(bounds),
    })  # fmt: skip


# values computed from several sources -------------------------------------------------------------------------------
@family("equals")
def open_keys(rng: random.Random) -> Scene:
    table: dict[Any, Any] = {"a": 1, "b": 2, 3: 4}
    seen: set[Any] = {"a", 5}
    given: list[Any] = ["a", 3]
    t = thing(table=table, seen=seen)

    def fn(x: Any, t: Any, k: Any, n: Any) -> Any:
        found = t.table.get(k), n in t.table, k in t.seen, n in t.seen
        return x * (3 if k in t.table else 2), found, t.table.get(n), "b" in t.table, f"{k}/{n}", str(n) + "!"

    return Scene(fn, lambda: (X(), t, *given), {
        "text": item(given, 0, "a", "b", "c", "", "a" * 3, None, 3),
        "number": item(given, 1, 3, 5, 7, -2, 2**70, True, 3.0, "a"),
        "keys": item(table, "a", 1, 5, 2.5, "t", None, GONE),
        "other": item(table, "b", 2, GONE),
        "numbers": item(table, 3, 4, 8, GONE),
        "members": contents(seen, ["a", 5], ["b", 3], []),
        "replaced": attr(t, "table", table, {"a": 3, 5: 1}, collections.OrderedDict(c=7), collections.defaultdict(int, {3: 9})),
        "unread": item(table, "unread", 1, 2, 3, matters=False),
    })  # fmt: skip


@family("sizes")
def decided_floats(rng: random.Random) -> Scene:
    given: list[Any] = [1.5, 2.5]
    t = thing(best=2.0, rows=[1.0, 2.0])

    def fn(x: Any, t: Any, v: Any, w: Any) -> Any:
        t.rows.append(v)
        total = sum(t.rows)
        t.rows.pop()
        told = v < t.best, v * 2 >= w + 1, t.best != w, total > 6
        return x * v * (2 if v < t.best else 3), told, total

    return Scene(fn, lambda: (X(), t, *given), {
        "first": item(given, 0, 1.5, 2.0, 2.5, -0.0, float("nan"), float("inf"), 5, True),
        "second": item(given, 1, 2.5, 1.0, 2.0, 4.0, -float("inf"), 3),
        "best": attr(t, "best", 2.0, 1.0, 1.5, 2.5, 0.0, 9, None),
        "rows": contents(t.rows, [1.0, 2.0], [], [0.5], [1, 2.5, 4.0], [1.0] * 6),
    })  # fmt: skip
