"""Classes created in a function: inside the graph only, or returned to the caller as a new class in each call."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import gc
import sys
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.errors import Unsupported

PROGRAMS: list[Callable[..., Any]] = []


def program(fn: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS.append(fn)
    return fn


def annotated(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Register a program whose classes have annotations, which 3.14 computes lazily."""
    return program(fn) if sys.version_info < (3, 14) else fn


@program
def methods(x: Any) -> Any:
    class Scale:
        factor = 2

        def __init__(self, by: float) -> None:
            self.by = by

        def __call__(self, y: Any) -> Any:
            return y * self.by * self.factor + x

        @property
        def twice(self) -> float:
            return self.by * 2

        @twice.setter
        def twice(self, value: float) -> None:
            self.by = value / 2

        @staticmethod
        def plus(y: Any) -> Any:
            return y + 1

        @classmethod
        def named(cls) -> str:
            return cls.__qualname__

        @functools.cached_property
        def kept(self) -> float:
            return self.by + 1

    scale = Scale(3.0)
    scale.twice = 8.0
    return Scale.plus(scale(x)) + scale.kept + scale.kept, scale.named(), scale.twice


@program
def bases(x: Any) -> Any:
    class First:
        def __init__(self, y: Any) -> None:
            self.y = y

        def value(self) -> Any:
            return self.y

    class Second(First):
        def __init__(self, y: Any) -> None:
            super().__init__(y + 1)

        def value(self) -> Any:
            return super().value() * 2, __class__.__name__  # type: ignore[name-defined]

    made = Second(x)
    return made.value(), isinstance(made, First), type(made) is Second, issubclass(First, Second)


@program
def containers(x: Any) -> Any:
    class Named(dict):  # type: ignore[type-arg]
        def __getattr__(self, name: str) -> Any:
            return self[name]

    class Slotted:
        __slots__ = ("y",)

        def __init__(self, y: Any) -> None:
            self.y = y

    try:
        Slotted(x).z = 1  # type: ignore[attr-defined]
    except AttributeError as error:
        return Named(y=x).y + Slotted(x).y, str(error)
    return None


@annotated
def attributes(x: Any) -> Any:
    class Holder:
        weight = x + 1
        seen: typing.ClassVar[list[int]] = []
        steps = [i * 2 for i in range(3)]
        if x.dim() > 1:
            kind = "matrix"
        else:
            kind = "vector"
        try:
            wrong = 1 / 0
        except ZeroDivisionError:
            wrong = 5

        def add(self, n: int) -> int:
            self.seen.append(n)
            return len(Holder.seen)

    holder = Holder()
    return Holder.weight * holder.add(3) + holder.add(4) + holder.wrong, holder.kind, Holder.steps


@program
def variables_of_a_body(x: Any) -> Any:
    y = 42

    class Body:
        locals()["y"] = 43
        z = y
        names = sorted(n for n in locals() if not n.startswith("__"))
        del y

    names = {"n": 2}
    exec("m = n + len(globals()) * 0\nk = sorted(locals()) == sorted(globals())", names)
    return (
        x + Body.z + names["m"],
        Body.names,
        y,
        hasattr(Body, "y"),
        names["k"],
        eval("sorted(locals())", {"a": 1}, {"b": 2}),
    )


@annotated
def data(x: Any) -> Any:
    @dataclasses.dataclass(order=True)
    class Pair:
        a: int
        b: float = 2.0
        c: list[Any] = dataclasses.field(default_factory=list, compare=False)

    one, two = Pair(1), Pair(2, c=[x])
    return two.c[0] * one.b, one < two, one == Pair(1), repr(one), dataclasses.replace(one, a=7).a


@annotated
def tuples_and_enums(x: Any) -> Any:
    class Point(typing.NamedTuple):
        a: Any
        b: int = 2

        def sum(self) -> Any:
            return self.a + self.b

    class Color(enum.Enum):
        RED = 1
        BLUE = enum.auto()

        def twice(self) -> int:
            return self.value * 2

    class Level(enum.IntEnum):
        LOW = 3

    return Point(x).sum() * Color.BLUE.value + Color.RED.twice() + Level.LOW, list(Color.__members__)


@program
def protocols(x: Any) -> Any:
    class Odd:
        def __eq__(self, other: object) -> bool:
            return True

        def __len__(self) -> int:
            return 3

        def __getitem__(self, key: int) -> int:
            return key * 2

        def __iter__(self) -> Any:
            yield from (1, 2)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> bool:
            return True

        def __getattr__(self, name: str) -> int:
            return len(name)

    odd = Odd()
    with odd:
        raise ValueError
    return x + (odd == 3) + len(odd) + odd[4] + sum(odd) + odd.three  # type: ignore[unreachable]


@program
def errors(x: Any) -> Any:
    class Wrong(ValueError):
        def __init__(self, code: int) -> None:
            super().__init__(f"code {code}")
            self.code = code

    class Abstract(abc.ABC):
        @abc.abstractmethod
        def method(self) -> None: ...

    seen = []
    for make in (Abstract, lambda: int("a")):
        try:
            make()
        except (TypeError, ValueError) as error:
            seen.append(str(error))
    try:
        raise Wrong(3)
    except ValueError as error:
        return x + error.code, str(error), seen  # type: ignore[attr-defined]


@program
def decorated(x: Any) -> Any:
    @functools.total_ordering
    class Ranked:
        def __init__(self, n: int) -> None:
            self.n = n

        def __lt__(self, other: Any) -> bool:
            return bool(self.n < other.n)

    def marked(cls: Any) -> Any:
        return cls

    @marked
    class Plain:
        n = 2

    made = type("Made", (Plain,), {"m": 3, "sum": lambda self: self.n + self.m})
    return x + made().sum() if Ranked(1) <= Ranked(2) else x


@program
def module(x: Any) -> Any:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = 2

        def forward(self, y: Any) -> Any:
            return y * self.by

    return Scaled()(x)


def masked(x: Any) -> Any:
    return torch.masked.mean(x, 0, mask=x > 0)  # torch creates a Function inside


if sys.version_info < (3, 14):  # pending annotations break the graph since 3.14
    program(masked)


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_classes_of_the_graph(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for x in (torch.ones(2, 2), torch.full((2, 2), 3.0), torch.ones(2)):
        assert str(compiled(x)) == str(fn(x))
    assert pycompiler.explain(fn)(torch.ones(2, 2)).graph_count == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_function_with_a_backward(backend: str) -> None:
    def cubed(x: Any) -> Any:
        class Odd(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, y: Any) -> Any:
                ctx.save_for_backward(y)
                return y * y

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * 5 * ctx.saved_tensors[0]

        return Odd.apply(x).sum()

    compiled = pycompiler.compile(cubed, backend=backend, fullgraph=True)
    x, y = (torch.arange(3.0, requires_grad=True) for _ in range(2))
    compiled(x).backward()
    cubed(y).backward()
    torch.testing.assert_close(x.grad, y.grad)


def leaves(x: Any) -> Any:
    class Base:
        factor = 2

        def __init__(self, y: Any) -> None:
            self.y = y

        def value(self) -> Any:
            return self.y * self.factor

        @property
        def more(self) -> Any:
            return self.y + 1

    class Sub(Base):
        def value(self) -> Any:
            return super().value() + 1

    return Sub(x + 1), Base, x * 2


def leave_others(x: Any) -> Any:
    @dataclasses.dataclass
    class Pair:
        a: Any
        b: int = 2

    class Color(enum.Enum):
        RED = 1

    class Point(typing.NamedTuple):
        a: Any

    class Wrong(ValueError):
        pass

    try:
        raise Wrong("so")
    except Wrong as error:
        return Pair(x + 1), Color.RED, Point(x), error, x * Color.RED.value
    return None


def test_what_leaves_is_of_a_class_that_the_call_has_made() -> None:
    compiled = pycompiler.compile(leaves, backend="eager", fullgraph=True)
    made, base, y = compiled(torch.ones(2))
    again, other, _ = compiled(torch.ones(2))
    assert base is not other and type(made) is not type(again) and isinstance(made, base)
    assert type(made).__qualname__ == "leaves.<locals>.Sub" and type(made).__module__ == __name__
    torch.testing.assert_close(made.value(), torch.full((2,), 5.0))
    torch.testing.assert_close(made.more + y, torch.full((2,), 5.0))
    other.factor = 3
    torch.testing.assert_close(again.value(), torch.full((2,), 7.0))
    torch.testing.assert_close(made.value(), torch.full((2,), 5.0))


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="annotations that wait break the graph")
def test_what_leaves_of_other_kinds() -> None:
    compiled = pycompiler.compile(leave_others, backend="eager", fullgraph=True)
    pair, red, point, error, _ = compiled(torch.ones(2))
    other = compiled(torch.ones(2))
    assert repr(pair) == repr(leave_others(torch.ones(2))[0])
    assert red.name == "RED" and type(red).RED is red and red is not other[1]
    assert point._fields == ("a",) and type(error).__name__ == "Wrong" and str(error) == "so"
    assert not isinstance(error, type(other[3]))


def beyond_a_break(x: Any) -> Any:
    class Scale:
        factor = 2

        def value(self, y: Any) -> Any:
            return y * self.factor

    y = Scale().value(x)
    pycompiler.graph_break()
    return Scale().value(y), Scale


def breaks_in_its_body(x: Any) -> Any:
    y = x + 1

    class Broken:
        pycompiler.graph_break()
        factor = 2

    return y * Broken.factor


@pytest.mark.parametrize("fn", [beyond_a_break, breaks_in_its_body])
def test_breaks(fn: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(2):
        found, expected = compiled(torch.ones(2)), fn(torch.ones(2))
        found, expected = (v[0] if isinstance(v, tuple) else v for v in (found, expected))
        torch.testing.assert_close(found, expected)
    with pytest.raises(Unsupported):
        pycompiler.compile(fn, backend="eager", fullgraph=True)(torch.ones(2))


class Known:
    factor = 2

    def value(self, x: Any) -> Any:
        return x * self.factor


def derives(x: Any) -> Any:
    class Sub(Known):
        pass

    return Sub().value(x)


def test_what_is_inherited_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = pycompiler.compile(derives, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))
    monkeypatch.setattr(Known, "factor", 5)
    torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 5.0))
    assert (compiled.counters()["compiles"], compiled.counters()["fresh_failures"]) == (2, 0)
    monkeypatch.setattr(Known, "value", lambda self, x: x - 1)
    torch.testing.assert_close(compiled(torch.ones(2)), torch.zeros(2))


def derives_from_a_protocol(x: Any) -> Any:
    class Speaks(typing.Protocol):
        pass

    class Made(Speaks):
        factor = 2

    return x * Made().factor


def test_an_attribute_that_a_library_hook_puts_into_a_class_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(self: Any, *args: Any, **kwargs: Any) -> None:
        self.factor = 7

    compiled = pycompiler.compile(derives_from_a_protocol, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == derives_from_a_protocol(torch.ones(2)).tolist() == [2.0, 2.0]
    monkeypatch.setattr(typing, "_no_init_or_replace_init", other)
    assert compiled(torch.ones(2)).tolist() == derives_from_a_protocol(torch.ones(2)).tolist() == [7.0, 7.0]
    assert (compiled.counters()["compiles"], compiled.counters()["fresh_failures"]) == (2, 0)


class Other:
    more = 4


def derives_from_several(x: Any) -> Any:
    class Both(Known, Other):
        pass

    class Made(Both):
        own = 1

    return Made().value(x) + Made.more + Made.own, hasattr(Made, "absent"), Made.__mro__[2:]


def test_what_is_inherited_from_several_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = pycompiler.compile(derives_from_several, backend="eager", fullgraph=True)

    def same(compiles: int) -> None:
        for _ in range(2):
            assert str(compiled(torch.ones(2))) == str(derives_from_several(torch.ones(2)))
        assert (compiled.counters()["compiles"], compiled.counters()["fresh_failures"]) == (compiles, 0)

    same(1)
    monkeypatch.setattr(Other, "more", 5)
    same(2)
    monkeypatch.setattr(Known, "more", 6, raising=False)
    same(3)
    monkeypatch.setattr(Other, "absent", 6, raising=False)
    same(4)
    monkeypatch.setattr(Other, "value", 6, raising=False)
    same(4)


def derives_from_a_module(x: Any) -> Any:
    class Twice(torch.nn.Module):
        def forward(self, y: Any) -> Any:
            return y * 2

    return Twice()(x)


def test_modules_of_the_frame_are_compiled_once() -> None:
    compiled = pycompiler.compile(derives_from_a_module, backend="eager", fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert (compiled.counters()["compiles"], compiled.counters()["hits"]) == (1, 2)


class Listed:
    pass


class Abstract(abc.ABC):
    @abc.abstractmethod
    def run(self) -> int: ...


def two_classes(x: Any) -> Any:
    class Derived(Listed):
        pass

    class Concrete(Abstract):
        def run(self) -> int:
            return super().__sizeof__() * 0 + 3

    return x + Concrete().run(), Derived, Concrete


def counts_classes(x: Any) -> Any:
    class Derived(Listed):
        pass

    return x + len(Listed.__subclasses__()), Derived


@pytest.mark.parametrize("fn", [two_classes, counts_classes], ids=lambda fn: fn.__name__)
def test_the_subclasses_that_a_base_knows_are_the_program_s(fn: Callable[..., Any]) -> None:
    def calls(call: Callable[..., Any]) -> Any:
        pycompiler.reset()  # entries behind a break refer to the classes of their compile
        gc.collect()
        found, kept = [], []
        for _ in range(3):
            y, *made = call(torch.zeros(2))
            kept.append(made)
            found.append((y.tolist(), [len(c.__subclasses__()) for c in (Listed, Abstract)], made[0].__mro__[1:]))
        return found

    assert calls(pycompiler.compile(fn, backend="eager")) == calls(fn)


def test_an_error_of_a_text_has_its_arguments() -> None:
    def fn(x: Any) -> Any:
        try:
            return x + eval("1 +")
        except SyntaxError as e:
            return x + 1, e.args

    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2))[1] == fn(torch.ones(2))[1]


NAMING: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "an alias": (lambda made: list[made], lambda found: found.__args__[0]),
    "a union": (lambda made: made | int, lambda found: found.__args__[0]),
    "an optional": (lambda made: typing.Optional[made], lambda found: found.__args__[0]),  # noqa: UP045
    "arguments": (lambda made: typing.get_args(made | int), lambda found: found[0]),
    "a slot": (lambda made: vars(made)["slot"], lambda found: found.__objclass__),
    "a super": (lambda made: super(made, made()), lambda found: found.__thisclass__),
}


@pytest.mark.parametrize("kind", NAMING)
@pytest.mark.captures_nothing(
    "an object of C that names a class made by the call keeps the frame eager", "a union", "an optional", "arguments"
)
def test_what_names_a_class_names_that_of_the_call(kind: str) -> None:
    make, named = NAMING[kind]

    def fn(x: Any) -> Any:
        class Made:
            __slots__ = ("slot",)

        return x + 1, make(Made), Made

    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(3):
        y, found, made = compiled(torch.ones(2))
        assert (y.tolist(), named(found)) == ([2.0, 2.0], made)


def test_the_hash_of_a_class_is_that_of_the_call_s() -> None:
    def fn(x: Any) -> Any:
        class Made:
            pass

        return x + 1, hash(Made), Made

    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(3):
        _, found, made = compiled(torch.ones(2))
        assert found == hash(made)


class Counted:
    number = 0


def test_super_beside_a_write_of_the_base() -> None:
    def fn(x: Any) -> Any:
        class Made(Counted):
            def count(self) -> int:
                Counted.number += 1
                return super().number

        return x + 1, [Made().count(), Made().count()]

    def calls(call: Callable[..., Any]) -> Any:
        Counted.number = 0
        return [call(torch.zeros(2))[1] for _ in range(3)]

    assert calls(pycompiler.compile(fn, backend="eager")) == calls(fn)


def test_instances_of_classes_that_fx_may_trace() -> None:
    class Both(abc.ABCMeta, torch.fx.ProxyableClassMeta):
        def __new__(cls, name: str, bases: Any, space: Any) -> Any:
            made = super().__new__(cls, name, bases, space)
            made.told = 100
            return made

    class Plain(abc.ABC):  # noqa: B024
        pass

    class Pair(Plain, metaclass=Both):
        def __init__(self, a: Any) -> None:
            self.a = a

    def program(x: torch.Tensor) -> Any:
        made = Pair(x * 3)
        return made.a + 1, type(made).__bases__, type(made).__base__, type(made).told

    got, wanted = pycompiler.compile(program, fullgraph=True)(torch.ones(2)), program(torch.ones(2))
    assert torch.equal(got[0], wanted[0]) and got[1:] == wanted[1:]


ENTRIES: list[str] = []


class StandsForABase:
    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        ENTRIES.append("entries")
        return (Known,)


STANDS: Any = StandsForABase()


class Extended(enum.Enum):
    A = 1


def asks_a_base_first(x: Any) -> Any:
    try:

        class Made(STANDS):
            ENTRIES.append("body")
            raise ValueError("no")
    except ValueError as e:
        return x + 1, str(e)


def is_refused_before_its_body(x: Any) -> Any:
    try:

        class Made(Extended):  # type: ignore[misc]
            ENTRIES.append("body")
    except TypeError as e:
        return x + 1, str(e)


def type_of_what_is_no_class(x: Any) -> Any:
    try:
        return type("Made", (STANDS,), {})
    except TypeError as e:
        return x + 1, str(e)


@pytest.mark.parametrize("fn", [asks_a_base_first, is_refused_before_its_body, type_of_what_is_no_class])
def test_bases_are_asked_before_the_body_runs(fn: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(2):
        ENTRIES.clear()
        expected, asked = repr(fn(torch.ones(2))), [*ENTRIES]
        ENTRIES.clear()
        assert (repr(compiled(torch.ones(2))), ENTRIES) == (expected, asked)


def test_type_takes_no_keyword_beside_one_object() -> None:
    def program(x: Any) -> Any:
        try:
            return type(x, other=1), x + 1
        except TypeError:
            return None, x + 2

    assert pycompiler.compile(program, backend="eager")(torch.ones(2))[1].tolist() == [3.0, 3.0]


# what the bases lack ----------------------------------------------------------------------------------------------
ONE = torch.ones(1)


class Root:
    pass


class Middle(Root):
    pass


def asks_an_instance(x: Any) -> Any:
    class Made(Middle):
        pass

    made = Made()
    return x + (made.extra if hasattr(made, "extra") else 1)


def stores(x: Any) -> Any:
    class Made(Middle):
        pass

    made: Any = Made()
    made.extra = 3
    return x + made.extra


def asks_the_truth(x: Any) -> Any:
    class Made(Middle):
        pass

    return x + (1 if Made() else 7)


@pytest.mark.parametrize("base", [Middle, Root])
@pytest.mark.parametrize(
    ("fn", "name", "value"),
    [(asks_an_instance, "extra", 5), (asks_an_instance, "__getattr__", lambda self, name: 11),
     (stores, "extra", property(lambda self: 9, lambda self, value: None)), (asks_the_truth, "__len__", lambda self: 0)],
)  # fmt: skip
def test_an_attribute_that_a_base_lacked_is_found_later(
    fn: Any, name: str, value: Any, base: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = pycompiler.compile(fn, backend="eager")
    assert torch.equal(compiled(ONE), fn(ONE))
    before = fn(ONE)
    monkeypatch.setattr(base, name, value, raising=False)
    assert torch.equal(compiled(ONE), fn(ONE))
    assert not torch.equal(fn(ONE), before)
    assert compiled.counters()["compiles"] == 2
