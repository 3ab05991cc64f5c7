"""Calls of the captured program.

In: a callable value and arguments.
Out: the result.  A Python function is inlined (a new frame of the interpreter), becomes one node of the graph
(torch's own functions), or breaks the graph; `inlining_rules.py` decides.  A builtin is looked up in the tables of
`library/`.  A class is constructed as `type.__call__` does.
"""

from __future__ import annotations

import collections
import enum
import functools
import inspect
import math
import operator
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from pycompiler import config
from pycompiler.capture.arrays import constant_arrays, numpy_calls
from pycompiler.capture.breaks import Break
from pycompiler.capture.bytecode.code_facts import reading
from pycompiler.capture.effects import log_records
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.capture.interpreter.evaluation import Frame, is_polyfill_module
from pycompiler.capture.interpreter.torch_function import tensor_descriptor
from pycompiler.capture.recording import collectives, wrapper_inputs
from pycompiler.capture.semantics import container_elements, operators, signatures
from pycompiler.capture.semantics.lru_cache_calls import call_cached, describe_call
from pycompiler.capture.semantics.polyfills import OF_CLOSURES
from pycompiler.capture.values import deferred, exceptions, native_objects, symbolic_numbers
from pycompiler.capture.values.attributes import (
    MISSING,
    bind,
    is_mutable,
    lookup,
    mro_lookup,
    reference,
    shows_another_dict,
)
from pycompiler.capture.values.base import Capture, LazyObject, Value, class_name
from pycompiler.capture.values.classes import Class, MadeProperty
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.iterators import Generator
from pycompiler.capture.values.containers.keys import Key
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.containers.sets import Set
from pycompiler.capture.values.deferred import Deferred
from pycompiler.capture.values.finalizers import ARGUMENT
from pycompiler.capture.values.functions import Builtin, Function
from pycompiler.capture.values.objects import Object, plain_module_forward, tuple_of
from pycompiler.capture.values.opaque import as_text
from pycompiler.capture.values.symbolic_numbers import Symbolic
from pycompiler.capture.values.tensor import Tensor, call_tensor_method, is_modelled
from pycompiler.ir import cuda_graph_override, function_marks
from pycompiler.ir.source import const_source, flags_of
from pycompiler.logs import artifact
from pycompiler.operators import numpy_arrays, numpy_random, process_groups
from pycompiler.torch_compat import torch_compile
from pycompiler.torch_compat.tensor_subclasses import is_tensor_subclass

Args = list[Value]
Kwargs = dict[str, Value]
BuiltinHandler = Callable[[Any, Args, Kwargs], Value]
BUILTINS: dict[Any, BuiltinHandler] = {}
LATE_BUILTINS: dict[
    tuple[str, str], BuiltinHandler
] = {}  # (module, name): functions of modules that only some programs import
CONSTRUCTORS: dict[type, BuiltinHandler] = {}
MADE_BY_TORCH: dict[types.CodeType, Callable[[Any, Function, Args, Kwargs], Value | None]] = {}
"""Functions that torch creates anew for each function it decorates, by their code.  A handler returns None to
decline."""

compare = operators.compare

log_call = artifact("trace_call")
MAX_INLINE_DEPTH = 120
UNHELD_REFERENCES = 1 + ARGUMENT  # references to a frame held only by a variable and an argument, not by a traceback
# Instances of subclasses of these are not modelled.
OPAQUE_BASES = (
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    functools.partial,
)
ABSTRACT = 1 << 20  # a CPython flag of types

# Attributes of a manager of torch with settings -> the function that calls another one under these settings.
CALLS_WITH: dict[tuple[str, ...], Any] = {
    ("error_on_graph_break",): function_marks.call_with_break_errors,
    ("fwd", "bwd"): cuda_graph_override.call_with,
}


def builtin(*fns: Any) -> Callable[[BuiltinHandler], BuiltinHandler]:
    """Register the handler of builtin functions (or methods of builtin types: `list.append`)."""

    def register(handler: BuiltinHandler) -> BuiltinHandler:
        for fn in fns:
            if fn in BUILTINS:
                raise ValueError(f"builtin {fn!r} has two handlers")
            BUILTINS[fn] = handler
        return handler

    return register


def takes_nothing(handler: BuiltinHandler) -> BuiltinHandler:
    """`handler` for functions without parameters: a call with arguments breaks the graph, and raises there."""

    @functools.wraps(handler)
    def checked(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if args or kwargs:
            raise Break("builtin-call", "arguments for a function without parameters")
        return handler(cx, args, kwargs)

    return checked


def constructor(*classes: type) -> Callable[[BuiltinHandler], BuiltinHandler]:
    """Register the constructor of builtin classes."""

    def register(handler: BuiltinHandler) -> BuiltinHandler:
        for cls in classes:
            if cls in CONSTRUCTORS:
                raise ValueError(f"class {cls.__name__} has two constructors")
            CONSTRUCTORS[cls] = handler
        return handler

    return register


# Python functions ---------------------------------------------------------------------------------------------
def call_function(cx: Capture, fn: Function, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a Python function: special handler, graph node, break, or inlining.  An inlined function realises its own
    arguments."""
    if fn.real is not None:
        if (
            inlining_rules.is_deferred(fn.real)
            and not kwargs
            and (given := _deferred_copies(cx, args))
            and log_records.may_wait(fn.real, given)
        ):
            cx.effects.defer(fn, given)
            return Const(None)
        if any(isinstance(v, LazyObject) for v in (*args, *kwargs.values())):
            if _is_only_inlined(fn.real):
                return inline(cx, fn, args, kwargs)
            cx.realize_all(args, kwargs)
        marked = _marked(cx, fn.real, args, kwargs)
        if marked is not None:
            if fn.source is not None and fn.real.__closure__ and function_marks.is_constant(fn.real):
                cx.guard("id_is", fn.source, reference(fn.real))
            return marked
        handler = BUILTINS.get(fn.real) or _late_handler(fn.real)
        if handler is not None:
            cx.direct = False
            return signatures.call_handler(cx, fn.real, handler, args, kwargs)
        if (made := MADE_BY_TORCH.get(fn.code)) is not None and (result := made(cx, fn, args, kwargs)) is not None:
            return result
        if "_pycompiler_constant" in fn.real.__dict__:
            return Const(fn.real.__dict__["_pycompiler_constant"])
        if (inside := OF_CLOSURES.get(fn.code)) is not None:
            variable, inlined = inside
            contents = fn.closure(cx)[fn.code.co_freevars.index(variable)].contents
            assert contents is not None
            return cx.call(cx.make(inlined), [contents, *args], kwargs)
        original = original_of_torch_compile(cx, fn, args)
        if original is not None:
            return cx.call(*original, kwargs)
        if torch_compile.is_around_modules(fn.real):
            method = fn.closure(cx)[0].contents
            assert method is not None
            return cx.call(method, args, kwargs)
        if names := torch_compile.settings_around(fn.real):
            called, manager = (cell.contents for cell in fn.closure(cx))
            assert called is not None and manager is not None
            settings = [cx.realize(manager).getattr(cx, name) for name in names]
            return cx.call(cx.make(CALLS_WITH[names]), [*settings, cx.realize(called), *args], kwargs)
        if inlining_rules.dispatches_torch_function(fn.real):
            if cx.functions.concerns(args, kwargs):
                return inline(cx, fn, args, kwargs)
            if inlining_rules.is_operator_of_tensors(fn.real) and args and isinstance(args[0], Tensor):
                return call_tensor_method(cx, fn.real.__name__, args, kwargs)
        if inlining_rules.in_graph(fn.real):
            return cx.graph.call_function(fn.real, args, kwargs)
        if config.trace_numpy and numpy_arrays.is_pure(fn.real):
            return numpy_calls.query_dtypes(cx, fn.real, args, kwargs)
        if config.trace_numpy and (name := numpy_arrays.name_of(fn.real)) is not None:
            return constant_arrays.call_function(cx, fn.real, name, args, kwargs)
        if config.trace_numpy and (name := numpy_arrays.folded_name(fn.real)) is not None:
            return constant_arrays.folded(cx, fn.real, name, args, kwargs)
        reason = inlining_rules.why_not_inlined(fn.real)
        if reason is not None:
            kind, seen = reason
            raise Break(kind, _message(args, kwargs) if kind == "explicit-break" else seen)
    return inline(cx, fn, args, kwargs)


def _is_only_inlined(fn: types.FunctionType) -> bool:
    """Whether only the code of `fn` reads the arguments of a call: `fn` is a function of the program, without marks."""
    return (
        not fn.__dict__
        and fn.__code__ not in OF_CLOSURES
        and not torch_compile.is_module_call(fn)
        and not torch_compile.is_around_modules(fn)
        and fn not in BUILTINS
        and _late_handler(fn) is None
        and function_marks.mark_of(fn) is None
        and function_marks.substitute_of(fn) is None
        and not function_marks.is_constant(fn)
        and not inlining_rules.in_graph(fn)
        and not inlining_rules.is_operator_of_tensors(fn)
        and not inlining_rules.is_deferred(fn)
        and inlining_rules.why_not_inlined(fn) is None
    )


def _marked(cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """The call of a function that the program has marked (`ir/function_marks.py`); None for all others."""
    substitute = function_marks.substitute_of(fn)
    if substitute is not None and cx.frames[-1].code is not substitute.__code__:
        return cx.call(cx.make(substitute), args, kwargs)
    mark = function_marks.mark_of(fn)
    if mark == function_marks.DISALLOW:
        if torch_compile.is_graph_break(fn):
            raise Break("explicit-break", _message(args, kwargs))
        raise Break("disabled-call", f"{Builtin(fn).describe()} (disallow_in_graph)")
    if mark in (function_marks.ALLOW, function_marks.NONSTRICT):
        if cx.functions.inside_concerns([*args, *kwargs.values()]):
            raise Break(
                "tensor-subclass",
                f"{Builtin(fn).describe()} (allow_in_graph) of arguments that __torch_function__ may handle",
            )
        cx.direct = False
        return cx.graph.call_whole(fn, args, kwargs)
    if function_marks.is_constant(fn):
        cx.direct = False
        known = {k: _existing(cx, v) for k, v in kwargs.items()}
        return cx.evaluate(fn, *(_existing(cx, v) for v in args), **known)
    return None


def _existing(cx: Capture, value: Value) -> Any:
    """The real object behind a value, unchanged since the frame began; guarded to be the same in later calls."""
    value = cx.realize(value, "as an argument of a function marked with assume_constant_result")
    if isinstance(value, (Const, Class)):
        return value.const()
    real = getattr(value, "real", MISSING)
    if real is MISSING or real is None or getattr(value, "overlay", None):
        raise Break("builtin-call", f"a function marked with assume_constant_result, of {value.describe()}")
    if value.source is not None:
        cx.guard("id_is", value.source, reference(real))
    return real


def _message(args: list[Value], kwargs: dict[str, Value]) -> str:
    """The message that the program passed to `graph_break`, or "" if it is not known."""
    given = [*args, *kwargs.values()]
    return str(given[0].const()) if len(given) == 1 and given[0].is_const() else ""


def original_of_torch_compile(cx: Capture, fn: Function, args: list[Value]) -> tuple[Value, list[Value]] | None:
    """If `fn` is torch.compile's wrapper around a function or module: the original and its arguments."""
    real = fn.real
    assert real is not None
    if torch_compile.is_module_call(real) and args and isinstance(args[0], Object):
        forward = plain_module_forward(cx, args[0])
        return None if forward is None else (forward, args[1:])
    original = (
        None
        if torch_compile.is_disabled(real) and not torch_compile.is_disabled_for_itself(real)
        else torch_compile.original_of(real)
    )
    if original is None:
        return None
    assert fn.source is not None
    return cx.wrap(original, fn.source.then("instance_dict").dict_item(torch_compile.ORIGINAL)), args


def inline(cx: Capture, fn: Function, args: list[Value], kwargs: dict[str, Value]) -> Value:
    code = fn.code
    if len(cx.frames) > MAX_INLINE_DEPTH:
        raise Break("recursion", f"{fn.qualname} at depth {len(cx.frames)}")
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise Break("unsupported-operation", f"call of the coroutine function {fn.qualname}")
    if reading(code).replaces_free:
        raise Break("unsupported-operation", f"call of {fn.qualname}, {inlining_rules.REPLACES_FREE}")
    if log_call.enabled:
        log_call("TRACE inlined call %s (%s:%d)", fn.qualname, code.co_filename, code.co_firstlineno)
    direct, cx.direct = cx.direct, False
    frame = Frame(cx, code, fn.globals, bind_arguments(cx, fn, args, kwargs), fn.closure(cx), function=fn)
    frame.direct = direct
    frame.follows, cx.constructs = direct or cx.constructs, False
    frame.of_module, cx.of_module = cx.of_module is code, None
    args.clear()
    kwargs.clear()
    cx.inlined.add(code)
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ITERABLE_COROUTINE):
        return cx.placed(Generator(frame))
    _, result = run_frame(cx, frame)
    if cx.suspended:
        if sys.getrefcount(frame) == UNHELD_REFERENCES:
            frame.leave()
        del frame
        cx.close_dropped()
    return result


def run_frame(
    cx: Capture, frame: Frame, sent: Value | None = None, exception: Value | None = None
) -> tuple[str, Value]:
    """Run a frame to its return or next yield; `sent` is the value of the pending yield expression."""
    if exception is not None:
        return frame.throw(exception)
    if sent is not None:
        frame.push(sent)
    return frame.run()


def bind_arguments(cx: Capture, fn: Function, args: list[Value], kwargs: dict[str, Value]) -> dict[str, Value]:
    """The locals of a call, as CPython binds them; a wrong call raises TypeError in the captured program."""
    code = fn.code
    n, posonly, kwonly = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    names = code.co_varnames
    bound: dict[str, Value] = dict(zip(names[:n], args, strict=False))
    extra = args[n:]
    star = kwonly + n
    rest = dict(kwargs)
    call = (cx, fn, args, kwargs)
    for name in (*names[posonly:n], *names[n:star]):
        if name in rest:
            if name in bound:
                wrong_call(*call)
            bound[name] = rest.pop(name)
    if code.co_flags & inspect.CO_VARARGS:
        bound[names[star]] = Tuple(list(extra))
        star += 1
    elif extra:
        wrong_call(*call)
    if code.co_flags & inspect.CO_VARKEYWORDS:
        bound[names[star]] = Dict({Key(cx, Const(k)): v for k, v in rest.items()})
    elif rest:
        wrong_call(*call)
    if not _bind_defaults(cx, fn, bound):
        wrong_call(*call)
    return bound


def wrong_call(cx: Capture, fn: Function, args: list[Value], kwargs: dict[str, Value]) -> NoReturn:
    """Raise the TypeError of a call that does not fit, by calling an empty function with the same signature."""
    if is_polyfill_module(fn.globals):
        raise Break("builtin-call", f"a call of {fn.qualname} with arguments that it rejects")
    code = fn.code
    empty = (lambda: None).__code__.replace(
        co_argcount=code.co_argcount, co_posonlyargcount=code.co_posonlyargcount, co_kwonlyargcount=code.co_kwonlyargcount,
        co_nlocals=code.co_nlocals, co_varnames=code.co_varnames, co_flags=code.co_flags & ~inspect.CO_GENERATOR,
        co_name=code.co_name, co_qualname=fn.qualname,
    )  # fmt: skip
    stub = types.FunctionType(empty, {}, fn.name, tuple(fn.defaults(cx)))
    stub.__kwdefaults__ = dict(fn.kwdefaults(cx))
    stub.__qualname__ = fn.qualname
    cx.realize_all(args, kwargs)
    cx.evaluate_raw(stub, *args, **kwargs)
    raise AssertionError(f"{fn.qualname} accepts these arguments; expected a TypeError")


def _bind_defaults(cx: Capture, fn: Function, bound: dict[str, Value]) -> bool:
    """Fill in defaults; returns whether all parameters then have a value."""
    code = fn.code
    n = code.co_argcount
    names = code.co_varnames
    missing = [name for name in names[:n] if name not in bound]
    if missing:
        defaults = fn.defaults(cx)
        for name, value in zip(names[n - len(defaults) : n], defaults, strict=True):
            bound.setdefault(name, value)
    kw = [name for name in names[n : n + code.co_kwonlyargcount] if name not in bound]
    if kw:
        kwdefaults = fn.kwdefaults(cx)
        for name in kw:
            if name in kwdefaults:
                bound[name] = kwdefaults[name]
    return all(name in bound for name in names[: n + code.co_kwonlyargcount])


# builtins -----------------------------------------------------------------------------------------------------
PYTHON_NUMBERS_ONLY = (math.trunc, math.ldexp)
"""Functions of `math` that refuse NumPy scalars."""


def call_builtin(cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a builtin function, a method of a builtin type, or a torch function."""
    cx.direct = False
    marked = _marked(cx, fn, args, kwargs)
    if marked is not None:
        return marked
    if (
        type(fn) is types.BuiltinFunctionType
        and (fn.__module__ == "math" or fn is operator.index)
        and fn not in PYTHON_NUMBERS_ONLY
    ):
        args = [a.plain_number() for a in args]
    computed = (symbolic_numbers.call(cx, fn, args) or deferred.call(cx, fn, args)) if not kwargs else None
    if computed is not None:
        return computed
    if native_objects.takes(fn, args, kwargs, inlining_rules.is_pure):
        return native_objects.run(cx, fn, args, kwargs, reads=inlining_rules.is_pure(fn))
    handler = _handler(fn)
    if handler is not None:
        return signatures.call_handler(cx, fn, handler, args, kwargs)
    attribute = tensor_descriptor(fn)
    if attribute is not None and args and isinstance(args[0], Tensor):
        how, name = attribute
        if how == "__get__":
            return args[0].getattr(cx, name)
        args[0].setattr(cx, name, args[1])
        return Const(None)
    if isinstance(fn, functools._lru_cache_wrapper):
        return call_cached(cx, fn, args, kwargs)
    if type(fn) is types.GenericAlias:
        return _of_alias(cx, fn, args, kwargs)
    if config.trace_numpy and numpy_arrays.is_pure(fn):
        return numpy_calls.query_dtypes(cx, fn, args, kwargs)
    if config.trace_numpy and (numpys := numpy_arrays.name_of(fn)) is not None:
        return constant_arrays.call_function(cx, fn, numpys, args, kwargs)
    if config.trace_numpy and (numpys := numpy_arrays.folded_name(fn)) is not None:
        return constant_arrays.folded(cx, fn, numpys, args, kwargs)
    if config.trace_numpy and args and getattr(fn, "__objclass__", None) is numpy_arrays.ufunc_class():
        made = constant_arrays.of_ufunc(cx, fn, args, kwargs)
        if made is not None:
            return made
    if config.trace_numpy and numpy_random.is_method(fn):
        return call_builtin(cx, numpy_random.drawing, [Builtin(fn), *args], kwargs)
    owner = getattr(fn, "__objclass__", None)
    if owner is not None and issubclass(torch.Tensor, owner) and owner is not object:
        if args and isinstance(args[0], Tensor):
            return call_tensor_method(cx, fn.__name__, args, kwargs)
    if process_groups.name_of(fn) is not None:
        return collectives.call(cx, fn, args, kwargs)
    if isinstance(fn, torch._ops.OpOverload | torch._ops.OpOverloadPacket) or inlining_rules.in_graph(fn):
        return cx.graph.call_function(fn, args, kwargs)
    if isinstance(fn, torch.jit.ScriptFunction):
        return cx.graph.call_whole(scripted(fn), args, kwargs)
    plain = [as_text(cx, a) if owner is str else _plain_storage(a, owner) for a in args] if owner is not None else args
    if any(p is not a for p, a in zip(plain, args, strict=True)):
        return call_builtin(cx, fn, plain, kwargs)
    if config.trace_numpy and numpy_arrays.is_method_of_number(fn) and not inlining_rules.is_pure(fn):
        return constant_arrays.folded(cx, fn, f"{fn.__objclass__.__name__}.{fn.__name__}", args, kwargs)
    if inlining_rules.is_pure(fn):
        if fn.__name__ == "__new__" and args and isinstance(args[0], Class) and is_mutable(args[0].cls):
            raise Break("builtin-call", describe_call(fn, args))  # each call returns a new object
        walk = ITERATED.get(fn.__name__)
        if walk is not None and owner is not None and args and not issubclass(args[0].python_type(), owner):
            raise Break("builtin-call", describe_call(fn, args))  # it raises an error
        if walk is not None and not kwargs:
            bound_to = (
                [cx.make(fn.__self__)] if isinstance(fn, types.MethodWrapperType | types.BuiltinFunctionType) else []
            )
            if len(bound_to) + len(args) != 1:
                raise Break("builtin-call", describe_call(fn, args))
            return cx.call(cx.make(walk), [*bound_to, *args], {})
        known = _snapshots(cx, plain, kwargs)
        if known is not None:
            return cx.evaluate(fn, *known[0], **known[1])
        if any(isinstance(a, Tensor) for a in args):
            raise Break("data-dependent-value", Builtin(fn).describe())
    if (
        isinstance(fn, types.MethodWrapperType | types.BuiltinFunctionType)
        and getattr(fn, "__self__", None) is not None
    ):
        bound = fn.__self__
        if not isinstance(bound, types.ModuleType | type):
            asked = type_attribute_read(fn)
            if asked is not None and len(args) == 1 and isinstance(args[0], Class) and not kwargs:
                return args[0].of_type(cx, asked)
            descriptor = getattr(type(bound), fn.__name__, None)
            if descriptor is not None and _handler(descriptor) is not None:
                return cx.call_builtin(descriptor, [cx.make(bound), *args], kwargs)
    raise Break("builtin-call", describe_call(fn, args))


def _of_alias(cx: Capture, alias: Any, args: Args, kwargs: Kwargs) -> Value:
    """`list[int](...)`: the new instance gets `__orig_class__`, if it can have the attribute."""
    made = cx.call(cx.make(alias.__origin__), args, kwargs)
    if isinstance(made, Object):
        cx.catching(AttributeError, lambda: made.setattr(cx, "__orig_class__", Builtin(alias)))
    return made


ITERATED = {"__iter__": iter, "__reversed__": reversed}
"""Methods that return an iterator. An iterator has a state, so it is no constant."""


def scripted(fn: Any) -> types.FunctionType:
    """A TorchScript function as a Python function, which graphs can name and copy."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    call.__name__ = fn.name
    return call  # type: ignore[return-value]


def type_attribute_read(fn: Any) -> str | None:
    """The attribute that `fn` reads from a class past its metaclass: "__mro__" for
    `type.__dict__["__mro__"].__get__`."""
    known = [name for name in ("__mro__", "__dict__") if fn.__self__ is type.__dict__[name]]
    return known[0] if known and fn.__name__ == "__get__" else None


def _snapshots(cx: Capture, args: Args, kwargs: Kwargs) -> tuple[list[Any], dict[str, Any]] | None:
    """The arguments as real constants, or None when one is not known."""
    try:
        return [cx.snapshot(a) for a in args], {k: cx.snapshot(v) for k, v in kwargs.items()}
    except Break:
        return None


def _is_unchanged_later(value: Value) -> bool:
    """Whether a value is the same object, in the same state, when the frame ends."""
    if isinstance(value, Tuple):
        return value.cls in (tuple, torch.Size) and all(map(_is_unchanged_later, value.items))
    return (
        isinstance(value, (Symbolic, Deferred, deferred.ThreadIdent))
        or value.is_const()
        or (isinstance(value, Object) and value.exists)
    )


def _deferred_copies(cx: Capture, args: list[Value]) -> list[Value] | None:
    """Copies of the arguments for a call that waits until the frame ends; None if an argument may change by then.

    Containers that the frame created are copied: the program never sees the copies.
    """
    texts = [
        v if symbolic_numbers.is_open_text(v) and isinstance(v, symbolic_numbers.ComputedStr) else cx.realize(v)
        for v in args
    ]
    given = [_copy(cx, v, 3) for v in texts]
    return None if None in given else given  # type: ignore[return-value]


def _copy(cx: Capture, value: Value, depth: int) -> Value | None:
    if isinstance(value, symbolic_numbers.ComputedStr) and symbolic_numbers.is_open_text(value):
        value.guard_class(cx)
        return value
    value = cx.realize(value)
    if not isinstance(value, (Tuple, List, Dict)) or (isinstance(value, Tuple) and _is_unchanged_later(value)):
        return value if _is_unchanged_later(value) else None
    if value.source is not None or value.cls not in (tuple, list, dict) or not depth:
        return None
    if isinstance(value, Dict):
        pairs = [(k, _copy(cx, v, depth - 1)) for k, v in value.pairs(cx)]
        known = all(v is not None and isinstance(k, Const) for k, v in pairs)
        return Dict({Key(cx, k): v for k, v in pairs if v is not None}) if known else None
    items = [_copy(cx, v, depth - 1) for v in value.items]
    return cx.sequence([v for v in items if v is not None], value.cls) if None not in items else None


class QueryResult:
    """The result of a side-effect-free query function, as an attribute: read by guards, and where the result is
    loaded."""

    def __init__(self, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        self.call = (fn, args, kwargs)

    @property
    def result(self) -> Any:
        fn, args, kwargs = self.call
        return fn(*args, **kwargs)


def _plain_storage(value: Value, owner: type) -> Value:
    """The value that methods of `owner` see in an instance of a derived class."""
    derived = isinstance(value, Object) and value.storage is not None and issubclass(value.cls, owner)
    return value.storage if derived else value  # type: ignore[attr-defined,no-any-return]


def _handler(fn: Any) -> BuiltinHandler | None:
    try:
        return BUILTINS.get(fn)
    except TypeError:
        return None


def _late_handler(fn: types.FunctionType) -> BuiltinHandler | None:
    """The handler by name, checked by identity: a program may give any function any name."""
    handler = LATE_BUILTINS.get((inlining_rules.module_of(fn), fn.__qualname__))
    return handler if handler and _object_at(fn.__module__, fn.__qualname__) is fn else None


_OWN_MODULE, _OWN_NAME = (type.__dict__[name].__get__ for name in ("__module__", "__qualname__"))


def _late_constructor(cls: type) -> BuiltinHandler | None:
    where, name = _OWN_MODULE(cls), _OWN_NAME(cls)  # read past the metaclass
    handler = LATE_BUILTINS.get((where, name)) if type(where) is str else None
    return handler if handler and _object_at(where, name) is cls else None


def _object_at(module: str, path: str) -> Any:
    """The function or class at a path in a module: itself, a method's, or a property's getter."""
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found.fget if isinstance(found, property) else found


# construction -------------------------------------------------------------------------------------------------
def construct(cx: Capture, cls_value: Class, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """cls(*args, **kwargs)."""
    cx.direct = False
    direct, cx.constructs = cx.constructs, False
    cls = cls_value.cls
    if any(cls is number for number in (int, float, range)):
        args = [a.plain_number() for a in args]
    computed = (symbolic_numbers.call(cx, cls, args) or deferred.call(cx, cls, args)) if not kwargs else None
    if computed is not None:
        return computed
    if native_objects.takes(cls, args, kwargs, inlining_rules.is_pure):
        return native_objects.run(cx, cls, args, kwargs, reads=inlining_rules.is_pure(cls))
    hashed = type(cls).__hash__ is type.__hash__  # otherwise code of a metaclass computes the hash
    handler = (CONSTRUCTORS.get(cls) or _late_constructor(cls)) if hashed else None
    if handler is not None:
        for name in kwargs:
            if not signatures.takes_keyword(cls, name):
                if signatures.has_counting_errors(cls):
                    cx.evaluate_raw(cls, *[()] * len(args), **dict.fromkeys(kwargs))  # raises its error
                raise Break("builtin-call", f"{describe_call(cls, args)} with {name}=")
        return signatures.call_handler(cx, cls, handler, args, kwargs)
    if config.trace_numpy and numpy_arrays.is_pure(cls):
        return numpy_calls.query_dtypes(cx, cls, args, kwargs)
    if config.trace_numpy and numpy_arrays.dtype_name(cls) is not None:
        return numpy_calls.make_scalar(cx, cls, args, kwargs)
    meta_call = lookup(cx, type(cls), "__call__")
    if issubclass(type(cls), enum.EnumMeta):
        cls_value.has_so_many(cx)
        if len(args) != 1 or kwargs:  # the call may create a class
            raise Break("builtin-call", f"{cls.__qualname__}(...) with arguments other than one value")
        if _finds_member(cx, cls, value := args[0].const()):
            return cls_value.member(cx, cx.evaluate_raw(cls, value))
    if meta_call is not type.__call__:
        bound = bind(cx, meta_call, _class_source(type(cls), "__call__"), cls_value, cx.make(type(cls)))
        return cx.call(bound, args, kwargs)
    return instantiate(cx, cls_value, args, kwargs, direct=direct)


def _finds_member(cx: Capture, cls: Any, value: Any) -> bool:
    """Whether cls(value) runs no code of the program: no `_missing_`, which gets a value that no member has."""
    missing = inspect.getattr_static(cls, "_missing_")
    if getattr(missing, "__func__", None) in _MISSING:
        return True
    try:
        return value in cls._value2member_map_
    except TypeError:  # a value without a hash is compared with each member
        members: dict[str, enum.Enum] = cls._member_map_
        return any(member.value == value for member in members.values())


_MISSING = {enum.Enum.__dict__["_missing_"].__func__, enum.Flag.__dict__["_missing_"].__func__}


def instantiate(
    cx: Capture, cls_value: Class, args: list[Value], kwargs: dict[str, Value], *, direct: bool = False
) -> Value:
    """type.__call__(cls, *args, **kwargs); `direct`: called by a CALL of the frame."""
    cls = cls_value.cls
    known = _snapshots(cx, args, kwargs) if inlining_rules.is_pure(cls) else None
    if known is not None:
        return cx.evaluate(cls, *known[0], **known[1])
    if is_tensor_subclass(cls):
        return wrapper_inputs.construct(cx, cls, args, kwargs)
    if issubclass(cls, torch.Tensor) and not is_modelled(cls):
        raise Break("unsupported-operation", f"{cls.__name__}(...)")
    if issubclass(cls, OPAQUE_BASES) or issubclass(cls, type) and len(args) != 3 or shows_another_dict(cls):
        raise Break("builtin-call", f"{cls.__module__}.{cls.__qualname__}(...)")
    if issubclass(cls, BaseException):
        own_init = not isinstance(lookup(cx, cls, "__init__"), types.WrapperDescriptorType)
        if kwargs and not own_init:  # AttributeError(text, name=...)
            raise Break("builtin-call", f"{cls.__qualname__}(...) with keywords")
        own_new = not isinstance(lookup(cx, cls, "__new__"), types.BuiltinFunctionType)
        if own_new and not own_init and (kwargs or not exceptions.keeps_arguments(cls)):
            raise Break("builtin-call", f"{cls.__qualname__}(...), which has its own __new__ and an __init__ in C")
        if not own_init and not own_new:
            return exceptions.new(cx, cls, args)
    return _construct_object(cx, cls_value, args, kwargs, direct)


def _construct_object(
    cx: Capture, cls_value: Class, args: list[Value], kwargs: dict[str, Value], direct: bool
) -> Value:
    cls = cls_value.cls
    _without_finalizer(cx, cls)
    new = lookup(cx, cls, "__new__")
    plain_new = new.__func__ if isinstance(new, staticmethod) else new
    if isinstance(plain_new, types.FunctionType):
        made = cx.call(bind(cx, new, _class_source(cls, "__new__"), None, cls_value), [cls_value, *args], kwargs)
        if not issubclass(made.python_type(), cls):
            return made
    elif not isinstance(plain_new, types.BuiltinFunctionType):
        raise Break("builtin-call", f"{cls.__qualname__}(...), whose __new__ is not a function")
    elif issubclass(cls, (torch.Tensor, type)):
        made = cx.call(cx.make(plain_new), [cls_value, *args], kwargs)
    else:
        if kwargs and plain_new is tuple.__new__ and lookup(cx, cls, "__init__") is object.__init__:
            cx.evaluate_raw(tuple, **dict.fromkeys(kwargs))  # raises its error
        made = allocate(cx, cls, args)
    cls = made.python_type()  # `__new__` may return an instance of a subclass
    init = lookup(cx, cls, "__init__")
    if not isinstance(init, types.WrapperDescriptorType) or not issubclass(cls, init.__objclass__):
        bound = bind(cx, init, _class_source(cls, "__init__"), made, cx.class_of(made))
        cx.constructs = direct
        try:
            result = cx.call(bound, args, kwargs)
        finally:
            cx.constructs = False
        if not cx.is_none(result):
            cx.throw(TypeError, f"__init__() should return None, not {class_name(result.python_type())!r}")
    elif issubclass(cls, (BaseException, types.SimpleNamespace)):
        own = BaseException.__init__ if issubclass(cls, BaseException) else init
        cx.call(cx.make(own), [made, *args], kwargs)
    elif isinstance(made, MadeProperty):
        made.initialise(args, kwargs)
    elif isinstance(made, Object) and made.storage is not None and (args or kwargs):
        fill_storage(cx, made, args, kwargs)
    elif (args or kwargs) and init is object.__init__ and plain_new is object.__new__:
        takes_none(cx, cls, "__new__")
    return made


def takes_none(cx: Capture, cls: type, name: str) -> None:
    """Raise the TypeError of `object.__new__` and `object.__init__` for extra arguments, unless the class has its own
    other method."""
    other = "__init__" if name == "__new__" else "__new__"
    if lookup(cx, cls, name) is not getattr(object, name):
        what = "type to instantiate" if name == "__new__" else "instance to initialize"
        cx.throw(TypeError, f"object.{name}() takes exactly one argument (the {what})")
    if lookup(cx, cls, other) is getattr(object, other):
        said = (
            "() takes no"
            if name == "__new__"
            else ".__init__() takes exactly one argument (the instance to initialize)"
        )
        cx.throw(TypeError, f"{cls.__name__}{said}{' arguments' if name == '__new__' else ''}")


def _without_finalizer(cx: Capture, cls: type) -> None:
    """Break for a class with a finalizer: an object that exists only during capture is never deleted."""
    if lookup(cx, cls, "__del__") is not MISSING:
        raise Break(
            "builtin-call",
            f"{cls.__module__}.{cls.__qualname__}(...), whose instances have a finalizer",
            gives_end=True,
        )


def _class_source(cls: type, name: str) -> Any:
    return const_source(cls).then("mro_lookup", name)


def allocate(cx: Capture, cls: type, args: list[Value]) -> Value:
    """cls.__new__(cls) for classes with the layout of object, dict, list, or an exception."""
    _without_finalizer(cx, cls)
    if issubclass(cls, BaseException):
        return (
            exceptions.new(cx, cls, list(args)) if issubclass(cls, BaseExceptionGroup) else Object(cls, args=list(args))
        )
    if issubclass(cls, collections.deque):
        raise Break("builtin-call", f"{cls.__module__}.{cls.__qualname__}(...)")
    if issubclass(cls, dict):
        return Object(cls, storage=Dict({}, cls))
    if issubclass(cls, list):
        return Object(cls, storage=List([], cls))
    if issubclass(cls, set):
        return Object(cls, storage=Set({}, cls))
    if issubclass(cls, tuple):
        if len(args) > 1:
            raise Break("builtin-call", f"{cls.__qualname__}(...) with several arguments")
        return tuple_of(cls, cx.tupled(args[0]) if args else [])
    if issubclass(cls, property):
        return MadeProperty(cls)
    if cls is object or cls is types.SimpleNamespace:
        return Object(cls)
    new = mro_lookup(cls, "__new__")
    if new in (object.__new__, types.SimpleNamespace.__new__, torch._C._FunctionBase.__new__, MISSING) or isinstance(
        new, (staticmethod, types.FunctionType)
    ):
        if not is_mutable(cls):
            raise Break("builtin-call", f"{cls.__module__}.{cls.__qualname__}(...)")
        if flags_of(cls) & ABSTRACT:  # a metaclass may compute `__abstractmethods__`
            lookup(cx, cls, "__abstractmethods__")  # this lookup may be answered otherwise
            cx.throw(TypeError, _abstract_message(cls))
        return Object(cls)
    raise Break("builtin-call", f"{cls.__module__}.{cls.__qualname__}(...)")


def _abstract_message(cls: type) -> str:
    """This Python's message about an instance of an abstract class: `object.__new__` raises it before it creates
    one."""
    try:
        object.__new__(cls)
    except TypeError as e:
        return str(e)
    raise AssertionError(f"{cls.__qualname__} is not abstract")


def fill_storage(cx: Capture, made: Object, args: list[Value], kwargs: dict[str, Value]) -> None:
    storage = made.storage
    if isinstance(storage, Tuple):  # its `__new__` has filled it
        return
    if kwargs and not isinstance(storage, Dict):
        raise Break("builtin-call", f"{made.cls.__qualname__}(...) with keywords")
    if len(args) > 1 or issubclass(made.cls, collections.defaultdict):  # a defaultdict takes its factory first
        raise Break("builtin-call", f"{made.cls.__qualname__}(...) with {len(args)} arguments")
    if isinstance(storage, Dict):
        for source in args:
            container_elements.dict_update(cx, storage, source)
        for name, value in kwargs.items():
            container_elements.store_target(storage).setitem(cx, Const(name), value)
    elif isinstance(storage, List):
        storage.items.extend(cx.listed(args[0]))
    elif isinstance(storage, Set):
        for v in cx.elements(args[0]):
            storage.add(cx, v)
