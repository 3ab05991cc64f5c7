"""A `Schedule` as one C++ translation unit.

In: the schedule.  Out: `CppSource(text, symbols)`: a function per kernel group,

    extern "C" int64_t <symbol>(void** ptrs, const int64_t* scalars, int32_t threads);

whose pointers are the group's reads, then its writes.  The scalars are the values of its size symbols.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby

from pycompiler import config
from pycompiler.codegen.cpp.body import CppFunction
from pycompiler.codegen.cpp.index import c_index
from pycompiler.codegen.cpp.interleave import interleaved
from pycompiler.codegen.cpp.joined_parts import join_parts
from pycompiler.codegen.cpp.nest import NestCode, NestWriter, is_serial, nest_work, shared_stores
from pycompiler.codegen.cpp.types import ctype
from pycompiler.ir.kernel import KernelGroup, Nest, Schedule, Unsupported, loads
from pycompiler.ir.loops import Buffer
from pycompiler.ir.target import Target
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.hints import hinted

__all__ = ["CppSource", "Unsupported", "generate"]

MANY_NESTS = 4  # with so many nests, each nest of a kernel becomes a function that equal nests share
MANY_CALLS = 4  # so many calls in a row become a loop over a table of pointers
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
    """The translation unit under construction.  `parts`: text of a nest's function -> its name, shared by kernels."""

    buffers: Mapping[str, Buffer]
    target: Target
    lines: list[str]
    parts: dict[str, str] = field(default_factory=dict)

    def part(self, text: str, comments: list[str]) -> str:
        """The name of the function with this text (parameters and body), written at the first request."""
        if text not in self.parts:
            self.parts[text] = f"part{len(self.parts)}"
            self.lines += [*comments, f"static PYC_PART void {self.parts[text]}{text}", ""]
        return self.parts[text]


class PartCall(str):
    """A line that calls a part.

    - `places[i]`: the index in `ptrs` of the part's pointer i.
    - `rest`: arguments after the pointers.
    - `whole`: one thread runs the whole part.
    """

    part: str
    types: list[str]
    places: list[str]
    rest: list[str]
    whole: bool

    @classmethod
    def of(cls, part: str, types: list[str], pointers: list[str], rest: list[str], whole: bool) -> PartCall:
        made = cls(f"{part}({', '.join([*pointers, *rest])});")
        made.part, made.types, made.places, made.rest, made.whole = part, types, [p[1:] for p in pointers], rest, whole
        return made


def generate(schedule: Schedule) -> CppSource:
    """The C++ source; raises Unsupported if a part has no C++ form.

    Equal kernels (layers of a model) share one function: `KernelGroup.symbol` is set to its name.
    """
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
    """The smallest header that declares all names in `text`."""
    return "pyc_small.h" if SMALL.issuperset(PRELUDE_NAME.findall(text)) else "pyc_prelude.h"


def describe(group: KernelGroup, buffers: Mapping[str, Buffer]) -> list[str]:
    """Comment lines that describe the pointers."""
    lines = []
    for k, name in enumerate(group.pointers):
        b = buffers[name]
        lines.append(f"// p{k}: {name} {b.dtype} {list(b.shape)} ({list(b.stride)})".replace("torch.", ""))
    return lines


def write_function(unit: Unit, group: KernelGroup) -> tuple[list[str], list[str]]:
    """(declarations, statements), naming only those buffers and sizes that the code needs."""
    buffers = unit.buffers
    function = CppFunction(buffers, {name: f"p{k}" for k, name in enumerate(group.pointers)}, unit.target, group.shared)
    function.scalars = tuple(group.scalars)
    written = set(group.writes) | set(group.shared.values())
    types = [f"{'' if n in written else 'const '}{ctype(buffers[n].dtype).storage}*" for n in group.pointers]
    body: list[str] = []
    for region in regions(group):
        body += write_region(unit, function, list(map(interleaved, region)), types, many=len(group.nests) >= MANY_NESTS)
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
    """Runs of independent nests, between which the threads need not wait.

    Two nests that write one buffer write different parts of it.  Exceptions are adding and scattering nests, which
    depend on the earlier writes.
    """
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


def write_region(unit: Unit, function: CppFunction, nests: list[Nest], types: list[str], many: bool) -> list[str]:
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
            optional_team(unit, function, body, types, total)
            if apart
            else team_of(body, function.may_fail, total, unit.target)
        )
    return [*lines, *body, *finish]


def optional_team(unit: Unit, function: CppFunction, body: list[str], types: list[str], work: Expr) -> list[str]:
    """`body`, whose amount of work is known only in a call, as a function: a team of one thread costs as much as a
    small kernel."""
    text = "\n".join(body)
    pointers = sorted({int(k) for k in NAMED_POINTER.findall(text)})
    words = set(WORD.findall(text))
    scalars = [s for s in function.scalars if s in words]
    taken = [f"{types[k]} PYC_RESTRICT p{k}" for k in pointers] + [f"int64_t {s}" for s in scalars]
    taken += ["void** ptrs", "int32_t threads", "int64_t& error"]
    part = unit.part("\n".join([f"({', '.join(taken)}) {{", *indent(body), "}"]), [])
    call = f"    {part}({', '.join([*(f'p{k}' for k in pointers), *scalars, 'ptrs', 'threads', 'error'])});"
    error = " reduction(max:error)" if function.may_fail else ""
    return [f"if (threads > 1 && {threads_condition(work, unit.target)}) {{",
            f"#pragma omp parallel num_threads(threads){error}", call,
            "} else {", call, "}"]  # fmt: skip


def threads_condition(work: Expr, target: Target) -> str:
    """The C condition that threads are worthwhile in a call."""
    return f"{c_index(work, {s: s for s in work.symbols}, {})} >= {target.parallel_work}"


def team_of(body: list[str], may_fail: bool, work: Expr, target: Target) -> list[str]:
    """`body` run by all threads; for symbolic sizes each call decides whether threads are worthwhile."""
    error = " reduction(max:error)" if may_fail else ""
    much = f" && {threads_condition(work, target)}" if work.const is None else ""
    return [f"#pragma omp parallel num_threads(threads) if(threads > 1{much}){error}", "{", *indent(body), "}"]


def join_calls(lines: list[str], *, parallel: bool) -> list[str]:
    """Turn calls in a row into a loop: 50 calls with 150 named pointers need 20 ms more to compile.

    A team shares out the calls of one part.  Without a team, calls of several parts (the layers of a model) run in
    order.
    """
    out: list[str] = []
    for kind, group in groupby(lines, lambda line: isinstance(line, PartCall) and (line.part if parallel else "any")):
        run = list(group)
        calls = [line for line in run if isinstance(line, PartCall)]
        if len(calls) >= MANY_CALLS:
            out += loop_of(calls, parallel)
        elif kind and parallel and calls[0].whole:
            out += [line for call in calls for line in ("#pragma omp single nowait", call)]
        else:
            out += run
    return out


def loop_of(calls: list[PartCall], parallel: bool) -> list[str]:
    """A loop over a table: the number of the part (if there are several), and its pointers' indices in `ptrs`."""
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


def write_part(unit: Unit, function: CppFunction, nest: Nest, parallel: bool) -> NestCode:
    """The nest as a function of its own, shared by equal nests: 100 parameters of one shape compile once."""
    call = part_of(unit, function, nest, parallel)
    return NestCode([], [], [call], [])


def write_sum_part(unit: Unit, function: CppFunction, nest: Nest, parallel: bool, work: Expr) -> NestCode:
    """A nest that folds over its outer loops, as a function of its own.

    A small one runs whole in one thread, and threads share out several of them.  A large one has a team of its own, and
    is called outside of any other team.
    """
    if not parallel or (work.const is not None and work.const < unit.target.parallel_work):
        return NestCode([], [], [part_of(unit, function, nest, parallel=False)], [])
    call = part_of(unit, function, nest, parallel=True, team=True)
    return NestCode([], [call], [], [])


def part_of(unit: Unit, function: CppFunction, nest: Nest, parallel: bool, team: bool = False) -> PartCall:
    """The call of the nest's part, which is written unless an equal one exists."""
    writes = [n for s in nest.stages for n in s.outputs if s.place[n] == "memory"]
    made = {n for s in nest.stages for n in s.outputs}
    reads = [n for s in nest.stages for n in ([s.loop.init] if s.loop.init else []) + [x for x, _ in loads(s.loop)]]
    shared = {b: function.shared[b] for b in writes if function.shared.get(b) in reads}
    used = list(dict.fromkeys([n for n in reads if n not in made] + [n for n in writes if n not in shared]))
    inner = CppFunction(function.buffers, {name: f"p{k}" for k, name in enumerate(used)}, unit.target, shared)
    code = NestWriter(inner, nest, parallel).write()
    function.may_fail |= inner.may_fail
    written = {*writes, *shared.values()}
    types = [f"{'' if n in written else 'const '}{ctype(function.buffers[n].dtype).storage}*" for n in used]
    arguments = [f"{t} PYC_RESTRICT p{k}" for k, t in enumerate(types)] + ["int64_t& error"]
    body = team_of(code.body, inner.may_fail, nest_work(nest), unit.target) if team else code.body
    lines = [*code.shared, *body, *code.finish]
    numbers = {"threads": "int32_t", **dict.fromkeys(function.scalars, "int64_t")}
    words = set(WORD.findall("\n".join(lines)))
    taken = [n for n in numbers if n in words]  # by their names: calls of one part pass the same arguments (`loop_of`)
    arguments += [f"{numbers[n]} {n}" for n in taken]
    part = unit.part("\n".join([f"({', '.join(arguments)}) {{", *indent(lines), "}"]), code.comments)
    rest = ["error", *taken]
    return PartCall.of(part, types, [function.pointers[n] for n in used], rest, whole=not parallel)
