"""Classes, modules and super().

A class behaves as `type` defines: attributes through its mro and its metaclass, operators through the metaclass.
"""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.values.attributes import (
    MISSING,
    ClassState,
    bind,
    guard_mro,
    guard_written,
    is_data_descriptor,
    is_mutable,
    is_written,
    lookup,
    mro_lookup,
    of_type,
)
from pycompiler.capture.values.base import NEEDED, Capture, StandIn, Value
from pycompiler.capture.values.constant import LITERALS, Const
from pycompiler.capture.values.containers.dicts import Dict, Proxy
from pycompiler.capture.values.containers.instance_dicts import DELETED
from pycompiler.capture.values.containers.keys import Key
from pycompiler.capture.values.functions import Method
from pycompiler.capture.values.objects import Object, annotation
from pycompiler.capture.values.symbolic_numbers import checked_length
from pycompiler.ir.source import const_source, mro_of, namespace_of, qualname_of

SUBSCRIPTED = (types.GenericAlias, type(typing.List[int]))  # noqa: UP006
"""Types of `C[...]` that generated code can create again."""
STAND_IN: list[Callable[[Capture, Value], Any]] = []
"""A function that returns the class attribute to store for a value (`capture/library/standard/class_stand_ins.py`)."""
# Attributes that `type` defines for each class.
OF_TYPES = ("__name__", "__qualname__", "__module__", "__mro__", "__bases__", "__base__", "__doc__")


class Class(Value):
    """A class."""

    def __init__(self, cls: type, made: tuple[Any, list[Value], dict[str, Value]] | None = None) -> None:
        self.cls = cls
        # For a class that the program creates in each call: the function and the values it is created from.
        self.made = made
        self.cell: Value | None = None  # the `__class__` cell of the methods, if the program creates the class
        # Later calls that changed it: function, arguments after the class, keyword arguments.
        self.steps: list[tuple[Any, list[Value], dict[str, Any]]] = []

    def describe(self) -> str:
        return f"class {qualname_of(self.cls)}"

    __repr__ = describe

    def python_type(self) -> type:
        return type(self.cls)

    def identity(self) -> object:
        return ("object", id(self.cls))

    def is_const(self) -> bool:
        return True

    def const(self, why: str = NEEDED) -> Any:
        return self.cls

    def truth(self, cx: Capture) -> bool:
        method = self.special(cx, "__bool__")
        if method is None:
            return self.special(cx, "__len__") is None or self.length(cx).truth(cx)
        found = cx.call(method, [], {}).const()
        if not isinstance(found, bool):
            cx.throw(TypeError, f"__bool__ should return bool, returned {type(found).__name__}")
        return found

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.construct(self, args, kwargs)

    def getattr(self, cx: Capture, name: str) -> Value:
        meta_class = type(self.cls)
        hook = lookup(cx, meta_class, "__getattribute__")
        try:
            if not isinstance(hook, types.WrapperDescriptorType):
                return cx.call(self._of_meta(cx, "__getattribute__", hook), [Const(name)], {})
            return self.plain_getattr(cx, name)
        except Raised as e:
            handler = lookup(cx, meta_class, "__getattr__")
            if handler is MISSING or not issubclass(e.value.python_type(), AttributeError):
                raise
        return cx.call(self._of_meta(cx, "__getattr__", handler), [Const(name)], {})

    def _of_meta(self, cx: Capture, name: str, raw: Any) -> Value:
        """A method of the metaclass, bound to the class."""
        return bind(cx, raw, const_source(type(self.cls)).then("mro_lookup", name), self, cx.make(type(self.cls)))

    def plain_getattr(self, cx: Capture, name: str) -> Value:
        """`type.__getattribute__`."""
        meta_class = type(self.cls)
        meta = lookup(cx, meta_class, name)
        if name in OF_TYPES and meta is type.__dict__[name]:
            value = getattr(self.cls, name)
            return cx.wrap(value, const_source(self.cls).attr(name)) if is_mutable(self.cls) else cx.make(value)
        if name == "__dict__" and meta is type.__dict__["__dict__"]:
            return self.of_type(cx, name)
        if name == "__class__":
            return cx.make(meta_class)
        raw = mro_lookup(self.cls, name)
        if meta is not MISSING and is_data_descriptor(meta) and mro_lookup(type(meta), "__get__") is not MISSING:
            return self._meta_attribute(cx, name, meta)
        if raw is MISSING:
            cx.guard("class_absent", const_source(self.cls), name)
            if meta is not MISSING:
                return self._meta_attribute(cx, name, meta)
            cx.throw(AttributeError, f"type object {self.cls.__name__!r} has no attribute {name!r}")
        if self.made is not None and is_data_descriptor(raw) and not isinstance(cx.by_id.get(id(raw)), Object):
            raise Break("unsupported-attribute", f"{self.describe()}.{name}, of a class that the frame creates")
        source = const_source(self.cls).then("mro_lookup", name)
        return bind(cx, raw, source, None, self)

    def of_type(self, cx: Capture, name: str) -> Value:
        """`__mro__` or `__dict__`, regardless of the metaclass."""
        if name == "__dict__":
            return own_attributes(cx, self.cls)
        return cx.wrap(mro_of(self.cls), of_type(self.cls, name)) if is_mutable(self.cls) else cx.make(mro_of(self.cls))

    def _meta_attribute(self, cx: Capture, name: str, meta: Any) -> Value:
        if isinstance(meta, (types.GetSetDescriptorType, types.MemberDescriptorType, functools.cached_property)):
            return cx.evaluate(getattr, self.cls, name)
        return self._of_meta(cx, name, meta)

    def special(self, cx: Capture, name: str) -> Value | None:
        """A special method of the metaclass, bound to the class.  Enums are immutable: their methods are evaluated
        instead."""
        raw = lookup(cx, type(self.cls), name)
        if not isinstance(raw, types.FunctionType) or isinstance(self.cls, enum.EnumMeta):
            return None
        return Method(self, cx.wrap(raw, const_source(type(self.cls)).then("mro_lookup", name)))

    def getitem(self, cx: Capture, key: Value) -> Value:
        method = self.special(cx, "__getitem__")
        if method is not None:
            return cx.call(method, [key], {})
        own = mro_lookup(self.cls, "__class_getitem__")
        if (
            isinstance(own, classmethod)
            and isinstance(own.__func__, types.FunctionType)
            and own.__func__.__module__ != "typing"
        ):
            return cx.call(self.getattr(cx, "__class_getitem__"), [key], {})
        if isinstance(self.cls, enum.EnumMeta):
            self.has_so_many(cx)
            return self.member(cx, cx.evaluate_raw(lambda c, k: c[k], self.cls, key.const()))
        found = cx.evaluate_raw(lambda c, k: c[k], self.cls, annotation(cx, key))
        if self.made is not None and not any(type(found) is cls for cls in SUBSCRIPTED):
            raise Break("unsupported-operation", f"{self.describe()}[...], of a class that the frame creates")
        return cx.make(found)

    def iterate(self, cx: Capture) -> Iterator[Value]:
        method = self.special(cx, "__iter__")
        if method is not None:
            return cx.elements(cx.call(method, [], {}))
        self.has_so_many(cx)
        return (self.member(cx, m) for m in list(cx.evaluate_raw(iter, self.cls)))

    def has_so_many(self, cx: Capture) -> None:
        """Guard the number of an enumeration's members.

        It grows while the class body runs, which code of the enumeration can see.
        """
        if self.made is None and issubclass(type(self.cls), enum.EnumMeta):
            members = const_source(self.cls).then("mro_lookup", "_member_map_")
            cx.guard("length", members, len(mro_lookup(self.cls, "_member_map_")))

    def member(self, cx: Capture, real: Any) -> Value:
        """A member that an enumeration returned.  Each class created inside has its own members."""
        name = getattr(real, "_name_", None) if self.made is not None else None
        return cx.make(real) if name is None or name not in self.cls.__members__ else self.getattr(cx, name)  # type: ignore[attr-defined]

    def length(self, cx: Capture) -> Value:
        method = self.special(cx, "__len__")
        if method is not None:
            return checked_length(cx, cx.call(method, [], {}))
        self.has_so_many(cx)
        return cx.evaluate(len, self.cls)

    def contains(self, cx: Capture, item: Value) -> bool:
        method = self.special(cx, "__contains__")
        if method is not None:
            return cx.truth(cx.call(method, [item], {}))
        real = getattr(item, "real", MISSING)
        real = item.const() if real is MISSING else real
        self.has_so_many(cx)
        return bool(cx.evaluate_raw(lambda c, k: k in c, self.cls, real))

    def setattr(self, cx: Capture, name: str, value: Value) -> None:
        """Set an attribute that was absent or held a number, str or tensor, whose end runs no code.

        Neither the old nor the new value may be a descriptor.
        """
        if self.made is not None:
            hook = lookup(cx, type(self.cls), "__setattr__")
            if isinstance(hook, types.FunctionType):
                cx.call(self._of_meta(cx, "__setattr__", hook), [Const(name), value], {})
                return
            self.store(cx, name, value)
            return
        if not is_mutable(self.cls) or name.startswith("__") or _binds(value.python_type()):
            raise Break("mutation-unsupported", f"{self.describe()}.{name} = ...")
        meta, old = type(self.cls), mro_lookup(self.cls, name)
        plain = lookup(cx, meta, "__setattr__") is type.__setattr__ and lookup(cx, meta, name) is MISSING
        if not plain or not (old is MISSING or _is_quiet(old)):
            raise Break(
                "mutation-unsupported",
                f"{self.describe()}.{name} = ..., handled by its metaclass, or in place of a value whose end may run code",
            )
        if ("__dict__", id(self.cls)) in cx.kept:
            raise Break("mutation-unsupported", f"{self.describe()}.{name} = ..., after a read of the class's __dict__")
        guard_written(cx, self.cls, name)
        if old is not MISSING and type(old) is not StandIn:
            cx.guard("type_is", const_source(self.cls).then("mro_lookup", name), type(old))
        elif old is MISSING:
            cx.guard("class_absent", const_source(self.cls), name)
        cx.effects.set_class(self, name, value, cx.step())

    def store(self, cx: Capture, name: str, value: Value) -> None:
        """`type.__setattr__` of a class that each call creates."""
        meta = lookup(cx, type(self.cls), name)
        if isinstance(meta, property) and isinstance(meta.fset, types.FunctionType):
            source = const_source(type(self.cls)).then("mro_lookup", name)
            cx.call(cx.wrap(meta.fset, source.attr("fset")), [self, value], {})
            return
        shown = name in NAME_ATTRIBUTES and type(value) is Const
        if (
            meta is not MISSING
            and is_data_descriptor(meta)
            and not shown
            or name in ("__class_getitem__", "__init_subclass__")
        ):
            raise Break("mutation-unsupported", f"{self.describe()}.{name} = ...")
        cx.effects.allow(self, self.describe())
        cx.effects.changes += 1
        cx.facts.change("class", self.cls, name)
        cx.evaluate_raw(type.__setattr__, self.cls, name, STAND_IN[0](cx, value))
        self.steps.append((type.__setattr__, [Const(name), value], {}))
        if (seen := cx.kept.get(("__dict__", id(self.cls)))) is not None:
            seen.mapping.entries[cx.key(Const(name))] = value


NAME_ATTRIBUTES = ("__name__", "__qualname__", "__module__", "__doc__")
QUIET = (*LITERALS, torch.Tensor, torch.nn.Parameter)


def _is_quiet(raw: Any) -> bool:
    return any(type(raw) is cls for cls in (StandIn, *QUIET))  # a metaclass may define `__eq__`


def _binds(cls: type) -> bool:
    return any(mro_lookup(cls, name) is not MISSING for name in ("__get__", "__set__", "__delete__"))


def own_attributes(cx: Capture, cls: type) -> Value:
    """`cls.__dict__`.  The names are guarded at once, each value when it is read."""
    if is_written(cls):
        raise Break("mutation-unsupported", f"the __dict__ of {cls.__qualname__}, which the frame has changed")
    source = of_type(cls, "__dict__")
    known = cx.kept.get(("__dict__", id(cls)))
    if known is None:
        made = getattr(cx.by_id.get(id(cls)), "made", None) is not None  # the frame knows all of its attributes
        if is_mutable(cls) and not made:
            cx.guard("equals", const_source(ClassState(cls)).attr("names"), tuple(namespace_of(cls)))
        found = {
            Key(cx, Const(n)): cx.lazy(
                v, const_source(cls).then("mro_lookup", n) if made else const_source(ClassState(cls, n)).attr("value")
            )
            for n, v in namespace_of(cls).items()
        }
        known = cx.kept["__dict__", id(cls)] = Proxy(Dict(found))
        known.mapping.source = const_source(ClassState(cls)).attr(
            "dict"
        )  # a view that leaves the graph must show the attributes of that time
        known.mapping.seen_by = types.MappingProxyType
        known.source = source
    return known  # type: ignore[no-any-return]


class PyModule(Value):
    """An imported module."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module

    def describe(self) -> str:
        return f"module {self.module.__name__}"

    __repr__ = describe

    def python_type(self) -> type:
        return type(self.module)

    def identity(self) -> object:
        return ("object", id(self.module))

    def truth(self, cx: Capture) -> bool:
        return True

    def getattr(self, cx: Capture, name: str) -> Value:
        memory = self.module.__dict__
        cx.of_operators.look_at_name(memory, name)
        found = self._getattr(cx, name)
        cx.effects.looks.at("global", memory, name, found, cx.dict_source(memory))
        return found

    def _getattr(self, cx: Capture, name: str) -> Value:
        changed = cx.effects.get_global(self.module.__dict__, name)
        if changed is DELETED:
            raise Break("unsupported-attribute", f"{self.describe()}.{name}, which the frame has deleted")
        if changed is not None:
            return changed
        self._check_class(cx, name)
        namespace = cx.dict_source(self.module.__dict__)
        own = self.module.__dict__.get("__getattr__")
        spec = self.module.__dict__.get("__spec__")  # None: the program created the module
        owner = type(self.module).__module__ if spec is None else spec.name
        lazy = owner.partition(".")[0] == "torch" or (own is None and spec is not None)
        if lazy and name not in self.module.__dict__ and hasattr(self.module, name):
            getattr(self.module, name)  # a lazy module loads the attribute, and usually stores it
        if name in self.module.__dict__:
            return cx.wrap(self.module.__dict__[name], namespace.dict_item(name))
        if name == "__dict__":
            return cx.wrap(self.module.__dict__, namespace)
        cx.guard("dict_absent", namespace, name)
        if isinstance(own, types.FunctionType):
            return cx.call_next(cx.wrap(own, namespace.dict_item("__getattr__")), [Const(name)])
        cls = type(self.module)
        handler = lookup(cx, cls, "__getattr__")
        if isinstance(handler, types.FunctionType) and lookup(cx, cls, name) is MISSING:
            function = cx.wrap(handler, const_source(cls).then("mro_lookup", "__getattr__"))
            return cx.call(function, [self, Const(name)], {})
        if own is not None or hasattr(self.module, name):
            raise Break("unsupported-attribute", f"{self.describe()}.{name}")
        cx.guard("dict_absent", namespace, "__getattr__")
        cx.throw(AttributeError, f"module {self.module.__name__!r} has no attribute {name!r}")
        raise AssertionError

    def _check_class(self, cx: Capture, name: str) -> None:
        """Guard that a module's class (`m.__class__ = Special`) looks attributes up as ModuleType does."""
        cls = type(self.module)
        cx.guard("type_is", const_source(self.module), cls)
        if cls is types.ModuleType:
            return
        raw = lookup(cx, cls, name)
        if lookup(cx, cls, "__getattribute__") is not types.ModuleType.__getattribute__ or (
            raw is not MISSING and is_data_descriptor(raw) and name != "__dict__"
        ):
            raise Break(
                "unsupported-attribute",
                f"{self.describe()}.{name}, which the module's class {cls.__qualname__} handles",
            )

    def setattr(self, cx: Capture, name: str, value: Value) -> None:
        cls = type(self.module)
        cx.guard("type_is", const_source(self.module), cls)
        raw = lookup(cx, cls, name)
        plain = isinstance(lookup(cx, cls, "__setattr__"), types.WrapperDescriptorType) and (
            raw is MISSING or not is_data_descriptor(raw)
        )
        if not plain:  # `__class__`, `__dict__`, and hooks of a program's class
            raise Break("mutation-unsupported", f"{self.describe()}.{name} = ...")
        cx.effects.set_global(self.module.__dict__, name, value)


class MadeProperty(Value):
    """A property that the frame creates, of `property` or a subclass."""

    PARTS = ("fget", "fset", "fdel", "doc")
    CHANGES = {"getter": "fget", "setter": "fset", "deleter": "fdel"}

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.parts: dict[str, Value] = {}

    def python_type(self) -> type:
        return self.cls

    def initialise(self, args: list[Value], kwargs: dict[str, Value]) -> None:
        if not kwargs.keys() <= set(self.PARTS[len(args) :]) or len(args) > len(self.PARTS):
            raise Break("builtin-call", f"{self.cls.__qualname__}.__init__ with arguments that it does not take")
        if self.cls is not property and not self.cls.__dictoffset__:
            raise Break(
                "builtin-call", f"{self.cls.__qualname__}(...), a property that may have no place for its docstring"
            )
        self.parts = dict(zip(self.PARTS, args, strict=False)) | kwargs

    def given(self) -> list[Value]:
        """The constructor arguments, in order."""
        return [self.parts.get(name, Const(None)) for name in self.PARTS]

    def getattr(self, cx: Capture, name: str) -> Value:
        if name == "__class__":
            return cx.make(self.cls)
        if self.cls is property and name in self.CHANGES:
            return PropertyCopyMethod(self, self.CHANGES[name])
        raise Break("unsupported-attribute", f"{name} of a property made inside of a function")


class PropertyCopyMethod(Value):
    """`setter`, `getter` or `deleter` of a property that the frame creates."""

    def __init__(self, owner: MadeProperty, part: str) -> None:
        self.owner, self.part = owner, part

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) != 1 or kwargs:
            raise Break("builtin-call", "property.getter, setter or deleter with arguments other than one function")
        made = MadeProperty(property)
        made.parts = self.owner.parts | {self.part: args[0]}
        return made


class MadeMethod(Value):
    """A staticmethod, classmethod or cached_property that the frame creates."""

    def __init__(self, cls: type, function: Value) -> None:
        self.cls, self.function = cls, function

    def python_type(self) -> type:
        return self.cls

    def given(self) -> list[Value]:
        return [self.function]

    def getattr(self, cx: Capture, name: str) -> Value:
        if name == "__func__":
            return self.function
        raise Break("unsupported-attribute", f"{name} of a {self.cls.__name__} made inside of a function")


class Super(Value):
    """super(cls, receiver)."""

    def __init__(self, cls: type, receiver: Value) -> None:
        self.cls = cls
        self.receiver = receiver

    def python_type(self) -> type:
        return super

    def getattr(self, cx: Capture, name: str) -> Value:
        receiver = self.receiver
        of_class = isinstance(receiver, Class) and any(
            c is self.cls for c in mro_of(receiver.cls)
        )  # else an instance of the metaclass
        start = receiver.cls if isinstance(receiver, Class) and of_class else receiver.python_type()
        if name == "__class__":  # the only name that is not looked up
            return Class(super)
        guard_mro(cx, start)
        mro = mro_of(start)
        if is_written(start, name):
            raise Break("unsupported-attribute", f"super().{name}, which the frame has changed")
        for base in mro[mro.index(self.cls) + 1 :]:
            if name in (own := namespace_of(base)):
                raw = own[name]
                source = const_source(base).then("mro_lookup", name)
                if isinstance(raw, property):
                    cx.guard("type_is", source, type(raw))
                if of_class:
                    return bind(cx, raw, source, None, receiver)
                if isinstance(raw, property) and isinstance(raw.fget, types.FunctionType):
                    return cx.call(cx.wrap(raw.fget, source.attr("fget")), [receiver], {})
                return bind(cx, raw, source, receiver, cx.class_of(receiver))
            lookup(cx, base, name)  # guard that earlier bases do not get the attribute
        if name in ("__self__", "__thisclass__", "__self_class__"):
            return receiver if name == "__self__" else cx.make(self.cls if name == "__thisclass__" else start)
        if hasattr(super, name):  # `__get__`
            raise Break("unsupported-attribute", f"super().{name}")
        cx.throw(AttributeError, f"'super' object has no attribute {name!r}")
        raise AssertionError
