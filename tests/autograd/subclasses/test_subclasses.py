"""Tensor subclasses with inner tensors and `__torch_dispatch__`, compared with eager call by call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map

import pycompiler
from pycompiler.torch_compat.tensor_subclasses import is_tensor_subclass
from tests.harness.compare import assert_same

BACKENDS = ("eager", "aot_eager", "native")
OURS = ("aot_eager", "native")
OFFSET = 0.5


class Coded(torch.Tensor):
    """Integer codes times a plain number as scale: each operator decodes, computes, and encodes again."""

    codes: torch.Tensor
    scale: float

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: float) -> Coded:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls, codes.shape, strides=codes.stride(), dtype=torch.float32, device=codes.device
        )

    def __init__(self, codes: torch.Tensor, scale: float) -> None:
        self.codes, self.scale = codes, scale

    def __repr__(self) -> str:
        return f"Coded({self.codes!r}, {self.scale})"

    def __tensor_flatten__(self) -> Any:
        return ["codes"], {"scale": self.scale}

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Coded:
        return Coded(inner["codes"], context["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        scales = [a.scale for a in args if isinstance(a, Coded)]
        decoded = tree_map(lambda a: a.codes.float() * a.scale + OFFSET if isinstance(a, Coded) else a, args)
        result = func(*decoded, **(kwargs or {}))
        if func is torch.ops.aten.relu.default:
            return Coded((result / scales[0]).round().to(torch.int32), scales[0])
        return result


def two(*shape: int, grad: bool = False, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    made: Any = TwoTensor(torch.randn(shape, generator=generator), torch.randn(shape, generator=generator))
    return made.requires_grad_() if grad else made


def leaves(value: Any) -> list[torch.Tensor]:
    """The plain tensors in a result, with the inner tensors of subclasses."""
    if isinstance(value, (tuple, list)):
        return [t for v in value for t in leaves(v)]
    if hasattr(value, "__tensor_flatten__"):
        return [t for name in value.__tensor_flatten__()[0] for t in leaves(getattr(value, name))]
    return [value]


def check(
    fn: Callable[..., Any], *args: Any, backend: str = "native", fullgraph: bool = True, backward: bool = False
) -> Any:
    """Compare one compiled call with eager, with gradients of the leaf arguments; return the compiled callable."""
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=fullgraph)
    compare(compiled, fn, *args, backward=backward)
    return compiled


def compare(compiled: Callable[..., Any], fn: Callable[..., Any], *args: Any, backward: bool = False) -> None:
    seen = []
    for call in (fn, compiled):
        given = copy.deepcopy(args) if backward else args
        result = call(*given)
        if backward:
            result.backward(torch.ones_like(result))
        seen.append((result, given))
    assert_same(seen[1], seen[0])


def linear(x: Any, w: Any) -> Any:
    return torch.nn.functional.linear(x, w).relu()


def eager_graphs(log: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in log.records if "runs eagerly" in r.getMessage()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_tensors_inside(backend: str, warnings_of_graphs: pytest.LogCaptureFixture) -> None:
    compiled = check(linear, two(3, 4), two(5, 4), backend=backend)
    compare(compiled, linear, two(3, 4, seed=1), two(5, 4, seed=2))
    assert compiled.counters()["compiles"] == 1
    assert eager_graphs(warnings_of_graphs) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_wrappers(backend: str, warnings_of_graphs: pytest.LogCaptureFixture) -> None:
    compiled = check(linear, two(3, 4, grad=True), two(5, 4, grad=True), backend=backend, backward=True)
    compare(compiled, linear, two(3, 4, grad=True, seed=1), two(5, 4, grad=True, seed=2), backward=True)
    assert compiled.counters()["compiles"] == 1
    assert eager_graphs(warnings_of_graphs) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrappers_in_wrappers(backend: str, warnings_of_graphs: pytest.LogCaptureFixture) -> None:
    def nested(grad: bool) -> Any:
        made: Any = TwoTensor(two(3, 4), two(3, 4, seed=1))
        return made.requires_grad_() if grad else made

    def fn(x: Any, w: Any) -> Any:
        return (x.sin() * x).sum(-1) + w.mean()

    check(fn, nested(False), two(3, 4), backend=backend)
    check(lambda x: (x.sin() * x).sum(-1), nested(True), backend=backend, backward=True)
    assert eager_graphs(warnings_of_graphs) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_autograd_lies_above_the_class(backend: str, warnings_of_graphs: pytest.LogCaptureFixture) -> None:
    """Codes are integers, and rounding has no gradient: eager's gradient of relu belongs to the decoded numbers."""
    coded: Any = Coded(torch.randint(-9, 9, (3, 4), dtype=torch.int32), 0.25).requires_grad_()

    def fn(x: Any, w: Any) -> Any:
        return (x.relu() * w).sum(0)

    def run(call: Callable[..., Any]) -> Any:
        x, w = coded.detach().clone().requires_grad_(), torch.ones(3, 4, requires_grad=True)
        result = call(x, w)
        gx, gw = torch.autograd.grad(result, [x, w], torch.arange(4.0))
        return result.detach(), gx, gw

    assert_same(run(pycompiler.compile(fn, backend=backend, fullgraph=True)), run(fn))
    assert eager_graphs(warnings_of_graphs) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_inside_is_guarded(backend: str) -> None:
    def fn(x: Any) -> Any:
        return x.relu() + 1

    codes = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    compiled = check(fn, Coded(codes, 0.25), backend=backend)
    compare(compiled, fn, Coded(codes + 1, 0.25))
    assert compiled.counters()["compiles"] == 1
    compare(compiled, fn, Coded(codes, 0.5))  # another context
    assert compiled.counters()["compiles"] == 2
    compare(compiled, fn, Coded(codes.to(torch.int64), 0.25))  # not visible from outside
    assert compiled.counters()["compiles"] == 3
    compare(compiled, fn, Coded(codes.repeat(2, 1), 0.25))
    assert compiled.counters()["compiles"] == 4


def test_what_the_class_computes_with_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Any) -> Any:
        return x * 2

    x = Coded(torch.arange(6, dtype=torch.int32), 0.25)
    compiled = check(fn, x)
    monkeypatch.setitem(globals(), "OFFSET", 3.0)
    compare(compiled, fn, x)
    assert compiled.counters()["compiles"] == 2

    def other(cls: Any, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*tree_map(lambda a: a.codes.float() if isinstance(a, Coded) else a, args), **(kwargs or {}))

    monkeypatch.setattr(Coded, "__torch_dispatch__", classmethod(other))
    compare(compiled, fn, x)
    assert compiled.counters()["compiles"] == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_plain_tensors_beside(backend: str, warnings_of_graphs: pytest.LogCaptureFixture) -> None:
    module = torch.nn.Linear(4, 5)

    def fn(x: Any, w: torch.Tensor) -> Any:
        return module(x) * w

    check(fn, two(3, 4, grad=True), torch.randn(5, requires_grad=True), backend=backend, backward=True)
    assert eager_graphs(warnings_of_graphs) == []


def test_what_a_program_reads_of_an_input() -> None:
    def fn(x: Any) -> Any:
        return x.a + 1, x.get_elem_a().sum(), (x * 2).shape, isinstance(x, TwoTensor), type(x * 2) is TwoTensor

    check(fn, two(3, 4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_breaks_the_graph_is_eagers(backend: str) -> None:
    def writes(x: Any) -> Any:
        y = x * 2
        y.add_(1)
        return y * 3

    def notes(x: Any) -> Any:
        y = x * 2
        y.note = "n"
        return y + 1, y.note

    def makes(x: Any) -> Any:
        return TwoTensor(x.a, x.b + 1) * 2

    for fn in (writes, notes, makes):
        check(fn, two(3, 4), backend=backend, fullgraph=False)


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("backend", OURS)
def test_graphs_that_run_as_they_were_captured(backend: str, warnings_of_graphs: pytest.LogCaptureFixture) -> None:
    def both(x: Any) -> Any:
        y = x * 2
        return y, y.t()

    check(lambda x: x.t(), two(3, 4), backend=backend)
    check(both, two(3, 4), backend=backend)
    assert len(eager_graphs(warnings_of_graphs)) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_that_are_views_of_what_nobody_sees(backend: str, warnings_of_graphs: pytest.LogCaptureFixture) -> None:
    for fn in (lambda x: (x * 2).t(), lambda x: (x.sin())[1:], lambda x: x.exp().reshape(2, 6)):
        check(fn, two(3, 4), backend=backend)
        check(fn, two(3, 4, grad=True), backend=backend, backward=True)
    assert eager_graphs(warnings_of_graphs) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_results_with_gradients(backend: str, warnings_of_graphs: pytest.LogCaptureFixture) -> None:
    def fn(x: Any, w: Any) -> Any:
        h = x.exp()
        return h * w, w.cos(), x + 1, (x * 2).detach()

    def run(call: Callable[..., Any], which: list[list[int]]) -> Any:
        """Gradients after backwards of these results, one after the other; and errors."""
        x, w = two(3, 4, grad=True), two(3, 4, grad=True, seed=1)
        results = call(x, w)
        seen: list[Any] = [r.detach() for r in results]
        for some in which:
            try:
                torch.autograd.backward([results[i] for i in some], [torch.ones_like(results[i]) for i in some])
            except RuntimeError as e:
                seen.append(str(e)[:50])
            seen += [None if t.grad is None else t.grad.clone() for t in (x, w)]
        return seen

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for which in ([[0, 1, 2]], [[0], [1], [2]], [[1], [1]], [[2], [2], [0], [0]], [[0, 1], [2], [1]], [[0, 1, 2], [2]]):
        assert_same(run(compiled, which), run(fn, which))
    assert compiled.counters()["compiles"] == 1
    assert eager_graphs(warnings_of_graphs) == []


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_numbers_are_eagers(backend: str) -> None:
    def fn(x: Any) -> Any:
        return torch.nn.functional.dropout(x, 0.5) * 2

    for grad in (False, True):
        compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
        results = []
        for call in (fn, compiled):
            torch.manual_seed(3)
            results.append((call(two(8, 8, grad=grad)).detach(), torch.rand(2)))
        assert_same(results[1], results[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives(backend: str) -> None:
    def fn(x: Any) -> Any:
        return (x.sin() * x).sum()

    def run(call: Callable[..., Any]) -> Any:
        x = two(3, 4, grad=True)
        (first,) = torch.autograd.grad(call(x), x, create_graph=True)
        first.sum().backward()
        return first.detach(), x.grad

    assert_same(run(pycompiler.compile(fn, backend=backend, fullgraph=True)), run(fn))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backward_runs_again_only_where_it_was_retained(backend: str) -> None:
    def fn(x: Any) -> Any:
        return (x * x).sum()

    for call in (fn, pycompiler.compile(fn, backend=backend, fullgraph=True)):
        x = two(3, 4, grad=True)
        result = call(x)
        result.backward(retain_graph=True)
        result.backward()
        assert_same(x.grad, x.detach() * 4)
        with pytest.raises(RuntimeError, match="second time"):
            result.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_before_the_backward_are_errors_where_they_are_eagers(backend: str) -> None:
    def fn(x: Any, w: Any) -> Any:
        return (x * w).exp()

    def run(call: Callable[..., Any], written: str) -> str:
        x, w = two(3, 4, grad=True), two(3, 4, seed=1)
        y = call(x, w)
        with torch.no_grad():
            {"x": x, "w": w, "y": y}[written].mul_(2)
        try:
            y.backward(torch.ones_like(y))
        except RuntimeError as e:
            return "error" if "inplace" in str(e) else str(e)
        return "fine"

    def view(x: Any, w: Any) -> Any:
        return (x * w).exp().reshape(2, 6)

    for program in (fn, view):
        compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
        for written in "xwy":
            assert run(compiled, written) == run(program, written), written


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_have_memory_of_their_own(backend: str) -> None:
    def fn(x: Any, w: Any) -> Any:
        return x + w

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    x, w, ones = two(3, 4, grad=True), two(3, 4, grad=True, seed=1), two(3, 4, seed=2)
    compiled(x, w).backward(ones)
    before = [t.clone() for t in leaves((w.grad, ones))]
    with torch.no_grad():
        x.grad.add_(100)
    for got, wanted in zip(leaves((w.grad, ones)), before, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tangents_that_lie_otherwise(backend: str) -> None:
    def fn(x: Any) -> Any:
        return x.sin()

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for tangent in (two(4, 3).t(), two(3, 4)):
        x, y = two(3, 4, grad=True), two(3, 4, grad=True)
        compiled(x).backward(tangent)
        fn(y).backward(tangent)
        for got, wanted in zip(leaves(x.grad), leaves(y.grad), strict=True):
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_under_autocast(backend: str) -> None:
    compiled = pycompiler.compile(linear, backend=backend, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(compiled(two(3, 4), two(5, 4)), linear(two(3, 4), two(5, 4)))
    assert_same(compiled(two(3, 4), two(5, 4)), linear(two(3, 4), two(5, 4)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_break_between(backend: str) -> None:
    def fn(x: Any) -> Any:
        y = x.sin()
        pycompiler.graph_break()
        return (y * x).sum()

    check(fn, two(3, 4, grad=True), backend=backend, fullgraph=False, backward=True)


def test_a_class_without_the_contract_runs_eagerly() -> None:
    class Bare(torch.Tensor):
        inner: torch.Tensor

        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Any:
            made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
            made.inner = inner
            return made

        @classmethod
        def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*[a.inner if isinstance(a, Bare) else a for a in args], **(kwargs or {})) + 1000

    x = Bare(torch.ones(3))
    report = pycompiler.explain(lambda t: (t * 2).abs())(x)
    assert {b.kind for b in report.break_reasons} == {"tensor-subclass"}
    assert torch.equal(pycompiler.compile(lambda t: (t * 2).abs())(x), torch.full((3,), 1002.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_grad_modes(backend: str, warnings_of_graphs: pytest.LogCaptureFixture) -> None:
    def fn(x: Any) -> Any:
        with torch.no_grad():
            y = x * 2
        return (x * y).sum()

    check(fn, two(3, 4, grad=True), backend=backend, backward=True)
    compiled = check(fn, two(3, 4), backend=backend)
    with torch.no_grad():
        compare(compiled, fn, two(3, 4, grad=True))
    with torch.inference_mode():
        compare(compiled, fn, two(3, 4))
    compare(compiled, fn, two(3, 4))
    assert eager_graphs(warnings_of_graphs) == []


def test_parameters_are_trained() -> None:
    def trained(compiles: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        for layer in (module[0], module[2]):
            weight = layer.weight.detach()
            layer.weight = torch.nn.Parameter(TwoTensor(weight, weight * 2))  # type: ignore[assignment, arg-type]
        call = pycompiler.compile(module, fullgraph=True) if compiles else module
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            call(torch.ones(3, 4)).sum().backward()
            optimizer.step()
        return [p.detach() for p in module.parameters()]

    assert_same(trained(True), trained(False))


def test_sizes_and_numbers_that_change() -> None:
    def fn(x: Any, p: torch.Tensor, n: int) -> Any:
        return x.sum() * p * n

    compiled = pycompiler.compile(fn, fullgraph=True)
    for n in (2, 3, 4, 5):
        compare(compiled, fn, two(n, 4), torch.ones(n, 2), n)


SEEN: list[str] = []


def note(func: Any) -> None:
    SEEN.append(str(func))


@pytest.mark.parametrize("how", ["list", "helper", "attribute", "print"])
def test_a_class_that_has_effects_runs_eagerly(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A compiled graph does not call the class's hook in its calls."""

    class Counting(TwoTensor):
        calls = 0

        @classmethod
        def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise NotImplementedError

        @staticmethod
        def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> Any:
            return Counting(inner["a"], inner["b"])

    below = TwoTensor.__torch_dispatch__.__func__  # type: ignore[attr-defined]

    def lists(cls: Any, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        SEEN.append(str(func))
        return below(cls, func, kinds, args, kwargs)

    def helps(cls: Any, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        note(func)
        return below(cls, func, kinds, args, kwargs)

    def counts(cls: Any, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls += 1
        return below(cls, func, kinds, args, kwargs)

    def prints(cls: Any, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        print(func)
        return below(cls, func, kinds, args, kwargs)

    hook = {"list": lists, "helper": helps, "attribute": counts, "print": prints}[how]
    Counting.__torch_dispatch__ = classmethod(hook)  # type: ignore[assignment]

    def fn(x: Any) -> Any:
        return x * 2 + 1

    seen = []
    compiled = pycompiler.compile(fn)
    for call in (fn, compiled, compiled):
        SEEN.clear()
        Counting.calls = 0
        capsys.readouterr()
        result = call(Counting(torch.ones(2), torch.zeros(2)))
        seen.append((leaves(result)[0].tolist(), [*SEEN], Counting.calls, capsys.readouterr().out))
    assert seen[1] == seen[0] and seen[2] == seen[0]


class Adding(TwoTensor):
    """A subclass with its own operator above the tensor operator."""

    def __add__(self, other: Any) -> Any:
        return torch.Tensor.__add__(self, other) * 10

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> Any:
        return Adding(inner["a"], inner["b"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_class_with_operators_of_its_own_runs_eagerly(backend: str) -> None:
    """The graph calls torch's methods on subclasses by name, and would call the class's own operator."""

    def fn(x: Any) -> Any:
        return (x + 1).relu()

    check(fn, Adding(torch.ones(3), torch.ones(3)), backend=backend, fullgraph=False)
    shadowed = two(3)
    shadowed.t = shadowed.a
    check(fn, shadowed, backend=backend, fullgraph=False)


def test_classes_whose_instances_were_copied() -> None:
    """`copyreg` writes `__slotnames__` into classes."""
    x = TwoTensor(torch.ones(2), torch.ones(2))
    copy.copy(torch.ones(2)), copy.copy(x)
    assert "__slotnames__" in vars(TwoTensor) and hasattr(torch.Tensor, "__slotnames__")
    assert is_tensor_subclass(TwoTensor)
