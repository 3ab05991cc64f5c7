"""Launches that start together, without a GPU: `fake_driver.c` records and replays them; the memory is the host's."""

from __future__ import annotations

import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from pycompiler import _native, config
from pycompiler.ir.plan import Aten, Free, GpuProduct, Plan, SlotRef
from pycompiler.ir.target import of_program
from pycompiler.lowering.graph import lower
from pycompiler.runtime.plan_builder import make_plan
from pycompiler.scheduling import schedule

sys.path.insert(0, str(Path(__file__).parent))
from aten_graph import aten_graph
from launch_cases import ADD_ONE, N, add_one, binary, notes, plan_of
from plan_cases import f32

WORKSPACE = 4096


def chain(length: int = 3) -> Plan:
    """Input i + 1 is input i plus one."""
    return plan_of([add_one(i, i + 1) for i in range(length)], [length], length + 1, length + 1, ADD_ONE)


def given(n: int = 8, length: int = 3) -> list[torch.Tensor]:
    return [torch.randn(n), *(torch.zeros(n) for _ in range(length))]


def started(driver: Any) -> list[str]:
    """What the driver has started since the last question: `graph of 3`, `add_one`, `product`."""
    found = [n.split(" stream")[0] if n.startswith("graph") else n.split()[0] for n in notes(driver)]
    driver.fake_forget()
    return found


ONE_BY_ONE = ["add_one"] * 3
RECORDED = [*ONE_BY_ONE, "graph of 3"]
REPLAYED = ["graph of 3"]


def test_launches_are_recorded_when_their_arguments_repeat(driver: Any) -> None:
    plan, tensors = _native.Plan(chain()), given()
    for expected in (ONE_BY_ONE, RECORDED, REPLAYED, REPLAYED):
        tensors[0].normal_()
        assert torch.equal(plan(*tensors)[0], tensors[0] + 1 + 1 + 1)
        assert started(driver) == expected


def test_other_addresses_or_sizes_are_another_batch(driver: Any) -> None:
    plan, first, second = _native.Plan(chain()), given(), given(40)
    for _ in range(2):
        for tensors in (first, second):
            plan(*tensors)
    assert started(driver) == ONE_BY_ONE * 2 + RECORDED * 2
    for tensors in (first, second, given(), first):
        tensors[0].normal_()
        assert torch.equal(plan(*tensors)[0], tensors[0] + 1 + 1 + 1)
    assert started(driver) == REPLAYED * 2 + ONE_BY_ONE + REPLAYED


def test_four_recordings_are_kept_and_sixteen_are_made(driver: Any) -> None:
    plan, sets = _native.Plan(chain()), [given() for _ in range(5)]
    for _ in range(4):  # five turns, of which four are kept: each call records again, three times five
        for tensors in sets:
            plan(*tensors)
    assert driver.fake_graphs() == 4
    started(driver)
    for tensors in (sets[0], sets[1], sets[4], sets[1]):
        tensors[0].normal_()
        assert torch.equal(plan(*tensors)[0], tensors[0] + 1 + 1 + 1)
    assert started(driver) == RECORDED + ONE_BY_ONE + REPLAYED + ONE_BY_ONE  # the sixteenth, then none
    del plan
    assert driver.fake_graphs() == 0


def test_an_operator_between_launches_ends_a_batch(driver: Any) -> None:
    negative = Aten(torch.ops.aten.neg.default, (SlotRef(2),), {}, (3,))
    steps = [add_one(0, 1), add_one(1, 2), negative, add_one(2, 1), add_one(1, 2), add_one(2, 1)]
    plan, tensors = _native.Plan(plan_of(steps, [3, 1], 3, 4, ADD_ONE)), given(8, 2)
    for expected in (["add_one"] * 5, ["add_one"] * 2 + ["graph of 2"] + RECORDED, ["graph of 2", "graph of 3"]):
        tensors[0].normal_()
        negative_sum, last = plan(*tensors)
        assert torch.equal(negative_sum, -(tensors[0] + 1 + 1))
        assert torch.equal(last, tensors[0] + 1 + 1 + 1 + 1 + 1)
        assert started(driver) == expected


def test_products_are_part_of_a_batch(driver: Any) -> None:
    product = GpuProduct(
        torch.device("cuda", 0), torch.float32, (1, 2, 3, 4), (0, 0, 0, 0), (1, 2, 2, 2), ((4, 2, 1), (4, 2, 1), (4, 2)),
        WORKSPACE,
    )  # fmt: skip
    plan = _native.Plan(plan_of([add_one(0, 1), product, add_one(3, 5)], [5], 6, 6, ADD_ONE))
    tensors = [
        torch.randn(4),
        torch.zeros(4),
        torch.randn(4),
        torch.zeros(4),
        torch.zeros(WORKSPACE // 4),
        torch.zeros(4),
    ]
    for expected in (["add_one", "product", "add_one"],) * 2 + (["graph of 3"],):
        tensors[0].normal_()
        want = ((tensors[0] + 1).view(2, 2) @ tensors[2].view(2, 2)).flatten() + 1
        torch.testing.assert_close(plan(*tensors)[0], want)
        assert started(driver)[: len(expected)] == expected


def test_a_batch_that_cannot_be_recorded_is_started_one_by_one(driver: Any) -> None:
    plan, tensors = _native.Plan(chain()), given()
    driver.fake_records_nothing(1)
    try:
        for expected in (ONE_BY_ONE, ONE_BY_ONE * 2, ONE_BY_ONE, ONE_BY_ONE):  # the second call tries
            tensors[0].normal_()
            assert torch.equal(plan(*tensors)[0], tensors[0] + 1 + 1 + 1)
            assert started(driver) == expected
    finally:
        driver.fake_records_nothing(0)
    assert driver.fake_graphs() == 0


def test_a_recording_that_cannot_start_is_dropped(driver: Any) -> None:
    plan, tensors = _native.Plan(chain()), given()
    for _ in range(3):
        plan(*tensors)
    started(driver)
    driver.fake_graphs_fail(1)
    try:
        tensors[0].normal_()
        assert torch.equal(plan(*tensors)[0], tensors[0] + 1 + 1 + 1)
    finally:
        driver.fake_graphs_fail(0)
    plan(*tensors)
    assert started(driver) == ONE_BY_ONE * 2
    assert driver.fake_graphs() == 0


def test_nothing_is_recorded_while_the_caller_records(driver: Any) -> None:
    plan, tensors = _native.Plan(chain()), given()
    for _ in range(3):
        plan(*tensors)
    started(driver)
    driver.fake_record()
    plan(*tensors)
    driver.fake_recorded()
    assert started(driver) == ONE_BY_ONE


def test_without_the_knob_launches_are_started_one_by_one(driver: Any) -> None:
    data, tensors = chain(), given()
    data.batches_launches = False
    plan = _native.Plan(data)
    for _ in range(4):
        plan(*tensors)
    assert started(driver) == ONE_BY_ONE * 4


def test_two_launches_are_a_batch_and_one_is_not(driver: Any) -> None:
    for length, last in ((2, ["graph of 2"]), (1, ["add_one"])):
        plan, tensors = _native.Plan(chain(length)), given(8, length)
        for _ in range(3):
            plan(*tensors)
        assert started(driver)[-len(last) :] == last


def test_an_error_names_its_own_step_and_earlier_launches_have_started(driver: Any) -> None:
    steps = [add_one(0, 1), add_one(1, 2), add_one(2, 3, kernel="broken"), add_one(2, 3)]
    binaries = {**ADD_ONE, "broken": binary("broken", "u64", "u64", "u64")}
    plan, tensors = _native.Plan(plan_of(steps, [3], 4, 4, binaries)), given()
    for _ in range(3):
        tensors[2].zero_()
        with pytest.raises(RuntimeError, match=r"step 2 \(kernel broken\).*unspecified launch failure"):
            plan(*tensors)
        assert torch.equal(tensors[2], tensors[0] + 1 + 1)


def test_launches_start_before_a_later_step_fails(driver: Any) -> None:
    plan = _native.Plan(plan_of([add_one(0, 1), add_one(1, 2), f32(3, 2**60)], [3], 3, 4, ADD_ONE))
    tensors = given(8, 2)
    with pytest.raises(RuntimeError, match=r"step 2 \(alloc"):
        plan(*tensors)
    assert torch.equal(tensors[2], tensors[0] + 1 + 1)


def test_a_slot_may_be_filled_again_while_launches_wait(driver: Any) -> None:
    steps = [f32(1, N), add_one(0, 1), add_one(1, 2), Free((1,)), f32(1, N), add_one(2, 1), add_one(1, 3)]
    plan, tensors = _native.Plan(plan_of([f32(2, N), f32(3, N), *steps], [3], 1, 4, ADD_ONE)), given(1000, 0)
    for _ in range(4):
        tensors[0].normal_()
        assert torch.equal(plan(*tensors)[0], tensors[0] + 1 + 1 + 1 + 1)


KEPT = torch.zeros(8)


@torch.library.custom_op("launch_batch::kept", mutates_args=())
def kept(x: torch.Tensor) -> torch.Tensor:
    return KEPT.copy_(x)


def test_a_batch_ends_before_a_pinned_tensor_is_freed(driver: Any) -> None:
    """Slot 7 is pinned, because Python code has its tensor.  Slot 6 is not."""
    negative = Aten(torch.ops.aten.neg.default, (SlotRef(0),), {}, (6,))
    pinned = Aten(torch.ops.launch_batch.kept.default, (SlotRef(0),), {}, (7,))
    steps = [negative, pinned, add_one(7, 2), add_one(0, 3), Free((6, 7)), add_one(2, 4), add_one(3, 5)]
    plan, tensors = _native.Plan(plan_of(steps, [4, 5], 6, 8, ADD_ONE)), given(8, 5)
    for _ in range(3):
        started(driver)
        tensors[0].normal_()
        for result in plan(*tensors):
            assert torch.equal(result, tensors[0] + 1 + 1)
    assert started(driver) == ["graph of 2"] * 2


def test_inputs_end_after_the_launches_that_read_them(driver: Any) -> None:
    plan, result, seen = _native.Plan(chain()), torch.zeros(8), list[list[str]]()
    for _ in range(3):
        inputs = [*given(length=2), result]
        weakref.finalize(inputs[1], lambda: seen.append(started(driver)))
        plan(inputs)  # the plan takes the list's references
    assert seen == [ONE_BY_ONE] * 3


def test_single_steps_are_started_while_a_profiler_watches(driver: Any) -> None:
    plan, tensors = _native.Plan(chain()), given()
    for _ in range(3):
        plan(*tensors)
    started(driver)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        plan(*tensors)
    assert started(driver) == ONE_BY_ONE
    assert sum("kernel add_one" in e.name for e in seen.events()) == 3


def test_threads_share_a_plan(driver: Any) -> None:
    plan, wrong = _native.Plan(chain()), []

    def call() -> None:
        tensors = given(1000)
        for _ in range(200):
            tensors[0].normal_()
            if not torch.equal(plan(*tensors)[0], tensors[0] + 1 + 1 + 1):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("on", [True, False])
def test_the_knob_reaches_the_plan(on: bool) -> None:
    program = lower(aten_graph(lambda x: x + 1, [torch.randn(3)]))
    with config.patch("triton.batch_launches", on):
        plan = make_plan(schedule(program, of_program(program)), None)
    assert plan.batches_launches is on
