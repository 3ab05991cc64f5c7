"""Attributes: instance dicts, slots, class attributes, descriptors, hooks of the attribute protocol."""

from __future__ import annotations

import dataclasses
import enum
import functools
import random
import types
from typing import Any

from fuzz.core import GONE, Knob, Scene, X, attr, calls, count, family, hidden_attr, item, places, raw_attr


class Mode(enum.Enum):
    A = 1
    B = 2


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


def thing(**attributes: Any) -> Any:
    """An instance of a new class; knobs may change the class."""
    return make_class()(**attributes)


def make_class(*bases: type) -> Any:
    class Thing(*(bases or (object,))):  # type: ignore[misc]
        level = 2

        def __init__(self, **attributes: Any) -> None:
            self.k = 3
            for name, value in attributes.items():
                setattr(self, name, value)

        def scale(self) -> int:
            return self.k * self.level

        @property
        def doubled(self) -> int:
            return self.k * 2

    return Thing


def slot(cls: Any, name: str, *values: Any, matters: bool = True) -> Knob:
    """A class attribute."""
    return attr(cls, name, *values, matters=matters)


# equals -------------------------------------------------------------------------------------------------------
@family("equals")
def attribute_value(rng: random.Random) -> Scene:
    t = thing(inner=thing(k=rng.randrange(9)))

    def fn(x: Any, t: Any) -> Any:
        return x + t.inner.k, t.k

    return Scene(fn, lambda: (X(), t), {
        "setattr": attr(t, "k", 3, 5, 3.0, True, None, "s"),
        "float": attr(t, "k", 3, 0.0, -0.0, float("nan"), 2.5, float("inf")),
        "vars": raw_attr(t.inner, "k", t.inner.k, -1, 7),
        "object.__setattr__": hidden_attr(t, "k", 3, 8),
        "deleted": attr(t, "k", 3, GONE),
        "dict replaced": places(lambda v: setattr(t, "__dict__", {**vars(t), "k": v}), 3, 11, cell=("attr", id(t), "k")),
        "same dict copied": calls(lambda: setattr(t, "__dict__", dict(vars(t))), lambda: setattr(t, "__dict__", dict(vars(t))), matters=False),
        "unread": count(t),
        "big": attr(t, "k", 3, 2**40, 2**70, -(2**63)),
        "complex": attr(t, "k", 3, 3 + 0j, 3 - 0.0j, complex(3, float("nan"))),
    })  # fmt: skip


@family("equals")
def property_and_cached_property(rng: random.Random) -> Scene:
    class Base:
        n = 2

        def __init__(self) -> None:
            self.k = 3

        @property
        def p(self) -> Any:
            return self.k + self.n

        @functools.cached_property
        def c(self) -> Any:
            return self.n * 5

    t = Base()
    first, other = Base.__dict__["p"], property(lambda self: 100)

    class Sub(property):
        def __get__(self, obj: Any, cls: Any = None) -> Any:
            return 77

    sub = Sub(first.fget)

    def fn(x: Any, t: Any) -> Any:
        return x + t.p, t.c

    return Scene(fn, lambda: (X(), t), {
        "k": attr(t, "k", 3, 4),
        "n": attr(Base, "n", 2, 6),
        "property": places(lambda p: setattr(Base, "p", p), first, other, 55, sub, cell=("attr", id(t), "p")),
        "cached value": calls(lambda: vars(t).pop("c", None), lambda: vars(t).__setitem__("c", 9)),
        "shadow": raw_attr(t, "p", GONE, 1, matters=False),
        "unread": count(t),
    }, effects=lambda: vars(t).get("c"), restore=lambda: vars(t).get("c") == 9 or vars(t).pop("c", None))  # fmt: skip


@family("equals")
def slots(rng: random.Random) -> Scene:
    class Slotted:
        __slots__ = ("other", "v")

        def __init__(self) -> None:
            self.v: Any = 1
            self.other: Any = 2

    s = Slotted()
    member = Slotted.__dict__["v"]

    def fn(x: Any, s: Any) -> Any:
        return x + s.v, getattr(s, "other", None)

    knobs = {
        "v": attr(s, "v", 1, 2, 2.0),
        "object.__setattr__": hidden_attr(s, "v", 1, 5),
        "member.__set__": places(lambda v: member.__set__(s, v), 1, 6),
        "deleted": attr(s, "v", 1, GONE),
        "class": attr(Slotted, "v", member, property(lambda self: 40), 9),
    }
    for knob in knobs.values():
        knob.cell = ("v",)
    return Scene(fn, lambda: (X(), s), {**knobs, "other": attr(s, "other", 2, GONE, 3)})  # fmt: skip


@family("equals")
def dataclass(rng: random.Random) -> Scene:
    @dataclasses.dataclass
    class Config:
        width: int = 4
        name: str = "a"
        scale: float = 1.5

    @dataclasses.dataclass(frozen=True)
    class Frozen:
        inner: Config
        k: int = 3

    f = Frozen(Config())

    def fn(x: Any, f: Any) -> Any:
        return x * f.inner.scale + f.inner.width, f.inner.name, f.k, f.inner == Config()

    return Scene(fn, lambda: (X(), f), {
        "width": attr(f.inner, "width", 4, 8, 16),
        "name": attr(f.inner, "name", "a", "b", b"a", None),
        "scale": attr(f.inner, "scale", 1.5, -1.5, 0.0, -0.0),
        "frozen": hidden_attr(f, "k", 3, 4),
        "frozen inner": calls(lambda i=f.inner: object.__setattr__(f, "inner", i), lambda: object.__setattr__(f, "inner", Config(9))),
        "class default": slot(Config, "width", 4, 5, matters=False),
        "__eq__": slot(Config, "__eq__", Config.__eq__, lambda self, o: "no"),
    })  # fmt: skip


@family("equals")
def enums(rng: random.Random) -> Scene:
    t = thing(mode=Mode.A, number=Number.ONE)

    def fn(x: Any, t: Any) -> Any:
        y = x + 1 if t.mode is Mode.A else x - 1
        return y * t.number, t.mode.value, t.mode.name, t.number == 1, {Mode.A: 1, Mode.B: 2}.get(t.mode)

    return Scene(fn, lambda: (X(), t), {
        "mode": attr(t, "mode", Mode.A, Mode.B, None),
        "number": attr(t, "number", Number.ONE, Number.TWO, 1),
        "vars": raw_attr(t, "mode", Mode.A, Mode.B),
        "unread": count(t),
    })  # fmt: skip


@family("equals")
def getattr_hook(rng: random.Random) -> Scene:
    class Dynamic:
        def __init__(self) -> None:
            self.data = {"a": 1}

        def __getattr__(self, name: str) -> Any:
            try:
                return self.__dict__["data"][name]
            except KeyError:
                raise AttributeError(name) from None

    d = Dynamic()
    first = Dynamic.__getattr__

    def fn(x: Any, d: Any) -> Any:
        return x + d.a, getattr(d, "b", None)

    return Scene(fn, lambda: (X(), d), {
        "data": item(d.data, "a", 1, 2, GONE),
        "b": item(d.data, "b", GONE, 5),
        "instance": raw_attr(d, "a", GONE, 9),
        "class": slot(Dynamic, "a", GONE, 30),
        "handler": slot(Dynamic, "__getattr__", first, lambda self, name: 99, GONE),
        "__getattribute__": slot(Dynamic, "__getattribute__", GONE, lambda self, name: 50),
        "handler's code": places(lambda c: setattr(first, "__code__", c), first.__code__, (lambda self, name: 7).__code__),
    })  # fmt: skip


@family("equals")
def getattribute_hook(rng: random.Random) -> Scene:
    class Watched:
        def __init__(self) -> None:
            self.k = 1

        def __getattribute__(self, name: str) -> Any:
            value = object.__getattribute__(self, name)
            return value + 1 if name == "k" else value

    w = Watched()
    first = Watched.__dict__["__getattribute__"]

    def fn(x: Any, w: Any) -> Any:
        return x + w.k

    return Scene(fn, lambda: (X(), w), {
        "k": calls(lambda: object.__setattr__(w, "k", 1), lambda: object.__setattr__(w, "k", 5)),
        "hook": slot(Watched, "__getattribute__", first, lambda self, name: 40, GONE),
        "code": places(lambda c: setattr(first, "__code__", c), first.__code__, (lambda self, name: 7).__code__),
    })  # fmt: skip


# type_is ------------------------------------------------------------------------------------------------------
@family("type_is")
def class_of_object(rng: random.Random) -> Scene:
    base = make_class()
    derived = type("Derived", (base,), {"scale": lambda self: 1000})
    alike = type("Thing", (base,), {})
    other = make_class()
    t = base(inner=base(), seq=[1, 2])

    def fn(x: Any, t: Any) -> Any:
        return (
            x * t.scale() + t.inner.scale(),
            type(t.inner).__name__,
            isinstance(t.seq, list),
            type(t.inner) is base,
            len(t.seq),
        )

    def objects() -> tuple[Any, ...]:
        return (base(), derived(), other())

    made = objects()
    t.inner = made[0]
    return Scene(fn, lambda: (X(), t), {
        "__class__": places(lambda c: setattr(t, "__class__", c), base, derived, alike),
        "inner": attr(t, "inner", *made, 5, None),
        "inner vars": raw_attr(t, "inner", made[0], made[1]),
        "object born again": calls(lambda: setattr(t, "inner", base()), lambda: (setattr(t, "inner", None), setattr(t, "inner", base())), matters=False, cell=("attr", id(t), "inner")),
        "class born again": calls(lambda: setattr(t, "inner", made[0]), lambda: (setattr(t, "inner", None), setattr(t, "inner", make_class()(k=7))), fresh=True, cell=("attr", id(t), "inner")),
        "seq": attr(t, "seq", [1, 2], (1, 2), {1: 2, 3: 4}, type("L", (list,), {})([1, 2])),
        "seq again": calls(lambda: setattr(t, "seq", [1, 2]), lambda: setattr(t, "seq", [3, 4]), matters=False, cell=("attr", id(t), "seq")),
    })  # fmt: skip


@family("type_is")
def types_of_arguments(rng: random.Random) -> Scene:
    holder = types.SimpleNamespace(arg=1)

    def fn(x: Any, arg: Any) -> Any:
        return x, type(arg).__name__, isinstance(arg, int), bool(arg) if not isinstance(arg, str) else arg

    values = (
        1,
        True,
        1.0,
        "1",
        None,
        [1],
        (1,),
        {1: 1},
        {1},
        frozenset({1}),
        b"1",
        1 + 0j,
        range(1),
        slice(1),
        Number.ONE,
    )
    return Scene(fn, lambda: (X(), holder.arg), {
        "argument": attr(holder, "arg", *values),
        "unread": count(holder),
    })  # fmt: skip


@family("type_is")
def staticmethods_and_classmethods(rng: random.Random) -> Scene:
    class C:
        k = 1

        def plain(self: Any = 5, n: int = 1) -> Any:
            return (n, isinstance(self, C), isinstance(self, type), self if isinstance(self, int) else 0)

    f = C.__dict__["plain"]
    t = C()
    elsewhere = types.FunctionType(
        f.__code__, {**f.__globals__, "isinstance": lambda a, b: "odd"}, "plain", f.__defaults__, f.__closure__
    )

    def fn(x: Any, t: Any) -> Any:
        return x + 1, t.plain(), type(t).plain()

    return Scene(fn, lambda: (X(), t), {
        "descriptor": slot(C, "plain", f, staticmethod(f), classmethod(f), types.MethodType(f, 7), functools.partial(f, 3)),
        "globals": slot(C, "plain", f, elsewhere),
        "defaults": places(lambda d: setattr(f, "__defaults__", d), (5, 1), (6, 2), (5, 1.0)),
        "instance": raw_attr(t, "plain", GONE, f, types.MethodType(f, 8), len),
    })  # fmt: skip


@family("type_is")
def method_objects(rng: random.Random) -> Scene:
    """A function, a bound method of it and other callables that share its code, globals and defaults."""

    def f(a: Any = 1, b: Any = 2) -> Any:
        return a, b

    t = thing(inner=f)

    class Callable_:
        __code__ = f.__code__
        __globals__ = f.__globals__
        __defaults__ = f.__defaults__
        __kwdefaults__ = None
        __closure__ = None

        def __call__(self, *args: Any) -> Any:
            return "impostor"

    def fn(x: Any, t: Any) -> Any:
        return x + 1, t.inner(5), t.inner()

    return Scene(fn, lambda: (X(), t), {
        "inner": attr(t, "inner", f, types.MethodType(f, 9), functools.partial(f, 3), Callable_()),
        "vars": raw_attr(t, "inner", f, types.MethodType(f, 4)),
    })  # fmt: skip


# instance_absent ------------------------------------------------------------------------------------------------
@family("instance_absent")
def attribute_appears(rng: random.Random) -> Scene:
    t = thing(inner=thing())

    def fn(x: Any, t: Any) -> Any:
        return x * t.level + t.inner.scale() + (t.extra if hasattr(t, "extra") else 1), getattr(t.inner, "more", None)

    return Scene(fn, lambda: (X(), t), {
        "hides class attribute": attr(t, "level", GONE, 7),
        "hides method": attr(t.inner, "scale", GONE, lambda: 50),
        "vars": raw_attr(t.inner, "scale", GONE, lambda: 60, lambda: 61),
        "extra": attr(t, "extra", GONE, 9, 10),
        "more": raw_attr(t.inner, "more", GONE, 1, None),
        "dict replaced": calls(lambda: vars(t).pop("extra", None), lambda: setattr(t, "__dict__", {**vars(t), "extra": 3}), cell=("attr", id(t), "extra")),
        "unread": attr(t, "elsewhere", GONE, 1, matters=False),
        "unread vars": raw_attr(t.inner, "elsewhere", GONE, 1, matters=False),
    })  # fmt: skip


# class_absent ---------------------------------------------------------------------------------------------------
@family("class_absent")
def class_gains(rng: random.Random) -> Scene:
    root = make_class()
    cls = type("Derived", (root,), {})
    t = cls(inner=5)

    def fn(x: Any, t: Any) -> Any:
        t.stored = 1
        y = x + t.inner + t.k
        return y, bool(t), getattr(t, "nothing", 1), t == 3, t.stored

    return Scene(fn, lambda: (X(), t), {
        "property of the same name": slot(cls, "inner", GONE, property(lambda self: 100), 5),
        "property in the base": slot(root, "k", GONE, property(lambda self: 100, lambda self, v: None)),
        "__bool__": slot(cls, "__bool__", GONE, lambda self: False),
        "__len__": slot(root, "__len__", GONE, lambda self: 0),
        "__getattr__": slot(cls, "__getattr__", GONE, lambda self, n: 6),
        "__getattr__ of the base": slot(root, "__getattr__", GONE, lambda self, n: 8),
        "__getattribute__": slot(cls, "__getattribute__", GONE, lambda self, n: 9),
        "__getattribute__ of the base": slot(root, "__getattribute__", GONE, lambda self, n: 10),
        "__setattr__": slot(cls, "__setattr__", GONE, lambda self, n, v: object.__setattr__(self, n, v + 1)),
        "__eq__": slot(cls, "__eq__", GONE, lambda self, o: True),
        "class attribute": slot(cls, "nothing", GONE, 44),
        "unread": slot(cls, "unread", GONE, 1, matters=False),
        "bases": places(lambda b: setattr(cls, "__bases__", b), (root,), (type("Mix", (root,), {"inner": property(lambda s: 7)}),)),
    }, effects=lambda: object.__getattribute__(t, "__dict__").get("stored"), restore=lambda: object.__getattribute__(t, "__dict__").pop("stored", None))  # fmt: skip


@family("class_absent")
def shadowed_class_attribute(rng: random.Random) -> Scene:
    """The instance has the attribute, and so has the class: the class attribute must not become a data descriptor."""
    cls = make_class()
    t = cls(level=30)

    class Plain:
        pass

    held = Plain()

    def fn(x: Any, t: Any) -> Any:
        return x * t.level

    return Scene(fn, lambda: (X(), t), {
        "class attribute": slot(cls, "level", 2, property(lambda self: 9)),
        "class attribute that is hidden": slot(cls, "level", 2, 3, matters=False),
        "becomes a descriptor": calls(
            lambda: (_undo(Plain), setattr(cls, "level", 2)),
            lambda: (setattr(cls, "level", held), setattr(Plain, "__get__", lambda s, o, c=None: 70), setattr(Plain, "__set__", lambda s, o, v: None)),
        ),
        "instance": raw_attr(t, "level", 30, 31),
    })  # fmt: skip


def _drop(cls: type, name: str) -> None:
    if name in cls.__dict__:
        delattr(cls, name)


def _undo(cls: type) -> None:
    for name in ("__get__", "__set__"):
        if name in cls.__dict__:
            delattr(cls, name)


@family("class_absent")
def class_attributes(rng: random.Random) -> Scene:
    root = make_class()
    cls = type("Derived", (root,), {})
    t = cls()

    def fn(x: Any, t: Any) -> Any:
        return x * t.level + cls.level, t.scale(), t.doubled, getattr(cls, "none", 0)

    return Scene(fn, lambda: (X(), t), {
        "in the base": slot(root, "level", 2, 4),
        "in the derived": slot(cls, "level", GONE, 40),
        "method": slot(root, "scale", root.scale, lambda self: self.k + 100),
        "method in the derived": slot(cls, "scale", GONE, lambda self: 0.5),
        "property": slot(root, "doubled", root.__dict__["doubled"], property(lambda self: 77), 6),
        "none": slot(cls, "none", GONE, 1),
        "unread": slot(root, "unread", GONE, 1, 2, matters=False),
        "instance": attr(t, "level", GONE, 5),
    })  # fmt: skip


@family("class_absent")
def metaclass(rng: random.Random) -> Scene:
    class Meta(type):
        factor = 2

        @property
        def computed(cls) -> Any:
            return cls.base * 2

        def __getitem__(cls, key: int) -> Any:
            return key + cls.base

    class C(metaclass=Meta):
        base = 1

    fifty = property(lambda cls: 50)

    def fn(x: Any) -> Any:
        return x + C.base, C.computed, C[3], C.factor, bool(C), getattr(C, "none", 0)

    return Scene(fn, lambda: (X(),), {
        "class attribute": places(lambda v: type.__setattr__(C, "base", v), 1, 2, cell=("base",)),
        "metaclass attribute": slot(Meta, "factor", 2, 3),
        "hides": slot(C, "factor", GONE, 5),
        "data descriptor": calls(lambda: _drop(Meta, "base"), lambda: setattr(Meta, "base", fifty), cell=("base",)),
        "property": slot(Meta, "computed", Meta.__dict__["computed"], property(lambda cls: 8)),
        "__getitem__": slot(Meta, "__getitem__", Meta.__dict__["__getitem__"], lambda cls, k: 9),
        "__bool__": slot(Meta, "__bool__", GONE, lambda cls: False),
        "__getattr__": slot(Meta, "__getattr__", GONE, lambda cls, n: 4),
        "__getattribute__": slot(Meta, "__getattribute__", GONE, lambda cls, n: 6),
        "unread": slot(Meta, "unread", GONE, 1, matters=False),
    })  # fmt: skip


@family("class_absent")
def constructors(rng: random.Random) -> Scene:
    cls = make_class()

    class Meta(type):
        pass

    made = Meta("Made", (cls,), {})

    def other_init(self: Any, **kwargs: Any) -> None:
        self.k = 500

    def fn(x: Any) -> Any:
        return x * cls().k, made().k

    return Scene(fn, lambda: (X(),), {
        "__init__": slot(cls, "__init__", cls.__init__, other_init),
        "__new__": slot(made, "__new__", GONE, staticmethod(lambda c: cls(k=8))),
        "metaclass __call__": slot(Meta, "__call__", GONE, lambda c: cls(k=9)),
        "__setattr__": slot(cls, "__setattr__", GONE, lambda s, n, v: object.__setattr__(s, n, v + 1)),
    })  # fmt: skip


@family("class_absent")
def dunder_deletion(rng: random.Random) -> Scene:
    """Operator methods of a class that are added and deleted."""
    cls = make_class()
    cls.__add__ = lambda self, o: 5
    first = cls.__add__
    t = cls()

    def fn(x: Any, t: Any) -> Any:
        try:
            y = t + 1
        except TypeError:
            y = -1
        return (
            x + y,
            1 in t if hasattr(type(t), "__contains__") else None,
            callable(t),
            len(t) if hasattr(t, "__len__") else None,
        )

    return Scene(fn, lambda: (X(), t), {
        "__add__": slot(cls, "__add__", first, lambda self, o: 6, GONE),
        "__contains__": slot(cls, "__contains__", GONE, lambda self, o: True, lambda self, o: False),
        "__call__": slot(cls, "__call__", GONE, lambda self: 1),
        "__len__": slot(cls, "__len__", GONE, lambda self: 3),
        "__radd__": slot(cls, "__radd__", GONE, lambda self, o: 6, matters=False),
    })  # fmt: skip


@family("id_is")
def what_classes_derive_from(rng: random.Random) -> Scene:
    class Plain:
        pass

    class Base:
        pass

    class Other:
        pass

    class Derived(Plain, Base):
        pass

    class Meta(type):
        answer = True

        def __instancecheck__(cls, other: Any) -> bool:
            return Meta.answer

    asked = Meta("Asked", (), {})
    o = Derived()

    def fn(x: Any, o: Any) -> Any:
        return x + isinstance(o, Base), issubclass(type(o), (Other, int)), isinstance(o, asked)

    bases = [(Plain, Base), (Plain, Other), (Base, Other)]
    return Scene(fn, lambda: (X(), o), {
        "bases": Knob(lambda i: setattr(Derived, "__bases__", bases[i]), len(bases), fresh=True),
        "metaclass": attr(Meta, "answer", True, False),
        "unread": count(o),
    })  # fmt: skip
