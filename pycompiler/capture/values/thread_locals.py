"""Instances of `threading.local`: each thread has its own attribute dict, which the class looks up at each access.

In: an existing instance whose class adds no code to an attribute access.  Out: attributes as of any object, in that
dict.
"""

from __future__ import annotations

import threading
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.attributes import (
    MISSING,
    OF_LOCALS,
    bind,
    instance_dict,
    is_data_descriptor,
    lookup,
    lookup_descriptor,
    mro_lookup,
)
from pycompiler.capture.values.base import Capture, Value, class_name
from pycompiler.capture.values.containers.instance_dicts import DELETED
from pycompiler.capture.values.objects import Object
from pycompiler.ir.source import Source


class ThreadLocal(Object):
    """An instance of `threading.local`."""

    stores = threading.local

    def memory(self) -> dict[str, Any]:
        return instance_dict(self.real) or {}

    def namespace_source(self) -> Source:
        assert self.source is not None
        return self.source.attr("__dict__")

    def getattr(self, cx: Capture, name: str) -> Value:
        if name == "__class__":
            return cx.make(self.cls)
        if name == "__dict__" and mro_lookup(self.cls, name) is mro_lookup(threading.local, name):
            return self.instance_dict_value(cx)
        found = self._attribute(cx, name)
        cx.effects.looks.at("attribute", self, name, found, self.source)
        if found is None:
            cx.throw(AttributeError, f"{class_name(self.cls)!r} object has no attribute {name!r}")
        return found

    def _attribute(self, cx: Capture, name: str) -> Value | None:
        raw = self._of_class(cx, name)
        if name in self.overlay:
            if self.overlay[name] is not DELETED:
                return self.overlay[name]
        elif self._is_there(cx, name):
            return cx.wrap(self.memory()[name], self.namespace_source().dict_item(name))
        return None if raw is MISSING else bind(cx, raw, self.class_source(name), self, cx.class_of(self))

    def _of_class(self, cx: Capture, name: str) -> Any:
        """The class attribute of a name.  A break if it precedes the instance."""
        for method in OF_LOCALS:
            lookup(cx, self.cls, method)
        raw = lookup_descriptor(cx, self.cls, name)
        if name == "__dict__" or (raw is not MISSING and is_data_descriptor(raw)):
            raise Break("unsupported-attribute", f"{name} of a threading.local")
        return raw

    def _is_there(self, cx: Capture, name: str) -> bool:
        """Guard and return whether the thread has the attribute when the frame begins."""
        found = name in self.memory()
        cx.guard("dict_contains" if found else "dict_absent", self.namespace_source(), name)
        return found

    def setattr(self, cx: Capture, name: str, value: Value) -> None:
        self._of_class(cx, name)
        cx.effects.set_attr(self, name, value)

    def delattr(self, cx: Capture, name: str) -> None:
        self._of_class(cx, name)
        if not (self.overlay[name] is not DELETED if name in self.overlay else self._is_there(cx, name)):
            cx.throw(AttributeError, f"{class_name(self.cls)!r} object has no attribute {name!r}")
        cx.effects.set_attr(self, name, DELETED)

    def plain_getattr(self, cx: Capture, name: str) -> Value | None:
        raise Break("unsupported-attribute", f"{name} of a threading.local, through methods of object")

    def plain_setattr(self, cx: Capture, name: str, value: Value) -> None:
        raise Break("mutation-unsupported", f"{name} of a threading.local, through methods of object")

    def plain_delattr(self, cx: Capture, name: str) -> None:
        raise Break("mutation-unsupported", f"{name} of a threading.local, through methods of object")
