"""Programs from CPython's own tests: values, errors and method calls match the uncompiled program."""

from __future__ import annotations

import abc
import collections
import collections.abc
import copy
import functools
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

SAID: list[Any] = []


def told(*actions: Callable[[], Any]) -> list[str]:
    """The result or error of each action."""
    found = []
    for action in actions:
        try:
            found.append(str(action()))
        except (TypeError, ValueError, AttributeError) as e:
            found.append(f"{type(e).__name__}: {e}")
    return found


class Plain:
    pass


class Given:
    def __new__(cls, *a: Any, **k: Any) -> Any:
        return super().__new__(cls, *a, **k)

    def __init__(self, *a: Any, **k: Any) -> None:
        super().__init__(*a, **k)


def arguments_of_object(x: Any) -> Any:
    made: Any = Plain
    return x + 1, told(
        lambda: made(42), lambda: made.__new__(made, 42), lambda: made().__init__(42), lambda: Given(42),
        lambda: Given.__new__(Given, 42), lambda: Given.__init__(made.__new__(Given), 42),
    )  # fmt: skip


class Base:
    def __new__(cls, arg: Any) -> Any:
        return object.__new__(Derived)


class Derived(Base):
    def __init__(self, arg: Any) -> None:
        self.arg = arg


class Answers:
    def __init__(self) -> None:
        return 10  # type: ignore[return-value]


class NoInit:
    @property
    def __init__(self) -> Any:  # type: ignore[misc]
        raise AttributeError("no __init__")


class OfDict:
    __init__ = dict.__init__


def initialised(x: Any) -> Any:
    return x + 1, Base(1).arg, told(Answers, NoInit, OfDict)


class Getter:
    counter = 0

    def __get__(self, obj: Any, cls: Any = None) -> Any:
        def getter(name: str) -> Any:
            self.counter += 1
            raise AttributeError(name)

        return getter


GETTER = Getter()


class Asks:
    __getattribute__ = GETTER


class AsksTwice:
    __getattribute__ = GETTER
    __getattr__ = GETTER


class Settles:
    def __set__(self, obj: Any, value: Any) -> None:
        pass


class Meta(type):
    a = Settles()


class OfMeta(metaclass=Meta):
    a = 42  # type: ignore[assignment]


class Number:
    __class__ = 413  # type: ignore[assignment]


def attributes(x: Any) -> Any:
    found: Any = told(lambda: Asks().attr, lambda: AsksTwice().attr)  # type: ignore[attr-defined]
    return x + 1, found, GETTER.counter, OfMeta.a, Number().__class__


def supers(x: Any) -> Any:
    return x + 1, told(lambda: super(Derived, 42), lambda: super(Derived, Plain()), lambda: super(Derived, int))


class Folded(str):
    def __hash__(self) -> int:
        return hash(self.lower())

    def __eq__(self, other: Any) -> bool:
        return self.lower() == str(other).lower()


FOLDED = {Folded("one"): 1, Folded("TWO"): 2}


def keys_that_say_what_they_equal(x: Any) -> Any:
    return x + 1, Folded("ONE") in FOLDED, FOLDED.get(Folded("two")), "one" in FOLDED


class Float(float):
    pass


class Odd(int):
    __eq__ = str.__eq__


NAN, ODD = Float("nan"), Odd(3)


def numbers_of_other_classes(x: Any) -> Any:
    return x + 1, NAN == NAN, NAN != NAN, [NAN] == [NAN], told(lambda: ODD == ODD)


class Left:
    def __eq__(self, other: Any) -> Any:
        SAID.append("Left.__eq__")
        return NotImplemented


class Right:
    def __eq__(self, other: Any) -> Any:
        SAID.append("Right.__eq__")
        return NotImplemented

    def __ne__(self, other: Any) -> Any:
        SAID.append("Right.__ne__")
        return NotImplemented


class Abstract(abc.ABC):
    def __eq__(self, other: Any) -> Any:
        SAID.append("Abstract.__eq__")
        return NotImplemented


@Abstract.register
class Virtual:
    def __eq__(self, other: Any) -> Any:
        SAID.append("Virtual.__eq__")
        return NotImplemented


def who_is_asked(x: Any) -> Any:
    SAID.clear()
    return x + 1, Left() != Right(), Right() != Left(), Abstract() == Virtual(), list(SAID)


class Both(collections.UserList[Any], collections.abc.Mapping[Any, Any]):  # type: ignore[misc]
    pass


class Twice:
    __match_args__ = ("a", "a")
    a = None


class Once:
    __match_args__ = ("a",)
    a = None


class NoTexts:
    __match_args__ = (None,)


class NoTuple:
    __match_args__ = ["a"]


class Keys:
    KEY = "a"


def patterns(x: Any) -> Any:
    def kind(subject: Any) -> str:
        match subject:
            case {}:
                return "mapping"
            case [*_]:
                return "sequence"
        return "neither"

    def twice(subject: Any) -> Any:
        match subject:
            case Twice(a, b):
                return a, b

    def by_name(subject: Any) -> Any:
        match subject:
            case Once(a, a=b):
                return a, b

    def one(subject: Any, cls: Any) -> Any:
        match subject:
            case cls(a):
                return a

    def keyed(subject: Any) -> Any:
        match subject:
            case {Keys.KEY: a, "a": b}:
                return a, b

    def of_default(subject: Any) -> Any:
        match subject:
            case {"new": a}:
                return a
        return "none"

    made: collections.defaultdict[str, int] = collections.defaultdict(int)
    found = told(
        lambda: kind(Both()), lambda: kind({}), lambda: kind([]), lambda: kind(x), lambda: twice(Twice()), lambda: by_name(Once()),
        lambda: one(NoTexts(), NoTexts), lambda: one(NoTuple(), NoTuple), lambda: one(Plain(), Plain), lambda: one(3, int),
        lambda: keyed({"a": 1, "b": 2}), lambda: of_default(made),
    )  # fmt: skip
    return x + 1, found, len(made)


class BadArguments:
    def __getnewargs__(self) -> Any:
        return "bad"


class BadBoth:
    def __init__(self, given: Any) -> None:
        self.given = given

    def __getnewargs_ex__(self) -> Any:
        return self.given


def reduced(x: Any) -> Any:
    bad = [BadBoth(given) for given in ("bad", (), ("bad", {}), ((), "bad"))]
    return x + 1, told(lambda: copy.copy(BadArguments()), *[lambda v=v: copy.copy(v) for v in bad])  # type: ignore[misc]


def ordered(x: Any) -> Any:
    first: Any = collections.OrderedDict(a=1)
    first.x = ["x"]
    return x + 1, copy.copy(first).x is first.x, copy.deepcopy(first).x


class Module(types.ModuleType):
    a = 1


def modules(x: Any) -> Any:
    first, second = types.ModuleType("first"), types.ModuleType("second")
    first.__class__ = Module

    def replace() -> None:
        second.__dict__ = {}

    return x + 1, hasattr(first, "a"), type(first) is Module, told(replace)


class Watched(types.ModuleType):
    def __getattribute__(self, name: str) -> Any:
        SAID.append(("get", name))
        return types.ModuleType.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        SAID.append(("set", name))
        types.ModuleType.__setattr__(self, name, value)


def watched_module(x: Any) -> Any:
    SAID.clear()
    made = Watched("made")
    made.foo = 12
    return x + 1, made.foo, list(SAID)


def of_a_number(x: Any) -> Any:
    number = Float(2.0)
    proxy, reference = weakref.proxy(number), weakref.ref(number)
    return x + 1, proxy + 1.0, reference() is None


def of_what_a_list_holds(x: Any) -> Any:
    held = [Float(2.0), Plain()]
    first, second = weakref.ref(held[0]), weakref.ref(held[1], SAID.append)
    pycompiler.graph_break()
    return x + 1, first() is None, second() is None


def of_a_weak_dict(x: Any) -> Any:
    known: Any = weakref.WeakValueDictionary()
    number = Float(2.0)
    known["a"] = number
    pycompiler.graph_break()
    return x + 1, len(known)


def keywords_of_builtins(x: Any) -> Any:
    given: Any = {"key": 1}
    found = pow(base=2, exp=4), pow(5, exp=2, mod=14), functools.partial(pow, mod=10)(2, 6)
    return x + 1, found, told(lambda: iter([], **given), lambda: getattr(x, "a", **given), lambda: [].index(1, **given))


def code_with_other_variables(x: Any) -> Any:
    def closes() -> Any:
        return x

    def plain() -> Any:
        return 1

    def replace() -> None:
        plain.__code__ = closes.__code__

    return x + 1, told(replace), plain()


ONE, OTHER = typing.Union[int, list[int], bytes], int | list[int] | bytes  # noqa: UP007


def keys_that_types_give(x: Any) -> Any:
    return x + 1, ONE == OTHER, {list[int]} == {list[int]}, {list[int]: 1}.get(list[int])


def views_and_frozen_sets(x: Any) -> Any:
    keys, frozen = {"a": 1}.keys(), frozenset("ab")
    made = frozen & keys, frozen | keys, frozen - keys, frozen ^ keys, keys & frozen, {"a"} & keys
    return x + 1, [sorted(v) for v in made], [type(v) for v in made]


def classes_of_methods(x: Any) -> Any:
    return x + 1, isinstance(int.from_bytes, types.BuiltinMethodType), type(dict.fromkeys)


def where_it_is_called(x: Any) -> Any:
    made: Any = typing.TypedDict("made", {"a": int})  # type: ignore[operator]
    return x + 1, made.__module__, collections.namedtuple("other", "a").__module__  # noqa: PYI024


@pytest.mark.parametrize(
    "program",
    [
        where_it_is_called,         keys_that_types_give, views_and_frozen_sets, classes_of_methods, keywords_of_builtins, code_with_other_variables, of_a_number, of_what_a_list_holds, of_a_weak_dict,
        arguments_of_object, initialised, attributes, supers, keys_that_say_what_they_equal, numbers_of_other_classes, who_is_asked,
        patterns, reduced, ordered, modules, watched_module,
    ],
)  # fmt: skip
def test_as_cpython_does_it(program: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(2):
        found = []
        for call in (program, compiled):
            GETTER.counter = 0
            found.append(str(call(torch.ones(2))))
        assert found[0] == found[1]


@pytest.mark.parametrize("program", [patterns, who_is_asked, reduced])
def test_in_one_graph(program: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    assert str(compiled(torch.ones(2))) == str(program(torch.ones(2)))
    assert compiled.counters()["compiles"] == 1


def test_a_class_that_becomes_a_mapping() -> None:
    class Late:
        pass

    def program(x: Any, subject: Any) -> Any:
        match subject:
            case {}:
                return x + 1
        return x - 1

    compiled = pycompiler.compile(program, backend="eager")
    subject = Late()
    assert torch.equal(compiled(torch.ones(2), subject), torch.zeros(2))
    collections.abc.Mapping.register(Late)
    assert torch.equal(compiled(torch.ones(2), subject), program(torch.ones(2), subject))


def test_groups_in_groups() -> None:
    def program(x: Any, depth: int) -> Any:
        group: Any = TypeError(1)
        for _ in range(depth):
            group = ExceptionGroup("group", [group])
        return x + 1, type(group)

    def split(x: Any) -> Any:
        group = ExceptionGroup("group", [TypeError(1)])
        for _ in range(2000):
            group = ExceptionGroup("group", [group])
        try:
            group.split(TypeError)
        except RecursionError:
            return x + 1
        return x + 2

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    assert str(compiled(torch.ones(2), 60)) == str(program(torch.ones(2), 60))
    assert torch.equal(pycompiler.compile(split, backend="eager")(torch.ones(2)), split(torch.ones(2)))


def test_long_sequences_are_built_in_parts() -> None:
    def program(x: Any) -> Any:
        many = [1] * 3000
        many[2000] = 2
        return x + 1, many, tuple(many)

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    assert str(compiled(torch.ones(2))) == str(program(torch.ones(2)))


# containers that change during iteration ------------------------------------------------------------------------
def _ordered_loses(o: Any) -> Any:
    for key in o:
        del o[key]


def _ordered_grows(o: Any) -> Any:
    for key in o:
        o[key + "2"] = 1


def _sorted_appends(o: Any) -> Any:
    made = [3, 1, 2]
    try:
        made.sort(key=lambda v: made.append(v) or -v)  # type: ignore[func-returns-value]
    except ValueError as e:
        return repr(e), made
    return made


def _sorted_looks(o: Any) -> Any:
    made, sizes = [3, 1, 2], []
    made.sort(key=lambda v: sizes.append(len(made)) or v)  # type: ignore[func-returns-value]
    return made, sizes


def _sorted_raises(o: Any) -> Any:
    made = [3, 1, 0, 2]
    try:
        made.sort(key=lambda v: 1 / v)
    except ZeroDivisionError as e:
        return repr(e), made


def _a_negative_bound(o: Any) -> Any:
    return collections.deque([1], -1)


@pytest.mark.parametrize(
    ("use", "breaks"),
    [
        (_ordered_loses, 0), (_ordered_grows, 0), (_sorted_appends, 1), (_sorted_looks, 0), (_sorted_raises, 0),
        (_a_negative_bound, 0),
    ],
)  # fmt: skip
def test_containers_that_change_meanwhile(use: Callable[[Any], Any], breaks: int) -> None:
    def fn(x: torch.Tensor) -> Any:
        o = collections.OrderedDict(a=1, b=2)
        try:
            return x + 1, use(o), list(o)
        except (RuntimeError, ValueError) as e:
            return x + 1, repr(e), list(o)

    x = torch.ones(2)
    compiled = pycompiler.compile(fn, backend="eager", fullgraph=not breaks)
    for _ in range(2):
        assert compiled(x)[1:] == fn(x)[1:]
    assert compiled.counters()["eager_calls"] == 0
    assert (pycompiler.explain(fn)(x).graph_break_count > 0) == bool(breaks)


@pytest.mark.parametrize("name", [0, None, b"a"])
@pytest.mark.parametrize("thing", [Plain, Plain(), torch.nn.Module(), torch.ones(1), 3, [1]], ids=range(6))
def test_names_of_attributes_are_texts(thing: Any, name: Any) -> None:
    """`hasattr` raises for a name that is not a string; it must not return False."""
    calls = [
        (getattr, ()),
        (getattr, (1,)),
        (hasattr, ()),
        (setattr, (1,)),
        (delattr, ()),
        (object.__getattribute__, ()),
    ]
    calls += [(object.__setattr__, (1,)), (object.__delattr__, ())]

    def program(x: torch.Tensor, fn: Any, more: Any) -> Any:
        try:
            fn(thing, name, *more)
        except TypeError as error:
            return str(error), x + 1
        return x

    for fn, more in calls:
        wanted = program(torch.ones(1), fn, more)
        found = pycompiler.compile(program, backend="eager")(torch.ones(1), fn, more)
        assert found[0] == wanted[0]
