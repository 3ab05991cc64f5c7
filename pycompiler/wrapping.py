"""Results of `compile` and `disable`: callables and modules that look like the originals.

In: a function, method, callable object, class or `nn.Module`, and a family.  Out: the same thing, with its calls going
through the engine.  Example: `compiled(fn, Family(...))`, `compiled_of(made).counters()`.

A wrapped module is an instance of a subclass of the module's own class and shares the module's `__dict__`.
So attributes, hooks, `state_dict` keys, `isinstance`, `.train()` and `.to()` are shared between both.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch

from pycompiler import _native
from pycompiler.config import say_once
from pycompiler.errors import ArgumentError
from pycompiler.pipeline import Family, eagerly, leave_eager
from pycompiler.torch_compat import torch_compile

INSTANCE = "_pycompiler_instance"  # attribute of a bound method's CompiledFunction, for `aot_compile`


def compiled(model: Any, family: Family, name: str | None) -> Any:
    """`model` with its calls compiled by `family`; a callable whose `compiled_of` is a `CompiledFunction`."""
    if getattr(model, "_pycompiler_disabled", False) or torch_compile.is_disabled(model):
        if isinstance(model, types.FunctionType) and is_disabled_alone(model) and not family.fullgraph:
            return compiled_function(forwarder(model), model, family, name)  # its callees are compiled
        return model
    model = original_of(model)
    if isinstance(model, torch.jit.ScriptModule):
        return scripted(model, family)
    if isinstance(model, torch.nn.Module):
        return compiled_module(model, family, name)
    if isinstance(model, types.FunctionType):
        return compiled_function(model, model, family, name)
    if isinstance(model, types.MethodType) and isinstance(model.__func__, types.FunctionType):
        made = compiled_function(model.__func__, model.__func__, family, name)
        setattr(made, INSTANCE, model.__self__)
        return types.MethodType(made, model.__self__)
    if isinstance(model, (staticmethod, classmethod)):
        return type(model)(compiled(model.__func__, family, name))
    if isinstance(model, type):
        return compiled_class(model, family, name)
    return compiled_function(forwarder(model), model, family, name)


def compiled_function(fn: types.FunctionType, original: Any, family: Family, name: str | None) -> Any:
    """A `CompiledFunction` with the name, doc, signature and attributes of `fn`; it stands for `original`."""
    made = family.compiled(fn, name=name)
    functools.update_wrapper(made, fn)
    for attribute in ("__defaults__", "__kwdefaults__", "__code__", "__globals__", "__closure__"):
        setattr(made, attribute, getattr(fn, attribute))
    made._pycompiler_family = family
    made._orig_mod = original
    torch_compile.stands_for(made, original)
    return made


def scripted(module: torch.jit.ScriptModule, family: Family) -> Any:
    """A scripted or traced module, unchanged: it has no Python code that could be captured."""
    what = f"{type(module).__name__} {getattr(module, 'original_name', '')!r} is a TorchScript module"
    if family.fullgraph:
        raise ArgumentError(f"{what}: fullgraph=True cannot hold; compile the module from which it was made")
    say_once(f"{what}: it runs uncompiled; compile the module from which it was made")
    return module


# A compiled function is copied and pickled as functions are: its copy is itself, and its pickle contains its name.
def _reduce(self: Any) -> Any:
    name, found = str(getattr(self, "__qualname__", "")), sys.modules.get(getattr(self, "__module__", None) or "")
    with contextlib.suppress(AttributeError):
        if operator.attrgetter(name)(found) is self:
            return name
    # Its name leads elsewhere, or nowhere: pickle the original, as for modules (`WrappedModule.__reduce_ex__`).
    return operator.getitem, ((original_of(self),), 0)


for _name, _method in (
    ("__copy__", lambda self: self),
    ("__deepcopy__", lambda self, memo: self),
    ("__reduce__", _reduce),
):
    setattr(_native.CompiledFunction, _name, _method)


def compiled_class(cls: type, family: Family, name: str | None) -> type:
    """`cls` itself, with compiled calls of its instances from now on (as torch.compile does with a class)."""
    call = original_of(getattr(cls, "__call__", None))  # a base, or the class itself, may be compiled already
    if isinstance(call, types.FunctionType):
        cls.__call__ = compiled_function(call, call, family, name or cls.__qualname__)  # type: ignore[method-assign]
    return cls


def forwarder(target: Any) -> types.FunctionType:
    """A Python function that calls `target`: builtins, partials and callable objects have no frame of their own."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    functools.update_wrapper(call, target, updated=())
    return cast(types.FunctionType, call)


# modules ------------------------------------------------------------------------------------------------------
class WrappedModule:
    """Base of the classes created by `wrap_module`.  First in the method resolution order."""

    _orig_mod: Any
    _pycompiler_compiled: Any = None  # the CompiledFunction, in compiled modules (a descriptor: mypy would bind it)

    def __init_subclass__(cls) -> None:
        """Does nothing: the user's `__init_subclass__` must not run for a wrapper's class."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Pickles of a wrapper hold the original, and load without pycompiler: operator.getitem((original,), 0).
        return operator.getitem, ((self._orig_mod,), 0)

    def __copy__(self) -> Any:
        return self._pycompiler_again(copy.copy(self._orig_mod))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = memo[id(self)] = self._pycompiler_again(copy.deepcopy(self._orig_mod, memo))
        return made

    def _pycompiler_again(self, module: torch.nn.Module) -> Any:
        """Another module, wrapped as this one is."""
        raise NotImplementedError


def wrap_module(module: torch.nn.Module, call: Any, again: Callable[[Any, torch.nn.Module], Any], **extra: Any) -> Any:
    """An instance of a new subclass of `module`'s class that shares its state, with `call` in place of `__call__`.

    `call` is a function of the wrapper and the arguments, or a bound or static method of the arguments alone.
    """
    made = object.__new__(_wrapper_class(type(module), module, call, again, extra))
    object.__setattr__(made, "__dict__", module.__dict__)
    setattr(type(made), torch_compile.WRAPPER, id(made))
    return made


def _wrapper_class(
    cls: Any, module: torch.nn.Module, call: Any, again: Callable[[Any, torch.nn.Module], Any], extra: dict[str, Any]
) -> Any:
    """The class of a wrapper of `module` as an instance of `cls`."""

    @functools.wraps(cls.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # the program has set its own `forward` on the instance, which calls the former one
        if "forward" in self.__dict__:
            return cls.forward(module, *args, **kwargs)
        return self(*args, **kwargs)

    def set_class(self: Any, new: Any) -> None:
        """`wrapper.__class__ = new` (as parametrizations do) sets the original's class; the wrapper follows."""
        module.__class__ = new
        REAL_CLASS.__set__(self, made := _wrapper_class(new, module, call, again, extra))
        setattr(made, torch_compile.WRAPPER, id(self))

    namespace = {
        "__call__": call,
        "__class__": property(lambda self: type(module), set_class),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__signature__": _signature(module),
        "_orig_mod": property(lambda self: module),
        "_pycompiler_again": again,
        **{name: _forwarded_slot(module, name) for name in _slots(cls)},
        **extra,
    }
    if isinstance(cls.forward, types.FunctionType):
        namespace["forward"] = forward
    metaclass: Any = type(cls)
    made = metaclass(cls.__name__, (WrappedModule, cls), namespace)
    torch_compile.stands_for(made, module)
    return made


REAL_CLASS: Any = object.__dict__["__class__"]


def compiled_module(module: torch.nn.Module, family: Family, name: str | None) -> Any:
    cls = type(module)
    entry = original_of(cls.__call__)  # the class may be compiled too
    plain = isinstance(entry, types.FunctionType)
    made = family.compiled(entry if plain else forwarder(module), name=name or cls.__qualname__)
    functools.update_wrapper(made, entry, updated=())
    made._pycompiler_family = family
    made._orig_mod = module

    def again(self: Any, other: torch.nn.Module) -> Any:
        return compiled_module(other, family.copy(), name)

    # Bound to the original: inside of the program, `self` is the original.  A forwarder takes no `self`.
    call = types.MethodType(made, module) if plain else staticmethod(made)
    wrapper = wrap_module(module, call, again, _pycompiler_compiled=made)

    def aot_compile(example_inputs: Any) -> Any:
        return compiled(types.MethodType(cls.forward, module), family.copy(), name).aot_compile(example_inputs)

    if isinstance(forward := type(wrapper).__dict__.get("forward"), types.FunctionType):
        forward.aot_compile = aot_compile  # type: ignore[attr-defined]
    return wrapper


def _slots(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        yield from (n for n, v in base.__dict__.items() if isinstance(v, types.MemberDescriptorType))


def _forwarded_slot(module: torch.nn.Module, name: str) -> property:
    """State in `__slots__` is not in `__dict__`: it is read and written on the original."""
    return property(
        lambda self: getattr(module, name),
        lambda self, value: setattr(module, name, value),
        lambda self: delattr(module, name),
    )


def _signature(module: torch.nn.Module) -> inspect.Signature | None:
    try:
        return inspect.signature(module.forward)
    except (TypeError, ValueError):
        return None


# back to originals --------------------------------------------------------------------------------------------
def compiled_of(target: Any) -> _native.CompiledFunction | None:
    """The `CompiledFunction` behind a result of `compile` or `run`, or None."""
    if isinstance(target, WrappedModule):
        target = target._pycompiler_compiled
    if isinstance(target, (types.MethodType, staticmethod, classmethod)):
        target = target.__func__
    elif isinstance(target, type):
        target = target.__dict__.get("__call__")
    if isinstance(target, types.FunctionType):
        target = target.__dict__.get(FROZEN)
    made: _native.CompiledFunction | None = target if isinstance(target, _native.CompiledFunction) else None
    return made


def original_of(target: Any) -> Any:
    """The argument of `compile` or `disable` if `target` is its result; else `target`."""
    if isinstance(target, WrappedModule):
        return target._orig_mod
    if isinstance(target, types.MethodType) and isinstance(target.__func__, _native.CompiledFunction):
        return types.MethodType(original_of(target.__func__), target.__self__)
    if isinstance(target, _native.CompiledFunction):
        return getattr(target, "_orig_mod", target.fn)
    if not torch_compile.is_disabled(target):
        by_torch = torch_compile.original_of(target)
        return target if by_torch is None else original_of(by_torch)
    return target


# run ----------------------------------------------------------------------------------------------------------
FROZEN = "_pycompiler_frozen"  # attribute of a view: the compiled callable that it calls


def frozen(target: Any) -> Any:
    """A view of a compiled callable, or of a module with compiled parts, whose calls compile nothing."""
    if isinstance(target, types.MethodType):
        return types.MethodType(frozen(target.__func__), target.__self__)
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(frozen(target.__func__))
    if isinstance(target, torch.nn.Module):
        return frozen_module(target)
    return target if getattr(target, FROZEN, None) is not None else frozen_call(target)


def frozen_call(target: Callable[..., Any]) -> types.FunctionType:
    def call(*args: Any, **kwargs: Any) -> Any:
        _native.enter_frozen()
        try:
            return target(*args, **kwargs)
        finally:
            _native.exit_frozen()

    functools.update_wrapper(call, target)
    setattr(call, FROZEN, target)
    torch_compile.stands_for(call, target)
    return cast(types.FunctionType, call)


def frozen_module(module: torch.nn.Module) -> Any:
    """A frozen view of a compiled module, or of a module with compiled parts."""

    def again(self: Any, other: torch.nn.Module) -> Any:
        return frozen_module(module._pycompiler_again(other) if isinstance(module, WrappedModule) else other)

    made = getattr(module, "_pycompiler_compiled", None)
    call = staticmethod(frozen_call(module.__call__))
    return wrap_module(original_of(module), call, again, _pycompiler_compiled=made)


# disable ------------------------------------------------------------------------------------------------------
def disabled(target: Any, reason: str | None, recursive: bool = True) -> Any:
    """`target`, which runs eagerly wherever it is called; its callees too unless `recursive` is False.

    A class is changed in place.
    """
    target = original_of(target)
    if getattr(target, "_pycompiler_disabled", False):
        return target
    if isinstance(target, torch.nn.Module):
        return disabled_module(target, reason, recursive)
    if isinstance(target, types.MethodType):
        return types.MethodType(disabled(target.__func__, reason, recursive), target.__self__)
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(disabled(target.__func__, reason, recursive))
    if isinstance(target, type):
        for attribute in ("__init__", "__call__"):
            function = getattr(target, attribute, None)
            if isinstance(function, types.FunctionType):
                setattr(target, attribute, disabled(function, reason, recursive))
        return target

    if not recursive and isinstance(target, types.FunctionType):
        leave_eager(target.__code__)

    def call(*args: Any, **kwargs: Any) -> Any:
        return eagerly(target, args, kwargs) if recursive else target(*args, **kwargs)

    functools.update_wrapper(call, target, updated=("__dict__",) if isinstance(target, types.FunctionType) else ())
    call._pycompiler_disabled = True  # type: ignore[attr-defined]
    call._pycompiler_reason = reason  # type: ignore[attr-defined]
    call._pycompiler_recursive = recursive  # type: ignore[attr-defined]
    return call


def is_disabled_alone(function: types.FunctionType) -> bool:
    """Whether a disabled function's callees may be compiled."""
    return (
        function.__dict__.get("_pycompiler_recursive", torch_compile.mark(function, torch_compile.RECURSIVE)) is False
    )


def disabled_module(module: torch.nn.Module, reason: str | None, recursive: bool) -> Any:
    entry = original_of(type(module).__call__)
    if not recursive:
        forward = type(module).forward
        if isinstance(forward, types.FunctionType):
            leave_eager(forward.__code__)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return eagerly(entry, (module, *args), kwargs) if recursive else entry(module, *args, **kwargs)

    call._pycompiler_disabled = True  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = type(module).__qualname__
    return wrap_module(
        module, call, lambda self, other: disabled_module(other, reason, recursive), _pycompiler_disabled=True,
        _pycompiler_reason=reason,
    )  # fmt: skip


__all__ = ["WrappedModule", "compiled", "compiled_of", "disabled", "frozen", "original_of"]
