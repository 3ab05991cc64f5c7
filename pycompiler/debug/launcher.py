"""`minifier_launcher.py` and `repro.py`: programs that hold a graph, its inputs and how it is compiled, and what they run.

In: a graph, inputs, a `Setting`.  Out: files.  A launcher cuts its graph down (`minify`) and writes `checkpoints/` on the way,
then `repro.py`; a repro compiles and calls its graph (`check`): the error comes again, or what differs is printed.
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
from pycompiler.debug.figures import counted
from pycompiler.debug.minifier import LIMIT, Minifier, NotReproduced, Part, Smallest, written
from pycompiler.debug.render import import_text, input_text, module_text
from pycompiler.debug.straight import load
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


# texts ----------------------------------------------------------------------------------------------------------
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
    """(imports, source, expression) of a backend: a name, what can be imported, or a function with its source."""
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
    """Adds the source of a function, and before it that of what it reads."""
    if not function.__name__.isidentifier() or function.__closure__:
        raise Unwritable(f"the backend {function.__qualname__} has no source that stands alone")
    sources[function.__name__] = ""
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except OSError:
        raise Unwritable(f"the source of backend {function.__qualname__} is not to be had") from None
    for name in _names(function.__code__):
        _read(name, function, imports, sources)
    sources[function.__name__] = text[text.index("def ") :].rstrip()  # without decorators
    sources[function.__name__] = sources.pop(function.__name__)


def _read(name: str, function: types.FunctionType, imports: list[str], sources: dict[str, str]) -> None:
    """Adds what a global name of a function stands for; a class of the program's with what its methods read."""
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
            raise Unwritable(f"the source of class {value.__qualname__}, of a backend, is not to be had") from None
        sources[name] = sources.pop(name)
    elif _is_plain(value):
        sources[name] = f"{name} = {value!r}"
    else:
        imports.append(import_text(name, value))


def _is_plain(value: Any) -> bool:
    """Whether a value is what its `repr` says."""
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
    """`minifier_launcher.py` in `folder`; `real` values are saved beside it."""
    names = [n.name for n in gm.graph.find_nodes(op="placeholder")]
    if real:
        written(folder / "inputs.pt", lambda path: torch.save(list(values), path))
        text = "repro.saved(__file__, 'inputs.pt')"
    else:
        text = inputs_text(values, names)
    text = program(
        gm, text, setting, title="A graph that is to be cut down.", places=places,
        about=f"Run it: the smallest part of the graph that shows what is wrong is written to {REPRO}.",
        run="minify(Repro(), inputs(), SETTING, __file__, PLACES)",
    )  # fmt: skip
    return written(folder / LAUNCHER, lambda path: path.write_text(text))


def write_repro(
    path: Path, gm: fx.GraphModule, inputs: str, setting: Setting, places: Mapping[str, str], about: str
) -> None:
    text = program(
        gm, inputs, setting, title="A graph that shows what is wrong.", places=places, about=about,
        run="check(Repro(), inputs(), SETTING, PLACES)",
    )  # fmt: skip
    written(path, lambda path: path.write_text(text))


def repro_path(folder: Path) -> Path:
    """Beside the first `minifier` folder of a directory, where the documents look for it; in the others."""
    return (folder.parent if folder.name == "minifier" else folder) / REPRO


# what the programs run ----------------------------------------------------------------------------------------------
def check(module: torch.nn.Module, inputs: Sequence[Any], setting: Setting, places: Mapping[str, str]) -> int:
    """Compiles and calls: an error comes as it is; 1, and what differs, where values are wrong."""
    gm = load(module)
    for node in gm.graph.nodes:
        if node.name in places:
            print(f"{node.name}: {places[node.name]}")
    found = observe(gm, inputs, setting, raises=True)
    print(found if found is not None else "nothing is wrong with this graph")
    return int(found is not None)


def minify(
    module: torch.nn.Module, inputs: Sequence[Any], setting: Setting, file: str, places: Mapping[str, str]
) -> int:
    """Cuts the graph down; 0 where a part is left that shows the symptom."""
    parser = argparse.ArgumentParser(description="Cuts a graph down to what still shows what is wrong with it.")
    parser.add_argument(
        "--limit", type=float, default=LIMIT, help="seconds that a candidate may take (default: %(default)g)"
    )
    options = parser.parse_args()
    config.repro_after = None  # of the environment: what is compiled here would write launchers over this one
    folder = Path(file).resolve().parent
    checkpoints = folder / CHECKPOINTS
    earlier = None if repro_path(folder).exists() else _left(checkpoints, Path(file))
    if earlier is not None:
        print(f"minifier: goes on from {earlier}, where an earlier run ended", file=sys.stderr, flush=True)
        space = runpy.run_path(str(earlier))
        module, inputs = space["Repro"](), space["inputs"]()
    else:
        shutil.rmtree(checkpoints, ignore_errors=True)
    checkpoints.mkdir(exist_ok=True)
    threads = torch.get_num_threads()
    _warm()

    def checkpoint(part: Part, symptom: Symptom, values: Path) -> None:
        text = f"repro.saved(__file__, {values.name!r})"
        try:
            write_repro(values.with_suffix(".py"), part.module, text, setting, places, f"A step on the way.  {symptom}")
        except OSError as error:
            run.say(f"no checkpoint of {part.count} operators: {error}")

    run = Minifier(load(module), inputs, setting, checkpoints, limit=options.limit, threads=threads, found=checkpoint)
    try:
        smallest = run.run()
    except NotReproduced as reason:
        print(f"minifier: {reason}: it needs what stands around the graph, or other inputs", file=sys.stderr)
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
    """`repro.py`; beside it values, where random ones do not show it."""
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


def _left(checkpoints: Path, launcher: Path) -> Path | None:
    """The smallest part that a run of this launcher, which was ended, has found."""
    since = launcher.stat().st_mtime
    found = [
        p for p in checkpoints.glob("*_operators.py") if p.stat().st_mtime > since and p.with_suffix(".pt").exists()
    ]
    return min(found, key=lambda p: int(p.name.partition("_")[0]), default=None)


def _warm() -> None:
    """Does once, before the first fork, what the first compile of each child would do; a child tries whether that ends well."""
    torch.set_num_threads(1)
    if in_child(_compile_something, LIMIT, 1).told:
        _compile_something()


def _compile_something() -> bool:
    """No gradients: of a process whose autograd has run, children have none."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu().sum()

    compile_function(program)(torch.ones(3))
    torch._decomp.core_aten_decompositions()
    return True


def run_launcher(path: Path) -> int:
    return subprocess.run([sys.executable, str(path)], check=False).returncode
