"""Relations of tensors to each other and to autograd after a call, found by random programs."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

BACKENDS = ("eager", "aot_eager", "native")
Program = Callable[..., Any]


def seen(made: Any, *given: torch.Tensor) -> list[Any]:
    """Values, layouts and aliases, before and after a write to each result."""
    results = made if isinstance(made, tuple) else (made,)
    facts: list[Any] = [(t.tolist(), t.stride(), [t._base is g for g in given], t._is_view()) for t in results]
    for t in results:
        t.add_(1)
    return [*facts, *(t.tolist() for t in (*results, *given)), [g._version for g in given]]


def unsafe_chunk(b: torch.Tensor, a: torch.Tensor) -> Any:
    v = b.unsafe_chunk(2)[0]
    v += 1
    return b * 1


def unsafe_split(b: torch.Tensor, a: torch.Tensor) -> Any:
    return torch.unsafe_split(b, 2)[0]


def unsafe_split_with_sizes(b: torch.Tensor, a: torch.Tensor) -> Any:
    v = b.unsafe_split_with_sizes([1, 3])[1]
    b.add_(1)
    return v * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [unsafe_chunk, unsafe_split, unsafe_split_with_sizes])
def test_pieces_that_autograd_takes_for_copies_share_memory(program: Program, backend: str) -> None:
    compiled = pycompiler.compile(program, backend=backend)
    found = []
    for run in (program, compiled):
        b, a = torch.arange(4.0), torch.ones(4)
        found.append(seen(run(b, a), b, a))
    assert found[0] == found[1]


def out_is_a_piece(b: torch.Tensor, a: torch.Tensor) -> Any:
    torch.mul(a, 2, out=b.unbind()[0])
    return b * 1


def out_is_a_view(b: torch.Tensor, a: torch.Tensor) -> Any:
    v = b.clone()
    torch.mul(a, 2, out=v[:2])
    return v


def out_has_a_view(b: torch.Tensor, a: torch.Tensor) -> Any:
    v = b[:2].clone()
    w = v[:1]
    torch.mul(a, 2, out=v)
    return v, w


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [out_is_a_piece, out_is_a_view, out_has_a_view])
def test_what_is_given_for_a_result_is_resized_where_it_lies(program: Program, backend: str) -> None:
    compiled = pycompiler.compile(program, backend=backend)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for run in (program, compiled):
            b, a = torch.arange(4.0), torch.ones(4)
            found.append(seen(run(b, a), b, a))
    assert found[0] == found[1]
    assert pycompiler.counters(compiled)["compiles"] >= 1


def data_then(text: str) -> Program:
    scope: dict[str, Any] = {}
    exec(f"def program(t):\n    t.data = t.data.clone()\n    {text}", scope)
    return scope["program"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "text",
    [
        "return t[:2]", "return t.split(2)[1]", "return t.detach()", "return t.view(-1)[1:], t * 2", "return t.data",
        "v, w = t.split(2); v.mul_(2); return t", "t.mul_(2); return t",
    ],
)  # fmt: skip
def test_views_of_a_tensor_with_other_data_are_views_of_it(text: str, backend: str) -> None:
    """The views must be views of that tensor: a differentiable write to one gives the tensor a history."""
    program = data_then(text)
    compiled = pycompiler.compile(program, backend=backend)
    for history in (False, True):
        found = []
        for run in (program, compiled):
            t, w = torch.arange(4.0), torch.ones((), requires_grad=True)
            made = run(t)
            if history:
                made = made[0] if isinstance(made, tuple) else made
                try:
                    made.mul_(w)
                    t.sum().backward()
                except RuntimeError as error:
                    found.append([str(error)])
                    continue
                found.append([t.requires_grad, made.requires_grad, w.grad])
            else:
                found.append(seen(made, t))
        assert found[0] == found[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_backwards_inside_are_no_views(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.sum().backward()
        return x * 2

    compiled = pycompiler.compile(program, backend=backend)
    for run in (program, compiled):
        x = torch.tensor(3.0, requires_grad=True)
        run(x)
        assert x.grad is not None and not x.grad._is_view() and x.grad.tolist() == 1


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 3


@pytest.mark.parametrize("grad", [False, True])
def test_writes_of_a_function_are_counted_once(grad: bool) -> None:
    """The trace of the Function must not count its writes again."""

    def program(x: torch.Tensor) -> tuple[int, torch.Tensor]:
        y = Tripled.apply(x * 1)
        return y._version, y

    compiled = pycompiler.compile(program, backend="eager")
    found = [run(torch.ones(2, requires_grad=grad)) for run in (program, compiled)]
    assert found[0][0] == found[1][0] == found[1][1]._version
    assert pycompiler.counters(compiled)["compiles"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("turn", ["unsqueeze_(0)", "t_()", "squeeze_()"])
def test_a_gradient_is_given_before_its_tensor_is_turned(turn: str, backend: str) -> None:
    """The gradient is assigned while the tensor still has its old sizes."""
    scope: dict[str, Any] = {}
    exec(f"def program(x, g):\n    x.grad = g.detach()\n    x.{turn}\n    return x * 2", scope)
    program = scope["program"]
    compiled = pycompiler.compile(program, backend=backend)
    found = []
    for run in (program, compiled):
        x, g = torch.arange(2.0).view(1, 2), torch.ones(1, 2)
        found.append([run(x, g).tolist(), x.shape, None if x.grad is None else x.grad.tolist()])
    assert found[0] == found[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_data_of_an_inference_tensor_are_replaced_where_the_program_says(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.data = torch.zeros(2, 3)
        x.t_()
        return x

    compiled = pycompiler.compile(program, backend=backend)
    found = []
    for run in (program, compiled):
        with torch.inference_mode():
            x = torch.ones(2, 3)
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor") as caught:
            run(x)
        lines = [f.lineno for f in traceback.extract_tb(caught.value.__traceback__) if f.filename == __file__][1:]
        found.append([lines, x.tolist()])
    assert found[0] == found[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_refused_writes_to_expanded_tensors_of_any_size_have_the_programs_line(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.fill_(x.sum())
        return x

    compiled = pycompiler.compile(program, backend=backend)
    compiled(torch.ones(4))
    for n in (6, 7):
        found = []
        for run in (program, compiled):
            with pytest.raises(RuntimeError, match="single memory location") as caught:
                run(torch.ones(1).expand(n))
            found.append([(f.name, f.lineno) for f in traceback.extract_tb(caught.value.__traceback__)][1:])
        assert found[0] == found[1]


def of_a_leaf_inside(t: torch.Tensor) -> torch.Tensor:
    return torch.ones(3, requires_grad=True) * 2


def written_with_a_leaf_inside(t: torch.Tensor) -> torch.Tensor:
    v = t.clone()
    return v.mul_(torch.ones(3, requires_grad=True))


def gradient_by_a_leaf_inside(t: torch.Tensor) -> torch.Tensor:
    v = t * torch.ones(3, requires_grad=True)
    return torch.autograd.grad((v * v).sum(), v, create_graph=True)[0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [of_a_leaf_inside, written_with_a_leaf_inside, gradient_by_a_leaf_inside])
def test_results_that_lead_to_leaves_inside_alone_require_grad(program: Program, backend: str) -> None:
    compiled = pycompiler.compile(program, backend=backend)
    found = [run(torch.arange(3.0)) for run in (program, compiled)]
    assert torch.equal(found[0], found[1])
    assert found[0].requires_grad and found[1].requires_grad
    found[1].sum().backward()
    assert pycompiler.counters(compiled)["compiles"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_set_before_a_backward_needs_it_is_written_before(backend: str) -> None:
    """The write is counted before the backward saves the tensor, so the backward raises no error."""

    def program(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x * p.new_empty(0).set_(p)

    compiled = pycompiler.compile(program, backend=backend)
    for run in (program, compiled):
        x = torch.ones(2, requires_grad=True)
        run(torch.arange(2.0), x).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [0, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_inference_tensor_that_shall_require_grad_is_refused_at_its_line(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = torch.ones(2)
        x.requires_grad = True
        return y

    found = []
    for run in (program, pycompiler.compile(program, backend=backend)):
        with torch.inference_mode():
            x = torch.ones(2)
        with pytest.raises(RuntimeError, match="requires_grad=True on inference tensor") as caught:
            run(x)
        found.append([f.lineno for f in traceback.extract_tb(caught.value.__traceback__) if f.filename == __file__][1:])
    assert found[0] == found[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_without_a_history_gets_a_flag_of_its_own(backend: str) -> None:
    """The view's flag is its base's until the program sets it; from then on the view has its own gradient."""

    def program(x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        return x * 2

    compiled = pycompiler.compile(program, backend=backend)
    for run in (program, compiled, compiled):
        leaf = torch.ones(3, requires_grad=True)
        with torch.no_grad():
            x = leaf[:]
        run(x).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [2, 2, 2] and leaf.grad is None
    assert torch.autograd.grad(compiled(leaf).sum(), leaf)[0].tolist() == [2, 2, 2]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("piece", ["split(3)[0]", "chunk(1)[0]", "split(3)[0].view(3)"])
def test_gradients_by_a_lone_piece_and_what_is_made_of_it(piece: str, backend: str) -> None:
    """The piece is all of its base, so the trace has a result and a view of it: gradients by the piece must not be lost."""
    scope: dict[str, Any] = {}
    exec(f"def program(x, w):\n    v = (x * w).{piece}\n    return v * v, v", scope)
    compiled = pycompiler.compile(scope["program"], backend=backend)
    found = []
    for run in (scope["program"], compiled):
        x, w = torch.arange(1.0, 4.0), torch.tensor([1.0, -2.0, 0.5], requires_grad=True)
        made, v = run(x, w)
        found.append(
            [*torch.autograd.grad(made.sum(), (v, w), retain_graph=True), *torch.autograd.grad((made + v).sum(), w)]
        )
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_that_is_written_behind_a_break_where_gradients_were_off(backend: str) -> None:
    """The view is rebuilt as if gradients had been on at its creation; its offset needs a valid argument name of the operator."""
    log: list[bool] = []

    def program(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            log.append(x.data_ptr() == x.data_ptr())
        v = g[1:].unflatten(0, (2, -1))
        v *= 2
        return v

    compiled = pycompiler.compile(program, backend=backend)
    found = []
    for run in (program, compiled):
        g, x = torch.arange(5.0), torch.ones(2)
        found.append(seen(run(g, x), g))
    assert found[0] == found[1] and log == [True, True]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_of_another_dtype_in_inference_mode_is_an_inference_tensor(backend: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.inference_mode():
            return x.view(torch.int32), x[1:]

    compiled = pycompiler.compile(program, backend=backend)
    found = [[(t.is_inference(), t.tolist()) for t in run(torch.ones(3))] for run in (program, compiled)]
    assert found[0] == found[1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("write", ["v.fill_(2)", "x.mul_(2)", "x[1:].zero_()", "x.data.mul_(2)"])
def test_views_of_a_leaf_that_is_written_without_gradients_have_eagers_history(write: str, backend: str) -> None:
    """In eager the histories of these views start again, at nothing."""
    scope: dict[str, Any] = {"torch": torch}
    text = f"def program(x):\n    v = x[1:]\n    with torch.no_grad():\n        {write}\n    return x.sum() + (v * 2).sum()"
    exec(text, scope)
    compiled = pycompiler.compile(scope["program"], backend=backend)
    found = []
    for run in (scope["program"], compiled):
        x = torch.arange(3.0, requires_grad=True)
        made = run(x)
        made.backward()
        assert x.grad is not None
        found.append((made.item(), x.tolist(), x.grad.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_backwards_to_inputs_pass_what_was_computed_outside(backend: str) -> None:
    """The gradient is stored even if an error follows."""

    def program(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> None:
        (x * h).sum().backward(inputs=[w])
        raise ValueError("of the program")

    compiled = pycompiler.compile(program, backend=backend)
    for run in (program, compiled):
        w = torch.ones(3, requires_grad=True)
        with pytest.raises(ValueError, match="of the program"):
            run(torch.arange(3.0), w[:], w)
        assert w.grad is not None and w.grad.tolist() == [0, 1, 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_zeros_without_memory_stay_such(backend: str) -> None:
    """Such tensors are no graph inputs: eager runs the operators on them."""

    def program(x: torch.Tensor) -> Any:
        return x * 2, x.t() @ x, x

    compiled = pycompiler.compile(program, backend=backend)
    for make in (torch._efficientzerotensor, torch.zeros, torch._efficientzerotensor):
        found, expected = (
            [(t._is_zerotensor(), t.clone().tolist()) for t in run(make((2, 2)))] for run in (compiled, program)
        )
        assert found == expected


def test_the_version_of_a_result_beside_numbers_that_change() -> None:
    """`linear` of a vector writes into its own result; with size symbols another operator makes this write."""

    def counts(x: torch.Tensor, table: dict[str, int]) -> None:
        table["a"] += torch.nn.functional.linear(x, torch.ones(3, 3))._version

    compiled, found = pycompiler.compile(counts, backend="eager"), []
    for fn in (counts, compiled):
        table = {"a": 1}
        for _ in range(4):
            fn(torch.ones(3), table)
        found.append(table["a"])
    assert found[0] == found[1]
