"""Rules for callables: which become graph nodes, which are evaluated on constants, and which are not inlined.

In: a function.  Out: yes or no, with the reason.  The tables are by namespace and by identity.
"""

from __future__ import annotations

import binascii
import builtins
import datetime
import decimal
import functools
import inspect
import logging
import math
import os
import struct
import sys
import sysconfig
import types
import unicodedata
import weakref
import zlib
from typing import Any

import torch

from pycompiler.capture.bytecode.code_facts import reading
from pycompiler.torch_compat import torch_compile

# A function of these namespaces becomes one graph node.
GRAPH_NAMESPACES = (
    torch, torch.nn.functional, torch._C._nn, torch._C._VariableFunctions, torch.functional, torch.linalg,
    torch.fft, torch.special, torch._C._linalg, torch._C._special, torch._C._fft,  # type: ignore[attr-defined]
)  # fmt: skip

# Names in those namespaces that are no operators: they have their own handling, or break the graph.
NOT_OPERATORS = frozenset(
    {
        "compile", "compiler", "save", "load", "manual_seed", "seed", "initial_seed", "set_grad_enabled", "no_grad",
        "enable_grad", "inference_mode", "is_grad_enabled", "is_inference_mode_enabled", "set_default_dtype",
        "set_default_device", "set_default_tensor_type", "get_default_dtype", "get_default_device", "is_tensor",
        "is_storage", "set_num_threads", "set_num_interop_threads", "set_printoptions", "use_deterministic_algorithms",
        "set_float32_matmul_precision", "set_flush_denormal", "get_rng_state", "set_rng_state", "vmap", "cond",
        "while_loop", "typename", "import_ir_module", "from_numpy", "frombuffer", "as_tensor", "tensor", "asarray",
        "from_file", "get_device_module", "autocast", "is_autocast_enabled", "boolean_dispatch", "handle_torch_function",
        "has_torch_function", "has_torch_function_unary", "has_torch_function_variadic", "assert_int_or_pair",
        "_jit_internal", "Generator", "result_type_", "chunk_", "get_file_path", "sym_int",
        "sym_float", "sym_max", "sym_min", "sym_not", "sym_ite", "sym_sum", "sym_fresh_size",
        "set_autocast_enabled", "autocast_increment_nesting", "autocast_decrement_nesting", "clear_autocast_cache",
        "_assert", "fork", "wait", "parse_ir", "parse_schema", "set_anomaly_enabled", "set_warn_always",
        "is_vulkan_available", "prepare_multiprocessing_environment", "classproperty", "get_num_threads", "overload",
        "_import_dotted_name", "_running_with_deploy", "deprecated", "_check", "_check_is_size", "_check_index",
        "_check_type", "_check_value", "_check_tensor_all", "_check_not_implemented", "_check_with",
        "from_dlpack", "to_dlpack", "_to_dlpack", "gaussian_nll_loss",
    }
)  # fmt: skip


def _is_state(name: str) -> bool:
    """Whether a function of this name reads or changes torch's state.  It is no operator, and a constant result would be
    stale."""
    return name.startswith(("get_", "set_", "is_", "are_")) and not hasattr(torch.ops.aten, name)


@functools.cache
def _graph_functions() -> dict[int, Any]:
    found: dict[int, Any] = {}
    for space in GRAPH_NAMESPACES:
        for name in dir(space):
            if name in NOT_OPERATORS or name.startswith("__") or _is_state(name):
                continue
            value = getattr(space, name, None)
            if isinstance(value, types.BuiltinFunctionType) or (
                isinstance(value, types.FunctionType) and _is_operator_module(value.__module__)
            ):
                found[id(value)] = value
    return found


def _is_operator_module(module: str | None) -> bool:
    return module in ("torch", "torch.functional", "torch.nn.functional", "torch._jit_internal", "torch._lobpcg",
                      "torch.linalg", "torch.fft", "torch.special")  # fmt: skip


def in_graph(fn: Any) -> bool:
    """Whether a call of `fn` is a node of the graph."""
    return id(fn) in _graph_functions()


def dispatches_torch_function(fn: types.FunctionType) -> bool:
    """Whether `fn` is a Python function of torch that would be one graph node, or a tensor method."""
    return in_graph(fn) or of_tensors(fn)


def of_tensors(fn: types.FunctionType) -> bool:
    """Whether `fn` is a method of torch.Tensor."""
    return fn.__qualname__.startswith(("Tensor.", "TensorBase.")) and torch.Tensor.__dict__.get(fn.__name__) is fn


def is_operator_of_tensors(fn: types.FunctionType) -> bool:
    """Whether `fn` is a tensor method that computes. Methods of Python's protocols return no tensor."""
    return of_tensors(fn) and (not fn.__name__.startswith("__") or hasattr(fn, "__wrapped__"))


PURE_MODULES = frozenset({"math", "_operator", "cmath"})
# Functions of the operator module that write.  Its pure functions are known by name: a program may reload the module.
WRITES = frozenset(
    {"setitem", "delitem", "iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imod", "imul", "imatmul", "ior", "ipow",
     "irshift", "isub", "itruediv", "ixor"}
)  # fmt: skip
DATES = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone)
_DATE_IDS = frozenset(map(id, DATES))
_CONSTANT_IDS = _DATE_IDS | {id(decimal.Decimal)}


def is_date(cls: type) -> bool:
    """Whether a class is one of `DATES`, by identity: a metaclass of the program may define equality."""
    return id(cls) in _DATE_IDS


def makes_constants(cls: type) -> bool:
    """Whether objects of this class that the capture creates are constants, as numbers and strings are."""
    return id(cls) in _CONSTANT_IDS


PURE_BUILTINS = frozenset(
    {abs, ascii, bin, bytes, chr, complex, divmod, float, format, hash, hex, int, oct, ord, pow, repr,
     round, str, slice, range, frozenset, torch.device, torch.finfo, torch.iinfo, torch.Size, bool, math.prod,
     os.fspath, str.maketrans, bytes.maketrans, sys.intern, *DATES, decimal.Decimal,
     *(getattr(struct, n) for n in ("pack", "unpack", "unpack_from", "calcsize")),
     *(getattr(zlib, n) for n in ("crc32", "adler32", "compress", "decompress")),
     *(fn for n, fn in vars(binascii).items() if isinstance(fn, types.BuiltinFunctionType) and not n.startswith("_")),
     *(getattr(unicodedata, n) for n in ("normalize", "category", "name", "lookup", "combining", "east_asian_width"))}
)  # fmt: skip
PURE_TYPES = (str, bytes, int, float, complex, bool, range, torch.device, torch.dtype, torch.Size, slice, torch.finfo,
              torch.iinfo, types.CodeType, *DATES, decimal.Decimal)  # fmt: skip
CLOCK_METHODS = ("now", "today", "utcnow", "fromtimestamp", "utcfromtimestamp", "timestamp", "astimezone", "strftime", "strptime",
            "ctime", "tzname", "dst", "utcoffset")  # fmt: skip
"""Methods of dates that read a clock, the time zone or the locale."""


def is_pure(fn: Any) -> bool:
    """Whether calling `fn` on constants has no effect and depends on nothing else."""
    if issubclass(type(fn), type) and type(fn) is not type:  # a metaclass may define equality
        return False
    try:
        if fn in PURE_BUILTINS:
            return True
    except TypeError:
        return False
    if isinstance(fn, types.BuiltinFunctionType):
        owner = getattr(fn, "__self__", None)
        if isinstance(owner, types.ModuleType) or owner is None:
            return fn.__module__ in PURE_MODULES and fn.__name__ not in WRITES
        if isinstance(owner, type):
            return owner in PURE_TYPES and not _reads_clock(owner, fn)  # int.from_bytes
        return issubclass(type(owner), PURE_TYPES) and not _reads_clock(type(owner), fn)  # "".join
    owner = getattr(fn, "__objclass__", None)
    return owner in PURE_TYPES and not _reads_clock(owner, fn)


def _reads_clock(owner: Any, fn: Any) -> bool:
    return is_date(owner) and fn.__name__ in CLOCK_METHODS


# Functions of these modules are not inlined: they reach outside of the program, or are torch's own machinery.
SKIP_PREFIXES = (
    "torch._dynamo", "torch._inductor", "torch.jit", "torch._jit_internal", "torch.utils.data", "torch.distributed",
    "torch.multiprocessing", "torch.onnx", "torch.export", "torch.fx", "torch._subclasses", "torch._functorch",
    "torch.autograd.function", "torch.autograd.graph", "torch.serialization", "torch.profiler", "torch.autograd.profiler",
    "torch._tensor_str", "torch.random", "torch.hub", "torch.overrides", "torch._logging", "torch.package",
    "logging", "importlib", "threading", "unittest", "pickle", "subprocess", "socket", "tempfile", "shutil",
    "random", "time", "datetime", "asyncio", "concurrent", "multiprocessing", "traceback", "linecache", "pdb", "io",
    "numpy", "pandas", "matplotlib", "pycompiler.api", "pycompiler.capture", "pycompiler.pipeline", "pycompiler.debug",
    "pycompiler.backends", "pycompiler.runtime", "_pytest", "pluggy", "ctypes", "cffi", "warnings", "rich",
)  # fmt: skip
INLINE_ANYWAY = (
    "pycompiler.capture.semantics.polyfills", "pycompiler.capture.semantics.heap_polyfills",
    "pycompiler.capture.semantics.torch_polyfills",
    "torch.autograd.grad_mode", "torch.nn", "torch.distributions",
    "torch._functorch.apis", "torch._functorch.functional_call", "torch._functorch.eager_transforms", "torch._functorch.vmap",
    "torch._functorch.deprecated", "torch.distributed._functional_collectives",
    "torch.distributed.tensor.parallel", "torch.distributed.tensor._api", "torch.distributed.fsdp._flat_param",
    "torch.overrides", "torch.autograd.function", "torch.fx.graph_module", "torch.fx.immutable_collections",
    "unittest.case", "unittest.util",
)  # fmt: skip


INLINED: set[Any] = set()  # exceptions to SKIP_PREFIXES
INLINED_LATE: set[tuple[str, str]] = set()  # the same, as (module, name), for modules that only some programs import


def module_of(fn: types.FunctionType) -> str:
    """The name of a function's module; a program may set `__module__` to any object."""
    return fn.__module__ if isinstance(fn.__module__, str) else ""


def why_not_inlined(fn: types.FunctionType) -> tuple[str, str] | None:
    """None if `fn` may be inlined, else the break's kind and message."""
    if getattr(fn, "_pycompiler_disabled", False) or torch_compile.is_disabled(fn):
        why = getattr(fn, "_pycompiler_reason", None) or torch_compile.mark(fn, torch_compile.REASON)
        return ("disabled-call", f"{fn.__qualname__}{f' ({why})' if why else ''}")
    if getattr(fn, "_pycompiler_break", False):
        return ("explicit-break", "")
    module = module_of(fn)
    inlined = fn in INLINED or (module, fn.__qualname__) in INLINED_LATE
    if _has_prefix(module, SKIP_PREFIXES) and not _has_prefix(module, INLINE_ANYWAY) and not inlined:
        return ("skipped-call", f"{module}.{fn.__qualname__}")
    if has_other_builtins(fn):
        return ("skipped-call", f"{fn.__qualname__}, {OTHER_BUILTINS}")
    return None


# Calls on constants that may wait until the graph has run: the program does not see their effect.
DEFERRED = frozenset(
    getattr(owner, n)
    for owner in (logging.Logger, logging)
    for n in ("debug", "info", "warning", "error", "critical", "exception", "log")
)


def is_deferred(fn: Any) -> bool:
    """Whether generated code replays a call of `fn` on constants, instead of breaking the graph."""
    return fn in DEFERRED


def _has_prefix(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(module == p or module.startswith(p + ".") for p in prefixes)


# Code objects that run eagerly although their callees may be compiled: `disable(fn, recursive=False)`.
EAGER_CODES: weakref.WeakSet[types.CodeType] = weakref.WeakSet()
_LIBRARY = (*{sysconfig.get_path(n) for n in ("stdlib", "platstdlib", "purelib", "platlib")}, "<frozen ")
OPTIMIZER_CORES = ("_single_tensor_", "_multi_tensor_")
HOOKED_LIBRARIES = ("transformers", "torchvision", "timm", "diffusers")


TABLE_CODES = frozenset(
    getattr(torch.nn.Module, name).__code__
    for name in ("__init__", "__setattr__", "__delattr__", "register_buffer", "register_parameter", "add_module")
)


# Functions of `Module` that call a module.  All others manage its tables, and differ for each module class.
CALL_MODULES = frozenset({"__call__", "_wrapped_call_impl", "_call_impl", "_slow_forward", "inner", "zero_grad"})
_RECURRENT = ("RNNBase.", "RNN.", "LSTM.", "GRU.", "_apply_permutation")


def is_one_operator(module: object, qualname: str) -> bool:
    """Whether a function only wraps one operator with checks, or is part of `copy`.

    Examples are a recurrent layer and its packing functions.  Split at breaks, it is not faster, and each part is
    compiled.  Parts of a copy would be compiled for the objects that one call has copied.
    """
    return (
        module in ("torch.nn.utils.rnn", "copy") or module == "torch.nn.modules.rnn" and qualname.startswith(_RECURRENT)
    )


def why_not_hooked(fn: types.FunctionType) -> str | None:
    """Why a function called during a graph break stays uncompiled, or None if it may be compiled."""
    reason = why_not_inlined(fn)
    if reason is not None or fn.__code__ in EAGER_CODES:
        return reason[1] if reason else "marked with pycompiler.disable(recursive=False)"
    module = module_of(fn)
    if fn.__code__.co_filename.startswith(("<eval_with_key>", "<pycompiler.")):
        return "a graph, or generated code around a graph"
    if module.startswith("torch.optim.") and fn.__name__.startswith(OPTIMIZER_CORES):
        return None  # a pure function of lists of tensors
    if module == "torch" or module.startswith("torch.") and not module.startswith("torch.nn.modules."):
        return "part of torch"
    if module.startswith("pycompiler"):
        return "part of pycompiler"
    if is_one_operator(module, fn.__code__.co_qualname):
        return "a wrapper of one operator, called as it is"
    of_tables = module == "torch.nn.modules.module" and fn.__name__ not in CALL_MODULES
    if of_tables or fn.__code__ in TABLE_CODES:
        return "a function that manages a module's tables"  # each name and kind of value would be another entry
    if is_library(fn) and not _has_prefix(module, HOOKED_LIBRARIES):
        return "library code" if not module.startswith("torch.nn.modules.") else None
    return why_frame_skipped(fn.__code__)


def is_library(fn: types.FunctionType) -> bool:
    """Whether a function is part of the standard library or of an installed package.

    Functions generated from strings (methods of named tuples and dataclasses) belong to the module whose globals they
    have.
    """
    filename = fn.__code__.co_filename
    if filename == "<string>":
        if str(fn.__globals__.get("__name__")).startswith("namedtuple_"):
            return True
        filename = str(fn.__globals__.get("__file__"))
    return filename.startswith(_LIBRARY)


def builtins_of(namespace: dict[str, Any]) -> dict[str, Any]:
    """The builtins of a function created now over these globals.  A function keeps them, even if the globals change
    later."""
    found = namespace.get("__builtins__", builtins)
    return found if isinstance(found, dict) else found.__dict__  # type: ignore[no-any-return]


OTHER_BUILTINS = "whose builtins differ from those of its globals"


def has_other_builtins(fn: types.FunctionType) -> bool:
    """Whether code generated for this function would use other builtins than the function itself."""
    return fn.__builtins__ is not builtins_of(fn.__globals__)  # type: ignore[attr-defined]


REPLACES_FREE = "in which a variable of a comprehension hides an outer function's variable and is captured by a closure"


def why_frame_skipped(code: types.CodeType) -> str | None:
    """Why a root frame of this code runs eagerly as a whole, or None."""
    for flag, what in (
        (inspect.CO_GENERATOR, "generator functions run eagerly"),
        (inspect.CO_COROUTINE, "coroutines run eagerly"),
        (inspect.CO_ASYNC_GENERATOR, "asynchronous generators run eagerly"),
        (inspect.CO_ITERABLE_COROUTINE, "coroutines run eagerly"),
    ):
        if code.co_flags & flag:
            return what
    if code.co_name in ("<module>",) or not code.co_flags & inspect.CO_OPTIMIZED:
        return "module and class bodies run eagerly"
    if reading(code).replaces_free:
        return f"a function {REPLACES_FREE}"
    return None


FRAME_INSPECTORS = {
    "_getframe",
    "_getframemodulename",
    "currentframe",
    "extract_stack",
    "format_stack",
    "print_stack",
    "walk_stack",
}
STACKLEVEL = "stacklevel"


def counts_frames(code: types.CodeType, namespace: dict[str, Any]) -> bool:
    """Whether a function, or a function it names, inspects the frame stack, judged by names and by an argument
    `stacklevel`."""
    named = [namespace[name] for name in code.co_names if name in namespace]
    todo = [code, *(real.__code__ for real in named if type(real) is types.FunctionType)]
    for code in todo:
        words = [name for c in code.co_consts if type(c) is tuple for name in c]
        if (
            FRAME_INSPECTORS & {*code.co_names}
            or STACKLEVEL in words
            or ("inspect" in code.co_names and "stack" in code.co_names)
        ):
            return True
        todo += [c for c in code.co_consts if type(c) is types.CodeType]
    return False
