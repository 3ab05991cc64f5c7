"""The native executor against the Python oracle, and its errors, threads and memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import _native
from pycompiler.capture.recording.data_errors import ErrorsOfData
from pycompiler.ir.plan import (
    Alloc,
    Aten,
    CopyInto,
    CountVersions,
    Expect,
    Free,
    Kernel,
    Plan,
    SlotRef,
    StepNote,
    View,
    mark_lasting,
)
from pycompiler.runtime.plan_python import PythonPlan
from pycompiler.symbolic.expr import Expr

sys.path.insert(0, str(Path(__file__).parent))
from plan_cases import CASES, CPU, SOURCE, aten, build_kernels, f32, ref, some

from tests.harness.compare import assert_same

Executor = Callable[[Plan], Callable[..., Any]]
EXECUTORS: list[Executor] = [_native.Plan, PythonPlan]
both = pytest.mark.parametrize("executor", EXECUTORS, ids=["native", "python"])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_kernels(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def slow_routes() -> Iterator[None]:
    _native.force_slow_routes(True)
    yield
    _native.force_slow_routes(False)


def plan_of(steps: list[Any], outputs: list[Any], n_inputs: int, n_slots: int, library: str | None = None) -> Plan:
    return Plan(n_inputs, n_slots, steps, outputs, {}, library, SOURCE, "hand")


def run(executor: Executor, name: str, library: str, grad: bool = False) -> tuple[Any, ...]:
    case = CASES[name]
    torch.manual_seed(0)
    inputs = case.inputs()
    if grad:
        inputs = [
            t.requires_grad_() if isinstance(t, torch.Tensor) and t.is_floating_point() and t.is_leaf else t
            for t in inputs
        ]
    torch.manual_seed(1)
    outputs = executor(case.plan(name, library))(*inputs)
    assert isinstance(outputs, tuple)
    return (*outputs, *inputs)


@pytest.mark.parametrize("name", CASES)
def test_same_as_oracle(name: str, library: str) -> None:
    assert_same(run(_native.Plan, name, library), run(PythonPlan, name, library), exact=True)


@pytest.mark.parametrize("name", ["addmm", "addmm_narrow", "bmm", "baddbmm"])
def test_products_take_no_more_memory_than_they_need(name: str, library: str) -> None:
    """An operator would resize an output of another shape: its values are right, and its storage is too large."""
    out = run(_native.Plan, name, library)[0]
    assert out.untyped_storage().nbytes() == out.numel() * out.itemsize


@pytest.mark.parametrize("name", CASES)
def test_inputs_that_require_grad_record_nothing(name: str, library: str) -> None:
    got, want = run(_native.Plan, name, library, grad=True), run(PythonPlan, name, library, grad=True)
    assert_same(got, want, exact=True)
    case = CASES[name]
    for i, out in enumerate(case.outputs):
        if isinstance(out, int) and out >= case.n_inputs and isinstance(got[i], torch.Tensor):
            assert not got[i].requires_grad
            assert got[i].grad_fn is None


@pytest.mark.parametrize(
    "name", ["one_kernel", "addmm", "python_scalar", "mutation", "outputs", "view_for_both", "constant"]
)
def test_fallbacks_of_wrapping(name: str, library: str, slow_routes: None) -> None:
    assert_same(run(_native.Plan, name, library), run(PythonPlan, name, library), exact=True)


def test_every_operator_of_the_shim_table_exists_or_is_newer(library: str) -> None:
    """The schemas of the table equal this torch's: a typing mistake in one would only appear as a slow call."""
    for schema in _native.shim_schemas():
        name, overload = schema.partition("(")[0].removeprefix("aten::"), "default"
        if "." in name:
            name, overload = name.split(".")
        assert str(getattr(getattr(aten, name), overload)._schema) == schema


@pytest.mark.parametrize(
    ("name", "routes"),
    {
        "one_kernel": ["alloc", "kernel"],
        "chain_in_scratch": [
            "place",
            "kernel",
            "place",
            "kernel",
            "free",
            "place",
            "kernel",
            "free",
            "alloc",
            "kernel",
        ],
        "addmm": ["shim"],
        "convolution_backward": ["shim"],
        "attention_masked": ["shim"],
        "index": ["shim"],
        "dispatcher": ["dispatcher"],
        "dispatcher_layer_norm": ["dispatcher"],
        "dispatcher_string": ["dispatcher"],
        "list_result": ["dispatcher"],
        "python_scalar": ["python"],
        "view_for_kernel": ["place", "kernel", "shift", "alloc", "free", "kernel", "free"],
        "view_for_both": ["alloc", "kernel", "view", "free", "dispatcher", "alloc", "kernel"],
        "view_of_result": ["dispatcher", "view", "free", "alloc", "kernel"],
        "mutation": ["alloc", "kernel", "copy"],
    }.items(),
)
def test_routes(name: str, routes: list[str], library: str) -> None:
    plan = _native.Plan(CASES[name].plan(name, library))
    inputs = CASES[name].inputs()
    plan(*inputs)
    assert plan.routes == routes


def test_scratch_is_reused_and_aligned(library: str) -> None:
    plan = _native.Plan(CASES["chain_in_scratch"].plan("chain", library))
    assert plan.arena_bytes == 2 * 448  # two of three buffers are alive at a time, each 400 bytes
    steps = [f32(1, 3), f32(2, 5), f32(3, 7), Kernel("misaligned", (1, 2, 3), (3,))]
    assert _native.Plan(plan_of(steps, [], 0, 4, library))() == ()


def test_attributes(library: str) -> None:
    ir = CASES["one_kernel"].plan("graph_7", library)
    plan = _native.Plan(ir)
    assert (plan.name, plan.n_inputs, plan.n_outputs, plan.plan is ir) == ("graph_7", 1, 1, True)
    assert repr(plan) == "<Plan graph_7: 1 inputs, 2 steps, 1 outputs>"
    assert weakref.ref(plan)() is plan


@both
def test_takes_one_list(executor: Executor, library: str) -> None:
    x = some(4)
    assert torch.equal(executor(CASES["one_kernel"].plan("g", library))([x])[0], x + 1)


@both
def test_frees_the_inputs_of_a_list_after_their_last_use(executor: Executor, library: str) -> None:
    alive: list[list[bool]] = []

    @torch.library.custom_op("pycompiler_test::look", mutates_args=())
    def look(x: torch.Tensor) -> torch.Tensor:
        alive.append([ref() is not None for ref in refs])
        return x + 1

    op = torch.ops.pycompiler_test.look.default
    steps = [
        Aten(torch.ops.aten.add.Tensor, (SlotRef(0), SlotRef(1)), {}, (4,)),
        View(5, 2, (4,), (1,), 0),  # a view keeps the memory alive, not its base
        Aten(op, (SlotRef(4),), {}, (6,)),
        Aten(torch.ops.aten.add.Tensor, (SlotRef(6), SlotRef(5)), {}, (7,)),
        Aten(op, (SlotRef(3),), {}, (8,)),
    ]
    plan = executor(plan_of(steps, [7, 8, 0], 4, 9))
    tensors = [some(4) for _ in range(4)]
    expected = [tensors[0] + tensors[1] + 1 + tensors[2], tensors[3] + 1, tensors[0].clone()]
    refs = [weakref.ref(t) for t in tensors]
    for got, want in zip(plan(*tensors), expected, strict=True):
        torch.testing.assert_close(got, want)
    assert alive == [[True] * 4] * 2  # the caller owns the arguments
    alive.clear()
    held = tensors[1]
    outputs = plan(tensors)
    assert tensors == []
    assert outputs[2] is refs[0]()
    for got, want in zip(outputs, expected, strict=True):
        torch.testing.assert_close(got, want)
    assert alive == [[True, True, False, True]] * 2
    del held
    assert [ref() is not None for ref in refs] == [True, False, False, False]


@both
def test_a_failing_call_frees_the_inputs_of_its_list(executor: Executor) -> None:
    steps = [Aten(torch.ops.aten.relu.default, (SlotRef(0),), {}, (2,)),
             Aten(torch.ops.aten.mm.default, (SlotRef(1), SlotRef(2)), {}, (3,))]  # fmt: skip
    plan = executor(plan_of(steps, [3], 2, 4))
    tensors = [some(4), some(5)]
    refs = [weakref.ref(t) for t in tensors]
    try:
        plan(tensors)
        raise AssertionError("mm takes matrices")
    except RuntimeError:
        pass
    assert tensors == []
    assert [ref() for ref in refs] == [None, None]
    with pytest.raises(TypeError, match="2 inputs expected, 1 given"):
        plan([some(4)])


@both
def test_input_as_output_is_the_same_object(executor: Executor, library: str) -> None:
    x, y = some(4).requires_grad_(), some(2)
    outputs = executor(CASES["outputs"].plan("g", library))(x, y)
    assert outputs[1] is y
    assert outputs[5] is x
    assert outputs[0] is outputs[3]
    assert outputs[2] is None


@both
def test_mutation_counts_versions(executor: Executor, library: str) -> None:
    x = some(4)
    before = x._version
    executor(CASES["mutation"].plan("g", library))(x)
    assert x._version == before + 1


@both
def test_autocast_is_not_applied_again(executor: Executor) -> None:
    plan = executor(plan_of([Aten(aten.mm.default, ref(0, 1), {}, (2,))], [2], 2, 3))
    a, b = some(3, 4), some(4, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert plan(a, b)[0].dtype == torch.float32
        assert torch.mm(a, b).dtype == torch.bfloat16  # and the caller's state is restored


@both
def test_parameters_and_subclasses_are_inputs(executor: Executor) -> None:
    class Marked(torch.Tensor):
        pass

    plan = executor(plan_of([Aten(aten.mm.default, ref(0, 1), {}, (2,))], [2, 0], 2, 3))
    a, b = torch.nn.Parameter(some(3, 4)), some(4, 5).as_subclass(Marked)
    outputs = plan(a, b)
    assert outputs[1] is a
    assert torch.equal(outputs[0], a.detach().mm(b.as_subclass(torch.Tensor)))


# -- errors -----------------------------------------------------------------------------------------------------------


@both
def test_wrong_number_of_inputs(executor: Executor, library: str) -> None:
    with pytest.raises(TypeError, match=r"graph g: 1 inputs expected, 2 given"):
        executor(CASES["one_kernel"].plan("g", library))(some(4), some(4))


@both
def test_inputs_that_no_step_reads_may_be_anything(executor: Executor, library: str) -> None:
    plan = executor(plan_of([f32(3, 4), Kernel("add_one", (1, 3), (4,))], [3, 0, 2], 3, 4, library))
    x = some(4)
    assert plan(7, x, None)[1:] == (7, None)
    assert torch.equal(plan(7, x, None)[0], x + 1)


@both
def test_zeros_without_memory(executor: Executor, library: str) -> None:
    """Zero tensors as inputs, results and constants; read by kernels, past the dispatcher, and through views."""
    made = Aten(aten._efficientzerotensor.default, ([2, 2],), {"dtype": torch.float32, "device": CPU}, (3,))
    steps = [
        made,
        f32(4, 2, 2),
        f32(5, 2, 2),
        f32(6, 2, 2),
        Kernel("add_one", (0, 4), (4,)),
        Kernel("add_one", (3, 5), (4,)),
    ]
    steps += [
        Kernel("add_one", (2, 6), (4,)),
        View(7, 0, (2, 2), (1, 2), 0),
        Aten(aten.mm.default, ref(0, 7), {}, (8,)),
    ]
    steps += [Aten(aten.mm.default, ref(1, 3), {}, (9,)), Aten(aten.mul.Tensor, ref(0, 1), {}, (10,))]
    zeros = torch._efficientzerotensor((2, 2))
    run = executor(Plan(2, 11, steps, [4, 5, 6, 8, 9, 10], {2: zeros}, library, SOURCE, "hand"))
    for given in (zeros, torch.zeros(2, 2)):
        found = run(given, torch.ones(2, 2))
        assert [t.clone().tolist() for t in found] == [[[1.0, 1.0]] * 2] * 3 + [[[0.0, 0.0]] * 2] * 3


def test_kinds_of_tensors() -> None:
    x, z = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.complex64)
    with torch.inference_mode():
        inference = torch.ones(2)
    plain = [x, z, inference, torch.nn.Parameter(x), x.t(), x.requires_grad_() * 2, torch.ones(2, dtype=torch.bool)]
    x = x.detach()
    lazy = [z.conj(), torch._neg_view(x), z.conj().imag]
    odd = [x.to_sparse(), x.to_sparse_csr(), x.to_mkldnn(), x.to("meta"), torch._efficientzerotensor(2)]
    odd += [torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), torch.nested.nested_tensor([x, x[0:1]])]
    try:
        for level in ("offsets", "c_abi", "slow"):
            _native.force_tensor_level(level)
            assert [[_native.kind_of(t) for t in ts] for ts in (plain, lazy, odd)] == [[0] * 7, [1] * 3, [2] * 7]
    finally:
        _native.force_tensor_level("offsets")
    with pytest.raises(TypeError):
        _native.kind_of(3)  # type: ignore[arg-type]


def test_input_that_is_no_tensor(library: str) -> None:
    with pytest.raises(TypeError, match=r"graph g, input 0: expected a torch.Tensor, got int"):
        _native.Plan(CASES["one_kernel"].plan("g", library))(3)


@both
@pytest.mark.parametrize(
    ("op", "inputs", "error"),
    [
        (aten.mm.default, (some(3, 4), some(3, 4)), RuntimeError),
        (aten.mm.default, (some(3), some(3)), RuntimeError),
        (aten.embedding.default, (some(3, 4), torch.tensor([7])), IndexError),
        (aten.gather.default, (some(3), 0, torch.tensor([7])), RuntimeError),
    ],
)
def test_operator_errors_are_those_of_eager(
    executor: Executor, op: Any, inputs: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error) as eager:
        op(*inputs)
    tensors = [a for a in inputs if isinstance(a, torch.Tensor)]
    slots = iter(range(len(tensors)))
    args = tuple(SlotRef(next(slots)) if isinstance(a, torch.Tensor) else a for a in inputs)
    plan = executor(plan_of([Free(()), Aten(op, args, {}, (5,))], [5], len(tensors), 6))
    for _ in range(2):
        with pytest.raises(error) as seen:
            plan(*tensors)
        assert type(seen.value) is type(eager.value)
        assert str(seen.value) == str(eager.value)
        assert any("graph hand, step 1" in note and str(op) in note for note in seen.value.__notes__)


@both
def test_kernel_error_codes(executor: Executor, library: str) -> None:
    plan = executor(plan_of([f32(2, 2), Kernel("gather", (0, 1, 2), (3, 2))], [2], 2, 3, library))
    x = some(3)
    assert torch.equal(plan(x, torch.tensor([2, 0]))[0], x[[2, 0]])
    with pytest.raises(IndexError, match="index out of range in self") as error:
        plan(x, torch.tensor([2, 3]))
    assert any("step 1" in note and "gather" in note for note in error.value.__notes__)


def test_unknown_kernel_code(library: str) -> None:
    with pytest.raises(RuntimeError, match="unknown error code 77"):
        _native.Plan(plan_of([Kernel("unknown_code", ())], [], 0, 0, library))()


def test_impossible_allocation_names_the_step() -> None:
    plan = _native.Plan(plan_of([f32(0, 1 << 50)], [0], 0, 1))
    with pytest.raises(RuntimeError, match=r"alloc|memory|no message") as error:
        plan()
    assert error.value.__notes__ == ["in the compiled graph hand, step 0 (alloc slot 0)"]


def test_a_failure_says_whether_something_lasts() -> None:
    """A write or a random draw before the failure lasts; a step's own allocation does not."""
    huge, draw = f32(3, 1 << 50), Aten(aten.bernoulli.default, ref(0), {}, (2,))
    for before, lasts in (([], False), ([f32(1, 4)], False), ([CountVersions((0,))], True), ([draw], True)):
        steps = [*before, huge]
        for run in (_native.Plan, PythonPlan):
            with pytest.raises(RuntimeError) as error:
                run(Plan(1, 4, steps, [3]))(some(4).abs().clamp(0, 1))
            note = StepNote.of(error.value)
            assert note is not None and note.lasts == lasts, before
            mark_lasting(error.value)
            assert note.lasts


def test_impossible_allocation_names_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ErrorsOfData, "again", lambda self, *, ours: False)  # else the frame raises it, at that line

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return y[:, None] * y[None, :]

    line = program.__code__.co_firstlineno + 2
    with pytest.raises(RuntimeError) as error:
        pycompiler.compile(program)(torch.ones(1 << 24))
    assert f"test_plan.py:{line} in program)" in error.value.__notes__[0]


@pytest.mark.parametrize("run", [_native.Plan, PythonPlan])
def test_a_result_of_other_sizes_is_an_error(run: Callable[[Plan], Any]) -> None:
    plan = run(Plan(1, 2, [Aten(aten.t.default, ref(0), {}, (1,)), Expect(1, (2, 3), (3, 1), torch.float32, CPU)], [1]))
    with pytest.raises(RuntimeError, match=r"returned a tensor of sizes \[3, 2\], the graph was compiled for \[2, 3\]"):
        plan(some(2, 3))


@pytest.mark.parametrize(
    ("steps", "outputs", "text"),
    [
        ([Kernel("add_one", (0, 1), (4,))], [0], "step 0 reads slot 1, which is empty"),
        ([f32(1, 4), Free((1,)), Kernel("add_one", (0, 1), (4,))], [0], "step 2 reads slot 1"),
        ([f32(1, 4), Free((1,))], [1], "output 0 is slot 1, which is empty"),
        ([f32(0, 4)], [0], "step 0 fills slot 0, which is an input"),
        ([f32(9, 4)], [0], "slot 9, but the plan has 3 slots"),
        ([Aten(aten.relu.default, ref(0), {}, (3,))], [0], "step 0 fills slot 3, which is .* out of range"),
        ([CopyInto(0, 2)], [0], "step 0 reads slot 2"),
        ([Kernel("absent", (0,))], [0], "no symbol absent"),
        ([Aten(aten.mm.default, ref(0), {}, (1,))], [1], "the argument mat2 is missing"),
        ([Aten(aten.relu.default, ref(0, 0), {}, (1,))], [1], "unknown arguments"),
        ([Aten(aten.relu.default, ref(0), {"alpha": 1}, (1,))], [1], "unknown arguments"),
        ([Aten(aten.relu.default, ref(0), {}, (1, 2))], [1], "names 2 results"),
        ([Alloc(1, (Expr.sym("k"),), (1,), torch.float32, CPU)], [1], "the size symbol k is not in Plan.symbols"),
        (["alloc"], [0], "a step of class str"),
    ],
)
def test_bad_plans_are_rejected(steps: list[Any], outputs: list[Any], text: str, library: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=text) as error:
        _native.Plan(plan_of(steps, outputs, 1, 3, library))
    assert "graph hand" in str(error.value)


def test_no_step_fills_a_constant() -> None:
    plan = plan_of([Aten(aten.relu.default, ref(0), {}, (1,))], [1], 1, 2)
    plan.constants = {1: some(2)}
    with pytest.raises(ValueError, match="graph hand: step 0 fills slot 1, which is .* a constant"):
        _native.Plan(plan)


def test_more_slots_than_any_graph_has() -> None:
    with pytest.raises(ValueError, match=r"graph hand: 1125899906842624 slots, the limit is \d+"):
        _native.Plan(plan_of([], [], 0, 2**50))


def test_missing_library() -> None:
    with pytest.raises(RuntimeError, match=r"cannot load the kernel library .*nowhere\.so"):
        _native.Plan(plan_of([], [], 0, 0, "/tmp/nowhere.so"))
    with pytest.raises(ValueError, match="kernel add_one, but the plan has no library"):
        _native.Plan(plan_of([Kernel("add_one", (0, 0), (1,))], [0], 1, 1))


def test_arguments_of_the_constructor(library: str) -> None:
    for args, kwargs in [((), {}), ((1, 2, 3), {}), ((CASES["nothing"].plan("g", library),), {"k": 1})]:
        with pytest.raises(TypeError, match="takes one argument"):
            _native.Plan(*args, **kwargs)
    with pytest.raises(TypeError, match="no keyword arguments"):
        _native.Plan(CASES["nothing"].plan("g", library))(x=1)


# -- sizes ------------------------------------------------------------------------------------------------------------


def test_dynamic_sizes(library: str) -> None:
    ir = CASES["dynamic"].plan("dynamic", library)
    native, oracle = _native.Plan(ir), PythonPlan(ir)
    for shape in [(5, 3), (2, 9), (1, 1), (4, 0)]:
        x = some(*shape)
        assert_same(native(x), oracle(x), exact=True)
    with pytest.raises(TypeError, match="input 0 has no dimension 1"):
        native(some(3))


@pytest.mark.parametrize("a", [-7, -1, 0, 5, 12])
@pytest.mark.parametrize("size", ["q", "r", "m", "x"])
def test_size_arithmetic_is_that_of_expr(a: int, size: str) -> None:
    """Floor division and remainder of negative numbers, minimum, maximum, products."""
    n, m = Expr.sym("n"), Expr.sym("m")
    d = n - m + a
    expr = {"q": d // 3 + 100, "r": d % 3, "m": d.min(m * m) + 50, "x": d.max(n * m - 2) + (d // (n + 1)) * 2 + 100}[
        size
    ]
    ir = Plan(1, 2, [Alloc(1, (expr,), (1,), torch.uint8, CPU)], [1], symbols={"n": (0, 0), "m": (0, 1)})
    for shape in [(1, 1), (3, 8), (9, 2)]:
        assert _native.Plan(ir)(some(*shape))[0].shape == (expr.eval({"n": shape[0], "m": shape[1]}),)


# -- threads and memory -----------------------------------------------------------------------------------------------


def test_threads_share_one_plan(library: str) -> None:
    plans = [_native.Plan(CASES[c].plan(c, library)) for c in ("chain_in_scratch", "released_gil")]
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            generator = torch.Generator().manual_seed(seed)
            for _ in range(60):
                x, y = torch.randn(100, generator=generator), torch.randn(50_000, generator=generator)
                assert torch.equal(plans[0](x)[0], x * (x + 1 + 1) + 1)
                assert torch.equal(plans[1](y)[0], (y + 1).relu())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


def test_long_kernels_release_the_gil(library: str) -> None:
    spin = _native.Plan(plan_of([f32(0, 1), Kernel("spin", (0,), (400_000_000,), 400_000_000)], [0], 0, 1, library))
    done: list[float] = []
    thread = threading.Thread(target=lambda: done.append(float(spin()[0])))
    thread.start()
    ticks = 0
    while not done:
        ticks += 1
        time.sleep(0.001)
    thread.join()
    assert ticks > 10


@pytest.mark.parametrize(("work", "is_held"), [(19_999, True), (20_000, False)])
def test_the_work_that_releases_the_gil(work: int, is_held: bool, library: str) -> None:
    plan = _native.Plan(plan_of([f32(0, 1), Kernel("gil_is_held", (0,), (), work)], [0], 0, 1, library))
    assert plan()[0].item() == is_held


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.unsanitized("AddressSanitizer keeps freed memory: resident memory grows")
def test_calls_do_not_leak(library: str) -> None:
    names = [
        "chain_in_scratch",
        "addmm",
        "dispatcher_layer_norm",
        "dispatcher_full_dtype",
        "list_result",
        "index",
        "view_for_both",
        "outputs",
        "python_scalar",
        "mutation",
        "convolution_backward_masked",
    ]
    work = [(_native.Plan(CASES[c].plan(c, library)), CASES[c].inputs()) for c in names]

    def rounds(count: int) -> int:
        for _ in range(count):
            for plan, inputs in work:
                plan(*inputs)
        gc.collect()
        return resident()

    before = rounds(500)
    assert rounds(4_000) - before < 4 << 20


@pytest.mark.unsanitized("AddressSanitizer keeps freed memory: resident memory grows")
def test_errors_do_not_leak(library: str) -> None:
    steps = [
        f32(2, 1000),
        Kernel("add_one", (0, 2), (4,)),
        Aten(aten.relu.default, ref(2), {}, (3,)),
        Aten(aten.embedding.default, ref(0, 1), {}, (4,)),
    ]
    plan = _native.Plan(plan_of(steps, [4, 2], 2, 5, library))
    weight, index = some(4, 1), torch.tensor([9])

    def rounds(count: int) -> int:
        for _ in range(count):
            with pytest.raises(IndexError):
                plan(weight, index)
        gc.collect()
        return resident()

    before = rounds(100)
    assert rounds(300) - before < 1 << 20


def test_plans_are_freed(library: str) -> None:
    constant = torch.ones(3)
    alive = weakref.ref(constant)
    case = CASES["constant"]
    ir = Plan(1, 3, case.steps, case.outputs, {1: constant}, library)
    plan = _native.Plan(ir)
    plan(some(3))
    constant.owner = plan  # a cycle through the plan's own constant
    del plan, ir, constant
    gc.collect()
    assert alive() is None


@pytest.mark.unsanitized("AddressSanitizer keeps freed memory: resident memory grows")
def test_construction_does_not_leak(library: str) -> None:
    plans = [CASES[c].plan(c, library) for c in ("addmm", "dispatcher", "chain_in_scratch", "dynamic")]

    def rounds(count: int) -> int:
        for _ in range(count):
            for ir in plans:
                _native.Plan(ir)
        gc.collect()
        return resident()

    before = rounds(100)
    assert rounds(500) - before < 4 << 20


def test_view_records_alias_their_base() -> None:
    x = some(3, 3)
    (view,) = _native.Plan(plan_of([View(1, 0, (2,), (3,), 1)], [1], 1, 2))(x)
    view.fill_(5.0)
    assert x[0, 1] == 5.0
    assert x[1, 1] == 5.0


def test_plans_may_outlive_the_interpreter(library: str) -> None:
    """Objects of a module are freed while the interpreter ends, plans with them."""
    script = f"""
import sys
sys.path[:0] = {sys.path!r}
import torch
from plan_cases import CASES
from pycompiler import _native
case = CASES["constant_in_operator"]
plan = _native.Plan(case.plan("g", {library!r}))
plan(*case.inputs())
sys.modules["sys"].kept = plan
torch.kept = plan
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
