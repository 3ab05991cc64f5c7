"""pycompiler: a compiler for PyTorch programs.  See README.md.  `__all__` lists the public names."""

import sys as _sys

if "t" in _sys.abiflags:
    raise ImportError(
        f"pycompiler needs a build of CPython with the GIL, and this one ({_sys.version.split()[0]}t) is free-threaded: "
        "its engine shares state by the GIL"
    )

from pycompiler.torch_compat import program_builtins as _own_builtins  # noqa: F401, I001  (before all others)
from pycompiler import absent_names as _absent
from pycompiler import config, engine, exc, utils  # noqa: F401  (utils: programs for torch._dynamo reach it so)
from pycompiler._native import __version__
from pycompiler.api import (
    compile,
    counters,
    cudagraph_mark_step_begin,
    disable,
    explain_miss,
    graph_break,
    is_compiling,
    is_dynamo_compiling,
    is_exporting,
    load,
    load_cache_artifacts,
    load_compiled_function,
    optimize,
    reset,
    run,
    save,
    save_cache_artifacts,
    set_policy,
    set_stance,
    skip,
    wait_for_compiles,
)
from pycompiler.backends import (
    get_default_backend,
    list_backends,
    lookup_backend,
    register_backend,
    set_default_backend,
)
from pycompiler.debug import observer_switches as _switch  # noqa: F401  (hears of knobs)
from pycompiler.debug.guard_profile import guard_profile
from pycompiler.debug.explain import explain
from pycompiler.operators.numpy_arrays import wrap_numpy
from pycompiler.ir.cuda_graph_override import override_cudagraphs
from pycompiler.ir.function_marks import (
    allow_in_graph,
    assume_constant_result,
    disallow_in_graph,
    error_on_graph_break,
    nonstrict_trace,
    substitute_in_graph,
)
from pycompiler.ir.guard_filters import (
    keep_portable_guards_unsafe,
    keep_tensor_guards_unsafe,
    skip_all_guards_unsafe,
    skip_guard_on_all_nn_modules_unsafe,
    skip_guard_on_globals_unsafe,
    skip_guard_on_inbuilt_nn_modules_unsafe,
)
from pycompiler.symbolic.dynamic_marks import mark_dynamic, mark_static, mark_unbacked, maybe_mark_dynamic
from pycompiler.ir.nested_regions import nested_compile_region
from pycompiler.ir.phases import compile_times
from pycompiler import precompile

engine.initialise()

__all__ = [
    "__version__", "allow_in_graph", "assume_constant_result", "compile", "compile_times", "config", "counters",
    "cudagraph_mark_step_begin",
    "disable", "disallow_in_graph", "error_on_graph_break", "exc", "explain", "explain_miss", "get_default_backend",
    "graph_break", "guard_profile", "is_compiling", "is_dynamo_compiling", "is_exporting",
    "keep_portable_guards_unsafe", "keep_tensor_guards_unsafe", "list_backends", "load", "load_cache_artifacts",
    "load_compiled_function", "lookup_backend", "mark_dynamic",
    "mark_static", "mark_unbacked", "maybe_mark_dynamic", "nested_compile_region", "nonstrict_trace", "optimize",
    "override_cudagraphs",
    "precompile", "register_backend", "reset", "run", "save", "save_cache_artifacts",
    "set_default_backend", "set_policy", "set_stance", "skip", "skip_all_guards_unsafe",
    "skip_guard_on_all_nn_modules_unsafe", "skip_guard_on_globals_unsafe", "skip_guard_on_inbuilt_nn_modules_unsafe",
    "substitute_in_graph", "wait_for_compiles", "wrap_numpy",
]  # fmt: skip


def __getattr__(name: str) -> object:
    reason = _absent.ABSENT.get(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{f': {reason}' if reason else ''}")
