"""Which callables go into the graph, which are evaluated on constants, and which are not inlined.

In: a function.  Out: yes or no, with the reason.  Three tables, by namespace and by identity.
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

from pycompiler.capture.bytecode.reading import reading
from pycompiler.ir import peer

# Functions of these namespaces go into the graph as one node each.
GRAPH_NAMESPACES = (
    torch, torch.nn.functional, torch._C._nn, torch._C._VariableFunctions, torch.functional, torch.linalg,
    torch.fft, torch.special, torch._C._linalg, torch._C._special, torch._C._fft,  # type: ignore[attr-defined]
)  # fmt: skip

# Names in those namespaces that are not operators: they keep their own handling, or break the graph.
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
    """Whether a function by this name reads or changes torch's state: it is no operator, and a constant would be stale."""
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


def asks(fn: types.FunctionType) -> bool:
    """Whether `fn` is a function of torch's, written in Python, that would be one node of the graph, or a tensor's method."""
    return in_graph(fn) or of_tensors(fn)


def of_tensors(fn: types.FunctionType) -> bool:
    """Whether `fn` is a method of torch.Tensor."""
    return fn.__qualname__.startswith(("Tensor.", "TensorBase.")) and torch.Tensor.__dict__.get(fn.__name__) is fn


def is_operator_of_tensors(fn: types.FunctionType) -> bool:
    """Whether `fn` is a method of torch.Tensor that computes: not one of Python's protocols, which give no tensor."""
    return of_tensors(fn) and (not fn.__name__.startswith("__") or hasattr(fn, "__wrapped__"))


PURE_MODULES = frozenset({"math", "_operator", "cmath"})
# Functions of the operator module that write; what is pure of it is so by name: a program may load the module anew.
WRITES = frozenset(
    {"setitem", "delitem", "iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imod", "imul", "imatmul", "ior", "ipow",
     "irshift", "isub", "itruediv", "ixor"}
)  # fmt: skip
DATES = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone)
_DATE_IDS = frozenset(map(id, DATES))
_CONSTANT_IDS = _DATE_IDS | {id(decimal.Decimal)}


def is_date(cls: type) -> bool:
    """Whether it is one of those classes: its metaclass, which may be the program's, is not asked."""
    return id(cls) in _DATE_IDS


def makes_constants(cls: type) -> bool:
    """Whether objects of this class that the capture has made are constants, as numbers and texts are."""
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
OF_TODAY = ("now", "today", "utcnow", "fromtimestamp", "utcfromtimestamp", "timestamp", "astimezone", "strftime", "strptime",
            "ctime", "tzname", "dst", "utcoffset")  # fmt: skip
"""Methods of dates that ask a clock, the time zone or the language."""


def is_pure(fn: Any) -> bool:
    """Whether calling `fn` on constants has no effect and depends on nothing else."""
    if issubclass(type(fn), type) and type(fn) is not type:  # a metaclass may say what it equals
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
            return owner in PURE_TYPES and not _asks_today(owner, fn)  # int.from_bytes
        return issubclass(type(owner), PURE_TYPES) and not _asks_today(type(owner), fn)  # "".join
    owner = getattr(fn, "__objclass__", None)
    return owner in PURE_TYPES and not _asks_today(owner, fn)


def _asks_today(owner: Any, fn: Any) -> bool:
    return is_date(owner) and fn.__name__ in OF_TODAY


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
    "pycompiler.capture.polyfills", "pycompiler.capture.heaps", "pycompiler.capture.composed",
    "torch.autograd.grad_mode", "torch.nn", "torch.distributions",
    "torch._functorch.apis", "torch._functorch.functional_call", "torch._functorch.eager_transforms", "torch._functorch.vmap",
    "torch._functorch.deprecated", "torch.distributed._functional_collectives",
    "torch.distributed.tensor.parallel", "torch.distributed.tensor._api", "torch.distributed.fsdp._flat_param",
    "torch.overrides", "torch.autograd.function", "torch.fx.graph_module", "torch.fx.immutable_collections",
    "unittest.case", "unittest.util",
)  # fmt: skip


INLINED: set[Any] = set()  # ... but for these
INLINED_LATE: set[tuple[str, str]] = set()  # ... and (module, name) of what only some programs import


def module_of(fn: types.FunctionType) -> str:
    """The name of its module, which a program may set to anything."""
    return fn.__module__ if isinstance(fn.__module__, str) else ""


def why_not_inlined(fn: types.FunctionType) -> tuple[str, str] | None:
    """None if `fn` may be inlined, else the break's kind and text."""
    if getattr(fn, "_pycompiler_disabled", False) or peer.is_disabled(fn):
        why = getattr(fn, "_pycompiler_reason", None) or peer.mark(fn, peer.REASON)
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


# Calls on constants that may wait until the graph has run: their effect is not seen by the program.
DEFERRED = frozenset(
    getattr(owner, n)
    for owner in (logging.Logger, logging)
    for n in ("debug", "info", "warning", "error", "critical", "exception", "log")
)


def is_deferred(fn: Any) -> bool:
    """Whether a call of `fn` on constants is replayed by the generated code instead of breaking the graph."""
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


# Functions of `Module` that call one; all others look after its tables, and differ for each class of module.
CALL_MODULES = frozenset({"__call__", "_wrapped_call_impl", "_call_impl", "_slow_forward", "inner", "zero_grad"})
_RECURRENT = ("RNNBase.", "RNN.", "LSTM.", "GRU.", "_apply_permutation")


def is_one_operator(module: object, qualname: str) -> bool:
    """Whether a function is checks around one operator: a recurrent layer, or what packs for it; or a copy, whose pieces
    know the objects that one call has copied.  In pieces it is as slow, and each piece compiles."""
    return (
        module in ("torch.nn.utils.rnn", "copy") or module == "torch.nn.modules.rnn" and qualname.startswith(_RECURRENT)
    )


def why_not_hooked(fn: types.FunctionType) -> str | None:
    """Why a function reached while a graph break runs is left alone, or None if it may be compiled."""
    reason = why_not_inlined(fn)
    if reason is not None or fn.__code__ in EAGER_CODES:
        return reason[1] if reason else "marked with pycompiler.disable(recursive=False)"
    module = module_of(fn)
    if fn.__code__.co_filename.startswith(("<eval_with_key>", "<pycompiler.")):
        return "a graph, or code around one"
    if module.startswith("torch.optim.") and fn.__name__.startswith(OPTIMIZER_CORES):
        return None  # a pure function of lists of tensors
    if module == "torch" or module.startswith("torch.") and not module.startswith("torch.nn.modules."):
        return "part of torch"
    if module.startswith("pycompiler"):
        return "part of pycompiler"
    if is_one_operator(module, fn.__code__.co_qualname):
        return "one operator, which is called as it is"
    of_tables = module == "torch.nn.modules.module" and fn.__name__ not in CALL_MODULES
    if of_tables or fn.__code__ in TABLE_CODES:
        return "what keeps a module's tables"  # each name and kind of value would be another entry
    if is_library(fn) and not _has_prefix(module, HOOKED_LIBRARIES):
        return "library code" if not module.startswith("torch.nn.modules.") else None
    return why_frame_skipped(fn.__code__)


def is_library(fn: types.FunctionType) -> bool:
    """Whether a function is a part of the standard library or of an installed package.

    What these made of text (methods of named tuples and dataclasses) belongs to the module that it has for globals.
    """
    filename = fn.__code__.co_filename
    if filename == "<string>":
        if str(fn.__globals__.get("__name__")).startswith("namedtuple_"):
            return True
        filename = str(fn.__globals__.get("__file__"))
    return filename.startswith(_LIBRARY)


def builtins_of(namespace: dict[str, Any]) -> dict[str, Any]:
    """The builtins of a function that is made now over these globals.  It keeps them, whatever the globals say later."""
    found = namespace.get("__builtins__", builtins)
    return found if isinstance(found, dict) else found.__dict__  # type: ignore[no-any-return]


OTHER_BUILTINS = "whose builtins are no longer those of its globals"


def has_other_builtins(fn: types.FunctionType) -> bool:
    """Whether code generated for this function would look up other builtins than the function itself."""
    return fn.__builtins__ is not builtins_of(fn.__globals__)  # type: ignore[attr-defined]


REPLACES_FREE = "in which a comprehension has a variable of an outer function's name, for closures"


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


LOOKS = {
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
    """Whether a function, or one that it names, asks which frames there are, by a name or an argument that says so."""
    named = [namespace[name] for name in code.co_names if name in namespace]
    todo = [code, *(real.__code__ for real in named if type(real) is types.FunctionType)]
    for code in todo:
        words = [name for c in code.co_consts if type(c) is tuple for name in c]
        if LOOKS & {*code.co_names} or STACKLEVEL in words or ("inspect" in code.co_names and "stack" in code.co_names):
            return True
        todo += [c for c in code.co_consts if type(c) is types.CodeType]
    return False
