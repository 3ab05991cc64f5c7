"""Printed form of a `Program`, for people, logs and golden tests.

In: a `Program` (or one node).  Out: a str such as

    program graph(in0: f32[8, 4])
    loop b0: f32[8] (1) [i0: 8; sum r0: 4]
      0 load in0 [4*i0 + r0]             f32
      -> b0[i0] = sum 0
    extern b1: f32[8, 4] (4, 1) = aten.mm.default(in0[8, 8; 8, 1], in1[8, 4; 4, 1])
    return b0[8; 1]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pycompiler.ir.kernel import KernelGroup, Schedule
from pycompiler.ir.loops import Buffer, Loop, Node, Op, Program, Ref

_SHORT = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.bool: "bool",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8",
    torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip


def dtype_name(dtype: torch.dtype) -> str:
    return _SHORT.get(dtype) or str(dtype).removeprefix("torch.")


def _list(items: Sequence[object]) -> str:
    return ", ".join(str(x) for x in items)


def print_buffer(b: Buffer | None) -> str:
    if b is None:
        return "_"
    where = "" if b.device.type == "cpu" else f" on {b.device}"
    return f"{b.name}: {dtype_name(b.dtype)}[{_list(b.shape)}] ({_list(b.stride)}){where}"


def print_value(x: Any) -> str:
    """An argument of an Extern, or an output."""
    if isinstance(x, Ref):
        offset = "" if x.offset == 0 else f" + {x.offset}"
        return f"{x.buffer}[{_list(x.shape)}; {_list(x.stride)}{offset}]"
    if isinstance(x, list | tuple):
        return f"[{', '.join(print_value(v) for v in x)}]"
    return repr(x)


def print_op(position: int, op: Op) -> str:
    args = "".join(f" {a}" for a in op.args)
    if op.name in ("load", "masked_load"):
        attrs = f" {op.attrs[0]} [{op.attrs[1]}]"
    else:
        attrs = "".join(f" {a}" for a in op.attrs)
    return f"    {position} {op.name}{args}{attrs}".ljust(48) + f" {dtype_name(op.dtype)}"


def print_loop(node: Loop) -> str:
    space = [f"{v}: {n}" for v, n in zip(node.vars, node.ranges, strict=True)]
    fold = ""
    if node.reduction is not None:
        inner = [f"{v}: {n}" for v, n in zip(node.reduction.vars, node.reduction.ranges, strict=True)]
        fold = f"; {node.reduction.kind} {', '.join(inner)}"
    into = f" into {node.init}" if node.init else ""
    lines = [f"loop {', '.join(print_buffer(b) for b in node.out)} [{', '.join(space)}{fold}]{into}"]
    lines += [print_op(i, op) for i, op in enumerate(node.body)]
    sign = "+=" if node.store_mode == "add" else "="
    kind = f"{node.reduction.kind} " if node.reduction is not None else ""
    values = [f"{kind}{r}" for r in node.results]
    values += [f"{values[0]} .{k}" for k in range(len(values), len(node.out))]
    lines += [f"    -> {b.name}[{index}] {sign} {value}"
              for b, index, value in zip(node.out, node.store_index, values, strict=False)]  # fmt: skip
    return "\n".join(lines)


def print_node(node: Node) -> str:
    if isinstance(node, Loop):
        return print_loop(node)
    args = [print_value(a) for a in node.args] + [f"{k}={print_value(v)}" for k, v in node.kwargs.items()]
    mutates = f" mutates {', '.join(node.mutates)}" if node.mutates else ""
    return f"extern {', '.join(print_buffer(b) for b in node.out)} = {node.op}({', '.join(args)}){mutates}"


def print_program(program: Program) -> str:
    """The whole program; nodes in order."""
    constants = [f"constant {name}: {dtype_name(t.dtype)}{list(t.shape)}" for name, t in program.constants.items()]
    head = f"program {program.name}({', '.join(print_buffer(b) for b in program.inputs)})"
    outputs = ", ".join(f"input {o}" if isinstance(o, int) else print_value(o) for o in program.outputs)
    return "\n".join([head, *constants, *(print_node(n) for n in program.nodes), f"return {outputs}"])


def print_loops(schedule: Schedule) -> str:
    """The loops of every kernel after fusion."""
    lines = []
    for group in schedule.kernels:
        lines.append(f"kernel {group.name}: loops")
        lines += [print_loop(stage.loop) for stage in group.stages()]
    return "\n".join(lines)


def print_order(schedule: Schedule) -> str:
    """Kernels and ATen calls in order, one line each, and the buffers that share memory."""
    lines = []
    for k, step in enumerate(schedule.steps):
        if isinstance(step, KernelGroup):
            text = f"kernel {step.name}({', '.join(step.reads)}) -> {', '.join(step.writes)}"
        else:
            text = f"extern {step.op} -> {', '.join(b.name if b else '_' for b in step.out)}"
        lines.append(f"{k}. {text}")
        if schedule.frees and schedule.frees[k]:
            lines.append(f"   free {', '.join(schedule.frees[k])}")
    shared = [f"{name} in the memory of {other}" for name, other in schedule.storage.items() if name != other]
    return "\n".join([*lines, *shared])
