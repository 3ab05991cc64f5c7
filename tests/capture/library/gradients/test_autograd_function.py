"""`torch.autograd.Function` in a graph: one call, with eager's forward and backward, in all backends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.function import once_differentiable

import pycompiler

BACKENDS = ["eager", "aot_eager", "native"]
Fn = torch.autograd.Function


class Scaled(Fn):
    """A Function that returns a tensor, an index and a number, and saves an argument, an intermediate and a number."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, n: int, unused: torch.Tensor) -> Any:
        y = x.exp()
        ctx.save_for_backward(x, y)
        ctx.n = n
        return y * n, x.argmax(), 7

    @staticmethod
    def backward(ctx: Any, g: Any, index: Any, seven: Any) -> Any:
        x, y = ctx.saved_tensors
        assert seven is None and index.dtype is torch.int64
        return (g * y * ctx.n + x, None, None) if ctx.needs_input_grad[0] else (None, None, None)


class Reversed(Fn):
    """A Function that returns its argument."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = -float(len(inputs))

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * ctx.factor


class Twice(Fn):
    """A Function that saves its result; one of its results has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        out, other = x.tanh() * y, x + y
        ctx.save_for_backward(out, y)
        ctx.mark_non_differentiable(other)
        return out, other

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, h: torch.Tensor) -> Any:
        out, y = ctx.saved_tensors
        return g * y * (1 - (out / y) ** 2) + h, g * out / y


class Once(Fn):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 5 * g * x**2


class Mixed(Fn):
    """A Function with autocast's decorators."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return 3 * g * ctx.saved_tensors[0]


def scaled(x: torch.Tensor, y: torch.Tensor) -> Any:
    a, b, c = Scaled.apply(x * 2, 3, y)
    return a.sin() + b + c


def reversed_(x: torch.Tensor, y: torch.Tensor) -> Any:
    return Reversed.apply(x).sin() + Reversed.apply(x * y)


def twice(x: torch.Tensor, y: torch.Tensor) -> Any:
    out, other = Twice.apply(x, y)
    return out + other, other.requires_grad


def once(x: torch.Tensor, y: torch.Tensor) -> Any:
    return Once.apply(x) * y + Once.apply(x)


def autocast(x: torch.Tensor, y: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return Mixed.apply(x @ x.T).float() + y.sum()


def outside(x: torch.Tensor, y: torch.Tensor) -> Any:
    w = x.cos()

    class Closed(Fn):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.y = y
            return x * w

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * w * ctx.y

    return Closed.apply(x) * 2


PROGRAMS: list[Callable[..., Any]] = [scaled, reversed_, twice, once, autocast]


def gradients(fn: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    out = fn(x, y)
    result = out[0] if isinstance(out, tuple) else out
    (result * torch.arange(result.numel()).view_as(result)).sum().backward()
    return out, x.grad, y.grad


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_forward_and_backward(program: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    torch.manual_seed(0)
    x, y = torch.randn(3, 3), torch.rand(3, 3) + 0.5
    torch.testing.assert_close(gradients(compiled, x, y), gradients(program, x, y))
    torch.testing.assert_close(compiled(x, y), program(x, y))
    with torch.no_grad():
        x.requires_grad_()
        torch.testing.assert_close(compiled(x, y), program(x, y))


def test_second_gradients() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return Scaled.apply(x, 2, x)[0].sum()

    def second(fn: Callable[..., Any]) -> torch.Tensor:
        x = torch.linspace(0, 1, 4).requires_grad_()
        (g,) = torch.autograd.grad(fn(x), x, create_graph=True)
        (h,) = torch.autograd.grad((g * g).sum(), x)
        return h

    for backend in BACKENDS:
        torch.testing.assert_close(second(pycompiler.compile(program, backend=backend)), second(program))


def test_one_that_is_differentiable_once() -> None:
    compiled = pycompiler.compile(lambda x: Once.apply(x).sum(), backend="aot_eager", fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    (g,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    assert torch.equal(g, torch.full((3,), 5.0))
    with pytest.raises(RuntimeError):
        g.sum().backward()


def test_a_tensor_of_the_frame_gets_no_gradient() -> None:
    x, y = torch.randn(3, 3), torch.rand(3, 3)
    compiled = pycompiler.compile(outside, backend="eager")
    torch.testing.assert_close(gradients(compiled, x, y)[:2], gradients(outside, x, y)[:2])


class Asks(Fn):
    how: Callable[[Any, torch.Tensor], Any]

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return Asks.how(ctx, g)


def under_no_grad(ctx: Any, g: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return g * 4


def random(ctx: Any, g: torch.Tensor) -> torch.Tensor:
    return g + 0 * torch.rand_like(g)


def changes(ctx: Any, g: torch.Tensor) -> torch.Tensor:
    SEEN.append(1)
    return g * 3


def stride(ctx: Any, g: torch.Tensor) -> torch.Tensor:
    return g * 2 if g.is_contiguous() else g * 7


SEEN: list[int] = []


@pytest.mark.parametrize("how", [under_no_grad, random, changes, stride], ids=lambda f: f.__name__)
def test_what_only_the_backward_knows_breaks_the_graph(how: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(Asks, "how", how, raising=False)

    def program(x: torch.Tensor) -> torch.Tensor:
        return Asks.apply(x + 1).sum()

    SEEN.clear()
    x, z = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    pycompiler.compile(program, backend="aot_eager")(x).backward()
    assert len(SEEN) == (how is changes)
    program(z).backward()
    assert torch.equal(x.grad, z.grad)


def test_another_backward_is_another_graph(monkeypatch: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return Asks.apply(x).sum()

    compiled = pycompiler.compile(program, backend="aot_eager", fullgraph=True)
    for factor in (2.0, 3.0):
        monkeypatch.setattr(Asks, "backward", staticmethod(lambda ctx, g, by=factor: g * by))
        x = torch.ones(3, requires_grad=True)
        compiled(x).backward()
        assert torch.equal(x.grad, torch.full((3,), factor))


def test_a_saved_tensor_that_is_written_is_an_error() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        out = Once.apply(y)
        y.add_(1)
        return out.sum()

    for fn in (program, pycompiler.compile(program, backend="native")):
        x = torch.ones(3, requires_grad=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            fn(x).backward()


class Careless(Fn):
    """A Function that saves its argument and result, reads both in the backward, and computes with neither."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        out = x * 2
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        assert len(ctx.saved_tensors) == 2
        return g * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("which", ["argument", "result", "part of the result"])
def test_a_saved_tensor_that_is_written_is_an_error_used_or_not(which: str, backend: str) -> None:
    def program(x: torch.Tensor, write: bool) -> torch.Tensor:
        y = x + 1
        out = Careless.apply(y)
        if write:
            {"argument": y, "result": out, "part of the result": out[:1]}[which].mul_(2)
        return out

    compiled = pycompiler.compile(program, backend=backend)
    x = torch.ones(3, requires_grad=True)
    compiled(x, False).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    for fn in (program, compiled):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            fn(x, True).sum().backward()


class Unfitting(Fn):
    """A Function whose gradient has another shape than its argument."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g.sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_that_does_not_fit_is_eagers_error(backend: str) -> None:
    messages = []
    for fn in (Unfitting.apply, pycompiler.compile(lambda x: Unfitting.apply(x), backend=backend)):
        with pytest.raises(RuntimeError) as found:
            fn(torch.ones(3, requires_grad=True)).sum().backward()
        messages.append(str(found.value))
    assert messages[0] == messages[1]


class Viewed(Fn):
    """A Function that returns `how` of its arguments; its gradient weighs the results by 3, 5, …"""

    how: Callable[..., Any]

    @staticmethod
    def forward(ctx: Any, *given: torch.Tensor) -> Any:
        ctx.shapes = [t.shape for t in given]
        return Viewed.how(*given)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        total = sum((g.sum() * (3 + 2 * i) for i, g in enumerate(grads)), torch.zeros(()))
        return tuple(torch.ones(shape) * total for shape in ctx.shapes)


def hooked_view(x: torch.Tensor) -> Any:
    v = x.view(-1)
    v.register_hook(lambda g: g * 10)
    return v


def view_of_a_hooked_view(x: torch.Tensor) -> Any:
    z = x * 1
    v = z.view(-1)
    v.register_hook(lambda g: g * 10)
    return z, v[1:]


def beside_its_argument(x: torch.Tensor) -> Any:
    z = x * 1
    return z, Viewed.apply(z)


def before_a_break(x: torch.Tensor) -> Any:
    y = Viewed.apply(x)
    print(end="")
    return y * 2


def with_a_view(x: torch.Tensor) -> Any:
    y = x * 2
    return y, y[0]


ONE_RESULT: dict[str, Callable[..., Any]] = {
    "given_back": lambda x: x,
    "view_as": lambda x: x.view_as(x),
    "view": lambda x: x.view(-1),
    "t": lambda x: x.t(),
    "detach": lambda x: x.detach(),
}
SHARED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    **{name: (how, lambda x: Viewed.apply(x)) for name, how in ONE_RESULT.items()},
    "a_row": (ONE_RESULT["view_as"], lambda x: Viewed.apply(x)[0]),
    "twice": (ONE_RESULT["view_as"], lambda x: Viewed.apply(Viewed.apply(x))),
    "beside_its_argument": (ONE_RESULT["given_back"], beside_its_argument),
    "before_a_break": (ONE_RESULT["view_as"], before_a_break),
    "chunks": (lambda x: tuple(x.chunk(2)), lambda x: Viewed.apply(x)),
    "swapped": (lambda x, y: (y, x), lambda x: Viewed.apply(x, x.sin())),
    "results_that_share": (with_a_view, lambda x: Viewed.apply(x)),
    "one_of_two": (with_a_view, lambda x: Viewed.apply(x)[1]),
    "hooked_view": (with_a_view, hooked_view),
    "view_of_a_hooked_view": (with_a_view, view_of_a_hooked_view),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SHARED)
def test_results_that_share_memory_keep_their_gradients(name: str, backend: str, monkeypatch: Any) -> None:
    """The gradient reversal idiom: a Function that returns a view of its argument."""
    how, program = SHARED[name]
    monkeypatch.setattr(Viewed, "how", staticmethod(how), raising=False)

    def gradient(fn: Callable[..., Any]) -> Any:
        x = torch.linspace(0, 1, 4).view(2, 2).requires_grad_()
        out = fn(x)
        results = out if isinstance(out, tuple) else (out,)
        sum(((t * (i + 1)).sum() for i, t in enumerate(results)), torch.zeros(())).backward()
        return results, x.grad

    torch.testing.assert_close(gradient(pycompiler.compile(program, backend=backend)), gradient(program))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ["given_back", "view_as", "t"])
def test_a_view_from_a_function_is_not_written(how: str, backend: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(Viewed, "how", staticmethod(ONE_RESULT[how]), raising=False)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = Viewed.apply(x * 1)
        y.add_(1)
        return y

    def outside(x: torch.Tensor) -> torch.Tensor:
        return Viewed.apply(x * 1)

    x = torch.ones(2, 2, requires_grad=True)
    for fn in (program, pycompiler.compile(program, backend=backend)):
        with pytest.raises(RuntimeError, match="created inside a custom Function"):
            fn(x)
    with pytest.raises(RuntimeError, match="created inside a custom Function"):
        pycompiler.compile(outside, backend=backend)(x).add_(1)


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_that_saves_nothing_goes_backward_again(backend: str) -> None:
    """A backward frees only a Function's saved tensors: this holds after an inner backward, and for a second inner one."""

    def program(p: torch.Tensor, x: torch.Tensor) -> Any:
        h, kept = Reversed.apply(p + x), Scaled.apply(p + x, 2, x)[0]
        (h.sum() + kept.sum()).backward()
        h.sum().backward()
        return h, kept

    compiled, found = pycompiler.compile(program, backend=backend, fullgraph=True), []
    for run in (program, compiled):
        p = torch.linspace(0, 1, 3).requires_grad_()
        for i in range(3):
            h, kept = run(p, torch.full((3,), float(i)))
            h.sum().backward()
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                kept.sum().backward()
            assert p.grad is not None
            found.append([h.detach(), kept.detach(), p.grad.clone()])
    torch.testing.assert_close(found[3:], found[:3])
    assert compiled.counters()["compiles"] == 2


class Few(Fn):
    """A Function with one gradient fewer than it has arguments."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, n: int) -> Any:
        ctx.save_for_backward(w)
        return x * w * n

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        (w,) = ctx.saved_tensors
        return g * w, None


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backward_with_too_few_gradients_is_eagers_error(backend: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        return x * 3, Few.apply(x * 2, w, 2)

    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    said, made = [], []
    for run in (program, compiled, compiled):
        x, w = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
        other, wrong = run(x, w)
        other.sum().backward()
        with pytest.raises(RuntimeError) as error:
            wrong.sum().backward()
        assert x.grad is not None
        said.append(str(error.value))
        made.append([other.detach(), wrong.detach(), x.grad])
        with torch.no_grad():
            made[-1].append(run(x, w)[1])
    assert said == ["function FewBackward returned an incorrect number of gradients (expected 3, got 2)"] * 3
    torch.testing.assert_close(made[1:], made[:1] * 2)


class Instance(Reversed):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("backend", BACKENDS)
def test_instances_of_functions(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        one = Instance(4)
        one.seen = x * 2
        return Scaled().apply(x, 2, x)[0] + one.apply(x) * one.n, one

    compiled, grads = pycompiler.compile(program, backend=backend, fullgraph=True), []
    for run in (program, compiled, compiled):
        x = torch.linspace(0, 1, 3).requires_grad_()
        result, one = run(x)
        assert type(one) is Instance and one.n == 4 and torch.equal(one.seen, x * 2)
        result.sum().backward()
        grads.append([result.detach(), x.grad])
    torch.testing.assert_close(grads[1:], grads[:1] * 2)
    assert compiled.counters()["compiles"] == 1


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_what_only_a_node_knows_of_an_instance_breaks_the_graph() -> None:
    def program(x: torch.Tensor) -> Any:
        one = Reversed()
        return one.apply(x) * 2, one.saved_tensors

    x = torch.ones(2)
    assert pycompiler.explain(program)(x).break_reasons[0].kind == "unsupported-attribute"
    assert pycompiler.compile(program, backend="eager")(x)[1] == program(x)[1]


class Keeps:
    in_class = Once.apply

    def __init__(self) -> None:
        self.own = Once.apply


KEPT: dict[str, tuple[Callable[[torch.Tensor, Any], Any], Any]] = {
    "a variable outside": (lambda x, _: ONCE(x) + 1, None),
    "an argument": (lambda x, f: f(x) + 1, Once.apply),
    "an attribute": (lambda x, k: k.own(x) + 1, Keeps()),
    "a class": (lambda x, k: k.in_class(x) + Keeps.in_class(x), Keeps()),
    "a list": (lambda x, fs: fs[0](x) + 1, [Once.apply]),
    "a partial": (lambda x, f: f() + x, None),
    "looked at": (lambda x, f: (f(x), f.__self__ is Once, f.__name__, f == Once.apply, callable(f)), Once.apply),
    "given back": (lambda x, f: (f(x), f), Once.apply),
}
ONCE = Once.apply


@pytest.mark.parametrize("kept", KEPT)
def test_apply_that_something_keeps_is_captured(kept: str) -> None:
    program, given = KEPT[kept]
    compiled = pycompiler.compile(program, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        answers = []
        for call in (compiled, program):
            x = torch.arange(1.0, 4.0).requires_grad_()
            made = call(x, functools.partial(Once.apply, x) if kept == "a partial" else given)
            result, *rest = made if isinstance(made, tuple) else (made,)
            result.sum().backward()
            answers.append((result.detach(), x.grad, rest))
        torch.testing.assert_close(answers[0][:2], answers[1][:2])
        assert answers[0][2] == answers[1][2]
    assert pycompiler.counters(compiled)["compiles"] == 1


def test_apply_of_another_function_is_another_one() -> None:
    compiled = pycompiler.compile(lambda x, f: f(x) + 1, backend="eager", fullgraph=True)
    x = torch.arange(1.0, 4.0)
    for f, compiles in ((Once.apply, 1), (Once.apply, 1), (Reversed.apply, 2), (Once.apply, 2)):
        torch.testing.assert_close(compiled(x, f), f(x) + 1)
        assert pycompiler.counters(compiled)["compiles"] == compiles


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_a_backward_outside_of_graphs_has_saved_is_unpacked_once(backend: str) -> None:
    """A checkpoint returns each saved tensor only once; the program's unpack hooks run as often as in eager."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 3

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return grad * 3 + x

    unpacked: list[int] = []

    def unpack(t: torch.Tensor) -> torch.Tensor:
        unpacked.append(1)
        return t

    def body(x: torch.Tensor) -> torch.Tensor:
        return Scaled.apply(x * torch.ones(4).requires_grad_())  # type: ignore[no-untyped-call, no-any-return]

    def checkpointed(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)  # type: ignore[no-any-return]

    def hooked(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            pycompiler.graph_break()
            return Scaled.apply(x * 2)  # type: ignore[no-untyped-call, no-any-return]

    for forward in (checkpointed, hooked):

        def step(x: torch.Tensor, forward: Any = forward) -> torch.Tensor:
            loss = forward(x).pow(2).sum()
            pycompiler.graph_break()
            loss.backward()
            return loss.detach()

        found = []
        for call in (step, pycompiler.compile(step, backend=backend)):
            seen: list[Any] = []
            for _ in range(3):
                unpacked.clear()
                x = torch.arange(4.0, requires_grad=True)
                seen.append((call(x).item(), x.grad.tolist() if x.grad is not None else None, len(unpacked)))
            found.append(seen)
        assert found[1] == found[0]
