"""Descriptors of a class: the value through the class, an instance, `super()` and `getattr` matches eager."""

from __future__ import annotations

import functools
import operator
import re
import types
from typing import Any

import pytest
import torch

import pycompiler

X = torch.ones(2)


class ClassProperty(property):
    """A class property as people write it: read through the class, and computed from it."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        assert self.fget is not None
        return self.fget(owner)


class OwnClassmethod(classmethod):  # type: ignore[type-arg]
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return "of classmethod", owner


class OwnStaticmethod(staticmethod):  # type: ignore[type-arg]
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return "of staticmethod", owner


class Cached(functools.cached_property[Any]):
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return "class" if instance is None else super().__get__(instance, owner)


class Base:
    k = 2
    prop = ClassProperty(lambda cls: cls.k)
    of_class: Any = OwnClassmethod(lambda cls: cls)
    static: Any = OwnStaticmethod(lambda: 1)
    cached: Any = Cached(lambda self: 5)
    getter = property(operator.attrgetter("k"))
    partial: Any = functools.partialmethod(lambda *args: len(args), 7)
    single: Any = functools.singledispatchmethod(lambda self, x: 3)
    itemgetter = operator.itemgetter(0)
    upper = str.upper  # raises unless the value is a str
    added = int.__add__
    made = dict.__dict__["fromkeys"]
    code = types.FunctionType.__dict__["__code__"]


class Derived(Base):
    k = 3


derived = Derived()
NAMES = [name for name in vars(Base) if not name.startswith("__") and name != "k"]
WAYS = ["Base.{}", "Derived.{}", "derived.{}", "super(Derived, derived).{}", "super(Derived, Derived).{}",
        "getattr(derived, '{}', 'none')", "hasattr(derived, '{}')", "callable(derived.{})", "type(derived.{})"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_gives_what_eager_gets(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, Any] = dict(globals())

    def told(run: Any) -> str:
        derived.__dict__.clear()
        try:
            found = run(X)[0]
        except Exception as error:
            return repr(error)
        parts = [getattr(found, part, None) for part in ("__func__", "__self__")]
        return re.sub("0x[0-9a-f]+", "", repr((type(found), parts if any(parts) else found, vars(derived))))

    for way in WAYS:
        exec(f"def program(x):\n    return {way.format(name)}, x + 1", scope)
        assert told(pycompiler.compile(scope["program"], backend="eager")) == told(scope["program"]), way
    assert "bug of pycompiler" not in capfd.readouterr().err


def test_a_property_of_a_class_is_computed_from_it() -> None:
    compiled = pycompiler.compile(lambda x: x * Derived.prop + derived.prop, fullgraph=True)
    assert compiled(X).tolist() == [6, 6]
    Derived.k = 4
    try:
        assert compiled(X).tolist() == [8, 8]
    finally:
        Derived.k = 3


class Told:
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return held["value"]


class ToldAsProperty(property):
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return held["value"]


class Meta(type):
    told = Told()
    as_property = ToldAsProperty(lambda cls: 0)
    builtin = len
    got = property(operator.attrgetter("k"))


class OfMeta(metaclass=Meta):
    k = 5


held = {"value": 1}


def test_of_a_metaclass() -> None:
    """A metaclass descriptor is neither a constant nor a call of the property's function."""

    def program(x: Any) -> Any:
        return x * OfMeta.told, OfMeta.as_property, OfMeta.builtin([1, 2]), OfMeta.got  # type: ignore[call-arg]

    compiled = pycompiler.compile(program)
    try:
        for value in (1, 2, 3):
            held["value"] = value
            assert repr(compiled(X)) == repr(program(X))
    finally:
        held["value"] = 1


class Raising:
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        raise AttributeError("of a descriptor")


class RaisingData(Raising):
    def __set__(self, instance: Any, value: Any) -> None: ...


class Answering:
    @property
    def of_property(self) -> Any:
        raise AttributeError("of a property")

    @functools.cached_property
    def of_cached(self) -> Any:
        raise AttributeError("of a cached property")

    descriptor, data = Raising(), RaisingData()

    def __getattr__(self, name: str) -> Any:
        return "answered", name


class AnsweringSlots:
    __slots__ = ("empty",)

    def __getattr__(self, name: str) -> Any:
        return "answered", name


class SilentModule(torch.nn.Module):
    @property
    def of_property(self) -> Any:
        raise AttributeError("of a property")


class AnsweringMeta(type):
    @property
    def of_property(cls) -> Any:
        raise AttributeError("of a property")

    def __getattr__(cls, name: str) -> Any:
        return "answered", name


class OfAnsweringMeta(metaclass=AnsweringMeta):
    descriptor = Raising()


class Keyed(Answering):
    def of_super(self) -> Any:
        return super().of_property


answering, module = Answering(), SilentModule()


@pytest.mark.parametrize(
    "read",
    [
        lambda: Answering().of_property,
        lambda: answering.of_property,
        lambda: getattr(answering, "of_property", None),
        lambda: hasattr(Answering(), "of_property"),
        lambda: Answering().of_cached,
        lambda: (Answering().descriptor, Answering().data, answering.descriptor, answering.data),
        lambda: AnsweringSlots().empty,
        lambda: getattr(AnsweringSlots(), "empty", None),
        lambda: getattr(module, "of_property", 3),
        lambda: module.of_property,
        lambda: OfAnsweringMeta.of_property,
        lambda: getattr(OfAnsweringMeta, "descriptor", 2),
        lambda: Keyed().of_super(),
        lambda: object.__getattribute__(answering, "of_property"),
    ],
)
def test_getattr_answers_for_descriptors_that_raise(read: Any) -> None:
    """`__getattr__` also runs where a descriptor raises AttributeError, not only where no attribute is found."""

    def program(x: Any) -> Any:
        try:
            answer = read()
        except AttributeError as e:
            answer = repr(e)
        return answer, x + 1

    explained = pycompiler.explain(program)(X)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    assert pycompiler.compile(program, backend="eager")(X)[0] == program(X)[0]
