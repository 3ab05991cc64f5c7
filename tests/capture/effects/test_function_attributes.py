"""Attributes that a program stores on existing functions: counters of decorators, cached results."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pycompiler


def counted(fn: Any) -> Any:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> Any:
        wrapper.calls += 1  # type: ignore[attr-defined]
        wrapper.last = args[0]  # type: ignore[attr-defined]
        return fn(*args)

    wrapper.calls = 0  # type: ignore[attr-defined]
    return wrapper


@counted
def double(x: Tensor) -> Tensor:
    return x * 2


def calls(x: Tensor) -> Tensor:
    return double(x) + double(x + 1) + double.calls


def its_own(x: Tensor) -> Tensor:
    its_own.n = getattr(its_own, "n", 0) + 1  # type: ignore[attr-defined]
    return x + its_own.n  # type: ignore[attr-defined]


class Holder:
    def method(self, x: Tensor) -> Tensor:
        Holder.method.seen = x + 1  # type: ignore[attr-defined]
        return x * Holder.method.seen  # type: ignore[attr-defined]


def of_a_method(x: Tensor) -> Tensor:
    return Holder().method(x)


def as_a_dict(x: Tensor) -> Tensor:
    double.more = 3
    return x + len(vars(double)) + vars(double)["more"]


def wrapped_again(x: Tensor) -> Tensor:
    double.more = 4

    @functools.wraps(double)
    def again(y: Tensor) -> Tensor:
        return y + again.more  # type: ignore[attr-defined, no-any-return]

    return again(x)


def renamed(x: Tensor) -> Tensor:
    double.__name__ = "other"
    out = x + len(double.__name__)
    double.__name__ = "double"
    return out


def removed(x: Tensor) -> Tensor:
    double.more = 1
    del double.more
    return x + hasattr(double, "more")


def broken(x: Tensor) -> Tensor:
    double.more = x
    pycompiler.graph_break()
    return double.more + 1  # type: ignore[no-any-return]


FUNCTIONS = (double, its_own, Holder.method)


def outcome(run: Callable[[Tensor], Tensor]) -> Any:
    for fn in FUNCTIONS:
        for name in {*vars(fn)} - {"__wrapped__"}:
            delattr(fn, name)
    double.calls = 0
    outs = [run(torch.ones(2)).tolist() for _ in range(3)]
    return outs, [[(k, str(v)) for k, v in vars(fn).items() if k != "__wrapped__"] for fn in FUNCTIONS]


@pytest.mark.parametrize("program", [calls, its_own, of_a_method, as_a_dict, wrapped_again, renamed, removed, broken])
def test_as_eager(program: Any) -> None:
    whole = program in (calls, its_own, of_a_method)
    assert outcome(pycompiler.compile(program, fullgraph=whole, backend="eager")) == outcome(program)


def test_what_a_hook_reads_of_a_function() -> None:
    def program(x: Tensor) -> Tensor:
        double.scale = 3
        y = x * 1
        y.register_hook(lambda g: g * double.scale)
        return y.sum()

    found = []
    for run in (program, pycompiler.compile(program, backend="aot_eager")):
        x = torch.ones(2, requires_grad=True)
        out = run(x)
        double.scale = 5
        try:
            out.backward()  # type: ignore[no-untyped-call]
            found.append(x.grad)
        except RuntimeError as e:
            found.append(str(e))
    assert "double" in str(found[1]) or torch.equal(found[0], found[1])


def measured(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    """A measure."""
    return (x * x).sum() * by


measured.tag = ["tag"]  # type: ignore[attr-defined]
PART = functools.partial(measured, by=3.0)


class Measure:
    def of(self, x: torch.Tensor) -> torch.Tensor:
        return measured(x)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return measured(x)


MEASURES = {
    "function": measured, "partial": PART, "method": Measure().of, "callable": Measure(), "operator": torch.sum,
    "module": torch.nn.Sequential(torch.nn.Flatten(0), torch.nn.Linear(3, 1), torch.nn.Flatten(0)).forward,
    "compiled": pycompiler.compile(measured, backend="eager"),
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.grad_and_value, torch.func.vmap, torch.func.jacrev])
def test_what_a_transform_gives_is_named_as_what_it_was_given(name: str, transform: Any) -> None:
    fn = MEASURES[name]

    def named(x: torch.Tensor) -> Any:
        def inner(z: torch.Tensor) -> torch.Tensor:
            "Inside."
            return (z * x.sum()).sum()

        part = functools.partial(fn)
        said = [
            [getattr(a, n, None) for n in ("__name__", "__qualname__", "__module__", "__doc__", "tag")]
            for a in map(transform, (fn, inner, part))
        ]
        wrapped = list(map(lambda v: transform(v).__wrapped__ is v, (fn, inner, part)))
        return said, wrapped, transform(inner)(x)

    x = torch.arange(3.0)[:, None] if transform is torch.func.vmap else torch.arange(3.0)
    compiled = pycompiler.compile(named, backend="eager", fullgraph=True)
    assert repr(compiled(x)) == repr(named(x))


def test_what_a_transform_gives_leaves_the_frame_with_its_name() -> None:
    def made(x: torch.Tensor) -> Any:
        return torch.func.grad(measured), torch.func.vmap(functools.partial(measured, by=1.0)), x * 2

    (a, b, _), (c, d, _) = made(torch.ones(3)), pycompiler.compile(made, backend="eager")(torch.ones(3))
    assert (c.__name__, c.__doc__, c.tag) == (a.__name__, a.__doc__, a.tag) and c.__wrapped__ is measured
    assert d.__wrapped__.func is measured and d.__doc__ == b.__doc__
    assert torch.equal(c(torch.ones(3)), a(torch.ones(3))) and torch.equal(d(torch.ones(2, 3)), b(torch.ones(2, 3)))


def test_the_dict_of_a_partial_shows_its_attributes() -> None:
    def looked(x: torch.Tensor) -> Any:
        part = functools.partial(measured, by=2.0)
        space = part.__dict__
        part.note = "a"  # type: ignore[attr-defined]
        space["other"] = 1
        del space["note"]
        again = functools.partial(part, x)
        with contextlib.suppress(KeyError):
            del space["none"]
        return space, part.__dict__ is space, hasattr(part, "note"), part.other, again.func is part, x + 1  # type: ignore[attr-defined]

    compiled = pycompiler.compile(looked, backend="eager", fullgraph=True)
    assert repr(compiled(torch.ones(2))) == repr(looked(torch.ones(2)))


def test_an_existing_partial_has_no_name() -> None:
    def named(x: torch.Tensor) -> Any:
        def inner() -> None: ...

        functools.update_wrapper(inner, PART, updated=())
        return inner.__name__, inner.__doc__, getattr(PART, "__name__", None), PART.__dict__, x + 1

    compiled = pycompiler.compile(named, backend="eager", fullgraph=True)
    assert repr(compiled(torch.ones(2))) == repr(named(torch.ones(2)))


class Words(list[str]):
    pass


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2


BOUND = {
    "function": lambda x: Doubled.apply, "list": lambda x: Words().append, "tensor": lambda x: x.add,
    "text": lambda x: "".join, "class": lambda x: dict.fromkeys, "wrapper": lambda x: (1).__add__, "python": lambda x: x.norm,
}  # fmt: skip


@pytest.mark.parametrize("name", BOUND)
def test_what_methods_in_c_say_of_themselves(name: str) -> None:
    method = BOUND[name]

    def told(x: torch.Tensor) -> Any:
        bound = method(x)
        return [
            getattr(bound, n, "none") for n in ("__name__", "__qualname__", "__module__", "__doc__", "__dict__")
        ], x + 1

    compiled = pycompiler.compile(told, backend="eager", fullgraph=True)
    assert repr(compiled(torch.ones(2))) == repr(told(torch.ones(2)))
