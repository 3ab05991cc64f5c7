"""Jagged tensors (`torch.nested`, layout `torch.jagged`) as inputs, results and intermediates, compared with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import pycompiler
from tests.harness.compare import assert_same

BACKENDS = ("eager", "aot_eager", "native")
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def eager_graphs(log: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in log.records if "runs eagerly" in r.getMessage()]


def jagged(*lengths: int, width: int = 4, grad: bool = False, cached: bool = True) -> Any:
    """A jagged tensor with rows of these lengths. `cached`: torch knows the least and the greatest length."""
    rows = [torch.randn(n, width) for n in lengths]
    made: Any = torch.nested.nested_tensor(rows, layout=torch.jagged)
    if not cached:
        made = torch.nested.nested_tensor_from_jagged(made.values(), made.offsets()).detach()
    return made.requires_grad_() if grad else made


def around(x: Any, values: torch.Tensor) -> Any:
    """A jagged tensor with other values and the same offsets object as `x`."""
    return torch.nested.nested_tensor_from_jagged(values, x.offsets()).detach()


def flat(value: Any) -> list[Any]:
    return [t for v in value for t in flat(v)] if isinstance(value, (tuple, list)) else [value]


def parts(value: Any, offsets: Sequence[torch.Tensor]) -> Any:
    """`value` with jagged tensors in parts, and whether each of `offsets` is the tensor's own."""
    if isinstance(value, (tuple, list)):
        return [type(value), *(parts(v, offsets) for v in value)]
    if not isinstance(value, torch.Tensor) or not value.is_nested:
        return value
    t: Any = value
    shared = [o is t.offsets() for o in offsets]
    return (
        type(t),
        t.requires_grad,
        t.layout,
        t._ragged_idx,
        {*t._metadata_cache},
        shared,
        t.offsets(),
        t._values.detach(),
    )


def assert_same_jagged(got: Any, wanted: Any, offsets: Sequence[torch.Tensor] = ()) -> None:
    """`offsets`: offsets of the inputs. A result shares such an offsets object if and only if it does so in eager."""
    assert_same(parts(got, offsets), parts(wanted, offsets), sharing=False)


def loss(result: Any) -> Any:
    tensors = [t for t in flat(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    return sum((t.values() if t.is_nested else t).pow(2).sum() for t in tensors)


def compare(compiled: Callable[..., Any], fn: Callable[..., Any], x: Any, *, backward: bool = True) -> None:
    """Compare a call with eager, and the gradient of `x` when `x` requires one."""
    y = x.detach().requires_grad_(x.requires_grad)
    wanted, got = fn(x), compiled(y)
    assert_same_jagged(got, wanted, [x.offsets()])
    if x.requires_grad and backward:
        loss(wanted).backward()
        loss(got).backward()
        torch.testing.assert_close(y.grad.values(), x.grad.values())
        assert y.grad.offsets() is x.offsets()
        x.grad = None


def under_autocast(x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return LINEAR(x)


LINEAR, NORM = torch.nn.Linear(4, 6), torch.nn.LayerNorm(4)
ONE_GRAPH: dict[str, Callable[[Any], Any]] = {
    "unary": lambda x: torch.relu(x * 2 + 1).sin(),
    "binary": lambda x: x + x.exp(),
    "linear": lambda x: LINEAR(x),
    "layer_norm": lambda x: NORM(x),
    "softmax": lambda x: F.softmax(x, -1),
    "dropout in eval": lambda x: F.dropout(x, 0.5, False) * 2,
    "gelu": F.gelu,
    "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "clamp": lambda x: x.clamp(0, 1),
    "to": lambda x: x.to(torch.float64) * 2,
    "clone": lambda x: x.clone(),
    "beside a plain tensor": lambda x: x * torch.arange(4.0),
    "beside one of each row": lambda x: x + torch.ones(2, 1, 4),
    "values": lambda x: (x * 2).values(),
    "offsets": lambda x: x * 2 + x.offsets().sum(),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "padded": lambda x: x.to_padded_tensor(-1.0) * 2,
    "padded by the function": lambda x: torch.nested.to_padded_tensor(x * 2, 0.0),
    "cat": lambda x: torch.cat([x, x * 2], -1),
    "chunk": lambda x: [t * 2 for t in x.chunk(2, -1)],
    "split heads": lambda x: x.unflatten(-1, [2, 2]).transpose(1, 2) * 2,
    "join heads": lambda x: (x.unflatten(-1, [2, 2]) * 2).flatten(2),
    "view by its shape": lambda x: x.view(x.shape[0], x.shape[1], 2, 2) * 2,
    "reshape": lambda x: x.reshape(x.size(0), -1, 2, 2) * 2,
    "unsqueeze": lambda x: x.unsqueeze(-1) * 2,
    "sizes that are numbers": lambda x: x * x.size(0) + len(x) + x.shape[-1] + x.dim(),
    "equal shapes": lambda x: x * 2 if x.shape == (x + 1).shape else x * 3,
    "flags": lambda x: x * 2 if x.is_nested and x.layout == torch.jagged and x.is_floating_point() else x * 3,
    "autocast": lambda x: under_autocast(x),
    "loss": lambda x: F.cross_entropy(LINEAR(x).values(), torch.arange(5)),
    "rms_norm": lambda x: F.rms_norm(x, (4,)) + x.pow(2).mean(-1, keepdim=True),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0) + torch.ones_like(x),
    "what torch knows of lengths": lambda x: x * x._get_max_seqlen() + x._maybe_min_seqlen,
    "chain": lambda x: LINEAR(NORM(x)).relu().softmax(-1).values(),
}
WITHOUT_GRADIENTS: dict[str, Callable[[Any], Any]] = {  # eager's backward raises, or reads data
    "matmul": lambda x: torch.matmul(x, LINEAR.weight.detach().t()),
    "sum of columns": lambda x: x.sum(-1),
    "sum of rows": lambda x: x.sum(1),
    "mean of rows": lambda x: x.mean(1),
    "greatest": lambda x: x.amax(-1),
    "softmax of rows": lambda x: torch.softmax(x, 1),
    "the nested int": lambda x: (x * 2, x.size(1), x.shape),
}


@pytest.mark.parametrize("name", ONE_GRAPH)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_one_graph(name: str, backend: str, warnings_of_graphs: pytest.LogCaptureFixture) -> None:
    fn = ONE_GRAPH[name]
    for grad in (False, True):
        compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
        compare(compiled, fn, jagged(2, 3, grad=grad))
        compare(compiled, fn, jagged(2, 3, grad=grad))
        assert compiled.counters()["compiles"] == 1
    assert eager_graphs(warnings_of_graphs) == []


@pytest.mark.parametrize("name", WITHOUT_GRADIENTS)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_one_graph_without_gradients(name: str, backend: str, warnings_of_graphs: pytest.LogCaptureFixture) -> None:
    fn = WITHOUT_GRADIENTS[name]
    compare(pycompiler.compile(fn, backend=backend, fullgraph=True), fn, jagged(2, 3))
    assert eager_graphs(warnings_of_graphs) == []


@pytest.mark.usefixtures("graphs_may_run_eagerly")
def test_gradients_that_eager_refuses_are_refused() -> None:
    """The graph runs as captured: the forward is right, and the backward raises eager's error."""

    def fn(x: Any) -> Any:
        return x.sum(1)

    x = jagged(2, 3, grad=True)
    got = pycompiler.compile(fn, fullgraph=True)(x)
    torch.testing.assert_close(got, fn(x))
    with pytest.raises(NotImplementedError, match="_nested_sum_backward"):
        got.sum().backward()


def looked_up(ids: Any) -> Any:
    return F.embedding(ids, TABLE) * 2


def handled(ids: Any) -> Any:
    try:
        return F.embedding(ids, TABLE) * 2
    except IndexError:
        return 5


def unused(ids: Any) -> Any:
    F.embedding(ids, TABLE)
    return ids * 2


TABLE = torch.nn.Parameter(torch.randn(5, 4))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("fn", [looked_up, handled, unused])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_errors_of_data_are_eagers(
    backend: str, fn: Any, grad: bool, warnings_of_graphs: pytest.LogCaptureFixture
) -> None:
    def outcome(call: Any, ids: Any) -> Any:
        TABLE.grad = None
        try:
            result = call(ids)
        except IndexError as e:
            return str(e).split("\n")[0]
        if isinstance(result, torch.Tensor) and result.requires_grad:
            loss(result).backward()
        return result, TABLE.grad

    with torch.set_grad_enabled(grad):
        compiled = pycompiler.compile(fn, backend=backend)
        for rows in (([0, 1], [2, 3, 4]), ([0], [2, 3, 4, 1]), ([0, 1], [2, 9, 4]), ([1, 2], [3, 3])):
            ids: Any = torch.nested.nested_tensor([torch.tensor(r) for r in rows], layout=torch.jagged)
            assert_same_jagged(outcome(compiled, ids), outcome(fn, ids), [ids.offsets()])
    if fn is not unused:
        assert eager_graphs(warnings_of_graphs) == []


GROWING: dict[str, Callable[[Any], Any]] = {
    "pointwise": lambda x: (x * 2 + 1).sin(),
    "block": lambda x: F.softmax(LINEAR(NORM(x)).relu(), -1),
    "sum": lambda x: LINEAR(x).sum(),
    "padded": lambda x: x.to_padded_tensor(0.0) * 2,
    "values": lambda x: LINEAR(x).values().sin(),
    "heads": lambda x: LINEAR(x).unflatten(-1, [2, 3]).transpose(1, 2) * 2,
    "view": lambda x: LINEAR(x).view(x.size(0), x.size(1), 2, 3) * 2,
    "chunk": lambda x: [t * 2 for t in LINEAR(x).chunk(3, -1)],
}


@pytest.mark.parametrize("name", GROWING)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_new_lengths_compile_once_more_then_never(
    name: str, backend: str, warnings_of_graphs: pytest.LogCaptureFixture
) -> None:
    fn = GROWING[name]
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for lengths in ((2, 3), (4, 6, 5), (3, 9), (5, 5), (20, 30, 40), (3, 4, 5, 6)):
        compare(compiled, fn, jagged(*lengths, grad=True))
    assert compiled.counters()["compiles"] == 2
    assert eager_graphs(warnings_of_graphs) == []


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_any_number_of_rows_from_the_first_call_on(backend: str) -> None:
    def fn(x: Any, y: Any) -> Any:
        return x + y if x.shape == y.shape else x.sin()

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True, dynamic=True)
    for lengths in ((2, 3, 4), (3, 4, 5, 6), (5, 7)):
        x = jagged(*lengths)
        y = around(x, torch.randn_like(x.values()))
        assert_same_jagged(compiled(x, y), fn(x, y), [x.offsets()])
    assert compiled.counters()["compiles"] == 1
    one = jagged(1, 1, grad=True)  # torch marks its own tensors, whose size is a constant
    compare(pycompiler.compile(lambda x: x.sin(), backend=backend, fullgraph=True), lambda x: x.sin(), one)


@pytest.mark.parametrize("backend", BACKENDS)
def test_kinds_of_jagged_tensors_have_entries_of_their_own(backend: str) -> None:
    def fn(x: Any) -> Any:
        return x.sin() * x.dim()

    holes = torch.nested.nested_tensor_from_jagged(torch.randn(9, 4), torch.tensor([0, 3, 5]), torch.tensor([2, 2]))
    x = jagged(2, 3)
    kinds = [x, jagged(2, 3, cached=False), jagged(2, 3, grad=True), x.transpose(1, 2), holes, jagged(2, 3, width=5),
             x.to(torch.float64), x.unsqueeze(-1), jagged(4, 3), jagged(1, 1), jagged(0, 4)]  # fmt: skip
    with pycompiler.config.patch(recompile_limit=32):
        compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
        for y in (*kinds, *kinds):
            assert_same_jagged(compiled(y), fn(y), [y.offsets()])
            assert compiled(y)._lengths is y._lengths
            assert compiled(y)._strides == y._strides


@pytest.mark.parametrize("backend", BACKENDS)
def test_which_offsets_are_one_object_is_guarded(backend: str) -> None:
    def add(x: Any, y: Any) -> Any:
        return x + y * 2

    def alike(x: Any, y: Any) -> Any:
        return x * 2 if x.shape == y.shape else x * 3

    def apart(x: Any, y: Any) -> Any:
        return x * 2, y * 3

    x, z = jagged(2, 3), jagged(2, 3)
    y = around(x, torch.randn(5, 4))
    compiled = pycompiler.compile(add, backend=backend)
    assert_same_jagged(compiled(x, y), add(x, y), [x.offsets()])
    for a, b in ((x, z), (z, x)):
        with pytest.raises(RuntimeError, match="cannot call binary pointwise function"):
            compiled(a, b)
    assert_same_jagged(compiled(z, z), add(z, z), [z.offsets()])
    for fn in (alike, apart):
        compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
        for a, b in ((x, z), (x, y), (z, x), (z, z), (x, y), (z, y)):
            assert_same_jagged(compiled(a, b), fn(a, b), [a.offsets(), b.offsets()])


@pytest.mark.parametrize("backend", BACKENDS)
def test_offsets_beside_the_tensor_that_has_them(backend: str) -> None:
    def fn(x: Any, offsets: torch.Tensor) -> Any:
        return x * 2, torch.nested.nested_tensor_from_jagged(x.values() * 3, offsets) * 1, offsets + 1

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    x, z = jagged(2, 3), jagged(2, 3)
    for a, offsets in ((x, x.offsets()), (x, z.offsets()), (z, x.offsets()), (z, z.offsets())):
        first, second, third = compiled(a, offsets)
        assert_same_jagged((first, second, third), fn(a, offsets), [a.offsets(), offsets])
        assert (first.shape == second.shape) == (a.offsets() is offsets)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_torch_knows_of_lengths_is_guarded(backend: str) -> None:
    def fn(x: Any) -> Any:
        return x.to_padded_tensor(-1.0)

    compiled = pycompiler.compile(fn, backend=backend)
    for lengths in ((2, 3), (4, 1), (4, 5), (3, 3), (1, 9), (0, 4)):
        for cached in (True, False):
            x = jagged(*lengths, cached=cached)
            assert torch.equal(compiled(x), fn(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_go_on_with_inputs(backend: str) -> None:
    def fn(x: Any) -> Any:
        return LINEAR(x).relu()

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    x = jagged(2, 3, grad=True)
    y = x.detach().requires_grad_()
    for f, t in ((fn, x), (compiled, y)):
        (f(t) * torch.cat([t, t.chunk(2, -1)[0]], -1)).values().sum().backward()
    torch.testing.assert_close(y.grad.values(), x.grad.values())


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_gradients_and_of_single_results(backend: str) -> None:
    def fn(x: Any) -> Any:
        return x * x * x, x.sin()

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    x = jagged(2, 3, grad=True)
    y = x.detach().requires_grad_()
    found = []
    for f, t in ((fn, x), (compiled, y)):
        p, q = f(t)
        (of_p,) = torch.autograd.grad(p.values().sum(), t, retain_graph=True)
        (of_q,) = torch.autograd.grad(q.values().sum(), t)
        p, q = f(t)
        (both,) = torch.autograd.grad(p.values().sum() + q.values().sum(), t, create_graph=True)
        (again,) = torch.autograd.grad(both.values().pow(2).sum(), t)
        found.append([g.values().detach() for g in (of_p, of_q, both, again)])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes(backend: str) -> None:
    def to_it(x: Any) -> Any:
        x.mul_(2)
        return x + 1

    def to_values(x: Any) -> Any:
        x.values().mul_(2)
        return x + 1

    def to_a_result(x: Any) -> Any:
        y = x * 2
        y.values().mul_(2)
        return y + 1

    def to_offsets(x: Any) -> Any:
        x.offsets()[-1] -= 1
        return x * 1

    for fn in (to_it, to_values, to_a_result, to_offsets):
        compiled = pycompiler.compile(fn, backend=backend)
        for _ in range(2):
            x = jagged(2, 3)
            y = torch.nested.nested_tensor_from_jagged(x.values().clone(), x.offsets().clone()).detach()
            y._metadata_cache.update(x._metadata_cache)
            assert_same_jagged(compiled(y), fn(x))
            assert_same_jagged(y, x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_modes_of_gradients(backend: str) -> None:
    def fn(x: Any) -> Any:
        return x * 2 + 1

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    x = jagged(2, 3, grad=True)
    with torch.no_grad():
        assert not compiled(x).requires_grad
    assert compiled(x).requires_grad
    with torch.inference_mode():
        made = jagged(2, 3)
        assert compiled(x).is_inference()
        assert compiled(made).is_inference()
    assert compiled(made).is_inference() == fn(made).is_inference()


# created inside -------------------------------------------------------------------------------------------------------------
def rows(n: int) -> list[torch.Tensor]:
    return [torch.randn(2, 4, requires_grad=True), torch.randn(n, 4, requires_grad=True)]


def packed(n: int) -> list[torch.Tensor]:
    return [torch.randn(n, 4, requires_grad=True), torch.tensor([0, 2, n])]


nested: Any = torch.nested
JAGGED = torch.jagged  # type: ignore[attr-defined]
MADE: dict[str, tuple[Callable[..., Any], Callable[[int], list[torch.Tensor]]]] = {
    "offsets": (lambda v, o: nested.nested_tensor_from_jagged(v, o) * 2, packed),
    "offsets, values out": (lambda v, o: (nested.nested_tensor_from_jagged(v, o) * 2).values(), packed),
    "offsets, linear": (lambda v, o: LINEAR(nested.nested_tensor_from_jagged(v, o)), packed),
    "lengths known": (
        lambda v, o: nested.nested_tensor_from_jagged(v, o, min_seqlen=1, max_seqlen=9).to_padded_tensor(0.0) * 2,
        packed,
    ),
    "lengths": (
        lambda v, n: LINEAR(nested.nested_tensor_from_jagged(v, lengths=n)).values(),
        lambda n: [torch.randn(n, 4, requires_grad=True), torch.tensor([2, n - 2])],
    ),
    "offsets and lengths": (
        lambda v, o, n: nested.nested_tensor_from_jagged(v, o, n) * 2,
        lambda n: [*packed(n), torch.tensor([1, n - 3])],
    ),
    "list": (lambda a, b: nested.as_nested_tensor([a, b], layout=JAGGED) * 2, rows),
    "list, values out": (lambda a, b: (nested.as_nested_tensor([a, b], layout=JAGGED) * 2).values(), rows),
    "list, detached": (lambda a, b: nested.nested_tensor([a, b], layout=JAGGED) * 2, rows),
    "list, padded": (lambda a, b: nested.nested_tensor([a, b], layout=JAGGED).to_padded_tensor(0.0) * 2, rows),
    "tensor": (
        lambda t: nested.as_nested_tensor(t, layout=JAGGED) * 2,
        lambda n: [torch.randn(2, n, 4, requires_grad=True)],
    ),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_made_inside(name: str, backend: str, warnings_of_graphs: pytest.LogCaptureFixture) -> None:
    fn, make = MADE[name]
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for n in (5, 7, 9, 6):
        given = make(n)
        ours = [t.detach().clone().requires_grad_(t.requires_grad) for t in given]
        wanted, got = fn(*given), compiled(*ours)
        assert_same_jagged(got, wanted)
        if wanted.is_nested:
            assert (got._lengths is None) == (wanted._lengths is None)
            assert all((wanted.offsets() is t) == (got.offsets() is u) for t, u in zip(given, ours, strict=True))
            assert_same_jagged(got + got.sin(), wanted + wanted.sin())
        if wanted.requires_grad:
            loss(wanted).backward()
            loss(got).backward()
            for t, u in zip(given, ours, strict=True):
                assert (t.grad is None) == (u.grad is None)
                if t.grad is not None:
                    torch.testing.assert_close(u.grad, t.grad)
    assert compiled.counters()["compiles"] == 2
    assert eager_graphs(warnings_of_graphs) == []


def test_what_a_nested_int_is_in_python() -> None:
    """The program never sees the objects that stand for a nested int during capture."""
    asked: list[Callable[[Any], Any]] = [
        lambda x: f"{x.shape}", lambda x: str(x.size(1)), lambda x: "%s" % (x.size(1),), lambda x: hash(x.size(1)) is None,
        lambda x: x.shape in ((2, 3, 4),), lambda x: x.size(1) in {3, 4}, lambda x: int(x.size(1)), lambda x: x.size(1) + 1,
        lambda x: isinstance(x.size(1), int), lambda x: type(x.size(1)), lambda x: max(x.size(1), 3), lambda x: x.numel(),
        lambda x: x.shape == (2, x.size(1), 4), lambda x: range(x.size(1)), lambda x: [0] * x.size(1), lambda x: not x.size(1),
        lambda x: (x.size(1) > 1, x.size(1) == 5, 5 != x.size(1), x.size(1) <= 1), lambda x: x.size(1) * 2 == x.size(1),
        lambda x: torch.zeros(2, x.size(1), 4), lambda x: torch.zeros(2, 1, 4).expand(x.shape), lambda x: x.stride(),
        lambda x: x.size(dim=1) == x.size(-2), lambda x: x.shape[:1] + x.shape[2:], lambda x: x.size(),
    ]  # fmt: skip

    def outcome(call: Any, x: Any) -> Any:
        try:
            return call(x)
        except Exception as e:
            return type(e)

    for fn in asked:
        compiled = pycompiler.compile(fn)
        for x in (jagged(2, 3), jagged(5, 5)):
            for _ in range(2):
                got, wanted = outcome(compiled, x), outcome(fn, x)
                assert_same_jagged(got, wanted)


# rows -----------------------------------------------------------------------------------------------------------------------
def asks_for_a_row_too_many(x: Any) -> Any:
    try:
        return x[9]
    except IndexError:
        return x.values() * 2


ROWS: dict[str, Callable[[Any], Any]] = {
    "unbind": lambda x: [t * 2 for t in (x * 3).unbind()],
    "as they are": lambda x: torch.unbind(x, 0),
    "iterated": lambda x: [t.sin() for t in x],
    "one": lambda x: x[0] * 2 + x[-1, 0],
    "selected": lambda x: x.select(0, 1).sum() + torch.select(x, 0, -1),
    "columns": lambda x: x.transpose(1, 2)[1] * 2,
}


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("captured", [True, False])
def test_rows(name: str, backend: str, captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row lengths are data: a graph break by default. `capture_scalar_outputs` keeps the rows in the graph."""
    monkeypatch.setattr(pycompiler.config, "capture_scalar_outputs", captured)
    fn = ROWS[name]
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=captured)
    for lengths in ((2, 3, 4), (5, 3, 4), (3, 3, 6), (1, 2, 2), (4, 4)):
        compare(compiled, fn, jagged(*lengths, grad=True))
    assert compiled.counters()["compiles"] <= 4
    if not captured:
        assert pycompiler.explain(fn)(jagged(2, 3)).break_reasons[0].kind == "data-dependent-value"


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_what_has_gaps(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pycompiler.config, "capture_scalar_outputs", True)

    def fn(x: Any) -> Any:
        return [t * 2 for t in x.unbind()], x[1] + 1

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for n in (3, 4, 2):
        x = nested.narrow(torch.randn(3, 8, 2), 1, torch.tensor([0, 1, 2]), torch.tensor([2, 3, n]), layout=JAGGED)
        assert_same_jagged(compiled(x), fn(x))


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_to_rows(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pycompiler.config, "capture_scalar_outputs", True)

    def fn(x: Any) -> Any:
        x[0].mul_(2)
        return x * 1

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for lengths in ((2, 3), (4, 3)):
        x = jagged(*lengths)
        y = x.detach().clone()
        assert_same_jagged(compiled(y), fn(x))
        assert torch.equal(x.values(), y.values())


def test_a_row_that_is_not_there() -> None:
    compiled = pycompiler.compile(asks_for_a_row_too_many)
    for x in (jagged(2, 3), jagged(4, 3)):
        assert torch.equal(compiled(x), asks_for_a_row_too_many(x))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("part", [(0, 2), (3, 2), (0, 5), (4, 1)])
def test_narrow_by_numbers(part: tuple[int, int], backend: str) -> None:
    def fn(x: torch.Tensor) -> Any:
        made = nested.narrow(x, 1, *part, layout=JAGGED)
        return made * 2, made.size(0)

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for shape in ((3, 5, 2), (2, 5, 3), (1, 5, 2), (4, 5), (6, 5, 2)):
        x = torch.randn(shape, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        wanted, got = fn(x), compiled(y)
        assert_same_jagged(got, wanted)
        assert (got[0]._lengths is None) == (wanted[0]._lengths is None)
        assert got[0]._get_max_seqlen() == wanted[0]._get_max_seqlen() == part[1]
        for g, w in zip(got[0].unbind(), wanted[0].unbind(), strict=True):
            assert torch.equal(g, w)
        loss(wanted).backward()
        loss(got).backward()
        torch.testing.assert_close(y.grad, x.grad)
    assert compiled.counters()["compiles"] <= 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_torch_knows_of_lengths_of_an_intermediate(backend: str) -> None:
    def fn(x: Any) -> Any:
        y = x * 2
        return (
            y * y._maybe_max_seqlen,
            y._get_max_seqlen(),
            nested.nested_tensor_from_jagged(y.values(), y.offsets(), max_seqlen=y._maybe_max_seqlen),
        )

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for lengths in ((2, 3), (4, 7), (2, 9)):
        compare(compiled, fn, jagged(*lengths, grad=True), backward=False)
    assert compiled.counters()["compiles"] in (1, 2)  # older torch versions mark sizes themselves


# graph breaks ---------------------------------------------------------------------------------------------------------------
BREAKS: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]], str]] = {
    "unbind": (lambda x: [t * 2 for t in (x * 2).unbind()], lambda: [jagged(2, 3)], "data-dependent-value"),
    "narrow": (
        lambda t, n: nested.narrow(t, 1, torch.tensor([0, 1]), n, layout=JAGGED) * 2,
        lambda: [torch.randn(2, 5, 4), torch.tensor([1, 2])],
        "data-dependent-jump",
    ),
    "masked_select": (
        lambda t, m: nested.masked_select(t, m) * 2,
        lambda: [torch.randn(2, 3), torch.tensor([[True, False, True], [False, True, True]])],
        "dynamic-output-shape",
    ),
    "strided, made inside": (lambda a, b: nested.nested_tensor([a, b]) * 2, lambda: rows(3), "unsupported-operation"),
    "strided, given": (
        lambda x: x * 2,
        lambda: [nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])],
        "unsupported-type",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_breaks(name: str) -> None:
    fn, make, kind = BREAKS[name]
    given = make()
    compiled = pycompiler.compile(fn)
    for _ in range(2):
        got, wanted = flat(compiled(*given)), flat(fn(*given))
        for g, w in zip(got, wanted, strict=True):
            assert (g.is_nested, g.layout) == (w.is_nested, w.layout)
            for a, b in zip(g.unbind() if w.is_nested else [g], w.unbind() if w.is_nested else [w], strict=True):
                torch.testing.assert_close(a, b)
    assert pycompiler.explain(fn)(*given).break_reasons[0].kind == kind
