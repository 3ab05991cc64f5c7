"""Hand-made programs, run through scheduling, C++ and a plan; a plan runner of a few lines (ctypes)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from aten_graph import aten_graph
from torch.utils import _pytree as pytree

from pycompiler.codegen.cpp import generate
from pycompiler.ir.kernel import Schedule
from pycompiler.ir.loops import Buffer, Loop, Op, Program, Reduction, Ref
from pycompiler.ir.plan import (
    KERNEL_ERRORS,
    Alloc,
    Aten,
    Convolution,
    CountVersions,
    Expect,
    Free,
    Kernel,
    Pack,
    Plan,
    Product,
    SlotRef,
    View,
)
from pycompiler.ir.target import of_program
from pycompiler.ir.verify import verify
from pycompiler.runtime.build import build
from pycompiler.runtime.plan_builder import make_plan
from pycompiler.scheduling import schedule
from pycompiler.scheduling.rules import check_schedule
from pycompiler.symbolic.expr import Expr
from tests.harness.compare import assert_same

CPU = torch.device("cpu")
f32 = torch.float32


def buffer(name: str, shape: Sequence[int], dtype: torch.dtype = f32, stride: Sequence[int] | None = None) -> Buffer:
    if stride is None:
        stride = torch.empty(tuple(shape), device="meta").stride()
    return Buffer(name, dtype, tuple(map(Expr.of, shape)), tuple(map(Expr.of, stride)), CPU)


def flat(b: Buffer, index: Sequence[Expr]) -> Expr:
    total = Expr.of(0)
    for e, s in zip(index, b.stride, strict=True):
        total = total + Expr.of(e) * s
    return total


class Body:
    """Builds a loop body: `b = Body(); y = b.op("exp", b.load(x, [i, j]))`."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def add(self, op: Op) -> int:
        self.ops.append(op)
        return len(self.ops) - 1

    def load(self, b: Buffer, index: Sequence[Expr]) -> int:
        return self.add(Op("load", (), b.dtype, (b.name, flat(b, index))))

    def const(self, value: Any, dtype: torch.dtype = f32) -> int:
        return self.add(Op("const", (), dtype, (value,)))

    def op(self, name: str, *args: int, dtype: torch.dtype | None = None) -> int:
        return self.add(Op(name, args, dtype or self.ops[args[-1]].dtype))


def syms(prefix: str, n: int) -> tuple[Expr, ...]:
    return tuple(Expr.sym(f"{prefix}{k}") for k in range(n))


def loop(out: Buffer, fill: Callable[..., int], reduce: tuple[str, Sequence[int]] | None = None, **extra: Any) -> Loop:
    """`fill(body, out_indices, fold_indices)` gives the result. Dims of one element get no variable."""
    sizes = [n.as_int() for n in out.shape]
    names = [f"i{k}" for k in range(len(sizes)) if sizes[k] != 1]
    at = [Expr.sym(f"i{k}") if sizes[k] != 1 else Expr.of(0) for k in range(len(sizes))]
    fold = syms("r", len(reduce[1])) if reduce else ()
    body = Body()
    result = fill(body, at, fold)
    reduction = (
        Reduction(reduce[0], tuple(f"r{k}" for k in range(len(fold))), tuple(map(Expr.of, reduce[1])))
        if reduce
        else None
    )
    return Loop((out,), tuple(names), tuple(Expr.of(n) for n in sizes if n != 1), tuple(body.ops), (result,),
                (flat(out, at),), reduction, **extra)  # fmt: skip


def whole(b: Buffer) -> Ref:
    return Ref(b.name, b.shape, b.stride, Expr.of(0))


def program(inputs: Sequence[Buffer], nodes: Sequence[Any], outputs: Sequence[Buffer]) -> Program:
    made = {b.name: b for n in nodes for b in n.out if b is not None} | {b.name: b for b in inputs}
    p = Program(list(inputs), list(nodes), [whole(b) for b in outputs], {}, made, "test")
    verify(p)
    return p


def compile_plan(p: Program) -> tuple[Plan, Schedule]:
    s = schedule(p, of_program(p))
    check_schedule(s)
    source = generate(s)
    library = build(source.text, source.symbols) if source.symbols else None
    return make_plan(s, library), s


def run_plan(plan: Plan, inputs: Sequence[Any], threads: int = 2) -> list[Any]:
    """Executes a plan of static sizes."""
    slots: list[Any] = [None] * plan.n_slots
    slots[: plan.n_inputs] = inputs
    for k, t in plan.constants.items():
        slots[k] = t
    library = ctypes.CDLL(plan.library) if plan.library else None

    def real(x: Any) -> Any:
        if isinstance(x, SlotRef):
            return slots[x.slot]
        return type(x)(real(v) for v in x) if isinstance(x, list | tuple) else x

    for step in plan.steps:
        match step:
            case Alloc():
                slots[step.slot] = torch.empty_strided(step.shape, step.stride, dtype=step.dtype, device=step.device)
                if slots[step.slot].is_floating_point():
                    slots[step.slot].fill_(float("nan"))  # exposes elements that no kernel writes
            case View():
                base = slots[step.base]
                slots[step.slot] = base.as_strided(step.shape, step.stride, base.storage_offset() + step.offset)
            case Kernel():
                pointers = (ctypes.c_void_p * max(1, len(step.slots)))(*[slots[s].data_ptr() for s in step.slots])
                function = library[step.symbol]
                function.restype = ctypes.c_int64
                code = function(pointers, (ctypes.c_int64 * 1)(), ctypes.c_int32(threads))
                if code:
                    kind, text = KERNEL_ERRORS[code]
                    raise kind(text)
            case Product():
                _native.matrix_product([slots[s].data_ptr() for s in step.slots], list(step.scalars), threads)
            case Convolution():
                _native.convolution([slots[s].data_ptr() for s in step.slots], list(step.scalars), threads)
            case Aten():
                result = step.op(*real(step.args), **{k: real(v) for k, v in step.kwargs.items()})
                results = result if isinstance(result, list | tuple) else (result,)
                for slot, value in zip(step.out, results, strict=False):
                    if slot is not None:
                        slots[slot] = value
            case Pack():
                slots[step.slot] = step.op(slots[step.weight], *step.args)
            case Expect():
                assert slots[step.slot].dtype == step.dtype
                assert tuple(slots[step.slot].shape) == step.shape
            case CountVersions():
                for slot in step.slots:
                    torch.autograd.graph.increment_version(slots[slot])
            case Free():
                for slot in step.slots:
                    assert slots[slot] is not None, f"slot {slot} freed twice"
                    slots[slot] = None
            case _:
                raise AssertionError(step)
    return [slots[o] if isinstance(o, int) else o[0] for o in plan.outputs]


def lowered(f: Callable[..., Any], args: Sequence[Any], name: str = "graph") -> Program:
    """The program of a function of tensors."""
    from pycompiler.lowering import lower

    p = lower(aten_graph(f, args), name=name)
    verify(p)
    return p


def build_all(programs: Sequence[Program]) -> list[Plan]:
    """Plans of several programs (of different names) from one compiler call."""
    schedules = [schedule(p, of_program(p)) for p in programs]
    for s in schedules:
        check_schedule(s)
    sources = [generate(s) for s in schedules]
    include = '#include "pyc_prelude.h"'
    parts = [f"namespace n{k} {{\n{s.text.split(chr(10), 1)[1]}\n}}" for k, s in enumerate(sources)]
    library = build("\n".join([include, *parts]))
    return [make_plan(s, library) for s in schedules]


def check(f: Callable[..., Any], args: Sequence[Any], kernels: int | None = None, *, threads: int = 2,
          rtol: float | None = None, atol: float | None = None) -> Schedule:  # fmt: skip
    """Compiled values equal eager's; `kernels`: the required number of kernels."""
    plan, s = compile_plan(lowered(f, args))
    if kernels is not None:
        assert len(s.kernels) == kernels, f"{len(s.kernels)} kernels, expected {kernels}:\n{s}"
    with torch.no_grad():
        want = pytree.tree_leaves(f(*args))
    for got, expected in zip(run_plan(plan, args, threads), want, strict=True):
        half = isinstance(expected, torch.Tensor) and expected.dtype in (torch.bfloat16, torch.float16)
        if rtol is None and atol is None:
            assert_same(got, expected, tolerance=2e-2 if half else None)
        else:
            assert_same(got, expected, tolerance=rtol or 0.0, absolute=atol or 0.0)
    return s


def run(p: Program, *inputs: Any, threads: int = 2) -> list[Any]:
    return run_plan(compile_plan(p)[0], inputs, threads)
