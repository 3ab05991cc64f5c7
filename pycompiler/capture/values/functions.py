"""Callables: Python functions (inlined), bound methods, builtins (by table), partials.

`capture/interpreter/calls.py` decides how a function is called.  This file only models callables.
"""

from __future__ import annotations

import collections
import collections.abc
import functools
import sys
import types
import typing
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, Cell, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.containers.sets import Set
from pycompiler.ir.source import const_source

_ADDED = ("__type_params__", "__annotate__")  # since 3.12 and 3.14
_HAS_DOCSTRING = 0x4000000 if sys.version_info >= (3, 14) else 0


def _doc(code: types.CodeType) -> object:
    """The docstring.  Before 3.14 the first constant is None if there is none."""
    if code.co_flags & _HAS_DOCSTRING != _HAS_DOCSTRING:
        return None
    return code.co_consts[0]


def _annotations(function: types.FunctionType) -> object:
    """Annotations.  3.14 computes them at the first access."""
    try:
        return function.__annotations__
    except Exception as error:
        raise Break("unsupported-attribute", f"annotations that raise {type(error).__name__}") from error


class Function(Value):
    """A Python function: existing (`real`, with a source) or created during capture (cells and defaults are values)."""

    passes_on = True
    cls = stores = types.FunctionType  # attribute writes use this class, as for objects

    def __init__(
        self,
        code: types.CodeType,
        func_globals: dict[str, Any],
        *,
        real: types.FunctionType | None = None,
        name: str | None = None,
        qualname: str | None = None,
        defaults: list[Value] | None = None,
        kwdefaults: dict[str, Value] | None = None,
        closure: list[Cell] | None = None,
    ) -> None:
        self.code = code
        self.globals = func_globals
        self.real = real
        self.name = name or code.co_name
        self.qualname = qualname or code.co_qualname
        self.made_defaults = defaults
        self.made_kwdefaults = kwdefaults
        self.made_closure = closure
        self.overlay: dict[str, Value] = {}

    def describe(self) -> str:
        return f"function {self.qualname}"

    __repr__ = describe

    def python_type(self) -> type:
        return types.FunctionType

    def identity(self) -> object:
        return ("object", id(self.real)) if self.real is not None else super().identity()

    def defaults(self, cx: Capture) -> list[Value]:
        if self.real is None:
            return self.made_defaults or []
        values = self.real.__defaults__
        assert self.source is not None
        source = self.source.then("defaults")
        if values is None:
            cx.guard("id_is", source, None)
            return []
        cx.guard("length", source, len(values))
        return [cx.lazy(v, source.item(i)) for i, v in enumerate(values)]

    def kwdefaults(self, cx: Capture) -> dict[str, Value]:
        if self.real is None:
            return self.made_kwdefaults or {}
        values = self.real.__kwdefaults__
        assert self.source is not None
        source = self.source.then("kwdefaults")
        if values is None:
            cx.guard("id_is", source, None)
            return {}
        known = cx.wrap(values, source)  # the frame may have changed the dict under another name
        assert isinstance(known, Dict)
        return {k.const(): v for k, v in known.pairs(cx)}

    def closure(self, cx: Capture) -> list[Cell]:
        if self.real is None:
            return self.made_closure or []
        cells = self.real.__closure__ or ()
        assert self.source is not None
        return [cx.wrap_cell(c, self.source.then("closure").item(i)) for i, c in enumerate(cells)]

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.call_function(self, args, kwargs)

    def getattr(self, cx: Capture, name: str) -> Value:
        if name in self.overlay:
            if self.exists:
                cx.effects.looks.at("attribute", self, name, self.overlay[name], self.source)
            return self.overlay[name]
        if name in ("__name__", "__qualname__"):
            if self.real is not None and self.source is not None:
                return cx.wrap(getattr(self.real, name), self.source.attr(name))
            return Const(self.name if name == "__name__" else self.qualname)
        if name == "__defaults__" and self.real is None:
            return Tuple(self.defaults(cx)) if self.defaults(cx) else Const(None)
        if self.real is not None:
            assert self.source is not None
            if name in ("__defaults__", "__kwdefaults__"):
                return cx.wrap(getattr(self.real, name), self.source.then(name.strip("_")))
            cx.effects.namespaces.reached(self.real.__dict__, self)
            if name in self.real.__dict__:
                found = cx.wrap(self.real.__dict__[name], self.source.then("instance_dict").dict_item(name))
                cx.effects.looks.at("attribute", self, name, found, self.source)
                return found
            if name in ("__doc__", "__module__") or (name in _ADDED and hasattr(self.real, name)):
                return cx.wrap(getattr(self.real, name), self.source.attr(name))
            if name == "__code__":
                return cx.wrap(self.code, self.source.then("code"))
            if name == "__annotations__" and isinstance(known := _annotations(self.real), dict):
                return cx.wrap(known, self.source.attr(name))
            if name == "__dict__":
                return cx.wrap(self.real.__dict__, self.source.then("instance_dict"))
        elif name == "__code__":
            return Const(self.code)
        elif name in ("__doc__", "__module__"):
            return Const(_doc(self.code) if name == "__doc__" else self.globals.get("__name__"))
        elif name == "__type_params__" and hasattr(types.FunctionType, name):
            return Tuple([])  # an intrinsic sets the parameters of a generic function, which breaks the graph
        elif name == "__dict__":
            return cx.function_dict(self)
        elif name == "__annotate__" and hasattr(types.FunctionType, name):
            return Const(None)
        elif name == "__annotations__":
            if "__annotate__" in self.overlay:  # computing the annotations drops `__annotate__`
                raise Break("unsupported-attribute", "annotations of a function made inside of the frame")
            return self.overlay.setdefault(name, Dict({}))
        if name == "__get__":
            return Descriptor(self)
        if not hasattr(types.FunctionType, name):
            if self.source is not None:
                cx.guard("instance_absent", self.source, name)
            cx.throw(AttributeError, f"'function' object has no attribute {name!r}")
        return super().getattr(cx, name)

    @property
    def exists(self) -> bool:
        return self.real is not None

    def setattr(self, cx: Capture, name: str, value: Value) -> None:
        if self.real is not None:
            if hasattr(types.FunctionType, name) or unshadowed(name) != name or self.source is None:
                super().setattr(cx, name, value)
            cx.effects.set_attr(self, name, value)
            return
        cx.effects.allow(self, self.describe())
        if name in TYPED:
            cls, text = TYPED[name]
            if not issubclass(value.python_type(), cls):
                cx.throw(TypeError, f"{name} must be set to {text}")
        if name == "__name__":
            self.name = value.const()
        elif name == "__qualname__":
            self.qualname = value.const()
        elif name == "__code__":
            code = value.const()
            free, needed = len(self.code.co_freevars), len(code.co_freevars)
            if free != needed:
                text = f"{self.name}() requires a code object with {free} free vars, not {needed}"
                cx.throw(ValueError, text)
            self.code = code
            return
        elif name in UNCHANGED or unshadowed(name) != name:
            super().setattr(cx, name, value)
        self.overlay[name] = value

    def truth(self, cx: Capture) -> bool:
        return True


# Attributes that accept only some types, and attributes whose changes are not modelled.
TYPED: dict[str, tuple[tuple[type, ...], str]] = {
    "__name__": ((str,), "a string object"),
    "__qualname__": ((str,), "a string object"),
    "__code__": ((types.CodeType,), "a code object"),
    "__annotations__": ((dict, type(None)), "a dict object"),
    "__dict__": ((dict,), "a dictionary"),
    "__type_params__": ((tuple,), "a tuple"),
}
UNCHANGED = ("__defaults__", "__kwdefaults__", "__closure__", "__globals__", "__builtins__", "__dict__", "__class__")

# Prefix of a `__dict__` entry that is no attribute, because every function has a slot of its name.
_ENTRY = "__dict__."


def shadowed(name: str) -> str:
    """The overlay's name for such an entry of a function created by the program."""
    return _ENTRY + name


def unshadowed(name: str) -> str:
    return name.removeprefix(_ENTRY)


class Descriptor(Value):
    """function.__get__, called."""

    def __init__(self, function: Function) -> None:
        self.function = function

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        receiver, owner = [*map(cx.realize, args), Const(None)][:2]
        if not cx.is_none(receiver):
            return Method(receiver, self.function)
        if cx.is_none(owner):
            cx.throw(TypeError, "__get__(None, None) is invalid")
        return self.function


class Method(Value):
    """A bound method: `function` with `receiver` as its first argument."""

    passes_on = True

    def __init__(self, receiver: Value, function: Value) -> None:
        self.receiver = receiver
        self.function = function

    def describe(self) -> str:
        return f"method {self.function.describe()} of {self.receiver.describe()}"

    __repr__ = describe

    def python_type(self) -> type:
        return BOUND.get(type(getattr(self.function, "fn", None)), types.MethodType)

    def identity(self) -> object:
        return ("value", id(self))

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.call(self.function, [self.receiver, *args], kwargs)

    def getattr(self, cx: Capture, name: str) -> Value:
        cls = self.python_type()
        known = any(name in vars(c) for c in cls.__mro__)
        if name == "__self__":
            return self.receiver
        if name == "__class__":
            return cx.make(cls)
        if name == "__call__":
            return self
        if cls is types.MethodType:
            if name == "__func__":
                return self.function
            if name == "__doc__" or not known:
                return self.function.getattr(cx, name)
        elif not known:
            cx.throw(AttributeError, f"{cls.__name__!r} object has no attribute {name!r}")
        elif name == "__module__":
            return Const(None)
        elif name == "__qualname__" and cls is types.BuiltinMethodType:  # the name of the receiver's class
            of = self.receiver.python_type()
            owner = self.receiver if issubclass(of, type) else cx.make(of)
            return Const(f"{owner.getattr(cx, name).const()}.{self.function.getattr(cx, '__name__').const()}")
        elif name in ("__name__", "__qualname__", "__doc__"):
            return self.function.getattr(cx, name)
        raise Break("unsupported-attribute", f"{name} of a bound method")

    def truth(self, cx: Capture) -> bool:
        return True


ALIASES: tuple[type, ...] = (
    types.GenericAlias,
    types.UnionType,
    type(collections.abc.Callable[[], None]),
    typing.TypeVar,
)
"""Type expressions (`list[int]`, `int | None`): equal iff their parts are equal."""

# The class of a bound method from C.
BOUND: dict[type, type] = {
    types.MethodDescriptorType: types.BuiltinFunctionType,
    types.WrapperDescriptorType: types.MethodWrapperType,
    types.ClassMethodDescriptorType: types.BuiltinFunctionType,
}
STORES = list.append  # does not use the value that it stores
DATA_MODEL = ("__getitem__", "__setitem__", "__delitem__", "__contains__")
KEYED = (
    *(getattr(d, n) for d in (dict, collections.OrderedDict) for n in ("get", "setdefault", "pop", *DATA_MODEL)),
    *(getattr(s, n) for s in (set, frozenset) for n in ("__contains__", "add", "discard") if hasattr(s, n)),
)
"""Methods whose argument is a key, which the container may accept without using its value."""
PASSING = {id(fn) for fn in (STORES, *KEYED)}
ATTRIBUTED = (functools._lru_cache_wrapper, torch.jit.ScriptFunction)
"""Callables from C on which a program may set attributes.  They are read as attributes of ordinary objects."""


class Builtin(Value):
    """A builtin function, method descriptor, torch function or other callable object known by identity."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.passes_on = id(fn) in PASSING

    def describe(self) -> str:
        module = getattr(self.fn, "__module__", None)
        name = getattr(self.fn, "__qualname__", None) or getattr(self.fn, "__name__", None) or repr(self.fn)
        return f"{module}.{name}" if module and module != "builtins" else f"builtin {name}"

    __repr__ = describe

    def python_type(self) -> type:
        return type(self.fn)

    def identity(self) -> object:
        if isinstance(self.fn, types.MethodWrapperType):  # each access creates a new one
            return ("wrapper", id(self.fn.__self__), self.fn.__name__)
        return ("object", id(self.fn))

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.passes_on:
            owner, given = (args[0], args[1:2]) if args else (None, [])
            kept = self.fn is not STORES and isinstance(owner, (Dict, Set)) and any(map(owner.takes, given))
            if kept:
                del args[1]
            if not (self.fn is STORES and isinstance(owner, List)):
                cx.realize_all(args, kwargs)
            if kept:
                args[1:1] = given
        return cx.call_builtin(self.fn, args, kwargs)

    def getattr(self, cx: Capture, name: str) -> Value:
        own = self._own(cx, name) if isinstance(self.fn, ATTRIBUTED) else None
        if own is not None:
            return own
        if name in ("__name__", "__qualname__", "__module__", "__doc__", "__self__"):
            value = cx.evaluate_raw(getattr, self.fn, name)
            return cx.make(value)
        found = getattr(self.fn, name, None)
        if found is None:
            if hasattr(self.fn, name):
                return Const(None)
            cx.evaluate_raw(getattr, self.fn, name)  # raises; an alias raises with the name of the object it stands for
        if issubclass(type(found), (dict, list, set, tuple)):  # writes to it are writes to the object's own container
            return cx.wrap(found, (self.source or const_source(self.fn)).attr(name))
        return cx.make(found)

    def _own(self, cx: Capture, name: str) -> Value | None:
        """An attribute in the callable's dict, or the dict itself.  Absence is guarded."""
        source, held = self.source or const_source(self.fn), getattr(self.fn, "__dict__", None)
        if type(held) is not dict:
            return None
        cx.effects.namespaces.reached(held, self)
        if name == "__dict__":
            return cx.wrap(held, source.then("instance_dict"))
        if name == "__class__":
            return None
        if name in held:
            return cx.wrap(held[name], source.then("instance_dict").dict_item(name))
        cx.guard("instance_absent", source, name)
        return None

    def truth(self, cx: Capture) -> bool:
        return True


PLACEHOLDER = getattr(functools, "Placeholder", None)
"""3.14: the argument of a partial that the next positional argument replaces."""
HOLES = "a partial with functools.Placeholder arguments"


ABSENT = object()
PARTIAL = ("func", "args", "keywords", "__dict__", "__class__")
"""Attributes of a partial that its own dict cannot hide."""


class Partial(Value):
    """functools.partial, without `PLACEHOLDER`s."""

    passes_on = True

    def __init__(
        self, function: Value, args: list[Value], kwargs: dict[str, Value], cls: type, real: Any = None
    ) -> None:
        self.real = real
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.cls = cls
        self.overlay: dict[str, Value] = {}  # attributes that the frame set on a partial that it created
        self.shown: dict[str, Value] = {}  # `args` and `keywords` as the frame has read them

    def python_type(self) -> type:
        return self.cls

    def words(self, cx: Capture) -> dict[str, Value]:
        """The keywords.  The program may change the dict that it has read."""
        shown = self.shown.get("keywords")
        if not isinstance(shown, Dict):
            return self.kwargs
        pairs = list(shown.pairs(cx))
        if not all(isinstance(k, Const) and type(k.value) is str for k, _ in pairs):
            raise Break("unsupported-operation", "a partial with keywords that are not str")
        return {k.const(): v for k, v in pairs}

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.call(self.function, [*self.args, *args], {**self.words(cx), **kwargs})

    def setattr(self, cx: Capture, name: str, value: Value) -> None:
        if self.source is not None or self.cls is not functools.partial or name in PARTIAL:
            return super().setattr(cx, name, value)
        cx.effects.allow(self, self.describe())
        self.overlay[name] = value

    def getattr(self, cx: Capture, name: str) -> Value:
        if name in self.overlay:
            return self.overlay[name]
        if name == "__dict__" and self.cls is functools.partial:
            return self._namespace(cx)
        if name not in PARTIAL and self.source is not None and (own := self._own(cx, name)) is not None:
            return own
        if name == "func":
            return self.function
        if name in ("args", "keywords"):
            if name not in self.shown:
                self.shown[name] = self._shown(cx, name)
            return self.shown[name]
        return super().getattr(cx, name)

    def _shown(self, cx: Capture, name: str) -> Value:
        if self.source is not None:
            return cx.wrap(getattr(self.real, name), self.source.attr(name))
        return Tuple(list(self.args)) if name == "args" else Dict({cx.key(Const(k)): v for k, v in self.kwargs.items()})

    def _namespace(self, cx: Capture) -> Value:
        """Its dict, which the access creates if there is none."""
        if self.source is None:
            return self.shown.setdefault("__dict__", cx.function_dict(self))
        cx.effects.namespaces.reached(self.real.__dict__, self)
        return cx.wrap(self.real.__dict__, self.source.attr("__dict__"))

    @property
    def has_dict(self) -> bool:
        if self.real is not None:
            return self.real.__reduce__()[2][3] is not None
        return bool(self.overlay) or "__dict__" in self.shown

    def _own(self, cx: Capture, name: str) -> Value | None:
        """An attribute in the dict of an existing partial.

        A read of `__dict__` would create the dict, which a partial of this partial can observe.
        """
        assert self.source is not None
        found = getattr(self.real, name, ABSENT)
        if found is not ABSENT and found is not getattr(type(self.real), name, None):
            return cx.wrap(found, self.source.attr(name))
        cx.guard("instance_absent", self.source, name)
        return None

    def truth(self, cx: Capture) -> bool:
        return True
