"""`config.repro_after`: a graph that cannot be compiled, or computes something else, is written down to be cut down.

In: the knobs `repro_after` ("dynamo": the captured graph and its backend, "aot": ATen graphs and the compiler of graphs),
`repro_level` (1: `repro.py` of the whole graph after an error, 2: a launcher of the minifier after an error, 3: a launcher
always, for crashes and hangs, 4: a launcher where the first call's values are wrong), `repro_tolerance`, `repro_dir`.
Out: files, a line in the log that names them.  After "dynamo" the launcher is run at once, as the documents have it.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from pycompiler import backends, config
from pycompiler.debug import launcher
from pycompiler.debug.figures import counted
from pycompiler.debug.trial import Setting, of_difference, symptom_of
from pycompiler.ir import titles, watch
from pycompiler.ir.graph_copies import copied
from pycompiler.ir.guards import own_frame
from pycompiler.ir.symbols import Specialise, symbols_of
from pycompiler.ir.texts import forward_of
from pycompiler.logs import ROOT
from pycompiler.pipeline.verified import Verified

log = logging.getLogger(ROOT)

DUMP, MINIFY, ALWAYS, ACCURACY = 1, 2, 3, 4
# Knobs that say where to write and what to show, or what to do with an error: no part of what a graph needs.
NOT_THE_GRAPHS = frozenset({
    "repro_after", "repro_level", "repro_tolerance", "repro_dir", "debug_dir_root", "cache_dir", "log_level", "debug",
    "verbose", "progress", "background_compile", "verify_correctness", "suppress_errors", "raise_internal_errors",
    "disable", "debug_function", "error_on_recompile", "fail_on_recompile_limit_hit", "replay_record_enabled", "bisect",
    "bisect_log",
})  # fmt: skip


def setting_of(layer: str, backend: Any, options: dict[str, Any], values: Sequence[Any] = ()) -> Setting:
    """How a graph is compiled here and now."""
    defaults = {row.name: row.default for row in config.KNOBS}
    knobs = {
        name: value for name, value in config.snapshot().items()
        if value != defaults[name] and name not in NOT_THE_GRAPHS and not name.startswith("trace.")
    }  # fmt: skip
    return Setting(
        layer,
        backend,
        options,
        knobs,
        config.repro_level == ACCURACY,
        config.repro_tolerance,
        state(),
        any(map(_is_symbolic, values)),
    )


def _is_symbolic(value: Any) -> bool:
    return symbols_of(value) is not None or (isinstance(value, torch.Tensor) and value._has_symbolic_sizes_strides)


def state() -> tuple[str, ...]:
    """Contexts that make torch's state what it is, as expressions."""
    found = [] if torch.is_grad_enabled() else ["torch.no_grad()"]
    if torch.get_default_dtype() is not torch.float32:
        found.append(f"repro.default_dtype({torch.get_default_dtype()})")
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            found.append(f"torch.autocast({device!r}, {torch.get_autocast_dtype(device)})")
    return tuple(found)


def places_of(gm: fx.GraphModule) -> dict[str, str]:
    """The program's line of each node that has one."""
    frames = {n.name: own_frame(n.meta["user"]) for n in gm.graph.nodes if n.meta.get("user")}
    return {name: f"{f.place}: {f.line}" if f.line else f.place for name, f in frames.items()}


# folders ----------------------------------------------------------------------------------------------------------
_lock = threading.Lock()


def new_folder() -> Path:
    """`minifier` in the directory of repros; the next ones have numbers."""
    root = Path(config.repro_dir or config.debug_dir_root)
    root.mkdir(parents=True, exist_ok=True)
    with _lock:
        for k in itertools.count():
            folder = root / (f"minifier_{k}" if k else "minifier")
            if not folder.exists() or _is_ours(folder):
                folder.mkdir(exist_ok=True)
                (folder / OWNER).write_text(str(os.getpid()))
                return folder
    raise AssertionError


OWNER = "written_by"


def _is_ours(folder: Path) -> bool:
    """Whether a folder is left by an earlier process: the newest run has the plain name."""
    try:
        return (folder / OWNER).read_text() != str(os.getpid())
    except OSError:
        return False


def dump(gm: fx.GraphModule, values: Sequence[Any], setting: Setting, *, run: bool) -> str:
    """Writes a launcher, or the whole graph at level 1; says where, and is that text."""
    _looked_at.append(True)  # written or not: what comes is said here
    real = not any(isinstance(v, torch.Tensor) and _is_fake(v) for v in values)
    try:
        folder = new_folder()
        places = places_of(gm)
        if config.repro_level == DUMP:
            path = launcher.repro_path(folder)
            names = [n.name for n in gm.graph.find_nodes(op="placeholder")]
            launcher.write_repro(path, gm, launcher.inputs_text(values, names), setting, places, "The whole graph.")
        else:
            path = launcher.write_launcher(folder, gm, values, setting, places, real=real)
    except Exception as error:
        text = f"no repro was written: {type(error).__name__}: {error}"
        log.error("%s", text)
        return text
    text = f"Writing {'repro' if config.repro_level == DUMP else 'minified repro launcher'} to: {path}"
    log.warning("%s", text)
    if run and config.repro_level != DUMP and launcher.run_launcher(path) == 0:
        text += f"\nWrote minified repro out to {launcher.repro_path(path.parent)}"
        log.warning("%s", text.splitlines()[-1])
    return text


def _is_fake(value: torch.Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor)


# What a level does not see, and a layer.
UNSEEN = {
    DUMP: "errors of a compile are looked for; repro_level = 3 is for crashes and hangs, 4 for wrong values",
    MINIFY: "errors of a compile are looked for; repro_level = 3 is for crashes and hangs, 4 for wrong values",
    ALWAYS: "",
    ACCURACY: "first calls are looked at; verify_correctness looks at later ones",
}
BEFORE = {"aot": "repro_after = 'dynamo' looks at backends, decompositions and gradients, too", "dynamo": ""}
_looked_at: list[bool] = []  # of each graph: whether it failed


def _at_exit() -> None:
    """A search that found nothing says so, and where else to look."""
    if config.repro_after is None or any(_looked_at):
        return
    found = f"none of {counted(len(_looked_at), 'graph')} failed" if _looked_at else "no graph was compiled"
    ways = [w for w in (UNSEEN[config.repro_level], BEFORE[config.repro_after]) if w]
    log.warning("repro_after = %r, repro_level = %s: %s%s", config.repro_after, config.repro_level, found,
                "".join(f"\n  {w}" for w in ways))  # fmt: skip


# around the compilers -------------------------------------------------------------------------------------------------
class _Accurate(Verified):
    """The first call beside eager; where it differs, a launcher is written, and it raises."""

    def __init__(self, gm: fx.GraphModule, made: Any, setting: Setting, backend: str) -> None:
        title = titles.current()
        name = title.place if title else "a graph"
        super().__init__(gm, made, lambda *_: made, name, share=0.0, raises=True, backend=backend)
        self.setting = setting
        self.tolerance = setting.tolerance

    def verify(self, inputs: Sequence[Any]) -> None:
        if self.setting.layer == "aot":
            with torch.no_grad():
                return super().verify(inputs)
        return super().verify(inputs)

    def place(self, inputs: Sequence[Any]) -> str:
        setting = replace(self.setting, wanted=of_difference(self.found))
        return dump(self.gm, inputs, setting, run=self.setting.layer == "dynamo")


def after_dynamo(backend: Any, name: str) -> Any:
    """The backend, watched."""
    known = backends.is_ours(name) and backends.REGISTRY.get(backends.ALIASES.get(name, name)) is backend
    named = name if known else backend  # a name that the program registered says nothing to another process
    owner = "" if known else name

    def watched(gm: fx.GraphModule, examples: list[Any], **options: Any) -> Any:
        setting = setting_of("dynamo", named, options, examples)
        return _watched(gm, examples, setting, lambda own: backend(own, examples, **options), owner)

    return watched


def after_aot(compiler: Any, kind: str) -> Any:
    """The compiler of ATen graphs, watched; what fails runs through ATen, as it does without."""

    def watched(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        raises = config.raise_internal_errors
        setting = setting_of("aot", "native", {}, inputs)
        try:
            return _watched(gm, inputs, setting, lambda own: compiler(own, inputs))
        except Specialise:
            raise
        except Exception as error:
            if raises:
                raise
            log.warning(
                "%s graph runs through ATen: %s: %s",
                f"an {kind}" if kind[0] in "aeiou" else f"a {kind}",
                type(error).__name__,
                error,
            )
            return forward_of(gm)

    return watched


def _watched(
    gm: fx.GraphModule,
    examples: Sequence[Any],
    setting: Setting,
    build: Callable[[fx.GraphModule], Any],
    backend: str = "",
) -> Any:
    """What `build` makes of a copy of the graph: compilers may change what they are given, also before they fail."""
    _looked_at.append(False)
    if config.repro_level == ALWAYS:
        dump(gm, examples, setting, run=False)
    try:
        with config.patch(raise_internal_errors=True):
            made = build(copied(gm))
    except Specialise:
        raise
    except Exception as error:
        if config.repro_level in (DUMP, MINIFY):
            wanted = replace(setting, wanted=symptom_of(error))
            dump(gm, examples, wanted, run=setting.layer == "dynamo")
        raise
    return _Accurate(gm, made, setting, backend) if config.repro_level == ACCURACY else made


WRAPPERS = {"dynamo": after_dynamo, "aot": after_aot}


def listen() -> None:
    """`config.repro_after` was set."""
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    for layer, wrapper in WRAPPERS.items():
        if config.repro_after == layer:
            watch.wrappers[layer] = wrapper
        elif watch.wrappers.get(layer) is wrapper:
            del watch.wrappers[layer]
