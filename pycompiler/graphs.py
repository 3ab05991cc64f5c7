"""The compiler for one functional ATen graph: lowering → scheduling → codegen → runtime.

In: a graph whose nodes have `meta["val"]`.  Out: `_native.Plan`, a callable of the graph's inputs.
Example: `compile_aten(gm, inputs)(*tensors)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from pycompiler import _native, config, lowering, scheduling
from pycompiler.codegen import cpp
from pycompiler.errors import CompileError
from pycompiler.ir.interrupts import allowed
from pycompiler.ir.kernel import Schedule
from pycompiler.ir.plan import Plan
from pycompiler.ir.verify import verify
from pycompiler.logs import artifact, stage
from pycompiler.progress import note_kernels, timed
from pycompiler.runtime import build, triton_build
from pycompiler.runtime.plan_builder import make_plan
from pycompiler.runtime.rules import check_plan
from pycompiler.runtime.toolchain import NoCompiler
from pycompiler.scheduling.rules import check_schedule

log = stage("dynamo")
log_aot = artifact("aot_graphs")
log_output = artifact("output_code")

STATISTICS = {"aten_fallbacks": 0, "graphs": 0}


def compile_aten(
    gm: fx.GraphModule, example_inputs: Sequence[Any], name: str = "graph"
) -> Callable[..., Sequence[Any]]:
    """A functional ATen graph (`meta["val"]` on every node) → the native plan that runs it.

    Under `config.verify_ir` the rules of each stage's result are checked before the next stage sees it.
    Without a C++ compiler, or when a stage fails, the graph runs through ATen, with a warning.
    """
    if log_aot.enabled:
        log_aot(f"{name}\n{gm.print_readable(print_output=False)}")
    try:
        with timed("lowering"):
            program = lowering.lower(gm, name=name)
        if config.verify_ir:
            verify(program)
        with timed("scheduling"):
            schedule = scheduling.schedule(program)
        if config.verify_ir:
            check_schedule(schedule)
        note_kernels(len(schedule.kernels))
        plan = TARGETS[device_of(schedule)](schedule, name)
        if config.verify_ir:
            check_plan(plan)
        if log_output.enabled:
            from pycompiler.runtime.output_code import output_code  # brings cffi, which only a reader needs

            log_output(output_code(plan, program.inputs))
        return _native.Plan(plan)
    except NoCompiler:
        return gm.forward  # type: ignore[no-any-return]
    except Exception as e:
        if config.raise_internal_errors:
            raise
        log.warning("graph %s runs through ATen: %s: %s", name, type(e).__name__, e, exc_info=config.verbose)
        STATISTICS["aten_fallbacks"] += 1
        return gm.forward  # type: ignore[no-any-return]


def device_of(schedule: Schedule) -> str:
    """The type of the one device that the kernels of a graph run on."""
    devices = {schedule.buffers[b].device.type for k in schedule.kernels for b in k.pointers} or {"cpu"}
    if len(devices) > 1 or not devices <= TARGETS.keys():
        raise CompileError(f"kernels on {', '.join(sorted(devices))}; expected one of {', '.join(sorted(TARGETS))}")
    return devices.pop()


def plan_for_cpu(schedule: Schedule, name: str) -> Plan:
    """C++ kernels in a shared library."""
    with timed("codegen"):
        source = cpp.generate(schedule)
    with timed("build"), allowed():
        library = build.build(source.text, source.symbols, name) if source.symbols else None
    return make_plan(schedule, library)


def plan_for_cuda(schedule: Schedule, name: str) -> Plan:
    """Triton kernels in a Python module."""
    from pycompiler.codegen import triton  # only where there is a GPU: importing Triton takes a second

    with timed("codegen"):
        source = triton.generate(schedule)
    with timed("build"):
        library = triton_build.build(source.text, source.symbols) if source.symbols else None
    plan = make_plan(schedule, library)
    plan.launcher = "triton"
    return plan


# Device type of the kernels → how they are made.
TARGETS: dict[str, Callable[[Schedule, str], Plan]] = {"cpu": plan_for_cpu, "cuda": plan_for_cuda}
