"""Verify mode: right programs pass unchanged, wrong kernels are named with operator and line."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pycompiler
from pycompiler import background, config
from pycompiler.errors import ArgumentError, VerificationError
from pycompiler.lowering import LOWERINGS
from pycompiler.pipeline import verification
from pycompiler.pipeline.differences import difference, first_difference
from pycompiler.pipeline.uninitialized import Filled

aten = torch.ops.aten


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The result of each comparison of a whole graph."""
    found: list[Any] = []
    compare = verification.compare

    def noting(*args: Any) -> Any:
        found.append(compare(*args))
        return found[-1]

    monkeypatch.setattr(verification, "compare", noting)
    return found


def dropout(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x @ w, 0.5).relu()


def in_place(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x[0].mul_(2)
    return (x.add_(1) @ w).sum(0)


def chaotic(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Its terms cancel: few correct digits are left in float32."""
    return ((x @ w) * 1e4).exp().log() - (x @ w) * 1e4


def branches(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (x @ w).softmax(-1)
    return y.argmax(-1), y.to(torch.bfloat16) * 3, torch.where(y > 0.5, y, -y), (y * 1j).sum()


@pytest.mark.parametrize("program", [dropout, in_place, chaotic, branches])
@pytest.mark.parametrize("backend", ["native", "eager"])
def test_right_programs_pass_and_change_nothing(program: Callable[..., Any], backend: str, compared: list[Any]) -> None:
    runs = []
    for verify in (0.0, 1.0):
        torch.manual_seed(3)
        x, w = torch.randn(4, 6), torch.randn(6, 5, requires_grad=True)
        compiled = pycompiler.compile(program, backend=backend, verify=verify)
        made = compiled(x, w)
        again = compiled(x, w)
        runs.append([x, w.grad, torch.rand(2), *(made if isinstance(made, tuple) else (made,)), again])
    assert compared == [None, None]
    torch.testing.assert_close(runs[1], runs[0], rtol=0, atol=0, equal_nan=True)


def test_a_module_in_training(compared: list[Any]) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    compiled = pycompiler.compile(model, verify=True)
    x = torch.randn(5, 2, 4, 4)
    compiled(x).sum().backward()
    assert compared == [None]
    assert model[1].num_batches_tracked == 1
    assert model[0].weight.grad is not None


def test_symbolic_sizes(compared: list[Any]) -> None:
    compiled = pycompiler.compile(lambda x: (x * x.shape[0]).sum(0), dynamic=True, verify=1)
    for n in (3, 4, 5):
        compiled(torch.randn(n, 2))
        assert pycompiler.wait_for_compiles(60)
    assert compared == [None, None, None]


def test_a_share_of_the_calls(compared: list[Any]) -> None:
    compiled = pycompiler.compile(lambda x: x + 1, verify=0.25)
    counts = []
    for _ in range(12):
        compiled(torch.ones(2))
        assert pycompiler.wait_for_compiles(60)  # a worker thread compares
        counts.append(len(compared))
    assert counts == [1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4]


@pytest.mark.parametrize("share", [-0.1, 1.5, "all", None, float("nan")])
def test_shares_that_are_none(share: Any) -> None:
    with pytest.raises(ArgumentError, match="verify must be a share"):
        pycompiler.compile(lambda x: x, verify=share)


# injected faults ---------------------------------------------------------------------------------------------------
def wrong(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2).relu() + 1
    z = y.sin()
    return (z * 3).sum(-1) + y.exp().sum(-1)


def line_of(text: str) -> str:
    return next(line.strip() for line in text.splitlines() if "first at operator" in line)


def test_verify_correctness_names_operator_and_line() -> None:
    with patch.dict(LOWERINGS, {aten.sin.default: LOWERINGS[aten.tanh.default]}), config.patch(verify_correctness=True):
        with pytest.raises(VerificationError) as caught:
            pycompiler.compile(wrong)(torch.randn(3, 4))
    text = str(caught.value)
    assert "differs from eager in output 0: 3 of 3 elements, the first at [0]: " in text
    assert "(in float64 " in text
    assert line_of(text) == "first at operator sin (node sin)"
    assert "z = y.sin()" in text
    assert f"{__file__}:{wrong.__code__.co_firstlineno + 2} in wrong" in text


def test_a_share_reports_and_answers_as_eager(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("pycompiler").propagate = True
    x = torch.randn(3, 4)
    with patch.dict(LOWERINGS, {aten.exp.default: LOWERINGS[aten.expm1.default]}):
        compiled = pycompiler.compile(wrong, verify=0.5)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), wrong(x))
    [record] = [r for r in caplog.records if "differs from eager" in r.getMessage()]
    assert record.levelno == logging.ERROR
    assert line_of(record.getMessage()) == "first at operator exp (node exp)"
    assert "runs eagerly from now on" in record.getMessage()


def test_a_wrong_gradient(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("pycompiler").propagate = True
    x = torch.randn(3, 4, requires_grad=True)
    with patch.dict(LOWERINGS, {aten.cos.default: LOWERINGS[aten.tanh.default]}):
        compiled = pycompiler.compile(wrong, verify=1)
        grads = [torch.autograd.grad(f(x).sum(), x)[0] for f in (compiled, wrong)]
    torch.testing.assert_close(*grads)
    [record] = [r for r in caplog.records if "differs from eager" in r.getMessage()]
    assert "in the gradient of input 0: " in record.getMessage()
    assert line_of(record.getMessage()) == "first at operator sin (node sin)"


def test_a_missing_write_by_a_users_backend() -> None:
    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        return lambda x: gm(x.clone())

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        x.add_(1)
        return y

    with config.patch(verify_correctness=True), pytest.raises(VerificationError, match="in input 0 after the call"):
        pycompiler.compile(program, backend=backend)(torch.ones(3))


def test_a_backend_whose_graph_raises() -> None:
    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        def run(x: torch.Tensor) -> Any:
            raise KeyError("oh")

        return run

    with config.patch(verify_correctness=True), pytest.raises(VerificationError, match="it raised KeyError: 'oh'"):
        pycompiler.compile(lambda x: x + 1, backend=backend)(torch.ones(3))


def no_relu(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """A backend that changes its graph and the graphs in it."""
    for graph in (m for m in gm.modules() if isinstance(m, torch.fx.GraphModule)):
        for node in graph.graph.nodes:
            if node.target is torch.relu:
                node.target = torch.sigmoid
        graph.recompile()
    return gm.forward


def test_a_backend_that_changes_its_graph_in_place() -> None:
    with config.patch(verify_correctness=True), pytest.raises(VerificationError) as caught:
        pycompiler.compile(lambda x: torch.relu(x.sin()), backend=no_relu)(torch.ones(3))
    text = str(caught.value)
    assert "compiled by backend 'no_relu', differs from eager in output 0: 3 of 3 elements" in text
    assert line_of(text) == "first at operator relu (node relu)"
    assert "pycompiler gave it the graph as captured" in text and "a bug of pycompiler" not in text


def test_a_backend_that_changes_the_body_of_a_checkpoint() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: torch.relu(y).sin(), x, use_reentrant=False)

    with config.patch(verify_correctness=True), pytest.raises(VerificationError, match="compiled by backend 'no_relu'"):
        pycompiler.compile(program, backend=no_relu)(torch.ones(3, requires_grad=True))


def test_the_captured_graph_answers_for_a_backend_that_changed_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """With `verify` as a share, a wrong graph is replaced by the captured one."""
    logging.getLogger("pycompiler").propagate = True
    compiled = pycompiler.compile(lambda x: torch.relu(x), backend=no_relu, verify=1)
    x = torch.randn(5)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), torch.relu(x), rtol=0, atol=0)
    [record] = [r for r in caplog.records if "differs from eager" in r.getMessage()]
    assert "compiled by backend 'no_relu'" in record.getMessage()


def test_what_happens_once_is_not_repeated(compared: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    @torch.library.custom_op("pycompiler_tests_verify::notes", mutates_args=())
    def notes(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x + 1

    notes.register_fake(torch.empty_like)
    logging.getLogger("pycompiler").propagate = True
    compiled = pycompiler.compile(lambda x: notes(x) * 2, verify=1)
    assert compiled(torch.ones(2)).tolist() == [4, 4]
    assert (calls, compared) == ([1], [])
    assert "not compared with eager: " in caplog.text


def test_grad_mode_that_the_graph_sets(compared: list[Any]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
        return y + x

    x = torch.ones(3, requires_grad=True)
    made = pycompiler.compile(program, verify=1)(x)
    made.sum().backward()
    assert compared == [None]
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1, 1]


def test_errors_of_eager_stay_as_they_are() -> None:
    compiled = pycompiler.compile(lambda x, i: x[i], verify=1)
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(torch.ones(3), torch.tensor([5]))


# in serving --------------------------------------------------------------------------------------------------------
class Gate:
    """A backend whose graph records its threads, and waits in pool threads for a signal."""

    def __init__(self) -> None:
        self.go, self.threads = threading.Event(), list[str]()
        self.wrong = False

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        def run(*inputs: torch.Tensor) -> Any:
            self.threads.append(threading.current_thread().name)
            if background.inside():
                assert self.go.wait(300)
            return [t * 2 for t in gm(*inputs)] if self.wrong else gm(*inputs)

        return run


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.go.set()
    assert pycompiler.wait_for_compiles(60)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_calls_that_serve_do_not_wait(context: Any, gate: Gate, compared: list[Any]) -> None:
    model = nn.Linear(3, 2)
    compiled = pycompiler.compile(model, backend=gate, verify=1)
    with context():
        for _ in range(4):
            x = torch.randn(5, 3)
            made, want = compiled(x), model(x)
            assert torch.equal(made, want)
            x.zero_()  # the later comparison uses a copy
    assert compared == [None]  # the first call, which compiles anyway
    gate.go.set()
    assert pycompiler.wait_for_compiles(60)
    assert compared == [None, None]  # one at a time
    assert set(gate.threads) == {threading.current_thread().name, "pycompiler background"}
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def test_a_difference_that_a_worker_finds(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("pycompiler").propagate = True
    gate.go.set()
    compiled = pycompiler.compile(lambda x: x + 1, backend=gate, verify=1)
    compiled(torch.ones(2))
    gate.wrong = True
    assert compiled(torch.ones(2)).tolist() == [4, 4]  # no call waited
    assert pycompiler.wait_for_compiles(60)
    assert [r.levelno for r in caplog.records if "differs from eager" in r.getMessage()] == [logging.ERROR]
    assert compiled(torch.ones(2)).tolist() == [2, 2]


def test_parameters_that_change_meanwhile(
    gate: Gate, compared: list[Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager computes with other parameters than the call did."""
    compare = verification.compare

    def late(*args: Any) -> Any:
        assert not background.inside() or gate.go.wait(300)
        return compare(*args)

    monkeypatch.setattr(verification, "compare", late)
    logging.getLogger("pycompiler").propagate = True
    model = nn.Linear(3, 2)
    compiled = pycompiler.compile(model, backend=gate, verify=1)
    with torch.no_grad():
        for _ in range(2):
            compiled(torch.ones(3))
        gate.wrong = True
        model.weight.add_(1)
        gate.go.set()
        assert pycompiler.wait_for_compiles(60)
    assert len(compared) == 2 and compared[1] is not None
    assert "differs" not in caplog.text


@pytest.mark.parametrize("program", [dropout, lambda x, w: torch.cond(x.sum() > 0, torch.rand_like, torch.sin, (x,))])
def test_calls_that_draw_wait(program: Any, compared: list[Any]) -> None:
    compiled = pycompiler.compile(program, verify=1)
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.ones(4, 6), torch.ones(6, 5))
    assert compared == [None] * 3


def test_what_draws_nothing_leaves_the_generator_to_others(compared: list[Any]) -> None:
    compiled = pycompiler.compile(lambda x: (x + 1).sum(), backend="eager", verify=1)
    x = torch.ones(3, requires_grad=True)
    compiled(x)
    with patch.object(torch, "set_rng_state", side_effect=AssertionError):
        compiled(x)
    assert compared == [None, None]


# copies ------------------------------------------------------------------------------------------------------------
def computed_with_holes() -> tuple[torch.Tensor, ...]:
    memory = torch.arange(24.0, requires_grad=True) * 1
    return memory[1::3], memory.view(4, 6)[:, 2:], memory


def leaves_that_overlap() -> tuple[torch.Tensor, ...]:
    memory = torch.arange(8.0)
    return memory[:6].requires_grad_(), memory[2:], memory.expand(3, 8)


@pytest.mark.parametrize("make", [computed_with_holes, leaves_that_overlap])
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_copies_lie_as_what_they_stand_for(make: Callable[[], Any], dtype: torch.dtype | None) -> None:
    given = make()
    copies = verification.Copies.of(given, dtype)
    for copy, t in zip(copies.values, given, strict=True):
        assert (copy.shape, copy.stride(), copy.storage_offset()) == (t.shape, t.stride(), t.storage_offset())
        assert (copy.requires_grad, copy.is_leaf) == (t.requires_grad, t.is_leaf)
        assert copy.untyped_storage().data_ptr() == copies.values[0].untyped_storage().data_ptr()
        assert copy.untyped_storage().data_ptr() != t.untyped_storage().data_ptr()
        assert torch.equal(copy, t.to(dtype or t.dtype))
    if not given[0].is_leaf:
        copies.values[0].mul_(2)
        [leaf] = copies.leaves.values()
        [gradient] = torch.autograd.grad(copies.values[1].sum(), leaf)
        assert gradient.unique().tolist() == [0, 1, 2]


def test_inputs_that_were_computed_and_have_holes(compared: list[Any]) -> None:
    """Compiled code uses their strides: a copy without the gaps would be read beyond its end."""

    def program(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.mul_(2)
        return y + 1, (z * x.sum()).sin()

    compiled = pycompiler.compile(program, verify=1)

    def inputs() -> tuple[torch.Tensor, ...]:  # the written input shares no memory
        return (computed_with_holes()[0], *computed_with_holes()[1:])

    torch.testing.assert_close(compiled(*inputs()), program(*inputs()))
    assert compared == [None]


def test_what_cancels_in_float64_is_no_difference() -> None:
    values = [torch.tensor([1.1e-16], dtype=torch.float64), torch.tensor([3.0, 4.0], dtype=torch.float64)]
    names = ["gradient", "output"]
    assert first_difference(names, [torch.zeros(1, dtype=torch.float64), values[1]], values) is None
    far = [torch.full((1,), 1e-9, dtype=torch.float64), values[1]]
    assert first_difference(names, far, values) is not None


# definition of a difference -----------------------------------------------------------------------------------------
def test_rounding_is_none_and_more_is() -> None:
    want = torch.tensor([1.0, 1e-3, torch.nan, torch.inf])
    assert difference(want * (1 + 1e-6), want) == ""
    exact = want.double()
    assert difference(want + torch.tensor([0.01, 0, 0, 0]), want, exact).startswith(
        "1 of 4 elements, the first at [0]: 1.00"
    )
    assert difference(want.nan_to_num(0.0), want, exact) != ""
    assert difference(want[:2], want) == "shape torch.Size([2]), eager torch.Size([4])"
    assert difference(want.double(), want) == "dtype torch.float64, eager torch.float32"
    assert difference(None, want) != ""


def test_float64_decides() -> None:
    want, exact = torch.tensor([1.0, 2.0]), torch.tensor([1.2, 2.1], dtype=torch.float64)
    assert difference(torch.tensor([1.3, 2.0]), want, exact) == ""  # eager is as far from it
    assert difference(torch.tensor([4.0, 2.0]), want, exact) != ""
    flags, off = torch.tensor([1, 0, 1]), torch.tensor([1, 1, 1])
    assert difference(off, flags, torch.tensor([1, 1, 1])) == ""  # the result depends on a rounding
    assert difference(off, flags, flags) == "1 of 3 elements, the first at [1]: 1, eager 0"


# uninitialised memory ----------------------------------------------------------------------------------------------
def unwritten(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Half of the second output is written; the third is a sum over uninitialised memory."""
    half = torch.empty(8)
    half[:4] = x[:4].sin()
    return torch.empty_like(x), half, x.new_empty(8).sum(), torch.empty(8, dtype=torch.int32) + 1, x.exp()


@pytest.fixture
def dirty(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.empty` never has the same contents in a compiled graph and in eager."""
    compare, count = verification.results, iter(range(100))

    def of_another_value(*args: Any, **kwargs: Any) -> Any:
        k = next(count)
        with Filled((k + 0.5, k, k % 2 == 0)):
            return compare(*args, **kwargs)

    monkeypatch.setattr(verification, "results", of_another_value)


@pytest.mark.usefixtures("dirty")
def test_memory_that_nobody_wrote_is_not_compared(compared: list[Any]) -> None:
    assert not Filled._should_skip_dynamo()  # if it were true, torch would import its compiler at the mode's first call
    pycompiler.compile(unwritten, backend="eager", verify=True)(torch.randn(8))
    assert compared == [None]


@pytest.mark.usefixtures("dirty")
@pytest.mark.parametrize(("right", "wrong", "where"), [
    (aten.exp, aten.expm1, "output 4: 8 of 8"), (aten.sin, aten.tanh, "output 1: 4 of 8"),
])  # fmt: skip
def test_what_lies_beside_it_is(right: Any, wrong: Any, where: str) -> None:
    with patch.dict(LOWERINGS, {right.default: LOWERINGS[wrong.default]}), config.patch(verify_correctness=True):
        with pytest.raises(VerificationError, match=where):
            pycompiler.compile(unwritten)(torch.linspace(1, 2, 8))


# cancellation ------------------------------------------------------------------------------------------------------
def divergence(x: torch.Tensor) -> list[torch.Tensor]:
    """The divergence of equal distributions: a sum of terms up to 0.1 that is 0 except for rounding."""
    return [nn.functional.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="sum")]


def norm_of_two(x: torch.Tensor) -> list[torch.Tensor]:
    """1 and -1 for any x: the gradient is only rounding."""
    return [nn.functional.layer_norm(x, (2,))]


def jumps(x: torch.Tensor) -> list[torch.Tensor]:
    return [(x * 2).floor() / 1000]


@pytest.mark.parametrize(("program", "what", "rounding", "wrong"), [
    (divergence, "output 0", 1e-6, 1e-4), (norm_of_two, "output 0", 5e-7, 1e-3), (jumps, "output 0", 0.0, 1e-3),
])  # fmt: skip
def test_rounding_of_what_cancels_is_no_difference(program: Any, what: str, rounding: float, wrong: float) -> None:
    torch.manual_seed(0)
    x = torch.arange(512.0).reshape(-1, 2) if program is jumps else torch.randn(8, 8, 2)
    x.requires_grad_(program is norm_of_two)

    def off(by: float) -> verification.CompiledCall:
        def made(x: torch.Tensor) -> list[torch.Tensor]:
            return [y + (by * x if y.numel() > 1 and y.requires_grad else by) for y in program(x)]

        return made

    assert verification.compare(program, off(rounding), [x]) is None
    found = verification.compare(program, off(wrong), [x])
    assert found is not None and found.what == what


# several threads, coarse dtypes ---------------------------------------------------------------------------------------
def test_numbers_that_other_threads_drew_are_no_difference(
    compared: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Another thread draws while the graph runs. If once, this call is not compared; if always, that is a fault."""
    times = [1]

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        def disturbed(*args: Any) -> Any:
            if times[0]:
                times[0] -= 1
                thread = threading.Thread(target=torch.rand, args=(3,))
                thread.start()
                thread.join()
            return gm(*args)

        return disturbed

    logging.getLogger("pycompiler").propagate = True
    x = torch.ones(50)
    compiled = pycompiler.compile(lambda x: torch.nn.functional.dropout(x), backend=backend, verify=1.0)
    compiled(x)
    assert (compared, times) == ([], [0])
    compiled(x)
    assert compared == [None] and "differs" not in caplog.text
    times[0] = 100
    compiled(x)
    assert "differs from eager in output 0" in caplog.text


def test_threads_that_find_the_same_difference_say_it_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare, both, compared = verification.compare, threading.Barrier(2, timeout=400), threading.local()

    def together(graph: Any, made: Any, inputs: Any, *rest: Any) -> Any:
        if not hasattr(compared, "once"):  # later comparisons of a thread look for the operator
            compared.once = True
            both.wait()
        return compare(graph, made, inputs, *rest)

    class Twice:
        def __call__(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [x * 3]

    monkeypatch.setattr(verification, "compare", together)
    logging.getLogger("pycompiler").propagate = True
    compiled = pycompiler.compile(lambda x: x * 2, backend=lambda gm, inputs: Twice(), verify=1.0, fullgraph=True)
    x = torch.ones(3, requires_grad=True)  # compared by the calling thread
    with config.patch(verify_correctness=False):
        threads = [threading.Thread(target=compiled, args=(x,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert both.n_waiting == 0 and not both.broken
    assert (
        caplog.text.count("differs from eager in output 0")
        == caplog.text.count("the graph runs eagerly from now on")
        == 1
    )
    compared.once = True
    assert torch.equal(compiled(x), x * 2)


def test_steady_is_what_leaves_the_generator_alike() -> None:
    def state() -> verification.VerifiedResults:
        return verification.VerifiedResults([], [], True, False, torch.get_rng_state())

    torch.manual_seed(0)
    before = state()
    assert verification.is_steady(before, state)
    torch.rand(1)
    assert not verification.is_steady(before, state)
    assert not verification.is_steady(before, lambda: 1 // 0)  # type: ignore[arg-type, return-value]


def test_rounding_of_bfloat16_on_the_way_is_no_difference() -> None:
    """The gradient is float32, its operand is not; random numbers rule out a float64 reference."""
    w = torch.linspace(-1, 1, 256).reshape(16, 16).requires_grad_()

    def graph(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nn.functional.dropout((x.bfloat16() @ w.bfloat16()).softmax(-1), 0.1) @ x.bfloat16()]

    def otherwise(by: float) -> Any:
        return lambda x, w: [torch.nn.functional.dropout(((x @ w) * by).softmax(-1), 0.1).bfloat16() @ x.bfloat16()]

    x = torch.linspace(-1, 1, 256).reshape(16, 16).cos()
    assert verification.compare(graph, otherwise(1.0), [x, w]) is None
    assert verification.compare(graph, otherwise(1.5), [x, w]) is not None
