"""In-place writes of inputs: stored in place or through a copy; values and versions equal eager's either way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_harness import CPU, buffer, compile_plan, loop, program, run_plan, whole
from torch.fx.experimental.proxy_tensor import make_fx

from pycompiler import _native
from pycompiler.ir.interpret import interpret
from pycompiler.ir.loops import Extern, Program
from pycompiler.ir.plan import CountVersions
from pycompiler.ir.target import of_program
from pycompiler.ir.verify import verify
from pycompiler.lowering import lower
from pycompiler.runtime.output_code import output_code
from pycompiler.runtime.plan_python import PythonPlan
from pycompiler.scheduling import rules, schedule
from pycompiler.scheduling.stores import conflict, copies_last

copy_ = torch.ops.aten.copy_.default
r = torch.randn


def stored(f: Callable[..., Any], args: list[torch.Tensor], name: str = "stored") -> Program:
    """The program of `f`, which gives (new values by input, outputs) and itself changes nothing."""

    def graph(*inputs: torch.Tensor) -> Any:
        new, outputs = f(*inputs)
        for k, value in new.items():
            copy_(inputs[k], value)
        return outputs

    p = lower(make_fx(graph, tracing_mode="fake")(*args), name=name)
    verify(p)
    return p


def adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> Any:
    m1, v1 = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
    return {0: p - 1e-3 * m1 / (v1.sqrt() + 1e-8), 2: m1, 3: v1}, ()


def clipped(x: torch.Tensor, y: torch.Tensor) -> Any:
    norm = ((x * x).sum() + (y * y).sum()).sqrt()
    return {0: x / norm, 1: y / norm}, (norm,)


# name -> (program, arguments, inputs stored in place, inputs with a copy)
CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor], set[int], set[int]]] = {
    "add": (lambda x: ({0: x + 1}, ()), [r(8, 96)], {0}, set()),
    "adam": (adam, [r(40, 50), r(40, 50), r(40, 50), r(40, 50).abs()], {0, 2, 3}, set()),
    "counter": (lambda n: ({0: n + 1}, ()), [torch.tensor(3)], {0}, set()),
    "norm first": (clipped, [r(300, 40), r(300, 40)], {0, 1}, set()),
    "softmax of itself": (lambda x: ({0: x.softmax(-1)}, ()), [r(32, 96)], {0}, set()),
    "from another": (lambda x, y: ({0: y * 2}, ()), [r(32, 96), r(32, 96)], {0}, set()),
    "transposed layout": (lambda x: ({0: x * 2}, ()), [r(12, 40).t()], {0}, set()),
    "with gaps": (lambda x: ({0: x * 2}, ()), [r(12, 40)[:, ::2]], {0}, set()),
    "of a transposed view": (lambda x, y: ({0: y.t()}, ()), [r(12, 12), r(12, 12)], {0}, set()),
    "constant": (lambda x: ({0: torch.zeros_like(x)}, ()), [r(12, 12)], {0}, set()),
    "part of it": (
        lambda x, y: ({0: torch.slice_scatter(x, y, 0, 3, 5)}, ()),
        [r(12, 12), r(2, 12)],
        {0},
        set(),
    ),
    "read for an output": (lambda x: ({0: x + 1}, (x * 2,)), [r(12, 12)], {0}, set()),
    "integers": (lambda x: ({0: x * 3}, ()), [torch.arange(12)], {0}, set()),
    "half": (lambda x: ({0: x * 3}, ()), [r(12, 40).bfloat16()], {0}, set()),
    "two of one value": (lambda x, y: ({0: x + y, 1: x + y}, ()), [r(12, 12), r(12, 12)], set(), {0, 1}),
    "also an output": (lambda x: ({0: (y := x + 1)}, (y,)), [r(12, 12)], {0}, set()),
    "swapped": (lambda x, y: ({0: y + 0, 1: x + 0}, ()), [r(12, 12), r(12, 12)], {0}, {1}),
    "its own transpose": (lambda x: ({0: x.permute(1, 0) + x}, ()), [r(12, 12)], set(), {0}),
    "shifted": (lambda x: ({0: x.roll(1, 0)}, ()), [r(12, 12)], set(), {0}),
    "broadcast of a row": (lambda x: ({0: x - x[0]}, ()), [r(12, 12)], set(), {0}),
    "index out of range": (lambda x, i: ({0: x[i]}, ()), [r(12, 4), torch.arange(12).flip(0)], set(), {0}),
    "small product": (lambda x, y: ({0: x @ y}, ()), [r(12, 12), r(12, 12)], set(), {0}),
    "product by ATen": (lambda x, y: ({0: x @ y / 200}, ()), [r(200, 200), r(200, 200)], {0}, set()),
}


def inputs_of(names: Any) -> set[int]:
    return {int(n.removeprefix("in")) for n in names}


def clones(args: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies with the same layout, version 0."""
    return [copy.deepcopy(a) for a in args]


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    f, args, in_place, copied = CASES[name]
    args = clones(args)
    plan, s = compile_plan(stored(f, args))
    expected = clones(args)
    new, outputs = f(*expected)
    for k, value in {k: v.clone() for k, v in new.items()}.items():
        expected[k].copy_(value)
    want = [t.clone() for t in outputs]
    counts = {i for step in plan.steps if isinstance(step, CountVersions) for i in step.slots}
    externs = {a.op for a in s.steps if not hasattr(a, "nests")}
    assert inputs_of(s.stores.values()) == counts
    if "two" in name or "also" in name:  # the schedule chooses which of two equal stores is in place
        assert counts | copied | in_place == set(new)
    else:
        assert (counts, set(new) - counts) == (in_place, copied), str(s)
        assert bool(copied) == (copy_ in externs)
    for run in (lambda a: run_plan(plan, a), PythonPlan(plan), _native.Plan(plan)):
        got = clones(args)
        before = [t._version for t in got]
        results = run([*got])  # a plan empties its list
        for a, b in zip([*got, *results], [*expected, *want], strict=True):
            half = {"rtol": 2e-2, "atol": 2e-2} if b.dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
            torch.testing.assert_close(a, b, **half)
        assert [t._version - v for t, v in zip(got, before, strict=True)] == [int(k in new) for k in range(len(got))]
    assert ("increment_version" in output_code(plan)) == bool(counts)


def test_the_interpreter_agrees() -> None:
    args = clones(CASES["adam"][1])
    p = stored(adam, args)
    plan, _ = compile_plan(p)
    ours, theirs = clones(args), clones(args)
    interpret(p, theirs)
    _native.Plan(plan)(*ours)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_reads_of_the_old_value_come_first() -> None:
    """A sum over all of an input, inlined after the store of its new value, is moved before it."""

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        doubled = x * 2
        return {0: x + y}, ((doubled.t() * y).sum(0),)

    args = [r(64, 64), r(64, 64)]
    _, s = compile_plan(stored(f, args))
    assert s.stores or any(getattr(step, "op", None) is copy_ for step in s.steps)
    plan, _ = compile_plan(stored(f, args))
    got, expected = clones(args), clones(args)
    (total,) = _native.Plan(plan)(*got)
    torch.testing.assert_close(total, ((expected[0] * 2).t() * expected[1]).sum(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got[0], expected[0] + expected[1])


def test_an_index_error_leaves_the_input_as_it_was() -> None:
    plan, _ = compile_plan(stored(*CASES["index out of range"][:2]))
    x = r(12, 4)
    before = x.clone()
    with pytest.raises(IndexError):
        _native.Plan(plan)(x, torch.full((12,), 12))
    assert torch.equal(x, before)
    assert x._version == 0


@torch.library.custom_op("pycompiler_tests::of_another_library", mutates_args=())
def of_another_library(x: torch.Tensor) -> torch.Tensor:
    return x + 1


LATER: dict[str, tuple[Any, int, torch.dtype, bool]] = {  # a call after the store: its operands, their dtype, in place
    "raises": (torch.ops.aten.searchsorted.Tensor, 2, torch.int64, False),
    "acts": (of_another_library._opoverload, 1, torch.int64, False),
    "divides": (torch.ops.aten.floor_divide.default, 2, torch.int64, False),
    "divides floats": (torch.ops.aten.floor_divide.default, 2, torch.float32, True),
    "only computes": (torch.ops.aten.cumsum.default, 1, torch.int64, True),
}


@pytest.mark.parametrize("name", LATER)
def test_no_store_in_place_before_a_call_that_may_raise(name: str) -> None:
    """A call that ends with an error runs again eagerly: its inputs must be as they were."""
    op, count, dtype, in_place = LATER[name]
    x, y, v, o = buffer("x", (8,)), buffer("y", (8,), dtype), buffer("v", (8,)), buffer("o", (8,), dtype)
    add = loop(v, lambda body, at, _: body.op("exp", body.load(x, at)))
    rest = (0,) if op is torch.ops.aten.cumsum.default else ()
    call = Extern(op, (*[whole(y)] * count, *rest), {}, (o,))
    made = program([x, y], [add, call, Extern(copy_, (whole(x), whole(v)), {}, (None,), ("x",))], [o])
    assert schedule(made, of_program(made)).stores == ({"v": "x"} if in_place else {})


USERS: dict[
    str, tuple[tuple[str, ...], tuple[str, ...], bool]
] = {  # a call after the copy of v into x: reads, writes, first
    "reads the input": (("x",), (), False),
    "writes the input": ((), ("x",), False),
    "writes the copied value": ((), ("v",), False),
    "reads the copied value": (("v",), (), True),
    "uses others": (("y",), ("z",), True),
}


@pytest.mark.parametrize("name", USERS)
def test_a_copy_comes_after_the_calls_that_use_other_buffers(name: str) -> None:
    reads, writes, first = USERS[name]
    copied = Extern(copy_, (whole(buffer("x", (8,))), whole(buffer("v", (8,)))), {}, (None,), ("x",))
    call = Extern(torch.ops.aten.sin.default, tuple(whole(buffer(n, (8,))) for n in reads), {}, (), writes)
    assert copies_last([copied, call], {"x"}) == ([call, copied] if first else [copied, call])


def test_inference_tensors() -> None:
    plan, _ = compile_plan(stored(*CASES["add"][:2]))
    with torch.inference_mode():
        x = torch.zeros(8, 96)
        _native.Plan(plan)(x)
        assert x.mean() == 1
    for run in (_native.Plan(plan), PythonPlan(plan)):
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
            run(x)
    assert x.mean() == 1


def test_without_the_symbol() -> None:
    plan, _ = compile_plan(stored(*CASES["adam"][:2]))
    native, args, fresh = _native.Plan(plan), clones(CASES["adam"][1]), clones(CASES["adam"][1])
    _native.force_slow_routes(True)
    try:
        native(*args)
    finally:
        _native.force_slow_routes(False)
    assert [t._version - u._version for t, u in zip(args, fresh, strict=True)] == [1, 0, 1, 1]


# ---- the rule ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["its own transpose", "broadcast of a row"])
def test_the_rule_notices(name: str) -> None:
    program = stored(*CASES[name][:2])
    s = schedule(program, of_program(program))
    rules.check_schedule(s)
    (group,) = s.kernels
    (made,) = group.writes
    s.stores[made] = s.storage[made] = group.stores[made] = "in0"
    with pytest.raises(rules.ScheduleError, match=rf"old_values_are_read.* reads in0 at .*, {made} is stored at"):
        rules.check_schedule(s)


def test_the_rule_notices_reads_behind_a_write() -> None:
    """A call writes a part of a buffer: a later load of the old contents breaks the rule."""

    def f(c: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> Any:
        return {0: (new := c.index_copy(0, at, x))}, (c.sum(0), new.sum(0))

    program = stored(f, [r(512, 8), torch.tensor([5]), r(1, 8)])
    s = schedule(program, of_program(program))
    rules.check_schedule(s)
    (write,) = (k for k, step in enumerate(s.steps) if getattr(step, "mutates", ()))
    assert set(s.stores.values()) == {"in0"}
    assert any("in0" in getattr(step, "reads", ()) for step in s.steps[:write])
    s.steps = s.steps[write:] + s.steps[:write]
    with pytest.raises(rules.ScheduleError, match="reads in0, but its memory holds b"):
        rules.check_schedule(s)


def test_conflict_says_why() -> None:
    program = stored(lambda x: ({0: (x - x.max()).exp()}, ()), [r(8, 8)])
    s = schedule(program, of_program(program))
    (value,) = s.stores
    nest = next(n for g in s.kernels for n in g.nests if any(value in t.outputs for t in n.stages))
    assert conflict(nest, value, "in0", CPU) is None
    nest.stages[-1].level += 1
    assert conflict(nest, value, "in1", CPU) is None
