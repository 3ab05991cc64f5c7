"""Gradients that stop at an input after the graph has written it, and gradients that reach inputs by more than one path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same

Made = tuple[torch.Tensor, ...]
Program = Callable[[torch.Tensor, torch.Tensor], Made]


def read_afterwards(b: torch.Tensor, a: torch.Tensor) -> Made:
    b.mul_(a)
    return ((b * b * a).sum(),)


def read_twice(b: torch.Tensor, a: torch.Tensor) -> Made:
    b.exp_()
    v = b * b
    return v, v.sigmoid()


def read_before_and_afterwards(b: torch.Tensor, a: torch.Tensor) -> Made:
    y = b * 2 * a
    b.mul_(3)
    return (y + b * b,)


def viewed_afterwards(b: torch.Tensor, a: torch.Tensor) -> Made:
    b.mul_(3)
    v = b[:2]
    return v, v * v, b * a


def cut_off(b: torch.Tensor, a: torch.Tensor) -> Made:
    b.zero_()
    return (b * a,)


def written_twice(b: torch.Tensor, a: torch.Tensor) -> Made:
    b.mul_(3)
    b.add_(1)
    return b, b * b


def by_lists(b: torch.Tensor, a: torch.Tensor) -> Made:
    torch._foreach_mul_([b], 2.0)
    return (b * a,)


def through_a_view(b: torch.Tensor, a: torch.Tensor) -> Made:
    v = b[1:]
    v.mul_(2)
    return (b * b * a,)


def through_a_view_that_is_read(b: torch.Tensor, a: torch.Tensor) -> Made:
    v = b[1:]
    v.mul_(2)
    return v, v * v, b.tanh()


def rectified(b: torch.Tensor, a: torch.Tensor) -> Made:
    torch.relu_(b)
    return b * a, b + 1


def all_of_it(b: torch.Tensor, a: torch.Tensor) -> Made:
    y = b * 2
    b.mul_(a)
    c = b.cos()
    return y, c, c + y, b * y


PROGRAMS = (
    read_afterwards, read_twice, read_before_and_afterwards, viewed_afterwards, cut_off, written_twice, by_lists, through_a_view,
    through_a_view_that_is_read, rectified, all_of_it,
)  # fmt: skip
INPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "result": lambda x: x * 1,
    "view": lambda x: (x * 2)[:],
    "part": lambda x: torch.cat([x, x])[:4],
}


def by_what_there_is(b: torch.Tensor, a: torch.Tensor, x: torch.Tensor, made: Made) -> list[Any]:
    total = torch.stack([t.sum() for t in made]).sum()
    return [*torch.autograd.grad(total, (b, a, x, *made), allow_unused=True)]


def kept_later(b: torch.Tensor, a: torch.Tensor, x: torch.Tensor, made: Made) -> list[Any]:
    seen: list[torch.Tensor] = []
    b.retain_grad()
    b.register_hook(seen.append)
    for t in made:
        t.sum().backward(retain_graph=True)
    return [b.grad, a.grad, x.grad, *seen]


def written_later(b: torch.Tensor, a: torch.Tensor, x: torch.Tensor, made: Made) -> list[Any]:
    b.mul_(2)
    try:
        torch.stack([t.sum() for t in made]).sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return ["refused"]
    return [x.grad, a.grad]


def outcome(
    program: Program, make: Callable[[torch.Tensor], torch.Tensor], then: Callable[..., list[Any]]
) -> list[Any]:
    x, a = torch.linspace(0.5, 2, 4, requires_grad=True), torch.linspace(1, 2, 4, requires_grad=True)
    b = make(x)
    made = program(b, a)
    return [b.detach().clone(), *(t.detach().clone() for t in made), *then(b, a, x, made)]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_pass_an_input_as_it_was_written(program: Program, backend: str) -> None:
    """The written `b` is a target of its own: a gradient by it exists, and hooks and `retain_grad` see the gradient."""
    compiled = pycompiler.compile(program, backend=backend)
    for make in INPUTS.values():
        for then in (by_what_there_is, kept_later, written_later):
            want, found = outcome(program, make, then), outcome(compiled, make, then)
            assert_same(found, want, strides=False)
    report = pycompiler.counters(compiled)
    assert report["compiles"] == 1


def written_unseen(b: torch.Tensor, a: torch.Tensor) -> Made:
    b.detach().mul_(0.5)
    return (b * a,)


def written_unseen_in_the_middle(b: torch.Tensor, a: torch.Tensor) -> Made:
    y = b + a
    with torch.no_grad():
        b.exp_()
    return y, b + 2


def written_as_it_is(b: torch.Tensor, a: torch.Tensor) -> Made:
    b.detach().copy_(b)
    return (b * a,)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("program", [written_unseen, written_unseen_in_the_middle, written_as_it_is])
def test_the_history_of_a_view_that_is_written_behind_autograds_back_begins_anew(
    program: Program, backend: str
) -> None:
    """Gradients must not pass through the view's old value, and hooks on it must not see them."""
    compiled = pycompiler.compile(program, backend=backend)

    def asked(run: Program, make: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
        x, a = torch.linspace(0.5, 2, 4, requires_grad=True), torch.linspace(1, 2, 4, requires_grad=True)
        b = make(x)
        b.register_hook(lambda g: g * 10)  # type: ignore[no-untyped-call]
        made = run(b, a)
        total = torch.stack([t.sum() for t in made]).sum()
        return [b.detach().clone(), *torch.autograd.grad(total, (x, a, b), allow_unused=True)]

    for make in INPUTS.values():
        assert_same(asked(compiled, make), asked(program, make), strides=False)
    assert pycompiler.counters(compiled)["compiles"] == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_gradients_inside_of_a_program_that_writes_its_input(backend: str) -> None:
    def program(b: torch.Tensor, a: torch.Tensor) -> torch.Tensor | None:
        b.mul_(2)
        return torch.autograd.grad((b * a).sum(), [b], allow_unused=True)[0]

    compiled = pycompiler.compile(program, backend=backend)
    for run in (program, compiled, compiled):
        a = torch.arange(1.0, 4.0)
        found = run(torch.ones(3, requires_grad=True) * 2, a)
        assert found is not None and torch.equal(found, a)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_gradients_by_a_result_that_an_input_reaches_too(backend: str) -> None:
    """Where the input is a result of other work, its two paths must stay separate, so that one of them ends at the result."""

    def program(x: torch.Tensor) -> Made:
        y = x * x
        return y, y * x

    compiled = pycompiler.compile(program, backend=backend)
    for make in INPUTS.values():
        found = []
        for run in (program, compiled):
            leaf = torch.linspace(0, 1, 4, requires_grad=True)
            x = make(leaf)
            y, z = run(x)
            first = torch.autograd.grad(z.sum(), (y, x, leaf), create_graph=True)
            found.append([*first, *torch.autograd.grad(torch.stack([g.sum() for g in first]).sum(), (y, x, leaf))])
        assert_same(found[1], found[0])
    assert pycompiler.counters(compiled)["compiles"] == 1
