"""Every knob, typed: one row of KNOBS each, read as a plain module attribute.

In: defaults below, environment variables at import, assignments and `patch` at run time.  Out: `config.<name>`.
A knob `name` is also set by `PYCOMPILER_<NAME>` and by the older variables of its row; an alias is the same knob
under torch's older name.  Unknown names and wrong types raise `ConfigError`, which lists what is known.

Example: `config.recompile_limit = 4`, or `with config.patch(recompile_limit=4): ...`, or `@config.patch(verbose=True)`.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import platformdirs

from pycompiler.errors import ConfigError

ENV_PREFIX = "PYCOMPILER_"
OTHER_VARIABLES = (ENV_PREFIX + "LOGS", ENV_PREFIX + "LOGS_OUT")  # that are no knobs
log = logging.getLogger("pycompiler")


@dataclass(frozen=True)
class Knob:
    """One knob.  `types` are the exact types that it takes (an int is also taken where float is listed).

    `env`: older environment variables that set it; `aliases`: other names of the same knob; `choices`: legal values;
    `low`, `high`: the range of a number.  `kept` is None where the code reads the knob; else nothing reads it yet, and
    `kept` are the values that hold all the same: setting another one is said to have no effect.
    """

    name: str
    types: tuple[type, ...]
    default: Any
    doc: str
    env: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    choices: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None
    kept: tuple[Any, ...] | None = None

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables that set this knob, the strongest first."""
        return tuple(ENV_PREFIX + n.upper().replace(".", "_") for n in (self.name, *self.aliases)) + self.env

    def check(self, value: Any) -> Any:
        """`value` if this knob takes it (an int becomes a float where only float is taken), else ConfigError."""
        if type(value) is int and int not in self.types and float in self.types:
            value = float(value)
        if type(value) not in self.types:
            want = " or ".join("None" if t is type(None) else t.__name__ for t in self.types)
            raise ConfigError(f"config.{self.name} takes {want}, got {value!r} of type {type(value).__name__}")
        if self.choices and value not in self.choices:
            known = ", ".join(map(repr, self.choices))
            raise ConfigError(f"config.{self.name} takes one of {known}, got {value!r}")
        low, high = self.low, math.inf if self.high is None else self.high
        if type(value) in (int, float) and low is not None and not low <= value <= high:  # NaN is in no range
            top = "" if self.high is None else f" to {high:g}"
            raise ConfigError(f"config.{self.name} takes a number from {low:g}{top}, got {value!r}")
        if type(value) is str and "\0" in value:
            raise ConfigError(f"config.{self.name} takes text without null characters, got {value!r}")
        return value

    def parse(self, variable: str, text: str) -> Any:
        """The value that `text`, found in environment `variable`, stands for."""
        if type(None) in self.types and text.strip().lower() in ("", "none"):
            return None
        for kind in (t for t in (bool, int, float, str) if t in self.types):
            try:
                return self.check(_PARSERS[kind](text))
            except (ValueError, KeyError):
                continue
        want = " or ".join(t.__name__ for t in self.types if t is not type(None))
        raise ConfigError(f"environment variable {variable}={text!r} is not a legal {want} for config.{self.name}")


_BOOLS = {
    "1": True,
    "true": True,
    "on": True,
    "yes": True,
    "0": False,
    "false": False,
    "off": False,
    "no": False,
    "": False,
}
_PARSERS: dict[type, Any] = {bool: lambda t: _BOOLS[t.strip().lower()], int: int, float: float, str: str}

_B, _I, _F, _S, _N = bool, int, float, str, type(None)


def _default_cache_dir() -> str:
    """A private directory for built kernels; under the temporary directory where no home can be found."""
    try:
        return platformdirs.user_cache_dir("pycompiler", appauthor=False)
    except (RuntimeError, KeyError, OSError):
        return os.path.join(tempfile.gettempdir(), f"pycompiler-{os.getuid()}")


def _default_debug_dir() -> str:
    try:
        return os.path.join(os.getcwd(), "torch_compile_debug")
    except OSError:  # the working directory was removed
        return os.path.join(tempfile.gettempdir(), "torch_compile_debug")


KNOBS: tuple[Knob, ...] = (
    # recompiles
    Knob(
        "recompile_limit",
        (_I,),
        8,
        "entries that one code object of a compiled callable may have",
        aliases=("cache_size_limit",),
        low=1,
    ),
    Knob(
        "accumulated_recompile_limit",
        (_I,),
        256,
        "entries that a compiled callable may have over all code objects",
        aliases=("accumulated_cache_size_limit",),
        low=1,
    ),
    Knob(
        "error_on_recompile", (_B,), False, "raise RecompileError where a second compile of a code object would start"
    ),
    Knob(
        "fail_on_recompile_limit_hit",
        (_B,),
        False,
        "raise RecompileLimitExceeded at the limit, not one warning",
        aliases=("fail_on_cache_limit_hit",),
    ),
    # what is captured
    Knob(
        "disable",
        (_B,),
        False,
        "run every compiled callable eagerly",
        env=("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"),
    ),
    Knob(
        "debug_function",
        (_S, _N),
        None,
        "compile only frames of this function name, wherever they are called from",
        env=("TORCHDYNAMO_DEBUG_FUNCTION",),
    ),
    Knob(
        "capture_scalar_outputs",
        (_B,),
        False,
        "capture .item() and friends instead of breaking the graph",
        env=("TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS",),
    ),
    Knob(
        "capture_dynamic_output_shape_ops",
        (_B,),
        False,
        "capture nonzero, masks and friends instead of breaking the graph",
        env=("TORCHDYNAMO_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS",),
    ),
    Knob("capture_func_transforms", (_B,), True, "capture torch.func transforms"),
    Knob("trace_numpy", (_B,), True, "capture NumPy calls as tensor operations"),
    Knob(
        "rewrite_assert_with_torch_assert",
        (_B,),
        True,
        "capture assert on a tensor, and branches of which one side raises, as an operator in the graph",
    ),
    # shapes
    Knob("dynamic_shapes", (_B,), True, "allow symbolic sizes at all", env=("TORCHDYNAMO_DYNAMIC_SHAPES",)),
    Knob(
        "assume_static_by_default",
        (_B,),
        True,
        "first compile with the sizes seen; False: dynamic=None is dynamic=True",
    ),
    Knob(
        "automatic_dynamic_shapes",
        (_B,),
        True,
        "a size or integer argument that changed becomes symbolic at the next compile",
    ),
    Knob(
        "specialize_int",
        (_B,),
        False,
        "int arguments are constants of the graph, always",
        env=("TORCHDYNAMO_SPECIALIZE_INT",),
    ),
    Knob(
        "specialize_float",
        (_B,),
        False,
        "float arguments are constants of the graph, always",
        env=("TORCHDYNAMO_SPECIALIZE_FLOAT",),
    ),
    # guards
    Knob("guard_nn_modules", (_B,), True, "guard the modules that the frame reads", kept=(True,)),
    # autograd and numerics
    Knob(
        "activation_memory_budget",
        (_F,),
        1.0,
        "0 to 1: share of the activations that backward may keep (1: min-cut)",
        low=0.0,
        high=1.0,
    ),
    Knob(
        "partition",
        (_S,),
        "min_cut",
        "what backward keeps: min_cut (recompute cheap operators) or save_all",
        choices=("min_cut", "save_all"),
    ),
    Knob("fallback_random", (_B,), False, "random operators through ATen: eager's random stream", kept=(True,)),
    Knob(
        "emulate_precision_casts",
        (_B,),
        True,
        "round bfloat16 and float16 values between fused operators as eager does; False keeps float32 between them",
    ),
    Knob(
        "fast_math",
        (_B,),
        False,
        "kernels may round a product and a sum once: faster, and not eager's bits",
    ),
    Knob(
        "deterministic",
        (_B,),
        False,
        "generated kernels whose result repeats bit for bit, as under torch.use_deterministic_algorithms (ATen's follow that)",
    ),
    # compiler
    Knob(
        "threads",
        (_I,),
        0,
        "threads of generated CPU kernels (ATen's have torch's); 0: as many as torch uses at a call",
        low=0,
        high=4096,
    ),
    Knob("max_fusion_size", (_I,), 64, "loops that one nest may hold, of the 48 that a machine takes", low=1),
    Knob("cxx", (_S, _N), None, "the C++ compiler; None: CXX, then c++, g++, clang++"),
    Knob(
        "cxx_timeout",
        (_F,),
        300.0,
        "seconds after which the C++ compiler is killed; its graph runs through ATen",
        low=0.0,
    ),
    Knob("cxx_flags", (_S,), "", "further flags for the C++ compiler"),
    Knob("triton.cudagraphs", (_B,), False, "record CUDA graphs", kept=(False,)),
    Knob("cache_dir", (_S,), _default_cache_dir(), "directory of built kernels"),
    Knob("disk_cache", (_B,), True, "keep built kernels between processes"),
    # errors and debugging
    Knob(
        "verbose", (_B,), False, "errors show both stacks: the user's and the compiler's", env=("TORCHDYNAMO_VERBOSE",)
    ),
    Knob(
        "suppress_errors",
        (_B,),
        False,
        "an error in the compiler becomes a warning, and the frame runs eagerly",
        env=("TORCHDYNAMO_SUPPRESS_ERRORS",),
    ),
    Knob(
        "raise_internal_errors",
        (_B,),
        False,
        "raise the compiler's own bugs, instead of a warning after which the frame runs eagerly",
    ),
    Knob(
        "replay_record_enabled",
        (_B,),
        False,
        "write a replayable record of the frame when a compile fails",
        env=("TORCH_COMPILE_REPLAY_RECORD",),
    ),
    Knob(
        "replay_record_limit",
        (_I,),
        1 << 28,
        "bytes of tensors in a record, at most: of others the sizes are written",
        low=0,
    ),
    Knob(
        "repro_after",
        (_S, _N),
        None,
        "write a repro after this layer fails",
        env=("TORCHDYNAMO_REPRO_AFTER",),
        choices=(None, "dynamo", "aot"),
    ),
    Knob(
        "repro_level",
        (_I,),
        2,
        "1 dump, 2 minify on failure, 3 always dump, 4 minify on wrong values",
        env=("TORCHDYNAMO_REPRO_LEVEL",),
        choices=(1, 2, 3, 4),
    ),
    Knob("repro_tolerance", (_F,), 1e-3, "difference that repro_level 4 takes for a wrong value", low=0.0),
    Knob(
        "repro_dir",
        (_S, _N),
        None,
        "directory of repro.py; None: debug_dir_root",
        env=("TORCHDYNAMO_REPRO_DIR",),
    ),
    Knob(
        "verify_correctness",
        (_B,),
        False,
        "compare each compiled graph with eager at its first call, forward and backward; raise where they differ",
    ),
    Knob(
        "log_level",
        (_I, _N),
        None,
        "level of capture's log (logging.DEBUG shows each instruction, INFO graphs and bytecode, WARNING graph breaks)",
    ),
    Knob("debug", (_B,), False, "log what the compiler of graphs does, and the code that it generates"),
    Knob(
        "verify_ir", (_B,), False, "check what each stage of the compiler hands on (loops, schedule, plan) by its rules"
    ),
    Knob(
        "debug_dir_root",
        (_S,),
        _default_debug_dir(),
        "where debug directories go",
        env=("PYCOMPILER_DEBUG_DIR", "TORCH_COMPILE_DEBUG_DIR"),
        aliases=("base_dir",),
    ),
    Knob(
        "bisect",
        (_S, _N),
        None,
        "what is compiled while the wrong part is looked for: `frame<3,operator<40` (python -m pycompiler bisect)",
    ),
    Knob("bisect_log", (_S, _N), None, "a file that gets a line for each part that can be left out"),
    # the debug directory
    Knob(
        "trace.enabled",
        (_B,),
        False,
        "write the debug directory of every compile",
        env=("PYCOMPILER_COMPILE_DEBUG", "TORCH_COMPILE_DEBUG"),
    ),
    Knob(
        "trace_dir",
        (_S, _N),
        None,
        "write what every process compiles to this folder, for `python -m pycompiler trace` and Perfetto",
        env=("PYCOMPILER_TRACE", "TORCH_TRACE"),
    ),
    Knob("trace.debug_log", (_B,), True, "debug.log: all that is logged while a graph is compiled, and its phases"),
    Knob("trace.info_log", (_B,), False, "info.log: the same without what only developers read"),
    Knob("trace.fx_graph", (_B,), True, "fx_graph_readable.py and fx_graph_runnable.py: the graph to be compiled"),
    Knob("trace.fx_graph_transformed", (_B,), True, "fx_graph_transformed.py: the same with what became of each node"),
    Knob("trace.ir_pre_fusion", (_B,), True, "ir_pre_fusion.txt: the loops of each operator"),
    Knob("trace.ir_post_fusion", (_B,), True, "ir_post_fusion.txt: the kernels, in order"),
    Knob("trace.output_code", (_B,), True, "output_code.py: kernels and plan as a program"),
    Knob("trace.graph_diagram", (_B,), False, "graph_diagram.svg: kernels and the buffers between them"),
    Knob("trace.compile_profile", (_B,), False, "compile.prof: a profile of the compile, for pstats"),
    Knob(
        "report_guard_failures",
        (_B,),
        True,
        "log the failed guard of every recompile",
        env=("TORCHDYNAMO_REPORT_GUARD_FAILURES",),
    ),
    # compiles in the background
    Knob("share_regions", (_B,), True, "graphs that are alike but for their inputs' sources are compiled once"),
    Knob("background_compile", (_B,), False, "compile(background=None): answer a miss eagerly, compile in a worker"),
    Knob("background_workers", (_I,), 1, "threads that compile in the background, at most", low=1),
    Knob("progress", (_B,), True, "on a terminal, show what is being compiled when it takes more than a second"),
)

# The attributes that readers see; a test holds them equal to KNOBS.
recompile_limit: int
cache_size_limit: int
accumulated_recompile_limit: int
accumulated_cache_size_limit: int
error_on_recompile: bool
fail_on_recompile_limit_hit: bool
fail_on_cache_limit_hit: bool
disable: bool
debug_function: str | None
capture_scalar_outputs: bool
capture_dynamic_output_shape_ops: bool
capture_func_transforms: bool
trace_numpy: bool
rewrite_assert_with_torch_assert: bool
dynamic_shapes: bool
assume_static_by_default: bool
automatic_dynamic_shapes: bool
specialize_int: bool
specialize_float: bool
guard_nn_modules: bool
activation_memory_budget: float
partition: str
fallback_random: bool
emulate_precision_casts: bool
fast_math: bool
deterministic: bool
threads: int
max_fusion_size: int
cxx: str | None
cxx_timeout: float
cxx_flags: str
cache_dir: str
disk_cache: bool
verbose: bool
suppress_errors: bool
raise_internal_errors: bool
replay_record_enabled: bool
replay_record_limit: int
repro_after: str | None
repro_level: int
repro_tolerance: float
repro_dir: str | None
verify_ir: bool
verify_correctness: bool
log_level: int | None
debug: bool
bisect: str | None
bisect_log: str | None
debug_dir_root: str
base_dir: str
trace_dir: str | None
report_guard_failures: bool
share_regions: bool
background_compile: bool
background_workers: int
progress: bool


class Group:
    """The knobs `<prefix>.<name>` as attributes."""

    def __init__(self, prefix: str) -> None:
        object.__setattr__(self, "_prefix", prefix)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return get_knob(f"{self._prefix}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        set_knob(f"{self._prefix}.{name}", value)

    def __dir__(self) -> list[str]:
        return sorted(n.partition(".")[2] for n in BY_NAME if n.startswith(f"{self._prefix}."))


trace, triton = Group("trace"), Group("triton")


def _index(knobs: tuple[Knob, ...]) -> dict[str, Knob]:
    table: dict[str, Knob] = {}
    for knob in knobs:
        for name in (knob.name, *knob.aliases):
            if name in table:
                raise ConfigError(f"two knobs are called {name!r}")
            table[name] = knob
    return table


BY_NAME: dict[str, Knob] = _index(KNOBS)


def knob(name: str) -> Knob:
    """The row of `name` (or of the knob that it is an alias of); ConfigError for an unknown name."""
    found = BY_NAME.get(name)
    if found is None:
        close = difflib.get_close_matches(name, BY_NAME, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ConfigError(f"config has no knob {name!r}{hint}. Known: {', '.join(sorted(BY_NAME))}")
    return found


def set_knob(name: str, value: Any) -> None:
    """Sets a knob, and its aliases with it, after checking name and type.  Says so when nothing reads it."""
    row = knob(name)
    checked = row.check(value)
    if row.kept is not None and checked not in (*row.kept, row.default):
        say_once(f"config.{row.name} = {checked!r} has no effect: nothing reads this knob yet")
    for each in (row.name, *row.aliases):
        globals()[each] = checked
    for listener in _listeners.get(row.name, ()):
        listener()


_said: set[str] = set()


def say_once(text: str) -> None:
    """A warning in the log, the first time that this process has a reason for it."""
    if text not in _said:
        _said.add(text)
        log.warning("%s", text)


_listeners: dict[str, list[Callable[[], None]]] = {}


def on_change(name: str, listener: Callable[[], None]) -> None:
    """Call `listener` after each assignment of a knob, for values that are copied elsewhere."""
    _listeners.setdefault(knob(name).name, []).append(listener)


def get_knob(name: str) -> Any:
    return globals()[knob(name).name]


def snapshot() -> dict[str, Any]:
    """The values of all knobs, by name."""
    return {row.name: globals()[row.name] for row in KNOBS}


class patch(contextlib.ContextDecorator):
    """Sets knobs for a `with` block or for the calls of a decorated function, and restores them after it.

    Knobs are keywords, or one mapping, or a name and a value as in torch: `patch("verbose", True)`.
    """

    def __init__(self, changes: Mapping[str, Any] | str | None = None, value: Any = None, /, **knobs: Any) -> None:
        named = {changes: value} if isinstance(changes, str) else dict(changes or {})
        self._changes = {name: knob(name).check(v) for name, v in {**named, **knobs}.items()}
        self._saved: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        self._saved.append({name: get_knob(name) for name in self._changes})
        for name, value in self._changes.items():
            set_knob(name, value)

    def __exit__(self, *exc: object) -> None:
        for name, value in self._saved.pop().items():
            set_knob(name, value)


def load_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Knob values that `environ` sets; ConfigError for a value that cannot be read.  Empty text sets no knob that takes text."""
    found: dict[str, Any] = {}
    for row in KNOBS:
        variable = next((v for v in row.variables if environ.get(v) or (v in environ and str not in row.types)), None)
        if variable is not None:
            found[row.name] = row.parse(variable, environ[variable])
    return found


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """One line for each variable of ours in `environ` that sets nothing: misspelt, most likely."""
    ours = [*OTHER_VARIABLES, *(v for row in KNOBS for v in row.variables if v.startswith(ENV_PREFIX))]
    known = [v.removeprefix(ENV_PREFIX) for v in ours]
    for variable in environ:
        name = variable.removeprefix(ENV_PREFIX)
        if name != variable and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {ENV_PREFIX}{close[0]}?)" if close else ""
            yield f"environment variable {variable} is unknown and has no effect{hint}"


def describe() -> Iterator[str]:
    """One line a knob: name, value now, environment variables, meaning."""
    for row in KNOBS:
        unread = "" if row.kept is None else " (nothing reads this yet)"
        yield f"{row.name} = {get_knob(row.name)!r}  [{', '.join(row.variables)}]  {row.doc}{unread}"


class _ConfigModule(ModuleType):
    """Checks assignments; reads stay plain module attributes."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            set_knob(name, value)

    def __delattr__(self, name: str) -> None:
        raise ConfigError(f"config.{name} cannot be deleted; config.patch restores a knob")

    def __dir__(self) -> list[str]:
        return sorted({*BY_NAME, "patch", "describe", "snapshot", "KNOBS", "knob"})


def __getattr__(name: str) -> Any:
    # Reached only for names that are missing: a misspelt knob.  Dunder probes (pickle, doctest) stay AttributeError.
    if name.startswith("__"):
        raise AttributeError(name)
    knob(name)
    raise AttributeError(name)


for _row in KNOBS:
    set_knob(_row.name, _row.default)
for _name, _value in load_environment(os.environ).items():
    set_knob(_name, _value)
for _line in unknown_variables(os.environ):
    say_once(_line)
sys.modules[__name__].__class__ = _ConfigModule
