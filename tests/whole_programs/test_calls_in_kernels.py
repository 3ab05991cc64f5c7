"""A compiled function called by an operator's kernel: autograd is off there, and the compiled result is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import pycompiler

Fn = Callable[..., Any]
X = torch.linspace(-1, 2, 12).reshape(3, 4)
W = torch.linspace(0, 1, 4, requires_grad=True)


@pytest.fixture
def operator() -> Iterator[Callable[[Fn], Fn]]:
    """Creates an operator whose kernel and backward call a function."""
    made = []

    def make(fn: Fn) -> Fn:
        name = f"tests_in_kernels::op{len(made)}"

        @torch.library.custom_op(name, mutates_args=())
        def op(x: torch.Tensor) -> torch.Tensor:
            return fn(x)  # type: ignore[no-any-return]

        op.register_fake(lambda x: torch.empty_like(x))
        op.register_autograd(
            lambda ctx, g: g * ctx.saved_tensors[0].cos(),
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
        )
        made.append(op)
        return op

    yield make
    for op in made:
        op._lib._destroy()


def plain(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin() + W


def asks(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y + 1 if y.requires_grad or x.grad_fn is not None else y.sin()


def asks_the_mode(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if torch.is_grad_enabled() else x * 3


def writes(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.add_(1)
    return y.mul_(x)


def gives_a_view(x: torch.Tensor) -> torch.Tensor:
    return x.view(4, 3).t().clone(), x.view(-1)  # type: ignore[return-value]


def makes_a_leaf(x: torch.Tensor) -> torch.Tensor:
    w = torch.ones(4, requires_grad=True)
    return x * w


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    pycompiler.graph_break()
    return y.contiguous() + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("fn", [plain, asks, asks_the_mode, writes, makes_a_leaf, breaks], ids=lambda f: f.__name__)
def test_kernels_call_compiled_functions(fn: Fn, backend: str, operator: Callable[[Fn], Fn]) -> None:
    compiled = pycompiler.compile(fn, backend=backend)
    for requires_grad in (False, True, False):
        x = X.clone().requires_grad_(requires_grad)
        got, want = operator(compiled)(x), operator(fn)(x)
        torch.testing.assert_close(got, want)
        assert got.requires_grad == want.requires_grad
        if requires_grad:
            torch.testing.assert_close(torch.autograd.grad(got.sum(), x)[0], torch.autograd.grad(want.sum(), x)[0])
    y = X.clone().requires_grad_()  # and outside of kernels
    got, want = compiled(y), fn(y)
    torch.testing.assert_close(got, want)
    assert got.requires_grad == want.requires_grad


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_they_are_compiled(backend: str, operator: Callable[[Fn], Fn]) -> None:
    compiled = pycompiler.compile(plain, backend=backend)
    op = operator(compiled)
    for _ in range(3):
        torch.testing.assert_close(op(X), plain(X))
    counters = compiled.counters()
    assert (counters["compiles"], counters["hits"], counters["eager_calls"]) == (1, 2, 0)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.captures_nothing(
    "a result that shares memory with an argument, in the kernel of an operator: the frame runs eagerly"
)
def test_below_autograd(backend: str, requires_grad: bool) -> None:
    compiled = pycompiler.compile(gives_a_view, backend=backend)
    x = X.clone().requires_grad_(requires_grad)
    with torch._C._AutoDispatchBelowAutograd():
        for fn in (gives_a_view, compiled, compiled):
            got = fn(x)
            assert [t.requires_grad for t in got] == [t.requires_grad for t in gives_a_view(x)]
            assert got[1].data_ptr() == x.data_ptr()


def test_a_backend_of_the_program_has_its_graph_run_as_it_is(operator: Callable[[Fn], Fn]) -> None:
    graphs: list[Any] = []

    def backend(gm: torch.fx.GraphModule, examples: Any) -> Any:
        assert not any(t.requires_grad for t in examples)
        graphs.append(gm)
        return gm.forward

    op = operator(pycompiler.compile(plain, backend=backend))
    x = X.clone().requires_grad_()
    torch.testing.assert_close(op(x), plain(x))
    torch.testing.assert_close(op(X), plain(X))
    assert len(graphs) == 2  # with and without gradients


def test_the_handler_of_a_dispatch_mode() -> None:
    graphs: list[Any] = []

    def backend(gm: torch.fx.GraphModule, examples: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    compiled = pycompiler.compile(lambda x: x.sin(), backend=backend)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {})) + compiled(args[0])

    for _ in range(2):
        with Mode():
            got = X.cos()
        torch.testing.assert_close(got, X.cos() + X.sin())
    assert len(graphs) == 1


@pytest.mark.captures_nothing("calls in the kernel of an operator under autocast run eagerly")
def test_autocast_in_a_kernel(operator: Callable[[Fn], Fn]) -> None:
    def products(x: torch.Tensor) -> torch.Tensor:
        return x @ x.t() @ x

    op, compiled = operator(products), operator(pycompiler.compile(products))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(X).dtype == op(X).dtype
        torch.testing.assert_close(compiled(X), op(X))


def test_a_class_of_tensors_in_a_kernel_runs_as_written() -> None:
    class Plain(torch.Tensor):
        pass

    compiled = pycompiler.compile(lambda x: x * 2, backend="eager")
    x = X.as_subclass(Plain)
    with torch._C._AutoDispatchBelowAutograd():
        assert type(compiled(x)) is type(x * 2)
        torch.testing.assert_close(compiled(x), x * 2)


def test_where_other_calls_raise_those_within_run_as_before(operator: Callable[[Fn], Fn]) -> None:
    compiled = pycompiler.compile(plain)
    op = operator(compiled)
    compiled(X)
    with pycompiler.set_stance("fail_on_recompile"):
        torch.testing.assert_close(op(X), plain(X))
        torch.testing.assert_close(torch.vmap(compiled)(X), plain(X))
        with pytest.raises(pycompiler.errors.RecompileError):
            compiled(X.double())
