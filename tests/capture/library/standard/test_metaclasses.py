"""Classes created in a function with hooks of the program: metaclasses, `__init_subclass__`, `__set_name__`."""

from __future__ import annotations

import abc
import dataclasses
import enum
import sys
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

PROGRAMS: list[Callable[..., Any]] = []
TOLD: list[Any] = []


def program(fn: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS.append(fn)
    return fn


def annotated(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Register a program whose classes have annotations, which 3.14 computes lazily."""
    return program(fn) if sys.version_info < (3, 14) else fn


class Meta(type):
    def __new__(mcs, name: str, bases: Any, names: Any, by: int = 3) -> Any:  # type: ignore[misc]
        TOLD.append(("new", name, [*names][:2], by))
        made = super().__new__(mcs, name, bases, {**names, "by": by})
        made.later = name.lower()  # type: ignore[attr-defined]
        return made

    def __init__(cls, name: str, bases: Any, names: Any, by: int = 3) -> None:
        super().__init__(name, bases, names)
        TOLD.append(("init", cls.__name__, by))

    def __call__(cls, *args: Any) -> Any:
        made = super().__call__(*args)
        made.called = args
        return made

    def __getitem__(cls, key: int) -> int:
        return key + cls.by  # type: ignore[attr-defined]

    def __len__(cls) -> int:
        return 7

    @property
    def shown(cls) -> str:
        return f"<{cls.__name__}>"


class Prepared(type):
    @classmethod
    def __prepare__(mcs, name: str, bases: Any, **words: Any) -> Any:  # type: ignore[override]
        return {"given": len(name), **words}

    def __new__(mcs, name: str, bases: Any, names: Any, **words: Any) -> Any:  # type: ignore[misc]
        return type.__new__(mcs, name, bases, names)

    def __init__(cls, *args: Any, **words: Any) -> None:
        pass


class Base:
    factor = 1

    def __init_subclass__(cls, factor: int = 2, **words: Any) -> None:
        super().__init_subclass__(**words)
        cls.factor = factor * super(cls, cls).factor  # type: ignore[misc]
        TOLD.append((cls.__name__, [b.__name__ for b in cls.__mro__]))


class Rule(abc.ABC):
    def __init_subclass__(cls) -> None:
        TOLD.append(cls.__name__)

    @abc.abstractmethod
    def value(self) -> int: ...


class Doubled:
    name = ""

    def __set_name__(self, owner: Any, name: str) -> None:
        self.name = "_" + name
        TOLD.append((owner.__name__, name))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else instance.__dict__.get(self.name, 5)

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.name] = value * 2


EXISTING = Doubled()


@program
def of_a_metaclass(x: Any) -> Any:
    class Made(metaclass=Meta, by=4):
        y = 2

        def __init__(self, z: int) -> None:
            self.z = z

    made = Made(3)
    return x * Made.y + made.z, Made.by, Made.later, made.called, Made[1], len(Made), Made.shown, type(Made) is Meta  # type: ignore[attr-defined, misc]


@program
def of_a_prepared_body(x: Any) -> Any:
    class Made(metaclass=Prepared, more=3):
        y = given + 1  # type: ignore[name-defined] # noqa: F821

    return x * Made.y + Made.given, Made.more  # type: ignore[attr-defined]


@program
def of_a_metaclass_made_inside(x: Any) -> Any:
    told = []

    class Inside(type):
        def __new__(mcs, name: str, bases: Any, names: Any) -> Any:  # type: ignore[misc]
            told.append(name)
            names["k"] = 4
            return super().__new__(mcs, name, bases, names)

        def __setattr__(cls, name: str, value: Any) -> None:
            told.append((name, value))
            super().__setattr__(name, value * 2)

    class First(metaclass=Inside):
        def own(self) -> Any:
            return __class__.k + self.m  # type: ignore[name-defined] # noqa: F821

    class Second(First):
        m = 6

    Second.m = 7
    made = Inside("Third", (First,), {"m": 1})
    return x * Second().own() + made().own(), told, made.__module__ == __name__


@program
def told_of_a_subclass(x: Any) -> Any:
    class First(Base, factor=5):
        pass

    class Second(First):
        pass

    said = ""
    try:

        class _Third(Base, other=1):  # type: ignore[call-arg]
            pass
    except TypeError as e:
        said = str(e)
    return x * First.factor + Second.factor, said


@program
def keeps_its_subclasses(x: Any) -> Any:
    found: dict[str, Any] = {}

    class Plugin:
        def __init_subclass__(cls, key: str) -> None:
            found[key] = cls
            cls.key = key.upper()  # type: ignore[attr-defined]

        def apply(self, y: Any) -> Any:
            return y

    class _Add(Plugin, key="add"):
        def apply(self, y: Any) -> Any:
            return super().apply(y) + 1

    class _Times(Plugin, key="times"):
        def apply(self, y: Any) -> Any:
            return super().apply(y) * 3

    for cls in found.values():
        x = cls().apply(x)
    return x, [c.key for c in found.values()]


@program
def abstract_ones(x: Any) -> Any:
    class Two(Rule):
        def value(self) -> int:
            return 2

    class Open(Rule):
        pass

    try:
        Open()  # type: ignore[abstract]
    except TypeError as e:
        said = str(e)
    return x * Two().value(), said, isinstance(Two(), Rule), sorted(Open.__abstractmethods__)


@program
def told_its_name(x: Any) -> Any:
    class Made:
        first, second, existing = Doubled(), Doubled(), EXISTING

        def __init__(self) -> None:
            self.first = 3

    made = Made()
    return x * made.first + made.second, vars(made), Made.first.name, EXISTING.name, [*vars(Made)][1:5]


@program
def descriptors_that_are_told_nothing(x: Any) -> Any:
    class Seven:
        def __get__(self, instance: Any, owner: Any) -> Any:
            return 7 if instance is None else instance.y

    class Made:
        y, seven = 2, Seven()

    return x * Made.seven + Made().seven


@program
def members_by_name(x: Any) -> Any:
    class Kind(enum.Enum):
        ADD = 1
        TIMES = 2

    class Bits(enum.IntFlag):
        A = enum.auto()
        B = enum.auto()

    try:
        Kind["NONE"]
    except KeyError as e:
        said = e.args
    return x * Kind["TIMES"].value, Kind["ADD"] is Kind.ADD, Kind(2) is Kind.TIMES, said, (Bits["A"] | Bits.B).value


@program
def counts_in_a_class(x: Any) -> Any:
    class Made:
        count = 0
        seen: typing.ClassVar[Any] = None

        @classmethod
        def step(cls) -> int:
            cls.count += 1
            return cls.count

    Made.seen = x
    return (
        [Made.step() for _ in range(3)],
        Made.count,
        Made.seen + 1,
        hasattr(Made, "more"),
        setattr(Made, "more", 2),
        Made.more,
    )  # type: ignore[attr-defined]


@program
def stores_by_a_property_of_the_metaclass(x: Any) -> Any:
    class Kind(type):
        @property
        def level(cls) -> int:
            return cls._level  # type: ignore[attr-defined, no-any-return]

        @level.setter
        def level(cls, value: int) -> None:
            cls._level = value * 2

    class Made(metaclass=Kind):
        _level = 1

    before = Made.level
    Made.level = 4
    return x * Made.level + before


@program
def looks_at_a_dict_of_a_class(x: Any) -> Any:
    class Made:
        y = 2

        def own(self) -> int:
            return self.y

    shown = Made.__dict__
    before = [k for k in shown if not k.startswith("__")], shown["y"], "z" in shown
    Made.y, Made.z = 3, x  # type: ignore[attr-defined]
    return shown["z"] * shown["y"], before, [k for k in vars(Made) if not k.startswith("__")], shown["own"](Made())


@program
def of_a_protocol(x: Any) -> Any:
    class Speaks(typing.Protocol[T]):
        def f(self) -> int: ...

    class Made(Speaks[int]):
        def f(self) -> int:
            return 3

    return x * Made().f() + Made().f()


T = typing.TypeVar("T")


@annotated
def slots_of_a_dataclass(x: Any) -> Any:
    @dataclasses.dataclass(slots=True)
    class Point:
        a: int
        b: float = 2.0

    @dataclasses.dataclass(slots=True, frozen=True, order=True)
    class Still:
        a: int

    point, still = Point(3), Still(4)
    point.b += 1
    try:
        still.a = 1  # type: ignore[misc]
    except dataclasses.FrozenInstanceError as e:
        said = str(e)
    try:
        point.c = 1  # type: ignore[attr-defined]
    except AttributeError as e:
        missing = str(e)
    return (
        x * point.a + point.b,
        said,
        missing,
        still == Still(4),
        still < Still(5),
        hash(still) == hash(Still(4)),
        Point.__slots__,
    )


@program
def generic_ones(x: Any) -> Any:
    class Box(typing.Generic[T]):
        def __init__(self, held: T) -> None:
            self.held = held

    class Numbers(Box[int]):
        pass

    class Listed(list):  # type: ignore[type-arg]
        pass

    return x * Box[int](3).held + Numbers(4).held, Box[int].__args__, Listed[int]([1, 2]), Numbers.__mro__[1] is Box  # type: ignore[misc]


@program
def of_slots(x: Any) -> Any:
    class _Made(Slotted):
        pass

    return x + 1, TOLD[-1], _Made.__bases__, _Made.__mro__[1:]


@program
def of_several(x: Any) -> Any:
    class Numbers(dict, Base):  # type: ignore[type-arg, misc]
        pass

    class Error(Base, ValueError):
        pass

    class Module(Base, torch.nn.Module):
        pass

    made = Numbers()
    made["a"] = 2
    return x * made["a"] + Numbers.factor, Numbers.__mro__[1:], repr(Error(1)), len([*Module().parameters()])


class Slotted:
    __slots__ = ("a",)

    def __init_subclass__(cls) -> None:
        TOLD.append(cls.__name__)


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_it_is_one_graph(fn: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    for k in range(3):
        x = torch.full((2,), float(k))
        EXISTING.name = ""
        TOLD.clear()
        expected, told = fn(x), [*TOLD]
        EXISTING.name = ""
        TOLD.clear()
        assert str(compiled(x)) == str(expected)
        assert told == TOLD
    assert compiled.counters()["compiles"] == 1


def leaves(x: Any) -> Any:
    class Made(Base, metaclass=Meta, by=2):  # type: ignore[call-arg]
        first, existing = Doubled(), EXISTING

        def own(self, y: Any) -> Any:
            return y * __class__.by + self.first  # type: ignore[name-defined] # noqa: F821

    Made.added = lambda self: Made  # type: ignore[attr-defined]
    TOLD.append(Made)
    return x + 1, Made


@pytest.mark.parametrize(
    "compiled", [pycompiler.compile(leaves, backend="eager", fullgraph=True), leaves], ids=["compiled", "eager"]
)
def test_what_leaves_is_as_eager_makes_it(compiled: Callable[..., Any]) -> None:
    """Each call creates a class, and the program's hook runs once for it."""
    TOLD.clear()
    (_, first), (y, second) = compiled(torch.ones(2)), compiled(torch.ones(2))
    words = [t for t in TOLD if not isinstance(t, type)]
    assert [t for t in TOLD if isinstance(t, type)] == [first, second] and first is not second
    assert words == [*words[:5]] * 2 and words[0][:2] == ("new", "Made") and [w[0] for w in words[:5]] == [
        "new", "Made", "Made", "Made", "init",
    ]  # fmt: skip
    assert type(first) is Meta and first.__bases__ == (Base,) and first.__mro__ == (first, Base, object)
    assert first.__qualname__ == "leaves.<locals>.Made" and first.__module__ == __name__
    made = second()
    made.first = 4
    torch.testing.assert_close(made.own(y), torch.full((2,), 12.0))
    assert made.added() is second and second.later == "made" and second.factor == 2 and EXISTING.name == "_existing"
    assert [*vars(first)] == [*vars(leaves(torch.ones(2))[1])]


def leave_more(x: Any) -> Any:
    @dataclasses.dataclass(slots=True)
    class Point:
        a: Any

    class Box(typing.Generic[T]):
        pass

    class Two(Rule):
        def value(self) -> int:
            return 2

    return x + 1, Point(x * 2), Box[int](), Box[T][str], Two()


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="annotations that wait break the graph")
def test_what_leaves_of_other_kinds() -> None:
    compiled = pycompiler.compile(leave_more, backend="eager", fullgraph=True)
    _, point, box, alias, two = compiled(torch.ones(2))
    other = compiled(torch.ones(2))
    assert not hasattr(point, "__dict__") and type(point) is not type(other[1]) and type(point).__slots__ == ("a",)
    assert repr(point) == repr(leave_more(torch.ones(2))[1])
    assert box.__orig_class__ == type(box)[int] and alias == type(box)[str] and type(other[2]) is not type(box)
    assert two.value() == 2 and isinstance(two, Rule) and type(two).__abstractmethods__ == frozenset()


class Raises:
    def __set_name__(self, owner: Any, name: str) -> None:
        raise KeyError(name)


class Ordered(type):
    def mro(cls) -> list[type]:
        return super().mro()


def of_an_error(x: Any) -> Any:
    try:

        class _Made:
            a = Raises()
    except Exception as e:
        return x + 1, type(e)
    return x


def of_an_order(x: Any) -> Any:
    class Made(metaclass=Ordered):
        y = 3

    return x * Made.y


def of_members(x: Any) -> Any:
    class Named(enum.Enum):
        def __init_subclass__(cls) -> None:
            TOLD.append(cls.__name__)

    class Made(Named):
        A = 2

    return x * Made.A.value, [*TOLD]


def of_a_field(x: Any) -> Any:
    @dataclasses.dataclass
    class Made:
        c: Any = dataclasses.field(default=Doubled(), init=False)

    return x + 1, Made.__dict__["c"].name, [*TOLD]


def of_a_default(x: Any) -> Any:
    class Counts:
        def __get__(self, made: Any, owner: Any) -> int:
            TOLD.append(made is None)
            return 3

    @dataclasses.dataclass
    class Made:
        c: int = Counts()  # type: ignore[assignment]

    return x + Made().c, [*TOLD]


@pytest.mark.parametrize(
    "fn", [of_an_error, of_an_order, of_members, of_a_field, of_a_default], ids=lambda fn: fn.__name__
)
def test_others_break_the_graph(fn: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(3):
        TOLD.clear()
        expected, told = fn(torch.ones(2)), [*TOLD]
        TOLD.clear()
        assert str(compiled(torch.ones(2))) == str(expected)
        assert told == TOLD
    TOLD.clear()
    assert pycompiler.explain(fn)(torch.ones(2)).break_reasons[0].kind == "builtin-call"


def test_what_the_metaclass_says_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = pycompiler.compile(told_of_a_subclass, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(torch.ones(2))[0], torch.full((2,), 15.0))
    monkeypatch.setattr(Base, "factor", 2)
    torch.testing.assert_close(compiled(torch.ones(2))[0], torch.full((2,), 30.0))
    assert compiled.counters()["compiles"] == 2
    monkeypatch.setattr(Base, "__init_subclass__", classmethod(lambda cls, factor=1, other=0: None))
    torch.testing.assert_close(compiled(torch.ones(2))[0], told_of_a_subclass(torch.ones(2))[0])


def test_an_alias_of_a_callable_class_names_that_of_the_call() -> None:
    def fn(x: Any) -> Any:
        class Made(typing.Callable):  # type: ignore[misc, valid-type] # noqa: RUF100
            def __call__(self) -> Any:
                return x + 1

        alias = Made[[], int]  # type: ignore[type-arg, misc]
        return Made, alias().__class__, alias, x * 2

    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(3):
        made, found, alias, _ = compiled(torch.ones(2))
        assert found is made and alias.__origin__ is made


class Checks(abc.ABCMeta):
    asked: int = 0

    def __instancecheck__(cls, value: Any) -> bool:
        Checks.asked += 1
        return getattr(value, "odd", False) or super().__instancecheck__(value)

    def __subclasscheck__(cls, other: type) -> bool:
        return other.__name__.startswith("Odd") or super().__subclasscheck__(other)


class Checked(metaclass=Checks):
    pass


class OddOne:
    pass


class Known(Checked):
    pass


class WithAttribute:
    odd = True


@typing.runtime_checkable
class HasNorm(typing.Protocol):
    def norm(self) -> Any: ...


class Normed:
    def norm(self) -> int:
        return 3


def test_metaclasses_that_ask_abcmeta() -> None:
    def fn(x: Any, value: Any) -> Any:
        found = isinstance(value, Checked), issubclass(type(value), Checked), isinstance(value, HasNorm)
        return x + Checks.asked, found, Checks.asked

    counts = sys.version_info >= (3, 12)  # typing reads the module name of a frame
    compiled = pycompiler.compile(fn, backend="eager", fullgraph=not counts)
    for value in (OddOne(), Known(), WithAttribute(), Normed(), 3, "text", OddOne(), Normed()):
        results = []
        for called in (fn, compiled):
            Checks.asked = 5
            results.append(str(called(torch.ones(1), value)))
        assert results[0] == results[1]


HOOKS: dict[str, dict[str, Any]] = {}


def hooks(**methods: Any) -> None:
    for name, method in methods.items():
        HOOKS[name] = {f"__{name}__": method}


def told_of(name: str, answer: Any) -> Any:
    def hook(cls: Any, *args: Any) -> Any:
        TOLD.append(name)
        return answer(cls, *args)

    return hook


def _no_attribute(cls: type, name: str) -> Any:
    raise AttributeError(name)


hooks(
    eq=told_of("eq", lambda cls, other: cls is other),
    hash=told_of("hash", lambda cls: 5),
    subclasscheck=told_of("subclasscheck", lambda cls, other: False),
    instancecheck=told_of("instancecheck", lambda cls, made: False),
    getattr=told_of("getattr", _no_attribute),
    getattribute=told_of("getattribute", lambda cls, name: type.__getattribute__(cls, name)),
    bool=told_of("bool", lambda cls: False),
    **{
        name: property(told_of(name, lambda cls, value=value: value))
        for name, value in (
            ("class", type), ("name", "N"), ("module", "M"), ("dict", {}), ("mro", ()), ("base", object), ("bases", ()),
            ("flags", 0), ("dictoffset", 0),
        )
    },
)  # fmt: skip
HOOKS["eq"]["__hash__"] = type.__hash__


def makes_a_class(meta: Any, known: Any, held: Any) -> Callable[..., Any]:
    def fn(x: Any, n: int) -> Any:
        class Made(metaclass=meta):
            k = 1

            def method(self) -> int:
                return n

        made = Made()
        made.q = 1  # type: ignore[attr-defined]
        return x + made.method() + made.q  # type: ignore[attr-defined]

    return fn


def makes_an_instance(meta: Any, known: Any, held: Any) -> Callable[..., Any]:
    def fn(x: Any, n: int) -> Any:
        made = known()
        made.q = n
        return x + made.method(), type(made) is known

    return fn


def has_an_instance(meta: Any, known: Any, held: Any) -> Callable[..., Any]:
    def fn(x: Any, n: int) -> Any:
        pycompiler.graph_break()
        return x + held.q, held in [held], known, len({1: held})

    return fn


@pytest.mark.parametrize("hook", list(HOOKS))
@pytest.mark.parametrize("program", [makes_a_class, makes_an_instance, has_an_instance])
def test_nobody_but_the_program_asks_a_metaclass(program: Callable[..., Any], hook: str) -> None:
    meta = type("Meta", (type,), dict(HOOKS[hook]))
    known = type.__new__(meta, "Known", (), {"k": 1, "method": lambda self: self.q})
    held = known()
    object.__setattr__(held, "q", 3)
    fn = program(meta, known, held)
    compiled = pycompiler.compile(fn, backend="eager")
    for n in (1, 1, 2):
        found, told = [], []
        for call in (fn, compiled):
            TOLD.clear()
            result = call(torch.ones(2), n)
            told.append([*TOLD])
            found.append(result[0] if isinstance(result, tuple) else result)
        assert torch.equal(*found) and told[0] == told[1]


def hooked(answer: Any) -> Any:
    class Hooked(abc.ABC):  # noqa: B024
        @classmethod
        def __subclasshook__(cls, other: type) -> Any:
            TOLD.append(other.__qualname__)
            return answer()

    return Hooked


def raises() -> Any:
    raise ValueError(len(TOLD))


class Asked:
    pass


def asks_one_that_it_makes(base: Any) -> Callable[..., Any]:
    def fn(x: Any) -> Any:
        class Hooked(abc.ABC):  # noqa: B024
            @classmethod
            def __subclasshook__(cls, other: type) -> Any:
                TOLD.append(other.__qualname__)
                return NotImplemented

        return x + isinstance(Asked(), Hooked)

    return fn


def asks_of_one_that_it_makes(base: Any) -> Callable[..., Any]:
    def fn(x: Any) -> Any:
        class Made:
            pass

        return x + isinstance(Made(), base) + issubclass(Made, base)

    return fn


def asks(base: Any) -> Callable[..., Any]:
    def fn(x: Any) -> Any:
        try:
            return x + isinstance(Asked(), base)
        except ValueError as e:
            return x - 1, str(e)

    return fn


@pytest.mark.parametrize("answer", [lambda: NotImplemented, lambda: True, raises])
@pytest.mark.parametrize("program", [asks_one_that_it_makes, asks_of_one_that_it_makes, asks])
def test_an_abstract_class_asks_the_program_as_often_as_uncompiled(program: Any, answer: Any) -> None:
    told = []
    for compiled in (False, True):
        fn = program(hooked(answer))
        call = pycompiler.compile(fn, backend="eager") if compiled else fn
        told.append([])
        for _ in range(3):
            TOLD.clear()
            try:
                found = repr(call(torch.ones(2)))
            except ValueError as e:
                found = str(e)
            told[-1].append((found, [*TOLD]))
    assert told[0] == told[1]


def test_a_kept_answer_is_one_graph() -> None:
    compiled = pycompiler.compile(asks(hooked(lambda: True)), backend="eager")
    for _ in range(4):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert (compiled.counters()["compiles"], compiled.counters()["tail_calls"]) == (2, 1)


class HasHook:
    def __init_subclass__(cls) -> None:
        TOLD.append(cls.__name__)


class DerivesFromIt(HasHook):
    pass


def without_an_order(x: Any) -> Any:
    try:

        class Made(HasHook, DerivesFromIt):  # type: ignore[misc]
            pass
    except TypeError as e:
        return x + 1, str(e)


def matches_a_list(x: Any) -> Any:
    class Made:
        __match_args__: Any = ("a",)
        a = 1

    Made.__match_args__ = ["a"]
    try:
        match Made():
            case Made(1):
                return x
    except TypeError as e:
        return x + 1, str(e)


@pytest.mark.parametrize("fn", [without_an_order, matches_a_list])
def test_errors_name_what_the_program_has(fn: Callable[..., Any]) -> None:
    TOLD.clear()
    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    for _ in range(2):
        assert repr(compiled(torch.ones(2))) == repr(fn(torch.ones(2)))
    assert TOLD == []
