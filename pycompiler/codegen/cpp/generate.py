"""A `Schedule` as one C++ translation unit.

In: the schedule.  Out: `CppSource(text, symbols)`: a function per kernel group,

    extern "C" int64_t <symbol>(void** ptrs, const int64_t* scalars, int32_t threads);

whose pointers are the group's reads, then its writes, and whose scalars are the values of its size symbols.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby

from pycompiler.codegen.cpp.body import Function
from pycompiler.codegen.cpp.nest import NestCode, NestWriter, is_serial, nest_work
from pycompiler.codegen.cpp.parts import join_parts
from pycompiler.codegen.cpp.types import ctype
from pycompiler.ir.kernel import KernelGroup, Nest, Schedule, Unsupported, loads
from pycompiler.ir.loops import Buffer

__all__ = ["CppSource", "Unsupported", "generate"]

MANY_NESTS = 4  # nests of a kernel from which each becomes a function that equal ones share
MANY_CALLS = 4  # of one part in a row from which they become a loop over a table of pointers
PRELUDE_NAME = re.compile(r"\b(?:pyc|PYC)_\w+")
SMALL = frozenset(
    ("PYC_EXPORT", "PYC_RESTRICT", "PYC_INF", "PYC_NAN", "pyc_load", "pyc_store", "pyc_cast", "pyc_thread")
)
PARALLEL_WORK = 1 << 16  # element operations below which threads do not pay


@dataclass(frozen=True)
class CppSource:
    text: str
    symbols: tuple[str, ...]


@dataclass
class Unit:
    """The translation unit being written.  `parts` of a nest that several kernels have: text -> function's name."""

    buffers: Mapping[str, Buffer]
    lines: list[str]
    parts: dict[str, str] = field(default_factory=dict)


class Call(str):
    """A line that calls a part; `places[i]` is the position in `ptrs` of the part's pointer i."""

    part: str
    types: list[str]
    places: list[str]

    @classmethod
    def of(cls, part: str, types: list[str], pointers: list[str]) -> Call:
        made = cls(f"{part}({', '.join([*pointers, 'error'])});")
        made.part, made.types, made.places = part, types, [p[1:] for p in pointers]
        return made


def generate(schedule: Schedule) -> CppSource:
    """Raises Unsupported when something has no C++ form.  Kernels that do the same (layers of a model) share one
    function: `KernelGroup.symbol` is set to its name."""
    unit = Unit(schedule.buffers, [])
    symbols: dict[str, str] = {}
    for group in schedule.kernels:
        head, body = write_function(unit, group)
        key = "\n".join(line for line in [*head, *body] if not line.lstrip().startswith("//"))
        if key not in symbols:
            symbols[key] = group.name
            title = (
                f'extern "C" PYC_EXPORT int64_t {group.name}(void** ptrs, const int64_t* scalars, int32_t threads) {{'
            )
            unit.lines += [*describe(group, schedule.buffers), title, *head, *body, "}", ""]
        group.symbol = symbols[key]
    text = "\n".join(unit.lines)
    return CppSource(f'#include "{header_of(text)}"\n\n{text}', tuple(symbols.values()))


def header_of(text: str) -> str:
    """The least header that declares what `text` uses."""
    return "pyc_small.h" if SMALL.issuperset(PRELUDE_NAME.findall(text)) else "pyc_prelude.h"


def describe(group: KernelGroup, buffers: Mapping[str, Buffer]) -> list[str]:
    """Comment lines: what the pointers are."""
    lines = []
    for k, name in enumerate(group.pointers):
        b = buffers[name]
        lines.append(f"// p{k}: {name} {b.dtype} {list(b.shape)} ({list(b.stride)})".replace("torch.", ""))
    return lines


def write_function(unit: Unit, group: KernelGroup) -> tuple[list[str], list[str]]:
    """(declarations, statements); neither says which buffers and sizes they are for, beyond what the code needs."""
    buffers = unit.buffers
    function = Function(buffers, {name: f"p{k}" for k, name in enumerate(group.pointers)}, group.shared)
    body: list[str] = []
    for region in regions(group):
        body += write_region(unit, function, region, many=len(group.nests) >= MANY_NESTS and not group.scalars)
    body = join_calls(body)
    written = set(group.writes) | set(group.shared.values())
    head = []
    named = set(NAMED_POINTER.findall("\n".join(body)))
    for k, name in enumerate(group.pointers):
        if str(k) not in named:
            continue
        t = ctype(buffers[name].dtype).storage
        const = "" if name in written else "const "
        head.append(f"    {const}{t}* PYC_RESTRICT const p{k} = ({const}{t}*)ptrs[{k}];")
    head += [f"    const int64_t {s} = scalars[{k}];" for k, s in enumerate(group.scalars)]
    head.append("    int64_t error = 0;")
    return head, [*indent(body), "    return error;"]


NAMED_POINTER = re.compile(r"\bp(\d+)\b")


def indent(lines: list[str]) -> list[str]:
    return ["    " + line if not line.startswith("#") else line for line in lines]


def regions(group: KernelGroup) -> list[list[Nest]]:
    """Runs of nests that do not depend on each other: the threads need not wait in between.  (Two that write one
    buffer, and do not add, write different parts of it.)"""
    found: list[list[Nest]] = []
    written: set[str] = set()
    read: set[str] = set()
    for nest in group.nests:
        reads = {name for s in nest.stages for name, _ in loads(s.loop)}
        writes = {name for s in nest.stages for name in s.outputs}
        replaced = {group.stores[n] for n in writes if n in group.stores}
        serial = is_serial(nest)
        if not found or serial or reads & written or replaced & read or is_serial(found[-1][-1]):
            found.append([])
            written, read = set(), set()
        found[-1].append(nest)
        written |= writes
        read |= reads
    return found


def write_region(unit: Unit, function: Function, nests: list[Nest], many: bool) -> list[str]:
    works = [nest_work(n) for n in nests]
    known = [w for w in works if w is not None]
    parallel = (len(known) < len(works) or sum(known) >= PARALLEL_WORK) and not is_serial(nests[0])
    codes: list[NestCode] = []
    for nest in nests:
        apart = many and not any(s.role == "accumulate" for s in nest.stages)
        codes.append((write_part if apart else write_inline)(unit, function, nest, parallel))
    codes = join_parts(nests, codes, parallel=parallel)
    lines = [line for c in codes for line in c.shared]
    body = [line for c in codes for line in (*c.comments, *c.body)]
    if parallel:
        error = " reduction(max:error)" if function.may_fail else ""
        body = [
            f"#pragma omp parallel num_threads(threads) if(threads > 1){error}",
            "{",
            *indent(join_calls(body)),
            "}",
        ]
    return [*lines, *body, *(line for c in codes for line in c.finish)]


def join_calls(lines: list[str]) -> list[str]:
    """Calls of one part in a row become a loop: 50 of them with 150 pointers by name compile for 20 ms longer."""
    out: list[str] = []
    for part, group in groupby(lines, lambda line: line.part if isinstance(line, Call) else None):
        run = list(group)
        out += loop_of(part, run) if part and len(run) >= MANY_CALLS else run
    return out


def loop_of(part: str, lines: list[str]) -> list[str]:
    calls = [line for line in lines if isinstance(line, Call)]
    arguments = [f"({t})ptrs[at[k][{i}]]" for i, t in enumerate(calls[0].types)]
    return [
        "{",
        f"    static const int32_t at[{len(calls)}][{len(arguments)}] = {{",
        *(f"        {{{', '.join(c.places)}}}," for c in calls),
        "    };",
        f"    for (int64_t k = 0; k < {len(calls)}; k++)",
        f"        {part}({', '.join([*arguments, 'error'])});",
        "}",
    ]


def write_inline(unit: Unit, function: Function, nest: Nest, parallel: bool) -> NestCode:
    return NestWriter(function, nest, parallel).write()


def write_part(unit: Unit, function: Function, nest: Nest, parallel: bool) -> NestCode:
    """The nest as a function of its own, shared with its equals: 100 parameters of one shape compile once."""
    writes = [n for s in nest.stages for n in s.outputs if s.place[n] == "memory"]
    made = {n for s in nest.stages for n in s.outputs}
    reads = [n for s in nest.stages for n in ([s.loop.init] if s.loop.init else []) + [x for x, _ in loads(s.loop)]]
    shared = {b: target for b, target in function.shared.items() if b in writes and target in reads}
    used = list(dict.fromkeys([n for n in reads if n not in made] + [n for n in writes if n not in shared]))
    inner = Function(function.buffers, {name: f"p{k}" for k, name in enumerate(used)}, shared)
    code = NestWriter(inner, nest, parallel).write()
    function.may_fail |= inner.may_fail
    written = {*writes, *shared.values()}
    types = [f"{'' if n in written else 'const '}{ctype(function.buffers[n].dtype).storage}*" for n in used]
    arguments = [f"{t} PYC_RESTRICT p{k}" for k, t in enumerate(types)]
    text = "\n".join([f"({', '.join([*arguments, 'int64_t& error'])}) {{", *indent(code.body), "}"])
    if text not in unit.parts:
        unit.parts[text] = f"part{len(unit.parts)}"
        unit.lines += [*code.comments, f"static __attribute__((noinline)) void {unit.parts[text]}{text}", ""]
    return NestCode([], [], [Call.of(unit.parts[text], types, [function.pointers[n] for n in used])], [])
