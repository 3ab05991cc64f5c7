"""Objects: Python's attribute protocol, implemented once.

In: an existing object (with a source) or one created during capture, plus an overlay of attributes that the program
set.
Out: attributes by the rules of `object.__getattribute__`.  Each lookup is guarded where its result could change:
absence in the instance dict, absence or identity in the class.
"""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections import _tuplegetter  # type: ignore[attr-defined]
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.values.attributes import (
    MISSING,
    bind,
    field_index,
    guard_identity,
    guard_setter,
    instance_dict,
    is_data_descriptor,
    lookup,
    lookup_descriptor,
    mro_lookup,
)
from pycompiler.capture.values.base import Capture, TracebackEntry, Value, class_name, full_name
from pycompiler.capture.values.constant import Const, reference
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.instance_dicts import DELETED, InstanceDict
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.functions import Builtin, Method
from pycompiler.capture.values.opaque import Opaque
from pycompiler.capture.values.symbolic_numbers import Symbolic, checked_length
from pycompiler.ir.source import Source, const_source, qualname_of, room_for_dict

# Methods of nn.Module for which this file has a short cut, as torch defines them.
MODULE_METHODS: dict[str, Any] = {
    name: torch.nn.Module.__dict__[name]
    for name in ("__getattr__", "__setattr__", "__call__", "_wrapped_call_impl", "_call_impl")
}
MODULE_CODE = {name: method.__code__ for name, method in MODULE_METHODS.items()}


class Object(Value):
    """An instance of a class that no other kind of value models."""

    passes_on = True

    def __init__(
        self, cls: type, *, real: Any = MISSING, storage: Value | None = None, args: list[Value] | None = None
    ) -> None:
        self.cls = cls
        self.real = real
        if storage is not None:
            storage.within = self
        self.storage = storage  # contents of a subclass of dict, list, tuple, ...
        self.args = args  # constructor arguments of an exception
        self.group: tuple[Value, Tuple] | None = None  # message and exceptions of an exception group
        self.overlay: dict[str, Value] = {}
        # Weak: a cycle would keep the values of the view alive.
        self._namespace: weakref.ref[InstanceDict] | None = None
        self.raised_at: int | None = None  # step of the root frame's instruction that first raised this exception

    def describe(self) -> str:
        return f"{qualname_of(self.cls)} object"

    __repr__ = describe

    @property
    def exists(self) -> bool:
        return self.real is not MISSING

    def python_type(self) -> type:
        return self.cls

    def identity(self) -> object:
        return ("object", id(self.real)) if self.exists else ("value", id(self))

    def class_source(self, name: str) -> Source:
        return const_source(self.cls).then("mro_lookup", name)

    # attributes -----------------------------------------------------------------------------------------------
    def getattr(self, cx: Capture, name: str) -> Value:
        hook = lookup(cx, self.cls, "__getattribute__")
        if isinstance(hook, types.FunctionType):
            return self._asked_for(cx, name, Method(self, cx.wrap(hook, self.class_source("__getattribute__"))))
        if not isinstance(hook, types.WrapperDescriptorType):
            bound = bind(cx, hook, self.class_source("__getattribute__"), self, cx.class_of(self))
            return self._asked_for(cx, name, bound)
        if hook is threading.local.__getattribute__:
            raise Break("unsupported-attribute", f"{name} of a threading.local")
        try:
            found = self.plain_getattr(cx, name)
        except Raised as e:  # raised by a property, a descriptor or an empty slot: `__getattr__` handles it too
            if not issubclass(e.value.python_type(), AttributeError) or self._handler(cx) is MISSING:
                raise
            found = None
        if found is not None:
            return found
        handler = self._handler(cx)
        if handler is MODULE_METHODS["__getattr__"] and self._as_written(cx, "__getattr__"):
            found = self._module_attribute(cx, name)
            if found is not None:
                return found
        if handler is MISSING:
            cx.throw(AttributeError, f"{class_name(self.cls)!r} object has no attribute {name!r}")
        return self._answered(cx, handler, name)

    def _answered(self, cx: Capture, handler: Any, name: str) -> Value:
        function = bind(cx, handler, self.class_source("__getattr__"), self, cx.class_of(self))
        return cx.call_next(function, [Const(name)])

    def _handler(self, cx: Capture) -> Any:
        return lookup(cx, self.cls, "__getattr__")

    def _asked_for(self, cx: Capture, name: str, hook: Value) -> Value:
        """The result of the class's own `__getattribute__`, or of its `__getattr__` after an AttributeError."""
        handler = self._handler(cx)
        if handler is MISSING:
            return cx.call(hook, [Const(name)], {})
        found = cx.catching(AttributeError, lambda: cx.call(hook, [Const(name)], {}))
        if found is not None:
            return found
        return self._answered(cx, handler, name)

    def plain_getattr(self, cx: Capture, name: str) -> Value | None:
        """object.__getattribute__ without the __getattr__ fallback; None when there is no such attribute."""
        found = self._plain_getattr(cx, name)
        cx.effects.looks.at("attribute", self, name, found, self.source)
        return found

    def _plain_getattr(self, cx: Capture, name: str) -> Value | None:
        raw = mro_lookup(self.cls, name)
        if name == "__class__" and raw is object.__dict__["__class__"]:
            lookup(cx, self.cls, name)
            return cx.make(self.cls)
        if raw is not MISSING and is_data_descriptor(raw):
            if mro_lookup(type(raw), "__get__") is not MISSING:
                return self._data_descriptor(cx, name, raw)
            cx.guard("class_absent", const_source(type(raw)), "__get__")  # so the instance precedes the class
        if name in self.overlay:
            value = self.overlay[name]
            if value is not DELETED:
                return cx.realize(value)
        elif self.exists:
            instance = instance_dict(self.real)
            if instance is not None and name in instance:
                assert self.source is not None
                lookup_descriptor(cx, self.cls, name)
                return cx.wrap(instance[name], self.source.then("instance_dict").dict_item(name))
            if instance is not None and self.source is not None:
                cx.guard("instance_absent", self.source, name)
        if raw is MISSING:
            cx.guard("class_absent", const_source(self.cls), name)
            return None
        return bind(cx, raw, self.class_source(name), self, cx.class_of(self))

    def memory(self) -> dict[str, Any] | None:
        """The dict that holds an existing object's attributes."""
        return instance_dict(self.real)

    def instance_dict_value(self, cx: Capture) -> Value:
        """vars(self): a live view of the attributes."""
        cx.effects.looks.at("attributes", self, None, None, self.source)
        shown = None if self._namespace is None else self._namespace()
        if shown is None:
            base: Value | None = None
            known, memory = False, None
            if self.exists:
                memory = self.memory()
                known = id(memory) in cx.by_id
                with cx.effects.namespaces.inside(memory):
                    base = cx.wrap(memory, self.namespace_source())
                if not isinstance(base, Dict):
                    raise Break("unsupported-attribute", f"vars({self.describe()}), which is a {base.describe()}")
            assert base is None or isinstance(base, Dict)
            shown = InstanceDict(cx, self, base)
            self._namespace = weakref.ref(shown)
            if base is not None and not known:  # other references to this dict get the same view
                cx.remember(memory, shown)
        return shown

    def _data_descriptor(self, cx: Capture, name: str, raw: Any) -> Value:
        if isinstance(raw, property) and mro_lookup(type(raw), "__get__") is property.__dict__["__get__"]:
            cx.guard("type_is", self.class_source(name), type(raw))
            if raw.fget is None:
                self._refused(cx, raw, property.__get__)
            getter = cx.wrap(raw.fget, self.class_source(name).attr("fget"))
            return cx.call_next(getter, [self])
        guard_identity(cx, self.class_source(name), raw)
        guard_setter(cx, raw)
        if isinstance(raw, _tuplegetter) and isinstance(self.storage, Tuple):  # a field of a namedtuple
            return self.storage.getitem(cx, Const(field_index(raw)))
        if name == "__dict__" and type(raw) in (types.GetSetDescriptorType, types.MemberDescriptorType):
            return self.instance_dict_value(cx)
        if isinstance(raw, types.MemberDescriptorType):  # __slots__
            if name in self.overlay:
                if self.overlay[name] is DELETED:
                    cx.throw(AttributeError, f"{full_name(self.cls)!r} object has no attribute {name!r}")
                return self.overlay[name]
            if self.args is not None and not self.exists:
                return cx.exception_attribute(self, name)
            if not self.exists:
                cx.throw(AttributeError, f"{full_name(self.cls)!r} object has no attribute {name!r}")
            assert self.source is not None
            self._reads_plainly(name)
            try:
                value = raw.__get__(self.real, self.cls)
            except AttributeError:  # no guard checks that it stays empty
                raise Break("unsupported-attribute", f"the empty slot {self.describe()}.{name}") from None
            return cx.wrap(value, self.source.attr(name))
        if isinstance(raw, types.GetSetDescriptorType):
            if name == "args" and self.args is not None:
                if issubclass(self.cls, OSError) and not self.exists and name not in self.overlay:
                    return cx.exception_attribute(self, name)  # without the file's name
                return cx.tuple_of(self.args)
            if name == "__weakref__" and self.ends:
                raise Break(
                    "unsupported-attribute", f"{self.describe()}.__weakref__, of an object with weak references"
                )
            if name == "__weakref__" and not self.exists:
                return Const(None)
            if name in self.overlay:
                return self.overlay[name]
            if name == "__traceback__" and self.args is not None and not self.exists:
                return traceback_of(self)
            if self.args is not None and not self.exists:
                return cx.exception_attribute(self, name)
            if not self.exists or self.source is None or not issubclass(self.cls, raw.__objclass__):
                raise Break("unsupported-attribute", f"{self.describe()}.{name}")
            # A read runs hooks, and a checkpoint's hook may run only once.
            if raw.__objclass__ is torch._C._FunctionBase and name.startswith("saved_"):
                raise Break("unsupported-attribute", f"{self.describe()}.{name}, which may run hooks of saved tensors")
            self._reads_plainly(name)
            try:
                value = getattr(self.real, name)
            except RuntimeError:
                raise Break("unsupported-attribute", f"{self.describe()}.{name}, which raises") from None
            return cx.wrap(value, self.source.attr(name))
        getter = mro_lookup(type(raw), "__get__")
        if isinstance(getter, types.FunctionType):
            descriptor = cx.wrap(raw, self.class_source(name))
            function = cx.wrap(getter, const_source(type(raw)).then("mro_lookup", "__get__"))
            return cx.call(function, [descriptor, self, cx.class_of(self)], {})
        raise Break("unsupported-attribute", f"{self.describe()}.{name} ({type(raw).__name__})")

    def _reads_plainly(self, name: str) -> None:
        """Break if a class hook would see the read of a slot.

        Guards read the slot by its name too, and may find it empty.
        """
        for hook in ("__getattribute__", "__getattr__"):
            if isinstance(mro_lookup(self.cls, hook), types.FunctionType):
                raise Break("unsupported-attribute", f"{self.describe()}.{name}, a slot of a class with its own {hook}")

    def _module_attribute(self, cx: Capture, name: str) -> Value | None:
        """nn.Module.__getattr__ without inlining: parameters, buffers, submodules.  Absence in earlier tables is guarded."""
        for table in ("_parameters", "_buffers", "_modules"):
            mapping = self.plain_getattr(cx, table)
            found = mapping.lookup(cx, Const(name)) if isinstance(mapping, Dict) else None
            if found is not None:
                return found
        return None

    def takes(self, name: str) -> bool:
        """Whether a store of an attribute leaves an open str open."""
        raw, hook = (mro_lookup(self.cls, n) for n in (name, "__setattr__"))
        plain = hook is object.__setattr__ or hook is MODULE_METHODS["__setattr__"]
        other = self.args is not None or type(self) is not Object or issubclass(self.cls, threading.local)
        return (
            plain and not other and not name.startswith("__") and not (raw is not MISSING and is_data_descriptor(raw))
        )

    def setattr(self, cx: Capture, name: str, value: Value) -> None:
        hook = lookup(cx, self.cls, "__setattr__")
        if issubclass(self.cls, threading.local):
            raise Break("mutation-unsupported", f"{name} of a threading.local")
        if (
            isinstance(hook, types.WrapperDescriptorType)
            and hook.__name__ == "__setattr__"
            or (
                hook is MODULE_METHODS["__setattr__"]
                and self._as_written(cx, "__setattr__")
                and self._plain_module_store(cx, name, value)
            )
        ):
            self.plain_setattr(cx, name, value)
            return
        bound = bind(cx, hook, self.class_source("__setattr__"), self, cx.class_of(self))
        cx.call(bound, [Const(name), value], {})

    def _as_written(self, cx: Capture, name: str) -> bool:
        """Guard that a short cut's method of nn.Module still has torch's own code; False if it has not."""
        code = MODULE_METHODS[name].__code__
        if code is not MODULE_CODE[name]:
            return False
        cx.guard("id_is", self.class_source(name).then("code"), code)
        return True

    def _plain_module_store(self, cx: Capture, name: str, value: Value) -> bool:
        """Whether an assignment to a module's attribute changes only its `__dict__`."""
        if not self.exists or issubclass(value.python_type(), (torch.Tensor, torch.nn.Module)):
            return False
        return not any(name in self.real.__dict__.get(t, ()) for t in ("_parameters", "_buffers", "_modules"))

    def plain_setattr(self, cx: Capture, name: str, value: Value) -> None:
        """object.__setattr__."""
        raw = lookup_descriptor(cx, self.cls, name)
        if isinstance(raw, property):
            if raw.fset is None:
                self._refused(cx, raw, property.__set__, None)
            cx.call(cx.wrap(raw.fset, self.class_source(name).attr("fset")), [self, value], {})
            return
        if raw is not MISSING and is_data_descriptor(raw) and not isinstance(raw, types.MemberDescriptorType):
            setter = mro_lookup(type(raw), "__set__")
            if isinstance(setter, types.FunctionType):
                function = cx.wrap(setter, const_source(type(raw)).then("mro_lookup", "__set__"))
                cx.call(function, [cx.wrap(raw, self.class_source(name)), self, value], {})
                return
            if self.args is None:
                raise Break("mutation-unsupported", f"{self.describe()}.{name} = ...")
            if name == "args":
                self.args = list(cx.elements(value))
            if name == "__traceback__":
                if not isinstance(value, Traceback) and not (isinstance(value, Const) and value.value is None):
                    raise Break("mutation-unsupported", f"{self.describe()}.{name} = {value.describe()}")
                self.passed = value.passed if isinstance(value, Traceback) else ()
                return
            if name in ("__cause__", "__context__"):
                self._leads_to(cx, name[2:-2], value)
            cx.effects.set_attr(self, name, value)
            if name == "__cause__":  # the implied store comes after it
                if not self.exists:
                    self.overlay.pop("__suppress_context__", None)
                cx.effects.set_attr(self, "__suppress_context__", Const(True))
            return
        if name == "__suppress_context__" and self.args is not None and value.python_type() is not bool:
            cx.throw(TypeError, "attribute value type must be bool")
        if not room_for_dict(self.cls) and not isinstance(raw, types.MemberDescriptorType):
            cx.throw(AttributeError, self._has_no_place(cx, name, raw))
        if isinstance(raw, types.MemberDescriptorType) and raw.__objclass__ is BaseExceptionGroup:
            cx.throw(AttributeError, "readonly attribute")
        if isinstance(raw, types.MemberDescriptorType) and issubclass(raw.__objclass__, UnicodeError):
            raise Break("mutation-unsupported", f"{self.describe()}.{name} = ..., a part of the exception's text")
        cx.effects.set_attr(self, name, value)

    def _leads_to(self, cx: Capture, name: str, value: Value) -> None:
        """Check the type of an exception's cause or context."""
        if not cx.is_none(value) and not issubclass(value.python_type(), BaseException):
            cx.throw(TypeError, f"exception {name} must be None or derive from BaseException")

    def _refused(self, cx: Capture, raw: property, operation: Callable[..., Any], *args: Any) -> None:
        """Raise the error of a property without this function.  CPython's message names the property if it knows its name."""
        namesake = type(self.cls.__name__, (), {"__qualname__": self.cls.__qualname__})
        cx.evaluate_raw(operation, raw, namesake(), *args)

    def delattr(self, cx: Capture, name: str) -> None:
        hook = lookup(cx, self.cls, "__delattr__")
        if issubclass(self.cls, threading.local):
            raise Break("mutation-unsupported", f"{name} of a threading.local")
        if isinstance(hook, types.WrapperDescriptorType) and hook.__name__ == "__delattr__":
            self.plain_delattr(cx, name)
            return
        bound = bind(cx, hook, self.class_source("__delattr__"), self, cx.class_of(self))
        cx.call(bound, [Const(name)], {})

    def plain_delattr(self, cx: Capture, name: str) -> None:
        """object.__delattr__."""
        raw = lookup_descriptor(cx, self.cls, name)
        source = self.class_source(name)
        if isinstance(raw, property):
            if raw.fdel is None:
                self._refused(cx, raw, property.__delete__)
            cx.call(cx.wrap(raw.fdel, source.attr("fdel")), [self], {})
            return
        if raw is not MISSING and is_data_descriptor(raw) and not isinstance(raw, types.MemberDescriptorType):
            deleter = mro_lookup(type(raw), "__delete__")
            if not isinstance(deleter, types.FunctionType):
                raise Break("mutation-unsupported", f"del {self.describe()}.{name}")
            function = cx.wrap(deleter, const_source(type(raw)).then("mro_lookup", "__delete__"))
            cx.call(function, [cx.wrap(raw, source), self], {})
            return
        if not self._has_own(cx, name):
            if isinstance(raw, types.MemberDescriptorType):  # an empty slot
                cx.throw(AttributeError, name)
            if not self.cls.__dictoffset__:
                cx.throw(AttributeError, self._has_no_place(cx, name, raw))
            cx.throw(AttributeError, f"{class_name(self.cls)!r} object has no attribute {name!r}")
        cx.effects.set_attr(self, name, DELETED)

    def _has_no_place(self, cx: Capture, name: str, raw: Any) -> str:
        """The error message of a write to an instance without a dict.  `raw`: the class attribute of this name."""
        if raw is not MISSING:
            return f"{class_name(self.cls)!r} object attribute {name!r} is read-only"
        hooks = [lookup(cx, self.cls, n) is object.__dict__[n] for n in ("__setattr__", "__delattr__")]
        more = " and no __dict__ for setting new attributes" if sys.version_info >= (3, 13) and all(hooks) else ""
        return f"{class_name(self.cls)!r} object has no attribute {name!r}{more}"

    def _has_own(self, cx: Capture, name: str) -> bool:
        """Whether the attribute is in the object itself: its dict or a slot."""
        if name in self.overlay:
            return self.overlay[name] is not DELETED
        if not self.exists or self.source is None:
            return False
        if isinstance(mro_lookup(self.cls, name), types.MemberDescriptorType):
            return cx.catching(AttributeError, lambda: self.plain_getattr(cx, name)) is not None
        found = name in (instance_dict(self.real) or ())
        if found:
            cx.guard("dict_contains", self.source.then("instance_dict"), name)
        else:
            cx.guard("instance_absent", self.source, name)
        return found

    # The rest of the data model: the class's own methods, else the storage's -----------------------------------
    def special(self, cx: Capture, name: str) -> Value | None:
        """The special method `name` bound to this object, or None.  Looked up on the class, as Python does."""
        raw = mro_lookup(self.cls, name)
        if raw is MISSING or raw is None:
            lookup(cx, self.cls, name)
            # Python's behaviour depends on the operation: it raises, or calls None.
            if raw is None and name != "__hash__":
                raise Break("unsupported-operation", f"{self.describe()}, whose {name} is None")
            return None
        return bind(cx, raw, self.class_source(name), self, cx.class_of(self))

    def _programs(self, cx: Capture, name: str) -> Value | None:
        method = self.special(cx, name)
        return None if isinstance(method, Method) and isinstance(method.function, Builtin) else method

    def overrides(self, cx: Capture, name: str) -> bool:
        """Whether a special method is defined by the program."""
        return self._programs(cx, name) is not None

    def _special_or_storage(self, cx: Capture, name: str, *args: Value) -> Value | None:
        method = self._programs(cx, name)
        return None if method is None else cx.call(method, list(args), {})

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        direct, cx.direct = cx.direct, False
        if isinstance(self.real, torch.nn.Module) and lookup(cx, self.cls, "__call__") is MODULE_METHODS["__call__"]:
            forward = plain_module_forward(cx, self)
            if forward is not None:
                cx.direct, cx.of_module = direct, getattr(getattr(forward, "function", None), "code", None)
                return cx.call(forward, args, kwargs)
        method = self.special(cx, "__call__")
        cx.direct = direct
        if method is None:
            cx.throw(TypeError, f"{class_name(self.cls)!r} object is not callable")
        if isinstance(method, Method) and isinstance(method.function, Builtin):
            return cx.call_existing(self, args, kwargs)
        return cx.call(method, args, kwargs)

    def getitem(self, cx: Capture, key: Value) -> Value:
        if (
            self.cls.__module__ == "typing" and self.exists
        ):  # List[int], Callable[[T], int]: each access creates an equal alias
            return cx.evaluate(lambda alias, k: alias[k], self.real, annotation(cx, key))
        found = self._special_or_storage(cx, "__getitem__", key)
        if found is not None:
            return found
        if self.storage is not None:
            return self.stored(cx, key)
        if lookup(cx, self.cls, "__getitem__") is MISSING:
            cx.throw(TypeError, f"{class_name(self.cls)!r} object is not subscriptable")
        return super().getitem(cx, key)

    def stored(self, cx: Capture, key: Value) -> Value:
        """The result of `__getitem__` of the base class from C, which calls `__missing__`."""
        assert self.storage is not None
        if isinstance(self.storage, Dict) and (missing := self.special(cx, "__missing__")) is not None:
            found = self.storage.lookup(cx, key)
            return found if found is not None else cx.call(missing, [key], {})
        return self.storage.getitem(cx, key)

    def _need(self, cx: Capture, name: str, key: Value, complaints: tuple[str, str]) -> None:
        """Raise TypeError if the class lacks a special method.

        The first message is for keys that are indices; `__index__` runs first.  The second is for all other keys.
        """
        if lookup(cx, self.cls, name) is MISSING:
            place = hasattr(key.python_type(), "__index__")
            if place:
                cx.index(key, "sequence")
            cx.throw(TypeError, f"{class_name(self.cls)!r} object {complaints[0 if place else 1]}")

    def setitem(self, cx: Capture, key: Value, value: Value) -> None:
        if self._special_or_storage(cx, "__setitem__", key, value) is None:
            if self.storage is None:
                self._need(cx, "__setitem__", key, ("does not support item assignment",) * 2)
                return super().setitem(cx, key, value)
            self.storage.setitem(cx, key, value)

    def delitem(self, cx: Capture, key: Value) -> None:
        if self._special_or_storage(cx, "__delitem__", key) is None:
            if self.storage is None:
                self._need(cx, "__delitem__", key, ("doesn't support item deletion", "does not support item deletion"))
                return super().delitem(cx, key)
            self.storage.delitem(cx, key)

    def iterate(self, cx: Capture) -> Iterator[Value]:
        made = self._special_or_storage(cx, "__iter__")
        if made is not None:
            if made is self:
                return self._iterate_next(cx)
            return made.iterate(cx)
        if self.storage is not None:
            return self.storage.iterate(cx)
        if lookup(cx, self.cls, "__getitem__") is not MISSING and not isinstance(self.real, torch.nn.Module):
            return self._iterate_items(cx)
        if lookup(cx, self.cls, "__iter__") is MISSING:
            cx.throw(TypeError, f"{class_name(self.cls)!r} object is not iterable")
        return super().iterate(cx)

    def _iterate_next(self, cx: Capture) -> Iterator[Value]:
        while True:
            value = cx.next_of(self)
            if value is None:
                return
            yield value

    def place(self, cx: Capture, i: int) -> Value | None:
        """The result of `__getitem__` for an iterator at index `i`; None at the end, after an IndexError or StopIteration."""
        return cx.catching((IndexError, StopIteration), partial(self.getitem, cx, Const(i)))

    def _iterate_items(self, cx: Capture) -> Iterator[Value]:
        i = 0
        while True:
            value = self.place(cx, i)
            if value is None:
                return
            yield value
            i += 1

    def length(self, cx: Capture) -> Value:
        found = self._special_or_storage(cx, "__len__")
        if found is not None:
            return checked_length(cx, found)
        if self.storage is not None:
            return self.storage.length(cx)
        if lookup(cx, self.cls, "__len__") is MISSING:
            cx.throw(TypeError, f"object of type {class_name(self.cls)!r} has no len()")
        return super().length(cx)

    def truth(self, cx: Capture) -> bool:
        found = self._special_or_storage(cx, "__bool__")
        if isinstance(found, Symbolic) and found.python_type() is bool:
            return found.truth(cx)
        if found is not None:
            value = found.const()
            if not isinstance(value, bool):
                cx.throw(TypeError, f"__bool__ should return bool, returned {type(value).__name__}")
            return value
        found = self._special_or_storage(cx, "__len__")
        if found is not None:
            return bool(checked_length(cx, found).truth(cx))
        if self.storage is not None:
            return self.storage.truth(cx)
        if any(lookup(cx, self.cls, n) is not MISSING for n in ("__bool__", "__len__")):
            return super().truth(cx)
        return True

    def contains(self, cx: Capture, item: Value) -> bool:
        found = self._special_or_storage(cx, "__contains__", item)
        if found is not None:
            return bool(found.truth(cx))
        if self.storage is not None:
            return self.storage.contains(cx, item)
        iterator = cx.catching(TypeError, lambda: cx.iterator(self))
        if iterator is None:
            what = "a container or iterable" if sys.version_info >= (3, 14) else "iterable"
            cx.throw(TypeError, f"argument of type {class_name(self.cls)!r} is not {what}")
        return any(cx.alike(v, item) for v in cx.pull(iterator))


# Operations that `Tuple` implements itself.  A class that overrides one, or has instance attributes, is an `Object`.
_OF_TUPLES = (
    "__len__", "__getitem__", "__iter__", "__contains__", "__bool__", "__hash__", "__getattribute__", "__getattr__",
    "__setattr__", "__delattr__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__add__", "__radd__",
    "__mul__", "__rmul__", "__call__", "__str__", "__format__", "__index__", "__reversed__",
)  # fmt: skip


def is_plain_tuple(cls: type) -> bool:
    """Whether instances of a tuple subclass behave as tuples: a namedtuple, a struct of the standard library."""
    return not cls.__dictoffset__ and not any(isinstance(mro_lookup(cls, n), types.FunctionType) for n in _OF_TUPLES)


def tuple_of(cls: type, items: list[Value]) -> Value:
    """A new instance of a subclass of tuple."""
    return Tuple(items, cls) if is_plain_tuple(cls) else Object(cls, storage=Tuple(items))


class Traceback(Value):
    """The traceback of an exception raised during capture.  The program can pass it on, but not read it."""

    def __init__(self, passed: Sequence[TracebackEntry]) -> None:
        self.passed = passed

    def python_type(self) -> type:
        return types.TracebackType

    def identity(self) -> object:
        return ("traceback", id(self.passed))

    def truth(self, cx: Capture) -> bool:
        return True

    def getattr(self, cx: Capture, name: str) -> Value:
        raise Break("unsupported-attribute", f"{name} of a traceback")


def traceback_of(exception: Value) -> Value:
    """None if the program removed the traceback, or nothing was raised yet."""
    return Traceback(exception.passed) if exception.passed else Const(None)


def annotation(cx: Capture, value: Value) -> Any:
    """An annotation as a real object."""
    value = cx.realize(value)
    if isinstance(value, (Tuple, List)) and value.cls in (tuple, list):
        return value.cls(annotation(cx, v) for v in value.items)
    if isinstance(value, Builtin):
        return value.fn
    existing = value.exists if isinstance(value, Object) else isinstance(value, Opaque)
    if (
        isinstance(value, (Object, Opaque))
        and existing
        and value.python_type().__module__ in ("typing", "types", "collections.abc")
    ):
        if value.source is not None:
            cx.guard("id_is", value.source, reference(value.real))
        return value.real
    return value.const()


HOOK_DICTS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")


# Methods that nn.Module.__call__ runs before forward.
CALL_METHODS = ("_wrapped_call_impl", "_call_impl")


def plain_module_forward(cx: Capture, module: Object) -> Value | None:
    """`module.forward` if a call of the module only calls it (no hooks), guarded; else None."""
    state = module.real.__dict__
    if module.overlay and any(h in module.overlay for h in HOOK_DICTS):
        return None
    if state.get("_compiled_call_impl") is not None or any(state.get(h) for h in HOOK_DICTS):
        return None
    known = (cx.by_id.get(id(state.get(h))) for h in HOOK_DICTS) if cx.registered else ()
    if any(v is not None and cx.effects.is_written(v) for v in known):
        return None
    assert module.source is not None
    instance = module.source.then("instance_dict")
    for name in CALL_METHODS:
        if name in state or lookup(cx, module.cls, name) is not MODULE_METHODS[name]:
            return None
        if not module._as_written(cx, name):
            return None
        cx.guard("instance_absent", module.source, name)
    for name in HOOK_DICTS:
        if name not in state:
            return None
        cx.guard("length", instance.dict_item(name), 0)
    if "_compiled_call_impl" in state:
        cx.guard("id_is", instance.dict_item("_compiled_call_impl"), None)
    else:
        cx.guard("instance_absent", module.source, "_compiled_call_impl")
    if not cx.no_global_module_hooks():
        return None
    return module.getattr(cx, "forward")
