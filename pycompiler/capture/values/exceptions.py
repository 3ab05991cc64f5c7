"""Exceptions made during capture: their C-level attributes and texts, read off a stand-in.

In: an `Object` of an exception class with its constructor arguments.  Out: `e.value`, `e.errno`, `e.exceptions`,
`str(e)`, ... as CPython computes them: a real exception is built from the constants among the arguments and from
placeholders for the rest, and what is read from it is translated back.
"""

from __future__ import annotations

import types
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.attributes import is_mutable, lookup
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.members import Member
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.sequences import List, Tuple
from pycompiler.ir.source import mro_of

INITIALISED = (OSError, StopIteration, SystemExit, ImportError, SyntaxError, UnicodeError, NameError, AttributeError)
"""Exceptions whose `__init__` reads its arguments."""
GROUP = ("message", "exceptions")
MEMBER = types.MemberDescriptorType


class Back(dict[int, tuple[Any, Value]]):
    """id of a stand-in -> the stand-in (kept alive) and the value it stands for; `made`: the stand-in of each value."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, Any] = {}


class Placeholder:
    """Stands for a value that has no real counterpart during capture."""


def builtin_base(cls: type) -> type:
    """The most derived class of the mro that is not written in Python."""
    return next(c for c in mro_of(cls) if not is_mutable(c))


def keeps_arguments(cls: type) -> bool:
    """Whether the `__init__` in C of an exception only keeps its arguments."""
    return not issubclass(cls, INITIALISED)


def set_beside(error: BaseException) -> dict[str, Any]:
    """Attributes in C that an error was given besides its arguments: where a SyntaxError is, what an AttributeError is about."""
    cls = builtin_base(type(error))
    if keeps_arguments(cls):
        return {}
    plain = cls(*error.args)
    found = {
        name: getattr(error, name)
        for base in mro_of(cls)
        for name, member in vars(base).items()
        if type(member) is MEMBER
    }
    return {name: value for name, value in found.items() if value != getattr(plain, name)}


def stand_in(value: Value, back: Back) -> Any:
    value = value.settle("for the text of an exception")
    if value.is_const():
        return value.const()
    if id(value) in back.made:  # members of a group are among its arguments, too
        return back.made[id(value)]
    real: Any = Placeholder()
    if isinstance(value, Object) and value.args is not None:
        real = build(value, back)
    elif issubclass(type(existing := getattr(value, "real", None)), BaseException):
        real = existing
    elif isinstance(value, (List, Tuple)) and value.cls in (list, tuple):
        real = value.cls(stand_in(v, back) for v in value.items)
    back[id(real)] = (real, value)
    back.made[id(value)] = real
    return real


def build(exception: Object, back: Back) -> BaseException:
    """A real exception of the same class; Python-level `__new__` and `__init__` do not run."""
    base = builtin_base(exception.cls)
    args = [stand_in(a, back) for a in exception.args or ()]
    made_of = args if exception.group is None else [stand_in(a, back) for a in exception.group]
    try:
        real: BaseException = base.__new__(exception.cls, *made_of)
        if isinstance(real, exception.cls):
            base.__init__(real, *args)  # type: ignore[misc]
    except TypeError:
        if any(type(a) is Placeholder for a in (*args, *made_of)):  # which may be of the class that is wanted
            raise Break("builtin-call", f"{exception.describe()} of what is not known") from None
        raise
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
    if exception.group is not None and name in GROUP:
        return exception.group[GROUP.index(name)]
    back = Back()
    real = cx.evaluate_raw(build, exception, back)
    return translate(cx, cx.evaluate_raw(getattr, real, name), back)


def text(cx: Capture, exception: Object, how: Any) -> Value:
    """str(e) or repr(e) by the C-level methods of its class."""
    back = Back()
    real = build(exception, back)
    members = [v for v in map(cx.realize, exception.args or ()) if isinstance(v, Member)]
    if not all(_is_told(cx, v) for _, v in back.values()) or any(v.says_texts() for v in members):
        raise Break(
            "unsupported-operation", f"{how.__name__}({exception.describe()}) with arguments that are not constants"
        )
    return cx.evaluate(how, real)


def _is_told(cx: Capture, value: Value) -> bool:
    """Whether the text of what stands for an argument is its own."""
    if not isinstance(value, Object):
        return isinstance(value, (List, Tuple)) and value.cls in (list, tuple)
    written = (lookup(cx, value.cls, name) for name in ("__repr__", "__str__"))
    return value.args is not None and not value.exists and not any(isinstance(m, types.FunctionType) for m in written)


def new(cx: Capture, cls: type, args: list[Value]) -> Object:
    """cls.__new__(cls, *args): OSError picks a subclass by its errno, BaseExceptionGroup by its members."""
    made = Object(cls, args=args)
    if issubclass(cls, BaseExceptionGroup):
        if len(args) == 2:
            members = cx.realize(args[1])
            if not isinstance(members, (List, Tuple)) or members.cls not in (list, tuple):
                raise Break("builtin-call", f"{cls.__qualname__}(...) of {members.describe()}")
            made.group = (args[0], Tuple(list(cx.elements(members))))
    elif builtin_base(cls).__new__ is BaseException.__new__:
        return made
    back = Back()
    for member in () if made.group is None else made.group[1].iterate(cx):
        if isinstance(member, Object) and member.group is not None:  # what is in it does not matter
            inner = Exception() if issubclass(member.cls, Exception) else BaseException()
            back.made[id(member)] = BaseExceptionGroup("", [inner])
    made.cls = type(cx.evaluate_raw(build, made, back))
    return made
