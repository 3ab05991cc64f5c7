"""Data-dependent errors: eager's earlier side effects have happened, and the program's handlers run."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import pycompiler
from pycompiler.torch_compat.autocast_regions import autocast_nesting
from tests.harness.compare import assert_same_calls

BACKENDS = ("eager", "aot_eager", "native")
GOOD, BAD = torch.tensor([0, 1]), torch.tensor([0, 9])


def handled(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    try:
        return x[i] + 1
    except IndexError:
        return x * 0


def before(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    seen.append(1)
    return x[i]


def behind(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    seen.append(1)
    y = x.index_select(0, i)
    seen.append(2)
    return y * 2


def at_last(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    try:
        return x[i]
    finally:
        seen.append(3)


def caller(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    def inner() -> Any:
        seen.append(1)
        return x.gather(0, i)

    try:
        return inner()
    except (IndexError, RuntimeError) as e:
        seen.append(len(seen))
        return x.sum(), type(e).__name__


def before_a_break(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    seen.append(1)
    y = x[i]
    print(end="")
    seen.append(2)
    return y + 1


def behind_a_break(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    seen.append(1)
    print(end="")
    seen.append(2)
    y = x[i]
    seen.append(3)
    return y + 1


def a_break_inside(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    seen.append(1)
    try:
        z = x[i]
        print(end="")
    except IndexError:
        seen.append(5)
        z = x
    finally:
        seen.append(7)
    seen.append(2)
    return z + 1


def division(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    seen.append(1)
    try:
        return 10 // (i - 9)
    except RuntimeError:
        return i


def of_own_memory(seen: list[int], x: torch.Tensor, i: torch.Tensor) -> Any:
    y = torch.zeros(3)
    y[0] = 2
    y.add_(x.detach())
    try:
        y[i] = 1
    except IndexError:
        seen.append(4)
    return y * 2


PROGRAMS: list[Callable[..., Any]] = [
    handled, before, behind, at_last, caller, before_a_break, behind_a_break, a_break_inside, division, of_own_memory,
]  # fmt: skip


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", PROGRAMS)
def test_errors_come_where_eager_has_them(fn: Callable[..., Any], backend: str, grad: bool) -> None:
    for first in (GOOD, BAD):
        compiled = pycompiler.compile(fn, backend=backend)
        for i in (first, BAD, GOOD, BAD):
            given = lambda i=i: ([], torch.arange(3.0).requires_grad_(grad), i)  # noqa: E731
            assert_same_calls(compiled, fn, given, calls=1, backward=True, exact=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seen", ["", "seen.append(1)"])
@pytest.mark.parametrize("write", ["x.add_(1)", "x.data.add_(1)", "x[1:].mul_(2)", "x.view(-1).detach()[0] = 5"])
def test_what_eager_has_written_is_written_once(write: str, seen: str, backend: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def fn(seen, x, i):\n    {seen or 'pass'}\n    {write}\n    return x[i]", scope)
    compiled = pycompiler.compile(scope["fn"], backend=backend)
    compiled([], torch.ones(3), GOOD)
    given = []
    for fn in (scope["fn"], compiled):
        given.append((torch.ones(3), list[int]()))
        with pytest.raises(IndexError):
            fn(given[-1][1], given[-1][0], BAD)
    (expected, marks), (x, found) = given
    assert x.tolist() == expected.tolist()
    assert found == marks


def draws_inside(seen: list[int], x: torch.Tensor, i: torch.Tensor, w: torch.Tensor) -> Any:
    try:
        return (x + torch.rand(3))[i]
    except IndexError:
        return x * 0 + torch.rand(3)


def draws_around(seen: list[int], x: torch.Tensor, i: torch.Tensor, w: torch.Tensor) -> Any:
    z = torch.nn.functional.dropout(x, 0.5)
    try:
        z = z[i]
    except IndexError:
        seen.append(4)
    return z + torch.rand(3).sum()


def writes_before(seen: list[int], x: torch.Tensor, i: torch.Tensor, w: torch.Tensor) -> Any:
    w.add_(1)
    try:
        return x[i]
    except IndexError:
        return w * 2


def writes_around(seen: list[int], x: torch.Tensor, i: torch.Tensor, w: torch.Tensor) -> Any:
    seen.append(1)
    w.mul_(2)
    y = x[i]
    w.add_(1)
    seen.append(2)
    return y


def writes_there(seen: list[int], x: torch.Tensor, i: torch.Tensor, w: torch.Tensor) -> Any:
    try:
        w[i] = x[:2]
    except IndexError:
        w.copy_(x)  # some elements may be written
    return w + 1


def writes_and_draws(seen: list[int], x: torch.Tensor, i: torch.Tensor, w: torch.Tensor) -> Any:
    y = w + 1
    w.copy_(x * 3 + w)
    z = (x + torch.rand(3)).gather(0, i)
    w.mul_(torch.rand(3))
    return z, y


IRREVOCABLE: list[Callable[..., Any]] = [
    draws_inside, draws_around, writes_before, writes_around, writes_there, writes_and_draws,
]  # fmt: skip


def state_after(fn: Callable[..., Any], i: torch.Tensor, grads: tuple[bool, bool]) -> Any:
    """Results, side effects, gradients, written tensors, and the next random number."""
    seen: list[int] = []
    x, base = torch.arange(3.0).requires_grad_(grads[0]), torch.ones(3, requires_grad=grads[1])
    w = base * 1
    torch.manual_seed(3)
    try:
        made = fn(seen, x, i, w)
    except Exception as e:
        made = str(e)
    tensors = [t for t in (made if isinstance(made, tuple) else (made, w)) if isinstance(t, torch.Tensor)]
    if wanted := [t.sum() for t in tensors if t.requires_grad]:
        torch.autograd.backward(wanted)
    values = [t.tolist() for t in (*tensors, w)]
    return values, seen, w.requires_grad, x.grad, base.grad, torch.rand(1)


@pytest.mark.parametrize("grads", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", IRREVOCABLE)
def test_what_happens_once_happens_as_in_eager(fn: Callable[..., Any], backend: str, grads: tuple[bool, bool]) -> None:
    """Random numbers and writes, in a graph that raises."""
    compiled = pycompiler.compile(fn, backend=backend)
    for i in (GOOD, BAD, GOOD, BAD):
        torch.testing.assert_close(state_after(compiled, i, grads), state_after(fn, i, grads))


@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_tensors_count_no_writes(backend: str) -> None:
    compiled = pycompiler.compile(writes_before, backend=backend)
    with torch.inference_mode():
        for i in (GOOD, BAD):
            w = torch.ones(3)
            result = compiled([], torch.arange(3.0), i, w)
            assert w.tolist() == [2.0] * 3
            assert result.tolist() == ([0.0, 1.0] if i is GOOD else [4.0] * 3)


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_cannot_be_undone_is_in_no_graph_with_errors_that_are_handled(backend: str, order: str) -> None:
    calls: list[float] = []
    with torch.library._scoped_library("errors_of_data", "FRAGMENT") as library:
        library.define("tell(Tensor x) -> ()")
        library.impl("tell", lambda x: calls.append(float(x.sum())), "CompositeExplicitAutograd")
        library.impl("tell", lambda x: None, "Meta")
        tell = torch.ops.errors_of_data.tell

        def fn(x: torch.Tensor, i: torch.Tensor) -> Any:
            if order == "before":
                tell(x)
            try:
                y = x[i]
            except IndexError:
                return x * 2
            if order == "after":
                tell(x)
            return y

        compiled = pycompiler.compile(fn, backend=backend)
        for i in (GOOD, BAD, GOOD):
            made = []
            for f in (fn, compiled):
                calls.clear()
                made.append((f(torch.ones(3), i).tolist(), list(calls)))
            assert made[0] == made[1]
        whole = pycompiler.compile(fn, backend=backend, fullgraph=True)
        assert whole(torch.ones(3), GOOD).tolist() == [1.0, 1.0]
        if order == "after" and backend != "aot_eager":
            assert whole(torch.ones(3), BAD).tolist() == [2.0] * 3
        else:
            with pytest.raises(IndexError):  # not handled, but raised only once
                whole(torch.ones(3), BAD)


CHECKED: dict[str, tuple[Callable[[torch.Tensor], Any], Any, Any]] = {
    "a masked scatter": (lambda x: x.masked_scatter(x > 0, x[:1]), [1.0, -1.0], [1.0, 1.0]),
    "a histogram": (torch.histc, [1.0, 2.0], [1.0, float("nan")]),
    "an inverse": (torch.linalg.inv, [[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]),
    "a factor": (torch.linalg.cholesky, [[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, 1.0]]),
    "classes": (lambda x: torch.nn.functional.one_hot(x.long(), 3), [1.0], [5.0]),
    "a pseudo-inverse": (torch.linalg.pinv, [[1.0, 0.0], [0.0, 1.0]], [[float("nan")] * 2] * 2),
    "the inverse of a factor": (torch.cholesky_inverse, [[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]),
    "a solution": (
        lambda x: torch.linalg.lu_solve(x, x[0].int(), x),
        [[1.0, 2.0], [0.0, 1.0]],
        [[7.0, 9.0], [0.0, 1.0]],
    ),
    "places of maxima": (lambda x: torch.nn.functional.max_unpool1d(x, x.long(), 2), [[[0.0, 1.0]]], [[[0.0, 9.0]]]),
    "segments": (lambda x: torch.segment_reduce(x, "sum", lengths=x.long()), [1.0, 1.0], [1.0, 3.0]),
    "an order": (lambda x: torch.searchsorted(x, x, sorter=x.long()), [0.0, 1.0], [0.0, 9.0]),
    "rows of a length": (
        lambda x: torch.nn.functional.embedding(x.long(), x.view(1, 2) * 1, max_norm=1.0),
        [0.0, 0.0],
        [0.0, 9.0],
    ),
    "a scale": (
        lambda x: torch.fake_quantize_per_channel_affine(x, x.abs() + 1, x.int(), 0, 0, 255),
        [0.0, 1.0],
        [0.0, -1.0],
    ),
    "a share": (lambda x: torch.nn.functional.binary_cross_entropy(x, x), [0.5], [2.0]),
}


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", list(CHECKED))
def test_kernels_that_check_their_arguments(name: str, backend: str, read: bool) -> None:
    """The error comes whether the result is used or not."""
    operator, good, bad = CHECKED[name]

    def fn(seen: list[int], x: torch.Tensor) -> Any:
        seen.append(1)
        try:
            y = operator(x)
        except (RuntimeError, IndexError) as e:
            return type(e)
        return (y, x + 1) if read else x + 1

    compiled = pycompiler.compile(fn, backend=backend)
    for values in (good, bad):
        seen: list[int] = []
        expected, found = fn([], torch.tensor(values)), compiled(seen, torch.tensor(values))
        assert seen == [1]
        if isinstance(expected, type):
            assert found is expected
        else:
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_switched_state_is_switched_back(backend: str) -> None:
    """Eager leaves the `with` block by its error."""

    @pycompiler.compile(backend=backend)
    def fn(x: torch.Tensor, i: torch.Tensor) -> Any:
        with torch.no_grad(), torch.autocast("cpu"):
            return x[i]

    fn(torch.ones(3), GOOD)
    with pytest.raises(IndexError):
        fn(torch.ones(3), BAD)
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu") and autocast_nesting() == 0


def test_a_users_backend_tells_its_errors() -> None:
    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        def fails(*args: Any) -> Any:
            raise ValueError("of the backend")

        return fails

    with pytest.raises(ValueError, match="of the backend"):
        pycompiler.compile(before, backend=backend)([], torch.ones(3), GOOD)


@pytest.mark.parametrize("backend", BACKENDS)
def test_operators_of_the_programs_that_compute_do_not_break_graphs_with_errors_that_are_handled(backend: str) -> None:
    """Expert products in transformers use such an operator: it must not break the graph there."""
    with torch.library._scoped_library("errors_of_data", "FRAGMENT") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")

        def fn(x: torch.Tensor, i: torch.Tensor) -> Any:
            try:
                return torch.ops.errors_of_data.double(x)[i]
            except IndexError:
                return x - 1

        compiled = pycompiler.compile(fn, backend=backend)
        for i in (GOOD, BAD, GOOD):
            assert torch.equal(compiled(torch.ones(3), i), fn(torch.ones(3), i))
        assert compiled.counters()["compiles"] == 1


# Operators that draw random numbers, with arguments that they refuse.
DRAWING: dict[str, Callable[[Tensor], Tensor]] = {
    "bernoulli": torch.bernoulli,
    "bernoulli_": lambda x: torch.empty(2).bernoulli_(x),
    "normal": lambda x: torch.normal(0.0, x),
    "normal of means": lambda x: torch.normal(x, x),
    "poisson": torch.poisson,
    "multinomial": lambda x: torch.multinomial(x, 1),
    "too many": lambda x: torch.multinomial(x.abs(), 3),
    "uniform_": lambda x: x.clone().uniform_(3, 1),
    "random_": lambda x: x.clone().random_(3, 1),
    "probability": lambda x: torch.bernoulli(x, 2.0),
    "randint_like": lambda x: torch.randint_like(x, 5, 2),
}


def caught(draw: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    first = torch.rand(1)
    try:
        found = draw(x)
    except RuntimeError:
        found = torch.rand(1)
    return first, found, torch.rand(1)


def uncaught(draw: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    x.add_(0.01)
    found = draw(x)
    x.add_(1)
    return found, torch.rand(1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [caught, uncaught], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("name", DRAWING)
def test_operators_that_draw_refuse_where_eager_does(name: str, program: Any, backend: str) -> None:
    draw = DRAWING[name]

    def fn(x: Tensor) -> Any:
        return program(draw, x)

    assert_same_calls(pycompiler.compile(fn, backend=backend), fn, lambda: (torch.tensor([0.5, -1.0]),), exact=True)


class State:
    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.ones(2, 2))
        self.view = self.weight[0]
        self.seen = 0
        with torch.inference_mode():
            self.inferred = torch.ones(2)


def written_view_of_a_leaf(s: State) -> Tensor:
    v = s.view
    s.seen = 1
    return v.add_(1)


def written_expanded(s: State) -> Tensor:
    v = (s.weight * 2)[:1].expand(3, 2)
    s.seen = 1
    return v.add_(1)


def written_inferred(s: State) -> Tensor:
    v = s.inferred
    s.seen = 1
    return v.add_(1).sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [written_view_of_a_leaf, written_expanded, written_inferred])
def test_a_write_that_is_refused_comes_behind_what_the_program_did(fn: Callable[..., Any], backend: str) -> None:
    made = []
    for run in (fn, pycompiler.compile(fn, backend=backend)):
        s = State()
        with pytest.raises(RuntimeError) as error:
            run(s)
        made.append((str(error.value)[:60], s.seen, s.weight.tolist()))
    assert made[0] == made[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_grad_mode_that_is_no_bool(backend: str) -> None:
    def fn(on: Any) -> bool:
        torch.set_grad_enabled(on)
        return torch.is_grad_enabled()

    compiled = pycompiler.compile(fn, backend=backend)
    with torch.enable_grad():
        assert compiled(True)
        with pytest.raises(TypeError, match="must be bool, not int"):
            compiled(1)


def refuses_a_value(seen: list[int], a: torch.Tensor, b: torch.Tensor, i: torch.Tensor) -> Any:
    a.add_(1)
    if b.sum() > 5:
        raise ValueError("too much")
    return a * b


def handles_behind_a_write(seen: list[int], a: torch.Tensor, b: torch.Tensor, i: torch.Tensor) -> Any:
    a.add_(1)
    try:
        return b[i]
    except IndexError:
        return a * 2


def told_before(seen: list[int], a: torch.Tensor, b: torch.Tensor, i: torch.Tensor) -> Any:
    seen.append(1)
    a.mul_(2)
    y = b[i]
    seen.append(2)
    return y


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [refuses_a_value, handles_behind_a_write, told_before])
def test_written_inputs_that_share_memory_beside_an_error_of_data(
    fn: Callable[..., Any], backend: str, inference: bool
) -> None:
    """The program must get eager's error. A stand-in for it, from a graph that runs as captured, must not reach the caller."""
    compiled = pycompiler.compile(fn, backend=backend)
    for factor, i in ((0.1, GOOD), (1.0, BAD), (0.1, BAD), (1.0, GOOD)):
        made = []
        for call in (fn, compiled):
            seen: list[int] = []
            with torch.inference_mode(inference):
                x = torch.arange(6.0) * factor
                try:
                    result = call(seen, x[:4], x[1:5], i).tolist()
                except Exception as e:
                    result = repr(e)
                made.append((result, x.tolist(), seen))
        assert made[0] == made[1]


def refused_element(x: torch.Tensor, i: torch.Tensor) -> Any:
    y = x + 1
    z = y[i]
    return z * 2


def refused_view(x: torch.Tensor, i: torch.Tensor) -> Any:
    leaf.grad = None
    pycompiler.graph_break()
    return x.add_(i)


def drawn_before(x: torch.Tensor, i: torch.Tensor) -> Any:
    y = x * torch.rand(3)
    return y[i]


leaf = torch.ones(3, requires_grad=True)


@pytest.mark.parametrize(
    ("fn", "x"), [(refused_element, torch.ones(3)), (refused_view, leaf[:]), (drawn_before, torch.ones(3))],
    ids=["element", "view", "drawn"],
)  # fmt: skip
def test_errors_of_graphs_that_run_as_captured_have_the_program_s_line(fn: Callable[..., Any], x: Tensor) -> None:
    """The line must not be a line of the graph module. Nothing is written before these errors, so the frame runs again."""
    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(2):
        lines, states = [], []
        for run in (fn, compiled):
            torch.manual_seed(3)
            with pytest.raises((IndexError, RuntimeError)) as caught:
                run(x, torch.tensor([7]))
            lines.append(
                [f.lineno for f in traceback.extract_tb(caught.value.__traceback__) if f.filename == __file__][1:]
            )
            states.append(torch.get_rng_state().tolist())
        assert len(lines[0]) == 1
        assert lines[0] == lines[1]
        assert states[0] == states[1]


@pytest.mark.parametrize("write", ["x.add_(1)", "x.data.add_(1)", "x.index_add_(0, i, torch.ones(4))"])
def test_what_a_graph_that_runs_as_captured_has_written_is_not_written_again(write: str) -> None:
    scope: dict[str, Any] = {"torch": torch}
    exec(f"def fn(x, i):\n    {write}\n    return x[i]", scope)
    compiled = pycompiler.compile(scope["fn"], backend="eager")
    for make in (torch.zeros, inferred):
        given = [make(3), make(3)]
        for run, x in zip((scope["fn"], compiled), given, strict=True):
            with pytest.raises((IndexError, RuntimeError)), torch.inference_mode(x.is_inference()):
                run(x, torch.tensor([0, 0, 1, 7]))
        assert given[0].tolist() == given[1].tolist()


def inferred(n: int) -> Tensor:
    with torch.inference_mode():
        return torch.zeros(n)


def multiplied(y: Tensor, i: Tensor) -> Tensor:
    y.mul_(y.detach()[i].sin())
    return y.exp()


def drawn(y: Tensor, i: Tensor) -> Tensor:
    return torch.dropout(y.sin(), 0.5, True).exp()[i]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [multiplied, drawn])
def test_a_checkpoint_ends_what_it_computes_again(fn: Callable[..., Any], backend: str) -> None:
    """A checkpoint stops its recompute by its own exception when the last tensor is saved; no operator has failed then."""
    found = []
    for run in (fn, pycompiler.compile(fn, backend=backend)):
        torch.manual_seed(3)
        x = torch.linspace(-1, 1, 4).requires_grad_()
        i = torch.tensor([1, 0, 3, 2])
        y = checkpoint(lambda t, run=run, i=i: run(t * 2, i), x, use_reentrant=False)
        found.append((y.detach(), *torch.autograd.grad(y.square().sum(), x)))
    torch.testing.assert_close(found[1], found[0])
