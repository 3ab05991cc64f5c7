"""Weak references to classes: compiled code keeps no class alive unless a module names
it. The class is freed as in eager, and a later class at its address is another class."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import gc
import sys
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler
from pycompiler import _native
from pycompiler.ir import guards
from pycompiler.ir.guards import Guard, TensorSpec, first_failure
from pycompiler.ir.source import Scope, const_source, local, read
from pycompiler.ir.weak_guards import may_be_freed, reference, weak_guards, weak_source

X = torch.ones(2)
Program = Callable[..., Any]
Case = Callable[[], tuple[type, Program, tuple[Any, ...]]]
CASES: dict[str, Case] = {}


class Lasting:
    """A class that a module names."""

    class Inner:
        pass

    def method(self, x: Any) -> Any:
        return x + 1


def case(make: Case) -> Case:
    """A factory of a class, a program and its arguments; no other reference holds the class."""
    CASES[make.__name__] = make
    return make


@case
def a_method() -> Any:
    class A:
        k = 2

        def __init__(self) -> None:
            self.w = 3

        def m(self, x: Any) -> Any:
            return x * self.w + self.k

    return A, lambda o, x: o.m(x), (A(), X)


@case
def parts_of_a_class() -> Any:
    class A:
        def __init__(self) -> None:
            self.w = 3

        @property
        def p(self) -> int:
            return self.w + len(A.__name__)

        @staticmethod
        def s(x: Any) -> Any:
            return A.__name__, x

        @classmethod
        def c(cls, x: Any) -> Any:
            return cls.__name__, x + 1

    return A, lambda o, x: (x + o.p, o.s(x), o.c(x)), (A(), X)


@case
def slots() -> Any:
    class A:
        __slots__ = ("__weakref__", "a")

        def __init__(self) -> None:
            self.a = 4

    def program(o: Any, x: Any) -> Any:
        y = x + o.a
        o.a = 4
        return y

    return A, program, (A(), X)


@case
def a_super_call() -> Any:
    class B:
        def m(self, x: Any) -> Any:
            return x + 1

    class A(B):
        def m(self, x: Any) -> Any:
            return super().m(x) * 2

    return A, lambda o, x: o.m(x), (A(), X)


@case
def an_instance_that_is_made() -> Any:
    class A:
        def __init__(self, w: Any) -> None:
            self.w = w

    return A, lambda cls, x: (cls(x + 1), cls), (A, X)


@case
def bases() -> Any:
    class A:
        pass

    class B(A):
        pass

    return A, lambda o, cls, x: x + isinstance(o, cls) + issubclass(type(o), cls) + len(type(o).__mro__), (B(), A, X)


@case
def a_dataclass() -> Any:
    @dataclasses.dataclass
    class A:
        a: int
        b: Any

    return A, lambda o, x: (dataclasses.replace(o, a=3), o == o, dataclasses.asdict(o), x + 1), (A(2, X), X)


@case
def a_namedtuple() -> Any:
    A = collections.namedtuple("A", "a b")  # type: ignore[misc]  # noqa: PYI024
    return A, lambda o, x: (o.a + x, o._replace(a=3), type(o)(1, x)), (A(2, X), X)


@case
def an_enumeration() -> Any:
    class A(enum.Enum):
        R = 1
        B = 2

    return A, lambda o, x: x + (1 if o is type(o).R else 2) + o.value, (A.B, X)


@case
def an_abstract_class() -> Any:
    class B(abc.ABC):
        @abc.abstractmethod
        def m(self, x: Any) -> Any: ...

    class A(B):
        def m(self, x: Any) -> Any:
            return x + 1

    return A, lambda o, cls, x: o.m(x) + isinstance(o, cls) + isinstance(o, collections.abc.Sized), (A(), B, X)


@case
def a_metaclass() -> Any:
    class M(type):
        def __call__(cls, *args: Any) -> Any:
            return super().__call__(*args)

        @property
        def q(cls) -> int:
            return 5

    class A(metaclass=M):
        def __init__(self, a: Any) -> None:
            self.a = a

    return A, lambda cls, x: cls(x).a + cls.q, (A, X)


@case
def a_generic_class() -> Any:
    T = typing.TypeVar("T")

    class A(typing.Generic[T]):
        def m(self, x: Any) -> Any:
            return x + 1

    return A, lambda o, x: o.m(x), (A(), X)


@case
def a_module() -> Any:
    class A(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(2, 2)
            self.k = 3

        def forward(self, x: Any) -> Any:
            return self.l(x) * self.k

    return A, lambda m, x: m(x), (A(), X)


@case
def behind_a_break() -> Any:
    class A:
        def __init__(self) -> None:
            self.w = 3

        def m(self, x: Any) -> Any:
            return x * self.w

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *exc: object) -> bool:
            return False

    def program(o: Any, x: Any) -> Any:
        cls = type(o)
        with o:
            y = o.m(x)
            print(end="")
            y = y + 1
        return cls().m(y), cls

    return A, program, (A(), X)


@case
def a_dict_of_its_own() -> Any:
    class A(dict[str, int]):
        def m(self) -> int:
            return self["a"]

    return A, lambda o, x: x + o.m() + len(o), (A(a=1), X)


@case
def an_exception() -> Any:
    class A(Exception):
        pass

    def program(cls: Any, x: Any) -> Any:
        try:
            raise cls("a")
        except cls as e:
            return x + len(e.args)

    return A, program, (A, X)


@case
def a_tensor() -> Any:
    class A(torch.Tensor):
        pass

    return A, lambda o, x: (o + 1).as_subclass(torch.Tensor) + x, (torch.ones(2).as_subclass(A), X)


@case
def a_function_of_autograd() -> Any:
    class A(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    return A, lambda cls, x: cls.apply(x), (A, torch.ones(2, requires_grad=True))


@case
def what_it_shows() -> Any:
    class A:
        a: int = 1

        def m(self) -> None: ...

    return A, lambda o, x: x + len(vars(type(o))) + ("a" in type(o).__dict__) + len(type(o).__annotations__), (A(), X)


@case
def an_instance_with_attributes() -> Any:
    class A:
        pass

    def program(o: Any, x: Any) -> Any:
        o.q, o.cls = x + 1, type(o)
        return o

    return A, program, (A(), X)


@case
def a_key() -> Any:
    class A:
        pass

    class B:
        pass

    table, names = {A: 2, int: 3}, {A, int}

    def program(o: Any, x: Any, table: Any, names: Any) -> Any:
        return x + table[type(o)] + (type(o) in names) + (B in table) + len(list(table))

    return A, program, (A(), X, table, names)


@case
def a_single_dispatch() -> Any:
    class A:
        pass

    @functools.singledispatch
    def fn(o: Any, x: Any) -> Any:
        return x

    @fn.register(A)
    def _(o: Any, x: Any) -> Any:
        return x + 1

    return A, lambda fn, o, x: fn(o, x), (fn, A(), X)


@case
def a_global() -> Any:
    class A:
        v = 2

    space = {"A": A}
    exec("def program(x):\n    return x + A.v\n", space)
    return A, types.FunctionType(space["program"].__code__, space), (X,)  # type: ignore[attr-defined]


def plain(value: Any) -> Any:
    """A comparable form without references to classes."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [plain(v) for v in value]
    if isinstance(value, dict):
        return [(k, plain(v)) for k, v in value.items()]
    if isinstance(value, type):
        return value.__name__
    return (type(value).__name__, plain(vars(value))) if hasattr(value, "__dict__") else value


@pytest.mark.parametrize("name", CASES)
def test_a_class_ends(name: str) -> None:
    cls, program, args = CASES[name]()
    reference = weakref.ref(cls)
    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(4):  # the first call records guards, later calls use the recorded form
        assert plain(compiled(*args)) == plain(program(*args))
    counters = compiled.counters()
    assert (counters["compiles"], counters["hits"]) == (1, 3)
    getattr(program, "__globals__").pop("A", None)  # noqa: B009
    del cls, args, program
    gc.collect()
    assert reference() is None


def test_within_a_function() -> None:
    def program(x: Any) -> Any:
        class A:
            x = 1

        r = weakref.ref(A)
        y = x + A.x
        del A
        gc.collect()
        return y, r()

    compiled = pycompiler.compile(program)
    for _ in range(3):
        (y, left), (expected, nothing) = compiled(X), program(X)
        assert torch.equal(y, expected)
        assert left is nothing is None


def test_a_key_that_leaves() -> None:
    def program(x: Any, cls: type) -> Any:
        return x + 1, {cls: 1}

    for backend in ("eager", "native"):
        compiled = pycompiler.compile(program, backend=backend)

        class B:
            pass

        reference = weakref.ref(B)
        for _ in range(4):
            assert compiled(X, B)[1] == {B: 1}
        assert compiled.counters()["compiles"] == 1
        del B
        gc.collect()
        assert reference() is None


def test_an_attribute_of_a_class_that_is_a_symbol() -> None:
    def program(x: Any, o: Any) -> Any:
        return x * o.k

    compiled = pycompiler.compile(program, backend="eager")

    class A:
        k = 2

    for k in range(2, 7):
        A.k = k
        assert torch.equal(compiled(X, A()), X * k)
    assert compiled.counters()["compiles"] == 2
    reference = weakref.ref(A)
    del A
    gc.collect()
    assert reference() is None


def test_a_later_class_at_the_address_is_another() -> None:
    """Addresses are reused soon: each new class differs from the classes of the earlier entries."""

    def new(k: int) -> Any:
        def m(self: Any, x: Any) -> Any:
            return x * k

        return type("A", (), {"m": m, "k": k, "__init__": lambda self, w=0: setattr(self, "w", w)})

    def program(o: Any, x: Any) -> Any:
        cls = type(o)
        return o.m(x) + cls.k, cls(x + 1).w, cls

    compiled = pycompiler.compile(program, backend="eager", recompile_limit=100)
    seen: collections.Counter[int] = collections.Counter()
    for k in range(12):
        cls = new(k)
        seen[id(cls)] += 1
        for _ in range(3):
            a, b, c = compiled(cls(), X)
            assert (a.tolist(), b.tolist()) == ([k * 2.0] * 2, [2.0] * 2)
            assert c is cls
        del cls, c
        gc.collect()
    assert compiled.counters()["compiles"] == 12
    assert len(seen) < 12  # some addresses were reused


def test_an_object_of_another_class_later() -> None:
    """The object stays. Its classes change and are freed, and one of them has the address of another."""

    class Base:
        pass

    def program(o: Any, x: Any) -> Any:
        return x + o.k

    compiled = pycompiler.compile(program, backend="eager", recompile_limit=100)
    o = Base()
    for k in range(8):
        o.__class__ = type("A", (Base,), {"k": k})
        for _ in range(3):
            assert compiled(o, X).tolist() == [1.0 + k] * 2
        o.__class__ = Base
        gc.collect()
    assert compiled.counters()["compiles"] <= 9


def test_an_attribute_that_changes() -> None:
    class A:
        n = 0
        scale = 2

        def m(self, x: Any) -> Any:
            return x * self.scale

    def program(o: Any, x: Any) -> Any:
        return o.m(x)

    compiled = pycompiler.compile(program)
    o = A()
    for n in range(20):
        A.n = n  # the program does not read it
        assert compiled(o, X).tolist() == [2.0] * 2
    assert compiled.counters()["compiles"] == 1
    A.scale = 3
    assert compiled(o, X).tolist() == [3.0] * 2
    A.m = lambda self, x: x  # type: ignore[assignment]
    assert compiled(o, X).tolist() == [1.0] * 2
    assert compiled.counters()["compiles"] == 3


def test_parts_that_are_replaced() -> None:
    """A property is guarded by its functions: another function, even at the same address, must be noticed."""

    class A:
        p = property(lambda self: 1)

        @staticmethod
        def s() -> int:
            return 1

    compiled = pycompiler.compile(lambda o, x: x + o.p + o.s(), backend="eager", recompile_limit=100)
    o = A()
    for k in range(2, 10):
        for _ in range(3):
            assert compiled(o, X).tolist() == [1.0 + o.p + o.s()] * 2
        A.p = property(functools.partial(lambda k, self: k, k))  # type: ignore[assignment]
        A.s = staticmethod(functools.partial(lambda k: k, 2 * k))  # type: ignore[assignment]
    assert compiled(o, X).tolist() == [1.0 + 9 + 18] * 2


def test_what_is_let_go_of_on_the_way() -> None:
    """The class is read when the function starts: the object that leads to it may be freed before the result needs the class."""

    def program(held: list[Any], x: Any) -> Any:
        cls = type(held[0])
        held.clear()
        gc.collect()
        return cls, x + 1

    def new() -> list[Any]:
        return [type("A", (), {})()]

    compiled = pycompiler.compile(program)
    for _ in range(3):
        held = new()
        cls, y = compiled(held, X)
        assert isinstance(cls, type)
        assert (cls.__name__, held, y.tolist()) == ("A", [], [2.0] * 2)


def test_the_guard_tells_of_it() -> None:
    class A:
        pass

    def program(o: Any, x: Any) -> Any:
        return x + isinstance(o, int)

    compiled = pycompiler.compile(program)
    compiled(A(), X)
    del A
    gc.collect()
    reasons = pycompiler.explain(program)(Lasting(), X)
    assert reasons.graph_count == 1
    compiled(Lasting(), X)
    assert compiled.counters()["compiles"] == 2


# guards alone -----------------------------------------------------------------------------------------------------
def test_which_classes_may_end() -> None:
    class A:
        pass

    assert may_be_freed(A)
    assert may_be_freed(type("Lasting", (), {"__module__": __name__}))
    assert not any(
        map(may_be_freed, (Lasting, Lasting.Inner, int, torch.Tensor, nn.Linear, 3, torch, collections.OrderedDict))
    )
    session = types.ModuleType("__main__")
    Typed = type("Typed", (), {"__module__": "__main__"})
    session.Typed = Typed  # type: ignore[attr-defined]
    main, sys.modules["__main__"] = sys.modules["__main__"], session
    try:
        assert may_be_freed(Typed)  # a class of a notebook
        session.__file__ = "<stdin>"
        assert may_be_freed(Typed)
        session.__file__ = __file__
        assert not may_be_freed(Typed)
    finally:
        sys.modules["__main__"] = main


def test_lasting_classes_are_held_as_they_are() -> None:
    kept = [
        Guard("type_is", local("x"), Lasting),
        Guard("id_is", const_source(Lasting).then("mro_lookup", "method"), reference(len)),
    ]
    assert weak_guards(kept) == kept
    assert weak_source(const_source(Lasting).attr("x")) == const_source(Lasting).attr("x")


def _answers(made: list[Guard], values: dict[str, Any]) -> list[bool]:
    """Answers of the guard tree, several times since later checks use the recorded form, and the answer of the oracle."""
    tree = _native.GuardTree(made, list(values))
    return [tree.check(values, {}) is None for _ in range(4)] + [first_failure(made, Scope(values, {})) is None]


def test_guards_of_classes_held_weakly() -> None:
    class A:
        k = 1
        p = property(lambda self: 1)
        __slots__ = ("s",)

        @staticmethod
        def f() -> None: ...

        @classmethod
        def c(cls) -> None: ...

    class Sub(torch.Tensor):
        pass

    t = torch.ones(2).as_subclass(Sub)
    raw = vars(A)
    root = const_source(A)
    found = weak_guards(
        [
            Guard("type_is", local("x"), A),
            Guard("id_is", local("cls"), A),
            Guard("tensor", local("t"), TensorSpec.of(t)),
            Guard("class_absent", root, "missing"),
            Guard("equals", root.then("mro_lookup", "k"), 1),
            *(Guard("id_is", root.then("mro_lookup", n), raw[n]) for n in ("p", "f", "c", "s")),
            Guard("id_is", root.attr("__mro__"), A.__mro__),
        ]
    )
    values = {"x": A(), "cls": A, "t": t}
    assert all(_answers(found, values))
    for name, other in (("x", object()), ("cls", type("A", (), {})), ("t", torch.ones(2))):
        assert not any(_answers(found, {**values, name: other}))
    for name, other in (
        ("k", 2),
        ("p", property(lambda self: 2)),
        ("f", staticmethod(lambda: 3)),
        ("missing", 1),
        ("s", 1),
    ):
        before = raw.get(name)
        setattr(A, name, other)
        assert not any(_answers(found, values)), name
        delattr(A, name) if before is None else setattr(A, name, before)
    assert all(_answers(found, values))
    ends = weakref.ref(A), weakref.ref(Sub)
    texts = [str(g) for g in found]
    assert texts[0].endswith("<locals>.A")
    del A, Sub, t, raw, root, values, before
    gc.collect()
    assert ends[0]() is ends[1]() is None
    other = type("A", (), {})
    assert not any(_answers(found, {"x": other(), "cls": other, "t": torch.ones(2)}))
    assert "gone" in str(found[0])
    assert all(guards.explain(g, Scope({"x": 1, "cls": 1, "t": 1}, {})) for g in found if g.source.root.kind == "local")


def test_guards_that_ask_for_a_class() -> None:
    class A:
        pass

    class B:
        pass

    class Odd(type):
        def __eq__(cls, other: object) -> bool:
            return True

        def __hash__(cls) -> int:
            return 1

    C = Odd("C", (), {})
    d = local("d")
    found = weak_guards(
        [
            Guard("dict_contains", d, A),
            Guard("dict_absent", d, B),
            Guard("dict_keys", d, (1, A, "b")),
            Guard("equals", d.dict_item(A), 2),
            Guard("set_equals", local("s"), frozenset({A, 1})),
        ]
    )
    assert weak_source(d.dict_item(A)) == weak_source(local("d").dict_item(A)) != weak_source(d.dict_item(B))
    assert weak_guards([Guard("dict_absent", d, C)])[0].arg is C
    right = {"d": {1: 1, A: 2, "b": 3}, "s": {A, 1}}
    assert all(_answers(found, right))
    others: list[dict[Any, Any]] = [
        {1: 1, "b": 3, A: 2},
        {1: 1, A: 3, "b": 3},
        {1: 1, B: 2, "b": 3},
        {True: 1, A: 2, "b": 3},
        {},
    ]
    assert not any(answer for other in others for answer in _answers(found, {**right, "d": other}))
    assert not any(
        answer for other in ({A}, {A, 2}, {B, 1}, {A, True}) for answer in _answers(found, {**right, "s": other})
    )
    ends = weakref.ref(A)
    del A, right, others
    gc.collect()
    assert ends() is None
    assert not any(_answers(found, {"d": {1: 1, B: 2, "b": 3}, "s": {B, 1}}))


def test_a_root_that_is_gone() -> None:
    class A:
        pass

    source = weak_source(const_source(A).attr("__name__"))
    assert str(source) == "<A>.__name__"
    assert read(source, Scope({}, {})) == "A"
    del A
    gc.collect()
    assert "gone" in str(source)
    assert read(source.base, Scope({}, {})) is None  # type: ignore[arg-type]


def test_what_has_another_class_is_not_asked() -> None:
    """A guard checks the class before any other property of a value: otherwise another kind of iterator would be consumed."""
    local = type("Local", (dict,), {})  # no module names it

    def fn(args: tuple[Any, ...], x: torch.Tensor) -> Any:
        return [v for v in args[0]], x + 1

    compiled = pycompiler.compile(fn, backend="eager")
    assert compiled((local(a=1), 0), torch.ones(1))[0] == ["a"]
    for _ in range(3):
        assert compiled((iter([1, 2]), 0), torch.ones(1))[0] == [1, 2]
        assert compiled((local(a=1), 0), torch.ones(1))[0] == ["a"]
    assert compiled.counters()["compiles"] == 2
