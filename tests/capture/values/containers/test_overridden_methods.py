"""Subclasses of containers with overridden methods: the methods run where eager runs them, and the compiler calls none.

Every method logs its call, so a call from guards, generated code or capture would be noticed.
"""

from __future__ import annotations

import collections
import copy
from typing import Any

import pytest
import torch

import pycompiler

X = torch.arange(3.0)


LOG: list[str] = []


class Walked:
    """A mixin that overrides the element protocol of any container."""

    def __iter__(self: Any) -> Any:
        LOG.append("iter")
        return super().__iter__()  # type: ignore[misc]

    def __len__(self: Any) -> Any:
        LOG.append("len")
        return super().__len__()  # type: ignore[misc]


class Asked(Walked):
    def __contains__(self: Any, k: Any) -> Any:
        LOG.append("in")
        return super().__contains__(k)  # type: ignore[misc]


class Indexed(Walked):
    def __getitem__(self: Any, k: Any) -> Any:
        LOG.append("get")
        return super().__getitem__(k)  # type: ignore[misc]


class Keyed(Asked, Indexed):
    def keys(self: Any) -> Any:
        LOG.append("keys")
        return super().keys()  # type: ignore[misc]

    def items(self: Any) -> Any:
        LOG.append("items")
        return super().items()  # type: ignore[misc]


class Reversed:
    def __reversed__(self: Any) -> Any:
        LOG.append("rev")
        return super().__reversed__()  # type: ignore[misc]


class Mapping(Keyed, dict):  # type: ignore[type-arg]
    def __eq__(self: Any, o: Any) -> Any:
        LOG.append("eq")
        return super().__eq__(o)

    __hash__ = None


class Ordered(Keyed, Reversed, collections.OrderedDict):  # type: ignore[type-arg]
    pass


class Listed(Asked, Indexed, Reversed, list):  # type: ignore[type-arg]
    pass


class Members(Asked, set):  # type: ignore[type-arg]
    pass


class Fixed(Indexed, tuple):  # type: ignore[type-arg]
    pass


class Queue(Indexed, collections.deque):  # type: ignore[type-arg]
    pass


def base_of(o: Any) -> Any:
    return next(c for c in type(o).__mro__ if c.__module__ in ("builtins", "collections"))


def looped(o: Any, made: Any = iter) -> Any:
    seen = []
    for v in made(o):
        pycompiler.graph_break()
        seen.append(v)
    return seen


def begun(o: Any, made: Any = iter) -> Any:
    it = made(o)
    first = next(it)
    pycompiler.graph_break()
    return first, list(it)


def added(o: Any) -> Any:
    d: dict[Any, Any] = {}
    items: list[Any] = []
    members: set[Any] = set()
    if isinstance(o, dict):
        d.update(o)
    else:
        items.extend(o)
        items += o
        members.update(o)
        members |= {*o}
    return d, items, members


def unpacked(o: Any) -> Any:
    a, *b = o
    return a, b


def copied(o: Any) -> Any:
    made = base_of(o)(o)
    return len(made), type(copy.copy(o)).__name__


IS_DICT, IS_SET = (lambda o: isinstance(o, dict)), (lambda o: isinstance(o, set))
USES: dict[str, Any] = {
    "list": list,
    "comprehension": lambda o: [v for v in o],
    "loop": looped,
    "begun": begun,
    "begun by C": lambda o: begun(o, base_of(o).__iter__),
    "len": lambda o: (len(o), bool(o)),
    "in": lambda o: ("a" in o, 3 in o),
    "item": lambda o: o["a" if isinstance(o, dict) else 0] if not isinstance(o, set) else None,
    "copies": copied,
    "star": lambda o: ([*o], (lambda *a: a)(*o)),
    "keywords": lambda o: ((lambda **k: k)(**o), {**o}, list(o.items())) if isinstance(o, dict) else None,
    "equal": lambda o: (o == o, o == [], o != 3),
    "reversed": lambda o: list(reversed(o)) if not isinstance(o, set) else None,
    "loop backwards": lambda o: looped(o, reversed) if not isinstance(o, set) else None,
    "sorted": lambda o: (sorted(o, key=str), max(o, key=str)),
    "added": added,
    "unpacked": unpacked,
    "iterators": lambda o: (list(zip(o, o, strict=True)), list(enumerate(o)), list(map(str, o))),
    "text": lambda o: (repr(o), str(o), f"{o}"),
    "unused": lambda o: None,
}
MAKES = {
    "Mapping": lambda: Mapping(a=1, b=2), "Ordered": lambda: Ordered(a=1, b=2), "Listed": lambda: Listed([1, 2, 3]),
    "Members": lambda: Members([1, 2]), "Fixed": lambda: Fixed([1, 2, 3]), "Queue": lambda: Queue([1, 2, 3]),
}  # fmt: skip


def given(x: Any, o: Any, use: Any) -> Any:
    return x + 1, use(o)


def made_inside(x: Any, make: Any, use: Any) -> Any:
    return x + 1, use(make())


def seen(fn: Any, *args: Any) -> Any:
    LOG.clear()
    try:
        result = repr(fn(*args))
    except TypeError as e:
        result = repr(e)
    return result, list(LOG)


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("use", USES)
def test_methods_run_as_in_eager(use: str, make: str) -> None:
    for fn, args in (
        (given, lambda: (X, MAKES[make](), USES[use])),
        (made_inside, lambda: (X, MAKES[make], USES[use])),
    ):
        wanted = seen(fn, *args())
        compiled = pycompiler.compile(fn, backend="eager")
        for _ in range(2):
            assert seen(compiled, *args()) == wanted
        assert compiled.counters()["compiles"] == 1


class Storing(collections.OrderedDict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, ("stored", value))
        self.move_to_end(key, last=False)

    def __contains__(self, key: Any) -> bool:
        return key != "hidden" and super().__contains__(key)


def test_an_ordered_dict_sets_its_defaults_by_its_own_methods() -> None:
    def fn(x: Any) -> Any:
        o = Storing(a=1, hidden=2)
        return x + 1, o.setdefault("a", 5), o.setdefault("b"), o.setdefault("hidden", 7), list(o.items())

    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    assert compiled(X)[1:] == fn(X)[1:]
    assert compiled.counters()["eager_calls"] == 0


class Plain(dict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, ("stored", value))


class Defaults(collections.defaultdict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, ("stored", value))


class Tally(collections.Counter):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value * 10)


CONSTRUCTED = [
    lambda: Storing(a=1), lambda: Storing({"a": 1}), lambda: Storing([("a", 1)], b=2), lambda: Storing.fromkeys("ab", 1),
    lambda: Plain(a=1), lambda: Plain({"a": 1}), lambda: Plain.fromkeys("ab", 1), lambda: Plain({}, {}),
    lambda: Defaults(list, {"a": 1}), lambda: Defaults(list, a=3), lambda: Defaults({}), lambda: Defaults(None)["a"],
    lambda: Tally("aab"), lambda: Tally(a=2), lambda: Listed([], []), lambda: Members([1], [2]),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(CONSTRUCTED)))
def test_constructors(at: int) -> None:
    make = CONSTRUCTED[at]

    def fn(x: Any) -> Any:
        try:
            made: Any = make()
        except (TypeError, KeyError) as e:
            return x + 1, repr(e)
        return x + 1, list(made), made if isinstance(made, (list, set)) else list(made.items())

    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(2):
        assert compiled(X)[1:] == fn(X)[1:]
    assert compiled.counters()["eager_calls"] == 0
