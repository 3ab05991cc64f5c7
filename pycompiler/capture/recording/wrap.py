"""Conversion of a real object and its source to a value, with the guards that make the value valid.

In: object, source.  Out: `Value`.  One table: exact type -> function; then a few tests by base class.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import inspect
import operator
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.torch_version import TorchVersion

from pycompiler import _native, config
from pycompiler.capture.breaks import Break, Raised, SkipFrame
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.capture.recording.jagged_inputs import wrap_jagged
from pycompiler.capture.recording.wrapper_inputs import wrap_wrapper
from pycompiler.capture.semantics.lru_cache_calls import RestartAfterTrial
from pycompiler.capture.values import array
from pycompiler.capture.values.attributes import (
    WRITTEN,
    classmethod_of,
    guard_written,
    instance_dict,
    is_mutable,
    is_plain_local,
    lookup,
    mro_lookup,
    reference,
    shows_another_dict,
)
from pycompiler.capture.values.base import Capture, StandIn, Value
from pycompiler.capture.values.classes import Class, PyModule, Super
from pycompiler.capture.values.constant import LITERALS, Const
from pycompiler.capture.values.containers.dicts import Dict, DictView, KeysOf, Proxy
from pycompiler.capture.values.containers.keys import USER_KEYS, Key, UserKey, is_stored_under, known_hash
from pycompiler.capture.values.containers.list_ends import KnownEnds, UnguardedMembers
from pycompiler.capture.values.containers.sequences import Deque, List, Slice, Tuple
from pycompiler.capture.values.containers.sets import Set
from pycompiler.capture.values.distributed_objects import wrap_fixed
from pycompiler.capture.values.enum_members import Member, OperatorMember, user_special_methods
from pycompiler.capture.values.functions import HOLES, PLACEHOLDER, Builtin, Function, Method, Partial
from pycompiler.capture.values.objects import HOOK_DICTS, Object, is_plain_tuple
from pycompiler.capture.values.opaque import Compiled, Opaque, WeakProxy, WeakReference
from pycompiler.capture.values.symbolic_numbers import NUMBERS, PLAIN_VALUES, NestedInt, Symbolic, make_number
from pycompiler.capture.values.tensor import Tensor, TensorMethod, is_modelled
from pycompiler.capture.values.thread_locals import ThreadLocal
from pycompiler.ir.computed_sources import at_key
from pycompiler.ir.guards import TensorSpec, transform_levels
from pycompiler.ir.source import Source, const_source, module_of, mro_of, name_of
from pycompiler.operators import numpy_arrays, numpy_random
from pycompiler.symbolic.number_nodes import symbol_of
from pycompiler.torch_compat.fake_mode import as_plain, is_transparent
from pycompiler.torch_compat.jagged_tensors import is_jagged, is_nested_int
from pycompiler.torch_compat.tensor_subclasses import is_tensor_subclass

Wrapper = Callable[[Capture, Any, Source], Value]
WRAPPERS: dict[type, Wrapper] = {}


def wraps(*types_: type) -> Callable[[Wrapper], Wrapper]:
    def register(fn: Wrapper) -> Wrapper:
        for t in types_:
            if t in WRAPPERS:
                raise ValueError(f"two wrappers for {t.__name__}")
            WRAPPERS[t] = fn
        return fn

    return register


@wraps(*LITERALS, torch.device, range)
def _literal(cx: Capture, real: Any, source: Source) -> Value:
    if type(real) is int:
        symbol = cx.sizes.integer(real, source)
        if symbol is not None:
            return make_number(symbol)
    if type(real) is float:
        symbol = cx.sizes.floating(real, source)
        if symbol is not None:
            cx.guard("type_is", source, float)
            return make_number(symbol)
    is_nan = isinstance(real, (float, complex)) and real != real  # containers compare a NaN by identity
    cx.guard("id_is" if is_nan else "equals", source, real)
    return Const(real)


@wraps(slice)
def _slice(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("type_is", source, slice)
    return Slice([cx.wrap(getattr(real, name), source.attr(name)) for name in ("start", "stop", "step")])


@wraps(torch.dtype, torch.layout, torch.memory_format, TorchVersion)
def _singleton(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("id_is", source, real)
    return Const(real)


@wraps(list)
def _list(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("type_is", source, type(real))
    made = List([cx.lazy(v, source.item(i)) for i, v in enumerate(list.__iter__(real))], type(real))
    made.reach = KnownEnds(cx, source, made.length_before)
    return made


@wraps(collections.deque)
def _deque(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("type_is", source, type(real))
    cx.guard("equals", source.attr("maxlen"), real.maxlen)
    made = Deque([cx.lazy(v, source.item(i)) for i, v in enumerate(real)], real.maxlen)
    made.reach = KnownEnds(cx, source, made.length_before)
    return made


@wraps(tuple, torch.Size)
def _tuple(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("type_is", source, type(real))
    made = Tuple([cx.lazy(v, source.item(i)) for i, v in enumerate(real)], type(real))
    made.reach = KnownEnds(cx, source, len(real))
    return made


@wraps(dict, collections.OrderedDict, collections.defaultdict)
def _dict(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("type_is", source, type(real))
    entries: dict[Key, Value] = {}
    if isinstance(real, collections.OrderedDict) and any(has_python_equality(type(k)) for k in dict.keys(real)):
        raise Break("unsupported-operation", USER_KEYS)  # the iteration of an OrderedDict calls methods of the keys
    try:
        pairs = list((collections.OrderedDict if isinstance(real, collections.OrderedDict) else dict).items(real))
    except KeyError:
        raise Break("unsupported-operation", "an OrderedDict from which dict's own methods removed a key") from None
    for i, (k, v) in enumerate(pairs):
        if isinstance(k, (str, int, bool, float, bytes, type(None))) and not has_python_equality(type(k)):
            entries[Key(cx, Const(k))] = cx.lazy(v, source.dict_item(k))
        else:
            key = cx.wrap_key(k, source.then("dict_key_at", i))
            place = source.then("dict_value_at", i) if has_python_equality(type(k)) else source.dict_item(k)
            _own_key(cx, entries, k, key, cx.lazy(v, place))
    if any(isinstance(k.key, UserKey) and not is_stored_under(real, k.key.value.real, k.key.hash) for k in entries):
        raise Break("unsupported-operation", USER_KEYS)  # the key has changed: a lookup by its current hash fails
    if len(entries) != len(pairs):
        raise Break("unsupported-operation", "a dict with two keys that have become equal")
    if source.arg in HOOK_TABLES and (numbered := _renumbered(cx, real, source, entries)) is not None:
        return numbered
    factory = None
    if isinstance(real, collections.defaultdict) and real.default_factory is not None:
        factory = cx.wrap(real.default_factory, source.attr("default_factory"))
    made = Dict(entries, type(real), real=real, default_factory=factory)
    cx.effects.namespaces.reached(real, made)
    return made


def _renumbered(cx: Capture, real: dict[Any, Any], source: Source, entries: dict[Key, Value]) -> Value | None:
    """A table of hooks whose numbers differ between calls: known by their positions.

    torch numbers all hooks of a process.  So a module that runs the frame of another one has other numbers, too.
    """
    places = {source.then("dict_key_at", i): k for i, k in enumerate(real)}
    if not real or not all(type(k) is int for k in real):
        return None
    symbols = [cx.sizes.integer(k, place, of_process=True) for place, k in places.items()]
    if any(s is None for s in symbols):
        return None
    cx.guard("length", source, len(real))
    found: dict[Key, Value] = {}
    for key, symbol, (place, k) in zip(entries, symbols, places.items(), strict=True):
        key.value = make_number(symbol)
        key.value.source = place
        found[key] = cx.lazy(real[k], cx.computed(at_key, source, place))
    made = Dict(found, type(real), real=real)
    made.at_places(cx, found, source)
    cx.effects.namespaces.reached(real, made)
    return made


HOOK_TABLES = (*HOOK_DICTS, *(f"{n}_{how}" for n in HOOK_DICTS for how in ("with_kwargs", "always_called")))


def has_python_equality(cls: type) -> bool:
    """Whether its instances define `__eq__` or `__hash__` in Python."""
    return isinstance(cls.__hash__, types.FunctionType) or isinstance(cls.__eq__, types.FunctionType)


def _own_key(cx: Capture, entries: dict[Key, Value], real: Any, key: Value, value: Value) -> None:
    """Add a key with methods in Python.  The dict has its hash; here the methods run again.

    The program must not see these calls.  If they have side effects, the capture restarts and does not call them.
    """
    verdict = "asked", id(real)
    mark = cx.effects.mark()
    try:
        if not cx.verdicts.get(verdict, True):
            raise Break("unsupported-operation", USER_KEYS)
        entries[Key(cx, key)] = value
    except (Break, Raised) as refused:
        if cx.effects.mark() == mark:
            raise refused if isinstance(refused, Break) else Break("unsupported-operation", USER_KEYS) from None
    if cx.effects.mark() != mark:
        cx.verdicts[verdict] = False
        raise RestartAfterTrial


@wraps(types.MappingProxyType)
def _proxy(cx: Capture, real: Any, source: Source) -> Value:
    if source.root.kind != "const":
        raise Break("unsupported-type", "mappingproxy")
    return Proxy(Dict({Key(cx, cx.make(k)): cx.make(v) for k, v in real.items()}))


@wraps(DictView.CLASSES["keys"])
def _keys(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("type_is", source, type(real))
    if not all(type(k) in (str, int, bool, float, bytes, type(None)) for k in real):
        return Opaque(real)
    keys = Dict({Key(cx, Const(k)): Const(None) for k in real}, real=real)
    keys.source = source
    keys.guard_keys(cx)
    return KeysOf(keys, "keys")


# Types of set members that are equal by identity or by value only.
_MEMBERS = (
    *LITERALS, torch.dtype, torch.device, type, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType,
)  # fmt: skip
_OPERATORS = (
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
)  # with Python `__hash__` methods of torch


@wraps(set, frozenset)
def _set(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("type_is", source, type(real))
    if not all(type(v) in _OPERATORS or isinstance(v, _MEMBERS) and not has_python_equality(type(v)) for v in real):
        return Opaque(real)
    made = Set({Key(cx, cx.make(v)): cx.make(v) for v in real}, type(real), real=real)
    made.unasked = UnguardedMembers(cx, source, real)
    return made


@wraps(types.FunctionType)
def _function(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("id_is", source.then("code"), real.__code__)
    if source.kind != "const":
        cx.guard("id_is", source.then("func_globals"), real.__globals__)
    return Function(real.__code__, real.__globals__, real=real, name=real.__name__, qualname=real.__qualname__)


@wraps(super)
def wrap_super(cx: Capture, real: Any, source: Source) -> Value:
    if real.__self_class__ is None:  # an unbound super object is an ordinary object
        return wrap_object(cx, real, source)
    cx.guard("type_is", source, super)
    cls = cx.wrap(real.__thisclass__, source.attr("__thisclass__"))
    receiver = cx.realize(cx.wrap(real.__self__, source.attr("__self__")))
    of_class = isinstance(receiver, Class) and real.__self_class__ is receiver.cls
    if not isinstance(cls, Class) or not of_class and real.__self_class__ is not receiver.python_type():
        raise Break("unsupported-operation", "super() of an object whose __class__ differs from its type")
    return Super(cls.cls, receiver)


@wraps(types.MethodType)
def _method(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("type_is", source, types.MethodType)
    receiver = cx.wrap(real.__self__, source.then("method_self"))
    return Method(receiver, cx.wrap(real.__func__, source.then("method_func")))


@wraps(functools.partial)
def _partial(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("type_is", source, type(real))
    if PLACEHOLDER is not None and any(a is PLACEHOLDER for a in real.args):
        raise Break("unsupported-type", HOLES)
    args = cx.wrap(real.args, source.attr("args"))
    keywords = cx.wrap(real.keywords, source.attr("keywords"))
    assert isinstance(args, Tuple) and isinstance(keywords, Dict)
    return Partial(
        cx.wrap(real.func, source.attr("func")),
        [args.at(cx, i) for i in range(len(args.items))],
        {k.const(): v for k, v in keywords.pairs(cx)},
        type(real),
        real,
    )


@wraps(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
       types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType)  # fmt: skip
def _builtin(cx: Capture, real: Any, source: Source) -> Value:
    owner = getattr(real, "__self__", None)
    bound = type(real) in (types.BuiltinFunctionType, types.MethodWrapperType)
    if (
        bound
        and not issubclass(type(owner), (type(None), type, types.ModuleType))
        and not hasattr(type(owner), "__get__")
    ):
        method = _bound_builtin(cx, real, owner, source)
        if method is not None:
            return method
    if (found := classmethod_of(real)) is not None:
        cx.guard("type_is", source, type(real))
        cx.guard("equals", source.attr("__name__"), real.__name__)
        return Method(cx.wrap(owner, source.attr("__self__")), Builtin(found))
    cx.guard("id_is", source, real)
    return Builtin(real)


def _bound_builtin(cx: Capture, real: Any, owner: Any, source: Source) -> Value | None:
    """A bound method of a builtin type.  Each access creates a new one, which holds its receiver."""
    found = mro_lookup(type(owner), real.__name__)
    if not isinstance(found, types.MethodDescriptorType | types.WrapperDescriptorType):
        return None
    cx.guard("type_is", source, type(real))
    cx.guard("equals", source.attr("__name__"), real.__name__)
    known = inlining_rules.makes_constants(type(owner)) and source.kind == "const"
    receiver = cx.make(owner) if known else cx.wrap(owner, source.attr("__self__"))
    if isinstance(receiver, Tensor):
        return TensorMethod(receiver, real.__name__)
    return Method(receiver, cx.make(found))


@wraps(types.ModuleType)
def _py_module(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("id_is", source, real)
    if type(real) is not types.ModuleType:  # its class may be replaced
        cx.guard("type_is", source, type(real))
    return PyModule(real)


@wraps(types.CodeType)
def _code(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("id_is", source, real)
    return Const(real)


@wraps(_native.CompiledFunction)
def _compiled(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("id_is", source, reference(real))
    return Compiled(real)


@wraps(weakref.ReferenceType, weakref.KeyedRef)
def _weakref(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("type_is", source, type(real))
    return WeakReference(real)


@wraps(*weakref.ProxyTypes)
def _weak_proxy(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("type_is", source, type(real))
    return WeakProxy(real)


# Classes of objects created for a capture that reads a signature: no other code has these objects.
SIGNATURES = (inspect.Signature, inspect.Parameter)
PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
# Methods of a subclass that decide whether it is transparent (`is_transparent`) and has torch.Tensor's operators.
_TAKES_PART = (
    "__torch_function__", "__torch_dispatch__", "__radd__", "__rsub__", "__rmul__", "__rtruediv__", "__rpow__",
    *(n for n in dir(operator) if n.startswith("__") and callable(getattr(torch.Tensor, n, None)) and n != "__class__"),
)  # fmt: skip


def wrap_tensor(cx: Capture, real: torch.Tensor, source: Source) -> Value:
    if type(real) not in PLAIN and not is_transparent(type(real)):
        return _of_subclass(cx, real, source)
    if real.__dict__.keys() & _methods():
        raise Break("unsupported-type", "a tensor with an instance attribute that hides a method")
    _check_tensor(real)
    if type(real) not in PLAIN:
        for name in _TAKES_PART:
            lookup(cx, type(real), name)
    layout = None if torch._C._functorch.is_functorch_wrapped_tensor(real) else cx.sizes.layout(real, source)
    cx.guard("tensor", source, TensorSpec.of(real) if layout is None else TensorSpec.of(real).opened(*layout))
    return cx.graph.add_input(real, source, layout)


@functools.cache
def _methods() -> frozenset[str]:
    """Names of tensor methods: an attribute of that name hides the method from all callers."""
    return frozenset(n for n in dir(torch.Tensor) if isinstance(mro_lookup(torch.Tensor, n), METHODS))


METHODS = (types.FunctionType, types.MethodDescriptorType)


def _of_subclass(cx: Capture, real: torch.Tensor, source: Source) -> Value:
    """A tensor whose class has a `__torch_function__`.

    Sizes that change are read from a plain alias, since a read from the tensor itself calls its class.
    """
    cls = type(real)
    if cx.surrounded:
        raise Break("tensor-subclass", f"{cls.__qualname__}, under a transform or in a kernel")
    if is_jagged(cls):
        if real.requires_grad and not _has_history(real):
            raise Break(
                "unsupported-type", "one of several views that one operator returned, of memory written under no_grad"
            )
        return wrap_jagged(cx, real, source)
    if is_tensor_subclass(cls):
        return wrap_wrapper(cx, real, source)
    if not is_modelled(cls) or torch._C._dispatch_keys(real).has(torch._C.DispatchKey.Python):
        raise Break("tensor-subclass", cls.__qualname__)
    plain = as_plain(real)
    _check_tensor(plain)
    if real.__dict__.keys() & vars(torch.Tensor).keys():
        raise Break("tensor-subclass", f"{cls.__qualname__} with an instance attribute that hides one of torch.Tensor")
    for name in ("__torch_function__", "__getattribute__", "__torch_dispatch__"):
        lookup(cx, cls, name)
    layout = cx.sizes.layout(plain, cx.computed(as_plain, source))
    spec = TensorSpec.of(plain) if layout is None else TensorSpec.of(plain).opened(*layout)
    cx.guard("tensor", source, dataclasses.replace(spec, cls=cls))
    return cx.graph.add_input(real, source, layout, cls)


def _check_tensor(real: torch.Tensor) -> None:
    if real.layout is not torch.strided or real.is_quantized or real.is_nested:
        raise Break("unsupported-type", f"{real.layout} tensor" if not real.is_quantized else "quantized tensor")
    if real._is_zerotensor():
        raise Break("unsupported-type", "a zero tensor without memory (torch._efficientzerotensor)")
    if torch._C._functorch.is_functorch_wrapped_tensor(real) and not transform_levels():
        raise Break("unsupported-type", "a tensor of a transform that has ended")
    if real.requires_grad and not _has_history(real):
        raise Break(
            "unsupported-type", "one of several views that one operator returned, of memory written under no_grad"
        )


def _has_history(real: torch.Tensor) -> bool:
    """Whether autograd knows the history of `real`."""
    try:
        return real.is_leaf or real.grad_fn is not None
    except RuntimeError:
        return False


def wrap_numpy_object(cx: Capture, real: Any, source: Source) -> Value | None:
    """NumPy's arrays, dtypes and functions; None for objects that capture treats like any other."""
    if numpy_arrays.is_array(real) or numpy_arrays.is_number(real):
        return array.wrap_array(cx, real, source)
    if numpy_arrays.is_dtype(real):
        cx.guard("equals", source, real)
        return Const(real)
    if numpy_arrays.name_of(real) is not None or numpy_arrays.folded_name(real) is not None:
        cx.guard("id_is", source, real)
        return Builtin(real)
    return None


def wrap_object(cx: Capture, real: Any, source: Source) -> Value:
    """Instances of classes without a function of their own in the table."""
    cls = type(real)
    if (found := wrap_fixed(cx, real, source)) is not None:
        return found
    if config.trace_numpy and module_of(cls) in ("numpy", "numpy.dtypes"):
        found = wrap_numpy_object(cx, real, source)
        if found is not None:
            return found
    if issubclass(cls, type):
        if mro_of(real) is None:
            raise SkipFrame("a class without an MRO: its metaclass's mro() is still running")
        cx.guard("id_is", source, real)
        return Class(real)
    if inlining_rules.makes_constants(cls) and source.kind == "const":
        return Const(real)
    if issubclass(cls, types.ModuleType):
        if isinstance(lookup(cx, cls, "__getattribute__"), types.FunctionType):
            raise Break("unsupported-type", f"a {cls.__qualname__}, a module class with its own __getattribute__")
        return _py_module(cx, real, source)
    if issubclass(cls, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)) or name_of(cls) == "pybind11_builtins":
        cx.guard("id_is", source, real)
        return Builtin(real)
    if numpy_random.is_method(real):
        cx.guard("id_is", source, real)
        return Builtin(real)
    if issubclass(cls, (functools._lru_cache_wrapper, torch.jit.ScriptFunction)):
        cx.guard("id_is", source, reference(real))
        return Builtin(real)
    if issubclass(cls, enum.Enum) and issubclass(cls, (int, str, float, bytes)):
        if "_name_" not in (instance_dict(real) or {}):
            raise Break("unsupported-type", f"a {cls.__qualname__} member that is still being created")
        cx.guard("id_is", source, real)
        return OperatorMember(real) if user_special_methods(cls) else Member(real)
    if type(cls).__name__ == "pybind11_type" and hasattr(cls, "__members__"):  # an enumeration in C++
        cx.guard("equals" if source.kind == "const" else "id_is", source, real)
        return Const(real)
    if issubclass(cls, tuple):
        cx.guard("type_is", source, cls)
        cx.guard("length", source, tuple.__len__(real))
        items: list[Value] = [cx.lazy(v, source.item(i)) for i, v in enumerate(tuple.__iter__(real))]
        if is_plain_tuple(cls):
            return Tuple(items, cls)
        made = Object(cls, real=real, storage=Tuple(items))
        cx.effects.namespaces.reached(instance_dict(real), made)
        return made
    if source.kind != "const" or cls not in SIGNATURES:
        cx.guard("type_is", source, cls)
    if issubclass(cls, (int, float, complex, str, bytes, bytearray, frozenset, collections.deque)):
        return Opaque(real)
    storage = _storage(cx, real, source)
    if issubclass(cls, torch.nn.Module):
        cx.sizes.modules[source] = real
    known = torch.nn.Module, types.SimpleNamespace, threading.local
    if is_mutable(cls) or storage is not None or issubclass(cls, known):
        if shows_another_dict(cls) or issubclass(cls, functools.partial):  # reading its `__dict__` would create one
            raise Break("unsupported-type", f"a {cls.__qualname__}, whose __dict__ capture does not read")
        space = instance_dict(real)
        if any(map(has_python_eq, {*map(type, space or ())} - {str})):
            raise Break(
                "unsupported-type", f"a {cls.__qualname__} with an attribute name whose class has its own __eq__"
            )
        made = (ThreadLocal if is_plain_local(cls) else Object)(cls, real=real, storage=storage)
        cx.effects.namespaces.reached(space, made)
        return made
    if callable(real) and not hasattr(cls, "__get__") and not isinstance(real, torch.autograd.graph.Node):
        cx.guard("id_is", source, reference(real))
        return Builtin(real)
    return Opaque(real)


def has_python_eq(cls: type) -> bool:
    """Whether the lookup of another key beside a key of this class runs code of the program."""
    return isinstance(mro_lookup(cls, "__eq__"), types.FunctionType)


def _storage(cx: Capture, real: Any, source: Source) -> Value | None:
    for base, wrapper in ((dict, _dict), (list, _list)):
        if issubclass(type(real), base):
            storage = wrapper(cx, real, source)
            storage.source = source
            return storage
    return None


def wrap(cx: Capture, real: Any, source: Source) -> Value:
    """The value of an existing object: the same object gives the same value, whatever its source."""
    if WRITTEN and source.kind == "mro_lookup" and source.base is not None and source.base.kind == "const":
        guard_written(cx, source.base.arg, source.arg)
    if type(real) is StandIn:
        return cx.realize(real.value)
    known = cx.by_id.get(id(real))
    if known is not None:
        if known.source is not None and known.source != source and source.kind != "const":
            cx.guard("same_object", source, None, (known.source,))
        return known
    cx.of_operators.look(real)
    cls = type(real)  # never isinstance, which believes a false `__class__`
    if issubclass(cls, torch.Tensor):
        value = wrap_tensor(cx, real, source)
    else:
        wrapper = WRAPPERS.get(cls) if type(cls) is type else None  # a metaclass may define `__hash__`
        value = wrapper(cx, real, source) if wrapper else wrap_object(cx, real, source)
    if isinstance(value, Const) and value.value is real:
        return value
    if value.source is None:
        value.source = source
    if not isinstance(value, PLAIN_VALUES):
        cx.remember(real, value)
    return value


def _shadow(real: Any) -> Any:
    """A real set with the order of `real`: itself, or a copy with the same table."""
    if not all(map(known_hash, real)):
        return None
    if type(real) is frozenset:
        return real
    made = set(real)
    return made if list(made) == list(real) and sys.getsizeof(made) == sys.getsizeof(real) else None


def make(cx: Capture, real: Any) -> Value:
    """The value of an object that the capture computed or knows exactly: no guards."""
    cls = type(real)  # as in `wrap`
    if issubclass(cls, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return Const(real)
    if type(cls) is type and (found := _make_builtin(cx, real)) is not None:  # a metaclass may define `__eq__`
        return found
    if (
        issubclass(cls, (range, torch.finfo, torch.iinfo))
        or inlining_rules.makes_constants(type(real))
        or numpy_arrays.is_constant(real)
    ):
        return Const(real)
    if issubclass(cls, tuple) and is_plain_tuple(cls):
        return Tuple([make(cx, v) for v in real], type(real))
    return cx.wrap(real, const_source(real))


def _make_builtin(cx: Capture, real: Any) -> Value | None:
    if type(real) in LITERALS:
        return Const(real)
    if type(real) in (tuple, torch.Size):
        return Tuple([make(cx, v) for v in real], type(real))
    if type(real) is list:
        return List([make(cx, v) for v in real])
    if type(real) is slice:  # the compiler of 3.14 creates constant slices
        return Slice([make(cx, part) for part in (real.start, real.stop, real.step)])
    if type(real) is dict:
        return Dict({Key(cx, make(cx, k)): make(cx, v) for k, v in real.items()})
    if type(real) in (set, frozenset):
        return Set({Key(cx, make(cx, v)): make(cx, v) for v in real}, type(real), shadow=_shadow(real))
    if type(real) in NUMBERS:
        return _number(cx, real)
    return None


def _number(cx: Capture, real: Any) -> Value:
    """A symbolic number.  A single symbol is loaded from its source."""
    if is_nested_int(real):
        return NestedInt(real)
    value = make_number(real)
    name = symbol_of(real)
    if isinstance(value, Symbolic) and name is not None:
        value.source = cx.sizes.source_of(name) if name in cx.sizes.origins else None
    return value
