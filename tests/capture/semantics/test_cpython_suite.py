"""Functions from CPython's own tests, each compiled (`python -m tests.fuzz.cpython`): values match eager."""

import contextlib
import contextvars
import dataclasses
import enum
import functools
import gc
import inspect
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pycompiler

PROGRAMS: list[Callable[..., Any]] = []
program = PROGRAMS.append


@contextlib.contextmanager
def raising(exc: Exception) -> Iterator[None]:
    try:
        yield
    finally:
        raise exc


def contexts(exc: BaseException | None) -> list[Any]:
    found = []
    while exc is not None:
        found.append(exc.args)
        exc = exc.__context__
    return found


@program
def contexts_of_a_stack_of_managers(x: Any) -> Any:
    one, two, three, four = (Exception(i) for i in range(1, 5))
    try:
        with contextlib.ExitStack() as stack:
            for exc in (four, three, two):
                stack.enter_context(raising(exc))
            raise one
    except Exception as e:
        return x + 1, contexts(e)


@program
def what_is_thrown_in_has_no_context_of_the_callers(x: Any) -> Any:
    def waits() -> Any:
        try:
            yield 1
        except ValueError as e:
            yield e.__context__

    def handles() -> Any:
        try:
            raise KeyError("inside")
        except KeyError:
            yield from waits_in_a_handler()

    def waits_in_a_handler() -> Any:
        try:
            raise OSError("deeper")
        except OSError:
            try:
                yield 1
            except ValueError as e:
                yield repr(e.__context__)

    found = []
    for made in (waits(), handles()):
        next(made)
        try:
            raise LookupError("outside")
        except LookupError:
            found.append(made.throw(ValueError("thrown")))
    return x + 1, found


def bases_fields(x: Any) -> Any:
    @dataclasses.dataclass
    class Base:
        x: int
        init_base: dataclasses.InitVar[int]

    @dataclasses.dataclass
    class Scale:
        a: Any
        by: dataclasses.InitVar[float] = 2.0
        known: typing.ClassVar[int] = 3

        def __post_init__(self, by: float) -> None:
            self.a = self.a * by

    return vars(Base(0, 10)), Scale(x).a + Scale.known, [f.name for f in dataclasses.fields(Scale)]


@program
def defaults_of_what_is_no_field(x: Any) -> Any:
    try:

        @dataclasses.dataclass
        class Wrong:
            c: dataclasses.InitVar[list[Any]] = dataclasses.field(default_factory=list)

    except TypeError as e:
        return x + 1, str(e)


@program
def a_member_twice(x: Any) -> Any:
    try:

        class Color(enum.Enum):
            RED = 1
            RED = 4  # type: ignore[misc]

    except TypeError as e:
        return x + 1, str(e)


@program
def members_read_in_the_body(x: Any) -> Any:
    class Rights(enum.IntFlag):
        READ = enum.auto()
        WRITE = enum.auto()
        BOTH = READ | WRITE

    return x * int(Rights.BOTH), Rights.BOTH.name


@program
def members_are_one_each(x: Any) -> Any:
    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    members, red = list(Color), Color(1)
    y = x + 1
    pycompiler.graph_break()
    return y, members == [Color.RED, Color.BLUE], red is Color.RED, [m.name for m in members]


def called(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


held = functools.partial(called, [1], a=[2])


@program
def parts_of_a_partial(x: Any) -> Any:
    made = functools.partial(called, [1], a=[2])
    same = [p.args is p.args and p.keywords is p.keywords for p in (held, made)]
    made.keywords["b"] = 3
    return x + 1, same, made(), held.keywords["a"] is held.keywords["a"]


@program
def what_cannot_be_extended(x: Any) -> Any:
    class Color(enum.Enum):
        RED = 1

    try:

        class More(Color, enum.IntEnum):  # type: ignore[misc]
            BLUE = 2

    except TypeError as e:
        return x + 1, str(e)


@program
def a_field_that_is_its_own_annotation(x: Any) -> Any:
    @dataclasses.dataclass
    class Odd:
        field: Any = 1
        C: field = dataclasses.field(default=2)  # type: ignore[valid-type]
        C: C = dataclasses.field(default=3)  # type: ignore[valid-type, no-redef]  # noqa: PIE794

    return x + 1, ",type=...," in repr(Odd.__dataclass_fields__["C"])


@program
def keywords_of_a_partial_beyond_a_break(x: Any) -> Any:
    made = functools.partial(called, 1)
    words = made.keywords
    words["z"] = 3
    y = x + 1
    pycompiler.graph_break()
    words["w"] = 2
    return y, made(), made.keywords is words


@program
def keywords_that_are_no_texts(x: Any) -> Any:
    made = functools.partial(called)
    made.keywords[1] = "one"  # type: ignore[index]
    return x + 1, "1='one'" in repr(made)


prepared: list[str] = []


class Preparing(type):
    @classmethod
    def __prepare__(cls, name: str, bases: tuple[type, ...], **words: Any) -> dict[str, Any]:
        prepared.append(name)
        return {}


@program
def namespaces_are_asked_for_once(x: Any) -> Any:
    prepared.clear()

    class Made(metaclass=Preparing):
        factor = 2

    return x * Made.factor, prepared


@program
def a_cell_that_is_none(x: Any) -> Any:
    try:

        class Odd:
            __classcell__ = 42

    except TypeError as e:
        return x + 1, str(e)


@program
def warnings_of_a_text(x: Any) -> Any:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        compile("x is 1", "<a text>", "exec")
        y = eval("2 is 2")
    return x + y, [(str(w.message), w.filename) for w in seen]


@program
def bases_of_classes_that_no_variable_reads_again(x: Any) -> Any:
    class A: ...

    class B: ...

    class C(A, B): ...

    class D(A, B): ...

    class E(C, D): ...  # never read

    pycompiler.graph_break()
    gc.collect()
    y = x + 1
    pycompiler.graph_break()
    gc.collect()
    try:
        C.__bases__ = (B, A)
    except TypeError as e:
        return y, str(e), [c.__name__ for c in D.__subclasses__()]
    return "no conflict"


@program
def a_metaclass_whose_order_fails(x: Any) -> Any:
    class Once(type):
        def __new__(cls, name: Any, bases: Any, space: Any) -> Any:
            cls.flag = 0  # type: ignore[attr-defined]
            return super().__new__(cls, name, bases, space)

        def mro(cls) -> Any:
            if cls.flag > 0:  # type: ignore[attr-defined]
                raise RuntimeError("bozo")
            cls.flag += 1  # type: ignore[attr-defined]
            return type.mro(cls)

    class C: ...

    class D: ...

    class E(C): ...

    class F(E, metaclass=Once): ...  # never read

    pycompiler.graph_break()
    gc.collect()
    before = E.__mro__
    try:
        E.__bases__ = (D,)
    except RuntimeError:
        return x + 1, E.__mro__ == before
    return "nothing failed"


@program
def a_key_that_deletes_what_is_looked_up(x: Any) -> Any:
    class C: ...

    class Evil:
        def __hash__(self) -> int:
            return hash("attr")

        def __eq__(self, other: Any) -> Any:
            with contextlib.suppress(AttributeError):
                del C.attr
            return 0

    class Descr:
        def __get__(self, owner: Any, cls: Any = None) -> int:
            return 1

    C.attr = Descr()  # type: ignore[attr-defined]
    c: Any = C()
    c.__dict__[Evil()] = 0
    return x + 1, c.attr, hasattr(c, "attr")


@program
def a_metaclass_that_is_asked_for_set_name(x: Any) -> Any:
    class Custom(Exception): ...

    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            if name == "__set_name__":
                raise Custom
            return object.__getattribute__(cls, name)

    class Annoying(metaclass=Meta): ...

    value = Annoying()
    try:

        class Named(typing.NamedTuple):
            attr = value  # type: ignore[misc]

    except Custom:
        return x + 1, "raised"
    return x + 1, Named._fields


@program
def an_instance_dict_of_the_programs(x: Any) -> Any:
    called = []

    class Foo(dict):  # type: ignore[type-arg]
        a = 3

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            called.append(1)
            return {}

    foo: Any = Foo()
    foo.a = 4
    return x + 1, inspect.getattr_static(foo, "a"), foo.a, called


@program
def warnings_of_another_module(x: Any) -> Any:
    module: Any = types.SimpleNamespace(**vars(warnings))
    module.showwarning = module._showwarning_orig = None
    module._showwarnmsg_impl = print
    with warnings.catch_warnings(record=True, module=module) as seen:
        module._showwarnmsg_impl("a message")
    return x + 1, seen, module._showwarnmsg_impl is print


@program
def classes_that_a_metaclass_compares(x: Any) -> Any:
    told = []

    class Meta(type):
        def __eq__(cls, other: object) -> bool:
            told.append("eq")
            return cls is other

        def __ne__(cls, other: object) -> bool:
            told.append("ne")
            return cls is not other

        def __hash__(cls) -> int:
            told.append("hash")
            return 5

        def __lt__(cls, other: object) -> bool:
            told.append("lt")
            return True

    class A(metaclass=Meta): ...

    class B(metaclass=Meta): ...

    found = [
        A == A,
        A == B,
        A != A,
        3 == A,
        A != 4,
        A in [A],
        B in (A, B),
        {A: 1}[A],
        A < B,
        [B, A].index(A),
        hash(A),
    ]
    return x + 1, found, told


METACLASS_TOLD: list[str] = []


class MetaThatTells(type):
    def __eq__(cls, other: object) -> bool:
        METACLASS_TOLD.append("eq")
        return cls is other

    def __hash__(cls) -> int:
        METACLASS_TOLD.append("hash")
        return 5


class Told(metaclass=MetaThatTells):
    pass


@program
def a_class_of_the_module_that_its_metaclass_compares(x: Any) -> Any:
    METACLASS_TOLD.clear()
    found = [Told == Told, Told != 4, {Told: 1}[Told], hash(Told)]
    return x + 1, found, [*METACLASS_TOLD]


class PartialOfMine(functools.partial):  # type: ignore[type-arg]
    pass


MINE = PartialOfMine(max, 0)


@program
def partials_of_another_class(x: Any) -> Any:
    one = PartialOfMine(max, 0)
    found = [PartialOfMine(one, 1, 2), functools.partial(one, 3), PartialOfMine(MINE, 1), functools.partial(MINE, 7)]
    return x + 1, [(p.args, p.func is max, p(5)) for p in found], MINE(4)


class TextOfMine(str):
    pass


@program
def errors_of_codecs_with_texts_of_another_class(x: Any) -> Any:
    found = []
    for encoding, reason in (("utf-8", TextOfMine("r")), (TextOfMine("utf-8"), "r"), (3, TextOfMine("r"))):
        try:
            found.append(repr(UnicodeEncodeError(encoding, "x", 0, 1, reason)))  # type: ignore[arg-type]
        except TypeError as e:
            found.append(str(e))
    return x + 1, found


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.captures_nothing(
    "the keywords of a partial that the program writes keep the frame eager",
    "eager-keywords_of_a_partial_beyond_a_break",
    "eager-keywords_that_are_no_texts",
    "native-keywords_of_a_partial_beyond_a_break",
    "native-keywords_that_are_no_texts",
)
def test_as_eager(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend)
    for x in (torch.ones(2), torch.ones(2), torch.full((3,), 2.0)):
        assert str(compiled(x)) == str(fn(x))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_fields_that_are_none(backend: str) -> None:
    compiled = pycompiler.compile(bases_fields, backend=backend, fullgraph=sys.version_info < (3, 14))
    for x in (torch.ones(2), torch.ones(2)):
        assert str(compiled(x)) == str(bases_fields(x))
    assert compiled.counters()["hits"] == 1


class Initialised(list[Any]):
    def __init__(self, values: Any, mark: Any = None) -> None:
        super().__init__(values)
        self.mark = mark


def test_an_initializer_of_a_list_compiled_alone() -> None:
    compiled = pycompiler.compile(Initialised.__init__, backend="eager")
    for values in ([1, 2], [3, 4], [], iter([5]), range(3)):
        made = Initialised.__new__(Initialised)
        compiled(made, values, mark=3)
        assert (list(made), made.mark) == (list(values) if not isinstance(values, Iterator) else [5], 3)
    full = Initialised([7, 8])
    compiled(full, [1])
    assert full == [1]
    with pytest.raises(TypeError, match="not iterable"):
        compiled(full, 3)
    assert full == []


class Fields(dict[Any, Any]):
    def from_keys(self, *args: Any, **kwargs: Any) -> Any:
        return super().fromkeys(*args, **kwargs)


@pytest.mark.parametrize(
    "args, kwargs", [(("ab",), {}), (("ab", 1), {}), (("a", "b", "c"), {}), (("ab",), {"value": 1}), ((), {})]
)
def test_class_methods_in_c_by_super(args: Any, kwargs: Any) -> None:
    def told(fn: Callable[..., Any]) -> Any:
        try:
            return fn(Fields(a=1), *args, **kwargs)
        except TypeError as e:
            return str(e)

    assert told(pycompiler.compile(Fields.from_keys, backend="eager")) == told(Fields.from_keys)


def test_errors_of_constants_know_what_they_are_about() -> None:
    def duplicate() -> Any:
        try:
            compile("def f(a, a): pass", "<text>", "exec")
        except SyntaxError as e:
            return e

    def missing() -> Any:
        try:
            return getattr(3, "nothing")
        except AttributeError as e:
            return e

    for fn, names in ((duplicate, ("lineno", "offset", "filename", "text", "msg")), (missing, ("name", "obj"))):
        error = pycompiler.compile(fn, backend="eager")()
        assert [getattr(error, name) for name in names] == [getattr(fn(), name) for name in names]


def elements(values: Any) -> Any:
    return [(x,) for x in values]


@pytest.mark.parametrize(
    "of", [iter, enumerate, zip, reversed, list, lambda values: {0: values[0], 1: values[1]}.values()]
)
def test_each_nan_is_an_object(of: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(elements, backend="eager")
    for _ in range(3):
        for values in ([float("nan")] * 2, [float("nan"), float("nan")]):
            got, want = compiled(of(values)), elements(of(values))
            assert [a == b for a in got for b in got] == [a == b for a in want for b in want]
            assert [a == b for a, b in zip(got, want)] == [True, True]


def test_a_variable_is_set_back_by_its_own_token() -> None:
    first, second = contextvars.ContextVar[int]("first"), contextvars.ContextVar[int]("second")

    def program() -> Any:
        token = first.set(1)
        try:
            second.reset(token)
        except ValueError as e:
            return "different ContextVar" in str(e)
        finally:
            first.reset(token)

    assert pycompiler.compile(program, backend="eager")() is program() is True
