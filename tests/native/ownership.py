"""Program under test: guards run code of the user's objects, and that code frees every object that the check reads.

`test_ownership.py` runs it under Python's debug allocator, which overwrites freed memory, so that a use after free
fails. `python ownership.py` prints one line per scene.
"""

from __future__ import annotations

import collections
import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pycompiler import _native
from pycompiler.ir.guards import Guard
from pycompiler.ir.source import Source, local

act: Callable[[], None] = lambda: None  # noqa: E731  what the user's code does when it is asked


class Asked:
    """Every query runs `act`. Has the hash of `like`, and equals no object."""

    def __init__(self, like: Any = None) -> None:
        self.__dict__["like"] = like

    def __hash__(self) -> int:
        return hash(self.like)

    def __eq__(self, other: object) -> bool:
        act()
        return False

    def __getattr__(self, name: str) -> Any:
        act()
        return 1

    def __bool__(self) -> bool:
        act()
        return True

    def __len__(self) -> int:
        act()
        return 2

    def __getitem__(self, i: int) -> Any:
        act()
        return Plain()

    def __iter__(self) -> Iterator[Any]:
        act()
        return iter(("a", "b"))

    def __contains__(self, item: object) -> bool:
        act()
        return True


class Same(Asked):
    def __eq__(self, other: object) -> bool:
        act()
        return True

    __hash__ = Asked.__hash__


class Ordered(collections.OrderedDict[Any, Any]):
    def __iter__(self) -> Iterator[Any]:
        act()
        return super().__iter__()


class Plain:
    def __init__(self) -> None:
        self.items = [1.5, "text", (2, 3)]


@dataclass
class Scene:
    """`guards` on `source` read `value`; `holds`: whether they hold if `act` does nothing."""

    value: Callable[[], Any]
    guards: Callable[[Source], list[Guard]]
    holds: bool = True


def with_key(like: str, **items: Any) -> dict[Any, Any]:
    """A dict in which a lookup of `like` first compares with another key."""
    return {Asked(like): 0, **items}


def with_vars(like: str) -> Any:
    made = Plain()
    made.__dict__ = with_key(like, other=1)
    return made


def with_class(like: str, **items: Any) -> Any:
    return type("Odd", (), with_key(like, **items))


SCENES = {
    "dict_item": Scene(lambda: with_key("a", a=Plain()), lambda s: [Guard("type_is", s.dict_item("a"), Plain)]),
    "dict_item of another key": Scene(lambda: {Same(7): Plain()}, lambda s: [Guard("type_is", s.dict_item(7), Plain)]),
    "dict_contains": Scene(lambda: with_key("a", a=1), lambda s: [Guard("dict_contains", s, "a")]),
    "dict_absent": Scene(lambda: with_key("a"), lambda s: [Guard("dict_absent", s, "a")]),
    "instance_absent": Scene(lambda: with_vars("a"), lambda s: [Guard("instance_absent", s, "a")]),
    "instance dict": Scene(
        lambda: with_vars("other"), lambda s: [Guard("type_is", s.then("instance_dict").dict_item("other"), int)]
    ),
    "class_absent": Scene(lambda: with_class("a"), lambda s: [Guard("class_absent", s, "a")]),
    "mro_lookup": Scene(
        lambda: with_class("a", a=Plain()), lambda s: [Guard("type_is", s.then("mro_lookup", "a"), Plain)]
    ),
    "attr": Scene(Asked, lambda s: [Guard("type_is", s.then("attr", "a"), int)]),
    "grad": Scene(Asked, lambda s: [Guard("equals", s.then("grad"), 1)]),
    "item": Scene(Asked, lambda s: [Guard("type_is", s.then("item", 0), Plain)]),
    "dict_key_at": Scene(lambda: Ordered(a=1), lambda s: [Guard("equals", s.then("dict_key_at", 0), "a")]),
    "dict_value_at": Scene(lambda: {Same(7): Plain()}, lambda s: [Guard("type_is", s.then("dict_value_at", 0), Plain)]),
    "length": Scene(Asked, lambda s: [Guard("length", s, 2)]),
    "truth": Scene(Asked, lambda s: [Guard("truth", s, True)]),
    "set_equals": Scene(Asked, lambda s: [Guard("set_equals", s, frozenset("ab"))]),
    "set_equals of numbers": Scene(Asked, lambda s: [Guard("set_equals", s, frozenset((1, 2)))], holds=False),
    "dict_keys": Scene(lambda: Ordered(a=1), lambda s: [Guard("dict_keys", s, ("a",))]),
    "dict_keys of objects": Scene(lambda: {Same(1): 2}, lambda s: [Guard("dict_keys", s, (Same(1),))]),
    "equals": Scene(Same, lambda s: [Guard("equals", s, Same())]),
    "equals in a list": Scene(lambda: [Same()], lambda s: [Guard("equals", s, [Same()])]),
    "method_self": Scene(Asked, lambda s: [Guard("equals", s.then("method_self"), 1)]),
}

ATTRIBUTES = local("x").then("instance_dict")
VICTIM = ATTRIBUTES.dict_item("before")
LATER = ATTRIBUTES.dict_item("later")


def around(scene: Scene) -> list[Guard]:
    """The scene's guards between others, which read values of the same containers."""

    def look(source: Source) -> list[Guard]:
        items = source.then("instance_dict").dict_item("items")
        return [
            Guard("type_is", source, Plain),
            Guard("length", items, 3),
            Guard("equals", items.then("item", 1), "text"),
            Guard("equals", items.then("item", 2), (2, 3)),
        ]

    apart = Guard("no_alias", VICTIM, None, (LATER, ATTRIBUTES.dict_item("value")))
    return [*look(VICTIM), *scene.guards(ATTRIBUTES.dict_item("value")), *look(LATER), apart]


def box_of(scene: Scene) -> Any:
    box = Plain()
    box.before, box.value, box.later = Plain(), scene.value(), Plain()  # type: ignore[attr-defined]
    return box


def drop(box: Any) -> None:
    """Free every object reachable from the box, and reuse its memory."""
    for part in list(vars(box).values()):
        if isinstance(part, Plain):
            part.items.clear()
        if isinstance(part, (dict, list)):
            part.clear()
    vars(box).clear()
    gc.collect()
    for _ in range(20):
        Plain()


def check_tree(scene: Scene, warm: int) -> None:
    """Check the tree alone; after `warm` calls it may be recorded, and takes the fast path."""
    global act
    box = box_of(scene)
    tree = _native.GuardTree(around(scene), ["x"])
    for _ in range(warm):
        assert (tree.check({"x": box}, {}) is None) == scene.holds, "nothing happened"
    act = lambda: drop(box)  # noqa: E731
    tree.check({"x": box}, {})
    act = lambda: None  # noqa: E731
    tree.check({"x": box}, {})


def check_call(scene: Scene, warm: int, what: str) -> None:
    """Call with a default argument while `what` happens to the entries; the inputs come out unchanged."""
    global act

    def fn(x: Any = box_of(scene)) -> Any:  # noqa: B008
        return (x, None, None)

    def compile(compiled: Any, locals_: dict[str, Any], reasons: Any) -> Any:
        inputs = [local("x"), VICTIM, LATER]
        graph = ("tuple", [("graph", 0), ("graph", 1), ("source", LATER)])
        return _native.Entry(around(scene), lambda *given: given[:2], "plan", graph, inputs)

    compiled = _native.CompiledFunction(fn, compile, recompile_limit=100)
    for _ in range(warm):
        compiled()

    def happens() -> None:
        global act
        act = lambda: None  # noqa: E731
        box = fn.__defaults__[0] if fn.__defaults__ else None
        if what == "recursion":
            compiled()
        if what == "error":
            raise KeyError("the user's")
        if what != "error":
            compiled.reset()
            fn.__defaults__ = (Plain(),)
        if what == "other code":
            fn.__code__ = (lambda x: (x, 1, 2)).__code__
        if box is not None:
            drop(box)

    act = happens
    first, victim, later = compiled()
    assert type(first) is Plain, first
    for part in (victim, later):
        assert part in (None, 1, 2) or type(part) is Plain, part
    act = lambda: None  # noqa: E731


def main() -> None:
    gc.collect()
    gc.freeze()  # existing objects need no scan in each collection
    for name, scene in SCENES.items():
        for warm in (0, 1, 3):
            check_tree(scene, warm)
            for what in ("reset", "recursion", "error", "other code"):
                check_call(scene, warm, what)
        print(name, flush=True)


if __name__ == "__main__":
    sys.exit(main())
