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

from pycompiler import config
from pycompiler.codegen.cpp.body import Function
from pycompiler.codegen.cpp.index import c_index
from pycompiler.codegen.cpp.nest import NestCode, NestWriter, is_serial, nest_work, shared_stores
from pycompiler.codegen.cpp.parts import join_parts
from pycompiler.codegen.cpp.types import ctype
from pycompiler.ir.expr import Expr
from pycompiler.ir.hints import hinted
from pycompiler.ir.kernel import KernelGroup, Nest, Schedule, Unsupported, loads
from pycompiler.ir.loops import Buffer
from pycompiler.ir.target import Target

__all__ = ["CppSource", "Unsupported", "generate"]

MANY_NESTS = 4  # nests of a kernel from which each becomes a function that equal ones share
MANY_CALLS = 4  # in a row from which they become a loop over a table of pointers
PRELUDE_NAME = re.compile(r"\b(?:pyc|PYC)_\w+")
SMALL = frozenset(
    (
        "PYC_EXPORT",
        "PYC_RESTRICT",
        "PYC_INF",
        "PYC_NAN",
        "PYC_KEPT",
        "pyc_load",
        "pyc_store",
        "pyc_cast",
        "pyc_thread",
    )
)


@dataclass(frozen=True)
class CppSource:
    text: str
    symbols: tuple[str, ...]


@dataclass
class Unit:
    """The translation unit being written.  `parts` of a nest that several kernels have: text -> function's name."""

    buffers: Mapping[str, Buffer]
    target: Target
    lines: list[str]
    parts: dict[str, str] = field(default_factory=dict)

    def part(self, text: str, comments: list[str]) -> str:
        """The name of the function of this text (parameters and body), which is written unless it was."""
        if text not in self.parts:
            self.parts[text] = f"part{len(self.parts)}"
            self.lines += [*comments, f"static __attribute__((noinline)) void {self.parts[text]}{text}", ""]
        return self.parts[text]


class Call(str):
    """A line that calls a part; `places[i]` is the position in `ptrs` of the part's pointer i, `rest` what it takes after
    them.  `whole`: one thread runs all of it."""

    part: str
    types: list[str]
    places: list[str]
    rest: list[str]
    whole: bool

    @classmethod
    def of(cls, part: str, types: list[str], pointers: list[str], rest: list[str], whole: bool) -> Call:
        made = cls(f"{part}({', '.join([*pointers, *rest])});")
        made.part, made.types, made.places, made.rest, made.whole = part, types, [p[1:] for p in pointers], rest, whole
        return made


def generate(schedule: Schedule) -> CppSource:
    """Raises Unsupported when something has no C++ form.  Kernels that do the same (layers of a model) share one
    function: `KernelGroup.symbol` is set to its name."""
    with hinted(schedule.program.hints):
        return _generate(schedule)


def _generate(schedule: Schedule) -> CppSource:
    unit = Unit(schedule.buffers, schedule.target, [])
    symbols: dict[str, str] = {}
    for group in schedule.kernels:
        head, body = write_function(unit, group)
        key = "\n".join(line for line in [*head, *body] if not line.lstrip().startswith("//"))
        if key not in symbols:
            symbols[key] = group.name
            title = (
                f'extern "C" PYC_EXPORT int64_t {group.name}(void** ptrs, const int64_t* scalars, int32_t threads) {{'
            )
            team = [f"    threads = {unit.target.threads};"] if unit.target.threads else []
            unit.lines += [*describe(group, schedule.buffers), title, *team, *head, *body, "}", ""]
        group.symbol = symbols[key]
    text = "\n".join(unit.lines)
    fast = "#define PYC_FAST_MATH\n" if config.fast_math else ""
    return CppSource(f'{fast}#include "{header_of(text)}"\n\n{text}', tuple(symbols.values()))


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
    function = Function(buffers, {name: f"p{k}" for k, name in enumerate(group.pointers)}, unit.target, group.shared)
    function.scalars = tuple(group.scalars)
    written = set(group.writes) | set(group.shared.values())
    types = [f"{'' if n in written else 'const '}{ctype(buffers[n].dtype).storage}*" for n in group.pointers]
    body: list[str] = []
    for region in regions(group):
        body += write_region(unit, function, region, types, many=len(group.nests) >= MANY_NESTS)
    body = join_calls(body, parallel=False)
    head = []
    named = set(NAMED_POINTER.findall("\n".join(body)))
    for k, t in enumerate(types):
        if str(k) in named:
            head.append(f"    {t} PYC_RESTRICT const p{k} = ({t})ptrs[{k}];")
    head += [f"    const int64_t {s} = scalars[{k}];" for k, s in enumerate(group.scalars)]
    head.append("    int64_t error = 0;")
    return head, [*indent(body), "    return error;"]


WORD = re.compile(r"\b[A-Za-z_]\w*\b")
NAMED_POINTER = re.compile(r"\bp(\d+)\b")


def indent(lines: list[str]) -> list[str]:
    return ["    " + line if not line.startswith("#") else line for line in lines]


def regions(group: KernelGroup) -> list[list[Nest]]:
    """Runs of nests that do not depend on each other: the threads need not wait in between.  (Two that write one
    buffer write different parts of it, but for what adds or scatters: that goes on from what was written before.)"""
    found: list[list[Nest]] = []
    written: set[str] = set()
    read: set[str] = set()
    for nest in group.nests:
        reads = {name for s in nest.stages for name, _ in loads(s.loop)}
        writes = {name for s in nest.stages for name in s.outputs}
        reads |= writes if shared_stores(nest) else set()
        replaced = {group.stores[n] for n in writes if n in group.stores}
        serial = is_serial(nest)
        if not found or serial or reads & written or (replaced | writes) & read or is_serial(found[-1][-1]):
            found.append([])
            written, read = set(), set()
        found[-1].append(nest)
        written |= writes
        read |= reads
    return found


def write_region(unit: Unit, function: Function, nests: list[Nest], types: list[str], many: bool) -> list[str]:
    works = [nest_work(n) for n in nests]
    total = sum(works, Expr.of(0))
    parallel = (total.const is None or total.const >= unit.target.parallel_work) and not is_serial(nests[0])
    codes: list[NestCode] = []
    for nest, work in zip(nests, works, strict=True):
        if not many:
            codes.append(NestWriter(function, nest, parallel).write())
        elif any(s.role == "accumulate" for s in nest.stages):
            codes.append(write_sum_part(unit, function, nest, parallel, work))
        else:
            codes.append(write_part(unit, function, nest, parallel))
    codes = join_parts(nests, codes, parallel=parallel)
    lines = [line for c in codes for line in c.shared]
    body = [line for c in codes for line in (*c.comments, *c.body)]
    finish = [line for c in codes for line in c.finish]
    if parallel and body:
        body = join_calls(body, parallel=True)
        apart = total.const is None and not lines and not finish
        body = (
            team_or_one(unit, function, body, types, total)
            if apart
            else team_of(body, function.may_fail, total, unit.target)
        )
    return [*lines, *body, *finish]


def team_or_one(unit: Unit, function: Function, body: list[str], types: list[str], work: Expr) -> list[str]:
    """`body` of a size that a call tells, as a function: a team of one costs as much as a small kernel."""
    text = "\n".join(body)
    pointers = sorted({int(k) for k in NAMED_POINTER.findall(text)})
    words = set(WORD.findall(text))
    scalars = [s for s in function.scalars if s in words]
    taken = [f"{types[k]} PYC_RESTRICT p{k}" for k in pointers] + [f"int64_t {s}" for s in scalars]
    taken += ["void** ptrs", "int32_t threads", "int64_t& error"]
    part = unit.part("\n".join([f"({', '.join(taken)}) {{", *indent(body), "}"]), [])
    call = f"    {part}({', '.join([*(f'p{k}' for k in pointers), *scalars, 'ptrs', 'threads', 'error'])});"
    error = " reduction(max:error)" if function.may_fail else ""
    return [f"if (threads > 1 && {pays(work, unit.target)}) {{", f"#pragma omp parallel num_threads(threads){error}", call,
            "} else {", call, "}"]  # fmt: skip


def pays(work: Expr, target: Target) -> str:
    """Whether threads pay in a call."""
    return f"{c_index(work, {s: s for s in work.symbols}, {})} >= {target.parallel_work}"


def team_of(body: list[str], may_fail: bool, work: Expr, target: Target) -> list[str]:
    """`body`, run by all threads; of symbolic sizes a call says whether threads pay."""
    error = " reduction(max:error)" if may_fail else ""
    much = f" && {pays(work, target)}" if work.const is None else ""
    return [f"#pragma omp parallel num_threads(threads) if(threads > 1{much}){error}", "{", *indent(body), "}"]


def join_calls(lines: list[str], *, parallel: bool) -> list[str]:
    """Calls in a row become a loop: 50 of them with 150 pointers by name compile for 20 ms longer.  A team shares out the
    calls of one part; without one, those of several parts (the layers of a model) are made in order."""
    out: list[str] = []
    for kind, group in groupby(lines, lambda line: isinstance(line, Call) and (line.part if parallel else "any")):
        run = list(group)
        calls = [line for line in run if isinstance(line, Call)]
        if len(calls) >= MANY_CALLS:
            out += loop_of(calls, parallel)
        elif kind and parallel and calls[0].whole:
            out += [line for call in calls for line in ("#pragma omp single nowait", call)]
        else:
            out += run
    return out


def loop_of(calls: list[Call], parallel: bool) -> list[str]:
    """A loop over a table: which part (where there are several), and where its pointers are in `ptrs`."""
    parts = {c.part: c for c in calls}
    number = {part: str(k) for k, part in enumerate(parts)}
    first = int(len(parts) > 1)
    width = first + max(len(c.places) for c in calls)
    rows = [", ".join([number[c.part]] * first + c.places) for c in calls]
    made = [f"{c.part}({', '.join([*(f'({t})ptrs[at[k][{i}]]' for i, t in enumerate(c.types, first)), *c.rest])});"
            for c in parts.values()]  # fmt: skip
    return [
        "{",
        f"    static const int32_t at[{len(calls)}][{width}] = {{",
        *(f"        {{{row}}}," for row in rows),
        "    };",
        *(["#pragma omp for schedule(static) nowait"] if parallel and calls[0].whole else []),
        f"    for (int64_t k = 0; k < {len(calls)}; k++)" + " switch (at[k][0]) {" * first,
        *indent(indent([f"case {k}: {line} break;" for k, line in enumerate(made)] if first else made)),
        *["    }"] * first,
        "}",
    ]


def write_part(unit: Unit, function: Function, nest: Nest, parallel: bool) -> NestCode:
    """The nest as a function of its own, shared with its equals: 100 parameters of one shape compile once."""
    call = part_of(unit, function, nest, parallel)
    return NestCode([], [], [call], [])


def write_sum_part(unit: Unit, function: Function, nest: Nest, parallel: bool, work: Expr) -> NestCode:
    """A nest that folds over its outer loops, as a function of its own.  Threads share out small ones whole; a big one
    has its own team, and is called where no other is at work."""
    if not parallel or (work.const is not None and work.const < unit.target.parallel_work):
        return NestCode([], [], [part_of(unit, function, nest, parallel=False)], [])
    call = part_of(unit, function, nest, parallel=True, team=True)
    return NestCode([], [call], [], [])


def part_of(unit: Unit, function: Function, nest: Nest, parallel: bool, team: bool = False) -> Call:
    """The call of the nest's part, which is written unless an equal one was."""
    writes = [n for s in nest.stages for n in s.outputs if s.place[n] == "memory"]
    made = {n for s in nest.stages for n in s.outputs}
    reads = [n for s in nest.stages for n in ([s.loop.init] if s.loop.init else []) + [x for x, _ in loads(s.loop)]]
    shared = {b: function.shared[b] for b in writes if function.shared.get(b) in reads}
    used = list(dict.fromkeys([n for n in reads if n not in made] + [n for n in writes if n not in shared]))
    inner = Function(function.buffers, {name: f"p{k}" for k, name in enumerate(used)}, unit.target, shared)
    code = NestWriter(inner, nest, parallel).write()
    function.may_fail |= inner.may_fail
    written = {*writes, *shared.values()}
    types = [f"{'' if n in written else 'const '}{ctype(function.buffers[n].dtype).storage}*" for n in used]
    arguments = [f"{t} PYC_RESTRICT p{k}" for k, t in enumerate(types)] + ["int64_t& error"]
    body = team_of(code.body, inner.may_fail, nest_work(nest), unit.target) if team else code.body
    lines = [*code.shared, *body, *code.finish]
    numbers = {"threads": "int32_t", **dict.fromkeys(function.scalars, "int64_t")}
    words = set(WORD.findall("\n".join(lines)))
    taken = [n for n in numbers if n in words]  # by their names: calls of one part pass the same (`loop_of`)
    arguments += [f"{numbers[n]} {n}" for n in taken]
    part = unit.part("\n".join([f"({', '.join(arguments)}) {{", *indent(lines), "}"]), code.comments)
    rest = ["error", *taken]
    return Call.of(part, types, [function.pointers[n] for n in used], rest, whole=not parallel)
