"""CUDA graphs of plans without a GPU: `fake_driver.c` records launches and replays them; the memory is the host's."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import pycompiler
from pycompiler import _native, config
from pycompiler.ir.plan import Aten, CountVersions, Free, Plan, SlotRef, View
from pycompiler.operators import value_checks
from pycompiler.runtime import cuda_graphs
from pycompiler.runtime.cuda_graphs import CAPTURES, CudaGraphs, Recording, reason_of

sys.path.insert(0, str(Path(__file__).parent))
from launch_cases import ADD_ONE, N, add_one, notes, plan_of
from plan_cases import f32


class FakeRecorder:
    """Records by the fake driver.  `fails`: the error of each recording."""

    device = 0

    def __init__(self, driver: Any, fails: Exception | None = None, draws: bool = False) -> None:
        self.driver, self.fails, self.draws, self.pools = driver, fails, draws, 0
        driver.fake_recorded.restype = ctypes.c_void_p

    def new_pool(self) -> int:
        self.pools += 1
        return self.pools

    def record(
        self, run: Callable[..., Sequence[Any]], inputs: Sequence[Any], pool: Any, stream: int
    ) -> tuple[Any, int, Callable[[], Any], Sequence[Any]]:
        self.driver.fake_record()
        try:
            if self.fails is not None:
                raise self.fails
            outputs = run(*inputs)
        finally:
            made = self.driver.fake_recorded()
        return object(), made, lambda: None, outputs


def add_two(outputs: Sequence[Any] = (2,)) -> Plan:
    """input + 2, by two kernels; slot 1 is input + 1."""
    return plan_of([f32(1, N), add_one(0, 1), f32(2, N), add_one(1, 2)], [*outputs], 1, 3, ADD_ONE)


def with_graphs(driver: Any, data: Plan, limit: int = 8, **options: Any) -> tuple[Any, CudaGraphs]:
    data.batches_launches = False  # so that launches outside of recordings are counted one by one
    graphs = CudaGraphs(data, FakeRecorder(driver, **options), limit)
    return _native.Plan(data, graphs), graphs


def replays(driver: Any) -> list[bool]:
    """Per launch by the driver since the last question: whether it was a graph's."""
    found = [note.startswith("graph of") for note in notes(driver)]
    driver.fake_forget()
    return found


PLAIN, RECORDED, REPLAYED = [False, False], [False, False, True], [True]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(cuda_graphs, "log", lambda text, *args: lines.append(text % args))
    return lines


def test_the_first_call_is_launched_the_second_recorded_later_ones_replayed(driver: Any, said: list[str]) -> None:
    plan, graphs = with_graphs(driver, add_two())
    x = torch.randn(40)
    for expected in (PLAIN, RECORDED, REPLAYED, REPLAYED):
        x.normal_()
        assert torch.equal(plan(x)[0], x + 1 + 1)
        assert replays(driver) == expected
    assert len(graphs.recordings) == 1
    assert said == ["graph hand is recorded: 2 launches, 1 inputs, sizes [40], pool 0"]


def test_an_input_that_moves_is_copied(driver: Any) -> None:
    plan, graphs = with_graphs(driver, add_two())
    kept = [torch.randn(40) for _ in range(6)]
    states = []
    for x in kept:
        assert torch.equal(plan(x)[0], x + 1 + 1)
        states.append(replays(driver))
    assert states == [PLAIN, RECORDED, *[REPLAYED] * 4]
    assert isinstance(graphs.recordings[0].inputs[0], torch.Tensor)


def test_an_input_that_moves_later_is_copied_from_then_on(driver: Any) -> None:
    plan, graphs = with_graphs(driver, add_two())
    x, others = torch.randn(40), [torch.randn(40) for _ in range(3)]
    states = []
    for given in (x, x, x, *others, x):
        assert torch.equal(plan(given)[0], given + 1 + 1)
        states.append(replays(driver))
    assert states == [PLAIN, RECORDED, REPLAYED, RECORDED, REPLAYED, REPLAYED, REPLAYED]
    assert len(graphs.recordings) == 1, "no call fits the first recording any more"


def test_a_parameter_is_never_copied(driver: Any) -> None:
    plan, graphs = with_graphs(driver, add_two())
    w = torch.nn.Parameter(torch.randn(40))
    first, second = w.data, torch.randn(40)
    states = []
    for data in (first, first, second, second, first):
        w.data = data
        assert torch.equal(plan(w)[0], data + 1 + 1)
        states.append(replays(driver))
    assert states == [PLAIN, RECORDED, RECORDED, REPLAYED, REPLAYED]
    assert [r.inputs for r in graphs.recordings] == [(first.data_ptr(),), (second.data_ptr(),)]


def test_parameters_that_move_at_each_call_are_not_recorded_for_ever(driver: Any, said: list[str]) -> None:
    plan, graphs = with_graphs(driver, add_two())
    kept = [torch.randn(40) for _ in range(CAPTURES + 6)]
    w = torch.nn.Parameter(torch.zeros(40))
    for data in kept:
        w.data = data
        assert torch.equal(plan(w)[0], data + 1 + 1)
    assert len(graphs.recordings) <= cuda_graphs.VARIANTS
    assert sum(line.startswith("graph hand is recorded") for line in said) == CAPTURES
    assert "with ever other addresses" in said[-1]


def test_an_output_in_use_is_never_overwritten(driver: Any) -> None:
    plan, graphs = with_graphs(driver, add_two())
    x, held = torch.randn(40), []
    for _ in range(12):
        x.normal_()
        held.append((plan(x)[0], x + 1 + 1))
    assert all(torch.equal(got, want) for got, want in held)
    assert len({got.data_ptr() for got, _ in held}) == 12
    # the second call's output is kept for ever, so the first recording never serves again
    assert replays(driver) == [*PLAIN, *RECORDED, *PLAIN, *RECORDED, *[True] * 8]
    assert [(r.pool, set(r.copied)) for r in graphs.recordings] == [(0, {0}), (1, {0})]


def test_an_output_that_lives_until_the_next_call_is_copied(driver: Any) -> None:
    plan, graphs = with_graphs(driver, add_two())
    x, states, y = torch.randn(40), [], None
    for _ in range(8):
        x.normal_()
        y = plan(x)[0]  # while the former one is still there
        assert torch.equal(y, x + 1 + 1)
        states.append(replays(driver))
    assert states == [PLAIN, RECORDED, PLAIN, *[REPLAYED] * 5]
    assert len(graphs.recordings) == 1
    assert graphs.recordings[0].storages == frozenset()


def test_outputs_on_one_storage_are_never_copied(driver: Any) -> None:
    steps = [f32(1, N), add_one(0, 1), add_one(1, 1), View(2, 1, (2,), (1,), 3)]
    plan, graphs = with_graphs(driver, plan_of(steps, [1, 2], 1, 3, ADD_ONE))
    x, held = torch.randn(40), []
    for _ in range(6):
        x.normal_()
        held.append((plan(x), x[3:5] + 1 + 1))
        held[-1][0][0][3] = 7.0
        held[-1][1][0] = 7.0
    assert all(torch.equal(part, want) for (_, part), want in held)
    assert [(r.pool, set(r.copied)) for r in graphs.recordings] == [(0, set()), (1, set())]


@pytest.mark.parametrize("hold", [lambda y: y[3:5], lambda y: y.view(2, 20), lambda y: y.detach(), lambda y: y.numpy()])
def test_a_view_of_an_output_keeps_it(driver: Any, hold: Callable[[torch.Tensor], Any]) -> None:
    plan, _ = with_graphs(driver, add_two())
    x = torch.zeros(40)
    for _ in range(3):
        plan(x)
    view = hold(plan(x)[0])
    x += 5
    driver.fake_forget()
    plan(x)
    assert replays(driver) == PLAIN
    plan(x)
    assert float(view.reshape(-1)[0]) == 2.0
    del view
    driver.fake_forget()
    plan(x)
    assert replays(driver) == REPLAYED


def test_a_storage_object_keeps_an_output(driver: Any) -> None:
    plan, _ = with_graphs(driver, add_two())
    x = torch.zeros(40)
    for _ in range(3):
        plan(x)
    storage = plan(x)[0].untyped_storage()
    x += 5
    for _ in range(4):
        assert float(plan(x)[0][0]) == 7.0
    kept = torch.empty(0).set_(storage)
    assert float(kept[0]) == 2.0
    driver.fake_forget()
    plan(x)
    assert replays(driver) == REPLAYED, "from the second pool"


def test_saved_tensors_keep_an_output(driver: Any) -> None:
    plan, _ = with_graphs(driver, add_two())
    x = torch.zeros(40)
    plan(x), plan(x)
    loss = plan(x)[0].requires_grad_().pow(2).sum()
    x += 5
    plan(x), plan(x)
    (y,) = (n.variable for n, _ in loss.grad_fn.next_functions[0][0].next_functions)
    assert float(y[0].detach()) == 2.0


def test_many_outputs_have_two_pools_and_then_launches(driver: Any, said: list[str]) -> None:
    steps, n = [], cuda_graphs.FEW_OUTPUTS + 1
    for k in range(n):
        steps += [f32(k + 1, N), add_one(k, k + 1)]
    plan, graphs = with_graphs(driver, plan_of(steps, list(range(1, n + 1)), 1, n + 1, ADD_ONE))
    x, held = torch.randn(40), []
    for _ in range(6):
        x.normal_()
        held.append((plan(x), x + 1))
    assert all(torch.equal(got[0], want) for got, want in held)
    assert [r.pool for r in graphs.recordings] == [0, 1]
    assert said[-1] == "graph hand launches its kernels for some calls: outputs of earlier calls are in use"
    held.pop(1)  # the outputs of the first recording
    driver.fake_forget()
    plan(x)
    assert replays(driver) == REPLAYED


def test_recordings_of_one_pool_are_not_replayed_while_outputs_of_another_are_in_use(driver: Any) -> None:
    """Their memory may be the same."""
    plan, graphs = with_graphs(driver, add_two())
    a, b = torch.randn(40), torch.randn(50)
    for x in (a, b, a, b):
        plan(x)
    assert [r.pool for r in graphs.recordings] == [0, 0]
    driver.fake_forget()
    held = plan(a)
    assert replays(driver) == REPLAYED
    plan(b), plan(b)
    assert [r.pool for r in graphs.recordings] == [0, 0, 1]
    del held


def test_sizes_are_recorded_up_to_a_limit(driver: Any, said: list[str]) -> None:
    plan, graphs = with_graphs(driver, add_two(), limit=2)
    for _ in range(3):
        for n in (8, 40, 50, 60):
            x = torch.randn(n)
            assert torch.equal(plan(x)[0], x + 1 + 1)
    assert sorted({r.key for r in graphs.recordings}) == [(8,), (40,)]
    assert said.count("graph hand launches its kernels for some calls: it has 2 combinations of sizes already") == 1


def test_streams_have_pools_and_recordings_of_their_own(driver: Any) -> None:
    plan, graphs = with_graphs(driver, add_two())
    x, states = torch.randn(40), []
    for stream in (0, 0x1000, 0, 0x1000, 0, 0x1000):
        driver.fake_stream(0, stream)
        assert torch.equal(plan(x)[0], x + 1 + 1)
        states.append(replays(driver))
    assert states == [PLAIN, PLAIN, RECORDED, RECORDED, REPLAYED, REPLAYED]
    assert [(r.stream, r.pool) for r in graphs.recordings] == [(0, 0), (0x1000, 1)]


def writer() -> Plan:
    """Adds one to input 0, and returns the sum of the kernels' results."""
    steps = [CountVersions((0,)), add_one(0, 0), f32(1, N), add_one(0, 1)]
    return plan_of(steps, [1], 1, 2, ADD_ONE)


def test_a_written_input_keeps_its_address_and_counts_its_versions(driver: Any) -> None:
    plan, _ = with_graphs(driver, writer())
    x = torch.zeros(40)
    for k in range(1, 5):
        assert float(plan(x)[0][0]) == k + 1
        assert (float(x[0]), x._version) == (k, k)
    assert replays(driver)[-1:] == [True]


def test_a_written_input_that_moves_ends_the_recordings(driver: Any, said: list[str]) -> None:
    plan, graphs = with_graphs(driver, writer())
    for x in [torch.zeros(40) for _ in range(4)]:
        assert float(plan(x)[0][0]) == 2
        assert (float(x[0]), x._version) == (1, 1)
    assert graphs.recordings == []
    assert said == ["graph hand is not recorded any more: input 0, which it writes, has another address than before"]


def test_inference_tensors(driver: Any) -> None:
    plan, _ = with_graphs(driver, add_two())
    x = torch.randn(40)
    for _ in range(2):
        plan(x)
    with torch.inference_mode():
        assert plan(x)[0].is_inference()
    y = plan(x)[0]
    assert not y.is_inference()
    assert y._version == 0
    written, _ = with_graphs(driver, writer())
    with torch.inference_mode():
        z = torch.zeros(40)
        for _ in range(3):
            written(z)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        written(z)
    assert float(z[0]) == 3


def test_outputs_of_a_recording_are_inputs_of_another_by_address(driver: Any) -> None:
    first, _ = with_graphs(driver, add_two())
    second, graphs = with_graphs(driver, add_two())
    x, states = torch.randn(40), []
    for _ in range(5):
        x.normal_()
        y = first(x)
        driver.fake_forget()
        (z,) = second([*y])
        assert torch.equal(z, x + 1 + 1 + 1 + 1)
        states.append(replays(driver))
        del y, z
    assert states == [PLAIN, RECORDED, *[REPLAYED] * 3]
    assert isinstance(graphs.recordings[0].inputs[0], int)
    assert graphs.managed == {0: 0}
    states, others = [], [torch.randn(40) for _ in range(cuda_graphs.STRAYS + 4)]
    for other in others:  # the first graph did not run
        assert torch.equal(second(other)[0], other + 1 + 1)
        states.append(replays(driver))
    assert states == [PLAIN] * (cuda_graphs.STRAYS + 1) + [RECORDED, REPLAYED, REPLAYED]


def test_a_list_of_inputs_is_emptied(driver: Any) -> None:
    plan, _ = with_graphs(driver, add_two())
    x = torch.randn(40)
    for _ in range(3):
        given = [x]
        plan(given)
        assert given == []
    assert sys.getrefcount(x) == 2


def test_one_tensor_twice_an_input_and_a_number_among_the_outputs(driver: Any) -> None:
    plan, _ = with_graphs(driver, add_two([2, 0, 2, (N * 2,), (None,), 1]))
    x = torch.randn(40)
    for _ in range(4):
        a, same, again, number, nothing, b = plan(x)
        assert same is x
        assert again is a
        assert (number, nothing) == (80, None)
        assert torch.equal(a, x + 1 + 1)
        assert torch.equal(b, x + 1)
        del a, same, again, b
    assert replays(driver)[-1]
    assert sys.getrefcount(x) == 2, "the recording does not hold it"


def test_two_outputs_on_one_storage(driver: Any) -> None:
    steps = [f32(1, N), add_one(0, 1), add_one(1, 1), View(2, 1, (2,), (1,), 3)]
    plan, _ = with_graphs(driver, plan_of(steps, [1, 2], 1, 3, ADD_ONE))
    x = torch.randn(40)
    for _ in range(4):
        y, part = plan(x)
        assert part.data_ptr() == y.data_ptr() + 12
        del y
        assert torch.equal(part, x[3:5] + 1 + 1)
        del part
    assert replays(driver)[-2:] == [True, True]


def test_a_view_of_an_input_is_no_output_of_a_recording(driver: Any, said: list[str]) -> None:
    plan, _ = with_graphs(driver, plan_of([View(1, 0, (2,), (1,), 3), f32(2, N), add_one(0, 2)], [1, 2], 1, 3, ADD_ONE))
    x = torch.randn(40)
    for _ in range(4):
        assert torch.equal(plan(x)[0], x[3:5])
    assert said == ["graph hand is not recorded any more: an output is a view of an input or of a constant"]


def test_a_call_inside_of_a_capture_of_the_callers_launches_kernels(driver: Any) -> None:
    plan, _ = with_graphs(driver, add_two())
    x = torch.randn(40)
    for _ in range(3):
        plan(x)
    driver.fake_forget()
    driver.fake_record()
    plan(x)
    assert driver.fake_recorded()
    assert replays(driver) == PLAIN


def test_a_failed_recording_leaves_launches(driver: Any, said: list[str]) -> None:
    plan, graphs = with_graphs(driver, add_two(), fails=RuntimeError("operation not permitted\nwhen capturing"))
    x, states = torch.randn(40), []
    for _ in range(4):
        assert torch.equal(plan(x)[0], x + 1 + 1)
        states.append(replays(driver))
    assert states == [PLAIN] * 4
    assert said == ["graph hand is not recorded any more: recording raised RuntimeError: operation not permitted"]


def test_storages_that_cannot_be_counted(driver: Any, said: list[str]) -> None:
    plan, graphs = with_graphs(driver, add_two())
    x = torch.randn(40)
    _native.force_slow_routes(True)
    try:
        for _ in range(3):
            assert torch.equal(plan(x)[0], x + 1 + 1)
    finally:
        _native.force_slow_routes(False)
    assert graphs.recordings == []
    assert said == ["graph hand is not recorded any more: this torch does not show the references to storages"]


def test_an_error_of_the_policy_leaves_launches(driver: Any, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plan, graphs = with_graphs(driver, add_two())
    x = torch.randn(40)
    plan(x)
    monkeypatch.setattr(graphs, "_pool", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        plan(x)
    with config.patch(raise_internal_errors=False):
        assert torch.equal(plan(x)[0], x + 1 + 1)
    assert said == ["graph hand is not recorded any more: ZeroDivisionError: integer division or modulo by zero"]


def test_threads(driver: Any) -> None:
    plan, _ = with_graphs(driver, add_two())
    results: list[bool] = []

    def call() -> None:
        x = torch.randn(40)
        for _ in range(200):
            results.append(torch.equal(plan(x)[0], x + 1 + 1))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 800


def test_recordings_end_with_their_plan(driver: Any) -> None:
    gc.collect()
    before = len(cuda_graphs._LIVE)
    plan, graphs = with_graphs(driver, add_two())
    x = torch.randn(40)
    for _ in range(3):
        plan(x)
    held = plan(x)[0]
    assert len(cuda_graphs._LIVE) == before + 1
    assert plan.graphs is graphs
    del plan, graphs
    gc.collect()
    assert len(cuda_graphs._LIVE) == before
    assert torch.equal(held, x + 1 + 1)


def test_graphs_with_random_numbers_are_replayed_on_one_stream(
    driver: Any, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replays at once would read each other's seed and position."""
    monkeypatch.setattr(cuda_graphs, "_DRAWING_STREAMS", {})
    plan, graphs = with_graphs(driver, add_two(), draws=True)
    x = torch.randn(40)
    for stream in (0, 0x1000, 0, 0x1000, 0, 0x1000):
        driver.fake_stream(0, stream)
        assert torch.equal(plan(x)[0], x + 1 + 1)
    assert [r.stream for r in graphs.recordings] == [0]
    assert sum("on one stream" in line for line in said) == 1


def test_arguments_of_a_plan(driver: Any) -> None:
    assert _native.Plan(add_two(), None).graphs is None
    with pytest.raises(TypeError, match="a policy of CUDA graphs"):
        _native.Plan(add_two(), None, None)
    bad = type("Policy", (), {"device": 0, "miss": lambda *_: True, "recordings": []})()
    plan, x = _native.Plan(add_two(), bad), torch.randn(40)
    bad.recordings = [Recording(None, 0, print, (40,), 0, 0, (), ())]
    with pytest.raises(ValueError, match="a recording with 0 inputs and 0 outputs"):
        plan(x)


# -- reasons ----------------------------------------------------------------------------------------------------------

aten = torch.ops.aten


def graph_of(op: Any, *values: Any, result: Any, **kwargs: Any) -> fx.GraphModule:
    """One call; tensors and generators among the values are inputs."""
    graph = fx.Graph()

    def argument(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor | torch.Generator):
            return value
        node = graph.placeholder(name)
        node.meta["val"] = value
        return node

    args = tuple(argument(f"in{k}", value) for k, value in enumerate(values))
    made = graph.call_function(op, args, {name: argument(name, value) for name, value in kwargs.items()})
    made.meta["val"] = result
    graph.output((made,))
    return fx.GraphModule({}, graph)


def on(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A fake tensor of a device, which need not be present."""
    return FakeTensor(FakeTensorMode(), torch.empty(shape, dtype=dtype, device="meta"), torch.device(device))


@pytest.mark.parametrize(
    ("gm", "why"),
    [
        (graph_of(aten.neg.default, on("cuda:0", 3), result=on("cuda:0", 3)), None),
        (graph_of(aten.neg.default, on("cpu", 3), result=on("cpu", 3)), "input in0 is a tensor of the CPU"),
        (
            graph_of(aten._to_copy.default, on("cuda:0", 3), result=on("cpu", 3), device=torch.device("cpu")),
            "aten._to_copy.default (_to_copy_default) is a tensor of the CPU",
        ),
        (graph_of(aten.bernoulli.default, on("cuda:0", 3), result=on("cuda:0", 3)), None),
        (
            graph_of(aten.bernoulli.default, on("cuda:0", 3), result=on("cuda:0", 3), generator=torch.Generator()),
            "aten.bernoulli.default (bernoulli_default) draws random numbers from a generator of the program",
        ),
        (
            graph_of(aten._scaled_dot_product_flash_attention.default, *[on("cuda:0", 2, 4, 8, 16)] * 3, 0.1, result=on("cuda:0", 2, 4, 8, 16)),
            "aten._scaled_dot_product_flash_attention.default (_scaled_dot_product_flash_attention_default) drops values of an attention",
        ),
        (
            graph_of(aten._scaled_dot_product_flash_attention.default, *[on("cuda:0", 2, 4, 8, 16)] * 3, result=on("cuda:0", 2, 4, 8, 16)),
            None,
        ),
        (
            graph_of(aten._efficient_attention_backward.default, *[on("cuda:0", 2, 4, 8, 16)] * 5, None, None, None, 8, 8, on("cuda:0", 2, 4, 8), 0.2, result=on("cuda:0", 2, 4, 8, 16)),
            "aten._efficient_attention_backward.default (_efficient_attention_backward_default) drops values of an attention",
        ),
        (
            graph_of(aten.poisson.default, on("cuda:0", 3), result=on("cuda:0", 3)),
            "aten.poisson.default (poisson_default) draws random numbers by a kernel that may wait for the GPU",
        ),
        (
            graph_of(aten.nonzero.default, on("cuda:0", 3), result=on("cuda:0", 2, 1, dtype=torch.int64)),
            "aten.nonzero.default (nonzero_default) reads data on the host",
        ),
        (
            graph_of(aten.index_put.default, on("cuda:0", 3), [None], on("cuda:0"), result=on("cuda:0", 3)),
            None,
        ),
        (
            graph_of(aten.masked_fill.Tensor, on("cuda:0", 3), on("cuda:0", 3, dtype=torch.bool), on("cuda:0"), result=on("cuda:0", 3)),
            None,
        ),
        (
            graph_of(aten.native_batch_norm.default, on("cuda:0", 3, 2), None, None, on("cuda:0", 2), on("cuda:0", 2), True, 0.1, 1e-5, result=on("cuda:0", 3, 2)),
            "aten.native_batch_norm.default (native_batch_norm_default) writes arguments without saying so",
        ),
        (
            graph_of(torch.ops._c10d_functional.wait_tensor.default, on("cuda:0", 3), result=on("cuda:0", 3)),
            "_c10d_functional.wait_tensor.default (wait_tensor_default) is a collective",
        ),
        (
            graph_of(value_checks.pick, on("cuda:0", 3, 5), 1, on("cuda:0", 3, 1, dtype=torch.int64), result=on("cuda:0", 3, 1)),
            None,
        ),
        (
            graph_of(torch.ops.pycompiler.ctc_losses_backward.default, on("cuda:0", 3), result=on("cuda:0", 3)),
            "pycompiler.ctc_losses_backward.default (ctc_losses_backward_default) is not an operator of torch",
        ),
        (
            graph_of(torch.ops.quantized.relu6.default, on("cuda:0", 3), False, result=on("cuda:0", 3)),
            "quantized.relu6.default (relu6_default) is not an operator of torch",
        ),
    ],
)  # fmt: skip
def test_reasons(gm: fx.GraphModule, why: str | None) -> None:
    assert reason_of(gm) == why


def test_masks_as_indices_read_data() -> None:
    for dtype, why in ((torch.int64, None), (torch.bool, "reads data on the host")):
        graph = fx.Graph()
        x, i = graph.placeholder("x"), graph.placeholder("i")
        x.meta["val"], i.meta["val"] = on("cuda:0", 5), on("cuda:0", 5, dtype=dtype)
        made = graph.call_function(aten.index_put.default, (x, [i], x))
        made.meta["val"] = on("cuda:0", 5)
        graph.output((made,))
        found = reason_of(fx.GraphModule({}, graph))
        assert found is None if why is None else why in str(found)


def test_reasons_of_plans() -> None:
    gm = graph_of(aten.neg.default, on("cuda:0", 3), result=on("cuda:0", 3))
    one = Plan(1, 2, [Aten(aten.neg.default, (SlotRef(0),), {}, (1,)), Free(())], [1])
    two = Plan(1, 3, [one.steps[0], Aten(aten.neg.default, (SlotRef(1),), {}, (2,))], [2])
    with config.patch({"triton.cudagraphs": True}):
        assert cuda_graphs.of_plan(gm, one) is None
        made = cuda_graphs.of_plan(gm, two)
        assert made is not None
        assert (made.device, made.launches, made.limit, made.read) == (0, 2, 8, [True])
        assert cuda_graphs.is_doubtful(two), "aten.neg is in no list"
        two.constants = {1: torch.ones(3)}
        assert cuda_graphs.of_plan(gm, two) is None
    assert cuda_graphs.of_plan(gm, two) is None


@pytest.mark.parametrize("given", [{"mode": "reduce-overhead"}, {"options": {"triton.cudagraphs": True}}])
def test_a_graph_of_the_cpu_says_why_it_is_not_recorded(given: dict[str, Any], said: list[str]) -> None:
    x = torch.randn(5, requires_grad=True)
    compiled = pycompiler.compile(lambda x: (x.sin() + 1).sum(), **given)
    compiled(x).backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    assert len(said) == 2  # forward and backward
    assert all(line.endswith("is a tensor of the CPU") for line in said)
