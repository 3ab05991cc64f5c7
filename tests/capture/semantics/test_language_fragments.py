"""Programs combined from language fragments, each called again after changes."""

from __future__ import annotations

import abc
import enum
import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same_calls


def outcome(fn: Callable[..., Any], *args: Any) -> str:
    try:
        return str(fn(*args))
    except Exception as error:
        return f"{error!r} {error.__context__!r}"


def both(make: Callable[[list[Any]], Callable[..., Any]], *calls: tuple[Any, ...]) -> Any:
    """Compare result and log of each call, eager and compiled; return the compiled function."""
    seen = []
    for compile in (lambda fn: fn, lambda fn: pycompiler.compile(fn, backend="eager")):
        log: list[Any] = []
        fn = compile(make(log))
        seen.append([(outcome(fn, *args), str(log)) for args in calls])
    assert seen[1] == seen[0]
    return fn


@pytest.mark.parametrize("base", [enum.Enum, enum.Flag])
def test_values_that_no_member_has_are_asked_for_once(base: Any) -> None:
    """Capture itself must not call the program's `_missing_`."""

    def make(log: list[Any]) -> Callable[..., Any]:
        class E(base):  # type: ignore[misc]
            A = 1
            B = 2

            @classmethod
            def _missing_(cls, value: Any) -> Any:
                log.append(value)
                return {"a": cls.A, "q": 3}.get(value) or super()._missing_(value)

        return lambda x, value: (x + 1, E(value))

    x = torch.ones(2)
    values = [1, "a", "a", "q", 2, 3, 3, [1], 1.0, 0, 0, "b"]
    fn = both(make, *[(x, v) for v in values])
    pycompiler.reset()
    report = pycompiler.explain(fn.fn)(x, "a")
    assert (report.graph_count, report.graph_break_count) == (1, 0)


def test_stop_iteration_thrown_into_a_generator_that_has_not_begun() -> None:
    def fn(x: Any, begun: bool, error: Any) -> Any:
        def two() -> Any:
            yield 1
            yield 2

        it = two()
        if begun:
            next(it)
        try:
            it.throw(error)
        except (RuntimeError, StopIteration) as e:
            return x + 1, type(e), type(e.__cause__), e.__cause__ is e.__context__, list(it)

    compiled = pycompiler.compile(fn, backend="eager")
    for begun in (False, True):
        for error in (StopIteration, StopIteration(3)):
            assert str(compiled(torch.ones(2), begun, error)) == str(fn(torch.ones(2), begun, error))


def _with_defaults(compile: Any) -> Any:
    names: dict[str, Any] = {"b": 1}

    def f(a: Any = (1,), *, b: Any = 2) -> Any:
        return a, b

    def by_another_name(x: Any) -> Any:
        names["b"] = x.shape[0]
        return f()

    def by_its_own(x: Any) -> Any:
        given = f.__kwdefaults__
        before = f()
        if given:
            given["b"] = x.shape[0]
        return before, f(), given is f.__kwdefaults__, f.__defaults__ is f.__defaults__

    def of_one_made_here(x: Any) -> Any:
        def made(*, b: Any = x) -> Any:
            return b

        made.__kwdefaults__["b"] = x + 1
        return made(), made.__kwdefaults__

    seen = []
    for fn in map(compile, (by_another_name, by_its_own, of_one_made_here)):
        for defaults in ({"b": 2}, names, {"b": 3}, None, names):
            f.__kwdefaults__ = defaults  # type: ignore[assignment]
            seen += [outcome(fn, torch.ones(n)) for n in (2, 2, 3)] + [str(names)]
    return seen


def test_defaults_of_keywords_are_a_dict_that_others_may_change() -> None:
    assert _with_defaults(lambda fn: pycompiler.compile(fn, backend="eager")) == _with_defaults(lambda fn: fn)


def _caught(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except BaseException as e:
        return type(e), str(e), repr(e.__cause__), e.__suppress_context__


def _asked() -> Any:
    try:
        yield 1
    except ValueError:
        yield 5
    except GeneratorExit:
        return 9


CALLS: dict[str, Callable[[Any], Any]] = {
    "close": lambda i: i.close(),
    "close of something": lambda i: i.close(1),
    "close by name": lambda i: i.close(a=1),
    "next of something": lambda i: i.__next__(1),
    "iter of something": lambda i: i.__iter__(1),
    "throw of nothing": lambda i: i.throw(),
    "throw of much": lambda i: i.throw(1, 2, 3, 4),
    "throw by name": lambda i: i.throw(typ=ValueError),
    "throw with no traceback": lambda i: i.throw(ValueError, None, 3),
    "throw of a number": lambda i: i.throw(3),
    "throw of a class": lambda i: i.throw(int),
    "throw of two": lambda i: i.throw(ValueError, ValueError("x")),
    "send of nothing": lambda i: i.send(),
    "send of two": lambda i: i.send(1, 2),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_methods_of_generators_refuse_what_they_do_not_take(name: str, begun: bool) -> None:
    call = CALLS[name]

    def fn(x: Any) -> Any:
        it = _asked()
        if begun:
            next(it)
        seen = _caught(lambda: call(it))
        return x + 1, seen if seen is not it else "it", _caught(lambda: it.close()), _caught(lambda: next(it))

    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(2):
        assert str(compiled(torch.ones(2))) == str(fn(torch.ones(2)))


class _MakesNone(BaseException):
    def __new__(cls) -> Any:
        return None


@pytest.mark.parametrize("cause", [3, int, ValueError, None, _MakesNone, KeyError("a")], ids=str)
@pytest.mark.parametrize("raised", [ValueError, int, None, 3], ids=str)
def test_what_is_raised_and_its_cause_are_exceptions(raised: Any, cause: Any) -> None:
    def fn(x: Any) -> Any:
        try:
            raise raised from cause
        except BaseException as e:
            return x + 1, type(e), str(e), repr(e.__cause__), e.__suppress_context__

    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(2):
        assert str(compiled(torch.ones(2))) == str(fn(torch.ones(2)))


class _Giving:
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return lambda *args: ("given", instance is None, args[1:])


def _classes() -> dict[str, Any]:
    def of(base: Any, **names: Any) -> Any:
        return type("Odd", (base,), names)

    seen: list[Any] = []
    told = functools.partial(lambda *args: seen.append(args))
    by_class = classmethod(lambda *args: ("made", args[2:]))
    odd = {f"{base.__name__} {kind}": of(base, __new__=new) for base in (object, Exception, list, dict, tuple, int)
           for kind, new in (("a method of the class", by_class), ("a descriptor", _Giving()), ("nothing", None))}  # fmt: skip
    inits = {f"init of {b.__name__}": of(b, __init__=told, seen=seen) for b in (object, Exception, list)}
    return odd | inits


@pytest.mark.parametrize("name", _classes())
def test_what_makes_an_instance_need_be_no_function(name: str) -> None:
    cls = _classes()[name]

    def fn(x: Any, *args: Any) -> Any:
        made = _caught(lambda: cls(*args))
        return x + 1, type(made).__name__, [len(args) for args in getattr(cls, "seen", ())]

    compiled = pycompiler.compile(fn, backend="eager")
    for args in ((), (1,), ()):
        seen = []
        for call in (fn, compiled):
            getattr(cls, "seen", []).clear()
            seen.append(str(call(torch.ones(2), *args)))
        assert seen[1] == seen[0]


class _Super:
    def __init__(self, *args: Any) -> None:
        self.text = f"of {len(args)}"


def test_another_super_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    class Base:
        text = "base"

    class Derived(Base):
        def both(self) -> Any:
            return super().text, super(Derived, self).text

    compiled = pycompiler.compile(lambda x: (x + 1, Derived().both()), backend="eager", fullgraph=True)
    assert compiled(torch.ones(2))[1] == ("base", "base")
    monkeypatch.setitem(globals(), "super", _Super)
    assert compiled(torch.ones(2))[1] == Derived().both() == ("of 0", "of 2")
    monkeypatch.undo()
    assert compiled(torch.ones(2))[1] == ("base", "base")


@pytest.mark.parametrize("slots", [("foo",), ("__doc__",), ("__dict__",)])
def test_properties_without_a_place_for_their_text(slots: Any) -> None:
    def fn(x: Any) -> Any:
        class Slotted(property):
            __slots__ = slots

        def getter(self: Any) -> Any:
            """A text."""

        try:
            Slotted(getter)
        except AttributeError:
            return x + 1
        return x - 1

    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), fn(torch.ones(2)))


class _Module(types.ModuleType):
    said: list[Any]

    def __getattr__(self, name: str) -> Any:
        self.said.append(name)
        return len(self.said)


@pytest.mark.parametrize("kind", ["a function", "one that keeps", "an object", "a class"])
def test_a_module_is_asked_by_the_program_alone(kind: str) -> None:
    """`__getattr__` of a module (PEP 562)."""

    def make(log: list[Any]) -> Callable[..., Any]:
        module = _Module("m") if kind == "a class" else types.ModuleType("m")
        module.said = log  # type: ignore[attr-defined]

        def find(name: str) -> Any:
            log.append(name)
            if name == "no":
                raise AttributeError("none of it")
            if kind == "one that keeps":
                setattr(module, name, 7)
            return len(log)

        if kind != "a class":
            module.__getattr__ = functools.partial(find) if kind == "an object" else find  # type: ignore[method-assign]
        return lambda x: (x + 1, module.a, getattr(module, "b", 3), hasattr(module, "no"), module.a)

    both(make, *[(torch.ones(2),)] * 3)


def test_imports_ask_a_module_as_often_as_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(log: list[Any]) -> Callable[..., Any]:
        module = types.ModuleType("asked_for_names")

        def find(name: str) -> Any:
            log.append(name)
            if name in ("no", "__path__"):
                raise AttributeError(name)
            return len(log)

        module.__getattr__ = find  # type: ignore[method-assign]

        def fn(x: Any) -> Any:
            monkeypatch.setitem(sys.modules, "asked_for_names", module)
            from asked_for_names import one, two  # type: ignore[import-not-found]

            try:
                from asked_for_names import no
            except ImportError:
                no = None
            return x + 1, one, two, no

        return fn

    both(make, *[(torch.ones(2),)] * 3)


def test_a_class_that_is_abstract_no_more() -> None:
    class Abstract(abc.ABC):
        @abc.abstractmethod
        def f(self) -> Any: ...

    def fn(x: Any) -> Any:
        try:
            Abstract()  # type: ignore[abstract]
        except TypeError as e:
            return x, str(e)
        return x + 1, "made"

    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    for names in (None, frozenset({"g"}), frozenset()):
        if names is not None:
            Abstract.__abstractmethods__ = names
        assert str(compiled(torch.ones(2))) == str(fn(torch.ones(2)))


def test_the_signature_of_a_function_that_changes() -> None:
    def make(log: list[Any]) -> Callable[..., Any]:
        def asked(a: Any, /, b: Any, *, c: int = 1) -> Any:
            return a

        def change(k: int) -> None:
            if k == 1:
                asked.__kwdefaults__ = {"c": 9}
            elif k == 2:
                asked.__kwdefaults__["c"] = 10  # type: ignore[index]
            elif k == 3:
                asked.__defaults__ = (4,)
            elif k == 4:
                asked.__annotations__["b"] = str
            elif k == 5:
                asked.__wrapped__ = lambda q: q  # type: ignore[attr-defined]
            elif k == 6:
                del asked.__wrapped__  # type: ignore[attr-defined]
                asked.__code__ = (lambda a, z=1, *y: a).__code__

        def fn(x: Any, k: int) -> Any:
            if k > 10:
                change(k - 10)
            signature = inspect.signature(asked)
            return x + 1, str(signature), list(signature.parameters)

        def calls(x: Any, k: int) -> Any:
            if k < 10:
                change(k)
            return fn(x, k)

        return calls

    both(make, *[(torch.ones(2), k) for k in range(7)])
    both(make, *[(torch.ones(2), k) for k in range(11, 17)])


def test_a_signature_is_captured() -> None:
    def asked(a: Any, b: int = 2, *, c: Any = None) -> Any:
        return a

    def fn(x: Any) -> Any:
        return x + len(inspect.signature(asked).parameters)

    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    for default in (2, 3):
        asked.__defaults__ = (default,)
        assert [compiled(torch.ones(2)).tolist() for _ in range(2)] == [[4.0, 4.0]] * 2
    assert compiled.counters()["compiles"] == 2


def test_the_signature_of_a_decorated_function_is_captured() -> None:
    """The signature is the inner function's."""

    def inside(a: Any, b: int = 2) -> Any:
        return a

    @functools.wraps(inside)
    def around(*args: Any, **kwargs: Any) -> Any:
        return inside(*args, **kwargs)

    def fn(x: Any) -> Any:
        return x + len(inspect.signature(around).parameters)

    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    assert [compiled(torch.ones(2)).tolist() for _ in range(2)] == [[3.0, 3.0]] * 2
    around.__wrapped__ = lambda a: a  # type: ignore[attr-defined]
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    around.__signature__ = inspect.signature(lambda a, b, c: a)  # type: ignore[attr-defined]
    assert pycompiler.compile(fn, backend="eager")(torch.ones(2)).tolist() == [4.0, 4.0]
    assert compiled.counters()["compiles"] == 2


@pytest.mark.parametrize("instead", [None, 7, types.SimpleNamespace(v=5)])
def test_an_import_of_what_is_no_module(monkeypatch: pytest.MonkeyPatch, instead: Any) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        from imported_here import v

        return x * v

    module = types.ModuleType("imported_here")
    module.v = 2  # type: ignore[attr-defined]
    compiled = pycompiler.compile(fn, backend="eager")
    for value in (module, instead, module, instead):
        monkeypatch.setitem(sys.modules, "imported_here", value)
        assert_same_calls(compiled, fn, lambda: (torch.ones(1),), calls=1, exact=True)
    assert compiled.counters()["compiles"] >= 2 and compiled.counters()["hits"] >= 1
