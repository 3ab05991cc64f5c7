"""Exceptions made during capture: their C-level attributes and texts, read off a stand-in.

In: an `Object` of an exception class with its constructor arguments.  Out: `e.value`, `e.errno`, `e.exceptions`,
`str(e)`, ... as CPython computes them: a real exception is built from the constants among the arguments and from
placeholders for the rest, and what is read from it is translated back.
"""

from __future__ import annotations

from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.containers import List, Tuple
from pycompiler.capture.values.objects import Object
from pycompiler.ir.source import mro_of

Back = dict[int, tuple[Any, Value]]  # id of a stand-in -> the stand-in (kept alive) and the value it stands for


class Placeholder:
    """Stands for a value that has no real counterpart during capture."""


def builtin_base(cls: type) -> type:
    """The most derived class of the mro that is not written in Python."""
    return next(c for c in mro_of(cls) if not c.__flags__ & (1 << 9))


def stand_in(value: Value, back: Back) -> Any:
    value = value.settle("for the text of an exception")
    if value.is_const():
        return value.const()
    real: Any = Placeholder()
    if isinstance(value, Object) and value.args is not None:
        real = build(value, back)
    elif isinstance(value, (List, Tuple)) and value.cls in (list, tuple):
        real = value.cls(stand_in(v, back) for v in value.items)
    back[id(real)] = (real, value)
    return real


def build(exception: Object, back: Back) -> BaseException:
    """A real exception of the same class; Python-level `__new__` and `__init__` do not run."""
    base = builtin_base(exception.cls)
    args = [stand_in(a, back) for a in exception.args or ()]
    real: BaseException = base.__new__(exception.cls, *args)
    if isinstance(real, exception.cls):
        base.__init__(real, *args)  # type: ignore[misc]
    return real


def translate(cx: Capture, found: Any, back: Back) -> Value:
    if id(found) in back:
        return back[id(found)][1]
    if type(found) in (tuple, list):
        return cx.sequence([translate(cx, v, back) for v in found], type(found))
    if isinstance(found, Placeholder):
        raise Break("unsupported-attribute", "attribute of an exception")
    return cx.make(found)


def attribute(cx: Capture, exception: Object, name: str) -> Value:
    """A C-level attribute of an exception made during capture."""
    back: Back = {}
    real = cx.evaluate_raw(build, exception, back)
    return translate(cx, cx.evaluate_raw(getattr, real, name), back)


def text(cx: Capture, exception: Object, how: Any) -> Value:
    """str(e) or repr(e) by the C-level methods of its class."""
    back: Back = {}
    real = build(exception, back)
    if back:
        raise Break(
            "unsupported-operation", f"{how.__name__}({exception.describe()}) with arguments that are not constants"
        )
    return cx.evaluate(how, real)


def actual_class(cx: Capture, cls: type, args: list[Value]) -> type:
    """The class of cls(*args): OSError picks a subclass by its errno, BaseExceptionGroup by its members."""
    if cls.__new__ is BaseException.__new__:
        return cls
    real = cx.evaluate_raw(build, Object(cls, args=args), {})
    return type(real)
