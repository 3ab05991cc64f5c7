"""Soundness of guards: after the compile a value that the program read is changed, and the result must follow eager.

Each case is a function without arguments that builds a *scene*: (function, arguments, change).  The compiled function is
called, called again (a hit), then `change()` runs, and compiled and eager must agree again.
"""

from __future__ import annotations

import abc
import builtins
import collections
import dataclasses
import functools
import math
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture.harness import compile_recorded
from torch import nn

from pycompiler.ir.source import Scope, local, read
from tests.harness.compare import assert_same, assert_same_calls, observe

Scene = tuple[Callable[..., Any], tuple[Any, ...], Callable[[], Any]]
SCENES: list[Callable[[], Scene]] = []


def scene(fn: Callable[[], Scene]) -> Callable[[], Scene]:
    SCENES.append(fn)
    return fn


def X() -> torch.Tensor:
    return torch.arange(4.0)


class Keyed:
    """A key that decides itself which values it equals."""

    def __init__(self, k: Any) -> None:
        self.k = k
        self.fits = True

    def __hash__(self) -> int:
        return hash(self.k)

    def __eq__(self, other: object) -> bool:
        return self.fits and self.k == getattr(other, "k", other)


@pytest.mark.parametrize("make", SCENES, ids=lambda s: s.__name__)
def test_change_is_seen(make: Callable[[], Scene]) -> None:
    fn, args, change = make()
    compiled = compile_recorded(fn)
    _agree(fn, compiled.fn, args)
    captures = len(compiled.records)
    _agree(fn, compiled.fn, args)
    assert len(compiled.records) == captures, "the second call compiled again"
    before = observe(fn, args)
    change()
    after = observe(fn, args)
    with pytest.raises(AssertionError):  # the change of a scene must change the result
        assert_same((after.error, after.result), (before.error, before.result), exact=True)
    _agree(fn, compiled.fn, args)
    _agree(fn, compiled.fn, args)


def _agree(
    fn: Callable[..., Any], compiled: Callable[..., Any], args: tuple[Any, ...], hits: str | None = None
) -> None:
    assert_same_calls(compiled, fn, lambda: args, exact=True, hits=hits)


class Thing:
    level = 2
    table = {"a": 1}

    def __init__(self) -> None:
        self.k = 3
        self.items = [1, 2]
        self.inner: Any = None

    def scale(self) -> int:
        return self.k * self.level

    @property
    def doubled(self) -> int:
        return self.k * 2


def _class() -> type[Thing]:
    """A fresh class that a scene may modify."""
    return type("Thing", (Thing,), dict(Thing.__dict__))


# base classes --------------------------------------------------------------------------------------------------
def _derived() -> tuple[Any, Any, Any]:
    plain, base, other = (type(n, (), {}) for n in ("Plain", "Base", "Other"))
    return type("Derived", (plain, base), {}), base, (plain, other)


@scene
def bases_of_an_instance() -> Scene:
    derived, base, others = _derived()
    return lambda x, o: (x, isinstance(o, base)), (X(), derived()), lambda: setattr(derived, "__bases__", others)


@scene
def bases_of_a_class() -> Scene:
    derived, base, others = _derived()
    return lambda x, c: (x, issubclass(c, base)), (X(), derived), lambda: setattr(derived, "__bases__", others)


@scene
def bases_that_super_looks_in() -> Scene:
    class First:
        def value(self) -> int:
            return 1

    class Second:
        def value(self) -> int:
            return 10

    class Derived(First):
        def value(self) -> int:
            return super().value() + 1

    return lambda x, o: x + o.value(), (X(), Derived()), lambda: setattr(Derived, "__bases__", (Second,))


@scene
def bases_in_a_match() -> Scene:
    derived, base, others = _derived()

    def fn(x: Any, o: Any) -> Any:
        match o:
            case base():
                return x + 1
            case _:
                return x

    return fn, (X(), derived()), lambda: setattr(derived, "__bases__", others)


@scene
def bases_of_an_exception() -> Scene:
    class First(Exception):
        pass

    class Second(Exception):
        pass

    class Raised(First):
        pass

    def fn(x: Any) -> Any:
        try:
            raise Raised
        except First:
            return x + 1
        except Exception:
            return x

    return fn, (X(),), lambda: setattr(Raised, "__bases__", (Second,))


@scene
def registered_with_an_abstract_class() -> Scene:
    abstract = abc.ABCMeta("Abstract", (), {})
    t = Thing()
    return lambda x, t: (x, isinstance(t, abstract)), (X(), t), lambda: abstract.register(Thing)


@scene
def builtin_registered_with_an_abstract_class() -> Scene:
    abstract = abc.ABCMeta("Abstract", (), {})
    return lambda x, a: (x, isinstance(a, abstract)), (X(), [1]), lambda: abstract.register(list)


@scene
def instance_check_of_a_metaclass() -> Scene:
    class Meta(type):
        answer = True

        def __instancecheck__(cls, other: Any) -> bool:
            return Meta.answer

        def __subclasscheck__(cls, other: Any) -> bool:
            return not Meta.answer

    made = Meta("Made", (), {})
    fn = lambda x, t: (isinstance(t, made), issubclass(Thing, made), isinstance(x, made))  # noqa: E731
    return fn, (X(), Thing()), lambda: setattr(Meta, "answer", False)


# cached functions -------------------------------------------------------------------------------------------------
@scene
def cache_cleared() -> Scene:
    table = {"k": 3}

    @functools.lru_cache
    def kept(n: int) -> int:
        return n * table["k"]

    def change() -> None:
        table["k"] = 5
        kept.cache_clear()

    return lambda x: (x * kept(2), kept(2)), (X(),), change


@scene
def cached_list_changed() -> Scene:
    @functools.cache
    def kept(n: int) -> list[int]:
        return [n]

    return lambda x: (x * len(kept(2)), kept(2)), (X(),), lambda: kept(2).append(7)


def test_a_cached_result_outlives_what_it_was_made_of() -> None:
    table, calls = {"k": 3}, []

    @functools.lru_cache
    def kept(n: int) -> int:
        calls.append(n)
        return n * table["k"]

    compiled = compile_recorded(lambda x: x * kept(2))
    assert torch.equal(compiled.fn(X()), X() * 6)
    table["k"] = 5
    assert torch.equal(compiled.fn(X()), X() * 6)
    assert torch.equal(compiled.fn(X().double()), X().double() * 6)
    assert calls == [2]


def test_a_cached_list_is_shared_between_calls() -> None:
    @functools.cache
    def kept() -> list[int]:
        return []

    def fn(x: Any) -> Any:
        kept().append(1)
        return x + len(kept()), kept()

    compiled = compile_recorded(fn)
    first, second = compiled.fn(X()), compiled.fn(X())
    assert first[1] is second[1] is kept()
    assert kept() == [1, 1]
    assert torch.equal(second[0], X() + 2)


def test_a_cached_function_that_raises_is_called_each_time() -> None:
    calls = []

    @functools.cache
    def failing() -> None:
        calls.append(1)
        raise ValueError("no")

    def fn(x: Any) -> Any:
        try:
            failing()
        except ValueError:
            return x + 1

    compiled = compile_recorded(fn)
    for count in range(1, 4):
        assert torch.equal(compiled.fn(X()), X() + 1)
        assert len(calls) == count


def test_a_cached_function_with_effects_is_called_by_the_program_once() -> None:
    done: list[int] = []

    @functools.lru_cache(typed=True)
    def kept(n: float, *, m: int = 1) -> list[float]:
        done.append(len(done))
        return [n * m]

    def fn(x: Any) -> Any:
        done.append(-1)
        return x + kept(2)[0], kept(2, m=3), kept(2.0)

    compiled = compile_recorded(fn)
    first, second = compiled.fn(X()), compiled.fn(X())
    assert first[1] is second[1] is kept(2, m=3)
    assert first[2] is second[2] is kept(2.0)
    assert torch.equal(first[0], X() + 2)
    assert done == [-1, 1, 2, 3, -1]
    cached = compiled.fn(X())
    assert cached[2] is kept(2.0)
    assert kept.cache_info().misses == 3


def test_a_cached_function_that_draws_draws_where_the_program_calls_it() -> None:
    @functools.lru_cache
    def noise(n: int) -> Any:
        return torch.randn(n)

    def fn(x: Any) -> Any:
        first = torch.randn(4)
        return x + first, noise(2), torch.randn(2)

    def drawn(call: Any) -> list[Any]:
        noise.cache_clear()
        torch.manual_seed(0)
        return list(call(X()))

    eager, compiled = drawn(fn), compile_recorded(fn).fn
    for _ in range(2):
        assert all(map(torch.equal, drawn(compiled), eager))


def test_what_a_cached_function_keeps_is_asked_without_a_call() -> None:
    @functools.lru_cache(maxsize=2)
    def kept(n: int) -> int:
        return n + 1

    calls = []
    compiled = compile_recorded(lambda x: x * kept(2))
    for _ in range(2):
        assert torch.equal(compiled.fn(X()), X() * 3)
        calls.append(kept.cache_info().misses)
    assert calls == [1, 1]
    assert len(compiled.records) == 1


# attributes ---------------------------------------------------------------------------------------------------
@scene
def attribute_value() -> Scene:
    t = Thing()
    return lambda x, t: x * t.k, (X(), t), lambda: setattr(t, "k", 5)


@scene
def attribute_type() -> Scene:
    t = Thing()
    return lambda x, t: (x * t.k, t.k), (X(), t), lambda: setattr(t, "k", 3.0)


@scene
def attribute_int_to_bool() -> Scene:
    t = Thing()
    t.k = 1
    return lambda x, t: (x, t.k), (X(), t), lambda: setattr(t, "k", True)


@scene
def attribute_zero_sign() -> Scene:
    t = Thing()
    t.k = 0.0  # type: ignore[assignment]
    return lambda x, t: (x, math.copysign(1.0, t.k)), (X(), t), lambda: setattr(t, "k", -0.0)


@scene
def attribute_deleted() -> Scene:
    t = Thing()
    return lambda x, t: x + getattr(t, "k", 100), (X(), t), lambda: delattr(t, "k")


@scene
def attribute_appears() -> Scene:
    t = Thing()
    return lambda x, t: x + (t.extra if hasattr(t, "extra") else 1), (X(), t), lambda: setattr(t, "extra", 9)


@scene
def attribute_hides_class_attribute() -> Scene:
    t = Thing()
    return lambda x, t: x * t.level, (X(), t), lambda: setattr(t, "level", 7)


@scene
def attribute_hides_method() -> Scene:
    t = Thing()
    return lambda x, t: x * t.scale(), (X(), t), lambda: setattr(t, "scale", lambda: 50)


@scene
def attribute_is_other_tensor() -> Scene:
    t = Thing()
    t.inner = torch.ones(4)
    return lambda x, t: x * t.inner, (X(), t), lambda: setattr(t, "inner", torch.full((4,), 2.0))


@scene
def attribute_tensor_dtype() -> Scene:
    t = Thing()
    t.inner = torch.ones(4)
    return lambda x, t: x * t.inner, (X(), t), lambda: setattr(t, "inner", torch.ones(4, dtype=torch.float64))


@scene
def attribute_of_attribute() -> Scene:
    t = Thing()
    t.inner = Thing()
    return lambda x, t: x * t.inner.k, (X(), t), lambda: setattr(t.inner, "k", 8)


@scene
def attribute_object_replaced() -> Scene:
    t = Thing()
    t.inner = Thing()
    other = Thing()
    other.k = 30
    return lambda x, t: x * t.inner.scale(), (X(), t), lambda: setattr(t, "inner", other)


@scene
def attribute_class_replaced() -> Scene:
    t = Thing()
    other = type("Other", (Thing,), {"scale": lambda self: 1000})
    return lambda x, t: x * t.scale(), (X(), t), lambda: setattr(t, "__class__", other)


@scene
def instance_dict_read() -> Scene:
    t = Thing()
    return lambda x, t: (x + 1, list(t.__dict__), "new" in vars(t)), (X(), t), lambda: setattr(t, "new", 1)


@scene
def slot_value() -> Scene:
    class Slotted:
        __slots__ = ("v",)

    s = Slotted()
    s.v = 1
    return lambda x, s: x + s.v, (X(), s), lambda: setattr(s, "v", 2)


@scene
def cached_property_filled() -> Scene:
    class Cached:
        n = 2

        @functools.cached_property
        def value(self) -> int:
            return self.n * 3

    c = Cached()
    c.value  # noqa: B018
    return lambda x, c: x * c.value, (X(), c), lambda: c.__dict__.update(value=11)


# classes ------------------------------------------------------------------------------------------------------
@scene
def class_attribute() -> Scene:
    cls = _class()
    t = cls()
    return lambda x, t: x * t.level, (X(), t), lambda: setattr(cls, "level", 4)


@scene
def class_attribute_of_base() -> Scene:
    base = _class()
    t = type("Derived", (base,), {})()
    return lambda x, t: x * t.level, (X(), t), lambda: setattr(base, "level", 4)


@scene
def class_attribute_overridden_in_derived() -> Scene:
    base = _class()
    cls = type("Derived", (base,), {})
    t = cls()
    return lambda x, t: x * t.level, (X(), t), lambda: setattr(cls, "level", 40)


@scene
def class_method_replaced() -> Scene:
    cls = _class()
    t = cls()
    return lambda x, t: x * t.scale(), (X(), t), lambda: setattr(cls, "scale", lambda self: self.k + 100)


@scene
def class_property_replaced() -> Scene:
    cls = _class()
    t = cls()
    return lambda x, t: x * t.doubled, (X(), t), lambda: setattr(cls, "doubled", property(lambda self: 77))


@scene
def class_gets_special_method() -> Scene:
    cls = _class()
    t = cls()
    return lambda x, t: x + (1 if t else 2), (X(), t), lambda: setattr(cls, "__bool__", lambda self: False)


@scene
def class_gets_getattr() -> Scene:
    cls = _class()
    t = cls()
    return lambda x, t: x + getattr(t, "nothing", 1), (X(), t), lambda: setattr(cls, "__getattr__", lambda self, n: 6)


@scene
def class_container() -> Scene:
    cls = _class()
    cls.table = {"a": 1}
    t = cls()
    return lambda x, t: x * t.table["a"], (X(), t), lambda: cls.table.update(a=9)


@scene
def class_by_name() -> Scene:
    cls = _class()
    return lambda x: x * cls.level, (X(),), lambda: setattr(cls, "level", 12)


@scene
def class_init_replaced() -> Scene:
    cls = _class()

    def init(self: Any) -> None:
        self.k = 500

    return lambda x: x * cls().k, (X(),), lambda: setattr(cls, "__init__", init)


@scene
def class_gets_getattribute() -> Scene:
    cls = _class()
    t = cls()
    return lambda x, t: x + t.k, (X(), t), lambda: setattr(cls, "__getattribute__", lambda self, n: 6)


@scene
def class_gets_setattr() -> Scene:
    cls = _class()
    t = cls()

    def store(self: Any, name: str, value: Any) -> None:
        object.__setattr__(self, name, value + 1)

    def fn(x: Any, t: Any) -> Any:
        t.k = 3
        return x + t.k

    return fn, (X(), t), lambda: setattr(cls, "__setattr__", store)


@scene
def class_attribute_below_the_instance_becomes_a_property() -> Scene:
    cls = _class()
    t = cls()
    t.level = 30
    return lambda x, t: x * t.level, (X(), t), lambda: setattr(cls, "level", property(lambda self: 9))


@scene
def operator_inherited_from_object_is_defined() -> Scene:
    cls = _class()
    t = cls()
    return lambda x, t: (x + 1, t == 3), (X(), t), lambda: setattr(cls, "__eq__", lambda self, o: True)


@scene
def class_becomes_callable() -> Scene:
    cls = _class()
    t = cls()
    return lambda x, t: (x + 1, callable(t)), (X(), t), lambda: setattr(cls, "__call__", lambda self: 1)


@scene
def class_gets_new() -> Scene:
    cls, other = _class(), _class()
    other.level = 70
    return lambda x: x * cls().level, (X(),), lambda: setattr(cls, "__new__", staticmethod(lambda c: other()))


@scene
def metaclass_attribute() -> Scene:
    meta = type("Meta", (type,), {"factor": 2})
    cls = meta("C", (), {})
    return lambda x: x * cls.factor, (X(),), lambda: setattr(meta, "factor", 3)


@scene
def metaclass_gets_getattribute() -> Scene:
    meta = type("Meta", (type,), {})
    cls = meta("C", (), {"k": 1})
    return lambda x: x * cls.k, (X(),), lambda: setattr(meta, "__getattribute__", lambda c, n: 5)


@scene
def static_method_becomes_class_method() -> Scene:
    def plain(a: Any = 5) -> Any:
        return a if isinstance(a, int) else 7

    cls = type("C", (), {"m": staticmethod(plain)})
    t = cls()
    return lambda x, t: x + t.m(), (X(), t), lambda: setattr(cls, "m", classmethod(plain))


@scene
def function_becomes_a_method_of_it() -> Scene:
    def plain(a: Any, b: Any = 2) -> Any:
        return a * 10 + b

    t = Thing()
    t.inner = plain
    return lambda x, t: x + t.inner(1), (X(), t), lambda: setattr(t, "inner", types.MethodType(plain, 9))


@scene
def method_gets_other_globals() -> Scene:
    def make(namespace: dict[str, Any]) -> Any:
        return types.FunctionType((lambda self: K).__code__, namespace)  # type: ignore[name-defined]  # noqa: F821

    cls = type("C", (), {"m": make({"K": 1})})
    t = cls()
    return lambda x, t: x + t.m(), (X(), t), lambda: setattr(cls, "m", make({"K": 2}))


@scene
def empty_slot_is_filled() -> Scene:
    class Slotted:
        __slots__ = ("v",)

    s = Slotted()
    return lambda x, s: x + getattr(s, "v", 5), (X(), s), lambda: setattr(s, "v", 1)


@scene
def base_between_gets_the_method_of_super() -> Scene:
    root = type("Root", (), {"m": lambda self: 1})
    middle = type("Middle", (root,), {})

    class Derived(middle):  # type: ignore[misc, valid-type]
        def m(self) -> Any:
            return super().m()

    t = Derived()
    return lambda x, t: x + t.m(), (X(), t), lambda: setattr(middle, "m", lambda self: 2)


@scene
def class_is_renamed() -> Scene:
    cls = _class()
    t = cls()
    return lambda x, t: (x + 1, type(t).__name__), (X(), t), lambda: setattr(cls, "__name__", "Other")


@scene
def module_in_sys_modules_is_replaced() -> Scene:
    import sys

    name = "module_of_a_guard_test"
    first, second = types.ModuleType(name), types.ModuleType(name)
    first.k, second.k = 1, 2  # type: ignore[attr-defined]
    sys.modules[name] = first

    def fn(x: Any) -> Any:
        from module_of_a_guard_test import k  # type: ignore[import-not-found]

        return x + k

    return fn, (X(),), lambda: sys.modules.update({name: second})


@scene
def class_of_a_module() -> Scene:
    module = types.ModuleType("m")
    module.k = 1  # type: ignore[attr-defined]
    added: dict[str, Any] = {"k": property(lambda self: 50)}
    if sys.version_info >= (3, 14):  # specialised bytecode of 3.14 ignores a property of a module's class
        added = {"__getattribute__": lambda self, name: 50}
    special = type("Special", (types.ModuleType,), added)
    return lambda x: x + module.k, (X(),), lambda: setattr(module, "__class__", special)


@scene
def module_getattr_changes_its_answer() -> Scene:
    table = {"k": 1}
    module = types.ModuleType("m")
    module.__getattr__ = lambda n: table[n]  # type: ignore[method-assign]
    return lambda x: x + module.k, (X(),), lambda: table.update(k=2)


@scene
def weak_reference_and_another_object() -> Scene:
    t, a, b = Thing(), Thing(), Thing()
    t.inner, t.ref = a, weakref.ref(a)  # type: ignore[attr-defined]
    keep = [a, b]
    return lambda x, t: x + (1 if t.ref() is t.inner else 2), (X(), t), lambda: setattr(t, "inner", keep[1])


@scene
def weak_reference_to_another_object() -> Scene:
    keep = [Thing(), Thing()]
    keep[1].k = 2
    t = Thing()
    t.ref = weakref.ref(keep[0])  # type: ignore[attr-defined]
    return lambda x, t: x + t.ref().k, (X(), t), lambda: setattr(t, "ref", weakref.ref(keep[1]))


@scene
def weak_reference_to_what_is_gone() -> Scene:
    keep, t = [Thing()], Thing()
    t.ref = weakref.ref(keep[0])  # type: ignore[attr-defined]
    return lambda x, t: x + (1 if t.ref() is None else 2), (X(), t), keep.clear


@scene
def key_becomes_the_object_in_the_table() -> Scene:
    t, a, b = Thing(), Thing(), Thing()
    t.inner = b
    table = {a: 5}
    return lambda x, t: x + table.get(t.inner, 1), (X(), t), lambda: setattr(t, "inner", a)


@scene
def stored_key_does_not_equal_any_more() -> Scene:
    stored = Keyed(1)
    table = {stored: 5}
    return lambda x, k: x + table.get(k, 1), (X(), Keyed(1)), lambda: setattr(stored, "fits", False)


@scene
def two_stored_keys_become_equal() -> Scene:
    keys = [Keyed(1), Keyed(1)]
    keys[0].fits = False
    table = {key: i for i, key in enumerate(keys)}
    return lambda x, k: (x + table[k], len(table)), (X(), Keyed(1)), lambda: setattr(keys[0], "fits", True)


@scene
def stored_key_that_equals_a_text() -> Scene:
    stored = Keyed("k")
    stored.fits = False
    table: dict[Any, int] = {stored: 5}
    return lambda x: x + table.get("k", 1), (X(),), lambda: setattr(stored, "fits", True)


@scene
def name_in_an_earlier_table_of_a_module() -> Scene:
    m = nn.Module()
    m.register_buffer("l", torch.ones(4))
    return lambda x, m: x + m.l, (X(), m), lambda: m._parameters.update(l=nn.Parameter(torch.zeros(4)))


@scene
def submodule_behind_a_buffer() -> Scene:
    m = nn.Module()
    m.l = nn.Identity()
    return lambda x, m: (x + 1, m.l is None), (X(), m), lambda: m._buffers.update(l=None)


def _descriptor(**methods: Any) -> tuple[type, Any]:
    kind = type("Kind", (), {"__get__": lambda d, o, cls: 5, **methods})
    thing = type("Thing", (), {"k": kind()})()
    thing.__dict__["k"] = 7
    return kind, thing


@scene
def descriptor_loses_its_setter() -> Scene:
    kind, thing = _descriptor(__set__=lambda d, o, v: None)
    return lambda x, t: x + t.k, (X(), thing), lambda: delattr(kind, "__set__")


@scene
def descriptor_loses_its_deleter() -> Scene:
    kind, thing = _descriptor(__delete__=lambda d, o: None)
    return lambda x, t: x + t.k, (X(), thing), lambda: delattr(kind, "__delete__")


@scene
def descriptor_gets_a_setter() -> Scene:
    kind, thing = _descriptor()
    return lambda x, t: x + t.k, (X(), thing), lambda: setattr(kind, "__set__", lambda d, o, v: None)


@scene
def setter_of_a_metaclass_is_none() -> Scene:
    meta = type("Meta", (type,), {"__set__": lambda d, o, v: None})
    kind = meta("Kind", (), {"__get__": lambda d, o, cls: 5})
    thing = type("Thing", (), {"k": kind()})()
    thing.__dict__["k"] = 7
    return lambda x, t: x + t.k, (X(), thing), lambda: vars(thing).update(k=8)


@scene
def functions_of_one_code_become_the_same() -> Scene:
    def make() -> Any:
        return lambda: 1

    t, f, g = Thing(), make(), make()
    t.inner, t.items = f, g
    return lambda x, t: (x + 1, t.inner is t.items), (X(), t), lambda: setattr(t, "items", f)


@scene
def objects_that_are_equal_by_identity() -> Scene:
    t, a, b = Thing(), Thing(), Thing()
    t.inner = b
    return lambda x, t: (x + 1, t.inner == a), (X(), t), lambda: setattr(t, "inner", a)


@scene
def tensor_is_no_leaf_any_more() -> Scene:
    t = Thing()
    t.inner = torch.ones(4, requires_grad=True)
    return lambda x, t: (x + 1, t.inner.is_leaf), (X(), t), lambda: setattr(t, "inner", t.inner * 1)


@scene
def place_of_a_view_in_its_storage() -> Scene:
    t, base = Thing(), torch.arange(8.0)
    t.inner = base[:4]
    return lambda x, t: (x + 1, t.inner.storage_offset()), (X(), t), lambda: setattr(t, "inner", base[2:6])


@scene
def one_becomes_true_in_a_set() -> Scene:
    s: Any = {1, "a"}
    return lambda x, s: (x + 1, sorted(map(repr, s))), (X(), s), lambda: (s.clear(), s.update((True, "a")))


def test_reading_a_defaultdict_for_a_guard_adds_nothing() -> None:
    d: Any = collections.defaultdict(int, a=1)
    with pytest.raises(KeyError):
        read(local("d").dict_item("b"), Scope({"d": d}, {}))
    assert dict(d) == {"a": 1}


def test_list_subclass_with_length_and_iteration_of_its_own() -> None:
    class Rows(list):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 40

        def __iter__(self) -> Any:
            return iter([100])

    compiled = compile_recorded(lambda x, r: (x + 1, len(r), list(r), r[0]))
    rows = Rows([1, 2])
    for _ in range(2):
        _agree(lambda x, r: (x + 1, len(r), list(r), r[0]), compiled.fn, (X(), rows))
    assert len(compiled.records) == 1


@pytest.mark.parametrize("name", ["_call_impl", "__call__", "__getattr__", "__setattr__"])
def test_methods_of_nn_module_that_have_short_cuts(name: str) -> None:
    """The method is patched in place: by another function, or by other code in the same function."""

    class Leaf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2), requires_grad=False)
            self.n = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n = 5
            return x * self.w

    leaf, first = Leaf(), getattr(nn.Module, name)
    fn = lambda x: (leaf(x), leaf.n)
    compiled = compile_recorded(fn)
    _agree(fn, compiled.fn, (torch.ones(2),))

    def other(self: Any, *args: Any) -> Any:
        if not isinstance(self, Leaf):
            return first(self, *args)
        return torch.full((2,), 3.0) if len(args) == 1 else object.__setattr__(self, "n", 9)

    setattr(nn.Module, name, other)
    try:
        _agree(fn, compiled.fn, (torch.ones(2),))
    finally:
        setattr(nn.Module, name, first)
    _agree(fn, compiled.fn, (torch.ones(2),))


# globals, closures, defaults ----------------------------------------------------------------------------------


@scene
def global_value() -> Scene:
    namespace = {"K": 3}
    fn = types.FunctionType((lambda x: x * K).__code__, namespace)  # type: ignore[name-defined]  # noqa: F821
    return fn, (X(),), lambda: namespace.update(K=4)


@scene
def global_hides_builtin() -> Scene:
    namespace: dict[str, Any] = {"__builtins__": __builtins__}
    fn = types.FunctionType((lambda x: x * len([1, 2])).__code__, namespace)
    return fn, (X(),), lambda: namespace.update(len=lambda v: 10)


@scene
def global_deleted() -> Scene:
    namespace: dict[str, Any] = {"__builtins__": __builtins__, "len": lambda v: 10}
    fn = types.FunctionType((lambda x: x * len([1, 2])).__code__, namespace)
    return fn, (X(),), lambda: namespace.pop("len")


@scene
def global_function_replaced() -> Scene:
    namespace: dict[str, Any] = {"f": lambda v: v + 1}
    fn = types.FunctionType((lambda x: f(x)).__code__, namespace)  # type: ignore[name-defined]  # noqa: F821
    return fn, (X(),), lambda: namespace.update(f=lambda v: v + 2)


@scene
def global_of_callee() -> Scene:
    namespace = {"K": 3}
    callee = types.FunctionType((lambda x: x * K).__code__, namespace)  # type: ignore[name-defined]  # noqa: F821
    return lambda x: callee(x), (X(),), lambda: namespace.update(K=4)


@scene
def module_attribute() -> Scene:
    module = types.ModuleType("m")
    module.k = 1  # type: ignore[attr-defined]
    return lambda x: x + module.k, (X(),), lambda: setattr(module, "k", 2)


@scene
def namespace_object() -> Scene:
    space = types.SimpleNamespace(v=1)
    return lambda x: x + space.v, (X(),), lambda: setattr(space, "v", 2)


@scene
def closure_cell() -> Scene:
    k = 1

    def change() -> None:
        nonlocal k
        k = 2

    return lambda x: x + k, (X(),), change


@scene
def closure_of_callee() -> Scene:
    k = 1

    def inner(v: Any) -> Any:
        return v + k

    def change() -> None:
        nonlocal k
        k = 2

    return lambda x: inner(x), (X(),), change


@scene
def closure_emptied() -> Scene:
    k = 1

    def read(x: Any) -> Any:
        try:
            return x + k
        except NameError:
            return x - 1

    def change() -> None:
        nonlocal k
        del k

    return read, (X(),), change


@scene
def closure_other_function_same_code() -> Scene:
    def make(k: int) -> Callable[[Any], Any]:
        return lambda v: v * k

    t = Thing()
    t.inner = make(2)
    return lambda x, t: t.inner(x), (X(), t), lambda: setattr(t, "inner", make(3))


@scene
def default_of_callee() -> Scene:
    def inner(v: Any, k: int = 1) -> Any:
        return v + k

    return lambda x: inner(x), (X(),), lambda: setattr(inner, "__defaults__", (7,))


@scene
def keyword_default_of_callee() -> Scene:
    def inner(v: Any, *, k: int = 1) -> Any:
        return v + k

    return lambda x: inner(x), (X(),), lambda: inner.__kwdefaults__.update(k=7)


@scene
def default_removed() -> Scene:
    def inner(v: Any, k: int = 1) -> Any:
        return v + k

    return lambda x: inner(x), (X(),), lambda: setattr(inner, "__defaults__", None)


@scene
def default_of_function_itself() -> Scene:
    def fn(x: Any, k: int = 1) -> Any:
        return x + k

    return fn, (X(),), lambda: setattr(fn, "__defaults__", (7,))


@scene
def mutable_default() -> Scene:
    def inner(v: Any, seen: Any = [1]) -> Any:  # noqa: B006
        return v + len(seen)

    return lambda x: inner(x), (X(),), lambda: inner.__defaults__[0].append(2)


@scene
def code_of_callee() -> Scene:
    def inner(v: Any) -> Any:
        return v + 1

    return lambda x: inner(x), (X(),), lambda: setattr(inner, "__code__", (lambda v: v + 2).__code__)


@scene
def function_attribute() -> Scene:
    def inner(v: Any) -> Any:
        return v + inner.k  # type: ignore[attr-defined]

    inner.k = 1  # type: ignore[attr-defined]
    return lambda x: inner(x), (X(),), lambda: setattr(inner, "k", 2)


@scene
def partial_replaced() -> Scene:
    t = Thing()
    t.inner = functools.partial(torch.add, alpha=2)
    return lambda x, t: t.inner(x, x), (X(), t), lambda: setattr(t, "inner", functools.partial(torch.add, alpha=3))


@scene
def bound_method_receiver() -> Scene:
    t, a, b = Thing(), Thing(), Thing()
    b.k = 33
    t.inner = a.scale
    return lambda x, t: x * t.inner(), (X(), t), lambda: setattr(t, "inner", b.scale)


# containers ---------------------------------------------------------------------------------------------------
@scene
def list_length() -> Scene:
    a = [1, 2]
    return lambda x, a: x + len(a), (X(), a), lambda: a.append(3)


@scene
def list_item() -> Scene:
    a = [1, 2]
    return lambda x, a: x + a[1], (X(), a), lambda: a.__setitem__(1, 5)


@scene
def list_membership() -> Scene:
    a = [1, 2]
    return lambda x, a: x + (3 in a), (X(), a), lambda: a.__setitem__(0, 3)


@scene
def list_emptied() -> Scene:
    a = [1]
    return lambda x, a: x + (1 if a else 2), (X(), a), lambda: a.clear()


@scene
def list_becomes_aliased() -> Scene:
    t = Thing()
    t.inner, t.items = [1], [1]

    def fn(x: Any, t: Any) -> Any:
        return x + (1 if t.inner is t.items else 2)

    return fn, (X(), t), lambda: setattr(t, "inner", t.items)


@scene
def nested_list() -> Scene:
    a = [[1], [2]]
    return lambda x, a: x + a[1][0], (X(), a), lambda: a[1].__setitem__(0, 5)


@scene
def list_type() -> Scene:
    t = Thing()
    t.inner = [1, 2]
    return lambda x, t: (x, isinstance(t.inner, list)), (X(), t), lambda: setattr(t, "inner", (1, 2))


@scene
def tuple_replaced() -> Scene:
    t = Thing()
    t.inner = (1, 2)
    return lambda x, t: x + t.inner[0], (X(), t), lambda: setattr(t, "inner", (3, 2))


@scene
def dict_value() -> Scene:
    d = {"a": 1}
    return lambda x, d: x + d["a"], (X(), d), lambda: d.update(a=2)


@scene
def dict_key_appears() -> Scene:
    d = {"a": 1}
    return lambda x, d: x + d.get("b", 0), (X(), d), lambda: d.update(b=2)


@scene
def dict_key_disappears() -> Scene:
    d = {"a": 1, "b": 2}
    return lambda x, d: x + (1 if "b" in d else 2), (X(), d), lambda: d.pop("b")


@scene
def dict_order() -> Scene:
    d = {"a": 1, "b": 2}

    def change() -> None:
        d["a"] = d.pop("a")

    return lambda x, d: (x + 1, list(d)), (X(), d), change


@scene
def dict_length() -> Scene:
    d = {"a": 1}
    return lambda x, d: x + len(d), (X(), d), lambda: d.update(z=2)


@scene
def dict_iteration() -> Scene:
    d = {"a": 1}
    return lambda x, d: x + sum(d.values()), (X(), d), lambda: d.update(z=2)


@scene
def dict_truth() -> Scene:
    d: dict[str, int] = {}
    return lambda x, d: x + (1 if d else 2), (X(), d), lambda: d.update(z=2)


@scene
def dict_emptied() -> Scene:
    d = {"a": 1}
    return lambda x, d: x + (1 if d else 2), (X(), d), lambda: d.clear()


@scene
def dict_of_tensors() -> Scene:
    d = {"w": torch.ones(4)}
    return lambda x, d: x * d["w"], (X(), d), lambda: d.update(w=torch.ones(4, 1))


@scene
def set_member() -> Scene:
    s = {1, 2}
    return lambda x, s: x + (3 in s), (X(), s), lambda: s.add(3)


@scene
def deque_item() -> Scene:
    d = collections.deque([1, 2])
    return lambda x, d: x + d[0], (X(), d), lambda: d.rotate(1)


@scene
def defaultdict_key() -> Scene:
    d = collections.defaultdict(int, a=1)
    return lambda x, d: x + d.get("b", 5), (X(), d), lambda: d["b"]


@scene
def ordered_dict_order() -> Scene:
    d = collections.OrderedDict(a=1, b=2)
    return lambda x, d: (x, next(iter(d))), (X(), d), lambda: d.move_to_end("a")


@scene
def dataclass_field() -> Scene:
    @dataclasses.dataclass
    class D:
        a: int

    d = D(1)
    return lambda x, d: x + d.a, (X(), d), lambda: setattr(d, "a", 4)


@scene
def dict_subclass_item() -> Scene:
    class Config(dict):  # type: ignore[type-arg]
        pass

    c = Config(a=1)
    return lambda x, c: x + c["a"], (X(), c), lambda: c.update(a=5)


@scene
def list_subclass_length() -> Scene:
    class Rows(list):  # type: ignore[type-arg]
        pass

    r = Rows([1])
    return lambda x, r: x + len(r), (X(), r), lambda: r.append(5)


@scene
def list_changed_under_another_name() -> Scene:
    t = Thing()
    t.inner, t.items = [1, 2], [1, 2]

    def fn(x: Any, t: Any) -> Any:
        t.inner.append(3)
        value = x + len(t.items)
        t.inner.pop()
        return value

    return fn, (X(), t), lambda: setattr(t, "items", t.inner)


@scene
def object_changed_under_another_name() -> Scene:
    t = Thing()
    t.inner, t.items = Thing(), Thing()

    def fn(x: Any, t: Any) -> Any:
        t.inner.k = 50
        value = x + t.items.k
        t.inner.k = 3
        return value

    return fn, (X(), t), lambda: setattr(t, "items", t.inner)


# tensors and global state ---------------------------------------------------------------------------------------
@scene
def tensor_shape() -> Scene:
    t = Thing()
    t.inner = torch.ones(4)
    return lambda x, t: x.sum() * t.inner, (X(), t), lambda: setattr(t, "inner", torch.ones(5))


@scene
def tensor_strides() -> Scene:
    t = Thing()
    t.inner = torch.arange(4.0).reshape(2, 2)
    return lambda x, t: (x, t.inner.stride()), (X(), t), lambda: setattr(t, "inner", t.inner.t())


@scene
def tensor_requires_grad() -> Scene:
    w = torch.ones(4)
    return lambda x, w: (x * w, w.requires_grad), (X(), w), lambda: w.requires_grad_()


@scene
def tensor_becomes_parameter() -> Scene:
    t = Thing()
    t.inner = torch.ones(4)
    change = lambda: setattr(t, "inner", nn.Parameter(torch.ones(4)))  # noqa: E731
    return lambda x, t: (x + t.inner, isinstance(t.inner, nn.Parameter)), (X(), t), change


@scene
def tensor_becomes_none() -> Scene:
    t = Thing()
    t.inner = torch.ones(4)
    return lambda x, t: x if t.inner is None else x * 5, (X(), t), lambda: setattr(t, "inner", None)


@scene
def tensor_grad_appears() -> Scene:
    w = torch.ones(4, requires_grad=True)
    return lambda x, w: x * 5 if w.grad is None else x + w.grad, (X(), w), lambda: setattr(w, "grad", torch.ones(4))


@scene
def tensor_attribute() -> Scene:
    w = torch.ones(4)
    return lambda x, w: x + (1 if hasattr(w, "tag") else 2), (X(), w), lambda: setattr(w, "tag", 1)


@scene
def tensors_become_the_same() -> Scene:
    t = Thing()
    t.inner, t.items = torch.ones(4), torch.ones(4)

    def fn(x: Any, t: Any) -> Any:
        t.inner.add_(1)
        value = t.items + x
        t.inner.sub_(1)
        return value

    return fn, (X(), t), lambda: setattr(t, "items", t.inner)


def _module_with(text: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__builtins__": builtins}
    exec(text, namespace)
    return namespace


def test_a_dict_keeps_the_hash_that_a_key_had() -> None:
    stored = Keyed(1)
    table = {stored: 5}
    stored.k, probes = 2, (Keyed(1), Keyed(2))
    for fn in (
        lambda x, k: x + table.get(k, 1),
        lambda x, k: (x + 1, k in table),
        lambda x, k: x + len({**table, k: 1}),
    ):
        for probe in probes:
            _agree(fn, compile_recorded(fn).fn, (X(), probe))

    def store(x: Any, table: dict[Any, Any]) -> Any:
        table["z"] = 1
        return x + 1

    compile_recorded(store).fn(X(), table)
    assert Keyed(2) not in table


OTHER_BUILTINS = {**vars(builtins), "len": lambda x: 7}


def test_builtins_are_those_of_the_time_when_a_function_was_made() -> None:
    namespace = _module_with("def f(x):\n    return x + len(x)\ndef g(x):\n    return f(x) * len(x)")
    f, g = compile_recorded(namespace["f"]), compile_recorded(namespace["g"])
    _agree(namespace["f"], f.fn, (X(),))
    namespace["__builtins__"] = OTHER_BUILTINS
    eager = "a frame whose builtins are not those of its globals runs eagerly"
    _agree(namespace["f"], f.fn, (X(),))
    _agree(namespace["g"], g.fn, (X(),), eager)
    for fn in (namespace["f"], namespace["g"]):
        _agree(fn, compile_recorded(fn).fn, (X(),), eager)
    later = types.FunctionType(namespace["f"].__code__, namespace)
    assert later(X())[0] == 7
    _agree(later, compile_recorded(later).fn, (X(),))


def test_functions_made_in_a_frame_get_the_builtins_of_now() -> None:
    namespace = _module_with("def f(x):\n    def g(y):\n        return y + len(y)\n    return g(x)")
    fn = namespace["f"]
    compiled = compile_recorded(fn).fn
    _agree(fn, compiled, (X(),))
    namespace["__builtins__"] = OTHER_BUILTINS
    assert fn(X())[0] == 7
    _agree(fn, compiled, (X(),))


def test_grad_mode_is_guarded() -> None:
    w = torch.ones(4, requires_grad=True)
    compiled = compile_recorded(lambda x: (x * w, torch.is_grad_enabled()))
    assert compiled.fn(X())[0].requires_grad
    with torch.no_grad():
        value, enabled = compiled.fn(X())
    assert not value.requires_grad
    assert enabled is False


def test_inference_mode_is_guarded() -> None:
    compiled = compile_recorded(lambda x: (x * 2, torch.is_inference_mode_enabled()))
    assert compiled.fn(X())[1] is False
    with torch.inference_mode():
        value, enabled = compiled.fn(X())
    assert enabled is True
    assert value.is_inference()


def test_default_dtype_is_guarded() -> None:
    compiled = compile_recorded(lambda x: x + torch.ones(4))
    assert compiled.fn(X()).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert compiled.fn(X()).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_autocast_is_guarded() -> None:
    compiled = compile_recorded(lambda x: x @ x)
    square = torch.ones(2, 2)
    assert compiled.fn(square).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled.fn(square).dtype == torch.bfloat16
    assert compiled.fn(square).dtype == torch.float32


# modules ------------------------------------------------------------------------------------------------------
class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.layers = nn.ModuleList([nn.Linear(4, 4)])
        self.register_buffer("scale", torch.ones(4))
        self.act: Any = nn.ReLU()

    def forward(self, x: torch.Tensor) -> Any:
        x = self.drop(self.act(self.fc(x))) * self.scale
        for layer in self.layers:
            x = layer(x)
        return x if self.training else x + 100


def _net(change: Callable[[Net], Any]) -> Scene:
    torch.manual_seed(0)
    net = Net().eval()
    return lambda net, x: net(x), (net, torch.ones(2, 4)), lambda: change(net)


MODULE_CHANGES: dict[str, Callable[[Net], Any]] = {
    "train": lambda n: n.train(),
    "train_submodule": lambda n: n.drop.train(),
    "dropout_probability": lambda n: (n.drop.train(), setattr(n.drop, "p", 0.9)),
    "weight_replaced": lambda n: setattr(n.fc, "weight", nn.Parameter(torch.zeros(4, 4))),
    "weight_changed_in_place": lambda n: n.fc.weight.data.zero_(),
    "weight_tied": lambda n: setattr(n.fc, "weight", n.layers[0].weight),
    "bias_removed": lambda n: setattr(n.fc, "bias", None),
    "buffer_replaced": lambda n: setattr(n, "scale", torch.zeros(4)),
    "buffer_changed_in_place": lambda n: n.scale.zero_(),
    "submodule_replaced": lambda n: setattr(n, "act", nn.Tanh()),
    "submodule_other_shape": lambda n: setattr(n, "fc", nn.Linear(4, 4, bias=False)),
    "list_grows": lambda n: n.layers.append(nn.Linear(4, 4)),
    "list_item_replaced": lambda n: n.layers.__setitem__(0, nn.Identity()),
    "forward_hook": lambda n: n.fc.register_forward_hook(lambda m, a, out: out + 1),
    "forward_pre_hook": lambda n: n.fc.register_forward_pre_hook(lambda m, a: (a[0] * 2,)),
    "hook_of_the_root": lambda n: n.register_forward_hook(lambda m, a, out: out + 1),
    "forward_replaced": lambda n: setattr(n.fc, "forward", lambda x: x * 3),
    "requires_grad": lambda n: n.requires_grad_(False),
    "dtype": lambda n: (n.double(), setattr(n, "fc", nn.Linear(4, 4)), setattr(n, "layers", nn.ModuleList())),
    "class_forward_patched": lambda n: setattr(
        n.act, "__class__", type("Patched", (nn.ReLU,), {"forward": lambda self, x: x * 9})
    ),
}


for _name, _change in MODULE_CHANGES.items():

    def _make(change: Callable[[Net], Any] = _change) -> Scene:
        return _net(change)

    _make.__name__ = f"module_{_name}"
    scene(_make)


def test_hook_removed() -> None:
    net = Net().eval()
    handle = net.fc.register_forward_hook(lambda m, a, out: out + 1)
    compiled = compile_recorded(lambda x: net(x))
    x = torch.ones(2, 4)
    assert torch.equal(compiled.fn(x), net(x))
    handle.remove()
    assert torch.equal(compiled.fn(x), net(x))


def test_global_module_hook() -> None:
    net = Net().eval()
    compiled = compile_recorded(lambda x: net(x))
    x = torch.ones(2, 4)
    assert torch.equal(compiled.fn(x), net(x))
    handle = nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 2)
    try:
        assert torch.equal(compiled.fn(x), net(x))
    finally:
        handle.remove()
    assert torch.equal(compiled.fn(x), net(x))


def test_arguments_of_other_types_compile_again() -> None:
    compiled = compile_recorded(lambda x, k: x * k)
    for k in (2, 2.0, True, torch.tensor(2), torch.tensor(2.0), 3, -2.5):
        expected = X() * k
        got = compiled.fn(X(), k)
        assert_same(got, expected, exact=True, what=f"k={k!r}")


def test_argument_forms_share_an_entry() -> None:
    compiled = compile_recorded(lambda x, k=2, *rest, **named: x * k + len(rest) + len(named))
    for call in (lambda f: f(X()), lambda f: f(X(), 2), lambda f: f(x=X()), lambda f: f(X(), k=2)):
        assert torch.equal(call(compiled.fn), X() * 2)
    assert len(compiled.records) == 1
    assert torch.equal(compiled.fn(X(), 2, 7), X() * 2 + 1)
    assert torch.equal(compiled.fn(X(), z=7), X() * 2 + 1)


def test_a_subclass_of_parameter_that_takes_part_later() -> None:
    class Quiet(torch.nn.Parameter):
        pass

    compiled, w = compile_recorded(lambda w: w + 1).fn, Quiet(torch.ones(2))
    assert compiled(w).tolist() == [2.0, 2.0]
    Quiet.__add__ = lambda self, other: "added"  # type: ignore[assignment, method-assign]
    assert compiled(w) == "added"


def test_a_write_may_let_go_of_what_a_weak_reference_refers_to() -> None:
    def fn(x: torch.Tensor, t: Thing) -> torch.Tensor:
        t.inner = None
        return x + (1 if t.ref() is None else 2)  # type: ignore[attr-defined]

    for made in (X, Thing, lambda: torch.nn.Linear(2, 2)):
        results = []
        for run in (fn, compile_recorded(fn).fn):
            t = Thing()
            t.inner = made()
            t.ref = weakref.ref(t.inner)  # type: ignore[attr-defined]
            results.append(run(X(), t))
        assert torch.equal(*results)
        assert torch.equal(results[0], X() + 1)
