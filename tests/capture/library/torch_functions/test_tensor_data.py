"""`tensor.data = other` in compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from tests.capture.harness import ANY, check

X, Y = torch.arange(3.0), torch.full((3,), 7.0)


def local(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = w = x.clone()
    z.data = torch.ones(3)
    return z * 2, z, z is w


def of_an_argument(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y
    x.add_(1)
    return x, x.shape, x * y


def of_both(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x
    x.data = y
    y.data = torch.zeros([0])
    return x is z, x


def exchanged(x: torch.Tensor, y: torch.Tensor) -> Any:
    before = x.data
    x.data = y
    y.data = before
    return x - y


def after_a_view(x: torch.Tensor, y: torch.Tensor) -> Any:
    view = x[0:2]
    x.data = y
    view.add_(1)
    return view, x


def one_after_the_other(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.add_(1)
    x.data = x * 2
    x.data = x.data + 1
    x.add_(1)
    return x * 3


def there_and_back(x: torch.Tensor, y: torch.Tensor) -> Any:
    a = x * 2
    x.data = y
    b = x * 2
    x.data = a
    return a, b, x * 2, x is a


def data_is_written(x: torch.Tensor, y: torch.Tensor) -> Any:
    made = y * 2
    x.data = made
    made.add_(1)
    return made


def set_inside(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = torch.empty(0)
    w = z.set_(y)
    w.add_(1)
    return w is z, z * 2, z.shape, y.sum()


def set_of_an_argument(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.add_(1)
    before = x * 2
    x.set_(y)
    x.mul_(3)
    return before, x, y


def set_data(x: torch.Tensor, y: torch.Tensor) -> None:
    x.data = y


PROGRAMS = (
    set_inside,
    set_of_an_argument,
    local,
    of_an_argument,
    of_both,
    exchanged,
    after_a_view,
    one_after_the_other,
    there_and_back,
    data_is_written,
)


@pytest.mark.parametrize("backend", ("eager", "native"))
@pytest.mark.parametrize("other", (Y, torch.ones(4, 2)))
@pytest.mark.parametrize("program", PROGRAMS)
def test_data_that_are_replaced(program: Callable[..., Any], other: torch.Tensor, backend: str) -> None:
    if program is exchanged and other is not Y:
        other = torch.ones(1)
    check(program, X, other, backend=backend)


@pytest.mark.parametrize("backend", ("eager", "native"))
def test_weights_are_scaled(backend: str) -> None:
    def step(model: torch.nn.Module, x: torch.Tensor) -> Any:
        before = model(x)
        with torch.no_grad():
            for p in model.parameters():
                p.data = p.data * 0.5
                p.mul_(2)
                p.data = p.data + 1
            return before, model(x)

    model = torch.nn.Linear(3, 3)
    check(step, model, X, backend=backend)

    def gradients(step: Callable[..., Any]) -> list[Any]:
        model = torch.nn.Linear(3, 3)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(2)
        for _ in range(2):
            step(model, X)[0].sum().backward()
        return [t for p in model.parameters() for t in (p, p.grad)]

    compiled = gradients(pycompiler.compile(step, fullgraph=True, backend=backend))
    assert all(map(torch.equal, compiled, gradients(step)))


def test_gradients_of_a_leaf_whose_data_were_replaced() -> None:
    def program(w: torch.Tensor, y: torch.Tensor) -> Any:
        w.data = y
        return (w * w).sum()

    w = X.clone().requires_grad_()
    check(program, w, Y, breaks="tensor-attribute-store")
    pycompiler.compile(program)(w, Y).backward()
    assert torch.equal(w.grad, 2 * Y)


def test_data_that_replace_what_was_saved() -> None:
    """Eager saves the leaf itself, so its backward sees the new data."""

    def program(w: torch.Tensor, y: torch.Tensor) -> Any:
        before = (w * w).sum()
        w.data = y
        return before

    for run in (program, pycompiler.compile(program, fullgraph=True)):
        w = X.clone().requires_grad_()
        run(w, Y).backward()
        assert torch.equal(w.grad, 2 * Y) and torch.equal(w, Y)


@pytest.mark.parametrize("backend", ("eager", "native"))
@pytest.mark.parametrize("replace", (set_data, torch.Tensor.set_))
@pytest.mark.parametrize("of_a_view", (False, True))
def test_a_history_behind_data_that_were_replaced(of_a_view: bool, replace: Callable[..., Any], backend: str) -> None:
    """The first write that autograd sees afterwards: generated code gives an existing tensor data without a history."""

    def program(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Any:
        replace(x, y * 2)
        (x[:2] if of_a_view else x).mul_(w[:2] if of_a_view else w)
        return x.is_leaf, x.requires_grad, x.grad_fn is None

    check(program, X, Y, X.clone().requires_grad_(), breaks=ANY, backend=backend, recompiles=1)
    gradients = []
    for run in (program, pycompiler.compile(program, backend=backend)):
        x, w = X.clone(), Y.clone().requires_grad_()
        run(x, Y, w)
        x.sum().backward()
        gradients.append((x.detach(), w.grad))
    assert all(map(torch.equal, *gradients))


def test_set_beside_gradients() -> None:
    """`set_` on a leaf raises, and after `set_` a saved tensor has another version."""

    def of_a_leaf(w: torch.Tensor, y: torch.Tensor) -> Any:
        try:
            w.set_(y)
        except RuntimeError as error:
            return str(error)

    check(of_a_leaf, X.clone().requires_grad_(), Y, breaks="unsupported-operation")

    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        made = x * w
        x.set_(torch.ones(3))
        return made.sum()

    for run in (program, pycompiler.compile(program, fullgraph=True)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            run(X.clone(), Y.clone().requires_grad_()).backward()


@pytest.mark.parametrize("arguments", [(), (X.untyped_storage(), 0, (2,), (1,))])
def test_set_to_a_storage_breaks_the_graph(arguments: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        return x.set_(*arguments)

    check(program, X, breaks="unsupported-operation")


def test_data_of_other_sizes() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.data = y
        return x * 2

    compiled = pycompiler.compile(program, fullgraph=True, backend="eager")
    for n in (3, 4, 5, 6):
        x, y = torch.ones(n + 1), torch.arange(float(n))
        assert torch.equal(compiled(x, y), y * 2) and x.data_ptr() == y.data_ptr()


@pytest.mark.parametrize("value", (5, torch.ones(3, dtype=torch.float64), None))
def test_data_that_break_the_graph(value: Any) -> None:
    def program(x: torch.Tensor, y: Any) -> Any:
        try:
            x.data = y
        except Exception as error:
            return type(error)
        return x

    check(program, X, value, breaks="tensor-attribute-store")


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "native"))
@pytest.mark.parametrize("take", (lambda x, y: setattr(x, "data", y), lambda x, y: x.set_(y)))
def test_versions_count_what_is_written_behind(take: Callable[..., Any], backend: str) -> None:
    """After `x` takes the data of `y`, a write to `x` counts for the version of `x`, not for the version of `y`."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        take(x, y)
        x.mul_(3)
        x[0:1].add_(2)
        take(x, y * 2)
        x.add_(1)
        y.add_(1)
        return x * 2

    seen = []
    for run in (program, pycompiler.compile(program, fullgraph=True, backend=backend)):
        x, y = X.clone(), Y.clone()
        seen.append((run(x, y), x, y, x._version, y._version))
        w = Y.clone().requires_grad_()
        saved = (x * w).sum()
        run(x, y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.backward()
    torch.testing.assert_close(seen[1], seen[0])


def by_a_view_from_before(w: Any, x: Any, y: Any) -> Any:
    view, alone = x[1:], x.detach()
    x.set_(y)
    view.mul_(2)
    alone.add_(1)
    x.mul_(3)
    return x, view._version, alone._version


def by_a_view_of_the_first(w: Any, x: Any, y: Any) -> Any:
    x.data = y
    view = x[1:]
    x.data = y * 2
    view.add_(1)
    x.add_(1)
    return x, view, view._version


def detached_afterwards(w: Any, x: Any, y: Any) -> Any:
    x.set_(y)
    alone = x.detach()
    alone.add_(1)
    return x, alone, alone._version


def written_before(w: Any, x: Any, y: Any) -> Any:
    made = x * 2
    made.add_(1)
    made.set_(y)
    made.mul_(2)
    return made, made._version


def with_a_view(w: Any, x: Any, y: Any) -> Any:
    made = x * 2
    view = made.view(-1)
    made.set_(y)
    view.add_(1)
    return made, view, made._version


def into_a_view_from_before(w: Any, x: Any, y: Any) -> Any:
    view = x.view(3)
    x.set_(y)
    torch.add(x, 1, out=view)
    return x, view


def saved_before(w: Any, x: Any, y: Any) -> Any:
    made = x * 2
    product = w * made
    made.set_(y)
    return product


@pytest.mark.parametrize(
    "program",
    [by_a_view_from_before, by_a_view_of_the_first, detached_afterwards, written_before, with_a_view, into_a_view_from_before,
     saved_before],
)  # fmt: skip
def test_versions_of_what_shares_them(program: Callable[..., Any]) -> None:
    def of(run: Callable[..., Any]) -> Any:
        w, x, y = torch.ones(3, requires_grad=True), X.clone(), Y.clone()
        result = run(w, x, y)
        if program is saved_before:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                result.sum().backward()
        parts = result if isinstance(result, tuple) else (result,)
        return [t.tolist() if isinstance(t, torch.Tensor) else t for t in parts], x._version, y._version, x.tolist()

    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(2):
        assert of(compiled) == of(program)


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "native"))
def test_what_data_gives_counts_its_own_versions(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        return x.data, x.detach(), x.data.view(-1), (x * 2).data

    def of(run: Callable[..., Any]) -> list[int]:
        x, versions = X.clone(), list[int]()
        for t in run(x):
            t.add_(1)
            versions += [x._version, t._version]
        return versions

    assert of(pycompiler.compile(program, backend=backend, fullgraph=True)) == of(program)


def array_before(x: torch.Tensor, y: torch.Tensor) -> Any:
    array = x.numpy()
    x.data = y.clone()
    array[0] = 9
    return torch.from_numpy(array) + 0, x * 2


def array_of_a_new_tensor(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x + 1
    array = z.numpy()
    z.data = y.clone()
    array[0] = 9
    return array, z * 1


def array_behind(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y.clone()
    return x.numpy(), y * 2


def array_across_a_break(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.set_(y.clone())
    array = x.numpy()
    print(end="")
    array += 3
    return y * 2


def numbers_of_old_data(x: torch.Tensor, y: torch.Tensor) -> Any:
    parts = torch.tensor([1, 2])
    parts.data = torch.tensor([2, 1])
    return torch.split(x, parts.tolist())


@pytest.mark.parametrize("backend", ("eager", "native"))
@pytest.mark.parametrize(
    "program", [array_before, array_of_a_new_tensor, array_behind, array_across_a_break, numbers_of_old_data]
)
def test_arrays_and_numbers_keep_the_data_they_came_from(program: Callable[..., Any], backend: str) -> None:
    compiled, results = pycompiler.compile(program, backend=backend), []
    for run in (compiled, program):
        x, y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0, 6.0, 7.0])
        old = x.detach()
        made = run(x, y)
        for value in made if isinstance(made, tuple) else ():
            value[0] += 20
        results.append([torch.as_tensor(v) for v in (*(made if isinstance(made, tuple) else (made,)), old, x, y)])
    assert all(map(torch.equal, *results)), results
    assert pycompiler.explain(program)(torch.ones(3), torch.ones(3)).graph_count
