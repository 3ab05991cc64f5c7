"""Existing objects that are not looked into: guarded by what they are, passed on, called as they stand; and weak references.

In: a real object, or how a call finds one.  Out: a value that knows its class and identity, and breaks where more is asked.
"""

from __future__ import annotations

import contextvars
import types
import weakref
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.attributes import (
    MISSING,
    instance_dict,
    lookup,
    mro_lookup,
)
from pycompiler.capture.values.base import Capture, Cell, Lazy, Value
from pycompiler.capture.values.constant import Const, Withheld, reference
from pycompiler.ir.source import qualname_of

# Attributes that C code keeps and nobody can change, by class.
_OF_METHODS = ("__func__", "__isabstractmethod__")


READ: dict[type, tuple[str, ...]] = {
    types.UnionType: ("__args__", "__parameters__"),
    torch.Generator: ("device",),
    classmethod: _OF_METHODS,
    staticmethod: _OF_METHODS,
}


class Opaque(Value):
    """An existing object of which only identity and type are known; using it breaks the graph."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def describe(self) -> str:
        return f"{qualname_of(type(self.real))} object"

    __repr__ = describe

    def python_type(self) -> type:
        return type(self.real)

    def identity(self) -> object:
        return ("object", id(self.real))

    def getattr(self, cx: Capture, name: str) -> Value:
        """A method of its class.  What the object itself may have, only the object can say."""
        cls: Any = type(self.real)
        if name in READ.get(cls, ()) and self.source is not None:
            return cx.wrap(getattr(self.real, name), self.source.attr(name))
        own = getattr(self.real, "__dict__", {}) if cls.__dictoffset__ and cls not in weakref.ProxyTypes else {}
        if cls in weakref.ProxyTypes or name in own or mro_lookup(cls, name) is MISSING:
            raise Break("unsupported-attribute", f"{self.describe()}.{name}")
        if cls.__dictoffset__ and self.source is not None:
            cx.guard("dict_absent", self.source.attr("__dict__"), name)
        return super().getattr(cx, name)

    def truth(self, cx: Capture) -> bool:
        if type(self.real) in weakref.ProxyTypes or any(
            lookup(cx, type(self.real), name) is not MISSING for name in ("__bool__", "__len__")
        ):
            return super().truth(cx)
        return True


def as_text(cx: Capture, value: Value) -> Value:
    """An existing instance of a subclass of `str` as the text that methods of `str` itself see (`torch.__version__`).  It is
    guarded to be this one, so one that was passed as an argument is none."""
    if not isinstance(value, Opaque) or value.source is None or not isinstance(value.real, str):
        return value
    if value.source.root.kind == "local":
        return value
    cx.guard("id_is", value.source, reference(value.real))
    return Const(str.__str__(value.real))


class Range(Value):
    """A range of the profiler's that the frame opened: a handle that C code knows.  `left`: it is closed again."""

    def __init__(self, name: tuple[Any, ...]) -> None:
        self.name = name
        self.left = False

    def describe(self) -> str:
        return f"the range {self.name[0]!r} of the profiler"

    def python_type(self) -> type:
        return torch.ScriptObject

    def truth(self, cx: Capture) -> bool:
        return True


class Token(Value):
    """What ContextVar.set gives: with it the variable is set back."""

    def __init__(self, variable: Value, value: Value, made_at: int) -> None:
        self.variable, self.value, self.made_at = variable, value, made_at

    def python_type(self) -> type:
        return contextvars.Token


class WeakReference(Opaque):
    """A weakref.ref.  Writes of the frame, and its variables, may let go of what only they led to, which generated code holds on:
    the graph breaks where nothing says that it lives."""

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        referent = self.real()
        root = cx.frames[0]
        slots = [*root.locals.values(), *root.free.values()]
        variables = [*slots, *(v.contents for v in slots if isinstance(v, Cell) and v.contents is not None)]
        if referent is not None:
            variables = [cx.realize(v) if isinstance(v, Lazy) and v.real is referent else v for v in variables]
        known = cx.by_id.get(id(referent))
        if self.source is None or args or kwargs or (known is not None and known.source is None):
            raise Break("builtin-call", self.describe())
        dropped = referent is not None and cx.effects.may_end(tensor=issubclass(type(referent), torch.Tensor))
        if dropped and (known is None or not any(v is known for v in variables) and not _led_to(cx, known, variables)):
            raise Break("builtin-call", "a weak reference to an object of which the frame may have let go")
        return cx.wrap(referent, self.source.then("referent"))


BOUND_TO = "__sizeof__"  # what classes seldom define, so that of a proxy it is a method of what that stands for


class WeakProxy(Withheld):
    """A weakref.proxy: attributes are those of what it stands for, and its class is another one; more is not known of it."""

    def __init__(self, real: Any) -> None:
        super().__init__(Break("unsupported-operation", "a weak proxy"))
        self.real = real

    def identity(self) -> object:
        return ("object", id(self.real))

    def _referent(self, cx: Capture) -> Value:
        try:
            bound = getattr(self.real, BOUND_TO, None)
        except ReferenceError:  # it stands for nothing
            raise self.broke from None
        referent = getattr(bound, "__self__", None)
        cls = type(referent)
        plain = all(mro_lookup(cls, n) is mro_lookup(object, n) for n in ("__getattribute__", BOUND_TO))
        if self.source is None or not isinstance(bound, types.BuiltinMethodType) or not plain:
            raise self.broke
        known = cx.by_id.get(id(referent))
        if cx.effects.may_end(tensor=issubclass(cls, torch.Tensor)) or (known is not None and known.source is None):
            raise self.broke
        return cx.wrap(referent, self.source.attr(BOUND_TO).attr("__self__"))

    def getattr(self, cx: Capture, name: str) -> Value:
        return cx.realize(self._referent(cx)).getattr(cx, name)

    def setattr(self, cx: Capture, name: str, value: Value) -> None:
        cx.realize(self._referent(cx)).setattr(cx, name, value)

    def truth(self, cx: Capture) -> bool:
        return cx.truth(self._referent(cx))


NUMBERS = (bool, int, float, str, type(None))


def _was_number(cx: Capture, write: Any) -> bool:
    """Whether a write of an existing object's attribute has let go of no object (`module.training`): guarded."""
    owner, name = write.target, write.name
    if write.kind != "attribute" or not owner.exists or owner.source is None:
        return False
    memory = instance_dict(owner.real)
    if type(memory) is not dict or type(memory.get(name, owner)) not in NUMBERS:
        return False
    cx.guard("type_is", owner.source.then("instance_dict").dict_item(name), type(memory[name]))
    return True


HANDLE = "the handle of a hook"
"""The name of a call that only counts one."""


def _keeps_all(cx: Capture, write: Any) -> bool:
    """Whether a write draws a number, or puts hooks of the frame's own into a module's table, or takes them out, and lets
    go of no other."""
    if write.kind in ("call", "draw"):
        return bool(write.kind == "draw" or write.name == HANDLE)
    table = write.target
    if write.kind != "contents" or not any(table is entries for _, entries, _ in cx.registered):
        return False
    kept = {k.value.const() for k, v in table.entries.items() if k.value.is_const() and v.source is not None}
    return all(key in kept for key in table.real)


def _led_to(cx: Capture, known: Value, variables: list[Value]) -> bool:
    """Whether the way to an object is as it was when the frame began; writes that let go of numbers and tensors change none."""
    node = root = known.source
    gradient = False
    while node is not None:
        gradient |= node.kind == "grad"
        if node.kind in ("referent", "computed") or (node.kind == "attr" and node.arg == BOUND_TO):
            return False
        node, root = node.base, node
    assert root is not None
    tensor = issubclass(known.python_type(), torch.Tensor)
    changed = cx.effects.ending(tensor=tensor, gradient=gradient)
    return all(_was_number(cx, w) or _keeps_all(cx, w) for w in changed) and (
        root.kind != "local" or any(v.source == root for v in variables)
    )


class Compiled(Opaque):
    """A compiled callable inside of another one: its function is captured as any other."""

    def getattr(self, cx: Capture, name: str) -> Value:
        """What `functools.wraps` gave it is in its dict."""
        assert self.source is not None
        space = self.real.__dict__
        if name != "__dict__" and name not in space:
            return super().getattr(cx, name)
        cx.effects.namespaces.reached(space, self)
        return cx.wrap(space if name == "__dict__" else space[name], self.source.attr(name))

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        assert self.source is not None
        return cx.call(cx.wrap(self.real.fn, self.source.attr("fn")), args, kwargs)
