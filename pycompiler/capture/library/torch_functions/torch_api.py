"""torch functions that are not operators: state, queries, and marks of this package.

A change of global state (grad mode, autocast) is applied while capturing, recorded as a node of the graph, and, when
it outlives the frame, replayed by the generated code (`codegen.py`).
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
from pycompiler.capture import known_arrays, numpy_calls, operators, skip
from pycompiler.capture.breaks import Break, EagerOnce
from pycompiler.capture.builtins.tensors_of_numbers import dtype_of_numbers, of_tensors, stacked
from pycompiler.capture.calls import LATE, Args, Kept, Kwargs, builtin, constructor, takes_nothing
from pycompiler.capture.deep import programs_limit
from pycompiler.capture.tracers import mapped
from pycompiler.capture.values import array, symbolic
from pycompiler.capture.values.array import Array
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.sequences import List, Tuple
from pycompiler.capture.values.symbolic import PLAIN_VALUES, Symbolic
from pycompiler.capture.values.tensor import Tensor, as_subclass
from pycompiler.ir import arrays, control, peer
from pycompiler.ir.autocast import autocast_nesting, drop_casts, step_nesting
from pycompiler.ir.source import const as const_source
from pycompiler.ir.torch_state import ATTENTION, PRIORITY, PROCESS_WIDE, STATE, read_state, write_state

ALWAYS_CALLED = torch.nn.modules.module._global_forward_hooks_always_called


class _Switched(threading.local):
    """Which of the state that all threads share the capture in this thread has switched: the rest others may have."""

    def __init__(self) -> None:
        self.names = set[str]()


_switched = _Switched()
_NAMES = {write: name for name, (_, write) in STATE.items()} | {torch.use_deterministic_algorithms: "deterministic"}


def changes(state: dict[str, Any]) -> list[str]:
    """What the capture in this thread has made of the state that was read when it began."""
    known = (n for n in STATE if n not in PROCESS_WIDE or n in _switched.names)
    return [name for name in known if STATE[name][0]() != state[name]]


def put_back(state: dict[str, Any]) -> None:
    """The capture ends, or begins anew."""
    write_state({name: state[name] for name in changes(state)})
    _switched.names.clear()


def switch(cx: Capture, setter: Any, *args: Any, **kwargs: Any) -> Any:
    """Now, and by a node of the graph."""
    _switched.names.add(_NAMES.get(setter, ""))
    return cx.evaluate_raw(cx.graph.set_state, setter, *args, **kwargs)


def _constant(value: Any, *fns: Any) -> None:
    builtin(*fns)(takes_nothing(lambda cx, args, kwargs: Const(value)))


_constant(False, torch._jit_internal.is_scripting, torch.jit._trace.is_tracing, torch.is_vulkan_available)
skip.INLINED |= {torch.fx.ProxyableClassMeta.__call__}
LATE["torch.onnx", "is_in_onnx_export"] = lambda cx, args, kwargs: Const(False)
LATE["torch._dynamo.external_utils", "is_compiling"] = lambda cx, args, kwargs: Const(True)
_constant(False, torch._C._is_tracing)
_constant(None, torch._C._get_tracing_state)
_constant(True, torch.compiler.is_dynamo_compiling, torch._utils.is_compiling)


@builtin(LazyModuleMixin._infer_parameters)
def infer_parameters(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """The hook of a lazy module, which makes it another module: its parameters, its class and the hook itself go."""
    raise EagerOnce("it calls a lazy module for the first time")


@builtin(torch.compiler.is_compiling)
def is_compiling(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Not for a module with hooks that run after errors, too: torch's call of a module leaves these out where it is compiled; nor
    for transforms, which do not name what they give then."""
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
    """Functions of guarded global state: evaluated now."""
    for fn in fns:
        builtin(fn)(
            lambda cx, args, kwargs, _fn=fn: cx.evaluate(  # type: ignore[misc]
                _fn, *(a.const() for a in args), **{k: v.const() for k, v in kwargs.items()}
            )
        )


@builtin(torch.is_grad_enabled)
@takes_nothing
def is_grad_enabled(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if cx.graph.later:
        raise Break("inner-graph", "the grad mode in a backward")
    if cx.graph.reentrant and cx.frames[-1].code.co_filename != torch.autograd.grad_mode.__file__:
        raise Break("inner-graph", "the grad mode in a reentrant checkpoint, which is off first and on later")
    return Const(torch.is_grad_enabled())


@builtin(PRIORITY[0])
def attention_priority(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Which kernel attention prefers: what the program has set, else what it is around the call, where nothing else guards it."""
    if any(n.target is PRIORITY[1] for n in cx.graph.graph.nodes):
        return cx.evaluate(PRIORITY[0])
    return cx.call(cx.make(list), [ask(cx, PRIORITY[0])], {})


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

if hasattr(torch._C, "_accelerator_getAccelerator"):  # torch 2.11 has none, 2.15 does
    _query(torch._C._accelerator_getAccelerator)


def _is_switch(cx: Capture, fn: Any) -> bool:
    """Whether it is the call of torch.no_grad and its like, which may be one of many around each other."""
    return fn is torch._C._set_grad_enabled and cx.frames[-1].code.co_filename == torch.autograd.grad_mode.__file__


def _setter(*fns: Any) -> None:
    for fn in fns:

        @builtin(fn)
        def call(cx: Capture, args: Args, kwargs: Kwargs, _fn: Any = fn) -> Value:
            state = read_state()  # to look may be to do it
            found = cx.functions.ask(_fn, args, kwargs)
            write_state(state)
            if found is not None:
                return found
            given = [cx.snapshot(a) for a in args]
            if _fn is torch._C._set_grad_enabled and given == [True] and cx.inference.open:
                raise Break("global-state", "gradients that are switched on in inference mode")
            if _is_switch(cx, _fn) and given and given[0] is torch.is_grad_enabled() and not cx.graph.later:
                return Const(None)
            result = switch(cx, _fn, *given)
            example = result.meta["example_value"]
            return Const(example) if isinstance(example, (int, bool, type(None))) else Const(None)


_setter(torch._C._set_grad_enabled, torch.set_autocast_enabled, torch.set_autocast_dtype,
        torch.set_autocast_cache_enabled, PRIORITY[1], *(write for _, write in ATTENTION.values()))  # fmt: skip


@builtin(torch.autocast_increment_nesting)
def enter_region(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Now, and in the code behind the graph, if the region goes on there (`restore_state`)."""
    return _step(cx, 1)


@builtin(torch.autocast_decrement_nesting)
def leave_region(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """What a graph that runs as captured has cast for the outermost of its regions is dropped."""
    left = _step(cx, -1)
    if cx.autocast_regions == 0:
        cx.graph.set_state(drop_casts)
    return left


def _step(cx: Capture, by: int) -> Value:
    if (
        cx.frames[-1].code.co_filename != torch.amp.autocast_mode.__file__
    ):  # whose result depends on the caller's regions
        raise Break("global-state", "the count of autocast regions")
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
    """What kernels do follows from it when they run: no graph with this call in it is compiled."""
    if len(args) != 1 or not kwargs.keys() <= {"warn_only"} or not all(v.is_const() for v in (*args, *kwargs.values())):
        raise Break("global-state", "torch.use_deterministic_algorithms")
    known = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    wanted = args[0].const(), kwargs["warn_only"].const() if kwargs else False
    if wanted != (*known,) or peer.deterministic() != wanted[0]:
        switch(cx, torch.use_deterministic_algorithms, wanted[0], warn_only=wanted[1])
    return Const(None)


@builtin(torch.set_default_dtype)
def set_default_dtype(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Operators ask for it when they run: no graph with this call in it is compiled."""
    if len(args) != 1 or kwargs or type(args[0]) is not Const or cx.graph.is_inner:
        raise Break("global-state", "torch.set_default_dtype")
    if args[0].const() is not torch.get_default_dtype():
        switch(cx, torch.set_default_dtype, args[0].const())
    return Const(None)


@builtin(control.switch_errors)
def switch_errors(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    before, cx.errors = cx.errors, cx.truth(args[0])
    return Const(before)


# torch's manager means the same; as a decorator: `capture/calls.py`.
LATE["torch._dynamo.decorators", "error_on_graph_break"] = lambda cx, args, kwargs: cx.call(
    cx.make(control.error_on_graph_break), args, kwargs
)


def _asked(*fns: Any) -> None:
    """Functions of state that no guard compares: what they say is a guard of its own."""
    for fn in fns:
        builtin(fn)(lambda cx, args, kwargs, _fn=fn: ask(cx, _fn))  # type: ignore[misc]


def ask(cx: Capture, fn: Any) -> Value:
    kept = cx.kept.setdefault((fn,), Kept(fn, [], {}))
    return cx.wrap(kept.result, const_source(kept).attr("result"))


_asked(torch._C._get_cublas_allow_tf32, torch.get_num_threads, torch.get_float32_matmul_precision,
       torch.autograd._is_checkpoint_valid, torch.fx._symbolic_trace.is_fx_tracing)  # fmt: skip
builtin(sys.getrecursionlimit)(lambda cx, args, kwargs: ask(cx, programs_limit))
LATE["torch.distributed", "is_available"] = lambda cx, args, kwargs: Const(torch.distributed.is_available())
LATE["torch.distributed.distributed_c10d", "is_initialized"] = lambda cx, args, kwargs: ask(
    cx, torch.distributed.is_initialized
)


@builtin(torch._C._len_torch_dispatch_stack)
@takes_nothing
def dispatch_modes(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """None: a call under one runs eagerly, and none is entered in a graph."""
    if torch._C._len_torch_dispatch_stack():
        raise Break("global-state", "the stack of dispatch modes")
    return Const(0)


@builtin(torch._C._are_functorch_transforms_active)
@takes_nothing
def transforms_active(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if cx.graph.levels:
        raise Break("inner-graph", "a body that asks for transforms")
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
    if args[0].tensor.fake.device.type != "cpu":  # the default device, where a new array is while nobody looks
        raise Break("unsupported-operation", "torch.from_numpy with a default device")
    return array.to_tensor(cx, args[0])


@builtin(arrays.of_tensor)
def numpy_of_tensor(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if arrays.numpy() is None or not config.trace_numpy or not isinstance(args[0], Tensor):
        raise Break("data-dependent-value", "Tensor.numpy()")
    return array.of_tensor(cx, args[0], args[1:], kwargs)


@builtin(arrays.method)
def method_of_array(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return known_arrays.call_method(cx, args[0].const(), args[1:], kwargs)


@builtin(arrays.attribute)
def attribute_of_array(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return numpy_calls.attribute(cx, args[0].const(), args[1])


@builtin(arrays.mark)
def arrays_of_tensors(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return mapped(cx, args[0], Array, _leaf)


@builtin(arrays.unmark)
def tensors_of_arrays(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    def tensor(value: Value) -> Value:
        if isinstance(value, Array):
            return value.tensor
        if not isinstance(value, Const) or not arrays.is_number(value.value):
            return _leaf(value)
        dtype = cx.evaluate_raw(torch.as_tensor, value.value).dtype
        return tensor_from(cx, torch.as_tensor, [Const(value.value.item())], {"dtype": Const(dtype)})

    return mapped(cx, args[0], lambda t: t, tensor)


def _leaf(value: Value) -> Value:
    """What torch's trees have in one piece."""
    if value.python_type() in pytree.SUPPORTED_NODES and not isinstance(value, Const):
        raise Break("unsupported-operation", f"wrap_numpy of what holds {value.describe()}")
    return value


def _holds_tensor(value: Value) -> bool:
    if isinstance(value, (Tensor, Array)):
        return True
    return isinstance(value, (Tuple, List)) and any(_holds_tensor(v) for v in value.items)


for _fn in (torch.tensor, torch.as_tensor, torch.asarray):
    builtin(_fn)(lambda cx, args, kwargs, _fn=_fn: tensor_from(cx, _fn, args, kwargs))  # type: ignore[misc]


def default_device() -> torch.device | None:
    """The device that torch's mode gives to constructors around this capture, if there is one."""
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
            dtype = Const(torch.get_default_dtype())  # of a float
            made = cx.graph.call_method("to", [args[0], dtype], {"copy": Const(True)})
            return cx.graph.call_function(torch.as_tensor, [made, *args[1:]], kwargs)  # no tensor of a tensor
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


# Classes of tensors that stand for a dtype.
LEGACY: tuple[Any, ...] = tuple(
    getattr(torch, f"{name}Tensor")
    for name in ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")
)


def legacy(cx: Capture, cls: Any, args: Args, kwargs: Kwargs) -> Value:
    """`torch.Tensor(...)` and its like of numbers in lists, or of a size; no mode is asked."""
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
    """torch.tensor(tensor): a copy, detached."""
    given = {k: v for k, v in kwargs.items() if k in ("dtype", "device") and not cx.is_none(v)}
    if len(args) > 1 or len(given) != len(kwargs):
        raise Break("unsupported-operation", "torch.tensor(tensor, ...)")
    cx.warns_of("a tensor of a tensor")
    copied = cx.graph.call_method("to", [cx.graph.call_method("detach", args, {})], {
        "dtype": args[0].getattr(cx, "dtype"), **given, "copy": Const(True)})  # fmt: skip
    return copied


@builtin(torch._assert)
def torch_assert(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], Tensor):
        raise Break("data-dependent-value", "torch._assert(tensor)")
    if not cx.truth(args[0]):
        cx.throw(AssertionError, args[1].const())
    return Const(None)


def _all_true(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """What distributions ask of their arguments, and raise an error where it does not hold."""
    holds = cx.graph.call_function(torch._is_all_true, args[:1], {})
    return Const((isinstance(holds, Tensor) and cx.graph.expect(holds, True)) or cx.truth(holds))


LATE["torch.distributions.distribution", "_all_true_or_runtime_assert"] = _all_true


def _demanded(cx: Capture, condition: Value, name: str) -> Value:
    """A condition that the program checks: from now on it holds.  Of symbols that a call binds it is looked at then; where it
    does not hold the statement runs as it is written, and raises."""
    if isinstance(condition, Symbolic) and symbolic.is_late(condition.sym):
        node = condition.sym.node
        holds = node.env.demand(node.value) if node.is_bool() else symbolic.known_truth(condition.sym)
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
        return _demanded(cx, condition, name)


for _checked in ("_check", "_check_index", "_check_value", "_check_type", "_check_not_implemented"):
    _check(_checked, 0)
_check("_check_with", 1)


@builtin(torch._check_tensor_all_with)
def check_tensor_all_with(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    condition = args[1] if len(args) > 1 else kwargs.get("cond")
    if isinstance(condition, Tensor) and condition.fake.dtype is torch.bool:
        holds = cx.graph.call_function(torch._is_all_true, [condition], {})
        if isinstance(holds, Tensor) and cx.graph.expect(holds, True):
            return Const(None)
    raise Break("data-dependent-value", "torch._check_tensor_all_with")


@builtin(torch._check_is_size)
def check_is_size(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(text := getattr(torch._check_is_size, "__deprecated__", None), str):
        cx.call_builtin(warnings.warn, [Const(text), Const(FutureWarning)], {})
    _demanded(cx, operators.compare(cx, ">=", args[0], Const(0)), "_check_is_size")
    most = kwargs.get("max")
    if most is not None and not cx.is_none(most):
        _demanded(cx, operators.compare(cx, "<=", args[0], most), "_check_is_size")
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
    """A setter: of what is so already, as `now` says, nothing.  `named`: what its keywords set, which are False by default."""

    def handler(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if now is None or len(args) != 1 or not kwargs.keys() <= named.keys():
            raise Break("global-state", name)
        pairs = [(now, args[0]), *((read, kwargs.get(n, Const(False))) for n, read in named.items())]
        for read, value in pairs:
            known, wanted = read(cx).const(), cx.realize(value).settle("as state of torch's")
            if not wanted.is_const() or type(wanted.const()) is not type(known) or wanted.const() != known:
                raise Break("global-state", name)
        return Const(None)

    return handler


def _now(fn: Any) -> Read:
    return lambda cx: cx.call_builtin(fn, [], {}).settle("as state of torch's")


SETTERS: dict[str, dict[str, Read]] = {
    "set_num_threads": {"now": _now(torch.get_num_threads)},
    "set_float32_matmul_precision": {"now": _now(torch.get_float32_matmul_precision)},
    "set_flush_denormal": {},
}  # fmt: skip
for _name, _reads in SETTERS.items():
    builtin(getattr(torch, _name))(_global_state(f"torch.{_name}", **_reads))
constructor(torch._C._InferenceMode)(_global_state("torch.inference_mode"))
