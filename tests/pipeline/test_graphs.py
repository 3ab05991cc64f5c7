"""Loops that a code generator refuses become ATen calls; the other loops stay compiled."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pycompiler import config, graphs
from pycompiler.codegen.cpp import ops
from pycompiler.ir.kernel import Unsupported
from pycompiler.ir.plan import Alloc, Aten, Kernel, Launch, Plan
from pycompiler.runtime import triton_build
from pycompiler.runtime.plan_python import PythonPlan


def calls(plan: Plan) -> list[str]:
    """The calls of the plan, in order: names of operators, "kernel" of the host, "launch" on a GPU."""
    named = [(s, {Kernel: "kernel", Launch: "launch"}.get(type(s))) for s in plan.steps]
    return [name or str(step.op) for step, name in named if name or isinstance(step, Aten)]


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
    assert calls(plan) == ["launch", "kernel", "aten.index.Tensor", "launch"]
    assert {s.device.type for s in plan.steps if isinstance(s, Alloc)} == {"cpu", "cuda"}


def test_kernels_of_two_devices_are_in_one_plan() -> None:
    plan = cuda_plan(lambda x, y: (torch.sin(x * 2), y * 3 + 1), ((5, 3), torch.float32, "cuda"),
                     ((4,), torch.float32, "cpu"))  # fmt: skip
    assert calls(plan) == ["launch", "kernel"]
    assert plan.library is not None


def test_casts_of_sums_are_parts_of_the_kernel_that_completes_the_sums() -> None:
    def gradients(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        weight, bias = (g.float() * x.float()).sum([0]).bfloat16(), g.float().sum([0]).bfloat16()
        return weight, bias, g.sin().float().sum([0]).bfloat16(), torch.digamma(w)

    plan = cuda_plan(gradients, *[((4096, 768), torch.bfloat16, "cuda")] * 2, ((5, 3), torch.float32, "cuda"))
    names = [s.kernel.partition("_nest")[2] for s in plan.steps if isinstance(s, Launch)]
    assert names == ["0", "0_finish0"]


def test_an_operation_without_a_triton_form_becomes_an_operator() -> None:
    plan = cuda_plan(lambda x: torch.sin(torch.digamma(x * 2)) + 1, ((5, 3), torch.float32, "cuda"))
    assert calls(plan) == ["launch", "aten.digamma.default", "launch"]


def test_binaries_are_read_from_the_cache_without_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "cache_dir", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    plan = cuda_plan(lambda x: (x * 2).sum([0]), ((500, 300), torch.float32, "cuda"))
    triton_build.build(plan, lambda device: 90)
    made = plan.binaries
    launches = [s for s in plan.steps if isinstance(s, Launch)]
    assert list(made) == [s.kernel for s in launches]
    assert len(launches) == 2  # partial sums go through a workspace
    for step in launches:
        binary = made[step.kernel]
        assert binary.image.startswith(b"\x7fELF")
        assert binary.parameters[: len(step.types)] == ("u64",) * len(step.types)
        assert binary.threads == 32 * step.constants["num_warps"]

    def compiled(*_: Any) -> Any:
        raise AssertionError("compiled again")

    monkeypatch.setattr(triton_build.triton_compile, "compiled", compiled)
    triton_build.build(plan, lambda device: 90)
    assert plan.binaries == made
    with pytest.raises(AssertionError, match="compiled again"):
        triton_build.build(plan, lambda device: 80)


def test_a_binary_for_any_addresses_is_another_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr(triton_build, "capability_of", lambda device: 90)
    plan = cuda_plan(lambda x: x * 2, ((4096,), torch.bfloat16, "cuda"))
    (step,) = (s for s in plan.steps if isinstance(s, Launch))
    whole = triton_build.binary_of(triton_build.compiled(plan.module, step, 90))
    anywhere = triton_build.unaligned(plan, step.kernel)
    assert anywhere.parameters == whole.parameters
    assert anywhere.image != whole.image


def test_equal_kernels_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's name, its place in a group and its comments do not count, in one graph and in another."""
    monkeypatch.setattr(config, "cache_dir", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    made: list[str] = []
    real = triton_build.triton_compile.compiled
    monkeypatch.setattr(triton_build.triton_compile, "compiled", lambda job: (made.append(job.kernel), real(job))[1])

    def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = (x @ w).relu()
        return x

    shapes = ((256, 256), torch.float32, "cuda"), ((256, 256), torch.float32, "cuda")
    plan = cuda_plan(layers, *shapes)
    triton_build.build(plan, lambda device: 90)
    assert len(plan.binaries) == 3 and len(made) == 1 and re.fullmatch("pyc_relu_[0-9a-f]{8}", made[0])
    assert {b.entry for b in plan.binaries.values()} == set(made)
    other = cuda_plan(lambda x, w: (w @ x).relu().cumsum(0), *shapes)
    triton_build.build(other, lambda device: 90)
    assert len(made) == 1
    cast = cuda_plan(lambda x, w: (x @ w).relu().bfloat16(), *shapes)
    triton_build.build(cast, lambda device: 90)
    assert len(made) == 2
