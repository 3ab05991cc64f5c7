"""Conversion of values to str: `str`, `repr`, `format`, f-strings, `str.format` and `%`.

In: a value.  Out: its str as a value; `to_open_str` returns an open str where it can.

Order: constants are evaluated.  Methods of the program's classes are called.  Containers combine the conversions of
their elements.  An address gives a str known only at run time.  All others break the graph.
"""

from __future__ import annotations

import collections
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.semantics.polyfills import is_inlined
from pycompiler.capture.semantics.special_methods import call_special
from pycompiler.capture.values import deferred, exceptions, native_objects
from pycompiler.capture.values.attributes import MISSING, lookup, mro_lookup
from pycompiler.capture.values.base import Capture, Value, class_name
from pycompiler.capture.values.constant import AddressStr, Const, UnknownStr, reference
from pycompiler.capture.values.containers.dicts import Dict, DictView, Proxy
from pycompiler.capture.values.containers.sequences import Deque, List, Sequence, Tuple
from pycompiler.capture.values.containers.sets import Set
from pycompiler.capture.values.deferred import Deferred
from pycompiler.capture.values.enum_members import Member
from pycompiler.capture.values.functions import Function, Method
from pycompiler.capture.values.native_objects import NativeObject
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.symbolic_numbers import ComputedStr, is_open
from pycompiler.capture.values.symbolic_numbers import text as open_text
from pycompiler.ir.computed_sources import joined


class Formatted:
    """A value among the arguments of str.format or %.  The capture computes each conversion that the formatting requests."""

    def __init__(self, cx: Capture, value: Value) -> None:
        self._pyc = (cx, value)

    def __format__(self, spec: str) -> str:
        cx, value = self._pyc
        return format_value(cx, value, 0, Const(spec)).const()  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return text(*self._pyc, str).const()  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return text(*self._pyc, repr).const()  # type: ignore[no-any-return]

    def __int__(self) -> int:
        raise Break("unsupported-operation", f"{self._pyc[1].describe()} formatted as a number")

    __float__ = __index__ = __int__

    def __getattr__(self, name: str) -> Any:
        cx, value = self._pyc
        return formatted(cx, cx.realize(value.getattr(cx, name)))

    def __getitem__(self, key: Any) -> Any:
        cx, value = self._pyc
        return formatted(cx, cx.realize(value.getitem(cx, cx.make(key))))


def _part(cx: Capture, value: Value) -> Value:
    """A value whose text is needed."""
    return value.settled(cx) if isinstance(value, deferred.ThreadIdent) else cx.realize(value, "as a part of a str")


def formatted(cx: Capture, value: Value) -> Any:
    """The argument that represents `value` in a call of a formatting function."""
    value = _part(cx, value)
    return value.const() if value.is_const() and not _says_texts(value) else Formatted(cx, value)


def _says_texts(value: Value) -> bool:
    return isinstance(value, Member) and value.says_texts()


def printf(cx: Capture, template: str, argument: Value) -> Value:
    """template % argument."""
    if deferred.holds(argument):
        return deferred.compute(cx, operator.mod, [Const(template), argument])
    if isinstance(argument, Object) and isinstance(argument.storage, Tuple):
        argument = argument.storage
    if isinstance(argument, Tuple):
        return cx.evaluate(operator.mod, template, tuple(formatted(cx, v) for v in argument.iterate(cx)))
    if isinstance(argument, Deque):  # C does not accept it as a mapping, though it has `__getitem__`
        raise Break("unsupported-operation", f"a str % {argument.describe()}")
    cls = argument.python_type()
    told = formatted(cx, argument)
    if isinstance(told, Formatted) and (issubclass(cls, str) or mro_lookup(cls, "__getitem__") is MISSING):
        told = (told,)
    return cx.evaluate(operator.mod, template, told)


def convert(cx: Capture, value: Value, which: int) -> Value:
    """The conversion of an f-string field: 0 none, 1 str, 2 repr, 3 ascii."""
    return value if which == 0 else text(cx, value, {1: str, 2: repr, 3: ascii}[which])  # type: ignore[arg-type]


def format_value(cx: Capture, value: Value, which: int, spec: Value) -> Value:
    if not issubclass(spec.python_type(), str):  # raises before any method of the value is called
        return cx.evaluate(format, "", spec)
    value = _part(cx, convert(cx, value, which))
    if isinstance(value, Deferred):
        return deferred.compute(cx, format, [value, spec])
    if isinstance(value, Member) and value.says_texts():
        if (method := value.method(cx, "__format__")) is not None:
            return call_special(cx, format, value, "__format__", method, spec)
        if not spec.const():  # by the C classes, as of this call
            return text(cx, value, str)
    if value.is_const():
        return cx.evaluate(format, value, spec)
    if isinstance(value, Object):
        method = value.special(cx, "__format__")
        if isinstance(method, Method) and isinstance(method.function, Function):
            return call_special(cx, format, value, "__format__", method, spec)
    own = isinstance(value, UnknownStr) or _is_objects(cx, value.python_type(), "__format__")
    if spec.const() and own and not isinstance(value, UnknownStr):
        cx.throw(TypeError, f"unsupported format string passed to {class_name(value.python_type())}.__format__")
    told = text(cx, value, str)
    if isinstance(told, UnknownStr) and spec.const() == "" and own:
        return told
    return cx.evaluate(format, told, spec)


def _is_objects(cx: Capture, cls: type, name: str) -> bool:
    """Whether a class inherits this method of `object`, which prints the class's name and the address."""
    return lookup(cx, cls, name) is mro_lookup(object, name)


def is_container(value: Value) -> TypeGuard[Sequence | Dict]:
    """Whether the value is a container whose str each call computes if an element is open."""
    return isinstance(value, (Sequence, Dict)) and value.cls in (list, tuple, torch.Size, dict)


def to_open_str(cx: Capture, value: Value, how: Callable[[Any], str]) -> Value:
    """Like `text`, but open if it consists of values that differ between calls."""
    if is_open(value) and (made := open_text(cx, how, [value])) is not None:
        return made
    value = cx.realize(value)
    if not is_container(value):
        return text(cx, value, how)
    if value.is_const():
        return cx.evaluate(how, value)
    told = ascii if how is ascii else repr
    if isinstance(value, Dict):
        pairs = value.pairs(cx)
        return _listed(
            cx, "{", ([to_open_str(cx, k, told), Const(": "), to_open_str(cx, v, told)] for k, v in pairs), "}"
        )
    before, after = ("[", "]") if value.cls is list else ("(", ",)" if len(value.items) == 1 else ")")
    if value.cls is torch.Size:
        before, after = "torch.Size([", "])"
    elements = (v if isinstance(v, ComputedStr) else cx.realize(v) for v in value.items)
    return _listed(cx, before, ([to_open_str(cx, v, told)] for v in elements), after)


def concatenate(cx: Capture, parts: Iterable[Value]) -> Value:
    """The concatenation of parts, open if one of them is open."""
    merged: list[Value] = []
    for part in parts:
        if isinstance(part, Const) and merged and isinstance(merged[-1], Const):
            merged[-1] = Const(merged[-1].value + part.value)
        else:
            merged.append(part)
    return open_text(cx, joined, merged) or Const("".join(cx.realize(p).const() for p in merged))


def _listed(cx: Capture, before: str, elements: Iterable[list[Value]], after: str) -> Value:
    parts: list[Value] = []
    for element in elements:
        parts += [Const(", "), *element] if parts else element
    return concatenate(cx, [Const(before), *parts, Const(after)])


def _of_pairs(cx: Capture, value: Dict) -> str:
    pairs = (f"{text(cx, k, repr).const()}: {text(cx, v, repr).const()}" for k, v in value.pairs(cx))
    return "{" + ", ".join(pairs) + "}"


def _inside(cx: Capture, value: Value) -> str | None:
    """The part between the parentheses in the repr of a container, after the class's name."""
    if isinstance(value, Deque):
        most = "" if value.limit is None else f", maxlen={value.limit}"
        return text(cx, List(list(value.iterate(cx))), repr).const() + most  # type: ignore[no-any-return]
    if isinstance(value, DictView):
        return text(cx, List(list(value.iterate(cx))), repr).const()  # type: ignore[no-any-return]
    if isinstance(value, Proxy):
        return text(cx, value.mapping, repr).const()  # type: ignore[no-any-return]
    if isinstance(value, Dict) and value.cls is collections.defaultdict:
        made = "None" if value.default_factory is None else text(cx, value.default_factory, repr).const()
        return f"{made}, {_of_pairs(cx, value)}"
    if isinstance(value, Dict) and value.cls is collections.OrderedDict:
        if not value.entries:
            return ""
        listed = List([Tuple([k, v]) for k, v in value.pairs(cx)])
        return _of_pairs(cx, value) if sys.version_info >= (3, 12) else text(cx, listed, repr).const()
    return None


def text(cx: Capture, value: Value, how: Callable[[Any], str]) -> Value:
    """str(value), repr(value) or ascii(value)."""
    if is_container(value):
        return cx.realize(to_open_str(cx, value, how))
    value = _part(cx, value)
    if isinstance(value, Deferred):
        return deferred.compute(cx, how, [value])
    if isinstance(value, Set) and value.cls in (set, frozenset):
        inner = ", ".join(text(cx, v, repr).const() for v in value.ordered(cx))
        braced = f"{{{inner}}}" if inner else ""
        return Const(braced if braced and value.cls is set else f"{value.cls.__name__}({braced})")
    if isinstance(value, Member) and value.says_texts():
        name = "__str__" if how is str else "__repr__"
        if (method := value.method(cx, name)) is not None:
            return call_special(cx, how, value, name, method)
    if value.is_const():
        return cx.evaluate(how, value)
    if isinstance(value, UnknownStr) and how is str:
        return value
    if isinstance(value, NativeObject) and value.kind.shown:
        return native_objects.run(cx, how, [value], {}, reads=True)
    if isinstance(value, Object):
        names = ("__str__", "__repr__") if how is str else ("__repr__",)
        for name in names:
            method = value.special(cx, name)
            if isinstance(method, Method) and (
                isinstance(method.function, Function) or is_inlined(getattr(method.function, "fn", None))
            ):
                return call_special(cx, how, value, name, method)
        if value.args is not None and not value.exists:
            return exceptions.text(cx, value, how)
        if all(_is_objects(cx, value.cls, n) for n in names):
            told = Break("unsupported-operation", f"{how.__name__}({value.describe()})")
            return AddressStr(cx.frames[-1].here(told), how, [value])
    if (
        isinstance(value, Tuple)
        and hasattr(value.cls, "_fields")
        and value.cls.__repr__.__qualname__.endswith(".__repr__")
    ):
        method = cx.class_attribute(value, "__repr__")
        if isinstance(method, Method) and isinstance(method.function, Function):
            return cx.call(method, [], {})
    if (contents := _inside(cx, value)) is not None:
        return Const(f"{value.python_type().__name__}({contents})")
    if isinstance(value, Function) and value.real is not None and value.source is not None:  # its name and address
        cx.guard("id_is", value.source, reference(value.real))
        cx.guard("equals", value.source.attr("__qualname__"), value.real.__qualname__)
        cx.looks_at_address()
        return Const(how(value.real))
    raise Break("unsupported-operation", f"{how.__name__}({value.describe()})")
