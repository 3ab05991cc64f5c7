"""Artefacts of a compile as text: graphs that can be read and run, loops, kernels, a diagram.

In: the artefacts of `ir.phases`.  Out: strs.  `runnable` prints a program: the graph as a module, inputs of the same
shapes, and a main that compares the compiled graph with ATen's operators (`debug/repro.py`).
"""

from __future__ import annotations

import base64
import html
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._library.custom_ops import OPDEFS
from torch._ops import OpOverload

from pycompiler._native import __version__
from pycompiler.ir.generated_source import with_lines
from pycompiler.ir.kernel import KernelGroup, Schedule
from pycompiler.ir.loops import Program, Ref
from pycompiler.ir.printer import print_loops, print_program
from pycompiler.symbolic.symbols import hint_of
from pycompiler.symbolic.unbacked_symbols import UnbackedCheck

Branches = Mapping[
    int, tuple[Sequence[fx.GraphModule], Sequence[Any], Sequence[str]]
]  # number → two graphs, metadata of their results, the symbols that they take
EMBED_BYTES = 1 << 20  # larger tensors are not embedded in the file


def code_of(gm: fx.GraphModule, *, verbose: bool = False) -> tuple[str, Mapping[str, Any]]:
    """`def forward(self, ...)` of a graph, and the global names in it."""
    made = gm.graph.python_code("self", verbose=verbose)
    return made.src.strip("\n"), made.globals


def indented(text: str) -> str:
    return "\n".join(f"    {line}" if line.strip() else "" for line in text.splitlines())


def readable(gm: fx.GraphModule) -> str:
    """The graph with shapes and the program's lines, as a class."""
    with with_lines(gm):
        return f"class GraphModule(torch.nn.Module):\n{indented(code_of(gm, verbose=True)[0])}\n"


# a program that runs ------------------------------------------------------------------------------------------
RUNNABLE = '''\
"""The ATen graph as it was given to the compiler of graphs.  Written by pycompiler {version}, torch {torch}.

Run it: the compiled graph and ATen's operators run on the same random inputs, and their results are compared.
"""

import base64
import io

import torch
from pycompiler.debug import repro
{imports}
{operators}

{classes}


def inputs():
    torch.manual_seed(0)
    return [
{inputs}
    ]


if __name__ == "__main__":
    raise SystemExit(repro.main(Repro(), inputs()))
'''


def runnable(gm: fx.GraphModule, branches: Branches | None = None) -> str:
    """The graph as a program; symbolic sizes are replaced by their hints.  `branches`: the branches that it may take."""
    imports, classes = module_text(gm)
    return RUNNABLE.format(
        version=__version__,
        torch=torch.__version__,
        imports=imports,
        classes=classes,
        operators=operators(gm, branches or {}),
        inputs="\n".join(
            f"        {input_text(n.meta.get('val'))},  # {n.name}" for n in gm.graph.find_nodes(op="placeholder")
        ),
    )


def operators(gm: fx.GraphModule, branches: Branches) -> str:
    """Lines of a program that define operators called by `gm` and missing in torch: the program's own operators, and branches."""
    own = dict.fromkeys(str(n.target._schema.name) for n in gm.graph.nodes if isinstance(n.target, OpOverload))
    lines = [line for name in own if name.partition("::")[0] not in KNOWN for line in _own_operator(name)]
    for node in (n for name in CHOOSE for n in gm.graph.find_nodes(op="call_function", target=_operator(name))):
        number, names = node.args[2], []
        sides, like, symbols = branches[number]
        for k, side in enumerate(sides):
            names.append(f"Branch_{number}_{k}")
            imports, classes = module_text(side, names[-1])
            lines += [imports, operators(side, branches), classes]
        made = ", ".join(f"{name}()" for name in names)
        lines.append(f"BRANCH_{number} = repro.branch({number}, ({made}), {like!r}, {symbols!r})")
    return "".join(f"{line}\n" for line in lines if line)


CHOOSE = ("branch", "loop", "unwound", "scan", "unscanned")
KNOWN = ("aten", "prims", "prim", "pycompiler")


def _operator(name: str) -> OpOverload:
    found: OpOverload = getattr(torch.ops.pycompiler, name).default
    return found


def _own_operator(name: str) -> list[str]:
    made = getattr(OPDEFS.get(name), "_init_fn", None)
    module = getattr(made, "__module__", "__main__")
    imports = [f"import {module}  # registers {name}"] if module != "__main__" else []
    return [*imports, f"repro.needs({name!r})"]


CLASS = """\
class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
{attributes}

{forward}"""


def module_text(gm: fx.GraphModule, name: str = "Repro") -> tuple[str, str]:
    """(imports, classes) of a program that builds a module of the graph; nested graphs are classes before it."""
    forward, names = code_of(gm)
    imports = dict.fromkeys(filter(None, (import_text(key, value) for key, value in names.items())))
    classes, attributes = [], []
    for target in dict.fromkeys(n.target for n in gm.graph.nodes if n.op == "get_attr"):
        value: Any = gm
        for part in str(target).split("."):
            value = getattr(value, part)
        if isinstance(value, fx.GraphModule):
            inner = f"{name}_{str(target).replace('.', '_')}"
            more, text = module_text(value, inner)
            imports.update(dict.fromkeys(more.splitlines()))
            classes.append(text)
            attributes.append(f"        repro.set_attribute(self, {target!r}, {inner}())")
        else:
            attributes.append(f"        repro.set_attribute(self, {target!r}, {_value(value)})")
    own = "\n".join(attributes) or "        # nothing is read from the module"
    classes.append(CLASS.format(name=name, attributes=own, forward=indented(forward)))
    return "\n".join(imports), "\n\n\n".join(classes)


_FX_NAMES = {"inf": 'inf = float("inf")', "nan": 'nan = float("nan")', "NoneType": "NoneType = type(None)",
             "fx_pytree": "", "pytree": ""}  # fmt: skip


def import_text(name: str, value: Any) -> str:
    """A line that defines `name` as in the graph's code."""
    if name in _FX_NAMES:
        return _FX_NAMES[name]
    if value is torch:
        return ""
    if isinstance(value, type(torch)):
        return f"import {value.__name__} as {name}"
    if isinstance(value, UnbackedCheck):
        return f"{name} = repro.unchecked"
    module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module and own and "<" not in own and "." not in own:
        return f"from {module} import {own}" + (f" as {name}" if own != name else "")
    return f"{name} = repro.Unprintable({repr(value)!r})"


def _value(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"repro.Unprintable({type(value).__name__!r})"
    if value.numel() * value.itemsize > EMBED_BYTES:
        return f"{input_text(value)}  # too large for a file: random values instead"
    file = io.BytesIO()
    torch.save(value.detach().cpu(), file)
    text = base64.b85encode(file.getvalue()).decode()
    return f"torch.load(io.BytesIO(base64.b85decode({text!r}))).to({str(value.device)!r})"


def input_text(value: Any) -> str:
    """An expression for an input like `value`."""
    if isinstance(value, torch.Tensor):
        size, stride = tuple(map(hint_of, value.shape)), tuple(map(hint_of, value.stride()))
        grad = ", requires_grad=True" if value.requires_grad else ""
        return f"repro.tensor({size}, {stride}, {value.dtype}, {str(value.device)!r}{grad})"
    number = hint_of(value)
    return (
        repr(number)
        if isinstance(number, (bool, int, float, str, type(None)))
        else f"repro.Unprintable({str(value)!r})"
    )


# kernels of each node -----------------------------------------------------------------------------------------
def transformed(made: Mapping[str, Any]) -> str:
    """The graph, each line with the kernel that computes it.  No pass rewrites the graph before it becomes loops."""
    gm: fx.GraphModule = made["fx_graph"]
    where = _kernels_of(made["schedule"])
    text, _ = code_of(gm)
    lines = [
        "# No pass rewrites this graph before it becomes loops.  Behind each node: the kernel or ATen call that computes it."
    ]
    for line in f"class GraphModule(torch.nn.Module):\n{indented(text)}".splitlines():
        name = line.strip().partition(" =")[0]
        lines.append(f"{line}  # {', '.join(where[name])}" if name in where and " = " in line else line)
    return "\n".join(lines) + "\n"


def _kernels_of(schedule: Schedule) -> dict[str, list[str]]:
    where: dict[str, list[str]] = defaultdict(list)
    for step in schedule.steps:
        if isinstance(step, KernelGroup):
            for name in dict.fromkeys(o for nest in step.nests for o in nest.origin):
                where[name].append(f"kernel {step.name}")
        else:
            for name in step.origin:
                where[name].append(f"ATen call {step.op}")
    return where


# loops and kernels --------------------------------------------------------------------------------------------
def program(made: Program) -> str:
    return print_program(made) + "\n"


def schedule(made: Schedule) -> str:
    """The kernels and frees in order, then the loops of each kernel."""
    return f"{made}\n\n{print_loops(made)}\n"


def output(made: Mapping[str, Any], branches: Branches) -> str:
    from pycompiler.runtime.output_code import output_code  # imports cffi

    plan, inputs = made["plan"]
    lines = operators(made["fx_graph"], branches)
    return output_code(plan, inputs, f"import io\n\nfrom pycompiler.debug import repro\n{lines}" if lines else "")


# a diagram ----------------------------------------------------------------------------------------------------
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="monospace" font-size="12">
<title>{title}</title>
<style>rect {{ fill: #eef3fb; stroke: #36c; }} rect.aten {{ fill: #fbf3ee; stroke: #c63; }} path {{ fill: none; stroke: #888; }}
text {{ fill: #111; }}</style>
{edges}
{boxes}
</svg>
"""
WIDTH, HEIGHT, GAP, LEFT = 560, 34, 22, 140


def diagram(made: Schedule) -> str:
    """Kernels and ATen calls from top to bottom in order; a curve for each buffer from its writer to its reader."""
    writer: dict[str, int] = {}
    boxes, edges = [], []
    for k, step in enumerate(made.steps):
        y = GAP + k * (HEIGHT + GAP)
        if isinstance(step, KernelGroup):
            name, kind, reads, writes = f"kernel {step.name}", "kernel", step.reads, step.writes
            what = " ".join(dict.fromkeys(o for nest in step.nests for o in nest.origin))
        else:
            name, kind = str(step.op), "aten"
            reads, writes = [r.buffer for r in _refs((step.args, step.kwargs))], [b.name for b in step.out if b]
            what = " ".join(step.origin)
        boxes.append(
            f"<g><title>{html.escape(f'{name}: {what}')}</title>"
            f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="4"/>'
            f'<text x="{LEFT + 8}" y="{y + 14}">{html.escape(name)}</text>'
            f'<text x="{LEFT + 8}" y="{y + 28}">{html.escape(what[:76])}</text></g>'
        )
        for buffer in dict.fromkeys(reads):
            if (source := writer.get(buffer)) is not None:
                top, bend = GAP + source * (HEIGHT + GAP) + HEIGHT / 2, min(20 + 12 * (k - source), LEFT - 10)
                edges.append(
                    f'<path d="M {LEFT} {top} C {LEFT - bend} {top} {LEFT - bend} {y + HEIGHT / 2} {LEFT} {y + HEIGHT / 2}">'
                    f"<title>{html.escape(buffer)}</title></path>"
                )
        writer.update(dict.fromkeys(writes, k))
    height = GAP + len(made.steps) * (HEIGHT + GAP)
    return SVG.format(width=LEFT + WIDTH + GAP, height=height, title=html.escape(made.program.name),
                      edges="\n".join(edges), boxes="\n".join(boxes))  # fmt: skip


def _refs(value: Any) -> list[Any]:
    if isinstance(value, Ref):
        return [value]
    if isinstance(value, (list, tuple)):
        return [r for v in value for r in _refs(v)]
    if isinstance(value, dict):
        return [r for v in value.values() for r in _refs(v)]
    return []
