"""A `Schedule` as one C++ translation unit.

In: the schedule.  Out: `CppSource(text, symbols)`: a function per kernel group,

    extern "C" int64_t <symbol>(void** ptrs, const int64_t* scalars, int32_t threads);

whose pointers are the group's reads, then its writes, and whose scalars are the values of its size symbols.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pycompiler.codegen.cpp.body import Function
from pycompiler.codegen.cpp.nest import NestWriter, is_serial, nest_work
from pycompiler.codegen.cpp.types import Unsupported, ctype
from pycompiler.ir.kernel import KernelGroup, Nest, Schedule, loads
from pycompiler.ir.loops import Buffer

__all__ = ["CppSource", "Unsupported", "generate"]

PARALLEL_WORK = 1 << 15  # element operations below which threads do not pay


@dataclass(frozen=True)
class CppSource:
    text: str
    symbols: tuple[str, ...]


def generate(schedule: Schedule) -> CppSource:
    """Raises Unsupported when something has no C++ form.  Kernels that do the same (layers of a model) share one
    function: `KernelGroup.symbol` is set to its name."""
    parts = ['#include "pyc_prelude.h"', ""]
    symbols: dict[str, str] = {}
    for group in schedule.kernels:
        head, body = write_function(group, schedule.buffers)
        key = "\n".join(line for line in [*head, *body] if not line.lstrip().startswith("//"))
        if key not in symbols:
            symbols[key] = group.name
            title = (
                f'extern "C" PYC_EXPORT int64_t {group.name}(void** ptrs, const int64_t* scalars, int32_t threads) {{'
            )
            parts += [*describe(group, schedule.buffers), title, *head, *body, "}", ""]
        group.symbol = symbols[key]
    return CppSource("\n".join(parts), tuple(symbols.values()))


def describe(group: KernelGroup, buffers: Mapping[str, Buffer]) -> list[str]:
    """Comment lines: what the pointers are."""
    lines = []
    for k, name in enumerate(group.pointers):
        b = buffers[name]
        lines.append(f"// p{k}: {name} {b.dtype} {list(b.shape)} ({list(b.stride)})".replace("torch.", ""))
    return lines


def write_function(group: KernelGroup, buffers: Mapping[str, Buffer]) -> tuple[list[str], list[str]]:
    """(declarations, statements); neither says which buffers and sizes they are for, beyond what the code needs."""
    function = Function(buffers, {name: f"p{k}" for k, name in enumerate(group.pointers)})
    body: list[str] = []
    for region in regions(group):
        body += write_region(function, region)
    written = set(group.writes)
    head = []
    for k, name in enumerate(group.pointers):
        t = ctype(buffers[name].dtype).storage
        const = "" if name in written else "const "
        head.append(f"    {const}{t}* PYC_RESTRICT const p{k} = ({const}{t}*)ptrs[{k}];")
    head += [f"    const int64_t {s} = scalars[{k}];" for k, s in enumerate(group.scalars)]
    head.append("    int64_t error = 0;")
    return head, [*indent(body), "    return error;"]


def indent(lines: list[str]) -> list[str]:
    return ["    " + line if not line.startswith("#") else line for line in lines]


def regions(group: KernelGroup) -> list[list[Nest]]:
    """Runs of nests that do not depend on each other: the threads need not wait in between.  (Two that write one
    buffer, and do not add, write different parts of it.)"""
    found: list[list[Nest]] = []
    written: set[str] = set()
    for nest in group.nests:
        reads = {name for s in nest.stages for name, _ in loads(s.loop)}
        writes = {name for s in nest.stages for name in s.outputs}
        serial = is_serial(nest)
        if not found or serial or reads & written or is_serial(found[-1][-1]):
            found.append([])
            written = set()
        found[-1].append(nest)
        written |= writes
    return found


def write_region(function: Function, nests: list[Nest]) -> list[str]:
    works = [nest_work(n) for n in nests]
    known = [w for w in works if w is not None]
    parallel = (len(known) < len(works) or sum(known) >= PARALLEL_WORK) and not is_serial(nests[0])
    codes = [NestWriter(function, n, parallel).write() for n in nests]
    lines = [line for c in codes for line in c.shared]
    body = [line for c in codes for line in (*c.comments, *c.body)]
    if parallel:
        error = " reduction(|:error)" if function.may_fail else ""
        body = [f"#pragma omp parallel num_threads(threads) if(threads > 1){error}", "{", *indent(body), "}"]
    return [*lines, *body, *(line for c in codes for line in c.finish)]
