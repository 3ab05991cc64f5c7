"""The compiler for one functional ATen graph: lowering → scheduling → codegen → runtime.

In: a graph whose nodes have `meta["val"]`.  Out: `_native.Plan`, a callable of the graph's inputs.

Example: `compile_aten(gm, inputs)(*tensors)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from pycompiler import _native, config, lowering, scheduling
from pycompiler.codegen import cpp
from pycompiler.errors import CompileError
from pycompiler.ir import compile_names, phases, target
from pycompiler.ir.generated_source import forward_of
from pycompiler.ir.kernel import Schedule, Stage, Unsupported, loads
from pycompiler.ir.loops import Program
from pycompiler.ir.phases import phase
from pycompiler.ir.plan import Plan
from pycompiler.ir.printer import print_loops, print_order
from pycompiler.ir.verify import verify
from pycompiler.logs import artifact, stage
from pycompiler.lowering.matmul_padding import padded_columns as padded_columns
from pycompiler.operators.kernel_type_checks import tensors_of
from pycompiler.progress import note_kernels
from pycompiler.runtime import build, cuda_graphs, segments, triton_build
from pycompiler.runtime.plan_builder import make_plan
from pycompiler.runtime.toolchain import NoCompiler
from pycompiler.symbolic.symbols import Specialise, symbols_of
from pycompiler.torch_compat.interrupts import allowed, check

log = stage("native")
log_output = artifact("output_code")
log_kernels = artifact("kernel_code")
log_fused = artifact("ir_post_fusion")
log_schedule = artifact("schedule")
log_loops = artifact("loop_bodies")

STATISTICS = {"aten_fallbacks": 0, "graphs": 0}


UNNAMED = "graph"


def compile_aten(
    gm: fx.GraphModule, example_inputs: Sequence[Any], name: str = UNNAMED
) -> Callable[..., Sequence[Any]]:
    """A functional ATen graph (`meta["val"]` on every node) → the native plan that runs it.

    Under `config.verify_ir` the rules of each stage's result are checked before the next stage.
    Without a C++ compiler, or if a stage fails, the graph runs through ATen, with a warning.
    """
    if segments.needs_segments(gm):
        return segments.segmented(gm, compile_aten, name)
    if any(_is_lazy_input(n) for n in gm.graph.find_nodes(op="placeholder")):
        log.info("graph %s runs through ATen: an input is a lazily conjugated or negated view", name)
        return forward_of(gm)
    if any(_views_sparse(n) for n in gm.graph.nodes):
        log.info("graph %s runs through ATen: a view of a tensor that is not strided", name)
        return forward_of(gm)
    if others := {d for n in gm.graph.nodes if (d := _device_type(n)) not in TARGETS} - {""}:
        log.info("graph %s runs through ATen: tensors on %s", name, ", ".join(sorted(others)))
        return forward_of(gm)
    try:
        # The graph already contains the program's default device; the compiler's own numbers must stay numbers.
        with torch._C.DisableTorchFunction():
            program, plan = planned(gm, name)
        if (title := compile_names.current()) is not None and name == UNNAMED:
            plan.name = str(title)  # for errors and ranges; kernels keep their own names, which make them shareable
        phases.artefact("plan", (plan, program.inputs))
        if log_output.enabled:
            from pycompiler.runtime.output_code import output_code  # imports cffi, which only readers need

            log_output("%s", output_code(plan, program.inputs))
        if plan.module:
            with phase("build"), allowed():
                triton_build.build(plan)
        return _native.Plan(plan, cuda_graphs.of_plan(gm, plan))
    except NoCompiler:
        return forward_of(gm)
    except Specialise as needed:
        if not any(s.is_settled for n in gm.graph.find_nodes(op="placeholder") if (s := symbols_of(n.meta["val"]))):
            raise
        log.info("graph %s runs through ATen: %s", name, needed)
        return forward_of(gm)
    except Exception as e:
        if config.raise_internal_errors:
            raise
        log.warning("graph %s runs through ATen: %s: %s", name, type(e).__name__, e, exc_info=config.verbose)
        STATISTICS["aten_fallbacks"] += 1
        return forward_of(gm)


def planned(gm: fx.GraphModule, name: str) -> tuple[Program, Plan]:
    """(program, plan).

    If a code generator refuses loops, they are retried without fusion.  If it refuses them again, ATen's kernels run
    them, and the rest stays compiled.
    """
    alone, external = frozenset[str](), frozenset[str]()
    while True:
        schedule = scheduled(gm, name, alone, external)
        try:
            plan = TARGETS[device_of(schedule)](schedule, name)
        except Unsupported as refused:
            new = refused.origin - external
            if not new:
                raise
            alone, external = (frozenset(), external | new) if new <= alone else (alone | new, external)
            log.info("graph %s, %s: %s", name, ", ".join(sorted(new)), refused)
            continue
        note_kernels(len(schedule.kernels))
        if config.verify_ir:
            from pycompiler.runtime.rules import check_plan  # imports cffi

            check_plan(plan)
        return schedule.program, plan


def scheduled(gm: fx.GraphModule, name: str, alone: Set[str], external: Set[str]) -> Schedule:
    with phase("lowering"):
        program = lowering.lower(gm, name=name, external=external)
    phases.artefact("program", program)
    if config.verify_ir:
        verify(program)
    check()
    with phase("scheduling"):
        schedule = scheduling.schedule(program, target.of_program(program, config.threads), alone)
    phases.artefact("schedule", schedule)
    for log, text in ((log_fused, str), (log_schedule, print_order), (log_loops, print_loops)):
        if log.enabled:
            log("%s\n%s", name, text(schedule))
    if config.verify_ir:
        from pycompiler.scheduling.rules import check_schedule

        check_schedule(schedule)
    return schedule


def _is_lazy_input(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.is_neg() or value.is_conj())


def _views_sparse(node: fx.Node) -> bool:
    """Whether a call returns a view of a tensor without strided memory; plans only support views of strided memory."""
    if not (isinstance(node.target, torch._ops.OpOverload) and node.target.is_view):
        return False
    found = (t for n in (node, *node.all_input_nodes) for t in tensors_of(n.meta.get("val")))
    return all(t.layout is not torch.strided for t in found)


def _device_type(node: fx.Node) -> str:
    value = node.meta.get("val")
    return value.device.type if isinstance(value, torch.Tensor) else ""


def device_of(schedule: Schedule) -> str:
    """The device type of the graph: the device of its kernels that is not the host, or the host."""
    for group in schedule.kernels:
        for nest in group.nests:
            places = {str(schedule.buffers[name].device) for s in nest.stages for name in touched(s)}
            if len(places) > 1:
                raise Unsupported(f"a kernel on {', '.join(sorted(places))}", nest.origin)
    devices = {schedule.buffers[b].device.type for k in schedule.kernels for b in k.pointers} or {"cpu"}
    if len(devices - {"cpu"}) > 1 or not devices <= TARGETS.keys():
        raise CompileError(f"kernels on {', '.join(sorted(devices))}; expected one of {', '.join(sorted(TARGETS))}")
    return max(devices, key=lambda d: d != "cpu")


def touched(stage: Stage) -> list[str]:
    return [*stage.outputs, *(name for name, _ in loads(stage.loop))]


def host_library(schedule: Schedule, name: str) -> build.BuiltLibrary | None:
    with phase("codegen"):
        source = cpp.generate(schedule)
    log_kernels("%s\n%s", name, source.text)
    with phase("build"), allowed():
        return build.build(source.text, source.symbols, name) if source.symbols else None


def plan_for_cpu(schedule: Schedule, name: str) -> Plan:
    """A plan with C++ kernels in a shared library."""
    library = host_library(schedule, name)
    with phase("plan"):
        return make_plan(schedule, library)


def plan_for_cuda(schedule: Schedule, name: str) -> Plan:
    """A plan with Triton kernels, and host kernels in a shared library."""
    from pycompiler.codegen import triton

    on_host = [k for k in schedule.kernels if all(schedule.buffers[b].device.type == "cpu" for b in k.pointers)]
    library = (
        host_library(replace(schedule, steps=list(on_host), frees=[], target=target.cpu()), name) if on_host else None
    )
    with phase("codegen"):
        module = triton.generate(replace(schedule, steps=[s for s in schedule.steps if s not in on_host], frees=[]))
    log_kernels("%s\n%s", name, module)
    with phase("plan"):
        return make_plan(schedule, library, module)


# Device type of the kernels → function that builds the plan.
TARGETS: dict[str, Callable[[Schedule, str], Plan]] = {"cpu": plan_for_cpu}
if torch.version.hip is None:  # under ROCm, torch calls AMD's GPUs "cuda"
    TARGETS["cuda"] = plan_for_cuda
