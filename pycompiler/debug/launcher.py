"""`minifier_launcher.py` and `repro.py`: generated programs with a graph, its inputs and its settings, and their
run-time code.

In: a graph, inputs, a `Setting`.  Out: files.  A launcher minimises its graph (`minify`), writes `checkpoints/`
meanwhile, then `repro.py`.  A repro compiles and calls its graph (`check`): it repeats the error, or prints the difference.
"""

from __future__ import annotations

import argparse
import inspect
import runpy
import shutil
import subprocess
import sys
import textwrap
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._decomp
from torch import fx

from pycompiler import backends, config
from pycompiler._native import __version__
from pycompiler.api import compile as compile_function
from pycompiler.debug.fx_reader import load
from pycompiler.debug.minifier import LIMIT, Minifier, NodeRange, NotReproduced, Smallest, written
from pycompiler.debug.number_format import counted
from pycompiler.debug.render import import_text, input_text, module_text
from pycompiler.debug.trial import Setting, Symptom, in_child, observe

LAUNCHER, REPRO, CHECKPOINTS = "minifier_launcher.py", "repro.py", "checkpoints"

PROGRAM = '''\
"""{title}

{about}
Written by pycompiler {version}, torch {torch}.
"""

import base64
import io

import torch
from pycompiler.debug import launcher, repro
{imports}

{backend}
{classes}


def inputs():
    torch.manual_seed(0)
    return {inputs}


SETTING = launcher.Setting(
    layer={setting.layer!r},
    backend={backend_name},
    options={setting.options!r},
    knobs={setting.knobs!r},
    accuracy={setting.accuracy},
    tolerance={setting.tolerance},
    around={setting.around!r},
    dynamic={setting.dynamic},
    wanted={wanted},
)
PLACES = {places}

if __name__ == "__main__":
    raise SystemExit(launcher.{run})
'''


class Unwritable(Exception):
    """A backend that no program can name."""


# program texts --------------------------------------------------------------------------------------------------
def program(
    gm: fx.GraphModule, inputs: str, setting: Setting, *, title: str, about: str, run: str, places: Mapping[str, str]
) -> str:
    imports, classes = module_text(gm)
    more, source, name = backend_text(setting.backend)
    here = {n.name: places[n.name] for n in gm.graph.nodes if n.name in places}
    lines = "".join(f"    {key!r}: {value!r},\n" for key, value in here.items())
    return PROGRAM.format(
        title=title, about=about, version=__version__, torch=torch.__version__,
        imports="\n".join(dict.fromkeys([*imports.splitlines(), *more])), classes=classes, backend=source,
        backend_name=name, inputs=inputs, setting=setting, run=run,
        wanted=f"launcher.{setting.wanted!r}" if setting.wanted else None, places=f"{{\n{lines}}}" if lines else "{}",
    )  # fmt: skip


def backend_text(backend: Any) -> tuple[list[str], str, str]:
    """(imports, source, expression) of a backend: a name, an importable object, or a function with its source."""
    if isinstance(backend, str):
        return [], "", repr(backend)
    name, module = getattr(backend, "__qualname__", ""), getattr(backend, "__module__", "")
    if (
        name.isidentifier()
        and module not in ("", "__main__")
        and getattr(sys.modules.get(module), name, None) is backend
    ):
        return [f"from {module} import {name}"], "", name
    if not isinstance(backend, types.FunctionType):
        raise Unwritable(f"the backend {backends.name_of(backend)} is neither a function nor can it be imported")
    imports: list[str] = []
    sources: dict[str, str] = {}
    _source(backend, imports, sources)
    return imports, "\n\n\n".join(sources.values()) + "\n\n", backend.__name__


def _source(function: types.FunctionType, imports: list[str], sources: dict[str, str]) -> None:
    """Add the source of a function, preceded by the sources of its globals."""
    if not function.__name__.isidentifier() or function.__closure__:
        raise Unwritable(f"the backend {function.__qualname__} has no self-contained source")
    sources[function.__name__] = ""
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except OSError:
        raise Unwritable(f"the source of backend {function.__qualname__} is not available") from None
    for name in _names(function.__code__):
        _read(name, function, imports, sources)
    sources[function.__name__] = text[text.index("def ") :].rstrip()  # without decorators
    sources[function.__name__] = sources.pop(function.__name__)


def _read(name: str, function: types.FunctionType, imports: list[str], sources: dict[str, str]) -> None:
    """Add the definition of a function's global name; for a class of the program also the globals of its methods."""
    if name not in function.__globals__ or name in sources:
        return
    value = function.__globals__[name]
    own = getattr(value, "__module__", None) == function.__module__
    if isinstance(value, types.FunctionType) and own:
        _source(value, imports, sources)
    elif isinstance(value, type) and own and value.__qualname__.isidentifier():
        sources[name] = ""
        methods = [v for v in vars(value).values() if isinstance(v, types.FunctionType)]
        for base in value.__bases__:
            _read(base.__name__, function, imports, sources)
        for inner in dict.fromkeys(n for method in methods for n in _names(method.__code__)):
            _read(inner, function, imports, sources)
        try:
            sources[name] = textwrap.dedent(inspect.getsource(value)).rstrip()
        except OSError:
            raise Unwritable(f"the source of class {value.__qualname__}, of a backend, is not available") from None
        sources[name] = sources.pop(name)
    elif _is_plain(value):
        sources[name] = f"{name} = {value!r}"
    else:
        imports.append(import_text(name, value))


def _is_plain(value: Any) -> bool:
    """Whether a value equals the evaluation of its `repr`."""
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(_is_plain(k) and _is_plain(v) for k, v in value.items())
    return value is None or type(value) in (bool, int, float, complex, str, bytes)


def _names(code: types.CodeType) -> list[str]:
    inner = [n for c in code.co_consts if isinstance(c, types.CodeType) for n in _names(c)]
    return [*dict.fromkeys([*code.co_names, *inner])]


def inputs_text(values: Sequence[Any], names: Sequence[str]) -> str:
    rows = "".join(f"        {input_text(v)},  # {n}\n" for v, n in zip(values, names, strict=True))
    return f"[\n{rows}    ]" if rows else "[]"


# files ------------------------------------------------------------------------------------------------------------
def write_launcher(
    folder: Path, gm: fx.GraphModule, values: Sequence[Any], setting: Setting, places: Mapping[str, str], *, real: bool
) -> Path:
    """Write `minifier_launcher.py` to `folder`; `real` values are saved beside it."""
    names = [n.name for n in gm.graph.find_nodes(op="placeholder")]
    if real:
        written(folder / "inputs.pt", lambda path: torch.save(list(values), path))
        text = "repro.saved(__file__, 'inputs.pt')"
    else:
        text = inputs_text(values, names)
    text = program(
        gm, text, setting, title="A graph to minimise.", places=places,
        about=f"Run this file: it writes the smallest part of the graph that shows the fault to {REPRO}.",
        run="minify(Repro(), inputs(), SETTING, __file__, PLACES)",
    )  # fmt: skip
    return written(folder / LAUNCHER, lambda path: path.write_text(text))


def write_repro(
    path: Path, gm: fx.GraphModule, inputs: str, setting: Setting, places: Mapping[str, str], about: str
) -> None:
    text = program(
        gm, inputs, setting, title="A graph that shows a fault.", places=places, about=about,
        run="check(Repro(), inputs(), SETTING, PLACES)",
    )  # fmt: skip
    written(path, lambda path: path.write_text(text))


def repro_path(folder: Path) -> Path:
    """The path of `repro.py`: beside the first `minifier` folder, as documented; inside of later folders."""
    return (folder.parent if folder.name == "minifier" else folder) / REPRO


# code for the generated programs ------------------------------------------------------------------------------------
def check(module: torch.nn.Module, inputs: Sequence[Any], setting: Setting, places: Mapping[str, str]) -> int:
    """Compile and call: an error propagates; for wrong values, prints the difference and returns 1."""
    gm = load(module)
    for node in gm.graph.nodes:
        if node.name in places:
            print(f"{node.name}: {places[node.name]}")
    found = observe(gm, inputs, setting, raises=True)
    print(found if found is not None else "this graph shows no fault")
    return int(found is not None)


def minify(
    module: torch.nn.Module, inputs: Sequence[Any], setting: Setting, file: str, places: Mapping[str, str]
) -> int:
    """Minimise the graph; returns 0 if a part that shows the symptom is left."""
    parser = argparse.ArgumentParser(description="Minimises a graph to the smallest part that still shows the fault.")
    parser.add_argument(
        "--limit", type=float, default=LIMIT, help="time limit of a candidate in seconds (default: %(default)g)"
    )
    options = parser.parse_args()
    config.repro_after = None  # from the environment: compiles of this process would overwrite this launcher
    folder = Path(file).resolve().parent
    checkpoints = folder / CHECKPOINTS
    earlier = None if repro_path(folder).exists() else _earlier_result(checkpoints, Path(file))
    if earlier is not None:
        print(f"minifier: continues from {earlier}, where an earlier run ended", file=sys.stderr, flush=True)
        space = runpy.run_path(str(earlier))
        module, inputs = space["Repro"](), space["inputs"]()
    else:
        shutil.rmtree(checkpoints, ignore_errors=True)
    checkpoints.mkdir(exist_ok=True)
    threads = torch.get_num_threads()
    _compile_before_fork()

    def checkpoint(part: NodeRange, symptom: Symptom, values: Path) -> None:
        text = f"repro.saved(__file__, {values.name!r})"
        try:
            write_repro(
                values.with_suffix(".py"),
                part.module,
                text,
                setting,
                places,
                f"An intermediate result of the minifier.  {symptom}",
            )
        except OSError as error:
            run.say(f"no checkpoint of {part.count} operators: {error}")

    run = Minifier(load(module), inputs, setting, checkpoints, limit=options.limit, threads=threads, found=checkpoint)
    try:
        smallest = run.run()
    except NotReproduced as reason:
        print(f"minifier: {reason}: the fault needs the code around the graph, or other inputs", file=sys.stderr)
        return 2
    left = [n for n in smallest.part.module.graph.nodes if n.op.startswith("call_")]
    kept = f"{counted(len(left), 'operator')} {'is' if len(left) == 1 else 'are'} left of {run.whole}"
    print(f"minifier: {kept} ({smallest.tried} tried, {smallest.seconds:.0f} s)")
    for node in left:
        print(f"minifier:   {node.format_node()}" + (f"\n      {places[node.name]}" if node.name in places else ""))
    print(f"minifier: {smallest.symptom}", flush=True)
    try:
        path = write_smallest(repro_path(folder), smallest, run.values_of(smallest), setting, places)
    except (OSError, RuntimeError) as error:
        print(f"minifier: no {REPRO} in {repro_path(folder).parent}: {error}", file=sys.stderr)
        return 3
    print(f"minifier: wrote {path}", flush=True)
    return 0


def write_smallest(
    path: Path, smallest: Smallest, values: Sequence[Any], setting: Setting, places: Mapping[str, str]
) -> Path:
    """Write `repro.py`, and the inputs' values beside it if random values do not show the symptom."""
    names = [n.name for n in smallest.part.module.graph.find_nodes(op="placeholder")]
    if smallest.real:
        saved = written(path.with_suffix(".pt"), lambda file: torch.save(list(values), file))
        text = f"repro.saved(__file__, {saved.name!r})"
    else:
        text = inputs_text(values, names)
    write_repro(
        path, smallest.part.module, text, setting, places, f"The smallest part that was found.  {smallest.symptom}"
    )
    return path


def _earlier_result(checkpoints: Path, launcher: Path) -> Path | None:
    """The smallest part found by an earlier, interrupted run of this launcher."""
    since = launcher.stat().st_mtime
    found = [
        p for p in checkpoints.glob("*_operators.py") if p.stat().st_mtime > since and p.with_suffix(".pt").exists()
    ]
    return min(found, key=lambda p: int(p.name.partition("_")[0]), default=None)


def _compile_before_fork() -> None:
    """Do the work of a first compile once, before the first fork; a child first tests whether it succeeds."""
    torch.set_num_threads(1)
    if in_child(_compile_something, LIMIT, 1).told:
        _compile_something()


def _compile_something() -> bool:
    """Without gradients: if autograd has run in a process, its forked children cannot compute any."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu().sum()

    compile_function(program)(torch.ones(3))
    torch._decomp.core_aten_decompositions()
    return True


def run_launcher(path: Path) -> int:
    return subprocess.run([sys.executable, str(path)], check=False).returncode
