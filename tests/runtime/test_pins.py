"""Tensors whose memory or form changes while a plan runs: by an operator, or by another thread."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pycompiler
from pycompiler import _native
from pycompiler.ir.plan import Alloc, Aten, Kernel, Plan, SlotRef, View
from pycompiler.runtime.plan_python import PythonPlan
from pycompiler.symbolic.expr import Expr

sys.path.insert(0, str(Path(__file__).parent))
from plan_cases import CPU, SOURCE, aten, build_kernels, f32, ref

# The action of the operator; set by each test.
ACTS: list[Callable[[torch.Tensor], None]] = [lambda x: None]


@torch.library.custom_op("pins::act", mutates_args={"x"})
def act(x: torch.Tensor) -> None:
    ACTS[0](x)


@torch.library.custom_op("pins::made", mutates_args=())
def made(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    ACTS[0](out)
    return out


ACT, MADE = torch.ops.pins.act.default, torch.ops.pins.made.default


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_kernels(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(params=["counted", "viewed"])
def pins(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each way to keep a storage alive."""
    assert _native.torch_routes()["pins"] == "counted"
    _native.force_slow_routes(request.param == "viewed")
    yield request.param
    _native.force_slow_routes(False)


@pytest.fixture
def acts() -> Iterator[list[Callable[[torch.Tensor], None]]]:
    yield ACTS
    ACTS[0] = lambda x: None


def native(steps: list[Any], outputs: list[int], n_inputs: int, n_slots: int, library: str, **more: Any) -> Any:
    return _native.Plan(Plan(n_inputs, n_slots, steps, outputs, {}, library, SOURCE, "hand", **more))


def replace(x: torch.Tensor, value: torch.Tensor) -> None:
    x.set_(value.untyped_storage(), value.storage_offset(), value.shape, value.stride())


def users(x: torch.Tensor) -> int:
    return torch._C._storage_Use_Count(x.untyped_storage()._cdata)


def array(n: int, value: float) -> tuple[torch.Tensor, Callable[[], Any]]:
    """A tensor, and a query whether its memory is alive."""
    memory = np.full(n, value, dtype=np.float32)
    return torch.from_numpy(memory), weakref.ref(memory)


ACT_THEN_READ = [Aten(ACT, ref(0), {}, ()), f32(1, 4), Kernel("add_one", (0, 1), (4,))]


# -- an operator ------------------------------------------------------------------------------------------------------


def test_kernels_read_the_memory_that_an_operator_has_given(library: str, pins: str, acts: list[Any]) -> None:
    acts[0] = lambda x: replace(x, torch.full((4,), 7.0))
    for executor in (_native.Plan, PythonPlan):
        plan = executor(Plan(1, 2, ACT_THEN_READ, [1], {}, library, SOURCE, "hand"))
        for _ in range(2):
            assert plan(torch.ones(4))[0].tolist() == [8.0] * 4


def test_a_tensor_beside_the_operator_too(library: str, pins: str, acts: list[Any]) -> None:
    steps = [
        Aten(MADE, ref(0), {}, (2,)),
        f32(3, 4),
        Kernel("multiply", (2, 1, 3), (4,)),
    ]
    plan = native(steps, [3], 2, 4, library)
    other, alive = array(4, 2.0)
    acts[0] = lambda out: replace(other, torch.full((4,), 5.0))
    assert plan(torch.full((4,), 3.0), other)[0].tolist() == [15.0] * 4
    assert alive() is None  # its first memory was freed after the run
    assert users(other) == users(torch.ones(1))


def test_the_memory_of_before_lives_until_the_run_ends(library: str, pins: str, acts: list[Any]) -> None:
    """A view from before the operator still reads the old memory."""
    x, alive = array(8, 1.0)
    seen: list[bool] = []
    steps = [
        View(1, 0, (4,), (1,), 4),
        Aten(ACT, ref(0), {}, ()),
        f32(2, 4),
        Kernel("add_one", (1, 2), (4,)),
        f32(3, 8),
        Kernel("add_one", (0, 3), (8,)),
    ]

    def change(tensor: torch.Tensor) -> None:
        tensor.set_(torch.full((8,), 7.0).untyped_storage(), 0, (8,), (1,))
        gc.collect()
        seen.append(alive() is not None)

    acts[0] = change
    results = native(steps, [2, 3], 1, 4, library)(x)
    assert [r.tolist() for r in results] == [[2.0] * 4, [8.0] * 8]
    assert seen == [True]
    del results
    assert alive() is None


def test_a_tensor_of_the_plan_that_an_operator_keeps(library: str, pins: str, acts: list[Any]) -> None:
    kept: list[torch.Tensor] = []
    steps = [
        f32(1, 4),
        Kernel("add_one", (0, 1), (4,)),
        Aten(ACT, ref(1), {}, ()),
        Aten(ACT, ref(0), {}, ()),
        f32(2, 4),
        Kernel("add_one", (1, 2), (4,)),
    ]

    def change(tensor: torch.Tensor) -> None:
        kept.append(tensor)
        if len(kept) == 2:
            replace(kept[0], torch.full((4,), 30.0))

    acts[0] = change
    assert native(steps, [2], 1, 3, library)(torch.ones(4))[0].tolist() == [31.0] * 4


def test_a_number_whose_code_gives_other_memory(library: str) -> None:
    """`__index__` may run any code: addresses are read after it."""
    x, alive = array(4, 1.0)

    class Number:
        def __index__(self) -> int:
            x.data = torch.full((4,), 7.0)
            return 4

    steps = [f32(2, 4), Kernel("add_one", (0, 2), (4,))]
    plan = native(steps, [2], 2, 3, library, symbols={"n": (1, -1)})
    assert plan(x, Number())[0].tolist() == [8.0] * 4
    assert alive() is None


CHANGES: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "sizes": (
        lambda: torch.ones(3),
        r"input 0 was float32\[4\] with strides \[1\] on cpu .* float32\[3\] with strides",
    ),
    "rank": (lambda: torch.ones(4, 1), r"is float32\[4, 1\] with strides \[1, 1\] on cpu since step 0"),
    "strides": (lambda: torch.ones(8)[::2], r"is float32\[4\] with strides \[2\] on cpu since"),
    "dtype": (lambda: torch.ones(4, dtype=torch.float64), r"is float64\[4\]"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_form_is_an_error(library: str, pins: str, acts: list[Any], what: str) -> None:
    make, text = CHANGES[what]

    def change(tensor: torch.Tensor) -> None:
        tensor.data = make()

    acts[0] = change
    plan = native(ACT_THEN_READ, [1], 1, 2, library)
    before = users(x := torch.ones(4))
    with pytest.raises(RuntimeError, match=rf"graph hand, step 2 \(kernel add_one\): .*{text}.* \(pins.act.default\)"):
        plan(x)
    acts[0] = lambda x: None
    assert plan(y := torch.ones(4))[0].tolist() == [2.0] * 4
    assert users(y) == before


def test_a_stride_that_nothing_reads_may_differ(library: str, acts: list[Any]) -> None:
    acts[0] = lambda x: replace(x, torch.full((9,), 7.0).as_strided((1, 4), (5, 1)))
    assert native(ACT_THEN_READ, [1], 1, 2, library)(torch.ones(1, 4))[0].tolist() == [8.0] * 4


def test_memory_that_was_freed_is_an_error(library: str, pins: str, acts: list[Any]) -> None:
    def free(tensor: torch.Tensor) -> None:
        tensor.untyped_storage().resize_(0)

    acts[0] = free
    with pytest.raises(RuntimeError, match=r"input 0 has lost its memory since step 0 \(pins.act.default\)"):
        native(ACT_THEN_READ, [1], 1, 2, library)(torch.ones(4))


def test_what_another_operator_gives_back_is_read(library: str, pins: str, acts: list[Any]) -> None:
    """Weights may be freed and gathered again, as sharded ones are, if no step reads them in between."""
    steps = [Aten(ACT, ref(0), {}, ()), Aten(ACT, ref(0), {}, ()), f32(1, 4), Kernel("add_one", (0, 1), (4,))]
    seen: list[int] = []

    def change(tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        storage.resize_(16 - storage.nbytes())
        if seen:
            tensor.fill_(7.0)
        seen.append(storage.nbytes())

    acts[0] = change
    assert native(steps, [1], 1, 2, library)(torch.ones(4))[0].tolist() == [8.0] * 4
    assert seen == [0, 16]


def test_an_operator_of_torchs_that_gives_other_memory(library: str, pins: str) -> None:
    steps = [Aten(aten.set_.source_Tensor, ref(0, 1), {}, (None,)), f32(2, 4), Kernel("add_one", (0, 2), (4,))]
    plan = native(steps, [2], 2, 3, library)
    assert plan(torch.ones(4), torch.full((4,), 7.0))[0].tolist() == [8.0] * 4
    with pytest.raises(
        RuntimeError, match=r"input 0 was float32\[4\] .*, and is float32\[3\] .* since step 0 \(aten.set_"
    ):
        plan(torch.ones(4), torch.ones(3))


def test_memory_that_becomes_shared_with_a_written_input(library: str, acts: list[Any]) -> None:
    steps = [
        Aten(MADE, ref(0), {}, (2,)),
        Kernel("add_one", (0, 1), (4,)),  # writes input 1
    ]
    plan = native(steps, [2], 2, 3, library)
    _native.unless_shared(plan, [1], lambda x, y: (x.clone(),))
    x, y = torch.ones(4), torch.ones(4)
    assert plan(x, y)[0].tolist() == [1.0] * 4
    acts[0] = lambda out: replace(y, x)
    with pytest.raises(RuntimeError, match="shares memory with another input now"):
        plan(x, y)


# -- another thread ---------------------------------------------------------------------------------------------------


def while_it_runs(call: Callable[[], Any], act: Callable[[], None]) -> Any:
    """The call's result or error; `act` runs in another thread while the call has released the GIL."""
    began, results = threading.Event(), []

    def beside() -> None:
        began.wait()
        time.sleep(0.05)
        act()
        results.append(time.perf_counter())

    thread = threading.Thread(target=beside)
    thread.start()
    began.set()
    try:
        return call()
    finally:
        ended = time.perf_counter()
        thread.join()
        assert results[0] < ended, "the thread came too late"


SPIN = Kernel("spin", (2,), (300_000_000,), 300_000_000)


@pytest.mark.parametrize("object_too", [False, True])
def test_memory_lives_while_a_kernel_reads_it(library: str, pins: str, object_too: bool) -> None:
    """`w.data = new`, as servers swap the weights of a model; also if the storage has a Python object."""
    w, alive = array(4, 1.0)
    held = [w.untyped_storage()] if object_too else []
    plan = native([f32(2, 1), SPIN, f32(1, 4), Kernel("add_one", (0, 1), (4,))], [1], 1, 3, library)
    seen: list[bool] = []

    def swap() -> None:
        w.data = torch.full((4,), 5.0)
        held.clear()
        seen.append(alive() is not None)

    assert while_it_runs(lambda: plan(w), swap)[0].tolist() == [2.0] * 4
    assert seen == [True]
    assert alive() is None
    assert plan(w)[0].tolist() == [6.0] * 4
    assert users(w) == users(torch.ones(1))


VIEW_AFTER = [f32(2, 1), SPIN, View(1, 0, (2,), (2,), 0), Aten(aten.relu.default, ref(1), {}, (3,))]


def test_views_of_what_was_swapped_are_of_the_new_memory(library: str, pins: str) -> None:
    w = torch.ones(4)

    def swap() -> None:
        w.data = torch.full((4,), 5.0)

    plan = native(VIEW_AFTER, [3], 1, 4, library)
    assert while_it_runs(lambda: plan(w), swap)[0].tolist() == [5.0] * 2


def test_kernels_behind_such_a_view_read_the_new_memory_too(library: str, pins: str) -> None:
    """Same form, other storage."""
    w = torch.ones(4)

    def swap() -> None:
        w.data = torch.full((4,), 5.0)

    steps = [*VIEW_AFTER, f32(4, 4), Kernel("add_one", (0, 4), (4,))]
    results = while_it_runs(lambda: native(steps, [3, 4], 1, 5, library)(w), swap)
    assert [r.tolist() for r in results] == [[5.0] * 2, [6.0] * 4]


def test_views_of_a_part_of_the_same_memory_are_an_error(library: str, pins: str) -> None:
    """Same storage, other form."""
    w = torch.ones(4)

    def cut() -> None:
        w.data = w.data[:2]

    with pytest.raises(RuntimeError, match=r"input 0 was float32\[4\] .* is float32\[2\] .* since"):
        while_it_runs(lambda: native(VIEW_AFTER, [3], 1, 4, library)(w), cut)


def test_views_of_what_was_swapped_for_less_are_an_error(library: str, pins: str) -> None:
    w = torch.ones(4)

    def swap() -> None:
        w.data = torch.ones(2)

    plan = native(VIEW_AFTER, [3], 1, 4, library)
    with pytest.raises(
        RuntimeError, match=r"step 2 \(view of slot 0\): input 0 was float32\[4\] .* is float32\[2\] .* since"
    ):
        while_it_runs(lambda: plan(w), swap)


def test_weights_that_are_swapped_while_a_model_runs() -> None:
    @pycompiler.compile
    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x.sin() * w).cos() * w.exp()).sum()

    x, w = torch.randn(400_000), torch.nn.Parameter(torch.randn(400_000), requires_grad=False)
    model(x, w)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            w.data = torch.randn(400_000)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(200):
            assert model(x, w).isfinite()
    finally:
        stop.set()
        thread.join()
    torch.testing.assert_close(model(x, w), ((x.sin() * w).cos() * w.exp()).sum())


# -- references ---------------------------------------------------------------------------------------------------------


def test_no_reference_to_a_storage_is_left(library: str, pins: str, acts: list[Any]) -> None:
    """Holds for inputs alone, for a list whose tensors are freed early, and for a failing run."""
    steps = [
        Aten(ACT, ref(0), {}, ()),
        f32(2, 4),
        Kernel("add_one", (0, 2), (4,)),
        f32(3, 4),
        Kernel("multiply", (2, 1, 3), (4,)),
    ]
    plan = native(steps, [3], 2, 4, library)
    x, y = torch.ones(4), torch.ones(4)
    before = users(x), users(y)
    plan(x, y)
    plan([x, y])
    acts[0] = lambda x: 1 / 0  # type: ignore[assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        plan(x, y)
    assert (users(x), users(y)) == before
    memory = [array(4, 1.0), array(4, 2.0)]
    acts[0] = lambda x: None
    plan([t for t, _ in memory])
    alive = [a for _, a in memory]
    del memory
    assert [a() for a in alive] == [None, None]


def test_no_reference_is_left_by_a_size_beyond_the_range(library: str) -> None:
    """Encoded arguments are freed by their operator alone: no step between encoding and call may fail."""
    n = Expr.sym("n")
    huge = n * (2**62)
    steps = [Aten(aten.as_strided.default, (SlotRef(0), [n, huge], [1, 1]), {}, (1,))]
    plan = native(steps, [1], 1, 2, library, symbols={"n": (0, 0)})
    assert plan.routes == ["dispatcher"]
    x, alive = array(4, 1.0)
    with pytest.raises(RuntimeError, match="a size overflows 64 bits"):
        plan(x)
    del x
    gc.collect()
    assert alive() is None


def test_inputs_of_a_list_are_freed_while_others_are_pinned(library: str, pins: str, acts: list[Any]) -> None:
    """A pin lasts until the last read of its input."""
    seen: list[Any] = []
    steps = [
        Aten(ACT, ref(0), {}, ()),
        f32(2, 4),
        Kernel("add_one", (0, 2), (4,)),
        Aten(ACT, ref(1), {}, ()),
        f32(3, 4),
        Kernel("multiply", (2, 1, 3), (4,)),
    ]
    plan = native(steps, [3], 2, 4, library)
    (x, x_alive), (y, y_alive) = array(4, 1.0), array(4, 2.0)
    acts[0] = lambda _: seen.append((x_alive() is not None, y_alive() is not None))
    given = [x, y]
    del x, y
    assert plan(given)[0].tolist() == [4.0] * 4
    assert seen == [(True, True), (False, True)]
    assert y_alive() is None


def test_results_are_no_tuple_before_the_end(library: str, acts: list[Any]) -> None:
    """The collector exposes every tuple to all threads, and an unfilled tuple holds nulls."""
    n = 37
    steps: list[Any] = [f32(1 + k, 4) for k in range(n)]
    steps += [Kernel("add_one", (0, 1 + k), (4,)) for k in range(n)]
    steps.append(Aten(ACT, ref(0), {}, ()))
    seen: list[int] = []
    acts[0] = lambda x: seen.append(sum(type(o) is tuple and len(o) == n for o in gc.get_objects()))
    plan = native(steps, list(range(1, 1 + n)), 1, 1 + n, library)
    seen.append(sum(type(o) is tuple and len(o) == n for o in gc.get_objects()))
    results = plan(torch.ones(4))
    assert seen[0] == seen[1]
    assert [r[0].item() for r in results] == [2.0] * n
    assert gc.is_tracked(results)


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [(2**63 - 64) // 4, (2**63 - 128) // 4, 2**61, 2**62])
def test_sizes_at_the_end_of_the_range_are_errors(library: str, n: int) -> None:
    size = Expr.sym("n")
    alloc = [Alloc(k, (size,), (1,), torch.float32, CPU) for k in (1, 2)]
    steps = [alloc[0], Kernel("add_one", (0, 1), (0,)), alloc[1], Kernel("multiply", (0, 1, 2), (0,))]
    plan = native(steps, [], 1, 3, library, symbols={"n": (0, 0)})
    assert plan(torch.zeros(1).expand(100)) == ()
    with pytest.raises(RuntimeError, match=r"graph hand: .*(limit is \d+|larger than memory|out of memory)"):
        plan(torch.zeros(1).expand(n))
    assert plan(torch.zeros(1).expand(100)) == ()
