"""Knobs: the compiler's settings, each a typed attribute of this module.

A knob is set by assignment, by `patch` for a block, or before the program starts by `PYCOMPILER_<NAME>` or an older variable.
An alias is the same knob under torch's older name.
An unknown name, a wrong type and an illegal value raise `ConfigError`; the message lists the known names.

In this file a knob is a row of KNOBS, and an annotation below the table.

Example:
    ```python
    pycompiler.config.recompile_limit = 4            # for the process
    with pycompiler.config.patch(recompile_limit=2): # for a block
        pycompiler.compile(lambda x: x + 1)(torch.ones(3))
    ```
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
OTHER_VARIABLES = (ENV_PREFIX + "LOGS", ENV_PREFIX + "LOGS_OUT")  # not knobs
log = logging.getLogger("pycompiler")


@dataclass(frozen=True)
class Knob:
    """One knob.  `types` are the exact types that it accepts (an int is also accepted where float is listed).

    `env`: older environment variables that set it; `aliases`: other names of the same knob; `choices`: legal values;
    `low`, `high`: the range of a number.  `kept`: None if the code reads the knob.  Otherwise nothing reads it yet, and
    `kept` are the values that are true anyway: another value gives a warning that it has no effect.
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
        """`value` if this knob accepts it (an int becomes a float if only float is accepted), else ConfigError."""
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
        """The value of the str `text`, read from environment `variable`."""
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
    """A private directory for built kernels; under the temporary directory if there is no home."""
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
        "limit of entries for one code object of a compiled callable; then calls that fit no entry run eagerly",
        aliases=("cache_size_limit",),
        low=1,
    ),
    Knob(
        "accumulated_recompile_limit",
        (_I,),
        256,
        "limit of entries for all code objects of a compiled callable together",
        aliases=("accumulated_cache_size_limit",),
        low=1,
    ),
    Knob("error_on_recompile", (_B,), False, "raise RecompileError instead of a second compile of a code object"),
    Knob(
        "fail_on_recompile_limit_hit",
        (_B,),
        False,
        "raise RecompileLimitExceeded at a limit of entries, instead of one warning",
        aliases=("fail_on_cache_limit_hit",),
    ),
    # capture
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
        "compile only frames of functions with this name; all other frames run eagerly",
        env=("TORCHDYNAMO_DEBUG_FUNCTION",),
    ),
    Knob(
        "capture_scalar_outputs",
        (_B,),
        False,
        "capture .item() and .tolist() as symbols, instead of a graph break",
        env=("TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS",),
    ),
    Knob(
        "capture_dynamic_output_shape_ops",
        (_B,),
        False,
        "capture nonzero, masks and other operators whose result sizes depend on data, instead of a graph break",
        env=("TORCHDYNAMO_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS",),
    ),
    Knob("capture_func_transforms", (_B,), True, "capture torch.func transforms"),
    Knob("trace_numpy", (_B,), True, "capture NumPy calls as tensor operations"),
    Knob(
        "rewrite_assert_with_torch_assert",
        (_B,),
        True,
        "capture asserts on a tensor, and branches with a side that only raises, as a check in the graph",
    ),
    # shapes
    Knob(
        "dynamic_shapes",
        (_B,),
        True,
        "allow symbolic sizes; False: each new size compiles again",
        env=("TORCHDYNAMO_DYNAMIC_SHAPES",),
    ),
    Knob(
        "assume_static_by_default",
        (_B,),
        True,
        "the first compile takes sizes as constants; False: dynamic=None means dynamic=True",
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
        "int arguments are always constants of the graph, so each new value compiles again",
        env=("TORCHDYNAMO_SPECIALIZE_INT",),
    ),
    Knob(
        "specialize_float",
        (_B,),
        False,
        "float arguments are always constants of the graph, so each new value compiles again",
        env=("TORCHDYNAMO_SPECIALIZE_FLOAT",),
    ),
    # guards
    Knob("guard_nn_modules", (_B,), True, "guard the modules that the frame reads", kept=(True,)),
    # autograd and numerics
    Knob(
        "activation_memory_budget",
        (_F,),
        1.0,
        "0 to 1: share of the activations that a backward may keep (1: as the min-cut partition decides)",
        low=0.0,
        high=1.0,
    ),
    Knob(
        "partition",
        (_S,),
        "min_cut",
        "values that a forward saves: min_cut (the backward recomputes cheap operators), save_all (all that the backward reads)",
        choices=("min_cut", "save_all"),
    ),
    Knob(
        "fallback_random",
        (_B,),
        False,
        "run random operators through ATen, with eager's random numbers; always so",
        kept=(True,),
    ),
    Knob(
        "layout_optimization",
        (_B,),
        True,
        "on a GPU, convolutions in half precision or TF32 and the operators between them keep images channels last; "
        "results and gradients have eager's strides",
        env=("TORCHINDUCTOR_LAYOUT_OPTIMIZATION",),
    ),
    Knob(
        "optimize_ddp",
        (_B,),
        True,
        "under DistributedDataParallel, a backward gives gradients bucket by bucket, so that they are reduced while it runs; "
        "False: all gradients at its end",
    ),
    Knob(
        "engine_products",
        (_B,),
        True,
        "the engine multiplies matrices: on GPUs by cuBLASLt; on the CPU in inference, float32 by weights whose rows or columns "
        "are contiguous. There it also convolves images. False: ATen does",
    ),
    Knob(
        "pack_weights",
        (_B,),
        True,
        "in inference on the CPU, keep copies of the weights of convolutions: in oneDNN's layout where oneDNN convolves, and "
        "with `freezing` in the engine's; one for each model, up to 16 for each convolution",
    ),
    Knob(
        "shape_padding",
        (_B,),
        True,
        "on a GPU, pad large products of matrices whose rows do not begin at multiples of 16 bytes; False: ATen gets them as "
        "they are",
        env=("TORCHINDUCTOR_SHAPE_PADDING",),
    ),
    Knob(
        "freezing",
        (_B,),
        False,
        "weights stay as they are: a call does not compare the bytes of packed weights, and the engine keeps packed copies of "
        "large weights of convolutions; call reset() after a change",
    ),
    Knob(
        "emulate_precision_casts",
        (_B,),
        True,
        "round bfloat16 and float16 values between fused operators, as eager does; False: keep float32 between them",
    ),
    Knob(
        "fast_math",
        (_B,),
        False,
        "kernels may compute a product and a sum with one rounding: faster, but not eager's bits",
    ),
    Knob(
        "deterministic",
        (_B,),
        False,
        "generate kernels whose results repeat bit for bit; ATen's kernels need torch.use_deterministic_algorithms",
    ),
    # compiler
    Knob(
        "threads",
        (_I,),
        0,
        "threads of generated CPU kernels; 0: torch's number of threads at the call, which ATen's kernels always use",
        low=0,
        high=4096,
    ),
    Knob(
        "max_fusion_size", (_I,), 64, "limit of loops fused into one nest; targets have a limit of their own, 48", low=1
    ),
    Knob("cxx", (_S, _N), None, "command of the C++ compiler; None: environment variable CXX, then c++, g++, clang++"),
    Knob(
        "cxx_timeout",
        (_F,),
        300.0,
        "seconds after which a run of the C++ compiler is stopped; its graph then runs through ATen",
        low=0.0,
    ),
    Knob("cxx_flags", (_S,), "", "additional flags for the C++ compiler"),
    Knob(
        "compile_threads",
        (_I,),
        0,
        "limit of processes that compile kernels of GPUs; 0: as many as CPUs, at most 32; 1: this process compiles them",
        env=("TORCHINDUCTOR_COMPILE_THREADS",),
        low=0,
    ),
    Knob(
        "triton.cudagraphs",
        (_B,),
        False,
        "record the kernels of a graph as a CUDA graph, and replay it",
        env=("TORCHINDUCTOR_CUDAGRAPHS",),
    ),
    Knob(
        "triton.batch_launches",
        (_B,),
        True,
        "start kernels that follow each other by one call of the driver, once their arguments repeat; False: one by one",
    ),
    Knob(
        "triton.cudagraph_dynamic_shape_rerecord_limit",
        (_I,),
        8,
        "limit of recorded combinations of sizes for one graph; calls with further sizes launch kernels one by one",
        low=1,
    ),
    Knob("cache_dir", (_S,), _default_cache_dir(), "folder of built kernels"),
    Knob("disk_cache", (_B,), True, "store built kernels in cache_dir, for later processes"),
    # errors and debugging
    Knob(
        "verbose",
        (_B,),
        False,
        "print both stacks with an error: the program's and the compiler's",
        env=("TORCHDYNAMO_VERBOSE",),
    ),
    Knob(
        "suppress_errors",
        (_B,),
        False,
        "log errors of the compiler or a backend and run the frame eagerly, even under fullgraph or raise_internal_errors",
        env=("TORCHDYNAMO_SUPPRESS_ERRORS",),
    ),
    Knob(
        "raise_internal_errors",
        (_B,),
        False,
        "raise errors of the compiler itself, instead of a warning and an eager run of the frame",
    ),
    Knob(
        "replay_record_enabled",
        (_B,),
        False,
        "record a frame whose compile fails, for `python -m pycompiler replay`",
        env=("TORCH_COMPILE_REPLAY_RECORD",),
    ),
    Knob(
        "replay_record_limit",
        (_I,),
        1 << 28,
        "limit in bytes for the tensors in a record; of further tensors only the sizes are written",
        low=0,
    ),
    Knob(
        "repro_after",
        (_S, _N),
        None,
        "layer (dynamo or aot) after whose failure a repro is written",
        env=("TORCHDYNAMO_REPRO_AFTER",),
        choices=(None, "dynamo", "aot"),
    ),
    Knob(
        "repro_level",
        (_I,),
        2,
        "1: write repro.py after an error, 2: write a minifier launcher after an error, 3: always, 4: after wrong values",
        env=("TORCHDYNAMO_REPRO_LEVEL",),
        choices=(1, 2, 3, 4),
    ),
    Knob(
        "repro_tolerance",
        (_F,),
        1e-3,
        "difference from eager above which repro_level 4 takes a value as wrong",
        low=0.0,
    ),
    Knob(
        "repro_dir",
        (_S, _N),
        None,
        "folder for repro.py; None: debug_dir_root",
        env=("TORCHDYNAMO_REPRO_DIR",),
    ),
    Knob(
        "verify_correctness",
        (_B,),
        False,
        "compare each compiled graph with eager at its first call, forward and backward; raise if they differ",
    ),
    Knob(
        "log_level",
        (_I, _N),
        None,
        "level of the log of capture: logging.DEBUG (each instruction), INFO (graphs and bytecode), WARNING (graph breaks)",
    ),
    Knob("debug", (_B,), False, "log the work of the native backend, and the code that it generates"),
    Knob("verify_ir", (_B,), False, "check the result of each stage by its rules: loops, schedule, plan"),
    Knob(
        "debug_dir_root",
        (_S,),
        _default_debug_dir(),
        "folder for debug directories",
        env=("PYCOMPILER_DEBUG_DIR", "TORCH_COMPILE_DEBUG_DIR"),
        aliases=("base_dir",),
    ),
    Knob(
        "bisect",
        (_S, _N),
        None,
        "parts to compile in a trial of `python -m pycompiler bisect`, as in `frame<3,operator<40`",
    ),
    Knob("bisect_log", (_S, _N), None, "file with a line for each part that a trial of bisect can leave out"),
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
        "folder to which each process writes its compiles, for `python -m pycompiler trace` and Perfetto",
        env=("PYCOMPILER_TRACE", "TORCH_TRACE"),
    ),
    Knob(
        "summary_at_exit",
        (_B,),
        False,
        "print one line at the program's end: what graph breaks and recompiles cost of a step; observes every call",
    ),
    Knob("trace.debug_log", (_B,), True, "write debug.log: all log lines of a graph's compile, and its phases"),
    Knob("trace.info_log", (_B,), False, "write info.log: the log lines of level INFO and above"),
    Knob("trace.fx_graph", (_B,), True, "write fx_graph_readable.py and fx_graph_runnable.py: the captured graph"),
    Knob(
        "trace.fx_graph_transformed",
        (_B,),
        True,
        "write fx_graph_transformed.py: the graph, with the kernel or ATen call of each node",
    ),
    Knob("trace.ir_pre_fusion", (_B,), True, "write ir_pre_fusion.txt: the loops of each operator"),
    Knob("trace.ir_post_fusion", (_B,), True, "write ir_post_fusion.txt: the kernels, in order"),
    Knob("trace.output_code", (_B,), True, "write output_code.py: kernels and plan as a program"),
    Knob("trace.graph_diagram", (_B,), False, "write graph_diagram.svg: kernels and the buffers between them"),
    Knob("trace.compile_profile", (_B,), False, "write compile.prof: a profile of the compile, for pstats"),
    Knob(
        "report_guard_failures",
        (_B,),
        True,
        "log the failed guard of every recompile",
        env=("TORCHDYNAMO_REPORT_GUARD_FAILURES",),
    ),
    # background compiles
    Knob("share_regions", (_B,), True, "compile equal graphs once, even if their inputs have other sources"),
    Knob(
        "background_compile",
        (_B,),
        False,
        "default of compile(background=): a miss runs eagerly, and a worker thread compiles",
    ),
    Knob("background_workers", (_I,), 1, "limit of threads that compile in the background", low=1),
    Knob("progress", (_B,), True, "on a terminal, print the current compile if it takes more than a second"),
)

# The attributes for readers; a test checks that they equal KNOBS.
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
layout_optimization: bool
optimize_ddp: bool
engine_products: bool
pack_weights: bool
shape_padding: bool
freezing: bool
emulate_precision_casts: bool
fast_math: bool
deterministic: bool
threads: int
max_fusion_size: int
compile_threads: int
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
summary_at_exit: bool
report_guard_failures: bool
share_regions: bool
background_compile: bool
background_workers: int
progress: bool


class KnobGroup:
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


trace, triton = KnobGroup("trace"), KnobGroup("triton")


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
    """The row of `name` (or of the knob with this alias); ConfigError for an unknown name."""
    found = BY_NAME.get(name)
    if found is None:
        close = difflib.get_close_matches(name, BY_NAME, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ConfigError(f"config has no knob {name!r}{hint}. Known: {', '.join(sorted(BY_NAME))}")
    return found


def set_knob(name: str, value: Any) -> None:
    """Set a knob and its aliases, after checking name and type.  Warns if nothing reads the knob."""
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
    """Log a warning, once per process and text."""
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
    """The current values of all knobs.

    Returns:
        dict[str, Any]: Values by name.

    Example:
        ```python
        before = pycompiler.config.snapshot()
        pycompiler.config.threads = 1
        with pycompiler.config.patch(before):
            assert pycompiler.config.threads == before["threads"]
        ```
    """
    return {row.name: globals()[row.name] for row in KNOBS}


class patch(contextlib.ContextDecorator):
    """Set knobs for a `with` block or for the calls of a decorated function, and restore them afterwards.

    Args:
        changes: Names and values of knobs; or one name, as in torch's `patch("verbose", True)`.
        value: The value of that name.
        **knobs: Names and values of knobs.

    Raises:
        ConfigError: A knob does not exist, or does not accept the value.

    Example:
        ```python
        with pycompiler.config.patch(recompile_limit=4, dynamic_shapes=False):
            pycompiler.compile(lambda x: x + 1)(torch.ones(3))
        ```
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
    """Knob values set by `environ`; ConfigError for an unreadable value.  An empty str does not set a knob of type str."""
    found: dict[str, Any] = {}
    for row in KNOBS:
        variable = next((v for v in row.variables if environ.get(v) or (v in environ and str not in row.types)), None)
        if variable is not None:
            found[row.name] = row.parse(variable, environ[variable])
    return found


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """One line for each variable in `environ` with our prefix that sets nothing: it is probably misspelt."""
    ours = [*OTHER_VARIABLES, *(v for row in KNOBS for v in row.variables if v.startswith(ENV_PREFIX))]
    known = [v.removeprefix(ENV_PREFIX) for v in ours]
    for variable in environ:
        name = variable.removeprefix(ENV_PREFIX)
        if name != variable and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {ENV_PREFIX}{close[0]}?)" if close else ""
            yield f"environment variable {variable} is unknown and has no effect{hint}"


def describe() -> Iterator[str]:
    """Describe each knob: name, current value, environment variables, meaning.

    Returns:
        Iterator[str]: A line for each knob.

    Example:
        ```python
        for line in pycompiler.config.describe():
            print(line)
        ```
    """
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
    # Reached only for missing names: a misspelt knob.  Dunder probes (pickle, doctest) still raise AttributeError.
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
