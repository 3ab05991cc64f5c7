"""`config.repro_after`: a graph that cannot be compiled, or that computes wrong values, is written to a file and minimised.

In: the knobs `repro_after` ("dynamo": the captured graph and its backend, "aot": ATen graphs and the compiler of graphs),
`repro_level` (1: `repro.py` of the whole graph after an error, 2: a launcher of the minifier after an error, 3: a
launcher always, for crashes and hangs, 4: a launcher if the first call's values are wrong), `repro_tolerance`, `repro_dir`.
Out: files, and a line in the log that names them.  After "dynamo" the launcher runs at once, as in torch's documentation.
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
from pycompiler.debug.number_format import counted
from pycompiler.debug.trial import Setting, of_difference, symptom_of
from pycompiler.ir import compile_names, phases
from pycompiler.ir.generated_source import forward_of
from pycompiler.ir.graph_copies import copied
from pycompiler.ir.guards import own_frame
from pycompiler.logs import ROOT
from pycompiler.pipeline.verification import Verified
from pycompiler.symbolic.symbols import Specialise, symbols_of

log = logging.getLogger(ROOT)

DUMP, MINIFY, ALWAYS, ACCURACY = 1, 2, 3, 4
# Knobs for paths, output and error handling, which do not affect a graph.
IRRELEVANT_KNOBS = frozenset({
    "repro_after", "repro_level", "repro_tolerance", "repro_dir", "debug_dir_root", "cache_dir", "log_level", "debug",
    "verbose", "progress", "background_compile", "verify_correctness", "suppress_errors", "raise_internal_errors",
    "disable", "debug_function", "error_on_recompile", "fail_on_recompile_limit_hit", "replay_record_enabled", "bisect",
    "bisect_log",
})  # fmt: skip


def setting_of(layer: str, backend: Any, options: dict[str, Any], values: Sequence[Any] = ()) -> Setting:
    """The current compile settings of a graph."""
    defaults = {row.name: row.default for row in config.KNOBS}
    knobs = {
        name: value for name, value in config.snapshot().items()
        if value != defaults[name] and name not in IRRELEVANT_KNOBS and not name.startswith("trace.")
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
    """Contexts that establish torch's current state, as expressions."""
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
    """A new folder `minifier` in the directory of repros; later ones have numbers."""
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
    """Whether a folder was written by an earlier process: the newest run gets the plain name."""
    try:
        return (folder / OWNER).read_text() != str(os.getpid())
    except OSError:
        return False


def dump(gm: fx.GraphModule, values: Sequence[Any], setting: Setting, *, run: bool) -> str:
    """Write a launcher, or the whole graph at level 1; logs and returns the message with the path."""
    _graph_failed.append(True)  # even if writing fails, the message is logged here
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


# Faults that a level does not find; then, faults before a layer.
LEVEL_LIMITS = {
    DUMP: "this level finds errors of a compile; repro_level = 3 finds crashes and hangs, 4 wrong values",
    MINIFY: "this level finds errors of a compile; repro_level = 3 finds crashes and hangs, 4 wrong values",
    ALWAYS: "",
    ACCURACY: "this level checks first calls; verify_correctness checks later calls",
}
BEFORE = {"aot": "repro_after = 'dynamo' also covers backends, decompositions and gradients", "dynamo": ""}
_graph_failed: list[bool] = []  # for each graph, whether it failed


def _at_exit() -> None:
    """Report a search that found nothing, with advice."""
    if config.repro_after is None or any(_graph_failed):
        return
    found = f"none of {counted(len(_graph_failed), 'graph')} failed" if _graph_failed else "no graph was compiled"
    ways = [w for w in (LEVEL_LIMITS[config.repro_level], BEFORE[config.repro_after]) if w]
    log.warning("repro_after = %r, repro_level = %s: %s%s", config.repro_after, config.repro_level, found,
                "".join(f"\n  {w}" for w in ways))  # fmt: skip


# wrappers of compilers ------------------------------------------------------------------------------------------------
class _Accurate(Verified):
    """Runs the first call beside eager; if the values differ, it writes a launcher and raises."""

    def __init__(self, gm: fx.GraphModule, made: Any, setting: Setting, backend: str) -> None:
        title = compile_names.current()
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
    """The backend with observation."""
    known = backends.is_builtin_backend(name) and backends.REGISTRY.get(backends.ALIASES.get(name, name)) is backend
    named = name if known else backend  # a name registered by the program means nothing to another process
    owner = "" if known else name

    def watched(gm: fx.GraphModule, examples: list[Any], **options: Any) -> Any:
        setting = setting_of("dynamo", named, options, examples)
        return _watched(gm, examples, setting, lambda own: backend(own, examples, **options), owner)

    return watched


def after_aot(compiler: Any, kind: str) -> Any:
    """The compiler of ATen graphs with observation; a failing graph runs as ATen calls, as without observation."""

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
    """The result of `build` for a copy of the graph: compilers may change their graph, even before they fail."""
    _graph_failed.append(False)
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
            phases.wrappers[layer] = wrapper
        elif phases.wrappers.get(layer) is wrapper:
            del phases.wrappers[layer]
