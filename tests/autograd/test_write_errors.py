"""Write errors: eager's saved tensors and the reached inputs decide which writes raise, and compiled code raises the same.

Each program runs compiled and eagerly, and both differentiate its results, or raise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ad_helpers import fakes, lifted

import pycompiler
from pycompiler.autograd.decompositions import default_decompositions
from pycompiler.autograd.partition import partition
from pycompiler.autograd.trace import trace_joint
from tests.harness.compare import assert_same

MODIFIED = "needed for gradient computation has been modified by an inplace operation"
BACKENDS = ["native", "aot_eager"]


def gradients(fn: Callable[..., Any], args: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    args = [a.clone().requires_grad_(a.requires_grad) for a in args]
    arrived = [a * 1 if a.requires_grad and a.dim() == 1 else a for a in args]  # vectors are results of other work
    results = [r for r in fn(*arrived) if r.requires_grad]
    torch.autograd.backward([r.square().sum() for r in results])
    return [a.grad for a in args]


def same(fn: Callable[..., Any], args: Sequence[torch.Tensor], backend: str) -> None:
    assert_same(gradients(pycompiler.compile(fn, backend=backend), args), gradients(fn, args))


def both_raise(fn: Callable[..., Any], args: Sequence[torch.Tensor], backend: str, match: str = MODIFIED) -> None:
    for f in (fn, pycompiler.compile(fn, backend=backend)):
        with pytest.raises(RuntimeError, match=match):
            gradients(f, args)


def vector(*, grad: bool = True) -> torch.Tensor:
    return torch.linspace(0.1, 1, 4, dtype=torch.float64).requires_grad_(grad)


def matrix(*, grad: bool = True) -> torch.Tensor:
    return torch.linspace(0.1, 1, 16, dtype=torch.float64).view(4, 4).requires_grad_(grad)


# -- inputs that a gradient reaches -----------------------------------------------------------------------------------


def unreached(a: torch.Tensor, b: torch.Tensor) -> Any:
    t = a.sin()
    kept = t * t
    t.mul_(2)  # `kept` has no derivative any more
    if kept.sum() > 100:
        return (a,)
    kept += 1
    return (b.cos(),)  # a result of the same graph


def dead(a: torch.Tensor, b: torch.Tensor) -> Any:
    t = a.sin()
    kept = t * t
    t.mul_(2)
    if kept.sum() > 100:
        return (a,)
    return (b.cos() * (kept > 0),)  # read, without a gradient


def twice(a: torch.Tensor, b: torch.Tensor) -> Any:
    s, t = a.sin(), b.sin()
    if s.sum() > 100:
        return (a,)
    s.mul_(2)  # three results, two paths
    t.mul_(3)
    return (t.exp(), t.cos(), s)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [unreached, dead, twice])
def test_gradients_reach_whom_they_reach_in_eager(fn: Any, backend: str) -> None:
    same(fn, [vector(), vector()], backend)
    same(fn, [vector(), matrix()], backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ways_go_one_after_the_other(backend: str) -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> Any:
        return a.sin() * 2, b.exp(), (a * b).cos(), a.detach() + 1

    def ask(f: Any, order: Sequence[int], create_graph: bool) -> Any:
        leaves = [vector(), vector()]
        arrived = [leaf * 1 for leaf in leaves]
        results = f(*arrived)
        assert not results[3].requires_grad
        found = []
        for k in order:
            given = torch.autograd.grad(
                results[k].sum(), leaves, allow_unused=True, retain_graph=True, create_graph=create_graph
            )
            if create_graph:
                total = sum(g.square().sum() for g in given if g is not None)
                given += torch.autograd.grad(total, leaves, allow_unused=True, retain_graph=True)
            found.append(given)
        return found

    compiled = pycompiler.compile(fn, backend=backend)
    for create_graph in (False, True):
        for order in ([0, 1, 2], [2, 1, 0]):
            for got, want in zip(ask(compiled, order, create_graph), ask(fn, order, create_graph), strict=True):
                assert [g is None for g in got] == [w is None for w in want]
                for g, w in zip(got, want, strict=True):
                    if w is not None:
                        torch.testing.assert_close(g, w)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_argument_that_another_is_written_with_keeps_its_history(backend: str) -> None:
    def fn(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        a[:] = c
        return (b * 2,)

    leaf, other = vector(), vector()
    a, b, c = leaf * 1, other * 1, torch.ones(4, dtype=torch.float64)
    pycompiler.compile(fn, backend=backend)(a, b, c)
    assert a.requires_grad and c.is_leaf and not c.requires_grad


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_numbers_of_two_ways(backend: str) -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> Any:
        return F.dropout(a.exp(), 0.5), F.dropout(b.sin(), 0.5)

    def ask(f: Any) -> Any:
        torch.manual_seed(3)
        a, b = (vector() for _ in range(2))
        results = f(a * 1, b * 1)
        return [
            *torch.autograd.grad(results[1].sum(), b, retain_graph=True),
            *torch.autograd.grad(results[0].square().sum(), a, create_graph=True),
        ]

    for got, want in zip(ask(pycompiler.compile(fn, backend=backend)), ask(fn), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(("rows", "ways"), [(8, [[0], [1], [2]]), (200_000, [[0, 1], [2]])])
def test_much_work_is_not_done_for_each_way(rows: int, ways: Any) -> None:
    def fn(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        s = a.sin().exp()
        return s, (s * b).cos(), c.cos()

    gm, _ = lifted(fn, [torch.randn(rows, requires_grad=True) * 1 for _ in range(3)])
    examples = fakes(gm)
    joint = trace_joint(gm, examples, examples[0].fake_mode, default_decompositions())
    assert [list(w.tangents) for w in joint.ways()] == ways


# -- tensors that eager saves -----------------------------------------------------------------------------------------


def output_that_is_gone(a: torch.Tensor, b: torch.Tensor) -> Any:
    t = a.exp()
    if t.sum() > 100:
        return (a,)
    t.add_(1)  # exp saves its result
    return (t * 2,)


def input_that_is_gone(a: torch.Tensor, b: torch.Tensor) -> Any:
    t = b.detach() + 1
    if t.sum() > 1000:
        return (a,)
    u = (t * 2).sin()  # part of a graph with `t` as an input
    r = a * t
    if u.sum() > 1000:
        return (a,)
    t.add_(1)
    return (r,)


def result_without_need(a: torch.Tensor, b: torch.Tensor) -> Any:
    index = torch.zeros(4, dtype=torch.int64)
    t = a.scatter_reduce(0, index, b.detach(), "sum")  # saves its result, which a sum does not need
    if t.sum() > 1000:
        return (a,)
    t.mul_(2)
    return (t,)


def written_input(a: torch.Tensor, b: torch.Tensor) -> Any:
    t = b.detach() + 1
    if t.sum() > 1000:
        return (a,)
    t.mul_(2)
    r = a * t  # saves `t` as it is after the write
    if r.sum() > 1000:
        return (a,)
    t.add_(1)
    return (r,)


def part_that_is_written(a: torch.Tensor, b: torch.Tensor) -> Any:
    t = a * 1
    t[-2:].tanh_()  # saves its result, in an unreachable node
    if t.sum() > 1000:
        return (a,)
    t[:2] = b[:2]
    return (t,)


def index_of_a_write(a: torch.Tensor, b: torch.Tensor) -> Any:
    t, at = a * 1, b.detach() > 0
    if t.sum() > 1000:
        return (a,)
    t[1:][at[1:]] *= 2.0
    if t.sum() > 1000:
        return (a,)
    at.fill_(True)
    return (t,)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fn",
    [
        *(output_that_is_gone, input_that_is_gone, result_without_need, written_input),
        *(part_that_is_written, index_of_a_write),
    ],
)
def test_writes_to_what_eager_keeps_raise(fn: Any, backend: str) -> None:
    both_raise(fn, [vector(), vector(grad=False)], backend)


# -- tensors that eager does not save ---------------------------------------------------------------------------------


def output_of_a_norm(a: torch.Tensor, b: torch.Tensor) -> Any:
    t = F.layer_norm(a, (4,))
    r = t * 2
    if r.sum() > 1000:
        return (a,)
    t += 1
    return (r,)


def read_by_a_comparison(a: torch.Tensor, b: torch.Tensor) -> Any:
    r = torch.where(a >= 0.3, a, -a)
    if r.sum() > 1000:
        return (a,)
    a[2:3] = 2
    return (r,)


def computed_again(a: torch.Tensor, b: torch.Tensor) -> Any:
    t = b.detach() * 3
    if t.sum() > 1000:
        return (a,)
    r = a * (t + 1).sin()  # saves the sine
    if r.sum() > 1000:
        return (a,)
    t.zero_()
    return (r,)


def written_by_itself(a: torch.Tensor, b: torch.Tensor) -> Any:
    b[:] = b  # changes only the version, before the save
    return (a * b,)


def kept_for_another_result(a: torch.Tensor, b: torch.Tensor) -> Any:
    product, chosen = a * b, torch.where(b > 0, a, -a).exp()  # the product saves `b`, the choice does not
    if product.sum() > 1000:
        return (a,)
    b.add_(1)
    return (chosen,)


def result_kept_for_another(a: torch.Tensor, b: torch.Tensor) -> Any:
    t = a * 2
    s = torch.logsumexp(t, -1)  # saves `t`
    r = t.masked_fill(~(t > 0.3), -1.0)
    if r.sum() > 1000:
        return (s,)
    t += s
    return (r,)


def kept_after_an_empty_write(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
    x.masked_fill_(x > 0.2, 0.5)
    return ((z + 1).mul_(y) @ y.t(),)


def kept_before_an_empty_write(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
    r = F.mish(y)
    x.add_(1)
    return (r,)


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_views_count_their_versions_together(backend: str) -> None:
    def answer(f: Any) -> Any:
        x = (torch.ones(2, 1, dtype=torch.float64).requires_grad_() * 1)[:, 1:]
        (out,) = f(x, x[:1], torch.ones(1, 0, dtype=torch.float64))
        try:
            out.sum().backward()
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error)
        return out.detach().tolist()

    for fn in (kept_after_an_empty_write, kept_before_an_empty_write):
        expected = answer(fn)
        assert answer(pycompiler.compile(fn, backend=backend)) == expected
    assert expected is True


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_write_of_itself_counts_for_who_shares_the_memory(backend: str) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        r = F.mish(x)
        y[:] = y
        return r

    for size in (0, 3):
        for f in (fn, pycompiler.compile(fn, backend=backend)):
            x = torch.ones(size, requires_grad=True)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                f(x, x.detach()).sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fn",
    [
        *(output_of_a_norm, read_by_a_comparison, computed_again, written_by_itself),
        *(kept_for_another_result, result_kept_for_another),
    ],
)
def test_writes_to_what_eager_does_not_keep_are_no_errors(fn: Any, backend: str) -> None:
    same(fn, [vector(), vector(grad=False)], backend)


def kept_for_one_result(a: torch.Tensor, b: torch.Tensor) -> Any:
    product, chosen = a * b, torch.where(b > 0, a, -a).exp()
    if product.sum() > 1000:
        return (a,)
    b.add_(1)
    return product, chosen


def result_kept_for_one(a: torch.Tensor, b: torch.Tensor) -> Any:
    t = a * 2
    s = torch.logsumexp(t, -1)
    r = t.masked_fill(~(t > 0.3), -1.0)
    if r.sum() > 1000:
        return (s,)
    t += 1
    return s, r


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [kept_for_one_result, result_kept_for_one])
def test_writes_to_what_one_result_keeps_raise_for_that(fn: Any, backend: str) -> None:
    both_raise(fn, [vector(), vector(grad=False)], backend)


def test_large_arguments_are_saved_as_they_are() -> None:
    """A copy of a large argument that eager does not save would cost as much as the cut saves."""
    for rows, itself in ((8, False), (300_000, True)):
        gm, _ = lifted(lambda x, y: ((x + y) * 2).sin(), [torch.randn(rows, requires_grad=True), torch.randn(rows)])
        examples = fakes(gm)
        joint = trace_joint(gm, examples, examples[0].fake_mode, default_decompositions())
        assert ({kind for kind, _ in partition(joint).saved} == {"input"}) is itself


# -- refusals of eager's nodes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_that_eager_writes_to_integers_raise(backend: str) -> None:
    count = torch.arange(1, 5)
    args = [vector(), vector(grad=False)]
    both_raise(
        lambda a, b: (torch.addcdiv(b, a, count),), args, backend, "can't be cast to the desired output type Long"
    )
    same(lambda a, b: (torch.addcdiv(a, b, count),), args, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_copy_of_elements_that_share_places_lies_as_they_do(backend: str) -> None:
    """A saved view with several elements at one place is read by its strides: a dense copy would give other elements."""

    def fn(a: torch.Tensor) -> Any:
        t = torch.cat([a, a[0:1], a], 0)
        return torch.pow(t.as_strided((1, 4, 4), (1, 1, 1), 0).abs() + 0.1, 3), t[::2, 5]

    def at_the_end(a: torch.Tensor) -> Any:
        t = torch.cat([a, a])
        return torch.pow(t.as_strided((1, 4, 4), (1, 1, 1), 13).abs() + 0.1, 3), t[::2]

    same(fn, [torch.randn(6, 6, dtype=torch.float64, requires_grad=True)], backend)
    same(at_the_end, [torch.randn(10, dtype=torch.float64, requires_grad=True)], backend)


def _losses(v: torch.Tensor) -> torch.Tensor:
    given = torch.tensor([[1, 2]]), torch.tensor([3]), torch.tensor([2])
    return torch.nn.functional.ctc_loss(v.log_softmax(1).view(3, 1, 3), *given, reduction="none")


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("result", [False, True], ids=["argument", "result"])
@pytest.mark.parametrize(
    "op", [torch.prod, lambda v: v.prod(1), lambda v: v.t()[1:].prod(), torch.max, torch.median, _losses]
)
def test_what_a_gradient_is_made_of_is_written_behind_autograds_back(op: Any, result: bool, backend: str) -> None:
    """Eager's formula divides the saved product by its factors; for a maximum it fills in at the saved index."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        v = x * 1
        y: torch.Tensor = op(v)
        (y if result else v).data.add_(0.25)
        return y

    x = torch.rand(3, 3, dtype=torch.float64, requires_grad=True)
    found, expected = (torch.autograd.grad(f(x).sum(), x) for f in (pycompiler.compile(fn, backend=backend), fn))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("op", [torch.max, torch.min, torch.median, torch.nanmedian])
def test_an_infinite_gradient_of_what_was_found_is_nobody_elses(op: Any, backend: str) -> None:
    """The gradient must not be multiplied by a mask: infinity times zero is NaN."""
    x = torch.tensor([[1.0, 3.0], [2.0, 1.0]], requires_grad=True)
    for gradient in (torch.tensor(torch.inf), torch.tensor(torch.nan), torch.tensor(2.0)):
        found, expected = (
            torch.autograd.grad(f(x), x, gradient) for f in (pycompiler.compile(op, backend=backend), op)
        )
        torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize(
    "op",
    [
        lambda x: torch.linalg.eig(x)[1],
        lambda x: torch.linalg.eigh(torch.complex(x, x))[1],
        lambda x: torch.linalg.svd(torch.complex(x, x))[2],
    ],
)
def test_gradients_that_depend_on_a_phase_are_refused(op: Any, backend: str) -> None:
    x = torch.tensor([[1.0, 3.0, 0.0], [-2.0, 1.0, 1.0], [0.0, 2.0, 1.0]], requires_grad=True)
    for fn in (op, pycompiler.compile(op, backend=backend)):
        y = fn(x)
        with pytest.raises(RuntimeError, match="complex case are specified up to multiplication"):
            torch.autograd.grad(y, x, torch.complex(x.detach(), x.detach().t()))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("dims", [(), (1,)])
def test_a_product_that_is_written_behind_autograds_back(backend: str, dims: tuple[int, ...]) -> None:
    """Eager's formula reads the product where no element is zero."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.prod(*dims)
        y.data.add_(1)
        return y

    x = torch.rand(3, 3, requires_grad=True)
    found, expected = (torch.autograd.grad(f(x).sum(), x) for f in (pycompiler.compile(fn, backend=backend), fn))
    torch.testing.assert_close(found, expected)
