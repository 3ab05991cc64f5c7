"""`super(...)` objects: created in the frame, created before it, and used after a graph break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

X = torch.ones(2)


class Base:
    k = 5

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __eq__(self, other: object) -> Any:
        return "eq of Base"

    def __repr__(self) -> str:
        return "repr of Base"

    __hash__ = None  # type: ignore[assignment]

    def scaled(self, x: Any) -> Any:
        return x * self.k

    @classmethod
    def named(cls) -> Any:
        return cls, cls.k

    @property
    def total(self) -> Any:
        return sum(self.args)


class Derived(Base):
    k = 7

    def __repr__(self) -> str:
        return "repr of Derived"

    def scaled(self, x: Any) -> Any:
        return x + 100

    @classmethod
    def named(cls) -> Any:
        return super().named()

    def told(self, x: Any) -> Any:
        s = super()
        return s.__class__, s.__self__ is self, s.__thisclass__, s.__self_class__, type(s), x + s.k

    def lacking(self, x: Any) -> Any:
        try:
            return super().missing  # type: ignore[misc]
        except AttributeError as error:
            return str(error), x + 1


made = Derived(1, 2)
existing, of_class = super(Derived, made), super(Derived, Derived)

PROGRAMS: list[Callable[[Any], Any]] = [
    lambda x: (existing.__init__(4), made.args, x + 1),  # type: ignore[misc]
    lambda x: (existing.__eq__(3), existing.__repr__(), x + 1),
    lambda x: (existing.scaled(x), existing.k, existing.total, x + 1),
    lambda x: (existing.named(), of_class.named(), Derived.named(), x + 1),  # type: ignore[misc]
    lambda x: (existing.__class__, existing.__thisclass__, existing.__self__ is made, existing.__self_class__, x + 1),
    lambda x: (
        hasattr(existing, "args"),
        getattr(existing, "none", 3),
        isinstance(existing, Base),
        type(existing),
        x + 1,
    ),
    lambda x: (existing is existing, {id(existing): 1}[id(existing)], x + 1),
    made.told,
    made.lacking,
]


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_is_asked_as_eager_asks_it(number: int) -> None:
    """Attributes of an existing super object come from the parents, never from `super`: `__init__`, `__eq__`, `__repr__`."""
    program = PROGRAMS[number]
    expected = repr(program(X))
    compiled = pycompiler.compile(program)
    made.args = (1, 2)
    assert [repr(compiled(X)), repr(compiled(X))] == [expected, expected]
    assert pycompiler.explain(program)(X).graph_break_count == 0
    made.args = (1, 2)


def test_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    box = [super(Derived, made)]

    @pycompiler.compile
    def program(x: Any) -> Any:
        return box[0].scaled(x)

    assert program(X).tolist() == [7, 7]
    made.k = 2
    assert program(X).tolist() == [2, 2]
    del made.k
    monkeypatch.setattr(Base, "scaled", lambda self, x: x - 1)
    assert program(X).tolist() == [0, 0]
    box[0] = super(Derived, type("More", (Derived,), {"scaled": lambda self, x: x})())
    monkeypatch.undo()
    assert program(X * 3).tolist() == [21, 21]


class Wrapper(torch.Tensor):
    """A subclass whose attributes exist only after `__init__`: `super()` breaks the graph and lives across the break."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    def __init__(self, inner: torch.Tensor) -> None:
        super().__init__()
        self.inner = inner

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


def test_across_a_break() -> None:
    shell = Wrapper.__new__(Wrapper, X)
    pycompiler.compile(Wrapper.__init__)(shell, X)  # type: ignore[misc]
    assert shell.inner is X


BEHIND = """
class Base:
    def name(self):
        return "base"

class C(Base):
    def behind(self):
        pycompiler.graph_break()
        return super().name(), super(C, self).name()

    def around(self):
        found = super()
        pycompiler.graph_break()
        return found.name(), super().name()

    def nested(self):
        def inner():
            pycompiler.graph_break()
            return super(C, self).name()

        pycompiler.graph_break()
        return inner(), [super(C, self).name() for _ in range(2)]

def fn(x):
    c = C()
    return x + 1, c.behind(), c.around(), c.nested()
"""
ANOTHER = """
class super:
    def __init__(self, *args):
        self.count = len(args)

    def name(self):
        return "another", self.count
"""


def test_another_super_of_the_module_behind_a_break() -> None:
    """A replaced `super` is called as written, without arguments; resumed code calls the builtin with both arguments."""
    scope: dict[str, Any] = {"pycompiler": pycompiler}
    exec(BEHIND, scope)
    fn = scope["fn"]
    compiled = pycompiler.compile(fn, backend="eager")
    seen = []
    for change in ("", ANOTHER, "del super"):
        exec(change, scope)
        assert str(compiled(X)) == str(fn(X)) == str(compiled(X))
        seen.append(fn(X)[1])
    assert seen == [("base", "base"), (("another", 0), ("another", 2)), ("base", "base")]
