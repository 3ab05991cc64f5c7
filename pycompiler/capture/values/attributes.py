"""Attribute lookup on classes: the mro, descriptors, binding.

In: a raw class attribute and its source.  Out: the value that looking it up gives.
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
from pycompiler.capture.values.functions import Builtin, Method
from pycompiler.capture.values.sequences import Tuple
from pycompiler.ir import numpy_random
from pycompiler.ir.mortal import HEAP_TYPE, IMMUTABLE
from pycompiler.ir.source import Source, base_of, flags_of, module_of, mro_of, namespace_of, qualname_of
from pycompiler.ir.source import const as const_source

MISSING = object()
SETTERS = ("__set__", "__delete__")


WRITTEN: dict[tuple[int, int, str], StandIn] = {}
"""What captures in progress have written into classes: (thread, id of the class, name)."""


def hide_written() -> dict[tuple[int, int, str], StandIn]:
    """What another capture in this thread has written, which is not seen until `show_written`."""
    thread = threading.get_ident()
    return {key: WRITTEN.pop(key) for key in list(WRITTEN) if key[0] == thread}


def show_written(hidden: dict[tuple[int, int, str], StandIn]) -> None:
    hide_written()
    WRITTEN.update(hidden)


def is_written(cls: type, name: str | None = None) -> bool:
    """Whether the capture in this thread has written an attribute of one of its classes."""
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
    """Whether its type has a method that makes it come before the instance."""
    return any(mro_lookup(type(raw), name) is not MISSING for name in SETTERS)


def is_held(cls: type, name: str) -> bool:
    """Whether an attribute that a program writes is in the instance dict behind a descriptor in Python, which knows no place
    of its own: only by the dict itself it comes there."""
    raw = mro_lookup(cls, name)
    return isinstance(raw, property) or isinstance(mro_lookup(type(raw), "__set__"), types.FunctionType)


def is_mutable(cls: type) -> bool:
    """Whether its attributes can be set: not those of classes in C, most of which are heap types from 3.12 on."""
    return flags_of(cls) & (HEAP_TYPE | IMMUTABLE) == HEAP_TYPE


def guard_written(cx: Capture, cls: type, name: str) -> None:
    """That a look-up meets the same class as now, where the frame has written the attribute into one of them: those before have
    none, and this one has."""
    thread = threading.get_ident()
    if not any(t == thread and n == name for t, _, n in list(WRITTEN)):
        return
    bases = mro_of(cls)
    made = [id(base) for base in bases if getattr(cx.by_id.get(id(base)), "made", None) is not None]  # all is known
    for base in bases:
        if id(base) not in made:
            guard_mro(cx, base)
    if not is_written(cls, name):
        return
    for base in bases:
        written, held = (thread, id(base), name) in WRITTEN, name in namespace_of(base)
        if is_mutable(base) and id(base) not in made and not written:
            own = cx.kept.setdefault(("own", id(base), name), Own(base, name))
            cx.guard("equals", const_source(own).attr("held"), held)
        if written or held:
            return


def lookup(cx: Capture, cls: type, name: str) -> Any:
    """mro_lookup for a decision: that it gives this very object, or nothing, is an assumption."""
    raw = mro_lookup(cls, name)
    guard_written(cx, cls, name)
    if is_mutable(cls) and type(raw) is not StandIn:
        if raw is MISSING:
            cx.guard("class_absent", const_source(cls), name)
        else:
            cx.guard("id_is", const_source(cls).then("mro_lookup", name), reference(raw))
    return raw


def lookup_descriptor(cx: Capture, cls: type, name: str) -> Any:
    """mro_lookup to decide whether the class comes before the instance: that it is a data descriptor, or none."""
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
    """That the type of a data descriptor keeps what makes it one."""
    kind = type(raw)
    if is_mutable(kind):
        name = next(name for name in SETTERS if mro_lookup(kind, name) is not MISSING)
        cx.guard("type_is", const_source(kind).then("mro_lookup", name), type(mro_lookup(kind, name)))


def guard_mro(cx: Capture, cls: type) -> None:
    """That the bases of a class stay what they are: assigning to `__bases__` makes a new `__mro__`."""
    if is_mutable(cls) and not str(module_of(cls)).startswith("torch."):
        cx.guard("id_is", of_type(cls, "__mro__"), mro_of(cls))


def of_type(cls: type, name: str) -> Source:
    """Where `__mro__` or `__dict__` of a class is, past a metaclass that has another attribute by this name."""
    shadowed = mro_lookup(type(cls), name) is not type.__dict__[name]
    return const_source(Own(cls)).attr(name.strip("_")) if shadowed else const_source(cls).attr(name)


class Own:
    """What a class itself has, as attributes that guards read."""

    def __init__(self, cls: type, name: str = "") -> None:
        self._cls, self.name = weakref.ref(cls), name

    cls = property(lambda self: self._cls())
    mro = property(lambda self: mro_of(self.cls))
    dict = property(lambda self: namespace_of(self.cls))
    names = property(lambda self: tuple(namespace_of(self.cls)))
    value = property(lambda self: namespace_of(self.cls)[self.name])
    held = property(lambda self: self.name in namespace_of(self.cls))


def leave_bases(cls: type) -> None:
    """Have a class that no program has made be none of its bases' `__subclasses__`; those of the language's still have it."""
    given = [base for base in mro_of(cls)[1:] if not is_mutable(base) or module_of(base) in ("abc", "typing")]
    if any(base is base_of(cls) for base in given):
        return
    for base in reversed(given):
        with contextlib.suppress(TypeError):  # the layout differs, as of classes with `__slots__`
            type.__dict__["__bases__"].__set__(cls, (types.new_class("Unlisted", (base,)),))
            return


class Registrations:
    """`token` changes when a class is registered with any abstract base class."""

    token = property(lambda self: abc.get_cache_token())


REGISTRATIONS = Registrations()
# Nothing but a tensor is an instance of torch.FloatTensor and its like, which `builtins/python.py` knows.
PLAIN_CHECKS = tuple(m.__dict__["__instancecheck__"] for m in (type, abc.ABCMeta, type(torch.FloatTensor)))


def is_subclass(cx: Capture, cls: type, bases: tuple[type, ...], *, instance: Value | None = None) -> bool:
    """issubclass(cls, bases), or isinstance for an instance of exactly `cls`, with what the answer depends on.

    A plain class answers by the mro.  An abstract one keeps a yes for ever, and a no until something is registered.
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
        raise Break("unsupported-operation", f"isinstance(..., {base.__name__}), whose class decides in C")
    return is_of_abstract(cx, cls, base)


def is_of_abstract(cx: Capture, cls: type, base: type) -> bool:
    """What `type(base)`, a metaclass in C or `ABCMeta`, says of a class."""
    guard_mro(cx, cls)
    if issubclass(type(base), abc.ABCMeta):
        _check_hooks(cx, cls, base)
    answer = bool(cx.evaluate_raw(issubclass, cls, base))
    cx.abstract[id(cls), id(base)] = cls, base, answer
    if not answer and issubclass(type(base), abc.ABCMeta):
        cx.guard("equals", const_source(REGISTRATIONS).attr("token"), abc.get_cache_token())
    return answer


def _check_hooks(cx: Capture, cls: type, base: type) -> None:
    """That no code of the program's says whether a class is one of an abstract class, or that the answer is kept already."""
    made = any(getattr(cx.by_id.get(id(c)), "made", None) is not None for c in (cls, base))
    known = Answer(cls, base)
    if (made or not known.kept) and any(map(_has_hook, _asked_classes(base))):
        rests_on = () if made else ((const_source(known).attr("kept"), False),)
        raise Break("unsupported-operation", f"a __subclasshook__ that {qualname_of(base)} asks", rests_on=rests_on)


class Answer:
    """Whether an abstract class keeps what it found of another one, as an attribute that guards read."""

    def __init__(self, cls: type, base: type) -> None:
        self._cls, self._base = weakref.ref(cls), weakref.ref(base)

    @property
    def kept(self) -> bool:
        _, yes, no, version = abc._get_dump(self._base())  # type: ignore[attr-defined]
        same = (*yes, *no) if version == abc.get_cache_token() else yes
        return any(known() is self._cls() for known in same)


def _asked_classes(base: type) -> list[type]:
    """The classes that an abstract class asks whether they have another one for a subclass: itself, those that derive from it,
    and those that were registered with it."""
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
    """Whether the program has written who counts as a subclass of a class."""
    raw = mro_lookup(cls, "__subclasshook__")
    hook = getattr(raw, "__func__", raw)
    module = str(getattr(hook, "__module__", "")).partition(".")[0]
    return isinstance(hook, types.FunctionType) and module not in (*sys.stdlib_module_names, "torch", "numpy")


def hold(cx: Capture, source: Source, raw: Any) -> None:
    """A class attribute that is no function stays the object that it is."""
    base = source.base
    if source.kind != "mro_lookup" or base is None or base.kind != "const" or is_mutable(base.arg):
        cx.guard("id_is", source, reference(raw))


# What a class must have of `threading.local`, or of object, for an access to be no call of the program's.
OF_LOCALS: dict[str, Any] = {
    **{name: vars(threading.local)[name] for name in ("__getattribute__", "__setattr__", "__delattr__")},
    "__init__": object.__init__,
    "__getattr__": MISSING,
}


def is_plain_local(cls: type) -> bool:
    return issubclass(cls, threading.local) and all(mro_lookup(cls, name) is how for name, how in OF_LOCALS.items())


def instance_dict(real: Any) -> dict[str, Any] | None:
    """The dict that an object has its attributes in: a `threading.local` has one for each thread."""
    get = OF_LOCALS["__getattribute__"] if is_plain_local(type(real)) else object.__getattribute__
    try:
        found = get(real, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def shows_another_dict(cls: type) -> bool:
    """Whether `__dict__` of instances is none of CPython's: who asks for it runs code of the program's."""
    raw = mro_lookup(cls, "__dict__")
    return raw is not MISSING and not isinstance(raw, (types.GetSetDescriptorType, types.MemberDescriptorType))


_CACHED_GET = functools.cached_property.__get__


def bind(cx: Capture, raw: Any, source: Source, receiver: Value | None, owner: Value) -> Value:
    """What looking up the raw class attribute `raw` gives: non-data descriptors are bound."""
    if isinstance(raw, types.FunctionType):
        function = cx.wrap(raw, source)
        return function if receiver is None else Method(receiver, function)
    getter = mro_lookup(type(raw), "__get__")
    # also of a property, classmethod or staticmethod of the program's own class
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
            return bind(cx, inner, at, owner, owner)  # a property of the class, until 3.13
        return Method(owner, cx.wrap(inner, at))
    if classmethod_of(raw) is not None:
        return cx.wrap(raw, source)
    if isinstance(raw, (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType,
                        types.ClassMethodDescriptorType)):  # fmt: skip
        hold(cx, source, raw)
        bound_to = owner if isinstance(raw, types.ClassMethodDescriptorType) else receiver
        if bound_to is not None and not _applies(raw, bound_to):
            raise Break("unsupported-attribute", f"{raw.__qualname__}, bound to {bound_to.describe()}")
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
        hold(cx, source, raw)
        return Builtin(raw)
    if isinstance(raw, functools.partial) and receiver is not None and sys.version_info >= (3, 14):
        return Method(receiver, cx.wrap(raw, source))
    if getter is not MISSING and not isinstance(raw, (type, types.MethodType, functools.partial)):
        hold(cx, source, raw)
        if numpy_random.is_method(raw):
            return Builtin(raw) if receiver is None else Method(receiver, Builtin(raw))
        if callable(raw) and hasattr(raw, "__wrapped__") and isinstance(raw.__wrapped__, types.FunctionType):
            return cx.wrap(raw, source) if receiver is None else Method(receiver, cx.wrap(raw, source))
        return cx.wrap_descriptor(raw, source, receiver, owner)
    return cx.wrap(raw, source)


def classmethod_of(raw: Any) -> types.ClassMethodDescriptorType | None:
    """What a method in C that is bound to a class was made of; each look at such a one gives another object."""
    owner = raw.__self__ if isinstance(raw, types.BuiltinFunctionType) else None
    found = mro_lookup(owner, raw.__name__) if isinstance(owner, type) else None
    return found if isinstance(found, types.ClassMethodDescriptorType) else None


def _applies(raw: Any, value: Value) -> bool:
    """Whether a descriptor written in C binds to this: it raises for instances of other classes than its own."""
    if isinstance(raw, types.BuiltinFunctionType):
        return True
    cls = value.const() if isinstance(raw, types.ClassMethodDescriptorType) else value.python_type()
    return issubclass(cls, raw.__objclass__)


def _cached(cx: Capture, raw: Any, name: str, source: Source, receiver: Value) -> Value:
    """A cached_property: reached through `super()`, the instance may hold it already, behind another descriptor."""
    shown = mro_lookup(receiver.python_type(), name)
    if shown is not raw and shown is not MISSING and is_data_descriptor(shown):
        raise Break(
            "mutation-unsupported", f"{receiver.describe()}.{name}, a cached property behind a {type(shown).__name__}"
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
    """The place of a field of a namedtuple or structseq."""
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
