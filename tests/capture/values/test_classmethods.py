"""Binding of a classmethod: until Python 3.12 it uses the inner descriptor, since 3.13 it turns any object into a method."""

from __future__ import annotations

import enum
import functools
import sys
from typing import Any

import pytest
import torch

import pycompiler

X = torch.arange(4)


class Asked:
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return instance, owner


class Called:
    def __call__(self, *args: Any) -> Any:
        return args


class Base:
    n = 4
    # mypy accepts only functions in classmethod
    prop: Any = classmethod(property(lambda cls: cls.n))  # type: ignore[arg-type]
    asked: Any = classmethod(Asked())  # type: ignore[arg-type]
    called: Any = classmethod(Called())
    builtin: Any = classmethod(len)  # type: ignore[arg-type]
    static: Any = classmethod(staticmethod(lambda *args: args))  # type: ignore[arg-type]
    twice: Any = classmethod(classmethod(lambda *args: args))  # type: ignore[arg-type]
    partial: Any = classmethod(functools.partial(lambda *args: args, 1))
    number: Any = classmethod(3)  # type: ignore[arg-type]
    cls: Any = classmethod(int)
    plain: Any = classmethod(lambda *args: args)


class Derived(Base):
    n = 6


derived = Derived()
NAMES = [name for name, value in vars(Base).items() if isinstance(value, classmethod)]


def shown(value: Any) -> str:
    return repr((value.__func__, value.__self__, type(value)) if hasattr(value, "__func__") else value)


@pytest.mark.filterwarnings("ignore:functools.partial will be:FutureWarning")
@pytest.mark.parametrize("call", ["", "()"])
@pytest.mark.parametrize("owner", ["Base", "Derived", "derived"])
@pytest.mark.parametrize("name", NAMES)
def test_binds_as_this_python_does(name: str, owner: str, call: str) -> None:
    scope: dict[str, Any] = dict(globals())
    exec(f"def program(x):\n    return {owner}.{name}{call}, x + 1", scope)

    def told(run: Any) -> Any:
        try:
            return shown(run(X)[0])
        except TypeError as error:
            return str(error)

    assert told(pycompiler.compile(scope["program"])) == told(scope["program"])


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="a classmethod asks no property")
def test_a_property_of_a_class_is_an_index() -> None:
    class Place(enum.IntEnum):
        _FIRST = 1
        FIRST: Any = classmethod(property(lambda cls: cls._FIRST))  # type: ignore[arg-type]

    compiled = pycompiler.compile(lambda x: x[..., Place.FIRST] * Base.prop, fullgraph=True)
    assert compiled(X) == 4
    Base.n = 5
    try:
        assert compiled(X) == 5
    finally:
        Base.n = 4


class Told(dict[str, int]):
    pass


KEPT = (dict.fromkeys, Told.fromkeys, int.from_bytes, bytes.fromhex, float.fromhex)


def test_classmethods_in_c_that_something_keeps() -> None:
    def program(x: Any, kept: tuple[Any, ...]) -> Any:
        made = kept[0]("ab", 1), kept[1]("ab"), kept[2](b"\1\2", "big"), kept[3]("0102"), kept[4]("0x1p-2")
        return (
            x + made[2],
            made,
            type(made[1]) is Told,
            [f.__self__ for f in kept],
            kept[0] is kept[0],
            kept[1] == Told.fromkeys,
        )

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        assert str(compiled(X, KEPT)) == str(program(X, KEPT))
    assert compiled.counters()["compiles"] == 1
