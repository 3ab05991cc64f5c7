"""Fusion decisions, inlining, memory reuse; each rule of a legal schedule detects a schedule that breaks it."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kernel_harness import buffer, check, loop, lowered, program, whole
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import pycompiler
from pycompiler import config
from pycompiler.ir import phases
from pycompiler.ir.interpret_schedule import interpret_schedule
from pycompiler.ir.kernel import Schedule
from pycompiler.ir.loops import Extern, Loop, Op
from pycompiler.ir.target import H200, of_program
from pycompiler.lowering import lower
from pycompiler.scheduling import fuse, rules, schedule
from pycompiler.scheduling.body import FEW, checked_vars, digits, is_surjective
from pycompiler.scheduling.iteration_space import refine
from pycompiler.scheduling.memory import storage_bytes
from pycompiler.scheduling.simplify import _stays
from pycompiler.scheduling.stores import _before
from pycompiler.symbolic.expr import Expr

pytestmark = pytest.mark.whole  # each row is a rule of its own

r = torch.randn
W, B = r(96), r(96)
IDS = torch.randint(0, 96, (32,))


def layer_norm_backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [96], w, b, 1e-5)
    return torch.ops.aten.native_layer_norm_backward(g, x, [96], mean, rstd, w, b, [True, True, True])


def adam(*tensors: torch.Tensor) -> list[torch.Tensor]:
    out = []
    for p, g, m, v in zip(*(tensors[k::4] for k in range(4)), strict=True):
        m, v = m * 0.9 + g * 0.1, v.abs() * 0.99 + g * g * 0.01
        out += [p - 1e-3 * m / (v.sqrt() + 1e-8), m, v]
    return out


# name -> (function, arguments, kernels)
COUNTS: dict[str, tuple[Callable[..., Any], list[torch.Tensor], int]] = {
    "pointwise chain": (lambda x, y: ((x + y).relu() * 2 - x).tanh(), [r(8, 96), r(96)], 1),
    "softmax": (lambda x: x.softmax(-1), [r(32, 96)], 1),
    "log_softmax": (lambda x: x.log_softmax(-1), [r(32, 96)], 1),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (96,), w, b), [r(4, 8, 96), W, B], 1),
    "gelu layer_norm": (lambda x, w, b: F.layer_norm(F.gelu(x), (96,), w, b), [r(32, 96), W, B], 1),
    "residual layer_norm": (
        lambda x, y, w, b: (x + y, F.layer_norm(x + y, (96,), w, b)),
        [r(32, 96), r(32, 96), W, B],
        1,
    ),
    "rms_norm": (lambda x, w: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * w, [r(32, 96), W], 1),
    "layer_norm backward": (layer_norm_backward, [r(32, 96), r(32, 96), W, B], 1),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t), [r(32, 96), IDS], 1),
    "mse": (lambda x, y: F.mse_loss(x, y), [r(32, 96), r(32, 96)], 1),
    "adam of many shapes": (adam, [r(k + 3, 17) for k in range(12) for _ in range(4)], 1),
    "siblings": (lambda x: (x.exp(), x.sin().sum(-1), x.amax(-1)), [r(64, 96)], 1),
    "linear between": (lambda x, w: F.gelu(F.relu(x + 1) @ w), [r(32, 96), r(96, 96)], 2),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), [r(8, 12, 16, 16), r(12), r(12)], 2),
    "cat": (lambda x, y: torch.cat([x + 1, y * 2], 1), [r(8, 96), r(8, 32)], 1),
    "columns of rows": (lambda x, i: x[i][:, :5].exp() * 2, [r(96, 10), IDS], 1),  # it reads all indices
    "columns of rows of rows": (lambda x, i, j: x[i[j]][:, :5].exp() * 2, [r(96, 10), IDS, IDS % 32], 1),
    "call between loops": (
        lambda x, y, w: ((s := x.exp()), (t := y.sin()) @ w, s + t),
        [r(200, 200), r(200, 200), r(200, 200)],
        1,
    ),
    "swiglu": (lambda x: F.silu(x[:, :48]) * x[:, 48:], [r(32, 96)], 1),
}


@pytest.mark.parametrize("name", COUNTS)
def test_kernel_counts(name: str) -> None:
    f, args, kernels = COUNTS[name]
    check(f, args, kernels, rtol=1e-4, atol=1e-4)


def scheduled(f: Callable[..., Any], *args: torch.Tensor) -> Schedule:
    made = lowered(f, args)
    return schedule(made, of_program(made))


def operations(s: Schedule) -> list[tuple[str, torch.dtype]]:
    """The operations of all stages without loads and constants, with the dtypes of their results."""
    ops = [op for k in s.kernels for stage in k.stages() for op in stage.loop.body]
    return [(op.name, op.dtype) for op in ops if op.name not in ("load", "const")]


def test_values_between_operators_of_half_precision_are_rounded_where_that_is_asked_for() -> None:
    f32, half = torch.float32, torch.bfloat16
    x = r(8, 8).to(half)
    for asked, between in ((True, [("cast", half), ("cast", f32)]), (False, [])):
        with config.patch(emulate_precision_casts=asked):
            ops = operations(scheduled(lambda x: (x * 2).exp() + 1, x))
        middle = [("mul", f32), *between, ("exp", f32), *between, ("add", f32)]
        assert ops == [("cast", f32), *middle, ("cast", half)]


def test_rows_of_equal_dimensions_are_one_dimension() -> None:
    [nest] = [nest for k in scheduled(lambda x: F.layer_norm(x, (96,)), r(4, 8, 96)).kernels for nest in k.nests]
    assert ([n.as_int() for _, n in nest.dims], nest.split) == ([32, 96], 1)


def test_folds_of_a_few_long_rows_share_a_nest() -> None:
    """The rows are too few to distribute to threads, but both folds are over rows already."""
    s = scheduled(lambda x: (x - x.sum(1, keepdim=True)).exp().sum(1), r(2, 1 << 18))
    assert [len(k.nests) for k in s.kernels] == [1]


@pytest.mark.parametrize(("width", "passes"), [(FEW - 1, 2), (FEW, 1), (100, 1)])
def test_moments_of_long_rows_take_one_pass(width: int, passes: int) -> None:
    stages = [stage for k in scheduled(lambda x: x.var(1), r(64, width)).kernels for stage in k.stages()]
    assert len({stage.level for stage in stages if stage.role == "reduce"}) == passes


@pytest.mark.parametrize(
    ("width", "sizes"), [(96, [2, 300, 96]), (192, [2, 3, 300, 64]), (384, [2, 3, 300, 128]), (768, [2, 3, 300, 256])]
)
def test_blocks_of_columns_are_rows_where_rows_are_few(width: int, sizes: list[int]) -> None:
    [nest] = [nest for k in scheduled(lambda x: x.sum(1), r(2, 300, width)).kernels for nest in k.nests]
    assert [n.as_int() for _, n in nest.dims] == sizes


def test_the_same_program_has_the_same_variables_again() -> None:
    """The generated source, and so the key of the kernel cache, depends on them."""

    def variables() -> list[Any]:
        s = scheduled(lambda x: x.softmax(1).reshape(4, 16) + 1, r(8, 8))
        return [nest.dims for k in s.kernels for nest in k.nests]

    assert variables() == variables()


def test_an_element_is_found_as_its_extreme_was_computed() -> None:
    """The searched value is stored between the passes: recomputed, it might round differently and equal no element."""
    for f in (lambda x, y: (x * y + 1).argmax(1), lambda x, y: (x * 2).argmax(1), lambda x, y: (x * 2).max(0)):
        assert operations(scheduled(f, r(8, 8), r(8, 8))).count(("mul", torch.float32)) == 1


def test_checks_depend_on_the_variables_of_what_they_look_at() -> None:
    """Includes variables of an index that another load gives."""
    i, j, k = (Expr.sym(v) for v in "ijk")
    index = torch.int64
    body = (
        Op("load", (), index, ("a", i)), Op("wrap_index", (0,), index, (Expr.of(8), "index", 0)),
        Op("load", (), index, ("b", Expr.sym("%1") * 4 + j)), Op("wrap_index", (2,), index, (Expr.of(8), "index", 0)),
        Op("load", (), torch.float32, ("c", Expr.sym("%3") * 4 + k)),
    )  # fmt: skip
    out = buffer("o", (2, 3, 4))
    assert checked_vars(Loop((out,), ("i", "j", "k"), out.shape, body, (4,), (12 * i + 4 * j + k,))) == {"i", "j"}


@pytest.mark.parametrize(("shape", "count"), [((3, 4), 48), ((0, 4), 0), ((4, 0), 0), ((), 4)])
def test_bytes_of_a_storage(shape: tuple[int, ...], count: int) -> None:
    assert storage_bytes(buffer("x", shape)) == Expr.of(count)


def test_calls_stay_for_what_they_write_or_check() -> None:
    aten, x, y = torch.ops.aten, buffer("x", (8,)), buffer("y", (8,))
    integers = buffer("i", (8,), torch.int64)
    calls = [
        (Extern(aten.copy_.default, (whole(x), whole(y)), {}, (None,), ("x",)), True),
        (Extern(aten._assert_async.default, (whole(x),), {}, (None,)), True),
        (Extern(aten.floor_divide.default, (whole(integers), whole(integers)), {}, (integers,)), True),
        (Extern(aten.mm.default, (whole(x), whole(y)), {}, (y,)), False),
    ]
    assert [_stays(call) for call, _ in calls] == [stays for _, stays in calls]


@pytest.mark.parametrize(
    ("reader", "k", "before"),
    [(("row", 0), 0, True), (("row", 0), 1, True), (("row", 0), 2, False), (("point", 0), 0, False),
     (("point", 0), 2, False), (("point", -1), 2, True), (("row", 1), 0, False)],
)  # fmt: skip
def test_what_is_read_before_a_row_is_stored(reader: tuple[str, int], k: int, before: bool) -> None:
    role, level = reader
    writer = types.SimpleNamespace(role="row", level=0)
    assert _before(types.SimpleNamespace(role=role, level=level), k, writer, 1) is before  # type: ignore[arg-type]


def test_refine_splits_dimensions() -> None:
    found = refine([("a", Expr.of(12)), ("b", Expr.of(5))], [("x", Expr.of(3)), ("y", Expr.of(20))])
    assert found is not None
    assert [n.as_int() for _, n in found.dims] == [3, 4, 5]
    (p, _), (q, _), (s, _) = found.dims
    assert found.left["a"] == 4 * Expr.sym(p) + Expr.sym(q)
    assert found.right["y"] == 5 * Expr.sym(q) + Expr.sym(s)
    assert refine([("a", Expr.of(6))], [("x", Expr.of(4))]) is None


def test_digits_invert_a_store() -> None:
    i, j = Expr.sym("i"), Expr.sym("j")
    dims = [("i", Expr.of(4)), ("j", Expr.of(8))]
    ranges = {"p": Expr.of(4), "q": Expr.of(8)}
    found = digits(8 * Expr.sym("p") + Expr.sym("q"), 8 * i + j, dims, ranges)
    assert found is not None
    values = {k: e.simplify(ranges) for k, e in found.items()}
    assert values == {"i": Expr.sym("p"), "j": Expr.sym("q")}
    assert digits(Expr.sym("p"), 4 * i + j, dims, ranges) is None  # overlapping: not a number in mixed radix
    assert digits(Expr.sym("q"), j, dims, ranges) is None  # all values of i store at the same place


def test_digits_that_are_written_in_an_index_need_no_division() -> None:
    i, j, p, q = (Expr.sym(v) for v in "ijpq")
    n = Expr.sym("s0") // 2
    dims = [("i", n), ("j", n)]
    assert digits(n * p + q, n * i + j, dims, {"p": n, "q": n}) == {"i": p, "j": q}
    assert digits(n * p + q + 1, n * i + j, dims, {"p": n, "q": n - 1}) == {"i": p, "j": q + 1}
    assert digits(n * p + q, n * i + j, dims, {"p": n, "q": n + 1}) == {"i": (n * p + q) // n, "j": (n * p + q) % n}


def test_covers_finds_all_values_of_variables_in_others() -> None:
    i, j, n = Expr.sym("i"), Expr.sym("j"), Expr.sym("n")
    ranges = {"i": Expr.of(3), "j": Expr.of(4), "k": n}
    dims = [("a", Expr.of(3)), ("b", Expr.of(4))]
    assert is_surjective(dims, {"a": i, "b": j}, ranges)
    assert is_surjective(dims, {"a": Expr.of(2) - i, "b": j}, ranges)
    assert is_surjective(dims, {"a": i // 4, "b": i % 4}, {"i": Expr.of(12)})
    assert is_surjective([("a", n)], {"a": Expr.sym("k")}, ranges)
    assert not is_surjective(dims, {"a": i, "b": Expr.of(0)}, ranges)
    assert not is_surjective(dims, {"a": i, "b": i}, ranges)
    assert not is_surjective(dims, {"a": i, "b": j}, {**ranges, "j": Expr.of(2)})
    assert not is_surjective([("a", n)], {"a": i}, ranges)
    assert not is_surjective([("a", Expr.of(6))], {"a": i * 2}, ranges)
    assert not is_surjective([("a", Expr.of(3))], {"a": i // 2}, ranges)
    assert not is_surjective([("a", Expr.of(3))], {"a": Expr.sym("%0")}, ranges)
    assert not is_surjective(dims, {"a": i, "b": j * Expr.sym("%0")}, ranges)


def test_dead_buffers_lend_their_memory() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):  # transposed loads of a reduction's input cannot fuse: each step needs a buffer
            x = (x - x.sum(0) + x.sum(1)).tanh()
        return x

    s = check(f, [r(128, 128)], rtol=1e-3, atol=1e-3)
    temporaries = [n for k in s.kernels for n in k.writes]
    assert len({s.storage[n] for n in temporaries}) < len(temporaries)


def centred(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    grown = x.exp()
    return (grown - grown.sum(0)).tanh() @ w


@pytest.mark.parametrize("shape", [(128, 96), (130, 70)])
def test_a_buffer_that_ends_in_a_kernel_is_replaced_element_by_element(shape: tuple[int, int]) -> None:
    """The last value is the argument of an ATen call, which gets the memory in the layout that it has."""
    args = [r(*shape), r(shape[1], 8)]
    s = check(centred, args, kernels=2)
    first, last = s.kernels
    assert last.stores == {last.writes[0]: first.writes[0]}
    assert s.storage[last.writes[0]] == first.writes[0]
    assert last.pointers == last.reads  # a pointer for both
    assert torch.allclose(interpret_schedule(s, args, share=True)[0], centred(*args), atol=1e-4)


def _read_elsewhere(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    grown = x.exp()
    return (grown - grown.sum(0) + grown.flip(1)).tanh() @ w


def _read_later(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    grown = x.exp()
    return (grown - grown.sum(0)).tanh() @ w + (grown @ w)


def _narrowed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    grown = x.exp()
    return (grown - grown.sum(0)).tanh().bfloat16() @ w.bfloat16()


def _returned(x: torch.Tensor, w: torch.Tensor) -> Any:
    grown = x.exp()
    return (grown - grown.sum(0)).tanh(), w


def _of_the_program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x - x.sum(0)).tanh() @ w


def _one_column(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    grown = x.exp()
    return (grown[:, :1] - grown.sum(0)[:1]).tanh() @ w[:1]


@pytest.mark.parametrize("f", [_read_elsewhere, _read_later, _narrowed, _returned, _of_the_program, _one_column])
def test_a_buffer_that_is_still_needed_is_not_replaced(f: Callable[..., Any]) -> None:
    s = check(f, [r(128, 96), r(96, 8)], rtol=1e-2, atol=1e-2)
    assert all(not k.stores for k in s.kernels)


def test_an_image_replaces_the_rows_of_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """The convolution after them is a call of oneDNN's, which reads the memory as an image."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = torch.nn.Conv2d(16, 48, 1, bias=False), torch.nn.BatchNorm2d(48)
            self.second = torch.nn.Conv2d(48, 48, 3, 2, 1, groups=48, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(F.silu(self.norm(self.first(x))))

    class Schedules(phases.Observer):
        def __init__(self) -> None:
            self.found: list[Schedule] = []

        def artefact(self, name: str, value: Any) -> None:
            self.found += [value] if name == "schedule" else []

    block, x = Block().eval(), r(1, 16, 48, 48).contiguous(memory_format=torch.channels_last)
    seen = Schedules()
    monkeypatch.setattr(phases, "observers", [*phases.observers, seen])
    with torch.no_grad():
        compiled = pycompiler.compile(block)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), block(x))
    (made,) = seen.found
    stores = [pair for kernel in made.kernels for pair in kernel.stores.items()]
    assert [len(made.buffers[value].shape) - len(made.buffers[target].shape) for value, target in stores] == [2]


def legal() -> Schedule:
    program = lowered(lambda x, w: F.softmax(F.relu(x @ w), -1) @ w, [r(32, 32), r(32, 32)])
    return schedule(program, of_program(program))


def _free_early(s: Schedule) -> None:
    s.frees[0].append(s.kernels[0].reads[0])


def _swap(s: Schedule) -> None:
    s.steps[0], s.steps[1] = s.steps[1], s.steps[0]


def _share(s: Schedule) -> None:
    s.storage[s.kernels[0].writes[0]] = s.kernels[0].reads[0]


def _forget(s: Schedule) -> None:
    s.frees = [[] for _ in s.frees]


def _lower_level(s: Schedule) -> None:
    for stage in s.kernels[0].stages():
        stage.level = 0


def _move_index(s: Schedule) -> None:
    nest = s.kernels[0].nests[0]
    nest.stages.reverse()


BROKEN = {
    "memory_holds_what_is_read": (_free_early, _swap, _share),
    "everything_is_freed_once": (_forget, _free_early),
    "values_are_read_where_they_are_made": (_lower_level, _move_index),
}


@pytest.mark.parametrize(("rule", "breakage"), [(k, f) for k, fs in BROKEN.items() for f in fs])
def test_rules_notice(rule: str, breakage: Callable[[Schedule], None]) -> None:
    s = legal()
    rules.check_schedule(s)
    broken = copy.deepcopy(s)
    breakage(broken)
    with pytest.raises(rules.ScheduleError, match=rule):
        rules.check_schedule(broken)


def test_a_shared_memory_too_small_is_noticed() -> None:
    s = legal()
    s.buffers = {**s.buffers, "small": buffer("small", (2,))}
    s.storage[s.kernels[0].writes[0]] = "small"
    assert list(rules.shared_memory_is_large_enough(s))


def test_a_loop_outside_its_nest_is_noticed() -> None:
    s = legal()
    nest = s.kernels[0].nests[0]
    nest.dims = [("z", n) for _, n in nest.dims]
    assert list(rules.loops_range_over_the_nest(s))


def test_dead_loops_disappear() -> None:
    x, a, o = buffer("x", (8,)), buffer("a", (8,)), buffer("o", (8,))
    p = program(
        [x],
        [loop(a, lambda b, i, _: b.op("exp", b.load(x, i))), loop(o, lambda b, i, _: b.op("neg", b.load(x, i)))],
        [o],
    )
    (kernel,) = schedule(p, of_program(p)).kernels
    assert kernel.writes == ["o"]
    assert len(list(kernel.stages())) == 1


def test_reasons_against_fusions_go_to_an_observer_that_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reasons(phases.Observer):
        def __init__(self, wanted: frozenset[str]) -> None:
            self.wanted, self.found = wanted, list[tuple[str, str, str]]()

        def artefact(self, name: str, value: Any) -> None:
            self.found += [value] * (name == "unfused")

    made = lowered(lambda x: x.softmax(-1).softmax(0), [r(300, 300)])
    for wanted in (frozenset({"unfused"}), frozenset[str]()):
        monkeypatch.setattr(phases, "observers", [observer := Reasons(wanted)])
        schedule(made, of_program(made))
        assert bool(observer.found) == bool(wanted)
        assert all(left and right and why for left, right, why in observer.found)


@pytest.mark.parametrize(("size", "origins"), [(64, ["sum_1", "mul", "exp"]), (65, ["sum_1", "exp", "mul"])])
def test_small_nests_of_a_gpu_follow_what_they_read(size: int, origins: list[str]) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        total = x.sum(0)
        return total, y.exp(), total.flip(0) * total

    with FakeTensorMode():
        made = lower(make_fx(f)(torch.empty(300, size, device="cuda"), torch.empty(500, 700, device="cuda")))
    s = schedule(made, dataclasses.replace(H200, small_nest=64))
    assert [nest.origin[-1] for k in s.kernels for nest in k.nests] == origins


def test_a_nest_holds_as_many_loops_as_the_knob_says() -> None:
    made = lowered(lambda x: ((x - x.amax(1, keepdim=True)).exp(), x.sum(1), x.amin(1)), [r(8, 32)])
    nests = []
    for most in (1, 2, 64):
        with config.patch(max_fusion_size=most):
            nests.append(sum(len(k.nests) for k in schedule(made, of_program(made)).kernels))
    assert nests[0] > nests[1] > nests[2] == 1


MANY: dict[str, Callable[..., Any]] = {
    "one element": lambda n: lambda x: [x[:1] + i for i in range(n)],
    "windows": lambda n: lambda x: [x[i : i + 3] * 2 for i in range(n)],
    "whole": lambda n: lambda x: [x + i for i in range(n)],
}


@pytest.mark.parametrize("name", MANY)
def test_pairs_that_are_tried_grow_with_the_number_of_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of pairs must not grow with the square of the results: compile time would, too."""
    tried = []
    attempt = fuse._Fusion.attempt

    def counted(self: Any, a: Any, b: Any) -> Any:
        tried.append((a, b))
        return attempt(self, a, b)

    monkeypatch.setattr(fuse._Fusion, "attempt", counted)
    counts = []
    for n in (100, 200):
        made = lowered(MANY[name](n), [r(400)])
        tried.clear()
        schedule(made, of_program(made))
        counts.append(len(tried))
    assert counts[1] - counts[0] <= 100 * (fuse.MOST_REFUSED + 1), counts
    assert name != "one element" or counts == [0, 0]


def test_print() -> None:
    text = str(legal())
    assert "extern aten.mm.default" in text
    assert "reduce" in text
    assert "free" in text
