"""Guards of names: functions, globals, builtins, closures, imports."""

from __future__ import annotations

import builtins
import collections
import functools
import random
import sys
import threading
import types
import weakref
from typing import Any

import torch

from fuzz.attributes import Mode, make_class, thing
from fuzz.core import GONE, Knob, Scene, X, attr, calls, contents, count, family, item, places, raw_attr, with_globals


def one(v: Any) -> Any:
    return v + 1


def two(v: Any) -> Any:
    return v * 2


def maker(k: int) -> Any:
    return lambda v: v * k


def in_thread(act: Any) -> None:
    t = threading.Thread(target=act)
    t.start()
    t.join()


# id_is --------------------------------------------------------------------------------------------------------
@family("id_is")
def functions_replaced(rng: random.Random) -> Scene:
    def callee(v: Any, k: Any = 1, *, j: Any = 2) -> Any:
        return v + k + j

    t = thing(inner=maker(2))
    namespace: dict[str, Any] = {"f": one, "callee": callee, "__builtins__": builtins}
    first = callee.__code__

    def fn(x: Any, t: Any) -> Any:
        return f(callee(t.inner(x))), f is t.inner  # type: ignore[name-defined]

    def other(v: Any, k: Any = 1, *, j: Any = 2) -> Any:
        return v - k - j

    return Scene(with_globals(fn, namespace), lambda: (X(), t), {
        "global": item(namespace, "f", one, two, torch.relu, abs),
        "closure": attr(t, "inner", t.inner, maker(3), two),
        "code": attr(callee, "__code__", first, other.__code__),
        "defaults": attr(callee, "__defaults__", (1,), (5,), (1.0,), None),
        "kwdefaults": attr(callee, "__kwdefaults__", {"j": 2}, {"j": 3}, None),
        "born again": calls(lambda: setattr(t, "inner", maker(2)), lambda: setattr(t, "inner", maker(2)), matters=False, fresh=True, cell=("attr", id(t), "inner")),
        "unread global": item(namespace, "zzz", GONE, 1, 2, matters=False),
        "unread": count(callee),
        "annotations": attr(callee, "__annotations__", {}, {"v": int}, matters=False),
    })  # fmt: skip


@family("id_is")
def method_replaced(rng: random.Random) -> Scene:
    cls = make_class()
    t, u = cls(), cls(k=9)
    first = cls.scale

    def fn(x: Any, t: Any) -> Any:
        m = t.scale
        return x + m() + u.k, m.__self__ is t

    return Scene(fn, lambda: (X(), t), {
        "class": attr(cls, "scale", first, lambda self: self.k + 1),
        "code": attr(first, "__code__", first.__code__, (lambda self: self.level).__code__),
        "instance": attr(t, "scale", GONE, u.scale, types.MethodType(lambda self: 3, t), one.__get__(2)),
        "k": attr(t, "k", 3, 4),
        "k of the other": attr(u, "k", 9, 10),
        "unread": count(u),
    })  # fmt: skip


@family("id_is")
def builtins_overridden(rng: random.Random) -> Scene:
    """Builtins of one namespace: while the process's builtins are replaced, nothing is compiled."""
    real, largest, own = len, max, dict(vars(builtins))
    namespace: dict[str, Any] = {"__builtins__": own}

    def fn(x: Any, a: Any) -> Any:
        return x * len(a) + max(a), isinstance(a, list)

    a = [1, 2]

    def patch(name: str, *values: Any) -> Knob:
        return item(own, name, *values)

    return Scene(with_globals(fn, namespace), lambda: (X(), a), {
        "len": patch("len", real, lambda v: 10 if v is a else real(v)),
        "max": patch("max", largest, lambda *v, **k: 7 if v[0] is a else largest(*v, **k)),
        "global": item(namespace, "len", GONE, lambda v: 3),
        "isinstance": item(namespace, "isinstance", GONE, lambda v, c: "no"),
        "unread": item(own, "zzz", GONE, 1, matters=False),
    })  # fmt: skip


@family("id_is")
def torch_patched(rng: random.Random) -> Scene:
    f = torch.nn.functional
    relu, gelu = f.relu, f.gelu

    def fn(x: Any) -> Any:
        return f.relu(x - 2) + torch.sin(x), torch.float32 is x.dtype

    return Scene(fn, lambda: (X(),), {
        "relu": attr(f, "relu", relu, gelu, lambda v: v * 3),
        "relu's code": attr(relu, "__code__", relu.__code__, (lambda input, inplace=False: input + 5).__code__),
        "torch.sin": attr(torch, "sin", torch.sin, torch.cos, lambda v: v),
        "unread": attr(f, "zzz", GONE, 1, matters=False),
    })  # fmt: skip


@family("id_is")
def modules_and_imports(rng: random.Random) -> Scene:
    name = f"fuzz_module_{rng.randrange(10**9)}"
    a, b = types.ModuleType(name), types.ModuleType(name)
    a.k, b.k, b.none = 1, 2, 3  # type: ignore[attr-defined]
    sys.modules[name] = a
    load = builtins.__import__
    scope: dict[str, Any] = {"m": a, "sys": sys, "__builtins__": builtins}
    exec(
        f"def fn(x):\n    import {name}\n    from {name} import k\n    return x + m.k, {name}.k, k, getattr(m, 'none', 0)",
        scope,
    )

    class Special(types.ModuleType):
        @property
        def none(self) -> int:
            return 60

        def __getattribute__(self, name: str) -> Any:
            return 70 if name == "k" else types.ModuleType.__getattribute__(self, name)

    return Scene(scope["fn"], lambda: (X(),), {
        "sys.modules": item(sys.modules, name, a, b),
        "global": item(scope, "m", a, b),
        "attribute": raw_attr(a, "k", 1, 5),
        "appears": raw_attr(a, "none", GONE, 6),
        "class": attr(a, "__class__", types.ModuleType, Special),
        "__getattr__": raw_attr(a, "__getattr__", GONE, lambda n: 80 if n == "none" else None),
        "import": attr(builtins, "__import__", load, lambda *args, **k: b if args[0] == name else load(*args, **k)),
        "unread": raw_attr(a, "zzz", GONE, 1, matters=False),
    })  # fmt: skip


@family("id_is")
def weak_references(rng: random.Random) -> Scene:
    cls = make_class()
    a, b = cls(), cls()
    holder = types.SimpleNamespace(a=a, ref=weakref.ref(a))

    def fn(x: Any, h: Any) -> Any:
        return (x + 1, h.a.k) if h.ref() is h.a else (x - 1, 0)

    def die() -> None:
        doomed = cls()
        holder.ref = weakref.ref(doomed)

    return Scene(fn, lambda: (X(), holder), {
        "object": attr(holder, "a", a, b),
        "reference": attr(holder, "ref", holder.ref, weakref.ref(b)),
        "dies": calls(lambda: setattr(holder, "ref", weakref.ref(a)), die, fresh=True),
        "k": attr(a, "k", 3, 4),
    })  # fmt: skip


@family("id_is")
def keys_by_identity(rng: random.Random) -> Scene:
    """Objects and functions as keys of tables: the identity decides the lookup."""
    cls = make_class()
    a, b, c = cls(), cls(), cls()
    f, g, h = maker(2), maker(2), maker(2)
    table = {a: 1, f: 2}
    t = thing(key=a, fn=f, item=1)

    def fn(x: Any, t: Any) -> Any:
        return x + table.get(t.key, 50), table.get(t.fn, 60), t.key in table, t.fn is f, t.fn == g, t.key == a

    return Scene(fn, lambda: (X(), t), {
        "key": attr(t, "key", a, b, c),
        "function": attr(t, "fn", f, g, h),
        "table": contents(table, {a: 1, f: 2}, {b: 3, f: 2}, {a: 1, g: 4}),
        "values": places(lambda v: table.__setitem__(a, v) if a in table else None, 1, 9, cell=("item", id(table))),
        "unread": count(t),
    })  # fmt: skip


@family("id_is")
def partials(rng: random.Random) -> Scene:
    p = functools.partial(torch.add, alpha=2)
    t = thing(inner=p, table={"p": p})

    def scaled(v: Any, w: Any, alpha: Any = 1) -> Any:
        return v - alpha * w

    def fn(x: Any, t: Any) -> Any:
        return t.inner(x, x), t.table["p"](x, x * 2)

    return Scene(fn, lambda: (X(), t), {
        "inner": attr(t, "inner", p, functools.partial(torch.add, alpha=3), functools.partial(scaled, alpha=2), torch.mul),
        "keywords in place": item(p.keywords, "alpha", 2, 7),
        "state": places(lambda v: p.__setstate__((v, p.args, p.keywords, {})), torch.add, scaled),
        "table": item(t.table, "p", p, functools.partial(scaled, alpha=9)),
    })  # fmt: skip


@family("id_is")
def lists_of_functions(rng: random.Random) -> Scene:
    steps = [one, two]

    def fn(x: Any, steps: Any) -> Any:
        for step in steps:
            x = step(x)
        return x

    return Scene(fn, lambda: (X(), steps), {
        "contents": contents(steps, [one, two], [two, one], [one], [], [one, two, one]),
    })  # fmt: skip


# equals: globals, cells, defaults --------------------------------------------------------------------------------
@family("equals")
def globals_rebound(rng: random.Random) -> Scene:
    shared: dict[str, Any] = {"K": 3, "deep": [1, {"a": 2}], "__builtins__": builtins}
    namespace: dict[str, Any] = {
        "K": 3,
        "callee": with_globals(lambda v: v * K + deep[1]["a"], shared),
        "__builtins__": builtins,
    }  # type: ignore[name-defined]  # noqa: F821

    def fn(x: Any) -> Any:
        return callee(x) + K, callee.__globals__ is None  # type: ignore[name-defined]

    return Scene(with_globals(fn, namespace), lambda: (X(),), {
        "own": item(namespace, "K", 3, 4, 3.0, GONE),
        "callee's": item(shared, "K", 3, 5),
        "in a thread": places(lambda v: in_thread(lambda: shared.__setitem__("deep", [1, {"a": v}])), 2, 6),
        "deep": places(lambda v: shared["deep"][1].__setitem__("a", v), 2, 8, cell=("deep",)),
        "unread": item(namespace, "zzz", GONE, 1, matters=False),
        "unread of the callee": item(shared, "zzz", GONE, 1, matters=False),
    })  # fmt: skip


@family("equals")
def closures_and_defaults(rng: random.Random) -> Scene:
    k, shared = 1, {"v": 1}

    def inner(v: Any, a: Any = 1, b: Any = shared, *, c: Any = 2) -> Any:
        return v * a + k + b["v"] * c

    def fn(x: Any, d: Any = 10) -> Any:
        return inner(x) + d + k

    cell = inner.__closure__[0]  # type: ignore[index]

    def deep(v: int) -> None:
        nonlocal k
        k = v

    return Scene(fn, lambda: (X(),), {
        "nonlocal": places(deep, 1, 2, cell=("k",)),
        "cell": places(lambda v: setattr(cell, "cell_contents", v), 1, 3, 1.0, cell=("k",)),
        "cell in a thread": places(lambda v: in_thread(lambda: setattr(cell, "cell_contents", v)), 1, 4, cell=("k",)),
        "defaults": attr(inner, "__defaults__", (1, shared), (7, shared), (1, {"v": 3})),
        "mutable default": item(shared, "v", 1, 8),
        "kwdefaults": attr(inner, "__kwdefaults__", inner.__kwdefaults__, {"c": 5}),
        "kwdefaults in place": item(inner.__kwdefaults__, "c", 2, 6),
        "own default": attr(fn, "__defaults__", (10,), (20,), None),
        "unread": item(shared, "zzz", GONE, 1, matters=False),
    })  # fmt: skip


@family("cell_empty")
def empty_cells(rng: random.Random) -> Scene:
    k = 1
    seed = rng.randrange(5)

    def inner() -> Any:
        return k

    def fn(x: Any) -> Any:
        try:
            y = x + k
        except NameError:
            y = x - 100
        try:
            return y, inner()
        except NameError:
            return y, None

    cell = inner.__closure__[0]  # type: ignore[index]
    del k

    def turn(v: Any) -> None:
        if v is GONE:
            _empty(cell)
        else:
            cell.cell_contents = v

    return Scene(fn, lambda: (X(),), {
        "contents": places(turn, GONE, 1, 2, None, seed, 1.5),
        "in a thread": places(lambda v: in_thread(lambda: turn(v)), GONE, 3),
    })  # fmt: skip


def _empty(cell: Any) -> None:
    try:
        del cell.cell_contents
    except (AttributeError, ValueError):
        pass


@family("cell_empty")
def cells_of_callees(rng: random.Random) -> Scene:
    """Recursive and late-bound closures: a cell may be empty at first."""

    def build() -> Any:
        def use(v: Any) -> Any:
            try:
                return late(v)
            except NameError:
                return v - 1

        if rng is None:
            late = None
        return use

    use = build()
    cell = use.__closure__[0]
    t = thing(use=use)

    def fn(x: Any, t: Any) -> Any:
        return t.use(x)

    def turn(v: Any) -> None:
        _empty(cell) if v is GONE else setattr(cell, "cell_contents", v)

    return Scene(fn, lambda: (X(), t), {
        "late": places(turn, GONE, one, two, maker(4)),
        "use": attr(t, "use", use, one),
        "unread": count(t),
    })  # fmt: skip


# same_object, no_alias ---------------------------------------------------------------------------------------------
@family("same_object")
def one_object_two_names(rng: random.Random) -> Scene:
    shared, other = [1, 2], [1, 2]
    w, v = torch.ones(4), torch.full((4,), 2.0)
    t = thing(a=shared, b=shared, w=w, v=w, f=one, g=one, d={"k": shared})

    def fn(x: Any, t: Any) -> Any:
        t.a.append(5)
        n = len(t.b) + len(t.d["k"])
        t.a.pop()
        return x * t.w + t.v + n, t.a is t.b, t.f is t.g, t.w is t.v

    return Scene(fn, lambda: (X(), t), {
        "b": attr(t, "b", shared, other),
        "d": item(t.d, "k", shared, other, [1, 2]),
        "v": attr(t, "v", w, v, torch.ones(4)),
        "g": attr(t, "g", one, two),
        "both": calls(lambda: (setattr(t, "a", shared)), lambda: setattr(t, "a", other)),
        "values": places(lambda value: w.fill_(value), 1.0, 3.0, matters=False),
        "unread": count(t),
    })  # fmt: skip


@family("same_object")
def arguments_of_one_object(rng: random.Random) -> Scene:
    a, b = [1.0], [1.0]
    t, u = torch.ones(4), torch.ones(4)
    cls = make_class()
    o, p = cls(), cls()
    holder = types.SimpleNamespace(b=a, u=t, p=o)

    def fn(a: Any, b: Any, t: Any, u: Any, o: Any, p: Any) -> Any:
        return t + u + a[0] + b[0], a is b, o is p, t is u, o.k + p.k

    return Scene(fn, lambda: (a, holder.b, t, holder.u, o, holder.p), {
        "list": attr(holder, "b", a, b),
        "tensor": attr(holder, "u", t, u),
        "object": attr(holder, "p", o, p),
        "value": places(lambda v: a.__setitem__(0, v), 1.0, 2.0),
        "k": attr(o, "k", 3, 4),
        "unread": count(o),
    })  # fmt: skip


@family("no_alias")
def two_objects_that_meet(rng: random.Random) -> Scene:
    a, b = [1, 2], [1, 2]
    cls = make_class()
    o, p = cls(), cls()
    d, e = {"k": 1}, {"k": 1}
    s = collections.deque([1])
    t = thing(a=a, b=b, o=o, p=p, d=d, e=e)

    def fn(x: Any, t: Any) -> Any:
        t.a.append(3)
        n = len(t.b)
        t.a.pop()
        t.o.k = 50
        k = t.p.k
        t.o.k = 3
        t.d["k"] = 7
        m = t.e["k"]
        t.d["k"] = 1
        return x + n + k + m, t.o is t.p, len(s)

    return Scene(fn, lambda: (X(), t), {
        "lists": attr(t, "b", b, a, [1, 2]),
        "objects": attr(t, "p", p, o),
        "dicts": attr(t, "e", e, d),
        "vars": places(lambda v: vars(t).__setitem__("b", v), b, a, cell=("attr", id(t), "b")),
        "born again": calls(lambda: setattr(t, "b", [1, 2]), lambda: (setattr(t, "b", None), setattr(t, "b", [1, 2])), matters=False),
        "unread": count(t),
    })  # fmt: skip


@family("no_alias")
def not_the_same(rng: random.Random) -> Scene:
    """`is` between objects that their guards cannot distinguish."""
    f, g = maker(1), maker(1)
    a, b = (1, "a"), tuple([1, "a"])
    x1, x2 = types.SimpleNamespace(v=1), types.SimpleNamespace(v=1)
    t = thing(f=f, g=g, a=a, b=b, o=x1, p=x2, s={1}, r={1}, m=Mode.A)

    def fn(x: Any, t: Any) -> Any:
        return (
            x + 1,
            t.f is t.g,
            t.f == t.g,
            t.a is t.b,
            t.o is t.p,
            t.s is t.r,
            t.m is Mode.B,
            t.o in [t.p],
            [t.g].count(t.f),
        )

    return Scene(fn, lambda: (X(), t), {
        "functions": attr(t, "g", g, f),
        "tuples": attr(t, "b", b, a),
        "objects": attr(t, "p", x2, x1),
        "sets": attr(t, "r", t.r, t.s),
        "enum": attr(t, "m", Mode.A, Mode.B),
        "unread": count(t),
    })  # fmt: skip


@family("equals")
def functions_that_keep_results(rng: random.Random) -> Scene:
    table = {"k": 3}

    @functools.lru_cache
    def number(n: int) -> int:
        return n * table["k"]

    @functools.cache
    def rows(n: int) -> Any:
        return [n]

    def fn(x: Any) -> Any:
        return x * number(2) + len(rows(1)), rows(1), number(2) == number(2)

    def set_k(k: int) -> None:
        table["k"] = k
        number.cache_clear()

    return Scene(fn, lambda: (X(),), {
        "computed again": places(set_k, 3, 5),
        "what it was computed of": item(table, "j", 1, 2, matters=False),
        "kept list": places(lambda v: rows(1).__setitem__(slice(None), v), [1], [1, 2], []),
    })  # fmt: skip
