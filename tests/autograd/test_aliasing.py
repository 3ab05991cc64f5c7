"""Mutation, views and identity of inputs and outputs match eager."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ad_helpers import Compiled, check, clones, fakes, flat, lifted, loss_of, run_graph
from ad_models import ConvNet
from torch import Tensor, fx, nn

import pycompiler
from pycompiler import config
from pycompiler.autograd import AutogradUnsupported, aot_eager, compile_joint


@pytest.fixture(autouse=True)
def _fixed() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def test_mutated_input() -> None:
    check(lambda x: x.add_(1), [torch.randn(3)])
    check(lambda x, y: x.mul_(y) + 1, [torch.randn(3), torch.randn(3)])


def test_mutation_through_a_view() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x[1:].t().mul_(2)
        x[0].fill_(3)
        return x.sum(0)

    check(fn, [torch.randn(3, 4)])


def test_view_taken_before_the_mutation_sees_it() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        v = x.view(-1)
        x.add_(1)
        return v * 2

    check(fn, [torch.randn(2, 3)])


def test_buffer_takes_a_parameters_gradient() -> None:
    def run(fn: object, buffer: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = flat(fn(buffer, w))[0]  # type: ignore[operator]
        (out.sum() + (buffer * 3).sum()).backward()
        return out

    def step(buffer: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        buffer.add_(w)
        return buffer * 2

    buffer, w = torch.randn(3), torch.randn(3, requires_grad=True)
    (b1, w1), (b2, w2) = clones([buffer, w]), clones([buffer, w])
    run(step, b1, w1)
    run(Compiled(step, [buffer, w]).fn, b2, w2)
    assert b2.requires_grad
    torch.testing.assert_close(b2, b1)
    torch.testing.assert_close(w2.grad, w1.grad)


def test_mutated_input_that_requires_grad() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * w
        x.mul_(2)
        return y + x

    def run(target: object) -> tuple[torch.Tensor, ...]:
        leaf, w = torch.linspace(1, 2, 4).requires_grad_(), torch.linspace(2, 3, 4)
        x = leaf * 1
        out = flat(target(x, w))[0]  # type: ignore[operator]
        (out * x).sum().backward()
        assert leaf.grad is not None
        return out, x, leaf.grad

    x = torch.randn(4, requires_grad=True) * 1
    compiled = Compiled(fn, [x, torch.randn(4)])
    for got, expected in zip(run(compiled.fn), run(fn), strict=True):
        torch.testing.assert_close(got, expected)


def test_value_saved_before_the_mutation_survives_it() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x.clone() * w).sum()
        x.zero_()
        return y

    check(fn, [torch.randn(4), torch.randn(4, requires_grad=True)])


def test_leaf_mutated_under_no_grad() -> None:
    graph = fx.Graph()
    w, g = graph.placeholder("w"), graph.placeholder("g")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.call_method("sub_", (w, g))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output((graph.call_method("mul", (w, g)),))
    weight, grad = torch.ones(3, requires_grad=True), torch.full((3,), 0.25)
    fn = aot_eager(fx.GraphModule(nn.Module(), graph), [weight, grad])
    before = weight._version
    (out,) = fn(weight, grad)
    assert weight.is_leaf
    assert weight._version == before + 1
    assert torch.is_grad_enabled()
    torch.testing.assert_close(weight.detach(), torch.full((3,), 0.75))
    out.sum().backward()
    torch.testing.assert_close(weight.grad, grad)


def test_mutation_through_data_hides_from_autograd() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    data = graph.call_function(getattr, (x, "data"))
    graph.call_method("add_", (data, 1))
    graph.output((graph.call_method("mul", (x, 2)),))
    value = torch.zeros(3, requires_grad=True)
    fn = aot_eager(fx.GraphModule(nn.Module(), graph), [value])
    version = value._version
    (out,) = fn(value)
    torch.testing.assert_close(value.detach(), torch.ones(3))
    torch.testing.assert_close(out.detach(), torch.full((3,), 2.0))
    assert value._version == version


def test_output_is_input() -> None:
    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    out = Compiled(lambda a, b: (a, b, a * b, b), [x, w])(x, w)
    assert out[0] is x
    assert out[1] is w
    assert out[3] is w
    assert out[2].requires_grad
    x2 = torch.randn(3)
    compiled = Compiled(lambda a: a.add_(1), [x])
    assert compiled(x2)[0] is x2


def test_same_object_twice() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, y

    out = Compiled(fn, [torch.randn(3)])(torch.randn(3))
    assert out[0] is out[1]


def test_equal_values_do_not_share_memory() -> None:
    x = torch.randn(3)
    a, b = Compiled(lambda t: (t + 1, t + 1), [x])(x)
    a.zero_()
    torch.testing.assert_close(b, x + 1)
    (c,) = Compiled(lambda t: t.clone(), [x])(x)
    assert c.data_ptr() != x.data_ptr()


def test_view_of_an_input() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.t()[1:], x * 2, x.detach()

    leaf = torch.randn(3, 4, requires_grad=True)
    x = leaf * 1
    compiled = Compiled(fn, [x])
    view, twice, detached = compiled(x)
    assert view._base is x
    assert detached.data_ptr() == x.data_ptr()
    assert not detached.requires_grad
    view.mul_(5)
    (view.sum() + twice.sum() + x.sum()).backward()
    expected = torch.ones(3, 4) * 3
    expected[:, 1:] = 12
    torch.testing.assert_close(leaf.grad, expected)


def test_view_of_a_mutated_input() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x[1]

    x = torch.zeros(3, 2)
    (out,) = Compiled(fn, [torch.zeros(3, 2)])(x)
    out.mul_(4)
    torch.testing.assert_close(x, torch.tensor([[1.0, 1], [4, 4], [1, 1]]))


def test_strided_view_of_an_input_with_an_offset() -> None:
    (out,) = Compiled(lambda x: x.unfold(0, 2, 1), [torch.arange(5.0)])(torch.arange(10.0)[5:])
    torch.testing.assert_close(out, torch.arange(10.0)[5:].unfold(0, 2, 1))


def test_outputs_that_alias_each_other() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * w
        return y, y[1:], y.t()

    compiled = check(fn, [torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)])
    y, rest, transposed = compiled(torch.randn(3, 3), torch.ones(3, 3))
    y.zero_()
    assert rest._base is y
    assert not rest.any()
    assert not transposed.any()


def test_views_of_a_hidden_base() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = (x @ w).chunk(3, dim=1)
        return parts[0], parts[1], parts[2]

    compiled = check(fn, [torch.randn(2, 4), torch.randn(4, 6, requires_grad=True)])
    a, b, _ = compiled(torch.randn(2, 4), torch.randn(4, 6, requires_grad=True))
    assert a._base is b._base
    assert a.requires_grad


def test_in_place_on_an_intermediate_and_its_view() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        v = y[0]
        v.add_(y[1])
        y[2].fill_(7.0)
        return y, v

    check(fn, [torch.randn(3, 4, requires_grad=True)])


def test_in_place_view_op_on_an_intermediate() -> None:
    check(lambda x: (x * 2).unsqueeze_(0).transpose_(0, 1), [torch.randn(3, 4, requires_grad=True)])


def test_outputs_not_requiring_grad_and_ints() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[object, ...]:
        y = x * w
        return y, y.argmax(0), y.detach() + 1, 5, None, (y > 0)

    compiled = check(fn, [torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)])
    assert compiled(torch.randn(3, 3), torch.randn(3, 3, requires_grad=True))[3:5] == (5, None)


def test_unused_and_integer_inputs() -> None:
    check(lambda x, unused, n: x * n, [torch.randn(3, requires_grad=True), torch.randn(2, requires_grad=True), 3])


def test_only_one_output_gets_a_gradient() -> None:
    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    compiled = Compiled(lambda a, b: (a * b, (a + b).exp()), [x, w])
    compiled(x, w)[1].sum().backward()
    torch.testing.assert_close(w.grad, (x + w).exp().detach())


def test_tangent_strides_are_coerced() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    compiled = Compiled(lambda t: t.exp(), [x])
    out = compiled(x)[0]
    for grad in (torch.randn(4, 3).t(), torch.ones(()).expand(3, 4), torch.randn(3, 8)[:, ::2]):
        (got,) = torch.autograd.grad(out, [x], grad, retain_graph=True)
        torch.testing.assert_close(got, grad * x.exp())


def test_retain_graph() -> None:
    x = torch.randn(3, requires_grad=True)
    out = Compiled(lambda t: (t * t).sum(), [x])(x)[0]
    out.backward(retain_graph=True)
    out.backward()
    torch.testing.assert_close(x.grad, 4 * x.detach())
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_saved_tensor_changed_before_backward() -> None:
    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    out = Compiled(lambda a, b: a * b, [x, w])(x, w)[0]
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_saved_output_changed_before_backward() -> None:
    x = torch.randn(3, requires_grad=True)
    out = Compiled(lambda a: a.exp(), [x], partition="default")(x)[0]
    out.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_tensor_attributes_and_constants() -> None:
    gm = fx.symbolic_trace(nn.Linear(3, 2))
    x = torch.randn(4, 3)
    fn = aot_eager(gm, [x])
    out = fn(x)[0]
    torch.testing.assert_close(out, gm(x))
    out.sum().backward()
    assert gm.weight.grad is not None


def test_backward_is_compiled_on_first_use() -> None:
    x = torch.randn(3, requires_grad=True)
    compiled = Compiled(lambda a: a.exp(), [x])
    out = compiled(x)[0]
    assert compiled.backward is None
    out.sum().backward()
    first = compiled.backward
    compiled(x)[0].sum().backward()
    assert first is not None
    assert compiled.backward is first


def test_threads_compile_the_backward_once() -> None:
    x = torch.randn(3)
    compiled_times: list[int] = []

    def bw_compiler(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        compiled_times.append(1)
        time.sleep(0.05)
        return gm.forward

    gm, _ = lifted(lambda t: t.exp(), [x.requires_grad_()])
    fn = compile_joint(gm, fakes(gm), fw_compiler=run_graph, bw_compiler=bw_compiler)
    leaves = [torch.randn(3, requires_grad=True) for _ in range(4)]
    threads = [threading.Thread(target=lambda t=t: fn(t)[0].sum().backward()) for t in leaves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiled_times == [1]
    for t in leaves:
        torch.testing.assert_close(t.grad, t.detach().exp())


def test_a_failing_backward_compiler_is_asked_again() -> None:
    answers: list[Any] = [RuntimeError("no disk"), None]

    def bw_compiler(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return gm.forward

    x = torch.randn(3, requires_grad=True)
    gm, _ = lifted(lambda t: t.exp(), [x])
    fn = compile_joint(gm, fakes(gm), fw_compiler=run_graph, bw_compiler=bw_compiler)
    out = fn(x)[0].sum()
    with pytest.raises(RuntimeError, match="no disk"):
        out.backward(retain_graph=True)
    out.backward()
    torch.testing.assert_close(x.grad, x.detach().exp())


REFUSED = [
    (lambda x: x.unsqueeze_(0) * 1, "metadata"),
    (lambda x: x.resize_(2) * 1, "metadata"),
    (lambda x: x.requires_grad_() * 1, "requires_grad"),
    (lambda x: (x + 1).requires_grad_(), "leaf"),
]


@pytest.mark.parametrize(("fn", "word"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_refused(fn: object, word: str) -> None:
    with pytest.raises(AutogradUnsupported, match=word):
        Compiled(fn, [torch.randn(3)])


def test_aliasing_inputs_may_be_read_but_not_mutated() -> None:
    x = torch.randn(4)
    check(lambda a, b: a + b, [x, x[:]])
    with pytest.raises(AutogradUnsupported, match="aliasing inputs"):
        Compiled(lambda a, b: a.add_(1) + b, [x, x[:]])


def test_leaf_mutated_under_grad_is_left_to_eager() -> None:
    with pytest.raises(AutogradUnsupported, match="a leaf Variable that requires grad"):
        Compiled(lambda w: w.add_(1), [torch.randn(3, requires_grad=True)])


def test_loss_helper_weighs_outputs_differently() -> None:
    a = torch.ones(3, requires_grad=True)
    loss_of([a]).backward()
    assert a.grad is not None
    assert len(set(a.grad.tolist())) == 3


def test_output_requires_grad_though_no_input_gets_one() -> None:
    x = torch.randn(3, requires_grad=True)
    out = Compiled(lambda a: a.norm(p=0), [x])(x)[0]
    assert out.requires_grad
    out.backward()
    assert x.grad is None or not x.grad.any()


def test_parameter_copied_into_a_buffer_under_no_grad() -> None:
    graph = fx.Graph()
    buffer, w = graph.placeholder("buffer"), graph.placeholder("w")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.call_method("copy_", (buffer, w))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output((graph.call_method("mul", (w, 2)),))
    values = [torch.zeros(3), torch.ones(3, requires_grad=True)]
    (out,) = aot_eager(fx.GraphModule(nn.Module(), graph), values)(*values)
    assert values[0].tolist() == [1, 1, 1]
    assert not values[0].requires_grad
    assert values[1].is_leaf
    out.sum().backward()
    torch.testing.assert_close(values[1].grad, torch.full((3,), 2.0))


def test_stores_in_the_graph() -> None:
    def swap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        old = a.clone()
        a.copy_(b)
        b.copy_(old)
        return a + b, old

    compiled = check(swap, [torch.randn(3), torch.randn(3)], store_in_graph=True)
    assert compiled.inference is not None
    stores = [n for n in compiled.inference.graph.nodes if n.target is torch.ops.aten.copy_.default]
    assert [n.args[0].name for n in stores] == ["a", "b"]

    net = ConvNet()
    compiled = check(net, [torch.randn(2, 3, 12, 12)], store_in_graph=True)
    assert int(net.norm.num_batches_tracked) == 2  # `check` calls twice
    versions = net.norm.num_batches_tracked._version, net.norm.running_mean._version
    compiled(torch.randn(2, 3, 12, 12))
    # As in eager: the batch norm kernel writes its statistics without counting a version.
    assert (net.norm.num_batches_tracked._version, net.norm.running_mean._version) == (versions[0] + 1, versions[1])


def test_stored_value_that_is_also_an_output() -> None:
    def fn(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = state * 0.9 + x
        state.copy_(y)
        return y

    compiled = check(fn, [torch.randn(3), torch.randn(3)], store_in_graph=True)
    assert compiled.inference is not None
    assert not any(n.target is torch.ops.aten.clone.default for n in compiled.inference.graph.nodes)


@pytest.mark.parametrize("write", [
    lambda t: t.expand(3, 4).add_(1),
    lambda t: t.expand(3, 4).__iadd__(1),
    lambda t: torch.add(t, 1, out=t.expand(1, 4).expand(3, 4)),
])  # fmt: skip
def test_writes_to_elements_in_one_place_raise_as_in_eager(write: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        write(y)
        return y

    with pytest.raises(RuntimeError) as eager:
        program(torch.ones(4))
    for backend in ("aot_eager", "native"):
        with pytest.raises(RuntimeError) as ours:
            pycompiler.compile(program, backend=backend)(torch.ones(4))
        assert str(ours.value).split(".")[0] == str(eager.value).split(".")[0]


BACKENDS = ("aot_eager", "native")


def _versions(fn: Any, *args: torch.Tensor) -> list[int]:
    fn(*args)
    return [a._version for a in args]


@pytest.mark.parametrize("backend", BACKENDS)
def test_write_through_windows_leaves_the_gaps_alone(backend: str) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> None:
        x.unfold(0, 1, 2).add_(y)

    x = torch.arange(4.0)
    pycompiler.compile(fn, backend=backend)(x, torch.ones(()))
    torch.testing.assert_close(x, torch.tensor([1.0, 1, 3, 3]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_reshape_of_an_expanded_result(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 1) * 2

    leaf = torch.randn(2, requires_grad=True)
    out = pycompiler.compile(fn, backend=backend)(leaf[None].expand(3, 2))
    torch.testing.assert_close(out, fn(leaf[None].expand(3, 2)))
    out.sum().backward()
    torch.testing.assert_close(leaf.grad, torch.full((2,), 6.0))


VIEWS = [
    lambda x: x.detach().t(),
    lambda x: x.t().detach(),
    lambda x: x.detach(),
    lambda x: x.t(),
    lambda x: (x * 2).t()[1:],
    lambda x: torch.no_grad()(lambda: x.t())(),
]


@pytest.mark.parametrize("number", range(len(VIEWS)))
@pytest.mark.parametrize("requires_grad", [False, True])
def test_what_autograd_takes_for_a_view(number: int, requires_grad: bool) -> None:
    fn = VIEWS[number]
    x = torch.randn(2, 2, requires_grad=requires_grad)
    got, expected = pycompiler.compile(fn, backend="aot_eager")(x), fn(x)
    assert got.requires_grad == expected.requires_grad
    if number != 4:
        assert got._is_view() == expected._is_view()
        assert (got._base is x) == (expected._base is x)
        assert got.data_ptr() == expected.data_ptr()
    got.detach().zero_()


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_of_the_same_value_count_versions(backend: str) -> None:
    def copied(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.copy_(x)
        return y

    def assigned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[:] = x
        return y + 1

    for fn in (copied, assigned):
        args = torch.randn(3), torch.randn(3)
        expected = _versions(fn, *clones(args))
        assert _versions(pycompiler.compile(fn, backend=backend), *clones(args)) == expected == [1, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_to_what_is_read_raise_as_in_eager(backend: str) -> None:
    def into_itself(x: torch.Tensor, i: torch.Tensor) -> None:
        x.index_add_(0, i, x)

    def shifted(x: torch.Tensor, i: torch.Tensor) -> None:
        x[1:].add_(x[:-1])

    def apart(x: torch.Tensor, i: torch.Tensor) -> None:
        x[:1] = x[1:] * 2
        x[:1] = x[1:]
        x.mul_(x)

    for fn in (into_itself, shifted):
        with pytest.raises(RuntimeError, match="single memory location"):
            pycompiler.compile(fn, backend=backend)(torch.randn(3), torch.tensor([0, 1, 2]))
    x = torch.tensor([1.0, 3])
    pycompiler.compile(apart, backend=backend, fullgraph=True)(x, torch.tensor([0, 1]))
    torch.testing.assert_close(x, torch.tensor([9.0, 9]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_output_view_of_an_intermediate_is_written(backend: str) -> None:
    def run(fn: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_()
        out = fn(x)
        out.mul_(3)
        (out * out).sum().backward()
        assert x.grad is not None
        return out, x.grad

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x * 2)[1:]

    torch.testing.assert_close(run(pycompiler.compile(fn, backend=backend)), run(fn))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_one_of_several_views_is_not_written_where_it_is_alone(backend: str) -> None:
    """No other tensor shares the memory then. Autograd still forbids the write, also in the backward after a hidden write."""

    def alone(t: torch.Tensor) -> torch.Tensor:
        return (t * 2).unbind(0)[0]

    compiled = pycompiler.compile(alone, backend=backend)
    for fn in (alone, compiled):
        x = torch.ones(2, 3, requires_grad=True)
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            fn(x).add_(1)
        y = fn(x)
        y.detach().mul_(2)
        with pytest.raises(RuntimeError, match="a function that returns multiple views"):
            y.sum().backward()
        fn(x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [[2.0] * 3, [0.0] * 3]


def test_one_of_several_views_is_not_written() -> None:
    x = torch.randn(3, 3, requires_grad=True)
    for fn in (lambda t: (t * 2).chunk(3), lambda t: (t * 2).unbind(0)):
        part = pycompiler.compile(fn, backend="aot_eager")(x)[0]
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            part.mul_(2)


STRIDED = [
    lambda x: torch.softmax(x, 0),
    lambda x: torch.log_softmax(x, 1),
    lambda x: nn.functional.layer_norm(x, (2,)),
    lambda x: nn.functional.batch_norm(x, torch.zeros(2), torch.ones(2)),
    lambda x: nn.functional.group_norm(x, 1),
]


@pytest.mark.parametrize("number", range(len(STRIDED)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_are_those_of_the_whole_operator(number: int, backend: str) -> None:
    fn = STRIDED[number]
    x = torch.randn(2, 3).t().requires_grad_()
    got, expected = pycompiler.compile(fn, backend=backend)(x), fn(x)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()


def _transposed_scatter(x: Any) -> Any:
    t = x * 1
    v = t.as_strided((2, 2), (1, 0), 0)
    u = t.t()
    u.scatter_add_(-2, torch.tensor([[0, 1]]), torch.full((2, 2), 0.7))
    return v, t, u


def _masked_then_viewed(x: Any) -> Any:
    t = (x * 1).t()
    t.masked_fill_(t > 1, 9.0)
    r, w = t.reshape(-1), t.t().reshape(-1)
    w.add_(1)
    return t, r, w


def _scatter_into_a_view(x: Any) -> Any:
    y = x * 1
    y.t().scatter_add_(-2, torch.tensor([[0, 1]]), torch.full((2, 2), 0.7))
    return y.view(-1), y


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [_transposed_scatter, _masked_then_viewed, _scatter_into_a_view])
def test_a_write_leaves_its_target_where_it_lies(fn: Any, grad: bool, backend: str) -> None:
    """Operators with contiguous results write into transposed views: the target keeps its layout, for later strided views."""
    inputs = [torch.arange(4.0).view(2, 2).requires_grad_(grad) for _ in range(2)]
    for got, expected in zip(pycompiler.compile(fn, backend=backend)(inputs[0]), fn(inputs[1]), strict=True):
        assert torch.equal(got, expected)
        assert got.stride() == expected.stride()
        if grad:
            (got * got).sum().backward(retain_graph=True)
            (expected * expected).sum().backward(retain_graph=True)
            torch.testing.assert_close(inputs[0].grad, inputs[1].grad)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_an_argument_of_windows_is_written(backend: str) -> None:
    """The elements share memory: a write of the whole new value would put old elements over new ones."""

    def fn(x: Any, y: Any) -> None:
        x[:1] = y

    memory = [torch.arange(5.0) for _ in range(2)]
    fn(memory[0].unfold(0, 3, 1), torch.tensor(9.0))
    pycompiler.compile(fn, backend=backend)(memory[1].unfold(0, 3, 1), torch.tensor(9.0))
    assert memory[0].tolist() == memory[1].tolist() == [9.0, 9.0, 9.0, 3.0, 4.0]


def _copied_element(x: Tensor) -> Tensor:
    return x.exp()[1].clone()


def _copied_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()[1:]
    return y, y.clone()


def _copied_into(x: Tensor) -> Tensor:
    return torch.empty(2, 3).copy_(x.exp()[1:])


def _contiguous_piece(x: Tensor) -> Tensor:
    return (x @ x.t())[:, 1].contiguous()


def _all_of_it(x: Tensor) -> Tensor:
    return x.exp().view(9).clone()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [_copied_element, _copied_rows, _copied_into, _contiguous_piece, _all_of_it])
def test_a_copy_of_a_piece_holds_the_piece_alone(fn: Callable[..., Any], grad: bool, backend: str) -> None:
    """A functional graph turns a copy into its source: the returned copy may not keep the whole source, nor an offset into it."""
    compiled = pycompiler.compile(fn, backend=backend)
    found = []
    for run in (fn, compiled, compiled):
        x = torch.arange(9.0).view(3, 3).div(10).requires_grad_(grad)
        made = run(x)
        made = made if isinstance(made, tuple) else (made,)
        facts = [(t.storage_offset(), t.untyped_storage().nbytes(), t.stride(), t.requires_grad) for t in made]
        if grad:
            torch.cat([t.reshape(-1) for t in made]).pow(2).sum().backward()
        grads = None if x.grad is None else x.grad.clone()
        found.append((facts, [t.detach().clone() for t in made], grads))
    for facts, values, grads in found[1:]:
        assert facts == found[0][0]
        torch.testing.assert_close((values, grads), found[0][1:])


def test_a_large_identity() -> None:
    """torch's decomposition counts the rows in a dtype that no kernel supports."""
    for backend in ("aot_eager", "native"):
        assert float(pycompiler.compile(lambda x: (torch.eye(300) * x).sum(), backend=backend)(torch.ones(()))) == 300.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_of_an_expanded_input_is_written(backend: str) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[1].add_(y)
        return y * 2

    base = torch.zeros(1, 3)
    pycompiler.compile(fn, backend=backend)(base.expand(2, 3), torch.ones(()))
    torch.testing.assert_close(base, torch.ones(1, 3))


def _strided_row(x: Any) -> Any:
    view = x.as_strided((2, 2), (3, 3))
    view[::3, :] = view.mean(0)
    return x * 1


def _strided_row_of_a_result(x: Any) -> Any:
    y = x * 1
    y.as_strided((2, 2), (1, 1))[0].add_(1)
    return y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [_strided_row, _strided_row_of_a_result])
def test_a_part_of_a_view_that_overlaps_itself_is_written(fn: Any, backend: str) -> None:
    """The other elements at the same place must not keep the old value."""
    x, y = torch.arange(7.0), torch.arange(7.0)
    assert torch.equal(pycompiler.compile(fn, backend=backend)(x), fn(y))
    assert torch.equal(x, y)


def _part_by_itself(x: Any) -> Any:
    part = x[:, :2]
    part[torch.tensor([1, 0])] = part
    return x


def _mask_by_itself(x: Any) -> Any:
    x[x[:, 0] > -9] = x
    return x


def _list_by_a_view(x: Any) -> Any:
    x[[1, 0]] = x.view_as(x)
    return x


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [_part_by_itself, _mask_by_itself, _list_by_a_view])
def test_elements_at_indices_are_not_written_by_themselves(fn: Any, backend: str) -> None:
    """Eager refuses the write; it must not be treated as a write of each element by itself."""
    with pytest.raises(RuntimeError, match="single memory location"):
        fn(torch.arange(6.0).reshape(2, 3))
    with pytest.raises(RuntimeError, match="single memory location"):
        pycompiler.compile(fn, backend=backend)(torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_without_history_crosses_a_break(backend: str) -> None:
    """The view is one of several, and its memory was written under no_grad: autograd raises when its history is read."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        first, last = (x * 1).split((3, 1), -1)
        with torch.no_grad():
            first.zero_()
        x.masked_select(x > 0)
        return last

    with config.patch(raise_internal_errors=True):
        assert pycompiler.compile(fn, backend=backend)(torch.arange(4.0).requires_grad_()).tolist() == [3.0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "view",
    [lambda x: x.unflatten(0, (-1, 2)), lambda x: x.view(2, 2).t(), lambda x: x.reshape(1, 4), lambda x: x.view(4)],
)
def test_a_written_view_of_a_strided_argument_is_a_view_of_it(view: Any, backend: str) -> None:
    """The written value has a layout in the trace that no strided memory has; the result must have the argument's strides."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        v = view(x)
        v.masked_fill_(v > 2, 0.5)
        return v

    x, y = (torch.arange(9.0)[1:8:2] for _ in range(2))
    got, want = pycompiler.compile(fn, backend=backend)(x), fn(y)
    assert torch.equal(got, want) and torch.equal(x, y) and got.stride() == want.stride()
    assert got.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: ((x * 2).conj(),),
        lambda x: ((x * 2).conj().imag, (x * 3).conj().view(2, 2)[0]),
        lambda x: ((x * 2).conj().detach(),),
        lambda x: (lambda y: (y.detach(), y))((x * 2).conj()),
        lambda x: ((x * 2).conj().mul_(2),),
        lambda x: (torch._neg_view(x * 2),),
    ],
)
def test_results_that_are_read_conjugated(fn: Any, backend: str) -> None:
    """A result that shares memory with no other result must keep its conjugate or negative bit and stay a view."""
    x = torch.randn(4, dtype=torch.complex128, requires_grad=True)
    for got, want in zip(pycompiler.compile(fn, backend=backend)(x), fn(x), strict=True):
        for flag in (torch.is_conj, torch.is_neg, torch.Tensor._is_view, torch.Tensor.stride):
            assert flag(got) == flag(want)
        assert torch.equal(got, want) and got.requires_grad == want.requires_grad
        if want.requires_grad:
            weight = torch.randn_like(want)
            grads = (torch.autograd.grad(t, x, weight)[0] for t in (got, want))
            torch.testing.assert_close(*grads)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(6, 7, -1), (7, 6), (-1,)])
def test_a_copy_of_a_written_input_with_gaps_is_one(shape: tuple[int, ...], backend: str) -> None:
    """The written value has no gaps in the trace, so `reshape` gives a view there; the input must not be written twice."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        rows = x.unflatten(1, (2, -1))
        rows.add_(1)
        x.transpose(0, -1).floor_()
        return rows.reshape(shape).mul_(2)

    x, y = (torch.arange(49.0).reshape(7, 7)[:, 1:] / 4 for _ in range(2))
    assert torch.equal(pycompiler.compile(fn, backend=backend)(x), fn(y)) and torch.equal(x, y)


def _copied_then_filled(a: Any, b: Any) -> Any:
    a.copy_(b.permute(0, 1))
    b.index_fill_(0, torch.tensor([1]), -1)
    return a.neg()


def _exchanged(a: Any, b: Any) -> Any:
    t = a.clone()
    a.copy_(b)
    b.copy_(t)
    return a + b


@pytest.mark.parametrize("requires", [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("fn", [_copied_then_filled, _exchanged])
def test_the_new_value_of_an_input_is_another_input_that_is_written(fn: Any, requires: tuple[bool, bool]) -> None:
    """An input takes the value of another input: a later write to the other input must not change the first one."""

    def run(f: Any) -> list[Any]:
        torch.manual_seed(0)
        leaves = [torch.randn(6, 2, requires_grad=r) for r in requires]
        given = [t * 1 if t.requires_grad else t for t in leaves]
        result = f(*given)
        if any(requires):
            (result.sum() + (given[0] * 2).sum()).backward()
        return [result, *given, *(t.grad for t, r in zip(leaves, requires, strict=True) if r)]

    want = run(fn)
    for backend in ("aot_eager", "native"):
        for a, b in zip(want, run(pycompiler.compile(fn, backend=backend)), strict=True):
            torch.testing.assert_close(a, b)


def _whole(x: Tensor) -> Tensor:
    y = x * 2
    y.retain_grad()
    y.mul_(2)
    (y * x).sum().backward()
    return y


def _through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    flat = y.view(-1)
    y.retain_grad()
    flat.mul_(2)
    flat.exp().sum().backward()
    return y


def _item(x: Tensor) -> Tensor:
    y = x * 2
    y.retain_grad()
    y[0] = 1.0
    (y * x).sum().backward()
    return y


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", [_whole, _through_a_view, _item], ids=lambda fn: fn.__name__)
def test_a_written_input_that_keeps_its_gradient_gets_it(program: Callable[..., Tensor], backend: str) -> None:
    def outcome(call: Callable[..., Tensor]) -> list[Any]:
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        y = call(x)
        assert y.grad is not None and x.grad is not None
        return [y.tolist(), y.grad.tolist(), x.grad.tolist()]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert outcome(pycompiler.compile(program, backend=backend)) == outcome(program)


GAPS: dict[str, Callable[[Tensor], Any]] = {
    "scaled": lambda t: (t.mul_(2) + 1, t.sum()),
    "again": lambda t: (t.add_(1).clamp_(0, 5), t[0].mul_(2), t + 1),
    "a view before": lambda t: (t[1:], t.relu_(), t[1:].softmax(0)),
    "views behind": lambda t: (t.mul_(2)[:, 1:], t.t(), t.unsqueeze(1), t.unflatten(1, (2, -1)), t.chunk(2, 1)),
    "through a view": lambda t: (t.unflatten(1, (2, -1)).add_(1), t.sin()),
    "copied": lambda t: (t.copy_((t / 9).exp()), t.clone(), torch.empty_like(t).fill_(1), t @ t.t()),
    "filled": lambda t: (t.zero_(), t.detach(), t.select(1, 0).fill_(3)),
    "nothing more": lambda t: (t.lerp_(t * 2, 0.5), None)[1],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("requires", [False, True])
@pytest.mark.parametrize("fn", GAPS)
def test_an_input_with_gaps_is_written_in_a_graph(fn: str, requires: bool, backend: str, caplog: Any) -> None:
    program = GAPS[fn]
    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    for part in (lambda b: b[:, :4], lambda b: b[::2, :4], lambda b: b.t()[1:, 2:6], lambda b: b[:4, ::2]):
        seen: list[Any] = []
        for call in (compiled, program):
            leaf = (torch.arange(64.0).reshape(8, 8) / 7).requires_grad_(requires)
            base = leaf * 1
            with caplog.at_level("WARNING"):
                made = [t for t in flat(call(part(base))) if isinstance(t, Tensor)]
            if requires:
                torch.stack([t.sum() for t in (base, *made)]).sum().backward()
            shared = [t.untyped_storage()._cdata == base.untyped_storage()._cdata for t in made]
            strides = [t.stride() for t in made]
            seen.append((base.detach(), made, leaf.grad, shared, strides, [t.requires_grad for t in made]))
        torch.testing.assert_close(*(s[:3] for s in seen))
        assert seen[0][3:] == seen[1][3:]
    assert not caplog.records


SHOWN: dict[str, Callable[[Tensor], Any]] = {
    "a library's operator": lambda t: (t.mul_(2), torch.ops.gaps.strides(t)),
    "one that writes": lambda t: (t.mul_(2), torch.ops.gaps.counted(t[:, 1:])),
    "random numbers": lambda t: t.zero_().normal_(),
    "out": lambda t: (torch.exp(t / 9, out=t), t[0] + 1),
    "a copy or a view": lambda t: (t.mul_(2), t.reshape(-1).mul_(2), t.contiguous().add_(1)),
    "by strides": lambda t: (t.mul_(2), t.as_strided((2, 2), (1, 1))),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", SHOWN)
def test_what_shows_how_a_written_input_with_gaps_lies(fn: str, backend: str) -> None:
    with torch.library._scoped_library("gaps", "FRAGMENT") as library:
        library.define("strides(Tensor t) -> Tensor")
        library.define("counted(Tensor(a!) t) -> Tensor")
        library.impl("strides", lambda t: torch.tensor(t.stride()), "CPU")
        library.impl("counted", lambda t: (t.add_(1), torch.tensor(t.stride()))[1], "CPU")
        for name in ("strides", "counted"):
            torch.library.register_fake(f"gaps::{name}", lambda t: torch.empty(2, dtype=torch.int64), lib=library)
        seen = []
        for call in (pycompiler.compile(SHOWN[fn], backend=backend), SHOWN[fn]):
            torch.manual_seed(0)
            base = torch.arange(64.0).reshape(8, 8)
            seen.append((base, flat(call(base[:, :4]))))
        torch.testing.assert_close(*seen)
