"""The rules of a legal `Plan`: checked in all tests and under `config.verify_ir`.

In: a plan.  Out: nothing, or `PlanError` naming each violated rule.  Example:

    check_plan(make_plan(schedule, library))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pycompiler.ir.plan import (
    READS,
    Alloc,
    Aten,
    Compute,
    Convolution,
    CountVersions,
    Free,
    GpuProduct,
    Kernel,
    Launch,
    Pack,
    Plan,
    Product,
    Step,
    View,
)
from pycompiler.symbolic.expr import Expr


class PlanError(Exception):
    """A bug in the runtime: the plan is illegal."""


def check_plan(plan: Plan) -> None:
    """Raises PlanError when a rule is violated."""
    found = [f"{rule.__name__}: {text}" for rule in RULES for text in rule(plan)]
    if found:
        raise PlanError("\n".join([*found, *(f"{k} {step}" for k, step in enumerate(plan.steps))]))


def made_by(step: Step) -> tuple[int, ...]:
    """The slots that a step fills."""
    if isinstance(step, Alloc | View | Pack):
        return (step.slot,)
    return tuple(s for s in step.out if s is not None) if isinstance(step, Aten) else ()


def slots_are_filled_when_read(plan: Plan) -> Iterator[str]:
    """A slot is filled once, read and freed only afterwards, and not read after it is freed."""
    full = set(range(plan.n_inputs)) | set(plan.constants)
    for k, step in enumerate(plan.steps):
        for slot in (*READS[type(step)](step), *(step.slots if isinstance(step, Free) else ())):
            if slot not in full:
                yield f"step {k} uses slot {slot}, which is empty"
        for slot in made_by(step):
            if slot in full or not 0 <= slot < plan.n_slots:
                yield f"step {k} fills slot {slot}, which is full or none of {plan.n_slots}"
            full.add(slot)
        if isinstance(step, Free):
            full -= set(step.slots)
    for output in plan.outputs:
        if isinstance(output, int) and output not in full:
            yield f"output slot {output} is empty at the end"


def inputs_and_constants_are_not_freed(plan: Plan) -> Iterator[str]:
    for k, step in enumerate(plan.steps):
        kept = {*range(plan.n_inputs), *plan.constants}
        if isinstance(step, Free) and not kept.isdisjoint(step.slots):
            yield f"step {k} frees an input or a constant"


def versions_are_counted_before_writes(plan: Plan) -> Iterator[str]:
    """Versions are counted for inputs only, since the program can observe a write to an input."""
    for k, step in enumerate(plan.steps):
        if isinstance(step, CountVersions) and any(s >= plan.n_inputs for s in step.slots):
            yield f"step {k} counts versions of a slot that is not an input"


def kernels_are_known(plan: Plan) -> Iterator[str]:
    symbols = set(plan.symbols)
    for k, step in enumerate(plan.steps):
        symbols.update([step.name] if isinstance(step, Compute) else ())
        sizes: tuple[object, ...] = ()
        if isinstance(step, Kernel):
            sizes = step.scalars
            if plan.library is None:
                yield f"step {k} calls {step.symbol}, but there is no library"
        if isinstance(step, Product | Convolution):
            sizes = step.scalars
        if isinstance(step, GpuProduct) and not _is_sound(step):
            yield f"step {k} is a matrix product of {step.sizes} with the strides {step.strides}"
        if isinstance(step, Launch):
            sizes = (*step.grid, *step.arguments)
            if f"def {step.kernel}(" not in plan.module:
                yield f"step {k} starts {step.kernel}, which the module does not have"
            if len(step.types) != len(step.arguments):
                yield f"step {k} gives {len(step.arguments)} arguments of {len(step.types)} types"
        unknown = {s for e in sizes if isinstance(e, Expr) for s in e.symbols} - symbols
        if unknown:
            yield f"step {k} needs the sizes {sorted(unknown)}"


def _is_sound(step: GpuProduct) -> bool:
    """Whether rows do not overlap, and are contiguous in one direction."""
    _, rows, columns, depth = step.sizes
    left, right, out = step.strides
    fits = [
        (a == 1 and b >= n) or (b == 1 and a >= m)
        for a, b, n, m in ((*left[1:], rows, depth), (*right[1:], depth, columns))
    ]
    return min(step.sizes) > 0 and min(step.offsets) >= 0 and all(fits) and out[1] >= columns


RULES: tuple[Callable[[Plan], Iterator[str]], ...] = (
    slots_are_filled_when_read, inputs_and_constants_are_not_freed, versions_are_counted_before_writes, kernels_are_known,
)  # fmt: skip
