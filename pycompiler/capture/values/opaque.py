"""Opaque objects: existing objects guarded by identity, passed on and called unchanged; and weak references.

In: a real object.  Out: a value that knows its class and identity, and breaks the graph for anything else.
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
from pycompiler.capture.values.base import Capture, Cell, LazyObject, Value
from pycompiler.capture.values.constant import Const, UnknownObject, reference
from pycompiler.ir.source import qualname_of

# Attributes stored by C code that never change, by class.
_OF_METHODS = ("__func__", "__isabstractmethod__")


READ: dict[type, tuple[str, ...]] = {
    types.UnionType: ("__args__", "__parameters__"),
    torch.Generator: ("device",),
    classmethod: _OF_METHODS,
    staticmethod: _OF_METHODS,
}


class Opaque(Value):
    """An existing object with only identity and type known; other uses break the graph."""

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
        """A method of its class.  An attribute that the object itself may define breaks the graph."""
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
    """An existing instance of a `str` subclass as the plain str that methods of `str` see (`torch.__version__`).

    Its identity is guarded, so arguments are excluded.
    """
    if not isinstance(value, Opaque) or value.source is None or not isinstance(value.real, str):
        return value
    if value.source.root.kind == "local":
        return value
    cx.guard("id_is", value.source, reference(value.real))
    return Const(str.__str__(value.real))


class ProfilerRange(Value):
    """A profiler range that the frame opened: a handle of C code.  `left`: whether it is closed again."""

    def __init__(self, name: tuple[Any, ...]) -> None:
        self.name = name
        self.left = False

    def describe(self) -> str:
        return f"the profiler range {self.name[0]!r}"

    def python_type(self) -> type:
        return torch.ScriptObject

    def truth(self, cx: Capture) -> bool:
        return True


class ContextVarToken(Value):
    """The result of ContextVar.set, with which the variable is reset."""

    def __init__(self, variable: Value, value: Value, made_at: int) -> None:
        self.variable, self.value, self.made_at = variable, value, made_at

    def python_type(self) -> type:
        return contextvars.Token


class WeakReference(Opaque):
    """A weakref.ref.

    The frame's writes and variables may drop the last eager reference to the referent, while generated code still holds
    it. The graph breaks unless the referent is known to live.
    """

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        referent = self.real()
        root = cx.frames[0]
        slots = [*root.locals.values(), *root.free.values()]
        variables = [*slots, *(v.contents for v in slots if isinstance(v, Cell) and v.contents is not None)]
        if referent is not None:
            variables = [cx.realize(v) if isinstance(v, LazyObject) and v.real is referent else v for v in variables]
        known = cx.by_id.get(id(referent))
        if self.source is None or args or kwargs or (known is not None and known.source is None):
            raise Break("builtin-call", self.describe())
        dropped = referent is not None and cx.effects.may_end(tensor=issubclass(type(referent), torch.Tensor))
        if dropped and (
            known is None or not any(v is known for v in variables) and not _is_path_unchanged(cx, known, variables)
        ):
            raise Break("builtin-call", "a weak reference to an object that the frame may have dropped")
        return cx.wrap(referent, self.source.then("referent"))


BOUND_TO = "__sizeof__"  # a proxy's method of this name is bound to the referent, since classes seldom define it


class WeakProxy(UnknownObject):
    """A weakref.proxy: attribute access goes to the referent.  Other uses break the graph."""

    def __init__(self, real: Any) -> None:
        super().__init__(Break("unsupported-operation", "a weak proxy"))
        self.real = real

    def identity(self) -> object:
        return ("object", id(self.real))

    def _referent(self, cx: Capture) -> Value:
        try:
            bound = getattr(self.real, BOUND_TO, None)
        except ReferenceError:  # the referent is gone
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
    """Guard that a write to an existing object's attribute replaces a number or str (`module.training`); False if it
    does not."""
    owner, name = write.target, write.name
    if write.kind != "attribute" or not owner.exists or owner.source is None:
        return False
    memory = instance_dict(owner.real)
    if type(memory) is not dict or type(memory.get(name, owner)) not in NUMBERS:
        return False
    cx.guard("type_is", owner.source.then("instance_dict").dict_item(name), type(memory[name]))
    return True


HANDLE = "the handle of a hook"
"""The name of the call effect that only counts hook handles."""


def _drops_nothing(cx: Capture, write: Any) -> bool:
    """Whether a write drops no existing object.

    True for random draws, and for hooks of the frame that enter or leave a module's hook table.
    """
    if write.kind in ("call", "draw"):
        return bool(write.kind == "draw" or write.name == HANDLE)
    table = write.target
    if write.kind != "contents" or not any(table is entries for _, entries, _ in cx.registered):
        return False
    kept = {k.value.const() for k, v in table.entries.items() if k.value.is_const() and v.source is not None}
    return all(key in kept for key in table.real)


def _is_path_unchanged(cx: Capture, known: Value, variables: list[Value]) -> bool:
    """Whether the path to an object is the same as when the frame began.

    Writes that dropped only numbers and tensors leave it unchanged.
    """
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
    return all(_was_number(cx, w) or _drops_nothing(cx, w) for w in changed) and (
        root.kind != "local" or any(v.source == root for v in variables)
    )


class Compiled(Opaque):
    """A compiled callable that the program calls: its original function is captured like any other."""

    def getattr(self, cx: Capture, name: str) -> Value:
        """Its dict contains the attributes that `functools.wraps` copied."""
        assert self.source is not None
        space = self.real.__dict__
        if name != "__dict__" and name not in space:
            return super().getattr(cx, name)
        cx.effects.namespaces.reached(space, self)
        return cx.wrap(space if name == "__dict__" else space[name], self.source.attr(name))

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        assert self.source is not None
        return cx.call(cx.wrap(self.real.fn, self.source.attr("fn")), args, kwargs)
