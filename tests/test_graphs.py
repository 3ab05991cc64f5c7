"""What a code generator refuses: the loops that it is about become ATen calls, the rest stays compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pycompiler import graphs
from pycompiler.codegen.cpp import ops
from pycompiler.ir.kernel import Unsupported
from pycompiler.ir.plan import Alloc, Aten, Kernel, Plan
from pycompiler.runtime.plan_python import PythonPlan
from pycompiler.runtime.triton_build import HostKernel


def calls(plan: Plan) -> list[str]:
    """What the plan runs, in order: names of operators, "kernel"."""
    return [str(s.op) if isinstance(s, Aten) else "kernel" for s in plan.steps if isinstance(s, Aten | Kernel)]


def test_an_operation_without_a_form_becomes_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    written = ops.pointwise

    def without_sine(name: str, *rest: Any) -> str:
        if name == "sin":
            raise Unsupported("no sine")
        return written(name, *rest)

    monkeypatch.setattr(ops, "pointwise", without_sine)

    def f(x: torch.Tensor) -> torch.Tensor:
        return ((x * 2).sin().exp() + 1).sum(0)

    x = torch.randn(5, 3)
    _, plan = graphs.planned(make_fx(f, tracing_mode="fake")(x), "refused")
    assert calls(plan) == ["kernel", "aten.sin.default", "kernel"]
    torch.testing.assert_close(PythonPlan(plan)(x)[0], f(x))


def test_what_is_refused_only_together_is_compiled_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = graphs.TARGETS["cpu"]

    def one_stage_at_a_time(schedule: Any, name: str) -> Plan:
        for group in schedule.kernels:
            for nest in group.nests:
                if len(nest.stages) > 1:
                    raise Unsupported("two stages", nest.origin)
        return whole(schedule, name)

    monkeypatch.setitem(graphs.TARGETS, "cpu", one_stage_at_a_time)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x - torch.amax(x, -1, keepdim=True)).sum(-1)

    x = torch.randn(5, 30)
    _, plan = graphs.planned(make_fx(f, tracing_mode="fake")(x), "apart")
    assert set(calls(plan)) == {"kernel"}
    torch.testing.assert_close(PythonPlan(plan)(x)[0], f(x))


def test_what_cannot_be_mended_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(schedule: Any, name: str) -> Plan:
        raise Unsupported("all", ["sin"])

    monkeypatch.setitem(graphs.TARGETS, "cpu", refuses)
    with pytest.raises(Unsupported, match="all"):
        graphs.planned(make_fx(torch.sin, tracing_mode="fake")(torch.ones(3)), "never")


def cuda_plan(f: Callable[..., Any], *inputs: tuple[Sequence[int], torch.dtype, str]) -> Plan:
    pytest.importorskip("triton")
    with FakeTensorMode():
        args = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in inputs]
        gm = make_fx(f)(*args)
    return graphs.planned(gm, "two_devices")[1]


def test_an_index_on_the_cpu_ends_the_kernel_not_the_graph() -> None:
    plan = cuda_plan(
        lambda x, i: torch.sin((x * 2)[i + 1]), ((5, 3), torch.float32, "cuda"), ((4,), torch.int64, "cpu")
    )
    assert calls(plan) == ["kernel", "kernel", "aten.index.Tensor", "kernel"]
    assert {s.device.type for s in plan.steps if isinstance(s, Alloc)} == {"cpu", "cuda"}


def test_kernels_of_two_devices_are_in_one_plan() -> None:
    plan = cuda_plan(lambda x, y: (torch.sin(x * 2), y * 3 + 1), ((5, 3), torch.float32, "cuda"),
                     ((4,), torch.float32, "cpu"))  # fmt: skip
    assert calls(plan) == ["kernel", "kernel"]
    assert plan.launcher == "triton"
    assert "HostKernel(" in plan.source


def test_an_operation_without_a_triton_form_becomes_an_operator() -> None:
    plan = cuda_plan(lambda x: torch.sin(torch.digamma(x * 2)) + 1, ((5, 3), torch.float32, "cuda"))
    assert calls(plan) == ["kernel", "aten.digamma.default", "kernel"]


def test_a_kernel_of_the_host_runs_from_a_module() -> None:
    x, i = torch.randn(5, 3), torch.tensor([1, 4])
    _, plan = graphs.planned(make_fx(lambda x, i: x[i] * 2, tracing_mode="fake")(x, i), "host")
    (step,) = (s for s in plan.steps if isinstance(s, Kernel))
    kernel, out = HostKernel(str(plan.library), step.symbol), torch.empty(2, 3)
    given = dict(enumerate([x, i, out]))
    kernel(*(given[s] for s in step.slots))
    assert torch.equal(out, x[i] * 2)
    i[1] = 5
    with pytest.raises(IndexError, match="index 5 is out of bounds for dimension 0 with size 5"):
        kernel(*(given[s] for s in step.slots))
