"""GPU kernels launched by a plan, without a GPU: `fake_driver.c` stands for the driver, and runs the known kernels."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pycompiler import _native
from pycompiler.ir.plan import Aten, Binary, Free, Launch, Plan, SlotRef, View
from pycompiler.runtime import triton_build
from pycompiler.runtime.plan_python import PythonPlan
from pycompiler.runtime.rules import PlanError, check_plan
from pycompiler.symbolic.expr import Expr

sys.path.insert(0, str(Path(__file__).parent))
from launch_cases import ADD_ONE, N, add_one, binary, notes, plan_of
from plan_cases import MODULE, f32


def test_a_grid_and_numbers_made_of_sizes(driver: Any) -> None:
    plan = _native.Plan(plan_of([f32(1, N), add_one(0, 1)], [1], 1, 2, ADD_ONE))
    assert plan.routes == ["alloc", "launch"]
    for n in (1, 32, 33, 1000):
        x = torch.randn(n)
        assert torch.equal(plan(x)[0], x + 1)
    assert [note.split(" stream")[0] for note in notes(driver)] == [
        f"add_one device 0 grid {g} 1 1 threads 32 shared 0" for g in (1, 1, 2, 32)
    ]


def test_nothing_is_started_where_there_are_no_points(driver: Any) -> None:
    plan = _native.Plan(plan_of([f32(1, N), add_one(0, 1)], [1], 1, 2, ADD_ONE))
    assert plan(torch.empty(0))[0].shape == (0,)
    assert notes(driver) == []


def test_buffers_between_kernels_and_operators(driver: Any) -> None:
    """Kernels pass addresses to each other; an operator receives a tensor."""
    steps = [
        f32(1, N), add_one(0, 1), f32(2, N), add_one(1, 2), Free((1,)), f32(3, N), add_one(2, 3),
        Aten(torch.ops.aten.neg.default, (SlotRef(2),), {}, (4,)), View(5, 3, (2,), (1,), 4), f32(6, 2), add_one(5, 6, 2),
    ]  # fmt: skip
    plan = _native.Plan(plan_of(steps, [4, 6], 1, 7, ADD_ONE))
    x = torch.randn(40)
    negative, two = plan(x)
    torch.testing.assert_close(negative, -(x + 1 + 1), rtol=0, atol=0)
    torch.testing.assert_close(two, (x + 1 + 1 + 1)[4:6] + 1, rtol=0, atol=0)
    assert plan.routes[:4] == ["room", "launch", "alloc", "launch"]


NUMBERS = ("u64", "u64", "u32", "f32", "f64", "u8", "u64")


def numbers(*given: Any) -> Launch:
    types = ("*fp32", "i64", "i32", "fp32", "fp64", "i1")
    return Launch("numbers", torch.device("cuda:0"), (1, 2, 3), (SlotRef(0), *given), types, {})


def test_arguments_are_packed_by_their_types(driver: Any) -> None:
    binaries = {"numbers": binary("numbers", *NUMBERS, "u64", shared=100 << 10)}
    step = numbers(N * -(2**40), N - 5, 0.1, 0.1, True)
    _native.Plan(plan_of([step], [0], 1, 1, binaries))(torch.ones(3))
    (note,) = notes(driver)
    assert "grid 1 2 3 threads 32 shared 102400" in note
    assert f"i64 {-3 * 2**40} i32 -2 f32 0.100000001 f64 0.10000000000000001 bool 1 null (nil)" in note


def test_a_number_that_does_not_fit_is_no_argument(driver: Any) -> None:
    binaries = {"numbers": binary("numbers", *NUMBERS)}
    plan = _native.Plan(plan_of([numbers(0, N * 2**30, 0.0, 0.0, False)], [0], 1, 1, binaries))
    plan(torch.ones(1))
    with pytest.raises(RuntimeError, match=r"step 0 \(kernel numbers\).*2147483648 does not fit the 32 bits"):
        plan(torch.ones(2))
    with pytest.raises(RuntimeError, match=r"4294967296 does not fit the 32 bits"):
        _native.Plan(plan_of([numbers(0, 2**32, 0.0, 0.0, False)], [0], 1, 1, binaries))
    grid = Launch("add_one", torch.device("cuda:0"), (N * 2**32, 1, 1), (), (), {})
    plan = _native.Plan(plan_of([grid], [0], 1, 1, {"add_one": binary("add_one")}))
    with pytest.raises(RuntimeError, match="a grid of 4294967296 programs"):
        plan(torch.ones(1))
    assert len(notes(driver)) == 1


@pytest.mark.parametrize(
    ("given", "parameters"),
    [
        ((SlotRef(0),), ("f32",)),  # an address for a number
        ((SlotRef(0), SlotRef(0)), ("u64",)),  # too many
        ((SlotRef(0),), ("u64", "u32")),  # too few: the next word is no address
        ((1.5,), ("u64",)),
        ((1,), ("v2",)),
    ],
)
def test_other_parameters_than_arguments_are_refused(
    driver: Any, given: tuple[Any, ...], parameters: tuple[str, ...]
) -> None:
    step = Launch("add_one", torch.device("cuda:0"), (1, 1, 1), given, ("?",) * len(given), {})
    with pytest.raises(ValueError, match="add_one|not an argument|float"):
        _native.Plan(plan_of([step], [0], 1, 1, {"add_one": binary("add_one", *parameters)}))


def test_devices_have_contexts_streams_and_modules_of_their_own(driver: Any) -> None:
    driver.fake_stream(0, 0x1000)
    driver.fake_stream(1, 0x2000)
    steps = [f32(1, N), add_one(0, 1), f32(2, N), add_one(1, 2, device=1), f32(3, N), add_one(2, 3)]
    loaded = driver.fake_modules()
    plan = _native.Plan(plan_of(steps, [3], 1, 4, ADD_ONE))
    assert driver.fake_modules() - loaded == 2  # one per device, for three kernels
    x = torch.randn(5)
    torch.testing.assert_close(plan(x)[0], x + 3)
    driver.fake_enter(1)  # the thread's own context is another one, and stays
    driver.fake_stream(0, 0x3000)
    plan(x)
    driver.fake_leave()
    assert [note.split("shared 0 ")[1] + note.split()[2] for note in notes(driver)] == [
        "stream 0x10000", "stream 0x20001", "stream 0x10000", "stream 0x30000", "stream 0x20001", "stream 0x30000",
    ]  # fmt: skip


def test_threads_that_never_saw_the_driver(driver: Any) -> None:
    plan = _native.Plan(plan_of([f32(1, N), add_one(0, 1)], [1], 1, 2, ADD_ONE))
    results: list[bool] = []

    def call() -> None:
        for n in range(1, 100):
            x = torch.randn(n)
            results.append(torch.equal(plan(x)[0], x + 1))
        results.append(driver.fake_depth() == 0)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 400


def test_an_error_of_the_driver_names_kernel_grid_and_device(driver: Any) -> None:
    step = Launch("broken", torch.device("cuda:1"), (N, 2, 1), (SlotRef(0),), ("*fp32",), {})
    plan = _native.Plan(plan_of([step], [0], 1, 1, {"broken": binary("broken", "u64")}))
    what = (
        r"graph hand, step 0 \(kernel broken\): broken on cuda:1, 3 x 2 x 1 programs of 32 threads: "
        r"cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED \(unspecified launch failure\)"
    )
    with pytest.raises(RuntimeError, match=what):
        plan(torch.ones(3))


@pytest.mark.parametrize(
    ("made", "device", "message"),
    [
        (binary("add_one", image=b"\x7fELF"), "cuda:0", "cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU"),
        (binary("subtract"), "cuda:0", "kernel subtract on cuda:0: cuModuleGetFunction: CUDA_ERROR_NOT_FOUND"),
        (binary("add_one"), "cuda:7", "kernel add_one on cuda:7: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE"),
        (binary("add_one", shared=500 << 10), "cuda:0", "cuFuncSetAttribute: error 1 of the GPU's driver"),
    ],
)
def test_what_cannot_be_loaded(driver: Any, made: Binary, device: str, message: str) -> None:
    step = Launch("k", torch.device(device), (1, 1, 1), (), (), {})
    with pytest.raises(RuntimeError, match=message):
        _native.Plan(plan_of([step], [0], 1, 1, {"k": made}))


def test_a_kernel_without_a_binary_or_a_device(driver: Any) -> None:
    with pytest.raises(ValueError, match="kernel k has no binary"):
        _native.Plan(Plan(0, 0, [Launch("k", torch.device("cuda:0"), (1, 1, 1), (), (), {})], []))
    with pytest.raises(ValueError, match="kernel k on a device without a number"):
        _native.Plan(Plan(0, 0, [Launch("k", torch.device("cuda"), (1, 1, 1), (), (), {})], []))


def test_without_a_driver() -> None:
    with pytest.raises(RuntimeError, match="no GPU driver: .*nowhere.so"):
        _native.use_gpu_driver("/nowhere.so")


@pytest.fixture
def handed_back() -> Iterator[None]:
    yield
    _native.hand_in(unaligned=triton_build.unaligned)


def test_addresses_that_are_not_aligned_have_a_binary_of_their_own(driver: Any, handed_back: None) -> None:
    data = plan_of([f32(1, N), add_one(0, 1)], [1], 1, 2, ADD_ONE)
    asked: list[tuple[Any, str]] = []

    def unaligned(plan: Plan, kernel: str) -> Binary:
        asked.append((plan, kernel))
        return binary("add_one_anywhere", "u64", "u64", "u64")

    _native.hand_in(unaligned=unaligned)
    plan, x = _native.Plan(data), torch.randn(20)
    for start in (0, 1, 2, 4, 3):
        given = x[start : start + 7]
        assert torch.equal(plan(given)[0], given + 1)
    assert [note.split()[0] for note in notes(driver)] == [
        "add_one",
        *["add_one_anywhere"] * 2,
        "add_one",
        "add_one_anywhere",
    ]
    assert len(asked) == 1
    assert asked[0][0] is data
    assert asked[0][1] == "add_one"


def test_a_compiler_that_fails_for_such_addresses(driver: Any, handed_back: None) -> None:
    def unaligned(plan: Plan, kernel: str) -> Binary:
        raise OverflowError("too many blocks")

    _native.hand_in(unaligned=unaligned)
    plan = _native.Plan(plan_of([f32(1, N), add_one(0, 1)], [1], 1, 2, ADD_ONE))
    with pytest.raises(OverflowError, match="too many blocks") as error:
        plan(torch.randn(20)[1:])
    assert any("graph hand, step 1 (kernel add_one)" in note for note in error.value.__notes__)


def test_rules_of_launches() -> None:
    good = plan_of([f32(1, N), add_one(0, 1)], [1], 1, 2, ADD_ONE)
    good.module = ""
    with pytest.raises(PlanError, match="starts add_one, which the module does not have"):
        check_plan(good)
    with pytest.raises(PlanError, match=r"needs the sizes \['m'\]"):
        plan_of([f32(1, N), add_one(0, 1, Expr.sym("m"))], [1], 1, 2, ADD_ONE)
    with pytest.raises(PlanError, match="uses slot 1, which is empty"):
        plan_of([add_one(0, 1)], [0], 1, 2, ADD_ONE)
    with pytest.raises(PlanError, match="gives 1 arguments of 0 types"):
        plan_of([Launch("add_one", torch.device("cuda:0"), (1, 1, 1), (1,), (), {})], [0], 1, 1, ADD_ONE)


def test_binaries_are_one_file() -> None:
    binaries = {"a": binary("x", "u64", "f32", image=b"\n\x00ELF"), "b": binary("y", image=b"", shared=3)}
    assert triton_build.unpacked(triton_build.packed(binaries)) == binaries


# -- the oracle -------------------------------------------------------------------------------------------------------


def by_hand(*steps: Any, n_slots: int) -> PythonPlan:
    return PythonPlan(Plan(1, n_slots, [*steps], [n_slots - 1], name="hand", module=MODULE, symbols={"n": (0, 0)}))


def on_host(kernel: str, *arguments: Any, **constants: int) -> Launch:
    return Launch(kernel, torch.device("cpu"), ((N + 3) // 4, 1, 1), arguments, ("?",) * len(arguments), constants)


def test_the_oracle_starts_kernels_of_the_module() -> None:
    plan = by_hand(f32(1, N), on_host("add_one", SlotRef(0), SlotRef(1), N, BLOCK=4), n_slots=2)
    for x in (torch.randn(5), torch.randn(4), torch.empty(0)):
        assert torch.equal(plan(x)[0], x + 1)


def test_an_error_of_the_module_names_the_step() -> None:
    with pytest.raises(OverflowError, match="too many blocks") as error:
        by_hand(on_host("fail", SlotRef(0)), n_slots=1)(torch.ones(1))
    assert any("graph hand, step 0 (kernel fail)" in note for note in error.value.__notes__)
