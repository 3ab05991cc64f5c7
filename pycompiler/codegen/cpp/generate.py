"""A `Schedule` as one C++ translation unit.

In: the schedule.  Out: `CppSource(text, symbols)`: a function per kernel group,

    extern "C" int64_t <symbol>(void** ptrs, const int64_t* scalars, int32_t threads);

whose pointers are the group's reads, then its writes, and whose scalars are the values of its size symbols.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pycompiler.codegen.cpp.body import Function, pointer
from pycompiler.codegen.cpp.nest import NestWriter
from pycompiler.codegen.cpp.types import Unsupported, ctype
from pycompiler.ir.kernel import KernelGroup, Schedule
from pycompiler.ir.loops import Buffer

__all__ = ["CppSource", "Unsupported", "generate"]


@dataclass(frozen=True)
class CppSource:
    text: str
    symbols: tuple[str, ...]


def generate(schedule: Schedule) -> CppSource:
    """Raises Unsupported when something has no C++ form."""
    parts = ['#include "pyc_prelude.h"', ""]
    for group in schedule.kernels:
        parts += [*write_function(group, schedule.buffers), ""]
    return CppSource("\n".join(parts), tuple(g.name for g in schedule.kernels))


def write_function(group: KernelGroup, buffers: Mapping[str, Buffer]) -> list[str]:
    function = Function(buffers)
    body: list[str] = []
    for nest in group.nests:
        body += NestWriter(function, nest).write()
    written = set(group.writes)
    head = [f'extern "C" PYC_EXPORT int64_t {group.name}(void** ptrs, const int64_t* scalars, int32_t threads) {{']
    for k, name in enumerate(group.pointers):
        t = ctype(buffers[name].dtype).storage
        const = "" if name in written else "const "
        b = buffers[name]
        shape = f"  // {list(b.shape)} ({list(b.stride)})"
        head.append(f"    {const}{t}* PYC_RESTRICT const {pointer(name)} = ({const}{t}*)ptrs[{k}];{shape}")
    head += [f"    const int64_t {s} = scalars[{k}];" for k, s in enumerate(group.scalars)]
    head.append("    int64_t error = 0;")
    return [*head, *("    " + line if not line.startswith("#") else line for line in body), "    return error;", "}"]
