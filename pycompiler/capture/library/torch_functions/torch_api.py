"""Handlers of torch functions that are no operators: global state, queries, and marks of this package.

A change of global state (grad mode, autocast) is applied during the capture and recorded as a node of the graph.  If
it outlives the frame, generated code replays it (`capture/recipe/codegen.py`).
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext

from pycompiler import config
from pycompiler.capture.arrays import constant_arrays, numpy_calls
from pycompiler.capture.breaks import Break, EagerOnce
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.capture.interpreter.calls import (
    LATE_BUILTINS,
    Args,
    Kwargs,
    QueryResult,
    builtin,
    constructor,
    takes_nothing,
)
from pycompiler.capture.interpreter.recursion_limit import programs_limit
from pycompiler.capture.interpreter.tracers import mapped
from pycompiler.capture.library.torch_functions.tensor_constructors import dtype_of_numbers, of_tensors, stacked
from pycompiler.capture.semantics import operators
from pycompiler.capture.semantics.signatures import constant_arguments
from pycompiler.capture.values import array, symbolic_numbers
from pycompiler.capture.values.array import Array
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.symbolic_numbers import PLAIN_VALUES, Symbolic
from pycompiler.capture.values.tensor import Tensor, as_subclass
from pycompiler.ir import cuda_graph_override, function_marks
from pycompiler.ir.source import const_source
from pycompiler.operators import numpy_arrays
from pycompiler.torch_compat import torch_compile
from pycompiler.torch_compat.autocast_regions import autocast_nesting, drop_casts, step_nesting
from pycompiler.torch_compat.torch_state import ATTENTION, PRIORITY, PROCESS_WIDE, STATE, read_state, write_state

ALWAYS_CALLED = torch.nn.modules.module._global_forward_hooks_always_called


class _Switched(threading.local):
    """The process-wide state that the capture in this thread has switched; other threads may have switched the rest."""

    def __init__(self) -> None:
        self.names = set[str]()


_switched = _Switched()
_NAMES = {write: name for name, (_, write) in STATE.items()} | {torch.use_deterministic_algorithms: "deterministic"}


def changes(state: dict[str, Any]) -> list[str]:
    """The names of the state that this thread's capture has changed since `state` was read."""
    known = (n for n in STATE if n not in PROCESS_WIDE or n in _switched.names)
    return [name for name in known if STATE[name][0]() != state[name]]


def restore_state(state: dict[str, Any]) -> None:
    """Restore the state: the capture ends, or starts again."""
    write_state({name: state[name] for name in changes(state)})
    _switched.names.clear()


def switch(cx: Capture, setter: Any, *args: Any, **kwargs: Any) -> Any:
    """Change state now, and by a node of the graph."""
    _switched.names.add(_NAMES.get(setter, ""))
    return cx.evaluate_raw(cx.graph.set_state, setter, *args, **kwargs)


def _constant(value: Any, *fns: Any) -> None:
    builtin(*fns)(takes_nothing(lambda cx, args, kwargs: Const(value)))


_constant(False, torch._jit_internal.is_scripting, torch.jit._trace.is_tracing, torch.is_vulkan_available)
inlining_rules.INLINED |= {torch.fx.ProxyableClassMeta.__call__}
LATE_BUILTINS["torch.onnx", "is_in_onnx_export"] = lambda cx, args, kwargs: Const(False)
LATE_BUILTINS["torch._dynamo.external_utils", "is_compiling"] = lambda cx, args, kwargs: Const(True)
_constant(False, torch._C._is_tracing)
_constant(None, torch._C._get_tracing_state)
_constant(True, torch.compiler.is_dynamo_compiling, torch._utils.is_compiling)


@builtin(LazyModuleMixin._infer_parameters)
def infer_parameters(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """The hook of a lazy module. It replaces the module's parameters and class, and removes itself."""
    raise EagerOnce("the frame calls a lazy module for the first time")


@builtin(torch.compiler.is_compiling)
def is_compiling(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`torch.compiler.is_compiling()`: True, with two exceptions.

    A module with always-called hooks gets False: a compiled module call of torch omits them.  Transforms get False,
    too: they would not name their results.
    """
    frame = cx.frames[-1]
    if frame.code.co_filename == torch._functorch.apis.__file__:
        return Const(False)
    if frame.code is not torch.nn.Module._call_impl.__code__:
        return Const(True)
    module = frame.cell("self").contents
    assert module is not None
    tables = (
        cx.wrap(ALWAYS_CALLED, const_source(ALWAYS_CALLED)),
        cx.realize(module).getattr(cx, "_forward_hooks_always_called"),
    )
    return Const(not any(cx.truth(t) for t in tables))


def _query(*fns: Any) -> None:
    """Register queries of guarded global state: evaluated during the capture."""
    for fn in fns:
        builtin(fn)(lambda cx, args, kwargs, _fn=fn: cx.evaluate(_fn, *args, **kwargs))  # type: ignore[misc]


@builtin(torch.is_grad_enabled)
@takes_nothing
def is_grad_enabled(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if cx.graph.later:
        raise Break("inner-graph", "a read of the grad mode in a backward")
    if cx.graph.reentrant and cx.frames[-1].code.co_filename != torch.autograd.grad_mode.__file__:
        raise Break(
            "inner-graph", "a read of the grad mode in a reentrant checkpoint: off in its forward, on in its backward"
        )
    return Const(torch.is_grad_enabled())


@builtin(PRIORITY[0])
def attention_priority(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """The attention kernel that is preferred: set by the program, or else the value around the call, guarded here."""
    if any(n.target is PRIORITY[1] for n in cx.graph.graph.nodes):
        return cx.evaluate(PRIORITY[0])
    return cx.call(cx.make(list), [guarded_query(cx, PRIORITY[0])], {})


_query(*(read for read, _ in ATTENTION.values()))
_query(torch.get_autocast_gpu_dtype, torch._C._is_any_autocast_enabled, torch.mps.is_available, torch.mtia.is_available,
       torch.xpu.is_available, torch.backends.mps.is_available, torch.backends.mps.is_built,
       torch.accelerator.is_available)  # fmt: skip
_query(torch.is_autocast_enabled, torch.get_autocast_dtype,
       torch.is_autocast_cache_enabled, torch.get_default_dtype, torch.are_deterministic_algorithms_enabled,
       torch.amp.is_autocast_available, torch.cuda.is_available,
       torch._C._get_default_device, torch._C._get_accelerator, torch.is_autocast_cpu_enabled,
       torch._C._get_privateuse1_backend_name, torch.is_anomaly_enabled,
       torch.is_deterministic_algorithms_warn_only_enabled, torch.get_deterministic_debug_mode)  # fmt: skip

if hasattr(torch._C, "_accelerator_getAccelerator"):  # torch 2.15 has it, 2.11 has not
    _query(torch._C._accelerator_getAccelerator)


def _is_switch(cx: Capture, fn: Any) -> bool:
    """Whether the call comes from torch.no_grad or a similar manager, which may be nested often."""
    return fn is torch._C._set_grad_enabled and cx.frames[-1].code.co_filename == torch.autograd.grad_mode.__file__


def _setter(*fns: Any) -> None:
    for fn in fns:

        @builtin(fn)
        def call(cx: Capture, args: Args, kwargs: Kwargs, _fn: Any = fn) -> Value:
            state = read_state()  # the query itself may change the state
            found = cx.functions.ask(_fn, args, kwargs)
            write_state(state)
            if found is not None:
                return found
            given = [cx.snapshot(a) for a in args]
            if _fn is torch._C._set_grad_enabled and given == [True] and cx.inference.open:
                raise Break("global-state", "grad mode switched on in inference mode")
            if _is_switch(cx, _fn) and given and given[0] is torch.is_grad_enabled() and not cx.graph.later:
                return Const(None)
            result = switch(cx, _fn, *given)
            example = result.meta["example_value"]
            return Const(example) if isinstance(example, (int, bool, type(None))) else Const(None)


_setter(torch._C._set_grad_enabled, torch.set_autocast_enabled, torch.set_autocast_dtype,
        torch.set_autocast_cache_enabled, PRIORITY[1], *(write for _, write in ATTENTION.values()))  # fmt: skip


@builtin(torch.autocast_increment_nesting)
def enter_region(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Enter an autocast region, now and in the code after the graph, if the region is still open (`restore_state`)."""
    return _step(cx, 1)


@builtin(torch.autocast_decrement_nesting)
def leave_region(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Leave an autocast region; after the outermost one, a graph that runs as captured drops its cached casts."""
    left = _step(cx, -1)
    if cx.autocast_regions == 0:
        cx.graph.set_state(drop_casts)
    return left


def _step(cx: Capture, by: int) -> Value:
    if cx.frames[-1].code.co_filename != torch.amp.autocast_mode.__file__:  # the result depends on the caller's regions
        raise Break("global-state", "a change of the count of autocast regions outside of torch.autocast")
    step_nesting(by)
    cx.autocast_regions += by
    return Const(autocast_nesting())


@builtin(torch.clear_autocast_cache)
def clear_casts(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if cx.frames[-1].code.co_filename != torch.amp.autocast_mode.__file__:
        switch(cx, torch.clear_autocast_cache)
    return Const(None)


@builtin(torch.use_deterministic_algorithms)
def use_deterministic_algorithms(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Kernels depend on it at run time: a graph with this call is not compiled."""
    if len(args) != 1 or not kwargs.keys() <= {"warn_only"} or not all(v.is_const() for v in (*args, *kwargs.values())):
        raise Break("global-state", "torch.use_deterministic_algorithms")
    known = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    wanted = args[0].const(), kwargs["warn_only"].const() if kwargs else False
    if wanted != (*known,) or torch_compile.deterministic() != wanted[0]:
        switch(cx, torch.use_deterministic_algorithms, wanted[0], warn_only=wanted[1])
    return Const(None)


@builtin(torch.set_default_dtype)
def set_default_dtype(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Operators depend on it at run time: a graph with this call is not compiled."""
    if len(args) != 1 or kwargs or type(args[0]) is not Const or cx.graph.is_inner:
        raise Break("global-state", "torch.set_default_dtype")
    if args[0].const() is not torch.get_default_dtype():
        switch(cx, torch.set_default_dtype, args[0].const())
    return Const(None)


@builtin(function_marks.switch_errors)
def switch_errors(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    before, cx.errors = cx.errors, cx.truth(args[0])
    return Const(before)


@builtin(cuda_graph_override.switch)
def switch_cuda_graphs(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    kind, value = (cx.realize(a) for a in args)
    if type(kind) is not Const or type(value) is not Const:
        raise Break("global-state", "override_cudagraphs")
    return Const(cx.override_cuda_graphs(kind.const(), value.const()))


LATE_BUILTINS["torch._dynamo.decorators", "override_cudagraphs"] = lambda cx, args, kwargs: cx.call(
    cx.make(cuda_graph_override.override_cudagraphs), args, kwargs
)

# torch's manager has the same meaning; as a decorator: `capture/interpreter/calls.py`.
LATE_BUILTINS["torch._dynamo.decorators", "error_on_graph_break"] = lambda cx, args, kwargs: cx.call(
    cx.make(function_marks.error_on_graph_break), args, kwargs
)


def _guarded_queries(*fns: Any) -> None:
    """Register queries of state that no guard compares: the answer gets a guard of its own."""
    for fn in fns:
        builtin(fn)(lambda cx, args, kwargs, _fn=fn: guarded_query(cx, _fn))  # type: ignore[misc]


def guarded_query(cx: Capture, fn: Any) -> Value:
    kept = cx.kept.setdefault((fn,), QueryResult(fn, [], {}))
    return cx.wrap(kept.result, const_source(kept).attr("result"))


_guarded_queries(torch._C._get_cublas_allow_tf32, torch.get_num_threads, torch.get_float32_matmul_precision,
       torch.autograd._is_checkpoint_valid, torch.fx._symbolic_trace.is_fx_tracing)  # fmt: skip
builtin(sys.getrecursionlimit)(lambda cx, args, kwargs: guarded_query(cx, programs_limit))
LATE_BUILTINS["torch.distributed", "is_available"] = lambda cx, args, kwargs: Const(torch.distributed.is_available())
LATE_BUILTINS["torch.distributed.distributed_c10d", "is_initialized"] = lambda cx, args, kwargs: guarded_query(
    cx, torch.distributed.is_initialized
)


@builtin(torch._C._len_torch_dispatch_stack)
@takes_nothing
def dispatch_modes(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """0: a call under a dispatch mode runs eagerly, and a graph enters none."""
    if torch._C._len_torch_dispatch_stack():
        raise Break("global-state", "a read of the stack of dispatch modes")
    return Const(0)


@builtin(torch._C._are_functorch_transforms_active)
@takes_nothing
def transforms_active(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if cx.graph.levels:
        raise Break("inner-graph", "a function under a transform that asks whether a transform is active")
    return Const(False)


@builtin(torch.jit._unwrap_optional)
def jit_unwrap_optional(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if cx.is_none(args[0]):
        cx.throw(AssertionError, "Unwrapping null optional")
    return args[0]


@builtin(torch.jit.annotate)
def jit_annotate(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return args[1]


@builtin(torch.is_tensor)
def is_tensor(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(isinstance(args[0], Tensor))


@builtin(torch.from_numpy)
def from_numpy(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1 or kwargs or not isinstance(args[0], Array) or args[0].fixed or args[0].scalar:
        raise Break("unsupported-operation", "torch.from_numpy")
    if args[0].tensor.device.type != "cpu":  # new arrays are created on the default device
        raise Break("unsupported-operation", "torch.from_numpy with a default device")
    return array.to_tensor(cx, args[0])


@builtin(numpy_arrays.of_tensor)
def numpy_of_tensor(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if numpy_arrays.numpy() is None or not config.trace_numpy or not isinstance(args[0], Tensor):
        raise Break("data-dependent-value", "Tensor.numpy()")
    return array.of_tensor(cx, args[0], args[1:], kwargs)


@builtin(numpy_arrays.method)
def method_of_array(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return constant_arrays.call_method(cx, args[0].const(), args[1:], kwargs)


@builtin(numpy_arrays.attribute)
def attribute_of_array(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return numpy_calls.attribute(cx, args[0].const(), args[1])


@builtin(numpy_arrays.mark)
def arrays_of_tensors(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return mapped(cx, args[0], Array, _leaf)


@builtin(numpy_arrays.unmark)
def tensors_of_arrays(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    def tensor(value: Value) -> Value:
        if isinstance(value, Array):
            return value.tensor
        if not isinstance(value, Const) or not numpy_arrays.is_number(value.value):
            return _leaf(value)
        dtype = cx.evaluate_raw(torch.as_tensor, value.value).dtype
        return tensor_from(cx, torch.as_tensor, [Const(value.value.item())], {"dtype": Const(dtype)})

    return mapped(cx, args[0], lambda t: t, tensor)


def _leaf(value: Value) -> Value:
    """A value that torch's pytrees treat as one leaf."""
    if value.python_type() in pytree.SUPPORTED_NODES and not isinstance(value, Const):
        raise Break("unsupported-operation", f"wrap_numpy of a value that holds {value.describe()}")
    return value


def _holds_tensor(value: Value) -> bool:
    if isinstance(value, (Tensor, Array)):
        return True
    return isinstance(value, (Tuple, List)) and any(_holds_tensor(v) for v in value.items)


for _fn in (torch.tensor, torch.as_tensor, torch.asarray):
    builtin(_fn)(lambda cx, args, kwargs, _fn=_fn: tensor_from(cx, _fn, args, kwargs))  # type: ignore[misc]


def default_device() -> torch.device | None:
    """The device that torch's device mode gives to constructors around this capture, or None."""
    stack = map(torch._C._get_function_stack_at, range(torch._C._len_torch_function_stack()))
    return next((mode.device for mode in stack if isinstance(mode, DeviceContext)), None)


def tensor_from(cx: Capture, fn: Any, args: Args, kwargs: Kwargs) -> Value:
    device = cx.device or default_device()
    if device is not None and cx.is_none(kwargs.get("device", Const(None))):
        kwargs = {**kwargs, "device": Const(device)}
    if args and isinstance(args[0], Array):
        made: Value = array.to_tensor(cx, args[0])
        if fn is torch.tensor:
            made = cx.graph.call_method("clone", [made], {})
        return cx.graph.call_function(torch.as_tensor, [made, *args[1:]], kwargs) if args[1:] or kwargs else made
    if args and isinstance(args[0], Tensor):
        if cx.items.is_number(args[0]):
            dtype = Const(torch.get_default_dtype())  # the dtype of a float
            made = cx.graph.call_method("to", [args[0], dtype], {"copy": Const(True)})
            return cx.graph.call_function(torch.as_tensor, [made, *args[1:]], kwargs)  # not a tensor of a tensor
        if fn is torch.tensor:
            return _copied(cx, args, kwargs)
        return cx.graph.call_function(fn, args, kwargs)
    if args and _holds_tensor(args[0]):
        if (stack := of_tensors(cx, fn, args, kwargs)) is not None:
            return stack
        raise Break("data-dependent-value", f"torch.{fn.__name__}([tensor, ...])")
    if args and cx.is_none(kwargs.get("dtype", Const(None))) and (found := dtype_of_numbers(cx, args[0])) is not None:
        kwargs = {**kwargs, "dtype": found}
    return stacked(cx, fn, args, kwargs) or cx.graph.call_function(fn, args, kwargs)


# Tensor classes that stand for a dtype.
LEGACY: tuple[Any, ...] = tuple(
    getattr(torch, f"{name}Tensor")
    for name in ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")
)


def legacy(cx: Capture, cls: Any, args: Args, kwargs: Kwargs) -> Value:
    """`torch.Tensor(...)` and similar classes, of numbers in lists or of a size; no function mode is called."""
    args = [cx.realize(v) for v in args]
    what = f"torch.{cls.__name__}({', '.join(v.describe() for v in args)})"
    if kwargs or cx.functions.modes_on() or torch._C._get_default_device() != "cpu":
        raise Break("builtin-call", what)
    dtype = torch.get_default_dtype() if cls is torch.Tensor else cls.dtype
    given: Kwargs = {"dtype": Const(dtype), "device": Const(torch.device("cpu"))}
    data = args[0] if len(args) == 1 else None
    if isinstance(data, Tensor) and cls is torch.Tensor:
        return as_subclass(cx, [data, cx.make(cls)], {})
    if isinstance(data, (List, Tuple)) and data.cls in (list, tuple):
        return tensor_from(cx, torch.tensor, [data], given)
    size = data.items if isinstance(data, Tuple) and data.cls is torch.Size else args
    if not all(v.python_type() is int for v in map(cx.realize, size)):
        raise Break("builtin-call", what)
    return cx.graph.call_function(torch.empty, [Tuple([*size] if args else [Const(0)])], given)


for _cls in (torch.Tensor, *LEGACY):
    constructor(_cls)(lambda cx, args, kwargs, _cls=_cls: legacy(cx, _cls, args, kwargs))  # type: ignore[misc]


def _copied(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """torch.tensor(tensor): a detached copy."""
    given = {k: v for k, v in kwargs.items() if k in ("dtype", "device") and not cx.is_none(v)}
    if len(args) > 1 or len(given) != len(kwargs):
        raise Break("unsupported-operation", "torch.tensor(tensor, ...)")
    cx.warns_of("a tensor of a tensor")
    copied = cx.graph.call_method("to", [cx.graph.call_method("detach", args, {})], {
        "dtype": args[0].getattr(cx, "dtype"), **given, "copy": Const(True)})  # fmt: skip
    return copied


def _all_true(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Argument checks of distributions, which raise an error unless they hold."""
    holds = cx.graph.call_function(torch._is_all_true, args[:1], {})
    return Const((isinstance(holds, Tensor) and cx.graph.expect(holds, True)) or cx.truth(holds))


LATE_BUILTINS["torch.distributions.distribution", "_all_true_or_runtime_assert"] = _all_true


def _assume_condition(cx: Capture, condition: Value, name: str) -> Value:
    """A condition that the program checks holds from then on.

    For unbacked symbols the graph checks it at run time.  If it may be false, the statement runs natively, and
    raises.
    """
    if isinstance(condition, Symbolic) and symbolic_numbers.is_unbacked(condition.sym):
        node = condition.sym.node
        holds = node.env.demand(node.value) if node.is_bool() else symbolic_numbers.truth_by_facts(condition.sym)
    elif isinstance(condition, PLAIN_VALUES) and condition.python_type() is bool:
        holds = cx.truth(condition)
    else:
        holds = False
    if not holds:
        raise Break("data-dependent-value", f"torch.{name}")
    return Const(None)


def _check(name: str, position: int) -> None:
    @builtin(getattr(torch, name))
    def check(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        condition = args[position] if len(args) > position else kwargs.get("cond")
        if condition is None:
            raise Break("unsupported-operation", f"torch.{name}")
        return _assume_condition(cx, condition, name)


for _checked in ("_check", "_check_index", "_check_value", "_check_type", "_check_not_implemented"):
    _check(_checked, 0)
_check("_check_with", 1)


@builtin(torch._check_tensor_all_with)
def check_tensor_all_with(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    condition = args[1] if len(args) > 1 else kwargs.get("cond")
    if isinstance(condition, Tensor) and condition.dtype is torch.bool:
        holds = cx.graph.call_function(torch._is_all_true, [condition], {})
        if isinstance(holds, Tensor) and cx.graph.expect(holds, True):
            return Const(None)
    raise Break("data-dependent-value", "torch._check_tensor_all_with")


@builtin(torch._check_is_size)
def check_is_size(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(text := getattr(torch._check_is_size, "__deprecated__", None), str):
        cx.call_builtin(warnings.warn, [Const(text), Const(FutureWarning)], {})
    _assume_condition(cx, operators.compare(cx, ">=", args[0], Const(0)), "_check_is_size")
    most = kwargs.get("max")
    if most is not None and not cx.is_none(most):
        _assume_condition(cx, operators.compare(cx, "<=", args[0], most), "_check_is_size")
    return Const(None)


@builtin(torch._C._autograd._saved_tensors_hooks_is_enabled)  # type: ignore[attr-defined]
@takes_nothing
def hooks_enabled(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(True)


@builtin(torch._C._log_api_usage_once)
def log_usage(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if args[0].python_type() is not str:
        raise Break("builtin-call", f"_log_api_usage_once({args[0].describe()})")
    return Const(None)


Read = Callable[[Capture], Value]


def _global_state(name: str, now: Read | None = None, **named: Read) -> Callable[[Capture, Args, Kwargs], Value]:
    """A setter that does nothing if the state is already so, as `now` reports.

    `named`: the state that its keywords set; they default to False.
    """

    def handler(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if now is None or len(args) != 1 or not kwargs.keys() <= named.keys():
            raise Break("global-state", name)
        pairs = [(now, args[0]), *((read, kwargs.get(n, Const(False))) for n, read in named.items())]
        for read, wanted in pairs:
            known = read(cx).const()
            if not wanted.is_const() or type(wanted.const()) is not type(known) or wanted.const() != known:
                raise Break("global-state", name)
        return Const(None)

    return constant_arguments("as a global setting of torch")(handler)


def _now(fn: Any) -> Read:
    return lambda cx: cx.call_builtin(fn, [], {})


SETTERS: dict[str, dict[str, Read]] = {
    "set_num_threads": {"now": _now(torch.get_num_threads)},
    "set_float32_matmul_precision": {"now": _now(torch.get_float32_matmul_precision)},
    "set_flush_denormal": {},
}  # fmt: skip
for _name, _reads in SETTERS.items():
    builtin(getattr(torch, _name))(_global_state(f"torch.{_name}", **_reads))
constructor(torch._C._InferenceMode)(_global_state("torch.inference_mode"))
