"""Library features in C or with weak references, inlined or computed by capture: namespaces, dispatch by type, `re`."""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import operator
import re
import sys
import types
import weakref
from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import config

X = torch.linspace(-1, 1, 4)


@pytest.fixture(autouse=True)
def raise_internal_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "raise_internal_errors", True)


def whole(fn: Callable[..., Any], *args: Any) -> None:
    """Compare one graph with eager, twice."""
    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    for _ in range(2):
        assert str(compiled(*copy.deepcopy(args))) == str(fn(*copy.deepcopy(args)))
    assert compiled.counters()["compiles"] == 1


HASH = hash if sys.version_info < (3, 14) else len  # its error names the use in 3.14


# namespaces ---------------------------------------------------------------------------------------------------
class Settings(types.SimpleNamespace):
    def area(self) -> int:
        return int(self.width * self.height)


def test_namespaces_that_the_frame_makes() -> None:
    def program(x: torch.Tensor) -> Any:
        made = types.SimpleNamespace(a=1, b=x)
        made.c = made.b * 2
        del made.a
        same, other = types.SimpleNamespace(k=1, l=[2]), types.SimpleNamespace(k=1, l=[2])
        log = [same == other, same != other, same == 3, same is other, repr(same), str(types.SimpleNamespace(n=same))]
        for wrong in (lambda: HASH(same), lambda: same.zz, lambda: types.SimpleNamespace(1, 2)):
            try:
                wrong()
            except (TypeError, AttributeError) as e:
                log.append(str(e))
        copied, deep = copy.copy(same), copy.deepcopy(same)
        deep.l.append(3)
        return made.c, vars(made), hasattr(made, "a"), getattr(made, "q", 5), made, log, copied, deep, same

    whole(program, X)


def test_classes_of_namespaces() -> None:
    def program(x: torch.Tensor) -> Any:
        made = Settings(width=2, height=3)
        made.name = "s"
        plain = types.SimpleNamespace(width=2, height=3, name="s")
        return x * made.area(), repr(made), made == plain, isinstance(made, types.SimpleNamespace), made

    whole(program, X)


def test_namespaces_of_the_program() -> None:
    def program(x: torch.Tensor, cfg: types.SimpleNamespace) -> Any:
        cfg.t = cfg.t * cfg.k
        cfg.sub.seen = True
        cfg.new = x + cfg.t
        for value in vars(cfg).values():
            x = x + value if isinstance(value, torch.Tensor) else x
        return x, cfg, sorted(cfg.__dict__), "k" in vars(cfg)

    whole(program, X, types.SimpleNamespace(k=2, t=torch.ones(4), sub=types.SimpleNamespace(j=1)))


def test_changes_of_a_namespace_are_seen() -> None:
    cfg = types.SimpleNamespace(k=2, sub=types.SimpleNamespace(j=1))

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * cfg.k + cfg.sub.j + getattr(cfg, "more", 0)

    compiled = pycompiler.compile(program, backend="eager")
    for change in (lambda: 0, lambda: setattr(cfg, "k", 5), lambda: setattr(cfg, "sub", types.SimpleNamespace(j=7)),
                   lambda: setattr(cfg.sub, "j", -1), lambda: setattr(cfg, "more", 3), lambda: delattr(cfg, "more")):  # fmt: skip
        change()
        assert torch.equal(compiled(X), program(X))


# dispatch by type ---------------------------------------------------------------------------------------------
class Base:
    pass


class Derived(Base):
    pass


@functools.singledispatch
def apply(value: Any, x: torch.Tensor) -> torch.Tensor:
    return x + 1


apply.register(int, lambda value, x: x + value)
apply.register(list, lambda value, x: x * len(value))
apply.register(Sequence, lambda value, x: x - len(value))
of_base = apply.register(Base, lambda value, x: x * 7)
apply.register(float | complex, lambda value, x: x * 9)


def test_a_function_for_each_type() -> None:
    def program(x: torch.Tensor) -> Any:
        values: list[Any] = [3, [1, 2], "text", True, Derived(), (1,), None, 2.0, x]
        return [apply(v, x) for v in values], apply.dispatch(Derived) is of_base

    whole(program, X)


def test_what_is_registered_later_counts() -> None:
    @functools.singledispatch
    def show(value: Any) -> int:
        return 1

    def program(x: torch.Tensor, value: Any) -> torch.Tensor:
        return x * show(value)

    class Marked(ABC):  # noqa: B024
        pass

    compiled = pycompiler.compile(program, backend="eager")
    values: list[Any] = ["text", Derived(), frozenset()]
    for register in (lambda: 0, lambda: show.register(str, lambda v: 2), lambda: show.register(Base, lambda v: 3),
                     lambda: show.register(Derived, lambda v: 4), lambda: (Marked.register(frozenset), show.register(Marked, lambda v: 5))):  # fmt: skip
        register()
        for value in values:
            assert torch.equal(compiled(X, value), program(X, value))


def test_values_that_are_held_weakly() -> None:
    class Thing:
        def __init__(self, k: int) -> None:
            self.k = k

    known: weakref.WeakValueDictionary[str, Thing] = weakref.WeakValueDictionary()

    def program(x: torch.Tensor) -> Any:
        found = known.get("a")
        return x if found is None else x * known["a"].k, "b" in known

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    thing: Thing | None = None
    for k in (None, 2, 3, None, 4):
        thing = None if k is None else Thing(k)
        if thing is not None:
            known["a"] = thing
        assert str(compiled(X)) == str(program(X))


# functions of functions ---------------------------------------------------------------------------------------
class Steps:
    def _add(self, k: int, t: torch.Tensor, *, s: int = 0) -> torch.Tensor:
        return t + k + s

    up = functools.partialmethod(_add, 1)
    down = functools.partialmethod(_add, -1, s=3)

    @classmethod
    def named(cls, a: int, b: int) -> Any:
        return cls.__name__, a, b

    first = functools.partialmethod(named, 1)
    fixed = functools.partialmethod(staticmethod(lambda *a: a), 4)


def test_partial_methods() -> None:
    def program(x: torch.Tensor) -> Any:
        steps = Steps()
        up = steps.up
        known = type(up).__name__, up.__self__ is steps
        return up(x, s=4), steps.down(x), steps.first(2), steps.fixed(), Steps.up(steps, x), known

    whole(program, X)


def test_attributes_of_partials() -> None:
    def program(x: torch.Tensor, given: Any) -> Any:
        made = functools.partial(pow, 2)
        made.note = [1]  # type: ignore[attr-defined]
        made.__doc__ = "made"
        outer = functools.partial(made, 3)
        told = made.note, made.__doc__, hasattr(made, "zz"), outer.func is made, outer()  # type: ignore[attr-defined]
        return x + 1, told, given.__doc__, given.note, made

    given = functools.partial(max, 1)
    given.note, given.__doc__ = "n", "given"  # type: ignore[attr-defined]
    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for change in ("given", "other", None):
        given.__doc__ = change
        found, expected = compiled(X, given), program(X, given)
        assert str(found) == str(expected)
        assert vars(found[-1]) == vars(expected[-1])


KEY, ENDS = operator.attrgetter("a.b"), operator.itemgetter(1, -1)


def test_getters_that_exist() -> None:
    def program(x: torch.Tensor) -> Any:
        made = [types.SimpleNamespace(a=types.SimpleNamespace(b=b)) for b in (3, 1)]
        return x + KEY(made[0]), ENDS([1, 2, 3]), sorted(made, key=KEY)[0].a.b, KEY is KEY, type(KEY).__name__, KEY

    whole(program, X)


def test_texts_of_containers() -> None:
    known = collections.deque([1, 2], 4)

    def program(x: torch.Tensor) -> Any:
        counts: collections.defaultdict[str, int] = collections.defaultdict(int, a=1)
        ordered = collections.OrderedDict(a=[1], b=2)
        shown: list[Any] = [
            counts,
            ordered,
            collections.OrderedDict(),
            collections.deque([1, "b"]),
            known,
            {"c": counts},
        ]
        shown += [
            counts.keys(),
            ordered.items(),
            {}.values(),
            types.MappingProxyType({"k": 1}),
            collections.Counter("aab"),
        ]
        return x + 1, [repr(v) for v in shown], f"{ordered!r:>40}", str(shown[3])

    whole(program, X)


# patterns -----------------------------------------------------------------------------------------------------
WORDS = re.compile(r"([a-z]+)=(\d+)")


def test_matches_one_after_the_other() -> None:
    def program(x: torch.Tensor) -> Any:
        found = {m[1]: int(m[2]) for m in WORDS.finditer("aa=1 bb=22")}
        spans = [m.span() for m in re.finditer("b*", "abab")]
        return x * sum(found.values()), found, spans, next(re.finditer("q", "a"), None)

    whole(program, X)


def test_replacements_by_a_function() -> None:
    def program(x: torch.Tensor) -> Any:
        seen: list[str] = []

        def upper(m: re.Match[str]) -> str:
            seen.append(m.group())
            return m.group().upper()

        log: list[Any] = [re.sub("[ab]", upper, "abcab", count=3), re.subn("x*", lambda m: "-", "abxd"), seen]
        log += [WORDS.sub(lambda m: m[2], "aa=1"), WORDS.sub(r"\2", "aa=1"), re.sub(b"a", lambda m: b"b", b"aca")]
        for wrong in (lambda m: 3, lambda m: b"x", lambda m: 1 / 0, None):
            try:
                log.append(re.sub("a", wrong, "bab"))
            except (TypeError, ZeroDivisionError) as e:
                log.append(str(e))
        return x + 1, log

    whole(program, X)


# ends of iterators --------------------------------------------------------------------------------------------
class Three:
    """An iterator whose StopIteration has a value."""

    def __init__(self) -> None:
        self.n = 0

    def __iter__(self) -> Three:
        return self

    def __next__(self) -> int:
        self.n += 1
        if self.n > 3:
            raise StopIteration("end", self.n)
        return self.n


def returning() -> Iterator[int]:
    yield 1
    return 7  # noqa: B901


def test_an_end_says_what_ended_it() -> None:
    def program(x: torch.Tensor) -> Any:
        log = []
        it = itertools
        made: list[Iterator[Any]] = [
            map(abs, Three()), zip(Three(), strict=False), zip(Three(), strict=True), enumerate(Three()), filter(None, Three()),
            it.islice(Three(), 9), it.islice(Three(), 1), it.accumulate(Three()), it.takewhile(bool, Three()),
            it.takewhile(lambda v: v < 2, Three()), it.dropwhile(bool, Three()), it.chain(Three()), it.pairwise(Three()),
            it.zip_longest(Three()), it.starmap(max, zip(Three(), Three(), strict=False)), it.compress(Three(), Three()),
            iter(Three().__next__, 9), map(abs, returning()), it.chain(returning()), map(abs, [1]), reversed([1]),
        ]  # fmt: skip
        for each in made:
            try:
                while True:
                    next(each)
            except StopIteration as e:
                log.append((type(each).__name__, e.args, e.value))

        def given() -> Iterator[Any]:
            log.append((yield from map(abs, returning())))
            log.append((yield from map(abs, Three())))

        return x + sum(given()), log, next(map(abs, returning().__class__ and []), "none")

    whole(program, X)


SHADOWED = torch.ones(2)


def test_a_method_that_an_attribute_of_a_tensor_hides() -> None:
    def program(x: torch.Tensor) -> Any:
        SHADOWED.size = None  # type: ignore[assignment]
        return x + 1, SHADOWED.size

    compiled = pycompiler.compile(program, backend="eager")
    try:
        for _ in range(3):
            assert str(compiled(X)) == str(program(X))
    finally:
        del SHADOWED.size
    assert pycompiler.explain(lambda x: x + SHADOWED)(X[:2]).graph_break_count == 0


def test_sizes_of_flat_parameters() -> None:
    from torch.distributed.fsdp import _flat_param

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (x + 1 if _flat_param._same_storage_size(x, 4) else x - 1), _flat_param._same_storage_size(y, 4)  # type: ignore[attr-defined]

    compiled = pycompiler.compile(fn, fullgraph=True)
    for n in (4, 5, 4):
        got, want = compiled(torch.ones(n), torch.ones(4)), fn(torch.ones(n), torch.ones(4))
        assert torch.equal(got[0], want[0]) and got[1] == want[1]
