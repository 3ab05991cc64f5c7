"""Frames, ATen graphs with their kernels, and memory as plain data (JSON).

In: records and artefacts of `ir.phases`.  Out: dicts of strs and numbers, which `debug/document.py` collects.
"""

from __future__ import annotations

import itertools
import linecache
import os
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import fx

from pycompiler.debug.render import code_of
from pycompiler.ir.guards import Guard, UserFrame, deref, own_place
from pycompiler.ir.kernel import KernelGroup, Schedule
from pycompiler.ir.loops import Buffer, Extern
from pycompiler.ir.plan import Aten, Convolution, GpuProduct, Kernel, Launch, Pack, Plan, Product
from pycompiler.pipeline.records import EagerRecord, GraphRecord, GuardDifference, RecompileRecord
from pycompiler.symbolic.hints import hinted, likely_product

Data = dict[str, Any]
LONGEST = 200_000  # most characters of a generated source


def shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n... {len(text) - LONGEST} more characters: PYCOMPILER_LOGS=output_code prints all\n"


def place(frame: UserFrame) -> Data:
    return {"file": frame.filename, "line": frame.lineno, "function": frame.function, "text": frame.line}


def stack(frames: Sequence[UserFrame]) -> list[Data]:
    return [place(frame) for frame in frames]


def line_of(frames: Sequence[UserFrame], file: str) -> int | None:
    """The innermost line of `file` in a stack."""
    return next((f.lineno for f in reversed(frames) if f.filename == file), None)


def guard(made: Guard) -> Data:
    return {"kind": made.kind, "text": str(made), "stack": stack(made.user)}


def guards(made: Sequence[Guard]) -> list[Data]:
    """`owner`: class and source of the nearest object of a class of the program or a library that the guard reads from."""
    classes = {g.source: cls for g in made if g.kind == "type_is" and (cls := deref(g.arg)) is not None}
    found = []
    for g in made:
        reads = [] if g.kind == "global_state" else list(g.source.reads())
        known = next((s for s in reversed(reads) if s in classes and classes[s].__module__ not in PLAIN_MODULES), None)
        owner = [] if known is None else [classes[known].__name__, known.name]
        found.append({**guard(g), "source": g.source.name if reads else "", "owner": owner, "others": _alike(g)})
    return found


def _alike(made: Guard) -> int:
    """The number of further sources of a guard that differ from its source only in an index."""
    own = re.sub(r"\[\d+\]", "[]", made.source.name) if made.others else ""
    names = {source.name for source in made.others} - {made.source.name}
    return sum(re.sub(r"\[\d+\]", "[]", name) == own for name in names)


PLAIN_MODULES = ("builtins", "collections", "types")  # modules of classes whose objects are parts of other objects


def lines_of(code: types.CodeType) -> list[tuple[int, str]]:
    """The lines of a function, numbered; empty strs if the source is not available."""
    first = code.co_firstlineno
    last = max((line for *_, line in _all_lines(code) if line is not None), default=first)
    return [(n, linecache.getline(code.co_filename, n).rstrip("\n")) for n in range(first, last + 1)]


def _all_lines(code: types.CodeType) -> Iterable[tuple[int, int, int | None]]:
    yield from code.co_lines()
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _all_lines(const)


def function(code: types.CodeType) -> Data:
    return {
        "function": code.co_qualname,
        "file": code.co_filename,
        "line": code.co_firstlineno,
        "parameters": list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]),
        "source": lines_of(code),
    }


PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def is_library(file: str) -> bool:
    """Whether a file is no part of the program; polyfills of this package are not."""
    return "site-packages" in file or (file.startswith("<") and file != "<stdin>") or file.startswith(PACKAGE)


def frame(record: GraphRecord) -> Data:
    """A frame.  `inlined`: the program's functions that became part of the frame."""
    code, broke = record.code, record.broke
    return {
        **function(code),
        "hooked": record.hooked,
        "inlined": [function(c) for c in record.inlined if c is not code and not is_library(c.co_filename)],
        "seconds": record.seconds,
        "operators": sum(n.op in ("call_function", "call_method") for n in record.graph.graph.nodes)
        if record.graph
        else 0,
        "graph": None if record.graph is None else shortened(code_of(record.graph)[0]),
        "guards": guards(record.guards),
        "break": broke
        and {"kind": broke.kind, "reason": broke.reason, "hint": broke.hint, "stack": stack(broke.stack)},
    }


def recompile(record: RecompileRecord) -> Data:
    code = record.code
    return {"function": code.co_qualname, "file": code.co_filename, "line": code.co_firstlineno,
            "reasons": [text.strip() for text in record.reasons],
            "differences": [_difference(found) for found in record.differences]}  # fmt: skip


def _difference(found: GuardDifference) -> Data:
    """`stack`: where the guard was made."""
    made = found.guard
    return {**guard(made), "source": made.source.name, "aspects": list(found.aspects), "seen": found.seen}


def eager(record: EagerRecord) -> Data:
    code = record.code
    return {"function": code.co_qualname, "file": code.co_filename, "line": code.co_firstlineno,
            "kind": record.kind, "reason": record.reason}  # fmt: skip


def hint(node: fx.Node, why: str) -> Data:
    user = node.meta.get("user") or ()
    return {"node": node.name, "operator": str(node.target), "why": why, "place": own_place(user) if user else ""}


# ATen graphs --------------------------------------------------------------------------------------------------
def graph(made: Mapping[str, Any], unfused: Sequence[tuple[str, ...]]) -> Data:
    """One graph, from its artefacts: nodes, steps in order, memory, and pairs of kernels that were not fused, with reasons."""
    found: Data = {"nodes": nodes(made["fx_graph"])}
    if "plan" not in made:
        return {**found, "steps": [], "memory": {}, "unfused": [], "code": ""}
    schedule: Schedule = made["schedule"]
    plan: Plan = made["plan"][0]
    with hinted(schedule.program.hints):
        sized: Data = {
            "steps": [_step(step, schedule, plan) for step in schedule.steps],
            "memory": memory(schedule, plan),
        }
    return {
        **found,
        **sized,
        "unfused": not_fused(schedule, unfused),
        "code": shortened(plan.source or plan.module),
    }


def nodes(gm: fx.GraphModule) -> list[Data]:
    """`inputs`: positions in this list of the nodes that a node reads."""
    found: list[Data] = []
    at: dict[fx.Node, int] = {}
    for node in gm.graph.nodes:
        if node.op == "call_function":
            user = node.meta.get("user") or ()
            found.append({"name": node.name, "operator": str(node.target), "of": node.meta.get("source", ""),
                          "place": own_place(user) if user else "",
                          "inputs": [at[n] for n in node.all_input_nodes if n in at]})  # fmt: skip
            at[node] = len(at)
    return found


def _bytes(buffer: Buffer) -> int | None:
    """Bytes of a buffer; symbolic sizes count with their hints."""
    points = likely_product(buffer.shape)
    return None if points is None else points * buffer.dtype.itemsize


def _step(step: KernelGroup | Extern, schedule: Schedule, plan: Plan) -> Data:
    """`device`: the names under which a GPU's profiler knows the kernels of the step."""
    if isinstance(step, Extern):
        by_engine = "convolution" if step.is_convolution else "matrix product"
        name = by_engine if step.by_engine else f"ATen {step.op}"
        return {"name": name, "kind": "aten", "operators": list(step.origin), "reads": None,
                "writes": _sum(b for b in step.out if b), "work": None}  # fmt: skip
    return {
        "name": f"kernel {step.name}",
        "kind": "kernel",
        "operators": list(dict.fromkeys(o for nest in step.nests for o in nest.origin)),
        "reads": _sum(schedule.buffers[name] for name in step.reads if name in schedule.buffers),
        "writes": _sum(schedule.buffers[name] for name in step.writes if name in schedule.buffers),
        "work": step.work,
        "device": [plan.binaries[k.name].entry for k in step.kernels or () if k.name in plan.binaries],
    }


def _sum(buffers: Iterable[Buffer]) -> int | None:
    sizes = [_bytes(b) for b in buffers]
    return None if None in sizes else sum(n or 0 for n in sizes)


def memory(schedule: Schedule, plan: Plan) -> Data:
    """Bytes held by the graph itself after each step, without inputs and constants."""
    fixed = {b.name for b in schedule.program.inputs if b} | set(schedule.program.constants)
    alive: dict[str, int] = {}
    after = []
    for step, frees in zip(schedule.steps, schedule.frees or [[]] * len(schedule.steps), strict=True):
        written = step.writes if isinstance(step, KernelGroup) else [b.name for b in step.out if b]
        for name in written:
            home = schedule.storage.get(name, name)
            if home not in fixed and name not in schedule.stores:
                alive[home] = _bytes(schedule.buffers[home]) or 0
        after.append(sum(alive.values()))
        for name in frees:
            alive.pop(schedule.storage.get(name, name), None)
    return {
        "after": after,
        "peak": max(after, default=0),
        "inputs": _sum(b for b in schedule.program.inputs if b),
        "constants": sum(t.numel() * t.itemsize for t in plan.constants.values()),
        "library": os.path.getsize(plan.library) if plan.library and os.path.exists(plan.library) else 0,
    }


def not_fused(schedule: Schedule, unfused: Sequence[tuple[str, ...]]) -> list[Data]:
    """For each pair of kernels the reason why they were not fused: the last reason found between their operators."""
    where: dict[str, str] = {}
    for step in schedule.kernels:
        where.update((o, step.name) for nest in step.nests for o in nest.origin)
    found: dict[tuple[str, str], str] = {}
    for left, right, why in unfused:
        kernels = {where[o] for o in left.split() if o in where}, {where[o] for o in right.split() if o in where}
        for a in kernels[0]:
            for b in kernels[1] - {a}:
                found[min(a, b), max(a, b)] = why
    rank = {step.name: k for k, step in enumerate(schedule.kernels)}
    pairs = sorted(found.items(), key=lambda item: [rank[name] for name in item[0]])
    return [{"kernels": list(pair), "why": why} for pair, why in pairs]


def parts(schedule: Schedule) -> list[int]:
    """For each step of the schedule, the number of steps of the plan, without allocations, views and frees."""
    return [1 if isinstance(s, Extern) or s.kernels is None else len(s.kernels) for s in schedule.steps]


def step_times(plan: Plan, each: Sequence[float], parts: Sequence[int]) -> tuple[list[float], float]:
    """Nanoseconds of each step of a schedule, and of the rest.  All is rest if steps cannot be matched."""
    work, packing = [], 0.0
    for step, spent in zip(plan.steps, each, strict=True):
        if isinstance(step, Pack):  # a part of the call that reads the packed weight
            packing += spent
        elif isinstance(step, (Kernel, Product, Convolution, GpuProduct, Aten, Launch)):
            work.append(spent + packing)
            packing = 0.0
    if len(work) != sum(parts):
        return [], sum(each)
    ends = list(itertools.accumulate(parts))
    times = [sum(work[end - n : end]) for end, n in zip(ends, parts, strict=True)]
    return times, sum(each) - sum(work)
