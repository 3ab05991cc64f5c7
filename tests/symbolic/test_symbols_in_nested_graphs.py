"""Sizes inside a function of a transform, a checkpoint or autograd: each stays a symbol, an input of the nested graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, vjp, vmap
from torch.utils.checkpoint import checkpoint

import pycompiler

BACKENDS = ("eager", "aot_eager", "native")
SIZES = ((3, 4), (5, 6), (7, 3))


class Scaled(torch.autograd.Function):
    """A function whose backward uses a size and a number of the forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, by: int) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.n, ctx.by = x.shape[0], by
        return x * x * x.shape[0]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * 2 * x * ctx.n * ctx.by, None


def hooked(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(lambda g: g * x.shape[0] / y.shape[1])  # type: ignore[no-untyped-call]
    return y.sin()


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "vmap": lambda x: vmap(lambda r: r * r.shape[0] + x.shape[0])(x),
    "vmap of views": lambda x: vmap(lambda r: r.view(1, -1).expand(r.shape[0], r.shape[0]) / x.shape[0])(x),
    "vmap in a checkpoint": lambda x: checkpoint(
        lambda y: vmap(lambda r: r * x.shape[1] + y.shape[0] * 2)(y), x, use_reentrant=False
    ),
    "grad": lambda x: grad(lambda y: (y * x.shape[0]).sin().sum() / y.shape[1])(x),
    "vjp": lambda x: vjp(lambda y: y * x.shape[0], x)[1](x)[0],
    "checkpoint": lambda x: checkpoint(
        lambda y: (y.reshape(y.shape[0] * y.shape[1]) * x.shape[1]).sin(), x, use_reentrant=False
    ),
    "checkpoint that gives a size": lambda x: checkpoint(lambda y: (y.sin(), y.shape[0] * 2), x, use_reentrant=False),
    "autograd function": lambda x: Scaled.apply(x, x.shape[1]),
    "hook": hooked,
}


def first(made: Any) -> torch.Tensor:
    return made[0] if isinstance(made, tuple) else made


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compile_serves_all_sizes(name: str, backend: str) -> None:
    compiled = pycompiler.compile(PROGRAMS[name], backend=backend, dynamic=True)
    for size in SIZES:
        x = torch.randn(*size, generator=torch.Generator().manual_seed(size[0])).requires_grad_()
        y = x.detach().clone().requires_grad_()
        got, want = compiled(x), PROGRAMS[name](y)
        torch.testing.assert_close(got, want)
        first(got).sum().backward()
        first(want).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert compiled.counters()["compiles"] == 1


@pytest.mark.parametrize("how", ["marked", "automatic"])
@pytest.mark.parametrize("name", ["vmap", "checkpoint", "grad"])
def test_however_a_size_became_a_symbol(name: str, how: str) -> None:
    compiled = pycompiler.compile(PROGRAMS[name], backend="eager", fullgraph=True)
    for size in (*SIZES, (9, 8), (4, 9)):
        x = torch.ones(*size)
        if how == "marked":
            pycompiler.mark_dynamic(x, 0)
            pycompiler.mark_dynamic(x, 1)
        torch.testing.assert_close(compiled(x), PROGRAMS[name](x))
    assert compiled.counters()["compiles"] == (1 if how == "marked" else 2)


@pytest.mark.parametrize("name", ["integer", "float"])
def test_numbers_that_change(name: str) -> None:
    def program(x: torch.Tensor, n: Any) -> torch.Tensor:
        return vmap(lambda r: r * n + (n * 2))(x) + checkpoint(lambda y: y * n, x, use_reentrant=False)

    compiled = pycompiler.compile(program, backend="aot_eager", fullgraph=True)
    for n in (2, 3, 5, 9) if name == "integer" else (0.5, 1.5, 2.25, -4.0):
        x = torch.ones(3, 2)
        torch.testing.assert_close(compiled(x, n), program(x, n))
    assert compiled.counters()["compiles"] == 2


class Held:
    def __init__(self) -> None:
        self.by = 2.0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", ["number", "cell"])
def test_a_number_that_others_change_before_the_backward_is_no_symbol_there(what: str, backend: str) -> None:
    """Eager's checkpoint and hooks read the number again in the backward: a change is an error, also after earlier changes."""
    held, cell = Held(), 2.0

    def scaled(t: torch.Tensor) -> torch.Tensor:
        return t * (held.by if what == "number" else cell)

    def change() -> None:
        nonlocal cell
        held.by += 1.0
        cell += 1.0

    def program(x: torch.Tensor) -> Any:
        y = x * 1
        y.register_hook(scaled)  # type: ignore[no-untyped-call]
        return y * 2

    compiled = pycompiler.compile(program, backend=backend)
    for _ in range(3):
        x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
        compiled(x).sum().backward()
        program(y).sum().backward()
        assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]
        changed = compiled(x)
        change()
        with pytest.raises(RuntimeError, match="or a hook reads has changed"):
            changed.sum().backward()


class Changing:
    """State that backwards read and that changes between a call and its backward."""

    def __init__(self) -> None:
        self.w, self.n, self.d, self.t, self.m = torch.ones(5, 3), 2, {"a": 2}, (torch.ones(4),), -3

    def change(self) -> None:
        self.w, self.t = torch.ones(self.w.shape[0] + 1, 3), (torch.ones(self.t[0].shape[0] + 1),)
        self.n, self.d, self.m = self.n + 1, {"a": self.d["a"] + 1}, self.m - 1


SEEN: dict[str, Callable[[Changing], float]] = {
    "a size": lambda h: h.w.shape[0],
    "a comparison of a size": lambda h: 2 if h.w.shape[0] > 7 else 3,
    "a size in a tuple": lambda h: h.t[0].numel(),
    "a remainder": lambda h: h.w.shape[0] % 3,
    "a number": lambda h: h.n,
    "a comparison": lambda h: 2 if h.n > 4 else 3,
    "a number in a dict": lambda h: h.d["a"],
    "a negative number": lambda h: h.m,
    "a range": lambda h: len(range(h.n)),
}


@pytest.mark.parametrize("form", ["hook", "checkpoint", "function"])
@pytest.mark.parametrize("name", SEEN)
def test_a_backward_sees_that_a_symbol_changed(name: str, form: str) -> None:
    held, seen = Changing(), SEEN[name]

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            return grads[0] * seen(held)

    def program(x: torch.Tensor) -> Any:
        y = x * 1
        if form == "checkpoint":
            return checkpoint(lambda t: seen(held) * t.sin(), y, use_reentrant=False)
        if form == "function":
            return Function.apply(y)
        y.register_hook(lambda g: g * seen(held))  # type: ignore[no-untyped-call]
        return y * 2

    compiled, told = pycompiler.compile(program, backend="aot_eager"), 0
    for k in range(5):
        x, y = (torch.ones(3 + k, requires_grad=True) for _ in range(2))
        got, want = compiled(x), program(y)
        held.change()
        want.sum().backward()
        try:
            got.sum().backward()
        except RuntimeError as e:
            assert "has changed" in str(e)
            told += 1
        else:
            torch.testing.assert_close(x.grad, y.grad)
    assert told


class InModule(torch.nn.Module):
    """A module whose arguments arrive as `*args` and `**kwargs`."""

    def __init__(self, program: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.program = torch.nn.Linear(8, 8), program

    def forward(self, x: torch.Tensor, *, times: int = 3) -> torch.Tensor:
        return self.program(self.linear, x, times)


IN_MODULES: dict[str, Callable[..., torch.Tensor]] = {
    "checkpoint": lambda h, x, n: checkpoint(lambda y: h(y) * y.shape[1] * n, x, use_reentrant=False),
    "reentrant checkpoint": lambda h, x, n: checkpoint(lambda y: h(y) * y.shape[1] * n, x, use_reentrant=True),
    "autograd function": lambda h, x, n: Scaled.apply(h(x), n * x.shape[1]),
}


@pytest.mark.parametrize("dynamic", [None, True, "marked"])
@pytest.mark.parametrize("name", IN_MODULES)
def test_sizes_of_what_a_compiled_module_is_called_with_are_symbols(name: str, dynamic: Any) -> None:
    module = InModule(IN_MODULES[name])
    compiled = pycompiler.compile(module, backend="aot_eager", dynamic=None if dynamic == "marked" else dynamic)
    for n in (6, 9, 12, 7, 15):
        x, y = (torch.ones(2, n, 8).requires_grad_() for _ in range(2))
        if dynamic == "marked":
            pycompiler.mark_dynamic(x, 1)
        times = {} if dynamic == "marked" else {"times": n}
        compiled(x, **times).sum().backward()
        module(y, **times).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert pycompiler.counters(compiled)["compiles"] == (2 if dynamic is None else 1)


def in_a_list(given: Any) -> torch.Tensor:
    return checkpoint(lambda y: y * given[1] * y.shape[1], given[0], use_reentrant=False)  # type: ignore[no-any-return]


def in_a_dict(given: Any) -> torch.Tensor:
    return checkpoint(lambda y: y * given["n"] * y.shape[1], given["x"], use_reentrant=False)  # type: ignore[no-any-return]


class OfAList(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, given: Any) -> torch.Tensor:
        ctx.given = given
        return x * given[1]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * ctx.given[1], None


def in_a_function(given: Any) -> torch.Tensor:
    return OfAList.apply(given[0], given)  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize("program", [in_a_list, in_a_dict, in_a_function])
def test_a_symbol_that_others_change_before_the_backward_is_an_error(program: Callable[..., torch.Tensor]) -> None:
    compiled = pycompiler.compile(program, backend="aot_eager")
    for n in (4, 5, 6, 7):
        for change in (False, True):
            x = torch.ones(2, n, requires_grad=True)
            given: Any = {"x": x, "n": n} if program is in_a_dict else [x, n]
            made = compiled(given)
            if change:
                given["n" if program is in_a_dict else 1] += 1
                with pytest.raises(RuntimeError, match=f"(is|==) {n}. Eager mode would compute"):
                    made.sum().backward()
            else:
                made.sum().backward()
                assert torch.equal(x.grad, torch.full_like(x, n if program is in_a_function else n * n))  # type: ignore[arg-type]
    assert pycompiler.counters(compiled)["compiles"] == 2
