"""Attribute lookup in classes: the mro, descriptors, binding.

In: a raw class attribute and its source.  Out: the value that the lookup returns.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import sys
import threading
import types
import weakref
from collections import _tuplegetter  # type: ignore[attr-defined]
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, StandIn, Value, class_name
from pycompiler.capture.values.constant import Const, reference
from pycompiler.capture.values.containers.sequences import Tuple
from pycompiler.capture.values.functions import Builtin, Method
from pycompiler.ir.source import Source, base_of, const_source, flags_of, module_of, mro_of, namespace_of, qualname_of
from pycompiler.ir.weak_guards import HEAP_TYPE, IMMUTABLE
from pycompiler.operators import numpy_random

MISSING = object()
SETTERS = ("__set__", "__delete__")


WRITTEN: dict[tuple[int, int, str], StandIn] = {}
"""Class attributes written by captures in progress.  Key: (thread, id of the class, name)."""


def hide_written() -> dict[tuple[int, int, str], StandIn]:
    """Remove and return the writes of the outer capture in this thread, until `show_written` restores them."""
    thread = threading.get_ident()
    return {key: WRITTEN.pop(key) for key in list(WRITTEN) if key[0] == thread}


def show_written(hidden: dict[tuple[int, int, str], StandIn]) -> None:
    hide_written()
    WRITTEN.update(hidden)


def is_written(cls: type, name: str | None = None) -> bool:
    """Whether the capture in this thread has written the attribute (None: any) into a class of the mro."""
    if not WRITTEN:
        return False
    thread, places = threading.get_ident(), {id(c) for c in mro_of(cls)}
    return any(t == thread and c in places and name in (None, n) for t, c, n in list(WRITTEN))


def _as_written(cls: type, name: str) -> Any:
    thread = threading.get_ident()
    for base in mro_of(cls):
        if (found := WRITTEN.get((thread, id(base), name))) is not None:
            return found
        if name in (own := namespace_of(base)):
            return own[name]
    return MISSING


def mro_lookup(cls: type, name: str) -> Any:
    """The raw class attribute (no descriptor call), or MISSING."""
    if WRITTEN:
        return _as_written(cls, name)
    for base in mro_of(cls):
        if name in (own := namespace_of(base)):
            return own[name]
    return MISSING


def is_data_descriptor(raw: Any) -> bool:
    """Whether its type defines `__set__` or `__delete__`, so that it precedes the instance dict."""
    return any(mro_lookup(type(raw), name) is not MISSING for name in SETTERS)


def is_behind_python_descriptor(cls: type, name: str) -> bool:
    """Whether a written attribute lies in the instance dict behind a descriptor that is written in Python.

    Such a descriptor has no storage of its own, so the program must have written the dict itself.
    """
    raw = mro_lookup(cls, name)
    return isinstance(raw, property) or isinstance(mro_lookup(type(raw), "__set__"), types.FunctionType)


def is_mutable(cls: type) -> bool:
    """Whether its attributes can be set: false for classes from C, though most are heap types since 3.12."""
    return flags_of(cls) & (HEAP_TYPE | IMMUTABLE) == HEAP_TYPE


def guard_written(cx: Capture, cls: type, name: str) -> None:
    """Guard that a lookup finds the class into which the frame has written the attribute.

    The guards: earlier classes of the mro do not have the attribute, and the first class that had it still has it.
    """
    thread = threading.get_ident()
    if not any(t == thread and n == name for t, _, n in list(WRITTEN)):
        return
    bases = mro_of(cls)
    # Classes created by this capture need no guard.
    made = [id(base) for base in bases if getattr(cx.by_id.get(id(base)), "made", None) is not None]
    for base in bases:
        if id(base) not in made:
            guard_mro(cx, base)
    if not is_written(cls, name):
        return
    for base in bases:
        written, held = (thread, id(base), name) in WRITTEN, name in namespace_of(base)
        if is_mutable(base) and id(base) not in made and not written:
            own = cx.kept.setdefault(("own", id(base), name), ClassState(base, name))
            cx.guard("equals", const_source(own).attr("held"), held)
        if written or held:
            return


def lookup(cx: Capture, cls: type, name: str) -> Any:
    """mro_lookup for a decision, guarded: the lookup finds this very object, or nothing."""
    raw = mro_lookup(cls, name)
    guard_written(cx, cls, name)
    if is_mutable(cls) and type(raw) is not StandIn:
        if raw is MISSING:
            cx.guard("class_absent", const_source(cls), name)
        else:
            cx.guard("id_is", const_source(cls).then("mro_lookup", name), reference(raw))
    return raw


def lookup_descriptor(cx: Capture, cls: type, name: str) -> Any:
    """mro_lookup to decide whether the class precedes the instance.  The guards fix only whether it is a data descriptor."""
    raw = mro_lookup(cls, name)
    guard_written(cx, cls, name)
    if type(raw) is StandIn:
        return raw
    if raw is MISSING or is_data_descriptor(raw):
        if raw is not MISSING:
            guard_setter(cx, raw)
        return lookup(cx, cls, name)
    if is_mutable(cls):
        kind = const_source(cls).then("mro_lookup", name).then("type")
        for setter in SETTERS:
            cx.guard("class_absent", kind, setter)
    return raw


def guard_setter(cx: Capture, raw: Any) -> None:
    """Guard that the type of a data descriptor keeps the method that makes it one."""
    kind = type(raw)
    if is_mutable(kind):
        name = next(name for name in SETTERS if mro_lookup(kind, name) is not MISSING)
        cx.guard("type_is", const_source(kind).then("mro_lookup", name), type(mro_lookup(kind, name)))


def guard_mro(cx: Capture, cls: type) -> None:
    """Guard that the bases of a class stay the same: an assignment to `__bases__` creates a new `__mro__`."""
    if is_mutable(cls) and not str(module_of(cls)).startswith("torch."):
        cx.guard("id_is", of_type(cls, "__mro__"), mro_of(cls))


def of_type(cls: type, name: str) -> Source:
    """The source of a class's `__mro__` or `__dict__`, also if a metaclass hides it by an attribute of this name."""
    shadowed = mro_lookup(type(cls), name) is not type.__dict__[name]
    return const_source(ClassState(cls)).attr(name.strip("_")) if shadowed else const_source(cls).attr(name)


class ClassState:
    """A class's own mro and namespace, as attributes for guards."""

    def __init__(self, cls: type, name: str = "") -> None:
        self._cls, self.name = weakref.ref(cls), name

    cls = property(lambda self: self._cls())
    mro = property(lambda self: mro_of(self.cls))
    dict = property(lambda self: namespace_of(self.cls))
    names = property(lambda self: tuple(namespace_of(self.cls)))
    value = property(lambda self: namespace_of(self.cls)[self.name])
    held = property(lambda self: self.name in namespace_of(self.cls))


def unlist_subclass(cls: type) -> None:
    """Remove a class that this capture created from the `__subclasses__` of its bases.

    Bases that belong to the language (builtins, abc, typing) still list it.
    """
    given = [base for base in mro_of(cls)[1:] if not is_mutable(base) or module_of(base) in ("abc", "typing")]
    if any(base is base_of(cls) for base in given):
        return
    for base in reversed(given):
        with contextlib.suppress(TypeError):  # the layouts differ, as with `__slots__`
            type.__dict__["__bases__"].__set__(cls, (types.new_class("Unlisted", (base,)),))
            return


class Registrations:
    """`token` changes when a class is registered with any abstract base class."""

    token = property(lambda self: abc.get_cache_token())


REGISTRATIONS = Registrations()
# Only tensors are instances of torch.FloatTensor and the like (see `capture/library/standard/builtin_functions.py`).
PLAIN_CHECKS = tuple(m.__dict__["__instancecheck__"] for m in (type, abc.ABCMeta, type(torch.FloatTensor)))


def is_subclass(cx: Capture, cls: type, bases: tuple[type, ...], *, instance: Value | None = None) -> bool:
    """issubclass(cls, bases), or isinstance for an instance of exactly `cls`, with guards on the answer.

    A plain class answers by the mro.  An abstract class caches True for ever, and False until the next registration.
    """
    return any(_is_subclass(cx, cls, base, instance) for base in bases)


def _is_subclass(cx: Capture, cls: type, base: type, instance: Value | None) -> bool:
    if cls is base and instance is not None:
        return True
    meta = type(base)
    if meta is type:
        guard_mro(cx, cls)
        return base in mro_of(cls)
    name = "__subclasscheck__" if instance is None else "__instancecheck__"
    hook = lookup(cx, meta, name) if meta.__module__ != "torch.nn.parameter" else None
    if isinstance(hook, types.FunctionType) and hook is not abc.ABCMeta.__dict__[name]:
        function = cx.wrap(hook, const_source(meta).then("mro_lookup", name))
        return bool(cx.truth(cx.call(function, [cx.make(base), cx.make(cls) if instance is None else instance], {})))
    if instance is not None and hook is not None and hook not in PLAIN_CHECKS:
        raise Break("unsupported-operation", f"isinstance(..., {base.__name__}), whose metaclass decides in C")
    return is_of_abstract(cx, cls, base)


def is_of_abstract(cx: Capture, cls: type, base: type) -> bool:
    """The answer of `type(base)`, a metaclass from C or `ABCMeta`, for a class."""
    guard_mro(cx, cls)
    if issubclass(type(base), abc.ABCMeta):
        _check_hooks(cx, cls, base)
    answer = bool(cx.evaluate_raw(issubclass, cls, base))
    cx.abstract[id(cls), id(base)] = cls, base, answer
    if not answer and issubclass(type(base), abc.ABCMeta):
        cx.guard("equals", const_source(REGISTRATIONS).attr("token"), abc.get_cache_token())
    return answer


def _check_hooks(cx: Capture, cls: type, base: type) -> None:
    """Break if code of the program would decide the answer of an abstract class, unless the answer is cached already."""
    made = any(getattr(cx.by_id.get(id(c)), "made", None) is not None for c in (cls, base))
    known = CachedSubclassAnswer(cls, base)
    if (made or not known.kept) and any(map(_has_hook, _asked_classes(base))):
        rests_on = () if made else ((const_source(known).attr("kept"), False),)
        raise Break("unsupported-operation", f"a __subclasshook__ that {qualname_of(base)} calls", rests_on=rests_on)


class CachedSubclassAnswer:
    """Whether an abstract class has cached its answer for another class, as an attribute for guards."""

    def __init__(self, cls: type, base: type) -> None:
        self._cls, self._base = weakref.ref(cls), weakref.ref(base)

    @property
    def kept(self) -> bool:
        _, yes, no, version = abc._get_dump(self._base())  # type: ignore[attr-defined]
        same = (*yes, *no) if version == abc.get_cache_token() else yes
        return any(known() is self._cls() for known in same)


def _asked_classes(base: type) -> list[type]:
    """The classes whose `__subclasshook__` an abstract class may call: itself, its subclasses and registered classes."""
    found: dict[int, type] = {}
    left = [base]
    while left:
        cls = left.pop()
        if id(cls) not in found:
            found[id(cls)] = cls
            left += type.__subclasses__(cls)
            if issubclass(type(cls), abc.ABCMeta):
                left += filter(None, (known() for known in abc._get_dump(cls)[0]))  # type: ignore[attr-defined]
    return list(found.values())


def _has_hook(cls: type) -> bool:
    """Whether the program defines the `__subclasshook__` of a class."""
    raw = mro_lookup(cls, "__subclasshook__")
    hook = getattr(raw, "__func__", raw)
    module = str(getattr(hook, "__module__", "")).partition(".")[0]
    return isinstance(hook, types.FunctionType) and module not in (*sys.stdlib_module_names, "torch", "numpy")


def guard_identity(cx: Capture, source: Source, raw: Any) -> None:
    """Guard the identity of a class attribute that is not a function."""
    base = source.base
    if source.kind != "mro_lookup" or base is None or base.kind != "const" or is_mutable(base.arg):
        cx.guard("id_is", source, reference(raw))


# Methods of `threading.local` (or of object) that a class must not override: else an access runs code of the program.
OF_LOCALS: dict[str, Any] = {
    **{name: vars(threading.local)[name] for name in ("__getattribute__", "__setattr__", "__delattr__")},
    "__init__": object.__init__,
    "__getattr__": MISSING,
}


def is_plain_local(cls: type) -> bool:
    return issubclass(cls, threading.local) and all(mro_lookup(cls, name) is how for name, how in OF_LOCALS.items())


def instance_dict(real: Any) -> dict[str, Any] | None:
    """The dict that holds an object's attributes.  A `threading.local` has one dict per thread."""
    get = OF_LOCALS["__getattribute__"] if is_plain_local(type(real)) else object.__getattribute__
    try:
        found = get(real, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def shows_another_dict(cls: type) -> bool:
    """Whether the program defines `__dict__` of the instances, so that a read runs its code."""
    raw = mro_lookup(cls, "__dict__")
    return raw is not MISSING and not isinstance(raw, (types.GetSetDescriptorType, types.MemberDescriptorType))


_CACHED_GET = functools.cached_property.__get__


def bind(cx: Capture, raw: Any, source: Source, receiver: Value | None, owner: Value) -> Value:
    """The result of a lookup that finds the raw class attribute `raw`: non-data descriptors are bound."""
    if isinstance(raw, types.FunctionType):
        function = cx.wrap(raw, source)
        return function if receiver is None else Method(receiver, function)
    getter = mro_lookup(type(raw), "__get__")
    # Also for a program's subclass of property, classmethod or staticmethod.
    if isinstance(getter, types.FunctionType) and getter is not _CACHED_GET:
        function = cx.wrap(getter, const_source(type(raw)).then("mro_lookup", "__get__"))
        return cx.call(function, [cx.wrap(raw, source), receiver or Const(None), owner], {})
    if isinstance(raw, (staticmethod, classmethod, functools.cached_property, property)):
        cx.guard("type_is", source, type(raw))
    if isinstance(raw, staticmethod):
        return cx.wrap(raw.__func__, source.attr("__func__"))
    if isinstance(raw, classmethod):
        inner, at = raw.__func__, source.attr("__func__")
        if sys.version_info < (3, 13) and mro_lookup(type(inner), "__get__") is not MISSING:
            # Until 3.13 a classmethod passes the class to the descriptor that it wraps.
            return bind(cx, inner, at, owner, owner)
        return Method(owner, cx.wrap(inner, at))
    if classmethod_of(raw) is not None:
        return cx.wrap(raw, source)
    if isinstance(raw, (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType,
                        types.ClassMethodDescriptorType)):  # fmt: skip
        guard_identity(cx, source, raw)
        bound_to = owner if isinstance(raw, types.ClassMethodDescriptorType) else receiver
        if bound_to is not None and not _accepts_receiver(raw, bound_to):
            raise Break(
                "unsupported-attribute", f"{raw.__qualname__}, bound to {bound_to.describe()}, which it does not accept"
            )
        if isinstance(raw, types.ClassMethodDescriptorType):
            return Method(owner, Builtin(raw))
        return (
            Builtin(raw)
            if receiver is None or isinstance(raw, types.BuiltinFunctionType)
            else Method(receiver, Builtin(raw))
        )
    if isinstance(raw, functools.cached_property):
        if receiver is None:
            return cx.wrap(raw, source)
        if raw.attrname is None:
            cx.throw(TypeError, "Cannot use cached_property instance without calling __set_name__ on it.")
        return _cached(cx, raw, raw.attrname, source, receiver)
    if isinstance(raw, property) and receiver is None:
        return cx.wrap(raw, source)
    if isinstance(raw, property) and isinstance(raw.fget, types.FunctionType):
        return cx.call_next(cx.wrap(raw.fget, source.attr("fget")), [receiver])  # type: ignore[list-item]
    if isinstance(raw, (types.GetSetDescriptorType, types.MemberDescriptorType, _tuplegetter)) and receiver is None:
        guard_identity(cx, source, raw)
        return Builtin(raw)
    if isinstance(raw, functools.partial) and receiver is not None and sys.version_info >= (3, 14):
        return Method(receiver, cx.wrap(raw, source))
    if getter is not MISSING and not isinstance(raw, (type, types.MethodType, functools.partial)):
        guard_identity(cx, source, raw)
        if numpy_random.is_method(raw):
            return Builtin(raw) if receiver is None else Method(receiver, Builtin(raw))
        if callable(raw) and hasattr(raw, "__wrapped__") and isinstance(raw.__wrapped__, types.FunctionType):
            return cx.wrap(raw, source) if receiver is None else Method(receiver, cx.wrap(raw, source))
        return cx.wrap_descriptor(raw, source, receiver, owner)
    return cx.wrap(raw, source)


def classmethod_of(raw: Any) -> types.ClassMethodDescriptorType | None:
    """The descriptor behind a classmethod from C.  Each access to such a method returns a new object."""
    owner = raw.__self__ if isinstance(raw, types.BuiltinFunctionType) else None
    found = mro_lookup(owner, raw.__name__) if isinstance(owner, type) else None
    return found if isinstance(found, types.ClassMethodDescriptorType) else None


def _accepts_receiver(raw: Any, value: Value) -> bool:
    """Whether a descriptor from C accepts this receiver.  It raises for instances of foreign classes."""
    if isinstance(raw, types.BuiltinFunctionType):
        return True
    cls = value.const() if isinstance(raw, types.ClassMethodDescriptorType) else value.python_type()
    return issubclass(cls, raw.__objclass__)


def _cached(cx: Capture, raw: Any, name: str, source: Source, receiver: Value) -> Value:
    """Evaluate a cached_property.

    Behind `super()` the instance may hold the value already, under another descriptor of the name.
    """
    shown = mro_lookup(receiver.python_type(), name)
    if shown is not raw and shown is not MISSING and is_data_descriptor(shown):
        raise Break(
            "mutation-unsupported",
            f"{receiver.describe()}.{name}, a cached property hidden by a {type(shown).__name__}",
        )
    cls = receiver.python_type()
    if type.__getattribute__(cls, "__dictoffset__") == 0:
        seen: list[Value] = [Const(f"{class_name(cls)!r} object has no attribute '__dict__'")]
        found = cx.call(cx.make(AttributeError), seen, {"name": Const("__dict__"), "obj": receiver})
        cx.raised(found)
        text = f"No '__dict__' attribute on {cls.__name__!r} instance to cache {name!r} property."
        cx.throw_from(TypeError, text, None, found)
    held = receiver.instance_dict_value(cx) if hasattr(receiver, "instance_dict_value") else None
    known: Value | None = None if held is None else held.lookup(cx, Const(name))
    if known is not None:
        return known
    value = cx.call(cx.wrap(raw.func, source.attr("func")), [receiver], {})
    cx.effects.set_attr(receiver, name, value)
    return value


def field_index(raw: Any) -> int:
    """The index of a field in a namedtuple or structseq."""
    if isinstance(raw, _tuplegetter):
        return int(raw.__reduce__()[1][0])
    fields = [v for v in vars(raw.__objclass__).values() if isinstance(v, types.MemberDescriptorType)]
    return next(i for i, v in enumerate(fields) if v is raw)


def class_attribute(cx: Capture, value: Value, name: str) -> Value:
    """An attribute of a value whose instances have no dict: a method, a field, or a constant of its class."""
    cls = value.python_type()
    if name == "__class__":
        return cx.make(cls)
    raw = mro_lookup(cls, name)
    if raw is MISSING:
        cx.throw(AttributeError, f"{class_name(cls)!r} object has no attribute {name!r}")
    if isinstance(value, Tuple) and isinstance(raw, (_tuplegetter, types.MemberDescriptorType)):  # a field
        return value.at(cx, field_index(lookup(cx, cls, name)))
    source = const_source(cls).then("mro_lookup", name)
    if isinstance(raw, property) and isinstance(raw.fget, types.FunctionType):
        cx.guard("type_is", source, type(raw))
        return cx.call_next(cx.wrap(raw.fget, source.attr("fget")), [value])
    if is_data_descriptor(raw):
        raise Break("unsupported-attribute", f"{value.describe()}.{name}")
    return bind(cx, raw, source, value, cx.make(cls))
